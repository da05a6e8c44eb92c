//! Lines that say the same of several VMs: one line, which names them.

use std::collections::BTreeMap;

/// Where more are alike, so many of them are named.
const NAMED: usize = 3;

/// Lines `NAME: what is so`: those that differ in the name only become one, in the place of the first.
pub(crate) fn alike(lines: impl IntoIterator<Item = impl AsRef<str>>) -> Vec<String> {
    let mut all: Vec<(Vec<String>, String)> = Vec::new();
    let mut known: BTreeMap<String, usize> = BTreeMap::new();
    for line in lines {
        let (name, what) = line.as_ref().split_once(": ").unwrap_or(("", line.as_ref()));
        let at = *known.entry(what.to_owned()).or_insert(all.len());
        if at == all.len() {
            all.push((Vec::new(), what.to_owned()));
        }
        if !name.is_empty() || all[at].0.is_empty() {
            all[at].0.push(name.to_owned());
        }
    }
    all.into_iter().map(|(names, what)| said(&names, &what)).collect()
}

fn said(names: &[String], what: &str) -> String {
    match names {
        [] => what.into(),
        [name] if name.is_empty() => what.into(),
        [name] => format!("{name}: {what}"),
        _ if names.len() <= NAMED + 1 => {
            let (last, first) = names.split_last().expect("several");
            format!("{} and {last}, each: {what}", first.join(", "))
        }
        _ => {
            let (first, more) = names.split_at(NAMED);
            format!("{} and {} more, each: {what}", first.join(", "), more.len())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_whom_the_same_is_so_is_said_in_one_line_that_names_the_first_few_and_how_many_more() {
        let one = |name: &str| format!("{name}: left alone: its rule says exclude");
        let other = "b: keeps its cpuset: it has none";
        assert_eq!(
            alike([one("a"), other.into(), "no name".into(), one("c")]),
            ["a and c, each: left alone: its rule says exclude", other, "no name",]
        );
        let of = |names: &[&str]| alike(names.iter().map(|name| one(name)));
        assert_eq!(of(&["a"]), [one("a")]);
        // Several VMs may have one name.
        assert_eq!(of(&["a", "a"]), ["a and a, each: left alone: its rule says exclude"]);
        assert_eq!(of(&["a", "b", "c", "d"]), ["a, b, c and d, each: left alone: its rule says exclude"]);
        assert_eq!(
            of(&["a", "b", "c", "d", "e"]),
            ["a, b, c and 2 more, each: left alone: its rule says exclude"]
        );
        assert_eq!(alike(["x", "x", "y"]), ["x", "y"]);
    }
}

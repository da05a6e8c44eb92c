//! What each key of a configuration may be, in words: an error says what is allowed, not what a parser expected.

use std::ops::Range;

use corefit_core::CpuSet;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// What is shown of a value at most.
const SHOWN: usize = 40;

/// What a value is.
#[derive(Clone, Copy)]
enum Kind {
    Flag,
    /// For what, with an example.
    Text(&'static str),
    /// A whole number from a least one to a most one that can be read at all; in words, those that count.
    Whole(i64, i64, &'static str),
    Number(&'static str),
    OneOf(&'static [&'static str]),
    Pcpus,
    Table,
    Tables,
}

const U32: i64 = u32::MAX as i64;
const SIZES: &[&str] = &["none", "vcpu-bal", "vscale", "pcpu-est", "corefit"];
const HELPERS: &[&str] = &["none", "light"];
const SHAPES: &[&str] = &["none", "burst", "long-period", "proportional", "slice", "corefit"];
const MS: &str = "a whole number of milliseconds";

/// Every key there is; of all rules once.
const KEYS: [(&str, Kind); 33] = [
    ("machine", Kind::Text("a machine's name in quotes, such as \"libvirt\"")),
    ("apply", Kind::Flag),
    ("tell", Kind::Flag),
    ("state", Kind::Text("a directory in quotes, such as \"/var/lib/corefit\"")),
    ("metrics", Kind::Text("an address in quotes, such as \"127.0.0.1:9464\", or \"off\"")),
    ("policy", Kind::Table),
    ("policy.interval_ms", Kind::Whole(0, i64::MAX, "a whole number of milliseconds from 50 to 3600000")),
    ("policy.demand", Kind::OneOf(&["ewma", "pid", "ftds", "aisd"])),
    ("policy.smooth", Kind::Flag),
    ("policy.arbitrate", Kind::OneOf(&["none", "fcfs", "priority", "max-min"])),
    ("policy.size", Kind::OneOf(SIZES)),
    ("policy.weigh", Kind::OneOf(&["none", "grants"])),
    ("policy.helpers", Kind::OneOf(HELPERS)),
    ("policy.place", Kind::OneOf(&["none", "ulas", "optimal-affinity", "corefit"])),
    ("policy.reserved", Kind::Pcpus),
    ("policy.shape", Kind::OneOf(SHAPES)),
    ("policy.dwell_ms", Kind::Whole(0, i64::MAX, MS)),
    ("policy.deadband", Kind::Number("a number from 0 to 1")),
    ("policy.lever_ms", Kind::Whole(0, i64::MAX, MS)),
    ("policy.probe_ms", Kind::Whole(0, i64::MAX, "a whole number of milliseconds from 20 to 60000")),
    ("policy.searches", Kind::Whole(0, i64::MAX, "a whole number, 0 or more")),
    ("policy.vm", Kind::Tables),
    ("policy.vm.name", Kind::Text("a name in quotes, or a pattern such as \"web*\"")),
    ("policy.vm.size", Kind::OneOf(SIZES)),
    (
        "policy.vm.priority",
        Kind::Whole(i32::MIN as i64, i32::MAX as i64, "a whole number, such as -1, 0 or 10"),
    ),
    ("policy.vm.min", Kind::Whole(0, U32, "a whole number of vCPUs, 1 or more")),
    ("policy.vm.max", Kind::Whole(0, U32, "a whole number of vCPUs, 1 or more")),
    ("policy.vm.class", Kind::OneOf(&["unknown", "cache-hungry", "communicating"])),
    ("policy.vm.guaranteed", Kind::Number("a number of pCPUs, such as 0.5")),
    ("policy.vm.helpers", Kind::OneOf(HELPERS)),
    ("policy.vm.shape", Kind::OneOf(SHAPES)),
    ("policy.vm.latency_ms", Kind::Whole(0, i64::MAX, "a whole number of milliseconds from 1 to 1000")),
    ("policy.vm.exclude", Kind::Flag),
];

/// What cannot be, and where.
#[derive(Debug, PartialEq)]
pub(super) struct Bad {
    /// Byte of the text.
    pub(super) at: usize,
    /// As in `policy.vm[2].min`.
    pub(super) key: String,
    pub(super) what: String,
}

/// The first key or value that cannot be.
pub(super) fn bad(text: &str, table: &DeTable<'_>) -> Option<Bad> {
    in_table(text, table, "", "")
}

/// Every key, with what it may be.
fn all() -> impl Iterator<Item = (&'static str, Kind)> {
    KEYS.into_iter()
}

/// `place` is as people write it, `path` without numbers of rules.
fn in_table(text: &str, table: &DeTable<'_>, place: &str, path: &str) -> Option<Bad> {
    // In the order of the file.
    let mut entries: Vec<_> = table.iter().collect();
    entries.sort_by_key(|(key, _)| key.span().start);
    entries.into_iter().find_map(|(key, value)| {
        let below = |above: &str| {
            let dot = if above.is_empty() { "" } else { "." };
            format!("{above}{dot}{}", crate::printable::text(key.get_ref()))
        };
        let (place, path) = (below(place), below(path));
        let Some((_, kind)) = all().find(|(known, _)| *known == path) else {
            return Some(Bad { at: key.span().start, key: place, what: unknown(&path) });
        };
        of_value(text, value, kind, place, &path)
    })
}

fn of_value(text: &str, value: &Spanned<DeValue<'_>>, kind: Kind, place: String, path: &str) -> Option<Bad> {
    match (kind, value.get_ref()) {
        (Kind::Table, DeValue::Table(table)) => in_table(text, table, &place, path),
        (Kind::Tables, DeValue::Array(rules)) => rules.iter().enumerate().find_map(|(number, rule)| {
            let place = format!("{place}[{number}]");
            match rule.get_ref() {
                DeValue::Table(table) => in_table(text, table, &place, path),
                _ => Some(not(text, rule.span(), place, "a rule, as in { name = \"web*\", min = 2 }")),
            }
        }),
        (_, value_now) if allowed(kind, value_now) => None,
        _ => Some(not(text, value.span(), place, &words(kind))),
    }
}

fn allowed(kind: Kind, value: &DeValue<'_>) -> bool {
    match (kind, value) {
        (Kind::Flag, DeValue::Boolean(_))
        | (Kind::Text(_), DeValue::String(_))
        | (Kind::Number(_), DeValue::Float(_)) => true,
        (Kind::OneOf(names), DeValue::String(name)) => names.contains(&name.as_ref()),
        (Kind::Pcpus, DeValue::String(list)) => list.parse::<CpuSet>().is_ok(),
        (Kind::Whole(least, most, _), DeValue::Integer(number)) => {
            let read = i64::from_str_radix(number.as_str(), number.radix());
            read.is_ok_and(|number| (least..=most).contains(&number))
        }
        (Kind::Number(_), DeValue::Integer(number)) => {
            i64::from_str_radix(number.as_str(), number.radix()).is_ok()
        }
        _ => false,
    }
}

fn words(kind: Kind) -> String {
    match kind {
        Kind::Flag => "true or false".into(),
        Kind::Text(words) | Kind::Whole(_, _, words) | Kind::Number(words) => words.into(),
        Kind::OneOf(names) => {
            let quoted: Vec<String> = names.iter().map(|name| format!("{name:?}")).collect();
            format!("one of {}", quoted.join(", "))
        }
        Kind::Pcpus => "pCPUs in quotes, such as \"0-1,16\", or \"\" for none".into(),
        Kind::Table => "a table: a line [policy], and its keys below".into(),
        Kind::Tables => "rules: a line [[policy.vm]] for each, and its keys below".into(),
    }
}

fn not(text: &str, span: Range<usize>, key: String, words: &str) -> Bad {
    let at = span.start;
    let written = text.get(span).unwrap_or_default().lines().next().unwrap_or_default();
    let mut shown: String = written.chars().take(SHOWN).collect();
    if shown.len() < written.len() {
        shown += "…";
    }
    Bad { at, key, what: format!("{} cannot be; give {words}", crate::printable::text(&shown)) }
}

/// Which keys there are beside one that there is not.
fn unknown(path: &str) -> String {
    let above = |path: &'static str| path.rsplit_once('.').map_or("", |(above, _)| above);
    let (table, own) = path.rsplit_once('.').unwrap_or(("", path));
    let names: Vec<&str> = all()
        .filter(|(known, _)| above(known) == table)
        .map(|(known, _)| known.rsplit('.').next().unwrap_or(known))
        .collect();
    let elsewhere = all().map(|(known, _)| known).find(|known| known.rsplit('.').next() == Some(own));
    let hint = elsewhere.map_or(String::new(), |known| match above(known) {
        "" => format!("; {own} stands above all tables"),
        "policy.vm" => format!("; {own} stands below [[policy.vm]]"),
        table => format!("; {own} stands below [{table}]"),
    });
    format!("there is no such key{hint}; there are {}", names.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use corefit_core::decide::{Policy, Rule};
    use serde_json::Value;

    /// Keys of a table of structures.
    fn fields(of: &impl serde::Serialize, above: &str) -> Vec<String> {
        let Ok(Value::Object(map)) = serde_json::to_value(of) else { panic!("no structure") };
        map.keys().map(|key| format!("{above}.{key}")).collect()
    }

    #[test]
    fn the_keys_are_those_that_policies_have() {
        let mut want = fields(&Policy::default(), "policy");
        want.extend(fields(&Rule::default(), "policy.vm"));
        let mut have: Vec<String> =
            all().map(|(key, _)| key.into()).filter(|key: &String| key.contains('.')).collect();
        want.sort();
        have.sort();
        assert_eq!(have, want);
    }

    #[test]
    fn the_names_that_are_allowed_are_those_that_can_be_read() {
        for (key, kind) in all() {
            let Kind::OneOf(names) = kind else { continue };
            let (table, key) = key.rsplit_once('.').unwrap();
            let read = |name: &str| match table {
                "policy" => toml::from_str::<Policy>(&format!("{key} = {name:?}")).map(|_| ()),
                _ => toml::from_str::<Rule>(&format!("{key} = {name:?}")).map(|_| ()),
            };
            let error = read("?").unwrap_err().to_string();
            let known: Vec<&str> = error.split('`').skip(3).step_by(2).collect();
            assert_eq!(known, names, "{key}: {error}");
            names.iter().for_each(|name| read(name).unwrap());
        }
    }

    #[test]
    fn what_is_allowed_can_be_read() {
        for (text, fine) in [
            ("apply = true\nmachine = \"libvirt\"\n[policy]\ndeadband = 0\nreserved = \"0-1\"", true),
            ("[[policy.vm]]\nname = \"a\"\nmin = 0x4\npriority = -1\nguaranteed = 1", true),
            ("policy.vm = [{ name = \"a\", max = 1_000 }]", true),
            ("[policy]\nsearches = 99999999999999999999", false),
            ("[[policy.vm]]\nname = \"a\"\nmin = 4294967296", false),
            ("[policy]\nvm = [3]", false),
            ("policy = 1", false),
            ("[policy]\nvm = \"a\"", false),
            ("[policy]\nreserved = \"x\"", false),
            ("apply = 2020-01-01", false),
        ] {
            let table = DeTable::parse(text).unwrap();
            let found = bad(text, table.get_ref());
            assert_eq!(found.is_none(), fine, "{text:?}: {found:?}");
            assert_eq!(toml::from_str::<super::super::Config>(text).is_ok(), fine, "{text:?}");
        }
    }
}

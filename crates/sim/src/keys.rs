//! What each key of `[policy]` may be, in words: an error says what is allowed, not what a parser expected. For scenarios and
//! for configurations of `corefit manage`.

mod at;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use corefit_core::CpuSet;

pub use at::key_at;

/// What is shown of a value at most, characters.
const SHOWN: usize = 40;

/// What a value is.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// True or false.
    Flag,
    /// For what, with an example.
    Text(&'static str),
    /// A whole number from a least one to a most one that can be read at all; in words, those that count.
    Whole(i64, i64, &'static str),
    /// Any number; in words, those that count.
    Number(&'static str),
    /// A name of these.
    OneOf(&'static [&'static str]),
    /// A list of pCPUs.
    Pcpus,
    /// More keys.
    Table,
    /// Rules, each with keys.
    Tables,
}

/// The largest number of at most nine digits.
pub const NINE_DIGITS: i64 = corefit_core::decide::NINE_DIGITS as i64;
const SIZES: &[&str] = &["none", "vcpu-bal", "vscale", "pcpu-est", "corefit"];
const HELPERS: &[&str] = &["none", "light"];
const SHAPES: &[&str] = &["none", "burst", "long-period", "proportional", "slice", "corefit"];
const MS: &str = "a whole number of milliseconds from 0 to 86400000, a day";
const VCPUS: &str = "a whole number of vCPUs, 1 or more, of at most nine digits";

/// Every key of [`corefit_core::decide::Policy`], below `policy`; of all rules once.
pub const KEYS: [(&str, Kind); 27] = [
    ("policy.interval_ms", Kind::Whole(0, i64::MAX, "a whole number of milliseconds from 50 to 10000")),
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
    ("policy.searches", Kind::Whole(0, NINE_DIGITS, "a whole number, 0 or more, of at most nine digits")),
    ("policy.vm", Kind::Tables),
    ("policy.vm.name", Kind::Text("a name in quotes, or a pattern such as \"web*\"")),
    ("policy.vm.size", Kind::OneOf(SIZES)),
    (
        "policy.vm.priority",
        Kind::Whole(-NINE_DIGITS, NINE_DIGITS, "a whole number of at most nine digits, such as -1, 0 or 10"),
    ),
    ("policy.vm.min", Kind::Whole(0, NINE_DIGITS, VCPUS)),
    ("policy.vm.max", Kind::Whole(0, NINE_DIGITS, VCPUS)),
    ("policy.vm.class", Kind::OneOf(&["unknown", "cache-hungry", "communicating"])),
    ("policy.vm.guaranteed", Kind::Number("a number of pCPUs, such as 0.5")),
    ("policy.vm.helpers", Kind::OneOf(HELPERS)),
    ("policy.vm.shape", Kind::OneOf(SHAPES)),
    ("policy.vm.latency_ms", Kind::Whole(0, i64::MAX, "a whole number of milliseconds from 1 to 1000")),
    ("policy.vm.exclude", Kind::Flag),
];

/// What cannot be, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bad {
    /// Byte of the text.
    pub at: usize,
    /// As in `policy.vm[2].min`, with whatever characters it has.
    pub key: String,
    /// What is wrong, and what can be.
    pub what: String,
}

/// The first key or value, in the order of the file, that cannot be. `above`: where the table stands, as in `policy`; empty: it is
/// the whole document. `keys`: all that there are in the document.
#[must_use]
pub fn bad(table: &DeTable<'_>, above: &str, keys: &[(&'static str, Kind)]) -> Option<Bad> {
    in_table(table, above, above, keys)
}

/// Where a key such as `vm[2].min` below a table stands in the text, or else the nearest table above it: a byte.
#[must_use]
pub fn place(table: &DeTable<'_>, key: &str) -> Option<usize> {
    let mut table = table;
    let mut found = None;
    for part in key.split('.') {
        let (name, index) = match part.split_once('[') {
            Some((name, rest)) => (name, rest.trim_end_matches(']').parse::<usize>().ok()),
            None => (part, None),
        };
        let Some((at, value)) = table.iter().find(|(known, _)| known.get_ref() == name) else { break };
        found = Some(at.span().start);
        let mut value = value;
        if let (Some(index), DeValue::Array(list)) = (index, value.get_ref()) {
            value = list.get(index)?;
            found = Some(value.span().start);
        }
        match value.get_ref() {
            DeValue::Table(inner) => table = inner,
            _ => break,
        }
    }
    found
}

/// The line of a place in a text, from 1.
#[must_use]
pub fn line(text: &str, at: usize) -> usize {
    text.bytes().take(at).filter(|byte| *byte == b'\n').count() + 1
}

/// `place` is as people write it, `path` without numbers of rules.
fn in_table(table: &DeTable<'_>, place: &str, path: &str, keys: &[(&'static str, Kind)]) -> Option<Bad> {
    let mut entries: Vec<_> = table.iter().collect();
    entries.sort_by_key(|(key, _)| key.span().start);
    entries.into_iter().find_map(|(key, value)| {
        let below = |above: &str| {
            let dot = if above.is_empty() { "" } else { "." };
            format!("{above}{dot}{}", key.get_ref())
        };
        let (place, path) = (below(place), below(path));
        let Some((_, kind)) = keys.iter().find(|(known, _)| *known == path) else {
            return Some(Bad { at: key.span().start, key: place, what: unknown(&path, keys) });
        };
        of_value(value, *kind, place, &path, keys)
    })
}

fn of_value(
    value: &Spanned<DeValue<'_>>,
    kind: Kind,
    place: String,
    path: &str,
    keys: &[(&'static str, Kind)],
) -> Option<Bad> {
    match (kind, value.get_ref()) {
        (Kind::Table, DeValue::Table(table)) => in_table(table, &place, path, keys),
        (Kind::Tables, DeValue::Array(rules)) => rules.iter().enumerate().find_map(|(number, rule)| {
            let place = format!("{place}[{number}]");
            match rule.get_ref() {
                DeValue::Table(table) => in_table(table, &place, path, keys),
                _ => Some(not(rule, place, "a rule, as in { name = \"web*\", min = 2 }")),
            }
        }),
        (_, value_now) if allowed(kind, value_now) => None,
        _ => Some(not(value, place, &words(kind))),
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

fn not(value: &Spanned<DeValue<'_>>, key: String, words: &str) -> Bad {
    let written = written(value.get_ref());
    let mut shown: String = written.chars().take(SHOWN).collect();
    if shown.len() < written.len() {
        shown += "…";
    }
    Bad { at: value.span().start, key, what: format!("{shown} cannot be; give {words}") }
}

/// A value as one would write it.
fn written(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) => format!("{text:?}"),
        DeValue::Integer(number) => number.as_str().into(),
        DeValue::Float(number) => number.as_str().into(),
        DeValue::Boolean(flag) => flag.to_string(),
        DeValue::Datetime(time) => time.to_string(),
        DeValue::Array(_) => "a list".into(),
        DeValue::Table(_) => "a table".into(),
    }
}

/// Which keys there are beside one that there is not.
fn unknown(path: &str, keys: &[(&'static str, Kind)]) -> String {
    let above = |path: &'static str| path.rsplit_once('.').map_or("", |(above, _)| above);
    let (table, own) = path.rsplit_once('.').unwrap_or(("", path));
    let names: Vec<&str> = keys
        .iter()
        .filter(|(known, _)| above(known) == table)
        .map(|(known, _)| known.rsplit('.').next().unwrap_or(known))
        .collect();
    let elsewhere = keys.iter().map(|(known, _)| *known).find(|known| known.rsplit('.').next() == Some(own));
    let hint = elsewhere.map_or(String::new(), |known| match above(known) {
        "" => format!("; {own} stands above all tables"),
        "policy.vm" => format!("; {own} stands below [[policy.vm]]"),
        table => format!("; {own} stands below [{table}]"),
    });
    format!("there is no such key{hint}; there are {}", names.join(", "))
}

//! Tables of TOML with the places of their values, so that mistakes can be told with their lines.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::BTreeMap;

use corefit_core::CpuSet;
use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue};

use super::{ScenarioError, Set};
use crate::keys::line;

/// A value that is not made of others, as text that [`set`] understands.
pub(super) fn plain(value: &DeValue<'_>) -> Option<String> {
    match value {
        DeValue::String(text) => Some(text.to_string()),
        DeValue::Integer(n) => Some(decimal(&n.as_str().replace('_', ""), n.radix())),
        DeValue::Float(x) => Some(x.as_str().replace('_', "")),
        DeValue::Boolean(b) => Some(b.to_string()),
        _ => None,
    }
}

/// How a path calls each of some tables: by its name, or by its number if it has none that tells. Rules of a policy may share a
/// name, and be patterns with dots.
pub(super) fn labels(items: &[Spanned<DeValue<'_>>]) -> Vec<String> {
    let name_of = |item: &Spanned<DeValue<'_>>| {
        let (_, name) = item.get_ref().as_table()?.iter().find(|(key, _)| key.get_ref() == "name")?;
        plain(name.get_ref())
    };
    let names: Vec<Option<String>> = items.iter().map(name_of).collect();
    let tells = |name: &&String| {
        let same = names.iter().flatten().filter(|other| other == name);
        same.count() == 1 && !name.is_empty() && !name.contains('.') && name.parse::<usize>().is_err()
    };
    let label = |(number, name): (usize, &Option<String>)| {
        name.as_ref().filter(tells).cloned().unwrap_or_else(|| number.to_string())
    };
    names.iter().enumerate().map(label).collect()
}

/// Digits of a radix, in decimal; as they are if that is more than any number here may be.
fn decimal(digits: &str, radix: u32) -> String {
    i128::from_str_radix(digits, radix).map_or_else(|_| digits.to_owned(), |number| number.to_string())
}

/// Tables of settings that all have defaults.
const PARTS: [&str; 10] =
    ["cfs", "costs", "credit", "credit2", "governor", "hardware", "ple", "policy", "relaxed", "strict"];

/// Puts a value at a path: TOML, or else a text.
pub(super) fn set<'a>(root: &mut DeTable<'a>, path: &'a str, value: &'a str) -> Result<(), String> {
    let mut table = root;
    let parts: Vec<&str> = path.split('.').collect();
    let Some((last, way)) = parts.split_last() else { return Err("give a key".into()) };
    let mut way = way.iter();
    while let Some(part) = way.next() {
        let known = keys(table);
        if parts[0] == *part && PARTS.contains(part) && !table.iter().any(|(key, _)| key.get_ref() == part) {
            // Everything in these has a default: they need not be in the file.
            let empty = DeValue::Table(DeTable::new());
            table.insert(Spanned::new(0..0, Cow::Borrowed(*part)), Spanned::new(0..0, empty));
        }
        let entry = table.iter_mut().find(|(key, _)| key.get_ref() == part).map(|(_, value)| value.get_mut());
        match entry {
            Some(DeValue::Table(inner)) => table = inner,
            Some(DeValue::Array(items)) => {
                let Some(name) = way.next() else {
                    return Err(format!("is one of [[{part}]], with keys of its own; give {path}.KEY"));
                };
                table = element(items.iter_mut().map(Spanned::get_mut), name, part)?;
            }
            Some(_) => return Err(format!("{part:?} is no table")),
            None if known.is_empty() => return Err(format!("there is no {part:?}")),
            None => return Err(format!("there is no {part:?}; there is {known}")),
        }
    }
    let old = table.iter_mut().find(|(key, _)| key.get_ref() == last).map(|(_, value)| value);
    // What is text in the list that stands there stays text, even if it looks like a number.
    let text = |item: &Spanned<DeValue<'_>>| item.get_ref().as_str() == Some(value);
    let listed =
        old.as_ref().and_then(|old| old.get_ref().as_array()).is_some_and(|items| items.iter().any(text));
    let value = if listed { DeValue::String(Cow::Borrowed(value)) } else { typed(value) };
    if let Some(old) = old {
        *old.get_mut() = value;
    } else {
        table.insert(Spanned::new(0..0, Cow::Borrowed(*last)), Spanned::new(0..0, value));
    }
    Ok(())
}

/// What is no TOML value (cfs, 0-3) is meant as text, and `[cfs,credit]` as a list of such.
fn typed(value: &str) -> DeValue<'_> {
    match DeValue::parse(value) {
        Ok(parsed) if !matches!(parsed.get_ref(), DeValue::Datetime(_)) => parsed.into_inner(),
        _ => match value.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            Some(list) if !list.trim().is_empty() => {
                let mut items = DeArray::new();
                for item in list.split(',') {
                    items.push(Spanned::new(0..0, typed(item.trim())));
                }
                DeValue::Array(items)
            }
            _ => DeValue::String(Cow::Borrowed(value)),
        },
    }
}

fn keys(table: &DeTable<'_>) -> String {
    table.iter().map(|(key, _)| key.get_ref().to_string()).collect::<Vec<_>>().join(", ")
}

/// The element of that name, or number.
fn element<'t, 'a: 't>(
    items: impl Iterator<Item = &'t mut DeValue<'a>>,
    name: &str,
    of: &str,
) -> Result<&'t mut DeTable<'a>, String> {
    let mut known = Vec::new();
    for (number, item) in items.enumerate() {
        let DeValue::Table(inner) = item else { continue };
        let own = inner.iter().find(|(key, _)| key.get_ref() == "name").and_then(|(_, v)| plain(v.get_ref()));
        if own.as_deref() == Some(name) || number.to_string() == name {
            return Ok(inner);
        }
        known.extend(own);
    }
    Err(format!("there is no {name:?} in {of}; there is {}", known.join(", ")))
}

/// A table being read.
pub(super) struct Table<'a> {
    text: &'a str,
    /// `vm.lu`, or empty for the root.
    pub(super) path: String,
    table: &'a DeTable<'a>,
    /// Where it begins; `None`: it is the root, or was made by `--set`.
    at: Option<usize>,
    sets: &'a [Set],
    asked: RefCell<Vec<&'static str>>,
    /// Where each value stands, by its path.
    lines: &'a RefCell<BTreeMap<String, String>>,
}

impl<'a> Table<'a> {
    pub(super) fn new(
        text: &'a str,
        path: &str,
        table: &'a DeTable<'a>,
        at: Option<usize>,
        sets: &'a [Set],
        lines: &'a RefCell<BTreeMap<String, String>>,
    ) -> Table<'a> {
        Table { text, path: path.into(), table, at, sets, asked: RefCell::default(), lines }
    }

    fn full(&self, key: &str) -> String {
        if self.path.is_empty() { key.into() } else { format!("{}.{key}", self.path) }
    }

    fn place(&self, key: &str, at: usize) -> String {
        self.place_of(&self.full(key), at)
    }

    /// Where a value stands, by its path from the root.
    pub(super) fn place_of(&self, full: &str, at: usize) -> String {
        let inside = |rest: &str| rest.is_empty() || rest.starts_with('.');
        if self.sets.iter().any(|(path, _)| full.strip_prefix(path.as_str()).is_some_and(inside)) {
            return format!("--set {}: ", shown(full));
        }
        format!("line {}, {}: ", line(self.text, at), shown(full))
    }

    pub(super) fn error<T>(&self, key: &str, what: impl Into<String>) -> Result<T, ScenarioError> {
        Err(self.misfit(key, what))
    }

    /// What is wrong with a key's value.
    pub(super) fn misfit(&self, key: &str, what: impl Into<String>) -> ScenarioError {
        let found = self.table.iter().find(|(k, _)| k.get_ref() == key);
        let place = match found {
            Some((_, value)) => self.place(key, value.span().start),
            None => {
                self.at.map_or(String::new(), |at| format!("line {}, ", line(self.text, at)))
                    + &format!("{}: ", shown(&self.full(key)))
            }
        };
        ScenarioError { place, what: what.into() }
    }

    fn get(&self, key: &'static str) -> Option<&'a DeValue<'a>> {
        self.value(key).map(Spanned::get_ref)
    }

    /// A value as it is, with its place.
    pub(super) fn value(&self, key: &'static str) -> Option<&'a Spanned<DeValue<'a>>> {
        self.asked.borrow_mut().push(key);
        let (_, value) = self.table.iter().find(|(k, _)| k.get_ref() == key)?;
        self.lines.borrow_mut().insert(self.full(key), self.place(key, value.span().start));
        Some(value)
    }

    /// All keys were asked for.
    pub(super) fn finish(&self) -> Result<(), ScenarioError> {
        let mut asked = self.asked.borrow().clone();
        asked.sort_unstable();
        asked.dedup();
        for (key, _) in self.table {
            let name: &str = key.get_ref();
            if !asked.contains(&name) {
                let place = self.place(name, key.span().start);
                return Err(ScenarioError { place, what: format!("no such key; give {}", asked.join(", ")) });
            }
        }
        Ok(())
    }

    pub(super) fn text(&self, key: &'static str) -> Result<Option<String>, ScenarioError> {
        match self.get(key) {
            None => Ok(None),
            Some(DeValue::String(text)) => Ok(Some(text.to_string())),
            Some(_) => self.error(key, "give a text in quotes"),
        }
    }

    /// None of these keys is there: alone they count for nothing, which `what` says.
    pub(super) fn none_of(&self, keys: &[&'static str], what: &str) -> Result<(), ScenarioError> {
        let alone = keys.iter().find(|key| self.value(key).is_some());
        alone.map_or(Ok(()), |key| self.error(key, what))
    }

    /// There is no such value, or it is `"none"`.
    pub(super) fn none(&self, key: &'static str) -> bool {
        self.get(key).is_none_or(|value| matches!(value, DeValue::String(text) if text == "none"))
    }

    pub(super) fn boolean(&self, key: &'static str, default: bool) -> Result<bool, ScenarioError> {
        match self.get(key) {
            None => Ok(default),
            Some(DeValue::Boolean(value)) => Ok(*value),
            Some(_) => self.error(key, "give true or false"),
        }
    }

    pub(super) fn whole(
        &self,
        key: &'static str,
        default: u32,
        low: u32,
        high: u32,
    ) -> Result<u32, ScenarioError> {
        let Some(value) = self.get(key) else { return Ok(default) };
        let DeValue::Integer(_) = value else { return self.error(key, "give a whole number") };
        let text = plain(value).unwrap_or_default();
        let inside = text.parse().ok().filter(|n| (low..=high).contains(n));
        inside.map_or_else(|| self.error(key, format!("{text} is out of range; give {low} to {high}")), Ok)
    }

    pub(super) fn real(&self, key: &'static str, default: f64) -> Result<f64, ScenarioError> {
        let Some(value) = self.get(key) else { return Ok(default) };
        let number = match value {
            DeValue::Float(_) | DeValue::Integer(_) => plain(value).and_then(|text| text.parse().ok()),
            _ => None,
        };
        number.map_or_else(|| self.error(key, "give a number"), Ok)
    }

    /// A time in ns: `"10ms"`.
    pub(super) fn time(&self, key: &'static str, default: u64) -> Result<u64, ScenarioError> {
        match self.get(key) {
            None => Ok(default),
            Some(DeValue::String(text)) => match nanos(text) {
                Some(ns) => Ok(ns),
                None => self.error(
                    key,
                    format!("{text:?} is no time; give a number with ns, us, ms or s, at most 10^6 s"),
                ),
            },
            Some(_) => self.error(key, "give a time in quotes, such as \"10ms\""),
        }
    }

    /// A time of at least so many ns: what is shorter would be another scenario than the one that is written down.
    pub(super) fn time_from(
        &self,
        key: &'static str,
        default: u64,
        least: u64,
    ) -> Result<u64, ScenarioError> {
        let ns = self.time(key, default)?;
        if ns < least {
            let least =
                if least.is_multiple_of(1000) { format!("{}us", least / 1000) } else { format!("{least}ns") };
            return self.error(key, format!("that is too short to simulate; give {least} or more"));
        }
        Ok(ns)
    }

    pub(super) fn cpus(&self, key: &'static str) -> Result<Option<CpuSet>, ScenarioError> {
        let Some(text) = self.text(key)? else { return Ok(None) };
        text.parse().map(Some).or_else(|e: corefit_core::ParseCpuSetError| self.error(key, e.to_string()))
    }

    /// One of some words.
    pub(super) fn choice<T: Copy>(
        &self,
        key: &'static str,
        default: T,
        choices: &[(&str, T)],
    ) -> Result<T, ScenarioError> {
        let Some(text) = self.text(key)? else { return Ok(default) };
        match choices.iter().find(|(word, _)| *word == text) {
            Some((_, value)) => Ok(*value),
            None => {
                let words: Vec<&str> = choices.iter().map(|(word, _)| *word).collect();
                self.error(key, format!("{text:?} is not known; give {}", words.join(", ")))
            }
        }
    }

    /// A table in this one.
    pub(super) fn table(&self, key: &'static str) -> Result<Option<Table<'a>>, ScenarioError> {
        match self.get(key) {
            None => Ok(None),
            Some(DeValue::Table(inner)) => {
                let value = self.table.iter().find(|(k, _)| k.get_ref() == key).map(|(_, value)| value);
                let at = value.and_then(begin);
                Ok(Some(Table::new(self.text, &self.full(key), inner, at, self.sets, self.lines)))
            }
            Some(_) => self.error(key, format!("give a table: [{}]", self.full(key))),
        }
    }

    /// Tables in a list, each with its name.
    pub(super) fn tables(&self, key: &'static str) -> Result<Vec<Table<'a>>, ScenarioError> {
        let Some(value) = self.get(key) else { return Ok(Vec::new()) };
        let DeValue::Array(items) = value else { return self.error(key, format!("give tables: [[{key}]]")) };
        let mut tables = Vec::new();
        for (number, item) in items.iter().enumerate() {
            let DeValue::Table(inner) = item.get_ref() else {
                return self.error(key, format!("give tables: [[{key}]]"));
            };
            let name = inner.iter().find(|(k, _)| k.get_ref() == "name");
            let name = name.and_then(|(_, v)| plain(v.get_ref())).unwrap_or(number.to_string());
            tables.push(Table::new(
                self.text,
                &format!("{}.{name}", self.full(key)),
                inner,
                begin(item),
                self.sets,
                self.lines,
            ));
        }
        Ok(tables)
    }
}

/// Where a value begins; `None`: it is not in the file.
fn begin(value: &Spanned<DeValue<'_>>) -> Option<usize> {
    Some(value.span()).filter(|span| !span.is_empty()).map(|span| span.start)
}

/// A path without characters that steer a terminal.
fn shown(path: &str) -> String {
    path.chars().map(|c| if c.is_control() { c.escape_default().to_string() } else { c.into() }).collect()
}

/// The same for texts of values that are read as the same: `1s` and `1000ms`.
pub(super) fn as_read(text: &str) -> String {
    let number = text.parse::<f64>().ok().map(|number| number.to_string());
    let time = || nanos(text).map(|ns| format!("{ns} ns"));
    number.or_else(time).unwrap_or_else(|| text.to_owned())
}

/// `10us` in ns.
fn nanos(text: &str) -> Option<u64> {
    let seconds = crate::program::seconds(text)?;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bounded")]
    (0.0..=1e6).contains(&seconds).then_some((seconds * 1e9).round() as u64)
}

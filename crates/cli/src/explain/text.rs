//! Lines that fit, and numbers.

use std::collections::BTreeMap;
use std::ops::Bound::{Included, Unbounded};

use corefit_core::entitle::quoted;
use corefit_core::{Cpus, Quota};

use crate::lines;

/// The longest name that is shown whole in a table.
const NAME: usize = 30;

/// A name that fits into a table: of a long one, its beginning and its end; as it stands in lists.
pub(super) fn short(name: &str) -> String {
    let name = &quoted(name);
    let length = name.chars().count();
    if length <= NAME {
        return name.clone();
    }
    let (head, tail) = (NAME / 3, NAME - NAME / 3 - 1);
    let begin: String = name.chars().take(head).collect();
    let end: String = name.chars().skip(length - tail).collect();
    format!("{begin}…{end}")
}

/// Names that are too long for a table, each with what stands there.
#[derive(Default)]
pub(super) struct LongNames<'a>(BTreeMap<&'a str, String>);

impl<'a> LongNames<'a> {
    pub(super) fn of(names: impl Iterator<Item = &'a str>) -> LongNames<'a> {
        let long = names.filter(|name| name.chars().count() > NAME);
        LongNames(long.map(|name| (name, short(name))).collect())
    }

    /// A text with these names cut short.
    pub(super) fn shorten(&self, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(first) = rest.chars().next() {
            if let Some((length, short)) = self.at_start(rest) {
                out.push_str(short);
                rest = &rest[length..];
            } else {
                out.push(first);
                rest = &rest[first.len_utf8()..];
            }
        }
        out
    }

    /// Of the longest of them that a text begins with: its length, and what stands for it.
    fn at_start(&self, mut text: &str) -> Option<(usize, &str)> {
        loop {
            let (name, short) = self.0.range::<str, _>((Unbounded, Included(text))).next_back()?;
            if text.starts_with(*name) {
                return Some((name.len(), short));
            }
            // Any other that the text begins with comes before this one, which then begins with it, too.
            let same = text.char_indices().zip(name.chars()).find(|((_, a), b)| a != b);
            text = &text[..same.map_or(text.len(), |((at, _), _)| at)];
        }
    }
}

/// Adds a text, broken at blanks into lines of `width`, each but the first (which begins with `first`)
/// indented as far.
pub(super) fn wrap(out: &mut String, first: &str, text: &str, width: usize) {
    lines::wrap(out, first, first.chars().count(), text, width);
}

/// An amount of pCPUs, or that it is not known.
pub(super) fn amount(cpus: Option<Cpus>) -> String {
    cpus.map_or("?".into(), |cpus| cpus.to_string())
}

/// `0.50 pCPUs (50 ms of every 100 ms)`; `None` if there is no limit.
pub(super) fn limit(quota: Option<&Quota>) -> Option<String> {
    let quota = quota?;
    let ms = |us: u64| {
        let text = format!("{}.{:03}", us / 1000, us % 1000);
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    };
    let (quota_us, cpus) = (quota.quota_us?, quota.cpus()?);
    let of = |period| format!(" ({} ms of every {} ms)", ms(quota_us), ms(period));
    Some(format!("{cpus} pCPUs{}", quota.period_us().map(of).unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_names_keep_their_ends_and_lines_their_width() {
        let name = format!("/docker/{}", "0123456789".repeat(6));
        assert_eq!(short(&name).chars().count(), NAME);
        assert_eq!(short("/a"), "/a");
        let (longer, other) = (format!("{name}-a"), format!("{name}-bb"));
        let names = [&name, &longer, &other, "/a"];
        let names = LongNames::of(names.into_iter().map(|name: &str| name));
        assert_eq!(
            names.shorten(&format!("ä: {name}-b, {longer}, /a, {other}{name}")),
            format!("ä: {}-b, {}, /a, {}{0}", short(&name), short(&longer), short(&other))
        );
        let mut out = String::new();
        wrap(&mut out, "  because ", "pCPUs 0-1 are full, shared with a, b and c", 30);
        assert_eq!(out, "  because pCPUs 0-1 are full,\n          shared with a, b and\n          c\n");
        let mut out = String::new();
        wrap(&mut out, "- ", "a-word-that-does-not-fit b", 10);
        assert_eq!(out, "- a-word-that-does-not-fit\n  b\n");
    }

    #[test]
    fn limits_are_said_in_time() {
        let quota = |quota_us| Quota { quota_us, period_us: 100_000, burst_us: 0, source: String::new() };
        assert_eq!(limit(Some(&quota(Some(50_500)))).unwrap(), "0.51 pCPUs (50.5 ms of every 100 ms)");
        assert_eq!(limit(Some(&quota(None))), None);
    }
}

//! Sets of CPUs, in the list form that Linux prints (`0-3,8,10-11`).

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::CpuId;

/// Highest CPU number accepted; Linux itself supports at most 8192 CPUs (`NR_CPUS`).
const MAX_CPU: u32 = 65_535;

/// A set of CPUs: one bit each, so that sets of a host with thousands of vCPUs are compared and
/// intersected word by word. Copies share them: thousands of vCPUs have the same set, and every look its copy of each.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct CpuSet(Arc<[u64]>); // the last word is never zero

impl CpuSet {
    /// The CPUs `0..n`.
    #[must_use]
    pub fn first(n: u32) -> CpuSet {
        (0..n).map(CpuId).collect()
    }

    /// How many CPUs the set holds.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Whether the set holds no CPU.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether `cpu` is in the set.
    #[must_use]
    pub fn contains(&self, cpu: CpuId) -> bool {
        let (word, bit) = place(cpu);
        self.0.get(word).is_some_and(|w| w & bit != 0)
    }

    /// The CPUs in both sets.
    #[must_use]
    pub fn intersection(&self, other: &CpuSet) -> CpuSet {
        if self.is_within(other) {
            return self.clone();
        }
        CpuSet::of_words(self.0.iter().zip(&*other.0).map(|(a, b)| a & b).collect())
    }

    /// The CPUs of this set that are not in the other.
    #[must_use]
    pub fn difference(&self, other: &CpuSet) -> CpuSet {
        let theirs = other.0.iter().copied().chain(std::iter::repeat(0));
        CpuSet::of_words(self.0.iter().zip(theirs).map(|(a, b)| a & !b).collect())
    }

    /// The CPUs in either set.
    #[must_use]
    pub fn union(&self, other: &CpuSet) -> CpuSet {
        if other.is_within(self) {
            return self.clone();
        }
        let (long, short) = if self.0.len() < other.0.len() { (other, self) } else { (self, other) };
        let mut words = long.0.to_vec();
        words.iter_mut().zip(&*short.0).for_each(|(word, more)| *word |= more);
        CpuSet(words.into())
    }

    /// For people: `pCPU 3`, `pCPUs 0-3`, of what `what` says.
    #[must_use]
    pub fn named(&self, what: &str) -> String {
        format!("{what}{} {self}", if self.len() == 1 { "" } else { "s" })
    }

    /// Whether the other set holds all CPUs of this one.
    #[must_use]
    pub fn is_within(&self, other: &CpuSet) -> bool {
        let theirs = other.0.iter().copied().chain(std::iter::repeat(0));
        self.0.iter().zip(theirs).all(|(a, b)| a & !b == 0)
    }

    /// Whether the sets have a CPU in common.
    #[must_use]
    pub fn meets(&self, other: &CpuSet) -> bool {
        self.0.iter().zip(&*other.0).any(|(a, b)| a & b != 0)
    }

    /// The CPUs of the set, lowest first.
    pub fn iter(&self) -> impl Iterator<Item = CpuId> + '_ {
        let bits = |mut word: u64| {
            std::iter::from_fn(move || {
                let bit = (word != 0).then(|| word.trailing_zeros())?;
                word &= word - 1;
                Some(bit)
            })
        };
        (0..)
            .step_by(64)
            .zip(&*self.0)
            .flat_map(move |(base, &word)| bits(word).map(move |b| CpuId(base + b)))
    }

    /// The bits, 64 CPUs a word, lowest first; words at the end that are zero are left out.
    pub(crate) fn words(&self) -> &[u64] {
        &self.0
    }

    /// The set of these bits, as in [`CpuSet::words`].
    pub(crate) fn of_words(mut words: Vec<u64>) -> CpuSet {
        while words.last() == Some(&0) {
            words.pop();
        }
        CpuSet(words.into())
    }

    /// The first number from `from` on that is in the set, or is not.
    fn next(&self, from: usize, within: bool) -> Option<usize> {
        let mut skip = u64::MAX << (from % 64);
        for (i, word) in self.0.iter().enumerate().skip(from / 64) {
            let found = (if within { *word } else { !word }) & skip;
            if found != 0 {
                return Some(i * 64 + found.trailing_zeros() as usize);
            }
            skip = u64::MAX;
        }
        None
    }
}

/// Puts in `low..=high`, word by word: a list may name the same range over and over.
fn insert_range(words: &mut Vec<u64>, low: u32, high: u32) {
    let (first, last) = ((low / 64) as usize, (high / 64) as usize);
    if last >= words.len() {
        words.resize(last + 1, 0);
    }
    for (i, word) in words.iter_mut().enumerate().take(last + 1).skip(first) {
        let from = if i == first { u64::MAX << (low % 64) } else { u64::MAX };
        let to = if i == last { u64::MAX >> (63 - high % 64) } else { u64::MAX };
        *word |= from & to;
    }
}

/// The word and the bit of a CPU.
fn place(CpuId(cpu): CpuId) -> (usize, u64) {
    ((cpu / 64) as usize, 1 << (cpu % 64))
}

/// CPUs above 65535 are left out; Linux supports at most 8192.
impl FromIterator<CpuId> for CpuSet {
    fn from_iter<I: IntoIterator<Item = CpuId>>(cpus: I) -> CpuSet {
        let mut words = Vec::new();
        for (word, bit) in cpus.into_iter().filter(|cpu| cpu.0 <= MAX_CPU).map(place) {
            if word >= words.len() {
                words.resize(word + 1, 0);
            }
            words[word] |= bit;
        }
        CpuSet(words.into())
    }
}

/// Why a text is no CPU list.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a CPU list (like 0-3,8): {part:?}")]
pub struct ParseCpuSetError {
    /// The part between commas that could not be read.
    pub part: String,
}

impl FromStr for CpuSet {
    type Err = ParseCpuSetError;

    /// Reads the list form; blank text is the empty set.
    fn from_str(text: &str) -> Result<CpuSet, ParseCpuSetError> {
        let text = text.trim();
        if text.is_empty() {
            return Ok(CpuSet::default());
        }
        let mut words = Vec::new();
        for part in text.split(',') {
            let bad = || ParseCpuSetError { part: part.into() };
            let (low, high) = part.split_once('-').unwrap_or((part, part));
            let low: u32 = low.trim().parse().map_err(|_| bad())?;
            let high: u32 = high.trim().parse().map_err(|_| bad())?;
            if low > high || high > MAX_CPU {
                return Err(bad());
            }
            insert_range(&mut words, low, high);
        }
        Ok(CpuSet(words.into()))
    }
}

impl TryFrom<String> for CpuSet {
    type Error = ParseCpuSetError;
    fn try_from(text: String) -> Result<CpuSet, ParseCpuSetError> {
        text.parse()
    }
}

impl From<CpuSet> for String {
    fn from(set: CpuSet) -> String {
        set.to_string()
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut from = 0;
        while let Some(low) = self.next(from, true) {
            let end = self.next(low, false).unwrap_or(self.0.len() * 64);
            let comma = if from == 0 { "" } else { "," };
            if low + 1 == end {
                write!(f, "{comma}{low}")?;
            } else {
                write!(f, "{comma}{low}-{}", end - 1)?;
            }
            from = end;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_and_reads_the_list_form_of_linux() {
        for text in ["", "0", "0-3", "0-3,8,10-11", "5,63", "0-63", "0-127", "62-70,127-128,192"] {
            assert_eq!(text.parse::<CpuSet>().unwrap().to_string(), text);
        }
        assert_eq!("3,1,2\n".parse::<CpuSet>().unwrap().to_string(), "1-3");
    }

    #[test]
    fn ranges_have_their_cpus_wherever_they_begin_and_end() {
        let ends = [0, 1, 62, 63, 64, 65, 126, 127, 128, 200, MAX_CPU];
        for (low, high) in ends.iter().flat_map(|low| ends.map(|high| (*low, high))).filter(|(l, h)| l <= h) {
            let set: CpuSet = format!("3,{low}-{high},70").parse().unwrap();
            assert_eq!(set, [3, 70].into_iter().chain(low..=high).map(CpuId).collect(), "{low}-{high}");
        }
        // Whoever wrote it keeps nobody busy.
        let text = vec!["0-65535"; 20_000].join(",");
        assert_eq!(text.parse::<CpuSet>(), Ok(CpuSet::first(MAX_CPU + 1)));
    }

    #[test]
    fn sets_of_different_lengths_are_cut_and_compared_by_what_they_hold() {
        let set = |text: &str| text.parse::<CpuSet>().unwrap();
        let (low, wide) = (set("0-3"), set("2-5,64,200"));
        assert_eq!(wide.intersection(&low), set("2-3"));
        assert_eq!(wide.difference(&low), set("4-5,64,200"));
        assert_eq!(low.difference(&wide), set("0-1"));
        assert_eq!((wide.len(), wide.iter().last()), (6, Some(CpuId(200))));
        assert!(wide.contains(CpuId(64)) && !wide.contains(CpuId(65)) && !low.contains(CpuId(64)));
        assert!(wide.difference(&wide).is_empty());
        assert_eq!(low.union(&wide), set("0-5,64,200"));
        assert_eq!(wide.union(&low), set("0-5,64,200"));
        assert!(low.meets(&wide) && !low.meets(&set("64")) && !set("64").meets(&low));
        assert!(low.is_within(&set("0-64")) && !wide.is_within(&low) && set("").is_within(&low));
    }

    #[test]
    fn refuses_what_is_no_list_and_names_the_part() {
        for (text, part) in [("0-x", "0-x"), ("3-1", "3-1"), ("1,,2", ""), ("0-99999999", "0-99999999")] {
            assert_eq!(text.parse::<CpuSet>().unwrap_err().part, part);
        }
    }
}

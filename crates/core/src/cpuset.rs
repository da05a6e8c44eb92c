//! Sets of CPUs, in the list form that Linux prints (`0-3,8,10-11`).

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::CpuId;

/// Highest CPU number accepted; Linux itself supports at most 8192 CPUs (`NR_CPUS`).
const MAX_CPU: u32 = 65_535;

/// A set of CPUs, ordered by number.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct CpuSet(BTreeSet<CpuId>);

impl CpuSet {
    /// The CPUs `0..n`.
    #[must_use]
    pub fn first(n: u32) -> CpuSet {
        (0..n).map(CpuId).collect()
    }

    /// How many CPUs the set holds.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether the set holds no CPU.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether `cpu` is in the set.
    #[must_use]
    pub fn contains(&self, cpu: CpuId) -> bool {
        self.0.contains(&cpu)
    }

    /// The CPUs in both sets.
    #[must_use]
    pub fn intersection(&self, other: &CpuSet) -> CpuSet {
        self.0.intersection(&other.0).copied().collect()
    }

    /// The CPUs of the set, lowest first.
    pub fn iter(&self) -> impl Iterator<Item = CpuId> + '_ {
        self.0.iter().copied()
    }
}

impl FromIterator<CpuId> for CpuSet {
    fn from_iter<I: IntoIterator<Item = CpuId>>(cpus: I) -> CpuSet {
        CpuSet(cpus.into_iter().collect())
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
        let mut set = BTreeSet::new();
        let text = text.trim();
        if text.is_empty() {
            return Ok(CpuSet(set));
        }
        for part in text.split(',') {
            let bad = || ParseCpuSetError { part: part.into() };
            let (low, high) = part.split_once('-').unwrap_or((part, part));
            let low: u32 = low.trim().parse().map_err(|_| bad())?;
            let high: u32 = high.trim().parse().map_err(|_| bad())?;
            if low > high || high > MAX_CPU {
                return Err(bad());
            }
            set.extend((low..=high).map(CpuId));
        }
        Ok(CpuSet(set))
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
        let mut cpus = self.iter().map(|c| c.0).peekable();
        let mut first = true;
        while let Some(low) = cpus.next() {
            let mut high = low;
            while cpus.next_if_eq(&(high + 1)).is_some() {
                high += 1;
            }
            if !first {
                f.write_str(",")?;
            }
            first = false;
            if low == high {
                write!(f, "{low}")?;
            } else {
                write!(f, "{low}-{high}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_and_reads_the_list_form_of_linux() {
        for text in ["", "0", "0-3", "0-3,8,10-11"] {
            assert_eq!(text.parse::<CpuSet>().unwrap().to_string(), text);
        }
        assert_eq!("3,1,2\n".parse::<CpuSet>().unwrap().to_string(), "1-3");
    }

    #[test]
    fn refuses_what_is_no_list_and_names_the_part() {
        for (text, part) in [("0-x", "0-x"), ("3-1", "3-1"), ("1,,2", ""), ("0-99999999", "0-99999999")] {
            assert_eq!(text.parse::<CpuSet>().unwrap_err().part, part);
        }
    }
}

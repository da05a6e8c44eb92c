//! Processes of the run that corefit's library is not in.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::ErrorKind;
use std::time::Duration;

use corefit_linux::sample::tasks;

use super::report::threads;
use crate::{preload, printable};

/// Who used so much CPU time has become the program that it was to be: `env` and `sudo` use less.
const SETTLED: Duration = Duration::from_millis(20);
/// Processes that are named.
pub(super) const NAMED: usize = 3;

/// Processes of several threads without the library: nobody sizes their teams.
#[derive(Default)]
pub(crate) struct Outside {
    looked_at: BTreeSet<u32>,
    /// What is told of the first of them, and how many there are.
    told: Vec<String>,
    found: usize,
}

impl Outside {
    /// Looks at processes that were not looked at before; `used`: the CPU time of each.
    pub(crate) fn look(&mut self, used: &BTreeMap<u32, Duration>) {
        for (&pid, &used) in used {
            if used < SETTLED || self.looked_at.contains(&pid) {
                continue;
            }
            let count = tasks(pid).len();
            if count < 2 {
                continue;
            }
            let maps = match fs::read(format!("/proc/{pid}/maps")) {
                Ok(maps) => String::from_utf8_lossy(&maps).into_owned(),
                Err(why) if why.kind() == ErrorKind::NotFound => continue,
                // Another user's: nothing is known.
                Err(_) => String::new(),
            };
            self.looked_at.insert(pid);
            if !maps.is_empty() && !maps.contains(preload::OPENMP.name) {
                self.found += 1;
                if self.told.len() < NAMED {
                    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
                    self.told.push(format!(
                        "process {pid} ({}, {}) ran without corefit's library, being statically linked or started without its \
                         environment: its threads were not sized while it ran",
                        printable::text(name.trim_end()),
                        threads(u32::try_from(count).unwrap_or(u32::MAX))
                    ));
                }
            }
        }
    }

    /// What there is to know of them.
    pub(crate) fn remarks(&self) -> Vec<String> {
        let more = self.found - self.told.len();
        let more = (more > 0).then(|| format!("and {more} processes more without it"));
        self.told.iter().cloned().chain(more).collect()
    }
}

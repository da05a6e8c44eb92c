//! Processes of the run that corefit's library is not in, or cannot reach corefit from.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::ErrorKind;
use std::time::Duration;

use corefit_linux::sample::tasks;

use super::report::threads;
use crate::{preload, printable};

/// Who used so much CPU time has become the program that it was to be: `env` and `sudo` use less.
const SETTLED: Duration = Duration::from_millis(20);
/// How a mapped page shows.
const PAGE: &str = "/memfd:corefit ";
/// OpenMP runtimes, as they show.
const RUNTIMES: [&str; 3] = ["/libgomp", "/libomp", "/libiomp5"];
/// Processes that are named.
pub(super) const NAMED: usize = 3;

/// Processes of several threads whose teams nobody sizes.
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
            if let Some(how) = outside(&maps) {
                self.found += 1;
                if self.told.len() < NAMED {
                    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
                    self.told.push(format!(
                        "process {pid} ({}, {}) ran {how}: its threads were not sized while it ran",
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
        let more = (more > 0).then(|| format!("and {more} processes more like that"));
        self.told.iter().cloned().chain(more).collect()
    }
}

/// How a process that has this mapped (`/proc/PID/maps`; empty: nothing is known) runs, if nobody can size its teams.
fn outside(maps: &str) -> Option<&'static str> {
    let has = |name: &str| maps.contains(name);
    if maps.is_empty() {
        None
    } else if !has(preload::OPENMP.name) {
        Some("without corefit's library, being statically linked or started without its environment")
    } else if !has(PAGE) && RUNTIMES.iter().any(|runtime| has(runtime)) {
        Some("where corefit's library does not reach corefit, as another user or behind another /proc")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_the_library_and_no_page_is_outside_if_it_has_teams() {
        let page = corefit_linux::page::TeamPage::create(Default::default(), false, None, 1).unwrap();
        let mine = fs::read_to_string("/proc/self/maps").unwrap();
        assert!(mine.contains(PAGE), "{mine}");
        drop(page);
        let (library, runtime) = ("/usr/lib/libcorefit_omp.so\n", "/usr/lib/libgomp.so.1.0.0\n");
        let how = |parts: &[&str]| outside(&parts.concat());
        assert!(how(&[runtime]).unwrap().contains("without corefit's library"));
        assert!(how(&[runtime, library]).unwrap().contains("does not reach"));
        for inside in [&[][..], &[library], &[runtime, library, "/memfd:corefit (deleted)\n"]] {
            assert_eq!(how(inside), None, "{inside:?}");
        }
    }
}

//! The processes in a group: which can be seen, which are ours, which compete.

use std::collections::BTreeSet;

use corefit_core::{Other, Usage, Weight, What};

use super::mounts::Mount;
use crate::notes::Notes;
use crate::proc::{self, Process};
use crate::root::{ReadError, Root};

/// More processes than this are not read at one instant.
const MOST: usize = 10_000;

/// Reads processes and remembers what could not be seen.
pub(crate) struct People<'a> {
    root: &'a Root,
    process: &'a Process,
    /// Whether `/proc` hides the processes of other users.
    hides: bool,
    /// Whether processes outside of this PID namespace are left out of lists (cgroup v1, `/proc`).
    partial: bool,
    /// Whether the process may not run everywhere, so that it matters where others may.
    masks: bool,
    /// This very process, which does not count as a competitor of the one it looks at.
    reader: Option<u32>,
    read: usize,
    /// Lists with processes that cannot be seen from here.
    unseen: BTreeSet<(String, &'static str)>,
    errors: Vec<ReadError>,
}

impl<'a> People<'a> {
    pub(crate) fn new(root: &'a Root, process: &'a Process, masks: bool, mounts: &[Mount]) -> People<'a> {
        let hidepid = |option: &String| {
            option.strip_prefix("hidepid=").is_some_and(|level| level != "0" && level != "off")
        };
        let hides = mounts.iter().any(|m| m.point == "/proc" && m.options.iter().any(hidepid));
        // In the initial PID namespace, and there only, process 2 is the parent of the kernel's threads.
        let kernel = |process: Option<Process>| process.is_none();
        let partial = !hides && !proc::process(root, 2, false).is_ok_and(kernel);
        let reader = root.is_live().then(std::process::id).filter(|reader| *reader != process.times.pid);
        People {
            root,
            process,
            hides,
            partial,
            masks,
            reader,
            read: 0,
            unseen: BTreeSet::new(),
            errors: Vec::new(),
        }
    }

    /// The processes of a list of cgroup v1 or of `/proc`, which leave out who is in another
    /// PID namespace (v2 lists them as 0).
    pub(crate) fn read_visible(&mut self, pids: Vec<u32>, path: &str) -> Vec<Process> {
        if self.partial {
            self.unseen.insert(("/proc".into(), "processes outside of this PID namespace are not listed"));
        }
        self.read(pids, path)
    }

    /// The processes of a list that was read from `path`, threads of the kernel left out:
    /// they work for others and never want all that they may have.
    pub(crate) fn read(&mut self, pids: Vec<u32>, path: &str) -> Vec<Process> {
        let mut members = Vec::with_capacity(pids.len());
        for pid in pids {
            if pid == self.process.times.pid {
                members.push(self.process.clone());
                continue;
            }
            if Some(pid) == self.reader {
                continue;
            }
            if pid == 0 {
                self.unseen.insert((path.into(), "lists processes outside of this PID namespace"));
                continue;
            }
            if self.read == MOST {
                self.unseen.insert((path.into(), "lists too many processes to read"));
                break;
            }
            self.read += 1;
            match proc::process(self.root, pid, false) {
                Ok(Some(mut member)) => {
                    if self.masks {
                        member.times.cpuset = proc::affinity(self.root, pid).ok().map(|(set, _)| set);
                    }
                    members.push(member);
                }
                Ok(None) => {}
                Err(error) if error.is_absent() && !self.hides => {} // it ended
                Err(ReadError::Unsupported { .. } | ReadError::Denied { .. }) => {
                    self.unseen.insert((path.into(), "lists processes that /proc hides (hidepid)"));
                }
                Err(error) if error.is_absent() => {}
                Err(error) => self.errors.push(error),
            }
        }
        members
    }

    pub(crate) fn report(self, notes: &mut Notes) {
        for (path, why) in self.unseen {
            notes.add(What::Siblings, path, why.into());
        }
        for error in &self.errors {
            notes.error(What::Siblings, error);
        }
    }
}

/// Splits members into the process with its descendants, and the others.
pub(crate) fn fellows(process: &Process, members: Vec<Process>) -> (Vec<Process>, Vec<Process>) {
    let mut own = BTreeSet::from([process.times.pid]);
    loop {
        let before = own.len();
        own.extend(
            members.iter().filter(|m| own.contains(&m.times.parent)).map(|m| m.times.pid).collect::<Vec<_>>(),
        );
        if own.len() == before {
            break;
        }
    }
    let (mut ours, others): (Vec<_>, Vec<_>) = members.into_iter().partition(|m| own.contains(&m.times.pid));
    if !ours.iter().any(|m| m.times.pid == process.times.pid) {
        ours.push(process.clone());
    }
    (ours, others)
}

/// Processes as competitors, each thread of them weighing for itself.
pub(crate) fn outsiders(members: Vec<Process>, scale: f64) -> impl Iterator<Item = Other> {
    members.into_iter().map(move |member| Other {
        path: format!("pid {} ({})", member.times.pid, member.name),
        who: String::new(),
        weight: Some(Weight(member.weight * scale)),
        quota: None,
        cpuset: member.times.cpuset.clone(),
        usage: Usage::Process(member.times),
    })
}

/// Names the three that ran most.
pub(crate) fn who(members: &[Process]) -> String {
    let mut members: Vec<&Process> = members.iter().collect();
    members.sort_by_key(|m| std::cmp::Reverse(m.times.tasks.iter().map(|t| t.run_ns).sum::<u64>()));
    let named = members.iter().take(3).map(|m| format!("pid {} ({})", m.times.pid, m.name));
    let named = named.collect::<Vec<_>>().join(", ");
    match members.len().saturating_sub(3) {
        0 => named,
        more => format!("{named} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use corefit_core::ProcessTimes;

    use super::*;

    fn member(pid: u32, parent: u32) -> Process {
        Process {
            name: "x".into(),
            started_ticks: 0,
            weight: 1024.0,
            times: ProcessTimes { pid, parent, tasks: vec![], ended_children_ns: 0, cpuset: None },
        }
    }

    #[test]
    fn descendants_are_ours_whatever_their_order_and_others_are_not() {
        let list = vec![member(9, 8), member(5, 1), member(8, 5), member(7, 1), member(1, 0)];
        let (own, others) = fellows(&member(5, 1), list);
        let pids = |list: &[Process]| list.iter().map(|m| m.times.pid).collect::<Vec<_>>();
        assert_eq!((pids(&own), pids(&others)), (vec![9, 5, 8], vec![7, 1]));
    }

    #[test]
    fn a_process_missing_from_the_list_of_its_group_is_still_its_own() {
        let (own, others) = fellows(&member(5, 1), vec![member(7, 1)]);
        assert_eq!((own.len(), others.len()), (1, 1));
    }
}

//! Control groups as VMs: containers, slices, services, or whatever else is a group.

use std::time::Duration;

use corefit_core::machine::{Machine, MachineError, Snapshot};

use super::choose::{Choice, Chosen};
use super::{HostReader, VmCounters, VmGroup};
use crate::root::Root;

/// Groups at the top that an error names.
const NAMED: usize = 8;

/// A host whose VMs are control groups, v1 or v2.
pub struct Cgroups {
    pub(super) reader: HostReader,
    choice: Choice,
    /// Whether it is one without VMs, too.
    may_lack: bool,
    /// Of a captured machine: what it showed later, the last first.
    later: Vec<Root>,
}

impl Cgroups {
    /// A host with the groups chosen as VMs. That there are some is checked when it is observed.
    ///
    /// # Errors
    /// If there are no control groups here.
    pub fn open(root: Root, choice: Choice) -> Result<Cgroups, MachineError> {
        Ok(Cgroups { reader: HostReader::open(root)?, choice, may_lack: false, later: Vec::new() })
    }

    /// The same host for whoever stays while groups come and go: without any it has no VMs, which a note of what it shows says.
    #[must_use]
    pub fn or_none(self) -> Cgroups {
        Cgroups { may_lack: true, ..self }
    }

    /// A captured host at several instants, one after the other.
    ///
    /// # Errors
    /// As [`Cgroups::open`]; [`MachineError::Gone`] without any instant.
    pub fn captured(mut instants: Vec<Root>, choice: Choice) -> Result<Cgroups, MachineError> {
        if instants.is_empty() {
            return Err(MachineError::Gone("a capture of nothing".into()));
        }
        let first = instants.remove(0);
        instants.reverse();
        Ok(Cgroups { later: instants, ..Cgroups::open(first, choice)? })
    }

    /// What it shows with these groups as VMs.
    pub(super) fn look(&mut self, chosen: Chosen) -> Result<Snapshot, MachineError> {
        let mut view = self.reader.look(&chosen.paths, VmCounters::Read)?;
        view.unread.extend(self.reader.missed(&chosen.paths, &view));
        let vms = view.vms.into_iter().map(VmGroup::into_vm).chain(view.others);
        Ok(Snapshot {
            at: view.at,
            pcpus: view.pcpus,
            caches: view.caches,
            uncounted: view.uncounted,
            groups: view.groups,
            vms: vms.collect(),
            unread: view.unread,
            notes: chosen.note.into_iter().collect(),
            ..Snapshot::default()
        })
    }

    fn nothing(&self) -> String {
        let mut top: Vec<String> = self.reader.children("").unwrap_or_default();
        let more = top.len().saturating_sub(NAMED);
        top.truncate(NAMED);
        let mut known = top.iter().map(|name| format!("/{name}")).collect::<Vec<_>>().join(", ");
        if more > 0 {
            known.push_str(&format!(" and {more} more"));
        }
        if known.is_empty() {
            known = "none".into();
        }
        match &self.choice {
            Choice::Patterns(patterns) => {
                format!(
                    "no control group matches {}; groups at the top: {known} (in a path, * stands for any text of \
                    a name, ? for one character, and nothing else is special)",
                    patterns.join(",")
                )
            }
            Choice::Usual => {
                "there are no control groups but the top one; make some, or see `corefit cpus`".into()
            }
            Choice::Own => format!(
                "this process is in no control group but the top one, which is no VM; choose with \
                --machine cgroups:PATHS (groups at the top: {known}), or see `corefit cpus`"
            ),
        }
    }
}

impl Machine for Cgroups {
    fn name(&self) -> String {
        match &self.choice {
            Choice::Usual => "control groups of this host".into(),
            Choice::Patterns(patterns) => format!("control groups {}", patterns.join(",")),
            Choice::Own => "the control group of this process".into(),
        }
    }

    fn observe(&mut self) -> Result<Snapshot, MachineError> {
        let mut chosen = self.choice.find(&self.reader)?;
        if chosen.paths.is_empty() && !self.may_lack {
            return Err(MachineError::Gone(self.nothing()));
        }
        if chosen.paths.is_empty() {
            chosen.note = Some(self.nothing());
        }
        self.look(chosen)
    }

    fn pass(&mut self, time: Duration) -> Result<bool, MachineError> {
        if self.reader.root().is_live() {
            std::thread::sleep(time);
            return Ok(true);
        }
        let next = self.later.pop();
        Ok(next.map(|root| self.reader.turn_to(root)).is_some())
    }
}

//! A setting that was changed: what it was, and what we made it since.

use corefit_core::machine::{Lever, LeverKind, Value, VmId};
use serde::{Deserialize, Serialize};

/// While it is not sure what came of what we wrote, a setting may be one of the last values.
const WROTE: usize = 4;

/// A setting that was changed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Entry {
    pub(crate) vm: VmId,
    /// For people.
    pub(crate) name: String,
    pub(crate) lever: Lever,
    /// Before the first change; of a VM that came from another host, as much of that as there is here.
    pub(crate) original: Value,
    /// The same as the note has it with which its VM came, for whichever host it goes to from here: of pins and nodes, which hosts have
    /// their own of. No pCPU: all of a host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) came: Option<Value>,
    /// Values that we wrote, or read back after it, the latest last.
    pub(crate) wrote: Vec<Value>,
    /// A write is under way: what came of it was not read back yet, or was a part of it.
    pub(crate) pending: bool,
}

impl Entry {
    /// Which setting.
    pub(crate) fn key(&self) -> (VmId, Lever) {
        (self.vm.clone(), self.lever)
    }

    /// Notes a value as one of ours.
    pub(crate) fn ours(&mut self, value: Value) {
        self.wrote.retain(|known| *known != value);
        self.wrote.push(value);
        while self.wrote.len() > WROTE {
            let oldest = self.wrote.remove(0);
            // A guest may yet let go of all vCPUs that any of them lacks.
            if let (Value::Vcpus(oldest), Value::Vcpus(next)) = (&oldest, &mut self.wrote[0]) {
                *next = next.intersection(oldest);
            }
        }
    }

    /// Notes a value as one of ours, while the last that was written may still be on its way.
    pub(crate) fn found(&mut self, value: Value) {
        let last = self.wrote.pop();
        self.ours(value);
        last.into_iter().for_each(|last| self.ours(last));
    }

    /// The last of what was written has come, though late: from now on somebody else may have put it back.
    pub(crate) fn came(&mut self) {
        self.pending = false;
        if let Some(last) = self.wrote.last().cloned() {
            self.wrote.retain(|wrote| *wrote == last || *wrote != self.original);
        }
    }

    /// What was written was read back, so these are all that a setting can be if nobody else changed it. Slices of ours are marked, and a
    /// thread may still have one from before.
    pub(crate) fn arrived(&mut self, values: &[&Value]) {
        if self.lever.kind() != LeverKind::Slice {
            self.wrote.retain(|wrote| values.contains(&wrote));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::entry;
    use super::*;
    use corefit_core::Weight;

    #[test]
    fn only_the_latest_values_are_ours() {
        let mut entry = entry("a");
        (0..9).for_each(|n| entry.ours(Value::Weight(Weight(f64::from(n)))));
        assert_eq!(entry.wrote.len(), WROTE);
        entry.ours(Value::Weight(Weight(5.0)));
        assert_eq!(entry.wrote.last(), Some(&Value::Weight(Weight(5.0))));
        assert_eq!(entry.wrote.len(), WROTE);
    }
}

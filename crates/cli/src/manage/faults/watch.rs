//! What has to be so all the while: after each step that nobody killed, and of each write.

use std::collections::{BTreeMap, BTreeSet};

use corefit_core::machine::{Lever, LeverKind, Value, VmId};

use super::faulty::Faulty;
use super::written::{ByHand, Place};
use super::{Expected, MANAGED, Random};
use crate::manage::journal::Entry;

/// What is checked between the steps of a sequence.
#[derive(Default)]
pub(super) struct Watch {
    /// What somebody made of settings that this daemon had changed: that stands as long as it goes on, the VM is where it is, and nothing
    /// says anew that it is to be changed.
    stands: BTreeMap<Place, (VmId, Value)>,
    /// VMs with which something went wrong since this daemon began: what is not done may be tried later.
    troubled: BTreeSet<u32>,
    /// How often it had a setting that was to stand, and a VM that nobody was to change: checks of nothing prove nothing.
    pub(super) stood: u32,
    pub(super) freed: u32,
    /// And a guest that was yet to let go of a vCPU.
    pub(super) late: u32,
}

impl Watch {
    /// There is no daemon, so the next one knows only what is on disk, and what VMs carry.
    pub(super) fn ended(&mut self, machine: &mut Faulty, expected: &mut Expected) {
        self.take(machine, expected);
        machine.written.unsettle();
        self.stands.clear();
        self.troubled.clear();
    }

    /// A VM may be changed again, whatever somebody made of it.
    pub(super) fn begins_anew(&mut self, vm: u32) {
        self.stands.retain(|(of, _), _| *of != vm);
    }

    pub(super) fn all_begin_anew(&mut self) {
        self.stands.clear();
    }

    /// One of the settings that stand as somebody made them.
    pub(super) fn standing(&self, random: &mut Random) -> Option<Place> {
        let at = random.below(self.stands.len());
        self.stands.keys().nth(at).copied()
    }

    /// Somebody has put back, killed or not: all that is written is what settings are to be.
    pub(super) fn put_back(&mut self, machine: &mut Faulty, expected: &mut Expected) -> Result<(), String> {
        let by_hand = self.take(machine, expected);
        self.troubled.append(&mut machine.written.failed);
        let sets = std::mem::take(&mut machine.written.sets);
        only_back(&sets, &by_hand, expected, |_| true)?;
        untouched(machine)
    }

    /// A step was made; `free`: VMs that nobody may change; `entries`: what the daemon knows that it has changed, if nobody killed it;
    /// `hindered`: it could not write that, or had no time.
    pub(super) fn stepped(
        &mut self,
        machine: &mut Faulty,
        expected: &mut Expected,
        free: &BTreeSet<u32>,
        entries: Option<&[Entry]>,
        hindered: bool,
    ) -> Result<(), String> {
        let by_hand = self.take(machine, expected);
        let sets = std::mem::take(&mut machine.written.sets);
        only_back(&sets, &by_hand, expected, |vm| free.contains(&vm))?;
        untouched(machine)?;
        let Some(entries) = entries else {
            self.ended(machine, expected);
            return Ok(());
        };
        self.troubled.append(&mut machine.written.failed);
        if hindered {
            // The file knows what was intended.
            machine.written.unsettle();
        }
        if hindered || machine.deaf {
            self.troubled.extend(0..=MANAGED);
        }
        self.stands.retain(|(vm, _), (id, _)| machine.id(*vm) == *id && !machine.gone.contains(vm));
        for ((vm, lever), (_, value)) in &self.stands {
            self.stood += 1;
            let found = machine.truth(*vm, *lever);
            if found != *value {
                return Err(format!("VM {vm}: {lever} is {found}, though somebody made it {value}"));
            }
        }
        // What is yet to come is not forgotten.
        for vm in (0..=MANAGED).filter(|vm| machine.is_late(*vm)).collect::<Vec<_>>() {
            self.late += 1;
            // (It may have moved since the look.)
            let prefix = format!("sim-{vm}/");
            let of_it = |entry: &&Entry| entry.lever == Lever::Online && entry.vm.0.starts_with(&prefix);
            let entry = entries.iter().find(of_it);
            if !entry.is_some_and(|entry| entry.pending)
                && machine.will_be(vm) != expected[&(vm, Lever::Online)]
            {
                let now = machine.truth(vm, Lever::Online);
                return Err(format!(
                    "VM {vm}: of {now} it may yet let go of some, and nobody waits for that: {entry:?}"
                ));
            }
        }
        for ((vm, lever), value) in &*expected {
            if machine.gone.contains(vm) {
                continue;
            }
            let found = machine.truth(*vm, *lever);
            if found == *value {
                continue;
            }
            let prefix = format!("sim-{vm}/");
            let known = |entry: &Entry| entry.lever == *lever && entry.vm.0.starts_with(&prefix);
            if !entries.iter().any(known) {
                return Err(format!("VM {vm}: {lever} is {found}, not {value}, and nobody knows"));
            }
            let in_the_way = self.troubled.contains(vm) || machine.hinders(*vm);
            if free.contains(vm) && !in_the_way {
                return Err(format!("VM {vm}: {lever} is still {found}, though nobody may change it"));
            }
        }
        self.freed += u32::try_from(free.difference(&self.troubled).count()).unwrap();
        Ok(())
    }

    /// What somebody did meanwhile is what is to be.
    fn take(&mut self, machine: &mut Faulty, expected: &mut Expected) -> BTreeSet<Place> {
        for vm in std::mem::take(&mut machine.anew) {
            let firsts = expected.iter_mut().filter(|((of, _), _)| *of == vm);
            firsts.for_each(|((vm, lever), value)| *value = machine.first(*vm, *lever));
        }
        let mut places = BTreeSet::new();
        for ByHand { vm, place, value, settled, within } in std::mem::take(&mut machine.written.by_hand) {
            let before = expected.insert(place, value.clone()).unwrap();
            let changed = settled.is_some_and(|settled| settled != value && settled != before);
            let is_his = value != before || !within && keeps_what_is_put_back(place.1.kind());
            if self.stands.contains_key(&place) || changed && is_his {
                self.stands.insert(place, (vm, value));
            }
            places.insert(place);
        }
        places
    }
}

/// Whether a setting that somebody made what it was before is left alone. (The others go back by themselves, too.)
fn keeps_what_is_put_back(kind: LeverKind) -> bool {
    matches!(
        kind,
        LeverKind::Weight
            | LeverKind::HelperWeight
            | LeverKind::Quota
            | LeverKind::Affinity
            | LeverKind::Nodes
    )
}

/// Whether of these VMs nothing was written but what settings are to be.
fn only_back(
    sets: &[(Place, Value)],
    by_hand: &BTreeSet<Place>,
    expected: &Expected,
    of: impl Fn(u32) -> bool,
) -> Result<(), String> {
    // (Of what somebody changed meanwhile it is not known which came first.)
    let due = sets.iter().filter(|((vm, _), _)| of(*vm)).filter(|(place, _)| !by_hand.contains(place));
    for ((vm, lever), value) in due {
        let right = &expected[&(*vm, *lever)];
        if value != right {
            return Err(format!("VM {vm}: {lever} was made {value}, which is to be {right}"));
        }
    }
    Ok(())
}

fn untouched(machine: &Faulty) -> Result<(), String> {
    let touched = machine.touched.contains(&MANAGED);
    if touched { Err("a VM that no plan was about was touched".into()) } else { Ok(()) }
}

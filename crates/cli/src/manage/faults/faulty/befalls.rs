//! What happens to VMs, by chance or as a story has it.

use corefit_core::machine::{Lever, Value};
use corefit_core::{CpuSet, Cpus, Weight};

use super::{Faulty, Late, Random};

/// What happens to a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::manage::faults) enum Fault {
    /// It is destroyed.
    Gone,
    /// It migrates, or is saved and resumed: another id, and what it carries.
    Moved,
    /// An administrator changes its weight.
    Weighed,
    /// Its administrator has it use three vCPUs.
    Resized,
    /// A user of it writes what it is told.
    Told,
    /// It is destroyed, and another one made with its name: another id, and all as it was at first.
    Anew,
    /// Its guest does not answer any more.
    Hung,
    /// libvirtd does not answer any more.
    Deaf,
}

impl Faulty {
    /// Something happens, to a VM or to all.
    pub(in crate::manage::faults) fn befallen(&mut self, random: &mut Random, vm: u32) {
        let calls = random.below(20);
        match random.below(21) {
            0 => drop(self.hung.insert(vm)),
            1 => drop(self.lying.insert(vm)),
            2 => drop(self.halfway.insert(vm)),
            3 => drop(self.missed.insert(vm)),
            4 => self.deaf = true,
            // (It would be so for most of a sequence.)
            5 | 6 | 17 | 18 => self.heal(),
            7 => self.befall(vm, Fault::Moved),
            8 => self.soon = Some((calls, Fault::Moved, vm)),
            9 if calls < 5 => self.befall(vm, Fault::Gone),
            10 if calls < 5 => self.soon = Some((calls, Fault::Gone, vm)),
            9 => drop(self.clinging.insert(vm)),
            11 => drop(self.busy.insert(vm)),
            12 if calls < 10 => drop(self.refusing.insert(vm, None)),
            13 => drop(self.losing.insert(vm)),
            14 => self.soon = Some((calls, Fault::Deaf, vm)),
            15 => self.soon = Some((calls, Fault::Hung, vm)),
            16 => self.befall(vm, Fault::Anew),
            19 | 20 => self.lags(vm),
            // (One that takes no notes and migrates keeps what goes with no real VM, which nobody puts back then.)
            _ => drop(self.denied.insert(vm)),
        }
    }

    pub(in crate::manage::faults) fn befall(&mut self, vm: u32, fault: Fault) {
        match fault {
            Fault::Gone => drop(self.gone.insert(vm)),
            Fault::Moved => {
                // That waits, too.
                self.go_on_with(vm);
                *self.moved.entry(vm).or_insert(0) += 1;
                self.written.unknown(vm);
                self.knows_no_more(|of| of == vm);
            }
            Fault::Anew => {
                self.queued.retain(|(of, ..)| *of != vm);
                self.befall(vm, Fault::Moved);
                self.gone.remove(&vm);
                self.kept.remove(&vm);
                self.read.remove(&vm);
                self.late.get_mut(&vm).into_iter().for_each(Late::begins_anew);
                for ((_, lever), value) in self.firsts.clone().into_iter().filter(|((of, _), _)| *of == vm) {
                    self.write(vm, lever, &value).unwrap();
                }
                self.anew.push(vm);
            }
            Fault::Hung => drop(self.hung.insert(vm)),
            Fault::Deaf => self.deaf = true,
            Fault::Weighed => self.write(vm, Lever::Weight, &Value::Weight(Weight(4000.0))).unwrap(),
            Fault::Told => self.write(vm, Lever::Told, &Value::Told(Some(Cpus(9.0)))).unwrap(),
            Fault::Resized => self.write(vm, Lever::Online, &Value::Vcpus(CpuSet::first(3))).unwrap(),
        }
    }
}

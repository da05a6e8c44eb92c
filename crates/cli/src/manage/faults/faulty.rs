//! A simulated machine that things happen to.
//!
//! It has two levers that the simulation lacks: weights of helper threads and nodes of memory are kept here, and change nothing.

mod answers;
mod befalls;
mod late;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use corefit_core::machine::{
    Act, Counters, Fixed, Helper, Lever, LeverKind, Limit, Machine, MachineError, Snapshot, Value, VmId,
    VmState,
};
use corefit_core::{CpuId, CpuSet, Time, Unread, Weight, What};
use corefit_sim::SimMachine;

pub(super) use self::befalls::Fault;
pub(super) use self::late::{Late, MINUTE};
use super::written::{Place, Written};
use super::{MANAGED, Random, VCPUS, all_levers};
use crate::manage::failpoint::reach;

/// A machine that things happen to.
pub(super) struct Faulty {
    pub(super) sim: SimMachine,
    /// VMs that moved have another id.
    pub(super) moved: BTreeMap<u32, u32>,
    pub(super) kept: BTreeMap<u32, String>,
    pub(super) gone: BTreeSet<u32>,
    /// Guests whose agent does not answer.
    pub(super) hung: BTreeSet<u32>,
    /// Guests of which looks show nothing, as of those that did not answer the machine.
    pub(super) unheard: BTreeSet<u32>,
    /// Guests whose agent says yes and does nothing.
    pub(super) lying: BTreeSet<u32>,
    /// Guests that take one vCPU offline and then fail.
    pub(super) halfway: BTreeSet<u32>,
    /// VMs of which what is written is done, and the answer is lost.
    pub(super) losing: BTreeSet<u32>,
    /// Guests that do not answer from the next write on, which is not done yet.
    pub(super) tardy: BTreeSet<u32>,
    /// Guests that may yet let go of a vCPU, and for how long.
    pub(super) letting_go: BTreeMap<u32, Duration>,
    /// Those whose vCPUs are plugged, and that may let go of them late; and how often one did so.
    pub(super) late: BTreeMap<u32, Late>,
    pub(super) went_late: u32,
    /// VMs that libvirtd could not be asked about in time for a look.
    pub(super) missed: BTreeSet<u32>,
    /// Groups that looks do not list, and of which no file can be opened just now, though they are there.
    pub(super) unlisted: BTreeSet<u32>,
    /// Groups that play no VM any more, as one in which a container has begun.
    pub(super) holding: BTreeSet<u32>,
    /// VMs whose notes cannot be taken back.
    pub(super) clinging: BTreeSet<u32>,
    /// VMs that take no notes.
    pub(super) unkeeping: BTreeSet<u32>,
    /// VMs of which the user may not change anything.
    pub(super) denied: BTreeSet<u32>,
    /// Guests that turned out not to take vCPUs offline.
    pub(super) lacking: BTreeSet<u32>,
    /// Guests in which nothing can be written.
    pub(super) untold: BTreeSet<u32>,
    /// Guests whose agents may not say any more which vCPUs are online, while all are plugged in; and those that are known to have taken some
    /// offline, as a daemon knows of those that it asked.
    pub(super) forbidding: BTreeSet<u32>,
    pub(super) by_guests: BTreeSet<u32>,
    /// VMs of which a limit is refused once, after what is saved of it was made smaller; and the quota that somebody sets just then, who
    /// knows nothing of what is saved.
    pub(super) refusing: BTreeMap<u32, Option<u64>>,
    /// VMs whose owner has said something that the last look could not ask for.
    pub(super) unasked: BTreeSet<u32>,
    /// VMs whose owner wants them to be left alone.
    pub(super) owned: BTreeSet<u32>,
    /// VMs whose vCPUs that are not online are not there.
    pub(super) plugging: BTreeSet<u32>,
    /// What is left of the vCPUs of VMs of which somebody plugged out some.
    pub(super) unplugged: BTreeMap<u32, CpuSet>,
    /// libvirtd does not answer.
    pub(super) deaf: bool,
    /// VMs of which somebody makes a backup: nobody waits for what is written meanwhile, and it is done after that.
    pub(super) busy: BTreeSet<u32>,
    queued: Vec<(u32, Lever, Value)>,
    /// What a VM whose answer is missing is cannot be asked until that has come.
    pub(super) mute: bool,
    /// Each write takes so long, or those of this VM only.
    pub(super) slow: Duration,
    pub(super) slow_of: Option<u32>,
    /// After so many calls, this happens to a VM: between plan and apply, for a look makes none.
    pub(super) soon: Option<(u32, Fault, u32)>,
    /// After it was read so many times somebody makes a setting this.
    pub(super) soon_made: Option<(u32, Place, Value)>,
    /// VMs that were made anew, since that was taken last.
    pub(super) anew: Vec<u32>,
    pub(super) written: Written,
    /// After so many reads and writes, a signal that ends the daemon arrives; and how many of them came after it.
    pub(super) signal: Option<(u32, Arc<AtomicBool>)>,
    pub(super) after_signal: u32,
    /// The clock jumped by so many ns.
    pub(super) ahead: u64,
    /// VMs that seem to get a quarter of what they do, and to wait for the rest.
    pub(super) starving: BTreeSet<u32>,
    /// Looks do not show the pCPUs of the host.
    pub(super) pcpus_unknown: bool,
    /// Looks show VMs as no host has them.
    pub(super) absurd: bool,
    /// After so many looks, one panics.
    pub(super) panics: Option<u32>,
    /// After so many times that time passed, it cannot any more.
    pub(super) breaks: Option<u32>,
    /// What looks say besides.
    pub(super) notes: Vec<String>,
    pub(super) touched: BTreeSet<u32>,
    /// Guests that were asked what a setting of theirs is.
    pub(super) asked: Vec<u32>,
    /// So often it was to forget who did not answer.
    pub(super) asked_again: u32,
    /// The kernel took away what settings were.
    pub(super) lost: bool,
    /// How often a journal was synced before the first write.
    pub(super) synced: Option<u32>,
    /// Writes that changed something.
    pub(super) writes: BTreeMap<LeverKind, u32>,
    own: BTreeMap<(u32, Lever), Value>,
    /// The vCPUs of guests when they were read last.
    read: BTreeMap<u32, Value>,
    /// What settings were at first.
    firsts: BTreeMap<(u32, Lever), Value>,
}

impl Faulty {
    pub(super) fn new(sim: SimMachine) -> Faulty {
        let (moved, kept, gone) = Default::default();
        let (hung, lying, halfway, missed, clinging, unkeeping, denied, owned) = Default::default();
        let (forbidding, by_guests, unlisted, refusing, unasked) = Default::default();
        let (holding, lacking, plugging, soon, ahead, starving, touched, asked, asked_again) =
            Default::default();
        let (untold, tardy, unheard, signal, losing, soon_made, anew, written) = Default::default();
        let (busy, queued, slow, writes, own, unplugged, read) = Default::default();
        let mut faulty = Faulty {
            sim,
            moved,
            kept,
            gone,
            hung,
            unheard,
            lying,
            halfway,
            losing,
            tardy,
            missed,
            clinging,
            unkeeping,
            denied,
            holding,
            lacking,
            untold,
            forbidding,
            by_guests,
            unlisted,
            unasked,
            refusing,
            owned,
            plugging,
            unplugged,
            deaf: false,
            busy,
            queued,
            mute: false,
            slow,
            slow_of: None,
            letting_go: BTreeMap::new(),
            late: BTreeMap::new(),
            went_late: 0,
            soon,
            soon_made,
            anew,
            written,
            signal,
            after_signal: 0,
            ahead,
            starving,
            pcpus_unknown: false,
            absurd: false,
            panics: None,
            breaks: None,
            notes: Vec::new(),
            touched,
            asked,
            asked_again,
            lost: false,
            synced: None,
            writes,
            own,
            read,
            firsts: BTreeMap::new(),
        };
        let all = (0..=MANAGED).flat_map(|vm| all_levers(vm).into_iter().map(move |lever| (vm, lever)));
        for (vm, lever) in all {
            faulty
                .read(vm, lever)
                .into_iter()
                .for_each(|value| drop(faulty.firsts.insert((vm, lever), value)));
        }
        faulty
    }

    /// What a setting was at first.
    pub(super) fn first(&self, vm: u32, lever: Lever) -> Value {
        self.firsts[&(vm, lever)].clone()
    }

    /// A VM that is called; what was to happen soon may happen first.
    fn called(&mut self, id: &VmId) -> Result<u32, MachineError> {
        self.let_go(false);
        match self.soon.take() {
            Some((0, fault, vm)) => {
                self.written.failed.insert(vm);
                self.befall(vm, fault);
            }
            soon => self.soon = soon.map(|(calls, fault, vm)| (calls - 1, fault, vm)),
        }
        self.number(id)
    }

    /// A setting is read or written; a signal may arrive meanwhile.
    fn signalled(&mut self) {
        match &mut self.signal {
            Some((0, ends)) => self.after_signal += u32::from(ends.swap(true, Ordering::Relaxed)),
            Some((calls, _)) => *calls -= 1,
            None => {}
        }
    }

    /// A lever that is kept here, else the simulation's.
    fn read(&mut self, vm: u32, lever: Lever) -> Result<Value, MachineError> {
        match (self.own.get(&(vm, lever)), lever) {
            (Some(own), _) => Ok(own.clone()),
            (None, Lever::HelperWeight) => Ok(Value::Weight(Weight(1024.0))),
            (None, Lever::Nodes) => Ok(Value::Nodes(Some(CpuSet::first(1)))),
            _ => self.sim.current(&VmId(format!("sim-{vm}")), lever),
        }
    }

    /// Backups are done, and what waited behind them.
    pub(super) fn go_on(&mut self) {
        std::mem::take(&mut self.busy).into_iter().for_each(|vm| self.go_on_with(vm));
    }

    fn go_on_with(&mut self, vm: u32) {
        self.busy.remove(&vm);
        let done: Vec<_>;
        (done, self.queued) = std::mem::take(&mut self.queued).into_iter().partition(|(of, ..)| *of == vm);
        for (vm, lever, value) in done {
            self.write(vm, lever, &value).unwrap();
        }
    }

    /// Whether what is written waits behind a backup: control groups, threads and agents are not libvirtd's.
    pub(super) fn waits(&self, vm: u32, lever: Lever) -> bool {
        self.busy.contains(&vm) && by_call(lever)
    }

    /// An administrator writes it.
    pub(super) fn make(&mut self, (vm, lever): Place, value: &Value, within: bool) {
        self.written.hand(self.id(vm), (vm, lever), value, within);
        self.write(vm, lever, value).unwrap();
    }

    /// He may do so between any two calls, but for those that follow each other of the same setting: that he cannot be overwritten then
    /// nobody can promise. (What is put back of one vCPU asks for the quotas of others just before.)
    fn comes_between(&mut self, place: Option<Place>) {
        let Some((calls, soon, value)) = self.soon_made.take() else { return };
        let reads = place == Some(soon);
        // (What is read after a guest lied, or failed on the way, is taken for what came of that.)
        let fails = [&self.lying, &self.halfway, &self.losing].iter().any(|of| of.contains(&soon.0));
        if soon.1 == Lever::Online && fails {
            return;
        }
        let may = !self.written.reads_back(soon) && (reads || soon.1.kind() != LeverKind::VcpuQuota);
        match calls {
            0 if may && !self.waits(soon.0, soon.1) => self.make(soon, &value, true),
            _ => {
                let calls = calls.saturating_sub(u32::from(reads && may));
                self.soon_made = Some((calls, soon, value));
            }
        }
    }

    /// Whether it may be for no answer that was missing that a VM is not as it is to be.
    pub(super) fn hinders(&self, vm: u32) -> bool {
        self.missed.contains(&vm) || self.queued.iter().any(|(of, ..)| *of == vm) || self.may_let_go(vm)
    }

    /// Writes it, whoever does.
    pub(super) fn write(&mut self, vm: u32, lever: Lever, value: &Value) -> Result<(), MachineError> {
        if let (Some(late), Value::Vcpus(set)) = (self.late.get_mut(&vm), value) {
            late.has(set);
        }
        // (A simulated guest keeps its first vCPUs.)
        let sparse = matches!(value, Value::Vcpus(set) if (0..).zip(set.iter()).any(|(n, vcpu)| vcpu.0 != n));
        if sparse || matches!(lever, Lever::HelperWeight | Lever::Nodes) {
            self.own.insert((vm, lever), value.clone());
            return Ok(());
        }
        self.own.remove(&(vm, lever));
        self.sim.set(&VmId(format!("sim-{vm}")), lever, value)
    }

    /// The same as the files of a control group take it, one after the other (v1); what is saved has to fit the quota at any time.
    fn write_in_steps(&mut self, vm: u32, lever: Lever, to: Limit) -> Result<(), MachineError> {
        let Value::Limit(from) = self.read(vm, lever)? else { unreachable!() };
        let saved = Limit { burst_us: from.burst_us.min(to.burst_us), ..from };
        if let Some(his) = self.refusing.remove(&vm) {
            let quota_us = his.or(saved.quota_us);
            self.write(vm, lever, &Value::Limit(Limit { quota_us, ..saved }))?;
            return Err(MachineError::Malformed("the group below has more of it".into()));
        }
        let period = Limit { period_us: to.period_us, ..saved };
        for step in [saved, period, Limit { quota_us: to.quota_us, ..period }, to] {
            self.write(vm, lever, &Value::Limit(step))?;
            reach("step");
        }
        Ok(())
    }

    /// What a look shows of it that the simulation does not.
    fn show(&mut self, number: u32, vm: &mut VmState) {
        (vm.id, vm.name) = (self.id(number), format!("vm{number}"));
        vm.kept = self.kept.get(&number).cloned();
        vm.guest.take_if(|_| self.unheard.contains(&number));
        vm.hands_off = self.owned.contains(&number);
        if let Some(Value::Vcpus(online)) = self.own.get(&(number, Lever::Online)) {
            (0..).zip(&mut vm.vcpus).for_each(|(id, vcpu)| vcpu.online = online.contains(CpuId(id)));
        }
        if self.absurd {
            vm.weight = Some(Weight(-1.0));
        }
        vm.fixed.retain(|fixed| !matches!(fixed.lever, LeverKind::HelperWeight | LeverKind::Nodes));
        let lacks = self.lacking.contains(&number);
        let reason = || "its guest cannot take vCPUs offline".into();
        vm.fixed.extend(lacks.then(|| Fixed { lever: LeverKind::Online, reason: reason() }));
        if let Ok(Value::Nodes(nodes)) = self.read(number, Lever::Nodes) {
            vm.memory_nodes = nodes;
        }
        if let Ok(Value::Weight(weight)) = self.read(number, Lever::HelperWeight) {
            let counters = Counters { run_ns: Some(0), wait_ns: Some(0), runs: None };
            let name = "emulator".into();
            vm.helpers.push(Helper { name, weight: Some(weight), counters, ..Helper::default() });
        }
        for vcpu in vm.vcpus.iter_mut().filter(|_| self.starving.contains(&number)) {
            let Counters { run_ns: Some(run), wait_ns: Some(wait), .. } = &mut vcpu.counters else {
                continue;
            };
            (*run, *wait) = (*run / 4, *wait + *run - *run / 4);
        }
    }

    pub(super) fn id(&self, vm: u32) -> VmId {
        VmId(format!("sim-{vm}/{}", self.moved.get(&vm).copied().unwrap_or(0)))
    }

    fn number(&self, id: &VmId) -> Result<u32, MachineError> {
        let gone = || MachineError::Gone("no such VM".into());
        let number = id.0.strip_prefix("sim-").and_then(|rest| rest.split_once('/')?.0.parse().ok());
        number.filter(|vm| self.id(*vm) == *id && !self.gone.contains(vm)).ok_or_else(gone)
    }

    fn reach(&self, vm: u32, lever: Lever) -> Result<(), MachineError> {
        let guests = matches!(lever, Lever::Online | Lever::Told);
        if self.unlisted.contains(&vm) {
            return Err(MachineError::Gone("too many open files".into()));
        }
        if self.deaf || (guests && self.hung.contains(&vm)) {
            return Err(MachineError::Gone("no answer".into()));
        }
        Ok(())
    }

    fn may_write(&self, vm: u32, lever: Lever) -> Result<(), MachineError> {
        self.reach(vm, lever)?;
        let denied = self.denied.contains(&vm);
        if denied { Err(MachineError::Denied("not for you".into())) } else { Ok(()) }
    }

    /// What it really is.
    pub(super) fn truth(&mut self, vm: u32, lever: Lever) -> Value {
        self.read(vm, lever).unwrap()
    }

    /// Whether a setting of a VM that is there has this value.
    pub(super) fn is(&mut self, vm: &VmId, lever: Lever, value: &Value) -> bool {
        self.number(vm).is_ok_and(|number| self.read(number, lever).is_ok_and(|now| now == *value))
    }

    /// Whether a look does not show every VM.
    pub(super) fn hides(&self) -> bool {
        self.deaf || !self.missed.is_empty()
    }

    pub(super) fn heal(&mut self) {
        (self.deaf, self.hung, self.lying, self.halfway, self.missed) = Default::default();
        (self.clinging, self.unkeeping, self.denied, self.soon, self.soon_made) = Default::default();
        self.losing.clear();
        self.refusing.clear();
        self.hurry();
        self.go_on();
    }
}

/// Whether libvirtd is called for it.
fn by_call(lever: Lever) -> bool {
    let by_call = [LeverKind::Weight, LeverKind::Quota, LeverKind::Affinity, LeverKind::Nodes];
    by_call.contains(&lever.kind())
}

/// Whether it is time for what happens once, after so many times.
fn is_due(left: &mut Option<u32>) -> bool {
    let is = *left == Some(0);
    *left = left.and_then(|times| times.checked_sub(1));
    is
}

impl Machine for Faulty {
    fn name(&self) -> String {
        "faulty".into()
    }

    fn observe(&mut self) -> Result<Snapshot, MachineError> {
        if is_due(&mut self.panics) {
            std::panic::resume_unwind(Box::new("a look that panics"));
        }
        if self.deaf {
            return Err(MachineError::Gone("no answer".into()));
        }
        let mut snapshot = self.sim.observe()?;
        snapshot.at = Time(snapshot.at.0 + self.ahead);
        snapshot.notes.extend(self.notes.iter().cloned());
        if self.pcpus_unknown {
            snapshot.pcpus.clear();
        }
        (0..).zip(&mut snapshot.vms).for_each(|(number, vm)| self.show(number, vm));
        let seen = |vm: u32| !self.holding.contains(&vm) && !self.unlisted.contains(&vm);
        snapshot.vms.retain(|vm| self.number(&vm.id).is_ok_and(seen));
        for vm in self.missed.iter().filter(|vm| !self.gone.contains(vm)) {
            let id = self.id(*vm);
            snapshot.vms.retain(|vm| vm.id != id);
            let (path, why) = (format!("VM \"vm{vm}\""), "not asked for yet".into());
            snapshot.unread.push(Unread { what: What::Siblings, path, why });
        }
        Ok(snapshot)
    }

    fn pass(&mut self, time: Duration) -> Result<bool, MachineError> {
        if is_due(&mut self.breaks) {
            return Err(MachineError::Malformed("no time passes".into()));
        }
        self.let_go(true);
        self.sim.pass(time)
    }
}

impl Act for Faulty {
    fn current(&mut self, vm: &VmId, lever: Lever) -> Result<Value, MachineError> {
        self.signalled();
        let number = self.called(vm).map_err(|error| match lever {
            // As where a control group is looked for on this machine.
            Lever::VcpuQuota(_) => MachineError::Unsupported("it has no such control group".into()),
            _ => error,
        })?;
        self.comes_between(Some((number, lever)));
        let result = self.answer(number, lever);
        self.written.read((number, lever), &result);
        result
    }

    fn fitting(&mut self, vm: &VmId, lever: Lever, value: &Value) -> Option<Value> {
        let (Lever::Online, Value::Vcpus(want)) = (lever, value) else { return None };
        let part = want.intersection(self.unplugged.get(&self.number(vm).ok()?)?);
        (part != *want).then_some(Value::Vcpus(part))
    }

    fn may_be_there(&mut self, vm: &VmId) -> bool {
        self.number(vm).is_ok_and(|vm| self.unlisted.contains(&vm))
    }

    fn wishes_stand(&mut self, vm: &VmId) -> Result<bool, MachineError> {
        self.number(vm).map(|vm| !self.unasked.contains(&vm))
    }

    fn is_by_guest(&self, vm: &VmId) -> bool {
        let plugs = |vm: &u32| self.plugging.contains(vm) || self.late.contains_key(vm);
        self.number(vm).is_ok_and(|vm| !self.forbidding.contains(&vm) && !plugs(&vm))
    }

    fn goes_by_guest(&mut self, vm: &VmId) {
        self.by_guests.extend(self.number(vm));
    }

    fn lets_go(&self, vm: &VmId) -> Option<Duration> {
        let vm = self.number(vm).ok()?;
        self.letting_go.get(&vm).copied().or_else(|| self.lets_go_late(vm))
    }

    fn ask_again(&mut self) {
        self.asked_again += 1;
    }

    fn lost(&mut self, _vm: &VmId, _lever: Lever) -> bool {
        self.lost
    }

    fn set(&mut self, vm: &VmId, lever: Lever, value: &Value) -> Result<(), MachineError> {
        self.signalled();
        let number = self.called(vm)?;
        self.written.asked((number, lever), value);
        let result = self.make_it(number, lever, value);
        self.written.answered((number, lever), value, &result);
        result
    }

    fn keep(&mut self, vm: &VmId, text: Option<&str>) -> Result<(), MachineError> {
        let number = self.called(vm)?;
        self.comes_between(None);
        let result = self.carry(number, text);
        if result.is_err() {
            self.written.unkept(number);
        }
        result
    }
}

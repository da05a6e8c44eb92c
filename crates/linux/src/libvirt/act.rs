//! What corefit can change of a libvirt domain, and how.
//!
//! | lever | by |
//! |---|---|
//! | online vCPUs | the guest agent; without one, or where it cannot, plugging those that somebody plugged in since the start |
//! | what it is told | a file in the guest, written by the agent |
//! | weight of helper threads | the emulator's control group |
//! | weight, quota | `virDomainSetSchedulerParametersFlags`, live |
//! | affinity | `virDomainPinVcpuFlags`, live |
//! | nodes of the memory | `virDomainSetNumaParameters`, live; the kernel moves it, which takes as long as copying it |
//! | slice of a vCPU's thread | `sched_setattr`, where it is a thread of this machine |
//! | quota of one vCPU, and what of a quota may be saved | control groups: libvirt has one quota for all vCPUs, and no burst |
//!
//! All calls are made by threads of their own ([`Hand`](super::hand::Hand)), since each may hang. The last vCPU
//! stays online, and so does vCPU 0 where the guest has it online.

use std::collections::BTreeSet;
use std::time::Duration;

use corefit_core::machine::{Act, Lever, Limit, MachineError, Value, VmId};
use corefit_core::{CpuSet, Weight};

use super::agent_calls as agent;
use super::api::Domain;
use super::command::Parameter;
use super::definition::{Definition, KEPT, UNPLUGGED};
use super::effect::{in_effect, known_as};
use super::hand::{PATIENCE, Until, Whom, ask, define, plain};
use super::limit;
use super::machine::LibvirtMachine;
use super::online;
use super::pins::{Pcpus, affinity, pin};
use super::session;
use crate::cgroup::write;
use crate::formats::domain::limited;
use crate::progress;
use crate::slice::Slicer;
use crate::told;

impl Act for LibvirtMachine {
    fn realm(&self) -> String {
        format!("libvirt {}", known_as(&in_effect(self.uri())))
    }

    fn current(&mut self, vm: &VmId, lever: Lever) -> Result<Value, MachineError> {
        if let Lever::VcpuQuota(vcpu) = lever {
            let group = self.vcpu_group(vm, vcpu)?;
            return self.host()?.limit(&group).map(Value::Limit);
        }
        if lever == Lever::HelperWeight {
            let group = self.helper_group(vm)?;
            return self.host()?.weight(&group).map(Value::Weight);
        }
        if let Lever::Slice(vcpu) = lever {
            let thread = self.vcpu_thread(vm, vcpu)?;
            return Ok(Value::Slice(Slicer::now()?.current(&[thread])));
        }
        if lever == Lever::Online {
            let result = self.hand.with(Whom::of(lever), vm, online::read);
            self.hand.learn(vm, lever, &result);
            let (online, by) = result?;
            self.hand.goes(vm, by)?;
            self.hand.saw(vm, &online, by);
            self.stirs(vm);
            return Ok(Value::Vcpus(online));
        }
        if lever == Lever::Told {
            self.hand.may_open(vm)?;
        }
        let pcpus = self.pcpus.clone();
        let result = self.hand.with(Whom::of(lever), vm, move |domain, until| match lever {
            Lever::Told => {
                let text = agent::read_file(&mut ask(domain, until), told::PATH)?;
                Ok(Value::Told(told::says(text.as_deref())))
            }
            Lever::Weight => {
                let numbers = domain.scheduler().map_err(|e| plain(&e))?;
                number(&numbers, "cpu_shares").map(|shares| Value::Weight(weight(shares)))
            }
            Lever::Quota => {
                let numbers = domain.scheduler().map_err(|e| plain(&e))?;
                limit_of(&numbers, 0).map(Value::Limit)
            }
            Lever::Affinity(vcpu) => affinity(domain, vcpu, &pcpus).map(Value::Pcpus),
            Lever::Nodes => nodes(domain).map(|nodes| Value::Nodes(Some(nodes))),
            Lever::Online | Lever::VcpuQuota(_) | Lever::HelperWeight | Lever::Slice(_) => {
                Err(MachineError::Unsupported("it is that of a guest, a control group or a thread".into()))
            }
        });
        self.hand.learn(vm, lever, &result);
        if lever == Lever::Told {
            self.hand.opened(vm, &result);
        }
        match result {
            // libvirt does not know of bursts.
            Ok(Value::Limit(limit)) => {
                self.saved(vm).map(|burst_us| Value::Limit(Limit { burst_us, ..limit }))
            }
            result => result,
        }
    }

    fn set(&mut self, vm: &VmId, lever: Lever, value: &Value) -> Result<(), MachineError> {
        if let (Lever::VcpuQuota(vcpu), Value::Limit(limit)) = (lever, value) {
            let group = self.vcpu_group(vm, vcpu)?;
            let done = self.host()?.set_limit(&group, *limit);
            self.changed(vm);
            return done;
        }
        if let (Lever::HelperWeight, Value::Weight(weight)) = (lever, value) {
            let group = self.helper_group(vm)?;
            let done = self.host()?.set_weight(&group, *weight);
            self.changed(vm);
            return done;
        }
        if let (Lever::Slice(vcpu), Value::Slice(to)) = (lever, value) {
            let thread = self.vcpu_thread(vm, vcpu)?;
            return Slicer::now()?.set(|| Ok(vec![thread]), *to);
        }
        let burst_us = match (lever, value) {
            (Lever::Quota, Value::Limit(limit)) => {
                write::check(limit)?;
                Some(limit.burst_us)
            }
            _ => None,
        };
        if let Some(burst_us) = burst_us {
            self.save(vm, burst_us, |burst, limit| burst < limit.burst_us)?;
        }
        if lever == Lever::Told {
            self.hand.may_open(vm)?;
        }
        let value = value.clone();
        let result = match value {
            Value::Vcpus(want) if lever == Lever::Online => online::set(&mut self.hand, vm, want),
            value => {
                let (whom, pcpus) = (Whom::of(lever), self.pcpus.clone());
                // Memory takes its time, whoever else waits.
                let patience = if lever == Lever::Nodes { PATIENCE } else { self.hand.patience(whom) };
                let job = move |domain: &Domain<'_>, until| set(domain, until, lever, value, &pcpus);
                self.hand.within(whom, patience, vm, job)
            }
        };
        if lever == Lever::Online {
            self.resized(vm);
        }
        self.hand.learn(vm, lever, &result);
        if lever == Lever::Told {
            self.hand.opened(vm, &result);
        }
        let result = match burst_us {
            Some(burst_us) => result.and_then(|()| self.save(vm, burst_us, |b, limit| b != limit.burst_us)),
            None => result,
        };
        if matches!(lever, Lever::Weight | Lever::Quota | Lever::Affinity(_) | Lever::Nodes) {
            self.changed(vm);
        }
        result
    }

    fn keep(&mut self, vm: &VmId, text: Option<&str>) -> Result<(), MachineError> {
        let element = text.map(|text| format!("<kept>{}</kept>", escape(text)));
        let result = self.hand.with(Whom::Libvirtd, vm, move |domain, until| {
            let put = |namespace: &str, element: Option<&str>| {
                until.check()?;
                let done = domain.set_metadata(namespace, element).map_err(|error| plain(&error));
                crate::between("kept-part");
                done
            };
            if element.is_some() {
                return put(KEPT, element.as_deref());
            }
            // Whose settings are as they were has nothing that we plugged out. What it carries of them goes last: who finds that comes here
            // again.
            if !define(domain)?.unplugged.is_empty() {
                put(UNPLUGGED, None)?;
            }
            put(KEPT, None)
        });
        self.changed(vm);
        result
    }

    fn fitting(&mut self, vm: &VmId, lever: Lever, value: &Value) -> Option<Value> {
        let (Lever::Online, Value::Vcpus(want)) = (lever, value) else { return None };
        let want = want.clone();
        let part =
            self.hand.with(Whom::of(lever), vm, move |domain, until| online::fitting(domain, until, &want));
        part.ok()?.map(Value::Vcpus)
    }

    fn wishes_stand(&mut self, vm: &VmId) -> Result<bool, MachineError> {
        let Some(shown) = self.outdated.get(vm) else { return Ok(true) };
        let owner = self.hand.with(Whom::Libvirtd, vm, |domain, _| Ok(define(domain)?.owner))?;
        let stand = owner == *shown;
        if stand {
            self.outdated.remove(vm);
        }
        Ok(stand)
    }

    fn look_anew(&mut self, vm: &VmId) {
        self.changed(vm);
    }

    fn is_by_guest(&self, vm: &VmId) -> bool {
        self.hand.is_by_agent(vm)
    }

    fn goes_by_guest(&mut self, vm: &VmId) {
        self.hand.asked(vm);
    }

    fn lets_go(&self, vm: &VmId) -> Option<Duration> {
        self.hand.lets_go(vm)
    }

    fn ask_again(&mut self) {
        self.hand.ask_again();
    }

    fn awaits(&mut self, guests: &BTreeSet<VmId>) {
        if let Some(agents) = &mut self.agents {
            agents.awaits(guests.iter().filter_map(session::key).collect());
        }
    }
}

fn set(
    domain: &Domain<'_>,
    until: Until,
    lever: Lever,
    value: Value,
    pcpus: &Pcpus,
) -> Result<(), MachineError> {
    match (lever, value) {
        (Lever::Told, Value::Told(cpus)) => {
            let mut ask = ask(domain, until);
            // Who is told what it gets, for the first time since it booted, may say what it does with that; need not.
            let progress = cpus.is_some().then_some(progress::PATH);
            agent::write_file(&mut ask, told::PATH, &told::text(cpus), progress)
        }
        (Lever::Weight, Value::Weight(Weight(weight))) => {
            domain.set_scheduler(&[Parameter::Unsigned("cpu_shares", shares(weight)?)]).map_err(|e| plain(&e))
        }
        (Lever::Quota, Value::Limit(limit)) => {
            write::check(&limit)?;
            let read = || limit_of(&domain.scheduler().map_err(|e| plain(&e))?, 0);
            let call = |parameters: &[Parameter]| domain.set_scheduler(parameters).map_err(|e| plain(&e));
            limit::set(&read()?, &limit, || until.check(), read, call)
        }
        (Lever::Affinity(vcpu), Value::Pcpus(to)) if !to.is_empty() => pin(domain, until, vcpu, to, pcpus),
        (Lever::Nodes, Value::Nodes(Some(to))) if !to.is_empty() => {
            nodes(domain)?;
            until.check()?;
            domain.move_memory(&to).map_err(|e| plain(&e))
        }
        (lever, value) => Err(MachineError::Malformed(format!("{lever} cannot be {value}"))),
    }
}

impl LibvirtMachine {
    /// What may be saved of a VM's quota. Nothing where its process is none of those that are seen here, as on a host elsewhere: corefit saves
    /// nothing there.
    ///
    /// # Errors
    /// If its process is seen, but not that, or the latest look missed some VM, which may pass: without it nobody knows whether the limit is
    /// ours.
    fn saved(&mut self, vm: &VmId) -> Result<u64, MachineError> {
        match self.limited_group(vm) {
            Ok((_, limit)) => Ok(limit.burst_us),
            Err(_) if self.is_elsewhere(vm) => Ok(0),
            Err(error) => Err(unseen(error)),
        }
    }

    /// Sets what may be saved of a VM's quota in its control group, if that is `due`.
    fn save(
        &mut self,
        vm: &VmId,
        burst_us: u64,
        due: impl Fn(u64, &Limit) -> bool,
    ) -> Result<(), MachineError> {
        match self.limited_group(vm) {
            Ok((group, limit)) if due(burst_us, &limit) => {
                self.host()?.set_limit(&group, Limit { burst_us, ..limit })
            }
            Ok(_) => Ok(()),
            Err(error) if burst_us > 0 => Err(error),
            Err(_) if self.is_elsewhere(vm) => Ok(()),
            Err(error) => Err(unseen(error)),
        }
    }
}

/// Why what is saved of a quota is not known now.
fn unseen(error: MachineError) -> MachineError {
    match error {
        MachineError::Unsupported(why) => {
            MachineError::Gone(format!("what is saved of its quota is not known: {why}"))
        }
        error => error,
    }
}

/// The nodes that its memory is on, if they can be changed.
fn nodes(domain: &Domain<'_>) -> Result<CpuSet, MachineError> {
    let Definition { memory_nodes, memory_stays, .. } = define(domain)?;
    match (memory_nodes, memory_stays) {
        (Some(nodes), None) => Ok(nodes),
        (_, why) => Err(MachineError::Unsupported(why.unwrap_or("its memory may be on any node").into())),
    }
}

fn number(numbers: &[(String, u64)], name: &str) -> Result<u64, MachineError> {
    let found = numbers.iter().find(|(known, _)| known == name).map(|(_, value)| *value);
    found.ok_or_else(|| MachineError::Unsupported(format!("libvirt does not say its {name}")))
}

fn limit_of(numbers: &[(String, u64)], burst_us: u64) -> Result<Limit, MachineError> {
    Ok(Limit { quota_us: quota_of(numbers), period_us: number(numbers, "global_period")?, burst_us })
}

/// libvirt says "none" as a negative number, which is not among those here, or as the largest.
fn quota_of(numbers: &[(String, u64)]) -> Option<u64> {
    number(numbers, "global_quota").ok().and_then(limited)
}

/// Control groups v1 have 2 to 262144, v2 1 to 10000: libvirt knows which its host has, and refuses what that does not take.
fn shares(weight: f64) -> Result<u64, MachineError> {
    write::whole(weight, 1..=262_144)
}

fn weight(shares: u64) -> Weight {
    Weight(crate::float(shares))
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::super::local::Local;
    use super::super::owner::OWNER;
    use super::*;
    use crate::libvirt::Options;
    use corefit_core::machine::{LeverKind, Machine};
    use std::sync::atomic::{AtomicBool, Ordering};

    fn open(uri: &str) -> Box<dyn Act> {
        crate::libvirt::open(uri, patient())
    }

    /// For libvirt's test driver, in this process: a machine that stalls says nothing of it.
    fn patient() -> Options {
        Options { timeout: Duration::from_secs(60), ..Options::default() }
    }

    fn test_vm(machine: &mut dyn Act) -> VmId {
        machine.observe().unwrap().vms.into_iter().find(|vm| vm.name == "test").unwrap().id
    }

    #[test]
    fn a_domain_without_agent_whose_vcpus_were_all_there_says_why_it_cannot_shrink() {
        let mut machine = open("test:///default");
        let vm = test_vm(machine.as_mut());
        let error = machine.current(&vm, Lever::Online).unwrap_err();
        let MachineError::Unsupported(text) = &error else { panic!("{error:?}") };
        let without_first = Value::Vcpus("1".parse().unwrap());
        assert_eq!(
            machine.set(&vm, Lever::Online, &without_first),
            Err(error.clone()),
            "a guest may have such"
        );
        assert!(text.contains("no guest agent") && text.contains("at its start"), "{text}");
        assert!(matches!(machine.current(&vm, Lever::Told), Err(MachineError::Unsupported(_))));
        let other = VmId("00000000-0000-0000-0000-000000000000#1".into());
        assert!(matches!(machine.current(&other, Lever::Online), Err(MachineError::Gone(_))));
        assert!(matches!(machine.current(&VmId("x".into()), Lever::Online), Err(MachineError::Malformed(_))));
    }

    #[test]
    fn values_that_are_not_the_levers_are_refused() {
        let mut machine = open("test:///default");
        let vm = test_vm(machine.as_mut());
        for (lever, value) in [
            (Lever::Online, Value::Vcpus(CpuSet::default())),
            (Lever::Online, Value::Told(None)),
            (Lever::Weight, Value::Weight(Weight(f64::NAN))),
            (Lever::Weight, Value::Weight(Weight(0.9))),
            (Lever::Weight, Value::Weight(Weight(262_145.0))),
            (Lever::Affinity(0), Value::Pcpus(CpuSet::default())),
            (Lever::Quota, Value::Limit(Limit { quota_us: Some(5), period_us: 100_000, burst_us: 0 })),
        ] {
            let refused = machine.set(&vm, lever, &value);
            assert!(matches!(refused, Err(MachineError::Malformed(_))), "{lever}: {value:?}: {refused:?}");
        }
    }

    #[test]
    fn what_is_saved_of_a_quota_is_unknown_where_only_that_cannot_be_seen() {
        let mut machine = LibvirtMachine::new("test:///default", patient());
        let vm = test_vm(&mut machine);
        // Its process is none of this machine's, as on a host elsewhere, or where others' processes are hidden.
        assert_eq!((machine.saved(&vm), machine.save(&vm, 0, |_, _| true)), (Ok(0), Ok(())));
        // A look that missed some did not look for their processes.
        machine.missed_but(&[session::key(&vm).unwrap()]);
        assert_eq!(machine.saved(&vm), Ok(0), "it missed another one");
        machine.missed_but(&[]);
        let unseen = [machine.saved(&vm).err(), machine.save(&vm, 0, |_, _| true).err()];
        assert!(unseen.iter().all(|error| matches!(error, Some(MachineError::Gone(_)))), "{unseen:?}");
        machine.local = Local::with(session::key(&vm).unwrap());
        assert!(matches!(machine.saved(&vm), Err(MachineError::Gone(_))), "{:?}", machine.saved(&vm));
        for burst_us in [0, 1000] {
            assert!(machine.save(&vm, burst_us, |_, _| true).is_err());
        }
    }

    /// libvirt's test driver passes nothing on to agents: as where the administrator forbade the commands.
    #[test]
    fn what_is_plugged_in_says_nothing_of_vcpus_that_a_guest_took_offline_by_itself_or_for_one_before() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let vcpu = |id: u32| {
            let hotpluggable = ["no", "yes"][usize::from(id > 0)];
            format!("<vcpu id='{id}' enabled='yes' hotpluggable='{hotpluggable}'/>")
        };
        let vcpus: String = (0..4).map(vcpu).collect();
        let domain = format!(
            "<domain type='test'><name>a</name><uuid>00000000-0000-4000-8000-0000000aaaaa</uuid><memory>1024</memory>\
             <vcpu>4</vcpu><vcpus>{vcpus}</vcpus><os><type>hvm</type></os></domain>"
        );
        std::fs::write(file.path(), format!("<node>{domain}</node>")).unwrap();
        let mut machine = open(&format!("test://{}", file.path().display()));
        let vm = machine.observe().unwrap().vms.remove(0).id;
        assert_eq!(machine.current(&vm, Lever::Online), Ok(Value::Vcpus(CpuSet::first(4))));
        assert!(!machine.is_by_guest(&vm), "none of its own has said so");
        machine.goes_by_guest(&vm);
        let unknown = machine.current(&vm, Lever::Online);
        assert!(
            matches!(&unknown, Err(MachineError::Gone(why)) if why.contains("does not say now")),
            "{unknown:?}"
        );
        let text = machine.set(&vm, Lever::Online, &Value::Vcpus(CpuSet::first(3)));
        assert!(matches!(text, Err(MachineError::Gone(_))), "{text:?}");
    }

    #[test]
    fn what_an_owner_said_after_the_look_had_time_to_ask_counts_and_settings_are_those_of_now() {
        let (_file, uri) = session::tests::host(1);
        let mut machine = LibvirtMachine::new(&uri, patient());
        let vm = machine.observe().unwrap().vms.remove(0).id;
        let (uuid, _) = session::key(&vm).unwrap();
        // Each connection has a copy of the host: what is written by the hand's no look shows.
        let says = |machine: &mut LibvirtMachine, hands_off: &str| {
            let element = format!("<owner hands-off='{hands_off}'/>");
            let done = machine.hand.with(Whom::Libvirtd, &vm, move |domain, _| {
                domain.set_metadata(OWNER, Some(&element)).map_err(|error| plain(&error))
            });
            done.unwrap();
        };
        let look = |machine: &mut LibvirtMachine, late: bool| {
            machine.changed(&vm);
            let until = std::time::Instant::now() + Duration::from_secs(600);
            machine.blamed = late.then(|| (uuid.clone(), until)).into_iter().collect();
            let seen = machine.observe().unwrap();
            assert!(!seen.vms[0].hands_off);
            assert_eq!(
                seen.notes.iter().any(|note| note.contains("is what it said before")),
                late,
                "{:?}",
                seen.notes
            );
        };
        says(&mut machine, "yes");
        look(&mut machine, true);
        assert_eq!([(); 2].map(|()| machine.wishes_stand(&vm)), [Ok(false), Ok(false)]);
        says(&mut machine, "no");
        assert_eq!(machine.wishes_stand(&vm), Ok(true));
        says(&mut machine, "yes");
        assert_eq!(machine.wishes_stand(&vm), Ok(true), "it is asked once for each look");
        look(&mut machine, true);
        assert_eq!(machine.wishes_stand(&vm), Ok(false));
        look(&mut machine, false);
        assert_eq!(machine.wishes_stand(&vm), Ok(true), "the look has asked");

        let pin = Value::Pcpus("0".parse().unwrap());
        machine.set(&vm, Lever::Affinity(0), &pin).unwrap();
        look(&mut machine, true);
        assert_eq!(machine.current(&vm, Lever::Affinity(0)), Ok(pin));
    }

    #[test]
    fn no_quota_is_none_however_libvirt_says_it() {
        let of = |quota| quota_of(&[("global_quota".into(), quota)]);
        for none in [0, 17_592_186_044_415, u64::MAX / 1000, u64::MAX] {
            assert_eq!(of(none), None, "{none}");
        }
        assert_eq!([1000, 17_592_186_044_414].map(of), [Some(1000), Some(17_592_186_044_414)]);
        assert_eq!(quota_of(&[]), None, "a negative one is left out");
    }

    #[test]
    fn what_either_version_of_control_groups_may_have_as_a_weight_can_be_put_back() {
        for weight in [1.0, 2.0, 10_000.0, 262_144.0] {
            assert!(shares(weight).is_ok_and(|shares| super::weight(shares) == Weight(weight)), "{weight}");
        }
    }

    #[test]
    fn the_memory_of_a_domain_is_moved_where_its_definition_allows_that() {
        let file = tempfile::NamedTempFile::new().unwrap();
        // Each connection has a copy of the file.
        let domain = |name: &str, mode: &str| {
            format!(
                "<domain type='test'><name>{name}</name>\
                 <uuid>00000000-0000-4000-8000-0000000{name}</uuid><memory>1024</memory><vcpu>2</vcpu><numatune>\
                 <memory mode='{mode}' nodeset='0'/></numatune><os><type>hvm</type></os></domain>"
            )
        };
        let text = domain("aaaaa", "restrictive") + &domain("bbbbb", "strict");
        std::fs::write(file.path(), format!("<node>{text}</node>")).unwrap();
        let mut machine = open(&format!("test://{}", file.path().display()));
        let seen = machine.observe().unwrap().vms;
        let of = |name: &str| seen.iter().find(|vm| vm.name == name).unwrap();
        assert_eq!(
            (of("aaaaa").fixed(LeverKind::Nodes), of("aaaaa").memory_nodes.clone()),
            (None, "0".parse().ok())
        );
        let moves = &of("aaaaa").id;
        assert_eq!(machine.current(moves, Lever::Nodes), Ok(Value::Nodes("0".parse().ok())));
        machine.set(moves, Lever::Nodes, &Value::Nodes("1".parse().ok())).unwrap();
        assert_eq!(machine.current(moves, Lever::Nodes), Ok(Value::Nodes("1".parse().ok())));
        assert!(matches!(
            machine.set(moves, Lever::Nodes, &Value::Nodes(None)),
            Err(MachineError::Malformed(_))
        ));
        assert!(of("bbbbb").fixed(LeverKind::Nodes).is_some_and(|why| why.contains("mode restrictive")));
        let refused = machine.set(&of("bbbbb").id, Lever::Nodes, &Value::Nodes("1".parse().ok()));
        assert!(matches!(refused, Err(MachineError::Unsupported(_))), "{refused:?}");
    }

    #[test]
    fn kept_text_is_seen_with_the_vm_until_it_is_taken_away() {
        let mut machine = open("test:///default");
        let vm = test_vm(machine.as_mut());
        let kept = |machine: &mut dyn Act| {
            let seen = machine.observe().unwrap().vms;
            seen.into_iter().find(|vm| vm.name == "test").unwrap().kept
        };
        machine.keep(&vm, Some(r#"{"a":"<&>"}"#)).unwrap();
        assert_eq!(kept(machine.as_mut()).as_deref(), Some(r#"{"a":"<&>"}"#));
        machine.keep(&vm, None).unwrap();
        assert_eq!(kept(machine.as_mut()), None);

        // Killed while it takes away what tells of vCPUs that it plugged out, it is known to the next.
        let mut killed = LibvirtMachine::new("test:///default", patient());
        let out = |machine: &mut LibvirtMachine| {
            machine.hand.with(Whom::Libvirtd, &vm, |domain, _| Ok(define(domain)?.unplugged)).unwrap()
        };
        let note = |domain: &Domain<'_>, _| {
            domain.set_metadata(UNPLUGGED, Some("<unplugged>1</unplugged>")).map_err(|error| plain(&error))
        };
        killed.keep(&vm, Some("changed")).unwrap();
        killed.hand.with(Whom::Libvirtd, &vm, note).unwrap();
        assert_eq!(out(&mut killed), "1".parse().unwrap());
        static DIES: AtomicBool = AtomicBool::new(true);
        let dies = |part: &str| {
            if part == "kept-part" && DIES.swap(false, Ordering::Relaxed) {
                std::panic::resume_unwind(Box::new("as by kill -9"));
            }
        };
        crate::BETWEEN.set(dies).expect("nobody else here uses it");
        assert!(killed.keep(&vm, None).is_err());
        // (Who has looked before hears of what others changed when libvirt says so.)
        let mut next = LibvirtMachine::new("test:///default", patient());
        assert_eq!(kept(&mut next).as_deref(), Some("changed"));
        next.keep(&vm, None).unwrap();
        assert_eq!(kept(&mut next), None);
        assert!(out(&mut next).is_empty());
    }
}

//! Single faults, and what the whole daemon makes of them.

use corefit_core::machine::LeverKind;

use super::faulty::Fault;
use super::whole::{HARDWARE, HOSTS, Whole, configured};
use super::*;
use crate::manage::ManageArgs;
use crate::manage::daemon::Signals;
use crate::manage::keeper::{Note, Setting};
use crate::manage::log::Level;
use crate::manage::log::testing::said;

/// A daemon on the first of the hosts that goes by this configuration.
pub(super) fn ruled<'a>(args: &'a ManageArgs, dir: &'a Path, text: &str) -> Whole<'a> {
    let machine = Faulty::new(simulated(&format!("{HARDWARE}{}", HOSTS[0])));
    let mut whole = Whole::new(args, dir, machine);
    whole.configure(text);
    whole
}

/// Decides every 50 ms, and waits for nothing longer.
pub(super) const QUICK: &str =
    "metrics = \"off\"\ntell = false\n[policy]\ninterval_ms = 50\ndwell_ms = 50\nlever_ms = 50\n";

/// Nothing is decided but that the last VM has at most so many vCPUs.
pub(super) fn at_most(vcpus: u32) -> String {
    format!("{QUICK}size = \"none\"\n[[policy.vm]]\nname = \"vm3\"\nmax = {vcpus}\n")
}

#[test]
fn a_limit_of_a_rule_is_kept_and_put_back_once_nobody_wants_it_where_nothing_else_is_decided() {
    let dir = directory();
    let args = configured(dir.path());
    let nothing = &format!("{QUICK}size = \"none\"\n");
    let mut whole = ruled(&args, dir.path(), &at_most(2));
    whole.start(None);
    (0..20).for_each(|_| whole.step(None));
    let online = |whole: &Whole<'_>| whole.machine.0.borrow_mut().truth(3, Lever::Online);
    assert_eq!(online(&whole), Value::Vcpus(CpuSet::first(2)));
    assert_eq!(whole.machine.0.borrow().writes, BTreeMap::from([(LeverKind::Online, 1)]));
    whole.configure(nothing);
    whole.step(None);
    assert_eq!(online(&whole), Value::Vcpus(CpuSet::first(4)));
    // Who is left with another limit gets back what that allows, not what it has now.
    for (limit, vcpus) in [("max = 2", 2), ("max = 3", 3), ("min = 1", 4), ("max = 2", 2), ("max = 8", 4)] {
        whole.configure(&format!("{nothing}[[policy.vm]]\nname = \"vm3\"\n{limit}\n"));
        (0..5).for_each(|_| whole.step(None));
        assert_eq!(online(&whole), Value::Vcpus(CpuSet::first(vcpus)), "{limit}");
    }
}

#[test]
fn numbers_that_no_host_has_end_no_daemon_and_change_nothing() {
    let dir = directory();
    let args = configured(dir.path());
    let mut whole = ruled(&args, dir.path(), &at_most(2));
    whole.start(None);
    let online = |whole: &Whole<'_>| whole.machine.0.borrow_mut().truth(3, Lever::Online);
    let trouble = |whole: &Whole<'_>| whole.daemon.as_ref().unwrap().shown().trouble;
    whole.machine.0.borrow_mut().absurd = true;
    (0..20).for_each(|_| whole.step(None));
    assert_eq!(online(&whole), Value::Vcpus(CpuSet::first(4)));
    assert!(trouble(&whole).is_some_and(|why| why.contains("weight")), "{:?}", trouble(&whole));
    whole.machine.0.borrow_mut().absurd = false;
    (0..20).for_each(|_| whole.step(None));
    assert_eq!((online(&whole), trouble(&whole)), (Value::Vcpus(CpuSet::first(2)), None));
    assert_eq!(whole.end(None), Some(true));
    assert_eq!(online(&whole), Value::Vcpus(CpuSet::first(4)));
}

#[test]
fn a_guest_that_hangs_is_arbitrated_as_one_that_keeps_its_vcpus_and_named_until_it_answers() {
    let dir = directory();
    let args = configured(dir.path());
    let policy = "size = \"none\"\narbitrate = \"priority\"\nweigh = \"grants\"\n[[policy.vm]]\nname = \"vm0\"\npriority = 5\n\
                  [[policy.vm]]\nname = \"vm1\"\nexclude = true\n[[policy.vm]]\nname = \"vm2\"\nexclude = true\n";
    let mut whole = ruled(&args, dir.path(), &format!("{QUICK}{policy}"));
    whole.machine.0.borrow_mut().hung.insert(3);
    whole.start(None);
    let failure = format!("{} online vCPUs: no answer", whole.machine.0.borrow().id(3).0);
    let steps = |whole: &mut Whole<'_>, count: u32| {
        (0..count).for_each(|_| whole.step(None));
        let daemon = whole.daemon.as_ref().unwrap();
        let seen = daemon.shown().vms.into_iter().find(|vm| vm.name == "vm3").unwrap();
        (seen.not_sized, daemon.said_failure(&failure))
    };
    assert_eq!(steps(&mut whole, 40), (Some("no answer".into()), true));
    assert!(whole.machine.0.borrow().writes.contains_key(&LeverKind::Weight), "weights see to it");
    whole.machine.0.borrow_mut().heal();
    assert_eq!(steps(&mut whole, 300), (None, false), "if it fails again, that is said again");
    let of = |vm: u32| whole.machine.0.borrow_mut().truth(vm, Lever::Online);
    assert_ne!(of(3), Value::Vcpus(CpuSet::first(4)));
}

/// A full disk is no guest that does not answer.
#[test]
fn who_could_not_be_changed_as_nothing_could_be_written_down_is_not_left_out_of_anything() {
    let dir = directory();
    let args = configured(dir.path());
    let policy = format!("{QUICK}size = \"vcpu-bal\"\narbitrate = \"max-min\"\n");
    let mut whole = ruled(&args, dir.path(), &policy);
    whole.start(None);
    whole.step(None);
    disk(dir.path(), true);
    let lines = said(|| (0..600).for_each(|_| whole.step(None)));
    let failures = lines.iter().filter(|(_, line)| line.starts_with("not set vm=vm3 ")).count();
    assert_eq!(failures, 1, "{lines:?}");
    let vm = |whole: &Whole<'_>| {
        whole.daemon.as_ref().unwrap().shown().vms.into_iter().find(|vm| vm.name == "vm3").unwrap()
    };
    let seen = vm(&whole);
    assert!(seen.not_sized.is_none() && seen.granted.is_some() && seen.failures > 1, "{seen:?}");
    disk(dir.path(), false);
    (0..3).for_each(|_| whole.step(None));
    assert!(vm(&whole).changed.iter().any(|changed| changed.starts_with("online vCPUs")), "{:?}", vm(&whole));
}

/// To ask whether it answers is not to write what was wanted then.
#[test]
fn a_guest_that_failed_on_the_way_is_not_made_what_nobody_wants_any_more() {
    let dir = directory();
    let args = configured(dir.path());
    let mut whole = ruled(&args, dir.path(), &at_most(1));
    whole.machine.0.borrow_mut().halfway.insert(3);
    whole.start(None);
    let online = |whole: &Whole<'_>| whole.machine.0.borrow_mut().truth(3, Lever::Online);
    let three = Value::Vcpus(CpuSet::first(3));
    for _ in 0..20 {
        if online(&whole) != three {
            whole.step(None);
        }
    }
    assert_eq!(online(&whole), three);
    whole.machine.0.borrow_mut().heal();
    whole.configure(&at_most(4));
    for _ in 0..400 {
        whole.step(None);
        assert!(
            online(&whole) == three || online(&whole) == Value::Vcpus(CpuSet::first(4)),
            "{:?}",
            online(&whole)
        );
    }
    assert_eq!(online(&whole), Value::Vcpus(CpuSet::first(4)));
}

/// Lines of a VM's, without those of what programs there are told.
pub(super) fn of_vm3(lines: &[(Level, String)]) -> Vec<String> {
    let of_it = |line: &&(Level, String)| line.1.contains("vm=vm3 ") || line.1.contains("vm3: ");
    lines.iter().filter(of_it).map(|line| line.1.clone()).collect()
}

#[test]
fn a_guest_that_is_late_has_a_line_and_another_when_what_was_asked_of_it_has_come() {
    let dir = directory();
    let args = configured(dir.path());
    let text = at_most(2).replace("tell = false", "tell = true");
    let mut whole = ruled(&args, dir.path(), &text);
    whole.machine.0.borrow_mut().tardy.insert(3);
    whole.start(None);
    let vm = |whole: &Whole<'_>| {
        whole.daemon.as_ref().unwrap().shown().vms.into_iter().find(|vm| vm.name == "vm3").unwrap()
    };
    // It is asked again some times meanwhile.
    let lines = of_vm3(&said(|| (0..800).for_each(|_| whole.step(None))));
    let not: Vec<&String> = lines.iter().filter(|line| !line.starts_with("set ")).collect();
    assert!(not.len() == 1 && not[0].starts_with("not set vm=vm3 lever=\"online vCPUs\""), "{lines:?}");
    assert!(not[0].contains("no answer within 4 s"), "{lines:?}");
    let seen = vm(&whole);
    assert!(
        seen.not_sized.as_ref().is_some_and(|why| why.starts_with("its vCPUs may still change: ")),
        "{seen:?}"
    );
    assert_eq!(seen.failures, 0, "it may be done yet, and questions are no changes");
    let before = seen.actions;
    // It is late whatever else is said anew.
    whole.configure(&text);
    let mut machine = whole.machine.0.borrow_mut();
    machine.heal();
    machine.write(3, Lever::Online, &Value::Vcpus(CpuSet::first(2))).unwrap();
    drop(machine);
    let lines = of_vm3(&said(|| (0..400).for_each(|_| whole.step(None))));
    let late = "set vm=vm3 lever=\"online vCPUs\" to=\"vCPUs 0-1\" late=true";
    assert_eq!(lines.iter().filter(|line| *line == late).count(), 1, "{lines:?}");
    assert_eq!((vm(&whole).not_sized, vm(&whole).failures, vm(&whole).actions), (None, 0, before + 1));
}

#[test]
fn what_was_asked_of_a_late_guest_and_did_not_come_is_a_failure() {
    let dir = directory();
    let args = configured(dir.path());
    let mut whole = ruled(&args, dir.path(), &at_most(2));
    whole.machine.0.borrow_mut().tardy.insert(3);
    whole.start(None);
    (0..20).for_each(|_| whole.step(None));
    whole.machine.0.borrow_mut().heal();
    let lines = of_vm3(&said(|| (0..400).for_each(|_| whole.step(None))));
    assert!(lines[0].starts_with("asked again vm=vm3 lever=\"online vCPUs\" is=\"vCPUs 0-3\""), "{lines:?}");
    let seen = whole.daemon.as_ref().unwrap().shown().vms.into_iter().find(|vm| vm.name == "vm3").unwrap();
    assert_eq!((seen.actions, seen.failures), (1, 1), "{lines:?}");
}

#[test]
fn vcpus_that_somebody_else_set_are_no_failure_and_sized_again_once_the_configuration_is_read_again() {
    let dir = directory();
    let args = configured(dir.path());
    let mut whole = ruled(&args, dir.path(), &at_most(2));
    whole.start(None);
    (0..20).for_each(|_| whole.step(None));
    whole.machine.0.borrow_mut().write(3, Lever::Online, &Value::Vcpus(CpuSet::first(3))).unwrap();
    let lines = said(|| (0..100).for_each(|_| whole.step(None)));
    assert!(lines.iter().all(|(level, _)| *level == Level::Info), "{lines:?}");
    let seen = whole.daemon.as_ref().unwrap().shown().vms.into_iter().find(|vm| vm.name == "vm3").unwrap();
    assert_eq!(seen.failures, 0);
    let why = seen.not_sized.unwrap();
    assert!(why.contains("until the configuration is read again (SIGHUP)"), "{why}");
    let online = |whole: &Whole<'_>| whole.machine.0.borrow_mut().truth(3, Lever::Online);
    assert_eq!(online(&whole), Value::Vcpus(CpuSet::first(3)));
    let lines = said(|| {
        whole.configure(&at_most(2));
        (0..20).for_each(|_| whole.step(None));
    });
    assert!(lines.iter().all(|(level, _)| *level == Level::Info), "{lines:?}");
    assert_eq!(online(&whole), Value::Vcpus(CpuSet::first(2)));
    assert_eq!(whole.end(None), Some(true));
    assert_eq!(online(&whole), Value::Vcpus(CpuSet::first(3)), "as he made it");
}

#[test]
fn settings_that_end_with_their_vm_have_a_line() {
    let dir = directory();
    let args = configured(dir.path());
    let mut whole = ruled(&args, dir.path(), &at_most(2));
    whole.start(None);
    (0..10).for_each(|_| whole.step(None));
    whole.machine.0.borrow_mut().gone.insert(3);
    let lines = said(|| (0..3).for_each(|_| whole.step(None)));
    let ended: Vec<&String> =
        lines.iter().map(|line| &line.1).filter(|line| line.starts_with("ended ")).collect();
    assert_eq!(ended, ["ended vm=vm3 settings=1"]);
}

#[test]
fn what_is_tried_again_at_the_end_is_said_once() {
    let dir = directory();
    let args = configured(dir.path());
    let mut whole = ruled(&args, dir.path(), &at_most(2));
    whole.start(None);
    (0..10).for_each(|_| whole.step(None));
    whole.machine.0.borrow_mut().hung.insert(3);
    let lines = said(|| assert_eq!(whole.end(None), Some(false)));
    let restored = lines.iter().filter(|line| line.1.starts_with("restored ")).count();
    assert_eq!(restored, 1, "{lines:?}");
}

#[test]
fn who_never_could_look_does_not_end_as_if_all_were_well() {
    let dir = directory();
    let args = ManageArgs { time: Some(Duration::from_millis(200)), ..configured(dir.path()) };
    for (deaf, code) in [(true, std::process::ExitCode::FAILURE), (false, std::process::ExitCode::SUCCESS)] {
        let mut whole = ruled(&args, dir.path(), &at_most(2));
        whole.machine.0.borrow_mut().deaf = deaf;
        whole.start(None);
        let (_sender, signals) = Signals::none();
        let ended = whole.daemon.take().unwrap().run(&signals).unwrap();
        assert_eq!(format!("{ended:?}"), format!("{code:?}"));
    }
}

#[test]
fn a_vm_that_cannot_be_read_is_named_as_long_as_that_lasts() {
    let dir = directory();
    let args = configured(dir.path());
    let mut whole = ruled(&args, dir.path(), &at_most(4));
    whole.start(None);
    let mut said = |missed: bool| {
        whole.machine.0.borrow_mut().missed = missed.then_some(1).into_iter().collect();
        whole.step(None);
        let notes = whole.daemon.as_ref().unwrap().shown().notes;
        notes.into_iter().filter(|note| note.contains("cannot be read")).collect::<Vec<_>>()
    };
    assert_eq!(said(true), Vec::<String>::new(), "one that begins takes a moment");
    let note = "VM \"vm1\" cannot be read, so nothing of it is changed or put back: not asked for yet";
    assert_eq!([said(true), said(true)], [[note], [note]]);
    assert_eq!(said(false), Vec::<String>::new());
}

#[test]
fn two_hundred_vms_that_are_seen_at_once_are_sized_and_put_back() {
    let dir = directory();
    let args = configured(dir.path());
    let text = format!("{HARDWARE}[[vm]]\nname = \"a\"\ncount = 200\nvcpus = 4\nprogram = \"lu\"\n");
    let mut whole = Whole::new(&args, dir.path(), Faulty::new(simulated(&text)));
    whole.configure(&format!("{QUICK}size = \"vcpu-bal\"\n"));
    whole.machine.0.borrow_mut().missed = (0..200).collect();
    whole.start(None);
    whole.step(None);
    let smaller = |whole: &Whole<'_>| {
        let mut machine = whole.machine.0.borrow_mut();
        (0..200).filter(|vm| machine.truth(*vm, Lever::Online) != Value::Vcpus(CpuSet::first(4))).count()
    };
    assert_eq!(smaller(&whole), 0, "nobody is seen");
    whole.machine.0.borrow_mut().missed.clear();
    for _ in 0..40 {
        if smaller(&whole) < 200 {
            whole.step(None);
        }
    }
    assert!(smaller(&whole) > 150, "{}", smaller(&whole));
    assert_eq!(whole.end(None), Some(true));
    assert_eq!(smaller(&whole), 0);
}

#[test]
fn notes_of_the_status_are_of_what_is_so_now() {
    let dir = directory();
    let args = configured(dir.path());
    let policy = "metrics = \"off\"\ntell = false\n[policy]\ninterval_ms = 50\nsize = \"none\"\n[[policy.vm]]\nname = \"vm3\"\nmax = 4\n";
    let mut whole = ruled(&args, dir.path(), policy);
    whole.machine.0.borrow_mut().holding.insert(3);
    whole.start(None);
    let notes = |whole: &mut Whole<'_>| {
        (0..5).for_each(|_| whole.step(None));
        whole.daemon.as_ref().unwrap().shown().notes
    };
    assert_eq!(notes(&mut whole), ["policy: vm[0] \"vm3\": no VM has such a name now"]);
    whole.machine.0.borrow_mut().holding.clear();
    assert_eq!(notes(&mut whole), Vec::<String>::new());
}

#[test]
fn what_somebody_else_makes_of_a_setting_is_in_the_log_once() {
    let dir = directory();
    let args = configured(dir.path());
    let most = "metrics = \"off\"\ntell = false\n[policy]\ninterval_ms = 50\ndwell_ms = 50\nlever_ms = 600000\nsize = \"none\"\n[[policy.vm]]\nname = \"vm3\"\nmax = 2\n";
    let mut whole = ruled(&args, dir.path(), most);
    whole.start(None);
    (0..5).for_each(|_| whole.step(None));
    let mut made = |vcpus| {
        let value = Value::Vcpus(CpuSet::first(vcpus));
        whole.machine.0.borrow_mut().write(3, Lever::Online, &value).unwrap();
        let lines = said(|| (0..5).for_each(|_| whole.step(None)));
        let of_it = |line: &&(Level, String)| line.1.starts_with("changed by somebody else vm=vm3");
        lines.iter().filter(of_it).map(|line| line.1.clone()).collect::<Vec<_>>()
    };
    let one = made(3);
    assert!(one.len() == 1 && one[0].contains("from=0-1 to=0-2"), "{one:?}");
    assert_eq!(made(3), Vec::<String>::new(), "the same again");
}

#[test]
fn who_can_be_changed_no_more_gets_back_what_it_had() {
    let dir = directory();
    let args = configured(dir.path());
    let most = &at_most(1);
    let mut whole = ruled(&args, dir.path(), most);
    whole.start(None);
    (0..10).for_each(|_| whole.step(None));
    let online = |whole: &Whole<'_>| whole.machine.0.borrow_mut().truth(3, Lever::Online);
    assert_eq!(online(&whole), Value::Vcpus(CpuSet::first(1)));
    whole.machine.0.borrow_mut().lacking.insert(3);
    whole.step(None);
    assert_eq!(online(&whole), Value::Vcpus(CpuSet::first(4)));
    whole.configure(most);
    assert_eq!(whole.machine.0.borrow().asked_again, 1, "it may have it by now");
}

#[test]
fn what_a_vm_brought_changed_is_put_back_where_nobody_changes_that() {
    let dir = directory();
    let args = configured(dir.path());
    let nothing = "metrics = \"off\"\ntell = false\n[policy]\ninterval_ms = 50\nsize = \"none\"\n";
    let mut whole = ruled(&args, dir.path(), nothing);
    whole.start(None);
    whole.step(None);
    let changed = [
        (Lever::Weight, Value::Weight(Weight(120.0))),
        (Lever::HelperWeight, Value::Weight(Weight(10.0))),
        (Lever::Quota, limit(20_000)),
        (Lever::VcpuQuota(1), limit(20_000)),
        (Lever::Slice(1), Value::Slice(Some(500_000 + SLICE_MARK_NS))),
        (Lever::Online, Value::Vcpus(CpuSet::first(2))),
        (Lever::Affinity(1), Value::Pcpus("0".parse().unwrap())),
    ];
    let setting = |(lever, value): &(Lever, Value)| {
        let original = whole.expected[&(3, *lever)].clone();
        Setting { lever: *lever, original, wrote: vec![value.clone()] }
    };
    let note = Note { corefit: 1, settings: changed.iter().map(setting).collect() };
    let mut machine = whole.machine.0.borrow_mut();
    changed.iter().for_each(|(lever, value)| machine.write(3, *lever, value).unwrap());
    machine.kept.insert(3, serde_json::to_string(&note).unwrap());
    machine.befall(3, Fault::Moved);
    drop(machine);
    (0..5).for_each(|_| whole.step(None));
    let mut machine = whole.machine.0.borrow_mut();
    machine.touched.clear();
    check(&mut machine, &whole.expected).unwrap();
}

//! What the status shows of VMs.

use corefit_core::machine::{VmEstimate, estimate};

use super::daemons::{QUICK, at_most, ruled};
use super::whole::{HARDWARE, Whole, configured};
use super::*;
use crate::manage::ManageArgs;
use crate::manage::status::{Status, VmStatus};

/// One sleeps half of the time, so that the others can have more than they are entitled to.
const VMS: &str = "[[vm]]\nname = \"a\"\nvcpus = 4\nprogram = \"lu\"\n\
    [[vm]]\nname = \"b\"\nvcpus = 4\nprogram = \"hog\"\n\
    [[vm]]\nname = \"c\"\nvcpus = 4\nthreads = 1\nprogram = \"forever { compute 7ms sleep 8ms }\"\n\
    [[vm]]\nname = \"d\"\nvcpus = 4\nprogram = \"hog\"\n";

#[test]
fn the_status_has_the_numbers_that_its_last_two_looks_come_to() {
    let dir = directory();
    let args = configured(dir.path());
    let mut whole = Whole::new(&args, dir.path(), Faulty::new(simulated(&format!("{HARDWARE}{VMS}"))));
    whole.configure(&at_most(2));
    whole.start(None);
    (0..20).for_each(|_| whole.step(None));
    let before = whole.machine.observe().unwrap();
    whole.step(None);
    let after = whole.machine.observe().unwrap();
    whole.step(None);
    let (host, shown) = (estimate(&before, &after).unwrap(), whole.daemon.as_ref().unwrap().shown());
    let found =
        shown.vms.iter().map(|vm| (vm.name.clone(), [vm.entitled, vm.available, vm.used, vm.waiting]));
    let found: BTreeMap<_, _> = found.collect();
    let numbers = |vm: &VmEstimate| [vm.entitled, vm.available, vm.activity.used, vm.activity.waiting];
    assert_eq!(found, host.vms.iter().map(|vm| (vm.seen.name.clone(), numbers(vm))).collect());
    let differ = |numbers: &[Option<Cpus>; 4]| {
        (1..4).all(|end| numbers[end].is_some() && !numbers[..end].contains(&numbers[end]))
    };
    assert!(found.values().any(differ), "{found:?}");
    let vcpus = shown.vms.iter().map(|vm| (vm.vcpus, vm.online, vm.actions, vm.failures));
    let all = (Some(4), Some(4), 0, 0);
    assert_eq!(vcpus.collect::<Vec<_>>(), [all, all, all, (Some(4), Some(2), 1, 0)]);
}

#[test]
fn vms_that_rules_exclude_push_no_note_of_the_machine_or_of_a_rule_out_of_the_status() {
    let dir = directory();
    let args = configured(dir.path());
    let text = format!("{HARDWARE}[[vm]]\nname = \"a\"\ncount = 110\nvcpus = 4\nprogram = \"lu\"\n");
    let mut whole = Whole::new(&args, dir.path(), Faulty::new(simulated(&text)));
    let rules = "[[policy.vm]]\nname = \"*\"\nexclude = true\n[[policy.vm]]\nname = \"web\"\nmin = 1\n";
    whole.configure(&format!("{QUICK}{rules}"));
    whole.machine.0.borrow_mut().notes.push("the host's files cannot be read".into());
    whole.machine.0.borrow_mut().missed.insert(1);
    whole.start(None);
    (0..3).for_each(|_| whole.step(None));
    let shown = whole.daemon.as_ref().unwrap().shown();
    let excluded = |vm: &VmStatus| vm.left_alone.as_deref() == Some("its rule says exclude");
    assert!(shown.vms.iter().filter(|vm| excluded(vm)).count() > 100, "{:?}", shown.vms);
    assert_eq!(
        shown.notes,
        [
            "the host's files cannot be read",
            "VM \"vm1\" cannot be read, so nothing of it is changed or put back: not asked for yet",
            "policy: vm[1] \"web\": no VM has such a name now",
        ]
    );
}

/// A daemon that has taken vCPUs from the last VM, which nobody sees change by itself.
fn shrunk<'a>(args: &'a ManageArgs, dir: &'a Path) -> Whole<'a> {
    let mut whole = ruled(args, dir, &at_most(2));
    whole.start(None);
    (0..20).for_each(|_| whole.step(None));
    whole
}

fn shown(whole: &Whole<'_>) -> Status {
    whole.daemon.as_ref().unwrap().shown()
}

fn last_vm(whole: &Whole<'_>) -> Option<VmStatus> {
    shown(whole).vms.into_iter().find(|vm| vm.name == "vm3")
}

#[test]
fn what_an_earlier_run_left_is_shown_as_pending_though_the_machine_has_not_answered_yet() {
    let dir = directory();
    let args = configured(dir.path());
    let mut whole = shrunk(&args, dir.path());
    whole.daemon = None;
    whole.machine.0.borrow_mut().deaf = true;
    whole.start(None);
    for looks in 0..2 {
        let (steps, stepped) = (shown(&whole).steps, shown(&whole).stepped.is_some());
        assert_eq!((steps, stepped), (looks, looks > 0), "those that fail count");
        let vms = shown(&whole).vms;
        let [vm] = &vms[..] else { panic!("{looks}: {vms:?}") };
        assert_eq!((vm.name.as_str(), vm.vcpus, vm.online), ("vm3", None, None));
        let [setting] = &vm.settings[..] else { panic!("{looks}: {vm:?}") };
        assert!(setting.pending && setting.lever == "online vCPUs" && vm.changed.len() == 1, "{vm:?}");
        whole.step(None);
    }
    whole.machine.0.borrow_mut().heal();
    whole.step(None);
    let vms = shown(&whole).vms;
    assert!(vms.len() == 4 && vms.iter().all(|vm| vm.vcpus == Some(4)), "{vms:?}");
}

#[test]
fn a_vm_that_a_look_misses_keeps_what_is_changed_of_it_and_what_was_done_to_it_until_it_ends() {
    let dir = directory();
    let args = configured(dir.path());
    let mut whole = shrunk(&args, dir.path());
    let before = last_vm(&whole).unwrap();
    assert!(before.settings.len() == 1 && before.actions == 1 && before.used.is_some(), "{before:?}");
    whole.machine.0.borrow_mut().missed.insert(3);
    whole.step(None);
    let missed = VmStatus { used: None, available: None, entitled: None, waiting: None, ..before.clone() };
    let missed = VmStatus { vcpus: None, online: None, starves: None, work: None, ..missed };
    assert_eq!(last_vm(&whole), Some(missed));
    whole.machine.0.borrow_mut().missed.clear();
    whole.step(None);
    let again = last_vm(&whole).unwrap();
    assert_eq!((again.vcpus, again.settings, again.actions), (Some(4), before.settings, 1));
    whole.machine.0.borrow_mut().gone.insert(3);
    whole.step(None);
    assert_eq!(last_vm(&whole), None);
}

#[test]
fn while_the_machine_does_not_answer_nothing_is_shown_but_what_is_changed_and_what_the_daemon_itself_says() {
    let dir = directory();
    let args = configured(dir.path());
    // What somebody sets is not found out by setting it again.
    let once = at_most(2).replace("lever_ms = 50\n", "lever_ms = 600000\n");
    let mut whole = ruled(&args, dir.path(), &once);
    whole.start(None);
    (0..20).for_each(|_| whole.step(None));
    whole.machine.0.borrow_mut().notes.push("the host's files cannot be read".into());
    whole.machine.0.borrow_mut().write(3, Lever::Online, &Value::Vcpus(CpuSet::first(3))).unwrap();
    whole.step(None);
    let before = last_vm(&whole).unwrap();
    assert_eq!(before.settings[0].changed_to.as_deref(), Some("0-2"));
    assert_eq!(shown(&whole).notes.len(), 1);
    whole.machine.0.borrow_mut().deaf = true;
    whole.step(None);
    let now = shown(&whole);
    assert!(now.trouble.is_some() && now.notes.is_empty() && now.vms.len() == 4, "{now:?}");
    for vm in &now.vms {
        assert_eq!((vm.vcpus, vm.online, vm.used, vm.entitled), (None, None, None, None));
    }
    let after = last_vm(&whole).unwrap();
    assert_eq!((after.settings, after.changed), (before.settings, before.changed));
}

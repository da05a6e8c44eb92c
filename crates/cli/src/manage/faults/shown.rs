//! What the status shows of VMs.

use corefit_core::machine::{VmEstimate, estimate};

use super::daemons::{QUICK, at_most};
use super::whole::{HARDWARE, Whole, configured};
use super::*;
use crate::manage::status::VmStatus;

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
    let all = (4, Some(4), 0, 0);
    assert_eq!(vcpus.collect::<Vec<_>>(), [all, all, all, (4, Some(2), 1, 0)]);
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

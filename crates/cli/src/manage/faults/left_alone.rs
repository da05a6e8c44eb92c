//! What the whole daemon leaves alone: what the kernel does itself, and guests that do nothing.

use corefit_core::machine::LeverKind;
use corefit_linux::Root;

use super::daemons::{QUICK, at_most, of_vm3, ruled};
use super::stories::{begun, weighing};
use super::whole::{Whole, configured};
use super::*;
use crate::manage::log::testing::said;

#[test]
fn what_the_kernel_begins_to_do_itself_is_put_back_and_planned_no_more() {
    let dir = directory();
    let args = configured(dir.path());
    let policy = "size = \"none\"\narbitrate = \"priority\"\nweigh = \"grants\"\n[[policy.vm]]\nname = \"vm0\"\npriority = 5\n";
    let mut whole = ruled(&args, dir.path(), &format!("{QUICK}{policy}"));
    // Weights see to it where vCPUs cannot.
    whole.machine.0.borrow_mut().lacking.extend([0, 1, 2, 3]);
    whole.start(None);
    (0..40).for_each(|_| whole.step(None));
    let weight = |whole: &Whole<'_>| whole.machine.0.borrow_mut().truth(0, Lever::Weight);
    let first = whole.machine.0.borrow().first(0, Lever::Weight);
    assert_ne!(weight(&whole), first);
    let kernel = tempfile::tempdir().unwrap();
    let sched_ext = kernel.path().join("sys/kernel/sched_ext");
    std::fs::create_dir_all(&sched_ext).unwrap();
    std::fs::write(sched_ext.join("state"), "enabled\n").unwrap();
    whole.daemon.as_mut().unwrap().runs_on(Root::at(kernel.path()));
    whole.step(None);
    assert_eq!(weight(&whole), first);
    let writes = |whole: &Whole<'_>| whole.machine.0.borrow().writes[&LeverKind::Weight];
    let written = writes(&whole);
    (0..100).for_each(|_| whole.step(None));
    assert_eq!(writes(&whole), written);
    let notes = whole.daemon.as_ref().unwrap().shown().notes;
    assert!(notes[0].starts_with("left to the kernel: sched_ext"), "{notes:?}");
}

#[test]
fn a_guest_that_says_yes_and_does_nothing_has_one_line_until_it_does_it() {
    let dir = directory();
    let args = configured(dir.path());
    let mut whole = ruled(&args, dir.path(), &at_most(2));
    whole.start(None);
    let mut lines = |lies: bool, steps: u32| {
        whole.machine.0.borrow_mut().heal();
        whole.machine.0.borrow_mut().lying.extend(lies.then_some(3));
        let lines = of_vm3(&said(|| (0..steps).for_each(|_| whole.step(None))));
        let vms = whole.daemon.as_ref().unwrap().shown().vms;
        (lines, vms.into_iter().find(|vm| vm.name == "vm3").unwrap().failures)
    };
    let (said, failures) = lines(true, 1000);
    assert!(said.len() == 1 && said[0].starts_with("set in part vm=vm3 "), "{said:?}");
    assert!((2..5).contains(&failures), "50 s, and it rests: {failures}");
    let (said, again) = lines(false, 1000);
    assert!(said.len() == 1 && said[0].starts_with("set vm=vm3 "), "{said:?}");
    assert_eq!(again, failures);
}

#[test]
fn of_a_vm_whose_owner_said_something_that_the_look_could_not_ask_nothing_new_is_changed_before_the_next_one()
{
    let (_dir, mut story) = begun();
    let plan = |story: &Story| {
        [(1, 200), (2, 200)].map(|(vm, weight)| story.action(vm, Lever::Weight, weighing(weight)))
    };
    story.machine.unasked.insert(1);
    let actions = plan(&story);
    let outcomes = story.apply(&actions);
    assert!(
        matches!(outcomes[0].result, Err(MachineError::Untried(_))) && outcomes[1].result.is_ok(),
        "{outcomes:?}"
    );
    let keeper = story.keeper.as_ref().unwrap();
    assert!(keeper.put_off(&actions[0]), "it comes first in the next batch");
    assert_eq!((keeper.entries().len(), story.machine.touched.contains(&1)), (1, false));
    story.machine.unasked.clear();
    assert!(story.apply(&actions).iter().all(|outcome| outcome.result.is_ok()));
    assert_eq!(story.machine.truth(1, Lever::Weight), weighing(200));
    // What was changed is put back all the same.
    story.machine.unasked.insert(1);
    story.end();
    story.check().unwrap();
}

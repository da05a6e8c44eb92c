//! Who puts back and is no daemon, while a VM that came from another host cannot be read.

use std::cell::RefCell;
use std::rc::Rc;

use super::stories::{begun, first, weighing};
use super::whole::Shared;
use super::*;
use crate::machine::MachineArg;
use crate::manage::Held;
use crate::manage::restore::Work;

/// A host where nothing is known of VM 1, which came with a changed weight and is missed by looks; and what it is to be.
fn came() -> (Shared, Expected) {
    let (_dir, mut story) = begun();
    story.step(&[story.action(1, Lever::Weight, weighing(200))], None);
    assert!(story.machine.kept.contains_key(&1));
    story.machine.missed.insert(1);
    (Shared(Rc::new(RefCell::new(story.machine))), story.expected)
}

/// Some tries of `corefit restore`, and how often it paused; `pause` is told that.
fn tried(machine: &Shared, tries: impl Into<Option<u32>>, pause: impl Fn(u32)) -> (Work, u32) {
    let dir = directory();
    let mut work = Work::new(MachineArg::named("faulty"), dir.path().into(), Boot::named("boot"));
    work.on = Some(Box::new(machine.clone()));
    let mut pauses = 0;
    let done = work.tries(tries.into(), || {
        pauses += 1;
        pause(pauses);
    });
    done.unwrap();
    (work, pauses)
}

#[test]
fn restore_waits_for_a_vm_that_cannot_be_read_yet_and_puts_back_what_it_carries() {
    let (machine, expected) = came();
    let (work, pauses) = tried(&machine, 15, |pauses| {
        if pauses == 2 {
            machine.0.borrow_mut().missed.clear();
        }
    });
    assert_eq!((pauses, work.restored.back, &work.restored.pending), (2, 1, &vec![]));
    assert_eq!(machine.0.borrow().asked_again, 2, "it is one machine, whose knowledge grows");
    check(&mut machine.0.borrow_mut(), &expected).unwrap();
}

/// Its guest answers, and may let go of a vCPU for longer than tries take.
#[test]
fn restore_waits_for_a_guest_that_may_yet_let_go_of_a_vcpu_until_it_may_no_more_or_as_often_as_it_is_told() {
    let may_let_go = |of: Duration| {
        let (_dir, mut story) = begun();
        story.step(&[story.action(1, Lever::Online, first(2))], None);
        story.machine.losing.insert(1);
        story.machine.letting_go.insert(1, of);
        (Shared(Rc::new(RefCell::new(story.machine))), story.expected)
    };
    let minute = Duration::from_secs(60);
    let (machine, expected) = may_let_go(minute);
    let (work, pauses) = tried(&machine, None, |pauses| {
        if pauses == 25 {
            (machine.0.borrow_mut().losing, machine.0.borrow_mut().letting_go) = Default::default();
        }
    });
    assert_eq!((pauses, work.restored.back, &work.restored.pending), (25, 1, &vec![]));
    check(&mut machine.0.borrow_mut(), &expected).unwrap();
    let (work, pauses) = tried(&may_let_go(minute).0, 15, |_| {});
    assert_eq!((pauses, work.restored.pending.len()), (14, 1), "{:?}", work.restored.pending);
    // Whatever else its guest is late with is not waited for any longer.
    let (machine, _) = may_let_go(minute);
    let (_, pauses) = tried(&machine, None, |pauses| {
        if pauses == 20 {
            machine.0.borrow_mut().letting_go.clear();
        }
    });
    assert_eq!(pauses, 20);
    // Nor is one that begins anew each time.
    let (work, pauses) = tried(&may_let_go(Duration::ZERO).0, None, |pauses| {
        if pauses > 14 {
            std::thread::sleep(minute / 300);
        }
    });
    assert!(pauses > 14 && work.restored.pending.len() == 1, "{pauses}");
}

#[test]
fn a_vm_that_cannot_be_read_at_all_is_named_as_pending_after_the_last_try() {
    let (machine, _) = came();
    let (work, pauses) = tried(&machine, 3, |_| {});
    assert_eq!((pauses, work.restored.back, work.restored.pending.len()), (2, 0, 1));
    let said = &work.restored.pending[0];
    assert!(said.contains("VM \"vm1\" could not be read") && said.contains("not asked for yet"), "{said}");
    assert!(machine.0.borrow().kept.contains_key(&1));
}

#[test]
fn where_all_vms_are_read_and_carry_nothing_one_try_is_enough() {
    let (_dir, story) = begun();
    let machine = Shared(Rc::new(RefCell::new(story.machine)));
    let (work, pauses) = tried(&machine, 15, |_| {});
    assert_eq!((pauses, work.restored), (0, Default::default()));
}

#[test]
fn what_a_vm_brought_that_is_read_late_is_not_taken_for_what_was_before() {
    let (machine, expected) = came();
    let dir = directory();
    let journal = Journal::open(dir.path(), "faulty", &Boot::named("boot")).unwrap();
    let mut held = Held::on(Box::new(machine.clone()), journal).unwrap();
    let vm = machine.0.borrow().id(1);
    let why = Why::Available { available: Cpus(1.0) };
    let (name, lever, to) = ("vm1".into(), Lever::Weight, weighing(300));
    let actions = [Action { vm, name, lever, from: None, to, why }];
    let before = machine.0.borrow_mut().truth(1, Lever::Weight);
    let refused = held.change(&actions).unwrap_err().to_string();
    assert!(refused.contains("nothing is changed: VM \"vm1\" could not be read"), "{refused}");
    assert_eq!(machine.0.borrow_mut().truth(1, Lever::Weight), before);
    machine.0.borrow_mut().missed.clear();
    held.change(&actions).unwrap();
    assert_eq!(machine.0.borrow_mut().truth(1, Lever::Weight), weighing(300));
    drop(held);
    check(&mut machine.0.borrow_mut(), &expected).unwrap();
}

/// As where no file can be opened any more while a look lists groups.
#[test]
fn a_group_that_is_only_not_listed_and_not_read_has_not_ended() {
    let (dir, mut story) = begun();
    story.step(&[story.action(1, Lever::Weight, weighing(200))], None);
    story.machine.unlisted.insert(1);
    // Whoever goes on with others keeps what it was, and so does whoever puts back.
    story.step(&[], None);
    assert_eq!(story.keeper.as_ref().unwrap().entries().len(), 1);
    story.keeper = None;
    let journal = Journal::open(dir.path(), "faulty", &Boot::named("boot")).unwrap();
    let mut keeper = Keeper::new(journal, LONG);
    let snapshot = story.machine.observe().unwrap();
    let restored = keeper.restore(&mut story.machine, &snapshot);
    assert_eq!((restored.ended, restored.pending.len(), keeper.entries().len()), (0, 1, 1), "{restored:?}");
    assert!(restored.waits_for.is_some(), "it may be read the next time");
    drop(keeper);
    story.machine.unlisted.clear();
    story.end();
    story.check().unwrap();
}

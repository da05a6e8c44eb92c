//! vCPUs that guests took offline, whose agents do not say any more which are.

use super::faulty::Fault;
use super::stories::{begun, changed, first, weighing};
use super::*;
use crate::manage::journal::testing::sized;

/// An administrator may forbid the commands: then all that are plugged in count, as of a guest that was never asked.
#[test]
fn vcpus_that_a_guest_took_offline_are_known_to_the_next_daemon_though_its_agent_does_not_say_which_are_any_more()
 {
    let (dir, mut story) = changed();
    assert_eq!(story.machine.truth(1, Lever::Online), first(1));
    story.keeper = None;
    // The journal says it, too.
    story.machine.kept.clear();
    story.machine.forbidding.insert(1);
    for pending in [1, 1, 0] {
        story.machine.by_guests.clear();
        let journal = Journal::open(dir.path(), "faulty", &Boot::named("boot")).unwrap();
        let mut keeper = Keeper::new(journal, LONG);
        let snapshot = story.machine.observe().unwrap();
        let restored = keeper.restore(&mut story.machine, &snapshot);
        assert_eq!((restored.pending.len(), keeper.entries().len()), (pending, pending), "{restored:?}");
        if restored.back == 0 {
            story.machine.forbidding.clear();
        }
    }
    story.check().unwrap();
}

#[test]
fn vcpus_that_a_guest_took_offline_are_known_where_its_vm_goes() {
    let (dir, mut story) = changed();
    story.machine.befall(1, Fault::Moved);
    story.keeper = None;
    std::fs::remove_file(dir.path().join("journal")).unwrap();
    story.machine.forbidding.insert(1);
    story.start(None);
    assert!(story.keeper.as_ref().unwrap().entries_of(&story.machine.id(1)).count() == 1);
    assert_eq!(story.machine.truth(1, Lever::Online), first(1));
    story.machine.forbidding.clear();
    story.end();
    story.check().unwrap();
}

#[test]
fn whose_guest_took_vcpus_offline_is_found_without_asking_of_all_others() {
    let looked_for = |vms: u32| {
        let (_dir, mut story) = begun();
        let plan: Vec<Action> = (0..vms).map(|vm| story.action(vm, Lever::Online, first(2))).collect();
        story.step(&plan, None);
        let more: Vec<Action> = (0..vms).map(|vm| story.action(vm, Lever::Weight, weighing(200))).collect();
        let before = sized();
        story.apply(&more);
        let looked_for = sized() - before;
        story.end();
        story.check().unwrap();
        looked_for
    };
    let (one, all) = (looked_for(1), looked_for(MANAGED));
    assert!(one > 0 && all <= MANAGED * one, "{one} for one VM, {all} for {MANAGED}");
}

/// Where vCPUs are plugged out, one that came late may go though all were back.
#[test]
fn a_vcpu_that_a_guest_may_yet_let_go_is_waited_for() {
    let (_dir, mut story) = changed();
    story.machine.losing.insert(1);
    let restore = |story: &mut Story| {
        let snapshot = story.machine.observe().unwrap();
        story.keeper.as_mut().unwrap().restore(&mut story.machine, &snapshot).pending.len()
    };
    assert_eq!((restore(&mut story), restore(&mut story)), (1, 1));
    assert_eq!(story.machine.truth(1, Lever::Online), first(VCPUS));
    story.machine.write(1, Lever::Online, &first(3)).unwrap();
    story.machine.losing.clear();
    assert_eq!(restore(&mut story), 0);
    story.end();
    story.check().unwrap();
}

/// A guest that was asked for one vCPU, and for so many again before it let go of any: it may do so yet.
fn late(again: u32) -> (tempfile::TempDir, Story) {
    let (dir, mut story) = begun();
    story.step(&[story.action(1, Lever::Online, first(again))], None);
    story.machine.losing.insert(1);
    story.machine.letting_go.insert(1, LONG);
    for vcpus in [1, again] {
        story.apply(&[story.action(1, Lever::Online, first(vcpus))]);
        assert_eq!(story.machine.truth(1, Lever::Online), first(vcpus));
    }
    (dir, story)
}

/// Which of the settings in the journal are pending.
fn pending(story: &Story) -> Vec<bool> {
    story.keeper.as_ref().unwrap().entries().iter().map(|entry| entry.pending).collect()
}

/// The same where the number grows again before it goes, to what it was or not.
#[test]
fn a_vcpu_that_a_guest_may_yet_let_go_is_ours_though_all_that_are_wanted_are_there_again() {
    for again in [VCPUS, VCPUS - 1] {
        let (_dir, mut story) = late(again);
        let pending = |story: &mut Story| {
            story.step(&[], None);
            pending(story)
        };
        assert_eq!([pending(&mut story), pending(&mut story)], [[true], [true]], "{again}");
        // It lets go of one.
        let left = Value::Vcpus("0,2".parse().unwrap());
        story.machine.write(1, Lever::Online, &left).unwrap();
        assert_eq!(pending(&mut story), [true]);
        // Once it may let go of no more, what has come is no more on its way.
        story.machine.heal();
        story.machine.letting_go.clear();
        story.apply(&[story.action(1, Lever::Online, first(again))]);
        let done = if again == VCPUS { vec![] } else { vec![false] };
        assert_eq!((pending(&mut story), story.machine.truth(1, Lever::Online)), (done, first(again)));
        story.end();
        story.check().unwrap();
    }
}

/// Who comes after a kill does not know how long a guest may do so, before he asks it for something himself.
#[test]
fn a_vcpu_that_a_guest_may_yet_let_go_is_waited_for_by_who_comes_after_a_kill_though_all_are_there() {
    for (again, carries) in [(VCPUS, true), (VCPUS - 1, true), (VCPUS, false)] {
        let (_dir, mut story) = late(again);
        story.keeper = None;
        story.machine.letting_go.clear();
        // (The journal says it, too.)
        story.machine.kept.retain(|_, _| carries);
        story.start(None);
        assert_eq!(pending(&story), [true], "{again}");
        // It lets go of one.
        story.machine.write(1, Lever::Online, &Value::Vcpus("0,2".parse().unwrap())).unwrap();
        story.machine.heal();
        story.end();
        story.check().unwrap();
        assert_eq!(story.machine.truth(1, Lever::Online), first(VCPUS), "{again}");
    }
}

/// Nor does who finds its VM elsewhere.
#[test]
fn a_vcpu_that_a_guest_may_yet_let_go_is_waited_for_where_its_vm_goes_though_all_are_there() {
    for again in [VCPUS, VCPUS - 1] {
        let (_dir, mut story) = late(again);
        story.machine.befall(1, Fault::Moved);
        story.machine.letting_go.clear();
        story.step(&[], None);
        assert_eq!(pending(&story), [true], "{again}");
        // It lets go of one.
        story.machine.write(1, Lever::Online, &Value::Vcpus("0,2".parse().unwrap())).unwrap();
        story.machine.heal();
        story.end();
        story.check().unwrap();
    }
}

/// Libvirtd refuses what has come by itself meanwhile.
#[test]
fn a_vcpu_that_a_guest_may_yet_let_go_is_ours_though_the_last_change_was_refused() {
    let (_dir, mut story) = late(VCPUS);
    story.machine.denied.insert(1);
    story.machine.soon = Some((2, Fault::Resized, 1));
    story.apply(&[story.action(1, Lever::Online, first(3))]);
    assert_eq!((story.machine.truth(1, Lever::Online), pending(&story)), (first(3), vec![true]));
    // It lets go of another one.
    story.machine.write(1, Lever::Online, &Value::Vcpus("0,2".parse().unwrap())).unwrap();
    story.machine.letting_go.clear();
    story.end();
    story.check().unwrap();
}

/// One that had fewer, and lets go of none of the others at first when it is put back.
#[test]
fn vcpus_that_a_guest_may_yet_let_go_are_ours_though_only_putting_back_asked_for_them() {
    let (_dir, mut story) = begun();
    story.machine.write(1, Lever::Online, &first(1)).unwrap();
    story.expected.insert((1, Lever::Online), first(1));
    story.step(&[story.action(1, Lever::Online, first(VCPUS))], None);
    story.keeper = None;
    story.machine.lying.insert(1);
    story.start(None);
    let snapshot = story.machine.observe().unwrap();
    story.keeper.as_mut().unwrap().adopt(&mut story.machine, &snapshot);
    assert_eq!(pending(&story), [true]);
    // It lets go of one.
    story.machine.write(1, Lever::Online, &first(3)).unwrap();
    story.end();
    story.check().unwrap();
}

/// For a minute.
#[test]
fn what_a_guest_did_not_let_go_of_in_the_minute_after_its_vm_came_it_keeps() {
    for again in [VCPUS, VCPUS - 1] {
        let (_dir, mut story) = late(again);
        story.machine.befall(1, Fault::Moved);
        story.machine.letting_go.clear();
        story.step(&[], None);
        story.now = story.now + Duration::from_secs(55);
        story.step(&[], None);
        assert_eq!(pending(&story), [true], "{again}");
        story.now = story.now + Duration::from_secs(6);
        for _ in 0..2 {
            story.step(&[], None);
        }
        let ours = if again == VCPUS { vec![] } else { vec![false] };
        assert_eq!(
            pending(&story),
            ours,
            "{again}: nothing is on its way, and all that are there are as before"
        );
        // Whoever makes it fewer from now on is not undone.
        stands(story, VCPUS - 2);
    }
}

/// The same of one that was asked here.
#[test]
fn what_a_guest_did_not_let_go_of_in_time_it_keeps() {
    for again in [VCPUS, VCPUS - 1] {
        let (_dir, mut story) = late(again);
        story.step(&[], None);
        assert_eq!(pending(&story), [true], "{again}");
        story.machine.heal();
        story.machine.letting_go.clear();
        (0..2).for_each(|_| story.step(&[], None));
        let ours = if again == VCPUS { vec![] } else { vec![false] };
        assert_eq!(pending(&story), ours, "{again}: nothing is on its way");
        stands(story, VCPUS - 2);
    }
}

/// It had let go of all that it was ever asked for: nothing is on its way, though libvirtd said nothing of that in time.
#[test]
fn what_somebody_makes_of_vcpus_that_went_though_that_was_not_said_in_time_stands() {
    for looks in 0..2 {
        let (_dir, mut story) = begun();
        story.machine.letting_go.insert(1, LONG);
        story.machine.losing.extend((looks == 0).then_some(1));
        story.machine.lying.extend((looks > 0).then_some(1));
        story.apply(&[story.action(1, Lever::Online, first(1))]);
        story.machine.heal();
        story.machine.write(1, Lever::Online, &first(1)).unwrap();
        (0..looks).for_each(|_| story.step(&[], None));
        stands(story, VCPUS - 2);
    }
}

/// Of what is asked for elsewhere nothing may ever come.
#[test]
fn a_guest_that_did_nothing_in_the_minute_after_its_vm_came_does_nothing_more() {
    let (_dir, mut story) = begun();
    story.machine.lying.insert(1);
    story.step(&[story.action(1, Lever::Online, first(1))], None);
    story.machine.heal();
    story.machine.befall(1, Fault::Moved);
    for pends in [true, false] {
        (0..2).for_each(|_| story.step(&[], None));
        assert_eq!(pending(&story).contains(&true), pends);
        story.now = story.now + Duration::from_secs(61);
    }
    stands(story, VCPUS - 2);
}

/// What it was asked for here is known, however long ago another run asked.
#[test]
fn what_a_guest_does_late_of_what_this_run_asked_is_ours_a_minute_after_another_run() {
    for tardy in [false, true] {
        let (_dir, mut story) = begun();
        story.step(&[story.action(1, Lever::Online, first(3))], None);
        story.keeper = None;
        story.start(None);
        story.step(&[], None);
        story.now = story.now + Duration::from_secs(61);
        story.machine.lying.extend((!tardy).then_some(1));
        story.machine.tardy.extend(tardy.then_some(1));
        story.apply(&[story.action(1, Lever::Online, first(1))]);
        story.machine.heal();
        (0..2).for_each(|_| story.step(&[], None));
        assert_eq!(pending(&story), [true], "{tardy}");
        story.machine.write(1, Lever::Online, &first(1)).unwrap();
        story.end();
        story.check().unwrap();
    }
}

/// Somebody makes so many vCPUs of those of the VM, and a kill follows: that is not undone.
fn stands(mut story: Story, vcpus: u32) {
    let his = first(vcpus);
    story.machine.write(1, Lever::Online, &his).unwrap();
    story.expected.insert((1, Lever::Online), his);
    story.keeper = None;
    story.end();
    story.check().unwrap();
}

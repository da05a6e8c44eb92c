//! A configuration that is read again: while the machine does not answer, and after somebody changed something.

use corefit_core::machine::Fixed;

use super::daemons::{QUICK, at_most, ruled};
use super::stories::{begun, first, weighing};
use super::whole::{Whole, configured};
use super::*;
use crate::manage::log::Level;
use crate::manage::log::testing::said;

#[test]
fn what_is_reserved_and_is_not_there_is_refused_at_the_first_look_where_the_machine_did_not_answer_before() {
    let dir = directory();
    let args = configured(dir.path());
    let reserves = |pcpus: &str| format!("{QUICK}size = \"none\"\nreserved = \"{pcpus}\"\n");
    let mut whole = ruled(&args, dir.path(), &reserves("0-9"));
    whole.machine.0.borrow_mut().deaf = true;
    whole.start(None);
    let look = |whole: &mut Whole<'_>| {
        whole.step(None);
        assert_eq!(whole.daemon.as_ref().unwrap().shown().config_refused, None, "nobody knows yet");
        whole.machine.0.borrow_mut().heal();
        let lines = said(|| (0..3).for_each(|_| whole.step(None)));
        let shown = whole.daemon.as_ref().unwrap().shown();
        // That it does nothing without `place` is a note of who goes by it.
        let reserved = shown.notes.iter().any(|note| note.contains("reserved counts only"));
        (shown.config_refused, lines.iter().filter(|line| line.0 == Level::Error).count(), reserved)
    };
    let refused = |place: &str, look: (Option<String>, usize, bool)| {
        let why = look.0.unwrap();
        assert!(why.contains("nothing is reserved") && why.contains(place), "{why}");
        assert_eq!((look.1, look.2), (1, false));
    };
    refused("line 8, key policy.reserved: the host has no pCPU 4-9", look(&mut whole));
    // The same of one that is read again meanwhile, by its own lines.
    whole.machine.0.borrow_mut().deaf = true;
    whole.configure(&format!("\n{}", reserves("5")));
    refused("line 9, key policy.reserved: the host has no pCPU 5", look(&mut whole));
    whole.machine.0.borrow_mut().deaf = true;
    whole.configure(&reserves("0"));
    assert_eq!(look(&mut whole), (None, 0, true));
}

/// vCPUs that somebody set are in the log as soon as a look shows them, long before they are to be changed again.
#[test]
fn vcpus_that_somebody_set_are_sized_anew_once_the_configuration_was_read_again_whoever_found_them_until_then()
 {
    let dir = directory();
    let args = configured(dir.path());
    let rarely = &at_most(1).replace("lever_ms = 50", "lever_ms = 2000");
    let mut whole = ruled(&args, dir.path(), rarely);
    whole.start(None);
    (0..5).for_each(|_| whole.step(None));
    let online = |whole: &Whole<'_>| whole.machine.0.borrow_mut().truth(3, Lever::Online);
    let vcpus = |count| Value::Vcpus(CpuSet::first(count));
    assert_eq!(online(&whole), vcpus(1));
    whole.machine.0.borrow_mut().write(3, Lever::Online, &vcpus(3)).unwrap();
    let by_somebody = |whole: &mut Whole<'_>, steps: u32| {
        let lines = said(|| (0..steps).for_each(|_| whole.step(None)));
        let is = |line: &&(Level, String)| {
            ["changed by", "left alone"].iter().any(|what| line.1.starts_with(what))
        };
        lines.iter().filter(is).count()
    };
    assert_eq!(by_somebody(&mut whole, 5), 1, "it is said");
    whole.configure(rarely);
    assert_eq!(by_somebody(&mut whole, 100), 0, "it is left alone no more");
    assert_eq!(online(&whole), vcpus(1));
    // What he makes it now is his again.
    whole.machine.0.borrow_mut().write(3, Lever::Online, &vcpus(2)).unwrap();
    assert_eq!(by_somebody(&mut whole, 100), 1);
    assert_eq!((online(&whole), whole.end(None)), (vcpus(2), Some(true)));
    assert_eq!(online(&whole), vcpus(2));
}

/// Of a VM without agent libvirt tells how many there are.
#[test]
fn vcpus_that_somebody_plugged_before_the_configuration_was_read_again_are_plugged_out_anew() {
    let (_dir, mut story) = begun();
    let plan = [story.action(1, Lever::Online, first(1))];
    story.step(&plan, None);
    story.machine.write(1, Lever::Online, &first(3)).unwrap();
    let (mut seen, id) = (story.machine.observe().unwrap(), story.machine.id(1));
    let vm = seen.vms.iter_mut().find(|vm| vm.id == id).unwrap();
    vm.guest = None;
    vm.fixed.push(Fixed { lever: LeverKind::Told, reason: "it has no guest agent".into() });
    let keeper = story.keeper.as_mut().unwrap();
    keeper.try_again();
    keeper.find_anew(&mut story.machine, &seen);
    let result = story.apply(&plan).remove(0).result;
    assert!(result.is_ok(), "{result:?}");
    story.expected.insert((1, Lever::Online), first(3));
    story.end();
    story.check().unwrap();
}

/// A look may show what its guest said some seconds ago. Where there is no time for all, it is first who is shown to be changed.
#[test]
fn vcpus_that_somebody_set_just_before_the_configuration_was_read_again_are_sized_anew() {
    for (shown, late, asked) in [(false, false, &[0, 1][..]), (true, true, &[1, 0]), (false, true, &[0])] {
        let (_dir, mut story) = begun();
        let plan = [1, 0].map(|vm| story.action(vm, Lever::Online, first(1)));
        story.step(&plan, None);
        if late {
            // It did not answer when it was asked last.
            story.machine.hung.insert(1);
            story.apply(&[story.action(1, Lever::Online, first(2))]);
            story.machine.heal();
        }
        let before = story.machine.observe().unwrap();
        story.machine.write(1, Lever::Online, &first(3)).unwrap();
        let seen = if shown { story.machine.observe().unwrap() } else { before };
        let keeper = story.keeper.as_mut().unwrap();
        keeper.try_again();
        story.machine.asked.clear();
        keeper.find_anew(&mut story.machine, &seen);
        assert_eq!(story.machine.asked, asked);
        let result = story.apply(&plan).remove(0).result;
        assert_eq!(result.is_ok(), asked.contains(&1), "{result:?}");
        story.expected.insert((1, Lever::Online), first(3));
        story.end();
        story.check().unwrap();
    }
}

/// Minutes may pass till the next look.
#[test]
fn what_somebody_sets_after_the_first_look_with_a_configuration_that_was_read_again_failed_is_his() {
    let dir = directory();
    let args = configured(dir.path());
    let mut whole = ruled(&args, dir.path(), &at_most(1));
    whole.start(None);
    (0..5).for_each(|_| whole.step(None));
    whole.machine.0.borrow_mut().deaf = true;
    whole.configure(&at_most(1));
    whole.step(None);
    whole.machine.0.borrow_mut().heal();
    let his = first(2);
    whole.machine.0.borrow_mut().write(3, Lever::Online, &his).unwrap();
    let lines = said(|| (0..5).for_each(|_| whole.step(None)));
    let online = whole.machine.0.borrow_mut().truth(3, Lever::Online);
    let is_said = |line: &(Level, String)| line.1.starts_with("changed by somebody else vm=vm3 ");
    assert!(online == his && lines.iter().any(is_said), "{lines:?}");
    assert_eq!(whole.end(None), Some(true));
    assert_eq!(whole.machine.0.borrow_mut().truth(3, Lever::Online), his);
}

#[test]
fn what_somebody_put_back_before_the_configuration_was_read_again_is_changed_anew() {
    let nodes = |list: &str| Value::Nodes(list.parse().ok());
    // Looks show a weight, and neither those of helpers nor nodes, nor that there is no limit.
    for (lever, made, anew) in [
        (Lever::Weight, weighing(200), weighing(300)),
        (Lever::HelperWeight, weighing(200), weighing(300)),
        (Lever::Nodes, nodes("0"), nodes("1")),
        (Lever::Quota, limit(50_000), limit(60_000)),
    ] {
        let (_dir, mut story) = begun();
        let set = |story: &mut Story, value: &Value| {
            let action = story.action(1, lever, value.clone());
            story.apply(&[action]).remove(0).result
        };
        let before = story.machine.truth(1, lever);
        assert_eq!(set(&mut story, &made), Ok(made));
        story.machine.write(1, lever, &before).unwrap();
        let seen = story.machine.observe().unwrap();
        let keeper = story.keeper.as_mut().unwrap();
        keeper.try_again();
        keeper.find_anew(&mut story.machine, &seen);
        assert_eq!(set(&mut story, &anew), Ok(anew), "not that it was put back");
        story.end();
        story.check().unwrap();
    }
}

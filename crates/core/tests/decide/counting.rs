//! Who counts its work: until when it goes by what was found, and what looks say while it is paused, silent, late or counts no more.

use std::time::Duration;

use corefit_core::Weight;
use corefit_core::decide::{Controller, Sizer};
use corefit_core::machine::State;

use crate::support::{ByCount, Toy, four, of_four, vm, with};

/// Does most work with four vCPUs.
fn best_with_four(n: u32) -> f64 {
    if n == 4 { 100.0 } else { 50.0 }
}

/// Uses more the more vCPUs it has, up to seven.
fn up_to_seven(n: u32) -> f64 {
    0.5 * f64::from(n.min(7))
}

/// A VM that found four vCPUs to be best by its work, and would have seven by utilisation.
fn sized_to_four() -> (Toy, Controller) {
    let mut toy = Toy::new(4, vec![vm("a", 16, Some(best_with_four), up_to_seven)]);
    let mut controller = with(Sizer::Corefit);
    toy.rule(&mut controller, 30);
    assert_eq!(toy.online(0), 4);
    (toy, controller)
}

/// A guest's counting program has ended, and others run there now: utilisation tells again.
#[test]
fn who_counts_no_more_is_sized_by_utilisation_again() {
    let (mut toy, mut controller) = sized_to_four();
    (toy.vms[0].rate, toy.vms[0].state.progress) = (None, None);
    toy.rule(&mut controller, 40);
    assert_eq!(toy.online(0), 4, "it may only be silent for a while");
    toy.rule(&mut controller, 60);
    assert_eq!(toy.online(0), 7);
}

/// The first look after it was paused has no count of its work: its agent was not asked meanwhile.
#[test]
fn who_was_paused_for_long_keeps_what_its_work_found() {
    fn rate(n: u32) -> f64 {
        if n == 16 { 1000.0 } else { 100.0 + f64::from(n) }
    }
    let mut toy = Toy::new(16, vec![of_four(vm("a", 16, Some(rate), four))]);
    let mut controller = with(Sizer::Corefit);
    toy.rule(&mut controller, 30);
    assert_eq!(toy.online(0), 16);
    toy.vms[0].state.state = State::Paused;
    toy.rule(&mut controller, 65);
    toy.vms[0].state.state = State::Running;
    toy.vms[0].state.progress = None;
    assert_eq!((toy.rule(&mut controller, 10), toy.online(0)), (0, 16), "nothing is looked for");
}

/// libvirtd is slow after a restart: the VM is there, and so is what it does.
#[test]
fn who_is_missed_by_a_look_keeps_what_its_work_found_and_who_ended_begins_anew() {
    let (mut toy, mut controller) = sized_to_four();
    toy.missed = Some(0);
    toy.rule(&mut controller, 2);
    toy.missed = None;
    assert_eq!((toy.rule(&mut controller, 60), toy.online(0)), (0, 4), "nothing is looked for");
    let ended = std::mem::take(&mut toy.vms);
    toy.rule(&mut controller, 2);
    toy.vms = ended;
    assert!(toy.rule(&mut controller, 20) > 0);
}

/// Its agent says nothing for a while: what it does is not known, not nothing.
#[test]
fn who_is_silent_for_a_while_keeps_what_its_work_found() {
    fn rate(n: u32) -> f64 {
        if n == 8 { 1000.0 } else { 800.0 }
    }
    let mut toy = Toy::new(4, vec![vm("a", 16, Some(rate), four)]);
    let mut controller = with(Sizer::Corefit);
    toy.rule(&mut controller, 30);
    assert_eq!(toy.online(0), 8);
    (toy.vms[0].rate, toy.vms[0].state.progress) = (None, None);
    assert_eq!((toy.rule(&mut controller, 30), toy.online(0)), (0, 8));
    toy.rule(&mut controller, 90);
    assert_eq!(toy.online(0), 4, "nobody counts any more");
}

/// The count is there, and stands still, while it works.
#[test]
fn who_counts_nothing_for_long_though_busy_is_sized_by_utilisation_again() {
    let (mut toy, mut controller) = sized_to_four();
    toy.vms[0].rate = Some(|_| 0.0);
    toy.rule(&mut controller, 500);
    assert_eq!(toy.online(0), 4, "it may only do little for a while");
    toy.rule(&mut controller, 900);
    assert_eq!(toy.online(0), 7);
}

/// It stands still for more than a minute and says so; then another program counts in its place, so that one look tells nothing.
#[test]
fn a_count_that_stood_still_and_began_anew_is_not_forgotten() {
    let (mut toy, mut controller) = sized_to_four();
    toy.vms[0].rate = Some(|_| 0.0);
    toy.vms[0].used = |_| 0.0;
    toy.rule(&mut controller, 75);
    toy.vms[0].rate = Some(best_with_four);
    toy.vms[0].used = up_to_seven;
    toy.vms[0].state.progress = Some(0.0);
    toy.pass(Duration::from_secs(1));
    assert_eq!(toy.rule(&mut controller, 12), 0, "its phase is known");
    assert_eq!(toy.online(0), 4);
}

/// A guest's agent brings the count late, and not at each look: each number of vCPUs is judged by what came after the change to it.
#[test]
fn a_count_that_comes_late_is_waited_for() {
    fn rate(n: u32) -> f64 {
        match n {
            4 => 100.0,
            2 => 70.0,
            _ => 5.0,
        }
    }
    let mut toy = Toy::new(2, vec![vm("a", 8, Some(rate), |_| 2.0)]);
    toy.vms[0].brought = Some((Duration::from_millis(700), 0.0, 0));
    let mut controller = with(Sizer::Corefit);
    toy.rule(&mut controller, 60);
    assert!(matches!(toy.online(0), 2 | 4), "{}", toy.online(0));
    // Each change takes as long as the count is late, and is paid for: it is looked again when that may be.
    toy.rule(&mut controller, 540);
    assert_eq!(toy.online(0), 4);
}

/// Its first count says nothing yet, the second one does: all vCPUs are seen at work before anything is changed. What was found
/// is not forgotten because it pauses for a minute.
#[test]
fn who_has_just_begun_to_count_is_not_sized_by_utilisation() {
    thread_local!(static BUSY: std::cell::Cell<bool> = const { std::cell::Cell::new(true) });
    fn rate(n: u32) -> f64 {
        f64::from(u8::from(BUSY.get())) * if n == 8 { 100.0 } else { 2.0 }
    }
    let used: ByCount = |n| f64::from(u8::from(BUSY.get()) * 2).min(f64::from(n));
    let mut toy = Toy::new(2, vec![vm("a", 8, Some(rate), used)]);
    toy.vms[0].brought = Some((Duration::from_millis(700), 0.0, 0));
    let mut controller = with(Sizer::Corefit);
    let mut actions = Vec::new();
    while actions.is_empty() {
        let step = controller.step(&toy.observe()).unwrap();
        toy.obey(&mut controller, &step);
        actions.extend(step.plan.actions);
        toy.pass(step.next);
    }
    assert!(toy.at >= 2_000_000_000, "it is looked at unchanged: {actions:?} at {} ns", toy.at);
    toy.rule(&mut controller, 20);
    assert_eq!(toy.online(0), 8);
    // Its program ends, and another one begins.
    BUSY.set(false);
    (toy.vms[0].brought, toy.vms[0].rate, toy.vms[0].state.progress) = (None, None, None);
    toy.rule(&mut controller, 70);
    BUSY.set(true);
    (toy.vms[0].brought, toy.vms[0].rate) =
        (Some((Duration::from_millis(700), 0.0, toy.at)), Some(rate as ByCount));
    assert_eq!((toy.rule(&mut controller, 10), toy.online(0)), (0, 8), "what it found is known still");
}

/// A guest whose count does not go on, in the middle of a race or from its start, keeps the others waiting for some seconds at most.
#[test]
fn who_goes_on_counting_no_more_keeps_nobody_waiting() {
    for seconds in [2, 30] {
        let rate: ByCount = |n| if n == 4 { 100.0 } else { 70.0 };
        let mut toy = Toy::new(2, vec![vm("a", 8, Some(rate), |_| 2.0), vm("b", 8, Some(rate), |_| 1.0)]);
        toy.vms[0].brought = Some((Duration::from_millis(700), 0.0, 0));
        let mut controller = with(Sizer::Corefit);
        toy.rule(&mut controller, seconds);
        toy.vms[0].brought.as_mut().unwrap().0 = Duration::MAX;
        toy.vms[1].rate = None;
        toy.vms[1].state.progress = None;
        toy.rule(&mut controller, 60);
        toy.vms[1].state.weight = Some(Weight(1e5));
        toy.rule(&mut controller, 60);
        assert_eq!(toy.online(1), 2, "b has all");
        let (begun, mut steps) = (toy.at, 0);
        while toy.at - begun < 60_000_000_000 {
            let step = controller.step(&toy.observe()).unwrap();
            toy.obey(&mut controller, &step);
            toy.pass(step.next);
            steps += 1;
        }
        assert!(steps < 130, "{steps} looks in a minute");
    }
}

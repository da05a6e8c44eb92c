//! The end of a daemon whose guests do not answer.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use corefit_core::machine::LeverKind;

use super::daemons::{at_most, ruled};
use super::stories::begun;
use super::whole::{Shared, configured};
use super::*;
use crate::manage::ManageArgs;
use crate::manage::daemon::{Daemon, Signals};
use crate::manage::log::{Level, testing::said};
use crate::manage::restore::BETWEEN_TRIES;

const HOUR: Duration = Duration::from_secs(3600);

/// What came of an end.
struct End {
    clean: bool,
    machine: Shared,
    /// How often it waited.
    waits: u32,
    /// What it said that people have to know.
    said: Vec<(Level, String)>,
}

/// The end of a daemon that has changed the vCPUs and weights of all its VMs, on a machine whose time passes by itself. `enough`
/// is told how often it has waited.
fn end(hung: &[u32], patience: Duration, enough: impl Fn(&Shared, u32) -> bool) -> End {
    slow_end(Duration::ZERO, hung, patience, enough)
}

/// The same where each write takes so long.
fn slow_end(slow: Duration, hung: &[u32], patience: Duration, enough: impl Fn(&Shared, u32) -> bool) -> End {
    end_of(|machine| (machine.slow, machine.hung) = (slow, hung.iter().copied().collect()), patience, enough)
}

/// The same where this befell the machine meanwhile.
fn end_of(
    befalls: impl FnOnce(&mut Faulty),
    patience: Duration,
    enough: impl Fn(&Shared, u32) -> bool,
) -> End {
    let (_dir, mut story) = begun();
    let vcpus = |vm| story.action(vm, Lever::Online, Value::Vcpus(CpuSet::first(1)));
    let weight = |vm| story.action(vm, Lever::Weight, Value::Weight(Weight(200.0)));
    let plan: Vec<Action> = (0..MANAGED).flat_map(|vm| [weight(vm), vcpus(vm)]).collect();
    story.step(&plan, None);
    befalls(&mut story.machine);
    story.machine.asked.clear();
    let machine = Shared(Rc::new(RefCell::new(story.machine)));
    let args = ManageArgs { apply: true, ..ManageArgs::default() };
    let config = args.read().unwrap();
    let mut daemon = Daemon::new(&args, config, Box::new(machine.clone()), story.keeper, true);
    let (clean, waits) = (Cell::new(true), Cell::new(0));
    let enough = |time| {
        waits.set(waits.get() + u32::from(time == BETWEEN_TRIES));
        enough(&machine, waits.get())
    };
    let mut said = said(|| clean.set(daemon.put_back(patience, enough)));
    said.retain(|(level, _)| *level != Level::Info);
    for vm in 0..MANAGED {
        let weight = machine.0.borrow_mut().truth(vm, Lever::Weight);
        assert_eq!(weight, story.expected[&(vm, Lever::Weight)], "no guest has to answer for that");
    }
    End { clean: clean.get(), waits: waits.get(), machine, said }
}

#[test]
fn who_does_not_answer_is_asked_again_at_once_after_each_wait_until_he_does() {
    let heals = |machine: &Shared, waits| {
        if waits == 3 {
            machine.0.borrow_mut().heal();
        }
        false
    };
    let end = end(&[0, 2], HOUR, heals);
    assert!(end.clean && end.said.is_empty(), "{:?}", end.said);
    assert_eq!((end.waits, end.machine.0.borrow().asked_again), (3, 3));
}

#[test]
fn a_second_signal_ends_the_waiting_and_what_is_left_is_said_once_as_errors() {
    // Where one is there already, who answered just before is asked still, until the first of them does not.
    for (signal, unheard, asked) in [
        (0, vec![], vec![2, 1, 1, 0]),
        (0, vec![0], vec![2, 1, 1]),
        (0, vec![0, 2], vec![1, 1, 2]),
        (2, vec![], vec![2, 1, 1, 0, 2, 0]),
    ] {
        let case = format!("signal after {signal} waits, unheard {unheard:?}");
        let befalls = |machine: &mut Faulty| {
            (machine.hung, machine.unheard) = (BTreeSet::from([0, 2]), unheard.into_iter().collect());
        };
        let end = end_of(befalls, HOUR, |_, waits| waits >= signal);
        assert!(!end.clean);
        assert_eq!(end.waits, signal);
        assert_eq!(end.said.len(), 2, "{case}: {:?}", end.said);
        assert!(
            end.said.iter().all(|(level, text)| *level == Level::Error && text.contains("corefit restore"))
        );
        assert_eq!(end.machine.0.borrow().asked, asked, "{case}");
    }
}

#[test]
fn once_it_is_over_one_more_guest_that_does_not_answer_ends_the_asking() {
    let end = end(&[1, 2], HOUR, |_, _| true);
    assert_eq!(end.machine.0.borrow().asked, [2, 1]);
    let left = "online vCPUs of vm0: not asked, as there was no time left";
    assert!(end.said.iter().any(|(_, text)| text.contains(left)), "{:?}", end.said);
}

#[test]
fn who_answers_takes_nobodys_patience_though_all_of_them_take_longer_than_that() {
    // The weights of all, and a guest, each more than a third of it; then one does not answer.
    let (slow, patience) = (Duration::from_millis(700), Duration::from_secs(2));
    let end = slow_end(slow, &[1], patience, |_, _| false);
    assert_eq!(end.machine.0.borrow_mut().truth(0, Lever::Online), Value::Vcpus(CpuSet::first(4)));
    assert_eq!(end.said.len(), 1, "{:?}", end.said);
    assert!(end.said[0].1.contains("online vCPUs of vm1: no answer"), "{:?}", end.said);
}

#[test]
fn without_patience_one_answer_is_missed_and_all_that_answer_are_asked() {
    let end = end(&[2], Duration::ZERO, |_, _| panic!("it waits"));
    assert!(!end.clean);
    assert_eq!(end.said.len(), 1, "{:?}", end.said);
    assert_eq!(end.machine.0.borrow().asked, [2, 1, 1, 0, 0]);
}

#[test]
fn a_signal_while_settings_are_changed_leaves_no_more_than_reading_back_what_is_being_written() {
    let cut = Story::at_each_place(|story, calls| {
        let ends = Arc::new(AtomicBool::new(false));
        story.keeper.as_mut().unwrap().heeds(ends.clone());
        story.machine.signal = Some((calls, ends.clone()));
        let online = (0..MANAGED).map(|vm| story.action(vm, Lever::Online, Value::Vcpus(CpuSet::first(1))));
        let mut plan: Vec<Action> = online.collect();
        plan.push(story.action(0, Lever::Told, Value::Told(Some(Cpus(2.0)))));
        story.apply(&plan);
        // It is long ago that it was told.
        let Story { keeper, machine, .. } = story;
        keeper.as_mut().unwrap().tell_again(machine, (Time(1 << 50), Duration::ZERO), |_| true);
        assert!(machine.after_signal <= 1, "after {calls} calls: {}", machine.after_signal);
        machine.signal = None;
        ends.swap(false, Ordering::Relaxed)
    });
    assert!(matches!(cut, Ok(11..)), "{cut:?} reads and writes");
}

#[test]
fn a_signal_before_the_first_step_or_during_a_look_changes_nothing_and_is_no_failure() {
    for before in [true, false] {
        let dir = directory();
        let args = ManageArgs { time: Some(Duration::from_millis(200)), ..configured(dir.path()) };
        let mut whole = ruled(&args, dir.path(), &at_most(2));
        whole.start(None);
        // The look after that of who puts back what an earlier run left.
        whole.machine.0.borrow_mut().panics = before.then_some(1);
        let (sender, signals) = Signals::none();
        match before {
            true => sender.send(signal_hook::consts::SIGTERM).unwrap(),
            false => signals.ends.store(true, Ordering::Relaxed),
        }
        let ended = whole.daemon.take().unwrap().run(&signals).unwrap();
        assert_eq!(format!("{ended:?}"), format!("{:?}", std::process::ExitCode::SUCCESS));
        let machine = whole.machine.0.borrow();
        assert!(machine.writes.is_empty() && machine.asked.is_empty(), "{:?}", machine.writes);
    }
}

#[test]
fn a_daemon_that_panics_or_whose_machine_fails_puts_back_what_it_changed() {
    for (panics, breaks) in [(Some(20), None), (None, Some(20))] {
        let dir = directory();
        let args = configured(dir.path());
        let mut whole = ruled(&args, dir.path(), &at_most(2));
        whole.start(None);
        let (mut daemon, machine) = (whole.daemon.take().unwrap(), &whole.machine.0);
        (machine.borrow_mut().panics, machine.borrow_mut().breaks) = (panics, breaks);
        let (_sender, signals) = Signals::none();
        let run = std::panic::AssertUnwindSafe(|| daemon.run(&signals));
        match std::panic::catch_unwind(run) {
            Ok(ended) => {
                assert_eq!(format!("{:?}", ended.unwrap()), format!("{:?}", std::process::ExitCode::FAILURE));
                assert_eq!(panics, None);
            }
            Err(panic) => assert!(panics.is_some() && panic.is::<&str>()),
        }
        let mut machine = machine.borrow_mut();
        assert_eq!(machine.writes, BTreeMap::from([(LeverKind::Online, 2)]), "there and back");
        machine.touched.clear();
        check(&mut machine, &whole.expected).unwrap();
    }
}

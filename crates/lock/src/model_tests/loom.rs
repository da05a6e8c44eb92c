//! Two and three threads under loom.

use super::{BYPASS, Bug, EARLY, FIFO, catches, caught, crowd, late, late_crowd, turns};

/// Preemptions with which bugs are looked for.
const PREEMPTIONS: usize = 3;

/// All orders that may show a bug.
fn check(scenario: impl Fn() + Sync + Send + 'static) {
    explore(PREEMPTIONS, scenario);
}

fn explore(preemptions: usize, scenario: impl Fn() + Sync + Send + 'static) {
    let mut builder = ::loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 100_000;
    let start = std::time::Instant::now();
    builder.check(scenario);
    println!("{preemptions} preemptions: {:.1} s", start.elapsed().as_secs_f64());
}

#[test]
fn two_threads_take_turns() {
    explore(4, turns(FIFO, &[2, 2]));
    explore(4, turns(BYPASS, &[2, 2]));
}

#[test]
fn three_threads_take_turns_in_order() {
    explore(2, turns(FIFO, &[1, 1, 1]));
    explore(2, turns(EARLY, &[1, 1, 1]));
}

#[test]
fn three_threads_take_turns_with_a_bypass() {
    explore(2, turns(BYPASS, &[2, 1, 1]));
}

#[test]
fn who_runs_out_of_time_leaves_no_gap_in_the_line() {
    explore(3, late(FIFO, 1, 0));
    explore(2, late(FIFO, 1, 1));
    explore(2, late(BYPASS, 1, 1));
}

#[test]
fn who_finds_no_room_in_the_line_comes_later() {
    explore(2, crowd(FIFO, &[1, 1, 1], 1));
    explore(2, crowd(BYPASS, &[2, 1, 1], 1));
    explore(2, late_crowd(FIFO, 1, 1, 1));
}

const LOST: &str = "deadlock";
const RACE: &str = "Causality violation";

caught!(a_missing_fence_before_the_re_read, NoFenceBeforeReread, LOST, turns(BYPASS, &[2, 2]));
caught!(a_missing_fence_after_the_release, NoFenceAfterRelease, LOST, turns(BYPASS, &[2, 2]));
caught!(a_missing_re_read, NoReread, LOST, turns(FIFO, &[1, 1]));
caught!(a_missing_slow_path_flag, NoParkedFlag, LOST, turns(FIFO, &[1, 1]));
caught!(sleeping_on_the_newest_value, SleepOnTheNewestValue, LOST, turns(FIFO, &[1, 1]));
caught!(waking_one_of_two_on_a_slot, WakeOneOfTheSlot, LOST, turns(FIFO, &[1, 1, 1]));
caught!(taking_without_acquire, TakeRelaxed, RACE, turns(BYPASS, &[2, 2]));
caught!(taking_ones_turn_without_acquire, GrantRelaxed, RACE, turns(FIFO, &[1, 1]));
caught!(releasing_without_release, ReleaseRelaxed, RACE, turns(FIFO, &[1, 1]));
caught!(passing_nobody_who_gave_up, NoReap, LOST, late(FIFO, 1, 1));
caught!(giving_up_without_a_re_read, GiveUpWithoutReread, LOST, late(FIFO, 1, 1));
caught!(entering_the_missing_after_the_flag, EnterAfterFlag, LOST, late(FIFO, 1, 1));
caught!(looking_at_the_head_with_the_flag_set, ReapWithFlagSet, LOST, late(FIFO, 1, 1));
caught!(flagging_without_release, FlagRelaxed, LOST, late(FIFO, 1, 1));
caught!(looking_at_the_missing_too_early, LookRelaxed, LOST, late(FIFO, 1, 1));
caught!(a_re_read_that_came_before_the_flag, RereadBeforeFlag, LOST, turns(FIFO, &[1, 1]));
caught!(a_kick_that_is_taken_for_a_turn, TrustTheKick, RACE, turns(EARLY, &[1, 1, 1]));
caught!(a_release_that_looks_for_the_missing_once, ReapLookedOnce, LOST, late(FIFO, 1, 1));
caught!(no_fence_before_sleeping_outside, OutsideNoFence, LOST, crowd(FIFO, &[1, 1, 1], 1));
caught!(sleeping_outside_without_a_re_read, OutsideNoReread, LOST, crowd(FIFO, &[1, 1, 1], 1));
caught!(leaving_the_line_unseen, LeftUnseen, LOST, late_crowd(FIFO, 1, 1, 1));

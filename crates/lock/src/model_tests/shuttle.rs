//! Eight threads under shuttle: random orders of their steps, half of them with few preemptions at random places
//! (Burckhardt and others, "A Randomized Scheduler with Probabilistic Guarantees of Finding Bugs", ASPLOS 2010).

use ::shuttle::scheduler::{PctScheduler, RandomScheduler};
use ::shuttle::{Config, Runner};

use super::{BYPASS, Bug, EARLY, FIFO, catches, caught, crowd, late, late_crowd, turns};
use crate::policy::Policy;

/// Orders tried of each kind.
const ORDERS: usize = 10_000;
/// Preemptions at which a bug may hide, for the second kind.
const DEPTH: usize = 4;

/// Always the same, so that what is found once is found again.
const SEED: u64 = 1;

const EIGHT: &[u32] = &[2, 1, 2, 1, 2, 1, 2, 1];

fn check(scenario: impl Fn() + Sync + Send + 'static) {
    let scenario = std::sync::Arc::new(scenario);
    let again = std::sync::Arc::clone(&scenario);
    let random = RandomScheduler::new_from_seed(SEED, ORDERS);
    Runner::new(random, Config::default()).run(move || again());
    let few = PctScheduler::new_from_seed(SEED, DEPTH, ORDERS);
    Runner::new(few, Config::default()).run(move || scenario());
}

#[test]
fn eight_threads_take_turns_in_order() {
    check(turns(FIFO, EIGHT));
    check(turns(EARLY, EIGHT));
}

#[test]
fn eight_threads_take_turns_with_bypasses() {
    check(turns(BYPASS, EIGHT));
    check(turns(Policy { bypasses: 3, ..EARLY }, EIGHT));
}

#[test]
fn who_runs_out_of_time_among_eight_leaves_no_gap_in_the_line() {
    check(late(FIFO, 3, 4));
    check(late(BYPASS, 3, 4));
}

#[test]
fn eight_threads_with_room_for_two_in_the_line() {
    check(crowd(FIFO, EIGHT, 2));
    check(crowd(BYPASS, EIGHT, 2));
    check(late_crowd(FIFO, 3, 4, 2));
    check(late_crowd(BYPASS, 4, 3, 3));
}

const LOST: &str = "deadlock";
const WRONG: &str = "assertion";

caught!(a_missing_re_read, NoReread, LOST, turns(FIFO, EIGHT));
caught!(a_missing_slow_path_flag, NoParkedFlag, LOST, turns(FIFO, EIGHT));
caught!(sleeping_on_the_newest_value, SleepOnTheNewestValue, LOST, turns(FIFO, EIGHT));
caught!(waking_one_of_those_on_a_slot, WakeOneOfTheSlot, LOST, turns(FIFO, EIGHT));
caught!(passing_nobody_who_gave_up, NoReap, LOST, late(FIFO, 3, 4));
caught!(giving_up_without_a_re_read, GiveUpWithoutReread, LOST, late(FIFO, 3, 4));
caught!(entering_the_missing_after_the_flag, EnterAfterFlag, LOST, late(FIFO, 3, 4));
caught!(looking_at_the_head_with_the_flag_set, ReapWithFlagSet, LOST, late(FIFO, 4, 1));
caught!(flagging_a_ticket_that_was_passed, FlagUnseen, WRONG, late(FIFO, 6, 1));
caught!(taking_a_turn_that_was_passed, TurnThoughPassed, WRONG, late(BYPASS, 6, 1));
caught!(sleeping_outside_without_a_re_read, OutsideNoReread, LOST, crowd(FIFO, EIGHT, 2));
caught!(leaving_the_line_unseen, LeftUnseen, LOST, late_crowd(FIFO, 3, 4, 2));

//! Threads that are in step or fall into it: what they do just after a change is not what they do later.

use super::*;

/// Threads that begin in step: what they do then says nothing of what they do once they are not.
#[test]
fn what_there_is_is_judged_by_what_it_does_once_it_fell_out_of_step() {
    let (mut at, mut with_all) = (0.0, 0.0);
    let race = follow(&entrant(0, &[16, 4, 16, 12], 4, 10.0), |online, over| {
        let seconds = over.as_secs_f64();
        let rate = match online {
            16 if at < 0.25 => 1000.0,
            16 => 10.0,
            _ => 130.0,
        };
        at += seconds;
        with_all += if online == 16 { seconds } else { 0.0 };
        (online, rate * seconds)
    });
    assert_eq!(race.count(&VmId("0".into())), Some(4));
    assert!(with_all < 2.0, "they are not proven: {with_all}");
}

/// All did much, do nothing just after the change back to them, and in the long run more than VCPU-Bal's again.
#[test]
fn what_varies_is_watched_for_longer_before_it_is_given_up() {
    let end = |allowed: f64, later: &dyn Fn(f64) -> f64| {
        let one = entrant(0, &[16, 4], 4, allowed);
        let (mut since, mut before, mut left) = (0.0, 16, false);
        let race = follow(&one, |online, over| {
            (since, left) = (if online == before { since } else { 0.0 }, left || online == 4);
            before = online;
            since += over.as_secs_f64();
            let rate = match online {
                16 if left => later(since),
                16 => 500.0,
                _ => 100.0,
            };
            (online, over.as_secs_f64() * rate)
        });
        race.count(&one.id)
    };
    let comes_back = |since: f64| if since < 2.5 { 20.0 } else { 400.0 };
    assert_eq!(end(10.0, &comes_back), Some(16), "next to nothing at first");
    assert_eq!(end(1.0, &comes_back), Some(4), "watching on would cost more than it may");
    assert_eq!(
        end(10.0, &|since| if since % 2.0 < 1.0 { 30.0 } else { 150.0 }),
        Some(4),
        "varies, and does less"
    );
    assert_eq!(end(10.0, &|_| 90.0), Some(4), "does less");
}

/// Threads that have to fall into step again need longer than the first looks: where nobody waits for the race they have two seconds.
#[test]
fn a_patient_race_does_not_give_up_all_vcpus_for_what_they_do_just_after_the_change() {
    let end = |all: bool| {
        let one = Entrant { all, ..entrant(0, &[4, 4, 16, 12, 8], 4, 10.0) };
        let (mut since, mut before) = (0.0, 4);
        let race = follow(&one, |online, over| {
            since = if online == before { since } else { 0.0 };
            before = online;
            since += over.as_secs_f64();
            let rate = if online == 16 && since > 1.5 { 1000.0 } else { 10.0 * f64::from(20 - online) };
            (online, over.as_secs_f64() * rate)
        });
        race.count(&one.id)
    };
    assert_eq!((end(true), end(false)), (Some(16), Some(4)));
}

/// A program of 16 threads under a cap of its VM's: with 16 vCPUs nothing is done for so long after each change, then this much; with four 40.
fn capped(checks: bool, has: u32, nothing: f64, then: f64) -> (u32, f64, bool) {
    let counts = [has, 4, 16];
    let one = Entrant { all: checks, few: true, ..entrant(0, &counts, 4, 2.5) };
    let (mut since, mut before) = (0.0, has);
    let race = follow(&one, |count, over| {
        since = if count == before { since + over.as_secs_f64() } else { over.as_secs_f64() };
        before = count;
        let sixteen = if since <= nothing { 0.0 } else { then };
        (count, if count == 16 { sixteen } else { 40.0 } * over.as_secs_f64())
    });
    assert!(race.count(&one.id) == Some(16) || race.left_all(true), "what did more before may do so again");
    (race.count(&one.id).unwrap(), race.cost(), race.left_all(false))
}

#[test]
fn with_a_cap_all_vcpus_are_held_until_threads_may_be_in_step() {
    let at = |(count, _, left): (u32, f64, bool)| (count, left);
    assert_eq!(at(capped(false, 16, 0.0, 100.0)), (16, false));
    for nothing in [1.5, 20.0] {
        assert_eq!(at(capped(false, 16, nothing, 100.0)), (16, false), "they are held");
        assert_eq!(at(capped(true, 4, nothing, 100.0)), (16, false), "they are held");
    }
    let (count, lost, left) = capped(true, 4, 60.0, 100.0);
    assert!((count, left) == (4, true) && (23.0..26.0).contains(&lost), "not for ever: {lost}");
    let (count, lost, left) = capped(true, 4, 0.0, 10.0);
    assert!(
        (count, left) == (4, false) && lost < 1.0,
        "what does little, but steadily, will not do more: {lost}"
    );
}

/// With a cap: all vCPUs are in step when the race begins and not after a change, then again after so many seconds. With four nothing comes
/// of the first so many seconds.
fn in_step(first: f64, late: f64, after: f64) -> Race {
    let one = Entrant { few: true, ..entrant(0, &[16, 4, 16], 4, 2.5) };
    let (mut since, mut before, mut left) = (0.0, 16, false);
    follow(&one, |count, over| {
        since = if count == before { since + over.as_secs_f64() } else { over.as_secs_f64() };
        (before, left) = (count, left || count != 16);
        let rate = match count {
            16 if !left => first,
            16 if since <= after => first / 16.0,
            16 => 100.0,
            _ if since <= late => 0.0,
            _ => 20.0,
        };
        (count, rate * over.as_secs_f64())
    })
}

#[test]
fn with_a_cap_all_vcpus_that_were_in_step_when_the_race_began_are_held_until_they_are_again() {
    let id = VmId("0".into());
    let ends = |first, late, after| in_step(first, late, after).count(&id);
    assert_eq!(ends(160.0, 0.0, 10.0), Some(16), "now more, now less, though steadily since the change");
    assert_eq!(ends(10.0, 0.0, 60.0), Some(4), "they never are");
    assert_eq!(ends(50.0, 0.0, 6.0), Some(16), "less than four in the mean, but now more, now less");
    let steady = in_step(50.0, 0.0, 60.0);
    let cost = steady.cost();
    assert!(steady.count(&id) == Some(4) && (4.0..8.0).contains(&cost), "steadily for eight seconds: {cost}");
    let less = in_step(15.0, 0.0, 60.0);
    assert!(less.count(&id) == Some(4) && less.cost() < 4.0, "in step they did no more: {}", less.cost());
    assert!(!less.left_all(false), "nor are they tried again for that");
    let bal = in_step(200.0, 0.5, 10.0).of_bal(&id);
    assert!(
        bal.is_some_and(|stat| stat.units > 0.0),
        "four that did nothing yet are looked at until they do"
    );
}

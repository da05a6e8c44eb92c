//! Threads that are in step while numbers race, and not later.

use super::*;

/// Runs a first race between 16, 4 (VCPU-Bal's), 12 and 8 vCPUs, which do so much in the race, and so much from then on; where it ends, and how
/// long it was with each number from then on.
fn falls(before: fn(u32) -> f64, then: fn(u32) -> f64) -> (Race, u32, BTreeMap<u32, f64>) {
    let one = entrant(0, &[16, 4, 16, 12, 8], 4, 10.0);
    let (mut race, mut later) = (Race::new(std::slice::from_ref(&one), Dues::new()), BTreeMap::new());
    for _ in 0..2000 {
        let (online, over) = (race.count(&one.id).unwrap(), race.next());
        let proof = race.stage == Stage::Proof;
        let rate = if proof { then(online) } else { before(online) };
        if proof && !race.settling {
            *later.entry(online).or_insert(0.0) += over.as_secs_f64();
        }
        let units = rate * over.as_secs_f64();
        if race.look(over, &[(one.id.clone(), Look { online, units, used: 1.0, part: 1.0, withheld: 0.0 })]) {
            let end = race.count(&one.id).unwrap();
            return (race, end, later);
        }
    }
    panic!("it does not end");
}

fn in_step(online: u32) -> f64 {
    if online == 4 { 700.0 } else { 1000.0 }
}

#[test]
fn where_what_did_best_falls_out_of_step_vcpu_bals_count_is_proven_and_no_other() {
    let (race, end, later) = falls(in_step, |online| if online == 4 { 800.0 } else { 300.0 });
    assert!(race.left_others, "the others are tried before long");
    assert_eq!(end, 4);
    assert_eq!(later.len(), 2, "{later:?}");
    assert_eq!(later[&4], 2.0, "{later:?}");
}

#[test]
fn nothing_at_all_is_a_fall_too() {
    let (race, end, later) = falls(in_step, |online| if online == 4 { 800.0 } else { 0.0 });
    assert!(end == 4 && later.len() == 2 && race.left_others, "{later:?}");
}

#[test]
fn the_better_one_of_the_two_stays() {
    let (_, end, later) = falls(in_step, |online| if online == 4 { 200.0 } else { 300.0 });
    assert_ne!(end, 4);
    assert_eq!(later.len(), 2, "{later:?}");
}

#[test]
fn a_few_units_less_than_half_are_chance() {
    let (race, _, later) = falls(|_| 10.0, |online| if online == 4 { 5.0 } else { 4.5 });
    assert!(later.len() > 2 && !race.left_others, "{later:?}");
}

#[test]
fn who_does_nearly_what_it_did_is_compared_with_all_that_may_be_better() {
    let (_, _, later) =
        falls(|online| 1000.0 - f64::from(online), |online| if online == 4 { 300.0 } else { 600.0 });
    assert!(later.len() > 2, "VCPU-Bal's count, which may fall to anything: {later:?}");
}

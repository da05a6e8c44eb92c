//! VMs that race together, of which one is counted coarsely.

use super::*;

/// The first VM did more with eight vCPUs than with two, which are VCPU-Bal's. The second has two in any case: its units in so many seconds
/// beside either, and pCPUs used.
fn beside_eight_and_two(patient: bool, seconds: f64, units: [f64; 2], used: [f64; 2]) -> Race {
    let entrants = [entrant(0, &[8, 2], 2, 10.0), entrant(1, &[2, 2], 2, 10.0)];
    let mut race = Race::new(&entrants.map(|one| Entrant { all: patient, ..one }), Dues::new());
    let seen = |units, used| Stat { seconds, units, used: used * seconds, part: seconds, ..Stat::default() };
    for level in [0, 1] {
        race.members[0].stats[level] = seen([900.0, 300.0][level], 1.0);
        race.members[1].stats[level] = seen(units[level], used[level]);
    }
    race
}

#[test]
fn who_is_counted_coarsely_does_not_lose_what_it_runs() {
    let harms = |units, used| beside_eight_and_two(false, 2.0, units, used).harms(0);
    assert!(!harms([5.0, 7.0], [1.0, 1.0]), "so few units tell nothing");
    assert!(harms([5.0, 7.0], [0.7, 1.0]), "it does less, and runs less");
    assert!(!harms([7.0, 7.0], [0.7, 1.0]), "who spins runs less where it does as much");
    assert!(!harms([6.9, 7.0], [0.95, 1.0]));
}

#[test]
fn who_is_watched_for_long_may_lose_less() {
    let harms = |patient, seconds| {
        let units = [2.7, 3.5].map(|rate| rate * seconds);
        let mut race = beside_eight_and_two(patient, seconds, units, [1.0, 1.0]);
        let raced = race.harms(0);
        race.members.iter_mut().for_each(|member| member.proofs.clone_from(&member.stats));
        [raced, race.harms(0)]
    };
    assert_eq!([harms(false, 2.0), harms(true, 2.0), harms(false, 60.0)], [[false; 2]; 3]);
    assert_eq!(harms(true, 60.0), [false, true], "once both were watched");
}

#[test]
fn what_may_be_a_loss_is_raced_again_before_long_and_watched_where_there_is_time() {
    let doubts = |units| beside_eight_and_two(false, 2.0, units, [1.0, 1.0]).doubts();
    assert!(doubts([5.0, 7.0]) && doubts([7.0, 7.0]), "so few units tell nothing");
    assert!(!doubts([20_000.0, 20_000.0]));
    assert!(
        !beside_eight_and_two(true, 2.0, [5.0, 7.0], [1.0, 1.0]).doubts(),
        "that is told later, or never"
    );
    let alone = Race::new(&[entrant(0, &[8, 2], 2, 10.0)], Dues::new());
    assert!(!alone.doubts(), "it races with nobody");
    let next = |patient| {
        let mut race = beside_eight_and_two(patient, 2.0, [5.0, 7.0], [1.0, 1.0]);
        race.members.iter_mut().for_each(|member| member.proofs.clone_from(&member.stats));
        race.levels.iter_mut().for_each(|level| level.watched = PROOF);
        race.stage = Stage::Proof;
        (race.prove(), race.turn)
    };
    assert_eq!([next(false), next(true)], [(true, 0), (false, 1)], "whether VCPU-Bal's are watched again");
}

//! Races beside VMs that take no part in them.

use super::*;

/// What a race of one ends with, where a VM beside it gets so much of a pCPU second that it wants when the racer has more than 4 vCPUs, because
/// siblings of its cores are busy, or as it waits.
fn beside(gets: f64, rate: Option<f64>, waits: bool) -> u32 {
    beside_one(entrant(0, &[16, 4, 16, 12, 8], 4, 10.0), gets, rate, waits)
}

fn beside_one(one: Entrant, gets: f64, rate: Option<f64>, waits: bool) -> u32 {
    beside_that(one, &|count, _| if count > 4 { gets } else { 1.0 }, rate, waits)
}

/// What it gets goes by the racer's number, and the time, s.
fn beside_that(one: Entrant, gets: &dyn Fn(u32, f64) -> f64, rate: Option<f64>, waits: bool) -> u32 {
    let each = |part: f64| rate.map(|rate| rate * part);
    watched_beside(one, &|count| f64::from(10 + count), gets, &each, waits).0
}

/// And what it does, and what who is beside it does of what it gets; with the numbers that were looked at for a second.
fn watched_beside(
    one: Entrant,
    does: &dyn Fn(u32) -> f64,
    gets: &dyn Fn(u32, f64) -> f64,
    rate: &dyn Fn(f64) -> Option<f64>,
    waits: bool,
) -> (u32, BTreeSet<u32>) {
    let mut watched = BTreeSet::new();
    let mut race = Race::new(std::slice::from_ref(&one), Dues::new());
    let mut at = 0.0;
    for _ in 0..2000 {
        let count = race.count(&one.id).unwrap();
        let over = race.next();
        let part = gets(count, at);
        at += over.as_secs_f64();
        let (used, waiting) = if waits { (2.0 * part, 2.0 * (1.0 - part)) } else { (2.0, 0.0) };
        let neighbour = Neighbour { id: VmId("n".into()), rate: rate(part), used, waiting };
        if over >= Duration::from_secs(1) {
            watched.insert(count);
        }
        let units = does(count) * 100.0 * over.as_secs_f64();
        let looks = [(one.id.clone(), Look { online: count, units, used: 1.0, part: 1.0, withheld: 0.0 })];
        race.see(over.as_secs_f64(), vec![neighbour], &looks);
        if race.look(over, &looks) {
            return (race.count(&one.id).unwrap(), watched);
        }
    }
    panic!("it does not end");
}

#[test]
fn who_has_more_vcpus_than_a_number_that_harms_others_is_not_tried_either() {
    let does = |count| match count {
        8 => 20.0,
        12 => 18.0,
        16 => 17.0,
        6 => 16.0,
        _ => 10.0,
    };
    let gets = |count, _| if count > 6 { 0.7 } else { 1.0 };
    let one = entrant(0, &[4, 4, 16, 12, 8, 6], 4, 10.0);
    // Of 8, which is best, only the proof is long enough to show what others lose; 12 and 16 are not proven any more.
    assert_eq!(watched_beside(one, &does, &gets, &|_| None, true), (6, [6, 8].into()));
}

#[test]
fn what_a_race_finds_is_not_taken_from_who_is_beside_it() {
    assert_eq!([beside(1.0, None, true), beside(1.0, Some(10_000.0), true)], [16, 16]);
    assert_eq!(beside(0.7, None, true), 4, "it counts nothing, and waits");
    assert_eq!(beside(0.7, Some(10_000.0), false), 4, "it uses as much, and does less: siblings are busy");
    assert_eq!(beside(0.7, Some(100.0), false), 16, "so few units tell nothing");
    assert_eq!(beside(0.3, Some(100.0), true), 4, "of so much they do");
    assert_eq!(beside(0.8, Some(100.0), true), 4, "both say that it loses");
    let (one, gets) = (entrant(0, &[16, 4, 16, 12, 8], 4, 10.0), |count| if count > 4 { 0.8 } else { 1.0 });
    let in_step =
        watched_beside(one, &|count| f64::from(10 + count), &|n, _| gets(n), &|_| Some(100.0), true);
    assert_eq!(in_step.0, 16, "who spins in step waits more, and may do as much");
    let end = |gets: &dyn Fn(u32, f64) -> f64| {
        beside_that(entrant(0, &[16, 4, 16, 12, 8], 4, 10.0), gets, None, true)
    };
    assert_eq!(end(&|count, at| if count > 4 && at < 0.6 { 0.2 } else { 1.0 }), 16, "turns may be as long");
    assert_eq!(end(&|count, _| if count > 12 { 0.7 } else { 1.0 }), 12, "the next best is tried");
}

#[test]
fn what_a_capped_vm_does_with_all_vcpus_is_not_taken_from_who_is_beside_it() {
    for checks in [false, true] {
        let capped = || Entrant { all: checks, few: true, ..entrant(0, &[16, 4, 16], 4, 10.0) };
        assert_eq!(beside_one(capped(), 1.0, Some(100.0), true), 16);
        assert_eq!(beside_one(capped(), 0.7, None, true), 4, "it counts nothing, and waits");
        assert_eq!(beside_one(capped(), 0.7, Some(100.0), true), 4, "nor is who counts to wait");
    }
}

/// Three raced before: with 4 vCPUs each two did 70, with 16 both 100; who has 4 alone leaves the other 160.
#[test]
fn what_one_leaves_to_others_alone_is_not_their_due() {
    let three = [0, 1, 2].map(|vm| entrant(vm, &[16, 4], 4, 10.0));
    let does = |counts: [u32; 2]| match counts {
        [16, 16] => 10_000.0,
        [4, 4] => 7_000.0,
        [4, _] => 16_000.0,
        _ => 5_000.0,
    };
    let counts = |race: &Race| [0, 1, 2].map(|vm: usize| race.count(&VmId(vm.to_string())).unwrap_or(16));
    let step = |race: &mut Race, idle: bool| {
        let (over, counts) = (race.next(), counts(race));
        let rates = [does([counts[1], counts[0]]), does([counts[0], counts[1]]), 100.0];
        let seen = [0, 1].map(|vm: usize| Neighbour {
            id: VmId(vm.to_string()),
            rate: Some(rates[vm]),
            used: 4.0,
            waiting: 0.0,
        });
        let look = |vm: usize| {
            let units = rates[vm] * over.as_secs_f64();
            (VmId(vm.to_string()), Look { online: counts[vm], units, used: 1.0, part: 1.0, withheld: 0.0 })
        };
        let third =
            Neighbour { id: VmId("2".into()), rate: None, used: if idle { 0.0 } else { 4.0 }, waiting: 0.0 };
        let looks = [0, 1, 2].map(look);
        let members = race.members.len();
        race.see(over.as_secs_f64(), seen.into_iter().chain([third]).collect(), &looks[..members]);
        race.look(over, &looks[..members])
    };
    let (mut dues, mut all) = (Dues::new(), Race::new(&three, Dues::new()));
    while !step(&mut all, false) {}
    assert_eq!(counts(&all), [16, 16, 16]);
    all.pay(&mut dues);
    // Nor is it once one of those who raced then wants nothing any more.
    for (dues, idle, ends) in [(&dues, false, 16), (&dues, true, 4), (&Dues::new(), false, 4)] {
        let mut race = Race::new(&[entrant(0, &[16, 4, 16, 12], 4, 10.0)], dues.clone());
        while !step(&mut race, idle) {}
        assert_eq!(race.count(&VmId("0".into())), Some(ends), "{idle}");
    }
}

#[test]
fn who_has_fewer_than_vcpu_bals_count_says_nothing_of_that() {
    let does = |count| match count {
        8 => 22.0,
        4 => 21.8,
        _ => 10.0,
    };
    let gets = |count, _| if count == 2 { 0.7 } else { 1.0 };
    let (end, watched) = watched_beside(entrant(0, &[2, 4, 16, 8], 4, 10.0), &does, &gets, &|_| None, true);
    assert!(end == 4 && watched.contains(&4), "{end} {watched:?}");
}

//! Races on numbers.

mod beside;
mod fair;
mod falls;
mod step;

use super::*;

fn entrant(number: usize, counts: &[u32], bal: u32, allowed: f64) -> Entrant {
    Entrant {
        id: VmId(number.to_string()),
        counts: counts.iter().copied().map(Some).collect(),
        bal,
        of_phase: false,
        known: Stat::default(),
        all: false,
        few: false,
        window: Duration::from_millis(100),
        allowed,
    }
}

/// Rate and pCPUs used of a VM, by its number and all counts.
type Does<'a> = &'a dyn Fn(usize, &[u32]) -> (f64, f64);

/// Runs a race on rates and pCPUs used by VM and all counts; the counts that it ends with, and what it cost.
fn race(entrants: &[Entrant], does: Does<'_>) -> (Vec<u32>, f64) {
    let mut race = Race::new(entrants, Dues::new());
    let counts = |race: &Race| -> Vec<u32> { entrants.iter().filter_map(|e| race.count(&e.id)).collect() };
    for _ in 0..10_000 {
        let (now, over) = (counts(&race), race.next());
        let look = |(number, entrant): (usize, &Entrant)| {
            let (rate, used) = does(number, &now);
            let units = rate * over.as_secs_f64();
            (entrant.id.clone(), Look { online: now[number], units, used, part: 1.0, withheld: 0.0 })
        };
        let looks: Vec<(VmId, Look)> = entrants.iter().enumerate().map(look).collect();
        if race.look(over, &looks) {
            return (counts(&race), race.cost());
        }
    }
    panic!("it does not end");
}

const STEP: Duration = Duration::from_millis(10);

/// Runs a race of one VM to its end, in looks of whole 10 ms. `does`: what its guest makes of the count that is wanted, for so long: vCPUs
/// online and units of work.
fn follow(one: &Entrant, mut does: impl FnMut(u32, Duration) -> (u32, f64)) -> Race {
    let mut race = Race::new(std::slice::from_ref(one), Dues::new());
    let mut at = Duration::ZERO;
    for _ in 0..2000 {
        let Some(wanted) = race.count(&one.id) else { panic!("it is in the race") };
        let over = STEP * u32::try_from(race.next().as_nanos().div_ceil(STEP.as_nanos())).unwrap();
        let (online, units) = does(wanted, over);
        at += over;
        assert!(at < Duration::from_secs(300), "it does not end");
        if race.look(over, &[(one.id.clone(), Look { online, units, used: 1.0, part: 1.0, withheld: 0.0 })]) {
            return race;
        }
    }
    panic!("it does not end");
}

/// Alone, all counts.
fn alone(rates: &dyn Fn(u32) -> f64, counts: &[u32], allowed: f64) -> (u32, f64) {
    let one = Entrant { all: true, ..entrant(0, counts, 4, allowed) };
    let (counts, lost) = race(&[one], &|_, counts| (rates(counts[0]), 1.0));
    (counts[0], lost)
}

#[test]
fn in_a_race_of_a_known_phase_nothing_is_said_of_vcpu_bals_number() {
    let does = |wanted: u32, over: Duration| (wanted, 100.0 * f64::from(wanted) * over.as_secs_f64());
    let one = entrant(0, &[2, 8, 4], 8, 2.0);
    let race = follow(&one, does);
    assert!(race.of_bal(&one.id).is_some() && race.found(&one.id).unwrap().1 == Some(1.0));
    let known = Entrant { of_phase: true, ..one };
    let race = follow(&known, does);
    assert_eq!(race.count(&known.id), Some(8));
    assert!(race.of_bal(&known.id).is_none() && race.found(&known.id).unwrap().1.is_none());
}

#[test]
fn it_finds_the_best_of_a_rugged_landscape_and_costs_little() {
    let rates = |n: u32| match n {
        16 => 1000.0,
        12 => 1100.0,
        _ => 90.0 + f64::from(n),
    };
    let all: Vec<u32> = [16, 4].into_iter().chain((1..=16).rev()).collect();
    let (best, lost) = alone(&rates, &all, 10.0);
    assert_eq!(best, 12);
    assert!(lost < 2.5, "VCPU-Bal's counts for a second: {lost}");
}

#[test]
fn where_a_sure_count_is_clearly_best_of_them_the_others_are_not_even_tried() {
    for (best, worst) in [(16, 4), (4, 16)] {
        let mut tried = BTreeSet::new();
        let one = entrant(0, &[16, 4, 16, 15, 12, 8, 3], 4, 10.0);
        let race = follow(&one, |online, over| {
            tried.insert(online);
            (online, over.as_secs_f64() * if online == worst { 100.0 } else { 1000.0 })
        });
        assert_eq!(race.count(&one.id), Some(best));
        assert_eq!(tried, [4, 16].into());
        assert!(race.cost() < 1.0, "VCPU-Bal's counts for a second: {}", race.lost);
    }
}

/// How long all vCPUs, which are what there is, are looked at before VCPU-Bal's number is, where they count so many units a second.
fn first_look_at(rate: f64, few: bool) -> f64 {
    let (mut first, mut over) = (0.0, false);
    follow(&Entrant { few, ..entrant(0, &[16, 4, 16], 4, 10.0) }, |online, time| {
        let seconds = time.as_secs_f64();
        over |= online == 4;
        first += if over { 0.0 } else { seconds };
        (online, seconds * if online == 16 { rate } else { 130.0 })
    });
    first
}

#[test]
fn what_counts_nothing_at_first_is_looked_at_for_half_of_the_time() {
    let (nothing, little) = (first_look_at(0.0, false), first_look_at(2.0, false));
    assert!((0.5..0.65).contains(&nothing) && little >= 1.0, "{nothing} {little}");
    assert!(first_look_at(0.0, true) >= 1.0, "with a cap threads may fall into step");
}

#[test]
fn a_first_race_has_a_round_less_than_one_with_time_to_watch_on() {
    // Three numbers in turns of 0.1, 0.2, 0.4 and, of one that is not the first, 0.8 s, before anything is proven.
    let longest = |all: bool| {
        let one = Entrant { all, ..entrant(0, &[16, 4, 16, 12], 4, 10.0) };
        let (mut at, mut turn, mut longest) = (0, 0.0, 0.0_f64);
        follow(&one, |online, over| {
            turn = if online == at { turn } else { 0.0 } + over.as_secs_f64();
            at = online;
            longest = longest.max(if online == 16 { 0.0 } else { turn });
            // All are best by a little, and so the only ones that are proven.
            (online, over.as_secs_f64() * if online == 16 { 1000.0 } else { 900.0 })
        });
        longest
    };
    let (first, later) = (longest(false), longest(true));
    assert!(first < 0.6 && later > 0.8, "{first} {later}");
}

/// Where threads hand their work on by turns, one vCPU may do more than two.
#[test]
fn one_vcpu_is_tried_where_two_are_clearly_best() {
    for (alone, best) in [(1500.0, 1), (300.0, 2)] {
        let mut tried = BTreeSet::new();
        let race = follow(&entrant(0, &[16, 2, 16, 15, 12, 8, 1], 2, 10.0), |online, over| {
            tried.insert(online);
            let rate = [100.0, alone, 1000.0][if online > 2 { 0 } else { online as usize }];
            (online, over.as_secs_f64() * rate)
        });
        assert_eq!((race.count(&VmId("0".into())), tried), (Some(best), [1, 2, 16].into()));
        assert!(race.cost() < 1.0, "{}", race.cost());
    }
    // Nor is it given up by the time that threads need to come together, where little is counted.
    let (mut since, mut before) = (0.0, 16);
    let race = follow(&entrant(0, &[16, 2, 16, 1], 2, 10.0), |online, over| {
        since = if online == before { since + over.as_secs_f64() } else { over.as_secs_f64() };
        before = online;
        let rate =
            [2.0, if since < 0.12 { 0.0 } else { 80.0 }, 40.0][if online > 2 { 0 } else { online as usize }];
        (online, over.as_secs_f64() * rate)
    });
    assert_eq!(race.count(&VmId("0".into())), Some(1));
}

#[test]
fn one_vcpu_is_tried_where_some_of_eight_vms_counted_nothing_yet() {
    let eight: Vec<Entrant> = (0..8).map(|vm| entrant(vm, &[16, 2, 16, 12, 1], 2, 10.0)).collect();
    let rate = |vm: usize, n: u32| {
        [3.0, 90.0, 40.0][if n > 2 { 0 } else { n as usize }] / if vm == 0 { 10.0 } else { 1.0 }
    };
    let (counts, _) = race(&eight, &|vm, counts| (rate(vm, counts[vm]), 1.0));
    assert_eq!(counts[1..], [1; 7]);
}

/// Eight VMs, of which some counted little in the proof of 3 vCPUs each: what was seen of 2 each, which are VCPU-Bal's numbers, tells as little,
/// so these are proven, too.
#[test]
fn what_some_vms_count_coarsely_does_not_take_the_place_of_vcpu_bals_numbers() {
    let eight: Vec<Entrant> = (0..8).map(|vm| entrant(vm, &[16, 2, 16, 3], 2, 10.0)).collect();
    let mut race = Race::new(&eight, Dues::new());
    let stat =
        |units, seconds| Stat { units, seconds, used: 2.0 * seconds, part: 2.0 * seconds, ..Stat::default() };
    for (member, units) in race.members.iter_mut().zip([6.0, 27.0, 21.0, 3.0, 3.0, 6.0, 9.0, 8.0]) {
        member.stats = vec![stat(2.0, 0.5), stat(1.0, 0.3), stat(4.0, 0.5)];
        member.proofs[2] = stat(units, 2.0);
    }
    (race.turn, race.stage) = (2, Stage::Proof);
    race.levels[2].watched = PROOF;
    assert!(!race.prove(), "it is not over");
    assert_eq!(race.count(&VmId("0".into())), Some(2));
}

#[test]
fn one_unit_more_or_less_makes_nothing_clear() {
    let left = |units: [f64; 2]| {
        let mut race = Race::new(&[entrant(0, &[16, 4, 16, 8], 4, 10.0)], Dues::new());
        for (stat, units) in race.members[0].stats.iter_mut().zip(units) {
            *stat = Stat { seconds: 0.5, units, used: 0.5, part: 0.5, ..Stat::default() };
        }
        race.leave_others();
        race.levels.iter().filter(|level| !level.out).count()
    };
    assert_eq!(left([1.0, 4.0]), 3, "two of four are a half");
    assert_eq!(left([0.0, 4.0]), 1);
    assert_eq!(left([1.0, 2.0]), 1, "so few tell nothing of the others either");
}

/// All vCPUs that are held are seen in the proof alone.
#[test]
fn who_followed_to_no_other_count_was_not_compared() {
    let does = |deaf: bool| {
        let rate = |online| if online == 16 { 1500.0 } else { 500.0 };
        move |wanted: u32, over: Duration| {
            let online = if deaf { 16 } else { wanted };
            (online, over.as_secs_f64() * rate(online))
        }
    };
    let held = Entrant { all: true, few: true, ..entrant(0, &[4, 4, 16], 4, 10.0) };
    let race = follow(&held, does(false));
    assert_eq!((race.count(&held.id), race.only_as_it_was(&held.id)), (Some(16), false));
    let race = follow(&entrant(0, &[16, 4, 16], 4, 10.0), does(true));
    assert!(race.only_as_it_was(&held.id));
}

#[test]
fn more_vcpus_than_before_are_come_to_by_way_of_all() {
    let mut race = Race::new(&[entrant(0, &[16, 4, 16, 8], 4, 10.0)], Dues::new());
    let id = VmId("0".into());
    race.turn = 2;
    race.go_from(1);
    assert_eq!(race.levels.len(), 3);
    assert_eq!((race.count(&id), race.next()), (Some(16), PER_VCPU * 12));
    let look = Look { online: 16, units: 1.0, used: 1.0, part: 1.0, withheld: 0.0 };
    assert!(!race.look(race.next(), &[(id.clone(), look)]));
    assert_eq!(race.count(&id), Some(8));
    race.turn = 1;
    race.go_from(2);
    assert_eq!(race.count(&id), Some(4), "fewer at once");
}

#[test]
fn vcpu_bals_counts_are_watched_before_they_are_given_up_for_what_does_hardly_more_than_a_look_shows() {
    // All did much when the race began and does nothing later; VCPU-Bal's does nothing just after a change.
    let end = |later: f64| {
        let one = entrant(0, &[16, 4], 4, 10.0);
        let (mut at, mut since, mut before) = (0.0, 0.0, 16);
        let race = follow(&one, |online, over| {
            let seconds = over.as_secs_f64();
            since = if online == before { since + seconds } else { seconds };
            (at, before) = (at + seconds, online);
            let rate = match online {
                16 if at < 0.5 => 200.0,
                16 => later,
                _ if since < 0.3 => 0.0,
                _ => 100.0,
            };
            (online, rate * seconds)
        });
        race.count(&one.id)
    };
    assert_eq!(end(0.0), Some(4));
    assert_eq!(end(4.0), Some(4), "a unit may have been all but done");
    assert_eq!(end(400.0), Some(16), "a look would have shown some of so many");
}

#[test]
fn it_stops_when_it_has_cost_what_it_may() {
    let rates = |n: u32| if n == 16 { 1000.0 } else { 500.0 };
    let all: Vec<u32> = (1..=16).rev().collect();
    let (best, lost) = alone(&rates, &all, 0.2);
    assert_eq!(best, 16);
    assert!(lost < 0.3, "{lost}");
}

#[test]
fn what_is_taken_from_others_is_no_gain() {
    // Four times the vCPUs take three times the pCPUs, and do twice the work.
    let does = |_: usize, counts: &[u32]| if counts[0] == 16 { (2000.0, 3.0) } else { (1000.0, 1.0) };
    assert_eq!(race(&[entrant(0, &[16, 4], 4, 10.0)], &does).0, [4]);
}

#[test]
fn vms_end_where_all_are_best_off_though_each_would_gain_by_having_more_than_the_others() {
    let does = |vm: usize, counts: &[u32]| {
        let part = 2.0 * f64::from(counts[vm]) / f64::from(counts.iter().sum::<u32>());
        (part * if counts[vm] <= 4 { 1000.0 } else { 700.0 }, part.min(1.0))
    };
    let two = [entrant(0, &[16, 4, 16, 8], 4, 10.0), entrant(1, &[16, 4, 16, 8], 4, 10.0)];
    assert_eq!(race(&two, &does).0, [4, 4]);
}

#[test]
fn each_gets_what_is_best_for_it_where_that_is_better_for_all() {
    let does = |vm: usize, counts: &[u32]| (if counts[vm] == [4, 16][vm] { 1000.0 } else { 600.0 }, 1.0);
    let two = [entrant(0, &[16, 4, 16, 8], 4, 10.0), entrant(1, &[16, 4, 16, 8], 4, 10.0)];
    assert_eq!(race(&two, &does).0, [4, 16]);
}

#[test]
fn who_is_gone_does_not_hold_up_the_others() {
    let two = [entrant(0, &[16, 4], 4, 10.0), entrant(1, &[16, 4], 4, 10.0)];
    let mut race = Race::new(&two, Dues::new());
    let look = |online| Look { online, units: f64::from(online), used: 1.0, part: 1.0, withheld: 0.0 };
    let mut over = false;
    for _ in 0..1000 {
        let Some(online) = race.count(&two[1].id).filter(|_| !over) else { break };
        over = race.look(race.next(), &[(two[1].id.clone(), look(online))]);
    }
    assert!(over && race.count(&two[0].id).is_none());
}

/// Chance: the upper bits may be taken for random ones.
fn mixed(number: u64) -> u64 {
    let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ (mixed >> 31)).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

/// Runs a race of one VM that does units one by one, each after so many steps by chance, as many per second on the average; where it ends.
fn by_chance(seed: u64, steps: u32, rate: impl Fn(u32) -> f64) -> u32 {
    let one = Entrant { all: true, ..entrant(0, &[2, 2, 8, 7, 6, 4, 3], 2, 5.0) };
    // Whether something is done in a moment.
    let (mut step, mut done) = (seed << 32, 0);
    let mut chance = |rate: f64| {
        step += 1;
        let part = f64::from(u32::try_from(mixed(step) >> 40).unwrap_or(0)) / f64::from(1 << 24);
        done += u32::from(part < rate * f64::from(steps) * STEP.as_secs_f64());
        let unit = done == steps;
        done %= steps;
        f64::from(u32::from(unit))
    };
    let race = follow(&one, |online, over| {
        let moments = over.as_nanos() / STEP.as_nanos();
        (online, (0..moments).map(|_| chance(rate(online))).sum())
    });
    race.count(&one.id).unwrap_or(0)
}

#[test]
fn what_work_that_is_done_by_chance_cannot_tell_from_vcpu_bals_count_does_not_take_its_place() {
    let ends = |steps: u32, rate: fn(u32) -> f64, count: u32| {
        (0..40).filter(|seed| by_chance(*seed, steps, rate) == count).count()
    };
    let alike = ends(1, |_| 10.0, 2);
    assert!(alike >= 25, "{alike} of 40");
    let alike = ends(3, |_| 10.0, 2);
    assert!(alike >= 30, "{alike} of 40");
    let twice = ends(1, |n| if n == 4 { 20.0 } else { 10.0 }, 4);
    assert!(twice >= 30, "{twice} of 40");
    // As LU on a real VM, at most (docs/measured.md).
    let somewhat = ends(3, |n| [0.0, 5.0, 10.0, 10.5, 11.7, 10.0, 10.0, 10.0, 5.0][n as usize], 4);
    assert!(somewhat >= 35, "{somewhat} of 40");
    let worse = ends(3, |n| if n == 2 { 10.0 } else { 9.0 }, 2);
    assert!(worse >= 38, "{worse} of 40");
}

/// LU with all its vCPUs on a real VM: in step for some seconds, then not.
#[test]
fn what_varies_from_turn_to_turn_does_not_take_the_place_of_vcpu_bals_count_by_luck() {
    let ends = |seed: u64| {
        let one = Entrant { all: true, ..entrant(0, &[2, 2, 8, 7, 6, 4, 3], 2, 5.0) };
        let (mut at, mut done) = (Duration::ZERO, 0.0);
        let race = follow(&one, |online, over| {
            at += over;
            // In step or not, for 5 s each, by chance.
            let in_step = mixed(at.as_secs() / 5 + (seed << 20)) >> 63 == 0;
            let rate = match online {
                2 => 100.0,
                8 if in_step => 180.0,
                8 => 20.0,
                _ => 80.0,
            };
            let before = f64::floor(done);
            done += rate * over.as_secs_f64();
            (online, f64::floor(done) - before)
        });
        race.count(&one.id)
    };
    let lucky = (0..40).filter(|seed| ends(*seed) == Some(8)).count();
    assert!(lucky <= 5, "{lucky} of 40");
}

/// A guest that takes part with what `has` makes of the count wanted and the number of the look, ten units a second, to its end.
fn follow_at_will(all: bool, has: impl Fn(u32, u32) -> u32) {
    let one = Entrant { all, ..entrant(0, &[2, 2, 8, 6, 4, 3], 2, 5.0) };
    let mut looks = 0..;
    follow(&one, |wanted, over| {
        let online = has(wanted, looks.next().unwrap_or(u32::MAX));
        (online, (if online == 4 { 14.0 } else { 10.0 } * over.as_secs_f64()).round())
    });
}

#[test]
fn it_ends_whenever_a_guest_stops_following() {
    for all in [false, true] {
        for until in 0..300 {
            for stuck in [2, 4, 8] {
                follow_at_will(all, |wanted, number| if number < until { wanted } else { stuck });
                // By turns, as of one that brings vCPUs online again.
                follow_at_will(
                    all,
                    |wanted, number| if number < until || number % 2 == 0 { wanted } else { stuck },
                );
            }
        }
    }
}

#[test]
fn a_race_that_is_broken_off_ends_soon_where_it_began_unless_it_is_a_first_one() {
    for (patient, looks) in [true, false].into_iter().flat_map(|all| (1..300).map(move |looks| (all, looks)))
    {
        let one = Entrant { all: patient, ..entrant(0, &[4, 2, 8, 6, 4, 3], 2, 5.0) };
        let mut race = Race::new(std::slice::from_ref(&one), Dues::new());
        let look = |race: &mut Race| {
            let (online, over) = (race.count(&one.id).unwrap(), race.next());
            let units = (if online == 3 { 12.0 } else { 10.0 } * over.as_secs_f64()).round();
            race.look(over, &[(one.id.clone(), Look { online, units, used: 1.0, part: 1.0, withheld: 0.0 })])
        };
        if (0..looks).any(|_| look(&mut race)) {
            continue;
        }
        let back = race.stage == Stage::Back;
        assert_eq!(race.break_off(), patient && !back, "after {looks} looks");
        if patient && !back {
            assert!((0..3).any(|_| look(&mut race)), "it goes on after {looks} looks");
            assert_eq!(race.count(&one.id), Some(4), "after {looks} looks");
        }
    }
}

#[test]
fn vcpu_bals_count_does_not_take_the_place_of_what_did_much_more_when_the_budget_is_used_up() {
    let one = Entrant { all: true, ..entrant(0, &[4, 2, 8], 2, 0.1) };
    let race =
        follow(&one, |online, over| (online, if online == 4 { 10.0 } else { 4.0 } * over.as_secs_f64()));
    assert_eq!(race.count(&one.id), Some(4));
}

/// What it did since things are otherwise counts as well as what a look shows when the race begins.
#[test]
fn what_is_known_of_what_there_is_counts() {
    let end = |known: Stat| {
        let one = Entrant { known, ..entrant(0, &[16, 4], 4, 10.0) };
        let mut left = false;
        let race = follow(&one, |online, over| {
            left |= online == 4;
            let rate = match online {
                16 if left => 300.0,
                16 => 10.0,
                _ => 100.0,
            };
            (online, over.as_secs_f64() * rate)
        });
        race.count(&one.id)
    };
    assert_eq!(end(Stat::default()), Some(4));
    assert_eq!(end(Stat { seconds: 4.0, units: 1200.0, used: 4.0, part: 4.0, ..Stat::default() }), Some(16));
}

/// What a search left out since it had cost what it may is looked at soon, as where things were clear.
#[test]
fn a_race_that_is_cut_short_says_that_it_left_counts_out() {
    let left = |allowed: f64| {
        let rate = |online: u32| if online == 4 { 100.0 } else { 60.0 };
        follow(&entrant(0, &[16, 4, 16, 15, 12, 8], 4, allowed), |n, over| (n, over.as_secs_f64() * rate(n)))
            .left_others
    };
    assert_eq!((left(0.1), left(10.0)), (true, false));
}

/// Whoever counts one unit in some seconds counts all the same.
#[test]
fn where_nothing_was_counted_yet_vcpu_bals_count_is_looked_at_until_it_is() {
    let silent = |has: u32, until: f64| {
        let mut at = 0.0;
        let race = follow(&entrant(0, &[has, 4, 16, 12], 4, 2.0), |count, over| {
            at += over.as_secs_f64();
            (count, if count == 4 && at > until { 10.0 * over.as_secs_f64() } else { 0.0 })
        });
        race.found(&VmId("0".into())).is_none()
    };
    for has in [16, 4] {
        assert_eq!([3.0, 60.0].map(|until| silent(has, until)), [false, true], "{has}");
    }
}

/// Two VMs: with all vCPUs the first does five times as much, and takes from the second, whose part by weight is two pCPUs.
#[test]
fn what_all_gain_together_is_not_taken_from_one() {
    let entrants = [entrant(0, &[8, 2, 8, 4], 2, 10.0), entrant(1, &[2, 2, 2, 1], 2, 10.0)];
    let does = |number: usize, counts: &[u32]| match (number, counts) {
        (0, [8, _]) => (500.0, 1.0),
        (0, [4, _]) => (300.0, 1.0),
        (0, _) => (100.0, 1.0),
        // Beside all vCPUs of the other, or with one of its own, it does less.
        (_, [8, _]) => (50.0, 1.0),
        (_, [_, 1]) => (70.0, 1.0),
        (_, _) => (100.0, 1.0),
    };
    let (counts, _) = race(&entrants, &does);
    assert_eq!(counts[1], 2, "it keeps what it is entitled to: {counts:?}");
    assert_ne!(counts[0], 8, "{counts:?}");
    // Who loses nothing by it lets the other have it.
    let harmless = |number: usize, counts: &[u32]| if number == 1 { (100.0, 1.0) } else { does(0, counts) };
    assert_eq!(race(&entrants, &harmless).0[0], 8);
}

#[test]
fn what_a_vm_did_with_vcpu_bals_counts_is_of_when_all_had_theirs() {
    let mut race =
        Race::new(&[entrant(0, &[8, 2, 8], 2, 10.0), entrant(1, &[2, 2, 2], 2, 10.0)], Dues::new());
    let seen = |units| Stat { seconds: 1.0, units, used: 1.0, part: 1.0, ..Stat::default() };
    race.members[1].stats[0] = seen(50.0);
    let id = VmId("1".into());
    assert_eq!(race.of_bal(&id).and_then(|stat| stat.value()), Some(50.0), "nothing else was seen");
    race.members[1].stats[1] = seen(100.0);
    assert_eq!(race.of_bal(&id).and_then(|stat| stat.value()), Some(100.0));
}

#[test]
fn one_that_is_counted_coarsely_is_waited_for_however_finely_others_are() {
    let mut race = Race::new(&[entrant(0, &[8, 2], 2, 10.0), entrant(1, &[8, 2], 2, 10.0)], Dues::new());
    let seen = |units| Stat { seconds: 1.0, units, used: 1.0, part: 1.0, ..Stat::default() };
    let mut units = |a, b| {
        (race.members[0].stats[0], race.members[1].stats[0]) = (seen(a), seen(b));
        race.together(0).units
    };
    assert!((units(10.0, 10.0) - 20.0).abs() < 1e-9, "alike: all of them");
    assert!(units(300.0, 5.0) < 20.0);
    assert!((units(3.0, 0.0) - 3.0).abs() < 1e-9, "never more than there are");
}

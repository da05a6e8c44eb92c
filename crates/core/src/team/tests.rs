//! The controller in a small world, interval by interval.

use super::*;

const STEP: Duration = Duration::from_millis(50);

/// A machine of `cpus` beside an equal-weight group that keeps `hogs` CPUs busy if it can.
struct World {
    at: Time,
    cpus: u32,
    hogs: u32,
    quota: Option<Cpus>,
    entitled: Option<Cpus>,
}

impl World {
    fn new(cpus: u32, hogs: u32) -> World {
        World { at: Time(0), cpus, hogs, quota: None, entitled: None }
    }

    fn interval(&mut self, team: u32) -> Interval {
        self.at = self.at + STEP;
        let (cpus, hogs, n) = (f64::from(self.cpus), f64::from(self.hogs), f64::from(team));
        let run = n.min((cpus - hogs).max(cpus / 2.0));
        Interval {
            at: self.at,
            length: STEP,
            run: Cpus(run),
            wait: Cpus(n - run),
            idle: Cpus((cpus - hogs - run).max(0.0)),
            allowed: self.cpus,
            quota: self.quota,
            entitled: self.entitled,
            team,
            ..Interval::default()
        }
    }

    fn run(&mut self, control: &mut TeamController, steps: u32) -> Vec<u32> {
        (0..steps)
            .map(|_| {
                let seen = self.interval(control.team());
                control.step(&seen).team
            })
            .collect()
    }
}

#[test]
fn a_team_is_worth_its_slowest_member() {
    for (cpus, team) in [(0.2, 1), (1.0, 1), (1.5, 1), (1.6, 2), (1.96, 2), (2.0, 2), (7.6, 7), (7.95, 8)] {
        assert_eq!(team_for(Cpus(cpus)), team, "{cpus}");
    }
}

#[test]
fn a_lost_cpu_is_given_up_after_one_interval() {
    let mut control = TeamController::new(2, 2, false);
    assert_eq!(World::new(2, 2).run(&mut control, 1), [1]);
}

#[test]
fn sixteen_threads_that_get_two_cpus_become_two() {
    let mut control = TeamController::new(16, 16, false);
    let seen = Interval {
        at: Time(50_000_000),
        length: STEP,
        run: Cpus(2.0),
        wait: Cpus(14.0),
        allowed: 16,
        team: 16,
        ..Interval::default()
    };
    assert_eq!(control.step(&seen).team, 2);
}

#[test]
fn stolen_time_counts_as_waiting() {
    let mut control = TeamController::new(8, 8, false);
    let seen = Interval {
        at: Time(50_000_000),
        length: STEP,
        run: Cpus(2.0),
        steal: Cpus(6.0),
        allowed: 8,
        team: 8,
        ..Interval::default()
    };
    assert_eq!(control.step(&seen).team, 2);
}

#[test]
fn idle_cpus_are_taken_after_the_hold() {
    let mut world = World::new(2, 2);
    let mut control = TeamController::new(1, 2, false);
    assert_eq!(world.run(&mut control, 2), [1, 1]);
    world.hogs = 0;
    assert_eq!(world.run(&mut control, 3), [1, 2, 2]);
}

#[test]
fn growth_that_is_regretted_waits_twice_as_long_each_time() {
    let mut world = World::new(2, 0);
    let mut control = TeamController::new(1, 2, false);
    let mut waits = vec![];
    for _ in 0..4 {
        world.hogs = 0;
        let teams = world.run(&mut control, 100);
        waits.push(teams.iter().take_while(|t| **t == 1).count());
        world.hogs = 2;
        // Regret at once: rewind to just after growth.
        world.at = control.grew_at.unwrap();
        world.run(&mut control, 1);
        assert_eq!(control.team(), 1);
    }
    assert_eq!(waits, [1, 3, 7, 15]);
}

#[test]
fn blind_probes_back_off_exponentially() {
    let mut world = World::new(2, 2);
    let mut control = TeamController::new(1, 2, false);
    let teams = world.run(&mut control, 20 * 60);
    let probes: Vec<usize> = (1..teams.len()).filter(|&i| teams[i] > teams[i - 1]).collect();
    assert!((3..=5).contains(&probes.len()), "{probes:?}");
    let gaps: Vec<usize> = probes.windows(2).map(|w| w[1] - w[0]).collect();
    assert!(gaps.windows(2).all(|g| g[1] >= 2 * g[0] - 5), "{gaps:?}");
    assert!(teams.iter().filter(|t| **t == 2).count() <= probes.len());
}

#[test]
fn a_team_below_what_it_is_entitled_to_grows_to_it_at_once() {
    let mut world = World::new(16, 16);
    world.entitled = Some(Cpus(8.0));
    let mut control = TeamController::new(1, 16, false);
    assert_eq!(world.run(&mut control, 4), [1, 8, 8, 8]);
}

#[test]
fn what_the_host_tells_limits_teams_as_cpus_that_are_not_there() {
    let mut control = TeamController::new(4, 4, false);
    let mut world = World::new(4, 0);
    let mut step = |told: Option<f64>| {
        let seen = Interval { told: told.map(Cpus), ..world.interval(control.team()) };
        let Decision { team, available, why } = control.step(&seen);
        (team, available, why)
    };
    assert_eq!(step(Some(1.5)), (1, Cpus(1.0), Why::Limited));
    assert_eq!(
        step(Some(0.25)),
        (1, Cpus(0.25), Why::Steady),
        "no more than is told is said to be available"
    );
    assert_eq!(step(None).0, 4, "what was only just allowed is taken at once");
}

#[test]
fn independent_threads_share_what_the_host_gives() {
    let mut control = TeamController::new(4, 4, true);
    let seen = Interval { told: Some(Cpus(1.5)), ..World::new(4, 0).interval(4) };
    assert_eq!(control.step(&seen), Decision { team: 4, available: Cpus(1.5), why: Why::Steady });
}

#[test]
fn independent_threads_follow_the_cpus_allowed_whoever_else_runs() {
    let mut world = World::new(2, 2);
    let mut control = TeamController::new(2, 2, true);
    assert_eq!(world.run(&mut control, 3), [2, 2, 2]);
    let mut narrow = world.interval(2);
    narrow.allowed = 1;
    assert_eq!(control.step(&narrow).why, Why::Limited);
    assert_eq!(control.team(), 1);
    let wide = world.interval(1);
    assert_eq!((control.step(&wide).why, control.team()), (Why::Unlimited, 2));
}

#[test]
fn known_entitlement_makes_probes_needless() {
    let mut world = World::new(2, 2);
    world.entitled = Some(Cpus(1.0));
    let mut control = TeamController::new(1, 2, false);
    assert!(world.run(&mut control, 2000).iter().all(|t| *t == 1));
}

#[test]
fn a_probe_that_finds_cpus_is_kept_and_one_that_slows_the_program_is_undone() {
    for (rate_after, kept) in [(30, true), (15, false)] {
        let mut control = TeamController::new(1, 2, false);
        let mut at = Time(0);
        let mut teams = vec![];
        for _ in 0..60 {
            at = at + STEP;
            let team = control.team();
            let seen = Interval {
                at,
                length: STEP,
                run: Cpus(f64::from(team)),
                allowed: 2,
                team,
                regions: Some(if team == 2 { rate_after } else { 16 }),
                ..Interval::default()
            };
            teams.push(control.step(&seen).team);
        }
        assert!(teams.contains(&2));
        assert_eq!(*teams.last().unwrap() == 2, kept);
    }
}

#[test]
fn a_quota_keeps_the_threads_that_use_it_up() {
    let mut world = World::new(4, 0);
    for (quota, team) in [(1.0, 1), (1.5, 2), (2.05, 2), (0.3, 1)] {
        world.quota = Some(Cpus(quota));
        let mut control = TeamController::new(4, 4, false);
        assert_eq!(world.run(&mut control, 1), [team]);
    }
}

#[test]
fn a_narrower_cpuset_is_followed_at_once_in_both_directions() {
    let mut world = World::new(2, 0);
    let mut control = TeamController::new(2, 2, false);
    world.run(&mut control, 3);
    world.cpus = 1;
    assert_eq!(world.run(&mut control, 1), [1]);
    world.cpus = 2;
    assert_eq!(world.run(&mut control, 1), [2]);
}

#[test]
fn short_noise_is_ignored_and_a_lasting_small_loss_is_not() {
    let mut control = TeamController::new(8, 8, false);
    let seen = |at: u64, wait: f64| Interval {
        at: Time(at * 50_000_000),
        length: STEP,
        run: Cpus(8.0 - wait),
        wait: Cpus(wait),
        allowed: 8,
        team: 8,
        ..Interval::default()
    };
    assert_eq!(control.step(&seen(1, 0.3)).team, 8);
    assert_eq!(control.step(&seen(2, 0.0)).team, 8);
    assert_eq!(control.step(&seen(3, 0.3)).team, 8);
    assert_eq!(control.step(&seen(4, 0.3)).team, 7);
}

#[test]
fn a_serial_phase_does_not_shrink_the_team() {
    let mut control = TeamController::new(2, 2, false);
    let seen = Interval {
        at: Time(50_000_000),
        length: STEP,
        run: Cpus(1.0),
        idle: Cpus(1.0),
        allowed: 2,
        team: 2,
        ..Interval::default()
    };
    assert_eq!(control.step(&seen).team, 2);
}

#[test]
fn what_threads_that_sleep_would_have_got_is_not_told_as_available() {
    let available = |run: f64, wait: f64, idle: f64| {
        let mut control = TeamController::new(8, 8, false);
        let seen = Interval {
            at: Time(50_000_000),
            length: STEP,
            run: Cpus(run),
            wait: Cpus(wait),
            idle: Cpus(idle),
            allowed: 8,
            team: 8,
            ..Interval::default()
        };
        let decision = control.step(&seen);
        (decision.team, (decision.available.0 * 100.0).round() / 100.0)
    };
    // One thread goes on alone while others use seven CPUs: those could not be had, and the team stays.
    assert_eq!(available(1.0, 0.0, 0.0), (8, 1.0));
    assert_eq!(available(1.0, 0.05, 0.0), (8, 1.0));
    assert_eq!(available(1.0, 0.0, 2.0), (8, 3.0));
    // All eight wanted to run, now and then less than all the time.
    assert_eq!(available(3.6, 3.6, 0.0), (4, 4.0));
}

//! P3, Figures 2, 4, 6, 7 and 8: a kernel build in a VM of 10 to 160 vCPUs on 80 cores with hyperthreads, by the kernel's
//! spin lock, alone and beside another VM.
//!
//! The texts print where curves turn, not what they are. How long the build works between two takings of its contended lock, and
//! how long it holds it, is not printed: the two are fitted to Figure 2's turns at 30 and 80 vCPUs (30 (section + wake-up) =
//! 80 section = work between). The rest follows.

use anyhow::Result;
use corefit_sim::{Spec, Truth};

use super::super::testbed::{run, spec};
use super::super::{Item, Paper, Rule};
use crate::stats::{Mean, geometric, number};

const BUILD: &str = include_str!("../../../../../scenarios/p3-kernel-build.toml");
const SECTIONS: &str = "vm.build.program (lengths of sections)";
/// Steps of vCPUs, up to 160.
const STEP: u32 = 10;
const STEPS: u32 = 16;
const SEEDS: usize = 3;

/// A lock: what is set for it.
type Lock = &'static [(&'static str, &'static str)];

const PV_TICKET: usize = 0;
const OTICKET: usize = 1;
const SPINNING: usize = 2;
const WAKE_UP: usize = 3;
const LONGER: usize = 4;
const ITICKET: usize = 5;
const QUEUE: usize = 6;
const LOCKS: [Lock; 7] = [
    &[("vm.build.lock", "pv-ticket")],
    &[("vm.build.lock", "oticket")],
    &[("vm.build.lock", "oticket"), ("vm.build.oticket_wake", "1")],
    &[("vm.build.lock", "oticket"), ("vm.build.oticket_near", "0")],
    &[("vm.build.lock", "longer-spin")],
    &[("vm.build.lock", "iticket")],
    &[("vm.build.lock", "queue")],
];
/// More, where the text says so: a tie is none.
const BETTER: Rule = Rule::AtLeast(1.005);
const WORSE: Rule = Rule::AtMost(0.995);
/// Those of Figure 8.
const OVERCOMMITTED: [usize; 3] = [PV_TICKET, OTICKET, LONGER];

/// By number of vCPUs and run: what the first VM does in a second, and how often a waiter halts meanwhile.
struct Curve(Vec<Vec<(f64, f64)>>);

impl Curve {
    fn runs(&self, vcpus: u32) -> &[(f64, f64)] {
        &self.0[(vcpus / STEP - 1) as usize]
    }

    fn speed(&self, vcpus: u32, run: usize) -> f64 {
        self.runs(vcpus)[run].0
    }

    /// Halts for each time that something is done.
    fn halts(&self, vcpus: u32, run: usize) -> f64 {
        let (speed, halts) = self.runs(vcpus)[run];
        halts / speed
    }

    /// Where it is highest in the mean.
    fn best(&self) -> u32 {
        let speed = |vcpus: u32| self.runs(vcpus).iter().map(|(speed, _)| speed).sum::<f64>();
        numbers().max_by(|a, b| speed(*a).total_cmp(&speed(*b))).unwrap_or(STEP)
    }

    /// How much of its best is left.
    fn left(&self, vcpus: u32, run: usize) -> f64 {
        self.speed(vcpus, run) / self.speed(self.best(), run)
    }
}

/// The mean over runs of what one of them tells, where all hosts have the same seed.
fn mean(of: impl Fn(usize) -> f64) -> Mean {
    Mean::of((0..SEEDS).map(of)).unwrap_or(Mean { mean: f64::NAN, ci95: None, n: 0 })
}

fn numbers() -> impl Iterator<Item = u32> {
    (1..=STEPS).map(|step| step * STEP)
}

pub(super) fn items() -> Result<Vec<Item>> {
    let all: Vec<usize> = (0..LOCKS.len()).collect();
    let alone = curves(&all, 1, "P3, kernel build")?;
    let two = curves(&OVERCOMMITTED, 2, "P3, two VMs")?;
    let over =
        |a: usize, b: usize, vcpus: u32| mean(|run| alone[a].speed(vcpus, run) / alone[b].speed(vcpus, run));
    let late = |lock: usize| mean(|run| alone[lock].speed(160, run) / alone[lock].speed(110, run));
    let order = |figure, what: &str, ours: Mean, rule| {
        let item = Item::new((Paper::P3, figure), what, None, Some(ours.mean), &rule);
        item.off_by(ours.ci95).fitted(SECTIONS)
    };
    let turn = |figure, what: &str, theirs: f64, ours: u32| {
        let ours = Some(f64::from(ours));
        Item::new((Paper::P3, figure), what, Some(theirs), ours, &Rule::Within(25.0)).fitted(SECTIONS)
    };
    // Quiet: at most one halt for ten jobs of the build.
    let quiet =
        numbers().take_while(|n| mean(|run| alone[PV_TICKET].halts(*n, run)).mean <= 0.1).last().unwrap_or(0);
    let farthest = numbers().map(|n| over(ITICKET, OTICKET, n)).max_by(|a, b| {
        let far = |x: &Mean| x.mean.ln().abs();
        far(a).total_cmp(&far(b))
    });
    let ratio = |a: usize, b: usize, range: std::ops::RangeInclusive<u32>| {
        mean(|run| {
            let within = numbers().filter(|n| range.contains(n));
            let ratios = within.map(|n| two[a].speed(n, run) / two[b].speed(n, run));
            geometric(ratios).map_or(f64::NAN, |mean| mean.mean)
        })
    };
    let [pv, oticket, longer] = [0, 1, 2];
    Ok(vec![
        turn("Figure 2", "pv-ticket: vCPUs with which most is done", 30.0, alone[PV_TICKET].best()),
        order(
            "Figure 2",
            "pv-ticket collapses: 50 vCPUs over its best",
            mean(|run| alone[PV_TICKET].left(50, run)),
            Rule::AtMost(0.9),
        ),
        turn("Figure 2", "oticket: vCPUs with which most is done", 80.0, alone[OTICKET].best()),
        order("Figure 2", "oticket over pv-ticket, 80 vCPUs", over(OTICKET, PV_TICKET, 80), BETTER),
        order(
            "Figure 2",
            "what oticket keeps of its best with 150 vCPUs, over what pv-ticket keeps",
            mean(|run| alone[OTICKET].left(150, run) / alone[PV_TICKET].left(150, run)),
            BETTER,
        ),
        turn("Figure 4", "pv-ticket: vCPUs up to which nearly nobody halts", 30.0, quiet),
        order(
            "Figure 4",
            "oticket's halts over pv-ticket's, for each job, 80 vCPUs",
            mean(|run| alone[OTICKET].halts(80, run) / alone[PV_TICKET].halts(80, run)),
            Rule::AtMost(0.1),
        ),
        order(
            "Figure 6",
            "oticket over spinning alone, 80 vCPUs (\"slightly better\")",
            over(OTICKET, SPINNING, 80),
            Rule::Between(1.005, 1.25),
        ),
        order(
            "Figure 6",
            "oticket over wake-up alone, 80 vCPUs (\"slightly better\")",
            over(OTICKET, WAKE_UP, 80),
            Rule::Between(1.005, 1.25),
        ),
        order("Figure 6", "spinning alone degrades: 160 over 110 vCPUs", late(SPINNING), WORSE),
        order("Figure 6", "wake-up alone degrades: 160 over 110 vCPUs", late(WAKE_UP), WORSE),
        order("Figure 7", "longer spinning over oticket, 150 vCPUs", over(LONGER, OTICKET, 150), BETTER),
        order(
            "Figure 7",
            "iticket over oticket, where they differ most (\"similar\")",
            farthest.unwrap_or(Mean { mean: f64::NAN, ci95: None, n: 0 }),
            Rule::Between(0.8, 1.25),
        ),
        order(
            "Figure 7",
            "queue lock over pv-ticket, 80 vCPUs (\"no improvement\")",
            over(QUEUE, PV_TICKET, 80),
            Rule::Between(0.8, 1.25),
        ),
        order(
            "Figure 8",
            "two VMs: oticket over pv-ticket, 50 to 160 vCPUs",
            ratio(oticket, pv, 50..=160),
            BETTER,
        ),
        order(
            "Figure 8",
            "two VMs: oticket over longer spinning, 50 to 160 vCPUs",
            ratio(oticket, longer, 50..=160),
            BETTER,
        ),
        turn("Figure 8", "two VMs, longer spinning: vCPUs with which most is done", 40.0, two[longer].best()),
    ])
}

/// For each lock, in so many VMs.
fn curves(locks: &[usize], vms: u32, what: &str) -> Result<Vec<Curve>> {
    let mut specs = vec![];
    for lock in locks {
        for vcpus in numbers() {
            let mut sets: Vec<(&str, String)> =
                vec![("vm.build.vcpus", vcpus.to_string()), ("vm.build.count", vms.to_string())];
            sets.extend(LOCKS[*lock].iter().map(|(key, value)| (*key, (*value).to_owned())));
            let one = spec(BUILD, &sets)?;
            specs.extend((0..SEEDS as u64).map(|seed| Spec { seed: one.seed + seed, ..one.clone() }));
        }
    }
    let truths = run(&specs, what)?;
    let run = |truth: &Truth| {
        let seconds = number(truth.ran_ns) / 1e9;
        (number(truth.vms[0].apps[0].marks) / seconds, number(truth.vms[0].counts.lock_halts) / seconds)
    };
    let points: Vec<Vec<(f64, f64)>> =
        truths.chunks(SEEDS).map(|runs| runs.iter().map(run).collect()).collect();
    Ok(points.chunks(STEPS as usize).map(|curve| Curve(curve.to_vec())).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_knows_where_it_is_highest_and_what_is_left_of_it() {
        let speed = |n: u32| f64::from(if n <= 50 { n } else { 25 });
        let curve = Curve(numbers().map(|n| vec![(speed(n), 5.0), (2.0 * speed(n), 5.0)]).collect());
        assert_eq!((curve.best(), curve.left(50, 0), curve.left(160, 1)), (50, 1.0, 0.5));
        assert_eq!((curve.halts(10, 0), curve.speed(20, 1)), (0.5, 40.0));
    }

    #[test]
    fn what_is_a_mean_of_runs_says_how_far_off_it_may_be() {
        let speeds = [1.0, 2.0, 3.0];
        let two = mean(|run| speeds[run]);
        assert!((two.mean - 2.0).abs() < 1e-9 && two.n == SEEDS && two.ci95.unwrap() > 1.0, "{two:?}");
    }
}

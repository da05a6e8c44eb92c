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
use crate::stats::{geometric, number};

const BUILD: &str = include_str!("../../../../../scenarios/p3-kernel-build.toml");
const SECTIONS: &str = "vm.build.program (lengths of sections)";
/// Steps of vCPUs, up to 160.
const STEP: u32 = 10;
const STEPS: u32 = 16;
const SEEDS: u64 = 3;

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
/// Those of Figure 8.
const OVERCOMMITTED: [usize; 3] = [PV_TICKET, OTICKET, LONGER];

/// By number of vCPUs: what the first VM does in a second, and how often a waiter halts meanwhile.
struct Curve(Vec<(f64, f64)>);

impl Curve {
    fn speed(&self, vcpus: u32) -> f64 {
        self.0[(vcpus / STEP - 1) as usize].0
    }

    /// Halts for each time that something is done.
    fn halts(&self, vcpus: u32) -> f64 {
        let (speed, halts) = self.0[(vcpus / STEP - 1) as usize];
        halts / speed
    }

    /// Where it is highest.
    fn best(&self) -> u32 {
        numbers().max_by(|a, b| self.speed(*a).total_cmp(&self.speed(*b))).unwrap_or(STEP)
    }

    /// How much of its best is left.
    fn left(&self, vcpus: u32) -> f64 {
        self.speed(vcpus) / self.speed(self.best())
    }
}

fn numbers() -> impl Iterator<Item = u32> {
    (1..=STEPS).map(|step| step * STEP)
}

pub(super) fn items() -> Result<Vec<Item>> {
    let all: Vec<usize> = (0..LOCKS.len()).collect();
    let alone = curves(&all, 1, "P3, kernel build")?;
    let two = curves(&OVERCOMMITTED, 2, "P3, two VMs")?;
    let over = |a: usize, b: usize, vcpus: u32| alone[a].speed(vcpus) / alone[b].speed(vcpus);
    let item = |figure, what: &str, theirs: Option<f64>, ours: f64, rule| {
        Item::new((Paper::P3, figure), what, theirs, Some(ours), &rule).fitted(SECTIONS)
    };
    let order = |figure, what: &str, ours: f64, rule| item(figure, what, None, ours, rule);
    let turn = |figure, what: &str, theirs: f64, ours: u32| {
        item(figure, what, Some(theirs), f64::from(ours), Rule::Within(25.0))
    };
    // Quiet: at most one halt for ten jobs of the build.
    let quiet = numbers().take_while(|n| alone[PV_TICKET].halts(*n) <= 0.1).last().unwrap_or(0);
    let farthest = numbers().map(|n| over(ITICKET, OTICKET, n)).max_by(|a, b| {
        let far = |x: f64| x.ln().abs();
        far(*a).total_cmp(&far(*b))
    });
    let ratio = |a: usize, b: usize, range: std::ops::RangeInclusive<u32>| {
        let ratios = numbers().filter(|n| range.contains(n)).map(|n| two[a].speed(n) / two[b].speed(n));
        geometric(ratios).map_or(f64::NAN, |mean| mean.mean)
    };
    let [pv, oticket, longer] = [0, 1, 2];
    Ok(vec![
        turn("Figure 2", "pv-ticket: vCPUs with which most is done", 30.0, alone[PV_TICKET].best()),
        order(
            "Figure 2",
            "pv-ticket collapses: 50 vCPUs over its best",
            alone[PV_TICKET].left(50),
            Rule::AtMost(0.9),
        ),
        turn("Figure 2", "oticket: vCPUs with which most is done", 80.0, alone[OTICKET].best()),
        order(
            "Figure 2",
            "oticket over pv-ticket, 80 vCPUs",
            over(OTICKET, PV_TICKET, 80),
            Rule::AtLeast(1.0),
        ),
        order(
            "Figure 2",
            "what oticket keeps of its best with 150 vCPUs, over what pv-ticket keeps",
            alone[OTICKET].left(150) / alone[PV_TICKET].left(150),
            Rule::AtLeast(1.0),
        ),
        turn("Figure 4", "pv-ticket: vCPUs up to which nearly nobody halts", 30.0, quiet),
        order(
            "Figure 4",
            "oticket's halts over pv-ticket's, for each job, 80 vCPUs",
            alone[OTICKET].halts(80) / alone[PV_TICKET].halts(80),
            Rule::AtMost(0.1),
        ),
        order(
            "Figure 6",
            "oticket over spinning alone, 80 vCPUs (\"slightly better\")",
            over(OTICKET, SPINNING, 80),
            Rule::Between(1.0, 1.25),
        ),
        order(
            "Figure 6",
            "oticket over wake-up alone, 80 vCPUs (\"slightly better\")",
            over(OTICKET, WAKE_UP, 80),
            Rule::Between(1.0, 1.25),
        ),
        order(
            "Figure 6",
            "spinning alone degrades: 160 over 110 vCPUs",
            alone[SPINNING].speed(160) / alone[SPINNING].speed(110),
            Rule::AtMost(1.0),
        ),
        order(
            "Figure 6",
            "wake-up alone degrades: 160 over 110 vCPUs",
            alone[WAKE_UP].speed(160) / alone[WAKE_UP].speed(110),
            Rule::AtMost(1.0),
        ),
        order(
            "Figure 7",
            "longer spinning over oticket, 150 vCPUs",
            over(LONGER, OTICKET, 150),
            Rule::AtLeast(1.0),
        ),
        order(
            "Figure 7",
            "iticket over oticket, where they differ most (\"similar\")",
            farthest.unwrap_or(f64::NAN),
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
            Rule::AtLeast(1.0),
        ),
        order(
            "Figure 8",
            "two VMs: oticket over longer spinning, 50 to 160 vCPUs",
            ratio(oticket, longer, 50..=160),
            Rule::AtLeast(1.0),
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
            specs.extend((0..SEEDS).map(|seed| Spec { seed: one.seed + seed, ..one.clone() }));
        }
    }
    let truths = run(&specs, what)?;
    let point = |runs: &[Truth]| {
        let sum = |of: fn(&Truth) -> u64| number(runs.iter().map(of).sum());
        let seconds = sum(|truth| truth.ran_ns) / 1e9;
        let marks = sum(|truth| truth.vms[0].apps[0].marks);
        (marks / seconds, sum(|truth| truth.vms[0].counts.lock_halts) / seconds)
    };
    let points: Vec<(f64, f64)> = truths.chunks(usize::try_from(SEEDS)?).map(point).collect();
    Ok(points.chunks(STEPS as usize).map(|curve| Curve(curve.to_vec())).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_knows_where_it_is_highest_and_what_is_left_of_it() {
        let curve = Curve(numbers().map(|n| (f64::from(if n <= 50 { n } else { 25 }), 5.0)).collect());
        assert_eq!((curve.best(), curve.left(50), curve.left(160)), (50, 1.0, 0.5));
        assert_eq!((curve.halts(10), curve.speed(20)), (0.5, 20.0));
    }
}

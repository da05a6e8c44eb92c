//! P2, Figure 2 and 3.3: how much longer programs take than expected when pCPUs are short.
//!
//! D = T / E, and E = T with all 16 pCPUs x VMs, x 16 / cap, or x 16 / pCPUs. What did not end counts as
//! having taken until the end of the simulation: D is then a lower bound.

use anyhow::{Result, ensure};
use corefit_sim::Spec;

use super::testbed::{run, seconds, spec};
use super::{Item, Paper, Rule};

pub(super) const SHORTAGE: &str = include_str!("../../../../scenarios/p2-shortage.toml");

pub(super) const PROGRAMS: [&str; 10] = ["bt", "cg", "dc", "ep", "ft", "is", "lu", "mg", "sp", "ua"];
/// That waiting threads never block: the text does not say; chosen by UA's 1126, which is out of reach if they do.
const WAIT: &str = "vm.npb.wait";
const EP: usize = 3;
const LU: usize = 6;
const UA: usize = 9;

/// One of the paper's configurations, with how short pCPUs are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shortage {
    /// VMs.
    Sharing(u32),
    /// pCPUs that the VM's cap is worth.
    Limit(u32),
    /// pCPUs that its vCPUs may use.
    Reduction(u32),
}
use Shortage::{Limit, Reduction, Sharing};

const SHARING: [Shortage; 4] = [Sharing(2), Sharing(4), Sharing(6), Sharing(8)];
const LIMIT: [Shortage; 5] = [Limit(12), Limit(8), Limit(4), Limit(2), Limit(1)];
const REDUCTION: [Shortage; 5] = [Reduction(12), Reduction(8), Reduction(4), Reduction(2), Reduction(1)];

impl Shortage {
    pub(super) fn set(self) -> (&'static str, String) {
        match self {
            Sharing(vms) => ("vm.npb.count", vms.to_string()),
            Limit(pcpus) => ("vm.npb.cap", pcpus.to_string()),
            Reduction(pcpus) => {
                let first: Vec<String> = (0..pcpus).map(|module| (2 * module).to_string()).collect();
                ("vm.npb.affinity", format!("{:?}", first.join(",")))
            }
        }
    }

    /// pCPUs that each VM has, rounded up.
    pub(super) fn available(self) -> u32 {
        match self {
            Sharing(vms) => 16_u32.div_ceil(vms),
            Limit(pcpus) | Reduction(pcpus) => pcpus,
        }
    }

    /// For people.
    pub(super) fn name(self) -> String {
        match self {
            Sharing(vms) => format!("{vms} VMs"),
            Limit(pcpus) => format!("{} %", 100 * pcpus),
            Reduction(pcpus) => format!("{pcpus} pCPUs"),
        }
    }

    /// How many times longer than with all pCPUs.
    pub(super) fn expected(self) -> f64 {
        match self {
            Sharing(vms) => f64::from(vms),
            Limit(pcpus) | Reduction(pcpus) => 16.0 / f64::from(pcpus),
        }
    }
}

fn host(program: &str, shortage: Option<Shortage>, vcpus: u32) -> Result<Spec> {
    let mut sets = vec![("vm.npb.program", program.to_owned()), ("vm.npb.vcpus", vcpus.to_string())];
    sets.extend(shortage.map(Shortage::set));
    spec(SHORTAGE, &sets)
}

pub(super) fn items() -> Result<Vec<Item>> {
    let [sharing, limit, reduction] = degradations()?;
    let most = |of: &[Vec<f64>], program: usize| of[program].iter().copied().fold(0.0, f64::max);
    let worst: [Vec<f64>; 3] =
        [&sharing, &limit, &reduction].map(|of| (0..PROGRAMS.len()).map(|p| most(of, p)).collect());
    let least = |of: &[f64]| of.iter().copied().fold(f64::INFINITY, f64::min);
    let over_next = |of: &[f64], program: usize| {
        let others = of.iter().enumerate().filter(|(p, _)| *p != program).map(|(_, d)| *d);
        of[program] / others.fold(0.0, f64::max)
    };
    let worse: usize = (0..PROGRAMS.len()).filter(|&p| p != LU && worst[1][p] > worst[0][p]).count();
    let number = |figure, what: &str, theirs: f64, ours: f64, rule| {
        Item::new((Paper::P2, figure), what, Some(theirs), Some(ours), &rule).fitted(WAIT)
    };
    let order = |figure, what: &str, ours: f64, rule| {
        Item::new((Paper::P2, figure), what, None, Some(ours), &rule).fitted(WAIT)
    };
    let mut items = vec![
        number("Figure 2(a)", "D of LU, 8 VMs", 426.0, sharing[LU][3], Rule::Within(25.0)),
        number("Figure 2(b)", "D of UA, cap 100 %", 1126.0, limit[UA][4], Rule::Within(25.0)),
        number("Figure 2(c)", "D of LU, 4 pCPUs", 253.0, reduction[LU][2], Rule::Within(25.0)),
        number(
            "Figure 2(b)",
            "greatest D of the program with the least, caps (\"degraded by 247 %\")",
            2.47,
            least(&worst[1]),
            Rule::AtLeast(2.47),
        ),
        order(
            "Figure 2(a)",
            "LU is worst, VMs: its D over the next one's",
            over_next(&worst[0], LU),
            Rule::AtLeast(1.0),
        ),
        order(
            "Figure 2(b)",
            "UA is worst, caps: its D over the next one's",
            over_next(&worst[1], UA),
            Rule::AtLeast(1.0),
        ),
        order(
            "Figure 2(c)",
            "LU is worst, pCPUs: its D over the next one's",
            over_next(&worst[2], LU),
            Rule::AtLeast(1.0),
        ),
        order(
            "Figure 2",
            "programs but LU that caps slow more than VMs do, of 9",
            f64::from(u32::try_from(worse)?),
            Rule::AtLeast(9.0),
        ),
    ];
    // The text prints no number, only that it is that of the pCPUs available.
    for (name, shortage) in [("2 VMs", Sharing(2)), ("cap 800 %", Limit(8)), ("8 pCPUs", Reduction(8))] {
        let what = format!("best number of vCPUs for EP, {name}: the pCPUs available");
        let best = best_vcpus(PROGRAMS[EP], shortage)?;
        items.push(Item::new((Paper::P2, "3.3"), what, None, best, &Rule::Exactly(8.0)).fitted(WAIT));
    }
    Ok(items)
}

/// By configuration and program: D of each shortage.
fn degradations() -> Result<[Vec<Vec<f64>>; 3]> {
    let mut specs = vec![];
    let groups: [&[Shortage]; 3] = [&SHARING, &LIMIT, &REDUCTION];
    for program in PROGRAMS {
        specs.push(host(program, None, 16)?);
        for shortage in groups.concat() {
            specs.push(host(program, Some(shortage), 16)?);
        }
    }
    let mut took = took(&specs, "P2")?.into_iter();
    let mut results = [vec![], vec![], vec![]];
    for program in PROGRAMS {
        let alone = took.next().unwrap_or(f64::NAN);
        ensure!(alone > 0.0, "{program} takes no time on 16 pCPUs");
        for (group, result) in groups.iter().zip(&mut results) {
            let each = group.iter().map(|s| took.next().unwrap_or(f64::NAN) / alone / s.expected());
            result.push(each.collect());
        }
    }
    Ok(results)
}

#[expect(clippy::cast_precision_loss, reason = "ns of a run")]
fn took(specs: &[Spec], what: &str) -> Result<Vec<f64>> {
    let truths = run(specs, what)?;
    Ok(truths.iter().map(|truth| seconds(truth).unwrap_or(truth.ran_ns as f64 / 1e9)).collect())
}

/// The number of vCPUs, of all up to 16, with which a program takes least, by the mean of three seeds.
fn best_vcpus(program: &str, shortage: Shortage) -> Result<Option<f64>> {
    let mut specs = vec![];
    for vcpus in 1..=16 {
        let one = host(program, Some(shortage), vcpus)?;
        specs.extend((0..3).map(|seed| Spec { seed: one.seed + seed, ..one.clone() }));
    }
    let took = took(&specs, "P2, vCPUs")?;
    let sums = took.chunks(3).map(|runs| runs.iter().sum::<f64>()).zip(1_u32..);
    Ok(sums.min_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, vcpus)| f64::from(vcpus)))
}

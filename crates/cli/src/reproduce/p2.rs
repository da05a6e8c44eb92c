//! P2, Figures 2, 3(a), 4, 6, 7, 16 and 17, and 3.1 to 3.3 (10 and 11: `shares.rs`): how much longer programs take than expected when pCPUs are short, and what fixed numbers of vCPUs
//! and of threads do about it.
//!
//! D = T / E, and E = T with all 16 pCPUs x VMs, x 16 / cap, or x 16 / pCPUs.

mod npb;
mod shares;

use anyhow::{Context as _, Result, ensure};
use corefit_sim::{Sim, Spec};

use super::testbed::{run, seconds, spec};
use super::{Item, Paper, Rule};
use crate::parallel;
use crate::stats::{Mean, count};

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

/// Each is run so often, and the mean taken (P2 3).
const RUNS: u64 = 10;

/// Where orders are counted, what is faster by less is as fast.
const FASTER: f64 = 1.005;

/// Numbers that the text mentions.
const SHARING: [Shortage; 7] =
    [Sharing(2), Sharing(3), Sharing(4), Sharing(5), Sharing(6), Sharing(7), Sharing(8)];
const LIMIT: [Shortage; 6] = [Limit(12), Limit(8), Limit(6), Limit(4), Limit(2), Limit(1)];
const REDUCTION: [Shortage; 6] =
    [Reduction(12), Reduction(8), Reduction(6), Reduction(4), Reduction(2), Reduction(1)];

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
            Sharing(1) => "1 VM".into(),
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

/// The program has 16 threads, and so many vCPUs from its start.
fn host(program: &str, shortage: Option<Shortage>, vcpus: u32) -> Result<Spec> {
    with_threads(program, shortage, vcpus, 16)
}

fn with_threads(program: &str, shortage: Option<Shortage>, vcpus: u32, threads: u32) -> Result<Spec> {
    let mut sets = vec![
        ("vm.npb.program", program.to_owned()),
        ("vm.npb.threads", threads.to_string()),
        ("vm.npb.vcpus", vcpus.to_string()),
    ];
    sets.extend(shortage.map(Shortage::set));
    spec(SHORTAGE, &sets)
}

pub(super) fn items() -> Result<Vec<Item>> {
    let slowed = slowed()?;
    let [sharing, limit, reduction] = slowed.each_ref().map(|of| &of.by);
    let worst: [Vec<Mean>; 3] = [sharing, limit, reduction]
        .map(|of| of.iter().filter_map(|each| greatest(each.iter().copied())).collect());
    ensure!(worst.iter().all(|of| of.len() == PROGRAMS.len()), "a program has no D");
    let least = |of: &[Mean]| of.iter().copied().min_by(|a, b| a.mean.total_cmp(&b.mean));
    let over_next = |of: &[Mean], program: usize| {
        let others = of.iter().enumerate().filter(|(p, _)| *p != program).map(|(_, d)| *d);
        greatest(others).map(|next| of[program].over(next))
    };
    let worse = (0..PROGRAMS.len()).filter(|&p| p != LU && worst[1][p].mean > worst[0][p].mean).count();
    let number = |figure, what: &str, theirs: f64, ours: Option<Mean>, rule| {
        item(figure, what, Some(theirs), ours, &rule)
    };
    let order = |figure, what: &str, ours: Option<Mean>, rule| item(figure, what, None, ours, &rule);
    let mut items = vec![
        number("Figure 2(a)", "D of LU, 8 VMs", 426.0, sharing[LU].last().copied(), Rule::Within(25.0)),
        number("Figure 2(b)", "D of UA, cap 100 %", 1126.0, limit[UA].last().copied(), Rule::Within(25.0)),
        number("Figure 2(c)", "D of LU, 4 pCPUs", 253.0, Some(reduction[LU][3]), Rule::Within(25.0)),
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
        counted("Figure 2", "programs but LU that caps slow more than VMs do, of 9", None, worse, 9),
    ];
    for ((name, theirs), of) in [("VMs", 0.17), ("caps", 0.25), ("pCPUs", 0.16)].into_iter().zip(&slowed) {
        items.push(varied("3.1", &format!("16 vCPUs, {name}"), theirs, of.variation, &Rule::Within(25.0)));
    }
    items.extend(against_16()?);
    items.extend(best_vcpus()?);
    items.extend(threads()?);
    items.extend(shares::items()?);
    Ok(items)
}

fn item(figure: &'static str, what: &str, theirs: Option<f64>, ours: Option<Mean>, rule: &Rule) -> Item {
    let item = Item::new((Paper::P2, figure), what, theirs, ours.map(|ours| ours.mean), rule);
    item.off_by(ours.and_then(|ours| ours.ci95)).fitted(WAIT)
}

/// So many of so many, and all are meant.
fn counted(figure: &'static str, what: &str, theirs: Option<f64>, ours: usize, of: usize) -> Item {
    let rule = Rule::Exactly(count(of));
    Item::new((Paper::P2, figure), what, theirs, Some(count(ours)), &rule).fitted(WAIT)
}

/// How far apart the ten runs of a case are, at most.
fn varied(figure: &'static str, what: &str, theirs: f64, ours: f64, rule: &Rule) -> Item {
    let what = format!("coefficient of variation, {what}, at most");
    Item::new((Paper::P2, figure), what, Some(theirs), Some(ours), rule).fitted(WAIT)
}

fn most_varied(of: impl IntoIterator<Item = Mean>) -> f64 {
    of.into_iter().filter_map(Mean::variation).fold(f64::NAN, f64::max)
}

fn greatest(of: impl IntoIterator<Item = Mean>) -> Option<Mean> {
    of.into_iter().max_by(|a, b| a.mean.total_cmp(&b.mean))
}

/// Figure 4: where VCPU-Bal's number does less than all vCPUs.
fn against_16() -> Result<[Item; 2]> {
    let cases = [("bt", Reduction(12)), ("lu", Limit(12))];
    let hosts = cases.iter().flat_map(|&(program, shortage)| {
        [shortage.available(), 16].map(|vcpus| host(&npb::text(program), Some(shortage), vcpus))
    });
    let took = took(&hosts.collect::<Result<Vec<_>>>()?, "P2, 16 vCPUs")?;
    let over_16 = |figure, what: &str, theirs, took: &[Mean]| {
        let what = format!("{what}: time with VCPU-Bal's number over that with 16");
        item(figure, &what, Some(theirs), Some(took[0].over(took[1])), &Rule::Effect(25.0))
    };
    Ok([
        over_16("Figure 4(c)", "BT, 12 pCPUs (\"34% lower\", read as 1 / 0.66)", 1.0 / 0.66, &took[..2]),
        over_16("Figure 4(b)", "LU, cap 1200 %", 11.0, &took[2..]),
    ])
}

/// Figures 16 and 17: as many threads as pCPUs, on as many vCPUs, against VCPU-Bal's vCPUs with 16 threads, with fewer pCPUs.
fn threads() -> Result<[Item; 4]> {
    let mut hosts = vec![];
    for program in PROGRAMS {
        for shortage in REDUCTION {
            let available = shortage.available();
            for threads in [16, available] {
                hosts.push(with_threads(&npb::text(program), Some(shortage), available, threads)?);
            }
        }
    }
    let took = took(&hosts, "P2, threads")?;
    let gains = |program: usize| {
        let of = took.chunks(2 * REDUCTION.len()).nth(program).unwrap_or_default();
        of.chunks(2).map(|pair| pair[0].over(pair[1]))
    };
    let faster = |least: f64, programs: &[&str]| {
        let gain = |name: &&str| greatest(gains(PROGRAMS.iter().position(|program| program == name)?));
        programs.iter().filter_map(gain).filter(|gain| gain.mean > least).count()
    };
    let detailed = [LU, UA].into_iter().flat_map(gains).filter(|gain| gain.mean > FASTER).count();
    let what = |what: &str| format!("threads as pCPUs over VCPU-Bal, pCPUs: {what}");
    let twice = faster(2.0, &["bt", "sp", "ua"]);
    Ok([
        item("Figure 16", &what("LU, at most, times"), Some(72.0), greatest(gains(LU)), &Rule::Within(25.0)),
        counted("Figure 16", &what("of BT, SP and UA more than twice as fast"), Some(3.0), twice, 3),
        counted("Figure 16", &what("of ten programs faster"), Some(10.0), faster(FASTER, &PROGRAMS), 10),
        counted("Figure 17", &what("LU and UA faster, of 12 cases"), None, detailed, 12),
    ])
}

/// Figure 6: how much better programs do with the best number of vCPUs than with VCPU-Bal's, at most, each from the start;
/// Figure 7: D of LU with it; 3.3: EP's best numbers.
fn best_vcpus() -> Result<Vec<Item>> {
    let groups: [(&str, f64, &[Shortage]); 3] =
        [("VMs", 18.0, &SHARING), ("caps", 1029.0, &LIMIT), ("pCPUs", 42.0, &REDUCTION)];
    let cases: Vec<(&str, Shortage)> = groups
        .iter()
        .flat_map(|(_, _, shortages)| shortages.iter().flat_map(|&s| PROGRAMS.map(|program| (program, s))))
        .collect();
    let gains = parallel::map(&cases, parallel::cpus(), "P2, best vCPUs", |&(program, shortage)| {
        gain(program, shortage)
    });
    let gains: Vec<Gain> = gains.into_iter().collect::<Result<_>>()?;
    let alone = took(&[host(PROGRAMS[LU], None, 16)?], "P2, LU alone")?[0];
    let mut rest = gains.iter().zip(&cases);
    let mut items = vec![];
    for (name, theirs, shortages) in &groups {
        let group: Vec<_> = rest.by_ref().take(PROGRAMS.len() * shortages.len()).collect();
        let most = greatest(group.iter().map(|(gain, _)| gain.over_best()));
        let percent = most.map(|most| Mean { mean: (most.mean - 1.0) * 100.0, ..most.times(100.0) });
        let what = format!("best over VCPU-Bal, {name}, % (the best and the greatest by the same runs)");
        items.push(item("Figure 6", &what, Some(*theirs), percent, &Rule::Within(25.0)));
        let lu = group.iter().filter(|(_, (program, _))| *program == PROGRAMS[LU]);
        let slow = lu.map(|(gain, (_, shortage))| gain.best().over(alone).times(1.0 / shortage.expected()));
        // Of the library's LU, as in Figure 6: 10 steps, not 40.
        let what = format!("D of LU (10 steps) with its best number, {name} (\"approximately 60x\")");
        items.push(item("Figure 7", &what, Some(60.0), greatest(slow), &Rule::Within(25.0)));
    }
    let bal = most_varied(gains.iter().filter_map(|gain| Mean::of(gain.bal.iter().copied())));
    items.push(varied("3.2", "VCPU-Bal's numbers", 0.09, bal, &Rule::AtMost(0.09)));
    let best = most_varied(gains.iter().map(Gain::best));
    items.push(varied("3.3", "best numbers", 0.08, best, &Rule::AtMost(0.08)));
    let shared = |program: &'static str| {
        let of = gains.iter().zip(&cases).filter(move |(_, case)| case.0 == program);
        of.filter(|(_, (_, shortage))| matches!(shortage, Sharing(_))).map(|(gain, _)| gain.slower_with_all)
    };
    let improved = PROGRAMS.into_iter().filter(|program| shared(program).any(|slower| slower)).count();
    let what = "programs that VCPU-Bal improves with some number of VMs, of ten";
    items.push(counted("Figure 3(a)", what, None, improved, 10));
    let what = "numbers of VMs with which VCPU-Bal improves UA, of seven";
    let improved = shared(PROGRAMS[UA]).filter(|slower| *slower).count();
    items.push(counted("Figure 4(a)", what, None, improved, SHARING.len()));
    // The text prints no number, only that it is that of the pCPUs available.
    for (name, shortage) in [("2 VMs", Sharing(2)), ("cap 800 %", Limit(8)), ("8 pCPUs", Reduction(8))] {
        let found = cases.iter().position(|case| *case == (PROGRAMS[EP], shortage));
        let gain = found.map(|case| &gains[case]);
        let tied = gain.filter(|gain| gain.is_tied());
        let or =
            tied.map_or(String::new(), |gain| format!(" ({} does as much, to the interval)", gain.vcpus));
        let what = format!("best number of vCPUs for EP, {name}: the pCPUs available{or}");
        let best = gain.map(|gain| if gain.is_tied() { shortage.available() } else { gain.vcpus });
        items.push(
            Item::new((Paper::P2, "3.3"), what, None, best.map(f64::from), &Rule::Exactly(8.0)).fitted(WAIT),
        );
    }
    Ok(items)
}

/// A program's best number of vCPUs, and what the same runs take with it and with VCPU-Bal's, s.
struct Gain {
    vcpus: u32,
    best: Vec<f64>,
    bal: Vec<f64>,
    /// All 16 vCPUs take longer than VCPU-Bal's number, [`FASTER`] times at least.
    slower_with_all: bool,
}

impl Gain {
    fn best(&self) -> Mean {
        Mean::of(self.best.iter().copied()).unwrap_or(Mean { mean: f64::NAN, ci95: None, n: 0 })
    }

    /// What runs take with VCPU-Bal's number over what they take with the best. How far off that may be leaves out that the best was
    /// found by these runs.
    fn over_best(&self) -> Mean {
        let pairs: Vec<(f64, f64)> = self.bal.iter().copied().zip(self.best.iter().copied()).collect();
        Mean::of_ratio(&pairs).unwrap_or(Mean { mean: f64::NAN, ci95: None, n: 0 })
    }

    /// VCPU-Bal's number is another one, and may be as good.
    fn is_tied(&self) -> bool {
        let Mean { mean, ci95, .. } = self.over_best();
        self.best != self.bal && ci95.is_some_and(|half| mean - half <= 1.0)
    }
}

fn gain(program: &str, shortage: Shortage) -> Result<Gain> {
    let bal = shortage.available();
    // `None`: longer than `most` in all.
    let with = |vcpus, most: f64| -> Result<Option<Vec<f64>>> {
        let mut each = vec![];
        for one in &runs(&host(program, Some(shortage), vcpus)?) {
            let left = most - each.iter().sum::<f64>();
            let until_ns = one.until_ns.min(ns(left));
            let mut sim = Sim::new(&Spec { until_ns, ..one.clone() })?;
            sim.run();
            let took = seconds(&sim.truth()).unwrap_or(f64::INFINITY);
            if took >= left {
                return Ok(None);
            }
            each.push(took);
        }
        Ok(Some(each))
    };
    let first =
        with(bal, f64::INFINITY)?.with_context(|| format!("{program} does not end with {bal} vCPUs"))?;
    let mut best = (first.clone(), bal);
    let mut slower_with_all = false;
    // What takes longer than the best one so far is not followed to its end.
    for vcpus in (1..=16).rev().filter(|&n| n != bal) {
        let least: f64 = best.0.iter().sum();
        match with(vcpus, if vcpus == 16 { least * FASTER } else { least })? {
            Some(took) if took.iter().sum::<f64>() < least => best = (took, vcpus),
            Some(_) => {}
            None => slower_with_all |= vcpus == 16,
        }
    }
    Ok(Gain { vcpus: best.1, best: best.0, bal: first, slower_with_all })
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates")]
fn ns(seconds: f64) -> u64 {
    ((seconds * 1e9) as u64).max(1)
}

/// What a configuration does to programs.
#[derive(Default)]
struct Slowed {
    /// D, by program and shortage.
    by: Vec<Vec<Mean>>,
    /// The greatest coefficient of variation.
    variation: f64,
}

fn slowed() -> Result<[Slowed; 3]> {
    let mut specs = vec![];
    let groups: [&[Shortage]; 3] = [&SHARING, &LIMIT, &REDUCTION];
    for program in PROGRAMS {
        specs.push(host(&npb::text(program), None, 16)?);
        for shortage in groups.concat() {
            specs.push(host(&npb::text(program), Some(shortage), 16)?);
        }
    }
    let mut took = took(&specs, "P2")?.into_iter();
    let mut results = <[Slowed; 3]>::default();
    for program in PROGRAMS {
        let alone = took.next().filter(|alone| alone.mean > 0.0);
        let alone = alone.with_context(|| format!("{program} takes no time on 16 pCPUs"))?;
        for (group, result) in groups.iter().zip(&mut results) {
            let each: Vec<Mean> = took.by_ref().take(group.len()).collect();
            result.variation = result.variation.max(most_varied(each.iter().copied()));
            let slower = group.iter().zip(each).map(|(s, took)| took.over(alone).times(1.0 / s.expected()));
            result.by.push(slower.collect());
        }
    }
    Ok(results)
}

/// What runs of each host take, s. All have to end: one that was cut off would tell a lower bound only.
fn took(specs: &[Spec], what: &str) -> Result<Vec<Mean>> {
    let all: Vec<Spec> = specs.iter().flat_map(runs).collect();
    let took = run(&all, what)?.iter().map(seconds).collect::<Option<Vec<f64>>>();
    let took = took.with_context(|| format!("{what}: a run does not end before `until` of its scenario"))?;
    Ok(took
        .chunks(all.len() / specs.len().max(1))
        .filter_map(|runs| Mean::of(runs.iter().copied()))
        .collect())
}

/// Runs of a host that differ by their seeds.
fn runs(one: &Spec) -> Vec<Spec> {
    (0..RUNS).map(|run| Spec { seed: one.seed + run, ..one.clone() }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_case_whose_runs_are_farthest_apart_tells_how_far_they_are() {
        let runs = |runs: [f64; 3]| Mean::of(runs).unwrap();
        let most = most_varied([runs([9.0, 10.0, 11.0]), runs([1.0, 2.0, 3.0]), runs([5.0; 3])]);
        assert!((most - 0.5).abs() < 1e-9, "{most}");
    }

    #[test]
    fn a_run_that_is_cut_off_is_no_time() {
        let cut = Spec { until_ns: 1_000_000, ..host("is", None, 16).unwrap() };
        let told = took(&[cut], "P2").unwrap_err().to_string();
        assert_eq!(told, "P2: a run does not end before `until` of its scenario");
    }

    #[test]
    fn runs_are_as_long_as_themselves_exactly_and_a_tie_is_said() {
        let gain = |vcpus, best: [f64; 3], bal: [f64; 3]| Gain {
            vcpus,
            best: best.into(),
            bal: bal.into(),
            slower_with_all: true,
        };
        let runs = [1.0, 2.0, 3.0];
        let same = gain(8, runs, runs);
        assert_eq!((same.over_best().mean, same.over_best().ci95), (1.0, Some(0.0)));
        assert!(!same.is_tied(), "it is the number");
        assert!(gain(16, [1.0, 1.0, 1.0], [0.9, 1.0, 1.2]).is_tied(), "by chance");
        assert!(!gain(16, [1.0, 1.0, 1.0], [1.19, 1.2, 1.21]).is_tied());
    }
}

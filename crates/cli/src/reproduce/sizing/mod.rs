//! P2.4, P2.5: how many vCPUs, decided by a formula, by pCPU-Est and by us, against the best of all numbers.
//!
//! All times are those of work that takes [`simulate::SECONDS`] at the best number of vCPUs; searching is part of it.
//! The best number is found by trying all of them, each for as long and in as many runs, by the mean of their times, as in the paper:
//! a single run of some is luck, and what runs in step for ten seconds may not do so for sixty. Ours is compared with VCPU-Bal's both ways: with the formula as a
//! controller, which begins with all vCPUs and looks before it does anything, as ours does, and with its number set at once,
//! of which the first moments are left out ([`simulate::fixed`]). With several VMs all have the same program and, but for
//! ours, the same number.

mod compare;
mod figures;
mod programs;
mod published;
mod simulate;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::PathBuf;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use corefit_core::decide::{Arbiter, Forecast, Sizer};
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};

use super::Effort;
use super::p2::{PROGRAMS, Shortage};
use super::p5::Policies;
use crate::named::{name, named};
use crate::parallel;
use Shortage::{Limit, Reduction, Sharing};
pub(super) use figures::{chart, items, judged_by, text};
use programs::Long;
pub(super) use simulate::seconds;

/// Most runs of a case of which fewer would not tell, at full effort. They are doubled: [`FEW`], 6, 12, 24.
const MOST_RUNS: u64 = 24;
/// Least runs of a case at full effort, and those of its pilot.
const FEW: u64 = 3;
/// The first of the random programs, if nobody says otherwise. Neither policy nor simulator was made with one of these in sight: once
/// one was looked at while either was mended, this moves on (docs/sizing.md, *What was measured*).
const RANDOM: u64 = 11_000;
/// All shortages that are simulated.
const SHORTAGES: [Shortage; 12] = [
    Sharing(2),
    Sharing(4),
    Sharing(8),
    Limit(12),
    Limit(8),
    Limit(4),
    Limit(1),
    Reduction(12),
    Reduction(8),
    Reduction(4),
    Reduction(2),
    Reduction(1),
];
/// Cases at full effort: of the ten programs, with each shortage and without one, and of random programs, with one each.
const ALL_OF_TEN: usize = PROGRAMS.len() * (SHORTAGES.len() + 1);
const ALL_RANDOM: usize = 60;

/// Which cases are simulated.
#[derive(clap::Args)]
pub(super) struct Choice {
    /// How much of what controllers do is simulated: numbers of vCPUs (P2); with any but none also 1,000 job sets (P5), a minute
    /// on two idle CPUs. quick: three shortages and six random programs, a minute; full: all twelve (2 to 8 VMs, caps of 1200 to
    /// 100 %, 12 to 1 pCPUs), none, and 60 random programs; three runs of each case only say how many others, 3, 6, 12 or 24, are to
    /// tell of it; more than an hour. What corefit promises of numbers of vCPUs is judged by the cases that are simulated; it is said which
    #[arg(long = "controllers", value_enum, value_name = "HOW", default_value = "quick")]
    pub(super) effort: Effort,
    /// Of P2's numbers of vCPUs only the cases whose name has this in it, as in "lu, 4 VMs", "cg, " or ", 400 %", and
    /// nothing else
    #[arg(long, value_name = "CASE")]
    pub(super) only: Vec<String>,
    /// Who decides P2's numbers of vCPUs, beside VCPU-Bal and pCPU-Est: none, vcpu-bal, vscale, pcpu-est, corefit [default: corefit];
    /// what is promised of corefit is not asked of others. Those that search are followed for 600 to 1200 s, the others for 60 to
    /// 120 s, and then taken to go on as in their last 5 s
    #[arg(long, value_name = "POLICY", value_parser = named::<Sizer>, conflicts_with = "sizes")]
    pub(super) size: Option<Sizer>,
    /// P2's random programs by number, from this one on [default: 11000]
    #[arg(long, value_name = "NUMBER")]
    random: Option<u64>,
    /// Runs of P2's numbers of vCPUs, by number, the last one not included [default: 0..1; full: 3..6 to 3..27, as runs 0..3, which are
    /// not told, say that it takes]
    #[arg(long, value_name = "I..J", value_parser = crate::sim::range)]
    runs: Option<(usize, usize)>,
    /// P2's numbers of vCPUs as earlier runs with --json have them, not simulated again; may be repeated
    #[arg(long, value_name = "FILE", conflicts_with_all = ["only", "random", "runs"])]
    sizes: Vec<PathBuf>,
}

impl Choice {
    /// A part of it all is asked for, and so nothing else.
    pub(super) fn is_part(&self) -> bool {
        !self.only.is_empty() || !self.sizes.is_empty()
    }

    /// Something is chosen that only numbers of vCPUs go by.
    pub(super) fn chooses_runs(&self) -> bool {
        self.random.is_some() || self.runs.is_some()
    }

    /// Of each case; `None`: as many as its pilot says.
    fn runs(&self) -> Option<Range<u64>> {
        let given = self.runs.map(|(from, to)| from as u64..to as u64);
        given.or((self.effort != Effort::Full).then_some(0..1))
    }
}

/// What is read of an earlier run's document.
#[derive(Deserialize)]
struct Earlier {
    #[serde(rename = "items")]
    _items: IgnoredAny,
    #[serde(default)]
    sizes: Vec<Row>,
}

/// A run of a program in a configuration.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Row {
    program: String,
    shortage: String,
    run: u64,
    /// Whether work is counted: a signal of progress.
    signal: bool,
    random: bool,
    /// Best of all, by the mean of all runs of the case; VCPU-Bal's, pCPU-Est's and ours (the mean over VMs).
    vcpus: [f64; 4],
    /// Useful work that is done in this run, of all VMs, in seconds of a pCPU: what the best number does in [`simulate::SECONDS`], in the
    /// mean of all runs.
    work: f64,
    took: Times,
    settled_s: f64,
    /// Who decided ours.
    #[serde(flatten)]
    by: Decides,
}

/// What the work of a run takes, s.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Times {
    /// With the number that is best, set at once, as all numbers here.
    best: f64,
    /// With VCPU-Bal's number.
    bal: f64,
    /// Under VCPU-Bal as a controller, which sees and does as ours does.
    formula: f64,
    est: f64,
    /// With pCPU-Est's last number. `None` with several VMs, which the paper does not have it decide for.
    #[serde(deserialize_with = "Option::deserialize")]
    est_number: Option<f64>,
    ours: f64,
    /// With the numbers that ours ended with; what it took more is what searching cost.
    ours_number: f64,
}

/// Policies that decide numbers of vCPUs; those that are the default, corefit's, are left out of documents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
struct Decides {
    #[serde(skip_serializing_if = "is_default")]
    size: Sizer,
    #[serde(skip_serializing_if = "is_default")]
    demand: Forecast,
    #[serde(skip_serializing_if = "is_default")]
    arbitrate: Arbiter,
}

fn is_default<T: Default + PartialEq>(policy: &T) -> bool {
    *policy == T::default()
}

impl From<Sizer> for Decides {
    fn from(size: Sizer) -> Decides {
        Decides { size, ..Decides::default() }
    }
}

impl Decides {
    fn is_ours(self) -> bool {
        is_default(&self)
    }

    /// For people.
    fn name(self) -> String {
        let mut text = name(self.size);
        if !is_default(&self.demand) {
            text += &format!(", demand by {}", name(self.demand));
        }
        if !is_default(&self.arbitrate) {
            text += &format!(", served by {}", name(self.arbitrate));
        }
        text
    }
}

/// A program in a configuration.
struct Case {
    long: Long,
    shortage: Shortage,
    random: bool,
}

impl Case {
    /// Its name, as in "lu, 4 VMs".
    fn name(&self) -> String {
        format!("{}, {}", self.long.name, self.shortage.name())
    }
}

/// Of all cases that are chosen.
pub(super) fn rows(choice: &Choice, policies: &Policies) -> Result<Vec<Row>> {
    if !choice.sizes.is_empty() {
        return earlier(&choice.sizes);
    }
    let mut cases = cases(choice)?;
    let only = &choice.only;
    cases.retain(|case| only.is_empty() || only.iter().any(|part| case.name().contains(part.as_str())));
    let runs = choice.runs();
    let by = Decides {
        size: choice.size.unwrap_or_default(),
        demand: policies.demand.unwrap_or_default(),
        arbitrate: policies.arbitrate.unwrap_or_default(),
    };
    let of = |case: &Case| compare::rows(case, runs.clone(), by);
    let rows: Result<Vec<Vec<Row>>> =
        parallel::map(&cases, parallel::cpus(), "P2, sizes", of).into_iter().collect();
    Ok(rows?.concat())
}

/// The rows of these documents, each once.
fn earlier(files: &[PathBuf]) -> Result<Vec<Row>> {
    let mut seen = BTreeSet::new();
    let mut rows: Vec<Row> = vec![];
    for file in files {
        let text = std::fs::read_to_string(file).map_err(|error| {
            anyhow!("{}: {error}; give what `corefit reproduce P2 --json` printed", file.display())
        })?;
        let document: Earlier = serde_json::from_str(&text).with_context(|| {
            format!("{}: no document of --json, or of an earlier corefit", file.display())
        })?;
        ensure!(
            !document.sizes.is_empty(),
            "{}: it has no numbers of vCPUs; give what `corefit reproduce P2 --json` printed",
            file.display()
        );
        rows.extend(document.sizes);
    }
    if let Some(other) = rows.iter().find(|row| row.by != rows[0].by) {
        let (one, other) = (rows[0].by.name(), other.by.name());
        bail!(
            "--sizes: numbers of vCPUs are {one}'s and {other}'s; give documents of one policy (--size, --demand, --arbitrate)"
        );
    }
    rows.retain(|row: &Row| seen.insert((row.program.clone(), row.shortage.clone(), row.run, row.signal)));
    let mut bests = BTreeMap::new();
    for Row { program, shortage, vcpus, work, .. } in &rows {
        let best = (vcpus[0], *work);
        let known = *bests.entry((program, shortage)).or_insert(best);
        ensure!(
            known == best,
            "--sizes: runs of {program}, {shortage} are compared with different best numbers; simulate them at once (--runs)"
        );
    }
    Ok(rows)
}

fn cases(choice: &Choice) -> Result<Vec<Case>> {
    let (shortages, random): (&[Shortage], usize) = match choice.effort {
        Effort::Full => (&SHORTAGES, ALL_RANDOM),
        _ => (&[Sharing(4), Limit(4), Reduction(4)], 6),
    };
    let mut cases = vec![];
    for &shortage in shortages {
        for name in PROGRAMS {
            cases.push(Case { long: programs::ten(name)?, shortage, random: false });
        }
    }
    // Alone, without a cap, on all pCPUs: where the paper's three configurations begin, and nothing is short.
    for name in PROGRAMS.into_iter().filter(|_| choice.effort == Effort::Full) {
        cases.push(Case { long: programs::ten(name)?, shortage: Sharing(1), random: false });
    }
    for (number, &shortage) in (0..).zip(shortages.iter().cycle().take(random)) {
        let long = programs::random(choice.random.unwrap_or(RANDOM).saturating_add(number));
        cases.push(Case { long, shortage, random: true });
    }
    Ok(cases)
}

#[cfg(test)]
mod tests {
    use super::figures::tests::row;
    use super::*;

    #[test]
    fn what_earlier_runs_wrote_is_read_again_each_row_once() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut rows = [row("lu", 0, 1.1), row("lu", 1, 1.3)];
        std::fs::write(file.path(), serde_json::json!({ "items": [], "sizes": rows }).to_string()).unwrap();
        let paths = [file.path().to_owned(), file.path().to_owned()];
        let again: Vec<(u64, f64)> =
            earlier(&paths).unwrap().iter().map(|row| (row.run, row.took.ours)).collect();
        assert_eq!(again, [(0, 66.0), (1, 78.0)]);
        rows[1].work = 2.0;
        std::fs::write(file.path(), serde_json::json!({ "items": [], "sizes": rows }).to_string()).unwrap();
        let mixed = earlier(&paths).unwrap_err().to_string();
        assert!(mixed.contains("lu, 4 VMs are compared with different best numbers"), "{mixed}");
        rows[1].by = Sizer::Vscale.into();
        std::fs::write(file.path(), serde_json::json!({ "items": [], "sizes": rows }).to_string()).unwrap();
        let mixed = earlier(&paths).unwrap_err().to_string();
        assert!(mixed.contains("corefit's and vscale's"), "{mixed}");
        for without in [serde_json::json!({ "items": [] }), serde_json::json!({ "items": [], "sizes": [] })] {
            std::fs::write(file.path(), without.to_string()).unwrap();
            let told = earlier(&paths).unwrap_err().to_string();
            assert!(told.contains(": it has no numbers of vCPUs; give "), "{told}");
        }
        std::fs::write(file.path(), "{}").unwrap();
        assert!(earlier(&paths).unwrap_err().to_string().contains("no document of --json"));
        let told = earlier(&["/nonexistent".into()]).unwrap_err().to_string();
        assert!(told.ends_with("; give what `corefit reproduce P2 --json` printed"), "{told}");
    }
}

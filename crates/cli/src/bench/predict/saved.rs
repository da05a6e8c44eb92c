//! What was measured, as it is kept in a file (`--save`) and read again (`--from`), and the points that it makes: other versions
//! predict the same runs anew from it.

use std::path::Path;

use anyhow::{Context, Result, anyhow, bail, ensure};
use corefit_core::profile::{Division, OnVm, Profile, Record, Usl};
use serde::{Deserialize, Serialize};

use super::Condition;
use super::report::{Point, Terms};
use crate::stats::median;

/// What every file begins with.
const FORMAT: &str = "corefit-predict-1";

/// A file.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Saved {
    format: String,
    /// CPUs of the machine.
    pub(super) cpus: usize,
    /// Of the programs.
    pub(super) size: String,
    /// Rounds.
    pub(super) repeat: u32,
    pub(super) programs: Vec<Measured>,
}

/// Everything of one program.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Measured {
    pub(super) name: String,
    pub(super) spins: bool,
    pub(super) profiles: Vec<Profiled>,
    /// Runs that the rival is fitted to: threads, and what they took.
    pub(super) usl: Vec<(usize, Took)>,
    pub(super) rounds: Vec<Rounds>,
}

/// Profiles with so many threads: on all CPUs, and on one.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Profiled {
    pub(super) threads: usize,
    pub(super) all: Option<Seen>,
    pub(super) one: Option<Seen>,
}

/// A profile.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Seen {
    cost: Cost,
    /// Null if no thread was seen to run.
    record: Option<Record>,
}

/// What is read of a profile's document.
#[derive(Debug, Serialize, Deserialize)]
struct Cost {
    wall_s: f64,
    cpu_s: f64,
    own_cpu_s: f64,
    windows_s: f64,
}

/// Runs in a condition, each after one with one thread; `None`: cut off.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Rounds {
    pub(super) condition: Condition,
    pub(super) runs: Vec<Option<(Took, Took)>>,
}

/// A run, seconds: on the clock, and of CPU time.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Took {
    pub(super) wall: f64,
    pub(super) user: f64,
    pub(super) system: f64,
}

impl Seen {
    /// From the document and the record that `corefit profile` wrote.
    pub(super) fn of(document: &[u8], record: &[u8]) -> Result<Seen> {
        let cost = serde_json::from_slice(document).context("its document")?;
        Ok(Seen { cost, record: serde_json::from_slice(record).context("its record")? })
    }

    fn profile(&self) -> Option<Profile> {
        self.record.as_ref()?.profile()
    }
}

impl Saved {
    pub(super) fn new(cpus: usize, size: &str, repeat: u32) -> Saved {
        Saved { format: FORMAT.to_owned(), cpus, size: size.to_owned(), repeat, programs: vec![] }
    }

    /// What all of these files hold; they have to be of machines with as many CPUs.
    pub(super) fn read<P: AsRef<Path>>(files: &[P]) -> Result<Saved> {
        let mut all: Option<Saved> = None;
        for file in files.iter().map(AsRef::as_ref) {
            let text = std::fs::read(file).map_err(|error| {
                anyhow!("{}: {error}; give what `corefit bench predict --save` wrote", file.display())
            })?;
            let one: Saved = serde_json::from_slice(&text)
                .with_context(|| format!("{}: not a file of bench predict --save", file.display()))?;
            ensure!(one.format == FORMAT, "{}: of another version ({:?})", file.display(), one.format);
            match &mut all {
                None => all = Some(one),
                Some(all) if all.cpus != one.cpus => {
                    bail!("{}: of a machine with {} CPUs, not {}", file.display(), one.cpus, all.cpus)
                }
                Some(all) => {
                    if !all.size.split(", ").any(|size| size == one.size) {
                        all.size = format!("{}, {}", all.size, one.size);
                    }
                    all.repeat = all.repeat.min(one.repeat);
                    all.programs.extend(one.programs);
                }
            }
        }
        all.context("no file")
    }

    pub(super) fn write(&self, file: &Path) -> Result<()> {
        std::fs::write(file, serde_json::to_vec(self)?).with_context(|| file.display().to_string())
    }

    /// Points of all programs, and what looking cost in each profile, of the program's CPU time.
    pub(super) fn points(&self) -> (Vec<Point>, Vec<f64>) {
        let (mut points, mut costs) = (vec![], vec![]);
        for program in &self.programs {
            points.extend(program.points(self.cpus));
            let seen = program.profiles.iter().flat_map(|p| [&p.all, &p.one]).flatten();
            let seen = seen.map(|seen| &seen.cost).filter(|cost| cost.cpu_s > 0.0);
            costs.extend(seen.map(|cost| cost.own_cpu_s / cost.cpu_s + cost.windows_s / cost.wall_s));
        }
        (points, costs)
    }
}

impl Measured {
    fn points(&self, cpus: usize) -> Vec<Point> {
        let profile = |seen: &Option<Seen>| seen.as_ref().and_then(Seen::profile);
        let profiles: Vec<(usize, [Option<Profile>; 2])> =
            self.profiles.iter().map(|p| (p.threads, [profile(&p.all), profile(&p.one)])).collect();
        let usl = Usl::fit(&self.usl.iter().map(|(n, took)| (*n as f64, took.wall)).collect::<Vec<_>>());
        let point = |Rounds { condition, runs }: &Rounds| {
            let condition = *condition;
            // Cut off once is not measured.
            let runs: Vec<(Took, Took)> = runs.iter().copied().collect::<Option<_>>().unwrap_or_default();
            let speedups: Vec<f64> = runs.iter().map(|(one, took)| one.wall / took.wall).collect();
            let given = condition.cpus(cpus);
            let made = profiles.iter().find(|(threads, _)| *threads == condition.threads(cpus));
            let [all, one] = [0, 1].map(|i| on(made?.1[i].as_ref(), condition, cpus));
            let range = |on: &OnVm| [on.dedicated_cores.is, on.dedicated_cores.low, on.dedicated_cores.high];
            Point {
                program: self.name.clone(),
                spins: self.spins,
                condition: condition.name(),
                group: condition.group(),
                measured: median(speedups.iter().copied()),
                spread: spread(&speedups),
                terms: Terms::median(runs.iter().map(|(one, took)| took.terms(one, given))),
                predicted_terms: all.map(Terms::of),
                share: condition.share(),
                predicted: all.map(range),
                from_one_cpu: one.map(range),
                usl: usl.map(|usl| usl.speedup(cpus as f64) * given / cpus as f64),
            }
        };
        self.rounds.iter().map(point).collect()
    }
}

/// Half of the range over the median; `None` of one.
fn spread(values: &[f64]) -> Option<f64> {
    let (low, high) = values.iter().fold((f64::INFINITY, 0.0_f64), |(l, h), v| (l.min(*v), h.max(*v)));
    Some((high - low) / 2.0 / median(values.iter().copied())?).filter(|_| values.len() > 1)
}

impl Took {
    /// Where its time went, of `given` CPUs: what it takes more than one thread is switching in the kernel, slowed elsewhere.
    fn terms(&self, one: &Took, given: f64) -> Terms {
        let all = given * self.wall;
        Terms {
            used: (one.user + one.system) / all,
            switching: (self.system - one.system) / all,
            slowed: (self.user - one.user) / all,
            unused: 1.0 - (self.user + self.system) / all,
        }
    }
}

/// The prediction for a condition.
fn on(profile: Option<&Profile>, condition: Condition, cpus: usize) -> Option<&OnVm> {
    let profile = profile?;
    let vcpus = condition.vcpus(cpus).min(profile.features.threads);
    let same = |on: &&OnVm| on.vm.vcpus == vcpus;
    match condition {
        Condition::Machine => profile.machines.iter().find(same),
        Condition::Quota { share, period_ms } => profile.on(vcpus, share, f64::from(period_ms) * 1e6, true),
        Condition::Vm { period_ms, .. } => {
            profile.on(vcpus, condition.share(), f64::from(period_ms) * 1e6, false)
        }
        Condition::Neighbour { weight, .. } => {
            let division = Division::Weighted { rivals: f64::from(weight) };
            profile.beside.iter().filter(same).find(|on| on.vm.division == division)
        }
    }
}

#[cfg(test)]
mod tests {
    use corefit_core::profile::{Machine, Question, Series, Spin};

    use super::*;

    /// Two threads that always run, and three rounds on the machine and beside a neighbour.
    fn saved(cpus: usize) -> Saved {
        let question = Question {
            machine: Machine { cpus, contention: None, one_cpu: None, others: None },
            spin: Spin::Passive,
            period_ns: 24e6,
            share: 0.25,
        };
        let both: &[f64] = &[4e6, 4e6];
        let record = Record { question, series: Series::of_runs(&[(4e6, both); 50]) };
        let cost = Cost { wall_s: 0.2, cpu_s: 0.4, own_cpu_s: 0.002, windows_s: 0.001 };
        let all = Some(Seen { cost, record: Some(record) });
        let took = |wall| Took { wall, user: 0.9 * wall, system: 0.1 * wall };
        let rounds = |condition, times: [f64; 3]| {
            let runs = times.into_iter().map(|time| Some((took(4.0), took(time)))).collect();
            Rounds { condition, runs }
        };
        let mut saved = Saved::new(cpus, "W", 3);
        saved.programs.push(Measured {
            name: "ep".into(),
            spins: false,
            profiles: vec![Profiled { threads: 2, all, one: None }],
            usl: vec![(1, took(4.0)), (2, took(2.0)), (4, took(1.0))],
            rounds: vec![
                rounds(Condition::Machine, [2.0, 2.5, 1.6]),
                rounds(Condition::Neighbour { weight: 1, each: 1 }, [4.0, 8.0, 5.0]),
            ],
        });
        saved
    }

    #[test]
    fn what_is_read_again_predicts_the_same_and_files_add_up() {
        let dir = tempfile::tempdir().unwrap();
        let [one, other, apart] = ["one", "other", "apart"].map(|name| dir.path().join(name));
        saved(2).write(&one).unwrap();
        Saved { size: "A".into(), repeat: 2, ..saved(2) }.write(&other).unwrap();
        saved(4).write(&apart).unwrap();
        let again = Saved::read(&[&one, &other]).unwrap();
        assert_eq!((again.size.as_str(), again.repeat, again.programs.len()), ("W, A", 2, 2));
        let (points, costs) = again.points();
        assert_eq!((points.len(), costs.len()), (4, 2));
        let (first, _) = saved(2).points();
        for (point, same) in points.iter().zip(first.iter().chain(&first)) {
            assert_eq!((point.predicted, point.measured), (same.predicted, same.measured));
        }
        assert_eq!(points[0].measured, Some(2.0));
        assert!((points[0].predicted.unwrap()[0] - 2.0).abs() < 1e-9 && points[0].from_one_cpu.is_none());
        assert!((costs[0] - 0.01).abs() < 1e-12);
        let told = format!("{:#}", Saved::read(&[&one, &apart]).unwrap_err());
        assert!(told.contains("apart: of a machine with 4 CPUs, not 2"), "{told}");
    }

    #[test]
    fn other_files_are_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        for (text, told) in
            [("{}", "not a file of bench predict --save"), ("", "not a file"), ("[1", "not a file")]
        {
            std::fs::write(&file, text).unwrap();
            let error = format!("{:#}", Saved::read(&[&file]).unwrap_err());
            assert!(error.contains(told) && error.contains("file"), "{error}");
        }
        Saved { format: "corefit-predict-0".into(), ..saved(2) }.write(&file).unwrap();
        let error = format!("{:#}", Saved::read(&[&file]).unwrap_err());
        assert!(error.contains("of another version"), "{error}");
    }

    #[test]
    fn a_round_that_was_cut_off_is_not_measured() {
        let mut saved = saved(2);
        saved.programs[0].rounds[0].runs[1] = None;
        let (points, _) = saved.points();
        assert_eq!((points[0].measured, points[0].spread), (None, None));
        assert_eq!(points[1].measured, Some(0.8));
    }
}

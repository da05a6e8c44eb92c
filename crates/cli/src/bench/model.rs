//! `corefit bench model`: a recorded run of this project's workloads beside a busy neighbour against its
//! simulation.
//!
//! ```text
//! recorded, alone: 1 and 2 threads ─▶ serial and parallel work  ┐
//! recorded, alone: passive         ─▶ what waking a CPU takes    ├▶ simulated beside the neighbour
//! counted: regions; measured: spin ──────────────────────────────┘     against recorded there
//! ```
//!
//! Nothing that was recorded beside the neighbour goes into the simulation.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, anyhow};
use corefit_sim::{Scenario, Sim};
use serde::{Deserialize, Serialize};

use super::overcommit::find_root;
use super::print;
use crate::parallel;
use crate::stats::{Bound, Value, geomean, median};
use crate::table::{NONE, Table, bounded, factor, seconds};

/// A recorded overcommitted run against its simulation
#[derive(clap::Args)]
pub(super) struct Args {
    /// Directory with bench.json of `corefit bench overcommit` and facts.toml
    /// [default: captures/overcommit-2cpus of the repository]
    #[arg(long, value_name = "DIR")]
    recorded: Option<PathBuf>,
    /// Runs that are simulated of each
    #[arg(long, default_value_t = 20, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    runs: u32,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

/// What the bench does not record.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Facts {
    spin_ms: f64,
    regions: BTreeMap<String, u32>,
}

/// As much of the bench's document as is needed.
#[derive(Deserialize)]
struct Recorded {
    conditions: Vec<Condition>,
    machine: Machine,
}

#[derive(Deserialize)]
struct Machine {
    cpus: u32,
}

#[derive(Deserialize)]
struct Condition {
    name: String,
    programs: Vec<Program>,
}

#[derive(Deserialize)]
struct Program {
    name: String,
    runs: BTreeMap<String, Times>,
}

#[derive(Clone, Copy, Deserialize)]
struct Times {
    median_s: Option<f64>,
    min_s: Option<f64>,
    max_s: Option<f64>,
    cut_off: bool,
}

#[derive(Serialize)]
struct Document {
    bench: &'static str,
    /// Fitted to the runs alone: what waking a CPU takes, us. Serial and parallel work are fitted for each program.
    wake_us: f64,
    rows: Vec<Row>,
    /// Of the rows beside the neighbour: geometric mean and greatest factor by which the medians differ, and
    /// rows whose ranges have something in common. `None`: not known, as a run too short to tell was cut off.
    error: Option<f64>,
    worst: Option<f64>,
    /// Both are lower bounds: a median run was cut off.
    at_least: bool,
    overlap: usize,
    predicted: usize,
}

#[derive(Serialize)]
struct Row {
    program: String,
    condition: &'static str,
    /// `1` thread, `default`, or `passive`.
    configuration: &'static str,
    recorded_s: f64,
    recorded_min_s: f64,
    recorded_max_s: f64,
    /// The median; of runs of which some were cut off the lower one.
    simulated_s: f64,
    /// The median is a lower bound.
    at_least: bool,
    simulated_min_s: f64,
    simulated_max_s: f64,
    /// Simulated runs that had not ended after [`UNTIL_S`], which they count as.
    cut_off: usize,
    /// Went into the simulation.
    fitted: bool,
}

impl Row {
    /// Simulated over recorded.
    fn ratio(&self) -> Option<Value> {
        self.simulated().over(Value::exact(self.recorded_s))
    }

    fn simulated(&self) -> Value {
        bound(self.simulated_s, self.at_least)
    }

    /// The factor by which they differ.
    fn off(&self) -> Option<Value> {
        let ratio = self.ratio()?;
        if ratio.number < 1.0 { Value::exact(1.0).over(ratio) } else { Some(ratio) }
    }
}

fn bound(number: f64, at_least: bool) -> Value {
    if at_least { Value::at_least(number) } else { Value::exact(number) }
}

/// The median of runs; where some were cut off the lower one, which is a lower bound if it was, too.
fn middle(runs: &[f64]) -> Value {
    let mut sorted = runs.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.last() {
        Some(last) if *last >= UNTIL_S => {
            let lower = sorted[(sorted.len() - 1) / 2];
            bound(lower, lower >= UNTIL_S)
        }
        _ => Value::exact(median(sorted).unwrap_or(f64::NAN)),
    }
}

/// When a simulated run is cut off.
const UNTIL_S: f64 = 20.0;

const CONFIGURATIONS: [&str; 3] = ["1", "default", "passive"];

pub(super) fn run(args: &Args) -> Result<ExitCode> {
    let directory = match &args.recorded {
        Some(directory) => directory.clone(),
        None => find_root()
            .map_err(|_| anyhow!("there is no repository above the executable or here; give --recorded DIR"))?
            .join("captures/overcommit-2cpus"),
    };
    let recorded: Recorded = serde_json::from_str(&read(&directory, "bench.json")?)
        .with_context(|| format!("{}/bench.json", directory.display()))?;
    let facts: Facts = toml::from_str(&read(&directory, "facts.toml")?)
        .with_context(|| format!("{}/facts.toml", directory.display()))?;
    let document = compare(&recorded, &facts, args.runs)?;
    print(args.json, &document, text)?;
    Ok(ExitCode::SUCCESS)
}

fn read(directory: &Path, name: &str) -> Result<String> {
    let file = directory.join(name);
    std::fs::read_to_string(&file).with_context(|| format!("{}: cannot be read", file.display()))
}

/// The times of a configuration; `None` if a run was cut off or none was right.
fn times(recorded: &Recorded, condition: &str, program: &str, configuration: &str) -> Option<[f64; 3]> {
    let condition = recorded.conditions.iter().find(|c| c.name == condition)?;
    let times = condition.programs.iter().find(|p| p.name == program)?.runs.get(configuration)?;
    let [median, min, max] = [times.median_s?, times.min_s?, times.max_s?];
    (!times.cut_off).then_some([median, min, max])
}

/// A program as the simulator is to run it.
struct Model {
    serial_s: f64,
    parallel_s: f64,
    regions: u32,
}

impl Model {
    /// From its times alone with one thread and with two.
    fn of(recorded: &Recorded, program: &str, regions: u32) -> Option<Model> {
        let alone = |configuration| Some(times(recorded, "nothing_short", program, configuration)?[0]);
        let (one, two) = (alone("1")?, alone("default")?);
        let serial_s = (2.0 * two - one).clamp(0.0, one);
        Some(Model { serial_s, parallel_s: one - serial_s, regions })
    }

    fn scenario(
        &self,
        cpus: u32,
        wake_us: f64,
        facts: &Facts,
        neighbour: bool,
        configuration: &str,
    ) -> String {
        let threads = if configuration == "1" { 1 } else { cpus };
        let wait = if configuration == "passive" { "block".into() } else { format!("{}ms", facts.spin_ms) };
        let (serial, part) = (self.serial_s * 1e9, self.parallel_s * 1e9 / f64::from(self.regions));
        let other = format!("[[vm]]\nname = \"neighbour\"\nvcpus = {cpus}\nprogram = \"hog\"\n")
            .repeat(usize::from(neighbour));
        // Linux 6.18 on two CPUs, at 250 Hz: slices end at ticks.
        format!(
            "until = \"{UNTIL_S}s\"\nhardware = {{ cores = {cpus} }}\n\
             scheduler = \"eevdf\"\ncfs = {{ base_slice = \"1400us\", tick = \"4ms\" }}\n\
             costs = {{ ipi = \"{:.0}ns\" }}\n\
             [[vm]]\nname = \"program\"\nvcpus = {threads}\nwait = \"{wait}\"\n\
             program = \"compute {serial:.0}ns repeat {} {{ parallel {{ compute {part:.0}ns split }} }}\"\n{other}",
            wake_us * 1e3,
            self.regions
        )
    }
}

/// Blocking instead of spinning costs a wake-up at each fork and each join.
fn wake_us(recorded: &Recorded, facts: &Facts) -> Result<f64> {
    let each =
        facts.regions.iter().filter(|(_, regions)| **regions >= 1000).filter_map(|(program, regions)| {
            let alone = |configuration| Some(times(recorded, "nothing_short", program, configuration)?[0]);
            Some((alone("passive")? - alone("default")?).max(0.0) * 1e6 / (2.0 * f64::from(*regions)))
        });
    median(each).context("no program of 1000 regions was recorded alone, passive and by default")
}

fn compare(recorded: &Recorded, facts: &Facts, runs: u32) -> Result<Document> {
    let wake_us = wake_us(recorded, facts)?;
    let mut tasks = vec![];
    for (program, &regions) in &facts.regions {
        let model = Model::of(recorded, program, regions)
            .with_context(|| format!("{program} was not recorded alone with 1 thread and by default"))?;
        for (condition, neighbour) in [("nothing_short", false), ("neighbour", true)] {
            for configuration in CONFIGURATIONS {
                let Some(times) = times(recorded, condition, program, configuration) else { continue };
                let text = model.scenario(recorded.machine.cpus, wake_us, facts, neighbour, configuration);
                tasks.push((program.clone(), condition, configuration, times, text));
            }
        }
    }
    let rows = parallel::map(
        &tasks,
        parallel::cpus(),
        "simulations",
        |(program, condition, configuration, times, text)| {
            let simulated = simulate(text, runs)?;
            let middle = middle(&simulated);
            Ok(Row {
                program: program.clone(),
                condition,
                configuration,
                recorded_s: times[0],
                recorded_min_s: times[1],
                recorded_max_s: times[2],
                simulated_s: middle.number,
                at_least: middle.bound == Bound::AtLeast,
                simulated_min_s: simulated.iter().copied().fold(f64::INFINITY, f64::min),
                simulated_max_s: simulated.iter().copied().fold(0.0, f64::max),
                cut_off: simulated.iter().filter(|s| **s >= UNTIL_S).count(),
                fitted: *condition == "nothing_short",
            })
        },
    );
    let rows = rows.into_iter().collect::<Result<Vec<Row>>>()?;
    let predicted: Vec<&Row> = rows.iter().filter(|row| !row.fitted).collect();
    let off: Option<Vec<Value>> = predicted.iter().map(|row| row.off()).collect();
    let error = off.clone().and_then(geomean);
    Ok(Document {
        bench: "model",
        wake_us,
        error: error.map(|error| error.number),
        worst: error.zip(off).map(|(_, off)| off.iter().map(|value| value.number).fold(1.0, f64::max)),
        at_least: predicted.iter().any(|row| row.at_least),
        overlap: predicted
            .iter()
            .filter(|r| r.simulated_min_s <= r.recorded_max_s && r.recorded_min_s <= r.simulated_max_s)
            .count(),
        predicted: predicted.len(),
        rows,
    })
}

/// Seconds of each run, with successive seeds.
fn simulate(text: &str, runs: u32) -> Result<Vec<f64>> {
    let mut spec = Scenario::parse(text, &[]).map_err(|e| anyhow!("{e} in\n{text}"))?.spec;
    let one = |run: u32| {
        spec.seed = 1 + u64::from(run);
        let mut sim = Sim::new(&spec)?;
        sim.run();
        Ok(sim.truth().vms[0].apps[0].took_ns.map_or(UNTIL_S, |ns| ns as f64 / 1e9))
    };
    (0..runs).map(one).collect()
}

fn text(document: &Document) -> String {
    let mut table = Table::new(
        3,
        &[
            "program",
            "condition",
            "threads",
            "recorded s",
            "from",
            "to",
            "simulated s",
            "from",
            "to",
            "cut off",
            "ratio",
        ],
    );
    for row in &document.rows {
        let mut cells = vec![row.program.clone(), row.condition.into(), row.configuration.into()];
        cells.extend([row.recorded_s, row.recorded_min_s, row.recorded_max_s].map(seconds));
        cells.push(bounded(Some(row.simulated()), seconds));
        cells.extend(
            [row.simulated_min_s, row.simulated_max_s]
                .map(|s| bounded(Some(bound(s, s >= UNTIL_S)), seconds)),
        );
        cells.push(if row.cut_off == 0 { NONE.into() } else { row.cut_off.to_string() });
        cells.push(if row.fitted { NONE.into() } else { bounded(row.ratio(), factor) });
        table.row(cells);
    }
    let known = |x: Option<f64>| bounded(x.map(|x| bound(x, document.at_least)), factor);
    format!(
        "{}\nFitted to the runs alone (nothing_short): serial and parallel work of each program, and {:.0} us to wake a CPU.\n\
         Beside the neighbour, predicted: off by a factor of {} on average (geometric mean), {} at worst; ranges meet in\n\
         {} of {} rows. Simulated runs are cut off after {UNTIL_S} s.\n",
        table.render(),
        document.wake_us,
        known(document.error),
        known(document.worst),
        document.overlap,
        document.predicted,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_of_runs_that_were_cut_off_is_a_lower_bound() {
        assert_eq!(middle(&[3.0, 1.0]), Value::exact(2.0));
        assert_eq!(middle(&[UNTIL_S, 1.0]), Value::exact(1.0), "never a mean with what is not known");
        assert_eq!(middle(&[UNTIL_S, 1.0, UNTIL_S]), Value::at_least(UNTIL_S));
    }

    #[test]
    fn nothing_recorded_beside_the_neighbour_goes_into_the_simulation() {
        let times = |s: f64| Times { median_s: Some(s), min_s: Some(s), max_s: Some(s), cut_off: false };
        let record = |beside: f64| {
            let runs = |s: [f64; 3]| {
                CONFIGURATIONS.iter().zip(s).map(|(c, s)| ((*c).to_owned(), times(s))).collect()
            };
            let condition = |name: &str, s| Condition {
                name: name.into(),
                programs: vec![Program { name: "cg".into(), runs: runs(s) }],
            };
            Recorded {
                conditions: vec![
                    condition("nothing_short", [0.2, 0.12, 0.16]),
                    condition("neighbour", [beside; 3]),
                ],
                machine: Machine { cpus: 2 },
            }
        };
        let facts = Facts { spin_ms: 8.0, regions: [("cg".to_owned(), 1000)].into() };
        let (one, other) =
            (compare(&record(0.5), &facts, 2).unwrap(), compare(&record(5.0), &facts, 2).unwrap());
        assert!((one.wake_us - 20.0).abs() < 1e-9, "40 ms more for 1000 forks and joins");
        let simulated = |d: &Document| d.rows.iter().map(|row| row.simulated_s).collect::<Vec<_>>();
        assert_eq!(simulated(&one), simulated(&other));
        // Alone, what was fitted comes out again.
        for row in one.rows.iter().filter(|row| row.fitted) {
            assert!(
                (row.simulated_s / row.recorded_s - 1.0).abs() < 0.2,
                "{} {}",
                row.configuration,
                row.simulated_s
            );
        }
        assert!(one.error != other.error, "but is what it is judged by");
    }
}

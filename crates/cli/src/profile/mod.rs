//! `corefit profile`: one run of a program tells how it scales on any machine and VM.
//!
//! ```text
//!   launch, waiting made to sleep ─▶ every few ms: look at each thread, ─▶ the program ends
//!                                    now and then all on one CPU
//!                                                                             │
//!        text, --json, --html, --scenario ◀── corefit_core::profile::analyse ◀┘   and end as it ended
//! ```

mod document;
mod html;
mod isolate;
mod scenario;
mod text;
mod watch;
mod windows;

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{ExitCode, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use corefit_core::profile::{Contention, Machine, Question, Record, Series, Spin};
use corefit_linux::Root;
use corefit_linux::clock::device_clock;
use corefit_linux::launch::{
    Counts, Environment, Launch, LaunchError, Program, Setting, Supervised, Usage, Waiting, end_like,
    files_may_be_refused, passive, plan,
};
use corefit_linux::page::{Orders, TeamPage};
use corefit_linux::reporter::Reporter;
use corefit_linux::sample;

use crate::bench::others::{self, Others};
use crate::durations::period;
use crate::output::{Output, distinct};
use crate::versioned::json;
use crate::{preload, printable, tell};
use document::Document;
use watch::Watched;
use windows::Windows;

/// Run a program once and predict how it scales on machines and VMs
///
/// Ends as the program ended (a shell shows 128 and the number of a signal), or with exit status 126 if it cannot be executed, 127
/// if it is not there, and 2 if it ended with 0 and something asked for could not be written. With --isolate the exit status is 0
/// if the program always ended with 0; else nothing is measured, and it is 2 (126 and 127 as above).
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Tell all runtimes to use so many threads, but for those whose number you set yourself, as by OMP_NUM_THREADS; may be
    /// more than there are CPUs
    /// [default: as without corefit]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=4096))]
    threads: Option<u16>,
    /// Allocation period of the VMs that are asked about, 1ms to 1s
    #[arg(long, default_value = "24ms", value_parser = period)]
    period: Duration,
    /// What each of their vCPUs gets of a pCPU: 0.25 or 25%
    #[arg(long, default_value = "25%", value_parser = share)]
    share: f64,
    /// OpenMP programs: now and then keep all threads on one CPU for some milliseconds (about 1 % of the time), which shows
    /// how much threads slow each other. Meanwhile the program sees one CPU; threads begun then, or all if corefit is
    /// killed with -9 then, may stay there
    #[arg(long)]
    one_cpu: bool,
    /// Write a page with pictures
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// One JSON document instead of the report on stderr (with --isolate on stdout), or into a file (--json=FILE) beside it
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true)]
    json: Option<Option<PathBuf>>,
    /// Write what was seen of the threads, as JSON: what a prediction is made of (`corefit bench predict`)
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// Write a scenario for `corefit sim` that behaves as the program did
    #[arg(long, value_name = "FILE")]
    scenario: Option<PathBuf>,
    /// Instead: runs as it is and with each thread kept on a CPU, in turns, which tells what this system's scheduler costs. What
    /// the program prints is not shown; each run gets standard input from its beginning, which is read to its end before (none:
    /// `</dev/null`); waiting is not made to sleep. What the program leaves running, if corefit is killed with -9
    /// then, may stay on a CPU
    #[arg(long, conflicts_with_all = ["one_cpu", "html", "scenario", "record", "quiet", "period", "share"])]
    isolate: bool,
    /// With --isolate: as it is, and with each vCPU of this VM kept on a pCPU, which tells what its host's scheduler costs;
    /// PROGRAM runs here and has the VM work, as `ssh VM ./program` does
    #[arg(long, value_name = "NAME", requires = "isolate")]
    vm: Option<String>,
    /// Rounds of --isolate
    #[arg(long, default_value_t = 5, requires = "isolate", value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: u16,
    /// Where the VM is: as for `manage`
    #[arg(long, default_value = "libvirt", requires = "vm", value_name = "NAME")]
    machine: String,
    /// The directory of the journal by which its vCPUs are put back, as of `manage`
    #[arg(long, default_value = crate::manage::STATE, requires = "vm", value_name = "DIR")]
    state: PathBuf,
    /// No report on stderr
    #[arg(long)]
    quiet: bool,
    /// Program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    command: Vec<OsString>,
}

fn share(text: &str) -> Result<f64, String> {
    let part = match text.strip_suffix('%') {
        Some(percent) => percent.trim().parse::<f64>().ok().map(|p| p / 100.0),
        None => text.trim().parse().ok(),
    };
    part.filter(|share| (0.001..=1.0).contains(share))
        .ok_or_else(|| "a part of a CPU is needed, from 0.001 to 1, like 0.25 or 25%".into())
}

/// Why `--one-cpu` told nothing, if nothing else stood in its way.
const NO_WINDOWS: &str =
    "too few short OpenMP regions were seen that one thread begins and whose threads are not bound";
/// Probes of the reporter before the program begins, and after it: some milliseconds.
const ALONE: usize = 10;

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let program = Program::find(&args.command[0])?;
    let outputs = Outputs::open(args)?;
    let Planned { mut launch, waiting, set, left } = plan_launch(args, &program);
    if args.isolate {
        return isolated(args, outputs, &launch, &left);
    }
    files_may_be_refused();
    let (page, mut one_cpu_not) = match windows_page(args, &program, &mut launch, waiting.sleeps) {
        Ok(page) => (page, None),
        Err(why) => (None, Some(why)),
    };
    let mut reporter = Reporter::new();
    let mut alone: Vec<_> = (0..ALONE).map(|_| reporter.probe()).collect();
    let all = sample::affinity(std::process::id()).unwrap_or_default();
    let before = others::spent_on_s(&all);
    let start = Instant::now();
    let began = sample::now();
    let mut child = match Supervised::spawn(&launch) {
        Ok(child) => child,
        Err(LaunchError::Interrupted(signal)) => end_like(ExitStatus::from_raw(signal)),
        Err(why) => return Err(why.into()),
    };
    let cpus = all.len().max(1);
    let windows = page.map(|page| Windows::new(page, began, all.clone()));
    let Watched { status, mut series, full, stops, probes, looks, interval, own_cpu, windows } =
        watch::until_end(&mut child, began, &all, args.period, &mut reporter, windows)?;
    let wall = start.elapsed();
    let ran = wall.saturating_sub(stops.time);
    let after = others::spent_on_s(&all).map(|after| after - stops.others_s);
    // Working it all out may take long.
    child.let_go().context("cannot let signals end this process")?;
    alone.extend((0..ALONE).map(|_| reporter.probe()));
    let usage = child.usage().unwrap_or_default();
    let cpu = usage.user + usage.system;
    let blocked = series.voluntary.max(usage.voluntary_switches);
    let seen = complete(&mut series, &usage);
    let windows_cost = windows.as_ref().map_or(Duration::ZERO, Windows::cost);
    let one_cpu = windows.and_then(|windows| windows.one_cpu(ran, cpu, blocked));
    if args.one_cpu && one_cpu.is_none() {
        let why = if cpus < 2 { "there is one CPU only" } else { NO_WINDOWS };
        one_cpu_not.get_or_insert_with(|| why.to_owned());
    }
    let mut others = Others::default();
    others.add(before, after, cpu.max(seen), ran);
    let question = Question {
        machine: Machine {
            cpus,
            contention: Contention::of(&alone, &probes, cpus),
            one_cpu,
            others: others.cpus(),
        },
        spin: if waiting.sleeps { Spin::Passive } else { Spin::Unknown },
        period_ns: args.period.as_secs_f64() * 1e9,
        share: args.share,
    };
    let measured = Record { question, series };
    let mut document = Document {
        command: args.command.iter().map(|a| a.to_string_lossy().into_owned()).collect(),
        exit_code: status.code(),
        exit_signal: status.signal(),
        wall_s: wall.as_secs_f64(),
        cpu_s: cpu.as_secs_f64(),
        seen_s: seen.as_secs_f64(),
        looks,
        interval_ms: interval.as_secs_f64() * 1e3,
        own_cpu_s: own_cpu.as_secs_f64(),
        windows_s: windows_cost.as_secs_f64(),
        set,
        kept: waiting.kept,
        notes: vec![],
        one_cpu_not,
        full_after_s: full.then(|| measured.series.ns() / 1e9),
        left,
        device_clock: device_clock(&Root::live()),
        profile: measured.profile(),
    };
    document.notes = document.remarks();
    let told = Outputs::print(args, &document);
    child.hold().context("cannot keep signals from ending this process")?;
    let lost = !(told & outputs.write(&document, &measured));
    child.finish(tell::ended(status, lost))
}

/// `--isolate`: runs in turns; nothing else is measured.
fn isolated(args: &Args, outputs: Outputs<'_>, launch: &Launch, left: &[String]) -> Result<ExitCode> {
    if !left.is_empty() {
        tell!(
            "corefit: left as you set them, whatever --threads says: {}",
            printable::text(&left.join(", "))
        );
    }
    let name = |name| isolate::Vm { machine: &args.machine, name, state: &args.state };
    let vm = args.vm.as_deref().map(name);
    let document = isolate::run(launch, args.rounds.into(), vm.as_ref())?;
    let json = json(&document, false)?;
    match &args.json {
        Some(None) => answer!("{}", json.trim_end())?,
        _ => tell!("{}", document.text()),
    }
    let written = outputs.json.map_or(Ok(()), |output| output.write(json.as_bytes()));
    written.map(|()| ExitCode::SUCCESS)
}

/// The page by which `--one-cpu` knows when regions begin, if that was asked for. The error says why there is none.
fn windows_page(
    args: &Args,
    program: &Program,
    launch: &mut Launch,
    sleeps: bool,
) -> Result<Option<TeamPage>, String> {
    match (args.one_cpu, sleeps) {
        (false, _) => Ok(None),
        // As they all would on one CPU.
        (true, false) => Err("threads that spin would stand in each other's way".to_owned()),
        (true, true) => share_page(program, launch).map(Some),
    }
}

/// The files that were asked for.
struct Outputs<'a> {
    html: Option<Output<'a>>,
    scenario: Option<Output<'a>>,
    record: Option<Output<'a>>,
    json: Option<Output<'a>>,
}

impl Outputs<'_> {
    fn open(args: &Args) -> Result<Outputs<'_>> {
        let outputs = Outputs {
            html: args.html.as_deref().map(Output::open).transpose()?,
            scenario: args.scenario.as_deref().map(Output::open).transpose()?,
            record: args.record.as_deref().map(Output::open).transpose()?,
            json: args.json.as_ref().and_then(Option::as_deref).map(Output::open).transpose()?,
        };
        distinct(&[
            ("--html", outputs.html.as_ref()),
            ("--scenario", outputs.scenario.as_ref()),
            ("--json", outputs.json.as_ref()),
            ("--record", outputs.record.as_ref()),
        ])?;
        Ok(outputs)
    }

    /// Prints what was asked for; whether it is not lost.
    fn print(args: &Args, document: &Document) -> bool {
        if matches!(args.json, Some(None)) {
            return tell::all(&document.json());
        }
        if !args.quiet {
            tell!("{}", text::render(document, text::columns()).trim_end());
        }
        true
    }

    /// Writes the files; whether none is lost.
    fn write(self, document: &Document, measured: &Record) -> bool {
        let mut all = true;
        let mut write = |output: Option<Output<'_>>, text: &dyn Fn() -> Result<String>| {
            if let Some(output) = output {
                all &= tell::written(text().and_then(|text| output.write(text.as_bytes())));
            }
        };
        write(self.json, &|| Ok(document.json()));
        write(self.record, &|| Ok(serde_json::to_string(measured)?));
        write(self.html, &|| Ok(html::page(document)));
        write(self.scenario, &|| {
            let made = document.profile.as_ref().context("no thread was seen to run");
            let made = made.and_then(|profile| scenario::of(profile, &document.command.join(" ")));
            made.context("--scenario: not written")
        });
        all
    }
}

/// What threads did between the last look at them and their end: the kernel counted it with the rest of the run. Of what was
/// never seen to run, as short processes are, nothing counts. Returns the CPU time that was seen.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a part of a count")]
fn complete(series: &mut Series, usage: &Usage) -> Duration {
    let run: f64 = series.slots.iter().flat_map(|slot| &slot.lanes).map(|lane| lane.run).sum();
    let seen = Duration::from_secs_f64(run / 1e9);
    let cpu = usage.user + usage.system;
    let part = if cpu > seen { seen.div_duration_f64(cpu) } else { 1.0 };
    let of = |count: u64| (count as f64 * part).round() as u64;
    series.voluntary = series.voluntary.max(of(usage.voluntary_switches));
    series.involuntary = series.involuntary.max(of(usage.involuntary_switches));
    series.system_ns = part * usage.system.as_secs_f64() * 1e9;
    seen
}

/// Makes the preload library note when the program's parallel regions begin. The error says why it cannot.
fn share_page(program: &Program, launch: &mut Launch) -> Result<TeamPage, String> {
    program.preloadable().map_err(|why| why.to_string())?;
    let library = preload::find(&preload::OPENMP)?;
    let orders = Orders { time: true, ..Orders::default() };
    let page = TeamPage::create(orders, false, None, 1).map_err(|why| why.to_string())?;
    let (name, value) = page.variable();
    let preload = preload::variable(&[library], std::env::var_os("LD_PRELOAD"));
    launch.env.extend([(name.into(), Some(value.into())), ("LD_PRELOAD".into(), Some(preload))]);
    Ok(page)
}

/// What to start, and what it is told.
struct Planned {
    launch: Launch,
    waiting: Waiting,
    /// `NAME=value`.
    set: Vec<String>,
    /// The user's own numbers of threads, which stay: `NAME=value`.
    left: Vec<String>,
}

fn plan_launch(args: &Args, program: &Program) -> Planned {
    let get = |name: &str| std::env::var_os(name);
    let waiting = if args.isolate { Waiting::default() } else { passive(&get) };
    let mut env: Vec<(OsString, Option<OsString>)> =
        waiting.set.iter().map(|(name, value)| ((*name).into(), Some((*value).into()))).collect();
    let users = &args.command[1..];
    let (mut arguments, mut left) = (vec![], vec![]);
    if let Some(threads) = args.threads.map(usize::from) {
        let counts = Counts { openmp: threads, teams: threads, pools: threads };
        let knobs = plan(counts, &Environment { get: &get, program, args: users, raise: true });
        arguments.extend(knobs.arguments().map(OsString::from));
        env.extend(knobs.variables().map(|(name, value)| (name.into(), Some(value.into()))));
        left.extend(knobs.settings.iter().filter_map(|setting| match setting {
            Setting::Kept { name, value, .. } => Some(format!("{name}={}", value.display())),
            _ => None,
        }));
    }
    arguments.extend(users.iter().cloned());
    let told = |(name, value): &(OsString, Option<OsString>)| {
        format!("{}={}", name.display(), value.as_deref().unwrap_or_default().display())
    };
    let set = env.iter().map(told).collect();
    let launch = Launch { program: program.clone(), args: arguments, env, cpus: None, hold_stdio: false };
    Planned { launch, waiting, set, left }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn switches_of_processes_that_were_never_seen_do_not_count_for_those_that_were() {
        let usage = |seconds, voluntary_switches| Usage {
            user: Duration::from_secs(seconds),
            voluntary_switches,
            ..Usage::default()
        };
        let all_of = |usage: &Usage| {
            let mut series = Series { voluntary: 7, ..Series::of_runs(&[(1e9, &[1e9]), (1e9, &[1e9])]) };
            (complete(&mut series, usage), series.voluntary)
        };
        let seen = Duration::from_secs(2);
        // A tenth of the CPU time was seen.
        assert_eq!(all_of(&usage(20, 1000)), (seen, 100));
        assert_eq!(all_of(&usage(2, 1000)), (seen, 1000));
        // Looks may see more than the kernel counts, and what they counted stands.
        assert_eq!(all_of(&usage(1, 1000)), (seen, 1000));
        assert_eq!(all_of(&usage(20, 10)), (seen, 7));
    }

    #[test]
    fn shares_have_sane_bounds() {
        assert_eq!((share("25%"), share("0.5"), share("1")), (Ok(0.25), Ok(0.5), Ok(1.0)));
        for bad in ["0", "1.1", "101%", "-1", "NaN", "%", "half", ""] {
            assert!(share(bad).is_err(), "{bad}");
        }
    }
}

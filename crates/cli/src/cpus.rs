//! `corefit cpus`: how many CPUs a process really has, and why.

use std::fmt::Write as _;
use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use corefit_core::{Cpus, Limit, LimitKind, Report, estimate};
use corefit_linux::{ReadError, Root, read};

use crate::lines::{self, LEAST};
use crate::versioned::json;
use crate::{named, printable};

/// How long a process is watched for one report.
const WINDOW: Duration = Duration::from_millis(200);
/// Who used and waited for less than this, in CPUs, has not tried to get any.
const RESTED: f64 = 0.2;
/// A wait for a CPU that is longer than a timeslice.
const LONG: Duration = Duration::from_millis(8);
/// How often `--watch` reports.
const REFRESH: Duration = Duration::from_secs(1);
/// Contenders listed by name in the table.
const NAMED: usize = 5;

/// How many CPUs a process really has, and why.
///
/// Lists every limit with the file it comes from and marks what sets `available` (`<- binding`). `entitled`
/// is what the process gets when everybody who is busy wants everything, `available` what it
/// could get right now. Needs no privilege. Exit status 1 if there is no such process.
#[derive(clap::Args)]
pub(crate) struct CpusArgs {
    /// The process to look at [default: this one, and so whatever is started from the same shell]
    #[arg(long, value_name = "PID", value_parser = process_number, allow_negative_numbers = true)]
    pid: Option<u32>,
    /// The process to look at, as --pid
    #[arg(value_name = "PID", value_parser = process_number, conflicts_with = "pid")]
    process: Option<u32>,
    /// Report again every second until Ctrl-C
    #[arg(long)]
    watch: bool,
    /// Print one JSON document per report
    #[arg(long)]
    json: bool,
}

impl CpusArgs {
    /// The process that was named, if one was.
    fn other(&self) -> Option<u32> {
        self.pid.or(self.process)
    }
}

fn process_number(text: &str) -> Result<u32, &'static str> {
    // The kernel's numbers are positive and fit 31 bits.
    text.parse::<i32>()
        .ok()
        .and_then(|pid| u32::try_from(pid).ok())
        .filter(|pid| *pid > 0)
        .ok_or("a process number is a whole number from 1; `pgrep NAME` finds it")
}

/// Runs the verb. A process that does not exist, or ends while it is watched, is exit status 1.
pub(crate) fn run(args: &CpusArgs) -> anyhow::Result<ExitCode> {
    let root = Root::live();
    let pid = args.other().unwrap_or_else(std::process::id);
    match report_all(args, &root, pid) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(error) => match error.downcast_ref::<ReadError>() {
            Some(ReadError::Gone { .. }) => {
                tell!("corefit cpus: no process {pid} here (ended, or hidden from this user)");
                Ok(ExitCode::FAILURE)
            }
            _ => Err(error),
        },
    }
}

fn report_all(args: &CpusArgs, root: &Root, pid: u32) -> anyhow::Result<()> {
    let mut earlier = read(root, pid)?;
    std::thread::sleep(WINDOW);
    loop {
        let mut later = read(root, pid)?;
        if later.started_ticks != earlier.started_ticks {
            return Err(ReadError::Gone { path: format!("/proc/{pid}") }.into());
        }
        let mut report = estimate(&earlier, &later);
        let tried = args.other().is_none() && says_nothing(&report);
        if tried {
            keep_busy(Duration::ZERO, WINDOW);
            earlier = read(root, pid)?;
            keep_busy(WINDOW, 2 * WINDOW);
            later = read(root, pid)?;
            report = estimate(&earlier, &later);
        }
        if !show(args, &report, tried)? || !args.watch {
            return Ok(());
        }
        earlier = later;
        std::thread::sleep(REFRESH);
    }
}

/// Whether `available` is only what an idle process used: nobody who competes can be seen, and nothing
/// was idle. This process then finds out what a thread gets.
fn says_nothing(report: &Report) -> bool {
    let rested = report.used.0 + report.waiting.map_or(0.0, |w| w.0) < RESTED;
    let measured = report.limits.iter().any(|l| l.binding && l.kind == LimitKind::Measured);
    report.entitled.is_none() && measured && rested && report.available.0 < 1.0
}

/// Keeps one thread busy for a time, and on until it has just been kept waiting for [`LONG`], at most until
/// another time: a quota that cannot be seen stops it in each of its periods, so between two such moments are
/// whole periods, and what the thread got is what the quota leaves.
fn keep_busy(least: Duration, most: Duration) {
    let start = Instant::now();
    let mut last = start;
    loop {
        let now = Instant::now();
        let waited = now.duration_since(last);
        let passed = now.duration_since(start);
        if passed >= most || (passed >= least && waited >= LONG) {
            return;
        }
        last = now;
    }
}

/// Prints a report; `false` when nobody reads any more.
fn show(args: &CpusArgs, report: &Report, tried: bool) -> anyhow::Result<bool> {
    let mut text =
        if args.json { json(report, args.watch)? } else { table(report, tried, lines::width(LEAST)) };
    if args.watch && !args.json {
        if io::stdout().is_terminal() {
            text.insert_str(0, "\x1b[H\x1b[2J"); // to the top left, and clear
        } else {
            text.push('\n');
        }
    }
    lines::print(&text)
}

/// A text that may hold names that anybody chose, broken into lines.
fn wrap(out: &mut String, first: &str, text: &str, width: usize) {
    let indent = if first.is_empty() { 2 } else { first.chars().count() };
    // As `explain` calls sessions.
    let text = text.replace("/autogroup-", "session ");
    lines::wrap(out, first, indent, &printable::text(&text), width);
}

/// The report for people, in lines of `width` columns where its words allow it.
fn table(report: &Report, tried: bool, width: usize) -> String {
    let mut out = String::new();
    let how = if tried { " with one thread kept busy, as others may compete unseen" } else { "" };
    let who = format!("{} (pid {}), watched for {:.0} ms{how}", report.name, report.pid, report.window_ms);
    wrap(&mut out, "", &who, width);
    let _ = writeln!(out, "\nlimit       CPUs  source: value");
    for (limit, more) in shown(&report.limits) {
        let cpus = limit.cpus.map_or("none".into(), |Cpus(cpus)| format!("{cpus:.2}"));
        let more = if more > 0 { format!(" (and {more} more alike)") } else { String::new() };
        let mark = if limit.binding { " <- binding" } else { "" };
        let (kind, source, detail) = (named::name(limit.kind), &limit.source, &limit.detail);
        let text = format!("{source}: {detail}{more}{mark}");
        wrap(&mut out, &format!("{kind:<9} {cpus:>6}  "), &text, width);
    }
    let _ = writeln!(out);
    let amount = |cpus: Option<Cpus>| cpus.map_or("unknown".into(), |Cpus(cpus)| format!("{cpus:.2}"));
    for (name, cpus, meaning) in [
        ("entitled", report.entitled, entitled_means(report)),
        ("available", Some(report.available), "now, at least"),
        ("used", Some(report.used), "by it and its descendants"),
        ("waiting", report.waiting, "ready to run, without a CPU"),
    ] {
        lines::wrap(&mut out, &format!("{name:<9} {:>7}  ", amount(cpus)), 19, meaning, width);
    }
    if !report.contenders.is_empty() {
        let _ = writeln!(out, "\ncontenders  used  weight");
        for rival in report.contenders.iter().take(NAMED) {
            let who = if rival.who.is_empty() { String::new() } else { format!(": {}", rival.who) };
            let (used, weight) = (rival.used.0, rival.weight.0);
            let text = format!("{}{who}", rival.path);
            wrap(&mut out, &format!("          {used:>6.2}  {weight:>6.0}  "), &text, width);
        }
        if let Some(more) = report.contenders.len().checked_sub(NAMED).filter(|more| *more > 0) {
            let _ = writeln!(out, "          and {more} more");
        }
    }
    if !report.unread.is_empty() {
        let _ = writeln!(out, "\nnot visible");
        for unread in &report.unread {
            let text = format!("{}: {}", unread.path, unread.why);
            wrap(&mut out, &format!("  {:<9} ", named::name(unread.what)), &text, width);
        }
    }
    out
}

fn entitled_means(report: &Report) -> &'static str {
    match (report.entitled, report.contenders.is_empty()) {
        (None, _) => "others may compete unseen (see below)",
        (Some(_), true) => "when everybody is busy; nobody else is",
        (Some(_), false) => "when all contenders want everything",
    }
}

/// The limits to show, each with the number of others left out for saying the same: a set
/// that only repeats the one above it, and groups without a quota.
fn shown(limits: &[Limit]) -> Vec<(&Limit, usize)> {
    let mut shown: Vec<(&Limit, usize)> = Vec::new();
    for limit in limits {
        let alike = shown.iter_mut().find(|(known, _)| {
            known.kind == limit.kind
                && match limit.kind {
                    LimitKind::Cpuset => known.detail == limit.detail,
                    LimitKind::Quota => known.cpus.is_none() && limit.cpus.is_none(),
                    _ => false,
                }
        });
        match alike {
            Some((_, more)) => *more += 1,
            None => shown.push((limit, 0)),
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// The report on a captured machine (`captures/README.md`).
    fn report(name: &str) -> Report {
        let dir = captures().join(name);
        let pid = std::fs::read_to_string(dir.join("pid")).unwrap().trim().parse().unwrap();
        let (t0, t1) = (dir.join("t0"), dir.join("t1"));
        estimate(&read(&Root::at(&t0), pid).unwrap(), &read(&Root::overlay(&t1, &t0), pid).unwrap())
    }

    fn captures() -> std::path::PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../captures")
    }

    #[test]
    fn lines_fit_and_sessions_are_called_what_explain_calls_them() {
        let told = table(&report("no-cgroups"), false, 45);
        let long = |word: &str| word.chars().count() > 20;
        for line in told.lines().filter(|line| !line.split_whitespace().any(long)) {
            assert!(line.chars().count() <= 45, "{line}");
        }
        let told = told.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(told.contains("session 9: pid 90 (ffmpeg)") && !told.contains("autogroup-"), "{told}");
    }

    /// `COREFIT_BLESS=1` rewrites the expected texts.
    #[test]
    fn each_captured_machine_gives_exactly_its_expected_table() {
        let mut tested = 0;
        for entry in std::fs::read_dir(captures()).unwrap() {
            let dir = entry.unwrap().path();
            if !dir.join("t0").is_dir() {
                continue;
            }
            let got = table(&report(dir.file_name().unwrap().to_str().unwrap()), false, 80);
            let path = dir.join("expected.txt");
            if std::env::var_os("COREFIT_BLESS").is_some() {
                std::fs::write(&path, &got).unwrap();
            }
            assert_eq!(got, std::fs::read_to_string(&path).unwrap(), "{}", path.display());
            tested += 1;
        }
        assert!(tested >= 12, "only {tested} captures found");
    }

    #[test]
    fn watching_gives_one_document_per_line_with_the_promised_fields() {
        let text = json(&report("docker-v1"), true).unwrap();
        assert_eq!(text.matches('\n').count(), 1);
        let document: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert!(document["entitled"].is_null() && document["available"] == 2.0);
        for limit in document["limits"].as_array().unwrap() {
            assert!(limit["kind"].is_string() && limit["source"].is_string(), "{limit}");
            assert!(limit["cpus"].is_number() || limit["cpus"].is_null(), "{limit}");
            assert!(limit["binding"].is_boolean(), "{limit}");
        }
    }

    #[test]
    fn an_idle_process_tries_what_it_gets_only_where_nothing_else_tells() {
        let idle = |entitled, used| {
            let mut report = report("v2-container");
            report.limits.iter_mut().for_each(|l| l.binding = l.kind == LimitKind::Measured);
            let (available, waiting) = (Cpus(used), Some(Cpus(0.0)));
            Report { entitled, available, used: Cpus(used), waiting, ..report }
        };
        assert!(says_nothing(&idle(None, 0.01)));
        assert!(!says_nothing(&idle(None, 0.5)), "half a CPU was used, so that is known");
        assert!(!says_nothing(&idle(Some(Cpus(0.7)), 0.01)));
    }

    #[test]
    fn lines_fit_and_names_cannot_steer_the_terminal() {
        let mut report = report("kubernetes");
        report.name = "e\x1b[31m\nx".into();
        let text = table(&report, true, 80);
        assert!(text.starts_with("e\\u{1b}[31m\\nx (pid 5200), watched for "), "{text}");
        // Only a path that is longer than a line makes a line too long.
        let long = |line: &&str| line.chars().count() > 80 && line[26..].contains(' ');
        assert_eq!(text.lines().find(long), None);
    }

    #[test]
    fn exactly_the_binding_limits_are_marked_in_the_table() {
        for name in ["kubernetes", "vm-steal", "bare", "no-cgroups"] {
            let report = report(name);
            let marked = table(&report, false, 80).matches("<- binding").count();
            assert_eq!(marked, report.limits.iter().filter(|l| l.binding).count(), "{name}");
        }
    }

    #[test]
    fn only_what_is_a_process_number_is_taken_for_one() {
        #[derive(clap::Parser)]
        struct Command {
            #[command(flatten)]
            cpus: CpusArgs,
        }
        let pid = |text| <Command as clap::Parser>::try_parse_from(["cpus", "--pid", text]);
        for text in ["0", "-1", "abc", "", "1.5", "99999999999"] {
            assert!(pid(text).is_err(), "{text}");
        }
        assert_eq!(pid("1").unwrap_or_else(|e| panic!("{e}")).cpus.pid, Some(1));
        let other = |args: &[&str]| {
            let command = <Command as clap::Parser>::try_parse_from(args);
            command.unwrap_or_else(|e| panic!("{e}")).cpus.other()
        };
        // Another process is not tried by keeping this one busy, however it is named.
        assert_eq!((other(&["cpus", "7"]), other(&["cpus", "--pid", "7"])), (Some(7), Some(7)));
        assert_eq!(other(&["cpus"]), None);
    }
}

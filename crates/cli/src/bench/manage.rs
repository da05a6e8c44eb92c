//! `corefit bench manage`: what a step of the daemon costs on a large host, and what the daemon does.

mod step;

use std::io::ErrorKind;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use corefit_core::machine::{Lever, MachineError};
use corefit_linux::threads::cpu_of;
use serde::Serialize;

use super::explain::of_libvirt;
use crate::durations::duration;
use crate::machine::MachineArg;
use crate::manage::{Status, VmStatus, left};
use crate::printable;
use crate::stats::number;
use crate::table::Table;
use step::StepCost;
pub(super) use step::{Args as StepsArgs, run as steps};

/// The promises: a step, ms; the daemon's part of a core, and its memory, MiB.
const STEP_MS: f64 = 100.0;
const CORE: f64 = 0.01;
const MEMORY_MIB: f64 = 64.0;
/// So many steps a second are once a second: of each twenty one may be late.
const RATE: f64 = 0.95;
/// vCPUs of each VM.
const VCPUS: u32 = 10;
/// VMs of the daemon's host.
const DAEMON: u32 = 100;

/// Time a step for 1,000 VMs, and a daemon with 100 VMs
#[derive(clap::Args)]
pub(super) struct Args {
    /// Fewer steps, and the daemon for 5 seconds
    #[arg(long)]
    quick: bool,
    /// VMs that the daemon manages, and leaves as they were, such as libvirt (scripts/testvm with 100 --bare --vcpus 10 -- ...);
    /// without it 100 of libvirt's test driver
    #[arg(long, value_name = "MACHINE")]
    machine: Option<String>,
    /// What the daemon does first does not count for so long. With guests that answer it searches for minutes
    #[arg(long, value_name = "TIME", default_value = "3s", value_parser = duration)]
    after: Duration,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Document {
    bench: &'static str,
    step: StepCost,
    daemon: Option<DaemonCost>,
    /// Why the daemon did not keep its promises: it ended, could not look, or left settings changed.
    failed: Option<String>,
    /// What is not installed here, so that no daemon was started.
    skipped: Vec<String>,
}

#[derive(Serialize)]
struct DaemonCost {
    machine: String,
    vms: usize,
    /// Those of them whose guests are told what they get: their agents answer.
    guests: usize,
    vcpus: usize,
    /// What was done in these seconds.
    actions: u64,
    seconds: f64,
    /// In these seconds.
    steps: u64,
    /// CPU time over time, user and system.
    cores: f64,
    /// How much more libvirt's daemons used than before, likewise; `None`: of the test driver, which is in the daemon itself.
    libvirtd_cores: Option<f64>,
    target_cores: f64,
    most_mib: f64,
    target_mib: f64,
}

pub(super) fn run(args: &Args) -> Result<ExitCode> {
    if let Some(machine) = &args.machine {
        MachineArg::named(machine).can_act()?;
    }
    let step = step::cost(if args.quick { 5 } else { 30 })?;
    let time = Duration::from_secs(if args.quick { 5 } else { 30 });
    let (machine, after) = (args.machine.as_deref(), args.after);
    let mut document = Document { bench: "manage", step, daemon: None, failed: None, skipped: Vec::new() };
    match (missing(machine), machine) {
        (None, None) => document.found(daemon_cost(None, after, time)),
        (Some(why), None) => document.skipped.push(format!("the daemon: {why}")),
        // Who names a machine is not told of the rest alone.
        (None, Some(_)) => document.daemon = Some(daemon_cost(machine, after, time)?),
        (Some(why), Some(_)) => bail!("{why}"),
    }
    if args.json {
        answer!("{}", serde_json::to_string_pretty(&document)?)?;
    } else {
        answer!("{}", text(&document))?;
    }
    let met = document.met();
    Ok(if met { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl Document {
    fn met(&self) -> bool {
        let daemon = |d: &DaemonCost| d.cores < d.target_cores && d.most_mib < d.target_mib && d.is_in_time();
        self.step.most_ms < self.step.target_ms
            && self.failed.is_none()
            && self.daemon.as_ref().is_none_or(daemon)
    }

    /// What came of the daemon.
    fn found(&mut self, daemon: Result<DaemonCost>) {
        match daemon {
            Ok(daemon) => self.daemon = Some(daemon),
            Err(error) => self.failed = Some(format!("{error:#}")),
        }
    }
}

impl DaemonCost {
    /// Whether it looked once a second. How many steps lie in some seconds depends by one on when these begin.
    fn is_in_time(&self) -> bool {
        number(self.steps) + 1.0 >= RATE * self.seconds
    }
}

/// What is not installed here that it takes to measure a daemon on this machine, libvirt's test driver if none is given.
fn missing(machine: Option<&str>) -> Option<String> {
    let setpriv = Command::new("setpriv").arg("--version").output();
    if setpriv.is_err_and(|error| error.kind() == ErrorKind::NotFound) {
        return Some("setpriv is not installed (apt install util-linux)".into());
    }
    let test = machine.is_none().then(|| MachineArg::named("libvirt:test:///default").open_to_act());
    match test?.map(|mut test| test.observe()) {
        Ok(Err(MachineError::Unsupported(why))) => Some(why),
        _ => None,
    }
}

/// `corefit manage --apply` on a machine, libvirt's test driver if none is given, once a second.
fn daemon_cost(machine: Option<&str>, after: Duration, time: Duration) -> Result<DaemonCost> {
    let dir = std::env::temp_dir().join(format!("corefit-bench-daemon-{}", std::process::id()));
    std::fs::create_dir_all(&dir)?;
    let measured = daemon_in(&dir, machine, after, time);
    // What it could not put back only its journal knows.
    if let Some([settings, remedy]) = left(&dir.join("state"))? {
        bail!("the daemon left {settings} changed; {remedy} puts that back");
    }
    let _ = std::fs::remove_dir_all(&dir);
    measured
}

/// A daemon that is ended with this, whatever happens, and with this process.
struct Daemon(Child);

impl Daemon {
    /// Ends it.
    fn end(&mut self) -> std::io::Result<ExitStatus> {
        if let Ok(Some(ended)) = self.0.try_wait() {
            return Ok(ended);
        }
        let pid = rustix::process::Pid::from_child(&self.0);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        self.0.wait()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

fn daemon_in(dir: &Path, machine: Option<&str>, after: Duration, time: Duration) -> Result<DaemonCost> {
    let (host, config) = (dir.join("host.xml"), dir.join("corefit.toml"));
    std::fs::write(&host, node(DAEMON))?;
    // A port that is free now.
    let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    std::fs::write(&config, format!("metrics = \"{address}\"\n"))?;
    let (corefit, state) = (std::env::current_exe()?, dir.join("state"));
    let machine = machine.map_or_else(|| format!("libvirt:test://{}", host.display()), Into::into);
    let is_test = machine.starts_with("libvirt:test:");
    let idle = of_libvirt();
    if !is_test {
        std::thread::sleep(time);
    }
    let idle = of_libvirt().saturating_sub(idle);
    let child = Command::new("setpriv")
        .args(["--pdeathsig", "TERM"])
        .arg(&corefit)
        .args(["manage", "--apply", "--machine", &machine])
        .arg("--config")
        .arg(&config)
        .arg("--state")
        .arg(&state)
        .stdin(Stdio::null())
        .stderr(std::fs::File::create(dir.join("log"))?)
        .spawn()
        .context("starting corefit manage by setpriv (util-linux)")?;
    let mut daemon = Daemon(child);
    let id = daemon.0.id();
    let status = || -> Result<Status> {
        let shown = Command::new(&corefit).args(["status", "--json", "--state"]).arg(&state).output()?;
        serde_json::from_slice(&shown.stdout).context("what corefit status says")
    };
    // What starting costs is not what it costs to run.
    std::thread::sleep(after);
    let first = status();
    let (begun, before, asked) = (Instant::now(), cpu_of(id), of_libvirt());
    std::thread::sleep(time);
    let (seconds, after) = (begun.elapsed().as_secs_f64(), cpu_of(id));
    let ended = daemon.0.try_wait()?;
    let asked = of_libvirt().saturating_sub(asked);
    let last = status();
    let status = std::fs::read_to_string(format!("/proc/{id}/status")).unwrap_or_default();
    let end = daemon.end()?;
    let log = std::fs::read_to_string(dir.join("log")).unwrap_or_default();
    let (None, Some(before), Some(after), true) = (ended, before, after, end.success()) else {
        bail!("it ended ({end}): {}", said(&log, "").last().unwrap_or("without a word"));
    };
    if let Some(why) = said(&log, "cannot look").next() {
        bail!("{why}");
    }
    let peak = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix("kB")?.trim().parse::<f64>().ok());
    let (first, shown) = (first?, last?);
    let actions = |status: &Status| status.vms.iter().map(|vm| vm.actions).sum::<u64>();
    let told = Lever::Told.name(false);
    let is_told = |vm: &&VmStatus| vm.settings.iter().any(|setting| setting.lever == told);
    if shown.vms.is_empty() {
        bail!("{machine} has no VMs");
    }
    Ok(DaemonCost {
        machine: if is_test { "libvirt's test driver".into() } else { machine },
        vms: shown.vms.len(),
        guests: shown.vms.iter().filter(is_told).count(),
        actions: actions(&shown).saturating_sub(actions(&first)),
        vcpus: shown.vms.iter().map(|vm| vm.vcpus.unwrap_or_default()).sum(),
        seconds,
        steps: shown.steps.saturating_sub(first.steps),
        libvirtd_cores: (!is_test).then(|| (asked.as_secs_f64() - idle.as_secs_f64()) / seconds),
        cores: after.saturating_sub(before).as_secs_f64() / seconds,
        target_cores: CORE,
        most_mib: peak.context("no VmHWM in /proc/PID/status")? / 1024.0,
        target_mib: MEMORY_MIB,
    })
}

/// Lines of a log that have this in them, without the name that they begin with: whoever is told of it is told that already.
fn said<'a>(log: &'a str, what: &'a str) -> impl Iterator<Item = &'a str> {
    let lines = log.lines().filter(move |line| line.contains(what));
    lines.map(|line| line.strip_prefix("corefit: ").unwrap_or(line))
}

/// A host of libvirt's test driver.
fn node(vms: u32) -> String {
    let vm = |number| {
        format!(
            "<domain type='test'><name>vm{number}</name><memory>1024</memory><vcpu>{VCPUS}</vcpu>\
             <os><type>hvm</type></os></domain>"
        )
    };
    let vms: String = (0..vms).map(vm).collect();
    format!("<node>{vms}</node>")
}

fn text(document: &Document) -> String {
    let verdict = |met: bool| if met { "met" } else { "NOT MET" }.to_owned();
    let mut table = Table::new(1, &["what", "measured", "promised", "verdict"]);
    let step = &document.step;
    table.row(vec![
        format!(
            "step, {} VMs, {} vCPUs: slowest of {}, {} actions",
            step.vms, step.vcpus, step.steps, step.actions
        ),
        format!("{:.1} ms", step.most_ms),
        format!("{:.0} ms", step.target_ms),
        verdict(step.most_ms < step.target_ms),
    ]);
    if let Some(daemon) = &document.daemon {
        table.row(vec![
            format!(
                "daemon, {} VMs, {} vCPUs of {}, for {:.0} s",
                daemon.vms,
                daemon.vcpus,
                printable::text(&daemon.machine),
                daemon.seconds
            ),
            format!("{:.2} % of a core", daemon.cores * 100.0),
            format!("{:.0} %", daemon.target_cores * 100.0),
            verdict(daemon.cores < daemon.target_cores),
        ]);
        table.row(vec![
            format!("guests among them whose agents answer; {} actions in this time", daemon.actions),
            daemon.guests.to_string(),
            "-".into(),
            "-".into(),
        ]);
        if let Some(cores) = daemon.libvirtd_cores {
            let more = format!("{:.2} % of a core", cores * 100.0);
            table.row(vec!["libvirtd beside it, more than before".into(), more, "-".into(), "-".into()]);
        }
        table.row(vec![
            "its memory at the most".into(),
            format!("{:.1} MiB", daemon.most_mib),
            format!("{:.0} MiB", daemon.target_mib),
            verdict(daemon.most_mib < daemon.target_mib),
        ]);
        table.row(vec![
            "its steps in this time".into(),
            daemon.steps.to_string(),
            "one a second".into(),
            verdict(daemon.is_in_time()),
        ]);
    }
    if document.failed.is_some() {
        table.row(vec!["daemon".into(), "failed".into(), "-".into(), verdict(false)]);
    }
    let failed: String = document.failed.iter().map(|why| format!("failed: the daemon: {why}\n")).collect();
    let skipped: String = document.skipped.iter().map(|why| format!("skipped: {why}\n")).collect();
    format!("{}median step: {:.1} ms\n{failed}{skipped}", table.render(), step.median_ms)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_daemon_said_is_told_without_the_name_that_its_lines_begin_with() {
        let log = "corefit: started machine=x\ncorefit: error: cannot look at=1 why=gone\nlibvirt: gone\n";
        assert_eq!(said(log, "cannot look").collect::<Vec<_>>(), ["error: cannot look at=1 why=gone"]);
        assert_eq!(said(log, "").last(), Some("libvirt: gone"));
        assert_eq!(said(log, "panicked").next(), None);
    }

    fn document() -> Document {
        let step = StepCost {
            vms: 2,
            vcpus: 20,
            steps: 5,
            actions: 0,
            median_ms: 1.0,
            most_ms: 2.0,
            target_ms: STEP_MS,
        };
        Document { bench: "manage", step, daemon: None, failed: None, skipped: Vec::new() }
    }

    #[test]
    fn a_daemon_that_ends_is_no_promise_kept_and_none_that_nothing_is_installed_for_breaks_one() {
        let (mut failed, mut skipped) = (document(), document());
        skipped.skipped.push("the daemon: no libvirt".into());
        assert!(skipped.met() && text(&skipped).ends_with("skipped: the daemon: no libvirt\n"));
        if let Some(why) = missing(Some("libvirt:test:///default")) {
            return println!("skipped: {why}");
        }
        // What is started here is no corefit, and ends at once.
        failed.found(daemon_cost(None, Duration::from_secs(3), Duration::ZERO));
        let (why, text) = (failed.failed.clone().unwrap_or_default(), text(&failed));
        assert!(why.starts_with("it ended (exit status: ") && failed.skipped.is_empty(), "{why}");
        assert!(!failed.met() && text.contains("NOT MET"), "{text}");
        assert!(text.ends_with(&format!("failed: the daemon: {why}\n")), "{text}");
    }

    #[test]
    fn a_daemon_that_looks_less_than_once_a_second_is_no_promise_kept() {
        let with = |steps: u64, seconds: f64| {
            let daemon = DaemonCost {
                machine: "paper".into(),
                vms: 2,
                guests: 1,
                vcpus: 20,
                actions: 3,
                seconds,
                steps,
                cores: 0.001,
                libvirtd_cores: None,
                target_cores: CORE,
                most_mib: 1.0,
                target_mib: MEMORY_MIB,
            };
            let document = Document { daemon: Some(daemon), ..document() };
            assert_eq!(document.met(), !text(&document).contains("NOT MET"));
            assert!(text(&document).contains("agents answer; 3 actions in this time"));
            document.met()
        };
        assert!(with(30, 30.001) && with(28, 30.001) && with(4, 5.001) && with(120, 30.0));
        assert!(!with(27, 30.001) && !with(3, 5.001) && !with(0, 5.0));
    }
}

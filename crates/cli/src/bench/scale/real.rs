//! The program itself: on the host, and in test VMs that scripts/testvm starts.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};

use super::{Args, Cell, Seconds, find_root};
use crate::bench::progress::Progress;

/// Exit status of scripts/testvm where there can be no VMs, and of a program that `timeout` killed.
const SKIPPED: i32 = 77;
const KILLED: i32 = 137;

/// pCPUs of the host, and what was measured; or why there are no VMs.
pub(super) fn cells(args: &Args) -> Result<Result<(u32, Vec<Cell>), String>> {
    let root = args.root.clone().map_or_else(find_root, Ok)?;
    let testvm = root.join("scripts/testvm");
    if !testvm.is_file() {
        return Ok(Err(format!("there is no {}", testvm.display())));
    }
    let pcpus = pcpus()?;
    let points = args.vcpus.len() * (1 + args.vms.len());
    let mut progress = Progress::new(points, false);
    let mut cells = vec![];
    // The VMs first: whether there are any decides all.
    for &vms in &args.vms {
        for &vcpus in &args.vcpus {
            progress.begin(&format!("{vms} VMs, {vcpus} vCPUs"));
            let machines = match Machines::start(&testvm, vms, vcpus)? {
                Ok(machines) => machines,
                Err(why) => return Ok(Err(why)),
            };
            let runs = (0..args.repeat).map(|_| machines.run(args, vcpus));
            cells.push(Cell { vms, vcpus, seconds: runs.collect::<Result<_>>()? });
            progress.end("", "");
        }
    }
    for &vcpus in args.vcpus.iter().filter(|n| **n as usize <= pcpus.len()) {
        progress.begin(&format!("host, {vcpus} pCPUs"));
        let runs = (0..args.repeat).map(|_| on_host(args, &pcpus[..vcpus as usize]));
        cells.push(Cell { vms: 0, vcpus, seconds: runs.collect::<Result<_>>()? });
        progress.end("", "");
    }
    Ok(Ok((u32::try_from(pcpus.len())?, cells)))
}

/// Those that this process may use.
fn pcpus() -> Result<Vec<usize>> {
    let set = rustix::thread::sched_getaffinity(None).context("sched_getaffinity")?;
    Ok((0..rustix::thread::CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect())
}

/// On these pCPUs only, with as many threads.
fn on_host(args: &Args, pcpus: &[usize]) -> Result<Seconds> {
    let list: Vec<String> = pcpus.iter().map(usize::to_string).collect();
    let mut command = Command::new("timeout");
    command.args(["-s", "KILL", &args.limit.to_string(), "taskset", "-c", &list.join(",")]);
    command.args(&args.command).env("OMP_NUM_THREADS", pcpus.len().to_string());
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let start = Instant::now();
    let output = command.output().context("cannot start timeout and taskset")?;
    let s = start.elapsed().as_secs_f64();
    match output.status.code() {
        Some(0) => Ok(Seconds { s, cut_off: false }),
        Some(KILLED) | None => Ok(Seconds { s: f64::from(args.limit), cut_off: true }),
        Some(code) => {
            bail!("on the host, {} ended with status {code}: {}", args.command[0], last_line(&output))
        }
    }
}

fn last_line(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr);
    text.trim().lines().last().unwrap_or("it printed no error").to_owned()
}

/// Test VMs, which end with this value, and with this process.
struct Machines {
    testvm: PathBuf,
    names: Vec<String>,
}

impl Machines {
    /// Or why there can be none.
    fn start(testvm: &Path, count: u32, vcpus: u32) -> Result<Result<Machines, String>> {
        let mut command = Command::new(testvm);
        command.args(["up", &count.to_string(), "--vcpus", &vcpus.to_string(), "--name", "corefit-scale"]);
        command.args(["--owner", &std::process::id().to_string()]);
        let output = command.output().with_context(|| format!("cannot start {}", testvm.display()))?;
        let told = String::from_utf8_lossy(&output.stdout).into_owned();
        match output.status.code() {
            Some(0) => {}
            Some(SKIPPED) => return Ok(Err(told.trim().trim_start_matches("skipped: ").to_owned())),
            _ => bail!("{count} VMs of {vcpus} vCPUs did not start: {}", last_line(&output)),
        }
        let names = told.lines().filter_map(|line| line.split(' ').next()).map(str::to_owned).collect();
        Ok(Ok(Machines { testvm: testvm.to_owned(), names }))
    }

    /// The program in all of them at once, until the last one is ready, by the guests' clocks (10 ms).
    fn run(&self, args: &Args, threads: u32) -> Result<Seconds> {
        let program = Path::new(&args.command[0]).file_name().and_then(|n| n.to_str()).unwrap_or_default();
        let script = "read -r begin _ </proc/uptime\n\
             timeout -s KILL \"$1\" env OMP_NUM_THREADS=\"$2\" \"/workloads/$3\" $4 >/dev/null\n\
             status=$?\nread -r end _ </proc/uptime\necho \"$begin $end $status\"\n";
        let start = |name: &String| -> Result<Child> {
            let mut command = Command::new(&self.testvm);
            command.args(["exec", name, "--", "sh", "-c", script, "sh"]);
            command.args([
                &args.limit.to_string(),
                &threads.to_string(),
                program,
                &args.command[1..].join(" "),
            ]);
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
            command.spawn().context("cannot start scripts/testvm exec")
        };
        let children = self.names.iter().map(start).collect::<Result<Vec<_>>>()?;
        let mut slowest = Seconds { s: 0.0, cut_off: false };
        for child in children {
            let output = child.wait_with_output()?;
            let told = String::from_utf8_lossy(&output.stdout).into_owned();
            let fields: Vec<f64> = told.split_whitespace().filter_map(|field| field.parse().ok()).collect();
            let [begin, end, status] = fields[..] else {
                bail!("a VM did not answer: {}", last_line(&output));
            };
            #[expect(clippy::cast_possible_truncation, reason = "an exit status")]
            let status = status as i32;
            ensure!(
                status == 0 || status == KILLED,
                "{program} ended with status {status} in a VM (they have what make -C workloads builds): {}",
                last_line(&output)
            );
            slowest.cut_off |= status == KILLED;
            slowest.s = slowest.s.max(end - begin);
        }
        Ok(slowest)
    }
}

impl Drop for Machines {
    fn drop(&mut self) {
        let _ = Command::new(&self.testvm).arg("down").args(&self.names).output();
    }
}

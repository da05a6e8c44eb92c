//! The program itself: on the host, and in test VMs that scripts/testvm starts.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};

use super::{Args, Cell, Seconds, find_root};
use crate::bar::Progress;
use crate::bench::vms::{Vms, last_line};

/// Exit status of a program that `timeout` killed.
const KILLED: i32 = 137;
/// A guest's clock shows 10 ms: killed by so much before the limit, s, it was killed by `timeout`.
const COARSE_S: f64 = 0.1;

/// pCPUs of the host, and what was measured; or why there are no VMs.
pub(super) fn cells(args: &Args) -> Result<Result<(u32, Vec<Cell>), String>> {
    let root = args.root.clone().map_or_else(find_root, Ok)?;
    let pcpus = pcpus()?;
    let points = args.vcpus.len() * (1 + args.vms.len());
    let mut progress = Progress::new(points, false);
    let mut cells = vec![];
    // The VMs first: whether there are any decides all.
    for &vms in &args.vms {
        for &vcpus in &args.vcpus {
            progress.begin(&format!("{vms} VMs, {vcpus} vCPUs"));
            let machines =
                match Vms::start(&root, vms, &["--vcpus", &vcpus.to_string(), "--name", "corefit-scale"])? {
                    Ok(machines) => machines,
                    Err(why) => return Ok(Err(why)),
                };
            let runs = (0..args.repeat).map(|_| in_vms(&machines, args, vcpus));
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
        Some(KILLED) | None if at_limit(s, args) => Ok(Seconds { s: f64::from(args.limit), cut_off: true }),
        _ => bail!("on the host, {} ended with {}: {}", args.command[0], output.status, last_line(&output)),
    }
}

/// Whether a run that was killed after so many seconds was killed at the limit, and not by somebody else (as when memory is full).
fn at_limit(s: f64, args: &Args) -> bool {
    s >= f64::from(args.limit) - COARSE_S
}

/// The program in all of them at once, until the last one is ready, by the guests' clocks (10 ms).
fn in_vms(vms: &Vms, args: &Args, threads: u32) -> Result<Seconds> {
    let program = Path::new(&args.command[0]).file_name().and_then(|n| n.to_str()).unwrap_or_default();
    let script = "read -r begin _ </proc/uptime\n\
         timeout -s KILL \"$1\" env OMP_NUM_THREADS=\"$2\" \"/workloads/$3\" $4 >/dev/null\n\
         status=$?\nread -r end _ </proc/uptime\necho \"$begin $end $status\"\n";
    let start = |name: &String| -> Result<Child> {
        let mut command = vms.exec(name);
        command.args(["sh", "-c", script, "sh"]);
        command.args([&args.limit.to_string(), &threads.to_string(), program, &args.command[1..].join(" ")]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().context("cannot start scripts/testvm exec")
    };
    let children = vms.names.iter().map(start).collect::<Result<Vec<_>>>()?;
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
            status == 0 || status == KILLED && at_limit(end - begin, args),
            "{program} ended with status {status} in a VM (they have what make -C workloads builds): {}",
            last_line(&output)
        );
        slowest.cut_off |= status == KILLED;
        slowest.s = slowest.s.max(end - begin);
    }
    Ok(slowest)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn only_who_is_killed_at_the_limit_is_cut_off() {
        let run = |limit, script| {
            let cli = Cli::parse_from(["scale", "--limit", limit, "--", "sh", "-c", script]);
            on_host(&cli.args, &pcpus().unwrap()[..1])
        };
        let killed = run("60", "kill -9 $$").unwrap_err().to_string();
        assert!(killed.contains("SIGKILL"), "{killed}");
        assert_eq!(run("1", "sleep 60").unwrap(), Seconds { s: 1.0, cut_off: true });
    }
}

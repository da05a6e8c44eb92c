//! `corefit bench shape --vm`: P1's fork-join program (`workloads/fork_join.c`) in a real VM whose vCPUs have quotas: imbalanced,
//! balanced by itself (its sequential part is each thread's in turn) or by `corefit run --rotate` in the guest, and with quotas in
//! proportion, decided by the daemon's controllers; and a program of one thread, without and with `--rotate`.

use std::process::{Child, ExitCode, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, anyhow, bail};
use corefit_core::decide::Shaper;
use corefit_core::machine::{Act, Lever, Limit, Value, VmId};
use corefit_linux::libvirt::{Options, open};

use super::super::overcommit::find_root;
use super::super::print;
use super::super::vms::{Vms, last_line, stripped};
use super::{Args, Document, VCPUS, controller, rows, shape, text};
use crate::bar::Progress;
use crate::interrupt::Interrupt;

/// A quarter of a pCPU for each, one in all. Four times libvirt's usual period: emulated vCPUs take long to halt and to wake up.
const BEGIN: Limit = Limit { quota_us: Some(100_000), period_us: 400_000, burst_us: 0 };
/// Of a unit of work, ms.
const UNIT_MS: f64 = 4.0;
/// The controllers have so long, s; then nothing changes while turns are counted. Without them, it is the program that begins.
const SETTLE: f64 = 16.0;
const BEGINS: f64 = 3.0;
const COUNT: f64 = 8.0;

/// A program, how it runs in the guest, what shapes it on the host, and the name of that; the first of each program is what the
/// others are compared with. Waiting sleeps in all.
const CASES: [(&str, &str, Shaper, &str); 7] = [
    ("fork-join", "OMP_PROC_BIND=true @", Shaper::None, "imbalanced"),
    ("fork-join", "@", Shaper::None, "imbalanced, threads not bound"),
    ("fork-join", "OMP_PROC_BIND=true @ balanced", Shaper::None, "balanced by the program"),
    ("fork-join", "corefit run --quiet --rotate=96ms -- @", Shaper::None, "balanced by run --rotate"),
    ("fork-join", "OMP_PROC_BIND=true @", Shaper::Proportional, "proportional quotas"),
    ("sequential", "OMP_NUM_THREADS=1 @", Shaper::None, "on one vCPU"),
    ("sequential", "OMP_NUM_THREADS=1 corefit run --quiet --rotate=96ms -- @", Shaper::None, "run --rotate"),
];
/// In the guest, as the program itself, which `corefit run` cannot find in the search path.
const FORK_JOIN: &str = "/workloads/fork_join";

pub(super) fn run(args: &Args, rounds: u32) -> Result<ExitCode> {
    let interrupt = Interrupt::install()?;
    let root = find_root()?;
    if !root.join("build/workloads/gcc/fork_join").is_file() {
        bail!("build/workloads/gcc/fork_join is missing: run `make -C workloads`");
    }
    let dir = root.join("build/shape");
    std::fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
    let programs = ["corefit", "libcorefit_omp.so"].map(|name| stripped(name, &dir));
    let [corefit, library] = programs.map(|path| path.map(|path| path.display().to_string()));
    let (corefit, library) = (corefit?, library?);
    let vcpus = VCPUS.to_string();
    let options = ["--vcpus", &vcpus, "--name", "corefit-shape", "--memory", "512"];
    let programs = ["--program", &corefit, "--program", &library];
    let vms = match Vms::start(&root, 1, &[&options[..], &programs].concat())? {
        Ok(vms) => vms,
        Err(why) => {
            tell!("corefit: no VM to measure in: {why}");
            return Ok(ExitCode::FAILURE);
        }
    };
    let mut machine = open(&vms.uri()?, Options { guests: None, ..Options::default() });
    let seen = machine.observe()?;
    let vm = seen.vms.iter().find(|vm| Some(&vm.name) == vms.names.first()).map(|vm| vm.id.clone());
    let vm = vm.context("libvirt does not show the VM")?;
    // Once for all, so that they do the same work.
    let unit = UNIT_MS * number(start(&vms, &format!("{FORK_JOIN} steps"))?, "steps_per_ms: ")?;
    let mut progress = Progress::new(CASES.len() * rounds as usize, false);
    let mut rates = vec![vec![]; CASES.len()];
    let mut limits = vec![vec![]; CASES.len()];
    for _ in 0..rounds {
        for (index, (_, command, shaper, name)) in CASES.into_iter().enumerate() {
            progress.begin(name);
            limits_are(machine.as_mut(), &vm)?;
            let settle = if shaper == Shaper::None { BEGINS } else { SETTLE };
            let command = command.replace('@', &format!("{FORK_JOIN} {unit} {settle} {COUNT}"));
            let (rate, set) = case(&vms, machine.as_mut(), &vm, &command, shaper, &interrupt)?;
            progress.end(name, &format!("{rate:.2} turns a second"));
            rates[index].push(rate);
            limits[index] = set.iter().map(|limit| Value::Limit(*limit).to_string()).collect();
        }
    }
    let rows = rows(&CASES.map(|case| (case.0, case.3)), &rates, &limits);
    let document = Document { bench: "shape", machine: "VM", vcpus: VCPUS, rounds, rows };
    print(args.json, &document, text)?;
    Ok(ExitCode::SUCCESS)
}

/// Turns per second once the controllers have had their time, and the limits then.
fn case(
    vms: &Vms,
    machine: &mut dyn Act,
    vm: &VmId,
    command: &str,
    shaper: Shaper,
    interrupt: &Interrupt,
) -> Result<(f64, Vec<Limit>)> {
    let mut child = start(vms, command)?;
    let begun = Instant::now();
    if shaper != Shaper::None {
        let over = &mut || Ok(begun.elapsed().as_secs_f64() > SETTLE || child.try_wait()?.is_some());
        shape(machine, controller(shaper), interrupt, over)?;
    }
    let vcpus = 0..u32::try_from(VCPUS)?;
    let limits = vcpus.map(|vcpu| limit(machine, vm, vcpu)).collect::<Result<_>>()?;
    Ok((number(child, "turns_per_s: ")?, limits))
}

/// This command line in the guest.
fn start(vms: &Vms, command: &str) -> Result<Child> {
    let mut guest = vms.exec(vms.names.first().context("no VM")?);
    guest.args(["sh", "-c", &format!("export OMP_WAIT_POLICY=passive; {command}")]);
    guest.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    guest.spawn().context("cannot start scripts/testvm exec")
}

/// What it tells under this name when it ends.
fn number(child: Child, name: &str) -> Result<f64> {
    let output = child.wait_with_output()?;
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    match told.lines().find_map(|line| line.strip_prefix(name)?.parse().ok()) {
        Some(number) if output.status.success() => Ok(number),
        _ => bail!("in the VM: {}", last_line(&output)),
    }
}

/// Every vCPU has what it begins with.
fn limits_are(machine: &mut dyn Act, vm: &VmId) -> Result<()> {
    for vcpu in 0..u32::try_from(VCPUS)? {
        machine.set(vm, Lever::VcpuQuota(vcpu), &Value::Limit(BEGIN)).map_err(|e| anyhow!("{e}"))?;
    }
    Ok(())
}

fn limit(machine: &mut dyn Act, vm: &VmId, vcpu: u32) -> Result<Limit> {
    match machine.current(vm, Lever::VcpuQuota(vcpu)) {
        Ok(Value::Limit(limit)) => Ok(limit),
        Ok(other) => bail!("{other} is no limit"),
        Err(error) => bail!("{error}"),
    }
}

//! `corefit profile --isolate`: which scheduler costs what, by disabling one at a time (P4, III-C).
//!
//! ```text
//!   rounds, in turns: as it is │ each thread kept on a CPU, so that this system's scheduler has nothing to decide;
//!                              │ with --vm: each vCPU of a VM kept on a pCPU, so that its host's has nothing to decide
//! ```
//!
//! Threads are pinned once they have run for 10 ms (they are looked at every [`LOOK`], new processes are found within 50 ms), to the
//! CPU that has the fewest of them, of cores without one first, and are freed at the end. Who chose its CPUs itself keeps them, but
//! for one that chose just the CPU of a thread that is pinned. Runs as it is are looked at as much. vCPUs are pinned by the
//! daemon's journal, and put back.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use corefit_core::decide::{Action, Why};
use corefit_core::machine::{Lever, LeverKind, Snapshot, Value};
use corefit_core::profile::ThreadLook;
use corefit_core::topology::Topology;
use corefit_core::{CpuId, CpuSet};
use corefit_linux::Root;
use corefit_linux::launch::Launch;
use corefit_linux::moving::{Home, release};
use corefit_linux::sample::{affinity, set_affinity};
use corefit_linux::threads::ThreadSampler;
use serde::Serialize;

use crate::bar::Progress;
use crate::bench::arena::Scratch;
use crate::bench::arena::processes::kill_tree;
use crate::bench::job::{self, Quiet, Script};
use crate::bench::others::{self, Others};
use crate::interrupt::Interrupt;
use crate::manage::Held;
use crate::stats::{median, ratio_interval};
use crate::stdin::Input;
use crate::table::Table;

/// Between two looks for new threads.
const LOOK: Duration = Duration::from_millis(3);
/// Who has run for so long works, and is pinned: those that only wait would take places.
const WORKS_NS: u64 = 10_000_000;
/// An interval with 1 in it whose ends are more than this ratio apart, as a quarter and four times are, tells nothing.
const TELLS: f64 = 16.0;
/// Longest that a run may take.
const LIMIT: Duration = Duration::from_secs(24 * 3600);

/// A VM whose vCPUs are pinned.
pub(super) struct Vm<'a> {
    pub(super) machine: &'a str,
    pub(super) name: &'a str,
    pub(super) state: &'a Path,
}

/// What `--json` prints.
#[derive(Debug, Serialize)]
pub(super) struct Document {
    command: Vec<String>,
    /// What was disabled.
    scheduler: String,
    rounds: usize,
    as_it_is_s: Vec<f64>,
    pinned_s: Vec<f64>,
    /// The part of the time that it takes as it is which the scheduler costs: below 0 if it is better than pins; with the ends of
    /// a 95 % interval, null of one round, and where runs differ so much that it tells nothing.
    cost: f64,
    cost_95: Option<[f64; 2]>,
    /// Threads that were pinned in a run, at the most; null for vCPUs.
    threads: Option<usize>,
    /// CPUs that others used meanwhile, on average; null if it is not known, as with --vm.
    others_cpus: Option<f64>,
}

/// Runs the program again and again.
pub(super) fn run(launch: &Launch, rounds: usize, vm: Option<&Vm<'_>>) -> Result<Document> {
    let input = Input::of_this_process()?;
    let interrupt = Interrupt::install()?;
    let scratch = Scratch::make(std::process::id())?;
    let mut held = vm.map(|vm| Held::open(vm.machine, vm.state)).transpose()?;
    let (order, scheduler) = match (&mut held, vm) {
        (Some(held), Some(vm)) => {
            pins(&held.observe()?, vm.name)?;
            (vec![], format!("the scheduler of VM {}'s host", vm.name))
        }
        _ => (cpus(&affinity(std::process::id()).unwrap_or_default()), "this system's scheduler".to_owned()),
    };
    ensure!(
        vm.is_some() || order.len() > 1,
        "--isolate: there is one CPU: its scheduler has nothing to decide"
    );
    let mut progress = Progress::new(2 * rounds, false);
    let mut took = [vec![], vec![]];
    let mut threads = 0;
    let mut apart = Others::default();
    for round in 0..rounds {
        for pinned in [round % 2 == 1, round % 2 == 0] {
            let what = if pinned { "pinned" } else { "as it is" };
            progress.begin(what);
            let mut pinner = Pinner::new(order.clone(), pinned);
            let script: &mut dyn Script = if vm.is_some() { &mut Quiet } else { &mut pinner };
            if let (Some(held), Some(vm), true) = (&mut held, vm, pinned) {
                let actions = pins(&held.observe()?, vm.name)?;
                held.change(&actions)?;
            }
            let mut command = command(launch);
            command.stdin(stdin(&input, &scratch.0)?);
            let before = others::spent_s();
            let done = job::run(command, LIMIT, &scratch.0, script, &interrupt, &kill_tree)?;
            apart.add(before, others::spent_s(), done.used.user + done.used.system, done.wall);
            if let Some(held) = &mut held {
                held.put_back()?;
            }
            let status = done.status.context("it takes longer than a day")?;
            if !status.success() {
                bail!("{}", failed(&launch.program.path, status, &done.stderr));
            }
            threads = threads.max(pinner.most);
            progress.end(what, &format!("{:.3} s", done.wall.as_secs_f64()));
            took[usize::from(pinned)].push(done.wall.as_secs_f64());
        }
    }
    if vm.is_none() && threads == 0 {
        bail!("no thread ran for 10 ms that could be pinned: there is nothing to compare");
    }
    let [as_it_is_s, pinned_s] = took;
    let middle = |all: &[f64]| median(all.iter().copied()).unwrap_or(f64::NAN);
    let ratio = ratio_interval(&pinned_s, &as_it_is_s);
    // The middle of that interval: of geometric means.
    let over = ratio.map_or(middle(&pinned_s) / middle(&as_it_is_s), |[low, high]| (low * high).sqrt());
    let mut text = vec![launch.program.given.to_string_lossy().into_owned()];
    text.extend(launch.args.iter().map(|arg| arg.to_string_lossy().into_owned()));
    Ok(Document {
        command: text,
        scheduler,
        rounds,
        cost: 1.0 - over,
        cost_95: ratio.and_then(cost_of),
        as_it_is_s,
        pinned_s,
        threads: vm.is_none().then_some(threads),
        others_cpus: vm.is_none().then(|| apart.cpus()).flatten(),
    })
}

/// That a program that did not end well cannot be measured.
fn failed(program: &Path, status: ExitStatus, stderr: &str) -> String {
    let how = match (status.code(), status.signal()) {
        (Some(code), _) => format!("ended with status {code}"),
        (_, Some(signal)) => format!("was ended by signal {signal}"),
        _ => status.to_string(),
    };
    let last = stderr.trim().lines().last();
    let last =
        last.map_or("it wrote nothing to stderr".into(), |line| format!("its last line on stderr: {line}"));
    format!("{} {how}, so nothing was measured ({last})", program.display())
}

/// The interval of the cost for one of the ratio of pinned to not, if it tells anything.
fn cost_of([low, high]: [f64; 2]) -> Option<[f64; 2]> {
    let nothing = low < 1.0 && high > 1.0 && high > TELLS * low;
    (!nothing).then_some([1.0 - high, 1.0 - low])
}

/// Standard input from its beginning. What it was is in a file: nobody is to feed a program that is measured.
fn stdin(input: &Input, scratch: &Path) -> Result<Stdio> {
    let Input::Text(text) = input else { return input.stdio() };
    let path = scratch.join("stdin");
    fs::write(&path, text).with_context(|| path.display().to_string())?;
    Ok(File::open(&path).with_context(|| path.display().to_string())?.into())
}

/// The program with what it is told, its output kept from the terminal.
fn command(launch: &Launch) -> Command {
    let mut command = Command::new(&launch.program.path);
    command.args(&launch.args);
    for (name, value) in &launch.env {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command.arg0(&launch.program.given);
    command
}

/// One of each core first, then the next of each.
fn cpus(allowed: &CpuSet) -> Vec<CpuId> {
    one_of_each(&corefit_linux::topology::cores(&Root::live()), allowed)
}

fn one_of_each(units: &[CpuSet], allowed: &CpuSet) -> Vec<CpuId> {
    let units: Vec<Vec<CpuId>> =
        units.iter().map(|unit| unit.intersection(allowed).iter().collect()).collect();
    let most = units.iter().map(Vec::len).max().unwrap_or(0);
    let known: CpuSet = units.iter().flatten().copied().collect();
    let by_rank = (0..most).flat_map(|rank| units.iter().filter_map(move |unit| unit.get(rank).copied()));
    by_rank.chain(allowed.difference(&known).iter()).collect()
}

/// Each online vCPU of a VM on a pCPU that it may use, of cores without one first.
fn pins(seen: &Snapshot, name: &str) -> Result<Vec<Action>> {
    let vm = seen.vms.iter().find(|vm| vm.name == name && vm.whole.is_none());
    let vm = vm.with_context(|| {
        let names: Vec<&str> =
            seen.vms.iter().filter(|vm| vm.whole.is_none()).map(|vm| vm.name.as_str()).collect();
        match names.join(" ") {
            none if none.is_empty() => {
                format!("--vm {name}: there is no VM with vCPUs to keep on pCPUs (control groups have none)")
            }
            names => format!("--vm {name}: there is no such VM; there are: {names}"),
        }
    })?;
    if let Some(why) = vm.fixed(LeverKind::Affinity) {
        bail!("--vm {name}: it is left alone: {why}");
    }
    let topology = Topology::of_snapshot(seen);
    let online = topology.online();
    let mut many: BTreeMap<CpuId, usize> = BTreeMap::new();
    let mut actions = vec![];
    for (number, vcpu) in (0..).zip(&vm.vcpus).filter(|(_, vcpu)| vcpu.online) {
        let may = vcpu.affinity.as_ref().map_or_else(|| online.clone(), |set| set.intersection(&online));
        let order = one_of_each(&topology.units(), &may);
        let cpu = order.iter().min_by_key(|cpu| many.get(cpu).copied().unwrap_or(0)).copied();
        let cpu =
            cpu.with_context(|| format!("VM {name}, vCPU {number}: no pCPU that it may use is online"))?;
        *many.entry(cpu).or_default() += 1;
        let (now, to) = (vcpu.affinity.clone().map(Value::Pcpus), Value::Pcpus(CpuSet::from_iter([cpu])));
        actions.push(Action::of(vm, Lever::Affinity(number), now, to, Why::Isolated));
    }
    Ok(actions)
}

/// Keeps each thread on a CPU.
struct Pinner {
    order: Vec<CpuId>,
    all: CpuSet,
    home: Home,
    sampler: Option<ThreadSampler>,
    /// Or only looks.
    pins: bool,
    at: BTreeMap<u32, CpuId>,
    next: Duration,
    /// Threads at once.
    most: usize,
}

impl Pinner {
    fn new(order: Vec<CpuId>, pins: bool) -> Pinner {
        let all: CpuSet = order.iter().copied().collect();
        let home = Home::of(all.clone());
        Pinner { order, all, home, sampler: None, pins, at: BTreeMap::new(), next: Duration::ZERO, most: 0 }
    }
}

impl Script for Pinner {
    fn next(&self) -> Option<Duration> {
        Some(self.next)
    }

    fn act(&mut self, start: Instant, pid: u32) -> Result<()> {
        let now = self.sampler.get_or_insert_with(|| ThreadSampler::new(pid)).look(false).threads;
        let works = |thread: &&ThreadLook| thread.run_ns >= WORKS_NS;
        let now: BTreeSet<u32> = now.iter().filter(works).map(|thread| thread.tid).collect();
        self.next = start.elapsed() + LOOK;
        if !self.pins {
            return Ok(());
        }
        self.at.retain(|tid, _| now.contains(tid));
        for tid in now {
            let has = affinity(tid);
            // New, or begun by one that was pinned, whose CPU it has.
            let inherited = self.at.values().any(|at| has.as_ref() == Some(&CpuSet::from_iter([*at])));
            if self.at.contains_key(&tid) || has.as_ref() != Some(&self.all) && !inherited {
                continue;
            }
            let many = |cpu: &&CpuId| self.at.values().filter(|at| at == cpu).count();
            let Some(cpu) = self.order.iter().min_by_key(many).copied() else { break };
            set_affinity(tid, &CpuSet::from_iter([cpu]));
            self.at.insert(tid, cpu);
        }
        self.most = self.most.max(self.at.len());
        Ok(())
    }
}

impl Drop for Pinner {
    fn drop(&mut self) {
        // The program may have left some behind.
        for cpu in self.order.iter().filter(|_| !self.at.is_empty()) {
            let there = self.at.iter().filter(|(_, at)| *at == cpu).map(|(tid, _)| *tid);
            release(there.collect(), *cpu, &self.home);
        }
    }
}

impl Document {
    pub(super) fn text(&self) -> String {
        let mut table = Table::new(1, &["seconds", "median", "from", "to"]);
        for (name, runs) in [("as it is", &self.as_it_is_s), ("pinned", &self.pinned_s)] {
            let ends =
                runs.iter().fold((f64::INFINITY, 0.0_f64), |(low, high), s| (low.min(*s), high.max(*s)));
            let middle = median(runs.iter().copied()).unwrap_or(f64::NAN);
            table.row(vec![name.into(), three(middle), three(ends.0), three(ends.1)]);
        }
        let what = self.threads.map_or("each vCPU on a pCPU".into(), |threads| {
            format!("each thread on a CPU ({threads} at once at the most)")
        });
        let percent = |part: f64| format!("{:.0}", 100.0 * part);
        let between = |low, high| format!("95 %: {} to {} %", percent(low), percent(high));
        let (who, cost) = (&self.scheduler, self.cost);
        let verdict = match self.cost_95 {
            Some([low, high]) if low > 0.0 => {
                format!("{who} costs {} % of the time ({})", percent(cost), between(low, high))
            }
            Some([low, high]) if high < 0.0 => {
                let slower = format!("without {who} it takes {} % longer", percent(-cost));
                format!("{slower} ({})", between(-high, -low))
            }
            Some([low, high]) => {
                format!("what {who} costs cannot be told from chance ({})", between(low, high))
            }
            None if self.rounds == 1 => {
                format!("{who} costs {} %, by one round, which tells nothing of chance", percent(cost))
            }
            None => format!(
                "what {who} costs cannot be told: runs differ too much for {} rounds; more (--rounds) tell more",
                self.rounds
            ),
        };
        let busy = others::spoil(self.others_cpus).map_or_else(String::new, |cpus| {
            format!(
                "\nnote: others used {cpus:.1} CPUs meanwhile, and who competes with them depends on pins; do it again on an idle \
                 machine"
            )
        });
        let rounds = if self.rounds == 1 { "1 round".into() } else { format!("{} rounds", self.rounds) };
        format!("corefit: {rounds}; pinned: {what}\n{}\n{verdict}{busy}", table.render().trim_end())
    }
}

fn three(seconds: f64) -> String {
    format!("{seconds:.3}")
}

#[cfg(test)]
mod tests {
    use corefit_core::machine::{Pcpu, VcpuState, VmId, VmState};

    use super::*;

    #[test]
    fn cores_come_before_siblings() {
        let units: Vec<CpuSet> = ["0,4", "1,5", "2"].map(|unit| unit.parse().unwrap()).into();
        let order = one_of_each(&units, &"0-2,4,7".parse().unwrap());
        assert_eq!(order.iter().map(|cpu| cpu.0).collect::<Vec<_>>(), [0, 1, 2, 4, 7]);
    }

    #[test]
    fn vcpus_are_pinned_within_their_affinity_and_apart_while_they_can_be() {
        let vcpu =
            |set: &str, online| VcpuState { affinity: set.parse().ok(), online, ..VcpuState::default() };
        let vcpus = vec![vcpu("0-1", true), vcpu("0-1", true), vcpu("0-1", false), vcpu("1", true)];
        let vm = VmState { id: VmId("1".into()), name: "a".into(), vcpus, ..VmState::default() };
        let pcpu = |id| Pcpu { id: CpuId(id), online: true, ..Pcpu::default() };
        let seen = Snapshot { pcpus: (0..4).map(pcpu).collect(), vms: vec![vm], ..Snapshot::default() };
        let text = |action: &Action| format!("{}: {}", action.lever, action.to);
        assert_eq!(
            pins(&seen, "a").unwrap().iter().map(text).collect::<Vec<_>>(),
            ["affinity of vCPU 0: 0", "affinity of vCPU 1: 1", "affinity of vCPU 3: 1"]
        );
        let why = pins(&seen, "b").unwrap_err().to_string();
        assert_eq!(why, "--vm b: there is no such VM; there are: a");
        let mut owned = seen;
        owned.vms[0].hands_off = true;
        let why = pins(&owned, "a").unwrap_err().to_string();
        assert_eq!(why, "--vm a: it is left alone: its owner set hands-off in its metadata");
        let why = pins(&Snapshot::default(), "b").unwrap_err().to_string();
        assert_eq!(why, "--vm b: there is no VM with vCPUs to keep on pCPUs (control groups have none)");
    }

    #[test]
    fn a_program_that_fails_is_said_to_have_been_measured_by_nobody() {
        let told = |status, stderr| failed(Path::new("/bin/false"), ExitStatus::from_raw(status), stderr);
        assert_eq!(
            told(1 << 8, ""),
            "/bin/false ended with status 1, so nothing was measured (it wrote nothing to stderr)"
        );
        assert_eq!(
            told(9, "a\nno file\n"),
            "/bin/false was ended by signal 9, so nothing was measured (its last line on stderr: no file)"
        );
    }

    #[test]
    fn what_cannot_be_told_from_chance_is_said_so() {
        let beside = |others_cpus, as_it_is: &[f64], pinned: &[f64]| {
            let cost_95 = ratio_interval(pinned, as_it_is).and_then(cost_of);
            let document = Document {
                command: vec![],
                scheduler: "this system's scheduler".into(),
                rounds: as_it_is.len(),
                as_it_is_s: as_it_is.into(),
                pinned_s: pinned.into(),
                cost: 1.0 - pinned[0] / as_it_is[0],
                cost_95,
                threads: Some(4),
                others_cpus,
            };
            document.text().lines().last().unwrap().to_owned()
        };
        let of = |as_it_is: &[f64], pinned: &[f64]| beside(Some(0.1), as_it_is, pinned);
        assert!(
            of(&[2.0, 2.01, 2.02], &[1.0, 1.01, 1.0]).contains("scheduler costs 50 % of the time (95 %: 4")
        );
        assert!(of(&[1.0, 1.01, 1.02], &[2.0, 2.01, 2.0]).contains("it takes 100 % longer (95 %: "));
        assert!(of(&[1.0, 2.0, 1.5], &[1.4, 1.1, 2.0]).contains("cannot be told from chance"));
        assert!(of(&[2.0], &[1.0]).contains("one round"));
        // By Student's t of one degree of freedom to a 10^7th and to 10^7 times as long.
        let apart = of(&[1.0, 4.0], &[3.0, 0.8]);
        assert!(apart.contains("runs differ too much for 2 rounds") && !apart.contains("95 %"), "{apart}");
        let busy = beside(Some(1.5), &[1.0, 1.01], &[1.0, 1.01]);
        assert!(busy.starts_with("note: others used 1.5 CPUs meanwhile"), "{busy}");
        assert!(!beside(None, &[1.0, 1.01], &[1.0, 1.01]).contains("note"));
    }
}

//! The exact model against the kernel: busy loops in control groups with weights, quotas, caps,
//! affinities and nesting, predicted and measured. Each vCPU is a group with one loop.
//!
//! The short form looks at `cases` for a second each, and again where one is off: what
//! else runs on the machine disturbs some windows, a wrong prediction is wrong in all of them. The long
//! form, `make differential`, looks at them and at random hosts for longer, once, and says how far the
//! kernel is from the model. Where control groups may not be made, tests print `skipped: reason`. A test
//! that is killed takes its loops with it (death signal), and a cleaner that waits for its end
//! removes the groups.

mod cgroup_support;
#[path = "../../core/tests/entitle/parts.rs"]
mod parts;

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use cgroup_support::{Ended, Group, alone, heavy, members, or_skip, shell, until};
use corefit_core::entitle::{Host, Slice, Vcpu, Vm, entitled};
use corefit_core::{CpuSet, Cpus, Weight};
use corefit_linux::Ticks;
use parts::{limited, on, vm};
use rustix::process::Pid;

/// The most that a vCPU may differ in the short form, in CPUs: of one second, the kernel's
/// balancing of unpinned loops and its quota periods of 0.1 s.
const NEAR: f64 = 0.1;
/// Looks at a case in the short form, until one is near.
const LOOKS: usize = 6;
/// For balancing to settle before it is measured.
const SETTLE: Duration = Duration::from_millis(500);

/// One case: a host on pCPUs 0 and 1, and what it shows.
struct Case(String, Host);

#[test]
fn the_kernel_divides_as_the_model_says() {
    let _alone = alone();
    or_skip!(possible());
    let mut far = Vec::new();
    for case in cases() {
        let (looks, near) = or_skip!(case.compare(Duration::from_secs(1), LOOKS));
        if !near {
            let off: Vec<f64> = looks.iter().map(|look| worst(look)).collect();
            far.push(format!("{}: {off:.3?} CPUs off", case.0));
        }
    }
    assert!(far.is_empty(), "not within {NEAR} CPUs in any look: {far:?}");
}

#[test]
#[ignore = "takes most of a minute on a quiet machine: make differential"]
fn differential() {
    let _alone = alone();
    or_skip!(possible());
    let seconds = std::env::var("COREFIT_WINDOW_S").ok().and_then(|s| s.parse().ok()).unwrap_or(2.0);
    let hosts = std::env::var("COREFIT_HOSTS").ok().and_then(|s| s.parse().ok()).unwrap_or(12);
    let only = std::env::var("COREFIT_CASES").unwrap_or_default();
    let all = cases().into_iter().chain(throttled()).chain((1..=hosts).map(random));
    let mut off: Vec<f64> = Vec::new();
    for case in all.filter(|case| case.0.contains(&only)) {
        if !only.is_empty() {
            println!("{case}");
        }
        off.extend(or_skip!(case.compare(Duration::from_secs_f64(seconds), 1)).0.concat());
    }
    assert!(!off.is_empty(), "no case is called {only:?}");
    off.sort_by(f64::total_cmp);
    let at = |part: usize| off[(off.len() * part / 100).min(off.len() - 1)];
    let mean = off.iter().sum::<f64>() / f64::from(u32::try_from(off.len()).unwrap());
    println!("{} vCPUs, CPUs off the model: mean {mean:.3}", off.len());
    println!("median {:.3}, 90 of 100 within {:.3}, most {:.3}", at(50), at(90), at(100));
    assert!(mean < NEAR, "on average {mean} CPUs off");
}

/// Nothing is left of a test that was killed.
#[test]
fn a_killed_test_leaves_no_loops_and_no_groups() {
    let killed = std::env::var_os("COREFIT_KILL_ME").is_some();
    // The one that is killed runs while this one has hold of that.
    let _alone = (!killed).then(alone);
    or_skip!(possible());
    if killed {
        let Case(_, host) = cases().remove(0);
        let running = Running::start(&host).unwrap();
        println!("began {}", running.base.dir.display());
        std::thread::sleep(Duration::from_secs(60));
        return;
    }
    drop(or_skip!(heavy()));
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_killed_test_leaves_no_loops_and_no_groups", "--nocapture"])
        .env("COREFIT_KILL_ME", "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let out = std::io::BufReader::new(child.stdout.take().unwrap());
    let began = std::io::BufRead::lines(out).map_while(Result::ok);
    let dir = began.filter_map(|line| line.split_once("began ").map(|(_, dir)| dir.to_owned())).next();
    let dir = dir.expect("the child begins");
    assert!(Path::new(&dir).exists());
    child.kill().unwrap();
    child.wait().unwrap();
    until("the groups of the killed test are gone", || !Path::new(&dir).exists());
}

/// What the model has, a case each.
fn cases() -> Vec<Case> {
    let two = || vec![Vcpu::default(), Vcpu::default()];
    let vms = |vms: Vec<Vm>| Host { pcpus: CpuSet::first(2), vms, ..Host::default() };
    let case = |what: &str, host| Case(what.into(), host);
    let capped = |cap, vm| Vm { cap: Some(Cpus(cap)), ..vm };
    let slices = vec![
        slice("s1", vec![capped(0.25, vm("a", two())), vm("b", two())]),
        slice("s2", vec![vm("c", two())]),
    ];
    vec![
        case("a0 meets b, a1 alone", vms(vec![vm("a", vec![on("0"), on("1")]), vm("b", vec![on("0")])])),
        case(
            "the same, a1 limited to 10 %",
            vms(vec![vm("a", vec![on("0"), limited(0.1, on("1"))]), vm("b", vec![on("0")])]),
        ),
        case(
            "a0 meets three VMs, a1 one",
            vms(vec![
                vm("a", vec![on("0"), on("1")]),
                vm("b", vec![on("0")]),
                vm("c", vec![on("0")]),
                vm("d", vec![on("0")]),
                vm("e", vec![on("1")]),
            ]),
        ),
        case("slices, a limited", Host { slices, ..vms(vec![]) }),
        case(
            "weights 1:2:1",
            vms(vec![vm("a", two()), Vm { weight: Weight(2048.0), ..vm("b", two()) }, vm("c", two())]),
        ),
        case("overlapping affinities", vms(vec![vm("a", vec![on("0"), on("0-1")]), vm("b", vec![on("1")])])),
    ]
}

/// Where quotas and caps throttle some of what competes: the kernel is known to deviate (docs/model.md).
fn throttled() -> Vec<Case> {
    let two = || vec![Vcpu::default(), Vcpu::default()];
    let vms = |vms: Vec<Vm>| Host { pcpus: CpuSet::first(2), vms, ..Host::default() };
    let case = |what: &str, host| Case(format!("throttled: {what}"), host);
    let capped = |cap, vm| Vm { cap: Some(Cpus(cap)), ..vm };
    let pinned = || vec![on("0"), on("1")];
    vec![
        case("a capped, a1 meets b", vms(vec![capped(0.5, vm("a", pinned())), vm("b", vec![on("1")])])),
        case("a capped, both alone", vms(vec![capped(0.5, vm("a", pinned()))])),
        case(
            "a capped, both meet one",
            vms(vec![capped(0.5, vm("a", pinned())), vm("b", vec![on("0")]), vm("c", vec![on("1")])]),
        ),
        case(
            "a capped, unpinned, two pinned",
            vms(vec![capped(0.5, vm("a", two())), vm("b", vec![on("0")]), vm("c", vec![on("1")])]),
        ),
        case(
            "a limited on 0, b everywhere",
            vms(vec![vm("a", vec![limited(0.3, on("0"))]), vm("b", two()), vm("c", vec![on("0")])]),
        ),
    ]
}

/// A small random host on two pCPUs.
fn random(seed: u64) -> Case {
    let mut random = corefit_core::Random(seed);
    let mut below = |n: u64| random.below(n);
    let mut host = Host { pcpus: CpuSet::first(2), ..Host::default() };
    let mut slices = vec![slice("s0", vec![]), slice("s1", vec![])];
    for i in 0..2 + below(3) {
        let vcpus = (0..1 + below(2)).map(|_| {
            let vcpu = on(["0", "1", "0-1"][usize::try_from(below(3)).unwrap()]);
            if below(4) == 0 { limited(0.3, vcpu) } else { vcpu }
        });
        let vcpus = vcpus.collect();
        let weight = Weight([512.0, 1024.0, 2048.0][usize::try_from(below(3)).unwrap()]);
        let cap = (below(4) == 0).then_some(Cpus(0.5));
        let vm = Vm { weight, cap, ..vm(&format!("vm{i}"), vcpus) };
        match below(3) {
            0 => slices[0].vms.push(vm),
            1 => slices[1].vms.push(vm),
            _ => host.vms.push(vm),
        }
    }
    slices.retain(|slice| !slice.vms.is_empty());
    host.slices = slices;
    Case(format!("random host {seed}"), host)
}

fn worst(off: &[f64]) -> f64 {
    off.iter().copied().fold(0.0, f64::max)
}

fn slice(name: &str, vms: Vec<Vm>) -> Slice {
    Slice { name: name.into(), weight: Weight(1024.0), cap: None, slices: vec![], vms }
}

fn possible() -> Result<(), String> {
    let online = std::fs::read_to_string("/sys/devices/system/cpu/online").map_err(|e| e.to_string())?;
    let online: CpuSet = online.parse().map_err(|_| "which CPUs are online is unreadable")?;
    if CpuSet::first(2).intersection(&online).len() < 2 {
        return Err("CPUs 0 and 1 are not both online".into());
    }
    let found = Command::new("setpriv").arg("--version").stdout(Stdio::null()).status();
    found.map(drop).map_err(|e| format!("setpriv (util-linux): {e}"))
}

impl std::fmt::Display for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:", self.0)?;
        for vm in self.1.all_vms() {
            let slice =
                self.1.slices.iter().find(|slice| slice.vms.iter().any(|other| other.name == vm.name));
            write!(f, " {}{}", slice.map_or("", |slice| &slice.name), vm.name)?;
            write!(f, " (weight {}, cap {:?}:", vm.weight.0, vm.cap.map(|cap| cap.0))?;
            for vcpu in &vm.vcpus {
                let set = vcpu.affinity.as_ref().map_or("all".into(), ToString::to_string);
                write!(f, " {set}{}", if vcpu.quota.is_some() { " limited" } else { "" })?;
            }
            write!(f, ")")?;
        }
        Ok(())
    }
}

impl Case {
    /// How far each vCPU is off, in CPUs, in one window after the other until all are near, at most so
    /// many, and whether they are in the last; prints predicted and measured.
    fn compare(&self, window: Duration, most: usize) -> Result<(Vec<Vec<f64>>, bool), String> {
        let Case(what, host) = self;
        let division = entitled(host).map_err(|e| e.to_string())?;
        let predicted = (0..division.vms()).flat_map(|vm| division.vcpus(vm)).map(|share| share.cpus.0);
        let predicted: Vec<f64> = predicted.collect();
        let running = Running::start(host)?;
        std::thread::sleep(SETTLE);
        let (mut looks, mut near) = (Vec::new(), false);
        while looks.len() < most && !near {
            let (before, mut off) = (stolen(), Vec::new());
            for ((name, measured), predicted) in running.measure(window).iter().zip(&predicted) {
                println!("{what:30} {name:8} predicted {predicted:.3} measured {measured:.3}");
                off.push((measured - predicted).abs());
            }
            // What nobody got, and the model knows nothing of.
            let stolen = stolen().iter().zip(before).map(|(now, before)| now - before).fold(0.0, f64::max);
            near = worst(&off) < NEAR + stolen / window.as_secs_f64();
            looks.push(off);
        }
        Ok((looks, near))
    }
}

/// The loops and groups of a host. Dropped, they end and are removed.
struct Running {
    loops: Vec<(String, Ended)>,
    _groups: Vec<Group>,
    base: Group,
    _cleaner: Cleaner,
}

impl Running {
    fn start(host: &Host) -> Result<Running, String> {
        let base = heavy()?;
        let cleaner = Cleaner::of(&base.dir)?;
        let mut groups = Vec::new();
        let mut loops = Vec::new();
        members_of(&base, &host.slices, &host.vms, &mut groups, &mut loops)?;
        Ok(Running { loops, _groups: groups, base, _cleaner: cleaner })
    }

    /// What each vCPU used, in CPUs.
    fn measure(&self, window: Duration) -> Vec<(String, f64)> {
        let used = || self.loops.iter().map(|(_, l)| ran_ns(l.0.id())).collect::<Vec<_>>();
        let (start, before) = (Instant::now(), used());
        std::thread::sleep(window);
        let (after, took) = (used(), start.elapsed().as_secs_f64());
        let rate = |(a, b): (&f64, &f64)| (b - a) / 1e9 / took;
        let rates = before.iter().zip(&after).map(rate);
        self.loops.iter().map(|(name, _)| name.clone()).zip(rates).collect()
    }
}

fn members_of(
    parent: &Group,
    slices: &[Slice],
    vms: &[Vm],
    groups: &mut Vec<Group>,
    loops: &mut Vec<(String, Ended)>,
) -> Result<(), String> {
    let make = |parent: &Group, name: &str, weight: Weight, cap: Option<Cpus>| {
        let group = parent.child(name);
        group.relative_weight(weight.0 / 1024.0);
        if let Some(Cpus(cap)) = cap {
            group.quota(u32::try_from(Duration::from_secs_f64(cap / 10.0).as_micros()).unwrap());
        }
        group
    };
    for slice in slices {
        let group = make(parent, &slice.name, slice.weight, slice.cap);
        members_of(&group, &slice.slices, &slice.vms, groups, loops)?;
        groups.push(group);
    }
    for vm in vms {
        let own = make(parent, &vm.name, vm.weight, vm.cap);
        for (i, vcpu) in vm.vcpus.iter().enumerate() {
            let group = make(&own, &format!("vcpu{i}"), vcpu.weight, vcpu.quota);
            loops.push((format!("{}.{i}", vm.name), busy(&group, vcpu.affinity.as_ref())?));
            groups.push(group);
        }
        groups.push(own);
    }
    Ok(())
}

/// A busy loop that ends with the thread that started it.
fn busy(group: &Group, pcpus: Option<&CpuSet>) -> Result<Ended, String> {
    let script = format!("echo $$ >'{}/cgroup.procs' && while :; do :; done", group.dir.display());
    let child = shell(&script).spawn().map(Ended).map_err(|e| format!("setpriv: {e}"))?;
    until("a loop is in its group", || !members(&group.dir).is_empty());
    let mut mask = rustix::thread::CpuSet::new();
    let two = CpuSet::first(2);
    pcpus.unwrap_or(&two).iter().for_each(|cpu| mask.set(cpu.0 as usize));
    rustix::thread::sched_setaffinity(Some(Pid::from_child(&child.0)), &mask)
        .map_err(|e| format!("sched_setaffinity: {e}"))?;
    Ok(child)
}

/// What a hypervisor ever took of CPUs 0 and 1, s; 0 where that is not to be seen.
fn stolen() -> [f64; 2] {
    let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    ["cpu0 ", "cpu1 "].map(|cpu| {
        let steal = text.lines().find(|line| line.starts_with(cpu)).and_then(|line| Ticks::of(line)?.steal);
        steal.unwrap_or_default() as f64 / 100.0
    })
}

/// CPU time of a process, ns (Documentation/scheduler/sched-stats.rst).
fn ran_ns(pid: u32) -> f64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/schedstat")).unwrap_or_default();
    text.split_whitespace().next().and_then(|ns| ns.parse().ok()).unwrap_or(f64::NAN)
}

/// A process that waits for the test to end, in whatever way, and then removes its groups.
struct Cleaner(Child);

impl Cleaner {
    fn of(dir: &Path) -> Result<Cleaner, String> {
        // Its own session: what is sent to the test's process group does not reach it.
        let script = "cat >/dev/null; for i in $(seq 2000); do \
            [ -d \"$0\" ] || exit 0; find \"$0\" -depth -type d -exec rmdir {} \\; 2>/dev/null; sleep 0.05; done";
        let mut command = Command::new("setsid");
        command.args(["sh", "-c", script]).arg(dir).stdin(Stdio::piped()).stdout(Stdio::null());
        command.spawn().map(Cleaner).map_err(|e| format!("setsid (util-linux): {e}"))
    }
}

impl Drop for Cleaner {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

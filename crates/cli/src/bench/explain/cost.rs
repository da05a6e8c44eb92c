//! What it costs to look at a host once a second: CPU time of this process, of libvirtd and of the QEMUs,
//! and how long one look takes.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Result;
use corefit_core::machine::{Machine, Role, Snapshot, estimate};
use corefit_linux::host::Cgroups;
use corefit_linux::threads::own_cpu;
use corefit_linux::{Root, libvirt};
use serde::Serialize;

use super::seen::{self, Running, VCPUS, VMS, Written};
use crate::bench::arena::Arena;
use crate::stats::{count, median, number};
use crate::table::{NONE, Table};

/// Between two looks.
const EVERY: Duration = Duration::from_secs(1);
/// Looks that follow each other, after as much time without any.
const SPELL: usize = 5;
/// Looks before it counts: the first opens files and asks for everything.
const WARM: usize = 3;
/// The promises for 100 VMs with 1,000 vCPUs: percent of a core, ms of a look.
const PERCENT: f64 = 1.0;
const LOOK_MS: f64 = 50.0;

/// What looking at one host costs.
#[derive(Serialize)]
pub(super) struct Cost {
    host: String,
    vms: usize,
    vcpus: usize,
    looks: usize,
    /// CPU time of this process, ms a second.
    own_ms: f64,
    /// libvirtd; `None` where none is asked.
    libvirtd: Option<Share>,
    /// All threads of QEMUs but the vCPUs.
    monitors: Option<Share>,
    /// How often QEMUs' monitors were woken, per second: by others while nobody looks, and more while somebody does.
    asked: Option<Asked>,
    /// All of these, in percent of a core; of the others what they use more, if it is more. QEMUs whose monitors are not
    /// woken more often do nothing for us: what they use more then is chance, and is not counted.
    percent: f64,
    /// The first look, which connects, opens files and reads all settings. Not part of the promise.
    first_ms: f64,
    median_ms: f64,
    /// Of the later looks.
    longest_ms: f64,
    /// What follows a look: `entitled` and `available` of all VMs, CPU time in ms. Not part of the promise.
    estimate_ms: f64,
    /// Whether the promises are kept; `None` on smaller hosts.
    met: Option<bool>,
}

/// Wake-ups of threads, per second.
#[derive(Clone, Copy, Serialize)]
struct Asked {
    alone: f64,
    looking: f64,
}

/// CPU time of somebody who is asked, ms a second.
#[derive(Clone, Copy, Serialize)]
struct Share {
    /// While nobody looks.
    alone_ms: f64,
    /// How much more while somebody looks once a second: the mean over pairs of spells, one without looks and one
    /// with. Below zero by chance only.
    more_ms: f64,
    /// The standard error of that; `None` of a single pair.
    error_ms: Option<f64>,
}

/// Looks at all hosts there are that are called by something with `only`; what is missing, with the reason,
/// comes second.
pub(super) fn all(only: &str, looks: usize) -> Result<(Vec<Cost>, Vec<String>)> {
    let (mut costs, mut skipped) = (Vec::new(), Vec::new());
    let wanted = |name: &str| name.contains(only);
    let (files, groups) = ("looking at files", "looking at control groups");
    let (driver, vms) = ("looking at libvirt's test driver", "looking at VMs of libvirt");
    if ![files, groups, driver, vms].into_iter().any(wanted) {
        return Ok((costs, skipped));
    }
    let arena = Arena::open()?;
    if wanted(files) {
        let written = Written::new(arena.scratch().join("host"))?;
        let mut machine = Cgroups::open(Root::at(written.root()), "/vms/vm*".parse()?)?;
        costs.push(Cost::of(files, &mut machine, looks, false, |look| written.advance(look + 2))?);
    }
    if wanted(groups) {
        match Running::start(&arena) {
            Ok(running) => {
                let mut machine = Cgroups::open(Root::live(), running.pattern.parse()?)?;
                costs.push(Cost::of(groups, &mut machine, looks, false, |_| Ok(()))?);
            }
            Err(why) => skipped.push(format!("{groups}: {why:#}")),
        }
    }
    if wanted(driver) {
        let mut machine = libvirt::open(&seen::domains(arena.scratch())?, libvirt::Options::default());
        match Cost::of(driver, machine.as_mut(), looks, false, |_| Ok(())) {
            Ok(cost) => costs.push(cost),
            Err(why) => skipped.push(format!("{driver}: {why:#}")),
        }
    }
    if wanted(vms) {
        let mut machine = libvirt::open("", libvirt::Options::default());
        match Cost::of(vms, machine.as_mut(), looks, true, |_| Ok(())) {
            Ok(cost) if cost.vms > 0 => costs.push(cost),
            Ok(_) => {
                skipped.push(format!("{vms}: libvirt has none; scripts/testvm with 100 --bare starts some"))
            }
            Err(why) => skipped.push(format!("{vms}: {why:#}")),
        }
    }
    Ok((costs, skipped))
}

impl Cost {
    fn of(
        host: &str,
        machine: &mut dyn Machine,
        looks: usize,
        served: bool,
        turn: impl Fn(usize) -> Result<()>,
    ) -> Result<Cost> {
        let begun = Instant::now();
        let mut before = machine.observe()?;
        let first_ms = ms(begun.elapsed());
        for look in 0..WARM {
            turn(look)?;
            std::thread::sleep(EVERY);
            before = machine.observe()?;
        }
        let (mut own, mut took, mut estimates) = (Duration::ZERO, Vec::new(), Vec::new());
        let (mut quiet, mut busy) = (Vec::new(), Vec::new());
        let mut look = WARM;
        while look < WARM + looks {
            let spell = SPELL.min(WARM + looks - look);
            // As long without anybody looking, just before: what QEMUs do by themselves changes with time.
            if served {
                let start = Others::now();
                std::thread::sleep(EVERY * u32::try_from(spell).unwrap_or(u32::MAX));
                quiet.push(start.until(Others::now(), spell));
                before = machine.observe()?;
                std::thread::sleep(EVERY);
            }
            let start = Others::now();
            for look in look..look + spell {
                turn(look)?;
                let (cpu, begun) = (own_cpu(), Instant::now());
                let after = machine.observe()?;
                took.push(ms(begun.elapsed()));
                std::thread::sleep(EVERY.saturating_sub(begun.elapsed()));
                own += own_cpu().saturating_sub(cpu);
                let cpu = own_cpu();
                estimate(&before, &after)?;
                estimates.push(ms(own_cpu().saturating_sub(cpu)));
                before = after;
            }
            busy.push(start.until(Others::now(), spell));
            look += spell;
        }
        let own_ms = ms(own) / count(looks);
        let libvirtd = served.then(|| Share::of(&quiet, &busy, |rates| rates.libvirtd_ms));
        let monitors = served.then(|| Share::of(&quiet, &busy, |rates| rates.monitors_ms));
        let asked = served.then(|| {
            let mean =
                |rates: &[Rates]| rates.iter().map(|r| r.monitor_runs).sum::<f64>() / count(rates.len());
            Asked { alone: mean(&quiet), looking: mean(&busy) }
        });
        let more = |share: Option<Share>| share.map_or(0.0, |share| share.more_ms.max(0.0));
        let of_qemus = if asked.is_some_and(Asked::more) { more(monitors) } else { 0.0 };
        let percent = (own_ms + more(libvirtd) + of_qemus) / 10.0;
        let longest_ms = took.iter().copied().fold(0.0, f64::max);
        let (vms, vcpus) = size(&before);
        let large = vms >= VMS && vcpus >= VMS * VCPUS;
        Ok(Cost {
            host: host.into(),
            vms,
            vcpus,
            looks,
            own_ms,
            libvirtd,
            monitors,
            asked,
            percent,
            first_ms,
            median_ms: median(took).unwrap_or(f64::NAN),
            longest_ms,
            estimate_ms: median(estimates).unwrap_or(f64::NAN),
            met: large.then_some(percent < PERCENT && longest_ms < LOOK_MS),
        })
    }
}

/// VMs, and their vCPUs; of control groups the threads that stand for vCPUs.
fn size(snapshot: &Snapshot) -> (usize, usize) {
    let vms = || snapshot.vms.iter().filter(|vm| vm.role == Role::Vm);
    let groups = vms().any(|vm| vm.is_group());
    let vcpus = vms().map(|vm| vm.vcpus.iter().filter(|vcpu| vcpu.online).count()).sum();
    (vms().count(), if groups { VCPUS * vms().count() } else { vcpus })
}

impl Asked {
    /// Whether somebody who looks wakes monitors: more often than once in ten seconds.
    fn more(self) -> bool {
        self.looking > self.alone + 0.1
    }

    /// `0.0 (alone 0.0)`
    fn text(self) -> String {
        format!("{:.1} (alone {:.1})", self.looking, self.alone)
    }
}

impl Share {
    fn of(quiet: &[Rates], busy: &[Rates], part: fn(&Rates) -> f64) -> Share {
        let more: Vec<f64> = quiet.iter().zip(busy).map(|(quiet, busy)| part(busy) - part(quiet)).collect();
        let mean = |values: &mut dyn Iterator<Item = f64>| values.sum::<f64>() / count(more.len());
        let more_ms = mean(&mut more.iter().copied());
        let squares: f64 = more.iter().map(|more| (more - more_ms).powi(2)).sum();
        let pairs = count(more.len());
        Share {
            alone_ms: mean(&mut quiet.iter().map(part)),
            more_ms,
            error_ms: (more.len() > 1).then(|| (squares / (pairs - 1.0) / pairs).sqrt()),
        }
    }

    /// `+0.61 (± 0.10; alone 1.20)`
    fn text(&self) -> String {
        let error = self.error_ms.map_or(String::new(), |error| format!("± {error:.2}; "));
        format!("{:+.2} ({error}alone {:.2})", self.more_ms, self.alone_ms)
    }
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// CPU time of those who are asked, ns.
#[derive(Default)]
struct Others {
    libvirtd_ns: u64,
    monitors_ns: u64,
    /// How often threads that read commands to QEMUs ran.
    monitor_runs: u64,
}

impl Others {
    /// Of all processes of this machine that are libvirt's daemons or QEMUs.
    fn now() -> Others {
        let mut others = Others::default();
        for process in directories("/proc".into()) {
            let name = fs::read_to_string(process.join("comm")).unwrap_or_default();
            let daemon = ["libvirtd", "virtqemud", "virtlogd"].contains(&name.trim());
            let qemu = name.starts_with("qemu-system");
            if !daemon && !qemu {
                continue;
            }
            for thread in directories(process.join("task")) {
                let name = fs::read_to_string(thread.join("comm")).unwrap_or_default();
                let text = fs::read_to_string(thread.join("schedstat")).unwrap_or_default();
                // Run time, waiting time, and how often it ran.
                let numbers: Vec<u64> = text.split_whitespace().map(|n| n.parse().unwrap_or(0)).collect();
                let [ns, _, runs] = numbers[..] else { continue };
                if qemu && name.starts_with("IO mon_iothread") {
                    others.monitor_runs += runs;
                }
                match () {
                    () if daemon => others.libvirtd_ns += ns,
                    () if name.starts_with("CPU ") => {}
                    () => others.monitors_ns += ns,
                }
            }
        }
        others
    }

    fn until(&self, later: Others, seconds: usize) -> Rates {
        let rate = |from: u64, to: u64| ms(Duration::from_nanos(to.saturating_sub(from))) / count(seconds);
        Rates {
            libvirtd_ms: rate(self.libvirtd_ns, later.libvirtd_ns),
            monitors_ms: rate(self.monitors_ns, later.monitors_ns),
            monitor_runs: number(later.monitor_runs.saturating_sub(self.monitor_runs)) / count(seconds),
        }
    }
}

/// CPU time that libvirt's daemons have used.
pub(crate) fn of_libvirt() -> Duration {
    Duration::from_nanos(Others::now().libvirtd_ns)
}

/// What those who are asked used, ms a second.
struct Rates {
    libvirtd_ms: f64,
    monitors_ms: f64,
    /// Wake-ups per second.
    monitor_runs: f64,
}

/// The numbered entries of a directory of `/proc`.
fn directories(dir: PathBuf) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let numbered = |name: &str| name.bytes().all(|byte| byte.is_ascii_digit());
    entries.filter(move |entry| entry.file_name().to_str().is_some_and(numbered)).map(|entry| entry.path())
}

/// For people.
pub(super) fn text(costs: &[Cost], skipped: &[String]) -> String {
    let headings = [
        "looks at a host, one a second",
        "VMs",
        "vCPUs",
        "CPU ms/s",
        "libvirtd",
        "QEMUs",
        "asked/s",
        "% of a core",
        "promised",
        "first ms",
        "median",
        "longest",
        "promised",
        "estimate ms",
    ];
    let mut table = Table::new(1, &headings);
    for cost in costs {
        let number = |x: f64| format!("{x:.2}");
        let verdict = |kept: bool, most: f64| match cost.met {
            None => NONE.into(),
            Some(_) => format!("{most}: {}", if kept { "met" } else { "NOT met" }),
        };
        table.row(vec![
            cost.host.clone(),
            cost.vms.to_string(),
            cost.vcpus.to_string(),
            number(cost.own_ms),
            cost.libvirtd.map_or(NONE.into(), |share| share.text()),
            cost.monitors.map_or(NONE.into(), |share| share.text()),
            cost.asked.map_or(NONE.into(), Asked::text),
            number(cost.percent),
            verdict(cost.percent < PERCENT, PERCENT),
            number(cost.first_ms),
            number(cost.median_ms),
            number(cost.longest_ms),
            verdict(cost.longest_ms < LOOK_MS, LOOK_MS),
            number(cost.estimate_ms),
        ]);
    }
    let mut text = String::new();
    if !costs.is_empty() {
        text += "CPU time of this process; libvirtd, QEMUs (all threads but the vCPUs): how much more they use \
                 than when nobody looks, with its standard error, and what they use then. asked/s: how often QEMUs' \
                 monitors were woken; if not more often than when nobody looks, what QEMUs use more is chance and not \
                 in the sum. first: connects, and \
                 reads all settings; no promise is made for it. estimate: what follows a look, not in the sum.\n\n";
        text += &table.render();
    }
    for why in skipped {
        text += &format!("skipped: {why}\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cpu_time_of_this_process_grows_with_its_work() {
        let before = own_cpu();
        while own_cpu() < before + Duration::from_millis(2) {
            std::hint::black_box(before);
        }
        assert!(directories("/proc/self/task".into()).count() >= 1);
    }

    #[test]
    fn what_others_use_more_is_the_mean_of_pairs_of_spells() {
        let rates =
            |ms: [f64; 3]| ms.map(|ms| Rates { libvirtd_ms: ms, monitors_ms: 0.0, monitor_runs: 0.0 });
        let share = Share::of(&rates([1.0, 2.0, 3.0]), &rates([2.0, 3.0, 5.5]), |rates| rates.libvirtd_ms);
        assert_eq!(share.text(), "+1.50 (± 0.50; alone 2.00)");
        let share = Share::of(&rates([1.0; 3])[..1], &rates([0.5; 3])[..1], |rates| rates.libvirtd_ms);
        assert_eq!(share.text(), "-0.50 (alone 1.00)");
    }

    #[test]
    fn promises_are_for_large_hosts_only_and_a_late_look_breaks_one() {
        let cost = |met, longest_ms| Cost {
            host: "h".into(),
            vms: 1,
            vcpus: 1,
            looks: 1,
            own_ms: 2.0,
            libvirtd: None,
            monitors: None,
            asked: None,
            percent: 0.3,
            first_ms: 1.0,
            median_ms: 1.0,
            longest_ms,
            estimate_ms: 1.0,
            met,
        };
        let line = |cost| text(&[cost], &[]).lines().last().unwrap_or_default().to_owned();
        assert!(!line(cost(None, 1.0)).contains("met"));
        assert!(
            line(cost(Some(false), 51.0)).contains("1: met")
                && line(cost(Some(false), 51.0)).contains("50: NOT met")
        );
    }
}

//! Where it was measured.

use std::fs;
use std::time::Duration;

use super::Settings;
use super::document::Machine;
use crate::bench::arena::Arena;

/// How long to look whether others are busy.
const LOOK: Duration = Duration::from_millis(300);

/// The machine and the settings, before anything is run.
pub(super) fn describe(arena: &Arena, settings: &Settings) -> Machine {
    let groups = [("cpu", arena.cpu_groups()), ("cpuset", arena.cpuset_groups())];
    let used: Vec<String> =
        groups.iter().filter_map(|(name, version)| Some(format!("{name} {}", (*version)?))).collect();
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    Machine {
        cpus: arena.cpus().len(),
        model: model(&read("/proc/cpuinfo")),
        kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
        control_groups: if used.is_empty() {
            format!("no control groups: {}", arena.refusal())
        } else {
            format!("control groups {}", used.join(", "))
        },
        root: rustix::process::geteuid().is_root(),
        busy_at_start_cpus: busy(),
        corefit: env!("CARGO_PKG_VERSION"),
        size: settings.size.name().into(),
        repetitions: settings.repeat,
        seed: settings.seed,
        limit_s: settings.limit.as_secs_f64(),
        took_s: 0.0,
    }
}

fn model(cpuinfo: &str) -> Option<String> {
    let line = cpuinfo.lines().find(|l| l.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// CPUs that somebody uses while this process waits.
fn busy() -> Option<f64> {
    let before = busy_ticks(&fs::read_to_string("/proc/stat").ok()?)?;
    std::thread::sleep(LOOK);
    let after = busy_ticks(&fs::read_to_string("/proc/stat").ok()?)?;
    let hertz = u32::try_from(rustix::param::clock_ticks_per_second()).ok()?;
    let ticks = u32::try_from(after.checked_sub(before)?).ok()?;
    Some(f64::from(ticks) / f64::from(hertz) / LOOK.as_secs_f64())
}

/// User, nice, system, interrupts and stolen time of all CPUs, in ticks (proc(5)).
fn busy_ticks(stat: &str) -> Option<u64> {
    let fields: Vec<u64> =
        stat.lines().next()?.split_whitespace().skip(1).filter_map(|f| f.parse().ok()).collect();
    let used = [0, 1, 2, 5, 6, 7].map(|i| fields.get(i).copied().unwrap_or(0));
    (fields.len() >= 4).then(|| used.iter().sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_and_waiting_for_disks_is_not_busy() {
        let stat = "cpu  10 1 5 1000 77 2 3 4 0 0\ncpu0 1 1 1 1\n";
        assert_eq!(busy_ticks(stat), Some(25));
        assert_eq!(busy_ticks("cpu  1 2\n"), None);
        assert_eq!(busy_ticks(""), None);
    }

    #[test]
    fn the_model_is_the_first_processors() {
        let text = "processor : 0\nmodel name\t: A CPU @ 2 GHz\nmodel name\t: B\n";
        assert_eq!(model(text).as_deref(), Some("A CPU @ 2 GHz"));
        assert_eq!(model(""), None);
    }
}

//! Where it was measured.

use std::fs;

use super::Settings;
use super::document::Machine;
use crate::bench::arena::Arena;
use crate::bench::others;

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
        busy_at_start_cpus: others::busy(),
        corefit: env!("CARGO_PKG_VERSION"),
        size: settings.size.name(),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_is_the_first_processors() {
        let text = "processor : 0\nmodel name\t: A CPU @ 2 GHz\nmodel name\t: B\n";
        assert_eq!(model(text).as_deref(), Some("A CPU @ 2 GHz"));
        assert_eq!(model(""), None);
    }
}

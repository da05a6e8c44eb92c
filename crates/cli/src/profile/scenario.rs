//! A scenario for `corefit sim` that behaves as the program did: stretches of the run as fork-join loops with the
//! measured parallelism, in as many iterations as give the measured rate of blocking. Loop counts, and the time that
//! blocking and waking take in the simulation, are calibrated with it; what remains is written into the file.

use anyhow::{Context, Result};
use corefit_core::profile::{Profile, Stretch};
use corefit_sim::{Scenario, Sim};

/// Stretches of a scenario: more are averaged.
const MOST: usize = 64;
/// Rounds of calibration.
const ROUNDS: u32 = 4;
/// Blocks that are simulated to calibrate, at most; of a program that blocked more often each stretch is that much shorter then.
const CALIBRATED: f64 = 1e6;
/// Iterations of one stretch, at most: what the simulator repeats.
const ITERATIONS: f64 = 4e9;

/// The longest single length that the simulator takes, ns.
const LONGEST_NS: f64 = 3600e9;

pub(super) fn of(profile: &Profile, command: &str) -> Result<String> {
    let threads = profile.features.threads;
    let stretches = few(&profile.active);
    let wanted = (profile.features.parallelism, profile.voluntary as f64);
    let (mut factor, mut denser) = (1.0, 1.0);
    // A day of a busy program has 10^10 events.
    let part = (CALIBRATED / wanted.1.max(1.0)).min(1.0);
    let made = |part: f64, denser: f64, factor: f64| {
        let shorter = |s: &Stretch| Stretch { ns: s.ns * part / denser, active: s.active * denser };
        program(&stretches.iter().map(shorter).collect::<Vec<_>>(), threads, wanted.1 * part * factor)
    };
    let mut best: Option<(f64, (f64, f64), f64, f64)> = None;
    for _ in 0..ROUNDS {
        let text = text(profile, command, &made(part, denser, factor), None);
        let (parallelism, blocks) = simulated(&text, threads)?;
        let ratio = (parallelism / wanted.0, if wanted.1 > 0.0 { blocks / (wanted.1 * part) } else { 1.0 });
        let off = (ratio.0 - 1.0).abs() + (ratio.1 - 1.0).abs();
        if best.as_ref().is_none_or(|(least, ..)| off < *least) {
            best = Some((off, (denser, factor), ratio.0, ratio.1));
        }
        if ratio.1 <= 0.0 || off < 0.02 {
            break;
        }
        factor /= ratio.1;
        denser = (denser / ratio.0).clamp(1.0, 2.0);
    }
    let (_, (denser, factor), parallelism, blocking) = best.context("nothing was simulated")?;
    let check = Check { parallelism, blocking, part };
    Ok(text(profile, command, &made(1.0, denser, factor), Some(check)))
}

/// At most [`MOST`] stretches.
fn few(all: &[Stretch]) -> Vec<Stretch> {
    let group = all.len().div_ceil(MOST).max(1);
    let one = |part: &[Stretch]| {
        let ns: f64 = part.iter().map(|s| s.ns).sum();
        Stretch { ns, active: part.iter().map(|s| s.ns * s.active).sum::<f64>() / ns }
    };
    all.chunks(group).map(one).collect()
}

/// Each iteration blocks each thread once: those of the team wait for the next one, the first for the last of them.
fn program(stretches: &[Stretch], threads: usize, blocks: f64) -> String {
    let whole: f64 = stretches.iter().map(|s| s.ns).sum();
    let mut text = String::new();
    for stretch in stretches {
        let n = threads as f64;
        let least = (n * stretch.ns / LONGEST_NS).ceil().max(1.0);
        let rounds = (blocks * stretch.ns / whole / n).round().clamp(least, ITERATIONS);
        let active = stretch.active.min(n);
        let (alone, all, asleep) = if threads == 1 || active < 1.0 {
            (active.min(1.0), 0.0, (1.0 - active).max(0.0))
        } else {
            let alone = (n - active) / (n - 1.0);
            (alone, 1.0 - alone, 0.0)
        };
        let time = |part: f64, times: f64| format!("{:.0}ns", (part * stretch.ns * times / rounds).max(1.0));
        let mut body = vec![];
        if alone > 1e-4 {
            body.push(format!("compute {}", time(alone, 1.0)));
        }
        if all > 1e-4 {
            body.push(format!("parallel {{ compute {} split }}", time(all, n)));
        }
        if asleep > 1e-4 {
            body.push(format!("sleep {}", time(asleep, 1.0)));
        }
        if !body.is_empty() {
            text += &format!("repeat {rounds:.0} {{ {} }}\n", body.join(" "));
        }
    }
    text
}

/// Simulated over measured, of such a part of the run.
struct Check {
    parallelism: f64,
    blocking: f64,
    part: f64,
}

fn text(profile: &Profile, command: &str, program: &str, check: Option<Check>) -> String {
    let (f, took_s) = (&profile.features, profile.took_ns / 1e9);
    let printable: String =
        command.chars().map(|c| if c.is_control() || c == '"' || c == '\\' { '?' } else { c }).collect();
    let off = |ratio: f64| format!("{:+.1} %", 100.0 * (ratio - 1.0));
    let check = check.map_or(String::new(), |Check { parallelism, blocking, part }| {
        let what = match part {
            1.0.. => "as it stands here".into(),
            _ => format!("with loops {:.0} times shorter", 1.0 / part),
        };
        let (parallelism, blocking) = (off(parallelism), off(blocking));
        format!("# Simulated {what}, against measured: parallelism {parallelism}, blocks {blocking}.\n")
    });
    format!(
        "# What `corefit profile` saw of: {printable}\n\
         # Measured: parallelism {:.2} of {} threads, {:.1} blocks per thread-second.\n\
         {check}\
         # A VM with less: quota = 0.25 and quota_period = \"24ms\", below; or neighbours, as in scenarios/.\n\
         about = \"{printable}, as corefit profile saw it\"\n\
         until = \"{:.0}s\"\n\
         jitter = \"0s\"\n\
         runs = 1\n\
         hardware = {{ cores = {} }}\n\n\
         [[vm]]\n\
         name = \"program\"\n\
         vcpus = {}\n\
         pin = \"0-{}\"\n\
         pinned = true\n\
         wait = \"block\"\n\
         program = \"\"\"\n{program}\"\"\"\n",
        f.parallelism,
        f.threads,
        f.switches_per_thread_s,
        (took_s * 100.0).clamp(60.0, 3600.0 * 24.0).max(took_s * 2.0).min(1e6),
        f.threads,
        f.threads,
        f.threads - 1,
    )
}

/// Mean cores at work while it ran, and how often vCPUs halted (each has one thread).
fn simulated(text: &str, threads: usize) -> Result<(f64, f64)> {
    let scenario = Scenario::parse(text, &[]).map_err(|e| anyhow::anyhow!("{e}"))?;
    let mut sim = Sim::new(&scenario.spec)?;
    sim.run();
    let truth = sim.truth();
    let vm = truth.vms.first().context("the scenario has a VM")?;
    let took = vm.apps.first().and_then(|app| app.took_ns).context("the simulated program did not end")?;
    // At the end all threads but the last one halt for good.
    let halts = vm.counts.halts.saturating_sub(threads as u64 - 1);
    Ok((vm.time.utilised as f64 / took as f64, halts as f64))
}

#[cfg(test)]
mod tests {
    use corefit_core::profile::{Machine, Question, Series, Spin, analyse};

    use super::*;

    const MS: f64 = 1e6;

    fn profile(runs: &[&[f64]], voluntary: u64) -> Profile {
        let slots: Vec<(f64, &[f64])> = runs.iter().cycle().take(300).map(|runs| (4.0 * MS, *runs)).collect();
        let series = Series { voluntary, ..Series::of_runs(&slots) };
        let machine = Machine { cpus: 8, contention: None, one_cpu: None, others: None };
        let question = Question { machine, spin: Spin::Passive, period_ns: 24.0 * MS, share: 0.25 };
        analyse(&series, &question).unwrap()
    }

    /// How many percent the simulation is off.
    fn off(text: &str, what: &str) -> f64 {
        let said = text.lines().find(|line| line.starts_with("# Simulated ")).unwrap();
        let (_, number) = said.split_once(what).unwrap();
        number.split(' ').next().unwrap().parse::<f64>().unwrap().abs()
    }

    #[test]
    fn the_simulated_program_has_the_measured_parallelism_and_rate_of_blocking() {
        let alone: &[f64] = &[4.0 * MS, 0.0, 0.0, 0.0];
        let most: &[f64] = &[4.0 * MS, 3.0 * MS, 3.0 * MS, 3.0 * MS];
        let idle: &[f64] = &[1.0 * MS, 0.0, 0.0, 0.0];
        for (runs, voluntary) in
            [(vec![alone, most], 4000), (vec![most], 20_000), (vec![alone, most, idle], 900)]
        {
            let text = of(&profile(&runs, voluntary), "a \"program\"").unwrap();
            assert!(off(&text, "parallelism ") < 5.0 && off(&text, "blocks ") < 10.0, "{runs:?}\n{text}");
        }
    }

    /// Simulating all of it would take an hour, each time.
    #[test]
    fn of_a_program_that_blocks_without_end_a_part_is_simulated() {
        let most: &[f64] = &[4.0 * MS, 3.0 * MS, 3.0 * MS, 3.0 * MS];
        let mut profile = profile(&[most], 1_000_000_000);
        let day = 86_400e9 / profile.took_ns;
        profile.took_ns *= day;
        profile.active.iter_mut().for_each(|stretch| stretch.ns *= day);
        let text = of(&profile, "long").unwrap();
        assert!(off(&text, "parallelism ") < 5.0 && off(&text, "blocks ") < 10.0, "{text}");
        assert!(text.contains("# Simulated with loops 1000 times shorter, against"), "{text}");
        let rounds =
            text.lines().find_map(|l| l.trim().strip_prefix("repeat ")?.split(' ').next()?.parse().ok());
        assert!(rounds.is_some_and(|n: f64| n > 2e8), "all of it is there: {text}");
        Scenario::parse(&text, &[]).unwrap();
    }

    #[test]
    fn a_program_that_runs_for_days_and_never_blocks_is_a_scenario_that_can_be_read() {
        let mut profile = profile(&[&[4.0 * MS, 4.0 * MS]], 0);
        let days = 3.0 * 86_400e9 / profile.took_ns;
        profile.took_ns *= days;
        profile.active.iter_mut().for_each(|stretch| stretch.ns *= days);
        let text = of(&profile, "days").unwrap();
        assert!(off(&text, "parallelism ") < 5.0, "{text}");
        let spec = Scenario::parse(&text, &[]).unwrap().spec;
        assert!(spec.until_ns as f64 > profile.took_ns);
    }

    #[test]
    fn a_program_of_one_thread_is_a_scenario_too() {
        let text = of(&profile(&[&[4.0 * MS], &[2.0 * MS]], 150), "one").unwrap();
        assert!(off(&text, "parallelism ") < 5.0, "{text}");
    }
}

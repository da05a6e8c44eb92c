//! How many CPUs others use while something is measured: it spoils what is measured.

use std::fs;
use std::time::Duration;

use corefit_core::CpuSet;
use corefit_linux::Ticks;
use corefit_linux::threads::own;

/// How long to look whether others are busy.
const LOOK: Duration = Duration::from_millis(300);
/// More CPUs than this spoil what is measured.
const SPOIL: f64 = 0.1;

/// CPUs that somebody uses while this process waits.
pub(crate) fn busy() -> Option<f64> {
    let before = used_s()?;
    std::thread::sleep(LOOK);
    Some((used_s()? - before) / LOOK.as_secs_f64())
}

/// CPU time of all but this process since the start, s.
pub(crate) fn spent_s() -> Option<f64> {
    let own = own();
    Some(used_s()? - (own.user + own.system).as_secs_f64())
}

/// The same on these CPUs only; None if `/proc/stat` does not show them.
pub(crate) fn spent_on_s(cpus: &CpuSet) -> Option<f64> {
    let own = own();
    let used = seconds(busy_ticks_on(&fs::read_to_string("/proc/stat").ok()?, cpus)?);
    Some(used - (own.user + own.system).as_secs_f64())
}

/// CPU time of others in several runs of something.
#[derive(Default)]
pub(crate) struct Others {
    used_s: f64,
    wall_s: f64,
}

impl Others {
    /// A run, what it used itself, and [`spent_s`] before and after it.
    pub(crate) fn add(&mut self, before: Option<f64>, after: Option<f64>, own: Duration, wall: Duration) {
        let (Some(before), Some(after)) = (before, after) else { return };
        self.used_s += after - before - own.as_secs_f64();
        self.wall_s += wall.as_secs_f64();
    }

    /// CPUs, on average.
    pub(crate) fn cpus(&self) -> Option<f64> {
        (self.wall_s > 0.0).then(|| (self.used_s / self.wall_s).max(0.0))
    }
}

/// CPU time that was used on all CPUs since the start, s.
fn used_s() -> Option<f64> {
    Some(seconds(busy_ticks(fs::read_to_string("/proc/stat").ok()?.lines().next()?)?))
}

fn seconds(ticks: u64) -> f64 {
    ticks as f64 / rustix::param::clock_ticks_per_second() as f64
}

/// So many CPUs, if they spoil what is measured.
pub(crate) fn spoil(cpus: Option<f64>) -> Option<f64> {
    cpus.filter(|cpus| *cpus > SPOIL)
}

/// The warning that others were busy at the beginning, and the end of its line; nothing if they were not.
pub(crate) fn warning(cpus: Option<f64>) -> String {
    spoil(cpus).map_or_else(String::new, |busy| {
        format!("WARNING: others used {busy:.1} CPUs when this began: the numbers are not to be trusted\n")
    })
}

/// User, nice, system, interrupts and stolen time of a line of `/proc/stat`, in ticks (proc(5)).
fn busy_ticks(line: &str) -> Option<u64> {
    let ticks = Ticks::of(line)?;
    Some(ticks.busy() + ticks.steal?)
}

/// The same of all lines of these CPUs.
fn busy_ticks_on(stat: &str, cpus: &CpuSet) -> Option<u64> {
    let is_one = |line: &&str| Ticks::cpu(line).is_some_and(|cpu| cpus.contains(cpu));
    let each = stat.lines().filter(is_one).map(busy_ticks);
    each.reduce(|sum, ticks| Some(sum? + ticks?)).flatten()
}

#[cfg(test)]
mod tests {
    use corefit_core::CpuId;

    use super::*;

    #[test]
    fn idle_and_waiting_for_disks_is_not_busy() {
        assert_eq!(busy_ticks("cpu  10 1 5 1000 77 2 3 4 0 0"), Some(25));
        assert_eq!(busy_ticks("cpu  1 2\n"), None);
        assert_eq!(busy_ticks(""), None);
    }

    #[test]
    fn what_others_do_on_other_cpus_does_not_count() {
        let stat =
            "cpu  9 9 9 9\ncpu0 10 1 5 1000 7 0 0 0\ncpu1 500 0 0 0 0 0 0 0\ncpu12 3 0 0 0 0 0 0 0\nintr 7\n";
        let of = |cpus: &[u32]| busy_ticks_on(stat, &cpus.iter().copied().map(CpuId).collect());
        assert_eq!((of(&[0]), of(&[0, 12]), of(&[7])), (Some(16), Some(19), None));
    }

    #[test]
    fn a_tenth_of_a_cpu_and_what_is_not_known_is_no_reason_to_warn() {
        assert_eq!((warning(Some(0.1)), warning(None)), (String::new(), String::new()));
        assert!(warning(Some(2.0)).starts_with("WARNING: others used 2.0 CPUs when this began"));
    }

    #[test]
    fn what_neither_the_program_nor_this_process_used_others_did() {
        let mut others = Others::default();
        assert_eq!(others.cpus(), None);
        let own = Duration::from_secs(4);
        others.add(None, Some(9.0), own, Duration::from_secs(9));
        others.add(Some(100.0), Some(106.0), own, Duration::from_secs(2));
        assert_eq!(others.cpus(), Some(1.0));
        others.add(Some(100.0), Some(100.0), own, Duration::from_secs(2));
        assert_eq!(others.cpus(), Some(0.0), "ticks are coarse");
    }
}

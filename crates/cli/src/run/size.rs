//! How many threads to launch with, and the limits that are read while the program runs.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::builder::TypedValueParser;
use corefit_core::{CpuSet, Cpus, LimitKind, Reading, estimate, team_for};
use corefit_linux::launch::Runtime;
use corefit_linux::{Root, read, read_settings, sample};

use super::follow::Limits;
use super::glance::{self, Glance};

/// `--threads`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Threads {
    /// As many as there are CPUs available.
    Auto,
    /// At most so many.
    AtMost(u32),
    /// As without corefit.
    Max,
}

/// Reads `auto`, `max` or a number from 1.
pub(crate) fn threads_parser() -> impl TypedValueParser<Value = Threads> {
    clap::builder::NonEmptyStringValueParser::new().try_map(|text| match text.as_str() {
        "auto" => Ok(Threads::Auto),
        "max" => Ok(Threads::Max),
        number => match number.parse::<u32>() {
            Ok(n) if (1..=65_535).contains(&n) => Ok(Threads::AtMost(n)),
            _ => Err("give auto, max, or a number of threads from 1 to 65535"),
        },
    })
}

/// What there is at launch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    /// CPUs allowed (affinity and cpuset).
    pub(crate) allowed: u32,
    /// With those that are offline now (a VM that is sized from outside), as far as they are present.
    pub(crate) to_come: u32,
    /// CPUs to be had now.
    pub(crate) available: Cpus,
    /// What the quotas leave, and what is left when everybody is busy.
    pub(crate) limits: Limits,
}

impl Room {
    /// Most threads that could ever have a CPU of their own under today's limits.
    pub(crate) fn most(&self) -> u32 {
        let quota = self.limits.quota.map_or(u32::MAX, up);
        quota.min(self.allowed).max(1)
    }

    /// The same once all CPUs are online: what a program whose teams are resized may grow to.
    pub(crate) fn most_to_come(&self) -> u32 {
        Room { allowed: self.allowed.max(self.to_come), ..*self }.most()
    }

    /// Threads that wait for each other: see `corefit_core::team_for`. A quota stops all
    /// threads together, so its fraction counts in full.
    pub(crate) fn team(&self) -> u32 {
        let by_quota = self.limits.quota.is_some_and(|q| self.available.0 > q.0 - 1e-6);
        let team = if by_quota { up(self.available) } else { team_for(self.available) };
        team.min(self.most())
    }

    /// Threads of libraries that wait for each other now and then.
    pub(crate) fn workers(&self) -> u32 {
        up(self.available).min(self.most())
    }

    /// Threads of a pool, which take work when they find some: as many as can ever run at once. Who
    /// competes does not matter, because more threads than CPUs cost such a pool nothing, while a
    /// lone thread is at the mercy of the kernel's balancing (Node beside a neighbour: 3.8 s with
    /// two threads, 5.2 s with one). And at least two if there are two CPUs, whatever the quota: one
    /// that sleeps would leave the quota unused (Go's runtime has the same rule since 1.25).
    pub(crate) fn pool(&self) -> u32 {
        self.most().max(2).min(self.allowed).max(1)
    }

    /// What a program of these runtimes hears when it asks for the number of CPUs.
    pub(crate) fn answer(&self, runtimes: &BTreeSet<Runtime>) -> u32 {
        if runtimes.iter().any(|runtime| runtime.is_team()) { self.workers() } else { self.pool() }
    }
}

/// Rounded up, a tenth forgiven; at least 1.
fn up(cpus: Cpus) -> u32 {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped")]
    let n = (cpus.0 - 0.1).ceil().clamp(1.0, 65_535.0) as u32;
    n
}

/// Reads the limits of one process again and again.
pub(crate) struct Watcher {
    root: Root,
    pid: u32,
    before: Option<Reading>,
    limits: Limits,
    glance: Glance,
}

/// How long a program runs before it is worth a reading: this takes some milliseconds, and who waits for a
/// program that has ended would wait for them, too.
const AFTER_START: Duration = Duration::from_millis(5);

/// Who else was busy is judged over this at least.
const LONG: Duration = Duration::from_millis(500);

/// Shortest time between two readings that says something: `/proc/stat` counts 10 ms.
const WINDOW: Duration = Duration::from_millis(60);

impl Watcher {
    /// `limits` are those at launch, `quotas` the files of those, and `allowed_of` the process whose affinity is not ours to
    /// set. Nothing is read yet: that would cost every short program 2 ms.
    pub(crate) fn new(pid: u32, allowed_of: u32, limits: Limits, quotas: &[PathBuf]) -> Watcher {
        Watcher { root: Root::live(), pid, before: None, limits, glance: Glance::new(allowed_of, quotas) }
    }

    /// Whether a limit was set to something else since the last call.
    pub(crate) fn changed(&mut self) -> bool {
        self.glance.changed()
    }

    /// The limits now; those of before if the process cannot be read any more. What is left when everybody is busy takes
    /// two readings, so that is known from the second call on. `allowed`: the CPUs that the program may use, where its main
    /// thread's affinity does not tell.
    pub(crate) fn limits(&mut self, allowed: Option<&CpuSet>) -> Limits {
        let Ok(mut now) = read(&self.root, self.pid) else {
            return self.limits;
        };
        if let Some(allowed) = allowed {
            now.affinity.value.clone_from(allowed);
        }
        self.glance.follow(&glance::files(&now));
        let long_ago = self.before.as_ref().filter(|before| now.at.since(before.at) >= LONG);
        let set = Limits::of(&estimate(long_ago.unwrap_or(&now), &now));
        let entitled = if long_ago.is_some() { set.entitled } else { self.limits.entitled };
        self.limits = Limits { entitled, ..set };
        if long_ago.is_some() || self.before.is_none() {
            self.before = Some(now);
        }
        self.limits
    }
}

impl Limits {
    fn of(report: &corefit_core::Report) -> Limits {
        let quotas = report.limits.iter().filter(|l| l.kind == LimitKind::Quota);
        let quota = quotas.filter_map(|l| l.cpus).reduce(Cpus::min);
        let told = report.limits.iter().find(|l| l.kind == LimitKind::Told).and_then(|l| l.cpus);
        Limits { quota, entitled: report.entitled, told }
    }
}

/// What a look at launch found.
pub(crate) struct Look {
    pub(crate) room: Room,
    /// The files that hold quotas.
    pub(crate) quotas: Vec<PathBuf>,
    /// Set where others run and nobody waited to see how much: `room` is a guess until
    /// [`Pending::room`] knows better.
    pub(crate) pending: Option<Pending>,
    /// What could not be read, in words.
    pub(crate) unread: Option<String>,
}

/// Two readings still to come, the program running meanwhile.
pub(crate) struct Pending {
    root: Root,
    allowed: u32,
    first: Option<Reading>,
    begun: bool,
    /// When the next of them is due.
    pub(crate) due: Instant,
}

impl Pending {
    /// Takes the first reading, and says how long it is until the second one is due.
    pub(crate) fn begin(&mut self) -> Duration {
        let first = read(&self.root, std::process::id());
        (self.first, self.begun) = (first.ok(), true);
        self.due = Instant::now() + WINDOW;
        WINDOW
    }

    pub(crate) fn begun(&self) -> bool {
        self.begun
    }

    /// What there is; None if that could not be read.
    pub(crate) fn room(&self) -> Option<Room> {
        let first = self.first.as_ref()?;
        Some(Room::of(self.allowed, first, read(&self.root, first.pid).ok().as_ref()))
    }
}

impl Room {
    fn of(allowed: u32, first: &Reading, second: Option<&Reading>) -> Room {
        let report = estimate(first, second.unwrap_or(first));
        let to_come = first.present.as_ref().map(|present| present.value.intersection(&first.affinity.value));
        Room {
            allowed,
            to_come: to_come.and_then(|set| u32::try_from(set.len()).ok()).unwrap_or(allowed),
            available: Cpus(report.available.0.max(0.1)),
            limits: Limits::of(&report),
        }
    }
}

/// Looks at what there is for this process and its children. If others run and `wait` asks for
/// certainty, that takes one [`WINDOW`] more. Without, a CPU counts as taken
/// by each thread that runs elsewhere: for a moment, a team that is too small costs less than
/// one that is too large. What cannot be read does not limit.
pub(crate) fn look(wait: bool) -> Look {
    let me = std::process::id();
    let allowed = sample::affinity(me).map_or(1, |set| u32::try_from(set.len()).unwrap_or(1));
    let root = Root::live();
    let before = others_running();
    let settings = match read_settings(&root, me) {
        Ok(settings) => settings,
        Err(why) => {
            let available = Cpus(allowed.into());
            let room = Room { allowed, to_come: allowed, available, limits: Limits::default() };
            let unread = Some(format!("cannot read what limits this process: {why}"));
            return Look { room, quotas: vec![], pending: None, unread };
        }
    };
    let mut room = Room::of(allowed, &settings, None);
    let others = fewest_running(before, wait);
    let mut pending = None;
    if others > 0 && wait {
        let start = Instant::now();
        if let Ok(first) = read(&root, me) {
            std::thread::sleep(WINDOW.saturating_sub(start.elapsed()));
            room = Room::of(allowed, &first, read(&root, me).ok().as_ref());
        }
    } else if others > 0 {
        room.available = room.available.min(Cpus(allowed.saturating_sub(others).max(1).into()));
        pending =
            Some(Pending { root, allowed, first: None, begun: false, due: Instant::now() + AFTER_START });
    }
    Look { room, quotas: glance::files(&settings), pending, unread: None }
}

/// The fewest threads that ran besides this one: at an instant some time ago, now, and if need be and
/// there is `time`, 1 ms later. Who computes runs at all of them, a daemon that wakes up does not. (Where
/// CPUs are busy, each sleep costs a wait for one of them, so there is only one.)
fn fewest_running(before: Option<u32>, time: bool) -> u32 {
    let now = || others_running().unwrap_or(u32::MAX);
    let fewest = now().min(before.unwrap_or(u32::MAX));
    if fewest == 0 || !time {
        return fewest;
    }
    std::thread::sleep(Duration::from_millis(1));
    fewest.min(now())
}

/// Runnable threads besides this one at this instant (`procs_running` of `/proc/stat`).
fn others_running() -> Option<u32> {
    let text = fs::read_to_string("/proc/stat").ok()?;
    let line = text.lines().find_map(|l| l.strip_prefix("procs_running "))?;
    Some(line.trim().parse::<u32>().ok()?.saturating_sub(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn room(allowed: u32, available: f64, quota: Option<f64>) -> Room {
        let limits = Limits { quota: quota.map(Cpus), ..Limits::default() };
        Room { allowed, to_come: allowed, available: Cpus(available), limits }
    }

    #[test]
    fn teams_are_cautious_workers_less_pools_not_at_all_and_quotas_count_in_full() {
        assert_eq!((room(4, 1.5, None).team(), room(4, 1.5, None).workers()), (1, 2));
        assert_eq!((room(4, 1.5, Some(1.5)).team(), room(4, 1.5, Some(1.5)).workers()), (2, 2));
        assert_eq!((room(4, 0.4, None).team(), room(4, 0.4, None).workers()), (1, 1));
        assert_eq!((room(4, 0.4, None).pool(), room(1, 1.0, None).pool()), (4, 1));
        assert_eq!((room(4, 0.5, Some(0.5)).pool(), room(8, 1.0, Some(2.5)).pool()), (2, 3));
        assert_eq!(room(4, 1.0, Some(2.5)).most(), 3);
        let answer = |runtime| room(4, 1.5, None).answer(&BTreeSet::from([runtime]));
        assert_eq!((answer(Runtime::Julia), answer(Runtime::Node), answer(Runtime::DotNet)), (2, 4, 4));
        assert_eq!(room(2, 2.0, Some(8.0)).most(), 2);
    }

    #[test]
    fn a_team_may_grow_to_cpus_that_are_offline_now_and_not_beyond_quotas() {
        let of_eight = |quota| Room { to_come: 8, ..room(2, 2.0, quota) };
        assert_eq!((of_eight(None).most(), of_eight(None).most_to_come()), (2, 8));
        assert_eq!((of_eight(Some(3.0)).most_to_come(), of_eight(None).pool()), (3, 2));
    }
}

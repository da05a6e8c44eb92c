//! Threads that sit directly in a group with VMs below it: each competes with those groups on its own,
//! or with its session where the kernel groups sessions (sched(7), "The autogroup feature").
//!
//! A host has hundreds of threads at rest. One appears when it does something, with counters that were
//! zero when it was still at rest, and stays for [`KEEP`]; so that what was active between any two
//! snapshots that are less apart than this is in the later one.

use std::collections::BTreeMap;
use std::time::Duration;

use corefit_core::machine::{Counters, Role, VcpuState, VmId, VmState};
use corefit_core::{CpuSet, Quota, Time, Weight};

use super::REFRESH;
use super::kept::Kept;
use super::tally::{Done, affinity, grown, is_born_since, schedstat, task};
use super::view::per_cpu;
use crate::proc::{Task, autogroup};

/// For how long what rests is still shown.
const KEEP: Duration = Duration::from_secs(60);

/// A thread of the kernel, of which nothing is counted, is read in one look of so many, in case that its number is another's by now:
/// a host has ten and more for each pCPU.
const KERNEL: u32 = 16;

/// The threads in one group.
#[derive(Default)]
pub(crate) struct Direct {
    threads: BTreeMap<u32, Thread>,
    looks: u32,
    sessions: BTreeMap<String, Session>,
    rest: Actor,
    /// What its real-time threads may use of each pCPU, and when that was read.
    realtime: Option<(Time, Option<Quota>)>,
}

struct Thread {
    task: Task,
    mask: Option<CpuSet>,
    session: Option<(String, f64)>,
    looked: Time,
    done: Done,
    actor: Actor,
}

struct Session {
    name: String,
    weight: f64,
    mask: CpuSet,
    actor: Actor,
}

/// What did something.
#[derive(Default)]
pub(super) struct Actor {
    began: Time,
    done: Done,
    active: Option<Time>,
}

/// The circumstances of a look at a group's threads.
#[derive(Clone)]
pub(crate) struct Scene<'a> {
    pub(crate) now: Time,
    pub(crate) last: Option<Time>,
    /// The group, for names.
    pub(crate) path: &'a str,
    pub(crate) parent: Option<&'a str>,
    /// Whether the kernel groups sessions here.
    pub(crate) sessions: bool,
    /// What a nice-0 thread weighs.
    pub(crate) weight: f64,
    /// All pCPUs.
    pub(crate) pcpus: &'a CpuSet,
    /// What its real-time threads may use of each pCPU.
    pub(crate) realtime: Option<Quota>,
}

/// What a look at a group's threads found.
pub(crate) struct Found {
    /// CPU time of all of them since the last look, ns, threads of the kernel included.
    pub(crate) run_ns: u64,
    /// None of them has counters.
    pub(crate) blind: bool,
}

impl Direct {
    /// What its real-time threads may use of each pCPU, read anew as seldom as other settings: Linux 6.18 builds its scheduling domains
    /// anew each time that somebody reads the machine's part (`sched_rt_handler`; measured here).
    pub(crate) fn realtime(&mut self, now: Time, read: impl FnOnce() -> Option<Quota>) -> Option<Quota> {
        if self.realtime.as_ref().is_none_or(|(at, _)| now.since(*at) >= REFRESH) {
            self.realtime = Some((now, read()));
        }
        self.realtime.as_ref().and_then(|(_, quota)| quota.clone())
    }

    /// Looks at the threads listed.
    pub(crate) fn update(&mut self, kept: &mut Kept, listed: &[(u32, u32)], scene: &Scene) -> Found {
        let mut before = std::mem::take(&mut self.threads);
        let mut run_ns = 0;
        self.looks = self.looks.wrapping_add(1);
        for &(pid, tid) in listed {
            let rests = |known: &Thread| known.task.kernel && tid.wrapping_add(self.looks) % KERNEL != 0;
            if before.get(&tid).is_some_and(rests) {
                self.threads.extend(before.remove(&tid).map(|known| (tid, known)));
                continue;
            }
            let Ok(did) = schedstat(kept, pid, tid) else { continue };
            let done = (did.run_ns, did.wait_ns);
            let known = before.remove(&tid).filter(|known| known.done.0 <= done.0);
            let fresh = known.is_none();
            let thread = known.or_else(|| Thread::meet(kept, pid, done, scene));
            let Some(mut thread) = thread else { continue };
            let born = || scene.last.is_some_and(|last| is_born_since(&thread.task, last));
            let (run, wait) = grown((!fresh).then_some(thread.done), done, born);
            thread.done = done;
            // What the kernel does for others is in the rest.
            if !thread.task.kernel {
                run_ns += run;
                if run + wait > 0 {
                    thread.refresh(kept, pid, scene);
                    self.acted(&mut thread, (run, wait), scene);
                }
            }
            self.threads.insert(tid, thread);
        }
        Found { run_ns, blind: self.threads.is_empty() && !listed.is_empty() }
    }

    /// What the group used that none of its threads and groups did: threads of the kernel, and what
    /// ended before it was seen.
    pub(crate) fn rest(&mut self, run_ns: u64, scene: &Scene) {
        if run_ns > 0 {
            self.rest.act((run_ns, 0), scene);
        }
    }

    fn acted(&mut self, thread: &mut Thread, done: Done, scene: &Scene) {
        let Some((key, weight)) = &thread.session else {
            thread.actor.act(done, scene);
            return;
        };
        let session = self.sessions.entry(key.clone()).or_insert_with(|| Session {
            name: format!("session {} ({})", key.trim_start_matches("/autogroup-"), thread.task.name),
            weight: 0.0,
            mask: CpuSet::default(),
            actor: Actor::default(),
        });
        session.weight = *weight;
        let mask = thread.mask.as_ref().unwrap_or(scene.pcpus);
        session.mask = session.mask.iter().chain(mask.iter()).collect();
        session.actor.act(done, scene);
    }

    /// Everything that was active of late, as competitors.
    pub(crate) fn others(&mut self, scene: &Scene, rest_weight: f64) -> Vec<VmState> {
        self.sessions.retain(|_, session| session.actor.is_shown(scene.now));
        let (mut others, mut first) = (Vec::new(), Vec::new());
        let mut add = |actor: &Actor, key: &str, name: String, weight: f64, mask: &CpuSet| {
            if actor.is_shown(scene.now) {
                others.push(actor.state(key, name, weight * scene.weight / 1024.0, mask, scene));
            }
        };
        for (tid, thread) in &self.threads {
            let mask = thread.mask.as_ref().unwrap_or(scene.pcpus);
            if thread.task.realtime {
                first.extend(thread.actor.first(*tid, &thread.task, mask, scene));
                continue;
            }
            let key = format!("thread {tid}@{}", thread.task.started.as_millis());
            let Task { name, weight, .. } = &thread.task;
            add(&thread.actor, &key, format!("thread {tid} ({name})"), *weight, mask);
        }
        for (key, session) in &self.sessions {
            add(&session.actor, key, session.name.clone(), session.weight, &session.mask);
        }
        let name =
            format!("kernel and ended tasks in {}", if scene.path.is_empty() { "/" } else { scene.path });
        add(&self.rest, "rest", name, rest_weight * 1024.0, scene.pcpus);
        others.extend(first);
        others
    }
}

impl Thread {
    fn meet(kept: &Kept, pid: u32, done: Done, scene: &Scene) -> Option<Thread> {
        let task = task(kept, pid).ok()?;
        let mut thread =
            Thread { task, mask: None, session: None, looked: Time(0), done, actor: Actor::default() };
        if scene.sessions && !thread.task.kernel && !thread.task.realtime {
            thread.session = autogroup(&kept.root, pid).ok().flatten();
        }
        Some(thread)
    }

    /// Reads anew what changes rarely, every so often.
    fn refresh(&mut self, kept: &Kept, pid: u32, scene: &Scene) {
        if self.mask.is_some() && scene.now.since(self.looked) < REFRESH {
            return;
        }
        self.looked = scene.now;
        if let Ok(task) = task(kept, pid) {
            self.task = task;
        }
        if self.task.realtime {
            self.session = None; // sessions are of threads with weights
        } else if scene.sessions {
            self.session = autogroup(&kept.root, pid).ok().flatten();
        }
        let mask = affinity(kept, pid).map(|mask| mask.intersection(scene.pcpus));
        self.mask = mask.filter(|mask| !mask.is_empty()).or_else(|| Some(scene.pcpus.clone()));
    }
}

impl Actor {
    /// As a real-time thread, which competes at the top wherever it is.
    pub(super) fn first(&self, tid: u32, task: &Task, mask: &CpuSet, scene: &Scene) -> Option<VmState> {
        let key = format!("thread {tid}@{}", task.started.as_millis());
        let name = match scene.path {
            "" => format!("real-time thread {tid} ({})", task.name),
            path => format!("real-time {tid} ({}) of {path}", task.name),
        };
        self.is_shown(scene.now).then(|| {
            let state = self.state(&key, name, VmState::REALTIME.0, mask, scene);
            VmState { parent: None, quota: scene.realtime.clone(), ..state }
        })
    }

    pub(super) fn act(&mut self, (run, wait): Done, scene: &Scene) {
        if !self.is_shown(scene.now) {
            self.done = (0, 0);
            self.began = scene.last.unwrap_or(scene.now);
        }
        self.active = Some(scene.now);
        self.done = (self.done.0 + run, self.done.1 + wait);
    }

    pub(super) fn is_shown(&self, now: Time) -> bool {
        self.active.is_some_and(|active| now.since(active) < KEEP)
    }

    fn state(&self, key: &str, name: String, weight: f64, mask: &CpuSet, scene: &Scene) -> VmState {
        let (run_ns, wait_ns) = self.done;
        VmState {
            // Each time that it begins anew with zero, it is another one.
            id: VmId(format!("{}:{key}#{}", scene.path, self.began.0)),
            name,
            role: Role::Other,
            parent: scene.parent.map(Into::into),
            weight: Some(Weight(weight)),
            vcpus: if mask.len() == 1 || key.starts_with("thread") {
                vec![VcpuState { online: true, affinity: Some(mask.clone()), ..VcpuState::default() }]
            } else {
                per_cpu(mask, &CpuSet::default())
            },
            whole: Some(Counters { run_ns: Some(run_ns), wait_ns: Some(wait_ns), runs: None }),
            began: Some(self.began),
            ..VmState::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root::Root;
    use crate::root::testing;

    #[test]
    fn what_real_time_threads_may_use_is_read_anew_with_the_other_settings_only() {
        let (mut direct, mut reads) = (Direct::default(), Vec::new());
        let quota =
            |us| Some(Quota { quota_us: Some(us), period_us: 100, burst_us: 0, source: String::new() });
        for second in [0, 1, 4, 5, 9, 10] {
            let now = Time(second * 1_000_000_000);
            let found = direct.realtime(now, || {
                reads.push(second);
                quota(second)
            });
            assert_eq!(found, quota(second / 5 * 5), "{second}");
        }
        assert_eq!(reads, [0, 5, 10]);
    }

    #[test]
    fn a_thread_of_the_kernel_is_read_in_one_look_of_many_and_another_that_has_its_number_is_seen_then() {
        let dir = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| testing::put(dir.path(), path, text);
        let stat = |flags: &str| {
            let zeros = "0 ".repeat(28);
            put("proc/7/stat", &format!("7 (a) S 3 7 7 0 -1 {flags} {zeros}17 1 0 0\n"));
        };
        stat("2097216");
        let mut kept = Kept::new(Root::at(dir.path()));
        let (mut direct, pcpus) = (Direct::default(), CpuSet::first(2));
        let mut look = |now: u64, ran: &str| {
            put("proc/7/task/7/schedstat", ran);
            let last = (now > 1).then_some(Time((now - 1) * 1_000_000_000));
            let scene = Scene {
                now: Time(now * 1_000_000_000),
                last,
                path: "",
                parent: None,
                sessions: false,
                weight: 1024.0,
                pcpus: &pcpus,
                realtime: None,
            };
            direct.update(&mut kept, &[(7, 7)], &scene).run_ns
        };
        assert_eq!(look(1, "900 0 1\n"), 0);
        assert_eq!(look(2, "950 0 1\n"), 0, "in the rest");
        stat("64");
        let used: Vec<u64> = (3..=40).map(|now| look(now, &format!("{now} 0 1\n"))).collect();
        let first = used.iter().position(|run| *run > 0).unwrap();
        assert!((2..17).contains(&first), "{used:?}");
        assert!(
            used[first..].iter().all(|run| *run == 1),
            "a thread of a program is read each time: {used:?}"
        );
    }

    #[test]
    fn a_real_time_thread_comes_before_all_others_and_is_in_no_session() {
        let dir = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| testing::put(dir.path(), path, text);
        let stat = |tid: u32, policy: &str| {
            let zeros = "0 ".repeat(28);
            put(&format!("proc/{tid}/stat"), &format!("{tid} (a) S 3 7 7 0 -1 0 {zeros}17 1 {policy} 0\n"));
            put(&format!("proc/{tid}/status"), "Name:\ta\nCpus_allowed_list:\t0-1\n");
            put(&format!("proc/{tid}/autogroup"), "/autogroup-5 nice 0\n");
        };
        stat(7, "50 1");
        stat(8, "0 0");
        let mut kept = Kept::new(Root::at(dir.path()));
        let mut direct = Direct::default();
        let pcpus = CpuSet::first(2);
        let mut look = |now: u64, ran: &str| {
            [7, 8].iter().for_each(|tid| put(&format!("proc/{tid}/task/{tid}/schedstat"), ran));
            let scene = Scene {
                now: Time(now),
                last: (now > 1).then_some(Time(1)),
                path: "",
                parent: None,
                sessions: true,
                weight: 1024.0,
                pcpus: &pcpus,
                realtime: None,
            };
            direct.update(&mut kept, &[(7, 7), (8, 8)], &scene);
            direct.others(&scene, 1.0)
        };
        look(1, "5 0 1\n");
        let others = look(1_000_000_000, "900 0 1\n");
        let seen: Vec<_> = others.iter().map(|o| (o.name.as_str(), o.weight.unwrap().0)).collect();
        assert_eq!(seen, [("session 5 (a)", 1024.0), ("real-time thread 7 (a)", VmState::REALTIME.0)]);
    }
}

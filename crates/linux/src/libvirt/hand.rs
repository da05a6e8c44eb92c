//! The connections by which something is changed, and who is left alone because he does not answer on them.
//!
//! ```text
//!          ┌ line "libvirt changes" ──▶ libvirtd            weights, quotas, pins, memory, metadata, plugging
//! Hand ────┤
//!          └ line "libvirt guests" ───▶ libvirtd ──▶ agent  vCPUs of the guest, what it is told
//! ```
//!
//! A call may hang, so threads of their own make them; who does not answer in time is left alone for a while. An agent that
//! hangs says nothing of libvirtd, which keeps apart what waits for an agent and what changes a domain
//! (`virDomainObjBeginAgentJob`): neither that VM nor a thread is lost for the settings of the host.
//!
//! Nor does a VM whose calls wait behind a job (a dump, a migration) say anything of the others: it keeps one thread, and is not
//! asked again on that line before that comes back.

mod known;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use corefit_core::CpuSet;
use corefit_core::machine::{Lever, LeverKind, MachineError, VmId};

use super::agent_calls::{self as agent, Ask, Opening};
use super::api::{Access, Connection, Domain, Failure, Kind};
use super::definition::Definition;
use super::online::By;
use super::session::{self, Key};
use super::worker::{Crew, NoAnswer, Worker};

/// Longest that one change may take.
pub(super) const PATIENCE: Duration = Duration::from_secs(4);
/// The same of libvirtd while it lets two others wait: so that those that wait do not use up the time of all others.
const SHORT: Duration = Duration::from_secs(1);
/// So many VMs may wait on a line: half of the threads that libvirtd has for all who ask (`max_workers`), so that others can ask as well.
const WAIT: usize = 10;
/// How long an agent may take to answer a command, s.
const ANSWER: i32 = 2;
/// Who did not answer in time is left alone for so long.
const LEFT_ALONE: Duration = Duration::from_secs(30);

/// Who has to answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Whom {
    /// libvirtd alone.
    Libvirtd,
    /// The VM's guest agent, too.
    Guest,
}

/// What changes things.
pub(super) struct Hand {
    uri: String,
    libvirtd: Line,
    guests: Line,
    /// Who did not answer for a VM, and until when he is left alone.
    silent: BTreeMap<(VmId, Whom), Instant>,
    /// What was given up as late; nobody holds it any more once the thread has come back.
    out: BTreeMap<(VmId, Whom), Weak<()>>,
    /// What turned out, when it was tried, not to be there, and when.
    lacks: BTreeMap<VmId, BTreeMap<LeverKind, (Instant, String)>>,
    /// The vCPUs that were online when that was read last.
    online: BTreeMap<VmId, (Instant, CpuSet)>,
    /// How vCPUs are changed, as that turned out.
    ways: BTreeMap<VmId, By>,
    /// VMs whose guests were asked to take vCPUs offline or online.
    asked: BTreeSet<VmId>,
    /// VMs whose guests did not let go of vCPUs in time, and since when.
    letting_go: BTreeMap<VmId, Instant>,
    /// Guests that did not open a file in time.
    opening: BTreeMap<VmId, Opening>,
    /// Guests whose kernels chose among their CPUs by themselves when they said so last.
    choosing: BTreeSet<VmId>,
}

/// A connection with its thread, and those threads before that still hang.
struct Line {
    crew: Crew,
    worker: Option<Worker<Result<Connection, Failure>>>,
}

impl Line {
    fn new() -> Line {
        Line { crew: Crew::of(WAIT), worker: None }
    }
}

/// When whoever asked for something stops waiting for it. Nothing is written after that: he was told that it failed, and
/// may have had something else written since.
#[derive(Clone, Copy, Debug)]
pub(super) struct Until(Instant);

impl Until {
    /// Begins now.
    pub(super) fn after(patience: Duration) -> Until {
        Until(Instant::now() + patience)
    }

    /// Whether somebody waits still. To be asked before each write.
    pub(super) fn check(self) -> Result<(), MachineError> {
        if Instant::now() < self.0 {
            Ok(())
        } else {
            Err(MachineError::Gone("it was given up as late".into()))
        }
    }
}

impl Whom {
    /// Who is asked for a lever.
    pub(super) fn of(lever: Lever) -> Whom {
        match lever {
            Lever::Online | Lever::Told => Whom::Guest,
            _ => Whom::Libvirtd,
        }
    }
}

impl Hand {
    pub(super) fn new(uri: &str) -> Hand {
        let (libvirtd, guests) = (Line::new(), Line::new());
        let (silent, out, lacks, online) = Default::default();
        let (ways, asked, letting_go, opening, choosing) = Default::default();
        let uri = uri.into();
        Hand { uri, libvirtd, guests, silent, out, lacks, online, ways, asked, letting_go, opening, choosing }
    }

    /// Its guest answered others at that time: who did not answer here before that is not left alone any more.
    pub(super) fn answered(&mut self, vm: &VmId, at: Instant) {
        let key = (vm.clone(), Whom::Guest);
        if self.silent.get(&key).is_some_and(|until| at + LEFT_ALONE > *until) {
            self.silent.remove(&key);
        }
    }

    /// Who did not answer in time, or lacks something, is asked again.
    pub(super) fn ask_again(&mut self) {
        self.silent.clear();
        self.lacks.clear();
        self.opening.clear();
    }

    /// How long who is asked may take. (One that waits may be a libvirtd that is slow for all.)
    pub(super) fn patience(&self, whom: Whom) -> Duration {
        let waits = self.out.iter().filter(|((_, of), out)| *of == whom && out.strong_count() > 0);
        if whom == Whom::Libvirtd && waits.count() > 1 { SHORT } else { PATIENCE }
    }

    /// Has something done with a domain by a thread that may hang.
    pub(super) fn with<R: Send + 'static>(
        &mut self,
        whom: Whom,
        vm: &VmId,
        job: impl FnOnce(&Domain<'_>, Until) -> Result<R, MachineError> + Send + 'static,
    ) -> Result<R, MachineError> {
        self.within(whom, self.patience(whom), vm, job)
    }

    /// The same, with another patience.
    pub(super) fn within<R: Send + 'static>(
        &mut self,
        whom: Whom,
        patience: Duration,
        vm: &VmId,
        job: impl FnOnce(&Domain<'_>, Until) -> Result<R, MachineError> + Send + 'static,
    ) -> Result<R, MachineError> {
        self.silent.retain(|_, until| *until > Instant::now());
        self.out.retain(|_, out| out.strong_count() > 0);
        let who = (vm.clone(), whom);
        if self.silent.contains_key(&who) {
            let text = "it did not answer in time; it is left alone for half a minute";
            return Err(MachineError::Gone(text.into()));
        }
        if self.out.contains_key(&who) {
            return Err(MachineError::Gone("what was asked of it before is not answered yet".into()));
        }
        let (uuid, id) = key(vm)?;
        let (line, name) = match whom {
            Whom::Libvirtd => (&mut self.libvirtd, "libvirt changes"),
            Whom::Guest => (&mut self.guests, "libvirt guests"),
        };
        if line.worker.is_none() {
            let uri = self.uri.clone();
            let open = move || Some(Connection::open(&uri, Access::Write, 4));
            line.worker = line.crew.start(name, open);
        }
        let Some(worker) = &line.worker else {
            return Err(MachineError::Gone(format!("libvirtd: all threads of {name:?} hang")));
        };
        let until = Until::after(patience);
        let held = Arc::new(());
        let out = Arc::downgrade(&held);
        let answer = worker.call(until.0, move |connection| {
            let _held = held;
            let connection = connection.as_ref().map_err(|error| (broken(error), true))?;
            let domain = connection.domain(&uuid).map_err(|error| (plain(&error), lost(&error)))?;
            if domain.id() != Some(id) {
                return Err((MachineError::Gone("the VM has ended".into()), false));
            }
            until.check().map_err(|late| (late, false))?;
            job(&domain, until).map_err(|error| (error, !connection.answers()))
        });
        match answer {
            Ok(Ok(done)) => Ok(done),
            Ok(Err((error, lost))) => {
                if lost {
                    line.worker = None;
                }
                Err(error)
            }
            Err(NoAnswer::Ended) => {
                line.worker = None;
                Err(MachineError::Gone("libvirt: the thread that changes things has ended".into()))
            }
            Err(NoAnswer::Late) => {
                line.worker = None;
                self.silent.insert(who.clone(), Instant::now() + LEFT_ALONE);
                self.out.insert(who, out);
                let text = format!("no answer within {} s", patience.as_secs());
                Err(MachineError::Gone(text))
            }
        }
    }
}

/// What the domain is now.
pub(super) fn define(domain: &Domain<'_>) -> Result<Definition, MachineError> {
    let xml = domain.xml().map_err(|error| plain(&error))?;
    Definition::parse(&xml).map_err(MachineError::Malformed)
}

/// Asks the agent of a domain, as long as somebody waits. Of one that is not connected, or that the domain does not have, libvirtd says so
/// at once: its definition is not asked for before, which costs more than all that is asked of the agent.
pub(super) fn ask<'a>(domain: &'a Domain<'_>, until: Until) -> Box<Ask<'a>> {
    agent::in_time(until, |command: &str| domain.agent(command, ANSWER).map_err(|error| plain(&error)))
}

fn key(vm: &VmId) -> Result<Key, MachineError> {
    session::key(vm).ok_or_else(|| MachineError::Malformed(format!("{:?} names no libvirt domain", vm.0)))
}

/// Why no vCPU can be taken away.
pub(super) fn stays(why: &str) -> MachineError {
    let text = format!("its vCPUs cannot be taken away: {why}, and all of them were there at its start");
    MachineError::Unsupported(text)
}

/// What a failed call means for the VM.
pub(super) fn plain(error: &Failure) -> MachineError {
    let text = error.text.clone();
    match error.kind {
        Kind::Unsupported => MachineError::Unsupported(text),
        Kind::Denied => MachineError::Denied(text),
        Kind::Malformed => MachineError::Malformed(text),
        Kind::Gone | Kind::NoDomain | Kind::Late => MachineError::Gone(text),
    }
}

fn broken(error: &Failure) -> MachineError {
    MachineError::Gone(format!("libvirtd: {error}"))
}

/// Whether the connection is of no use any more.
fn lost(error: &Failure) -> bool {
    error.kind == Kind::Gone
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::libvirt::sys::VIR_CONNECT_LIST_DOMAINS_ACTIVE;
    use std::sync::{Arc, Mutex};

    /// The test driver's domain.
    pub(super) fn test_vm() -> VmId {
        let connection = Connection::open("test:///default", Access::Read, 4).unwrap();
        let domain = &connection.domains(VIR_CONNECT_LIST_DOMAINS_ACTIVE).unwrap()[0];
        VmId(format!("{}#{}", domain.uuid().unwrap(), domain.id().unwrap()))
    }

    #[test]
    fn guests_that_hang_are_left_alone_and_libvirtd_is_asked_on_however_many_they_are() {
        let (mut hand, vm) = (Hand::new("test:///default"), test_vm());
        let gate = Arc::new(Mutex::new(()));
        let closed = gate.lock().unwrap();
        let hangs = |hand: &mut Hand| {
            let gate = gate.clone();
            let hang = move |_: &Domain<'_>, _| gate.lock().map(drop).map_err(|_| unreachable!());
            hand.within(Whom::Guest, Duration::from_millis(50), &vm, hang).unwrap_err().to_string()
        };
        // As if they were guests of other VMs.
        let all = std::iter::repeat_with(|| {
            hand.silent.clear();
            hand.out.clear();
            hangs(&mut hand)
        });
        let text = all.take(20).find(|text| !text.contains("no answer")).expect("it has no end");
        assert!(text.contains("all threads"), "{text}");
        let name = hand.with(Whom::Libvirtd, &vm, |domain, _| Ok(domain.name()));
        assert_eq!(name, Ok("test".into()));

        drop(closed);
        while hand.guests.crew.len() > 0 {
            std::thread::yield_now();
        }
        assert!(hand.with(Whom::Guest, &vm, |_, _| Ok(())).is_ok());
    }

    #[test]
    fn vms_that_wait_behind_a_job_keep_no_other_from_being_changed_and_are_asked_again_when_that_is_over() {
        let (_file, uri) = session::tests::host(6);
        let connection = Connection::open(&uri, Access::Read, 4).unwrap();
        let all = connection.domains(VIR_CONNECT_LIST_DOMAINS_ACTIVE).unwrap();
        let id = |domain: &Domain<'_>| VmId(format!("{}#{}", domain.uuid().unwrap(), domain.id().unwrap()));
        let vms: Vec<VmId> = all.iter().map(id).collect();

        let mut hand = Hand::new(&uri);
        let gate = Arc::new(Mutex::new(()));
        let closed = gate.lock().unwrap();
        for vm in &vms[..5] {
            let gate = gate.clone();
            let hang = move |_: &Domain<'_>, _| gate.lock().map(drop).map_err(|_| unreachable!());
            let late = hand.within(Whom::Libvirtd, Duration::from_millis(50), vm, hang);
            assert!(matches!(&late, Err(MachineError::Gone(why)) if why.contains("no answer")), "{late:?}");
        }
        hand.ask_again();
        assert_eq!([Whom::Libvirtd, Whom::Guest].map(|whom| hand.patience(whom)), [SHORT, PATIENCE]);
        let waits = hand.with(Whom::Libvirtd, &vms[0], |_, _| Ok(()));
        assert!(
            matches!(&waits, Err(MachineError::Gone(why)) if why.contains("not answered yet")),
            "{waits:?}"
        );
        assert_eq!(hand.within(Whom::Libvirtd, Duration::from_secs(60), &vms[5], |_, _| Ok(())), Ok(()));
        assert_eq!(hand.with(Whom::Guest, &vms[0], |_, _| Ok(())), Ok(()));

        drop(closed);
        while hand.out.values().any(|out| out.strong_count() > 0) {
            std::thread::yield_now();
        }
        assert_eq!(hand.patience(Whom::Libvirtd), PATIENCE);
        assert_eq!(hand.with(Whom::Libvirtd, &vms[0], |_, _| Ok(())), Ok(()));
    }

    #[test]
    fn who_did_not_answer_is_left_alone_for_what_he_is_asked_for_only() {
        let (mut hand, vm) = (Hand::new("test:///default"), test_vm());
        for (late, other) in [(Whom::Guest, Whom::Libvirtd), (Whom::Libvirtd, Whom::Guest)] {
            hand.silent = [((vm.clone(), late), Instant::now() + LEFT_ALONE)].into();
            let refused = hand.with(late, &vm, |_, _| Ok(()));
            assert!(
                matches!(&refused, Err(MachineError::Gone(why)) if why.contains("left alone")),
                "{refused:?}"
            );
            assert_eq!(hand.with(other, &vm, |_, _| Ok(())), Ok(()));
            hand.ask_again();
            assert_eq!(hand.with(late, &vm, |_, _| Ok(())), Ok(()));
        }
        // It answers whoever looks at it: since then, or before.
        let (now, second) = (Instant::now(), Duration::from_secs(1));
        for (at, left) in [(now.checked_sub(second).unwrap(), true), (now + second, false)] {
            hand.silent = [((vm.clone(), Whom::Guest), now + LEFT_ALONE)].into();
            hand.answered(&vm, at);
            assert_eq!(hand.with(Whom::Guest, &vm, |_, _| Ok(())).is_err(), left);
        }
    }

    #[test]
    fn a_job_that_begins_when_nobody_waits_any_more_is_not_done() {
        let (mut hand, vm) = (Hand::new("test:///default"), test_vm());
        let crew = hand.libvirtd.crew.clone();
        let (tell, told) = std::sync::mpsc::channel();
        let job = move |_: &Domain<'_>, _| tell.send(()).map_err(|_| unreachable!());
        let late = hand.within(Whom::Libvirtd, Duration::ZERO, &vm, job);
        assert!(matches!(late, Err(MachineError::Gone(_))), "{late:?}");
        drop(hand);
        while crew.len() > 0 {
            std::thread::yield_now();
        }
        assert!(told.recv().is_err(), "it was done");
    }

    #[test]
    fn guests_are_asked_for_what_is_theirs_only() {
        let of_guests = [Lever::Online, Lever::Told];
        let of_host = [Lever::Weight, Lever::Quota, Lever::Affinity(1), Lever::Nodes];
        assert!(of_guests.iter().all(|lever| Whom::of(*lever) == Whom::Guest));
        assert!(of_host.iter().all(|lever| Whom::of(*lever) == Whom::Libvirtd));
    }
}

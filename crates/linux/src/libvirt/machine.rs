//! The machine itself: one look, put together.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use corefit_core::machine::{
    Fixed, LeverKind, Limit, Machine, MachineError, Snapshot, State, VcpuState, VmId, VmState,
};
use corefit_core::{CpuSet, Time, Unread, What};
use rustix::process::{Resource, getrlimit, setrlimit};

use super::Options;
use super::agent::Agents;
use super::agent_turns::RESTS;
use super::api::{Access, Connection, named, virsh};
use super::asked::{Asked, defined};
use super::events::Changed;
use super::hand::Hand;
use super::limit;
use super::local::Local;
use super::owner::Owner;
use super::pins::Pcpus;
use super::session::{self, Key, Look, Seen, Session, Subject};
use super::vcpus::{known_online, leave_out, offline};
use super::worker::{self, Crew, NoAnswer, Worker};
use crate::host::{HostReader, VmCounters, VmGroup};
use crate::root::{ReadError, Root};
use crate::slice::{self, Slicer};

/// A domain during whose asking libvirtd hung is not asked about for so long.
const BLAME: Duration = Duration::from_secs(30);
/// As many files as are kept open at the most, twice.
const FILES: u64 = 16_384;

/// A host of VMs.
pub(super) struct LibvirtMachine {
    uri: String,
    options: Options,
    crew: Crew,
    worker: Option<Worker<Result<Session, MachineError>>>,
    subject: Subject,
    /// Domains whose definitions are to be asked for again.
    changed: Changed,
    /// A look that libvirtd has not answered yet, and since when.
    pending: Option<(Instant, Receiver<Result<Look, MachineError>>)>,
    /// The VMs that the latest look found, and those that it could not read, where the host is this machine.
    last: Option<(Vec<Seen>, Vec<Unread>)>,
    /// Another connection, to ask whether anybody is there.
    bell: Option<Worker<Connection>>,
    bell_crew: Crew,
    /// UUIDs of domains that are not asked about, and until when.
    pub(super) blamed: BTreeMap<String, Instant>,
    pub(super) agents: Option<Agents>,
    /// What the vCPUs of each VM had done at the last look, and when that was.
    did: BTreeMap<Key, u64>,
    did_at: Time,
    /// The tree of this machine, where the host is this one.
    host: Option<HostReader>,
    pub(super) local: Local,
    pub(super) hand: Hand,
    /// VMs that changed, and that the last look had no time to ask about; what their owners want by what it shows.
    pub(super) outdated: BTreeMap<VmId, Owner>,
    /// pCPUs of the host when it was looked at last.
    pub(super) pcpus: Pcpus,
}

impl LibvirtMachine {
    pub(super) fn new(uri: &str, options: Options) -> LibvirtMachine {
        let agents = options.guests.map(|every| Agents::new(uri, every));
        LibvirtMachine {
            uri: uri.into(),
            crew: Crew::default(),
            worker: None,
            subject: Subject::default(),
            changed: Changed::default(),
            pending: None,
            last: None,
            bell: None,
            bell_crew: Crew::default(),
            blamed: BTreeMap::new(),
            agents,
            did: BTreeMap::new(),
            did_at: Time(0),
            host: None,
            local: Local::default(),
            hand: Hand::new(uri),
            outdated: BTreeMap::new(),
            pcpus: Pcpus::default(),
            options,
        }
    }

    /// As it was given.
    pub(super) fn uri(&self) -> &str {
        &self.uri
    }

    /// This machine's control groups.
    pub(super) fn host(&mut self) -> Result<&HostReader, MachineError> {
        opened(&mut self.host).map(|host| &*host)
    }

    /// The control group of a vCPU, as the last look found it.
    pub(super) fn vcpu_group(&self, vm: &VmId, vcpu: u32) -> Result<String, MachineError> {
        let none =
            || MachineError::Unsupported(format!("vCPU {vcpu} has no control group that can be seen here"));
        self.local.vcpu_group(vm, vcpu).ok_or_else(none)
    }

    /// The control group of the helper threads of a VM, as the last look found it.
    pub(super) fn helper_group(&self, vm: &VmId) -> Result<String, MachineError> {
        let none = || {
            MachineError::Unsupported("its helper threads have no control group that can be seen here".into())
        };
        self.local.helper_group(vm).ok_or_else(none)
    }

    /// Whether the process of a VM is none of this machine's, or is hidden: one that the last look missed may be here.
    pub(super) fn is_elsewhere(&self, vm: &VmId) -> bool {
        let key = session::key(vm);
        let shown = |seen: &Seen| Some(&seen.key) == key.as_ref();
        let missed = self.last.as_ref().is_some_and(|(vms, _)| !vms.iter().any(shown));
        !missed && !self.local.sees(vm)
    }

    /// The thread of a vCPU that has a slice, as the last look found it.
    pub(super) fn vcpu_thread(&self, vm: &VmId, vcpu: u32) -> Result<u32, MachineError> {
        let thread = self.local.vcpu_thread(vm, vcpu);
        let none = || MachineError::Gone(format!("vCPU {vcpu} has no thread that can be seen here"));
        let thread = thread.ok_or_else(none)?;
        if slice::has(thread) {
            return Ok(thread);
        }
        let text =
            format!("the thread of vCPU {vcpu} has no slice: it is real-time, has deadlines, or SCHED_IDLE");
        Err(MachineError::Unsupported(text))
    }

    /// The control group of a VM into which libvirt writes its limit, as the last look found it, and the limit.
    pub(super) fn limited_group(&mut self, vm: &VmId) -> Result<(String, Limit), MachineError> {
        let none = || MachineError::Unsupported("it has no control group that can be seen here".into());
        let group = self.local.limited_group(vm).ok_or_else(none)?;
        let limit = self.host()?.limit(&group)?;
        Ok((group, limit))
    }

    /// The vCPUs of a VM were read.
    pub(super) fn stirs(&self, vm: &VmId) {
        if let (Some(agents), Some(key)) = (&self.agents, session::key(vm)) {
            agents.stirs(&key);
        }
    }

    /// The vCPUs of a VM were changed.
    pub(super) fn resized(&self, vm: &VmId) {
        if let (Some(agents), Some(key)) = (&self.agents, session::key(vm)) {
            agents.changed(&key);
        }
    }

    /// What is set for a VM was changed: the next look asks for it, though libvirt may not have said so yet.
    pub(super) fn changed(&mut self, vm: &VmId) {
        if let Some((uuid, _)) = session::key(vm) {
            self.changed.add(uuid);
        }
        if let (Some(group), Some(host)) = (self.local.changed(vm), &mut self.host) {
            host.reread(&group);
        }
    }

    /// What libvirtd says, by the deadline. A connection that broke is replaced at once, one that
    /// hangs is given up.
    fn look(&mut self, deadline: Instant) -> Result<Look, MachineError> {
        self.blamed.retain(|_, until| *until > Instant::now());
        let fresh = self.worker.is_none();
        match self.look_once(deadline) {
            Err(Some(_)) if !fresh => {
                self.worker = None;
                self.look_once(deadline)
            }
            other => other,
        }
        .map_err(|error| {
            self.worker = None;
            self.pending = None;
            error.unwrap_or_else(|| self.hangs())
        })
    }

    /// `Err(None)`: no answer in time.
    fn look_once(&mut self, deadline: Instant) -> Result<Look, Option<MachineError>> {
        let left = deadline.saturating_duration_since(Instant::now());
        // With something to fall back on, half of the time is for finding out whether that is right.
        let share = if self.last.is_some() { 2 } else { 1 };
        let until = Instant::now() + left / share;
        if let Some((since, answer)) = self.pending.take() {
            match worker::wait(&answer, until) {
                Ok(Ok(look)) => self.remember(&look),
                Ok(Err(_)) => {}
                Err(NoAnswer::Ended) => self.worker = None,
                Err(NoAnswer::Late) => {
                    self.pending = Some((since, answer));
                    return self.fall_back(deadline);
                }
            }
        }
        if self.worker.is_none() {
            self.connect();
        }
        let Some(worker) = &self.worker else { return Err(None) };
        let skip: BTreeSet<String> = self.blamed.keys().cloned().collect();
        let enough = Instant::now() + left / (2 * share);
        let uri = self.uri.clone();
        let job = move |session: &mut Result<Session, MachineError>| match session {
            Ok(session) => session.look(enough, &skip).map_err(|error| error.machine(&uri)),
            Err(error) => Err(error.clone()),
        };
        let asked = Instant::now();
        let Ok(answer) = worker.ask(job) else { return Err(Some(self.ended())) };
        match worker::wait(&answer, until) {
            Ok(Ok(look)) => {
                self.remember(&look);
                Ok(look)
            }
            Ok(Err(error)) => Err(Some(error)),
            Err(NoAnswer::Ended) => Err(Some(self.ended())),
            Err(NoAnswer::Late) => {
                self.pending = Some((asked, answer));
                self.fall_back(deadline)
            }
        }
    }

    /// Has another session opened.
    fn connect(&mut self) {
        let seconds = i32::try_from(self.options.timeout.as_secs()).unwrap_or(i32::MAX).max(2);
        self.subject = Subject::default();
        self.changed = Changed::default();
        // What changed till it is told so is not known.
        let vms = self.last.iter_mut().flat_map(|(vms, _)| vms);
        vms.for_each(|vm| vm.outdated = true);
        let (uri, subject, changed) = (self.uri.clone(), self.subject.clone(), self.changed.clone());
        let open = move || Some(Session::open(&uri, seconds, subject, changed));
        self.worker = self.crew.start("libvirt", open);
    }

    /// What later looks fall back on. One that came late is newer than what there was.
    fn remember(&mut self, look: &Look) {
        self.last = look.local.then(|| (look.vms.clone(), look.unread.clone()));
        self.changed.shows();
    }

    /// While a domain starts or ends, libvirtd makes those wait who ask for any. If it answers
    /// otherwise, and the host is this one, the VMs are those of before, and so are those that could not
    /// be read: what is new counts as something else that runs here, and what has ended is seen to have.
    fn fall_back(&mut self, deadline: Instant) -> Result<Look, Option<MachineError>> {
        let patient = self.pending.as_ref().is_some_and(|(since, _)| since.elapsed() < BLAME);
        if let Some((mut vms, unread)) = self.last.clone()
            && patient
            && self.answers(deadline)
        {
            let mut changed = self.changed.not_shown();
            changed.extend(self.subject.lock().ok().and_then(|subject| subject.clone()));
            vms.iter_mut().for_each(|vm| vm.outdated |= changed.contains(&vm.key.0));
            // Without how long ago: it is said once while it is so.
            let note = "libvirtd is busy with a VM: which VMs there are is what it said before that";
            return Ok(Look { local: true, vms, unread, notes: vec![note.into()], ..Look::default() });
        }
        let subject = self.subject.lock().ok().and_then(|mut subject| subject.take());
        self.blamed.extend(subject.map(|uuid| (uuid, Instant::now() + BLAME)));
        Err(None)
    }

    /// Whether libvirtd answers on another connection.
    fn answers(&mut self, deadline: Instant) -> bool {
        if self.bell.is_none() {
            let uri = self.uri.clone();
            let open = move || Connection::open(&uri, Access::Read, 2).ok();
            self.bell = self.bell_crew.start("libvirt bell", open);
        }
        let answer = self.bell.as_ref().map(|bell| bell.call(deadline, |connection| connection.answers()));
        if answer != Some(Ok(true)) {
            self.bell = None;
        }
        answer == Some(Ok(true))
    }

    /// Not libvirtd's fault.
    fn ended(&self) -> MachineError {
        let text =
            format!("{}: the thread that asks libvirtd has ended; please report why", named(&self.uri));
        MachineError::Gone(text)
    }

    fn hangs(&self) -> MachineError {
        MachineError::Gone(format!(
            "{}: libvirtd does not answer within {:?} (is it stopped, or busy? `{}` asks it, too)",
            named(&self.uri),
            self.options.timeout,
            virsh(&self.uri)
        ))
    }

    /// The VMs of this machine, with the tree that they are in and what competes with them.
    fn here(&mut self, seen: &[Seen], snapshot: &mut Snapshot) -> Result<Vec<(Key, VmState)>, MachineError> {
        let host = opened(&mut self.host)?;
        let now = Root::live().now().map_err(malformed)?;
        let groups = self.local.refresh(host, seen, now);
        let paths: Vec<String> = groups.iter().flatten().cloned().collect();
        let view = host.look(&paths, VmCounters::Skip).map_err(malformed)?;
        (snapshot.at, snapshot.pcpus, snapshot.groups) = (view.at, view.pcpus, view.groups);
        (snapshot.caches, snapshot.uncounted) = (view.caches, view.uncounted);
        snapshot.vms = view.others;
        snapshot.unread.extend(view.unread);
        let (pcpus, offline) = snapshot.pcpu_sets();
        let by_path: BTreeMap<&str, &VmGroup> = view.vms.iter().map(|vm| (vm.path.as_str(), vm)).collect();
        let slicer = Slicer::now().ok();
        let mut vms = Vec::with_capacity(seen.len());
        for (seen, path) in seen.iter().zip(&groups) {
            let mut vm = plain(seen, (&pcpus, &offline));
            if !self.local.fill(&seen.key, &mut vm, &pcpus, &mut snapshot.unread, &mut snapshot.notes) {
                continue; // Its process ended after libvirtd was asked.
            }
            vm.cache = self.local.cache(&seen.key, &view.monitors);
            vm.slices = slicer.map(|slicer| slicer.view(self.local.vcpu_threads(&seen.key)));
            let limited =
                |vcpu: &VcpuState| vcpu.quota.as_ref().is_some_and(|quota| quota.quota_us.is_some());
            for (number, vcpu) in (0..).zip(&mut vm.vcpus).filter(|(_, vcpu)| limited(vcpu)) {
                let group = self.local.vcpu_group(&vm.id, number);
                vcpu.throttled = group.and_then(|group| host.throttled(&group));
            }
            match path.as_ref().and_then(|path| by_path.get(path.as_str())) {
                Some(group) => {
                    vm.parent = group.parent.clone();
                    vm.weight = group.weight.or(vm.weight);
                    let inner = self.local.inner(&seen.key);
                    limit::fill(&mut vm, group, inner, |path| host.throttled(path));
                    vm.unread.extend(&group.unread);
                }
                None if seen.pid.is_some() => snapshot.unread.push(Unread {
                    what: What::Ancestors,
                    path: format!("VM {:?}", vm.name),
                    why: "it has no control group of its own that can be seen here".into(),
                }),
                None => {}
            }
            vms.push((seen.key.clone(), vm));
        }
        if seen.iter().any(|seen| seen.definition.emulated) {
            let note = "some VMs are emulated (TCG): what their vCPUs use includes the emulation";
            snapshot.notes.push(note.into());
        }
        Ok(vms)
    }

    /// Takes what the guests said last, and has them asked.
    fn guests(&mut self, vms: &mut [(Key, VmState)], seen: &[Seen], snapshot: &mut Snapshot) {
        let Some(agents) = &mut self.agents else { return };
        let connected = |s: &&Seen| s.runs && s.definition.agent == Some(true);
        let did = std::mem::take(&mut self.did);
        self.did = vms.iter().filter_map(|(key, vm)| Some((key.clone(), done(vm)?))).collect();
        let over = snapshot.at.since(self.did_at);
        self.did_at = snapshot.at;
        let most = u64::try_from((over / RESTS).as_nanos()).unwrap_or(0);
        agents.see(vms.iter().map(|(key, _)| {
            let more = did.get(key).zip(self.did.get(key)).map(|(then, now)| now.saturating_sub(*then));
            (key, more.is_some_and(|more| more <= most))
        }));
        agents.ask(&seen.iter().filter(connected).map(|s| s.key.clone()).collect::<Vec<_>>());
        let closed = agents.closed();
        snapshot.notes.extend(closed.clone());
        let seen: BTreeMap<&Key, &Seen> = seen.iter().map(|seen| (&seen.key, seen)).collect();
        for (key, vm) in vms.iter_mut() {
            let Some(seen) = seen.get(key) else { continue };
            let why = match (seen.definition.agent, seen.runs, &closed) {
                (None, ..) | (_, false, _) => continue,
                (Some(false), ..) => "its guest agent is not connected".into(),
                (.., Some(closed)) => closed.clone(),
                (Some(true), true, None) => match agents.latest(key) {
                    Ok(view) => {
                        vm.guest = view;
                        // It says what it likes: more vCPUs than it can have are nobody's.
                        if let Some(guest) = &mut vm.guest {
                            guest.vcpus.truncate(vm.vcpus.len());
                        }
                        if let Some(at) = agents.answered(key) {
                            self.hand.answered(&vm.id, at);
                        }
                        if let Some(at) = agents.opened(key) {
                            self.hand.opens(&vm.id, at);
                        }
                        let work = vm.guest.as_ref().and_then(|guest| guest.work);
                        let units = work.map(|(units, _)| crate::float(units));
                        (vm.progress, vm.progress_at) = (units, work.map(|(_, at)| at));
                        offline(vm);
                        continue;
                    }
                    Err(why) => why,
                },
            };
            snapshot.unread.push(Unread { what: What::Guest, path: format!("VM {:?}", vm.name), why });
        }
    }
}

/// What the vCPUs of a VM ran and waited so far, ns; `None` where that of one is not known.
fn done(vm: &VmState) -> Option<u64> {
    let all = vm.vcpus.iter().filter(|vcpu| vcpu.online || vcpu.counters.run_ns.is_some());
    all.map(|vcpu| Some(vcpu.counters.run_ns?.saturating_add(vcpu.counters.wait_ns?))).sum()
}

/// The control groups of this machine, opened if need be.
fn opened(host: &mut Option<HostReader>) -> Result<&mut HostReader, MachineError> {
    match host {
        Some(host) => Ok(host),
        None => {
            room_for_files();
            Ok(host.insert(HostReader::open(Root::live()).map_err(malformed)?))
        }
    }
}

/// Lets this process keep a file open for each thread of each VM, as far as it may.
fn room_for_files() {
    let mut limit = getrlimit(Resource::Nofile);
    let most = limit.maximum.unwrap_or(FILES).min(FILES);
    if limit.current.is_some_and(|now| now < most) {
        limit.current = Some(most);
        // Without, files are opened for each reading.
        let _ = setrlimit(Resource::Nofile, limit);
    }
}

fn id((uuid, number): &Key) -> VmId {
    VmId(format!("{uuid}#{number}"))
}

/// A domain as its definition has it.
fn plain(seen: &Seen, pcpus: (&CpuSet, &CpuSet)) -> VmState {
    let mut vm = defined(&seen.definition, pcpus);
    vm.id = id(&seen.key);
    vm.name = seen.name.clone();
    let owner = seen.definition.owner.of(&seen.name);
    (vm.hands_off, vm.wishes, vm.unclear) = (owner.hands_off, owner.wishes, owner.unclear);
    vm.state = if seen.runs { State::Running } else { State::Paused };
    vm
}

/// A host that only libvirt can tell about.
fn elsewhere(
    seen: &[Seen],
    asked: Asked,
    snapshot: &mut Snapshot,
) -> Result<Vec<(Key, VmState)>, MachineError> {
    snapshot.at = Root::live().now().map_err(malformed)?;
    snapshot.pcpus = asked.pcpus.clone();
    snapshot.uncounted =
        Some("counters of caches of a host whose files cannot be read here are not asked for".into());
    let (pcpus, offline) = snapshot.pcpu_sets();
    let note = "the host's files cannot be read here: VMs count as if all were at the top of its tree, \
                and what else runs there is not seen";
    snapshot.notes.push(note.into());
    let state = |seen: &Seen| {
        let mut vm = plain(seen, (&pcpus, &offline));
        asked.fill(&seen.key.0, &mut vm);
        (seen.key.clone(), vm)
    };
    Ok(seen.iter().map(state).collect())
}

fn malformed(error: ReadError) -> MachineError {
    MachineError::Malformed(error.to_string())
}

impl Machine for LibvirtMachine {
    fn name(&self) -> String {
        named(&self.uri)
    }

    fn observe(&mut self) -> Result<Snapshot, MachineError> {
        let look = self.look(Instant::now() + self.options.timeout)?;
        let mut snapshot = Snapshot { unread: look.unread, notes: look.notes.clone(), ..Snapshot::default() };
        let mut vms = if look.local {
            self.here(&look.vms, &mut snapshot)?
        } else {
            elsewhere(&look.vms, look.asked.unwrap_or_default(), &mut snapshot)?
        };
        self.guests(&mut vms, &look.vms, &mut snapshot);
        let outdated = look.vms.iter().filter(|seen| seen.outdated);
        self.outdated = outdated.map(|seen| (id(&seen.key), seen.definition.owner.clone())).collect();
        if !self.outdated.is_empty() && look.notes.is_empty() {
            let note =
                "libvirtd is slow: what is set for some VMs, which changed, is what it said before that";
            snapshot.notes.push(note.into());
        }
        let here: BTreeSet<&VmId> = vms.iter().map(|(_, vm)| &vm.id).collect();
        // Who is only missed is as he was.
        let lacks = snapshot.may_lack_vms();
        self.hand.retain(|id| lacks || here.contains(id));
        let seen: BTreeMap<&Key, &Seen> = look.vms.iter().map(|seen| (&seen.key, seen)).collect();
        for (key, vm) in &mut vms {
            let Some(seen) = seen.get(key) else { continue };
            vm.fixed.extend(self.hand.fixed(&vm.id, &seen.definition));
            vm.cold = self.hand.cold(&vm.id, &seen.definition);
            if vm.slices.is_none() && vm.fixed(LeverKind::Slice).is_none() {
                vm.fixed.push(Fixed { lever: LeverKind::Slice, reason: slice::none().into() });
            }
            if let Some(online) = self.hand.online(&vm.id) {
                known_online(vm, online);
            }
            leave_out(vm, &seen.definition);
        }
        snapshot.vms.extend(vms.into_iter().map(|(_, vm)| vm));
        let (all, offline) = snapshot.pcpu_sets();
        let refused = look.local && self.host.as_ref().is_some_and(HostReader::takes_online_only);
        self.pcpus = Pcpus { all, offline, refused };
        Ok(snapshot)
    }

    fn pass(&mut self, time: Duration) -> Result<bool, MachineError> {
        std::thread::sleep(time);
        Ok(true)
    }
}

#[cfg(test)]
impl LibvirtMachine {
    /// As if it were this host, and the last look had missed one, and shown these.
    pub(super) fn missed_but(&mut self, shown: &[Key]) {
        let seen = |key: &Key| Seen {
            key: key.clone(),
            name: String::new(),
            runs: true,
            definition: std::sync::Arc::default(),
            version: 1,
            pid: None,
            outdated: false,
        };
        let why = "not asked for yet".into();
        let unread = Unread { what: What::Siblings, path: "VM \"a\"".into(), why };
        self.last = Some((shown.iter().map(seen).collect(), vec![unread]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::libvirt::online::By;

    #[test]
    fn how_a_vm_that_a_look_misses_was_changed_is_not_forgotten() {
        let options = Options { timeout: Duration::from_secs(60), ..Options::default() };
        let mut machine = LibvirtMachine::new("test:///default", options.clone());
        let id = machine.observe().unwrap().vms.remove(0).id;
        let (uuid, _) = session::key(&id).unwrap();
        let ended = VmId(format!("{uuid}#99"));
        // Of a new connection, by which it was never asked for.
        let mut machine = LibvirtMachine::new("test:///default", options);
        for id in [&id, &ended] {
            machine.hand.saw(id, &CpuSet::first(2), By::Agent);
            machine.hand.changes(id);
        }
        machine.blamed.insert(uuid, Instant::now() + Duration::from_secs(600));
        let mut forgotten = |lacks| {
            let snapshot = machine.observe().unwrap();
            assert_eq!((snapshot.may_lack_vms(), snapshot.vms.is_empty()), (lacks, lacks));
            machine.blamed.clear();
            [&id, &ended].map(|id| machine.hand.goes(id, By::Unheard).is_ok())
        };
        assert_eq!(forgotten(true), [false, false]);
        assert_eq!(forgotten(false), [false, true]);
    }

    #[test]
    fn vms_that_could_not_be_read_before_libvirtd_was_busy_are_still_missed() {
        let mut machine = LibvirtMachine::new("test:///default", Options::default());
        machine.missed_but(&[]);
        let (_unanswered, answer) = std::sync::mpsc::channel();
        machine.pending = Some((Instant::now(), answer));
        let until = Instant::now() + Duration::from_secs(60);
        let look = machine.fall_back(until).unwrap();
        let snapshot = Snapshot { unread: look.unread, ..Snapshot::default() };
        assert!(snapshot.may_lack("a") && snapshot.may_lack_vms());
        // What changed meanwhile is not shown, and nobody knows what did of whom it hangs at.
        machine.missed_but(&["a", "b", "c"].map(|uuid| (uuid.into(), 1)));
        machine.changed.add("a".into());
        *machine.subject.lock().unwrap() = Some("b".into());
        let look = machine.fall_back(until).unwrap();
        let outdated = |look: &Look| look.vms.iter().map(|seen| seen.outdated).collect::<Vec<_>>();
        assert_eq!(outdated(&look), [true, true, false]);
        // It was asked about, but nothing has shown it.
        machine.changed.asks("a");
        assert_eq!(outdated(&machine.fall_back(until).unwrap()), [true, true, false]);
        let seen = machine.last.clone().unwrap().0;
        machine.remember(&Look { local: true, vms: seen, ..Look::default() });
        assert_eq!(outdated(&machine.fall_back(until).unwrap()), [false, true, false]);
        // Nobody is told of what changes between two sessions.
        machine.connect();
        assert_eq!(outdated(&machine.fall_back(until).unwrap()), [true; 3]);
        machine.missed_but(&[]);
        // All were read by a look that was late, and the next one is as late.
        let (answered, answer) = std::sync::mpsc::channel();
        answered.send(Ok(Look { local: true, ..Look::default() })).unwrap();
        machine.pending = Some((Instant::now(), answer));
        machine.worker = machine.crew.start("libvirt", || Some(Err(MachineError::Gone("none".into()))));
        let (begins, begun) = std::sync::mpsc::channel::<()>();
        let busy = machine.worker.as_ref().unwrap().ask(move |_| begun.recv().unwrap_or(()));
        let look = machine.look_once(Instant::now() + Duration::from_secs(2)).unwrap();
        assert!(look.unread.is_empty(), "{:?}", look.unread);
        drop((begins, busy));
    }
}

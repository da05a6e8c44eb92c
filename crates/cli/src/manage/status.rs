//! What the daemon tells of itself: `corefit status` asks its socket and prints what it says.

mod absent;
mod setting;
mod socket;

use std::io::Read as _;
use std::ops::{Deref, DerefMut};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use corefit_core::check::count;
use corefit_core::decide::{Given, Policy, Step};
use corefit_core::machine::{VmEstimate, VmId, VmState};
use corefit_core::{CpuSet, Cpus};
use serde::{Deserialize, Serialize};

use absent::unanswered;
pub(crate) use setting::Setting;
use socket::socket;
pub(crate) use socket::{Socket, answers, serve};

use super::config::StateArg;
use super::journal::{Entry, settings as named};
use super::{Boot, Journal, Keeper, present};
use crate::alike::alike;
use crate::lines;
use crate::printable;
use crate::table::Table;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// The longest answer that is read.
const MOST: u64 = 64 << 20;

/// The daemon, as of its last step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Status {
    /// Of the machine.
    pub(crate) machine: String,
    /// Whether it changes settings.
    pub(crate) applies: bool,
    /// Looks at the machine, those that failed included.
    pub(crate) steps: u64,
    /// How long the last step took, seconds; `None`: there was none.
    #[serde(default)]
    pub(crate) step_s: Option<f64>,
    /// How long ago it was when this was asked for, seconds; `None`: there was none.
    #[serde(default)]
    pub(crate) age_s: Option<f64>,
    /// When it was.
    #[serde(skip)]
    pub(crate) stepped: Option<Instant>,
    /// Why the machine cannot be looked at now.
    pub(crate) trouble: Option<String>,
    /// That the configuration was refused when it was read again last, or a part of it once the machine could be looked at: what counts
    /// instead, and why. `None`: it was not.
    #[serde(default)]
    pub(crate) config_refused: Option<String>,
    pub(crate) vms: Vec<VmStatus>,
    /// What is so now, but for what its VMs say themselves (`left_alone`, `not_sized`).
    pub(crate) notes: Vec<String>,
}

/// A VM.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct VmStatus {
    pub(crate) name: String,
    /// Tells VMs of one name from each other.
    #[serde(default)]
    pub(crate) id: String,
    /// All that it could have (of a control group that is sized: pCPUs that it had before); `None` while the last look does not show it.
    pub(crate) vcpus: Option<usize>,
    /// Those online; `None` while the guest does not say it.
    pub(crate) online: Option<usize>,
    /// pCPUs, these four over the usual time ([`Step::usual`]); `None` where that is not known.
    pub(crate) entitled: Option<Cpus>,
    pub(crate) available: Option<Cpus>,
    pub(crate) used: Option<Cpus>,
    pub(crate) waiting: Option<Cpus>,
    /// Units of work that its programs have counted; `None`: nobody counts.
    #[serde(default)]
    pub(crate) work: Option<f64>,
    /// pCPUs that it asked for, and that it was granted; `None` where nobody arbitrates.
    #[serde(default)]
    pub(crate) wanted: Option<Cpus>,
    #[serde(default)]
    pub(crate) granted: Option<Cpus>,
    /// It has had less than it wants, was granted or should get for half a minute and more; `None` where that is not known.
    #[serde(default)]
    pub(crate) starves: Option<bool>,
    /// Why it is left alone.
    pub(crate) left_alone: Option<String>,
    /// Why its vCPUs (of a group: its cpuset) stay as they are, where it is not left alone.
    #[serde(default)]
    pub(crate) not_sized: Option<String>,
    /// Settings that are not as they were, and what they were: for people.
    pub(crate) changed: Vec<String>,
    /// The same for programs.
    #[serde(default)]
    pub(crate) settings: Vec<Setting>,
    pub(crate) actions: u64,
    pub(crate) failures: u64,
}

impl VmStatus {
    /// A VM, with what is known of it and what of it is changed. Nothing was done yet. `seen`: what it did, and what it was granted, of the
    /// same step; `offline`: pCPUs of the host.
    pub(crate) fn of(
        vm: &VmState,
        step: &Step,
        (estimate, granted): (Option<&VmEstimate>, Option<&Given>),
        keeper: Option<&Keeper>,
        policy: &Policy,
        offline: &CpuSet,
    ) -> VmStatus {
        let pcpus = |number: u32| Cpus(f64::from(number));
        let settings = keeper.map(|keeper| Setting::all(keeper, &vm.id, Some((vm, offline))));
        let (settings, changed) = settings.unwrap_or_default().into_iter().unzip();
        let excluded = policy.of(&vm.name).exclude == Some(true);
        let excluded = excluded.then(|| policy.who_excludes(&vm.name));
        let fixed = vm.fixed(policy.sized_by(vm));
        let (left_alone, not_sized) = match excluded {
            None if !vm.hands_off && vm.unclear.is_none() => {
                (None, fixed.or_else(|| step.kept.get(&vm.id).map(String::as_str)))
            }
            excluded => (excluded.or(fixed), None),
        };
        VmStatus {
            name: vm.name.clone(),
            id: vm.id.0.clone(),
            vcpus: Some(step.widths.get(&vm.id).copied().unwrap_or(vm.vcpus.len())),
            online: present::online(vm),
            entitled: estimate.and_then(|e| e.entitled),
            available: estimate.and_then(|e| e.available),
            used: estimate.and_then(|e| e.activity.used),
            waiting: estimate.and_then(|e| e.activity.waiting),
            work: vm.progress,
            wanted: granted.map(|granted| pcpus(granted.wants)),
            granted: granted.map(|granted| pcpus(granted.pcpus)),
            starves: step.starves.get(&vm.id).copied(),
            left_alone: left_alone.map(Into::into),
            not_sized: not_sized.map(Into::into),
            changed,
            settings,
            actions: 0,
            failures: 0,
        }
    }

    /// One of which nothing else is known than that something of it is changed.
    pub(super) fn changed(entry: &Entry) -> VmStatus {
        VmStatus { name: entry.name.clone(), id: entry.vm.0.clone(), ..VmStatus::default() }
    }

    /// It cannot be looked at now: what was measured is not known any more; what is changed is, by the journal.
    pub(super) fn unsee(&mut self, keeper: Option<&Keeper>) {
        (self.vcpus, self.online, self.entitled, self.available, self.used) = Default::default();
        (self.waiting, self.work, self.wanted, self.granted, self.starves) = Default::default();
        self.not_sized = None;
        let settings = std::mem::take(&mut self.settings).into_iter();
        let known: Vec<(Setting, String)> = settings.zip(std::mem::take(&mut self.changed)).collect();
        let now = keeper.map(|keeper| Setting::all(keeper, &VmId(self.id.clone()), None));
        let now = now.into_iter().flatten();
        (self.settings, self.changed) = now.map(|now| Setting::or_known(now, &known)).unzip();
    }
}

/// Where the daemon puts its status for those who ask.
#[derive(Clone, Debug, Default)]
pub(crate) struct Board(Arc<Mutex<Arc<Status>>>);

impl Board {
    /// To change it. What somebody was shown before stays as it is.
    pub(crate) fn lock(&self) -> Changing<'_> {
        Changing(self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// As it is now. The daemon does not wait for who reads it, however long or often that is.
    pub(crate) fn shown(&self) -> Arc<Status> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// A status that nobody else changes or asks for meanwhile.
pub(crate) struct Changing<'a>(MutexGuard<'a, Arc<Status>>);

impl Deref for Changing<'_> {
    type Target = Status;

    fn deref(&self) -> &Status {
        &self.0
    }
}

impl DerefMut for Changing<'_> {
    fn deref_mut(&mut self) -> &mut Status {
        Arc::make_mut(&mut self.0)
    }
}

/// What `corefit manage` does now
///
/// Exit status 1 if no daemon answers.
#[derive(clap::Args)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    state: StateArg,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

/// Runs the verb; exit status 1 if no daemon answers.
pub(crate) fn run(args: &StatusArgs) -> Result<ExitCode> {
    let state = args.state.dir()?;
    let path = socket(&state);
    let text = match ask(&path, PATIENCE) {
        Ok(text) => text,
        Err(error) => {
            unanswered(&state, &error).iter().for_each(|line| tell!("corefit: {line}"));
            return Ok(ExitCode::FAILURE);
        }
    };
    let (status, text) = with_left(&state, text)?;
    lines::print(&if args.json { text + "\n" } else { table(&status) })?;
    Ok(ExitCode::SUCCESS)
}

/// What a daemon answers, with what an earlier one left where this one changes nothing, and so holds no journal.
fn with_left(state: &Path, mut text: String) -> Result<(Status, String)> {
    let mut status: Status = serde_json::from_str(&text).context("the daemon's answer makes no sense")?;
    if !status.applies
        && let Some(note) = in_words(journaled(state))
    {
        status.notes.push(note);
        text = serde_json::to_string(&status)?;
    }
    Ok((status, text))
}

/// What an earlier run left, or why that is not known.
fn in_words(left: Result<Option<[String; 2]>>) -> Option<String> {
    match left {
        Ok(left) => {
            left.map(|[left, remedy]| format!("an earlier run left {left} changed; {remedy} puts that back"))
        }
        Err(error) => Some(format!("whether an earlier run left settings changed is not known: {error:#}")),
    }
}

/// The machine of the daemon with this state directory; `None`: none is at work, or it only looks.
pub(crate) fn works_on(state: &Path) -> Option<String> {
    #[derive(Deserialize)]
    struct Daemon {
        machine: String,
        applies: bool,
    }
    let text = ask(&socket(state), PATIENCE).ok()?;
    let daemon: Daemon = serde_json::from_str(&text).ok()?;
    daemon.applies.then_some(daemon.machine)
}

/// What comes from a daemon's socket.
fn ask(path: &Path, patience: Duration) -> std::io::Result<String> {
    let stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(patience))?;
    let mut text = String::new();
    stream.take(MOST).read_to_string(&mut text)?;
    if text.is_empty() {
        // Many ask at once, and who comes then is hung up on.
        return Err(std::io::ErrorKind::TimedOut.into());
    }
    Ok(text)
}

/// What a daemon that answers no more left changed, and what puts it back.
///
/// # Errors
/// If its journal cannot be read.
pub(crate) fn left(state: &Path) -> Result<Option<[String; 2]>> {
    Ok(journaled(state)?.filter(|_| !answers(state)))
}

/// What is changed by the journal, and what puts it back where no daemon does.
fn journaled(state: &Path) -> Result<Option<[String; 2]>> {
    let left = Journal::left(state, &Boot::now(true)?)?.filter(|(_, settings)| *settings > 0);
    Ok(left.map(|(machine, settings)| {
        let remedy = format!("corefit restore --state '{}'", state.display());
        [format!("{} of the machine {machine}", named(settings)), remedy]
    }))
}

fn table(status: &Status) -> String {
    let unknown = |vcpus: Option<usize>| vcpus.map_or("-".into(), |vcpus| vcpus.to_string());
    let amount = |cpus: Option<Cpus>| cpus.map_or("-".into(), |Cpus(cpus)| format!("{cpus:.2}"));
    let arbitrates = status.vms.iter().any(|vm| vm.granted.is_some());
    let granted = arbitrates.then_some(["wanted", "granted"]);
    let mut headings = vec!["VM", "vCPUs", "online", "entitled", "available", "used", "waiting"];
    headings.extend(granted.iter().flatten().copied().chain(["actions", "failures"]));
    let mut table = Table::new(1, &headings);
    for vm in &status.vms {
        let mut cells = vec![printable::text(&vm.name), unknown(vm.vcpus)];
        cells.push(unknown(vm.online));
        cells.extend([vm.entitled, vm.available, vm.used, vm.waiting].map(amount));
        cells.extend(granted.iter().flat_map(|_| [vm.wanted, vm.granted].map(amount)));
        cells.extend([vm.actions.to_string(), vm.failures.to_string()]);
        table.row(cells);
    }
    let steps = count(usize::try_from(status.steps).unwrap_or(usize::MAX), "step");
    let does = if status.applies { "changes settings" } else { "only looks" };
    let age = status.age_s.map_or(String::new(), |age| format!(", the last {age:.0} s ago"));
    let mut text = format!("{}: {does}, {}{age}\n\n{}", status.machine, steps, table.render());
    for line in alike(status.vms.iter().flat_map(said)) {
        text += &format!("{line}\n");
    }
    let trouble = status.trouble.iter().map(|why| format!("cannot look: {why}"));
    let notes = trouble.chain(status.config_refused.iter().cloned()).chain(status.notes.iter().cloned());
    for note in alike(notes) {
        text += &format!("note: {}\n", printable::text(&note));
    }
    text
}

/// What is said of a VM below the table.
fn said(vm: &VmStatus) -> Vec<String> {
    let name = printable::text(&vm.name);
    let starves = (vm.starves == Some(true)).then_some(
        "starves: it has had less than it wants, was granted or should get for half a minute".to_owned(),
    );
    let sized = vm.left_alone.is_none() && vm.not_sized.is_none();
    let kept = (sized && vm.granted == Some(Cpus(0.0)) && vm.online.is_some_and(|online| online > 0)).then_some(
        "granted 0: it is to keep the fewest that it may have, one at least, for no VM is without a vCPU, and no cpuset empty".to_owned(),
    );
    let why = |what: &str, why: &Option<String>| {
        why.as_ref().map(|why| format!("{what}: {}", printable::text(why)))
    };
    let rest = [starves, kept, why("left alone", &vm.left_alone), why("is not sized", &vm.not_sized)];
    vm.changed
        .iter()
        .cloned()
        .chain(rest.into_iter().flatten())
        .map(|what| format!("{name}: {what}"))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use corefit_core::machine::{Fixed, LeverKind, VcpuState};

    use super::absent::silent;
    use super::*;
    use crate::manage::journal::testing::entry;

    #[test]
    fn who_does_not_listen_keeps_nobody_waiting() {
        let dir = tempfile::tempdir().unwrap();
        let board = Board::default();
        let _socket = serve(dir.path(), &board, true).unwrap();
        // More than a socket holds.
        board.lock().notes = vec!["x".repeat(1 << 20)];
        let call = || UnixStream::connect(socket(dir.path())).unwrap();
        let _deaf: Vec<UnixStream> = (0..4).map(|_| call()).collect();
        let said = ask(&socket(dir.path()), PATIENCE / 2).unwrap();
        assert!(said.len() > 1 << 20);
    }

    #[test]
    fn who_reads_keeps_what_was_shown_and_nobody_waiting() {
        let board = Board::default();
        board.lock().steps = 1;
        let read = board.shown();
        board.lock().steps = 2;
        assert_eq!((read.steps, board.shown().steps), (1, 2));
    }

    #[test]
    fn who_takes_the_call_and_says_nothing_is_not_called_absent() {
        let dir = tempfile::tempdir().unwrap();
        let ask = || ask(&socket(dir.path()), Duration::from_millis(1));
        assert!(silent(&ask().unwrap_err()).starts_with("no corefit manage answers there"));
        assert!(silent(&ask().unwrap_err()).contains("or it has ended (its log says why)"));
        drop(UnixListener::bind(socket(dir.path())).unwrap());
        let killed = silent(&ask().unwrap_err());
        assert!(killed.contains("the last one was killed") && !killed.contains("is it running"), "{killed}");
        std::fs::remove_file(socket(dir.path())).unwrap();
        let busy = UnixListener::bind(socket(dir.path())).unwrap();
        let did_not = "the corefit manage there did not answer in 5 s";
        let said = silent(&ask().unwrap_err());
        assert!(said.starts_with(did_not), "{said}");
        // As one of very many.
        let hangs_up = std::thread::spawn(move || busy.incoming().take(2).for_each(drop));
        let said = silent(&super::ask(&socket(dir.path()), PATIENCE).unwrap_err());
        assert!(said.starts_with(did_not), "{said}");
        hangs_up.join().unwrap();
        let said = silent(&std::io::ErrorKind::PermissionDenied.into());
        assert!(!said.contains("running") && said.contains("root"), "{said}");
    }

    #[test]
    fn what_an_earlier_run_left_or_that_it_cannot_be_known_is_said_whether_nobody_or_one_that_only_looks_answers()
     {
        let dir = tempfile::tempdir().unwrap();
        let absent = || unanswered(dir.path(), &std::io::ErrorKind::NotFound.into());
        assert!(absent()[1..].iter().all(|line| line.starts_with("one is at work with another")));
        let mut journal = Journal::open(dir.path(), "host", &Boot::now(true).unwrap()).unwrap();
        journal.write().unwrap();
        let nothing = "by the journal there no setting of the machine host is left changed";
        assert_eq!(absent().last().unwrap(), nothing);
        journal.add(entry("a"));
        journal.write().unwrap();
        drop(journal);
        let left = "an earlier run left 1 setting of the machine host changed; corefit restore --state '";
        assert!(absent().last().unwrap().starts_with(left), "{:?}", absent());
        let notes = |applies: bool| {
            let status = Status { applies, ..Status::default() };
            let (status, text) = with_left(dir.path(), serde_json::to_string(&status).unwrap()).unwrap();
            assert_eq!(serde_json::from_str::<Status>(&text).unwrap(), status, "--json has it, too");
            status.notes
        };
        assert!(notes(false)[0].starts_with(left), "{:?}", notes(false));
        assert_eq!(notes(true), Vec::<String>::new(), "it is its own journal");
        std::fs::write(dir.path().join("journal"), "x").unwrap();
        for note in [absent().pop().unwrap(), notes(false).remove(0)] {
            let why = [
                "whether an earlier run left settings changed is not known: ",
                "journal: damaged (",
                "Remove the file",
            ];
            assert!(why.iter().all(|part| note.contains(part)), "{note}");
        }
        let denied = unanswered(dir.path(), &std::io::ErrorKind::PermissionDenied.into());
        assert!(denied.iter().all(|line| !line.contains("damaged")), "{denied:?}");
    }

    #[test]
    fn the_table_says_what_is_changed_and_what_is_left_alone() {
        let vm = VmStatus {
            name: "web\n".into(),
            changed: vec!["online vCPUs: 0-1, before 0-3".into()],
            left_alone: Some("hands off".into()),
            ..VmStatus::default()
        };
        let table_of = |vm: &VmStatus| table(&Status { vms: vec![vm.clone()], ..Status::default() });
        assert!(!table_of(&vm).contains("granted"), "nobody arbitrates");
        let short =
            VmStatus { wanted: Some(Cpus(4.0)), granted: Some(Cpus(2.0)), starves: Some(true), ..vm.clone() };
        let text = table_of(&short);
        assert!(
            text.contains("granted") && text.contains(" 2.00") && text.contains("web\\n: starves"),
            "{text}"
        );
        let text = table(&Status { vms: vec![vm], machine: "sim".into(), ..Status::default() });
        assert!(
            text.contains("only looks") && text.contains("web\\n: online vCPUs: 0-1, before 0-3"),
            "{text}"
        );
        assert!(text.contains("left alone: hands off"), "{text}");
    }

    #[test]
    fn what_is_so_of_several_is_one_line_and_that_one_stays_of_none_granted_is_said() {
        let vm = |name: &str, granted: f64, online: usize| VmStatus {
            name: name.into(),
            granted: Some(Cpus(granted)),
            online: Some(online),
            not_sized: (name != "a").then(|| "no agent".into()),
            ..VmStatus::default()
        };
        let vms = vec![vm("a", 0.0, 1), vm("b", 1.0, 1), vm("c", 0.0, 8)];
        let text = table(&Status { vms, notes: vec!["a: x".into(), "b: x".into()], ..Status::default() });
        let below: Vec<&str> = text.lines().skip_while(|line| !line.starts_with("a: ")).collect();
        assert!(
            below[0].starts_with("a: granted 0: it is to keep the fewest that it may have, one at least"),
            "{text}"
        );
        assert_eq!(below[1..], ["b and c, each: is not sized: no agent", "note: a and b, each: x"]);
    }

    #[test]
    fn how_old_it_is_is_said_as_of_when_it_is_asked_for() {
        let dir = tempfile::tempdir().unwrap();
        let board = Board::default();
        let _socket = serve(dir.path(), &board, true).unwrap();
        let shown = || serde_json::from_str::<Status>(&ask(&socket(dir.path()), PATIENCE).unwrap()).unwrap();
        assert_eq!(shown().age_s, None);
        board.lock().stepped = Instant::now().checked_sub(Duration::from_secs(4));
        board.lock().steps = 11;
        assert!(shown().age_s.is_some_and(|age| age >= 4.0));
        let text = table(&Status { age_s: Some(4.2), ..shown() });
        assert!(text.contains("11 steps, the last 4 s ago\n"), "{text}");
        let text = table(&Status { steps: 1, ..shown() });
        assert!(text.contains(" 1 step, the last "), "{text}");
    }

    #[test]
    fn what_is_as_before_is_not_called_changed() {
        use corefit_core::machine::{GuestView, Lever, Value, VmId};
        let dir = tempfile::tempdir().unwrap();
        let mut journal = Journal::open(dir.path(), "host", &Boot::now(true).unwrap()).unwrap();
        let vcpus = |list: &str| Value::Vcpus(list.parse().unwrap());
        for (vm, made) in [("same", "0-3"), ("less", "0-1")] {
            let (original, wrote) = (vcpus("0-3"), vec![vcpus(made)]);
            journal.add(Entry { lever: Lever::Online, original, wrote, pending: true, ..entry(vm) });
        }
        let mut keeper = Keeper::new(journal, PATIENCE);
        let changed = |keeper: &Keeper, name: &str, online: bool| {
            let vcpus = vec![VcpuState { online, ..VcpuState::default() }; 4];
            let (id, guest) = (VmId(name.into()), Some(GuestView::default()));
            let vm = VmState { id, name: name.into(), vcpus, guest, ..VmState::default() };
            let (step, policy) = (Step::default(), Policy::default());
            let status = VmStatus::of(&vm, &step, (None, None), Some(keeper), &policy, &CpuSet::default());
            (status.changed.len(), status.settings.len())
        };
        assert_eq!(changed(&keeper, "same", true), (1, 1), "an earlier run left it: it is pending");
        keeper.forget_earlier();
        assert_eq!((changed(&keeper, "same", true), changed(&keeper, "less", true)), ((0, 0), (1, 1)));
        assert_eq!(changed(&keeper, "same", false), (1, 1), "it is not as before");
    }

    /// A guest may let go of a vCPU later, or never.
    #[test]
    fn what_may_yet_come_is_not_called_so_before_a_look_shows_it() {
        use corefit_core::machine::{Lever, Value};
        let dir = tempfile::tempdir().unwrap();
        let mut journal = Journal::open(dir.path(), "host", &Boot::now(true).unwrap()).unwrap();
        let vcpus = |list: &str| Value::Vcpus(list.parse().unwrap());
        let (original, wrote) = (vcpus("0-3"), vec![vcpus("0-3"), vcpus("0-1")]);
        journal.add(Entry { lever: Lever::Online, original, wrote, pending: true, ..entry("a") });
        let mut keeper = Keeper::new(journal, PATIENCE);
        keeper.forget_earlier();
        let changed = |online: usize| {
            let vcpu = |number| VcpuState { online: number < online, ..VcpuState::default() };
            let no_agent = Fixed { lever: LeverKind::Told, reason: "it has no guest agent".into() };
            let (id, vcpus) = (VmId("a".into()), (0..4).map(vcpu).collect());
            let vm = VmState { id, vcpus, fixed: vec![no_agent], ..VmState::default() };
            let (step, policy) = (Step::default(), Policy::default());
            let status = VmStatus::of(&vm, &step, (None, None), Some(&keeper), &policy, &CpuSet::default());
            status.changed
        };
        let before = "before vCPUs 0-3";
        assert_eq!(changed(4), [format!("online vCPUs: asked to be vCPUs 0-1, still vCPUs 0-3, {before}")]);
        assert_eq!(changed(3), [format!("online vCPUs: asked to be vCPUs 0-1, still vCPUs 0-2, {before}")]);
        assert_eq!(changed(2), [format!("online vCPUs: vCPUs 0-1, {before}")]);
    }

    #[test]
    fn a_configuration_that_was_refused_is_named_with_the_reason() {
        let refused = "the configuration was refused: corefit.toml, line 1, key apply: 3 cannot be";
        let text = table(&Status { config_refused: Some(refused.into()), ..Status::default() });
        assert!(text.contains(&format!("\nnote: {refused}\n")), "{text}");
        assert!(!table(&Status::default()).contains("refused"));
    }

    #[test]
    fn who_is_not_sized_is_not_called_left_alone_and_what_is_unknown_is_no_number() {
        let fixed = |lever, why: &str| Fixed { lever, reason: why.into() };
        let vm = VmState {
            name: "a".into(),
            vcpus: vec![VcpuState { online: true, ..VcpuState::default() }; 4],
            fixed: vec![fixed(LeverKind::Online, "its vCPUs cannot be taken away")],
            ..VmState::default()
        };
        let of = |vm: &VmState| {
            let policy = Policy::default();
            VmStatus::of(vm, &Step::default(), (None, None), None, &policy, &CpuSet::default())
        };
        let sized = Step { widths: [(vm.id.clone(), 6)].into(), ..Step::default() };
        let sized = VmStatus::of(&vm, &sized, (None, None), None, &Policy::default(), &CpuSet::default());
        assert_eq!(sized.vcpus, Some(6), "what a control group had before it was sized");
        let silent = of(&vm);
        assert_eq!((silent.left_alone.as_deref(), silent.online), (None, None));
        let text = table(&Status { vms: vec![silent], ..Status::default() });
        let row = text.lines().find(|line| line.starts_with("a  ")).unwrap();
        assert_eq!(row.split_whitespace().take(3).collect::<Vec<_>>(), ["a", "4", "-"]);
        assert!(text.contains("a: is not sized: its vCPUs cannot be taken away\n"), "{text}");
        let hands_off = of(&VmState { hands_off: true, ..vm });
        assert!(hands_off.left_alone.is_some() && hands_off.not_sized.is_none(), "{hands_off:?}");
    }
}

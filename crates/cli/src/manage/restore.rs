//! `corefit restore`: puts back what a daemon changed that could not do so itself.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail};
use corefit_core::machine::{Act, Lever, MachineError, Snapshot};
use corefit_core::{Unread, What};

use super::alone::Alone;
use super::config::StateArg;
use super::keeper::Restored;
use super::{Boot, Journal, Keeper, Passing, journal, status};
use crate::machine::MachineArg;

/// Guests are asked for so long in one try of `corefit restore`, and who does not answer in all at the end of a daemon, but for one call
/// that hangs (a guest's agent takes some seconds to be there again after libvirtd was restarted).
pub(super) const PATIENCE: Duration = Duration::from_secs(20);
/// A libvirtd that is being restarted refuses at once, and a guest whose daemon was killed on the way is silent for some seconds.
pub(super) const BETWEEN_TRIES: Duration = Duration::from_secs(2);
/// How often it is tried if nobody says so.
const TRIES: u32 = 15;

/// Put back everything that corefit changed on this host
///
/// By the journal of a `corefit manage` that was killed, and by the notes that VMs carry which came from another
/// host. What somebody else changed meanwhile stands. A libvirtd or a guest that does not answer is asked again. Exit
/// status 1 if something could not be put back yet, or a VM could not be read.
#[derive(clap::Args)]
pub(crate) struct RestoreArgs {
    #[command(flatten)]
    state: StateArg,
    /// Where the configuration cannot be read, look in /var/lib/corefit: for a daemon that read it when it could be
    #[arg(long)]
    or_default: bool,
    /// Which machine [default: the one of the journal, if it holds settings of this boot, else that of the configuration, else host]
    #[arg(long, value_name = "NAME")]
    machine: Option<String>,
    /// How often it is tried, 2 s apart, while libvirtd does not answer or a guest is late [default: 15, and more often in the minute in
    /// which a guest may yet let go of a vCPU that it was asked for]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    tries: Option<u32>,
}

/// Runs the verb.
pub(crate) fn run(args: &RestoreArgs) -> Result<ExitCode> {
    let state = if args.or_default { args.state.dir_or_usual() } else { args.state.dir()? };
    let boot = Boot::now(true)?;
    let left = Journal::left(&state, &boot)?;
    let found = left.is_some();
    let (left, last) = machines_of(left);
    let of_journal = left.filter(|_| args.machine.is_none());
    // Settings are of the machine that the journal names; any other name is settled as by the daemon.
    let settled = of_journal.is_some();
    let name = of_journal.or_else(|| args.machine.clone()).or_else(|| args.state.machine()).or(last);
    let machine = MachineArg::named(&name.unwrap_or_else(|| "host".into()));
    let not_opened = |error: anyhow::Error| match &args.machine {
        _ if settled => not_its(&state, machine.name(), &error),
        // An option has no place in a file.
        Some(_) => error,
        None => args.state.not_opened(error),
    };
    machine.can_act().map_err(not_opened)?;
    if machine.clock().is_none() {
        if status::answers(&state) {
            let state = state.display();
            bail!(Passing(format!(
                "{state}: another corefit is at work with it; end that one, which puts back what it changed"
            )));
        }
        return Err(not_opened(anyhow!(
            "--machine {}: what is simulated ends with its process, so there is nothing to put back",
            machine.name()
        )));
    }
    let mut work = Work { settled, found, ..Work::new(machine, state, boot) };
    let done = work.tries(args.tries, || std::thread::sleep(BETWEEN_TRIES));
    let mut restored = work.restored;
    if let Err(error) = done {
        restored.waits_for = None;
        // What was done before.
        if restored != Restored::default() {
            show!("{}", sum(&restored));
        }
        return Err(error);
    }
    show!("{}", sum(&restored));
    for text in restored.came.iter().chain(&restored.stand).chain(&restored.pending) {
        tell!("corefit: {}", crate::printable::text(text));
    }
    Ok(if restored.pending.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Why nothing can be changed on the machine that a journal names.
fn not_its(state: &Path, name: &str, error: &anyhow::Error) -> anyhow::Error {
    let (file, why) = (journal::file(state), format!("{error:#}"));
    let why = why.strip_prefix(&format!("--machine {name}: ")).unwrap_or(&why);
    anyhow!("{}: machine {name:?}: {why}", file.display())
}

/// What is put back, in several tries.
pub(super) struct Work {
    machine: MachineArg,
    /// It is not to become another one.
    settled: bool,
    state: PathBuf,
    boot: Boot,
    /// Whether there is a journal.
    found: bool,
    /// The machine once it is open. It stays so between tries, for what it knows of VMs grows.
    pub(super) on: Option<Box<dyn Act>>,
    /// Hold of what is changed there.
    alone: Option<(String, Alone)>,
    pub(super) keeper: Option<Keeper>,
    pub(super) restored: Restored,
}

impl Work {
    /// On a machine that is to be settled yet, with a directory without a journal.
    pub(super) fn new(machine: MachineArg, state: PathBuf, boot: Boot) -> Work {
        let (on, alone, keeper, restored) = Default::default();
        Work { machine, settled: false, state, boot, found: false, on, alone, keeper, restored }
    }

    /// Tries, and `pause`s, and so on, as long as that may help: so often, or as often as usual, and on while a guest may yet let go of
    /// vCPUs.
    pub(super) fn tries(&mut self, tries: Option<u32>, mut pause: impl FnMut()) -> Result<()> {
        let (most, mut until) = (tries.unwrap_or(TRIES), None);
        for left in (0..most).rev().chain(std::iter::repeat(0)) {
            let before = self.lets_go();
            match self.try_once() {
                Ok(()) => {}
                Err(error) => self.missed(error, left == 0)?,
            }
            let Some(text) = self.restored.waits_for.as_deref().map(crate::printable::text) else { break };
            if left == 0 {
                // (Where it may no more since this try, only the next one is sure to be the last.)
                let lets_go = self.lets_go().or(before).filter(|_| tries.is_none());
                let Some(wait) = lets_go.map(|lets_go| lets_go + BETWEEN_TRIES) else { break };
                let first = until.is_none();
                // Who is asked anew has as long again: that is not waited for.
                if Instant::now() >= *until.get_or_insert_with(|| Instant::now() + wait) {
                    break;
                }
                if first {
                    tell!("corefit: {text}; tried again for at most {} s more", wait.as_secs());
                }
            } else if left + 1 == most {
                tell!("corefit: {text}; at most {left} more tries");
            }
            if let Some(machine) = &mut self.on {
                machine.ask_again();
            }
            pause();
        }
        Ok(())
    }

    /// How long a guest may yet let go of vCPUs that are to be put back.
    fn lets_go(&self) -> Option<Duration> {
        let (machine, keeper) = (self.on.as_ref()?, self.keeper.as_ref()?);
        let online = keeper.entries().iter().filter(|entry| entry.lever == Lever::Online);
        online.filter_map(|entry| machine.lets_go(&entry.vm)).max()
    }

    /// One try: what came of it is in `restored`.
    fn try_once(&mut self) -> Result<()> {
        if self.on.is_none() {
            self.on = Some(self.open()?);
        }
        let Some(machine) = &mut self.on else { return Ok(()) };
        let snapshot = machine.observe()?;
        if self.keeper.is_none() && snapshot.vms.iter().any(|vm| vm.kept.is_some()) {
            self.keeper = Some(held(&self.state, &self.machine, &self.boot)?);
        }
        let put_back = |keeper: &mut Keeper| keeper.restore(&mut **machine, &snapshot);
        let mut next = self.keeper.as_mut().map_or_else(Restored::default, put_back);
        if let Some(text) = unread(&snapshot) {
            next.waits_for.get_or_insert_with(|| text.clone());
            next.pending.push(text);
        }
        self.restored.and(next);
        Ok(())
    }

    /// Opens the machine, and takes hold of it and of the journal.
    fn open(&mut self) -> Result<Box<dyn Act>> {
        if !self.settled {
            let missing = |why| match why {
                MachineError::Gone(why) => MachineError::Gone(format!(
                    "QEMUs run here, but libvirt does not answer ({why}), so it is not known what its VMs carry; \
                     --machine cgroups leaves them out"
                )),
                why => why,
            };
            self.machine = self.machine.settled_within(PATIENCE).map_err(missing)?;
            self.settled = true;
        }
        if self.found && self.keeper.is_none() {
            self.keeper = Some(held(&self.state, &self.machine, &self.boot)?);
        }
        let machine = self.machine.open_to_act()?;
        let realm = machine.realm();
        if self.alone.as_ref().is_none_or(|(of, _)| *of != realm) {
            let first = self.alone.take().is_none();
            self.alone = Some((realm.clone(), Alone::with(&realm, &self.state)?));
            if first && !self.found {
                tell!(
                    "corefit: {}: no journal there (--state names another directory), so only VMs that carry a note of what was changed can be put back (that came from another host, or were saved)",
                    self.state.display()
                );
            }
        }
        Ok(machine)
    }

    /// A try came to nothing: that may be otherwise the next time where somebody did not answer.
    fn missed(&mut self, error: anyhow::Error, last: bool) -> Result<()> {
        let Some(MachineError::Gone(text)) = error.downcast_ref() else { return Err(error) };
        // A journal of before names `host`, which may be another one then.
        self.on.take_if(|_| self.machine.name() == "host");
        self.restored.waits_for = Some(text.clone());
        if last {
            self.restored.pending = self.keeper.as_ref().map_or(Vec::new(), |keeper| keeper.owed(text));
            if self.restored.pending.is_empty() {
                return Err(Passing(text.clone()).into());
            }
        }
        Ok(())
    }
}

/// What puts back, by the journal of a directory; the journal may be on a disk that cannot be written to.
fn held(state: &Path, machine: &MachineArg, boot: &Boot) -> Result<Keeper> {
    Ok(Keeper::new(Journal::held(state, machine.name(), boot)?, PATIENCE))
}

/// VMs that could not be read.
pub(super) fn unread_vms(snapshot: &Snapshot) -> impl Iterator<Item = &Unread> {
    let is_vm = |unread: &&Unread| unread.what == What::Siblings && unread.path.starts_with("VM ");
    snapshot.unread.iter().filter(is_vm)
}

/// That VMs could not be read, if so: they may carry what is to be put back.
pub(super) fn unread(snapshot: &Snapshot) -> Option<String> {
    let mut vms = unread_vms(snapshot);
    let Unread { path, why, .. } = vms.next()?;
    let others = match vms.count() {
        0 => String::new(),
        others => format!(", and so {others} more"),
    };
    Some(format!("{path} could not be read{others}, so it is not known what is changed of it: {why}"))
}

/// The machine whose settings are to be put back; and of a journal that has none which libvirt it was at least: a VM may have come to this
/// host since.
fn machines_of(left: Option<(String, usize)>) -> (Option<String>, Option<String>) {
    match left {
        Some((machine, 1..)) => (Some(machine), None),
        Some((machine, 0)) if machine.starts_with("libvirt") => (None, Some(machine)),
        _ => (None, None),
    }
}

/// The numbers, in words.
pub(super) fn sum(restored: &Restored) -> String {
    let Restored { back, stand, pending, ended, .. } = restored;
    let (stand, pending) = (stand.len(), pending.len());
    format!(
        "put back: {back}; of VMs that have ended: {ended}; changed by others, left so: {stand}; pending: {pending}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_journal_names_the_machine_only_as_long_as_something_of_it_is_changed() {
        let of = |machine: &str, settings| machines_of(Some((machine.into(), settings)));
        assert_eq!(of("cgroups", 1), (Some("cgroups".into()), None));
        assert_eq!(of("libvirt:test:///default", 0), (None, Some("libvirt:test:///default".into())));
        assert_eq!((of("cgroups", 0), machines_of(None)), ((None, None), (None, None)));
    }
}

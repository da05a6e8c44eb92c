//! `corefit restore`: puts back what a daemon changed that could not do so itself.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail};
use corefit_core::machine::MachineError;

use super::alone::Alone;
use super::config::StateArg;
use super::keeper::Restored;
use super::{Boot, Journal, Keeper, Passing};
use crate::machine::MachineArg;

/// Guests are asked for so long in one try of `corefit restore`, and in all at the end of a daemon, but for one call that hangs (a
/// guest's agent takes some seconds to be there again after libvirtd was restarted).
pub(super) const PATIENCE: Duration = Duration::from_secs(20);
/// A libvirtd that is being restarted refuses at once, and a guest whose daemon was killed on the way is silent for some seconds.
pub(super) const BETWEEN_TRIES: Duration = Duration::from_secs(2);

/// Put back everything that corefit changed on this host
///
/// By the journal of a `corefit manage` that was killed, and by the notes that VMs carry which came from another
/// host. What somebody else changed meanwhile stands. A libvirtd or a guest that does not answer is asked again. Exit
/// status 1 if something could not be put back yet.
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
    /// How often it is tried, 2 s apart, while libvirtd does not answer or a guest is late
    #[arg(long, value_name = "N", default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..))]
    tries: u32,
}

/// Runs the verb.
pub(crate) fn run(args: &RestoreArgs) -> Result<ExitCode> {
    let state = if args.or_default { args.state.dir_or_usual() } else { args.state.dir()? };
    let boot = Boot::now(true)?;
    let left = Journal::left(&state, &boot)?;
    let none = left.is_none();
    let name = args.machine.clone().or_else(|| machine_of(left)).or_else(|| args.state.machine());
    let name = name.unwrap_or_else(|| "host".into());
    let machine = MachineArg::named(&name);
    if machine.clock().is_none() {
        bail!("--machine {name}: ended with the daemon; there is nothing to put back");
    }
    let open = || Journal::held(&state, &name, &boot);
    let journal = if none { None } else { Some(open()?) };
    if none {
        tell!(
            "corefit: {}: no journal there (--state names another directory), so only VMs that came from another host can be put back",
            state.display()
        );
    }
    let mut keeper = journal.map(|journal| Keeper::new(journal, PATIENCE));
    let mut restored = Restored::default();
    for left in (0..args.tries).rev() {
        // Anew each time: `host` may be another one when libvirtd is back, and a guest that was late is asked again.
        let opened = machine.open_to_act().and_then(|machine| Ok((Alone::with(&machine.realm())?, machine)));
        let (_alone, mut machine) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                sum_of_some(&restored);
                return Err(error);
            }
        };
        let waits_for = match machine.observe() {
            Ok(snapshot) if keeper.is_none() && snapshot.vms.iter().all(|vm| vm.kept.is_none()) => break,
            Ok(snapshot) => {
                let keeper = match &mut keeper {
                    Some(keeper) => keeper,
                    empty => empty.insert(Keeper::new(open()?, PATIENCE)),
                };
                restored.and(keeper.restore(&mut *machine, &snapshot));
                restored.waits_for.clone()
            }
            Err(MachineError::Gone(text)) if left > 0 => Some(text),
            Err(MachineError::Gone(text)) => {
                restored.pending = keeper.as_ref().map_or(Vec::new(), |keeper| keeper.owed(&text));
                if restored.pending.is_empty() {
                    sum_of_some(&restored);
                    return Err(Passing(text).into());
                }
                None
            }
            Err(error) => {
                sum_of_some(&restored);
                return Err(error.into());
            }
        };
        let Some(text) = waits_for.filter(|_| left > 0) else { break };
        if left + 1 == args.tries {
            tell!("corefit: {}; at most {left} more tries", crate::printable::text(&text));
        }
        std::thread::sleep(BETWEEN_TRIES);
    }
    show!("{}", sum(&restored));
    for text in restored.came.iter().chain(&restored.stand).chain(&restored.pending) {
        tell!("corefit: {}", crate::printable::text(text));
    }
    Ok(if restored.pending.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The machine whose settings are to be put back. A journal that has none says nothing: a VM may have come to this host since.
fn machine_of(left: Option<(String, usize)>) -> Option<String> {
    left.filter(|(_, settings)| *settings > 0).map(|(machine, _)| machine)
}

/// Where it ends with an error: what was done before.
fn sum_of_some(restored: &Restored) {
    if *restored != Restored::default() {
        show!("{}", sum(restored));
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
        assert_eq!(machine_of(Some(("cgroups".into(), 1))).as_deref(), Some("cgroups"));
        for none in [None, Some(("cgroups".into(), 0))] {
            assert_eq!(machine_of(none), None);
        }
    }
}

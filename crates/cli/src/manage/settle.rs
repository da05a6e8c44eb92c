//! What `host` is for a daemon that begins. What an earlier one left is put back first, on the machine that it was on, which may be
//! another one: libvirt was not there when that one began, or is no more.

use anyhow::Result;

use super::alone::Alone;
use super::config::Config;
use super::daemon::recover;
use super::log::{Level, log};
use super::{Boot, Journal, Keeper, budget};
use crate::machine::MachineArg;

/// The machine that `host` is from now on.
///
/// # Errors
/// If what an earlier run left is on a machine that cannot be opened, or somebody else is at work there.
pub(super) fn settled(config: &Config) -> Result<MachineArg> {
    let host = MachineArg::named("host");
    if !config.apply {
        return Ok(host.settled());
    }
    let boot = Boot::now(true)?;
    // One that cannot be read is refused when it is opened.
    let left = Journal::left(&config.state, &boot).ok().flatten().filter(|(_, settings)| *settings > 0);
    match left {
        None => Ok(host.settled()),
        // It is waited for, whether it answers now or not.
        Some((left, _)) if left == "libvirt" => Ok(MachineArg::named("libvirt")),
        Some((left, _)) => after(&MachineArg::named(&left), host.settled(), config, &boot),
    }
}

/// One machine for another, once nothing is left there that is to be put back.
fn after(left: &MachineArg, now: MachineArg, config: &Config, boot: &Boot) -> Result<MachineArg> {
    if left.name() == now.name() {
        return Ok(now);
    }
    let mut machine = left.open_to_act()?;
    let journal = Journal::open(&config.state, left.name(), boot)?;
    let _alone = Alone::with(&machine.realm(), &config.state)?;
    let mut keeper = Keeper::new(journal, budget(&config.policy));
    recover(&mut *machine, &mut keeper);
    if keeper.entries().is_empty() {
        return Ok(now);
    }
    let remedy = "once corefit status calls nothing pending, start it again, as by systemctl restart corefit";
    let fields = [
        ("machine", left.name().to_owned()),
        ("instead-of", now.name().to_owned()),
        ("why", "what an earlier run left there could not be put back".into()),
        ("remedy", remedy.into()),
    ];
    log(Level::Warning, "stays with a machine", &fields);
    Ok(MachineArg::named(left.name()))
}

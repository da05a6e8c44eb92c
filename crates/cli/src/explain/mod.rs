//! `corefit explain`: what each VM of a host gets, and why.

mod derivation;
mod document;
mod tables;
mod text;

use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use corefit_core::machine::{
    HostEstimate, Machine, MachineError, Role, Snapshot, VmEstimate, VmState, estimate,
};
use corefit_core::{CpuId, CpuSet};

use crate::durations::duration;
use crate::lines;
use crate::machine::MachineArg;
use crate::{printable, text_file};

/// About a recording of which one interval is shown.
const PARTIAL: &str = "this is the first interval of the recording; --watch plays all of it, --interval 1h takes \
    all at once";
/// Names of VMs that an error lists.
const LISTED: usize = 20;

/// What each VM of a host gets of its pCPUs, and why
///
/// `entitled` is what a VM gets when every VM wants everything, `available` what it could get now,
/// at least. With the name of a VM: how that came, from weights, quotas, affinities and neighbours.
#[derive(clap::Args)]
pub(crate) struct ExplainArgs {
    /// A VM, by its name, the end of its path, or its name as tables cut it (/docker/01…ef)
    #[arg(value_parser = text_file::name())]
    vm: Option<String>,
    /// Explain again and again until Ctrl-C
    #[arg(long)]
    watch: bool,
    /// Time between two looks, which is what the figures are about
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = duration)]
    interval: Duration,
    /// Print one JSON document, with --watch one a line
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    machine: MachineArg,
}

/// What there is to show.
struct View {
    /// When it was looked at, with a colon behind; nothing unless looks follow each other.
    when: String,
    /// Whether words are explained.
    first: bool,
    /// What the reader should know if this is not all that there is to see.
    partial: Option<&'static str>,
    /// Its name as it is.
    machine: String,
    snapshot: Snapshot,
    host: HostEstimate,
}

/// Runs the verb.
pub(crate) fn run(args: &ExplainArgs) -> Result<ExitCode> {
    let mut machine = args.machine.open()?;
    let look = |machine: &mut dyn Machine| {
        let seen = machine.observe();
        if args.json { seen } else { seen.map(printable::names) }
    };
    let mut before = look(&mut *machine)?;
    let mut shown = false;
    let mut away = Away::default();
    let first = before.at;
    loop {
        // A recording that is damaged further on is shown up to there.
        let passed = machine.pass(args.interval);
        let after = match look(&mut *machine) {
            Ok(after) => after,
            Err(error) if args.watch && matches!(passed, Ok(true)) => {
                away.tolerate(error)?;
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        away = Away::default();
        if after.at > before.at {
            let mut view = View::of(&*machine, &before, after.clone())?;
            if args.watch {
                view.when = args
                    .machine
                    .clock()
                    .unwrap_or_else(|| format!("after {:.1} s: ", after.at.since(first).as_secs_f64()));
                view.first = !shown || io::stdout().is_terminal();
            } else if args.machine.is_recording() && matches!(passed, Ok(true)) {
                view.partial = Some(PARTIAL);
            }
            match view.text(args, shown) {
                Ok(text) if !lines::print(&text)? => return Ok(ExitCode::SUCCESS),
                Ok(_) => {}
                Err(error) if shown => tell!("corefit: {error:#}"),
                Err(error) => return Err(error),
            }
            shown = true;
            if !args.watch {
                passed?;
                return Ok(ExitCode::SUCCESS);
            }
        }
        match passed {
            Ok(true) => before = after,
            Ok(false) if shown => return Ok(ExitCode::SUCCESS),
            Ok(false) => bail!("{}: it has one snapshot only; record for longer", machine.name()),
            Err(error) => return Err(error.into()),
        }
    }
}

/// A machine that was there and is not now: a libvirtd that is started again, groups of a container that is.
#[derive(Default)]
pub(crate) struct Away {
    told: bool,
}

impl Away {
    /// Goes on without a look, if looking again may help; says so once.
    ///
    /// # Errors
    /// If it does not help.
    pub(crate) fn tolerate(&mut self, error: MachineError) -> Result<(), MachineError> {
        if !matches!(error, MachineError::Gone(_)) {
            return Err(error);
        }
        if !std::mem::replace(&mut self.told, true) {
            tell!("corefit: {error}; trying again");
        }
        Ok(())
    }
}

impl View {
    fn of(machine: &dyn Machine, before: &Snapshot, snapshot: Snapshot) -> Result<View> {
        let machine = machine.name();
        let host = estimate(before, &snapshot).with_context(|| printable::text(&machine))?;
        Ok(View { when: String::new(), first: true, partial: None, machine, snapshot, host })
    }

    /// NUMA nodes that a VM's memory may come from, where that leaves out one with pCPUs.
    fn memory_nodes<'a>(&self, vm: &'a VmState) -> Option<&'a CpuSet> {
        let all: CpuSet = self.snapshot.pcpus.iter().filter_map(|pcpu| pcpu.node).map(CpuId).collect();
        let nodes = vm.memory_nodes.as_ref().or(vm.memory_above.as_ref());
        nodes.filter(|nodes| all.is_empty() || !all.is_within(nodes))
    }

    /// What is printed of it.
    fn text(&self, args: &ExplainArgs, again: bool) -> Result<String> {
        // As names of snapshots are made to be shown.
        let shown = |name: &String| if args.json { name.clone() } else { printable::text(name) };
        let vm = args.vm.as_ref().map(|name| self.named(&shown(name))).transpose()?;
        let width = lines::width(1);
        let mut text = match (args.json, vm) {
            (true, vm) => document::json(self, vm, args.watch)?,
            (false, Some(vm)) => derivation::text(self, vm, width),
            (false, None) => tables::text(self, width),
        };
        if args.watch && !args.json {
            if io::stdout().is_terminal() {
                text.insert_str(0, "\x1b[H\x1b[2J"); // to the top left, and clear
            } else if again {
                text.insert(0, '\n');
            }
        }
        Ok(text)
    }

    /// The number of a VM by its name, or, if that is clear, by the end of its path, or by its name as tables
    /// have it, cut in the middle.
    fn named(&self, name: &str) -> Result<usize> {
        let vms = || self.vms().map(|(number, vm)| (number, vm.seen.name.as_str()));
        if let Some((number, _)) = vms().find(|(_, known)| *known == name) {
            return Ok(number);
        }
        let end = format!("/{name}");
        let ends: Vec<usize> = vms().filter(|(_, known)| known.ends_with(&end)).map(|(n, _)| n).collect();
        let cut = name.split_once('…').or_else(|| name.split_once("..."));
        let cut =
            |known: &str| cut.is_some_and(|(head, tail)| known.starts_with(head) && known.ends_with(tail));
        let cuts: Vec<usize> = vms().filter(|(_, known)| cut(known)).map(|(n, _)| n).collect();
        if let ([number], _) | ([], [number]) = (&ends[..], &cuts[..]) {
            return Ok(*number);
        }
        let mut known: Vec<&str> = vms().map(|(_, name)| name).collect();
        let more = known.len().saturating_sub(LISTED);
        known.truncate(LISTED);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let known = if known.is_empty() { "none".into() } else { known.join(", ") };
        bail!("no VM {name:?} in {}; there are: {known}{more}", printable::text(&self.machine))
    }

    /// The names in reasons that are too long for a table.
    fn long_names(&self) -> text::LongNames<'_> {
        let vms = self.snapshot.vms.iter().map(|vm| vm.name.as_str());
        text::LongNames::of(vms.chain(self.snapshot.groups.iter().map(|group| group.name.as_str())))
    }

    /// The VMs, with their numbers in the division.
    fn vms(&self) -> impl Iterator<Item = (usize, &VmEstimate)> {
        self.host.vms.iter().enumerate().filter(|(_, vm)| vm.seen.role == Role::Vm)
    }

    /// What competes with them, what wants most first.
    fn others(&self) -> Vec<&VmEstimate> {
        let mut others: Vec<_> = self.host.vms.iter().filter(|vm| vm.seen.role == Role::Other).collect();
        others.sort_by(|a, b| wants(b).total_cmp(&wants(a)).then_with(|| a.seen.name.cmp(&b.seen.name)));
        others
    }
}

/// What was not measured wants everything.
fn wants(vm: &VmEstimate) -> f64 {
    vm.demand.map_or(f64::INFINITY, |demand| demand.0)
}

fn online(vm: &VmEstimate) -> usize {
    vm.seen.vcpus.iter().filter(|vcpu| vcpu.online).count()
}

#[cfg(test)]
mod tests;

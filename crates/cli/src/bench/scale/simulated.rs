//! The simulator's program of that name, on a simulated host.

use std::path::Path;

use anyhow::{Context, Result, anyhow};
use corefit_sim::{NAMES, Scenario, Sim, library};

use super::{Args, Cell, Seconds};
use crate::parallel;

/// A host of equal pCPUs with Linux' fair scheduler.
fn scenario(program: &str, pcpus: u32, vms: u32, vcpus: u32, limit: u32) -> String {
    format!(
        "until = \"{limit}s\"\nhardware = {{ cores = {pcpus} }}\n\
         [[vm]]\nname = \"vm\"\ncount = {vms}\nvcpus = {vcpus}\nprogram = \"{program}\"\n"
    )
}

/// The library's program of a command's name.
pub(super) fn program(command: &[String]) -> Result<&str> {
    let name = command.first().map(Path::new).and_then(Path::file_name).and_then(|n| n.to_str());
    name.filter(|name| library(name).is_some()).with_context(|| {
        let known = NAMES.join(", ");
        format!("{}: the simulator's library has no such program; it has {known}", command[0])
    })
}

pub(super) fn cells(name: &str, args: &Args) -> Result<Vec<Cell>> {
    let mut points = vec![];
    for &vcpus in &args.vcpus {
        // On the host: alone, with as many pCPUs as threads.
        points.extend((vcpus <= args.pcpus).then_some((0, vcpus)));
        points.extend(args.vms.iter().map(|&vms| (vms, vcpus)));
    }
    let cells = parallel::map(&points, parallel::cpus(), "hosts", |&(vms, vcpus)| {
        let pcpus = if vms == 0 { vcpus } else { args.pcpus };
        let text = scenario(name, pcpus, vms.max(1), vcpus, args.limit);
        let mut spec = Scenario::parse(&text, &[]).map_err(|e| anyhow!("{e}"))?.spec;
        let runs = (0..args.repeat).map(|run| {
            spec.seed = 1 + u64::from(run);
            once(&spec)
        });
        Ok(Cell { vms, vcpus, seconds: runs.collect::<Result<_>>()? })
    });
    cells.into_iter().collect()
}

fn once(spec: &corefit_sim::Spec) -> Result<Seconds> {
    let mut sim = Sim::new(spec)?;
    sim.run();
    let truth = sim.truth();
    let took: Option<Vec<u64>> = truth.vms.iter().flat_map(|vm| &vm.apps).map(|app| app.took_ns).collect();
    let last = took.and_then(|took| took.into_iter().max());
    Ok(Seconds { s: last.unwrap_or(spec.until_ns) as f64 / 1e9, cut_off: last.is_none() })
}

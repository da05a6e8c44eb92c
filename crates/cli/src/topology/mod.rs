//! `corefit topology`: draws a machine, with VMs and vCPUs on it.

mod guests;
mod svg;
mod text;

use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use serde_json::json;

use crate::inputs::gather;
use crate::lines::{LEAST, print, width};
use guests::Guests;

/// Draw a machine, with VMs and vCPUs on it
///
/// Without FILEs: this machine, with the VMs of libvirt if there are some.
#[derive(clap::Args)]
pub(crate) struct TopologyArgs {
    /// A host: lstopo x.xml, virsh capabilities, xl info -n, or a line as in "2 sockets x 8 cores x 2 threads";
    /// and VMs: domain XML, xl configurations, xl vcpu-list, kubelet's cpu_manager_state
    #[arg(value_name = "FILE")]
    files: Vec<String>,
    /// A live host, as for `corefit check`
    #[arg(long, value_name = "NAME")]
    machine: Option<String>,
    /// Write a picture
    #[arg(long, value_name = "OUT")]
    svg: Option<String>,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

/// Runs the verb.
pub(crate) fn run(args: &TopologyArgs) -> Result<ExitCode> {
    let inputs = match (&args.machine, args.files.is_empty()) {
        // This machine, even if it has neither VMs nor control groups.
        (None, true) => gather(&[], Some("libvirt")).or_else(|_| crate::inputs::this_machine())?,
        (machine, _) => gather(&args.files, machine.as_deref())?,
    };
    let Some(topology) = &inputs.subject.topology else { bail!("no host to draw") };
    let guests = Guests::of(&inputs.subject);
    if let Some(file) = &args.svg {
        std::fs::write(file, svg::draw(topology, &guests))
            .with_context(|| format!("{file}: cannot be written"))?;
    }
    if args.json {
        let vms =
            guests.rows.iter().map(|row| json!({ "name": row.name, "vcpus": row.vcpus, "where": row.place }));
        let document = json!({ "version": 1, "from": inputs.host, "summary": topology.summary(), "topology": topology,
            "vms": vms.collect::<Vec<_>>() });
        print(&format!("{}\n", serde_json::to_string_pretty(&document)?))?;
    } else {
        print(&text::draw(topology, &guests, width(LEAST)))?;
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests;

//! `corefit topology`: draws a machine, with VMs and vCPUs on it.

mod guests;
mod proposal;
mod svg;
mod text;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, bail, ensure};
use corefit_core::CpuSet;
use corefit_core::place::Policy;
use corefit_linux::bytes;
use serde_json::json;

use crate::inputs::{gather, reserved, this_machine};
use crate::lines::{LEAST, print, width, wrap};
use crate::manage::Config;
use crate::versioned::json;
use crate::{picture, printable, tell, text_file};
use guests::Guests;
use proposal::Proposal;

/// Draw a machine, with VMs and vCPUs on it
///
/// Without FILEs: this machine, with the VMs of libvirt if there are some.
#[derive(clap::Args)]
pub(crate) struct TopologyArgs {
    /// A host: lstopo x.xml, virsh capabilities, xl info -n, a directory with a copy of its /sys, or a line as in
    /// "2 sockets x 8 cores x 2 threads"; and VMs: domain XML, xl configurations, xl vcpu-list, kubelet's
    /// cpu_manager_state (with memory_manager_state)
    #[arg(value_name = "FILE", value_parser = text_file::name())]
    files: Vec<String>,
    /// A live host, as for `corefit check`
    #[arg(long, value_name = "NAME", value_parser = text_file::name())]
    machine: Option<String>,
    /// Write a picture; .svg or .png
    #[arg(long, value_name = "OUT")]
    svg: Option<PathBuf>,
    /// Draw where VMs should run by a policy, say why, and print the commands that put them there: corefit,
    /// optimal-affinity (one pCPU of each core or module), ulas (no shared L2) or none
    #[arg(long, value_name = "POLICY", value_parser = proposal::policy)]
    place: Option<Policy>,
    /// With --place: pCPUs that are kept for the host, as in 0-1,16
    #[arg(long, value_name = "LIST", requires = "place", value_parser = |text: &str| text.parse::<CpuSet>())]
    reserved: Option<CpuSet>,
    /// With --place: what an administrator says of VMs (class, priority, exclusion) and of pCPUs that are the host's: the
    /// `[policy]` of a configuration
    #[arg(long, value_name = "FILE", requires = "place")]
    config: Option<PathBuf>,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

/// Runs the verb.
pub(crate) fn run(args: &TopologyArgs) -> Result<ExitCode> {
    let mut inputs = match (&args.machine, args.files.is_empty()) {
        (None, true) => this_machine()?,
        (machine, _) => gather(&args.files, machine.as_deref())?,
    };
    inputs.subject.reserved = args.reserved.as_ref().map(|list| reserved(list, &inputs)).transpose()?;
    let svg = args.svg.as_deref().map(picture::open).transpose()?;
    if let Some(svg) = &svg {
        let mut files = args.files.iter().map(|file| bytes::path(file));
        let read = files.any(|file| svg.is(&file)) || args.config.as_deref().is_some_and(|file| svg.is(file));
        ensure!(!read, "--svg names a file that is read: give it another file");
    }
    let config = Config::read(args.config.as_deref())?;
    if let Some(topology) = &inputs.subject.topology {
        config.fits(args.config.as_deref(), (&topology.pcpus, &topology.offline))?;
    }
    let proposal = args.place.map(|policy| Proposal::of(&inputs.subject, policy, &config.policy));
    if let Some(proposal) = &proposal {
        inputs.subject = proposal.applied(&inputs.subject);
    }
    let Some(topology) = &inputs.subject.topology else { bail!("no host to draw") };
    let guests = Guests::of(&inputs.subject);
    let told = if args.json {
        let vms =
            guests.rows.iter().map(|row| json!({ "name": row.name, "vcpus": row.vcpus, "where": row.place }));
        let mut document = json!({ "from": inputs.host, "summary": topology.summary(), "topology": topology,
            "vms": vms.collect::<Vec<_>>(), "notes": inputs.notes });
        if let Some(proposal) = &proposal {
            document["placement"] = proposal.document();
        }
        print(&json(&document, false)?)
    } else {
        let width = width(LEAST);
        let mut out = String::new();
        for note in &inputs.notes {
            wrap(&mut out, "note: ", 6, &printable::text(note), width);
        }
        out += &text::draw(topology, &guests, width);
        if let Some(proposal) = &proposal {
            out += &proposal.text(width);
            if let Some(text) = inputs.at_next_start(proposal.configured()) {
                out.push('\n');
                wrap(&mut out, "", 0, &printable::text(&text), width);
            }
        }
        print(&out)
    };
    let all = svg.is_none_or(|svg| tell::written(picture::write(svg, &svg::draw(topology, &guests))));
    told.map(|_| tell::end(all, ExitCode::SUCCESS))
}

#[cfg(test)]
mod tests;

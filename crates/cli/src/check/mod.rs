//! `corefit check`: what is wrong with the pinning, caps and topologies of a host's VMs.

mod sarif;
mod text;

use std::process::ExitCode;

use anyhow::{Result, bail};
use corefit_core::CpuSet;
use corefit_core::check::{Finding, RULES, Rule, check};
use serde_json::json;

use crate::inputs::{Inputs, gather, reserved};
use crate::lines::{LEAST, print, width};
use crate::text_file;
use crate::versioned::json;

/// Find pinning, NUMA, SMT and quota settings that hurt
///
/// Without FILEs: of the host here. Exit status 0: none found, 1: some, 2: bad input, or nothing there to check.
#[derive(clap::Args)]
pub(crate) struct CheckArgs {
    /// Of VMs: libvirt domain XML, xl configurations, xl vcpu-list, kubelet's cpu_manager_state (with
    /// memory_manager_state); of their host: virsh capabilities, lstopo x.xml, xl info -n, a directory with a copy
    /// of its /sys, or a line as in "2 sockets x 8 cores x 2 threads"
    #[arg(value_name = "FILE", value_parser = text_file::name())]
    files: Vec<String>,
    /// A live host as well: libvirt or libvirt:URI, cgroups or cgroups:PATHS, replay:FILE, and what explain takes
    #[arg(long, value_name = "NAME", value_parser = text_file::name())]
    machine: Option<String>,
    /// pCPUs that are kept for the host, as in 0-1,16
    #[arg(long, value_name = "LIST", value_parser = |text: &str| text.parse::<CpuSet>())]
    reserved: Option<CpuSet>,
    /// Leave out findings of a rule
    #[arg(long, value_name = "RULE", value_parser = rule)]
    ignore: Vec<Rule>,
    /// Print one JSON document
    #[arg(long, conflicts_with = "sarif")]
    json: bool,
    /// Print SARIF 2.1.0, for code review tools
    #[arg(long)]
    sarif: bool,
    /// Say what a rule is about, or without RULE which there are, and check nothing
    #[arg(long, value_name = "RULE", value_parser = rule, exclusive = true, num_args = 0..=1)]
    explain: Option<Option<Rule>>,
}

fn rule(name: &str) -> Result<Rule, String> {
    let all = || RULES.map(Rule::id).join(", ");
    Rule::named(name).ok_or_else(|| format!("no such rule; there are {}", all()))
}

/// Runs the verb.
pub(crate) fn run(args: &CheckArgs) -> Result<ExitCode> {
    if let Some(rule) = args.explain {
        let width = width(LEAST);
        print(&rule.map_or_else(|| text::rules(width), |rule| text::explanation(rule, width)))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut inputs = gather(&args.files, args.machine.as_deref())?;
    if !inputs.of_vms {
        bail!("no VM to check; give a domain XML, an xl configuration, or --machine libvirt");
    }
    inputs.subject.reserved = args.reserved.as_ref().map(|list| reserved(list, &inputs)).transpose()?;
    let mut findings = check(&inputs.subject);
    findings.retain(|finding| !args.ignore.contains(&finding.rule));
    let out = if args.json {
        document(&inputs, &findings)?
    } else if args.sarif {
        sarif::log(&findings, &inputs.notes)?
    } else {
        text::report(&inputs, &findings, width(LEAST))
    };
    print(&out)?;
    Ok(if findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

fn document(inputs: &Inputs, findings: &[Finding]) -> Result<String> {
    let one = |finding: &Finding| {
        json!({
            "rule": finding.rule,
            "severity": finding.severity,
            "vm": finding.vm,
            "file": finding.place.file,
            "line": finding.place.line,
            "element": finding.place.element,
            "text": finding.text,
            "cure": finding.cure,
        })
    };
    let document = json!({
        "host": {
            "from": inputs.host,
            "shape": inputs.subject.topology.as_ref().map(corefit_core::topology::Topology::summary),
        },
        "vms": inputs.subject.vms.iter().map(|vm| &vm.name).collect::<Vec<_>>(),
        "findings": findings.iter().map(one).collect::<Vec<_>>(),
        "notes": inputs.notes,
    });
    json(&document, false)
}

//! `corefit bench scale -- PROGRAM`: one program on the host and in 1 to k VMs at once, over numbers of vCPUs:
//! P3's VBench. In real VMs (`scripts/testvm`) where they can be started, else on a simulated host, and it
//! says which.

mod real;
mod simulated;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use corefit_core::check::count;
use serde::Serialize;

use super::overcommit::find_root;
use super::print;
use crate::chart::{self, Chart, Series};
use crate::picture;
use crate::stats::{Bound, Value};
use crate::table::{Table, bounded, seconds};

/// A program on the host and in VMs, over numbers of vCPUs
///
/// Real VMs need root and scripts/install-vms; they have the programs of `make -C workloads`, and their CPUs are
/// emulated: about ten times slower than the host's. Without them the program of that name in the simulator's
/// library runs on a simulated host.
#[derive(clap::Args)]
pub(super) struct Args {
    /// VMs that run the program at the same time
    #[arg(long, value_delimiter = ',', default_value = "1,2", value_name = "LIST", value_parser = clap::value_parser!(u32).range(1..=64))]
    vms: Vec<u32>,
    /// vCPUs of each, and threads of the program
    #[arg(long, value_delimiter = ',', default_value = "1,2,4", value_name = "LIST", value_parser = clap::value_parser!(u32).range(1..=256))]
    vcpus: Vec<u32>,
    /// Runs of each, of which the median counts
    #[arg(long, default_value_t = 3, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    repeat: u32,
    /// Cut a run off after so many seconds
    #[arg(long, default_value_t = 60, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..=3600))]
    limit: u32,
    /// Do not look for real VMs: simulate
    #[arg(long)]
    simulate: bool,
    /// pCPUs of the simulated host
    #[arg(long, default_value_t = 16, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pcpus: u32,
    /// Draw it: FILE.svg or FILE.png
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
    /// Root of the repository [default: the nearest one above the executable or here]
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
    /// The program and its arguments
    #[arg(required = true, last = true, value_name = "PROGRAM")]
    command: Vec<String>,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Document {
    bench: &'static str,
    command: Vec<String>,
    /// `real` or `simulated`.
    vms: &'static str,
    /// What was simulated: the program of that name in the simulator's library.
    simulated: Option<String>,
    /// Why not real ones.
    why: Option<String>,
    pcpus: u32,
    cells: Vec<Cell>,
}

/// One number of VMs with one number of vCPUs.
#[derive(Serialize)]
struct Cell {
    /// 0: on the host itself, on as many pCPUs.
    vms: u32,
    vcpus: u32,
    /// Of each run, until the last VM was ready.
    seconds: Vec<Seconds>,
}

/// How long a run took, or at least took.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct Seconds {
    s: f64,
    cut_off: bool,
}

impl Cell {
    /// The median, of an even number the mean of both in the middle; where one of them was cut off, a lower bound.
    fn median(&self) -> Option<Value> {
        let mut sorted = self.seconds.clone();
        sorted.sort_by(|a, b| a.s.total_cmp(&b.s));
        let (low, high) = (sorted.get(sorted.len().saturating_sub(1) / 2)?, sorted.get(sorted.len() / 2)?);
        let bound = if low.cut_off || high.cut_off { Bound::AtLeast } else { Bound::Exact };
        Some(Value { number: f64::midpoint(low.s, high.s), bound })
    }
}

pub(super) fn run(args: &Args) -> Result<ExitCode> {
    // To be known before, not afterwards.
    let svg = args.svg.as_deref().map(picture::open).transpose().context("--svg")?;
    let measured = if args.simulate { Err("--simulate".to_owned()) } else { real::cells(args)? };
    let (vms, simulated, why, pcpus, cells) = match measured {
        Ok((pcpus, cells)) => ("real", None, None, pcpus, cells),
        Err(why) => {
            let program = simulated::program(&args.command)?;
            let cells = simulated::cells(program, args)?;
            ("simulated", Some(program.to_owned()), Some(why), args.pcpus, cells)
        }
    };
    ensure!(!cells.is_empty(), "nothing was measured");
    let command = args.command.clone();
    let document = Document { bench: "scale", command, vms, simulated, why, pcpus, cells };
    let told = print(args.json, &document, text);
    if let Some(svg) = svg {
        picture::write(svg, &drawing(&document)?)?;
    }
    told.map(|()| ExitCode::SUCCESS)
}

/// Columns of the table, lines of the picture.
fn columns(document: &Document) -> Vec<u32> {
    let mut columns: Vec<u32> = document.cells.iter().map(|cell| cell.vms).collect();
    columns.sort_unstable();
    columns.dedup();
    columns
}

fn heading(vms: u32) -> String {
    match vms {
        0 => "host".into(),
        1 => "1 VM".into(),
        n => format!("{n} VMs"),
    }
}

fn title(document: &Document) -> String {
    let pcpus = count(document.pcpus as usize, "pCPU");
    match &document.simulated {
        None => format!("{}: seconds, {} VMs on {pcpus}", document.command.join(" "), document.vms),
        Some(program) => format!(
            "\"{program}\" of the simulator's library (nothing was measured): simulated seconds on {pcpus}"
        ),
    }
}

/// Of the command, what a simulation has not looked at.
fn ignored(document: &Document) -> Option<String> {
    let program = document.simulated.as_ref()?;
    let command = document.command.join(" ");
    (command != *program)
        .then(|| format!("of {command} only the name counts: path and arguments are ignored"))
}

fn text(document: &Document) -> String {
    let columns = columns(document);
    let headings: Vec<String> =
        std::iter::once("vCPUs".into()).chain(columns.iter().map(|n| heading(*n))).collect();
    let mut table = Table::new(0, &headings.iter().map(String::as_str).collect::<Vec<_>>());
    let mut rows: Vec<u32> = document.cells.iter().map(|cell| cell.vcpus).collect();
    rows.sort_unstable();
    rows.dedup();
    for vcpus in rows {
        let of = |vms: &u32| document.cells.iter().find(|c| (c.vms, c.vcpus) == (*vms, vcpus));
        let cells = columns.iter().map(|vms| bounded(of(vms).and_then(Cell::median), seconds));
        table.row(std::iter::once(vcpus.to_string()).chain(cells).collect());
    }
    let ignored = ignored(document).map(|ignored| format!("; {ignored}")).unwrap_or_default();
    let why = document.why.as_ref().map(|why| format!("Simulated: {why}{ignored}.\n")).unwrap_or_default();
    format!(
        "{}\n\n{}\nMedians; with several VMs until the last one was ready; host: on as many pCPUs.{}\n{why}",
        title(document),
        table.render(),
        if document.vms == "real" { " The VMs' CPUs are emulated." } else { "" },
    )
}

fn drawing(document: &Document) -> Result<String> {
    let line = |vms: &u32| {
        let of = document.cells.iter().filter(|cell| cell.vms == *vms);
        let point = |cell: &Cell| {
            let value = cell.median().filter(|value| value.bound == Bound::Exact)?;
            Some((f64::from(cell.vcpus), value.number, None))
        };
        Series { name: heading(*vms), points: of.filter_map(point).collect() }
    };
    let cut = document.cells.iter().filter(|c| c.median().is_some_and(|v| v.bound != Bound::Exact)).count();
    let cut = (cut > 0).then(|| format!("{cut} left out that were cut off"));
    let notes: Vec<String> = [Some("medians".into()), cut, ignored(document)].into_iter().flatten().collect();
    chart::svg(&Chart {
        title: title(document),
        note: notes.join("; "),
        x: "vCPUs and threads".into(),
        y: "seconds".into(),
        categories: None,
        logarithmic_x: false,
        linear_y: false,
        series: columns(document).iter().map(line).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(vms: u32, vcpus: u32, seconds: &[(f64, bool)]) -> Cell {
        Cell { vms, vcpus, seconds: seconds.iter().map(|&(s, cut_off)| Seconds { s, cut_off }).collect() }
    }

    #[test]
    fn a_table_has_a_column_for_the_host_and_each_number_of_vms() {
        let cells = vec![
            cell(0, 1, &[(1.0, false)]),
            cell(1, 1, &[(3.0, false), (2.0, false), (60.0, true)]),
            cell(2, 1, &[(60.0, true), (4.0, false), (60.0, true)]),
            cell(2, 2, &[(5.0, false), (8.0, false)]),
            cell(2, 4, &[(60.0, true), (5.0, false)]),
        ];
        let document = Document {
            bench: "scale",
            command: vec!["lu".into(), "S".into()],
            vms: "simulated",
            simulated: Some("lu".into()),
            why: Some("no VMs".into()),
            pcpus: 4,
            cells,
        };
        let text = text(&document);
        assert!(
            text.contains(
                "vCPUs  host  1 VM   2 VMs\n    1  1.00  3.00  >60.00\n    2     -     -    6.50\n    4     -     -  >32.50\n"
            ),
            "{text}"
        );
        let what = "\"lu\" of the simulator's library (nothing was measured): simulated seconds on 4 pCPUs\n";
        assert!(text.starts_with(what), "{text}");
        let ignored = "of lu S only the name counts: path and arguments are ignored";
        assert!(text.ends_with(&format!("Simulated: no VMs; {ignored}.\n")), "{text}");
        let picture = drawing(&document).unwrap();
        assert!(picture.contains("2 left out that were cut off") && picture.contains("2 VMs"));
        assert!(picture.contains("simulator") && picture.contains(ignored), "{picture}");
    }
}

//! The report for people.

use corefit_core::profile::{Division, OnVm, PARALLEL, Profile, Range};

use super::document::Document;
use crate::bench::table::Table;
use crate::{lines, printable};

/// Columns of sentences: about as wide as the table.
const WIDTH: usize = 110;

pub(super) fn render(document: &Document) -> String {
    let mut text = format!(
        "corefit: {}: {:.2} s; {} looks {:.1} ms apart, which took {:.1} % of its CPU time\n",
        printable::text(&document.command.join(" ")),
        document.wall_s,
        document.looks,
        document.interval_ms,
        100.0 * document.cost(),
    );
    if let Some(profile) = &document.profile {
        text += &features(profile);
        text += &predictions(profile);
    }
    for note in document.notes() {
        lines::wrap(&mut text, "  note: ", 4, &note, WIDTH);
    }
    text
}

fn features(profile: &Profile) -> String {
    let f = &profile.features;
    let percent = |x: f64| 100.0 * x;
    format!(
        "  parallelism {:.1} of {} threads (high from {:.1}); one active {:.0} % of the time, none {:.0} %\n\
         \u{20} blocking synchronisation {} per thread-second, {} per timeslice of {:.1} ms (high from 1)\n\
         \u{20} type {}: {}\n\
         \u{20} balance: the busiest thread has {:.0} % more work than the mean in {:.0} ms, {:.0} % over the run\n",
        f.parallelism,
        f.threads,
        PARALLEL * f.threads as f64,
        percent(f.sequential),
        percent(f.idle),
        few(f.switches_per_thread_s),
        few(f.blocks_per_timeslice),
        profile.question.period_ns * profile.question.share / 1e6,
        f.kind.0,
        f.kind.words(),
        percent(f.imbalance),
        profile.question.period_ns / 1e6,
        percent(f.imbalance_of_run),
    )
}

fn predictions(profile: &Profile) -> String {
    let mut table = Table::new(
        1,
        &[
            "  speedup",
            "at equal share",
            "range",
            "dedicated cores",
            "used",
            "switching",
            "slowed",
            "unused",
            "potential",
        ],
    );
    let here = &profile.here;
    let cores = |n: usize| format!("{n} core{}", if n == 1 { "" } else { "s" });
    table.row(row(&format!("  here, as it ran, {}", cores(here.vm.vcpus)), here));
    for on in &profile.machines {
        table.row(row(&format!("  own machine, {}", cores(on.vm.vcpus)), on));
    }
    for on in vms(profile) {
        table.row(row(&format!("  {}", name(on)), on));
    }
    let mut text = table.render();
    for limit in &profile.limits {
        lines::wrap(&mut text, "  ", 4, limit, WIDTH);
    }
    text
}

/// The VM asked about, with longer periods, with one quota, and with other shares.
pub(super) fn vms(profile: &Profile) -> Vec<&OnVm> {
    let q = &profile.question;
    let threads = profile.features.threads;
    let periods = [2.0, 8.0].map(|factor| profile.on(threads, q.share, factor * q.period_ns, false));
    let pooled = profile.on(threads, q.share, q.period_ns, true);
    let half = profile.on(threads, 0.5, q.period_ns, false).filter(|_| q.share != 0.5);
    let mut all = vec![&profile.asked];
    all.extend(periods.into_iter().flatten());
    all.extend(pooled.into_iter().chain(half));
    all
}

/// A VM in words.
pub(super) fn name(on: &OnVm) -> String {
    let vm = &on.vm;
    let pooled = if vm.division == Division::Pooled { ", one quota" } else { "" };
    let s = if vm.vcpus == 1 { "" } else { "s" };
    format!("VM, {} vCPU{s} of {:.0} %, {:.0} ms{pooled}", vm.vcpus, 100.0 * vm.share, vm.period_ns / 1e6)
}

fn row(name: &str, on: &OnVm) -> Vec<String> {
    let percent = |x: f64| format!("{:.0} %", 100.0 * x);
    let Range { is, low, high } = on.speedup;
    vec![
        name.into(),
        format!("{is:.2}x"),
        format!("{low:.2}-{high:.2}"),
        format!("{:.2}", on.dedicated_cores.is),
        percent(on.efficiency),
        percent(on.switching),
        percent(on.slowed),
        percent(on.unused),
        percent(on.potential),
    ]
}

/// With two or three digits that mean something.
fn few(x: f64) -> String {
    match x {
        x if x < 1.0 => format!("{x:.2}"),
        x if x < 10.0 => format!("{x:.1}"),
        x => format!("{x:.0}"),
    }
}

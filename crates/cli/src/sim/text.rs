//! The tables for people.

use corefit_core::check::count;

use super::compare::Comparison;
use super::metric::{CHANGES, ONLINE};
use super::summary::{Document, PointResult, StuckRuns, VmResult};
use crate::stats;
use crate::table::{NONE, Table};

const HEADINGS: [&str; 13] = [
    "VM",
    "program",
    "unit",
    "result",
    "+-",
    "utilised",
    "spinning",
    "switching",
    "waiting",
    "unused",
    "LHP/s",
    "halts/s",
    "PLE/s",
];

pub(super) fn render(document: &Document) -> String {
    let mut text =
        format!("{}\n", if document.about.is_empty() { &document.scenario } else { &document.about });
    for point in &document.points {
        text += &one(point);
    }
    text += &compared(&document.comparisons);
    let ruled = document.points.iter().any(ruled);
    text += "\nutilised, spinning, switching, waiting: mean pCPUs (vCPUs for waiting) over the counted time; unused: what single vCPUs\n\
        left in a period of what they were entitled to, and others may have got (surplus, in --json and --out); LHP: vCPUs\n\
        preempted while holding a spin lock; +-: 95 % confidence.\n";
    if ruled {
        text += "online: mean vCPUs online over the counted time; changes: of that number, in a run.\n";
    }
    text
}

/// Three; where that leaves less than three digits of a number, so many more.
fn decimals(of: Option<f64>) -> usize {
    let digits = |decimals: &usize| {
        of.is_none_or(|x| x == 0.0 || x.abs() * 10_f64.powf(stats::count(*decimals)) >= 99.95)
    };
    (3..12).find(digits).unwrap_or(12)
}

/// Somebody decides about the host.
fn ruled(point: &PointResult) -> bool {
    point.vms.iter().any(|vm| vm.metrics.contains_key(ONLINE))
}

fn one(point: &PointResult) -> String {
    let set: Vec<String> = point.set.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let counted = if point.counted_s.mean < point.simulated_s.mean {
        format!(" ({:.3} s of it counted, after the warm-up)", point.counted_s.mean)
    } else {
        String::new()
    };
    let mut text = format!(
        "\n{}{}, {:.3} s simulated on average{counted}, {} events, {:.2} pCPUs idle, {:.2} cores competing\n",
        if set.is_empty() { String::new() } else { format!("{}: ", set.join(", ")) },
        count(point.runs, "run"),
        point.simulated_s.mean,
        point.events,
        point.idle_pcpus.mean,
        point.competing_cores.mean,
    );
    let ruled = ruled(point);
    let headings = if ruled { [&HEADINGS[..], &["online", "changes"]].concat() } else { HEADINGS.to_vec() };
    let mut table = Table::new(3, &headings);
    for vm in &point.vms {
        let mean = |name| vm.mean(name);
        let pcpus = |name| mean(name).map_or(NONE.into(), |m| format!("{:.2}", m.mean));
        let rate = |name| mean(name).map_or(NONE.into(), |m| format!("{:.0}", m.mean));
        // What has no end is judged by its marks.
        let ends = mean("took_s").is_some() || vm.unfinished_in(point);
        let progress = mean(if ends { "took_s" } else { "marks_per_s" });
        let decimals = decimals(progress.map(|m| m.mean));
        let mut row = vec![
            vm.name.clone(),
            vm.program.clone(),
            if ends { "s".into() } else { "marks/s".into() },
            progress.map_or(NONE.into(), |m| format!("{:.decimals$}", m.mean)),
            progress.and_then(|m| m.ci95).map_or(NONE.into(), |ci| format!("{ci:.decimals$}")),
            pcpus("utilised"),
            pcpus("spinning"),
            pcpus("switching"),
            pcpus("waiting"),
            pcpus("unused"),
            rate("holder_preemptions_per_s"),
            rate("halts_per_s"),
            rate("ple_exits_per_s"),
        ];
        if ruled {
            let changes = mean(CHANGES).map_or(NONE.into(), |m| format!("{:.1}", m.mean));
            row.extend([pcpus(ONLINE), changes]);
        }
        table.row(row);
    }
    text += &table.render();
    for (name, &StuckRuns { runs, threads, others }) in &point.stuck {
        let whom = match (threads, others) {
            (1, 0) => "its last thread waits for one that has ended,".into(),
            (_, 0) => "its threads all wait for each other,".into(),
            (1, _) => format!("1 of its threads waits for what no other will do (others go on: {others}),"),
            _ => format!("{threads} of its threads wait for each other (others go on: {others}),"),
        };
        text += &format!(
            "STUCK: {name} in {runs} of {} runs: {whom} for ever; look at its locks, flags and barriers\n",
            point.runs
        );
    }
    for (name, runs) in &point.unfinished {
        let remedy = if point.hopeless(name, *runs) { "" } else { "; raise `until`" };
        text += &format!("UNFINISHED: {name} did not end in {runs} of {} runs{remedy}\n", point.runs);
    }
    for (note, runs) in &point.notes {
        let runs = if point.runs == 1 { String::new() } else { format!(" ({runs} of {} runs)", point.runs) };
        text += &format!("note: {note}{runs}\n");
    }
    text
}

/// Paired differences, a table for each key.
fn compared(comparisons: &[Comparison]) -> String {
    let mut text = String::new();
    for of_key in comparisons.chunk_by(|a, b| a.key == b.key) {
        let Some(first) = of_key.first() else { continue };
        text += &format!("\n{}, against {} in pairs of runs with the same seed:\n", first.key, first.base);
        let headings = [&first.key, "at", "VM", "number", &first.base, "difference", "+-", "%"];
        let mut table = Table::new(4, &headings);
        for one in of_key {
            let at: Vec<String> = one.at.iter().map(|(key, value)| format!("{key}={value}")).collect();
            let decimals = decimals(one.base_mean);
            let show = |x: Option<f64>| x.map_or(NONE.into(), |x| format!("{x:.decimals$}"));
            let relative = one.difference.zip(one.base_mean).filter(|(_, base)| *base != 0.0);
            table.row(vec![
                one.value.clone(),
                at.join(", "),
                one.vm.clone(),
                one.metric.into(),
                show(one.base_mean),
                one.difference.map_or("not in all runs".into(), |d| format!("{:+.decimals$}", d.mean)),
                show(one.difference.and_then(|d| d.ci95)),
                relative.map_or(NONE.into(), |(d, base)| format!("{:+.1}", d.mean / base * 100.0)),
            ]);
        }
        text += &table.render();
    }
    text
}

impl VmResult {
    fn unfinished_in(&self, point: &PointResult) -> bool {
        point.unfinished.contains_key(&format!("{}/{}", self.name, self.program))
    }
}

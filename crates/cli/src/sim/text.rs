//! The tables for people.

use super::summary::{Document, Mean, PointResult};
use crate::bench::table::{NONE, Table};

const HEADINGS: [&str; 12] = [
    "VM",
    "program",
    "took s",
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
    text += "\nutilised, spinning, switching, waiting: mean pCPUs (vCPUs for waiting) over the whole run; unused: entitled to,\n\
        but not used in its period; LHP: vCPUs preempted while holding a spin lock; +-: 95 % confidence.\n";
    text
}

fn one(point: &PointResult) -> String {
    let set: Vec<String> = point.set.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let mut text = format!(
        "\n{}{} run{}, {:.3} s simulated on average, {} events, {:.2} pCPUs idle, {:.2} cores competing\n",
        if set.is_empty() { String::new() } else { format!("{}: ", set.join(", ")) },
        point.runs,
        if point.runs == 1 { "" } else { "s" },
        point.simulated_s.mean,
        point.events,
        point.idle_pcpus.mean,
        point.competing_cores.mean,
    );
    let mut table = Table::new(2, &HEADINGS);
    for vm in &point.vms {
        let pcpus = |mean: &Mean| format!("{:.2}", mean.mean);
        let rate = |mean: &Mean| format!("{:.0}", mean.mean);
        table.row(vec![
            vm.name.clone(),
            vm.program.clone(),
            vm.took_s.map_or(NONE.into(), |m| format!("{:.3}", m.mean)),
            vm.took_s.and_then(|m| m.ci95).map_or(NONE.into(), |ci| format!("{ci:.3}")),
            pcpus(&vm.utilised),
            pcpus(&vm.spinning),
            pcpus(&vm.switching),
            pcpus(&vm.waiting),
            pcpus(&vm.unused),
            rate(&vm.holder_preemptions_per_s),
            rate(&vm.halts_per_s),
            rate(&vm.ple_exits_per_s),
        ]);
    }
    text += &table.render();
    for (name, runs) in &point.unfinished {
        text += &format!("UNFINISHED: {name} did not end in {runs} of {} runs; raise `until`\n", point.runs);
    }
    text
}

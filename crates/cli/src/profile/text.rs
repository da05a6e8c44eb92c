//! The report for people.

use std::io::IsTerminal as _;

use corefit_core::check::count;
use corefit_core::profile::{Division, Features, OnVm, PARALLEL, Profile, Range};

use super::document::Document;
use crate::table::Table;
use crate::{lines, printable};

/// Columns of sentences: about as wide as the table.
const WIDTH: usize = 110;

/// Columns of stderr, if it is a terminal.
pub(super) fn columns() -> Option<usize> {
    let stderr = std::io::stderr();
    stderr.is_terminal().then(|| lines::width_of(&stderr, lines::LEAST))
}

/// For a terminal with so many columns; `None`: for a file.
pub(super) fn render(document: &Document, columns: Option<usize>) -> String {
    let width = columns.map_or(WIDTH, |columns| columns.min(WIDTH));
    let mut text = String::new();
    match columns {
        Some(columns) => lines::wrap(&mut text, "corefit: ", 4, &run(document), columns),
        // Written as it is: the command may have blanks of its own.
        None => text = format!("corefit: {}\n", run(document)),
    }
    let mut add = |first: &str, sentence: &str| lines::wrap(&mut text, first, 4, sentence, width);
    if let Some(profile) = &document.profile {
        features(profile).iter().for_each(|line| add("  ", line));
        let table = table(profile, "  ");
        if table.lines().all(|line| line.chars().count() <= columns.unwrap_or(usize::MAX)) {
            text += &table;
        } else {
            list(&mut text, profile, width);
        }
        let mut add = |sentence: &String| lines::wrap(&mut text, "  ", 4, sentence, width);
        profile.limits.iter().for_each(&mut add);
    }
    for note in &document.notes {
        lines::wrap(&mut text, "  note: ", 4, note, width);
    }
    text
}

/// What ran, and what looking at it cost.
pub(super) fn run(document: &Document) -> String {
    let command = printable::text(&document.command.join(" "));
    let took = format!("{command}: {:.2} s; ", document.wall_s);
    let apart = document.profile.as_ref().map(|profile| profile.slot_ns / 1e6);
    let looks = match (document.looks, apart) {
        (0, _) => "it ended before the first look".to_owned(),
        (1, _) => "1 look".to_owned(),
        (looks, Some(apart)) => format!("{looks} looks {apart:.1} ms apart"),
        (looks, None) => format!("{looks} looks"),
    };
    // With more than one CPU's worth of CPU time that is what the cost is a part of.
    let of = if document.cpu_s > document.wall_s { "CPU time" } else { "time" };
    let cost = match document.looks {
        0 => String::new(),
        _ => format!(", which took {:.1} % of its {of}", 100.0 * document.cost()),
    };
    took + &looks + &cost
}

/// P1's features, a line each; of one thread neither type nor balance.
pub(super) fn features(profile: &Profile) -> Vec<String> {
    let f = &profile.features;
    let q = &profile.question;
    let percent = |x: f64| 100.0 * x;
    let Features { threads, parallelism, blocks_per_timeslice, .. } = f;
    let high = PARALLEL * *threads as f64;
    let mut lines = vec![
        format!(
            "parallelism {} of {} (high from {}); one active {:.0} % of the time, none {:.0} %",
            beside(&|x| format!("{x:.1}"), *parallelism, high),
            count(*threads, "thread"),
            trimmed(high),
            percent(f.sequential),
            percent(f.idle),
        ),
        format!(
            "blocking synchronisation {} per thread-second, {} per timeslice of {} ms (high from 1)",
            few(f.switches_per_thread_s),
            beside(&few, *blocks_per_timeslice, 1.0),
            trimmed(q.period_ns * q.share / 1e6),
        ),
    ];
    // One thread has neither.
    lines.extend(f.kind.map(|kind| format!("type {}: {}", kind.0, kind.words())));
    if *threads > 1 {
        lines.push(format!(
            "balance: the busiest thread has {:.0} % more work than the mean in {} ms, {:.0} % over the run",
            percent(f.imbalance),
            trimmed(q.period_ns / 1e6),
            percent(f.imbalance_of_run),
        ));
    }
    lines
}

/// Predictions with their terms.
pub(super) fn table(profile: &Profile, indent: &str) -> String {
    let heading = format!("{indent}speedup");
    let mut table = Table::new(
        1,
        &[
            heading.as_str(),
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
    for (name, on) in rows(profile) {
        let [used, switching, slowed, unused, potential] = terms(on).map(|(_, percent)| percent);
        let Range { is, low, high } = on.speedup;
        let range = format!("{low:.2}-{high:.2}");
        let cores = format!("{:.2}", on.dedicated_cores.is);
        let name = format!("{indent}{name}");
        table.row(vec![name, format!("{is:.2}x"), range, cores, used, switching, slowed, unused, potential]);
    }
    table.render()
}

/// The same for who has no room for the table.
fn list(out: &mut String, profile: &Profile, width: usize) {
    for (name, on) in rows(profile) {
        let Range { is, low, high } = on.speedup;
        let cores = on.dedicated_cores.is;
        lines::wrap(out, "  ", 4, &name, width);
        let speedup = format!("{is:.2}x at equal share ({low:.2}-{high:.2}), {cores:.2} dedicated cores");
        lines::wrap(out, "    ", 6, &speedup, width);
        let terms: Vec<String> = terms(on).map(|(term, percent)| format!("{term} {percent}")).into();
        lines::wrap(out, "    ", 6, &terms.join(", "), width);
    }
}

fn terms(on: &OnVm) -> [(&'static str, String); 5] {
    [
        ("used", on.efficiency),
        ("switching", on.switching),
        ("slowed", on.slowed),
        ("unused", on.unused),
        ("potential", on.potential),
    ]
    // Without a sign of zero.
    .map(|(term, part)| (term, format!("{:.0} %", (100.0 * part).round() + 0.0)))
}

/// As it ran, on machines of its own, and on VMs.
fn rows(profile: &Profile) -> Vec<(String, &OnVm)> {
    let here = &profile.here;
    let mut rows = vec![(format!("here, as it ran, {}", count(here.vm.vcpus, "core")), here)];
    rows.extend(
        profile.machines.iter().map(|on| (format!("own machine, {}", count(on.vm.vcpus, "core")), on)),
    );
    rows.extend(vms(profile).into_iter().map(|on| (name(on), on)));
    rows
}

/// The VM asked about, with longer periods, with one quota, and with other shares.
fn vms(profile: &Profile) -> Vec<&OnVm> {
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
fn name(on: &OnVm) -> String {
    let vm = &on.vm;
    let pooled = if vm.division == Division::Pooled { ", one quota" } else { "" };
    let (share, period) = (trimmed(100.0 * vm.share), trimmed(vm.period_ns / 1e6));
    format!("VM, {} of {share} %, {period} ms{pooled}", count(vm.vcpus, "vCPU"))
}

/// To a thousandth, without zeros at the end: what was asked stays what was asked.
pub(super) fn trimmed(x: f64) -> String {
    let text = format!("{x:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// With two or three digits that mean something.
fn few(x: f64) -> String {
    match x {
        x if x < 1.0 => format!("{x:.2}"),
        x if x < 10.0 => format!("{x:.1}"),
        x => format!("{x:.0}"),
    }
}

/// So rounded that it stands on the right side of a bound; below it, at it, or above it.
fn beside(round: &dyn Fn(f64) -> String, x: f64, bound: f64) -> String {
    let mut tries = std::iter::once(round(x)).chain((2..6).map(|digits| format!("{x:.digits$}")));
    let right = |text: &String| text.parse::<f64>().is_ok_and(|said| (said >= bound) == (x >= bound));
    tries.find(right).unwrap_or_else(|| x.to_string())
}

#[cfg(test)]
mod tests {
    use corefit_core::profile::{Machine, Question, Series, Spin, analyse};

    use super::*;

    const MS: f64 = 1e6;

    fn document(slots: &[&[f64]], period_ms: f64, share: f64) -> Document {
        let slots: Vec<(f64, &[f64])> = slots.iter().cycle().take(60).map(|r| (4.0 * MS, *r)).collect();
        let machine = Machine { cpus: 2, contention: None, one_cpu: None, others: None };
        let question = Question { machine, spin: Spin::Passive, period_ns: period_ms * MS, share };
        let mut document = Document {
            command: vec!["prog".into()],
            wall_s: 0.24,
            cpu_s: 0.4,
            seen_s: 0.4,
            looks: slots.len() as u64,
            interval_ms: 99.0,
            own_cpu_s: 0.004,
            profile: analyse(&Series::of_runs(&slots), &question),
            ..Document::default()
        };
        document.notes = document.remarks();
        document
    }

    const TURNS: [&[f64]; 2] = [&[4.0 * MS, 0.0], &[4.0 * MS; 2]];

    #[test]
    fn a_clock_that_is_a_device_is_told_to_programs_that_block() {
        let noted = |voluntary, device_clock| {
            let slots = vec![(4.0 * MS, [4.0 * MS; 2].as_slice()); 60];
            let mut series = Series::of_runs(&slots);
            series.voluntary = voluntary;
            let machine = Machine { cpus: 2, contention: None, one_cpu: None, others: None };
            let question = Question { machine, spin: Spin::Passive, period_ns: 24.0 * MS, share: 0.25 };
            let profile = analyse(&series, &question);
            let document = Document { device_clock, profile, ..Document::default() };
            document.remarks().iter().any(|note| note.contains("clock is the hpet"))
        };
        assert!(noted(4000, Some("hpet")));
        assert!(!noted(4000, None) && !noted(0, Some("hpet")));
    }

    #[test]
    fn a_narrow_terminal_gets_the_same_numbers_in_lines_that_fit() {
        let document = document(&TURNS, 24.0, 0.25);
        let wide = render(&document, None);
        assert_eq!(render(&document, Some(200)), wide);
        let narrow = render(&document, Some(60));
        for line in narrow.lines() {
            assert!(line.chars().count() <= 60, "{line}");
        }
        let vm = wide.lines().find(|line| line.contains("VM, 2 vCPUs of 25 %, 24 ms  ")).unwrap();
        let mut cells: Vec<&str> = vm.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect();
        cells.remove(0);
        let told: Vec<&str> =
            narrow.lines().skip_while(|line| !line.ends_with("25 %, 24 ms")).skip(1).take(3).collect();
        for cell in cells {
            assert!(told.join(" ").contains(cell), "{cell}: {told:?}");
        }
    }

    #[test]
    fn shares_and_periods_are_those_that_were_asked_about() {
        let text = render(&document(&TURNS, 1.5, 0.125), None);
        for name in
            ["VM, 2 vCPUs of 12.5 %, 1.5 ms ", " 3 ms ", " 12 ms ", "timeslice of 0.188 ms", "in 1.5 ms"]
        {
            assert!(text.contains(name), "{name}: {text}");
        }
    }

    #[test]
    fn numbers_stand_on_their_side_of_the_bound() {
        let one = |x: f64| format!("{x:.1}");
        assert_eq!(beside(&one, 1.496, 1.5), "1.496");
        assert_eq!(beside(&one, 1.47, 1.5), "1.47");
        assert_eq!(beside(&one, 1.7, 1.5), "1.7");
        assert_eq!((beside(&few, 0.999, 1.0), beside(&few, 1.0, 1.0)), ("0.999".into(), "1.0".into()));
        let text = render(&document(&[&[3.0 * MS]], 24.0, 0.25), None);
        assert!(text.contains("parallelism 0.8 of 1 thread (high from 0.75)"), "{text}");
        assert!(
            !text.contains("type ") && !text.contains("scales well") && !text.contains("balance:"),
            "{text}"
        );
    }

    #[test]
    fn looking_costs_a_part_of_the_longer_of_time_and_cpu_time() {
        let mut document = document(&TURNS, 24.0, 0.25);
        assert!(run(&document).ends_with("60 looks 4.0 ms apart, which took 1.0 % of its CPU time"));
        document.cpu_s = 0.001;
        assert!(run(&document).ends_with("which took 1.7 % of its time"), "{}", run(&document));
    }

    #[test]
    fn a_program_that_was_not_seen_has_one_note_and_no_numbers() {
        let text = render(&document(&[], 24.0, 0.25), None);
        assert_eq!(
            text,
            "corefit: prog: 0.24 s; it ended before the first look\n  note: no thread was seen to run for as long as it takes \
             to look: give it more to do\n"
        );
    }
}

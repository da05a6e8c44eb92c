//! The page: what the report says, and four pictures. It needs nothing else: no script, no font, no network.

use corefit_core::profile::{Division, OnVm, PARALLEL, PROGRAMS, Profile};

use super::document::Document;
use super::text;
use crate::chart::{self, Chart, Series};
use crate::printable;

/// Points of a line.
const POINTS: usize = 160;

const STYLE: &str = "body{font:16px/1.5 system-ui,sans-serif;color:#1f2933;background:#fff;max-width:68rem;margin:2rem auto;\
    padding:0 1rem}h1{font-size:1.5rem;overflow-wrap:anywhere}h2{font-size:1.15rem;margin-top:2rem}pre{background:#f4f6f8;padding:1rem;overflow-x:auto;\
    font-size:.8rem;line-height:1.4}figure{margin:0;overflow-x:auto}\
    svg{max-width:100%;min-width:40rem;height:auto}p,li{max-width:46rem;overflow-wrap:anywhere}";

pub(super) fn page(document: &Document) -> String {
    let title = printable::markup(&printable::text(&document.command.join(" ")));
    let mut body = format!(
        "<h1>How <code>{title}</code> scales</h1>\n<p>{}</p>\n",
        printable::markup(&text::run(document))
    );
    if let Some(profile) = &document.profile {
        body += &list(&text::features(profile));
        body += &format!("<pre>{}</pre>\n", printable::markup(text::table(profile, "").trim_end()));
        body += &format!("<h2>What limits it</h2>\n{}", list(&profile.limits));
    }
    body += &format!("<h2>Notes</h2>\n{}", list(&document.notes));
    if let Some(profile) = &document.profile {
        for (heading, said, picture) in [
            (
                "Active cores over time",
                "With a core for each thread: what one run on this machine shows of it.",
                active(profile),
            ),
            ("Use of timeslices", USE, used(profile)),
            ("Speedup", SPEEDUP, speedups(profile)),
        ]
        .into_iter()
        .chain(map(profile).map(|map| ("The four types", TYPES, Ok(map))))
        {
            let picture = picture
                .unwrap_or_else(|why| format!("<p>Not drawn: {}</p>", printable::markup(&why.to_string())));
            body += &format!("<h2>{heading}</h2>\n<p>{said}</p>\n<figure>{picture}</figure>\n");
        }
    }
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\">\n<title>{title}: corefit profile</title>\n\
         <style>{STYLE}</style></head>\n<body>\n{body}</body>\n</html>\n"
    )
}

fn list(sentences: &[String]) -> String {
    let items: String =
        sentences.iter().map(|s| format!("<li>{}</li>\n", commands(&printable::markup(s)))).collect();
    format!("<ul>\n{items}</ul>\n")
}

/// What stands between backticks, as code.
fn commands(markup: &str) -> String {
    let mut parts = markup.split('`');
    let mut out = parts.next().unwrap_or_default().to_owned();
    while let Some(code) = parts.next() {
        match parts.next() {
            Some(after) => out += &format!("<code>{code}</code>{after}"),
            None => out += &format!("`{code}"),
        }
    }
    out
}

const USE: &str = "In each allocation period: the work there is with a core for each thread, over what the VM's timeslices \
    hold. Below 1, timeslices are lost even if any vCPU might do any work; above 1, work is left for the next period.";
const SPEEDUP: &str = "Against one vCPU of the same share. Times the share, this is \
    what it gets in dedicated cores.";
const TYPES: &str = "Parallelism and blocking synchronisation decide the type (Shan, Jia, Ding: Rethinking Multicore \
    Application Scalability on Big Virtual Machines, Table I). The paper prints the types of its 27 programs, not where they \
    stand, so they are listed in their quarter; the dot is this program.";

fn active(profile: &Profile) -> anyhow::Result<String> {
    let whole: f64 = profile.active.iter().map(|s| s.ns).sum();
    let bin = whole / POINTS as f64;
    // Means over equal times.
    let mut sums = vec![0.0; POINTS];
    let mut at = 0.0;
    for stretch in &profile.active {
        let (mut from, to) = (at, at + stretch.ns);
        while to - from > bin * 1e-9 {
            let index = index_of(from, bin);
            let end = to.min(bin * (index + 1) as f64).max(from + bin * 1e-6);
            sums[index] += (end - from) * stretch.active;
            from = end;
        }
        at = to;
    }
    let points = |(i, sum): (usize, &f64)| ((i as f64 + 0.5) * bin / 1e9, sum / bin, None);
    let line = |name: String, y: f64| Series { name, points: vec![(0.0, y, None), (whole / 1e9, y, None)] };
    let f = &profile.features;
    let high = PARALLEL * f.threads as f64;
    chart::svg(&Chart {
        title: String::new(),
        note: format!("means over {:.1} ms", bin / 1e6),
        x: "s".into(),
        y: "active cores".into(),
        categories: None,
        logarithmic_x: false,
        linear_y: true,
        series: vec![
            Series { name: "active cores".into(), points: sums.iter().enumerate().map(points).collect() },
            line(format!("mean {:.1}", f.parallelism), f.parallelism),
            line(format!("high from {}", text::trimmed(high)), high),
        ],
    })
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a small index")]
fn index_of(at: f64, bin: f64) -> usize {
    ((at / bin + 1e-9) as usize).min(POINTS - 1)
}

fn used(profile: &Profile) -> anyhow::Result<String> {
    let group = profile.used.len().div_ceil(POINTS).max(1);
    let q = &profile.question;
    let period_s = q.period_ns / 1e9;
    let lowest = |(i, part): (usize, &[f64])| {
        let at = (i * group) as f64 * period_s;
        (at, part.iter().sum::<f64>() / part.len() as f64 / q.share, None)
    };
    let points: Vec<_> = profile.used.chunks(group).enumerate().map(lowest).collect();
    let end = profile.used.len() as f64 * period_s;
    chart::svg(&Chart {
        title: String::new(),
        note: format!(
            "periods of {} ms, {} % of {} cores{}",
            text::trimmed(q.period_ns / 1e6),
            text::trimmed(100.0 * q.share),
            profile.features.threads,
            if group > 1 { format!("; means of {group} periods") } else { String::new() }
        ),
        x: "s".into(),
        y: "work over timeslices".into(),
        categories: None,
        logarithmic_x: false,
        linear_y: true,
        series: vec![
            Series { name: "work there is".into(), points },
            Series { name: "all timeslices".into(), points: vec![(0.0, 1.0, None), (end, 1.0, None)] },
        ],
    })
}

fn speedups(profile: &Profile) -> anyhow::Result<String> {
    let q = &profile.question;
    let point = |on: &OnVm| (on.vm.vcpus as f64, on.speedup.is, None);
    let end = |end: fn(&OnVm) -> f64| -> Vec<(f64, f64, Option<f64>)> {
        let same = profile.vms.iter().filter(|on| {
            on.vm.share == q.share && on.vm.period_ns == q.period_ns && on.vm.division == Division::PerVcpu
        });
        same.map(|on| (on.vm.vcpus as f64, end(on), None)).collect()
    };
    let on = |factor: f64, pooled: bool| -> Vec<(f64, f64, Option<f64>)> {
        let same = profile.vms.iter().filter(|on| {
            on.vm.share == q.share
                && (on.vm.period_ns - factor * q.period_ns).abs() < 1.0
                && (on.vm.division == Division::Pooled) == pooled
        });
        same.map(point).collect()
    };
    let [share, period] = [100.0 * q.share, q.period_ns / 1e6];
    let vm = |factor: f64| format!("{} % VM, {} ms", text::trimmed(share), text::trimmed(factor * period));
    let most = profile.features.threads as f64;
    chart::svg(&Chart {
        title: String::new(),
        note: "at equal share".into(),
        x: "vCPUs, or cores".into(),
        y: "speedup".into(),
        categories: None,
        logarithmic_x: false,
        linear_y: true,
        series: vec![
            Series {
                name: "machine of its own".into(),
                points: profile.machines.iter().map(point).collect(),
            },
            Series { name: vm(1.0), points: on(1.0, false) },
            Series { name: vm(8.0), points: on(8.0, false) },
            Series { name: format!("{}, one quota", vm(1.0)), points: on(1.0, true) },
            Series { name: "linear".into(), points: vec![(1.0, 1.0, None), (most, most, None)] },
            Series { name: format!("{}, at least", vm(1.0)), points: end(|on| on.speedup.low) },
            Series { name: format!("{}, at most", vm(1.0)), points: end(|on| on.speedup.high) },
        ],
    })
}

/// Blocking to the right on a logarithmic scale from 1/1000 to 1000 per timeslice, parallelism upwards; `None` for a program
/// that has no type.
fn map(profile: &Profile) -> Option<String> {
    const WIDTH: f64 = 960.0;
    const HEIGHT: f64 = 520.0;
    const LEFT: f64 = 70.0;
    const BOTTOM: f64 = 460.0;
    let (right, top) = (WIDTH - 20.0, 20.0);
    let f = &profile.features;
    let own = f.kind?.0;
    let middle = f64::midpoint(LEFT, right);
    // Low parallelism has the lower half, high the upper one: the border is at 75 %.
    let high = f64::midpoint(top, BOTTOM);
    let part = f.parallelism / f.threads.max(1) as f64;
    let y = if part < PARALLEL {
        BOTTOM - (BOTTOM - high) * part / PARALLEL
    } else {
        high - (high - top) * ((part - PARALLEL) / (1.0 - PARALLEL)).min(1.0)
    };
    let decades = (f.blocks_per_timeslice.max(1e-3).log10() / 3.0).clamp(-1.0, 1.0);
    let x = middle + (right - middle) * decades;
    let mut svg = format!(
        "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"14\" fill=\"#1f2933\" role=\"img\" aria-label=\"the four types\">\n"
    );
    for (kind, x, y) in [(1, LEFT, top), (3, middle, top), (4, LEFT, high), (2, middle, high)] {
        let fill = if own == kind { "#e6f0f8" } else { "#fafbfc" };
        svg += &format!(
            "<rect x=\"{x}\" y=\"{y}\" width=\"{}\" height=\"{}\" fill=\"{fill}\" stroke=\"#c4cad1\"/>\n\
             <text x=\"{}\" y=\"{}\" font-weight=\"bold\">type {kind}</text>\n",
            middle - LEFT,
            high - top,
            x + 12.0,
            y + 22.0
        );
        let names: Vec<&str> = PROGRAMS.iter().filter(|p| p.1 == kind).map(|p| p.0).collect();
        for (row, three) in names.chunks(3).enumerate() {
            let y = y + 44.0 + 18.0 * row as f64;
            svg += &format!(
                "<text x=\"{}\" y=\"{y}\" fill=\"#69737d\" font-size=\"13\">{}</text>\n",
                x + 12.0,
                three.join("  ")
            );
        }
    }
    // The name goes to the side where there is room.
    let (anchor, shift) = if x > middle { ("end", -12.0) } else { ("start", 12.0) };
    svg += &format!(
        "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"7\" fill=\"#d55e00\"/>\n\
         <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\" fill=\"#d55e00\" font-weight=\"bold\">this program</text>\n",
        x + shift,
        (y + 5.0).clamp(top + 34.0, BOTTOM - 8.0),
    );
    for (label, decades) in [("0.001", -1.0), ("0.03", -0.5), ("1", 0.0), ("30", 0.5), ("1000", 1.0)] {
        let x = middle + (right - middle) * decades;
        let anchor = if decades == 1.0 { "end" } else { "middle" };
        svg += &format!("<text x=\"{x}\" y=\"{}\" text-anchor=\"{anchor}\">{label}</text>\n", BOTTOM + 20.0);
    }
    for (label, y) in [("0 %", BOTTOM), ("75 %", high), ("100 %", top)] {
        svg += &format!("<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{label}</text>\n", LEFT - 8.0, y + 5.0);
    }
    svg += &format!(
        "<text x=\"{middle}\" y=\"{}\" text-anchor=\"middle\">times that a thread blocks while it uses up a timeslice \
         (left of 1: low)</text>\n\
         <text transform=\"translate(18 {high}) rotate(-90)\" text-anchor=\"middle\">active, of the threads</text>\n</svg>",
        BOTTOM + 46.0
    );
    Some(svg)
}

#[cfg(test)]
mod tests {
    #[test]
    fn what_stands_between_backticks_is_code_and_a_single_one_stays() {
        assert_eq!(super::commands("a `corefit run` b `c`"), "a <code>corefit run</code> b <code>c</code>");
        assert_eq!(super::commands("don`t"), "don`t");
    }
}

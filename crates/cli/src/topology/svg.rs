//! A machine as a picture: boxes in boxes, a cell for each pCPU with the vCPUs on it.

use corefit_core::topology::{Branch, Topology, Unit};
use corefit_core::{CpuId, CpuSet};

use super::guests::Guests;
use crate::printable;

/// Width of a pCPU's cell, its height, and the height where there are VMs.
const CELL: (f64, f64, f64) = (44.0, 20.0, 46.0);
const GAP: f64 = 8.0;
const TITLE: f64 = 20.0;
const LEGEND: f64 = 20.0;
/// VMs shown in one cell; of more, the number.
const BARS: usize = 2;
/// Distinguishable with every common kind of colour blindness (Okabe and Ito, 2008).
const COLOURS: [&str; 7] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8a7a00"];

/// A laid-out box.
struct Laid {
    size: (f64, f64),
    /// Elements at their places, below each other.
    svg: String,
}

pub(super) fn draw(topology: &Topology, guests: &Guests) -> String {
    let body = branch(topology, &topology.tree(), guests, 0);
    let words = [
        (!topology.offline.is_empty()).then_some("grey, crossed out: offline"),
        (!topology.isolated.is_empty()).then_some("dashed: isolated"),
        topology.is_hybrid().then_some("yellowish: slower cores"),
        (!topology.modules.is_empty()).then_some("bold frame: module, whose cores share decoder and FPU"),
        (!guests.rows.is_empty()).then_some("filled bar: vCPU pinned here; outlined: may run here"),
    ];
    let words: Vec<&str> = words.into_iter().flatten().collect();
    let rows: Vec<String> = guests
        .rows
        .iter()
        .map(|row| {
            let not = if row.drawn { "" } else { " (not drawn)" };
            format!("{} ({}): {}{not}", printable::text(&row.name), row.tag, row.place)
        })
        .collect();
    let title = topology.summary();
    let longest =
        rows.iter().chain([&title, &topology.about]).map(|text| text.chars().count()).max().unwrap_or(0);
    let (width, lines) =
        ((longest.min(200) as f64 * 7.2).max(body.size.0) + 2.0 * GAP, (rows.len() + words.len()) as f64);
    let top = if topology.about.is_empty() { 28.0 } else { 46.0 };
    let about = printable::markup(&printable::text(&topology.about));
    let height = top + body.size.1 + GAP + LEGEND * lines + GAP;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" viewBox=\"0 0 {width:.0} {height:.0}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"{GAP}\" y=\"18\" font-weight=\"bold\">{about}</text>\n\
         <text x=\"{GAP}\" y=\"{:.0}\">{}</text>\n\
         <g transform=\"translate({GAP},{top})\">\n{}</g>\n",
        top - 10.0,
        printable::markup(&printable::text(&title)),
        body.svg
    );
    let mut y = top + body.size.1 + GAP + 14.0;
    for (number, row) in rows.iter().enumerate() {
        if guests.rows[number].drawn {
            let colour = COLOURS[number % COLOURS.len()];
            out += &format!(
                "<rect x=\"{GAP}\" y=\"{:.0}\" width=\"12\" height=\"12\" fill=\"{colour}\"/>",
                y - 10.0
            );
        }
        out += &format!("<text x=\"{:.0}\" y=\"{y:.0}\">{}</text>\n", GAP + 18.0, printable::markup(row));
        y += LEGEND;
    }
    for word in words {
        out += &format!("<text x=\"{GAP}\" y=\"{y:.0}\" fill=\"#555\">{}</text>\n", printable::markup(word));
        y += LEGEND;
    }
    out + "</svg>\n"
}

fn branch(topology: &Topology, tree: &Branch, guests: &Guests, depth: usize) -> Laid {
    let units: Vec<Laid> = tree.units.iter().map(|unit| cores(topology, unit, guests)).collect();
    let inner: Vec<Laid> =
        tree.branches.iter().map(|inner| branch(topology, inner, guests, depth + 1)).collect();
    let units = grid(units, 4.0 / 3.0);
    let inner = grid(inner, 1.6);
    let frame = !tree.labels.is_empty();
    let (pad, head) = if frame { (GAP, TITLE) } else { (0.0, 0.0) };
    let between = if units.size.1 > 0.0 && inner.size.1 > 0.0 { GAP } else { 0.0 };
    let title = tree.labels.join(", ");
    let words = if frame { title.chars().count() as f64 * 6.6 } else { 0.0 };
    let width = units.size.0.max(inner.size.0).max(words) + 2.0 * pad;
    let height = head + units.size.1 + between + inner.size.1 + pad;
    let mut svg = String::new();
    if frame {
        let fill = ["#f4f6f8", "#e9eef3", "#dde6ee", "#d2dee9"][depth.saturating_sub(1).min(3)];
        svg += &format!(
            "<rect width=\"{width:.1}\" height=\"{height:.1}\" rx=\"4\" fill=\"{fill}\" stroke=\"#8796a5\"/>\n\
             <text x=\"{GAP}\" y=\"15\" fill=\"#333\">{}</text>\n",
            printable::markup(&printable::text(&title))
        );
    }
    svg += &format!("<g transform=\"translate({pad:.1},{head:.1})\">\n{}</g>\n", units.svg);
    svg += &format!(
        "<g transform=\"translate({pad:.1},{:.1})\">\n{}</g>\n",
        head + units.size.1 + between,
        inner.svg
    );
    Laid { size: (width, height), svg }
}

/// Puts boxes of much the same size into rows, so that the whole is about `shape` times as wide as high.
fn grid(boxes: Vec<Laid>, shape: f64) -> Laid {
    let widest = boxes.iter().map(|b| b.size.0).fold(0.0, f64::max);
    let highest = boxes.iter().map(|b| b.size.1).fold(0.0, f64::max);
    if boxes.is_empty() {
        return Laid { size: (0.0, 0.0), svg: String::new() };
    }
    let area = boxes.len() as f64 * (widest + GAP) * (highest + GAP);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "positive, and limited below"
    )]
    let columns = (((area * shape).sqrt() / (widest + GAP)).round() as usize).clamp(1, boxes.len());
    // Rows of equal length look better than one almost empty.
    let columns = boxes.len().div_ceil(boxes.len().div_ceil(columns));
    let (mut x, mut y, mut row, mut wide) = (0.0f64, 0.0f64, 0.0f64, 0.0f64);
    let mut svg = String::new();
    for (number, laid) in boxes.iter().enumerate() {
        if number > 0 && number % columns == 0 {
            (x, y, row) = (0.0, y + row + GAP, 0.0);
        }
        svg += &format!("<g transform=\"translate({x:.1},{y:.1})\">\n{}</g>\n", laid.svg);
        x += laid.size.0 + GAP;
        row = row.max(laid.size.1);
        wide = wide.max(x - GAP);
    }
    Laid { size: (wide, y + row), svg }
}

/// A module or core: a frame with a cell for each pCPU.
fn cores(topology: &Topology, unit: &Unit, guests: &Guests) -> Laid {
    let module = unit.cores.len() > 1;
    let mut svg = String::new();
    let mut x = 3.0;
    for core in &unit.cores {
        for cpu in core.iter() {
            svg += &format!("<g transform=\"translate({x:.1},3)\">{}</g>\n", cell(topology, cpu, guests));
            x += CELL.0 + 2.0;
        }
        x += if module { 2.0 } else { 0.0 };
    }
    let size = (x + 1.0 - if module { 2.0 } else { 0.0 }, height(guests) + 6.0);
    let stroke = if module { "#222\" stroke-width=\"2" } else { "#555" };
    let frame = format!(
        "<rect width=\"{:.1}\" height=\"{:.1}\" rx=\"3\" fill=\"#fff\" stroke=\"{stroke}\"/>\n",
        size.0, size.1
    );
    Laid { size, svg: frame + &svg }
}

fn height(guests: &Guests) -> f64 {
    if guests.rows.is_empty() { CELL.1 } else { CELL.2 }
}

fn cell(topology: &Topology, cpu: CpuId, guests: &Guests) -> String {
    let (width, height) = (CELL.0, height(guests));
    let offline = topology.offline.contains(cpu);
    let slower = topology.capacity.get(&cpu.0) < topology.capacity.values().max();
    let fill = if offline {
        "#ddd"
    } else if slower {
        "#fbf3d5"
    } else {
        "#fff"
    };
    let dash = if topology.isolated.contains(cpu) { " stroke-dasharray=\"3,2\"" } else { "" };
    let mut svg = format!(
        "<rect width=\"{width}\" height=\"{height}\" rx=\"2\" fill=\"{fill}\" stroke=\"#999\"{dash}/>\
         <text x=\"{:.0}\" y=\"13\" text-anchor=\"middle\" fill=\"#222\">{}</text>",
        width / 2.0,
        cpu.0
    );
    if offline {
        svg += &format!("<path d=\"M2,2 L{:.0},{:.0}\" stroke=\"#888\"/>", width - 2.0, height - 2.0);
    }
    let here = guests.on.get(&cpu).map_or(&[][..], Vec::as_slice);
    let mut y = 17.0;
    for (vm, vcpus) in here.iter().take(BARS) {
        let colour = COLOURS[vm % COLOURS.len()];
        let tag = &guests.rows[*vm].tag;
        let vcpus: CpuSet = vcpus.iter().map(|vcpu| CpuId(*vcpu)).collect();
        let (fill, ink, word) = if vcpus.is_empty() {
            ("#fff", colour, tag.clone())
        } else {
            (colour, "#fff", format!("{tag}{vcpus}"))
        };
        let word: String =
            if word.chars().count() > 7 { word.chars().take(6).chain(['…']).collect() } else { word };
        svg += &format!(
            "<rect x=\"2\" y=\"{y:.0}\" width=\"{:.0}\" height=\"12\" rx=\"2\" fill=\"{fill}\" stroke=\"{colour}\"/>\
             <text x=\"{:.0}\" y=\"{:.0}\" font-size=\"9\" text-anchor=\"middle\" fill=\"{ink}\">{word}</text>",
            width - 4.0,
            width / 2.0,
            y + 9.0
        );
        y += 14.0;
    }
    if here.len() > BARS {
        let more = here.len() - BARS;
        svg += &format!(
            "<text x=\"{:.0}\" y=\"12\" font-size=\"8\" text-anchor=\"end\" fill=\"#555\">+{more}</text>",
            width - 2.0
        );
    }
    svg
}

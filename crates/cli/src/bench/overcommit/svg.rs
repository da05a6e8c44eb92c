//! A picture of one condition: for every program a bar each for default, corefit and oracle,
//! on a logarithmic axis of seconds, one panel for each runtime. Self-contained SVG.

use std::fmt::Write;

use super::document::{ConditionPart, Machine, Row, Values, mean};
use super::programs::Runtime;
use crate::printable;
use crate::stats::{Bound, Value};
use crate::table::{bounded, factor, seconds};

const WIDTH: f64 = 960.0;
const MARGIN: f64 = 24.0;
/// Above the panels: title, legend, panel headings.
const HEAD: f64 = 112.0;
/// Below them: the axis.
const FOOT: f64 = 52.0;
/// Room for program names, and right of the longest bar for its label.
const NAMES: f64 = 66.0;
const LABELS: f64 = 58.0;
const GAP: f64 = 28.0;
const BAR: f64 = 9.0;
const ROW: f64 = 3.0 * BAR + 14.0;

const DEFAULT: &str = "#d4603a";
const COREFIT: &str = "#1b6e8c";
const ORACLE: &str = "#aab4bf";
const INK: &str = "#1f2933";
const FAINT: &str = "#616e7c";
const GRID: &str = "#e4e7eb";

/// The picture; `None` where no program has both a time by corefit and an oracle.
pub(super) fn render(part: &ConditionPart, machine: &Machine) -> Option<String> {
    let drawn = |r: &&Row| r.values.oracle.is_some() && r.values.corefit.is_some();
    let rows: Vec<&Row> = part.programs.iter().filter(drawn).collect();
    let runtimes = Runtime::in_order(rows.iter().map(|r| r.runtime));
    let axis = Axis::over(rows.iter().flat_map(|r| times(&r.values)))?;
    let panels: Vec<Vec<&Row>> = runtimes
        .iter()
        .map(|runtime| rows.iter().copied().filter(|r| r.runtime == *runtime).collect())
        .collect();
    let most = u32::try_from(panels.iter().map(Vec::len).max()?).ok()?;
    let height = HEAD + f64::from(most) * ROW + FOOT;
    let mut svg = Svg::new(height);
    svg.head(part, machine);
    let count = f64::from(u32::try_from(panels.len()).ok()?);
    let width = (WIDTH - 2.0 * MARGIN - (count - 1.0) * GAP) / count;
    let mut x = MARGIN;
    for (runtime, rows) in runtimes.iter().zip(&panels) {
        svg.panel(part, *runtime, rows, &axis, (x, width));
        x += width + GAP;
    }
    svg.0 += "</svg>\n";
    Some(svg.0)
}

fn times(values: &Values) -> impl Iterator<Item = f64> {
    let all = [values.default, values.corefit, values.oracle];
    all.into_iter().flatten().map(|v| v.number)
}

/// A logarithmic axis from `low` to `high` seconds.
#[derive(Debug)]
struct Axis {
    low: f64,
    high: f64,
}

impl Axis {
    /// From below the least, so that its bar can be seen, to the most.
    fn over(numbers: impl Iterator<Item = f64>) -> Option<Axis> {
        let numbers: Vec<f64> = numbers.filter(|n| *n > 0.0 && n.is_finite()).collect();
        let least = numbers.iter().copied().reduce(f64::min)?;
        let most = numbers.iter().copied().reduce(f64::max)?;
        let low = 10_f64.powf((least / 1.5).log10().floor());
        Some(Axis { low, high: most.max(low * 10.0) * 1.05 })
    }

    /// Where a time lies, 0 to 1.
    fn at(&self, s: f64) -> f64 {
        ((s / self.low).ln() / (self.high / self.low).ln()).clamp(0.0, 1.0)
    }

    /// Powers of ten, and whether it is one; else 2 and 5 times that.
    fn ticks(&self) -> Vec<(f64, bool)> {
        let mut ticks = vec![];
        let mut decade = self.low;
        while decade <= self.high {
            for (times, whole) in [(1.0, true), (2.0, false), (5.0, false)] {
                ticks.push((decade * times, whole));
            }
            decade *= 10.0;
        }
        ticks.retain(|(s, _)| *s <= self.high);
        ticks
    }
}

struct Svg(String);

impl Svg {
    fn new(height: f64) -> Svg {
        Svg(format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\" font-family=\"Inter, 'Segoe UI', 'Helvetica Neue', Arial, 'DejaVu Sans', sans-serif\">\n<rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#ffffff\"/>\n"
        ))
    }

    fn text(&mut self, (x, y): (f64, f64), size: f64, fill: &str, more: &str, text: &str) {
        let text = printable::markup(text);
        let _ = writeln!(
            self.0,
            "<text x=\"{x:.1}\" y=\"{y:.1}\" font-size=\"{size}\" fill=\"{fill}\"{more}>{text}</text>"
        );
    }

    fn bar(&mut self, (x, y): (f64, f64), width: f64, fill: &str) {
        let width = width.max(1.0);
        let _ = writeln!(
            self.0,
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{BAR}\" rx=\"1.5\" fill=\"{fill}\"/>"
        );
    }

    fn head(&mut self, part: &ConditionPart, machine: &Machine) {
        let title = format!("{}: {}", part.name.name(), part.what);
        self.text((MARGIN, 34.0), 17.0, INK, " font-weight=\"600\"", &title);
        let runs = match machine.repetitions {
            1 => "one run".into(),
            n => format!("medians of {n} runs"),
        };
        let under = format!(
            "seconds of wall clock, logarithmic; {runs}, size {}, {} CPUs; corefit bench overcommit --conditions {}",
            machine.size,
            machine.cpus,
            part.name.name()
        );
        self.text((MARGIN, 53.0), 11.5, FAINT, "", &under);
        let mut x = MARGIN;
        for (fill, name, width) in [
            (DEFAULT, "default", 74.0),
            (COREFIT, "corefit run", 98.0),
            (ORACLE, "oracle (best fixed thread count, known afterwards)", 0.0),
        ] {
            self.bar((x, 67.0), 14.0, fill);
            self.text((x + 19.0, 75.5), 11.5, INK, "", name);
            x += width + 14.0;
        }
    }

    fn panel(
        &mut self,
        part: &ConditionPart,
        runtime: Runtime,
        rows: &[&Row],
        axis: &Axis,
        (left, width): (f64, f64),
    ) {
        let zero = left + NAMES;
        let length = width - NAMES - LABELS;
        let x = |s: f64| zero + length * axis.at(s);
        let bottom = HEAD + f64::from(u32::try_from(rows.len()).unwrap_or(0)) * ROW;
        let gain = mean(&part.programs, Some(runtime), Values::default_vs_corefit);
        let near = mean(&part.programs, Some(runtime), Values::corefit_vs_oracle);
        let library = match runtime {
            Runtime::Gcc => "gcc, libgomp",
            Runtime::Clang => "clang, libomp",
        };
        let heading = format!(
            "{library}: default/corefit {}, corefit/oracle {}",
            bounded(gain, factor),
            bounded(near, factor)
        );
        self.text((left, HEAD - 10.0), 12.5, INK, " font-weight=\"600\"", &heading);
        let decades = (axis.high / axis.low).log10();
        for (s, whole) in axis.ticks() {
            let (at, colour) = (x(s), if whole { "#cbd2d9" } else { GRID });
            let _ = writeln!(
                self.0,
                "<line x1=\"{at:.1}\" y1=\"{HEAD}\" x2=\"{at:.1}\" y2=\"{bottom:.1}\" stroke=\"{colour}\"/>"
            );
            if whole || decades <= 2.0 {
                let more = " text-anchor=\"middle\"";
                let label = format!("{} s", rounded(s));
                self.text((at, bottom + 16.0), 11.0, FAINT, more, &label);
            }
        }
        let mut y = HEAD + 7.0;
        for row in rows {
            let middle = y + 1.5 * BAR + 4.0;
            let more = " text-anchor=\"end\"";
            self.text((zero - 8.0, middle), 12.0, INK, more, row.name);
            let v = &row.values;
            for (value, fill, labelled) in
                [(v.default, DEFAULT, true), (v.corefit, COREFIT, true), (v.oracle, ORACLE, false)]
            {
                if let Some(value) = value {
                    let end = x(value.number);
                    self.bar((zero, y), end - zero, fill);
                    if labelled {
                        self.text((end + 4.0, y + BAR - 1.0), 9.5, fill, "", &label(value));
                    }
                }
                y += BAR;
            }
            y += ROW - 3.0 * BAR;
        }
    }
}

/// A tick without the dust of multiplying: `0.2`, not `0.200…1`.
fn rounded(s: f64) -> f64 {
    (s * 1e6).round() / 1e6
}

/// `1.23 s`, or `cut off at 60 s`.
fn label(value: Value) -> String {
    match value.bound {
        Bound::AtLeast => format!("> {:.0} s", value.number),
        _ => format!("{} s", seconds(value.number)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::conditions::Condition;
    use super::super::document::tests::{part, row};
    use super::*;

    #[test]
    fn the_picture_is_well_formed_and_has_a_bar_for_every_time() {
        let rows = vec![
            row("ep", Runtime::Gcc, [2.0, 1.0, 1.0, 1.1]),
            row("lu", Runtime::Gcc, [-60.0, 30.0, 1.0, 1.21]),
            row("ep", Runtime::Clang, [2.0, 1.0, 1.0, 1.1]),
            row("unsafe_tp", Runtime::Gcc, [2.0, 1.0, 0.0, 1.1]),
        ];
        let svg = render(&part(Condition::Neighbour, rows), &Machine::default()).unwrap();
        let document = corefit_linux::formats::well_formed(&svg);
        assert!(document.is_ok(), "{document:?}");
        let bars = svg.matches("<rect ").count();
        assert_eq!(bars, 1 + 3 + 3 * 3, "background, legend, bars");
        assert!(svg.contains("&lt;2 &amp; 3&gt; loops"));
        assert!(svg.contains("&gt; 60 s"), "a cut off run is labelled so");
        assert!(!svg.contains("unsafe_tp") && !svg.contains("NaN"));
    }

    #[test]
    fn without_an_oracle_there_is_no_picture() {
        let part = part(Condition::Neighbour, vec![row("ep", Runtime::Gcc, [2.0, 1.0, 0.0, 1.1])]);
        assert!(render(&part, &Machine::default()).is_none());
    }

    #[test]
    fn the_axis_is_logarithmic_and_begins_below_the_shortest_bar() {
        let axis = Axis::over([0.5, 20.0].into_iter()).unwrap();
        assert!((axis.low - 0.1).abs() < 1e-12);
        assert!(axis.at(0.1).abs() < 1e-12);
        assert!((axis.at(1.0) - axis.at(0.1) - (axis.at(10.0) - axis.at(1.0))).abs() < 1e-12);
        assert!((axis.at(999.0) - 1.0).abs() < 1e-12);
        let ticks: Vec<f64> = axis.ticks().iter().map(|(s, _)| *s).collect();
        assert_eq!(ticks.len(), 8, "{ticks:?}");
        assert!(Axis::over(std::iter::empty()).is_none());
    }

    #[test]
    fn the_least_time_has_a_visible_bar() {
        for least in [0.1, 0.11, 0.99, 1.0, 1.2] {
            let axis = Axis::over([least, 5.0].into_iter()).unwrap();
            assert!(axis.at(least) > 0.05, "{least}: {axis:?}");
        }
    }
}

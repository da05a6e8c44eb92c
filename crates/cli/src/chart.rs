//! Line charts with error bars, as SVG.

mod ticks;

use anyhow::{Result, anyhow};
use plotters::coord::ranged1d::{Ranged, ValueFormatter};
use plotters::element::DashedPathElement;
use plotters::prelude::*;

use ticks::{Ticked, label, multiples, number, step};

/// What is drawn.
#[derive(Debug)]
pub(crate) struct Chart {
    pub(crate) title: String,
    /// Small print below.
    pub(crate) note: String,
    pub(crate) x: String,
    pub(crate) y: String,
    /// x is the number of one of these, not an amount.
    pub(crate) categories: Option<Vec<String>>,
    /// The axis of amounts, all above 0, is logarithmic.
    pub(crate) logarithmic_x: bool,
    /// y is never logarithmic, however far its ends are apart.
    pub(crate) linear_y: bool,
    pub(crate) series: Vec<Series>,
}

/// One line.
#[derive(Debug)]
pub(crate) struct Series {
    pub(crate) name: String,
    /// x, y, and half the width of y's interval.
    pub(crate) points: Vec<(f64, f64, Option<f64>)>,
}

/// As many lines as can be told apart: by colours (Okabe and Ito's, which colour-blind people can, too), dashes and marks.
pub(crate) const MOST: usize = 32;
const COLOURS: [RGBColor; 8] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(230, 159, 0),
    RGBColor(60, 60, 60),
    RGBColor(150, 150, 150),
];
/// Length of a dash and of the gap after it. Each has less ink than the one before: what it is drawn over shows in its gaps.
const DASHES: [(i32, i32); COLOURS.len()] =
    [(1_000_000, 0), (18, 4), (12, 6), (6, 4), (8, 8), (4, 6), (2, 4), (2, 8)];
const INK: RGBColor = RGBColor(31, 41, 51);
const GRID: RGBColor = RGBColor(228, 231, 235);

/// Of the plot without its legend, and of the whole picture with a short one.
const PLOT: u32 = 738;
const HEIGHT: u32 = 560;
/// Of the legend: between lines, of a letter on average, and at most in all.
const LINE: u32 = 22;
const LETTER: u32 = 7;
const LEGEND: (u32, u32) = (222, 560);
const FONT: &str = "sans-serif";

/// Above this ratio of the greatest to the least y, the axis is logarithmic.
const LOGARITHMIC: f64 = 50.0;

/// The picture.
///
/// # Errors
/// If there is nothing to draw, or too much to be told apart.
pub(crate) fn svg(chart: &Chart) -> Result<String> {
    let points = || chart.series.iter().flat_map(|s| &s.points);
    anyhow::ensure!(points().next().is_some(), "there is nothing to draw");
    anyhow::ensure!(
        chart.series.len() <= MOST,
        "{} lines cannot be told apart, {MOST} can; take some values out of the lists",
        chart.series.len()
    );
    let mut text = String::new();
    draw(chart, &mut text).map_err(|e| anyhow!("cannot draw: {e}"))?;
    Ok(text)
}

fn draw(chart: &Chart, text: &mut String) -> Result<(), Box<dyn std::error::Error>> {
    let points = || chart.series.iter().flat_map(|s| &s.points);
    let longest = chart.series.iter().map(|s| s.name.chars().count()).max().unwrap_or(0);
    let legend_width = (u32::try_from(longest)? * LETTER + 54).clamp(LEGEND.0, LEGEND.1);
    let width = PLOT + legend_width;
    let height = HEIGHT.max(96 + LINE * u32::try_from(chart.series.len())?);
    let root = SVGBackend::with_string(text, (width, height)).into_drawing_area();
    root.fill(&WHITE)?;
    let style = |size: u32| (FONT, size).into_font().color(&INK);
    // A long title has smaller letters rather than a gap.
    let room = width - 40;
    let (size, most) =
        if chart.title.chars().count() > (room / 9) as usize { (15, room / 7) } else { (20, room / 9) };
    root.draw(&Text::new(shortened(&chart.title, most), (20, 14), style(size)))?;
    root.draw(&Text::new(
        shortened(&chart.note, width / LETTER),
        (20, i32::try_from(height)? - 24),
        style(13),
    ))?;
    let left = i32::try_from(PLOT)? + 12;
    let named = chart.series.iter().zip(looks()).filter(|(series, _)| !series.name.is_empty());
    for ((series, look), number) in named.zip(0..) {
        let y = 64 + i32::try_from(LINE)? * number;
        root.draw(&line_of(vec![(left, y + 6), (left + 30, y + 6)], look))?;
        let (inside, outline) = mark(look);
        root.draw(&(EmptyElement::at((left + 15, y + 6)) + inside + outline))?;
        let name = shortened(&series.name, (legend_width - 54) / LETTER);
        root.draw(&Text::new(name, (left + 38, y), style(13)))?;
    }
    let unnamed = chart.series.iter().all(|series| series.name.is_empty());
    let area = root.margin(48, 32, 12, if unnamed { 20 } else { legend_width });
    let ends = |values: &mut dyn Iterator<Item = f64>| {
        values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| (low.min(v), high.max(v)))
    };
    // What is never negative has no bars below 0 either.
    let bottom = if points().all(|p| p.1 >= 0.0) { 0.0 } else { f64::NEG_INFINITY };
    let (left, right) = ends(&mut points().map(|p| p.0));
    let (least, _) = ends(&mut points().map(|p| p.1));
    let (low, high) = ends(&mut points().flat_map(|p| {
        let half = p.2.unwrap_or(0.0);
        [(p.1 - half).max(bottom), p.1 + half]
    }));
    let edge = if chart.categories.is_some() || left == 0.0 && right == 0.0 {
        0.5
    } else if right > left {
        (right - left) * 0.04
    } else {
        left.abs() / 2.0
    };
    let mut builder = ChartBuilder::on(&area);
    builder.x_label_area_size(48).y_label_area_size(76);
    let logarithmic = !chart.linear_y && least > 0.0 && high > least * LOGARITHMIC;
    let floor = if low > 0.0 { low } else { least } / 1.5;
    let top = high + (high - low.min(0.0)) * 0.05;
    let amounts = low.min(0.0)..if top > 0.0 { top } else { 1.0 };
    let x = left - edge..right + edge;
    let log_x = (left / 1.5..right * 1.5).log_scale();
    let log_y = (floor..high * 1.5).log_scale();
    let counts = points().all(|p| p.0.fract() == 0.0);
    let step_x = if chart.categories.is_some() { 1.0 } else { step(&x, 10, counts) };
    let step_y = step(&amounts, 8, false);
    let (at_x, at_y) = (multiples(&x, step_x), multiples(&amounts, step_y));
    let (x, y) = (Ticked::new(x, at_x), Ticked::new(amounts, at_y));
    let (by_x, by_y) = (|at: &f64| label(*at, step_x), |at: &f64| label(*at, step_y));
    let any = |at: &f64| number(*at);
    match (chart.logarithmic_x && left > 0.0, logarithmic) {
        (false, false) => lines(chart, &mut builder.build_cartesian_2d(x, y)?, (&by_x, &by_y), bottom)?,
        (false, true) => lines(chart, &mut builder.build_cartesian_2d(x, log_y)?, (&by_x, &any), floor)?,
        (true, false) => lines(chart, &mut builder.build_cartesian_2d(log_x, y)?, (&any, &by_y), bottom)?,
        (true, true) => lines(chart, &mut builder.build_cartesian_2d(log_x, log_y)?, (&any, &any), floor)?,
    }
    root.present()?;
    Ok(())
}

/// What stands at the ticks of x and y.
type Labels<'a> = (&'a dyn Fn(&f64) -> String, &'a dyn Fn(&f64) -> String);
type Context<'a, 'b, X, Y> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<X, Y>>;

fn lines<X, Y>(
    chart: &Chart,
    context: &mut Context<'_, '_, X, Y>,
    (amounts, y_label): Labels<'_>,
    floor: f64,
) -> Result<(), Box<dyn std::error::Error>>
where
    X: Ranged<ValueType = f64> + ValueFormatter<f64>,
    Y: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    let names = |x: &f64| {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a small index")]
        let name = chart.categories.iter().flatten().nth(x.round().max(0.0) as usize);
        name.cloned().unwrap_or_default()
    };
    let x_label = if chart.categories.is_some() { &names } else { amounts };
    context
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(GRID)
        .axis_style(INK)
        .x_labels(10)
        .y_labels(8)
        .x_label_formatter(&x_label)
        .y_label_formatter(&y_label)
        .x_desc(chart.x.clone())
        .y_desc(chart.y.clone())
        .axis_desc_style((FONT, 15).into_font().color(&INK))
        .label_style((FONT, 13).into_font().color(&INK))
        .draw()?;
    for ((series, look), number) in chart.series.iter().zip(looks()).zip(0_u32..) {
        let colour = look.0;
        let mut points = series.points.clone();
        if chart.categories.is_some() {
            // Side by side, so that bars do not hide each other.
            let all = f64::from(u32::try_from(chart.series.len()).unwrap_or(1));
            points.iter_mut().for_each(|p| p.0 += (f64::from(number) + 0.5 - all / 2.0) * 0.8 / all);
        }
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        if chart.categories.is_none() {
            context.draw_series([line_of(points.iter().map(|p| (p.0, p.1)).collect(), look)])?;
        }
        let bars = points.iter().filter_map(|&(x, y, half)| Some((x, y, half?)));
        for (x, low, high) in bars.map(|(x, y, half)| (x, (y - half).max(floor), y + half)) {
            let end = |y| EmptyElement::at((x, y)) + PathElement::new(vec![(-4, 0), (4, 0)], colour);
            context.draw_series([PathElement::new(vec![(x, low), (x, high)], colour)])?;
            context.draw_series([low, high].map(end))?;
        }
        context.draw_series(points.iter().map(|p| {
            let (inside, outline) = mark(look);
            EmptyElement::at((p.0, p.1)) + inside + outline
        }))?;
    }
    Ok(())
}

/// Colour and dashes.
type Look = (RGBColor, (i32, i32));
/// Of a mark, from its middle.
type Corner = (i32, i32);

/// Of one line after the other: the first eight differ in both, all in one of them.
fn looks() -> impl Iterator<Item = Look> {
    let all = COLOURS.len();
    (0..MOST).map(move |n| (COLOURS[n % all], DASHES[(n + n / all) % all]))
}

fn line_of<P: Clone>(
    points: Vec<P>,
    (colour, (dash, gap)): Look,
) -> DashedPathElement<std::vec::IntoIter<P>, i32> {
    DashedPathElement::new(points, dash, gap, colour.stroke_width(2))
}

/// A mark, another one for each of the [`DASHES`]. All but the first are almost hollow, so that those below show.
fn mark((colour, dash): Look) -> (Polygon<Corner>, PathElement<Corner>) {
    let number = DASHES.iter().position(|d| *d == dash).unwrap_or(0);
    let mut corners = match number {
        0 => vec![(0, -3), (2, -2), (3, 0), (2, 2), (0, 3), (-2, 2), (-3, 0), (-2, -2)],
        1 => vec![(0, -7), (6, 5), (-6, 5)],
        2 => vec![(0, -8), (8, 0), (0, 8), (-8, 0)],
        3 => vec![(-5, -5), (5, -5), (5, 5), (-5, 5)],
        4 => vec![(0, 7), (6, -5), (-6, -5)],
        5 => vec![(0, -7), (5, -5), (7, 0), (5, 5), (0, 7), (-5, 5), (-7, 0), (-5, -5)],
        6 => vec![(7, 0), (-5, 6), (-5, -6)],
        _ => vec![(-7, 0), (5, 6), (5, -6)],
    };
    corners.push(corners[0]);
    let inside = colour.mix(if number == 0 { 1.0 } else { 0.15 }).filled();
    (Polygon::new(corners.clone(), inside), PathElement::new(corners, colour.stroke_width(2)))
}

/// So many letters at most; what is left out is in the middle, where lists of values differ least.
fn shortened(text: &str, most: u32) -> String {
    let (letters, most) = (text.chars().count(), most as usize);
    if letters <= most {
        return text.to_owned();
    }
    let (head, tail) = (most * 2 / 3, most - most * 2 / 3 - 1);
    text.chars().take(head).chain(['…']).chain(text.chars().skip(letters - tail)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(lines: usize) -> Chart {
        let series = |n: usize| Series {
            name: format!("line <{n}>"),
            points: vec![(1.0, 1.0, None), (2.0, 100.0, Some(3.0))],
        };
        Chart {
            title: "a title".into(),
            note: "a note".into(),
            x: "vCPUs".into(),
            y: "s".into(),
            categories: None,
            logarithmic_x: false,
            linear_y: false,
            series: (0..lines).map(series).collect(),
        }
    }

    #[test]
    fn a_picture_holds_its_titles_lines_and_names() {
        let picture = svg(&chart(2)).unwrap();
        for text in ["a title", "a note", "vCPUs", "line &lt;0&gt;", "line &lt;1&gt;"] {
            assert!(picture.contains(text), "{text}: {picture}");
        }
        assert!(picture.matches("<polyline").count() >= 2, "{picture}");
        assert!(picture.starts_with("<svg") && picture.trim_end().ends_with("</svg>"), "{picture}");
    }

    #[test]
    fn a_logarithmic_axis_puts_factors_at_equal_steps() {
        let mut chart = chart(1);
        chart.series[0].points = [1.0, 10.0, 100.0].map(|x| (x, 1.0, None)).to_vec();
        let line = |chart: &Chart| {
            let picture = svg(chart).unwrap();
            let points = picture.split("points=\"").map(|p| p.split('"').next().unwrap_or_default());
            let steps = |line: &str| -> Vec<i32> {
                let xs: Vec<i32> =
                    line.split_whitespace().filter_map(|xy| xy.split(',').next()?.parse().ok()).collect();
                xs.windows(2).map(|pair| pair[1] - pair[0]).collect()
            };
            points
                .map(steps)
                .filter(|steps| steps.len() == 2)
                .last()
                .map(|steps| (steps[1], steps[0]))
                .unwrap()
        };
        let (second, first) = line(&chart);
        assert!(second > 5 * first, "{first} {second}");
        chart.logarithmic_x = true;
        let (second, first) = line(&chart);
        assert!((second - first).abs() <= 1, "{first} {second}");
    }

    #[test]
    fn an_axis_that_is_to_be_linear_is_and_begins_at_nothing() {
        let mut chart = chart(1);
        let heights = |chart: &Chart| -> Vec<String> {
            let picture = svg(chart).unwrap();
            let labels = picture.split("</text>").filter_map(|text| text.rsplit('>').next());
            labels.map(|label| label.trim().to_owned()).collect()
        };
        chart.series[0].points = vec![(1.0, 0.01, None), (2.0, 4.0, None)];
        assert!(!heights(&chart).contains(&"3".to_owned()), "{:?}", heights(&chart));
        chart.linear_y = true;
        let labels = heights(&chart);
        assert!(labels.contains(&"3".to_owned()) && labels.contains(&"0".to_owned()), "{labels:?}");
    }

    #[test]
    fn what_cannot_be_told_apart_is_not_drawn() {
        assert!(svg(&chart(MOST)).is_ok());
        let told = svg(&chart(MOST + 1)).unwrap_err().to_string();
        assert!(told.starts_with("33 lines cannot be told apart, 32 can"), "{told}");
        assert_eq!(svg(&chart(0)).unwrap_err().to_string(), "there is nothing to draw");
    }

    #[test]
    fn every_line_has_its_own_look_and_those_beside_it_other_dashes_and_marks() {
        let all: std::collections::BTreeSet<String> = looks().map(|look| format!("{look:?}")).collect();
        assert_eq!(all.len(), MOST);
        let first: std::collections::BTreeSet<_> = looks().take(COLOURS.len()).map(|look| look.1).collect();
        assert_eq!(first.len(), COLOURS.len());
    }

    #[test]
    fn a_legend_has_room_for_its_names_and_shortens_the_longest() {
        let with = |name: String| {
            let mut chart = chart(1);
            chart.series[0].name = name;
            svg(&chart).unwrap()
        };
        let whole = "a-name-of-forty-letters-fits-into-it-whole";
        assert!(with(whole.into()).contains(whole));
        assert!(with("x".repeat(300)).contains("…x"));
        let mut titled = chart(1);
        titled.title = "a title of ninety letters ".repeat(4);
        assert!(svg(&titled).unwrap().contains(titled.title.trim()));
        assert_eq!(shortened("abcdefghij", 7), "abcd…ij");
        let tall = svg(&chart(32)).unwrap();
        assert!(tall.contains("height=\"800\""), "{}", &tall[..120]);
    }
}

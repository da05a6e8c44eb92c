//! Line charts with error bars, as SVG.

use anyhow::{Result, anyhow};
use plotters::coord::ranged1d::{Ranged, ValueFormatter};
use plotters::element::DashedPathElement;
use plotters::prelude::*;

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

/// As many lines as can be told apart: by colours (Okabe and Ito's, which colour-blind people can, too), then by dashes
/// and marks.
pub(crate) const MOST: usize = COLOURS.len() * DASHES.len();
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
/// Length of a dash and of the gap after it.
const DASHES: [(i32, i32); 4] = [(1_000_000, 0), (10, 5), (2, 4), (18, 4)];
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
    root.draw(&Text::new(shortened(&chart.title, width / 11), (20, 14), style(20)))?;
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
        root.draw(&(EmptyElement::at((left + 15, y + 6)) + Polygon::new(corners(look), look.0.filled())))?;
        let name = shortened(&series.name, (legend_width - 54) / LETTER);
        root.draw(&Text::new(name, (left + 38, y), style(13)))?;
    }
    let area = root.margin(48, 32, 12, legend_width);
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
    let edge = if chart.categories.is_some() { 0.5 } else { ((right - left) * 0.04).max(1e-9) };
    let mut builder = ChartBuilder::on(&area);
    builder.x_label_area_size(48).y_label_area_size(76);
    let logarithmic = !chart.linear_y && least > 0.0 && high > least * LOGARITHMIC;
    let floor = if low > 0.0 { low } else { least } / 1.5;
    let amounts = low.min(0.0)..(high + (high - low.min(0.0)) * 0.05).max(1e-9);
    let (x, y) = (left - edge..right + edge, (floor..high * 1.5).log_scale());
    let log_x = (left / 1.5..right * 1.5).log_scale();
    match (chart.logarithmic_x && left > 0.0, logarithmic) {
        (false, false) => lines(chart, &mut builder.build_cartesian_2d(x, amounts)?, bottom)?,
        (false, true) => lines(chart, &mut builder.build_cartesian_2d(x, y)?, floor)?,
        (true, false) => lines(chart, &mut builder.build_cartesian_2d(log_x, amounts)?, bottom)?,
        (true, true) => lines(chart, &mut builder.build_cartesian_2d(log_x, y)?, floor)?,
    }
    root.present()?;
    Ok(())
}

type Context<'a, 'b, X, Y> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<X, Y>>;

fn lines<X, Y>(
    chart: &Chart,
    context: &mut Context<'_, '_, X, Y>,
    floor: f64,
) -> Result<(), Box<dyn std::error::Error>>
where
    X: Ranged<ValueType = f64> + ValueFormatter<f64>,
    Y: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    let whole = chart.series.iter().flat_map(|s| &s.points).all(|p| p.0.fract() == 0.0);
    let amounts = |x: &f64| if whole && x.fract() != 0.0 { String::new() } else { number(*x) };
    let names = |x: &f64| {
        let near = (x - x.round()).abs() < 1e-6;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a small index")]
        let name = chart.categories.iter().flatten().nth(x.round().max(0.0) as usize);
        if near && *x > -0.5 { name.cloned().unwrap_or_default() } else { String::new() }
    };
    let label: &dyn Fn(&f64) -> String = if chart.categories.is_some() { &names } else { &amounts };
    let count = chart.categories.as_ref().map_or(10, |names| 2 * names.len() + 1);
    context
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(GRID)
        .axis_style(INK)
        .x_labels(count)
        .y_labels(8)
        .x_label_formatter(&label)
        .y_label_formatter(&|y| number(*y))
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
        context.draw_series(bars.map(|(x, y, half)| {
            ErrorBar::new_vertical(x, (y - half).max(floor), y, y + half, colour.filled(), 8)
        }))?;
        context.draw_series(
            points
                .iter()
                .map(|p| EmptyElement::at((p.0, p.1)) + Polygon::new(corners(look), colour.filled())),
        )?;
    }
    Ok(())
}

/// Colour and dashes.
type Look = (RGBColor, (i32, i32));

/// Of one line after the other.
fn looks() -> impl Iterator<Item = Look> {
    DASHES.into_iter().flat_map(|dash| COLOURS.map(|colour| (colour, dash)))
}

fn line_of<P: Clone>(
    points: Vec<P>,
    (colour, (dash, gap)): Look,
) -> DashedPathElement<std::vec::IntoIter<P>, i32> {
    DashedPathElement::new(points, dash, gap, colour.stroke_width(2))
}

/// The corners of a mark, another one for each of the [`DASHES`]: a disc, a triangle, a diamond, a square.
fn corners((_, dash): Look) -> Vec<(i32, i32)> {
    match DASHES.iter().position(|d| *d == dash) {
        Some(1) => vec![(0, -6), (6, 5), (-6, 5)],
        Some(2) => vec![(0, -6), (6, 0), (0, 6), (-6, 0)],
        Some(3) => vec![(-4, -4), (4, -4), (4, 4), (-4, 4)],
        _ => vec![(0, -4), (3, -3), (4, 0), (3, 3), (0, 4), (-3, 3), (-4, 0), (-3, -3)],
    }
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

/// With about three digits that mean something.
fn number(x: f64) -> String {
    match x.abs() {
        s if s >= 1e6 => format!("{:.3}M", x / 1e6).replace(".000M", "M").replace("00M", "M"),
        s if s >= 100.0 => format!("{x:.0}"),
        _ => {
            let text = format!("{x:.3}");
            text.trim_end_matches('0').trim_end_matches('.').to_owned()
        }
    }
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
    fn every_line_has_its_own_look() {
        let all: std::collections::BTreeSet<String> = looks().map(|look| format!("{look:?}")).collect();
        assert_eq!(all.len(), MOST);
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
        assert_eq!(shortened("abcdefghij", 7), "abcd…ij");
        let tall = svg(&chart(32)).unwrap();
        assert!(tall.contains("height=\"800\""), "{}", &tall[..120]);
    }

    #[test]
    fn numbers_of_axes_are_short() {
        let texts = [0.0, 0.05, 2.0, 12.5, 1234.0, 2_500_000.0].map(number);
        assert_eq!(texts, ["0", "0.05", "2", "12.5", "1234", "2.5M"]);
    }
}

//! Line charts with error bars, as SVG.

use anyhow::{Result, anyhow};
use plotters::coord::ranged1d::{Ranged, ValueFormatter};
use plotters::coord::types::RangedCoordf64;
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
    pub(crate) series: Vec<Series>,
}

/// One line.
#[derive(Debug)]
pub(crate) struct Series {
    pub(crate) name: String,
    /// x, y, and half the width of y's interval.
    pub(crate) points: Vec<(f64, f64, Option<f64>)>,
}

/// As many lines as can be told apart (Okabe and Ito's colours, which colour-blind people can, too).
pub(crate) const MOST: usize = 8;
const COLOURS: [RGBColor; MOST] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(230, 159, 0),
    RGBColor(60, 60, 60),
    RGBColor(150, 150, 150),
];
const INK: RGBColor = RGBColor(31, 41, 51);
const GRID: RGBColor = RGBColor(228, 231, 235);

const SIZE: (u32, u32) = (960, 560);
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
    let root = SVGBackend::with_string(text, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let style = |size: u32| (FONT, size).into_font().color(&INK);
    root.draw(&Text::new(chart.title.clone(), (20, 14), style(20)))?;
    root.draw(&Text::new(chart.note.clone(), (20, 536), style(13)))?;
    let legend = i32::try_from(SIZE.0).unwrap_or(960) - 210;
    for (number, series) in (0..).zip(&chart.series) {
        let y = 64 + 22 * number;
        let colour = COLOURS[usize::try_from(number).unwrap_or(0) % MOST];
        root.draw(&PathElement::new([(legend, y + 6), (legend + 22, y + 6)], colour.stroke_width(2)))?;
        root.draw(&Circle::new((legend + 11, y + 6), 4, colour.filled()))?;
        root.draw(&Text::new(series.name.clone(), (legend + 30, y), style(13)))?;
    }
    let area = root.margin(48, 32, 12, 222);
    let ends = |values: &mut dyn Iterator<Item = f64>| {
        values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| (low.min(v), high.max(v)))
    };
    let (left, right) = ends(&mut points().map(|p| p.0));
    let (least, _) = ends(&mut points().map(|p| p.1));
    let (low, high) = ends(&mut points().flat_map(|p| {
        let half = p.2.unwrap_or(0.0);
        [p.1 - half, p.1 + half]
    }));
    let edge = if chart.categories.is_some() { 0.5 } else { ((right - left) * 0.04).max(1e-9) };
    let x = left - edge..right + edge;
    let mut builder = ChartBuilder::on(&area);
    builder.x_label_area_size(48).y_label_area_size(76);
    if least > 0.0 && high > least * LOGARITHMIC {
        let low = if low > 0.0 { low } else { least };
        let y = (low / 1.5..high * 1.5).log_scale();
        lines(chart, &mut builder.build_cartesian_2d(x, y)?, low / 1.5)?;
    } else {
        let y = low.min(0.0)..(high + (high - low.min(0.0)) * 0.05).max(1e-9);
        lines(chart, &mut builder.build_cartesian_2d(x, y)?, f64::NEG_INFINITY)?;
    }
    root.present()?;
    Ok(())
}

type Context<'a, 'b, Y> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordf64, Y>>;

fn lines<Y>(
    chart: &Chart,
    context: &mut Context<'_, '_, Y>,
    floor: f64,
) -> Result<(), Box<dyn std::error::Error>>
where
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
    for (series, colour) in chart.series.iter().zip(COLOURS) {
        let mut points = series.points.clone();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        if chart.categories.is_none() {
            context
                .draw_series(LineSeries::new(points.iter().map(|p| (p.0, p.1)), colour.stroke_width(2)))?;
        }
        let bars = points.iter().filter_map(|&(x, y, half)| Some((x, y, half?)));
        context.draw_series(bars.map(|(x, y, half)| {
            ErrorBar::new_vertical(x, (y - half).max(floor), y, y + half, colour.filled(), 8)
        }))?;
        context.draw_series(points.iter().map(|p| Circle::new((p.0, p.1), 4, colour.filled())))?;
    }
    Ok(())
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
    fn what_cannot_be_told_apart_is_not_drawn() {
        let told = svg(&chart(9)).unwrap_err().to_string();
        assert!(told.starts_with("9 lines cannot be told apart, 8 can"), "{told}");
        assert_eq!(svg(&chart(0)).unwrap_err().to_string(), "there is nothing to draw");
    }

    #[test]
    fn numbers_of_axes_are_short() {
        let texts = [0.0, 0.05, 2.0, 12.5, 1234.0, 2_500_000.0].map(number);
        assert_eq!(texts, ["0", "0.05", "2", "12.5", "1234", "2.5M"]);
    }
}

//! Where an axis has ticks, and what stands there.

use std::ops::Range;

use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint, Ranged};
use plotters::coord::types::RangedCoordf64;

/// A linear axis with ticks at given places.
pub(super) struct Ticked {
    axis: RangedCoordf64,
    at: Vec<f64>,
}

impl Ticked {
    pub(super) fn new(range: Range<f64>, at: Vec<f64>) -> Ticked {
        Ticked { axis: range.into(), at }
    }
}

impl Ranged for Ticked {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        self.axis.map(value, limit)
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        self.at.clone()
    }

    fn range(&self) -> Range<f64> {
        self.axis.range()
    }
}

/// What is between two ticks of a range, so that there are about `most`: 1, 2 or 5 times a power of 10; of counts,
/// a whole number.
pub(super) fn step(range: &Range<f64>, most: u32, counts: bool) -> f64 {
    let least = (range.end - range.start) / f64::from(most);
    let power = 10_f64.powf(least.log10().floor());
    let factor = [1.0, 2.0, 5.0].into_iter().find(|factor| factor * power >= least).unwrap_or(10.0);
    if counts { (factor * power).max(1.0) } else { factor * power }
}

/// The multiples of a step within a range.
pub(super) fn multiples(range: &Range<f64>, step: f64) -> Vec<f64> {
    let first = (range.start / step).ceil();
    (0..1000).map(|n| (first + f64::from(n)) * step).take_while(|at| *at <= range.end + step * 1e-9).collect()
}

/// A number with as many digits as tell it from one that is a step away.
pub(super) fn label(x: f64, step: f64) -> String {
    let (scale, unit) = if x.abs() >= 1e6 { (1e6, "M") } else { (1.0, "") };
    let tells = |digits: &u8| step / scale * 10_f64.powi(i32::from(*digits)) > 0.999;
    let digits = (0..=15).find(tells).map_or(0, usize::from);
    let text = format!("{:.digits$}", x / scale);
    let text = if digits > 0 { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    format!("{text}{unit}")
}

/// A number with three digits, or those before its point.
pub(super) fn number(x: f64) -> String {
    label(x, x.abs() / 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(range: Range<f64>, counts: bool) -> Vec<String> {
        let step = step(&range, 10, counts);
        multiples(&range, step).into_iter().map(|at| label(at, step)).collect()
    }

    #[test]
    fn ticks_beside_each_other_have_different_labels() {
        for low in [-1.0, 0.0, 0.07, 3.0] {
            for exponent in -9..9 {
                let scale = 10_f64.powi(exponent);
                let labels = labels(low * scale..(low + 2.9) * scale, false);
                assert!((5..=11).contains(&labels.len()), "{low} {exponent}: {labels:?}");
                assert!(labels.windows(2).all(|pair| pair[0] != pair[1]), "{labels:?}");
            }
        }
        assert_eq!(labels(-0.0001..0.0031, false)[..4], ["0", "0.0005", "0.001", "0.0015"]);
    }

    #[test]
    fn counts_have_ticks_at_whole_numbers_only() {
        assert_eq!(labels(0.9..3.1, true), ["1", "2", "3"]);
        assert_eq!(labels(0.9..3.1, false)[..3], ["1", "1.5", "2"]);
        assert_eq!(labels(-2.5..66.5, true), ["0", "10", "20", "30", "40", "50", "60"]);
    }

    #[test]
    fn numbers_of_axes_are_short() {
        let texts = [0.0, 0.05, 0.00025, 2.0, 12.5, 100.0, 1234.0, 2_500_000.0].map(number);
        assert_eq!(texts, ["0", "0.05", "0.00025", "2", "12.5", "100", "1234", "2.5M"]);
    }
}

//! Medians, means with confidence intervals, geometric means, ratios of lower bounds.

use serde::Serialize;

/// A number of which possibly only a lower bound is known (a run that was cut off).
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Value {
    pub(crate) number: f64,
    pub(crate) bound: Bound,
}

/// How a number relates to the true one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bound {
    /// It is the true one.
    Exact,
    /// The true one is at least this.
    AtLeast,
    /// The true one is at most this.
    AtMost,
}

impl Value {
    pub(crate) fn exact(number: f64) -> Value {
        Value { number, bound: Bound::Exact }
    }

    pub(crate) fn at_least(number: f64) -> Value {
        Value { number, bound: Bound::AtLeast }
    }

    /// This over `other`; `None` if nothing is known about the result.
    pub(crate) fn over(self, other: Value) -> Option<Value> {
        use Bound::{AtLeast, AtMost, Exact};
        let inverse = match other.bound {
            Exact => Exact,
            AtLeast => AtMost,
            AtMost => AtLeast,
        };
        let bound = both(self.bound, inverse)?;
        (other.number > 0.0).then_some(Value { number: self.number / other.number, bound })
    }
}

/// What is known of a product whose factors are known so well.
fn both(a: Bound, b: Bound) -> Option<Bound> {
    match (a, b) {
        (Bound::Exact, other) | (other, Bound::Exact) => Some(other),
        (a, b) => (a == b).then_some(a),
    }
}

/// The median; `None` of nothing.
pub(crate) fn median(numbers: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut sorted: Vec<f64> = numbers.into_iter().collect();
    sorted.sort_by(f64::total_cmp);
    let upper = *sorted.get(sorted.len() / 2)?;
    if sorted.len() % 2 == 1 {
        return Some(upper);
    }
    Some(f64::midpoint(sorted[sorted.len() / 2 - 1], upper))
}

/// The geometric mean; `None` of nothing, or where lower and upper bounds mix.
pub(crate) fn geomean(values: impl IntoIterator<Item = Value>) -> Option<Value> {
    let values: Vec<Value> = values.into_iter().collect();
    let bound = values.iter().try_fold(Bound::Exact, |bound, value| both(bound, value.bound))?;
    let mean = geometric(values.iter().map(|value| value.number))?;
    Some(Value { number: mean.mean, bound })
}

/// The geometric mean, and about which part of it is half its 95 % interval; `None` of nothing.
pub(crate) fn geometric(numbers: impl IntoIterator<Item = f64>) -> Option<Mean> {
    let logs = Mean::of(numbers.into_iter().map(f64::ln))?;
    Some(Mean { mean: logs.mean.exp(), ..logs })
}

/// A mean, and half the width of its 95 % confidence interval.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Mean {
    pub(crate) mean: f64,
    /// `None` from one run.
    pub(crate) ci95: Option<f64>,
    pub(crate) n: usize,
}

/// Student's t for a two-sided 95 % interval, by degrees of freedom from 1.
const T: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
];

/// Student's t for so many values, two at least.
fn students(n: usize) -> f64 {
    // Beyond the table the expansion of the quantile is good to 0.001.
    let f = (n - 1) as f64;
    T.get(n - 2).copied().unwrap_or(1.96 + 2.372 / f + 2.82 / (f * f))
}

impl Mean {
    /// `None` of nothing.
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Option<Mean> {
        let values: Vec<f64> = values.into_iter().collect();
        let n = values.len();
        if n == 0 {
            return None;
        }
        let mean = values.iter().sum::<f64>() / n as f64;
        let squares: f64 = values.iter().map(|x| (x - mean).powi(2)).sum();
        let ci95 = (n > 1).then(|| students(n) * (squares / (n - 1) as f64 / n as f64).sqrt());
        Some(Mean { mean, ci95, n })
    }

    /// The standard deviation of the runs. `None` from one run.
    fn deviation(self) -> Option<f64> {
        self.ci95.map(|half| half / students(self.n) * (self.n as f64).sqrt())
    }

    /// The coefficient of variation: the standard deviation of the runs over their mean. `None` from one run.
    pub(crate) fn variation(self) -> Option<f64> {
        self.deviation().map(|deviation| deviation / self.mean)
    }

    /// Half the width of the 95 % interval that so many runs, two at least, would have if they scattered as these do. `None` from one run.
    pub(crate) fn ci95_of(self, runs: usize) -> Option<f64> {
        self.deviation().map(|deviation| students(runs) * deviation / (runs as f64).sqrt())
    }

    /// Of runs with an `(over, under)` each: all of `over` over all of `under`. `None` of nothing.
    pub(crate) fn of_ratio(runs: &[(f64, f64)]) -> Option<Mean> {
        let (over, under) = runs.iter().fold((0.0, 0.0), |sum, run| (sum.0 + run.0, sum.1 + run.1));
        let (ratio, usual) = (over / under, under / runs.len() as f64);
        Mean::of(runs.iter().map(|(over, under)| ratio + (over - ratio * under) / usual))
    }

    /// This over the mean of other runs. The parts by which the two may be off are added as squares.
    pub(crate) fn over(self, other: Mean) -> Mean {
        let mean = self.mean / other.mean;
        let part = |of: Mean| of.ci95.map(|half| half / of.mean);
        let ci95 = part(self).zip(part(other)).map(|(a, b)| mean * a.hypot(b));
        Mean { mean, ci95, n: self.n.min(other.n) }
    }

    /// This, `factor` times.
    pub(crate) fn times(self, factor: f64) -> Mean {
        Mean { mean: self.mean * factor, ci95: self.ci95.map(|half| half * factor), ..self }
    }
}

/// A 95 % interval of the ratio of what two lots of runs take, from their logarithms; `None` with less than two runs of
/// either. The half-widths of the two means are added as squares.
pub(crate) fn ratio_interval(over: &[f64], under: &[f64]) -> Option<[f64; 2]> {
    let log = |runs: &[f64]| Mean::of(runs.iter().map(|s| s.ln()));
    let (over, under) = (log(over)?, log(under)?);
    let (middle, half) = (over.mean - under.mean, over.ci95?.hypot(under.ci95?));
    Some([(middle - half).exp(), (middle + half).exp()])
}

/// A number of things as an amount; exact below 2^53.
pub(crate) fn count(n: usize) -> f64 {
    n as f64
}

/// The same of one that may be large.
pub(crate) fn number(n: u64) -> f64 {
    n as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_ignores_one_outlier_and_halves_an_even_count() {
        assert_eq!(median([1.0, 60.0, 2.0]), Some(2.0));
        assert_eq!(median([4.0, 1.0, 2.0, 60.0]), Some(3.0));
        assert_eq!(median([]), None);
    }

    #[test]
    fn the_geometric_mean_of_a_factor_and_its_inverse_is_one() {
        let mean = geomean([4.0, 0.25, 1.0].map(Value::exact)).unwrap();
        assert!((mean.number - 1.0).abs() < 1e-12);
        assert_eq!(mean.bound, Bound::Exact);
        assert_eq!(geomean([]), None);
    }

    #[test]
    fn the_interval_of_a_ratio_is_as_wide_as_the_runs_scatter() {
        let [low, high] = ratio_interval(&[2.0, 2.2, 1.8], &[1.0, 1.1, 0.9]).unwrap();
        assert!(low < 1.7 && high > 2.4, "{low} {high}");
        let [low, high] = ratio_interval(&[2.0, 2.001, 1.999], &[1.0, 1.001, 0.999]).unwrap();
        assert!((low - 2.0).abs() < 0.01 && (high - 2.0).abs() < 0.01 && low < 2.0 && high > 2.0);
        assert_eq!(ratio_interval(&[2.0, 2.0], &[1.0]), None);
    }

    #[test]
    fn a_cut_off_run_makes_ratios_bounds() {
        let (run, cut) = (Value::exact(2.0), Value::at_least(60.0));
        let ratio = cut.over(run).unwrap();
        assert_eq!((ratio.number, ratio.bound), (30.0, Bound::AtLeast));
        assert_eq!(run.over(cut).unwrap().bound, Bound::AtMost);
        assert_eq!(cut.over(cut), None);
        assert_eq!(geomean([ratio, run]).unwrap().bound, Bound::AtLeast);
        assert_eq!(geomean([ratio, run.over(cut).unwrap()]), None);
    }

    #[test]
    fn an_interval_is_students() {
        let mean = Mean::of([1.0, 2.0, 3.0]).unwrap();
        assert_eq!((mean.mean, mean.n), (2.0, 3));
        assert!((mean.ci95.unwrap() - 4.303 / 3.0_f64.sqrt()).abs() < 1e-9);
        assert!(Mean::of([1.0]).unwrap().ci95.is_none());
        assert!(Mean::of([]).is_none());
    }

    #[test]
    fn more_runs_that_scatter_as_much_would_have_a_narrower_interval() {
        let mean = Mean::of([1.0, 2.0, 3.0]).unwrap();
        assert!((mean.ci95_of(3).unwrap() - mean.ci95.unwrap()).abs() < 1e-12);
        assert!((mean.ci95_of(12).unwrap() - 2.201 / 12.0_f64.sqrt()).abs() < 1e-12, "a deviation of 1");
        assert!(Mean::of([1.0]).unwrap().ci95_of(12).is_none());
    }

    #[test]
    fn runs_that_take_longer_count_for_more_in_a_ratio_of_sums() {
        let mean = Mean::of_ratio(&[(1.0, 1.0), (9.0, 3.0)]).unwrap();
        assert!((mean.mean - 2.5).abs() < 1e-12, "{mean:?}: 10 over 4");
        // Residuals over the mean of what is divided by: -0.75 and 0.75.
        assert!((mean.ci95.unwrap() - 12.706 * 0.75).abs() < 1e-9, "{mean:?}");
        let same = Mean::of_ratio(&[(2.0, 1.0), (6.0, 3.0)]).unwrap();
        assert!(same.ci95.unwrap() < 1e-12, "the ratio is the same each time: {same:?}");
        assert!(Mean::of_ratio(&[]).is_none() && Mean::of_ratio(&[(1.0, 2.0)]).unwrap().ci95.is_none());
    }

    #[test]
    fn a_mean_over_another_is_as_uncertain_as_both() {
        let of = |mean, ci95| Mean { mean, ci95, n: 10 };
        let over = of(8.0, Some(0.24)).over(of(2.0, Some(0.08)));
        assert!((over.mean - 4.0).abs() < 1e-12 && (over.ci95.unwrap() - 0.2).abs() < 1e-12, "{over:?}");
        assert!(of(8.0, None).over(of(2.0, Some(0.1))).ci95.is_none());
        assert_eq!(of(8.0, Some(0.5)).times(0.5).ci95, Some(0.25));
    }

    #[test]
    fn beyond_the_table_the_quantile_goes_on() {
        // t(0.975, 40) = 2.0211, t(0.975, 120) = 1.9799.
        for (n, t) in [(41_u32, 2.0211), (121, 1.9799)] {
            let values: Vec<f64> = (0..n).map(f64::from).collect();
            let n = f64::from(n);
            let deviation = (n * (n + 1.0) / 12.0).sqrt(); // of 0 to n - 1
            let ci = Mean::of(values).unwrap().ci95.unwrap();
            assert!((ci / (deviation / n.sqrt()) - t).abs() < 0.001, "{n}: {ci}");
        }
    }
}

//! How long something took on several hosts, against what is promised.

use std::time::Instant;

use serde::Serialize;

use crate::stats::median;

/// Times over some hosts, ms, and what is promised.
#[derive(Serialize)]
pub(super) struct Measured {
    median_ms: f64,
    least_ms: f64,
    most_ms: f64,
    promised_ms: Option<f64>,
    /// Whether the slowest is within the promise.
    met: Option<bool>,
}

impl Measured {
    /// `None` of nothing.
    pub(super) fn of(times: &[f64], promised_ms: Option<f64>) -> Option<Measured> {
        let most_ms = times.iter().copied().max_by(f64::total_cmp)?;
        Some(Measured {
            median_ms: median(times.iter().copied())?,
            least_ms: times.iter().copied().min_by(f64::total_cmp)?,
            most_ms,
            promised_ms,
            met: promised_ms.map(|promised| most_ms <= promised),
        })
    }

    /// The median, from the least to the most, and the verdict.
    pub(super) fn text(&self) -> [String; 3] {
        let number = |x: f64| if x < 10.0 { format!("{x:.2}") } else { format!("{x:.0}") };
        let verdict = self.promised_ms.zip(self.met).map(|(most, met)| {
            let word = if met { "met" } else { "NOT met" };
            format!("{most}: {word}")
        });
        let spread = format!("{}-{}", number(self.least_ms), number(self.most_ms));
        [number(self.median_ms), spread, verdict.unwrap_or("-".into())]
    }
}

/// Since then, ms.
pub(super) fn ms(start: Instant) -> f64 {
    start.elapsed().as_secs_f64() * 1e3
}

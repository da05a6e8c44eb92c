//! Times in arguments: `500us`, `200ms`, `1s`, `5m`, `1h`.

use std::ops::RangeInclusive;
use std::time::Duration;

/// The shortest time between two looks at a machine; clocks tick in hundredths of a second.
const SHORTEST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(366 * 24 * 3600);

/// A time from 100 ms to a year.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    within(text, SHORTEST..=LONGEST)
        .ok_or_else(|| "a time from 100ms to 366d is needed, like 500ms, 1s, 5m or 8h".into())
}

/// Time between two looks of a controller, as `interval_ms` of a configuration has it: 50 ms to 10 s.
pub(crate) fn look(text: &str) -> Result<Duration, String> {
    within(text, Duration::from_millis(50)..=Duration::from_secs(10))
        .ok_or_else(|| "a time from 50ms to 10s is needed, like 1s".into())
}

/// An allocation period, and what a VM may stand still for: 1 ms to 1 s.
pub(crate) fn period(text: &str) -> Result<Duration, String> {
    within(text, Duration::from_millis(1)..=Duration::from_secs(1))
        .ok_or_else(|| "a time from 1ms to 1s is needed, like 24ms".into())
}

/// A time with its unit, if it lies within.
pub(crate) fn within(text: &str, bounds: RangeInclusive<Duration>) -> Option<Duration> {
    let text = text.trim();
    let digits = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let unit = match &text[digits..] {
        "us" => Some(1e-6),
        "ms" => Some(1e-3),
        "s" => Some(1.0),
        "m" | "min" => Some(60.0),
        "h" => Some(3600.0),
        "d" => Some(86400.0),
        _ => None,
    };
    let seconds = unit.and_then(|unit| Some(text[..digits].trim().parse::<f64>().ok()? * unit));
    let time = seconds.and_then(|s| Duration::try_from_secs_f64(s).ok());
    time.filter(|time| bounds.contains(time))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_a_unit_and_are_long_enough() {
        for (text, ms) in [("100ms", 100), ("1s", 1000), ("0.5s", 500), ("2m", 120_000), ("1h", 3_600_000)] {
            assert_eq!(duration(text), Ok(Duration::from_millis(ms)));
        }
        for text in ["", "1", "s", "-1s", "1y", "99ms", "nans", "infs", "1e99s", "400d", "1 s x"] {
            let why = duration(text).unwrap_err();
            assert!(why.contains("from 100ms to 366d"), "{text}: {why}");
        }
    }

    #[test]
    fn a_controller_looks_as_often_as_a_configuration_may_say() {
        let refused = |ms: u64| {
            let policy = corefit_core::decide::Policy { interval_ms: ms, ..Default::default() };
            policy.check().is_err()
        };
        for ms in [49, 50, 10_000, 10_001] {
            assert_eq!(look(&format!("{ms}ms")).is_err(), refused(ms), "{ms}");
        }
        assert!(look("10d").unwrap_err().contains("from 50ms to 10s"));
    }

    #[test]
    fn periods_are_from_a_millisecond_to_a_second() {
        for (text, us) in
            [("24ms", 24_000), ("0.1s", 100_000), ("1500us", 1500), ("1ms", 1000), ("1s", 1_000_000)]
        {
            assert_eq!(period(text), Ok(Duration::from_micros(us)));
        }
        for bad in ["24", "0ms", "999us", "2s", "ms", "NaNms", "-1s", "", "1m"] {
            assert!(period(bad).is_err(), "{bad}");
        }
    }
}

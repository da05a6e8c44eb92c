//! A histogram of waits: 16 steps per power of two, so a quantile is at most 1/16 too large.

/// Steps per power of two, as a power of two.
const FINE: u32 = 4;
const PLACES: usize = 64 << FINE;

/// How many waits took how long, in any unit.
#[derive(Clone, Debug)]
pub(super) struct Waits {
    counts: Vec<u64>,
    total: u64,
    longest: u64,
}

impl Default for Waits {
    fn default() -> Waits {
        Waits { counts: vec![0; PLACES], total: 0, longest: 0 }
    }
}

impl Waits {
    /// Notes one wait.
    pub(super) fn note(&mut self, wait: u64) {
        self.counts[place(wait)] += 1;
        self.total += 1;
        self.longest = self.longest.max(wait);
    }

    /// Adds another's.
    pub(super) fn add(&mut self, other: &Waits) {
        self.counts.iter_mut().zip(&other.counts).for_each(|(a, b)| *a += b);
        self.total += other.total;
        self.longest = self.longest.max(other.longest);
    }

    /// The wait that this part of all does not exceed; `None` of none.
    pub(super) fn quantile(&self, part: f64) -> Option<f64> {
        let need = (crate::stats::number(self.total) * part).ceil();
        let mut seen = 0.0;
        for (place, count) in self.counts.iter().enumerate() {
            seen += crate::stats::number(*count);
            if seen >= need && seen > 0.0 {
                return Some(crate::stats::number(upper(place).min(self.longest)));
            }
        }
        None
    }

    /// The longest wait, if there is one.
    pub(super) fn longest(&self) -> Option<f64> {
        (self.total > 0).then(|| crate::stats::number(self.longest))
    }
}

fn place(wait: u64) -> usize {
    let bits = 64 - wait.leading_zeros();
    if bits <= FINE {
        return usize::try_from(wait).unwrap_or(0);
    }
    let shift = bits - FINE - 1;
    let step = usize::try_from(wait >> shift).unwrap_or(0) - (1 << FINE);
    ((shift as usize + 1) << FINE) + step
}

/// The largest wait of a place.
fn upper(place: usize) -> u64 {
    let (power, step) = (place >> FINE, (place & ((1 << FINE) - 1)) as u64);
    if power == 0 { step } else { (((1 << FINE) + step + 1) << (power - 1)) - 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_wait_lies_in_its_place_and_not_far_below_its_upper_end() {
        for wait in (0..2000).chain([1 << 20, (1 << 40) + 12345, u64::from(u32::MAX)]) {
            let (upper, below) = (upper(place(wait)), place(wait).checked_sub(1).map(upper));
            assert!(wait <= upper && below.is_none_or(|b| b < wait), "{wait}");
            assert!(upper - wait <= wait / 16, "{wait} {upper}");
        }
    }

    #[test]
    fn quantiles_of_a_hundred_different_waits() {
        let mut waits = Waits::default();
        (1..=100).for_each(|n| waits.note(n));
        let median = waits.quantile(0.5);
        assert!(median.is_some_and(|median| (49.0..=53.0).contains(&median)), "{median:?}");
        assert_eq!((waits.quantile(1.0), waits.longest()), (Some(100.0), Some(100.0)));
        assert_eq!((Waits::default().quantile(0.5), Waits::default().longest()), (None, None));
    }
}

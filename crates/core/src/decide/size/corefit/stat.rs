//! What a VM did with a count, and how much that tells.

/// Fewer units tell nothing of what a pCPU second brings: as many as a race waits for.
const ENOUGH: f64 = 8.0;

/// What one look at a VM showed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look {
    /// vCPUs there really were.
    pub(super) online: u32,
    /// Units of work.
    pub(super) units: f64,
    /// pCPUs used, and the VM's own part.
    pub(super) used: f64,
    pub(super) part: f64,
    /// pCPUs of its own part that its own cap kept from it, to be had later; below 0 what it had before its time.
    pub(super) withheld: f64,
}

/// What a VM did with a count.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Stat {
    pub(super) seconds: f64,
    pub(super) units: f64,
    /// pCPU seconds used, and those of the VM's own part.
    pub(super) used: f64,
    pub(super) part: f64,
    /// pCPU seconds of it that were withheld.
    pub(super) withheld: f64,
    /// Looks, and the sum of their units squared per second: how units vary.
    pub(super) looks: u32,
    pub(super) squares: f64,
}

impl Stat {
    pub(super) fn add(&mut self, look: &Look, seconds: f64) {
        self.seconds += seconds;
        self.units += look.units;
        self.used += look.used * seconds;
        self.part += look.part * seconds;
        self.withheld += look.withheld * seconds;
        self.looks += 1;
        self.squares += look.units * look.units / seconds.max(1e-9);
    }

    /// The same of who takes no part: units in a look, and pCPUs used.
    pub(super) fn add_units(&mut self, units: f64, used: f64, seconds: f64) {
        let look = Look { online: 0, units, used, part: used, withheld: 0.0 };
        self.add(&look, seconds);
    }

    /// The looks of another, too.
    pub(super) fn add_stat(&mut self, other: &Stat) {
        self.seconds += other.seconds;
        self.units += other.units;
        self.used += other.used;
        self.part += other.part;
        self.withheld += other.withheld;
        self.looks += other.looks;
        self.squares += other.squares;
    }

    /// Half of what is known is forgotten.
    pub(super) fn fade(&mut self) {
        let Stat { seconds, units, used, part, withheld, looks, squares } = *self;
        let half = |value: f64| value / 2.0;
        *self = Stat {
            seconds: half(seconds),
            units: half(units),
            used: half(used),
            part: half(part),
            withheld: half(withheld),
            looks: looks / 2,
            squares: half(squares),
        };
    }

    /// Worth per second; `None` before it was looked at.
    pub(super) fn value(&self) -> Option<f64> {
        Some(self.rate()? * self.own())
    }

    pub(super) fn rate(&self) -> Option<f64> {
        (self.lasted() > 0.0).then(|| self.units / self.lasted())
    }

    /// Seconds that count: a VM with a cap uses its part by turns, several times of it with all vCPUs and then nothing, for longer than a
    /// look. What is withheld comes later, or came before.
    pub(super) fn lasted(&self) -> f64 {
        if self.withheld > 0.0 {
            self.seconds * (1.0 - self.withheld / self.part).max(0.0)
        } else {
            self.seconds
        }
    }

    /// Standard deviation of looks' worth per second, by their time.
    pub(super) fn deviation(&self) -> f64 {
        let rate = self.units / self.seconds.max(1e-9);
        (self.squares / self.seconds.max(1e-9) - rate * rate).max(0.0).sqrt() * self.own()
    }

    /// Standard error of what looks were worth in the mean.
    pub(super) fn error_of_looks(&self) -> f64 {
        self.deviation() / f64::from(self.looks.max(2) - 1).sqrt()
    }

    /// Of what was used the part that was the own one.
    pub(super) fn own(&self) -> f64 {
        if self.used > self.part { self.part / self.used } else { 1.0 }
    }

    /// pCPUs used.
    pub(super) fn used(&self) -> Option<f64> {
        (self.seconds > 0.0).then(|| self.used / self.seconds)
    }

    /// Units per pCPU second used; `None` where hardly any were counted, or used.
    fn per_used(&self) -> Option<f64> {
        (self.units >= ENOUGH && self.used > 0.0).then(|| self.units / self.used)
    }

    /// Which part of what is used brings no work, by the best that a pCPU second brought in one of these: spinning and what
    /// else waiting costs (docs/sizing.md, "Spin share").
    pub(super) fn spins<'a>(&self, others: impl Iterator<Item = &'a Stat>) -> Option<f64> {
        let own = self.per_used()?;
        let each = others.filter_map(|other| Some((other.per_used()?, other)));
        let (best, of) = each.fold((own, self), |best, other| if other.0 > best.0 { other } else { best });
        let share = 1.0 - own / best;
        // Counting alone may make as much.
        let chance = self.chance(self.bursts()).hypot(of.chance(of.bursts()));
        Some(if share > 2.0 * chance { share } else { 0.0 })
    }

    /// How its looks' units vary: the sum over looks of (units - expected)^2 / expected, and one less than looks.
    pub(super) fn varies(&self) -> (f64, f64) {
        if self.units <= 0.0 || self.looks < 2 {
            return (0.0, 0.0);
        }
        ((self.squares * self.seconds / self.units - self.units).max(0.0), f64::from(self.looks - 1))
    }

    /// How far off its value may be, as a part of it: what schedulers' turns do to short looks (measured on the
    /// simulated host), and counting. `bursts`: variance of the number of units over its mean. Half a unit may be missing at
    /// each end.
    pub(super) fn error(&self, bursts: f64) -> f64 {
        self.error_of_turns() + self.chance(bursts)
    }

    /// The part of that which is schedulers' turns.
    pub(super) fn error_of_turns(&self) -> f64 {
        0.02 + 0.05 * (0.2 / self.lasted().max(1e-3)).sqrt()
    }

    /// Variance of the number of units in its looks over their mean, 1 at least.
    pub(super) fn bursts(&self) -> f64 {
        let (sum, looks) = self.varies();
        if looks > 0.0 { (sum / looks).max(1.0) } else { 1.0 }
    }

    /// The part of that which is counting: a standard error.
    pub(super) fn chance(&self, bursts: f64) -> f64 {
        let units = self.units.max(1.0);
        (bursts / units).sqrt().max(1.0 / units)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A cap of one pCPU: 16 vCPUs use half a second's in a tenth, then nothing; looks see any part of that.
    #[test]
    fn what_a_cap_withholds_says_nothing_against_a_count() {
        let value = |looks: &[f64], capped: bool| {
            let mut stat = Stat::default();
            for &used in looks {
                let withheld = if capped { 1.0 - used } else { 0.0 };
                stat.add(&Look { online: 16, units: 130.0 * used * 0.1, used, part: 1.0, withheld }, 0.1);
            }
            stat.value().map(f64::round)
        };
        for looks in [&[5.0][..], &[0.0, 0.0, 0.5], &[5.0, 0.0, 0.0], &[5.0, 0.0, 0.0, 0.0, 0.0]] {
            assert_eq!(value(looks, true), Some(130.0), "{looks:?}");
        }
        assert_eq!(value(&[0.0, 0.0, 0.5], false), Some(22.0), "who idles by itself");
        assert_eq!(value(&[0.0, 0.0], true), None, "nothing is known yet");
    }

    #[test]
    fn the_spin_share_is_what_the_best_count_would_not_need() {
        let stat = |units, used| Stat { seconds: 10.0, units, used, ..Stat::default() };
        let (two, eight) = (stat(100.0, 20.0), stat(124.0, 40.0));
        let share = |now: &Stat, others: &[Stat]| now.spins(others.iter()).map(|s| (100.0 * s).round());
        assert_eq!(share(&eight, &[two, eight]), Some(38.0), "3.1 units instead of 5");
        assert_eq!(share(&two, &[two, eight]), Some(0.0));
        assert_eq!(share(&eight, &[stat(7.0, 0.1)]), Some(0.0), "seven units tell nothing");
        assert_eq!(share(&stat(7.0, 0.1), &[two]), None);
        assert_eq!(share(&stat(100.0, 0.0), &[two]), None);
    }
}

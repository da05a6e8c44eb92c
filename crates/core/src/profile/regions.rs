//! How much less CPU time a run's work takes on one CPU: the same parallel regions, as they run and with all threads there.
//!
//! How much CPU time a program needs more beside itself (cores, caches and memory that threads share, data that moves
//! between them, caches that are cold after blocking) is not to be seen in its CPU time. But most programs do the same many
//! times. For some milliseconds now and then, all threads may run on one CPU only: a *window*. What lies between the beginnings
//! of two parallel regions is a *turn*; turns that begin with the same region are of one kind. If N_k turns of a kind take
//! a_k as a rule, and b_k in windows, one CPU takes sum N_k b_k for what takes sum N_k a_k; times the CPU time that the program
//! gets meanwhile, for others may run, too. Threads still block on one CPU; what that costs is left out.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::Time;

/// Left out at the beginning of windows and after their end, ns: threads and what they work on move. (Here turns of cg, ft
/// and bt took as long in the first 2 ms of a window as after 15.)
const SETTLE_NS: u64 = 1_000_000;
/// Turns of a kind, as a rule, from which on it tells something.
const FEW: u64 = 3;
/// Part of the time in turns that kinds seen in windows have to make up.
const COVERED: f64 = 0.75;
/// What blocking costs is measured with two threads: if it were more than this part of the CPU time there, the rest would tell nothing.
/// (mg with eight threads in an emulated VM: 99 %, and a prediction of a fifth of what it got.)
const MOST_BLOCKING: f64 = 0.5;
/// A window that took so many times as long as the middle one, or as little, was disturbed.
const DISTURBED: f64 = 1.5;

/// What the turns tell.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct OneCpu {
    /// CPU time that the run's work takes on one CPU, over what it took; with two standard errors.
    pub part: f64,
    /// See above.
    pub low: f64,
    /// See above.
    pub high: f64,
    /// Windows that tell it.
    pub windows: usize,
    /// Part of the time in turns that is of kinds seen in windows.
    pub covered: f64,
}

#[derive(Clone, Copy, Default)]
struct Sum {
    turns: u64,
    ns: f64,
    squares: f64,
}

impl Sum {
    fn add(&mut self, ns: f64) {
        self.turns += 1;
        self.ns += ns;
        self.squares += ns * ns;
    }

    /// With other turns, of which this part of the time is CPU time.
    fn merge(&mut self, other: &Sum, part: f64) {
        self.turns += other.turns;
        self.ns += part * other.ns;
        self.squares += part * part * other.squares;
    }

    fn mean(&self) -> f64 {
        self.ns / self.turns as f64
    }

    /// Of one turn, over the mean, squared; at most 1.
    fn variation(&self) -> f64 {
        (self.squares / self.turns as f64 / self.mean().powi(2) - 1.0).clamp(0.0, 1.0)
    }
}

/// A window: when, its end once it has one, the CPU time that the program had in it, ns, and the turns of each kind.
struct Window {
    from: Time,
    end: Option<Time>,
    cpu_ns: f64,
    kinds: BTreeMap<u64, Sum>,
}

/// Takes regions and windows in, in the order of time.
#[derive(Default)]
pub struct Turns {
    /// Turns outside of windows, by kind.
    kinds: BTreeMap<u64, Sum>,
    /// All turns of each.
    counts: BTreeMap<u64, u64>,
    windows: Vec<Window>,
    last: Option<(Time, u64)>,
    in_turns_ns: f64,
}

impl Window {
    /// CPU time in each ns.
    fn pace(&self) -> f64 {
        let ns = self.end.map_or(0.0, |end| end.since(self.from).as_nanos() as f64);
        if ns > 0.0 { (self.cpu_ns / ns).min(1.0) } else { 0.0 }
    }
}

impl Turns {
    /// Threads are on one CPU from now on, until [`Turns::close`].
    pub fn open(&mut self, now: Time) {
        self.windows.push(Window { from: now, end: None, cpu_ns: 0.0, kinds: BTreeMap::new() });
    }

    /// They may run on all CPUs again; meanwhile they ran for so long, ns.
    pub fn close(&mut self, now: Time, cpu_ns: f64) {
        if let Some(window) = self.windows.last_mut().filter(|window| window.end.is_none()) {
            (window.end, window.cpu_ns) = (Some(now), cpu_ns);
        }
    }

    /// The program was stopped: neither this turn nor a window that is open tells anything.
    pub fn skip(&mut self) {
        self.last = None;
        self.windows.pop_if(|window| window.end.is_none());
    }

    /// Beginnings of regions, and which they are: all that came before the last change of the window's state, too.
    pub fn take(&mut self, begun: &[(Time, u64)]) {
        for &(at, key) in begun {
            if let Some((since, kind)) = self.last.replace((at, key)) {
                self.turn(since, at, kind);
            }
        }
    }

    /// Length of the turn that a moment outside of windows is in, on average, ns; 0 without turns.
    #[must_use]
    pub fn typical_ns(&self) -> f64 {
        let (ns, squares) = self.kinds.values().fold((0.0, 0.0), |(ns, sq), k| (ns + k.ns, sq + k.squares));
        if ns > 0.0 { squares / ns } else { 0.0 }
    }

    fn turn(&mut self, since: Time, until: Time, kind: u64) {
        let ns = until.since(since).as_nanos() as f64;
        *self.counts.entry(kind).or_default() += 1;
        self.in_turns_ns += ns;
        let settled = |from: Time| since.0 >= from.0.saturating_add(SETTLE_NS);
        let kinds = match self.windows.last_mut() {
            None => &mut self.kinds,
            Some(window) if until <= window.from => &mut self.kinds,
            Some(window) if window.end.is_some_and(settled) => &mut self.kinds,
            Some(window) if settled(window.from) && window.end.is_none_or(|end| until <= end) => {
                &mut window.kinds
            }
            Some(_) => return,
        };
        kinds.entry(kind).or_default().add(ns);
    }

    /// CPU time of turns of a window over the time that such turns take as a rule; `None` without any that can be compared.
    fn ratio(&self, window: &Window) -> Option<f64> {
        let (mut there, mut rule) = (0.0, 0.0);
        for (kind, sum) in &window.kinds {
            let Some(usual) = self.kinds.get(kind).filter(|usual| usual.turns >= FEW) else { continue };
            there += window.pace() * sum.ns;
            rule += sum.turns as f64 * usual.mean();
        }
        (rule > 0.0 && there > 0.0).then(|| there / rule)
    }

    /// What they tell of a run of this length, that took so much CPU time, and in which blocking would cost so much on one
    /// CPU. `None` if windows saw too little of it.
    #[must_use]
    pub fn one_cpu(&self, took_ns: f64, cpu_ns: f64, blocking_ns: f64) -> Option<OneCpu> {
        let ratios: Vec<(&Window, f64)> =
            self.windows.iter().filter_map(|window| Some((window, self.ratio(window)?))).collect();
        let mut sorted: Vec<f64> = ratios.iter().map(|(_, ratio)| *ratio).collect();
        sorted.sort_by(f64::total_cmp);
        let middle = *sorted.get(sorted.len() / 2)?;
        let calm = |ratio: f64| sorted.len() < 3 || (ratio.max(middle) / ratio.min(middle)) <= DISTURBED;
        let mut there: BTreeMap<u64, Sum> = BTreeMap::new();
        let windows = ratios.iter().filter(|(_, ratio)| calm(*ratio));
        for (window, _) in windows.clone() {
            for (kind, sum) in &window.kinds {
                there.entry(*kind).or_default().merge(sum, window.pace());
            }
        }
        let (mut all, mut rule, mut window, mut variance) = (0.0, 0.0, 0.0, 0.0);
        for (kind, usual) in self.kinds.iter().filter(|(_, usual)| usual.turns >= FEW) {
            let turns = self.counts.get(kind).map_or(0.0, |turns| *turns as f64);
            all += turns * usual.mean();
            if let Some(sum) = there.get(kind) {
                rule += turns * usual.mean();
                window += turns * sum.mean();
                variance += (turns * sum.mean()).powi(2) * usual.variation() / sum.turns as f64;
            }
        }
        if rule < COVERED * self.in_turns_ns || took_ns <= 0.0 || cpu_ns <= 0.0 {
            return None;
        }
        // CPU time in each ns as a rule: without windows.
        let (ns, in_windows) = self.windows.iter().fold((0.0, 0.0), |(ns, cpu), window| {
            (ns + window.end.map_or(0.0, |end| end.since(window.from).as_nanos() as f64), cpu + window.cpu_ns)
        });
        let pace = ((cpu_ns - in_windows) / (took_ns - ns)).max(1e-9);
        // What is outside of turns takes as much on one CPU.
        let part = (self.in_turns_ns / took_ns).min(1.0);
        let blocking = blocking_ns / cpu_ns;
        let there = |ratio: f64| 1.0 + part * (ratio / pace - 1.0);
        let whole = |ratio: f64| (there(ratio) - blocking).max(0.01);
        if blocking > MOST_BLOCKING * there(window / rule) {
            return None;
        }
        let (ratio, error) = (window / rule, 2.0 * variance.sqrt() / rule);
        Some(OneCpu {
            part: whole(ratio),
            low: whole(ratio - error),
            high: whole(ratio + error),
            windows: windows.count(),
            covered: rule / all,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Turns of 1 ms and of 2 ms, which take 1.5 and 4 ms in a window of 60 ms after 100 ms; after
    /// a first turn that takes longer.
    fn turns() -> (Turns, f64, f64) {
        let (mut turns, mut at) = (Turns::default(), 0);
        let steps = |turns: &mut Turns, at: &mut u64, until: u64, each: [u64; 2]| {
            let mut begun = vec![];
            while *at < until {
                begun.extend([(Time(*at), 1), (Time(*at + each[0]), 2)]);
                *at += each[0] + each[1];
            }
            turns.take(&begun);
        };
        steps(&mut turns, &mut at, 100 * MS, [MS, 2 * MS]);
        turns.open(Time(at));
        let from = at;
        // At first it is slower.
        let settled = at + MS;
        steps(&mut turns, &mut at, settled, [20 * MS, 4 * MS]);
        let until = at + 60 * MS;
        steps(&mut turns, &mut at, until, [MS + MS / 2, 4 * MS]);
        // The program has the CPU for four fifths of it.
        turns.close(Time(at), 0.8 * at.saturating_sub(from) as f64);
        let window = (at - from) as f64;
        let until = at + 1000 * MS;
        steps(&mut turns, &mut at, until, [MS, 2 * MS]);
        // Else it runs on all of two CPUs.
        (turns, at as f64, 2.0 * (at as f64 - window) + 0.8 * window)
    }

    #[test]
    fn one_cpu_takes_what_the_same_turns_take_there() {
        let (turns, took, cpu) = turns();
        // As a rule 6 ms of CPU time in 3; there 5.5 x 0.8.
        let seen = turns.one_cpu(took, cpu, 0.0).unwrap();
        assert!((seen.part - 5.5 * 0.8 / 6.0).abs() < 0.03, "{seen:?}");
        assert!(seen.low <= seen.part && seen.part <= seen.high && seen.high < 0.9, "{seen:?}");
        assert_eq!(seen.windows, 1);
        assert!((seen.covered - 1.0).abs() < 1e-9);
        let blocked = turns.one_cpu(took, cpu, 0.05 * cpu).unwrap();
        assert!((seen.part - blocked.part - 0.05).abs() < 1e-9, "blocking is no work");
        let most = |of: f64| turns.one_cpu(took, cpu, of * seen.part * cpu).is_some();
        assert!(most(0.49) && !most(0.51), "what is left of it tells nothing");
        // Half of the run lies outside of turns.
        let half = turns.one_cpu(2.0 * took, cpu + 2.0 * took, 0.0).unwrap();
        assert!((half.part - f64::midpoint(1.0, seen.part)).abs() < 0.03, "{half:?}");
    }

    #[test]
    fn what_a_stop_fell_into_is_left_out() {
        let (mut turns, took, cpu) = turns();
        let before = turns.one_cpu(took, cpu, 0.0).unwrap();
        let end = turns.last.unwrap().0.0 + 10 * MS;
        turns.open(Time(end));
        turns.take(&[(Time(end + 2 * MS), 1), (Time(end + 4 * MS), 1)]);
        turns.skip();
        turns.take(&[(Time(end + 9_000 * MS), 1), (Time(end + 9_001 * MS), 2)]);
        let after = turns.one_cpu(took, cpu, 0.0).unwrap();
        assert!(after.windows == before.windows && (after.part - before.part).abs() < 0.01, "{after:?}");
    }

    #[test]
    fn without_windows_or_with_too_little_in_them_nothing_is_told() {
        let mut turns = Turns::default();
        turns.take(&(0..100).map(|i| (Time(i * MS), 1)).collect::<Vec<_>>());
        assert_eq!(turns.one_cpu(1e8, 1e8, 0.0), None);
        turns.open(Time(100 * MS));
        turns.take(&[(Time(110 * MS), 2), (Time(111 * MS), 2), (Time(112 * MS), 1)]);
        turns.close(Time(112 * MS), 12e6);
        assert_eq!(turns.one_cpu(1.2e8, 1.2e8, 0.0), None, "a region that is never run but there");
    }

    #[test]
    fn turns_that_differ_among_themselves_make_the_range_wider() {
        let mut turns = Turns::default();
        let mut at = 0;
        let mut go = |turns: &mut Turns, n: u64, factor: u64| {
            for i in 0..n {
                turns.take(&[(Time(at), 1)]);
                at += factor * if i % 2 == 0 { MS } else { 3 * MS };
            }
            at
        };
        let at = go(&mut turns, 100, 1);
        turns.open(Time(at - 3 * MS));
        let end = go(&mut turns, 6, 2);
        turns.close(Time(end), (end - at) as f64);
        let at = go(&mut turns, 100, 1);
        let seen = turns.one_cpu(at as f64, 2.0 * at as f64, 0.0).unwrap();
        assert!(seen.high - seen.low > 0.3, "{seen:?}");
    }
}

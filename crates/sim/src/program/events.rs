//! How many events a program costs, before it runs.

use super::{Op, Program};

/// Time, ns, and events in it.
#[derive(Clone, Copy, Default)]
struct Part {
    ns: f64,
    events: f64,
}

/// A loop without end has so many rounds.
const ENDLESS: f64 = 1e18;
/// What an operation takes that takes no time, as many in a row take some all the same (`host/exec.rs`).
const NO_TIME: Part = Part { ns: 16.0, events: 1.0 / 64.0 };

impl Program {
    /// Events of one thread that has a pCPU to itself, in so many ns: means of lengths, nobody waits. A sleep takes
    /// `halt_ns` more. `again`: at its end it begins anew.
    #[must_use]
    pub(crate) fn events_in(&self, ns: f64, team: u32, halt_ns: f64, again: bool) -> f64 {
        let mut open = vec![(1.0, Part::default())];
        let mut left = Part { ns, events: 0.0 };
        let (begin, end) = again.then_some((Op::Repeat(u32::MAX), Op::Again(0))).unzip();
        for op in begin.iter().chain(&self.ops).chain(&end) {
            let Part { ns, events } = match *op {
                Op::Repeat(rounds) => {
                    let rounds = if rounds == u32::MAX { ENDLESS } else { f64::from(rounds) };
                    open.push((rounds, Part::default()));
                    continue;
                }
                Op::Again(_) => {
                    let (rounds, round) = open.pop().unwrap_or_default();
                    Part { ns: round.ns * rounds, events: round.events * rounds }
                }
                Op::Compute(length) | Op::Sleep(length) => {
                    let length = &self.lengths[usize::from(length)];
                    let mean = length.mean_ns / if length.split { f64::from(team) } else { 1.0 };
                    match op {
                        Op::Sleep(_) => Part { ns: mean + halt_ns, events: 3.0 },
                        _ if mean > 0.0 => Part { ns: mean.max(1.0), events: 1.0 },
                        _ => NO_TIME,
                    }
                }
                _ => NO_TIME,
            };
            if let Some((_, part)) = open.last_mut() {
                part.ns += ns;
                part.events += events;
            }
            // Outside of all loops: what comes first takes its time first.
            if let [(_, done)] = &mut open[..] {
                let Part { ns, events } = std::mem::take(done);
                let part = if ns > left.ns { left.ns / ns } else { 1.0 };
                left.ns -= ns * part;
                left.events += events * part;
            }
        }
        left.events
    }
}

#[cfg(test)]
mod tests {
    use super::Program;

    fn events(text: &str, ns: f64) -> f64 {
        Program::compile(text).unwrap().events_in(ns, 4, 1_000.0, false)
    }

    #[test]
    fn events_are_those_that_fit_into_the_time() {
        for (text, ns, expected) in [
            ("forever { compute 1ns }", 1e9, 1e9),
            ("compute 1ms repeat 1000000 { compute 1us }", 1e9, 1e6),
            ("compute 1s forever { compute 10ns }", 1.5e9, 5e7),
            ("forever { compute 8us split }", 1e9, 5e5),
            ("forever { sleep 9us }", 1e9, 3e5),
            ("repeat 1000 { repeat 1000 { compute 1us } }", 0.5e9, 5e5),
        ] {
            let got = events(text, ns);
            assert!((got / expected - 1.0).abs() < 0.01, "{text}: {got}, not {expected}");
        }
        assert!(events("sleep 0ns forever { mark }", 1e9) < 2e6);
        let again = Program::compile("compute 1us mark").unwrap().events_in(1e9, 4, 1_000.0, true);
        assert!((again / 1e6 - 1.0).abs() < 0.1, "{again}");
    }
}

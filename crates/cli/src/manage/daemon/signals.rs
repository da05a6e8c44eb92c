//! Signals: those that end the daemon, and the one that has it read its configuration again.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::manage::log::{Level, log};

/// What comes so soon after the first signal that ends is the same one: `timeout` sends it to the process, and to its group.
const SAME: Duration = Duration::from_secs(1);

/// Signals that arrived, in order.
pub(in crate::manage) struct Signals {
    arrived: Receiver<i32>,
    /// Set as soon as one arrives that ends.
    pub(in crate::manage) ends: Arc<AtomicBool>,
}

impl Signals {
    /// From now on they arrive here, each with a line of the log.
    pub(in crate::manage) fn catch() -> std::io::Result<Signals> {
        let mut source = signal_hook::iterator::Signals::new([SIGTERM, SIGINT, SIGHUP])?;
        let (sender, arrived) = channel();
        let ends = Arc::new(AtomicBool::new(false));
        let (set, mut first) = (ends.clone(), None);
        let pass = move || {
            let new = |signal: &i32| *signal == SIGHUP || is_new(&mut first, Instant::now());
            source.forever().filter(new).try_for_each(|signal| {
                set.fetch_or(signal != SIGHUP, Ordering::Relaxed);
                log(Level::Info, "arrived", &[("signal", signal.to_string())]);
                sender.send(signal)
            })
        };
        std::thread::Builder::new().name("signals".into()).spawn(pass)?;
        Ok(Signals { arrived, ends })
    }

    /// The next one, within a time.
    pub(super) fn within(&self, time: Duration) -> Option<i32> {
        match self.arrived.recv_timeout(time) {
            Ok(signal) => Some(signal),
            Err(RecvTimeoutError::Timeout) => None,
            // Nobody can end us otherwise any more.
            Err(RecvTimeoutError::Disconnected) => Some(SIGTERM),
        }
    }

    /// Whether it is `enough` of putting back, within a time: whoever signals once more does not want to wait for those who do not
    /// answer. The first one says so only if it was one that ended the daemon (`by_signal`).
    pub(super) fn enough(&self, by_signal: bool) -> impl Fn(Duration) -> bool {
        let left = Cell::new(if by_signal { 1_u32 } else { 2 });
        move |time| {
            let came = self.within(time).is_some_and(|signal| signal != SIGHUP);
            left.set(left.get().saturating_sub(came.into()));
            left.get() == 0
        }
    }
}

/// Whether a signal that ends is not the `first` one once more.
fn is_new(first: &mut Option<Instant>, now: Instant) -> bool {
    let same = first.is_some_and(|first| now.saturating_duration_since(first) < SAME);
    first.get_or_insert(now);
    !same
}

#[cfg(test)]
impl Signals {
    /// Nobody sends some, as long as the sender is there.
    pub(in crate::manage) fn none() -> (std::sync::mpsc::Sender<i32>, Signals) {
        let (sender, arrived) = channel();
        (sender, Signals { arrived, ends: Arc::default() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_signal_is_enough_where_the_first_ended_the_daemon_else_a_third() {
        for (by_signal, expected) in [(true, [false, true, true]), (false, [false, false, true])] {
            let (sender, signals) = Signals::none();
            let enough = signals.enough(by_signal);
            let after = |signal: Option<i32>| {
                signal.into_iter().for_each(|signal| sender.send(signal).unwrap());
                enough(Duration::ZERO)
            };
            assert!(!after(None));
            assert_eq!([SIGHUP, SIGTERM, SIGINT].map(|signal| after(Some(signal))), expected);
            assert_eq!(after(None), expected[2], "it stays so");
        }
    }

    #[test]
    fn what_comes_at_once_after_the_first_signal_is_that_one() {
        let (mut first, begun) = (None, Instant::now());
        let mut new = |ms| is_new(&mut first, begun + Duration::from_millis(ms));
        assert_eq!([0, 1, 999, 1000, 1001].map(&mut new), [true, false, false, true, true]);
    }
}

//! Work per second, from what a VM's programs count.

use std::time::Duration;

use crate::Time;
use crate::machine::VmState;

/// What a VM has done, where somebody counts that by a clock of his own.
#[derive(Clone, Copy, Debug)]
pub(super) struct Counted {
    units: f64,
    pub(super) at: Time,
    /// Units per second between the last two counts.
    pub(super) rate: Option<f64>,
}

/// Work per second; `None` if nobody counted, or the count began anew. Who counts by his own clock did as much lately as
/// between the last two counts that came from him; if a new one is `awaited` and none came, nobody knows.
pub(super) fn rate(
    before: Option<&VmState>,
    vm: &VmState,
    over: Duration,
    awaited: bool,
    counted: &mut Option<Counted>,
) -> Option<f64> {
    let units = vm.progress?;
    let Some(at) = vm.progress_at else {
        let grown = units - before?.progress?;
        return (grown >= 0.0 && !over.is_zero()).then(|| grown / over.as_secs_f64());
    };
    let rate = counted.and_then(|last| match units - last.units {
        _ if at == last.at => last.rate.filter(|_| !awaited),
        grown if at > last.at && grown >= 0.0 => Some(grown / at.since(last.at).as_secs_f64()),
        _ => None,
    });
    *counted = Some(Counted { units, at, rate });
    rate
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::VmState;

    const S: u64 = 1_000_000_000;

    fn vm(progress: Option<f64>, at: Option<u64>) -> VmState {
        VmState { progress, progress_at: at.map(|s| Time(s * S)), ..VmState::default() }
    }

    #[test]
    fn a_count_of_the_snapshots_time_is_taken_over_the_time_between_two() {
        let rate = |before, now| super::rate(Some(&before), &now, Duration::from_secs(2), false, &mut None);
        assert_eq!(rate(vm(Some(1.0), None), vm(Some(5.0), None)), Some(2.0));
        assert_eq!(rate(vm(Some(5.0), None), vm(Some(1.0), None)), None, "it began anew");
        assert_eq!(rate(vm(Some(5.0), None), vm(None, None)), None);
        assert_eq!(rate(vm(None, None), vm(Some(5.0), None)), None);
    }

    #[test]
    fn a_count_with_its_own_time_is_taken_over_that_however_late_it_comes() {
        let mut counted = None;
        let mut one = |progress, at, awaited| {
            super::rate(None, &vm(progress, at), Duration::from_secs(1), awaited, &mut counted)
        };
        let mut rate = |progress, at| one(progress, at, false);
        assert_eq!(rate(Some(10.0), Some(100)), None, "the first");
        assert_eq!(rate(Some(10.0), Some(100)), None, "the same");
        assert_eq!(rate(Some(22.0), Some(104)), Some(3.0));
        assert_eq!(rate(Some(22.0), Some(104)), Some(3.0), "not yet another");
        assert_eq!(rate(Some(22.0), Some(105)), Some(0.0), "nothing was done");
        assert_eq!(rate(Some(3.0), Some(106)), None, "it began anew");
        assert_eq!(rate(Some(9.0), Some(2)), None, "the guest did");
        assert_eq!(rate(Some(9.5), Some(3)), Some(0.5));
        assert_eq!(rate(None, None), None, "nobody counts");
        assert_eq!(rate(Some(10.5), Some(5)), Some(0.5), "over the gap");
        assert_eq!(one(Some(10.5), Some(5), true), None, "awaited");
        assert_eq!(one(Some(11.5), Some(6), true), Some(1.0));
    }
}

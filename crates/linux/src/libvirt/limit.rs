//! Which of a VM's control groups has its limit: that of everything in it (`x.scope`), or what libvirt made in it
//! (`x.scope/libvirt`, on v2 with systemd), where libvirt writes `global_quota` and `global_period`; and how these are written.
//! A quota of the outer one (`systemctl set-property`) is not changed: libvirt does not know of it.

use corefit_core::machine::{Fixed, LeverKind, Limit, MachineError, VmState};
use corefit_core::{Quota, Throttled};

use super::command::Parameter;
use crate::host::VmGroup;

/// Puts the limit of a VM into its state, which has that of its definition; `inner`: what libvirt made in the group, and the limit of
/// that, if it is known; `throttled`: how often its limit stopped a group. Says that it stays where it is not libvirt's.
pub(super) fn fill(
    vm: &mut VmState,
    group: &VmGroup,
    inner: Option<(&str, Option<&Quota>)>,
    throttled: impl FnOnce(&str) -> Option<Throttled>,
) {
    let Some(outer) = &group.quota else { return };
    if inner.is_some() && outer.quota_us.is_some() {
        let reason = format!("somebody limits its control group {}, libvirt only the one in it", group.path);
        vm.fixed.push(Fixed { lever: LeverKind::Quota, reason });
    }
    match inner {
        Some((path, Some(inner))) if outer.quota_us.is_none() && inner.quota_us.is_some() => {
            (vm.quota, vm.throttled) = (Some(inner.clone()), throttled(path));
        }
        // That the outer one has none says nothing of the inner one.
        Some((_, None)) if outer.quota_us.is_none() && vm.quota.is_some() => {}
        _ => (vm.quota, vm.throttled) = (Some(outer.clone()), group.throttled),
    }
}

/// Sets a limit by a call that takes parameters of a scheduler, which libvirt writes one by one, in their order. Control groups v1 refuse
/// what fits those above and below no more, between two of these as well; so there are the ways of `cgroup::write::set_limit`. `may`:
/// whether somebody still waits for it, which is asked before each way; `read`: the limit as it is now.
///
/// # Errors
/// Those of the call; what is refused in each way is as it was, unless somebody else made it something else meanwhile, which stands: a call may
/// take longer than anybody waits.
pub(super) fn set(
    from: &Limit,
    to: &Limit,
    may: impl Fn() -> Result<(), MachineError>,
    read: impl FnOnce() -> Result<Limit, MachineError>,
    mut call: impl FnMut(&[Parameter]) -> Result<(), MachineError>,
) -> Result<(), MachineError> {
    let period = |limit: &Limit| Parameter::Unsigned("global_period", limit.period_us);
    let quota = |us: Option<u64>| {
        Parameter::Signed("global_quota", us.map_or(-1, |us| i64::try_from(us).unwrap_or(i64::MAX)))
    };
    let both = |limit: &Limit| vec![period(limit), quota(limit.quota_us)];
    let mut one = |parameters: &Vec<Parameter>| {
        let done = call(parameters);
        crate::between("limit-part");
        done
    };
    let mut way = |calls: &[Vec<Parameter>]| calls.iter().try_for_each(&mut one);
    may()?;
    let mut done = way(&[both(to)]);
    // Where a call failed, those before were done, and of its own parameters perhaps the first.
    let others = [
        vec![vec![period(from)], vec![quota(to.quota_us)], vec![period(to)]],
        vec![vec![quota(None)], both(to)],
    ];
    for calls in &others {
        // Whatever else it is, another order does not help.
        if !matches!(done, Err(MachineError::Malformed(_))) {
            return done;
        }
        if let Err(late) = may() {
            done = Err(late);
            break;
        }
        done = way(calls);
    }
    // Half of it would be another limit.
    if done.is_err() && read().is_ok_and(|now| is_part(&now, from, to)) {
        let _ = way(&[vec![quota(None)], both(from)]);
    }
    done
}

/// Whether a limit is one on the way between two, and not the first.
fn is_part(now: &Limit, from: &Limit, to: &Limit) -> bool {
    let rate = |limit: &Limit| (limit.quota_us, limit.period_us);
    let known = now.quota_us.is_none() || [from, to].iter().any(|end| end.quota_us == now.quota_us);
    rate(now) != rate(from) && known && [from, to].iter().any(|end| end.period_us == now.period_us)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// What a group of v1 takes between these numbers of pCPUs, of the group above and of those below.
    fn kernel(
        now: &Cell<Limit>,
        above: f64,
        below: f64,
    ) -> impl FnMut(&[Parameter]) -> Result<(), MachineError> {
        move |parameters| {
            for parameter in parameters {
                let next = match *parameter {
                    Parameter::Unsigned("global_period", period_us) => Limit { period_us, ..now.get() },
                    Parameter::Signed("global_quota", us) => {
                        Limit { quota_us: u64::try_from(us).ok(), ..now.get() }
                    }
                    other => panic!("{other:?}"),
                };
                let cpus = next.quota_us.map(|us| crate::float(us) / crate::float(next.period_us));
                if cpus.is_some_and(|cpus| cpus > above || cpus < below) {
                    return Err(MachineError::Malformed("Invalid argument".into()));
                }
                now.set(next);
            }
            Ok(())
        }
    }

    #[test]
    fn a_limit_is_set_in_an_order_that_the_groups_above_and_below_take() {
        let limit = |quota_us, period_us| Limit { quota_us: Some(quota_us), period_us, burst_us: 0 };
        let (short, long, none) = (limit(100_000, 100_000), limit(400_000, 400_000), f64::INFINITY);
        for (above, below) in [(none, 0.0), (1.0, 0.0), (none, 1.0), (1.0, 1.0)] {
            for (from, to) in [(short, long), (long, short)] {
                let now = Cell::new(from);
                let done = set(&from, &to, || Ok(()), || Ok(now.get()), kernel(&now, above, below));
                assert_eq!((done, now.get()), (Ok(()), to), "{above} {below}");
            }
        }
        // What fits in no order leaves it as it was.
        let (now, more) = (Cell::new(short), limit(300_000, 200_000));
        assert!(set(&short, &more, || Ok(()), || Ok(now.get()), kernel(&now, 1.0, 0.0)).is_err());
        assert_eq!(now.get(), short);
    }

    #[test]
    fn what_is_given_up_as_late_between_two_ways_is_as_it_was_or_as_somebody_made_it_meanwhile() {
        let limit = |quota_us, period_us| Limit { quota_us: Some(quota_us), period_us, burst_us: 0 };
        let (from, to) = (limit(100_000, 100_000), limit(400_000, 400_000));
        let given_up = |meanwhile: Option<Limit>| {
            let (now, asked) = (Cell::new(from), Cell::new(0));
            let may = || {
                asked.set(asked.get() + 1);
                if asked.get() < 2 {
                    return Ok(());
                }
                meanwhile.into_iter().for_each(|theirs| now.set(theirs));
                Err(MachineError::Gone("late".into()))
            };
            let done = set(&from, &to, may, || Ok(now.get()), kernel(&now, f64::INFINITY, 1.0));
            assert!(matches!(done, Err(MachineError::Gone(_))), "{done:?}");
            now.get()
        };
        assert_eq!(given_up(None), from);
        // One that the first call cannot have left.
        for theirs in [limit(200_000, 100_000), limit(200_000, 200_000)] {
            assert_eq!(given_up(Some(theirs)), theirs);
        }
        // One that it may have left.
        assert_eq!(given_up(Some(limit(100_000, 400_000))), from);
    }

    #[test]
    fn what_is_not_known_is_not_undone() {
        let limit = |quota_us| Limit { quota_us: Some(quota_us), period_us: 100_000, burst_us: 0 };
        let mut calls = 0;
        let call = |_: &[Parameter]| {
            calls += 1;
            Err(MachineError::Malformed("Invalid argument".into()))
        };
        let read = || Err(MachineError::Gone("late".into()));
        assert!(set(&limit(100_000), &limit(200_000), || Ok(()), read, call).is_err());
        assert_eq!(calls, 3, "the three ways");
    }

    #[test]
    fn nothing_more_is_written_when_libvirtd_does_not_answer() {
        let (mut calls, limit) = (0, Limit { quota_us: None, period_us: 100_000, burst_us: 0 });
        let call = |_: &[Parameter]| {
            calls += 1;
            Err(MachineError::Gone("it was given up as late".into()))
        };
        assert!(set(&limit, &limit, || Ok(()), || Ok(limit), call).is_err());
        assert_eq!(calls, 1);
    }
}

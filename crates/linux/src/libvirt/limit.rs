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
/// whether somebody still waits for it, which is asked before each way.
///
/// # Errors
/// Those of the call; what is refused in each way is as it was.
pub(super) fn set(
    from: &Limit,
    to: &Limit,
    may: impl Fn() -> Result<(), MachineError>,
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
    if done.is_err() {
        // Half of it would be another limit.
        let _ = way(&[vec![quota(None)], both(from)]);
    }
    done
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a group of v1 takes between these numbers of pCPUs, of the group above and of those below.
    fn kernel(
        now: &mut Limit,
        above: f64,
        below: f64,
    ) -> impl FnMut(&[Parameter]) -> Result<(), MachineError> {
        move |parameters| {
            for parameter in parameters {
                let next = match *parameter {
                    Parameter::Unsigned("global_period", period_us) => Limit { period_us, ..*now },
                    Parameter::Signed("global_quota", us) => {
                        Limit { quota_us: u64::try_from(us).ok(), ..*now }
                    }
                    other => panic!("{other:?}"),
                };
                let cpus = next.quota_us.map(|us| crate::float(us) / crate::float(next.period_us));
                if cpus.is_some_and(|cpus| cpus > above || cpus < below) {
                    return Err(MachineError::Malformed("Invalid argument".into()));
                }
                *now = next;
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
                let mut now = from;
                assert_eq!(
                    set(&from, &to, || Ok(()), kernel(&mut now, above, below)),
                    Ok(()),
                    "{above} {below}"
                );
                assert_eq!(now, to);
            }
        }
        // What fits in no order leaves it as it was.
        let (mut now, more) = (short, limit(300_000, 200_000));
        assert!(set(&short, &more, || Ok(()), kernel(&mut now, 1.0, 0.0)).is_err());
        assert_eq!(now, short);
    }

    #[test]
    fn what_is_given_up_as_late_between_two_ways_is_as_it_was() {
        let limit = |quota_us, period_us| Limit { quota_us: Some(quota_us), period_us, burst_us: 0 };
        let (from, to) = (limit(100_000, 100_000), limit(400_000, 400_000));
        let (mut now, asked) = (from, std::cell::Cell::new(0));
        let may = || {
            asked.set(asked.get() + 1);
            if asked.get() < 2 { Ok(()) } else { Err(MachineError::Gone("late".into())) }
        };
        let done = set(&from, &to, may, kernel(&mut now, f64::INFINITY, 1.0));
        assert!(matches!(done, Err(MachineError::Gone(_))), "{done:?}");
        assert_eq!(now, from);
    }

    #[test]
    fn nothing_more_is_written_when_libvirtd_does_not_answer() {
        let (mut calls, limit) = (0, Limit { quota_us: None, period_us: 100_000, burst_us: 0 });
        let call = |_: &[Parameter]| {
            calls += 1;
            Err(MachineError::Gone("it was given up as late".into()))
        };
        assert!(set(&limit, &limit, || Ok(()), call).is_err());
        assert_eq!(calls, 1);
    }
}

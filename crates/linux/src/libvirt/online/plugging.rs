//! Which vCPUs are plugged in and out so that a domain has some, and what it can have.

use std::time::{Duration, Instant, SystemTime};

use corefit_core::machine::MachineError;
use corefit_core::{CpuId, CpuSet};

use super::By;
use crate::libvirt::api::{Failure, Kind};
use crate::libvirt::definition::{Definition, VcpuDefinition};
use crate::libvirt::hand::{Until, plain, stays};

/// Plugging out begins with another vCPU only if this has not passed yet.
const NEXT: Duration = Duration::from_millis(1500);

/// Those that a domain has, or can have again: they were plugged out here.
pub(in crate::libvirt) fn can_have(definition: &Definition) -> CpuSet {
    plugged(&definition.vcpus).union(&definition.unplugged)
}

/// Whether some of these can be plugged out and in.
pub(in crate::libvirt) fn can_go(definition: &Definition) -> bool {
    can_have(definition).difference(&CpuSet::first(1)).meets(&hotpluggable(&definition.vcpus))
}

/// What is to be plugged in. A guest takes those that are to go offline itself, if it can.
pub(super) fn to_plug(by: By, want: &CpuSet, definition: &Definition) -> CpuSet {
    if by == By::Agent { want.union(&plugged(&definition.vcpus)) } else { want.clone() }
}

/// Those of these that have to be plugged in.
///
/// # Errors
/// If somebody else plugged one out; it is unsupported if that is one in between, for those that come after it are there.
pub(super) fn lacking(want: &CpuSet, definition: &Definition) -> Result<CpuSet, MachineError> {
    let lacking = want.difference(&plugged(&definition.vcpus));
    let theirs = lacking.difference(&definition.unplugged);
    if theirs.is_empty() {
        return Ok(lacking);
    }
    let text = format!("of its vCPUs somebody else plugged out {theirs}");
    let between = lacks_some_between(&plugged(&definition.vcpus));
    Err(if between { MachineError::Unsupported(text) } else { MachineError::Gone(text) })
}

/// Whether vCPUs are plugged in whose numbers come after one that is not.
pub(super) fn lacks_some_between(plugged: &CpuSet) -> bool {
    plugged.iter().last().is_some_and(|last| last.0 as usize >= plugged.len())
}

/// Whether a guest was asked to let go of vCPUs that are there still, or again, and are wanted.
pub(super) fn may_go(definition: &Definition, want: &CpuSet) -> bool {
    definition.unplugged.intersection(&plugged(&definition.vcpus)).meets(want)
}

/// How long ago that was.
pub(super) fn asked_since(definition: &Definition, want: &CpuSet, now_s: u64) -> Option<Duration> {
    // By another host's clock, or one that was set meanwhile, it may be to come.
    let asked_at = definition.asked_at.filter(|_| may_go(definition, want));
    asked_at.map(|at| Duration::from_secs(now_s.abs_diff(at)))
}

/// s since 1970.
pub(super) fn clock_s() -> u64 {
    SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_secs())
}

pub(super) fn plugged(vcpus: &[VcpuDefinition]) -> CpuSet {
    (0..).zip(vcpus).filter(|(_, vcpu)| vcpu.plugged).map(|(number, _)| CpuId(number)).collect()
}

/// Those that can be plugged in and out.
fn hotpluggable(vcpus: &[VcpuDefinition]) -> CpuSet {
    (0..).zip(vcpus).filter(|(_, vcpu)| vcpu.hotpluggable).map(|(number, _)| CpuId(number)).collect()
}

/// Those that are plugged out so that there are these.
pub(super) fn surplus(vcpus: &[VcpuDefinition], want: &CpuSet) -> CpuSet {
    plugged(vcpus).difference(want).intersection(&hotpluggable(vcpus))
}

/// As many as are wanted, if some of those that cannot go are not among them.
pub(super) fn reachable(vcpus: &[VcpuDefinition], want: &CpuSet) -> CpuSet {
    let cold = plugged(vcpus).difference(&hotpluggable(vcpus));
    let rest = want.difference(&cold);
    cold.iter().chain(rest.iter()).take(want.len().max(cold.len())).collect()
}

/// Nothing would come of it if all that are to go were there at its start.
pub(super) fn some_go(vcpus: &[VcpuDefinition], want: &CpuSet, reached: &CpuSet) -> Result<(), MachineError> {
    let there = plugged(vcpus);
    if want.len() < there.len() && *reached == there {
        return Err(stays("no guest agent takes them offline"));
    }
    Ok(())
}

/// Plugs vCPUs in and out, those that were not there at the domain's start; the last that came goes first.
pub(super) fn plug(
    vcpus: &[VcpuDefinition],
    want: &CpuSet,
    until: Until,
    one: impl Fn(CpuId, bool) -> Result<(), Failure>,
) -> Result<(), MachineError> {
    let begun = Instant::now();
    let want = reachable(vcpus, want);
    for vcpu in want.difference(&plugged(vcpus)).intersection(&hotpluggable(vcpus)).iter() {
        until.check()?;
        one(vcpu, true).map_err(|error| plain(&error))?;
    }
    let out: Vec<CpuId> = surplus(vcpus, &want).iter().collect();
    for vcpu in out.into_iter().rev().take_while(|_| begun.elapsed() < NEXT) {
        until.check()?;
        one(vcpu, false).map_err(|error| {
            let text = format!("its guest did not let go of vCPU {} ({})", vcpu.0, error.text);
            // It may do so later, or next time.
            if error.kind == Kind::Late { MachineError::Gone(text) } else { plain(&error) }
        })?;
    }
    Ok(())
}

/// vCPUs to test with.
#[cfg(test)]
pub(super) mod testing {
    use super::*;

    pub(in crate::libvirt::online) fn set(list: &str) -> CpuSet {
        list.parse().unwrap()
    }

    /// Four vCPUs that can come and go, of which so many are there.
    pub(in crate::libvirt::online) fn pluggable(count: u32) -> Vec<VcpuDefinition> {
        let one = |n| VcpuDefinition { plugged: n < count, hotpluggable: n > 0, pin: None };
        (0..4).map(one).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::UNPLUG;
    use super::testing::{pluggable, set};
    use super::*;
    use std::cell::Cell;

    #[test]
    fn where_nothing_can_be_plugged_out_that_is_said_and_not_tried_again_and_again() {
        // Two were there at its start, two more may come.
        let mut vcpus = pluggable(2);
        vcpus[1].hotpluggable = false;
        let goes = |vcpus: &[VcpuDefinition], want: &str| {
            let want = set(want);
            some_go(vcpus, &want, &reachable(vcpus, &want))
        };
        let refused = goes(&vcpus, "0");
        assert!(matches!(&refused, Err(MachineError::Unsupported(why)) if why.contains("at its start")));
        assert_eq!((goes(&vcpus, "0-1"), goes(&vcpus, "0-2")), (Ok(()), Ok(())));
        vcpus[2].plugged = true;
        assert_eq!(goes(&vcpus, "0"), Ok(()), "one of three goes");
    }

    #[test]
    fn slots_that_nobody_has_plugged_in_are_none_and_those_of_ours_come_again() {
        let mut definition = Definition { vcpus: pluggable(2), ..Definition::default() };
        definition.vcpus[1].hotpluggable = false;
        assert!(!can_go(&definition), "those that are there stay, and the others are not there");
        definition.unplugged = set("2");
        assert!(can_go(&definition));
        assert_eq!(can_have(&definition), set("0-2"));
        definition = Definition { vcpus: pluggable(3), ..Definition::default() };
        assert!(can_go(&definition), "somebody plugged them in");
        assert!(!can_go(&Definition { vcpus: pluggable(1), ..Definition::default() }));
    }

    #[test]
    fn what_somebody_else_plugged_out_is_not_plugged_in_and_what_we_did_is() {
        let definition =
            |unplugged: CpuSet| Definition { vcpus: pluggable(2), unplugged, ..Definition::default() };
        assert_eq!(lacking(&set("0-1"), &definition(CpuSet::default())), Ok(CpuSet::default()));
        assert_eq!(lacking(&set("0-3"), &definition(set("2-3"))), Ok(set("2-3")));
        let theirs = lacking(&set("0-3"), &definition(set("2")));
        assert!(
            matches!(&theirs, Err(MachineError::Gone(why)) if why.ends_with("plugged out 3")),
            "{theirs:?}"
        );
    }

    #[test]
    fn those_that_cannot_go_stay_and_as_many_others_go() {
        let cold = |n| VcpuDefinition { plugged: true, hotpluggable: n != 0 && n != 3, pin: None };
        let vcpus: Vec<VcpuDefinition> = (0..4).map(cold).collect();
        let reached = reachable(&vcpus, &set("0-2"));
        assert_eq!((&reached, surplus(&vcpus, &reached)), (&set("0-1,3"), set("2")));
    }

    #[test]
    fn a_guest_that_does_not_let_go_of_a_vcpu_in_time_may_do_so_later() {
        let never = |kind| move |_, _| Err(Failure { kind, text: "vcpu unplug request timed out".into() });
        let until = Until::after(UNPLUG);
        let late = plug(&pluggable(4), &set("0"), until, never(Kind::Late));
        assert!(matches!(&late, Err(MachineError::Gone(why)) if why.contains("vCPU 3")), "{late:?}");
        let never = plug(&pluggable(4), &set("0"), until, never(Kind::Unsupported));
        assert!(matches!(never, Err(MachineError::Unsupported(_))), "{never:?}");
    }

    #[test]
    fn who_comes_after_a_kill_knows_how_long_ago_a_guest_was_asked_for_vcpus_that_are_there_still() {
        let asked = |there, want: &str, at| {
            let (vcpus, unplugged) = (pluggable(there), set("3"));
            let definition = Definition { vcpus, unplugged, asked_at: at, ..Definition::default() };
            asked_since(&definition, &set(want), 100).map(|since| since.as_secs())
        };
        assert_eq!([Some(93), Some(107), None].map(|at| asked(4, "0-3", at)), [Some(7), Some(7), None]);
        assert_eq!((asked(3, "0-3", Some(93)), asked(4, "0-2", Some(93))), (None, None));
    }

    #[test]
    fn plugging_stops_when_nobody_waits_for_it_any_more() {
        for (there, want) in [(1, "0-3"), (4, "0")] {
            let (plugged, until) = (Cell::new(0), Until::after(Duration::from_millis(50)));
            let one = |_, _| {
                plugged.set(plugged.get() + 1);
                while until.check().is_ok() {
                    std::thread::yield_now();
                }
                Ok(())
            };
            let late = plug(&pluggable(there), &set(want), until, one);
            assert!(matches!(late, Err(MachineError::Gone(_))), "{late:?}");
            assert_eq!(plugged.get(), 1, "to {want}");
        }
    }
}

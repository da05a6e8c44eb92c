//! Which pCPUs a vCPU may use, as libvirt has it.
//!
//! The mask of its thread does not tell: pCPUs that are offline are missing there (sched_getaffinity(2)), which looks as
//! if somebody had changed a pin, and what was read meanwhile would be put back too narrow. The live definition has each
//! pin as it was set. (So has `virDomainGetVcpuPinInfo`, but where nothing is set it names those that are online.)
//!
//! A cpuset of cgroups v1 takes no pCPU that is offline (kernel/cgroup/cpuset.c, `update_cpumask`), so there, and only there, a pin to all that
//! are online may be what was made of one to all.

use corefit_core::machine::MachineError;
use corefit_core::{CpuId, CpuSet};

use super::api::Domain;
use super::hand::{Until, define, plain};

/// pCPUs of a host.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Pcpus {
    /// Those that are there; none if the host was never looked at.
    pub(super) all: CpuSet,
    /// Those of them that are offline.
    pub(super) offline: CpuSet,
    /// Whether pins to those are refused, as by cgroups v1.
    pub(super) refused: bool,
}

impl Pcpus {
    /// How many numbers they have; so many that all fit if none is known.
    fn count(&self) -> usize {
        self.all.iter().last().map_or(4096, |last| last.0 as usize + 1)
    }

    /// Who may use all that are online may use all.
    fn widen(&self, set: CpuSet) -> CpuSet {
        let online = self.all.difference(&self.offline);
        if !online.is_empty() && online.is_within(&set) { set.union(&self.all) } else { set }
    }

    /// A pin that the definition has. Where it can be what was set, it is: to one to these it is put back when others are online again.
    fn pinned(&self, pin: CpuSet) -> CpuSet {
        if self.refused { self.widen(pin) } else { pin }
    }

    /// What to pin to, one after the other until libvirt takes it: a cpuset of cgroups v1 refuses pCPUs that are offline.
    fn tries(&self, to: CpuSet) -> Vec<CpuSet> {
        let wide = self.pinned(to);
        let online = wide.difference(&self.offline);
        if online == wide || online.is_empty() { vec![wide] } else { vec![wide, online] }
    }
}

/// The pCPUs that a vCPU may use, some of them offline perhaps.
pub(super) fn affinity(domain: &Domain<'_>, vcpu: u32, pcpus: &Pcpus) -> Result<CpuSet, MachineError> {
    // It may come back, and the others have theirs.
    let none = || MachineError::Gone(format!("it has no vCPU {vcpu} now"));
    let mut vcpus = define(domain)?.vcpus;
    let most = vcpus.len();
    let found = vcpus.get_mut(vcpu as usize).ok_or_else(none)?;
    // Also that of one that is plugged out, which has it when it comes back.
    if let Some(pin) = found.pin.take() {
        return Ok(pcpus.pinned(pin));
    }
    if !found.plugged {
        return Err(none());
    }
    let threads = domain.vcpus(most, pcpus.count()).map_err(|error| plain(&error))?;
    let thread = threads.iter().find(|info| info.number == vcpu).ok_or_else(none)?;
    let allowed = (0..).zip(&thread.map).filter(|(_, allowed)| **allowed);
    Ok(pcpus.widen(allowed.map(|(pcpu, _)| CpuId(pcpu)).collect()))
}

/// Lets it use these only.
pub(super) fn pin(
    domain: &Domain<'_>,
    until: Until,
    vcpu: u32,
    to: CpuSet,
    pcpus: &Pcpus,
) -> Result<(), MachineError> {
    let mut done = Ok(());
    for set in pcpus.tries(to) {
        until.check()?;
        done = domain.pin(vcpu, &set);
        if done.is_ok() {
            break;
        }
    }
    done.map_err(|error| plain(&error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::libvirt::api::{Access, Connection};
    use crate::libvirt::sys::VIR_CONNECT_LIST_DOMAINS_ACTIVE;
    use std::time::Duration;

    fn set(list: &str) -> CpuSet {
        list.parse().unwrap()
    }

    /// A host of 16, of which these are offline, with cgroups v1.
    fn host(offline: &str) -> Pcpus {
        let offline = if offline.is_empty() { CpuSet::default() } else { set(offline) };
        Pcpus { all: set("0-15"), offline, refused: true }
    }

    /// The same with v2.
    fn host_v2(offline: &str) -> Pcpus {
        Pcpus { refused: false, ..host(offline) }
    }

    #[test]
    fn a_vcpu_that_may_use_all_that_are_online_may_use_those_that_come_back() {
        // As the mask of an unpinned thread says it.
        assert_eq!(host("3,7-8").widen(set("0-2,4-6,9-15")), set("0-15"));
        assert_eq!(host("3").widen(set("0-2")), set("0-2"), "that is a pin");
        assert_eq!(host("3").widen(set("2-3")), set("2-3"));
        assert_eq!(host("").widen(set("0-63")), set("0-63"), "more than there are");
        assert_eq!(Pcpus::default().widen(set("1")), set("1"), "nobody knows how many there are");
    }

    #[test]
    fn what_is_put_back_holds_for_pcpus_that_are_offline_if_libvirt_takes_them() {
        assert_eq!(host("").tries(set("0-3")), [set("0-3")]);
        assert_eq!(host("3").tries(set("0-3")), [set("0-3"), set("0-2")]);
        assert_eq!(host("3").tries(set("0-2,4-15")), [set("0-15"), set("0-2,4-15")]);
        assert_eq!(host("3").tries(set("3")), [set("3")], "to none at all there is no pin");
        assert_eq!(host_v2("3").tries(set("0-2,4-15"))[0], set("0-2,4-15"), "as it is meant");
    }

    /// A connection to a host with one running VM: vCPU 1 is pinned to 0-1, 2 to 0,2-15, and 4, which is not plugged in, to 0.
    fn with_pins() -> (tempfile::NamedTempFile, Connection) {
        let file = tempfile::NamedTempFile::new().unwrap();
        let domain = "<node><domain type='test'><name>a</name><memory>1024</memory><vcpu current='3'>5</vcpu>\
             <cputune><vcpupin vcpu='1' cpuset='0-1'/><vcpupin vcpu='4' cpuset='0'/>\
             <vcpupin vcpu='2' cpuset='0,2-15'/></cputune><os><type>hvm</type></os></domain></node>";
        std::fs::write(file.path(), domain).unwrap();
        let uri = format!("test://{}", file.path().display());
        let connection = Connection::open(&uri, Access::Write, 4).unwrap();
        (file, connection)
    }

    #[test]
    fn a_pin_to_all_that_are_online_is_one_to_these_unless_no_other_could_be_set() {
        let (_file, connection) = with_pins();
        let domain = &connection.domains(VIR_CONNECT_LIST_DOMAINS_ACTIVE).unwrap()[0];
        let until = Until::after(Duration::from_secs(60));
        let (was, ours) = (set("0-11"), set("0-7"));
        pin(domain, until, 0, ours.clone(), &host_v2("")).unwrap();
        // All others go offline: it is not what it was, nor somebody else's.
        let now = host_v2("8-15");
        assert_eq!(affinity(domain, 0, &now), Ok(ours));
        pin(domain, until, 0, was.clone(), &now).unwrap();
        for pcpus in [now, host_v2("")] {
            assert_eq!(affinity(domain, 0, &pcpus), Ok(was.clone()));
        }
        // Who is not pinned may use all, also those that come back.
        let (_file, connection) = with_pins();
        let domain = &connection.domains(VIR_CONNECT_LIST_DOMAINS_ACTIVE).unwrap()[0];
        assert_eq!(affinity(domain, 0, &host_v2("1")), Ok(set("0-15")));
    }

    #[test]
    fn pins_are_read_as_they_were_set_and_others_from_the_thread() {
        let (_file, connection) = with_pins();
        let domain = &connection.domains(VIR_CONNECT_LIST_DOMAINS_ACTIVE).unwrap()[0];
        let pcpus = host("1");
        assert_eq!(affinity(domain, 0, &pcpus), Ok(set("0-15")));
        assert_eq!(affinity(domain, 1, &pcpus), Ok(set("0-1")));
        assert_eq!(
            affinity(domain, 2, &pcpus),
            Ok(set("0-15")),
            "all that are online, as a cpuset of v1 has it"
        );
        assert!(matches!(affinity(domain, 3, &pcpus), Err(MachineError::Gone(_))), "not plugged in");
        assert_eq!(affinity(domain, 4, &pcpus), Ok(set("0")), "nor this one, which has a pin all the same");
        let until = Until::after(Duration::from_secs(60));
        pin(domain, until, 0, set("1"), &pcpus).unwrap();
        assert_eq!(affinity(domain, 0, &pcpus), Ok(set("1")));
        pin(domain, until, 0, set("0,2-15"), &pcpus).unwrap();
        assert_eq!(affinity(domain, 0, &host("")), Ok(set("0-15")), "when pCPU 1 is back");
    }
}

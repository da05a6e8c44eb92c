//! VMs that wait for pCPUs that are theirs.

use super::change::Cure;
use super::{Manager, Report, Rule, Severity};
use crate::machine::Starved;

pub(super) fn check(report: &mut Report<'_, '_>) {
    let Some(Starved { used, available }) = report.vm.starved else { return };
    let text =
        format!("it had {used} of the {available} pCPUs that are available to it, and waited for the rest");
    let light = match report.vm.manager {
        Manager::Libvirt => {
            "; until then, for VMs that compute more than they do input and output, \
             corefit manage --apply with helpers = \"light\" in [policy]"
        }
        _ => "",
    };
    let cure = format!(
        "a Linux that places groups by their lag when their weight changes (7.0, or one with its commit 101f3498b4bd){light}"
    );
    let place = report.vm.place.clone();
    report.add(Rule::Starved, Severity::Warning, &place, text, Cure::Advice(cure));
}

#[cfg(test)]
mod tests {
    use super::super::{Subject, Vm, check};
    use super::*;
    use crate::Cpus;

    #[test]
    fn who_starves_is_found_and_only_vms_of_libvirt_have_helpers_that_can_weigh_less() {
        let found = |manager: Manager, starved: Option<Starved>| {
            let subject =
                Subject { vms: vec![Vm { manager, starved, ..Vm::default() }], ..Subject::default() };
            let mut findings = check(&subject);
            findings.retain(|finding| finding.rule == Rule::Starved);
            findings.pop().map(|finding| (finding.text, finding.cure))
        };
        assert_eq!(found(Manager::Libvirt, None), None);
        let starved = Some(Starved { used: Cpus(0.006), available: Cpus(0.49) });
        let (text, cure) = found(Manager::Libvirt, starved).unwrap();
        assert!(text.starts_with("it had 0.01 of the 0.49 pCPUs"), "{text}");
        assert!(cure.contains("helpers = \"light\""), "{cure}");
        assert!(!found(Manager::Cgroup, starved).unwrap().1.contains("light"));
    }
}

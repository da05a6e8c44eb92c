//! What `corefit check` finds of VMs once they are placed or a plan is followed, that it does not find now: pins one to one leave
//! helpers no pCPU of their own, and what a guest was told of siblings may no longer be so. Placement does not count it.

use corefit_core::check::{Change, Finding, Rule, Subject, check};
use serde::Serialize;

use crate::printable;

/// A finding to come.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Follows {
    /// Its VM.
    #[serde(skip)]
    pub(crate) vm: String,
    /// By which rule.
    pub(crate) rule: Rule,
    /// As the finding has it.
    pub(crate) text: String,
    /// What cures it without moving the vCPUs elsewhere; `None` if nothing does.
    pub(crate) cure: Option<String>,
}

/// All that is found once VMs are placed, and is not now.
pub(crate) fn follows(now: &Subject, then: &Subject) -> Vec<Follows> {
    let (before, after) = (check(now), check(then));
    let many = |all: &[Finding], finding: &Finding| {
        all.iter().filter(|other| other.rule == finding.rule && other.vm == finding.vm).count()
    };
    let before_too = |finding: &Finding, what: fn(&Finding) -> &str| {
        let same = |other: &Finding| other.rule == finding.rule && what(other) == what(finding);
        before.iter().any(|other| other.vm == finding.vm && same(other))
    };
    let known = |finding: &Finding| before_too(finding, |one| &one.text);
    // Numbers in a text may be others; what is to be done then is the same.
    let cured = |finding: &Finding| before_too(finding, |one| &one.cure);
    let new =
        after.iter().filter(|finding| many(&after, finding) > many(&before, finding) || !cured(finding));
    let new = new.filter(|finding| !known(finding)).map(|finding| Follows {
        vm: finding.vm.clone(),
        rule: finding.rule,
        text: finding.text.clone(),
        cure: stays(then, finding).then(|| finding.cure.clone()),
    });
    new.collect()
}

impl Follows {
    /// Two lines for people: what will be found, and what cures it.
    pub(crate) fn lines(&self) -> [String; 2] {
        let Follows { rule, text, cure, .. } = self;
        let cure = cure.as_deref().unwrap_or("none that leaves its vCPUs there");
        let lines = [format!("then corefit check finds [{rule}]: {text}"), format!("cure: {cure}")];
        lines.map(|line| printable::text(&line))
    }
}

/// Whether a cure leaves the VM's vCPUs on the pCPUs that they have: at most they change places.
fn stays(then: &Subject, finding: &Finding) -> bool {
    let mut vms = then.vms.iter().filter(|vm| vm.name == finding.vm);
    vms.all(|vm| {
        let mut cured = vm.clone();
        let places = |change: &&Change| matches!(change, Change::Affinity(_));
        finding.changes.iter().filter(places).for_each(|change| change.apply(&mut cured));
        (cured.pcpus(), cured.is_pinned()) == (vm.pcpus(), vm.is_pinned())
    })
}

//! What owners of VMs want: their wishes go into the policy in force, and who is to be left alone is said.

use std::collections::BTreeMap;

use corefit_core::machine::{LeverKind, Snapshot, VmState};

use super::Daemon;
use crate::manage::log::{Level, log};

impl Daemon<'_> {
    /// What owners ask for their VMs counts from now on; who is to be left alone, and who is no more, is said each time.
    pub(super) fn owners(&mut self, snapshot: &Snapshot) {
        self.controller.heed(&self.config.policy, &snapshot.vms);
        let why = |vm: &VmState| Some((vm.name.clone(), vm.fixed(LeverKind::Online)?.to_owned()));
        let owned: BTreeMap<String, String> =
            snapshot.vms.iter().filter(|vm| vm.hands_off).filter_map(why).collect();
        let before = std::mem::replace(&mut self.owned, owned);
        for (vm, why) in self.owned.iter().filter(|(vm, why)| before.get(*vm) != Some(*why)) {
            log(Level::Info, "left alone", &[("vm", vm.clone()), ("why", why.clone())]);
            // Which is the same.
            let _ = self.told.is_new(&format!("{vm}: keeps its vCPUs: {why}"), "");
        }
        for (vm, why) in before.iter().filter(|(vm, why)| self.owned.get(*vm) != Some(*why)) {
            // Notes of it are not true any more.
            let stale = |note: &str| note.starts_with(&format!("{vm}: ")) && note.contains(why.as_str());
            self.told.forget(stale);
            if !self.owned.contains_key(vm) && snapshot.vms.iter().any(|seen| seen.name == *vm) {
                log(Level::Info, "left alone no more", &[("vm", vm.clone())]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use corefit_core::decide::Rule;

    use super::super::tests::{arguments, looking};
    use super::*;

    #[test]
    fn wishes_count_from_the_look_that_shows_them_and_notes_go_with_what_they_say() {
        let args = arguments();
        let mut daemon = looking(&args);
        let web = VmState { name: "web".into(), ..VmState::default() };
        let mut look = |vm: VmState| {
            let snapshot = Snapshot { vms: vec![vm], ..Snapshot::default() };
            daemon.owners(&snapshot);
            let why = "its owner set hands-off in its metadata";
            let new = daemon.told.is_new(&format!("web: keeps its vCPUs: {why}"), "");
            (daemon.controller.policy().of("web").max, daemon.owned.get("web").is_some_and(|w| w == why), new)
        };
        let wishes = Some(Box::new(Rule { max: Some(2), ..Rule::default() }));
        assert_eq!(look(VmState { wishes, ..web.clone() }), (Some(2), false, true));
        assert_eq!(look(VmState { hands_off: true, ..web.clone() }), (None, true, false));
        assert_eq!(look(web), (None, false, true), "it was not true any more");
    }
}

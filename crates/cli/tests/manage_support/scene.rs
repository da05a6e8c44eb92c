//! Two real VMs, of which a daemon sizes and tells one.

use std::path::Path;

use super::manage_support::{Daemon, Guest, corefit, until};
use super::vm_support::Vms;

/// vCPUs of the VMs here; the host has two pCPUs.
pub(crate) const ALL: &str = "0-3";
/// The share of one VM of two, by VCPU-Bal: one pCPU.
pub(crate) const FEW: &str = "0";
/// Only the first VM is anybody's business, and it is sized at once.
pub(crate) const CONFIG: &str =
    "metrics = \"off\"\n[policy]\ninterval_ms = 500\ndwell_ms = 0\nsize = \"vcpu-bal\"\n";

pub(crate) struct Scene<'a> {
    vms: &'a Vms,
    /// Has the state of daemons.
    dir: &'a Path,
    pub(crate) guest: Guest<'a>,
    /// Its owner wants it to be left alone.
    pub(crate) other: Guest<'a>,
    /// All settings of both before any daemon came.
    before: [Vec<String>; 2],
}

impl<'a> Scene<'a> {
    pub(crate) fn new(vms: &'a Vms, dir: &'a Path) -> Scene<'a> {
        let [guest, other] = [0, 1].map(|at: usize| Guest::new(vms, &vms.names[at]));
        let owner = ["metadata", other.name, "--live", "--uri", "urn:corefit:owner", "--key", "corefit"];
        vms.virsh(&[&owner[..], &["--set", "<owner hands-off='yes'/>"]].concat());
        let before = [guest.settings(), other.settings()];
        Scene { vms, dir, guest, other, before }
    }

    pub(crate) fn start(&self, kill: Option<&str>) -> Daemon {
        Daemon::start(self.vms, self.dir, CONFIG, &["--apply"], kill)
    }

    pub(crate) fn is_sized_and_told(&self) {
        until("the guest has fewer vCPUs", || self.guest.online() == FEW);
        until("the guest is told", || {
            self.guest.told().is_some_and(|text| text.starts_with("corefit-available 1\ncpus "))
        });
    }

    /// Puts back what a killed daemon could not.
    pub(crate) fn restore(&self, what: &str) {
        let restored = corefit(&["restore", "--state", self.dir.join("state").to_str().unwrap()]);
        assert!(restored.status.success(), "{what}: {}", String::from_utf8_lossy(&restored.stderr));
    }

    /// Everything of both is as it was, on the host and in the guests.
    pub(crate) fn as_it_was(&self, what: &str) {
        self.let_go(what);
        self.guest.has(&self.before[0], what);
        self.other_as_it_was(what);
    }

    /// The guest is nobody's business.
    pub(crate) fn let_go(&self, what: &str) {
        assert_eq!(self.guest.online(), ALL, "{what}");
        let told = self.guest.told();
        assert!(!told.is_some_and(|text| text.contains("cpus ") && !text.contains("cpus none")), "{what}");
        assert!(!self.vms.kept(self.guest.name), "{what}: its metadata still has a note of ours");
    }

    pub(crate) fn other_as_it_was(&self, what: &str) {
        assert_eq!((self.other.online().as_str(), self.other.told()), (ALL, None), "{what}");
        self.other.has(&self.before[1], what);
    }
}

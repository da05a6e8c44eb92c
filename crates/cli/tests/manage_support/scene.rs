//! Two real VMs, of which a daemon sizes and tells one, and what may happen meanwhile.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::manage_support::{Daemon, Guest, corefit, until};
use super::small::{Small, mount};
use super::vm_support::Vms;

/// vCPUs of the VMs here; the host has two pCPUs.
pub(crate) const ALL: &str = "0-3";
/// The share of one VM of two, by VCPU-Bal: one pCPU.
pub(crate) const FEW: &str = "0";
/// Only the first VM is anybody's business, and it is sized at once.
pub(crate) const CONFIG: &str =
    "metrics = \"off\"\n[policy]\ninterval_ms = 500\ndwell_ms = 0\nsize = \"vcpu-bal\"\n";

#[derive(Clone)]
pub(crate) struct Scene<'a> {
    pub(crate) vms: &'a Vms,
    /// Has the state of daemons.
    pub(crate) dir: &'a Path,
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

    /// The state of daemons.
    pub(crate) fn state(&self) -> PathBuf {
        self.dir.join("state")
    }

    pub(crate) fn start(&self, kill: Option<&str>) -> Daemon {
        Daemon::start(self.vms, self.dir, CONFIG, &["--apply"], kill)
    }

    pub(crate) fn is_sized_and_told(&self) {
        until("the guest has fewer vCPUs", || self.guest.online() == FEW);
        // One before may have left that it is told nothing.
        let told =
            |text: String| text.starts_with("corefit-available 1\ncpus ") && !text.contains("\ncpus none\n");
        until("the guest is told", || self.guest.told().is_some_and(told));
    }

    /// How far a change is: in the journal, in the note that the VM carries, in the guest.
    pub(crate) fn done(&self) -> [bool; 3] {
        let journal = std::fs::read_to_string(self.state().join("journal")).unwrap();
        [journal.contains("\"lever\""), self.vms.kept(self.guest.name), self.guest.online() != ALL]
    }

    /// Puts back what a killed daemon could not.
    pub(crate) fn restore(&self, what: &str) {
        let restored = corefit(&["restore", "--state", self.state().to_str().unwrap()]);
        assert!(restored.status.success(), "{what}: {}", String::from_utf8_lossy(&restored.stderr));
    }

    /// Has a daemon killed, and puts back what it could not, each time: until it was killed where the test wants that, for a guest that is
    /// late once, as on a crowded machine, changes how often a place is reached before. `job` says whether it was, and hears which try is the
    /// last one.
    pub(crate) fn in_tries(&self, what: &str, mut job: impl FnMut(bool) -> bool) {
        for left in (0..3).rev() {
            let there = job(left == 0);
            self.restore(what);
            self.as_it_was(what);
            if there {
                break;
            }
        }
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
        assert!(told.as_ref().is_none_or(|text| text.contains("\ncpus none\n")), "{what}: {told:?}");
        assert!(!self.vms.kept(self.guest.name), "{what}: its metadata still has a note of ours");
    }

    pub(crate) fn other_as_it_was(&self, what: &str) {
        assert_eq!((self.other.online().as_str(), self.other.told()), (ALL, None), "{what}");
        self.other.has(&self.before[1], what);
    }
}

/// An agent that says "done" and does nothing: what it writes to take a vCPU offline moves it to the control group where it is, and what it
/// reads then is no 0.
pub(crate) fn lying_agent(scene: &Scene<'_>) {
    let each = |what: &str| format!("for n in 1 2 3; do {what} /sys/devices/system/cpu/cpu$n/online; done");
    let guest = |command: &str| scene.vms.guest(scene.guest.name, command);
    guest(&each("mount -o bind /sys/fs/cgroup/cgroup.procs"));
    let mut daemon = scene.start(None);
    // Where it was not known before which are online, a part may have come of it.
    let said = |line: &str| line.contains("not set") || line.contains("became=\"vCPUs 0-3\"");
    let seen = || daemon.log().lines().any(|line| line.contains("lever=\"online vCPUs\"") && said(line));
    until("the lie is seen", seen);
    assert_eq!(scene.guest.online(), ALL, "{}", daemon.log());
    assert!(daemon.end().success(), "{}", daemon.log());
    guest(&each("umount"));
    scene.as_it_was("an agent that lies");
}

/// A journal that cannot be written: as a daemon begins, while it goes on, and after it was killed. The first one that goes on stands still for
/// a while between plan and apply, which for it is a clock that jumps.
pub(crate) fn full_disk(scene: &Scene<'_>) {
    let dir = scene.dir.join("small");
    std::fs::create_dir(&dir).unwrap();
    let Some(small) = Small::at(dir.join("state")) else { return };
    let scene = Scene { dir: &dir, ..scene.clone() };
    let filler = small.path.join("filler");
    let fill = || assert!(std::fs::write(&filler, [0; 1 << 20]).is_err(), "it is full");
    let mounted = |how: &str| assert!(mount(&["-o", how, small.path.to_str().unwrap()]));

    fill();
    let mut daemon = scene.start(None);
    assert_eq!(daemon.wait().code(), Some(1), "{}", daemon.log());
    assert!(daemon.log().contains("nothing is changed"), "{}", daemon.log());
    scene.as_it_was("a full disk");

    std::fs::remove_file(&filler).unwrap();
    let mut daemon = scene.start(Some("journaled:1:stop"));
    daemon.stops();
    std::thread::sleep(Duration::from_secs(6));
    daemon.go_on();
    scene.is_sized_and_told();
    fill();
    assert_eq!(daemon.end().code(), Some(1), "{}", daemon.log());
    assert!(daemon.log().contains("the journal cannot be written"), "{}", daemon.log());
    scene.as_it_was("a disk that filled");

    std::fs::remove_file(&filler).unwrap();
    let daemon = scene.start(None);
    scene.is_sized_and_told();
    drop(daemon);
    mounted("remount,ro");
    let restored = corefit(&["restore", "--tries", "1", "--state", small.path.to_str().unwrap()]);
    assert!(String::from_utf8_lossy(&restored.stderr).contains("Read-only"), "{restored:?}");
    scene.as_it_was("a disk that cannot be written");
    mounted("remount,rw");
    scene.restore("a disk that can be written again");
}

/// A VM that ends when what is to be changed of it is in the journal, and nothing of that done; then the other one, at any time.
pub(crate) fn destroyed(scene: &Scene<'_>) {
    let Scene { vms, guest, other, .. } = scene;
    let mut daemon = scene.start(Some("journaled:1:stop"));
    daemon.stops();
    assert_eq!(guest.online(), ALL, "{}", daemon.log());
    vms.virsh(&["destroy", guest.name]);
    daemon.go_on();
    until("its end is seen", || daemon.log().contains("not set"));
    assert!(daemon.end().success(), "{}", daemon.log());
    scene.other_as_it_was("a VM that ended between plan and apply");
    scene.restore("nothing is left of it");

    vms.virsh(&["metadata", other.name, "--live", "--uri", "urn:corefit:owner", "--remove"]);
    let mut daemon = scene.start(None);
    until("the other one is sized", || other.online() != ALL);
    vms.virsh(&["destroy", other.name]);
    assert!(daemon.end().success(), "{}", daemon.log());
}

//! A guest's agent that hangs while something is to be put back: that is pending, and comes later.

use std::io::Write as _;
use std::time::{Duration, Instant};

use super::manage_support::{comes, corefit, until};
use super::scene::{ALL, FEW, Scene};
use super::vm_support::Vms;

fn pings(vms: &Vms, name: &str) -> bool {
    let ping = ["qemu-agent-command", "--timeout", "2", name, "{\"execute\":\"guest-ping\"}"];
    std::process::Command::new("virsh").args(["-c", &vms.uri]).args(ping).output().unwrap().status.success()
}

/// An agent is asked again after a second, which is more than `interval_ms` here; on a crowded machine it takes
/// longer than 0.1 s to answer, and is heard a look later.
const LOOKS: Duration = Duration::from_secs(2);

/// The agent of a guest hangs for so long, from some time between those that are returned on.
fn hang(scene: &Scene<'_>, seconds: u32) -> [Instant; 2] {
    let Scene { vms, guest, .. } = scene;
    let hang = format!("answered; killall -STOP qemu-ga; sleep {seconds}; killall -CONT qemu-ga");
    let hangs = Instant::now();
    vms.testvm(&["exec", "--detach", guest.name, "--", "sh", "-c", &hang]);
    until("its agent hangs", || !pings(vms, guest.name));
    [hangs, Instant::now()]
}

/// Its owner wants it to be left alone while its agent hangs: that is done at the look after its agent is there again (docs/limits.md), not when
/// it would be tried anyway (after 10, 30, 70 and 150 s). Then it is as it was, and stays so.
pub(crate) fn left_alone(scene: &Scene<'_>) {
    let Scene { vms, guest, .. } = scene;
    const HANGS: u32 = 110;
    let begun = Instant::now();
    let mut daemon = scene.start(None);
    scene.is_sized_and_told();
    // The guest is emulated: it is given twice what it took for the way there.
    let works = 2 * begun.elapsed();
    let [from, by] = hang(scene, HANGS);
    let owner = ["metadata", guest.name, "--live", "--uri", "urn:corefit:owner"];
    vms.virsh(&[&owner[..], &["--key", "corefit", "--set", "<owner hands-off='yes'/>"]].concat());
    until("it is pending", || daemon.log().contains("not put back"));
    // It was tried first before that, and is tried anyway well before its agent is back, and long after.
    let is_told_apart = from.elapsed() < Duration::from_secs(35);
    let back = format!("what=\"online vCPUs of {}: vCPUs {ALL}\"", guest.name);
    let returned = by + Duration::from_secs(HANGS.into());
    let soon = (returned + LOOKS + works).saturating_duration_since(Instant::now());
    if is_told_apart {
        assert!(comes(soon, || daemon.log().contains(&back)), "{}", daemon.log());
        let after = Instant::now().saturating_duration_since(from + Duration::from_secs(HANGS.into()));
        let between = by.duration_since(from);
        let _ = writeln!(
            std::io::stderr(),
            "it was let go {after:.1?} after its agent was back, or up to {between:.1?} less"
        );
    } else {
        let _ = writeln!(
            std::io::stderr(),
            "skipped: how soon it is let go, for this machine is too slow to tell"
        );
    }
    until("it is let go", || guest.online() == ALL && !vms.kept(guest.name));
    until("it is told no more", || guest.told().is_some_and(|text| text.contains("cpus none")));
    std::thread::sleep(Duration::from_secs(6));
    scene.let_go("hands off");
    vms.virsh(&[&owner[..], &["--remove"]].concat());
    until("it is managed again", || guest.online() == FEW);
    until("and told", || guest.told().is_some_and(|text| !text.contains("cpus none")));
    assert!(daemon.end().success(), "{}", daemon.log());
    scene.as_it_was("an agent that hung");
}

/// Everything is to be put back, for the daemon ends.
pub(crate) fn at_the_end(scene: &Scene<'_>) {
    let guest = &scene.guest;
    let mut daemon = scene.start(None);
    until("the guest has fewer vCPUs", || guest.online() == FEW);
    // Long enough that it still hangs when the daemon has given up, and 60 tries take longer.
    hang(scene, 115);
    assert_eq!(daemon.end().code(), Some(1), "{}", daemon.log());
    assert!(daemon.log().contains("pending"), "{}", daemon.log());
    let restored = corefit(&["restore", "--tries", "60", "--state", scene.state().to_str().unwrap()]);
    assert!(restored.status.success(), "{restored:?}");
    assert!(String::from_utf8_lossy(&restored.stderr).contains("at most 59 more tries"), "{restored:?}");
    scene.as_it_was("an agent that hung at the end");
}

//! `corefit manage --apply` that shapes the quotas of this machine's control groups, as those of containers: after any end the files of
//! a limit are as they were, byte for byte, and what an administrator makes of it stands.

#[path = "../../linux/tests/cgroup_support/mod.rs"]
mod cgroup_support;
#[path = "../../linux/tests/vm_support/mod.rs"]
mod vm_support;

#[expect(dead_code, reason = "the rest is for VMs")]
mod manage_support;

use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, Output};

use cgroup_support::{Ended, Group, Hierarchy, alone, or_skip, skipped};
use manage_support::{Daemon, corefit, until};
use tempfile::TempDir;

/// Works for 28 ms of CPU time and sleeps for 300 to 600 ms, ever another time: so it meets periods at any of theirs. With
/// periods of 80 ms it is stopped, though it leaves most of its quota; with twice as long ones it is not.
const BURSTS: &str = r"
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
static double used(void) { struct timespec t; clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t); return t.tv_sec + 1e-9 * t.tv_nsec; }
int main(void) {
    for (;;) {
        for (double end = used() + 0.028; used() < end;) ;
        usleep(300000 + rand() % 300000);
    }
}
";

/// A busy group with 16 of 80 ms, of which it saves 4 where the kernel does that, and whose timeslices expire unused.
struct Limited {
    _busy: Ended,
    group: Group,
    name: String,
    /// The program, logs, configuration and state.
    dir: TempDir,
    before: Vec<String>,
}

impl Limited {
    fn start() -> Result<Limited, String> {
        let cpu = Hierarchy::of("cpu")?;
        let group = cpu.group()?;
        let settings: &[_] = if cpu.v2 {
            &[("cpu.max", "16000 80000"), ("cpu.max.burst", "4000")]
        } else {
            &[("cpu.cfs_period_us", "80000"), ("cpu.cfs_quota_us", "16000"), ("cpu.cfs_burst_us", "4000")]
        };
        for (file, text) in settings.iter().filter(|(file, _)| group.dir.join(file).exists()) {
            group.set(file, text);
        }
        let dir = tempfile::tempdir().unwrap();
        let (source, program) = (dir.path().join("bursts.c"), dir.path().join("bursts"));
        std::fs::write(&source, BURSTS).unwrap();
        let status = Command::new("gcc").args(["-O1", "-o"]).args([&program, &source]).status();
        assert!(status.unwrap().success(), "gcc is needed: scripts/install-deps");
        let busy = Command::new("setpriv").args(["--pdeathsig", "KILL"]).arg(&program).spawn();
        let busy = Ended(busy.unwrap());
        group.set("cgroup.procs", &busy.0.id().to_string());
        let name = format!("/{}", group.dir.file_name().unwrap().to_str().unwrap());
        let made = Limited { _busy: busy, group, name, dir, before: Vec::new() };
        Ok(Limited { before: made.files(), ..made })
    }

    /// All files of its limit, in the order in which one that grows is written: of v1 the period, the quota, and what is saved of it.
    fn files(&self) -> Vec<String> {
        let files = ["cpu.max", "cpu.cfs_period_us", "cpu.cfs_quota_us", "cpu.cfs_burst_us", "cpu.max.burst"];
        let paths = files.map(|file| self.group.dir.join(file)).into_iter().filter(|path| path.exists());
        paths.map(|path| std::fs::read_to_string(path).unwrap()).collect()
    }

    /// How many of these are not as they were.
    fn changed(&self) -> usize {
        self.files().iter().zip(&self.before).filter(|(now, before)| now != before).count()
    }

    /// All of them with another quota and period, and what is saved as it was.
    fn with(&self, quota_us: u32, period_us: u32) -> Vec<String> {
        let ratio = if self.group.v2 {
            vec![format!("{quota_us} {period_us}\n")]
        } else {
            vec![format!("{period_us}\n"), format!("{quota_us}\n")]
        };
        [&ratio, &self.before[ratio.len()..]].concat()
    }

    /// Sets the quota, and nothing else: its period is that which the daemon made.
    fn set_quota(&self, quota_us: u32) {
        let file = if self.group.v2 { "cpu.max" } else { "cpu.cfs_quota_us" };
        self.group.set(file, &quota_us.to_string());
    }

    fn daemon(&self, shape: &str, kill: Option<&str>) -> Daemon {
        let config = format!(
            "metrics = \"off\"\ntell = false\n\
             [policy]\ninterval_ms = 200\ndwell_ms = 200\nlever_ms = 200\nsize = \"none\"\nshape = \"{shape}\"\n\
             [[policy.vm]]\nname = \"{}\"\nlatency_ms = 1000\n",
            self.name
        );
        Daemon::on(&self.machine(), self.dir.path(), &config, &["--apply"], kill)
    }

    /// One that has made its periods twice as long.
    fn shaped(&self, kill: Option<&str>) -> Daemon {
        let daemon = self.daemon("long-period", kill);
        until("it has longer periods", || self.changed() == self.before.len());
        daemon
    }

    /// One that comes after another, and shapes nothing itself, once it has put back what that one left.
    fn next(&self) -> Daemon {
        let daemon = self.daemon("none", None);
        until("the next one is at work", || self.status()["steps"].as_u64() > Some(0));
        daemon
    }

    fn machine(&self) -> String {
        format!("cgroups:{}", self.name)
    }

    fn state(&self) -> String {
        self.dir.path().join("state").to_str().unwrap().into()
    }

    /// `corefit restore`, on the machine that the journal names unless another option says it.
    fn restore(&self, options: &[&str]) -> Output {
        let restored = corefit(&[&["restore", "--state", &self.state()], options].concat());
        assert!(restored.status.success(), "{restored:?}");
        restored
    }

    fn status(&self) -> serde_json::Value {
        let status = corefit(&["status", "--json", "--state", &self.state()]);
        serde_json::from_slice(&status.stdout).unwrap_or_default()
    }

    /// What a daemon left is put back by the next one that starts, or by `corefit restore`.
    fn is_put_back(&self, starts: bool, what: &str) {
        if starts {
            let mut next = self.next();
            assert_eq!(self.files(), self.before, "{what}: {}", next.log());
            assert!(next.log().contains("put back: 1; "), "{what}: {}", next.log());
            assert!(next.end().success(), "{what}: {}", next.log());
        } else {
            let said = String::from_utf8_lossy(&self.restore(&[]).stdout).into_owned();
            assert!(said.contains("put back: 1; "), "{what}: {said}");
        }
        assert_eq!(self.files(), self.before, "{what}");
    }
}

#[test]
fn the_limit_of_a_group_that_leaves_much_of_it_is_shaped_and_back_at_the_end() {
    let _alone = alone();
    let group = or_skip!(Limited::start());
    let mut daemon = group.shaped(None);
    let twice = group.with(32_000, 160_000);
    let ratio = if group.group.v2 { 1 } else { 2 };
    assert_eq!(group.files()[..ratio], twice[..ratio], "the same part of a pCPU");
    assert!(daemon.end().success(), "{}", daemon.log());
    assert_eq!(group.files(), group.before, "{}", daemon.log());

    if group.before.len() == ratio {
        skipped("nothing of a quota can be saved here (Linux before 5.14)");
        return;
    }
    let mut daemon = group.daemon("burst", None);
    until("more is saved", || group.changed() == 1);
    assert_eq!(group.files()[..ratio], group.before[..ratio], "only what is saved changes");
    assert!(daemon.end().success(), "{}", daemon.log());
    assert_eq!(group.files(), group.before, "{}", daemon.log());
}

#[test]
fn killed_in_any_part_of_writing_a_limit_or_of_putting_it_back_all_of_it_is_as_it_was() {
    let _alone = alone();
    let group = or_skip!(Limited::start());
    let parts = group.before.len();
    let mut places = vec![("journaled".to_owned(), 0), ("written".to_owned(), parts)];
    places.extend((1..=parts).map(|part| (format!("limit-part:{part}"), part)));
    for (place, changed) in places {
        for starts in [false, true] {
            let mut daemon = group.daemon("long-period", Some(&place));
            assert_eq!(daemon.wait().signal(), Some(9), "{place}: {}", daemon.log());
            assert_eq!(group.changed(), changed, "{place}: {:?}: {}", group.files(), daemon.log());
            group.is_put_back(starts, &place);
        }
    }
    // On the way back, where parts are written in another order.
    let mut places = vec![("restored".to_owned(), 0)];
    places.extend((1..parts).map(|part| (format!("limit-part:{}", parts + part), parts - part)));
    for ((place, changed), starts) in places.into_iter().zip([true, false, true]) {
        let mut daemon = group.shaped(Some(&place));
        assert_eq!(daemon.end().signal(), Some(9), "{place}: {}", daemon.log());
        assert_eq!(group.changed(), changed, "{place}: {:?}: {}", group.files(), daemon.log());
        group.is_put_back(starts, &place);
    }
    // And so may who puts back be.
    drop(group.shaped(None));
    assert_eq!(group.changed(), parts, "nobody put it back");
    let mut restore = Command::new(env!("CARGO_BIN_EXE_corefit"));
    restore.args(["restore", "--state", &group.state()]).env("COREFIT_TEST_KILL_AT", "restored");
    assert_eq!(restore.status().unwrap().signal(), Some(9));
    assert_eq!(group.files(), group.before);
    group.is_put_back(false, "after a restore that was killed");
}

/// What is saved of a quota is as it was all the same: who sets a quota does not mean that.
#[test]
fn a_quota_that_an_administrator_sets_later_stands_and_that_is_said_also_after_a_kill() {
    let _alone = alone();
    // The daemon goes on, and would change it again, for much of it is lost.
    let group = or_skip!(Limited::start());
    let theirs = group.with(18_000, 160_000);
    let daemon = group.shaped(None);
    // Whether each is somebody else's.
    let settings = || {
        let status = group.status();
        let all = status["vms"].as_array()?.first()?["settings"].as_array()?.clone();
        Some(all.iter().map(|setting| setting["left_alone"] == true).collect::<Vec<_>>())
    };
    until("the status has it", || settings() == Some(vec![false]));
    group.set_quota(18_000);
    until("it is changed no more", || settings() == Some(vec![true]));
    assert_eq!(group.files(), theirs, "{}", daemon.log());
    let steps = || group.status()["steps"].as_u64().unwrap_or(0);
    let then = steps();
    until("it was looked at for longer than shapes are tried", || steps() > then + 20);
    assert_eq!(group.files(), theirs, "{}", daemon.log());
    stands(&daemon.log(), &group);
    drop(daemon);
    // A journal that holds nothing names no machine, and other tests may have VMs on this host.
    let restored = group.restore(&["--machine", &group.machine()]);
    let sum = String::from_utf8_lossy(&restored.stdout).into_owned();
    assert!(sum.contains("put back: 0; ") && sum.contains("changed by others, left so: 0;"), "{sum}");
    assert_eq!(group.files(), theirs);

    // The daemon ends before it sees that.
    let group = or_skip!(Limited::start());
    let mut daemon = group.shaped(None);
    group.set_quota(18_000);
    assert!(daemon.end().success(), "{}", daemon.log());
    assert_eq!(group.files(), theirs, "{}", daemon.log());
    stands(&daemon.log(), &group);

    // It is killed before that, when it had written all or one of the files.
    for (place, starts) in
        [(None, false), (None, true), (Some("limit-part"), false), (Some("limit-part"), true)]
    {
        let group = or_skip!(Limited::start());
        match place {
            Some(_) => assert_eq!(group.daemon("long-period", place).wait().signal(), Some(9)),
            None => drop(group.shaped(None)),
        }
        group.set_quota(18_000);
        let said = if starts {
            let mut next = group.next();
            assert_eq!(group.files(), theirs, "{place:?}: {}", next.log());
            assert!(next.end().success(), "{place:?}: {}", next.log());
            next.log()
        } else {
            let restored = group.restore(&[]);
            let sum = String::from_utf8_lossy(&restored.stdout).into_owned();
            assert!(sum.contains("put back: 0; ") && sum.contains("changed by others, left so: 1;"), "{sum}");
            String::from_utf8_lossy(&restored.stderr).into_owned()
        };
        assert_eq!(group.files(), theirs, "{place:?}: {said}");
        stands(&said, &group);
    }
}

/// That is said of the group's quota.
fn stands(said: &str, group: &Limited) {
    let parts = [group.name.as_str(), "quota", "18000 us in 160000 us", "stands"];
    assert!(said.lines().any(|line| parts.iter().all(|part| line.contains(part))), "{said}");
}

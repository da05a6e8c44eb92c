use std::path::Path;
use std::process::Command;

use super::*;

#[test]
fn what_threads_wait_for_that_this_pid_namespace_does_not_list_is_not_known() {
    let captured = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../captures/busy-sibling");
    let dir = tempfile::tempdir().unwrap();
    let copy = |from: &str| {
        let from = captured.join(from).join(".");
        assert!(Command::new("cp").arg("-r").arg(from).arg(dir.path()).status().unwrap().success());
        let group = dir.path().join("sys/fs/cgroup/cpu,cpuacct/neighbour");
        std::fs::write(group.join("cgroup.procs"), "").unwrap();
    };
    let counters = |sees_all| {
        copy("t0");
        let mut reader = HostReader::open(Root::at(dir.path())).unwrap();
        reader.sees_all = sees_all;
        let mut look = || reader.look(&["/neighbour".into()], VmCounters::Read).unwrap();
        look();
        copy("t1");
        let view = look();
        let told = view
            .unread
            .iter()
            .any(|unread| unread.why.contains("not listed in this PID namespace: what they"));
        (view.vms[0].counters.wait_ns, view.vms[0].counters.run_ns.is_some_and(|ns| ns > 0), told)
    };
    assert_eq!(counters(false), (None, true, true));
    assert_eq!(counters(true), (Some(0), true, false), "they have ended");
}

use std::path::Path;
use std::process::Command;

use super::*;
use crate::root::testing;

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

/// A host of v2 with these groups, of which each has so many threads; 8 pCPUs.
struct Toy {
    dir: tempfile::TempDir,
    reader: HostReader,
    second: u64,
}

impl Toy {
    fn new(groups: &[(String, u32)]) -> Toy {
        let dir = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| testing::put(dir.path(), path, text);
        put("proc/self/mountinfo", "25 22 0:22 / /cg rw - cgroup2 cgroup2 rw\n");
        put("proc/stat", &(0..8).map(|cpu| format!("cpu{cpu} 1 1 1 1 1 1 1 1\n")).collect::<String>());
        put("sys/devices/system/cpu/online", "0-7\n");
        put("cg/cgroup.controllers", "cpu cpuset\n");
        let mut tid = 100;
        for (path, threads) in groups {
            put(&format!("cg{path}/cgroup.controllers"), "cpu\n");
            put(&format!("cg{path}/cpu.weight"), "100\n");
            put(&format!("cg{path}/cpu.stat"), "usage_usec 0\n");
            let tids: Vec<u32> = (tid..tid + threads).collect();
            tid += threads;
            let list = tids.iter().map(|tid| format!("{tid}\n")).collect::<String>();
            put(&format!("cg{path}/cgroup.threads"), &list);
            for tid in tids {
                put(&format!("proc/{tid}/task/{tid}/schedstat"), "0 0 0\n");
                put(&format!("proc/{tid}/status"), "Cpus_allowed_list:\t0-1\n");
            }
        }
        let root = Root::at(dir.path());
        testing::put(dir.path(), "proc/uptime", "1.00 1.00\n");
        Toy { reader: HostReader::open(root).unwrap(), dir, second: 0 }
    }

    fn put(&self, path: &str, text: &str) {
        testing::put(self.dir.path(), path, text);
    }

    /// A look after so many seconds.
    fn look(&mut self, vms: &[String], seconds: u64) -> HostView {
        self.second += seconds;
        self.put("proc/uptime", &format!("{}.00 1.00\n", self.second));
        self.reader.look(vms, VmCounters::Read).unwrap()
    }
}

#[test]
fn what_is_set_for_groups_is_read_again_for_each_of_them_however_many_there_are() {
    let vms: Vec<String> = (0..64).map(|number| format!("/g{number:02}")).collect();
    let mut toy = Toy::new(&vms.iter().map(|path| (path.clone(), 0)).collect::<Vec<_>>());
    toy.look(&vms, 1);
    vms.iter().for_each(|path| toy.put(&format!("cg{path}/cpu.weight"), "300\n"));
    // Nine at each look, the top being one of 65, from the fifth second on.
    (0..11).for_each(|_| drop(toy.look(&vms, 1)));
    let view = toy.look(&vms, 1);
    let old: Vec<&str> =
        view.vms.iter().filter(|vm| vm.weight.unwrap().0 < 300.0).map(|vm| vm.path.as_str()).collect();
    assert!(view.vms.len() == 64 && old.is_empty(), "{old:?}");
}

#[test]
fn a_group_without_a_cpuset_of_its_own_has_that_of_the_group_above_it() {
    let vms = ["/a/b".to_owned(), "/c".to_owned()];
    let mut toy = Toy::new(&[("/a".into(), 0), ("/a/b".into(), 65), ("/c".into(), 65)]);
    toy.put("cg/a/cpuset.cpus.effective", "2-3\n");
    let view = toy.look(&vms, 1);
    let cpus: Vec<String> = view.vms.iter().map(|vm| vm.cpus.to_string()).collect();
    assert_eq!(cpus, ["2-3", "0-7"]);
    assert!(view.vms.iter().all(|vm| vm.no_cpuset.is_some()));
}

#[test]
fn a_group_that_rests_has_the_pcpus_of_its_new_cpuset() {
    let vms = ["/a".to_owned()];
    let mut toy = Toy::new(&[("/a".into(), 1)]);
    toy.put("cg/a/cpuset.cpus.effective", "0-3\n");
    let cpus = |view: HostView| view.vms[0].cpus.to_string();
    assert_eq!(cpus(toy.look(&vms, 1)), "0-1", "those of its thread");
    toy.put("cg/a/cpuset.cpus.effective", "0-5\n");
    assert_eq!(cpus(toy.look(&vms, 6)), "0-1", "which it chose itself");
    toy.put("cg/a/cpuset.cpus.effective", "0-6\n");
    toy.put("proc/100/status", "Cpus_allowed_list:\t0-6\n");
    assert_eq!(cpus(toy.look(&vms, 6)), "0-6", "which the kernel moved with it");
}

#[test]
fn a_group_in_which_and_below_which_no_process_is_is_empty_until_there_is_one() {
    let vms = ["/a".to_owned(), "/b".to_owned(), "/c".to_owned()];
    let groups = [("/a", 0), ("/b", 1), ("/c", 0), ("/c/d", 1)].map(|(path, threads)| (path.into(), threads));
    let mut toy = Toy::new(&groups);
    let empty = |view: HostView| view.vms.into_iter().map(|vm| vm.into_vm().empty).collect::<Vec<_>>();
    assert_eq!(empty(toy.look(&vms, 1)), [true, false, false]);
    assert_eq!(empty(toy.look(&vms, 1)), [true, false, false]);
    // One comes and sleeps, and one ends: that is seen with the settings, of some groups at each look.
    let later = |toy: &mut Toy| {
        (0..9).for_each(|_| drop(toy.look(&vms, 1)));
        empty(toy.look(&vms, 1))
    };
    toy.put("cg/a/cgroup.threads", "100\n");
    toy.put("cg/b/cgroup.threads", "");
    assert_eq!(later(&mut toy), [false, true, false]);
    // One that runs is seen at once.
    toy.put("cg/b/cgroup.threads", "100\n");
    toy.put("cg/b/cpu.stat", "usage_usec 1000\n");
    assert_eq!(empty(toy.look(&vms, 1)), [false, false, false]);
    // Who is not shown all processes does not know.
    toy.put("cg/b/cgroup.threads", "");
    toy.reader.sees_all = false;
    assert_eq!(later(&mut toy), [false, false, false]);
    toy.reader.sees_all = true;
    assert_eq!(later(&mut toy), [false, true, false]);
}

/// Whoever may make groups can make as many as he likes in one directory.
#[test]
fn no_more_groups_inside_one_are_followed_than_there_is_room_for() {
    let toy = Toy::new(&[("/a".into(), 1), ("/a/b".into(), 1), ("/a/c".into(), 1), ("/a/d".into(), 1)]);
    let inside = |most| inside(&toy.reader.tree, toy.reader.root(), "/a", most);
    assert_eq!(inside(4).0.len(), 4);
    assert!(inside(4).1.is_none());
    let (found, unlisted) = inside(3);
    assert_eq!(found.len(), 3);
    assert!(unlisted.is_some_and(|why| why.to_string().contains("no more than 3 groups")));
}

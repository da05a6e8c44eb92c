//! Classes of control groups, on a captured machine to which counters of caches were added as the kernel documents them
//! (Documentation/arch/x86/resctrl.rst).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use corefit_core::machine::{HostEstimate, Machine, Origin, contract, estimate};
use corefit_core::place::Class;
use corefit_linux::Root;
use corefit_linux::host::Cgroups;

/// A copy of a captured machine, at two instants.
struct Captured(tempfile::TempDir);

impl Captured {
    fn new() -> Captured {
        let dir = tempfile::tempdir().unwrap();
        let capture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../captures/v2-vm");
        let copied = Command::new("cp").arg("-r").arg(capture.join(".")).arg(dir.path()).status().unwrap();
        assert!(copied.success());
        let copy = Captured(dir);
        for cpu in ["cpu0", "cpu1"] {
            for (file, text) in
                [("level", "3"), ("type", "Unified"), ("size", "8192K"), ("shared_cpu_list", "0-1")]
            {
                copy.put(0, &format!("sys/devices/system/cpu/{cpu}/cache/index3/{file}"), text);
            }
        }
        copy
    }

    fn at(&self, instant: usize) -> PathBuf {
        self.0.path().join(["t0", "t1"][instant])
    }

    fn put(&self, instant: usize, file: &str, text: &str) {
        let path = self.at(instant).join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{text}\n")).unwrap();
    }

    /// A monitoring group of these threads, and what it counts at both instants: bytes held, bytes moved.
    fn monitor(&self, name: &str, tasks: &str, counted: [[u64; 2]; 2]) {
        self.put(0, "sys/fs/resctrl/info/L3_MON/mon_features", "llc_occupancy\nmbm_total_bytes");
        let group = format!("sys/fs/resctrl/mon_groups/{name}");
        for (instant, [held, moved]) in counted.iter().enumerate() {
            self.put(instant, &format!("{group}/tasks"), tasks);
            self.put(instant, &format!("{group}/cpus_list"), "");
            self.put(instant, &format!("{group}/mon_data/mon_L3_00/llc_occupancy"), &held.to_string());
            self.put(instant, &format!("{group}/mon_data/mon_L3_00/mbm_total_bytes"), &moved.to_string());
        }
    }

    fn open(&self) -> Cgroups {
        let roots = vec![Root::at(&self.at(0)), Root::overlay(&self.at(1), &self.at(0))];
        Cgroups::captured(roots, "/a.slice/*".parse().unwrap()).unwrap()
    }

    fn watched(&self) -> HostEstimate {
        let mut machine = self.open();
        let before = machine.observe().unwrap();
        assert!(machine.pass(Duration::ZERO).unwrap());
        estimate(&before, &machine.observe().unwrap()).unwrap()
    }
}

#[test]
fn a_group_is_classed_by_its_monitor_and_its_neighbour_by_its_own() {
    let copy = Captured::new();
    // In 3.71 s, of which the first used half a pCPU and the second a quarter.
    copy.monitor("mine", "96\n97", [[0, 5_000_000], [3 << 20, 405_000_000]]);
    copy.monitor("theirs", "98\n99", [[0, 0], [3 << 20, 4_000_000]]);
    let host = copy.watched();
    let vm = |name: &str| host.vms.iter().find(|vm| vm.seen.name == name).unwrap();
    let (mine, theirs) = (vm("/a.slice/mine"), vm("/a.slice/theirs"));
    assert_eq!(
        (mine.class.class, mine.class.origin),
        (Class::CacheHungry, Origin::Measured),
        "{}",
        mine.class
    );
    let used = mine.activity.used.unwrap().0;
    let rate = mine.cache.unwrap();
    assert!((rate.traffic.unwrap() - 400e6 / 3.71 / used).abs() < 1e3, "{rate:?}");
    assert!((rate.held.unwrap() - 3.0 / 4.0 / used).abs() < 1e-9, "of 4 MiB for each pCPU: {rate:?}");
    assert_eq!(theirs.class.class, Class::Unknown);
    assert!(theirs.class.why.ends_with("nothing follows from that"), "{}", theirs.class);
    assert_eq!(host.uncounted, None);
    contract::observing(&mut copy.open(), Duration::from_millis(1)).unwrap();
}

#[test]
fn who_has_no_monitor_of_its_own_is_of_unknown_class() {
    let copy = Captured::new();
    copy.monitor("both", "96\n97\n98\n99", [[0, 0], [3 << 20, 400_000_000]]);
    let host = copy.watched();
    for vm in host.vms.iter().filter(|vm| vm.seen.name.starts_with("/a.slice/")) {
        assert_eq!(
            vm.class.to_string(),
            "unknown: what it does to caches is not counted",
            "{}",
            vm.seen.name
        );
    }
}

#[test]
fn a_host_without_counters_says_so() {
    let host = Captured::new().watched();
    let why = host.uncounted.as_deref().unwrap();
    assert!(why.starts_with("this host has no counters of caches"), "{why}");
    assert!(host.vms.iter().all(|vm| vm.class.origin == Origin::Unknown));
}

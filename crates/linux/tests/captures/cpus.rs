//! `corefit cpus` on captured machines: each has one expected report (`captures/README.md`).
//! `COREFIT_BLESS=1` rewrites the `expected.json` files; the table here is written by hand.

use std::path::{Path, PathBuf};

use corefit_core::{LimitKind, Reading, Report, estimate};
use corefit_linux::{Root, read, read_settings};

/// Name, entitled, available, kind and source of each binding limit.
type Expected = (&'static str, Option<f64>, f64, &'static [(LimitKind, &'static str)]);

const CPU: &str = "/sys/fs/cgroup/cpu,cpuacct";
const ONLINE: (LimitKind, &str) = (LimitKind::Online, "/sys/devices/system/cpu/online");

const EXPECTED: &[Expected] = &[
    // The others on the host cannot be seen, and they are busy.
    ("docker-v1", None, 2.0, &[(LimitKind::Quota, "/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us")]),
    // Nor here, but the machine is idle but for the container itself.
    ("docker-v2", Some(4.0), 4.0, &[ONLINE]),
    // 8 x 317/417 x 98/255 x 59/99, and the pod's quota, not the container's 4.
    (
        "kubernetes",
        Some(1.392_887),
        1.5,
        &[(
            LimitKind::Quota,
            "/sys/fs/cgroup/kubepods.slice/kubepods-burstable.slice/\
             kubepods-burstable-pod0a1b2c3d_1111_2222_3333_444455556666.slice/cpu.max",
        )],
    ),
    // 4 x 100/200 x 200/300; more than that was in use, since the others do not want everything.
    ("systemd-slice", Some(1.333_333), 1.6, &[(LimitKind::Measured, "/proc/800/task/*/schedstat")]),
    ("bare", Some(4.0), 4.0, &[ONLINE]),
    // Confined to CPUs 0-1; system.slice (CPUs 1-3) and one thread of sshd, all equal: the
    // thread is content with 1, the other two divide 3 equally.
    ("hybrid", Some(1.5), 1.6, &[(LimitKind::Measured, "/proc/4000/task/*/schedstat")]),
    // Other machines on the host cannot be seen.
    ("vm-steal", None, 2.8, &[(LimitKind::Steal, "/proc/stat")]),
    ("busy-sibling", Some(1.0), 1.02, &[(LimitKind::Measured, "/proc/700/task/*/schedstat")]),
    // The group's name is not told; found by looking for the process. `outer` has 2, of
    // which the helper may use 0.5 whatever it weighs: 1.5 are left, as is the quota.
    ("nested-namespace", Some(1.5), 1.5, &[(LimitKind::Quota, "/sys/fs/cgroup/outer/inner/cpu.max")]),
    // 2 x 1024/1360 for the session, of which `make` on two CPUs has two threads against one.
    ("no-cgroups", Some(1.003_922), 1.003_922, &[(LimitKind::Weight, "/proc/60/stat")]),
    ("lxcfs", None, 1.2, &[(LimitKind::Quota, "/sys/fs/cgroup/cpu.max")]),
    // 2 x 1/2 x 200/300, of which a process on two CPUs has two threads against one.
    ("v2-vm", Some(0.444_444), 0.444_444, &[(LimitKind::Weight, "/proc/96/stat")]),
    // The same machine from inside a container: no more than what it has is known.
    ("v2-container", None, 0.180_203, &[(LimitKind::Measured, "/proc/5/task/*/schedstat")]),
    // Four busy members of the root, all equal, and 512 against 1024 below: 2 / 4 / 3.
    (
        "this-machine",
        Some(0.166_667),
        0.166_667,
        &[(LimitKind::Weight, "/sys/fs/cgroup/cpu/corefit-capture/mine/cpu.shares")],
    ),
];

fn captures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../captures")
}

fn readings(name: &str) -> (Reading, Reading) {
    let dir = captures().join(name);
    let pid = std::fs::read_to_string(dir.join("pid")).unwrap().trim().parse().unwrap();
    let (t0, t1) = (dir.join("t0"), dir.join("t1"));
    (read(&Root::at(&t0), pid).unwrap(), read(&Root::overlay(&t1, &t0), pid).unwrap())
}

#[test]
fn settings_alone_tell_the_same_limits_without_looking_at_anybody_else() {
    for (name, ..) in EXPECTED {
        let dir = captures().join(name);
        let pid = std::fs::read_to_string(dir.join("pid")).unwrap().trim().parse().unwrap();
        let root = Root::at(&dir.join("t0"));
        let (full, settings) = (read(&root, pid).unwrap(), read_settings(&root, pid).unwrap());
        let limits = |reading: &Reading| {
            let mut limits = estimate(reading, reading).limits;
            limits.retain(|l| {
                matches!(
                    l.kind,
                    LimitKind::Online
                        | LimitKind::Affinity
                        | LimitKind::Cpuset
                        | LimitKind::Quota
                        | LimitKind::Told
                )
            });
            limits.into_iter().map(|l| (l.kind, l.cpus, l.source)).collect::<Vec<_>>()
        };
        assert_eq!(limits(&settings), limits(&full), "{name}");
        let available = |reading: &Reading| estimate(reading, reading).available;
        assert_eq!(available(&settings), available(&full), "{name}");
        assert!(settings.groups.iter().all(|group| group.others.is_empty()), "{name}");
    }
}

fn report(name: &str) -> Report {
    let (earlier, later) = readings(name);
    estimate(&earlier, &later)
}

#[test]
fn each_captured_machine_gives_its_entitlement_and_its_binding_limit() {
    for (name, entitled, available, binding) in EXPECTED {
        let report = report(name);
        assert_eq!(report.entitled.map(|c| c.0), *entitled, "{name}");
        assert!((report.available.0 - available).abs() < 1e-9, "{name}: {}", report.available.0);
        let marked: Vec<_> = report.limits.iter().filter(|l| l.binding).collect();
        let marked: Vec<_> = marked.iter().map(|l| (l.kind, l.source.as_str())).collect();
        assert_eq!(marked, *binding, "{name}");
    }
}

#[test]
fn each_captured_machine_gives_exactly_its_expected_document() {
    for (name, ..) in EXPECTED {
        let path = captures().join(name).join("expected.json");
        let got = serde_json::to_string_pretty(&report(name)).unwrap() + "\n";
        if std::env::var_os("COREFIT_BLESS").is_some() {
            std::fs::write(&path, &got).unwrap();
        }
        let expected = std::fs::read_to_string(&path).unwrap();
        assert_eq!(got, expected, "{}", path.display());
    }
}

#[test]
fn every_capture_is_tested() {
    let entries = std::fs::read_dir(captures()).unwrap().map(|e| e.unwrap());
    let dirs = entries.filter(|e| e.path().join("t0").is_dir());
    let mut names: Vec<_> = dirs.map(|e| e.file_name().into_string().unwrap()).collect();
    names.sort();
    let mut tested: Vec<_> = EXPECTED.iter().map(|e| e.0.to_owned()).collect();
    tested.sort();
    assert_eq!(names, tested);
}

#[test]
fn available_never_exceeds_a_limit_other_than_the_smaller_of_weight_and_measured() {
    for (name, ..) in EXPECTED {
        let report = report(name);
        let soft = |kind| matches!(kind, LimitKind::Weight | LimitKind::Measured);
        for limit in report.limits.iter().filter(|l| !soft(l.kind)) {
            if let Some(cpus) = limit.cpus {
                assert!(report.available <= cpus, "{name}: {limit:?}");
            }
        }
        assert!(report.limits.iter().any(|l| l.binding), "{name}");
    }
}

#[test]
fn what_cannot_be_seen_from_a_container_is_named() {
    let named = |name, path: &str| {
        let unread = report(name).unread;
        assert!(unread.iter().any(|u| u.path == path), "{name}: {unread:?}");
    };
    named("docker-v1", CPU);
    named("docker-v2", "/sys/fs/cgroup");
    named("lxcfs", "/proc/stat");
    named("lxcfs", "/proc/1/task/*/schedstat");
    for name in ["bare", "kubernetes", "systemd-slice", "hybrid", "nested-namespace", "this-machine", "v2-vm"]
    {
        assert_eq!(report(name).unread, [], "{name}");
    }
}

#[test]
fn two_readings_at_one_instant_say_nothing_about_use() {
    for (name, ..) in EXPECTED {
        let (earlier, _) = readings(name);
        let report = estimate(&earlier, &earlier);
        assert_eq!(report.entitled, None, "{name}");
        assert!(report.available.0 > 0.0 && report.used.0 == 0.0, "{name}: {report:?}");
    }
}

#[test]
fn a_process_that_is_not_there_is_gone() {
    let root = Root::at(&captures().join("bare/t0"));
    let error = read(&root, 4711).unwrap_err();
    assert_eq!(error.to_string(), "/proc/4711: gone (the process or group ended)");
}

#[test]
fn a_reading_survives_being_written_and_read_back() {
    for (name, ..) in EXPECTED {
        let (_, later) = readings(name);
        let text = serde_json::to_string(&later).unwrap();
        assert_eq!(serde_json::from_str::<Reading>(&text).unwrap(), later, "{name}");
    }
}

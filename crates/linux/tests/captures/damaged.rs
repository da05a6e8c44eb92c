//! Damaged and missing files: named with place, never replaced by a likely value.

use std::path::{Path, PathBuf};

use corefit_core::{Report, What, estimate};
use corefit_linux::{ReadError, Root, read};

const PID: u32 = 700;
const MINE: &str = "sys/fs/cgroup/cpu,cpuacct/mine";

/// The capture `busy-sibling` with one file of both instants replaced (or removed).
fn damaged(file: &str, text: Option<&str>) -> Result<Report, ReadError> {
    let capture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../captures/busy-sibling");
    let dir = tempfile::tempdir().unwrap();
    let roots: Vec<PathBuf> = ["t0", "t1"].iter().map(|t| dir.path().join(t)).collect();
    for root in &roots {
        copy(&capture.join("t0"), root);
    }
    copy(&capture.join("t1"), &roots[1]);
    for root in &roots {
        match text {
            Some(text) => std::fs::write(root.join(file), text).unwrap(),
            None => std::fs::remove_file(root.join(file)).unwrap(),
        }
    }
    Ok(estimate(&read(&Root::at(&roots[0]), PID)?, &read(&Root::at(&roots[1]), PID)?))
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &to);
        } else {
            std::fs::copy(entry.path(), to).unwrap();
        }
    }
}

/// The report names `file` as unread with a reason that begins with `why`.
#[track_caller]
fn names(report: &Report, what: What, file: &str, why: &str) {
    let path = format!("/{file}");
    let found = report.unread.iter().find(|u| u.path == path && u.what == what);
    let found = found.unwrap_or_else(|| panic!("{path} is not named: {:?}", report.unread));
    assert!(found.why.starts_with(why), "{found:?}");
}

#[test]
fn the_capture_is_whole_before_it_is_damaged() {
    let report = damaged("proc/uptime", Some("86401.00 1.00\n")).unwrap();
    assert_eq!(report.unread, []);
}

#[test]
fn a_quota_that_is_none_is_named_and_no_entitlement_is_claimed() {
    for text in ["", "garbage\n", "0\n", "-5\n", "1e5\n", "99999999999999999999999\n", "10000"] {
        let file = format!("{MINE}/cpu.cfs_quota_us");
        let report = damaged(&file, Some(text)).unwrap();
        if text == "10000" {
            assert_eq!(report.available.0, 0.1, "a missing line end is no damage");
            continue;
        }
        names(&report, What::Quota, &file, "line 1: ");
        assert_eq!(report.entitled, None, "{text:?}");
    }
}

#[test]
fn a_huge_quota_is_a_quota() {
    let report = damaged(&format!("{MINE}/cpu.cfs_quota_us"), Some("18446744073709551615\n")).unwrap();
    assert_eq!((report.unread.len(), report.entitled.map(|c| c.0)), (0, Some(1.0)));
}

#[test]
fn a_quota_without_its_period_is_named() {
    for text in [None, Some(""), Some("0\n")] {
        let file = format!("{MINE}/cpu.cfs_period_us");
        let report = damaged(&file, text).unwrap();
        names(&report, What::Quota, &file, if text.is_some() { "line 1: " } else { "no such file" });
        assert_eq!(report.entitled, None);
    }
}

#[test]
fn weights_that_are_none_are_named_both_ours_and_theirs() {
    for group in ["mine", "neighbour"] {
        let file = format!("sys/fs/cgroup/cpu,cpuacct/{group}/cpu.shares");
        for text in ["", "1\n", "x\n", "999999\n"] {
            let report = damaged(&file, Some(text)).unwrap();
            names(&report, What::Weight, &file, "line 1: ");
            assert_eq!(report.entitled, None, "{group} {text:?}");
        }
    }
}

#[test]
fn a_sibling_whose_use_cannot_be_read_takes_the_entitlement_away() {
    let file = "sys/fs/cgroup/cpu,cpuacct/neighbour/cpuacct.usage";
    let report = damaged(file, Some("much\n")).unwrap();
    names(&report, What::Siblings, file, "line 1: \"much\"");
    assert_eq!(report.entitled, None);
    assert_eq!(report.available.0, 1.02, "what it has and what is idle is known all the same");
}

#[test]
fn a_truncated_table_of_cpu_times_is_named_and_idle_is_unknown() {
    for text in ["", "cpu  1 2 3\n", "cpu  1\ncpu0 1 2 3\n", "cpu0 9 9 9 9 9 9 9 x 0 0\n"] {
        let report = damaged("proc/stat", Some(text)).unwrap();
        names(&report, What::Idle, "proc/stat", "line ");
        assert_eq!(report.idle, None);
    }
    let report = damaged("proc/stat", None).unwrap();
    names(&report, What::Idle, "proc/stat", "no such file");
}

#[test]
fn lost_cpus_in_the_table_make_idle_unknown_rather_than_small() {
    let report = damaged("proc/stat", Some("cpu  1\ncpu0 9 9 9 9 9 9 9 9 0 0\n")).unwrap();
    assert_eq!(report.idle, None);
}

#[test]
fn damaged_lists_of_groups_and_mounts_leave_the_ancestors_unknown() {
    for (file, text) in [
        ("proc/700/cgroup", "4:cpuset:/\nnonsense\n"),
        ("proc/700/cgroup", "3:cpu,cpuacct:mine\n"),
        ("proc/self/mountinfo", "22 27 0:21 / /proc rw\n"),
    ] {
        let report = damaged(file, Some(text)).unwrap();
        names(&report, What::Ancestors, file, "line ");
        assert_eq!(report.entitled, None, "{file}");
    }
    let report = damaged("proc/self/mountinfo", None).unwrap();
    names(&report, What::Ancestors, "proc/self/mountinfo", "no such file");
}

#[test]
fn a_list_of_online_cpus_that_is_none_falls_back_to_the_table_and_says_so() {
    let file = "sys/devices/system/cpu/online";
    for text in [None, Some(""), Some("0-\n"), Some("0-99999999\n")] {
        let report = damaged(file, text).unwrap();
        names(&report, What::Online, file, if text.is_some() { "line 1: " } else { "no such file" });
        assert_eq!(report.limits[0].source, "/proc/stat");
        assert_eq!(report.entitled.map(|c| c.0), Some(1.0));
    }
}

#[test]
fn a_damaged_cpuset_is_named_and_the_affinity_still_holds() {
    let file = "sys/fs/cgroup/cpuset/cpuset.effective_cpus";
    let report = damaged(file, Some("all\n")).unwrap();
    names(&report, What::Cpuset, file, "line 1: \"all\"");
    assert_eq!(report.entitled.map(|c| c.0), Some(1.0));
}

#[test]
fn a_damaged_clock_mask_or_process_is_an_error_with_file_and_line() {
    for (file, text, start) in [
        ("proc/uptime", "soon\n", "/proc/uptime, line 1: \"soon\" is no time"),
        ("proc/700/status", "Name:\tlu\nCpus_allowed_list:\tmany\n", "/proc/700/status, line 2: \"many\""),
        ("proc/700/stat", "700 (lu", "/proc/700/stat, line 1: \"700 (lu\" is no process status"),
        ("proc/700/task/701/schedstat", "1\n", "/proc/700/task/701/schedstat, line 1: \"1\" is no pair"),
    ] {
        let error = damaged(file, Some(text)).unwrap_err().to_string();
        assert!(error.starts_with(start), "{error}");
    }
}

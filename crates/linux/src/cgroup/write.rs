//! Changing the settings of one control group, v1 and v2.
//!
//! Nothing is written that is so already: writing a bandwidth limit lets a throttled group run again
//! (kernel/sched/fair.c, `tg_set_cfs_bandwidth`). Sources: as [`files`]; ranges from
//! kernel/sched/core.c (`min_cfs_quota_period`, `max_cfs_quota_period`).

use std::io;
use std::ops::RangeInclusive;

use corefit_core::machine::{Limit, MachineError};
use corefit_core::{CpuSet, Weight};

use super::files;
use super::mounts::Version;
use crate::root::{ReadError, Root, optional, value};

/// Periods that the kernel takes, µs.
const PERIODS_US: RangeInclusive<u64> = 1_000..=1_000_000;
/// Shortest quota that the kernel takes, µs.
const QUOTA_US: u64 = 1_000;

/// A number without a fraction, in a range.
pub(crate) fn whole(number: f64, range: RangeInclusive<u32>) -> Result<u64, MachineError> {
    let (least, most) = (f64::from(*range.start()), f64::from(*range.end()));
    if !(least..=most).contains(&number) {
        return Err(MachineError::Malformed(format!("a weight is from {least} to {most}, not {number}")));
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "in a range of whole numbers"
    )]
    Ok(number.round() as u64)
}

/// Whether a kernel would take such a limit.
pub(crate) fn check(limit: &Limit) -> Result<(), MachineError> {
    let wrong = |text: String| Err(MachineError::Malformed(text));
    if !PERIODS_US.contains(&limit.period_us) {
        return wrong(format!("a period is from 1000 to 1000000 us, not {}", limit.period_us));
    }
    match limit.quota_us {
        Some(quota) if quota < QUOTA_US => wrong(format!("a quota is 1000 us at least, not {quota}")),
        Some(quota) if limit.burst_us > quota => {
            wrong(format!("no more than the quota of {quota} us can be saved, not {}", limit.burst_us))
        }
        _ => Ok(()),
    }
}

/// The bandwidth limit that is set; unsupported if the group has no such setting.
pub(crate) fn limit(root: &Root, version: Version, dir: &str) -> Result<Limit, MachineError> {
    let quota = files::quota(root, version, dir)?;
    let quota = quota.ok_or_else(|| none(dir, "bandwidth limit"))?;
    Ok(Limit { quota_us: quota.quota_us, period_us: quota.period_us, burst_us: quota.burst_us })
}

/// Sets it.
pub(crate) fn set_limit(root: &Root, version: Version, dir: &str, to: Limit) -> Result<(), MachineError> {
    check(&to)?;
    let from = limit(root, version, dir)?;
    if from == to {
        return Ok(());
    }
    let write = |file: &str, text: String| {
        let done = put(root, &format!("{dir}/{file}"), &text);
        crate::between("limit-part");
        done
    };
    let burst_file = match version {
        Version::V1 => "cpu.cfs_burst_us",
        Version::V2 => "cpu.max.burst",
    };
    if to.burst_us != from.burst_us && !root.has(&format!("{dir}/{burst_file}")) {
        let text = format!("{dir}: nothing of its quota can be saved: no {burst_file} (Linux before 5.14)");
        return Err(MachineError::Unsupported(text));
    }
    // What is saved has to fit the quota at any time, so a smaller one comes first.
    if to.burst_us < from.burst_us {
        write(burst_file, to.burst_us.to_string())?;
    }
    if (to.quota_us, to.period_us) != (from.quota_us, from.period_us) {
        match version {
            Version::V2 => {
                let quota = to.quota_us.map_or("max".into(), |quota| quota.to_string());
                write("cpu.max", format!("{quota} {}", to.period_us))?;
            }
            Version::V1 => {
                let period = |limit: &Limit| write("cpu.cfs_period_us", limit.period_us.to_string());
                let quota =
                    |us: Option<u64>| write("cpu.cfs_quota_us", us.map_or("-1".into(), |us| us.to_string()));
                let by_period = |limit: &Limit| period(limit).and_then(|()| quota(limit.quota_us));
                // Without a quota a group has that of the one above.
                let by_none = |limit: &Limit| quota(None).and_then(|()| by_period(limit));
                // Between the two, their ratio has to fit the groups above and below: where one of these limits as much, one order
                // does, and where both do, none of these two.
                let done = by_period(&to)
                    .or_else(|_| period(&from).and_then(|()| quota(to.quota_us)).and_then(|()| period(&to)))
                    .or_else(|_| by_none(&to));
                if done.is_err() {
                    // Half of it would be another limit.
                    let _ = by_none(&from).and_then(|()| write(burst_file, from.burst_us.to_string()));
                }
                done?;
            }
        }
    }
    if to.burst_us > from.burst_us {
        write(burst_file, to.burst_us.to_string())?;
    }
    Ok(())
}

/// The weight that is set; unsupported if the group has none.
pub(crate) fn weight(root: &Root, version: Version, dir: &str) -> Result<Weight, MachineError> {
    let weight = files::weight(root, version, dir)?;
    Ok(weight.ok_or_else(|| none(dir, "weight"))?.value)
}

/// Sets it.
pub(crate) fn set_weight(root: &Root, version: Version, dir: &str, to: Weight) -> Result<(), MachineError> {
    let (file, range) = match version {
        Version::V1 => ("cpu.shares", 2..=262_144),
        Version::V2 => ("cpu.weight", 1..=10_000),
    };
    let number = whole(to.0, range)?;
    put(root, &format!("{dir}/{file}"), &number.to_string())
}

/// The pCPUs that are set for a group; none on v2 means those of the group above.
pub(crate) fn cpuset(root: &Root, dir: &str) -> Result<CpuSet, MachineError> {
    let parse = |text: &str| if text.is_empty() { Some(CpuSet::default()) } else { text.parse().ok() };
    let found = optional(value(root, &format!("{dir}/cpuset.cpus"), "list of CPUs, as in 0-3,8", parse));
    found?.ok_or_else(|| none(dir, "cpuset"))
}

/// Sets them. None: the kernel takes that only of a group without processes (`validate_change` of kernel/cgroup/cpuset.c; of v2, too).
pub(crate) fn set_cpuset(root: &Root, version: Version, dir: &str, to: &CpuSet) -> Result<(), MachineError> {
    let path = format!("{dir}/cpuset.cpus");
    let text = if to.is_empty() { "\n".into() } else { to.to_string() };
    match root.write(&path, &text) {
        // Of v1: whether it has processes, or groups that have a pCPU, only the kernel knows.
        Err(error) if to.is_empty() && version == Version::V1 && !is_about_the_file(&error) => {
            let why = format!(
                "{path}: a group with processes, or with groups below it that have a pCPU, needs one: {error}"
            );
            Err(MachineError::Malformed(why))
        }
        result => fits(root, version, dir, "cpuset.cpus", to, result),
    }
}

/// It is not there any more, or may not be written.
fn is_about_the_file(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied)
}

/// Sets the nodes of a group's memory, which the kernel moves there.
pub(crate) fn set_mems(root: &Root, version: Version, dir: &str, to: &CpuSet) -> Result<(), MachineError> {
    let file = "cpuset.mems";
    fits(root, version, dir, file, to, root.write(&format!("{dir}/{file}"), &to.to_string()))
}

/// What the group above has.
pub(crate) fn above(root: &Root, dir: &str, file: &str) -> Option<CpuSet> {
    let (parent, _) = dir.rsplit_once('/')?;
    set_of(root, parent, file)
}

/// A group directly below this one that has something else, too, and what it has.
fn wider_below(root: &Root, dir: &str, file: &str, to: &CpuSet) -> Option<(String, CpuSet)> {
    let names = root.dirs(dir).unwrap_or_default();
    let below = names.into_iter().map(|name| format!("{dir}/{name}"));
    let mut sets = below.filter_map(|below| Some((set_of(root, &below, file)?, below)));
    sets.find(|(set, _)| !set.is_within(to)).map(|(set, below)| (below, set))
}

fn set_of(root: &Root, dir: &str, file: &str) -> Option<CpuSet> {
    root.read(&format!("{dir}/{file}")).ok()?.trim().parse().ok()
}

/// What became of writing a set. Where other groups do not let it be so (v1: `validate_change` of kernel/cgroup/cpuset.c says `EACCES` of
/// the one above and `EBUSY` of those below): who, and the remedy.
fn fits(
    root: &Root,
    version: Version,
    dir: &str,
    file: &str,
    to: &CpuSet,
    result: io::Result<()>,
) -> Result<(), MachineError> {
    let stands = format!("or write what is to stand into {dir}/{file}, which corefit takes for yours");
    let kind = result.as_ref().err().map(io::Error::kind);
    let remedy = match kind.filter(|_| version == Version::V1) {
        Some(io::ErrorKind::PermissionDenied) => above(root, dir, file)
            .filter(|found| !to.is_within(found))
            .map(|found| format!("the group above has only {found} by now; widen that, {stands}")),
        Some(io::ErrorKind::ResourceBusy) => wider_below(root, dir, file, to)
            .map(|(below, found)| format!("a group below it, {below}, has {found}; narrow that, {stands}")),
        _ => None,
    };
    written(&format!("{dir}/{file}"), &to.to_string(), result).map_err(|error| match (error, remedy) {
        (MachineError::Denied(why), Some(remedy)) => MachineError::Denied(format!("{why}: {remedy}")),
        (error, _) => error,
    })
}

fn put(root: &Root, path: &str, text: &str) -> Result<(), MachineError> {
    written(path, text, root.write(path, text))
}

/// What became of writing a text.
fn written(path: &str, text: &str, result: io::Result<()>) -> Result<(), MachineError> {
    result.map_err(|error| {
        let why = format!("{path}: {}: {error}", text.trim());
        match error.kind() {
            io::ErrorKind::NotFound => MachineError::Gone(why),
            io::ErrorKind::PermissionDenied
            | io::ErrorKind::ReadOnlyFilesystem
            | io::ErrorKind::ResourceBusy => MachineError::Denied(why),
            io::ErrorKind::InvalidInput => MachineError::Malformed(why),
            _ => ReadError::from_io(path, &error).into(),
        }
    })
}

fn none(dir: &str, what: &str) -> MachineError {
    MachineError::Unsupported(format!("{dir}: this group has no {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root::testing::tree as group;

    /// Files of a directory are not emptied before they are written, as those of the kernel need not be.
    fn first_line(root: &Root, path: &str) -> String {
        root.read(path).unwrap().lines().next().unwrap().into()
    }

    #[test]
    fn limits_of_both_versions_are_written_and_read_back() {
        let to = Limit { quota_us: Some(50_000), period_us: 200_000, burst_us: 0 };
        let (_dir, root) = group(&[("cpu.max", "max 100000\n")]);
        set_limit(&root, Version::V2, "", to).unwrap();
        assert_eq!(limit(&root, Version::V2, "").unwrap(), to);
        let (_dir, root) = group(&[("cpu.cfs_quota_us", "-1"), ("cpu.cfs_period_us", "100000")]);
        set_limit(&root, Version::V1, "", to).unwrap();
        assert_eq!(limit(&root, Version::V1, "").unwrap(), to);
    }

    #[test]
    fn a_burst_is_refused_where_the_kernel_has_none_before_anything_is_written() {
        let (_dir, root) = group(&[("cpu.max", "50000 100000\n")]);
        let to = Limit { quota_us: Some(40_000), period_us: 100_000, burst_us: 10_000 };
        let refused = set_limit(&root, Version::V2, "", to).unwrap_err();
        assert!(matches!(&refused, MachineError::Unsupported(why) if why.contains("5.14")), "{refused:?}");
        assert_eq!(first_line(&root, "/cpu.max"), "50000 100000");
    }

    #[test]
    fn the_group_above_is_named_where_it_has_less_by_now_and_one_below_where_it_has_more() {
        let (dir, root) = group(&[("cpuset.cpus", "0-1\n")]);
        for (group, cpus) in [("a", "0\n"), ("a/narrow", "0\n"), ("a/wide", "0-1\n")] {
            std::fs::create_dir(dir.path().join(group)).unwrap();
            std::fs::write(dir.path().join(group).join("cpuset.cpus"), cpus).unwrap();
        }
        let why = |to: &str, kind: io::ErrorKind| {
            let to = to.parse().unwrap();
            match fits(&root, Version::V1, "/a", "cpuset.cpus", &to, Err(kind.into())) {
                Err(MachineError::Denied(why)) => why,
                other => panic!("{other:?}"),
            }
        };
        let (denied, busy) = (io::ErrorKind::PermissionDenied, io::ErrorKind::ResourceBusy);
        let above = why("0-3", denied);
        assert!(above.contains("has only 0-1 by now") && above.contains("/a/cpuset.cpus"), "{above}");
        let below = why("0", busy);
        assert!(below.contains("/a/wide, has 0-1; narrow that") && !below.contains("above"), "{below}");
        for (to, kind) in [("1", denied), ("0-1", busy), ("0-3", busy)] {
            assert!(!why(to, kind).contains("what is to stand"), "{}", why(to, kind));
        }
    }

    #[test]
    fn what_is_so_already_is_not_written() {
        let (dir, root) = group(&[("cpu.max", "max 100000\n")]);
        let same = limit(&root, Version::V2, "").unwrap();
        let written = |dir: &tempfile::TempDir| {
            std::fs::metadata(dir.path().join("cpu.max")).unwrap().modified().unwrap()
        };
        let before = written(&dir);
        set_limit(&root, Version::V2, "", same).unwrap();
        assert_eq!(written(&dir), before);
    }

    #[test]
    fn what_no_kernel_takes_is_refused_before_anything_is_written() {
        let (_dir, root) = group(&[("cpu.max", "max 100000\n"), ("cpu.weight", "100\n")]);
        let limit = |quota_us, period_us, burst_us| Limit { quota_us: Some(quota_us), period_us, burst_us };
        for wrong in [limit(999, 100_000, 0), limit(5_000, 999, 0), limit(5_000, 10_000, 5_001)] {
            assert!(matches!(set_limit(&root, Version::V2, "", wrong), Err(MachineError::Malformed(_))));
        }
        for wrong in [0.0, 10_001.0, f64::NAN, f64::INFINITY] {
            assert!(set_weight(&root, Version::V2, "", Weight(wrong)).is_err());
        }
        assert_eq!(first_line(&root, "/cpu.max"), "max 100000");
        assert_eq!(first_line(&root, "/cpu.weight"), "100");
    }

    #[test]
    fn an_empty_cpuset_is_one() {
        let (_dir, root) = group(&[("cpuset.cpus", "\n")]);
        assert_eq!(cpuset(&root, "").unwrap(), CpuSet::default());
        for version in [Version::V1, Version::V2] {
            set_cpuset(&root, version, "", &CpuSet::default()).unwrap();
            assert_eq!(cpuset(&root, "").unwrap(), CpuSet::default());
        }
        set_cpuset(&root, Version::V2, "", &"0-1".parse().unwrap()).unwrap();
        assert_eq!(cpuset(&root, "").unwrap(), "0-1".parse().unwrap());
        assert!(matches!(weight(&root, Version::V2, ""), Err(MachineError::Unsupported(_))));
    }
}

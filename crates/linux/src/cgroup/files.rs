//! The setting and counter files of one control group, v1 and v2.
//!
//! Sources: kernel Documentation/admin-guide/cgroup-v2.rst (`cpu.max`, `cpu.weight`,
//! `cpu.stat`, `cpuset.cpus.effective`), Documentation/scheduler/sched-bwc.rst
//! (`cpu.cfs_quota_us`), Documentation/admin-guide/cgroup-v1/cpusets.rst.

use corefit_core::{CpuSet, Quota, Sourced, Throttled, Weight};

use super::mounts::Version;
use crate::root::{ReadError, Root, optional, value};

/// What a v2 group with `cpu.idle` weighs, where the default is 100 (3 of 1024, kernel/sched/sched.h).
const V2_IDLE_WEIGHT: f64 = 3.0 * 100.0 / 1024.0;

/// The weight of a group; `None` where it has none (the root of v2, or no cpu controller there).
pub(crate) fn weight(root: &Root, version: Version, dir: &str) -> Result<Option<Sourced<Weight>>, ReadError> {
    let (file, range) = match version {
        Version::V1 => ("cpu.shares", 2..=262_144),
        Version::V2 => ("cpu.weight", 0..=10_000),
    };
    let source = format!("{dir}/{file}");
    let parse = |text: &str| text.parse::<u32>().ok().filter(|weight| range.contains(weight));
    let want = match version {
        Version::V1 => "weight from 2 to 262144",
        Version::V2 => "weight from 1 to 10000",
    };
    let Some(weight) = optional(value(root, &source, want, parse))? else {
        return Ok(None);
    };
    let idle = || optional(value(root, &format!("{dir}/cpu.idle"), "0 or 1", |text| text.parse::<u8>().ok()));
    let weight = match weight {
        0 if idle()? == Some(1) => V2_IDLE_WEIGHT,
        0 => return Err(ReadError::malformed(&source, 1, "0", want)),
        weight => f64::from(weight),
    };
    Ok(Some(Sourced { value: Weight(weight), source }))
}

/// The quota of a group; `None` where it has no such setting.
pub(crate) fn quota(root: &Root, version: Version, dir: &str) -> Result<Option<Quota>, ReadError> {
    match version {
        Version::V1 => quota_v1(root, dir),
        Version::V2 => quota_v2(root, dir),
    }
}

fn quota_v1(root: &Root, dir: &str) -> Result<Option<Quota>, ReadError> {
    let source = format!("{dir}/cpu.cfs_quota_us");
    let parse = |text: &str| match text {
        "-1" => Some(None),
        text => text.parse().ok().filter(|quota| *quota > 0).map(Some),
    };
    let want = "quota in us, or -1";
    let Some(quota_us) = optional(value(root, &source, want, parse))? else {
        return Ok(None);
    };
    let period_us = value(root, &format!("{dir}/cpu.cfs_period_us"), "period in us", positive)?;
    let burst_us = optional(value(root, &format!("{dir}/cpu.cfs_burst_us"), "burst in us", number))?;
    Ok(Some(Quota { quota_us, period_us, burst_us: burst_us.unwrap_or(0), source }))
}

fn quota_v2(root: &Root, dir: &str) -> Result<Option<Quota>, ReadError> {
    let source = format!("{dir}/cpu.max");
    let parse = |text: &str| {
        let mut words = text.split_whitespace();
        let quota_us = match words.next()? {
            "max" => None,
            text => Some(positive(text)?),
        };
        let period_us = positive(words.next()?)?;
        words.next().is_none().then_some((quota_us, period_us))
    };
    let want = "quota and period in us, as in \"max 100000\"";
    let Some((quota_us, period_us)) = optional(value(root, &source, want, parse))? else {
        return Ok(None);
    };
    let burst_us = optional(value(root, &format!("{dir}/cpu.max.burst"), "burst in us", number))?;
    Ok(Some(Quota { quota_us, period_us, burst_us: burst_us.unwrap_or(0), source }))
}

/// How often the quota stopped the group; `None` where it is not counted.
pub(crate) fn throttled(root: &Root, version: Version, dir: &str) -> Result<Option<Throttled>, ReadError> {
    let path = format!("{dir}/cpu.stat");
    let (time, ns_each) = match version {
        Version::V1 => ("throttled_time", 1),
        Version::V2 => ("throttled_usec", 1000),
    };
    let Some(text) = optional(root.read(&path))? else {
        return Ok(None);
    };
    let read = |name| counter(&path, &text, name);
    let counted = read("nr_periods")?.zip(read("nr_throttled")?).zip(read(time)?);
    Ok(counted.map(|((periods, throttled_periods), time)| Throttled {
        periods,
        throttled_periods,
        throttled_ns: time.saturating_mul(ns_each),
    }))
}

/// CPU time used by everything in the group, ns. `dir` is the group's in the hierarchy that
/// counts (v1: cpuacct). `None` where it is not counted.
pub(crate) fn usage_ns(root: &Root, version: Version, dir: &str) -> Result<Option<u64>, ReadError> {
    let path = usage_file(version, dir);
    let text = optional(root.read(&path))?;
    text.map_or(Ok(None), |text| parse_usage(version, &path, &text))
}

/// The file that counts the CPU time of a group.
pub(crate) fn usage_file(version: Version, dir: &str) -> String {
    match version {
        Version::V1 => format!("{dir}/cpuacct.usage"),
        Version::V2 => format!("{dir}/cpu.stat"),
    }
}

/// What such a file says, ns; `None` if it counts something else.
pub(crate) fn parse_usage(version: Version, path: &str, text: &str) -> Result<Option<u64>, ReadError> {
    match version {
        Version::V1 => match number(text.trim()) {
            None => Err(ReadError::malformed(path, 1, text, "time in ns")),
            usage => Ok(usage),
        },
        Version::V2 => Ok(counter(path, text, "usage_usec")?.map(|us| us.saturating_mul(1000))),
    }
}

/// The CPUs that a group may really use; `None` where it has no such setting.
pub(crate) fn cpuset(root: &Root, version: Version, dir: &str) -> Result<Option<Sourced<CpuSet>>, ReadError> {
    let files: &[&str] = match version {
        Version::V1 => &["cpuset.effective_cpus", "cpuset.cpus"],
        Version::V2 => &["cpuset.cpus.effective"],
    };
    let parse = |text: &str| text.parse().ok().filter(|set: &CpuSet| !set.is_empty());
    for file in files {
        let source = format!("{dir}/{file}");
        if let Some(value) = optional(value(root, &source, "list of CPUs, as in 0-3,8", parse))? {
            return Ok(Some(Sourced { value, source }));
        }
    }
    Ok(None)
}

/// The NUMA nodes that are set for the memory of a group, and whether what is there moves with a change; `None` where
/// nothing is set. Of v1 memory moves only with `cpuset.memory_migrate`, of v2 always.
pub(crate) fn mems(root: &Root, version: Version, dir: &str) -> Result<Option<(CpuSet, bool)>, ReadError> {
    let parse = |text: &str| if text.is_empty() { Some(CpuSet::default()) } else { text.parse().ok() };
    let nodes = optional(value(root, &format!("{dir}/cpuset.mems"), "list of nodes, as in 0-1", parse))?;
    let Some(nodes) = nodes.filter(|nodes| !nodes.is_empty()) else { return Ok(None) };
    let migrate = || {
        let file = format!("{dir}/cpuset.memory_migrate");
        optional(value(root, &file, "0 or 1", |text| text.parse::<u8>().ok()))
    };
    Ok(Some((nodes, version == Version::V2 || migrate()? == Some(1))))
}

/// The NUMA nodes that the groups above leave a group of v2 that says none; `None` where there is no such file.
pub(crate) fn mems_above(root: &Root, dir: &str) -> Result<Option<CpuSet>, ReadError> {
    let parse = |text: &str| text.parse().ok();
    optional(value(root, &format!("{dir}/cpuset.mems.effective"), "list of nodes, as in 0-1", parse))
}

/// Whether `dir` is the root of its hierarchy, not merely the topmost group that is visible:
/// the kernel gives some files only to roots (v1) or only to others (v2).
pub(crate) fn is_root(root: &Root, version: Version, dir: &str) -> bool {
    match version {
        Version::V1 => root.has(&format!("{dir}/release_agent")),
        Version::V2 => !root.has(&format!("{dir}/cgroup.events")),
    }
}

fn number(text: &str) -> Option<u64> {
    text.parse().ok()
}

fn positive(text: &str) -> Option<u64> {
    number(text).filter(|n| *n > 0)
}

/// The number after `name` in a file of `name number` lines; `None` if there is no such line.
fn counter(path: &str, text: &str, name: &str) -> Result<Option<u64>, ReadError> {
    for (i, line) in text.lines().enumerate() {
        if let Some(rest) = line.strip_prefix(name).and_then(|rest| rest.strip_prefix(' ')) {
            let bad = || ReadError::malformed(path, i + 1, line, "counter");
            return rest.trim().parse().map(Some).map_err(|_| bad());
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root::testing::tree as group;

    #[test]
    fn reads_quotas_and_tells_unlimited_from_missing() {
        let max = |text| {
            let (_dir, root) = group(&[("cpu.max", text)]);
            quota(&root, Version::V2, "").unwrap().unwrap().quota_us
        };
        assert_eq!(max("max 100000\n"), None);
        assert_eq!(max("18446744073709551615 100000\n"), Some(u64::MAX));
        let (_dir, root) = group(&[("cpu.cfs_quota_us", "-1\n"), ("cpu.cfs_period_us", "100000\n")]);
        assert_eq!(quota(&root, Version::V1, "").unwrap().unwrap().cpus(), None);
        assert_eq!(quota(&root, Version::V2, "").unwrap(), None);
    }

    #[test]
    fn refuses_damaged_quotas_with_file_and_line() {
        for text in [
            "",
            "\n",
            "abc 100000",
            "50000",
            "50000 0",
            "0 100000",
            "-1 100000",
            "1 2 3",
            "max",
            "99999999999999999999 100000",
        ] {
            let (_dir, root) = group(&[("cpu.max", text)]);
            let error = quota(&root, Version::V2, "").unwrap_err().to_string();
            assert!(
                error.starts_with(&format!("/cpu.max, line 1: {:?} is no quota", text.trim())),
                "{error}"
            );
        }
        for text in ["", "max", "0", "-2", "5e4", "0x10"] {
            let (_dir, root) = group(&[("cpu.cfs_quota_us", text), ("cpu.cfs_period_us", "100000")]);
            let error = quota(&root, Version::V1, "").unwrap_err().to_string();
            assert!(error.starts_with("/cpu.cfs_quota_us, line 1: "), "{error}");
        }
        let (_dir, root) = group(&[("cpu.cfs_quota_us", "50000")]);
        let error = quota(&root, Version::V1, "").unwrap_err();
        assert_eq!(error, ReadError::Unsupported { path: "/cpu.cfs_period_us".into() });
    }

    #[test]
    fn refuses_weights_out_of_range_and_knows_idle_groups() {
        for (file, version, text) in [
            ("cpu.shares", Version::V1, "1"),
            ("cpu.shares", Version::V1, "262145"),
            ("cpu.weight", Version::V2, "0"),
            ("cpu.weight", Version::V2, "10001"),
            ("cpu.weight", Version::V2, "-5"),
            ("cpu.weight", Version::V2, ""),
        ] {
            let (_dir, root) = group(&[(file, text)]);
            assert!(weight(&root, version, "").is_err(), "{file} {text}");
        }
        let (_dir, root) = group(&[("cpu.weight", "0\n"), ("cpu.idle", "1\n")]);
        assert!(weight(&root, Version::V2, "").unwrap().unwrap().value.0 < 0.3);
    }

    #[test]
    fn reads_the_counters_of_both_versions_in_ns() {
        let (_dir, root) = group(&[("cpu.stat", "nr_periods 9\nnr_throttled 4\nthrottled_time 7\n")]);
        let expected = Throttled { periods: 9, throttled_periods: 4, throttled_ns: 7 };
        assert_eq!(throttled(&root, Version::V1, "").unwrap(), Some(expected));
        let (_dir, root) = group(&[(
            "cpu.stat",
            "usage_usec 5\nuser_usec 3\nnr_periods 9\nnr_throttled 4\nthrottled_usec 7\n",
        )]);
        let expected = Throttled { throttled_ns: 7000, ..expected };
        assert_eq!(throttled(&root, Version::V2, "").unwrap(), Some(expected));
        assert_eq!(usage_ns(&root, Version::V2, "").unwrap(), Some(5000));
        let (_dir, root) = group(&[("cpu.stat", "usage_usec x\n")]);
        assert!(usage_ns(&root, Version::V2, "").unwrap_err().to_string().contains("line 1"));
    }

    #[test]
    fn an_empty_cpuset_is_no_cpuset() {
        let (_dir, root) = group(&[("cpuset.cpus.effective", "\n")]);
        assert!(cpuset(&root, Version::V2, "").is_err());
        let (_dir, root) = group(&[("cpuset.cpus", "1,3\n")]);
        assert_eq!(cpuset(&root, Version::V1, "").unwrap().unwrap().source, "/cpuset.cpus");
    }
}

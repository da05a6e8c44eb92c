//! What a VM does to the last-level caches, and what class of work that shows.
//!
//! Hardware counts two things for a group of threads (Intel RDT, AMD PQoS; Linux: `resctrl`): how much of the caches it
//! holds, and what it moves between them and memory. Per pCPU that it used:
//!
//! ```text
//! cache-hungry  =  it moves at least TRAFFIC  and  holds at least half of its even part of a cache, where that is counted
//! ```
//!
//! Of little traffic nothing follows: its data fits, or it has none. Nor do these counters tell who works on the same
//! data, so no VM is ever measured as communicating. `docs/place.md` ("Classes") has the reasons.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::snapshot::{Snapshot, VmState};
use crate::place::Class;
use crate::{CpuSet, Cpus};

/// Traffic with memory from which on work is called cache-hungry, bytes per second of a pCPU. Ours: lines of 64 bytes, each
/// waited for 80 ns (memory of today's servers takes 70 to 130), are a tenth of the time.
pub const TRAFFIC: f64 = 80e6;
/// And the part of its even part of a cache that it holds at least. Who only streams past the caches holds less. Ours.
pub const HOLDS: f64 = 0.5;
/// Who used less than this, in pCPUs, is not judged.
const LITTLE: f64 = 0.05;

/// What a VM does to the last-level caches, as the hardware counts it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheUse {
    /// What it holds in all of them now, bytes; `None` where that is not counted.
    pub occupancy_bytes: Option<u64>,
    /// What went between them and memory since some instant in the past, bytes; `None` where that is not counted.
    pub traffic_bytes: Option<u64>,
}

/// The same between two snapshots, for each pCPU that the VM used.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CacheRate {
    /// What it holds, beside the even part that a pCPU has of a cache; `None` where that is not known.
    pub held: Option<f64>,
    /// Bytes per second; `None` where that is not known.
    pub traffic: Option<f64>,
}

/// Where a class comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Origin {
    /// Nobody knows it.
    #[default]
    Unknown,
    /// Counters of the hardware show it.
    Measured,
    /// An administrator says it: that counts more than what is measured.
    Given,
}

/// What a VM's work is like, and how that is known.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Classed {
    /// What it is like.
    pub class: Class,
    /// Who says so.
    pub origin: Origin,
    /// Because of what, or why nobody knows.
    pub why: String,
}

impl Classed {
    /// What an administrator says.
    #[must_use]
    pub fn given(class: Class) -> Classed {
        Classed { class, origin: Origin::Given, why: "as its rule says".into() }
    }

    fn unknown(why: impl Into<String>) -> Classed {
        Classed { why: why.into(), ..Classed::default() }
    }
}

impl std::fmt::Display for Classed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let origin = match self.origin {
            Origin::Unknown => "",
            Origin::Measured => ", measured",
            Origin::Given => ", given",
        };
        write!(f, "{}{origin}", self.class)?;
        if self.why.is_empty() { Ok(()) } else { write!(f, ": {}", self.why) }
    }
}

/// What counters say of a VM that used so much between two snapshots.
pub(super) fn rate(
    before: Option<&VmState>,
    after: &VmState,
    snapshot: &Snapshot,
    used: Option<Cpus>,
    over: Duration,
) -> Option<CacheRate> {
    let now = after.cache.as_ref()?;
    let used = used.filter(|used| used.0 >= LITTLE)?.0;
    let grown = || {
        let then = before?.cache.as_ref()?.traffic_bytes?;
        // Counters that ran backwards are those of another group.
        let bytes = now.traffic_bytes?.checked_sub(then)?;
        (!over.is_zero()).then(|| bytes_of(bytes) / over.as_secs_f64() / used)
    };
    let held = now.occupancy_bytes.zip(even_part(snapshot)).map(|(held, part)| bytes_of(held) / used / part);
    Some(CacheRate { held, traffic: grown() })
}

/// What a VM's work is like by its counters.
pub(super) fn classify(rate: Option<CacheRate>, after: &VmState, snapshot: &Snapshot) -> Classed {
    let Some(rate) = rate else {
        return Classed::unknown(match (&snapshot.uncounted, &after.cache) {
            (Some(why), _) => why.clone(),
            (None, None) => "what it does to caches is not counted".into(),
            (None, Some(_)) => "it hardly ran".into(),
        });
    };
    let Some(traffic) = rate.traffic else {
        return Classed::unknown("its traffic with memory is not counted, or was not before");
    };
    let of_cache =
        rate.held.map_or(String::new(), |held| format!(", {:.0} % of its part of the cache", 100.0 * held));
    let what = format!("{:.0} MB/s with memory for each pCPU{of_cache}", traffic / 1e6);
    if traffic >= TRAFFIC && rate.held.is_none_or(|held| held >= HOLDS) {
        return Classed { class: Class::CacheHungry, origin: Origin::Measured, why: what };
    }
    Classed::unknown(format!("{what}: nothing follows from that"))
}

/// The part of a last-level cache that a pCPU has if all have the same; the mean over caches whose size is known.
fn even_part(snapshot: &Snapshot) -> Option<f64> {
    let online: CpuSet = snapshot.pcpus.iter().filter(|pcpu| pcpu.online).map(|pcpu| pcpu.id).collect();
    let last = snapshot.caches.iter().map(|cache| cache.level).max();
    let known = snapshot.caches.iter().filter(|cache| Some(cache.level) == last);
    let (mut bytes, mut pcpus) = (0.0, 0);
    for cache in known {
        bytes += bytes_of(cache.size_kib?) * 1024.0;
        pcpus += cache.pcpus.intersection(&online).len();
    }
    (pcpus > 0).then(|| bytes / crate::units::count(pcpus))
}

fn bytes_of(bytes: u64) -> f64 {
    bytes as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::{Pcpu, VmId, estimate};
    use crate::topology::Cache;
    use crate::{CpuId, Time};

    const MIB: u64 = 1 << 20;

    /// A VM that used two of four pCPUs for a second, with two caches of 4 MiB.
    fn seen(second: u64, cache: Option<CacheUse>) -> Snapshot {
        let vcpu = crate::machine::VcpuState {
            online: true,
            counters: crate::machine::Counters {
                run_ns: Some(second * 1_000_000_000),
                wait_ns: Some(0),
                runs: None,
            },
            ..Default::default()
        };
        let vm = VmState {
            id: VmId("a".into()),
            name: "a".into(),
            vcpus: vec![vcpu.clone(), vcpu],
            cache,
            ..VmState::default()
        };
        let pcpu = |id| Pcpu { id: CpuId(id), online: true, ..Pcpu::default() };
        let caches =
            ["0-1", "2-3"].map(|set| Cache { level: 3, size_kib: Some(4096), pcpus: set.parse().unwrap() });
        Snapshot {
            at: Time(second * 1_000_000_000),
            pcpus: (0..4).map(pcpu).collect(),
            vms: vec![vm],
            caches: caches.into(),
            ..Snapshot::default()
        }
    }

    fn classed(held: Option<u64>, traffic: Option<(u64, u64)>) -> Classed {
        let using = |traffic| CacheUse { occupancy_bytes: held, traffic_bytes: traffic };
        let [before, after] = [traffic.map(|t| t.0), traffic.map(|t| t.1)];
        let host = estimate(&seen(1, Some(using(before))), &seen(2, Some(using(after)))).unwrap();
        host.vms[0].class.clone()
    }

    #[test]
    fn who_fills_caches_and_still_goes_to_memory_is_hungry() {
        let hungry = classed(Some(4 * MIB), Some((7, 7 + 200_000_000)));
        assert_eq!((hungry.class, hungry.origin), (Class::CacheHungry, Origin::Measured));
        assert_eq!(
            hungry.to_string(),
            "cache-hungry, measured: 100 MB/s with memory for each pCPU, 100 % of its part of the cache"
        );
        let uncounted = classed(None, Some((0, 160_000_000)));
        assert_eq!(uncounted.class, Class::CacheHungry, "traffic alone tells where nothing else is counted");
    }

    #[test]
    fn of_all_else_nothing_follows_and_the_reason_is_said() {
        for (held, traffic, why) in [
            (
                Some(4 * MIB),
                Some((0, 150_000_000)),
                "75 MB/s with memory for each pCPU, 100 % of its part of the cache: ",
            ),
            (
                Some(MIB),
                Some((0, 900_000_000)),
                "450 MB/s with memory for each pCPU, 25 % of its part of the cache: ",
            ),
            (Some(4 * MIB), None, "its traffic with memory is not counted"),
            (Some(4 * MIB), Some((9, 8)), "its traffic with memory is not counted, or was not before"),
        ] {
            let found = classed(held, traffic);
            assert_eq!((found.class, found.origin), (Class::Unknown, Origin::Unknown), "{found}");
            assert!(found.why.starts_with(why), "{found}, not {why}");
        }
        let host = estimate(&seen(1, None), &seen(2, None)).unwrap();
        assert_eq!(host.vms[0].class.to_string(), "unknown: what it does to caches is not counted");
        let uncounted = Snapshot { uncounted: Some("no counters".into()), ..seen(2, None) };
        let host = estimate(&seen(1, None), &uncounted).unwrap();
        assert_eq!(host.vms[0].class.to_string(), "unknown: no counters");
    }

    #[test]
    fn who_rests_is_not_judged() {
        let still = |second| {
            let using = CacheUse { occupancy_bytes: Some(MIB), traffic_bytes: Some(second * 1_000_000_000) };
            let mut snapshot = seen(second, Some(using));
            snapshot.vms[0].vcpus.iter_mut().for_each(|vcpu| vcpu.counters.run_ns = Some(5));
            snapshot
        };
        let host = estimate(&still(1), &still(2)).unwrap();
        assert_eq!(host.vms[0].class.to_string(), "unknown: it hardly ran");
    }
}

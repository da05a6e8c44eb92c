//! Hosts of 512 pCPUs with VMs of all widths and classes; the same seed gives the same host.

use anyhow::{Result, anyhow};
use corefit_core::machine::Classed;
use corefit_core::place::{Class, Problem, Vcpu, Vm};
use corefit_core::topology::Topology;
use corefit_core::{CpuId, CpuSet};

const SHAPE: &str = "4 sockets x 2 nodes x 4 l3 x 8 cores x 2 threads; siblings apart";

/// A kind of host.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    /// 1,000 vCPUs that want 1.4 times the pCPUs, without affinities.
    Crowded,
    /// 1,000 vCPUs that want half of the pCPUs, seen where they last ran.
    Half,
    /// 400 vCPUs, pinned one to one at random.
    Pinned,
}

impl Kind {
    pub(super) const ALL: [Kind; 3] = [Kind::Crowded, Kind::Half, Kind::Pinned];

    pub(super) fn name(self) -> &'static str {
        match self {
            Kind::Crowded => "1.4 times the pCPUs wanted",
            Kind::Half => "half of the pCPUs wanted",
            Kind::Pinned => "pinned at random",
        }
    }
}

pub(super) fn problem(kind: Kind, seed: u64) -> Result<Problem> {
    let topology: Topology = SHAPE.parse().map_err(|error| anyhow!("{SHAPE}: {error}"))?;
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let pcpus = u64::try_from(topology.pcpus.len())?;
    let mut left = if matches!(kind, Kind::Pinned) { 400 } else { 1000 };
    let mut vms = Vec::new();
    while left > 0 {
        let width = [1, 2, 2, 4, 4, 8, 8, 16, 32][random.index(9)].min(left);
        left -= width;
        let mean: u64 = match kind {
            Kind::Crowded => 72,
            Kind::Half => 26,
            Kind::Pinned => 80,
        };
        let vcpu = |id: u32, random: &mut Random| {
            let cpu = CpuId(u32::try_from(random.below(pcpus)).unwrap_or(0));
            let percent = (mean / 2 + random.below(mean)).min(100);
            Vcpu {
                id,
                demand: f64::from(u32::try_from(percent).unwrap_or(0)) / 100.0,
                now: matches!(kind, Kind::Pinned).then(|| CpuSet::from_iter([cpu])),
                on: (!matches!(kind, Kind::Crowded)).then_some(cpu),
                memory: None,
            }
        };
        let class =
            [Class::Unknown, Class::Unknown, Class::CacheHungry, Class::Communicating][random.index(4)];
        vms.push(Vm {
            name: format!("vm{}", vms.len()),
            weight: [1024.0, 1024.0, 1024.0, 2048.0, 512.0][random.index(5)],
            class: Classed::given(class),
            vcpus: (0..width).map(|id| vcpu(id, &mut random)).collect(),
            ..Vm::default()
        });
    }
    Ok(Problem { topology, reserved: CpuSet::default(), vms })
}

/// Xorshift.
struct Random(u64);

impl Random {
    fn below(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % below
    }

    fn index(&mut self, below: u64) -> usize {
        usize::try_from(self.below(below)).unwrap_or(0)
    }
}

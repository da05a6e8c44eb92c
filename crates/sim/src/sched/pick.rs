//! Where Xen's credit scheduler wants a vCPU to be (`_csched_cpu_pick`, `default_vcpu0_location` of Xen 4.4).
//!
//! Where it is, if that is idle, unless another core of the socket has more idle siblings, or another socket more than
//! twice as many idle pCPUs. The vCPU's own pCPU counts as idle if nobody waits there. Idle is all that is idle, whether
//! the vCPU may run there or not: a socket of which it may use one core only counts with all of its pCPUs. pCPUs that are
//! preferred come first: while one of them is idle, it goes there, beside a busy sibling, too.

use crate::cpus::{Cpus, VmCpus, bits, has, put};

#[derive(Clone, Debug)]
pub(super) struct Picker {
    sockets: Vec<Vec<u64>>,
    cores: Vec<Vec<u64>>,
    /// By pCPU: the last one chosen when this one's core or socket was better (`idle_bias`), so that it is the next one's turn.
    bias: Vec<u32>,
}

impl Picker {
    pub(super) fn new(cpus: &Cpus) -> Picker {
        let places = &cpus.topology.places;
        let mut sockets = vec![vec![0; cpus.words]; places.len()];
        let mut cores = vec![vec![0; cpus.words]; places.len()];
        for (p, place) in (0..).zip(places) {
            put(&mut sockets[place.socket as usize], p, true);
            put(&mut cores[place.core as usize], p, true);
        }
        let last = u32::try_from(places.len()).map_or(0, |n| n.saturating_sub(1));
        Picker { sockets, cores, bias: vec![last; places.len()] }
    }

    /// The pCPU for a vCPU while these are idle.
    pub(super) fn pick(&mut self, cpus: &Cpus, idle: &[u64], v: u32) -> u32 {
        let vcpu = &cpus.vcpus[v as usize];
        let place = |p: u32| &cpus.topology.places[p as usize];
        let (mut at, mut better) = (vcpu.pcpu, None);
        let steps = if vcpu.soft == vcpu.mask { 1..2 } else { 0..2 };
        for mask in [vcpu.soft, vcpu.mask][steps].iter().map(|&mask| &cpus.masks[mask as usize]) {
            at = if has(mask, vcpu.pcpu) { vcpu.pcpu } else { cycle(mask, vcpu.pcpu).unwrap_or(vcpu.pcpu) };
            let mut open = both(mask, idle);
            if !has(&open, at) {
                at = cycle(&open, at).unwrap_or(at);
            }
            put(&mut open, at, false);
            while let Some(next) = cycle(&open, at) {
                let (groups, from, to, factor) = if place(at).socket == place(next).socket {
                    (&self.cores, place(at).core, place(next).core, 1)
                } else {
                    (&self.sockets, place(at).socket, place(next).socket, 2)
                };
                let there = &groups[to as usize];
                if count(&groups[from as usize], idle) * factor < count(there, idle) {
                    at = cycle(&both(&open, there), self.bias[next as usize]).unwrap_or(next);
                    better = Some(next);
                    without(&mut open, &self.cores[place(at).core as usize]);
                } else {
                    without(&mut open, there);
                }
            }
            if has(idle, at) {
                break;
            }
        }
        if let Some(next) = better {
            self.bias[next as usize] = at;
        }
        at
    }

    /// Puts the vCPUs of all VMs, one VM after the other, where they are once it has started: made, the first one is on the
    /// pCPU with the fewest, of those that are not the first of their core, the last of them, each other one on the next pCPU;
    /// then they go to where they may be (libxl: `vcpu_set_affinity`); then they are started in order, so that
    /// who finds its pCPU busy goes to an idle one (`__runq_tickle`). An affinity of later moves them once more.
    pub(super) fn create(&mut self, cpus: &mut Cpus) {
        let all = cpus.pcpus.len();
        let mut homes = vec![0_u32; all];
        let mut idle = vec![0; cpus.words];
        (0..).take(all).for_each(|p| put(&mut idle, p, true));
        for vm in 0..cpus.vms.len() {
            let VmCpus { first, count, made, .. } = cpus.vms[vm];
            let mut home = vcpu0_location(cpus, &homes);
            let mut later = vec![];
            for v in first..first + count {
                let vcpu = &mut cpus.vcpus[v as usize];
                later.push((vcpu.mask, vcpu.soft));
                (vcpu.mask, vcpu.soft) = made.unwrap_or((vcpu.mask, vcpu.soft));
                vcpu.pcpu = home;
                home = cycle(&idle, home).unwrap_or(home);
            }
            let (mut free, mut told) = (idle.clone(), 0);
            for v in first..first + count {
                cpus.vcpus[v as usize].pcpu = self.pick(cpus, &idle, v);
            }
            for v in first..first + count {
                let vcpu = &cpus.vcpus[v as usize];
                let mut home = vcpu.pcpu;
                if !has(&free, home)
                    && let Some(other) = idle_in_turn(cpus, &free, v, told)
                {
                    (home, told) = (other, other);
                }
                put(&mut free, home, false);
                cpus.vcpus[v as usize].pcpu = home;
            }
            for (v, (mask, soft)) in (first..).zip(later) {
                let vcpu = &mut cpus.vcpus[v as usize];
                (vcpu.mask, vcpu.soft) = (mask, soft);
                if made.is_some() {
                    cpus.vcpus[v as usize].pcpu = self.pick(cpus, &idle, v);
                }
                homes[cpus.vcpus[v as usize].pcpu as usize] += 1;
            }
        }
    }
}

/// One of these for a vCPU, the next one after `told`: of the preferred ones, or else of those that it may use.
pub(super) fn idle_in_turn(cpus: &Cpus, idle: &[u64], v: u32, told: u32) -> Option<u32> {
    let vcpu = &cpus.vcpus[v as usize];
    [vcpu.soft, vcpu.mask].iter().find_map(|&mask| cycle(&both(idle, &cpus.masks[mask as usize]), told))
}

fn vcpu0_location(cpus: &Cpus, homes: &[u32]) -> u32 {
    let siblings = &cpus.topology.siblings;
    let second = |core: &Vec<u32>| core.get(1).or(core.first()).copied();
    let fewest = siblings.iter().filter_map(second).min_by_key(|&p| (homes[p as usize], std::cmp::Reverse(p)));
    fewest.unwrap_or(0)
}

/// The next of a set after `from`, in a circle; `from` itself comes last (`cpumask_cycle`).
fn cycle(set: &[u64], from: u32) -> Option<u32> {
    bits(set).find(|&p| p > from).or_else(|| bits(set).next())
}

fn both(a: &[u64], b: &[u64]) -> Vec<u64> {
    a.iter().zip(b).map(|(a, b)| a & b).collect()
}

fn without(set: &mut [u64], other: &[u64]) {
    set.iter_mut().zip(other).for_each(|(word, other)| *word &= !other);
}

fn count(a: &[u64], b: &[u64]) -> u32 {
    a.iter().zip(b).map(|(a, b)| (a & b).count_ones()).sum()
}

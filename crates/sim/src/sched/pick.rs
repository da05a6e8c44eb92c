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

    /// Puts the vCPUs of all VMs, one VM after the other, where they are once it has started. They are made with the first one
    /// on the pCPU with the fewest, of those that are not the first of their core, the last of them, and each other one on
    /// the next pCPU; then they go to where they may be (libxl: `vcpu_set_affinity`); then, our assumption, all have been busy
    /// at the same time, woken in order, so that who found its pCPU busy went to an idle one (`__runq_tickle`). An affinity
    /// that was set later moves them once more.
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
    let fewest =
        siblings.iter().filter_map(second).min_by_key(|&p| (homes[p as usize], std::cmp::Reverse(p)));
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

/// How many bits two masks have in common.
pub(super) fn count(a: &[u64], b: &[u64]) -> u32 {
    a.iter().zip(b).map(|(a, b)| (a & b).count_ones()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Scenario, Sim};

    /// P4's host with a VM of 16 vCPUs.
    fn opterons(vm: &str) -> Cpus {
        let text = format!(
            "scheduler = \"credit\"\nhardware = {{ sockets = 2, nodes = 2, cores = 4, threads = 2 }}\n\
             [[vm]]\nname = \"a\"\nvcpus = 16\n{vm}"
        );
        Sim::new(&Scenario::parse(&text, &[]).unwrap().spec).unwrap().cpus
    }

    fn homes(cpus: &Cpus) -> Vec<u32> {
        cpus.vcpus.iter().map(|vcpu| vcpu.pcpu).collect()
    }

    fn set(of: impl IntoIterator<Item = u32>) -> Vec<u64> {
        let mut words = vec![0];
        of.into_iter().for_each(|p| put(&mut words, p, true));
        words
    }

    #[test]
    fn a_vm_is_made_on_the_last_second_sibling_and_the_next_pcpus() {
        let everywhere: Vec<u32> = std::iter::once(31).chain(0..15).collect();
        assert_eq!(homes(&opterons("")), everywhere);
        let two = opterons(
            "affinity = \"0-15\"\n[[vm]]\nname = \"b\"\nvcpus = 1\n[[vm]]\nname = \"c\"\nvcpus = 1\n",
        );
        assert_eq!(homes(&two)[16..], [31, 29], "each where the fewest are");
    }

    #[test]
    fn started_in_order_vcpus_spread_over_what_they_may_use_and_the_rest_stay_where_they_were_put() {
        let evens: Vec<u32> = (0..16).map(|v| 2 * v).collect();
        let text =
            format!("affinity = \"{}\"\n", evens.iter().map(u32::to_string).collect::<Vec<_>>().join(","));
        assert_eq!(homes(&opterons(&text)), evens);
        // pCPUs 7 to 14 are beyond all four: their vCPUs go to the first one.
        let few = homes(&opterons("affinity = \"0,2,4,6\"\n"));
        assert_eq!(few, [0, 2, 4, 6, 4, 4, 6, 6, 0, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn a_vm_that_is_pinned_later_was_made_on_its_nodes() {
        let later = |affinity: &str| {
            let nodes = "\"0-7,16-23\"";
            homes(&opterons(&format!("affinity = \"{affinity}\"\nsoft = {nodes}\nmade_on = {nodes}\n")))
        };
        let even: Vec<u32> = (0..8).chain(16..24).collect();
        assert_eq!(later("0-7,16-23"), even);
        assert_eq!(later("0-31"), even);
        let odd = later("0-6,16-24");
        assert_eq!((odd[6], odd[7], odd[8]), (6, 16, 16), "only the one on pCPU 7 had to go");
    }

    #[test]
    fn a_busy_sibling_makes_another_core_better_and_its_pcpus_take_turns() {
        let mut cpus = opterons("");
        cpus.vcpus[0].pcpu = 0;
        let mut picker = Picker::new(&cpus);
        let idle = set((0..16).filter(|&p| p != 1));
        assert_eq!(picker.pick(&cpus, &set(0..16), 0), 0, "idle cores are no better than one's own");
        assert_eq!([0; 3].map(|v| picker.pick(&cpus, &idle, v)), [2, 3, 2]);
        assert_eq!(picker.pick(&cpus, &set([0, 3]), 0), 0, "half a core is not better than half a core");
    }

    #[test]
    fn another_socket_is_better_only_if_more_than_twice_as_many_of_its_pcpus_are_idle() {
        let mut cpus = opterons("");
        cpus.vcpus[0].pcpu = 0;
        let mut picker = Picker::new(&cpus);
        let idle = |own: u32| set((0..2 * own).step_by(2).chain(16..32));
        assert_eq!(picker.pick(&cpus, &idle(8), 0), 0, "8 and 16");
        assert_eq!(picker.pick(&cpus, &idle(7), 0), 16, "7 and 16");
        // pCPUs count that the vCPU may not use: 16 on each socket, though it has a sixteenth of one.
        let mut cpus = opterons("affinity = \"0,16-31\"\n");
        cpus.vcpus[0].pcpu = 0;
        assert_eq!(picker.pick(&cpus, &set(0..32), 0), 0);
    }

    #[test]
    fn a_preferred_pcpu_beside_a_busy_one_comes_before_an_idle_core_elsewhere() {
        let mut cpus = opterons("affinity = \"16-31\"\nsoft = \"16-23\"\n");
        cpus.vcpus[0].pcpu = 24;
        let mut picker = Picker::new(&cpus);
        assert_eq!(picker.pick(&cpus, &set((17..18).chain(24..32)), 0), 17);
        assert_eq!(picker.pick(&cpus, &set(24..32), 0), 24, "none is idle there");
    }
}

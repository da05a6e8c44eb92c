//! Weighted leximin on flat hosts, in rational numbers: who has least of its weight gets as much as
//! possible, then the next. A third way to the same amounts where there are no quotas, caps and
//! slices.

use num_rational::BigRational;
use num_traits::{ToPrimitive, Zero};

use crate::instances::Instance;

/// What each vCPU of each VM gets: the leximin of x / (W / n), each at most 1.
pub(crate) fn amounts(instance: &Instance) -> Vec<Vec<f64>> {
    let whole = |n: usize| BigRational::from_integer(n.into());
    let one = whole(1);
    // (weight, mask, final amount)
    let mut vcpus: Vec<(BigRational, u32, Option<BigRational>)> = Vec::new();
    for vm in &instance.vms {
        let online = vm.vcpus.iter().filter(|v| v.online).count();
        for vcpu in &vm.vcpus {
            let weight = whole(usize::try_from(vm.weight).unwrap()) / whole(online.max(1));
            let gone = (!vcpu.online).then(BigRational::zero);
            vcpus.push((weight, vcpu.mask & !instance.offline, gone));
        }
    }
    let all = ((1_u32 << instance.pcpus) - 1) & !instance.offline;
    while vcpus.iter().any(|(_, _, end)| end.is_none()) {
        // Each set of pCPUs lets the open ones inside rise to a level; so does the limit of 1.
        let mut least: Option<(BigRational, u32)> = None;
        for set in (0..=all).filter(|set| set & !all == 0) {
            let inside = || vcpus.iter().filter(|(_, mask, _)| mask & !set == 0);
            let had: BigRational = inside().filter_map(|(_, _, end)| end.clone()).sum();
            let weight: BigRational = inside().filter(|v| v.2.is_none()).map(|v| v.0.clone()).sum();
            if weight.is_zero() {
                continue;
            }
            let level = (whole(set.count_ones() as usize) - had) / weight;
            if least.as_ref().is_none_or(|(known, _)| level < *known) {
                least = Some((level, set));
            }
        }
        let heaviest = vcpus.iter().filter(|v| v.2.is_none()).map(|v| v.0.clone()).max().unwrap();
        let single = &one / &heaviest;
        match least {
            Some((level, set)) if level < single => {
                for (weight, mask, end) in &mut vcpus {
                    if *mask & !set == 0 && end.is_none() {
                        *end = Some(&level * &*weight);
                    }
                }
            }
            _ => {
                for (weight, _, end) in &mut vcpus {
                    if *weight == heaviest && end.is_none() {
                        *end = Some(one.clone());
                    }
                }
            }
        }
    }
    let mut ends = vcpus.into_iter().map(|(_, _, end)| end.unwrap().to_f64().unwrap());
    instance.vms.iter().map(|vm| vm.vcpus.iter().map(|_| ends.next().unwrap()).collect()).collect()
}

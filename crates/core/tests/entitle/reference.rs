//! Progressive filling as its definition says, event by event, in exact rational numbers. Slow
//! (all sets of pCPUs are looked at), and it shares nothing with the solver.

use corefit_core::entitle::{Wants, WeightRule};
use num_rational::Ratio;
use num_traits::{CheckedAdd, CheckedDiv, CheckedMul, CheckedSub, One, Zero};

use crate::instances::{Instance, Machine, Part, Virtual};

/// Exact numbers that notice an overflow.
pub(crate) trait Number:
    Clone + Ord + Zero + One + CheckedAdd + CheckedSub + CheckedMul + CheckedDiv
{
    fn of(part: Part) -> Self;
    fn approximately(&self) -> f64;
}

impl Number for Ratio<i128> {
    fn of((above, below): Part) -> Self {
        Ratio::new(above.into(), below.into())
    }
    fn approximately(&self) -> f64 {
        *self.numer() as f64 / *self.denom() as f64
    }
}

impl Number for num_rational::BigRational {
    fn of((above, below): Part) -> Self {
        Ratio::new(above.into(), below.into())
    }
    fn approximately(&self) -> f64 {
        num_traits::ToPrimitive::to_f64(self).unwrap()
    }
}

struct Leaf<N> {
    group: usize,
    weight: N,
    limit: N,
    mask: u32,
    amount: N,
    satisfied: bool,
    stopped: bool,
}

struct Group<N> {
    parent: Option<usize>,
    weight: N,
    cap: Option<N>,
}

struct State<N> {
    groups: Vec<Group<N>>,
    leaves: Vec<Leaf<N>>,
    pcpus: u32,
}

/// What each vCPU of each VM of the instance gets (`wants` numbers VMs as the host does).
pub(crate) fn amounts(instance: &Instance, wants: Wants) -> Vec<Vec<f64>> {
    solve::<Ratio<i128>>(instance, wants).unwrap_or_else(|| {
        // Numbers became too long; rare.
        solve::<num_rational::BigRational>(instance, wants).expect("these do not overflow")
    })
}

/// `None` if a number overflowed.
fn solve<N: Number>(instance: &Instance, wants: Wants) -> Option<Vec<Vec<f64>>> {
    let mut state: State<N> = build(instance, wants);
    while step(&mut state)? {}
    let mut leaves = state.leaves.iter();
    let of = |vcpu: &Virtual| {
        vcpu.online.then(|| leaves.next()).flatten().map_or(0.0, |l| l.amount.approximately())
    };
    let mut of = of;
    Some(instance.vms.iter().map(|vm| vm.vcpus.iter().map(&mut of).collect()).collect())
}

fn build<N: Number>(instance: &Instance, wants: Wants) -> State<N> {
    let whole = |n: i64| N::of((n, 1));
    let count = |n: usize| i64::try_from(n.max(1)).unwrap();
    let online = |vm: &Machine| vm.vcpus.iter().filter(|v| v.online).count();
    let inside = |vm: &Machine, slice: usize| {
        let above = |&s: &usize| instance.slices[s].0;
        std::iter::successors(vm.slice, above).any(|s| s == slice)
    };
    let mut groups = vec![Group { parent: None, weight: N::one(), cap: None }];
    for (i, &(around, weight, cap)) in instance.slices.iter().enumerate() {
        let below = instance.vms.iter().filter(|vm| inside(vm, i)).map(online).sum();
        let weight = if instance.rule == WeightRule::EqualPerVcpu { count(below) } else { weight };
        let parent = Some(around.map_or(0, |s| s + 1));
        groups.push(Group { parent, weight: whole(weight), cap: cap.map(N::of) });
    }
    let order = instance.order();
    let mut leaves = Vec::new();
    for (i, vm) in instance.vms.iter().enumerate() {
        let raised = match wants {
            Wants::Everything => true,
            Wants::Everywhere(number) => order[number] == i,
            Wants::Measured => false,
        };
        let active = vm.vcpus.iter().filter(|v| v.online && ((raised && !v.fixed) || v.demand.0 > 0)).count();
        let weight = match instance.rule {
            WeightRule::Linux => vm.weight,
            WeightRule::XenCredit => vm.weight * count(active),
            WeightRule::EqualPerVcpu => count(online(vm)),
        };
        let parent = Some(vm.slice.map_or(0, |s| s + 1));
        groups.push(Group { parent, weight: whole(weight), cap: vm.cap.map(N::of) });
        for vcpu in vm.vcpus.iter().filter(|v| v.online) {
            let demand = if raised && !vcpu.fixed { N::one() } else { N::of(vcpu.demand) };
            let quota = vcpu.quota.map_or(N::one(), N::of);
            let own = if instance.rule == WeightRule::Linux { vcpu.weight } else { 1 };
            leaves.push(Leaf {
                group: groups.len() - 1,
                weight: whole(own),
                limit: demand.min(quota).min(N::one()),
                mask: vcpu.mask & !instance.offline,
                amount: N::zero(),
                satisfied: false,
                stopped: false,
            });
        }
    }
    State { groups, leaves, pcpus: ((1 << instance.pcpus) - 1) & !instance.offline }
}

impl<N: Number> State<N> {
    fn below(&self, leaf: &Leaf<N>, group: usize) -> bool {
        std::iter::successors(Some(leaf.group), |&g| self.groups[g].parent).any(|g| g == group)
    }

    /// Sum of the amounts and of the growths of some leaves.
    fn sum(&self, growth: &[N], member: impl Fn(&Leaf<N>) -> bool) -> Option<(N, N)> {
        let mut sum = (N::zero(), N::zero());
        for (leaf, growth) in self.leaves.iter().zip(growth).filter(|(leaf, _)| member(leaf)) {
            sum = (sum.0.checked_add(&leaf.amount)?, sum.1.checked_add(growth)?);
        }
        Some(sum)
    }

    fn pcpu_sets(&self) -> impl Iterator<Item = (u32, N)> + use<N> {
        let all = self.pcpus;
        (0..=all).filter(move |set| set & !all == 0).map(|set| (set, N::of((set.count_ones().into(), 1))))
    }

    fn is_satisfied(&self, group: usize) -> bool {
        self.leaves.iter().all(|leaf| leaf.satisfied || !self.below(leaf, group))
    }

    /// The rate of each leaf when the root has 1.
    fn rates(&self) -> Option<Vec<N>> {
        let mut rate: Vec<Option<N>> = vec![None; self.groups.len()];
        rate[0] = Some(N::one());
        let mut result = vec![N::zero(); self.leaves.len()];
        // Groups come after their parents.
        for group in 0..self.groups.len() {
            let own = rate[group].clone()?;
            let groups = (1..self.groups.len())
                .filter(|&g| self.groups[g].parent == Some(group) && !self.is_satisfied(g));
            let groups: Vec<usize> = groups.collect();
            let leaves = (0..self.leaves.len())
                .filter(|&l| self.leaves[l].group == group && !self.leaves[l].satisfied);
            let leaves: Vec<usize> = leaves.collect();
            let mut all = N::zero();
            for weight in groups
                .iter()
                .map(|&g| &self.groups[g].weight)
                .chain(leaves.iter().map(|&l| &self.leaves[l].weight))
            {
                all = all.checked_add(weight)?;
            }
            for g in (1..self.groups.len()).filter(|&g| self.groups[g].parent == Some(group)) {
                rate[g] = Some(N::zero());
            }
            for &g in &groups {
                rate[g] = Some(own.checked_mul(&self.groups[g].weight)?.checked_div(&all)?);
            }
            for &l in &leaves {
                result[l] = own.checked_mul(&self.leaves[l].weight)?.checked_div(&all)?;
            }
        }
        Some(result)
    }
}

/// One event; `Some(false)` when nothing grows.
fn step<N: Number>(state: &mut State<N>) -> Option<bool> {
    let still = vec![N::zero(); state.leaves.len()];
    for leaf in &mut state.leaves {
        leaf.satisfied |= leaf.amount >= leaf.limit;
    }
    for group in 0..state.groups.len() {
        let Some(cap) = state.groups[group].cap.clone() else { continue };
        if state.sum(&still, |leaf| state.below(leaf, group))?.0 >= cap {
            let below: Vec<bool> = state.leaves.iter().map(|leaf| state.below(leaf, group)).collect();
            state.leaves.iter_mut().zip(below).for_each(|(leaf, below)| leaf.satisfied |= below);
        }
    }
    for (set, size) in state.pcpu_sets() {
        if state.sum(&still, |leaf| leaf.mask & !set == 0)?.0 >= size {
            for leaf in state.leaves.iter_mut().filter(|leaf| leaf.mask & !set == 0) {
                leaf.stopped = true;
            }
        }
    }
    let mut growth = state.rates()?;
    for (growth, leaf) in growth.iter_mut().zip(&state.leaves) {
        if leaf.stopped || leaf.satisfied {
            *growth = N::zero();
        }
    }
    let mut until: Option<N> = None;
    let mut event = |room: N, speed: &N| {
        if *speed > N::zero() {
            let time = room.checked_div(speed)?;
            until = Some(until.take().map_or(time.clone(), |t| t.min(time)));
        }
        Some(())
    };
    for (leaf, speed) in state.leaves.iter().zip(&growth) {
        event(leaf.limit.checked_sub(&leaf.amount)?, speed)?;
    }
    for group in 0..state.groups.len() {
        if let Some(cap) = &state.groups[group].cap {
            let (amount, speed) = state.sum(&growth, |leaf| state.below(leaf, group))?;
            event(cap.checked_sub(&amount)?, &speed)?;
        }
    }
    for (set, size) in state.pcpu_sets() {
        let (amount, speed) = state.sum(&growth, |leaf| leaf.mask & !set == 0)?;
        event(size.checked_sub(&amount)?, &speed)?;
    }
    let Some(time) = until else { return Some(false) };
    for (leaf, speed) in state.leaves.iter_mut().zip(&growth) {
        leaf.amount = leaf.amount.checked_add(&speed.checked_mul(&time)?)?;
    }
    Some(true)
}

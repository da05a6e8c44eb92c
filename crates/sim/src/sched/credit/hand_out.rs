//! Who gets how much credit (`csched_acct`).
//!
//! Known gap: what all together are in debt is not handed out beside a slice of every pCPU (`credit_balance`).

use crate::cpus::{Cpus, OVER_CAP};

use super::super::{Order, signed};
use super::{Credit, Rank};

impl Credit {
    /// Hands out a slice of every pCPU.
    pub(super) fn hand_out(&mut self, cpus: &mut Cpus, orders: &mut Vec<Order>) {
        let slice = self.spec.slice_ns;
        self.unsorted.fill(true);
        let online = u64::try_from(cpus.pcpus.len()).unwrap_or(0);
        let active = |credit: &Credit, vm: usize| {
            let vm = &cpus.vms[vm];
            (vm.first..vm.first + vm.count).filter(|&v| credit.active[v as usize]).count() as u64
        };
        let mut open: Vec<(usize, u64)> =
            (0..cpus.vms.len()).map(|vm| (vm, active(self, vm))).filter(|(_, n)| *n > 0).collect();
        // What a VM cannot use goes to the others: those that reach their most first.
        let most = |cpus: &Cpus, vm: usize, n: u64| {
            let all = n * slice;
            cpus.vms[vm].cap.map_or(all, |cap| all.min(cap * slice / 1024))
        };
        open.sort_by_key(|&(vm, n)| (most(cpus, vm, n) / (cpus.vms[vm].weight * n).max(1), vm));
        let mut total = online * slice;
        let mut weights: u64 = open.iter().map(|&(vm, n)| cpus.vms[vm].weight * n).sum();
        for (vm, n) in open {
            let weight = cpus.vms[vm].weight * n;
            let fair = (u128::from(total) * u128::from(weight)).div_ceil(u128::from(weights.max(1)));
            let part = u64::try_from(fair).unwrap_or(total).min(most(cpus, vm, n));
            total -= part;
            weights -= weight;
            let each = signed(part.div_ceil(n));
            let cap = cpus.vms[vm].cap.map(|cap| signed(cap * slice / 1024 / n));
            let (first, count) = (cpus.vms[vm].first, cpus.vms[vm].count);
            for v in first..first + count {
                if self.active[v as usize] {
                    self.give(cpus, v, each, cap, orders);
                }
            }
        }
    }

    fn give(&mut self, cpus: &mut Cpus, v: u32, credit: i64, cap: Option<i64>, orders: &mut Vec<Order>) {
        let slice = signed(self.spec.slice_ns);
        let have = &mut self.credit[v as usize];
        *have += credit;
        let parked = cpus.vcpus[v as usize].parked & OVER_CAP != 0;
        let mut rank = self.rank[v as usize];
        if *have < 0 {
            rank = Rank::Over;
            if cap.is_some_and(|cap| *have < -cap) && !parked {
                orders.push(Order::Park(v, OVER_CAP));
            }
            *have = (*have).max(-slice);
        } else {
            if rank == Rank::Over {
                rank = Rank::Under;
            }
            if parked {
                orders.push(Order::Unpark(v, OVER_CAP));
            }
            if *have > slice {
                *have /= 2;
                self.active[v as usize] = false;
            }
        }
        self.rank[v as usize] = rank;
    }
}

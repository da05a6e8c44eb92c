//! Where the time went: P1's terms, per vCPU and allocation period.
//!
//! ```text
//! allocated + surplus = utilised + spinning + switching + unused
//! ```
//!
//! Allocated is what the vCPU is entitled to in a period (`corefit_core::entitle`); it is not rolled
//! over. What it used of it or beyond is time on a pCPU, counted by what it did there.

use super::Sim;
use crate::cpus::Use;
use crate::queue::Ns;

/// The time of one vCPU, ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Account {
    /// What it was entitled to.
    pub allocated: u64,
    /// What it used beyond that, period by period.
    pub surplus: u64,
    /// Working.
    pub utilised: u64,
    /// Spinning.
    pub spinning: u64,
    /// Switching, halting, kicking, waking up.
    pub switching: u64,
    /// What it left of what it was entitled to, period by period.
    pub unused: u64,
}

impl Account {
    /// One period is over.
    fn close(&mut self, used: Use, allocated: Ns) {
        let Use { utilised, spinning, switching } = used;
        let all = utilised + spinning + switching;
        self.allocated += allocated;
        self.utilised += utilised;
        self.spinning += spinning;
        self.switching += switching;
        self.surplus += all.saturating_sub(allocated);
        self.unused += allocated.saturating_sub(all);
    }

    /// Both of them.
    #[must_use]
    pub fn plus(&self, other: &Account) -> Account {
        Account {
            allocated: self.allocated + other.allocated,
            surplus: self.surplus + other.surplus,
            utilised: self.utilised + other.utilised,
            spinning: self.spinning + other.spinning,
            switching: self.switching + other.switching,
            unused: self.unused + other.unused,
        }
    }

    /// What came after another one, in whole periods.
    pub(crate) fn since(&self, before: &Account) -> Account {
        Account {
            allocated: self.allocated - before.allocated,
            surplus: self.surplus - before.surplus,
            utilised: self.utilised - before.utilised,
            spinning: self.spinning - before.spinning,
            switching: self.switching - before.switching,
            unused: self.unused - before.unused,
        }
    }

    /// Whether the terms add up.
    #[must_use]
    pub fn adds_up(&self) -> bool {
        self.allocated + self.surplus == self.utilised + self.spinning + self.switching + self.unused
    }
}

impl Sim {
    /// A period is over for all vCPUs.
    pub(super) fn end_period(&mut self) {
        for p in 0..self.pcpus() {
            self.settle(p);
            self.arm(p);
        }
        let passed = self.now - std::mem::replace(&mut self.shares_since, self.now);
        for (vcpu, book) in self.cpus.vcpus.iter_mut().zip(&mut self.accounts) {
            let allocated = std::mem::take(&mut book.accrued) + book.share.of(passed);
            book.account.close(std::mem::take(&mut vcpu.used), allocated);
        }
    }

    /// The vCPUs are entitled to something else from now on.
    pub(super) fn set_shares(&mut self, shares: Vec<Part>) {
        let passed = self.now - std::mem::replace(&mut self.shares_since, self.now);
        for (book, share) in self.accounts.iter_mut().zip(shares) {
            book.accrued += book.share.of(passed);
            book.share = share;
        }
    }

    /// Where the time of one vCPU of a VM went until now, by their numbers; `None` if there is none.
    #[must_use]
    pub fn account_of(&self, vm: usize, vcpu: u32) -> Option<Account> {
        let vm = self.cpus.vms.get(vm).filter(|vm| vcpu < vm.count)?;
        Some(self.account(vm.first + vcpu))
    }

    /// Whether time is conserved: on every pCPU, for every vCPU, and in the terms of P1.
    ///
    /// # Errors
    /// What does not add up.
    pub fn check(&self) -> Result<(), String> {
        let vcpus = 0..u32::try_from(self.cpus.vcpus.len()).unwrap_or(0);
        let mut on_pcpus = 0;
        for v in vcpus {
            let account = self.account(v);
            let Account { utilised, spinning, switching, .. } = account;
            let run = self.run_ns(v);
            on_pcpus += run;
            if !account.adds_up() {
                return Err(format!("vCPU {v}: {account:?} does not add up"));
            }
            if run != utilised + spinning + switching {
                return Err(format!("vCPU {v} was on pCPUs for {run} ns, but {account:?}"));
            }
            if run + self.waited_ns(v) > self.now {
                return Err(format!("vCPU {v} ran and waited for more than all the time"));
            }
        }
        let idle: Ns = (0..self.pcpus()).map(|p| self.idle_ns(p)).sum();
        let all = self.now * u64::from(self.pcpus());
        if idle + on_pcpus != all {
            return Err(format!("{idle} ns idle and {on_pcpus} ns busy, of {all} ns"));
        }
        Ok(())
    }

    /// What a vCPU's time was until now, the period that has not ended included.
    pub(crate) fn account(&self, v: u32) -> Account {
        let Book { mut account, share, accrued } = self.accounts[v as usize];
        account.close(self.cpus.vcpus[v as usize].used, accrued + share.of(self.now - self.shares_since));
        account
    }
}

/// What is known of a vCPU's time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Book {
    /// Of periods that are over.
    account: Account,
    share: Part,
    /// What it was entitled to in this period before its share changed, ns.
    accrued: Ns,
}

impl Book {
    pub(crate) fn new(share: Part) -> Book {
        Book { account: Account::default(), share, accrued: 0 }
    }
}

/// What a vCPU is entitled to, in parts of 2^30 of a pCPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Part(u64);

impl Part {
    const WHOLE: u64 = 1 << 30;

    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 2^30")]
    pub(crate) fn new(pcpus: f64) -> Part {
        Part((pcpus.clamp(0.0, 1.0) * Part::WHOLE as f64).round() as u64)
    }

    fn of(self, ns: Ns) -> Ns {
        let product = u128::from(self.0) * u128::from(ns) / u128::from(Part::WHOLE);
        u64::try_from(product).unwrap_or(ns)
    }
}

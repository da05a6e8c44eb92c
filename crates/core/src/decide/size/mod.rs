//! How many vCPUs a VM should have online.
//!
//! ```text
//! Subject (what is known of a VM now) ──▶ Size::choose ──▶ Choice: a count, why, and when to look again
//! ```

mod corefit;
mod pcpu_est;
mod published;

use std::fmt::Debug;
use std::time::Duration;

use super::Why;
use super::policy::{Policy, Sizer};
use crate::machine::VmEstimate;
use crate::{Cpus, Time};

pub(super) use corefit::{Corefit, Races};
pub(super) use pcpu_est::PcpuEst;
pub(super) use published::{AsGranted, VcpuBal, Vscale};

/// What a size policy is told of a VM.
#[derive(Clone, Copy, Debug)]
pub(super) struct Subject<'a> {
    /// It, and what it did since the last look.
    pub vm: &'a VmEstimate,
    /// Now, and the time since the last look.
    pub at: Time,
    /// See above.
    pub over: Duration,
    /// vCPUs it has online.
    pub online: u32,
    /// vCPUs it had online before anybody sized it.
    pub had: u32,
    /// vCPUs it may have at least and at most.
    pub least: u32,
    /// See above.
    pub most: u32,
    /// pCPUs that each of its vCPUs may use: 1, or less by quotas of vCPUs.
    pub each: f64,
    /// Whether it weighs more with more vCPUs (Xen's credit scheduler).
    pub by_vcpus: bool,
    /// pCPUs by the formula of VCPU-Bal: its part by weight of all that VMs may use, or what it was granted of them, within its cap
    /// and affinity.
    pub share: Option<f64>,
    /// pCPUs that it could get now with all its vCPUs online, by weights, with what others want now.
    pub available: Option<f64>,
    /// pCPUs that it used.
    pub used: Option<f64>,
    /// Work it did, units per second; `None` where nobody counts, or the count began anew.
    pub rate: Option<f64>,
    /// pCPUs that it wants, as the demand stage forecasts.
    pub wants: Option<f64>,
    /// pCPUs that arbitration gives it; `None` if nobody arbitrates.
    pub granted: Option<u32>,
    /// The longest of a quota's period on it, what its count of work takes to come, and a quarter of the time in which each of its vCPUs
    /// has had a slice: shorter looks see only a part of it.
    pub period: Duration,
    /// Whether it may begin to try other counts: not too many VMs at a time.
    pub may_search: bool,
}

impl Subject<'_> {
    /// vCPUs that can use so many pCPUs.
    #[must_use]
    pub(super) fn vcpus(&self, pcpus: f64) -> u32 {
        vcpus(pcpus, self.each)
    }

    /// pCPUs that it used or waited for.
    fn wanted(&self) -> Option<f64> {
        Some(self.used? + self.vm.activity.waiting.map_or(0.0, |waiting| waiting.0))
    }

    /// vCPUs that what was granted is for.
    fn for_granted(&self, granted: u32) -> u32 {
        self.vcpus(f64::from(granted)).max(self.least)
    }

    /// A number of vCPUs that it may have.
    #[must_use]
    pub(super) fn clamp(&self, count: u32) -> u32 {
        let most = self.granted.map_or(self.most, |granted| self.most.min(self.for_granted(granted)));
        count.clamp(self.least.min(most), most)
    }

    /// The number that it may have of one that is wanted, and why it has it: what bounds it, if that decides.
    #[must_use]
    pub(super) fn bounded(&self, wanted: u32, why: Why) -> Choice {
        let count = self.clamp(wanted);
        let why = match self.granted {
            _ if count == wanted => why,
            Some(granted) if self.for_granted(granted) < self.most && count < wanted => {
                Why::Granted { granted }
            }
            _ => Why::Bounded { wanted, least: self.least, most: self.most },
        };
        Choice { count, why, next: None }
    }

    /// VCPU-Bal's number, and why; `None` where its part is not known.
    #[must_use]
    pub(super) fn vcpu_bal(&self) -> Option<Choice> {
        let share = self.share?;
        let why = match self.granted {
            Some(granted) if f64::from(granted) == share => Why::Granted { granted },
            _ => Why::Share { share: Cpus(share) },
        };
        Some(self.bounded(self.vcpus(share), why))
    }
}

/// What a policy wants.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Choice {
    /// vCPUs online.
    pub count: u32,
    /// Because of what.
    pub why: Why,
    /// When to look again at the latest; `None`: after the usual interval. Given while something is tried, for which
    /// no rate limit and no dwell holds.
    pub next: Option<Duration>,
}

/// A policy that decides for one VM, and what it remembers of it.
pub(super) trait Size: Debug {
    /// What the VM did since the last look, before any VM chooses. `entitled(n)`: pCPUs that it would be entitled to with n
    /// online; one division of the whole host, so not to be asked in vain. Whether other counts are tried from now on.
    fn look(&mut self, _: &Subject<'_>, _: &dyn Fn(u32) -> Option<f64>, _: &mut Races) -> bool {
        false
    }

    /// How many vCPUs, now; after all VMs' looks. `entitled`: as above.
    fn choose(
        &mut self,
        subject: &Subject<'_>,
        entitled: &dyn Fn(u32) -> Option<f64>,
        races: &Races,
    ) -> Choice;
}

/// A policy by its name, for one VM.
#[must_use]
pub(super) fn sizer(name: Sizer, policy: &Policy) -> Box<dyn Size + Send> {
    match name {
        Sizer::None => Box::new(AsGranted),
        Sizer::VcpuBal => Box::new(VcpuBal),
        Sizer::Vscale => Box::new(Vscale),
        Sizer::PcpuEst => Box::new(PcpuEst::new(policy.probe())),
        Sizer::Corefit => Box::new(Corefit::new(policy.probe(), policy.dwell())),
    }
}

/// A measurement that may take several looks: pCPU seconds used, and seconds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Measure {
    used: f64,
    seconds: f64,
}

/// A measurement is over after this part of its time.
const ALL: f64 = 0.9;

impl Measure {
    /// A look more; pCPUs used in the mean, once it has taken its `length`: then the next one begins.
    fn add(&mut self, used: f64, over: Duration, length: Duration) -> Option<f64> {
        let over = over.as_secs_f64();
        (self.used, self.seconds) = (self.used + used * over, self.seconds + over);
        if self.seconds < ALL * length.as_secs_f64() {
            return None;
        }
        let Measure { used, seconds } = std::mem::take(self);
        Some(used / seconds.max(1e-9))
    }
}

/// vCPUs that can use so many pCPUs where each may use so much of one.
pub(super) fn vcpus(pcpus: f64, each: f64) -> u32 {
    whole(if each < 1.0 { pcpus / each } else { pcpus })
}

/// So many pCPUs, as a number of vCPUs: rounded up (P2 4.3), except for what measuring adds.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped")]
pub(crate) fn whole(pcpus: f64) -> u32 {
    (pcpus - 0.02).ceil().clamp(1.0, 65_000.0) as u32
}

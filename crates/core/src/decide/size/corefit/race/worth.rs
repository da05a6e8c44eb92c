//! What a level is worth, by what its VMs did there.

use super::{Member, Race, Stat};
use crate::machine::VmId;

/// Before looks told how units vary, their number is taken to vary as that of things that happen at any time; this counts as
/// so many looks.
const PRIOR: f64 = 4.0;
/// They are not taken to vary less than so: looks may be shorter than what a program does over and over.
const STEADY: f64 = 0.5;

impl Race {
    /// pCPUs that were available to who races alone, in the mean over all numbers: what others did meanwhile may have changed.
    pub(in super::super) fn available(&self, id: &VmId) -> Option<f64> {
        let mut all = Stat::default();
        self.seen(id).iter().for_each(|(_, stat)| all.add_stat(stat));
        (self.members.len() == 1 && all.seconds > 0.0).then(|| all.part / all.seconds)
    }

    /// What it did with this number before anything was changed, per second, were it that.
    pub(in super::super) fn first(&self, id: &VmId, count: u32) -> Option<f64> {
        self.member(id).filter(|member| member.counts[0] == count)?.first.value()
    }

    /// The mean of what VMs did there over what each usually does, scaled down where all together used more than their part:
    /// what one takes from another is missing there.
    pub(super) fn value(&self, level: usize) -> Option<f64> {
        self.worth(|member| &member.stats[level])
    }

    pub(super) fn worth(&self, stat: impl Fn(&Member) -> &Stat) -> Option<f64> {
        self.worth_of(&self.members.iter().map(|member| *stat(member)).collect::<Vec<_>>())
    }

    /// The same of these, one for each VM.
    pub(super) fn worth_of(&self, stats: &[Stat]) -> Option<f64> {
        let own = sum(stats.iter()).own();
        let parts = self.members.iter().zip(stats).filter(|(member, _)| member.usual() > 0.0);
        let parts: Vec<f64> =
            parts.filter_map(|(member, stat)| Some(stat.rate()? / member.usual())).collect();
        (!parts.is_empty()).then(|| own * parts.iter().sum::<f64>() / crate::units::count(parts.len()))
    }

    /// Units that tell as much of the mean over VMs as these do of each: of one that is counted coarsely little is known, however finely
    /// others are.
    fn telling_units(&self, stat: impl Fn(&Member) -> &Stat) -> f64 {
        let counted = self.members.iter().filter(|member| member.usual() > 0.0 && stat(member).seconds > 0.0);
        let (vms, errors) = counted.fold((0.0, 0.0), |(vms, errors), member| {
            (vms + 1.0, errors + 1.0 / stat(member).units.max(0.5))
        });
        if vms > 1.0 { vms * vms / errors } else { f64::INFINITY }
    }

    /// All VMs together.
    pub(super) fn all(&self, stat: impl Fn(&Member) -> &Stat) -> Stat {
        sum(self.members.iter().map(stat))
    }

    pub(super) fn together(&self, level: usize) -> Stat {
        self.together_of(|member| &member.stats[level])
    }

    /// Of the proof.
    pub(super) fn proven_together(&self, level: usize) -> Stat {
        self.together_of(|member| &member.proofs[level])
    }

    fn together_of(&self, stat: impl Fn(&Member) -> &Stat + Copy) -> Stat {
        let all = self.all(stat);
        Stat { units: all.units.min(self.telling_units(stat)), ..all }
    }

    pub(super) fn units_per_second(&self, level: usize) -> f64 {
        let all = self.together(level);
        if all.lasted() > 0.0 { all.units / all.lasted() } else { 0.0 }
    }

    /// What one unit more would be worth there.
    pub(super) fn unit(&self, level: usize) -> f64 {
        let best = self.best();
        let each = best.and_then(|best| Some(self.value(best)? / self.units_per_second(best).max(1e-9)));
        each.unwrap_or(0.0) / self.together(level).lasted().max(1e-9)
    }

    /// The best level so far.
    pub(super) fn best(&self) -> Option<usize> {
        let values = (0..self.levels.len()).filter_map(|level| Some((level, self.value(level)?)));
        values.max_by(|a, b| a.1.total_cmp(&b.1)).map(|(level, _)| level)
    }

    /// All VMs have VCPU-Bal's counts there.
    pub(super) fn is_bal(&self, level: usize) -> bool {
        self.members.iter().all(|member| member.counts[level] == member.bal)
    }

    /// Variance of the number of units in a look over its mean, by all looks so far.
    pub(super) fn bursts(&self) -> f64 {
        bursts(self.members.iter().flat_map(|member| member.stats.iter().chain(&member.proofs)))
    }

    /// By those of a level in the race.
    pub(super) fn bursts_at(&self, level: usize) -> f64 {
        bursts(self.members.iter().map(|member| &member.stats[level]))
    }
}

fn bursts<'a>(stats: impl Iterator<Item = &'a Stat>) -> f64 {
    let all = stats.map(Stat::varies);
    let (sum, looks) = all.fold((PRIOR, PRIOR), |(sum, looks), (a, b)| (sum + a, looks + b));
    (sum / looks).max(STEADY)
}

/// What VMs did at the same time.
fn sum<'a>(stats: impl Iterator<Item = &'a Stat>) -> Stat {
    let mut all = Stat::default();
    for stat in stats {
        all.seconds = all.seconds.max(stat.seconds);
        all.units += stat.units;
        all.used += stat.used;
        all.part += stat.part;
        all.withheld += stat.withheld;
    }
    all
}

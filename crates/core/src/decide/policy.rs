//! What an administrator wants of the controllers: the `[policy]` part of a configuration.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::CpuSet;
use crate::machine::{LeverKind, VmState};
use crate::place::Class;

/// A setting that has to be so for longer never changes anything, ms: a day.
const LONGEST_MS: u64 = 86_400_000;

/// "At most nine digits": the largest of them, in configurations and in what owners of VMs wish.
pub const NINE_DIGITS: u32 = 999_999_999;

/// Which controllers decide, and how quickly.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Policy {
    /// Between two looks, ms; from 50 to 10,000, for what guests say counts 15 s, and what they are told 60 s.
    pub interval_ms: u64,
    /// What a VM is going to want.
    pub demand: Forecast,
    /// Forecasts take the smoothed utilisation of XenMVM's monitor (P5, formula 5), and so are late by some ten looks.
    pub smooth: bool,
    /// Who is served first when there is not enough.
    pub arbitrate: Arbiter,
    /// How many vCPUs a VM has online.
    pub size: Sizer,
    /// What VMs weigh.
    pub weigh: Weigher,
    /// What their helper threads weigh.
    pub helpers: Helpers,
    /// On which pCPUs.
    pub place: Placer,
    /// pCPUs that are the host's: no VM is placed there.
    pub reserved: CpuSet,
    /// In which timeslices.
    pub shape: Shaper,
    /// How long something has to be wanted before a VM gets less, ms.
    pub dwell_ms: u64,
    /// A weight or a limit is written only if it changes by this part of it, from 0 to 1; more is waited for.
    pub deadband: f64,
    /// Least time between two changes of the same lever of a VM, ms.
    pub lever_ms: u64,
    /// How long a number of vCPUs is tried at first, ms; several times what taking one offline takes.
    pub probe_ms: u64,
    /// VMs that may try other numbers of vCPUs at the same time.
    pub searches: usize,
    /// Rules for single VMs; of those that match, the last that says something counts.
    pub vm: Vec<Rule>,
    /// What owners ask for their VMs, by name, where no rule says something of it: none of a file, see [`Policy::with_wishes`].
    #[serde(skip)]
    pub wishes: BTreeMap<String, Rule>,
}

/// What holds for VMs of some name.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Rule {
    /// The name; `*` stands for anything.
    pub name: String,
    /// As [`Policy::size`].
    pub size: Option<Sizer>,
    /// Larger is more important; 0 where nothing is said.
    pub priority: Option<i32>,
    /// vCPUs that it always has, at least 1; also the pCPUs it is guaranteed as far as its weight gives them.
    pub min: Option<u32>,
    /// vCPUs that it never has more of.
    pub max: Option<u32>,
    /// What its work is like, for the stage that places; counts more than what is measured.
    pub class: Option<Class>,
    /// pCPUs that it is guaranteed by weight, from 0.05 to `min`, which counts where nothing is said; only with
    /// [`Weigher::Grants`], for less than a pCPU is no number of vCPUs.
    pub guaranteed: Option<f64>,
    /// As [`Policy::helpers`].
    pub helpers: Option<Helpers>,
    /// As [`Policy::shape`].
    pub shape: Option<Shaper>,
    /// How long its vCPUs may stand still because of a quota, ms, from 1 to 1,000; only with it, allocation periods are
    /// made longer. Without, it is sensitive to latency. With [`Shaper::Slice`]: whoever waits longer gets a shorter slice.
    pub latency_ms: Option<u64>,
    /// Leave it alone.
    pub exclude: Option<bool>,
}

/// What a VM is going to want (docs/model.md, "Papers": P5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Forecast {
    /// Exponentially weighted mean, gamma 0.2.
    Ewma,
    /// Proportional, integral, derivative.
    Pid,
    /// Grants increases at once, decreases delayed.
    #[default]
    Ftds,
    /// Additive increase, subtractive decrease.
    Aisd,
}

/// Who is served first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Arbiter {
    /// The host's own weights decide.
    #[default]
    None,
    /// First come, first served.
    Fcfs,
    /// By each VM's priority; lower ones are preempted.
    Priority,
    /// Max-min by demand.
    MaxMin,
}

/// How many vCPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sizer {
    /// As many as it had, or as arbitration grants.
    None,
    /// `VCPU-Bal`: its share of the pCPUs.
    VcpuBal,
    /// `vScale`: what others leave over, too.
    Vscale,
    /// `pCPU-Est`: upward from there, by utilisation.
    PcpuEst,
    /// Ours: by progress where there is a signal, else by the shape of utilisation.
    #[default]
    Corefit,
}

impl Sizer {
    /// Whether it tries numbers of vCPUs, and goes by what comes of them.
    #[must_use]
    pub fn tries(self) -> bool {
        matches!(self, Sizer::PcpuEst | Sizer::Corefit)
    }
}

/// What VMs weigh.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Weigher {
    /// What they do.
    #[default]
    None,
    /// As [`Arbiter`] grants, while somebody is short and more vCPUs stay than there are pCPUs for them.
    Grants,
}

/// What helper threads of VMs weigh.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Helpers {
    /// As much as a vCPU, or what somebody set.
    #[default]
    None,
    /// A hundredth of a vCPU, from when a VM of the host starves ([`crate::machine::Starved`]).
    Light,
}

/// On which pCPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Placer {
    /// Where the host's scheduler puts them.
    #[default]
    None,
    /// P5.3: threads that share a cache apart.
    Ulas,
    /// P4.3: one to each core or module first.
    OptimalAffinity,
    /// `docs/place.md`, "Where vCPUs should run".
    Corefit,
}

/// In which timeslices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Shaper {
    /// As they are.
    #[default]
    None,
    /// What is left of a quota is saved for later periods.
    Burst,
    /// Longer allocation periods for VMs whose rule has `latency_ms` (P1, IV-B).
    LongPeriod,
    /// Quotas of vCPUs in proportion to their load, the VM's total unchanged (P1, IV-B).
    Proportional,
    /// Shorter slices of the fair scheduler for VMs that run for less than a slice at a time.
    Slice,
    /// Ours: bursts, proportional quotas and longer periods, each where it brings something.
    Corefit,
}

/// A setting that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {what}")]
pub struct PolicyError {
    /// Which, as it is written: `vm[2].min`.
    pub key: String,
    /// What is wrong, and what can be.
    pub what: String,
}

impl Default for Policy {
    fn default() -> Policy {
        Policy {
            interval_ms: 1000,
            demand: Forecast::default(),
            smooth: false,
            arbitrate: Arbiter::default(),
            size: Sizer::default(),
            weigh: Weigher::default(),
            helpers: Helpers::default(),
            place: Placer::default(),
            reserved: CpuSet::default(),
            shape: Shaper::default(),
            dwell_ms: 3000,
            deadband: 0.05,
            lever_ms: 1000,
            probe_ms: 100,
            searches: 8,
            vm: Vec::new(),
            wishes: BTreeMap::new(),
        }
    }
}

impl Policy {
    /// Whether every setting is one that can be.
    ///
    /// # Errors
    /// The first that cannot, by its key.
    pub fn check(&self) -> Result<(), PolicyError> {
        let refuse = |key: String, what: &str| Err(PolicyError { key, what: what.into() });
        if !(50..=10_000).contains(&self.interval_ms) {
            let what = "give 50 to 10000: what guests say, and are told, counts for some seconds only";
            return refuse("interval_ms".into(), what);
        }
        if !(20..=60_000).contains(&self.probe_ms) {
            return refuse("probe_ms".into(), "give 20 to 60000");
        }
        for (key, ms) in [("dwell_ms", self.dwell_ms), ("lever_ms", self.lever_ms)] {
            if ms > LONGEST_MS {
                return refuse(key.into(), "give 0 to 86400000, a day");
            }
        }
        if !(0.0..=1.0).contains(&self.deadband) {
            return refuse("deadband".into(), "give 0 to 1");
        }
        for (number, rule) in self.vm.iter().enumerate() {
            let key = |key: &str| format!("vm[{number}].{key}");
            if rule.name.is_empty() {
                return refuse(key("name"), "is missing; give a name, or a pattern such as \"web*\"");
            }
            if rule.latency_ms.is_some_and(|latency| !(1..=1000).contains(&latency)) {
                return refuse(key("latency_ms"), "give 1 to 1000, or leave it out");
            }
            if rule.min == Some(0) {
                return refuse(key("min"), "is 0; a VM keeps at least 1 vCPU");
            }
            if rule.max == Some(0) {
                return refuse(key("max"), "is 0; a VM keeps at least 1 vCPU");
            }
            if rule.min.zip(rule.max).is_some_and(|(min, max)| min > max) {
                return refuse(key("min"), "is larger than max; give at most max, or leave one of them out");
            }
            let most = f64::from(rule.min.unwrap_or(1));
            if rule.guaranteed.is_some_and(|guaranteed| !(0.05..=most).contains(&guaranteed)) {
                return refuse(key("guaranteed"), "give 0.05 to min, or to 1 where the same rule has no min");
            }
        }
        Ok(())
    }

    /// Whether the pCPUs that it keeps from VMs are some of a host's, and not all; of a host that does not tell its pCPUs nobody knows.
    ///
    /// # Errors
    /// If they are not, by the key.
    pub fn fits(&self, pcpus: &CpuSet, offline: &CpuSet) -> Result<(), PolicyError> {
        let refuse = |what| Err(PolicyError { key: "reserved".into(), what });
        if pcpus.is_empty() {
            return Ok(());
        }
        let absent = self.reserved.difference(pcpus);
        if !absent.is_empty() {
            return refuse(format!("the host has no pCPU {absent}; it has {pcpus}"));
        }
        if pcpus.difference(offline).is_within(&self.reserved) {
            return refuse(format!("{} is all of the host; leave some pCPUs to the VMs", self.reserved));
        }
        Ok(())
    }

    /// What holds for a VM of this name.
    #[must_use]
    pub fn of(&self, name: &str) -> Rule {
        let mut found = Rule { name: name.into(), size: Some(self.size), ..Rule::default() };
        let rules = self.vm.iter().filter(|rule| matches(&rule.name, name));
        for rule in self.wishes.get(name).into_iter().chain(rules) {
            found.size = rule.size.or(found.size);
            found.priority = rule.priority.or(found.priority);
            found.min = rule.min.or(found.min);
            found.max = rule.max.or(found.max);
            found.class = rule.class.or(found.class);
            found.guaranteed = rule.guaranteed.or(found.guaranteed);
            found.helpers = rule.helpers.or(found.helpers);
            found.shape = rule.shape.or(found.shape);
            found.latency_ms = rule.latency_ms.or(found.latency_ms);
            found.exclude = rule.exclude.or(found.exclude);
        }
        found
    }

    /// Why a VM of this name that is excluded is left alone: a rule says so, or else its owner.
    #[must_use]
    pub fn who_excludes(&self, name: &str) -> &'static str {
        let says = |rule: &Rule| rule.exclude == Some(true) && matches(&rule.name, name);
        if self.vm.iter().any(says) { "its rule says exclude" } else { "its owner says exclude" }
    }

    /// The same with what owners ask for their VMs ([`VmState::wishes`]), each thing where no rule says something of it.
    #[must_use]
    pub fn with_wishes(&self, vms: &[VmState]) -> Policy {
        let given = Policy { wishes: BTreeMap::new(), ..self.clone() };
        let wishes = vms.iter().filter_map(|vm| Some((vm.name.clone(), given.wished(vm)?))).collect();
        Policy { wishes, ..given }
    }

    /// All rules, and what owners ask for.
    pub fn rules(&self) -> impl Iterator<Item = &Rule> {
        self.vm.iter().chain(self.wishes.values())
    }

    /// As a rule for this VM. Within the limits that others say, for of two that cannot both hold the upper one counts.
    fn wished(&self, vm: &VmState) -> Option<Rule> {
        let (wishes, said) = (vm.wishes.as_deref()?, self.of(&vm.name));
        Some(Rule {
            name: vm.name.clone(),
            min: wishes.min.map(|min| min.min(said.max.unwrap_or(u32::MAX))),
            max: wishes.max.map(|max| max.max(said.min.unwrap_or(0))),
            ..wishes.clone()
        })
    }

    /// How a VM is sized. Control groups: as a rule of theirs says, not one of all names, as a smaller cpuset is a limit that
    /// nobody asked for otherwise.
    pub(super) fn sizer_of(&self, vm: &VmState) -> Sizer {
        if !vm.is_group() {
            return self.of(&vm.name).size.unwrap_or_default();
        }
        let rules = self.vm.iter().filter(|rule| rule.name != "*" && matches(&rule.name, &vm.name));
        rules.filter_map(|rule| rule.size).next_back().unwrap_or(Sizer::None)
    }

    /// Whether anybody says how many vCPUs a VM with this size policy and rule has: one of them, or an arbiter.
    pub(super) fn bounds(&self, size: Sizer, rule: &Rule) -> bool {
        size != Sizer::None || self.arbitrate != Arbiter::None || rule.min.or(rule.max).is_some()
    }

    /// By which lever a VM is sized, if it is.
    #[must_use]
    pub fn sized_by(&self, vm: &VmState) -> LeverKind {
        if vm.is_group() && self.sizer_of(vm) != Sizer::None {
            LeverKind::Affinity
        } else {
            LeverKind::Online
        }
    }

    /// Whether a lever of a VM is anybody's business. Of what is not, earlier changes are to be put back; weights of VMs are by those
    /// who changed them, unless the whole VM is excluded.
    #[must_use]
    pub fn manages(&self, vm: &VmState, lever: LeverKind) -> bool {
        let places = self.place != Placer::None;
        let rule = self.of(&vm.name);
        let shape = rule.shape.unwrap_or(self.shape);
        let managed = match lever {
            LeverKind::Online => self.bounds(self.sizer_of(vm), &rule),
            LeverKind::Affinity => places || (vm.is_group() && self.sizer_of(vm) != Sizer::None),
            LeverKind::Nodes => places,
            LeverKind::HelperWeight => rule.helpers.unwrap_or(self.helpers) == Helpers::Light,
            LeverKind::Quota | LeverKind::VcpuQuota => !matches!(shape, Shaper::None | Shaper::Slice),
            LeverKind::Slice => shape == Shaper::Slice,
            LeverKind::Weight | LeverKind::Told => true,
        };
        managed && rule.exclude != Some(true)
    }

    /// Whether weights are to follow what is granted.
    pub(super) fn weighs(&self) -> bool {
        self.weigh == Weigher::Grants && self.arbitrate != Arbiter::None
    }

    /// Between two looks.
    #[must_use]
    pub fn interval(&self) -> Duration {
        Duration::from_millis(self.interval_ms)
    }

    /// See [`Policy::probe_ms`].
    #[must_use]
    pub fn probe(&self) -> Duration {
        Duration::from_millis(self.probe_ms)
    }

    /// See [`Policy::dwell_ms`].
    #[must_use]
    pub fn dwell(&self) -> Duration {
        Duration::from_millis(self.dwell_ms)
    }

    /// How long what was changed is watched: as long as the dwell, and as the time between two changes of a lever.
    #[must_use]
    pub fn window(&self) -> Duration {
        self.dwell().max(Duration::from_millis(self.lever_ms))
    }
}

/// Whether a name is what a pattern with `*` says. Whoever names a VM cannot make it slow.
pub(super) fn matches(pattern: &str, name: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('*') else { return pattern == name };
    let Some(mut name) = name.strip_prefix(start) else { return false };
    let (middle, end) = rest.rsplit_once('*').unwrap_or(("", rest));
    // The first place where a part is found leaves most to the others.
    for part in middle.split('*') {
        let Some((_, behind)) = name.split_once(part) else { return false };
        name = behind;
    }
    name.ends_with(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_pcpus_are_some_of_the_hosts_and_not_all() {
        let policy = |list: &str| toml::from_str::<Policy>(&format!("reserved = \"{list}\"")).unwrap();
        let fits = |list: &str| {
            let fits = policy(list).fits(&CpuSet::first(4), &CpuSet::first(1));
            fits.map_err(|error| format!("{}: {}", error.key, error.what))
        };
        assert_eq!(policy("0-1").fits(&CpuSet::default(), &CpuSet::default()), Ok(()), "nobody knows");
        assert_eq!((fits("0-1"), fits("")), (Ok(()), Ok(())));
        assert_eq!(fits("0-99").unwrap_err(), "reserved: the host has no pCPU 4-99; it has 0-3");
        assert_eq!(fits("1-3").unwrap_err(), "reserved: 1-3 is all of the host; leave some pCPUs to the VMs");
    }

    #[test]
    fn the_last_rule_that_matches_and_says_something_counts() {
        let policy: Policy = toml::from_str(
            "size = \"vscale\"\n\
             [[vm]]\nname = \"web*\"\nmin = 2\npriority = 1\n\
             [[vm]]\nname = \"*-old\"\nexclude = true\nmin = 1\n",
        )
        .unwrap();
        policy.check().unwrap();
        let rule = policy.of("web-old");
        assert_eq!((rule.size, rule.priority, rule.min), (Some(Sizer::Vscale), Some(1), Some(1)));
        assert_eq!(rule.exclude, Some(true));
        assert_eq!(policy.of("db"), Rule { name: "db".into(), size: Some(Sizer::Vscale), ..Rule::default() });
    }

    #[test]
    fn what_an_owner_asks_for_counts_where_no_rule_says_something_and_within_what_rules_say() {
        let policy: Policy = toml::from_str(
            "size = \"vscale\"\n[[vm]]\nname = \"w*\"\nmin = 2\npriority = 1\n[[vm]]\nname = \"db\"\nmax = 3\n",
        )
        .unwrap();
        let wishes: Rule =
            toml::from_str("size = \"none\"\npriority = 9\nmin = 5\nmax = 1\nexclude = true\n").unwrap();
        let vm = |name: &str, wishes: Option<&Rule>| VmState {
            name: name.into(),
            wishes: wishes.cloned().map(Box::new),
            ..VmState::default()
        };
        let with =
            policy.with_wishes(&[vm("web", Some(&wishes)), vm("db", Some(&wishes)), vm("other", None)]);
        let web = with.of("web");
        assert_eq!((web.size, web.exclude), (Some(Sizer::None), Some(true)));
        assert_eq!((web.priority, web.min, web.max), (Some(1), Some(2), Some(2)), "the rule counts first");
        let db = with.of("db");
        assert_eq!((db.priority, db.min, db.max), (Some(9), Some(3), Some(3)));
        assert_eq!(with.of("other"), policy.of("other"));
        assert_eq!(with.with_wishes(&[vm("web", None)]), policy, "nobody asks any more");
    }

    #[test]
    fn of_a_rule_and_an_owner_that_both_exclude_a_vm_the_rule_is_named() {
        let policy: Policy = toml::from_str("[[vm]]\nname = \"w*\"\nexclude = true\n").unwrap();
        let wishes = Some(Box::new(Rule { exclude: Some(true), ..Rule::default() }));
        let vms = ["web", "db"].map(|name| VmState {
            name: name.into(),
            wishes: wishes.clone(),
            ..VmState::default()
        });
        let with = policy.with_wishes(&vms);
        assert!(["web", "db"].iter().all(|name| with.of(name).exclude == Some(true)));
        assert_eq!(
            ["web", "db"].map(|name| with.who_excludes(name)),
            ["its rule says exclude", "its owner says exclude"]
        );
    }

    #[test]
    fn what_helper_threads_weigh_is_managed_where_it_is_to_be_little() {
        let policy: Policy =
            toml::from_str("helpers = \"light\"\n[[vm]]\nname = \"web\"\nhelpers = \"none\"\n").unwrap();
        let manages = |policy: &Policy, name: &str| {
            policy.manages(&VmState { name: name.into(), ..VmState::default() }, LeverKind::HelperWeight)
        };
        assert_eq!(["web", "db"].map(|name| manages(&policy, name)), [false, true]);
        assert!(!manages(&Policy::default(), "db"), "else it stays so while the VM is paused");
    }

    #[test]
    fn limits_and_slices_are_managed_where_something_shapes_them() {
        let text = "shape = \"burst\"\n[[vm]]\nname = \"still\"\nshape = \"none\"\n[[vm]]\nname = \"soon\"\nshape = \"slice\"\n";
        let policy: Policy = toml::from_str(text).unwrap();
        let manages = |name: &str| {
            let vm = VmState { name: name.into(), ..VmState::default() };
            [LeverKind::Quota, LeverKind::VcpuQuota, LeverKind::Slice].map(|lever| policy.manages(&vm, lever))
        };
        assert_eq!(manages("still"), [false; 3], "else they stay so while the VM is paused");
        assert_eq!((manages("soon"), manages("other")), ([false, false, true], [true, true, false]));
    }

    #[test]
    fn stars_stand_for_anything_at_any_place() {
        let (slow, long) = ("*a".repeat(40), "ab".repeat(60));
        for (pattern, name, yes) in [
            ("*", "", true),
            ("a*c", "abc", true),
            ("a*c", "ac", true),
            ("a*c", "abcd", false),
            ("a*b*", "aXbYb", true),
            ("a*b*c", "abc", true),
            ("a*b*c", "acb", false),
            ("a*ab", "ab", false),
            ("*ab*ab", "abab", true),
            ("*ab*ab", "aab", false),
            ("**ä*", "xäy", true),
            (slow.as_str(), long.as_str(), false),
        ] {
            assert_eq!(matches(pattern, name), yes, "{pattern} {name}");
        }
    }

    #[test]
    fn what_cannot_be_is_refused_by_its_key() {
        for (text, key) in [
            ("interval_ms = 0", "interval_ms"),
            ("interval_ms = 10001", "interval_ms"),
            ("deadband = 1.5", "deadband"),
            ("[[vm]]\nmin = 1", "vm[0].name"),
            ("[[vm]]\nname = \"a\"\nmin = 0", "vm[0].min"),
            ("[[vm]]\nname = \"a\"\nlatency_ms = 0", "vm[0].latency_ms"),
            ("[[vm]]\nname = \"a\"\nlatency_ms = 1001", "vm[0].latency_ms"),
            ("[[vm]]\nname = \"a\"\nmin = 3\nmax = 2", "vm[0].min"),
            ("[[vm]]\nname = \"a\"\nguaranteed = 0.0", "vm[0].guaranteed"),
            ("[[vm]]\nname = \"a\"\nguaranteed = 1.5", "vm[0].guaranteed"),
            ("[[vm]]\nname = \"a\"\nguaranteed = nan", "vm[0].guaranteed"),
        ] {
            assert_eq!(toml::from_str::<Policy>(text).unwrap().check().unwrap_err().key, key);
        }
        assert!(toml::from_str::<Policy>("sise = \"none\"").is_err());
    }
}

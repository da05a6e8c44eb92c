//! The rules: their names, and what is behind them.

use serde::{Deserialize, Serialize};

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    /// Worth knowing; may be meant so.
    Note,
    /// Costs time whenever the VM is busy.
    Warning,
    /// Does not work, or cannot be meant so.
    Error,
}

macro_rules! rules {
    ($($rule:ident, $id:literal, $title:literal, $explanation:literal;)*) => {
        /// What can be wrong.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(rename_all = "kebab-case")]
        pub enum Rule {
            $(#[doc = $title] $rule,)*
        }

        /// All rules, in the order of their list.
        pub const RULES: [Rule; [$(Rule::$rule),*].len()] = [$(Rule::$rule),*];

        impl Rule {
            /// Its name, as in `--explain NAME`.
            #[must_use]
            pub fn id(self) -> &'static str {
                match self { $(Rule::$rule => $id,)* }
            }

            /// In a few words.
            #[must_use]
            pub fn title(self) -> &'static str {
                match self { $(Rule::$rule => $title,)* }
            }

            /// What happens, why, when it is no matter, and where that is known from.
            #[must_use]
            pub fn explanation(self) -> &'static str {
                match self { $(Rule::$rule => $explanation,)* }
            }
        }
    };
}

// Each with its name, in a few words, and what is behind it.
rules! {
    AbsentPcpu, "absent-pcpu", "affinity names pCPUs that the host does not have",
        "A pin was written for another host, or for this one before hardware was taken out. libvirt then \
         cannot start the VM (the kernel refuses the cpuset); Xen leaves the missing pCPUs out, so that \
         the vCPUs have fewer pCPUs than written.";
    OfflinePcpu, "offline-pcpu", "affinity names pCPUs that are offline",
        "An offline pCPU runs nothing. What is pinned to it alone does not start, or is moved by the \
         kernel to pCPUs that nobody chose; what is pinned to a set has a smaller set, and the vCPUs \
         share what is left.";
    IsolatedPcpu, "isolated-pcpu", "a set of pCPUs among which the kernel does not balance",
        "The kernel's load balancer does not look at isolated pCPUs (isolcpus=, isolated cpuset \
         partitions). One vCPU on one isolated pCPU is what they are for. A vCPU that may use several \
         stays on the one where it woke first, so that several pile up on one while others idle \
         (kernel Documentation, kernel-parameters: isolcpus).";
    ReservedPcpu, "reserved-pcpu", "a VM may use pCPUs that are kept for the host",
        "pCPUs given with --reserved are for the host's own work: its storage and network threads, the \
         emulators. A VM that may use them delays those, and is delayed by them.";
    Stacked, "stacked", "several vCPUs of one VM on one pCPU",
        "Only one of the vCPUs runs at a time, though the guest believes that all do. When the one that \
         waits holds a lock or is awaited at a barrier, the others spin for nothing until it has had \
         its turn: parallel programs become slower than on one vCPU (Takayama and Kourai measured up to 426 times). Either each \
         vCPU gets a pCPU of its own, or the VM fewer vCPUs.";
    TooFewPcpus, "too-few-pcpus", "more vCPUs than pCPUs in their affinity",
        "At most as many vCPUs run as there are pCPUs; the others wait though the guest believes that \
         they run. Threads that hold locks are among those that wait (Takayama and Kourai: LU 253 times \
         slower with 16 vCPUs on 4 pCPUs). A guest with as many vCPUs as pCPUs does the same work \
         without that.";
    SiblingsForced, "siblings-forced", "vCPUs kept on siblings while whole cores are free",
        "SMT threads of a core, and the two cores of an Opteron module, share decoder, FPU and L2. Two \
         busy vCPUs on siblings wait for each other's units, while a free core would give each units of \
         its own. Kourai and Nakata measured 16 vCPUs with one per module 4.6 % faster than free \
         ones, and 72 % longer run times with 8 vCPUs kept on 4 modules. Not reported where the guest \
         is told of the siblings: its own scheduler then uses whole cores first.";
    ThreadsAsCores, "threads-as-cores", "siblings of one core dedicated to different VMs",
        "Each of the VMs has a pCPU for itself, but half a core: when both are busy, each is slower \
         than alone, and how much changes with what the other does. Clouds that sell \
         hyperthreads as cores show it: programs stop scaling at half the number of vCPUs (Kashyap, Min and Kim). Give \
         both siblings of a core to the same VM, and tell its guest.";
    GuestTopology, "guest-topology", "the guest is told of other siblings than it has",
        "A guest's scheduler uses whole cores before siblings, if it knows which vCPUs are siblings. \
         Where siblings are hidden, it puts two busy threads on one core while another idles. Where \
         they are invented (threads='2' without pins to siblings), it leaves vCPUs idle that could \
         run, and assumes shared caches that are not there. Say threads='2' exactly where vCPUs 2n and \
         2n+1 are pinned to the siblings of one core. (QEMU numbers vCPUs from the inside out.)";
    NodeConflict, "node-conflict", "vCPU affinity and node affinity disagree",
        "The affinity says which pCPUs a vCPU may use, node affinity (Xen's soft affinity, the nodes of \
         a VM's memory) which it prefers. If only part of the affinity is preferred, the scheduler \
         fills that part completely first: siblings compete there while other cores idle. Kourai and Nakata: \
         16 vCPUs pinned to the second socket, node affinity 0 and 2: with 8 busy threads all 4 modules \
         of node 2 competed and none of node 3 was used; run times were 72 % longer than on a physical \
         machine. Correct the node affinity together with the vCPU affinity.";
    FarMemory, "far-memory", "vCPUs run on other nodes than their memory is on",
        "Each access that misses the caches goes through the link between nodes, which is slower, and \
         shared by all. Pin vCPUs to the nodes of their memory, or give memory on the nodes of the \
         vCPUs. With guest NUMA nodes, the guest's own placement makes it worse, as it trusts in what \
         it was told.";
    DedicatedOverlap, "dedicated-overlap", "pCPUs dedicated to two VMs",
        "Both VMs were given pCPUs one to one, so nothing else was to run there. Where they overlap, \
         each is stopped whenever the other runs, for whole timeslices, and neither guest knows. A \
         mistake made easily when pins are copied from one definition to the next.";
    HelpersOnVcpus, "helpers-on-vcpus", "emulator or I/O threads share the vCPUs' pCPUs",
        "Emulator threads (devices, migration, VNC) and I/O threads that may run on the vCPUs' dedicated \
         pCPUs only stop a vCPU each time they work. Pin them to a pCPU beside them. Not reported \
         where their set has a pCPU that is not a vCPU's: the scheduler then finds it.";
    CapBelowVcpus, "cap-below-vcpus", "a cap below the number of vCPUs",
        "The vCPUs together may use less than one pCPU each, or less than what their own quotas allow. When all are \
         busy, the cap is used up early in each period and all stop until the next, lock holders among them (Takayama \
         and Kourai: UA 1126 times slower with 16 vCPUs at 100 %). With as many vCPUs as the cap is enough for, the VM \
         does the same work without stopping.";
    QuotaBelowPinned, "quota-below-pinned", "a quota below the pCPUs pinned for it",
        "pCPUs are set aside for the VM, but a quota stops it before it has used them: what is left of \
         them in each period goes to nobody. Drop the quota, or set fewer pCPUs aside.";
    PeriodExtreme, "period-extreme", "a very short or very long quota period",
        "A VM that used up its quota stands still until the period ends. With periods above 250 ms that \
         is longer than network peers and watchdogs are patient; below 10 ms, a vCPU is stopped and \
         started more often than it takes to warm its caches. The kernel's usual period is 100 ms \
         (Documentation/scheduler/sched-bwc). The bounds are ours.";
    LostTimeslices, "lost-timeslices", "a quota that is left over here and missing there",
        "What a vCPU, or a group, leaves of its quota in a period is lost to it, and so is what one vCPU leaves \
         and another would need (Shan, Jia and Ding). So a VM is stopped though it has not used what it may \
         use. Measured between two looks: unused quota, as far as a limit stopped somebody meanwhile. \
         A burst (cpu.max.burst) saves what is left for later periods, longer periods even it out, and quotas \
         in proportion to the load give it to the vCPUs that need it: the policies shape = \"burst\", \
         \"long-period\" and \"proportional\" of corefit manage. Below 5 % nothing is reported.";
    SliceExtreme, "slice-extreme", "slices of threads that differ, or are very long",
        "Linux' fair scheduler (EEVDF) leaves a thread alone until it has had its slice, and of those that are \
         owed time runs the one whose slice would be had first. Slices change no share, but who wakes up beside \
         slices of 10 ms and more waits that long, lock holders among them. vCPUs of one VM with different \
         slices begin at different times, and its threads wait for the latest. Slices of single threads (Linux \
         from 6.12 on, sched_setattr) and the scheduler's own (base_slice_ns) are seen on running hosts. The bounds are ours.";
    Starved, "starved", "a VM that waits for pCPUs that are its own",
        "Seen on running hosts: in half a second, a VM had less than half of what weights, quotas and affinities \
         give it while others want theirs, and its vCPUs waited. Linux 6.13 to 6.19 (and what took commit 6d71a9c61604 \
         back to older ones) do that: each time that the weight of a group changes on a pCPU where it runs, it is moved ahead \
         of the others, and the weight of a VM with several vCPUs changes at every tick as its helper threads come and \
         go. One of three VMs had a pCPU for 20 s while two waited; with helper threads that weigh next to \
         nothing each had its part to 0.01 (docs/model.md). The bounds are ours.";
    WeightNotHonoured, "weight-not-honoured", "a weight that affinities keep from working",
        "Weights divide pCPUs among those who may use them. Pinned to pCPUs that others fill as well, \
         a VM cannot get what its weight promises, while pCPUs that it may not use are shared by \
         those who weigh less. corefit computes both: what the VM gets when everybody is busy, and \
         what it would get without affinities (docs/model.md); more than a tenth less is reported.";
}

impl Rule {
    /// The rule of a name.
    #[must_use]
    pub fn named(id: &str) -> Option<Rule> {
        RULES.into_iter().find(|rule| rule.id() == id)
    }
}

impl std::fmt::Display for Rule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.id())
    }
}

impl std::fmt::Display for Severity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Severity::Note => "note",
            Severity::Warning => "warning",
            Severity::Error => "error",
        })
    }
}

#[cfg(test)]
mod tests {
    use serde::de::IntoDeserializer;

    use super::*;

    #[test]
    fn every_rule_is_listed_once_and_found_by_its_name() {
        for (number, rule) in RULES.into_iter().enumerate() {
            assert_eq!(rule as usize, number);
            assert_eq!(Rule::named(rule.id()), Some(rule));
            let read =
                Rule::deserialize(IntoDeserializer::<serde::de::value::Error>::into_deserializer(rule.id()));
            assert_eq!(read, Ok(rule), "one name everywhere");
            assert!(rule.explanation().len() > 100 && rule.title().len() < 70);
        }
        assert_eq!(Rule::named("nonsense"), None);
    }
}

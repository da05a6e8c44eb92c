//! What a policy says that comes to nothing, with what else it says: a key that is set and does nothing is a mistake more often than not.

use super::policy::matches;
use super::{Arbiter, Forecast, Placer, Policy, Rule, Shaper, Sizer, Weigher};
use crate::CpuSet;
use crate::machine::{LeverKind, Snapshot, VmState};

/// As many names are listed.
const NAMED: usize = 4;

/// Each such key, as a note; names that no VM has are of those that are here now. What owners ask for is none.
pub(super) fn notes(policy: &Policy, now: &Snapshot) -> Vec<String> {
    let here = &now.vms[..];
    let sizes = policy.rules().map(|rule| rule.size);
    let sizers = std::iter::once(Some(policy.size)).chain(sizes);
    let asks = policy.arbitrate != Arbiter::None;
    let forecasts = asks || sizers.flatten().any(|size| size == Sizer::Vscale);
    let forecast = "only where arbitrate is set, or size is \"vscale\"";
    let sized = |vm: &VmState| policy.sized_by(vm) == LeverKind::Affinity;
    let keys = [
        (policy.demand != Forecast::default() && !forecasts, "demand", forecast),
        (policy.smooth && !forecasts, "smooth", forecast),
        (policy.weigh == Weigher::Grants && !asks, "weigh", "only where arbitrate is set"),
        (
            !policy.reserved.is_empty() && policy.place == Placer::None && !here.iter().any(sized),
            "reserved",
            "only for VMs that are placed (place) and control groups that are sized",
        ),
    ];
    let keys =
        keys.into_iter().filter(|key| key.0).map(|(_, key, when)| format!("policy: {key} counts {when}"));
    let rules = policy.vm.iter().enumerate().flat_map(|(number, rule)| {
        let place = format!("policy: vm[{number}] {:?}", rule.name);
        let of_rule = of_rule(policy, rule).into_iter().map({
            let place = place.clone();
            move |(key, when)| format!("{place}: {key} counts {when}")
        });
        let absent = !here.iter().any(|vm| matches(&rule.name, &vm.name));
        let absent = absent.then(|| format!("{place}: no VM has such a name now{}", with_slash(rule, here)));
        let ranges = beyond(policy, rule, here).into_iter().chain(kept_wide(policy, rule, here));
        of_rule.chain(absent).chain(ranges.map(move |what| format!("{place}: {what}")))
    });
    keys.chain(left_on_reserved(policy, now)).chain(rules).collect()
}

/// Of control groups that nobody takes off reserved pCPUs, though something is made of `reserved`: those that are not sized and may use all
/// pCPUs, and without placement all that are not sized.
fn left_on_reserved(policy: &Policy, now: &Snapshot) -> Option<String> {
    let sized = |vm: &&VmState| policy.sized_by(vm) == LeverKind::Affinity;
    let places = policy.place != Placer::None;
    if !places && !now.vms.iter().any(|vm| sized(&vm)) {
        return None;
    }
    let (pcpus, offline) = now.pcpu_sets();
    let online = pcpus.difference(&offline);
    let reserved = policy.reserved.intersection(&online);
    let left = |vm: &&VmState| {
        let may =
            |set: &dyn Fn(&CpuSet) -> bool| vm.vcpus.iter().all(|v| v.affinity.as_ref().is_none_or(set));
        let left = if places { may(&|set| online.is_within(set)) } else { may(&|set| set.meets(&reserved)) };
        vm.is_running_vm()
            && vm.is_group()
            && left
            && !sized(vm)
            && vm.fixed(LeverKind::Affinity).is_none()
            && policy.of(&vm.name).exclude != Some(true)
    };
    let left: Vec<&str> = now.vms.iter().filter(left).map(|vm| vm.name.as_str()).collect();
    (!reserved.is_empty() && !left.is_empty()).then(|| {
        format!(
            "policy: reserved pCPUs {reserved} stay in the cpusets of {}: those of control groups that may use all pCPUs, or that nothing \
             places, are left as they are; a rule that names them with a size (size = \"vcpu-bal\") takes them off, or somebody who \
             writes {} into their cpuset.cpus",
            listed(&left),
            online.difference(&reserved)
        )
    })
}

/// The first names, and how many more there are.
fn listed(names: &[&str]) -> String {
    let first = names[..names.len().min(NAMED)].join(", ");
    if names.len() > NAMED { format!("{first} and {} more", names.len() - NAMED) } else { first }
}

/// Names of control groups are paths, which is easily forgotten.
fn with_slash(rule: &Rule, here: &[VmState]) -> &'static str {
    let path = format!("/{}", rule.name);
    let of_group = |vm: &VmState| vm.is_group() && matches(&path, &vm.name);
    if here.iter().any(of_group) {
        "; names of control groups begin with \"/\", as of one that is here"
    } else {
        ""
    }
}

/// Of a rule whose `min`, if no later rule says otherwise, is more than a VM of it has vCPUs.
fn beyond(policy: &Policy, rule: &Rule, here: &[VmState]) -> Option<String> {
    let min = rule.min?;
    let keeps = |vm: &&VmState| {
        let (all, vcpus) = (policy.of(&vm.name), vm.vcpus.len());
        vm.is_running_vm()
            && !vm.is_group()
            && vcpus > 0
            && matches(&rule.name, &vm.name)
            && all.min == Some(min)
            && all.max.is_none_or(|max| max as usize >= vcpus)
            && min as usize > vcpus
    };
    let vm = here.iter().find(keeps)?;
    Some(format!("min is {min}, and {} has {} vCPUs: it keeps them all", vm.name, vm.vcpus.len()))
}

/// Of a rule whose `max`, if no later rule says otherwise, is less than the pCPUs of a control group whose cpuset nobody sizes.
fn kept_wide(policy: &Policy, rule: &Rule, here: &[VmState]) -> Option<String> {
    let max = rule.max?;
    let keeps = |vm: &&VmState| {
        let all = policy.of(&vm.name);
        vm.is_running_vm()
            && vm.is_group()
            && matches(&rule.name, &vm.name)
            && all.max == Some(max)
            && all.exclude != Some(true)
            && policy.sized_by(vm) != LeverKind::Affinity
            && vm.fixed(LeverKind::Affinity).is_none()
            && (max as usize) < width(vm)
    };
    let mut keep = here.iter().filter(keeps);
    let (first, more) = (keep.next()?, keep.count());
    let more = if more == 0 { String::new() } else { format!(", as {more} more") };
    Some(format!(
        "max is {max}, and the cpuset of {} keeps its {} pCPUs{more}: one of a control group is sized only where a rule that names it \
         (not \"*\") says a size other than none, as size = \"vcpu-bal\"",
        first.name,
        width(first)
    ))
}

/// pCPUs of a control group's cpuset, of which its threads may use a part.
fn width(group: &VmState) -> usize {
    group.cpuset.as_ref().map_or(group.vcpus.len(), CpuSet::len)
}

fn of_rule(policy: &Policy, rule: &Rule) -> Vec<(&'static str, &'static str)> {
    let shapes = |shape: Shaper| matches!(shape, Shaper::LongPeriod | Shaper::Corefit | Shaper::Slice);
    let shapes = rule.shape.map_or(shapes(policy.shape), shapes);
    let keys = [
        (
            rule.priority.is_some() && policy.arbitrate != Arbiter::Priority,
            "priority",
            "only with arbitrate = \"priority\"",
        ),
        (
            rule.guaranteed.is_some() && !policy.weighs(),
            "guaranteed",
            "only with weigh = \"grants\" and arbitrate",
        ),
        (rule.class.is_some() && policy.place == Placer::None, "class", "only where VMs are placed (place)"),
        (
            rule.latency_ms.is_some() && !shapes,
            "latency_ms",
            "only with shape \"long-period\", \"corefit\" or \"slice\"",
        ),
    ];
    keys.into_iter().filter(|key| key.0).map(|(_, key, when)| (key, when)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CpuId;
    use crate::machine::{Counters, Pcpu, VcpuState};

    fn of(text: &str) -> String {
        let vcpus = vec![VcpuState { online: true, ..VcpuState::default() }; 8];
        let b = VmState { name: "b".into(), vcpus, ..VmState::default() };
        notes(&toml::from_str(text).unwrap(), &on_four(vec![b])).join("\n")
    }

    /// A host of four pCPUs.
    fn on_four(vms: Vec<VmState>) -> Snapshot {
        let pcpu = |id| Pcpu { id: CpuId(id), online: true, ..Pcpu::default() };
        Snapshot { pcpus: (0..4).map(pcpu).collect(), vms, ..Snapshot::default() }
    }

    fn group(name: &str, set: &str) -> VmState {
        let affinity: Option<CpuSet> = set.parse().ok();
        let pcpus = affinity.as_ref().map_or(0, CpuSet::len);
        let vcpu = VcpuState { online: true, affinity, ..VcpuState::default() };
        let whole = Some(Counters::default());
        VmState { name: name.into(), vcpus: vec![vcpu; pcpus], whole, ..VmState::default() }
    }

    #[test]
    fn groups_that_stay_on_reserved_pcpus_are_named_in_one_line_with_what_takes_them_off() {
        let groups = ["/a", "/b", "/c", "/d", "/e"].map(|name| group(name, "0-3"));
        let host = on_four([&groups[..], &[group("/narrow", "0-1")]].concat());
        let said = |text: &str| notes(&toml::from_str(&format!("size = \"none\"\n{text}")).unwrap(), &host);
        let [note] = &said("reserved = \"0\"\nplace = \"corefit\"\n")[..] else { panic!() };
        assert!(note.contains("pCPUs 0 stay in the cpusets of /a, /b, /c, /d and 1 more: "), "{note}");
        assert!(note.contains("size = \"vcpu-bal\"") && note.contains("writes 1-3 into"), "{note}");
        // Who is sized leaves them, and so does who is placed; who is left alone is nobody's business.
        let rule = |name: &str, what: &str| format!("[[vm]]\nname = \"{name}\"\n{what}\n");
        let sized = ["/a", "/b", "/c", "/d"].map(|name| rule(name, "size = \"vcpu-bal\"")).concat();
        let place = "reserved = \"0\"\nplace = \"corefit\"\n";
        assert_eq!(said(&format!("{place}{sized}{}", rule("/e", "exclude = true"))), Vec::<String>::new());
        // Nothing is placed: those that are not sized.
        let [note] = &said(&format!("reserved = \"0\"\n{sized}"))[..] else { panic!() };
        assert!(note.contains("stay in the cpusets of /e, /narrow: "), "{note}");
        assert_eq!(said("place = \"corefit\"\n"), Vec::<String>::new(), "nothing is reserved");
    }

    #[test]
    fn each_key_that_does_nothing_is_named_with_what_it_needs() {
        let text = "smooth = true\nweigh = \"grants\"\nreserved = \"0\"\n";
        let rule = "[[vm]]\nname = \"a*\"\npriority = 1\nguaranteed = 0.5\nlatency_ms = 5\n";
        let all = of(&format!("{text}{rule}"));
        for key in ["smooth", "weigh", "reserved", "\"a*\": priority", "guaranteed", "latency_ms"] {
            assert!(all.contains(&format!("{key} counts only")), "{key}: {all}");
        }
        assert!(all.contains("vm[0] \"a*\": no VM has such a name now"), "{all}");
    }

    #[test]
    fn a_minimum_beyond_what_a_vm_has_is_named_with_both() {
        let min = |min: u32| of(&format!("[[vm]]\nname = \"*\"\nmin = {min}\n"));
        assert_eq!(min(100), "policy: vm[0] \"*\": min is 100, and b has 8 vCPUs: it keeps them all");
        assert_eq!(min(8), "");
        let later = "[[vm]]\nname = \"*\"\nmin = 16\n[[vm]]\nname = \"b\"\nmin = 2\nmax = 3\n";
        assert_eq!(of(later), "", "another rule says what holds");
        // Of several it is the one that has fewer.
        let vcpus = |n| vec![VcpuState { online: true, ..VcpuState::default() }; n];
        let vm = |name: &str, n| VmState { name: name.into(), vcpus: vcpus(n), ..VmState::default() };
        let policy = toml::from_str("[[vm]]\nname = \"*\"\nmin = 4\n").unwrap();
        let said = notes(&policy, &on_four(vec![vm("large", 8), vm("small", 2)]));
        assert_eq!(said, ["policy: vm[0] \"*\": min is 4, and small has 2 vCPUs: it keeps them all"]);
    }

    #[test]
    fn a_maximum_that_narrows_no_cpuset_is_named_with_what_would() {
        let here = on_four(vec![group("/a", "0-1"), group("/b", "0-3")]);
        let said = |text: &str| notes(&toml::from_str(text).unwrap(), &here);
        let rule = |text: &str| said(&format!("size = \"none\"\n[[vm]]\nname = \"/b\"\n{text}\n"));
        for text in ["max = 3", "max = 3\nsize = \"none\""] {
            let [note] = &rule(text)[..] else { panic!("{:?}", rule(text)) };
            let head = "policy: vm[0] \"/b\": max is 3, and the cpuset of /b keeps its 4 pCPUs: ";
            assert!(note.starts_with(head) && note.ends_with("size = \"vcpu-bal\""), "{note}");
        }
        for text in [
            "max = 4",
            "max = 3\nsize = \"vcpu-bal\"",
            "max = 3\nexclude = true",
            "min = 2",
            "size = \"corefit\"",
        ] {
            assert_eq!(rule(text), Vec::<String>::new(), "{text}");
        }
        // One line for all of a rule; what one of all names says of size is not meant for groups.
        let all = said("[[vm]]\nname = \"*\"\nsize = \"corefit\"\nmax = 1\n");
        assert!(
            all.len() == 1 && all[0].contains("the cpuset of /a keeps its 2 pCPUs, as 1 more: "),
            "{all:?}"
        );
    }

    #[test]
    fn a_name_that_a_control_group_would_have_with_its_slash_is_told_so() {
        let here = on_four(vec![group("/opc/a,b", "0-3")]);
        let said = |name: &str| notes(&toml::from_str(&format!("[[vm]]\nname = {name:?}\n")).unwrap(), &here);
        let head = "policy: vm[0] \"opc/*\": no VM has such a name now";
        assert_eq!(
            said("opc/*"),
            [format!("{head}; names of control groups begin with \"/\", as of one that is here")]
        );
        assert_eq!(said("web"), ["policy: vm[0] \"web\": no VM has such a name now"]);
        assert_eq!(said("/opc/a,b"), Vec::<String>::new());
    }

    #[test]
    fn a_latency_counts_with_each_shape_that_goes_by_it() {
        for (shape, counts) in [
            ("long-period", true),
            ("corefit", true),
            ("slice", true),
            ("burst", false),
            ("proportional", false),
        ] {
            let said = of(&format!("shape = \"{shape}\"\n[[vm]]\nname = \"b\"\nlatency_ms = 50\n"));
            assert_eq!(said.is_empty(), counts, "{shape}: {said}");
        }
    }

    #[test]
    fn nothing_is_said_of_keys_that_count() {
        assert_eq!(of(""), "");
        assert_eq!(of("arbitrate = \"priority\"\nweigh = \"grants\"\ndemand = \"pid\"\n"), "");
        assert_eq!(of("size = \"vscale\"\nsmooth = true\nplace = \"corefit\"\nreserved = \"0\"\n"), "");
    }
}

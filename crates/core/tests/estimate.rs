//! From two snapshots to what each VM gets.

use std::time::Duration;

use corefit_core::machine::{
    Counters, Group, Helper, HostEstimate, Pcpu, Role, Snapshot, State, VcpuState, VmEstimate, VmId, VmState,
    estimate,
};
use corefit_core::{CpuId, CpuSet, Cpus, Quota, Time, Unread, Weight, What};

const SECOND: u64 = 1_000_000_000;

fn counters(run: f64, wait: Option<f64>) -> Counters {
    let ns = |s: f64| u64::try_from(Duration::from_secs_f64(s).as_nanos()).unwrap();
    Counters { run_ns: Some(ns(run)), wait_ns: wait.map(ns), runs: None }
}

/// A vCPU that may use both pCPUs, after having run and waited for so many seconds.
fn vcpu(run: f64, wait: f64) -> VcpuState {
    VcpuState {
        online: true,
        weight: Some(Weight(1024.0)),
        affinity: Some(CpuSet::first(2)),
        counters: counters(run, Some(wait)),
        ..VcpuState::default()
    }
}

fn vm(name: &str, vcpus: Vec<VcpuState>) -> VmState {
    VmState {
        id: VmId(name.into()),
        name: name.into(),
        weight: Some(Weight(1024.0)),
        vcpus,
        ..VmState::default()
    }
}

/// Two pCPUs, of which each was idle for a quarter of the time.
fn host(second: u64, vms: Vec<VmState>) -> Snapshot {
    let pcpu = |id| Pcpu {
        id: CpuId(id),
        online: true,
        node: None,
        package: None,
        siblings: None,
        idle_ns: Some(second * SECOND / 4),
        steal_ns: Some(0),
    };
    Snapshot { at: Time(second * SECOND), pcpus: vec![pcpu(0), pcpu(1)], vms, ..Snapshot::default() }
}

fn between(before: Vec<VmState>, after: Vec<VmState>) -> HostEstimate {
    estimate(&host(1, before), &host(2, after)).unwrap()
}

fn find<'a>(host: &'a HostEstimate, name: &str) -> &'a VmEstimate {
    host.vms.iter().find(|vm| vm.seen.name == name).unwrap()
}

fn near(found: Option<Cpus>, expected: f64) {
    let Cpus(cpus) = found.unwrap_or_else(|| panic!("{expected} expected, unknown"));
    assert!((cpus - expected).abs() < 1e-9, "{cpus}, not {expected}");
}

#[test]
fn counters_become_used_waiting_entitled_and_available() {
    let start =
        vec![vm("a", vec![vcpu(5.0, 1.0), vcpu(5.0, 1.0)]), vm("b", vec![vcpu(0.0, 0.0), vcpu(0.0, 0.0)])];
    let end =
        vec![vm("a", vec![vcpu(5.75, 1.25), vcpu(5.5, 1.0)]), vm("b", vec![vcpu(0.25, 0.0), vcpu(0.0, 0.0)])];
    let host = between(start, end);
    let a = find(&host, "a");
    near(a.activity.used, 1.25);
    near(a.activity.waiting, 0.25);
    near(a.vcpus[1].used, 0.5);
    near(a.entitled, 1.0);
    near(a.available, 1.75);
    near(find(&host, "b").available, 1.0);
    near(host.pcpus[0].busy, 0.75);
    assert_eq!(host.over, Duration::from_secs(1));
    assert!(a.binding.contains("shared with b"), "{}", a.binding);
}

#[test]
fn of_a_vm_that_appears_nothing_is_known_and_it_may_want_everything() {
    let host = between(
        vec![vm("a", vec![vcpu(1.0, 0.0)])],
        vec![vm("a", vec![vcpu(1.0, 0.0)]), vm("new", vec![vcpu(9.0, 0.0), vcpu(9.0, 0.0)])],
    );
    let new = find(&host, "new");
    assert_eq!((new.activity.used, new.activity.waiting), (None, None));
    near(new.entitled, 1.0);
    near(find(&host, "a").available, 1.0);
}

#[test]
fn what_began_after_the_earlier_snapshot_did_all_that_it_did_since() {
    let new = |began: u64| VmState { began: Some(Time(began * SECOND)), ..vm("new", vec![vcpu(0.5, 0.25)]) };
    let later = between(vec![], vec![new(1)]);
    near(find(&later, "new").activity.used, 0.5);
    near(find(&later, "new").activity.waiting, 0.25);
    let earlier = between(vec![], vec![new(0)]);
    assert_eq!(find(&earlier, "new").activity.used, None, "it was there before and was not seen");
    let seen = between(vec![vm("new", vec![vcpu(0.25, 0.0)])], vec![new(1)]);
    near(find(&seen, "new").activity.used, 0.25);
}

#[test]
fn a_vm_that_vanished_counts_no_more() {
    let start = vec![vm("a", vec![vcpu(0.0, 0.0)]), vm("b", vec![vcpu(0.0, 0.0), vcpu(0.0, 0.0)])];
    let host = between(start, vec![vm("a", vec![vcpu(0.5, 0.0)])]);
    assert_eq!(host.vms.len(), 1);
    near(find(&host, "a").entitled, 1.0);
    assert!(find(&host, "a").binding.contains("a whole pCPU"));
}

#[test]
fn a_vm_restarted_under_its_name_is_not_compared_with_the_one_before() {
    let again = VmState { id: VmId("second a".into()), ..vm("a", vec![vcpu(8.0, 0.0)]) };
    let host = between(vec![vm("a", vec![vcpu(2.0, 0.0)])], vec![again]);
    assert_eq!(find(&host, "a").activity.used, None);
}

#[test]
fn counters_that_began_anew_give_no_amount_rather_than_a_wrong_one() {
    let host = between(vec![vm("a", vec![vcpu(7.0, 3.0)])], vec![vm("a", vec![vcpu(0.5, 3.5)])]);
    let a = find(&host, "a");
    assert_eq!(a.activity.used, None);
    near(a.activity.waiting, 0.5);
}

#[test]
fn a_paused_vm_is_entitled_to_nothing_and_leaves_its_part_to_others() {
    let both = |a: f64, state| {
        vec![
            VmState { state, ..vm("a", vec![vcpu(a, 0.0), vcpu(a, 0.0)]) },
            vm("b", vec![vcpu(0.0, 0.0), vcpu(0.0, 0.0)]),
        ]
    };
    let host = between(both(1.0, State::Running), both(1.0, State::Paused));
    near(find(&host, "a").entitled, 0.0);
    assert_eq!(find(&host, "a").binding, "paused");
    near(find(&host, "b").entitled, 2.0);
}

#[test]
fn unmeasured_waiting_stays_unknown_and_demand_is_what_was_used() {
    let b = |run| vm("b", vec![VcpuState { counters: counters(run, None), ..vcpu(0.0, 0.0) }]);
    let a = || vm("a", vec![vcpu(0.0, 0.0), vcpu(0.0, 0.0)]);
    let host = between(vec![a(), b(0.0)], vec![a(), b(0.5)]);
    assert_eq!(find(&host, "b").activity.waiting, None);
    near(find(&host, "b").activity.used, 0.5);
    near(find(&host, "a").available, 1.5);
}

#[test]
fn what_is_no_vm_counts_with_what_it_wants_and_gets_no_entitlement() {
    let other = |run, wait| VmState {
        role: Role::Other,
        whole: Some(counters(run, Some(wait))),
        ..vm("other", vec![vcpu(0.0, 0.0), vcpu(0.0, 0.0)])
    };
    let a = || vm("a", vec![vcpu(0.0, 0.0), vcpu(0.0, 0.0)]);
    let host = between(vec![a(), other(0.0, 0.0)], vec![a(), other(0.25, 0.125)]);
    let found = find(&host, "other");
    assert_eq!((found.entitled, found.available), (None, None));
    near(found.activity.used, 0.25);
    near(find(&host, "a").entitled, 2.0 - 0.25 / 0.875);
    // One that wants more than its part is held by its weight all the same.
    let host = between(vec![a(), other(0.0, 0.0)], vec![a(), other(1.0, 1.0)]);
    near(find(&host, "a").entitled, 1.0);
}

#[test]
fn helpers_count_with_what_they_did_and_not_with_more() {
    let with = |run| VmState {
        helpers: vec![Helper {
            name: "emulator".into(),
            weight: Some(Weight(1024.0)),
            affinity: Some(CpuSet::first(2)),
            counters: counters(run, Some(0.0)),
            quota: None,
        }],
        ..vm("a", vec![vcpu(run, 0.0), vcpu(run, 0.0)])
    };
    let host = between(vec![with(0.0)], vec![with(0.25)]);
    let a = find(&host, "a");
    near(a.activity.used, 0.75);
    // The helper's 0.25 belong to the VM, and leave 1.75 to its vCPUs.
    near(a.entitled, 2.0);
    let [vcpus, helpers] = &a.reasons[..] else { panic!("{:?}", a.reasons) };
    assert!(vcpus.starts_with("1.75 of vCPUs 0-1"), "{vcpus}");
    assert_eq!(helpers, "0.25 of its helpers: all that they want");
    assert_eq!(a.binding, format!("{vcpus}; {helpers}"));
    near(a.helpers[0].used, 0.25);
}

#[test]
fn real_time_threads_run_before_all_weights_and_count_to_their_vm() {
    let thread = |run, wait| VmState {
        role: Role::Other,
        weight: Some(VmState::REALTIME),
        part_of: Some("a".into()),
        whole: Some(counters(run, Some(wait))),
        quota: Some(Quota {
            quota_us: Some(950_000),
            period_us: 1_000_000,
            burst_us: 0,
            source: "/x".into(),
        }),
        ..vm(
            "real-time thread 7 of a",
            vec![VcpuState { affinity: Some(CpuSet::first(1)), ..vcpu(0.0, 0.0) }],
        )
    };
    let two = |name| vm(name, vec![vcpu(0.0, 0.0), vcpu(0.0, 0.0)]);
    let whole = |name, run, wait| VmState { whole: Some(counters(run, Some(wait))), ..two(name) };
    // a's thread with priority takes pCPU 0 but for what the kernel keeps for others; a and b divide the rest.
    let host = between(
        vec![whole("a", 0.0, 0.0), two("b"), thread(0.0, 0.0)],
        vec![whole("a", 0.25, 0.5), two("b"), thread(0.9, 0.1)],
    );
    let (a, b) = (find(&host, "a"), find(&host, "b"));
    near(a.activity.used, 1.15);
    near(a.activity.waiting, 0.6);
    near(a.entitled, 0.95 + 0.525);
    near(b.entitled, 0.525);
    near(a.demand, 0.9 / 0.9 + 0.25 / 0.5);
    let [weighted, first] = &a.reasons[..] else { panic!("{:?}", a.reasons) };
    assert!(weighted.starts_with("0.53 of vCPUs 0-1"), "{weighted}");
    assert_eq!(first, "0.95 of its real-time threads: before all that have weights");
    assert_eq!(a.binding, format!("{weighted}; {first}"));
    // What it has available is what the others leave, its own threads with priority included.
    let idle =
        between(vec![two("a"), two("b"), thread(0.0, 0.0)], vec![two("a"), two("b"), thread(0.5, 0.0)]);
    near(find(&idle, "a").available, 0.5 + 1.5);
}

#[test]
fn where_siblings_cannot_be_seen_nothing_is_guessed() {
    for what in [What::Siblings, What::Ancestors] {
        let vms = |run| vec![vm("a", vec![vcpu(run, 0.0)])];
        let blind = Unread { what, path: "/x".into(), why: "hidden".into() };
        let after = Snapshot { unread: vec![blind], ..host(2, vms(0.5)) };
        let host = estimate(&host(1, vms(0.0)), &after).unwrap();
        let a = find(&host, "a");
        assert_eq!((a.entitled, a.available, host.division.is_none()), (None, None, true));
        near(a.activity.used, 0.5);
        assert_eq!(a.binding, "unknown: not all who compete can be seen");
    }
    let weight = Unread { what: What::Weight, path: "/x".into(), why: "hidden".into() };
    let after = Snapshot { unread: vec![weight], ..host(2, vec![vm("a", vec![vcpu(0.5, 0.0)])]) };
    assert!(estimate(&host(1, vec![]), &after).unwrap().vms[0].entitled.is_some());
}

#[test]
fn a_vm_counted_as_a_whole_spreads_its_demand_over_its_online_vcpus() {
    let with = |run, wait| VmState {
        whole: Some(counters(run, Some(wait))),
        ..vm("group", vec![vcpu(0.0, 0.0), vcpu(0.0, 0.0), VcpuState { online: false, ..vcpu(0.0, 0.0) }])
    };
    let a = || vm("a", vec![vcpu(0.0, 0.0), vcpu(0.0, 0.0)]);
    let host = between(vec![a(), with(0.0, 0.0)], vec![a(), with(0.5, 0.25)]);
    near(find(&host, "group").activity.waiting, 0.25);
    near(find(&host, "a").available, 2.0 - 0.5 / 0.75);
}

#[test]
fn slices_quotas_and_offline_pcpus_count() {
    let quota =
        Quota { quota_us: Some(50_000), period_us: 100_000, burst_us: 0, source: "/s/cpu.max".into() };
    let group = Group {
        name: "s".into(),
        parent: None,
        weight: Some(Weight(2048.0)),
        quota: Some(quota),
        unread: Vec::new(),
    };
    let vms = || {
        vec![
            VmState { parent: Some("s".into()), ..vm("a", vec![vcpu(0.0, 0.0)]) },
            vm("b", vec![vcpu(0.0, 0.0)]),
        ]
    };
    let snapshot = |second| Snapshot { groups: vec![group.clone()], ..host(second, vms()) };
    let mut after = snapshot(2);
    after.pcpus[1].online = false;
    let host = estimate(&snapshot(1), &after).unwrap();
    near(find(&host, "a").entitled, 0.5);
    near(find(&host, "b").entitled, 0.5);
    assert_eq!(find(&host, "a").binding, "0.50 of vCPU 0: the cap of slice s is used up");
    assert!(!host.pcpus[1].online);
}

#[test]
fn two_snapshots_of_one_instant_say_nothing_about_use() {
    let one = host(1, vec![vm("a", vec![vcpu(1.0, 1.0)])]);
    let host = estimate(&one, &one).unwrap();
    assert_eq!(host.vms[0].activity.used, None);
    assert_eq!(host.pcpus[0].busy, None);
    near(host.vms[0].entitled, 1.0);
}

#[test]
fn a_number_that_no_host_has_is_an_error_with_its_place() {
    let bad = VmState { weight: Some(Weight(0.0)), ..vm("a", vec![]) };
    let error = estimate(&host(1, vec![]), &host(2, vec![bad])).unwrap_err().to_string();
    assert!(error.starts_with("vm a: weight is 0; give"), "{error}");
}

/// A thread that ran r and waited w of the time would have run r / (1 - w) of it.
#[test]
fn one_thread_that_waits_demands_what_it_would_have_used_and_a_busy_one_everything() {
    let a = || vm("a", vec![vcpu(0.0, 0.0); 2]);
    for (run, wait, demand) in [
        (0.25, 0.75, 1.0),
        (0.2, 0.6, 0.5),
        (0.5, 0.0, 0.5),
        (0.0, 0.5, 0.0),
        (0.4, 0.7, 1.0),
        (0.0, 1.0, 1.0),
    ] {
        let b = |run, wait| vm("b", vec![vcpu(run, wait)]);
        let host = between(vec![a(), b(0.0, 0.0)], vec![a(), b(run, wait)]);
        let found = find(&host, "b").demand.unwrap().0;
        assert!((found.min(1.0) - demand).abs() < 1e-9, "{run} {wait}: {found}, not {demand}");
        near(find(&host, "a").available, 2.0 - demand);
    }
}

/// VMs a and b on pCPUs 0-1, c on pCPU 1 or elsewhere, with the settings of c unread.
fn with_unread(c_on: &str, unread: &[What]) -> HostEstimate {
    let on = |vm: VmState, set: &str| {
        let vcpus = vm.vcpus.iter().map(|v| VcpuState { affinity: Some(set.parse().unwrap()), ..v.clone() });
        VmState { vcpus: vcpus.collect(), ..vm }
    };
    let idle = |name: &str, set: &str| on(vm(name, vec![vcpu(0.0, 0.0)]), set);
    let c = VmState { weight: None, unread: unread.to_vec(), ..idle("c", c_on) };
    let vms = || vec![idle("a", "0"), idle("b", "0"), c.clone()];
    let lacks = |what| Unread { what, path: "/c/cpu.shares".into(), why: "permission denied".into() };
    let after = Snapshot { unread: unread.iter().map(|what| lacks(*what)).collect(), ..host(2, vms()) };
    estimate(&host(1, vms()), &after).unwrap()
}

#[test]
fn what_depends_on_an_unread_weight_is_unknown_and_says_whose_it_is() {
    let host = with_unread("0-1", &[What::Weight]);
    for name in ["a", "b", "c"] {
        let vm = find(&host, name);
        assert_eq!((vm.entitled, vm.available), (None, None), "{name}");
        assert_eq!(vm.binding, "unknown: a weight of c could not be read", "{name}");
    }
    // Nothing of c reaches a and b; and alone it has its pCPU with any weight.
    let host = with_unread("1", &[What::Weight]);
    near(find(&host, "a").entitled, 0.5);
    near(find(&host, "c").entitled, 1.0);
    // What is merely not said is as usual.
    near(find(&with_unread("0", &[]), "a").entitled, 1.0 / 3.0);
}

#[test]
fn without_its_quota_not_even_a_vm_that_is_alone_has_an_entitlement() {
    let host = with_unread("1", &[What::Quota]);
    assert_eq!(find(&host, "c").binding, "unknown: a quota of c could not be read");
    near(find(&host, "a").entitled, 0.5);
}

#[test]
fn an_unread_setting_that_may_be_anybodys_is_everybodys() {
    let vms = || vec![vm("a", vec![vcpu(0.0, 0.0)]), vm("b", vec![vcpu(0.0, 0.0); 2])];
    let of = |what| {
        let unread = vec![Unread { what, path: "/x".into(), why: "hidden".into() }];
        estimate(&host(1, vms()), &Snapshot { unread, ..host(2, vms()) }).unwrap()
    };
    for what in [What::Weight, What::Quota] {
        assert_eq!(find(&of(what), "a").entitled, None, "{what:?}");
    }
}

/// Live migration as a host sees it: the one that leaves stops for the hand-over and is gone; the one that arrives is
/// there and stopped while its memory comes, under a number of its own, and then runs.
#[test]
fn a_vm_that_migrates_leaves_its_part_and_is_measured_from_when_it_arrived() {
    let b = |run| vm("b", vec![vcpu(run, 0.0), vcpu(run, 0.0)]);
    let a = |id: &str, state, run| VmState {
        id: VmId(id.into()),
        state,
        ..vm("a", vec![vcpu(run, 0.0), vcpu(run, 0.0)])
    };
    let looks = [
        vec![a("uuid#3", State::Running, 5.0), b(0.0)],
        vec![a("uuid#3", State::Paused, 5.25), b(0.0)],
        vec![b(0.0)],
        vec![a("uuid#9", State::Paused, 0.0), b(0.0)],
        vec![a("uuid#9", State::Running, 0.5), b(0.0)],
    ];
    let seen: Vec<HostEstimate> =
        looks.windows(2).map(|two| between(two[0].clone(), two[1].clone())).collect();
    let binding = |look: usize| find(&seen[look], "a").binding.as_str();
    assert_eq!((binding(0), binding(2)), ("paused", "paused"));
    near(find(&seen[0], "a").activity.used, 0.5);
    for look in [0, 1, 2] {
        near(find(&seen[look], "b").entitled, 2.0);
    }
    assert_eq!(find(&seen[2], "a").activity.used, None, "what it did elsewhere is not known here");
    near(find(&seen[3], "a").activity.used, 1.0);
    near(find(&seen[3], "a").entitled, 1.0);
}

/// A guest may say what it likes; what the threads of its vCPUs did is the host's.
#[test]
fn vcpus_that_run_though_their_guest_says_that_they_are_offline_count() {
    let offline = |run| VcpuState { online: false, ..vcpu(run, 0.0) };
    let seen = |run: f64| vec![vm("a", vec![vcpu(run, 0.0), offline(run)]), vm("b", vec![vcpu(0.0, 0.0)])];
    let lied = between(seen(1.0), seen(1.9));
    near(find(&lied, "a").activity.used, 1.8);
    near(find(&lied, "a").demand, 1.8);
    near(find(&lied, "a").entitled, 1.0);
    near(find(&lied, "b").available, 1.0);
    assert_eq!(
        lied.notes,
        ["a: its guest says that vCPUs 1 are offline, but they run: they count as online"]
    );
    // What one did before it went offline is none of that.
    let before = vec![vm("a", vec![vcpu(1.0, 0.0), vcpu(1.0, 0.0)]), vm("b", vec![vcpu(0.0, 0.0)])];
    let went = between(before, seen(1.9));
    near(find(&went, "a").activity.used, 0.9);
    assert_eq!(went.notes, [""; 0]);
}

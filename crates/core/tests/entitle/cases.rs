//! Cases with known answers: measured on Linux, or worked out by hand.

use corefit_core::entitle::{Cause, Host, Slice, Vcpu, Vm, Wants, WeightRule, available_to_all};
use corefit_core::{CpuSet, Cpus, Weight};

use crate::parts::{limited, on, vm};
use crate::{divide, gets, host};

/// Four cases that `crates/linux/tests/kernel_shares.rs` measures again.
#[test]
fn divides_as_linux_was_measured_to() {
    let pinned = host("0-1", vec![vm("a", vec![on("0"), on("1")]), vm("b", vec![on("0")])]);
    let division = divide(&pinned, Wants::Everything);
    gets(&division, 0, &[1.0 / 3.0, 1.0]);
    gets(&division, 1, &[2.0 / 3.0]);

    let quota = host("0-1", vec![vm("a", vec![on("0"), limited(0.1, on("1"))]), vm("b", vec![on("0")])]);
    gets(&divide(&quota, Wants::Everything), 0, &[0.45, 0.1]);

    let against = |name: &str, pcpu| vm(name, vec![on(pcpu)]);
    let vms = vec![
        vm("a", vec![on("0"), on("1")]),
        against("b", "0"),
        against("c", "0"),
        against("d", "0"),
        against("e", "1"),
    ];
    gets(&divide(&host("0-1", vms), Wants::Everything), 0, &[1.0 / 7.0, 1.0 / 3.0]);

    let slice =
        |name: &str, vms| Slice { name: name.into(), weight: Weight(1024.0), cap: None, slices: vec![], vms };
    let two = || vec![Vcpu::default(), Vcpu::default()];
    let a = Vm { cap: Some(Cpus(0.25)), ..vm("a", two()) };
    let slices = vec![slice("s1", vec![a, vm("b", two())]), slice("s2", vec![vm("c", two())])];
    let nested = Host { slices, ..host("0-1", vec![]) };
    let division = divide(&nested, Wants::Everything);
    gets(&division, 0, &[0.125, 0.125]);
    assert!((division.cpus(1).0 - 0.75).abs() < 1e-9 && (division.cpus(2).0 - 1.0).abs() < 1e-9);
}

#[test]
fn the_reason_is_the_first_of_limit_cap_and_full_pcpus() {
    let a = Vm {
        cap: Some(Cpus(1.2)),
        ..vm("a", vec![limited(0.2, on("0")), on("1"), on("1"), Vcpu { online: false, ..on("1") }])
    };
    let division =
        divide(&host("0-2", vec![a, vm("b", vec![on("1")]), vm("c", vec![on("2")])]), Wants::Everything);
    let causes: Vec<&Cause> = division.vcpus(0).iter().map(|share| &share.cause).collect();
    assert_eq!(causes, [&Cause::Quota, &Cause::Crowded, &Cause::Crowded, &Cause::Offline]);
    assert_eq!(
        division.words(0),
        "0.20 of vCPU 0: all of the quota; 0.40 of vCPUs 1-2: pCPU 1 is full, shared with b; \
         0.00 of vCPU 3: offline"
    );
    assert_eq!(division.words(2), "1.00 of vCPU 0: a whole pCPU");

    let capped = Vm { cap: Some(Cpus(0.5)), ..vm("a", vec![on("0"), on("0")]) };
    let division = divide(&host("0", vec![capped, vm("b", vec![on("0")])]), Wants::Everything);
    assert_eq!(division.words(0), "0.50 of vCPUs 0-1: the VM's cap is used up");
    gets(&division, 1, &[0.5]);
}

#[test]
fn a_cap_of_a_slice_bounds_the_sum_below_it_and_the_rest_goes_to_the_siblings() {
    let four = |name: &str, weight| Vm { weight: Weight(weight), ..vm(name, vec![Vcpu::default(); 4]) };
    let slice = Slice {
        name: "s".into(),
        weight: Weight(1024.0),
        cap: Some(Cpus(1.0)),
        slices: vec![],
        vms: vec![four("a", 1.0), four("b", 3.0)],
    };
    let host = Host { slices: vec![slice], ..host("0-3", vec![four("c", 1024.0)]) };
    let division = divide(&host, Wants::Everything);
    let got = [0, 1, 2].map(|vm| division.cpus(vm).0);
    assert!(got.iter().zip([0.25, 0.75, 3.0]).all(|(a, b)| (a - b).abs() < 1e-9), "{got:?}");
    assert_eq!(division.words(0), "0.25 of vCPUs 0-3: the cap of slice s is used up");
}

#[test]
fn the_smallest_full_set_names_the_pcpus_and_all_who_could_make_room() {
    // x could move from pCPU 1 to pCPU 2, which is full of y: both hold a. z is elsewhere.
    let vms = vec![
        vm("a", vec![on("0-1"), on("0-1")]),
        vm("x", vec![on("1-2")]),
        vm("y", vec![on("2"), on("2")]),
        vm("z", vec![on("3"), on("3")]),
    ];
    let division = divide(&host("0-3", vms), Wants::Everything);
    let full = division.crowd(0, 0);
    assert_eq!(full.pcpus.to_string(), "0-2");
    assert_eq!(full.vms.iter().map(|(vm, _)| *vm).collect::<Vec<_>>(), [0, 1, 2]);
    assert_eq!(division.bindings(0).len(), 1);
    // y wants most.
    assert!(division.words(0).ends_with("pCPUs 0-2 are full, shared with y and x"), "{}", division.words(0));
    assert_eq!(division.crowd(3, 0).pcpus.to_string(), "3");
}

#[test]
fn one_more_online_vcpu_can_lower_what_a_vm_is_entitled_to() {
    // On its own pCPU vCPU 1 takes half of the weight and cannot use it.
    let with = |online| {
        let second = Vcpu { online, quota: Some(Cpus(0.2)), ..on("1") };
        let b = vm("b", vec![on("0-1"), on("0-1")]);
        divide(&host("0-1", vec![vm("a", vec![on("0"), second]), b]), Wants::Everything).cpus(0).0
    };
    assert!((with(false) - 1.0).abs() < 1e-9);
    assert!(with(true) <= 1.0 + 1e-9, "{}", with(true));
    let lone = |online| {
        let vms = vec![vm("a", vec![on("0"), Vcpu { online, ..on("1") }])];
        let rivals = ["b", "c", "d"].map(|name| vm(name, vec![on("0")]));
        let crowd = ["e", "f", "g", "h", "i", "j", "k", "l", "m"].map(|name| vm(name, vec![on("1")]));
        divide(&host("0-1", [vms, rivals.into(), crowd.into()].concat()), Wants::Everything).cpus(0).0
    };
    assert!(lone(true) < lone(false), "{} {}", lone(true), lone(false));
}

#[test]
fn offline_and_reserved_pcpus_are_for_nobody() {
    let mut host = host("0-3", vec![vm("a", vec![Vcpu::default(); 4]), vm("b", vec![on("3")])]);
    host.offline = "3".parse().unwrap();
    host.reserved = "0".parse().unwrap();
    let division = divide(&host, Wants::Everything);
    assert!((division.cpus(0).0 - 2.0).abs() < 1e-9);
    assert_eq!(division.words(1), "0.00 of vCPU 0: none of its pCPUs is online and not reserved");
    host.reserved = CpuSet::first(4);
    let division = divide(&host, Wants::Everything);
    assert_eq!(division.cpus(0), Cpus(0.0));
}

#[test]
fn a_demand_that_is_a_sum_of_nothing_is_none() {
    let demand = |demand| Vcpu { demand: Some(Cpus(demand)), ..on("0") };
    let nothing = std::iter::empty::<f64>().sum::<f64>();
    assert!(nothing.is_sign_negative());
    let host = host("0", vec![vm("a", vec![demand(0.5), demand(nothing)])]);
    gets(&divide(&host, Wants::Measured), 0, &[0.5, 0.0]);
}

#[test]
fn xen_weighs_a_vm_by_its_active_vcpus() {
    let demand = |demand| Vcpu { demand: Some(Cpus(demand)), ..on("0") };
    let vms = vec![vm("a", vec![demand(1.0), demand(0.0), demand(1.0)]), vm("b", vec![demand(1.0)])];
    let mut host = Host { rule: WeightRule::XenCredit, ..host("0", vms) };
    gets(&divide(&host, Wants::Everything), 0, &[0.25; 3]);
    gets(&divide(&host, Wants::Measured), 0, &[1.0 / 3.0, 0.0, 1.0 / 3.0]);
    let available: Vec<f64> = available_to_all(&host).unwrap().iter().map(|c| c.0).collect();
    assert!((available[0] - 0.75).abs() < 1e-9 && (available[1] - 1.0 / 3.0).abs() < 1e-9, "{available:?}");
    host.vms[1].weight = Weight(3072.0);
    gets(&divide(&host, Wants::Everything), 1, &[0.5]);
    host.rule = WeightRule::EqualPerVcpu;
    gets(&divide(&host, Wants::Everything), 1, &[0.25]);
    host.rule = WeightRule::Linux;
    gets(&divide(&host, Wants::Everything), 1, &[0.75]);
}

#[test]
fn what_idle_vms_leave_is_available() {
    let wants =
        |name: &str, demand| vm(name, vec![Vcpu { demand: Some(Cpus(demand)), ..Vcpu::default() }; 2]);
    let host = host("0-3", vec![wants("busy", 1.0), wants("idle", 0.05), wants("half", 0.5)]);
    let division = divide(&host, Wants::Everywhere(1));
    assert!((division.cpus(1).0 - 1.5).abs() < 1e-9, "{}", division.words(1));
    assert!((divide(&host, Wants::Everything).cpus(1).0 - 4.0 / 3.0).abs() < 1e-9);
}

#[test]
fn empty_hosts_and_vms_are_divided_too() {
    let division =
        divide(&host("", vec![vm("a", vec![Vcpu::default()]), vm("b", vec![])]), Wants::Everything);
    assert_eq!((division.cpus(0), division.cpus(1)), (Cpus(0.0), Cpus(0.0)));
    assert_eq!(division.words(1), "it has no vCPUs");
    let none = host("0-3", vec![vm("a", vec![])]);
    let amounts = [
        divide(&none, Wants::Everything).cpus(0),
        available_to_all(&none).unwrap()[0],
        divide(&none, Wants::Everywhere(0)).cpus(0),
    ];
    assert_eq!(amounts.map(|cpus| format!("{:.2}", cpus.0)), ["0.00"; 3]);
    assert_eq!(divide(&host("0-3", vec![]), Wants::Measured).vms(), 0);
    assert!(available_to_all(&host("0-3", vec![])).unwrap().is_empty());
}

#[test]
fn a_certificate_that_was_tampered_with_is_refused() {
    let vms =
        vec![vm("a", vec![on("0"), on("1")]), Vm { cap: Some(Cpus(0.5)), ..vm("b", vec![on("0-1"); 2]) }];
    let host = host("0-1", vms);
    let good = divide(&host, Wants::Everything).certificate();
    let refused = |tamper: &dyn Fn(&mut corefit_core::entitle::Certificate)| {
        let mut bad = good.clone();
        tamper(&mut bad);
        assert!(bad.check(&host, Wants::Everything).is_err(), "{bad:?}");
    };
    refused(&|c| c.shares[0].cpus.0 += 1e-6);
    refused(&|c| _ = c.shares.pop());
    refused(&|c| c.usage[0].cpus.0 -= 1e-6);
    refused(&|c| c.usage[0].pcpus = "5".parse().unwrap());
    refused(&|c| c.full.clear());
    refused(&|c| c.full[0].time *= 1.01);
    refused(&|c| c.full[0].stopped.clear());
    refused(&|c| c.capped[0].1 *= 1.01);
    refused(&|c| c.capped.clear());
    refused(&|c| c.shares[2].cause = Cause::Crowded);
}

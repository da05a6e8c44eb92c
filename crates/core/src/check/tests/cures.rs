//! What is proposed: it is possible here, and hurts nobody else.

use super::*;

/// A cure that is followed has to change something, and not to come back.
#[test]
fn stacked_vcpus_without_a_free_pcpu_are_fewer_and_apart() {
    let (name, _, cure) = only(&host("2 cores", vec![vm("a", &["0", "0", "1"])]));
    assert_eq!(name, "stacked a 11");
    assert_eq!(cure, "virsh setvcpus a 2 --config; virsh vcpupin a 1 1 --config");
    assert!(names(&host("2 cores", vec![vm("a", &["0", "1"])])).is_empty());
    // All have one set: fewer is enough.
    let (_, _, cure) = only(&host("2 cores", vec![vm("a", &["0-1", "0-1", "0-1"])]));
    assert_eq!(cure, "virsh setvcpus a 2 --config");
    let (_, _, cure) = only(&host("4 cores; offline 0-3", vec![vm("a", &["0"])]));
    assert_eq!(cure, "there are no pCPUs for it: move a VM to another host");
}

#[test]
fn siblings_that_the_guest_should_know_are_put_in_its_order() {
    let others = vm("b", &["4-15"; 6]);
    let case = |shape: &str, pins: &[&str], others: Vm| {
        let mut hidden = vm("a", pins);
        hidden.guest = guest(1, u32::try_from(pins.len()).unwrap(), 1);
        only(&host(shape, vec![hidden, others])).2
    };
    assert_eq!(
        case(SMT, &["0", "1", "2", "3"], others.clone()),
        "<cpu><topology sockets='1' cores='2' threads='2'/></cpu>"
    );
    assert_eq!(
        case(SMT, &["0", "2", "1", "3"], others.clone()),
        "<cpu><topology sockets='1' cores='2' threads='2'/></cpu>, and siblings in the guest's order: \
         for p in 1:1 2:2; do virsh vcpupin a ${p%:*} ${p#*:} --config; done"
    );
    let four = "1 socket x 2 cores x 4 threads";
    let pins: Vec<String> = (0..8).map(|cpu| cpu.to_string()).collect();
    let pins: Vec<&str> = pins.iter().map(String::as_str).collect();
    assert_eq!(case(four, &pins, vm("b", &[])), "<cpu><topology sockets='1' cores='2' threads='4'/></cpu>");
    assert!(
        case(SMT, &["0", "1", "2"], vm("b", &["3-15"; 6]))
            .starts_with("pin it to the same number of siblings")
    );
}

#[test]
fn siblings_are_told_to_a_guest_with_nodes_only_if_these_stay_true() {
    let cell = |id, vcpus: &str, memory: &str| Cell {
        id,
        vcpus: set(vcpus),
        memory: Some(placed(set(memory), 8)),
        ..Cell::default()
    };
    let case = |pins: &[&str], cells: [Cell; 2], others: &str| {
        let mut hidden = vm("a", pins);
        hidden.guest = guest(1, u32::try_from(pins.len()).unwrap(), 1);
        hidden.cells = cells.to_vec();
        only(&host(SMT, vec![hidden, vm("b", &[others; 6])])).2
    };
    let crossed = ["8", "10", "9", "11", "0", "2", "1", "3"];
    assert_eq!(
        case(&crossed, [cell(0, "0-3", "1"), cell(1, "4-7", "0")], "4-7,12-15"),
        "<cpu><topology sockets='1' cores='4' threads='2'/></cpu>, and siblings in the guest's order: \
         for p in 1:9 2:10 5:1 6:2; do virsh vcpupin a ${p%:*} ${p#*:} --config; done"
    );
    let alternating = case(&["0", "8", "1", "9"], [cell(0, "0,2", "0"), cell(1, "1,3", "1")], "2-7,10-15");
    assert!(alternating.starts_with("give each node of the guest vCPUs that follow"), "{alternating}");
}

#[test]
fn fewer_vcpus_may_use_what_all_might_before() {
    let case = |shape: &str, pins: &[&str], cap: Option<u64>| {
        let mut limited = vm("a", pins);
        limited.vcpu_quota = Some(quota(40_000, 100_000));
        limited.cap = cap.map(|us| quota(us, 100_000));
        only(&host(shape, vec![limited])).2
    };
    let fewer = |vcpus: usize, us: u64| {
        format!(
            "virsh setvcpus a {vcpus} --config; virsh schedinfo a --config vcpu_period=100000 vcpu_quota={us}"
        )
    };
    assert_eq!(case("4 cores", &[""; 8], None), fewer(4, 80_000));
    assert_eq!(case("4 cores", &["0-3"; 8], None), fewer(4, 80_000));
    assert_eq!(case("2 cores", &[""; 8], None), fewer(2, 100_000));
    // Of a cap that ends them together no more than it is.
    assert_eq!(case(SMT, &[""; 4], Some(120_000)), "virsh setvcpus a 3 --config");
    assert_eq!(case(SMT, &[""; 4], Some(130_000)), fewer(3, 43_333));
    assert_eq!(case(SMT, &["0-7"; 4], Some(130_000)), fewer(3, 43_333));
}

#[test]
fn a_period_is_cured_by_a_quota_that_the_kernel_takes() {
    let mut slow = vm("a", &["", ""]);
    slow.vcpu_quota = Some(quota(4_000, 900_000));
    let (name, _, cure) = only(&host(SMT, vec![slow.clone()]));
    assert_eq!(name, "period-extreme a 5");
    assert_eq!(cure, "virsh schedinfo a --config vcpu_period=250000 vcpu_quota=1111");
    // The same part of a shorter period would be less than that.
    slow.vcpu_quota = Some(quota(3_000, 900_000));
    let (name, _, cure) = only(&host(SMT, vec![slow.clone()]));
    assert_eq!(name, "period-extreme a 5");
    assert!(cure.starts_with("raise its quota first"), "{cure}");
    slow.vcpu_quota = Some(quota(1_000, 250_000));
    assert!(names(&host(SMT, vec![slow])).is_empty());
}

#[test]
fn a_quota_wastes_no_pcpus_that_others_may_use() {
    let mut pinned = vm("a", &["0", "1"]);
    pinned.vcpu_quota = Some(quota(20_000, 100_000));
    assert_eq!(names(&host("2 cores", vec![pinned.clone()])), ["quota-below-pinned a 5"]);
    assert_eq!(names(&host("2 cores", vec![pinned, vm("b", &["", ""])])), Vec::<String>::new());
}

#[test]
fn pools_and_helpers_of_others_on_dedicated_pcpus() {
    let dedicated = vm("a", &["0", "2"]);
    let (name, text, cure) = only(&host(SMT, vec![dedicated.clone(), vm("b", &["0-7", "0-7"])]));
    assert_eq!(name, "dedicated-overlap b 10");
    assert!(text.starts_with("its vCPUs may run on pCPUs 0,2, dedicated to a (vm.xml:10)"), "{text}");
    assert_eq!(cure, "for v in 0 1; do virsh vcpupin b $v 1,3-7 --config; done");
    assert!(names(&host(SMT, vec![dedicated.clone(), vm("b", &["1,3-7", "1,3-7"])])).is_empty());
    // Without a set it is meant to run anywhere.
    assert!(names(&host(SMT, vec![dedicated.clone(), vm("b", &["", ""])])).is_empty());
    let mut beside = vm("b", &["", ""]);
    beside.helpers = vec![Helper { kind: HelperKind::Emulator, affinity: placed(set("0"), 9) }];
    let (name, text, cure) = only(&host(SMT, vec![dedicated, beside]));
    assert_eq!(name, "helpers-on-vcpus b 9");
    assert!(text.contains("pCPU 0, dedicated to a"), "{text}");
    assert_eq!(cure, "virsh emulatorpin b 1,3-15 --config");
}

#[test]
fn a_vm_without_affinity_may_run_on_pcpus_of_the_host() {
    let mut subject = host(SMT, vec![vm("a", &["", ""])]);
    subject.reserved = Some(placed(set("0-1"), 1));
    let (name, text, cure) = only(&subject);
    assert_eq!(name, "reserved-pcpu a 1");
    assert!(text.starts_with("vCPUs 0-1 may run on any pCPU, and so on pCPUs 0-1"), "{text}");
    assert_eq!(cure, "for v in 0 1; do virsh vcpupin a $v 2-15 --config; done");
    subject.vms = vec![vm("a", &["2-15", "2-15"])];
    assert!(names(&subject).is_empty());
}

#[test]
fn what_is_seen_running_is_cured_running() {
    let mut xen = vm("Domain-0", &["0", "0"]);
    (xen.manager, xen.running) = (Manager::Xen, true);
    assert_eq!(only(&host(SMT, vec![xen])).2, "xl vcpu-pin Domain-0 1 2");
    let mut remote = vm("a", &["0", "0"]);
    (remote.connect, remote.running) = (Some("qemu+ssh://h/system".into()), true);
    assert_eq!(only(&host(SMT, vec![remote])).2, "virsh -c qemu+ssh://h/system vcpupin a 1 2 --live");
}

#[test]
fn a_weight_is_not_cured_by_pcpus_far_from_the_memory_or_isolated() {
    let pool = |name: &str, list: &str, weight| {
        let mut vm = vm(name, &[list; 4]);
        vm.weight = Some(placed(Weight(weight), 3));
        vm
    };
    let mut near = pool("a", "0-3", 3072.0);
    near.memory = nodes("0");
    let vms = vec![near, pool("b", "4-7", 1024.0), pool("c", "0-3", 3072.0)];
    let shape = "2 sockets x 6 cores; isolated 5";
    let all = found(&host(shape, vms));
    let of = |vm: &str| all.iter().find(|(name, ..)| name.starts_with(&format!("weight-not-honoured {vm}")));
    assert_eq!(of("a").unwrap().2, "for v in $(seq 0 3); do virsh vcpupin a $v 0-4 --config; done");
    assert_eq!(of("c").unwrap().2, "for v in $(seq 0 3); do virsh vcpupin c $v 0-4,6-11 --config; done");
}

#[test]
fn hundreds_of_pins_with_the_same_trouble_are_one_finding() {
    let pins: Vec<String> = (1000..1200).map(|cpu| cpu.to_string()).collect();
    let pins: Vec<&str> = pins.iter().map(String::as_str).collect();
    let found = found(&host("4 sockets x 64 cores", vec![vm("a", &pins)]));
    assert_eq!(found.len(), 1, "{found:#?}");
    assert!(found[0].1.starts_with("vCPUs 0-199: pCPUs 1000-1199 do not exist here"), "{}", found[0].1);
}

#[test]
fn a_weight_is_not_cured_by_fewer_pcpus_than_vcpus() {
    let pool = |name: &str, weight| {
        let mut vm = vm(name, &["0-1"; 4]);
        vm.weight = Some(placed(Weight(weight), 3));
        vm
    };
    // Only 0-2 are nobody's: fewer than a's vCPUs.
    let vms = vec![pool("a", 3072.0), pool("b", 1024.0), vm("d", &["3", "4", "5"])];
    let all = found(&host("6 cores", vms));
    let (_, _, cure) = all.iter().find(|(name, ..)| name == "weight-not-honoured a 3").unwrap();
    assert!(cure.starts_with("move a VM that shares its pCPUs elsewhere"), "{cure}");
    // With pins of its own, or a guest that knows its siblings, it keeps them.
    let mut pinned = vm("a", &["0", "1"]);
    pinned.weight = Some(placed(Weight(4096.0), 3));
    let all = found(&host(SMT, vec![pinned, vm("b", &["0-1"; 2])]));
    let (_, _, cure) = all.iter().find(|(name, ..)| name.starts_with("weight-not-honoured a")).unwrap();
    assert!(!cure.contains("vcpupin"), "{cure}");
}

#[test]
fn memory_on_nodes_that_are_absent_is_moved_to_nodes_that_are_there() {
    let cell = |memory: &str| Cell {
        id: 0,
        vcpus: set("0-1"),
        memory: Some(placed(set(memory), 8)),
        ..Cell::default()
    };
    let mut absent = vm("a", &["0", "2"]);
    absent.cells = vec![cell("7")];
    let (name, text, cure) = only(&host(SMT, vec![absent]));
    assert_eq!(name, "far-memory a 8");
    assert_eq!(text, "node 7 does not exist here (the host has 0-1): the VM does not start");
    assert_eq!(cure, "<numatune><memnode cellid='0' mode='strict' nodeset='0'/></numatune>");
    // So it is on a host of one node.
    for as_cell in [true, false] {
        let mut absent = vm("a", &["0", "2"]);
        match as_cell {
            true => absent.cells = vec![cell("5")],
            false => absent.memory = nodes("5"),
        }
        let (_, text, cure) = only(&host("4 cores", vec![absent]));
        assert_eq!(text, "node 5 does not exist here (the host has 0): the VM does not start");
        assert!(cure.contains("nodeset"), "{cure}");
    }
    // Nothing is put on no node.
    for memory in [Memory::Automatic, Memory::Nodes { nodes: set("0"), mode: "strict".into() }] {
        let mut nowhere = vm("a", &["99"]);
        nowhere.memory = Some(placed(memory, 6));
        assert_eq!(only(&host(SMT, vec![nowhere])).2, "virsh vcpupin a 0 0 --config");
    }
}

#[test]
fn a_vm_pinned_to_all_pcpus_has_them_for_itself() {
    let all = vm("all", &["0", "1", "2", "3"]);
    let (name, _, cure) = only(&host("4 cores", vec![all.clone(), vm("b", &["0", "1"])]));
    assert_eq!(name, "dedicated-overlap b 10");
    assert!(cure.starts_with("pin one of them elsewhere"), "{cure}");
    let mut helped = all;
    helped.helpers = vec![Helper { kind: HelperKind::Emulator, affinity: placed(set("0"), 9) }];
    assert_eq!(
        only(&host("4 cores", vec![helped])).2,
        "no pCPU is left for it: pin vCPUs so that one has none, then pin it there"
    );
}

#[test]
fn a_pool_beside_dedicated_pcpus_has_no_offline_or_isolated_ones() {
    let shape = format!("{SMT}; offline 4; isolated 5");
    let all = found(&host(&shape, vec![vm("a", &["0", "2"]), vm("b", &["0-7", "0-7"])]));
    assert_eq!(all.len(), 3, "{all:#?}");
    assert!(
        all.iter().all(|(.., cure)| cure == "for v in 0 1; do virsh vcpupin b $v 1,3,6-7 --config; done")
    );
}

#[test]
fn stacked_vcpus_that_the_guest_takes_for_siblings_get_siblings() {
    let mut pairs = vm("a", &["0", "1", "0", "1"]);
    pairs.guest = guest(1, 2, 2);
    let all = found(&host(SMT, vec![pairs]));
    let cure = "for p in 2:2 3:3; do virsh vcpupin a ${p%:*} ${p#*:} --config; done";
    assert!(all.iter().all(|(name, _, it)| name.starts_with("stacked a") && it == cure), "{all:#?}");
}

#[test]
fn half_a_core_beside_everybody_else_is_half_a_core() {
    let container = |list: &str| {
        let pins = vec![list; set(list).len()];
        Vm { manager: Manager::Kubernetes, exclusive: true, sees_host: true, ..vm("a", &pins) }
    };
    let mut subject = host("1 socket x 4 cores x 2 threads", vec![container("1,5")]);
    subject.shared = Some(placed(set("0,2-4,6-7"), 2));
    let (name, text, cure) = only(&subject);
    assert_eq!(name, "threads-as-cores a 10");
    assert!(text.starts_with("pCPUs 1,5 of it share a core with a pCPU for everybody else:"), "{text}");
    assert!(cure.starts_with("set full-pcpus-only"), "{cure}");
    subject.vms = vec![container("4-5")];
    subject.shared = Some(placed(set("0-3,6-99"), 2));
    let (name, text, _) = only(&subject);
    assert_eq!(name, "absent-pcpu  2");
    assert!(text.starts_with("pCPUs 8-99 do not exist here (the host has 0-7)"), "{text}");
}

/// Cures of one report that are all followed do not collide.
#[test]
fn two_vms_are_not_sent_to_the_same_pcpus() {
    let vms = vec![vm("a", &["0", "0"]), vm("b", &["2", "2"])];
    let all = found(&host("1 socket x 4 cores x 2 threads", vms));
    let cures: Vec<&str> = all.iter().map(|(.., cure)| cure.as_str()).collect();
    assert_eq!(cures, ["virsh vcpupin a 1 4 --config", "virsh vcpupin b 1 6 --config"]);
    let all = found(&host("5 cores", vec![vm("a", &["0"; 2]), vm("b", &["0"; 3])]));
    assert!(
        all.iter().any(|(_, _, cure)| cure == "follow the other cures first, then check again"),
        "{all:#?}"
    );
}

#[test]
fn memory_keeps_its_mode_unless_libvirt_refuses_that() {
    let mut absent = vm("a", &["0", "8"]);
    for (mode, nodes, cure) in [
        ("restrictive", "3", "virsh numatune a --nodeset 0-1 --config"),
        ("preferred", "3", "virsh numatune a --mode strict --nodeset 0-1 --config"),
    ] {
        absent.memory = Some(placed(Memory::Nodes { nodes: set(nodes), mode: mode.into() }, 6));
        assert_eq!(only(&host(SMT, vec![absent.clone()])).2, cure);
    }
    let memory = Some(placed(set("7"), 8));
    absent = vm("a", &["0", "2"]);
    absent.cells = vec![Cell { id: 0, vcpus: set("0-1"), memory, mode: Some("restrictive".into()) }];
    let (_, _, cure) = only(&host(SMT, vec![absent]));
    assert_eq!(cure, "<numatune><memnode cellid='0' mode='restrictive' nodeset='0'/></numatune>");
}

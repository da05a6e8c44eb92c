//! Each rule on the smallest case that breaks it, and on the nearest case that does not.

mod cures;

use super::*;
use crate::{Cpus, Quota, Weight};

const SMT: &str = "2 sockets x 4 cores x 2 threads"; // siblings 0-1, 2-3, ...; nodes 0-7, 8-15
const OPTERON: &str = "2 sockets x 2 nodes x 4 modules x 2 cores";

fn set(list: &str) -> CpuSet {
    list.parse().unwrap()
}

fn placed<T>(value: T, line: u32) -> Set<T> {
    Set { value, place: Place { file: "vm.xml".into(), line: Some(line), element: String::new() } }
}

/// A VM with a vCPU for each pin, in lines from 10; an empty pin is none.
fn vm(name: &str, pins: &[&str]) -> Vm {
    let vcpu = |(line, pin): (u32, &&str)| Vcpu {
        online: true,
        affinity: (!pin.is_empty()).then(|| placed(set(pin), line)),
        ..Vcpu::default()
    };
    let place = Place { file: "vm.xml".into(), line: Some(1), element: String::new() };
    Vm { name: name.into(), place, vcpus: (10..).zip(pins).map(vcpu).collect(), ..Vm::default() }
}

fn host(shape: &str, vms: Vec<Vm>) -> Subject {
    Subject { topology: Some(shape.parse().unwrap()), vms, ..Subject::default() }
}

/// `rule vm line`, each with its text and cure.
fn found(subject: &Subject) -> Vec<(String, String, String)> {
    let name = |f: &Finding| format!("{} {} {}", f.rule, f.vm, f.place.line.unwrap_or(0));
    check(subject).into_iter().map(|f| (name(&f), f.text, f.cure)).collect()
}

fn names(subject: &Subject) -> Vec<String> {
    found(subject).into_iter().map(|(name, ..)| name).collect()
}

/// The only finding.
fn only(subject: &Subject) -> (String, String, String) {
    let mut all = found(subject);
    assert_eq!(all.len(), 1, "{all:#?}");
    all.remove(0)
}

fn quota(quota_us: u64, period_us: u64) -> Set<Quota> {
    placed(Quota { quota_us: Some(quota_us), period_us, burst_us: 0, source: String::new() }, 5)
}

fn guest(sockets: u32, cores: u32, threads: u32) -> Option<Set<GuestTopology>> {
    Some(placed(GuestTopology { sockets, cores, threads }, 7))
}

fn nodes(list: &str) -> Option<Set<Memory>> {
    Some(placed(Memory::Nodes { nodes: set(list), mode: "strict".into() }, 6))
}

#[test]
fn a_vm_with_a_core_for_each_vcpu_and_near_memory_is_clean() {
    let mut good = vm("good", &["0", "2", "4", "6"]);
    good.memory = nodes("0");
    assert!(names(&host(SMT, vec![good, vm("free", &["", ""])])).is_empty());
    assert!(names(&host(SMT, vec![])).is_empty());
}

#[test]
fn without_a_host_only_what_needs_none_is_reported() {
    let subject = Subject { vms: vec![vm("a", &["3", "3", "99"])], ..Subject::default() };
    assert_eq!(names(&subject), ["stacked a 11"]);
}

#[test]
fn pins_to_pcpus_that_are_absent_or_offline() {
    let (name, text, _) = only(&host(SMT, vec![vm("a", &["0", "16-17"])]));
    assert_eq!(name, "absent-pcpu a 11");
    assert!(text.starts_with("vCPU 1: pCPUs 16-17 do not exist here (the host has 0-15)"), "{text}");
    let shape = format!("{SMT}; offline 5-6");
    let (name, text, cure) = only(&host(&shape, vec![vm("a", &["0", "5"])]));
    assert_eq!(name, "offline-pcpu a 11");
    assert!(text.ends_with("there is nothing to run on"), "{text}");
    assert_eq!(cure, "virsh vcpupin a 1 2 --config");
    let (name, text, _) = only(&host(&shape, vec![vm("a", &["4-6"])]));
    assert_eq!(
        (name.as_str(), text.as_str()),
        ("offline-pcpu a 10", "vCPU 0: pCPUs 5-6 are offline: 1 pCPU instead of 3")
    );
}

#[test]
fn isolated_pcpus_are_for_one_vcpu_each() {
    let shape = format!("{SMT}; isolated 8-15");
    assert!(names(&host(&shape, vec![vm("a", &["8", "10"])])).is_empty());
    let (name, _, cure) = only(&host(&shape, vec![vm("a", &["8-15", "8-15"])]));
    assert_eq!(name, "isolated-pcpu a 10");
    assert!(cure.starts_with("for p in 0:8 1:10; do virsh vcpupin a"), "{cure}");
}

#[test]
fn pcpus_of_the_host_are_not_for_vms() {
    let mut subject = host(SMT, vec![vm("a", &["0", "2"])]);
    subject.reserved = Some(placed(set("0-1"), 1));
    let (name, text, cure) = only(&subject);
    assert_eq!(name, "reserved-pcpu a 10");
    assert!(text.contains("pCPU 0, kept for the host"), "{text}");
    assert_eq!(cure, "virsh vcpupin a 0 4 --config");
}

#[test]
fn stacked_vcpus_are_found_through_their_sets_and_get_pcpus_of_their_own() {
    let (name, text, cure) = only(&host(SMT, vec![vm("a", &["0", "2", "0", "4"])]));
    assert_eq!(name, "stacked a 12");
    assert!(text.starts_with("vCPUs 0,2 can only run on pCPU 0"), "{text}");
    assert_eq!(cure, "virsh vcpupin a 2 6 --config");
    // Three vCPUs in two sets that have two pCPUs together.
    let three = vm("a", &["0", "2", "0,2"]);
    assert_eq!(names(&host(SMT, vec![three])), ["too-few-pcpus a 12"]);
    assert!(names(&host(SMT, vec![vm("a", &["0", "2", "0,2,4"])])).is_empty());
}

#[test]
fn many_crowds_of_one_vm_are_one_finding_with_one_cure() {
    let pins: Vec<String> = (0..130).map(|vcpu| (vcpu / 2).to_string()).collect();
    let pins: Vec<&str> = pins.iter().map(String::as_str).collect();
    let (name, text, _) = only(&host("1 socket x 130 cores", vec![vm("a", &pins)]));
    assert!(name.starts_with("stacked a"), "{name}");
    assert!(text.starts_with("vCPUs 0-129 can each only run on one of 65 pCPUs"), "{text}");
    assert_eq!(names(&host("1 socket x 130 cores", vec![vm("a", &pins[..128])])).len(), 64);
}

#[test]
fn a_vcpu_that_was_measured_to_be_idle_stacks_nobody() {
    let mut idle = vm("a", &["0", "0"]);
    idle.vcpus[1].demand = Some(Cpus(0.02));
    assert!(names(&host(SMT, vec![idle])).is_empty());
}

#[test]
fn more_vcpus_than_the_host_has_pcpus_without_any_pin() {
    let (name, text, cure) = only(&host("2 cores", vec![vm("a", &["", "", ""])]));
    assert_eq!(name, "too-few-pcpus a 1");
    assert!(text.starts_with("3 vCPUs have the host's 2 pCPUs between them"), "{text}");
    assert_eq!(cure, "virsh setvcpus a 2 --config");
}

#[test]
fn siblings_are_used_only_when_no_core_is_free_or_the_guest_knows() {
    let pairs = &["0", "1", "2", "3"];
    let (name, text, cure) = only(&host(SMT, vec![vm("a", pairs)]));
    assert_eq!(name, "siblings-forced a 10");
    assert!(text.contains("kept on 2 cores (pCPUs 0-3) while 6 cores of the host have no VM"), "{text}");
    assert_eq!(cure, "for p in 1:4 3:6; do virsh vcpupin a ${p%:*} ${p#*:} --config; done");
    let mut knows = vm("a", pairs);
    knows.guest = guest(1, 2, 2);
    assert!(names(&host(SMT, vec![knows])).is_empty());
    // All other cores are another VM's: now the guest should be told.
    let others = vm("b", &["4-15"; 6]);
    let mut hidden = vm("a", pairs);
    hidden.guest = guest(1, 4, 1);
    assert_eq!(names(&host(SMT, vec![hidden, others])), ["guest-topology a 7"]);
}

#[test]
fn modules_compete_as_cores_do() {
    let eight: Vec<String> = (16..24).map(|cpu| cpu.to_string()).collect();
    let eight: Vec<&str> = eight.iter().map(String::as_str).collect();
    let (name, text, _) = only(&host(OPTERON, vec![vm("a", &eight)]));
    assert_eq!(name, "siblings-forced a 10");
    assert!(text.contains("kept on 4 modules"), "{text}");
    assert!(text.contains("all 8 share a module's units"), "{text}");
}

#[test]
fn siblings_of_one_core_for_two_vms_are_half_cores() {
    let (name, text, cure) = only(&host(SMT, vec![vm("a", &["0", "2"]), vm("b", &["1", "3"])]));
    assert_eq!(name, "threads-as-cores b 10");
    assert!(text.starts_with("pCPUs 1,3 of it share a core with a pCPU dedicated to a:"), "{text}");
    assert_eq!(cure, "for p in 0:4 1:6; do virsh vcpupin b ${p%:*} ${p#*:} --config; done");
    assert!(names(&host(SMT, vec![vm("a", &["0", "2"]), vm("b", &["4", "6"])])).is_empty());
}

#[test]
fn guest_siblings_that_are_none_are_invented() {
    let mut floating = vm("a", &["", ""]);
    floating.guest = guest(1, 1, 2);
    let (name, text, _) = only(&host(SMT, vec![floating]));
    assert_eq!(name, "guest-topology a 7");
    assert!(text.contains("not pinned to siblings"), "{text}");
    let mut apart = vm("a", &["0", "2"]);
    apart.guest = guest(1, 1, 2);
    assert!(only(&host(SMT, vec![apart])).1.contains("they run on pCPUs 0,2, of different cores"));
    // Both may use both siblings: true.
    let mut same = vm("a", &["0-1", "0-1"]);
    same.guest = guest(1, 1, 2);
    assert!(names(&host(SMT, vec![same])).is_empty());
    let mut wrong = vm("a", &["0", "2"]);
    wrong.guest = guest(2, 2, 1);
    assert!(only(&host(SMT, vec![wrong])).1.contains("libvirt refuses it"));
}

/// P4, II: 16 vCPUs pinned to the second socket (nodes 2 and 3), node affinity 0 and 2.
#[test]
fn the_conflict_of_the_paper_is_found_with_its_cost() {
    let mut conflict = vm("npb", &["16-31"; 16]);
    conflict.manager = Manager::Xen;
    for vcpu in &mut conflict.vcpus {
        vcpu.prefers = Some(placed(set("0-7,16-23"), 4));
    }
    let subject = host(OPTERON, vec![conflict.clone()]);
    let (name, text, cure) = found(&subject).into_iter().find(|(name, ..)| name.starts_with("node")).unwrap();
    assert_eq!(name, "node-conflict npb 4");
    assert!(text.starts_with("Xen fills pCPUs 16-23 before the rest of 16-31"), "{text}");
    assert!(text.contains("with 8 busy vCPUs 4 modules of 4 compete while 4 idle"), "{text}");
    // The other socket is free: both affinities are corrected together, as one cure for all that is wrong.
    let both = "0,2,4,6,8,10,12,14,16,18,20,22,24,26,28,30";
    assert_eq!(cure, format!("cpus = \"{both}\" and cpus_soft = \"{both}\""));
    assert!(found(&subject).iter().all(|(.., other)| *other == cure), "{:?}", found(&subject));
    // It is not: the node affinity alone.
    let others = vm("others", &["0-15"; 16]);
    let (_, _, cure) = only(&host(OPTERON, vec![conflict.clone(), others]));
    assert!(cure.starts_with("cpus_soft = \"16-31\""), "{cure}");
    // Corrected: node affinity 2 and 3.
    for vcpu in &mut conflict.vcpus {
        vcpu.prefers = Some(placed(set("16-31"), 4));
    }
    assert!(!names(&host(OPTERON, vec![conflict])).iter().any(|name| name.starts_with("node")));
}

#[test]
fn memory_nodes_and_vcpu_nodes() {
    let case = |pins: &[&str], memory: Option<Set<Memory>>| {
        let mut vm = vm("a", pins);
        vm.memory = memory;
        names(&host(SMT, vec![vm]))
    };
    assert!(case(&["0", "2"], nodes("0")).is_empty());
    assert_eq!(case(&["8", "10"], nodes("0")), ["far-memory a 10"]);
    assert_eq!(case(&["0", "10"], nodes("0")), ["far-memory a 11"]);
    assert_eq!(case(&["0-15", "0-15"], nodes("0")), ["node-conflict a 10"]);
    assert_eq!(case(&["", ""], nodes("0")), ["node-conflict a 1"]);
    assert_eq!(case(&["0", "2"], nodes("0-1")), ["far-memory a 6"]);
    assert_eq!(case(&["0", "2"], nodes("3")), ["far-memory a 6"]);
    assert_eq!(case(&["0", "2"], Some(placed(Memory::Automatic, 6))), ["node-conflict a 6"]);
    assert!(case(&["", ""], Some(placed(Memory::Automatic, 6))).is_empty());
}

#[test]
fn guest_nodes_have_to_be_where_their_memory_is() {
    let cell = |id, vcpus: &str, memory: &str| Cell {
        id,
        vcpus: set(vcpus),
        memory: Some(placed(set(memory), 8)),
        ..Cell::default()
    };
    let mut good = vm("a", &["0", "2", "8", "10"]);
    good.cells = vec![cell(0, "0-1", "0"), cell(1, "2-3", "1")];
    assert!(names(&host(SMT, vec![good.clone()])).is_empty());
    good.cells = vec![cell(0, "0-1", "1"), cell(1, "2-3", "0")];
    assert_eq!(names(&host(SMT, vec![good.clone()])), ["far-memory a 10", "far-memory a 12"]);
    let mut floating = vm("a", &["", ""]);
    floating.cells = vec![cell(0, "0", "0"), cell(1, "1", "1")];
    assert_eq!(names(&host(SMT, vec![floating])), ["far-memory a 8", "far-memory a 8"]);
}

/// Where a guest is told of siblings that are none, pairs would share cores while others idle.
#[test]
fn invented_siblings_are_no_reason_to_share_cores() {
    let crossed = || {
        let mut vm = vm("a", &["0", "2", "1", "3"]);
        vm.guest = guest(1, 2, 2);
        vm
    };
    let followed = |mut subject: Subject| -> (Vec<String>, Vec<String>, Option<u32>) {
        let found = check(&subject);
        let rules = found.iter().filter(|f| f.vm == "a").map(|f| f.rule.to_string()).collect();
        let vm = &mut subject.vms[0];
        found.iter().filter(|f| f.vm == "a").flat_map(|f| &f.changes).for_each(|change| change.apply(vm));
        let pins = vm.vcpus.iter().map(|vcpu| vcpu.affinity.as_ref().unwrap().value.to_string()).collect();
        let threads = vm.guest.as_ref().map(|told| told.value.threads);
        assert!(names(&subject).is_empty(), "{pins:?}: {:?}", names(&subject));
        (rules, pins, threads)
    };
    let both = ["guest-topology", "siblings-forced"].map(String::from).to_vec();
    assert_eq!(
        followed(host(SMT, vec![crossed()])),
        (both, ["0", "2", "4", "6"].map(String::from).to_vec(), Some(1))
    );
    // Told truly, they stay together.
    let mut pairs = vm("a", &["0", "1", "2", "2"]);
    pairs.guest = guest(1, 2, 2);
    let (_, pins, threads) = followed(host(SMT, vec![pairs]));
    assert_eq!((pins.join(" "), threads), ("0 1 2 3".into(), Some(2)));
}

/// `vnuma` of xl: Xen prefers the pCPUs beside the memory, as far as the affinity has some.
#[test]
fn nodes_of_a_xen_guest_have_to_be_where_its_vcpus_run() {
    let cell = |id, vcpus: &str, memory: &str| Cell {
        id,
        vcpus: set(vcpus),
        memory: Some(placed(set(memory), 8)),
        ..Cell::default()
    };
    let with = |pins: &[&str], soft: Option<&str>| {
        let mut vm = vm("a", pins);
        vm.manager = Manager::Xen;
        vm.cells = vec![cell(0, "0-1", "0"), cell(1, "2-3", "1")];
        for vcpu in &mut vm.vcpus {
            vcpu.prefers = soft.map(|soft| placed(set(soft), 20));
        }
        host(OPTERON, vec![vm])
    };
    for pins in [["", "", "", ""], ["0-31"; 4], ["0-15"; 4], ["0", "2", "8", "10"]] {
        assert!(names(&with(&pins, None)).is_empty(), "{pins:?}");
    }
    let (name, text, cure) = only(&with(&["16", "18", "8", "10"], None));
    assert_eq!(name, "far-memory a 10");
    assert!(text.starts_with("vCPUs 0-1 of guest node 0 may run away from host node 0"), "{text}");
    assert_eq!(cure, "cpus = [\"0\", \"2\", \"8\", \"10\"]");
    // One node for all: both halves are away, and the same sets bring both back.
    let subject = with(&["16-23"; 4], None);
    assert_eq!(names(&subject), ["far-memory a 10", "far-memory a 12"]);
    for finding in check(&subject) {
        assert_eq!(finding.cure, "cpus = [\"0-7\", \"0-7\", \"8-15\", \"8-15\"]");
    }
    // What is said to be preferred counts instead of the memory's node.
    assert_eq!(names(&with(&["0-15"; 4], Some("0-7"))), ["far-memory a 12", "node-conflict a 20"]);
    // A node that does not exist, and one to be had.
    let mut absent = with(&["8", "10", "8", "10"], None);
    absent.vms[0].cells = vec![cell(0, "0-1", "7")];
    absent.vms[0].vcpus.truncate(2);
    let (name, _, cure) = only(&absent);
    assert_eq!(name, "far-memory a 8");
    assert_eq!(cure, "\"pnode=1\" in the list of node 0 in vnuma");
}

#[test]
fn dedicated_sets_that_overlap() {
    let (name, text, cure) = only(&host(SMT, vec![vm("a", &["0", "2"]), vm("b", &["2", "4"])]));
    assert_eq!(name, "dedicated-overlap b 10");
    assert!(text.starts_with("pCPU 2 is dedicated to a as well (vm.xml:10)"), "{text}");
    assert_eq!(cure, "virsh vcpupin b 0 6 --config");
    // Pools are shared on purpose.
    assert!(names(&host(SMT, vec![vm("a", &["0-7"; 4]), vm("b", &["0-7"; 4])])).is_empty());
}

#[test]
fn containers_with_pcpus_of_their_own() {
    let container = |name: &str, list: &str| {
        let pins = vec![list; set(list).len()];
        Vm { manager: Manager::Kubernetes, exclusive: true, sees_host: true, ..vm(name, &pins) }
    };
    let mut subject = host(SMT, vec![container("a", "2-3"), container("b", "4-5")]);
    subject.shared = Some(placed(set("0-1,6-15"), 2));
    assert!(names(&subject).is_empty());
    subject.shared = Some(placed(set("0-3"), 2));
    assert_eq!(names(&subject), ["dedicated-overlap a 10"]);
    let split = host(SMT, vec![container("a", "2"), container("b", "3")]);
    let (name, _, cure) = only(&split);
    assert_eq!(name, "threads-as-cores b 10");
    assert!(cure.contains("full-pcpus-only"), "{cure}");
    assert_eq!(
        names(&host(SMT, vec![container("a", "2-3"), container("b", "3-4")]))[0],
        "dedicated-overlap b 10"
    );
}

#[test]
fn helpers_belong_beside_the_vcpus() {
    let with = |helper: &str| {
        let mut vm = vm("a", &["0", "2"]);
        vm.helpers = vec![Helper { kind: HelperKind::Iothread(1), affinity: placed(set(helper), 9) }];
        host(SMT, vec![vm])
    };
    let (name, _, cure) = only(&with("0"));
    assert_eq!(name, "helpers-on-vcpus a 9");
    assert_eq!(cure, "virsh iothreadpin a 1 1,3-7 --config");
    assert!(names(&with("0,3")).is_empty());
    assert!(names(&with("6")).is_empty());
}

#[test]
fn caps_quotas_and_periods() {
    let case = |pins: &[&str], cap: Option<Set<Quota>>, each: Option<Set<Quota>>| {
        let mut vm = vm("a", pins);
        (vm.cap, vm.vcpu_quota) = (cap, each);
        names(&host(SMT, vec![vm]))
    };
    let free = &["", "", "", ""];
    assert_eq!(case(free, Some(quota(200_000, 100_000)), None), ["cap-below-vcpus a 5"]);
    assert!(case(free, Some(quota(400_000, 100_000)), None).is_empty());
    assert!(case(free, None, Some(quota(50_000, 100_000))).is_empty());
    assert_eq!(case(&["0", "2"], Some(quota(150_000, 100_000)), None), ["quota-below-pinned a 5"]);
    assert_eq!(case(&["0", "2"], None, Some(quota(50_000, 100_000))), ["quota-below-pinned a 5"]);
    assert_eq!(case(free, None, Some(quota(1_000, 2_000))), ["period-extreme a 5"]);
    assert_eq!(case(free, None, Some(quota(500_000, 1_000_000))), ["period-extreme a 5"]);
    // Never binding.
    assert!(case(free, None, Some(quota(1_000_000, 1_000_000))).is_empty());
    assert!(case(free, None, Some(quota(2_000, 2_000))).is_empty());
    // vCPUs that may use less than a pCPU each need less of a cap.
    let each = || Some(quota(40_000, 100_000));
    assert!(case(free, Some(quota(160_000, 100_000)), each()).is_empty());
    assert!(case(free, Some(quota(800_000, 500_000)), each()).is_empty());
    assert_eq!(case(free, Some(quota(120_000, 100_000)), each()), ["cap-below-vcpus a 5"]);
}

#[test]
fn a_cap_is_cured_by_as_many_vcpus_as_it_has_pcpus() {
    let mut capped = vm("a", &["", "", "", ""]);
    capped.cap = Some(quota(250_000, 100_000));
    let (_, text, cure) = only(&host(SMT, vec![capped]));
    assert!(
        text.starts_with("4 vCPUs may use 2.50 pCPUs together: when all are busy they run for 62 %"),
        "{text}"
    );
    // Not 3: these would still be stopped.
    assert_eq!(cure, "virsh setvcpus a 2 --config");
    let after = |vcpus: &[&str], us| {
        let mut capped = vm("a", vcpus);
        capped.cap = Some(quota(us, 100_000));
        names(&host(SMT, vec![capped]))
    };
    assert!(after(&["", ""], 250_000).is_empty());
    assert!(after(&["", ""], 150_000) == ["cap-below-vcpus a 5"] && after(&[""], 150_000).is_empty());
    // A single vCPU with half a pCPU makes nobody wait for it.
    assert!(after(&[""], 50_000).is_empty());
}

#[test]
fn a_weight_that_its_pins_keep_from_working() {
    let pool = |name: &str, list: &str, weight| {
        let mut vm = vm(name, &[list; 4]);
        vm.weight = Some(placed(Weight(weight), 3));
        vm
    };
    // a weighs three times b, and shares its four pCPUs with c, which weighs as much.
    let subject =
        host("8 cores", vec![pool("a", "0-3", 3072.0), pool("b", "4-7", 1024.0), pool("c", "0-3", 3072.0)]);
    let (name, text, _) = found(&subject).remove(0);
    assert_eq!(name, "weight-not-honoured a 3");
    assert!(
        text.starts_with("when everybody is busy, weight 3072 is good for 3.43 pCPUs, but the VM gets 2.00"),
        "{text}"
    );
    assert!(!names(&subject).contains(&"weight-not-honoured b 3".into()));
    let together =
        host("8 cores", vec![pool("a", "0-7", 3072.0), pool("b", "0-7", 1024.0), pool("c", "0-7", 3072.0)]);
    assert!(names(&together).is_empty());
    // Nobody is promised pCPUs that are kept for the host, or isolated.
    for shape in ["8 cores", "8 cores; isolated 0-3"] {
        let mut rest = host(shape, vec![pool("a", "4-7", 1024.0), pool("b", "4-7", 1024.0)]);
        rest.reserved = (shape == "8 cores").then(|| placed(set("0-3"), 1));
        assert!(names(&rest).is_empty(), "{shape}: {:?}", names(&rest));
    }
    // Where there is nothing to run on, the weight is not what is wrong.
    let elsewhere = host("2 cores", vec![pool("a", "16-31", 256.0)]);
    let found = names(&elsewhere);
    assert!(found.iter().any(|name| name.starts_with("absent-pcpu a")), "{found:?}");
    assert!(!found.iter().any(|name| name.starts_with("weight-not-honoured")), "{found:?}");
}

#[test]
fn the_same_subject_gives_the_same_findings_in_the_order_of_places() {
    let subject = host(SMT, vec![vm("b", &["0", "0", "99"]), vm("a", &["0", "0"])]);
    let first = check(&subject);
    assert_eq!(first, check(&subject));
    assert!(first.windows(2).all(|pair| pair[0].place <= pair[1].place));
}

#[test]
fn timeslices_that_are_lost_where_nobody_can_change_the_limit_from_here_are_found_and_cured_by_hand() {
    use crate::machine::{Counters, Fixed, LeverKind, Timeslices, VcpuState, VmState};
    let seen = |s: u64, fixed: bool| {
        let counters = Counters { run_ns: Some(s * 300_000_000), ..Counters::default() };
        let reason = "somebody limits its control group".into();
        VmState {
            quota: Some(quota(50_000, 100_000).value),
            throttled: Some(crate::Throttled {
                periods: 10 * s,
                throttled_periods: s,
                throttled_ns: s * 200_000_000,
            }),
            vcpus: vec![VcpuState { online: true, counters, ..VcpuState::default() }],
            fixed: Vec::from_iter(fixed.then_some(Fixed { lever: LeverKind::Quota, reason })),
            ..VmState::default()
        }
    };
    for fixed in [false, true] {
        let [before, after] = [0, 10].map(|s| seen(s, fixed));
        let mut one = vm("a", &[""]);
        one.cap = Some(quota(50_000, 100_000));
        one.timeslices = Timeslices::between(&before, crate::Time(0), &after, crate::Time(10_000_000_000));
        let (name, text, cure) = only(&host(SMT, vec![one]));
        assert!(name.starts_with("lost-timeslices") && text.starts_with("40 %"), "{name}: {text}");
        assert_eq!((cure.contains("manage"), cure.contains("cpu.max.burst")), (!fixed, true), "{cure}");
    }
}

//! libvirt's domain XML (`virsh dumpxml`, `/etc/libvirt/qemu/*.xml`), with the line of each setting.
//!
//! Source: "Domain XML format": `vcpu`, `vcpus`, `iothreadids`, `cputune`, `numatune`, `cpu`. [`crate::libvirt`] reads the
//! live XML of running domains with it, and adds what only concerns those (`libvirt/definition.rs`).

use std::collections::BTreeSet;

use corefit_core::check::{Cell, GuestTopology, Helper, HelperKind, Manager, Memory, Place, Set, Vcpu, Vm};
use corefit_core::{CpuSet, Quota, Weight};
use roxmltree::Node;

use super::xml::{self, attribute, child, children};
use super::{FormatError, Vms};

/// libvirt's, and the kernel's.
const USUAL_PERIOD_US: u64 = 100_000;
/// More than any guest has (`KVM_MAX_VCPUS` is 4096).
const MAX_VCPUS: u32 = 8192;

/// Reads a domain.
pub(super) fn read(text: &str, file: &str) -> Result<Vms, FormatError> {
    let document = xml::open(text)?;
    let domain = document.root_element();
    let name = child(domain, "name").and_then(|name| name.text()).map(|name| name.trim().to_owned());
    let name = name.ok_or_else(|| xml::at(domain, "<domain>: no <name>"))?;
    taken(child(domain, "cputune"))?;
    Ok(Vms { vms: vec![Vm { name, ..settings(domain, file)? }], shared: None })
}

const PERIOD_US: std::ops::RangeInclusive<i128> = 1000..=1_000_000;
const QUOTA_US: std::ops::RangeInclusive<i128> = 1000..=MOST_QUOTA_US as i128;
/// The largest quota that the kernel and libvirt take. Where there is none, libvirt says this of control groups v2
/// (`VIR_CGROUP_CPU_QUOTA_MAX`).
const MOST_QUOTA_US: u64 = 17_592_186_044_415;
/// How libvirt writes that there is no quota.
const NO_QUOTA_US: i128 = u64::MAX as i128;

/// What libvirt takes (`CPUTUNE_VALIDATE_PERIOD` and `_QUOTA` of `conf/domain_validate.c`, where old ones took larger quotas,
/// which the kernel refuses; `virCgroupSetCpuShares`, whose range for version 1 of control groups holds that for version 2).
/// 0 is not set, and below 0 no limit.
const TAKEN: [(&str, std::ops::RangeInclusive<i128>); 9] = [
    ("shares", 1..=262_144),
    ("period", PERIOD_US),
    ("global_period", PERIOD_US),
    ("emulator_period", PERIOD_US),
    ("iothread_period", PERIOD_US),
    ("quota", QUOTA_US),
    ("global_quota", QUOTA_US),
    ("emulator_quota", QUOTA_US),
    ("iothread_quota", QUOTA_US),
];
/// Of a file that libvirt has not read yet.
fn taken(tune: Option<Node<'_, '_>>) -> Result<(), FormatError> {
    for (name, range) in TAKEN {
        let Some(node) = tune.and_then(|tune| child(tune, name)) else { continue };
        let number: i128 = xml::number(node)?;
        let none = range == QUOTA_US && number == NO_QUOTA_US;
        if number > 0 && !none && !range.contains(&number) {
            let (low, high) = (range.start(), range.end());
            return Err(xml::at(node, &format!("<{name}>: libvirt refuses {number}; give {low} to {high}")));
        }
    }
    Ok(())
}

/// What is set for a domain, whatever its name.
pub(crate) fn settings(domain: Node<'_, '_>, file: &str) -> Result<Vm, FormatError> {
    let vcpu = child(domain, "vcpu").ok_or_else(|| xml::at(domain, "<domain>: no <vcpu>"))?;
    let place = Place { file: file.into(), ..Place::default() };
    let text = domain.document().input_text();
    let reader = Reader { place, ends: text.match_indices('\n').map(|(at, _)| at).collect() };
    let mut vm = Vm { manager: Manager::Libvirt, place: reader.at(vcpu), ..Vm::default() };
    reader.vcpus(domain, vcpu, &mut vm)?;
    reader.tune(domain, vcpu, &mut vm)?;
    reader.memory(domain, vcpu, &mut vm)?;
    reader.guest(domain, &mut vm)?;
    Ok(vm)
}

/// The numbers of a domain's I/O threads.
pub(crate) fn iothreads(domain: Node<'_, '_>) -> Result<BTreeSet<u32>, FormatError> {
    let mut ids: BTreeSet<u32> = BTreeSet::new();
    for thread in children(child(domain, "iothreadids"), "iothread") {
        ids.extend(attribute::<u32>(thread, "id")?);
    }
    if let Some(node) = child(domain, "iothreads") {
        let many: u32 = xml::number(node)?;
        if many > MAX_VCPUS {
            return Err(xml::wrong(node, &many.to_string(), "number of I/O threads"));
        }
        // Those without an id have the lowest free ones.
        let mut next = 1;
        while u32::try_from(ids.len()).is_ok_and(|known| known < many) {
            ids.insert(next);
            next += 1;
        }
    }
    Ok(ids)
}

/// A limit of `<cputune>` by the names of its elements; `None` if it is not set.
pub(crate) fn quota(tune: Node<'_, '_>, period: &str, quota: &str) -> Result<Option<Quota>, FormatError> {
    let Some(node) = child(tune, quota) else { return Ok(None) };
    let quota_us: i128 = xml::number(node)?;
    // Negative: no limit.
    let quota_us = u64::try_from(quota_us).ok().and_then(limited);
    let period_us = child(tune, period).map(xml::number::<i128>).transpose()?;
    let period_us = period_us.and_then(|us| u64::try_from(us).ok()).filter(|us| *us > 0);
    let period_us = period_us.unwrap_or(USUAL_PERIOD_US);
    Ok(Some(Quota { quota_us, period_us, burst_us: 0, source: format!("cputune/{quota}") }))
}

/// A quota that libvirt says, µs, if it limits anything. Zero: not set. From the largest on: none, also what is negative as unsigned.
pub(crate) fn limited(quota_us: u64) -> Option<u64> {
    (1..MOST_QUOTA_US).contains(&quota_us).then_some(quota_us)
}

struct Reader {
    place: Place,
    /// Where lines end: the document itself counts from its beginning for each question.
    ends: Vec<usize>,
}

impl Reader {
    fn at(&self, node: Node<'_, '_>) -> Place {
        let line = 1 + self.ends.partition_point(|end| *end < node.range().start);
        self.place.at(u32::try_from(line).ok(), &format!("<{}>", node.tag_name().name()))
    }

    fn set<T>(&self, node: Node<'_, '_>, value: T) -> Set<T> {
        Set { value, place: self.at(node) }
    }

    fn pins(&self, node: Node<'_, '_>) -> Result<Option<Set<CpuSet>>, FormatError> {
        Ok(xml::cpus(node, "cpuset")?.filter(|set| !set.is_empty()).map(|set| self.set(node, set)))
    }

    /// The set of `<vcpu>`, which holds for what has none of its own.
    fn everywhere(&self, vcpu: Node<'_, '_>) -> Result<Option<Set<CpuSet>>, FormatError> {
        if vcpu.attribute("placement") == Some("auto") { Ok(None) } else { self.pins(vcpu) }
    }

    fn vcpus(&self, domain: Node<'_, '_>, vcpu: Node<'_, '_>, vm: &mut Vm) -> Result<(), FormatError> {
        let most: u32 = xml::number(vcpu)?;
        if most == 0 || most > MAX_VCPUS {
            return Err(xml::wrong(vcpu, &most.to_string(), "number of vCPUs"));
        }
        let current: u32 = attribute(vcpu, "current")?.unwrap_or(most);
        if current > most {
            return Err(xml::at(
                vcpu,
                &format!("<vcpu>: libvirt refuses current='{current}'; give 1 to {most}"),
            ));
        }
        let affinity = self.everywhere(vcpu)?;
        vm.vcpus = (0..most)
            .map(|number| Vcpu { online: number < current, affinity: affinity.clone(), ..Vcpu::default() })
            .collect();
        for one in children(child(domain, "vcpus"), "vcpu") {
            let id: usize = attribute(one, "id")?.unwrap_or(usize::MAX);
            if let Some(known) = vm.vcpus.get_mut(id) {
                known.online = one.attribute("enabled") != Some("no");
            }
        }
        for pin in children(child(domain, "cputune"), "vcpupin") {
            let id: usize =
                attribute(pin, "vcpu")?.ok_or_else(|| xml::at(pin, "<vcpupin>: no vcpu='NUMBER'"))?;
            let set = self.pins(pin)?.ok_or_else(|| xml::at(pin, "<vcpupin>: no cpuset='0-3'"))?;
            if let Some(known) = vm.vcpus.get_mut(id) {
                known.affinity = Some(set);
            }
        }
        Ok(())
    }

    fn tune(&self, domain: Node<'_, '_>, vcpu: Node<'_, '_>, vm: &mut Vm) -> Result<(), FormatError> {
        let tune = child(domain, "cputune");
        let pin = |kind, node: Node<'_, '_>| -> Result<Option<Helper>, FormatError> {
            Ok(self.pins(node)?.map(|affinity| Helper { kind, affinity }))
        };
        let emulator = children(tune, "emulatorpin").next();
        // libvirt gives the emulator the set of <vcpu> if it has none of its own.
        vm.helpers.extend(pin(HelperKind::Emulator, emulator.unwrap_or(vcpu)).map(|helper| {
            helper.filter(|_| emulator.is_some() || vcpu.attribute("placement") != Some("auto"))
        })?);
        for node in children(tune, "iothreadpin") {
            if let Some(id) = attribute(node, "iothread")? {
                vm.helpers.extend(pin(HelperKind::Iothread(id), node)?);
            }
        }
        self.inherited(domain, vcpu, vm)?;
        let Some(tune) = tune else { return Ok(()) };
        vm.vcpu_quota = self.limit(tune, "period", "quota")?;
        vm.cap = self.limit(tune, "global_period", "global_quota")?;
        if let Some(shares) = child(tune, "shares") {
            let value: u32 = xml::number(shares)?;
            vm.weight = (value > 0).then(|| self.set(shares, Weight(f64::from(value))));
        }
        Ok(())
    }

    /// I/O threads without a set of their own: like the emulator, they have that of `<vcpu>`.
    fn inherited(&self, domain: Node<'_, '_>, vcpu: Node<'_, '_>, vm: &mut Vm) -> Result<(), FormatError> {
        let Some(set) = self.everywhere(vcpu)? else { return Ok(()) };
        let ids = iothreads(domain)?;
        let pinned = |id: u32| vm.helpers.iter().any(|helper| helper.kind == HelperKind::Iothread(id));
        let more: Vec<Helper> = ids
            .into_iter()
            .filter(|id| !pinned(*id))
            .map(|id| Helper { kind: HelperKind::Iothread(id), affinity: set.clone() })
            .collect();
        vm.helpers.extend(more);
        Ok(())
    }

    /// A limit that limits.
    fn limit(&self, tune: Node<'_, '_>, period: &str, name: &str) -> Result<Option<Set<Quota>>, FormatError> {
        let found = quota(tune, period, name)?.filter(|found| found.quota_us.is_some());
        Ok(child(tune, name).zip(found).map(|(node, found)| self.set(node, found)))
    }

    fn memory(&self, domain: Node<'_, '_>, vcpu: Node<'_, '_>, vm: &mut Vm) -> Result<(), FormatError> {
        let tune = child(domain, "numatune");
        let automatic = vcpu.attribute("placement") == Some("auto");
        if let Some(memory) = children(tune, "memory").next() {
            let nodes = xml::cpus(memory, "nodeset")?;
            let placement = memory.attribute("placement");
            vm.memory = match nodes {
                Some(nodes) if placement != Some("auto") => {
                    let mode = memory.attribute("mode").unwrap_or("strict").into();
                    Some(self.set(memory, Memory::Nodes { nodes, mode }))
                }
                _ if automatic || placement == Some("auto") => Some(self.set(memory, Memory::Automatic)),
                _ => None,
            };
        } else if automatic {
            vm.memory = Some(self.set(vcpu, Memory::Automatic));
        }
        let cells = child(domain, "cpu").and_then(|cpu| child(cpu, "numa"));
        for (number, cell) in (0..).zip(children(cells, "cell")) {
            let id = attribute(cell, "id")?.unwrap_or(number);
            let vcpus = xml::cpus(cell, "cpus")?.unwrap_or_default();
            vm.cells.push(Cell { id, vcpus, ..Cell::default() });
        }
        for node in children(tune, "memnode") {
            let id: Option<u32> = attribute(node, "cellid")?;
            let nodes = xml::cpus(node, "nodeset")?;
            if let Some(cell) = vm.cells.iter_mut().find(|cell| Some(cell.id) == id) {
                cell.memory = nodes.map(|nodes| self.set(node, nodes));
                cell.mode = node.attribute("mode").map(Into::into);
            }
        }
        Ok(())
    }

    fn guest(&self, domain: Node<'_, '_>, vm: &mut Vm) -> Result<(), FormatError> {
        let Some(node) = child(domain, "cpu").and_then(|cpu| child(cpu, "topology")) else { return Ok(()) };
        let number = |name: &str| -> Result<u32, FormatError> { Ok(attribute(node, name)?.unwrap_or(1)) };
        let cores = number("dies")?.saturating_mul(number("clusters")?).saturating_mul(number("cores")?);
        let told = GuestTopology { sockets: number("sockets")?, cores, threads: number("threads")? };
        vm.guest = Some(self.set(node, told));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn captured(name: &str) -> Vm {
        let path = format!("{}/../../captures/libvirt/{name}.xml", env!("CARGO_MANIFEST_DIR"));
        read(&std::fs::read_to_string(path).unwrap(), name).unwrap().vms.remove(0)
    }

    fn place(vm: &Vm, vcpu: usize) -> String {
        vm.vcpus[vcpu].affinity.as_ref().unwrap().place.to_string()
    }

    #[test]
    fn settings_of_a_tuned_domain_have_their_lines() {
        let vm = captured("kvm-tuned");
        assert_eq!((vm.name.as_str(), vm.vcpus.len(), vm.width()), ("tuned", 8, 5));
        assert_eq!(vm.vcpus[0].affinity.as_ref().unwrap().value.to_string(), "0,16");
        assert_eq!(place(&vm, 0), "kvm-tuned:33, <vcpupin>");
        assert_eq!(place(&vm, 2), "kvm-tuned:7, <vcpu>");
        assert_eq!(vm.weight.as_ref().unwrap().value, Weight(4096.0));
        let cap = vm.cap.as_ref().unwrap();
        assert_eq!(
            (cap.value.quota_us, cap.value.period_us, cap.place.line),
            (Some(300_000), 100_000, Some(28))
        );
        let helpers: Vec<_> = vm.helpers.iter().map(|h| (h.kind, h.affinity.value.to_string())).collect();
        // What is not pinned has the affinity of <vcpu>.
        let expected = [
            (HelperKind::Emulator, "0-1"),
            (HelperKind::Iothread(1), "2"),
            (HelperKind::Iothread(4), "0-15"),
        ];
        assert_eq!(helpers, expected.map(|(kind, set)| (kind, set.to_owned())));
        let Memory::Nodes { nodes, mode } = &vm.memory.as_ref().unwrap().value else { panic!() };
        assert_eq!((nodes.to_string().as_str(), mode.as_str()), ("0", "strict"));
    }

    #[test]
    fn plain_domains_say_nothing_about_what_is_not_written() {
        let vm = captured("kvm-plain");
        assert!(vm.pcpus().is_none() && vm.helpers.is_empty() && vm.memory.is_none() && vm.guest.is_none());
    }

    #[test]
    fn guest_nodes_topology_and_automatic_placement() {
        let text = "<domain><name>a</name><vcpu placement='auto' cpuset='0-3'>4</vcpu>
            <numatune><memory mode='strict' placement='auto'/>
            <memnode cellid='1' mode='strict' nodeset='2'/></numatune>
            <cpu><topology sockets='1' dies='2' cores='1' threads='2'/>
            <numa><cell id='0' cpus='0-1' memory='1'/><cell id='1' cpus='2-3' memory='1'/></numa></cpu></domain>";
        let vm = read(text, "a.xml").unwrap().vms.remove(0);
        assert_eq!(vm.memory.unwrap().value, Memory::Automatic);
        assert_eq!(vm.guest.unwrap().value, GuestTopology { sockets: 1, cores: 2, threads: 2 });
        assert_eq!(vm.cells[1].vcpus.to_string(), "2-3");
        assert_eq!(vm.cells[1].memory.as_ref().unwrap().place.line, Some(3));
        assert_eq!(vm.cells[1].mode.as_deref(), Some("strict"));
        assert!(vm.vcpus[0].affinity.is_none(), "numad decides");
    }

    #[test]
    fn io_threads_have_the_set_of_the_vcpus_unless_they_have_their_own() {
        let case = |vcpu: &str| {
            let text = format!(
                "<domain><name>a</name><vcpu {vcpu}>2</vcpu><iothreads>3</iothreads>
                <iothreadids><iothread id='5'/></iothreadids>
                <cputune><iothreadpin iothread='1' cpuset='7'/></cputune></domain>"
            );
            let vm = read(&text, "a.xml").unwrap().vms.remove(0);
            let of = |h: &Helper| format!("{:?} {}", h.kind, h.affinity.value);
            vm.helpers.iter().map(of).collect::<Vec<_>>()
        };
        let expected = ["Emulator 0-1", "Iothread(1) 7", "Iothread(2) 0-1", "Iothread(5) 0-1"];
        assert_eq!(case("cpuset='0-1'"), expected);
        assert_eq!(case(""), ["Iothread(1) 7"]);
        let many = "<domain><name>a</name><vcpu cpuset='0'>2</vcpu><iothreads>99999999</iothreads></domain>";
        assert!(read(many, "a.xml").unwrap_err().to_string().contains("number of I/O threads"));
    }

    #[test]
    fn damage_is_named_with_its_line() {
        for (text, error) in [
            ("<domain/>", "line 1: <domain>: no <name>"),
            ("<domain><name>a</name></domain>", "line 1: <domain>: no <vcpu>"),
            ("<domain><name>a</name>\n<vcpu>none</vcpu></domain>", "line 2: <vcpu>: \"none\" is no number"),
            (
                "<domain><name>a</name><vcpu>99999999</vcpu></domain>",
                "line 1: <vcpu>: \"99999999\" is no number of vCPUs",
            ),
            (
                "<domain><name>a</name>\n<vcpu current='5'>2</vcpu></domain>",
                "line 2: <vcpu>: libvirt refuses current='5'; give 1 to 2",
            ),
            ("<domain><name>a</name><vcpu cpuset='a'>1</vcpu></domain>", "line 1: <vcpu>: \"a\" is no list"),
            (
                "<domain><name>a</name><vcpu>1</vcpu><cputune>\n<vcpupin vcpu='0'/></cputune></domain>",
                "line 2: <vcpupin>: no cpuset",
            ),
            (
                "<domain><name>a</name><vcpu>1</vcpu><cputune>\n<shares>262145</shares></cputune></domain>",
                "line 2: <shares>: libvirt refuses 262145; give 1 to 262144",
            ),
            (
                "<domain><name>a</name><vcpu>1</vcpu><cputune>\n<global_period>999</global_period></cputune></domain>",
                "line 2: <global_period>: libvirt refuses 999; give 1000 to 1000000",
            ),
            (
                "<domain><name>a</name><vcpu>1</vcpu><cputune>\n<quota>999</quota></cputune></domain>",
                "line 2: <quota>: libvirt refuses 999; give 1000 to 17592186044415",
            ),
            (
                "<domain><name>a</name><vcpu>1</vcpu><cputune>\n<quota>17592186044416</quota></cputune></domain>",
                "line 2: <quota>: libvirt refuses 17592186044416; give 1000 to 17592186044415",
            ),
        ] {
            let got = read(text, "a.xml").unwrap_err().to_string();
            assert!(got.starts_with(error), "{got}");
        }
    }
}

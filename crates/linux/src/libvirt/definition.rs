//! A domain's definition, as far as it decides what the domain gets: the live XML holds what is in force, changes by API
//! included.
//!
//! What anybody can write is read by [`crate::formats`]; here is what concerns running domains only: what can be plugged and
//! moved, the agent, our metadata. Source: libvirt's "Domain XML format".

use std::collections::BTreeMap;

use corefit_core::check::{self, HelperKind};
use corefit_core::{CpuSet, Quota, Weight};
use roxmltree::Node;

use super::owner::{OWNER, Owner};
use crate::formats::xml::{self, attribute, child, children};
use crate::formats::{FormatError, domain, short};

/// The channel of the guest agent.
const AGENT: &str = "org.qemu.guest_agent.0";

/// Names the element with the text that [`Act::keep`](corefit_core::machine::Act::keep) keeps there.
pub(super) const KEPT: &str = "urn:corefit:kept";
/// The longest text that is kept with a VM, and a quarter of that for each vCPU: its pins, before and after, on hundreds of pCPUs.
const KEPT_BYTES: usize = 64 << 10;

/// Names the element with the vCPUs that were plugged out by us.
pub(super) const UNPLUGGED: &str = "urn:corefit:unplugged";

/// What a domain's XML says.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Definition {
    /// Emulated instruction by instruction (`type='qemu'`).
    pub(super) emulated: bool,
    /// All vCPUs that it could have, by number.
    pub(super) vcpus: Vec<VcpuDefinition>,
    /// Among other domains, in the unit of the host's control groups; `None` if not set.
    pub(super) shares: Option<Weight>,
    /// Of all its threads together.
    pub(super) global_quota: Option<Quota>,
    /// Of each vCPU.
    pub(super) vcpu_quota: Option<Quota>,
    /// Of the threads that are neither vCPUs nor iothreads.
    pub(super) emulator_quota: Option<Quota>,
    pub(super) emulator_pin: Option<CpuSet>,
    /// Of each iothread.
    pub(super) iothread_quota: Option<Quota>,
    /// Numbers, and pins.
    pub(super) iothreads: Vec<(u32, Option<CpuSet>)>,
    /// Where its memory may be; `None` if anywhere.
    pub(super) memory_nodes: Option<CpuSet>,
    /// Why its memory stays where it is; `None` if libvirt can move it.
    pub(super) memory_stays: Option<&'static str>,
    /// Whether its guest agent is connected, which libvirt does not say while a domain starts; `None` if it is to have none.
    pub(super) agent: Option<bool>,
    /// What its owner asks for it.
    pub(super) owner: Owner,
    /// What was kept in its metadata.
    pub(super) kept: Option<String>,
    /// vCPUs that were plugged out by us, by its metadata; somebody may have plugged them in since.
    pub(super) unplugged: CpuSet,
    /// When its guest was asked last to let go of some of these, s since 1970, by whoever did.
    pub(super) asked_at: Option<u64>,
}

/// A vCPU.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct VcpuDefinition {
    /// Plugged in.
    pub(super) plugged: bool,
    /// May be plugged in and out while the domain runs.
    pub(super) hotpluggable: bool,
    /// pCPUs that it may use; `None` if nothing is said.
    pub(super) pin: Option<CpuSet>,
}

impl Definition {
    /// Reads the XML of a domain.
    ///
    /// # Errors
    /// What is wrong, and in which line.
    pub(super) fn parse(xml: &str) -> Result<Definition, String> {
        Definition::read(xml).map_err(|error| format!("definition, {error}"))
    }

    fn read(xml: &str) -> Result<Definition, FormatError> {
        let document = xml::open(xml)?;
        let root = document.root_element();
        let vm = domain::settings(root, "")?;
        let mut pluggable = BTreeMap::new();
        for vcpu in children(child(root, "vcpus"), "vcpu") {
            let hot = vcpu.attribute("hotpluggable") == Some("yes");
            pluggable.extend(attribute::<usize>(vcpu, "id")?.map(|id| (id, hot)));
        }
        let vcpu = |(id, vcpu): (usize, &check::Vcpu)| VcpuDefinition {
            plugged: vcpu.online,
            // Where they are not listed, those that are not there at the start are.
            hotpluggable: pluggable.get(&id).copied().unwrap_or(!vcpu.online),
            pin: vcpu.affinity.as_ref().map(|set| set.value.clone()),
        };
        let pin = |kind| vm.helpers.iter().find(|h| h.kind == kind).map(|h| h.affinity.value.clone());
        let tune = child(root, "cputune");
        let quota = |period, quota| tune.map_or(Ok(None), |tune| domain::quota(tune, period, quota));
        let iothread = |id| (id, pin(HelperKind::Iothread(id)));
        let mut found = Definition {
            emulated: root.attribute("type") == Some("qemu"),
            vcpus: vm.vcpus.iter().enumerate().map(vcpu).collect(),
            shares: vm.weight.as_ref().map(|weight| weight.value),
            global_quota: quota("global_period", "global_quota")?,
            vcpu_quota: quota("period", "quota")?,
            emulator_quota: quota("emulator_period", "emulator_quota")?,
            emulator_pin: pin(HelperKind::Emulator),
            iothread_quota: quota("iothread_period", "iothread_quota")?,
            iothreads: domain::iothreads(root)?.into_iter().map(iothread).collect(),
            memory_nodes: memory_nodes(root)?,
            memory_stays: memory_stays(root),
            agent: children(child(root, "devices"), "channel")
                .filter_map(|channel| child(channel, "target"))
                .find(|target| target.attribute("name") == Some(AGENT))
                .map(|target| target.attribute("state") == Some("connected")),
            ..Definition::default()
        };
        found.metadata(root);
        Ok(found)
    }

    fn metadata(&mut self, domain: Node<'_, '_>) {
        let all = child(domain, "metadata").into_iter().flat_map(|node| node.children());
        for node in all.filter(|node| node.is_element()) {
            match node.tag_name().namespace() {
                Some(OWNER) => self.owner = Owner::read(node),
                Some(KEPT) => self.kept = node.text().map(|text| kept(text, self.vcpus.len())),
                Some(UNPLUGGED) => {
                    self.unplugged = node.text().and_then(|text| text.parse().ok()).unwrap_or_default();
                    self.asked_at = node.attribute("at").and_then(|at| at.parse().ok());
                }
                _ => {}
            }
        }
    }
}

/// What is kept with a VM of so many vCPUs; the beginning of what is longer than any note is, as each look has it, and its owner can write it.
fn kept(text: &str, vcpus: usize) -> String {
    let most = KEPT_BYTES + vcpus * KEPT_BYTES / 4;
    if text.len() > most { short(text) } else { text.into() }
}

/// The nodes of `<memory>` and of all `<memnode>`; `None` where one of them is only preferred.
fn memory_nodes(domain: Node<'_, '_>) -> Result<Option<CpuSet>, FormatError> {
    let Some(tune) = child(domain, "numatune") else { return Ok(None) };
    let mut nodes = Vec::new();
    for part in tune.children().filter(|n| n.has_tag_name("memory") || n.has_tag_name("memnode")) {
        if part.attribute("mode") == Some("preferred") {
            return Ok(None);
        }
        if let Some(set) = xml::cpus(part, "nodeset")? {
            nodes.extend(set.iter());
        }
    }
    Ok((!nodes.is_empty()).then(|| nodes.into_iter().collect()))
}

/// Why the nodes of its memory cannot be changed while it runs (`qemuDomainSetNumaParameters`).
fn memory_stays(domain: Node<'_, '_>) -> Option<&'static str> {
    let tune = child(domain, "numatune");
    let Some(memory) = tune.and_then(|tune| child(tune, "memory")) else {
        return Some("nothing says which nodes its memory is on");
    };
    if children(tune, "memnode").next().is_some() {
        return Some("each of its guest's nodes has nodes of its own (memnode)");
    }
    match (memory.attribute("mode"), memory.attribute("nodeset")) {
        (_, None) => Some("the nodes of its memory are chosen at its start"),
        (Some("restrictive"), _) => None,
        // What is usual, strict, too, since libvirt 8.0.
        _ => Some("libvirt moves the memory of a running domain only in the mode restrictive"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn captured(name: &str) -> Definition {
        let path = format!("{}/../../captures/libvirt/{name}.xml", env!("CARGO_MANIFEST_DIR"));
        Definition::parse(&std::fs::read_to_string(path).unwrap()).unwrap()
    }

    fn set(list: &str) -> Option<CpuSet> {
        Some(list.parse().unwrap())
    }

    fn us(quota: Option<&Quota>) -> Option<(Option<u64>, u64)> {
        quota.map(|quota| (quota.quota_us, quota.period_us))
    }

    #[test]
    fn reads_a_tuned_kvm_domain() {
        let domain = captured("kvm-tuned");
        assert!(!domain.emulated);
        assert_eq!(domain.vcpus.len(), 8);
        let plugged: Vec<bool> = domain.vcpus.iter().map(|v| v.plugged).collect();
        assert_eq!(plugged, [true, true, true, true, false, false, true, false]);
        assert_eq!(domain.vcpus[0].pin, set("0,16"));
        assert_eq!(domain.vcpus[1].pin, set("1-3"));
        assert_eq!(domain.vcpus[2].pin, set("0-15")); // of <vcpu>
        assert_eq!(domain.shares, Some(Weight(4096.0)));
        assert_eq!(us(domain.vcpu_quota.as_ref()), Some((Some(50_000), 200_000)));
        assert_eq!(us(domain.global_quota.as_ref()), Some((Some(300_000), 100_000)));
        assert_eq!(us(domain.emulator_quota.as_ref()), Some((None, 100_000)));
        assert_eq!(us(domain.iothread_quota.as_ref()), Some((Some(25_000), 50_000)));
        assert_eq!(domain.emulator_pin, set("0-1"));
        assert_eq!(domain.iothreads, [(1, set("2")), (4, set("0-15"))]);
        assert_eq!(domain.memory_nodes, set("0,2"));
        assert_eq!(domain.agent, Some(false));
    }

    #[test]
    fn reads_a_plain_domain_of_which_nothing_is_set() {
        let domain = captured("kvm-plain");
        assert_eq!(domain.vcpus, vec![VcpuDefinition { plugged: true, ..VcpuDefinition::default() }; 2]);
        assert_eq!((domain.shares, &domain.vcpu_quota, &domain.global_quota), (None, &None, &None));
        assert_eq!((domain.agent, domain.memory_nodes), (None, None));
        assert_eq!(domain.iothreads, [(1, None), (2, None)]);
    }

    #[test]
    fn reads_what_libvirt_said_of_a_real_test_vm() {
        let domain = captured("real-testvm");
        assert!(domain.emulated);
        assert_eq!(domain.vcpus.len(), 2);
        assert_eq!(domain.shares, Some(Weight(2048.0)));
        assert_eq!(domain.vcpus[1].pin, set("1"));
        assert_eq!(domain.agent, Some(true));
    }

    #[test]
    fn an_agent_of_which_nothing_is_said_yet_is_not_connected() {
        let of = |target: &str| {
            let text = format!(
                "<domain type='kvm'><vcpu>1</vcpu><devices><channel type='unix'>{target}</channel></devices></domain>"
            );
            Definition::parse(&text).unwrap().agent
        };
        assert_eq!(of("<target type='virtio' name='org.qemu.guest_agent.0'/>"), Some(false));
        assert_eq!(of("<target type='virtio' name='org.qemu.guest_agent.0' state='connected'/>"), Some(true));
        assert_eq!(of("<target type='virtio' name='another'/>"), None);
    }

    #[test]
    fn a_preferred_node_does_not_bind() {
        let xml =
            "<domain><vcpu>1</vcpu><numatune><memory mode='preferred' nodeset='1'/></numatune></domain>";
        assert_eq!(Definition::parse(xml).unwrap().memory_nodes, None);
    }

    #[test]
    fn memory_stays_where_libvirt_cannot_move_it_and_the_reason_is_named() {
        for (tune, why) in [
            ("", Some("nothing says")),
            ("<numatune><memory mode='strict' nodeset='0'/></numatune>", Some("mode restrictive")),
            ("<numatune><memory nodeset='0'/></numatune>", Some("mode restrictive")),
            ("<numatune><memory mode='restrictive' nodeset='0'/></numatune>", None),
            ("<numatune><memory mode='strict' placement='auto'/></numatune>", Some("chosen at its start")),
            ("<numatune><memory mode='interleave' nodeset='0-1'/></numatune>", Some("mode restrictive")),
            (
                "<numatune><memory mode='strict' nodeset='0-1'/>\
                 <memnode cellid='0' mode='strict' nodeset='0'/></numatune>",
                Some("memnode"),
            ),
        ] {
            let found = Definition::parse(&format!("<domain><vcpu>1</vcpu>{tune}</domain>")).unwrap();
            let same = match (found.memory_stays, why) {
                (Some(found), Some(why)) => found.contains(why),
                (found, why) => found.is_none() && why.is_none(),
            };
            assert!(same, "{tune}: {:?}", found.memory_stays);
        }
    }

    #[test]
    fn metadata_of_ours_is_read_and_that_of_others_is_not() {
        let of = |inner: &str| {
            let xml = format!("<domain><vcpu>1</vcpu><metadata>{inner}</metadata></domain>");
            Definition::parse(&xml).unwrap()
        };
        let owner = |value| of(&format!("<c:owner xmlns:c='{OWNER}' hands-off='{value}'/>")).owner.hands_off;
        assert!(owner("yes") && owner("please") && !owner("no"));
        assert!(!of("<owner xmlns='urn:another' hands-off='yes'/>").owner.hands_off);
        for odd in ["handsoff='yes'", ""] {
            assert!(
                of(&format!("<owner xmlns='{OWNER}' {odd}/>")).owner.hands_off,
                "{odd:?} is not understood"
            );
        }
        assert_eq!(of(&format!("<c:kept xmlns:c='{KEPT}'>{{&lt;</c:kept>")).kept.as_deref(), Some("{<"));
        assert_eq!(of("").kept, None);
        // Longer than a note of no vCPU can be: its owner wrote it.
        let kept =
            |bytes| of(&format!("<kept xmlns='{KEPT}'>{}</kept>", "[".repeat(bytes))).kept.unwrap().len();
        assert_eq!([KEPT_BYTES, 100 * KEPT_BYTES].map(kept), [KEPT_BYTES, 63]);
        let unplugged =
            |text| of(&format!("<c:unplugged xmlns:c='{UNPLUGGED}'>{text}</c:unplugged>")).unplugged;
        assert_eq!(unplugged("2-3"), "2-3".parse().unwrap());
        assert!(unplugged("x").is_empty() && of("").unplugged.is_empty());
        let asked = of(&format!("<c:unplugged xmlns:c='{UNPLUGGED}' at='7'>3</c:unplugged>"));
        assert_eq!((asked.unplugged, asked.asked_at), ("3".parse().unwrap(), Some(7)));
    }

    #[test]
    fn damage_is_named_with_its_line() {
        let cases = [
            ("<domain", "definition, line 1: is no XML"),
            ("<!DOCTYPE d [<!ENTITY a 'a'>]><domain/>", "definition, line 1: declares entities"),
            ("<domain/>", "definition, line 1: <domain>: no <vcpu>"),
            ("<domain>\n<vcpu>many</vcpu></domain>", "definition, line 2: <vcpu>: \"many\" is no number"),
            ("<domain><vcpu>99999999</vcpu></domain>", "definition, line 1: <vcpu>"),
            ("<domain><vcpu cpuset='x'>1</vcpu></domain>", "definition, line 1: <vcpu>: \"x\" is no list"),
            (
                "<domain><vcpu>1</vcpu><cputune>\n\n<quota>half</quota></cputune></domain>",
                "definition, line 3: <quota>: \"half\" is no number",
            ),
        ];
        for (xml, start) in cases {
            let error = Definition::parse(xml).unwrap_err();
            assert!(error.starts_with(start), "{error}");
        }
    }
}

//! Hosts whose files cannot be read here: everything is asked of libvirt.

use std::collections::BTreeMap;

use corefit_core::machine::{Counters, Helper, Pcpu, VcpuState, VmState};
use corefit_core::{CpuId, CpuSet, Unread, Weight, What};

use super::api::{Connection, Domain, Failure, Kind};
use super::definition::Definition;
use super::sys;
use crate::formats::xml;

/// What libvirtd says of a host and its domains at one instant.
#[derive(Clone, Debug, Default)]
pub(super) struct Asked {
    pub(super) pcpus: Vec<Pcpu>,
    /// By UUID: counters and places of vCPUs by number, weight.
    pub(super) vms: BTreeMap<String, AskedVm>,
    pub(super) unread: Vec<Unread>,
}

/// What libvirtd says of a domain.
#[derive(Clone, Debug, Default)]
pub(super) struct AskedVm {
    vcpus: BTreeMap<u32, VcpuState>,
}

impl Asked {
    /// The host alone; `topology` as from [`topology`].
    pub(super) fn host(connection: &Connection, topology: &[Pcpu]) -> Asked {
        let mut asked = Asked { pcpus: topology.to_vec(), ..Asked::default() };
        match connection.cpu_map() {
            Ok(map) => asked.online(&map),
            Err(error) => asked.unread(What::Online, "CPU map", &error),
        }
        let online: Vec<usize> = (0..asked.pcpus.len()).filter(|i| asked.pcpus[*i].online).collect();
        for index in online {
            let id = asked.pcpus[index].id;
            match connection.cpu_stats(id.0) {
                Ok(times) => {
                    let of = |name: &str| times.iter().find(|(known, _)| known == name).map(|(_, ns)| *ns);
                    asked.pcpus[index].idle_ns =
                        of("idle").map(|idle| idle.saturating_add(of("iowait").unwrap_or(0)));
                }
                Err(error) => {
                    asked.unread(What::Idle, "CPU statistics", &error);
                    break;
                }
            }
        }
        asked
    }

    /// pCPUs that the map does not reach stay as they are; those that only the map has are added.
    fn online(&mut self, map: &[bool]) {
        for (id, online) in (0..).map(CpuId).zip(map) {
            match self.pcpus.iter_mut().find(|pcpu| pcpu.id == id) {
                Some(pcpu) => pcpu.online = *online,
                None => self.pcpus.push(Pcpu { id, online: *online, ..Pcpu::default() }),
            }
        }
        self.pcpus.sort_by_key(|pcpu| pcpu.id);
    }

    /// Adds a running domain.
    pub(super) fn vm(
        &mut self,
        domain: &Domain<'_>,
        uuid: &str,
        definition: &Definition,
        waited: &BTreeMap<String, BTreeMap<u32, u64>>,
    ) {
        let highest = self.pcpus.last().map_or(0, |pcpu| pcpu.id.0 as usize + 1);
        let (there, _) =
            corefit_core::machine::Snapshot { pcpus: self.pcpus.clone(), ..Default::default() }.pcpu_sets();
        let vcpus = match domain.vcpus(definition.vcpus.len(), highest) {
            Ok(vcpus) => vcpus,
            Err(error) => {
                self.unread(What::Threads, &format!("vCPUs of {:?}", domain.name()), &error);
                return;
            }
        };
        let state = |vcpu: &super::api::VcpuInfo| {
            let set = (0..).map(CpuId).zip(&vcpu.map).filter(|(_, may)| **may).map(|(id, _)| id);
            let set: CpuSet = set.collect::<CpuSet>().intersection(&there);
            VcpuState {
                affinity: (!set.is_empty()).then_some(set),
                counters: Counters {
                    run_ns: Some(vcpu.run_ns),
                    wait_ns: waited.get(uuid).and_then(|vm| vm.get(&vcpu.number)).copied(),
                    runs: None,
                },
                on: vcpu.on.map(CpuId).filter(|on| there.contains(*on)),
                ..VcpuState::default()
            }
        };
        let vcpus = vcpus.iter().map(|vcpu| (vcpu.number, state(vcpu))).collect();
        self.vms.insert(uuid.into(), AskedVm { vcpus });
    }

    fn unread(&mut self, what: What, path: &str, error: &Failure) {
        self.unread.push(Unread { what, path: path.into(), why: error.to_string() });
    }

    /// Puts what was asked of a domain into its state, of which the settings are there already.
    pub(super) fn fill(&self, uuid: &str, vm: &mut VmState) {
        let Some(asked) = self.vms.get(uuid) else { return };
        for (number, vcpu) in (0..).zip(&mut vm.vcpus) {
            if let Some(known) = asked.vcpus.get(&number) {
                vcpu.counters = known.counters;
                vcpu.on = known.on;
                vcpu.affinity = known.affinity.clone().or(vcpu.affinity.take());
            }
        }
    }
}

/// Time that each vCPU was runnable but not running, by UUID and number, where libvirt counts it.
pub(super) fn waited(connection: &Connection) -> BTreeMap<String, BTreeMap<u32, u64>> {
    let Ok(stats) = connection.stats(sys::VIR_DOMAIN_STATS_VCPU) else { return BTreeMap::new() };
    let delay = |(name, ns): (String, u64)| {
        let number = name.strip_prefix("vcpu.")?.strip_suffix(".delay")?;
        Some((number.parse().ok()?, ns))
    };
    stats.into_iter().map(|(uuid, params)| (uuid, params.into_iter().filter_map(delay).collect())).collect()
}

/// A domain's weight as its host has it, where the definition does not say.
pub(super) fn weight(domain: &Domain<'_>) -> Result<Option<Weight>, Failure> {
    match domain.scheduler() {
        Ok(params) => {
            let shares = params.iter().find(|(name, _)| name == "cpu_shares").map(|(_, shares)| *shares);
            Ok(shares.filter(|shares| *shares > 0).map(|shares| Weight(crate::float(shares))))
        }
        Err(error) => unweighed(error),
    }
}

/// A domain whose weight its host does not say has none: also where libvirt calls that invalid, as without the controller for it.
fn unweighed(error: Failure) -> Result<Option<Weight>, Failure> {
    match error.kind {
        Kind::Unsupported | Kind::NoDomain => Ok(None),
        _ => Err(error),
    }
}

/// The pCPUs in the `<topology>` of a host's capabilities, by number, all online.
///
/// # Errors
/// What is wrong with it.
pub(super) fn topology(capabilities: &str) -> Result<Vec<Pcpu>, String> {
    let document = xml::open(capabilities).map_err(|error| format!("capabilities, {error}"))?;
    let mut pcpus = Vec::new();
    for cell in document.descendants().filter(|node| node.has_tag_name("cell")) {
        let node = cell.attribute("id").and_then(|id| id.parse().ok());
        for cpu in cell.descendants().filter(|node| node.has_tag_name("cpu")) {
            let Some(id) = cpu.attribute("id").and_then(|id| id.parse().ok()) else {
                return Err(format!("capabilities, {}", xml::at(cpu, "<cpu>: no number in its id")));
            };
            pcpus.push(Pcpu {
                id: CpuId(id),
                online: true,
                node,
                package: cpu.attribute("socket_id").and_then(|id| id.parse().ok()),
                siblings: cpu.attribute("siblings").and_then(|list| list.parse().ok()),
                idle_ns: None,
                steal_ns: None,
            });
        }
    }
    pcpus.sort_by_key(|pcpu: &Pcpu| pcpu.id);
    pcpus.dedup_by_key(|pcpu| pcpu.id);
    Ok(pcpus)
}

/// A domain as its definition has it, without counters, on a host with these pCPUs, of which some are offline.
pub(super) fn defined(definition: &Definition, (within, offline): (&CpuSet, &CpuSet)) -> VmState {
    let lacks = |pin: &&CpuSet| !pin.is_within(within) || pin.meets(offline);
    let inside =
        |pin: &Option<CpuSet>| pin.as_ref().map(|set| set.intersection(within)).filter(|set| !set.is_empty());
    let vcpus = definition.vcpus.iter().map(|vcpu| VcpuState {
        online: vcpu.plugged,
        quota: definition.vcpu_quota.clone(),
        affinity: inside(&vcpu.pin),
        pin: vcpu.pin.as_ref().filter(lacks).cloned(),
        ..VcpuState::default()
    });
    let emulator = Helper {
        name: "emulator".into(),
        quota: definition.emulator_quota.clone(),
        affinity: inside(&definition.emulator_pin),
        ..Helper::default()
    };
    let iothreads = definition.iothreads.iter().map(|(id, pin)| Helper {
        name: format!("iothread {id}"),
        quota: definition.iothread_quota.clone(),
        affinity: inside(pin),
        ..Helper::default()
    });
    VmState {
        weight: definition.shares,
        quota: definition.global_quota.clone(),
        vcpus: vcpus.collect(),
        helpers: std::iter::once(emulator).chain(iothreads).collect(),
        memory_nodes: definition.memory_nodes.clone(),
        kept: definition.kept.clone(),
        ..VmState::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_topology_names_nodes_sockets_and_siblings() {
        let xml = "<capabilities><host><topology><cells num='2'>
            <cell id='1'><cpus><cpu id='2' socket_id='1' core_id='0' siblings='2-3'/>
                <cpu id='3' socket_id='1' core_id='0' siblings='2-3'/></cpus></cell>
            <cell id='0'><cpus><cpu id='0' socket_id='0' core_id='0' siblings='0'/></cpus></cell>
            </cells></topology></host></capabilities>";
        let pcpus = topology(xml).unwrap();
        let seen: Vec<_> = pcpus.iter().map(|p| (p.id.0, p.node, p.package)).collect();
        assert_eq!(seen, [(0, Some(0), Some(0)), (2, Some(1), Some(1)), (3, Some(1), Some(1))]);
        assert_eq!(pcpus[1].siblings, "2-3".parse().ok());
        let error = topology("<capabilities><cell>\n<cpus><cpu/></cpus></cell></capabilities>").unwrap_err();
        assert!(error.starts_with("capabilities, line 2: <cpu>"), "{error}");
    }

    #[test]
    fn a_domain_whose_weight_nobody_says_is_there_all_the_same() {
        let of = |kind| unweighed(Failure { kind, text: "no".into() }).map_err(|error| error.kind);
        assert_eq!([Kind::Unsupported, Kind::NoDomain].map(of), [Ok(None), Ok(None)]);
        assert_eq!(of(Kind::Late), Err(Kind::Late));
    }

    #[test]
    fn a_pin_that_is_not_all_there_is_told_as_it_is_beside_what_is_left_of_it() {
        let xml = "<domain type='kvm'><name>a</name><vcpu>5</vcpu><cputune>
            <vcpupin vcpu='0' cpuset='1,9'/><vcpupin vcpu='1' cpuset='8-9'/>
            <vcpupin vcpu='2' cpuset='3-4'/><vcpupin vcpu='3' cpuset='1-2'/></cputune></domain>";
        let set = |list: &str| -> CpuSet { list.parse().unwrap() };
        let vm = defined(&Definition::parse(xml).unwrap(), (&set("0-7"), &set("4")));
        let text = |set: &Option<CpuSet>| set.as_ref().map(ToString::to_string);
        let pins: Vec<_> = vm.vcpus.iter().map(|vcpu| (text(&vcpu.affinity), text(&vcpu.pin))).collect();
        let some = |list: &str| Some(list.to_owned());
        let (nine, all, four) = (some("1,9"), some("8-9"), some("3-4"));
        let plain = (some("1-2"), None);
        assert_eq!(pins, [(some("1"), nine), (None, all), (four.clone(), four), plain, (None, None)]);
    }

    #[test]
    fn a_map_of_online_pcpus_changes_those_that_it_reaches() {
        let pcpus = topology("<c><cell id='0'><cpu id='0'/><cpu id='1'/><cpu id='9'/></cell></c>").unwrap();
        let mut asked = Asked { pcpus, ..Asked::default() };
        asked.online(&[true, false, true]);
        let seen: Vec<_> = asked.pcpus.iter().map(|p| (p.id.0, p.online)).collect();
        assert_eq!(seen, [(0, true), (1, false), (2, true), (9, true)]);
    }
}

//! A VM made of control groups: each group is a vCPU, as libvirt makes one for each.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use corefit_core::machine::{
    Act, Lever, Limit, Machine, MachineError, Snapshot, Value, VcpuState, VmId, VmState,
};
use corefit_linux::Root;
use corefit_linux::host::Cgroups;

/// The machine, with one VM.
pub(super) struct Groups {
    groups: Cgroups,
    /// Directories of the vCPUs' groups, and the groups.
    dirs: Vec<PathBuf>,
    ids: Vec<VmId>,
}

impl Groups {
    /// `dirs`: of the vCPUs' groups.
    pub(super) fn open(dirs: Vec<PathBuf>) -> Result<Groups> {
        let paths: Vec<String> = dirs.iter().map(|dir| dir.display().to_string()).collect();
        let mut groups = Cgroups::open(Root::live(), paths.join(",").parse()?)?;
        let seen = groups.observe()?;
        let id = |dir: &PathBuf| {
            let name = dir.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let found = seen.vms.iter().find(|vm| vm.name.rsplit('/').next() == Some(name));
            found.map(|vm| vm.id.clone()).with_context(|| format!("{}: not seen as a group", dir.display()))
        };
        let ids = dirs.iter().map(id).collect::<Result<_>>()?;
        Ok(Groups { groups, dirs, ids })
    }

    /// Directories of the vCPUs' groups.
    pub(super) fn dirs(&self) -> &[PathBuf] {
        &self.dirs
    }

    /// The same limit for each vCPU.
    pub(super) fn reset(&mut self, limit: Limit) -> Result<()> {
        for id in &self.ids {
            self.groups.set(id, Lever::Quota, &Value::Limit(limit)).map_err(|e| anyhow!("{e}"))?;
        }
        Ok(())
    }

    /// The limit of each vCPU.
    pub(super) fn limits(&mut self) -> Result<Vec<Limit>> {
        let limit = |id: &VmId| match self.groups.current(id, Lever::Quota) {
            Ok(Value::Limit(limit)) => Ok(limit),
            Ok(other) => Err(anyhow!("{other} is no limit")),
            Err(error) => Err(anyhow!("{error}")),
        };
        self.ids.iter().map(limit).collect()
    }

    fn group(&self, lever: Lever) -> Result<VmId, MachineError> {
        let vcpu = match lever {
            Lever::VcpuQuota(vcpu) => usize::try_from(vcpu).ok(),
            _ => None,
        };
        let id = vcpu.and_then(|vcpu| self.ids.get(vcpu)).cloned();
        id.ok_or_else(|| MachineError::Unsupported(format!("groups that are vCPUs have no {lever}")))
    }
}

impl Machine for Groups {
    fn name(&self) -> String {
        "control groups as vCPUs".into()
    }

    fn observe(&mut self) -> Result<Snapshot, MachineError> {
        let seen = self.groups.observe()?;
        let vcpu = |id: &VmId| {
            let group = seen.vms.iter().find(|vm| vm.id == *id);
            let group = group.ok_or_else(|| MachineError::Gone(format!("{}: the group is gone", id.0)))?;
            Ok(VcpuState {
                online: true,
                quota: group.quota.clone(),
                throttled: group.throttled,
                counters: group.whole.unwrap_or_default(),
                ..VcpuState::default()
            })
        };
        let vcpus = self.ids.iter().map(vcpu).collect::<Result<_, MachineError>>()?;
        let vm = VmState { id: VmId("program".into()), name: "program".into(), vcpus, ..VmState::default() };
        Ok(Snapshot { at: seen.at, pcpus: seen.pcpus, vms: vec![vm], ..Snapshot::default() })
    }

    fn pass(&mut self, time: Duration) -> Result<bool, MachineError> {
        self.groups.pass(time)
    }
}

impl Act for Groups {
    fn current(&mut self, _vm: &VmId, lever: Lever) -> Result<Value, MachineError> {
        let group = self.group(lever)?;
        self.groups.current(&group, Lever::Quota)
    }

    fn set(&mut self, _vm: &VmId, lever: Lever, value: &Value) -> Result<(), MachineError> {
        let group = self.group(lever)?;
        self.groups.set(&group, Lever::Quota, value)
    }
}

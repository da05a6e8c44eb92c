//! The levers of a simulated host.

use corefit_core::machine::{Act, Fixed, Lever, LeverKind, Limit, MachineError, Value, VmId};
use corefit_core::{CpuSet, Cpus, Weight};

use crate::SimMachine;
use crate::spec::{self, Policy};

/// The period of a limit that was never set, as Linux' default.
const PERIOD_US: u64 = 100_000;

impl Act for SimMachine {
    fn current(&mut self, vm: &VmId, lever: Lever) -> Result<Value, MachineError> {
        let number = self.number(vm)?;
        self.check(number, lever)?;
        let spec = &self.sim().spec.vms[number];
        Ok(match lever {
            Lever::Online => {
                let online = (0..).zip(&spec.vcpus).filter(|(_, vcpu)| vcpu.online);
                Value::Vcpus(online.map(|(v, _)| corefit_core::CpuId(v)).collect())
            }
            Lever::Weight => Value::Weight(Weight(f64::from(spec.weight))),
            Lever::Quota => Value::Limit(shown(spec.cap)),
            Lever::VcpuQuota(vcpu) => Value::Limit(shown(spec.vcpus[vcpu as usize].limit)),
            Lever::Affinity(vcpu) => Value::Pcpus(spec.vcpus[vcpu as usize].affinity.clone()),
            Lever::Told => Value::Told(self.told(number)),
            Lever::Slice(vcpu) => Value::Slice(spec.vcpus[vcpu as usize].slice_ns),
            Lever::Nodes | Lever::HelperWeight => return Err(refused(lever)),
        })
    }

    fn set(&mut self, vm: &VmId, lever: Lever, value: &Value) -> Result<(), MachineError> {
        let number = self.number(vm)?;
        self.check(number, lever)?;
        let malformed = |e: crate::SpecError| MachineError::Malformed(e.to_string());
        match (lever, value) {
            (Lever::Online, Value::Vcpus(set)) => {
                let count = u32::try_from(set.len()).unwrap_or(u32::MAX);
                if *set != CpuSet::first(count) || count == 0 {
                    return Err(MachineError::Malformed(format!(
                        "vCPUs {set}: a simulated guest keeps its first vCPUs, such as 0-{}",
                        count.saturating_sub(1)
                    )));
                }
                self.sim_mut().set_online(number, count).map_err(malformed)
            }
            (Lever::Weight, Value::Weight(Weight(weight))) =>
            {
                #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked below")]
                self.sim_mut().set_weight(number, weight.round() as u32).map_err(malformed)
            }
            (Lever::Quota, Value::Limit(limit)) => {
                self.sim_mut().set_cap(number, meant(limit)).map_err(malformed)
            }
            (Lever::VcpuQuota(vcpu), Value::Limit(limit)) => {
                self.sim_mut().set_quota(number, vcpu, meant(limit)).map_err(malformed)
            }
            (Lever::Affinity(vcpu), Value::Pcpus(pcpus)) => {
                self.sim_mut().set_affinity(number, vcpu, pcpus).map_err(malformed)
            }
            (Lever::Slice(vcpu), Value::Slice(slice)) => {
                self.sim_mut().set_slice(number, vcpu, *slice).map_err(malformed)
            }
            (Lever::Told, Value::Told(cpus)) => {
                self.sim_mut().set_told(number, cpus.map(whole)).map_err(malformed)?;
                self.tell(number, *cpus);
                Ok(())
            }
            _ => Err(MachineError::Malformed(format!("{value} is no value of: {lever}"))),
        }
    }
}

impl SimMachine {
    /// Levers that a VM does not have.
    pub(crate) fn fixed_of(&self, number: usize) -> Vec<Fixed> {
        let sim = self.sim();
        let mut fixed = vec![Fixed {
            lever: LeverKind::Nodes,
            reason: "memory of a simulated VM stays where it is".into(),
        }];
        let reason = "a simulated VM has no helper threads".into();
        fixed.push(Fixed { lever: LeverKind::HelperWeight, reason });
        if sim.spec.policy.is_xen() {
            let reason = "Xen's schedulers know no quota of a vCPU".into();
            fixed.push(Fixed { lever: LeverKind::VcpuQuota, reason });
        }
        if !sim.spec.policy.has_slices() {
            let reason = "its scheduler has no slices of single threads".into();
            fixed.push(Fixed { lever: LeverKind::Slice, reason });
        }
        if !sim.spec.vms[number].apps.iter().any(|app| app.program.has_teams()) {
            let reason = "no program of it has teams that could follow".into();
            fixed.push(Fixed { lever: LeverKind::Told, reason });
        }
        if matches!(sim.spec.policy, Policy::Strict(_)) {
            let reason = "strict co-scheduling needs each vCPU where it is".into();
            fixed.push(Fixed { lever: LeverKind::Affinity, reason });
        }
        fixed
    }

    fn check(&self, number: usize, lever: Lever) -> Result<(), MachineError> {
        if let Some(fixed) = self.fixed_of(number).into_iter().find(|fixed| fixed.lever == lever.kind()) {
            return Err(MachineError::Unsupported(fixed.reason));
        }
        let vcpus = self.sim().spec.vms[number].vcpus.len();
        match lever {
            Lever::Affinity(vcpu) | Lever::VcpuQuota(vcpu) | Lever::Slice(vcpu) if vcpu as usize >= vcpus => {
                Err(MachineError::Malformed(format!("there is no vCPU {vcpu}; it has {vcpus}")))
            }
            _ => Ok(()),
        }
    }
}

/// A limit as a kernel shows it.
fn shown(limit: Option<spec::Limit>) -> Limit {
    let Some(limit) = limit else { return Limit { quota_us: None, period_us: PERIOD_US, burst_us: 0 } };
    Limit {
        quota_us: Some(limit.quota_ns.div_ceil(1000)),
        period_us: limit.period_ns / 1000,
        burst_us: limit.burst_ns.div_ceil(1000),
    }
}

fn meant(limit: &Limit) -> Option<spec::Limit> {
    limit.quota_us.map(|quota| spec::Limit {
        quota_ns: quota.saturating_mul(1000),
        period_ns: limit.period_us.saturating_mul(1000),
        burst_ns: limit.burst_us.saturating_mul(1000),
    })
}

fn refused(lever: Lever) -> MachineError {
    MachineError::Unsupported(format!("a simulated VM has no such setting: {lever}"))
}

/// Threads for so many pCPUs: rounded to the nearest, at least one.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped")]
fn whole(cpus: Cpus) -> u32 {
    cpus.0.round().clamp(1.0, 1e6) as u32
}

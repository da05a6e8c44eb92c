//! Parts of hosts, for the tests of the model here and against the kernel (crates/linux).

use corefit_core::entitle::{Vcpu, Vm};
use corefit_core::{Cpus, Weight};

/// A vCPU that may use some pCPUs.
pub(crate) fn on(pcpus: &str) -> Vcpu {
    Vcpu { affinity: Some(pcpus.parse().unwrap()), ..Vcpu::default() }
}

pub(crate) fn limited(quota: f64, vcpu: Vcpu) -> Vcpu {
    Vcpu { quota: Some(Cpus(quota)), ..vcpu }
}

pub(crate) fn vm(name: &str, vcpus: Vec<Vcpu>) -> Vm {
    Vm { name: name.into(), weight: Weight(1024.0), cap: None, vcpus }
}

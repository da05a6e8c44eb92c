//! What a host's VMs get of its pCPUs: exactly, with reasons, and with a proof.
//!
//! # The model
//!
//! Weights form a tree, slices ⊃ VMs ⊃ vCPUs. A vCPU can use at most its limit: 1 pCPU, its quota
//! or its demand. A slice or VM can have a cap on the sum below it. vCPUs may use some pCPUs only.
//! Time is handed out by *progressive filling*: from zero, the root divides a rate of 1 among its
//! unsatisfied children by weight, and they do likewise. A vCPU is *satisfied* at its limit or
//! under a used-up cap: its weight then passes to its siblings. A vCPU in a set of vCPUs that
//! together have all of their pCPUs *stops* and keeps its weight: its rate is lost, as with a
//! scheduler that weighs groups by what is runnable in them. It ends when nothing grows. The
//! result is unique. `docs/model.md` has the mathematics, the sources and the measurements.
//!
//! # Example
//!
//! VM a has vCPU 0 on pCPU 0 and vCPU 1 on pCPU 1, VM b one vCPU on pCPU 0; equal weights. Rates:
//! a 1/4 and 1/4, b 1/2. After 4/3, pCPU 0 is full: a's vCPU 0 stops at 1/3, b at 2/3. a's vCPU 1
//! has the rest of pCPU 1 for itself.
//!
//! ```
//! use corefit_core::entitle::{Host, Vcpu, Vm, entitled};
//! use corefit_core::{CpuSet, Weight};
//!
//! let on = |pcpu: &str| Vcpu { affinity: pcpu.parse().ok(), ..Vcpu::default() };
//! let vm = |name: &str, vcpus| Vm { name: name.into(), weight: Weight(1024.0), cap: None, vcpus };
//! let vms = vec![vm("a", vec![on("0"), on("1")]), vm("b", vec![on("0")])];
//! let division = entitled(&Host { pcpus: CpuSet::first(2), vms, ..Host::default() })?;
//! assert!((division.cpus(0).0 - 4.0 / 3.0).abs() < 1e-9);
//! assert_eq!(division.words(0), "0.33 of vCPU 0: pCPU 0 is full, shared with b; \
//!     1.00 of vCPU 1: a whole pCPU");
//! # Ok::<(), corefit_core::entitle::HostError>(())
//! ```
//!
//! # The parts
//!
//! ```text
//! Host ──compile──▶ tree, delivery (amounts over time)  ◀──▶ fill ◀──▶ flow (who runs where), ranges
//!                                                             │
//!           certificate, replay (the checker) ◀── division ◀──┘     grouping: the paper's heuristic
//! ```

mod available;
mod bits;
mod certificate;
mod compile;
mod crowds;
mod curve;
mod delivery;
mod division;
mod fill;
mod flow;
mod grouping;
mod host;
mod ranges;
mod replay;
mod tree;
mod words;

pub use available::available_to_all;
pub use certificate::{Certificate, Full, Usage, Violation};
pub use compile::Wants;
pub use crowds::Crowds;
pub use division::{Cause, Division, FullSet, Share, TOLERANCE};
pub use grouping::{EqualGroup, Grouping, group};
pub(crate) use host::WEIGHTS;
pub use host::{Host, HostError, Slice, Vcpu, Vm, WeightRule};
pub use words::{Binding, quoted};

use crate::Cpus;

/// What each VM gets when everybody wants everything.
///
/// # Errors
/// If the host has numbers out of range or names twice.
pub fn entitled(host: &Host) -> Result<Division, HostError> {
    Division::of(host, Wants::Everything)
}

/// What one VM (by its number in [`Host::all_vms`]) gets then: the same amount, to rounding, without what others get, why, and on
/// which pCPUs.
///
/// # Errors
/// If the host has numbers out of range or names twice.
pub fn entitled_of(host: &Host, vm: usize) -> Result<Cpus, HostError> {
    let mut compiled = compile::compile(host, Wants::Everything)?;
    let (group, _) = compiled.vms[vm];
    compiled.filling.run(Some(group));
    Ok(Cpus(compiled.filling.sum_of(group)))
}

/// What a VM (by its number in [`Host::all_vms`]) could get now: it wants everything, the others what
/// they demand. As demand is what would be used or more, this is a lower
/// bound.
///
/// # Errors
/// If the host has numbers out of range or names twice.
pub fn available(host: &Host, vm: usize) -> Result<Division, HostError> {
    Division::of(host, Wants::Everywhere(vm))
}

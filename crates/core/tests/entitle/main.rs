//! The exact model against cases that were measured, the paper's examples, and an independent
//! reference in rational numbers on random hosts.

mod cases;
mod instances;
mod leximin;
mod parts;
mod properties;
mod reference;
mod scenarios;

use corefit_core::entitle::{Division, Host, Vm, Wants};

fn host(pcpus: &str, vms: Vec<Vm>) -> Host {
    Host { pcpus: pcpus.parse().unwrap(), vms, ..Host::default() }
}

/// Divides and checks the certificate.
#[track_caller]
fn divide(host: &Host, wants: Wants) -> Division {
    let division = Division::of(host, wants).unwrap();
    division.certificate().check(host, wants).unwrap();
    division
}

#[track_caller]
fn gets(division: &Division, vm: usize, expected: &[f64]) {
    let got: Vec<f64> = division.vcpus(vm).iter().map(|share| share.cpus.0).collect();
    let close = got.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-9);
    assert!(close && got.len() == expected.len(), "VM {vm}: {got:?}, expected {expected:?}");
}

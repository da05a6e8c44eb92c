//! Scenarios of the papers, run.

use anyhow::{Result, anyhow};
use corefit_sim::{Scenario, Set, Sim, Spec, Truth};

use crate::parallel;

/// A scenario with some values set.
pub(super) fn spec(text: &str, sets: &[(&str, String)]) -> Result<Spec> {
    let sets: Vec<Set> = sets.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect();
    Ok(Scenario::parse(text, &sets).map_err(|e| anyhow!("{e}"))?.spec)
}

/// What happens until all programs that have an end have come to it, or the scenario's `until`; on all cores.
pub(super) fn run(specs: &[Spec], what: &str) -> Result<Vec<Truth>> {
    let results = parallel::map(specs, parallel::cpus(), what, |spec| {
        let mut sim = Sim::new(spec)?;
        if spec.vms.iter().flat_map(|vm| &vm.apps).all(|app| app.program.is_endless()) {
            sim.run_for(spec.until_ns);
        } else {
            sim.run();
        }
        Ok(sim.truth())
    });
    results.into_iter().collect()
}

/// Seconds until the last VM's program came to its end; `None` if one did not.
pub(super) fn seconds(truth: &Truth) -> Option<f64> {
    let took: Option<Vec<u64>> = truth.vms.iter().flat_map(|vm| &vm.apps).map(|app| app.took_ns).collect();
    Some(took?.into_iter().max()? as f64 / 1e9)
}

/// Marks of all VMs in a second.
pub(super) fn marks_per_s(truth: &Truth) -> f64 {
    let marks: u64 = truth.vms.iter().flat_map(|vm| &vm.apps).map(|app| app.marks).sum();
    marks as f64 * 1e9 / truth.ran_ns as f64
}

//! What settings were before a daemon changed them, for who decides: a look shows only what they are.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Result;
use corefit_core::decide::Controller;
use corefit_core::machine::{Lever, Value};

use crate::manage::Boot;
use crate::manage::journal::{Entry, Journal};

/// Tells a controller, before each of its steps.
pub(crate) fn heed(controller: &mut Controller, entries: &[Entry]) {
    let (mut weights, mut cpusets, mut sizes) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
    for Entry { vm, lever, original, wrote, .. } in entries {
        match (lever, original, wrote.last()) {
            (Lever::Weight, Value::Weight(weight), _) => drop(weights.insert(vm.clone(), *weight)),
            // Empty is that of the group above (v2).
            (Lever::Affinity(0), Value::Pcpus(set), _) => drop(cpusets.insert(vm.clone(), set.clone())),
            (Lever::Online, Value::Vcpus(before), Some(Value::Vcpus(made))) => {
                sizes.insert(vm.clone(), (before.clone(), made.clone()));
            }
            _ => {}
        }
    }
    controller.weighed_before(weights);
    controller.confined_before(cpusets);
    controller.sized_before(sizes);
}

/// What a daemon with this directory has changed on this host since it booted.
///
/// # Errors
/// If its journal cannot be read.
pub(crate) fn changed(state: &Path) -> Result<Vec<Entry>> {
    Journal::found(state, &Boot::now(true)?).map(|found| found.map_or(Vec::new(), |(_, entries)| entries))
}

//! Scenarios of `corefit sim`, and hosts written down for `corefit explain`.
#![no_main]

use corefit_sim::Scenario;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let _ = Scenario::parse(text, &[]);
});

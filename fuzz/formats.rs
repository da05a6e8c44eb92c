//! What `corefit check` and `corefit topology` read, in every format, and what they find in it.
#![no_main]

use corefit_core::check::{Subject, check};
use corefit_core::topology::Topology;
use corefit_linux::formats::{Format, decode, detect};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(text) = decode(data.to_vec()) else { return };
    let host: Topology = "2 sockets x 2 cores x 2 threads; offline 3; isolated 7".parse().unwrap();
    let _ = detect(&text);
    for format in Format::ALL {
        if let Ok(found) = format.topology(&text) {
            assert!(!found.pcpus.is_empty());
            assert_eq!(found.clone().settle(), Ok(found));
        }
        if let Ok(found) = format.vms(&text, "file", Some(&host)) {
            let topology = Some(host.clone());
            let subject = Subject { topology, vms: found.vms, shared: found.shared, ..Subject::default() };
            for finding in check(&subject) {
                let _ = finding.changes;
            }
        }
    }
});

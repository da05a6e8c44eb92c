//! What libvirtd says of a host and its running VMs, as XML: for who wants every setting, not only those
//! that decide what a VM gets.

use std::time::{Duration, Instant};

use corefit_core::machine::MachineError;

use super::api::{Access, Connection, named};
use super::session::is_local;
use super::sys;
use super::worker::Crew;

/// XML of a host.
#[derive(Clone, Debug, Default)]
pub struct Documents {
    /// Whether the host is this machine.
    pub local: bool,
    /// The host's capabilities.
    pub capabilities: String,
    /// Running domains: names and live definitions.
    pub domains: Vec<(String, String)>,
    /// Domains whose definition could not be had, and why.
    pub unread: Vec<String>,
}

/// Asks the libvirtd of a URI; an empty one is libvirt's default. Only asks, never changes.
///
/// # Errors
/// If it is not there, or does not answer within `timeout`.
pub fn documents(uri: &str, timeout: Duration) -> Result<Documents, MachineError> {
    let deadline = Instant::now() + timeout;
    let seconds = i32::try_from(timeout.as_secs()).unwrap_or(i32::MAX).max(2);
    let late = || MachineError::Gone(format!("{}: no answer within {} s", named(uri), timeout.as_secs()));
    let asked = uri.to_owned();
    let crew = Crew::default();
    let worker = crew.start("libvirt", || Some(())).ok_or_else(late)?;
    worker.call(deadline, move |()| ask(&asked, seconds)).map_err(|_| late())?
}

fn ask(uri: &str, seconds: i32) -> Result<Documents, MachineError> {
    let fail = |error: super::api::Failure| error.machine(uri);
    let connection = Connection::open(uri, Access::Read, seconds)
        .or_else(|_| Connection::open(uri, Access::Write, seconds));
    let connection = connection.map_err(fail)?;
    let driver = connection.driver().map_err(fail)?;
    let mut found = Documents {
        local: driver == "QEMU" && is_local(&connection.uri().map_err(fail)?),
        capabilities: connection.capabilities().map_err(fail)?,
        ..Documents::default()
    };
    for domain in connection.domains(sys::VIR_CONNECT_LIST_DOMAINS_ACTIVE).map_err(fail)? {
        let name = domain.name();
        match domain.xml() {
            Ok(xml) => found.domains.push((name, xml)),
            // What ended meanwhile is no more.
            Err(_) if domain.id().is_none() => {}
            Err(error) => found.unread.push(format!("{name}: {error}")),
        }
    }
    found.domains.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_test_driver_has_capabilities_and_a_domain() {
        let found = documents("test:///default", Duration::from_secs(10)).unwrap();
        assert!(!found.local);
        assert!(found.capabilities.contains("<capabilities>"));
        assert_eq!(found.domains[0].0, "test");
        assert!(found.domains[0].1.contains("<vcpu"));
    }

    #[test]
    fn nobody_there_is_said() {
        let error = documents("qemu:///session?socket=/nonexistent/sock", Duration::from_secs(5));
        assert!(error.is_err());
    }
}

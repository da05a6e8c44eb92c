//! What the service manager is told of the daemon: that it looks, that it ends, and that putting back goes on.
//!
//! Source: sd_notify(3): a datagram to the socket that `NOTIFY_SOCKET` names, a path, or `@` and an abstract name. Without it nothing is
//! said. Nobody but the daemon and the `corefit restore` after it is heard (`NotifyAccess=exec` in the unit: what systemd itself starts,
//! systemd.service(5)), so programs that a library starts may have the variable.

use std::ffi::OsStr;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Longest that putting back one setting may take: a guest that does not answer takes 11 s, memory that is moved may take longer.
const EACH: Duration = Duration::from_secs(60);
/// That it goes on is said so often at most.
const BETWEEN: Duration = Duration::from_secs(1);
/// A service manager that does not read is waited for so long.
const PATIENCE: Duration = Duration::from_millis(500);

static SERVICE: LazyLock<Option<Service>> =
    LazyLock::new(|| Service::at(std::env::var_os("NOTIFY_SOCKET")?.as_os_str()));

/// It looks at the machine.
pub(super) fn ready() {
    if let Some(service) = &*SERVICE {
        service.begins(true);
    }
}

/// It puts everything back, and ends.
pub(super) fn stopping() {
    if let Some(service) = &*SERVICE {
        service.begins(false);
    }
}

/// One more setting is put back, before it looks or at its end: there is time for another one, however long all of them took.
pub(super) fn goes_on() {
    if let Some(service) = &*SERVICE {
        service.goes_on(Instant::now());
    }
}

/// Who is told.
struct Service {
    socket: UnixDatagram,
    address: SocketAddr,
    said: Mutex<Said>,
}

/// What was said last.
#[derive(Default)]
struct Said {
    /// It looks, and does not end yet: nothing limits its time.
    looks: bool,
    /// When it was said that it goes on.
    on: Option<Instant>,
}

impl Service {
    /// `None` where that is no address.
    fn at(name: &OsStr) -> Option<Service> {
        let address = match name.as_bytes() {
            [b'@', name @ ..] => SocketAddr::from_abstract_name(name).ok()?,
            [b'/', ..] => SocketAddr::from_pathname(name).ok()?,
            _ => return None,
        };
        let socket = UnixDatagram::unbound().ok()?;
        socket.set_write_timeout(Some(PATIENCE)).ok()?;
        Some(Service { socket, address, said: Mutex::default() })
    }

    /// Whoever does not hear it goes by the times in the unit.
    fn tell(&self, text: &str) {
        let _ = self.socket.send_to_addr(text.as_bytes(), &self.address);
    }

    /// From now on it looks, or ends.
    fn begins(&self, looks: bool) {
        self.said.lock().unwrap_or_else(PoisonError::into_inner).looks = looks;
        self.tell(if looks { "READY=1" } else { "STOPPING=1" });
    }

    fn goes_on(&self, now: Instant) {
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        if !said.looks && said.on.is_none_or(|last| now.saturating_duration_since(last) >= BETWEEN) {
            said.on = Some(now);
            self.tell(&format!("EXTEND_TIMEOUT_USEC={}", EACH.as_micros()));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;

    /// What is there to be read, in order.
    fn heard(socket: &UnixDatagram) -> Vec<String> {
        socket.set_nonblocking(true).unwrap();
        let mut buffer = [0; 256];
        let next =
            || socket.recv(&mut buffer).ok().map(|n| String::from_utf8_lossy(&buffer[..n]).into_owned());
        std::iter::from_fn(next).collect()
    }

    #[test]
    fn a_path_and_an_abstract_name_are_told_each_thing_and_once_a_second_that_the_end_goes_on() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let name = format!("corefit-test-{}", dir.path().display());
        let abstract_name = SocketAddr::from_abstract_name(&name).unwrap();
        let sockets = [UnixDatagram::bind(&path), UnixDatagram::bind_addr(&abstract_name)];
        for (socket, name) in sockets.iter().zip([path.into(), OsString::from(format!("@{name}"))]) {
            let service = Service::at(&name).unwrap();
            let begun = Instant::now();
            service.begins(true);
            service.goes_on(begun);
            service.begins(false);
            for ms in [0, 999, 1000, 1001, 2000] {
                service.goes_on(begun + Duration::from_millis(ms));
            }
            let more = "EXTEND_TIMEOUT_USEC=60000000";
            assert_eq!(
                heard(socket.as_ref().unwrap()),
                ["READY=1", "STOPPING=1", more, more, more],
                "{name:?}"
            );
        }
    }

    #[test]
    fn what_is_no_socket_is_told_nothing() {
        assert!(["", "notify", "vsock:2:1"].iter().all(|name| Service::at(OsStr::new(name)).is_none()));
        let nobody = Service::at(OsStr::new("/nonexistent/notify")).unwrap();
        nobody.begins(true);
    }
}

//! The libvirt machine on libvirt's own test driver: no hypervisor, no libvirtd.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::io::Write;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use corefit_core::machine::{Machine, MachineError, Role, Snapshot, State, contract};
use corefit_linux::libvirt::{Options, open};

const URI: &str = "test:///default";

/// Its one host is shared by all connections of a process, and there as long as one is open.
struct Host {
    raw: *mut c_void,
    _alone: MutexGuard<'static, ()>,
}

/// A function of libvirt that takes a connection or domain, and something else or nothing.
///
/// # Safety
/// The function of this name has the type `F`.
unsafe fn function<F: Copy>(name: &CStr) -> F {
    // SAFETY: C strings; the library is loaded by then, or may be.
    let found = unsafe { libc::dlsym(libc::dlopen(c"libvirt.so.0".as_ptr(), libc::RTLD_NOW), name.as_ptr()) };
    assert!(!found.is_null(), "libvirt has no {name:?}");
    // SAFETY: what the caller promises; functions have the size of pointers.
    unsafe { std::mem::transmute_copy(&found) }
}

/// Takes a pointer.
type One = unsafe extern "C" fn(*mut c_void) -> c_int;
/// Takes a connection and a text, returns a domain.
type Find = unsafe extern "C" fn(*mut c_void, *const c_char, c_uint) -> *mut c_void;

impl Host {
    /// `None`, and says why, where libvirt is not installed.
    fn new() -> Option<Host> {
        // SAFETY: a C string.
        if unsafe { libc::dlopen(c"libvirt.so.0".as_ptr(), libc::RTLD_NOW) }.is_null() {
            // Past the capture of the test's output.
            let _ = writeln!(std::io::stderr(), "skipped: libvirt's test driver: no libvirt.so.0 here");
            return None;
        }
        static ALONE: Mutex<()> = Mutex::new(());
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the type of virConnectOpen, and a C string.
        let raw = unsafe {
            let open: unsafe extern "C" fn(*const c_char) -> *mut c_void = function(c"virConnectOpen");
            open(c"test:///default".as_ptr())
        };
        assert!(!raw.is_null());
        Some(Host { raw, _alone: alone })
    }

    /// Calls a function of libvirt on a domain, which has to succeed.
    fn on(&self, name: &str, call: &CStr) {
        // SAFETY: functions of these types (the first ignores the last argument).
        unsafe {
            let domain = self.domain(c"virDomainLookupByName", name);
            assert!(function::<One>(call)(domain) >= 0, "{call:?} failed for {name}");
            function::<One>(c"virDomainFree")(domain);
        }
    }

    fn create(&self, xml: &str) {
        // SAFETY: functions of these types.
        unsafe { function::<One>(c"virDomainFree")(self.domain(c"virDomainCreateXML", xml)) };
    }

    /// # Safety
    /// The function is a [`Find`], or one without its last argument.
    unsafe fn domain(&self, find: &CStr, text: &str) -> *mut c_void {
        let name = CString::new(text).unwrap();
        // SAFETY: what the caller promises; an open connection and a C string.
        let domain = unsafe { function::<Find>(find)(self.raw, name.as_ptr(), 0) };
        assert!(!domain.is_null(), "no domain by {find:?} of {text}");
        domain
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // SAFETY: opened by us.
        unsafe { function::<One>(c"virConnectClose")(self.raw) };
    }
}

fn machine() -> Box<dyn Machine> {
    open(URI, Options::default())
}

fn names(snapshot: &Snapshot) -> Vec<(&str, State)> {
    snapshot.vms.iter().map(|vm| (vm.name.as_str(), vm.state)).collect()
}

#[test]
fn lists_domains_with_vcpus_affinities_and_counters() {
    let Some(_host) = Host::new() else { return };
    let mut machine = machine();
    assert_eq!(machine.name(), "libvirt test:///default");
    let snapshot = machine.observe().unwrap();
    assert_eq!(names(&snapshot), [("test", State::Running)]);
    let vm = &snapshot.vms[0];
    assert_eq!((vm.role, vm.id.0.as_str()), (Role::Vm, "6695eb01-f6a4-8304-79aa-97f2502e193f#1"));
    assert_eq!(vm.vcpus.len(), 2);
    for vcpu in &vm.vcpus {
        assert!(vcpu.online && vcpu.counters.run_ns.is_some_and(|ns| ns > 0), "{vcpu:?}");
        assert!(vcpu.affinity.as_ref().is_some_and(|set| !set.is_empty()), "{vcpu:?}");
    }
    assert_eq!(snapshot.pcpus.len(), 16);
    assert!(snapshot.pcpus.iter().any(|p| p.node == Some(1)) && snapshot.pcpus.iter().any(|p| !p.online));
    assert!(snapshot.notes.iter().any(|note| note.contains("cannot be read here")), "{:?}", snapshot.notes);
}

#[test]
fn keeps_to_the_contract() {
    let Some(_host) = Host::new() else { return };
    contract::observing(machine().as_mut(), Duration::from_millis(20)).unwrap();
}

#[test]
fn follows_domains_that_appear_pause_and_vanish_between_two_looks() {
    let Some(host) = Host::new() else { return };
    let mut machine = machine();
    machine.observe().unwrap();
    host.create(
        "<domain type='test'><name>second</name><memory>1024</memory>
         <vcpu cpuset='0-3' current='1'>2</vcpu><os><type>hvm</type></os>
         <cputune><shares>512</shares><quota>30000</quota><period>60000</period></cputune></domain>",
    );
    let snapshot = machine.observe().unwrap();
    assert_eq!(names(&snapshot), [("second", State::Running), ("test", State::Running)]);
    let second = &snapshot.vms[0];
    let plugged: Vec<bool> = second.vcpus.iter().map(|vcpu| vcpu.online).collect();
    assert_eq!(plugged, [true], "the other is not there");
    assert_eq!(second.weight.map(|weight| weight.0), Some(512.0));
    assert_eq!(second.vcpus[0].quota.as_ref().and_then(|q| q.cpus()).map(|cpus| cpus.0), Some(0.5));
    let first_id = second.id.clone();

    host.on("second", c"virDomainSuspend");
    let snapshot = machine.observe().unwrap();
    assert_eq!(names(&snapshot)[0], ("second", State::Paused));
    host.on("second", c"virDomainResume");
    assert_eq!(names(&machine.observe().unwrap())[0], ("second", State::Running));
    host.on("second", c"virDomainDestroy");
    let snapshot = machine.observe().unwrap();
    assert_eq!(names(&snapshot), [("test", State::Running)]);
    assert!(snapshot.unread.iter().all(|unread| !unread.path.contains("second")), "{:?}", snapshot.unread);

    host.create("<domain type='test'><name>second</name><memory>1024</memory><vcpu>1</vcpu><os><type>hvm</type></os></domain>");
    let again = machine.observe().unwrap();
    assert_ne!(again.vms[0].id, first_id, "a later domain of the same name is another one");
    host.on("second", c"virDomainDestroy");
}

#[test]
fn a_domain_that_is_shut_down_is_not_there_and_is_again_when_it_is_started() {
    let Some(host) = Host::new() else { return };
    let mut machine = machine();
    let first = machine.observe().unwrap().vms[0].id.clone();
    host.on("test", c"virDomainDestroy");
    assert_eq!(names(&machine.observe().unwrap()), []);
    host.on("test", c"virDomainCreate");
    let snapshot = machine.observe().unwrap();
    assert_eq!(names(&snapshot), [("test", State::Running)]);
    assert_ne!(snapshot.vms[0].id, first);
}

#[test]
fn changed_settings_are_seen_at_the_next_look() {
    let Some(host) = Host::new() else { return };
    let mut machine = machine();
    machine.observe().unwrap();
    // SAFETY: the type of virDomainPinVcpu; a domain, and a map of one byte.
    unsafe {
        let pin: unsafe extern "C" fn(*mut c_void, c_uint, *mut u8, c_int) -> c_int =
            function(c"virDomainPinVcpu");
        let domain = host.domain(c"virDomainLookupByName", "test");
        assert!(pin(domain, 1, [0b0000_0100u8].as_mut_ptr(), 1) >= 0);
        function::<One>(c"virDomainFree")(domain);
    }
    let snapshot = machine.observe().unwrap();
    let affinity = snapshot.vms[0].vcpus[1].affinity.as_ref().map(ToString::to_string);
    assert_eq!(affinity.as_deref(), Some("2"));
}

#[test]
fn a_socket_that_is_not_there_or_never_answers_is_gone_within_the_timeout() {
    let timeout = Duration::from_millis(300);
    let options = || Options { timeout, guests: None };
    let mut nothing = open("qemu+unix:///system?socket=/nonexistent/libvirt-sock", options());
    let Err(MachineError::Gone(text)) = nothing.observe() else { panic!("observed nothing") };
    assert!(text.contains("/nonexistent/libvirt-sock") && text.contains("systemctl start"), "{text}");

    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("silent");
    let _silent = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let uri = format!("qemu+unix:///system?socket={}", socket.display());
    let mut silent = open(&uri, options());
    // More often than threads may hang.
    for _ in 0..8 {
        let begun = Instant::now();
        let Err(MachineError::Gone(text)) = silent.observe() else { panic!("observed silence") };
        assert!(text.contains("does not answer"), "{text}");
        assert!(begun.elapsed() < timeout + Duration::from_millis(700), "{:?}", begun.elapsed());
    }
}

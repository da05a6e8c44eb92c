//! The calls of libvirt that are needed here, safe.
//!
//! Every call blocks until libvirtd answers, which may be never: [`Worker`](super::worker::Worker)
//! makes them. Names and meanings are libvirt's (libvirt-host.h, libvirt-domain.h, libvirt-qemu.h).

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int, c_uint};
use std::marker::PhantomData;
use std::ptr;
use std::sync::Once;
use std::time::Instant;

use corefit_core::machine::MachineError;
use rustix::process::geteuid;

use super::{effect, guest, sys};
use crate::formats::xml;

/// Why a call failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// libvirtd, this version of it, or this hypervisor cannot.
    Unsupported,
    /// No libvirtd, or none that answers.
    Gone,
    /// No such domain (any more), or it does not run.
    NoDomain,
    /// The hypervisor or the guest did not do it in libvirt's own time.
    Late,
    /// Not allowed.
    Denied,
    /// The answer, the URI, or a value that the kernel refuses, makes no sense.
    Malformed,
}

/// What libvirt said when a call failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub(super) struct Failure {
    pub(super) kind: Kind,
    pub(super) text: String,
}

impl Failure {
    /// The last error of this thread.
    pub(super) fn last() -> Failure {
        // SAFETY: the error belongs to this thread, and lives until its next call.
        let error = unsafe { sys::virGetLastError().as_ref() };
        let Some(error) = error else {
            return Failure { kind: Kind::Gone, text: "libvirt failed without a reason".into() };
        };
        let text = if error.message.is_null() {
            format!("libvirt error {}", error.code)
        } else {
            // SAFETY: a message that is there is a C string.
            unsafe { CStr::from_ptr(error.message) }.to_string_lossy().trim().to_owned()
        };
        let code = c_uint::try_from(error.code).unwrap_or(0);
        Failure { kind: kind(code, error.int1, &text), text }
    }

    /// For a whole machine; `uri` names it.
    pub(super) fn machine(&self, uri: &str) -> MachineError {
        let text = format!("{}: {}", named(uri), self.text);
        match self.kind {
            Kind::Unsupported => MachineError::Unsupported(text),
            Kind::Malformed => MachineError::Malformed(text),
            Kind::Denied => MachineError::Denied(format!(
                "{text} (be root, or a member of group libvirt; `{}` tells whether that helped)",
                virsh(uri)
            )),
            Kind::Gone | Kind::NoDomain if self.text.contains("socket") => MachineError::Gone(format!(
                "{text} (is libvirtd running? `systemctl start libvirtd`, or virtqemud.socket where it is modular)"
            )),
            Kind::Gone | Kind::NoDomain | Kind::Late => MachineError::Gone(text),
        }
    }
}

/// What to call the libvirt of a URI.
pub(super) fn named(uri: &str) -> String {
    if uri.is_empty() { "libvirt".into() } else { format!("libvirt {uri}") }
}

/// The command that asks the libvirtd of a URI, too.
pub(super) fn virsh(uri: &str) -> String {
    if uri.is_empty() { "virsh list".into() } else { format!("virsh -c {uri} list") }
}

/// `number` is the errno of system errors.
fn kind(code: sys::virErrorNumber, number: c_int, text: &str) -> Kind {
    match code {
        sys::VIR_ERR_NO_SUPPORT
        | sys::VIR_ERR_ARGUMENT_UNSUPPORTED
        | sys::VIR_ERR_OPERATION_UNSUPPORTED
        | sys::VIR_ERR_CONFIG_UNSUPPORTED
        | sys::VIR_ERR_NO_CONNECT => Kind::Unsupported,
        sys::VIR_ERR_NO_DOMAIN | sys::VIR_ERR_OPERATION_INVALID => Kind::NoDomain,
        sys::VIR_ERR_AUTH_FAILED
        | sys::VIR_ERR_AUTH_CANCELLED
        | sys::VIR_ERR_AUTH_UNAVAILABLE
        | sys::VIR_ERR_OPERATION_DENIED
        | sys::VIR_ERR_ACCESS_DENIED => Kind::Denied,
        sys::VIR_ERR_SYSTEM_ERROR if number == libc::EACCES || text.contains("Permission denied") => {
            Kind::Denied
        }
        // The kernel's answer to what was written: no connection is lost, and nothing is on its way.
        sys::VIR_ERR_SYSTEM_ERROR if [libc::EINVAL, libc::ERANGE, libc::E2BIG].contains(&number) => {
            Kind::Malformed
        }
        sys::VIR_ERR_OPERATION_TIMEOUT => Kind::Late,
        sys::VIR_ERR_INVALID_ARG | sys::VIR_ERR_XML_ERROR => Kind::Malformed,
        _ => Kind::Gone,
    }
}

/// A connection to libvirtd, used by one thread.
#[derive(Debug)]
pub(super) struct Connection {
    raw: sys::virConnectPtr,
    /// Events that it is subscribed to; each holds the connection open.
    callbacks: RefCell<Vec<c_int>>,
    /// Errors are kept per thread, so it stays in one.
    one_thread: PhantomData<*const ()>,
}

/// Numbers, each with its name.
pub(super) type Numbers = Vec<(String, u64)>;

/// Who may do what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// Asks only.
    Read,
    /// May also command: guest agents are asked by command.
    Write,
}

impl Connection {
    /// Connects, and has libvirt notice within `keepalive` seconds that nobody answers any more.
    pub(super) fn open(uri: &str, access: Access, keepalive: i32) -> Result<Connection, Failure> {
        sys::load().map_err(|text| Failure { kind: Kind::Unsupported, text })?;
        prepare();
        let uri = usual(uri, geteuid().is_root(), effect::chosen().is_some());
        readable(uri)?;
        let name = CString::new(uri)
            .map_err(|_| Failure { kind: Kind::Malformed, text: "a URI holds no zero byte".into() })?;
        // SAFETY: a C string that outlives the call.
        let raw = unsafe {
            match access {
                Access::Read => sys::virConnectOpenReadOnly(name.as_ptr()),
                Access::Write => sys::virConnectOpen(name.as_ptr()),
            }
        };
        if raw.is_null() {
            return Err(Failure::last());
        }
        let connection = Connection { raw, callbacks: RefCell::default(), one_thread: PhantomData };
        // Drivers without a libvirtd cannot, and need not.
        // SAFETY: an open connection.
        unsafe { sys::virConnectSetKeepAlive(raw, (keepalive / 2).max(1), 1) };
        Ok(connection)
    }

    pub(super) fn raw(&self) -> sys::virConnectPtr {
        self.raw
    }

    /// Ends this subscription when the connection is closed.
    pub(super) fn keep(&self, callback: c_int) {
        self.callbacks.borrow_mut().push(callback);
    }

    /// The driver: `QEMU`, `TEST`.
    pub(super) fn driver(&self) -> Result<String, Failure> {
        // SAFETY: an open connection; the text is static.
        let text = unsafe { sys::virConnectGetType(self.raw) };
        if text.is_null() {
            return Err(Failure::last());
        }
        // SAFETY: a C string.
        Ok(unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
    }

    /// The URI that it really has, such as `qemu:///system` where none was given.
    pub(super) fn uri(&self) -> Result<String, Failure> {
        // SAFETY: an open connection; hands out a text of ours.
        unsafe { owned(sys::virConnectGetURI(self.raw)) }
    }

    /// Whether libvirtd answers; waits for no domain.
    pub(super) fn answers(&self) -> bool {
        let mut version = 0;
        // SAFETY: an open connection and a place for a number.
        unsafe { sys::virConnectGetLibVersion(self.raw, &raw mut version) == 0 }
    }

    /// What the host is, as XML.
    pub(super) fn capabilities(&self) -> Result<String, Failure> {
        // SAFETY: as above.
        unsafe { owned(sys::virConnectGetCapabilities(self.raw)) }
    }

    /// Domains in one of the states of `flags` (`VIR_CONNECT_LIST_DOMAINS_…`).
    pub(super) fn domains(&self, flags: c_uint) -> Result<Vec<Domain<'_>>, Failure> {
        let mut list: *mut sys::virDomainPtr = ptr::null_mut();
        // SAFETY: an open connection and a place for the list.
        let count = unsafe { sys::virConnectListAllDomains(self.raw, &raw mut list, flags) };
        let Ok(count) = usize::try_from(count) else { return Err(Failure::last()) };
        // SAFETY: that many domains are in the list, and each is ours.
        let domains = unsafe { (0..count).map(|i| Domain::of(*list.add(i))).collect() };
        // SAFETY: the list itself is ours, too.
        unsafe { libc::free(list.cast()) };
        Ok(domains)
    }

    /// A domain that runs or not.
    pub(super) fn domain(&self, uuid: &str) -> Result<Domain<'_>, Failure> {
        let uuid = CString::new(uuid).unwrap_or_default();
        // SAFETY: an open connection, and a C string.
        let raw = unsafe { sys::virDomainLookupByUUIDString(self.raw, uuid.as_ptr()) };
        if raw.is_null() { Err(Failure::last()) } else { Ok(Domain::of(raw)) }
    }

    /// The numbers that `virConnectGetAllDomainStats` gives of all active domains, without waiting
    /// for those that are busy: UUID, and each number with its name.
    pub(super) fn stats(&self, which: c_uint) -> Result<Vec<(String, Numbers)>, Failure> {
        let mut list: *mut sys::virDomainStatsRecordPtr = ptr::null_mut();
        let flags =
            sys::VIR_CONNECT_GET_ALL_DOMAINS_STATS_NOWAIT | sys::VIR_CONNECT_GET_ALL_DOMAINS_STATS_ACTIVE;
        // SAFETY: an open connection and a place for the list.
        let count = unsafe { sys::virConnectGetAllDomainStats(self.raw, which, &raw mut list, flags) };
        let Ok(count) = usize::try_from(count) else { return Err(Failure::last()) };
        let mut all = Vec::with_capacity(count);
        for i in 0..count {
            // SAFETY: that many records are in the list, each with `nparams` parameters.
            let (record, params) = unsafe {
                let record = &**list.add(i);
                (record, parameters(record.params, record.nparams))
            };
            if let Ok(uuid) = uuid(record.dom) {
                all.push((uuid, params));
            }
        }
        // SAFETY: the list is ours, and nothing of it is kept.
        unsafe { sys::virDomainStatsRecordListFree(list) };
        Ok(all)
    }

    /// pCPUs that are there, and whether each is online.
    pub(super) fn cpu_map(&self) -> Result<Vec<bool>, Failure> {
        let mut map: *mut u8 = ptr::null_mut();
        // SAFETY: an open connection and a place for the map.
        let count = unsafe { sys::virNodeGetCPUMap(self.raw, &raw mut map, ptr::null_mut(), 0) };
        let Ok(count) = usize::try_from(count) else { return Err(Failure::last()) };
        // SAFETY: the map has a bit for each, and is ours.
        let online = unsafe { (0..count).map(|i| bit(&*map.add(i / 8), i)).collect() };
        // SAFETY: allocated by libvirt with malloc.
        unsafe { libc::free(map.cast()) };
        Ok(online)
    }

    /// Times of a pCPU since boot, ns: `idle`, `iowait` and so on.
    pub(super) fn cpu_stats(&self, cpu: u32) -> Result<Numbers, Failure> {
        let cpu = c_int::try_from(cpu).unwrap_or(c_int::MAX);
        // SAFETY: plain numbers and bytes.
        let mut params: [sys::virNodeCPUStats; 16] = unsafe { std::mem::zeroed() };
        let mut count: c_int = 0;
        // SAFETY: without room, it only tells how much is needed; QEMU's driver takes exactly that much.
        let asked = unsafe { sys::virNodeGetCPUStats(self.raw, cpu, ptr::null_mut(), &raw mut count, 0) };
        if asked < 0 {
            return Err(Failure::last());
        }
        count = count.min(16);
        // SAFETY: room for 16, of which `count` says so.
        let done = unsafe { sys::virNodeGetCPUStats(self.raw, cpu, params.as_mut_ptr(), &raw mut count, 0) };
        if done < 0 {
            return Err(Failure::last());
        }
        let count = usize::try_from(count).unwrap_or(0);
        Ok(params.iter().take(count).map(|p| (field(&p.field), p.value)).collect())
    }
}

/// The URI to open for one that may be empty. libvirt's default for users other than root would start a libvirtd
/// for them, which has no VMs; the host's is meant.
fn usual(uri: &str, root: bool, chosen: bool) -> &str {
    if uri.is_empty() && !root && !chosen { "qemu:///system" } else { uri }
}

/// Checks the file in a URI of libvirt's test driver: libvirt's XML library would print what is wrong with it.
fn readable(uri: &str) -> Result<(), Failure> {
    let Some(file) = uri.strip_prefix("test://").filter(|file| file.starts_with('/') && *file != "/default")
    else {
        return Ok(());
    };
    let malformed = |text| Failure { kind: Kind::Malformed, text };
    let text = std::fs::read_to_string(file).map_err(|error| {
        malformed(format!(
            "{file}: {error}; give a file in the form of libvirt's test driver, or test:///default"
        ))
    })?;
    xml::open(&text).map(drop).map_err(|error| malformed(format!("{file}, {error}")))
}

impl Drop for Connection {
    fn drop(&mut self) {
        for callback in self.callbacks.take() {
            // SAFETY: an open connection.
            unsafe { sys::virConnectDomainEventDeregisterAny(self.raw, callback) };
        }
        // SAFETY: opened by us, and nothing uses it any more.
        unsafe { sys::virConnectClose(self.raw) };
    }
}

/// A domain of a connection.
#[derive(Debug)]
pub(super) struct Domain<'a> {
    pub(super) raw: sys::virDomainPtr,
    connection: PhantomData<&'a Connection>,
}

/// A vCPU that is plugged in, as libvirtd sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct VcpuInfo {
    pub(super) number: u32,
    pub(super) run_ns: u64,
    pub(super) on: Option<u32>,
    /// Whether it may use each pCPU.
    pub(super) map: Vec<bool>,
}

impl Domain<'_> {
    fn of<'a>(raw: sys::virDomainPtr) -> Domain<'a> {
        Domain { raw, connection: PhantomData }
    }

    pub(super) fn uuid(&self) -> Result<String, Failure> {
        uuid(self.raw)
    }

    /// Which run of it; `None` if it does not run.
    pub(super) fn id(&self) -> Option<u32> {
        // SAFETY: a domain of an open connection.
        let id = unsafe { sys::virDomainGetID(self.raw) };
        (id != u32::MAX).then_some(id)
    }

    pub(super) fn name(&self) -> String {
        // SAFETY: a domain; the text lives as long.
        let name = unsafe { sys::virDomainGetName(self.raw) };
        if name.is_null() {
            return String::new();
        }
        // SAFETY: a C string.
        unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
    }

    /// Whether it has vCPUs that can run: not paused, suspended or crashed.
    pub(super) fn runs(&self) -> Result<bool, Failure> {
        let mut state: c_int = 0;
        // SAFETY: a domain and a place for its state.
        if unsafe { sys::virDomainGetState(self.raw, &raw mut state, ptr::null_mut(), 0) } < 0 {
            return Err(Failure::last());
        }
        let stopped = [sys::VIR_DOMAIN_PAUSED, sys::VIR_DOMAIN_PMSUSPENDED, sys::VIR_DOMAIN_CRASHED];
        Ok(!stopped.iter().any(|stopped| c_uint::try_from(state) == Ok(*stopped)))
    }

    /// Its live definition.
    pub(super) fn xml(&self) -> Result<String, Failure> {
        // SAFETY: a domain; hands out a text of ours.
        unsafe { owned(sys::virDomainGetXMLDesc(self.raw, 0)) }
    }

    /// Its vCPUs, of which there are at most `max`, on a host of `pcpus`.
    pub(super) fn vcpus(&self, max: usize, pcpus: usize) -> Result<Vec<VcpuInfo>, Failure> {
        let length = pcpus.div_ceil(8);
        let mut maps = vec![0u8; max * length];
        let empty = sys::virVcpuInfo { number: 0, state: 0, cpuTime: 0, cpu: -1 };
        let mut info = vec![empty; max];
        let size = |n: usize| c_int::try_from(n).unwrap_or(c_int::MAX);
        // SAFETY: room for `max` vCPUs, and for as many maps of `length` bytes.
        let count = unsafe {
            sys::virDomainGetVcpus(self.raw, info.as_mut_ptr(), size(max), maps.as_mut_ptr(), size(length))
        };
        let Ok(count) = usize::try_from(count) else { return Err(Failure::last()) };
        let one = |(info, map): (&sys::virVcpuInfo, &[u8])| VcpuInfo {
            number: info.number,
            run_ns: info.cpuTime,
            on: u32::try_from(info.cpu).ok(),
            map: (0..pcpus).map(|i| bit(&map[i / 8], i)).collect(),
        };
        Ok(info.iter().zip(maps.chunks(length.max(1))).take(count).map(one).collect())
    }

    /// What its scheduler really has: `cpu_shares` and so on.
    pub(super) fn scheduler(&self) -> Result<Numbers, Failure> {
        // What libvirtd takes at the most (REMOTE_DOMAIN_SCHEDULER_PARAMETERS_MAX).
        const ROOM: usize = 16;
        // SAFETY: plain numbers and bytes.
        let mut params: [sys::virTypedParameter; ROOM] = unsafe { std::mem::zeroed() };
        let mut count = c_int::try_from(ROOM).unwrap_or(0);
        // SAFETY: room for as many as `count` says.
        let done =
            unsafe { sys::virDomainGetSchedulerParameters(self.raw, params.as_mut_ptr(), &raw mut count) };
        if done < 0 {
            return Err(Failure::last());
        }
        // SAFETY: `count` of them are filled; numbers, so nothing is to be freed.
        Ok(unsafe { parameters(params.as_ptr(), count) })
    }

    /// Asks its guest agent, and waits at most so many seconds for the answer; of one that took the command without, see [`guest::said`].
    /// One at a time.
    pub(super) fn agent(&self, command: &str, seconds: i32) -> Result<String, Failure> {
        let command = CString::new(command).unwrap_or_default();
        let begun = Instant::now();
        // SAFETY: a domain and a C string; hands out a text of ours.
        let answer = unsafe { owned(sys::virDomainQemuAgentCommand(self.raw, command.as_ptr(), seconds, 0)) };
        answer.map_err(|Failure { kind, text }| {
            // SAFETY: as in `Failure::last`.
            let code = unsafe { sys::virGetLastError().as_ref() }.map_or(0, |error| error.code);
            let code = c_uint::try_from(code).unwrap_or(0);
            Failure { kind, text: guest::said(code, text, begun.elapsed(), seconds) }
        })
    }
}

impl Drop for Domain<'_> {
    fn drop(&mut self) {
        // SAFETY: handed to us by libvirt, and nothing uses it any more.
        unsafe { sys::virDomainFree(self.raw) };
    }
}

/// The UUID as text.
pub(super) fn uuid(domain: sys::virDomainPtr) -> Result<String, Failure> {
    let mut buffer: [c_char; 37] = [0; 37];
    // SAFETY: a domain, and room for 36 characters and the end.
    if unsafe { sys::virDomainGetUUIDString(domain, buffer.as_mut_ptr()) } < 0 {
        return Err(Failure::last());
    }
    // SAFETY: a C string by now.
    Ok(unsafe { CStr::from_ptr(buffer.as_ptr()) }.to_string_lossy().into_owned())
}

/// Once per process, before the first connection.
fn prepare() {
    static ONCE: Once = Once::new();
    extern "C" fn silent(_: *mut std::ffi::c_void, _: sys::virErrorPtr) {}
    ONCE.call_once(|| {
        // SAFETY: a function that does nothing; libvirt would print errors otherwise.
        unsafe { sys::virSetErrorFunc(ptr::null_mut(), Some(silent)) };
        super::events::run();
    });
}

/// A text that libvirt gave us to keep; frees it.
///
/// # Safety
/// Null, or a C string allocated with malloc that nobody else has.
unsafe fn owned(text: *mut c_char) -> Result<String, Failure> {
    if text.is_null() {
        return Err(Failure::last());
    }
    // SAFETY: what the caller promises.
    let copy = unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned();
    // SAFETY: as above.
    unsafe { libc::free(text.cast()) };
    Ok(copy)
}

/// Those of the parameters that are numbers and not negative.
///
/// # Safety
/// `count` filled parameters are there.
unsafe fn parameters(params: *const sys::virTypedParameter, count: c_int) -> Numbers {
    let count = usize::try_from(count).unwrap_or(0);
    let number = |i: usize| {
        // SAFETY: what the caller promises; `type_` tells which field of the union is filled.
        let (param, value) = unsafe {
            let param = &*params.add(i);
            let value = match c_uint::try_from(param.type_).ok()? {
                sys::VIR_TYPED_PARAM_INT => u64::try_from(param.value.i).ok()?,
                sys::VIR_TYPED_PARAM_UINT => u64::from(param.value.ui),
                sys::VIR_TYPED_PARAM_LLONG => u64::try_from(param.value.l).ok()?,
                sys::VIR_TYPED_PARAM_ULLONG => param.value.ul,
                _ => return None,
            };
            (param, value)
        };
        Some((field(&param.field), value))
    };
    (0..count).filter_map(number).collect()
}

/// The name in a field of fixed length.
fn field(name: &[c_char]) -> String {
    let bytes = name.iter().map(|c| c.to_ne_bytes()[0]).take_while(|byte| *byte != 0).collect();
    String::from_utf8(bytes).unwrap_or_default()
}

fn bit(byte: &u8, number: usize) -> bool {
    byte >> (number % 8) & 1 == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_of_failure_are_told_apart() {
        let kinds = [
            (sys::VIR_ERR_SYSTEM_ERROR, libc::EACCES, Kind::Denied),
            (sys::VIR_ERR_SYSTEM_ERROR, libc::ENOENT, Kind::Gone),
            (sys::VIR_ERR_SYSTEM_ERROR, libc::EINVAL, Kind::Malformed),
            (sys::VIR_ERR_NO_DOMAIN, 0, Kind::NoDomain),
            (sys::VIR_ERR_NO_CONNECT, 0, Kind::Unsupported),
            (sys::VIR_ERR_AUTH_FAILED, 0, Kind::Denied),
            (39, 0, Kind::Gone), // VIR_ERR_RPC
        ];
        for (code, number, expected) in kinds {
            assert_eq!(kind(code, number, ""), expected, "{code}");
        }
    }

    #[test]
    fn a_file_for_the_test_driver_that_is_not_there_or_no_xml_is_refused_before_libvirt_sees_it() {
        let refused = |uri: &str| {
            let error = Connection::open(uri, Access::Read, 4).unwrap_err();
            assert_eq!(error.kind, Kind::Malformed);
            error.machine(uri).to_string()
        };
        let text = refused("test:////nope.xml");
        assert!(text.starts_with("libvirt test:////nope.xml: //nope.xml: No such file"), "{text}");
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "<node>\n<domain></node>").unwrap();
        let text = refused(&format!("test://{}", file.path().display()));
        assert!(text.contains(", line 2: is no XML"), "{text}");
    }

    #[test]
    fn without_a_uri_the_libvirt_of_the_host_is_meant_and_no_empty_name_is_printed() {
        assert_eq!(usual("", false, false), "qemu:///system");
        for (uri, root, chosen) in [("", true, false), ("", false, true), ("test:///default", false, false)] {
            assert_eq!(usual(uri, root, chosen), uri);
        }
        let denied = Failure { kind: Kind::Denied, text: "no".into() };
        let text = denied.machine("").to_string();
        assert!(text.starts_with("libvirt: no") && text.contains("`virsh list`"), "{text}");
    }

    #[test]
    fn a_missing_socket_is_named_with_the_remedy() {
        let uri = "qemu+unix:///system?socket=/nonexistent/libvirt-sock";
        let error = Connection::open(uri, Access::Read, 4).unwrap_err();
        let MachineError::Gone(text) = error.machine(uri) else { panic!("{error:?}") };
        assert!(
            text.contains("/nonexistent/libvirt-sock") && text.contains("is libvirtd running?"),
            "{text}"
        );
    }

    #[test]
    fn the_test_driver_has_a_domain_with_a_definition_and_vcpus() {
        let connection = Connection::open("test:///default", Access::Read, 4).unwrap();
        assert_eq!(connection.driver().unwrap(), "TEST");
        assert_eq!(connection.uri().unwrap(), "test:///default");
        let domains = connection.domains(sys::VIR_CONNECT_LIST_DOMAINS_ACTIVE).unwrap();
        assert_eq!(domains.len(), 1);
        assert_eq!((domains[0].name().as_str(), domains[0].id()), ("test", Some(1)));
        assert!(domains[0].runs().unwrap());
        assert!(domains[0].xml().unwrap().starts_with("<domain"));
        let vcpus = domains[0].vcpus(2, 16).unwrap();
        assert_eq!((vcpus.len(), vcpus[1].number, vcpus[1].map.len()), (2, 1, 16));
        assert!(connection.capabilities().unwrap().contains("<topology>"));
        assert!(!connection.cpu_map().unwrap().is_empty());
        assert!(connection.cpu_stats(0).unwrap().iter().any(|(name, ns)| name == "idle" && *ns > 0));
        assert_eq!(connection.domain("no-uuid").unwrap_err().kind, Kind::Malformed);
        assert_eq!(connection.domain(&"0".repeat(32)).unwrap_err().kind, Kind::NoDomain);
    }
}

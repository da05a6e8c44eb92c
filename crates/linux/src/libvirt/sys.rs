//! The functions of libvirt that are called here, found when the first connection is opened.
//!
//! libvirt is not linked: `libvirt.so.0` with the 56 libraries that it needs costs each start of a
//! program 11 ms of CPU time (measured: `perf stat /bin/true`, with and without it preloaded), and
//! corefit has to start where there is no libvirt. Names, types and numbers are those of libvirt's
//! headers (libvirt-host.h, libvirt-domain.h, libvirt-event.h, libvirt-qemu.h, virterror.h); its
//! interface only ever grows.

#![allow(non_upper_case_globals, non_snake_case, non_camel_case_types, reason = "libvirt's own names")]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

/// A connection to libvirtd; opaque.
#[repr(C)]
pub(super) struct virConnect([u8; 0]);
/// A domain; opaque.
#[repr(C)]
pub(super) struct virDomain([u8; 0]);

pub(super) type virConnectPtr = *mut virConnect;
pub(super) type virDomainPtr = *mut virDomain;
pub(super) type virDomainStatsRecordPtr = *mut virDomainStatsRecord;
pub(super) type virErrorPtr = *mut virError;
pub(super) type virErrorNumber = c_uint;
type Text = *const c_char;
type Silent = extern "C" fn(*mut c_void, virErrorPtr);
type Callback = unsafe extern "C" fn(virConnectPtr, virDomainPtr, *mut c_void);
type Free = unsafe extern "C" fn(*mut c_void);

/// What an event loop calls: for a number, a descriptor and its events; for a number; and to free what it was given.
pub(super) type HandleCallback = unsafe extern "C" fn(c_int, c_int, c_int, *mut c_void);
pub(super) type TimeoutCallback = unsafe extern "C" fn(c_int, *mut c_void);
pub(super) type FreeCallback = Option<Free>;
type AddHandle = unsafe extern "C" fn(c_int, c_int, HandleCallback, *mut c_void, FreeCallback) -> c_int;
type AddTimeout = unsafe extern "C" fn(c_int, TimeoutCallback, *mut c_void, FreeCallback) -> c_int;
type Update = unsafe extern "C" fn(c_int, c_int);
type Remove = unsafe extern "C" fn(c_int) -> c_int;

#[repr(C)]
pub(super) struct virError {
    pub(super) code: c_int,
    domain: c_int,
    pub(super) message: *mut c_char,
    level: c_int,
    conn: virConnectPtr,
    dom: virDomainPtr,
    text: [*mut c_char; 3],
    pub(super) int1: c_int,
    int2: c_int,
    net: *mut c_void,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct virVcpuInfo {
    pub(super) number: c_uint,
    pub(super) state: c_int,
    pub(super) cpuTime: u64,
    pub(super) cpu: c_int,
}

#[repr(C)]
pub(super) struct virTypedParameter {
    pub(super) field: [c_char; 80],
    pub(super) type_: c_int,
    pub(super) value: virTypedValue,
}

#[repr(C)]
pub(super) union virTypedValue {
    pub(super) i: c_int,
    pub(super) ui: c_uint,
    pub(super) l: i64,
    pub(super) ul: u64,
    pub(super) s: *mut c_char,
}

#[repr(C)]
pub(super) struct virNodeCPUStats {
    pub(super) field: [c_char; 80],
    pub(super) value: u64,
}

#[repr(C)]
pub(super) struct virDomainStatsRecord {
    pub(super) dom: virDomainPtr,
    pub(super) params: *mut virTypedParameter,
    pub(super) nparams: c_int,
}

pub(super) const VIR_ERR_SYSTEM_ERROR: c_uint = 38;
pub(super) const VIR_ERR_NO_DOMAIN: c_uint = 42;
pub(super) const VIR_ERR_OPERATION_TIMEOUT: c_uint = 68;
pub(super) const VIR_ERR_NO_CONNECT: c_uint = 5;
pub(super) const VIR_ERR_AUTH_FAILED: c_uint = 45;
pub(super) const VIR_ERR_XML_ERROR: c_uint = 27;
pub(super) const VIR_ERR_OPERATION_UNSUPPORTED: c_uint = 84;
pub(super) const VIR_ERR_OPERATION_INVALID: c_uint = 55;
pub(super) const VIR_ERR_OPERATION_DENIED: c_uint = 29;
pub(super) const VIR_ERR_NO_SUPPORT: c_uint = 3;
pub(super) const VIR_ERR_INVALID_ARG: c_uint = 8;
pub(super) const VIR_ERR_CONFIG_UNSUPPORTED: c_uint = 67;
pub(super) const VIR_ERR_AUTH_UNAVAILABLE: c_uint = 94;
pub(super) const VIR_ERR_AUTH_CANCELLED: c_uint = 79;
pub(super) const VIR_ERR_ARGUMENT_UNSUPPORTED: c_uint = 74;
pub(super) const VIR_ERR_ACCESS_DENIED: c_uint = 88;
pub(super) const VIR_ERR_AGENT_UNRESPONSIVE: c_uint = 86;
pub(super) const VIR_ERR_AGENT_COMMAND_TIMEOUT: c_uint = 112;
pub(super) const VIR_CONNECT_LIST_DOMAINS_ACTIVE: c_uint = 1;
pub(super) const VIR_CONNECT_LIST_DOMAINS_PAUSED: c_uint = 32;
pub(super) const VIR_CONNECT_LIST_DOMAINS_OTHER: c_uint = 128;
pub(super) const VIR_DOMAIN_AFFECT_LIVE: c_uint = 1;
pub(super) const VIR_DOMAIN_METADATA_ELEMENT: c_int = 2;
pub(super) const VIR_DOMAIN_EVENT_ID_METADATA_CHANGE: c_uint = 23;
pub(super) const VIR_TYPED_PARAM_INT: c_uint = 1;
pub(super) const VIR_TYPED_PARAM_UINT: c_uint = 2;
pub(super) const VIR_TYPED_PARAM_LLONG: c_uint = 3;
pub(super) const VIR_TYPED_PARAM_ULLONG: c_uint = 4;
pub(super) const VIR_TYPED_PARAM_STRING: c_uint = 7;
pub(super) const VIR_DOMAIN_STATS_VCPU: c_uint = 8;
pub(super) const VIR_DOMAIN_PAUSED: c_uint = 3;
pub(super) const VIR_DOMAIN_PMSUSPENDED: c_uint = 7;
pub(super) const VIR_DOMAIN_CRASHED: c_uint = 6;
pub(super) const VIR_DOMAIN_EVENT_ID_LIFECYCLE: c_uint = 0;
pub(super) const VIR_DOMAIN_EVENT_ID_TUNABLE: c_uint = 17;
pub(super) const VIR_DOMAIN_EVENT_ID_DEVICE_REMOVED: c_uint = 15;
pub(super) const VIR_DOMAIN_EVENT_ID_DEVICE_ADDED: c_uint = 19;
pub(super) const VIR_DOMAIN_EVENT_ID_AGENT_LIFECYCLE: c_uint = 18;
pub(super) const VIR_CONNECT_GET_ALL_DOMAINS_STATS_NOWAIT: c_uint = 1 << 29;
pub(super) const VIR_CONNECT_GET_ALL_DOMAINS_STATS_ACTIVE: c_uint = 1;

/// Declares functions, a table of them, and how it is filled.
macro_rules! functions {
    ($($library:literal { $(fn $name:ident($($argument:ident: $type:ty),*) -> $result:ty;)* })*) => {
        struct Functions {
            $($($name: unsafe extern "C" fn($($type),*) -> $result,)*)*
        }

        fn find() -> Result<Functions, String> {
            Ok(Functions {
                $($(
                    // SAFETY: the function of this name has this type in all versions of the library.
                    $name: unsafe {
                        std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($type),*) -> $result>(
                            symbol($library, concat!(stringify!($name), "\0"))?,
                        )
                    },
                )*)*
            })
        }

        $($(
            /// # Safety
            /// As libvirt documents it.
            pub(super) unsafe fn $name($($argument: $type),*) -> $result {
                let functions = FUNCTIONS.get().and_then(|found| found.as_ref().ok());
                let functions = functions.expect("a connection was opened, so libvirt was loaded");
                // SAFETY: what the caller promises.
                unsafe { (functions.$name)($($argument),*) }
            }
        )*)*
    };
}

functions! {
    c"libvirt.so.0" {
        fn virConnectClose(connection: virConnectPtr) -> c_int;
        fn virConnectDomainEventDeregisterAny(connection: virConnectPtr, id: c_int) -> c_int;
        fn virConnectDomainEventRegisterAny(
            connection: virConnectPtr, domain: virDomainPtr, event: c_int,
            call: Option<Callback>, opaque: *mut c_void, free: Option<Free>
        ) -> c_int;
        fn virConnectGetAllDomainStats(
            connection: virConnectPtr, which: c_uint, list: *mut *mut virDomainStatsRecordPtr, flags: c_uint
        ) -> c_int;
        fn virConnectGetCapabilities(connection: virConnectPtr) -> *mut c_char;
        fn virConnectGetLibVersion(connection: virConnectPtr, version: *mut u64) -> c_int;
        fn virConnectGetType(connection: virConnectPtr) -> Text;
        fn virConnectGetURI(connection: virConnectPtr) -> *mut c_char;
        fn virConnectListAllDomains(
            connection: virConnectPtr, list: *mut *mut virDomainPtr, flags: c_uint
        ) -> c_int;
        fn virConnectOpen(uri: Text) -> virConnectPtr;
        fn virConnectOpenReadOnly(uri: Text) -> virConnectPtr;
        fn virConnectSetKeepAlive(connection: virConnectPtr, interval: c_int, count: c_uint) -> c_int;
        fn virDomainFree(domain: virDomainPtr) -> c_int;
        fn virDomainGetID(domain: virDomainPtr) -> c_uint;
        fn virDomainGetName(domain: virDomainPtr) -> Text;
        fn virDomainGetSchedulerParameters(
            domain: virDomainPtr, params: *mut virTypedParameter, count: *mut c_int
        ) -> c_int;
        fn virDomainGetState(
            domain: virDomainPtr, state: *mut c_int, reason: *mut c_int, flags: c_uint
        ) -> c_int;
        fn virDomainGetUUIDString(domain: virDomainPtr, text: *mut c_char) -> c_int;
        fn virDomainPinVcpu(domain: virDomainPtr, vcpu: c_uint, map: *mut u8, length: c_int) -> c_int;
        fn virDomainSetMetadata(
            domain: virDomainPtr, kind: c_int, text: Text, key: Text, uri: Text, flags: c_uint
        ) -> c_int;
        fn virDomainSetNumaParameters(
            domain: virDomainPtr, params: *mut virTypedParameter, count: c_int, flags: c_uint
        ) -> c_int;
        fn virDomainSetSchedulerParametersFlags(
            domain: virDomainPtr, params: *mut virTypedParameter, count: c_int, flags: c_uint
        ) -> c_int;
        fn virDomainSetVcpu(domain: virDomainPtr, map: Text, state: c_int, flags: c_uint) -> c_int;
        fn virDomainGetVcpus(
            domain: virDomainPtr, info: *mut virVcpuInfo, most: c_int, maps: *mut u8, length: c_int
        ) -> c_int;
        fn virDomainGetXMLDesc(domain: virDomainPtr, flags: c_uint) -> *mut c_char;
        fn virDomainLookupByUUIDString(connection: virConnectPtr, uuid: Text) -> virDomainPtr;
        fn virDomainStatsRecordListFree(list: *mut virDomainStatsRecordPtr) -> ();
        fn virEventRegisterImpl(
            add_handle: AddHandle, update_handle: Update, remove_handle: Remove,
            add_timeout: AddTimeout, update_timeout: Update, remove_timeout: Remove
        ) -> ();
        fn virGetLastError() -> virErrorPtr;
        fn virNodeGetCPUMap(
            connection: virConnectPtr, map: *mut *mut u8, online: *mut c_uint, flags: c_uint
        ) -> c_int;
        fn virNodeGetCPUStats(
            connection: virConnectPtr, cpu: c_int, params: *mut virNodeCPUStats, count: *mut c_int, flags: c_uint
        ) -> c_int;
        fn virSetErrorFunc(opaque: *mut c_void, call: Option<Silent>) -> ();
    }
    c"libvirt-qemu.so.0" {
        fn virDomainQemuAgentCommand(
            domain: virDomainPtr, command: Text, timeout: c_int, flags: c_uint
        ) -> *mut c_char;
    }
}

static FUNCTIONS: OnceLock<Result<Functions, String>> = OnceLock::new();

/// Loads libvirt, once. To be called before anything else here.
///
/// # Errors
/// Why it cannot be loaded, with the remedy.
pub(super) fn load() -> Result<(), String> {
    FUNCTIONS.get_or_init(|| find().inspect(|_| leave_at_once())).as_ref().map(|_| ()).map_err(Clone::clone)
}

/// To be called last: from then on this process ends without the destructors of libraries, also of what libvirt registered since it was
/// loaded.
pub fn end() {
    if matches!(FUNCTIONS.get(), Some(Ok(_))) {
        leave_at_once();
    }
}

/// From now on this process ends without the destructors of libraries: libvirt's free what its threads, and ours that close their
/// connections, still use (seen twice: "malloc_consolidate(): unaligned fastbin chunk detected", after all was done, and once in 1,200
/// runs a fault).
fn leave_at_once() {
    // glibc's on_exit(3) hands over the status.
    #[cfg(target_env = "gnu")]
    {
        unsafe extern "C" {
            fn on_exit(call: extern "C" fn(c_int, *mut c_void), argument: *mut c_void) -> c_int;
        }
        extern "C" fn leave(status: c_int, _: *mut c_void) {
            // SAFETY: it only ends the process. Rust's own streams are flushed before exit(3).
            unsafe { libc::_exit(status) }
        }
        // SAFETY: a function that lives as long as the process, and may be called at any time.
        unsafe { on_exit(leave, std::ptr::null_mut()) };
    }
}

/// A function of a library, which stays loaded.
fn symbol(library: &CStr, name: &str) -> Result<*mut c_void, String> {
    // SAFETY: a C string; libraries of libvirt may be loaded at any time.
    let handle = unsafe { libc::dlopen(library.as_ptr(), libc::RTLD_NOW) };
    if handle.is_null() {
        let why = reason();
        return Err(format!("libvirt's client library cannot be loaded: {why} (apt install libvirt0)"));
    }
    // SAFETY: an open library, and a text that ends with a zero byte.
    let found = unsafe { libc::dlsym(handle, name.as_ptr().cast()) };
    if found.is_null() { Err(format!("this libvirt is too old: {}", reason())) } else { Ok(found) }
}

fn reason() -> String {
    // SAFETY: the text of this thread's last failure, if any; copied at once.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "no reason given".into();
    }
    // SAFETY: a C string.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_or_function_that_is_not_there_is_named() {
        let error = symbol(c"libnothing.so.9", "nothing\0").unwrap_err();
        assert!(error.contains("libnothing.so.9") && error.contains("apt install libvirt0"), "{error}");
        let error = symbol(c"libc.so.6", "virNothing\0").unwrap_err();
        assert!(error.contains("virNothing"), "{error}");
    }

    /// The sizes that gcc gives libvirt 9.0's own declarations on x86-64.
    #[test]
    fn structures_are_laid_out_as_in_libvirts_headers() {
        let sizes = [
            size_of::<virError>(),
            std::mem::offset_of!(virError, message),
            std::mem::offset_of!(virError, int1),
            size_of::<virVcpuInfo>(),
            size_of::<virTypedParameter>(),
            size_of::<virNodeCPUStats>(),
            size_of::<virDomainStatsRecord>(),
        ];
        assert_eq!(sizes, [80, 8, 64, 24, 96, 88, 24]);
    }
}

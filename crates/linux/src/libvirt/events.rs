//! What libvirt tells unasked: that something of a domain changed.
//!
//! One thread per process runs the event loop that libvirt is given. It also answers and sends the keepalive
//! messages by which a connection notices that nobody is at its other end.

use std::collections::BTreeSet;
use std::ffi::{c_char, c_int, c_void};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use super::api::{Connection, uuid};
use super::event_loop::EventLoop;
use super::sys;

/// UUIDs of domains of which something changed since they were asked about.
#[derive(Clone, Debug, Default)]
pub(super) struct Changed(Arc<Mutex<Noted>>);

#[derive(Debug, Default)]
struct Noted {
    changed: BTreeSet<String>,
    /// They were asked about, and no look has shown that yet.
    asked: BTreeSet<String>,
}

impl Changed {
    /// Those that changed.
    pub(super) fn all(&self) -> BTreeSet<String> {
        self.noted().changed.clone()
    }

    /// Those that changed since a look that came showed them.
    pub(super) fn not_shown(&self) -> BTreeSet<String> {
        let noted = self.noted();
        noted.changed.union(&noted.asked).cloned().collect()
    }

    pub(super) fn add(&self, uuid: String) {
        self.noted().changed.insert(uuid);
    }

    /// It is asked about now.
    pub(super) fn asks(&self, uuid: &str) {
        let mut noted = self.noted();
        let was = noted.changed.take(uuid);
        noted.asked.extend(was);
    }

    /// A look came, with what was asked for.
    pub(super) fn shows(&self) {
        self.noted().asked.clear();
    }

    /// Only these are left.
    pub(super) fn retain(&self, is: impl Fn(&String) -> bool) {
        let mut noted = self.noted();
        noted.changed.retain(&is);
        noted.asked.retain(is);
    }

    fn noted(&self) -> MutexGuard<'_, Noted> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The loop of this process.
static LOOP: OnceLock<EventLoop> = OnceLock::new();

/// Starts the event loop. To be called once, before the first connection is opened.
pub(super) fn run() {
    let Ok(events) = EventLoop::new() else { return }; // Without events: definitions are read again from time to time.
    let events = LOOP.get_or_init(|| events);
    let turns = || loop {
        events.turn();
    };
    // No thread, no events: as above.
    if std::thread::Builder::new().name("libvirt events".into()).spawn(turns).is_ok() {
        // SAFETY: called once, before any connection, with functions of these types.
        unsafe {
            sys::virEventRegisterImpl(
                add_handle,
                update_handle,
                remove_handle,
                add_timer,
                update_timer,
                remove_timer,
            );
        }
    }
}

extern "C" fn add_handle(
    fd: c_int,
    events: c_int,
    call: sys::HandleCallback,
    opaque: *mut c_void,
    free: sys::FreeCallback,
) -> c_int {
    LOOP.get().map_or(-1, |all| all.add_handle(fd, events, call, opaque, free))
}

extern "C" fn update_handle(number: c_int, events: c_int) {
    LOOP.get().inspect(|all| all.update_handle(number, events));
}

extern "C" fn remove_handle(number: c_int) -> c_int {
    LOOP.get().map_or(-1, |all| all.remove_handle(number))
}

extern "C" fn add_timer(
    ms: c_int,
    call: sys::TimeoutCallback,
    opaque: *mut c_void,
    free: sys::FreeCallback,
) -> c_int {
    LOOP.get().map_or(-1, |all| all.add_timer(ms, call, opaque, free))
}

extern "C" fn update_timer(number: c_int, ms: c_int) {
    LOOP.get().inspect(|all| all.update_timer(number, ms));
}

extern "C" fn remove_timer(number: c_int) -> c_int {
    LOOP.get().map_or(-1, |all| all.remove_timer(number))
}

/// Has changes of any domain noted in `changed` as long as the connection lives: started, stopped,
/// paused, tuned, devices, agent connected. `false` if the driver does not tell all of them.
pub(super) fn subscribe(connection: &Connection, changed: &Changed) -> bool {
    type Any = unsafe extern "C" fn(sys::virConnectPtr, sys::virDomainPtr, *mut c_void);
    let functions =
        [on_two as *const (), on_list as *const (), on_name as *const (), on_metadata as *const ()];
    // SAFETY: libvirt takes all callbacks as the generic type, and casts back by the event.
    let [two, list, name, metadata] = functions.map(|f| unsafe { std::mem::transmute::<*const (), Any>(f) });
    let events = [
        (sys::VIR_DOMAIN_EVENT_ID_LIFECYCLE, two),
        (sys::VIR_DOMAIN_EVENT_ID_AGENT_LIFECYCLE, two),
        (sys::VIR_DOMAIN_EVENT_ID_TUNABLE, list),
        (sys::VIR_DOMAIN_EVENT_ID_DEVICE_ADDED, name),
        (sys::VIR_DOMAIN_EVENT_ID_DEVICE_REMOVED, name),
        (sys::VIR_DOMAIN_EVENT_ID_METADATA_CHANGE, metadata),
    ];
    let mut all = true;
    for (event, callback) in events {
        let opaque = Box::into_raw(Box::new(changed.clone())).cast();
        let event = c_int::try_from(event).unwrap_or(-1);
        // SAFETY: the callback is of this event's type; `opaque` lives until `forget` gets it.
        let id = unsafe {
            sys::virConnectDomainEventRegisterAny(
                connection.raw(),
                std::ptr::null_mut(),
                event,
                Some(callback),
                opaque,
                Some(forget),
            )
        };
        if id >= 0 {
            connection.keep(id);
        } else {
            // SAFETY: not registered, so it is ours again.
            unsafe { forget(opaque) };
            all = false;
        }
    }
    all
}

unsafe extern "C" fn forget(opaque: *mut c_void) {
    // SAFETY: made by `subscribe`, and given back once.
    drop(unsafe { Box::from_raw(opaque.cast::<Changed>()) });
}

/// # Safety
/// `domain` is one, and `opaque` was made by `subscribe`.
unsafe fn note(domain: sys::virDomainPtr, opaque: *mut c_void) {
    if let Ok(uuid) = uuid(domain) {
        // SAFETY: what the caller promises.
        unsafe { &*opaque.cast::<Changed>() }.add(uuid);
    }
}

unsafe extern "C" fn on_two(
    _: sys::virConnectPtr,
    domain: sys::virDomainPtr,
    _: c_int,
    _: c_int,
    opaque: *mut c_void,
) -> c_int {
    // SAFETY: libvirt calls with a domain and what it was given.
    unsafe { note(domain, opaque) };
    0
}

unsafe extern "C" fn on_list(
    _: sys::virConnectPtr,
    domain: sys::virDomainPtr,
    _: *mut c_void,
    _: c_int,
    opaque: *mut c_void,
) {
    // SAFETY: as above.
    unsafe { note(domain, opaque) };
}

unsafe extern "C" fn on_name(
    _: sys::virConnectPtr,
    domain: sys::virDomainPtr,
    _: *const c_char,
    opaque: *mut c_void,
) {
    // SAFETY: as above.
    unsafe { note(domain, opaque) };
}

unsafe extern "C" fn on_metadata(
    _: sys::virConnectPtr,
    domain: sys::virDomainPtr,
    _: c_int,
    _: *const c_char,
    opaque: *mut c_void,
) {
    // SAFETY: as above.
    unsafe { note(domain, opaque) };
}

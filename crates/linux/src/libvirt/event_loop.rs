//! The event loop that libvirt is given: one thread per process, an epoll instance, and a few timers.
//!
//! libvirt's own wakes its thread twice for each call of any connection, for whoever waits for an answer takes the socket out of the
//! loop and puts it back: that thread took a fifth of what the daemon took with guests that have agents (`docs/measured.md`). Here
//! a socket goes and comes by one `epoll_ctl`, and a timer that is put off wakes nobody.
//!
//! What libvirt asks of a loop is in libvirt-event.h: callbacks run in its thread, and what a handle or timer holds is freed by that
//! thread as well, after the callback, never by whoever removes it.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use rustix::io::{Errno, read, write};

use super::sys::{FreeCallback, HandleCallback, TimeoutCallback};

/// libvirt's `virEventHandleType`.
const READABLE: c_int = 1;
const WRITABLE: c_int = 2;
const ERROR: c_int = 4;
const HANGUP: c_int = 8;

/// What the loop's own descriptor is known by; libvirt's are counted from 1.
const WAKE: u64 = 0;

/// Handles and timers.
pub(super) struct EventLoop {
    epoll: OwnedFd,
    /// Wakes the thread that waits.
    wake: OwnedFd,
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    last: c_int,
    handles: BTreeMap<c_int, Handle>,
    timers: BTreeMap<c_int, Timer>,
    /// What removed ones held.
    freed: Vec<(FreeCallback, Opaque)>,
    /// Until when its thread waits; `None`: for good, or it does not wait.
    until: Option<Instant>,
    waits: bool,
    /// How often it went round.
    #[cfg(test)]
    turns: u32,
}

/// What libvirt wants handed over.
#[derive(Clone, Copy)]
struct Opaque(*mut c_void);

// SAFETY: libvirt gives it to a loop that may be run by any thread.
unsafe impl Send for Opaque {}

struct Handle {
    fd: c_int,
    /// Whether it is in the epoll instance.
    listens: bool,
    call: HandleCallback,
    opaque: Opaque,
    free: FreeCallback,
}

struct Timer {
    /// `None`: not now.
    every: Option<Duration>,
    due: Option<Instant>,
    call: TimeoutCallback,
    opaque: Opaque,
    free: FreeCallback,
}

impl EventLoop {
    /// One with nothing in it.
    pub(super) fn new() -> Result<EventLoop, Errno> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        epoll::add(&epoll, &wake, epoll::EventData::new_u64(WAKE), epoll::EventFlags::IN)?;
        Ok(EventLoop { epoll, wake, table: Mutex::default() })
    }

    /// Calls back when one of these events comes of a descriptor; hands back the number of the handle, -1 if that cannot be.
    pub(super) fn add_handle(
        &self,
        fd: c_int,
        events: c_int,
        call: HandleCallback,
        opaque: *mut c_void,
        free: FreeCallback,
    ) -> c_int {
        let mut table = self.table();
        table.last += 1;
        let number = table.last;
        let handle = Handle { fd, listens: false, call, opaque: Opaque(opaque), free };
        table.handles.insert(number, handle);
        if self.listen(&mut table, number, events).is_err() {
            table.handles.remove(&number);
            return -1;
        }
        number
    }

    /// The same handle is for these events from now on.
    pub(super) fn update_handle(&self, number: c_int, events: c_int) {
        let _ = self.listen(&mut self.table(), number, events);
    }

    /// Nothing is called for this handle any more, but for what is called just now.
    pub(super) fn remove_handle(&self, number: c_int) -> c_int {
        let mut table = self.table();
        let _ = self.listen(&mut table, number, 0);
        let Some(handle) = table.handles.remove(&number) else { return -1 };
        table.freed.push((handle.free, handle.opaque));
        self.wake(&table, None);
        0
    }

    /// Calls back each time that so many ms have passed, 0: as soon as may be, below 0: not now. Hands back its number.
    pub(super) fn add_timer(
        &self,
        ms: c_int,
        call: TimeoutCallback,
        opaque: *mut c_void,
        free: FreeCallback,
    ) -> c_int {
        let mut table = self.table();
        table.last += 1;
        let number = table.last;
        table.timers.insert(number, Timer { every: None, due: None, call, opaque: Opaque(opaque), free });
        self.set(&mut table, number, ms);
        number
    }

    /// So many ms count from now on.
    pub(super) fn update_timer(&self, number: c_int, ms: c_int) {
        self.set(&mut self.table(), number, ms);
    }

    /// As [`EventLoop::remove_handle`].
    pub(super) fn remove_timer(&self, number: c_int) -> c_int {
        let mut table = self.table();
        let Some(timer) = table.timers.remove(&number) else { return -1 };
        table.freed.push((timer.free, timer.opaque));
        self.wake(&table, None);
        0
    }

    /// Waits until something is due, does that, and frees what was removed. One thread only may call it.
    pub(super) fn turn(&self) {
        let wait = {
            let mut table = self.table();
            table.until = table.timers.values().filter_map(|timer| timer.due).min();
            table.waits = table.freed.is_empty();
            #[cfg(test)]
            (table.turns += 1);
            let left = table.until.map(|until| until.saturating_duration_since(Instant::now()));
            if table.waits { left } else { Some(Duration::ZERO) }
        };
        // In whole ms, and not too early.
        let wait = wait.map(|wait| {
            Duration::from_millis(u64::try_from(wait.as_micros().div_ceil(1000)).unwrap_or(u64::MAX))
        });
        let wait = wait.and_then(|wait| Timespec::try_from(wait).ok());
        let mut events = [MaybeUninit::uninit(); 16];
        let came = epoll::wait(&self.epoll, &mut events, wait.as_ref());
        self.table().waits = false;
        for event in came.map_or(&mut [][..], |(came, _)| came) {
            match event.data.u64() {
                WAKE => drop(read(&self.wake, &mut [0; 8])),
                number => self.came(c_int::try_from(number).unwrap_or(-1), event.flags),
            }
        }
        let now = Instant::now();
        let due: Vec<c_int> = {
            let is_due = |timer: &Timer| timer.due.is_some_and(|due| due <= now);
            self.table().timers.iter().filter(|(_, timer)| is_due(timer)).map(|(number, _)| *number).collect()
        };
        for number in due {
            self.passed(number, now);
        }
        let freed = std::mem::take(&mut self.table().freed);
        for (free, opaque) in freed {
            if let Some(free) = free {
                // SAFETY: what libvirt gave to be called with this, once, when nothing is called with it any more.
                unsafe { free(opaque.0) };
            }
        }
    }

    /// Events of a handle.
    fn came(&self, number: c_int, flags: epoll::EventFlags) {
        let known = self.table().handles.get(&number).map(|handle| (handle.fd, handle.call, handle.opaque));
        // It was removed meanwhile.
        let Some((fd, call, opaque)) = known else { return };
        let kinds = [
            (epoll::EventFlags::IN, READABLE),
            (epoll::EventFlags::OUT, WRITABLE),
            (epoll::EventFlags::ERR, ERROR),
            (epoll::EventFlags::HUP, HANGUP),
        ];
        let events =
            kinds.iter().filter(|(flag, _)| flags.contains(*flag)).fold(0, |all, (_, event)| all | event);
        // SAFETY: what libvirt gave to be called so; what it is called with is freed by this thread only, later.
        unsafe { call(number, fd, events, opaque.0) };
    }

    /// The time of a timer.
    fn passed(&self, number: c_int, now: Instant) {
        let mut table = self.table();
        // It was removed or put off meanwhile.
        let Some(timer) =
            table.timers.get_mut(&number).filter(|timer| timer.due.is_some_and(|due| due <= now))
        else {
            return;
        };
        timer.due = timer.every.map(|every| now + every);
        let (call, opaque) = (timer.call, timer.opaque);
        drop(table);
        // SAFETY: as above.
        unsafe { call(number, opaque.0) };
    }

    fn listen(&self, table: &mut Table, number: c_int, events: c_int) -> Result<(), Errno> {
        let Some(handle) = table.handles.get_mut(&number) else { return Ok(()) };
        if handle.fd < 0 {
            return Err(Errno::BADF);
        }
        // SAFETY: libvirt removes a handle before it closes what it is of.
        let fd = unsafe { BorrowedFd::borrow_raw(handle.fd) };
        let mut flags = epoll::EventFlags::empty();
        flags.set(epoll::EventFlags::IN, events & READABLE != 0);
        flags.set(epoll::EventFlags::OUT, events & WRITABLE != 0);
        let data = epoll::EventData::new_u64(u64::try_from(number).unwrap_or(WAKE));
        match (handle.listens, events != 0) {
            (false, true) => epoll::add(&self.epoll, fd, data, flags)?,
            (true, true) => epoll::modify(&self.epoll, fd, data, flags)?,
            // One without events would still be told that its other end has gone, again and again.
            (true, false) => epoll::delete(&self.epoll, fd)?,
            (false, false) => {}
        }
        handle.listens = events != 0;
        Ok(())
    }

    fn set(&self, table: &mut Table, number: c_int, ms: c_int) {
        let Some(timer) = table.timers.get_mut(&number) else { return };
        timer.every = u64::try_from(ms).ok().map(Duration::from_millis);
        timer.due = timer.every.map(|every| Instant::now() + every);
        if let Some(due) = timer.due {
            self.wake(table, Some(due));
        }
    }

    /// Wakes the thread if it would not be there in time.
    fn wake(&self, table: &Table, due: Option<Instant>) {
        let in_time = |due| table.until.is_some_and(|until| until <= due);
        if table.waits && !due.is_some_and(in_time) {
            let _ = write(&self.wake, &1_u64.to_ne_bytes());
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{PipeReader, PipeWriter, Read as _, Write as _};
    use std::os::fd::AsRawFd as _;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    /// How often it was called, and whether that was freed.
    #[derive(Default)]
    struct Seen {
        calls: AtomicU32,
        events: AtomicU32,
        freed: AtomicU32,
    }

    impl Seen {
        fn opaque(&self) -> *mut c_void {
            std::ptr::from_ref(self).cast_mut().cast()
        }

        fn counts(&self) -> (u32, u32) {
            (self.calls.load(Ordering::SeqCst), self.freed.load(Ordering::SeqCst))
        }
    }

    unsafe extern "C" fn on_handle(_: c_int, _: c_int, events: c_int, opaque: *mut c_void) {
        // SAFETY: made by `Seen::opaque` of one that is there.
        let seen = unsafe { &*opaque.cast::<Seen>() };
        seen.calls.fetch_add(1, Ordering::SeqCst);
        seen.events.fetch_or(u32::try_from(events).unwrap(), Ordering::SeqCst);
    }

    unsafe extern "C" fn on_timer(_: c_int, opaque: *mut c_void) {
        // SAFETY: as above.
        unsafe { &*opaque.cast::<Seen>() }.calls.fetch_add(1, Ordering::SeqCst);
    }

    unsafe extern "C" fn on_free(opaque: *mut c_void) {
        // SAFETY: as above.
        unsafe { &*opaque.cast::<Seen>() }.freed.fetch_add(1, Ordering::SeqCst);
    }

    fn pipe() -> (PipeReader, PipeWriter) {
        std::io::pipe().unwrap()
    }

    #[test]
    fn a_handle_is_called_for_its_events_as_long_as_it_has_some_and_freed_by_the_loop() {
        let (events, seen) = (EventLoop::new().unwrap(), Seen::default());
        let (mut reader, mut writer) = pipe();
        let number = events.add_handle(reader.as_raw_fd(), READABLE, on_handle, seen.opaque(), Some(on_free));
        // Without it a turn would wait for good.
        let tick = Seen::default();
        let ticks = || events.add_timer(0, on_timer, tick.opaque(), None);
        writer.write_all(b"ab").unwrap();
        events.turn();
        assert_eq!((seen.counts(), seen.events.load(Ordering::SeqCst)), ((1, 0), 1));
        reader.read_exact(&mut [0]).unwrap();
        // Another thread has the socket now.
        events.update_handle(number, 0);
        let other = ticks();
        events.turn();
        assert_eq!(seen.counts(), (1, 0));
        assert_eq!(tick.counts().0, 1);
        drop(writer);
        events.turn();
        assert_eq!(seen.counts(), (1, 0), "that its other end has gone is not told to who does not listen");
        events.update_handle(number, READABLE);
        events.remove_timer(other);
        events.turn();
        assert_eq!(seen.counts(), (2, 0));
        assert_ne!(seen.events.load(Ordering::SeqCst) & u32::try_from(HANGUP).unwrap(), 0);
        assert_eq!(events.remove_handle(number), 0);
        assert_eq!((events.remove_handle(number), seen.counts()), (-1, (2, 0)), "not by who removes it");
        events.turn();
        assert_eq!(seen.counts(), (2, 1));
        assert_eq!(events.add_handle(-1, READABLE, on_handle, seen.opaque(), Some(on_free)), -1);
    }

    #[test]
    fn a_timer_is_called_again_and_again_until_it_is_put_off_or_removed() {
        let (events, seen) = (EventLoop::new().unwrap(), Seen::default());
        let number = events.add_timer(-1, on_timer, seen.opaque(), Some(on_free));
        let (begun, tick) = (Instant::now(), Seen::default());
        let other = events.add_timer(20, on_timer, tick.opaque(), None);
        while tick.counts().0 < 2 {
            events.turn();
        }
        assert!(begun.elapsed() >= Duration::from_millis(40));
        assert_eq!(seen.counts(), (0, 0));
        events.update_timer(number, 0);
        events.turn();
        events.turn();
        assert_eq!(seen.counts().0, 2);
        events.update_timer(number, -1);
        while tick.counts().0 < 4 {
            events.turn();
        }
        assert_eq!(seen.counts(), (2, 0));
        assert_eq!(
            [events.remove_timer(number), events.remove_timer(other), events.remove_timer(other)],
            [0, 0, -1]
        );
        events.turn();
        assert_eq!(seen.counts(), (2, 1));
    }

    #[test]
    fn who_waits_is_woken_by_what_comes_sooner_and_not_by_a_socket_that_goes_and_comes_or_a_timer_that_is_put_off()
     {
        let (events, seen, ends) = (EventLoop::new().unwrap(), Seen::default(), Seen::default());
        let (reader, _writer) = pipe();
        let handle = events.add_handle(reader.as_raw_fd(), READABLE, on_handle, seen.opaque(), None);
        let timer = events.add_timer(60_000, on_timer, seen.opaque(), None);
        let opaque = Opaque(ends.opaque());
        std::thread::scope(|scope| {
            let events = &events;
            scope.spawn(move || {
                while ends_not(opaque) {
                    events.turn();
                }
            });
            while !events.table().waits {
                std::thread::yield_now();
            }
            let turns = events.table().turns;
            for _ in 0..1000 {
                events.update_handle(handle, 0);
                events.update_handle(handle, READABLE);
                events.update_timer(timer, 70_000);
            }
            assert_eq!(events.table().turns, turns);
            events.add_timer(1, on_timer, ends.opaque(), None);
        });
        assert_eq!(seen.counts().0, 0);
    }

    fn ends_not(opaque: Opaque) -> bool {
        // SAFETY: made by `Seen::opaque` of one that is there.
        unsafe { &*opaque.0.cast::<Seen>() }.counts().0 == 0
    }
}

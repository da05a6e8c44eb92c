//! The lock on the real machine, with more threads than CPUs: nothing is lost, nobody waits for ever,
//! and the line keeps its order.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use corefit_lock::{Default, Fifo, Paper, Preset, RawMutex};

type Mutex<P, T> = lock_api::Mutex<RawMutex<P>, T>;

/// More than any machine that tests run on has CPUs, and few enough for the paper's long spinning.
const THREADS: usize = if cfg!(miri) { 3 } else { 16 };

fn nothing_is_lost<P: Preset + Send + Sync + 'static>(turns: usize) {
    let total: Mutex<P, (usize, usize)> = Mutex::new((0, 0));
    thread::scope(|scope| {
        for n in 0..THREADS {
            let total = &total;
            scope.spawn(move || {
                for turn in 0..turns {
                    let mut both = total.lock();
                    both.0 += 1;
                    if (turn + n) % 50 == 0 {
                        thread::yield_now(); // a preempted holder
                    }
                    both.1 += 1;
                }
            });
        }
    });
    assert_eq!(*total.lock(), (THREADS * turns, THREADS * turns));
}

#[test]
fn no_update_is_lost_with_more_threads_than_cpus() {
    let turns = if cfg!(miri) { 20 } else { 20_000 };
    nothing_is_lost::<Default>(turns);
    nothing_is_lost::<Fifo>(turns / 10);
    nothing_is_lost::<Paper>(if cfg!(miri) { 5 } else { 50 });
}

#[test]
fn waits_that_run_out_disturb_nobody() {
    let turns = if cfg!(miri) { 10 } else { 2_000 };
    let lock: Mutex<Fifo, usize> = Mutex::new(0);
    let late = AtomicUsize::new(0);
    thread::scope(|scope| {
        for n in 0..THREADS {
            let (lock, late) = (&lock, &late);
            scope.spawn(move || {
                for turn in 0..turns {
                    if n % 2 == 0 {
                        *lock.lock() += 1;
                    } else if let Some(mut count) = lock.try_lock_for(Duration::from_micros(turn as u64 % 40))
                    {
                        *count += 1;
                    } else {
                        late.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    assert_eq!(*lock.lock() + late.into_inner(), THREADS * turns);
    assert!(!lock.is_locked() && lock.try_lock().is_some());
}

#[test]
fn a_timed_wait_ends_in_time_and_gets_a_lock_that_is_freed_in_time() {
    let lock: Arc<Mutex<Default, ()>> = Arc::new(Mutex::new(()));
    let guard = lock.lock();
    let start = Instant::now();
    assert!(lock.try_lock_for(Duration::from_millis(20)).is_none());
    assert!(start.elapsed() >= Duration::from_millis(20));
    let (started, other) = (Arc::new(AtomicBool::new(false)), Arc::clone(&lock));
    let waiter = thread::spawn({
        let started = Arc::clone(&started);
        move || {
            started.store(true, Ordering::Release);
            other.try_lock_for(Duration::from_secs(60)).is_some()
        }
    });
    while !started.load(Ordering::Acquire) {
        thread::yield_now();
    }
    drop(guard);
    assert!(waiter.join().unwrap());
}

/// Each wait that runs out with somebody behind it leaves its ticket in line until the lock is released.
#[cfg(not(miri))]
#[test]
fn timed_waits_for_locks_that_nobody_releases_end_in_time_however_many_there_were() {
    let locks: Vec<_> = (0..24).map(|_| Arc::new(Mutex::<Default, ()>::new(()))).collect();
    let guards: Vec<_> = locks.iter().map(|lock| lock.lock()).collect();
    let (tell, told) = mpsc::channel();
    for lock in locks.iter().chain(&locks) {
        let (lock, tell) = (Arc::clone(lock), tell.clone());
        thread::spawn(move || {
            let got = (0..400).any(|_| lock.try_lock_for(Duration::from_micros(100)).is_some());
            let _ = tell.send(got);
        });
    }
    for _ in 0..2 * locks.len() {
        assert_eq!(told.recv_timeout(Duration::from_secs(60)), Ok(false));
    }
    drop(guards);
    assert!(locks.iter().all(|lock| lock.try_lock().is_some()));
}

#[test]
fn the_line_is_served_in_the_order_of_its_tickets() {
    let lock: Arc<Mutex<Fifo, Vec<usize>>> = Arc::new(Mutex::new(vec![]));
    let guard = lock.lock();
    let mut handles = vec![];
    for n in 0..THREADS {
        let (tell, told) = mpsc::channel();
        let other = Arc::clone(&lock);
        handles.push(thread::spawn(move || {
            tell.send(()).unwrap();
            other.lock().push(n);
        }));
        told.recv().unwrap();
        // SAFETY: an aligned four-byte word that lives as long as `lock`; its value is only looked at.
        let word =
            || unsafe { &*(std::ptr::from_ref(lock.raw_word()).cast::<std::sync::atomic::AtomicU32>()) };
        // The next one comes when this one is in line.
        while corefit_lock::word::Word::<10>(word().load(Ordering::Relaxed)).waiting() as usize <= n {
            thread::yield_now();
        }
    }
    drop(guard);
    handles.into_iter().for_each(|h| h.join().unwrap());
    assert_eq!(*lock.lock(), (0..THREADS).collect::<Vec<_>>());
}

/// The raw lock of a mutex.
trait RawWord<P: Preset> {
    fn raw_word(&self) -> &RawMutex<P>;
}

impl<P: Preset, T> RawWord<P> for Mutex<P, T> {
    fn raw_word(&self) -> &RawMutex<P> {
        // SAFETY: nothing is locked or unlocked through it.
        unsafe { self.raw() }
    }
}

#[cfg(not(miri))]
#[test]
fn a_forked_child_is_not_held_up_by_the_tickets_of_threads_that_it_does_not_have() {
    let lock: Arc<Mutex<Fifo, ()>> = Arc::new(Mutex::new(()));
    let guard = lock.lock();
    let waiters: Vec<_> = (0..3)
        .map(|_| {
            let lock = Arc::clone(&lock);
            thread::spawn(move || drop(lock.lock()))
        })
        .collect();
    // SAFETY: as above.
    let word = unsafe { &*std::ptr::from_ref(lock.raw_word()).cast::<std::sync::atomic::AtomicU32>() };
    while corefit_lock::word::Word::<10>(word.load(Ordering::Relaxed)).waiting() < 3 {
        thread::yield_now();
    }
    // SAFETY: the child only unlocks, locks and ends.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        drop(guard);
        // A child that waits for ever is ended by its alarm, which the parent sees.
        // SAFETY: plain system calls.
        unsafe { libc::alarm(20) };
        for _ in 0..3 {
            drop(lock.lock());
        }
        // SAFETY: ends the child without running the parent's handlers.
        unsafe { libc::_exit(i32::from(word.load(Ordering::Relaxed) != 0)) };
    }
    let mut status = 0;
    // SAFETY: the child that was just started.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    drop(guard);
    waiters.into_iter().for_each(|w| w.join().unwrap());
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "status {status:#x}");
}

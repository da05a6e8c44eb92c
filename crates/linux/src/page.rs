//! corefit's side of the page that it shares with the programs it runs.
//!
//! The layout and its meaning stand in `crates/openmp/src/page.rs`, which both sides compile.

#[path = "../../openmp/src/page.rs"]
mod layout;

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use corefit_core::Time;
use layout::{MAGIC, Page, SLOTS, Slot, VERSION, word};

use crate::sample::has_ended;

/// Slots in use from which on those of ended processes are looked for at once.
const CROWDED: usize = SLOTS / 2;

/// Processes that have a place at a time.
pub const PLACES: usize = SLOTS;

/// What corefit tells one process about its parallel regions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Orders {
    /// Most threads of a region, 1 to 65535; `None` leaves every region as it asks.
    pub team: Option<u16>,
    /// Every region may be resized (certified, or the user said so).
    pub any: bool,
    /// Regions may be resized where OpenMP dynamic adjustment is enabled.
    pub dynamic: bool,
    /// The runtime should block instead of spinning.
    pub quiet: bool,
    /// Give every region a random size (certification).
    pub random: bool,
    /// Count regions even if nothing else is ordered.
    pub count: bool,
    /// Note when each outermost region begins.
    pub time: bool,
    /// Move sequential work over the CPUs, in turns of [`TeamPage::set_turn`].
    pub rotate: bool,
}

impl Orders {
    fn word(self) -> u32 {
        let flag = |on: bool, bit: u32| if on { bit } else { 0 };
        let act = u32::from(self.team.unwrap_or(0))
            | flag(self.quiet, word::QUIET)
            | flag(self.random, word::RANDOM)
            | flag(self.count, word::COUNT)
            | flag(self.time, word::TIME)
            | flag(self.rotate, word::ROTATE);
        if act == 0 {
            return 0; // nothing is short: the region's fast path
        }
        act | flag(self.any, word::ANY) | flag(self.dynamic, word::DYNAMIC)
    }
}

/// What one process has told corefit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    /// Where it stands in the page.
    pub slot: usize,
    /// Its process id, as it sees itself.
    pub pid: u32,
    /// Tells the programs apart that claimed this slot, also those of one process, by exec.
    pub serial: u32,
    /// Threads that its last outermost region asked for.
    pub requested: u32,
    /// Threads that this region was given.
    pub team: u32,
    /// Whether OpenMP dynamic adjustment was enabled there.
    pub dynamic: bool,
    /// Whether it uses libgomp.
    pub gomp: bool,
    /// Whether it uses LLVM libomp or Intel libiomp5.
    pub kmp: bool,
    /// Outermost regions counted so far (only while orders stand).
    pub regions: u64,
    /// Of those, regions smaller than asked for.
    pub resized: u64,
    /// How often its sequential work was moved to another CPU.
    pub moves: u32,
    /// How often it was not, as the other thread had an affinity of its own.
    pub bound: u32,
}

/// The shared page; gone when this value is dropped and the programs have ended.
pub struct TeamPage {
    page: *mut Page,
    memory: File,
    nonce: u64,
}

// SAFETY: the page stays mapped while the value lives, and is accessed through atomics only.
unsafe impl Send for TeamPage {}
// SAFETY: as above.
unsafe impl Sync for TeamPage {}

impl TeamPage {
    /// Makes the page. Each process that registers gets `policy` first; with `ask` it waits,
    /// at most 0.3 s, for [`TeamPage::answer`]. `nprocs` is what processes are told when they
    /// ask for the number of CPUs (`None`: the truth), `seed` feeds random team sizes.
    ///
    /// # Errors
    /// When the kernel gives no anonymous memory file.
    pub fn create(policy: Orders, ask: bool, nprocs: Option<u32>, seed: u64) -> io::Result<Self> {
        let memory = File::from(rustix::fs::memfd_create(c"corefit", rustix::fs::MemfdFlags::CLOEXEC)?);
        memory.set_len(size_of::<Page>() as u64)?;
        // SAFETY: a fresh shared mapping of our own file, as long as the page.
        let at = unsafe {
            libc::mmap(
                ptr::null_mut(),
                size_of::<Page>(),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                memory.as_raw_fd(),
                0,
            )
        };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let mut nonce = [0u8; 8];
        // SAFETY: fills a buffer of the stated length; a short answer only weakens the nonce.
        unsafe { libc::getrandom(nonce.as_mut_ptr().cast(), nonce.len(), 0) };
        let nonce = u64::from_ne_bytes(nonce);
        let page = at.cast::<Page>();
        // SAFETY: the mapping is fresh, zeroed and ours alone until the environment names it.
        let header = unsafe { &mut *page };
        header.magic = MAGIC;
        header.version = VERSION;
        header.nonce = nonce;
        header.nprocs = AtomicU32::new(nprocs.unwrap_or(0));
        header.policy = AtomicU32::new(policy.word() | if ask { word::ASK } else { 0 });
        header.seed.store(seed, Ordering::Relaxed);
        Ok(TeamPage { page, memory, nonce })
    }

    fn page(&self) -> &Page {
        // SAFETY: mapped for the life of `self`; what changes is atomic.
        unsafe { &*self.page }
    }

    /// The environment variable by which programs find the page.
    #[must_use]
    pub fn variable(&self) -> (&'static str, String) {
        let path = PathBuf::from("/proc")
            .join(std::process::id().to_string())
            .join("fd")
            .join(self.memory.as_raw_fd().to_string());
        (layout::PAGE_VARIABLE, format!("{}:{:x}", path.display(), self.nonce))
    }

    /// What processes that start from now on are told when they ask for the number of CPUs.
    pub fn set_nprocs(&self, nprocs: Option<u32>) {
        self.page().nprocs.store(nprocs.unwrap_or(0), Ordering::Relaxed);
    }

    /// How long sequential work stays on a CPU, in CPU time of its thread: for [`Orders::rotate`].
    pub fn set_turn(&self, turn: Duration) {
        let us = u32::try_from(turn.as_micros()).unwrap_or(u32::MAX);
        self.page().turn_us.store(us, Ordering::Relaxed);
    }

    /// What processes that register from now on are given first.
    pub fn set_policy(&self, policy: Orders, ask: bool) {
        let ask = if ask { word::ASK } else { 0 };
        self.page().policy.store(policy.word() | ask, Ordering::Relaxed);
    }

    /// The processes that have registered and not been released.
    #[must_use]
    pub fn processes(&self) -> Vec<Process> {
        let slots = self.page().slots.iter().enumerate();
        slots.filter_map(|(slot, s)| view(slot, s)).collect()
    }

    /// How many processes found no place: they run as they ask.
    #[must_use]
    pub fn refused(&self) -> u32 {
        self.page().refused.load(Ordering::Relaxed)
    }

    /// Whether the program that `process` describes still has its slot.
    #[must_use]
    pub fn is_current(&self, process: &Process) -> bool {
        let slot = &self.page().slots[process.slot];
        let pid = slot.pid.load(Ordering::Acquire);
        (pid, slot.serial.load(Ordering::Acquire)) == (process.pid, process.serial)
    }

    /// Regions begun since the one of number `from`, in order, when (`CLOCK_BOOTTIME`) and which, of the first thread that
    /// began one; `from` moves on. `None` if more than one thread of the program begins outermost regions: then
    /// what lies between two of them is not one region's.
    pub fn begun(&self, from: &mut u64) -> Option<Vec<(Time, u64)>> {
        let page = self.page();
        if page.several.load(Ordering::Relaxed) != 0 {
            return None;
        }
        let length = page.begun.len() as u64;
        let end = page.noted.load(Ordering::Acquire);
        // What may be overwritten while it is read is left out.
        let first = (*from).max(end.saturating_sub(length / 2));
        *from = end;
        let read = |number: u64| {
            let begun = &page.begun[usize::try_from(number % length).unwrap_or(0)];
            (Time(begun.at.load(Ordering::Relaxed)), begun.key.load(Ordering::Relaxed))
        };
        Some((first..end).map(read).collect())
    }

    /// Gives orders to the process in `slot`; wakes those that wait for a change.
    pub fn publish(&self, slot: usize, orders: Orders) {
        let at = &self.page().slots[slot].word;
        let new = orders.word();
        if at.swap(new, Ordering::Release) != new {
            wake(at);
        }
    }

    /// Lets the process in `slot` go on with its first region.
    pub fn answer(&self, slot: usize) {
        let at = &self.page().slots[slot].answered;
        at.store(1, Ordering::Release);
        wake(at);
    }

    /// Frees the slot of a process that has ended, unless another one has it already.
    pub fn release(&self, process: &Process) {
        let owner = &self.page().slots[process.slot].pid;
        let _ = owner.compare_exchange(process.pid, 0, Ordering::Release, Ordering::Relaxed);
    }

    /// Frees the slots of processes that have ended if few slots are left. Many short-lived processes
    /// take them all before somebody looks for other reasons.
    pub fn make_room(&self) {
        let processes = self.processes();
        if processes.len() > CROWDED {
            processes.iter().filter(|p| has_ended(p.pid)).for_each(|p| self.release(p));
        }
    }

    /// Wakes whoever is in [`TeamPage::wait_registration`], as if a process had registered.
    pub fn interrupt(&self) {
        let at = &self.page().registrations;
        at.fetch_add(1, Ordering::Release);
        wake(at);
    }

    /// Waits until a process registers that `seen` (the value returned last, at first 0) does
    /// not count, or `limit` passes; gives the new count.
    #[must_use]
    pub fn wait_registration(&self, seen: u32, limit: Duration) -> u32 {
        let at = &self.page().registrations;
        let limit = libc::timespec {
            tv_sec: limit.as_secs().try_into().unwrap_or(i64::MAX),
            tv_nsec: limit.subsec_nanos().into(),
        };
        // SAFETY: a valid shared futex word and a valid time.
        unsafe { libc::syscall(libc::SYS_futex, at.as_ptr(), libc::FUTEX_WAIT, seen, &raw const limit) };
        at.load(Ordering::Acquire)
    }
}

impl Drop for TeamPage {
    fn drop(&mut self) {
        // The programs keep their mapping: leave them without limits.
        for slot in 0..SLOTS {
            self.publish(slot, Orders::default());
        }
        // SAFETY: unmaps what `create` mapped; no reference outlives `self`.
        unsafe { libc::munmap(self.page.cast(), size_of::<Page>()) };
    }
}

fn view(slot: usize, s: &Slot) -> Option<Process> {
    let pid = s.pid.load(Ordering::Acquire);
    let runtimes = s.runtimes.load(Ordering::Relaxed);
    (pid != 0).then(|| Process {
        slot,
        pid,
        serial: s.serial.load(Ordering::Acquire),
        requested: s.requested.load(Ordering::Relaxed),
        team: s.team.load(Ordering::Relaxed),
        dynamic: s.dynamic.load(Ordering::Relaxed) != 0,
        gomp: runtimes & layout::runtime::GOMP != 0,
        kmp: runtimes & layout::runtime::KMP != 0,
        regions: s.regions.load(Ordering::Relaxed),
        resized: s.resized.load(Ordering::Relaxed),
        moves: s.moves.load(Ordering::Relaxed),
        bound: s.bound.load(Ordering::Relaxed),
    })
}

fn wake(at: &AtomicU32) {
    // SAFETY: a valid shared futex word.
    unsafe { libc::syscall(libc::SYS_futex, at.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_that_change_nothing_are_the_fast_path_of_a_region() {
        let allowed = Orders { any: true, dynamic: true, ..Orders::default() };
        assert_eq!(allowed.word(), 0);
        let team = Orders { team: Some(2), ..allowed };
        assert_eq!(team.word(), 2 | word::ANY | word::DYNAMIC);
    }

    #[test]
    fn a_page_names_itself_and_starts_empty() {
        let page = TeamPage::create(Orders::default(), false, Some(3), 7).unwrap();
        let (name, value) = page.variable();
        assert_eq!(name, "COREFIT_PAGE");
        let (path, nonce) = value.rsplit_once(':').unwrap();
        assert_eq!(u64::from_str_radix(nonce, 16).unwrap(), page.nonce);
        let bytes = std::fs::read(path).unwrap();
        assert_eq!(bytes.len(), size_of::<Page>());
        assert_eq!(bytes[..8], MAGIC.to_ne_bytes());
        assert!(page.processes().is_empty());
    }
}

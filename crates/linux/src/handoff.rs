//! What it costs when a thread blocks and another one goes on, on one CPU: measured by two threads that wake each other.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use corefit_core::CpuSet;
use rustix::thread::gettid;

use crate::sample::set_affinity;
use crate::threads::own_cpu;

/// Times that each of the threads blocks: some milliseconds in all.
const TURNS: u32 = 300;

/// CPU time for each time that one of the threads blocks, on this CPU. `None` if no threads can be had. Nothing else of this
/// process should run meanwhile.
#[must_use]
pub fn handoff(cpu: &CpuSet) -> Option<Duration> {
    let (to_second, second) = sync_channel(1);
    let (to_first, first) = sync_channel(1);
    let begun = own_cpu();
    let threads = [turns(cpu, first, to_second.clone())?, turns(cpu, second, to_first)?];
    to_second.send(()).ok()?;
    for thread in threads {
        thread.join().ok()?;
    }
    Some(own_cpu().saturating_sub(begun) / (2 * TURNS))
}

/// A thread that waits to be told, and tells the other one.
fn turns(cpu: &CpuSet, told: Receiver<()>, tell: SyncSender<()>) -> Option<JoinHandle<()>> {
    let cpu = cpu.clone();
    let run = move || {
        set_affinity(gettid().as_raw_nonzero().get().unsigned_abs(), &cpu);
        for _ in 0..TURNS {
            // The other one has ended: so does this one.
            if told.recv().is_err() || tell.send(()).is_err() {
                return;
            }
        }
    };
    std::thread::Builder::new().stack_size(64 << 10).spawn(run).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocking_costs_something_and_less_than_a_millisecond() {
        let all = crate::sample::affinity(std::process::id()).unwrap();
        let one: CpuSet = all.iter().take(1).collect();
        let cost = handoff(&one).unwrap();
        assert!(cost > Duration::from_nanos(100) && cost < Duration::from_millis(1), "{cost:?}");
    }
}

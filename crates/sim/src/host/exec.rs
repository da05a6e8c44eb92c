//! Threads go through their programs, operation by operation.

use super::{Event, Sim, Wait};
use crate::program::Op;

/// Operations that take no time in a row, before some time is taken all the same.
const IN_A_ROW: u32 = 64;
/// That time, ns.
pub(super) const A_WHILE: u64 = 1_000;

impl Sim {
    /// A thread, on a vCPU that runs, goes on with its next operation, up to one that takes time.
    pub(super) fn step(&mut self, t: u32) {
        let thread = &mut self.threads[t as usize];
        if thread.granted {
            thread.granted = false;
            match std::mem::replace(&mut thread.wait, Wait::Nothing) {
                Wait::Kernel(_) => thread.holds += 1,
                Wait::User(_) => thread.holds_user += 1,
                _ => {}
            }
        }
        thread.goes_on();
        let a = thread.app as usize;
        for _ in 0..IN_A_ROW {
            let thread = &mut self.threads[t as usize];
            let app = &mut self.apps[a];
            let op = app.program.ops[thread.pc as usize];
            match op {
                Op::Compute(length) => {
                    thread.pc += 1;
                    thread.left =
                        app.program.lengths[usize::from(length)].draw(&mut thread.compute, app.team);
                    if thread.left > 0 {
                        return;
                    }
                }
                Op::Sleep(length) => {
                    thread.pc += 1;
                    let ns = app.program.lengths[usize::from(length)].draw_ns(&mut thread.sleep);
                    self.queue.add(self.now + ns.max(1), Event::Wake(t));
                    return self.block(t);
                }
                Op::Repeat(times) => {
                    thread.pc += 1;
                    thread.loops[thread.depth as usize] = times;
                    thread.depth += 1;
                }
                Op::Again(start) => {
                    let rounds = &mut thread.loops[thread.depth as usize - 1];
                    // A loop without end never counts down.
                    *rounds -= u32::from(*rounds != u32::MAX);
                    if *rounds > 0 {
                        thread.pc = start;
                    } else {
                        thread.depth -= 1;
                        thread.pc += 1;
                    }
                }
                Op::Acquire(kind, lock) => {
                    if !self.acquire(t, kind, lock) {
                        return;
                    }
                }
                Op::Release(kind, lock) => {
                    thread.pc += 1;
                    self.release(t, kind, lock);
                }
                Op::Barrier => {
                    thread.pc += 1;
                    if !self.barrier(t) {
                        return;
                    }
                }
                Op::Post(channel) => {
                    thread.pc += 1;
                    self.post(t, channel);
                }
                Op::Put { channel, next } => {
                    thread.pc += 1;
                    if !self.put(t, channel, next) {
                        return;
                    }
                }
                Op::Wait { channel, next } => {
                    thread.pc += 1;
                    if !self.receive(t, channel, next) {
                        return;
                    }
                }
                Op::Single { rotate, end } => {
                    let turn = if rotate { thread.singles % app.team } else { 0 };
                    thread.singles = thread.singles.wrapping_add(u32::from(rotate));
                    thread.pc = if turn == thread.member { thread.pc + 1 } else { end };
                }
                Op::Fork => {
                    thread.pc += 1;
                    if !self.fork(t) {
                        return;
                    }
                }
                Op::Dock => {
                    thread.pc += 1;
                    if !self.dock(t) {
                        return;
                    }
                }
                Op::Join => {
                    // The master does not go into the dock.
                    thread.pc += 1 + u32::from(thread.member == 0);
                    if !self.join(t) {
                        return;
                    }
                }
                Op::Mark => {
                    thread.pc += 1;
                    app.marks += 1;
                }
                Op::End => return self.end(t),
            }
        }
        let v = self.threads[t as usize].vcpu;
        self.cpus.vcpus[v as usize].debt += A_WHILE;
    }

    /// A thread spun as long as it was to.
    pub(super) fn spin_over(&mut self, t: u32) {
        match self.threads[t as usize].wait {
            Wait::Kernel(l) => self.lock_halt(t, l),
            _ => self.block(t),
        }
    }

    /// A thread has slept.
    pub(super) fn slept(&mut self, t: u32) {
        self.wake_thread(t, crate::cpus::NONE);
    }
}

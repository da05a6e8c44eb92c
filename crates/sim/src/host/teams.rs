//! Applications: teams of threads that wait for each other at barriers, forks, joins and channels.
//!
//! ```text
//! master ──fork──▶ body ──join──▶ serial part ──fork──▶ …      waits at the join for all others
//! worker ──dock──▶ body ──join──▶ dock ─────────────▶ …        waits in the dock for the next fork
//! ```
//!
//! So in LLVM's runtime, which gathers members at the join. In GCC's (`gomp_team_start`, `gomp_thread_start` in libgomp's
//! team.c) join and dock are barriers of all members, the master included: each has to see the end of the join before it goes
//! into the dock, and a team is forked when the last one is there ([`App::meets`]). Who comes last lets the others go.
//!
//! Waiting for the team is spinning for `spin_ns`, then blocking (as libgomp does). A channel counts
//! posts that the member before or after did not wait for yet; waiting for it spins without pause. With `put`
//! it has one place: who finds it full waits until it is emptied.

use super::exec::A_WHILE;
use super::{Event, Line, Sim, TState, Wait};
use crate::cpus::NONE;
use crate::program::Program;
use crate::queue::{NEVER, Ns};
use crate::random::{Purpose, Stream};

/// A program and its threads.
#[derive(Clone, Debug)]
pub(crate) struct App {
    pub(crate) name: String,
    pub(crate) vm: u32,
    pub(crate) class: u32,
    pub(crate) program: Program,
    /// Its first thread; the others follow.
    pub(crate) first: u32,
    pub(crate) threads: u32,
    /// Members now, and at the next fork.
    pub(crate) team: u32,
    pub(crate) next_team: u32,
    /// As many as there would be if the guest was told nothing, and the most that it was told.
    pub(crate) own_team: u32,
    pub(crate) told_team: u32,
    pub(crate) spin_ns: Ns,
    /// PLE sees its spinning.
    pub(crate) seen: bool,
    pub(crate) again: bool,
    /// Its first lock; the others follow.
    pub(crate) locks: u32,
    pub(crate) arrived: u32,
    pub(crate) at_barrier: Line,
    pub(crate) joined: u32,
    pub(crate) master_waits: bool,
    /// Join and dock are barriers; `at_join` are those who wait there.
    pub(crate) meets: bool,
    pub(crate) at_join: Line,
    /// Workers.
    pub(crate) dock: Line,
    /// Workers that were released from the dock and are not back.
    pub(crate) away: u32,
    /// Where the master forks, if it waits for them.
    pub(crate) forks_at: Option<u32>,
    pub(crate) channels: Vec<Channel>,
    /// Members that have not ended.
    pub(crate) alive: u32,
    /// When it starts.
    pub(crate) started: Ns,
    /// When this round began.
    pub(crate) began: Ns,
    /// When it ended first.
    pub(crate) ended: Option<Ns>,
    pub(crate) rounds: u64,
    pub(crate) marks: u64,
    /// Barriers and joins that the whole team has passed: what a runtime of teams can count.
    pub(crate) steps: u64,
}

/// Posts of one member to one of its neighbours.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Channel {
    posts: u32,
    waiter: u32,
    /// Waits for room.
    putter: u32,
}

impl Channel {
    pub(super) const EMPTY: Channel = Channel { posts: 0, waiter: NONE, putter: NONE };
}

impl App {
    fn channel(&self, channel: u16, to_next: bool, member: u32) -> usize {
        ((u32::from(channel) * 2 + u32::from(to_next)) * self.threads + member) as usize
    }

    /// Of a slot that a thread waits at: the neighbour that it waits for, the channel, whether that goes to the next
    /// member, and whether the neighbour is to take a post rather than to give one.
    pub(crate) fn awaited(&self, slot: u32, t: u32) -> (u32, u16, bool, bool) {
        let (line, member) = (slot / self.threads, slot % self.threads);
        let to_next = line % 2 == 1;
        let takes = self.channels[slot as usize].putter == t;
        let neighbour = if !takes {
            member
        } else if to_next {
            member + 1
        } else {
            member - 1
        };
        (neighbour, u16::try_from(line / 2).unwrap_or(u16::MAX), to_next, takes)
    }
}

impl Sim {
    /// An application starts, from its beginning; or does so again.
    pub(super) fn start(&mut self, a: u32) {
        let app = &mut self.apps[a as usize];
        // Rounds that take no time take some all the same, as operations do.
        let pause = if app.rounds > 0 && app.began == self.now { A_WHILE } else { 0 };
        app.began = self.now;
        app.team = app.next_team;
        app.arrived = 0;
        app.channels.fill(Channel::EMPTY);
        let (first, forks, team, threads) = (app.first, app.program.forks, app.team, app.threads);
        app.alive = if forks { 1 } else { team };
        let begin = if forks { 1 } else { team };
        if app.rounds == 0 && forks {
            for member in 1..threads {
                let t = first + member;
                self.threads[t as usize].wait = Wait::Team;
                self.threads[t as usize].state = TState::Blocked;
                self.apps[a as usize].dock.push(&mut self.threads, t);
            }
        }
        let endless = self.apps[a as usize].program.endless;
        for t in first..first + begin {
            self.threads[t as usize].rewind(0);
            if endless && t > first {
                let mut later = Stream::new(self.spec.seed, u64::from(t), Purpose::Thread);
                let later = later.below(self.spec.jitter_ns + 1);
                self.queue.add(self.now + later, Event::StartThread(t));
            } else if self.threads[t as usize].state == TState::Current {
                let v = self.threads[t as usize].vcpu;
                self.cpus.vcpus[v as usize].debt += pause;
            } else if pause > 0 {
                self.queue.add(self.now + pause, Event::StartThread(t));
            } else {
                self.wake_thread(t, NONE);
            }
        }
    }

    /// A thread waits for its team: spins, then blocks.
    fn wait_for_team(&mut self, t: u32) {
        let app = &self.apps[self.threads[t as usize].app as usize];
        let (ns, seen) = (app.spin_ns, app.seen);
        let thread = &mut self.threads[t as usize];
        thread.spin(Wait::Team, ns, seen);
        if seen {
            let v = thread.vcpu;
            self.cpus.vcpus[v as usize].ple_left = self.ple.window_ns;
        }
        if ns == 0 {
            self.block(t);
        }
    }

    /// A thread arrives at a barrier; whether it goes on at once.
    pub(super) fn barrier(&mut self, t: u32) -> bool {
        let a = self.threads[t as usize].app as usize;
        let by = self.threads[t as usize].vcpu;
        let app = &mut self.apps[a];
        app.arrived += 1;
        if app.arrived < app.team {
            app.at_barrier.push(&mut self.threads, t);
            self.wait_for_team(t);
            return false;
        }
        app.arrived = 0;
        app.steps += 1;
        while let Some(w) = self.apps[a].at_barrier.pop(&mut self.threads) {
            self.grant(w, self.costs.line_ns, by);
        }
        true
    }

    /// The master starts a team; whether it goes on at once.
    pub(super) fn fork(&mut self, t: u32) -> bool {
        let a = self.threads[t as usize].app as usize;
        let app = &mut self.apps[a];
        if app.team != app.next_team {
            app.team = app.next_team;
            app.channels.fill(Channel::EMPTY);
        }
        if app.team == 1 {
            return true;
        }
        let pc = self.threads[t as usize].pc;
        if app.away == 0 {
            self.undock(t, pc);
            return true;
        }
        app.forks_at = Some(pc);
        self.wait_for_team(t);
        false
    }

    /// All are in the dock: the team's members begin at `pc`. Thread `t` came last.
    fn undock(&mut self, t: u32, pc: u32) {
        let (a, by) = (self.threads[t as usize].app as usize, self.threads[t as usize].vcpu);
        let (team, waiting) = (self.apps[a].team, self.apps[a].dock.len);
        for _ in 0..waiting {
            let Some(w) = self.apps[a].dock.pop(&mut self.threads) else { break };
            if self.threads[w as usize].member < team {
                self.begin(w, pc);
                self.grant(w, self.costs.line_ns, by);
            } else {
                self.apps[a].dock.push(&mut self.threads, w);
            }
        }
    }

    fn begin(&mut self, worker: u32, pc: u32) {
        let thread = &mut self.threads[worker as usize];
        thread.pc = pc;
        thread.depth = 0;
        self.apps[thread.app as usize].away += 1;
    }

    /// A member reaches the end of a parallel section; whether it goes on at once.
    pub(super) fn join(&mut self, t: u32) -> bool {
        let a = self.threads[t as usize].app as usize;
        let (by, member) = (self.threads[t as usize].vcpu, self.threads[t as usize].member);
        let app = &mut self.apps[a];
        app.joined += 1;
        let all = app.joined == app.team;
        if all {
            app.joined = 0;
            app.steps += 1;
        }
        if app.meets {
            if !all {
                app.at_join.push(&mut self.threads, t);
                self.wait_for_team(t);
                return false;
            }
            while let Some(w) = self.apps[a].at_join.pop(&mut self.threads) {
                self.grant(w, self.costs.line_ns, by);
            }
            return true;
        }
        if member == 0 {
            if !all {
                app.master_waits = true;
                self.wait_for_team(t);
            }
            return all;
        }
        let master = app.first;
        app.away -= 1;
        app.dock.push(&mut self.threads, t);
        if all && std::mem::take(&mut app.master_waits) {
            self.grant(master, self.costs.line_ns, by);
        }
        self.wait_for_team(t);
        false
    }

    /// A worker comes from a join that is a barrier; whether it goes on at once.
    pub(super) fn dock(&mut self, t: u32) -> bool {
        let (a, member) = (self.threads[t as usize].app as usize, self.threads[t as usize].member);
        let app = &mut self.apps[a];
        app.away -= 1;
        let (team, master) = (app.team, app.first);
        let forks_at = if app.away == 0 { app.forks_at.take() } else { None };
        if let Some(pc) = forks_at {
            self.undock(t, pc);
            self.grant(master, self.costs.line_ns, self.threads[t as usize].vcpu);
            if member < team {
                self.begin(t, pc);
                return true;
            }
        }
        self.apps[a].dock.push(&mut self.threads, t);
        self.wait_for_team(t);
        false
    }

    /// A thread posts to both neighbours.
    pub(super) fn post(&mut self, t: u32, channel: u16) {
        let thread = &self.threads[t as usize];
        let (a, member, by) = (thread.app as usize, thread.member, thread.vcpu);
        for to_next in [true, false] {
            let index = self.apps[a].channel(channel, to_next, member);
            let channel = &mut self.apps[a].channels[index];
            if channel.waiter == NONE {
                channel.posts = channel.posts.wrapping_add(1);
            } else {
                let w = std::mem::replace(&mut channel.waiter, NONE);
                self.grant(w, self.costs.line_ns, by);
            }
        }
    }

    /// A thread posts to one neighbour, if that took the last post; whether it goes on at once.
    pub(super) fn put(&mut self, t: u32, channel: u16, to_next: bool) -> bool {
        let thread = &self.threads[t as usize];
        let (a, by) = (thread.app as usize, thread.vcpu);
        let last = if to_next { self.apps[a].team - 1 } else { 0 };
        if thread.member == last {
            return true;
        }
        let index = self.apps[a].channel(channel, to_next, thread.member);
        let channel = &mut self.apps[a].channels[index];
        if channel.waiter != NONE {
            let w = std::mem::replace(&mut channel.waiter, NONE);
            self.grant(w, self.costs.line_ns, by);
            return true;
        }
        if channel.posts == 0 {
            channel.posts = 1;
            return true;
        }
        channel.putter = t;
        let index = u32::try_from(index).unwrap_or(NONE);
        self.threads[t as usize].spin(Wait::Channel(index), NEVER, false);
        false
    }

    /// A thread waits for a post of a neighbour; whether it goes on at once. The ends do not wait.
    pub(super) fn receive(&mut self, t: u32, channel: u16, from_next: bool) -> bool {
        let thread = &self.threads[t as usize];
        let (a, member) = (thread.app as usize, thread.member);
        let app = &mut self.apps[a];
        let neighbour = if from_next { member + 1 } else { member.wrapping_sub(1) };
        if neighbour >= app.team {
            return true;
        }
        let index = app.channel(channel, !from_next, neighbour);
        let state = &mut app.channels[index];
        if state.posts > 0 {
            state.posts -= 1;
            if state.putter != NONE {
                state.posts += 1;
                let w = std::mem::replace(&mut state.putter, NONE);
                let by = self.threads[t as usize].vcpu;
                self.grant(w, self.costs.line_ns, by);
            }
            return true;
        }
        state.waiter = t;
        let index = u32::try_from(index).unwrap_or(NONE);
        self.threads[t as usize].spin(Wait::Channel(index), NEVER, false);
        false
    }

    /// A thread came to the end of the program.
    pub(super) fn end(&mut self, t: u32) {
        let a = self.threads[t as usize].app;
        let app = &mut self.apps[a as usize];
        app.alive -= 1;
        let over = app.alive == 0;
        let forks = app.program.forks;
        if over {
            app.rounds += 1;
            if app.ended.is_none() {
                app.ended = Some(self.now);
                self.open -= 1;
            }
        }
        let again = over && app.again && self.open > 0;
        if again && forks {
            return self.start(a);
        }
        let (first, threads) = (app.first, app.threads);
        self.threads[t as usize].state = TState::Out;
        self.leave_vcpu(t);
        if again {
            self.start(a);
        } else if over && forks {
            for worker in first + 1..first + threads {
                self.kill(worker);
            }
            let app = &mut self.apps[a as usize];
            (app.dock, app.away) = (Line::EMPTY, 0);
        }
    }
}

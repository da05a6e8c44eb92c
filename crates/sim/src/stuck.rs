//! Threads that will never go on, because of others of their program.
//!
//! Who waits for nobody goes on. So does who waits for somebody who goes on and still comes to what is waited for: the
//! release of a lock, a post, a barrier. Repeated until nobody is added, this leaves those who wait for each other, for one
//! that has ended, or for what nobody will do any more. Who sleeps, waits for a pCPU or has not begun goes on; locks,
//! channels and teams are an application's own, so no other VM is ever waited for. Of two branches each counts as one that
//! may be taken, so that who is told here is stuck, whatever lengths are drawn.

use std::collections::BTreeSet;

use crate::cpus::NONE;
use crate::host::{App, Sim, TState, Thread, Wait};
use crate::program::{Op, Program};

/// An application with threads that will never go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stuck {
    /// `vm/app`.
    pub name: String,
    /// How many of its threads wait for ever.
    pub threads: usize,
    /// How many others have not ended.
    pub others: usize,
}

impl Sim {
    /// Applications with threads that wait for each other, or for what nobody will do, for ever.
    #[must_use]
    pub fn stuck(&self) -> Vec<Stuck> {
        let stuck = self.apps.iter().filter(|app| app.alive > 0).map(|app| {
            let team = Team::of(self, app);
            let waits = |(thread, goes_on): &(&Thread, &bool)| !**goes_on && thread.state != TState::Out;
            Stuck {
                name: format!("{}/{}", self.guests[app.vm as usize].name, app.name),
                threads: team.threads.iter().zip(&team.goes_on).filter(waits).count(),
                others: team.goes_on.iter().filter(|goes_on| **goes_on).count(),
            }
        });
        stuck.filter(|stuck| stuck.threads > 0).collect()
    }
}

/// The threads of an application, by member.
struct Team<'a> {
    sim: &'a Sim,
    app: &'a App,
    threads: &'a [Thread],
    at_barrier: BTreeSet<u32>,
    at_join: BTreeSet<u32>,
    docked: BTreeSet<u32>,
    /// Goes on, as far as the others are concerned.
    goes_on: Vec<bool>,
}

impl<'a> Team<'a> {
    fn of(sim: &'a Sim, app: &'a App) -> Team<'a> {
        let threads = &sim.threads[app.first as usize..(app.first + app.threads) as usize];
        let [at_barrier, at_join, docked] = [app.at_barrier, app.at_join, app.dock]
            .map(|line| line.iter(&sim.threads).map(|t| t - app.first).collect());
        let mut team = Team { sim, app, threads, at_barrier, at_join, docked, goes_on: vec![] };
        team.goes_on = (0..app.threads).map(|member| team.alone(member)).collect();
        // Up and down in turn: who waits often waits for a neighbour.
        let mut members: Vec<u32> = (0..app.threads).filter(|&m| !team.goes_on[m as usize]).collect();
        loop {
            let before = members.len();
            let all = team.all_come();
            members.retain(|&member| {
                let helped = team.helped(member, all);
                team.goes_on[member as usize] |= helped;
                !helped
            });
            if members.len() == before {
                return team;
            }
            members.reverse();
        }
    }

    /// It waits for nobody.
    fn alone(&self, member: u32) -> bool {
        let thread = &self.threads[member as usize];
        match (thread.state, thread.wait) {
            // Ended; or it has not begun, or is not of the team.
            (TState::Out, _) => self.app.program.ops[thread.pc as usize] != Op::End && member < self.app.team,
            (_, Wait::Nothing) => true,
            (_, Wait::Kernel(l) | Wait::User(l) | Wait::Mutex(l)) => {
                thread.granted || self.sim.locks[l as usize].owner == NONE
            }
            (_, Wait::Team | Wait::Channel(_)) => thread.granted,
        }
    }

    /// Who it waits for goes on, and comes to what it waits for.
    fn helped(&self, member: u32, (barrier, join, dock): (bool, bool, bool)) -> bool {
        let thread = &self.threads[member as usize];
        match thread.wait {
            _ if thread.state == TState::Out => false,
            Wait::Nothing => false,
            Wait::Kernel(l) | Wait::User(l) | Wait::Mutex(l) => {
                let owner = self.sim.locks[l as usize].owner - self.app.first;
                let lock = l - self.app.locks;
                self.comes(owner, |op| matches!(op, Op::Release(_, number) if u32::from(number) == lock))
            }
            Wait::Team if self.at_barrier.contains(&member) => barrier,
            Wait::Team if self.at_join.contains(&member) => join,
            Wait::Team if member == 0 => {
                if self.app.meets {
                    dock
                } else {
                    join
                }
            }
            // In the dock: it waits for the first member, which forks again, or ends the program.
            Wait::Team => self.goes_on[0],
            Wait::Channel(slot) => {
                let (neighbour, channel, to_next, takes) = self.app.awaited(slot, self.app.first + member);
                self.comes(neighbour, |op| match op {
                    Op::Wait { channel: c, next } if takes => (c, next) == (channel, !to_next),
                    Op::Put { channel: c, next } if !takes => (c, next) == (channel, to_next),
                    Op::Post(c) => !takes && c == channel,
                    _ => false,
                })
            }
        }
    }

    /// Everybody of the team is at the barrier, or the join, or comes there; every worker in the dock.
    fn all_come(&self) -> (bool, bool, bool) {
        let all = |from: u32, end: u32, there: &dyn Fn(u32) -> bool, to: Op| {
            (from..end).all(|member| there(member) || self.comes(member, |op| op == to))
        };
        let docked = |member: u32| self.docked.contains(&member);
        // Where nobody waits at the join but the master, the others wait in the dock.
        let gathers = |member: u32| !self.app.meets && (member == 0 || docked(member));
        let join = |member: u32| self.at_join.contains(&member) || gathers(member);
        (
            all(0, self.app.team, &|member| self.at_barrier.contains(&member), Op::Barrier),
            all(0, self.app.team, &join, Op::Join),
            all(1, self.app.threads, &docked, Op::Dock),
        )
    }

    fn comes(&self, member: u32, to: impl Fn(Op) -> bool) -> bool {
        self.goes_on[member as usize] && ahead(&self.app.program, self.threads[member as usize].pc).any(to)
    }
}

/// What a thread at `pc` may still come to: all that follows, from the beginning of the loops that it is in; if one of them
/// has no end, only what is in that.
fn ahead(program: &Program, pc: u32) -> impl Iterator<Item = Op> + '_ {
    let mut range = pc as usize..program.ops.len();
    for (end, op) in program.ops.iter().enumerate() {
        if let Op::Again(start) = *op
            && (start as usize..=end).contains(&(pc as usize))
        {
            let start = start as usize;
            if program.ops[start - 1] == Op::Repeat(u32::MAX) {
                range = start..end;
                break;
            }
            range.start = start.min(range.start);
        }
    }
    program.ops[range].iter().copied()
}

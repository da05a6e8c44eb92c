//! What is changed while a host runs: vCPUs go online and offline, teams become larger and smaller.
//!
//! A guest that takes a vCPU offline moves its threads to the others, pinned ones, too, which are pinned no more, as Linux does; those that hold
//! or wait for a lock of the kernel stay until they do not, and the vCPU halts when it has none left. One that comes
//! online takes a waiting thread. Both are work for the first vCPU ([`crate::Costs::hotplug_ns`]), and each moved thread
//! pays for its move. Known gaps: the other vCPUs are not stopped meanwhile (`stop_machine`), and the change
//! holds from the request on, not from when the guest got to it. While the first vCPU halts, its work waits with it: whoever
//! wakes up there next pays for it, however much later.

use super::{App, Event, Sim, SpecError, TState, build};
use crate::cpus::{NONE, VState};
use crate::queue::Ns;

/// Between attempts to move the rest.
pub(super) const DRAIN_NS: Ns = 100_000;

impl Sim {
    /// So many vCPUs of a VM, by number, are online from now on: its first ones.
    ///
    /// # Errors
    /// If there is no such VM, or it cannot have so many.
    pub fn set_online(&mut self, vm: usize, count: u32) -> Result<(), SpecError> {
        let all = self.vm_of(vm, "online")?.vcpus.len();
        if count == 0 || count as usize > all {
            return Err(self.refuse(vm, "online", format!("{count} is out of range; give 1 to {all}")));
        }
        let first = self.cpus.vms[vm].first;
        let before = self.online_ns(vm);
        let mut changed = false;
        for (index, v) in (0..).zip(first..first + self.cpus.vms[vm].count) {
            let online = index < count;
            if std::mem::replace(&mut self.cpus.vcpus[v as usize].online, online) == online {
                continue;
            }
            changed = true;
            self.spec.vms[vm].vcpus[index as usize].online = online;
            self.owe(first, self.costs.hotplug_ns);
            if online {
                self.bring_up(v);
            } else {
                self.mark_idle(v, false);
                self.drain(v);
            }
        }
        if changed {
            let guest = &mut self.guests[vm];
            (guest.online_ns, guest.online_since) = (before, self.now);
            guest.online_changes += 1;
            let shares = build::shares(&self.spec)?;
            self.set_shares(shares);
        }
        Ok(())
    }

    /// For how long vCPUs of a VM were online, all together, ns.
    pub(crate) fn online_ns(&self, vm: usize) -> Ns {
        let (guest, cpus) = (&self.guests[vm], &self.cpus.vms[vm]);
        let online = (cpus.first..cpus.first + cpus.count).filter(|&v| self.cpus.vcpus[v as usize].online);
        guest.online_ns + online.count() as u64 * (self.now - guest.online_since)
    }

    /// The teams of a VM's programs that have `parallel` get so many members from their next fork on; those with fewer
    /// threads, all of them.
    ///
    /// # Errors
    /// If there is no such VM or program, or `members` is 0.
    pub fn set_team(&mut self, vm: usize, members: u32) -> Result<(), SpecError> {
        self.each_team(vm, members, |app| app.own_team = members.min(app.threads))
    }

    /// The same teams get so many members at most; `None`: as many as they would have anyway.
    ///
    /// # Errors
    /// As [`Sim::set_team`].
    pub(crate) fn set_told(&mut self, vm: usize, members: Option<u32>) -> Result<(), SpecError> {
        let most = members.unwrap_or(u32::MAX);
        self.each_team(vm, most, |app| app.told_team = most)
    }

    fn each_team(&mut self, vm: usize, members: u32, set: impl Fn(&mut App)) -> Result<(), SpecError> {
        self.vm_of(vm, "team")?;
        let mut forking =
            self.apps.iter_mut().filter(|app| app.vm as usize == vm && app.program.forks).peekable();
        if members == 0 || forking.peek().is_none() {
            drop(forking);
            return Err(self.refuse(vm, "team", "give 1 or more, and a program that has `parallel`"));
        }
        forking.for_each(|app| {
            set(app);
            app.next_team = app.own_team.min(app.told_team);
        });
        Ok(())
    }

    fn vm_of(&self, vm: usize, key: &str) -> Result<&crate::VmSpec, SpecError> {
        let last = self.spec.vms.len() - 1;
        let what = format!("there is no VM {vm}; give 0 to {last}");
        self.spec.vms.get(vm).ok_or(SpecError { path: key.into(), what })
    }

    fn refuse(&self, vm: usize, key: &str, what: impl Into<String>) -> SpecError {
        SpecError { path: format!("vm.{}.{key}", self.spec.vms[vm].name), what: what.into() }
    }

    /// A change that the description has.
    pub(super) fn change(&mut self, vm: u32, number: u32) {
        let change = self.spec.vms[vm as usize].changes[number as usize];
        // Both were checked when the host was built.
        if let Some(online) = change.online {
            let _checked = self.set_online(vm as usize, online);
        }
        if let Some(team) = change.team {
            let _checked = self.set_team(vm as usize, team);
        }
    }

    /// A vCPU has overhead to pay before it goes on.
    fn owe(&mut self, v: u32, ns: Ns) {
        let running = self.cpus.vcpus[v as usize].state == VState::Running;
        let p = self.cpus.vcpus[v as usize].pcpu;
        if running {
            self.settle(p);
        }
        self.cpus.vcpus[v as usize].debt += ns;
        if running {
            self.arm(p);
        }
    }

    fn bring_up(&mut self, v: u32) {
        if self.cpus.vcpus[v as usize].cur != NONE {
            return; // it was not drained yet
        }
        self.mark_idle(v, true);
        if let Some(t) = self.pull(v) {
            self.switch_in(v, t);
            self.wake_vcpu(v);
        }
    }

    /// Moves the threads of a vCPU that is offline; those that cannot be, later.
    pub(super) fn drain(&mut self, v: u32) {
        if self.cpus.vcpus[v as usize].online {
            return;
        }
        let ready: Vec<u32> = self.cpus.vcpus[v as usize].ready.iter(&self.threads).collect();
        for t in ready {
            if !self.threads[t as usize].fixed() {
                self.cpus.vcpus[v as usize].ready.remove(&mut self.threads, t);
                self.mark_crowded(v);
                self.threads[t as usize].state = TState::Blocked;
                self.wake_thread(t, NONE);
            }
        }
        let t = self.cpus.vcpus[v as usize].cur;
        if t != NONE && !self.threads[t as usize].fixed() {
            let (running, p) =
                (self.cpus.vcpus[v as usize].state == VState::Running, self.cpus.vcpus[v as usize].pcpu);
            if running {
                self.settle(p);
            }
            self.block(t);
            if running {
                self.arm(p);
            }
            self.wake_thread(t, NONE);
        }
        if self.cpus.vcpus[v as usize].cur != NONE {
            self.queue.add(self.now + DRAIN_NS, Event::Drain(v));
        }
    }
}

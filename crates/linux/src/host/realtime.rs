//! Real-time threads in groups with weights: they run before all threads with weights whatever their groups are
//! (sched(7)), so weights and quotas of these do not hold for them. They compete one by one at the top, and what
//! they do is left out of what their group did.

use std::collections::BTreeMap;

use corefit_core::machine::VmState;
use corefit_core::{CpuSet, Quota, Time};

use super::REFRESH;
use super::kept::Kept;
use super::tally::{Done, affinity, task};
use super::tasks::{Actor, Scene};
use super::tree::Tree;
use crate::proc::Task;

/// Those of one group and of all below it.
#[derive(Default)]
pub(crate) struct Realtime {
    threads: BTreeMap<u32, Thread>,
    /// What they ran since the group was first looked at, ns.
    pub(crate) run_ns: u64,
}

struct Thread {
    task: Task,
    mask: CpuSet,
    quota: Option<Quota>,
    looked: Time,
    actor: Actor,
}

impl Realtime {
    /// Adds what some did since the last look.
    pub(crate) fn update(&mut self, kept: &Kept, tree: &Tree, did: &[((u32, u32), Done)], scene: &Scene) {
        for &((pid, tid), done) in did {
            self.run_ns += done.0;
            let due = |thread: &Thread| scene.now.since(thread.looked) >= REFRESH;
            if self.threads.get(&tid).is_none_or(due) {
                let Ok(task) = task(kept, pid) else { continue };
                let known = self.threads.remove(&tid).filter(|known| known.task.started == task.started);
                let mask = affinity(kept, tid).map(|mask| mask.intersection(scene.pcpus));
                let mask = mask.filter(|mask| !mask.is_empty()).unwrap_or_else(|| scene.pcpus.clone());
                let group = tree.group_of(&kept.root, tid);
                let quota = tree.realtime(&kept.root, group.as_deref().unwrap_or(scene.path));
                let actor = known.map(|known| known.actor).unwrap_or_default();
                self.threads.insert(tid, Thread { task, mask, quota, looked: scene.now, actor });
            }
            if let Some(thread) = self.threads.get_mut(&tid) {
                thread.actor.act(done, scene);
            }
        }
    }

    /// Those that were active of late, as competitors; `vm`: the VM whose they are.
    pub(crate) fn states(&mut self, scene: &Scene, vm: Option<&str>) -> Vec<VmState> {
        self.threads.retain(|_, thread| thread.actor.is_shown(scene.now));
        let threads = self.threads.iter().filter_map(|(tid, thread)| {
            let scene = Scene { realtime: thread.quota.clone(), ..scene.clone() };
            let state = thread.actor.first(*tid, &thread.task, &thread.mask, &scene)?;
            Some(VmState { part_of: vm.map(Into::into), ..state })
        });
        threads.collect()
    }
}

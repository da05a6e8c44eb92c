//! Putting back: everything at the end, some of it while the rest goes on.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use corefit_core::Time;
use corefit_core::machine::{Act, Lever, MachineError, Role, Snapshot, Value, VmId, VmState};

use super::verdict::{Late, Tried, Verdict, verdict};
use super::{Keeper, by_call, grown, in_parts, is_guests, same, without_ours};
use crate::manage::failpoint::reach;
use crate::manage::journal::Entry;
use crate::manage::{present, systemd};

/// What could not be put back while the rest goes on is tried again after so long, and then after twice as long each time, up to the
/// most: a guest that does not answer takes seconds. What is a guest's is tried at once when it is seen to answer again.
const AGAIN: Duration = Duration::from_secs(10);
const AGAIN_MOST: Duration = Duration::from_secs(320);

/// What came of putting back.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Restored {
    /// Settings that are as they were again.
    pub(crate) back: usize,
    /// Those of these that something had to be done for, with what they are.
    pub(crate) put: Vec<Back>,
    /// Settings that somebody else changed, with what they are.
    pub(crate) stand: Vec<String>,
    /// Settings that cannot be put back yet, and why. They stay in the journal.
    pub(crate) pending: Vec<String>,
    /// The first of these that may yet be put back without anybody's doing: asking again may help.
    pub(crate) waits_for: Option<String>,
    /// Those of these that nobody was asked for, as there was no time left.
    unasked: BTreeSet<(VmId, Lever)>,
    /// Settings of VMs that have ended.
    pub(crate) ended: usize,
    /// Settings that VMs brought with them.
    pub(crate) came: Vec<String>,
    /// The time that settings took of which nothing is left to do.
    pub(crate) worked: Duration,
}

/// A setting that is as it was again.
#[derive(Debug, PartialEq)]
pub(crate) struct Back {
    setting: (VmId, Lever),
    /// Which it is, and what.
    pub(crate) what: String,
    /// Why nobody manages it any more; nothing if all is put back.
    pub(crate) why: String,
}

impl Restored {
    /// What came of it with the next try, which begins with what was pending.
    pub(crate) fn and(&mut self, next: Restored) {
        self.back += next.back;
        self.put.extend(next.put);
        self.stand.extend(next.stand);
        (self.pending, self.waits_for) = (next.pending, next.waits_for);
        self.ended += next.ended;
        self.came.extend(next.came);
        self.worked += next.worked;
    }

    pub(super) fn pend(&mut self, what: String, may_yet: bool) {
        if may_yet {
            self.waits_for.get_or_insert_with(|| what.clone());
        }
        self.pending.push(what);
    }
}

impl Keeper {
    /// Puts back everything that is still as we wrote it, here or elsewhere. Of settings whose VM has ended
    /// nothing is left to do. Guests are asked as long as a batch may take.
    pub(crate) fn restore(&mut self, machine: &mut dyn Act, snapshot: &Snapshot) -> Restored {
        let in_time = self.in_time();
        self.restore_while(machine, snapshot, &|_| in_time())
    }

    /// The same; `asks` says whether a guest is still asked.
    pub(crate) fn restore_while(
        &mut self,
        machine: &mut dyn Act,
        snapshot: &Snapshot,
        asks: &dyn Fn(&Asking) -> bool,
    ) -> Restored {
        // Before their notes are taken back; in the time of a batch, also where everything ends.
        let (begun, budget) = (Instant::now(), self.budget);
        let (came, ended) = self.catch_up(machine, snapshot, &|| begun.elapsed() < budget);
        let mut restored = Restored { came, ended, ..Restored::default() };
        let names = self.undo(machine, snapshot, &|_| true, false, asks, &mut restored);
        // The look may have missed a VM that was changed, or its note.
        for vm in names.keys().filter(|vm| !self.foreign.contains_key(*vm)) {
            self.kept.entry(vm.clone()).or_default();
        }
        // That it is known is what tells whoever tries again.
        let noted = |vm: &VmState| Some((vm.id.clone(), vm.kept.clone()?));
        let is_ours = |(vm, _): &(VmId, String)| !self.foreign.contains_key(vm);
        self.kept.extend(snapshot.vms.iter().filter_map(noted).filter(is_ours));
        self.note_again(machine);
        let may_yet = self.take_notes_back(machine);
        for vm in self.kept.keys().filter(|vm| self.journal.entries_of(vm).next().is_none()) {
            let seen = snapshot.vms.iter().find(|seen| seen.id == *vm).map(|seen| &seen.name);
            let name = names.get(vm).or(seen).unwrap_or(&vm.0);
            restored.pend(format!("the note of {name}: it could not be taken back"), may_yet);
        }
        restored
    }

    /// Puts back what nobody manages any more, while the rest goes on: `free` says why, of levers of a VM of which that is so. And
    /// what an earlier run left that could not be put back when this one began, or is of a group that plays no VM any more.
    pub(crate) fn release(
        &mut self,
        machine: &mut dyn Act,
        snapshot: &Snapshot,
        free: impl Fn(&VmState, Lever) -> Option<String>,
    ) -> Restored {
        let mut restored = Restored::default();
        let vms: BTreeMap<&VmId, &VmState> = snapshot.vms.iter().map(|vm| (&vm.id, vm)).collect();
        self.earlier.retain(|(vm, lever)| self.journal.entries_of(vm).any(|entry| entry.lever == *lever));
        let is_free = |entry: &Entry| match vms.get(&entry.vm) {
            Some(vm) if vm.role == Role::Vm && self.earlier.contains(&entry.key()) => {
                Some("left by an earlier run".into())
            }
            Some(vm) if vm.role == Role::Vm => free(vm, entry.lever),
            seen => no_vm(entry, seen.is_some(), snapshot).map(Into::into),
        };
        let why_of = |entry: &Entry| Some((entry.key(), is_free(entry)?));
        let mut due: BTreeMap<_, String> = self.entries().iter().filter_map(why_of).collect();
        self.released.retain(|key, _| due.contains_key(key));
        let now = snapshot.at;
        let answers = |vm: &VmId| vms.get(vm).is_some_and(|vm| vm.guest.is_some());
        let heard: BTreeSet<VmId> = due.keys().map(|(vm, _)| vm).filter(|vm| answers(vm)).cloned().collect();
        let is_back = |vm: &VmId| heard.contains(vm) && !self.heard.contains(vm);
        self.released.retain(|(vm, lever), _| !(is_guests(*lever) && is_back(vm)));
        self.heard = heard;
        let is_due = |(at, again): &(Time, Duration)| now < *at || now.since(*at) >= *again;
        due.retain(|key, _| self.released.get(key).is_none_or(is_due));
        if !due.is_empty() {
            let in_time = self.in_time();
            let asks = |_: &Asking| in_time();
            self.undo(machine, snapshot, &|entry| due.contains_key(&entry.key()), true, &asks, &mut restored);
            for back in &mut restored.put {
                back.why = due.get(&back.setting).cloned().unwrap_or_default();
            }
            for key in due.into_keys() {
                // What is changed anew after it was put back waits for nothing.
                if self.journal.entries_of(&key.0).all(|entry| entry.lever != key.1) {
                    self.released.remove(&key);
                    continue;
                }
                let tried = !restored.unasked.contains(&key);
                let last = self.released.entry(key).or_insert((now, Duration::ZERO));
                if tried {
                    *last = (now, (last.1 * 2).clamp(AGAIN, AGAIN_MOST));
                }
            }
            self.note_again(machine);
            self.take_notes_back(machine);
        }
        restored
    }

    /// Puts back some settings, as far as they are still as we wrote them; what cannot be put back yet stays in the
    /// journal. Who `waits` leaves what is written in parts alone while the journal cannot be written, for a part would be taken for
    /// somebody else's after a kill.
    ///
    /// Last changed, first put back; but what may take its time last: memory, then guests, first those that answered the machine by the
    /// look, and last who did not answer before.
    /// `asks` says whether guests are still asked, as above. The names of VMs that could be asked.
    fn undo(
        &mut self,
        machine: &mut dyn Act,
        snapshot: &Snapshot,
        which: &dyn Fn(&Entry) -> bool,
        waits: bool,
        asks: &dyn Fn(&Asking) -> bool,
        restored: &mut Restored,
    ) -> BTreeMap<VmId, String> {
        let all = self.journal.entries().iter().rev().cloned();
        let (mut entries, mut left): (Vec<Entry>, Vec<Entry>) = all.partition(which);
        entries.sort_by_cached_key(|entry| {
            let guests = is_guests(entry.lever);
            let [late, heard] = [self.late.contains(&entry.vm), heard(snapshot, &entry.vm)];
            (guests, entry.lever == Lever::Nodes, guests && late, guests && !heard)
        });
        let unwritten = self.mark_limits(machine, which).err();
        let mut undo =
            Undo { snapshot, asks, waits, unwritten, missing: 0, took: None, names: BTreeMap::new() };
        let mut entries = VecDeque::from(entries);
        while let Some(mut entry) = entries.pop_front() {
            systemd::goes_on();
            let begun = Instant::now();
            match self.undo_one(machine, &mut undo, &mut entry, (&entries, &left), restored) {
                Then::Done => restored.worked += begun.elapsed(),
                Then::Later => entries.push_back(entry),
                Then::Left => left.push(entry),
            }
            self.took(begun.elapsed(), &undo, &entries);
        }
        left.reverse();
        self.journal.replace(left);
        if let Err(error) = self.journal.save() {
            // What is put back is found so by whoever reads the old journal.
            restored.pend(format!("the journal cannot be written: {error}"), false);
        }
        undo.names
    }

    /// Puts one back that is still as we wrote it; `later`: those that come after it; `left`: those that stay in the journal.
    fn undo_one(
        &mut self,
        machine: &mut dyn Act,
        undo: &mut Undo<'_>,
        entry: &mut Entry,
        (later, left): (&VecDeque<Entry>, &[Entry]),
        restored: &mut Restored,
    ) -> Then {
        let seen = undo.snapshot.vms.iter().find(|vm| vm.id == entry.vm);
        // Of groups that a look does not show the name, a path, is known.
        let group = seen.map_or_else(|| is_path(&entry.name), VmState::is_group);
        let place = format!("{} of {}", entry.lever.name(group), entry.name);
        let current = match self.ask(machine, undo, (entry, &place), (later, left), restored) {
            Ok(current) => current,
            Err(then) => return then,
        };
        undo.names.insert(entry.vm.clone(), entry.name.clone());
        if let Some(grown) = grown(entry, &current) {
            *entry = grown;
        }
        if let Some(then) = self.left_as_is(machine, (entry, &place), &current, restored) {
            return then;
        }
        if let Some(then) = self.begins(machine, undo, (entry, &place), later, restored) {
            return then;
        }
        let was_pending = entry.pending;
        entry.pending |= in_parts(entry.lever);
        let begun = Instant::now();
        let mut done = machine.set(&entry.vm, entry.lever, &entry.original);
        // As much of it as there is by now.
        let less = done.as_ref().err().and_then(|_| machine.fitting(&entry.vm, entry.lever, &entry.original));
        if let Some(less) = &less {
            done = machine.set(&entry.vm, entry.lever, less);
        }
        reach("restored");
        let untried = matches!(done, Err(MachineError::Untried(_)));
        let refused = done.as_ref().is_err_and(|error| !matches!(error, MachineError::Gone(_)));
        let mut read = machine.current(&entry.vm, entry.lever);
        undo.took = (entry.lever == Lever::Online).then(|| begun.elapsed()).or(undo.took);
        undo.missing += usize::from(!self.hear(&entry.vm, entry.lever, &read));
        // What a guest is told may be overwritten by its users at any time, which is theirs for seconds only.
        if entry.lever == Lever::Told && done.is_ok() && read.is_ok() {
            read = Ok(entry.original.clone());
        }
        let tried = Tried {
            original: &entry.original,
            less: less.as_ref(),
            was_so: same(&current, &entry.original),
            was_pending,
            by_call: !group && by_call(entry.lever),
            by_guest: entry.lever == Lever::Online,
            by_plugging: entry.lever == Lever::Online && !machine.is_by_guest(&entry.vm),
            may_come: may_come(entry, later),
        };
        match verdict(done, read, &tried) {
            Verdict::Later => return Then::Later,
            Verdict::Back => {
                restored.back += 1;
                if !tried.was_so {
                    let what = format!("{place}: {}", present::text(&entry.original));
                    let (setting, why) = (entry.key(), String::new());
                    restored.put.push(Back { setting, what, why });
                }
                return Then::Done;
            }
            Verdict::Less(read) => {
                let [is, was] = [&read, &entry.original].map(present::text);
                let why = match entry.lever {
                    Lever::Online => "somebody plugged out the others",
                    _ => "the group above has no more of it by now",
                };
                restored.stand.push(format!("{place}: is {is}, was {was}: {why}"));
                return Then::Done;
            }
            Verdict::Unknown { why, may_yet } => {
                entry.pending = entry.pending && !untried || was_pending;
                restored.pend(format!("{place}: {why}"), may_yet);
            }
            Verdict::Other { read, why, may_yet, late } => {
                let [is, was] = [&read, &entry.original].map(present::text);
                restored.pend(format!("{place}: is {is}, was {was}{why}"), may_yet);
                // Only a guest that did not refuse may still be on its way, and what is late.
                let guest = entry.lever == Lever::Online && (was_pending || !refused);
                entry.pending = late.is_some() || guest;
                match late {
                    Some(Late::Before) => entry.found(read),
                    Some(Late::This) => {
                        entry.ours(read);
                        entry.ours(entry.original.clone());
                    }
                    None => entry.ours(read),
                }
            }
        }
        Then::Left
    }

    /// What a setting is; or what becomes of one that cannot be asked for, or need not be.
    fn ask(
        &mut self,
        machine: &mut dyn Act,
        undo: &mut Undo<'_>,
        (entry, place): (&Entry, &str),
        (later, left): (&VecDeque<Entry>, &[Entry]),
        restored: &mut Restored,
    ) -> Result<Value, Then> {
        let heard = heard(undo.snapshot, &entry.vm) && !self.late.contains(&entry.vm);
        let asking = Asking { missing: undo.missing, worked: restored.worked, heard };
        if is_guests(entry.lever) && !(undo.asks)(&asking) {
            restored.pend(format!("{place}: not asked, as there was no time left"), true);
            restored.unasked.insert(entry.key());
            return Err(Then::Left);
        }
        let seen = undo.snapshot.vms.iter().find(|vm| vm.id == entry.vm);
        let gone = seen.is_none() && !undo.snapshot.may_lack(&entry.name);
        let current = machine.current(&entry.vm, entry.lever);
        if gone && current.as_ref().is_err_and(|error| has_ended(machine, entry, error)) {
            restored.ended += 1;
            return Err(Then::Done);
        }
        undo.missing += usize::from(!self.hear(&entry.vm, entry.lever, &current));
        let error = match current {
            Ok(current) => return Ok(current),
            Err(error) => error,
        };
        if may_come(entry, later) {
            return Err(Then::Later);
        }
        if seen.is_some_and(|vm| went_with_vcpu(machine, entry, &error, vm, left)) {
            restored.stand.push(format!("{place}: it went with its vCPU, which somebody plugged out"));
            return Err(Then::Done);
        }
        // Nothing is known of whom the look missed.
        let may_yet = may_pass(&error) || undo.snapshot.may_lack(&entry.name);
        restored.pend(format!("{place}: {error}"), may_yet);
        Err(Then::Left)
    }

    /// What becomes of a setting that is not written: it is as it was, or somebody else's.
    fn left_as_is(
        &mut self,
        machine: &mut dyn Act,
        (entry, place): (&Entry, &str),
        current: &Value,
        restored: &mut Restored,
    ) -> Option<Then> {
        // What was written is not done while it is under way: libvirt lets it wait behind a dump or a backup, and what is written now
        // mostly comes after it.
        let is_so = same(current, &entry.original);
        // (What a guest is told counts for some seconds only, and it may never hear that it is told nothing.)
        if is_so && (!entry.pending || *current == Value::Told(None)) {
            restored.back += 1;
            return Some(Then::Done);
        }
        let ours = is_so || self.has_ours(machine, entry, current);
        if !ours && !machine.lost(&entry.vm, entry.lever) {
            let now = present::text(&without_ours(machine, entry, current));
            restored.stand.push(format!("{place}: somebody made it {now}; it stands"));
            return Some(Then::Done);
        }
        None
    }
}

/// Some settings are put back.
pub(super) struct Undo<'a> {
    pub(super) snapshot: &'a Snapshot,
    /// Whether a guest is still asked.
    asks: &'a dyn Fn(&Asking) -> bool,
    /// What is written in parts waits for the journal.
    pub(super) waits: bool,
    /// Why that cannot be written.
    pub(super) unwritten: Option<std::io::Error>,
    /// Answers of guests that are missing so far.
    missing: usize,
    /// How long the guest took that had its turn last.
    pub(super) took: Option<Duration>,
    /// VMs that could be asked.
    names: BTreeMap<VmId, String>,
}

/// A guest is to be asked.
pub(crate) struct Asking {
    /// So many answers of guests are missing.
    pub(crate) missing: usize,
    /// So much time went to settings of which nothing is left to do.
    pub(crate) worked: Duration,
    /// It answered the machine by the last look, and whoever asked it since.
    pub(crate) heard: bool,
}

/// Whether a guest answered the machine by a look. (Who did not may not have been asked yet.)
pub(super) fn heard(snapshot: &Snapshot, vm: &VmId) -> bool {
    snapshot.vms.iter().any(|seen| seen.id == *vm && seen.guest.is_some())
}

/// What becomes of a setting that was to be put back.
pub(super) enum Then {
    /// Nothing is left to do.
    Done,
    /// It is its turn again after those that are to come.
    Later,
    /// It stays in the journal.
    Left,
}

/// Whether a setting is that of a vCPU which may be plugged out now and is going to be back: without it there is none.
fn may_come(entry: &Entry, later: &VecDeque<Entry>) -> bool {
    let of_vcpu = matches!(entry.lever, Lever::VcpuQuota(_) | Lever::Affinity(_) | Lever::Slice(_));
    of_vcpu && later.iter().any(|later| later.vm == entry.vm && later.lever == Lever::Online)
}

/// Whether a setting that cannot be read is that of a thread or a control group which somebody took away with its vCPU: it is not online,
/// not plugged out by us, which would bring it back, and the same of vCPU 0, which always stays, can be read.
fn went_with_vcpu(
    machine: &mut dyn Act,
    entry: &Entry,
    error: &MachineError,
    vm: &VmState,
    left: &[Entry],
) -> bool {
    let (vcpu, first) = match (entry.lever, error) {
        (Lever::VcpuQuota(vcpu), MachineError::Unsupported(_)) => (vcpu, Lever::VcpuQuota(0)),
        (Lever::Slice(vcpu), MachineError::Gone(_)) => (vcpu, Lever::Slice(0)),
        _ => return false,
    };
    let is_online = vm.vcpus.get(vcpu as usize).is_some_and(|vcpu| vcpu.online);
    let ours = left.iter().any(|left| left.vm == entry.vm && left.lever == Lever::Online);
    !is_online && !ours && !vm.is_group() && machine.current(&entry.vm, first).is_ok()
}

/// Why what is no VM, though a look may show it, is to be as it was; `None`: the look may have missed it.
fn no_vm(entry: &Entry, shown: bool, snapshot: &Snapshot) -> Option<&'static str> {
    let around = snapshot.groups.iter().any(|group| group.name == entry.name);
    match (around, shown) {
        (true, _) => Some("it is a group around others now"),
        (false, true) => Some("it plays no VM any more"),
        (false, false) if snapshot.may_lack_vms() || snapshot.may_lack(&entry.name) => None,
        (false, false) => Some("it has ended"),
    }
}

/// Whether it may be another answer if asked again.
pub(super) fn may_pass(error: &MachineError) -> bool {
    !matches!(error, MachineError::Unsupported(_) | MachineError::Denied(_))
}

/// Whether this answer says of a VM that no look shows that it has ended: levers that are looked for on this machine are not even
/// there. A control group says whether it is there, and may lack only a lever, as one that others took a controller from.
fn is_over(entry: &Entry, error: &MachineError) -> bool {
    let lacks = matches!(error, MachineError::Unsupported(_));
    matches!(error, MachineError::Gone(_)) || lacks && !is_path(&entry.name)
}

/// The same, and whether the machine is sure of that: of what could only not be read, for want of files that may be opened, it is not.
pub(super) fn has_ended(machine: &mut dyn Act, entry: &Entry, error: &MachineError) -> bool {
    is_over(entry, error) && !machine.may_be_there(&entry.vm)
}

/// Whether what is called so is a control group.
fn is_path(name: &str) -> bool {
    name.starts_with('/')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manage::journal::testing::entry;
    use corefit_core::machine::Group;
    use corefit_core::{Unread, What};

    #[test]
    fn why_what_plays_no_vm_is_put_back_is_that_it_is_around_others_or_among_them_or_has_ended() {
        let snapshot = |around: &str, missed: Option<&str>| {
            let (parent, weight, quota, unread) = Default::default();
            let group = Group { name: around.into(), parent, weight, quota, unread };
            let unread = missed.map(|path| Unread {
                what: What::Siblings,
                path: path.into(),
                why: "not asked for yet".into(),
            });
            Snapshot { groups: vec![group], unread: unread.into_iter().collect(), ..Snapshot::default() }
        };
        let why = |shown, around, missed| no_vm(&entry("/a"), shown, &snapshot(around, missed));
        assert_eq!(why(false, "/a", None), Some("it is a group around others now"));
        assert_eq!(why(true, "/b", None), Some("it plays no VM any more"));
        assert_eq!(why(false, "/b", None), Some("it has ended"));
        assert_eq!(why(false, "/b", Some("VM \"/a\"")), None);
    }

    #[test]
    fn a_group_that_lacks_a_lever_has_not_ended_and_a_vm_that_no_look_shows_has() {
        let (gone, lacks) = (MachineError::Gone("x".into()), MachineError::Unsupported("x".into()));
        let over = |name| [&gone, &lacks].map(|error| is_over(&entry(name), error));
        assert_eq!((over("vm"), over("/machine/a")), ([true, true], [true, false]));
        assert!(!is_over(&entry("vm"), &MachineError::Denied("x".into())));
    }
}

//! Random faults on a simulated host: whatever happens, every setting is at the end as it was, or as an
//! administrator made it, and no other VM was touched.
//!
//! A kill is a panic that the machine survives, at a place drawn at random: between any two writes.

mod by_guests;
mod carried;
mod configured;
mod daemons;
mod ends;
mod faulty;
mod left_alone;
mod lines;
mod shown;
mod stories;
mod synced;
mod theirs;
mod unread;
mod watch;
mod whole;
mod written;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use corefit_core::decide::{Action, Outcome, Why};
use corefit_core::machine::{
    Act, Lever, LeverKind, Limit, Machine, MachineError, SLICE_MARK_NS, Value, VmId,
};
use corefit_core::{CpuSet, Cpus, Random, Time, Weight};
use corefit_sim::{Scenario, Sim, SimMachine};

use self::faulty::{Faulty, Late};
use self::watch::Watch;
use super::failpoint::testing::until_killed;
use super::journal::Entry;
use super::{Boot, Journal, Keeper};

const SEQUENCES: u64 = 1000;
const EVENTS: u32 = 25;
const LONG: Duration = Duration::from_secs(60);
/// VMs that plans are about; one more is nobody's business.
const MANAGED: u32 = 3;
const VCPUS: u32 = 4;

const HOST: &str = "scheduler = \"eevdf\"\nuntil = \"3600s\"\nhardware = { sockets = 2, cores = 1 }\n\
    [[vm]]\nname = \"a\"\nvcpus = 4\nprogram = \"lu\"\n\
    [[vm]]\nname = \"b\"\ncount = 3\nvcpus = 4\nprogram = \"hog\"\n";

fn simulated(text: &str) -> SimMachine {
    let scenario = Scenario::parse(text, &[]).unwrap();
    SimMachine::new(Sim::new(&scenario.spec).unwrap(), "faults", true)
}

fn levers(vm: u32) -> Vec<Lever> {
    let all = [
        Lever::Online,
        Lever::Weight,
        Lever::HelperWeight,
        Lever::Quota,
        Lever::VcpuQuota(1),
        Lever::Affinity(1),
        Lever::Slice(1),
        Lever::Nodes,
        Lever::Told,
    ];
    all.into_iter().filter(|lever| *lever != Lever::Told || vm == 0).collect()
}

/// All settings that a plan could be about.
fn all_levers(vm: u32) -> Vec<Lever> {
    let mut levers = levers(vm);
    for vcpu in [0, 2, 3] {
        levers.extend([Lever::VcpuQuota(vcpu), Lever::Affinity(vcpu), Lever::Slice(vcpu)]);
    }
    levers
}

fn limit(quota_us: u32) -> Value {
    Value::Limit(Limit { quota_us: Some(quota_us.into()), period_us: 100_000, burst_us: 0 })
}

/// Quota, period and burst, as shaping changes them.
fn shaped(random: &mut Random) -> Value {
    let (quota_us, longer) = (10_000 + random.below(5_u32) * 10_000, 1 + random.below(3_u32));
    let burst_us = quota_us.checked_div(random.below(4)).unwrap_or(0);
    Value::Limit(Limit {
        quota_us: Some((quota_us * longer).into()),
        period_us: (100_000 * longer).into(),
        burst_us: burst_us.into(),
    })
}

/// A value that a plan would write.
fn wanted(random: &mut Random, lever: Lever) -> Value {
    match lever {
        Lever::Online => Value::Vcpus(CpuSet::first(2 + random.below(VCPUS - 1))),
        Lever::Weight | Lever::HelperWeight => Value::Weight(Weight(f64::from(100 + random.below(5) * 100))),
        Lever::Quota | Lever::VcpuQuota(_) => shaped(random),
        Lever::Slice(_) => Value::Slice(Some((1 + random.below(5_u64)) * 100_000 + SLICE_MARK_NS)),
        Lever::Affinity(_) => Value::Pcpus(random.below(2).to_string().parse().unwrap()),
        Lever::Nodes => Value::Nodes(random.below(2).to_string().parse().ok()),
        _ => Value::Told(Some(Cpus(f64::from(1 + random.below(3))))),
    }
}

/// A value that only an administrator writes, another each time where there are enough.
fn administrators(count: u32, lever: Lever) -> Option<Value> {
    match lever {
        Lever::Online => Some(Value::Vcpus(CpuSet::first(1))),
        Lever::Weight | Lever::HelperWeight => Some(Value::Weight(Weight(f64::from(3000 + count)))),
        Lever::Quota | Lever::VcpuQuota(_) => Some(limit(60_001 + count)),
        Lever::Slice(_) => Some(Value::Slice(Some(u64::from(3_000_000 + count * 1000)))),
        Lever::Nodes => Some(Value::Nodes(None)),
        _ => None,
    }
}

/// What settings are to be at the end.
type Expected = BTreeMap<(u32, Lever), Value>;

/// A daemon's life in pieces.
struct Story {
    dir: PathBuf,
    machine: Faulty,
    keeper: Option<Keeper>,
    /// Why the last one could not start.
    refused: Option<String>,
    expected: Expected,
    /// VMs that are not to be changed any more.
    released: BTreeSet<u32>,
    watch: Watch,
    /// How long a batch may take.
    budget: Duration,
    now: Time,
}

impl Story {
    fn new(dir: &Path, machine: Faulty) -> Story {
        let (keeper, refused, expected, released, watch) = Default::default();
        let (dir, budget, now) = (dir.into(), LONG, Time(1 << 40));
        let mut story = Story { dir, machine, keeper, refused, expected, released, watch, budget, now };
        for vm in 0..=MANAGED {
            for lever in levers(vm) {
                let value = story.machine.truth(vm, lever);
                story.expected.insert((vm, lever), value);
            }
        }
        story
    }

    /// A story for each place at which it can be cut short: a daemon begins, `tell` goes on and says whether it was cut short at that
    /// place, and at the end all is as it should be. So until it was not; how many places there are.
    fn at_each_place(mut tell: impl FnMut(&mut Story, u32) -> bool) -> Result<u32, String> {
        let mut place = 0;
        loop {
            let (_dir, mut story) = stories::begun();
            let reached = tell(&mut story, place);
            story.end();
            story.check().map_err(|what| format!("place {place}: {what}"))?;
            if !reached {
                return Ok(place);
            }
            place += 1;
        }
    }

    /// A daemon that is there goes on; else one starts, if it can, and puts back what the one before left;
    /// perhaps killed on the way.
    fn start(&mut self, kill: Option<u32>) {
        if self.keeper.is_some() {
            return;
        }
        self.machine.begins();
        let (dir, machine, budget, now) = (self.dir.clone(), &mut self.machine, self.budget, self.now);
        let started = until_killed(kill, move || {
            let journal = Journal::open(&dir, "faulty", &Boot::named("boot"))?;
            let mut keeper = Keeper::new(journal, budget);
            if let Ok(mut snapshot) = machine.observe() {
                snapshot.at = now;
                keeper.restore(machine, &snapshot);
            }
            anyhow::Ok(keeper)
        });
        (self.keeper, self.refused) = match started.transpose() {
            Ok(keeper) => (keeper, None),
            Err(error) => (None, Some(error.to_string())),
        };
    }

    /// One step of the daemon, perhaps killed on the way.
    fn step(&mut self, actions: &[Action], kill: Option<u32>) {
        let released: BTreeSet<VmId> = self.released.iter().map(|vm| self.machine.id(*vm)).collect();
        let (machine, now) = (&mut self.machine, self.now);
        let Some(mut keeper) = self.keeper.take() else { return };
        self.keeper = until_killed(kill, move || {
            if let Ok(mut snapshot) = machine.observe() {
                snapshot.at = now;
                keeper.adopt(machine, &snapshot);
                keeper.release(machine, &snapshot, |vm, _| released.contains(&vm.id).then(String::new));
                // Nothing is decided for whom the look missed; one that has ended may still be in the plan.
                let missed = |vm: &VmId| machine.missed.iter().any(|number| machine.id(*number) == *vm);
                let planned = |a: &&Action| !missed(&a.vm) && !released.contains(&a.vm);
                let actions: Vec<Action> = actions.iter().filter(planned).cloned().collect();
                keeper.apply(machine, &actions, now);
                keeper.tell_again(machine, (now, Duration::from_secs(1)), |vm| !released.contains(vm));
            }
            keeper
        });
    }

    /// What a daemon that is there does of a plan, without a look.
    fn apply(&mut self, plan: &[Action]) -> Vec<Outcome> {
        self.keeper.as_mut().unwrap().apply(&mut self.machine, plan, Time(0))
    }

    fn plan(&self, random: &mut Random) -> Vec<Action> {
        let mut one = || {
            let vm = random.below(MANAGED);
            let any = (vm, random.of(&levers(vm)));
            // Also what somebody else has changed, or is about to.
            let his = match random.below(8) {
                0 | 1 => self.watch.standing(random),
                2 | 3 => self.machine.soon_made.as_ref().map(|(_, place, _)| *place),
                _ => None,
            };
            let (vm, lever) = his.filter(|(vm, _)| *vm < MANAGED).unwrap_or(any);
            let to = wanted(random, lever);
            self.action(vm, lever, to)
        };
        let mut plan: Vec<Action> = (0..4).map(|_| one()).collect();
        // Each setting once, as controllers plan.
        let mut planned = BTreeSet::new();
        plan.retain(|action| planned.insert((action.vm.clone(), action.lever)));
        plan
    }

    fn action(&self, vm: u32, lever: Lever, to: Value) -> Action {
        let why = Why::Available { available: Cpus(1.0) };
        Action { vm: self.machine.id(vm), name: format!("vm{vm}"), lever, from: None, to, why }
    }

    fn event(&mut self, random: &mut Random, count: u32) -> Result<(), String> {
        let vm = random.below(MANAGED);
        match random.below(18) {
            0 => self.keeper = None,
            1 => self.now = Time(random.below(1_u64 << 30) << 12),
            2 => drop(self.released.insert(vm)),
            3 => {
                self.released.remove(&vm);
                self.watch.begins_anew(vm);
            }
            4 | 5 => administrator(&mut self.machine, &self.expected, random, count),
            6 => disk(&self.dir, random.below(3) == 0),
            7 => self.may_take(random.of(&[Duration::ZERO, LONG, LONG])),
            _ => self.machine.befallen(random, vm),
        }
        if self.keeper.is_none() {
            self.watch.ended(&mut self.machine, &mut self.expected);
            self.start(kill(random, 4));
            self.watch.put_back(&mut self.machine, &mut self.expected)?;
        }
        let mut plan = self.plan(random);
        // Nothing is decided that is so already.
        plan.retain(|action| !self.machine.is(&action.vm, action.lever, &action.to));
        self.step(&plan, kill(random, 4));
        let entries = self.keeper.as_ref().map(Keeper::entries);
        let hindered = is_full(&self.dir) || self.budget.is_zero();
        self.watch.stepped(&mut self.machine, &mut self.expected, &self.released, entries, hindered)?;
        self.now = self.now + Duration::from_millis(700);
        self.machine.pass(Duration::from_millis(1)).unwrap();
        Ok(())
    }

    fn may_take(&mut self, budget: Duration) {
        self.budget = budget;
        self.keeper.iter_mut().for_each(|keeper| keeper.may_take(budget));
    }

    /// All is well again, and the daemon ends.
    fn end(&mut self) {
        self.machine.heal();
        disk(&self.dir, false);
        self.may_take(LONG);
        for goes_on in [true, false].repeat(4) {
            self.start(None);
            let mut keeper =
                self.keeper.take().unwrap_or_else(|| panic!("no daemon starts any more: {:?}", self.refused));
            let late = late(&self.machine);
            let snapshot = self.machine.observe().unwrap();
            let restored = keeper.restore(&mut self.machine, &snapshot);
            assert_eq!(restored.pending.is_empty(), keeper.entries().is_empty(), "{:?}", restored.pending);
            // What guests may yet let go of is waited for, and nothing else.
            let waits = |entry: &Entry| entry.lever == Lever::Online && late.contains(&entry.vm);
            assert!(keeper.entries().iter().all(waits), "{:?}", restored.pending);
            if keeper.entries().is_empty() {
                self.machine.wait();
                return;
            }
            self.machine.pass(Duration::from_millis(1)).unwrap();
            self.keeper = Some(keeper).filter(|_| goes_on);
        }
        panic!("what guests may yet let go of is waited for though they may no more");
    }

    fn check(&mut self) -> Result<(), String> {
        check(&mut self.machine, &self.expected)
    }
}

/// VMs whose guests may yet let go of a vCPU.
fn late(machine: &Faulty) -> BTreeSet<VmId> {
    (0..=MANAGED).filter(|vm| machine.may_let_go(*vm)).map(|vm| machine.id(vm)).collect()
}

/// Some of the VMs that plans are about have guests that let go late of vCPUs that they are asked for.
fn plugging(machine: &mut Faulty, random: &mut Random) {
    for vm in (0..MANAGED).filter(|_| random.below(3) > 0).collect::<Vec<_>>() {
        machine.late.insert(vm, Late::new(Random(random.draw())));
        machine.unheard.extend((random.below(2) == 0).then_some(vm));
    }
}

/// Killed at one of so many places, once in so many times: often soon, for later ones are not reached in each step.
fn kill(random: &mut Random, times: u32) -> Option<u32> {
    let places = random.of(&[10, 40, 160]);
    let place = random.below(places);
    (random.below(times) == 0).then_some(place)
}

/// An administrator changes something, or is going to in the middle of a batch.
fn administrator(machine: &mut Faulty, expected: &Expected, random: &mut Random, count: u32) {
    let vm = random.below(MANAGED + 1);
    // Mostly what corefit has changed.
    let any = (vm, random.of(&levers(vm)));
    let place = machine.written.changed(random).filter(|_| random.below(4) > 0).unwrap_or(any);
    let ((vm, lever), first) = (place, machine.first(place.0, place.1));
    let other = match administrators(count, lever) {
        // On one of two pCPUs, or both.
        None if lever.kind() == LeverKind::Affinity => {
            let pin = Value::Pcpus(random.of(&["0", "1", "0-1"]).parse().unwrap());
            Some(pin).filter(|pin| *pin != first && machine.written.never(place, pin))
        }
        other => other,
    };
    let value = match random.below(8) {
        // What it was, if that is what corefit found.
        0 | 1 if expected.get(&place) == Some(&first) => Some(first),
        2..5 => machine.written.once(random, place, &expected[&place]).or(other),
        5 | 6 => {
            // (A pin may be what is just planned.)
            let soon =
                other.filter(|other| *other != expected[&place] && lever.kind() != LeverKind::Affinity);
            machine.soon_made = soon.map(|other| (random.below(2), place, other));
            return;
        }
        _ => other,
    };
    // (What somebody writes during a backup may be followed by what corefit asked for, unseen.)
    if let Some(value) = value.filter(|_| !machine.waits(vm, lever)) {
        machine.make(place, &value, false);
    }
}

/// The disk of the journal has no room, or has some again.
fn disk(dir: &Path, full: bool) {
    // A directory in the way of the file that the journal is written to first.
    let beside = dir.join("journal.new");
    if full {
        let _ = std::fs::remove_file(&beside);
        let _ = std::fs::create_dir(&beside);
    } else {
        let _ = std::fs::remove_dir(&beside);
    }
}

fn is_full(dir: &Path) -> bool {
    dir.join("journal.new").is_dir()
}

/// Whether nothing is left of anything that was done.
fn check(machine: &mut Faulty, expected: &Expected) -> Result<(), String> {
    if machine.touched.contains(&MANAGED) {
        return Err("a VM that no plan was about was touched".into());
    }
    for ((vm, lever), expected) in expected {
        if machine.gone.contains(vm) {
            continue;
        }
        let found = machine.truth(*vm, *lever);
        if found != *expected {
            return Err(format!("VM {vm}: {lever} is {found}, not {expected}"));
        }
    }
    match machine.kept.iter().find(|(vm, _)| !machine.gone.contains(vm)) {
        Some((vm, text)) => Err(format!("VM {vm} still carries {text}")),
        None => Ok(()),
    }
}

/// A directory where syncing costs nothing, if there is one: what is tested is the order of things.
fn directory() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

#[test]
fn after_random_faults_every_setting_is_as_it_was_or_as_an_administrator_made_it() {
    let (mut stood, mut freed, mut late, mut went) = (0, 0, 0, 0);
    for seed in 0..SEQUENCES {
        let dir = directory();
        let mut random = Random(seed);
        let mut story = Story::new(dir.path(), Faulty::new(simulated(HOST)));
        story.machine.mute = true;
        plugging(&mut story.machine, &mut random);
        story.start(None);
        for count in 0..EVENTS {
            let event = story.event(&mut random, count);
            event.unwrap_or_else(|what| panic!("seed {seed}, event {count}: {what}"));
        }
        story.end();
        story.check().unwrap_or_else(|what| panic!("seed {seed}: {what}"));
        (stood, freed) = (stood + story.watch.stood, freed + story.watch.freed);
        (late, went) = (late + story.watch.late, went + story.machine.went_late);
    }
    assert!(stood >= 1000 && freed >= 1000, "{stood} settings stood, {freed} VMs were left alone");
    assert!(late >= 500 && went >= 150, "{late} guests were late, {went} vCPUs went late");
}

#[test]
fn a_kill_at_each_place_of_a_step_leaves_a_journal_that_undoes_it() {
    let killed = Story::at_each_place(|story, place| {
        assert!(story.keeper.is_some(), "place {place}: no daemon starts: {:?}", story.refused);
        let plan = story.plan(&mut Random(7));
        story.step(&plan, Some(place));
        story.keeper.is_none()
    });
    assert!(matches!(killed, Ok(10..)), "{killed:?} places were reached");
}

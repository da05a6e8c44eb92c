//! The same with the whole daemon: what its controllers decide, by policies drawn at random, is what is done and undone.

use std::cell::RefCell;
use std::rc::Rc;

use corefit_core::machine::{LeverKind, Snapshot};

use super::faulty::MINUTE;
use super::*;
use crate::machine::MachineArg;
use crate::manage::ManageArgs;
use crate::manage::daemon::Daemon;
use crate::manage::restore::Work;

const STEPS: u32 = 25;
const INTERVAL: Duration = Duration::from_millis(50);
/// Of the pauses of `corefit restore` so many are a sixth of the minute in which a guest may let go of a vCPU.
const PAUSES: u32 = 5;

/// On two nodes of two pCPUs: a program with teams, busy vCPUs that are pinned onto one pCPU, threads that sleep and are limited,
/// and two busy vCPUs of four that all have a limit; more than there are pCPUs for.
pub(super) const HOSTS: [&str; 2] = [
    "[[vm]]\nname = \"a\"\nvcpus = 4\nprogram = \"lu\"\n\
     [[vm]]\nname = \"b\"\nvcpus = 4\naffinity = \"2\"\nprogram = \"hog\"\n\
     [[vm]]\nname = \"c\"\nvcpus = 4\ncap = 0.4\ncap_period = \"10ms\"\nthreads = 1\n\
     program = \"forever { compute 7ms sleep 8ms }\"\n\
     [[vm]]\nname = \"d\"\nvcpus = 4\nprogram = \"hog\"\n",
    "[[vm]]\nname = \"a\"\nvcpus = 4\nprogram = \"lu\"\n\
     [[vm]]\nname = \"b\"\nvcpus = 4\nthreads = 2\npinned = true\nprogram = \"hog\"\n\
     quota = 0.3\nquota_period = \"10ms\"\n\
     [[vm]]\nname = \"c\"\nvcpus = 4\nthreads = 4\nprogram = \"forever { compute 100us mark sleep 400us }\"\n\
     [[vm]]\nname = \"d\"\nvcpus = 4\nprogram = \"hog\"\n",
];
pub(super) const HARDWARE: &str =
    "scheduler = \"eevdf\"\nuntil = \"3600s\"\nhardware = { sockets = 2, cores = 2 }\n";

/// The machine, which outlives its daemons.
#[derive(Clone)]
pub(super) struct Shared(pub(super) Rc<RefCell<Faulty>>);

impl Machine for Shared {
    fn name(&self) -> String {
        self.0.borrow().name()
    }

    fn observe(&mut self) -> Result<Snapshot, MachineError> {
        self.0.borrow_mut().observe()
    }

    fn pass(&mut self, time: Duration) -> Result<bool, MachineError> {
        self.0.borrow_mut().pass(time)
    }
}

impl Act for Shared {
    fn current(&mut self, vm: &VmId, lever: Lever) -> Result<Value, MachineError> {
        self.0.borrow_mut().current(vm, lever)
    }

    fn set(&mut self, vm: &VmId, lever: Lever, value: &Value) -> Result<(), MachineError> {
        self.0.borrow_mut().set(vm, lever, value)
    }

    fn keep(&mut self, vm: &VmId, text: Option<&str>) -> Result<(), MachineError> {
        self.0.borrow_mut().keep(vm, text)
    }

    fn may_be_there(&mut self, vm: &VmId) -> bool {
        self.0.borrow_mut().may_be_there(vm)
    }

    fn wishes_stand(&mut self, vm: &VmId) -> Result<bool, MachineError> {
        self.0.borrow_mut().wishes_stand(vm)
    }

    fn is_by_guest(&self, vm: &VmId) -> bool {
        self.0.borrow().is_by_guest(vm)
    }

    fn goes_by_guest(&mut self, vm: &VmId) {
        self.0.borrow_mut().goes_by_guest(vm);
    }

    fn lets_go(&self, vm: &VmId) -> Option<Duration> {
        self.0.borrow().lets_go(vm)
    }

    fn ask_again(&mut self) {
        self.0.borrow_mut().ask_again();
    }
}

/// A configuration, and whom it excludes. Two vCPUs always stay, for one is what administrators leave.
fn configuration(random: &mut Random) -> (String, BTreeSet<u32>) {
    let mut excluded = BTreeSet::from([MANAGED]);
    let mut rule = |random: &mut Random, vm: u32| {
        if random.below(6) == 0 {
            excluded.insert(vm);
        }
        let (priority, exclude) = (random.below(3), excluded.contains(&vm));
        let latency = random.of(&["", "latency_ms = 200\n"]);
        format!(
            "[[policy.vm]]\nname = \"vm{vm}\"\nmin = 2\npriority = {priority}\nexclude = {exclude}\n{latency}"
        )
    };
    let rules: String = (0..=MANAGED).map(|vm| rule(random, vm)).collect();
    let text = format!(
        "metrics = \"off\"\ntell = {}\n[policy]\ninterval_ms = 50\nprobe_ms = 20\ndwell_ms = {}\nlever_ms = {}\n\
         size = {:?}\narbitrate = {:?}\nweigh = {:?}\nhelpers = {:?}\nplace = {:?}\nshape = {:?}\n{rules}",
        random.below(3) > 0,
        random.of(&[0, 50, 200]),
        random.of(&[0, 50, 200]),
        random.of(&["none", "vcpu-bal", "vscale", "pcpu-est", "corefit", "corefit"]),
        random.of(&["none", "fcfs", "priority", "max-min"]),
        random.of(&["none", "grants", "grants"]),
        random.of(&["none", "light"]),
        random.of(&["none", "ulas", "optimal-affinity", "corefit", "corefit"]),
        random.of(&["none", "burst", "long-period", "proportional", "slice", "slice", "corefit", "corefit"]),
    );
    (text, excluded)
}

/// Daemons, one after the other.
pub(super) struct Whole<'a> {
    args: &'a ManageArgs,
    dir: &'a Path,
    pub(super) machine: Shared,
    pub(super) daemon: Option<Daemon<'a>>,
    pub(super) expected: Expected,
    /// VMs that the configuration excludes.
    excluded: BTreeSet<u32>,
    watch: Watch,
    budget: Duration,
}

impl<'a> Whole<'a> {
    pub(super) fn new(args: &'a ManageArgs, dir: &'a Path, machine: Faulty) -> Whole<'a> {
        let machine = Shared(Rc::new(RefCell::new(machine)));
        let all = (0..=MANAGED).flat_map(|vm| all_levers(vm).into_iter().map(move |lever| (vm, lever)));
        let expected =
            all.map(|(vm, lever)| ((vm, lever), machine.0.borrow_mut().truth(vm, lever))).collect();
        let (daemon, excluded, watch) = Default::default();
        Whole { args, dir, machine, daemon, expected, excluded, watch, budget: LONG }
    }

    /// As `corefit manage` starts, if nobody is there.
    pub(super) fn start(&mut self, kill: Option<u32>) {
        if self.daemon.is_some() {
            return;
        }
        self.machine.0.borrow_mut().begins();
        let (args, dir, budget) = (self.args, self.dir, self.budget);
        let machine = Box::new(self.machine.clone());
        let started = until_killed(kill, || {
            let config = args.read().unwrap();
            let journal = Journal::open(dir, "faulty", &Boot::named("boot")).ok()?;
            let keeper = Keeper::new(journal, budget);
            let mut daemon = Daemon::new(args, config, machine, Some(keeper), false);
            daemon.recover();
            Some(daemon)
        });
        self.daemon = started.flatten();
    }

    /// A step, and the time until the next one.
    pub(super) fn step(&mut self, kill: Option<u32>) {
        let Some(mut daemon) = self.daemon.take() else { return };
        let stepped = until_killed(kill, || {
            let next = daemon.step();
            (daemon, next)
        });
        let next = stepped.as_ref().map_or(INTERVAL, |(_, next)| *next);
        self.daemon = stepped.map(|(daemon, _)| daemon);
        self.machine.pass(next).unwrap();
    }

    /// It ends as by a signal, perhaps killed while it does.
    pub(super) fn end(&mut self, kill: Option<u32>) -> Option<bool> {
        let mut daemon = self.daemon.take()?;
        until_killed(kill, || daemon.put_back(Duration::ZERO, |_| false))
    }

    pub(super) fn configure(&mut self, text: &str) {
        std::fs::write(self.args.config.as_ref().unwrap(), text).unwrap();
        if let Some(daemon) = &mut self.daemon {
            daemon.reload();
            // What is tested does not go by how crowded this machine is.
            daemon.may_take(self.budget);
        }
    }

    fn may_take(&mut self, budget: Duration) {
        self.budget = budget;
        self.daemon.iter_mut().for_each(|daemon| daemon.may_take(budget));
    }

    /// It ends, and what its guests may yet let go of, and nothing else, is put back by those that come after it, or by `corefit restore`
    /// at last.
    fn end_at_last(&mut self, restore: bool) -> Result<(), String> {
        for _ in 0..=MINUTE {
            let late = late(&self.machine.0.borrow());
            let clean = self.end(None) == Some(true);
            let left =
                Journal::found(self.dir, &Boot::named("boot")).unwrap().map_or(Vec::new(), |(_, left)| left);
            let waits = |entry: &Entry| entry.lever == Lever::Online && late.contains(&entry.vm);
            if clean != left.is_empty() || !left.iter().all(waits) {
                return Err(format!("not all could be put back, or more: {left:?}"));
            }
            if clean {
                self.machine.0.borrow_mut().wait();
                return Ok(());
            }
            self.machine.pass(INTERVAL).unwrap();
            if restore {
                return self.restore();
            }
            self.start(None);
        }
        Err("what guests may yet let go of is waited for though they may no more".into())
    }

    /// As `corefit restore` does.
    fn restore(&mut self) -> Result<(), String> {
        self.machine.0.borrow_mut().begins();
        let mut work = Work::new(MachineArg::named("faulty"), self.dir.into(), Boot::named("boot"));
        let (mut machine, mut pauses) = (self.machine.clone(), 0);
        work.on = Some(Box::new(machine.clone()));
        let journal = Journal::held(self.dir, "faulty", &Boot::named("boot")).unwrap();
        work.keeper = Some(Keeper::new(journal, LONG));
        let done = work.tries(None, || {
            pauses += 1;
            if pauses % PAUSES == 0 {
                machine.pass(INTERVAL).unwrap();
            }
        });
        done.map_err(|error| error.to_string())?;
        self.machine.0.borrow_mut().wait();
        match &work.restored.pending[..] {
            [] if pauses <= MINUTE * PAUSES => Ok(()),
            left => Err(format!("corefit restore paused {pauses} times, and leaves {left:?}")),
        }
    }

    /// Another configuration than before.
    fn reconfigure(&mut self, random: &mut Random) {
        let text;
        (text, self.excluded) = configuration(random);
        self.configure(&text);
        self.watch.all_begin_anew();
    }

    fn event(&mut self, random: &mut Random, count: u32) -> Result<(), String> {
        let vm = random.below(MANAGED);
        match random.below(32) {
            0 => self.daemon = None,
            1 => {
                // (A part that nobody could note is somebody else's for the next daemon.)
                if is_full(self.dir) {
                    self.machine.0.borrow_mut().halfway.clear();
                }
                let _ = self.end(kill(random, 6));
                self.watch.put_back(&mut self.machine.0.borrow_mut(), &mut self.expected)?;
            }
            2 => self.reconfigure(random),
            3 => drop(self.machine.0.borrow_mut().owned.insert(vm)),
            4 => {
                self.machine.0.borrow_mut().owned.remove(&vm);
                self.watch.begins_anew(vm);
            }
            5 => disk(self.dir, random.below(3) == 0),
            6 => self.machine.0.borrow_mut().ahead = random.below(1_u64 << 20) << 20,
            7..10 => administrator(&mut self.machine.0.borrow_mut(), &self.expected, random, count),
            10 => self.may_take(random.of(&[Duration::ZERO, LONG, LONG])),
            11..22 => self.machine.0.borrow_mut().befallen(random, vm),
            _ => {}
        }
        if self.daemon.is_none() {
            self.watch.ended(&mut self.machine.0.borrow_mut(), &mut self.expected);
            self.start(kill(random, 6));
            self.watch.put_back(&mut self.machine.0.borrow_mut(), &mut self.expected)?;
        }
        self.step(kill(random, 6));
        let machine = &mut self.machine.0.borrow_mut();
        let free = self.excluded.union(&machine.owned).copied().collect();
        let entries = self.daemon.as_ref().map(Daemon::entries);
        let hindered = is_full(self.dir) || self.budget.is_zero();
        self.watch.stepped(machine, &mut self.expected, &free, entries, hindered)
    }
}

/// A sequence of its own, added to what was written; how much stood, was freed, and came late.
fn sequence(seed: u64, writes: &mut BTreeMap<LeverKind, u32>) -> Result<[u32; 4], String> {
    let dir = directory();
    let mut random = Random(seed);
    let args = configured(dir.path());
    let host = random.of(&HOSTS);
    let mut machine = Faulty::new(simulated(&format!("{HARDWARE}{host}")));
    machine.starving.extend((random.below(3) == 0).then_some(0));
    plugging(&mut machine, &mut random);
    let mut whole = Whole::new(&args, dir.path(), machine);
    whole.reconfigure(&mut random);
    for count in 0..STEPS {
        whole.event(&mut random, count).map_err(|what| format!("event {count}: {what}"))?;
    }
    let unseen = whole.machine.0.borrow().hides();
    whole.machine.0.borrow_mut().heal();
    disk(dir.path(), false);
    whole.may_take(LONG);
    whole.start(None);
    if unseen {
        // Of a note that it never saw a daemon knows nothing.
        whole.step(None);
    }
    whole.end_at_last(random.below(2) == 0)?;
    if Journal::left(dir.path(), &Boot::named("boot"))
        .is_ok_and(|left| left.is_some_and(|(_, settings)| settings > 0))
    {
        return Err("the journal is not empty".into());
    }
    let mut machine = whole.machine.0.borrow_mut();
    for (kind, count) in &machine.writes {
        *writes.entry(*kind).or_insert(0) += count;
    }
    let Watch { stood, freed, late, .. } = whole.watch;
    check(&mut machine, &whole.expected).map(|()| [stood, freed, late, machine.went_late])
}

/// Arguments with a configuration in a directory.
pub(super) fn configured(dir: &Path) -> ManageArgs {
    let config = Some(dir.join("corefit.toml"));
    ManageArgs { config, apply: true, ..ManageArgs::default() }
}

#[test]
fn whatever_policies_decide_and_faults_happen_every_setting_is_as_it_was_or_as_an_administrator_made_it() {
    let mut writes = BTreeMap::new();
    let mut all = [0; 4];
    for seed in 0..SEQUENCES {
        let done = sequence(seed, &mut writes);
        let done = done.unwrap_or_else(|what| panic!("seed {seed}: {what}"));
        all.iter_mut().zip(done).for_each(|(all, more)| *all += more);
    }
    // Controllers that do nothing prove nothing.
    for kind in [
        LeverKind::Online,
        LeverKind::Weight,
        LeverKind::HelperWeight,
        LeverKind::Quota,
        LeverKind::VcpuQuota,
        LeverKind::Affinity,
        LeverKind::Slice,
        LeverKind::Nodes,
        LeverKind::Told,
    ] {
        assert!(
            writes.get(&kind).is_some_and(|count| *count >= 50),
            "{kind:?} was hardly written: {writes:?}"
        );
    }
    let [stood, freed, late, went] = all;
    assert!(stood >= 1000 && freed >= 1000, "{stood} settings stood, {freed} VMs were left alone");
    assert!(late >= 1000 && went >= 300, "{late} guests were late, {went} vCPUs went late");
}

//! The loop: look, decide, apply, tell; until a signal.

mod back;
mod configured;
mod notes;
mod owners;
mod report;
mod said;
mod signals;
mod went;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;
use corefit_core::decide::{Controller, Outcome, Policy, Sizer, Why};
use corefit_core::machine::{Act, Lever, MachineError, Snapshot, VmId};
use corefit_linux::Root;
use signal_hook::consts::SIGHUP;

pub(super) use back::recover;
use report::failure;
use said::Said;
pub(super) use signals::Signals;
use went::{Late, say_ended, say_late, under_way, unseen};

use super::config::Config;
use super::failpoint::reach;
#[cfg(test)]
use super::journal::Entry;
use super::keeper::heed;
use super::log::{self, Level, log};
use super::status::{self, Board};
use super::telling::Telling;
use super::{Keeper, ManageArgs, metrics, restore, systemd, yields};

/// An address for metrics that somebody else has is asked for again after so long.
const METRICS_AGAIN: Duration = Duration::from_secs(60);

/// The daemon.
pub(super) struct Daemon<'a> {
    args: &'a ManageArgs,
    config: Config,
    machine: Box<dyn Act>,
    /// Without: nothing is changed.
    keeper: Option<Keeper>,
    controller: Controller,
    telling: Telling,
    /// Time passes by itself.
    live: bool,
    board: Board,
    _socket: Option<status::Socket>,
    /// Metrics that could not be had there, and when that is tried again.
    unserved: Option<(SocketAddr, Instant)>,
    /// Where it is seen what the kernel does itself; a simulated host's does nothing.
    kernel: Option<Root>,
    /// What is left to it.
    left: yields::Left,
    /// What was said, and is not said again while it is so.
    told: Said,
    /// VMs that their owners have left alone, by name, and why.
    owned: BTreeMap<String, String>,
    /// What is so besides what a look shows, since the configuration was read.
    notes: Vec<String>,
    /// Why nothing is changed, while the journal cannot be written.
    unwritten: Option<String>,
    /// Control groups whose cpusets are sized, or were and are not put back yet.
    sized: BTreeSet<VmId>,
    /// What would be changed, as it was said last.
    planned: Said,
    /// VMs that the last look could not read.
    unread: BTreeSet<String>,
    /// The name of each VM, and its actions and failures so far.
    counts: BTreeMap<VmId, (String, u64, u64)>,
    steps: u64,
    /// There was a look by which something could be decided.
    looked: bool,
    /// A look has shown whether the configuration is one for the machine.
    fitted: bool,
    /// Guests that do not answer, and the lever by which that was seen.
    silent: BTreeMap<VmId, Lever>,
    /// What did not come in time, and may yet.
    late: Late,
}

impl<'a> Daemon<'a> {
    /// One that nobody can ask.
    pub(super) fn new(
        args: &'a ManageArgs,
        mut config: Config,
        machine: Box<dyn Act>,
        keeper: Option<Keeper>,
        live: bool,
    ) -> Daemon<'a> {
        let board = Board::default();
        board.lock().machine = machine.name();
        board.lock().applies = keeper.is_some();
        let note = if keeper.is_none() { stand_in(&mut config.policy) } else { None };
        let controller = Controller::new(config.policy.clone());
        let (told, owned, sized, planned, telling, left) = Default::default();
        let mut daemon = Daemon {
            args,
            config,
            machine,
            keeper,
            controller,
            sized,
            telling,
            live,
            kernel: live.then(Root::live),
            board,
            _socket: None,
            unserved: None,
            left,
            told,
            owned,
            notes: note.into_iter().collect(),
            unwritten: None,
            planned,
            unread: BTreeSet::new(),
            counts: BTreeMap::new(),
            steps: 0,
            looked: false,
            fitted: false,
            silent: BTreeMap::new(),
            late: Late::new(),
        };
        daemon.say(&daemon.notes.clone());
        let vms = daemon.before_a_look();
        daemon.board.lock().vms = vms;
        daemon
    }

    /// The same with a status and metrics for those who ask. One without them is better than none.
    pub(super) fn serving(mut self) -> Daemon<'a> {
        let (state, applies) = (&self.config.state, self.keeper.is_some());
        if self.live && !applies {
            left_by_another(state);
        }
        // What is simulated without changing anything has no directory, unless it is given one.
        let has = self.live || applies || self.args.state.is_some();
        let serve = has.then(|| status::serve(state, &self.board, applies));
        self._socket = serve.and_then(|served| {
            let why = |error: anyhow::Error| [("why", format!("{error:#}"))];
            served.map_err(|error| log(Level::Warning, "no status", &why(error))).ok()
        });
        // Who changes no host does not take its address from the one who does.
        if !self.args.no_apply
            && let Ok(Some(address)) = self.config.metrics(self.live && applies)
        {
            self.serve_metrics(address, true);
        }
        self
    }

    /// Has metrics at an address, now or later. `first`: where it cannot be had, that is said.
    fn serve_metrics(&mut self, address: SocketAddr, first: bool) {
        self.unserved = None;
        match metrics::serve(address, &self.board) {
            Ok(address) => log(Level::Info, "metrics", &[("address", address.to_string())]),
            Err(error) => {
                self.unserved = Some((address, Instant::now() + METRICS_AGAIN));
                if first {
                    let error = self.config.of_key(self.args.config.as_deref(), "metrics", error);
                    let remedy = "in the configuration metrics = \"127.0.0.1:PORT\" or \"off\"; tried again each minute";
                    let fields = [("why", format!("{error:#}")), ("remedy", remedy.into())];
                    log(Level::Warning, "no metrics", &fields);
                }
            }
        }
    }

    /// Goes on until a signal, an error of a simulation, or the end of its time, and where it changes no host, until nobody is left to
    /// read what it says; then puts everything back.
    pub(super) fn run(&mut self, signals: &Signals) -> Result<ExitCode> {
        let does = if self.keeper.is_some() { "changes settings" } else { "only says what it would change" };
        log(Level::Info, "begun", &[("machine", self.machine.name()), ("does", does.into())]);
        if let Some(keeper) = &mut self.keeper {
            keeper.heeds(signals.ends.clone());
        }
        // Whatever happens to the loop, what was changed is put back.
        let turn = std::panic::AssertUnwindSafe(|| self.turn(signals));
        let result = std::panic::catch_unwind(turn);
        systemd::stopping();
        let by_signal = matches!(result, Ok(Ok(true)));
        let clean = self.put_back(restore::PATIENCE, signals.enough(by_signal));
        match result {
            // Whoever calls it for a while is to know that nothing came of it.
            Ok(Ok(_)) if !self.looked && self.steps > 0 => {
                log(Level::Error, "ended", &[("why", "nothing could be decided, not once".into())]);
                Ok(ExitCode::FAILURE)
            }
            Ok(Ok(_)) if clean => Ok(ExitCode::SUCCESS),
            Ok(Ok(_)) => Ok(ExitCode::FAILURE),
            // Not as what cannot be from the start: another try may help (the unit's RestartPreventExitStatus).
            Ok(Err(error)) => {
                log(Level::Error, "ended", &[("why", format!("{error:#}"))]);
                Ok(ExitCode::FAILURE)
            }
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }

    /// The loop; whether a signal ended it.
    fn turn(&mut self, signals: &Signals) -> Result<bool> {
        self.recover();
        let (begun, mut passed) = (Instant::now(), Duration::ZERO);
        if self.ended_by(signals, begun) {
            // systemd takes who ends without it for failed.
            systemd::ready();
            return Ok(true);
        }
        loop {
            let started = Instant::now();
            let interval = self.step();
            self.board.lock().step_s = Some(started.elapsed().as_secs_f64());
            if self.steps == 1 {
                systemd::ready();
            }
            let due = if self.live { interval.saturating_sub(started.elapsed()) } else { interval };
            let left = self
                .args
                .time
                .map(|time| time.saturating_sub(if self.live { begun.elapsed() } else { passed }));
            let wait = left.map_or(due, |left| left.min(due));
            passed += wait;
            if !self.live && !self.machine.pass(wait)? {
                log(Level::Info, "ends", &[("why", "the simulated host does".into())]);
                return Ok(false);
            }
            if self.ended_by(signals, Instant::now() + if self.live { wait } else { Duration::ZERO }) {
                return Ok(true);
            }
            let for_nobody = (!self.live || self.keeper.is_none()) && log::closed();
            if for_nobody || left.is_some_and(|left| left <= due) {
                let why = if for_nobody { "nobody reads its log" } else { "its time is over" };
                log(Level::Info, "ends", &[("why", why.into())]);
                return Ok(false);
            }
        }
    }

    /// Heeds signals until then; whether one ends it.
    fn ended_by(&mut self, signals: &Signals, until: Instant) -> bool {
        while let Some(signal) = signals.within(until.saturating_duration_since(Instant::now())) {
            if signal != SIGHUP {
                log(Level::Info, "ends", &[("signal", signal.to_string())]);
                return true;
            }
            self.reload();
        }
        false
    }

    /// One look, and what follows from it; how long to wait then. A signal that ends the daemon cuts it short.
    pub(super) fn step(&mut self) -> Duration {
        self.steps += 1;
        self.told.pass();
        self.planned.pass();
        if let Some((address, _)) = self.unserved.filter(|(_, again)| Instant::now() >= *again) {
            self.serve_metrics(address, false);
        }
        let mut snapshot = match self.machine.observe() {
            Ok(snapshot) => snapshot,
            Err(error) => {
                self.keeper.iter_mut().for_each(Keeper::saw_nothing);
                self.trouble(self.unseen(error));
                return self.config.policy.interval();
            }
        };
        if !self.live {
            log::simulated(snapshot.at);
        }
        self.fit(&snapshot);
        self.take_in(&mut snapshot);
        // Nothing is decided by what was before something was put back.
        if !self.ends()
            && self.release(&snapshot)
            && !self.ends()
            && let Ok(now) = self.machine.observe()
        {
            snapshot = now;
            self.take_in(&mut snapshot);
        }
        if self.ends() {
            // The first was cut short: it is no failure that nothing was decided.
            self.looked |= self.steps == 1;
            return self.config.policy.interval();
        }
        if let Some(keeper) = &mut self.keeper {
            keeper.find_anew(&mut *self.machine, &snapshot);
            heed(&mut self.controller, keeper.entries());
            keeper.leave_theirs(&mut snapshot);
        }
        let mut step = match self.controller.step(&snapshot) {
            Ok(step) => step,
            // What is changed stays so: the next look may show other numbers, and whoever starts again would see the same ones.
            Err(error) => {
                self.trouble(format!("it shows what no host has: {error}"));
                return self.config.policy.interval();
            }
        };
        self.looked = true;
        if self.board.shown().trouble.is_some() {
            self.board.lock().trouble = None;
            log(Level::Info, "the machine is there again", &[]);
        }
        let told = step.usual().filter(|_| self.config.tell);
        let tries = |vm: &VmId| self.controller.tries(vm);
        let told = told.map(|host| self.telling.step(host, self.controller.policy(), tries));
        step.plan.actions.extend(told.unwrap_or_default());
        // What is so of the whole machine comes first.
        let mut notes = snapshot.notes.clone();
        self.unread(&snapshot, &mut notes);
        step.notes.splice(..0, notes);
        self.silences(&mut step, &snapshot);
        self.say(&step.notes);
        let mut heard = Vec::new();
        let outcomes = match &mut self.keeper {
            Some(keeper) => {
                if !step.plan.actions.is_empty() {
                    reach("planned");
                }
                let mut outcomes = keeper.apply(&mut *self.machine, &step.plan.actions, snapshot.at);
                let next = self.config.policy.interval();
                keeper.tell_again(&mut *self.machine, (snapshot.at, next), |vm| self.telling.stands(vm));
                for note in keeper.unsaid() {
                    log(Level::Warning, "note", &[("what", note)]);
                }
                self.unwritten = keeper.unwritten();
                self.controller.told(&outcomes);
                let missed =
                    |outcome: &&Outcome| outcome.action.lever == Lever::Told && outcome.result.is_err();
                for outcome in outcomes.iter().filter(missed) {
                    let tried = !matches!(outcome.result, Err(MachineError::Untried(_)));
                    self.telling.missed(&outcome.action.vm, tried, snapshot.at);
                }
                let came = |outcome: &&Outcome| {
                    let asked = outcome.action.why == Why::AskedAgain;
                    outcome.result.is_ok() && !asked && !outcome.is_in_vain()
                };
                for outcome in outcomes.iter().filter(came) {
                    self.told.forget_of(&failure(&outcome.action, ""));
                }
                heard.extend(outcomes.iter().filter(|outcome| outcome.result.is_ok()).cloned());
                // A look may be of before it was written: that is nobody's news. What there was no time for comes next time.
                outcomes.retain(|outcome| !keeper.had(&outcome.action) && !keeper.put_off(&outcome.action));
                outcomes
            }
            None => {
                self.would(&snapshot, &step.plan.actions);
                Vec::new()
            }
        };
        let many = log::many();
        heard.iter().for_each(|outcome| self.answered(&snapshot, outcome));
        for outcome in &outcomes {
            self.tell(&snapshot, outcome);
        }
        drop(many);
        self.post(&snapshot, &step, &outcomes);
        step.next
    }

    /// How long a step takes; then a second passes.
    pub(super) fn timed(&mut self) -> Result<Duration> {
        let started = Instant::now();
        self.step();
        let took = started.elapsed();
        self.machine.pass(Duration::from_secs(1))?;
        Ok(took)
    }

    /// What is shown of it.
    pub(super) fn shown(&self) -> status::Status {
        (*self.board.shown()).clone()
    }

    /// Whether a signal has come that ends it, which the loop heeds after this step.
    fn ends(&self) -> bool {
        self.keeper.as_ref().is_some_and(Keeper::ends)
    }

    /// What is not for us in a look, what owners wish, and what VMs brought.
    fn take_in(&mut self, snapshot: &mut Snapshot) {
        self.yields(snapshot);
        if self.keeper.is_none() {
            try_none(snapshot.vms.iter_mut().filter_map(|vm| vm.wishes.as_mut()?.size.as_mut()));
        }
        self.owners(snapshot);
        if let Some(keeper) = &mut self.keeper {
            let (before, unseen) = (under_way(keeper), unseen(keeper, snapshot));
            for note in keeper.adopt(&mut *self.machine, snapshot) {
                log(Level::Warning, "came with changes", &[("what", note)]);
            }
            for (vm, name) in say_late(&before, keeper, snapshot, &mut self.late, &mut self.told) {
                let counted = self.counts.entry(vm).or_default();
                (counted.0, counted.1) = (name, counted.1 + 1);
            }
            say_ended(unseen, keeper);
        }
    }

    /// What the kernel manages itself has no levers.
    fn yields(&mut self, snapshot: &mut Snapshot) {
        let Some(kernel) = &self.kernel else { return };
        let found = yields::detect(kernel, &self.machine.name());
        let [begun, ended] = self.left.see(found, Instant::now());
        for what in begun {
            log(Level::Warning, "left to the kernel", &[("what", what.reason)]);
        }
        for what in ended {
            log(Level::Info, "left to the kernel no more", &[("what", what.reason)]);
        }
        yields::leave_alone(snapshot, self.left.now());
    }
}

#[cfg(test)]
impl Daemon<'_> {
    /// As if it ran on this kernel.
    pub(super) fn runs_on(&mut self, kernel: Root) {
        assert!(self.kernel.is_none(), "this one's has nothing to do with a simulated host");
        self.kernel = Some(kernel);
    }

    /// A step may take so long, whatever the configuration says.
    pub(super) fn may_take(&mut self, budget: Duration) {
        self.keeper.iter_mut().for_each(|keeper| keeper.may_take(budget));
    }

    /// Settings that are changed now.
    pub(super) fn entries(&self) -> &[Entry] {
        self.keeper.as_ref().map_or(&[], Keeper::entries)
    }

    /// Whether it has said that a change of a setting failed, and would not say it again.
    pub(super) fn said_failure(&self, setting: &str) -> bool {
        self.told.knows(setting)
    }
}

/// Settings that a run left stay as they are while one that changes nothing looks on.
fn left_by_another(state: &Path) {
    match status::left(state) {
        Ok(Some([left, remedy])) => {
            log(Level::Warning, "an earlier run left settings", &[("left", left), ("remedy", remedy)]);
        }
        Ok(None) => {}
        Err(error) => {
            log(Level::Warning, "an earlier run may have left settings", &[("why", format!("{error:#}"))]);
        }
    }
}

/// VCPU-Bal's numbers in the place of those that are found by trying; whether there are some.
pub(crate) fn try_none<'a>(sizes: impl Iterator<Item = &'a mut Sizer>) -> bool {
    sizes.filter(|size| size.tries()).map(|size| *size = Sizer::VcpuBal).count() > 0
}

/// Who changes nothing cannot see what other numbers would do: VCPU-Bal's stand for those that are found by trying, which is said.
fn stand_in(policy: &mut Policy) -> Option<String> {
    let rules = policy.vm.iter_mut().filter_map(|rule| rule.size.as_mut());
    try_none(rules.chain([&mut policy.size])).then(|| {
        "numbers of vCPUs are VCPU-Bal's, after dwell_ms: what size = \"corefit\" and \"pcpu-est\" try from the first looks on, and \
         what they find, only --apply shows"
            .into()
    })
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use corefit_core::Weight;
    use corefit_core::machine::{Machine, Value, VmState};

    use super::*;
    use crate::machine::MachineArg;

    pub(super) fn arguments() -> ManageArgs {
        ManageArgs::default()
    }

    /// One that only looks at a simulated host with a VM.
    pub(super) fn looking(args: &ManageArgs) -> Daemon<'_> {
        running(args, "hog")
    }

    /// The same with this program.
    pub(super) fn running<'a>(args: &'a ManageArgs, program: &str) -> Daemon<'a> {
        let file = tempfile::NamedTempFile::new().unwrap();
        let vm = format!("[[vm]]\nname = \"a\"\nvcpus = 1\nprogram = \"{program}\"\n");
        std::fs::write(file.path(), format!("until = \"10s\"\nhardware = {{ cores = 1 }}\n{vm}")).unwrap();
        let machine = MachineArg::named(&format!("sim:{}", file.path().display())).open_to_act().unwrap();
        Daemon::new(args, Config::default(), machine, None, false)
    }

    pub(super) fn a_vm() -> VmState {
        VmState { id: VmId("7".into()), name: "a".into(), ..VmState::default() }
    }

    /// A machine with this VM, where nothing can be written, because of this.
    pub(super) struct Refuses(pub(super) MachineError);

    impl Machine for Refuses {
        fn name(&self) -> String {
            "refuses".into()
        }

        fn observe(&mut self) -> Result<Snapshot, MachineError> {
            Ok(Snapshot { vms: vec![a_vm()], ..Snapshot::default() })
        }

        fn pass(&mut self, _: Duration) -> Result<bool, MachineError> {
            Ok(true)
        }
    }

    impl Act for Refuses {
        fn current(&mut self, _: &VmId, lever: Lever) -> Result<Value, MachineError> {
            Ok(if lever == Lever::Told { Value::Told(None) } else { Value::Weight(Weight(100.0)) })
        }

        fn set(&mut self, _: &VmId, _: Lever, _: &Value) -> Result<(), MachineError> {
            Err(self.0.clone())
        }
    }

    #[test]
    fn who_is_to_end_after_a_time_goes_on_until_then_and_no_longer() {
        let args = ManageArgs { time: Some(Duration::from_millis(500)), ..arguments() };
        let mut daemon = looking(&args);
        let (_sender, signals) = Signals::none();
        daemon.turn(&signals).unwrap();
        assert_eq!((daemon.machine.observe().unwrap().at.0, daemon.steps), (500_000_000, 2));
    }

    #[test]
    fn a_machine_that_cannot_be_is_named_with_its_place_in_the_configuration() {
        let args = ManageArgs { config: Some("corefit.toml".into()), ..arguments() };
        let mut daemon = looking(&args);
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "apply = false\nmachine = \"libvirt:foo:///\"\n").unwrap();
        daemon.config = Config::read(Some(file.path())).unwrap();
        let why = |daemon: &Daemon<'_>, error: fn(String) -> MachineError| daemon.unseen(error("no".into()));
        let placed = "corefit.toml, line 2, key machine: no";
        assert_eq!(why(&daemon, MachineError::Unsupported), placed);
        assert_eq!(why(&daemon, MachineError::Malformed), placed);
        assert_eq!(why(&daemon, MachineError::Gone), "no", "another time it may answer");
        daemon.looked = true;
        assert_eq!(why(&daemon, MachineError::Malformed), "no", "it is there");
    }

    #[test]
    fn an_address_that_somebody_has_is_asked_for_again_when_it_is_time() {
        let args = arguments();
        let mut daemon = looking(&args);
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap();
        daemon.serve_metrics(address, true);
        drop(taken);
        daemon.step();
        assert!(daemon.unserved.is_some(), "not at each look");
        daemon.unserved = Some((address, Instant::now()));
        daemon.step();
        assert!(daemon.unserved.is_none() && TcpStream::connect(address).is_ok());
    }
}

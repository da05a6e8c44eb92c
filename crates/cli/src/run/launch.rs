//! Everything that is decided before the program starts.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;

use corefit_core::place::{Core, spread};
use corefit_core::{CpuSet, Cpus};
use corefit_linux::launch::{Counts, Environment, Launch, Program, Runtime, Setting, passive, plan as knobs};
use corefit_linux::page::TeamPage;
use corefit_linux::{Root, sample, topology};

use super::Args;
use super::grants::{Grants, Resize};
use super::locks::Locks;
use super::notes::Notes;
use super::outer::{self, Outer};
use super::report::OpenMp;
use super::size::{self, Look, Pending, Room, Threads};
use crate::{preload, printable};

/// What to launch, and at which sizes.
pub(crate) struct Plan {
    pub(crate) launch: Launch,
    /// What was there before the launch.
    pub(crate) room: Room,
    /// The files that hold quotas.
    pub(crate) quotas: Vec<PathBuf>,
    /// Knows soon after the launch what there really was.
    pub(crate) pending: Option<Pending>,
    /// Threads that OpenMP begins with.
    pub(crate) team: u32,
    /// Threads that it may grow to.
    pub(crate) most: u32,
    /// The page, if the preload library can enter the program.
    pub(crate) page: Option<Arc<TeamPage>>,
    /// `--lock`, where the library can enter the program.
    pub(crate) locks: Option<Locks>,
    /// `--place`: the cores, and all CPUs allowed.
    pub(crate) cores: Option<(Vec<Core>, CpuSet)>,
    /// Variables set and kept, as `NAME=value`.
    pub(crate) set: Vec<String>,
    pub(crate) kept: Vec<String>,
    /// The number of OpenMP threads that the user set.
    users: Users,
    outer: Outer,
    threads: Threads,
    /// Whether the program's teams will probably be resized, and up to how many threads.
    resizable: Option<u32>,
    /// Whether its threads hardly ever wait for each other, as `corefit certify` saw it.
    pub(crate) independent: bool,
    /// Whether OpenMP's waiting is to sleep.
    sleeps: bool,
    /// The user's arguments.
    arguments: Vec<OsString>,
    /// Why the preload library cannot enter the program, if so: to be told once it runs.
    pub(crate) not_entered: Option<String>,
}

impl Plan {
    /// Looks at the machine and plans the first launch.
    pub(crate) fn make(args: &Args, program: &Program, grants: &Grants, notes: &mut Notes) -> Plan {
        let preloadable = program.preloadable().map_err(|why| format!("{}: {why}", program.path.display()));
        let teams = preloadable.clone().and_then(|()| preload::find(&preload::OPENMP));
        let (resizable, independent) = expected(args, program, grants);
        // Whom no library enters keeps the threads that it is launched with.
        let resizable = resizable.filter(|_| teams.is_ok());
        // Only a size that cannot be corrected later is worth waiting for.
        let Look { room, quotas, pending, unread } =
            size::look(args.threads == Threads::Auto && resizable.is_none());
        if let Some(unread) = unread {
            notes.keep(unread);
        }
        let mut libraries = vec![];
        let outer = Outer::now();
        let users = Users::of(outer.users("OMP_NUM_THREADS"));
        if let Users::Invalid(text) = &users {
            notes.keep(format!(
                "OMP_NUM_THREADS={} is no number of threads: OpenMP goes by the number of CPUs",
                printable::text(text)
            ));
        }
        // With --lock, the reason that is the same for both libraries is told there.
        let not_entered = teams.as_ref().err().filter(|_| !args.lock || preloadable.is_ok()).cloned();
        let locks = Locks::make(args, preloadable, &mut libraries, notes);
        let mut plan = Plan {
            launch: Launch {
                program: program.clone(),
                args: vec![],
                env: vec![],
                cpus: None,
                hold_stdio: args.restartable,
            },
            room,
            quotas,
            // Neighbours do not matter to threads that never wait for each other.
            pending: pending.filter(|_| !independent),
            team: 1,
            most: 1,
            page: None,
            locks,
            cores: None,
            set: vec![],
            kept: vec![],
            users,
            outer,
            threads: args.threads,
            resizable,
            independent,
            // Who is done before the others would only take from them what it spins away, and who waits for sequential work,
            // its vCPU's time.
            sleeps: independent || grants.rotates(),
            arguments: args.command[1..].to_vec(),
            not_entered,
        };
        plan.sizes();
        grants.set_team(plan.team);
        if args.place {
            plan.place(notes);
        }
        if let Ok(library) = teams {
            let (grant, ask) = grants.at_first();
            match TeamPage::create(grants.orders(grant, Some(plan.team), false), ask, plan.nprocs(), 1) {
                Ok(page) => {
                    let (name, value) = page.variable();
                    plan.launch.env.push((name.into(), Some(value.into())));
                    plan.page = Some(Arc::new(page));
                    libraries.insert(0, library);
                }
                Err(why) => {
                    plan.resizable = None;
                    plan.sizes();
                    plan.not_entered = Some(format!(
                        "cannot make the shared page ({why}): teams cannot be resized while the program runs"
                    ));
                }
            }
        }
        if let Some(locks) = &plan.locks {
            let (name, value) = locks.variable();
            plan.launch.env.push((name.into(), Some(value.into())));
        }
        if !libraries.is_empty() {
            let preload = preload::variable(&libraries, std::env::var_os("LD_PRELOAD"));
            plan.launch.env.push(("LD_PRELOAD".into(), Some(preload)));
        }
        plan.environment();
        plan
    }

    /// Plans another launch of the same program at `team` threads.
    pub(crate) fn again(&mut self, team: u32, grants: &Grants) {
        self.team = team;
        self.launch.cpus = self.placed();
        grants.set_team(team);
        let keep = |(name, _): &(OsString, Option<OsString>)| {
            name == "LD_PRELOAD" || name.as_bytes().starts_with(b"COREFIT_")
        };
        self.launch.env.retain(keep);
        self.environment();
        if let Some(page) = &self.page {
            let (grant, ask) = grants.at_first();
            page.set_policy(grants.orders(grant, Some(team), false), ask);
            page.set_nprocs(self.nprocs());
        }
    }

    /// Threads that OpenMP began with: as it was told, but for `processes` that were resized from their first region on.
    pub(crate) fn launched(&self, processes: &[OpenMp]) -> u32 {
        let told = match (&self.users, self.threads) {
            (Users::Threads(n), _) => *n,
            (Users::Invalid(_), _) => {
                self.nprocs().filter(|_| self.page.is_some()).unwrap_or(self.room.allowed)
            }
            (Users::Unset, Threads::Max) => self.room.allowed,
            (Users::Unset, _) => self.openmp(),
        };
        if processes.iter().any(OpenMp::may_be_resized) { told.min(self.team) } else { told }
    }

    /// Threads that no team gets beyond, whatever the program asks for.
    pub(crate) fn ever(&self) -> u32 {
        match self.threads {
            Threads::AtMost(n) => n,
            Threads::Auto | Threads::Max => self.room.allowed.max(self.most),
        }
    }

    /// What OpenMP is told: teams that are resized may grow.
    fn openmp(&self) -> u32 {
        if self.resizable.is_some() { self.most } else { self.team }
    }

    fn sizes(&mut self) {
        (self.team, self.most) = self.sizes_in(&self.room);
    }

    /// Threads to begin with, and to grow to.
    pub(crate) fn sizes_in(&self, room: &Room) -> (u32, u32) {
        // Threads that never wait for each other lose nothing by sharing CPUs.
        let fits = if self.independent { room.most() } else { room.team() };
        let (team, most) = match self.threads {
            Threads::Auto => (fits, room.most_to_come()),
            Threads::AtMost(n) if self.resizable.is_some() => (fits.min(n), n),
            Threads::AtMost(n) => (n, n),
            Threads::Max => (room.allowed, room.allowed),
        };
        let most = self.resizable.map_or(most, |tried| most.min(tried.max(1)));
        (if self.resizable.is_some() { team.min(most) } else { team }, most)
    }

    /// What the program hears when it asks for the number of CPUs. A program whose teams are
    /// resized hears of all that it may ever use, and OpenMP keeps spinning within that.
    fn nprocs(&self) -> Option<u32> {
        match self.threads {
            Threads::Max => None,
            _ if self.resizable.is_some() => Some(self.most),
            Threads::AtMost(n) => Some(n),
            Threads::Auto => Some(self.room.answer(&self.launch.program.runtimes).max(self.team)),
        }
    }

    /// The variables and arguments that tell runtimes their sizes.
    fn environment(&mut self) {
        self.set.clear();
        self.kept.clear();
        let outer = self.outer.names().map(String::as_str).chain([outer::VARIABLE]);
        self.launch.env.extend(outer.map(|name| (name.into(), None)));
        if self.threads == Threads::Max {
            self.launch.args = self.arguments.clone();
            return;
        }
        let (teams, pools) = match self.threads {
            Threads::AtMost(n) => (n, n),
            _ => (self.room.workers().max(self.team), self.room.pool().max(self.team)),
        };
        let size = |n: u32| usize::try_from(n).unwrap_or(1);
        let plan = knobs(
            Counts { openmp: size(self.openmp()), teams: size(teams), pools: size(pools) },
            &Environment {
                get: &|name| self.outer.users(name),
                program: &self.launch.program,
                args: &self.arguments,
                raise: matches!(self.threads, Threads::AtMost(_)),
            },
        );
        self.launch.args = plan.arguments().map(OsString::from).collect();
        self.launch.args.extend(self.arguments.iter().cloned());
        for (name, value) in plan.variables() {
            self.launch.env.push((name.into(), Some(value.into())));
        }
        if self.sleeps {
            for (name, value) in passive(&|name| self.outer.users(name)).set {
                self.launch.env.push((name.into(), Some(value.into())));
                self.set.push(format!("{name}={value}"));
            }
        }
        // A number of threads that the user gave is his for who is started inside, too.
        let at_most = matches!(self.threads, Threads::AtMost(_)).then_some(self.set.len());
        for setting in &plan.settings {
            match setting {
                Setting::Set { name, value, .. } => self.set.push(format!("{name}={}", value.display())),
                Setting::Argument { value, .. } => self.set.push(value.display().to_string()),
                Setting::Kept { name, value, .. } => self.kept.push(format!("{name}={}", value.display())),
                Setting::Yielded { .. } => {}
            }
        }
        let made = &self.set[..at_most.unwrap_or(self.set.len())];
        self.launch.env.push((outer::VARIABLE.into(), Some(self.outer.text(made).into())));
    }

    fn place(&mut self, notes: &mut Notes) {
        let cores = topology::cores(&Root::live());
        let Some(allowed) = sample::affinity(std::process::id()) else {
            return;
        };
        if cores.is_empty() {
            notes.keep("--place: this machine does not show which CPUs are siblings; threads are left where they are".into());
            return;
        }
        if cores.iter().all(|core| core.len() == 1) {
            notes.keep("--place: no CPU here shares a core with another: nothing to do".into());
            return;
        }
        self.cores = Some((cores, allowed));
        self.launch.cpus = self.placed();
    }

    /// The CPUs that a team of the present size is launched on; `None` without `--place`.
    fn placed(&self) -> Option<CpuSet> {
        let (cores, allowed) = self.cores.as_ref()?;
        Some(spread(cores, allowed, self.team, |_| Cpus(0.0)))
    }
}

/// Whether the program will probably be resizable, and up to how many threads: known for
/// certain only when it begins its first region. And whether its threads are independent.
fn expected(args: &Args, program: &Program, grants: &Grants) -> (Option<u32>, bool) {
    match args.resize {
        Resize::Never => (None, false),
        Resize::Always => (Some(u32::MAX), false),
        Resize::Safe => match grants.expects(&program.path, &args.command) {
            Some(verdict) => (verdict.resizable.then_some(verdict.most), verdict.independent),
            None => {
                let value = std::env::var("OMP_DYNAMIC").unwrap_or_default();
                (dynamic_adjustment(&value, &program.runtimes).then_some(u32::MAX), false)
            }
        },
    }
}

/// What the user's `OMP_NUM_THREADS` says.
#[derive(Debug, PartialEq, Eq)]
enum Users {
    /// Nothing.
    Unset,
    /// What the outermost regions get: the first number.
    Threads(u32),
    /// Something that OpenMP does not take.
    Invalid(String),
}

impl Users {
    fn of(value: Option<OsString>) -> Users {
        let Some(value) = value.filter(|value| !value.is_empty()) else { return Users::Unset };
        let text = value.to_string_lossy();
        let numbers: Option<Vec<u64>> = text.split(',').map(|n| n.trim().parse().ok()).collect();
        match numbers.as_deref() {
            Some([first, ..]) if numbers.iter().flatten().all(|n| *n > 0) => {
                Users::Threads(u32::try_from(*first).unwrap_or(u32::MAX))
            }
            _ => Users::Invalid(text.into_owned()),
        }
    }
}

/// Words that libomp takes for true, and how many letters of one it needs; what follows a whole one does not count. `enabled` has to be
/// whole, and alone (`__kmp_str_match_true` in openmp/runtime/src/kmp_str.cpp).
const LIBOMP_TRUE: [(&str, usize); 6] =
    [("true", 1), ("on", 2), ("1", 1), (".true.", 2), (".t.", 2), ("yes", 1)];

/// Whether this value of `OMP_DYNAMIC` is on for all of these that are OpenMP's; where none is known, for any.
fn dynamic_adjustment(value: &str, runtimes: &BTreeSet<Runtime>) -> bool {
    let value = value.to_ascii_lowercase();
    let (gnu, llvm) = (runtimes.contains(&Runtime::GnuOpenMp), runtimes.contains(&Runtime::LlvmOpenMp));
    let libomp = || {
        value == "enabled"
            || LIBOMP_TRUE.iter().any(|(word, least)| {
                (word.starts_with(&value) || value.starts_with(word)) && value.len().min(word.len()) >= *least
            })
    };
    match (gnu, llvm) {
        (false, false) => value == "true",
        (false, true) => libomp(),
        (true, llvm) => value.trim_ascii() == "true" && (!llvm || libomp()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_users_number_of_threads_is_read_as_openmp_reads_it() {
        let of = |text: &str| Users::of(Some(text.into()));
        assert_eq!((Users::of(None), of("")), (Users::Unset, Users::Unset));
        assert_eq!((of(" 6 "), of("4,2")), (Users::Threads(6), Users::Threads(4)));
        for bad in ["abc", "0", "-1", "2,x", "2,", " "] {
            assert_eq!(of(bad), Users::Invalid(bad.into()));
        }
    }

    #[test]
    fn dynamic_adjustment_is_read_as_the_programs_runtime_reads_it() {
        let (gnu, llvm) = (Runtime::GnuOpenMp, Runtime::LlvmOpenMp);
        for (value, on) in [
            ("true", [true; 4]),
            ("TRUE", [true; 4]),
            (" true ", [true, false, false, false]),
            ("1", [false, true, false, false]),
            ("yes", [false, true, false, false]),
            ("ON", [false, true, false, false]),
            (".true.", [false, true, false, false]),
            ("t", [false, true, false, false]),
            ("o", [false; 4]),
            ("false", [false; 4]),
            ("0", [false; 4]),
            ("", [false; 4]),
        ] {
            let of = [vec![gnu], vec![llvm], vec![gnu, llvm], vec![Runtime::Python]];
            let read = of.map(|runtimes| dynamic_adjustment(value, &runtimes.into_iter().collect()));
            assert_eq!(read, on, "{value:?}");
        }
    }
}

//! The environment that makes each runtime start with N threads.
//!
//! Three rules hold for every variable of [`KNOBS`]:
//! - **What the user set stays** (an empty value is none, for runtimes take it as not
//!   set), and so does what he set in a weaker variable that ours would override: with his `OMP_NUM_THREADS` in place,
//!   `OPENBLAS_NUM_THREADS` is not set, because OpenBLAS would prefer it. The column
//!   `yields_to` lists these.
//! - **Nothing is raised unasked.** Julia starts 1 thread, Node.js 4 pool threads and R's
//!   parallel package 2 workers whatever the machine has. More of them can change results
//!   (code indexed by `threadid()`, random streams per worker), so those variables are set
//!   only if [`Environment::raise`] allows it and N is above that default; and never
//!   below it: Node's pool also runs blocking file and DNS calls.
//! - **No bound below what a program may ask for itself**, where a runtime would fail
//!   instead of clipping: `NUMEXPR_MAX_THREADS` is left alone. Numba is the exception, as
//!   its only variable is such a bound: with `NUMBA_NUM_THREADS=2`,
//!   `numba.set_num_threads(4)` raises a ValueError (Numba 0.68.1), as on a machine with
//!   two CPUs.

use std::ffi::{OsStr, OsString};

use super::java::java;
use super::program::Program;

/// How many threads to ask for; zero counts as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    /// For OpenMP, whose teams may be resized later.
    pub openmp: usize,
    /// For other runtimes whose threads wait for each other, as in linear algebra.
    pub teams: usize,
    /// For pools whose threads take work when they find some.
    pub pools: usize,
}

/// What the plan depends on besides the counts.
#[derive(Clone, Copy)]
pub struct Environment<'a> {
    /// The value of a variable in the environment that the program would inherit.
    pub get: &'a dyn Fn(&str) -> Option<OsString>,
    /// The program.
    pub program: &'a Program,
    /// Its arguments, after argv\[0\].
    pub args: &'a [OsString],
    /// Whether runtimes that start few threads whatever the machine has may be asked for
    /// more. Right when the user named a number of threads, wrong when he did not.
    pub raise: bool,
}

/// One decision about one knob.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Setting {
    /// The variable is set for the program.
    Set {
        /// Its name.
        name: &'static str,
        /// Its value.
        value: OsString,
        /// Who reads it.
        runtime: &'static str,
    },
    /// The argument is inserted before the user's own.
    Argument {
        /// The argument.
        value: OsString,
        /// Who reads it.
        runtime: &'static str,
    },
    /// The user decides: the variable is in his environment already.
    Kept {
        /// Its name.
        name: &'static str,
        /// The user's value.
        value: OsString,
        /// Who reads it.
        runtime: &'static str,
    },
    /// Not set, because it would override what the user set in another variable.
    Yielded {
        /// The variable that was not set.
        name: &'static str,
        /// The user's variable.
        to: &'static str,
        /// Who reads both.
        runtime: &'static str,
    },
}

/// The whole plan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Knobs {
    /// Every decision, in the order of the table, Java last.
    pub settings: Vec<Setting>,
}

impl Knobs {
    /// The variables to set for the program.
    pub fn variables(&self) -> impl Iterator<Item = (&'static str, &OsStr)> {
        self.settings.iter().filter_map(|setting| match setting {
            Setting::Set { name, value, .. } => Some((*name, value.as_os_str())),
            _ => None,
        })
    }

    /// The arguments to insert between argv\[0\] and the user's own.
    pub fn arguments(&self) -> impl Iterator<Item = &OsStr> {
        self.settings.iter().filter_map(|setting| match setting {
            Setting::Argument { value, .. } => Some(value.as_os_str()),
            _ => None,
        })
    }
}

/// What each runtime is told, and what stays because the user set it.
#[must_use]
pub fn plan(counts: Counts, environment: &Environment<'_>) -> Knobs {
    let get = |name: &str| (environment.get)(name).filter(|value| !value.is_empty());
    let environment = &Environment { get: &get, ..*environment };
    let mut settings: Vec<Setting> =
        KNOBS.iter().filter_map(|knob| knob.decide(counts, environment)).collect();
    settings.extend(java(counts.pools.max(1), environment));
    Knobs { settings }
}

/// A variable that takes a number of threads.
struct Knob {
    name: &'static str,
    runtime: &'static str,
    /// Which of the counts it takes.
    count: fn(Counts) -> usize,
    /// Variables for the same purpose that this one would override, strongest first.
    yields_to: &'static [&'static str],
    /// What the runtime starts without the variable, if that is a fixed number.
    own_default: Option<usize>,
    /// The largest value that the runtime accepts.
    most: fn(&Environment<'_>) -> usize,
}

/// The plain case: a runtime with a pool of one thread per CPU.
const POOL: Knob = Knob {
    name: "",
    runtime: "",
    count: |counts| counts.pools,
    yields_to: &[],
    own_default: None,
    most: |_| usize::MAX,
};

const OPENMP: &str = "OMP_NUM_THREADS";

/// A runtime that splits each piece of work among all of its threads, and waits for the last.
const TEAM: Knob = Knob { count: |counts| counts.teams, ..POOL };

/// All variables. Sources: the manual of each runtime.
const KNOBS: &[Knob] = &[
    Knob { name: OPENMP, runtime: "OpenMP", count: |counts| counts.openmp, ..POOL },
    Knob { name: "GOMAXPROCS", runtime: "Go", ..POOL },
    Knob {
        name: "OPENBLAS_NUM_THREADS",
        runtime: "OpenBLAS",
        yields_to: &["GOTO_NUM_THREADS", OPENMP, "OPENBLAS_DEFAULT_NUM_THREADS"],
        ..TEAM
    },
    Knob { name: "MKL_NUM_THREADS", runtime: "MKL", yields_to: &["MKL_DOMAIN_NUM_THREADS", OPENMP], ..TEAM },
    // The ways per loop are stronger than BLIS_NUM_THREADS; listed so that a report says so.
    Knob {
        name: "BLIS_NUM_THREADS",
        runtime: "BLIS",
        yields_to: &["BLIS_JC_NT", "BLIS_PC_NT", "BLIS_IC_NT", "BLIS_JR_NT", "BLIS_IR_NT", OPENMP],
        ..TEAM
    },
    Knob { name: "RAYON_NUM_THREADS", runtime: "Rayon", yields_to: &["RAYON_RS_NUM_CPUS"], ..POOL },
    Knob { name: "NUMBA_NUM_THREADS", runtime: "Numba", ..TEAM },
    // NumExpr prints an error at import if asked for more than its maximum, also by
    // OMP_NUM_THREADS (2.14.2), so this stronger one keeps ours from doing that.
    Knob { name: "NUMEXPR_NUM_THREADS", runtime: "NumExpr", yields_to: &[OPENMP], most: numexpr_max, ..TEAM },
    // Sys.CPU_THREADS: what `julia -t auto` and addprocs() take.
    // `Threads.@threads` deals out equal parts (Julia's manual, Multi-Threading).
    Knob { name: "JULIA_CPU_THREADS", runtime: "Julia", ..TEAM },
    Knob { name: "JULIA_NUM_THREADS", runtime: "Julia", own_default: Some(1), ..TEAM },
    Knob { name: "PYTHON_CPU_COUNT", runtime: "Python 3.13", ..POOL },
    Knob {
        name: "DOTNET_PROCESSOR_COUNT",
        runtime: ".NET",
        yields_to: &["COMPlus_PROCESSOR_COUNT"],
        most: |_| 0xffff,
        ..POOL
    },
    Knob { name: "UV_THREADPOOL_SIZE", runtime: "Node.js", own_default: Some(4), most: |_| 1024, ..POOL },
    Knob { name: "MC_CORES", runtime: "R", own_default: Some(2), ..POOL },
];

/// Whether a variable would change how many threads some runtime starts: all that are set here, and those that they yield to.
#[must_use]
pub fn is_knob(name: &str) -> bool {
    KNOBS.iter().any(|knob| knob.name == name || knob.yields_to.contains(&name))
}

/// NumExpr's maximum: `NUMEXPR_MAX_THREADS`, 64 by default.
fn numexpr_max(environment: &Environment<'_>) -> usize {
    let users = (environment.get)("NUMEXPR_MAX_THREADS");
    users.and_then(|text| text.to_str()?.trim().parse().ok()).unwrap_or(64)
}

impl Knob {
    fn decide(&self, counts: Counts, environment: &Environment<'_>) -> Option<Setting> {
        let Knob { name, runtime, .. } = *self;
        if let Some(value) = (environment.get)(name) {
            return Some(Setting::Kept { name, value, runtime });
        }
        let count = (self.count)(counts).max(1).min((self.most)(environment));
        if self.own_default.is_some_and(|own| !environment.raise || count <= own) {
            return None;
        }
        if let Some(to) = self.yields_to.iter().find(|to| (environment.get)(to).is_some()) {
            return Some(Setting::Yielded { name, to, runtime });
        }
        Some(Setting::Set { name, value: count.to_string().into(), runtime })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::collections::BTreeMap;

    use super::super::format::Kind;
    use super::super::runtime::Runtime;
    use super::*;

    pub(in super::super) fn program(runtimes: &[Runtime]) -> Program {
        Program {
            given: "program".into(),
            path: "/no/such/bin/program".into(),
            kind: Kind::Dynamic,
            runtimes: runtimes.iter().copied().collect(),
        }
    }

    pub(in super::super) fn decide(
        counts: Counts,
        env: &[(&str, &str)],
        program: &Program,
        args: &[&str],
        raise: bool,
    ) -> Knobs {
        let env: BTreeMap<&str, &str> = env.iter().copied().collect();
        let get = |name: &str| env.get(name).map(OsString::from);
        let args: Vec<OsString> = args.iter().map(OsString::from).collect();
        plan(counts, &Environment { get: &get, program, args: &args, raise })
    }

    fn simple(count: usize, env: &[(&str, &str)]) -> Knobs {
        decide(Counts { openmp: count, teams: count, pools: count }, env, &program(&[]), &[], false)
    }

    pub(in super::super) fn value<'a>(knobs: &'a Knobs, name: &str) -> Option<&'a str> {
        knobs.variables().find(|(n, _)| *n == name).map(|(_, value)| value.to_str().unwrap())
    }

    pub(in super::super) fn setting<'a>(knobs: &'a Knobs, wanted: &str) -> Option<&'a Setting> {
        knobs.settings.iter().find(|setting| match setting {
            Setting::Set { name, .. } | Setting::Kept { name, .. } | Setting::Yielded { name, .. } => {
                *name == wanted
            }
            Setting::Argument { .. } => false,
        })
    }

    #[test]
    fn every_runtime_that_follows_the_cpus_is_told_the_count() {
        let knobs = simple(3, &[]);
        let names: Vec<&str> = knobs.variables().map(|(name, _)| name).collect();
        assert_eq!(
            names,
            [
                "OMP_NUM_THREADS",
                "GOMAXPROCS",
                "OPENBLAS_NUM_THREADS",
                "MKL_NUM_THREADS",
                "BLIS_NUM_THREADS",
                "RAYON_NUM_THREADS",
                "NUMBA_NUM_THREADS",
                "NUMEXPR_NUM_THREADS",
                "JULIA_CPU_THREADS",
                "PYTHON_CPU_COUNT",
                "DOTNET_PROCESSOR_COUNT",
            ]
        );
        assert!(knobs.variables().all(|(_, value)| value == "3"));
    }

    #[test]
    fn openmp_teams_and_pools_have_counts_of_their_own() {
        let counts = Counts { openmp: 16, teams: 1, pools: 2 };
        let knobs = decide(counts, &[], &program(&[]), &[], false);
        assert_eq!(value(&knobs, "OMP_NUM_THREADS"), Some("16"));
        for waiting in ["OPENBLAS", "MKL", "BLIS", "NUMBA", "NUMEXPR"] {
            assert_eq!(value(&knobs, &format!("{waiting}_NUM_THREADS")), Some("1"), "{waiting}");
        }
        for pool in ["GOMAXPROCS", "RAYON_NUM_THREADS", "PYTHON_CPU_COUNT", "DOTNET_PROCESSOR_COUNT"] {
            assert_eq!(value(&knobs, pool), Some("2"), "{pool}");
        }
    }

    #[test]
    fn zero_threads_are_one() {
        assert_eq!(value(&simple(0, &[]), "OMP_NUM_THREADS"), Some("1"));
    }

    #[test]
    fn what_the_user_set_stays_and_an_empty_value_counts_as_not_set() {
        let knobs = simple(2, &[("GOMAXPROCS", "7")]);
        assert_eq!(value(&knobs, "GOMAXPROCS"), None);
        let kept = Setting::Kept { name: "GOMAXPROCS", value: "7".into(), runtime: "Go" };
        assert_eq!(setting(&knobs, "GOMAXPROCS"), Some(&kept));
        // Neither is its own variable kept then, nor does a stronger one yield to it.
        let knobs = simple(2, &[("GOMAXPROCS", ""), ("OMP_NUM_THREADS", "")]);
        for name in ["GOMAXPROCS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"] {
            assert_eq!(value(&knobs, name), Some("2"), "{name}");
        }
    }

    #[test]
    fn a_variable_that_would_override_the_users_weaker_one_is_not_set() {
        for (users, stronger) in [
            ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"),
            ("OMP_NUM_THREADS", "MKL_NUM_THREADS"),
            ("OMP_NUM_THREADS", "BLIS_NUM_THREADS"),
            ("OMP_NUM_THREADS", "NUMEXPR_NUM_THREADS"),
            ("GOTO_NUM_THREADS", "OPENBLAS_NUM_THREADS"),
            ("MKL_DOMAIN_NUM_THREADS", "MKL_NUM_THREADS"),
            ("BLIS_IC_NT", "BLIS_NUM_THREADS"),
            ("RAYON_RS_NUM_CPUS", "RAYON_NUM_THREADS"),
            ("COMPlus_PROCESSOR_COUNT", "DOTNET_PROCESSOR_COUNT"),
        ] {
            let knobs = simple(2, &[(users, "5")]);
            assert!(
                matches!(setting(&knobs, stronger), Some(Setting::Yielded { to, .. }) if *to == users),
                "{stronger} against the user's {users}"
            );
            assert_eq!(value(&knobs, stronger), None);
            // And without the user's it is set: the rule does something.
            assert_eq!(value(&simple(2, &[]), stronger), Some("2"));
        }
    }

    #[test]
    fn unrelated_runtimes_are_still_told_when_the_user_set_openmp() {
        let knobs = simple(2, &[("OMP_NUM_THREADS", "8")]);
        assert_eq!(value(&knobs, "GOMAXPROCS"), Some("2"));
        assert_eq!(value(&knobs, "RAYON_NUM_THREADS"), Some("2"));
    }

    #[test]
    fn fixed_defaults_are_raised_only_when_allowed_and_never_lowered() {
        let raised = |count| {
            let counts = Counts { openmp: count, teams: count, pools: count };
            let knobs = decide(counts, &[], &program(&[]), &[], true);
            ["JULIA_NUM_THREADS", "UV_THREADPOOL_SIZE", "MC_CORES"]
                .map(|name| value(&knobs, name).map(str::to_string))
        };
        let some = |text: &str| Some(text.to_string());
        assert_eq!(raised(1), [None, None, None]);
        assert_eq!(raised(2), [some("2"), None, None]);
        assert_eq!(raised(4), [some("4"), None, some("4")]);
        assert_eq!(raised(8), [some("8"), some("8"), some("8")]);
        assert_eq!(value(&simple(8, &[]), "JULIA_NUM_THREADS"), None);
    }

    #[test]
    fn limits_of_a_runtime_are_respected() {
        assert_eq!(value(&simple(128, &[]), "NUMEXPR_NUM_THREADS"), Some("64"));
        let users = [("NUMEXPR_MAX_THREADS", "4")];
        assert_eq!(value(&simple(8, &users), "NUMEXPR_NUM_THREADS"), Some("4"));
        assert_eq!(value(&simple(70_000, &[]), "DOTNET_PROCESSOR_COUNT"), Some("65535"));
    }
}

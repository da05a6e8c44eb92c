//! Scenario files: a host, its VMs and their programs, in TOML.
//!
//! ```toml
//! about = "two VMs on four pCPUs"
//! scheduler = "cfs"                # or eevdf, credit, credit2, strict (co-scheduling); relaxed = {} beside all but strict
//! hardware = { cores = 4 }
//!
//! [[vm]]
//! name = "lu"
//! count = 2                        # lu-0, lu-1
//! vcpus = [2, 4]                   # a list: the scenario is a sweep over its values
//! cap = ["none", 1.5]              # pCPUs; 0 is refused, as some mean none by it (Xen) and others nothing
//! program = "lu"
//! class = "lu"                     # one of [[class]], or of the library
//!
//! [[vm.change]]                    # at run time: vCPUs online, members of teams
//! at = "5s"
//! online = 1
//! ```
//!
//! `[policy]`, with the keys that it has in a configuration of `corefit manage`, puts the host under a controller.
//!
//! A list in the place of one value makes a sweep; several make their product. `--set key=value` replaces a
//! value: `vm.lu.vcpus=4`. Every mistake is told with line, key and what is allowed.

mod decide;
mod policy;
mod read;
mod table;

use std::collections::BTreeMap;

use toml::de::{DeTable, DeValue};

use crate::keys::line;
use crate::spec::Spec;

/// A scenario, read.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// What it is, for people.
    pub about: String,
    /// How often each point is run, with successive seeds.
    pub runs: u32,
    /// Whether guests have agents that answer.
    pub agent: bool,
    /// Whether its hardware counts what VMs do to caches.
    pub cache_counters: bool,
    /// What it costs to simulate; `None`: there is no program.
    pub events: Option<Events>,
    /// Who decides about the host while it runs; `None`: nobody.
    pub policy: Option<corefit_core::decide::Policy>,
    /// The host.
    pub spec: Spec,
}

/// What a run costs.
#[derive(Clone, Debug, PartialEq)]
pub struct Events {
    /// About how many events the programs are, if threads never wait; schedulers' own are not counted.
    pub number: f64,
    /// Of which program most of them are: `line 7, vm.lu.program: `.
    pub place: String,
}

/// What is wrong with a scenario.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}{what}")]
pub struct ScenarioError {
    /// `line 7, weight: ` or `--set vm.lu.weight: `.
    pub place: String,
    /// What, and what is allowed.
    pub what: String,
}

/// A value to put in the place of the file's: a path such as `vm.lu.weight`, and TOML, or plain text.
pub type Set = (String, String);

impl Scenario {
    /// Reads a scenario that is one point: without lists.
    ///
    /// # Errors
    /// The first mistake.
    pub fn parse(text: &str, sets: &[Set]) -> Result<Scenario, ScenarioError> {
        Scenario::at(text, sets, &[])
    }

    /// Reads one of the [`Scenario::points`] of a sweep. A mistake in a list is told with the list's place.
    ///
    /// # Errors
    /// The first mistake.
    pub fn at(text: &str, sets: &[Set], point: &[Set]) -> Result<Scenario, ScenarioError> {
        let mut root = root(text, sets)?;
        put(&mut root, point)?;
        read::scenario(text, &root, sets).map_err(|mut error| {
            if !point.is_empty() {
                let values: Vec<String> =
                    point.iter().map(|(key, value)| format!("{key} = {value}")).collect();
                error.what += &format!(" (at {})", values.join(", "));
            }
            error
        })
    }

    /// The lists of a sweep: where each stands (a path such as `vm.lu.vcpus`), and its values.
    ///
    /// # Errors
    /// If the text is no TOML, or a value cannot be set.
    pub fn axes(text: &str, sets: &[Set]) -> Result<Vec<(String, Vec<String>)>, ScenarioError> {
        let mut axes = Vec::new();
        let mut wrong = None;
        find_lists(&root(text, sets)?, "", &mut axes, &mut wrong);
        match wrong {
            None => Ok(axes),
            Some((path, at, what)) => {
                let set = sets.iter().any(|(key, _)| *key == path);
                let place = if set {
                    format!("--set {path}: ")
                } else {
                    format!("line {}, {path}: ", line(text, at))
                };
                Err(ScenarioError { place, what })
            }
        }
    }

    /// The points of a sweep: for each, the values of the lists. A scenario without lists is one point.
    ///
    /// # Errors
    /// If the text is no TOML, a value cannot be set, or there are more than 100,000 points.
    pub fn points(text: &str, sets: &[Set]) -> Result<Vec<Vec<Set>>, ScenarioError> {
        let mut points = vec![vec![]];
        for (path, values) in Scenario::axes(text, sets)? {
            if points.len() * values.len() > MAX_POINTS {
                let what = format!("more than {MAX_POINTS} points; shorten the lists");
                return Err(ScenarioError { place: String::new(), what });
            }
            let with = |point: &Vec<Set>| -> Vec<Vec<Set>> {
                let one = |value: &String| [point.clone(), vec![(path.clone(), value.clone())]].concat();
                values.iter().map(one).collect()
            };
            points = points.iter().flat_map(with).collect();
        }
        Ok(points)
    }
}

/// Of a sweep.
const MAX_POINTS: usize = 100_000;

fn root<'a>(text: &'a str, sets: &'a [Set]) -> Result<DeTable<'a>, ScenarioError> {
    let root = DeTable::parse(text).map_err(|e| {
        let line = e.span().map_or(1, |span| line(text, span.start));
        let key = e.span().and_then(|span| text.get(span)).filter(|_| e.message() == "duplicate key");
        let what = e.message().to_owned() + &key.map_or(String::new(), |key| format!(" {key}; give it once"));
        ScenarioError { place: format!("line {line}: "), what }
    })?;
    let mut root = root.into_inner();
    put(&mut root, sets)?;
    Ok(root)
}

fn put<'a>(root: &mut DeTable<'a>, sets: &'a [Set]) -> Result<(), ScenarioError> {
    for (path, value) in sets {
        table::set(root, path, value)
            .map_err(|what| ScenarioError { place: format!("--set {path}: "), what })?;
    }
    Ok(())
}

/// A list that is no sweep: where it stands, and what is wrong with it.
type Wrong = Option<(String, usize, String)>;

/// Lists of plain values, with their paths; and one that has no value at all, or one twice.
fn find_lists(table: &DeTable<'_>, prefix: &str, axes: &mut Vec<Set2>, wrong: &mut Wrong) {
    for (key, value) in table {
        let path =
            if prefix.is_empty() { key.get_ref().to_string() } else { format!("{prefix}.{}", key.get_ref()) };
        match value.get_ref() {
            DeValue::Table(inner) => find_lists(inner, &path, axes, wrong),
            DeValue::Array(items) if items.is_empty() => {
                let what = "the list is empty; give at least one value".into();
                *wrong = Some((path, value.span().start, what));
            }
            DeValue::Array(items) => {
                let plain: Vec<String> =
                    items.iter().filter_map(|item| table::plain(item.get_ref())).collect();
                if plain.len() == items.len() && !plain.is_empty() {
                    // The same point twice would be two of one name in tables, files and pictures.
                    let mut before = BTreeMap::new();
                    let twice = plain
                        .iter()
                        .find_map(|text| Some((before.insert(table::as_read(text), text)?, text)));
                    if let Some((one, twice)) = twice {
                        let as_one = if one == twice { String::new() } else { format!(" (as {one})") };
                        let what = format!("the list has {twice} twice{as_one}; give each value once");
                        *wrong = Some((path, value.span().start, what));
                        continue;
                    }
                    axes.push((path, plain));
                    continue;
                }
                for (item, label) in items.iter().zip(table::labels(items)) {
                    if let DeValue::Table(inner) = item.get_ref() {
                        find_lists(inner, &format!("{path}.{label}"), axes, wrong);
                    }
                }
            }
            _ => {}
        }
    }
}

type Set2 = (String, Vec<String>);

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: &str = "hardware = { cores = 2 }\n[[vm]]\nname = \"a\"\nvcpus = 2\nprogram = \"ep\"\n";

    fn error(text: &str) -> String {
        Scenario::parse(text, &[]).unwrap_err().to_string()
    }

    #[test]
    fn a_small_scenario_is_read_with_defaults() {
        let scenario = Scenario::parse(SMALL, &[]).unwrap();
        assert_eq!((scenario.spec.hardware.pcpus(), scenario.spec.vms[0].vcpus.len()), (2, 2));
        assert_eq!(scenario.spec.vms[0].apps[0].threads, 2);
        let set = [("vm.a.vcpus".to_owned(), "4".to_owned()), ("scheduler".into(), "credit".into())];
        let scenario = Scenario::parse(SMALL, &set).unwrap();
        assert_eq!(scenario.spec.vms[0].vcpus.len(), 4);
        assert!(matches!(scenario.spec.policy, crate::Policy::Credit(_)));
    }

    #[test]
    fn mistakes_are_told_with_line_key_and_what_is_allowed() {
        for (change, said) in [
            (("vcpus = 2", "vcpus = 0"), "line 4, vm.a.vcpus: 0 is out of range; give 1 to 1024"),
            (("vcpus = 2", "vcpu = 2"), "line 4, vm.a.vcpu: no such key; give affinity, again,"),
            (
                ("vcpus = 2", "vcpus = 2\nweight = -1"),
                "line 5, vm.a.weight: -1 is out of range; give 1 to 262144",
            ),
            (
                ("vcpus = 2", "vcpus = 2\naffinity = \"4-5\""),
                "line 5, vm.a.affinity: pCPUs 4-5 do not exist; the host has 0-1",
            ),
            (("vcpus = 2", "vcpus = 2\naffinity = \"\""), "line 5, vm.a.affinity: vCPU 0 may run nowhere"),
            (
                ("vcpus = 2", "vcpus = 2\ncap = 0"),
                "line 5, vm.a.cap: 0 is out of range; give pCPUs above 0, at most 4096, or leave it out or give \"none\" for no cap",
            ),
            (("vcpus = 2", "vcpus = 2\ncap = inf"), "line 5, vm.a.cap: inf is out of range; give pCPUs"),
            (
                ("vcpus = 2", "vcpus = 2\npin = \"0-9\""),
                "line 5, vm.a.pin: pCPU 2 does not exist; the host has 0-1",
            ),
            (("vcpus = 2", "vcpus = 2\nquota = 0.0"), "line 5, vm.a.quota: 0 is out of range; give pCPUs"),
            (("vcpus = 2", "vcpus = 2\ncap = \"all\""), "line 5, vm.a.cap: give a number"),
            (
                ("\"ep\"", "\"\"\"\nmark\nforever { compute 0.3ns }\"\"\""),
                "line 5, vm.a.program: line 2: \"0.3ns\" is shorter than the clock's 1ns; give 1ns or more, or 0ns",
            ),
            (
                ("vcpus = 2", "vcpus = 2\nthreads = 1000000000"),
                "line 5, vm.a.threads: 1000000000 is out of range; give 1 to 1000000",
            ),
            (
                ("vcpus = 2", "vcpus = 2\nlock = \"tickets\""),
                "line 5, vm.a.lock: \"tickets\" is not known; give test-and-set, ticket,",
            ),
            (("\"ep\"", "\"compute 1\""), "line 5, vm.a.program: line 1: \"1\" is no time"),
            (
                ("vcpus = 2", "vcpus = 2\nstart = 5"),
                "line 5, vm.a.start: give a time in quotes, such as \"10ms\"",
            ),
            (
                ("vcpus = 2", "vcpus = 2\nsoft = \"1-2\""),
                "line 5, vm.a.soft: pCPUs 2 do not exist; the host has 0-1",
            ),
            (("hardware", "until = \"0s\"\nhardware"), "line 1, until: 0 is no time to simulate; give more"),
            (
                ("hardware", "period = \"1ns\"\nhardware"),
                "line 1, period: that is too short to account in; give 100us",
            ),
            (
                ("hardware", "scheduler = \"eevdf\"\ncfs = { base_slice = \"50us\" }\nhardware"),
                "line 2, cfs.base_slice: that is too short to simulate; give 100us or more",
            ),
            (
                ("hardware", "cfs = { base_slice = \"1ms\" }\nhardware"),
                "line 1, cfs.base_slice: counts with scheduler = \"eevdf\" only; give that, too",
            ),
            (
                ("hardware", "cfs = { latency = \"2s\" }\nhardware"),
                "line 1, cfs.latency: the kernel takes no such time; give 1s or less",
            ),
            (
                ("vcpus = 2", "vcpus = 2\nslice = \"0s\""),
                "line 5, vm.a.slice: that is too short to simulate; give 1us",
            ),
            (
                ("hardware", "costs = { spin_turn = \"0s\" }\nhardware"),
                "line 1, costs.spin_turn: that is too short to simulate; give 1ns",
            ),
            (("cores = 2", "cores = \"two\""), "line 1, hardware.cores: give a whole number"),
            (
                ("hardware =", "scheduler = \"bfs\"\nhardware ="),
                "line 1, scheduler: \"bfs\" is not known; give cfs, eevdf, credit, credit2, strict",
            ),
            (
                ("hardware =", "scheduler = \"strict\"\nrelaxed = {}\nhardware ="),
                "line 2, relaxed: co-scheduling is strict or relaxed; give another scheduler than strict",
            ),
            (
                ("hardware =", "relaxed = { skew = 3 }\nhardware ="),
                "line 1, relaxed.skew: give a time in quotes",
            ),
            (
                ("hardware =", "credit2 = { queue = \"rack\" }\nhardware ="),
                "line 1, credit2.queue: \"rack\" is not known; give core, node, socket, all",
            ),
            (
                ("hardware =", "credit = { slice = \"5ms\" }\nhardware ="),
                "line 1, credit: counts with scheduler = \"credit\" only; give that, too",
            ),
            (
                ("vcpus = 2", "vcpus = 2\nmade_on = \"0\""),
                "line 5, vm.a.made_on: counts with scheduler = \"credit\" only",
            ),
            (
                ("program = \"ep\"", "wait = \"spin\""),
                "line 5, vm.a.wait: counts with a program only; give one, too, or leave it out",
            ),
            (("program = \"ep\"", "class = \"cg\""), "line 5, vm.a.class: counts with a program only"),
            (
                ("vcpus = 2", "vcpus = 2\nfair_slice = \"0s\""),
                "line 5, vm.a.fair_slice: give 100us to 100ms, or leave it out",
            ),
            (("vcpus = 2", "vcpus = 2\ncap_burst = \"1ms\""), "line 5, vm.a.cap_burst: counts with cap only"),
            (
                ("vcpus = 2", "vcpus = 2\nquota_period = \"50ms\""),
                "line 5, vm.a.quota_period: counts with quota only",
            ),
            (
                ("vcpus = 2", "vcpus = 2\noticket_near = 2"),
                "line 5, vm.a.oticket_near: counts with lock = \"oticket\" only",
            ),
            (
                ("vcpus = 2", "vcpus = 2\ncorefit_cpus = 2"),
                "line 5, vm.a.corefit_cpus: counts with lock = \"corefit\" only",
            ),
            (
                ("hardware = { cores = 2 }", "scheduler = \"strict\"\nhardware = { cores = 1 }"),
                "line 5, vm.a.vcpus: strict co-scheduling needs a pCPU for each vCPU",
            ),
            (("vcpus = 2", "vcpus = 2\nnodes = \"1\""), "line 5, vm.a.nodes: give some of the nodes 0"),
            (
                ("vcpus = 2", "vcpus = 2\nclass = \"zz\""),
                "line 5, vm.a.class: \"zz\" is not known; give plain, fib, nq, bt,",
            ),
            (
                ("\"ep\"\n", "\"ep\"\n[[vm.change]]\nat = \"1s\"\nonline = 3\n"),
                "line 8, vm.a.change.0.online: 3 is out of range; give 1 to 2",
            ),
            (
                ("\"ep\"\n", "\"ep\"\n[[vm.change]]\nat = \"1s\"\n"),
                "line 7, vm.a.change.0.at: nothing changes then; give online or team, 1 or more",
            ),
            (
                ("\"ep\"\n", "\"ep\"\n[[vm.change]]\nonline = 1\n"),
                "line 6, vm.a.change.0.at: when it changes is missing; give a time such as \"5s\"",
            ),
            (
                ("\"ep\"\n", "\"hog\"\n[[vm.change]]\nat = \"1s\"\nteam = 2\n"),
                "line 8, vm.a.change.0.team: no program of this VM has `parallel`",
            ),
            (("\"a\"", "\"a.b\""), "line 3, vm.a.b.name: \"a.b\" is no name that --set can tell"),
            (("\"a\"", "\"0\""), "line 3, vm.0.name: \"0\" is no name"),
            (("\"a\"", "\"\""), "line 3, vm..name: \"\" is no name"),
            (("\"a\"", "\" \""), "line 3, vm. .name: \" \" is no name"),
            (
                ("\"a\"", "\"a\\u001b[2J\""),
                "line 3, vm.a\\u{1b}[2J.name: \"a\\u{1b}[2J\" has control characters",
            ),
            (
                ("[[vm]]", "[[class]]\nname = \"x\"\n[[class]]\nname = \"x\"\nfpu = 0.5\n[[vm]]"),
                "line 5, class.x.name: another class is called so, too",
            ),
            (("[[vm]]", "[[class]]\nname = \"plain\"\n[[vm]]"), "line 3, class.plain.name: another class"),
            (
                ("cores = 2", "sockets = 4096, nodes = 4096, cores = 4096, threads = 64"),
                "line 1, hardware: 4398046511104 pCPUs; give at most 4096",
            ),
            (
                ("\"ep\"\n", "\"ep\"\n[[vm.change]]\nat = \"1s\"\nonline = 0\n"),
                "line 8, vm.a.change.0.online: 0 is out of range; give 1 to",
            ),
            (
                ("[[vm]]", "[policy]\nsize = \"best\"\n[[vm]]"),
                "line 3, policy.size: \"best\" cannot be; give one of \"none\", \"vcpu-bal\"",
            ),
            (
                ("[[vm]]", "[policy]\nsise = \"none\"\n[[vm]]"),
                "line 3, policy.sise: there is no such key; there are",
            ),
            (
                ("[[vm]]", "[policy]\ninterval_ms = 1\n[[vm]]"),
                "line 3, policy.interval_ms: give 50 to 10000: what guests say, and are told, counts for some seconds only",
            ),
            (
                ("[[vm]]", "[policy]\nreserved = \"0-1\"\n[[vm]]"),
                "line 3, policy.reserved: 0-1 is all of the host",
            ),
            (
                ("[[vm]]", "[[policy.vm]]\nname = \"a*\"\nmin = 3\nmax = 2\n[[vm]]"),
                "line 4, policy.vm.a*.min: is larger than max",
            ),
            (("[[vm]]", "[[policy.vm]]\nmin = 3\n[[vm]]"), "line 2, policy.vm.0.name: is missing"),
            (("[[vm]]", "[[vn]]"), "line 2, vn: no such key; give about, agent,"),
            (("name = \"a\"", "name = \"a"), "line 3: "),
            (("vcpus = 2", "vcpus = 2\nvcpus = 3"), "line 5: duplicate key vcpus; give it once"),
        ] {
            let told = error(&SMALL.replace(change.0, change.1));
            assert!(told.starts_with(said), "{told}\nshould be\n{said}");
        }
        let keys = error(&SMALL.replace("vcpus = 2", "vcpu = 2"));
        let keys: Vec<&str> = keys.rsplit_once("give ").unwrap().1.split(", ").collect();
        assert!(keys.windows(2).all(|two| two[0] < two[1]), "sorted, and each once: {keys:?}");
        let credit =
            format!("scheduler = \"credit\"\n{}", SMALL.replace("vcpus = 2", "vcpus = 2\nquota = 0.5"));
        assert!(
            error(&credit).starts_with("line 6, vm.a.quota: Xen's schedulers know no quota"),
            "{}",
            error(&credit)
        );
        let told = Scenario::points(&SMALL.replace("vcpus = 2", "vcpus = []"), &[]).unwrap_err().to_string();
        assert_eq!(told, "line 4, vm.a.vcpus: the list is empty; give at least one value");
        let twice = SMALL.replace("vcpus = 2", "start = [\"1s\", \"2s\", \"1000ms\"]");
        let told = Scenario::points(&twice, &[]).unwrap_err().to_string();
        assert_eq!(told, "line 4, vm.a.start: the list has 1000ms twice (as 1s); give each value once");
        let limits = SMALL.replace("vcpus = 2", "cap = [\"none\", 0.5]\ncap_period = \"10ms\"");
        assert!(
            Scenario::points(&limits, &[]).unwrap().iter().all(|p| Scenario::at(&limits, &[], p).is_ok())
        );
        let set = [("policy.size".to_owned(), "best".to_owned())];
        let told = Scenario::parse(SMALL, &set).unwrap_err().to_string();
        assert!(told.starts_with("--set policy.size: \"best\" cannot be; give one of"), "{told}");
        let set = [("vm.a.weight".to_owned(), "0".to_owned())];
        let told = Scenario::parse(SMALL, &set).unwrap_err().to_string();
        assert!(told.starts_with("--set vm.a.weight: 0 is out of range"), "{told}");
        let set = [("vm.b.weight".to_owned(), "1".to_owned())];
        let told = Scenario::parse(SMALL, &set).unwrap_err().to_string();
        assert!(told.starts_with("--set vm.b.weight: there is no \"b\" in vm; there is a"), "{told}");
        let told = Scenario::parse(SMALL, &[("vm.a".to_owned(), "1".to_owned())]).unwrap_err().to_string();
        assert_eq!(told, "--set vm.a: is one of [[vm]], with keys of its own; give vm.a.KEY");
    }

    #[test]
    fn schedulers_changes_and_classes_of_the_library_are_read() {
        let text = format!(
            "scheduler = [\"cfs\", \"eevdf\"]\nrelaxed = {{ skew = \"5ms\" }}\n{SMALL}class = \"cg\"\nnodes = \"0\"\n\
             rotate = true\npackages = 2\nmade_on = \"1\"\nlock = \"oticket\"\noticket_wake = 2\n[[vm.change]]\nat = \"1s\"\nonline = [1, 2]\nteam = 1\n"
        );
        let points = Scenario::points(&text, &[]).unwrap();
        assert_eq!(points.len(), 4);
        assert_eq!(
            points[1],
            [("scheduler".into(), "cfs".into()), ("vm.a.change.0.online".into(), "2".into())]
        );
        let spec = Scenario::parse(&text, &points[3]).unwrap().spec;
        assert!(matches!(spec.policy, crate::Policy::Cfs(cfs) if cfs.deadlines));
        assert_eq!(spec.relaxed.map(|relaxed| relaxed.skew_ns), Some(5_000_000));
        let vm = &spec.vms[0];
        assert_eq!(vm.changes, [crate::Change { at_ns: 1_000_000_000, online: Some(2), team: Some(1) }]);
        assert_eq!(vm.guest.lock, crate::LockKind::OTicket { near: 18, wake: 2 });
        assert!(vm.guest.rotate && vm.vcpus[0].soft.len() == 2);
        assert_eq!((vm.guest.packages, vm.made_on.to_string()), (2, "1".into()));
        assert_eq!(spec.classes[vm.apps[0].class].name, "cg");
    }

    #[test]
    fn who_begins_again_as_long_as_others_run_may_take_very_long_too() {
        let text = "hardware = { cores = 2 }\n[[vm]]\nname = \"a\"\nprogram = \"repeat 9 { compute 2ns }\"\nagain = true\n\
                    [[vm]]\nname = \"b\"\nprogram = \"compute 1s\"\n";
        let events = |text: &str| Scenario::parse(text, &[]).unwrap().events.unwrap();
        let many = events(text);
        assert!(many.number > 1e10 && many.place == "line 4, vm.a.program: ", "{many:?}");
        assert!(events(&text.replace("again = true", "")).number < 1e3);
    }

    #[test]
    fn lists_make_a_sweep_of_their_product() {
        let text = SMALL.replace("vcpus = 2", "vcpus = [1, 2, 4]").replace("cores = 2", "cores = [2, 4]");
        let points = Scenario::points(&text, &[]).unwrap();
        assert_eq!(points.len(), 6);
        assert_eq!(points[1], [("hardware.cores".into(), "2".into()), ("vm.a.vcpus".into(), "2".into())]);
        let scenario = Scenario::parse(&text, &points[5]).unwrap();
        assert_eq!((scenario.spec.hardware.cores, scenario.spec.vms[0].vcpus.len()), (4, 4));
        assert_eq!(Scenario::points(SMALL, &[]).unwrap(), [vec![]]);
    }

    #[test]
    fn a_table_of_settings_can_be_set_though_the_file_has_none() {
        let set = |key: &str, value: &str| Scenario::parse(SMALL, &[(key.to_owned(), value.to_owned())]);
        assert_eq!(set("costs.switch", "7us").unwrap().spec.costs.switch_ns, 7_000);
        assert!(set("relaxed.skew", "5ms").unwrap().spec.relaxed.is_some());
        let told = set("costs.swich", "7us").unwrap_err().to_string();
        assert!(told.starts_with("--set costs.swich: no such key; give halt,"), "{told}");
        let told = set("vn.a.vcpus", "1").unwrap_err().to_string();
        assert_eq!(told, "--set vn.a.vcpus: there is no \"vn\"; there is hardware, vm");
    }

    #[test]
    fn text_in_a_list_stays_text_even_if_it_looks_like_a_number() {
        let text = SMALL.replace("vcpus = 2", "vcpus = 2\naffinity = [\"0\", \"0-1\"]");
        let points = Scenario::points(&text, &[]).unwrap();
        let cpus = |point: &Vec<Set>| {
            Scenario::at(&text, &[], point).unwrap().spec.vms[0].vcpus[0].affinity.to_string()
        };
        assert_eq!(points.iter().map(cpus).collect::<Vec<_>>(), ["0", "0-1"]);
    }

    #[test]
    fn numbers_of_other_radices_mean_the_same_in_a_list_and_alone() {
        let text = SMALL.replace("vcpus = 2", "vcpus = 2\ncap = 0x1\nweight = [0x3, 0o10, 0b10, 1_0]");
        let points = Scenario::points(&text, &[]).unwrap();
        let weight = |point: &Vec<Set>| Scenario::at(&text, &[], point).unwrap().spec.vms[0].weight;
        assert_eq!(points.iter().map(weight).collect::<Vec<_>>(), [3, 8, 2, 10]);
        assert_eq!(points[1][0].1, "8");
        let set = [("vm.a.cap".to_owned(), "0x10".to_owned())];
        let cap = Scenario::at(&text, &set, &points[0]).unwrap().spec.vms[0].cap.unwrap();
        assert_eq!(cap.quota_ns, 16 * cap.period_ns);
    }

    #[test]
    fn a_list_in_the_policy_or_one_of_its_rules_is_a_sweep() {
        use corefit_core::decide::Sizer;
        let text = format!(
            "[policy]\nsize = [\"none\", \"vscale\"]\n[[policy.vm]]\nname = \"a*\"\nmin = [1, 2]\n{SMALL}"
        );
        let (text, no_policy) =
            (text.replace("hardware = { cores = 2 }\n", ""), Scenario::parse(SMALL, &[]).unwrap());
        assert!(no_policy.policy.is_none());
        let points = Scenario::points(&text, &[]).unwrap();
        let policies: Vec<_> =
            points.iter().map(|sets| Scenario::at(&text, &[], sets).unwrap().policy.unwrap()).collect();
        let seen: Vec<_> = policies.iter().map(|policy| (policy.size, policy.vm[0].min)).collect();
        let (none, vscale) = (Sizer::None, Sizer::Vscale);
        assert_eq!(seen, [(none, Some(1)), (none, Some(2)), (vscale, Some(1)), (vscale, Some(2))]);
        let sets = [("policy.size".to_owned(), "[\"none\",\"corefit\"]".to_owned())];
        assert_eq!(Scenario::points(SMALL, &sets).unwrap().len(), 2, "[policy] need not be in the file");
        let wrong = [("policy.size".to_owned(), "[none, best]".to_owned())];
        let points = Scenario::points(SMALL, &wrong).unwrap();
        let told = Scenario::at(SMALL, &wrong, &points[1]).unwrap_err().to_string();
        assert!(
            told.starts_with("--set policy.size: \"best\" cannot be")
                && told.ends_with("(at policy.size = best)"),
            "{told}"
        );
    }
}

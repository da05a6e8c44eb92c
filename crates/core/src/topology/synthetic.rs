//! A machine in one line of text, for tests, documents and questions.
//!
//! ```text
//! 2 sockets x 2 nodes x 4 modules x 2 cores
//! 2 sockets x 16 cores x 2 threads; siblings apart; offline 5,37; isolated 8-15
//! 6 cores x 2 threads + 8 cores at 614
//! ```
//!
//! Levels from the outside in: `sockets`, `nodes`, `l3`, `l2` (pCPUs that share such a cache), `modules`,
//! `cores`, `threads`; what is left out is 1. pCPUs are numbered from the inside out, or with `siblings
//! apart` first one thread of each core, then the others, as Linux does on most x86 machines. Parts joined
//! by `+` are of one machine, and of one socket if they name none. `at` gives the capacity of slower cores, of 1024.

use std::str::FromStr;

use super::{Cache, Part, Topology};
use crate::{CpuId, CpuSet};

/// Linux's limit (`NR_CPUS` on x86).
const MAX_PCPUS: u32 = 8192;
/// Of the fastest pCPU (`arch_scale_cpu_capacity` in Linux).
const FULL: u32 = 1024;
const LEVELS: [(Level, &[&str]); 7] = [
    (Level::Socket, &["socket", "package"]),
    (Level::Node, &["node", "numa node"]),
    (Level::L3, &["l3", "l3 cache"]),
    (Level::L2, &["l2", "l2 cache"]),
    (Level::Module, &["module"]),
    (Level::Core, &["core"]),
    (Level::Thread, &["thread"]),
];

/// Why a text is no machine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{part:?}: {why}")]
pub struct SyntheticError {
    /// The part that could not be read.
    pub part: String,
    /// What is wrong with it, and what would be right.
    pub why: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Level {
    Socket,
    Node,
    L3,
    L2,
    Module,
    Core,
    Thread,
}

/// A term between two `+`.
#[derive(Debug)]
struct Term {
    levels: Vec<(Level, u32)>,
    capacity: u32,
}

impl FromStr for Topology {
    type Err = SyntheticError;

    fn from_str(text: &str) -> Result<Topology, SyntheticError> {
        let mut clauses = text.split(';').map(str::trim);
        let terms = clauses.next().unwrap_or("").split('+').map(|term| read(term.trim()));
        let terms: Vec<Term> = terms.collect::<Result<_, _>>()?;
        let mut found = Topology::default();
        let (mut offline, mut isolated, mut apart) = (CpuSet::default(), CpuSet::default(), false);
        for clause in clauses.filter(|clause| !clause.is_empty()) {
            let list = |list: &str| list.parse().map_err(|e| wrong(clause, &format!("{e}")));
            match clause.split_once(' ').map(|(word, rest)| (word, rest.trim())) {
                Some(("offline", rest)) => offline = list(rest)?,
                Some(("isolated", rest)) => isolated = list(rest)?,
                Some(("siblings", "apart")) => apart = true,
                _ => return Err(wrong(clause, "after ; come offline LIST, isolated LIST or siblings apart")),
            }
        }
        let size = terms.iter().fold(0, |sum: u64, term| sum.saturating_add(term.size()));
        if size > u64::from(MAX_PCPUS) {
            return Err(wrong(text, &format!("{size} pCPUs; at most {MAX_PCPUS} can be described")));
        }
        let mut next = 0;
        for term in &terms {
            term.add(&mut found, &mut next);
        }
        for (level, what) in [(Level::Socket, "sockets"), (Level::Node, "nodes")] {
            if terms.iter().any(|t| t.has(level)) && !terms.iter().all(|t| t.has(level)) {
                return Err(wrong(
                    text,
                    &format!("give {what} in each of the parts joined by +, or in none"),
                ));
            }
        }
        if found.sockets.is_empty() {
            push(&mut found.sockets, found.pcpus.clone());
        }
        if found.nodes.is_empty() {
            found.nodes = found.sockets.clone();
        }
        if apart {
            found.renumber();
        }
        for (name, set) in [("offline", &offline), ("isolated", &isolated)] {
            if !set.is_within(&found.pcpus) {
                return Err(wrong(
                    &format!("{name} {set}"),
                    &format!("the machine has pCPUs {}", found.pcpus),
                ));
            }
        }
        if terms.iter().all(|term| term.capacity == FULL) {
            found.capacity.clear();
        }
        (found.offline, found.isolated) = (offline, isolated);
        found.settle().map_err(|error| wrong(text, &error.to_string()))
    }
}

fn wrong(part: &str, why: &str) -> SyntheticError {
    let mut short: String = part.chars().take(60).collect();
    if short.len() < part.len() {
        short.push_str("...");
    }
    SyntheticError { part: short, why: why.into() }
}

/// Reads `4 modules x 2 cores at 614`.
fn read(text: &str) -> Result<Term, SyntheticError> {
    let form = "a machine is written like 2 sockets x 4 cores x 2 threads";
    let (levels, capacity) = match text.split_once(" at ") {
        None => (text, FULL),
        Some((levels, capacity)) => {
            let capacity = capacity.trim();
            let number = capacity.parse().ok().filter(|n| (1..=FULL).contains(n));
            (levels, number.ok_or_else(|| wrong(capacity, "a capacity is from 1 to 1024"))?)
        }
    };
    let mut term = Term { levels: Vec::new(), capacity };
    for part in levels.replace(['×', ','], " x ").split(" x ").map(str::trim) {
        let (number, word) = part.split_once(' ').ok_or_else(|| wrong(part, form))?;
        let word = word.trim().to_lowercase();
        let level = LEVELS
            .iter()
            .find(|(_, words)| words.contains(&word.strip_suffix('s').unwrap_or(&word)))
            .map(|(level, _)| *level)
            .ok_or_else(|| wrong(part, "levels are sockets, nodes, l3, l2, modules, cores and threads"))?;
        let number: u32 = number
            .parse()
            .ok()
            .filter(|n| (1..=MAX_PCPUS).contains(n))
            .ok_or_else(|| wrong(part, "a number from 1 to 8192 comes first"))?;
        if term.levels.last().is_some_and(|(outer, _)| *outer >= level) {
            return Err(wrong(
                part,
                "levels go from the outside in: sockets, nodes, l3, l2, modules, cores, threads",
            ));
        }
        term.levels.push((level, number));
    }
    Ok(term)
}

impl Term {
    fn size(&self) -> u64 {
        self.levels.iter().fold(1, |size: u64, (_, n)| size.saturating_mul(u64::from(*n)))
    }

    fn has(&self, level: Level) -> bool {
        self.levels.iter().any(|(l, _)| *l == level)
    }

    /// Adds its pCPUs, numbered from `next`.
    fn add(&self, to: &mut Topology, next: &mut u32) {
        let begin = *next;
        self.fill(0, to, next);
        let all = range(begin, *next);
        to.pcpus = to.pcpus.union(&all);
        to.capacity.extend(all.iter().map(|cpu| (cpu.0, self.capacity)));
        if !self.has(Level::Core) {
            // What is innermost is a core: of the threads in it, or alone.
            let per = if self.has(Level::Thread) { self.levels.last().map_or(1, |(_, n)| *n) } else { 1 };
            to.cores.extend((begin..*next).step_by(per as usize).map(|from| range(from, from + per)));
        }
    }

    fn fill(&self, depth: usize, to: &mut Topology, next: &mut u32) {
        let Some(&(level, number)) = self.levels.get(depth) else {
            *next += 1;
            return;
        };
        for _ in 0..number {
            let begin = *next;
            self.fill(depth + 1, to, next);
            let set = range(begin, *next);
            match level {
                Level::Socket => push(&mut to.sockets, set),
                Level::Node => push(&mut to.nodes, set),
                Level::L3 => to.caches.push(Cache { level: 3, size_kib: None, pcpus: set }),
                Level::L2 => to.caches.push(Cache { level: 2, size_kib: None, pcpus: set }),
                Level::Module => to.modules.push(set),
                Level::Core => to.cores.push(set),
                Level::Thread => {}
            }
        }
    }
}

fn range(from: u32, to: u32) -> CpuSet {
    (from..to).map(CpuId).collect()
}

fn push(parts: &mut Vec<Part>, pcpus: CpuSet) {
    let id = u32::try_from(parts.len()).ok();
    parts.push(Part { id, pcpus, memory_kib: None });
}

impl Topology {
    /// Numbers anew: first one thread of each core, then the second of each, and so on.
    fn renumber(&mut self) {
        let most = self.cores.iter().map(CpuSet::len).max().unwrap_or(1);
        let order =
            (0..most).flat_map(|thread| self.cores.iter().filter_map(move |core| core.iter().nth(thread)));
        let order: Vec<CpuId> = order.collect();
        let mut new = vec![0; order.len()];
        for (number, old) in (0..).zip(&order) {
            new[old.0 as usize] = number;
        }
        let map = |set: &CpuSet| -> CpuSet { set.iter().map(|cpu| CpuId(new[cpu.0 as usize])).collect() };
        for set in self.cores.iter_mut().chain(&mut self.modules) {
            *set = map(set);
        }
        for part in self.sockets.iter_mut().chain(&mut self.nodes) {
            part.pcpus = map(&part.pcpus);
        }
        for cache in &mut self.caches {
            cache.pcpus = map(&cache.pcpus);
        }
        self.capacity = self.capacity.iter().map(|(cpu, c)| (new[*cpu as usize], *c)).collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(text: &str) -> Topology {
        text.parse().unwrap()
    }

    fn lists(sets: &[CpuSet]) -> Vec<String> {
        sets.iter().map(CpuSet::to_string).collect()
    }

    fn parts(parts: &[Part]) -> Vec<String> {
        parts.iter().map(|part| part.pcpus.to_string()).collect()
    }

    #[test]
    fn the_opteron_of_the_paper_has_four_nodes_of_four_modules() {
        let opteron = machine("2 sockets x 2 nodes x 4 modules x 2 cores");
        assert_eq!(parts(&opteron.sockets), ["0-15", "16-31"]);
        assert_eq!(parts(&opteron.nodes), ["0-7", "8-15", "16-23", "24-31"]);
        assert_eq!(opteron.units().len(), 16);
        assert_eq!(lists(&opteron.modules[..2]), ["0-1", "2-3"]);
        assert_eq!(opteron.cores.len(), 32);
    }

    #[test]
    fn siblings_are_beside_each_other_or_apart() {
        assert_eq!(lists(&machine("2 sockets x 2 cores x 2 threads").cores), ["0-1", "2-3", "4-5", "6-7"]);
        let apart = machine("2 sockets x 2 cores x 2 threads; siblings apart; offline 6");
        assert_eq!(lists(&apart.cores), ["0,4", "1,5", "2,6", "3,7"]);
        assert_eq!(parts(&apart.sockets), ["0-1,4-5", "2-3,6-7"]);
        assert_eq!(parts(&apart.nodes), ["0-1,4-5", "2-3,6-7"]);
        assert_eq!(apart.offline.to_string(), "6");
    }

    #[test]
    fn parts_of_different_cores_make_a_hybrid_machine() {
        let hybrid = machine("2 cores x 2 threads + 4 cores at 614");
        assert_eq!((parts(&hybrid.sockets), parts(&hybrid.nodes)), (vec!["0-7".into()], vec!["0-7".into()]));
        assert_eq!(lists(&hybrid.cores), ["0-1", "2-3", "4", "5", "6", "7"]);
        assert_eq!((hybrid.capacity[&0], hybrid.capacity[&7]), (1024, 614));
    }

    #[test]
    fn caches_and_sockets_alone() {
        let chiplets = machine("1 socket × 2 l3 × 4 cores");
        assert_eq!(chiplets.caches.len(), 2);
        let vm = machine("4 sockets");
        assert_eq!((vm.sockets.len(), vm.nodes.len(), vm.cores.len()), (4, 4, 4));
        assert!(machine("8 cores").capacity.is_empty());
    }

    #[test]
    fn damage_is_named_with_what_would_be_right() {
        for (text, why) in [
            ("", "written like"),
            ("2", "written like"),
            ("many cores", "a number from 1"),
            ("0 cores", "a number from 1"),
            ("2 chips", "levels are"),
            ("2 cores x 2 nodes", "from the outside in"),
            ("2 cores x 2 cores", "from the outside in"),
            ("8192 cores x 8192 threads", "at most 8192"),
            ("8192 sockets x 8192 nodes x 8192 l3 x 8192 l2 x 8192 cores x 8192 threads", "at most 8192"),
            ("2 cores; sideways", "after ; come"),
            ("2 cores; offline x", "not a CPU list"),
            ("2 cores; offline 2", "has pCPUs 0-1"),
            ("2 sockets x 1 core + 2 cores", "give sockets in each"),
            ("2 cores at 2000", "from 1 to 1024"),
        ] {
            let error = text.parse::<Topology>().unwrap_err().to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}

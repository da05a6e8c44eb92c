//! Every point, several times, on all CPUs. A result depends on scenario, point and seed only, so it is
//! the same whatever thread it ran on.

use std::io::{IsTerminal, Write};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use corefit_sim::{Sim, Truth};

use super::Point;

/// One run: what happened, and what did not end.
pub(super) struct Run {
    pub(super) truth: Truth,
    pub(super) unfinished: Vec<String>,
}

/// For each point its runs, in the order of their seeds.
pub(super) fn all(points: &[Point], runs: Option<u32>, jobs: usize) -> Vec<Vec<Run>> {
    let tasks: Vec<(usize, u32)> = points
        .iter()
        .enumerate()
        .flat_map(|(index, point)| (0..runs.unwrap_or(point.scenario.runs)).map(move |run| (index, run)))
        .collect();
    let results: Vec<OnceLock<Option<Run>>> = tasks.iter().map(|_| OnceLock::new()).collect();
    let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let progress = std::io::stderr().is_terminal() && tasks.len() > 1;
    std::thread::scope(|scope| {
        for _ in 0..jobs.min(tasks.len()) {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(&(point, run)) = tasks.get(index) else { break };
                    let _ = results[index].set(once(&points[point], run));
                    let finished = done.fetch_add(1, Ordering::Relaxed) + 1;
                    if progress {
                        let _ = write!(std::io::stderr(), "\r{finished} of {} runs", tasks.len());
                    }
                }
            });
        }
    });
    if progress {
        let _ = write!(std::io::stderr(), "\r\x1b[K");
    }
    let mut by_point: Vec<Vec<Run>> = points.iter().map(|_| Vec::new()).collect();
    for ((point, _), result) in tasks.iter().zip(results) {
        by_point[*point].extend(result.into_inner().flatten());
    }
    by_point
}

/// `None` cannot happen: the scenario was checked when it was read.
fn once(point: &Point, run: u32) -> Option<Run> {
    let mut spec = point.scenario.spec.clone();
    spec.seed = spec.seed.wrapping_add(u64::from(run));
    let mut sim = Sim::new(&spec).ok()?;
    if spec.vms.iter().flat_map(|vm| &vm.apps).all(|app| app.program.is_endless()) {
        sim.run_for(spec.until_ns);
    } else {
        sim.run();
    }
    Some(Run { truth: sim.truth(), unfinished: sim.unfinished() })
}

//! The same work for many things, on all cores.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};

use crate::bar::Progress;

/// As many threads as this process may use CPUs.
pub(crate) fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The results in the order of the tasks, whichever thread they ran on; a bar on a terminal meanwhile.
pub(crate) fn map<T: Sync, R: Send + Sync>(
    tasks: &[T],
    threads: usize,
    what: &str,
    work: impl Fn(&T) -> R + Sync,
) -> Vec<R> {
    let results: Vec<OnceLock<R>> = tasks.iter().map(|_| OnceLock::new()).collect();
    let next = AtomicUsize::new(0);
    let progress = Mutex::new(Progress::new(tasks.len(), false));
    std::thread::scope(|scope| {
        for _ in 0..threads.min(tasks.len()) {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(task) = tasks.get(index) else { break };
                    let _ = results[index].set(work(task));
                    if let Ok(mut progress) = progress.lock() {
                        progress.end("", "");
                        progress.begin(what);
                    }
                }
            });
        }
    });
    results.into_iter().filter_map(OnceLock::into_inner).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn results_are_in_the_order_of_the_tasks_on_any_number_of_threads() {
        let tasks: Vec<u64> = (0..100).collect();
        let squares: Vec<u64> = tasks.iter().map(|n| n * n).collect();
        for threads in [1, 3, 200] {
            assert_eq!(super::map(&tasks, threads, "squares", |n| n * n), squares);
        }
    }
}

//! A thread that does what may hang, and callers that do not wait for it longer than they want.
//!
//! ```text
//! spawn(open) ──▶ thread: open ──▶ job ──▶ job ── … ──▶ ends when the Worker is dropped
//! call(job, deadline) ── answer in time ──▶ Ok
//!                     ├─ none ──▶ Late: drop the Worker; its thread ends whenever it comes back
//!                     └─ none will come ──▶ Ended: the thread panicked, or never had its state
//! ```

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Instant;

/// So many threads of one owner may hang before it starts no further ones, where each goes on to hang in the same place.
const MOST: usize = 4;

type Job<S> = Box<dyn FnOnce(&mut S) + Send>;

/// A thread with a state of its own, which need not be one that other threads may touch.
pub(super) struct Worker<S> {
    jobs: Sender<Job<S>>,
}

/// Counts the threads of one owner.
#[derive(Clone, Debug)]
pub(super) struct Crew {
    present: Arc<AtomicUsize>,
    most: usize,
}

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoAnswer {
    /// Not in time.
    Late,
    /// There will be none: the thread has ended, for it panicked or its state could not be made.
    Ended,
}

struct Present(Crew);

impl Default for Crew {
    fn default() -> Crew {
        Crew::of(MOST)
    }
}

impl Crew {
    /// Has so many threads at most.
    pub(super) fn of(most: usize) -> Crew {
        Crew { present: Arc::default(), most }
    }

    /// How many of its threads have not ended.
    pub(super) fn len(&self) -> usize {
        self.present.load(Ordering::Relaxed)
    }

    /// Starts a thread. `open` makes its state there; an error of it is for `open` to tell, calls
    /// find the thread then [`Ended`](NoAnswer::Ended). `None` if too many of the crew hang, or no thread can be had.
    pub(super) fn start<S: 'static>(
        &self,
        name: &str,
        open: impl FnOnce() -> Option<S> + Send + 'static,
    ) -> Option<Worker<S>> {
        if self.len() >= self.most {
            return None;
        }
        let (jobs, inbox): (Sender<Job<S>>, Receiver<Job<S>>) = channel();
        let present = Present::new(self);
        let life = move || {
            let _present = present;
            let Some(mut state) = open() else { return };
            while let Ok(job) = inbox.recv() {
                job(&mut state);
            }
        };
        thread::Builder::new().name(name.into()).spawn(life).ok()?;
        Some(Worker { jobs })
    }
}

impl Present {
    fn new(crew: &Crew) -> Present {
        crew.present.fetch_add(1, Ordering::Relaxed);
        Present(crew.clone())
    }
}

impl Drop for Present {
    fn drop(&mut self) {
        self.0.present.fetch_sub(1, Ordering::Relaxed);
    }
}

impl<S: 'static> Worker<S> {
    /// Has the thread do something, and waits for the result until `deadline`.
    pub(super) fn call<R: Send + 'static>(
        &self,
        deadline: Instant,
        job: impl FnOnce(&mut S) -> R + Send + 'static,
    ) -> Result<R, NoAnswer> {
        wait(&self.ask(job)?, deadline)
    }

    /// Has the thread do something; the result comes when it comes.
    pub(super) fn ask<R: Send + 'static>(
        &self,
        job: impl FnOnce(&mut S) -> R + Send + 'static,
    ) -> Result<Receiver<R>, NoAnswer> {
        let (answer, result) = channel();
        self.post(move |state| {
            // Nobody waits any more: then nobody wants it.
            let _ = answer.send(job(state));
        })?;
        Ok(result)
    }

    /// Has the thread do something, and does not wait.
    pub(super) fn post(&self, job: impl FnOnce(&mut S) + Send + 'static) -> Result<(), NoAnswer> {
        self.jobs.send(Box::new(job)).map_err(|_| NoAnswer::Ended)
    }
}

/// Waits for a result until `deadline`.
pub(super) fn wait<R>(result: &Receiver<R>, deadline: Instant) -> Result<R, NoAnswer> {
    result.recv_timeout(deadline.saturating_duration_since(Instant::now())).map_err(|error| match error {
        RecvTimeoutError::Timeout => NoAnswer::Late,
        RecvTimeoutError::Disconnected => NoAnswer::Ended,
    })
}

impl<S> fmt::Debug for Worker<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Worker")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn soon(ms: u64) -> Instant {
        Instant::now() + Duration::from_millis(ms)
    }

    #[test]
    fn jobs_share_the_state_in_order() {
        let worker = Crew::default().start("test", || Some(1)).unwrap();
        worker.post(|n| *n += 1).unwrap();
        assert_eq!(worker.call(soon(10_000), |n| *n * 10), Ok(20));
    }

    #[test]
    fn a_caller_waits_no_longer_than_its_deadline_and_the_thread_ends_when_it_comes_back() {
        let crew = Crew::default();
        let (go, wait) = channel::<()>();
        let worker = crew.start("test", || Some(())).unwrap();
        let begun = Instant::now();
        let hang = worker.call(soon(50), move |()| wait.recv().is_ok());
        assert_eq!(hang, Err(NoAnswer::Late));
        assert!(begun.elapsed() < Duration::from_secs(5));
        drop(worker);
        assert_eq!(crew.len(), 1);
        go.send(()).unwrap();
        while crew.len() > 0 {
            thread::yield_now();
        }
    }

    #[test]
    fn a_crew_that_hangs_grows_no_further() {
        let crew = Crew::default();
        let gate = Arc::new(std::sync::Mutex::new(()));
        let closed = gate.lock().unwrap();
        let hang = |gate: Arc<std::sync::Mutex<()>>| crew.start("test", move || gate.lock().ok().map(|_| ()));
        let workers: Vec<_> = (0..MOST).map(|_| hang(gate.clone()).unwrap()).collect();
        assert!(hang(gate.clone()).is_none());
        drop((closed, workers));
        while crew.len() > 0 {
            thread::yield_now();
        }
        assert!(hang(gate.clone()).is_some());
    }

    #[test]
    fn a_thread_without_a_state_and_one_that_panics_have_ended_at_once() {
        let worker = Crew::default().start("test", || None::<()>).unwrap();
        assert_eq!(worker.call(soon(60_000), |()| ()), Err(NoAnswer::Ended));
        let crew = Crew::default();
        let worker = crew.start("test", || Some(())).unwrap();
        let panics = |(): &mut ()| assert!(std::hint::black_box(false), "on purpose");
        assert_eq!(worker.call(soon(60_000), panics), Err(NoAnswer::Ended));
        assert_eq!(worker.call(soon(60_000), |()| ()), Err(NoAnswer::Ended));
        while crew.len() > 0 {
            thread::yield_now();
        }
    }
}

//! Samples of more threads than this process may have files open (`ulimit -n`). A test of its own: the limit holds for all of it.

use corefit_linux::sample::TreeSampler;
use rustix::process::{Resource, getrlimit, setrlimit};

const THREADS: usize = 100;

#[test]
fn no_thread_is_taken_for_one_that_has_ended_for_want_of_files() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = Some(64);
    setrlimit(Resource::Nofile, limit).unwrap();
    let (tell, told) = std::sync::mpsc::channel::<()>();
    let told = std::sync::Mutex::new(told);
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| told.lock().unwrap().recv());
        }
        let me = std::process::id();
        let mut sampler = TreeSampler::new(me, me);
        for _ in 0..6 {
            let sample = sampler.sample();
            assert!(sample.threads > THREADS, "{}", sample.threads);
            assert_eq!(sample.run, sample.processes[&me], "nobody has ended");
        }
        drop(tell);
    });
}

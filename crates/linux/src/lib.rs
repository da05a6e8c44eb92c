//! Real machines for corefit: what proc, sys and the cgroup file systems say, and how programs are launched.

pub mod bytes;
pub mod clock;
pub mod formats;
pub mod handoff;
pub mod host;
pub mod identity;
pub mod launch;
pub mod libvirt;
pub mod moving;
pub mod page;
pub mod progress;
pub mod reporter;
pub mod sample;
pub mod threads;
pub mod told;
pub mod topology;

mod affinity;
mod allowed;
mod cgroup;
mod notes;
mod proc;
mod root;
mod self_view;
mod slice;

use std::collections::BTreeSet;

use rustix::process::{Resource, getrlimit};

pub use proc::Ticks;
pub use root::{ReadError, Root};
pub use self_view::{read, read_settings};

/// Called with a name after each part of a change that is made in parts, if somebody sets it: tests end the process there.
pub static BETWEEN: std::sync::OnceLock<fn(&str)> = std::sync::OnceLock::new();

fn between(part: &str) {
    if let Some(call) = BETWEEN.get() {
        call(part);
    }
}

/// Whose turn it is to be read anew: of what is old, each with when it was read, the `most` that were read longest ago.
fn oldest<T: Ord, K: Ord>(old: impl Iterator<Item = (T, K)>, most: usize) -> BTreeSet<K> {
    let mut old: Vec<(T, K)> = old.collect();
    old.sort_unstable();
    old.into_iter().take(most).map(|(_, key)| key).collect()
}

/// How many files may stay open for one use, `most` at the most: one in `share` of what this process may have open. The rest is
/// for others, and to open what is read only once: what cannot be opened would be taken for one that has ended.
fn most_open(share: u64, most: usize) -> usize {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    usize::try_from(limit / share).unwrap_or(usize::MAX).min(most)
}

/// A number to reckon with: exact below 2^53.
fn float(number: u64) -> f64 {
    number as f64
}

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
mod cgroup;
mod notes;
mod proc;
mod root;
mod self_view;
mod slice;

pub use root::{ReadError, Root};
pub use self_view::{read, read_settings};

/// Called with a name after each part of a change that is made in parts, if somebody sets it: tests end the process there.
pub static BETWEEN: std::sync::OnceLock<fn(&str)> = std::sync::OnceLock::new();

fn between(part: &str) {
    if let Some(call) = BETWEEN.get() {
        call(part);
    }
}

/// A number to reckon with: exact below 2^53.
fn float(number: u64) -> f64 {
    number as f64
}

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

mod cgroup;
mod notes;
mod proc;
mod root;
mod self_view;
mod slice;

pub use root::{ReadError, Root};
pub use self_view::{read, read_settings};

//! The VMs of a libvirt host.
//!
//! ```text
//!                    ┌ thread "libvirt": Session ──▶ libvirtd     which VMs, and their definitions
//! LibvirtMachine ────┤ thread "libvirt agents": Agents ──▶ guests     asked in the background
//!   observe          └ this thread: /proc, /sys, control groups     counters, as libvirt's are coarser and dearer
//! ```
//!
//! Calls of libvirt can hang: in libvirtd, in a QEMU that does not answer libvirtd, in a guest. None
//! is made by the thread that observes; it waits for an answer until its deadline, and goes on with
//! another connection when there is none. libvirtd also makes everybody wait while one VM starts or
//! ends; then the VMs are those of the look before. Where the host's files cannot be read (another host,
//! libvirt's test driver), libvirt is asked for counters, too.

mod act;
mod agent;
mod agent_calls;
mod agent_turns;
mod api;
mod asked;
mod command;
mod definition;
mod documents;
mod effect;
mod event_loop;
mod events;
mod guest;
mod hand;
mod limit;
mod local;
mod machine;
mod online;
mod owner;
mod pins;
mod process;
mod session;
mod sys;
mod thread;
mod vcpus;
mod worker;

use std::time::Duration;

use corefit_core::machine::Act;

pub use documents::{Documents, documents};
pub use effect::{in_effect, is_here, known_as};
pub use sys::end;

/// How a libvirt host is observed.
#[derive(Clone, Debug)]
pub struct Options {
    /// How long one observation may take.
    pub timeout: Duration,
    /// How often each guest agent is asked, that of a guest that rests a sixth as often; `None`: never, and libvirtd is only ever asked
    /// for reading. Costs libvirtd about a millisecond for each time and VM.
    pub guests: Option<Duration>,
}

impl Default for Options {
    fn default() -> Options {
        Options { timeout: Duration::from_secs(2), guests: Some(Duration::from_secs(5)) }
    }
}

/// The host of a libvirt URI (`qemu:///system`); an empty one is libvirt's default. Connects when it
/// is observed first; to change something, on a second connection, when that is asked for.
#[must_use]
pub fn open(uri: &str, options: Options) -> Box<dyn Act> {
    Box::new(machine::LibvirtMachine::new(uri, options))
}

//! Launching a program and standing in for it until it ends.
//!
//! ```text
//!   shell / service manager          (waits for corefit, signals corefit)
//!      │            ▲ same exit code, same death by signal, same stops
//!      ▼            │
//!   corefit ──fork, exec──▶ program ──▶ its own children
//!      │   same process group, terminal, files, limits, masks
//!      └─▶ witness   a sleeping process of the same group: tells a signal
//!                    for the whole group from one for corefit alone
//! ```
//!
//! [`Program::find`] says what will be executed and whether the preload library can
//! enter it, [`plan`] which environment its runtime needs, and [`Supervised`] runs it.
//!
//! What the program inherits is what corefit itself inherited: open files (also
//! *closed* standard streams), signal mask, ignored signals, limits, directory,
//! process group and terminal. Two things are deliberately not done: no
//! `PR_SET_CHILD_SUBREAPER`, so that a daemon the program leaves behind goes to init as
//! usual, and no `PR_SET_PDEATHSIG`, so that a `kill -9` of corefit leaves the program
//! running unharmed.
//!
//! What cannot be passed through: `SIGSTOP` sent to corefit alone stops corefit only
//! (it cannot be caught; one sent to the group stops both), the program is not the
//! leader of its process group, and a core file is written for the program only.

mod ending;
mod format;
mod inherited;
mod java;
mod knobs;
mod last_line;
mod program;
mod restart;
mod runtime;
mod signals;
mod spawn;
mod stop;
mod supervise;
mod terminal;
mod tether;
mod tree;
mod waiting;
mod waker;
mod witness;

pub use ending::end_like;
pub use format::{Kind, Privilege};
pub use inherited::{files_may_be_refused, started_ignoring};
pub use knobs::{Counts, Environment, Knobs, Setting, is_knob, plan};
pub use last_line::LastLine;
pub use program::{FindError, Program};
pub use restart::Killed;
pub use runtime::Runtime;
pub use spawn::{Launch, LaunchError};
pub use supervise::{Event, Supervised, Usage};
pub use tether::die_with_parent;
pub use tree::{Process, with_descendants};
pub use waiting::{Waiting, passive};

//! The pure half of corefit: its vocabulary, what it estimates and what it decides.
//!
//! Nothing here reads a clock, a file or a random source: the same input always
//! gives the same output, so the controllers that run on a real host also run in
//! a simulation and on a recording. `clippy.toml` beside this crate enforces it.

pub mod check;
mod contest;
mod cpuset;
pub mod decide;
pub mod entitle;
mod limits;
pub mod machine;
pub mod place;
pub mod profile;
mod random;
mod reading;
mod report;
mod team;
pub mod topology;
mod turns;
mod units;
mod window;

pub use cpuset::{CpuSet, ParseCpuSetError};
pub use limits::{BUSY, estimate};
pub use random::Random;
pub use reading::{
    CpuTimes, Group, Other, ProcessTimes, Quota, Reading, Sourced, TaskTimes, Throttled, Unread, Usage, What,
};
pub use report::{Contender, Limit, LimitKind, Report};
pub use team::{Decision, Interval, TeamController, Why, team_for};
pub use turns::{Alone, Turns};
pub use units::{CpuId, Cpus, Time, Weight};

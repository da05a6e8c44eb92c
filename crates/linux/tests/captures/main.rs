//! Readers on captured machines (`captures/README.md`), as they are and damaged.

mod cost;
mod cpus;
mod damaged;
mod hosts;
mod resctrl;

//! The corridor on hosts made of numbers: what comes out of snapshots.

mod again;
mod asked;
mod counting;
mod dwell;
mod gain;
mod grants;
mod place;
mod size;
mod support;
mod weigh;
mod whole;
mod why;

//! A simulated host, seen from outside.

mod changes;
mod class;
mod closed_forms;
mod coscheduling;
mod levers;
mod machine;
mod papers;
mod place;
mod programs;
mod properties;
mod shape;
mod support;
mod trace;
mod weigh;

//! The preload library.

mod counts;
mod entries;
mod loading;
mod orders;
mod processes;
mod quiet;
mod rotate;
mod support;

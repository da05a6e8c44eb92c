//! Real machines for corefit: what proc, sys and the cgroup file systems say, and how programs are launched.

pub mod page;
pub mod sample;

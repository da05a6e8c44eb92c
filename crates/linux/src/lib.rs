//! Real machines for corefit: what proc, sys and the cgroup file systems say, and how programs are launched.

pub mod identity;
pub mod page;
pub mod sample;
pub mod topology;

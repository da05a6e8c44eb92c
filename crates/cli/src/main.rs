//! The `corefit` command.

fn main() {}

//! What the tests of the launch module share: the example programs and waiting for
//! conditions.
#![allow(dead_code, unused_imports, reason = "every test file uses a part of this")]

#[path = "../build_support/mod.rs"]
mod build_support;
pub(crate) mod running;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use build_support::build;
pub(crate) use build_support::{PATIENCE, eventually, skipped};

/// The supervising example, built on first use: `cargo test --test` does not build it.
pub(crate) fn supervise() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| example("supervise"))
}

/// The example that prints the signals it receives.
pub(crate) fn signal_log() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| example("signal_log"))
}

fn example(name: &str) -> PathBuf {
    // As from a terminal, also where the tests were started by nohup, or with & by a script: children inherit what
    // is ignored.
    for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT] {
        // SAFETY: no handler is installed.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    // Of the workspace: for this crate alone dependencies are built with other features, which takes two minutes.
    build(&["--workspace", "--example", name]).join("examples").join(name)
}

/// The state letter of a process; None when it is gone.
pub(crate) fn state(pid: u32) -> Option<char> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    text.rsplit_once(") ")?.1.chars().next()
}

/// The parent of a process; None when it is gone.
pub(crate) fn parent(pid: u32) -> Option<u32> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    text.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
}

/// The processes of a process group, without zombies.
pub(crate) fn members(group: u32) -> Vec<u32> {
    let pids = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| {
        std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|text| {
            let fields = text.rsplit_once(") ").map(|(_, rest)| rest.split(' ').collect());
            let fields: Vec<&str> = fields.unwrap_or_default();
            fields[0] != "Z" && fields[2].parse() == Ok(group)
        })
    })
    .collect()
}

/// Sends a signal to a process, or with a negative number to a group.
pub(crate) fn kill(pid: i32, signal: i32) {
    assert!(!(-1..=0).contains(&pid), "0 and -1 mean many");
    // SAFETY: kill has no memory effects.
    let result = unsafe { libc::kill(pid, signal) };
    assert_eq!(result, 0, "signal {signal} to {pid}");
}

/// `sh -c SCRIPT` with nothing on stdin.
pub(crate) fn shell(script: &str) -> Command {
    let mut command = Command::new("/bin/sh");
    command.arg("-c").arg(script).stdin(Stdio::null());
    command
}

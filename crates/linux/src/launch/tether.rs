//! Children that must not outlive us.

use std::os::unix::process::CommandExt;
use std::process::Command;

/// Lets the kernel kill the command's process when the thread that spawns it ends, be it by
/// `kill -9` (prctl(2), `PR_SET_PDEATHSIG`). What that process starts is not covered.
pub fn die_with_parent(command: &mut Command) {
    let tether = || {
        // SAFETY: a system call on the own process with constant arguments.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
        Ok(())
    };
    // SAFETY: runs between fork and exec, where a system call without memory of ours is allowed.
    unsafe { command.pre_exec(tether) };
}

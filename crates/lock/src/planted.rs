//! Whether a seeded bug is in. A module of `bug.rs` here and in `lock-preload` (by path), whose [`Bug`]s it is about.

use super::Bug;

/// Whether this bug is in.
#[cfg(not(modelled))]
#[inline(always)]
pub(crate) const fn planted(_: Bug) -> bool {
    false
}

/// Whether this bug is in.
#[cfg(modelled)]
pub(crate) fn planted(bug: Bug) -> bool {
    PLANTED.load(std::sync::atomic::Ordering::Relaxed) == bug as u32
}

/// The bug that is in, 0 for none; std's atomic, since it is no part of what is checked.
#[cfg(modelled)]
static PLANTED: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);

/// Runs `check` with the bug in a process of its own, which has to fail in one of these ways: loom may abort.
#[cfg(all(test, modelled))]
pub(crate) fn catches(bug: Bug, how: &[&str], test: &str, check: impl FnOnce()) {
    const ROLE: &str = "COREFIT_LOCK_BUG";
    let name = format!("{bug:?}");
    match std::env::var(ROLE) {
        Ok(role) if role == name => {
            PLANTED.store(bug as u32, std::sync::atomic::Ordering::Relaxed);
            check();
        }
        Ok(_) => {}
        Err(_) => {
            let output = std::process::Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "--nocapture", test])
                .env(ROLE, &name)
                .output()
                .unwrap();
            let text = String::from_utf8_lossy(&output.stderr);
            assert!(!output.status.success(), "{name} went unnoticed");
            assert!(how.iter().any(|how| text.contains(how)), "{name} was found, but not as {how:?}: {text}");
        }
    }
}

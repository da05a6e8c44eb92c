//! What tests need that is built, for `cargo test --test` does not build examples and libraries; and how they wait and skip.
#![allow(dead_code, reason = "every test file uses a part of this")]

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Longest wait for something that takes milliseconds on an idle machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Says on the real stderr that something was not tested, and why.
pub(crate) fn skipped(what: &str, why: &str) {
    let _ = writeln!(std::io::stderr(), "skipped: {what}: {why}");
}

/// Looks again until `condition` holds; fails after [`PATIENCE`].
pub(crate) fn eventually<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(Instant::now() < end, "never happened: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// `cargo build WHAT`, in the profile of this test; the directory where it is then.
pub(crate) fn build(what: &[&str]) -> PathBuf {
    // TARGET/PROFILE/deps/THIS_TEST
    let test = std::env::current_exe().unwrap();
    let profile = test.parent().and_then(Path::parent).unwrap();
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--quiet", "--locked", "--target-dir"]).arg(profile.parent().unwrap());
    cargo.args(what).current_dir(env!("CARGO_MANIFEST_DIR"));
    if profile.ends_with("release") {
        cargo.arg("--release");
    }
    assert!(cargo.status().unwrap().success(), "cargo build {what:?} fails");
    profile.into()
}

/// Both preload libraries; the directory where they are. With the command, which has none, the lock gets the features that it
/// has in a build of the workspace: it is not built anew. (`--workspace --lib` would build serde and all that uses it anew, without
/// what tests need of it.)
pub(crate) fn libraries() -> PathBuf {
    build(&["--lib", "-p", "corefit-openmp", "-p", "corefit-lock-preload", "-p", "corefit"])
}

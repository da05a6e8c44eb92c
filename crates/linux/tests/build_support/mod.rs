//! What tests need that is built: `cargo test --test` does not build examples and libraries.
#![allow(dead_code, reason = "every test file uses a part of this")]

use std::path::{Path, PathBuf};
use std::process::Command;

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

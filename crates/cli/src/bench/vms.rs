//! Test VMs that `scripts/testvm` starts, for benches.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Context, Result, bail};

/// Exit status of scripts/testvm where there can be no VMs.
const SKIPPED: i32 = 77;

/// Test VMs, which end with this value, and with this process.
pub(super) struct Vms {
    testvm: PathBuf,
    pub(super) names: Vec<String>,
}

impl Vms {
    /// So many, by the script of the repository at `root`; or why there can be none.
    pub(super) fn start(root: &Path, count: u32, options: &[&str]) -> Result<Result<Vms, String>> {
        let testvm = root.join("scripts/testvm");
        if !testvm.is_file() {
            return Ok(Err(format!("there is no {}", testvm.display())));
        }
        let mut command = Command::new(&testvm);
        command.args(["up", &count.to_string(), "--owner", &std::process::id().to_string()]).args(options);
        let output = command.output().with_context(|| format!("cannot start {}", testvm.display()))?;
        let told = String::from_utf8_lossy(&output.stdout).into_owned();
        match output.status.code() {
            Some(0) => {}
            Some(SKIPPED) => return Ok(Err(told.trim().trim_start_matches("skipped: ").to_owned())),
            _ => bail!("{count} VMs ({}) did not start: {}", options.join(" "), last_line(&output)),
        }
        let names = told.lines().filter_map(|line| line.split(' ').next()).map(str::to_owned).collect();
        Ok(Ok(Vms { testvm, names }))
    }

    /// The URI of their libvirtd.
    pub(super) fn uri(&self) -> Result<String> {
        let output = Command::new(&self.testvm).arg("uri").output().context("scripts/testvm uri")?;
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }

    /// What runs a command in one of them; arguments of the command are to be added.
    pub(super) fn exec(&self, name: &str) -> Command {
        let mut command = Command::new(&self.testvm);
        command.args(["exec", name, "--"]);
        command
    }
}

impl Drop for Vms {
    fn drop(&mut self) {
        let _ = Command::new(&self.testvm).arg("down").args(&self.names).output();
    }
}

/// The last line of what a command complained about.
pub(super) fn last_line(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr);
    text.trim().lines().last().unwrap_or("it printed no error").to_owned()
}

/// A program beside this one, without what is for debuggers: guests unpack slowly.
pub(super) fn stripped(name: &str, dir: &Path) -> Result<PathBuf> {
    let (from, to) = (std::env::current_exe()?.with_file_name(name), dir.join(name));
    let status = Command::new("strip").args(["--strip-debug", "-o"]).args([&to, &from]).status();
    match status {
        Ok(status) if status.success() => Ok(to),
        _ => bail!("{}: cannot be stripped for the guest (strip is in binutils)", from.display()),
    }
}

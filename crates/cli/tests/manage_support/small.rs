//! A file system that is soon full.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// A file system of a few pages, gone with this value.
pub(crate) struct Small {
    pub(crate) path: PathBuf,
}

impl Small {
    /// `None` where this user may not make one, which is said.
    pub(crate) fn at(path: PathBuf) -> Option<Small> {
        std::fs::create_dir(&path).unwrap();
        let mounted = mount(&["-t", "tmpfs", "-o", "size=32k,mode=700", "none", path.to_str().unwrap()]);
        if !mounted {
            let _ = writeln!(
                std::io::stderr(),
                "skipped: a full and a read-only file system: only root may mount one"
            );
        }
        mounted.then_some(Small { path })
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").args(["-l", self.path.to_str().unwrap()]).status();
    }
}

pub(crate) fn mount(args: &[&str]) -> bool {
    Command::new("mount").args(args).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}

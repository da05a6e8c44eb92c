//! Files that only their owner can have put where they are: what others may write to is neither trusted nor followed.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use rustix::fs::{FlockOperation, OFlags, flock};

use super::journal::unusable;

/// Write permission of others than the owner.
const OTHERS: u32 = 0o022;

/// Of a directory for everybody, such as /tmp.
const STICKY: u32 = 0o1000;

/// A file whose lock goes with this; closing it alone would leave the lock to a process that was forked meanwhile, until that executes.
pub(super) struct Locked(pub(super) File);

impl Drop for Locked {
    fn drop(&mut self) {
        let _ = flock(&self.0, FlockOperation::Unlock);
    }
}

/// Directories that are made for something, which go with this, unless something else is in them by then.
#[derive(Default)]
pub(super) struct Made(Vec<PathBuf>);

impl Made {
    /// Those that have to be made yet for this one to be.
    pub(super) fn for_want_of(dir: &Path) -> Made {
        Made(dir.ancestors().take_while(|dir| !dir.exists()).map(Path::to_owned).collect())
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        for dir in &self.0 {
            let _ = fs::remove_dir(dir);
        }
    }
}

/// A directory of ours, made if need be, that nobody else writes to.
///
/// # Errors
/// If it is not, or cannot be made.
pub(super) fn directory(dir: &Path) -> Result<()> {
    if !dir.exists() {
        let made = fs::create_dir_all(dir).and_then(|()| {
            let mode = dir.metadata()?.mode() & !OTHERS;
            // Whatever the umask is.
            fs::set_permissions(dir, Permissions::from_mode(mode))
        });
        made.map_err(|error| unusable(dir, &error))?;
    }
    let seen = dir.metadata().map_err(|error| unusable(dir, &error))?;
    if !seen.is_dir() {
        return Err(unusable(dir, &io::ErrorKind::NotADirectory.into()));
    }
    let (user, name) = (rustix::process::geteuid().as_raw(), dir.display());
    if ![0, user].contains(&seen.uid()) {
        bail!(
            "{name}: belongs to user {}, so nothing is changed; give a directory of your own: --state",
            seen.uid()
        );
    }
    if seen.mode() & STICKY != 0 && seen.mode() & OTHERS != 0 {
        bail!(
            "{name}: everybody may write to it, so nothing is changed; give a directory of your own below it: --state"
        );
    }
    if seen.mode() & OTHERS != 0 {
        bail!(
            "{name}: others may write to it, so nothing is changed; `chmod go-w '{name}'`, or another directory: --state"
        );
    }
    Ok(())
}

/// Opens a regular file, not by a link, that others can neither read nor lock; nobody is waited for.
pub(super) fn open(path: &Path, how: &OpenOptions) -> io::Result<File> {
    let flags = i32::try_from((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits()).unwrap_or_default();
    let file = how.clone().mode(0o600).custom_flags(flags).open(path).map_err(|error| {
        if error.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error()) {
            io::Error::other(
                "is a link, which is not followed; remove it, or give another directory: --state",
            )
        } else {
            error
        }
    })?;
    let seen = file.metadata()?;
    if !seen.is_file() {
        return Err(io::Error::other("is no regular file; remove it, or give another directory: --state"));
    }
    if seen.uid() == rustix::process::geteuid().as_raw() && seen.mode() & 0o077 != 0 {
        // Of an earlier version; on a disk that cannot be written to it stays.
        let _ = file.set_permissions(Permissions::from_mode(0o600));
    }
    Ok(file)
}

//! Files that only their owner can have put where they are: what others may write to is neither trusted nor followed.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

use anyhow::{Result, bail};
use rustix::fs::OFlags;

use super::journal::unusable;

/// Write permission of others than the owner.
const OTHERS: u32 = 0o022;

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
    if seen.mode() & OTHERS != 0 {
        bail!(
            "{name}: others may write to it, so nothing is changed; `chmod go-w {name}`, or another directory: --state"
        );
    }
    Ok(())
}

/// Opens a regular file, not by a link; nobody is waited for.
pub(super) fn open(path: &Path, how: &OpenOptions) -> io::Result<File> {
    let flags = i32::try_from((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits()).unwrap_or_default();
    let file = how.clone().custom_flags(flags).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::other("is no regular file")),
    }
}

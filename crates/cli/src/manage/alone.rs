//! Only one corefit at a time changes a machine, whatever their directories are and by whatever name it is meant: who works
//! elsewhere would take the other's values for originals, and the other's notes for those of a daemon that was killed.
//!
//! What is held is a file that nobody else can open, so nobody else can hold it: of root in `/run/corefit`, of others in their
//! own runtime directory. The kernel gives it back when the process ends, however it ends.

use std::fs::{DirBuilder, File, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow, bail};
use rustix::fs::{FlockOperation, OFlags, flock, major, minor};

use super::Passing;
use super::journal::checksum;

/// Where root's are. Others may look who is there, but open nothing.
const ROOTS: &str = "/run/corefit";

/// Held while a machine may be changed.
pub(super) struct Alone {
    /// `None`: there is no directory for it, which only who is not root can be without.
    _lock: Option<File>,
}

impl Alone {
    /// Takes hold of a machine, by what is changed there ([`Act::realm`](corefit_core::machine::Act::realm)).
    ///
    /// # Errors
    /// If another corefit of this user, or of root, has hold of it, or nobody can be sure of that.
    pub(super) fn with(machine: &str) -> Result<Alone> {
        let user = rustix::process::geteuid().as_raw();
        if user == 0 {
            return Alone::within(Path::new(ROOTS), machine, user);
        }
        let roots = file(Path::new(ROOTS), machine);
        let locks = std::fs::read_to_string("/proc/locks").unwrap_or_default();
        if roots.symlink_metadata().is_ok_and(|seen| is_held(&locks, seen.dev(), seen.ino())) {
            bail!(taken(machine));
        }
        runtime_dir(user).map_or(Ok(Alone { _lock: None }), |dir| Alone::within(&dir, machine, user))
    }

    fn within(dir: &Path, machine: &str, user: u32) -> Result<Alone> {
        let path = file(dir, machine);
        let unusable = |error: io::Error| {
            anyhow!("{}: cannot be written, so nothing is changed: {error}", path.display())
        };
        match DirBuilder::new().mode(0o755).create(dir) {
            // Whatever the umask is.
            Ok(()) => std::fs::set_permissions(dir, Permissions::from_mode(0o755)).map_err(unusable)?,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(unusable(error)),
        }
        let seen = dir.symlink_metadata().map_err(unusable)?;
        if !seen.is_dir() || seen.uid() != user || seen.mode() & 0o022 != 0 {
            bail!(
                "{}: is not a directory that only user {user} writes to, so nothing is changed; remove it",
                dir.display()
            );
        }
        let flags = i32::try_from(OFlags::NOFOLLOW.bits()).unwrap_or_default();
        let options = File::options().write(true).create(true).mode(0o600).custom_flags(flags).clone();
        let lock = options.open(&path).map_err(unusable)?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Alone { _lock: Some(lock) }),
            Err(rustix::io::Errno::WOULDBLOCK) => bail!(taken(machine)),
            Err(error) => Err(unusable(error.into())),
        }
    }
}

fn taken(machine: &str) -> Passing {
    Passing(format!(
        "{machine}: another corefit is at work there, with another directory; end that one first"
    ))
}

fn file(dir: &Path, machine: &str) -> PathBuf {
    dir.join(format!("{}.lock", checksum(machine)))
}

/// The directory of a user that is not root; `None` where there is none, or it is somebody else's.
fn runtime_dir(user: u32) -> Option<PathBuf> {
    let own = |dir: &PathBuf| dir.metadata().is_ok_and(|seen| seen.is_dir() && seen.uid() == user);
    let given = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let usual = PathBuf::from(format!("/run/user/{user}"));
    given.into_iter().chain([usual]).find(own).map(|dir| dir.join("corefit"))
}

/// Whether somebody holds a file, by `/proc/locks` (proc(5)): `1: FLOCK ADVISORY WRITE PID MAJOR:MINOR:INODE 0 EOF`.
fn is_held(locks: &str, device: u64, inode: u64) -> bool {
    let which = format!("{:02x}:{:02x}:{inode}", major(device), minor(device));
    locks.lines().any(|line| {
        let mut words = line.split_whitespace().skip(1);
        words.next() == Some("FLOCK") && words.nth(3) == Some(&which)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user() -> u32 {
        rustix::process::geteuid().as_raw()
    }

    #[test]
    fn a_machine_is_held_by_one_at_a_time_and_others_are_not_concerned() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("corefit");
        let held = Alone::within(&dir, "host", user()).unwrap();
        let why = Alone::within(&dir, "host", user()).err().unwrap().to_string();
        assert!(why.contains("another corefit") && why.contains("host"), "{why}");
        Alone::within(&dir, "another", user()).unwrap();
        let seen = file(&dir, "host").metadata().unwrap();
        let shown =
            || is_held(&std::fs::read_to_string("/proc/locks").unwrap_or_default(), seen.dev(), seen.ino());
        assert!(shown(), "who may not open it sees that it is held");
        drop(held);
        assert!(!shown());
        Alone::within(&dir, "host", user()).unwrap();
    }

    #[test]
    fn nobody_else_can_open_what_is_held() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("corefit");
        let _held = Alone::within(&dir, "host", user()).unwrap();
        assert_eq!(file(&dir, "host").metadata().unwrap().mode() & 0o777, 0o600);
        assert_eq!(dir.metadata().unwrap().mode() & 0o777, 0o755);
    }

    #[test]
    fn a_directory_that_others_write_to_or_own_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let (open, link) = (dir.path().join("open"), dir.path().join("link"));
        std::fs::create_dir(&open).unwrap();
        std::fs::set_permissions(&open, Permissions::from_mode(0o777)).unwrap();
        std::os::unix::fs::symlink(dir.path(), &link).unwrap();
        for (dir, user) in [(&open, user()), (&link, user()), (&dir.path().to_path_buf(), user() + 1)] {
            let why = Alone::within(dir, "host", user).err().unwrap().to_string();
            assert!(why.contains("nothing is changed"), "{why}");
        }
    }

    #[test]
    fn locks_of_other_files_and_kinds_are_not_ours() {
        let locks = "1: FLOCK  ADVISORY  WRITE 700 00:17:26 0 EOF\n2: POSIX  ADVISORY  WRITE 8 00:17:27 0 EOF\n\
            2: -> FLOCK  ADVISORY  WRITE 9 00:17:28 0 EOF\n";
        let device = rustix::fs::makedev(0, 0x17);
        assert!(is_held(locks, device, 26));
        assert!(!is_held(locks, device, 27) && !is_held(locks, device, 28) && !is_held(locks, device, 2));
    }
}

//! Only one corefit at a time changes a machine, whatever their directories are and by whatever name it is meant: who works
//! elsewhere would take the other's values for originals, and the other's notes for those of a daemon that was killed.
//!
//! What is held is a file that nobody else can open, so nobody else can hold it: of root in `/run/corefit`, of others in their
//! own runtime directory. The kernel gives it back when the process ends, however it ends. The file has the state directory of who
//! held it last, and lasts until the host boots, as settings do (of others until their last session ends, unless they linger): who comes with
//! another directory finds there what settings were.

use std::ffi::OsString;
use std::fs::{DirBuilder, File, Metadata, Permissions};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use rustix::fs::{FlockOperation, OFlags, flock, major, minor};

use super::journal::{self, checksum};
use super::{Boot, Journal, Passing, own};

/// Where root's are. Others may look who is there, but open nothing.
const ROOTS: &str = "/run/corefit";

/// Longest name of a directory that is read (PATH_MAX).
const LONGEST: u64 = 4096;

/// Held while a machine may be changed.
pub(super) struct Alone {
    /// `None`: there is no directory for it, which only who is not root can be without.
    _lock: Option<own::Locked>,
}

impl Alone {
    /// Takes hold of a machine, by what is changed there ([`Act::realm`](corefit_core::machine::Act::realm)), with the directory of
    /// the journal.
    ///
    /// # Errors
    /// If another corefit of this user, or of root, has hold of it, or nobody can be sure of that; and if one that was killed left
    /// settings changed in another directory: what they are now would be taken for what they were.
    pub(super) fn with(machine: &str, state: &Path) -> Result<Alone> {
        let user = rustix::process::geteuid().as_raw();
        let state = super::config::absolute(state.into())?;
        if user == 0 {
            return Alone::within(Path::new(ROOTS), machine, user, &state);
        }
        let roots = file(Path::new(ROOTS), machine);
        if let Ok(seen) = roots.symlink_metadata()
            && let Some(process) = holder(&seen)
        {
            // Which directory that is only root may read.
            bail!(taken(machine, process, None));
        }
        runtime_dir(user).map_or(Ok(Alone { _lock: None }), |dir| Alone::within(&dir, machine, user, &state))
    }

    fn within(dir: &Path, machine: &str, user: u32, state: &Path) -> Result<Alone> {
        let path = file(dir, machine);
        let unusable = |error: io::Error| unusable(&path, &error);
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
        let mut how = File::options();
        how.read(true).write(true).create(true).truncate(false).mode(0o600).custom_flags(flags);
        let mut lock = own::Locked(how.open(&path).map_err(unusable)?);
        match flock(&lock.0, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let process = holder(&lock.0.metadata().map_err(unusable)?).flatten();
                bail!(taken(machine, process, last(&lock.0).ok().flatten()))
            }
            Err(error) => return Err(unusable(error.into())),
        }
        let last = last(&lock.0).map_err(unusable)?;
        let same = last.as_ref().is_some_and(|last| is_same(last, state));
        if let Some(last) = last.filter(|_| !same) {
            left_nothing(&last, machine)?;
        }
        // Who has no journal, as a restore that finds none, changes nothing that is not in a note.
        if !same && journal::file(state).exists() {
            let name = state.as_os_str().as_bytes();
            let written = lock.0.rewind().and_then(|()| lock.0.write_all(name));
            if let Err(error) = written.and_then(|()| lock.0.set_len(name.len() as u64)) {
                tell!(
                    "corefit: {}: {error}: who comes with another --state is not sent to this one",
                    path.display()
                );
            }
        }
        Ok(Alone { _lock: Some(lock) })
    }
}

/// That who would hold a machine cannot be written down.
fn unusable(path: &Path, error: &io::Error) -> anyhow::Error {
    let text = format!("{}: cannot be written, so nothing is changed: {error}", path.display());
    journal::passing(text, error)
}

/// The state directory of who had hold of a machine last; `None`: nobody had since the host booted.
fn last(lock: &File) -> io::Result<Option<PathBuf>> {
    let mut name = Vec::new();
    lock.take(LONGEST).read_to_end(&mut name)?;
    Ok((!name.is_empty()).then(|| OsString::from_vec(name).into()))
}

/// Whether two names are of one directory.
fn is_same(one: &Path, other: &Path) -> bool {
    let which = |dir: &Path| dir.metadata().map(|seen| (seen.dev(), seen.ino())).ok();
    one == other || which(one).is_some_and(|one| which(other) == Some(one))
}

/// Whether in a directory there is nothing left of a machine that is to be put back.
///
/// # Errors
/// If there is, with the remedy, or nobody can know.
fn left_nothing(dir: &Path, machine: &str) -> Result<()> {
    // What others may write to says nothing, and no journal is kept there.
    if dir.exists() && own::directory(dir).is_err() {
        return Ok(());
    }
    let left = Journal::left_of(dir, machine, &Boot::now(true)?)?;
    if let Err(error) = dir.metadata() {
        // Mostly somebody has removed it; a service may only not see it (ProtectHome, PrivateTmp).
        tell!(
            "corefit: {}: {error}; a corefit with that directory was the last at work on {machine}: if it was killed, what it changed stays",
            dir.display()
        );
    }
    if left == 0 {
        return Ok(());
    }
    bail!(
        "{}: holds {} of {machine} that a corefit with that directory has changed since the host booted; nothing is changed. Put back \
         first: `corefit restore --state '{}'`",
        journal::file(dir).display(),
        journal::settings(left),
        dir.display()
    )
}

/// Who is at work there: its process, if that is seen from here, and the directory of who was the last to have one.
fn taken(machine: &str, process: Option<u32>, last: Option<PathBuf>) -> Passing {
    let who = process.map_or(String::new(), |process| format!(" (process {process})"));
    // One that only puts back, and has no journal, does not name its own.
    let own = |dir: &PathBuf| {
        let holds = std::fs::read_to_string(dir.join("lock"));
        holds.is_ok_and(|holds| process.is_none() || holds.trim().parse().ok() == process)
    };
    let dir =
        last.filter(own).map_or("another directory".into(), |dir| format!("--state '{}'", dir.display()));
    Passing(format!("{machine}: another corefit{who} is at work there, with {dir}; end that one first"))
}

/// Directories of who had hold of a machine of this host last, but for this one: as far as this user may read that.
pub(super) fn others(state: &Path) -> Vec<PathBuf> {
    let own = runtime_dir(rustix::process::geteuid().as_raw());
    let mut found: Vec<PathBuf> =
        [PathBuf::from(ROOTS)].into_iter().chain(own).flat_map(|dir| named(&dir)).collect();
    found.sort();
    found.dedup();
    found.retain(|other| !is_same(other, state));
    found
}

/// Those that the files in a directory name.
fn named(dir: &Path) -> Vec<PathBuf> {
    let files = std::fs::read_dir(dir).into_iter().flatten().flatten().map(|file| file.path());
    let locks = files.filter(|file| file.extension().is_some_and(|ending| ending == "lock"));
    locks.filter_map(|file| last(&File::open(file).ok()?).ok()?).collect()
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

/// Who holds a file, if somebody does; a process that is not seen from here has no number.
fn holder(seen: &Metadata) -> Option<Option<u32>> {
    listed(&std::fs::read_to_string("/proc/locks").unwrap_or_default(), seen.dev(), seen.ino())
}

/// The same by `/proc/locks` (proc(5)): `1: FLOCK ADVISORY WRITE PID MAJOR:MINOR:INODE 0 EOF`.
fn listed(locks: &str, device: u64, inode: u64) -> Option<Option<u32>> {
    let which = format!("{:02x}:{:02x}:{inode}", major(device), minor(device));
    locks.lines().find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().skip(1).collect();
        let held = words.first() == Some(&"FLOCK") && words.get(4) == Some(&which.as_str());
        held.then(|| words[3].parse().ok().filter(|process| *process > 0))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user() -> u32 {
        rustix::process::geteuid().as_raw()
    }

    fn within(dir: &Path, machine: &str) -> Result<Alone> {
        Alone::within(dir, machine, user(), Path::new("/nowhere"))
    }

    #[test]
    fn a_machine_is_held_by_one_at_a_time_and_others_are_not_concerned() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("corefit");
        let held = within(&dir, "host").unwrap();
        let why = within(&dir, "host").err().unwrap().to_string();
        assert!(why.contains("another corefit") && why.contains("host"), "{why}");
        within(&dir, "another").unwrap();
        let seen = file(&dir, "host").metadata().unwrap();
        let shown = || holder(&seen).is_some();
        assert!(shown(), "who may not open it sees that it is held");
        drop(held);
        assert!(!shown());
        within(&dir, "host").unwrap();
    }

    #[test]
    fn nobody_else_can_open_what_is_held() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("corefit");
        let _held = within(&dir, "host").unwrap();
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
            let why = Alone::within(dir, "host", user, Path::new("/nowhere")).err().unwrap().to_string();
            assert!(why.contains("nothing is changed"), "{why}");
        }
    }

    /// What another directory says of a machine whose settings it may hold; `machine` is the journal's.
    fn refused(machine: &str, realm: &str) -> Option<String> {
        let dir = tempfile::tempdir().unwrap();
        let [run, old, new] = ["run", "old", "new"].map(|name| dir.path().join(name));
        let mut journal = Journal::open(&old, machine, &Boot::now(true).unwrap()).unwrap();
        journal.add(journal::testing::entry("a"));
        journal.write().unwrap();
        let hold = |state: &Path| Alone::within(&run, realm, user(), state);
        drop(hold(&old).unwrap());
        drop(hold(&dir.path().join("run/../old")).unwrap()); // By another name.
        let why = hold(&new).err().map(|error| error.to_string());
        if why.is_some() {
            assert!(hold(&new).is_err(), "whoever is refused leaves what it found");
        }
        journal.replace(Vec::new());
        journal.write().unwrap();
        drop(hold(&new).unwrap());
        drop(Journal::open(&new, machine, &Boot::now(true).unwrap()).unwrap());
        drop(hold(&new).unwrap());
        journal.add(journal::testing::entry("a"));
        journal.write().unwrap();
        assert_eq!(hold(&new).err().map(|error| error.to_string()), None, "the old one counts no more");
        why
    }

    #[test]
    fn who_comes_with_another_directory_is_sent_to_the_one_that_knows_what_settings_were() {
        for (machine, realm) in [
            ("cgroups:/a", "control groups of this host"),
            ("libvirt:test:///default", "libvirt test:///default"),
            ("host", "libvirt qemu:///system"),
            ("host", "control groups of this host"),
        ] {
            let why = refused(machine, realm).unwrap();
            for part in ["old/journal: holds 1 setting of ", realm, "`corefit restore --state '", "old'`"] {
                assert!(why.contains(part), "{part}: {why}");
            }
        }
    }

    #[test]
    fn settings_of_another_machine_in_that_directory_and_a_directory_that_is_gone_are_no_reason_to_refuse() {
        assert_eq!(refused("libvirt:test:///default", "control groups of this host"), None);
        assert_eq!(refused("libvirt:test:///default", "libvirt qemu:///system"), None);
        assert_eq!(refused("cgroups", "libvirt qemu:///system"), None);
        let dir = tempfile::tempdir().unwrap();
        let run = dir.path().join("run");
        let open = std::fs::Permissions::from_mode(0o777);
        for (state, mode) in [("gone", None), ("everybodys", Some(open)), ("other", None)] {
            let state = dir.path().join(state);
            let mut journal = Journal::open(&state, "host", &Boot::now(true).unwrap()).unwrap();
            journal.add(journal::testing::entry("a"));
            journal.write().unwrap();
            Alone::within(&run, "host", user(), &state).unwrap();
            match mode {
                Some(mode) => std::fs::set_permissions(&state, mode).unwrap(),
                None => std::fs::remove_dir_all(&state).unwrap(),
            }
        }
    }

    #[test]
    fn where_nothing_can_be_written_now_another_try_may_help_and_where_nobody_may_write_none_does() {
        use io::ErrorKind::{PermissionDenied, ReadOnlyFilesystem, StorageFull};
        let passes = |kind: io::ErrorKind| {
            let error = unusable(Path::new("/run/corefit/x.lock"), &kind.into());
            assert!(error.to_string().starts_with("/run/corefit/x.lock: cannot be written"), "{error}");
            error.is::<Passing>()
        };
        assert_eq!([StorageFull, ReadOnlyFilesystem, PermissionDenied].map(passes), [true, true, false]);
    }

    #[test]
    fn locks_of_other_files_and_kinds_are_not_ours() {
        let locks = "1: FLOCK  ADVISORY  WRITE 700 00:17:26 0 EOF\n2: POSIX  ADVISORY  WRITE 8 00:17:27 0 EOF\n\
            2: -> FLOCK  ADVISORY  WRITE 9 00:17:28 0 EOF\n";
        let device = rustix::fs::makedev(0, 0x17);
        assert_eq!(listed(locks, device, 26), Some(Some(700)));
        assert_eq!([27, 28, 2].map(|inode| listed(locks, device, inode)), [None; 3]);
        let hidden = "1: FLOCK  ADVISORY  WRITE 0 00:17:26 0 EOF\n";
        assert_eq!(listed(hidden, device, 26), Some(None), "of another container, perhaps");
    }

    #[test]
    fn who_is_refused_is_told_the_process_and_the_directory_of_the_one_at_work() {
        let dir = tempfile::tempdir().unwrap();
        let (run, state, other) =
            (dir.path().join("run"), dir.path().join("state"), dir.path().join("other"));
        let _journal = Journal::open(&state, "host", &Boot::now(true).unwrap()).unwrap();
        let _held = Alone::within(&run, "host", user(), &state).unwrap();
        let why = Alone::within(&run, "host", user(), &other).err().unwrap().to_string();
        let named =
            format!("(process {}) is at work there, with --state '{}'", std::process::id(), state.display());
        assert!(why.contains(&named), "{why}");
        assert_eq!((super::named(&run), super::named(&other)), (vec![state.clone()], Vec::new()));
        // Of one that has no journal nothing is named that was another's.
        std::fs::write(state.join("lock"), "1").unwrap();
        let why = Alone::within(&run, "host", user(), &other).err().unwrap().to_string();
        assert!(why.contains("with another directory"), "{why}");
    }
}

//! Files of results: found writable before the work, written after it.

use std::fs::{File, Metadata};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use anyhow::{Context, Result, bail};
use corefit_linux::launch::files_may_be_refused;
use rustix::fs::OFlags;
use rustix::io::Errno;

/// A file opened before the work, so that nothing is lost for a mistyped name. What stands in it stays until there is
/// something to write; if there never is, a new one is removed.
pub(crate) struct Output<'a> {
    path: &'a Path,
    /// None for a pipe with a name that nobody reads yet: waiting for a reader would keep the work from starting.
    file: Option<File>,
    /// It was not there before.
    new: bool,
}

impl<'a> Output<'a> {
    /// # Errors
    /// If it cannot be written.
    pub(crate) fn open(path: &'a Path) -> Result<Output<'a>> {
        let new = path.symlink_metadata().is_err();
        let file = match open(path) {
            Err(why) if why.raw_os_error() == Some(Errno::NXIO.raw_os_error()) => None,
            file => Some(file.with_context(|| cannot(path))?),
        };
        Ok(Output { path, file, new })
    }

    pub(crate) fn path(&self) -> &'a Path {
        self.path
    }

    /// # Errors
    /// If not all of it can be written: then nothing is left of it.
    pub(crate) fn write(self, bytes: &[u8]) -> Result<()> {
        self.fill(|file| file.write_all(bytes))
    }

    /// The same for who writes in parts.
    ///
    /// # Errors
    /// As [`Output::write`].
    pub(crate) fn fill(mut self, write: impl FnOnce(&mut File) -> io::Result<()>) -> Result<()> {
        files_may_be_refused();
        let file = self.file.take().map_or_else(|| open(self.path), Ok);
        let written = file.and_then(|mut file| {
            // Only a regular file has a length: not a pipe, nor a terminal.
            let regular = file.metadata()?.is_file();
            if regular {
                file.set_len(0)?;
            }
            let written = write(&mut file);
            if written.is_err() && regular {
                let _ = file.set_len(0);
            }
            written
        });
        self.new &= written.is_err();
        written.with_context(|| cannot(self.path))
    }

    /// Which file it is, if that matters.
    fn id(&self) -> Option<(u64, u64)> {
        let file = self.file.as_ref()?.metadata().ok();
        file.filter(Metadata::is_file).map(|file| (file.dev(), file.ino()))
    }
}

impl Drop for Output<'_> {
    fn drop(&mut self) {
        if self.new {
            let _ = std::fs::remove_file(self.path);
        }
    }
}

fn cannot(path: &Path) -> String {
    format!("{}: cannot be written", path.display())
}

/// Without waiting for who reads a pipe.
fn open(path: &Path) -> io::Result<File> {
    let waits_not = OFlags::NONBLOCK.bits().cast_signed();
    let file = File::options().write(true).create(true).truncate(false).custom_flags(waits_not).open(path)?;
    // Who reads slowly gets all of it.
    let flags = rustix::fs::fcntl_getfl(&file)?;
    rustix::fs::fcntl_setfl(&file, flags - OFlags::NONBLOCK)?;
    Ok(file)
}

/// No two of these options may name the same file.
///
/// # Errors
/// If two do.
pub(crate) fn distinct(outputs: &[(&str, Option<&Output<'_>>)]) -> Result<()> {
    let ids = || outputs.iter().filter_map(|(option, output)| Some((option, output.and_then(Output::id)?)));
    for (i, (option, id)) in ids().enumerate() {
        if let Some((other, _)) = ids().take(i).find(|(_, other)| *other == id) {
            bail!("{other} and {option} name the same file: give each one of its own");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_keeps_what_it_has_until_it_is_written_and_a_new_one_goes_again() {
        let dir = tempfile::tempdir().unwrap();
        let (old, new) = (dir.path().join("old"), dir.path().join("new"));
        std::fs::write(&old, "what was there").unwrap();
        drop((Output::open(&old).unwrap(), Output::open(&new).unwrap()));
        assert_eq!(std::fs::read_to_string(&old).unwrap(), "what was there");
        assert!(!new.exists());
        for path in [&old, &new] {
            Output::open(path).unwrap().write(b"short").unwrap();
            assert_eq!(std::fs::read_to_string(path).unwrap(), "short");
        }
        assert!(Output::open(dir.path()).is_err());
        let full = Output::open(Path::new("/dev/full")).unwrap().write(b"short").unwrap_err();
        assert!(full.to_string().starts_with("/dev/full: cannot be written"), "{full}");
    }

    #[test]
    fn half_of_it_is_not_left() {
        let dir = tempfile::tempdir().unwrap();
        let (old, new) = (dir.path().join("old"), dir.path().join("new"));
        std::fs::write(&old, "what was there").unwrap();
        for path in [&old, &new] {
            let filled = Output::open(path).unwrap().fill(|file| {
                file.write_all(b"half")?;
                Err(io::ErrorKind::StorageFull.into())
            });
            assert!(filled.is_err());
        }
        assert_eq!(std::fs::read_to_string(&old).unwrap(), "");
        assert!(!new.exists());
    }

    #[test]
    fn one_file_for_two_options_is_refused_by_whatever_name() {
        let dir = tempfile::tempdir().unwrap();
        let (one, other) = (dir.path().join("one"), dir.path().join("./one"));
        let (a, b) = (Output::open(&one).unwrap(), Output::open(&other).unwrap());
        let why = distinct(&[("--html", Some(&a)), ("--scenario", None), ("--json", Some(&b))]).unwrap_err();
        assert_eq!(why.to_string(), "--html and --json name the same file: give each one of its own");
        assert!(distinct(&[("--html", Some(&a))]).is_ok());
        let null = Path::new("/dev/null");
        let (a, b) = (Output::open(null).unwrap(), Output::open(null).unwrap());
        assert!(distinct(&[("--html", Some(&a)), ("--json", Some(&b))]).is_ok());
    }
}

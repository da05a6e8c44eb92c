//! Files of results: found writable before the work, opened again and written after it, for who moves one away meanwhile means to keep it.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use anyhow::{Context, Result, bail};
use corefit_linux::formats::MAX_BYTES;
use corefit_linux::launch::files_may_be_refused;
use rustix::fs::OFlags;
use rustix::io::Errno;

/// A file that could be written before the work, so that nothing is lost for a mistyped name. What stands in it stays until there is
/// something to write, and a new one is not made before.
pub(crate) struct Output<'a> {
    path: &'a Path,
    /// What is no regular file, or one that stdout or stderr goes to: whoever stands in for a program lets go of these.
    held: Option<File>,
    id: Option<Id>,
}

/// Which file it is: one that is there, or a name in a directory. None for pipes and terminals, where that does not matter.
#[derive(Debug, PartialEq, Eq)]
enum Id {
    File(u64, u64),
    New(u64, u64, OsString),
}

impl<'a> Output<'a> {
    /// # Errors
    /// If it cannot be written.
    pub(crate) fn open(path: &'a Path) -> Result<Output<'a>> {
        let there = path.metadata().ok();
        let pipe = there.as_ref().is_some_and(|file| file.file_type().is_fifo());
        let held = match open(path) {
            // Waiting for a reader would keep the work from starting.
            Err(why) if pipe && why.raw_os_error() == Some(Errno::NXIO.raw_os_error()) => None,
            opened => opened.and_then(held).with_context(|| cannot(path))?,
        };
        let id = match there {
            Some(file) => file.is_file().then(|| Id::File(file.dev(), file.ino())),
            None => {
                // Behind a link, too.
                let made = path.canonicalize().with_context(|| cannot(path))?;
                std::fs::remove_file(&made).with_context(|| cannot(path))?;
                let place = made.parent().and_then(|place| place.metadata().ok());
                let name = made.file_name().unwrap_or_default().to_owned();
                place.map(|place| Id::New(place.dev(), place.ino(), name))
            }
        };
        Ok(Output { path, held, id })
    }

    pub(crate) fn path(&self) -> &'a Path {
        self.path
    }

    /// Whether it is that regular file.
    pub(crate) fn is(&self, file: &Path) -> bool {
        let id = |file: std::fs::Metadata| Id::File(file.dev(), file.ino());
        self.id.is_some() && self.id == file.metadata().ok().map(id)
    }

    /// # Errors
    /// If not all of it can be written: then nothing is left of it, and what was there is there again, unless the error says that
    /// it is lost.
    pub(crate) fn write(self, bytes: &[u8]) -> Result<()> {
        self.fill(|file| file.write_all(bytes))
    }

    /// The same for who writes in parts.
    ///
    /// # Errors
    /// As [`Output::write`].
    pub(crate) fn fill(self, write: impl FnOnce(&mut File) -> io::Result<()>) -> Result<()> {
        files_may_be_refused();
        if let Some(mut file) = self.held {
            return write(&mut file).with_context(|| cannot(self.path));
        }
        let new = self.path.metadata().is_err();
        let mut lost = false;
        let written = open(self.path).and_then(|mut file| {
            let is = file.metadata()?;
            // Only a regular file has a length: not a pipe, nor a terminal.
            if !is.is_file() {
                return write(&mut file);
            }
            // What is as large as no result usually is, or cannot be read, is not kept.
            let mut before = Vec::new();
            let kept = is.len() <= MAX_BYTES
                && File::open(self.path).and_then(|mut file| file.read_to_end(&mut before)).is_ok();
            file.set_len(0)?;
            write(&mut file).inspect_err(|_| {
                // The same file, so that its links, owner and mode stay.
                let empty = file.set_len(0).and_then(|()| file.rewind());
                lost = is.len() > 0 && !(kept && empty.and_then(|()| file.write_all(&before)).is_ok());
                if lost {
                    let _ = file.set_len(0);
                }
            })
        });
        if new && written.is_err() {
            let _ = std::fs::remove_file(self.path);
        }
        let lost = if lost { ", and what was there is lost" } else { "" };
        written.with_context(|| cannot(self.path) + lost)
    }
}

/// What is to be held of an open file. What else goes to that of a stream, as `/dev/stdout` does, stays, and this comes behind it.
fn held(file: File) -> io::Result<Option<File>> {
    let is = file.metadata()?;
    if !is.is_file() {
        return Ok(Some(file));
    }
    let streams = [io::stdout().as_fd().try_clone_to_owned(), io::stderr().as_fd().try_clone_to_owned()];
    for stream in streams.into_iter().flatten().map(File::from) {
        let to = stream.metadata()?;
        if (to.dev(), to.ino()) == (is.dev(), is.ino()) {
            return Ok(Some(stream));
        }
    }
    Ok(None)
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
    let ids = || outputs.iter().filter_map(|(option, output)| Some((option, output.as_ref()?.id.as_ref()?)));
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
    fn a_file_keeps_what_it_has_until_it_is_written_and_a_new_one_is_not_made_before() {
        let dir = tempfile::tempdir().unwrap();
        let (old, new) = (dir.path().join("old"), dir.path().join("new"));
        std::fs::write(&old, "what was there").unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink("new", &link).unwrap();
        let kept = [&old, &new, &link].map(|path| Output::open(path).unwrap());
        assert_eq!(std::fs::read_to_string(&old).unwrap(), "what was there");
        assert!(!new.exists() && link.is_symlink());
        let [first, ..] = kept;
        let away = dir.path().join("away");
        std::fs::rename(&old, &away).unwrap();
        first.write(b"short").unwrap();
        assert_eq!(std::fs::read_to_string(&away).unwrap(), "what was there", "who moved it away keeps it");
        for path in [&old, &new] {
            Output::open(path).unwrap().write(b"short").unwrap();
            assert_eq!(std::fs::read_to_string(path).unwrap(), "short");
        }
        assert!(Output::open(dir.path()).is_err());
        let full = Output::open(Path::new("/dev/full")).unwrap().write(b"short").unwrap_err();
        assert!(full.to_string().starts_with("/dev/full: cannot be written"), "{full}");
    }

    #[test]
    fn half_of_it_is_not_left_and_what_was_there_is_there_again() {
        let dir = tempfile::tempdir().unwrap();
        let (old, new) = (dir.path().join("old"), dir.path().join("new"));
        std::fs::write(&old, "what was there").unwrap();
        let large = dir.path().join("large");
        File::create(&large).unwrap().set_len(MAX_BYTES + 1).unwrap();
        for path in [&old, &new, &large] {
            let filled = Output::open(path).unwrap().fill(|file| {
                file.write_all(b"half")?;
                Err(io::ErrorKind::StorageFull.into())
            });
            let lost =
                filled.unwrap_err().to_string().ends_with("cannot be written, and what was there is lost");
            assert_eq!(lost, path == &large);
        }
        assert_eq!(std::fs::read_to_string(&old).unwrap(), "what was there");
        assert!(!new.exists() && large.metadata().unwrap().len() == 0);
    }

    #[test]
    fn one_file_for_two_options_is_refused_by_whatever_name() {
        let dir = tempfile::tempdir().unwrap();
        let (one, other) = (dir.path().join("one"), dir.path().join("link"));
        std::os::unix::fs::symlink("one", &other).unwrap();
        let (a, b) = (Output::open(&one).unwrap(), Output::open(&other).unwrap());
        let why = distinct(&[("--html", Some(&a)), ("--scenario", None), ("--json", Some(&b))]).unwrap_err();
        assert_eq!(why.to_string(), "--html and --json name the same file: give each one of its own");
        assert!(distinct(&[("--html", Some(&a))]).is_ok());
        let null = Path::new("/dev/null");
        let (a, b) = (Output::open(null).unwrap(), Output::open(null).unwrap());
        assert!(distinct(&[("--html", Some(&a)), ("--json", Some(&b))]).is_ok());
    }
}

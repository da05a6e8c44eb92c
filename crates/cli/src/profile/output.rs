//! Files that a command writes in the end, found writable at its start.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use anyhow::{Context, Result, bail};

/// A file opened before the program runs, so that nothing is lost for a mistyped name. What stands in it stays until there is
/// something to write; if there never is, a new one is removed.
pub(super) struct Output<'a> {
    path: &'a Path,
    file: File,
    /// It was not there before.
    new: bool,
}

impl<'a> Output<'a> {
    pub(super) fn open(path: &'a Path) -> Result<Output<'a>> {
        let new = path.symlink_metadata().is_err();
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(path);
        let file = file.with_context(|| format!("{}: cannot be written", path.display()))?;
        Ok(Output { path, file, new })
    }

    /// The program has run. Whether all was written; if not, that is told.
    #[must_use]
    pub(super) fn write(mut self, text: &str) -> bool {
        self.new = false;
        // Only a regular file has a length: not a pipe, nor a terminal.
        let emptied = if self.is_regular() { self.file.set_len(0) } else { Ok(()) };
        let written = emptied.and_then(|()| self.file.write_all(text.as_bytes()));
        if let Err(why) = &written {
            tell!("corefit: {}: cannot be written: {why}", self.path.display());
        }
        written.is_ok()
    }

    fn is_regular(&self) -> bool {
        self.file.metadata().is_ok_and(|file| file.is_file())
    }

    /// Which file it is, if that matters.
    fn id(&self) -> Option<(u64, u64)> {
        self.file.metadata().ok().filter(std::fs::Metadata::is_file).map(|file| (file.dev(), file.ino()))
    }
}

impl Drop for Output<'_> {
    fn drop(&mut self) {
        if self.new {
            let _ = std::fs::remove_file(self.path);
        }
    }
}

/// No two of these options may name the same file.
pub(super) fn distinct(outputs: &[(&str, Option<&Output<'_>>)]) -> Result<()> {
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
            assert!(Output::open(path).unwrap().write("short"));
            assert_eq!(std::fs::read_to_string(path).unwrap(), "short");
        }
        assert!(Output::open(dir.path()).is_err());
        assert!(!Output::open(Path::new("/dev/full")).unwrap().write("short"));
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

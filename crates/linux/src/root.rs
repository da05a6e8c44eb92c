//! Where the files of a machine are: at `/`, or in a captured tree.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use corefit_core::Time;
use corefit_core::machine::MachineError;

use crate::bytes;
use crate::formats::short;

/// A shorter read than this is the end of a file: the kernel fills a page (4 KiB or more) line
/// by line, and stops short of that only for a line that does not fit. Saves a call per file. Not so of `mountinfo`, whose
/// lines may be that long: an overlay names all its layers.
pub(crate) const WHOLE: usize = 1024;

/// A directory that stands for `/`, so that every reader works on captured trees as well.
///
/// A captured tree holds `proc` and `sys` of one instant; its clock is its `proc/uptime`.
#[derive(Clone, Debug)]
pub struct Root {
    /// Looked through in this order.
    layers: Vec<PathBuf>,
    /// What is no more, though a layer below has it.
    gone: Vec<String>,
    live: bool,
}

/// Why a file of the machine could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// There is no such file: the kernel or the mount does not offer it.
    #[error("{path}: no such file")]
    Unsupported {
        /// The file.
        path: String,
    },
    /// What the file told about has ended.
    #[error("{path}: gone (the process or group ended)")]
    Gone {
        /// The file.
        path: String,
    },
    /// Not allowed.
    #[error("{path}: permission denied")]
    Denied {
        /// The file.
        path: String,
    },
    /// The text is not what the file should hold.
    #[error("{path}, {place}: {text:?} is no {want}")]
    Malformed {
        /// The file.
        path: String,
        /// The line.
        place: String,
        /// What is there, cut to a readable length.
        text: String,
        /// What should be there.
        want: &'static str,
    },
    /// Another error of the operating system.
    #[error("{path}: {why}")]
    Io {
        /// The file.
        path: String,
        /// What the system says.
        why: String,
    },
}

/// The same for a whole machine: what could not be read at all counts as gone.
impl From<ReadError> for MachineError {
    fn from(error: ReadError) -> MachineError {
        let text = error.to_string();
        match error {
            ReadError::Unsupported { .. } => MachineError::Unsupported(text),
            ReadError::Gone { .. } | ReadError::Io { .. } => MachineError::Gone(text),
            ReadError::Denied { .. } => MachineError::Denied(text),
            ReadError::Malformed { .. } => MachineError::Malformed(text),
        }
    }
}

impl ReadError {
    /// A text in line `line` (from 1) that is no `want`.
    pub(crate) fn malformed(path: &str, line: usize, text: &str, want: &'static str) -> ReadError {
        ReadError::Malformed { path: path.into(), place: format!("line {line}"), text: short(text), want }
    }

    pub(crate) fn from_io(path: &str, error: &io::Error) -> ReadError {
        const ESRCH: i32 = rustix::io::Errno::SRCH.raw_os_error();
        const ENODEV: i32 = rustix::io::Errno::NODEV.raw_os_error();
        let path = path.to_owned();
        match (error.kind(), error.raw_os_error()) {
            (_, Some(ESRCH | ENODEV)) => ReadError::Gone { path },
            (io::ErrorKind::NotFound | io::ErrorKind::NotADirectory, _) => ReadError::Unsupported { path },
            (io::ErrorKind::PermissionDenied, _) => ReadError::Denied { path },
            _ => ReadError::Io { path, why: error.to_string() },
        }
    }

    /// Whether there is nothing there to read: no such file, or ended meanwhile.
    pub(crate) fn is_absent(&self) -> bool {
        matches!(self, ReadError::Unsupported { .. } | ReadError::Gone { .. })
    }

    /// The file that it is about.
    #[must_use]
    pub fn path(&self) -> &str {
        let (ReadError::Unsupported { path }
        | ReadError::Gone { path }
        | ReadError::Denied { path }
        | ReadError::Malformed { path, .. }
        | ReadError::Io { path, .. }) = self;
        path
    }

    /// What is wrong, without the path.
    pub(crate) fn why(&self) -> String {
        let text = self.to_string();
        text.strip_prefix(self.path()).unwrap_or(&text).trim_start_matches([':', ',', ' ']).into()
    }
}

impl Root {
    /// This machine.
    #[must_use]
    pub fn live() -> Root {
        Root { layers: vec!["/".into()], gone: Vec::new(), live: true }
    }

    /// A captured tree.
    #[must_use]
    pub fn at(dir: &Path) -> Root {
        Root { layers: vec![dir.into()], gone: Vec::new(), live: false }
    }

    /// A captured tree of which `changed` holds only the files that differ from `base`, and
    /// in a file `gone` the paths of `base` that are no more, one a line.
    #[must_use]
    pub fn overlay(changed: &Path, base: &Path) -> Root {
        let gone = std::fs::read_to_string(changed.join("gone")).unwrap_or_default();
        let gone = gone.lines().filter(|line| !line.is_empty()).map(Into::into).collect();
        Root { layers: vec![changed.into(), base.into()], gone, live: false }
    }

    /// Whether this is the machine itself.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.live
    }

    /// The whole text of a file; bytes that are no UTF-8 are as in [`crate::bytes::text`].
    ///
    /// # Errors
    /// All but [`ReadError::Malformed`].
    pub fn read(&self, path: &str) -> Result<String, ReadError> {
        let fail = |error: io::Error| ReadError::from_io(path, &error);
        let file = File::open(self.locate(path)).map_err(fail)?;
        let text = all_of(file, if path.ends_with("/mountinfo") { 1 } else { WHOLE }).map_err(fail)?;
        Ok(bytes::text(text))
    }

    /// The names of the directories in a directory, sorted.
    ///
    /// # Errors
    /// All but [`ReadError::Malformed`].
    pub fn dirs(&self, path: &str) -> Result<Vec<String>, ReadError> {
        let fail = |error: io::Error| ReadError::from_io(path, &error);
        let (mut names, mut is_there) = (Vec::new(), false);
        for dir in self.layers.iter().map(|dir| below(dir, path)).filter(|_| !self.is_gone(path)) {
            let entries = match std::fs::read_dir(dir).map_err(fail) {
                Err(error) if error.is_absent() => continue,
                entries => entries?,
            };
            is_there = true;
            for entry in entries {
                let entry = entry.map_err(fail)?;
                if entry.file_type().map_err(fail)?.is_dir() {
                    names.push(bytes::text(entry.file_name().into_vec()));
                }
            }
        }
        if !is_there {
            return Err(fail(io::ErrorKind::NotFound.into()));
        }
        names.retain(|name| !self.is_gone(&format!("{path}/{name}")));
        names.sort();
        names.dedup();
        Ok(names)
    }

    /// Opens a file of this machine to be kept open; of a captured tree as well.
    pub(crate) fn open(&self, path: &str) -> Result<File, ReadError> {
        File::open(self.locate(path)).map_err(|error| ReadError::from_io(path, &error))
    }

    /// What tells a directory of this machine from a later one of the same name. In captured trees all are alike.
    pub(crate) fn inode(&self, path: &str) -> Result<u64, ReadError> {
        let found = std::fs::metadata(self.locate(path)).map_err(|error| ReadError::from_io(path, &error))?;
        Ok(if self.live { found.ino() } else { 0 })
    }

    /// When a file of this machine was written last; `None` of captured trees, whose files are copies.
    pub(crate) fn modified(&self, path: &str) -> Option<std::time::SystemTime> {
        let file = std::fs::metadata(self.locate(path)).ok().filter(|_| self.live)?;
        file.modified().ok()
    }

    /// Writes a file of the kernel, in one call.
    pub(crate) fn write(&self, path: &str, text: &str) -> io::Result<()> {
        use std::io::Write as _;
        File::options().write(true).open(self.locate(path))?.write_all(text.as_bytes())
    }

    /// Whether there is such a file or directory.
    #[must_use]
    pub fn has(&self, path: &str) -> bool {
        self.locate(path).exists()
    }

    /// The time since boot.
    ///
    /// # Errors
    /// Of a captured tree, where `proc/uptime` is missing or malformed.
    pub fn now(&self) -> Result<Time, ReadError> {
        if self.live {
            return Ok(crate::sample::now());
        }
        let path = "/proc/uptime";
        let text = self.read(path)?;
        let seconds = text.split_whitespace().next().and_then(|s| s.parse::<f64>().ok());
        let since_boot = seconds.and_then(|s| Duration::try_from_secs_f64(s).ok());
        let since_boot = since_boot
            .ok_or_else(|| ReadError::malformed(path, 1, text.trim(), "time since boot in seconds"))?;
        Ok(Time(0) + since_boot)
    }

    fn locate(&self, path: &str) -> PathBuf {
        let mut layers = self.layers.iter().map(|dir| below(dir, path));
        match layers.len() {
            1 => layers.next(),
            _ if self.is_gone(path) => layers.next(),
            _ => layers.find(|file| file.exists()),
        }
        .unwrap_or_else(|| below(&self.layers[0], path))
    }

    fn is_gone(&self, path: &str) -> bool {
        let gone = |gone: &String| {
            path.strip_prefix(gone.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        self.gone.iter().any(gone)
    }
}

/// What there is to read up to the end, which a piece below so many bytes is.
fn all_of(mut file: impl Read, whole: usize) -> io::Result<Vec<u8>> {
    let (mut all, mut buffer) = (Vec::new(), [0; 8192]);
    loop {
        match file.read(&mut buffer) {
            Ok(n) => {
                all.extend_from_slice(&buffer[..n]);
                if n < whole {
                    return Ok(all);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

fn below(dir: &Path, path: &str) -> PathBuf {
    dir.join(bytes::path(path.trim_start_matches('/')))
}

/// The first line of a file, through `parse`.
pub(crate) fn value<T>(
    root: &Root,
    path: &str,
    want: &'static str,
    parse: impl Fn(&str) -> Option<T>,
) -> Result<T, ReadError> {
    let text = root.read(path)?;
    let line = text.lines().next().unwrap_or("").trim();
    parse(line).ok_or_else(|| ReadError::malformed(path, 1, line, want))
}

/// `None` for a file that is not there.
pub(crate) fn optional<T>(result: Result<T, ReadError>) -> Result<Option<T>, ReadError> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.is_absent() => Ok(None),
        Err(error) => Err(error),
    }
}

/// Files for tests.
#[cfg(test)]
pub(crate) mod testing {
    use std::fs;
    use std::path::Path;

    use super::Root;

    /// Writes a file, and makes the directories above it.
    pub(crate) fn put(dir: &Path, path: &str, text: &str) {
        let path = dir.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// A directory with these files.
    pub(crate) fn tree(files: &[(&str, &str)]) -> (tempfile::TempDir, Root) {
        let dir = tempfile::tempdir().unwrap();
        files.iter().for_each(|(path, text)| put(dir.path(), path, text));
        let root = Root::at(dir.path());
        (dir, root)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_did_not_fit_beside_short_ones_is_read_where_there_may_be_such() {
        // As the kernel gives them: a short piece, as the next line does not fit into the page.
        struct Pieces(Vec<usize>);
        impl Read for Pieces {
            fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
                let length = self.0.pop().unwrap_or(0);
                to[..length].fill(b'x');
                Ok(length)
            }
        }
        let pieces = || Pieces(vec![100, 3500, 900]);
        assert_eq!(all_of(pieces(), 1).unwrap().len(), 4500);
        assert_eq!(all_of(pieces(), WHOLE).unwrap().len(), 900, "a call less");
    }

    #[test]
    fn a_missing_file_and_a_forbidden_directory_are_told_apart() {
        let dir = tempfile::tempdir().unwrap();
        let root = Root::at(dir.path());
        assert_eq!(root.read("/sys/x"), Err(ReadError::Unsupported { path: "/sys/x".into() }));
        let denied = io::Error::from(io::ErrorKind::PermissionDenied);
        assert_eq!(ReadError::from_io("/a", &denied), ReadError::Denied { path: "/a".into() });
    }

    #[test]
    fn a_name_that_is_no_utf_8_is_listed_and_found_again() {
        use std::ffi::OsStr;
        use std::os::unix::ffi::OsStrExt;
        let dir = tempfile::tempdir().unwrap();
        let name = OsStr::from_bytes(b"b\xffx");
        std::fs::create_dir(dir.path().join(name)).unwrap();
        std::fs::write(dir.path().join(name).join("in"), b"/rvst/b\xffx\n").unwrap();
        let root = Root::at(dir.path());
        let names = root.dirs("/").unwrap();
        let [name] = &names[..] else { panic!("{names:?}") };
        assert_eq!(root.read(&format!("/{name}/in")).unwrap(), format!("/rvst/{name}\n"));
        assert!(root.has(&format!("/{name}")) && root.inode(&format!("/{name}")).is_ok());
    }

    #[test]
    fn a_malformed_value_is_quoted_with_its_file_and_line_and_cut_short() {
        let error = ReadError::malformed("/a/b", 3, &"x".repeat(100), "quota");
        let text = format!("/a/b, line 3: \"{}...\" is no quota", "x".repeat(60));
        assert_eq!(error.to_string(), text);
        assert!(error.why().starts_with("line 3: \"xxx"));
    }

    #[test]
    fn the_clock_of_a_captured_tree_is_its_uptime() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("proc")).unwrap();
        std::fs::write(dir.path().join("proc/uptime"), "12.5 20.0\n").unwrap();
        assert_eq!(Root::at(dir.path()).now().unwrap(), Time(12_500_000_000));
        std::fs::write(dir.path().join("proc/uptime"), "-1\n").unwrap();
        assert!(matches!(Root::at(dir.path()).now(), Err(ReadError::Malformed { .. })));
    }

    #[test]
    fn an_overlay_shows_changed_files_and_the_others_of_the_base() {
        let (base, changed) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for (dir, name) in [(&base, "a"), (&base, "b"), (&changed, "b"), (&changed, "c")] {
            std::fs::create_dir(dir.path().join(name)).unwrap();
        }
        std::fs::write(base.path().join("a/x"), "old").unwrap();
        std::fs::write(base.path().join("b/x"), "old").unwrap();
        std::fs::write(changed.path().join("b/x"), "new").unwrap();
        std::fs::create_dir(base.path().join("bb")).unwrap();
        std::fs::create_dir(base.path().join("d")).unwrap();
        std::fs::write(changed.path().join("gone"), "/bb\n").unwrap();
        let root = Root::overlay(changed.path(), base.path());
        assert_eq!(root.dirs("").unwrap(), ["a", "b", "c", "d"]);
        assert!(!root.has("/bb") && root.dirs("/bb").is_err() && root.has("/d"));
        assert_eq!(
            (root.read("/a/x").unwrap().as_str(), root.read("/b/x").unwrap().as_str()),
            ("old", "new")
        );
    }
}

//! Finding a program, with the answers a shell gives: 127 for what is not there, 126
//! for what cannot be executed.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags};

use super::format::{self, Format, Kind, ScriptLine};
use super::runtime::Runtime;

/// Where execvp(3) looks when `PATH` is not set (glibc's `_CS_PATH`).
const DEFAULT_SEARCH: &str = "/bin:/usr/bin";

/// How many `#!` interpreters the kernel follows before it gives up with ELOOP (fs/exec.c).
const MAX_INTERPRETERS: usize = 5;

/// A program that can be executed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// The name as given; the program gets it as its argv\[0\].
    pub given: OsString,
    /// The file to execute.
    pub path: PathBuf,
    /// What kind of file it is.
    pub kind: Kind,
    /// The runtimes it looks like, by its own name, its libraries and its interpreter.
    pub runtimes: BTreeSet<Runtime>,
}

/// Why a program cannot be executed. Each prints as one line for the user.
#[derive(Debug, thiserror::Error)]
pub enum FindError {
    /// An empty name.
    #[error("the program's name is empty: give the program to start")]
    NoName,
    /// A name without a slash that is in no directory of `PATH`.
    #[error("{}: command not found in PATH", .0.display())]
    NotInPath(OsString),
    /// No such file.
    #[error("{}: no such file", .0.display())]
    NoFile(PathBuf),
    /// The file is there, but not what has to run it.
    #[error("{}: its {what} {} does not exist", path.display(), needed.display())]
    NoInterpreter {
        /// The program.
        path: PathBuf,
        /// "interpreter" of a script or "loader" of an ELF program.
        what: &'static str,
        /// What is missing.
        needed: PathBuf,
    },
    /// A directory.
    #[error("{}: is a directory", .0.display())]
    Directory(PathBuf),
    /// No right to execute it: no x bit, a noexec mount, a directory on the way.
    #[error("{}: permission denied: {why}", path.display())]
    Denied {
        /// The program.
        path: PathBuf,
        /// What forbids it.
        why: String,
    },
    /// Not a file that can be executed.
    #[error("{}: cannot be executed: {why}", path.display())]
    Malformed {
        /// The program.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
}

impl FindError {
    /// The exit code that a shell gives for this: 127 or 126.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            FindError::NoName
            | FindError::NotInPath(_)
            | FindError::NoFile(_)
            | FindError::NoInterpreter { .. } => 127,
            _ => 126,
        }
    }
}

impl Program {
    /// Finds `name` as execvp(3) does, with the `PATH` of this process.
    ///
    /// # Errors
    /// When a shell would fail to start it as well.
    pub fn find(name: &OsStr) -> Result<Program, FindError> {
        Program::find_in(name, std::env::var_os("PATH").as_deref())
    }

    /// Finds `name` as execvp(3) does, searching the colon-separated directories of
    /// `search` (unset: `/bin:/usr/bin`; an empty part: the current directory).
    /// A name with a slash is a path.
    ///
    /// # Errors
    /// When a shell would fail to start it as well.
    pub fn find_in(name: &OsStr, search: Option<&OsStr>) -> Result<Program, FindError> {
        let path = locate(name, search)?;
        identify(name, path, search, 0)
    }

    /// Whether the preload library can enter the program; if not, a sentence that says why.
    ///
    /// # Errors
    /// The reason.
    pub fn preloadable(&self) -> Result<(), String> {
        self.kind.preloadable()
    }
}

/// The file that `name` means. As in bash, a name in `PATH` that is no executable file
/// is passed over, and reported only when nothing better follows.
fn locate(name: &OsStr, search: Option<&OsStr>) -> Result<PathBuf, FindError> {
    if name.is_empty() {
        return Err(FindError::NoName);
    }
    if name.as_bytes().contains(&b'/') {
        let path = PathBuf::from(name);
        executable(&path)?;
        return Ok(path);
    }
    let mut denied = None;
    let search = search.unwrap_or(OsStr::new(DEFAULT_SEARCH));
    for directory in search.as_bytes().split(|&b| b == b':') {
        let path = Path::new(OsStr::from_bytes(directory)).join(name);
        match executable(&path) {
            Ok(()) => return Ok(path),
            // A file without an x bit; a directory that cannot be searched is passed over.
            Err(why @ FindError::Denied { .. }) if path.is_file() => {
                denied.get_or_insert(why);
            }
            Err(_) => {}
        }
    }
    Err(denied.unwrap_or_else(|| FindError::NotInPath(name.to_os_string())))
}

/// Whether `path` is a file that we may execute.
fn executable(path: &Path) -> Result<(), FindError> {
    let denied = |why: &str| FindError::Denied { path: path.into(), why: why.into() };
    let meta = std::fs::metadata(path).map_err(|why| match why.kind() {
        io::ErrorKind::NotFound => FindError::NoFile(path.into()),
        io::ErrorKind::PermissionDenied => denied("a directory on the way cannot be searched"),
        _ => FindError::Malformed { path: path.into(), why: why.to_string() },
    })?;
    if meta.is_dir() {
        return Err(FindError::Directory(path.into()));
    }
    if !meta.is_file() {
        return Err(denied("it is no regular file"));
    }
    // EACCESS: by our effective rights, as execve judges. Any other answer than "denied"
    // (an old sandbox does not know the call) leaves the judgement to execve.
    match rustix::fs::accessat(rustix::fs::CWD, path, Access::EXEC_OK, AtFlags::EACCESS) {
        Err(rustix::io::Errno::ACCESS) => {}
        _ => return Ok(()),
    }
    let noexec = rustix::fs::statvfs(path).is_ok_and(|fs| fs.f_flag.bits() & libc::ST_NOEXEC != 0);
    Err(denied(if noexec { "its file system is mounted noexec" } else { "it is not executable" }))
}

/// Tells what the file at `path` is, following `#!` interpreters.
fn identify(name: &OsStr, path: PathBuf, search: Option<&OsStr>, depth: usize) -> Result<Program, FindError> {
    let mut runtimes: BTreeSet<Runtime> = names(name, &path).collect();
    let kind = match open(&path) {
        Err(_) => Kind::Unreadable,
        Ok(mut file) => match format::of_file(&mut file, &path) {
            Err(_) => Kind::Unreadable,
            Ok(Format::Other(kind)) => kind,
            Ok(Format::Script(line)) => {
                let interpreter = interpreter(&path, &line, search, depth)?;
                runtimes.extend(&interpreter.runtimes);
                Kind::Script(Box::new(interpreter))
            }
            Ok(Format::Elf { kind, loader, runtimes: found }) => {
                if let Some(needed) = loader.filter(|loader| !loader.exists()) {
                    return Err(FindError::NoInterpreter { path, what: "loader", needed });
                }
                runtimes.extend(found);
                format::privilege(&file).map_or(kind, Kind::Privileged)
            }
        },
    };
    Ok(Program { given: name.to_os_string(), path, kind, runtimes })
}

/// The runtimes that the program's name tells: as given, and the file behind symbolic
/// links (`/usr/bin/java` is `/usr/lib/jvm/…/bin/java`).
fn names(name: &OsStr, path: &Path) -> impl Iterator<Item = Runtime> {
    let given = Path::new(name).file_name().and_then(Runtime::of_program);
    let real = path.canonicalize().ok();
    let real = real.and_then(|path| path.file_name().and_then(Runtime::of_program));
    given.into_iter().chain(real)
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)
}

/// The program that runs a script.
fn interpreter(
    script: &Path,
    line: &ScriptLine,
    search: Option<&OsStr>,
    depth: usize,
) -> Result<Program, FindError> {
    let malformed = |why: &str| FindError::Malformed { path: script.into(), why: why.into() };
    if depth == MAX_INTERPRETERS {
        return Err(malformed("its interpreters are scripts, too many levels deep"));
    }
    executable(&line.interpreter).map_err(|why| match why {
        FindError::NoFile(needed) => {
            FindError::NoInterpreter { path: script.into(), what: "interpreter", needed }
        }
        why => FindError::Denied { path: script.into(), why: format!("its interpreter {why}") },
    })?;
    // `#!/usr/bin/env X`: what matters is X. If X is missing, env says so when it runs.
    if line.interpreter.file_name() == Some(OsStr::new("env")) {
        let found = env_target(line.argument.as_deref().unwrap_or_default())
            .and_then(|name| Some((locate(&name, search).ok()?, name)));
        if let Some((path, name)) = found {
            return identify(&name, path, search, depth + 1);
        }
    }
    identify(line.interpreter.as_os_str(), line.interpreter.clone(), search, depth + 1)
}

/// The program in the argument of `#!/usr/bin/env`: past options and assignments.
/// Options with a separate value occur only behind -S, and rarely: they find nothing.
fn env_target(argument: &[u8]) -> Option<OsString> {
    let split = argument.strip_prefix(b"-S").or_else(|| argument.strip_prefix(b"-vS"));
    let mut words = match split {
        Some(rest) => rest.split(|b: &u8| b.is_ascii_whitespace()).collect(),
        None => vec![argument],
    }
    .into_iter();
    let word = words.find(|word| !word.is_empty() && !word.starts_with(b"-") && !word.contains(&b'='))?;
    Some(OsString::from_vec(word.to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn env_runs_its_first_word_that_is_neither_option_nor_assignment() {
        let target = |text: &str| env_target(text.as_bytes());
        assert_eq!(target("python3"), Some("python3".into()));
        assert_eq!(target("-S python3 -u"), Some("python3".into()));
        assert_eq!(target("-S OMP_NUM_THREADS=2 -i julia --threads=4"), Some("julia".into()));
        assert_eq!(target("-i"), None);
        assert_eq!(target(""), None);
    }
}

//! Starting the program: fork, restore what corefit inherited, exec.

use std::ffi::{CString, OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

use corefit_core::CpuSet;

use super::format::Kind;
use super::inherited::Inherited;
use super::program::Program;
use crate::affinity::Mask;

/// The shell that runs a text without `#!`, as in execvp(3).
const SHELL: &std::ffi::CStr = c"/bin/sh";

/// What to start and how.
#[derive(Clone, Debug)]
pub struct Launch {
    /// The program; its argv\[0\] is [`Program::given`].
    pub program: Program,
    /// Its arguments after argv\[0\].
    pub args: Vec<OsString>,
    /// Changes to the environment of this process: a value to set, or None to remove.
    pub env: Vec<(OsString, Option<OsString>)>,
    /// The CPUs that the program may use; None leaves the affinity as it is.
    pub cpus: Option<CpuSet>,
    /// Keep our own stdin and stdout after the start. A program that is to be started
    /// again needs them. Otherwise ours become `/dev/null`, so that the other end of a
    /// pipe notices when the program closes its end. (stderr always stays.)
    pub hold_stdio: bool,
}

/// Why the program was not started. Each prints as one line for the user.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// The kernel does not execute this file.
    #[error("{program}: cannot be executed: {why}")]
    Exec {
        /// Its path.
        program: String,
        /// The kernel's answer, in words.
        why: String,
        /// 127 when something it needs is not there, else 126.
        exit_code: u8,
    },
    /// The affinity cannot be set, for instance because none of the CPUs is allowed.
    #[error("cannot run on CPUs {cpus}: {why}")]
    Affinity {
        /// The CPUs asked for.
        cpus: CpuSet,
        /// The kernel's answer.
        why: io::Error,
    },
    /// No process could be started, for instance because of a limit.
    #[error("cannot start a process: {0}")]
    Process(io::Error),
    /// Before the program was there, or while it was being restarted, a signal came that
    /// ends it (SIGINT, SIGTERM, SIGHUP or SIGQUIT): end like a death by this signal.
    #[error("ended by signal {0} before the program was started")]
    Interrupted(i32),
}

impl LaunchError {
    /// The exit code that a shell gives for this; for [`LaunchError::Interrupted`] the
    /// code that a shell shows for a death by that signal.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            LaunchError::Exec { exit_code, .. } => *exit_code,
            LaunchError::Affinity { .. } | LaunchError::Process(_) => 126,
            LaunchError::Interrupted(signal) => 128u8.saturating_add(u8::try_from(*signal).unwrap_or(0)),
        }
    }
}

/// Starts the program as a child of this process and returns its number.
pub(super) fn spawn(launch: &Launch) -> Result<libc::pid_t, LaunchError> {
    let image = Image::of(launch).map_err(LaunchError::Process)?;
    let inherited = Inherited::recorded();
    let mut command = Command::new(&launch.program.path);
    // The standard library has reset the mask and SIGPIPE by the time this runs; it only
    // lends its fork and its way of reporting errors, and never comes to its own exec.
    // SAFETY: the closure only makes async-signal-safe system calls and does not allocate.
    unsafe {
        command.pre_exec(move || {
            inherited.restore()?;
            Err(image.execute())
        });
    }
    let child = with_affinity(launch.cpus.as_ref(), || command.spawn())?;
    let child = child.map_err(|why| exec_error(launch, why))?;
    Ok(child.id().cast_signed())
}

/// Runs `fork` while this thread has the affinity that its child is to inherit.
fn with_affinity<T>(cpus: Option<&CpuSet>, fork: impl FnOnce() -> T) -> Result<T, LaunchError> {
    let Some(cpus) = cpus else { return Ok(fork()) };
    let failed = |why: io::Error| LaunchError::Affinity { cpus: cpus.clone(), why };
    let before = Mask::of(0).map_err(failed)?;
    Mask::from(cpus).set(0).map_err(failed)?;
    let result = fork();
    before.set(0).map_err(failed)?;
    Ok(result)
}

/// Everything that exec needs, prepared before the fork, as the child must not allocate.
struct Image {
    path: CString,
    argv: Strings,
    /// `/bin/sh PATH ARGS`, for a text without `#!`.
    shell_argv: Option<Strings>,
    envp: Strings,
}

impl Image {
    fn of(launch: &Launch) -> io::Result<Image> {
        let Launch { program, args, .. } = launch;
        let args = || args.iter().map(OsString::as_os_str);
        let name = program.given.as_os_str();
        let shell_argv = match program.kind {
            Kind::ShellText => {
                let shell = OsStr::from_bytes(SHELL.to_bytes());
                Some(Strings::new([shell, program.path.as_os_str()].into_iter().chain(args()))?)
            }
            _ => None,
        };
        Ok(Image {
            path: CString::new(program.path.as_os_str().as_bytes())?,
            argv: Strings::new([name].into_iter().chain(args()))?,
            shell_argv,
            envp: environment(&launch.env)?,
        })
    }

    /// Executes; returns only the error. Async-signal-safe.
    fn execute(&self) -> io::Error {
        // SAFETY: path, argv and envp are NUL-terminated, both arrays end with null, and
        // all live as long as self.
        unsafe { libc::execve(self.path.as_ptr(), self.argv.as_ptr(), self.envp.as_ptr()) };
        let error = io::Error::last_os_error();
        match &self.shell_argv {
            Some(argv) if error.raw_os_error() == Some(libc::ENOEXEC) => {
                // SAFETY: as above.
                unsafe { libc::execve(SHELL.as_ptr(), argv.as_ptr(), self.envp.as_ptr()) };
                io::Error::last_os_error()
            }
            _ => error,
        }
    }
}

/// A null-terminated array of C strings.
struct Strings {
    /// Owns what `pointers` points at.
    _strings: Vec<CString>,
    pointers: Vec<*const libc::c_char>,
}

// SAFETY: the pointers lead to the heap blocks of the strings beside them, which are
// never changed, so any thread may read them.
unsafe impl Send for Strings {}
// SAFETY: as above.
unsafe impl Sync for Strings {}

impl Strings {
    fn new<'a>(strings: impl Iterator<Item = &'a OsStr>) -> io::Result<Strings> {
        let strings = strings.map(|s| CString::new(s.as_bytes())).collect::<Result<Vec<_>, _>>()?;
        let pointers = strings.iter().map(|s| s.as_ptr()).chain([std::ptr::null()]).collect();
        Ok(Strings { _strings: strings, pointers })
    }

    fn as_ptr(&self) -> *const *const libc::c_char {
        self.pointers.as_ptr()
    }
}

/// Our environment with the changes: everything else in the same order.
fn environment(changes: &[(OsString, Option<OsString>)]) -> io::Result<Strings> {
    let changed = |name: &OsStr| changes.iter().any(|(n, _)| n == name);
    let mut entries: Vec<OsString> = Vec::new();
    let mut add = |name: &OsStr, value: &OsStr| {
        let mut entry = name.to_os_string();
        entry.push("=");
        entry.push(value);
        entries.push(entry);
    };
    for (name, value) in std::env::vars_os().filter(|(name, _)| !changed(name)) {
        add(&name, &value);
    }
    for (at, (name, value)) in changes.iter().enumerate() {
        // The last change of a name counts.
        let last = changes[at + 1..].iter().all(|(later, _)| later != name);
        if let Some(value) = value.as_ref().filter(|_| last) {
            add(name, value);
        }
    }
    Strings::new(entries.iter().map(OsString::as_os_str))
}

/// What a failed start means. The standard library reports errors of fork and of exec
/// alike; those that only fork has are about resources.
fn exec_error(launch: &Launch, why: io::Error) -> LaunchError {
    let what = match why.raw_os_error() {
        Some(libc::EAGAIN | libc::ENOMEM) | None => return LaunchError::Process(why),
        Some(libc::ENOEXEC) => match &launch.program.kind {
            Kind::OtherArch(machine) => {
                format!("built for another architecture (ELF machine {machine}), and no emulator")
            }
            Kind::Elf32 => "a 32-bit program, which this kernel does not run".into(),
            _ => "not in a format that this kernel knows".into(),
        },
        Some(libc::E2BIG) => "argument list and environment too long".into(),
        Some(libc::ETXTBSY) => "the file is open for writing".into(),
        _ => why.to_string(),
    };
    LaunchError::Exec {
        program: launch.program.path.display().to_string(),
        why: what,
        exit_code: if why.kind() == io::ErrorKind::NotFound { 127 } else { 126 },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_change_of_a_variable_counts_and_none_removes() {
        let change = |name: &str, value: Option<&str>| (name.into(), value.map(OsString::from));
        let env = environment(&[
            change("COREFIT_A", Some("1")),
            change("PATH", None),
            change("COREFIT_A", Some("2")),
        ])
        .unwrap();
        let has = |entry: &str| env._strings.iter().any(|e| e.as_bytes() == entry.as_bytes());
        assert!(has("COREFIT_A=2") && !has("COREFIT_A=1"));
        assert!(!env._strings.iter().any(|e| e.as_bytes().starts_with(b"PATH=")));
    }
}

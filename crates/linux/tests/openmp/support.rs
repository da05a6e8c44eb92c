//! What the tests of the preload library share: building it and small programs, playing corefit's
//! part, and talking to a program.

#[path = "../build_support/mod.rs"]
mod build_support;

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::OnceLock;

pub(crate) use build_support::{PATIENCE, eventually, skipped};
use corefit_linux::page::{Orders, Process, TeamPage};

/// Every region may be resized, to this size.
pub(crate) fn team(n: u16) -> Orders {
    Orders { team: Some(n), any: true, ..Orders::default() }
}

/// Orders that change nothing but make the process count its regions.
pub(crate) fn count() -> Orders {
    Orders { count: true, ..Orders::default() }
}

/// A page whose processes get `policy` at once and are not kept waiting.
pub(crate) fn page(policy: Orders) -> TeamPage {
    TeamPage::create(policy, false, None, 1).unwrap()
}

/// The two runtimes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Omp {
    /// gcc with libgomp.
    Gnu,
    /// clang with libomp.
    Llvm,
}

impl Omp {
    /// Those that can be used here; the others are named on stderr.
    pub(crate) fn all() -> &'static [Omp] {
        static ALL: OnceLock<Vec<Omp>> = OnceLock::new();
        ALL.get_or_init(|| [Omp::Gnu, Omp::Llvm].into_iter().filter(|o| o.is_here()).collect())
    }

    /// Whether its compiler is installed; says so if not.
    pub(crate) fn is_here(self) -> bool {
        static HERE: OnceLock<[bool; 2]> = OnceLock::new();
        HERE.get_or_init(|| {
            [Omp::Gnu, Omp::Llvm].map(|omp| {
                let works = omp.try_out();
                if !works {
                    let compiler = omp.compiler();
                    skipped(
                        &format!("programs built by {compiler}"),
                        &format!("{compiler} -fopenmp does not work"),
                    );
                }
                works
            })
        })[self as usize]
    }

    pub(crate) fn compiler(self) -> &'static str {
        match self {
            Omp::Gnu => "gcc",
            Omp::Llvm => "clang",
        }
    }

    fn try_out(self) -> bool {
        let file = scratch().join(format!("try_{}", self.compiler()));
        let mut child = match Command::new(self.compiler())
            .args(["-fopenmp", "-x", "c", "-", "-o"])
            .arg(file)
            .stdin(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
        {
            Ok(child) => child,
            Err(_) => return false,
        };
        let _ = child
            .stdin
            .take()
            .unwrap()
            .write_all(b"#include <omp.h>\nint main(void){return omp_get_level();}\n");
        child.wait().unwrap().success()
    }

    /// Builds `openmp_programs/SOURCE` with this compiler and these further options.
    pub(crate) fn build(self, source: &str, options: &[&str]) -> PathBuf {
        let mut all = vec!["-fopenmp"];
        all.extend(options);
        build(self.compiler(), source, &all)
    }
}

/// Builds `openmp_programs/SOURCE`, once per process and set of options.
pub(crate) fn build(compiler: &str, source: &str, options: &[&str]) -> PathBuf {
    use std::collections::BTreeMap;
    use std::sync::Mutex;
    static DONE: Mutex<BTreeMap<String, PathBuf>> = Mutex::new(BTreeMap::new());
    let key = format!("{compiler} {source} {options:?}");
    let mut done = DONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let number = done.len();
    done.entry(key.clone())
        .or_insert_with(|| {
            let stem = Path::new(source).file_stem().unwrap().to_str().unwrap();
            let shared = options.contains(&"-shared");
            let output = scratch().join(format!(
                "{}{stem}_{number}{}",
                if shared { "lib" } else { "" },
                if shared { ".so" } else { "" }
            ));
            let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/openmp_programs").join(source);
            let ended = Command::new(compiler)
                .args(["-O2", "-g", "-Wall", "-w"])
                .arg(file)
                .arg("-o")
                .arg(&output)
                .args(options)
                .arg("-ldl")
                .status()
                .unwrap();
            assert!(ended.success(), "cannot build: {key}");
            output
        })
        .clone()
}

/// A directory for what this test process builds. Those of earlier ones are removed, but not of one that is at work.
pub(crate) fn scratch() -> &'static Path {
    static DIR: OnceLock<PathBuf> = OnceLock::new();
    DIR.get_or_init(|| {
        let test = std::env::current_exe().unwrap();
        let all = Path::new(env!("CARGO_TARGET_TMPDIR")).join(test.file_stem().unwrap());
        for earlier in std::fs::read_dir(&all).into_iter().flatten().flatten() {
            if !Path::new("/proc").join(earlier.file_name()).exists() {
                let _ = std::fs::remove_dir_all(earlier.path());
            }
        }
        let dir = all.join(std::process::id().to_string());
        std::fs::create_dir_all(&dir).unwrap();
        dir
    })
}

/// The preload library, built on first use.
pub(crate) fn library() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| build_support::libraries().join("libcorefit_omp.so"))
}

/// A program, told to load the library and, maybe, where the page is.
pub(crate) fn command(program: impl AsRef<OsStr>, page: Option<&TeamPage>) -> Command {
    let mut command = Command::new(program);
    command.env_clear();
    command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
    command.env("LD_PRELOAD", library());
    command.env("OMP_NUM_THREADS", "4");
    if let Some(page) = page {
        let (name, value) = page.variable();
        command.env(name, value);
    }
    command
}

/// Runs a program to its end; it must end well, and say nothing on stderr. Gives its output.
pub(crate) fn output(command: &mut Command) -> String {
    let ended = command.output().unwrap();
    let stderr = String::from_utf8_lossy(&ended.stderr);
    let stdout = String::from_utf8_lossy(&ended.stdout).into_owned();
    assert!(ended.status.success() && stderr.is_empty(), "{command:?}\n{}\n{stdout}{stderr}", ended.status);
    stdout
}

/// A program that is spoken to line by line.
pub(crate) struct Talk {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Talk {
    pub(crate) fn start(command: &mut Command) -> Talk {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Talk { input: child.stdin.take(), child, output }
    }

    /// The driver of this runtime, with the library and the page.
    pub(crate) fn driver(omp: Omp, page: &TeamPage) -> Talk {
        Talk::start(&mut command(omp.build("driver.c", &[]), Some(page)))
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn say(&mut self, line: &str) {
        let input = self.input.as_mut().unwrap();
        writeln!(input, "{line}").unwrap();
        input.flush().unwrap();
    }

    pub(crate) fn hear(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        if line.is_empty() {
            panic!("the program is gone: {}", self.child.wait().unwrap());
        }
        line.trim_end().to_string()
    }

    /// Says a line and hears the answer.
    pub(crate) fn ask(&mut self, line: &str) -> String {
        self.say(line);
        self.hear()
    }

    /// Says a line and hears a number.
    pub(crate) fn number(&mut self, line: &str) -> i64 {
        let answer = self.ask(line);
        answer.parse().unwrap_or_else(|_| panic!("{line}: {answer}"))
    }

    /// Ends the program by ending its input; it must end well.
    pub(crate) fn end(mut self) {
        self.input = None;
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{status}");
    }
}

impl Drop for Talk {
    fn drop(&mut self) {
        let _ = killed(&mut self.child);
    }
}

/// Kills a program, with what libomp would have removed at its end.
pub(crate) fn killed(child: &mut Child) -> std::io::Result<ExitStatus> {
    let _ = child.kill();
    let ended = child.wait();
    let user = rustix::process::getuid().as_raw();
    let _ = std::fs::remove_file(format!("/dev/shm/__KMP_REGISTERED_LIB_{}_{user}", child.id()));
    ended
}

/// The only process on the page.
pub(crate) fn only(page: &TeamPage) -> Process {
    let all = page.processes();
    assert_eq!(all.len(), 1, "{all:?}");
    all[0]
}

/// Gives orders to the only process on the page.
pub(crate) fn order(page: &TeamPage, orders: Orders) {
    page.publish(only(page).slot, orders);
}

//! Job control: an interactive bash on a pseudo-terminal sees a supervised program stop,
//! continue and end as it sees any other job.

mod launch_support;

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Instant;

use launch_support::{PATIENCE, eventually, kill, members, signal_log, skipped, state, supervise};

const CTRL_C: &str = "\x03";
const CTRL_Z: &str = "\x1a";
const CTRL_BACKSLASH: &str = "\x1c";
/// What bash prints when it waits for a command.
const PROMPT: &str = "<ready>";

/// A program that is the leader of a session on a terminal of its own.
struct Terminal {
    leader: Child,
    keyboard: Option<File>,
    screen: Receiver<Vec<u8>>,
    reader: Option<JoinHandle<()>>,
    closing: Arc<AtomicBool>,
    seen: String,
    dir: tempfile::TempDir,
}

impl Terminal {
    fn start(mut command: Command) -> Terminal {
        let (master, slave) = open_terminal();
        for stream in [Command::stdin, Command::stdout, Command::stderr] {
            stream(&mut command, Stdio::from(slave.try_clone().unwrap()));
        }
        // SAFETY: setsid and ioctl are async-signal-safe.
        unsafe {
            command.pre_exec(|| {
                libc::setsid();
                libc::ioctl(0, libc::TIOCSCTTY, 0);
                Ok(())
            });
        }
        let leader = command.spawn().unwrap();
        drop((command, slave));
        let keyboard = File::from(master);
        let from = keyboard.try_clone().unwrap();
        let (send, screen) = channel();
        let closing = Arc::new(AtomicBool::new(false));
        let closed = closing.clone();
        let reader = Some(std::thread::spawn(move || read_screen(from, &send, &closed)));
        let dir = tempfile::tempdir().unwrap();
        let keyboard = Some(keyboard);
        Terminal { leader, keyboard, screen, reader, closing, seen: String::new(), dir }
    }

    /// Takes the terminal away, as closing its window does.
    fn hang_up(&mut self) {
        drop(self.keyboard.take());
        self.closing.store(true, Ordering::Relaxed);
        if let Some(reader) = self.reader.take() {
            reader.join().unwrap();
        }
    }

    /// An interactive bash without echo; None, and a note, where there is no bash.
    fn bash() -> Option<Terminal> {
        if Command::new("bash").arg("-c").arg(":").status().is_err() {
            skipped("job control", "no bash");
            return None;
        }
        let mut command = Command::new("bash");
        command.args(["--norc", "--noprofile", "--noediting", "-i"]);
        command.env("PS1", PROMPT).env("TERM", "dumb").env_remove("PROMPT_COMMAND");
        command.env("SUP", supervise()).env("LOG", signal_log());
        let mut terminal = Terminal::start(command);
        terminal.expect(PROMPT);
        terminal.enter("stty -echo; echo quiet");
        terminal.expect("quiet\r\n");
        terminal.expect(PROMPT);
        Some(terminal)
    }

    fn enter(&mut self, line: &str) {
        self.keys(&format!("{line}\n"));
    }

    fn keys(&mut self, keys: &str) {
        self.keyboard.as_mut().unwrap().write_all(keys.as_bytes()).unwrap();
    }

    /// Waits until `text` appears, and returns what stood before it.
    fn expect(&mut self, text: &str) -> String {
        let end = Instant::now() + PATIENCE;
        loop {
            if let Some(at) = self.seen.find(text) {
                let before = self.seen[..at].to_string();
                self.seen.drain(..at + text.len());
                return before;
            }
            let left = end.saturating_duration_since(Instant::now());
            match self.screen.recv_timeout(left) {
                Ok(bytes) => self.seen.push_str(&String::from_utf8_lossy(&bytes)),
                Err(why) => {
                    let processes = self.processes();
                    panic!("{text:?} did not appear ({why}); the screen: {:?}\n{processes}", self.seen);
                }
            }
        }
    }

    /// What the processes on this terminal do, one line each: whether they are stopped or asleep, who holds
    /// the terminal, or that they got no CPU.
    fn processes(&self) -> String {
        let line = |pid: u32| {
            let read = |file| fs::read_to_string(format!("/proc/{pid}/{file}")).ok();
            let (stat, times) = (read("stat")?, read("schedstat")?);
            let (name, fields) = stat.split_once(" (")?.1.rsplit_once(") ")?;
            let fields: Vec<&str> = fields.split(' ').collect();
            let mut seconds = times.split(' ').map(|ns| ns.trim().parse().unwrap_or(0.0) / 1e9);
            let (ran, waited) = (seconds.next()?, seconds.next()?);
            let [state, group, foreground] = [0, 2, 5].map(|at| fields[at]);
            Some(format!(
                "{pid} {name}: {state}, group {group}, foreground {foreground}, ran {ran:.3} s, waited {waited:.3} s\n"
            ))
        };
        session(self.leader.id()).into_iter().filter_map(line).collect()
    }

    /// The exit code of the last command.
    fn code(&mut self) -> String {
        self.enter("echo code=$?.");
        self.expect("code=");
        let code = self.expect(".");
        self.expect(PROMPT);
        code
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Process numbers of the supervisor and its program, from the events file.
    fn started(&self, events: &Path) -> (i32, i32) {
        let program = eventually("the program has started", || {
            let text = fs::read_to_string(events).ok()?;
            text.lines().next()?.strip_prefix("started ")?.parse::<u32>().ok()
        });
        let supervisor = launch_support::parent(program).unwrap();
        (supervisor.cast_signed(), program.cast_signed())
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // The whole session: its processes are on a terminal that nobody else uses.
        let leader = self.leader.id();
        for pid in session(leader) {
            // SAFETY: kill has no memory effects.
            unsafe { libc::kill(pid.cast_signed(), libc::SIGKILL) };
        }
        let _ = self.leader.wait();
        self.hang_up();
    }
}

/// A new terminal: its window side and its program side. Other tests start programs at the
/// same time, which must not inherit either.
fn open_terminal() -> (OwnedFd, OwnedFd) {
    let mut name = [0; 64];
    let flags = libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC;
    // SAFETY: the name's buffer has the size given, and is NUL-terminated by then; each
    // descriptor was just given to us.
    unsafe {
        let master = libc::posix_openpt(flags);
        assert!(master >= 0 && libc::grantpt(master) == 0 && libc::unlockpt(master) == 0);
        assert_eq!(libc::ptsname_r(master, name.as_mut_ptr(), name.len()), 0);
        let slave = libc::open(name.as_ptr(), flags);
        assert!(slave >= 0);
        (OwnedFd::from_raw_fd(master), OwnedFd::from_raw_fd(slave))
    }
}

/// Passes on what appears on the screen, until the terminal is closed on either side.
fn read_screen(mut from: File, to: &Sender<Vec<u8>>, closing: &AtomicBool) {
    let mut buffer = [0; 4096];
    while !closing.load(Ordering::Relaxed) {
        let mut poll = libc::pollfd { fd: from.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one writable entry.
        if unsafe { libc::poll(&raw mut poll, 1, 20) } == 0 {
            continue;
        }
        // A terminal that all have left reads as an error.
        match from.read(&mut buffer) {
            Ok(length @ 1..) if to.send(buffer[..length].to_vec()).is_ok() => {}
            _ => break,
        }
    }
}

/// The processes of a session.
fn session(leader: u32) -> Vec<u32> {
    let pids = fs::read_dir("/proc").unwrap().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    // SAFETY: getsid has no preconditions.
    pids.filter(|pid| unsafe { libc::getsid(pid.cast_signed()) } == leader.cast_signed()).collect()
}

#[test]
fn ctrl_z_stops_the_job_fg_continues_it_and_ctrl_c_ends_it() {
    let Some(mut bash) = Terminal::bash() else { return };
    let events = bash.path("events");
    bash.enter(&format!("$SUP --events {} -- sleep 1000", events.display()));
    let (supervisor, program) = bash.started(&events);
    let count = |what: &str| fs::read_to_string(&events).unwrap().matches(what).count();
    for round in 1..=3 {
        bash.keys(CTRL_Z);
        let before = bash.expect("Stopped");
        assert!(before.contains("[1]+"), "{before:?}");
        bash.expect(PROMPT);
        assert_eq!(bash.code(), "148", "128 + SIGTSTP");
        assert_eq!(state(supervisor.unsigned_abs()), Some('T'));
        assert_eq!(state(program.unsigned_abs()), Some('T'));
        bash.enter("fg");
        bash.expect("sleep 1000");
        eventually("it runs again", || (count("continued") == round).then_some(()));
        eventually("it sleeps again", || (state(program.unsigned_abs()) == Some('S')).then_some(()));
    }
    bash.keys(CTRL_C);
    bash.expect(PROMPT);
    assert_eq!(bash.code(), "130");
    assert_eq!(count("stopped 20"), 3);
    assert_eq!(count("exited signal: 2"), 1);
}

#[test]
fn keys_send_their_signal_exactly_once() {
    let Some(mut bash) = Terminal::bash() else { return };
    let events = bash.path("events");
    bash.enter(&format!("$SUP --events {} -- $LOG", events.display()));
    bash.expect("ready\r\n");
    let (supervisor, _) = bash.started(&events);
    for (key, signal) in [(CTRL_C, "2"), (CTRL_BACKSLASH, "3"), (CTRL_Z, "20"), (CTRL_C, "2")] {
        bash.keys(key);
        bash.expect(&format!("{signal}\r\n"));
        // Through the supervisor alone: once it is here, nothing else is to come.
        kill(supervisor, libc::SIGRTMIN() + 6);
        let between = bash.expect(&format!("{}\r\n", libc::SIGRTMIN() + 6));
        assert!(between.chars().all(|c| c == '^' || c == 'C' || c == 'Z' || c == '\\'), "{between:?}");
    }
    kill(supervisor, libc::SIGRTMIN() + 5);
    bash.expect(PROMPT);
    assert_eq!(bash.code(), "0");
}

#[test]
fn kill_of_a_job_reaches_the_program_exactly_once() {
    let Some(mut bash) = Terminal::bash() else { return };
    let (events, log) = (bash.path("events"), bash.path("log"));
    bash.enter(&format!("$SUP --events {} -- $LOG >{} &", events.display(), log.display()));
    let (supervisor, _) = bash.started(&events);
    bash.expect(PROMPT);
    let lines = |wanted: &str| {
        eventually(wanted, || fs::read_to_string(&log).ok().filter(|text| text.len() >= wanted.len()))
    };
    let mut expected = String::from("ready\n");
    lines(&expected);
    for (command, signal) in [("kill -INT %1", 2), ("kill %1", 15), ("kill -HUP $!", 1)] {
        bash.enter(command);
        bash.expect(PROMPT);
        expected += &format!("{signal}\n");
        lines(&expected);
        // Through the supervisor alone: once it is here, nothing else is to come.
        kill(supervisor, libc::SIGRTMIN() + 6);
        expected += &format!("{}\n", libc::SIGRTMIN() + 6);
        assert_eq!(lines(&expected), expected, "{command}");
    }
    kill(supervisor, libc::SIGRTMIN() + 5);
}

#[test]
fn a_background_job_that_reads_the_terminal_stops_until_it_is_in_the_foreground() {
    let Some(mut bash) = Terminal::bash() else { return };
    bash.enter("$SUP -- sh -c 'read line; echo got $line' &");
    bash.expect(PROMPT);
    eventually("the job is stopped", || {
        bash.enter("jobs");
        bash.expect(PROMPT).contains("Stopped").then_some(())
    });
    bash.enter("fg");
    bash.enter("a line");
    bash.expect("got a line\r\n");
    bash.expect(PROMPT);
    assert_eq!(bash.code(), "0");
}

#[test]
fn bg_continues_a_stopped_job() {
    let Some(mut bash) = Terminal::bash() else { return };
    let events = bash.path("events");
    bash.enter(&format!("$SUP --events {} -- sleep 1000", events.display()));
    let (supervisor, program) = bash.started(&events);
    bash.keys(CTRL_Z);
    bash.expect("Stopped");
    bash.expect(PROMPT);
    bash.enter("bg");
    bash.expect(PROMPT);
    eventually("both run again", || {
        let sleeps = |pid: i32| state(pid.unsigned_abs()) == Some('S');
        (sleeps(supervisor) && sleeps(program)).then_some(())
    });
    bash.enter("kill %1; wait %1; echo waited $?.");
    bash.expect("waited 143.");
}

#[test]
fn a_shell_inside_keeps_its_own_job_control() {
    let Some(mut bash) = Terminal::bash() else { return };
    bash.enter("PS1='<inner>' $SUP -- bash --norc --noprofile --noediting -i");
    bash.expect("<inner>");
    bash.enter("sh -c 'echo up; read x; echo got $x; read x'");
    bash.expect("up\r\n");
    bash.keys(CTRL_Z);
    bash.expect("Stopped");
    bash.expect("<inner>");
    bash.enter("fg");
    bash.expect("sh -c");
    bash.enter("this");
    bash.expect("got this\r\n");
    bash.keys(CTRL_C);
    bash.expect("<inner>");
    bash.enter("suspend -f");
    bash.expect("Stopped");
    bash.expect(PROMPT);
    bash.enter("fg");
    bash.expect("<inner>");
    bash.enter("exit 7");
    bash.expect(PROMPT);
    assert_eq!(bash.code(), "7");
}

#[test]
fn a_pipeline_of_supervised_programs_stops_and_continues_as_one_job() {
    let Some(mut bash) = Terminal::bash() else { return };
    let events = bash.path("events");
    bash.enter(&format!("$SUP --events {} -- cat | $SUP -- cat | cat", events.display()));
    bash.started(&events);
    bash.enter("one");
    bash.expect("one\r\n");
    bash.keys(CTRL_Z);
    bash.expect("Stopped");
    bash.expect(PROMPT);
    bash.enter("fg");
    bash.enter("two");
    bash.expect("two\r\n");
    bash.keys("\x04");
    bash.expect(PROMPT);
    assert_eq!(bash.code(), "0");
}

#[test]
fn as_session_leader_it_passes_the_hangup_of_the_terminal_on_once() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let events = dir.path().join("events");
    let mut command = Command::new(supervise());
    command.arg("--events").arg(&events).args(["sh", "-c"]);
    command.arg(format!("exec '{}' >'{}'", signal_log().display(), log.display()));
    let mut terminal = Terminal::start(command);
    let read = || fs::read_to_string(&log).unwrap_or_default();
    eventually("the log is ready", || read().contains("ready").then_some(()));
    let (supervisor, _) = terminal.started(&events);
    assert_eq!(supervisor, terminal.leader.id().cast_signed());
    terminal.hang_up();
    eventually("the hangup arrives", || read().contains("\n1\n").then_some(()));
    kill(supervisor, libc::SIGRTMIN() + 5);
    terminal.leader.wait().unwrap();
    assert_eq!(read().matches("1\n").count(), 1, "{}", read());
    assert_eq!(members(supervisor.unsigned_abs()), [] as [u32; 0]);
}

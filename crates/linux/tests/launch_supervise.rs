//! Nothing that a program inherits, does or suffers changes because corefit stands in for
//! it: every test runs the program of `examples/supervise.rs`, most beside the same
//! command without it.

mod launch_support;

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};

use launch_support::{
    PATIENCE, eventually, kill, members, parent, shell, signal_log, skipped, state, supervise,
};

/// `SCRIPT` with `{}` standing for the supervisor, and the same with nothing for it.
fn both(script: &str) -> (Output, Output) {
    let supervised = script.replace("{}", &format!("'{}' -- ", supervise().display()));
    let native = script.replace("{}", "");
    (shell(&supervised).output().unwrap(), shell(&native).output().unwrap())
}

/// Asserts that a script gives the same with and without the supervisor, and returns it.
fn same(script: &str) -> Output {
    let (supervised, native) = both(script);
    assert_eq!(text(&supervised.stdout), text(&native.stdout), "stdout of {script}");
    assert_eq!(text(&supervised.stderr), text(&native.stderr), "stderr of {script}");
    assert_eq!(supervised.status, native.status, "status of {script}");
    native
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn output(args: &[&str]) -> Output {
    Command::new(supervise()).args(args).stdin(Stdio::null()).output().unwrap()
}

/// A supervised program whose stdout is read line by line, in a process group of its own.
struct Running {
    child: Child,
    /// Apart from the child, as waiting for a child closes its stdin.
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
    events: PathBuf,
    _dir: tempfile::TempDir,
}

impl Running {
    fn start(args: &[&OsStr]) -> Running {
        Running::start_with(args, |_| {})
    }

    fn sh(script: &str) -> Running {
        Running::start(&["sh".as_ref(), "-c".as_ref(), script.as_ref()])
    }

    fn signal_log() -> Running {
        let mut running = Running::start(&[signal_log().as_os_str()]);
        assert_eq!(running.line(), "ready");
        running
    }

    fn start_with(args: &[&OsStr], change: impl FnOnce(&mut Command)) -> Running {
        let dir = tempfile::tempdir().unwrap();
        let events = dir.path().join("events");
        let mut command = Command::new(supervise());
        command.arg("--events").arg(&events).args(args);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.process_group(0);
        change(&mut command);
        let mut child = command.spawn().unwrap();
        let lines = read_lines(child.stdout.take().unwrap());
        let stdin = child.stdin.take();
        Running { child, stdin, lines, events, _dir: dir }
    }

    fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).unwrap()
    }

    /// The next line of the program, without its end; empty at the end of the output.
    fn line(&mut self) -> String {
        match self.lines.recv_timeout(PATIENCE) {
            Ok(line) => line.trim_end().to_string(),
            Err(RecvTimeoutError::Disconnected) => String::new(),
            Err(RecvTimeoutError::Timeout) => panic!("no line; events: {}", self.events()),
        }
    }

    /// All further output.
    fn rest(&mut self) -> String {
        let mut rest = String::new();
        loop {
            match self.lines.recv_timeout(PATIENCE) {
                Ok(line) => rest += &line,
                Err(RecvTimeoutError::Disconnected) => return rest,
                Err(RecvTimeoutError::Timeout) => panic!("no end; events: {}", self.events()),
            }
        }
    }

    fn events(&self) -> String {
        fs::read_to_string(&self.events).unwrap_or_default()
    }

    fn event(&self, wanted: &str) {
        eventually(wanted, || self.events().contains(wanted).then_some(()));
    }

    /// The number of the program's last process.
    fn program(&self) -> i32 {
        eventually("the program has started", || {
            self.events().lines().filter_map(|l| l.strip_prefix("started ")?.parse().ok()).next_back()
        })
    }

    fn enter(&mut self, line: &str) {
        writeln!(self.stdin.as_mut().unwrap(), "{line}").unwrap();
    }

    fn wait(&mut self) -> ExitStatus {
        eventually("the supervisor ends", || self.child.try_wait().unwrap())
    }

    /// Sends a `signal_log` a signal through the supervisor: when the log prints it, the
    /// supervisor has handled all that came before.
    fn catch_up(&mut self) {
        let marker = libc::SIGRTMIN() + 6;
        kill(self.pid(), marker);
        assert_eq!(self.line(), marker.to_string(), "nothing else was sent");
    }

    /// Ends a `signal_log` through the supervisor, and returns what it had still printed:
    /// whatever was sent before has been handled before.
    fn end_of_log(&mut self) -> String {
        kill(self.pid(), libc::SIGRTMIN() + 5);
        let rest = self.rest();
        assert_eq!(self.wait().code(), Some(0));
        rest
    }
}

/// Reads lines in a thread, so that a test can give up waiting for one.
fn read_lines(from: ChildStdout) -> Receiver<String> {
    let (send, lines) = channel();
    std::thread::spawn(move || {
        let mut from = BufReader::new(from);
        let mut line = String::new();
        while from.read_line(&mut line).is_ok_and(|length| length > 0) {
            if send.send(std::mem::take(&mut line)).is_err() {
                break;
            }
        }
    });
    lines
}

impl Drop for Running {
    fn drop(&mut self) {
        // SAFETY: kill has no memory effects; the group was made for this test.
        unsafe { libc::kill(-self.pid(), libc::SIGKILL) };
        let _ = self.child.wait();
    }
}

// How it ends

#[test]
fn exit_codes_pass_through() {
    for code in [0, 1, 3, 126, 127, 255] {
        assert_eq!(same(&format!("{{}}sh -c 'exit {code}'")).status.code(), Some(code));
    }
}

#[test]
fn death_by_a_signal_passes_through_and_a_shell_shows_128_plus_n() {
    for signal in ["TERM", "KILL", "SEGV", "INT", "HUP", "PIPE", "ABRT", "USR1", "35"] {
        let script = format!("{{}}sh -c 'kill -{signal} $$'; echo $?");
        let (supervised, native) = both(&script);
        assert_eq!(text(&supervised.stdout), text(&native.stdout), "SIG{signal}");
        let direct = output(&["sh", "-c", &format!("kill -{signal} $$")]);
        assert!(direct.status.signal().is_some(), "SIG{signal}: {}", direct.status);
    }
}

#[test]
fn only_the_program_leaves_a_core_file() {
    let script = "ulimit -c unlimited; exec {}sh -c 'cd /tmp; kill -SEGV $$'";
    let (supervised, native) = both(script);
    if !native.status.core_dumped() {
        return skipped("core files", "this kernel writes none here");
    }
    assert_eq!(supervised.status.signal(), Some(libc::SIGSEGV));
    assert!(!supervised.status.core_dumped());
}

#[test]
fn programs_that_cannot_be_executed_end_as_in_a_shell() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, bytes: &[u8], mode| {
        let path = dir.path().join(name);
        fs::write(&path, bytes).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path.display().to_string()
    };
    let other_machine = if cfg!(target_arch = "aarch64") { 62 } else { 183 };
    let mut foreign = fs::read("/bin/true").unwrap();
    foreign[18] = other_machine;
    for (program, code, says) in [
        ("no-such-command-anywhere".into(), 127, "command not found in PATH"),
        (file("text", b"echo", 0o644), 126, "permission denied"),
        (file("pe", b"MZ\0\0", 0o755), 126, "not in a format that this kernel knows"),
        (file("foreign", &foreign, 0o755), 126, "another architecture"),
        ("/".into(), 126, "is a directory"),
    ] {
        let output = output(&["--", &program]);
        let says_so = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{program}: {says_so}");
        assert!(says_so.contains(says), "{says_so}");
        assert_eq!(says_so.lines().count(), 1, "one line: {says_so}");
        let bash = Command::new("bash").arg("-c").arg(format!("'{program}'")).output();
        if let Ok(bash) = bash {
            assert_eq!(bash.status.code(), Some(code), "bash, {program}");
        }
    }
}

#[test]
fn a_file_on_a_noexec_mount_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let d = dir.path().display();
    let script = format!(
        "mount -t tmpfs -o noexec none '{d}' && cp /bin/true '{d}/p' || exit 99; \
         '{}' '{d}/p'",
        supervise().display()
    );
    let output = Command::new("unshare").args(["-m", "sh", "-c", &script]).output();
    match output {
        Ok(output) if output.status.code() != Some(99) && output.status.code() != Some(1) => {
            assert_eq!(output.status.code(), Some(126), "{}", text(&output.stderr));
            assert!(text(&output.stderr).ends_with("its file system is mounted noexec\n"));
        }
        Ok(output) => skipped("noexec mount", text(&output.stderr).trim()),
        Err(why) => skipped("noexec mount", &format!("unshare: {why}")),
    }
}

// What it inherits

#[test]
fn everything_a_process_inherits_is_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let show = dir.path().join("show");
    fs::write(
        &show,
        "#!/bin/sh
        grep -E '^(Sig(Blk|Ign|Cgt)|Umask|Groups|Cap|NoNewPrivs|Seccomp|Cpus_allowed)' /proc/self/status
        sed -E 's/.*\\) //' /proc/self/stat | cut -d' ' -f3-5,16,17
        cat /proc/self/limits /proc/self/oom_score_adj /proc/self/timerslack_ns /proc/self/cgroup
        cat /proc/self/environ | tr '\\0' '\\n' | grep -vE '^(SUPERVISED|_)='
        ls -l /proc/$$/fd | sed 's/.*[0-9]:[0-9]* //' | grep -vE '/fd|/show|pipe:'
        pwd; ls -l /proc/$$/cwd | sed 's/.*->//'; echo \"$0 $@\"\n",
    )
    .unwrap();
    fs::set_permissions(&show, fs::Permissions::from_mode(0o755)).unwrap();
    let script = format!(
        "cd /usr; umask 027; ulimit -n 77; ulimit -c 0; export ODD='a\nb'; \
         exec 7</dev/zero; {{}}nice -n 5 '{}' one 'two  three'",
        show.display()
    );
    let native = same(&script);
    let seen = text(&native.stdout);
    for part in ["Umask:\t0027", "ODD=a\nb", "7 -> /dev/zero", "show one two  three"] {
        assert!(seen.contains(part), "the comparison sees {part}: {seen}");
    }
}

#[test]
fn the_process_group_and_session_are_those_of_the_supervisor() {
    let mut running = Running::sh("cut -d' ' -f5,6 /proc/self/stat; read x");
    let own = fs::read_to_string(format!("/proc/{}/stat", running.pid())).unwrap();
    let fields: Vec<&str> = own.rsplit_once(") ").unwrap().1.split(' ').collect();
    assert_eq!(running.line(), format!("{} {}", fields[2], fields[3]));
    assert_eq!(fields[2], running.pid().to_string());
}

#[test]
fn a_broken_pipe_kills_as_usual_unless_the_parent_ignored_it() {
    if Command::new("bash").arg("-c").arg(":").status().is_err() {
        return skipped("SIGPIPE", "needs bash for PIPESTATUS");
    }
    let script = "{}bash -c 'yes 2>/dev/null | head -n 1; echo ${PIPESTATUS[0]}'";
    assert_eq!(text(&same(script).stdout), "y\n141\n");
    let ignored = same(&format!("trap '' PIPE; {script}"));
    assert_eq!(text(&ignored.stdout), "y\n1\n");
    // And the program itself, as a part of a pipeline.
    let mut bash = Command::new("bash");
    bash.arg("-c").arg("\"$0\" yes | head -n 1; echo ${PIPESTATUS[0]}").arg(supervise());
    assert_eq!(text(&bash.output().unwrap().stdout), "y\n141\n");
}

#[test]
fn ignored_signals_stay_ignored_and_others_stay_default() {
    let default = text(&same("{}grep SigIgn /proc/self/status").stdout);
    for signals in ["INT QUIT HUP", "TSTP TTIN TTOU", "USR1 TERM", "ALRM 40"] {
        let native = same(&format!("trap '' {signals}; {{}}grep SigIgn /proc/self/status"));
        assert_ne!(text(&native.stdout), default, "{signals}");
    }
}

#[test]
fn an_exit_code_is_seen_even_if_sigchld_was_ignored() {
    assert_eq!(same("env --ignore-signal=CHLD {}sh -c 'exit 7'").status.code(), Some(7));
}

#[test]
fn blocked_signals_stay_blocked_in_the_program() {
    let blocked = |program: &Path, args: &[&str]| {
        let mut command = Command::new(program);
        command.args(args);
        // SAFETY: both calls are async-signal-safe.
        unsafe {
            command.pre_exec(|| {
                let mut set = std::mem::zeroed();
                libc::sigemptyset(&raw mut set);
                for signal in [libc::SIGUSR1, libc::SIGTERM, 40] {
                    libc::sigaddset(&raw mut set, signal);
                }
                libc::sigprocmask(libc::SIG_SETMASK, &raw const set, std::ptr::null_mut());
                Ok(())
            });
        }
        text(&command.output().unwrap().stdout)
    };
    let native = blocked(Path::new("grep"), &["SigBlk", "/proc/self/status"]);
    assert_eq!(native, "SigBlk:\t0000008000004200\n");
    assert_eq!(blocked(supervise(), &["grep", "SigBlk", "/proc/self/status"]), native);
}

#[test]
fn closed_standard_streams_stay_closed() {
    let list = "sh -c 'for f in 0 1 2; do
         [ -h /proc/$$/fd/$f ] && a=\"$a open\" || a=\"$a closed\"; done; echo $a >&9'";
    for (closed, count) in [("<&-", 1), (">&-", 1), ("2>&-", 1), ("<&- >&- 2>&-", 3)] {
        let native = same(&format!("exec 9>&1; {{}}{list} {closed}"));
        assert_eq!(text(&native.stdout).matches("closed").count(), count, "{closed}");
    }
}

#[test]
fn argv0_and_unusual_arguments_arrive_unchanged() {
    let dir = tempfile::tempdir().unwrap();
    let name = OsStr::from_bytes(b"we ird\n\xff'name");
    symlink("/bin/cat", dir.path().join(name)).unwrap();
    let args: [&[u8]; 5] = [b"/proc/self/cmdline", b"", b"--", b"\xff\xfe", b"a b\nc"];
    let args = args.map(OsStr::from_bytes);
    let run = |program: &mut Command| {
        program.args(&args[..1]).arg("/dev/null").env("PATH", dir.path()).output().unwrap().stdout
    };
    let native = run(Command::new(dir.path().join(name)).arg0(name));
    assert_eq!(run(Command::new(supervise()).arg("--").arg(name)), native);
    assert!(native.starts_with(name.as_bytes()));
    // Arguments that cat would take for files, through a shell function instead.
    let mut echo = Command::new(supervise());
    echo.args(["--", "sh", "-c", r#"printf '<%s>' "$0" "$@""#]).args(args);
    let expected = [b"<", args.map(OsStr::as_bytes).join(&b"><"[..]).as_slice(), b">"].concat();
    assert_eq!(echo.output().unwrap().stdout, expected);
}

#[test]
fn a_megabyte_of_arguments_arrives() {
    let arguments = vec!["123456789"; 100_000];
    let mut command = Command::new(supervise());
    let output = command.args(["sh", "-c", "echo $# ${100000}", "sh"]).args(arguments).output();
    assert_eq!(text(&output.unwrap().stdout), "100000 123456789\n");
}

#[test]
fn relative_programs_and_texts_without_hash_bang_run_with_their_arguments() {
    let dir = tempfile::tempdir().unwrap();
    let bin = dir.path().join("sub");
    fs::create_dir(&bin).unwrap();
    for (name, bytes) in
        [("plain", "echo \"$0|$1|$2\"\nexit 4\n"), ("bang", "#!/bin/sh -e\necho \"$0|$1|$2\"\nexit 4\n")]
    {
        fs::write(bin.join(name), bytes).unwrap();
        fs::set_permissions(bin.join(name), fs::Permissions::from_mode(0o755)).unwrap();
        let d = dir.path().display();
        let native = same(&format!("cd '{d}'; {{}}./sub/{name} 'a b' c"));
        assert_eq!(text(&native.stdout), format!("./sub/{name}|a b|c\n"));
        let native = same(&format!("cd '{d}/sub'; PATH=$PATH:; {{}}{name} 'a b' c"));
        assert_eq!(native.status.code(), Some(4));
    }
}

#[test]
fn standard_input_and_output_carry_every_byte() {
    let data: Vec<u8> = (0..3_000_000u32).map(|n| (n ^ (n >> 8)).to_le_bytes()[0]).collect();
    let mut child =
        Command::new(supervise()).arg("cat").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let copy = data.clone();
    let writer = std::thread::spawn(move || stdin.write_all(&copy).unwrap());
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    assert!(output.stdout == data);
}

#[test]
fn the_other_ends_of_pipes_notice_when_the_program_closes_its_ends() {
    let mut running = Running::sh("exec <&- >&-; echo closed >&2; sleep 1000 2>&-");
    let mut stderr = BufReader::new(running.child.stderr.take().unwrap());
    let mut line = String::new();
    stderr.read_line(&mut line).unwrap();
    // The program lives on, yet its stdout is at its end and its stdin is broken.
    assert_eq!(running.rest(), "");
    let error = eventually("stdin breaks", || running.stdin.as_mut().unwrap().write_all(b"x").err());
    assert_eq!(error.kind(), std::io::ErrorKind::BrokenPipe);
}

#[test]
fn affinity_is_for_the_program_only() {
    let list = |pid: &str| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line = status.lines().find_map(|l| l.strip_prefix("Cpus_allowed_list:\t"));
        line.unwrap().to_string()
    };
    let own = list("self");
    let one = own.split([',', '-']).next_back().unwrap().to_string();
    let mut running = Running::start(&[
        "--cpus".as_ref(),
        one.as_ref(),
        "sh".as_ref(),
        "-c".as_ref(),
        "echo; read x".as_ref(),
    ]);
    running.line();
    assert_eq!(list(&running.program().to_string()), one);
    assert_eq!(list(&running.pid().to_string()), own);
    let refused = output(&["--cpus", "60000", "true"]);
    assert_eq!(refused.status.code(), Some(126));
    let says = text(&refused.stderr);
    assert!(says.starts_with("supervise: cannot run on CPUs 60000: "), "{says}");
}

// Signals

#[test]
fn a_signal_to_the_supervisor_reaches_the_program_exactly_once() {
    let mut running = Running::signal_log();
    for signal in [
        libc::SIGINT,
        libc::SIGTERM,
        libc::SIGUSR1,
        libc::SIGHUP,
        libc::SIGQUIT,
        libc::SIGWINCH,
        libc::SIGCONT,
        libc::SIGALRM,
        libc::SIGABRT,
        libc::SIGRTMIN() + 1,
    ] {
        kill(running.pid(), signal);
        assert_eq!(running.line(), signal.to_string());
    }
    assert_eq!(running.end_of_log(), "");
}

#[test]
fn a_signal_to_the_group_reaches_the_program_exactly_once() {
    let mut running = Running::signal_log();
    for _ in 0..20 {
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGUSR1, libc::SIGHUP, libc::SIGCONT] {
            kill(-running.pid(), signal);
            assert_eq!(running.line(), signal.to_string());
        }
        running.catch_up();
    }
    assert_eq!(running.end_of_log(), "");
}

#[test]
fn a_killed_witness_is_replaced() {
    let mut running = Running::signal_log();
    let witness = || {
        let is_witness = |pid: &u32| {
            fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name == "group-witness\n")
        };
        members(running.child.id()).into_iter().find(is_witness)
    };
    let first = eventually("there is a witness", witness);
    kill(first.cast_signed(), libc::SIGKILL);
    eventually("there is another", || witness().filter(|pid| *pid != first));
    kill(-running.pid(), libc::SIGTERM);
    assert_eq!(running.line(), "15");
    assert_eq!(running.end_of_log(), "");
}

#[test]
fn a_stop_that_is_taken_back_at_once_leaves_both_running() {
    let mut running = Running::sh("echo ready; while read x; do echo $x; done");
    running.line();
    for round in 0..50 {
        kill(running.pid(), libc::SIGTSTP);
        // Before, while and after the stop is passed on.
        std::thread::sleep(std::time::Duration::from_micros(100 * round));
        kill(running.pid(), libc::SIGCONT);
        running.enter("on");
        assert_eq!(running.line(), "on", "round {round}");
    }
}

#[test]
fn signals_to_the_group_and_to_the_supervisor_may_alternate() {
    let mut running = Running::signal_log();
    for round in 0..20 {
        let to = if round % 2 == 0 { running.pid() } else { -running.pid() };
        kill(to, libc::SIGTERM);
        assert_eq!(running.line(), "15", "round {round}");
        running.catch_up();
    }
    assert_eq!(running.end_of_log(), "");
}

#[test]
fn queued_signals_keep_their_value() {
    let mut running = Running::signal_log();
    for value in [0usize, 42, usize::MAX] {
        let signal = libc::SIGRTMIN() + 2;
        let value_c = libc::sigval { sival_ptr: std::ptr::without_provenance_mut(value) };
        // SAFETY: sigqueue has no memory effects.
        assert_eq!(unsafe { libc::sigqueue(running.pid(), signal, value_c) }, 0);
        assert_eq!(running.line(), format!("{signal} {value}"));
    }
    assert_eq!(running.end_of_log(), "");
}

#[test]
fn a_program_that_ends_itself_by_a_forwarded_signal_ends_the_supervisor_likewise() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGUSR1] {
        let mut running = Running::sh("echo ready; read x");
        running.line();
        kill(running.pid(), signal);
        assert_eq!(running.wait().signal(), Some(signal));
    }
}

#[test]
fn a_program_that_handles_the_signal_decides_how_it_ends() {
    let mut running = Running::sh("trap 'echo caught; exit 5' TERM; echo ready; while :; do read x; done");
    running.line();
    kill(running.pid(), libc::SIGTERM);
    assert_eq!(running.line(), "caught");
    assert_eq!(running.wait().code(), Some(5));
}

#[test]
fn an_ignored_interrupt_harms_neither_supervisor_nor_program() {
    let mut running = Running::start_with(
        &["sh".as_ref(), "-c".as_ref(), "echo ready; read x; echo alive $x".as_ref()],
        |command| {
            // SAFETY: signal is async-signal-safe and installs no handler.
            unsafe {
                command.pre_exec(|| {
                    libc::signal(libc::SIGINT, libc::SIG_IGN);
                    libc::signal(libc::SIGHUP, libc::SIG_IGN);
                    Ok(())
                });
            }
        },
    );
    running.line();
    for to in [running.pid(), -running.pid()] {
        kill(to, libc::SIGINT);
        kill(to, libc::SIGHUP);
    }
    running.enter("and well");
    assert_eq!(running.line(), "alive and well");
    assert_eq!(running.wait().code(), Some(0));
}

#[test]
fn a_signal_from_the_program_to_its_parent_does_not_come_back() {
    let mut running = Running::sh("kill -TERM $PPID; kill -USR1 $PPID; read x; echo survived");
    eventually("a tick after the signals", || running.events().contains("tick").then_some(()));
    running.enter("");
    assert_eq!(running.line(), "survived");
    assert_eq!(running.wait().code(), Some(0));
}

#[test]
fn a_program_that_signals_its_own_group_is_hit_once() {
    let mut running = Running::sh("trap 'echo hit' TERM; kill -TERM 0; read x; echo end");
    assert_eq!(running.line(), "hit");
    running.event("tick");
    running.enter("");
    assert_eq!(running.rest(), "end\n");
    assert_eq!(running.wait().code(), Some(0));
}

#[test]
fn a_program_in_a_session_of_its_own_still_gets_what_its_job_gets() {
    let log = signal_log();
    let mut running = Running::start(&["setsid".as_ref(), log.as_os_str()]);
    assert_eq!(running.line(), "ready");
    kill(-running.pid(), libc::SIGTERM);
    assert_eq!(running.line(), "15");
    assert_eq!(running.end_of_log(), "");
}

// Stops

/// What a parent that waits with WUNTRACED sees next: the raw status.
fn next_status(pid: i32) -> i32 {
    let options = libc::WUNTRACED | libc::WCONTINUED | libc::WNOHANG;
    eventually("the supervisor stops, continues or ends", || {
        let mut status = 0;
        // SAFETY: the pointer leads to a writable integer.
        let changed = unsafe { libc::waitpid(pid, &raw mut status, options) };
        (changed == pid).then_some(status)
    })
}

#[test]
fn a_stopped_program_stops_the_supervisor_by_the_same_signal_and_both_continue() {
    for signal in [libc::SIGTSTP, libc::SIGTTIN, libc::SIGSTOP] {
        let mut running = Running::sh("echo ready; while read x; do echo $x; done");
        running.line();
        let (supervisor, program) = (running.pid(), running.program());
        // To the supervisor alone, as it is passed on; SIGSTOP cannot be.
        kill(if signal == libc::SIGSTOP { program } else { supervisor }, signal);
        let status = next_status(supervisor);
        assert!(libc::WIFSTOPPED(status), "{signal}: {status:x}");
        assert_eq!(libc::WSTOPSIG(status), signal);
        assert_eq!(state(program.unsigned_abs()), Some('T'));
        kill(supervisor, libc::SIGCONT);
        assert!(libc::WIFCONTINUED(next_status(supervisor)));
        running.enter("again");
        assert_eq!(running.line(), "again");
        running.event("continued");
    }
}

#[test]
fn a_group_can_be_stopped_and_continued_as_a_whole() {
    let mut running = Running::signal_log();
    for _ in 0..3 {
        kill(-running.pid(), libc::SIGSTOP);
        assert!(libc::WIFSTOPPED(next_status(running.pid())));
        kill(-running.pid(), libc::SIGCONT);
        assert!(libc::WIFCONTINUED(next_status(running.pid())));
        assert_eq!(running.line(), libc::SIGCONT.to_string());
        running.catch_up();
    }
    assert_eq!(running.end_of_log(), "");
}

#[test]
fn continuing_the_program_alone_continues_the_supervisor_too() {
    let mut running = Running::sh("echo ready; read x; exit 6");
    running.line();
    let (supervisor, program) = (running.pid(), running.program());
    kill(program, libc::SIGSTOP);
    assert!(libc::WIFSTOPPED(next_status(supervisor)));
    kill(program, libc::SIGCONT);
    assert!(libc::WIFCONTINUED(next_status(supervisor)));
    running.enter("");
    assert_eq!(running.wait().code(), Some(6));
}

#[test]
fn killing_a_stopped_program_ends_the_stopped_supervisor() {
    let mut running = Running::sh("echo ready; read x");
    running.line();
    let (supervisor, program) = (running.pid(), running.program());
    kill(program, libc::SIGSTOP);
    assert!(libc::WIFSTOPPED(next_status(supervisor)));
    kill(program, libc::SIGKILL);
    assert_eq!(running.wait().signal(), Some(libc::SIGKILL));
}

// Who outlives whom

#[test]
fn a_killed_supervisor_leaves_the_program_unharmed_and_no_helper() {
    let mut running = Running::sh("echo ready; read x; echo $x");
    running.line();
    let program = running.program();
    let group = running.child.id();
    assert_eq!(members(group).len(), 3, "supervisor, witness, program");
    kill(running.pid(), libc::SIGKILL);
    assert_eq!(running.wait().signal(), Some(libc::SIGKILL));
    eventually("only the program is left", || (members(group) == [program.unsigned_abs()]).then_some(()));
    running.enter("alive");
    assert_eq!(running.line(), "alive");
}

#[test]
fn a_daemon_goes_to_the_same_parent_as_without_a_supervisor() {
    let script = "{}sh -c 'sleep 1000 >/dev/null 2>&1 & echo $!'";
    let (supervised, native) = both(script);
    let parents = [supervised, native].map(|output| {
        let pid: u32 = text(&output.stdout).trim().parse().unwrap();
        let of = parent(pid);
        kill(pid.cast_signed(), libc::SIGKILL);
        of
    });
    assert_eq!(parents[0], parents[1]);
    assert!(parents[0].is_some());
}

#[test]
fn nothing_of_the_supervisor_is_left_after_the_end() {
    let mut running = Running::sh("echo ready; read x");
    running.line();
    let group = running.child.id();
    running.enter("");
    assert_eq!(running.wait().code(), Some(0));
    assert_eq!(members(group), [] as [u32; 0]);
}

#[test]
fn as_process_one_it_reaps_orphans_passes_signals_on_and_reports_deaths_as_codes() {
    let script = "for i in 1 2 3; do (true & ); done
         i=0; while grep -qs '^State:.Z' /proc/[0-9]*/status; do
           i=$((i+1)); [ $i -lt 500 ] || exit 50; done
         trap 'exit 42' TERM; echo ready; sleep 1000 & while :; do wait; done";
    let mut child = Command::new("unshare")
        .args(["-pf", "--mount-proc", "--kill-child=KILL"])
        .arg(supervise())
        .args(["sh", "-c", script])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    lines.read_line(&mut line).unwrap();
    if line != "ready\n" {
        let output = child.wait_with_output().unwrap();
        assert_ne!(output.status.code(), Some(50), "zombies stay");
        return skipped("process 1 of a container", text(&output.stderr).trim());
    }
    let unshare = child.id();
    let supervisor = eventually("unshare has a child", || {
        let all = fs::read_dir("/proc").unwrap().flatten();
        let mut pids = all.filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok());
        pids.find(|pid| parent(*pid) == Some(unshare))
    });
    kill(supervisor.cast_signed(), libc::SIGTERM);
    assert_eq!(child.wait().unwrap().code(), Some(42));
    // Process 1 cannot die by an ordinary signal: the code says it.
    let died = Command::new("unshare")
        .args(["-pf", "--mount-proc"])
        .arg(supervise())
        .args(["sh", "-c", "kill -TERM $$"])
        .status();
    assert_eq!(died.unwrap().code(), Some(143));
}

// Restart

#[test]
fn a_restarted_program_has_its_input_and_output_again_and_no_leftovers() {
    let dir = tempfile::tempdir().unwrap();
    let mark = dir.path().join("mark");
    let script = format!(
        "if [ -e '{0}' ]; then echo second; read x; exit $x; fi; sleep 1000 & echo $! >'{0}'; \
         echo first; wait",
        mark.display()
    );
    let mut running = Running::start(&["--restart".as_ref(), "sh".as_ref(), "-c".as_ref(), script.as_ref()]);
    assert_eq!(running.line(), "first");
    assert_eq!(running.line(), "second");
    let left: u32 = fs::read_to_string(&mark).unwrap().trim().parse().unwrap();
    assert!(!matches!(state(left), Some('S' | 'R' | 'D')), "the first one's child is gone");
    running.enter("9");
    assert_eq!(running.wait().code(), Some(9));
    assert!(running.events().contains("killed signal: 15"), "{}", running.events());
}

#[test]
fn a_program_that_ignores_the_polite_signal_is_killed_after_the_grace() {
    let dir = tempfile::tempdir().unwrap();
    let mark = dir.path().join("mark");
    let script = format!(
        "if [ -e '{0}' ]; then echo second; exit 0; fi; >'{0}'; trap '' TERM; echo first; \
         sleep 1000 & while :; do wait; done",
        mark.display()
    );
    let args = ["--restart".as_ref(), "sh".as_ref(), "-c".as_ref(), script.as_ref()];
    let mut running = Running::start(&args);
    assert_eq!(running.rest(), "first\nsecond\n");
    assert_eq!(running.wait().code(), Some(0));
    assert!(running.events().contains("killed signal: 9"), "{}", running.events());
}

#[test]
fn an_interrupt_during_a_restart_ends_instead_of_restarting() {
    for to_group in [false, true] {
        let script = "trap 'echo asked' TERM; trap '' INT; echo first; sleep 1000 & while :; do wait; done";
        let args = ["--restart".as_ref(), "sh".as_ref(), "-c".as_ref(), script.as_ref()];
        let mut running = Running::start(&args);
        assert_eq!(running.line(), "first");
        assert_eq!(running.line(), "asked");
        kill(if to_group { -running.pid() } else { running.pid() }, libc::SIGINT);
        assert_eq!(running.wait().signal(), Some(libc::SIGINT), "to the group: {to_group}");
        assert_eq!(running.rest(), "");
    }
}

//! Nothing that a program inherits changes because corefit stands in for it, nor how its end looks: every test runs the
//! program of `examples/supervise.rs`, most beside the same command without it.

mod launch_support;

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, Stdio};

use launch_support::running::{Running, both, output, same, text};
use launch_support::{eventually, skipped, supervise};

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

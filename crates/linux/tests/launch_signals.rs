//! What happens to a program happens as without corefit in front of it: signals, stops, who outlives whom, restarts. Every test
//! runs the program of `examples/supervise.rs`.

mod launch_support;

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, Stdio};

use launch_support::running::{Running, both, text};
use launch_support::{eventually, kill, members, parent, signal_log, skipped, state, supervise};

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

//! A `corefit run` without the controller: launches a program and stands in for it.
//!
//! `supervise [--events FILE] [--cpus LIST] [--restart] -- PROGRAM ARGS`
//!
//! `--events` appends one line per event to FILE. `--restart` ends the program at the
//! first tick and starts it again. The tests of the launch module run this.

use std::ffi::{OsStr, OsString};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitStatus, exit};
use std::time::{Duration, Instant};

use corefit_linux::launch::{Event, Launch, LaunchError, Program, Supervised, end_like};

const TICK: Duration = Duration::from_millis(200);
const GRACE: Duration = Duration::from_millis(500);

#[derive(Default)]
struct Options {
    events: Option<File>,
    cpus: Option<String>,
    restart: bool,
    command: Vec<OsString>,
}

fn main() {
    let options = options();
    let mut events = options.events;
    let mut note = |text: String| {
        if let Some(file) = &mut events {
            writeln!(file, "{text}").expect("the events file is writable");
        }
    };
    let Some((name, args)) = options.command.split_first() else { fail("no program", 2) };
    let program = Program::find(name).unwrap_or_else(|why| fail(&why, why.exit_code()));
    let launch = Launch {
        program,
        args: args.to_vec(),
        env: vec![("SUPERVISED".into(), Some("1".into()))],
        cpus: options.cpus.map(|list| list.parse().unwrap_or_else(|why| fail(why, 2))),
        hold_stdio: options.restart,
    };
    let mut child = Supervised::spawn(&launch).unwrap_or_else(|why| refuse(&why));
    note(format!("started {}", child.pid()));
    let mut restart = options.restart;
    loop {
        match child.wait_until(Instant::now() + TICK).unwrap_or_else(|why| fail(why, 1)) {
            Event::Tick if restart => {
                restart = false;
                let killed = child.kill_for_restart(GRACE).unwrap_or_else(|why| fail(why, 1));
                note(format!("killed {}", killed.status));
                child.respawn(&launch).unwrap_or_else(|why| refuse(&why));
                note(format!("started {}", child.pid()));
            }
            Event::Tick => note("tick".into()),
            Event::Stopped(signal) => note(format!("stopped {signal}")),
            Event::Continued => note("continued".into()),
            Event::Undelivered { signal, why } => note(format!("undelivered {signal}: {why}")),
            Event::Exited(status) => {
                let cpu_ms = child.usage().map_or(0, |u| (u.user + u.system).as_millis());
                note(format!("exited {status}, {cpu_ms} ms of CPU"));
                child.finish(status);
            }
        }
    }
}

fn options() -> Options {
    let mut options = Options::default();
    let mut args = std::env::args_os().skip(1);
    while let Some(arg) = args.next() {
        let mut text = || args.next().and_then(|v| v.into_string().ok()).unwrap_or_default();
        match arg.to_str() {
            Some("--events") => {
                let file = OpenOptions::new().create(true).append(true).open(text());
                options.events = Some(file.unwrap_or_else(|why| fail(why, 2)));
            }
            Some("--cpus") => options.cpus = Some(text()),
            Some("--restart") => options.restart = true,
            _ => {
                options.command.extend((arg != OsStr::new("--")).then_some(arg));
                options.command.extend(args);
                break;
            }
        }
    }
    options
}

fn refuse(why: &LaunchError) -> ! {
    if let LaunchError::Interrupted(signal) = why {
        end_like(ExitStatus::from_raw(*signal));
    }
    fail(why, why.exit_code())
}

fn fail(why: impl std::fmt::Display, code: u8) -> ! {
    eprintln!("supervise: {why}");
    exit(code.into())
}

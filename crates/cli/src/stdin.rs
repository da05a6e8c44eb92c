//! Standard input of a command that runs a program several times.

use std::fs::{self, File};
use std::io::{IsTerminal, Read, Seek, SeekFrom};
use std::process::Stdio;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use anyhow::{Context, Result};

const STDIN: &str = "/proc/self/fd/0";

/// Standard input, which every run gets from its beginning.
pub(crate) enum Input {
    /// A file, which a program may look at, too, and from where.
    File(u64),
    /// What there was to read.
    Text(Vec<u8>),
}

impl Input {
    /// That of this process; reads what is no file to its end.
    pub(crate) fn of_this_process() -> Result<Input> {
        let stdin = std::io::stdin();
        let is_file = fs::metadata(STDIN).is_ok_and(|about| about.is_file()) && File::open(STDIN).is_ok();
        if is_file && let Ok(at) = rustix::fs::tell(&stdin) {
            return Ok(Input::File(at));
        }
        let mut text = vec![];
        if !stdin.is_terminal() {
            let (read, done) = channel::<()>();
            let reminder = std::thread::spawn(move || {
                if done.recv_timeout(Duration::from_secs(1)) == Err(RecvTimeoutError::Timeout) {
                    tell!("corefit: reading standard input to its end: every run gets it (none: </dev/null)");
                }
            });
            stdin.lock().read_to_end(&mut text).context("cannot read stdin, which every run gets")?;
            drop(read);
            let _ = reminder.join();
        }
        Ok(Input::Text(text))
    }

    /// For a run: a pipe for text, which is to be fed.
    pub(crate) fn stdio(&self) -> Result<Stdio> {
        let Input::File(at) = self else { return Ok(Stdio::piped()) };
        let mut file = File::open(STDIN).context("cannot read stdin, which every run gets")?;
        file.seek(SeekFrom::Start(*at))?;
        Ok(file.into())
    }
}

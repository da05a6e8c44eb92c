//! One run of a program under trial, and how it differs from another.

use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use corefit_core::check::count;
use corefit_linux::identity::{Identifier, Identity};
use corefit_linux::launch::{die_with_parent, passive};
use corefit_linux::page::{Orders, TeamPage};
use corefit_linux::sample;
use corefit_linux::threads::ended_children;
use regex::bytes::Regex;

use super::follow::{Followed, to_its_end};
use super::{Args, HINT};
use crate::interrupt::Interrupt;
use crate::preload::{self, OPENMP, OURS};
use crate::stdin::Input;
use crate::verdicts::Verdict;

/// Runs at the fixed size that show whether what differed with random sizes differs without them: a time that is printed
/// coarsely is often the same twice.
const AGAIN: usize = 5;

/// What one run showed.
pub(super) struct Seen {
    pub(super) output: Output,
    pub(super) identity: Option<Identity>,
    pub(super) regions: u64,
    pub(super) resized: u64,
    /// Threads that the last outermost region asked for.
    pub(super) requested: u32,
    pub(super) dynamic: bool,
    /// How long it took until it ended itself, s.
    pub(super) wall_s: f64,
    /// Whether it was ended since it took too long.
    pub(super) hung: bool,
    /// What it left running could still print then, which is not compared.
    pub(super) cut: bool,
    /// Whether a child of it began regions.
    pub(super) children: bool,
    /// How often a thread of it went to sleep.
    sleeps: u64,
}

impl Seen {
    /// Whether threads hardly ever waited for each other: regions of 50 ms and more on average, and
    /// beside some sleeps to begin and end each of them next to none (20 per thread and second).
    /// Such threads lose nothing by sharing CPUs (measured here beside two busy loops on 2 CPUs, 20
    /// regions of 13 ms: one thread 0.31 to 0.36 s, two 0.29 to 0.31 s). Threads that spin on flags
    /// of their own within such a region are not seen; they fare as without corefit.
    pub(super) fn independent(&self, threads: u32) -> bool {
        let (regions, sleeps) = (self.regions as f64, self.sleeps as f64);
        let expected = 4.0 * (regions + 1.0) + 20.0 * self.wall_s;
        self.wall_s >= 0.05 * regions && sleeps <= f64::from(threads) * expected
    }
}

/// A line of the output, ignored ones not counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Line {
    stream: Stream,
    at: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stream {
    Stdout,
    Stderr,
}

impl Stream {
    fn of(self, seen: &Seen) -> &[u8] {
        match self {
            Stream::Stdout => &seen.output.stdout,
            Stream::Stderr => &seen.output.stderr,
        }
    }
}

/// What is the same for all runs.
pub(super) struct Trial<'a> {
    args: &'a Args,
    library: PathBuf,
    pub(super) threads: u32,
    input: Input,
    identifier: Mutex<Identifier>,
    interrupt: Interrupt,
}

impl<'a> Trial<'a> {
    pub(super) fn prepare(args: &'a Args) -> Result<Trial<'a>> {
        let library = preload::find(&OPENMP).map_err(anyhow::Error::msg)?;
        let allowed = sample::affinity(std::process::id()).map_or(1, |a| a.len());
        let threads = args.threads.unwrap_or(u32::try_from(allowed)?.max(4));
        let input = Input::of_this_process()?;
        let interrupt = Interrupt::install()?;
        Ok(Trial { args, library, threads, input, identifier: Mutex::default(), interrupt })
    }

    /// Runs the program: at a fixed size, or with random team sizes; ends it after `limit`. Once more where it ended while its
    /// libraries were hashed, which need not be again.
    pub(super) fn run(&self, seed: Option<u64>, limit: Option<Duration>) -> Result<Seen> {
        let seen = self.run_once(seed, limit)?;
        if seen.identity.is_none() && seen.regions > 0 && !seen.hung {
            self.run_once(seed, limit)
        } else {
            Ok(seen)
        }
    }

    fn run_once(&self, seed: Option<u64>, limit: Option<Duration>) -> Result<Seen> {
        let orders = Orders { random: seed.is_some(), count: true, any: true, ..Orders::default() };
        let page = TeamPage::create(orders, true, None, seed.unwrap_or(1))?;
        let (name, value) = page.variable();
        let mut command = Command::new(&self.args.command[0]);
        command
            .args(&self.args.command[1..])
            .env(
                "LD_PRELOAD",
                preload::variable(std::slice::from_ref(&self.library), std::env::var_os("LD_PRELOAD")),
            )
            .env(name, value)
            .stdin(self.input.stdio()?)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        if std::env::var_os("OMP_NUM_THREADS").is_none() {
            command.env("OMP_NUM_THREADS", self.threads.to_string());
        }
        // More threads than CPUs must not spin, or a trial takes minutes; and who waits must sleep, or it is not seen to wait.
        command.envs(passive(&|_| None).set);
        self.interrupt.check()?;
        let (start, slept) = (Instant::now(), ended_children().voluntary_switches);
        // Sizes are ours alone, and a program that hangs is to be ended with all that it started.
        command.env_remove("OMP_DYNAMIC").env_remove("OMP_THREAD_LIMIT").process_group(0);
        die_with_parent(&mut command);
        let child = command
            .spawn()
            .with_context(|| format!("cannot run {}", self.args.command[0].to_string_lossy()))?;
        let pid = child.id();
        let done = AtomicBool::new(false);
        let input = if let Input::Text(text) = &self.input { text } else { &[][..] };
        let (followed, identity) = std::thread::scope(|scope| {
            let watch = scope.spawn(|| self.watch(&page, pid, &done));
            let followed = to_its_end(child, input, start, limit, &self.interrupt);
            done.store(true, Ordering::Relaxed);
            page.interrupt();
            (followed, watch.join().unwrap_or_default())
        });
        let Followed { output, wall_s, hung, cut } = followed?;
        let processes = page.processes();
        let last = processes.iter().find(|p| p.pid == pid);
        Ok(Seen {
            output,
            identity,
            regions: last.map_or(0, |p| p.regions),
            requested: last.map_or(0, |p| p.requested),
            resized: last.map_or(0, |p| p.resized),
            dynamic: last.is_some_and(|p| p.dynamic),
            wall_s,
            hung,
            cut,
            children: processes.iter().any(|p| p.pid != pid),
            sleeps: ended_children().voluntary_switches.saturating_sub(slept),
        })
    }

    /// How a run differs from what is right, in words; `None` if it does not.
    pub(super) fn wrong(&self, first: &Seen, seen: &Seen) -> Result<Option<String>> {
        if seen.hung {
            return Ok(Some(format!("it had not ended after {:.0} s", seen.wall_s)));
        }
        let (a, b) = (&first.output, &seen.output);
        if self.args.check.is_none() && a.status != b.status {
            return Ok(Some(format!("it ended otherwise: {} instead of {}", b.status, a.status)));
        }
        if b.status.signal().is_some() {
            return Ok(Some(format!("it died: {}", b.status)));
        }
        let wrong = match &self.args.check {
            Some(check) => self.check(check, b)?,
            None => self.unequal(first, seen).first().map(|line| self.shown(first, seen, *line)),
        };
        if let Some(wrong) = &wrong
            && first.cut != seen.cut
        {
            bail!(
                "what {} leaves running still held its output a second after its end in one run and not in another, so nothing \
                 can be concluded: {wrong}",
                self.args.command[0].to_string_lossy()
            );
        }
        Ok(wrong)
    }

    /// The lines of the output that make a run wrong; none if it is wrong for another reason.
    pub(super) fn differing(&self, first: &Seen, seen: &Seen) -> Vec<Line> {
        let by_output = self.args.check.is_none() && !seen.hung && first.output.status == seen.output.status;
        if by_output { self.unequal(first, seen) } else { vec![] }
    }

    /// The first of the lines that differed with random sizes which does not differ at the fixed one.
    ///
    /// # Errors
    /// That there is none, or that a run failed.
    pub(super) fn differs_by_size(
        &self,
        first: &Seen,
        mut lines: Vec<Line>,
        limit: Duration,
    ) -> Result<Line> {
        for _ in 0..AGAIN {
            let again = self.run(None, Some(limit))?;
            let Some(same) = self.wrong(first, &again)? else { continue };
            let theirs = self.differing(first, &again);
            lines.retain(|line| !theirs.contains(line));
            if lines.is_empty() {
                bail!(
                    "what differs with random team sizes differs at a fixed size of {} threads, too, so nothing can be concluded: \
                     {same}\n  {HINT}",
                    self.threads
                );
            }
        }
        Ok(lines[0])
    }

    /// Lines of an output that count.
    pub(super) fn compared(&self, output: &Output) -> usize {
        let counted = |text| lines(text, &self.args.ignore).iter().filter(|l| !l.is_empty()).count();
        counted(&output.stdout) + counted(&output.stderr)
    }

    /// Lines in which two outputs differ, ignored ones left out.
    fn unequal(&self, first: &Seen, seen: &Seen) -> Vec<Line> {
        let of = |stream: Stream| {
            let [a, b] = [first, seen].map(|seen| lines(stream.of(seen), &self.args.ignore));
            let all = 0..a.len().max(b.len());
            all.filter(move |&at| a.get(at) != b.get(at)).map(move |at| Line { stream, at })
        };
        [Stream::Stdout, Stream::Stderr].into_iter().flat_map(of).collect()
    }

    /// Such a line, in words.
    pub(super) fn shown(&self, first: &Seen, seen: &Seen, line: Line) -> String {
        let show = |seen: &Seen| {
            let lines = lines(line.stream.of(seen), &self.args.ignore);
            lines.get(line.at).map_or("no more lines".into(), |l| format!("{:?}", String::from_utf8_lossy(l)))
        };
        let name = match line.stream {
            Stream::Stdout => "stdout",
            Stream::Stderr => "stderr",
        };
        format!("{name} differs: {} instead of {}", show(seen), show(first))
    }

    fn check(&self, check: &str, output: &Output) -> Result<Option<String>> {
        let mut command = Command::new("/bin/sh");
        command
            .args(["-c", check])
            .env("COREFIT_EXIT", output.status.code().unwrap_or(-1).to_string())
            .stdin(Stdio::piped());
        die_with_parent(&mut command);
        // In our process group: a judge that asks the user may read the terminal, and what the user types there ends all of it.
        let child = command.spawn().context("cannot run /bin/sh for --check")?;
        let status = to_its_end(child, &output.stdout, Instant::now(), None, &self.interrupt)?.output.status;
        Ok((!status.success()).then(|| format!("--check {check:?} says no: {status}")))
    }

    /// A favourable verdict, to be turned if a run shows otherwise.
    pub(super) fn verdict(&self, program: &Path, identity: &Identity, requested: u32) -> Result<Verdict> {
        // What the program never asked for was never tried.
        let most = if requested > 1 { self.threads.min(requested) } else { self.threads };
        let command = &self.args.command;
        let launch = self.identifying().launch(program, command)?;
        Ok(Verdict {
            identity: identity.hash.clone(),
            launch,
            resizable: true,
            reason: format!(
                "{} with random team sizes from 1 to {} gave {}",
                count(self.args.runs as usize, "run"),
                most,
                if self.args.check.is_some() {
                    "what --check calls right"
                } else {
                    "the same output (files that it writes were not compared; --check does that)"
                }
            ),
            most,
            independent: false,
            command: command.iter().map(|a| a.to_string_lossy().into_owned()).collect(),
            version: env!("CARGO_PKG_VERSION").into(),
        })
    }

    /// Identifies the program when it begins its first region, and lets it and its children go on.
    fn watch(&self, page: &TeamPage, pid: u32, done: &AtomicBool) -> Option<Identity> {
        let mut identity = None;
        let mut seen = 0;
        while !done.load(Ordering::Relaxed) {
            let now = page.wait_registration(seen, Duration::from_secs(1));
            if now == seen {
                continue;
            }
            seen = now;
            for process in page.processes() {
                if process.pid == pid {
                    // The last image counts (a script may exec the program); an ended one shows nothing.
                    identity = self.identifying().process(pid, OURS).ok().or(identity);
                }
                page.answer(process.slot);
            }
        }
        identity
    }

    pub(super) fn identifying(&self) -> MutexGuard<'_, Identifier> {
        self.identifier.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn lines<'t>(text: &'t [u8], ignore: &[Regex]) -> Vec<&'t [u8]> {
    let lines = text.split(|c| *c == b'\n');
    lines.filter(|l| !ignore.iter().any(|r| r.is_match(l))).collect()
}

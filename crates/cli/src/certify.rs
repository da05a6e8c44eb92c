//! `corefit certify`: finds out whether a program computes the same when its thread teams
//! change size, and remembers it for exactly that binary, its libraries and its arguments.
//!
//! Two runs at a fixed size show what the program prints and that it prints the same twice.
//! Then it runs with a random size for every parallel region, several times with other seeds.
//! A program that passes may still hide a dependence that no seed met: more `--runs` find more.

use std::ffi::OsString;
use std::io::{IsTerminal, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use corefit_linux::identity::{Identifier, Identity};
use corefit_linux::page::{Orders, TeamPage};
use corefit_linux::sample;
use regex::bytes::Regex;

use crate::preload::{self, LIBRARY};
use crate::verdicts::{Store, Verdict};

/// Find out whether a program may be resized while it runs, and remember it
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Runs with random team sizes
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    runs: u32,
    /// Largest team [default: the CPUs allowed, at least 4]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=1024))]
    threads: Option<u32>,
    /// Leave out output lines that match (times, rates); may be repeated
    #[arg(long, value_name = "REGEX")]
    ignore: Vec<Regex>,
    /// Judge each run by this shell command instead of comparing output: exit 0 is right.
    /// It gets the output on stdin and runs where the program ran
    #[arg(long, value_name = "COMMAND")]
    check: Option<String>,
    /// First seed of the random sizes
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<OsString>,
}

/// What one run showed.
struct Seen {
    output: Output,
    identity: Option<Identity>,
    regions: u64,
    resized: u64,
    dynamic: bool,
    /// How long it took, s.
    wall_s: f64,
    /// How often a thread of it went to sleep.
    sleeps: u64,
}

impl Seen {
    /// Whether threads hardly ever waited for each other: regions of 50 ms and more on average, and
    /// beside some sleeps to begin and end each of them next to none (20 per thread and second).
    /// Such threads lose nothing by sharing CPUs (measured here beside two busy loops on 2 CPUs, 20
    /// regions of 13 ms: one thread 0.31 to 0.36 s, two 0.29 to 0.31 s). Threads that spin on flags
    /// of their own within such a region are not seen; they fare as without corefit.
    fn independent(&self, threads: u32) -> bool {
        #[expect(clippy::cast_precision_loss, reason = "counts of one run")]
        let (regions, sleeps) = (self.regions as f64, self.sleeps as f64);
        let expected = 4.0 * (regions + 1.0) + 20.0 * self.wall_s;
        self.wall_s >= 0.05 * regions && sleeps <= f64::from(threads) * expected
    }
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let trial = Trial::prepare(args)?;
    let first = trial.run(None)?;
    let Some(identity) = first.identity.clone() else {
        bail!(
            "{} began no OpenMP parallel region that corefit could see: there is nothing to resize (is it statically linked, or not an OpenMP program?)",
            args.command[0].to_string_lossy()
        );
    };
    if let Some(wrong) = trial.wrong(&first, &first)? {
        bail!("the program fails already at a fixed size: {wrong}");
    }
    let second = trial.run(None)?;
    if let Some(differs) = trial.wrong(&first, &second)? {
        bail!(
            "two runs at a fixed size of {} threads differ, so nothing can be concluded: {differs}\n  leave such lines out with --ignore REGEX, or judge with --check COMMAND",
            trial.threads
        );
    }
    let mut verdict = trial.verdict(&identity)?;
    verdict.independent = first.independent(trial.threads) && second.independent(trial.threads);
    let mut resized = 0;
    for n in 0..args.runs {
        let seed = args.seed.wrapping_add(n.into());
        let seen = trial.run(Some(seed))?;
        if seen.identity.as_ref() != Some(&identity) {
            bail!("the program or its libraries changed between two runs");
        }
        if let Some(differs) = trial.wrong(&first, &seen)? {
            verdict.resizable = false;
            verdict.reason = format!("with random team sizes (seed {seed}) {differs}");
            break;
        }
        resized += seen.resized;
        println!("seed {seed}: same result, {} of {} regions resized", seen.resized, seen.regions);
        if seen.dynamic && n == 0 {
            println!(
                "note: the program enables OpenMP dynamic adjustment, so it is resized without a certificate, too"
            );
        }
    }
    if verdict.resizable && resized == 0 {
        bail!(
            "no region was given another size in {} runs, so nothing was learned: try more --runs, or other seeds with --seed",
            args.runs
        );
    }
    let file = Store::open().save(&verdict)?;
    if verdict.resizable && verdict.independent {
        println!("its threads hardly ever wait for each other: its teams follow limits, not neighbours");
    }
    println!("{}: {}", if verdict.resizable { "certified" } else { "NOT certified" }, verdict.reason);
    println!(
        "identity {} ({} with {} libraries)",
        &verdict.identity[..16],
        identity.program.display(),
        identity.libraries.len()
    );
    println!("remembered in {}", file.display());
    Ok(ExitCode::from(u8::from(!verdict.resizable)))
}

/// What is the same for all runs.
struct Trial<'a> {
    args: &'a Args,
    library: PathBuf,
    threads: u32,
    input: Vec<u8>,
}

impl<'a> Trial<'a> {
    fn prepare(args: &'a Args) -> Result<Trial<'a>> {
        let library = preload::library().map_err(anyhow::Error::msg)?;
        let allowed = sample::affinity(std::process::id()).map_or(1, |a| a.len());
        let threads = args.threads.unwrap_or(u32::try_from(allowed)?.max(4));
        let mut input = vec![];
        if !std::io::stdin().is_terminal() {
            std::io::stdin().read_to_end(&mut input).context("cannot read stdin, which every run gets")?;
        }
        Ok(Trial { args, library, threads, input })
    }

    /// Runs the program: at a fixed size, or with random team sizes.
    fn run(&self, seed: Option<u64>) -> Result<Seen> {
        let orders = Orders { random: seed.is_some(), count: true, any: true, ..Orders::default() };
        let page = TeamPage::create(orders, true, None, seed.unwrap_or(1))?;
        let (name, value) = page.variable();
        let mut command = Command::new(&self.args.command[0]);
        command
            .args(&self.args.command[1..])
            .env("LD_PRELOAD", preload::variable(&self.library, std::env::var_os("LD_PRELOAD")))
            .env(name, value)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        for (name, value) in [
            ("OMP_NUM_THREADS", self.threads.to_string()),
            // More threads than CPUs must not spin, or a trial takes minutes.
            ("OMP_WAIT_POLICY", "passive".into()),
        ] {
            if std::env::var_os(name).is_none() {
                command.env(name, value);
            }
        }
        let (start, slept) = (Instant::now(), sample::children_slept());
        let mut child = command
            .spawn()
            .with_context(|| format!("cannot run {}", self.args.command[0].to_string_lossy()))?;
        let pid = child.id();
        let done = AtomicBool::new(false);
        let (output, identity, last) = std::thread::scope(|scope| {
            let watch = scope.spawn(|| watch(&page, pid, &done));
            let mut stdin = child.stdin.take();
            scope.spawn(move || {
                // A program that does not read its input is no error.
                let _ = stdin.as_mut().map(|s| s.write_all(&self.input));
            });
            let output = child.wait_with_output();
            done.store(true, Ordering::Relaxed);
            page.interrupt();
            let identity = watch.join().unwrap_or_default();
            let last = page.processes().into_iter().find(|p| p.pid == pid);
            (output, identity, last)
        });
        let wall_s = start.elapsed().as_secs_f64();
        Ok(Seen {
            output: output?,
            identity,
            regions: last.map_or(0, |p| p.regions),
            resized: last.map_or(0, |p| p.resized),
            dynamic: last.is_some_and(|p| p.dynamic),
            wall_s,
            sleeps: sample::children_slept().saturating_sub(slept),
        })
    }

    /// How a run differs from what is right, in words; `None` if it does not.
    fn wrong(&self, first: &Seen, seen: &Seen) -> Result<Option<String>> {
        if let Some(check) = &self.args.check {
            return self.check(check, &seen.output);
        }
        let (a, b) = (&first.output, &seen.output);
        if a.status != b.status {
            return Ok(Some(format!("it ended otherwise: {} instead of {}", b.status, a.status)));
        }
        if first.output.status.signal().is_some() {
            return Ok(Some(format!("it died: {}", a.status)));
        }
        for (name, a, b) in [("stdout", &a.stdout, &b.stdout), ("stderr", &a.stderr, &b.stderr)] {
            if let Some(line) = self.difference(a, b) {
                return Ok(Some(format!("{name} differs: {line}")));
            }
        }
        Ok(None)
    }

    /// The first difference between two outputs, ignored lines left out.
    fn difference(&self, a: &[u8], b: &[u8]) -> Option<String> {
        let a: Vec<&[u8]> = lines(a, &self.args.ignore);
        let b: Vec<&[u8]> = lines(b, &self.args.ignore);
        let at = (0..a.len().max(b.len())).find(|&i| a.get(i) != b.get(i))?;
        let show = |l: Option<&&[u8]>| {
            l.map_or("no more lines".into(), |l| format!("{:?}", String::from_utf8_lossy(l)))
        };
        Some(format!("{} instead of {}", show(b.get(at)), show(a.get(at))))
    }

    fn check(&self, check: &str, output: &Output) -> Result<Option<String>> {
        let mut child = Command::new("/bin/sh")
            .args(["-c", check])
            .env("COREFIT_EXIT", output.status.code().unwrap_or(-1).to_string())
            .stdin(Stdio::piped())
            .spawn()
            .context("cannot run /bin/sh for --check")?;
        let mut stdin = child.stdin.take().context("stdin of --check")?;
        let _ = stdin.write_all(&output.stdout);
        drop(stdin);
        let status = child.wait()?;
        Ok((!status.success()).then(|| format!("--check {check:?} says no: {status}")))
    }

    /// A favourable verdict, to be turned if a run shows otherwise.
    fn verdict(&self, identity: &Identity) -> Result<Verdict> {
        let command = &self.args.command;
        let program = which(&command[0]).unwrap_or_else(|| identity.program.clone());
        let launch = Identifier::default().launch(&program, command[1..].iter().map(|a| a.as_bytes()))?;
        Ok(Verdict {
            identity: identity.hash.clone(),
            launch,
            resizable: true,
            reason: format!(
                "{} runs with random team sizes from 1 to {} gave {}",
                self.args.runs,
                self.threads,
                if self.args.check.is_some() {
                    "what --check calls right"
                } else {
                    "the same output (files that it writes were not compared; --check does that)"
                }
            ),
            most: self.threads,
            independent: false,
            command: command.iter().map(|a| a.to_string_lossy().into_owned()).collect(),
            version: env!("CARGO_PKG_VERSION").into(),
        })
    }
}

fn lines<'t>(text: &'t [u8], ignore: &[Regex]) -> Vec<&'t [u8]> {
    let lines = text.split(|c| *c == b'\n');
    lines.filter(|l| !ignore.iter().any(|r| r.is_match(l))).collect()
}

/// Identifies the program when it begins its first region, and lets it and its children go on.
fn watch(page: &TeamPage, pid: u32, done: &AtomicBool) -> Option<Identity> {
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
                identity = Identifier::default().process(pid, LIBRARY).ok().or(identity);
            }
            page.answer(process.slot);
        }
    }
    identity
}

/// The file that a command name stands for.
pub(crate) fn which(name: &OsString) -> Option<PathBuf> {
    if name.as_bytes().contains(&b'/') {
        return Some(PathBuf::from(name));
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|d| d.join(name)).find(|f| f.is_file())
}

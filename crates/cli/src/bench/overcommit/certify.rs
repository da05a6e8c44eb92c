//! `corefit certify` before a program is measured: not counted, as it is done once in the life
//! of a program.

use anyhow::Result;

use super::conditions::Condition;
use super::measure::{Bench, Order};
use super::plan::Config;
use super::programs::{Case, Kind};
use crate::bench::job::{Finished, Quiet};

/// Output lines of a program that are other in every run, for `corefit certify --ignore`.
const TIMES: &str = "^(time_s|rate): ";
/// A certification makes five runs, with more threads than CPUs.
const CERTIFY_LIMIT: u32 = 10;

/// What `corefit certify` said.
#[derive(Clone, Debug)]
pub(super) struct Verdict {
    pub(super) certified: Option<bool>,
    pub(super) why: String,
}

impl Bench<'_> {
    /// Lets `corefit certify` judge a program, once for each environment and size.
    pub(super) fn certify(&mut self, condition: Condition, case: &Case, size: &str) -> Result<Verdict> {
        let not_asked = |why: &str| Ok(Verdict { certified: None, why: why.into() });
        match case.program.kind {
            Kind::OpenMp => {}
            Kind::Threads => return not_asked("not an OpenMP program"),
            Kind::Unsafe => return not_asked("to be protected without a verdict"),
        }
        let shim = condition == Condition::Sees16;
        let key = (case.path.clone(), size.to_owned(), shim);
        if let Some(verdict) = self.verdicts.get(&key) {
            self.progress.skip(1);
            return Ok(verdict.clone());
        }
        let what = format!("certify {} {} {size}", case.program.name, case.runtime.name());
        self.progress.begin(&what);
        // More threads than CPUs would make those that spin on flags take minutes.
        let threads = self.arena.cpus().len().max(2).to_string();
        let exe = self.arena.exe().as_os_str();
        let mut argv = vec![exe.to_owned()];
        argv.extend(["certify", "--ignore", TIMES, "--threads", &threads, "--"].map(Into::into));
        argv.extend(self.program(case, size, Config::Default));
        let order = Order {
            argv,
            env: self.shim(condition),
            cpus: self.arena.cpus(),
            limit: self.settings.limit * CERTIFY_LIMIT,
        };
        let finished = self.execute(order, &mut Quiet)?;
        let verdict = judge(&finished);
        self.progress.end(&what, &verdict.why);
        self.verdicts.insert(key, verdict.clone());
        Ok(verdict)
    }
}

fn judge(finished: &Finished) -> Verdict {
    let line = |text: &str, start: &str| {
        let found = text.lines().find(|l| l.starts_with(start));
        found.map(|l| l[start.len()..].trim().to_owned())
    };
    let out = |start| line(&finished.stdout, start);
    let (certified, why) = match finished.status.and_then(|s| s.code()) {
        Some(0) => (Some(true), out("certified:")),
        Some(1) => (Some(false), out("NOT certified:")),
        _ if finished.cut_off() => (Some(false), Some("it took too long".into())),
        _ => (Some(false), line(&finished.stderr, "corefit:")),
    };
    Verdict { certified, why: why.unwrap_or_else(|| "corefit certify gave no reason".into()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::job::Used;
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;
    use std::time::Duration;

    #[test]
    fn a_verdict_is_read_from_what_certify_prints() {
        let finished = |code: i32, stdout: &str, stderr: &str| Finished {
            wall: Duration::ZERO,
            status: Some(ExitStatus::from_raw(code << 8)),
            stdout: stdout.into(),
            stderr: stderr.into(),
            used: Used::default(),
        };
        let yes = judge(&finished(0, "seed 1: same\ncertified: 3 runs\nidentity x\n", ""));
        assert_eq!((yes.certified, yes.why.as_str()), (Some(true), "3 runs"));
        let no = judge(&finished(1, "NOT certified: differs\n", ""));
        assert_eq!((no.certified, no.why.as_str()), (Some(false), "differs"));
        let failed = judge(&finished(2, "", "corefit: no region\n  a remedy\n"));
        assert_eq!(failed.certified, Some(false));
        assert_eq!(failed.why, "no region");
    }
}

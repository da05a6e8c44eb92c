//! From text to operations.

use super::{Length, LockUse, Op, Program, Spread};

/// Loops in loops.
const MAX_DEPTH: usize = 8;
/// Blocks of any kind in each other.
const MAX_NESTED: usize = 64;
/// The most rounds of a loop: one more is without end, [`Op::Repeat`].
const MAX_ROUNDS: u32 = u32::MAX - 1;
/// Operations of a program.
const MAX_OPS: usize = 60_000;
/// The longest single length, s.
const MAX_SECONDS: f64 = 3600.0;
const OPERATIONS: &str = "compute, sleep, repeat, forever, parallel, single, barrier, kernel, userspin, mutex, \
    post, put, wait or mark";

/// What is wrong with a program's text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct ProgramError {
    /// In the program's text, from 1.
    pub line: usize,
    /// What, and what would be right.
    pub what: String,
}

pub(super) fn parse(text: &str) -> Result<Program, ProgramError> {
    let mut tokens = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let code = line.split('#').next().unwrap_or_default();
        let code = code.replace('{', " { ").replace('}', " } ");
        tokens.extend(code.split_whitespace().map(|token| (number + 1, token.to_owned())));
    }
    let mut parser = Parser {
        tokens,
        at: 0,
        program: Program {
            ops: vec![],
            lengths: vec![],
            locks: 0,
            channels: 0,
            forks: false,
            endless: false,
        },
        locks: vec![],
        channels: vec![],
        held: vec![],
        depth: 0,
        nested: 0,
        parallel: false,
        single: false,
        serial: vec![],
    };
    parser.block(false)?;
    if parser.program.forks {
        parser.alone()?;
    }
    let program = &mut parser.program;
    program.ops.push(Op::End);
    program.locks = u16::try_from(parser.locks.len()).unwrap_or(u16::MAX);
    program.channels = u16::try_from(parser.channels.len()).unwrap_or(u16::MAX);
    if program.lengths.is_empty() {
        return Err(ProgramError {
            line: 1,
            what: "it does nothing; give at least one compute or sleep".into(),
        });
    }
    Ok(parser.program)
}

struct Parser {
    tokens: Vec<(usize, String)>,
    at: usize,
    program: Program,
    locks: Vec<(LockUse, String)>,
    channels: Vec<String>,
    held: Vec<(LockUse, u16)>,
    /// Loops that this is in, and blocks of any kind.
    depth: usize,
    nested: usize,
    parallel: bool,
    single: bool,
    /// Operations for a team that stand outside of `parallel`, and their tokens.
    serial: Vec<(usize, usize)>,
}

impl Parser {
    fn error<T>(&self, what: impl Into<String>) -> Result<T, ProgramError> {
        let line = self.tokens.get(self.at.saturating_sub(1)).or(self.tokens.last()).map_or(1, |t| t.0);
        Err(ProgramError { line, what: what.into() })
    }

    fn take(&mut self) -> Option<String> {
        let token = self.tokens.get(self.at).map(|t| t.1.clone());
        self.at += usize::from(token.is_some());
        token
    }

    fn peek(&self) -> Option<&str> {
        self.tokens.get(self.at).map(|t| t.1.as_str())
    }

    fn here(&self) -> u32 {
        u32::try_from(self.program.ops.len()).unwrap_or(u32::MAX)
    }

    fn open(&mut self) -> Result<(), ProgramError> {
        match self.take().as_deref() {
            Some("{") => Ok(()),
            other => self.error(format!("{} stands where a {{ should", quoted(other))),
        }
    }

    /// Operations up to the closing brace, or to the end of the text.
    fn block(&mut self, inner: bool) -> Result<(), ProgramError> {
        if self.nested == MAX_NESTED {
            return self.error(format!("blocks stand more than {MAX_NESTED} deep in each other"));
        }
        self.nested += usize::from(inner);
        let begin = self.program.ops.len();
        let mut endless = false;
        loop {
            match self.take().as_deref() {
                None if inner => return self.error("a { is not closed"),
                None => return Ok(()),
                Some("}") if !inner => return self.error("a } too many"),
                Some("}") if self.program.ops.len() == begin => {
                    return self.error("a loop has nothing in it");
                }
                Some("}") => {
                    self.nested -= 1;
                    return Ok(());
                }
                Some(_) if endless => return self.error("nothing that stands after forever is ever reached"),
                Some(word) => {
                    endless = word == "forever";
                    self.operation(word)?;
                }
            }
        }
    }

    fn operation(&mut self, word: &str) -> Result<(), ProgramError> {
        if self.program.ops.len() >= MAX_OPS {
            return self.error(format!("the program has more than {MAX_OPS} operations"));
        }
        let kernel = self.held.iter().any(|(kind, _)| *kind == LockUse::Kernel);
        if kernel && ["sleep", "mutex", "userspin"].contains(&word) {
            return self
                .error(format!("{word} under a lock of the kernel is a fault of a kernel; put it outside"));
        }
        if !self.parallel {
            self.serial.push((self.program.ops.len(), self.at));
        }
        match word {
            "compute" | "sleep" => {
                let length = self.length()?;
                let index = u16::try_from(self.program.lengths.len()).unwrap_or(u16::MAX);
                self.program.lengths.push(length);
                self.program.ops.push(if word == "compute" { Op::Compute(index) } else { Op::Sleep(index) });
            }
            "repeat" => {
                let token = self.take();
                match token.as_deref().and_then(|t| t.parse().ok()).filter(|n| (1..=MAX_ROUNDS).contains(n)) {
                    Some(times) => self.repeat(times)?,
                    None => {
                        return self.error(format!(
                            "{} is no count; give 1 to {MAX_ROUNDS}",
                            quoted(token.as_deref())
                        ));
                    }
                }
            }
            "forever" => {
                self.program.endless = true;
                self.repeat(u32::MAX)?;
            }
            "parallel" => self.parallel()?,
            "single" => self.single()?,
            "barrier" => {
                self.no_waiting("barrier")?;
                self.program.ops.push(Op::Barrier);
            }
            "kernel" => self.lock(LockUse::Kernel)?,
            "userspin" => self.lock(LockUse::User)?,
            "mutex" => self.lock(LockUse::Mutex)?,
            "post" => {
                let channel = self.channel()?;
                self.program.ops.push(Op::Post(channel));
            }
            "wait" => {
                let (channel, next) = self.neighbour("wait")?;
                self.program.ops.push(Op::Wait { channel, next });
            }
            "put" => {
                let (channel, next) = self.neighbour("put")?;
                self.program.ops.push(Op::Put { channel, next });
            }
            "mark" => self.program.ops.push(Op::Mark),
            other => return self.error(format!("{other:?} is no operation; give {OPERATIONS}")),
        }
        Ok(())
    }

    /// Outside of `parallel` the first member is alone, in a team of one.
    fn alone(&mut self) -> Result<(), ProgramError> {
        for (op, at) in std::mem::take(&mut self.serial) {
            match &mut self.program.ops[op] {
                Op::Compute(length) | Op::Sleep(length) => {
                    self.program.lengths[usize::from(*length)].split = false;
                }
                Op::Single { rotate, .. } => *rotate = false,
                Op::Barrier => {
                    self.at = at;
                    return self.error("barrier outside of parallel would wait for ever; put it inside");
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn no_waiting(&self, what: &str) -> Result<(), ProgramError> {
        if self.held.is_empty() && !self.single {
            return Ok(());
        }
        self.error(format!("{what} under a lock or in single would wait for ever; put it outside"))
    }

    fn repeat(&mut self, times: u32) -> Result<(), ProgramError> {
        self.open()?;
        if self.depth == MAX_DEPTH {
            return self.error(format!("loops stand more than {MAX_DEPTH} deep in each other"));
        }
        self.depth += 1;
        self.program.ops.push(Op::Repeat(times));
        let start = self.here();
        self.block(true)?;
        self.program.ops.push(Op::Again(start));
        self.depth -= 1;
        Ok(())
    }

    fn parallel(&mut self) -> Result<(), ProgramError> {
        if self.parallel {
            return self.error("parallel stands in a parallel; leave out the inner one");
        }
        self.no_waiting("parallel")?;
        self.open()?;
        self.parallel = true;
        self.program.forks = true;
        self.program.ops.push(Op::Fork);
        self.block(true)?;
        self.program.ops.push(Op::Join);
        self.program.ops.push(Op::Dock);
        self.parallel = false;
        Ok(())
    }

    fn single(&mut self) -> Result<(), ProgramError> {
        let rotate = self.peek() == Some("rotate");
        self.at += usize::from(rotate);
        if self.single {
            return self.error("single stands in a single; leave out the inner one");
        }
        self.open()?;
        let begin = self.program.ops.len();
        self.program.ops.push(Op::Single { rotate, end: 0 });
        self.single = true;
        self.block(true)?;
        self.single = false;
        let end = self.here();
        self.program.ops[begin] = Op::Single { rotate, end };
        Ok(())
    }

    fn lock(&mut self, kind: LockUse) -> Result<(), ProgramError> {
        let Some(name) = self.take() else { return self.error("a lock has no name") };
        let known = self.locks.iter().position(|(k, n)| *k == kind && *n == name);
        let index = known.unwrap_or_else(|| {
            self.locks.push((kind, name.clone()));
            self.locks.len() - 1
        });
        let index = u16::try_from(index).unwrap_or(u16::MAX);
        if self.held.contains(&(kind, index)) {
            return self.error(format!("lock {name} is taken already"));
        }
        self.open()?;
        self.held.push((kind, index));
        self.program.ops.push(Op::Acquire(kind, index));
        self.block(true)?;
        self.program.ops.push(Op::Release(kind, index));
        self.held.pop();
        Ok(())
    }

    /// A channel, and whether the neighbour is the member after.
    fn neighbour(&mut self, what: &str) -> Result<(u16, bool), ProgramError> {
        let channel = self.channel()?;
        let next = match self.take().as_deref() {
            Some("prev") => false,
            Some("next") => true,
            other => return self.error(format!("{} is nobody; give prev or next", quoted(other))),
        };
        self.no_waiting(what)?;
        Ok((channel, next))
    }

    fn channel(&mut self) -> Result<u16, ProgramError> {
        let Some(name) = self.take() else { return self.error("a channel has no name") };
        let index = self.channels.iter().position(|n| *n == name).unwrap_or_else(|| {
            self.channels.push(name);
            self.channels.len() - 1
        });
        Ok(u16::try_from(index).unwrap_or(u16::MAX))
    }

    fn length(&mut self) -> Result<Length, ProgramError> {
        let token = self.take();
        let Some(seconds) = token.as_deref().and_then(seconds) else {
            let token = quoted(token.as_deref());
            return self.error(format!("{token} is no time; give a number with ns, us, ms or s"));
        };
        if seconds > MAX_SECONDS {
            return self
                .error(format!("{} is too long; give at most {MAX_SECONDS}s", quoted(token.as_deref())));
        }
        // It would take a whole ns each time.
        if seconds > 0.0 && seconds < 1e-9 {
            let token = quoted(token.as_deref());
            return self.error(format!("{token} is shorter than the clock's 1ns; give 1ns or more, or 0ns"));
        }
        let mut length = Length { mean_ns: seconds * 1e9, spread: Spread::Constant, split: false };
        loop {
            match self.peek() {
                Some("split") => length.split = true,
                Some("exp" | "uniform" | "normal") if length.spread != Spread::Constant => {
                    return self
                        .error("a length varies in one way; leave out the other of exp, uniform and normal");
                }
                Some("exp") => length.spread = Spread::Exponential,
                Some(kind @ ("uniform" | "normal")) => {
                    let uniform = kind == "uniform";
                    self.at += 1;
                    let part = self.percent()?;
                    length.spread = if uniform { Spread::Uniform(part) } else { Spread::Normal(part) };
                    continue;
                }
                _ => return Ok(length),
            }
            self.at += 1;
        }
    }

    fn percent(&mut self) -> Result<f64, ProgramError> {
        let token = self.take();
        let number = token.as_deref().and_then(|t| t.strip_suffix('%')).and_then(|t| t.parse::<f64>().ok());
        match number.filter(|n| (0.0..=100.0).contains(n)) {
            Some(percent) => Ok(percent / 100.0),
            None => self.error(format!("{} is no part; give 0% to 100%", quoted(token.as_deref()))),
        }
    }
}

fn quoted(token: Option<&str>) -> String {
    token.map_or("the end".into(), |t| format!("{t:?}"))
}

/// `10us` in seconds.
pub(crate) fn seconds(text: &str) -> Option<f64> {
    let unit = text.find(|c: char| c.is_ascii_alphabetic())?;
    let scale = match &text[unit..] {
        "ns" => 1e-9,
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        _ => return None,
    };
    let number: f64 = text[..unit].parse().ok()?;
    (number >= 0.0 && number.is_finite()).then_some(number * scale)
}

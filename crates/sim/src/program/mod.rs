//! Programs: a small text, compiled to a list of operations with loops.
//!
//! ```text
//! repeat 250 {                   # all members, or only the first if the program has `parallel`
//!   parallel {                   # a team is forked, runs the body, and is joined
//!     compute 100us split exp    # `split`: divided by the size of the team
//!     barrier
//!     wait left prev             # until the member before has posted `left` once more
//!     single rotate { compute 1ms }   # one member only, in turn
//!     kernel 1 { compute 2us }   # under spin lock 1 of the guest's kernel
//!   }
//! }
//! ```
//!
//! | operation | meaning |
//! |---|---|
//! | `compute TIME [split] [DIST]` | work, as long as it takes at full speed |
//! | `sleep TIME [DIST]` | off the CPU: input, output, thinking |
//! | `repeat N { }`, `forever { }` | loops, at most 8 in each other |
//! | `parallel { }` | fork and join of a team; not in each other |
//! | `single [rotate] { }` | the first member only, or each in turn; others go on |
//! | `barrier` | all members of the team |
//! | `kernel L { }` | a spin lock in the guest's kernel, of the guest's kind: no preemption in the guest, waiting is seen by PLE |
//! | `userspin L { }` | a spin lock of the program, without pause: unseen, unfair |
//! | `mutex L { }` | a lock that blocks and lets others barge |
//! | `post C`, `wait C prev`, `wait C next` | channels of a pipeline, waited for by spinning without pause |
//! | `put C next`, `put C prev` | a post to one neighbour that first waits, likewise, until it took the last one: a flag |
//! | `mark` | counts: what a run that never ends is measured by |
//!
//! Blocks of any kind stand at most 64 deep in each other. In a program with `parallel`, what stands outside of it is
//! for a team of one: `split` and `rotate` mean nothing there, and `barrier` is refused. So are operations after
//! `forever`, and `sleep` or a lock of the program under `kernel`.
//!
//! DIST: `exp`, `uniform P%`, `normal P%` (P: half the width, the standard deviation). TIME: `10us`.

mod classes;
mod events;
mod library;
mod parse;

use crate::queue::Ns;
use crate::random::Stream;

pub use classes::{CLASSES, library_class};
pub use library::{NAMES, library};
pub use parse::ProgramError;
pub(crate) use parse::seconds;

/// Work in units of 1/1024 ns: what a pCPU of speed 1 (1024) does in a ns is 1024.
pub(crate) const FULL_SPEED: u64 = 1024;

/// How lengths vary.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Spread {
    Constant,
    Exponential,
    /// Half the width, of the mean.
    Uniform(f64),
    /// The standard deviation, of the mean.
    Normal(f64),
}

/// A length of time that varies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Length {
    pub(crate) mean_ns: f64,
    pub(crate) spread: Spread,
    /// Divided by the size of the team.
    pub(crate) split: bool,
}

impl Length {
    /// One draw, in units of 1/1024 ns; not below 0.
    #[inline]
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "saturates, and is bounded by the parser"
    )]
    pub(crate) fn draw(&self, stream: &mut Stream, team: u32) -> u64 {
        let mean = if self.split { self.mean_ns / f64::from(team.max(1)) } else { self.mean_ns };
        let factor = match self.spread {
            Spread::Constant => 1.0,
            Spread::Exponential => stream.exponential(),
            Spread::Uniform(half) => 1.0 + half * (2.0 * stream.unit() - 1.0),
            Spread::Normal(deviation) => (1.0 + deviation * stream.normal()).max(0.0),
        };
        (mean * factor * FULL_SPEED as f64) as u64
    }

    /// One draw in ns.
    pub(crate) fn draw_ns(&self, stream: &mut Stream) -> Ns {
        self.draw(stream, 1) / FULL_SPEED
    }
}

/// Who waits how for a lock of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LockUse {
    /// A spin lock of the guest's kernel.
    Kernel,
    /// A spin lock of the program, without pause.
    User,
    /// A lock that blocks.
    Mutex,
}

/// An operation. Jumps go to indices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    Compute(u16),
    Sleep(u16),
    Repeat(u32),
    Again(u32),
    Acquire(LockUse, u16),
    Release(LockUse, u16),
    Barrier,
    Post(u16),
    /// To the member before, or after, as soon as it took the last one.
    Put {
        channel: u16,
        next: bool,
    },
    /// From the member before, or after.
    Wait {
        channel: u16,
        next: bool,
    },
    /// Others go on at `end`.
    Single {
        rotate: bool,
        end: u32,
    },
    Fork,
    Join,
    /// Workers wait for the next team.
    Dock,
    Mark,
    End,
}

/// What the threads of an application do.
#[derive(Clone, Debug, PartialEq)]
pub struct Program {
    pub(crate) ops: Vec<Op>,
    pub(crate) lengths: Vec<Length>,
    /// Locks, by [`LockUse`]: numbers are 0 to n - 1.
    pub(crate) locks: u16,
    pub(crate) channels: u16,
    /// Only the first member begins; the others wait for `parallel`.
    pub(crate) forks: bool,
    /// It has no end.
    pub(crate) endless: bool,
}

impl Program {
    /// Compiles a text.
    ///
    /// # Errors
    /// The first mistake, with its line.
    pub fn compile(text: &str) -> Result<Program, ProgramError> {
        parse::parse(text)
    }

    /// Whether it has `parallel` sections, whose teams can change.
    #[must_use]
    pub fn has_teams(&self) -> bool {
        self.forks
    }

    /// Whether it runs for ever.
    #[must_use]
    pub fn is_endless(&self) -> bool {
        self.endless
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Purpose;

    #[test]
    fn a_program_becomes_a_list_with_jumps() {
        let program = Program::compile("repeat 2 { compute 1us split exp\n barrier }\nmark").unwrap();
        let expected = [Op::Repeat(2), Op::Compute(0), Op::Barrier, Op::Again(1), Op::Mark, Op::End];
        assert_eq!(program.ops, expected);
        assert!(!program.forks && !program.endless);
        let program = Program::compile("forever { parallel { kernel a { compute 1ms } } }").unwrap();
        assert!(program.forks && program.endless && program.locks == 1);
    }

    #[test]
    fn a_program_of_too_many_operations_is_told_where() {
        let told = Program::compile(&"compute 1us\n".repeat(100_000)).unwrap_err().to_string();
        assert_eq!(told, "line 60001: the program has more than 60000 operations");
    }

    #[test]
    fn mistakes_are_told_with_their_line_and_what_is_allowed() {
        for (text, said) in [
            ("compute 1us\nfrob", "line 2: \"frob\" is no operation; give compute, sleep, repeat"),
            ("compute 1", "line 1: \"1\" is no time; give a number with ns, us, ms or s"),
            (
                "compute 1s split exp uniform 5%",
                "line 1: a length varies in one way; leave out the other of exp,",
            ),
            ("repeat 3 {\ncompute 1us", "line 2: a { is not closed"),
            ("repeat 0 { compute 1us }", "line 1: \"0\" is no count; give 1 to 4294967294"),
            ("repeat 4294967295 { compute 1us }", "line 1: \"4294967295\" is no count; give 1 to"),
            ("parallel { parallel { compute 1us } }", "line 1: parallel stands in a parallel"),
            ("wait c left", "line 1: \"left\" is nobody; give prev or next"),
            ("forever { }", "line 1: a loop has nothing in it"),
            ("}", "line 1: a } too many"),
            ("compute 99999s", "line 1: \"99999s\" is too long; give at most 3600s"),
            ("kernel a { kernel a { compute 1us } }", "line 1: lock a is taken already"),
            (
                "compute 1us\nforever { mark\n compute 1us }\nmark",
                "line 4: nothing that stands after forever",
            ),
            ("kernel a {\nsleep 1us }", "line 2: sleep under a lock of the kernel is a fault"),
            ("kernel a { mutex b { compute 1us } }", "line 1: mutex under a lock of the kernel"),
            (
                "barrier\nparallel { compute 1us barrier }",
                "line 1: barrier outside of parallel would wait for ever; put it inside",
            ),
            (
                "mutex a { single { barrier } }",
                "line 1: barrier under a lock or in single would wait for ever",
            ),
        ] {
            let error = Program::compile(text).unwrap_err().to_string();
            assert!(error.starts_with(said), "{text}: {error}");
        }
    }

    #[test]
    fn blocks_stand_in_each_other_as_deep_as_is_said_and_no_stack_overflows() {
        let nested = |n: usize| {
            let open: String = (0..n).map(|i| format!("mutex l{i} {{ ")).collect();
            Program::compile(&(open + "compute 1us" + &" }".repeat(n)))
        };
        assert!(nested(63).is_ok());
        for n in [65, 100_000] {
            let error = nested(n).unwrap_err().to_string();
            assert_eq!(error, "line 1: blocks stand more than 64 deep in each other");
        }
    }

    #[test]
    fn outside_of_parallel_the_first_member_is_a_team_of_one() {
        let program =
            "compute 1us split single rotate { mark } parallel { compute 1us split single rotate { mark } }";
        let program = Program::compile(program).unwrap();
        assert_eq!(program.lengths.iter().map(|length| length.split).collect::<Vec<_>>(), [false, true]);
        let rotates = |op: &Op| if let Op::Single { rotate, .. } = op { Some(*rotate) } else { None };
        assert_eq!(program.ops.iter().filter_map(rotates).collect::<Vec<_>>(), [false, true]);
        assert!(Program::compile("compute 1us split barrier").unwrap().lengths[0].split, "all members do it");
    }

    #[test]
    fn lengths_have_their_mean() {
        let mut stream = Stream::new(1, 1, Purpose::Compute);
        for spread in [Spread::Constant, Spread::Exponential, Spread::Uniform(0.5), Spread::Normal(0.2)] {
            let length = Length { mean_ns: 4000.0, spread, split: true };
            let sum: u64 = (0..20_000).map(|_| length.draw(&mut stream, 4)).sum();
            let mean = sum as f64 / 20_000.0 / FULL_SPEED as f64;
            assert!((mean - 1000.0).abs() < 25.0, "{spread:?}: {mean}");
        }
    }

    #[test]
    fn the_library_compiles() {
        for name in NAMES {
            let text = library(name).unwrap();
            assert!(Program::compile(text).is_ok(), "{name}: {:?}", Program::compile(text));
        }
        assert!(library("nothing").is_none());
        for name in CLASSES {
            assert_eq!(library_class(name).map(|class| class.name).as_deref(), Some(name));
        }
    }
}

//! What was said once, and is not said again while it stays so.

use std::collections::BTreeMap;

/// Below so many everything is remembered.
const FEW: usize = 10_000;
/// Beyond, what came up within so many steps, however much that is: containers come and go, under ever new names.
const STEPS: u64 = 4_000;

/// What was said.
#[derive(Default)]
pub(super) struct Said {
    /// What of each was said last, and the step at which it came up last.
    known: BTreeMap<String, (String, u64)>,
    step: u64,
}

impl Said {
    /// A step begins: what has not come up for long is forgotten where there is much of it.
    pub(super) fn pass(&mut self) {
        self.step += 1;
        if self.known.len() > FEW {
            self.known.retain(|_, (_, last)| self.step - *last <= STEPS);
        }
    }

    /// Whether this of something was not what was said of it last; from now on it is.
    pub(super) fn is_new(&mut self, of: &str, what: &str) -> bool {
        match self.known.get_mut(of) {
            Some((said, last)) if said == what => {
                *last = self.step;
                false
            }
            _ => self.known.insert(of.into(), (what.into(), self.step)).is_none_or(|(said, _)| said != what),
        }
    }

    /// Whether something that begins so was said.
    pub(super) fn knows(&self, start: &str) -> bool {
        self.known.range(start.to_owned()..).next().is_some_and(|(of, _)| of.starts_with(start))
    }

    /// What begins so may be said again.
    pub(super) fn forget_of(&mut self, start: &str) {
        let found = self.known.range(start.to_owned()..).map(|(of, _)| of.clone());
        let found: Vec<String> = found.take_while(|of| of.starts_with(start)).collect();
        found.iter().for_each(|of| drop(self.known.remove(of)));
    }

    /// Some of it may be said again.
    pub(super) fn forget(&mut self, is: impl Fn(&str) -> bool) {
        self.known.retain(|of, _| !is(of));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_of_very_many_is_said_once_while_it_is_so() {
        let (many, mut said) = (3 * FEW, Said::default());
        let step = |said: &mut Said, what: &str| {
            said.pass();
            (0..many).filter(|n| said.is_new(&format!("vm{n}"), what)).count()
        };
        let counts = ["2", "2", "2", "3", "3"].map(|what| step(&mut said, what));
        assert_eq!(counts, [many, 0, 0, many, 0]);
    }

    #[test]
    fn what_begins_so_may_be_said_again_and_nothing_else() {
        let mut said = Said::default();
        let new =
            |said: &mut Said| ["a: x", "b: ", "b: x", "b: y", "b:", "c: x"].map(|of| said.is_new(of, ""));
        assert_eq!(new(&mut said), [true; 6]);
        said.forget_of("b: ");
        assert_eq!(new(&mut said), [false, true, true, true, false, false]);
    }

    #[test]
    fn of_very_many_those_are_forgotten_that_have_not_come_up_for_long() {
        let mut said = Said::default();
        for n in 0..=FEW {
            assert!(said.is_new(&n.to_string(), ""));
        }
        for _ in 0..=STEPS {
            said.pass();
            assert!(!said.is_new("7", ""));
        }
        assert_eq!(said.known.len(), 1);
    }
}

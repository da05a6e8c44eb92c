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

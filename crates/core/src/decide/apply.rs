//! What a plan says, done.

use super::{Action, Outcome};
use crate::machine::Act;

/// Does actions one after the other as who manages a host does, but for the journal: write, read back.
pub fn apply(machine: &mut dyn Act, actions: &[Action]) -> Vec<Outcome> {
    let one = |action: &Action| {
        let set = machine.set(&action.vm, action.lever, &action.to);
        let result = set.and_then(|()| machine.current(&action.vm, action.lever));
        Outcome { action: action.clone(), result }
    };
    actions.iter().map(one).collect()
}

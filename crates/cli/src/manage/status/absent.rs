//! What is said where no daemon answers: why, where another one is at work, and what is left changed.

use std::path::Path;

use super::{PATIENCE, answers, in_words, left, socket};
use crate::manage::{Boot, Journal, alone};

/// What is said where nobody answers.
pub(super) fn unanswered(state: &Path, error: &std::io::Error) -> Vec<String> {
    let mut lines = vec![format!("{}: {}", socket(state).display(), silent(error))];
    let others = alone::others(state).into_iter().filter(|other| answers(other));
    lines.extend(others.map(|other| {
        format!("one is at work with another directory: corefit status --state '{}'", other.display())
    }));
    // Whoever may not ask may not read that either.
    if error.kind() != std::io::ErrorKind::PermissionDenied {
        lines.extend(in_words(left(state)).or_else(|| nothing_left(state)));
    }
    lines
}

/// That nothing is changed any more by who was at work here; `None` if nobody was, or it is not so.
fn nothing_left(state: &Path) -> Option<String> {
    let (machine, settings) = Journal::left(state, &Boot::now(true).ok()?).ok()??;
    (settings == 0)
        .then(|| format!("by the journal there no setting of the machine {machine} is left changed"))
}

/// Why nothing came from it.
pub(super) fn silent(error: &std::io::Error) -> String {
    use std::io::ErrorKind::{ConnectionRefused, NotFound, PermissionDenied, TimedOut, WouldBlock};
    if error.kind() == PermissionDenied {
        return format!("{error}: it answers the user who runs the daemon and root");
    }
    if matches!(error.kind(), WouldBlock | TimedOut) {
        // The system took the call, the daemon did not.
        return format!(
            "the corefit manage there did not answer in {} s: it is stopped, or many ask at once; try again",
            PATIENCE.as_secs()
        );
    }
    match error.kind() {
        NotFound => {
            "no corefit manage answers there: none was at work with this --state directory, or it has ended (its log says why)".into()
        }
        // Whoever ends takes the socket along.
        ConnectionRefused => "no corefit manage answers there any more: the last one was killed, or the machine went down".into(),
        _ => format!("no corefit manage answers there ({error}); is it running, with this --state directory?"),
    }
}

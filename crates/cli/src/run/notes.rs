//! What there is to know about a run beside numbers: told at once or at the end, and all of it in
//! the document.

/// Notes in the order in which they were made.
#[derive(Default)]
pub(crate) struct Notes {
    quiet: bool,
    all: Vec<String>,
    /// Those that nobody was told yet.
    for_the_end: Vec<String>,
}

impl Notes {
    pub(crate) fn new(quiet: bool) -> Notes {
        Notes { quiet, ..Notes::default() }
    }

    /// A note for the end of the run.
    pub(crate) fn keep(&mut self, note: String) {
        self.for_the_end.push(note.clone());
        self.all.push(note);
    }

    /// A note that the user should know while the program runs.
    pub(crate) fn tell(&mut self, note: String) {
        if !self.quiet {
            tell!("corefit: {note}");
        }
        self.all.push(note);
    }

    /// A note about something that the user asked for and does not get: `--quiet` hides it not.
    pub(crate) fn warn(&mut self, note: String) {
        tell!("corefit: {note}");
        self.all.push(note);
    }

    /// All of them, and those for the end.
    pub(crate) fn done(self) -> (Vec<String>, Vec<String>) {
        (self.all, self.for_the_end)
    }
}

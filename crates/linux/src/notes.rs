//! What could not be read, collected on the way.

use std::collections::BTreeSet;

use corefit_core::{Unread, What};

use crate::root::ReadError;

/// A growing list of what could not be read, each thing once.
#[derive(Debug, Default)]
pub(crate) struct Notes(BTreeSet<Unread>);

impl Notes {
    pub(crate) fn add(&mut self, what: What, path: String, why: String) {
        self.0.insert(Unread { what, path, why });
    }

    pub(crate) fn error(&mut self, what: What, error: &ReadError) {
        self.add(what, error.path().into(), error.why());
    }

    /// The value, or `None` and a note why there is none.
    pub(crate) fn ask<T>(&mut self, what: What, result: Result<Option<T>, ReadError>) -> Option<T> {
        result.unwrap_or_else(|error| {
            self.error(what, &error);
            None
        })
    }

    pub(crate) fn into_list(self) -> Vec<Unread> {
        self.0.into_iter().collect()
    }
}

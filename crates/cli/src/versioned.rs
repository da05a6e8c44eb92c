//! What JSON documents for programs begin with (docs/json.md).

use serde::Serialize;

/// Counted up when a key is renamed, removed or gets another meaning; not when one is added.
pub(crate) const VERSION: u32 = 1;

/// A document with its version before it.
#[derive(Serialize)]
pub(crate) struct Versioned<'a, T> {
    version: u32,
    #[serde(flatten)]
    document: &'a T,
}

pub(crate) fn versioned<T: Serialize>(document: &T) -> Versioned<'_, T> {
    Versioned { version: VERSION, document }
}

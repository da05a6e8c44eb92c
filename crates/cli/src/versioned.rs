//! What JSON documents for programs begin with (docs/json.md).

use anyhow::Result;
use serde::Serialize;

/// Counted up when a key is renamed, removed or gets another meaning; not when one is added.
const VERSION: u32 = 2;

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

/// The text of a document with its version: one line, or more to read.
pub(crate) fn json<T: Serialize>(document: &T, one_line: bool) -> Result<String> {
    let document = versioned(document);
    let text =
        if one_line { serde_json::to_string(&document)? } else { serde_json::to_string_pretty(&document)? };
    Ok(text + "\n")
}

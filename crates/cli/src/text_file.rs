//! Texts that people give: a scenario, a configuration.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::unix::ffi::OsStringExt as _;
use std::path::Path;

use anyhow::{Result, anyhow};
use clap::builder::{OsStringValueParser, TypedValueParser};
use corefit_linux::bytes;
use corefit_linux::formats::MAX_BYTES;

/// Reads an argument that names a file or a control group, which may be no UTF-8; [`bytes::path`] leads back to it.
pub(crate) fn name() -> impl TypedValueParser<Value = String> {
    OsStringValueParser::new().map(|name: OsString| bytes::text(name.into_vec()))
}

/// The text of a file that is to be of some `kind`; `missing` says what to do where there is none.
///
/// # Errors
/// If it cannot be read; the error says what to do.
pub(crate) fn of(file: &Path, kind: &str, missing: &str) -> Result<String> {
    let name = file.display();
    File::open(file).and_then(|file| read(file, MAX_BYTES)).map_err(|error| match error.kind() {
        ErrorKind::NotFound => anyhow!("{name}: no such file; {missing}"),
        ErrorKind::IsADirectory => anyhow!("{name}: is a directory; give a {kind}, a file in TOML"),
        ErrorKind::FileTooLarge => anyhow!("{name}: {error}; no {kind} is"),
        ErrorKind::InvalidData => anyhow!("{name}: {error}; give a {kind}, a file in TOML"),
        _ => anyhow!("{name}: cannot be read: {error}"),
    })
}

/// All of it, as far as that is a text of at most so many bytes.
pub(crate) fn read(from: impl Read, most: u64) -> io::Result<String> {
    let mut bytes = Vec::new();
    from.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        let text = format!("larger than {} MiB", most >> 20);
        return Err(io::Error::new(ErrorKind::FileTooLarge, text));
    }
    String::from_utf8(bytes).map_err(|_| io::Error::new(ErrorKind::InvalidData, "is no text"))
}

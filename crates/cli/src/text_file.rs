//! Texts that people give: a scenario, a configuration.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use anyhow::{Result, anyhow};
use clap::builder::{OsStringValueParser, TypedValueParser};
use corefit_linux::bytes;
use corefit_linux::formats::MAX_BYTES;
use rustix::fs::OFlags;

/// Reads an argument that names a file or a control group, which may be no UTF-8; [`bytes::path`] leads back to it.
pub(crate) fn name() -> impl TypedValueParser<Value = String> {
    OsStringValueParser::new().map(|name: OsString| bytes::text(name.into_vec()))
}

/// The text of a file that is to be of some `kind`; `missing` says what to do where there is none. A pipe is waited for.
///
/// # Errors
/// If it cannot be read; the error says what to do.
pub(crate) fn of(file: &Path, kind: &str, missing: &str) -> Result<String> {
    File::open(file).and_then(|file| read(file, MAX_BYTES)).map_err(|error| why(file, kind, missing, &error))
}

/// The same for who cannot wait: what is no regular file is refused.
///
/// # Errors
/// As [`of`].
pub(crate) fn at_once(file: &Path, kind: &str, missing: &str) -> Result<String> {
    let flags = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or_default();
    let open = || {
        let opened = File::options().read(true).custom_flags(flags).open(file)?;
        let kind = opened.metadata()?.file_type();
        match (kind.is_file(), kind.is_dir()) {
            (true, _) => read(opened, MAX_BYTES),
            (_, true) => Err(ErrorKind::IsADirectory.into()),
            _ => Err(io::Error::new(ErrorKind::InvalidData, "is no regular file, and is not waited for")),
        }
    };
    open().map_err(|error| why(file, kind, missing, &error))
}

fn why(file: &Path, kind: &str, missing: &str, error: &io::Error) -> anyhow::Error {
    let name = file.display();
    match error.kind() {
        ErrorKind::NotFound => anyhow!("{name}: no such file; {missing}"),
        ErrorKind::IsADirectory => anyhow!("{name}: is a directory; give a {kind}, a file in TOML"),
        ErrorKind::FileTooLarge => anyhow!("{name}: {error}; no {kind} is"),
        ErrorKind::InvalidData => anyhow!("{name}: {error}; give a {kind}, a file in TOML"),
        _ => anyhow!("{name}: cannot be read: {error}"),
    }
}

/// All of it, as far as that is a text of at most so many bytes.
pub(crate) fn read(from: impl Read, most: u64) -> io::Result<String> {
    let mut bytes = Vec::new();
    from.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        let text = format!("larger than {} MiB", most >> 20);
        return Err(io::Error::new(ErrorKind::FileTooLarge, text));
    }
    String::from_utf8(bytes).map_err(|error| {
        let before = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
        io::Error::new(ErrorKind::InvalidData, format!("line {line} is no text in UTF-8"))
    })
}

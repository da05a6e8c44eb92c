//! Recordings: what a machine showed over a while, to be looked at again.
//!
//! A recording is gzip over lines of JSON, each `[CHECKSUM, WHAT]`; the checksum is the CRC-32 of the text
//! of WHAT, so that damage is found where it is. `zcat FILE | jq '.[1]'` shows one.
//!
//! ```text
//! [1234567890,{"recording":{"format":1,"corefit":"0.1.0","machine":"control groups of this host"}}]
//! [2345678901,{"snapshot":{"at":…}}]                one for each look
//! [3456789012,{"end":{"snapshots":60}}]             missing if the recorder was killed
//! ```
//!
//! The compressor is flushed after every line: what was recorded before a `kill -9` can be read.

mod anonymise;
mod read;
mod write;

use corefit_core::machine::Snapshot;
use serde::{Deserialize, Serialize};

pub(crate) use anonymise::Names;
pub(crate) use read::Replay;
pub(crate) use write::Recorder;

/// The format that is written; a newer one is refused.
const FORMAT: u32 = 1;

/// Of a line, what comes after the checksum.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Line<S> {
    Recording(Header),
    Snapshot(S),
    End(End),
}

/// As it is read.
type ReadLine = Line<Box<Snapshot>>;

/// The first line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Header {
    format: u32,
    /// Version of the writer.
    corefit: String,
    /// [`corefit_core::machine::Machine::name`] of what was recorded.
    machine: String,
}

/// The last line.
#[derive(Serialize, Deserialize)]
struct End {
    snapshots: usize,
}

fn checksum(text: &[u8]) -> u32 {
    let mut crc = flate2::Crc::new();
    crc.update(text);
    crc.sum()
}

#[cfg(test)]
mod tests;

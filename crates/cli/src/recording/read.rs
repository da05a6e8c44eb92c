//! Playing a recording.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::time::Duration;

use corefit_core::machine::{Machine, MachineError, Snapshot, contract};
use flate2::bufread::MultiGzDecoder;

use super::{End, FORMAT, Header, Line, ReadLine, checksum};

/// A longer line is damage: a host with 10,000 vCPUs needs a hundredth of it.
const LONGEST: u64 = 1 << 28;
/// How every gzip file begins (RFC 1952).
const MAGIC: [u8; 2] = [0x1f, 0x8b];

/// A recording as a machine: [`Machine::pass`] goes to the first snapshot that is so much later.
pub(crate) struct Replay {
    file: String,
    header: Header,
    lines: BufReader<MultiGzDecoder<BufReader<File>>>,
    /// Lines read.
    line: usize,
    snapshots: usize,
    current: Box<Snapshot>,
    /// Why there is nothing more.
    over: Option<Result<(), MachineError>>,
}

impl Replay {
    /// Opens a recording and reads its first snapshot.
    ///
    /// # Errors
    /// If it is none, is newer than this program, or has no snapshot that can be read.
    pub(crate) fn open(path: &Path) -> Result<Replay, MachineError> {
        let file = path.display().to_string();
        let fail = |error: io::Error| match error.kind() {
            io::ErrorKind::NotFound => MachineError::Gone(format!(
                "{file}: no such file; `corefit record {file} --for 60s` would make it"
            )),
            io::ErrorKind::IsADirectory => MachineError::Gone(format!(
                "{file}: is a directory; give a recording, a file made by `corefit record FILE`"
            )),
            io::ErrorKind::PermissionDenied => MachineError::Denied(format!("{file}: permission denied")),
            _ => MachineError::Gone(format!("{file}: {error}")),
        };
        let mut compressed = BufReader::new(File::open(path).map_err(fail)?);
        let start = compressed.fill_buf().map_err(fail)?;
        if start.is_empty() {
            let text = format!("{file}: is empty; make a recording with `corefit record FILE`");
            return Err(MachineError::Malformed(text));
        }
        if start[..start.len().min(2)] != MAGIC[..start.len().min(2)] {
            return Err(no_recording(&file));
        }
        let mut replay = Replay {
            lines: BufReader::new(MultiGzDecoder::new(compressed)),
            header: Header { format: 0, corefit: String::new(), machine: String::new() },
            line: 0,
            snapshots: 0,
            current: Box::default(),
            over: None,
            file,
        };
        replay.header = replay.read_header()?;
        match replay.next()? {
            Some(first) => replay.current = first,
            None => return Err(replay.bad("has no snapshot; record for longer")),
        }
        Ok(replay)
    }

    fn read_header(&mut self) -> Result<Header, MachineError> {
        let text = self.text()?;
        let inner = text.as_deref().and_then(checked);
        // Of a newer format, only this much is sure.
        let newer = inner.and_then(|inner| serde_json::from_str::<serde_json::Value>(inner).ok());
        let header = newer.as_ref().map(|value| &value["recording"]);
        let format = header.and_then(|header| header["format"].as_u64());
        if let Some(format) = format.filter(|format| *format > u64::from(FORMAT)) {
            let writer = header.and_then(|header| header["corefit"].as_str()).unwrap_or("a newer version");
            return Err(MachineError::Unsupported(format!(
                "{}: written in format {format} by corefit {writer}; this is corefit {}, which reads format \
                {FORMAT}: use the newer one",
                self.file,
                env!("CARGO_PKG_VERSION"),
            )));
        }
        match inner.and_then(|inner| serde_json::from_str(inner).ok()) {
            Some(Line::<Box<Snapshot>>::Recording(header)) => Ok(header),
            _ if text.is_some_and(|text| text.starts_with('[') && text.contains("\"recording\"")) => {
                Err(self.bad("its first line is damaged; take a copy that is whole, or record anew"))
            }
            _ => Err(no_recording(&self.file)),
        }
    }

    /// The next snapshot; `None` at the end of a recording that is whole.
    fn next(&mut self) -> Result<Option<Box<Snapshot>>, MachineError> {
        let Some(text) = self.text()? else {
            return Err(self.cut());
        };
        let Some(inner) = checked(&text) else {
            return Err(if text.ends_with('\n') {
                self.damaged("its checksum is wrong")
            } else {
                self.cut()
            });
        };
        match serde_json::from_str::<ReadLine>(inner) {
            Ok(Line::Snapshot(snapshot)) => {
                contract::snapshot(&snapshot).map_err(|why| self.damaged(&why))?;
                if self.snapshots > 0 && snapshot.at <= self.current.at {
                    return Err(self.damaged("it is not later than the line before it"));
                }
                self.snapshots += 1;
                Ok(Some(snapshot))
            }
            Ok(Line::End(End { snapshots })) if snapshots == self.snapshots => match self.text() {
                Ok(None) => Ok(None),
                // A few bytes that follow look like a file that is cut there.
                _ => Err(self.damaged(
                    "after the end of the recording something follows, or its last bytes are missing",
                )),
            },
            Ok(Line::End(End { snapshots })) => Err(self
                .damaged(&format!("the recording had {snapshots} snapshots, {} are here", self.snapshots))),
            Ok(Line::Recording(_)) => Err(self.damaged("another recording begins here; give each a file")),
            Err(error) => Err(self.damaged(&error.to_string())),
        }
    }

    /// The next line; `None` at the end of the file.
    fn text(&mut self) -> Result<Option<String>, MachineError> {
        let mut bytes = Vec::new();
        let result = (&mut self.lines).take(LONGEST).read_until(b'\n', &mut bytes);
        self.line += 1;
        match result {
            Ok(0) => Ok(None),
            Ok(_) => String::from_utf8(bytes).map(Some).map_err(|_| self.damaged("it is no text")),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Err(self.cut()),
            Err(error) => Err(self.damaged(&error.to_string())),
        }
    }

    fn cut(&self) -> MachineError {
        self.bad(
            "the file ends before the recording does (the recorder was killed, or the copy is not whole)",
        )
    }

    fn damaged(&self, why: &str) -> MachineError {
        self.bad(&format!("damaged: {why}; take a copy that is whole, or record anew"))
    }

    fn bad(&self, what: &str) -> MachineError {
        let played = match self.snapshots {
            0 => "no snapshot could be read".into(),
            1 => "1 snapshot before it could be read".into(),
            n => format!("{n} snapshots before it could be read"),
        };
        MachineError::Malformed(format!("{}, line {}: {what}; {played}", self.file, self.line))
    }
}

impl Machine for Replay {
    fn name(&self) -> String {
        format!("recording of {}", self.header.machine)
    }

    fn observe(&mut self) -> Result<Snapshot, MachineError> {
        Ok((*self.current).clone())
    }

    /// Damage ends the recording: the last snapshot before it stays, and the error is given every time.
    fn pass(&mut self, time: Duration) -> Result<bool, MachineError> {
        let until = self.current.at + time;
        while self.over.is_none() {
            match self.next() {
                Ok(Some(snapshot)) => self.current = snapshot,
                Ok(None) => self.over = Some(Ok(())),
                Err(error) => self.over = Some(Err(error)),
            }
            if self.over.is_none() && self.current.at >= until {
                return Ok(true);
            }
        }
        self.over.clone().unwrap_or(Ok(())).map(|()| false)
    }
}

/// What a line holds after its checksum, if that is right.
fn checked(line: &str) -> Option<&str> {
    let (sum, inner) = line.strip_suffix("]\n")?.strip_prefix('[')?.split_once(',')?;
    (sum.parse() == Ok(checksum(inner.as_bytes()))).then_some(inner)
}

fn no_recording(file: &str) -> MachineError {
    let text = format!("{file}: is no recording of corefit; `corefit record FILE` makes one");
    MachineError::Malformed(text)
}

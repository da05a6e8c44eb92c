//! Writing a recording.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use corefit_core::machine::Snapshot;
use corefit_linux::launch::files_may_be_refused;
use flate2::Compression;
use flate2::write::GzEncoder;

use super::{End, FORMAT, Header, Line, checksum};

/// A recording that is being written.
pub(crate) struct Recorder {
    path: PathBuf,
    out: GzEncoder<File>,
    snapshots: usize,
}

impl Recorder {
    /// Begins a recording in a new file.
    pub(crate) fn create(file: &Path, machine: &str) -> Result<Recorder> {
        files_may_be_refused();
        let name = file.display().to_string();
        let out = File::create_new(file).map_err(|error| match error.kind() {
            std::io::ErrorKind::AlreadyExists => {
                anyhow::anyhow!("{name}: is there already; give another name, or remove it")
            }
            _ => anyhow::anyhow!("{name}: cannot be written: {error}"),
        })?;
        let out = GzEncoder::new(out, Compression::default());
        let mut recorder = Recorder { path: file.into(), out, snapshots: 0 };
        let corefit = env!("CARGO_PKG_VERSION").into();
        recorder.line(&Line::Recording(Header { format: FORMAT, corefit, machine: machine.into() }))?;
        Ok(recorder)
    }

    /// Adds a snapshot. It can be read even if nothing more is written.
    pub(crate) fn add(&mut self, snapshot: &Snapshot) -> Result<()> {
        self.line(&Line::Snapshot(snapshot))?;
        self.snapshots += 1;
        Ok(())
    }

    /// Ends the recording; hands back how many snapshots it has.
    pub(crate) fn finish(mut self) -> Result<usize> {
        let snapshots = self.snapshots;
        self.line(&Line::End(End { snapshots }))?;
        self.out.finish().with_context(|| self.path.display().to_string())?;
        Ok(snapshots)
    }

    fn line(&mut self, line: &Line<&Snapshot>) -> Result<()> {
        let text = serde_json::to_string(line).context("writing a snapshot as JSON")?;
        let line = format!("[{},{text}]\n", checksum(text.as_bytes()));
        let written = self.out.write_all(line.as_bytes()).and_then(|()| self.out.flush());
        written.with_context(|| {
            let file = self.path.display();
            match self.snapshots {
                0 => {
                    // It would be in the way of the next try.
                    let _ = fs::remove_file(&self.path);
                    format!("{file}: cannot be written")
                }
                1 => format!("{file}: cannot be written further; 1 snapshot of it can be played"),
                n => format!("{file}: cannot be written further; {n} snapshots of it can be played"),
            }
        })
    }
}

//! What `corefit certify` found out, one small JSON file per identity, in
//! `$XDG_STATE_HOME/corefit/certified` (default `~/.local/state/corefit/certified`).

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use corefit_linux::identity::{Identifier, Unchanged};
use serde::{Deserialize, Serialize};

/// Hashes of the files that make identities, beside the directory of verdicts.
const HASHED: &str = "hashed.json";

/// A verdict about exactly one identity.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Verdict {
    /// The identity (see `corefit_linux::identity`).
    pub(crate) identity: String,
    /// The same without libraries, to be looked up before a launch.
    pub(crate) launch: String,
    /// Whether teams may be resized.
    pub(crate) resizable: bool,
    /// What was found, for people.
    pub(crate) reason: String,
    /// Largest team tried: a grant reaches no further.
    pub(crate) most: u32,
    /// Whether its threads hardly ever wait for each other (see `certify::Seen::independent`).
    #[serde(default)]
    pub(crate) independent: bool,
    /// The command, for people.
    pub(crate) command: Vec<String>,
    /// Version of corefit that judged.
    pub(crate) version: String,
}

/// The directory of verdicts; a store without one holds nothing.
#[derive(Clone, Debug)]
pub(crate) struct Store {
    directory: Option<PathBuf>,
}

impl Store {
    /// The user's store, as the environment places it.
    pub(crate) fn open() -> Store {
        let set = |name| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
        let state = set("XDG_STATE_HOME").or_else(|| Some(set("HOME")?.join(".local/state")));
        Store { directory: state.map(|s| s.join("corefit/certified")) }
    }

    /// Whether there is no verdict at all: nobody needs to wait for a look-up.
    pub(crate) fn is_empty(&self) -> bool {
        let entries = self.directory.as_ref().and_then(|d| fs::read_dir(d).ok());
        entries.is_none_or(|mut e| e.next().is_none())
    }

    /// The verdict about an identity. A file that cannot be read counts as none.
    pub(crate) fn find(&self, identity: &str) -> Option<Verdict> {
        let file = self.directory.as_ref()?.join(format!("{identity}.json"));
        let verdict: Verdict = serde_json::from_str(&fs::read_to_string(file).ok()?).ok()?;
        (verdict.identity == identity).then_some(verdict)
    }

    /// The verdict that a launch may turn out to have; of several, one that allows resizing, with
    /// most threads.
    pub(crate) fn expects(&self, launch: &str) -> Option<Verdict> {
        let entries = fs::read_dir(self.directory.as_ref()?).ok()?;
        entries
            .filter_map(|e| fs::read_to_string(e.ok()?.path()).ok())
            .filter_map(|text| serde_json::from_str::<Verdict>(&text).ok())
            .filter(|v| v.launch == launch)
            .max_by_key(|v| (v.resizable, v.most))
    }

    /// An identifier that knows the files that were hashed when verdicts were found.
    pub(crate) fn identifier(&self) -> Identifier {
        Identifier::knowing(self.hashed())
    }

    fn hashed(&self) -> Vec<(Unchanged, [u8; 32])> {
        let text = self.directory.as_ref().and_then(|d| fs::read_to_string(d.with_file_name(HASHED)).ok());
        text.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default()
    }

    /// Remembers what an identifier hashed. That it could not be written costs time later, nothing
    /// else.
    pub(crate) fn remember(&self, identifier: &Identifier) {
        let mut all = self.hashed();
        all.extend(identifier.hashed());
        all.sort_unstable();
        // The newest of each file is the last one.
        let newest: BTreeMap<_, _> = all.into_iter().map(|entry| (entry.0.name(), entry)).collect();
        let newest: Vec<_> = newest.into_values().collect();
        if let (Ok(directory), Ok(text)) = (self.made(), serde_json::to_string(&newest)) {
            let _ = replace(&directory.with_file_name(HASHED), &text);
        }
    }

    /// Makes sure that a verdict could be saved.
    pub(crate) fn prepare(&self) -> Result<()> {
        let directory = self.made()?;
        let trial = directory.join(format!(".trial.{}", std::process::id()));
        fs::write(&trial, "")
            .and_then(|()| fs::remove_file(&trial))
            .with_context(|| format!("cannot write in {}: set XDG_STATE_HOME", directory.display()))
    }

    /// The directory, made if it was not there.
    fn made(&self) -> Result<&Path> {
        let directory =
            self.directory.as_ref().context("no place for verdicts: set HOME or XDG_STATE_HOME")?;
        fs::create_dir_all(directory)
            .with_context(|| format!("cannot make {}: set XDG_STATE_HOME", directory.display()))?;
        Ok(directory)
    }

    /// Remembers a verdict; replaces an earlier one about the same identity.
    pub(crate) fn save(&self, verdict: &Verdict) -> Result<PathBuf> {
        let directory = self.made()?;
        let file = directory.join(format!("{}.json", verdict.identity));
        replace(&file, &(serde_json::to_string_pretty(verdict)? + "\n"))
            .with_context(|| format!("cannot write {}", file.display()))?;
        Ok(file)
    }
}

/// Writes a file so that others see the old or the new one.
fn replace(file: &Path, text: &str) -> std::io::Result<()> {
    let draft = file.with_extension(format!("{}", std::process::id()));
    fs::write(&draft, text).and_then(|()| fs::rename(&draft, file))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict() -> Verdict {
        Verdict {
            identity: "ab".into(),
            launch: "cd".into(),
            resizable: true,
            reason: "same output".into(),
            most: 4,
            independent: false,
            command: vec!["./x".into()],
            version: "0".into(),
        }
    }

    #[test]
    fn a_saved_verdict_is_found_by_identity_and_expected_by_launch() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store { directory: Some(dir.path().join("new/certified")) };
        assert!(store.is_empty());
        store.save(&verdict()).unwrap();
        assert!(!store.is_empty());
        assert_eq!(store.find("ab"), Some(verdict()));
        assert_eq!(store.expects("cd"), Some(verdict()));
        assert_eq!((store.find("cd"), store.expects("ab")), (None, None));
    }

    #[test]
    fn what_was_hashed_is_remembered_once() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store { directory: Some(dir.path().join("certified")) };
        let mut identifier = store.identifier();
        identifier.launch(Path::new("/bin/sh"), &[]).unwrap();
        let hashed: Vec<_> = identifier.hashed().collect();
        store.remember(&identifier);
        store.remember(&identifier);
        assert_eq!(store.hashed(), hashed);
        assert!(store.is_empty(), "hashes are no verdicts");
        fs::write(dir.path().join(HASHED), "[").unwrap();
        assert_eq!(store.hashed(), []);
    }

    #[test]
    fn damaged_or_moved_files_count_as_no_verdict() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store { directory: Some(dir.path().into()) };
        let file = store.save(&verdict()).unwrap();
        fs::copy(&file, dir.path().join("ef.json")).unwrap();
        assert_eq!(store.find("ef"), None, "a verdict is only about its identity");
        fs::write(&file, "{").unwrap();
        assert_eq!(store.find("ab"), None);
        assert_eq!(store.expects("zz"), None);
    }

    #[test]
    fn a_negative_verdict_is_expected_only_without_a_positive_one() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store { directory: Some(dir.path().into()) };
        let refused = Verdict { identity: "ef".into(), resizable: false, most: 9, ..verdict() };
        store.save(&refused).unwrap();
        assert_eq!(store.expects("cd"), Some(refused));
        store.save(&verdict()).unwrap();
        assert_eq!(store.expects("cd"), Some(verdict()));
    }
}

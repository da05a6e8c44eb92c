//! What a journal's file says, and whether it can be told.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::path::Path;

use anyhow::{Result, anyhow, bail};
use corefit_core::machine::VmId;
use corefit_linux::libvirt::{in_effect, known_as};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{Entry, file};
use crate::manage::own;
use crate::text_file;

/// Begins the first line, also of other formats.
pub(super) const NAME: &str = "corefit-journal ";
/// The format that is written and read.
pub(super) const FORMAT: u32 = 1;
/// The longest journal that is read, bytes; one entry is some 700.
pub(super) const LARGEST: u64 = 256 << 20;

/// The file's content.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Content {
    pub(super) boot: String,
    pub(super) machine: String,
    /// Of libvirt the URI that was in effect; `None` of others, and where it was not noted yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) uri: Option<String>,
    /// VMs whose guests took vCPUs offline or online.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub(super) by_guests: BTreeSet<VmId>,
    pub(super) entries: Vec<Entry>,
}

impl Content {
    /// Whether its settings are of what is changed on a machine ([`Act::realm`](corefit_core::machine::Act::realm)), as far as it tells.
    pub(super) fn is_of(&self, realm: &str) -> bool {
        let libvirt = realm.strip_prefix("libvirt ");
        match &self.uri {
            Some(uri) => libvirt == Some(known_as(uri).as_str()),
            None => self.machine == "host" || libvirt.is_some() == self.machine.starts_with("libvirt"),
        }
    }

    /// Whether the settings that a journal holds are of this machine: another one would show none of their VMs, as if these had ended.
    pub(super) fn takes(&self, found: &Content, dir: &Path) -> Result<()> {
        let (file, dir) = (file(dir), dir.display());
        let known = |uri: &Option<String>| uri.as_deref().map(known_as);
        let (was, is) = (known(&found.uri), known(&self.uri));
        if found.entries.is_empty() || (was.is_some() && was == is) {
            return Ok(());
        }
        if let (Some(was), Some(is)) = (&found.uri, &self.uri) {
            bail!(
                "{}: holds settings of the libvirt at {was}, but {:?} is the one at {is} now (LIBVIRT_DEFAULT_URI, or \
                 uri_default of libvirt.conf); nothing is changed. Put them back first: `corefit restore --state '{dir}' \
                 --machine 'libvirt:{was}'`",
                file.display(),
                self.machine
            );
        }
        if found.machine != self.machine {
            bail!(
                "{}: holds settings of the machine {:?}; put them back first, `corefit restore --state '{dir}'`",
                file.display(),
                found.machine
            );
        }
        Ok(())
    }
}

/// The URI that is in effect for a machine, if it is libvirt.
pub(super) fn uri(machine: &str) -> Option<String> {
    let rest = machine.strip_prefix("libvirt")?;
    (rest.is_empty() || rest.starts_with(':')).then(|| in_effect(rest.trim_start_matches(':')))
}

/// What the journal in a directory says, if there is one.
pub(super) fn read(dir: &Path) -> Result<Option<Content>> {
    let path = file(dir);
    let damaged = |what: &str| {
        anyhow!(
            "{}: damaged ({what}), so it is not known what to put back; nothing is changed. Remove the file; VMs carry in their \
             metadata what their settings were (urn:corefit:kept): the next start, or `corefit restore`, puts these back then. Settings of \
             control groups, compare with what these are to have",
            path.display()
        )
    };
    let text =
        match own::open(&path, File::options().read(true)).and_then(|file| text_file::read(file, LARGEST)) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) if [ErrorKind::InvalidData, ErrorKind::FileTooLarge].contains(&error.kind()) => {
                return Err(damaged(&error.to_string()));
            }
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                bail!("{}: {error}; be root, or name another directory: --state", path.display())
            }
            Err(error) => bail!("{}: {error}; nothing is changed", path.display()),
        };
    match parse(&text) {
        Ok(Ok(content)) => Ok(Some(content)),
        Ok(Err(other)) => bail!(
            "{}: written by another version of corefit ({other}), which alone knows what to put back; nothing is changed. Put back with \
             that one: `corefit restore --state '{}'`",
            path.display(),
            dir.display()
        ),
        Err(what) => Err(damaged(what)),
    }
}

/// What a text says, or why another version wrote it.
///
/// # Errors
/// What is damaged.
fn parse(text: &str) -> Result<Result<Content, String>, &'static str> {
    let (first, body) = text.split_once('\n').ok_or("it has no second line")?;
    let start = first.strip_prefix(NAME).and_then(|rest| rest.split_once(' '));
    let (format, sum) = start.ok_or("line 1 is not that of a journal")?;
    match format.parse::<u32>() {
        Ok(FORMAT) => {}
        // Of a newer format, only this much is sure.
        Ok(newer) if newer > FORMAT => return Ok(Err(format!("format {newer}; this one reads {FORMAT}"))),
        _ => return Err("line 1 is not that of a journal"),
    }
    let body = body.strip_suffix('\n').ok_or("its end is missing")?;
    if sum != checksum(body) {
        return Err("its checksum is wrong");
    }
    Ok(serde_json::from_str(body).map_err(|error| error.to_string()))
}

pub(in crate::manage) fn checksum(text: &str) -> String {
    format!("{:x}", Sha256::digest(text.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::super::tests::{refused, with_one};
    use super::*;
    use std::fs;

    #[test]
    fn a_damaged_one_is_refused_and_left_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        drop(with_one(dir.path()));
        let path = file(dir.path());
        let good = fs::read(&path).unwrap();
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1;
            fs::write(&path, &bad).unwrap();
            let text = refused(dir.path(), "host");
            assert!(text.contains("nothing is changed"), "byte {at}: {text}");
            assert_eq!(fs::read(&path).unwrap(), bad);
        }
        for length in 0..good.len() {
            fs::write(&path, &good[..length]).unwrap();
            assert!(refused(dir.path(), "host").contains("damaged"), "{length} bytes");
        }
    }

    #[test]
    fn one_of_another_version_is_not_called_damaged_nor_to_be_removed() {
        let dir = tempfile::tempdir().unwrap();
        drop(with_one(dir.path()));
        let path = file(dir.path());
        let good = fs::read_to_string(&path).unwrap();
        let newer = good.replacen("journal 1 ", "journal 2 ", 1);
        let body = |old: &str, new: &str| {
            let body = good.split_once('\n').unwrap().1.trim_end().replace(old, new);
            format!("corefit-journal 1 {}\n{body}\n", checksum(&body))
        };
        let (key, lever) =
            (body("\"pending\"", "\"color\": 1, \"pending\""), body("\"weight\",", "\"magic\","));
        for (text, why) in [(newer, "format 2"), (key, "`color`"), (lever, "`magic`")] {
            fs::write(&path, &text).unwrap();
            let said = refused(dir.path(), "host");
            assert!(said.contains("written by another version") && said.contains(why), "{said}");
            assert!(
                said.contains("nothing is changed") && said.contains("`corefit restore --state"),
                "{said}"
            );
            assert!(!said.contains("damaged") && !said.contains("Remove"), "{said}");
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
    }
}

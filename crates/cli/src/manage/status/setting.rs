//! Settings of VMs that are not as they were, as the status shows them: for programs, and the same for people.

use corefit_core::CpuSet;
use corefit_core::machine::{Lever, Value, VmId, VmState};
use serde::{Deserialize, Serialize};

use crate::manage::journal::Entry;
use crate::manage::{Keeper, present};

/// A setting that corefit changed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Setting {
    /// Which, for people.
    pub(crate) lever: String,
    /// What it was; sets are lists such as `0-3`.
    pub(crate) before: String,
    /// What corefit made it, or asked for, where that may yet come.
    pub(crate) made: String,
    /// What somebody else made it since, where a look tells.
    pub(crate) changed_to: Option<String>,
    /// It is to be put back, but could not be yet.
    pub(crate) pending: bool,
    /// What somebody else made it was found when it was to be changed again: it is not ours any more, which was said then.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) left_alone: bool,
}

impl Setting {
    /// Those of a VM. `seen`: the VM, where the last look shows it, and pCPUs of the host that are offline.
    pub(super) fn all(
        keeper: &Keeper,
        vm: &VmId,
        seen: Option<(&VmState, &CpuSet)>,
    ) -> Vec<(Setting, String)> {
        let changed = keeper.entries_of(vm).filter(|entry| !is_back(entry, seen.map(|seen| seen.0), keeper));
        // At the end only what is left to do is shown.
        let left = keeper.left_alone(vm, seen.map(|seen| seen.0)).filter(|_| !keeper.ends());
        let left = left.map(|(entry, now)| Setting::left(entry, &now, keeper));
        changed.map(|entry| Setting::of(entry, seen, keeper)).chain(left).collect()
    }

    /// One that somebody else made this, so that it is his.
    fn left(entry: &Entry, now: &Value, keeper: &Keeper) -> (Setting, String) {
        let (lever, made) = (keeper.called(&entry.vm, entry.lever), entry.wrote.last());
        let [is, wrote, before] =
            [Some(now), made, Some(&entry.original)].map(|v| v.map_or(String::new(), present::text));
        let text = format!(
            "{lever}: somebody changed it to {is}, which stands; corefit made it {wrote}, before {before}"
        );
        let (before, changed_to) = (entry.original.to_string(), Some(now.to_string()));
        let made = made.map_or(String::new(), ToString::to_string);
        (Setting { lever, before, made, changed_to, pending: false, left_alone: true }, text)
    }

    fn of(entry: &Entry, seen: Option<(&VmState, &CpuSet)>, keeper: &Keeper) -> (Setting, String) {
        let (lever, last) = (keeper.called(&entry.vm, entry.lever), entry.wrote.last());
        let now = seen.and_then(|(vm, offline)| keeper.changed_before(entry, vm, offline));
        let pending = keeper.owes(entry);
        let wrote = last.map_or(String::new(), present::text);
        let yet = seen.and_then(|(vm, _)| yet(entry, vm)).filter(|_| !pending);
        let is = match (&now, yet) {
            (Some(now), _) => {
                format!("somebody changed it to {}, corefit made it {wrote}", present::text(now))
            }
            (None, Some(yet)) => format!("asked to be {wrote}, still {}", present::text(&yet)),
            (None, None) => wrote,
        };
        let before = present::text(&entry.original);
        let owed = if pending { " (pending: it could not be put back yet)" } else { "" };
        let text = format!("{lever}: {is}, before {before}{owed}");
        let setting = Setting {
            lever,
            before: entry.original.to_string(),
            made: last.map_or(String::new(), ToString::to_string),
            changed_to: now.map(|now| now.to_string()),
            pending,
            left_alone: false,
        };
        (setting, text)
    }

    /// One of a VM that cannot be looked at now, as it was shown before, if it is the same but for what somebody made of it: that is the
    /// last that is known.
    pub(super) fn or_known(now: (Setting, String), known: &[(Setting, String)]) -> (Setting, String) {
        let same = |known: &&(Setting, String)| Setting { changed_to: None, ..known.0.clone() } == now.0;
        known.iter().find(same).cloned().unwrap_or(now)
    }
}

/// What a setting is by a look, while what was asked for may yet come.
fn yet(entry: &Entry, vm: &VmState) -> Option<Value> {
    let online = || present::online(vm).map(|_| Value::Vcpus(vm.online()));
    let now = if entry.lever == Lever::Online { online() } else { present::of(vm, entry.lever) };
    now.filter(|now| entry.pending && entry.wrote.last() != Some(now))
}

/// Whether a setting is as it was, as far as a look tells, and is not to become anything else: it is in the journal, as a guest may
/// yet do what was asked of it before.
fn is_back(entry: &Entry, vm: Option<&VmState>, keeper: &Keeper) -> bool {
    let last = entry.wrote.last() == Some(&entry.original);
    let now = vm.and_then(|vm| present::of(vm, entry.lever));
    last && !keeper.owes(entry) && now.is_none_or(|now| now == entry.original)
}

//! Which processes of this machine are the QEMUs of libvirt's domains.
//!
//! libvirt starts QEMU with `-uuid UUID`; the number of the process is in a file of libvirtd's, which
//! not everybody may read, so that all processes are looked through where it does not help.

use std::collections::BTreeMap;
use std::fs;

/// Where libvirtd of the system keeps `qemu/NAME.pid`.
const SYSTEM: &str = "/run/libvirt";

/// Finds the processes of domains, given as UUID and name. Those that cannot be found are left out.
pub(super) fn find(socket_dir: Option<&str>, wanted: &[(String, String)]) -> BTreeMap<String, u32> {
    let mut found = BTreeMap::new();
    for (uuid, name) in wanted {
        let files = socket_dir.into_iter().chain([SYSTEM]).map(|dir| format!("{dir}/qemu/{name}.pid"));
        let pids = files.filter_map(|file| fs::read_to_string(file).ok()?.trim().parse().ok());
        if let Some(pid) = { pids }.find(|pid| is_of(*pid, uuid)) {
            found.insert(uuid.clone(), pid);
        }
    }
    if found.len() == wanted.len() {
        return found;
    }
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    for pid in all.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok()) {
        let Some(uuid) = uuid_of(pid) else { continue };
        if wanted.iter().any(|(wanted, _)| *wanted == uuid) {
            found.entry(uuid).or_insert(pid);
        }
    }
    found
}

/// Whether a process has not ended.
pub(super) fn exists(pid: u32) -> bool {
    fs::metadata(format!("/proc/{pid}")).is_ok()
}

/// Whether a process is the QEMU of a domain.
pub(super) fn is_of(pid: u32, uuid: &str) -> bool {
    uuid_of(pid).is_some_and(|found| found == uuid)
}

/// What stands behind `-uuid` in the command line of a process.
fn uuid_of(pid: u32) -> Option<String> {
    let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let mut words = line.split(|byte| *byte == 0);
    words.find(|word| *word == b"-uuid")?;
    String::from_utf8(words.next()?.to_vec()).ok().map(|uuid| uuid.to_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn a_process_is_found_by_the_uuid_in_its_command_line_or_not_at_all() {
        // The same test may run in another checkout.
        let uuid = &format!("00000000-1111-2222-3333-{:012}", std::process::id());
        // A shell that waits by itself: one that it starts would have its command line for a moment.
        let script = ["-c", "read line; :", "qemu", "-uuid", uuid];
        let mut child = Command::new("sh").args(script).stdin(Stdio::piped()).spawn().unwrap();
        // The kernel lets the parent go on a moment before the new command line is there.
        while uuid_of(child.id()).is_none() && child.try_wait().unwrap().is_none() {
            std::thread::yield_now();
        }
        let wanted = [(uuid.clone(), "a".into()), ("f".repeat(36), "b".into())];
        let found = find(None, &wanted);
        assert_eq!(found, BTreeMap::from([(uuid.clone(), child.id())]));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(find(None, &wanted).is_empty());
    }
}

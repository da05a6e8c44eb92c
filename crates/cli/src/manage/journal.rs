//! The journal: what each setting was before corefit changed it, on disk before it is changed.
//!
//! ```text
//! corefit-journal 1 SHA-256 of the rest
//! { boot, machine, uri, by_guests, entries: [ { vm, name, lever, original, came, wrote: [ … ], pending } ] }
//! ```
//!
//! The file is replaced as a whole: written beside, synced, renamed, and the directory synced; so it is the old
//! or the new one, never a part. What it says of an earlier boot of this host is void, for so are the settings.

mod content;
mod entry;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow, bail};
use corefit_core::machine::{Lever, VmId};
use rustix::fs::{FlockOperation, flock};

use super::boot::Boot;
use super::failpoint::{arm, reach};
use super::{Passing, own};
pub(super) use content::checksum;
use content::{Content, FORMAT, NAME, read, uri};
pub(crate) use entry::Entry;

/// A directory with a journal, held by this process alone.
pub(crate) struct Journal {
    dir: PathBuf,
    /// Its lock goes with it.
    _lock: own::Locked,
    content: Content,
    /// Where the entries of each VM are.
    of: BTreeMap<VmId, Vec<usize>>,
    /// Entries that the file has of this boot.
    on_disk: Vec<Entry>,
    /// Why it could not be written the last time, if so.
    unwritten: Option<String>,
}

impl Journal {
    /// Takes hold of the journal in a directory, which is made if need be, for a machine (as `--machine`
    /// names it), and reads what an earlier run left.
    ///
    /// # Errors
    /// If another corefit holds it, it is damaged, of another machine, or cannot be written: then nothing may
    /// be changed.
    pub(crate) fn open(dir: &Path, machine: &str, boot: &Boot) -> Result<Journal> {
        let mut journal = Journal::held(dir, machine, boot)?;
        let left = journal.entries().len();
        journal.write().map_err(|error| unwritable(&file(dir), &error, left))?;
        Ok(journal)
    }

    /// The same for who only puts back what it holds, which need not be written: whoever reads it later finds that done.
    ///
    /// # Errors
    /// If another corefit holds it, it is damaged, or of another machine.
    pub(crate) fn held(dir: &Path, machine: &str, boot: &Boot) -> Result<Journal> {
        arm();
        own::directory(dir)?;
        let lock = lock(dir)?;
        let (boot_now, machine_now) = (boot.own().to_owned(), machine.to_owned());
        let mut content =
            Content { boot: boot_now, machine: machine_now, uri: uri(machine), ..Content::default() };
        if let Some(found) = read(dir)?.filter(|found| boot.is(&found.boot)) {
            content.takes(&found, dir)?;
            (content.by_guests, content.entries) = (found.by_guests, found.entries);
        }
        let (of, on_disk) = (places(&content.entries), content.entries.clone());
        Ok(Journal { dir: dir.into(), _lock: lock, content, of, on_disk, unwritten: None })
    }

    /// What an earlier run left, if there is a journal in the directory: the machine, and how many settings of it that are changed
    /// since this boot.
    pub(crate) fn left(dir: &Path, boot: &Boot) -> Result<Option<(String, usize)>> {
        Ok(Journal::found(dir, boot)?.map(|(machine, entries)| (machine, entries.len())))
    }

    /// How many of these are of a machine, by what is changed there ([`Act::realm`](corefit_core::machine::Act::realm)).
    pub(super) fn left_of(dir: &Path, realm: &str, boot: &Boot) -> Result<usize> {
        let of = |content: &Content| boot.is(&content.boot) && content.is_of(realm);
        Ok(read(dir)?.filter(of).map_or(0, |content| content.entries.len()))
    }

    /// The same with the settings themselves.
    pub(crate) fn found(dir: &Path, boot: &Boot) -> Result<Option<(String, Vec<Entry>)>> {
        let entries = |of: &str, entries| if boot.is(of) { entries } else { Vec::new() };
        Ok(read(dir)?.map(|content| (content.machine, entries(&content.boot, content.entries))))
    }

    /// Where it is.
    pub(crate) fn path(&self) -> PathBuf {
        file(&self.dir)
    }

    pub(crate) fn entries(&self) -> &[Entry] {
        &self.content.entries
    }

    /// Of the same VMs afterwards.
    pub(crate) fn entries_mut(&mut self) -> &mut [Entry] {
        &mut self.content.entries
    }

    /// Those of a VM.
    pub(crate) fn entries_of(&self, vm: &VmId) -> impl Iterator<Item = &Entry> {
        self.of.get(vm).into_iter().flatten().map(|at| &self.content.entries[*at])
    }

    pub(crate) fn find(&mut self, vm: &VmId, lever: Lever) -> Option<&mut Entry> {
        let entries = &mut self.content.entries;
        let at = self.of.get(vm)?.iter().copied().find(|at| entries[*at].lever == lever)?;
        Some(&mut entries[at])
    }

    pub(crate) fn add(&mut self, entry: Entry) {
        self.of.entry(entry.vm.clone()).or_default().push(self.content.entries.len());
        self.content.entries.push(entry);
    }

    pub(crate) fn retain(&mut self, keep: impl FnMut(&Entry) -> bool) {
        self.content.entries.retain(keep);
        self.of = places(&self.content.entries);
    }

    /// VMs whose vCPUs are changed, and were by their guests.
    pub(crate) fn by_guests(&self) -> impl Iterator<Item = &VmId> {
        self.content.by_guests.iter().filter(|vm| self.sized(vm))
    }

    /// Whether a VM is one of these.
    pub(crate) fn is_by_guest(&self, vm: &VmId) -> bool {
        self.content.by_guests.contains(vm) && self.sized(vm)
    }

    fn sized(&self, vm: &VmId) -> bool {
        #[cfg(test)]
        testing::asked();
        self.entries_of(vm).any(|entry| entry.lever == Lever::Online)
    }

    /// Its guest takes vCPUs of a VM offline and online.
    pub(crate) fn goes_by_guest(&mut self, vm: &VmId) {
        self.content.by_guests.insert(vm.clone());
    }

    /// Entries as they were, to go back to if they cannot be written.
    pub(crate) fn replace(&mut self, entries: Vec<Entry>) {
        self.of = places(&entries);
        self.content.entries = entries;
    }

    /// Whether the file has other entries than there are.
    pub(crate) fn is_stale(&self) -> bool {
        self.content.entries != self.on_disk
    }

    /// Whether the file says that a setting is changed, whatever to.
    pub(crate) fn is_on_disk(&self, vm: &VmId, lever: Lever) -> bool {
        let is_it = |entry: &Entry| entry.lever == lever && entry.vm == *vm;
        // Mostly in the same place as here.
        let places = self.of.get(vm).into_iter().flatten();
        places.filter_map(|at| self.on_disk.get(*at)).any(is_it) || self.on_disk.iter().any(is_it)
    }

    /// Has on disk what is here, which costs nothing where it is so already.
    pub(crate) fn save(&mut self) -> io::Result<()> {
        if self.is_stale() { self.write() } else { Ok(()) }
    }

    /// Why it could not be written the last time, if so, as long as that goes on.
    pub(crate) fn unwritten(&mut self) -> Option<&str> {
        if self.unwritten.is_some() {
            let _ = self.write();
        }
        self.unwritten.as_deref()
    }

    /// Writes what is here.
    pub(crate) fn write(&mut self) -> io::Result<()> {
        let written = self.replace_file();
        self.unwritten = written.as_ref().err().map(ToString::to_string);
        written
    }

    fn replace_file(&mut self) -> io::Result<()> {
        let by_guests = self.by_guests().cloned().collect();
        self.content.by_guests = by_guests;
        let body = serde_json::to_string_pretty(&self.content).map_err(io::Error::other)?;
        let text = format!("{NAME}{FORMAT} {}\n{body}\n", checksum(&body));
        let (target, beside) = (file(&self.dir), self.dir.join("journal.new"));
        let mut new = own::open(&beside, File::options().write(true).create(true).truncate(true))?;
        reach("journal-begun");
        // A part of it takes room, and is good for nothing.
        new.write_all(text.as_bytes())
            .and_then(|()| sync(&new))
            .inspect_err(|_| drop(fs::remove_file(&beside)))?;
        reach("journal-written");
        fs::rename(&beside, &target)?;
        reach("journal-renamed");
        self.on_disk.clone_from(&self.content.entries);
        sync(&File::open(&self.dir)?)
    }
}

/// Has on disk what was written to a file, or what names a directory has.
fn sync(file: &File) -> io::Result<()> {
    file.sync_all()?;
    #[cfg(test)]
    testing::synced();
    Ok(())
}

fn places(entries: &[Entry]) -> BTreeMap<VmId, Vec<usize>> {
    let mut of: BTreeMap<VmId, Vec<usize>> = BTreeMap::new();
    for (at, entry) in entries.iter().enumerate() {
        of.entry(entry.vm.clone()).or_default().push(at);
    }
    of
}

pub(super) fn unusable(path: &Path, error: &io::Error) -> anyhow::Error {
    let text = format!(
        "{}: cannot be written, so nothing is changed: {error}; another directory for the journal: --state, or state in the configuration",
        path.display()
    );
    passing(text, error)
}

/// So many settings, in words.
pub(crate) fn settings(count: usize) -> String {
    if count == 1 { "1 setting".into() } else { format!("{count} settings") }
}

/// The same of a journal in which an earlier run left so many settings: nobody who begins elsewhere would know what they were.
fn unwritable(path: &Path, error: &io::Error, left: usize) -> anyhow::Error {
    if left == 0 {
        return unusable(path, error);
    }
    let text = format!(
        "{}: cannot be written, so nothing is changed: {error}; an earlier run left {} in it, which `corefit restore` puts back even so. \
         Make room there, or make it writable, before the next start",
        path.display(),
        settings(left)
    );
    passing(text, error)
}

/// A full disk and one that cannot be written now may be another one soon.
pub(super) fn passing(text: String, error: &io::Error) -> anyhow::Error {
    match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::ReadOnlyFilesystem => {
            Passing(text).into()
        }
        _ => anyhow!(text),
    }
}

/// That of a directory.
pub(super) fn file(dir: &Path) -> PathBuf {
    dir.join("journal")
}

fn lock(dir: &Path) -> Result<own::Locked> {
    let path = dir.join("lock");
    let lock = own::open(&path, File::options().read(true).write(true).create(true).truncate(false));
    // Of an earlier run, on a disk that cannot be written to.
    let lock = lock.or_else(|error| own::open(&path, File::options().read(true)).map_err(|_| error));
    let mut lock = own::Locked(lock.map_err(|error| unusable(&path, &error))?);
    match flock(&lock.0, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) => {
            let who = fs::read_to_string(&path).unwrap_or_default();
            // One that has just begun has not said it yet.
            let who = match who.trim() {
                "" => String::new(),
                who => format!(" (process {who})"),
            };
            let dir = dir.display();
            bail!(Passing(format!("{dir}: another corefit{who} is at work with it; end that one first")));
        }
        Err(error) => bail!("{}: {error}", path.display()),
    }
    // For people; what counts is the lock.
    let _ = lock.0.set_len(0).and_then(|()| lock.0.write_all(std::process::id().to_string().as_bytes()));
    Ok(lock)
}

/// Entries to test with.
#[cfg(test)]
pub(super) mod testing {
    use std::cell::Cell;

    use super::*;
    use corefit_core::Weight;
    use corefit_core::machine::Value;

    thread_local! {
        static SYNCS: Cell<u32> = const { Cell::new(0) };
        static ASKED: Cell<u32> = const { Cell::new(0) };
    }

    pub(super) fn synced() {
        SYNCS.set(SYNCS.get() + 1);
    }

    /// How often this thread has synced something.
    pub(in crate::manage) fn syncs() -> u32 {
        SYNCS.get()
    }

    pub(super) fn asked() {
        ASKED.set(ASKED.get() + 1);
    }

    /// Of how many VMs this thread has looked for whether their vCPUs are changed.
    pub(in crate::manage) fn sized() -> u32 {
        ASKED.get()
    }

    /// A weight that was doubled.
    pub(in crate::manage) fn entry(vm: &str) -> Entry {
        let (original, wrote) = (Value::Weight(Weight(1024.0)), vec![Value::Weight(Weight(2048.0))]);
        Entry {
            vm: VmId(vm.into()),
            name: vm.into(),
            lever: Lever::Weight,
            original,
            came: None,
            wrote,
            pending: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::content::LARGEST;
    use super::testing::entry;
    use super::*;

    pub(super) fn open(dir: &Path) -> Journal {
        Journal::open(dir, "host", &Boot::named("boot")).unwrap()
    }

    pub(super) fn with_one(dir: &Path) -> Journal {
        let mut journal = open(dir);
        journal.add(entry("a"));
        journal.write().unwrap();
        journal
    }

    pub(super) fn refused(dir: &Path, machine: &str) -> String {
        Journal::open(dir, machine, &Boot::named("boot")).err().expect("it was taken").to_string()
    }

    #[test]
    fn what_was_written_is_there_for_the_next_and_void_after_a_boot() {
        let dir = tempfile::tempdir().unwrap();
        drop(with_one(dir.path()));
        assert_eq!(open(dir.path()).entries(), [entry("a")]);
        assert!(refused(dir.path(), "libvirt").contains("holds settings of the machine \"host\""));
        assert_eq!(Journal::open(dir.path(), "libvirt", &Boot::named("another boot")).unwrap().entries(), []);
    }

    #[test]
    fn whose_guests_took_vcpus_offline_is_there_for_the_next_as_long_as_they_are_changed() {
        let dir = tempfile::tempdir().unwrap();
        let mut journal = with_one(dir.path());
        for vm in ["a", "b"] {
            journal.goes_by_guest(&VmId(vm.into()));
        }
        journal.add(Entry { lever: Lever::Online, ..entry("b") });
        journal.write().unwrap();
        drop(journal);
        let mut journal = open(dir.path());
        assert_eq!(
            journal.by_guests().collect::<Vec<_>>(),
            [&VmId("b".into())],
            "of a only a weight is changed"
        );
        assert_eq!(["a", "b", "c"].map(|vm| journal.is_by_guest(&VmId(vm.into()))), [false, true, false]);
        journal.retain(|entry| entry.lever != Lever::Online);
        journal.write().unwrap();
        assert!(!fs::read_to_string(file(dir.path())).unwrap().contains("by_guests"));
    }

    #[test]
    fn what_is_simulated_leaves_a_hosts_settings_alone_and_its_own_end_with_its_process() {
        let dir = tempfile::tempdir().unwrap();
        let (host, simulated) = (Boot::now(true).unwrap(), Boot::now(false).unwrap());
        let mut journal = Journal::open(dir.path(), "host", &host).unwrap();
        journal.add(entry("a"));
        journal.write().unwrap();
        drop(journal);
        let why = Journal::open(dir.path(), "sim:x", &simulated).err().expect("they are lost").to_string();
        assert!(why.contains("holds settings of the machine \"host\""), "{why}");
        assert_eq!(Journal::left(dir.path(), &simulated).unwrap(), Some(("host".into(), 1)));
        let mut journal = Journal::open(dir.path(), "host", &host).unwrap();
        assert_eq!(journal.entries(), [entry("a")]);
        journal.content.boot = "simulated, process 0".into();
        journal.write().unwrap();
        drop(journal);
        for boot in [host, simulated] {
            assert_eq!(Journal::left(dir.path(), &boot).unwrap(), Some(("host".into(), 0)));
        }
    }

    #[test]
    fn a_second_one_is_refused_as_long_as_the_first_lives() {
        let dir = tempfile::tempdir().unwrap();
        let first = open(dir.path());
        let text = refused(dir.path(), "host");
        assert!(text.contains(&format!("process {}", std::process::id())), "{text}");
        // As a process has that was forked and does not execute yet.
        let _copy = first._lock.0.try_clone().unwrap();
        drop(first);
        open(dir.path());
    }

    #[test]
    fn what_others_may_have_put_there_is_neither_followed_nor_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let (victim, state) = (dir.path().join("victim"), dir.path().join("state"));
        fs::create_dir(&state).unwrap();
        for name in ["lock", "journal.new", "journal"] {
            fs::write(&victim, "precious").unwrap();
            std::os::unix::fs::symlink(&victim, state.join(name)).unwrap();
            assert!(refused(&state, "host").contains("nothing is changed"), "{name}");
            assert_eq!(fs::read_to_string(&victim).unwrap(), "precious", "{name}");
            fs::remove_file(state.join(name)).unwrap();
            let fifo = rustix::fs::Mode::from_raw_mode(0o600);
            rustix::fs::mknodat(rustix::fs::CWD, state.join(name), rustix::fs::FileType::Fifo, fifo, 0)
                .unwrap();
            assert!(refused(&state, "host").contains("nothing is changed"), "{name}");
            fs::remove_file(state.join(name)).unwrap();
        }
        File::create(state.join("journal")).unwrap().set_len(LARGEST + 1).unwrap();
        assert!(refused(&state, "host").contains("damaged (larger than 256 MiB)"));
    }

    #[test]
    fn a_directory_that_others_write_to_is_refused_with_the_remedy_and_one_of_ours_is_none() {
        use std::os::unix::fs::PermissionsExt as _;

        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("state");
        fs::create_dir(&state).unwrap();
        fs::set_permissions(&state, fs::Permissions::from_mode(0o777)).unwrap();
        let why = refused(&state, "host");
        assert!(why.contains("chmod go-w") && why.contains("nothing is changed"), "{why}");
        assert_eq!(fs::read_dir(&state).unwrap().count(), 0);
        Journal::open(&dir.path().join("a/b"), "host", &Boot::named("boot")).unwrap();
    }

    #[test]
    fn where_nothing_can_be_written_nothing_begins() {
        let full = Path::new("/dev/full");
        let text = Journal::open(&full.join("x"), "host", &Boot::named("boot")).err().unwrap().to_string();
        assert!(text.contains("cannot be written, so nothing is changed"), "{text}");
        let dir = tempfile::tempdir().unwrap();
        drop(with_one(dir.path()));
        // A directory in the way of the new file, as no permission stops root.
        fs::create_dir(dir.path().join("journal.new")).unwrap();
        let text = refused(dir.path(), "host");
        assert!(text.contains("cannot be written, so nothing is changed"), "{text}");
        assert!(
            text.contains("left 1 setting ") && !text.contains("--state"),
            "they are known there alone: {text}"
        );
        let held = Journal::held(dir.path(), "host", &Boot::named("boot")).unwrap();
        assert_eq!(held.entries(), [entry("a")], "who puts back need not write");
    }
}

//! What exactly a process runs: a hash of its binary, its libraries with the OpenMP runtime
//! among them, its arguments, and its standard input where that is a file, by content. A verdict of
//! `corefit certify` holds for exactly one such identity.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Files larger than this are identified by size and time of change instead of content:
/// hashing them would delay the first parallel region (measured here: 1.1 ms a MiB).
const HASH_AT_MOST: u64 = 64 << 20;

/// The identity of a process, and what went into it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// SHA-256 in hexadecimal.
    pub hash: String,
    /// The binary.
    pub program: PathBuf,
    /// Libraries mapped, the OpenMP runtime among them.
    pub libraries: Vec<PathBuf>,
}

/// A file as it was when it was hashed. The time of its last change of any kind is set by the kernel
/// alone, so a file that agrees in all of this holds what it held (but for programs that write to it
/// through a shared mapping all the time). In the order of change, file by file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Unchanged {
    device: u64,
    inode: u64,
    changed_s: i64,
    changed_ns: i64,
    bytes: u64,
}

/// Hashes files, each once as long as it does not change.
#[derive(Default)]
pub struct Identifier {
    known: BTreeMap<Unchanged, [u8; 32]>,
}

/// A file that changed so shortly before it was hashed could change again at the same time of the
/// file system's clock (which ticks every 4 to 10 ms).
const SETTLED: Duration = Duration::from_secs(2);

impl Unchanged {
    fn of(about: &fs::Metadata) -> Unchanged {
        Unchanged {
            device: about.dev(),
            inode: about.ino(),
            changed_s: about.ctime(),
            changed_ns: about.ctime_nsec(),
            bytes: about.len(),
        }
    }

    /// Which file it is, whatever is in it.
    #[must_use]
    pub fn name(&self) -> (u64, u64) {
        (self.device, self.inode)
    }

    fn is_settled(&self) -> bool {
        let age = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
        i64::try_from(age.saturating_sub(SETTLED.as_secs())).is_ok_and(|then| self.changed_s < then)
    }
}

impl Identifier {
    /// One that need not hash again what was hashed before: see [`Identifier::hashed`].
    pub fn knowing(hashed: impl IntoIterator<Item = (Unchanged, [u8; 32])>) -> Identifier {
        Identifier { known: hashed.into_iter().collect() }
    }

    /// What it hashed, for another day.
    pub fn hashed(&self) -> impl Iterator<Item = (Unchanged, [u8; 32])> + '_ {
        self.known.iter().map(|(file, hash)| (*file, *hash))
    }

    /// Identifies a running process as it is now. `leave_out` are libraries that do not count (corefit's
    /// own).
    ///
    /// # Errors
    /// When the process has ended or belongs to somebody else.
    pub fn process(&mut self, pid: u32, leave_out: &[&str]) -> io::Result<Identity> {
        let at = PathBuf::from(format!("/proc/{pid}"));
        let program = fs::read_link(at.join("exe"))?;
        let maps = fs::read_to_string(at.join("maps"))?;
        let mut libraries: Vec<PathBuf> = maps
            .lines()
            .filter(|l| l.split(' ').nth(1).is_some_and(|p| p.contains('x')))
            .filter_map(|l| Some(PathBuf::from(&l[l.find('/')?..])))
            .filter(|p| *p != program && !leave_out.iter().any(|l| p.ends_with(l)))
            .collect();
        libraries.sort();
        libraries.dedup();
        let mut hash = Sha256::new();
        hash.update(b"corefit identity 3\0");
        hash.update(self.file(&at.join("exe"))?);
        for library in &libraries {
            // As the process sees it, should it have a root of its own.
            let seen = at.join("root").join(library.strip_prefix("/").unwrap_or(library));
            hash.update(self.file(&seen)?);
        }
        let arguments = fs::read(at.join("cmdline"))?;
        self.arguments(&mut hash, &arguments, &at.join("cwd"));
        self.input(&mut hash, &at.join("fd/0"))?;
        Ok(Identity { hash: hex(&hash.finalize()), program, libraries })
    }

    /// Identifies a program before it is launched with this command line (name and arguments) from
    /// the current directory with this process's standard input, without libraries: equal for every
    /// launch that could turn out to have a given identity.
    ///
    /// # Errors
    /// When the program's file or the input cannot be read.
    pub fn launch(&mut self, program: &Path, command: &[OsString]) -> io::Result<String> {
        let mut hash = Sha256::new();
        hash.update(b"corefit launch 3\0");
        hash.update(self.file(program)?);
        let line = command.join(OsStr::new("\0"));
        self.arguments(&mut hash, line.as_bytes(), Path::new("."));
        self.input(&mut hash, Path::new("/proc/self/fd/0"))?;
        Ok(hex(&hash.finalize()))
    }

    /// Arguments count literally; those that name files (see [`named`]) count with what is in them,
    /// too. Of the name that the program was called by, the last part counts: there are programs
    /// that do something else under another name.
    fn arguments(&mut self, hash: &mut Sha256, cmdline: &[u8], cwd: &Path) {
        let mut arguments = cmdline.strip_suffix(b"\0").unwrap_or(cmdline).split(|b| *b == 0);
        let called = arguments.next().and_then(|name| name.rsplit(|b| *b == b'/').next());
        hash.update(called.unwrap_or_default());
        for argument in arguments {
            hash.update((argument.len() as u64).to_le_bytes());
            hash.update(argument);
            for name in named(argument) {
                let path = cwd.join(OsStr::from_bytes(name));
                if path.is_file() {
                    hash.update(self.file(&path).unwrap_or_default());
                }
            }
        }
    }

    /// Standard input that is a file counts with all that is in it, wherever it is read from.
    fn input(&mut self, hash: &mut Sha256, descriptor: &Path) -> io::Result<()> {
        if fs::metadata(descriptor).is_ok_and(|about| about.is_file()) {
            hash.update(b"stdin");
            hash.update(self.file(descriptor)?);
        }
        Ok(())
    }

    fn file(&mut self, path: &Path) -> io::Result<[u8; 32]> {
        let mut file = File::open(path)?;
        let key = Unchanged::of(&file.metadata()?);
        if let Some(known) = self.known.get(&key) {
            return Ok(*known);
        }
        let settled = key.is_settled();
        let mut hash = Sha256::new();
        if key.bytes > HASH_AT_MOST {
            hash.update(format!("{key:?}"));
        } else {
            let mut buffer = vec![0u8; 1 << 18];
            loop {
                match file.read(&mut buffer)? {
                    0 => break,
                    n => hash.update(&buffer[..n]),
                }
            }
        }
        let digest: [u8; 32] = hash.finalize().into();
        if settled && Unchanged::of(&file.metadata()?) == key {
            self.known.insert(key, digest);
        }
        Ok(digest)
    }
}

/// What may be a file's name in an argument: `FILE`, `--in=FILE`, `in=FILE`, `-iFILE`, `@FILE`, and each of
/// several behind commas or colons.
fn named(argument: &[u8]) -> BTreeSet<&[u8]> {
    let value = |text: &'_ [u8]| text.iter().position(|b| *b == b'=').map(|at| at + 1);
    let glued = argument.first() == Some(&b'-') && argument.get(1).is_some_and(|b| *b != b'-');
    let from = [Some(0), value(argument), glued.then_some(2), argument.starts_with(b"@").then_some(1)];
    let whole = from.into_iter().flatten().filter_map(|at| argument.get(at..));
    let parts = whole.clone().flat_map(|text| text.split(|b| matches!(b, b',' | b':')));
    whole.chain(parts).filter(|name| !name.is_empty()).collect()
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::new(), |mut text, b| {
        let _ = write!(text, "{b:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command, Stdio};

    fn cat(program: &Path, arguments: &[&Path]) -> Child {
        Command::new(program)
            .arg("-")
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap()
    }

    /// Waits until the child has exec'ed and mapped libc.
    fn identify(child: &Child) -> Identity {
        loop {
            let exe = fs::read_link(format!("/proc/{}/exe", child.id())).unwrap();
            let id = Identifier::default().process(child.id(), &["none.so"]).unwrap();
            let mapped = id.libraries.iter().any(|l| l.to_string_lossy().contains("libc.so"));
            if exe.ends_with("cat") && mapped {
                return id;
            }
        }
    }

    #[test]
    fn same_program_and_arguments_have_one_identity_and_any_change_another() {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("cat");
        fs::copy("/bin/cat", &program).unwrap();
        let input = dir.path().join("input");
        fs::write(&input, "a").unwrap();
        let mut children = vec![cat(&program, &[]), cat(&program, &[]), cat(&program, &[&input])];
        let ids: Vec<_> = children.iter().map(identify).collect();
        assert_eq!(ids[0], ids[1]);
        assert_ne!(ids[0].hash, ids[2].hash, "arguments count");
        fs::write(&input, "b").unwrap();
        assert_ne!(identify(&children[2]).hash, ids[2].hash, "content of file arguments counts");
        for child in &mut children {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        let mut bytes = fs::read("/bin/cat").unwrap();
        bytes.push(0);
        fs::remove_file(&program).unwrap();
        fs::write(&program, bytes).unwrap();
        fs::set_permissions(&program, fs::metadata("/bin/cat").unwrap().permissions()).unwrap();
        let mut child = cat(&program, &[]);
        assert_ne!(identify(&child).hash, ids[0].hash, "the binary counts");
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn arguments_name_files_in_many_ways() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("deck");
        let identities = |text: &str| {
            fs::write(&file, text).unwrap();
            ["deck", "--in=deck", "in=deck", "-ideck", "@deck", "-fa:deck", "--in=a,deck"].map(|argument| {
                let mut hash = Sha256::new();
                let line = format!("cat\0{argument}\0");
                Identifier::default().arguments(&mut hash, line.as_bytes(), dir.path());
                hex(&hash.finalize())
            })
        };
        for (before, after) in identities("safe").iter().zip(identities("unsafe")) {
            assert_ne!(*before, after);
        }
    }

    #[test]
    fn what_was_hashed_before_is_hashed_again_only_if_it_changed() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "a").unwrap();
        let mut first = Identifier::default();
        let hash = first.file(&file).unwrap();
        assert_eq!(first.hashed().count(), 0, "it may change again within the tick of the clock");
        // A file that had long been there when it was hashed:
        let known = Unchanged::of(&fs::metadata(&file).unwrap());
        let mut later = Identifier::knowing([(known, [7; 32])]);
        assert_eq!(later.file(&file).unwrap(), [7; 32], "known by what the kernel says of it");
        let times = fs::FileTimes::new().set_modified(SystemTime::UNIX_EPOCH);
        File::options().write(true).open(&file).unwrap().set_times(times).unwrap();
        assert_eq!(later.file(&file).unwrap(), hash, "any change counts, whatever time it claims");
        later.file(Path::new("/bin/sh")).unwrap();
        assert_eq!(later.hashed().filter(|(_, hash)| *hash != [7; 32]).count(), 1);
    }

    #[test]
    fn a_process_that_has_ended_has_no_identity() {
        let mut child = Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        assert!(Identifier::default().process(child.id(), &[""]).is_err());
    }
}

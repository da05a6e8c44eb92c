//! `corefit manage`, `restore`, `status` and `plan` as commands: what they say to whom gives them something that cannot be, and
//! that nothing is changed or made then. Simulated hosts, and libvirt's test driver; no VM and no control group is touched.

mod left;
mod refused;
mod running;
#[path = "../manage_support/small.rs"]
mod small;

use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use sha2::{Digest as _, Sha256};
use tempfile::TempDir;

/// Three busy VMs on four pCPUs.
const HOST: &str = "until = \"3600s\"\nhardware = { cores = 4 }\n\
    [[vm]]\nname = \"a\"\nvcpus = 4\nprogram = \"hog\"\n\
    [[vm]]\nname = \"b\"\nvcpus = 4\nprogram = \"hog\"\n\
    [[vm]]\nname = \"c\"\nvcpus = 4\nprogram = \"hog\"\n";
/// libvirt's driver without VMs that run: each process has one of its own.
const LIVE: &str = "libvirt:test:///default";

/// A directory to work in, with a simulated host.
struct Place(TempDir);

impl Place {
    fn new() -> Place {
        let place = Place(tempfile::tempdir().unwrap());
        place.file("host.toml", HOST);
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn file(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).unwrap();
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_corefit"));
        command.args(args).current_dir(self.0.path()).stdin(Stdio::null());
        command
    }

    fn daemon(&self, args: &[&str], stderr: impl Into<Stdio>) -> Daemon {
        Daemon(self.command(args).stderr(stderr).spawn().unwrap())
    }

    fn corefit(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    /// What it says on stderr for a configuration; it ends well.
    fn log(&self, config: &str, args: &[&str]) -> String {
        self.file("corefit.toml", config);
        let output = self.corefit(&[&["manage", "--config", "corefit.toml"], args].concat());
        let text = said(&output);
        assert!(output.status.success(), "{text}");
        text
    }

    /// The one line of an error, with exit status 2.
    fn error(&self, args: &[&str]) -> String {
        self.error_of(args, 2)
    }

    fn error_of(&self, args: &[&str], status: i32) -> String {
        let output = self.corefit(args);
        let text = said(&output).trim_end().to_owned();
        assert_eq!(output.status.code(), Some(status), "{args:?}: {text}");
        assert!(!text.contains('\n') && text.starts_with("corefit: "), "{args:?}: {text}");
        text
    }

    fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.0.path()).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Ended with this value.
struct Daemon(Child);

impl Daemon {
    fn end(&mut self) {
        self.signal(Signal::TERM);
        assert!(self.0.wait().unwrap().success());
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn until(what: &str, mut is: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is() {
        assert!(begun.elapsed() < Duration::from_secs(60), "not within a minute: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A node of libvirt's test driver with a name of its own: other tests are no neighbours.
fn node(place: &Place) -> String {
    place.file(
        "host.xml",
        "<node><cpu><nodes>1</nodes><sockets>1</sockets><cores>2</cores><threads>1</threads></cpu>\
         <memory>4000000</memory></node>",
    );
    format!("libvirt:test://{}", place.path("host.xml").display())
}

/// A journal of this boot with a setting of a VM.
fn journal(place: &Place, state: &str, machine: &str, more: &str) -> String {
    journal_of(place, state, (machine, more), ("6695eb01-f6a4-8304-79aa-97f2502e193f#7", "web"))
}

/// The same of any VM, by its id and name.
fn journal_of(place: &Place, state: &str, (machine, more): (&str, &str), (vm, name): (&str, &str)) -> String {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let body = format!(
        "{{\"boot\":{:?},\"machine\":{machine:?},{more}\"entries\":[{{\"vm\":{vm:?},\
         \"name\":{name:?},\"lever\":\"weight\",\"original\":{{\"weight\":1024.0}},\"wrote\":[{{\"weight\":2048.0}}],\
         \"pending\":false}}]}}",
        boot.trim()
    );
    let sum = format!("{:x}", Sha256::digest(body.as_bytes()));
    let text = format!("corefit-journal 1 {sum}\n{body}\n");
    std::fs::create_dir_all(place.path(state)).unwrap();
    place.file(&format!("{state}/journal"), &text);
    text
}

/// As long as this is held, no other test has hold of control groups, also of another run (the file is that of `cgroup_support`).
fn groups() -> std::fs::File {
    let path = std::env::temp_dir().join("corefit-test-groups.lock");
    // Another user may have made it.
    let file = std::fs::File::create(&path).or_else(|_| std::fs::File::open(&path)).unwrap();
    rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive).unwrap();
    file
}

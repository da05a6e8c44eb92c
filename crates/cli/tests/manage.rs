//! `corefit manage`, `restore`, `status` and `plan` as commands: what they say to whom gives them something that cannot be, and
//! that nothing is changed or made then. Simulated hosts, and libvirt's test driver; no VM and no control group is touched.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

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
        let pid = i32::try_from(self.0.id()).ok().and_then(rustix::process::Pid::from_raw).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        assert!(self.0.wait().unwrap().success());
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

#[test]
fn a_configuration_that_cannot_be_is_refused_by_file_line_and_key_and_nothing_is_made() {
    let place = Place::new();
    for (text, parts) in [
        ("apply = true\nstate = \"\"\n", "corefit.toml, line 2, key state: "),
        ("tell = true\nmachine = \"mars\"\n", "corefit.toml, line 2, key machine: "),
        ("\nmachine = \"libvirt:\"\n", "corefit.toml, line 2, key machine: "),
        ("\nmachine = \"cgroups:\"\n", "corefit.toml, line 2, key machine: cgroups: lacks its paths"),
        (
            "machine = \"sim:host.toml\"\n[policy]\n\nreserved = \"0-9\"\n",
            "corefit.toml, line 4, key policy.reserved: the host has no pCPU 4-9",
        ),
        (
            "apply = true\nmachine = \"sim:host.toml\"\nstate = \"host.toml/state\"\n",
            "host.toml/state: cannot be written, so nothing is changed",
        ),
        (
            "[policy]\nvm = [{ name = \"a\", min = -1 }]\n",
            "corefit.toml, line 2, key policy.vm[0].min: -1 cannot be; give ",
        ),
    ] {
        place.file("corefit.toml", text);
        let error = place.error(&["manage", "--config", "corefit.toml", "--for", "1s"]);
        assert!(error.contains(parts), "{text:?}: {error}");
        assert_eq!(place.names(), ["corefit.toml", "host.toml"], "{text:?}");
    }
    // What the command line names is not in the file.
    place.file("corefit.toml", "machine = \"host\"\n");
    let error = place.error(&["manage", "--config", "corefit.toml", "--machine", "mars"]);
    assert!(error.contains("--machine mars") && !error.contains("line"), "{error}");
}

#[test]
fn a_plan_with_a_configuration_is_what_the_daemon_would_do_with_it() {
    let place = Place::new();
    let config = "machine = \"sim:host.toml\"\nmetrics = \"off\"\n[policy]\nsize = \"vcpu-bal\"\n\
        [[policy.vm]]\nname = \"b\"\nexclude = true\n[[policy.vm]]\nname = \"c\"\nmin = 3\n";
    place.file("corefit.toml", config);
    let plan = |args: &[&str]| {
        let args = [&["plan", "--json", "--config", "corefit.toml"], args].concat();
        let output = place.corefit(&args);
        assert!(output.status.success(), "{}", said(&output));
        let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let one = |action: &serde_json::Value| {
            let text = |key: &str| action[key].as_str().unwrap().to_owned();
            (text("name"), text("lever"), text("to"))
        };
        let mut planned: Vec<_> = json["actions"].as_array().unwrap().iter().map(one).collect();
        planned.sort();
        (planned, json["notes"].to_string())
    };
    let (planned, notes) = plan(&[]);
    // What the daemon says it would set, once it has waited.
    let log = place.log(config, &["--for", "10s"]);
    let value = |line: &str, key: &str| {
        let rest = line.split_once(&format!(" {key}=")).unwrap().1;
        let end = |rest: &str, mark| rest.split(mark).next().unwrap().to_owned();
        rest.strip_prefix('"').map_or_else(|| end(rest, ' '), |rest| end(rest, '"'))
    };
    let mut would: Vec<_> = log
        .lines()
        .filter(|line| line.contains(": would set "))
        .map(|line| (value(line, "vm"), value(line, "lever"), value(line, "to").replace("vCPUs ", "")))
        .collect();
    would.sort();
    assert_eq!(planned, would, "{log}");
    assert_eq!(planned.len(), 2, "{planned:?}");
    assert!(notes.contains("only running corefit manage shows") && notes.contains("3000 ms"), "{notes}");
    // An option counts more than the file.
    assert_eq!(plan(&["--size", "none"]).0, []);
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

#[test]
fn a_second_daemon_with_another_directory_is_refused_until_the_first_is_killed() {
    let place = Place::new();
    let machine = node(&place);
    place.file("corefit.toml", "metrics = \"off\"\n");
    let args = ["manage", "--apply", "--config", "corefit.toml", "--machine", &machine, "--state"];
    let first = Daemon(place.command(&[&args[..], &["a"]].concat()).stderr(Stdio::null()).spawn().unwrap());
    until("it holds the machine", || {
        let status = place.corefit(&["status", "--state", "a"]);
        status.status.success() && !String::from_utf8_lossy(&status.stdout).contains(" 0 steps")
    });
    let second = [&args[..], &["b", "--for", "1s"]].concat();
    let error = place.corefit(&second);
    assert_eq!(error.status.code(), Some(1), "{}", said(&error));
    let who = format!("another corefit (process {}) is at work there, with --state '", first.0.id());
    assert!(
        said(&error).contains(&who) && said(&error).contains("/a'; end that one first"),
        "{}",
        said(&error)
    );
    let elsewhere = place.corefit(&["status", "--state", "b"]);
    assert_eq!(elsewhere.status.code(), Some(1), "{}", said(&elsewhere));
    let named = format!("corefit status --state '{}'", place.path("a").display());
    assert!(said(&elsewhere).contains(&named), "{}", said(&elsewhere));
    // Who may be gone the next time is told as that, too, where the configuration names the directory.
    let named = format!("metrics = \"off\"\nmachine = {machine:?}\napply = true\nstate = \"a\"\n");
    place.file("named.toml", &named);
    let error = place.corefit(&["manage", "--config", "named.toml", "--for", "1s"]);
    assert!(said(&error).contains("named.toml, line 4, key state: "), "{}", said(&error));
    assert_eq!(error.status.code(), Some(1), "{}", said(&error));
    drop(first); // kill -9
    let next = place.corefit(&second);
    assert!(next.status.success(), "{}", said(&next));
}

#[test]
fn nobody_keeps_the_daemon_from_its_machine_by_taking_a_name() {
    use std::os::linux::net::SocketAddrExt as _;
    use std::os::unix::net::{SocketAddr, UnixListener};

    let place = Place::new();
    let machine = node(&place);
    place.file("corefit.toml", "metrics = \"off\"\n");
    let args = ["manage", "--apply", "--config", "corefit.toml", "--machine", &machine, "--for", "1s"];
    // Any user may bind this; earlier versions took it for another corefit.
    let log = place.corefit(&[&args[..], &["--state", "a"]].concat());
    let name = said(&log)
        .split_once("machine=")
        .unwrap()
        .1
        .split_once(" does=")
        .unwrap()
        .0
        .trim_matches('"')
        .to_owned();
    let sum = format!("{:x}", Sha256::digest(name.as_bytes()));
    let address = SocketAddr::from_abstract_name(format!("corefit-manage-{sum}")).unwrap();
    let _taken = UnixListener::bind_addr(&address).unwrap();
    let output = place.corefit(&[&args[..], &["--state", "b"]].concat());
    assert!(output.status.success(), "{}", said(&output));
}

#[test]
fn signals_that_mean_nothing_and_a_configuration_that_would_be_waited_for_change_nothing() {
    use rustix::process::{Pid, Signal, kill_process};

    let place = Place::new();
    place.file("corefit.toml", "metrics = \"off\"\n");
    let args = ["manage", "--config", "corefit.toml", "--machine", LIVE, "--state", "state"];
    let log = std::fs::File::create(place.path("log")).unwrap();
    let mut daemon = Daemon(place.command(&args).stderr(log).spawn().unwrap());
    let log = || std::fs::read_to_string(place.path("log")).unwrap();
    until("it is at work", || log().contains("begun"));
    std::fs::remove_file(place.path("corefit.toml")).unwrap();
    let made = Command::new("mkfifo").arg(place.path("corefit.toml")).status().unwrap();
    assert!(made.success());
    let pid = Pid::from_raw(i32::try_from(daemon.0.id()).unwrap()).unwrap();
    for signal in [Signal::USR1, Signal::USR2, Signal::ALARM, Signal::VTALARM, Signal::XFSZ, Signal::HUP] {
        kill_process(pid, signal).unwrap();
    }
    until("it refuses the configuration", || log().contains("configuration refused, the old one stays"));
    assert!(log().contains("corefit.toml: is no regular file"), "{}", log());
    std::fs::remove_file(place.path("corefit.toml")).unwrap();
    place.file("corefit.toml", "");
    kill_process(pid, Signal::HUP).unwrap();
    until("it refuses an empty one, too", || log().contains("corefit.toml: says nothing"));
    let status = |args: &[&str]| {
        let output = place.corefit(&[&["status", "--state", "state"], args].concat());
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let text = status(&[]);
    assert!(text.contains("note: the configuration was refused when it was read again"), "{text}");
    assert!(text.contains("corefit.toml: says nothing"), "{text}");
    let refused =
        || serde_json::from_str::<serde_json::Value>(&status(&["--json"])).unwrap()["config_refused"].clone();
    assert!(refused().as_str().is_some_and(|why| why.contains("says nothing")), "{}", refused());
    place.file("corefit.toml", "metrics = \"off\"\n");
    kill_process(pid, Signal::HUP).unwrap();
    until("it takes a good one", || refused().is_null());
    daemon.end();
}

#[test]
fn where_the_journal_cannot_be_it_says_that_nothing_is_changed_and_what_to_do() {
    let place = Place::new();
    place.file("taken", "");
    let sim = ["manage", "--apply", "--machine", "sim:host.toml", "--for", "1s", "--state"];
    for state in ["taken", "taken/below"] {
        let error = place.error(&[&sim[..], &[state]].concat());
        assert!(error.contains("nothing is changed") && error.contains("--state"), "{error}");
    }
    std::fs::create_dir_all(place.path("locked/lock")).unwrap();
    let error = place.error(&[&sim[..], &["locked"]].concat());
    assert!(error.contains("nothing is changed") && error.contains("--state"), "{error}");
}

/// A file system of a few pages, gone with this value.
struct Small(PathBuf);

impl Small {
    /// `None` where this user may not make one, which is said.
    fn at(path: PathBuf) -> Option<Small> {
        std::fs::create_dir(&path).unwrap();
        let mounted = mount(&["-t", "tmpfs", "-o", "size=16k", "none", path.to_str().unwrap()]);
        if !mounted {
            let _ = writeln!(
                std::io::stderr(),
                "skipped: a full and a read-only file system: only root may mount one"
            );
        }
        mounted.then_some(Small(path))
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").args(["-l", self.0.to_str().unwrap()]).status();
    }
}

fn mount(args: &[&str]) -> bool {
    Command::new("mount").args(args).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}

#[test]
fn on_a_full_or_read_only_file_system_nothing_is_changed_and_it_says_so() {
    let place = Place::new();
    let _groups = groups();
    let Some(small) = Small::at(place.path("small")) else { return };
    let sim = ["manage", "--apply", "--machine", "sim:host.toml", "--for", "1s", "--state", "small/state"];
    std::fs::create_dir(place.path("small/state")).unwrap();
    journal(&place, "small/left", "cgroups:/corefit-none", "");
    std::fs::write(place.path("small/left/lock"), "").unwrap();
    assert!(std::fs::write(place.path("small/filler"), vec![0; 1 << 20]).is_err(), "it is full");
    let error = place.error_of(&sim, 1);
    assert!(error.contains("No space left") && error.contains("nothing is changed"), "{error}");
    assert!(mount(&["-o", "remount,ro", small.0.to_str().unwrap()]));
    let error = place.error_of(&sim, 1);
    assert!(error.contains("Read-only") && error.contains("nothing is changed"), "{error}");
    // What an earlier run left there is known there alone.
    let output = place.corefit(&["restore", "--tries", "1", "--state", "small/left"]);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(said(&output).contains("the journal cannot be written: Read-only"), "{}", said(&output));
}

#[test]
fn a_daemon_whose_status_socket_cannot_be_works_without_it() {
    let place = Place::new();
    std::fs::create_dir_all(place.path("state/status.sock")).unwrap();
    let long = "x".repeat(120);
    for state in ["state", &long] {
        let config = "metrics = \"off\"\nmachine = \"sim:host.toml\"\n[policy]\nsize = \"vcpu-bal\"\n";
        let log = place.log(config, &["--apply", "--state", state, "--for", "10s"]);
        assert!(log.contains("warning: no status") && log.contains("restored"), "{log}");
    }
}

#[test]
fn the_status_is_there_without_apply_too_and_its_socket_goes_with_the_daemon() {
    let place = Place::new();
    let status = || place.corefit(&["status", "--state", "state"]);
    let missing = status();
    assert_eq!(missing.status.code(), Some(1));
    assert!(said(&missing).contains("--state"), "{}", said(&missing));
    place.file("corefit.toml", "metrics = \"off\"\n");
    let args = ["manage", "--config", "corefit.toml", "--machine", LIVE, "--state", "state"];
    let start = || Daemon(place.command(&args).stderr(Stdio::null()).spawn().unwrap());
    let mut daemon = start();
    until("it tells its status", || status().status.success());
    let text = String::from_utf8_lossy(&status().stdout).into_owned();
    assert!(text.contains("only looks (without --apply)"), "{text}");
    // A second one that only looks does not take the socket away.
    let second = place.corefit(&[&args[..], &["--for", "1s"]].concat());
    assert!(second.status.success() && said(&second).contains("no status"), "{}", said(&second));
    assert!(status().status.success());
    daemon.end();
    assert_eq!(status().status.code(), Some(1));
    assert!(!place.path("state/status.sock").exists());
}

#[test]
fn an_address_of_metrics_that_is_taken_is_said_with_place_and_remedy_and_who_changes_no_host_takes_none() {
    let place = Place::new();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let config = format!("machine = \"sim:host.toml\"\nmetrics = \"{}\"\n", taken.local_addr().unwrap());
    let log = place.log(&config, &["--for", "1s"]);
    for part in
        ["no metrics at=", " why=", "corefit.toml, line 2, key metrics: ", r#"127.0.0.1:PORT\" or \"off\""#]
    {
        assert!(log.contains(part), "{part}: {log}");
    }
    for args in [&["--for", "1s"][..], &["--apply", "--state", "state", "--for", "1s"]] {
        let log = place.log("machine = \"sim:host.toml\"\n", args);
        assert!(!log.contains("metrics"), "{log}");
    }
    let log = place.log(&format!("machine = \"{LIVE}\"\n"), &["--state", "state", "--for", "1s"]);
    assert!(!log.contains("metrics"), "{log}");
}

#[test]
fn names_of_one_libvirt_are_one_machine_and_its_lock_is_of_both() {
    let place = Place::new();
    let machine = node(&place);
    let uri = machine.strip_prefix("libvirt:").unwrap();
    place.file("corefit.toml", "metrics = \"off\"\n");
    let args = ["manage", "--apply", "--config", "corefit.toml", "--machine", &machine, "--state", "a"];
    let _first = Daemon(place.command(&args).stderr(Stdio::null()).spawn().unwrap());
    until("it works", || place.corefit(&["status", "--state", "a"]).status.success());
    let second = ["manage", "--apply", "--machine", "libvirt", "--state", "b", "--for", "1s"];
    let output = place.command(&second).env("LIBVIRT_DEFAULT_URI", uri).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(said(&output).contains(") is at work there, with --state '"), "{}", said(&output));
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

#[test]
fn settings_of_one_libvirt_are_not_taken_for_ended_by_another() {
    let place = Place::new();
    let text = journal(&place, "state", "libvirt", "\"uri\":\"qemu:///system\",");
    let restore = |args: &[&str]| {
        let mut command = place.command(&[&["restore", "--tries", "1", "--state", "state"], args].concat());
        command.env("LIBVIRT_DEFAULT_URI", "test:///default").output().unwrap()
    };
    let output = restore(&[]);
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    for part in ["qemu:///system", "test:///default", "--machine 'libvirt:qemu:///system'"] {
        assert!(said(&output).contains(part), "{part}: {}", said(&output));
    }
    assert_eq!(std::fs::read_to_string(place.path("state/journal")).unwrap(), text);
    // One whose VMs it can tell of, by whatever name.
    let machine = node(&place);
    let uri = machine.strip_prefix("libvirt:").unwrap();
    journal(&place, "state", "libvirt", &format!("\"uri\":{uri:?},"));
    let output = restore(&["--machine", &machine]);
    let sum = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && sum.contains("of VMs that have ended: 1;"), "{sum}{}", said(&output));
}

#[test]
fn a_configuration_that_cannot_be_read_is_no_reason_to_look_elsewhere() {
    let place = Place::new();
    place.file("corefit.toml", "state = 3\n");
    for (file, part) in [("corefit.toml", "line 1, key state"), ("typo.toml", "typo.toml: no such file")] {
        for verb in ["restore", "status"] {
            let error = place.error(&[verb, "--config", file]);
            assert!(error.contains(part), "{error}");
        }
    }
    let machine = node(&place);
    let output =
        place.corefit(&["restore", "--config", "typo.toml", "--state", "state", "--machine", &machine]);
    assert!(output.status.success(), "the directory is known: {}", said(&output));
    let output =
        place.corefit(&["restore", "--config", "typo.toml", "--or-default", "--machine", "sim:host.toml"]);
    assert!(said(&output).contains("typo.toml: no such file"), "{}", said(&output));
    assert!(said(&output).contains("looking in /var/lib/corefit"), "{}", said(&output));
}

#[test]
fn what_owners_ask_for_is_taken_and_what_makes_no_sense_is_hands_off_and_said() {
    let place = Place::new();
    let domain = |name: &str, number: u32, owner: &str| {
        format!(
            "<domain type='test'><name>{name}</name><uuid>6695eb01-f6a4-8304-79aa-97f2502e193{number}</uuid>\
             <memory>65536</memory><vcpu>2</vcpu><os><type>hvm</type></os>\
             <metadata><c:owner xmlns:c='urn:corefit:owner' {owner}/></metadata></domain>"
        )
    };
    let vms = [("a", "exclude='yes'"), ("b", "max='lots'"), ("c", "priority='5'"), ("d", "")];
    let domains: String = (0..).zip(vms).map(|(number, (name, owner))| domain(name, number, owner)).collect();
    place.file(
        "host.xml",
        &format!(
            "<node><cpu><nodes>1</nodes><sockets>1</sockets><cores>2</cores><threads>1</threads></cpu>\
             <memory>4000000</memory>{domains}</node>"
        ),
    );
    let machine = format!("libvirt:test://{}", place.path("host.xml").display());
    let args = ["manage", "--machine", &machine, "--state", "state"];
    let log = std::fs::File::create(place.path("log")).unwrap();
    let mut daemon = Daemon(place.command(&args).stderr(log).spawn().unwrap());
    let mut text = String::new();
    until("it tells its status", || {
        text = String::from_utf8_lossy(&place.corefit(&["status", "--state", "state"]).stdout).into_owned();
        text.contains("left alone")
    });
    for part in [
        "a: left alone: its owner says exclude",
        "b: left alone: its owner's metadata say max=\"lots\": give a whole number of vCPUs",
        "c: is not sized: its vCPUs cannot be taken away: it has no guest agent",
        "d: left alone: its owner set hands-off",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    daemon.end();
    let log = std::fs::read_to_string(place.path("log")).unwrap();
    assert!(
        log.contains("left alone at=") && log.contains(" vm=b ") && log.contains("virsh metadata"),
        "{log}"
    );
}

#[test]
fn a_file_that_applies_has_a_dry_run_that_changes_nothing_and_takes_no_address() {
    let place = Place::new();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let config = format!(
        "machine = \"sim:host.toml\"\napply = true\nstate = \"state\"\nmetrics = \"{address}\"\n\
         [policy]\nsize = \"vcpu-bal\"\n"
    );
    let log = place.log(&config, &["--for", "10s", "--no-apply"]);
    assert!(log.contains("only says what it would change") && log.contains(": would set "), "{log}");
    assert!(!log.contains("no metrics") && !place.path("state").exists(), "{log}");
    let both = place.corefit(&["manage", "--config", "corefit.toml", "--apply", "--no-apply"]);
    assert_eq!(both.status.code(), Some(2), "{}", said(&both));
}

#[test]
fn a_service_manager_is_told_that_it_looks_and_that_putting_back_goes_on() {
    use std::os::unix::net::UnixDatagram;

    let place = Place::new();
    let socket = UnixDatagram::bind(place.path("notify")).unwrap();
    socket.set_nonblocking(true).unwrap();
    place.file(
        "corefit.toml",
        "machine = \"sim:host.toml\"\nmetrics = \"off\"\n[policy]\nsize = \"vcpu-bal\"\n",
    );
    let args = ["manage", "--config", "corefit.toml", "--state", "state", "--for", "10s"];
    let told = |more: &[&str]| {
        let mut command = place.command(&[&args[..], more].concat());
        let output = command.env("NOTIFY_SOCKET", place.path("notify")).output().unwrap();
        assert!(output.status.success(), "{}", said(&output));
        let mut buffer = [0; 256];
        let next =
            || socket.recv(&mut buffer).ok().map(|n| String::from_utf8_lossy(&buffer[..n]).into_owned());
        std::iter::from_fn(next).collect::<Vec<String>>()
    };
    assert_eq!(told(&["--no-apply"]), ["READY=1", "STOPPING=1"]);
    assert_eq!(told(&["--apply"]), ["READY=1", "STOPPING=1", "EXTEND_TIMEOUT_USEC=60000000"]);
}

#[test]
fn a_log_that_nobody_reads_keeps_it_neither_from_looking_nor_from_ending() {
    let place = Place::new();
    place.file("corefit.toml", "metrics = \"off\"\n[policy]\ninterval_ms = 50\n");
    let (reader, mut log) = std::io::pipe().unwrap();
    rustix::pipe::fcntl_setpipe_size(&log, 4096).unwrap();
    log.write_all(&[b'\n'; 4096]).unwrap();
    let args = ["manage", "--config", "corefit.toml", "--machine", LIVE, "--state", "state"];
    let mut daemon = Daemon(place.command(&args).stderr(log).spawn().unwrap());
    let steps = || {
        let output = place.corefit(&["status", "--json", "--state", "state"]);
        let status = serde_json::from_slice::<serde_json::Value>(&output.stdout);
        status.ok().and_then(|status| status["steps"].as_u64()).unwrap_or_default()
    };
    until("it looks", || steps() > 2);
    let pid = i32::try_from(daemon.0.id()).ok().and_then(rustix::process::Pid::from_raw).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    until("it ends", || daemon.0.try_wait().unwrap().is_some_and(|status| status.success()));
    drop(reader);
}

#[test]
fn a_damaged_journal_is_said_by_who_only_looks() {
    let place = Place::new();
    journal(&place, "state", "libvirt", "");
    place.file("state/journal", "corefit-journal 1 0\n{}\n");
    let output = place.corefit(&["manage", "--machine", LIVE, "--state", "state", "--for", "1s"]);
    assert!(output.status.success(), "{}", said(&output));
    for part in ["state/journal: damaged", "urn:corefit:kept", "control groups"] {
        assert!(said(&output).contains(part), "{part}: {}", said(&output));
    }
}

#[test]
fn a_name_that_no_machine_has_is_refused_by_a_running_daemon_too() {
    let place = Place::new();
    let args = ["manage", "--config", "corefit.toml", "--state", "state"];
    let log = std::fs::File::create(place.path("log")).unwrap();
    place.file("corefit.toml", &format!("machine = \"{LIVE}\"\nmetrics = \"off\"\n"));
    let mut daemon = Daemon(place.command(&args).stderr(log).spawn().unwrap());
    let log = || std::fs::read_to_string(place.path("log")).unwrap();
    until("it works", || log().contains("begun"));
    place.file("corefit.toml", "metrics = \"off\"\nmachine = \"nonsense\"\n");
    let pid = i32::try_from(daemon.0.id()).ok().and_then(rustix::process::Pid::from_raw).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::HUP).unwrap();
    until("that is refused", || log().contains("configuration refused"));
    assert!(
        log().contains("corefit.toml, line 2, key machine: nonsense: nothing can be changed there"),
        "{}",
        log()
    );
    daemon.end();
}

#[test]
fn a_directory_without_a_journal_is_said_to_be_one_and_not_made() {
    let place = Place::new();
    let output = place.corefit(&["restore", "--state", "typo", "--machine", LIVE]);
    assert!(output.status.success(), "{}", said(&output));
    assert!(said(&output).contains("typo: no journal there"), "{}", said(&output));
    assert!(!Path::exists(&place.path("typo")));
}

#[test]
fn what_a_killed_simulation_left_is_no_matter() {
    let place = Place::new();
    place.file(
        "corefit.toml",
        "machine = \"sim:host.toml\"\nmetrics = \"off\"\n[policy]\nsize = \"vcpu-bal\"\n",
    );
    let args = ["manage", "--config", "corefit.toml", "--apply", "--state", "state", "--for", "10s"];
    let killed = place.command(&args).env("COREFIT_TEST_KILL_AT", "journal-written:2").output().unwrap();
    assert_eq!(killed.status.code(), None, "it was killed: {}", said(&killed));
    let error = place.error(&["restore", "--state", "state", "--machine", "sim:host.toml"]);
    assert!(error.contains("nothing to put back") && place.path("state/journal").exists(), "{error}");
    let (node, mut restore) = (node(&place), place.command(&["restore", "--state", "state"]));
    let output = restore.env("LIBVIRT_DEFAULT_URI", node.trim_start_matches("libvirt:")).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    let error = place.error(&["restore", "--state", "typo", "--config", "corefit.toml"]);
    assert!(error.contains("sim:host.toml"), "the machine of the configuration: {error}");
}

#[test]
fn guarantees_and_limits_that_cannot_all_hold_are_said() {
    let place = Place::new();
    let config = "machine = \"sim:host.toml\"\nmetrics = \"off\"\ntell = false\n\
        [policy]\nsize = \"none\"\narbitrate = \"priority\"\n\
        [[policy.vm]]\nname = \"[bc]\"\nmin = 4\n\
        [[policy.vm]]\nname = \"*\"\nmax = 3\n[[policy.vm]]\nname = \"c\"\nmin = 3\n\
        [[policy.vm]]\nname = \"b\"\nmin = 3\n[[policy.vm]]\nname = \"b\"\nmax = 2\n";
    let log = place.log(config, &["--for", "40s"]);
    assert!(log.contains("b: its rules say min 3 and max 2: max counts"), "{log}");
    assert!(!log.contains("c: its rules"), "{log}");
    assert!(
        log.contains("5.00 pCPUs are guaranteed, more than the 4 that there are: not all VMs can get theirs"),
        "{log}"
    );
}

/// What is changed there is known there alone.
#[test]
fn a_directory_in_which_a_killed_daemon_left_settings_is_named_to_who_comes_with_another() {
    let place = Place::new();
    let machine = node(&place);
    let more = format!("\"uri\":{:?},", machine.strip_prefix("libvirt:").unwrap());
    place.file("corefit.toml", "metrics = \"off\"\n");
    let args =
        ["manage", "--apply", "--config", "corefit.toml", "--machine", &machine, "--for", "1s", "--state"];
    let manage = |state: &str| place.corefit(&[&args[..], &[state]].concat());
    let first = manage("a");
    assert!(first.status.success(), "{}", said(&first));
    let text = journal(&place, "a", &machine, &more);
    for args in [&[&args[..], &["b"]].concat()[..], &["restore", "--machine", &machine, "--state", "c"]] {
        let error = place.error(args);
        for part in [
            "a/journal: holds 1 setting of libvirt test://",
            "nothing is changed",
            "`corefit restore --state '",
        ] {
            assert!(error.contains(part), "{part}: {error}");
        }
    }
    assert_eq!(std::fs::read_to_string(place.path("a/journal")).unwrap(), text);
    assert!(!place.path("c").exists());
    let restored = place.corefit(&["restore", "--tries", "1", "--state", "a"]);
    assert!(restored.status.success(), "{}", said(&restored));
    let next = manage("b");
    assert!(next.status.success(), "{}", said(&next));
}

#[test]
fn restore_by_hand_notes_the_machine_that_a_daemon_names() {
    let place = Place::new();
    let machine = node(&place);
    place.file("corefit.toml", "metrics = \"off\"\n");
    let args = [
        "manage",
        "--apply",
        "--config",
        "corefit.toml",
        "--machine",
        &machine,
        "--for",
        "1s",
        "--state",
        "state",
    ];
    let first = place.corefit(&args);
    assert!(first.status.success(), "{}", said(&first));
    let mut restore = place.command(&["restore", "--state", "state"]);
    let output = restore.env("LIBVIRT_DEFAULT_URI", machine.trim_start_matches("libvirt:")).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    let journal = std::fs::read_to_string(place.path("state/journal")).unwrap();
    assert!(
        journal.contains(&format!("\"machine\": \"{machine}\"")) && journal.contains("\"uri\": \"test://"),
        "{journal}"
    );
}

#[test]
fn restore_waits_for_a_libvirt_that_is_not_there_while_qemus_run_and_does_not_end_well_without() {
    let place = Place::new();
    // A process of that name, which ends with its input.
    let named = "printf qemu-system-x >/proc/$$/comm; read x";
    let qemu = Command::new("sh").args(["-c", named]).stdin(Stdio::piped()).spawn().unwrap();
    let comm = format!("/proc/{}/comm", qemu.id());
    let _qemu = Daemon(qemu);
    until("it has its name", || {
        std::fs::read_to_string(&comm).is_ok_and(|name| name.starts_with("qemu-system-"))
    });
    let mut restore = place.command(&["restore", "--tries", "2", "--state", "state"]);
    let nowhere = format!("qemu+unix:///system?socket={}", place.path("libvirt-sock").display());
    let output = restore.env("LIBVIRT_DEFAULT_URI", &nowhere).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(output.stdout.is_empty(), "nothing is known: {output:?}");
    // But where one was at work that changed nothing is known.
    let machine = node(&place);
    let first =
        place.corefit(&["manage", "--apply", "--machine", &machine, "--for", "1s", "--state", "other"]);
    assert!(first.status.success(), "{}", said(&first));
    let mut again = place.command(&["restore", "--tries", "2", "--state", "other"]);
    let again = again.env("LIBVIRT_DEFAULT_URI", &nowhere).output().unwrap();
    assert!(again.status.success(), "{}", said(&again));
    for part in ["QEMUs run here, but libvirt does not answer", "at most 1 more tries", "--machine cgroups"] {
        assert!(said(&output).contains(part), "{part}: {}", said(&output));
    }
    assert!(!said(&output).contains("no journal there"), "{}", said(&output));
}

/// libvirt was not there when the one that was killed began.
#[test]
fn what_was_left_on_control_groups_is_put_back_there_and_keeps_no_daemon_from_libvirt() {
    let place = Place::new();
    let _groups = groups();
    let machine = node(&place);
    place.file("corefit.toml", "metrics = \"off\"\n");
    journal_of(&place, "state", ("cgroups:/corefit-none", ""), ("/corefit-none@1", "/corefit-none"));
    let args = ["manage", "--apply", "--config", "corefit.toml", "--for", "1s", "--state", "state"];
    let uri = machine.trim_start_matches("libvirt:");
    let output = place.command(&args).env("LIBVIRT_DEFAULT_URI", uri).output().unwrap();
    let log = said(&output);
    assert!(output.status.success(), "{log}");
    assert!(
        log.contains("an earlier run left settings") && log.contains("of VMs that have ended: 1;"),
        "{log}"
    );
    let begun = log.lines().find(|line| line.contains(": begun ")).unwrap();
    assert!(begun.contains("machine=libvirt"), "{log}");
    let journal = std::fs::read_to_string(place.path("state/journal")).unwrap();
    assert!(journal.contains("\"machine\": \"libvirt\"") && journal.contains("\"entries\": []"), "{journal}");
}

//! `corefit explain` and `corefit record` as commands: exit codes, errors, and recordings that are
//! written and played.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

fn corefit(args: &[&str]) -> Output {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    Command::new(env!("CARGO_BIN_EXE_corefit")).args(args).current_dir(root).output().unwrap()
}

fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The one line of an error, with exit status 2.
fn error(args: &[&str]) -> String {
    let output = corefit(args);
    let text = String::from_utf8_lossy(&output.stderr).trim_end().to_owned();
    assert_eq!(output.status.code(), Some(2), "{args:?}: {text}");
    assert!(!text.contains('\n') && text.starts_with("corefit: "), "{args:?}: {text}");
    text
}

const RECORDING: &str = "replay:captures/three-groups/recording.cfr";
const FIGURE_10: &str = "scenario:scenarios/p2-figure10.toml";

#[test]
fn errors_are_one_line_with_the_place_and_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, bytes: &[u8]| {
        let path = dir.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path.display().to_string()
    };
    let bad = file("bad.toml", b"pcpus = \"0-1\"\n[[vm]]\nname = 3\n");
    let empty = file("empty.cfr", b"");
    for (args, part) in [
        (&["explain", "--machine", "mars"][..], "no machine \"mars\"; there are host, self, libvirt"),
        (&["explain", "--machine", "replay:"], "lacks its file; give replay:FILE"),
        (
            &["explain", "--machine", "libvirt:"],
            "libvirt: lacks its URI; give one, such as libvirt:qemu:///system",
        ),
        (&["explain", "--machine", "libvirt:test:////nope.xml"], "//nope.xml: No such file"),
        (&["explain", "--machine", "replay:captures"], "captures: is a directory; give a recording"),
        (&["explain", "--machine", "scenario:/nope"], "/nope: no such file; scenarios/"),
        (&["explain", "--machine", "scenario:scenarios"], "scenarios: is a directory; give a scenario"),
        (
            &["sim", "scenarios/p2-figure10.toml"],
            "corefit explain --machine scenario:scenarios/p2-figure10.toml",
        ),
        (&["explain", "--machine", "sim:scenarios/p2-figure10.toml"], "corefit explain --machine scenario:"),
        (
            &["explain", "--machine", "scenario:scenarios/p1-figure6.toml"],
            "corefit sim scenarios/p1-figure6.toml",
        ),
        (&["explain", "--machine", "cgroups:web"], "\"web\" is no path of a control group; give paths"),
        (&["explain", "--machine", "replay:Makefile"], "Makefile: is no recording of corefit"),
        (&["explain", "--machine", "replay:/no/such"], "/no/such: no such file"),
        (&["explain", "--machine", &format!("replay:{empty}")], "empty.cfr: is empty"),
        (&["explain", "--machine", &format!("scenario:{bad}")], "bad.toml, line 3, vm[0].name: invalid type"),
        (&["explain", "c", "--machine", FIGURE_10], "no VM \"c\" in scenarios/p2-figure10.toml"),
        (&["explain", "vm9", "--machine", RECORDING], "there are: vm1, vm2, vm3"),
        (&["record", &empty, "--for", "1s", "--machine", FIGURE_10], "empty.cfr: is there already"),
    ] {
        let text = error(args);
        assert!(text.contains(part), "{args:?}: {text}");
    }
}

#[test]
fn a_scenario_is_explained_as_text_and_as_a_document() {
    let text = out(&corefit(&["explain", "--machine", FIGURE_10]));
    assert!(text.contains("because 1.60 of vCPUs 0-1: pCPUs 0-3 are full, shared with b"), "{text}");
    let json = out(&corefit(&["explain", "b", "--json", "--machine", FIGURE_10]));
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&json["vms"][0]["name"], &json["vms"][0]["entitled"]), (&"b".into(), &2.4.into()));
    let held: Vec<_> = json["vms"][0]["vcpus"].as_array().unwrap().iter().map(|vcpu| &vcpu["full"]).collect();
    assert!(held.len() == 3 && held.iter().all(|full| **full == 0), "all by the same: {held:?}");
    assert_eq!(json["full"], serde_json::json!([{ "pcpus": "0-3", "vms": ["a", "b"] }]), "which stands once");
}

#[test]
fn watching_a_recording_explains_each_second_of_it_and_ends_with_it() {
    let output = corefit(&["explain", "--watch", "--json", "--machine", RECORDING]);
    assert!(output.status.success());
    let text = out(&output);
    let documents: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(documents.len() >= 3, "{text}");
    let times: Vec<u64> = documents.iter().map(|document| document["at_ns"].as_u64().unwrap()).collect();
    assert!(times.windows(2).all(|pair| pair[0] < pair[1]), "{times:?}");
}

#[test]
fn watching_ends_when_its_lines_cannot_be_written() {
    let watch = ["explain", "--watch", "--json", "--machine", RECORDING];
    let first = out(&corefit(&watch)).lines().next().unwrap().len();
    let dir = tempfile::tempdir().unwrap();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut shell = Command::new("sh");
    // Blocks of 512 bytes: the first line fits.
    let limit = format!("trap '' XFSZ; ulimit -f {}; exec \"$@\"", first / 512 + 1);
    shell.args(["-c", limit.as_str(), "sh", env!("CARGO_BIN_EXE_corefit")]).args(watch).current_dir(root);
    let file = std::fs::File::create(dir.path().join("out")).unwrap();
    let output = shell.stdout(file).stderr(Stdio::piped()).spawn().unwrap().wait_with_output().unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), told.lines().count()), (Some(2), 1), "{told}");
    assert!(told.starts_with("corefit: writing to stdout: "), "{told}");
}

#[test]
fn a_recording_cut_off_is_shown_up_to_there_and_then_it_is_said() {
    let whole = std::fs::read(
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../captures/three-groups/recording.cfr"),
    );
    let whole = whole.unwrap();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("cut.cfr");
    std::fs::write(&file, &whole[..whole.len() - 20]).unwrap();
    let output = corefit(&["explain", "--watch", "--machine", &format!("replay:{}", file.display())]);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(out(&output).contains("because"), "what came before is shown");
    assert!(error.contains("cut.cfr, line") && error.contains("ends before the recording does"), "{error}");
}

#[test]
fn a_vm_can_be_asked_for_whose_name_is_no_utf_8() {
    use std::os::unix::ffi::OsStrExt as _;
    let name = std::ffi::OsStr::from_bytes(b"b\xffx");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut command = Command::new(env!("CARGO_BIN_EXE_corefit"));
    command.args(["explain", "--machine", FIGURE_10]).arg(name).current_dir(root);
    let output = command.output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(2) && error.contains("; there are: "), "{error}");
}

#[test]
fn what_is_recorded_can_be_recorded_again_without_names() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("x.cfr").display().to_string();
    let output = corefit(&["record", &file, "--for", "3s", "--anonymise", "--machine", FIGURE_10]);
    assert!(output.status.success(), "{output:?}");
    assert!(out(&output).contains("4 snapshots over 3 s"), "{output:?}");
    // No longer than was asked for, whatever the interval.
    let short = dir.path().join("short.cfr").display().to_string();
    let args = ["record", &short, "--for", "1s", "--interval", "5s", "--machine", FIGURE_10];
    assert!(out(&corefit(&args)).contains("2 snapshots over 1 s"), "{:?}", corefit(&args));
    let shorter = dir.path().join("shorter.cfr").display().to_string();
    let output = corefit(&["record", &shorter, "--for", "300ms", "--machine", FIGURE_10]);
    assert!(out(&output).contains("2 snapshots over 0.3 s"), "{output:?}");
    let output = corefit(&["record", "-", "--for", "1s", "--machine", FIGURE_10]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("-: a recording goes into a file"),
        "{output:?}"
    );
    let json = out(&corefit(&["explain", "--json", "--machine", &format!("replay:{file}")]));
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&json["vms"][0]["name"], &json["vms"][0]["entitled"]), (&"vm1".into(), &1.6.into()));
    assert_eq!(json["machine"], "recording of a host without names");
    let checked = corefit(&["check", "--machine", &format!("replay:{file}")]);
    assert!(out(&checked).starts_with(&format!("host ({file}): ")), "{checked:?}");
    // A recording that ends before the time that was asked for is one that is whole.
    let again = dir.path().join("y.cfr").display().to_string();
    let output = corefit(&["record", &again, "--for", "1h", "--machine", &format!("replay:{file}")]);
    assert!(out(&output).contains("4 snapshots over 3 s"), "{output:?}");
}

#[test]
fn a_recording_that_cannot_be_written_is_gone_if_there_is_nothing_in_it_and_says_what_is() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("x.cfr");
    let record = |blocks: u32| {
        // Of 512 bytes.
        let limit = format!("ulimit -f {blocks}; exec \"$@\"");
        let mut shell = Command::new("sh");
        shell.args(["-c", &limit, "sh", env!("CARGO_BIN_EXE_corefit"), "record"]).arg(&file);
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let output = shell.args(["--for", "1h", "--machine", FIGURE_10]).current_dir(root).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let told = record(0);
    assert!(told.contains("x.cfr: cannot be written: ") && !file.exists(), "{told}");
    let told = record(16);
    assert!(told.contains("x.cfr: cannot be written further; "), "{told}");
    let many = told.split("further; ").nth(1).unwrap().split(' ').next().unwrap();
    let played = corefit(&["explain", "--watch", "--machine", &format!("replay:{}", file.display())]);
    let end = String::from_utf8_lossy(&played.stderr).into_owned();
    assert!(end.contains(&format!("; {many} snapshots before it could be read")), "{told} {end}");
}

/// A child that is ended when the test ends in whatever way.
struct Recorder(std::process::Child);

impl Drop for Recorder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_recorder_that_is_killed_or_interrupted_leaves_what_it_saw() {
    let dir = tempfile::tempdir().unwrap();
    for (name, signal) in
        [("killed", rustix::process::Signal::KILL), ("interrupted", rustix::process::Signal::TERM)]
    {
        let file = dir.path().join(name).display().to_string();
        let child = Command::new(env!("CARGO_BIN_EXE_corefit"))
            .args(["record", &file, "--interval", "100ms", "--machine", "cgroups"])
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut recorder = Recorder(child);
        let replay = format!("replay:{file}");
        let deadline = std::time::Instant::now() + Duration::from_secs(60);
        // Two snapshots are there when they can be explained.
        while !corefit(&["explain", "--interval", "100ms", "--machine", &replay])
            .stdout
            .starts_with(b"recording of")
        {
            if let Some(status) = recorder.0.try_wait().unwrap() {
                let mut why = String::new();
                let _ = std::io::Read::read_to_string(recorder.0.stderr.as_mut().unwrap(), &mut why);
                let _ = writeln!(std::io::stderr(), "skipped: corefit record ended with {status}: {why}");
                assert_eq!(status.code(), Some(2));
                return;
            }
            assert!(std::time::Instant::now() < deadline, "nothing was recorded within a minute");
            std::thread::sleep(Duration::from_millis(100));
        }
        let pid = rustix::process::Pid::from_child(&recorder.0);
        rustix::process::kill_process(pid, signal).unwrap();
        let status = recorder.0.wait().unwrap();
        let output = corefit(&["explain", "--watch", "--interval", "100ms", "--json", "--machine", &replay]);
        assert!(out(&output).lines().count() >= 1);
        if name == "interrupted" {
            assert!(status.success() && output.status.success(), "{status} {output:?}");
        } else {
            let error = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(2));
            assert!(error.contains("the recorder was killed"), "{error}");
        }
    }
}

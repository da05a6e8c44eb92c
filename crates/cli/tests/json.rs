//! docs/json.md and what commands print: each key that is printed is documented, and each that is documented is printed.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

const DOC: &str = include_str!("../../../docs/json.md");
const LOOP: &str = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done";

fn corefit(args: &[&str]) -> Vec<u8> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    Command::new(env!("CARGO_BIN_EXE_corefit")).args(args).current_dir(root).output().unwrap().stdout
}

/// What a command says of itself, each key in backticks.
fn documented(command: &str) -> BTreeSet<&'static str> {
    let section = DOC.split("\n## ").find(|section| section.lines().next() == Some(command));
    let rows = section.unwrap_or_else(|| panic!("no {command}")).lines().filter(|line| line.starts_with('|'));
    rows.flat_map(|row| row.split('`').skip(1).step_by(2)).collect()
}

/// The keys of a document by their paths; what is below a key of data (`points.set`) is data.
fn keys(value: &Value, path: &str, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                found.insert(path.clone());
                if !["points.set", "points.stuck", "points.unfinished"].contains(&path.as_str()) {
                    keys(value, &path, found);
                }
            }
        }
        Value::Array(all) => all.iter().for_each(|value| keys(value, path, found)),
        _ => {}
    }
}

/// A key is documented by its path, or by its last word where many objects have it.
fn agree(command: &str, text: &[u8]) {
    let document: Value = serde_json::from_slice(text).unwrap_or_else(|why| panic!("{command}: {why}"));
    assert_eq!(document["version"], 2, "{command}");
    let documented = documented(command);
    let mut printed = BTreeSet::new();
    keys(&document, "", &mut printed);
    printed.remove("version");
    let last = |path: &str| path.rsplit('.').next().unwrap_or_default().to_owned();
    for path in &printed {
        let known = documented.contains(path.as_str()) || documented.contains(last(path).as_str());
        assert!(known, "{command}: {path} is not in docs/json.md");
    }
    let lasts: BTreeSet<String> = printed.iter().map(|path| last(path)).collect();
    let lines = document.to_string();
    for key in documented.iter().filter(|key| !SELDOM.contains(key)) {
        let known = printed.contains(*key) || lasts.contains(*key) || lines.contains(&format!("\"{key}\""));
        assert!(known, "{command}: docs/json.md has {key}, which is not printed");
    }
}

/// Documented, and not in these samples: values, options that are not given, and what is left out where there is none.
const SELDOM: &[&str] = &[
    "told",
    "weight",
    "contenders.path",
    "contenders.who",
    "contenders.weight",
    "contenders.used",
    "unread.what",
    "unread.path",
    "unread.why",
    "steal",
    "quota",
    "cpuset",
    "offline",
    "whole",
    "demand",
    "crowded",
    "error",
    "warning",
    "note",
    "corefit check --explain",
    "--place",
    "changes.at_s",
    "changes.threads",
    "changes.reason",
    "changes.run",
    "changes.wait",
    "changes.idle",
    "contended",
    "idle",
    "limited",
    "--lock",
    "--rotate",
    // On one CPU nothing is moved.
    "rotated.turn_s",
    "rotated.looks",
    "rotated.moves",
    "rotated.left_alone",
    "--one-cpu",
    "profile.question.machine.one_cpu.part",
    "profile.question.machine.one_cpu.low",
    "profile.question.machine.one_cpu.high",
    "profile.question.machine.one_cpu.windows",
    "profile.question.machine.one_cpu.covered",
    "[policy]",
    "online",
    "online_changes",
    "points.notes",
];

#[test]
fn a_machine_whose_name_is_no_utf_8_has_it_as_documented_in_documents_and_written_out_in_text() {
    use std::os::unix::ffi::OsStrExt as _;
    let dir = tempfile::tempdir().unwrap();
    let name = std::ffi::OsStr::from_bytes(b"b\xff.toml");
    let vm = "[[vm]]\nname = \"a\"\nvcpus = 1\nprogram = \"hog\"\n";
    std::fs::write(dir.path().join(name), format!("hardware = {{ cores = 1 }}\n{vm}")).unwrap();
    let machine = std::ffi::OsStr::from_bytes(b"sim:b\xff.toml");
    for verb in ["plan", "explain"] {
        let print = |json: &[&str]| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_corefit"));
            command.arg(verb).args(json).arg("--machine").arg(machine).current_dir(dir.path());
            String::from_utf8(command.output().unwrap().stdout).unwrap()
        };
        let document: Value = serde_json::from_str(&print(&["--json"])).unwrap();
        assert_eq!(document["machine"], "simulation of b\u{10feff}.toml", "{verb}");
        assert!(!print(&[]).contains('\u{10feff}'), "{verb}: {}", print(&[]));
    }
}

#[test]
fn each_key_is_documented_and_each_documented_key_is_printed() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str| dir.path().join(name).display().to_string();
    agree("corefit cpus", &corefit(&["cpus", "--json"]));
    let recording = "replay:captures/three-groups/recording.cfr";
    agree("corefit explain", &corefit(&["explain", "--json", "--machine", recording]));
    let [host, vm] = ["captures/check/mixed/host.txt", "captures/check/mixed/app.xml"];
    agree("corefit check", &corefit(&["check", "--json", host, vm, "captures/check/mixed/db.xml"]));
    let [host, vm] = ["captures/topology/two-socket-smt.xml", "captures/check/mixed/batch.xml"];
    agree("corefit topology", &corefit(&["topology", "--json", "--place", "corefit", host, vm]));
    agree(
        "corefit plan",
        &corefit(&["plan", "--json", "--size", "vcpu-bal", "--machine", "sim:scenarios/unplug.toml"]),
    );
    agree("corefit sim", &corefit(&["sim", "--json", "scenarios/unplug.toml"]));
    let demand = ["--demand", "pid", "--arbitrate", "fcfs", "--size", "vcpu-bal"];
    let of_one = [&["reproduce", "P2", "--only", "ep, 4 pCPUs", "--json"], &demand[..]].concat();
    agree("corefit reproduce", &corefit(&of_one));
    let (report, profile) = (file("report"), file("profile"));
    let with = ["run", "--quiet", "--lock", "--rotate", "--report", &report, "--interval", "5ms"];
    corefit(&[&with[..], &["--", "sh", "-c", LOOP]].concat());
    agree("corefit run", &std::fs::read(&report).unwrap());
    corefit(&["profile", "--quiet", &format!("--json={profile}"), "--", "sh", "-c", LOOP]);
    agree("corefit profile", &std::fs::read(&profile).unwrap());
}

//! `corefit check` and `corefit topology` as commands. `COREFIT_BLESS=1` rewrites what they print on the cases of
//! `captures/check`; what they have to find there (`findings.toml`) is written by hand.

mod placed;

use std::collections::BTreeSet;
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn captures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../captures").canonicalize().unwrap()
}

fn corefit(dir: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_corefit")).args(args).current_dir(dir).output().unwrap()
}

fn out(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn err(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[test]
fn what_comes_over_a_socket_is_read_too() {
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    ours.write_all(b"2 sockets x 8 cores x 2 threads").unwrap();
    drop(ours);
    let mut command = Command::new(env!("CARGO_BIN_EXE_corefit"));
    let output = command.args(["topology", "-"]).stdin(OwnedFd::from(theirs)).output().unwrap();
    assert!(output.status.success(), "{}", err(&output));
}

fn cases() -> Vec<PathBuf> {
    let mut cases: Vec<PathBuf> =
        std::fs::read_dir(captures().join("check")).unwrap().map(|entry| entry.unwrap().path()).collect();
    cases.sort();
    assert!(cases.len() >= 7);
    cases
}

/// The files of a case, and its further arguments.
fn arguments(case: &Path) -> Vec<String> {
    let mut files: Vec<String> = std::fs::read_dir(case)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| ![".toml", ".expected"].iter().any(|end| name.ends_with(end)) && name != "arguments")
        .collect();
    files.sort();
    let more = std::fs::read_to_string(case.join("arguments")).unwrap_or_default();
    more.split_whitespace().map(str::to_owned).chain(files).collect()
}

fn check(case: &Path, more: &[&str]) -> Output {
    let arguments = arguments(case);
    let all: Vec<&str> = ["check"]
        .into_iter()
        .chain(more.iter().copied())
        .chain(arguments.iter().map(String::as_str))
        .collect();
    corefit(case, &all)
}

fn expect(path: &Path, got: &str) {
    if std::env::var_os("COREFIT_BLESS").is_some() {
        std::fs::write(path, got).unwrap();
    }
    assert_eq!(got, std::fs::read_to_string(path).unwrap_or_default(), "{}", path.display());
}

/// In both directions: what is to be found is, and what is found was to be.
#[test]
fn each_case_gives_the_findings_that_are_written_down_with_their_reasons_and_no_others() {
    let mut rules = BTreeSet::new();
    for case in cases() {
        let name = case.display();
        let written = std::fs::read_to_string(case.join("findings.toml")).unwrap();
        let written: toml::Table = toml::from_str(&written).unwrap();
        let none = Vec::new();
        let written = written.get("finding").map_or(&none, |list| list.as_array().unwrap());
        let text = |finding: &toml::Value, key: &str| finding[key].as_str().unwrap().to_owned();
        let expected: BTreeSet<String> = written
            .iter()
            .map(|f| format!("{} {} {}", text(f, "at"), text(f, "rule"), text(f, "vm")))
            .collect();
        assert!(written.iter().all(|f| text(f, "because").len() > 3), "{name}");
        assert_eq!(expected.len(), written.len(), "{name}: the same twice");
        rules.extend(written.iter().map(|f| text(f, "rule")));
        let output = check(&case, &["--json"]);
        let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|e| {
            panic!("{name}: {e}: {}", err(&output));
        });
        let found = document["findings"].as_array().unwrap();
        for finding in found {
            for field in ["text", "cure", "file", "severity"] {
                assert!(!finding[field].as_str().unwrap().is_empty(), "{name}: {finding}");
            }
        }
        let word = |f: &serde_json::Value, key: &str| f[key].as_str().unwrap().to_owned();
        let found: BTreeSet<String> = found
            .iter()
            .map(|f| format!("{}:{} {} {}", word(f, "file"), f["line"], word(f, "rule"), word(f, "vm")))
            .collect();
        assert_eq!(found, expected, "{name}");
        assert_eq!(output.status.code(), Some(i32::from(!expected.is_empty())), "{name}");
        let printed = check(&case, &[]);
        assert_eq!(printed.status.code(), output.status.code());
        expect(&case.join("check.expected"), &out(&printed));
        let files = arguments(&case);
        let files: Vec<&str> =
            files.iter().map(String::as_str).filter(|a| !a.starts_with("--") && *a != "0").collect();
        let drawn = corefit(&case, &[&["topology"], &files[..]].concat());
        assert_eq!(drawn.status.code(), Some(0), "{name}: {}", err(&drawn));
        expect(&case.join("topology.expected"), &out(&drawn));
    }
    // What has to be measured stands in no file.
    let scenario = concat!("sim:", env!("CARGO_MANIFEST_DIR"), "/../../scenarios/p1-figure6.toml");
    let output = corefit(&captures(), &["check", "--json", "--machine", scenario]);
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let findings = document["findings"].as_array().unwrap();
    let lost = findings.iter().find(|finding| finding["rule"] == "lost-timeslices").unwrap();
    assert_eq!(lost["text"], "25 % of its CPU time is left over on some vCPUs and missing on others");
    assert!(lost["cure"].as_str().unwrap().contains("shape = \"proportional\""), "{lost}");
    assert_eq!(output.status.code(), Some(1));
    rules.insert("lost-timeslices".into());
    let dir = tempfile::tempdir().unwrap();
    let long = "scheduler = \"eevdf\"\nuntil = \"9s\"\nhardware = { cores = 1 }\n\
                [[vm]]\nname = \"a\"\nvcpus = 1\nfair_slice = \"50ms\"\nprogram = \"hog\"\n";
    std::fs::write(dir.path().join("long.toml"), long).unwrap();
    let output = corefit(dir.path(), &["check", "--json", "--machine", "sim:long.toml"]);
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(document["findings"][0]["rule"], "slice-extreme", "{document}");
    rules.insert("slice-extreme".into());
    let recording = "replay:starving/recording.cfr";
    let output = corefit(&captures(), &["check", "--json", "--machine", recording]);
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let findings = document["findings"].as_array().unwrap();
    let starved: Vec<_> = findings.iter().filter(|finding| finding["rule"] == "starved").collect();
    assert_eq!((starved.len(), &starved[0]["vm"]), (1, &"vm1".into()), "{document}");
    rules.insert("starved".into());
    // Every rule is broken somewhere.
    let listed = corefit(&captures(), &["check", "--explain", "nonsense"]);
    assert_eq!(listed.status.code(), Some(2));
    for rule in err(&listed).split_once("there are ").unwrap().1.lines().next().unwrap().split(", ") {
        assert!(rules.contains(rule.trim()), "no case breaks {rule}");
        let explained = corefit(&captures(), &["check", "--explain", rule.trim()]);
        assert!(explained.status.success() && out(&explained).starts_with(&format!("{}: ", rule.trim())));
    }
}

/// The cures of a case, run by a shell with a `virsh` that changes the files, cure one finding after the other,
/// bring no new ones, and leave nothing.
#[test]
fn cures_that_are_followed_cure() {
    let case = captures().join("check/mixed");
    let dir = tempfile::tempdir().unwrap();
    for file in std::fs::read_dir(&case).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), dir.path().join(file.file_name())).unwrap();
    }
    let virsh = "virsh() { case $1 in \
        vcpupin) sed -i \"s/vcpupin vcpu='$3' cpuset='[^']*'/vcpupin vcpu='$3' cpuset='$4'/; \
            s/<vcpu placement='static' cpuset='[^']*'/<vcpu placement='static' cpuset='$4'/\" $2.xml;; \
        emulatorpin) sed -i \"s/emulatorpin cpuset='[^']*'/emulatorpin cpuset='$3'/\" $2.xml;; \
        iothreadpin) sed -i \"s/iothreadpin iothread='$3' cpuset='[^']*'/iothreadpin iothread='$3' cpuset='$4'/\" $2.xml;; \
        numatune) sed -i \"s/nodeset='[^']*'/nodeset='$4'/\" $2.xml;; \
        schedinfo) sed -i /global_/d $2.xml;; \
        *) echo \"$1?\" >&2; exit 9;; esac; };";
    let rules = |document: &serde_json::Value| -> Vec<String> {
        let found = document["findings"].as_array().unwrap();
        found
            .iter()
            .map(|f| format!("{} {}", f["rule"].as_str().unwrap(), f["vm"].as_str().unwrap()))
            .collect()
    };
    let look =
        || -> serde_json::Value { serde_json::from_slice(&check(dir.path(), &["--json"]).stdout).unwrap() };
    let mut document = look();
    let mut steps = 0;
    // Those who need free cores come first, while there are some.
    let next = |document: &serde_json::Value| {
        let found = document["findings"].as_array().unwrap();
        found.iter().find(|f| f["rule"] == "siblings-forced").or(found.first()).cloned()
    };
    while let Some(finding) = next(&document) {
        let shell = format!("{virsh} {}", finding["cure"].as_str().unwrap());
        let status = Command::new("sh").args(["-c", &shell]).current_dir(dir.path()).status().unwrap();
        assert!(status.success(), "{shell}");
        let (before, after) = (rules(&document), look());
        let now = rules(&after);
        let own = format!("{} {}", finding["rule"].as_str().unwrap(), finding["vm"].as_str().unwrap());
        let times = |list: &[String]| list.iter().filter(|name| **name == own).count();
        assert!(times(&now) < times(&before), "{own}: {shell}\n{now:?}");
        let new: Vec<&String> = now.iter().filter(|name| !before.contains(name)).collect();
        assert!(new.is_empty(), "{own}: {shell}\nbrought {new:?}");
        document = after;
        steps += 1;
    }
    assert!(steps >= 6, "{steps}");
}

/// P4's conflict in an xl configuration: the lines that are printed, written over those that are there, leave nothing.
#[test]
fn the_lines_that_cure_the_conflict_of_the_paper_leave_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let host = captures().join("check/opteron-conflict/host.xl-info.txt");
    let write = |text: &str| std::fs::write(dir.path().join("npb.cfg"), text).unwrap();
    let base = "name = 'npb'\nvcpus = 16\n";
    write(&format!("{base}cpus = '16-31'\ncpus_soft = 'nodes:0,nodes:2'\n"));
    let look = || -> Vec<(String, String)> {
        let output = corefit(dir.path(), &["check", "--json", host.to_str().unwrap(), "npb.cfg"]);
        let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let found = document["findings"].as_array().unwrap();
        let word = |f: &serde_json::Value, key: &str| f[key].as_str().unwrap().to_owned();
        found.iter().map(|f| (word(f, "rule"), word(f, "cure"))).collect()
    };
    let found = look();
    assert_eq!(
        found.iter().map(|(rule, _)| rule.as_str()).collect::<Vec<_>>(),
        ["siblings-forced", "node-conflict"]
    );
    let mut lines = std::collections::BTreeMap::new();
    for line in found.iter().flat_map(|(_, cure)| cure.split(" and ")) {
        let (key, value) = line.split_once(" = ").unwrap();
        lines.insert(key.to_owned(), value.to_owned());
    }
    write(
        &(base.to_owned()
            + &lines.iter().map(|(key, value)| format!("{key} = {value}\n")).collect::<String>()),
    );
    assert_eq!(look(), []);
}

#[test]
fn sarif_has_a_result_for_each_finding() {
    for case in cases() {
        let output = check(&case, &["--sarif"]);
        let log: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let document: serde_json::Value = serde_json::from_slice(&check(&case, &["--json"]).stdout).unwrap();
        let (results, found) = (&log["runs"][0]["results"], &document["findings"]);
        assert_eq!(results.as_array().unwrap().len(), found.as_array().unwrap().len());
        for (result, finding) in results.as_array().unwrap().iter().zip(found.as_array().unwrap()) {
            assert_eq!(result["ruleId"], finding["rule"]);
            let place = &result["locations"][0]["physicalLocation"];
            assert_eq!(place["region"]["startLine"], finding["line"]);
            assert_eq!(place["artifactLocation"]["uri"], finding["file"]);
        }
    }
}

#[test]
fn bad_input_is_one_line_with_file_place_and_remedy_and_status_2() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let write = |name: &str, bytes: &[u8]| std::fs::write(at(name), bytes).unwrap();
    write("bomb.xml", b"<!DOCTYPE d [\n<!ENTITY a 'ha'>\n<!ENTITY b '&a;&a;'>]>\n<domain>&b;</domain>");
    write("wide.xml", &[0xff, 0xfe, b'<', 0]);
    write("latin.xml", b"<domain>\n<name>\xe4</name></domain>");
    write("cut.xml", b"<domain>\n<name>a</name>\n");
    write("other.xml", b"<network/>");
    write("empty.xml", b"");
    write("wider.xml", &[0xff, 0xfe, 0, 0, b'<', 0, 0, 0]);
    write("spaced.xml", b"<?xml version='1.0' encoding = 'ISO-8859-1'?><domain/>");
    write("heavy.cfg", b"name = 'a'\ncpu_weight = 99999999\n");
    write("memory_manager_state", b"{\"policyName\":\"Static\",\n\"machineState\":{},\"checksum\":1}");
    write("misspelt", b"{\"policyName\":\"static\",\n\"defaultCPUSet\":\"0\",\"checksum\":1}");
    write("a.xml", b"<domain><name>a</name><vcpu>1</vcpu></domain>");
    write(
        "long.xml",
        format!("<domain><name>{}</name><vcpu>1</vcpu></domain>", "a".repeat(3 << 20)).as_bytes(),
    );
    write("again.xml", b"<domain>\n<name>a</name><vcpu>1</vcpu></domain>");
    write("range.xml", b"<domain><name>a</name>\n<vcpu cpuset='0-x'>1</vcpu></domain>");
    let mut large = std::fs::File::create(at("large.xml")).unwrap();
    large.write_all(b"<domain>").unwrap();
    large.set_len(100 << 20).unwrap();
    let cases: [(&[&str], &str); 24] = [
        (
            &["2 cores", "a.xml", "--reserved", "1-2"],
            "corefit: --reserved: the host has no pCPU 2; it has 0-1",
        ),
        (
            &["2 cores", "a.xml", "--reserved", "0-1"],
            "corefit: --reserved: 0-1 is all of the host; leave some",
        ),
        (&["bomb.xml"], "corefit: bomb.xml: line 2: declares entities"),
        (&["wide.xml"], "corefit: wide.xml: is UTF-16; convert it: iconv"),
        (&["wider.xml"], "corefit: wider.xml: is UTF-32; convert it: iconv"),
        (&["spaced.xml"], "corefit: spaced.xml: line 1: says it is in ISO-8859-1; convert it to UTF-8"),
        (&["heavy.cfg"], "corefit: heavy.cfg: line 2: cpu_weight: xl takes no more than 65535; give"),
        (
            &["memory_manager_state"],
            "corefit: memory_manager_state: tells the memory of containers; give cpu_manager_state, which is beside it, as",
        ),
        (
            &["misspelt"],
            "corefit: misspelt: line 2: is no state of Kubernetes' CPU manager (cpu_manager_state): unknown field \
             `defaultCPUSet`, expected",
        ),
        (&["latin.xml"], "corefit: latin.xml: line 2: is not UTF-8; convert it"),
        (&["cut.xml"], "corefit: cut.xml: line 1: is no XML"),
        (&["other.xml"], "corefit: other.xml: line 1: <network>: give"),
        (&["empty.xml"], "corefit: empty.xml: is empty; give what `virsh dumpxml VM`"),
        (&["large.xml"], "corefit: large.xml: larger than 32 MiB"),
        (&["/dev/zero"], "corefit: /dev/zero: larger than 32 MiB"),
        (&["range.xml"], "corefit: range.xml: line 2: <vcpu>: \"0-x\" is no list of numbers"),
        (&["none.xml"], "corefit: none.xml: cannot be read: No such file"),
        (&["my vm.xml"], "corefit: my vm.xml: cannot be read: No such file"),
        (&["2 chips x 2 cores"], "corefit: 2 chips x 2 cores: \"2 chips\": levels are"),
        (&["."], "corefit: .: is a directory; give files"),
        (
            &["2 cores", "a.xml", "again.xml"],
            "corefit: VM a is in a.xml:1, <vcpu> and in again.xml:2, <vcpu>; give one",
        ),
        (
            &["2 cores", "long.xml"],
            "corefit: long.xml: a VM's name has 3144728 characters more than the 1000 that",
        ),
        (&["2 cores", "3 cores", "a.xml"], "corefit: 2 cores and 3 cores both describe a host; give one"),
        (&["2 cores"], "corefit: no VM to check; give a domain XML"),
    ];
    for (files, error) in cases {
        let output = corefit(dir.path(), &[&["check"], files].concat());
        assert_eq!(output.status.code(), Some(2), "{files:?}: {}", out(&output));
        assert!(err(&output).starts_with(error), "{files:?}: {}", err(&output));
        assert_eq!(err(&output).lines().count(), 1, "{}", err(&output));
        assert!(output.stdout.is_empty());
    }
}

/// pCPUs kept for the host are the host's, wherever that is said.
#[test]
fn a_configuration_that_reserves_absent_pcpus_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("bad.toml"), "[policy]\nreserved = \"0-9999\"\n").unwrap();
    std::fs::write(dir.path().join("a.xml"), "<domain><name>a</name><vcpu>1</vcpu></domain>").unwrap();
    let scenario = concat!("sim:", env!("CARGO_MANIFEST_DIR"), "/../../scenarios/p1-figure6.toml");
    let with = ["--config", "bad.toml"];
    for args in [
        &["plan", "--machine", scenario][..],
        &["manage", "--machine", scenario, "--for", "1s"],
        &["topology", "--place", "corefit", "2 cores", "a.xml"],
    ] {
        let output = corefit(dir.path(), &[args, &with].concat());
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}", out(&output));
        let text = err(&output);
        assert!(
            text.starts_with("corefit: bad.toml, line 2, key policy.reserved: the host has no pCPU "),
            "{args:?}: {text}"
        );
        assert_eq!(text.lines().count(), 1, "{text}");
    }
}

#[test]
fn findings_can_be_left_out_by_rule() {
    let case = captures().join("check/opteron-conflict");
    let output = check(&case, &["--ignore", "node-conflict", "--ignore", "siblings-forced"]);
    assert_eq!(output.status.code(), Some(0), "{}", out(&output));
    assert!(out(&output).ends_with("2 VMs checked, nothing found\n"), "{}", out(&output));
}

#[test]
fn a_pin_that_cannot_be_on_a_host_with_too_few_pcpus_is_cured_by_fewer_vcpus() {
    let dir = tempfile::tempdir().unwrap();
    let pin = "<domain type='kvm'><name>a</name><vcpu>4</vcpu><cputune><vcpupin vcpu='0' cpuset='99'/></cputune></domain>";
    std::fs::write(dir.path().join("a.xml"), pin).unwrap();
    std::fs::write(dir.path().join("a.cfg"), "name = 'a'\nvcpus = 4\ncpus = '0-9'\nmemory = 512\n").unwrap();
    for (file, cure) in [("a.xml", "virsh setvcpus a 2 --config"), ("a.cfg", "vcpus = 2")] {
        let document: serde_json::Value =
            serde_json::from_slice(&corefit(dir.path(), &["check", "--json", "2 cores", file]).stdout)
                .unwrap();
        let findings = document["findings"].as_array().unwrap();
        assert_eq!(findings.len(), 2, "{document}");
        for finding in findings {
            assert!(finding["cure"].as_str().unwrap().starts_with(cure), "{finding}");
        }
    }
}

#[test]
fn pins_to_pcpus_that_are_not_here_are_said_of_all_vcpus_at_once() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("a.cfg"), "name = 'a'\nvcpus = 3\ncpus = '60000-60001'\n").unwrap();
    let drawn = out(&corefit(dir.path(), &["topology", "2 cores", "a.cfg"]));
    assert!(drawn.contains("a: vCPUs 0-2 anywhere in 60000-60001 (pCPUs 60000-60001 not here)\n"), "{drawn}");
    let placed = out(&corefit(dir.path(), &["topology", "--place", "corefit", "2 cores", "a.cfg"]));
    let said = placed.split_whitespace().collect::<Vec<_>>().join(" ");
    let wrong = "VM a, vCPUs 0-2: pinned to pCPUs 60000-60001 not here; they have nothing to run on";
    assert!(said.contains(wrong) && said.matches("not here; ").count() == 1, "{placed}");
    // Which machine it is about, where none was given.
    let taken = "note: no file describes the host";
    assert!(out(&corefit(dir.path(), &["topology", "a.cfg"])).starts_with(taken));
    assert!(!drawn.contains("note: "), "{drawn}");
}

#[test]
fn a_file_whose_name_is_no_utf_8_is_read_and_named() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    let dir = tempfile::tempdir().unwrap();
    let name = OsStr::from_bytes(b"a\xff.xml");
    std::fs::write(dir.path().join(name), "<domain type='kvm'><name>a</name><vcpu>4</vcpu></domain>")
        .unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_corefit"));
    let output = command.args(["check", "2 cores"]).arg(name).current_dir(dir.path()).output().unwrap();
    assert!(
        out(&output).contains("a\\xff.xml:1: warning [too-few-pcpus]"),
        "{} {}",
        out(&output),
        err(&output)
    );
}

#[test]
fn a_picture_has_the_kind_that_its_name_says() {
    let dir = tempfile::tempdir().unwrap();
    let line = corefit(dir.path(), &["topology", "2 cores", "--svg", "a.gif"]);
    assert_eq!(err(&line), "corefit: a.gif: its name has to end with .svg or .png\n");
}

#[test]
fn a_picture_takes_the_place_of_no_file_that_it_is_drawn_of() {
    let dir = tempfile::tempdir().unwrap();
    let text = "<domain type='kvm'><name>a</name><vcpu>4</vcpu></domain>";
    for name in ["a.svg", "b.svg"] {
        std::fs::write(dir.path().join(name), if name == "a.svg" { text } else { "" }).unwrap();
    }
    std::os::unix::fs::symlink("a.svg", dir.path().join("link.svg")).unwrap();
    for args in [
        &["a.svg", "--svg", "a.svg"][..],
        &["a.svg", "--svg", "link.svg"],
        &["a.svg", "--place", "corefit", "--config", "b.svg", "--svg", "b.svg"],
    ] {
        let output = corefit(dir.path(), &[&["topology", "2 cores"], args].concat());
        let told = "corefit: --svg names a file that is read: give it another file\n";
        assert_eq!((output.status.code(), err(&output).as_str()), (Some(2), told), "{args:?}");
    }
    assert_eq!(std::fs::read_to_string(dir.path().join("a.svg")).unwrap(), text);
}

#[test]
fn the_topology_of_this_machine_and_of_a_line() {
    let live = corefit(&captures(), &["topology"]);
    assert_eq!(live.status.code(), Some(0), "{}", err(&live));
    assert!(out(&live).contains("pCPU"), "{}", out(&live));
    let dir = tempfile::tempdir().unwrap();
    let line = corefit(dir.path(), &["topology", "2 sockets x 2 cores x 2 threads", "--svg", "a.svg"]);
    assert!(out(&line).contains("[0 1] [2 3]"), "{}", out(&line));
    assert!(std::fs::read_to_string(dir.path().join("a.svg")).unwrap().ends_with("</svg>\n"));
    let placed = out(&corefit(dir.path(), &["topology", "2 cores", "--place", "corefit"]));
    assert!(placed.ends_with("\n\nThere are no VMs to place.\n"), "{placed}");
    let json = corefit(dir.path(), &["topology", "--json", "2 cores"]);
    let document: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(document["topology"]["pcpus"], "0-1");
    let error = corefit(dir.path(), &["topology", "2 chips x 2 cores"]);
    assert_eq!((error.status.code(), err(&error).lines().count()), (Some(2), 1), "{}", err(&error));
}

#[test]
fn all_rules_are_listed_with_what_they_are_about() {
    let output = corefit(&captures(), &["check", "--explain"]);
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    assert_eq!(out(&output).lines().filter(|line| !line.starts_with(' ')).count(), 20, "{}", out(&output));
    assert!(
        out(&output).contains("stacked              several vCPUs of one VM on one pCPU\n"),
        "{}",
        out(&output)
    );
}

/// Names come from anybody.
#[test]
fn names_and_files_cannot_steer_the_terminal() {
    let dir = tempfile::tempdir().unwrap();
    let name = "e\u{9b}2Jvil\u{202e}";
    let xml = format!("<domain><name>{name}</name><vcpu cpuset='0'>2</vcpu></domain>");
    std::fs::write(dir.path().join("\u{1b}[31m.xml"), xml).unwrap();
    for args in [&["check"][..], &["topology"], &["topology", "--place", "corefit"]] {
        let output = corefit(dir.path(), &[args, &["4 cores", "\u{1b}[31m.xml"]].concat());
        let text = out(&output);
        assert!(text.contains("e\\u{9b}2Jvil\\u{202e}"), "{text}");
        assert!(!text.chars().any(|c| c != '\n' && c.is_control() || c == '\u{202e}'), "{text:?}");
    }
}

#[test]
fn what_was_not_read_is_told_in_sarif_too() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("a.xml"), "<domain><name>a</name><vcpu>1</vcpu></domain>").unwrap();
    let output = corefit(dir.path(), &["check", "--sarif", "a.xml"]);
    let log: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let run = &log["runs"][0]["invocations"][0];
    assert_eq!(run["executionSuccessful"], true);
    let note = run["toolExecutionNotifications"][0]["message"]["text"].as_str().unwrap();
    assert!(note.starts_with("no file describes the host"), "{note}");
}

/// A recording and a scenario are checked as what they show.
#[test]
fn machines_without_configuration_are_checked() {
    let replay = format!("replay:{}", captures().join("three-groups/recording.cfr").display());
    let output = corefit(&captures(), &["check", "--json", "--machine", &replay]);
    assert!(matches!(output.status.code(), Some(0 | 1)), "{}", err(&output));
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(document["vms"].as_array().unwrap().len(), 3);
    let output = corefit(&captures(), &["check", "--json", "--machine", "libvirt:test:///default"]);
    assert_eq!(output.status.code(), Some(0), "{}{}", out(&output), err(&output));
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(document["vms"][0], "test");
    assert_eq!(document["host"]["from"], "virsh -c test:///default capabilities");
}

/// A host that is written down has amounts, and nobody who set a period.
#[test]
fn a_period_that_nobody_set_is_neither_judged_nor_printed() {
    let dir = tempfile::tempdir().unwrap();
    let host = "pcpus = \"0-3\"\n[[vm]]\nname = \"a\"\ncap = 0.5\nvcpus = [{}, {}]\n";
    std::fs::write(dir.path().join("h.toml"), host).unwrap();
    let told = |verb: &[&str]| out(&corefit(dir.path(), &[verb, &["--machine", "scenario:h.toml"]].concat()));
    let (checked, explained) = (told(&["check"]), told(&["explain", "a"]));
    assert!(checked.contains("[cap-below-vcpus]") && !checked.contains("[period-extreme]"), "{checked}");
    assert!(explained.contains("a: 0.50 pCPUs for all in it\n"), "{explained}");
}

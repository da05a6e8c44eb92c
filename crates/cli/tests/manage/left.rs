//! What an earlier run left, and `corefit restore`.

use std::process::{Command, Stdio};

use super::{Daemon, LIVE, Place, groups, journal, journal_of, node, said, until};

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
            assert!(error.contains(part) && error.contains("; --state DIR does without"), "{error}");
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
fn a_directory_without_a_journal_is_said_to_be_one_and_not_made() {
    let place = Place::new();
    let output = place.corefit(&["restore", "--state", "typo", "--machine", LIVE]);
    assert!(output.status.success(), "{}", said(&output));
    assert!(said(&output).contains("typo: no journal there"), "{}", said(&output));
    assert!(!place.path("typo").exists());
}

#[test]
fn what_a_killed_simulation_left_is_no_matter() {
    let place = Place::new();
    place.file(
        "corefit.toml",
        "machine = \"sim:host.toml\"\nmetrics = \"off\"\n[policy]\nsize = \"vcpu-bal\"\n",
    );
    let args = ["manage", "--config", "corefit.toml", "--apply", "--state", "state", "--for", "10s"];
    let killed = place.command(&args).env("COREFIT_TEST_KILL_AT", "journaled").output().unwrap();
    assert_eq!(killed.status.code(), None, "it was killed: {}", said(&killed));
    let journal = std::fs::read_to_string(place.path("state/journal")).unwrap();
    assert!(journal.contains("\"lever\""), "something was to be changed: {journal}");
    let error = place.error(&["restore", "--state", "state", "--machine", "sim:host.toml"]);
    assert!(error.contains("nothing to put back") && place.path("state/journal").exists(), "{error}");
    let (node, mut restore) = (node(&place), place.command(&["restore", "--state", "state"]));
    let output = restore.env("LIBVIRT_DEFAULT_URI", node.trim_start_matches("libvirt:")).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    let error = place.error(&["restore", "--state", "typo", "--config", "corefit.toml"]);
    assert!(error.contains("sim:host.toml"), "the machine of the configuration: {error}");
    let args = ["manage", "--config", "corefit.toml", "--apply", "--state", "state"];
    let mut daemon = place.daemon(&args, Stdio::null());
    until("it tells its status", || place.corefit(&["status", "--state", "state"]).status.success());
    let error = place.error_of(&["restore", "--state", "state", "--config", "corefit.toml"], 1);
    assert!(error.contains("state: another corefit is at work with it; end that one"), "{error}");
    daemon.end();
}

#[test]
fn a_machine_that_only_the_journal_names_is_said_to_be_its() {
    let place = Place::new();
    journal(&place, "state", "foo", "");
    let error = place.error(&["restore", "--state", "state"]);
    assert!(error.contains("state/journal: machine \"foo\": nothing can be changed there;"), "{error}");
}

#[test]
fn a_machine_that_the_configuration_of_restore_names_is_not_blamed_on_an_option() {
    let place = Place::new();
    for (machine, why) in [
        ("xen", "nothing can be changed there; give host, libvirt, libvirt:URI, cgroups, "),
        ("replay:night.cfr", "nothing can be changed there; give host"),
        ("cgroups:", "lacks its paths"),
        ("sim:host.toml", "what is simulated ends with its process, so there is nothing to put back"),
    ] {
        place.file("corefit.toml", &format!("apply = true\nmachine = \"{machine}\"\n"));
        let of = |more: &[&str]| place.error(&[&["restore", "--state", "state"], more].concat());
        let (named, given) = (of(&["--config", "corefit.toml"]), of(&["--machine", machine]));
        let machine = machine.trim_end_matches(':');
        assert!(
            named.starts_with(&format!("corefit: corefit.toml, line 2, key machine: {machine}: {why}")),
            "{named}"
        );
        assert!(given.starts_with(&format!("corefit: --machine {machine}: {why}")), "{given}");
    }
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
fn restore_by_hand_that_finds_nothing_leaves_the_machine_that_a_daemon_named() {
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

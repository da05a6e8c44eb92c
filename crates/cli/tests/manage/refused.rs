//! What cannot be is said with its place and remedy, and nothing is changed or made then.

use std::io::Write as _;
use std::process::Stdio;

use rustix::process::Signal;

use super::small::{Small, mount};
use super::{LIVE, Place, groups, journal_of, node, said, until};

#[test]
fn a_configuration_that_cannot_be_is_refused_by_file_line_and_key_and_nothing_is_made() {
    let place = Place::new();
    let below =
        format!("apply = true\nmachine = \"sim:host.toml\"\nstate = {:?}\n", place.path("host.toml/state"));
    for (text, parts) in [
        ("apply = true\nstate = \"\"\n", "corefit.toml, line 2, key state: "),
        (
            "apply = true\nstate = \"a\"\n",
            "corefit.toml, line 2, key state: \"a\" is no absolute path; give ",
        ),
        ("tell = true\nmachine = \"mars\"\n", "corefit.toml, line 2, key machine: "),
        ("\nmachine = \"libvirt:\"\n", "corefit.toml, line 2, key machine: "),
        ("\nmachine = \"cgroups:\"\n", "corefit.toml, line 2, key machine: cgroups: lacks its paths"),
        (
            "machine = \"sim:host.toml\"\n[policy]\n\nreserved = \"0-9\"\n",
            "corefit.toml, line 4, key policy.reserved: the host has no pCPU 4-9",
        ),
        (&below, "host.toml/state: cannot be written, so nothing is changed"),
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
    // But what is in the file is to be one that can be, though another counts: for whom it need not be one that can be changed.
    for (machine, refused) in [
        ("mars", Some("corefit.toml, line 1, key machine: no machine \"mars\"; there are host, ")),
        ("replay:", Some("corefit.toml, line 1, key machine: replay: lacks its file")),
        ("replay:night.cfr", None),
        ("self", None),
    ] {
        place.file("corefit.toml", &format!("machine = {machine:?}\n"));
        let args = ["manage", "--config", "corefit.toml", "--machine", "sim:host.toml", "--for", "1s"];
        match refused {
            Some(why) => assert!(place.error(&args).contains(why), "{}", place.error(&args)),
            None => assert!(place.corefit(&args).status.success(), "{machine}: {}", place.error(&args)),
        }
        let error = place.error(&args[..3]);
        assert!(error.contains("corefit.toml, line 1, key machine: "), "{machine}: {error}");
    }
}

#[test]
fn a_second_daemon_with_another_directory_is_refused_until_the_first_is_killed() {
    let place = Place::new();
    let machine = node(&place);
    place.file("corefit.toml", "metrics = \"off\"\n");
    let args = ["manage", "--apply", "--config", "corefit.toml", "--machine", &machine, "--state"];
    let first = place.daemon(&[&args[..], &["a"]].concat(), Stdio::null());
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
    let state = place.path("a");
    let named = format!("metrics = \"off\"\nmachine = {machine:?}\napply = true\nstate = {state:?}\n");
    place.file("named.toml", &named);
    let error = place.corefit(&["manage", "--config", "named.toml", "--for", "1s"]);
    assert!(said(&error).contains("named.toml, line 4, key state: "), "{}", said(&error));
    assert_eq!(error.status.code(), Some(1), "{}", said(&error));
    drop(first); // kill -9
    let next = place.corefit(&second);
    assert!(next.status.success(), "{}", said(&next));
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

#[test]
fn on_a_full_or_read_only_file_system_nothing_is_changed_and_it_says_so() {
    let place = Place::new();
    let _groups = groups();
    let Some(small) = Small::at(place.path("small")) else { return };
    let sim = ["manage", "--apply", "--machine", "sim:host.toml", "--for", "1s", "--state", "small/state"];
    std::fs::create_dir(place.path("small/state")).unwrap();
    // Of a group that has ended, of which nothing is left to know.
    journal_of(&place, "small/left", ("cgroups:/corefit-none", ""), ("/corefit-none@1", "/corefit-none"));
    std::fs::write(place.path("small/left/lock"), "").unwrap();
    assert!(std::fs::write(place.path("small/filler"), vec![0; 1 << 20]).is_err(), "it is full");
    let error = place.error_of(&sim, 1);
    assert!(error.contains("No space left") && error.contains("nothing is changed"), "{error}");
    assert!(mount(&["-o", "remount,ro", small.path.to_str().unwrap()]));
    let error = place.error_of(&sim, 1);
    assert!(error.contains("Read-only") && error.contains("nothing is changed"), "{error}");
    // What an earlier run left there is known there alone.
    let output = place.corefit(&["restore", "--tries", "1", "--state", "small/left"]);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(said(&output).contains("the journal cannot be written: Read-only"), "{}", said(&output));
}

#[test]
fn a_journal_that_is_written_in_part_is_not_taken_and_nothing_is_set_until_there_is_room() {
    let place = Place::new();
    let Some(small) = Small::at(place.path("small")) else { return };
    // Where there is room for a page, what was of the second one takes more.
    let vms = ["a", &"b".repeat(4096)]
        .map(|name| format!("[[vm]]\nname = \"{name}\"\nvcpus = 4\nprogram = \"hog\"\n"));
    let host = format!("until = \"1000000s\"\nhardware = {{ cores = 4 }}\n{}", vms.concat());
    place.file("long.toml", &host);
    let config = |size: &str| {
        let rule = "[[policy.vm]]\nname = \"a\"\nmax = 3\nsize = \"none\"\n";
        let text = format!("metrics = \"off\"\ntell = false\n[policy]\nsize = \"{size}\"\n{rule}");
        place.file("corefit.toml", &text);
    };
    config("none");
    let args = ["manage", "--apply", "--config", "corefit.toml", "--machine", "sim:long.toml"];
    let log = std::fs::File::create(place.path("log")).unwrap();
    let mut daemon = place.daemon(&[&args[..], &["--state", "small/state"]].concat(), log);
    let log = || std::fs::read_to_string(place.path("log")).unwrap();
    let set = || log().lines().filter(|line| line.contains("corefit: set at=")).count();
    let journal = || std::fs::read_to_string(small.path.join("state/journal")).unwrap();
    until("one is set, and read back", || set() == 1 && journal().contains("\"pending\": false"));
    let mut filler = std::fs::File::create(small.path.join("filler")).unwrap();
    assert!(filler.write_all(&[0; 1 << 20]).is_err(), "it is full");
    let filled = filler.metadata().unwrap().len();
    filler.set_len(filled - 4096).unwrap();
    let before = journal();
    config("vcpu-bal");
    daemon.signal(Signal::HUP);
    until("it has no room", || log().contains("corefit: warning: not set at="));
    assert!(log().contains("No space left"), "{}", log());
    until("no part of it is left", || !small.path.join("state/journal.new").exists());
    assert_eq!((journal(), set()), (before, 1), "{}", log());
    drop(filler);
    std::fs::remove_file(small.path.join("filler")).unwrap();
    until("it has room again", || set() == 2);
    daemon.end();
    assert!(log().contains("corefit: restored at="), "{}", log());
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
    let _first = place.daemon(&args, Stdio::null());
    until("it works", || place.corefit(&["status", "--state", "a"]).status.success());
    let second = ["manage", "--apply", "--machine", "libvirt", "--state", "b", "--for", "1s"];
    let output = place.command(&second).env("LIBVIRT_DEFAULT_URI", uri).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(said(&output).contains(") is at work there, with --state '"), "{}", said(&output));
}

#[test]
fn a_name_that_no_machine_has_is_refused_by_a_running_daemon_too() {
    let place = Place::new();
    let args = ["manage", "--config", "corefit.toml", "--state", "state"];
    let log = std::fs::File::create(place.path("log")).unwrap();
    place.file("corefit.toml", &format!("machine = \"{LIVE}\"\nmetrics = \"off\"\n"));
    let mut daemon = place.daemon(&args, log);
    let log = || std::fs::read_to_string(place.path("log")).unwrap();
    until("it works", || log().contains("begun"));
    place.file("corefit.toml", "metrics = \"off\"\nmachine = \"nonsense\"\n");
    daemon.signal(Signal::HUP);
    until("that is refused", || log().contains("configuration refused"));
    assert!(
        log().contains("corefit.toml, line 2, key machine: nonsense: nothing can be changed there"),
        "{}",
        log()
    );
    daemon.end();
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

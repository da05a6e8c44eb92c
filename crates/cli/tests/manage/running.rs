//! A daemon that runs: what it says to whom, and what it hears.

use std::io::{Read as _, Write as _};
use std::process::{Command, Stdio};

use rustix::process::Signal;
use sha2::{Digest as _, Sha256};

use super::{HOST, LIVE, Place, node, said, until};

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

#[test]
fn a_plan_without_a_configuration_says_what_guests_would_be_told_and_what_only_running_shows() {
    let place = Place::new();
    place.file("host.toml", &HOST.replacen("hog", "lu", 1));
    let plan = |size| {
        let output = place.corefit(&["plan", "--machine", "sim:host.toml", "--size", size]);
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let text = plan("vcpu-bal");
    assert!(text.contains("a   what the guest is told") && text.contains("3000 ms (dwell_ms)"), "{text}");
    let text = plan("none");
    assert!(
        text.contains("a   what the guest is told") && !text.contains("dwell_ms"),
        "nobody waits: {text}"
    );
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
    let place = Place::new();
    place.file("corefit.toml", "metrics = \"off\"\n");
    let args = ["manage", "--config", "corefit.toml", "--machine", LIVE, "--state", "state"];
    let log = std::fs::File::create(place.path("log")).unwrap();
    let mut daemon = place.daemon(&args, log);
    let log = || std::fs::read_to_string(place.path("log")).unwrap();
    until("it is at work", || log().contains("begun"));
    std::fs::remove_file(place.path("corefit.toml")).unwrap();
    let made = Command::new("mkfifo").arg(place.path("corefit.toml")).status().unwrap();
    assert!(made.success());
    for signal in [Signal::USR1, Signal::USR2, Signal::ALARM, Signal::VTALARM, Signal::XFSZ, Signal::HUP] {
        daemon.signal(signal);
    }
    until("it refuses the configuration", || log().contains("configuration refused, the old one stays"));
    assert!(log().contains("corefit.toml: is no regular file"), "{}", log());
    std::fs::remove_file(place.path("corefit.toml")).unwrap();
    place.file("corefit.toml", "");
    daemon.signal(Signal::HUP);
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
    daemon.signal(Signal::HUP);
    until("it takes a good one", || refused().is_null());
    daemon.end();
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
    let start = || place.daemon(&args, Stdio::null());
    let mut daemon = start();
    until("it tells its status", || status().status.success());
    let text = String::from_utf8_lossy(&status().stdout).into_owned();
    assert!(text.contains("only looks,"), "{text}");
    // A second one that only looks does not take the socket away.
    let second = place.corefit(&[&args[..], &["--for", "1s"]].concat());
    assert!(second.status.success() && said(&second).contains("no status"), "{}", said(&second));
    assert!(status().status.success());
    daemon.end();
    assert_eq!(status().status.code(), Some(1));
    assert!(!place.path("state/status.sock").exists());
}

#[test]
fn who_only_looks_at_a_simulated_host_has_a_status_where_it_is_given_a_directory() {
    let place = Place::new();
    place.file("long.toml", &HOST.replace("3600s", "1000000s"));
    let args = ["manage", "--machine", "sim:long.toml", "--state", "own"];
    let mut daemon = place.daemon(&args, std::fs::File::create(place.path("log")).unwrap());
    until("it tells its status", || place.corefit(&["status", "--state", "own"]).status.success());
    daemon.end();
}

#[test]
fn one_that_is_interrupted_puts_back_what_it_changed() {
    let place = Place::new();
    place.file("long.toml", &HOST.replace("3600s", "1000000s"));
    place.file("corefit.toml", "metrics = \"off\"\ntell = false\n[policy]\nsize = \"vcpu-bal\"\n");
    let args =
        ["manage", "--apply", "--config", "corefit.toml", "--machine", "sim:long.toml", "--state", "state"];
    let log = std::fs::File::create(place.path("log")).unwrap();
    let mut daemon = place.daemon(&args, log);
    let log = || std::fs::read_to_string(place.path("log")).unwrap();
    until("something is set", || log().contains("corefit: set at="));
    daemon.signal(Signal::INT);
    let mut ended = None;
    until("it ends", || {
        ended = daemon.0.try_wait().unwrap();
        ended.is_some()
    });
    assert!(ended.unwrap().success(), "{}", log());
    assert!(log().contains(" signal=2\n") && log().contains("corefit: restored at="), "{}", log());
    let journal = std::fs::read_to_string(place.path("state/journal")).unwrap();
    assert!(journal.contains("\"entries\": []"), "{journal}");
}

#[test]
fn one_that_changed_nothing_says_why_it_ends_and_that_nothing_is_left_to_put_back() {
    let place = Place::new();
    let config = "machine = \"sim:host.toml\"\nmetrics = \"off\"\ntell = false\nstate = \"/nowhere\"\n[policy]\nsize = \"none\"\n";
    place.file("corefit.toml", config);
    let args = ["manage", "--apply", "--config", "corefit.toml", "--state", "state", "--for", "3s"];
    let ended = place.corefit(&args);
    let log = String::from_utf8(ended.stderr).unwrap();
    assert!(ended.status.success() && !log.contains("corefit: set at="), "{log}");
    let last: Vec<&str> = log.lines().rev().take(2).collect();
    assert!(last[1].contains("corefit: ends at=") && last[1].ends_with(" why=\"its time is over\""), "{log}");
    assert!(last[0].contains("corefit: restored at=") && last[0].contains("put back: 0;"), "{log}");
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
    let mut daemon = place.daemon(&args, log);
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
        "machine = \"sim:host.toml\"\napply = true\nstate = {:?}\nmetrics = \"{address}\"\n\
         [policy]\nsize = \"vcpu-bal\"\n",
        place.path("state")
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
fn one_that_changes_no_host_ends_once_nobody_is_left_to_read_its_log() {
    let place = Place::new();
    place.file("corefit.toml", "metrics = \"off\"\n[policy]\nsize = \"vcpu-bal\"\ninterval_ms = 50\n");
    let args = ["manage", "--config", "corefit.toml", "--state", "state", "--machine"];
    for (more, ends) in [
        (&["sim:host.toml"][..], true),
        (&["sim:host.toml", "--apply"], true),
        (&[LIVE], true),
        (&[&node(&place), "--apply"], false),
    ] {
        let (mut reader, log) = std::io::pipe().unwrap();
        let mut daemon = place.daemon(&[&args[..], more].concat(), log);
        reader.read_exact(&mut [0; 8]).unwrap();
        drop(reader);
        if ends {
            until("it ends", || daemon.0.try_wait().unwrap().is_some_and(|status| status.success()));
            continue;
        }
        until("it goes on", || {
            let output = place.corefit(&["status", "--json", "--state", "state"]);
            let status = serde_json::from_slice::<serde_json::Value>(&output.stdout);
            status.is_ok_and(|status| status["steps"].as_u64() > Some(2))
        });
        daemon.end();
    }
}

#[test]
fn a_log_that_nobody_reads_keeps_it_neither_from_looking_nor_from_ending() {
    let place = Place::new();
    place.file("corefit.toml", "metrics = \"off\"\n[policy]\ninterval_ms = 50\n");
    let (reader, mut log) = std::io::pipe().unwrap();
    rustix::pipe::fcntl_setpipe_size(&log, 4096).unwrap();
    log.write_all(&[b'\n'; 4096]).unwrap();
    let args = ["manage", "--config", "corefit.toml", "--machine", LIVE, "--state", "state"];
    let mut daemon = place.daemon(&args, log);
    let steps = || {
        let output = place.corefit(&["status", "--json", "--state", "state"]);
        let status = serde_json::from_slice::<serde_json::Value>(&output.stdout);
        status.ok().and_then(|status| status["steps"].as_u64()).unwrap_or_default()
    };
    until("it looks", || steps() > 2);
    daemon.signal(Signal::TERM);
    until("it ends", || daemon.0.try_wait().unwrap().is_some_and(|status| status.success()));
    drop(reader);
}

#[test]
fn a_plan_that_names_no_machine_is_of_the_libvirt_that_manage_would_take_though_it_has_no_vm() {
    let place = Place::new();
    let machine = node(&place);
    let uri = machine.strip_prefix("libvirt:").unwrap();
    place.file("corefit.toml", "metrics = \"off\"\n");
    let run = |args: &[&str]| {
        let output = place.command(args).env("LIBVIRT_DEFAULT_URI", uri).output().unwrap();
        assert!(output.status.success(), "{args:?}: {}", said(&output));
        (String::from_utf8_lossy(&output.stdout).into_owned(), said(&output))
    };
    let (_, log) = run(&["manage", "--config", "corefit.toml", "--state", "state", "--for", "1s"]);
    assert!(log.contains(" machine=libvirt "), "{log}");
    let plan = ["plan", "--config", "corefit.toml", "--interval", "100ms", "--json"];
    for more in [&[][..], &["--machine", "host"]] {
        let planned: serde_json::Value = serde_json::from_str(&run(&[&plan[..], more].concat()).0).unwrap();
        assert_eq!(planned["machine"], "libvirt", "{planned}");
    }
}

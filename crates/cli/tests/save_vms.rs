//! Real VMs (`scripts/testvm`) that were changed, are saved into a file and resumed, on the same host and on another, which knows
//! of it by the note in their metadata alone: whoever is killed meanwhile, everything is put back there.

#[path = "../../linux/tests/vm_support/mod.rs"]
mod vm_support;

#[expect(dead_code, reason = "the rest is for guests that are told, and timed")]
mod manage_support;

use std::path::Path;
use std::process::{Command, Stdio};

use manage_support::{Daemon, Guest, corefit, until};
use vm_support::{Vms, or_skipped};

/// vCPUs of the VMs here, as many as the host has pCPUs.
const ALL: &str = "0-1";
const ONE: &str = "0";

/// What another corefit would have written of a VM on a host with more pCPUs: pins and a quota.
const NOTE: &str = r#"{"corefit":1,"settings":[
    {"lever":{"affinity":0},"original":{"pcpus":"0,40"},"wrote":[{"pcpus":"1"}]},
    {"lever":{"affinity":1},"original":{"pcpus":"41"},"wrote":[{"pcpus":"1"}]},
    {"lever":"quota","original":{"limit":{"quota_us":null,"period_us":100000,"burst_us":0}},
     "wrote":[{"limit":{"quota_us":150000,"period_us":100000,"burst_us":0}}]}]}"#;

/// The second VM is the more important one.
fn config(vms: &Vms) -> String {
    let rule = |(name, priority): (&String, i32)| {
        format!("[[policy.vm]]\nname = \"{name}\"\npriority = {priority}\nguaranteed = 0.25\n")
    };
    let rules: String = vms.names.iter().zip(0..).map(rule).collect();
    format!(
        "metrics = \"off\"\ntell = false\n[policy]\ninterval_ms = 500\ndwell_ms = 0\nsize = \"none\"\n\
         arbitrate = \"priority\"\nweigh = \"grants\"\n{rules}"
    )
}

/// A scheduler parameter, as virsh says it.
fn parameter(vms: &Vms, name: &str, key: &str) -> String {
    let text = vms.say(&["schedinfo", name]);
    let value = text.lines().find_map(|line| line.split_once(':').filter(|(found, _)| found.trim() == key));
    value.unwrap_or_else(|| panic!("{name} has no {key}: {text}")).1.trim().into()
}

/// Puts back what is on a host.
fn restore(vms: &Vms, state: &Path) -> String {
    let machine = format!("libvirt:{}", vms.uri);
    let restored = corefit(&["restore", "--machine", &machine, "--state", state.to_str().unwrap()]);
    let said = String::from_utf8_lossy(&restored.stderr).into_owned();
    assert!(restored.status.success(), "{said}");
    said
}

#[test]
fn a_vm_that_is_saved_and_resumed_gets_back_what_was_changed_before_wherever_that_is() {
    let dir = tempfile::Builder::new().prefix("cf-").tempdir_in("/run").unwrap();
    let path = |name: &str| dir.path().join(name);
    let options = ["--name", "saved", "--vcpus", "2", "--busy", "2", "--cpuset", "0-1"];
    let here = Vms::up_on(Some(&path("a")), 2, &options);
    let Some(mut here) = or_skipped("saving a VM", here) else { return };
    let mut there = Vms::up_on(Some(&path("b")), 1, &["--name", "stays", "--bare"]).unwrap();
    let (low, high) = (here.names[0].clone(), here.names[1].clone());
    let file = path("file");
    let file = file.to_str().unwrap();
    let weighs = |vms: &Vms| parameter(vms, &low, "cpu_shares");
    let before = weighs(&here);
    let changed = |vms: &Vms| Guest::new(vms, &low).online() == ONE && weighs(vms) != before;
    let as_it_was = |vms: &Vms, name: &str| {
        assert_eq!(Guest::new(vms, name).online(), ALL);
        assert_eq!(parameter(vms, name, "cpu_shares"), before);
        assert!(!vms.kept(name), "it still has a note of ours");
    };

    // Saved under the daemon, which is killed meanwhile; resumed on the same host.
    let daemon = Daemon::start(&here, dir.path(), &config(&here), &["--apply"], None);
    until("it is changed", || changed(&here) && here.kept(&low));
    let saving =
        Command::new("virsh").args(["-c", &here.uri, "save", &low, file]).stdout(Stdio::null()).spawn();
    drop(daemon);
    assert!(saving.unwrap().wait().unwrap().success());
    here.virsh(&["restore", file]);
    assert!(changed(&here) && here.kept(&low), "it was resumed as it was saved");
    // The next daemon puts back what it finds, and does nothing else.
    let idle = config(&here).replace("\"priority\"", "\"none\"");
    let mut daemon = Daemon::start(&here, dir.path(), &idle, &["--apply"], None);
    until("the next start puts it back", || Guest::new(&here, &low).online() == ALL && !here.kept(&low));
    until("it says so", || daemon.log().contains("came with changes"));
    until("the other one, too", || !here.kept(&high));
    as_it_was(&here, &low);
    as_it_was(&here, &high);
    assert!(daemon.end().success(), "{}", daemon.log());

    // Its daemon is killed, then it is saved; resumed on another host, where nothing is known of it.
    let daemon = Daemon::start(&here, dir.path(), &config(&here), &["--apply"], None);
    until("it is changed again", || changed(&here) && here.kept(&low));
    drop(daemon);
    here.carry(&low, &mut there, file);
    assert!(changed(&there), "it was resumed as it was saved");
    let said = restore(&there, &path("other"));
    assert!(said.contains(&format!("{low:?} came with what was changed of it: weight")), "{said}");
    as_it_was(&there, &low);
    restore(&here, &path("state"));
    as_it_was(&here, &high);

    // Of another corefit, from a host with more pCPUs.
    let unlimited = parameter(&here, &high, "global_quota");
    for vcpu in ["0", "1"] {
        here.virsh(&["vcpupin", &high, vcpu, "1", "--live"]);
    }
    here.virsh(&["schedinfo", &high, "--live", "--set", "global_quota=150000"]);
    let note = format!("<kept>{NOTE}</kept>");
    let metadata = ["metadata", &high, "--live", "--uri", "urn:corefit:kept", "--key", "corefit", "--set"];
    here.virsh(&[&metadata[..], &[&note]].concat());
    here.carry(&high, &mut there, file);
    assert_eq!(
        (there.pins(&high), parameter(&there, &high, "global_quota")),
        (vec!["1".into(); 2], "150000".into())
    );
    let said = restore(&there, &path("other"));
    assert_eq!(said.matches("this host has no such pCPUs").count(), 2, "{said}");
    // What of its pins is here, and all where nothing is.
    let all = said.lines().filter_map(|line| line.split_once("going to be ")).next_back().unwrap().1;
    assert_eq!(there.pins(&high), ["0", all], "{said}");
    assert_eq!(parameter(&there, &high, "global_quota"), unlimited);
    as_it_was(&there, &high);
}

//! What is printed, on a recording of a real machine (`captures/README.md`) and on scenarios.
//! `COREFIT_BLESS=1` rewrites the expected texts.

use std::path::{Path, PathBuf};
use std::time::Duration;

use corefit_core::machine::{Activity, Machine, State};
use corefit_core::{Unread, What};

use super::*;
use crate::recording::Replay;

fn captures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../captures/three-groups")
}

fn view() -> View {
    let mut machine = Replay::open(&captures().join("recording.cfr")).unwrap();
    let before = machine.observe().unwrap();
    assert!(machine.pass(Duration::from_secs(1)).unwrap());
    let after = machine.observe().unwrap();
    View::of(&machine, &before, after).unwrap()
}

fn expect(file: &str, got: &str) {
    let path = captures().join(file);
    if std::env::var_os("COREFIT_BLESS").is_some() {
        std::fs::write(&path, got).unwrap();
    }
    assert_eq!(got, std::fs::read_to_string(&path).unwrap(), "{}", path.display());
}

#[test]
fn the_recorded_host_gives_exactly_its_expected_tables_and_documents() {
    let view = view();
    expect("tables.txt", &tables::text(&view, 80));
    expect("derivation.txt", &derivation::text(&view, view.named("vm1").unwrap(), 80));
    expect("document.json", &document::json(&view, None, false).unwrap());
    let one = document::json(&view, Some(view.named("vm2").unwrap()), true).unwrap();
    assert_eq!(one.matches('\n').count(), 1, "one line when watching");
    let one: serde_json::Value = serde_json::from_str(&one).unwrap();
    assert_eq!(one["vms"].as_array().unwrap().len(), 1);
    assert_eq!(one["vms"][0]["name"], "vm2");
}

/// Three real VMs on a kernel that does not keep to weights: one waited for ten seconds.
#[test]
fn a_host_that_does_not_keep_to_weights_is_told_with_who_starves() {
    let mut machine = Replay::open(&captures().join("../starving/recording.cfr")).unwrap();
    let before = machine.observe().unwrap();
    assert!(machine.pass(Duration::from_secs(10)).unwrap());
    let after = machine.observe().unwrap();
    let view = View::of(&machine, &before, after).unwrap();
    let starved: Vec<&str> =
        view.host.vms.iter().filter(|vm| vm.starved().is_some()).map(|vm| vm.seen.name.as_str()).collect();
    assert_eq!(starved, ["vm3"]);
    let text = tables::text(&view, 200);
    let note = "note: the host's scheduler did not keep to weights: vm3 had 0.12 of 0.50 pCPUs that were available to it";
    assert!(text.contains(note), "{text}");
}

#[test]
fn tables_fit_into_eighty_columns_and_more() {
    let view = view();
    for width in [45, 80, 100, 200] {
        for text in [tables::text(&view, width), derivation::text(&view, 0, width)] {
            let widest = text.lines().max_by_key(|line| line.chars().count()).unwrap();
            assert!(widest.chars().count() <= width, "{width}: {widest}");
            assert!(text.lines().all(|line| line == line.trim_end()));
        }
    }
}

/// As a group of two pCPUs whose threads waited for more than there are.
#[test]
fn who_waits_in_a_group_are_threads() {
    let mut view = view();
    let told = |view: &View| {
        let told = tables::text(view, 200) + &derivation::text(view, view.named("vm1").unwrap(), 200);
        told.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let of_vms = told(&view);
    view.host.vms.iter_mut().for_each(|vm| vm.seen.whole = None);
    assert_ne!(told(&view), of_vms, "those of the recording are groups");
    assert!(told(&view).contains("and it waited for"));
    assert!(of_vms.contains("and its threads waited for"));
    assert!(of_vms.contains("at most one pCPU for each vCPU"), "{of_vms}");
}

#[test]
fn the_document_has_what_is_promised_and_null_for_what_is_not_known() {
    let mut view = view();
    let document = |view: &View| -> serde_json::Value {
        serde_json::from_str(&document::json(view, None, false).unwrap()).unwrap()
    };
    for vm in document(&view)["vms"].as_array().unwrap() {
        for field in ["entitled", "available", "used", "waiting"] {
            assert!(vm[field].is_number(), "{field}: {vm}");
        }
        assert!(vm["name"].is_string() && vm["binding"].is_string() && vm["vcpus_online"] == 2, "{vm}");
    }
    view.host.division = None;
    view.host.unread = vec![Unread { what: What::Siblings, path: "/x".into(), why: "cannot be seen".into() }];
    for vm in &mut view.host.vms {
        (vm.entitled, vm.available, vm.activity) = (None, None, Activity::default());
        vm.binding = "unknown: not all who compete can be seen".into();
    }
    let blind = document(&view);
    for vm in blind["vms"].as_array().unwrap() {
        for field in ["entitled", "available", "used", "waiting"] {
            assert!(vm[field].is_null(), "{field}: {vm}");
        }
        assert!(vm["vcpus"][0]["cause"].is_null(), "{vm}");
    }
    assert_eq!(blind["unread"][0]["what"], "siblings");
    let text = tables::text(&view, 80);
    assert!(text.contains("vm1      2         ?          ?     ?        ?"), "{text}");
    assert!(text.contains("not visible\n  siblings  /x: cannot be seen"), "{text}");
    let text = derivation::text(&view, 0, 80);
    assert!(text.contains("unknown: not all who compete can be seen") && !text.contains("Checked"), "{text}");
}

#[test]
fn a_vm_is_found_by_its_name_or_the_end_of_its_path_if_that_is_clear() {
    let mut view = view();
    let names = ["/a/web", "/b/web", "/b/db"];
    let numbers: Vec<usize> = view.vms().map(|(number, _)| number).collect();
    for (&number, name) in numbers.iter().zip(names) {
        view.host.vms[number].seen.name = name.into();
    }
    assert_eq!(view.named("/b/web").unwrap(), numbers[1]);
    assert_eq!(view.named("db").unwrap(), numbers[2]);
    for unclear in ["web", "b", "x", ""] {
        let error = view.named(unclear).unwrap_err().to_string();
        assert!(error.contains("there are: /a/web, /b/web, /b/db"), "{error}");
    }
}

#[test]
fn a_name_that_a_table_cut_can_be_typed_back() {
    let mut view = view();
    let numbers: Vec<usize> = view.vms().map(|(number, _)| number).collect();
    for (&number, id) in numbers.iter().zip(["01234567", "01234599", "11234567"]) {
        view.host.vms[number].seen.name = format!("/docker/{id}{}{id}", "a".repeat(40));
    }
    for (&number, name) in numbers.iter().zip(["/docker/01…aa01234567", "01…99", "/docker/1...67"]) {
        let found = view.named(name);
        assert_eq!(found.is_ok(), name.starts_with('/'), "{name} {found:?}");
        assert!(found.is_err() || found.is_ok_and(|found| found == number), "{name}");
    }
    let short = text::short(&view.host.vms[numbers[1]].seen.name);
    assert_eq!(view.named(&short).unwrap(), numbers[1]);
    assert!(view.named("/docker/…").is_err(), "three begin so");
}

#[test]
fn a_look_that_follows_another_has_its_time_and_no_legend() {
    let mut view = view();
    (view.when, view.first) = ("12:00:01 UTC: ".into(), false);
    let text = tables::text(&view, 80);
    assert!(text.starts_with("12:00:01 UTC: ") && !text.contains("pCPUs that the VM gets"), "{text}");
    assert!(derivation::text(&view, 0, 80).starts_with("12:00:01 UTC: "));
}

#[test]
fn helpers_memory_and_what_the_guest_says_are_shown() {
    use corefit_core::machine::{GuestVcpu, GuestView, Helper};
    let mut view = view();
    let number = view.named("vm1").unwrap();
    let whole = tables::text(&view, 80);
    let vm = &mut view.host.vms[number];
    vm.seen.memory_nodes = "0,2".parse().ok();
    view.snapshot.pcpus[0].node = Some(1);
    let vcpu = |id, online| GuestVcpu {
        id,
        online,
        busy_ns: Some(1_500_000_000),
        idle_ns: Some(250_000_000),
        ..GuestVcpu::default()
    };
    vm.seen.guest =
        Some(GuestView { vcpus: vec![vcpu(0, true), vcpu(1, false)], runnable: Some(3), work: None });
    let text = derivation::text(&view, number, 80);
    assert!(text.contains("Memory\n  from NUMA nodes 0,2 only"), "{text}");
    assert!(text.contains("3 of its threads running or ready to run"), "{text}");
    assert!(text.contains("1.5 s  0.2 s       ?") && text.contains("offline"), "{text}");
    let json: serde_json::Value =
        serde_json::from_str(&document::json(&view, Some(number), false).unwrap()).unwrap();
    assert_eq!(
        (&json["vms"][0]["memory_nodes"], &json["vms"][0]["guest"]["runnable"]),
        (&"0,2".into(), &3.into())
    );
    let seen = &mut view.host.vms[number].seen;
    (seen.memory_nodes, seen.memory_above) = ("0-1".parse().ok(), None);
    let shown = |view: &View| {
        let json = document::json(view, Some(number), false).unwrap();
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        let text = derivation::text(view, number, 80);
        let line = text.split_once("\nMemory\n  ").map(|(_, rest)| rest.lines().next().unwrap().to_owned());
        (json["vms"][0]["memory_nodes"].as_str().map(str::to_owned), line)
    };
    assert_eq!(shown(&view), (None, None), "it leaves none out");
    let group = view.host.vms[number].seen.whole.take();
    view.host.vms[number].seen.memory_nodes = "1".parse().ok();
    let told = |by: &str| (Some("1".into()), Some(format!("from NUMA node 1 only ({by})")));
    assert_eq!(shown(&view), told("numatune"));
    view.host.vms[number].seen.whole = group;
    assert_eq!(shown(&view), told("cpuset.mems"));
    let seen = &mut view.host.vms[number].seen;
    (seen.memory_nodes, seen.memory_above) = (None, "1".parse().ok());
    assert_eq!(shown(&view), told("cpuset.mems of a group above it"));
    assert_eq!(tables::text(&view, 80), whole, "tables are of all VMs: nothing of this is in them");

    // Helpers, in an estimate of their own.
    let helper = |run_ns| Helper {
        name: "emulator".into(),
        counters: corefit_core::machine::Counters { run_ns: Some(run_ns), wait_ns: Some(0), runs: None },
        ..Helper::default()
    };
    let mut machine = Replay::open(&captures().join("recording.cfr")).unwrap();
    let mut snapshot = |run_ns| {
        let mut snapshot = machine.observe().unwrap();
        assert!(machine.pass(Duration::from_secs(1)).unwrap());
        let vm = snapshot.vms.iter_mut().find(|vm| vm.name == "vm1").unwrap();
        vm.helpers.push(helper(run_ns));
        snapshot
    };
    let (before, after) = (snapshot(0), snapshot(100_000_000));
    let view = View::of(&machine, &before, after).unwrap();
    let number = view.named("vm1").unwrap();
    let json: serde_json::Value =
        serde_json::from_str(&document::json(&view, Some(number), false).unwrap()).unwrap();
    let vm = &json["vms"][0];
    let all = vm["vcpus"].as_array().unwrap().iter().chain(vm["helpers"].as_array().unwrap());
    let sum: f64 = all.map(|part| part["entitled"].as_f64().unwrap()).sum();
    assert!((sum - vm["entitled"].as_f64().unwrap()).abs() < 1e-6, "{vm}");
    assert!(vm["helpers"][0]["used"].as_f64().unwrap() > 0.05, "{vm}");
    assert!(vm["binding"].as_str().unwrap().contains("of its helpers: "), "{vm}");
    assert!(derivation::text(&view, number, 80).contains("\n  emulator"));
}

#[test]
fn a_vm_whose_name_looks_like_the_end_of_a_sentence_does_not_cut_it() {
    let mut machine = Replay::open(&captures().join("recording.cfr")).unwrap();
    let mut snapshot = || {
        let mut snapshot = machine.observe().unwrap();
        assert!(machine.pass(Duration::from_secs(1)).unwrap());
        snapshot.vms.iter_mut().filter(|vm| vm.name == "vm2").for_each(|vm| vm.name = "b; c".into());
        snapshot
    };
    let (before, after) = (snapshot(), snapshot());
    let view = View::of(&machine, &before, after).unwrap();
    let number = view.named("vm3").unwrap();
    assert_eq!(view.host.vms[number].reasons.len(), 1);
    let text = derivation::text(&view, number, 200);
    assert!(text.contains("shared with vm1, \"b; c\""), "{text}");
    assert!(text.contains("divided: \"b; c\" "), "{text}");
}

#[test]
fn who_competes_is_not_said_to_get_all_that_it_wants_where_it_does_not() {
    let mut view = view();
    let vm3 = view.named("vm3").unwrap();
    let other = view.host.vms.iter().position(|vm| vm.seen.name == "other1").unwrap();
    let divided = |view: &View| {
        let text = derivation::text(view, vm3, 400);
        let line = text.lines().find(|line| line.contains(" divided: ")).unwrap_or_else(|| panic!("{text}"));
        line.split("; ").find(|part| part.starts_with("other1 ")).unwrap().to_owned()
    };
    let gets = divided(&view).split(' ').nth(1).unwrap().parse::<f64>().unwrap_or(0.0);
    let wanted = view.host.vms[other].demand.unwrap().0;
    assert!(gets + 0.1 < wanted, "{gets} of {wanted}: this recording no longer tests it");
    assert_eq!(divided(&view), format!("other1 {gets:.2} of {wanted:.2} that it wants"));
    view.host.vms[other].demand = Some(corefit_core::Cpus(gets));
    assert_eq!(divided(&view), format!("other1 {gets:.2}, all that it wants"));
}

#[test]
fn a_paused_vm_and_a_host_without_vms_are_shown_as_such() {
    let mut view = view();
    let first = view.vms().next().unwrap().0;
    view.host.vms[first].seen.state = State::Paused;
    view.host.vms[first].binding = "paused".into();
    assert!(tables::text(&view, 80).contains("  because paused\n"));
    view.host.vms.clear();
    view.host.pcpus.iter_mut().for_each(|pcpu| pcpu.users.clear());
    assert!(tables::text(&view, 80).contains("there are no VMs"));
}

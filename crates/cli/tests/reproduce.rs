//! `corefit reproduce`, as typed. What the model gets right is held here; what it does not is not hidden.

use std::process::{Command, Output};
use std::sync::LazyLock;

/// The papers that take seconds, but for what controllers do, once for those tests that look at a part.
static ALL: LazyLock<(Output, Vec<serde_json::Value>)> = LazyLock::new(|| reproduce(&["P1", "P4", "P5"]));

fn of(paper: &str) -> Vec<serde_json::Value> {
    ALL.1.iter().filter(|item| item["paper"] == paper).cloned().collect()
}

fn reproduce(args: &[&str]) -> (Output, Vec<serde_json::Value>) {
    with_controllers("none", args)
}

fn with_controllers(which: &str, args: &[&str]) -> (Output, Vec<serde_json::Value>) {
    let (output, document) = document(which, args);
    (output, document["items"].as_array().unwrap().clone())
}

fn document(which: &str, args: &[&str]) -> (Output, serde_json::Value) {
    let output = Command::new(env!("CARGO_BIN_EXE_corefit"))
        .arg("reproduce")
        .args(args)
        .args(["--controllers", which, "--json"])
        .output()
        .unwrap();
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    (output, document)
}

#[test]
fn figure_6_of_p1_comes_out_exactly_with_nothing_fitted() {
    let items: Vec<_> = of("P1").into_iter().filter(|item| item["figure"] == "Figure 6").collect();
    let theirs: Vec<f64> = items.iter().map(|item| item["theirs"].as_f64().unwrap()).collect();
    assert_eq!(theirs, [2.0, 4.0, 4.0]);
    for item in &items {
        let (theirs, ours) = (item["theirs"].as_f64().unwrap(), item["ours"].as_f64().unwrap());
        assert!((ours / theirs - 1.0).abs() < 0.01 && item["ok"] == true, "{item}");
        assert_eq!(item["fitted"].as_array().unwrap().len(), 0);
    }
}

#[test]
fn types_1_and_4_of_p1_scale_on_a_vm_as_published_with_nothing_fitted_to_a_number() {
    let items = of("P1");
    let ours = |what: &str| {
        let item = items.iter().find(|item| item["what"].as_str().unwrap().starts_with(what)).unwrap();
        (item["theirs"].as_f64(), item["ours"].as_f64().unwrap(), item["ok"] == true)
    };
    for kind in [1, 4] {
        assert!(ours(&format!("type {kind}, mean speedup on a machine")).2);
        assert!(ours(&format!("type {kind}, on a VM")).2);
    }
    assert_eq!(ours("type 2, on a VM").0, Some(3.0));
    // The order that P1 finds: little blocking counts for more than parallelism.
    let on_vm = |kind: u8| ours(&format!("type {kind}, on a VM")).1;
    assert!(on_vm(1) > on_vm(4) && on_vm(4) > on_vm(3) && on_vm(3) > on_vm(2));
    assert!(ours("type 4, VM over machine falls").2 && ours("type 4, VM over machine as").2);
}

#[test]
fn modules_compete_as_p4_counts_them() {
    let items = of("P4");
    let counted = |what: &str| {
        let item = items.iter().find(|item| item["what"].as_str().unwrap().contains(what)).unwrap();
        item["ours"].as_f64().unwrap()
    };
    assert!((counted("7-9, 16 threads") - 7.0).abs() < 0.05);
    assert!(counted("one core per module") < 0.05);
    assert!((counted("rise from 4 to 8 threads") - 4.0).abs() < 0.05);
    let rule = |item: &serde_json::Value| item["rule"].as_str().unwrap().to_owned();
    // What is counted follows from the text alone, where it prints no number, too.
    let counted = |item: &&serde_json::Value| item["what"].as_str().unwrap().starts_with("counted");
    assert!(
        items.iter().filter(counted).count() == 29
            && items.iter().filter(counted).all(|item| item["ok"] == true)
    );
    for item in items.iter().filter(|item| item["theirs"].is_null() && !counted(item)) {
        let rule = rule(item);
        assert!(rule.starts_with("at ") || rule.starts_with("from "), "no number of theirs: {item}");
    }
}

/// One run of three programs; the promise itself is of ten, and of random ones (docs/measured.md). CG and DC are two of those where pCPU-Est
/// fails.
#[test]
fn corefit_sizes_three_programs_of_p2_as_well_as_it_promises() {
    // What searching costs varies too much for one run: with 4 pCPUs, where it costs CG most, 0.97 to 1.07. DC does not differ.
    for (runs, only, searching, cured) in [
        ("0..1", "cg, ", false, true),
        ("0..8", "cg, 4 pCPUs", true, false),
        ("0..1", "bt, ", false, false),
        ("0..1", "dc, ", true, true),
    ] {
        let (_, items) = with_controllers("full", &["P2", "--runs", runs, "--only", only]);
        let judged = |item: &&serde_json::Value| {
            let what = item["what"].as_str().unwrap();
            let promised =
                what.starts_with("ten programs") && (searching || !what.contains("searching costs"));
            promised || (cured && what.starts_with("where pCPU-Est fails"))
        };
        let mut found = 0;
        for item in items.iter().filter(judged) {
            assert!(item["ours"].is_number() && item["ok"] == true, "{item}");
            found += 1;
        }
        let all = 5 + usize::from(searching) + usize::from(cured);
        assert_eq!(
            found, all,
            "{only}mean, worst, over VCPU-Bal twice, without a signal; searching, and where pCPU-Est fails"
        );
    }
}

/// Fifty job sets of a thousand (docs/arbitration.md), whose medians are 1.67 and 0.94.
#[test]
fn jobs_that_overlap_and_priorities_take_as_long_as_they_are_said_to() {
    let (_, items) = with_controllers("quick", &["P5", "--sets", "0..50"]);
    let ours = |figure: &str, what: &str| {
        let found = items
            .iter()
            .find(|item| item["figure"] == figure && item["what"].as_str().unwrap().contains(what));
        let item = found.unwrap_or_else(|| panic!("{figure}, {what}: {items:?}"));
        (item["ours"].as_f64().unwrap(), item["ok"] == true)
    };
    let overlap = ours("Figure 7", "median of 50 sets");
    assert!((1.61..1.73).contains(&overlap.0) && overlap.1, "{overlap:?}");
    let priority = ours("Figure 8", "median of 50 sets");
    assert!((0.91..0.97).contains(&priority.0) && !priority.1, "{priority:?}: the paper has 0.795");
    let [theirs_overlap, theirs_priority] =
        ["Figure 7", "Figure 8"].map(|figure| ours(figure, "sets below theirs"));
    assert!((15.0..65.0).contains(&theirs_overlap.0) && theirs_overlap.1, "{theirs_overlap:?}");
    assert_eq!(theirs_priority, (0.0, false), "that is below all of them");
}

/// What ended a case once its own runs were near each other would be told of runs that are so by luck.
#[test]
fn full_effort_tells_of_other_runs_than_those_that_say_how_many_it_takes() {
    let (_, document) = document("full", &["P2", "--only", "ep, 1 pCPU"]);
    let runs = |signal: bool| {
        let rows = document["sizes"].as_array().unwrap().iter().filter(|row| row["signal"] == signal);
        rows.map(|row| row["run"].as_u64().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!((runs(true), runs(false)), (vec![3, 4, 5], vec![3, 4, 5]), "they hardly differ");
}

#[test]
fn what_does_not_come_out_is_said_and_makes_the_exit_status_1() {
    let (output, items) = &*ALL;
    let papers = |name: &str| items.iter().filter(|item| item["paper"] == name).count();
    assert_eq!(["P1", "P2", "P3", "P4", "P5"].map(papers), [36, 0, 0, 50, 3]);
    said(output, items);
    assert_eq!(reproduce(&["p5"]).1, of("P5"), "a part is the same as in the whole");
}

#[test]
#[ignore = "some minutes: make reproduce"]
fn what_does_not_come_out_of_the_others_is_said() {
    for (paper, rows) in [("P2", 9..=usize::MAX), ("P3", 29..=29)] {
        let (output, items) = reproduce(&[paper]);
        assert!(rows.contains(&items.len()), "{paper}: {}", items.len());
        said(&output, &items);
    }
}

fn said(output: &Output, items: &[serde_json::Value]) {
    let missed = items.iter().any(|item| item["ok"] == false);
    assert_eq!(output.status.code(), Some(i32::from(missed)));
    for item in items {
        // Times depend on how much work loses beside a sibling or in a full cache; counts do not.
        let times = ["time in", "time without", "NPB programs", "gain by"];
        let what = item["what"].as_str().unwrap();
        let lengths = item["paper"] == "P1" && item["figure"] != "Figure 6" && item["figure"] != "Figure 7";
        // What was measured here with 64 threads is predicted from its program alone.
        let sections = item["paper"] == "P3" && item["figure"] != "64 threads, 2 CPUs";
        let programs = item["paper"] == "P2" && !what.starts_with("counted");
        let settings = lengths || sections || programs || item["figure"] == "Figure 4";
        let ours_alone = settings || times.iter().any(|word| what.contains(word));
        assert_eq!(item["fitted"].as_array().unwrap().is_empty(), !ours_alone, "{item}");
        // Nobody claims a number as theirs that is not compared with ours.
        assert!(item["what"].is_string() && item["figure"].is_string() && item["rule"].is_string(), "{item}");
    }
}

#[test]
fn another_size_policy_is_compared_under_its_own_name_and_not_judged_by_what_corefit_promises() {
    let only = ["P2", "--only", "is, 4 VMs"];
    let rows = |policies: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_corefit"))
            .arg("reproduce")
            .args(only)
            .args(["--json", "--size"])
            .args(policies)
            .output()
            .unwrap();
        assert!(output.status.success(), "nothing of it is promised: {output:?}");
        serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap()
    };
    let (vscale, none) = (rows(&["vscale"]), rows(&["none"]));
    let ewma = rows(&["vscale", "--demand", "ewma", "--arbitrate", "max-min"]);
    let sizes = |document: &serde_json::Value| document["sizes"][0].clone();
    assert_eq!(
        (sizes(&ewma)["demand"].clone(), sizes(&ewma)["arbitrate"].clone()),
        ("ewma".into(), "max-min".into())
    );
    assert_ne!(sizes(&ewma)["took"]["ours"], sizes(&vscale)["took"]["ours"]);
    assert!(
        ewma["items"][0]["what"]
            .as_str()
            .unwrap()
            .contains("under vscale, demand by ewma, served by max-min: ")
    );
    assert_eq!((&vscale["sizes"][0]["size"], &none["sizes"][0]["size"]), (&"vscale".into(), &"none".into()));
    assert_eq!(none["sizes"][0]["vcpus"][3], 16.0, "all of its vCPUs, always");
    assert!(vscale["sizes"][0]["vcpus"][3].as_f64().unwrap() < 16.0, "{vscale}");
    let took = |what: &str| none["sizes"][0]["took"][what].as_f64().unwrap();
    let searching = took("ours") / took("ours_number");
    assert!(
        (searching - 1.0).abs() < 0.05,
        "who tries nothing pays nothing, with several VMs, too: {searching}"
    );
    let promised = |item: &&serde_json::Value| item["figure"] == "2.5";
    for item in vscale["items"].as_array().unwrap().iter().filter(promised) {
        let (what, rule) = (item["what"].as_str().unwrap(), item["rule"].as_str().unwrap());
        assert!(what.contains("under vscale") && !what.contains("corefit"), "{item}");
        assert!(item["ok"].is_null() && rule.starts_with("not judged; corefit promises"), "{item}");
    }
    assert!(vscale["items"].as_array().unwrap().iter().filter(promised).count() >= 4);
}

#[test]
fn a_policy_for_what_is_not_simulated_is_refused_with_the_remedy() {
    for (args, said) in [
        (
            &["P1", "--size", "vscale"][..],
            "corefit: --size is a policy for P2's numbers of vCPUs; give P2, and",
        ),
        (
            &["P4", "--demand", "ewma"],
            "corefit: --demand and --arbitrate are policies for P2's numbers of vCPUs and P5's job sets; give P2 or P5,",
        ),
        (
            &["P5", "--controllers", "none", "--arbitrate", "fcfs"],
            "corefit: --demand and --arbitrate are policies",
        ),
        (
            &["P5", "--runs", "0..7"],
            "corefit: --runs and --random choose runs of P2's numbers of vCPUs; give P2, and",
        ),
        (
            &["P2", "--controllers", "none", "--random", "3"],
            "corefit: --runs and --random choose runs of P2's numbers of vCPUs; give P2, and",
        ),
        (
            &["P2", "--sets", "0..7"],
            "corefit: --sets chooses of P5's job sets; give P5, and --controllers quick or full",
        ),
        (&["P2", "--size", "best"], "error: invalid value 'best' for '--size <POLICY>'"),
    ] {
        let output =
            Command::new(env!("CARGO_BIN_EXE_corefit")).arg("reproduce").args(args).output().unwrap();
        let told = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(2) && told.starts_with(said), "{args:?}: {told}");
    }
}

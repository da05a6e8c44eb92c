//! `corefit topology --place` and `corefit plan --place` of the same files: where VMs should run, and what has to be changed after that.

use std::collections::{BTreeMap, BTreeSet};

use super::{captures, corefit, err, expect, out};

/// P4's conflict, placed: one vCPU a module as far as Domain-0 leaves them, with the lines that make it so.
#[test]
fn a_placement_is_drawn_with_its_reasons_and_the_commands_that_make_it() {
    let case = captures().join("check/opteron-conflict");
    let files = ["host.xl-info.txt", "npb.cfg", "vcpus.xl-list.txt"];
    let output = corefit(&case, &[&["topology", "--place", "corefit"][..], &files].concat());
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    expect(&case.join("place.expected"), &out(&output));
    let json = corefit(&case, &[&["topology", "--json", "--place", "optimal-affinity"][..], &files].concat());
    let document: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    let npb = &document["placement"]["vms"][0];
    assert_eq!(npb["commands"][0], "cpus = \"0,2,4,6,8,10,12,14,16,18,20,22,24,26,28,30\"");
    assert_eq!(npb["commands"][1], "cpus_soft = \"nodes:0-3\"");
    let error = corefit(&case, &["topology", "--place", "best", "2 cores"]);
    assert_eq!(error.status.code(), Some(2));
    assert!(err(&error).contains("there are none, ulas, optimal-affinity, corefit"), "{}", err(&error));
}

/// What an administrator says of VMs counts where they are placed, and is shown.
#[test]
fn classes_priorities_and_reserved_pcpus_of_a_configuration_decide_where_vms_are_placed() {
    let dir = tempfile::tempdir().unwrap();
    let put = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
    put("a.xml", "<domain><name>a</name><vcpu>2</vcpu></domain>");
    let shape = "1 socket x 2 l3 x 2 cores";
    let placed = |config: &str| {
        put("corefit.toml", &format!("[policy]\n{config}"));
        let args = ["topology", "--json", "--place", "corefit", "--config", "corefit.toml", shape, "a.xml"];
        let output = corefit(dir.path(), &args);
        assert_eq!(output.status.code(), Some(0), "{}", err(&output));
        let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let vm = document["placement"]["vms"][0].clone();
        let homes = [0, 1].map(|vcpu| vm["vcpus"][vcpu]["home"].as_u64());
        (vm["class"].as_str().unwrap().to_owned(), homes, vm["commands"].as_array().unwrap().is_empty())
    };
    let rule = |what: &str| format!("[[policy.vm]]\nname = \"a\"\n{what}");
    assert_eq!(
        placed(&rule("class = \"communicating\"")),
        ("communicating".into(), [Some(0), Some(1)], false)
    );
    let hungry = placed(&rule("class = \"cache-hungry\""));
    assert_eq!(hungry, ("cache-hungry".into(), [Some(0), Some(2)], false));
    assert_eq!(placed("reserved = \"0,2\"").1, [Some(1), Some(3)]);
    assert_eq!(placed(&rule("exclude = true")), ("unknown".into(), [None, None], true));

    put("corefit.toml", "[policy]\n[[policy.vm]]\nname = \"a\"\nclass = \"hungry\"\n");
    for args in [&["topology", "--place", "corefit", shape, "a.xml"][..], &["plan", "--place", "corefit"]] {
        let output = corefit(dir.path(), &[args, &["--config", "corefit.toml"]].concat());
        assert_eq!(output.status.code(), Some(2));
        let line = "corefit.toml, line 4, key policy.vm[0].class: \"hungry\" cannot be; give one of ";
        assert!(err(&output).contains(line), "{}", err(&output));
    }
    put("corefit.toml", &rule("class = \"communicating\""));
    let args = ["topology", "--place", "corefit", "--config", "corefit.toml", shape, "a.xml"];
    assert!(out(&corefit(dir.path(), &args)).contains("VM a, communicating, given: as its rule says\n"));
}

/// Placement knows neither helpers nor what guests are told: what has to be changed after it is said with it.
#[test]
fn what_will_be_found_after_a_placement_is_said_with_its_cure() {
    let dir = tempfile::tempdir().unwrap();
    let domain = |pins: [u64; 2], emulator: &str, topology: &str| {
        let [a, b] = pins;
        let text = format!(
            "<domain><name>a</name><vcpu>2</vcpu><cputune><vcpupin vcpu='0' cpuset='{a}'/>\
             <vcpupin vcpu='1' cpuset='{b}'/><emulatorpin cpuset='{emulator}'/></cputune>{topology}</domain>"
        );
        std::fs::write(dir.path().join("a.xml"), text).unwrap();
    };
    let json = |args: &[&str]| -> serde_json::Value {
        let all = [args, &["--json", "1 socket x 4 cores x 2 threads", "a.xml"]].concat();
        serde_json::from_slice(&corefit(dir.path(), &all).stdout).unwrap()
    };
    domain([0, 1], "2", "<cpu><topology sockets='1' cores='1' threads='2'/></cpu>");
    assert_eq!(json(&["check"])["findings"].as_array().unwrap().len(), 0);
    let placed = json(&["topology", "--place", "corefit"])["placement"]["vms"][0].clone();
    let homes = [0, 1].map(|vcpu| placed["vcpus"][vcpu]["home"].as_u64().unwrap());
    let follows: BTreeMap<&str, &str> = placed["follows"]
        .as_array()
        .unwrap()
        .iter()
        .map(|f| (f["rule"].as_str().unwrap(), f["cure"].as_str().unwrap()))
        .collect();
    let told = "<cpu><topology sockets='1' cores='2' threads='1'/></cpu>";
    let emulator = follows["helpers-on-vcpus"].strip_prefix("virsh emulatorpin a ").unwrap();
    let emulator = emulator.strip_suffix(" --config").unwrap();
    assert_eq!((follows["guest-topology"], follows.len()), (told, 2));
    // As `check` finds it then, and not once the cures are followed.
    domain(homes, "2", "<cpu><topology sockets='1' cores='1' threads='2'/></cpu>");
    let found = json(&["check"])["findings"].clone();
    let rules: BTreeSet<&str> =
        found.as_array().unwrap().iter().map(|f| f["rule"].as_str().unwrap()).collect();
    assert_eq!(rules, follows.keys().copied().collect());
    domain(homes, emulator, told);
    assert_eq!(json(&["check"])["findings"].as_array().unwrap().len(), 0);
    let args = ["topology", "--place", "corefit", "1 socket x 4 cores x 2 threads", "a.xml"];
    assert!(!out(&corefit(dir.path(), &args)).contains("then corefit check finds"));
}

/// The same of a plan, as `check` finds it on the host that follows from it.
#[test]
fn what_will_be_found_after_a_plan_is_said_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let host = |pins: [&str; 2], helper: &str| {
        let vcpus = pins.map(|pin| format!("{{ affinity = \"{pin}\" }}")).join(", ");
        let helper = format!("{{ affinity = \"{helper}\", fixed = true, demand = 0.1 }}");
        let text = format!("pcpus = \"0-7\"\n[[vm]]\nname = \"a\"\nvcpus = [{vcpus}, {helper}]\n");
        std::fs::write(dir.path().join("h.toml"), text).unwrap();
    };
    let on = ["--machine", "scenario:h.toml", "--json"];
    let plan = || -> serde_json::Value {
        let args = [&["plan", "--place", "corefit", "--size", "none"][..], &on].concat();
        serde_json::from_slice(&corefit(dir.path(), &args).stdout).unwrap()
    };
    host(["0", "0"], "1");
    let planned = plan();
    let follows = &planned["follows"];
    assert_eq!(
        (&planned["actions"][0]["to"], planned["actions"].as_array().unwrap().len()),
        (&"1".into(), 1)
    );
    assert_eq!((&follows[0]["name"], &follows[0]["rule"]), (&"a".into(), &"helpers-on-vcpus".into()));
    host(["0", "1"], "1");
    let check = corefit(dir.path(), &[&["check"][..], &on].concat());
    let found: serde_json::Value = serde_json::from_slice(&check.stdout).unwrap();
    assert_eq!(found["findings"].as_array().unwrap().len(), 1);
    for key in ["rule", "text", "cure"] {
        assert_eq!(found["findings"][0][key], follows[0][key], "{key}");
    }
    host(["0", "0"], "2-7");
    assert_eq!(plan()["follows"].as_array().unwrap().len(), 0);
}

/// A policy that leaves everything, and a VM that is to be left alone: nothing is printed to change them.
#[test]
fn what_is_left_as_it_is_has_no_commands() {
    let dir = tempfile::tempdir().unwrap();
    let put = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
    put(
        "a.xml",
        "<domain><name>a</name><vcpu cpuset='0'>1</vcpu><numatune><memory nodeset='1'/></numatune></domain>",
    );
    put("corefit.toml", "[policy]\n[[policy.vm]]\nname = \"a\"\nexclude = true\n");
    for (policy, config, commands) in
        [("none", None, 0), ("corefit", Some("--config=corefit.toml"), 0), ("corefit", None, 1)]
    {
        let args = ["topology", "--json", "2 sockets x 2 cores", "a.xml", "--place", policy];
        let args: Vec<&str> = args.into_iter().chain(config).collect();
        let output = corefit(dir.path(), &args);
        let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let found = document["placement"]["vms"][0]["commands"].as_array().unwrap();
        assert_eq!(found.len(), commands, "{args:?}: {found:?}");
    }
}

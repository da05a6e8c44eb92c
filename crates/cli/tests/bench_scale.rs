//! `corefit bench scale`, simulated: with real VMs it takes minutes, and is run by hand.

use std::process::{Command, Output};

fn scale(args: &[&str]) -> Output {
    let command = [&["bench", "scale", "--simulate", "--repeat", "2"], args].concat();
    Command::new(env!("CARGO_BIN_EXE_corefit")).args(command).output().unwrap()
}

#[test]
fn a_program_runs_on_the_host_and_in_vms_over_numbers_of_vcpus() {
    let directory = tempfile::tempdir().unwrap();
    let picture = directory.path().join("scale.svg");
    let file = picture.to_str().unwrap();
    let options =
        ["--pcpus", "4", "--vms", "1,3", "--vcpus", "1,4,8", "--json", "--svg", file, "--", "./ep", "S"];
    let output = scale(&options);
    assert!(output.status.success(), "{output:?}");
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&document["vms"], &document["why"]), (&"simulated".into(), &"--simulate".into()));
    let took = |vms: u64, vcpus: u64| {
        let cells = document["cells"].as_array().unwrap();
        let cell = cells.iter().find(|c| c["vms"] == vms && c["vcpus"] == vcpus)?;
        let runs = cell["seconds"].as_array().unwrap();
        assert_eq!(runs.len(), 2);
        runs[0]["s"].as_f64()
    };
    assert!(took(0, 8).is_none(), "the host has no eight pCPUs");
    let (alone, four) = (took(0, 1).unwrap(), took(0, 4).unwrap());
    assert!((alone / four - 4.0).abs() < 0.2, "ep scales: {alone} {four}");
    let crowd = took(3, 4).unwrap() / took(1, 4).unwrap();
    assert!((2.5..=3.5).contains(&crowd), "three VMs of four vCPUs on four pCPUs: {crowd}");
    assert!(std::fs::read_to_string(picture).unwrap().contains("3 VMs"));
}

#[test]
fn a_program_that_cannot_be_simulated_is_refused_with_those_that_can() {
    let output = scale(&["--", "./my-program"]);
    assert_eq!(output.status.code(), Some(2));
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(
        told.starts_with(
            "corefit: ./my-program: the simulator's library has no such program; it has hog, bt"
        ),
        "{told}"
    );
}

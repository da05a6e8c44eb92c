//! `corefit sim`, as typed.

use std::process::{Command, Output};

const SCENARIO: &str = "until = \"200ms\"\nhardware = { cores = 2 }\n[[vm]]\nname = \"a\"\ncount = 2\nvcpus = [1, 2]\n\
    program = \"forever { compute 50us exp barrier mark }\"\n";

fn sim(file: &str, text: &str, more: &[&str]) -> Output {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(file);
    std::fs::write(&path, text).unwrap();
    Command::new(env!("CARGO_BIN_EXE_corefit"))
        .arg("sim")
        .arg(file)
        .args(more)
        .current_dir(&directory)
        .output()
        .unwrap()
}

#[test]
fn results_are_the_same_to_the_last_byte_on_any_number_of_threads_and_in_any_shards() {
    let one = sim("s.toml", SCENARIO, &["--json", "--jobs", "1", "--runs", "4"]).stdout;
    assert_eq!(one, sim("s.toml", SCENARIO, &["--json", "--jobs", "3", "--runs", "4"]).stdout);
    let points = |output: &[u8]| {
        let document: serde_json::Value = serde_json::from_slice(output).unwrap();
        document["points"].as_array().unwrap().clone()
    };
    let shard = |i| points(&sim("s.toml", SCENARIO, &["--json", "--runs", "4", "--points", i]).stdout);
    assert_eq!(points(&one), [shard("0..1"), shard("1..2")].concat());
}

#[test]
fn a_mistake_is_one_line_with_file_line_and_key_and_exit_code_2() {
    let output = sim("s.toml", &SCENARIO.replace("cores = 2", "cores = 0"), &[]);
    assert_eq!(output.status.code(), Some(2));
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!(told, "corefit: s.toml, line 2, hardware.cores: 0 is out of range; give 1 to 4096\n");
}

#[test]
fn what_did_not_end_is_told_loudly() {
    let text = SCENARIO.replace("forever", "repeat 1000000");
    let output = sim("s.toml", &text, &["--runs", "2", "--points", "0..1"]);
    let told = String::from_utf8(output.stdout).unwrap();
    assert!(told.contains("UNFINISHED: a-0/program did not end in 2 of 2 runs"), "{told}");
}

#[test]
fn the_scenarios_that_are_shipped_are_valid() {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scenarios");
    let mut seen = 0;
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        // The examples of P2 are hosts to divide, not to simulate.
        if !text.contains("program =") {
            continue;
        }
        seen += 1;
        let points = corefit_sim::Scenario::points(&text, &[]);
        for sets in points.unwrap_or_else(|error| panic!("{}: {error}", path.display())) {
            let scenario = corefit_sim::Scenario::parse(&text, &sets);
            assert!(scenario.is_ok(), "{}: {scenario:?}", path.display());
        }
    }
    assert!(seen >= 5);
}

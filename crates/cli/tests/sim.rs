//! `corefit sim`, as typed.

use std::io::{BufRead, BufReader};
use std::process::{Command, Output, Stdio};

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
fn files_of_shards_one_after_the_other_are_the_file_of_the_whole_sweep() {
    let text = SCENARIO.replace("cores = 2", "cores = [1, 2, 4]");
    let csv = |more: &[&str]| {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("out.csv");
        let out = ["--out", file.to_str().unwrap(), "--runs", "2"];
        let output = sim("s.toml", &text, &[&out, more].concat());
        assert!(output.status.success(), "{output:?}");
        std::fs::read_to_string(file).unwrap()
    };
    let whole = csv(&["--jobs", "1"]);
    assert_eq!(whole.lines().count(), 1 + 6 * 2 * 2, "points, runs, VMs");
    let (first, second) = (csv(&["--points", "0..2", "--jobs", "3"]), csv(&["--points", "2..6"]));
    let (head, rest) = second.split_once('\n').unwrap();
    assert!(first.starts_with(head));
    assert_eq!(whole, first + rest);
}

#[test]
fn a_sweep_over_seeds_has_one_column_of_them() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("out.csv");
    let output = sim("s.toml", SCENARIO, &["--set", "seed=[5,9]", "--out", file.to_str().unwrap()]);
    assert!(output.status.success(), "{output:?}");
    let csv = std::fs::read_to_string(file).unwrap();
    let head = csv.lines().next().unwrap();
    assert_eq!(head.split(',').filter(|name| *name == "seed").count(), 1, "{head}");
}

#[test]
fn policies_are_compared_in_pairs_with_the_same_random_numbers() {
    let text = SCENARIO.replace("vcpus = [1, 2]", "vcpus = 2");
    let compared = |more: &[&str]| {
        let output = sim("s.toml", &text, &[&["--json", "--runs", "4"], more].concat());
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap()
    };
    let document = compared(&["--set", "scheduler=[cfs,credit]"]);
    let comparisons = document["comparisons"].as_array().unwrap();
    assert_eq!(comparisons.len(), 2, "a-0 and a-1");
    let one = &comparisons[0];
    assert_eq!(
        (&one["key"], &one["base"], &one["value"]),
        (&"scheduler".into(), &"cfs".into(), &"credit".into())
    );
    let mean = |point: usize| document["points"][point]["vms"][0]["marks_per_s"]["mean"].as_f64().unwrap();
    let difference = one["difference"]["mean"].as_f64().unwrap();
    assert!((difference - (mean(1) - mean(0))).abs() < 1e-6 && difference != 0.0, "{one}");
    // The same host twice: with common random numbers nothing is left to differ.
    let document = compared(&["--set", "about=[one,another]"]);
    let one = &document["comparisons"][0]["difference"];
    assert_eq!((&one["mean"], &one["ci95"], &one["n"]), (&0.0.into(), &0.0.into(), &4.into()));
}

#[test]
fn a_sweep_is_drawn() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("plot.svg");
    let file = file.to_str().unwrap();
    let output = sim("s.toml", SCENARIO, &["--runs", "2", "--plot", file]);
    assert!(output.status.success(), "{output:?}");
    let picture = std::fs::read_to_string(file).unwrap();
    assert!(picture.contains("vm.a.vcpus"), "{picture}");
    assert!(picture.contains("marks per second, mean over 2 VMs"), "{picture}");
    let slices = SCENARIO.replace("vcpus = [1, 2]", "vcpus = 1\nfair_slice = [\"500us\", \"3ms\"]");
    let output =
        sim("s.toml", &slices, &["--runs", "2", "--plot", file, "--vm", "a-1", "--set", "scheduler=eevdf"]);
    assert!(output.status.success(), "{output:?}");
    let picture = std::fs::read_to_string(file).unwrap();
    assert!(picture.contains("vm.a.fair_slice, ms") && !picture.contains("mean over"), "{picture}");
    let output = sim("s.toml", SCENARIO, &["--plot", file, "--y", "speed"]);
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(
        told.starts_with("corefit: --y speed: there is no such number; give took_s, marks_per_s"),
        "{told}"
    );
}

#[test]
fn a_picture_that_cannot_be_drawn_is_told_before_the_sweep_or_after_its_results() {
    let told = |text: &str, more: &[&str]| {
        let output = sim("s.toml", text, &[&["--runs", "1", "--plot"], more].concat());
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        (output.stdout.is_empty(), String::from_utf8(output.stderr).unwrap())
    };
    let many: Vec<String> = (1..34).map(|n: u32| n.to_string()).collect();
    let many = SCENARIO.replace("count = 2", &format!("weight = [{}]", many.join(", ")));
    let (empty, said) = told(&many, &["p.svg", "--x", "vm.a.vcpus"]);
    assert!(empty && said.contains("--plot: 33 lines cannot be told apart"), "{said}");
    let (empty, said) = told(SCENARIO, &["p.svg", "--vm", "nosuch"]);
    assert!(empty && said.contains("--vm nosuch: there is no such VM; there is a-0, a-1"), "{said}");
    let (empty, said) = told(SCENARIO, &["nosuch/p.svg"]);
    assert!(empty && said.contains("there is no directory nosuch"), "{said}");
    let endless = SCENARIO.replace("forever", "repeat 1000000");
    let (empty, said) = told(&endless, &["p.svg", "--y", "took_s"]);
    assert!(!empty && said.contains("there is nothing to draw"), "{said}");
}

#[test]
fn a_file_that_cannot_be_written_takes_nothing_else_with_it() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let (full, means, plot) = (file("full.csv"), file("means.json"), file("plot.svg"));
    std::os::unix::fs::symlink("/dev/full", &full).unwrap();
    let output = sim("s.toml", SCENARIO, &["--runs", "1", "--out", &full, "--out", &means, "--plot", &plot]);
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{told}");
    assert!(told.starts_with(&format!("corefit: {full}: cannot be written: ")), "{told}");
    assert!(!output.stdout.is_empty());
    assert!(std::fs::read_to_string(means).unwrap().ends_with("}\n"));
    assert!(std::fs::read_to_string(plot).unwrap().contains("</svg>"));
}

#[test]
fn a_vm_that_only_some_points_have_is_drawn_there() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("plot.svg");
    let text = SCENARIO.replace("count = 2", "count = [1, 2, 3]").replace("vcpus = [1, 2]", "vcpus = 1");
    let output = sim("s.toml", &text, &["--runs", "1", "--plot", file.to_str().unwrap(), "--vm", "a-1"]);
    assert!(output.status.success(), "{output:?}");
    let picture = std::fs::read_to_string(file).unwrap();
    assert!(picture.contains("1 of 3 points left out") && !picture.contains("mean over"), "{picture}");
}

/// Exit status and stderr of a small simulation that writes to a full disk, or to a pipe that nobody reads.
fn written_to(out: Stdio) -> (Option<i32>, String) {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("s.toml"), SCENARIO).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_corefit"));
    command.args(["sim", "s.toml", "--runs", "1"]).current_dir(&directory).stdout(out);
    let output = command.stderr(Stdio::piped()).spawn().unwrap().wait_with_output().unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn results_that_cannot_be_written_are_an_error_and_results_that_nobody_reads_are_none() {
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let (status, said) = written_to(full.into());
    assert_eq!((status, said.lines().count()), (Some(2), 1), "{said}");
    assert!(said.starts_with("corefit: writing to stdout: No space left"), "{said}");
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    assert_eq!(written_to(writer.into()), (Some(0), String::new()));
    for asked in ["--version", "--help"] {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let output = Command::new(env!("CARGO_BIN_EXE_corefit")).arg(asked).stdout(full).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.starts_with("corefit: writing to stdout: No space left"), "{asked}: {said}");
        assert_eq!(output.status.code(), Some(2), "{asked}");
    }
}

#[test]
fn what_has_no_end_has_neither_finished_nor_not() {
    let finished = |text: &str| {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("out.csv");
        let output =
            sim("s.toml", text, &["--points", "0..1", "--runs", "1", "--out", file.to_str().unwrap()]);
        assert!(output.status.success(), "{output:?}");
        let csv = std::fs::read_to_string(file).unwrap();
        let [head, row] = [0, 1].map(|n| csv.lines().nth(n).unwrap().split(',').collect::<Vec<_>>());
        row[head.iter().position(|name| *name == "finished").unwrap()].to_owned()
    };
    assert_eq!(finished(SCENARIO), "");
    assert_eq!(finished(&SCENARIO.replace("forever", "repeat 3")), "true");
    assert_eq!(finished(&SCENARIO.replace("forever", "repeat 1000000")), "false");
}

#[test]
fn a_mistake_in_a_list_is_told_with_the_place_of_the_list() {
    let output = sim("s.toml", &SCENARIO.replace("[1, 2]", "[1, 0]"), &[]);
    assert_eq!(output.status.code(), Some(2));
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!(
        told,
        "corefit: s.toml, line 6, vm.a.vcpus: 0 is out of range; give 1 to 1024 (at vm.a.vcpus = 0)\n"
    );
}

#[test]
fn a_mistake_is_one_line_with_file_line_and_key_and_exit_code_2() {
    let output = sim("s.toml", &SCENARIO.replace("cores = 2", "cores = 0"), &[]);
    assert_eq!(output.status.code(), Some(2));
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!(
        told,
        "corefit: s.toml, line 2, hardware.cores: 0 is out of range; give 1 to 4096 (at vm.a.vcpus = 1)\n"
    );
}

#[test]
fn what_did_not_end_is_told_loudly() {
    let text = SCENARIO.replace("forever", "repeat 1000000");
    let output = sim("s.toml", &text, &["--runs", "2", "--points", "0..1"]);
    let told = String::from_utf8(output.stdout).unwrap();
    assert!(told.contains("UNFINISHED: a-0/program did not end in 2 of 2 runs"), "{told}");
    let loud = String::from_utf8(output.stderr).unwrap();
    assert!(
        loud.starts_with("corefit: UNFINISHED: 4 times a program did not come to its end, at 1 of 1"),
        "{loud}"
    );
}

#[test]
fn what_waits_for_itself_for_ever_is_told_loudly_and_needs_no_more_time() {
    const CROSSED: &str =
        "{ mutex a { compute 1ms mutex b { compute 1ms } } mutex b { compute 1ms mutex a { compute 1ms } } }";
    for (program, threads, whom, ends) in [
        (format!("forever {CROSSED}"), 2, "its threads all wait for each other, for ever", false),
        ("compute 1ms wait c prev".into(), 2, "its last thread waits for one that has ended, for ever", true),
        (
            format!("single {{ forever {{ sleep 1ms mark }} }} forever {CROSSED}"),
            3,
            "2 of its threads wait for each other (others go on: 1), for ever",
            false,
        ),
    ] {
        let text = format!(
            "about = \"\\u001b[2Jabout\"\nhardware = {{ cores = 2 }}\nuntil = \"1s\"\nruns = 2\n[[vm]]\nname = \"a\"\nvcpus = 2\nthreads = {threads}\nprogram = \"{program}\"\n"
        );
        let output = sim("s.toml", &text, &[]);
        let told = String::from_utf8(output.stdout).unwrap();
        assert!(told.starts_with("\\u{1b}[2Jabout\n"), "a text cannot steer a terminal: {told}");
        assert!(told.contains(&format!("STUCK: a/program in 2 of 2 runs: {whom}")), "{told}");
        assert_eq!(told.contains("UNFINISHED: a/program did not end in 2 of 2 runs\n"), ends, "{told}");
        let loud = String::from_utf8(output.stderr).unwrap();
        assert!(loud.contains("corefit: STUCK: ") && !loud.contains("raise"), "{loud}");
        let json: serde_json::Value =
            serde_json::from_slice(&sim("s.toml", &text, &["--json"]).stdout).unwrap();
        let stuck = &json["points"][0]["stuck"]["a/program"];
        assert_eq!(
            (&stuck["runs"], &stuck["others"]),
            (&2.into(), &u32::from(threads == 3).into()),
            "{json}"
        );
    }
}

#[test]
fn a_run_that_takes_hours_is_warned_of_with_file_line_and_key_before_it_begins() {
    let text = "hardware = { cores = 2 }\n[[vm]]\nname = \"a\"\ncount = 2\nprogram = [\"forever { compute 2ns }\", \"ep\"]\n";
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("s.toml");
    std::fs::write(&file, text).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_corefit"));
    let mut child = command
        .arg("sim")
        .arg(&file)
        .args(["--jobs", "2"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut told = String::new();
    BufReader::new(child.stderr.take().unwrap()).read_line(&mut told).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    let place = format!(
        "corefit: {}: line 5, vm.a.program: about 3e11 events of programs in 10 runs, 3.5 hours on 2 CPUs",
        file.display()
    );
    assert!(told.starts_with(&place), "{told}");
    let ends = sim("s.toml", text, &["--points", "1..2", "--runs", "1"]);
    assert_eq!(String::from_utf8(ends.stderr).unwrap(), "");
}

#[test]
fn results_are_not_written_over_the_scenario() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s.csv");
    std::fs::write(&path, SCENARIO).unwrap();
    for option in ["--out", "--trace"] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_corefit"));
        let command = command.args(["sim", "s.csv", option, "./s.csv", "--set", "vm.a.vcpus=1"]);
        let output = command.current_dir(&directory).output().unwrap();
        let told = String::from_utf8(output.stderr).unwrap();
        let expected = format!("corefit: {option} names the scenario itself: give it another file\n");
        assert_eq!((output.status.code(), told), (Some(2), expected));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), SCENARIO);
    }
    let output = sim("s.toml", SCENARIO, &["--set", "vm.a.vcpus=1", "--trace", "/nosuch/x"]);
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(told.starts_with("corefit: --trace: /nosuch/x: cannot be written: "), "{told}");
}

#[test]
fn a_file_without_end_is_refused() {
    let output = Command::new(env!("CARGO_BIN_EXE_corefit")).args(["sim", "/dev/zero"]).output().unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!(
        (output.status.code(), told.as_str()),
        (Some(2), "corefit: /dev/zero: larger than 32 MiB; no scenario is\n")
    );
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

const LATE: &str = "until = \"10s\"\nruns = 2\nhardware = { cores = 1 }\n[[vm]]\nname = \"h\"\nprogram = \"hog\"\nstart = \"5s\"\n";

fn printed(text: &str, more: &[&str]) -> serde_json::Value {
    let output = sim("s.toml", text, &[&["--json"], more].concat());
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn mean(document: &serde_json::Value, metric: &str) -> Option<f64> {
    document["points"][0]["vms"][0][metric]["mean"].as_f64()
}

#[test]
fn marks_are_per_second_since_a_program_began_and_all_else_over_the_whole_run() {
    let document = printed(LATE, &[]);
    assert!((mean(&document, "marks_per_s").unwrap() - 100.0).abs() < 0.5, "{document}");
    assert!((mean(&document, "utilised").unwrap() - 0.5).abs() < 0.01, "{document}");
}

#[test]
fn what_happens_before_the_warm_up_is_over_is_not_counted() {
    let document = printed(LATE, &["--set", "warmup=7s"]);
    let means = ["marks_per_s", "utilised"].map(|metric| mean(&document, metric).unwrap());
    assert_eq!(means, [100.0, 1.0]);
    let point = &document["points"][0];
    assert_eq!([&point["simulated_s"]["mean"], &point["counted_s"]["mean"]], [10.0, 3.0]);
    assert_eq!(point["idle_pcpus"]["mean"], 0.0);
    let output = sim("s.toml", LATE, &["--set", "warmup=10s"]);
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(told.contains("--set warmup: nothing would be counted after it"), "{told}");
    let ends =
        LATE.replace("hog", "compute 5us").replace("5s", "0s").replace("until", "warmup = \"1s\"\nuntil");
    let document = printed(&ends, &["--runs", "1"]);
    assert!(mean(&document, "took_s").is_some() && mean(&document, "utilised").is_none(), "{document}");
    assert!(document["points"][0]["notes"].to_string().contains("nothing was counted"), "{document}");
}

#[test]
fn a_program_that_never_starts_is_told_and_has_no_rate() {
    let document = printed(LATE, &["--set", "vm.h.start=20s"]);
    assert!(mean(&document, "marks_per_s").is_none(), "{document}");
    assert!(document["points"][0]["notes"].to_string().contains("h/hog had not started"), "{document}");
}

#[test]
fn a_change_that_never_happens_is_told() {
    let notes = |at: &str| {
        let change = format!("{LATE}[[vm.change]]\nat = \"{at}\"\nonline = 1\n");
        printed(&change, &["--runs", "1"])["points"][0]["notes"].to_string()
    };
    assert!(notes("20s").contains("h: a `change` at `until` or later never happens"), "{}", notes("20s"));
    assert!(!notes("1s").contains("change"), "{}", notes("1s"));
}

#[test]
fn results_of_microseconds_have_three_digits() {
    let short = LATE.replace("hog", "compute 12us").replace("start = \"5s\"", "");
    let told = String::from_utf8(sim("s.toml", &short, &[]).stdout).unwrap();
    assert!(told.contains(" 0.00001"), "{told}");
}

#[test]
fn values_that_stand_twice_in_a_list_and_keys_that_are_wrong_are_named() {
    let told = |set: &[&str]| String::from_utf8(sim("s.toml", LATE, set).stderr).unwrap();
    let twice = told(&["--set", "scheduler=[cfs,cfs]"]);
    assert!(twice.contains("--set scheduler: the list has cfs twice"), "{twice}");
    let period = told(&["--set", "vm.h.cap=0.5", "--set", "vm.h.cap_period=1us"]);
    assert!(period.contains("--set vm.h.cap_period: give 100us to 10s"), "{period}");
}

#[test]
fn a_picture_has_a_line_for_each_program_and_names_its_values() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("plot.svg");
    let mixed = SCENARIO.to_owned() + "[[vm]]\nname = \"b\"\nprogram = \"hog\"\n[[vm]]\nname = \"idle\"\n";
    let output = sim(
        "s.toml",
        &mixed,
        &["--runs", "1", "--plot", file.to_str().unwrap(), "--x", "vm.a.vcpus", "--set", "seed=[1,2]"],
    );
    assert!(output.status.success(), "{output:?}");
    let picture = std::fs::read_to_string(&file).unwrap();
    let names: Vec<&str> = picture.lines().map(str::trim).filter(|line| line.ends_with("seed=1")).collect();
    assert_eq!(names, ["a, seed=1", "b, seed=1"], "the idle VM does nothing that could be drawn");
    assert!(picture.contains("marks per second, mean over 1 to 2 VMs with the same program"), "{picture}");
}

#[test]
fn that_of_lists_the_first_values_make_the_simulated_host_is_told() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s.toml");
    std::fs::write(&path, SCENARIO).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_corefit"))
        .args(["explain", "--machine", &format!("sim:{}", path.display())])
        .output()
        .unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(told.contains("the first of each counts (vm.a.vcpus = 1)"), "{told}");
}

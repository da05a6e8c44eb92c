//! The dependency table of ARCHITECTURE.md, checked against `cargo metadata`.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

/// Each crate of ours and those of ours that it may depend on.
const TABLE: &[(&str, &[&str])] = &[
    ("corefit-core", &[]),
    ("corefit-sim", &["corefit-core"]),
    ("corefit-linux", &["corefit-core"]),
    ("corefit-openmp", &[]),
    ("corefit-lock", &[]),
    ("corefit-lock-preload", &["corefit-lock"]),
    ("corefit", &["corefit-core", "corefit-sim", "corefit-linux", "corefit-lock"]),
];

/// Crates that core, openmp and the locks may use at all.
const CORE_USES: &[&str] = &["serde", "thiserror"];
const OPENMP_USES: &[&str] = &["libc"];
const LOCK_USES: &[&str] = &["libc", "lock_api", "loom", "shuttle"];
const LOCK_PRELOAD_USES: &[&str] = &["libc", "corefit-lock", "loom"];

fn dependencies() -> BTreeMap<String, BTreeSet<String>> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version=1", "--no-deps", "--offline"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let package = |p: &serde_json::Value| {
        let normal = |d: &&serde_json::Value| d["kind"].is_null() || d["kind"] == "build";
        let names = p["dependencies"].as_array().unwrap().iter().filter(normal);
        let names = names.map(|d| d["name"].as_str().unwrap().to_owned()).collect();
        (p["name"].as_str().unwrap().to_owned(), names)
    };
    metadata["packages"].as_array().unwrap().iter().map(package).collect()
}

fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|n| (*n).to_owned()).collect()
}

#[test]
fn crates_depend_on_each_other_as_the_table_says() {
    let dependencies = dependencies();
    let crates: Vec<&str> = TABLE.iter().map(|(name, _)| *name).collect();
    assert_eq!(dependencies.keys().cloned().collect::<BTreeSet<_>>(), set(&crates), "a crate without a row");
    for (name, allowed) in TABLE {
        let ours: BTreeSet<String> = dependencies[*name].intersection(&set(&crates)).cloned().collect();
        assert!(ours.is_subset(&set(allowed)), "{name} depends on {ours:?}");
    }
}

#[test]
fn core_openmp_and_lock_use_next_to_nothing() {
    let dependencies = dependencies();
    assert!(dependencies["corefit-core"].is_subset(&set(CORE_USES)), "{:?}", dependencies["corefit-core"]);
    assert!(
        dependencies["corefit-openmp"].is_subset(&set(OPENMP_USES)),
        "{:?}",
        dependencies["corefit-openmp"]
    );
    assert!(dependencies["corefit-lock"].is_subset(&set(LOCK_USES)), "{:?}", dependencies["corefit-lock"]);
    let preload = &dependencies["corefit-lock-preload"];
    assert!(preload.is_subset(&set(LOCK_PRELOAD_USES)), "{preload:?}");
}

#[test]
fn the_table_stands_in_the_architecture_as_it_is_checked() {
    let text = include_str!("../../../ARCHITECTURE.md");
    for (name, allowed) in TABLE {
        let row = text
            .lines()
            .find(|l| l.starts_with(&format!("| `{name}` |")))
            .unwrap_or_else(|| panic!("ARCHITECTURE.md has no row for {name}"));
        for other in allowed.iter() {
            assert!(row.contains(&format!("`{other}`")), "{row} lacks {other}");
        }
    }
}

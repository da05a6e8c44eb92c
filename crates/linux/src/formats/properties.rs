//! Readers on text that nobody wrote: whatever comes, an answer or an error with a line, and no panic.

use corefit_core::topology::Topology;
use proptest::prelude::*;

use super::{Format, decode, detect};

/// Real and nearly real texts to damage: what we ship as captures.
fn seeds() -> Vec<String> {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../captures");
    let mut texts = Vec::new();
    let mut dirs =
        vec![std::path::PathBuf::from(root).join("topology"), std::path::PathBuf::from(root).join("check")];
    dirs.push(std::path::PathBuf::from(root).join("libvirt"));
    while let Some(dir) = dirs.pop() {
        let mut entries: Vec<_> = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).collect();
        entries.sort();
        for path in entries {
            match path.extension().and_then(|ext| ext.to_str()) {
                _ if path.is_dir() => dirs.push(path),
                Some("xml" | "cfg" | "txt" | "state") if path.metadata().unwrap().len() < 100_000 => {
                    texts.push(std::fs::read_to_string(path).unwrap());
                }
                _ => {}
            }
        }
    }
    assert!(texts.len() > 20, "captures to damage");
    texts
}

/// Reads a text in every way. Errors in lines have lines of the text; what is read holds together.
fn read_all(text: &str, host: &Topology) -> Result<(), TestCaseError> {
    let lines = u32::try_from(text.lines().count()).unwrap().max(1) + 1;
    let in_text = |line: Option<u32>| line.is_none_or(|line| (1..=lines).contains(&line));
    if let Err(error) = detect(text) {
        prop_assert!(in_text(error.line), "{error}");
    }
    for format in Format::ALL {
        match format.topology(text) {
            Ok(found) => {
                prop_assert!(!found.pcpus.is_empty());
                let units = found.units();
                prop_assert_eq!(
                    units.iter().map(corefit_core::CpuSet::len).sum::<usize>(),
                    found.online().len()
                );
                prop_assert_eq!(found.clone().settle(), Ok(found));
            }
            Err(error) => prop_assert!(in_text(error.line), "{format:?}: {error}"),
        }
        match format.vms(text, "file", Some(host)) {
            Ok(found) => {
                prop_assert!(found.vms.iter().all(|vm| in_text(vm.place.line) && vm.vcpus.len() <= 65_536))
            }
            Err(error) => prop_assert!(in_text(error.line), "{format:?}: {error}"),
        }
    }
    Ok(())
}

fn host() -> Topology {
    "2 sockets x 2 nodes x 4 modules x 2 cores".parse().unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_are_answered(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        if let Ok(text) = decode(bytes) {
            read_all(&text, &host())?;
        }
    }

    #[test]
    fn words_of_the_formats_in_any_order_are_answered(
        words in prop::collection::vec(prop::sample::select(WORDS.to_vec()), 0..60)
    ) {
        read_all(&words.concat(), &host())?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// A text cut, doubled in parts, or with a few characters replaced.
    #[test]
    fn damaged_texts_are_answered(
        which in any::<prop::sample::Index>(),
        cuts in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>()), 1..4),
        noise in prop::collection::vec((any::<prop::sample::Index>(), prop::sample::select(WORDS.to_vec())), 0..6),
    ) {
        let seeds = seeds();
        let mut chars: Vec<char> = which.get(&seeds).chars().collect();
        for (from, to) in cuts {
            let (a, b) = (from.index(chars.len() + 1), to.index(chars.len() + 1));
            if a < b && b - a < chars.len() {
                chars.drain(a..b);
            } else if a >= b && a - b < 2000 {
                let again: Vec<char> = chars[b..a].to_vec();
                chars.splice(a..a, again);
            }
        }
        for (at, word) in noise {
            let at = at.index(chars.len() + 1);
            chars.splice(at..at, word.chars());
        }
        read_all(&chars.into_iter().collect::<String>(), &host())?;
    }
}

const WORDS: [&str; 60] = [
    "<domain>",
    "</domain>",
    "<vcpu",
    " cpuset='",
    "0-3",
    "^1",
    "'>",
    "</vcpu>",
    "<name>",
    "a",
    "</name>",
    "<cputune>",
    "<vcpupin vcpu='0' cpuset='",
    "'/>",
    "</cputune>",
    "<topology>",
    "<object type='PU' os_index='",
    "65536",
    "4294967296",
    "-1",
    "0x",
    "0xffffffff",
    ",",
    "f...f",
    "</topology>",
    "<cpu id='",
    "<cell id='0'>",
    "\n",
    " ",
    "=",
    "[",
    "]",
    "\"",
    "name",
    "vcpus",
    "cpus",
    "nodes:",
    "all",
    "cap",
    ";",
    "#",
    "{",
    "}",
    ":",
    "\"entries\"",
    "\"policyName\"",
    "static",
    "cpu_topology :\n",
    "numa_info :\n",
    "0: 0 0 0\n",
    "max_cpu_id : 99999999\n",
    " / ",
    "any cpu",
    "r--",
    "2 sockets",
    " x ",
    "3 cores",
    "2 threads",
    "; offline ",
    "&amp;",
];

//! Recordings are read as they were written, whatever happens to the file in between.

use std::path::{Path, PathBuf};
use std::time::Duration;

use corefit_core::machine::{
    CacheUse, Counters, Group, Machine, MachineError, Origin, Pcpu, Role, Snapshot, VcpuState, VmId, VmState,
    contract,
};
use corefit_core::topology::Cache;
use corefit_core::{CpuId, CpuSet, Quota, Time, Unread, Weight, What};

use super::*;

/// A host with a VM in a slice, at so many seconds.
fn snapshot(second: u64) -> Snapshot {
    let ns = second * 1_000_000_000;
    let pcpu = |id| Pcpu {
        id: CpuId(id),
        online: true,
        node: None,
        package: Some(0),
        siblings: None,
        idle_ns: Some(ns / 2),
        steal_ns: None,
    };
    let quota = |file: &str| Quota { quota_us: Some(5), period_us: 10, burst_us: 0, source: file.into() };
    let vm = |name: &str, role| VmState {
        id: VmId(format!("{name}@7")),
        name: name.into(),
        role,
        parent: Some("/customers".into()),
        weight: Some(Weight(1024.0)),
        quota: Some(quota(&format!("/sys/fs/cgroup{name}/cpu.max"))),
        vcpus: vec![VcpuState { online: true, affinity: "0-1".parse().ok(), ..VcpuState::default() }],
        whole: Some(Counters { run_ns: Some(ns / 3), wait_ns: None, runs: None }),
        cache: Some(CacheUse { occupancy_bytes: Some(3 << 20), traffic_bytes: Some(second * 100_000_000) }),
        ..VmState::default()
    };
    Snapshot {
        at: Time(ns),
        pcpus: vec![pcpu(0), pcpu(1)],
        caches: vec![Cache { level: 3, size_kib: Some(8192), pcpus: CpuSet::first(2) }],
        groups: vec![Group {
            name: "/customers".into(),
            parent: None,
            weight: None,
            quota: None,
            unread: vec![What::Weight],
        }],
        vms: vec![vm("/customers/acme", Role::Vm), vm("/customers/backup", Role::Other)],
        unread: vec![Unread {
            what: What::Weight,
            path: "/sys/fs/cgroup/customers/cpu.weight".into(),
            why: "line 1: \"acme secret\" is no weight".into(),
        }],
        notes: vec!["/customers/acme is new, /customers and (/srv/acme.img) too".into()],
        ..Snapshot::default()
    }
}

/// Removes the file with the directory that it is in.
struct Recorded {
    dir: tempfile::TempDir,
    file: PathBuf,
}

fn file(bytes: &[u8]) -> Recorded {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("x.cfr");
    std::fs::write(&file, bytes).unwrap();
    Recorded { dir, file }
}

fn record(snapshots: u64, finish: bool) -> Vec<u8> {
    let Recorded { dir, file } = file(b"");
    std::fs::remove_file(&file).unwrap();
    let mut recorder = Recorder::create(&file, "test").unwrap();
    (1..=snapshots).for_each(|second| recorder.add(&snapshot(second)).unwrap());
    if finish {
        assert_eq!(recorder.finish().unwrap() as u64, snapshots);
        return std::fs::read(dir.path().join("x.cfr")).unwrap();
    }
    // As a kill leaves it: the encoder writes its end when it is dropped.
    let bytes = std::fs::read(&file).unwrap();
    drop(recorder);
    bytes
}

/// All snapshots that can be played, and how it ends.
fn play(file: &Path) -> (Vec<Snapshot>, Result<(), MachineError>) {
    let mut replay = match Replay::open(file) {
        Ok(replay) => replay,
        Err(error) => return (vec![], Err(error)),
    };
    let mut played = vec![replay.observe().unwrap()];
    loop {
        match replay.pass(Duration::from_nanos(1)) {
            Ok(true) => played.push(replay.observe().unwrap()),
            Ok(false) => return (played, Ok(())),
            Err(error) => {
                assert_eq!(replay.observe().as_ref(), Ok(played.last().unwrap()));
                assert_eq!(replay.pass(Duration::ZERO), Err(error.clone()), "it is said every time");
                return (played, Err(error));
            }
        }
    }
}

fn original(snapshots: u64) -> Vec<Snapshot> {
    (1..=snapshots).map(snapshot).collect()
}

#[test]
fn what_is_written_is_what_is_played() {
    let Recorded { dir: _dir, file } = file(&record(5, true));
    assert_eq!(play(&file), (original(5), Ok(())));
    let mut replay = Replay::open(&file).unwrap();
    assert_eq!(replay.name(), "recording of test");
    assert_eq!(replay.pass(Duration::from_millis(2500)), Ok(true));
    assert_eq!(replay.observe().unwrap(), snapshot(4), "the first that is at least so much later");
    assert_eq!(replay.pass(Duration::from_secs(5)), Ok(false));
    assert_eq!(replay.observe().unwrap(), snapshot(5), "the last one stays");
    contract::observing(&mut Replay::open(&file).unwrap(), Duration::from_secs(1)).unwrap();
}

#[test]
fn a_class_is_measured_in_a_recording_as_it_was_on_the_host() {
    let Recorded { dir: _dir, file } = file(&record(2, true));
    let (played, _) = play(&file);
    let host = corefit_core::machine::estimate(&played[0], &played[1]).unwrap();
    assert_eq!(host.vms[0].class.origin, Origin::Measured, "{}", host.vms[0].class);
    let live = corefit_core::machine::estimate(&snapshot(1), &snapshot(2)).unwrap();
    assert_eq!(host.vms[0].class, live.vms[0].class);
}

#[test]
fn a_killed_recorder_leaves_all_that_it_had_seen() {
    let Recorded { dir: _dir, file } = file(&record(4, false));
    let (played, end) = play(&file);
    assert_eq!(played, original(4));
    let text = end.unwrap_err().to_string();
    assert!(text.contains("x.cfr, line 6: the file ends before the recording does"), "{text}");
    assert!(text.ends_with("4 snapshots before it could be read"), "{text}");
}

#[test]
fn a_file_cut_anywhere_plays_what_came_before_and_says_so() {
    let whole = record(3, true);
    let mut most = 0;
    for length in 0..whole.len() {
        let Recorded { dir: _dir, file } = file(&whole[..length]);
        let (played, end) = play(&file);
        assert!(played == original(3)[..played.len()], "cut at {length}");
        assert!(played.len() >= most, "more of the file, less to play: {length}");
        most = played.len();
        let text = end.expect_err("a cut file is not whole").to_string();
        assert!(text.contains("x.cfr") && !text.contains('\n'), "cut at {length}: {text}");
    }
    assert_eq!(most, 3, "all is there when only the end is cut off");
}

#[test]
fn a_flipped_bit_is_either_found_or_without_effect() {
    let whole = record(2, true);
    let mut found = 0;
    for place in 0..whole.len() {
        for bit in [0, 3, 7] {
            let mut bytes = whole.clone();
            bytes[place] ^= 1 << bit;
            let Recorded { dir: _dir, file } = file(&bytes);
            let (played, end) = play(&file);
            assert!(played == original(2)[..played.len()], "wrong numbers, bit {bit} of {place}");
            match end {
                Err(_) => found += 1,
                Ok(()) => assert_eq!(played.len(), 2, "silence, bit {bit} of {place}"),
            }
        }
    }
    assert!(found > 2 * whole.len(), "{found} of {}", 3 * whole.len());
}

#[test]
fn what_is_no_recording_is_refused_with_its_name_and_a_remedy() {
    use flate2::{Compression, write::GzEncoder};
    let gzip = |text: &str| {
        let mut out = GzEncoder::new(Vec::new(), Compression::fast());
        std::io::Write::write_all(&mut out, text.as_bytes()).unwrap();
        out.finish().unwrap()
    };
    let line = |inner: &str| format!("[{},{inner}]\n", checksum(inner.as_bytes()));
    let newer = line(r#"{"recording":{"format":7,"corefit":"9.9","shape":[]}}"#);
    let header = line(r#"{"recording":{"format":1,"corefit":"0.1.0","machine":"m"}}"#);
    let later = serde_json::to_string(&Line::Snapshot(&snapshot(2))).unwrap();
    let earlier = serde_json::to_string(&Line::Snapshot(&snapshot(1))).unwrap();
    let back = format!("{header}{}{}", line(&later), line(&earlier));
    let twins = earlier.replace("/customers/backup", "/customers/acme");
    let again = format!("{header}{}{}", line(&later), line(&later));
    let follows = "line 4: damaged: after the end of the recording something follows";
    let [few, many] = [&b"\n"[..], &[b'x'; 100]].map(|more| [&record(1, true), more].concat());
    let cases: [(Vec<u8>, &str); 13] = [
        (b"".to_vec(), "x.cfr: is empty; make a recording with `corefit record FILE`"),
        (
            b"about = \"a scenario\"\n".to_vec(),
            "x.cfr: is no recording of corefit; `corefit record FILE` makes one",
        ),
        (gzip("{\"a\": 1}\n"), "x.cfr: is no recording of corefit"),
        (gzip(&newer), "x.cfr: written in format 7 by corefit 9.9; this is corefit "),
        (gzip(&header), "x.cfr, line 2: the file ends before the recording does"),
        (
            gzip(&format!("{header}{}", line(r#"{"end":{"snapshots":0}}"#))),
            "has no snapshot; record for longer",
        ),
        (gzip(&format!("{header}{}", line(r#"{"end":{"snapshots":3}}"#))), "had 3 snapshots, 0 are here"),
        (gzip(&format!("{header}{}", line(&twins))), "line 2: damaged: two groups or VMs are called"),
        (gzip(&format!("{header}{}", line("{}"))), "line 2: damaged: "),
        (few, follows),
        (many, follows),
        (gzip(&again), "line 3: damaged: it is not later than the line before it"),
        (gzip(&back), "line 3: damaged: it is not later than the line before it"),
    ];
    for (bytes, expected) in cases {
        let Recorded { dir: _dir, file } = file(&bytes);
        let text = play(&file).1.unwrap_err().to_string();
        assert!(text.contains(expected) && !text.contains('\n'), "{text}, not {expected}");
    }
    let none = Replay::open(Path::new("/no/such/x.cfr")).map(drop).unwrap_err();
    let text = "/no/such/x.cfr: no such file; `corefit record /no/such/x.cfr --for 60s` would make it";
    assert_eq!(none, MachineError::Gone(text.into()));
}

#[test]
fn a_recording_is_never_written_over() {
    let Recorded { dir: _dir, file } = file(b"precious");
    let error = Recorder::create(&file, "m").map(drop).unwrap_err().to_string();
    assert!(error.contains("is there already"), "{error}");
    assert_eq!(std::fs::read(&file).unwrap(), b"precious");
}

#[test]
fn without_names_nothing_tells_whose_machine_it_was() {
    let mut names = Names::default();
    let (mut first, mut second) = (snapshot(1), snapshot(2));
    first.vms[0].unclear = Some("its owner's metadata say secret=\"1\": set acme".into());
    names.replace(&mut first);
    names.replace(&mut second);
    let text = serde_json::to_string(&first).unwrap();
    for word in ["acme", "customers", "backup", "secret", "srv", "sys"] {
        assert!(!text.contains(word), "{word} in {text}");
    }
    let [vm, other] = &first.vms[..] else { panic!("{first:?}") };
    assert_eq!((vm.name.as_str(), other.name.as_str()), ("vm1", "other1"));
    assert_eq!((vm.parent.as_deref(), first.groups[0].name.as_str()), (Some("group1"), "group1"));
    assert_eq!(first.notes, ["vm1 is new, group1 and (path4) too"]);
    assert_eq!(first.unread[0].why, "line 1: \"…\" is no weight");
    assert_eq!((&first.vms[0].name, &first.vms[0].id), (&second.vms[0].name, &second.vms[0].id));
    contract::snapshot(&first).unwrap();
    let host = corefit_core::machine::estimate(&first, &second).unwrap();
    let open = corefit_core::machine::estimate(&snapshot(1), &snapshot(2)).unwrap();
    assert_eq!(host.vms[0].entitled, open.vms[0].entitled, "numbers stay as they are");
}

#[test]
fn what_no_host_and_no_scheduler_has_is_damage_with_its_line() {
    type Damage = fn(&mut VmState);
    let damages: [(Damage, &str); 6] = [
        (|vm| vm.weight = Some(Weight(0.0)), "/customers/acme: weight 0, which no scheduler has"),
        (|vm| vm.quota.iter_mut().for_each(|quota| quota.period_us = 0), "a quota with a period of 0"),
        (|vm| vm.quota.iter_mut().for_each(|quota| quota.quota_us = Some(0)), "a quota of 0"),
        (|vm| vm.vcpus[0].weight = Some(Weight(f64::MAX)), "/customers/acme, vCPU 0: weight "),
        (|vm| vm.vcpus[0].affinity = "1-4,7".parse().ok(), "may use pCPUs that do not exist: 2-4,7;"),
        (|vm| vm.id = VmId("/customers/backup@7".into()), "has its id \"/customers/backup@7\";"),
    ];
    for (damage, what) in damages {
        let Recorded { dir: _dir, file } = file(b"");
        std::fs::remove_file(&file).unwrap();
        let mut recorder = Recorder::create(&file, "test").unwrap();
        let mut bad = snapshot(2);
        damage(&mut bad.vms[0]);
        recorder.add(&snapshot(1)).unwrap();
        recorder.add(&bad).unwrap();
        recorder.finish().unwrap();
        let (played, end) = play(&file);
        let text = end.unwrap_err().to_string();
        assert_eq!(played.len(), 1);
        assert!(text.starts_with(&format!("{}, line 3: damaged: ", file.display())), "{text}");
        assert!(text.contains(what), "{text}");
    }
}

//! The whole system on a real VM (`scripts/testvm`), in short: the daemon sizes a crowded VM and tells its guest what it gets, and
//! `corefit run` in there follows. How fast that is, to a few percent and for other programs, is measured by `make manage-vms`.

#[path = "../../linux/tests/vm_support/mod.rs"]
mod vm_support;

#[expect(dead_code, reason = "the rest is for other ends of a daemon")]
mod manage_support;

use manage_support::{Daemon, Guest, until};
use vm_support::{Vms, or_skipped};

const EIGHT: &str = "env OMP_NUM_THREADS=8";
/// Unmanaged it takes some 50 times as long as with matching threads (README); emulation and neighbours are good for twice.
const CURED: f64 = 5.0;
const NEAR: f64 = 2.5;

#[test]
fn in_a_crowded_vm_a_program_is_about_as_fast_as_with_matching_threads_and_the_guest_knows_what_it_gets() {
    let dir = tempfile::tempdir().unwrap();
    let files = manage_support::programs(dir.path());
    let mut options = vec!["--name", "whole", "--vcpus", "8", "--memory", "512", "--cpuset", "0-1"];
    options.extend(files.iter().flat_map(|file| ["--program", file]));
    let Some(vms) = or_skipped("the whole on a real VM", Vms::up(1, &options)) else { return };
    let guest = Guest::new(&vms, &vms.names[0]);
    let mean =
        |times: u32, run: &str| guest.rounds("ua", &format!("T*{times}"), 0.0, run)[0] / f64::from(times);

    let unmanaged = guest.time("ua", "T*2", "120", EIGHT) / 2.0;
    guest.set_online(2);
    let matching = mean(150, "env OMP_NUM_THREADS=2");
    guest.set_online(8);

    let config = "metrics = \"off\"\n[policy]\nsize = \"corefit\"\n";
    let mut daemon = Daemon::start(&vms, dir.path(), config, &["--apply"], None);
    // Two pCPUs, less what others take.
    let cpus = || -> serde_json::Value {
        let text = vms.guest(guest.name, "/workloads/corefit cpus --json");
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    };
    let told = |report: &serde_json::Value| {
        let limits = report["limits"].as_array().unwrap();
        limits.iter().find(|limit| limit["kind"] == "told").and_then(|limit| limit["cpus"].as_f64())
    };
    until("the guest knows what it gets", || told(&cpus()).is_some_and(|cpus| cpus > 0.0 && cpus <= 2.0));
    let ours = format!("{EIGHT} OMP_DYNAMIC=true /workloads/corefit run --");
    // It finds its number during the first one.
    let [_, whole] = [600, 300].map(|times| mean(times, &ours));
    assert!(daemon.log().contains("lever=\"online vCPUs\""), "{}", daemon.log());
    assert!(daemon.end().success(), "{}", daemon.log());
    assert!(told(&cpus()).is_none(), "what it was told is taken back");
    assert_eq!(guest.online(), "0-7");
    // This machine's pace may change twofold for minutes: the slower one counts.
    guest.set_online(2);
    let matching = matching.max(mean(150, "env OMP_NUM_THREADS=2"));

    eprintln!("ua, seconds: unmanaged {unmanaged:.4}, 2 threads on 2 vCPUs {matching:.4}, whole {whole:.4}");
    assert!(whole * CURED < unmanaged, "{whole:.4} s, unmanaged {unmanaged:.4}");
    assert!(whole < matching * NEAR, "{whole:.4} s, with matching threads {matching:.4}");
}

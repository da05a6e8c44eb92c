//! A conflict of vCPU affinity and node affinity on a host of two nodes, found and corrected through a live libvirtd:
//! `corefit check`, `topology --place`, `plan --place` and `manage --apply`, read back by virsh.
//!
//! Our machines have one node, where no such conflict can be; so this libvirtd shows the host of libvirt's test driver
//! (two nodes of eight pCPUs). The daemon, its protocol and what is set are real; the VM runs nothing, so who waits is
//! not measured here (`place_vms/` does).

#[path = "../../linux/tests/vm_support/mod.rs"]
mod vm_support;

#[expect(dead_code, reason = "the rest is for tests with guests")]
mod manage_support;

use std::collections::BTreeSet;
use std::io::Write;
use std::process::{Child, Command, Stdio};

use manage_support::{Daemon, corefit, until};
use serde_json::Value;
use vm_support::{Vms, or_skipped};

const CONFIG: &str = "metrics = \"off\"\ntell = false\n\
    [policy]\ninterval_ms = 500\ndwell_ms = 1000\nsize = \"none\"\nplace = \"corefit\"\n";
/// Its memory is on node 1, two of its vCPUs are on one pCPU of node 0, the others beside them.
const BEFORE: [&str; 4] = ["0", "1", "0", "3"];

fn definition(pins: [&str; 4]) -> String {
    let pins = (0..).zip(pins).map(|(vcpu, pin)| format!("<vcpupin vcpu='{vcpu}' cpuset='{pin}'/>"));
    let cell = |id, cpus| format!("<cell id='{id}' cpus='{cpus}' memory='524288' unit='KiB'/>");
    format!(
        "<domain type='test'><name>conflict</name><memory unit='KiB'>1048576</memory><vcpu placement='static'>4</vcpu>\
         <cputune>{}</cputune><numatune><memory mode='strict' nodeset='1'/></numatune><os><type>hvm</type></os>\
         <cpu><topology sockets='2' dies='1' cores='2' threads='1'/><numa>{}{}</numa></cpu></domain>",
        pins.collect::<String>(),
        cell(0, "0-1"),
        cell(1, "2-3")
    )
}

/// A libvirtd of its own; what its test driver holds lasts while somebody is connected.
struct Host {
    /// Stays connected.
    holder: Child,
    /// None but what the test driver shows; ends the libvirtd before its directory goes.
    vms: Vms,
    dir: tempfile::TempDir,
}

impl Host {
    /// With a VM with these pins.
    fn up(pins: [&str; 4]) -> Result<Host, String> {
        let dir = tempfile::Builder::new().prefix("cn").tempdir_in("/tmp").unwrap();
        // No VM, but the libvirtd that VMs would be under.
        let mut vms = Vms::daemon(&dir.path().join("s"))?;
        let socket = vms.uri.split_once("socket=").unwrap().1;
        vms.uri = format!("test+unix:///default?socket={socket}");
        let mut virsh = Command::new("virsh");
        virsh.args(["-c", &vms.uri]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut holder = virsh.spawn().unwrap();
        let file = dir.path().join("conflict.xml");
        std::fs::write(&file, definition(pins)).unwrap();
        // The VM that the test driver begins with is not ours.
        let commands = format!("create {}\ndestroy test\n", file.display());
        holder.stdin.as_mut().unwrap().write_all(commands.as_bytes()).unwrap();
        let host = Host { holder, vms, dir };
        until("the VM is there, and no other", || host.vms.say(&["list", "--name"]).trim() == "conflict");
        Ok(host)
    }

    /// The affinity of each vCPU, as its definition has it. (`virsh vcpupin` takes the test driver's host for one of eight
    /// pCPUs, whatever its capabilities say.)
    fn pins(&self) -> Vec<String> {
        let definition = self.vms.say(&["dumpxml", "conflict"]);
        let pins = definition.lines().filter(|line| line.contains("<vcpupin "));
        pins.map(|line| line.split('\'').nth(3).unwrap_or("").to_owned()).collect()
    }

    fn machine(&self) -> String {
        format!("libvirt:{}", self.vms.uri)
    }

    fn json(&self, args: &[&str]) -> Value {
        let output = corefit(&[args, &["--json", "--machine", &self.machine()]].concat());
        assert!(matches!(output.status.code(), Some(0 | 1)), "{args:?}: {output:?}");
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{args:?}: {error}: {output:?}"))
    }

    /// The rules of `corefit check` that find something.
    fn found(&self) -> BTreeSet<String> {
        let found = self.json(&["check"]);
        let findings = found["findings"].as_array().unwrap().iter();
        findings.map(|finding| finding["rule"].as_str().unwrap().to_owned()).collect()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        drop(self.holder.stdin.take());
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

/// Its pins are of another host: one vCPU has none left, one two of three, and one two others.
const ELSEWHERE: [&str; 4] = ["0", "20", "14-16", "3-4"];

/// Each vCPU has a pCPU of its own on the node of the memory.
fn corrected(pins: &[String]) -> bool {
    let pcpus: BTreeSet<u32> = pins.iter().filter_map(|pin| pin.parse().ok()).collect();
    pcpus.len() == BEFORE.len() && pcpus.iter().all(|pcpu| (8..16).contains(pcpu))
}

#[test]
fn vcpus_that_libvirtd_has_away_from_their_memory_are_found_and_brought_to_it() {
    let Some(host) = or_skipped("correcting node affinity", Host::up(BEFORE)) else { return };
    assert_eq!(host.pins(), BEFORE);
    let conflict = BTreeSet::from(["far-memory".to_owned(), "stacked".to_owned()]);
    assert_eq!(host.found(), conflict);

    // What `plan --place` would do: each vCPU to node 1, and the memory, which cannot move, stays.
    let plan = ["plan", "--place", "corefit", "--size", "none"];
    let planned = host.json(&plan);
    let actions = planned["actions"].as_array().unwrap();
    let to: Vec<String> = actions.iter().map(|action| action["to"].to_string()).collect();
    assert_eq!(to.len(), BEFORE.len(), "{planned}");
    assert_eq!(host.pins(), BEFORE, "a plan changes nothing");

    // So does what `topology --place` prints. (`place_vms/printed.rs` runs such a command; virsh refuses pCPUs from 8 on here.)
    let placed = host.json(&["topology", "--place", "corefit"]);
    let commands = placed["placement"]["vms"][0]["commands"].as_array().unwrap();
    let [command] = commands.as_slice() else { panic!("{placed}") };
    // As in `for p in 0:8 1:9 …; do virsh vcpupin …`.
    let list = command.as_str().unwrap().split(';').next().unwrap_or("");
    let pins = list.split_whitespace().filter_map(|pair| Some(pair.split_once(':')?.1.to_owned()));
    assert!(corrected(&pins.collect::<Vec<_>>()), "{command}");

    // The daemon does it and puts back what it found.
    let mut daemon = Daemon::on(&host.machine(), host.dir.path(), CONFIG, &["--apply"], None);
    until("the vCPUs are beside their memory", || corrected(&host.pins()));
    assert_eq!(host.found(), BTreeSet::new(), "{}", daemon.log());
    assert!(daemon.end().success(), "{}", daemon.log());
    assert_eq!(host.pins(), BEFORE, "{}", daemon.log());
}

#[test]
fn who_is_pinned_to_what_this_host_does_not_have_is_named_once_by_whoever_changes_nothing_of_it() {
    let Some(host) = or_skipped("pins of another host", Host::up(ELSEWHERE)) else { return };
    assert!(host.found().contains("absent-pcpu"));
    let note = "conflict: vCPUs 1-2 are pinned to pCPUs 16,20, which this host does not have (it has 0-15), and vCPU 1 to none that is online: \
                corefit check says what to pin them to, virsh vcpupin does that";
    let planned = host.json(&["plan", "--size", "none"]);
    let notes = planned["notes"].as_array().unwrap();
    assert_eq!(notes.iter().filter(|said| **said == note).count(), 1, "{planned}");
    // With the policy that there is without a configuration, some looks long.
    let config = "metrics = \"off\"\n[policy]\ninterval_ms = 200\n";
    for apply in ["--no-apply", "--apply"] {
        let mut daemon = Daemon::on(&host.machine(), host.dir.path(), config, &[apply], None);
        let state = host.dir.path().join("state");
        let status = || {
            let status = corefit(&["status", "--json", "--state", state.to_str().unwrap()]);
            serde_json::from_slice::<Value>(&status.stdout).unwrap_or_default()
        };
        let shows = || status()["notes"].as_array().is_some_and(|notes| notes.contains(&note.into()));
        until("it is in the status", shows);
        let steps = || status()["steps"].as_u64().unwrap_or(0);
        let so_far = steps();
        until("some looks pass", || steps() > so_far + 5);
        assert!(shows(), "{}", daemon.log());
        if apply == "--apply" {
            // (Its virsh knows no pCPUs from 8 on.)
            for vcpu in ["1", "2"] {
                host.vms.virsh(&["vcpupin", "conflict", vcpu, vcpu]);
            }
            until("it is gone with the pins", || !shows());
        }
        assert!(daemon.end().success(), "{}", daemon.log());
        assert_eq!(daemon.log().matches("which this host does not have").count(), 1, "{}", daemon.log());
    }
    assert_eq!(host.pins()[1..3], ["1", "2"], "they are nobody else's");
}

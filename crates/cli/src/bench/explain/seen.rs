//! Hosts of 100 VMs with 1,000 vCPUs to look at: written down as files, as running control groups, and
//! as domains of libvirt's test driver.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::bench::arena::{Arena, Neighbour};

/// VMs of each host.
pub(super) const VMS: usize = 100;
/// vCPUs, or threads, of each VM.
pub(super) const VCPUS: usize = 10;

/// Files of `/proc` and `/sys` that show a host whose VMs are control groups (v2), each with a thread for
/// each vCPU. All threads do something between any two looks.
pub(super) struct Written {
    dir: PathBuf,
}

impl Written {
    pub(super) fn new(dir: PathBuf) -> Result<Written> {
        let written = Written { dir };
        written.put("proc/self/mountinfo", "25 22 0:22 / /sys/fs/cgroup rw - cgroup2 none rw\n")?;
        written.put("proc/sys/kernel/sched_autogroup_enabled", "0\n")?;
        written.put("sys/devices/system/cpu/online", "0-63\n")?;
        written.put("sys/devices/system/cpu/present", "0-63\n")?;
        written.put("sys/fs/cgroup/cgroup.threads", "")?;
        written.put("sys/fs/cgroup/vms/cgroup.threads", "")?;
        written.put("sys/fs/cgroup/vms/cpu.weight", "100\n")?;
        for vm in 0..VMS {
            let group = format!("sys/fs/cgroup/vms/vm{vm}");
            let threads: String = (0..VCPUS).map(|vcpu| format!("{}\n", tid(vm, vcpu))).collect();
            for (file, text) in [
                ("cgroup.threads", threads.as_str()),
                ("cgroup.events", "populated 1\nfrozen 0\n"),
                ("cpu.weight", "100\n"),
                ("cpu.max", "max 100000\n"),
                ("cpuset.cpus.effective", "0-63\n"),
            ] {
                written.put(&format!("{group}/{file}"), text)?;
            }
            for vcpu in 0..VCPUS {
                let tid = tid(vm, vcpu);
                let numbers = "0 ".repeat(34);
                written.put(&format!("proc/{tid}/stat"), &format!("{tid} (vcpu) R {numbers}17 1 0 0 0\n"))?;
                written.put(&format!("proc/{tid}/status"), "Name:\tvcpu\nCpus_allowed_list:\t0-63\n")?;
            }
        }
        written.advance(1)?;
        Ok(written)
    }

    pub(super) fn root(&self) -> &Path {
        &self.dir
    }

    /// Shows the host after so many seconds: each VM used a quarter of its vCPUs and waited as long.
    pub(super) fn advance(&self, seconds: usize) -> Result<()> {
        self.put("proc/uptime", &format!("{}.00 0.00\n", 1000 + seconds))?;
        let ticks = 100 * seconds;
        let cpus: String = (0..64).map(|cpu| format!("cpu{cpu} {ticks} 0 0 {ticks} 0 0 0 0 0 0\n")).collect();
        self.put("proc/stat", &cpus)?;
        let usage = |us: usize| format!("usage_usec {us}\nuser_usec {us}\nsystem_usec 0\n");
        self.put("sys/fs/cgroup/cpu.stat", &usage(VMS * VCPUS * 250_000 * seconds))?;
        self.put("sys/fs/cgroup/vms/cpu.stat", &usage(VMS * VCPUS * 250_000 * seconds))?;
        let done = format!("{0} {0} {1}\n", 250_000_000 * seconds, 100 * seconds);
        for vm in 0..VMS {
            self.put(&format!("sys/fs/cgroup/vms/vm{vm}/cpu.stat"), &usage(VCPUS * 250_000 * seconds))?;
            for vcpu in 0..VCPUS {
                let tid = tid(vm, vcpu);
                self.put(&format!("proc/{tid}/task/{tid}/schedstat"), &done)?;
            }
        }
        Ok(())
    }

    fn put(&self, path: &str, text: &str) -> Result<()> {
        let path = self.dir.join(path);
        let dir = path.parent().context("no directory")?;
        fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
    }
}

fn tid(vm: usize, vcpu: usize) -> usize {
    1000 + VCPUS * vm + vcpu
}

/// Running control groups; threads that wake up now and then are their vCPUs. They end when it is dropped.
pub(super) struct Running {
    pub(super) pattern: String,
    _threads: Vec<Neighbour>,
}

impl Running {
    /// # Errors
    /// Where control groups may not be made.
    pub(super) fn start(arena: &Arena) -> Result<Running> {
        let mut pattern = String::new();
        let mut threads = Vec::new();
        for vm in 0..VMS {
            let dir = arena.nest(&format!("vm{vm}"))?;
            threads.push(arena.sleepers(&dir, VCPUS)?);
            pattern = dir.with_file_name("vm*").display().to_string();
        }
        Ok(Running { pattern, _threads: threads })
    }
}

/// A host for libvirt's test driver, in a file; its URI.
pub(super) fn domains(dir: &Path) -> Result<String> {
    let path = dir.join("host.xml");
    let domain = |vm: usize| {
        format!(
            "<domain type='test'><name>vm{vm}</name><memory>1024</memory>\
             <vcpu cpuset='0-15'>{VCPUS}</vcpu><os><type>hvm</type></os></domain>\n"
        )
    };
    let domains: String = (0..VMS).map(domain).collect();
    let cpu = "<cpu><mhz>2000</mhz><model>i686</model><active>16</active><nodes>1</nodes><sockets>2</sockets>\
               <cores>8</cores><threads>1</threads></cpu><memory>16777216</memory>";
    fs::write(&path, format!("<node>{cpu}\n{domains}</node>\n"))
        .with_context(|| format!("cannot write {}", path.display()))?;
    Ok(format!("test://{}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use corefit_core::machine::{Machine, Role, estimate};
    use corefit_linux::Root;
    use corefit_linux::host::Cgroups;

    #[test]
    fn the_written_host_shows_all_vcpus_and_what_they_did() {
        let dir = tempfile::tempdir().unwrap();
        let written = Written::new(dir.path().into()).unwrap();
        let mut machine = Cgroups::open(Root::at(written.root()), "/vms/vm*".parse().unwrap()).unwrap();
        let before = machine.observe().unwrap();
        written.advance(2).unwrap();
        let after = machine.observe().unwrap();
        let host = estimate(&before, &after).unwrap();
        assert_eq!(host.unread, []);
        let vms: Vec<_> = host.vms.iter().filter(|vm| vm.seen.role == Role::Vm).collect();
        assert_eq!(vms.len(), VMS);
        for vm in vms {
            assert_eq!(vm.activity.used.map(|used| used.0), Some(2.5));
            assert_eq!(vm.activity.waiting.map(|waiting| waiting.0), Some(2.5));
        }
    }
}

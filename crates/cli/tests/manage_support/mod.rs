//! Daemons and guests for the tests of `corefit manage`.

#[path = "../../../linux/tests/build_support/mod.rs"]
mod build_support;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use corefit_core::machine::{Act, Lever, MachineError, Value, VmId};

use super::vm_support::{Vms, stripped};

/// A crowded machine, and guests whose instructions are emulated: who does not answer is asked again after 10, 20, 40 and 80 s.
pub(crate) const PATIENCE: Duration = Duration::from_secs(300);

/// Waits until something is so.
pub(crate) fn until(what: &str, is: impl FnMut() -> bool) {
    assert!(comes(PATIENCE, is), "not within {PATIENCE:?}: {what}");
}

/// Whether something is so before patience ends.
pub(crate) fn comes(patience: Duration, mut is: impl FnMut() -> bool) -> bool {
    let begun = Instant::now();
    while !is() {
        if begun.elapsed() >= patience {
            return false;
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    true
}

/// What a setting is now; a libvirtd that is busy with others is asked again.
pub(crate) fn current(machine: &mut dyn Act, vm: &VmId, lever: Lever) -> Value {
    let mut answer = machine.current(vm, lever);
    let asks = |answer: &Result<_, _>| matches!(answer, Err(MachineError::Gone(_)));
    comes(PATIENCE, || {
        if asks(&answer) {
            machine.ask_again();
            answer = machine.current(vm, lever);
        }
        !asks(&answer)
    });
    answer.unwrap_or_else(|error| panic!("{lever:?} of {}: {error}", vm.0))
}

pub(crate) fn corefit(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_corefit")).args(args).output().unwrap()
}

/// The command and its library, without what is for debuggers: guests unpack slowly.
pub(crate) fn programs(dir: &Path) -> Vec<String> {
    let built = build_support::libraries();
    let strip = |name: &str| stripped(&built.join(name), dir).to_str().unwrap().to_owned();
    ["corefit", "libcorefit_omp.so"].map(strip).into()
}

/// A `corefit manage`, which ends with this value as by kill -9.
pub(crate) struct Daemon {
    child: Child,
    log: PathBuf,
    config: PathBuf,
}

impl Daemon {
    /// Starts one for VMs of libvirt.
    pub(crate) fn start(vms: &Vms, dir: &Path, config: &str, args: &[&str], kill: Option<&str>) -> Daemon {
        Daemon::on(&format!("libvirt:{}", vms.uri), dir, config, args, kill)
    }

    /// Starts one with its state in `dir/state`; `kill` is a place where it dies as by kill -9, or stops.
    pub(crate) fn on(machine: &str, dir: &Path, config: &str, args: &[&str], kill: Option<&str>) -> Daemon {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let (log, file) = (dir.join(format!("log-{number}")), dir.join("corefit.toml"));
        std::fs::write(&file, config).unwrap();
        // It ends, and puts everything back, whatever ends the test.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "TERM", env!("CARGO_BIN_EXE_corefit")]);
        command.args(["manage", "--machine", machine]).args(args);
        command.arg("--config").arg(&file).arg("--state").arg(dir.join("state"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(std::fs::File::create(&log).unwrap());
        if let Some(place) = kill {
            command.env("COREFIT_TEST_KILL_AT", place);
        }
        Daemon { child: command.spawn().unwrap(), log, config: file }
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Another configuration, and the signal to read it.
    pub(crate) fn configure(&self, text: &str) {
        std::fs::write(&self.config, text).unwrap();
        self.signal(rustix::process::Signal::HUP);
    }

    /// Ends it as an init system does.
    pub(crate) fn end(&mut self) -> ExitStatus {
        self.signal(rustix::process::Signal::TERM);
        self.wait()
    }

    pub(crate) fn wait(&mut self) -> ExitStatus {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(begun.elapsed() < PATIENCE, "it does not end: {}", self.log());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Waits until it has stopped itself, at a place that is named with `:stop`.
    pub(crate) fn stops(&self) {
        let status = format!("/proc/{}/status", self.child.id());
        let stopped = || std::fs::read_to_string(&status).is_ok_and(|text| text.contains("State:\tT"));
        assert!(comes(PATIENCE, stopped), "it does not stop: {}", self.log());
    }

    pub(crate) fn go_on(&self) {
        self.signal(rustix::process::Signal::CONT);
    }

    fn signal(&self, signal: rustix::process::Signal) {
        rustix::process::kill_process(rustix::process::Pid::from_child(&self.child), signal).unwrap();
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            println!("its log:\n{}", self.log());
        }
    }
}

/// A VM, from inside.
#[derive(Clone, Copy)]
pub(crate) struct Guest<'a> {
    vms: &'a Vms,
    pub(crate) name: &'a str,
}

impl<'a> Guest<'a> {
    pub(crate) fn new(vms: &'a Vms, name: &'a str) -> Guest<'a> {
        Guest { vms, name }
    }

    /// Numbers of the CPUs that it uses.
    pub(crate) fn online(&self) -> String {
        self.vms.guest(self.name, "cat /sys/devices/system/cpu/online").trim().into()
    }

    pub(crate) fn set_online(&self, count: u32) {
        let script = format!(
            "for n in 1 2 3 4 5 6 7; do v=1; [ $n -lt {count} ] || v=0; f=/sys/devices/system/cpu/cpu$n/online; \
             [ ! -e $f ] || echo $v >$f; done"
        );
        self.vms.guest(self.name, &script);
    }

    /// What it was told.
    pub(crate) fn told(&self) -> Option<String> {
        // (An empty file is not none.)
        let text = self.vms.guest(self.name, "cat /run/corefit-available 2>/dev/null && echo there || true");
        text.strip_suffix("there\n").map(str::to_owned)
    }

    /// Every setting that the host has of it: of libvirt, of its control groups, and where its vCPUs may run. (Once somebody set
    /// metadata, a weight or a pin, its definition has a line of these for good; what weights and pins are is said beside that. A libvirtd that
    /// started again has another line of its label.)
    pub(crate) fn settings(&self) -> Vec<String> {
        const SCRIPT: &str = r#"
            virsh --quiet -c "$0" "dumpxml --migratable $1; schedinfo $1; vcpupin $1 --live; emulatorpin $1 --live" |
                grep -v -e '<metadata/>' -e '<seclabel ' -e '<shares>' -e '<vcpupin ' -e 'cputune>'
            pid=$(pgrep -f "guest=$1,") || exit
            for thread in $(grep -l '^CPU ' /proc/$pid/task/*/comm); do
                grep Cpus_allowed_list "${thread%comm}status"
            done
            sed -n 's,^[^/]*\(/.*\)/emulator$,\1,p' /proc/$pid/cgroup | sort -u | while read -r group; do
                for dir in /sys/fs/cgroup/*"$group" /sys/fs/cgroup"$group"; do
                    grep -rs . "$dir" --include=cpu.shares --include=cpu.cfs_* --include=cpu.weight --include=cpu.max* \
                        --include=cpuset.cpus --include=cpuset.mems | sort
                done
            done"#;
        let output = Command::new("sh").args(["-c", SCRIPT, &self.vms.uri, self.name]).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let seen = ["</domain>", "cpu_shares", "Cpus_allowed_list", "/vcpu0/cpu"];
        assert!(seen.iter().all(|part| text.contains(part)), "{}: {output:?}", self.name);
        text.lines().map(ToOwned::to_owned).collect()
    }

    /// Has all of them as they were.
    pub(crate) fn has(&self, before: &[String], what: &str) {
        let now = self.settings();
        let differs = |all: &[String], of: &[String]| -> Vec<String> {
            all.iter().filter(|line| !of.contains(line)).cloned().collect()
        };
        assert!(now == before, "{what}: {:?} was {:?}", differs(&now, before), differs(before, &now));
    }

    /// Runs a program again and again until that many seconds are over, with its results verified: what each took, by
    /// the guest's clock.
    pub(crate) fn rounds(&self, program: &str, size: &str, seconds: f64, run: &str) -> Vec<f64> {
        let script = format!(
            "end=$(( $(date +%s) + {seconds:.0} )); while {run} /workloads/{program} '{size}' 2>/tmp/err || \
             echo failed: $? $(cat /tmp/err); [ $(date +%s) -lt $end ]; do :; done"
        );
        let text = self.vms.guest(self.name, &script);
        let times: Vec<f64> = text
            .lines()
            .filter_map(|line| line.strip_prefix("time_s: "))
            .map(|time| time.trim().parse().unwrap())
            .collect();
        let verified = text.lines().filter(|line| line.starts_with("verified: yes")).count();
        assert!(
            !times.is_empty() && verified == times.len() && !text.contains("failed: "),
            "{program}: {text}"
        );
        times
    }

    /// Runs a program with its result verified; seconds, or the limit if it was cut off.
    pub(crate) fn time(&self, program: &str, size: &str, limit: &str, run: &str) -> f64 {
        let script = format!(
            "read -r begin _ </proc/uptime; \
             timeout -s KILL {limit} {run} /workloads/{program} {size} 2>/tmp/err || echo ended: $? $(cat /tmp/err); \
             read -r end _ </proc/uptime; echo uptime: $begin $end"
        );
        let text = self.vms.guest(self.name, &script);
        let Some(time) = text.lines().find_map(|line| line.strip_prefix("time_s: ")) else {
            let uptime = text.lines().find_map(|line| line.strip_prefix("uptime: ")).unwrap_or_default();
            let [begin, end] = uptime.split(' ').map(|s| s.parse().unwrap()).collect::<Vec<f64>>()[..] else {
                panic!("{program}: {text}");
            };
            let limit: f64 = limit.parse().unwrap();
            // By signal 9, and not by somebody else, as when memory is full. (The guest's clock shows 10 ms.)
            assert!(text.contains("ended: 137") && end - begin >= limit - 0.1, "{program}: {text}");
            return limit;
        };
        assert!(text.contains("verified: yes"), "{program}: {text}");
        time.trim().parse().unwrap()
    }
}

//! Real VMs for tests: `scripts/testvm`.
#![allow(dead_code, reason = "every test file uses a part of this")]

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use corefit_core::machine::{Act, HostEstimate, Snapshot};
use corefit_linux::libvirt::{Options, open};

/// Longest that a look may take: longer than a libvirtd gets no CPU on a busy machine.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(5);

/// VMs that end with this process.
pub(crate) struct Vms {
    pub(crate) uri: String,
    pub(crate) names: Vec<String>,
    /// Of the host that they are on, if it is another than this checkout's own.
    state: Option<PathBuf>,
}

/// A program without what is for debuggers, since guests unpack slowly.
pub(crate) fn stripped(program: &Path, dir: &Path) -> PathBuf {
    let to = dir.join(program.file_name().unwrap());
    let done = Command::new("strip").args(["--strip-debug", "-o"]).args([&to, program]).status();
    assert!(done.is_ok_and(|status| status.success()), "cannot strip {}", program.display());
    to
}

/// What there is to test with; where there is nothing, says why on behalf of `test`.
pub(crate) fn or_skipped<T, W: std::fmt::Display>(test: &str, there: Result<T, W>) -> Option<T> {
    // Past the capture of the test's output.
    there.inspect_err(|why| _ = writeln!(std::io::stderr(), "{test}: {why}")).ok()
}

/// Calls the script.
pub(crate) fn testvm(arguments: &[&str]) -> Output {
    testvm_of(None, arguments)
}

/// The same, for the host whose state is there.
fn testvm_of(state: Option<&Path>, arguments: &[&str]) -> Output {
    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../scripts/testvm");
    let state = state.map(|state| ("TESTVM_STATE", state));
    Command::new(script).args(arguments).envs(state).output().unwrap()
}

/// Whether libvirtd was asked for what a look shows.
pub(crate) fn is_of_now(snapshot: &Snapshot) -> bool {
    !snapshot.notes.iter().any(|note| note.contains("is what it said before that"))
}

/// pCPUs of this machine that a hypervisor took.
pub(crate) fn stolen(seen: &HostEstimate) -> f64 {
    seen.pcpus.iter().filter_map(|pcpu| pcpu.steal).map(|cpus| cpus.0).sum()
}

impl Vms {
    /// Starts so many; `Err` says why that is impossible here.
    pub(crate) fn up(count: usize, options: &[&str]) -> Result<Vms, String> {
        Vms::up_on(None, count, options)
    }

    /// The same on a host of its own, whose state is in `state`: a short path, below which sockets are.
    pub(crate) fn up_on(state: Option<&Path>, count: usize, options: &[&str]) -> Result<Vms, String> {
        let (owner, count) = (std::process::id().to_string(), count.to_string());
        let arguments = [&["up", &count, "--owner", &owner][..], options].concat();
        let mut output = testvm_of(state, &arguments);
        let late = ["did not answer within", "did not boot within"];
        if late.iter().any(|late| String::from_utf8_lossy(&output.stderr).contains(late)) {
            // Seen twice, once beside four compilers, once without a line of its kernel: a guest that was not up after two
            // minutes. `testvm` took it away.
            _ = writeln!(std::io::stderr(), "testvm {arguments:?}: not up in time, once more");
            output = testvm_of(state, &arguments);
        }
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        match output.status.code() {
            Some(0) => {}
            Some(77) => return Err(text.trim().into()),
            _ => panic!("testvm {arguments:?}: {text}{}", String::from_utf8_lossy(&output.stderr)),
        }
        let names = text.lines().filter_map(|line| Some(line.split_once(' ')?.0.into())).collect();
        let uri = String::from_utf8(testvm_of(state, &["uri"]).stdout).unwrap().trim().to_owned();
        Ok(Vms { uri, names, state: state.map(Path::to_owned) })
    }

    /// The libvirtd of a host of its own, without VMs; after a minute without anybody connected it ends.
    pub(crate) fn daemon(state: &Path) -> Result<Vms, String> {
        let output = testvm_of(Some(state), &["daemon", "up", "--timeout", "60"]);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        match output.status.code() {
            Some(0) => {}
            Some(77) => return Err(text.trim().into()),
            _ => panic!("testvm daemon up: {text}{}", String::from_utf8_lossy(&output.stderr)),
        }
        let uri = String::from_utf8(testvm_of(Some(state), &["uri"]).stdout).unwrap().trim().to_owned();
        Ok(Vms { uri, names: Vec::new(), state: Some(state.to_owned()) })
    }

    pub(crate) fn machine(&self) -> Box<dyn Act> {
        self.machine_within(TIMEOUT)
    }

    /// The same, whose looks take no longer than that.
    pub(crate) fn machine_within(&self, timeout: Duration) -> Box<dyn Act> {
        open(&self.uri, Options { timeout, guests: Some(Duration::from_millis(500)) })
    }

    /// A look that shows all of them as they are now. While another test's VM starts, libvirtd makes those wait who ask for any:
    /// a look falls back on the one before, and a first one, which cannot, names those that it could not ask for. Both is right.
    pub(crate) fn look(&self, machine: &mut dyn Act) -> Snapshot {
        let begun = Instant::now();
        let all = |snapshot: &Snapshot| {
            self.names.iter().all(|name| snapshot.vms.iter().any(|vm| vm.name == *name))
        };
        loop {
            let snapshot = machine.observe();
            match &snapshot {
                Ok(snapshot) if all(snapshot) && is_of_now(snapshot) => {}
                _ if begun.elapsed() < Duration::from_secs(120) => continue,
                seen => panic!("not all of {:?} are seen: {seen:#?}", self.names),
            }
            return snapshot.unwrap();
        }
    }

    fn ask(&self, arguments: &[&str]) -> Output {
        Command::new("virsh").args(["-c", &self.uri]).args(arguments).output().unwrap()
    }

    /// What virsh prints, if it fails as well.
    pub(crate) fn say(&self, arguments: &[&str]) -> String {
        String::from_utf8_lossy(&self.ask(arguments).stdout).into_owned()
    }

    /// Whether a VM carries a note of what was changed of it.
    pub(crate) fn kept(&self, name: &str) -> bool {
        self.say(&["dumpxml", name]).contains("urn:corefit:kept")
    }

    /// The affinity of each vCPU.
    pub(crate) fn pins(&self, name: &str) -> Vec<String> {
        let text = self.say(&["vcpupin", name, "--live"]);
        let rows = text.lines().skip(2).filter_map(|line| line.split_whitespace().nth(1));
        rows.map(ToOwned::to_owned).collect()
    }

    /// A call of virsh that has to succeed.
    pub(crate) fn virsh(&self, arguments: &[&str]) {
        let output = self.ask(arguments);
        assert!(output.status.success(), "virsh {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// What a command in a guest prints; it has to succeed.
    pub(crate) fn guest(&self, name: &str, command: &str) -> String {
        let output = self.call(&["exec", name, "--", "sh", "-c", command]);
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{command}: {out}{err}");
        out.into_owned()
    }

    /// Starts a daemon in a guest, for its groups `/a` and `/b`; its log is `/run/log`.
    pub(crate) fn manage_groups(&self, name: &str, config: &str) {
        self.guest(name, &format!("printf '%s' '{config}' >/run/corefit.toml"));
        self.guest(
            name,
            "setsid sh -c 'echo $$ >/run/pid; exec /workloads/corefit manage --apply --machine cgroups:/a,/b \
             --config /run/corefit.toml --state /run/corefit' </dev/null >/run/log 2>&1 &",
        );
    }

    /// Ends that daemon, and waits for it.
    pub(crate) fn end_manage(&self, name: &str) {
        let end = "kill -TERM $(cat /run/pid); while kill -0 $(cat /run/pid) 2>/dev/null; do sleep 0.1; done";
        self.guest(name, end);
    }

    /// A call of the script that has to succeed.
    pub(crate) fn testvm(&self, arguments: &[&str]) {
        let output = self.call(arguments);
        assert!(output.status.success(), "testvm {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

impl Vms {
    fn call(&self, arguments: &[&str]) -> Output {
        testvm_of(self.state.as_deref(), arguments)
    }

    /// Moves a VM, live, to the host of `to`, where it is the last.
    pub(crate) fn migrate(&mut self, name: &str, to: &mut Vms) {
        let state = to.state.clone().expect("to another host");
        self.testvm(&["migrate", name, state.to_str().unwrap()]);
        self.names.retain(|kept| kept != name);
        to.names.push(name.into());
    }

    /// Saves a VM into a file, and resumes it on the host of `to`.
    pub(crate) fn carry(&mut self, name: &str, to: &mut Vms, file: &str) {
        let [from, there] =
            [&*self, to].map(|vms| vms.state.as_ref().expect("hosts of their own").join("vms"));
        self.virsh(&["save", name, file]);
        let copied = Command::new("cp").arg("-r").arg(from.join(name)).arg(&there).status();
        assert!(copied.is_ok_and(|status| status.success()), "cannot copy what is known of {name}");
        to.virsh(&["restore", file]);
        std::fs::remove_dir_all(from.join(name)).unwrap();
        self.names.retain(|kept| kept != name);
        to.names.push(name.into());
    }
}

impl Drop for Vms {
    fn drop(&mut self) {
        if self.names.is_empty() && self.state.is_some() {
            self.call(&["daemon", "down"]);
            return;
        }
        let names: Vec<&str> = self.names.iter().map(String::as_str).collect();
        let ended = self.call(&[&["down"][..], &names].concat());
        if !ended.status.success() {
            eprintln!("{names:?} are left: {ended:?}");
        }
    }
}

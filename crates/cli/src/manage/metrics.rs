//! Metrics in Prometheus' text format, over a listener that knows one page.
//!
//! Source: Prometheus, "Exposition formats", text-based. Some clients at a time are served, and each gets two seconds to ask and two
//! to hear; who came first makes room for who comes when there are so many.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::io::{self, Read as _, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use super::status::{Board, Status, VmStatus};
use crate::stats::number;

const PATIENCE: Duration = Duration::from_secs(2);
/// Clients at a time.
const CLIENTS: usize = 16;
/// Threads for them, those included that were hung up on and have not ended yet.
const THREADS: usize = 2 * CLIENTS;
/// Who cannot be served as no file can be opened is waited for so long.
pub(super) const NO_FILES: Duration = Duration::from_millis(100);
/// Longest request that is read.
const REQUEST: usize = 4096;
/// Bytes beyond it that are read at most, and thrown away.
const REST: usize = 1 << 20;

/// Serves the metrics at an address as long as this process lives; hands back the one that it got.
///
/// # Errors
/// If the address is taken, or not of this machine.
pub(crate) fn serve(address: SocketAddr, board: &Board) -> Result<SocketAddr> {
    let listener = TcpListener::bind(address).with_context(|| address.to_string())?;
    let bound = listener.local_addr()?;
    let board = board.clone();
    let reply = move |stream: &TcpStream| drop(reply(stream, &board));
    let answer = move || each("metrics client", listener.incoming(), reply);
    std::thread::Builder::new().name("metrics".into()).spawn(answer).context("no thread for the metrics")?;
    Ok(bound)
}

/// Who calls, and can be hung up on.
pub(super) trait Call: Send + Sync + 'static {
    fn hang_up(&self);
}

impl Call for TcpStream {
    fn hang_up(&self) {
        let _ = self.shutdown(Shutdown::Both);
    }
}

impl Call for UnixStream {
    fn hang_up(&self) {
        let _ = self.shutdown(Shutdown::Both);
    }
}

/// Answers each who calls, in a thread of this name, so that who is slow keeps nobody waiting; so many at a time: when one more calls, who
/// came first is hung up on.
pub(super) fn each<S: Call>(
    name: &str,
    calls: impl Iterator<Item = io::Result<S>>,
    reply: impl Fn(&S) + Clone + Send + 'static,
) {
    let clients = Arc::new(Mutex::new(Clients { threads: 0, open: VecDeque::new() }));
    for stream in calls {
        let Ok(stream) = stream else {
            std::thread::sleep(NO_FILES);
            continue;
        };
        let Some(client) = Client::new(&clients, stream) else { continue };
        let reply = reply.clone();
        let serve = move || reply(&client.stream);
        // Without a thread the stream is closed.
        let _ = std::thread::Builder::new().name(name.into()).spawn(serve);
    }
}

/// Those who are served.
struct Clients<S> {
    threads: usize,
    /// Whoever came first is first.
    open: VecDeque<Arc<S>>,
}

/// Counts as one as long as it is there.
struct Client<S> {
    all: Arc<Mutex<Clients<S>>>,
    stream: Arc<S>,
}

impl<S: Call> Client<S> {
    /// `None` if there are too many that have not ended yet.
    fn new(all: &Arc<Mutex<Clients<S>>>, stream: S) -> Option<Client<S>> {
        let mut clients = all.lock().unwrap_or_else(PoisonError::into_inner);
        if clients.threads >= THREADS {
            return None;
        }
        if clients.open.len() >= CLIENTS {
            clients.open.pop_front().iter().for_each(|first| first.hang_up());
        }
        let stream = Arc::new(stream);
        clients.threads += 1;
        clients.open.push_back(stream.clone());
        Some(Client { all: all.clone(), stream })
    }
}

impl<S> Drop for Client<S> {
    fn drop(&mut self) {
        let mut clients = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        clients.threads -= 1;
        clients.open.retain(|open| !Arc::ptr_eq(open, &self.stream));
    }
}

fn reply(mut stream: &TcpStream, board: &Board) -> io::Result<()> {
    let until = Instant::now() + PATIENCE;
    let mut request = Vec::new();
    let mut buffer = [0; 512];
    while !request.windows(4).any(|end| end == b"\r\n\r\n") && request.len() < REQUEST {
        // Of all of it, not of each piece: nobody may keep the others waiting by being slow.
        stream.set_read_timeout(Some(left(until)))?;
        match stream.read(&mut buffer)? {
            0 => break,
            n => request.extend_from_slice(&buffer[..n]),
        }
    }
    let line =
        String::from_utf8_lossy(request.split(|byte| *byte == b'\r').next().unwrap_or_default()).into_owned();
    let (method, target) = line.split_once(' ').unwrap_or_default();
    let path = target.split([' ', '?']).next().unwrap_or_default();
    let (status, body) = match (method, path) {
        ("GET" | "HEAD", "/metrics" | "/") => ("200 OK", text(&board.shown())),
        (_, "/metrics" | "/") => ("405 Method Not Allowed", "GET or HEAD\n".into()),
        _ => ("404 Not Found", "see /metrics\n".into()),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    let all = if method == "HEAD" { head } else { head + &body };
    let limit = |left| stream.set_write_timeout(Some(left));
    let until = Instant::now() + PATIENCE;
    send(stream, all.as_bytes(), until, limit)?;
    // Closed with bytes that nobody read, the kernel tells the client of an error, which may take the answer with it (RFC 9112, 9.6).
    stream.shutdown(Shutdown::Write)?;
    let mut rest = 0;
    while rest < REST && Instant::now() < until {
        stream.set_read_timeout(Some(left(until)))?;
        match stream.read(&mut buffer)? {
            0 => break,
            n => rest += n,
        }
    }
    Ok(())
}

/// Writes all of it within a time, of all and not of each piece; `limit` limits the next piece.
pub(super) fn send(
    mut to: impl Write,
    mut bytes: &[u8],
    until: Instant,
    limit: impl Fn(Duration) -> io::Result<()>,
) -> io::Result<()> {
    while !bytes.is_empty() {
        if Instant::now() >= until {
            return Err(io::ErrorKind::TimedOut.into());
        }
        limit(left(until))?;
        match to.write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => bytes = &bytes[n..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// How long it is until then; zero would be for ever.
fn left(until: Instant) -> Duration {
    until.saturating_duration_since(Instant::now()).max(Duration::from_millis(1))
}

/// The metrics of a status.
fn text(status: &Status) -> String {
    let mut out = String::new();
    let mut one = |name: &str, kind: &str, help: &str, value: Option<f64>| {
        let _ = write!(out, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
        if let Some(value) = value {
            let _ = writeln!(out, "{name} {value}");
        }
    };
    let is = |is: bool| Some(f64::from(u8::from(is)));
    let steps = Some(number(status.steps));
    one("corefit_steps_total", "counter", "Looks at the machine, those that failed included.", steps);
    one("corefit_step_seconds", "gauge", "How long the last step took.", status.step_s);
    let age = status.stepped.map(|at| at.elapsed().as_secs_f64());
    one("corefit_last_step_age_seconds", "gauge", "How long ago the last step ended.", age);
    let up = status.stepped.is_some() && status.trouble.is_none();
    one("corefit_up", "gauge", "Whether the machine could be looked at in the last step.", is(up));
    one("corefit_applies", "gauge", "Whether settings are changed.", is(status.applies));
    one(
        "corefit_config_reload_ok",
        "gauge",
        "Whether the configuration was taken when it was read last.",
        is(status.config_refused.is_none()),
    );
    type Value = fn(&VmStatus) -> Option<f64>;
    let families: [(&str, &str, &str, Value); 14] = [
        ("entitled_cpus", "gauge", "pCPUs when everybody wants everything.", |vm| vm.entitled.map(|c| c.0)),
        ("available_cpus", "gauge", "pCPUs to be had now, at least.", |vm| vm.available.map(|c| c.0)),
        ("used_cpus", "gauge", "pCPUs used.", |vm| vm.used.map(|c| c.0)),
        ("waiting_cpus", "gauge", "Threads (vCPUs and helpers) that waited for a pCPU.", |vm| {
            vm.waiting.map(|c| c.0)
        }),
        ("wanted_cpus", "gauge", "pCPUs asked of the arbiter.", |vm| vm.wanted.map(|c| c.0)),
        ("granted_cpus", "gauge", "pCPUs that the arbiter granted.", |vm| vm.granted.map(|c| c.0)),
        (
            "starves",
            "gauge",
            "Whether it has had less than it wants, was granted or should get for half a minute and more.",
            |vm| vm.starves.map(|starves| f64::from(u8::from(starves))),
        ),
        ("vcpus", "gauge", "vCPUs that the VM could have.", |vm| vm.vcpus.map(|n| number(n as u64))),
        ("vcpus_online", "gauge", "vCPUs that are online.", |vm| vm.online.map(|n| number(n as u64))),
        ("work_units_total", "counter", "Work that its programs counted.", |vm| vm.work),
        ("changed_settings", "gauge", "Settings that are not as they were.", |vm| {
            let theirs = vm.settings.iter().filter(|setting| setting.left_alone).count();
            Some(number(vm.changed.len().saturating_sub(theirs) as u64))
        }),
        ("pending_settings", "gauge", "Settings to be put back that could not be yet.", |vm| {
            Some(number(vm.settings.iter().filter(|setting| setting.pending).count() as u64))
        }),
        ("actions_total", "counter", "Changes made.", |vm| Some(number(vm.actions))),
        (
            "failures_total",
            "counter",
            "Changes that failed, did not take, or could not be noted in the journal before.",
            |vm| Some(number(vm.failures)),
        ),
    ];
    let labels = |vm: &VmStatus| format!("{{vm=\"{}\",id=\"{}\"}}", label(&vm.name), label(&vm.id));
    let vms: Vec<(&VmStatus, String)> = status.vms.iter().map(|vm| (vm, labels(vm))).collect();
    for (name, kind, help, value) in families {
        let _ = write!(out, "# HELP corefit_vm_{name} {help}\n# TYPE corefit_vm_{name} {kind}\n");
        for (vm, labels) in &vms {
            if let Some(value) = value(vm) {
                let _ = writeln!(out, "corefit_vm_{name}{labels} {value}");
            }
        }
    }
    out
}

fn label(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use corefit_core::Cpus;

    use super::super::status::Setting;

    fn ask(address: SocketAddr, request: &str) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn the_page_has_each_vm_and_no_value_where_none_is_known() {
        let board = Board::default();
        let vm = VmStatus {
            name: "a\"b".into(),
            id: "7".into(),
            used: Some(Cpus(1.5)),
            granted: Some(Cpus(2.0)),
            starves: Some(true),
            actions: 3,
            ..VmStatus::default()
        };
        board.lock().vms = vec![vm];
        let address = serve("127.0.0.1:0".parse().unwrap(), &board).unwrap();
        let text = ask(address, "GET /metrics HTTP/1.1\r\n\r\n");
        assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "{text}");
        assert!(text.contains("corefit_vm_used_cpus{vm=\"a\\\"b\",id=\"7\"} 1.5\n"), "{text}");
        assert!(
            text.contains("corefit_vm_actions_total{vm=\"a\\\"b\",id=\"7\"} 3\n")
                && text.contains("corefit_up 0\n"),
            "{text}"
        );
        assert!(text.contains("corefit_vm_starves{vm=\"a\\\"b\",id=\"7\"} 1\n"), "{text}");
        assert!(
            !text.contains("corefit_vm_entitled_cpus{") && !text.contains("corefit_vm_wanted_cpus{"),
            "{text}"
        );
        assert!(ask(address, "GET /secret HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404"));
        assert!(ask(address, &"x".repeat(4096)).starts_with("HTTP/1.1 404"));
    }

    #[test]
    fn who_asks_for_pages_all_the_time_does_not_keep_the_daemon_waiting() {
        let board = Board::default();
        let vm = |number: usize| VmStatus { name: format!("vm{number}"), ..VmStatus::default() };
        board.lock().vms = (0..5000).map(vm).collect();
        let pages = (0..3).map(|_| {
            let started = Instant::now();
            drop(text(&board.shown()));
            started.elapsed()
        });
        let page = pages.min().unwrap();
        let address = serve("127.0.0.1:0".parse().unwrap(), &board).unwrap();
        let (served, mut waited) = (AtomicUsize::new(0), Vec::new());
        let asks = || {
            while served.fetch_add(1, Ordering::Relaxed) < 30 {
                assert!(ask(address, "GET /metrics HTTP/1.1\r\n\r\n").contains("vm4999"));
            }
        };
        std::thread::scope(|scope| {
            let clients = [0; 3].map(|_| scope.spawn(asks));
            while clients.iter().any(|client| !client.is_finished()) {
                let started = Instant::now();
                board.lock().steps += 1;
                waited.push(started.elapsed());
                std::thread::sleep(page / 20);
            }
        });
        waited.sort();
        let median = waited[waited.len() / 2];
        assert!(median < page / 10, "{median:?}, and {page:?} for a page; {} times", waited.len());
    }

    fn setting(pending: bool) -> Setting {
        Setting {
            lever: "weight".into(),
            before: "100".into(),
            made: "200".into(),
            changed_to: None,
            left_alone: false,
            pending,
        }
    }

    #[test]
    fn what_is_pending_and_whether_the_configuration_was_refused_is_on_the_page() {
        let vm = |name: &str, settings| VmStatus { name: name.into(), settings, ..VmStatus::default() };
        let vms = vec![vm("a", [true, false, true].map(setting).to_vec()), vm("b", Vec::new())];
        let status = Status { vms, ..Status::default() };
        let page = text(&status);
        for line in [
            "corefit_config_reload_ok 1",
            "corefit_vm_pending_settings{vm=\"a\",id=\"\"} 2",
            "corefit_vm_pending_settings{vm=\"b\",id=\"\"} 0",
        ] {
            assert!(page.lines().any(|found| found == line), "{line}: {page}");
        }
        let refused = Status { config_refused: Some("line 1".into()), ..status };
        assert!(text(&refused).contains("corefit_config_reload_ok 0\n"));
    }

    #[test]
    fn a_machine_is_up_from_the_first_step_on_that_could_look_and_how_old_that_step_is_is_said() {
        let of = |status: Status| {
            let page = text(&status);
            let value = |name: &str| {
                page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse::<f64>().ok())
            };
            ["corefit_up", "corefit_steps_total", "corefit_last_step_age_seconds"].map(value)
        };
        assert_eq!(of(Status::default()), [Some(0.0), Some(0.0), None], "it may hang in the first one");
        let stepped = Instant::now().checked_sub(Duration::from_secs(40));
        let looked = Status { steps: 7, stepped, ..Status::default() };
        let [up, steps, age] = of(looked.clone());
        assert_eq!((up, steps), (Some(1.0), Some(7.0)));
        assert!(age.is_some_and(|age| (40.0..400.0).contains(&age)), "{age:?}");
        assert_eq!(of(Status { trouble: Some("no answer".into()), ..looked })[0], Some(0.0));
    }

    #[test]
    fn each_number_of_a_vm_is_under_its_own_name() {
        let left = Setting { left_alone: true, ..setting(false) };
        let vm = VmStatus {
            name: "a".into(),
            entitled: Some(Cpus(1.5)),
            available: Some(Cpus(2.5)),
            used: Some(Cpus(0.5)),
            waiting: Some(Cpus(3.5)),
            wanted: Some(Cpus(5.0)),
            granted: Some(Cpus(4.0)),
            starves: Some(true),
            vcpus: Some(8),
            online: Some(6),
            work: Some(77.0),
            changed: vec!["weight".into(); 4],
            settings: [true, false, true].map(setting).into_iter().chain([left]).collect(),
            actions: 9,
            failures: 7,
            ..VmStatus::default()
        };
        let page = text(&Status { vms: vec![vm], ..Status::default() });
        let found = page.lines().filter_map(|line| line.strip_prefix("corefit_vm_"));
        let found: Vec<String> = found.map(|line| line.replace("{vm=\"a\",id=\"\"}", "")).collect();
        let expected = [
            "entitled_cpus 1.5",
            "available_cpus 2.5",
            "used_cpus 0.5",
            "waiting_cpus 3.5",
            "wanted_cpus 5",
            "granted_cpus 4",
            "starves 1",
            "vcpus 8",
            "vcpus_online 6",
            "work_units_total 77",
            "changed_settings 3",
            "pending_settings 2",
            "actions_total 9",
            "failures_total 7",
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn each_metric_is_in_the_documentation() {
        let documented = include_str!("../../../../docs/operating.md");
        let status = Status { vms: vec![VmStatus::default()], ..Status::default() };
        let page = text(&status);
        let names: Vec<&str> =
            page.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
        assert!(names.len() > 15, "{page}");
        for name in names {
            let short = name.strip_prefix("corefit_vm").unwrap_or(name);
            let is = |name: &str| documented.contains(&format!("`{name}`"));
            assert!(is(name) || is(short), "{name}");
        }
    }

    #[test]
    fn who_says_more_than_is_read_hears_the_whole_answer() {
        let board = Board::default();
        let vms = (0..2_000).map(|n| VmStatus { name: n.to_string(), ..VmStatus::default() });
        board.lock().vms = vms.collect();
        let length = text(&board.shown()).len();
        let address = serve("127.0.0.1:0".parse().unwrap(), &board).unwrap();
        let request = format!("GET /metrics HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(10 * REQUEST));
        let answer = ask(address, &request);
        assert!(answer.starts_with("HTTP/1.1 200"));
        assert_eq!(answer.split_once("\r\n\r\n").unwrap().1.len(), length);
    }

    #[test]
    fn vms_of_one_name_have_series_of_their_own() {
        let vm = |id: &str| VmStatus { name: "web\n".into(), id: id.into(), ..VmStatus::default() };
        let text = text(&Status { vms: vec![vm("u-1#1"), vm("/machine/web@7")], ..Status::default() });
        let mut series: Vec<&str> = text
            .lines()
            .filter(|line| !line.starts_with('#'))
            .map(|line| line.rsplit_once(' ').unwrap().0)
            .collect();
        let all = series.len();
        series.sort_unstable();
        series.dedup();
        assert_eq!(series.len(), all, "{text}");
        assert!(
            series.contains(&"corefit_vm_changed_settings{vm=\"web\\n\",id=\"/machine/web@7\"}"),
            "{text}"
        );
    }

    #[test]
    fn who_says_nothing_keeps_nobody_waiting() {
        let address = serve("127.0.0.1:0".parse().unwrap(), &Board::default()).unwrap();
        let begun = Instant::now();
        let mut idle: Vec<TcpStream> = (0..CLIENTS).map(|_| TcpStream::connect(address).unwrap()).collect();
        assert!(ask(address, "GET /metrics?x=1 HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 200"));
        assert!(matches!(idle[0].read(&mut [0]), Ok(0)), "the first of them is hung up on");
        assert!(begun.elapsed() < PATIENCE, "{:?}", begun.elapsed());
    }

    #[test]
    fn a_head_is_told_the_length_and_nothing_else() {
        let address = serve("127.0.0.1:0".parse().unwrap(), &Board::default()).unwrap();
        let (get, head) = (ask(address, "GET / HTTP/1.1\r\n\r\n"), ask(address, "HEAD / HTTP/1.1\r\n\r\n"));
        assert_eq!(get.split_once("\r\n\r\n").unwrap().0, head.trim_end());
        assert!(ask(address, "POST / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405"));
    }

    #[test]
    fn who_hears_slowly_is_given_up_when_the_time_of_all_is_over() {
        // Takes a byte at a time, each soon enough.
        struct Slow;
        impl Write for Slow {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                std::thread::sleep(Duration::from_millis(5));
                Ok(1)
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let until = Instant::now() + Duration::from_millis(50);
        let sent = send(Slow, &[0; 10_000], until, |_| Ok(()));
        assert_eq!(sent.unwrap_err().kind(), io::ErrorKind::TimedOut);
    }

    #[test]
    fn one_who_asks_slowly_does_not_keep_others_waiting_for_longer_than_it_is_given() {
        let address = serve("127.0.0.1:0".parse().unwrap(), &Board::default()).unwrap();
        let mut slow = TcpStream::connect(address).unwrap();
        let drip = std::thread::spawn(move || {
            // A byte every half second is within any time that single reads may take.
            for _ in 0..30 {
                if slow.write_all(b"x").is_err() {
                    break;
                }
                std::thread::sleep(PATIENCE / 4);
            }
        });
        let begun = Instant::now();
        assert!(ask(address, "GET /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 200"));
        assert!(begun.elapsed() < 3 * PATIENCE, "{:?}", begun.elapsed());
        drip.join().unwrap();
    }
}

//! What a guest agent answers, made into a [`GuestView`].
//!
//! Source: QEMU's qga/qapi-schema.json (`guest-file-open`, `guest-file-read`, `guest-get-cpustats`,
//! `guest-get-vcpus`); proc(5) for `/proc/stat`.

use std::collections::BTreeMap;
use std::ffi::c_uint;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use corefit_core::machine::{GuestVcpu, GuestView};
use corefit_core::{CpuId, Time};
use serde_json::{Value, json};

use super::agent_calls::{NO_HANDLE, SMALL};
use super::sys;
use crate::formats::short;
use crate::proc::{Ticks, ns};
use crate::progress;

/// How much of `/proc/stat` is asked for: 4,096 vCPUs and the line of interrupts.
const ENOUGH: u32 = 1 << 20;
/// More vCPUs than any guest has are not taken from an answer: who answers may be anybody in the guest.
const MOST_VCPUS: usize = 4096;
/// The longest answer that is taken apart, bytes: lists of so many vCPUs; and text in base64.
const LONGEST_LIST: usize = 768 << 10;
const LONGEST_TEXT: usize = 2 << 20;

/// How long libvirt waits for an agent that it synchronises with (`QEMU_AGENT_WAIT_TIME`).
const SYNCHRONISES: Duration = Duration::from_secs(5);
/// The mark of an agent that took a command and did not answer in time.
const LATE: &str = "its agent took a command and did not answer in time: ";

/// Reads the answer to a command; the error says what is wrong with it.
pub(super) fn parsed(command: &str, answer: &str) -> Result<Value, String> {
    let longest = if command == "guest-file-read" { LONGEST_TEXT } else { LONGEST_LIST };
    if answer.len() > longest {
        return Err(format!("the answer has {} bytes, more than {longest}", answer.len()));
    }
    let mut answer: Value = serde_json::from_str(answer).map_err(|error| format!("no JSON: {error}"))?;
    Ok(answer.get_mut("return").map(Value::take).unwrap_or_default())
}

/// Asks a guest, through a function that takes a command to the answer.
///
/// Where the agent may not read files (some distributions forbid it) it tells less: no count of
/// runnable threads. What its programs have done it is not asked for where its vCPUs were busy for no longer than `unless_ns` so far.
///
/// # Errors
/// The first error of the agent, or what of its answer makes no sense.
pub(super) fn view<E: ToString>(
    files: &mut bool,
    unless_ns: Option<u64>,
    ask: &mut impl FnMut(&str) -> Result<String, E>,
) -> Result<GuestView, String> {
    let mut ask = commands(ask);
    if *files {
        match read(&mut ask, "/proc/stat", ENOUGH) {
            Ok(text) => {
                let mut view = proc_stat(&text)?;
                let rests = busy_ns(&view).zip(unless_ns).is_some_and(|(busy, unless)| busy <= unless);
                if !rests {
                    view.work = work(&mut ask).ok().flatten();
                }
                return Ok(view);
            }
            Err(error) if refuses(&error) => *files = false,
            Err(error) => return Err(error),
        }
    }
    let times = match ask("guest-get-cpustats", Value::Null) {
        Err(error) if refuses(&error) => Value::Null,
        other => other?,
    };
    let vcpus = ask("guest-get-vcpus", Value::Null)?;
    Ok(stats(&times, &vcpus))
}

/// For how long its vCPUs were busy so far; `None` where it does not say that of one of them.
pub(super) fn busy_ns(view: &GuestView) -> Option<u64> {
    view.vcpus.iter().try_fold(0, |sum: u64, vcpu| Some(sum.saturating_add(vcpu.busy_ns?)))
}

/// What libvirt says of a command that failed after so long, of which the agent was given so many seconds; marked where it took the command
/// and did not answer in time. Before a command they are synchronised: whoever does not answer then has not got it, which libvirt waits for
/// longer, or (newer ones) says, in the language of its host. Only the newest have an error of its own for either.
pub(super) fn said(code: c_uint, text: String, took: Duration, seconds: i32) -> String {
    let waited = took.as_secs_f64() > 0.95 * f64::from(seconds);
    let has_it = match code {
        sys::VIR_ERR_AGENT_COMMAND_TIMEOUT => true,
        sys::VIR_ERR_AGENT_UNRESPONSIVE => took < SYNCHRONISES && !text.contains("synchronization"),
        _ => false,
    };
    if waited && has_it { format!("{LATE}{text}") } else { text }
}

/// Whether what libvirt [`said`] is that an agent took a command and did not answer in time.
pub(super) fn is_late(error: &str) -> bool {
    error.starts_with(LATE)
}

/// Whether the agent says that it does not do this. One that froze file systems for a backup lets them go. (Older than QEMU 6.0
/// it says nothing of that.) Why a file cannot be opened Windows says in its own language.
pub(super) fn refuses(error: &str) -> bool {
    let texts = [
        "disabled",
        "not been found",
        "not found",
        "not allowed",
        "ermission denied",
        "No such file",
        "Read-only file system",
    ];
    // Windows has no such files, and says so in its language; Linux names the mode, and its reason in English.
    let windows = error.contains("failed to open file") && !error.contains("(mode:");
    !error.contains("frozen") && (windows || texts.iter().any(|text| error.contains(text)))
}

/// What its programs say that they have done, and nothing else: half of the commands, each of which takes a guest whose
/// instructions are emulated 2 ms of a vCPU (measured here). `None` if nobody counts, or what is there makes no sense.
///
/// # Errors
/// That of the agent, if it does not answer.
pub(super) fn count<E: ToString>(
    ask: &mut impl FnMut(&str) -> Result<String, E>,
) -> Result<Option<(u64, Time)>, String> {
    work(&mut commands(ask))
}

fn work(ask: &mut impl FnMut(&str, Value) -> Result<Value, String>) -> Result<Option<(u64, Time)>, String> {
    match read(ask, progress::PATH, SMALL) {
        Ok(text) => Ok(progress::parse(&text).map(|work| (work.units, work.at))),
        Err(error) if refuses(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Commands with their arguments, and what they return.
fn commands<E: ToString>(
    ask: &mut impl FnMut(&str) -> Result<String, E>,
) -> impl FnMut(&str, Value) -> Result<Value, String> {
    move |command: &str, arguments: Value| {
        let command = match arguments {
            Value::Null => json!({ "execute": command }),
            arguments => json!({ "execute": command, "arguments": arguments }),
        };
        let answer = ask(&command.to_string()).map_err(|e| e.to_string())?;
        parsed(command["execute"].as_str().unwrap_or_default(), &answer)
    }
}

fn read(
    ask: &mut impl FnMut(&str, Value) -> Result<Value, String>,
    path: &str,
    most: u32,
) -> Result<String, String> {
    let handle = ask("guest-file-open", json!({ "path": path, "mode": "r" }))?.as_i64().ok_or(NO_HANDLE)?;
    let part = ask("guest-file-read", json!({ "handle": handle, "count": most }));
    let closed = ask("guest-file-close", json!({ "handle": handle }));
    let part = part?;
    closed?;
    text_of(&part, most)
}

/// The text in what guest-file-read returned, which was asked for no more than so many bytes.
///
/// # Errors
/// If it is none, or longer.
pub(super) fn text_of(part: &Value, most: u32) -> Result<String, String> {
    let text = part["buf-b64"].as_str().and_then(|text| BASE64_STANDARD.decode(text).ok());
    let text = text.ok_or("guest-file-read gave no base64")?;
    if text.len() > most as usize {
        return Err(format!("guest-file-read gave {} bytes, more than {most}", text.len()));
    }
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// A guest's `/proc/stat`.
fn proc_stat(text: &str) -> Result<GuestView, String> {
    let mut view = GuestView::default();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let name = words.next().unwrap_or("");
        if name == "procs_running" {
            // The agent that reads this runs, too.
            view.runnable = words.next().and_then(|n| n.parse().ok()).map(|n: u32| n.saturating_sub(1));
        }
        let Some(CpuId(id)) = Ticks::cpu(line) else { continue };
        if view.vcpus.len() == MOST_VCPUS {
            return Err(format!("/proc/stat of the guest has more than {MOST_VCPUS} CPUs"));
        }
        let Some(ticks) = Ticks::of(line) else {
            return Err(format!("/proc/stat of the guest: {:?} is no line of CPU times", short(line)));
        };
        view.vcpus.push(GuestVcpu {
            id,
            online: true,
            busy_ns: Some(ns(ticks.busy())),
            idle_ns: Some(ns(ticks.all_idle())),
            steal_ns: ticks.steal.map(ns),
            nice_ns: Some(ns(ticks.nice)),
            iowait_ns: Some(ns(ticks.iowait)),
        });
    }
    if view.vcpus.is_empty() {
        return Err("/proc/stat of the guest has no CPU times".into());
    }
    Ok(view)
}

/// Answers of `guest-get-cpustats` (times in ms) and `guest-get-vcpus`.
fn stats(times: &Value, vcpus: &Value) -> GuestView {
    let number = |value: &Value| value.as_u64();
    let mut view = GuestView::default();
    let times: BTreeMap<Option<u64>, &Value> =
        times.as_array().into_iter().flatten().map(|time| (number(&time["cpu"]), time)).collect();
    for vcpu in vcpus.as_array().into_iter().flatten().take(MOST_VCPUS) {
        let Some(id) = number(&vcpu["logical-id"]).and_then(|id| u32::try_from(id).ok()) else { continue };
        let time = times.get(&Some(u64::from(id))).copied().unwrap_or(&Value::Null);
        let ns = |names: &[&str]| {
            let ms = names.iter().try_fold(0u64, |sum, name| sum.checked_add(number(&time[*name])?));
            ms.map(|ms| ms.saturating_mul(1_000_000))
        };
        let or_none = |name: &str| ns(&[name]).unwrap_or(0);
        view.vcpus.push(GuestVcpu {
            id,
            online: vcpu["online"].as_bool().unwrap_or(true),
            busy_ns: ns(&["user", "system"]).map(|ns| {
                ["nice", "irq", "softirq"].iter().fold(ns, |ns, name| ns.saturating_add(or_none(name)))
            }),
            idle_ns: ns(&["idle"]).map(|ns| ns.saturating_add(or_none("iowait"))),
            steal_ns: ns(&["steal"]),
            nice_ns: ns(&["nice"]),
            iowait_ns: ns(&["iowait"]),
        });
    }
    view
}

#[cfg(test)]
pub(super) mod testing {
    use super::*;

    /// What libvirt 9.0 says of an agent that did not answer a command which had two seconds, after so many ms.
    pub(in crate::libvirt) fn silent(ms: u64) -> String {
        let text = "Guest agent not available for now".into();
        said(sys::VIR_ERR_AGENT_UNRESPONSIVE, text, Duration::from_millis(ms), 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_that_took_a_command_is_told_from_one_that_is_not_there_by_error_and_time() {
        let english = "guest agent didn't respond to synchronization within '2' seconds";
        for (code, text, ms, late) in [
            (86, "Gastagent momentan nicht verfügbar", 1999, true),
            (86, "Gastagent momentan nicht verfügbar", 4500, true), // It took its time to synchronise, too.
            (86, "Guest agent not available for now", 5000, false),
            (86, "Guest agent disappeared while executing command", 700, false),
            (86, english, 2001, false),
            (112, "guest agent didn't respond to command within '2' seconds", 2001, true),
            (112, "Gastagent momentan nicht verfügbar", 6500, true),
            (38, "cannot acquire state change lock", 2500, false),
        ] {
            let said = said(code, text.into(), Duration::from_millis(ms), 2);
            assert_eq!(is_late(&said), late, "{code} {text} {ms}");
            assert!(said.ends_with(text));
        }
    }

    const STAT: &str = "cpu  9 9\ncpu0 10 1 5 80 4 2 1 7 0 0\ncpu3 1 0 0 9 0 0 0\nintr 1\nprocs_running 6\n";

    #[test]
    fn a_linux_guest_tells_times_and_runnable_threads_by_its_file() {
        let mut asked = Vec::new();
        let answer = |text: &str| {
            let data = BASE64_STANDARD.encode(text);
            format!(r#"{{"return":{{"count":5,"buf-b64":"{data}","eof":true}}}}"#)
        };
        let mut agent = |command: &str| {
            asked.push(command.to_owned());
            Ok::<_, String>(match asked.len() {
                1 | 4 => r#"{"return":1000}"#.to_owned(),
                2 => answer(STAT),
                5 => answer("corefit-progress 1\nunits 12\nat_ns 34   \n"),
                _ => r#"{"return":{}}"#.to_owned(),
            })
        };
        let view = view(&mut true, None, &mut agent).unwrap();
        assert_eq!((view.runnable, view.work), (Some(5), Some((12, Time(34)))));
        let first = GuestVcpu {
            id: 0,
            online: true,
            busy_ns: Some(190_000_000),
            idle_ns: Some(840_000_000),
            steal_ns: Some(70_000_000),
            nice_ns: Some(10_000_000),
            iowait_ns: Some(40_000_000),
        };
        assert_eq!(view.vcpus[0], first);
        assert_eq!((view.vcpus[1].id, view.vcpus[1].steal_ns), (3, None));
        assert!(asked[2].contains("guest-file-close") && asked[2].contains("1000"), "{asked:?}");
        assert!(asked[3].contains("/run/corefit-progress"), "{asked:?}");
    }

    #[test]
    fn a_guest_in_which_nobody_counts_tells_the_rest() {
        let mut number = 0;
        let mut agent = |_: &str| {
            number += 1;
            match number {
                1 => Ok(r#"{"return":1000}"#.to_owned()),
                2 => Ok(format!(r#"{{"return":{{"buf-b64":"{}"}}}}"#, BASE64_STANDARD.encode(STAT))),
                3 => Ok(r#"{"return":{}}"#.to_owned()),
                _ => Err("failed to open file '/run/corefit-progress': No such file or directory".to_owned()),
            }
        };
        let view = view(&mut true, None, &mut agent).unwrap();
        assert_eq!((view.runnable, view.work), (Some(5), None));
    }

    #[test]
    fn an_agent_that_reads_no_files_is_asked_for_its_own_statistics() {
        let windows = "failed to open file '/proc/stat': Das System kann den angegebenen Pfad nicht finden.";
        for why in ["The command guest-file-open has been disabled", windows] {
            let mut files = true;
            let mut agent = |command: &str| {
                match command {
                c if c.contains("guest-file-open") => Err(why.to_owned()),
                c if c.contains("cpustats") => Ok(r#"{"return":[{"type":"linux","cpu":1,"user":5,"nice":1,"system":2,"idle":90,"iowait":3,"steal":4}]}"#.to_owned()),
                _ => Ok(r#"{"return":[{"logical-id":0,"online":false},{"logical-id":1,"online":true}]}"#.to_owned()),
            }
            };
            let view = view(&mut files, None, &mut agent).unwrap();
            assert!(!files, "{why}");
            assert_eq!((view.vcpus.len(), view.runnable), (2, None));
            assert_eq!((view.vcpus[0].online, view.vcpus[0].busy_ns), (false, None));
            let one = &view.vcpus[1];
            assert_eq!(
                (one.busy_ns, one.idle_ns, one.steal_ns),
                (Some(8_000_000), Some(93_000_000), Some(4_000_000))
            );
        }
    }

    #[test]
    fn an_agent_that_froze_file_systems_reads_files_again_afterwards() {
        let mut files = true;
        let mut frozen = |command: &str| {
            let command: Value = serde_json::from_str(command).unwrap();
            let name = command["execute"].as_str().unwrap();
            Err::<String, _>(format!("Command {name} has been disabled: the agent is in frozen state"))
        };
        assert!(view(&mut files, None, &mut frozen).unwrap_err().contains("frozen"));
        assert!(files);
    }

    #[test]
    fn an_agent_that_does_not_answer_is_an_error_at_once() {
        let mut count = 0;
        let mut agent = |_: &str| {
            count += 1;
            Err::<String, _>("Guest agent is not responding: timeout")
        };
        assert!(view(&mut true, None, &mut agent).unwrap_err().contains("not responding"));
        assert_eq!(count, 1);
        let mut agent = |_: &str| Ok::<_, String>("{".to_owned());
        assert!(view(&mut true, None, &mut agent).unwrap_err().contains("no JSON"));
        let mut agent = |_: &str| Ok::<_, String>(r#"{"return":"guest-file-close"}"#.to_owned());
        assert_eq!(view(&mut true, None, &mut agent), Err(NO_HANDLE.into()));
        assert!(proc_stat("cpu0 1 2\n").unwrap_err().contains("no line of CPU times"));
    }

    #[test]
    fn whoever_answers_for_a_guest_cannot_keep_the_host_busy() {
        let line = |cpu| format!("cpu{cpu} 1 1 1 1 1 1 1 1\n");
        let text: String = (0..43_000).map(line).collect();
        assert!(proc_stat(&text).unwrap_err().contains("more than 4096 CPUs"));
        let odd = proc_stat(&format!("cpu0 {}", "\u{7f}".repeat(1 << 20))).unwrap_err();
        assert!(odd.len() < 500 && odd.contains("no line of CPU times"), "{} bytes", odd.len());
        let long = BASE64_STANDARD.encode(line(0).repeat(1 << 16));
        let mut agent = |command: &str| {
            Ok::<_, String>(match command {
                open if open.contains("guest-file-open") => r#"{"return":7}"#.to_owned(),
                read if read.contains("guest-file-read") => {
                    json!({ "return": { "buf-b64": long } }).to_string()
                }
                _ => r#"{"return":{}}"#.to_owned(),
            })
        };
        let why = view(&mut true, None, &mut agent).unwrap_err();
        assert!(why.ends_with("more than 1048576"), "{why}");
        for no_object in ["[]", "3", "\"return\"", "{}"] {
            assert_eq!(parsed("guest-get-vcpus", no_object), Ok(Value::Null));
        }
        let one = |cpu| json!({"logical-id": cpu, "online": true, "can-offline": true});
        let list: Vec<Value> = (0..60_000).map(one).collect();
        let answer = json!({ "return": list }).to_string();
        let mut agent = |_: &str| Ok::<_, String>(answer.clone());
        let why = view(&mut false, None, &mut agent).unwrap_err();
        assert!(why.starts_with("the answer has ") && why.ends_with("more than 786432"), "{why}");
    }
}

//! What is asked of a guest agent when something is changed: vCPUs on and off, and a small file.
//!
//! Source: QEMU's qga/qapi-schema.json (`guest-get-vcpus`, `guest-set-vcpus`, `guest-file-*`). The agent
//! goes through the list of `guest-set-vcpus` in order, stops at the first failure and tells only how many it
//! did; so it is asked again for the rest, without the one that it failed at, and what is so is read afterwards.

use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use corefit_core::machine::MachineError;
use corefit_core::{CpuId, CpuSet};
use serde_json::{Value, json};

use super::guest::{is_late, parsed, refuses, text_of};
use super::hand::Until;

/// After so long no list of vCPUs is sent after one that brought nothing: whoever waits does so for 4 s at the most, and others wait
/// behind him. (A guest whose instructions are emulated takes 2 ms for a command, measured here.)
const GOES_ON: Duration = Duration::from_secs(1);
/// Longest file of ours in a guest, bytes.
pub(super) const SMALL: u32 = 4096;

/// What is wrong with an agent that opens a file and does not say by which number it is known.
pub(super) const NO_HANDLE: &str = "guest-file-open gave no handle";

/// An agent that was asked to open a file and did not answer in time may have it open for good, for nobody knows the handle (libvirt drops
/// what comes late). Such a guest is asked to open none for so long, then twice as long each time, up to the second.
const NO_FILES: [Duration; 2] = [Duration::from_secs(10), Duration::from_secs(3600)];

/// Whether a guest is asked to open files.
#[derive(Debug, Default)]
pub(super) struct Opening {
    not_before: Option<Instant>,
    pause: Duration,
}

impl Opening {
    /// It did not answer in time.
    pub(super) fn late(&mut self, now: Instant) {
        let [least, most] = NO_FILES;
        self.pause = (2 * self.pause).clamp(least, most);
        self.not_before = Some(now + self.pause);
    }

    /// Whether it was late before this time.
    pub(super) fn was_before(&self, at: Instant) -> bool {
        self.not_before.is_some_and(|not_before| at + self.pause > not_before)
    }

    pub(super) fn may(&self, now: Instant) -> bool {
        self.not_before.is_none_or(|not_before| not_before <= now)
    }
}

/// Takes a command to a guest agent, and brings the answer or the reason why there is none.
pub(super) type Ask<'a> = dyn FnMut(&str) -> Result<String, MachineError> + 'a;

/// Asks as long as somebody waits for what comes of it; later only what is open is closed.
pub(super) fn in_time<'a>(
    until: Until,
    mut ask: impl FnMut(&str) -> Result<String, MachineError> + 'a,
) -> Box<Ask<'a>> {
    Box::new(move |command| {
        if !command.contains("guest-file-close") {
            until.check()?;
        }
        ask(command)
    })
}

/// vCPUs as a guest has them, by its own numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct GuestVcpus {
    /// Those that it has.
    pub(super) all: CpuSet,
    pub(super) online: CpuSet,
    /// Those that it may take offline, now or when they are online.
    pub(super) offlinable: CpuSet,
}

/// Which vCPUs the guest uses.
pub(super) fn vcpus(ask: &mut Ask<'_>) -> Result<GuestVcpus, MachineError> {
    let answer = call(ask, "guest-get-vcpus", Value::Null)?;
    let list = answer.as_array().ok_or_else(|| malformed("guest-get-vcpus gave no list"))?;
    let number = |vcpu: &Value| Some(CpuId(u32::try_from(vcpu["logical-id"].as_u64()?).ok()?));
    let those = |field: &str| -> CpuSet {
        list.iter().filter(|vcpu| vcpu[field].as_bool() == Some(true)).filter_map(number).collect()
    };
    let (online, offlinable) = (those("online"), those("can-offline"));
    let found = GuestVcpus { all: list.iter().filter_map(number).collect(), online, offlinable };
    if found.online.is_empty() {
        return Err(malformed("guest-get-vcpus says that no vCPU is online"));
    }
    Ok(found)
}

/// Has the guest use these vCPUs and no others, as far as it can. (vCPU 0 goes only from who had it offline before: nobody wants a set
/// without it otherwise.) One that it refuses keeps no other from being tried. Hands back what is so then.
///
/// # Errors
/// The last refusal, if a vCPU is not as wanted because of one; or if the agent does not answer.
pub(super) fn set_vcpus(ask: &mut Ask<'_>, want: &CpuSet) -> Result<CpuSet, MachineError> {
    set_for(GOES_ON, ask, want)
}

/// The same, with this in the place of [`GOES_ON`].
fn set_for(goes_on: Duration, ask: &mut Ask<'_>, want: &CpuSet) -> Result<CpuSet, MachineError> {
    let mut have = vcpus(ask)?;
    let least = have.online.len().min(want.len());
    let (begun, mut refused, mut why) = (Instant::now(), CpuSet::default(), Ok(()));
    loop {
        let on = want.difference(&have.online);
        let off = have.online.difference(want).intersection(&have.offlinable);
        if on.is_empty() && off.is_empty() {
            return Ok(have.online);
        }
        let (on, off) = (on.difference(&refused), off.difference(&refused));
        // First those to come: so there is never less than the smaller of what was and what is wanted. Where some of them do not come, just
        // so many of those that are to go stay that there is no less either.
        let spare = (have.online.len() + on.len()).saturating_sub(least);
        let off = off.iter().take(spare);
        let list: Vec<(CpuId, bool)> =
            on.iter().map(|cpu| (cpu, true)).chain(off.map(|cpu| (cpu, false))).collect();
        let Some((first, _)) = list.first() else {
            return why.map(|()| have.online);
        };
        let vcpus: Vec<Value> =
            list.iter().map(|(cpu, online)| json!({ "logical-id": cpu.0, "online": online })).collect();
        let done = call(ask, "guest-set-vcpus", json!({ "vcpus": vcpus }));
        crate::between("vcpus-part");
        let before = std::mem::replace(&mut have, self::vcpus(ask)?);
        let away =
            |from: &GuestVcpus| want.difference(&from.online).len() + from.online.difference(want).len();
        if have.online != before.online && away(&have) >= away(&before) && begun.elapsed() >= goes_on {
            return Err(MachineError::Gone("its vCPUs are changed by somebody else meanwhile".into()));
        }
        if have.online == before.online {
            match done {
                Err(MachineError::Gone(text)) if begun.elapsed() < goes_on => {
                    why = Err(MachineError::Gone(text))
                }
                done => return done.map(|_| have.online),
            }
            refused = refused.union(&std::iter::once(*first).collect());
        }
    }
}

/// A small file of the guest; `None` if there is none.
pub(super) fn read_file(ask: &mut Ask<'_>, path: &str) -> Result<Option<String>, MachineError> {
    let handle = match open(ask, path, "r") {
        Err(error) if error.to_string().contains("No such file") => return Ok(None),
        other => other?,
    };
    let part = call(ask, "guest-file-read", json!({ "handle": handle, "count": SMALL }));
    call(ask, "guest-file-close", json!({ "handle": handle }))?;
    text_of(&part?, SMALL).map(Some).map_err(|why| malformed(&why))
}

/// Writes a small file of the guest. Whoever reads it meanwhile sees the old or the new text if both have the
/// same length: then it is not emptied before. Where it is not there yet, an empty file `beside` it is made first, as nobody comes back for
/// that once this one is there; who cannot have that goes without.
pub(super) fn write_file(
    ask: &mut Ask<'_>,
    path: &str,
    text: &str,
    beside: Option<&str>,
) -> Result<(), MachineError> {
    let handle = match open(ask, path, "r+") {
        Err(error) if error.to_string().contains("No such file") => {
            match beside.map(|beside| make_file(ask, beside)) {
                Some(Err(MachineError::Gone(late))) if is_late(&late) => {
                    return Err(MachineError::Gone(late));
                }
                _ => open(ask, path, "w").map_err(|error| no_directory(path, error))?,
            }
        }
        other => other?,
    };
    crate::between("told-part");
    let data = BASE64_STANDARD.encode(text);
    let written = call(ask, "guest-file-write", json!({ "handle": handle, "buf-b64": data }));
    crate::between("told-part");
    call(ask, "guest-file-close", json!({ "handle": handle }))?;
    let count = written?["count"].as_u64();
    if count != Some(text.len() as u64) {
        return Err(malformed(&format!("guest-file-write wrote {count:?} of {} bytes", text.len())));
    }
    Ok(())
}

/// Makes a file of the guest that is empty, unless it is there.
fn make_file(ask: &mut Ask<'_>, path: &str) -> Result<(), MachineError> {
    let handle = open(ask, path, "a")?;
    call(ask, "guest-file-close", json!({ "handle": handle })).map(drop)
}

/// Opens a file of the guest. Its handle stands in what is asked next, so it is none but a number.
fn open(ask: &mut Ask<'_>, path: &str, mode: &str) -> Result<i64, MachineError> {
    let handle = call(ask, "guest-file-open", json!({ "path": path, "mode": mode }))?;
    handle.as_i64().ok_or_else(|| malformed(NO_HANDLE))
}

/// A file that comes may come later; where nobody can make it there is no directory for it.
fn no_directory(path: &str, error: MachineError) -> MachineError {
    match error {
        MachineError::Gone(text) if text.contains("No such file") => MachineError::Unsupported(format!(
            "{text}: its guest has no directory for {path}; make one there, which can be written (a tmpfs)"
        )),
        error => error,
    }
}

fn call(ask: &mut Ask<'_>, command: &str, arguments: Value) -> Result<Value, MachineError> {
    let text = match arguments {
        Value::Null => json!({ "execute": command }),
        arguments => json!({ "execute": command, "arguments": arguments }),
    };
    // A file may come.
    let passes = |text: &str| text.contains("No such file");
    let answer = ask(&text.to_string()).map_err(|error| match error {
        MachineError::Gone(text) if refuses(&text) && !passes(&text) => {
            if is_frozen(ask) {
                return MachineError::Gone(format!("its file systems are frozen for a backup ({text})"));
            }
            MachineError::Unsupported(text)
        }
        error => error,
    })?;
    parsed(command, &answer).map_err(|error| malformed(&format!("{command}: {error}")))
}

/// Whether the agent refuses only until somebody's backup is done. Older than QEMU 6.0 it says nothing of that by itself.
fn is_frozen(ask: &mut Ask<'_>) -> bool {
    let command = "guest-fsfreeze-status";
    let answer = ask(&json!({ "execute": command }).to_string()).ok();
    answer.and_then(|answer| parsed(command, &answer).ok()).is_some_and(|status| status == "frozen")
}

fn malformed(text: &str) -> MachineError {
    MachineError::Malformed(format!("guest agent: {text}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BESIDE: &str = "/run/y";

    /// A guest of four vCPUs whose agent does `each` of a list, and stops at those that it refuses to touch: vCPU 3.
    struct Guest {
        online: Vec<bool>,
        refused: &'static [usize],
        /// The first that it may take offline.
        first: usize,
        each: usize,
        file: Option<Vec<u8>>,
        /// Whether there is the file beside it, too.
        beside: bool,
        asked: Vec<String>,
    }

    impl Guest {
        fn new(each: usize) -> Guest {
            let (online, file, asked) = (vec![true; 4], None, Vec::new());
            Guest { online, refused: &[3], first: 1, each, file, beside: false, asked }
        }

        fn answer(&mut self, command: &str) -> Result<String, MachineError> {
            self.asked.push(command.into());
            let command: Value = serde_json::from_str(command).unwrap();
            let arguments = &command["arguments"];
            let answer = match command["execute"].as_str().unwrap() {
                "guest-get-vcpus" => {
                    let one = |(id, online): (usize, &bool)| json!({"logical-id": id, "online": online, "can-offline": id >= self.first});
                    Value::Array(self.online.iter().enumerate().map(one).collect())
                }
                "guest-set-vcpus" => {
                    let mut done = 0;
                    for vcpu in arguments["vcpus"].as_array().unwrap().iter().take(self.each) {
                        let id = usize::try_from(vcpu["logical-id"].as_u64().unwrap()).unwrap();
                        match self.refused.contains(&id) {
                            true if done == 0 => return Err(MachineError::Gone("failed to set".into())),
                            true => break,
                            false => self.online[id] = vcpu["online"].as_bool().unwrap(),
                        }
                        done += 1;
                    }
                    json!(done)
                }
                "guest-file-open" if arguments["path"] == BESIDE => {
                    self.beside = true;
                    json!(8)
                }
                "guest-file-open" if arguments["mode"] == "w" => {
                    self.file = Some(Vec::new());
                    json!(7)
                }
                "guest-file-open" if self.file.is_none() => {
                    return Err(MachineError::Gone("failed to open file: No such file or directory".into()));
                }
                "guest-file-write" => {
                    let data = BASE64_STANDARD.decode(arguments["buf-b64"].as_str().unwrap()).unwrap();
                    let count = data.len();
                    self.file = Some(data);
                    json!({ "count": count, "eof": false })
                }
                "guest-file-read" => json!({"buf-b64": BASE64_STANDARD.encode(self.file.as_ref().unwrap())}),
                _ => json!(7),
            };
            Ok(json!({ "return": answer }).to_string())
        }
    }

    #[test]
    fn an_agent_that_does_a_part_is_asked_again_for_the_rest() {
        let mut guest = Guest::new(1);
        let mut ask = |command: &str| guest.answer(command);
        assert_eq!(set_vcpus(&mut ask, &"0,3".parse().unwrap()).unwrap().to_string(), "0,3");
        assert_eq!(guest.asked.iter().filter(|c| c.contains("set-vcpus")).count(), 2);
    }

    /// As on arm64 and s390x, after `chcpu -d 0`.
    #[test]
    fn a_guest_that_has_vcpu_0_offline_can_have_it_online_and_has_it_offline_again_afterwards() {
        let mut guest = Guest { first: 0, online: vec![false, true, true, true], ..Guest::new(9) };
        let mut set =
            |want: &str| set_vcpus(&mut |command: &str| guest.answer(command), &want.parse().unwrap());
        for want in ["1,3", "0-1,3", "1,3"] {
            assert_eq!(set(want).unwrap().to_string(), want);
        }
        guest.first = 1;
        guest.online[0] = true;
        let kept = set_vcpus(&mut |command: &str| guest.answer(command), &"1,3".parse().unwrap());
        assert_eq!(kept.unwrap().to_string(), "0-1,3", "most cannot");
    }

    #[test]
    fn what_a_guest_refuses_is_an_error_and_keeps_no_other_from_being_tried() {
        let mut guest = Guest::new(9);
        let set = |guest: &mut Guest, want: &str| {
            let done = set_vcpus(&mut |command: &str| guest.answer(command), &want.parse().unwrap());
            assert!(matches!(&done, Err(MachineError::Gone(why)) if why == "failed to set"), "{done:?}");
            guest.online.clone()
        };
        assert_eq!(set(&mut guest, "0"), [true, false, false, true]);
        // Its administrator switched SMT off since: one thread of each core stays offline.
        let online = [true, false, false, false, false, false, false, false];
        let mut guest = Guest { online: online.to_vec(), refused: &[1, 3, 5, 7], ..Guest::new(9) };
        assert_eq!(set(&mut guest, "0-7"), [true, false, true, false, true, false, true, false]);
        // None goes for one that does not come.
        guest.asked.clear();
        assert_eq!(set(&mut guest, "0-3"), [true, false, true, false, true, false, true, false]);
        assert_eq!(guest.asked.iter().filter(|c| c.contains("set-vcpus")).count(), 2, "{:?}", guest.asked);
        // Nor does it grow where it was to shrink: for one that does not come one stays.
        let online = [true, true, true, true, false, false, false, false];
        let mut guest = Guest { online: online.to_vec(), refused: &[5], ..Guest::new(9) };
        assert_eq!(set(&mut guest, "0,4-5"), [true, false, false, true, true, false, false, false]);
    }

    #[test]
    fn an_agent_that_is_slow_is_asked_on_as_long_as_that_brings_something_and_what_it_then_refuses_is_said() {
        let mut guest = Guest::new(1);
        let set = |guest: &mut Guest, want: &str| {
            set_for(Duration::ZERO, &mut |command: &str| guest.answer(command), &want.parse().unwrap())
        };
        assert_eq!(set(&mut guest, "0,3").unwrap().to_string(), "0,3");
        let mut guest = Guest { refused: &[2], ..Guest::new(9) };
        assert!(matches!(set(&mut guest, "0"), Err(MachineError::Gone(_))));
        assert_eq!(guest.online, [true, false, true, true], "vCPU 3 is not tried any more");
        // Somebody there puts now this one back, now that one.
        let (mut guest, mut back) = (Guest::new(9), 1);
        let mut ask = |command: &str| {
            let answer = guest.answer(command);
            if command.contains("guest-set-vcpus") {
                back = 3 - back;
                guest.online[back] = true;
            }
            answer
        };
        let done = set_for(Duration::ZERO, &mut ask, &"0".parse().unwrap());
        assert!(matches!(&done, Err(MachineError::Gone(why)) if why.contains("somebody else")), "{done:?}");
    }

    #[test]
    fn an_agent_that_may_not_change_vcpus_or_says_it_did_and_did_not_is_asked_once() {
        for answer in [Err(MachineError::Gone("it has been disabled".into())), Ok(r#"{"return":1}"#.into())] {
            let (mut guest, mut asked) = (Guest::new(9), 0);
            let mut ask = |command: &str| match command.contains("guest-set-vcpus") {
                true => {
                    asked += 1;
                    answer.clone()
                }
                false => guest.answer(command),
            };
            let done = set_vcpus(&mut ask, &"0".parse().unwrap());
            assert_eq!((asked, done.is_err()), (1, answer.is_err()), "{done:?}");
        }
    }

    #[test]
    fn files_are_made_when_they_are_not_there_and_read_back() {
        let mut guest = Guest::new(9);
        let mut ask = |command: &str| guest.answer(command);
        assert_eq!(read_file(&mut ask, "/run/x").unwrap(), None);
        write_file(&mut ask, "/run/x", "cpus 2\n", None).unwrap();
        assert_eq!(read_file(&mut ask, "/run/x").unwrap().as_deref(), Some("cpus 2\n"));
    }

    #[test]
    fn a_file_is_there_no_sooner_than_the_one_beside_it_whoever_is_late_with_either() {
        for late in [r#""mode":"a""#, r#""mode":"w""#, "guest-file-write"] {
            // It does what it was asked for all the same, or not.
            for does in [true, false] {
                let mut guest = Guest::new(9);
                let mut ask = |command: &str| {
                    if !command.contains(late) {
                        return guest.answer(command);
                    }
                    if does {
                        guest.answer(command)?;
                    }
                    Err(MachineError::Gone(crate::libvirt::guest::testing::silent(2001)))
                };
                let told = write_file(&mut ask, "/run/x", "cpus 2\n", Some(BESIDE));
                assert!(matches!(told, Err(MachineError::Gone(_))), "{late}: {told:?}");
                assert!(guest.file.is_none() || guest.beside, "{late} {does}: it is told, and cannot answer");
                let mut ask = |command: &str| guest.answer(command);
                assert_eq!(write_file(&mut ask, "/run/x", "cpus 2\n", Some(BESIDE)), Ok(()));
                assert!(guest.file.is_some() && guest.beside, "{late} {does}");
            }
        }
        // In whose place there is something else.
        let mut guest = Guest::new(9);
        let mut ask = |command: &str| match command.contains(BESIDE) {
            true => {
                Err(MachineError::Gone("failed to open file '/run/y' (mode: 'a'): Is a directory".into()))
            }
            false => guest.answer(command),
        };
        assert_eq!(write_file(&mut ask, "/run/x", "cpus 2\n", Some(BESIDE)), Ok(()));
        assert_eq!((guest.file.is_some(), guest.beside), (true, false));
    }

    #[test]
    fn a_guest_that_gives_more_of_a_file_than_was_asked_for_makes_no_sense() {
        let mut guest = Guest { file: Some(vec![b'0'; SMALL as usize]), ..Guest::new(9) };
        assert!(read_file(&mut |command: &str| guest.answer(command), "/run/x").is_ok());
        guest.file = Some(vec![b'0'; SMALL as usize + 1]);
        let refused = read_file(&mut |command: &str| guest.answer(command), "/run/x");
        assert!(matches!(refused, Err(MachineError::Malformed(_))), "{refused:?}");
        assert!(guest.asked.last().unwrap().contains("guest-file-close"), "{:?}", guest.asked);
    }

    #[test]
    fn a_handle_that_is_no_number_is_not_sent_back() {
        for handle in [json!("guest-file-close"), json!({}), json!(1.5)] {
            let mut asked = 0;
            let mut ask = |_: &str| {
                asked += 1;
                Ok(json!({ "return": handle }).to_string())
            };
            let done = [
                read_file(&mut ask, "/run/x").map(drop),
                write_file(&mut ask, "/run/x", "cpus 2\n", None),
                make_file(&mut ask, "/run/x"),
            ];
            assert!(done.iter().all(|done| matches!(done, Err(MachineError::Malformed(_)))), "{done:?}");
            assert_eq!(asked, 3, "{handle}");
        }
    }

    #[test]
    fn a_guest_in_which_no_file_can_be_made_lacks_that_and_is_not_waited_for() {
        let mut asked = 0;
        let mut refuses = |reason: &str| {
            let mut ask = |_: &str| {
                asked += 1;
                Err(MachineError::Gone(format!("failed to open file '/run/x' (mode: 'w'): {reason}")))
            };
            write_file(&mut ask, "/run/x", "cpus 2\n", None).unwrap_err()
        };
        let none = refuses("No such file or directory");
        assert!(
            matches!(&none, MachineError::Unsupported(why) if why.contains("no directory for /run/x")),
            "{none:?}"
        );
        let read_only = refuses("Read-only file system");
        assert!(matches!(&read_only, MachineError::Unsupported(_)), "{read_only:?}");
        assert!(asked >= 4);
    }

    #[test]
    fn an_agent_that_comes_back_when_nobody_waits_changes_nothing_more_and_closes_its_file() {
        // It hangs in the first of these, and does it then.
        let late = |hangs: &str, job: &dyn Fn(&mut Ask<'_>) -> Result<(), MachineError>| {
            let (mut guest, until) = (Guest::new(1), Until::after(Duration::from_millis(50)));
            let answer = |command: &str| {
                while command.contains(hangs) && until.check().is_ok() {
                    std::thread::yield_now();
                }
                guest.answer(command)
            };
            assert!(matches!(job(&mut *in_time(until, answer)), Err(MachineError::Gone(_))), "{hangs}");
            guest
        };
        let guest = late("guest-set-vcpus", &|ask| set_vcpus(ask, &"0".parse().unwrap()).map(drop));
        assert_eq!(guest.online, [true, false, true, true], "what was on its way arrives, no more");
        let guest = late(r#""mode":"w""#, &|ask| write_file(ask, "/run/x", "cpus 2\n", None));
        assert_eq!(guest.file.as_deref(), Some(&[][..]), "opened, and nothing written");
        assert!(guest.asked.last().unwrap().contains("guest-file-close"), "{:?}", guest.asked);
    }

    #[test]
    fn a_guest_that_opens_files_too_late_is_asked_for_none_for_ever_longer() {
        let (mut opening, mut now) = (Opening::default(), Instant::now());
        assert!(opening.may(now));
        for s in [10, 20, 40] {
            opening.late(now);
            assert!(!opening.may(now + Duration::from_millis(s * 1000 - 1)));
            now += Duration::from_secs(s);
            assert!(opening.may(now));
        }
        (0..20).for_each(|_| opening.late(now));
        assert!(opening.may(now + NO_FILES[1]));
    }

    #[test]
    fn an_agent_without_the_command_or_with_a_lie_is_told_apart() {
        let mut disabled = |_: &str| {
            let text = "The command guest-get-vcpus has been disabled for this instance";
            Err(MachineError::Gone(text.into()))
        };
        assert!(matches!(vcpus(&mut disabled), Err(MachineError::Unsupported(_))));
        let mut frozen = |command: &str| match command.contains("guest-fsfreeze-status") {
            true => Ok(r#"{"return":"frozen"}"#.to_owned()),
            false => disabled(command),
        };
        let passes = vcpus(&mut frozen);
        assert!(matches!(&passes, Err(MachineError::Gone(why)) if why.contains("frozen")), "{passes:?}");
        let mut none = |_: &str| Ok(r#"{"return":[{"logical-id":0,"online":false}]}"#.to_owned());
        assert!(matches!(vcpus(&mut none), Err(MachineError::Malformed(_))));
        let mut noise = |_: &str| Ok("{".to_owned());
        assert!(matches!(vcpus(&mut noise), Err(MachineError::Malformed(_))));
    }
}

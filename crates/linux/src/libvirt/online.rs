//! Which vCPUs of a domain are online, and how that is changed: by its guest's agent, or by plugging.
//!
//! A guest whose kernel chooses among its CPUs by itself (Linux, 2026) is not made smaller; what was taken from it before is
//! given back all the same.
//!
//! None is plugged in but those that were plugged out here, as the domain's metadata say: what nobody has plugged in is not there, and
//! what somebody else plugs out stands. None is plugged out of a guest that takes vCPUs offline itself.

mod plugging;

use std::sync::mpsc::{self, Sender};
use std::time::Duration;

use corefit_core::CpuSet;
use corefit_core::machine::{MachineError, VmId};

use super::agent_calls::{self as agent, Ask, GuestVcpus};
use super::api::Domain;
use super::definition::{Definition, UNPLUGGED};
use super::hand::{Hand, Until, Whom, ask, define, plain, stays};
use plugging::{
    asked_since, clock_s, lacking, lacks_some_between, may_go, plug, plugged, reachable, some_go, surplus,
    to_plug,
};
pub(super) use plugging::{can_go, can_have};

/// Longest that plugging out may take: libvirt itself waits 5 s for a guest to let go of a vCPU
/// (`qemuDomainWaitForDeviceRemoval`).
const UNPLUG: Duration = Duration::from_secs(7);
/// What the kernel of a guest prefers to use, where it decides that by itself.
const PREFERRED: &str = "/sys/devices/system/cpu/preferred";

/// The levers by which the number of vCPUs is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum By {
    /// The guest takes them offline and online.
    Agent,
    /// They come and go.
    Plugging,
    /// The same, and no agent says what its guest uses of them.
    Unheard,
}

/// Which vCPUs the domain has, and how that is changed.
pub(super) fn read(domain: &Domain<'_>, until: Until) -> Result<(CpuSet, By), MachineError> {
    look(domain, until).map(|(online, by, _)| (online, by))
}

/// The same, and how the domain is defined.
fn look(domain: &Domain<'_>, until: Until) -> Result<(CpuSet, By, Definition), MachineError> {
    let definition = define(domain)?;
    let plugged = plugged(&definition.vcpus);
    let (why, by) = match definition.agent {
        Some(true) => {
            let by = match agent::vcpus(&mut ask(domain, until)) {
                Ok(guest) => by_agent(&guest, &plugged),
                Err(MachineError::Unsupported(why)) => Err((why, By::Unheard)),
                Err(error) => return Err(error),
            };
            match by {
                Ok(online) => return Ok((there(online)?, By::Agent, definition)),
                Err(why) => why,
            }
        }
        Some(false) => return Err(MachineError::Gone("its guest agent is not connected".into())),
        None => ("it has no guest agent".into(), By::Unheard),
    };
    if can_go(&definition) {
        return Ok((plugged, by, definition));
    }
    Err(stays(&why))
}

/// Makes these the vCPUs that are online: by the agent, or by plugging, which takes longer.
pub(super) fn set(hand: &mut Hand, vm: &VmId, want: CpuSet) -> Result<(), MachineError> {
    if want.is_empty() {
        return Err(MachineError::Malformed("one vCPU stays online at least".into()));
    }
    let (tell, told) = mpsc::channel();
    let opens = hand.may_open(vm).is_ok().then_some(tell);
    let done = change(hand, vm, want, opens);
    for opened in told.try_iter() {
        hand.chose(vm, &opened);
        hand.opened(vm, &opened);
    }
    done
}

/// The same; `opens` as in [`set_by_agent`].
fn change(
    hand: &mut Hand,
    vm: &VmId,
    want: CpuSet,
    opens: Option<Sender<Opened>>,
) -> Result<(), MachineError> {
    hand.changes(vm);
    let (all, before, chose) = (want.clone(), hand.online(vm).cloned(), hand.chooses(vm));
    let may_open = opens.clone();
    let result = hand.with(Whom::Guest, vm, move |domain, until| {
        let (online, by, definition) = look(domain, until)?;
        still(before.as_ref(), &online)?;
        if !plugs(by, &all, &definition)? {
            set_by_agent(&mut ask(domain, until), &online, &all, (may_open.as_ref(), chose))?;
        }
        Ok((by, definition))
    });
    if matches!(result, Err(MachineError::Untried(_))) {
        hand.forget(vm);
    }
    let (by, definition) = result?;
    hand.goes(vm, by)?;
    if !plugs(by, &want, &definition)? {
        return none_goes(hand, vm, &want, &definition);
    }
    let mut late = Ok(());
    let all = want.clone();
    let done = hand.within(Whom::Libvirtd, UNPLUG, vm, move |domain, until| {
        let definition = define(domain)?;
        let want = to_plug(by, &all, &definition);
        let Definition { vcpus, unplugged, .. } = &definition;
        let reached = reachable(vcpus, &want);
        let out = surplus(vcpus, &reached);
        // Whoever comes after a kill has to know how long one may yet go.
        let asked_at = if out.is_empty() { definition.asked_at } else { Some(clock_s()) };
        let at = asked_at.map_or_else(String::new, |at| format!(" at='{at}'"));
        let note = |now: &CpuSet| {
            until.check()?;
            let element = (!now.is_empty()).then(|| format!("<unplugged{at}>{now}</unplugged>"));
            let done = domain.set_metadata(UNPLUGGED, element.as_deref()).map_err(|error| plain(&error));
            crate::between("unplugged-part");
            done
        };
        some_go(vcpus, &want, &reached)?;
        // (One that is there may be about to go.)
        let ours = unplugged.union(&out);
        if !out.is_empty() {
            note(&ours)?;
        }
        // libvirt takes one at a time.
        let one = |vcpu, state| {
            let done = domain.plug(&std::iter::once(vcpu).collect(), state);
            crate::between("plug-part");
            done
        };
        plug(vcpus, &want, until, one)?;
        let back = want.difference(&plugged(vcpus));
        if ours.meets(&back) {
            note(&ours.difference(&back))?;
        }
        Ok((!surplus(vcpus, &want).is_empty(), asked_since(&definition, &want, clock_s())))
    });
    if let Ok((_, Some(since))) = done {
        hand.asked_to_let_go(vm, since);
    }
    // That some go says nothing of those that were to go before, and are wanted now.
    match hand.plugged(vm, done.map(|(some, since)| some && since.is_none())) {
        // One that may yet go keeps no other from coming back.
        Err(MachineError::Gone(why)) if by == By::Agent => late = Err(MachineError::Gone(why)),
        done => done?,
    }
    // They were plugged out while there was no agent that answered.
    if by == By::Agent {
        let done = hand.with(Whom::Guest, vm, move |domain, until| {
            let (online, ..) = look(domain, until)?;
            set_by_agent(&mut ask(domain, until), &online, &want, (opens.as_ref(), chose))
        });
        return late.and(done);
    }
    Ok(())
}

/// Whether some are plugged in or out, so that a domain has these.
fn plugs(by: By, want: &CpuSet, definition: &Definition) -> Result<bool, MachineError> {
    Ok(!lacking(want, definition)?.is_empty() || by != By::Agent)
}

/// All of these are there, and nothing is plugged.
///
/// # Errors
/// If its guest may yet let go of one that it was asked for before.
fn none_goes(hand: &mut Hand, vm: &VmId, want: &CpuSet, definition: &Definition) -> Result<(), MachineError> {
    if !may_go(definition, want) {
        return Ok(());
    }
    if let Some(since) = asked_since(definition, want, clock_s()) {
        hand.asked_to_let_go(vm, since);
    }
    hand.plugged(vm, Ok(false))
}

/// Whether vCPUs are as they were when they were read last: others may have been read and written since.
fn still(before: Option<&CpuSet>, now: &CpuSet) -> Result<(), MachineError> {
    match before {
        Some(before) if before != now => {
            let text = format!("vCPUs {now} are online, and {before} were just before; not written");
            Err(MachineError::Untried(text))
        }
        _ => Ok(()),
    }
}

/// What of these a domain can have whose guest takes vCPUs offline, where somebody else plugged out others of them. (Where vCPUs are
/// only plugged, a number that somebody else made is his.)
pub(super) fn fitting(
    domain: &Domain<'_>,
    until: Until,
    want: &CpuSet,
) -> Result<Option<CpuSet>, MachineError> {
    let (_, by, definition) = look(domain, until)?;
    let part = want.intersection(&can_have(&definition));
    Ok((by == By::Agent && part != *want).then_some(part))
}

/// What its guest uses of the vCPUs that are plugged in. If it cannot change that, why, and what can.
fn by_agent(guest: &GuestVcpus, plugged: &CpuSet) -> Result<CpuSet, (String, By)> {
    if lacks_some_between(plugged) {
        let text = "the guest's numbers of its vCPUs are not known, as one in between is not plugged in";
        // It uses all of them: so many are right whatever their numbers are.
        if guest.online.len() >= plugged.len() {
            return Err((text.into(), By::Plugging));
        }
        // Where it has just those, it took the others offline by these numbers, and can take them online.
        if guest.all != *plugged {
            return Err((text.into(), By::Unheard));
        }
    }
    let others = plugged.difference(&CpuSet::first(1));
    if !others.is_empty() && !guest.offlinable.meets(&others) {
        return Err(("its guest cannot take vCPUs offline".into(), By::Plugging));
    }
    Ok(guest.online.intersection(plugged))
}

/// Those of its vCPUs that a guest uses.
///
/// # Errors
/// If there is none: it says that it uses others only, which the machine does not have. That could not be put back.
fn there(online: CpuSet) -> Result<CpuSet, MachineError> {
    if online.is_empty() {
        let text = "guest agent: of the vCPUs that are plugged in it says that none is online";
        return Err(MachineError::Malformed(text.into()));
    }
    Ok(online)
}

/// Whether a guest's kernel chooses among its CPUs by itself, if it opened the file that says so.
type Opened = Result<bool, MachineError>;

/// Has a guest that uses some vCPUs use others; `opens`: who hears what came of opening a file, if it may be asked to open one. He hears it
/// at once: who does not open it in time may do nothing else in time either, and has it open for good all the same. `chose`: what it said of
/// that before, which counts as long as it does not say it anew.
fn set_by_agent(
    ask: &mut Ask<'_>,
    online: &CpuSet,
    want: &CpuSet,
    (opens, chose): (Option<&Sender<Opened>>, bool),
) -> Result<(), MachineError> {
    let smaller = want.len() < online.len();
    let mut chooses = chose;
    if let Some(tell) = opens.filter(|_| smaller) {
        let says = agent::read_file(ask, PREFERRED).map(|preferred| {
            preferred.and_then(|text| text.trim().parse().ok()).is_some_and(|set: CpuSet| set != *online)
        });
        chooses = says.clone().unwrap_or(chose);
        let _ = tell.send(says);
    }
    if smaller && chooses {
        let text = format!("its kernel chooses among its CPUs by itself ({PREFERRED})");
        return Err(MachineError::Unsupported(text));
    }
    agent::set_vcpus(ask, want).map(drop)
}

#[cfg(test)]
mod tests {
    use super::plugging::testing::{pluggable, set};
    use super::*;
    use base64::Engine as _;
    use base64::prelude::BASE64_STANDARD;
    use corefit_core::CpuId;
    use serde_json::{Value, json};

    /// A guest of four vCPUs.
    struct Guest {
        online: CpuSet,
        /// Not so on Windows.
        offlines: bool,
        preferred: Option<&'static str>,
    }

    /// One that can take these offline.
    fn guest(online: &str, preferred: Option<&'static str>) -> Guest {
        Guest { online: set(online), offlines: true, preferred }
    }

    impl Guest {
        fn answer(&mut self, command: &str) -> Result<String, MachineError> {
            let command: Value = serde_json::from_str(command).unwrap();
            let arguments = &command["arguments"];
            let answer = match command["execute"].as_str().unwrap() {
                "guest-get-vcpus" => {
                    let one = |id| {
                        let online = self.online.contains(CpuId(id));
                        json!({"logical-id": id, "online": online, "can-offline": self.offlines && id > 0})
                    };
                    (0..4).map(one).collect()
                }
                "guest-set-vcpus" => {
                    for vcpu in arguments["vcpus"].as_array().unwrap() {
                        let one = CpuSet::from_iter([CpuId(
                            u32::try_from(vcpu["logical-id"].as_u64().unwrap()).unwrap(),
                        )]);
                        let on = vcpu["online"].as_bool().unwrap();
                        self.online = if on { self.online.union(&one) } else { self.online.difference(&one) };
                    }
                    json!(1)
                }
                "guest-file-open" if self.preferred.is_none() => {
                    return Err(MachineError::Gone("failed to open file: No such file or directory".into()));
                }
                "guest-file-open" => {
                    assert_eq!(arguments["path"], PREFERRED);
                    json!(7)
                }
                "guest-file-read" => json!({"buf-b64": BASE64_STANDARD.encode(self.preferred.unwrap())}),
                _ => json!({}),
            };
            Ok(json!({ "return": answer }).to_string())
        }

        /// What is read, and what comes of setting it.
        fn sized(&mut self, want: &str) -> (CpuSet, Result<(), MachineError>) {
            let mut ask = |command: &str| self.answer(command);
            let online = by_agent(&agent::vcpus(&mut ask).unwrap(), &CpuSet::first(4)).unwrap();
            let done = set_by_agent(&mut ask, &online, &set(want), (Some(&mpsc::channel().0), false));
            (online, done)
        }
    }

    #[test]
    fn a_guest_that_chooses_among_its_cpus_is_not_made_smaller_and_gets_back_what_was_taken_before() {
        let mut guest = guest("0-1", Some("0\n"));
        let (read, refused) = guest.sized("0");
        assert_eq!(read, set("0-1"), "it can be read all the same");
        let Err(MachineError::Unsupported(why)) = refused else { panic!("{refused:?}") };
        assert!(why.contains("by itself") && why.contains("preferred)"), "{why}");
        assert_eq!(guest.online, set("0-1"));
        assert_eq!(guest.sized("0-3").1, Ok(()));
        assert_eq!(guest.online, set("0-3"));
    }

    #[test]
    fn a_guest_that_prefers_all_that_are_online_or_says_nothing_is_sized() {
        for preferred in [None, Some("0-3\n")] {
            let mut guest = guest("0-3", preferred);
            assert_eq!(guest.sized("0-1").1, Ok(()), "{preferred:?}");
            assert_eq!(guest.online, set("0-1"), "{preferred:?}");
        }
    }

    #[test]
    fn a_guest_that_does_not_open_the_file_in_time_is_made_smaller_all_the_same_and_is_known_to_be_late() {
        let (mut hand, vm) = (Hand::new("test:///default"), VmId("a#1".into()));
        for hangs in [false, true] {
            let (mut guest, mut is_late) = (guest("0-3", Some("0\n")), false);
            let mut late = |command: &str| {
                is_late |= command.contains("guest-file-open");
                match command.contains("guest-file-open") || hangs && is_late {
                    true => Err(MachineError::Gone(crate::libvirt::guest::testing::silent(2001))),
                    false => guest.answer(command),
                }
            };
            let (tell, told) = mpsc::channel();
            let done = set_by_agent(&mut late, &set("0-3"), &set("0-1"), (Some(&tell), false));
            assert_eq!((done.is_err(), guest.online), (hangs, set(if hangs { "0-3" } else { "0-1" })));
            hand.ask_again();
            assert_eq!(hand.may_open(&vm), Ok(()));
            told.try_iter().for_each(|opened| hand.opened(&vm, &opened));
            assert!(hand.may_open(&vm).is_err(), "it may have it open for good");
        }
    }

    #[test]
    fn a_guest_that_chose_when_it_said_so_last_is_not_made_smaller_while_it_cannot_say_it() {
        let (mut hand, vm) = (Hand::new("test:///default"), VmId("a#1".into()));
        hand.chose(&vm, &Ok(true));
        hand.chose(&vm, &Err(MachineError::Gone(crate::libvirt::guest::testing::silent(2001))));
        let mut guest = guest("0-3", Some("0-3\n"));
        let mut may = |hand: &mut Hand, opens: Option<&Sender<Opened>>, late: bool, want: &str| {
            let mut ask = |command: &str| match late && command.contains("guest-file-open") {
                true => Err(MachineError::Gone(crate::libvirt::guest::testing::silent(2001))),
                false => guest.answer(command),
            };
            set_by_agent(&mut ask, &set("0-3"), &set(want), (opens, hand.chooses(&vm)))
        };
        let (tell, told) = mpsc::channel();
        for opens in [None, Some(&tell)] {
            let refused = may(&mut hand, opens, true, "0-1");
            assert!(matches!(&refused, Err(MachineError::Unsupported(why)) if why.contains("by itself")));
        }
        assert_eq!(may(&mut hand, None, true, "0-3"), Ok(()), "it gets back what was taken");
        // It says that it does so no more.
        assert_eq!(may(&mut hand, Some(&tell), false, "0-1"), Ok(()));
        told.try_iter().for_each(|said| hand.chose(&vm, &said));
        assert_eq!(may(&mut hand, None, true, "0-1"), Ok(()));
    }

    #[test]
    fn a_guest_that_cannot_take_vcpus_offline_or_whose_numbers_may_be_others_says_so() {
        let mut windows = Guest { offlines: false, ..guest("0-3", None) };
        let guest = agent::vcpus(&mut |command: &str| windows.answer(command)).unwrap();
        let refused = by_agent(&guest, &CpuSet::first(4));
        assert!(matches!(&refused, Err((why, By::Plugging)) if why.contains("cannot take")));
        assert_eq!(by_agent(&guest, &CpuSet::first(1)), Ok(set("0")), "it has no other");
        let refused = by_agent(&guest, &set("0,2"));
        assert!(matches!(&refused, Err((why, By::Plugging)) if why.contains("in between")));
    }

    #[test]
    fn a_guest_that_says_it_uses_only_vcpus_that_are_not_there_makes_no_sense() {
        let guest =
            |online: &str| GuestVcpus { all: set("0-7"), online: set(online), offlinable: set("1-7") };
        let read = |online: &str| there(by_agent(&guest(online), &CpuSet::first(4)).unwrap());
        assert!(matches!(read("4-7"), Err(MachineError::Malformed(_))));
        assert_eq!(read("3-7"), Ok(set("3")));
    }

    #[test]
    fn a_guest_of_which_one_vcpu_in_between_was_plugged_out_gives_back_the_others() {
        let guest = |all: &str, online: &str| GuestVcpus {
            all: set(all),
            online: set(online),
            offlinable: set(all).difference(&set("0")),
        };
        // It had used 0-1 of four.
        let plugged_in = set("0,2-3");
        assert_eq!(by_agent(&guest("0,2-3", "0"), &plugged_in), Ok(set("0")));
        // They are online again, or it has other numbers for all of them.
        for all in ["0,2-3", "0-2"] {
            assert!(matches!(by_agent(&guest(all, all), &plugged_in), Err((_, By::Plugging))), "{all}");
        }
        let unknown = by_agent(&guest("0-2", "0"), &plugged_in);
        assert!(matches!(&unknown, Err((why, By::Unheard)) if why.contains("in between")), "{unknown:?}");
        // Nor does the one that is not there come back; that is known at once, so that the others are not waited for.
        let mut vcpus = pluggable(4);
        vcpus[1].plugged = false;
        let definition = Definition { vcpus, ..Definition::default() };
        assert!(matches!(lacking(&set("0-1"), &definition), Err(MachineError::Unsupported(_))));
        assert_eq!(lacking(&plugged_in, &definition), Ok(CpuSet::default()));
    }

    #[test]
    fn a_guest_whose_agent_answers_now_may_yet_let_go_of_what_it_was_asked_for_before_that() {
        let vm = VmId("a#1".into());
        let definition = |at: Option<u64>| {
            let (vcpus, unplugged) = (pluggable(4), set("3"));
            Definition { vcpus, unplugged, asked_at: at, ..Definition::default() }
        };
        let [now, minute_ago] = [0, 60].map(|ago| Some(clock_s() - ago));
        // Nothing is left to plug, at the first try and at those after it; nor does it help to be another process.
        let mut hand = Hand::new("test:///default");
        for _ in 0..2 {
            assert_eq!(plugs(By::Agent, &set("0-3"), &definition(now)), Ok(false));
            let late = none_goes(&mut hand, &vm, &set("0-3"), &definition(now));
            assert!(
                matches!(&late, Err(MachineError::Gone(why)) if why.contains("may do so yet")),
                "{late:?}"
            );
        }
        assert_eq!(none_goes(&mut hand, &vm, &set("0-2"), &definition(now)), Ok(()), "it is not wanted");
        let mut hand = Hand::new("test:///default");
        assert_eq!(none_goes(&mut hand, &vm, &set("0-3"), &definition(minute_ago)), Ok(()));
        // The clock was set since this process asked.
        let late = Err(MachineError::Gone("unplug request timed out".into()));
        assert!(hand.plugged(&vm, late).is_err());
        assert!(none_goes(&mut hand, &vm, &set("0-3"), &definition(minute_ago)).is_err());
        let other = Definition { unplugged: CpuSet::default(), ..definition(now) };
        assert_eq!(none_goes(&mut hand, &vm, &set("0-3"), &other), Ok(()), "it has let go, and has it again");
    }
}

//! What is known of a VM from what was asked of it before: what it lacks, which vCPUs it had online and how they went, whether its guest
//! opens files in time.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use corefit_core::CpuSet;
use corefit_core::machine::{Fixed, LETS_GO, Lever, LeverKind, MachineError, VmId};

use super::{Hand, stays};
use crate::libvirt::definition::Definition;
use crate::libvirt::guest;
use crate::libvirt::online::{self, By};
use crate::libvirt::vcpus;

/// What turned out not to be there may be by now: an agent forbids commands while file systems are frozen, and administrators allow them.
const LACKS: Duration = Duration::from_secs(300);
/// vCPUs that were read when they were set count for so long, as the guest's own view is asked for every 5 s only (of a guest that rests, too, once they were
/// read), and at looks, which may be 10 s apart.
const NEWS: Duration = Duration::from_secs(12);

impl Hand {
    /// What a VM cannot have changed, as far as is known.
    pub(in crate::libvirt) fn fixed(&self, vm: &VmId, definition: &Definition) -> Vec<Fixed> {
        let lacks =
            self.lacks.get(vm).into_iter().flatten().filter(|(_, (since, _))| since.elapsed() < LACKS);
        let mut fixed: BTreeMap<LeverKind, String> =
            lacks.map(|(lever, (_, why))| (*lever, why.clone())).collect();
        if let Some(why) = definition.memory_stays {
            fixed.insert(LeverKind::Nodes, why.into());
        }
        if definition.agent.is_none() {
            fixed.insert(LeverKind::Told, "it has no guest agent".into());
            if !online::can_go(definition) {
                fixed.insert(LeverKind::Online, stays("it has no guest agent").to_string());
            }
        }
        fixed.into_iter().map(|(lever, reason)| Fixed { lever, reason }).collect()
    }

    /// Its vCPUs that stay whatever is asked for: where no agent takes them offline, or says that it cannot, those of its start.
    pub(in crate::libvirt) fn cold(&self, vm: &VmId, definition: &Definition) -> CpuSet {
        let plugs =
            definition.agent.is_none() || matches!(self.ways.get(vm), Some(By::Plugging | By::Unheard));
        if plugs { vcpus::cold(definition) } else { CpuSet::default() }
    }

    /// Only these VMs are left.
    pub(in crate::libvirt) fn retain(&mut self, is: impl Fn(&VmId) -> bool) {
        self.lacks.retain(|vm, _| is(vm));
        self.ways.retain(|vm, _| is(vm));
        self.asked.retain(|vm| is(vm));
        self.letting_go.retain(|vm, _| is(vm));
        self.opening.retain(|vm, _| is(vm));
        self.choosing.retain(|vm| is(vm));
        self.online.retain(|vm, (read, _)| is(vm) && read.elapsed() < NEWS);
    }

    /// The vCPUs that were read to be online a moment ago, when they were set or looked at to be set.
    pub(in crate::libvirt) fn online(&self, vm: &VmId) -> Option<&CpuSet> {
        self.online.get(vm).map(|(_, online)| online)
    }

    /// The vCPUs that are online are these, and are changed so.
    pub(in crate::libvirt) fn saw(&mut self, vm: &VmId, online: &CpuSet, by: By) {
        self.online.insert(vm.clone(), (Instant::now(), online.clone()));
        self.ways.insert(vm.clone(), by);
    }

    /// They are not what was read.
    pub(in crate::libvirt) fn forget(&mut self, vm: &VmId) {
        self.online.remove(vm);
    }

    /// They are going to be changed.
    pub(in crate::libvirt) fn changes(&mut self, vm: &VmId) {
        if self.is_by_agent(vm) {
            self.asked(vm);
        }
    }

    /// Whether they were read of its guest when they were read last.
    pub(in crate::libvirt) fn is_by_agent(&self, vm: &VmId) -> bool {
        self.ways.get(vm) == Some(&By::Agent)
    }

    /// Its guest was asked to take some offline or online, by this process or by one before it.
    pub(in crate::libvirt) fn asked(&mut self, vm: &VmId) {
        self.asked.insert(vm.clone());
    }

    /// Whether they can be known, and changed, so.
    ///
    /// # Errors
    /// If a guest took some offline or online that says nothing of that now: those that are plugged in are others.
    pub(in crate::libvirt) fn goes(&self, vm: &VmId, by: By) -> Result<(), MachineError> {
        if by == By::Unheard && self.asked.contains(vm) {
            let text = "its agent took vCPUs offline or online before, and does not say now which are";
            return Err(MachineError::Gone(text.into()));
        }
        Ok(())
    }

    /// Its guest was asked so long ago to let go of vCPUs that are there, by this process or by one before it.
    pub(in crate::libvirt) fn asked_to_let_go(&mut self, vm: &VmId, since: Duration) {
        if let Some(at) = Instant::now().checked_sub(since).filter(|_| since < LETS_GO) {
            self.letting_go.entry(vm.clone()).or_insert(at);
        }
    }

    /// How long it may yet let go of them.
    pub(in crate::libvirt) fn lets_go(&self, vm: &VmId) -> Option<Duration> {
        LETS_GO.checked_sub(self.letting_go.get(vm)?.elapsed()).filter(|left| !left.is_zero())
    }

    /// What came of plugging, which took some out or not.
    ///
    /// # Errors
    /// That of plugging; or if none was to go, but its guest may yet let go of those that it was asked for just before.
    pub(in crate::libvirt) fn plugged(
        &mut self,
        vm: &VmId,
        result: Result<bool, MachineError>,
    ) -> Result<(), MachineError> {
        match result {
            Ok(false) => match self.letting_go.get(vm).map(Instant::elapsed).filter(|since| *since < LETS_GO)
            {
                Some(since) => Err(MachineError::Gone(format!(
                    "its guest was asked to let go of vCPUs {} s ago, and may do so yet: to try again helps in {} s",
                    since.as_secs(),
                    (LETS_GO - since).as_secs() + 1
                ))),
                None => Ok(()),
            },
            Ok(true) => {
                self.letting_go.remove(vm);
                Ok(())
            }
            Err(error) => {
                if matches!(error, MachineError::Gone(_)) {
                    self.letting_go.insert(vm.clone(), Instant::now());
                }
                Err(error)
            }
        }
    }

    /// Its guest opened a file for others that was asked for at that time: who was late before that may be asked for one.
    pub(in crate::libvirt) fn opens(&mut self, vm: &VmId, at: Instant) {
        if self.opening.get(vm).is_some_and(|opening| opening.was_before(at)) {
            self.opening.remove(vm);
        }
    }

    /// Whether its guest may be asked to open a file.
    ///
    /// # Errors
    /// If it did not answer in time before.
    pub(in crate::libvirt) fn may_open(&self, vm: &VmId) -> Result<(), MachineError> {
        if self.opening.get(vm).is_none_or(|opening| opening.may(Instant::now())) {
            return Ok(());
        }
        let text = "its agent did not open a file in time; it is asked for none for a while";
        Err(MachineError::Gone(text.into()))
    }

    /// What came of asking its guest for a file.
    pub(in crate::libvirt) fn opened<T>(&mut self, vm: &VmId, result: &Result<T, MachineError>) {
        match result {
            Ok(_) => drop(self.opening.remove(vm)),
            Err(MachineError::Gone(why)) if guest::is_late(why) => {
                self.opening.entry(vm.clone()).or_default().late(Instant::now());
            }
            Err(_) => {}
        }
    }

    /// What its guest said, if it did, of whether its kernel chooses among its CPUs by itself.
    pub(in crate::libvirt) fn chose(&mut self, vm: &VmId, said: &Result<bool, MachineError>) {
        match said {
            Ok(true) => drop(self.choosing.insert(vm.clone())),
            Ok(false) => drop(self.choosing.remove(vm)),
            Err(_) => {}
        }
    }

    /// Whether it did so when its guest said it last.
    pub(in crate::libvirt) fn chooses(&self, vm: &VmId) -> bool {
        self.choosing.contains(vm)
    }

    /// What is unsupported stays so for a while; so does an agent that makes no sense.
    pub(in crate::libvirt) fn learn<T>(&mut self, vm: &VmId, lever: Lever, result: &Result<T, MachineError>) {
        let why = match result {
            Err(MachineError::Unsupported(why)) => why,
            Err(MachineError::Malformed(why)) if lever == Lever::Online => why,
            _ => return,
        };
        self.lacks.entry(vm.clone()).or_default().insert(lever.kind(), (Instant::now(), why.clone()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::libvirt::hand::tests::test_vm;

    #[test]
    fn how_vcpus_went_is_how_they_come_again() {
        let (mut hand, vm) = (Hand::new("test:///default"), test_vm());
        hand.saw(&vm, &CpuSet::first(4), By::Agent);
        assert_eq!(hand.goes(&vm, By::Unheard), Ok(()), "nothing was asked of it yet");
        hand.changes(&vm);
        let why = hand.goes(&vm, By::Unheard).unwrap_err().to_string();
        assert!(why.contains("does not say now"), "{why}");
        assert_eq!(hand.goes(&vm, By::Plugging), Ok(()), "it says that it cannot");
        let mut next = Hand::new("test:///default");
        assert_eq!(next.goes(&vm, By::Unheard), Ok(()));
        next.asked(&vm);
        assert!(next.goes(&vm, By::Unheard).is_err(), "one before it asked the guest");
        let late = MachineError::Gone("unplug request timed out".into());
        assert_eq!(hand.plugged(&vm, Ok(false)), Ok(()));
        assert_eq!(hand.plugged(&vm, Err(late.clone())), Err(late));
        let why = hand.plugged(&vm, Ok(false)).unwrap_err().to_string();
        assert!(why.contains("may do so yet"), "{why}");
        assert_eq!(hand.plugged(&vm, Ok(true)), Ok(()));
        assert_eq!(hand.plugged(&vm, Ok(false)), Ok(()), "it has let go");
        next.asked_to_let_go(&vm, LETS_GO);
        assert_eq!(next.plugged(&vm, Ok(false)), Ok(()), "it would have by now");
        assert_eq!(next.lets_go(&vm), None);
        next.asked_to_let_go(&vm, LETS_GO / 2);
        let why = next.plugged(&vm, Ok(false)).unwrap_err().to_string();
        assert!(why.contains("30 s ago"), "one before it asked the guest: {why}");
        assert!(why.ends_with("helps in 30 s"), "{why}");
        assert!(next.lets_go(&vm).is_some_and(|left| left <= LETS_GO / 2 && left > LETS_GO / 4));
    }

    #[test]
    fn the_vcpus_of_a_vm_without_agent_stay_unless_somebody_plugged_some_in() {
        let (hand, vm) = (Hand::new("test:///default"), test_vm());
        let stays = |current: u32| {
            let vcpu = |id| {
                let (yes, hot) =
                    (["no", "yes"][usize::from(id < current)], ["no", "yes"][usize::from(id > 1)]);
                format!("<vcpu id='{id}' enabled='{yes}' hotpluggable='{hot}'/>")
            };
            let vcpus: String = (0..4).map(vcpu).collect();
            let xml = format!("<domain><vcpu current='{current}'>4</vcpu><vcpus>{vcpus}</vcpus></domain>");
            let fixed = hand.fixed(&vm, &Definition::parse(&xml).unwrap());
            fixed.iter().any(|fixed| fixed.lever == LeverKind::Online)
        };
        assert_eq!([2, 3, 4].map(stays), [true, false, false]);
    }

    #[test]
    fn vcpus_of_its_start_stay_unless_an_agent_takes_them_offline() {
        let (mut hand, vm) = (Hand::new("test:///default"), test_vm());
        let vcpu = |(id, hot)| format!("<vcpu id='{id}' enabled='yes' hotpluggable='{hot}'/>");
        let vcpus: String = (0..4).zip(["no", "no", "yes", "yes"]).map(vcpu).collect();
        let xml = format!("<domain><vcpu>4</vcpu><vcpus>{vcpus}</vcpus></domain>");
        let silent = Definition::parse(&xml).unwrap();
        let with_agent = Definition { agent: Some(true), ..silent.clone() };
        let cold = |hand: &Hand| [&silent, &with_agent].map(|of| hand.cold(&vm, of).len());
        assert_eq!(cold(&hand), [2, 0], "nothing was asked of the agent yet");
        hand.saw(&vm, &CpuSet::first(4), By::Plugging);
        assert_eq!(cold(&hand), [2, 2], "it says that it cannot");
        hand.saw(&vm, &CpuSet::first(4), By::Unheard);
        assert_eq!(cold(&hand), [2, 2], "they are plugged then, too");
        hand.saw(&vm, &CpuSet::first(4), By::Agent);
        assert_eq!(cold(&hand), [2, 0]);
    }

    #[test]
    fn what_turned_out_not_to_be_there_is_asked_for_again_after_a_while_or_when_somebody_says_so() {
        let (mut hand, vm) = (Hand::new("test:///default"), test_vm());
        let definition = Definition { agent: Some(true), ..Definition::default() };
        let refused = Err::<(), _>(MachineError::Unsupported("it has been disabled".into()));
        let fixed =
            |hand: &Hand| hand.fixed(&vm, &definition).iter().map(|fixed| fixed.lever).collect::<Vec<_>>();
        hand.learn(&vm, Lever::Online, &refused);
        assert_eq!(fixed(&hand), [LeverKind::Online]);
        let lack = hand.lacks.get_mut(&vm).and_then(|lacks| lacks.get_mut(&LeverKind::Online)).unwrap();
        lack.0 = Instant::now().checked_sub(LACKS).unwrap();
        assert_eq!(fixed(&hand), []);
        hand.learn(&vm, Lever::Online, &refused);
        hand.ask_again();
        assert_eq!(fixed(&hand), []);
        let senseless = Err::<(), _>(MachineError::Malformed("no vCPU is online".into()));
        hand.learn(&vm, Lever::Weight, &senseless);
        assert_eq!(fixed(&hand), [], "that is what it was to weigh");
        hand.learn(&vm, Lever::Online, &senseless);
        assert_eq!(fixed(&hand), [LeverKind::Online]);
    }

    #[test]
    fn a_guest_that_did_not_open_a_file_in_time_is_asked_for_none_until_somebody_says_so_or_it_opens_others()
    {
        let (mut hand, vm) = (Hand::new("test:///default"), test_vm());
        let gone = |ms| Err::<(), _>(MachineError::Gone(guest::testing::silent(ms)));
        hand.opened(&vm, &gone(5001));
        assert_eq!(hand.may_open(&vm), Ok(()), "it is away, and was not asked");
        hand.opened(&vm, &gone(2001));
        assert!(matches!(hand.may_open(&vm), Err(MachineError::Gone(_))));
        hand.ask_again();
        assert_eq!(hand.may_open(&vm), Ok(()));
        // It opens one for whoever looks at it: since then, or before.
        let second = Duration::from_secs(1);
        (0..9).for_each(|_| hand.opened(&vm, &gone(2001)));
        hand.opens(&vm, Instant::now().checked_sub(second).unwrap());
        assert!(hand.may_open(&vm).is_err());
        hand.opens(&vm, Instant::now() + second);
        assert_eq!(hand.may_open(&vm), Ok(()));
    }
}

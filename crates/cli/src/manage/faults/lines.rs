//! Lines of the log about what failed, what came after all, and what looks say besides.

use super::daemons::{QUICK, at_most, of_vm3, ruled};
use super::whole::{Whole, configured};
use super::*;
use crate::manage::log::testing::said;

/// Lines about the last VM in so many steps.
fn lines(whole: &mut Whole<'_>, steps: u32) -> Vec<String> {
    of_vm3(&said(|| (0..steps).for_each(|_| whole.step(None))))
}

/// It answers each question, and takes no vCPU offline.
#[test]
fn a_guest_that_answers_and_refuses_has_a_line_and_one_when_it_answered() {
    let dir = directory();
    let args = configured(dir.path());
    let mut whole = ruled(&args, dir.path(), &at_most(2));
    whole.machine.0.borrow_mut().unplugged.insert(3, CpuSet::first(1));
    whole.start(None);
    let all = lines(&mut whole, 1200);
    let starts = ["not set vm=vm3 lever=\"online vCPUs\"", "asked again vm=vm3 lever=\"online vCPUs\""];
    let as_said = all.len() == 2 && all.iter().zip(starts).all(|(line, start)| line.starts_with(start));
    assert!(as_said, "{all:?}");
    // Once it has done it, it is news that it refuses.
    whole.machine.0.borrow_mut().unplugged.clear();
    assert!(lines(&mut whole, 300).iter().any(|line| line.starts_with("set vm=vm3")));
    let mut machine = whole.machine.0.borrow_mut();
    machine.unplugged.insert(3, CpuSet::first(1));
    machine.write(3, Lever::Online, &Value::Vcpus(CpuSet::first(4))).unwrap();
    drop(machine);
    let again = lines(&mut whole, 300);
    assert!(again.iter().any(|line| line.starts_with(starts[0])), "{again:?}");
}

#[test]
fn a_guest_that_is_silent_once_more_has_a_line_once_more() {
    let dir = directory();
    let args = configured(dir.path());
    let mut whole = ruled(&args, dir.path(), &at_most(2));
    whole.machine.0.borrow_mut().unplugged.insert(3, CpuSet::first(1));
    whole.start(None);
    for _ in 0..2 {
        whole.machine.0.borrow_mut().hung.insert(3);
        let silent = lines(&mut whole, 300);
        let not: Vec<_> = silent.iter().filter(|line| line.contains("error=")).collect();
        assert!(not.len() == 1 && not[0].contains("no answer"), "{silent:?}");
        whole.machine.0.borrow_mut().hung.clear();
        // It answers and refuses, and answers once more.
        let answers = lines(&mut whole, 600);
        assert!(answers.iter().any(|line| line.starts_with("asked again")), "{answers:?}");
    }
}

#[test]
fn what_cannot_be_put_back_did_not_come_late() {
    let dir = directory();
    let args = configured(dir.path());
    let mut whole = ruled(&args, dir.path(), &at_most(2));
    whole.start(None);
    (0..20).for_each(|_| whole.step(None));
    whole.machine.0.borrow_mut().denied.insert(3);
    whole.configure(&format!("{QUICK}size = \"none\"\n[[policy.vm]]\nname = \"vm3\"\nexclude = true\n"));
    let lines = lines(&mut whole, 400);
    assert!(lines.iter().all(|line| !line.contains("late=true")), "{lines:?}");
    assert_eq!(whole.machine.0.borrow_mut().truth(3, Lever::Online), Value::Vcpus(CpuSet::first(2)));
}

#[test]
fn what_a_look_says_besides_is_said_once_and_stands_in_the_status_while_it_is_so() {
    let dir = directory();
    let args = configured(dir.path());
    let mut whole = ruled(&args, dir.path(), &at_most(4));
    let note = "the host's files cannot be read";
    whole.machine.0.borrow_mut().notes.push(note.into());
    whole.start(None);
    let all = said(|| (0..20).for_each(|_| whole.step(None)));
    assert_eq!(all.iter().filter(|(_, line)| line.contains(note)).count(), 1, "{all:?}");
    let shown = |whole: &Whole<'_>| whole.daemon.as_ref().unwrap().shown().notes;
    assert_eq!(shown(&whole), [note]);
    whole.machine.0.borrow_mut().notes.clear();
    whole.step(None);
    assert_eq!(shown(&whole), Vec::<String>::new());
}

//! What is on disk before anything is changed.

use super::*;
use crate::manage::journal::testing::syncs;

#[test]
fn the_journal_and_its_name_are_synced_between_a_plan_and_its_first_write() {
    let dir = directory();
    let mut story = Story::new(dir.path(), Faulty::new(simulated(HOST)));
    story.start(None);
    for (vm, weight) in [(0, 200.0), (1, 300.0)] {
        let plan = [story.action(vm, Lever::Weight, Value::Weight(Weight(weight)))];
        story.machine.synced = None;
        let before = syncs();
        assert!(story.apply(&plan).iter().all(|outcome| outcome.result.is_ok()));
        assert_eq!(story.machine.synced.map(|synced| synced - before), Some(2));
    }
}

#[test]
fn who_starts_where_nothing_was_left_writes_the_journal_once() {
    let dir = directory();
    let mut story = Story::new(dir.path(), Faulty::new(simulated(HOST)));
    let before = syncs();
    story.start(None);
    assert_eq!((story.keeper.is_some(), syncs() - before), (true, 2));
}

#[test]
fn who_puts_back_what_is_left_says_so_long_as_the_file_still_has_it() {
    let (dir, mut story) = stories::changed();
    story.keeper = None;
    disk(dir.path(), true);
    let journal = Journal::held(dir.path(), "faulty", &Boot::named("boot")).unwrap();
    let mut keeper = Keeper::new(journal, Duration::from_secs(60));
    let mut restore = |machine: &mut Faulty| {
        let snapshot = machine.observe().unwrap();
        keeper.restore(machine, &snapshot).pending
    };
    assert!(restore(&mut story.machine).iter().any(|what| what.contains("journal cannot be written")));
    disk(dir.path(), false);
    let before = syncs();
    assert_eq!((restore(&mut story.machine), syncs() - before), (Vec::new(), 2));
    assert_eq!(Journal::left(dir.path(), &Boot::named("boot")).unwrap(), Some(("faulty".into(), 0)));
}

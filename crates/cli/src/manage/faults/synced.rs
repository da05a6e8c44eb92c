//! What is on disk before anything is changed.

use super::stories::{begun, first, longer, no_limit};
use super::*;
use crate::manage::journal::testing::syncs;

#[test]
fn the_journal_and_its_name_are_synced_between_a_plan_and_its_first_write() {
    let (_dir, mut story) = begun();
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

/// How often the journal is synced while what a plan changed is put back.
fn syncs_of_restore(lever: Lever, to: &Value, befalls: &dyn Fn(&mut Faulty)) -> u32 {
    let (_dir, mut story) = begun();
    let plan: Vec<Action> = (0..MANAGED).map(|vm| story.action(vm, lever, to.clone())).collect();
    story.step(&plan, None);
    befalls(&mut story.machine);
    let snapshot = story.machine.observe().unwrap();
    let before = syncs();
    story.keeper.as_mut().unwrap().restore(&mut story.machine, &snapshot);
    let after = syncs();
    story.machine.unlisted.clear();
    story.end();
    story.check().unwrap();
    after - before
}

/// Where there are many, a write for each takes longer than they do.
#[test]
fn guests_that_are_quick_are_marked_together() {
    // The first alone, as it is not known how long it takes; and that all is done.
    assert_eq!(syncs_of_restore(Lever::Online, &first(2), &|_| {}), 2 * 3);
}

/// Guest 1 takes longer than the moment for which guest 0 was marked with it.
#[test]
fn a_guest_that_was_marked_with_one_that_takes_long_is_whose_it_was_till_it_has_its_turn() {
    let stands = (0..).find_map(|kill| {
        let (dir, mut story) = begun();
        let plan: Vec<Action> = (0..MANAGED).map(|vm| story.action(vm, Lever::Online, first(1))).collect();
        story.step(&plan, None);
        (story.machine.slow, story.machine.slow_of) = (Duration::from_millis(600), Some(1));
        let (mut keeper, machine) = (story.keeper.take().unwrap(), &mut story.machine);
        let snapshot = machine.observe().unwrap();
        let restored = until_killed(Some(kill), move || keeper.restore(machine, &snapshot));
        story.machine.slow = Duration::ZERO;
        let now = [0, 1].map(|vm| story.machine.truth(vm, Lever::Online));
        if restored.is_some() || now != [first(1), first(VCPUS)] {
            return restored.map(|_| false);
        }
        let (_, entries) = Journal::found(dir.path(), &Boot::named("boot")).unwrap().unwrap();
        let next = entries.iter().find(|entry| entry.vm == story.machine.id(0)).unwrap();
        (!next.pending).then(|| {
            // An administrator does, before somebody starts again.
            story.machine.write(0, Lever::Online, &first(3)).unwrap();
            story.expected.insert((0, Lever::Online), first(3));
            story.end();
            story.check().unwrap();
            true
        })
    });
    assert_eq!(stands, Some(true), "it is marked till all is done");
}

#[test]
fn limits_are_marked_together_though_one_cannot_be_read() {
    let unread = |machine: &mut Faulty| machine.unlisted.extend([0]);
    assert_eq!(syncs_of_restore(Lever::Quota, &longer(), &unread), 2 * 2);
}

/// The kernel took away what we made it, so it could not be told to be ours before it has its turn.
#[test]
fn a_limit_that_was_not_marked_with_the_others_is_noted_before_it_is_put_back() {
    let lost = Value::Limit(Limit { quota_us: Some(700_000), period_us: 700_000, burst_us: 0 });
    let mut parts = 0;
    for kill in 0..30 {
        let (_dir, mut story) = begun();
        story.step(&[story.action(1, Lever::Quota, longer())], None);
        story.machine.write(1, Lever::Quota, &lost).unwrap();
        story.machine.lost = true;
        let (mut keeper, machine) = (story.keeper.take().unwrap(), &mut story.machine);
        let snapshot = machine.observe().unwrap();
        until_killed(Some(kill), move || keeper.restore(machine, &snapshot));
        let now = story.machine.truth(1, Lever::Quota);
        if now != lost && now != no_limit() {
            parts += 1;
            let note: crate::manage::keeper::Note = serde_json::from_str(&story.machine.kept[&1]).unwrap();
            assert_eq!(note.settings[0].wrote.len(), 1, "it is under way");
        }
    }
    assert!(parts > 0);
}

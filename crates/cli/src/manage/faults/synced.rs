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

//! Single faults, each with what has to come of it.

use super::*;

/// A daemon that has begun.
pub(super) fn begun() -> (tempfile::TempDir, Story) {
    let dir = directory();
    let mut story = Story::new(dir.path(), Faulty::new(simulated(HOST)));
    story.start(None);
    (dir, story)
}

/// One that has changed a weight of the host's and a guest's vCPUs.
pub(super) fn changed() -> (tempfile::TempDir, Story) {
    let (dir, mut story) = begun();
    let plan = [
        story.action(0, Lever::Weight, Value::Weight(Weight(200.0))),
        story.action(1, Lever::Online, Value::Vcpus(CpuSet::first(1))),
    ];
    story.step(&plan, None);
    (dir, story)
}

pub(super) fn first(vcpus: u32) -> Value {
    Value::Vcpus(CpuSet::first(vcpus))
}

pub(super) fn weighing(weight: u32) -> Value {
    Value::Weight(Weight(f64::from(weight)))
}

/// A limit of half a pCPU whose period was made longer.
pub(super) fn longer() -> Value {
    Value::Limit(Limit { quota_us: Some(250_000), period_us: 500_000, burst_us: 0 })
}

pub(super) fn no_limit() -> Value {
    Value::Limit(Limit { quota_us: None, period_us: 100_000, burst_us: 0 })
}

#[test]
fn whoever_has_hardly_any_time_does_a_part_of_a_plan_at_each_step_and_all_have_their_turn() {
    let (_dir, mut story) = begun();
    let keeper = story.keeper.as_mut().unwrap();
    keeper.may_take(Duration::ZERO);
    // The first never comes out.
    story.machine.denied.insert(0);
    let plan: Vec<Action> = (0..MANAGED).map(|vm| story.action(vm, Lever::Weight, weighing(200))).collect();
    for _ in 0..MANAGED {
        story.apply(&plan);
    }
    assert_eq!([1, 2].map(|vm| story.machine.truth(vm, Lever::Weight)), [weighing(200), weighing(200)]);
    story.end();
    story.check().unwrap();
}

#[test]
fn what_there_was_no_time_to_begin_with_is_not_taken_for_changed() {
    let (_dir, mut story) = begun();
    let budget = Duration::from_millis(400);
    story.keeper.as_mut().unwrap().may_take(budget);
    story.machine.slow = 2 * budget;
    let plan = [story.action(1, Lever::Weight, weighing(200)), story.action(0, Lever::Online, first(2))];
    let outcomes = story.apply(&plan);
    assert!(matches!(&outcomes[1].result, Err(MachineError::Untried(why)) if why.contains("not tried")));
    let levers: Vec<Lever> =
        story.keeper.as_ref().unwrap().entries().iter().map(|entry| entry.lever).collect();
    assert_eq!(levers, [Lever::Weight]);
    assert!(!story.machine.kept.contains_key(&0));
    story.machine.slow = Duration::ZERO;
    // Between what it is and what was intended.
    story.machine.write(0, Lever::Online, &first(3)).unwrap();
    story.expected.insert((0, Lever::Online), first(3));
    story.end();
    story.check().unwrap();
}

#[test]
fn what_is_put_back_counts_once_and_is_waited_for_only_where_that_may_help() {
    let (dir, mut story) = begun();
    let plan = [0, 1].map(|vm| story.action(vm, Lever::Online, Value::Vcpus(CpuSet::first(1))));
    story.step(&plan, None);
    story.keeper = None;
    let journal = Journal::open(dir.path(), "faulty", &Boot::named("boot")).unwrap();
    let mut keeper = Keeper::new(journal, Duration::from_secs(60));
    let mut restore = |story: &mut Story| {
        let snapshot = story.machine.observe().unwrap();
        let restored = keeper.restore(&mut story.machine, &snapshot);
        assert_eq!(restored.came, Vec::<String>::new());
        (restored.back, restored.pending.len(), restored.waits_for.is_some())
    };
    (story.machine.clinging, story.machine.denied) = (BTreeSet::from([0]), BTreeSet::from([1]));
    assert_eq!(restore(&mut story), (1, 2, true), "its note may yet be taken back");
    assert_eq!(restore(&mut story), (0, 2, true), "it is as it was already");
    story.machine.clinging.clear();
    assert_eq!(restore(&mut story), (0, 1, false), "nobody may do that");
    story.machine.heal();
    assert_eq!(restore(&mut story), (1, 0, false));
    story.check().unwrap();
}

#[test]
fn what_waits_behind_somebodys_backup_is_not_taken_for_put_back() {
    let (_dir, mut story) = begun();
    story.machine.busy.insert(0);
    let plan = [story.action(0, Lever::Weight, weighing(200))];
    let outcomes = story.apply(&plan);
    assert!(matches!(outcomes[0].result, Err(MachineError::Gone(_))), "{outcomes:?}");
    let snapshot = story.machine.observe().unwrap();
    let restore = |story: &mut Story| {
        let mut keeper = story.keeper.take().unwrap();
        let restored = keeper.restore(&mut story.machine, &snapshot);
        story.keeper = Some(keeper);
        (restored.back, restored.pending)
    };
    let (back, pending) = restore(&mut story);
    assert!(back == 0 && pending.len() == 1 && pending[0].contains("asked before"), "{pending:?}");
    story.machine.go_on();
    assert_eq!(restore(&mut story), (1, Vec::new()));
    story.end();
    story.check().unwrap();
}

#[test]
fn what_came_late_is_no_reason_to_write_over_what_somebody_makes_of_it_then() {
    let (_dir, mut story) = begun();
    story.machine.busy.insert(0);
    let plan = [story.action(0, Lever::Weight, weighing(200))];
    let was = story.machine.truth(0, Lever::Weight);
    let apply = |story: &mut Story| story.apply(&plan).remove(0).result;
    assert!(matches!(apply(&mut story), Err(MachineError::Gone(_))));
    story.machine.go_on();
    assert_eq!(story.machine.truth(0, Lever::Weight), weighing(200));
    // It is so by now: nothing is planned.
    story.step(&[], None);
    story.machine.write(0, Lever::Weight, &was).unwrap();
    let stands = apply(&mut story);
    assert!(
        matches!(&stands, Err(MachineError::Denied(why)) if why.contains("put the weight back")),
        "{stands:?}"
    );
    assert_eq!(story.machine.truth(0, Lever::Weight), was);
    story.end();
    story.check().unwrap();
}

#[test]
fn what_is_late_is_put_back_though_the_next_write_was_refused() {
    let (_dir, mut story) = begun();
    let plan = [story.action(0, Lever::Weight, weighing(200))];
    let apply = |story: &mut Story| story.apply(&plan).remove(0).result;
    story.machine.busy.insert(0);
    assert!(matches!(apply(&mut story), Err(MachineError::Gone(_))));
    story.machine.denied.insert(0);
    assert!(matches!(apply(&mut story), Err(MachineError::Denied(_))));
    story.machine.heal();
    assert_eq!(story.machine.truth(0, Lever::Weight), weighing(200));
    story.end();
    story.check().unwrap();
}

#[test]
fn what_is_released_is_put_back_while_the_rest_goes_on_and_a_hung_guest_later() {
    let (_dir, mut story) = begun();
    let one = || Value::Vcpus(CpuSet::first(1));
    let weight = || Value::Weight(Weight(200.0));
    let told = || Value::Told(Some(Cpus(1.0)));
    let plan = [
        story.action(0, Lever::Online, one()),
        story.action(0, Lever::Told, told()),
        story.action(0, Lever::Weight, weight()),
        story.action(1, Lever::Weight, weight()),
    ];
    story.step(&plan, None);
    story.machine.hung.insert(0);
    story.released.insert(0);
    story.step(&[], None);
    assert_eq!(story.machine.truth(0, Lever::Weight), story.expected[&(0, Lever::Weight)]);
    assert_eq!(story.machine.truth(0, Lever::Online), one(), "it did not hear it");
    assert_eq!(story.machine.truth(1, Lever::Weight), weight(), "the other goes on");
    story.machine.heal();
    story.now = story.now + Duration::from_secs(6);
    story.step(&[], None);
    assert_eq!(story.machine.truth(0, Lever::Online), one(), "it is not asked at each step");
    story.now = story.now + Duration::from_secs(6);
    story.step(&[], None);
    for lever in levers(0) {
        assert_eq!(story.machine.truth(0, lever), story.expected[&(0, lever)], "{lever}");
    }
    assert!(!story.machine.kept.contains_key(&0) && story.machine.kept.contains_key(&1));
    story.end();
    story.check().unwrap();
}

#[test]
fn what_an_earlier_run_left_is_put_back_as_soon_as_that_can_be_done() {
    let (_dir, mut story) = changed();
    // The next one starts while libvirtd does not answer.
    (story.keeper, story.machine.deaf) = (None, true);
    story.start(None);
    story.machine.heal();
    story.machine.hung.insert(1);
    story.step(&[], None);
    assert_eq!(story.machine.truth(0, Lever::Weight), story.expected[&(0, Lever::Weight)]);
    assert!(
        !story.machine.kept.contains_key(&0),
        "it is as it was: a daemon that ends now would leave its note"
    );
    assert_eq!(
        story.machine.truth(1, Lever::Online),
        Value::Vcpus(CpuSet::first(1)),
        "its guest is not there yet"
    );
    story.machine.heal();
    story.now = story.now + Duration::from_secs(12);
    // What this run wants is its own again.
    let mine = [story.action(0, Lever::Weight, Value::Weight(Weight(300.0)))];
    story.step(&mine, None);
    story.step(&[], None);
    assert_eq!(story.machine.truth(1, Lever::Online), story.expected[&(1, Lever::Online)]);
    assert_eq!(story.machine.truth(0, Lever::Weight), mine[0].to);
    story.end();
    story.check().unwrap();
}

#[test]
fn a_full_disk_keeps_nothing_from_being_put_back() {
    let (_dir, mut story) = changed();
    disk(&story.dir, true);
    let snapshot = story.machine.observe().unwrap();
    let restored = story.keeper.as_mut().unwrap().restore(&mut story.machine, &snapshot);
    assert_eq!((restored.back, restored.pending.len()), (2, 1), "{:?}", restored.pending);
    assert_eq!(restored.put.len(), 2);
    assert!(restored.put[0].what.starts_with("weight of vm0: "), "{:?}", restored.put);
    assert!(restored.pending[0].contains("journal"), "{:?}", restored.pending);
    story.check().unwrap();
    story.keeper = None;
    story.end();
    story.check().unwrap();
}

#[test]
fn a_journal_that_could_not_be_written_when_all_was_put_back_is_not_left_behind() {
    let (_dir, mut story) = changed();
    disk(&story.dir, true);
    story.released = BTreeSet::from([0, 1]);
    // A host's settings at once, a guest's once it is sure to be known what it was.
    story.step(&[], None);
    let guests = story.expected[&(1, Lever::Online)].clone();
    story.machine.write(1, Lever::Online, &guests).unwrap();
    story.now = story.now + Duration::from_secs(12);
    story.step(&[], None);
    let keeper = story.keeper.as_mut().unwrap();
    assert!(keeper.entries().is_empty() && !keeper.holds_nothing(), "the file still has them");
    story.end();
    assert_eq!(Journal::left(&story.dir, &Boot::named("boot")).unwrap(), Some(("faulty".into(), 0)));
    story.check().unwrap();
}

#[test]
fn vms_that_ended_are_forgotten_though_another_one_cannot_be_seen() {
    let (_dir, mut story) = begun();
    let plan = [0, 1].map(|vm| story.action(vm, Lever::VcpuQuota(1), limit(50_000)));
    story.step(&plan, None);
    story.machine.missed.insert(1);
    story.machine.gone.insert(0);
    story.step(&[], None);
    let left: Vec<&str> = story.keeper.as_ref().unwrap().entries().iter().map(|e| &*e.name).collect();
    assert_eq!(left, ["vm1"]);
    story.end();
    story.check().unwrap();
}

#[test]
fn the_note_of_a_vm_that_ended_is_not_asked_for_any_more_though_another_one_cannot_be_seen() {
    let (_dir, mut story) = begun();
    story.step(&[story.action(0, Lever::Weight, weighing(200))], None);
    assert!(!story.keeper.as_mut().unwrap().holds_nothing());
    story.machine.missed.insert(1);
    story.machine.gone.insert(0);
    story.step(&[], None);
    assert!(story.keeper.as_mut().unwrap().holds_nothing());
}

#[test]
fn a_group_that_plays_no_vm_any_more_gets_its_settings_back() {
    let (_dir, mut story) = changed();
    story.machine.holding.insert(0);
    story.step(&[], None);
    assert_eq!(story.machine.truth(0, Lever::Weight), story.expected[&(0, Lever::Weight)]);
    let left: Vec<&str> = story.keeper.as_ref().unwrap().entries().iter().map(|e| &*e.name).collect();
    assert_eq!(left, ["vm1"]);
}

#[test]
fn two_hundred_vms_at_once_are_changed_in_one_batch_and_put_back() {
    let text = "until = \"3600s\"\nhardware = { cores = 8 }\n[[vm]]\nname = \"a\"\ncount = 200\nvcpus = 4\nprogram = \"hog\"\n";
    let (mut sim, dir) = (simulated(text), directory());
    let journal = Journal::open(dir.path(), "sim", &Boot::named("boot")).unwrap();
    let mut keeper = Keeper::new(journal, Duration::from_secs(60));
    let snapshot = sim.observe().unwrap();
    let action = |vm: &corefit_core::machine::VmState| {
        let (to, why) = (Value::Vcpus(CpuSet::first(1)), Why::Available { available: Cpus(0.04) });
        Action { vm: vm.id.clone(), name: vm.name.clone(), lever: Lever::Online, from: None, to, why }
    };
    let actions: Vec<Action> = snapshot.vms.iter().map(action).collect();
    let outcomes = keeper.apply(&mut sim, &actions, snapshot.at);
    assert!(outcomes.iter().all(|outcome| outcome.result == Ok(Value::Vcpus(CpuSet::first(1)))));
    assert_eq!(keeper.entries().len(), 200);
    let restored = keeper.restore(&mut sim, &snapshot);
    assert_eq!((restored.back, restored.pending.len(), keeper.entries().len()), (200, 0, 0));
    let after = sim.observe().unwrap();
    assert!(after.vms.iter().all(|vm| vm.vcpus.iter().all(|vcpu| vcpu.online)));
}

#[test]
fn nothing_is_changed_while_the_journal_cannot_be_written() {
    let (_dir, mut story) = begun();
    disk(&story.dir, true);
    let plan = story.plan(&mut Random(3));
    let outcomes = story.apply(&plan);
    for outcome in outcomes {
        let refused = matches!(&outcome.result, Err(MachineError::Untried(why)) if why.contains("journal"));
        let nothing_to_do = outcome.result.as_ref() == Ok(&outcome.action.to);
        assert!(refused || nothing_to_do, "{outcome:?}");
    }
    assert!(story.machine.touched.is_empty());
}

#[test]
fn what_is_as_it_is_wanted_already_is_not_told_as_set() {
    let (_dir, mut story) = begun();
    let plan = [story.action(1, Lever::Weight, weighing(200)), story.action(0, Lever::Online, first(2))];
    for had in [false, true] {
        story.step(&plan, None);
        let keeper = story.keeper.as_ref().unwrap();
        assert_eq!([0, 1].map(|at| keeper.had(&plan[at])), [had; 2]);
    }
}

#[test]
fn to_ask_whether_a_guest_answers_is_not_to_write_what_was_wanted_then() {
    let (_dir, mut story) = begun();
    story.machine.halfway.insert(0);
    story.step(&[story.action(0, Lever::Online, first(1))], None);
    story.machine.heal();
    let half = story.machine.truth(0, Lever::Online);
    assert!(half != first(1) && half != first(4), "{half}");
    let asks = Action { why: Why::AskedAgain, ..story.action(0, Lever::Online, first(1)) };
    let outcomes = story.apply(std::slice::from_ref(&asks));
    assert_eq!(outcomes[0].result, Ok(half.clone()), "it answers");
    assert_eq!(story.machine.truth(0, Lever::Online), half);
    story.end();
    story.check().unwrap();
}

#[test]
fn what_was_refused_is_not_ours_nor_on_its_way() {
    let (_dir, mut story) = begun();
    let refused = |story: &mut Story, plan: &[Action]| {
        story.machine.denied.insert(1);
        story.step(plan, None);
        story.machine.heal();
    };
    let plan = [story.action(1, Lever::Online, first(2))];
    refused(&mut story, &plan);
    assert_eq!(story.keeper.as_ref().unwrap().entries(), [], "nothing is changed");
    let plan = [story.action(1, Lever::Online, first(1)), story.action(1, Lever::Weight, weighing(200))];
    story.step(&plan, None);
    let plan = [story.action(1, Lever::Online, first(3)), story.action(1, Lever::Weight, weighing(300))];
    refused(&mut story, &plan);
    // Between what it was and what was refused, and what was refused.
    for (lever, value) in [(Lever::Online, first(2)), (Lever::Weight, weighing(300))] {
        story.machine.write(1, lever, &value).unwrap();
        story.expected.insert((1, lever), value);
    }
    story.end();
    story.check().unwrap();
}

/// He writes between corefit's reading and its writing.
#[test]
fn what_somebody_makes_of_vcpus_while_ours_are_refused_is_his() {
    let refused = |story: &mut Story, to: u32, his: Value| {
        let plan = [story.action(1, Lever::Online, first(to))];
        story.machine.denied.insert(1);
        story.machine.soon_made = Some((1, (1, Lever::Online), his.clone()));
        let result = story.apply(&plan).remove(0).result;
        assert!(matches!(result, Err(MachineError::Denied(_))), "{result:?}");
        assert_eq!(story.machine.truth(1, Lever::Online), his, "no part of ours");
        story.machine.heal();
        story.expected.insert((1, Lever::Online), his);
    };
    let changes = |story: &mut Story, to: u32| {
        let plan = [story.action(1, Lever::Online, first(to))];
        story.apply(&plan).remove(0).result
    };
    // Of one that nothing was changed of: it is what the next change begins with.
    let (_dir, mut story) = begun();
    refused(&mut story, 2, first(1));
    assert_eq!(story.keeper.as_ref().unwrap().entries(), []);
    assert_eq!(changes(&mut story, 2), Ok(first(2)));
    story.end();
    story.check().unwrap();
    // Of one that was changed.
    let (_dir, mut story) = begun();
    assert_eq!(changes(&mut story, 3), Ok(first(3)));
    refused(&mut story, 2, first(1));
    story.end();
    story.check().unwrap();
    // Of one of which something was on its way.
    let (_dir, mut story) = begun();
    story.machine.halfway.insert(1);
    let _ = changes(&mut story, 1);
    assert!(story.keeper.as_ref().unwrap().entries()[0].pending);
    story.machine.halfway.clear();
    refused(&mut story, 2, Value::Vcpus("1,3".parse().unwrap()));
    story.end();
    story.check().unwrap();
}

/// A daemon that has changed all its VMs' vCPUs and more of the host's, and was killed: the next one, which has so long for guests.
fn next(budget: Duration) -> (tempfile::TempDir, Story, Keeper) {
    let (dir, mut story) = begun();
    let one = || Value::Vcpus(CpuSet::first(1));
    let mut plan: Vec<Action> = vec![story.action(1, Lever::Nodes, Value::Nodes("1".parse().ok()))];
    plan.extend((0..MANAGED).map(|vm| story.action(vm, Lever::Online, one())));
    plan.push(story.action(1, Lever::Weight, Value::Weight(Weight(200.0))));
    story.step(&plan, None);
    story.keeper = None;
    story.machine.asked.clear();
    let journal = Journal::open(dir.path(), "faulty", &Boot::named("boot")).unwrap();
    (dir, story, Keeper::new(journal, budget))
}

#[test]
fn guests_come_last_and_of_them_who_did_not_answer() {
    let (_dir, mut story, mut keeper) = next(Duration::from_secs(60));
    story.machine.hung.insert(2);
    let restore = |story: &mut Story, keeper: &mut Keeper| {
        let snapshot = story.machine.observe().unwrap();
        // There is time for one that does not answer.
        let restored = keeper.restore_while(&mut story.machine, &snapshot, &|asking| asking.missing == 0);
        (restored.back, restored.pending.len())
    };
    assert_eq!(restore(&mut story, &mut keeper), (2, 3));
    assert_eq!(story.machine.asked, [2]);
    for lever in [Lever::Weight, Lever::Nodes] {
        assert_eq!(story.machine.truth(1, lever), story.expected[&(1, lever)]);
    }
    assert_eq!(restore(&mut story, &mut keeper), (2, 1));
    assert_eq!(story.machine.asked[1..], [1, 1, 0, 0, 2]);
    story.machine.heal();
    assert_eq!(restore(&mut story, &mut keeper), (1, 0));
    story.check().unwrap();
}

#[test]
fn guests_that_answered_the_machine_are_asked_before_those_that_did_not() {
    let (_dir, mut story, mut keeper) = next(Duration::from_secs(60));
    (story.machine.hung, story.machine.unheard) = (BTreeSet::from([2]), BTreeSet::from([2]));
    let snapshot = story.machine.observe().unwrap();
    let restored = keeper.restore_while(&mut story.machine, &snapshot, &|asking| asking.missing == 0);
    assert_eq!((restored.back, restored.pending.len()), (4, 1));
    assert_eq!(story.machine.asked, [1, 1, 0, 0, 2]);
}

#[test]
fn who_has_no_time_for_guests_leaves_them_for_later_and_the_hosts_settings_are_put_back() {
    for released in [false, true] {
        let (_dir, mut story, mut keeper) = next(Duration::ZERO);
        let mut snapshot = story.machine.observe().unwrap();
        for _ in 0..2 {
            let restored = match released {
                true => keeper.release(&mut story.machine, &snapshot, |_, _| None),
                false => keeper.restore(&mut story.machine, &snapshot),
            };
            assert!(restored.pending.iter().all(|what| what.contains("not asked")), "{:?}", restored.pending);
            assert_eq!(restored.pending.len(), 3, "they are not taken for asked");
            snapshot.at = snapshot.at + Duration::from_secs(1);
        }
        assert!(story.machine.asked.is_empty(), "{:?}", story.machine.asked);
        assert!(keeper.entries().iter().all(|entry| keeper.owes(entry) && entry.lever == Lever::Online));
        drop(keeper);
        story.end();
        story.check().unwrap();
    }
}

#[test]
fn who_never_answers_is_asked_ever_less_often() {
    let (_dir, mut story, mut keeper) = next(Duration::from_secs(60));
    story.machine.hung = BTreeSet::from([0]);
    let mut snapshot = story.machine.observe().unwrap();
    let answers = snapshot.vms[0].guest.take();
    assert_eq!((&snapshot.vms[0].id, answers.is_some()), (&story.machine.id(0), true));
    for _ in 0..700 {
        keeper.release(&mut story.machine, &snapshot, |_, _| None);
        snapshot.at = snapshot.at + Duration::from_secs(1);
    }
    // At 0, 10, 30, 70, 150, 310 and 630 s.
    let asked = |story: &Story| story.machine.asked.iter().filter(|vm| **vm == 0).count();
    assert_eq!(asked(&story), 7);
    assert_eq!(keeper.awaits(), BTreeSet::from([story.machine.id(0)]));
    // It answers others again: then at once, and once.
    snapshot.vms[0].guest = answers;
    for _ in 0..5 {
        keeper.release(&mut story.machine, &snapshot, |_, _| None);
        snapshot.at = snapshot.at + Duration::from_secs(1);
    }
    assert_eq!(asked(&story), 8);
    story.machine.hung.clear();
    snapshot.at = snapshot.at + Duration::from_secs(10);
    keeper.release(&mut story.machine, &snapshot, |_, _| None);
    assert_eq!(keeper.awaits(), BTreeSet::new());
    drop(keeper);
    story.end();
    story.check().unwrap();
}

#[test]
fn a_vcpu_that_is_plugged_out_is_put_back_before_its_own_settings() {
    let (_dir, mut story) = begun();
    let limited = [story.action(1, Lever::VcpuQuota(1), limit(50_000))];
    let smaller = [story.action(1, Lever::Online, Value::Vcpus(CpuSet::first(1)))];
    story.machine.plugging.insert(1);
    story.step(&limited, None);
    story.step(&smaller, None);
    assert!(story.machine.current(&story.machine.id(1), Lever::VcpuQuota(1)).is_err());
    story.end();
    story.check().unwrap();
}

//! What VMs carry with them, and whoever finds it.

use super::faulty::Fault;
use super::stories::{begun, first, longer, no_limit, weighing};
use super::*;
use crate::manage::keeper::{Note, Setting};

#[test]
fn what_became_somebody_elses_is_not_in_the_note_that_the_next_run_finds() {
    let (_dir, mut story) = begun();
    let plan = [story.action(1, Lever::Weight, weighing(200)), story.action(1, Lever::Online, first(2))];
    story.step(&plan, None);
    // Between what it was and what it is.
    story.machine.write(1, Lever::Online, &first(3)).unwrap();
    story.expected.insert((1, Lever::Online), first(3));
    story.step(&plan[1..], None);
    story.keeper = None;
    story.end();
    story.check().unwrap();
}

#[test]
fn a_note_of_another_version_is_named_once_and_left_as_it_is() {
    for text in
        ["{\"corefit\":2,\"settings\":[]}", "{\"corefit\":1,\"settings\":[{\"lever\":\"Wings\"}]}", "?"]
    {
        let (_dir, mut story) = begun();
        story.machine.kept.insert(1, text.into());
        let mut named = 0;
        for weight in [200, 300] {
            let snapshot = story.machine.observe().unwrap();
            let keeper = story.keeper.as_mut().unwrap();
            named += keeper.adopt(&mut story.machine, &snapshot).len();
            let plan = [story.action(1, Lever::Weight, weighing(weight))];
            story.step(&plan, None);
        }
        assert_eq!(named, 1);
        let snapshot = story.machine.observe().unwrap();
        let restored = story.keeper.as_mut().unwrap().restore(&mut story.machine, &snapshot);
        assert_eq!((restored.back, restored.pending.len()), (1, 0), "{restored:?}");
        assert_eq!(story.machine.kept.remove(&1).as_deref(), Some(text));
        story.end();
        story.check().unwrap();
    }
}

#[test]
fn a_vm_that_the_look_of_the_end_missed_is_put_back_and_its_note_taken_back() {
    let (_dir, mut story) = begun();
    let plan = story.plan(&mut Random(7));
    story.step(&plan, None);
    assert!(!story.machine.kept.is_empty());
    story.machine.missed = (0..MANAGED).collect();
    story.keeper = None;
    story.start(None);
    story.check().unwrap();
}

#[test]
fn a_vm_that_cannot_carry_what_it_was_is_told_of_once() {
    let (_dir, mut story) = begun();
    story.machine.unkeeping.insert(0);
    for weight in [200, 300] {
        story.step(&[story.action(0, Lever::Weight, weighing(weight))], None);
    }
    let notes = story.keeper.as_mut().unwrap().unsaid();
    assert!(notes.len() == 1 && notes[0].contains("\"vm0\" cannot carry"), "{notes:?}");
    story.machine.heal();
    story.step(&[story.action(0, Lever::Weight, weighing(400))], None);
    assert!(story.machine.kept.contains_key(&0) && story.keeper.as_mut().unwrap().unsaid().is_empty());
    // The next time is another one.
    story.machine.unkeeping.insert(0);
    story.step(&[story.action(0, Lever::Weight, weighing(500))], None);
    assert_eq!(story.keeper.as_mut().unwrap().unsaid().len(), 1);
    story.end();
    story.check().unwrap();
}

#[test]
fn what_would_go_with_a_vm_is_not_changed_while_it_cannot_carry_what_it_was() {
    let (_dir, mut story) = begun();
    story.machine.unkeeping.insert(0);
    let (slice, told) = (Value::Slice(Some(500_000 + SLICE_MARK_NS)), Value::Told(Some(Cpus(2.0))));
    let plan = [
        story.action(0, Lever::Online, first(2)),
        story.action(0, Lever::Weight, weighing(200)),
        story.action(0, Lever::Slice(1), slice),
        story.action(0, Lever::Told, told),
    ];
    let outcomes = story.apply(&plan);
    let waits = |outcome: &Outcome| matches!(outcome.result, Err(MachineError::Gone(_)));
    assert_eq!(outcomes.iter().map(waits).collect::<Vec<_>>(), [true, true, false, false], "{outcomes:?}");
    let levers: Vec<Lever> =
        story.keeper.as_ref().unwrap().entries().iter().map(|entry| entry.lever).collect();
    assert_eq!(levers, [Lever::Slice(1), Lever::Told]);
    story.machine.heal();
    assert!(story.apply(&plan[..2]).iter().all(|outcome| outcome.result.is_ok()));
    story.end();
    story.check().unwrap();
}

/// After a restart of the host many may be resumed, with agents that do not answer.
#[test]
fn guests_are_asked_for_what_their_vms_brought_only_while_there_is_time() {
    let (_dir, mut story) = begun();
    let setting = || Setting { lever: Lever::Online, original: first(4), wrote: vec![first(2)] };
    for vm in 0..MANAGED {
        let note = Note { corefit: 1, settings: vec![setting()] };
        story.machine.write(vm, Lever::Online, &first(2)).unwrap();
        story.machine.kept.insert(vm, serde_json::to_string(&note).unwrap());
    }
    story.machine.hung = (0..MANAGED).collect();
    let snapshot = story.machine.observe().unwrap();
    let keeper = story.keeper.as_mut().unwrap();
    keeper.may_take(Duration::ZERO);
    // As these, what looks show to have come is asked for.
    for _ in 0..2 {
        keeper.adopt(&mut story.machine, &snapshot);
        assert_eq!((keeper.entries().len(), &story.machine.asked[..]), (MANAGED as usize, &[][..]));
    }
    keeper.may_take(Duration::from_secs(60));
    keeper.adopt(&mut story.machine, &snapshot);
    assert_eq!(story.machine.asked, [0, 1, 2]);
    story.end();
    story.check().unwrap();
}

#[test]
fn pins_of_another_host_become_those_that_this_one_has() {
    let (_dir, mut story) = begun();
    // It came from a host with more pCPUs, where it was pinned to two of them, and was moved by corefit.
    let set = |text: &str| Value::Pcpus(text.parse().unwrap());
    let setting = |vcpu, original, wrote| Setting {
        lever: Lever::Affinity(vcpu),
        original: set(original),
        wrote: vec![set(wrote)],
    };
    let settings = vec![setting(1, "0,40", "1"), setting(2, "41", "1")];
    let note = serde_json::to_string(&Note { corefit: 1, settings }).unwrap();
    for vcpu in [1, 2] {
        story.machine.sim.set(&VmId("sim-1".into()), Lever::Affinity(vcpu), &set("1")).unwrap();
    }
    story.expected.insert((1, Lever::Affinity(1)), set("0"));
    story.machine.kept.insert(1, note);
    let snapshot = story.machine.observe().unwrap();
    let notes = story.keeper.as_mut().unwrap().adopt(&mut story.machine, &snapshot);
    assert!(notes.len() == 2 && notes.iter().all(|note| note.contains("no such pCPUs")), "{notes:?}");
    story.end();
    story.check().unwrap();
    assert_eq!(story.machine.truth(1, Lever::Affinity(2)), set("0-1"), "none of its pCPUs is here");
}

/// A VM that came with settings that are as corefit made them on another host, adopted; `unknown`: while it is not known which pCPUs there
/// are here.
fn came(settings: Vec<Setting>, unknown: bool) -> (tempfile::TempDir, Story) {
    let (dir, mut story) = begun();
    for Setting { lever, wrote, .. } in &settings {
        story.machine.write(1, *lever, wrote.last().unwrap()).unwrap();
    }
    story.machine.kept.insert(1, serde_json::to_string(&Note { corefit: 1, settings }).unwrap());
    story.machine.pcpus_unknown = unknown;
    let snapshot = story.machine.observe().unwrap();
    story.keeper.as_mut().unwrap().adopt(&mut story.machine, &snapshot);
    story.machine.pcpus_unknown = false;
    (dir, story)
}

/// The note says that nothing was on its way when it was made.
#[test]
fn vcpus_that_somebody_put_back_before_their_vm_came_are_nobodys_change() {
    for (times, ours) in [(2, false), (1, true)] {
        let (_dir, mut story) = begun();
        let wrote = vec![first(2); times];
        let settings = vec![Setting { lever: Lever::Online, original: first(VCPUS), wrote }];
        story.machine.kept.insert(1, serde_json::to_string(&Note { corefit: 1, settings }).unwrap());
        story.step(&[], None);
        let keeper = story.keeper.as_ref().unwrap();
        assert_eq!(keeper.entries().len(), usize::from(ours), "it may yet let go of some: {ours}");
    }
}

#[test]
fn a_vm_that_goes_back_to_where_it_came_from_brings_what_its_settings_were_there() {
    let pcpus = |list: &str| Value::Pcpus(list.parse().unwrap());
    let nodes = |list: &str| Value::Nodes(list.parse().ok());
    let all = Value::Pcpus(CpuSet::default());
    let settings = || {
        let of = |lever, original: &Value, wrote| Setting {
            lever,
            original: original.clone(),
            wrote: vec![wrote],
        };
        vec![
            of(Lever::Affinity(0), &pcpus("0-5"), pcpus("0")),
            of(Lever::Affinity(1), &pcpus("4-5"), pcpus("0")),
            of(Lever::Affinity(2), &all, pcpus("0")),
            of(Lever::Nodes, &nodes("0,7"), nodes("1")),
        ]
    };
    let (_dir, mut story) = came(settings(), false);
    let brings = |story: &Story| {
        let note: Note = serde_json::from_str(&story.machine.kept[&1]).unwrap();
        note.settings.into_iter().map(|setting| setting.original).collect::<Vec<_>>()
    };
    let originals: Vec<Value> = settings().into_iter().map(|setting| setting.original).collect();
    // Moved here as well, then to as much of what they were as there is here.
    for list in ["1", "0-1"] {
        let plan = [0, 1, 2].map(|vcpu| story.action(1, Lever::Affinity(vcpu), pcpus(list)));
        story.step(&plan, None);
        assert_eq!(brings(&story), originals);
    }
    // Also by the next one's journal.
    let found = Journal::found(&story.dir, &Boot::named("boot")).unwrap().unwrap().1;
    let came: Vec<Option<Value>> = found.into_iter().map(|entry| entry.came).collect();
    assert_eq!(came, originals.into_iter().map(Some).collect::<Vec<_>>());
    for vcpu in [0, 1, 2] {
        story.expected.insert((1, Lever::Affinity(vcpu)), pcpus("0-1"));
    }
    story.expected.insert((1, Lever::Nodes), nodes("0"));
    story.end();
    story.check().unwrap();
}

#[test]
fn pins_that_came_while_no_pcpu_was_known_are_put_back_and_not_to_none() {
    let pcpus = |list: &str| Value::Pcpus(list.parse().unwrap());
    let of = |vcpu, original| Setting { lever: Lever::Affinity(vcpu), original, wrote: vec![pcpus("0")] };
    let settings = vec![of(1, pcpus("1")), of(2, Value::Pcpus(CpuSet::default())), of(3, pcpus("1,7"))];
    let (_dir, mut story) = came(settings, true);
    let originals = |story: &Story| {
        story
            .keeper
            .as_ref()
            .unwrap()
            .entries()
            .iter()
            .map(|entry| entry.original.clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(originals(&story), [pcpus("1"), Value::Pcpus(CpuSet::default()), pcpus("1,7")]);
    story.step(&[], None);
    assert_eq!(originals(&story), [pcpus("1"), pcpus("0-1"), pcpus("1")]);
    for (vcpu, list) in [(1, "1"), (2, "0-1"), (3, "1")] {
        story.expected.insert((1, Lever::Affinity(vcpu)), pcpus(list));
    }
    story.end();
    story.check().unwrap();
}

/// A VM with a note of a setting that is none of anybody's here.
fn takes_nothing_over(mut story: Story, setting: Setting) {
    let note = Note { corefit: 1, settings: vec![setting] };
    story.machine.kept.insert(1, serde_json::to_string(&note).unwrap());
    let snapshot = story.machine.observe().unwrap();
    let keeper = story.keeper.as_mut().unwrap();
    assert_eq!(keeper.adopt(&mut story.machine, &snapshot), Vec::<String>::new());
    assert_eq!(keeper.entries(), []);
    story.end();
    story.check().unwrap();
}

#[test]
fn what_cannot_travel_is_not_taken_over_where_there_is_no_such_setting() {
    let (_dir, mut story) = begun();
    story.machine.plugging.insert(1);
    story.machine.write(1, Lever::Online, &first(1)).unwrap();
    story.expected.insert((1, Lever::Online), first(1));
    let (lever, original) = (Lever::VcpuQuota(1), limit(60_000));
    takes_nothing_over(story, Setting { lever, original, wrote: vec![limit(50_000)] });
}

#[test]
fn a_setting_that_is_as_it_was_is_not_taken_over_from_a_note() {
    let (_dir, mut story) = begun();
    let original = story.machine.truth(1, Lever::Weight);
    let wrote = vec![Value::Weight(Weight(200.0)), original.clone()];
    takes_nothing_over(story, Setting { lever: Lever::Weight, original, wrote });
}

#[test]
fn what_went_back_leaves_the_note_of_its_vm_which_has_the_rest() {
    let (_dir, mut story) = begun();
    let before = story.machine.truth(1, Lever::Weight);
    let plan = [
        story.action(1, Lever::Weight, Value::Weight(Weight(200.0))),
        story.action(1, Lever::Online, Value::Vcpus(CpuSet::first(1))),
    ];
    story.step(&plan, None);
    assert!(story.machine.kept[&1].contains("weight") && story.machine.kept[&1].contains("online"));
    story.step(&[story.action(1, Lever::Weight, before)], None);
    assert!(!story.machine.kept[&1].contains("weight") && story.machine.kept[&1].contains("online"));
    story.end();
    story.check().unwrap();
}

#[test]
fn a_note_that_somebody_removed_or_changed_is_made_again() {
    let (_dir, mut story) = begun();
    story.step(&[story.action(1, Lever::Weight, weighing(200))], None);
    let note = story.machine.kept[&1].clone();
    let changed = serde_json::to_string(&Note { corefit: 1, settings: Vec::new() }).unwrap();
    for text in [None, Some(changed), None] {
        match &text {
            Some(text) => drop(story.machine.kept.insert(1, text.clone())),
            None => drop(story.machine.kept.remove(&1)),
        }
        story.step(&[], None);
        assert_eq!(story.machine.kept.get(&1), text.as_ref(), "the look may be of before it was made");
        story.step(&[], None);
        assert_eq!(story.machine.kept.get(&1), Some(&note));
        story.step(&[], None);
    }
    story.end();
    story.check().unwrap();
}

#[test]
fn a_vm_that_might_use_all_of_a_host_may_use_all_of_the_next_one() {
    let (_dir, mut story) = begun();
    let pcpus = |list: &str| Value::Pcpus(list.parse().unwrap());
    let lever = Lever::Affinity(1);
    assert_eq!(story.machine.truth(1, lever), pcpus("0-1"), "all of this one");
    story.step(&[story.action(1, lever, pcpus("1"))], None);
    let note = story.machine.kept[&1].clone();
    let known: Note = serde_json::from_str(&note).unwrap();
    assert_eq!(known.settings[0].original, Value::Pcpus(CpuSet::default()), "however many there are");
    story.end();
    story.start(None);
    // As it comes to a host like this one.
    story.machine.write(1, lever, &pcpus("1")).unwrap();
    story.machine.kept.insert(1, note);
    let snapshot = story.machine.observe().unwrap();
    let notes = story.keeper.as_mut().unwrap().adopt(&mut story.machine, &snapshot);
    assert!(notes.len() == 1 && notes[0].ends_with("(1, before 0-1)"), "{notes:?}");
    story.end();
    story.check().unwrap();
}

/// Both are between what they were and what corefit made them, as they may be found while that is under way.
#[test]
fn what_somebody_makes_of_settings_that_were_read_back_stands_where_their_vm_goes() {
    for pends in [false, true] {
        let (_dir, mut story) = begun();
        story.machine.write(1, Lever::Quota, &limit(50_000)).unwrap();
        let plan = [story.action(1, Lever::Quota, longer()), story.action(1, Lever::Online, first(2))];
        story.machine.tardy.extend(pends.then_some(1));
        story.step(&plan, None);
        if pends {
            // Its guest did so late, which a look shows.
            story.machine.heal();
            story.machine.write(1, Lever::Online, &first(2)).unwrap();
            story.step(&[Action { why: Why::AskedAgain, ..plan[1].clone() }], None);
            story.step(&[], None);
        }
        for (lever, value) in [(Lever::Quota, no_limit()), (Lever::Online, first(3))] {
            story.machine.write(1, lever, &value).unwrap();
            story.expected.insert((1, lever), value);
        }
        story.machine.befall(1, Fault::Moved);
        story.step(&[], None);
        assert_eq!(story.keeper.as_ref().unwrap().entries(), []);
        story.end();
        story.check().unwrap();
    }
}

/// Killed on the way to what is planned, or back, which one guest goes halfway.
#[test]
fn what_is_half_done_is_put_back_here_and_where_its_vm_goes() {
    for (back, moves) in [(false, true), (true, true), (true, false)] {
        let killed = Story::at_each_place(|story, place| {
            let limit = |quota_us, period_us| {
                Value::Limit(Limit { quota_us: Some(quota_us), period_us, burst_us: 5_000 })
            };
            let plan = [
                story.action(1, Lever::Quota, limit(100_000, 500_000)),
                story.action(1, Lever::Online, first(2)),
                story.action(2, Lever::Online, first(1)),
            ];
            story.step(&plan, Some(place).filter(|_| !back));
            if back {
                story.keeper = None;
                story.machine.halfway.insert(2);
                story.start(Some(place));
            }
            (1..=2).filter(|_| moves).for_each(|vm| story.machine.befall(vm, Fault::Moved));
            story.keeper.is_none()
        });
        assert!(matches!(killed, Ok(11..)), "back {back}: {killed:?}");
    }
}

#[test]
fn a_limit_that_saves_nothing_where_its_vm_goes_is_put_back_there() {
    let limit = |quota_us: u64, longer, burst_us| {
        Value::Limit(Limit { quota_us: Some(quota_us * longer), period_us: 100_000 * longer, burst_us })
    };
    for burst_us in [0, 5_000] {
        let (_dir, mut story) = begun();
        let (lever, made) = (Lever::Quota, limit(50_000, 2, 10_000));
        let (original, wrote) = (limit(50_000, 1, burst_us), vec![made.clone(), made]);
        let settings = vec![Setting { lever, original, wrote }];
        story.machine.write(1, lever, &limit(50_000, 2, 0)).unwrap();
        let note = Note { corefit: 1, settings };
        story.machine.kept.insert(1, serde_json::to_string(&note).unwrap());
        story.expected.insert((1, lever), limit(50_000, 1, 0));
        story.end();
        story.check().unwrap();
    }
}

/// As where a limit came with it, which is put back before anybody decides on it here.
#[test]
fn what_was_put_back_and_is_changed_anew_is_put_back_at_once_when_nobody_manages_it_any_more() {
    let (_dir, mut story) = begun();
    story.step(&[story.action(1, Lever::Quota, limit(40_000))], None);
    story.machine.befall(1, Fault::Moved);
    story.step(&[story.action(1, Lever::Quota, limit(50_000))], None);
    assert_eq!(story.machine.truth(1, Lever::Quota), limit(50_000));
    story.released.insert(1);
    story.step(&[], None);
    story.check().unwrap();
}

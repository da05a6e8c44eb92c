//! What somebody else changes meanwhile.

use corefit_core::decide::{Policy, Step};

use super::faulty::Fault;
use super::stories::{begun, first, longer, no_limit, weighing};
use super::*;
use crate::manage::status::{Setting, VmStatus};

#[test]
fn what_an_administrator_changed_is_left_alone_and_said_once() {
    let (_dir, mut story) = begun();
    let set = |story: &mut Story, weight| {
        let to = Value::Weight(Weight(weight));
        let action = story.action(1, Lever::Weight, to);
        story.apply(&[action]).remove(0).result
    };
    assert!(set(&mut story, 200.0).is_ok());
    let theirs = Value::Weight(Weight(4000.0));
    story.machine.sim.set(&VmId("sim-1".into()), Lever::Weight, &theirs).unwrap();
    for _ in 0..2 {
        let Err(MachineError::Denied(why)) = set(&mut story, 300.0) else { panic!("it was overwritten") };
        assert!(why.contains("somebody else changed the weight"), "{why}");
        // Nor is it forgotten when a look misses the VM.
        story.machine.missed = BTreeSet::from([1]);
        story.step(&[], None);
        story.machine.heal();
    }
    story.end();
    assert_eq!(story.machine.truth(1, Lever::Weight), theirs);
}

#[test]
fn what_was_found_to_be_somebody_elses_is_so_though_the_journal_cannot_be_written_then() {
    let (_dir, mut story) = begun();
    let plan = |story: &Story, to| [0, 1].map(|vm| story.action(vm, Lever::Weight, weighing(to)));
    let first = plan(&story, 200);
    story.step(&first, None);
    // One he makes something else, one he puts back.
    let made = [(0, weighing(4000)), (1, story.expected[&(1, Lever::Weight)].clone())];
    for (vm, value) in &made {
        story.machine.write(*vm, Lever::Weight, value).unwrap();
        story.expected.insert((*vm, Lever::Weight), value.clone());
    }
    disk(&story.dir, true);
    let mut plan = plan(&story, 300).to_vec();
    plan.push(story.action(2, Lever::Weight, weighing(300)));
    let outcomes = story.apply(&plan);
    assert!(matches!(&outcomes[2].result, Err(MachineError::Untried(_))), "{outcomes:?}");
    assert_eq!(story.keeper.as_ref().unwrap().entries(), []);
    // He takes a value that corefit once wrote.
    for vm in [0, 1] {
        story.machine.write(vm, Lever::Weight, &weighing(200)).unwrap();
        story.expected.insert((vm, Lever::Weight), weighing(200));
    }
    story.end();
    story.check().unwrap();
}

#[test]
fn what_an_administrator_makes_a_setting_again_that_it_was_once_stands() {
    for (lever, values) in [
        (Lever::Weight, [weighing(200), weighing(300), weighing(400)]),
        (Lever::Online, [first(3), first(2), first(1)]),
    ] {
        let (_dir, mut story) = begun();
        let [once, then, later] = values;
        let actions = [&once, &then, &later].map(|to| story.action(1, lever, to.clone()));
        story.step(&actions[..1], None);
        let seen = story.machine.observe().unwrap();
        story.step(&actions[1..2], None);
        // The look of that step was before it.
        let keeper = story.keeper.as_ref().unwrap();
        let vm = seen.vms.iter().find(|vm| vm.id == story.machine.id(1)).unwrap();
        assert_eq!(keeper.changed_before(&keeper.entries()[0], vm, &CpuSet::default()), None);
        story.machine.write(1, lever, &once).unwrap();
        story.expected.insert((1, lever), once);
        let outcome = story.apply(&actions[2..]).remove(0);
        assert!(matches!(outcome.result, Err(MachineError::Denied(_))), "{:?}", outcome.result);
        story.end();
        story.check().unwrap();
    }
}

#[test]
fn what_somebody_put_back_is_left_alone_until_the_configuration_is_read_again_but_not_what_a_guest_does() {
    let (_dir, mut story) = begun();
    let on_machine = VmId("sim-1".into());
    let set = |story: &mut Story, lever, to| {
        let action = story.action(1, lever, to);
        story.apply(&[action]).remove(0).result
    };
    let weight = |weight| Value::Weight(Weight(weight));
    let before = story.machine.truth(1, Lever::Weight);
    assert!(set(&mut story, Lever::Weight, weight(200.0)).is_ok());
    story.machine.sim.set(&on_machine, Lever::Weight, &before).unwrap();
    for _ in 0..2 {
        let result = set(&mut story, Lever::Weight, weight(300.0));
        let Err(MachineError::Denied(why)) = result else { panic!("it was changed again") };
        assert!(why.contains("somebody put the weight back"), "{why}");
        assert_eq!(story.machine.truth(1, Lever::Weight), before);
    }
    story.keeper.as_mut().unwrap().try_again();
    assert!(set(&mut story, Lever::Weight, weight(300.0)).is_ok());
    // A guest that boots has all its vCPUs, and nobody wanted that.
    let all = story.machine.truth(1, Lever::Online);
    let one = || Value::Vcpus(CpuSet::first(1));
    assert!(set(&mut story, Lever::Online, one()).is_ok());
    story.machine.sim.set(&on_machine, Lever::Online, &all).unwrap();
    assert!(set(&mut story, Lever::Online, one()).is_ok());
    assert_eq!(story.machine.truth(1, Lever::Online), one());
    story.end();
    assert_eq!((story.machine.truth(1, Lever::Weight), story.machine.truth(1, Lever::Online)), (before, all));
}

#[test]
fn a_guest_that_was_late_is_ours_only_until_it_has_arrived() {
    let (_dir, mut story) = begun();
    let vcpus = |count| Value::Vcpus(CpuSet::first(count));
    let plan = [story.action(1, Lever::Online, vcpus(1))];
    story.machine.halfway.insert(1);
    story.step(&plan, None);
    assert_eq!(story.machine.truth(1, Lever::Online), vcpus(3), "on its way");
    story.machine.heal();
    let set = |story: &mut Story, count| {
        story.machine.sim.set(&VmId("sim-1".into()), Lever::Online, &vcpus(count)).unwrap();
    };
    set(&mut story, 1);
    // While it does not answer, it is asked whether it has once.
    story.machine.hung.insert(1);
    story.machine.asked.clear();
    (0..3).for_each(|_| story.step(&[], None));
    assert_eq!(story.machine.asked, [1]);
    story.machine.heal();
    story.step(&plan, None);
    story.step(&[], None);
    // Two steps of the way would have been its own until here.
    set(&mut story, 2);
    story.step(&plan, None);
    assert_eq!(story.machine.truth(1, Lever::Online), vcpus(2), "an administrator's");
    story.expected.insert((1, Lever::Online), vcpus(2));
    story.end();
    story.check().unwrap();
}

#[test]
fn a_limit_of_which_a_kill_left_a_part_is_put_back_and_an_administrators_stands() {
    let of = |quota_us: u64, period_us, burst_us| {
        Value::Limit(Limit { quota_us: Some(quota_us), period_us, burst_us })
    };
    for lever in [Lever::Quota, Lever::VcpuQuota(1)] {
        let mut parts = BTreeSet::new();
        for place in 0..60 {
            let (_dir, mut story) = begun();
            story.machine.write(1, lever, &of(80_000, 100_000, 40_000)).unwrap();
            story.expected.insert((1, lever), of(80_000, 100_000, 40_000));
            let wanted = [of(60_000, 200_000, 50_000), of(90_000, 300_000, 20_000)];
            let plans = wanted.clone().map(|to| [story.action(1, lever, to)]);
            // Killed while it is set, set again, or put back.
            let killed = |story: &mut Story| story.keeper.is_none();
            let mut left = place;
            for plan in plans.iter().map(Some).chain([None]) {
                story.released.extend(plan.is_none().then_some(1));
                story.step(plan.map_or(&[][..], |plan| &plan[..]), (left < 20).then_some(left));
                if killed(&mut story) {
                    break;
                }
                left = left.saturating_sub(20);
            }
            let found = story.machine.truth(1, lever);
            if !wanted.contains(&found) && found != story.expected[&(1, lever)] {
                parts.insert(found.to_string());
            }
            story.end();
            story.check().unwrap_or_else(|what| panic!("place {place}: {what}"));
        }
        assert!(parts.len() >= 5, "{parts:?}");
    }
    // What it has been read back to be is all that is ours.
    let (_dir, mut story) = begun();
    story.step(&[story.action(1, Lever::Quota, of(60_000, 200_000, 50_000))], None);
    let theirs = of(60_000, 100_000, 0);
    story.machine.write(1, Lever::Quota, &theirs).unwrap();
    story.step(&[story.action(1, Lever::Quota, of(90_000, 300_000, 20_000))], None);
    story.expected.insert((1, Lever::Quota), theirs);
    story.end();
    story.check().unwrap();
}

/// libvirt gives all vCPUs the same quota.
#[test]
fn a_quota_of_all_vcpus_is_an_administrators_though_one_of_them_had_it_from_us() {
    for seen_before_the_end in [false, true] {
        let (_dir, mut story) = begun();
        let quotas = [(0, 20_000), (1, 90_000)].map(|(vcpu, us)| (Lever::VcpuQuota(vcpu), limit(us)));
        for (lever, _) in &quotas {
            story.machine.write(1, *lever, &limit(60_000)).unwrap();
        }
        let plan = quotas.map(|(lever, to)| story.action(1, lever, to));
        story.step(&plan, None);
        for lever in [0, 1].map(Lever::VcpuQuota) {
            story.machine.write(1, lever, &limit(20_000)).unwrap();
            story.expected.insert((1, lever), limit(20_000));
        }
        if seen_before_the_end {
            let plan = [0, 1].map(|vcpu| story.action(1, Lever::VcpuQuota(vcpu), limit(10_000)));
            story.step(&plan, None);
        }
        story.end();
        story.check().unwrap();
    }
}

/// libvirt shows no burst, so who sets a quota by it can neither mean nor undo that, and the kernel refuses a quota below it.
#[test]
fn a_burst_of_ours_does_not_stay_with_an_administrators_quota() {
    let of =
        |quota_us, burst_us| Value::Limit(Limit { quota_us: Some(quota_us), period_us: 100_000, burst_us });
    for lever in [Lever::Quota, Lever::VcpuQuota(1)] {
        for seen_before_the_end in [false, true] {
            let (_dir, mut story) = begun();
            story.machine.write(1, lever, &of(80_000, 0)).unwrap();
            story.step(&[story.action(1, lever, of(80_000, 50_000))], None);
            story.machine.write(1, lever, &of(60_000, 50_000)).unwrap();
            if seen_before_the_end {
                story.step(&[story.action(1, lever, of(80_000, 40_000))], None);
                assert_eq!(story.machine.truth(1, lever), of(60_000, 0));
            }
            story.expected.insert((1, lever), of(60_000, 0));
            story.end();
            story.check().unwrap();
        }
    }
}

#[test]
fn what_the_kernel_took_away_is_not_somebody_elses() {
    for lost in [false, true] {
        let (_dir, mut story) = begun();
        let lever = Lever::Affinity(0);
        let [whole, one, none] = ["0-1", "1", "0"].map(|list| Value::Pcpus(list.parse().unwrap()));
        story.machine.write(1, lever, &whole).unwrap();
        story.step(&[story.action(1, lever, one)], None);
        story.machine.write(1, lever, &none).unwrap();
        story.machine.lost = lost;
        story.expected.insert((1, lever), if lost { whole } else { none });
        story.end();
        story.check().unwrap();
    }
}

#[test]
fn what_an_administrator_changes_between_a_look_and_a_write_stands() {
    for changed_before in [false, true] {
        let (_dir, mut story) = begun();
        if changed_before {
            story.step(&[story.action(1, Lever::Weight, Value::Weight(Weight(200.0)))], None);
        }
        // After it was read, and the next one.
        story.machine.soon = Some((2, Fault::Weighed, 1));
        let actions = [
            story.action(1, Lever::Weight, Value::Weight(Weight(300.0))),
            story.action(0, Lever::Weight, Value::Weight(Weight(300.0))),
        ];
        let outcomes = story.apply(&actions);
        assert!(
            matches!(&outcomes[0].result, Err(MachineError::Denied(why)) if why.contains("somebody else"))
        );
        assert_eq!(outcomes[1].result, Ok(actions[1].to.clone()));
        assert_eq!(story.keeper.as_ref().unwrap().entries().len(), 1);
        story.expected.insert((1, Lever::Weight), Value::Weight(Weight(4000.0)));
        story.end();
        story.check().unwrap();
    }
}

#[test]
fn what_an_administrator_makes_of_a_guests_vcpus_between_a_look_and_a_write_stands() {
    for changed_before in [false, true] {
        let (_dir, mut story) = begun();
        if changed_before {
            story.step(&[story.action(1, Lever::Online, first(2))], None);
        }
        story.machine.soon = Some((2, Fault::Resized, 1));
        let plan = [story.action(1, Lever::Online, first(1)), story.action(0, Lever::Weight, weighing(300))];
        let outcomes = story.apply(&plan);
        assert!(matches!(&outcomes[0].result, Err(MachineError::Untried(_))), "{outcomes:?}");
        assert_eq!(story.machine.truth(1, Lever::Online), first(3));
        let known = story.keeper.as_ref().unwrap().entries().iter().any(|entry| entry.lever == Lever::Online);
        assert_eq!(known, changed_before, "nothing of it was written in this batch");
        story.expected.insert((1, Lever::Online), first(3));
        story.end();
        story.check().unwrap();
    }
}

#[test]
fn what_somebody_plugged_out_stands_and_is_not_waited_for() {
    let (_dir, mut story) = begun();
    story.step(&[story.action(1, Lever::Online, first(1))], None);
    story.machine.unplugged.insert(1, CpuSet::first(2));
    story.expected.insert((1, Lever::Online), first(2));
    let snapshot = story.machine.observe().unwrap();
    let restored = story.keeper.as_mut().unwrap().restore(&mut story.machine, &snapshot);
    assert!(
        restored.pending.is_empty() && restored.stand[0].contains("plugged out the others"),
        "{restored:?}"
    );
    story.end();
    story.check().unwrap();
}

#[test]
fn of_a_vm_of_which_somebody_plugged_out_one_vcpu_in_between_the_others_are_given_back() {
    for seen_before_the_end in [false, true] {
        let (_dir, mut story) = begun();
        let smaller = [story.action(1, Lever::Online, first(2))];
        story.step(&smaller, None);
        let left = |list: &str| -> CpuSet { list.parse().unwrap() };
        story.machine.unplugged.insert(1, left("0,2-3"));
        story.machine.write(1, Lever::Online, &Value::Vcpus(left("0"))).unwrap();
        if seen_before_the_end {
            story.apply(&smaller);
            assert_eq!(story.machine.truth(1, Lever::Online), Value::Vcpus(left("0")));
        }
        story.expected.insert((1, Lever::Online), Value::Vcpus(left("0,2-3")));
        story.end();
        story.check().unwrap();
    }
}

#[test]
fn vcpus_that_somebody_takes_online_stand_though_he_plugged_out_one_before() {
    let (_dir, mut story) = begun();
    let smaller = [story.action(1, Lever::Online, first(2))];
    story.step(&smaller, None);
    story.machine.unplugged.insert(1, CpuSet::first(3));
    story.machine.write(1, Lever::Online, &first(3)).unwrap();
    story.expected.insert((1, Lever::Online), first(3));
    story.apply(&smaller);
    assert_eq!(story.machine.truth(1, Lever::Online), first(3));
    story.end();
    story.check().unwrap();
}

#[test]
fn what_went_with_a_vcpu_that_somebody_plugged_out_is_not_waited_for() {
    for ours in [false, true] {
        let (_dir, mut story) = begun();
        let slice = Value::Slice(Some(100_000 + SLICE_MARK_NS));
        let plan =
            [story.action(1, Lever::VcpuQuota(3), limit(50_000)), story.action(1, Lever::Slice(3), slice)];
        story.machine.plugging.insert(1);
        story.step(&plan, None);
        if ours {
            // We plugged out more before.
            story.step(&[story.action(1, Lever::Online, first(2))], None);
            story.machine.unplugged.insert(1, CpuSet::first(3));
        } else {
            story.machine.write(1, Lever::Online, &first(3)).unwrap();
        }
        story.expected.insert((1, Lever::Online), first(3));
        let restored = {
            let snapshot = story.machine.observe().unwrap();
            story.keeper.as_mut().unwrap().restore(&mut story.machine, &snapshot)
        };
        assert_eq!(restored.pending, Vec::<String>::new());
        let went = restored.stand.iter().filter(|text| text.contains("went with its vCPU")).count();
        assert_eq!(went, 2, "{:?}", restored.stand);
        story.end();
        story.check().unwrap();
    }
}

#[test]
fn a_guest_that_cannot_be_told_anything_is_not_waited_for() {
    let (_dir, mut story) = begun();
    story.machine.untold.insert(0);
    story.step(&[story.action(0, Lever::Told, Value::Told(Some(Cpus(2.0))))], None);
    assert!(story.keeper.as_ref().unwrap().entries().iter().all(|entry| entry.pending));
    let snapshot = story.machine.observe().unwrap();
    let restored = story.keeper.as_mut().unwrap().restore(&mut story.machine, &snapshot);
    assert_eq!((restored.back, restored.pending), (1, Vec::new()));
    story.end();
    story.check().unwrap();
}

#[test]
fn what_a_user_of_a_guest_writes_over_what_it_is_told_is_never_his_nor_told_again() {
    let told = |cpus: u32| Value::Told(Some(Cpus(f64::from(cpus))));
    let tell = |story: &mut Story, cpus| {
        let plan = [story.action(0, Lever::Told, told(cpus))];
        story.apply(&plan).remove(0).result
    };
    let again = |story: &mut Story| {
        story.now = story.now + Duration::from_secs(6);
        story.step(&[], None);
        story.machine.truth(0, Lever::Told)
    };
    let (_dir, mut story) = begun();
    // Between write and read, which is done of what is told first.
    story.machine.soon = Some((3, Fault::Told, 0));
    assert_eq!(tell(&mut story, 4), Ok(told(9)));
    assert_eq!(again(&mut story), told(4));
    // Before, what is going to be told; then another number, and again what is going to be told.
    for (his, cpus) in [(2, 2), (9, 3), (1, 1)] {
        story.machine.write(0, Lever::Told, &told(his)).unwrap();
        assert_eq!(tell(&mut story, cpus), Ok(told(cpus)));
        story.machine.befall(0, Fault::Told);
        assert_eq!(again(&mut story), told(cpus));
    }
    assert_eq!(tell(&mut story, 2), Ok(told(2)));
    // A guest that takes nothing any more goes on to be told what it was told last.
    story.machine.denied.insert(0);
    story.machine.befall(0, Fault::Told);
    assert!(matches!(tell(&mut story, 3), Err(MachineError::Denied(_))));
    story.machine.heal();
    assert_eq!(again(&mut story), told(2));
    story.machine.befall(0, Fault::Told);
    story.end();
    story.check().unwrap();
}

/// libvirt writes a quota after what is saved of it was made smaller, and may refuse it: what somebody makes it just then is his, but for
/// what is saved.
#[test]
fn of_a_limit_that_was_refused_after_a_part_what_is_saved_is_put_back_whatever_quota_somebody_set_meanwhile()
{
    let saving =
        |quota_us, burst_us| Value::Limit(Limit { quota_us: Some(quota_us), period_us: 100_000, burst_us });
    for (changed_before, his) in [(false, None), (false, Some(45_000)), (true, None), (true, Some(45_000))] {
        let case = format!("changed before: {changed_before}, his: {his:?}");
        let (_dir, mut story) = begun();
        story.machine.write(0, Lever::Quota, &saving(60_000, 20_000)).unwrap();
        if changed_before {
            story.step(&[story.action(0, Lever::Quota, saving(50_000, 10_000))], None);
            assert_eq!(story.machine.truth(0, Lever::Quota), saving(50_000, 10_000));
        }
        let was = if changed_before { 50_000 } else { 60_000 };
        story.machine.refusing.insert(0, his);
        let outcome = story.apply(&[story.action(0, Lever::Quota, saving(30_000, 5_000))]).remove(0);
        assert!(outcome.result.is_err() && !story.machine.refusing.contains_key(&0), "{case}: {outcome:?}");
        assert_eq!(story.machine.truth(0, Lever::Quota), saving(his.unwrap_or(was), 5_000), "{case}");
        story.expected.insert((0, Lever::Quota), saving(his.unwrap_or(60_000), 20_000));
        story.end();
        story.check().unwrap_or_else(|what| panic!("{case}: {what}"));
    }
}

#[test]
fn what_somebody_made_of_settings_stands_though_the_end_is_killed_before_their_turn() {
    let killed = Story::at_each_place(|story, place| {
        story.machine.write(0, Lever::Quota, &limit(50_000)).unwrap();
        let mut plan: Vec<Action> = (0..2).map(|vm| story.action(vm, Lever::Online, first(2))).collect();
        plan.extend((0..2).map(|vm| story.action(vm, Lever::Quota, longer())));
        story.step(&plan, None);
        // Between what they were and what corefit made them. The last changed comes first.
        for (lever, value) in [(Lever::Online, first(3)), (Lever::Quota, no_limit())] {
            story.machine.write(0, lever, &value).unwrap();
            story.expected.insert((0, lever), value);
        }
        story.keeper = None;
        story.start(Some(place));
        story.keeper.is_none()
    });
    assert!(matches!(killed, Ok(11..)), "{killed:?}");
}

#[test]
fn what_was_refused_at_the_end_is_not_on_its_way() {
    let (_dir, mut story) = begun();
    story.step(&[story.action(1, Lever::Online, first(2))], None);
    story.keeper = None;
    story.machine.denied.insert(1);
    story.start(None);
    assert_eq!(story.keeper.as_ref().unwrap().entries().len(), 1);
    story.keeper = None;
    story.machine.heal();
    story.machine.write(1, Lever::Online, &first(3)).unwrap();
    story.expected.insert((1, Lever::Online), first(3));
    story.end();
    story.check().unwrap();
}

/// What is refused while vCPUs are out is written again once they are back.
#[test]
fn of_a_vcpus_limit_that_was_refused_after_a_part_at_the_end_nothing_stays() {
    let (_dir, mut story) = begun();
    let saving = Value::Limit(Limit { quota_us: Some(20_000), period_us: 100_000, burst_us: 5_000 });
    let plan = [story.action(0, Lever::Online, first(2)), story.action(0, Lever::VcpuQuota(1), saving)];
    story.step(&plan, None);
    story.keeper = None;
    story.machine.refusing.insert(0, None);
    story.start(None);
    assert!(!story.machine.refusing.contains_key(&0), "it was refused");
    story.end();
    story.check().unwrap();
}

/// A pin is never written again, a weight is: that is when it is found to be somebody else's.
#[test]
fn what_somebody_made_of_a_setting_is_shown_also_once_it_was_found_to_be_his() {
    let (_dir, mut story) = begun();
    let levers = [
        (Lever::Weight, weighing(200), weighing(300), weighing(700)),
        (Lever::Online, first(2), first(1), first(3)),
    ];
    let plan = |story: &Story, to: fn(&(Lever, Value, Value, Value)) -> &Value| {
        levers.iter().map(|lever| story.action(1, lever.0, to(lever).clone())).collect::<Vec<_>>()
    };
    let (once, again) = (plan(&story, |lever| &lever.1), plan(&story, |lever| &lever.2));
    story.step(&once, None);
    for (lever, _, _, his) in &levers {
        story.machine.write(1, *lever, his).unwrap();
        story.expected.insert((1, *lever), his.clone());
    }
    let shown = |story: &mut Story| {
        let (keeper, seen) = (story.keeper.as_ref().unwrap(), story.machine.observe().unwrap());
        let vm = seen.vms.iter().find(|vm| vm.id == story.machine.id(1)).unwrap();
        let (step, policy) = (Step::default(), Policy::default());
        let status = VmStatus::of(vm, &step, (None, None), Some(keeper), &policy, &CpuSet::default());
        let made =
            |setting: &Setting| (setting.lever.clone(), setting.made.clone(), setting.changed_to.clone());
        (status.settings.iter().map(made).collect::<Vec<_>>(), status.changed)
    };
    story.step(&[], None);
    let before = shown(&mut story).0;
    assert!(story.apply(&again).iter().all(|outcome| outcome.result.is_err()));
    assert_eq!(story.keeper.as_ref().unwrap().entries(), []);
    let (after, words) = shown(&mut story);
    assert!(
        before.len() == 2 && before.iter().all(|setting| after.contains(setting)),
        "{before:?}, {after:?}"
    );
    let weight = "weight: somebody changed it to 700, which stands; corefit made it 200, before 1024";
    assert!(words.len() == 2 && words.iter().any(|line| line == weight), "{words:?}");
    // What is as it was before corefit is nobody's.
    let before = story.machine.first(1, Lever::Weight);
    story.machine.write(1, Lever::Weight, &before).unwrap();
    story.expected.insert((1, Lever::Weight), before);
    assert_eq!(shown(&mut story).1.len(), 1);
    story.end();
    story.check().unwrap();
}

//! What programs do that no length tells: who waits for whom, and for ever.

use crate::support::{MS, app, host, vcpu, vm};
use corefit_sim::{CfsSpec, Policy, Runtime, Sim, Spec};

/// A VM of two vCPUs with a program, after a second.
fn after_a_second(program: &str, threads: u32) -> Sim {
    under(Runtime::Libomp, program, threads)
}

fn under(runtime: Runtime, program: &str, threads: u32) -> Sim {
    let mut one = app(program, threads);
    one.runtime = runtime;
    let vms = vec![vm("a", vec![vcpu("0-1"), vcpu("0-1")], vec![one])];
    let mut sim = Sim::new(&host(2, Policy::Cfs(CfsSpec::default()), vms)).unwrap();
    sim.run_for(1000 * MS);
    sim.check().unwrap();
    sim
}

/// Of `a/app`: how many threads are stuck, and how many others go on.
fn stuck(sim: &Sim) -> (usize, usize) {
    let [stuck] = &sim.stuck()[..] else { panic!("one program is stuck: {:?}", sim.stuck()) };
    assert_eq!(stuck.name, "a/app");
    (stuck.threads, stuck.others)
}

#[test]
fn when_a_thread_starts_says_nothing_of_when_another_program_does() {
    let vms = ["0", "1"].map(|n| vm(n, vec![vcpu("0-3"), vcpu("0-3")], vec![app("hog", 2)]));
    let spec = Spec { jitter_ns: 100 * MS, ..host(4, Policy::Cfs(CfsSpec::default()), vms.to_vec()) };
    let mut sim = Sim::new(&spec).unwrap();
    sim.run_for(1000 * MS);
    let started = |vm, v| 1000 * MS - sim.account_of(vm, v).unwrap().utilised;
    assert_ne!(started(0, 1) - started(0, 0), started(1, 0), "thread 1 of all, and program 1 of all");
}

#[test]
fn a_program_whose_threads_all_wait_for_each_other_is_stuck() {
    for kind in ["mutex", "kernel", "userspin"] {
        let inside = |outer: &str, inner: &str| {
            format!("{kind} {outer} {{ compute 1ms {kind} {inner} {{ compute 1ms }} }}")
        };
        let text = format!("forever {{ {} {} mark }}", inside("a", "b"), inside("b", "a"));
        assert_eq!(stuck(&after_a_second(&text, 2)), (2, 0), "{text}");
        assert!(after_a_second(&text, 1).stuck().is_empty(), "one thread alone takes both");
    }
    for (text, threads, waiting) in [
        ("compute 1ms wait c prev compute 1ms", 2, 1),
        ("parallel { compute 1ms wait c prev }", 3, 3),
        ("repeat 2 { put c next compute 1ms }", 2, 1),
    ] {
        assert_eq!(stuck(&after_a_second(text, threads)), (waiting, 0), "{text}");
    }
}

#[test]
fn rounds_that_take_no_time_do_not_stop_the_clock() {
    for program in ["compute 0ns mark", "parallel { compute 0ns }"] {
        let mut again = app(program, 2);
        again.again = true;
        let other = vm("b", vec![vcpu("2")], vec![app("compute 5ms", 1)]);
        let vms = vec![vm("a", vec![vcpu("0"), vcpu("1")], vec![again]), other];
        let mut sim = Sim::new(&host(3, Policy::Cfs(CfsSpec::default()), vms)).unwrap();
        sim.run();
        sim.check().unwrap();
        let truth = sim.truth();
        assert_eq!(truth.vms[1].apps[0].took_ns, Some(5 * MS));
        assert!((100..=10_001).contains(&truth.vms[0].apps[0].rounds), "{:?}", truth.vms[0].apps);
    }
}

#[test]
fn threads_that_wait_for_each_other_are_stuck_though_others_go_on() {
    let crossed =
        "mutex a { compute 1ms mutex b { compute 1ms } } mutex b { compute 1ms mutex a { compute 1ms } }";
    for (text, threads, told) in [
        // The first takes one lock and the others; in its turn each of the others comes into its way.
        (format!("single {{ forever {{ sleep 1ms mark }} }} forever {{ {crossed} }}"), 3, (2, 1)),
        // Who waits for a lock whose owner waits for ever, and for those at a barrier.
        (format!("single {{ forever {{ compute 1ms }} }} repeat 9 {{ {crossed} }} barrier"), 4, (3, 1)),
        // A barrier, a join and a lock that one member never comes to, or never gives back.
        ("single { forever { compute 1ms } } barrier".into(), 3, (2, 1)),
        (
            "parallel { single rotate { compute 1ms } single rotate { forever { sleep 1ms } } }".into(),
            3,
            (2, 1),
        ),
        ("kernel a { forever { compute 1ms } }".into(), 2, (1, 1)),
        // Nobody posts, or takes, any more; or ever.
        ("post c forever { wait c prev compute 1ms mark }".into(), 3, (2, 1)),
        ("forever { put c next compute 1ms }".into(), 4, (3, 1)),
        ("forever { wait c next compute 1ms put c next }".into(), 2, (1, 1)),
    ] {
        assert_eq!(stuck(&after_a_second(&text, threads)), told, "{text}");
    }
}

#[test]
fn a_program_that_goes_on_or_has_ended_or_not_begun_is_not_stuck() {
    for text in [
        "hog",
        "lu",
        "compute 1ms",
        "forever { sleep 5s }",
        "forever { mutex a { compute 1ms exp } mark }",
        "forever { kernel a { compute 1ms exp } mark }",
        "forever { userspin a { compute 1ms exp } mark }",
        "forever { mutex a { sleep 9s } }",
        "forever { parallel { compute 100us exp barrier compute 100us exp } }",
        // Of a producer that sleeps, of one that is another's neighbour, and of whom the program needs no more.
        "forever { sleep 5s post c wait c prev }",
        "forever { single { sleep 5s } put c next wait c prev }",
        "forever { mutex a { sleep 9s } barrier }",
        "parallel { compute 1ms } forever { sleep 5s }",
        "parallel { compute 1ms } sleep 5s",
        "parallel { single { forever { sleep 1ms } } }",
        "repeat 9 { parallel { mutex a { sleep 900ms } } }",
    ] {
        for threads in [1, 2, 7] {
            assert!(after_a_second(text, threads).stuck().is_empty(), "{text}, {threads} threads");
            // There all wait for the end of the section, the others of the first member, too.
            if !text.contains("single { forever") {
                let stuck = under(Runtime::Libgomp, text, threads).stuck();
                assert!(stuck.is_empty(), "{text}, {threads} threads, libgomp");
            }
        }
    }
    assert_eq!(stuck(&under(Runtime::Libgomp, "parallel { single { forever { sleep 1ms } } }", 3)), (2, 1));
    let mut late = app("compute 1ms barrier compute 1ms", 2);
    late.start_ns = 2000 * MS;
    let vms = vec![vm("a", vec![vcpu("0")], vec![late])];
    let mut sim = Sim::new(&host(1, Policy::Cfs(CfsSpec::default()), vms)).unwrap();
    sim.run_for(1000 * MS);
    assert!(sim.stuck().is_empty());
}

/// Operations of a random program, at the top or under locks.
fn random(next: &mut impl FnMut(u64) -> u64, held: &[&str]) -> String {
    let choices = if held.is_empty() { 10 } else { 5 };
    match next(choices) {
        0 => "compute 100us exp".into(),
        1 => "sleep 1ms exp".into(),
        2..=4 => {
            let name = ["a", "b", "c"][usize::try_from(next(3)).unwrap()];
            if held.contains(&name) {
                return "compute 50us".into();
            }
            let kind = if name == "c" { "userspin" } else { "mutex" };
            let inside = random(next, &[held, &[name]].concat());
            format!("{kind} {name} {{ compute 50us exp {inside} }}")
        }
        5 => "barrier".into(),
        6 => "put c next compute 10us wait c prev".into(),
        7 => "wait c prev put c next".into(),
        8 => "post d compute 10us exp".into(),
        _ => "wait d next".into(),
    }
}

#[test]
fn of_random_programs_those_that_never_end_and_no_others_are_stuck() {
    let (mut ended, mut in_part, mut whole) = (0, 0, 0);
    for seed in 0..300_u64 {
        let mut state = seed * 2 + 1;
        let mut next = |n: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % n
        };
        let body: Vec<String> = (0..1 + next(4)).map(|_| random(&mut next, &[])).collect();
        let text = format!("repeat 8 {{ compute 20us {} }}", body.join(" "));
        let vcpus = vec![vcpu("0-1"), vcpu("0-1"), vcpu("0")];
        let mut spec = host(2, Policy::Cfs(CfsSpec::default()), vec![vm("a", vcpus, vec![app(&text, 4)])]);
        (spec.seed, spec.until_ns) = (seed, 60_000 * MS);
        let mut sim = Sim::new(&spec).unwrap();
        // Whoever is stuck stays so.
        let mut before = 0;
        for _ in 0..40 {
            sim.run_for(5 * MS);
            let now = sim.stuck().first().map_or(0, |stuck| stuck.threads);
            assert!(now >= before, "{before} were stuck, {now} are: {text}");
            in_part += usize::from(now > 0 && now != before && sim.stuck()[0].others > 0);
            before = now;
        }
        sim.run();
        let stuck: Vec<String> = sim.stuck().into_iter().map(|stuck| stuck.name).collect();
        assert_eq!(sim.unfinished(), stuck, "{text}");
        whole += stuck.len();
        ended += usize::from(stuck.is_empty());
    }
    assert!(ended > 100 && whole > 50 && in_part > 10, "{ended} ended, {whole} did not, {in_part} in part");
}

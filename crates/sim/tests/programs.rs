//! What programs do that no length tells: who waits for whom, and for ever.

mod support;

use corefit_sim::{CfsSpec, Policy, Sim};
use support::{MS, app, host, vcpu, vm};

/// A VM of two vCPUs with a program, after a second.
fn after_a_second(program: &str, threads: u32) -> Sim {
    let vms = vec![vm("a", vec![vcpu("0-1"), vcpu("0-1")], vec![app(program, threads)])];
    let mut sim = Sim::new(&host(2, Policy::Cfs(CfsSpec::default()), vms)).unwrap();
    sim.run_for(1000 * MS);
    sim.check().unwrap();
    sim
}

#[test]
fn a_program_whose_threads_all_wait_for_each_other_is_stuck() {
    for kind in ["mutex", "kernel", "userspin"] {
        let inside = |outer: &str, inner: &str| {
            format!("{kind} {outer} {{ compute 1ms {kind} {inner} {{ compute 1ms }} }}")
        };
        let text = format!("forever {{ {} {} mark }}", inside("a", "b"), inside("b", "a"));
        assert_eq!(after_a_second(&text, 2).stuck(), ["a/app"], "{text}");
        assert!(after_a_second(&text, 1).stuck().is_empty(), "one thread alone takes both");
    }
    for (text, threads) in [
        ("compute 1ms wait c prev compute 1ms", 2),
        ("parallel { compute 1ms wait c prev }", 3),
        ("repeat 2 { put c next compute 1ms }", 2),
    ] {
        assert_eq!(after_a_second(text, threads).stuck(), ["a/app"], "{text}");
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
    ] {
        for threads in [1, 2, 7] {
            assert!(after_a_second(text, threads).stuck().is_empty(), "{text}, {threads} threads");
        }
    }
    let mut late = app("compute 1ms barrier compute 1ms", 2);
    late.start_ns = 2000 * MS;
    let vms = vec![vm("a", vec![vcpu("0")], vec![late])];
    let mut sim = Sim::new(&host(1, Policy::Cfs(CfsSpec::default()), vms)).unwrap();
    sim.run_for(1000 * MS);
    assert!(sim.stuck().is_empty());
}

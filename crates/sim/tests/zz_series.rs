mod support;
use corefit_sim::*;
use support::*;
#[test]
fn series() {
    for (name, aff, soft, made) in [
        ("8-8", "0-7,16-23", "0-7,16-23", "0-7,16-23"),
        ("0-16", "16-31", "0-7,16-23", "0-7,16-23"),
        ("0-16 right", "16-31", "16-31", "0-7,16-23"),
        ("7-9", "0-6,16-24", "0-7,16-23", "0-7,16-23"),
        ("6-10", "0-5,16-25", "0-7,16-23", "0-7,16-23"),
        ("none, node", "0-31", "0-7,16-23", "0-7,16-23"),
        ("none", "0-31", "0-31", "0-7,16-23"),
        ("none, made so", "0-31", "0-31", "0-31"),
        ("evens", "0,2,4,6,8,10,12,14,16,18,20,22,24,26,28,30", "0-7,16-23", "0-7,16-23"),
    ] {
      for (packages, noise) in [(1, 0), (2, 0), (2, 1), (2, 2)] {
        let mut vcpus: Vec<_> = (0..16).map(|_| vcpu(aff)).collect();
        vcpus.iter_mut().for_each(|v| v.soft = soft.parse().unwrap());
        let mut one = app("forever { parallel { compute 8s split } mark sleep 100ms }", 16);
        one.class = 1;
        one.team = 1;
        let mut apps = vec![one];
        if noise > 0 { apps.push(app(["", "forever { sleep 1s exp compute 100us }", "forever { sleep 100ms exp compute 100us }"][noise], 16)); }
        let mut vm = vm("a", vcpus, apps);
        vm.made_on = made.parse().unwrap();
        vm.guest.packages = packages;
        let mut spec = host(32, Policy::Credit(CreditSpec::default()), vec![vm]);
        spec.costs = Costs::default();
        spec.ple = Ple::default();
        spec.hardware = Hardware { sockets: 2, nodes: 2, cores: 4, threads: 2, adjacent: true, cache_kib: 6144 };
        spec.classes.push(Class { beside_sibling: 1.0/1.38, ..Class::plain("fib") });
        let mut sim = Sim::new(&spec).unwrap();
        print!("{name:14} {packages} {noise}");
        for n in 1..=16 {
            sim.set_team(0, n).unwrap();
            let mut sum = 0.0; 
            for _ in 0..10 {
                let t0 = sim.truth();
                let marks = t0.vms[0].apps[0].marks;
                while sim.truth().vms[0].apps[0].marks == marks { sim.run_for(MS); }
                let t1 = sim.truth();
                let ran = (t1.ran_ns - t0.ran_ns) as f64;
                sum += (t1.competing_cores * t1.ran_ns as f64 - t0.competing_cores * t0.ran_ns as f64) / (ran - 100e6);
                // Let the pause go by, so that the next fork is of the next size.
            }
            print!(" {:5.2}", sum / 10.0);
        }
        println!();
      }
    }
}

//! What holds after every event, whatever happens: everybody is in one place, locks exclude, nothing idles that need not.

use super::change::DRAIN_NS;
use super::{Act, Sim, TState, Wait, Watch};
use crate::cpus::{NONE, VState, bits, has};
use crate::program::{LockUse, Op};
use crate::queue::{NEVER, Ns};
use crate::sched::Scheduler;
use crate::spec::{LockKind, Policy};

/// Between two looks of the fair scheduler at the balance.
const BALANCE_NS: Ns = 4_000_000;

/// What went wrong; `Ok`: nothing.
type Audit = Result<(), String>;

fn ensure(holds: bool, what: impl FnOnce() -> String) -> Audit {
    if holds { Ok(()) } else { Err(what()) }
}

/// The locks of an application that a thread is inside of, by its place in the program.
pub(super) fn inside(ops: &[Op], pc: usize) -> Vec<(LockUse, u16)> {
    let mut held = vec![];
    for op in &ops[..pc] {
        match *op {
            Op::Acquire(kind, lock) => held.push((kind, lock)),
            Op::Release(..) => drop(held.pop()),
            _ => {}
        }
    }
    held
}

impl Sim {
    fn audit(&self) -> Audit {
        self.audit_pcpus()?;
        self.audit_vcpus()?;
        self.audit_threads()?;
        self.audit_locks()?;
        self.audit_teams()
    }

    /// A pCPU has one vCPU at most, which may be there; who waits does so once, where it may run.
    fn audit_pcpus(&self) -> Audit {
        let mut queued = vec![0; self.cpus.vcpus.len()];
        for p in 0..self.pcpus() {
            let pcpu = &self.cpus.pcpus[p as usize];
            if pcpu.run != NONE {
                let vcpu = &self.cpus.vcpus[pcpu.run as usize];
                let right = vcpu.state == VState::Running && vcpu.pcpu == p && vcpu.cur != NONE;
                ensure(right, || {
                    format!("pCPU {p} runs vCPU {}, which is {:?} on {}", pcpu.run, vcpu.state, vcpu.pcpu)
                })?;
                ensure(self.cpus.may(pcpu.run, p), || format!("vCPU {} may not run on pCPU {p}", pcpu.run))?;
                ensure(!has(&self.cpus.idle, p), || format!("pCPU {p} is busy and counts as idle"))?;
            }
            for &v in self.sched.waiting(p) {
                queued[v as usize] += 1;
                let vcpu = &self.cpus.vcpus[v as usize];
                let right = vcpu.state == VState::Waiting && vcpu.cur != NONE;
                ensure(right, || format!("vCPU {v} is {:?} in the queue of pCPU {p}", vcpu.state))?;
            }
        }
        let busy = self.cpus.pcpus.iter().filter(|pcpu| pcpu.run != NONE).count();
        let running = self.cpus.vcpus.iter().filter(|vcpu| vcpu.state == VState::Running).count();
        ensure(busy == running, || format!("{running} vCPUs run on {busy} pCPUs"))?;
        for (v, vcpu) in self.cpus.vcpus.iter().enumerate() {
            let wanted = usize::from(vcpu.state == VState::Waiting);
            ensure(queued[v] == wanted, || {
                format!("vCPU {v} is {:?} and in {} queues", vcpu.state, queued[v])
            })?;
        }
        Ok(())
    }

    /// What vCPUs want and may.
    fn audit_vcpus(&self) -> Audit {
        let mut runnable = vec![0; self.cpus.vms.len()];
        for (v, vcpu) in (0_u32..).zip(&self.cpus.vcpus) {
            let idle = has(&self.guests[vcpu.vm as usize].idle, v - self.cpus.vms[vcpu.vm as usize].first);
            ensure(idle == (vcpu.cur == NONE && vcpu.online), || format!("vCPU {v} idles: {idle}"))?;
            match vcpu.state {
                VState::Running | VState::Waiting => {
                    runnable[vcpu.vm as usize] += vcpu.weight;
                    let free = vcpu.state == VState::Running || vcpu.parked == 0;
                    ensure(free, || format!("vCPU {v} waits though it is parked ({})", vcpu.parked))?;
                }
                VState::Halted => {
                    let slow = vcpu.cur != NONE && {
                        let thread = &self.threads[vcpu.cur as usize];
                        matches!(thread.wait, Wait::Kernel(_)) && !thread.granted && thread.act == Act::Spin
                    };
                    ensure(vcpu.cur == NONE || slow, || format!("vCPU {v} halts with a thread to run"))?;
                }
                VState::Throttled => {
                    let kept = vcpu.parked != 0 || vcpu.quota_left == 0 || vcpu.pool_left == 0;
                    ensure(kept && vcpu.cur != NONE, || format!("vCPU {v} is kept from running by nothing"))?;
                }
            }
        }
        for (vm, &weight) in self.cpus.vms.iter().zip(&runnable) {
            ensure(vm.runnable == weight, || {
                format!("VM of vCPU {}: {} runnable, {weight} are", vm.first, vm.runnable)
            })?;
        }
        Ok(())
    }

    /// Under the fair scheduler: a pCPU that idles, and who waits though it could run there.
    fn idles_beside(&self) -> Option<(u32, u32)> {
        // While one is about to look, it may be the one that takes who waits.
        let looks = self.cpus.pcpus.iter().any(|pcpu| pcpu.resched != NEVER);
        if !matches!(self.spec.policy, Policy::Cfs(_)) || self.spec.spread_siblings || looks {
            return None;
        }
        bits(&self.cpus.idle).find_map(|p| {
            let mut waiting = (0..self.pcpus()).flat_map(|q| self.sched.waiting(q)).copied();
            waiting.find(|&v| self.cpus.may(v, p)).map(|v| (p, v))
        })
    }

    /// Each thread is in one place.
    fn audit_threads(&self) -> Audit {
        let mut ready = vec![NONE; self.threads.len()];
        for (v, vcpu) in (0_u32..).zip(&self.cpus.vcpus) {
            let all: Vec<u32> = vcpu.ready.iter(&self.threads).collect();
            ensure(all.len() == vcpu.ready.len as usize, || format!("the queue of vCPU {v} is broken"))?;
            ensure(all.is_empty() || vcpu.cur != NONE, || {
                format!("threads wait for vCPU {v}, which has none")
            })?;
            for t in all {
                ensure(ready[t as usize] == NONE, || format!("thread {t} waits in two queues"))?;
                ready[t as usize] = v;
            }
            if vcpu.cur != NONE {
                let thread = &self.threads[vcpu.cur as usize];
                let right = thread.state == TState::Current && thread.vcpu == v;
                ensure(right, || format!("vCPU {v} has thread {}, which is {:?}", vcpu.cur, thread.state))?;
            }
        }
        for (t, thread) in (0_u32..).zip(&self.threads) {
            let (app, v) = (&self.apps[thread.app as usize], thread.vcpu as usize);
            let vcpu = &self.cpus.vcpus[v];
            let queue = if thread.state == TState::Ready { thread.vcpu } else { NONE };
            ensure(ready[t as usize] == queue, || {
                format!("thread {t} is {:?} and waits for {queue}", thread.state)
            })?;
            let there = thread.state != TState::Current || vcpu.cur == t;
            ensure(there, || format!("thread {t} is lost: vCPU {v} has {}", vcpu.cur))?;
            ensure(vcpu.vm == app.vm, || format!("thread {t} is in another VM"))?;
        }
        Ok(())
    }

    /// Pinned threads are where they belong, where no vCPU was ever offline and there is one package.
    fn audit_pins(&self) -> Audit {
        for (t, thread) in (0_u32..).zip(&self.threads) {
            let app = &self.apps[thread.app as usize];
            let (vm, spec) = (&self.cpus.vms[app.vm as usize], &self.spec.vms[app.vm as usize]);
            let plain = spec.guest.packages == 1 && spec.vcpus.iter().all(|vcpu| vcpu.online);
            let own = vm.first + thread.member % vm.count;
            let right = !thread.pinned || !plain || thread.vcpu == own;
            ensure(right, || format!("thread {t}, pinned to vCPU {own}, is on {}", thread.vcpu))?;
        }
        Ok(())
    }

    /// Who is inside of a lock owns it: there is one owner. Fair locks are not free while somebody waits.
    fn audit_locks(&self) -> Audit {
        let mut waits = vec![vec![]; self.locks.len()];
        for (l, lock) in self.locks.iter().enumerate() {
            waits[l] = lock.line.iter(&self.threads).collect();
            ensure(waits[l].len() == lock.line.len as usize, || format!("the line of lock {l} is broken"))?;
        }
        for (t, thread) in (0_u32..).zip(&self.threads) {
            let app = &self.apps[thread.app as usize];
            let (mut kernel, mut user) = (0, 0);
            let held = if thread.state == TState::Out {
                vec![]
            } else {
                inside(&app.program.ops, thread.pc as usize)
            };
            for (kind, number) in held {
                let l = app.locks + u32::from(number);
                let waiting = [Wait::Kernel(l), Wait::User(l)].contains(&thread.wait);
                let (owner, spins) = (self.locks[l as usize].owner, waits[l as usize].contains(&t));
                ensure(if waiting && !thread.granted { spins } else { owner == t && !spins }, || {
                    format!("thread {t} is at lock {l}, of {owner}, waits {waiting}, in line {spins}")
                })?;
                kernel += u8::from(kind == LockUse::Kernel && !waiting);
                user += u8::from(kind == LockUse::User && !waiting);
            }
            ensure((thread.holds, thread.holds_user) == (kernel, user), || {
                format!(
                    "thread {t} counts {} and {} locks, has {kernel} and {user}",
                    thread.holds, thread.holds_user
                )
            })?;
        }
        for app in &self.apps {
            for (op, number) in app.program.ops.iter().filter_map(|op| match op {
                Op::Acquire(kind, number) => Some((kind, number)),
                _ => None,
            }) {
                let lock = &self.locks[(app.locks + u32::from(*number)) as usize];
                let kind = self.guests[app.vm as usize].lock;
                let unfair = matches!(kind, LockKind::TestAndSet | LockKind::Corefit { .. });
                if *op == LockUse::Kernel && !unfair {
                    ensure(lock.owner != NONE || lock.line.len == 0, || {
                        "a fair lock is free while some wait".into()
                    })?;
                }
            }
        }
        Ok(())
    }

    /// Who waits at a barrier or a join is not all of the team; every worker is in the dock or not back.
    fn audit_teams(&self) -> Audit {
        for (a, app) in self.apps.iter().enumerate() {
            let there = app.at_barrier.iter(&self.threads).count();
            let right = there == app.arrived as usize && app.arrived < app.team.max(1);
            ensure(right, || {
                format!("app {a}: {there} at a barrier, {} arrived of {}", app.arrived, app.team)
            })?;
            let there = app.at_join.iter(&self.threads).count();
            let right =
                app.joined < app.team.max(1) && there == if app.meets { app.joined as usize } else { 0 };
            ensure(right, || format!("app {a}: {there} at the join, {} joined of {}", app.joined, app.team))?;
            let docked = app.dock.iter(&self.threads).count();
            let workers = app.threads as usize - 1;
            let right = !app.program.forks || app.alive == 0 || docked + app.away as usize == workers;
            ensure(right, || format!("app {a}: {docked} docked, {} away of {workers}", app.away))?;
            ensure(app.forks_at.is_none() || app.away > 0, || format!("app {a}: nobody to wait for"))?;
        }
        Ok(())
    }
}

/// Looks after each event, and at the lines of fair locks: who came first goes first.
struct Auditor {
    lines: Vec<Vec<u32>>,
    /// Somebody changed settings: who waits finds new pCPUs at the scheduler's next look only, and pins are lost with
    /// vCPUs that go offline.
    moved: bool,
    /// Since when each thread is on a vCPU that is offline, though nothing holds it there.
    stray: Vec<Option<Ns>>,
    /// Since when some pCPU idles while somebody waits who could run there.
    idles: Option<Ns>,
    events: u64,
    passed: u64,
}

impl Auditor {
    fn new(sim: &Sim) -> Auditor {
        Auditor {
            lines: vec![vec![]; sim.locks.len()],
            moved: false,
            stray: vec![None; sim.threads.len()],
            idles: None,
            events: 0,
            passed: 0,
        }
    }

    fn look(&mut self, sim: &Sim) -> Audit {
        self.events += 1;
        sim.audit()?;
        if !self.moved {
            // Who had to make room finds an idle pCPU at the next look at the balance.
            let beside = sim.idles_beside();
            let since = beside.map(|_| self.idles.unwrap_or(sim.now));
            self.idles = since;
            let long = since.is_some_and(|since| sim.now > since + BALANCE_NS);
            ensure(!long, || format!("(pCPU, vCPU) {beside:?}: the first idles while the second waits"))?;
            sim.audit_pins()?;
        }
        for (t, thread) in sim.threads.iter().enumerate() {
            let on = matches!(thread.state, TState::Current | TState::Ready) && !thread.fixed();
            let stray = on && !sim.cpus.vcpus[thread.vcpu as usize].online;
            let since = stray.then(|| self.stray[t].unwrap_or(sim.now));
            self.stray[t] = since;
            let long = since.is_some_and(|since| sim.now > since + DRAIN_NS);
            ensure(!long, || format!("thread {t} stays on vCPU {}, which is offline", thread.vcpu))?;
        }
        for app in &sim.apps {
            let fair = !matches!(
                sim.guests[app.vm as usize].lock,
                LockKind::TestAndSet | LockKind::Corefit { bypasses: 1.., .. }
            );
            for (number, kind) in (0..app.program.locks).filter_map(|number| {
                let takes = |op: &Op| match op {
                    Op::Acquire(kind, other) if *other == number => Some(*kind),
                    _ => None,
                };
                app.program.ops.iter().find_map(takes).map(|kind| (number, kind))
            }) {
                let l = (app.locks + u32::from(number)) as usize;
                let line: Vec<u32> = sim.locks[l].line.iter(&sim.threads).collect();
                let before = std::mem::replace(&mut self.lines[l], line.clone());
                if kind == LockUse::Kernel && fair {
                    let gone = before.iter().take_while(|t| line.first() != Some(t)).count();
                    let kept = &before[gone..];
                    self.passed += u64::from(gone > 0);
                    ensure(line.starts_with(kept), || format!("lock {l}: {before:?} became {line:?}"))?;
                }
            }
        }
        Ok(())
    }
}

impl Watch for Auditor {
    fn before(&mut self, _: &Sim, _: u32) {}
    fn after(&mut self, sim: &Sim) {
        if let Err(what) = self.look(sim) {
            panic!("at {} ns: {what}", sim.now);
        }
    }
}

mod tests {
    use super::*;
    use crate::random::{Purpose, Stream};
    use crate::{Limit, Scenario};

    const MS: u64 = 1_000_000;
    const PROGRAMS: [&str; 10] = [
        "hog",
        "forever { compute 300us exp barrier mark }",
        "forever { compute 50us exp kernel a { compute 30us exp } mark }",
        "forever { compute 50us exp userspin a { compute 30us exp mutex b { compute 5us } } sleep 100us exp mark }",
        "forever { compute 20us mutex a { compute 20us exp kernel b { compute 3us } } mark }",
        "forever { parallel { compute 1ms split exp repeat 5 { wait c prev compute 20us post c } } compute 100us mark }",
        "forever { wait d prev put e next compute 40us exp wait e prev post d mark }",
        "repeat 30 { single rotate { compute 200us } barrier compute 1ms split normal 10% barrier }",
        "repeat 20 { parallel { repeat 3 { compute 200us exp barrier kernel k { compute 2us } } } sleep 1ms exp }",
        "forever { sleep 500us exp compute 200us uniform 50% mark }",
    ];
    const LOCKS: [&str; 9] = [
        "test-and-set",
        "ticket",
        "pv-ticket",
        "oticket",
        "iticket",
        "longer-spin",
        "queue",
        "corefit",
        "corefit-fifo",
    ];

    struct Random(Stream);

    impl Random {
        fn below(&mut self, n: u64) -> u64 {
            self.0.below(n)
        }
        fn pick<T: Copy>(&mut self, all: &[T]) -> T {
            all[usize::try_from(self.below(all.len() as u64)).unwrap()]
        }
        fn one_in(&mut self, n: u64, text: &str) -> String {
            if self.below(n) == 0 { format!("{text}\n") } else { String::new() }
        }
    }

    /// A scenario with everything that one can say, at random.
    fn text(r: &mut Random) -> String {
        let scheduler = r.pick(&["cfs", "eevdf", "credit", "credit2", "strict"]);
        let (nodes, cores, threads) = (1 + r.below(2), 1 + r.below(3), 1 + r.below(2));
        let n = nodes * cores * threads;
        let linux = ["cfs", "eevdf", "strict"].contains(&scheduler);
        let mut text = format!("scheduler = \"{scheduler}\"\nseed = {}\njitter = \"5ms\"\n", r.below(1000));
        if scheduler != "strict" {
            text += &r.one_in(4, "relaxed = {}");
        }
        text += &r.one_in(4, "spread_siblings = true");
        text += &r.one_in(5, "governor = { slowest = 0.6 }");
        text += &r.one_in(3, "ple = { user = true }");
        text += &r.one_in(3, "cfs = { tick = \"0s\", bandwidth_slice = \"1ms\" }");
        text += &r.one_in(3, "credit2 = { queue = \"core\" }");
        text += &format!("[hardware]\nnodes = {nodes}\ncores = {cores}\nthreads = {threads}\n");
        for vm in 0..1 + r.below(4) {
            let most = if scheduler == "strict" { n.min(4) } else { 4 };
            let (vcpus, low) = (1 + r.below(most), if scheduler == "strict" { 0 } else { r.below(n) });
            let (high, soft) = (low + r.below(n - low), r.below(n));
            text += &format!("[[vm]]\nname = \"vm{vm}\"\nvcpus = {vcpus}\nthreads = {}\n", 1 + r.below(7));
            if scheduler != "strict" {
                text += &r.one_in(2, &format!("affinity = \"{low}-{high}\""));
            }
            text += &r.one_in(4, &format!("soft = \"{soft}\""));
            let (node, online, packages) = (r.below(nodes), 1 + r.below(vcpus), 1 + r.below(3));
            text += &r.one_in(4, &format!("memory_nodes = \"{node}\""));
            text += &r.one_in(4, &format!("made_on = \"{soft}\""));
            text += &r.one_in(4, &format!("online = {online}"));
            text += &r.one_in(4, &format!("packages = {packages}"));
            text += &r.one_in(4, "pinned = true");
            text += &r.one_in(4, "rotate = true");
            text += &r.one_in(3, "again = true");
            text += &r.one_in(2, "runtime = \"libgomp\"");
            let cap = r.pick(&["0.2", "0.7", "1.3"]);
            text += &r.one_in(3, &format!("cap = {cap}\ncap_period = \"10ms\""));
            if linux {
                text += &r.one_in(4, "quota = 0.4\nquota_period = \"20ms\"");
            }
            if scheduler == "eevdf" {
                text += &r.one_in(3, "fair_slice = \"300us\"");
            }
            text += &format!(
                "weight = {}\nwait = \"{}\"\nlock = \"{}\"\nprogram = \"{}\"\n",
                r.pick(&[200, 1024, 3000]),
                r.pick(&["block", "spin", "100us"]),
                r.pick(&LOCKS),
                r.pick(&PROGRAMS)
            );
        }
        text
    }

    /// Somebody changes settings meanwhile.
    fn change(sim: &mut Sim, r: &mut Random) {
        let vm = usize::try_from(r.below(sim.spec.vms.len() as u64)).unwrap();
        let vcpus = sim.spec.vms[vm].vcpus.len() as u64;
        let vcpu = u32::try_from(r.below(vcpus)).unwrap();
        let limit = Limit { quota_ns: (1 + r.below(9)) * MS, period_ns: 10 * MS, burst_ns: 0 };
        let limit = (r.below(3) > 0).then_some(limit);
        let p = r.below(u64::from(sim.pcpus()));
        // What this host does not know is refused, and changes nothing.
        let _refused = match r.below(7) {
            0 => sim.set_online(vm, 1 + u32::try_from(r.below(vcpus)).unwrap()),
            1 => sim.set_cap(vm, limit),
            2 => sim.set_quota(vm, vcpu, limit),
            3 => sim.set_weight(vm, r.pick(&[100, 1024, 4000])),
            4 => sim.set_team(vm, 1 + u32::try_from(r.below(4)).unwrap()),
            5 => sim.set_slice(vm, vcpu, r.pick(&[None, Some(200_000), Some(9 * MS)])),
            _ if matches!(sim.spec.policy, Policy::Strict(_)) => Ok(()),
            _ => sim.set_affinity(vm, vcpu, &format!("{}-{p}", r.below(p + 1)).parse().unwrap()),
        };
    }

    #[test]
    fn after_every_event_everybody_is_in_one_place_and_locks_exclude_in_order() {
        let (mut events, mut passed) = (0, 0);
        for seed in 0..250 {
            let r = &mut Random(Stream::new(seed, 7, Purpose::Start));
            let text = text(r);
            let mut sim = Sim::new(&Scenario::parse(&text, &[]).unwrap().spec).unwrap();
            let mut auditor = Auditor::new(&sim);
            let run = std::panic::AssertUnwindSafe(|| {
                for _ in 0..12 {
                    sim.run_for_watched(4 * MS, &mut auditor);
                    sim.check().unwrap();
                    if seed % 2 == 0 {
                        change(&mut sim, r);
                        auditor.moved = true;
                        auditor.look(&sim).unwrap();
                    }
                }
            });
            if let Err(cause) = std::panic::catch_unwind(run) {
                println!("host {seed}:\n{text}");
                std::panic::resume_unwind(cause);
            }
            events += auditor.events;
            passed += auditor.passed;
        }
        println!("{events} events, {passed} times a fair lock changed hands");
        assert!(events > 100_000 && passed > 1_000, "{events} {passed}");
    }
}

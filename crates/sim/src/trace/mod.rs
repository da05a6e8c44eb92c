//! What happened, as a picture to walk through: Perfetto's track events.
//!
//! ```text
//! pCPUs          pCPU 0   |  a/vCPU 0   |    b/vCPU 1     |          who is on it
//! a              vCPU 0   |  running    | waiting         |          what becomes of it
//! b              vCPU 1   halted ▲ |waiting| running ...             ▲ an arrow from who kicked it
//! ```
//!
//! The tracer looks at the host after each event and writes what changed. The model knows nothing of it, so it
//! costs nothing while nobody traces, and a traced run is the same run.

mod perfetto;

use std::io;

use self::perfetto::{Event, Kind, Packets};
use crate::cpus::{NONE, VState};
use crate::host::{Act, Sim, Watch};
use crate::queue::Ns;

/// Written out in pieces of this size.
const PIECE: usize = 1 << 16;

/// Names of events, in the order of [`What`]; the names of vCPUs follow.
const NAMES: [&str; 7] = ["running", "spinning", "switching", "waiting", "throttled", "halted", "kick"];
const KICK: u64 = 7;
/// Names of details.
const DETAILS: [&str; 2] = ["pCPU", "thread"];

/// What becomes of a vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Running = 1,
    Spinning = 2,
    Switching = 3,
    Waiting = 4,
    Throttled = 5,
    Halted = 6,
}

/// What a track shows now, and since when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct State {
    what: What,
    pcpu: u32,
    thread: u32,
    /// Of [`What::Switching`]: when it will be over, and what comes then.
    until: Ns,
    then: What,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    state: State,
    since: Ns,
    /// An arrow ends where this begins.
    arrow: Option<u64>,
}

struct Tracer<'a> {
    packets: Packets,
    out: &'a mut dyn io::Write,
    result: io::Result<()>,
    vcpus: Vec<Slot>,
    /// By pCPU: who is on it, and since when.
    pcpus: Vec<(u32, Ns)>,
    /// The vCPU in which the event happens.
    by: u32,
    arrows: u64,
}

impl Sim {
    /// Runs as [`Sim::run`] does, or as [`Sim::run_for`] for so many ns, and writes a Perfetto trace: a track
    /// for each pCPU and vCPU, and an arrow for each kick. It takes longer in proportion to the vCPUs.
    ///
    /// # Errors
    /// If the trace cannot be written; the run is over all the same.
    pub fn trace(&mut self, for_ns: Option<u64>, out: &mut dyn io::Write) -> io::Result<()> {
        let mut tracer = Tracer::new(self, out);
        match for_ns {
            Some(ns) => self.run_for_watched(ns, &mut tracer),
            None => self.run_watched(&mut tracer),
        }
        tracer.finish(self)
    }
}

/// Numbers of tracks: pCPUs from here, then vCPUs, then groups.
const TRACKS: u64 = 1;

impl<'a> Tracer<'a> {
    fn new(sim: &Sim, out: &'a mut dyn io::Write) -> Tracer<'a> {
        let state = |v: u32| Slot { state: state(sim, v), since: sim.now, arrow: None };
        let vcpus = u32::try_from(sim.cpus.vcpus.len()).unwrap_or(NONE);
        let mut tracer = Tracer {
            packets: Packets::default(),
            out,
            result: Ok(()),
            vcpus: (0..vcpus).map(state).collect(),
            pcpus: sim.cpus.pcpus.iter().map(|pcpu| (pcpu.run, sim.now)).collect(),
            by: NONE,
            arrows: 0,
        };
        tracer.describe(sim);
        tracer
    }

    fn vcpu_track(&self, v: u32) -> u64 {
        TRACKS + self.pcpus.len() as u64 + u64::from(v)
    }

    fn describe(&mut self, sim: &Sim) {
        let name = |v: u32| {
            let vm = sim.cpus.vcpus[v as usize].vm as usize;
            format!("{}/vCPU {}", sim.guests[vm].name, v - sim.cpus.vms[vm].first)
        };
        let vcpus = u32::try_from(self.vcpus.len()).unwrap_or(NONE);
        let names: Vec<String> = NAMES.iter().map(|n| (*n).to_owned()).chain((0..vcpus).map(name)).collect();
        self.packets.names(&names, &DETAILS);
        let groups = self.vcpu_track(vcpus);
        self.packets.group(groups, 1, "pCPUs");
        for p in 0..self.pcpus.len() as u64 {
            self.packets.track(TRACKS + p, groups, p, &format!("pCPU {p}"));
        }
        for ((guest, vm), number) in sim.guests.iter().zip(&sim.cpus.vms).zip(1_u64..) {
            self.packets.group(groups + number, number + 1, &guest.name);
            for i in 0..vm.count {
                let track = self.vcpu_track(vm.first + i);
                self.packets.track(track, groups + number, u64::from(i), &format!("vCPU {i}"));
            }
        }
    }

    /// What a vCPU did until now is over.
    fn close(&mut self, v: u32, now: Ns) {
        let Slot { state, since, arrow } = self.vcpus[v as usize];
        if now == since {
            return;
        }
        let on = matches!(state.what, What::Running | What::Spinning | What::Switching);
        let detail = |number: u64, value: u32| (on && value != NONE).then_some((number, u64::from(value)));
        let event = Event {
            name: state.what as u64,
            details: [detail(1, state.pcpu), detail(2, state.thread)],
            arrow_to: arrow,
            ..Event::default()
        };
        self.slice(self.vcpu_track(v), since, now, &event);
        self.vcpus[v as usize].arrow = None;
        self.vcpus[v as usize].since = now;
    }

    fn slice(&mut self, track: u64, from: Ns, to: Ns, event: &Event) {
        self.packets.event(from, track, Kind::Begin, event);
        self.packets.event(to, track, Kind::End, &Event::default());
    }

    fn close_pcpu(&mut self, p: usize, now: Ns) {
        let (run, since) = self.pcpus[p];
        if run != NONE && since < now {
            let event = Event { name: NAMES.len() as u64 + 1 + u64::from(run), ..Event::default() };
            self.slice(TRACKS + p as u64, since, now, &event);
        }
    }

    /// A vCPU is seen at a time.
    fn see(&mut self, v: u32, new: State, now: Ns) {
        let old = self.vcpus[v as usize].state;
        if old.what == What::Switching && old.until <= now {
            // It was over meanwhile.
            self.close(v, old.until);
            self.vcpus[v as usize].state = State { what: old.then, until: 0, ..old };
        }
        let old = self.vcpus[v as usize].state;
        if (old.what, old.pcpu, old.thread) != (new.what, new.pcpu, new.thread) {
            self.close(v, now);
            self.vcpus[v as usize].since = now;
        }
        self.vcpus[v as usize].state = new;
        if old.what == What::Halted && new.what != What::Halted && self.by != NONE && self.by != v {
            self.arrows += 1;
            let event = Event { name: KICK, arrow_from: Some(self.arrows), ..Event::default() };
            self.packets.event(now, self.vcpu_track(self.by), Kind::Instant, &event);
            self.vcpus[v as usize].arrow = Some(self.arrows);
        }
    }

    fn write(&mut self) {
        if self.result.is_ok() {
            self.result = self.out.write_all(&self.packets.0);
        }
        self.packets.0.clear();
    }

    fn finish(mut self, sim: &Sim) -> io::Result<()> {
        self.after(sim);
        for v in 0..u32::try_from(self.vcpus.len()).unwrap_or(NONE) {
            self.close(v, sim.now);
        }
        for p in 0..self.pcpus.len() {
            self.close_pcpu(p, sim.now);
        }
        self.write();
        self.result
    }
}

impl Watch for Tracer<'_> {
    fn before(&mut self, sim: &Sim, p: u32) {
        self.by = sim.cpus.pcpus[p as usize].run;
    }

    fn after(&mut self, sim: &Sim) {
        for v in 0..u32::try_from(self.vcpus.len()).unwrap_or(NONE) {
            let new = state(sim, v);
            if new != self.vcpus[v as usize].state {
                self.see(v, new, sim.now);
            }
        }
        for (p, pcpu) in sim.cpus.pcpus.iter().enumerate() {
            if pcpu.run != self.pcpus[p].0 {
                self.close_pcpu(p, sim.now);
                self.pcpus[p] = (pcpu.run, sim.now);
            }
        }
        self.by = NONE;
        if self.packets.0.len() > PIECE {
            self.write();
        }
    }
}

/// What becomes of a vCPU at this moment.
fn state(sim: &Sim, v: u32) -> State {
    let vcpu = &sim.cpus.vcpus[v as usize];
    let off = |what| State { what, pcpu: NONE, thread: NONE, until: 0, then: what };
    match vcpu.state {
        VState::Halted => off(What::Halted),
        VState::Waiting => off(What::Waiting),
        VState::Throttled => off(What::Throttled),
        VState::Running => {
            let thread = sim.threads.get(vcpu.cur as usize);
            let then = match thread.map(|t| t.act) {
                Some(Act::Spin) => What::Spinning,
                _ => What::Running,
            };
            // Debts are paid first, from when the pCPU was last accounted.
            let until = sim.cpus.pcpus[vcpu.pcpu as usize].since + vcpu.debt;
            let what = if until > sim.now { What::Switching } else { then };
            let until = if what == What::Switching { until } else { 0 };
            State { what, pcpu: vcpu.pcpu, thread: thread.map_or(NONE, |t| t.member), until, then }
        }
    }
}

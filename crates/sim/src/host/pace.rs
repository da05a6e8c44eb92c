//! How fast pCPUs are: Xen's `ondemand` governor (`dbs_check_cpu` in xen/drivers/cpufreq/cpufreq_ondemand.c).
//!
//! Every so often it looks at what part of the time each pCPU was busy. Above 0.8 of it the pCPU gets its full speed; below 0.7,
//! the least speed with which 0.7 would have done. What idled before the programs began does not count: it is as if they were
//! going on, for simulated ones are short.
//!
//! Known gaps: any speed from the least to the full one is possible (hardware has a few); all pCPUs are looked at
//! at the same time, idle ones, too (Xen: at multiples of the interval on each, too, but one that wakes up from a deep idle state
//! may be looked at then); siblings are as fast as they are apart; no turbo.

use super::{Event, Sim};
use crate::cpus::NONE;
use crate::queue::NEVER;

/// `DEF_FREQUENCY_UP_THRESHOLD`, and 10 points below.
const UP: f64 = 0.8;
const DOWN: f64 = 0.7;

impl Sim {
    /// The time between two looks is over.
    pub(super) fn sample(&mut self) {
        let Some(governor) = self.spec.governor else { return };
        self.queue.add(self.now + governor.sample_ns, Event::Sample);
        let first = self.now <= self.spec.jitter_ns + governor.sample_ns;
        let mut changed = false;
        for p in 0..self.pcpus() {
            let pcpu = &self.cpus.pcpus[p as usize];
            let now = if pcpu.idle_since == NEVER { 0 } else { self.now - pcpu.idle_since };
            let idle = pcpu.idle_ns + now;
            let before = std::mem::replace(&mut self.idle_before[p as usize], idle);
            if first {
                continue;
            }
            let busy = 1.0 - ((idle - before) as f64 / governor.sample_ns as f64).min(1.0);
            let pace = &mut self.cpus.topology.pace[p as usize];
            let next = match busy {
                busy if busy > UP => 1.0,
                busy if busy < DOWN => (*pace * busy / DOWN).max(governor.slowest),
                _ => *pace,
            };
            if (next - *pace).abs() > f64::EPSILON {
                *pace = next;
                changed = true;
                if self.cpus.pcpus[p as usize].run != NONE {
                    self.set_rate(p, NONE);
                }
            }
        }
        self.events -= u64::from(!changed); // a look only
    }
}

#[cfg(test)]
mod tests {
    use crate::{Scenario, Sim};

    /// Seconds that 1 s of work takes in a VM with a cap, on pCPUs that are slowed down to that part of their speed.
    fn took(cap: &str, slowest: &str) -> f64 {
        let text = format!(
            "scheduler = \"credit\"\ngovernor = {{ slowest = {slowest} }}\nhardware = {{ cores = 1 }}\n\
             [[vm]]\nname = \"a\"\ncap = {cap}\nprogram = \"compute 1s\"\n"
        );
        let mut sim = Sim::new(&Scenario::parse(&text, &[]).unwrap().spec).unwrap();
        sim.run();
        sim.truth().vms[0].apps[0].took_ns.unwrap() as f64 / 1e9
    }

    #[test]
    fn who_idles_is_slowed_down_and_who_is_busy_is_not() {
        assert!((took("1", "0.5") - 1.0).abs() < 0.01, "{}", took("1", "0.5"));
        let (full, slow) = (took("0.25", "1"), took("0.25", "0.5"));
        // Runs are as long as a slice of 30 ms, a look comes each 20 ms, and the pCPU is at full speed after one that saw it busy.
        assert!(slow > 1.2 * full && slow < 2.0 * full, "{full} {slow}");
    }

    #[test]
    fn a_speed_that_is_none_is_refused() {
        for slowest in ["0", "1.5", "-1"] {
            let text =
                format!("governor = {{ slowest = {slowest} }}\n[[vm]]\nname = \"a\"\nprogram = \"hog\"\n");
            let told = Scenario::parse(&text, &[]).unwrap_err().to_string();
            assert!(told.starts_with("line 1, governor.slowest: "), "{told}");
        }
    }
}

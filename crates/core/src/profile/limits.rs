//! What limits a program, and what can be done, in sentences.

use super::features::{Features, Type};
use super::on_vm::{OnVm, Steps, potential_on};
use super::replay::Vm;

/// The least loss worth a sentence.
const WORTH: f64 = 0.05;

/// `crowded`: others kept the CPUs busy; `seen_by`: what saw how threads slow each other.
pub(super) fn limits(
    steps: &Steps,
    features: &Features,
    own: &OnVm,
    asked: &OnVm,
    crowded: bool,
    seen_by: &str,
) -> Vec<String> {
    let mut told = vec![];
    let percent = |x: f64| format!("{:.0} %", 100.0 * x);
    let idle_for = if crowded {
        "input, output, sleep, and waiting: others kept the CPUs busy"
    } else {
        "input, output, sleep"
    };
    if features.threads == 1 {
        told.push("It has one working thread: no machine makes it faster by more CPUs.".to_owned());
        if features.idle > WORTH {
            told.push(format!(
                "It is not active {} of the time ({idle_for}). Speedups count cores that work, so they are below 1.",
                percent(features.idle)
            ));
        }
        return told;
    }
    if own.unused > WORTH {
        let why = if features.idle > features.sequential && features.idle > WORTH {
            format!("nobody is active {} of the time ({idle_for})", percent(features.idle))
        } else if features.sequential > WORTH {
            format!("one thread works alone {} of the time", percent(features.sequential))
        } else {
            format!("the busiest thread has {} more work than the mean", percent(features.imbalance))
        };
        told.push(format!("On a machine of its own {} of the CPU time is idle: {why}.", percent(own.unused)));
    }
    if own.switching > WORTH {
        told.push(format!(
            "Blocking and waking take {} of its CPU time on a machine of its own.",
            percent(own.switching)
        ));
    }
    if own.slowed > WORTH {
        told.push(format!(
            "Threads slow each other: {} of the CPU time on a machine like this one is lost to cores, caches and memory that \
             they share ({seen_by}).",
            percent(own.slowed)
        ));
    }
    if asked.switching > WORTH {
        told.push(format!(
            "On the VM {} of its CPU time goes to blocking, waking and switching vCPUs out, at {:.0} blocking synchronisations per thread-second: \
             `corefit run --lock` if they are mutexes, fewer threads else (`corefit run --threads N`).",
            percent(asked.switching),
            features.switches_per_thread_s
        ));
    }
    if features.kind.is_some_and(Type::blocks) {
        told.push(
            "It blocks before it has used up a timeslice; beside busy VMs it also waits to be scheduled again, which is in the \
             lower ends only: fewer, busier vCPUs (`corefit run` follows what is available)."
                .to_owned(),
        );
    }
    // Busy periods take longer on a VM than on the machine, so what they leave fills others: no more is short than is unused.
    let short = (1.0 - asked.potential).min(asked.unused);
    if short > WORTH {
        let longer = potential_on(&steps.is, &Vm { period_ns: 8.0 * asked.vm.period_ns, ..asked.vm.clone() });
        let cure = if longer > asked.potential + WORTH {
            format!(
                "periods 8 times as long have enough for {} (a throughput VM's, set by the host)",
                percent(longer)
            )
        } else {
            "longer periods do not help; fewer vCPUs with a larger share each do".to_owned()
        };
        told.push(format!(
            "{} of its timeslices find too little work in their period: {cure}.",
            percent(short)
        ));
    }
    let apart = asked.unused - short;
    if apart > WORTH {
        told.push(format!(
            "{} of its timeslices are lost because work sits on other vCPUs than they do ({} more than the mean on the busiest \
             thread in a period): one quota for the VM instead of one per vCPU, timeslices in proportion to the load, or \
             sequential parts that move between threads.",
            percent(apart),
            percent(features.imbalance)
        ));
    }
    if told.is_empty() {
        told.push("Nothing that can be seen: it uses what it gets, here and there.".to_owned());
    }
    told
}

#[cfg(test)]
mod tests {
    use super::super::{Contention, Machine, OneCpu, Profile, Question, Series, Spin, analyse};

    const MS: f64 = 1e6;

    /// What threads run in slots of 4 ms, again and again.
    fn profile(slots: &[&[f64]], change: impl Fn(&mut Machine)) -> Profile {
        let slots: Vec<(f64, &[f64])> =
            slots.iter().cycle().take(20 * slots.len()).map(|runs| (4.0 * MS, *runs)).collect();
        let mut machine = Machine { cpus: 2, contention: None, one_cpu: None, others: None };
        change(&mut machine);
        let question = Question { machine, spin: Spin::Passive, period_ns: 24.0 * MS, share: 0.25 };
        analyse(&Series::of_runs(&slots), &question).unwrap()
    }

    const BUSY: &[f64] = &[4.0 * MS; 2];

    #[test]
    fn one_thread_that_sleeps_most_of_the_time_is_told_so() {
        let told = profile(&[&[1.0 * MS]], |_| ()).limits;
        assert_eq!(told.len(), 2, "{told:?}");
        assert!(told[1].starts_with("It is not active 75 % of the time"), "{told:?}");
        assert_eq!(profile(&[&[4.0 * MS]], |_| ()).limits.len(), 1);
    }

    #[test]
    fn what_saw_that_threads_slow_each_other_is_named() {
        let reporter = Contention { cpus: 2, is: 1.5, low: 1.5, high: 1.5 };
        let windows = OneCpu { part: 0.6, low: 0.6, high: 0.6, windows: 9, covered: 1.0 };
        for (change, word) in [
            (Machine { cpus: 2, contention: Some(reporter), one_cpu: None, others: None }, "(as a reporter"),
            (
                Machine { cpus: 2, contention: Some(reporter), one_cpu: Some(windows), others: None },
                "(as windows",
            ),
        ] {
            let told = profile(&[BUSY], |machine| *machine = change).limits.join(" ");
            assert!(told.contains("Threads slow each other") && told.contains(word), "{told}");
        }
    }

    #[test]
    fn no_more_timeslices_find_too_little_work_than_are_unused() {
        // 48 ms of both, 96 of none: P1's potential is a third, but the 48 ms take 168 to 192 on a VM with a quarter.
        let slots = [vec![BUSY; 12], vec![&[0.0, 0.0][..]; 24]].concat();
        let profile = profile(&slots, |_| ());
        assert!((profile.asked.potential - 1.0 / 3.0).abs() < 0.01, "{:?}", profile.asked);
        let most = 1.0 - 192.0 / (192.0 + 96.0);
        assert!(profile.asked.unused > 0.05 && profile.asked.unused < most + 0.01, "{:?}", profile.asked);
        let told = profile.limits.iter().find(|limit| limit.contains("find too little work")).unwrap();
        let said: f64 = told.split(' ').next().unwrap().parse().unwrap();
        assert!((said - 100.0 * profile.asked.unused).abs() < 0.51, "{told}");
    }

    #[test]
    fn beside_neighbours_the_potential_is_of_what_they_leave() {
        let profile = profile(&[&[4.0 * MS, 0.0], BUSY], |_| ());
        for on in &profile.beside {
            assert!(on.potential >= on.efficiency - 1e-9, "{on:?}");
        }
    }
}

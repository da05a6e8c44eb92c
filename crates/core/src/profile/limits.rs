//! What limits a program, and what can be done, in sentences.

use super::features::Features;
use super::on_vm::{OnVm, Steps, potential_on};
use super::replay::Vm;

/// The least loss worth a sentence.
const WORTH: f64 = 0.05;

pub(super) fn limits(steps: &Steps, features: &Features, own: &OnVm, asked: &OnVm) -> Vec<String> {
    let mut told = vec![];
    let percent = |x: f64| format!("{:.0} %", 100.0 * x);
    if features.threads == 1 {
        told.push("It has one working thread: no machine makes it faster by more CPUs.".to_owned());
        return told;
    }
    if own.unused > WORTH {
        let why = if features.idle > features.sequential && features.idle > WORTH {
            format!("nobody is active {} of the time (input, output, sleep)", percent(features.idle))
        } else if features.sequential > WORTH {
            format!("one thread works alone {} of the time", percent(features.sequential))
        } else {
            format!("the busiest thread has {} more work than the mean", percent(features.imbalance))
        };
        told.push(format!("On a machine of its own {} of the CPU time is idle: {why}.", percent(own.unused)));
    }
    if own.switching > WORTH {
        told.push(format!(
            "Blocking and waking takes {} of its CPU time on a machine of its own.",
            percent(own.switching)
        ));
    }
    if own.slowed > WORTH {
        told.push(format!(
            "Threads slow each other: {} of the CPU time on a machine like this one is lost to cores that they \
             share (as a reporter beside them saw it).",
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
    if matches!(features.kind.0, 2 | 3) {
        told.push(
            "It blocks before it has used up a timeslice; beside busy VMs it also waits to be scheduled again, which is in the \
             lower ends only: fewer, busier vCPUs (`corefit run` follows what is available)."
                .to_owned(),
        );
    }
    let short = 1.0 - asked.potential;
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
    let apart = asked.potential - asked.efficiency - asked.switching - asked.slowed;
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

//! Programs that run for long: the ten of the library without their end, and random ones.

use anyhow::{Result, anyhow};
use corefit_core::Random;
use corefit_sim::library;

/// A program that goes on, and how its teams wait.
#[derive(Clone, Debug)]
pub(super) struct Long {
    pub(super) name: String,
    pub(super) text: String,
    pub(super) threads: u32,
    /// As scenarios have it: `spin`, `block`, or how long to spin.
    pub(super) wait: &'static str,
}

/// One of the library: its outermost loop goes on for ever. EP and DC are one parallel section as before, whose end
/// nobody sees: they tell no progress.
pub(super) fn ten(name: &str) -> Result<Long> {
    let text = library(name).ok_or_else(|| anyhow!("no program {name}"))?;
    let text = match name {
        "ep" => text.replace("compute 50s", "compute 3600s"),
        "dc" => text.replace("repeat 40", "forever"),
        _ => {
            let from = text.find("repeat").ok_or_else(|| anyhow!("{name} has no loop"))?;
            let body = text[from..].find('{').ok_or_else(|| anyhow!("{name} has no loop"))?;
            format!("forever {}", &text[from + body..])
        }
    };
    Ok(Long { name: name.into(), text, threads: 16, wait: "2ms" })
}

/// A random one, by number: loops of random length and kind, random waiting, 4 to 16 threads.
pub(super) fn random(seed: u64) -> Long {
    let mut random = Random(seed ^ 0x5DEE_CE66);
    let threads = [4, 8, 12, 16, 16, 16][random.below(6)];
    let wait = ["block", "100us", "2ms", "2ms", "spin"][random.below(5)];
    let mut parts = String::new();
    for _ in 0..=random.below(3) {
        let us = 10f64.powf(2.0 + 2.7 * random.unit());
        let spread = ["normal 3%", "normal 15%", "exp"][random.below(3)];
        let times = 1 + random.below(20);
        let part = match random.below(6) {
            0..=2 => format!("repeat {times} {{ compute {us:.0}us split {spread} barrier }} "),
            3 => format!("repeat {times} {{ compute {us:.0}us split {spread} sleep 300us exp }} barrier "),
            4 => format!(
                "repeat {times} {{ compute {us:.0}us split {spread} userspin mesh {{ compute 1us }} }} barrier "
            ),
            _ => format!(
                "repeat {times} {{ wait low prev compute {:.0}us split normal 5% post low }} barrier ",
                us.min(2000.0)
            ),
        };
        parts += &part;
    }
    let serial = if random.below(3) == 0 {
        format!("compute {:.0}us ", 10f64.powf(1.5 + 2.0 * random.unit()))
    } else {
        String::new()
    };
    let text = format!("forever {{ {serial}parallel {{ {parts}}} }}");
    Long { name: format!("random {seed}"), text, threads: u32::try_from(threads).unwrap_or(16), wait }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_long_program_compiles_and_has_no_end() {
        let ten = super::super::super::p2::PROGRAMS.iter().map(|name| ten(name).unwrap());
        for long in ten.chain((0..200).map(random)) {
            let program = corefit_sim::Program::compile(&long.text);
            let program = program.unwrap_or_else(|e| panic!("{}: {e}", long.text));
            assert!(program.is_endless() || long.name == "ep", "{}: {}", long.name, long.text);
        }
    }
}

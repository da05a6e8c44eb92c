//! P3, Figure 1: vCPUs that are hyperthreads add little to as many that are cores.

use anyhow::Result;

use super::testbed::{marks_per_s, run, spec};
use super::{Item, Paper, Rule};

const FIGURE_1: &str = include_str!("../../../../scenarios/p3-figure1.toml");

pub(super) fn items() -> Result<Vec<Item>> {
    // 16 cores with two threads each (EC2, GCE), and 28 of which 4 give their second thread, too (Azure).
    let of = |cores: u32, vcpus: u32| {
        spec(FIGURE_1, &[("hardware.cores", cores.to_string()), ("vm.build.vcpus", vcpus.to_string())])
    };
    let hosts = [of(16, 8)?, of(16, 16)?, of(16, 32)?, of(28, 16)?, of(28, 32)?];
    let speeds: Vec<f64> = run(&hosts, "P3")?.iter().map(marks_per_s).collect();
    let faster = |from: usize, to: usize| Some(speeds[to] / speeds[from]);
    let at = (Paper::P3, "Figure 1");
    let plateau = faster(1, 2);
    Ok(vec![
        Item::new(at, "16 over 8 vCPUs, all cores: it scales", None, faster(0, 1), &Rule::AtLeast(1.8)),
        Item::new(at, "32 over 16 vCPUs of 16 cores: a plateau", None, plateau, &Rule::AtMost(1.33)),
        Item::new(at, "32 over 16 vCPUs of 28 cores: it scales on", None, faster(3, 4), &Rule::AtLeast(1.6)),
    ])
}

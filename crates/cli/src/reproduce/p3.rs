//! P3, Figure 1: vCPUs that are hyperthreads add little to as many that are cores. What was measured here: `measured.rs`;
//! Figures 2, 4, 6, 7 and 8: `build.rs`.

mod build;
mod measured;

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
    let faster = |from: usize, to: usize| speeds[to] / speeds[from];
    let plateau = faster(1, 2);
    // How flat the plateau is follows from a setting of ours, so only what is above what is compared.
    let order = |what: &str, ours: f64| {
        let item = Item::new((Paper::P3, "Figure 1"), what, None, Some(ours), &Rule::AtLeast(1.01));
        item.fitted("class.compiler.beside_sibling")
    };
    let mut items = vec![
        order("16 cores: gain of 8 to 16 vCPUs over that of 16 to 32", faster(0, 1) / plateau),
        order("gain of 16 to 32 vCPUs, 28 cores over 16 cores", faster(3, 4) / plateau),
    ];
    items.extend(measured::items()?);
    items.extend(build::items()?);
    Ok(items)
}

//! P2, Figures 10 and 11: pCPUs of vCPUs whose affinities overlap, worked out as `corefit explain --machine scenario:` does.

use anyhow::Result;
use corefit_core::entitle::{Host, entitled};

use super::super::{Item, Paper, Rule};

const FIGURE_10: &str = include_str!("../../../../../scenarios/p2-figure10.toml");
const FIGURE_11: &str = include_str!("../../../../../scenarios/p2-figure11.toml");

pub(super) fn items() -> Result<Vec<Item>> {
    let (one_group, two_groups) = (shares(FIGURE_10)?, shares(FIGURE_11)?);
    let counted = |figure, what: &str, theirs: f64, ours: f64| {
        let what = format!("counted: {what}");
        Item::new((Paper::P2, figure), what, Some(theirs), Some(ours), &Rule::Within(1.0))
    };
    let all = one_group.concat();
    Ok(vec![
        counted("Figure 10", "pCPUs of each of five vCPUs, farthest from theirs", 0.8, farthest(&all, 0.8)),
        counted(
            "Figure 10",
            "pCPUs of the VM of vCPUs 0 and 1, rounded up",
            2.0,
            one_group[0].iter().sum::<f64>().ceil(),
        ),
        counted(
            "Figure 11",
            "pCPUs of each of vCPUs 2, 3 and 4 (ours: a host that fits the text), farthest from theirs",
            1.0 / 3.0,
            farthest(&two_groups[1], 1.0 / 3.0),
        ),
    ])
}

/// pCPUs of each vCPU, VM by VM.
fn shares(text: &str) -> Result<Vec<Vec<f64>>> {
    let division = entitled(&toml::from_str::<Host>(text)?)?;
    let of = |vm| division.vcpus(vm).iter().map(|share| share.cpus.0).collect();
    Ok((0..division.vms()).map(of).collect())
}

fn farthest(shares: &[f64], from: f64) -> f64 {
    let far = |share: &f64| (share - from).abs();
    shares.iter().copied().max_by(|a, b| far(a).total_cmp(&far(b))).unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_10_and_11_come_out_and_the_farthest_vcpu_is_the_one_that_is_judged() {
        let items = items().unwrap();
        assert!(items.len() == 3 && items.iter().all(|item| item.ok == Some(true)), "{items:?}");
        assert_eq!(farthest(&[0.8, 1.0, 0.5], 0.8), 0.5);
    }
}

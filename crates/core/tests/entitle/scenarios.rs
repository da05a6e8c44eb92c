//! The paper's examples, from `scenarios/`.

use corefit_core::entitle::{Host, Wants, group};

use crate::{divide, gets};

const FIGURE_10: &str = include_str!("../../../../scenarios/p2-figure10.toml");
const FIGURE_11: &str = include_str!("../../../../scenarios/p2-figure11.toml");

#[test]
fn figure_10_every_vcpu_gets_four_fifths() {
    let host = toml::from_str::<Host>(FIGURE_10).unwrap();
    let division = divide(&host, Wants::Everything);
    gets(&division, 0, &[0.8, 0.8]);
    gets(&division, 1, &[0.8, 0.8, 0.8]);
    assert_eq!(division.words(0), "1.60 of vCPUs 0-1: pCPUs 0-3 are full, shared with b");

    let paper = group(&host).unwrap();
    assert_eq!(paper.groups.len(), 1, "{paper:?}");
    assert!((paper.groups[0].proportion() - 0.8).abs() < 1e-12);
    assert_eq!((paper.available(0), paper.available(1)), (2.0, 3.0));
}

#[test]
fn figure_11_three_vcpus_get_a_third_and_not_two_fifths() {
    let host = toml::from_str::<Host>(FIGURE_11).unwrap();
    let division = divide(&host, Wants::Everything);
    gets(&division, 0, &[0.5, 0.5]);
    gets(&division, 1, &[1.0 / 3.0; 3]);
    assert_eq!(division.words(1), "1.00 of vCPUs 0-2: pCPU 1 is full, with the VM's own vCPUs only");

    let paper = group(&host).unwrap();
    let mut proportions: Vec<f64> = paper.groups.iter().map(|g| g.proportion()).collect();
    proportions.sort_by(f64::total_cmp);
    assert_eq!(proportions, [1.0 / 3.0, 0.5], "{paper:?}");
    assert_eq!((paper.available(0), paper.available(1)), (1.0, 1.0));
}

#[test]
fn a_mistake_in_a_scenario_is_found_with_its_line() {
    let error = toml::from_str::<Host>("pcpus = \"0-3\"\n[[vm]]\nname = \"a\"\nvcpu = []\n").unwrap_err();
    assert!(error.to_string().contains("line 4"), "{error}");
    let error = toml::from_str::<Host>("pcpus = \"0-x\"\n").unwrap_err().to_string();
    assert!(error.contains("line 1") && error.contains("not a CPU list"), "{error}");
}

//! A picture of a sweep: one number over one value, a line for each combination of the others.

use std::collections::BTreeSet;

use anyhow::{Result, bail, ensure};

use super::metric::{self, MARKS, METRICS, TOOK};
use super::replicate::Run;
use super::{Axis, Point};
use crate::chart::{self, Chart, MOST, Series};
use crate::stats::Mean;

/// What is to be drawn; `None`: chosen.
#[derive(Default)]
pub(super) struct Wanted<'a> {
    pub(super) x: Option<&'a str>,
    pub(super) y: Option<&'a str>,
    /// Only VMs whose names begin so.
    pub(super) vm: Option<&'a str>,
}

impl Wanted<'_> {
    /// Which axis is x, before anything runs.
    ///
    /// # Errors
    /// If there is none, or no such axis or number, or there are too many lines.
    pub(super) fn check(&self, axes: &[Axis], points: &[Point<'_>]) -> Result<()> {
        let x = &self.axis(axes)?.0;
        let names: BTreeSet<Vec<&str>> = points.iter().map(|point| line_of(point, x)).collect();
        ensure!(
            names.len() <= MOST,
            "--plot: {} lines cannot be told apart, {MOST} can; take some values out of the lists",
            names.len()
        );
        match self.y {
            Some(name) if metric::index(name).is_none() && metric::of_host(name).is_none() => {
                bail!("--y {name}: there is no such number; give {}", metric::names())
            }
            Some(name) if self.vm.is_some() && metric::of_host(name).is_some() => {
                bail!("--y {name}: this is the host's, not a VM's; leave out --vm")
            }
            _ => Ok(()),
        }
    }

    fn axis<'a>(&self, axes: &'a [Axis]) -> Result<&'a Axis> {
        let known: Vec<&str> = axes.iter().map(|(key, _)| key.as_str()).collect();
        if let Some(key) = self.x {
            let found = axes.iter().find(|(k, _)| k == key);
            return found.ok_or_else(|| {
                anyhow::anyhow!("--x {key}: the scenario has no list there; there is {}", known.join(", "))
            });
        }
        let most = axes.iter().enumerate().max_by_key(|(number, (_, values))| {
            (values.iter().all(|v| amount(v).is_some()), values.len(), usize::MAX - number)
        });
        match most {
            Some((_, axis)) => Ok(axis),
            None => bail!("--plot: the scenario is one point; put a list in the place of some value"),
        }
    }
}

/// The values that a line stands for: all but x.
fn line_of<'p>(point: &'p Point<'_>, x: &str) -> Vec<&'p str> {
    point.sets.iter().filter(|(key, _)| key != x).map(|(_, value)| value.as_str()).collect()
}

/// Of times, as in scenarios and as people write them, in ns.
const UNITS: [(&str, &str, f64); 4] =
    [("ns", "ns", 1.0), ("us", "µs", 1e3), ("ms", "ms", 1e6), ("s", "s", 1e9)];

/// `8`, `0.5`, or the ns of `10ms`; and whether it is such a time.
fn amount(value: &str) -> Option<(f64, bool)> {
    let with =
        |(unit, _, ns): &(&str, &str, f64)| Some((value.strip_suffix(unit)?.parse::<f64>().ok()? * ns, true));
    let number = value.parse().ok().map(|number| (number, false));
    number.or_else(|| UNITS.iter().find_map(with)).filter(|(x, _)| x.is_finite())
}

/// The values of an axis as amounts, if all are, and the unit if they are times: the greatest of which one has 1.
fn amounts(values: &[String]) -> Option<(Vec<f64>, Option<&'static str>)> {
    let all: Vec<(f64, bool)> = values.iter().map(|v| amount(v)).collect::<Option<_>>()?;
    if all.iter().all(|(_, time)| !time) {
        return Some((all.into_iter().map(|(x, _)| x).collect(), None));
    }
    // Without a unit among times: seconds.
    let ns: Vec<f64> = all.into_iter().map(|(x, time)| if time { x } else { x * 1e9 }).collect();
    let most = ns.iter().copied().fold(0.0, f64::max);
    let (_, name, unit) = UNITS.into_iter().rev().find(|(.., unit)| most >= *unit).unwrap_or(UNITS[0]);
    Some((ns.into_iter().map(|x| x / unit).collect(), Some(name)))
}

/// The picture, and what is not in it.
pub(super) fn draw(
    wanted: &Wanted<'_>,
    axes: &[Axis],
    (points, runs): (&[Point<'_>], &[Vec<Run>]),
    title: &str,
) -> Result<String> {
    let (key, values) = wanted.axis(axes)?;
    let runs_have = |metric: usize| {
        runs.iter().flatten().flat_map(|run| &run.vms).any(|vm| vm.values[metric].is_some_and(|v| v != 0.0))
    };
    let host = wanted.y.and_then(metric::of_host);
    let metric = match wanted.y.and_then(metric::index) {
        Some(metric) => metric,
        None if runs_have(TOOK) => TOOK,
        None => MARKS,
    };
    let (amounts, unit) = amounts(values).unzip();
    let mut series: Vec<Series> = vec![];
    let mut left_out = 0;
    // The fewest and the most that a number is the mean of.
    let mut vms = (usize::MAX, 0);
    for (point, runs) in points.iter().zip(runs) {
        let mut x = 0.0;
        for (k, value) in &point.sets {
            if k != key {
                continue;
            }
            if let Some(number) = values.iter().position(|v| v == value) {
                let place = f64::from(u32::try_from(number).unwrap_or(0));
                x = amounts.as_ref().map_or(place, |amounts| amounts[number]);
            }
        }
        let name = line_of(point, key).join(", ");
        let at = series.iter().position(|s| s.name == name).unwrap_or_else(|| {
            series.push(Series { name, points: vec![] });
            series.len() - 1
        });
        let number = |run| match host {
            Some(host) => Some((host.of)(run)),
            None => {
                let of = of_run(run, metric, wanted.vm)?;
                if !of.is_empty() {
                    vms = (vms.0.min(of.len()), vms.1.max(of.len()));
                }
                Mean::of(of).map(|mean| mean.mean)
            }
        };
        let each: Option<Vec<f64>> = runs.iter().map(number).collect();
        match each.and_then(Mean::of) {
            Some(mean) => series[at].points.push((x, mean.mean, mean.ci95)),
            None => left_out += 1,
        }
    }
    let mut note = String::from("bars: 95 % confidence intervals over replications");
    if left_out > 0 {
        let why = if wanted.vm.is_some() { ", or there is no such VM" } else { "" };
        note += &format!("; {left_out} of {} points left out: not all runs ended{why}", points.len());
    }
    chart::svg(&Chart {
        title: title.into(),
        note,
        x: unit.flatten().map_or(key.clone(), |unit| format!("{key}, {unit}")),
        y: host.map_or_else(|| METRICS[metric].meaning.to_owned() + &over(vms), |host| host.meaning.into()),
        categories: amounts.is_none().then(|| values.clone()),
        logarithmic_x: false,
        linear_y: false,
        series,
    })
}

/// Of how many VMs a number is the mean, in words.
fn over(vms: (usize, usize)) -> String {
    match vms {
        (_, 0 | 1) => String::new(),
        (least, most) if least == most => format!(", mean over {most} VMs"),
        (least, most) => format!(", mean over {least} to {most} VMs"),
    }
}

/// Of the VMs that have the number at all; `None` if one of them did not come to it.
fn of_run(run: &Run, metric: usize, vm: Option<&str>) -> Option<Vec<f64>> {
    let chosen = run.vms.iter().filter(|v| vm.is_none_or(|prefix| v.name.starts_with(prefix)));
    // Programs without an end have no time that they take.
    let chosen = chosen.filter(|v| metric != TOOK || v.finished == Some(false) || v.values[TOOK].is_some());
    chosen.map(|v| v.values[metric]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn axis(key: &str, values: &[&str]) -> Axis {
        (key.into(), values.iter().map(|v| (*v).to_owned()).collect())
    }

    #[test]
    fn x_is_the_longest_list_of_amounts_unless_it_was_chosen() {
        let axes =
            [axis("lock", &["a", "b", "c"]), axis("vcpus", &["1", "2"]), axis("slice", &["1ms", "2ms"])];
        let chosen = |x| Wanted { x, ..Wanted::default() }.axis(&axes).map(|a| a.0.clone());
        assert_eq!(chosen(None).unwrap(), "vcpus");
        assert_eq!(chosen(Some("lock")).unwrap(), "lock");
        let told = chosen(Some("locks")).unwrap_err().to_string();
        assert_eq!(told, "--x locks: the scenario has no list there; there is lock, vcpus, slice");
        let none = Wanted::default().check(&[], &[]).unwrap_err().to_string();
        assert!(none.starts_with("--plot: the scenario is one point"), "{none}");
        let y = Wanted { y: Some("speed"), ..Wanted::default() }.check(&axes, &[]).unwrap_err().to_string();
        assert!(y.starts_with("--y speed: there is no such number; give took_s,"), "{y}");
    }

    #[test]
    fn times_are_amounts() {
        assert_eq!(amount("10ms"), Some((1e7, true)));
        assert_eq!(amount("0.5"), Some((0.5, false)));
        assert_eq!(amount("ticket"), None);
    }

    #[test]
    fn an_axis_of_times_has_the_unit_of_the_longest() {
        let of = |values: &[&str]| amounts(&axis("slice", values).1);
        assert_eq!(of(&["100us", "300us", "3ms"]), Some((vec![0.1, 0.3, 3.0], Some("ms"))));
        assert_eq!(of(&["0", "50us"]), Some((vec![0.0, 50.0], Some("µs"))));
        assert_eq!(of(&["2", "0.5"]), Some((vec![2.0, 0.5], None)));
        assert_eq!(of(&["2ms", "ticket"]), None);
    }

    #[test]
    fn a_mean_names_how_many_vms_it_is_of() {
        let texts = [(usize::MAX, 0), (1, 1), (4, 4), (1, 8)].map(over);
        assert_eq!(texts, ["", "", ", mean over 4 VMs", ", mean over 1 to 8 VMs"]);
    }
}

//! A picture of a sweep: one number over one value, a line for each combination of the others.

use std::collections::BTreeSet;

use anyhow::{Result, bail, ensure};

use super::metric::{self, MARKS, METRICS, TOOK};
use super::replicate::Run;
use super::summary::Mean;
use super::{Axis, Point};
use crate::chart::{self, Chart, MOST, Series};

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

/// `8`, `0.5`, or the seconds of `10ms`.
fn amount(value: &str) -> Option<f64> {
    let units = [("ns", 1e-9), ("us", 1e-6), ("ms", 1e-3), ("s", 1.0)];
    let with = |(unit, scale): &(&str, f64)| Some(value.strip_suffix(unit)?.parse::<f64>().ok()? * scale);
    value.parse().ok().or_else(|| units.iter().find_map(with)).filter(|x: &f64| x.is_finite())
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
    let amounts: Option<Vec<f64>> = values.iter().map(|v| amount(v)).collect();
    let mut series: Vec<Series> = vec![];
    let mut left_out = 0;
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
            None => of_run(run, metric, wanted.vm),
        };
        let each: Option<Vec<f64>> = runs.iter().map(number).collect();
        match each.and_then(Mean::of) {
            Some(mean) => series[at].points.push((x, mean.mean, mean.ci95)),
            None => left_out += 1,
        }
    }
    let mut note = String::from("bars: 95 % confidence intervals over replications");
    if left_out > 0 {
        note += &format!("; {left_out} of {} points left out: not all runs ended", points.len());
    }
    chart::svg(&Chart {
        title: title.into(),
        note,
        x: key.clone(),
        y: host.map_or(METRICS[metric].meaning, |host| host.meaning).into(),
        categories: amounts.is_none().then(|| values.clone()),
        logarithmic_x: false,
        linear_y: false,
        series,
    })
}

/// The mean over the VMs that have the number at all; `None` if one of them did not come to it.
fn of_run(run: &Run, metric: usize, vm: Option<&str>) -> Option<f64> {
    let chosen = run.vms.iter().filter(|v| vm.is_none_or(|prefix| v.name.starts_with(prefix)));
    // Programs without an end have no time that they take.
    let chosen = chosen.filter(|v| metric != TOOK || !v.finished || v.values[TOOK].is_some());
    let values: Option<Vec<f64>> = chosen.map(|v| v.values[metric]).collect();
    Mean::of(values?).map(|mean| mean.mean)
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
        assert_eq!(amount("10ms"), Some(0.01));
        assert_eq!(amount("0.5"), Some(0.5));
        assert_eq!(amount("ticket"), None);
    }
}

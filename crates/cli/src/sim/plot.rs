//! A picture of a sweep: one number over one value, a line for each combination of the others.

use std::collections::BTreeSet;

use anyhow::{Result, bail, ensure};
use corefit_sim::{Program, Spec, VmSpec};

use super::metric::{self, MARKS, METRICS, TOOK};
use super::replicate::{Run, VmRun};
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
        let mut names: BTreeSet<(String, String)> = BTreeSet::new();
        for point in points {
            let kinds = self.kinds(&point.scenario()?.spec);
            names.extend(kinds.into_iter().map(|kind| (line_of(point, x), kind)));
        }
        ensure!(
            names.len() <= MOST,
            "--plot: {} lines cannot be told apart, {MOST} can; take some values out of the lists, or choose VMs by --vm",
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

    /// Kinds of programs that have a line each, as far as is known before they run.
    fn kinds(&self, spec: &Spec) -> BTreeSet<String> {
        if self.y.is_some_and(|y| metric::of_host(y).is_some()) {
            return [String::new()].into();
        }
        let ends = |vm: &VmSpec| vm.apps.iter().any(|app| !app.program.is_endless());
        let by_end = self.y.is_none_or(|y| y == METRICS[TOOK].name) && spec.vms.iter().any(ends);
        let chosen = spec.vms.iter().zip(kinds(spec)).filter(|(vm, _)| {
            self.vm.is_none_or(|prefix| vm.name.starts_with(prefix)) && (!by_end || ends(vm))
        });
        chosen.map(|(_, kind)| kind).collect()
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

/// Of each VM the first one with the same program, which stands for all of these. The first of several (`lu-0`) is called as in the
/// scenario (`lu`), so that a line goes on however many there are.
pub(super) fn kinds(spec: &Spec) -> Vec<String> {
    let programs = |vm: &VmSpec| vm.apps.iter().map(|app| app.program.clone()).collect::<Vec<_>>();
    let mut firsts: Vec<(Vec<Program>, String)> = vec![];
    let kind = |vm: &VmSpec| {
        let own = programs(vm);
        if let Some((_, name)) = firsts.iter().find(|(known, _)| *known == own) {
            return name.clone();
        }
        let several = vm.name.strip_suffix("-0").filter(|name| spec.vms.iter().all(|vm| vm.name != *name));
        let name = several.unwrap_or(&vm.name).to_owned();
        firsts.push((own, name.clone()));
        name
    };
    spec.vms.iter().map(kind).collect()
}

/// The values that a line stands for: all but x.
fn line_of(point: &Point<'_>, x: &str) -> String {
    let values = point.sets.iter().filter(|(key, _)| key != x).map(|(key, value)| format!("{key}={value}"));
    values.collect::<Vec<_>>().join(", ")
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
    let (mut left_out, mut all) = (0, 0);
    let kinds_of = |runs: &[Run]| -> BTreeSet<String> {
        let vms = runs.iter().flat_map(|run| chosen(run, metric, wanted.vm));
        if host.is_some() { [String::new()].into() } else { vms.map(|vm| vm.kind.clone()).collect() }
    };
    let kinds: BTreeSet<String> = runs.iter().flat_map(|runs| kinds_of(runs)).collect();
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
        let here = kinds_of(runs);
        if here.is_empty() {
            (left_out, all) = (left_out + 1, all + 1);
        }
        for kind in here {
            let values = line_of(point, key);
            let named =
                [(kinds.len() > 1).then_some(&kind), Some(&values).filter(|values| !values.is_empty())];
            let name = named.into_iter().flatten().map(String::as_str).collect::<Vec<_>>().join(", ");
            let at = series.iter().position(|s| s.name == name).unwrap_or_else(|| {
                series.push(Series { name, points: vec![] });
                series.len() - 1
            });
            let number = |run| match host {
                Some(host) => (host.of)(run),
                None => {
                    let vms_of = chosen(run, metric, wanted.vm).filter(|vm| vm.kind == kind);
                    let of = vms_of.map(|vm| vm.values[metric]).collect::<Option<Vec<f64>>>()?;
                    if !of.is_empty() {
                        vms = (vms.0.min(of.len()), vms.1.max(of.len()));
                    }
                    Mean::of(of).map(|mean| mean.mean)
                }
            };
            let each: Option<Vec<f64>> = runs.iter().map(number).collect();
            all += 1;
            match each.and_then(Mean::of) {
                Some(mean) => series[at].points.push((x, mean.mean, mean.ci95)),
                None => left_out += 1,
            }
        }
    }
    let programs = if kinds.len() > 1 { " with the same program" } else { "" };
    let mut note = String::from("bars: 95 % confidence intervals over replications");
    if left_out > 0 {
        let why = if wanted.vm.is_some() { ", or there is no such VM" } else { "" };
        note += &format!("; {left_out} of {all} points left out: not all runs have that number{why}");
    }
    chart::svg(&Chart {
        title: title.into(),
        note,
        x: unit.flatten().map_or(key.clone(), |unit| format!("{key}, {unit}")),
        y: host.map_or_else(
            || METRICS[metric].meaning.to_owned() + &over(vms, programs),
            |host| host.meaning.into(),
        ),
        categories: amounts.is_none().then(|| values.clone()),
        logarithmic_x: false,
        linear_y: false,
        series,
    })
}

/// Of how many VMs a number is the mean, in words.
fn over(vms: (usize, usize), which: &str) -> String {
    match vms {
        (_, 0 | 1) => String::new(),
        (least, most) if least == most => format!(", mean over {most} VMs{which}"),
        (least, most) => format!(", mean over {least} to {most} VMs{which}"),
    }
}

/// The VMs that have the number at all.
fn chosen<'r>(run: &'r Run, metric: usize, vm: Option<&str>) -> impl Iterator<Item = &'r VmRun> {
    let chosen = run.vms.iter().filter(move |v| vm.is_none_or(|prefix| v.name.starts_with(prefix)));
    // Programs without an end have no time that they take, and who has no program does nothing that could be marked.
    chosen.filter(move |v| match metric {
        TOOK => v.finished == Some(false) || v.values[TOOK].is_some(),
        MARKS => !v.program.is_empty(),
        _ => true,
    })
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
        let texts = [(usize::MAX, 0), (1, 1), (4, 4), (1, 8)].map(|vms| over(vms, ""));
        assert_eq!(texts, ["", "", ", mean over 4 VMs", ", mean over 1 to 8 VMs"]);
    }
}

//! One row for each point, run and VM: what CSV and Parquet files hold. Files of shards, one after the
//! other, are the file of the whole sweep.

use super::Point;
use super::metric::{HOST, reported};
use super::replicate::{Run, VmRun};

/// A column.
pub(super) struct Column {
    pub(super) name: String,
    pub(super) values: Values,
}

/// What is in a column.
#[derive(Debug, PartialEq)]
pub(super) enum Values {
    Whole(Vec<i64>),
    /// `None`: it did not come to that.
    Real(Vec<Option<f64>>),
    Text(Vec<String>),
    /// `None`: it does not apply.
    Flag(Vec<Option<bool>>),
}

/// The table. `axes`: the keys of the whole sweep and all values of each, so that a column has the same
/// type in every shard.
pub(super) fn table(axes: &[(String, Vec<String>)], points: &[Point<'_>], runs: &[Vec<Run>]) -> Vec<Column> {
    let rows: Vec<(&Point<'_>, usize, &Run, &VmRun)> = points
        .iter()
        .zip(runs)
        .flat_map(|(point, runs)| runs.iter().enumerate().map(move |(number, run)| (point, number, run)))
        .flat_map(|(point, number, run)| run.vms.iter().map(move |vm| (point, number, run, vm)))
        .collect();
    let mut columns = vec![];
    let mut add = |name: &str, values| columns.push(Column { name: name.into(), values });
    let whole = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
    add("point", Values::Whole(rows.iter().map(|r| whole(r.0.number)).collect()));
    add("run", Values::Whole(rows.iter().map(|r| whole(r.1)).collect()));
    add("seed", Values::Whole(rows.iter().map(|r| i64::try_from(r.2.seed).unwrap_or(i64::MAX)).collect()));
    // A seed of the sweep is in the column above, with the run's number added.
    for (key, all) in axes.iter().filter(|(key, _)| key != "seed") {
        let of = |point: &Point<'_>| {
            point.sets.iter().find(|(k, _)| k == key).map(|(_, v)| v.clone()).unwrap_or_default()
        };
        let texts: Vec<String> = rows.iter().map(|r| of(r.0)).collect();
        add(key, typed(all, texts));
    }
    add("vm", Values::Text(rows.iter().map(|r| r.3.name.clone()).collect()));
    add("program", Values::Text(rows.iter().map(|r| r.3.program.clone()).collect()));
    add("finished", Values::Flag(rows.iter().map(|r| r.3.finished).collect()));
    let ruled = points.first().is_some_and(|point| point.ruled);
    for (index, metric) in reported(ruled).iter().enumerate() {
        add(metric.name, Values::Real(rows.iter().map(|r| r.3.values[index]).collect()));
    }
    for host in &HOST {
        add(host.name, Values::Real(rows.iter().map(|r| (host.of)(r.2)).collect()));
    }
    columns
}

/// The values of an axis as numbers, if all of the axis are.
fn typed(all: &[String], texts: Vec<String>) -> Values {
    if all.iter().all(|v| v.parse::<i64>().is_ok()) {
        Values::Whole(texts.iter().filter_map(|v| v.parse().ok()).collect())
    } else if all.iter().all(|v| v.parse::<f64>().is_ok()) {
        Values::Real(texts.iter().map(|v| v.parse().ok()).collect())
    } else {
        Values::Text(texts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_axis_has_the_type_that_all_of_its_values_allow() {
        let list = |values: &[&str]| values.iter().map(|v| (*v).to_owned()).collect::<Vec<_>>();
        let one = list(&["2"]);
        assert_eq!(typed(&list(&["2", "4"]), one.clone()), Values::Whole(vec![2]));
        assert_eq!(typed(&list(&["2", "0.5"]), one.clone()), Values::Real(vec![Some(2.0)]));
        assert_eq!(typed(&list(&["2", "10ms"]), one.clone()), Values::Text(one));
    }
}

//! Throughput against the longest waits: which locks no other one beats in both, and a picture.

use std::path::{Path, PathBuf};

use anyhow::Result;

use super::Cell;
use crate::chart::{self, Chart, Series};

/// Million acquisitions per second, and the wait that 0.01 % exceed, ms; `None` if either was not measured.
fn point(cell: &Cell) -> Option<(f64, f64)> {
    let wait = cell.wait_p9999_us.filter(|wait| *wait > 0.0)?;
    (cell.ops_s > 0.0).then_some((cell.ops_s / 1e6, wait / 1e3))
}

/// Of one load, the names of the locks of which no other one has a higher throughput and a shorter wait, shortest wait
/// first.
pub(super) fn frontier<'a>(cells: &[&'a Cell]) -> Vec<&'a Cell> {
    let measured = || cells.iter().filter_map(|cell| Some((*cell, point(cell)?)));
    let beats = |a: (f64, f64), b: (f64, f64)| a.0 >= b.0 && a.1 <= b.1 && a != b;
    let mut best: Vec<(&Cell, (f64, f64))> =
        measured().filter(|(_, b)| !measured().any(|(_, a)| beats(a, *b))).collect();
    best.sort_by(|(_, a), (_, b)| a.1.total_cmp(&b.1));
    best.into_iter().map(|(cell, _)| cell).collect()
}

/// The locks that cannot stand among them.
pub(super) fn unmeasured(cells: &[&Cell]) -> Vec<&'static str> {
    cells.iter().filter(|cell| point(cell).is_none()).map(|cell| cell.lock).collect()
}

/// The cells of each section with the most threads.
pub(super) fn most_threads(cells: &[Cell]) -> Vec<Vec<&Cell>> {
    let mut sections: Vec<&str> = cells.iter().map(|c| c.section).collect();
    sections.dedup();
    let of = |section: &str| {
        let all = || cells.iter().filter(|c| c.section == section);
        let most = all().map(|c| c.threads).max();
        all().filter(|c| Some(c.threads) == most).collect()
    };
    sections.into_iter().map(of).collect()
}

/// Where the picture of a section goes: with several, its name stands before the ending.
pub(super) fn file(plot: &Path, section: &str, several: bool) -> PathBuf {
    if !several {
        return plot.to_owned();
    }
    let stem = plot.file_stem().unwrap_or_default().to_string_lossy();
    let ending = plot.extension().unwrap_or_default().to_string_lossy();
    plot.with_file_name(format!("{stem}-{section}.{ending}"))
}

/// A point for each lock of a load, and a line through the best ones.
pub(super) fn drawing(cells: &[&Cell], note: &str) -> Result<String> {
    let drawn = |c: &Cell| point(c).map(|(ops, wait)| (wait, ops, None));
    let line = frontier(cells).into_iter().filter_map(drawn);
    let mut series = vec![Series { name: "none beats".into(), points: line.collect() }];
    let one = |c: &&Cell| Some(Series { name: c.lock.into(), points: vec![drawn(c)?] });
    series.extend(cells.iter().filter_map(one));
    let first = cells.first();
    chart::svg(&Chart {
        title: format!(
            "Locks: {} threads, {} sections",
            first.map_or(0, |c| c.threads),
            first.map_or("no", |c| c.section)
        ),
        note: note.into(),
        x: "wait that 0.01 % exceed, ms".into(),
        y: "million acquisitions per second".into(),
        categories: None,
        logarithmic_x: true,
        linear_y: false,
        series,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_another_beats_in_both_is_not_on_the_frontier() {
        let cells = [
            Cell::sample("fast", 64, 8e6, 50.0),
            Cell::sample("beaten", 64, 3e6, 60.0),
            Cell::sample("fair", 64, 1e5, 1.0),
            Cell::sample("equal", 64, 8e6, 50.0),
            Cell::sample("few threads", 2, 9e9, 0.1),
        ];
        let loads = most_threads(&cells);
        assert_eq!(loads.len(), 1);
        let names: Vec<&str> = frontier(&loads[0]).iter().map(|c| c.lock).collect();
        assert_eq!(names, ["fair", "fast", "equal"]);
        let picture = drawing(&loads[0], "medians").unwrap();
        for text in ["64 threads, short sections", "none beats", "beaten", "medians"] {
            assert!(picture.contains(text), "{text}");
        }
        assert!(!picture.contains("few threads"));
    }

    #[test]
    fn what_never_got_through_is_neither_unbeaten_nor_drawn() {
        let stuck = Cell { wait_p9999_us: None, ..Cell::sample("stuck", 64, 0.0, 0.0) };
        let untimed = Cell { wait_p9999_us: None, ..Cell::sample("untimed", 64, 9e6, 0.0) };
        let cells = [stuck, untimed, Cell::sample("fast", 64, 8e6, 50.0)];
        let load: Vec<&Cell> = cells.iter().collect();
        let names: Vec<&str> = frontier(&load).iter().map(|c| c.lock).collect();
        assert_eq!((names, unmeasured(&load)), (vec!["fast"], vec!["stuck", "untimed"]));
        let picture = drawing(&load, "medians").unwrap();
        assert!(picture.contains("fast") && !picture.contains("stuck") && !picture.contains("untimed"));
    }

    #[test]
    fn several_sections_have_a_picture_each() {
        let at = |several| file(Path::new("out/locks.svg"), "zipf", several);
        assert_eq!((at(false), at(true)), ("out/locks.svg".into(), "out/locks-zipf.svg".into()));
    }
}

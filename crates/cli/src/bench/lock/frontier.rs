//! Throughput against the longest waits: which locks no other one beats in both, and a picture.

use std::path::{Path, PathBuf};

use anyhow::Result;

use super::Cell;
use crate::chart::{self, Chart, Series};

/// Of one load, the names of the locks of which no other one has a higher throughput and a shorter wait, shortest wait
/// first. The wait is the one that 0.01 % exceed.
pub(super) fn frontier<'a>(cells: &[&'a Cell]) -> Vec<&'a Cell> {
    let beats = |a: &Cell, b: &Cell| {
        let no_worse = a.ops_s >= b.ops_s && a.wait_p9999_us <= b.wait_p9999_us;
        no_worse && (a.ops_s > b.ops_s || a.wait_p9999_us < b.wait_p9999_us)
    };
    let mut best: Vec<&Cell> = cells.iter().copied().filter(|b| !cells.iter().any(|a| beats(a, b))).collect();
    best.sort_by(|a, b| a.wait_p9999_us.total_cmp(&b.wait_p9999_us));
    best
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
    let point = |c: &Cell| (c.wait_p9999_us / 1e3, c.ops_s / 1e6, None);
    let seen = |c: &&&Cell| c.wait_p9999_us > 0.0;
    let line = frontier(cells);
    let mut series = vec![Series {
        name: "none beats".into(),
        points: line.iter().filter(seen).map(|c| point(c)).collect(),
    }];
    series.extend(cells.iter().filter(seen).map(|c| Series { name: c.lock.into(), points: vec![point(c)] }));
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
    fn several_sections_have_a_picture_each() {
        let at = |several| file(Path::new("out/locks.svg"), "zipf", several);
        assert_eq!((at(false), at(true)), ("out/locks.svg".into(), "out/locks-zipf.svg".into()));
    }
}

//! Tables of text: aligned columns, names to the left and numbers to the right.

use crate::stats::{Bound, Value};

/// A table that is built row by row.
#[derive(Debug)]
pub(crate) struct Table {
    /// Columns from the left that are aligned to the left.
    names: usize,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these headings, the first `names` of which stand over text.
    pub(crate) fn new(names: usize, headings: &[&str]) -> Table {
        Table { names, rows: vec![headings.iter().map(|h| (*h).to_owned()).collect()] }
    }

    pub(crate) fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// The table, two spaces between columns, no spaces at the ends of lines.
    pub(crate) fn render(&self) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let mut text = String::new();
        for row in &self.rows {
            let mut line = String::new();
            for (column, cell) in row.iter().enumerate() {
                let gap = if column == 0 { "" } else { "  " };
                let space = " ".repeat(widths[column].saturating_sub(cell.chars().count()));
                line += gap;
                if column < self.names {
                    line = line + cell + &space;
                } else {
                    line = line + &space + cell;
                }
            }
            text = text + line.trim_end() + "\n";
        }
        text
    }
}

/// Stands where there is no number.
pub(crate) const NONE: &str = "-";

/// A number with its bound: `>60` is at least 60.
pub(crate) fn bounded(value: Option<Value>, format: impl Fn(f64) -> String) -> String {
    let Some(value) = value else {
        return NONE.into();
    };
    let sign = match value.bound {
        Bound::Exact => "",
        Bound::AtLeast => ">",
        Bound::AtMost => "<",
    };
    format!("{sign}{}", format(value.number))
}

/// Seconds, with about three digits that mean something.
pub(crate) fn seconds(s: f64) -> String {
    match s {
        s if s < 1.0 => format!("{s:.3}"),
        s if s < 100.0 => format!("{s:.2}"),
        s => format!("{s:.0}"),
    }
}

/// A factor.
pub(crate) fn factor(x: f64) -> String {
    match x {
        x if x < 10.0 => format!("{x:.2}"),
        x if x < 100.0 => format!("{x:.1}"),
        x => format!("{x:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_align_to_the_left_and_numbers_to_the_right() {
        let mut table = Table::new(1, &["program", "s"]);
        table.row(vec!["ep".into(), "1.25".into()]);
        table.row(vec!["pipeline".into(), "10.50".into()]);
        let expected = "program       s\nep         1.25\npipeline  10.50\n";
        assert_eq!(table.render(), expected);
    }

    #[test]
    fn short_rows_leave_no_trailing_spaces() {
        let mut table = Table::new(2, &["a", "b", "c"]);
        table.row(vec!["skipped".into()]);
        assert!(table.render().lines().all(|l| l == l.trim_end()));
    }

    #[test]
    fn bounds_are_visible() {
        assert_eq!(bounded(Some(Value::at_least(60.0)), seconds), ">60.00");
        assert_eq!(bounded(Value::exact(1.0).over(Value::at_least(60.0)), factor), "<0.02");
        assert_eq!(bounded(None, seconds), "-");
    }

    #[test]
    fn numbers_keep_about_three_digits() {
        assert_eq!([0.1234, 1.234, 12.34, 123.4].map(seconds), ["0.123", "1.23", "12.34", "123"]);
        assert_eq!([1.234, 12.34, 123.4].map(factor), ["1.23", "12.3", "123"]);
    }
}

//! Columns that fit the terminal. The last one takes what is left and is cut there.

use std::io;

use unicode_width::UnicodeWidthStr as _;

use crate::output::{Output, Paint};
use crate::text::fit;

const GAP: &str = "  ";

/// A column: its title, its widest, and to which side it leans.
pub struct Column {
    pub title: &'static str,
    pub width_max: usize,
    pub right: bool,
}

/// A column that leans left.
pub const fn left(title: &'static str, width_max: usize) -> Column {
    Column {
        title,
        width_max,
        right: false,
    }
}

/// A column of figures.
pub const fn right(title: &'static str, width_max: usize) -> Column {
    Column {
        title,
        width_max,
        right: true,
    }
}

/// What a field shows.
#[derive(Clone, Default)]
pub struct Cell {
    text: String,
    paint: Option<Paint>,
}

impl Cell {
    pub fn painted(text: impl Into<String>, paint: Paint) -> Self {
        Self {
            text: text.into(),
            paint: Some(paint),
        }
    }
}

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self {
            text: text.into(),
            paint: None,
        }
    }
}

/// Prints rows under their titles; a column without a value is left out.
pub fn print(
    out: &mut Output,
    indent: &str,
    columns: &[Column],
    rows: &[Vec<Cell>],
) -> io::Result<()> {
    for line in lines(out, indent, columns, rows) {
        out.line(line)?;
    }
    Ok(())
}

/// The titles and the rows, a line each.
pub fn lines(out: &Output, indent: &str, columns: &[Column], rows: &[Vec<Cell>]) -> Vec<String> {
    let mut lines = Vec::with_capacity(rows.len() + 1);
    let widths = widths(out, indent, columns, rows);
    let titles = columns
        .iter()
        .map(|column| Cell::painted(column.title, Paint::Dim))
        .collect();
    for row in std::iter::once(&titles).chain(rows) {
        let mut line = indent.to_owned();
        for (place, (index, width)) in widths.iter().enumerate() {
            let cell = &row[*index];
            let text = fit(&cell.text, *width);
            let blanks = " ".repeat(width.saturating_sub(text.width()));
            let text = match cell.paint {
                Some(paint) => out.paint(paint, &text),
                None => text,
            };
            if place > 0 {
                line.push_str(GAP);
            }
            if columns[*index].right {
                line.push_str(&blanks);
                line.push_str(&text);
            } else {
                line.push_str(&text);
                line.push_str(&blanks);
            }
        }
        lines.push(line.trim_end().to_owned());
    }
    lines
}

/// How much room the last column has.
pub fn room(out: &Output, indent: &str, columns: &[Column], rows: &[Vec<Cell>]) -> usize {
    widths(out, indent, columns, rows)
        .last()
        .map_or(0, |(_, width)| *width)
}

/// The columns that have a value, each with its width.
fn widths(
    out: &Output,
    indent: &str,
    columns: &[Column],
    rows: &[Vec<Cell>],
) -> Vec<(usize, usize)> {
    let used: Vec<usize> = (0..columns.len())
        .filter(|index| rows.iter().any(|row| !row[*index].text.is_empty()))
        .collect();
    let mut left_over = out.width().saturating_sub(indent.len());
    let mut widths = Vec::with_capacity(used.len());
    for (place, index) in used.iter().enumerate() {
        let column = &columns[*index];
        let widest = rows
            .iter()
            .map(|row| row[*index].text.width())
            .max()
            .unwrap_or(0);
        let mut width = widest.min(column.width_max).max(column.title.width());
        if place + 1 == used.len() {
            width = width.min(left_over);
        }
        left_over = left_over.saturating_sub(width + GAP.len());
        widths.push((*index, width));
    }
    widths
}

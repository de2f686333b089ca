//! Printing for people.

use std::io::{self, Write};

/// `1 thing`, `2 things`.
pub(super) fn count(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

/// Prints a line on standard output; a reader that has gone away (as `head` does) ends the program
/// quietly.
pub(super) fn line(text: &str) {
    let mut out = io::stdout().lock();
    if writeln!(out, "{text}").and_then(|()| out.flush()).is_err() {
        std::process::exit(0);
    }
}

/// Rows under their headings, in columns.
pub(super) fn columns(rows: &[Vec<String>]) {
    let width = |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..).map_while(width).collect();
    for row in rows {
        let cells: Vec<String> = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        line(cells.join("  ").trim_end());
    }
}

/// How far a long piece of work is, on standard error where a person is watching.
pub(super) struct Progress {
    what: &'static str,
    shown: bool,
}

impl Progress {
    pub(super) fn new(what: &'static str) -> Self {
        use std::io::IsTerminal;
        Self { what, shown: io::stderr().is_terminal() }
    }

    pub(super) fn at(&self, n: u64) {
        if self.shown {
            eprint!("\r{} {n}", self.what);
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.shown {
            eprintln!();
        }
    }
}

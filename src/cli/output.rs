//! Printing for people.

use std::io::{self, Write};

/// `1 thing`, `2 things`.
pub(super) fn count(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

/// Prints a line on standard output. If the reader is gone (as with `head`), the program ends quietly.
pub(super) fn line(text: &str) {
    bytes(format!("{text}\n").as_bytes());
}

/// Prints bytes on standard output.
pub(super) fn bytes(text: &[u8]) {
    let mut out = io::stdout().lock();
    match out.write_all(text).and_then(|()| out.flush()) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => std::process::exit(0),
        Err(error) => {
            complain(&format!("standard output: {error}"));
            std::process::exit(1);
        }
    }
}

/// Prints an error on standard error, if it is open.
pub(super) fn complain(what: &str) {
    let _ = writeln!(io::stderr(), "fencegate: {what}");
}

/// Prints rows in columns, with headings.
pub(super) fn columns(rows: &[Vec<String>]) {
    let width = |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..).map_while(width).collect();
    for row in rows {
        let cells: Vec<String> = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        line(cells.join("  ").trim_end());
    }
}

/// The progress of a long task, on standard error if that is a terminal.
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
            let _ = write!(io::stderr(), "\r{} {n}", self.what);
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.shown {
            let _ = writeln!(io::stderr());
        }
    }
}

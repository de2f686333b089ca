//! `fencegate audit`: checks the audit log.

use std::path::PathBuf;

use clap::Subcommand;

use super::{Done, Failed, output};
use crate::audit::verify::{self, Broken, Verified};

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Check that no line of the log was removed, changed, inserted or moved. Exits 1 where one was.
    ///
    /// Of the present file alone, its rotated files are found beside it. Lines that are missing at the end, and a change
    /// of the last line, do not show: compare the last number and hash with those that you have noted elsewhere. Works
    /// while a gate writes to the file, or rotates it: a last line without an end is left out, and a note says so.
    Verify {
        /// The files: FILE, FILE.1 and so on, in any order.
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
    },
}

pub(super) fn run(command: &Command) -> Done {
    let Command::Verify { files } = command;
    match verify::in_order(files).and_then(|files| verify::verify(&files)) {
        Ok(verified) => {
            say(&verified);
            Ok(())
        }
        Err(Broken { file, line, what }) => Err(Failed::Said(format!("{}: line {line} {what}", file.display()))),
    }
}

fn say(verified: &Verified) {
    let Verified { files, lines, torn, unfinished, begins, last } = verified;
    let lines = usize::try_from(*lines).unwrap_or(usize::MAX);
    output::line(&format!("{} in {} are right", output::count(lines, "line"), output::count(*files, "file")));
    match begins {
        None | Some(1) => {}
        Some(begins) => {
            output::line(&format!("the chain begins at line n={begins}: the lines before it are not in these files"));
        }
    }
    if *torn > 0 {
        output::line(&format!("torn by a crash, and noted by the line behind it: {torn}"));
    }
    if *unfinished > 0 {
        output::line(&format!(
            "{unfinished} bytes behind the last line have no end yet, and are left out: the gate is writing them, or has stopped while it did"
        ));
    }
    output::line(&format!("the last line: n={} sha256={}", last.n, last.hex()));
}

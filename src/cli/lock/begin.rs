//! `fencegate lock-begin`: sends its process id to the guard, and becomes the command.
//!
//! `lock` may be killed at any moment. So the guard knows the command before the command's first instruction runs.

use std::{ffi::OsString, fs::OpenOptions, io::Write, os::unix::process::CommandExt, path::PathBuf, process::ExitCode};

use rustix::process::getppid;

use super::code;
use crate::cli::output;

#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// The guard's end of a pipe, in /proc of the `lock` process.
    #[arg(long, value_name = "FILE")]
    guard: PathBuf,
    /// The process id of that `lock`.
    #[arg(long, value_name = "PID")]
    lock: i32,
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

pub(in crate::cli) fn run(args: &Args) -> ExitCode {
    // This file closes when this program becomes the command, as all files of a Rust program do.
    let sent = OpenOptions::new()
        .write(true)
        .open(&args.guard)
        .and_then(|mut guard| guard.write_all(format!("{}\n", std::process::id()).as_bytes()));
    // Without its parent there is no lease. With it, the parent sends the process id to the guard too.
    let is_orphan = getppid().is_none_or(|parent| parent.as_raw_nonzero().get() != args.lock);
    if sent.is_err() && is_orphan {
        return ExitCode::from(code::FAILED);
    }
    let error = std::process::Command::new(&args.command[0]).args(&args.command[1..]).exec();
    output::complain(&format!("{}: {error}", args.command[0].display()));
    let is_missing = error.kind() == std::io::ErrorKind::NotFound;
    ExitCode::from(if is_missing { code::NOT_FOUND } else { code::NOT_EXECUTABLE })
}

//! `fencegate lock-guard`: kills a command when the `fencegate lock` that started it is gone.
//!
//! Its standard input is a pipe that only `lock` holds the other end of: the kernel closes that end, however `lock`
//! ends. In a group of its own, the guard is the group's leader, so the group's number is good for as long as the
//! guard lives; signals that are passed on to the group do not end it.

use std::io::{BufRead, Write};

use rustix::process::{Pid, Signal, kill_current_process_group, kill_process};
use tokio::signal::unix::{SignalKind, signal};

use crate::cli::{Done, Failed};

#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// Kill one process, whose id comes on standard input, and not the group.
    #[arg(long)]
    one: bool,
}

/// What `lock` says when there is nothing left to guard.
pub(super) const DONE: &str = "done";

pub(in crate::cli) fn run(args: &Args) -> Done {
    let cannot = |error: std::io::Error| Failed::Said(format!("cannot guard: {error}"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(cannot)?;
    let _entered = runtime.enter();
    let each = [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT, Signal::USR1, Signal::USR2, Signal::TSTP];
    // Being heard is all that becomes of them.
    let heard = each.map(|each| signal(SignalKind::from_raw(each.as_raw())));
    let _heard: Vec<_> = heard.into_iter().collect::<Result<_, _>>().map_err(cannot)?;
    std::io::stdout().write_all(b"ready\n").and_then(|()| std::io::stdout().flush()).map_err(cannot)?;
    let mut guarded = None;
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        match line.as_str() {
            DONE => return Ok(()),
            pid => guarded = pid.parse().ok().and_then(Pid::from_raw),
        }
    }
    // What has ended by itself meanwhile is not there to be killed.
    let _ = match (args.one, guarded) {
        (false, _) => kill_current_process_group(Signal::KILL),
        (true, Some(pid)) => kill_process(pid, Signal::KILL),
        (true, None) => Ok(()),
    };
    Ok(())
}

//! `fencegate lock-guard`: kills a command when the `fencegate lock` that started it is gone.
//!
//! Its standard input is a pipe whose other end only `lock` has: the kernel closes that end, however `lock` ends. The
//! guard is in a session apart, so that it gets no signal for the group of `lock` or of the command. Signals for
//! every process do not end it either, if they can be caught.

use std::{
    io::{BufRead, Write},
    time::Duration,
};

use rustix::process::{Pid, Signal, setsid};
use tokio::signal::unix::{SignalKind, signal};

use super::tree::{Process, Tree};
use crate::cli::{Done, Failed};

#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// The command shares its group with others: kill its descendants, and not the group.
    #[arg(long)]
    one: bool,
}

/// What `lock` sends when there is nothing left to guard.
pub(super) const DONE: &str = "done";
/// How often the guard checks whether a process is left, and how many times.
const LOOK: Duration = Duration::from_millis(2);
const LOOKS: u32 = 2_500;

pub(in crate::cli) fn run(args: &Args) -> Done {
    let cannot = |error: std::io::Error| Failed::Said(format!("cannot guard: {error}"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(cannot)?;
    let _entered = runtime.enter();
    setsid().map_err(|error| cannot(error.into()))?;
    // Signals are caught and ignored. Some cannot be caught, and some only by programs that handle them.
    let _heard: Vec<_> = (1..=64).filter_map(|each| signal(SignalKind::from_raw(each)).ok()).collect();
    std::io::stdout().write_all(b"ready\n").and_then(|()| std::io::stdout().flush()).map_err(cannot)?;
    let mut guarded = None;
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        match line.as_str() {
            DONE => return Ok(()),
            // The process id comes twice, and the command may be gone by the second time.
            pid => guarded = pid.parse().ok().and_then(Pid::from_raw).and_then(Process::of).or(guarded),
        }
    }
    if let Some(command) = guarded {
        runtime.block_on(kill(&command, args.one));
    }
    Ok(())
}

/// Kills a command and all its descendants that have not left its session. Descendants that lost their parent while
/// `lock` lived are found by their group.
async fn kill(command: &Process, is_alone: bool) {
    for _ in 0..LOOKS {
        let tree = Tree::snapshot();
        let mut left = tree.below(command.pid, |each| each.session != command.session);
        if !is_alone {
            left.extend(tree.in_group(command.group, command.session));
        }
        left.extend(Process::of(command.pid).filter(|now| now.is_same(command) && now.lives()));
        if left.is_empty() {
            return;
        }
        for each in &left {
            each.send(Signal::KILL);
        }
        tokio::time::sleep(LOOK).await;
    }
}

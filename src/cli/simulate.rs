//! `fencegate simulate`: only in builds with feature `failpoints`.

use super::{Done, Failed, output};
use crate::simulation::{Counts, Player};

/// How many seeds are played twice, to see that they play the same way.
const TWICE: u64 = 5;
/// How much of a log is shown where a promise was not kept.
const TAIL: usize = 40;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// How many seeds to play.
    #[arg(long, default_value_t = 500)]
    seeds: u64,
    /// The first of them.
    #[arg(long, default_value_t = 1)]
    first: u64,
    /// Look at one promise only: DRAIN, STALE, UNIQUE, MONOTONIC, UNFENCED, EXPIRY, "NO REVIVAL" or "ONE ATTEMPT".
    #[arg(long, value_name = "NAME")]
    promise: Option<String>,
    /// Kubernetes Leases say who may write.
    #[arg(long)]
    led: bool,
    /// Print what happens, line by line.
    #[arg(long)]
    log: bool,
}

pub(super) fn run(args: &Args) -> Done {
    let game = Player::new(args.promise.clone(), args.led);
    let mut total = Counts::default();
    let progress = output::Progress::new("seed");
    for seed in args.first..args.first + args.seeds {
        progress.at(seed);
        let played = game.play(seed);
        if args.log {
            output::line(&format!("seed {seed}\n{}", played.log.join("\n")));
        }
        if let Some(name) = played.violation {
            let tail = &played.log[played.log.len().saturating_sub(TAIL)..];
            output::line(&format!("VIOLATION {name} seed={seed}\n{}", tail.join("\n")));
            return Err(Failed::Quietly);
        }
        if seed < args.first + TWICE && game.play(seed).log != played.log {
            output::line(&format!("VIOLATION NOT DETERMINED seed={seed}"));
            return Err(Failed::Quietly);
        }
        total.add(&played.counts);
    }
    let twice = args.seeds.min(TWICE);
    output::line(&format!("seeds {} ({twice} played twice: the same) {total} violations 0", args.seeds));
    Ok(())
}

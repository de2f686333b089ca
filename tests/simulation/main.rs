//! The gate, its store, several writers and an adversary, simulated: by seed, in one thread, without reading a
//! clock. `make simulate` runs this program; so does tests/it/simulation.rs.
//!
//! The product's own ledger, stripes, judge and table run here, one step at a time. The next step is drawn. Between
//! any two steps anything else may happen: a pause, a crash that loses what was not synced, a slow, lost or early
//! answer, a step of the wall clock. The adversary takes leases and must never see an older write land; it does not
//! know the gate's rules. The same seed plays the same way each time.
//!
//! - `world`: the participants, and the next step. `rng`: chance, by seed.
//! - `client`: writers and the adversary. `write`: a write on its way through the gate.
//! - `led`: Kubernetes Leases in place of the gate's own, an API server and the gate's reads of it. `lease_news`: what the
//!   gate tells of them.
//! - `store`: the store and the network. `disk`: the table, and what happens while it syncs.
//! - `gate`: rounds of the ledger, crashes, stops and starts. `crowd`: objects that evict records from memory.
//! - `oracle`: what callers were answered and what has landed; the promises. `counts`: what was seen.
//!
//! The program is an example target, so that `cargo test` runs its unit tests and the program takes arguments.
//! Built with feature `failpoints`, it plays the gate with the fault that `FENCEGATE_TEST_FAULT` names.

mod client;
mod counts;
mod crowd;
mod disk;
mod gate;
mod lease_news;
mod led;
mod oracle;
mod rng;
mod store;
mod world;
mod write;

use std::{
    io::{self, ErrorKind, IsTerminal, Write},
    process::ExitCode,
};

use clap::Parser;
use counts::Counts;
use fencegate::{config, failpoints, metrics::Metrics};
use oracle::Violation;

/// How many seeds are played twice, to check that they play the same way.
const TWICE: u64 = 5;
/// How many lines of a log are shown for a broken promise.
const TAIL: usize = 40;

/// Plays the gate, its store and an adversary through by seed, to see every promise kept.
#[derive(Debug, Parser)]
#[command(name = "simulate")]
struct Args {
    /// How many seeds to play.
    #[arg(long, default_value_t = 500)]
    seeds: u64,
    /// The first of them.
    #[arg(long, default_value_t = 1)]
    first: u64,
    /// Check one promise only: DRAIN, STALE, UNIQUE, MONOTONIC, UNFENCED, EXPIRY, "NO REVIVAL", "ONE ATTEMPT" or
    /// "PASSED ON".
    #[arg(long, value_name = "NAME")]
    promise: Option<String>,
    /// Kubernetes Leases say who may write.
    #[arg(long)]
    led: bool,
    /// Print what happens, line by line.
    #[arg(long)]
    log: bool,
}

fn main() -> ExitCode {
    let args = Args::parse();
    if let Err(what) = failpoints::check(config::test_fault().as_deref(), config::test_point().as_deref()) {
        eprintln!("simulate: {what}");
        return ExitCode::from(2);
    }
    match play_all(&args) {
        Ok(()) => ExitCode::SUCCESS,
        // The reader of standard output has closed it, as `head` does.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("simulate: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Plays the seeds, and prints the counts.
///
/// # Errors
/// With the first violation, whose history is on standard output then, or when standard output fails.
fn play_all(args: &Args) -> io::Result<()> {
    let metrics = Metrics::new();
    let play = |seed| {
        let played = gate::Simulation::new(seed, args.promise.as_deref(), args.led, &metrics.ledger).play();
        metrics.upkeep();
        played
    };
    let (mut out, mut total) = (io::stdout().lock(), Counts::default());
    let is_watched = io::stderr().is_terminal();
    for seed in args.first..args.first + args.seeds {
        if is_watched {
            eprint!("\rseed {seed}");
        }
        let played = play(seed);
        if args.log {
            writeln!(out, "seed {seed}\n{}", played.log.join("\n"))?;
        }
        if let Some(Violation { name, .. }) = played.violation {
            let tail = &played.log[played.log.len().saturating_sub(TAIL)..];
            writeln!(out, "VIOLATION {name} seed={seed}\n{}", tail.join("\n"))?;
            return Err(io::Error::other(format!("seed {seed} breaks {name}")));
        }
        if seed < args.first + TWICE && play(seed).log != played.log {
            writeln!(out, "VIOLATION NOT DETERMINED seed={seed}")?;
            return Err(io::Error::other(format!("seed {seed} plays in two ways")));
        }
        total.add(&played.counts);
    }
    if is_watched {
        eprintln!();
    }
    let twice = args.seeds.min(TWICE);
    writeln!(out, "seeds {} ({twice} played twice: the same) {total} violations 0", args.seeds)
}

//! `fencegate demo`

use tokio::signal::unix::{SignalKind, signal};

use super::{Done, Failed, log, output, runtime};
use crate::{
    config::{Level, Settings},
    demo::{self, story},
};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Play the split brain instead: a leader stalls, another takes over, the first one wakes up.
    ///
    /// Exits with 1 if the late write got through.
    #[arg(long)]
    story: bool,
}

pub(super) fn run(args: &Args) -> Done {
    let mut settings = Settings::default();
    settings.log.level = Level::Error;
    log(&settings.log, None);
    let runtime = runtime()?;
    let done = runtime.block_on(async {
        let demo = demo::start().await.map_err(Failed::Config)?;
        let done = if args.story { play_story(&demo).await } else { let_try(&demo).await };
        demo.stop().await;
        done
    });
    runtime.shutdown_background();
    done
}

async fn play_story(demo: &demo::Demo) -> Done {
    match tokio::time::timeout(story::PATIENCE, story::play(demo)).await {
        Ok(Ok(true)) => Ok(()),
        Ok(Ok(false)) => Err(Failed::Quietly),
        Ok(Err(what)) => Err(Failed::Said(what)),
        Err(_) => Err(Failed::Said("the story did not come to its end in a minute".to_owned())),
    }
}

async fn let_try(demo: &demo::Demo) -> Done {
    let listen = |kind| signal(kind).map_err(|error| Failed::Said(format!("cannot listen for signals: {error}")));
    let (mut terminate, mut interrupt) = (listen(SignalKind::terminate())?, listen(SignalKind::interrupt())?);
    let running = &demo.running;
    output::line(&format!("ready gate={} api={} ops={}", running.listens, running.api, running.ops));
    output::line(&format!("\nA gate before a store in memory ({}). In another terminal, try:\n", demo.store));
    for (line, what) in demo.lines_to_try().iter().zip(WHAT_IT_SHOWS) {
        output::line(&format!("  # {what}\n  {line}\n"));
    }
    output::line("`fencegate demo --story` plays the split brain. Ctrl-C stops this; nothing is kept.");
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}

const WHAT_IT_SHOWS: [&str; 5] = [
    "take the lease on `users`, and keep its fence token",
    "write with the token: forwarded",
    "write without it: refused, 428 WRITE_UNFENCED",
    "read: always passes",
    "what was refused, and why",
];

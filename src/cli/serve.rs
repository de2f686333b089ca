//! `fencegate serve`

use std::{io::Write, time::Duration};

use tokio::signal::unix::{SignalKind, signal};

use super::{ConfigArgs, Done, Failed, load, log, runtime};
use crate::{
    app,
    clock::Clock,
    config::{LogFormat, Settings},
};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    config: ConfigArgs,
    /// How to log on standard error; over what the configuration says.
    #[arg(long, value_enum)]
    log_format: Option<LogFormat>,
}

pub(super) fn run(args: &Args) -> Done {
    let settings = load(&args.config)?;
    log(&settings, args.log_format);
    runtime()?.block_on(serve(&settings))
}

async fn serve(settings: &Settings) -> Done {
    let hear = |kind| signal(kind).map_err(|error| Failed::Said(format!("cannot listen for signals: {error}")));
    let (mut terminate, mut interrupt) = (hear(SignalKind::terminate())?, hear(SignalKind::interrupt())?);
    let running = app::start(settings, Clock::machine()).await.map_err(Failed::Config)?;
    // Nobody may be listening to this line; the gate serves all the same.
    let _ = writeln!(std::io::stdout(), "ready api={} ops={}", running.api, running.ops);
    tokio::select! {
        _ = terminate.recv() => tracing::info!("stopping: SIGTERM"),
        _ = interrupt.recv() => tracing::info!("stopping: SIGINT"),
    }
    match running.stop(Duration::from_millis(settings.shutdown.deadline_ms)).await {
        Ok(()) => tracing::info!("stopped in good order"),
        Err(why) => tracing::warn!(why, "stopped, but the next start counts as unclean"),
    }
    Ok(())
}

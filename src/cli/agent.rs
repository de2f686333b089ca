//! `fencegate agent`

use std::{io::Write, path::PathBuf, time::Duration};

use rustix::process::Signal;
use tokio::signal::unix::{SignalKind, signal};

use super::{Done, Failed, inherited::Inherited, log, output, runtime};
use crate::{
    agent,
    config::{self, AgentSettings, LogFormat},
    fence::HolderId,
};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The configuration file; config/agent.toml explains every key.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// How to log on standard error; over what the configuration says.
    #[arg(long, value_enum)]
    log_format: Option<LogFormat>,
    /// Check the configuration, list everything that is wrong with it, and stop.
    #[arg(long)]
    check: bool,
}

pub(super) fn run(args: &Args) -> Done {
    let settings: AgentSettings = config::load(&args.config).map_err(Failed::Config)?;
    if args.check {
        output::line("the configuration is sound");
        return Ok(());
    }
    log(&settings.log, args.log_format);
    let runtime = runtime()?;
    let done = runtime.block_on(run_until_stopped(&settings));
    // After the deadline, nothing is awaited.
    runtime.shutdown_background();
    done
}

async fn run_until_stopped(settings: &AgentSettings) -> Done {
    let listen = |kind| signal(kind).map_err(|error| Failed::Said(format!("cannot listen for signals: {error}")));
    // Under nohup(1) the agent goes on when the terminal is gone.
    let hang_up = (!Inherited::now().ignores(Signal::HUP)).then(|| listen(SignalKind::hangup())).transpose()?;
    let (mut terminate, mut interrupt) = (listen(SignalKind::terminate())?, listen(SignalKind::interrupt())?);
    let no_terminal = async {
        match hang_up {
            Some(mut hang_up) => hang_up.recv().await,
            None => std::future::pending().await,
        }
    };
    let running = agent::start(settings).await.map_err(Failed::Config)?;
    tracing::info!(holder = running.holder.as_ref().map(HolderId::as_str), "the agent is up");
    // Standard output may be closed; the agent serves anyway.
    let _ = writeln!(std::io::stdout(), "ready agent={} status={}", running.agent, running.status);
    tokio::select! {
        _ = terminate.recv() => tracing::info!("stopping: SIGTERM"),
        _ = interrupt.recv() => tracing::info!("stopping: SIGINT"),
        _ = no_terminal => tracing::info!("stopping: SIGHUP"),
    }
    let stopped = tokio::select! {
        stopped = running.stop(Duration::from_millis(settings.shutdown.deadline_ms)) => stopped,
        _ = terminate.recv() => return Err(cut_short("SIGTERM")),
        _ = interrupt.recv() => return Err(cut_short("SIGINT")),
    };
    match stopped {
        Ok(()) => tracing::info!("stopped in good order"),
        Err(why) => tracing::warn!(why, "stopped, but not in good order"),
    }
    Ok(())
}

/// A second signal ends the program at once: writes in flight are dropped, so this is a failure.
fn cut_short(signal: &str) -> Failed {
    Failed::Said(format!("a second signal, {signal}, cut the stop short: the leases that were not released run out"))
}

//! `fencegate serve`

use std::{io::Write, path::Path, time::Duration};

use tokio::signal::unix::{Signal, SignalKind, signal};

use super::{ConfigArgs, Done, Failed, log, runtime};
use crate::{
    app::{self, Running},
    clock::Clock,
    config::{self, Fault, LogFormat, Settings},
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
    let (settings, faults): (Settings, _) = config::examine(&args.config.config).map_err(Failed::Config)?;
    log(&settings.log, args.log_format);
    let runtime = runtime()?;
    let done = runtime.block_on(serve(&args.config.config, &settings, faults));
    // After the deadline, nothing is awaited.
    runtime.shutdown_background();
    done
}

async fn serve(path: &Path, settings: &Settings, faults: Vec<Fault>) -> Done {
    let (mut ends, mut hangup) = (Ends::listen()?, listen(SignalKind::hangup())?);
    let ports = app::prepare(settings, faults).map_err(Failed::Config)?;
    let running = app::start(settings, Clock::machine(), ports).await.map_err(Failed::Config)?;
    // Standard output may be closed; the gate serves anyway.
    let _ = writeln!(std::io::stdout(), "ready gate={} api={} ops={}", running.listens, running.api, running.ops);
    let signal = loop {
        tokio::select! {
            signal = ends.next() => break signal,
            _ = hangup.recv() => {}
        }
        // A reload may wait for the fence table. A stop does not wait for the reload.
        tokio::select! {
            signal = ends.next() => break signal,
            () = reload(&running, path) => {}
        }
    };
    tracing::info!("stopping: {signal}");
    let stop = running.stop(Duration::from_millis(settings.shutdown.deadline_ms));
    let stopped = tokio::select! {
        stopped = stop => stopped,
        signal = ends.next() => return Err(cut_short(signal)),
    };
    match stopped {
        Ok(()) => tracing::info!("stopped in good order"),
        Err(why) => tracing::warn!(why, "stopped, but the next start counts as unclean"),
    }
    Ok(())
}

async fn reload(running: &Running, path: &Path) {
    match running.reload(config::load(path)).await {
        Ok(()) => tracing::info!("SIGHUP: the settings were read again"),
        Err(faults) => tracing::error!(%faults, "SIGHUP: the settings are faulty; the old ones stay"),
    }
}

fn listen(kind: SignalKind) -> Result<Signal, Failed> {
    signal(kind).map_err(|error| Failed::Said(format!("cannot listen for signals: {error}")))
}

/// The signals that end the program.
struct Ends {
    terminate: Signal,
    interrupt: Signal,
}

impl Ends {
    fn listen() -> Result<Self, Failed> {
        Ok(Self { terminate: listen(SignalKind::terminate())?, interrupt: listen(SignalKind::interrupt())? })
    }

    /// Returns the next signal's name.
    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

/// A second signal ends the program at once: writes in flight are dropped, so this is a failure.
fn cut_short(signal: &str) -> Failed {
    Failed::Said(format!("a second signal, {signal}, cut the stop short: the next start counts as unclean"))
}

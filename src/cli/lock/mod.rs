//! `fencegate lock`: runs a command under a lease, like flock(1).
//!
//! The command gets its own process group, and a guard ([`guard`]) that outlives this program: if this program is
//! killed, the guard kills the command. On a terminal the command stays in the terminal's group instead, so that it
//! can read input and gets Ctrl-C. In both cases its descendants are found by their parents ([`tree`]): this program
//! is the reaper of descendants that lose their parent.

mod begin;
mod guard;
mod running;
mod tree;

use std::{
    ffi::OsString,
    process::{ExitCode, ExitStatus},
    time::Duration,
};

use tokio::signal::unix::{Signal as SignalStream, SignalKind, signal};

use self::running::{Ended, NotStarted, Running};
pub(super) use self::{
    begin::{Args as BeginArgs, run as begin},
    guard::{Args as GuardArgs, run as run_guard},
};
use super::{Failed, inherited::Inherited, output, way::Way};
use crate::{
    client::{self, Lease, LeaseApi, Lost, NotHad, Progress, Wanted, default_holder},
    config::{Fault, Faults},
    fence::{HolderId, ObjectId},
};

/// The exit codes of this program where it does not pass on the command's code.
mod code {
    /// The gate refused, or an unexpected failure.
    pub(super) const FAILED: u8 = 1;
    /// EX_UNAVAILABLE
    pub(super) const UNREACHABLE: u8 = 69;
    /// EX_TEMPFAIL
    pub(super) const NOT_HAD: u8 = 75;
    pub(super) const LOST: u8 = 76;
    /// EX_CONFIG
    pub(super) const NO_ROUTE: u8 = 78;
    pub(super) const NOT_EXECUTABLE: u8 = 126;
    pub(super) const NOT_FOUND: u8 = 127;
    /// Plus the signal's number.
    pub(super) const SIGNAL: u8 = 128;
}

#[derive(Debug, clap::Args)]
#[command(after_long_help = "\
Exit codes:
  the command's own; 128 + N where signal N ended it
  1    the gate refused, or something failed
  2    a wrong command line
  69   the gate could not be reached within --wait
  75   the lease was not to be had within --wait
  76   the lease was lost, and the command was stopped
  78   no route of the gate makes the object, and --unrouted was not given
  126  the command cannot be run
  127  there is no such command
A line on standard error says so whenever the code is not the command's.")]
pub(super) struct Args {
    /// What to lock, such as `users` or `/data/users/`.
    #[arg(long)]
    object: String,
    /// How long the lease lasts, in milliseconds, unless it is renewed; it is, at a third of that.
    #[arg(long, value_name = "MS", default_value_t = 15_000)]
    ttl: u64,
    /// How long to wait for it, in milliseconds; 0 does not wait. Left out: for ever.
    #[arg(long, value_name = "MS")]
    wait: Option<u64>,
    /// Who you are; unique per process. Left out: made of the host's name, the process id and a random word, behind the
    /// name that the gate knows this caller by if a token or a certificate is shown.
    #[arg(long, value_name = "NAME")]
    holder: Option<String>,
    /// How long the command may take to end, in milliseconds, before it is killed: after SIGTERM when the lease is lost,
    /// and after a signal that asks for the end and was blocked when this program started.
    #[arg(long, value_name = "MS", default_value_t = 5_000)]
    grace: u64,
    /// When the lease is lost and the command has been stopped: exit, or wait for the next turn and run it again.
    #[arg(long, value_enum, default_value_t = OnLoss::Exit)]
    on_loss: OnLoss,
    /// Run the command also where no route of the gate makes the object, so that the gate refuses every write with its
    /// token: for elections whose winner writes nothing through the gate.
    #[arg(long)]
    unrouted: bool,
    #[command(flatten)]
    way: Way,
    /// The command. It gets FENCE_TOKEN, FENCE_SEQ and FENCE_OBJECT in its environment.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum OnLoss {
    Exit,
    Rejoin,
}

pub(super) fn run(args: &Args) -> Result<ExitCode, Failed> {
    let bad = |name: &str, what: &dyn std::fmt::Display| {
        Failed::Config(Faults(vec![Fault::new(format!("--{name}"), what.to_string())]))
    };
    let object = ObjectId::new(&args.object).map_err(|fault| bad("object", &fault))?;
    let holder = args.holder.as_deref().map(HolderId::new).transpose().map_err(|fault| bad("holder", &fault))?;
    let api = args.way.lease_api().map_err(|fault| bad("api", &fault))?;
    let runtime = super::runtime()?;
    let code = runtime.block_on(async {
        let holder = match holder {
            Some(holder) => holder,
            // The gate says which names this caller may use.
            None if args.way.credentials.is_some() => match api.own_holder(&default_holder(), WHO_TIMEOUT).await {
                Ok(holder) => holder,
                Err(client::Failed::Refused(refusal)) => return Err(Failed::Said(refusal.to_string())),
                Err(failed) => {
                    output::complain(&failed.to_string());
                    return Ok(code::UNREACHABLE);
                }
            },
            None => default_holder(),
        };
        let wanted = Wanted { object, holder, ttl_ms: Some(args.ttl), wait: args.wait.map(Duration::from_millis) };
        let mut signals = Signals::listen().map_err(|error| format!("cannot listen for signals: {error}"))?;
        Ok::<_, Failed>(lock(args, &api, &wanted, &mut signals).await)
    })?;
    runtime.shutdown_background();
    Ok(ExitCode::from(code))
}

/// How long the gate may take to say who this caller is.
const WHO_TIMEOUT: Duration = Duration::from_secs(10);

/// Signals that are passed on to the command. Signals that are ignored already stay ignored, for both.
struct Signals {
    streams: Vec<(rustix::process::Signal, SignalStream)>,
    /// Also lets this program wait for children: it cannot while this signal is ignored.
    child: SignalStream,
    /// Signals that never arrive because they are blocked from the start; whether each was seen as pending.
    blocked: Vec<(rustix::process::Signal, bool)>,
}

/// How often children are checked, since news of their end may not arrive, and how often blocked signals are.
const LOOK: Duration = Duration::from_secs(1);
const LOOK_BLOCKED: Duration = Duration::from_millis(50);

impl Signals {
    fn listen() -> std::io::Result<Self> {
        use rustix::process::Signal;
        let each = [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT, Signal::USR1, Signal::USR2];
        let inherited = Inherited::now();
        let (mut all, mut blocked) = (vec![], vec![]);
        for each in each.into_iter().filter(|each| !inherited.ignores(*each)) {
            all.push((each, signal(SignalKind::from_raw(each.as_raw()))?));
            if inherited.blocks(each) {
                blocked.push((each, false));
            }
        }
        Ok(Self { streams: all, child: signal(SignalKind::child())?, blocked })
    }

    /// Returns the next signal, or `None` when a child may have ended.
    async fn next(&mut self) -> Option<rustix::process::Signal> {
        let is_waiting = self.blocked.iter().any(|(_, seen)| !seen);
        let pause = if is_waiting { LOOK_BLOCKED } else { LOOK };
        let Self { streams, child, blocked } = self;
        let passed_on = std::future::poll_fn(|context| {
            for (which, stream) in streams.iter_mut() {
                if stream.poll_recv(context).is_ready() {
                    return std::task::Poll::Ready(*which);
                }
            }
            std::task::Poll::Pending
        });
        tokio::select! {
            which = passed_on => Some(which),
            _ = child.recv() => None,
            () = tokio::time::sleep(pause) => {
                let pending = Inherited::now();
                // It stays pending, so each is counted once.
                let come = blocked.iter_mut().find(|(each, seen)| !seen && pending.has_pending(*each));
                come.map(|(each, seen)| {
                    *seen = true;
                    *each
                })
            }
        }
    }

    /// Whether a signal is blocked from the start. The command inherits that.
    fn is_blocked(&self, signal: rustix::process::Signal) -> bool {
        self.blocked.iter().any(|(each, _)| *each == signal)
    }

    /// Returns the next signal that asks a program to end.
    async fn end(&mut self) -> rustix::process::Signal {
        use rustix::process::Signal;
        loop {
            match self.next().await {
                // No command runs now.
                None => tree::reap(&[], rustix::process::getpid()),
                Some(Signal::USR1 | Signal::USR2) => {}
                Some(signal) => return signal,
            }
        }
    }
}

async fn lock(args: &Args, api: &LeaseApi, wanted: &Wanted, signals: &mut Signals) -> u8 {
    loop {
        let lease = match turn(api, wanted, signals).await {
            Ok(lease) => lease,
            Err(code) => return code,
        };
        if let Some(warning) = lease.warning().filter(|_| !args.unrouted) {
            let what = format!("the command was not started: {warning}. Name another --object, or say --unrouted");
            release(&lease).await;
            return complain(code::NO_ROUTE, &what);
        }
        let mut running = match Running::start(&args.command, &lease).await {
            Ok(running) => running,
            Err(not_started) => {
                release(&lease).await;
                match explain(args, wanted, not_started) {
                    Some(code) => return code,
                    None => continue,
                }
            }
        };
        let (ended, left) = running.watch(&lease, signals, Duration::from_millis(args.grace)).await;
        if !left.is_empty() {
            let pids: Vec<String> = left.iter().map(|each| each.pid.as_raw_nonzero().to_string()).collect();
            let what = "the gate refuses what they write with the token from here on";
            output::complain(&format!(
                "these processes of the command did not end when killed: {}; {what}",
                pids.join(" ")
            ));
        }
        // No process of the command is left that could be killed, so another holder may have the lease.
        release(&lease).await;
        match ended {
            Ended::ByItself(status) => return of_command(status),
            Ended::Lost { why, was_asked_to_end } => {
                say_lost(wanted, "stopped", &why);
                if args.on_loss == OnLoss::Exit || was_asked_to_end {
                    return code::LOST;
                }
            }
            Ended::Failed(what) => {
                output::complain(&what);
                return code::FAILED;
            }
        }
    }
}

fn say_lost(wanted: &Wanted, what_then: &str, why: &Lost) {
    output::complain(&format!("the lease on {} was lost, and the command was {what_then}: {why}", wanted.object));
}

/// Prints why a command does not run. Returns `None` where it waits for another turn.
fn explain(args: &Args, wanted: &Wanted, not_started: NotStarted) -> Option<u8> {
    match not_started {
        NotStarted::Lost(why) => {
            say_lost(wanted, "not started", &why);
            (args.on_loss == OnLoss::Exit).then_some(code::LOST)
        }
        NotStarted::Guard(error) => Some(complain(code::FAILED, &format!("the guard does not run: {error}"))),
        NotStarted::Command(error) => Some(complain(code::FAILED, &format!("the command cannot be started: {error}"))),
    }
}

/// Waits for the lease. Fails with the exit code.
async fn turn(api: &LeaseApi, wanted: &Wanted, signals: &mut Signals) -> Result<Lease, u8> {
    let mut last = None;
    let say = |progress: &Progress| {
        if last.as_ref() == Some(progress) || wanted.wait == Some(Duration::ZERO) {
            return;
        }
        let why = match progress {
            Progress::Held { by: Some(by) } => format!(", held by {by}"),
            Progress::Held { by: None } => String::new(),
            Progress::Unreachable { why } => format!(": {why}"),
        };
        output::complain(&format!("waiting for {}{why}", wanted.object));
        last = Some(progress.clone());
    };
    let mut stopped_by = None;
    let given_up = async { stopped_by = Some(signals.end().await) };
    let acquired = api.acquire_unless(wanted, say, given_up).await;
    acquired.map_err(|not_had| match not_had {
        NotHad::Held { .. } => complain(code::NOT_HAD, &format!("{} was not to be had: {not_had}", wanted.object)),
        NotHad::Unreachable { .. } => complain(code::UNREACHABLE, &not_had.to_string()),
        NotHad::Refused(why) => complain(code::FAILED, &why.to_string()),
        NotHad::GivenUp => code::SIGNAL + stopped_by.map_or(0, |signal| u8::try_from(signal.as_raw()).unwrap_or(0)),
    })
}

fn complain(code: u8, what: &str) -> u8 {
    output::complain(what);
    code
}

async fn release(lease: &Lease) {
    if let Err(failed) = lease.release().await {
        output::complain(&format!(
            "the lease on {} was not released; it stays held until it runs out: {failed}",
            lease.object()
        ));
    }
}

fn of_command(status: ExitStatus) -> u8 {
    use std::os::unix::process::ExitStatusExt;
    let number = status.code().unwrap_or_else(|| i32::from(code::SIGNAL) + status.signal().unwrap_or(0));
    u8::try_from(number & 0xff).unwrap_or(code::FAILED)
}

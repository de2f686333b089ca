//! The command line: one file per subcommand.
//!
//! Exit codes: 0 done; 1 refused, failed or unreachable; 2 a wrong command line or configuration. `lock` has its own.

mod access;
mod agent;
mod audit;
mod call;
mod cert;
mod check;
mod demo;
mod drain;
mod inherited;
mod lease;
mod lock;
mod manual;
mod migrate;
mod output;
mod reference;
mod serve;
mod table;
mod token;
mod way;

use std::{path::PathBuf, process::ExitCode};

use clap::{Parser, Subcommand};
use tracing_subscriber::EnvFilter;

use crate::{
    config::{self, Faults, LogFormat, Settings},
    table::private,
};

/// A storage-side write gate: leases with fence tokens, checked before the store sees a write.
///
/// Leader election elects; it does not stop a deposed leader's delayed write. fencegate does: a
/// holder acquires a lease, gets a fence token, and sends it with every write; once the lease has
/// changed hands, its token is refused for ever.
///
/// To see it: `fencegate demo --story`.
///
/// To begin: `fencegate table init --config FILE`, then `fencegate serve --config FILE`, then
/// `fencegate lease acquire --object users --holder me`.
#[derive(Debug, Parser)]
#[command(name = "fencegate", version, propagate_version = true, max_term_width = 100)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the gate.
    ///
    /// Prints one line on standard output once it is up: `ready gate=ADDR api=ADDR ops=ADDR`. SIGTERM and
    /// SIGINT stop it in good order.
    Serve(serve::Args),
    /// Try it out: a gate before a store in memory, with lines to copy, or the split brain as a story.
    Demo(demo::Args),
    /// Check a configuration, and list everything that is wrong with it.
    Check(ConfigArgs),
    /// Acquire, renew, release and show leases of a running gate.
    #[command(subcommand)]
    Lease(lease::Command),
    /// Run a command while holding a lease, like flock(1).
    ///
    /// Waits its turn, runs the command, renews the lease meanwhile, passes signals on, and releases the lease when
    /// the command has ended. When the lease is lost, the command is stopped: SIGTERM, then SIGKILL after --grace.
    Lock(lock::Args),
    /// Kill what `lock` has started if `lock` itself is killed.
    #[command(hide = true)]
    LockGuard(lock::GuardArgs),
    /// Become the command of a `lock`.
    #[command(hide = true)]
    LockBegin(lock::BeginArgs),
    /// Run beside a writer that cannot hold a lease itself: take it, renew it, add its token to every write.
    ///
    /// Prints one line on standard output once it is up: `ready agent=ADDR status=ADDR`. SIGTERM and SIGINT stop it:
    /// writes on their way are finished, then the leases are released.
    Agent(agent::Args),
    /// Make, inspect, check, back up and restore the fence table.
    #[command(subcommand)]
    Table(table::Command),
    /// Make keys, and sign, check and show the messages of signed authority.
    #[command(subcommand)]
    Cert(cert::Command),
    /// Hand an object over to another holder, and watch the steps.
    ///
    /// The old holder is fenced at once; the next one gets its token when it has confirmed the final state.
    Migrate(migrate::Args),
    /// Say what a configuration allows whom, and make bearer tokens for callers.
    #[command(subcommand)]
    Access(access::Command),
    /// Check the audit log of a gate.
    #[command(subcommand)]
    Audit(audit::Command),
    /// Ask a running gate to hand out no more leases and admit no more writes, and wait until nothing is on its way.
    Drain(drain::Args),
    /// Inspect fence tokens.
    #[command(subcommand)]
    Token(token::Command),
    /// Print completions for a shell.
    ///
    /// For bash: `fencegate completions bash > /etc/bash_completion.d/fencegate`
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Print a page of docs/reference, as this program has it.
    Reference(reference::Args),
    /// Print the manual page, or write the pages of all subcommands into a folder.
    Man {
        /// Write `fencegate.1`, `fencegate-serve.1` and so on here.
        #[arg(long, value_name = "FOLDER")]
        out: Option<PathBuf>,
    },
}

/// Where the configuration is.
#[derive(Debug, clap::Args)]
struct ConfigArgs {
    /// The configuration file; config/fencegate.toml explains every key.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
}

/// How a command went.
enum Failed {
    /// The configuration or the surroundings are wrong: exit 2.
    Config(Faults),
    /// The command was refused, or failed: exit 1.
    Said(String),
    /// The same, and the reason is already printed.
    Quietly,
}

impl From<String> for Failed {
    fn from(what: String) -> Self {
        Self::Said(what)
    }
}

type Done = Result<(), Failed>;

/// Runs the program.
#[must_use]
pub fn run() -> ExitCode {
    let cli = Cli::parse();
    let (fault, points) = (config::test_fault(), config::test_point());
    if let Err(what) = crate::failpoints::check(fault.as_deref(), points.as_deref()) {
        output::complain(&what);
        return ExitCode::from(2);
    }
    if matches!(cli.command, Command::Serve(_) | Command::Demo(_) | Command::Table(_)) {
        private::keep_to_ourselves();
    }
    let done = match cli.command {
        Command::Serve(args) => serve::run(&args),
        Command::Demo(args) => demo::run(&args),
        Command::Check(args) => check::run(&args),
        Command::Lease(command) => lease::run(command),
        Command::Lock(args) => match lock::run(&args) {
            Ok(code) => return code,
            Err(failed) => Err(failed),
        },
        Command::Agent(args) => agent::run(&args),
        Command::LockGuard(args) => lock::run_guard(&args),
        Command::LockBegin(args) => return lock::begin(&args),
        Command::Table(command) => table::run(command),
        Command::Cert(command) => cert::run(command),
        Command::Migrate(args) => migrate::run(args),
        Command::Access(command) => access::run(command),
        Command::Audit(command) => audit::run(&command),
        Command::Drain(args) => drain::run(&args),
        Command::Token(command) => token::run(&command),
        Command::Reference(args) => {
            reference::run(&args);
            Ok(())
        }
        Command::Completions { shell } => {
            manual::completions(shell);
            Ok(())
        }
        Command::Man { out } => manual::pages(out.as_deref()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failed::Config(faults)) => {
            let lines: Vec<_> = faults.0.iter().map(|fault| format!("  {}: {}", fault.key, fault.what)).collect();
            output::complain(&format!("{} to correct:\n{}", output::count(lines.len(), "thing"), lines.join("\n")));
            ExitCode::from(2)
        }
        Err(Failed::Said(what)) => {
            output::complain(&what);
            ExitCode::FAILURE
        }
        Err(Failed::Quietly) => ExitCode::FAILURE,
    }
}

fn load(args: &ConfigArgs) -> Result<Settings, Failed> {
    config::load(&args.config).map_err(Failed::Config)
}

/// Starts the log: on standard error, for people or for machines.
fn log(settings: &config::Log, format: Option<LogFormat>) {
    use std::io::IsTerminal;
    let level = match settings.level {
        config::Level::Error => tracing::Level::ERROR,
        config::Level::Warn => tracing::Level::WARN,
        config::Level::Info => tracing::Level::INFO,
        config::Level::Debug => tracing::Level::DEBUG,
        config::Level::Trace => tracing::Level::TRACE,
    };
    let on_terminal = std::io::stderr().is_terminal();
    let json = match format.unwrap_or(settings.format) {
        LogFormat::Auto => !on_terminal,
        LogFormat::Text => false,
        LogFormat::Json => true,
    };
    // The API server's client logs every failed call as an error. The caller logs what follows from it instead.
    let clients = if level >= tracing::Level::DEBUG { level.as_str() } else { "off" };
    let log = tracing_subscriber::fmt()
        .log_internal_errors(false)
        .with_env_filter(EnvFilter::new(format!("{level},kube_client={clients}")))
        .with_writer(std::io::stderr)
        .with_ansi(on_terminal);
    // A second gate in one process uses the first one's log.
    let _ = if json { log.json().flatten_event(true).try_init() } else { log.try_init() };
}

fn runtime() -> Result<tokio::runtime::Runtime, Failed> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("api")
        .enable_all()
        .build()
        .map_err(|error| Failed::Said(format!("cannot start: {error}")))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_sound() {
        super::Cli::command().debug_assert();
    }
}

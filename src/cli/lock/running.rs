//! A command that runs under a lease: started, watched, stopped, and gone.

use std::{
    ffi::OsString,
    io::{self, IsTerminal},
    os::{fd::AsRawFd, unix::process::CommandExt},
    pin::Pin,
    process::{ExitStatus, Stdio},
    time::Duration,
};

use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, getpid, kill_process, kill_process_group, set_child_subreaper, waitid,
};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    process::{Child as Guard, Command as GuardCommand},
    time::Sleep,
};

use super::{
    Signals,
    guard::DONE,
    tree::{Process, Tree, reap},
};
use crate::{
    cli::output,
    client::{Lease, Lost},
};

/// The running program, also if its file was replaced by a newer one meanwhile.
const PROGRAM: &str = "/proc/self/exe";
/// How often to check whether the last process of a command is gone, and how many times.
const LOOK: Duration = Duration::from_millis(2);
const LOOKS: u32 = 2_500;

/// How a command ended.
pub(super) enum Ended {
    ByItself(ExitStatus),
    /// The lease was lost first. Also says whether a signal had asked this program to end by then.
    Lost {
        why: Lost,
        was_asked_to_end: bool,
    },
    Failed(String),
}

/// Why a command does not run.
pub(super) enum NotStarted {
    Lost(Lost),
    /// The guard does not start.
    Guard(io::Error),
    Command(io::Error),
}

/// A command, and the guard beside it.
pub(super) struct Running {
    /// Waited for only when no process of it is left: its number is its group's number, and no other process gets
    /// that before.
    command: std::process::Child,
    pid: Pid,
    guard: Guard,
    guard_pid: Pid,
    on_terminal: bool,
    spared: Spared,
    /// A signal has asked this program to end.
    was_asked_to_end: bool,
}

/// Descendants of this process that do not belong to the command: those from before it, since a shell that becomes
/// another program by `exec` leaves its children to that program; and those that have left the session.
struct Spared {
    session: i32,
    processes: Vec<Process>,
    groups: Vec<i32>,
}

impl Spared {
    fn now(on_terminal: bool) -> Self {
        // In a container, both may be outside of it, and are 0.
        let (own_group, session) = Process::of(getpid()).map_or((0, 0), |own| (own.group, own.session));
        let processes = Tree::snapshot().below(getpid(), |_| false);
        let mut groups: Vec<i32> = processes.iter().map(|each| each.group).collect();
        if on_terminal {
            // The command is in this group.
            groups.retain(|group| *group != own_group);
        } else {
            groups.push(own_group);
        }
        Self { session, processes, groups }
    }

    fn has(&self, process: &Process) -> bool {
        process.session != self.session
            || self.groups.contains(&process.group)
            || self.processes.iter().any(|each| process.is_same(each))
    }
}

impl Running {
    /// Starts a command with the lease's token in its environment.
    pub(super) async fn start(command: &[OsString], lease: &Lease) -> Result<Self, NotStarted> {
        let on_terminal = io::stdin().is_terminal();
        // Orphans of the command become children of this process, so they can be found. Where this is not possible,
        // their group is used.
        let _ = set_child_subreaper(Some(getpid()));
        let spared = Spared::now(on_terminal);
        let (mut guard, guard_pid) = start_guard(on_terminal).await.map_err(NotStarted::Guard)?;
        let token = lease.token().map_err(NotStarted::Lost)?;
        let own = getpid().as_raw_nonzero();
        let pipe = guard.stdin.as_ref().map_or(-1, AsRawFd::as_raw_fd);
        let mut run = std::process::Command::new(PROGRAM);
        run.arg0("fencegate")
            .arg("lock-begin")
            .args(["--guard", &format!("/proc/{own}/fd/{pipe}"), "--lock", &own.to_string(), "--"])
            .args(command)
            .env("FENCE_TOKEN", token.expose())
            .env("FENCE_SEQ", lease.seq().to_string())
            .env("FENCE_OBJECT", lease.object().as_str());
        if !on_terminal {
            run.process_group(0);
        }
        let (pid, command) = match run.spawn() {
            Ok(command) => (Pid::from_child(&command), command),
            Err(error) => {
                // The guard knows no command yet.
                drop(guard.stdin.take());
                let _ = guard.wait().await;
                return Err(NotStarted::Command(error));
            }
        };
        if let Some(pipe) = guard.stdin.as_mut() {
            // The command has sent its process id itself, unless it failed. Without a guard, the command only lives
            // on if this program is killed.
            let _ = pipe.write_all(format!("{}\n", pid.as_raw_nonzero()).as_bytes()).await;
        }
        Ok(Self { command, pid, guard, guard_pid, on_terminal, spared, was_asked_to_end: false })
    }

    /// Waits for the command's end and passes signals on; stops the command when the lease is lost. Returns when no
    /// process of it is left.
    pub(super) async fn watch(
        &mut self,
        lease: &Lease,
        signals: &mut Signals,
        grace: Duration,
    ) -> (Ended, Vec<Process>) {
        let mut overdue = Overdue(None);
        let lost = loop {
            if self.has_ended() {
                break lease.token().err();
            }
            tokio::select! {
                why = lease.lost() => {
                    self.stop(signals, grace).await;
                    break Some(why);
                }
                signal = signals.next() => {
                    self.pass_on(signal);
                    // The command has inherited the blocked signal, so it may never get it.
                    if let Some(signal) = signal.filter(|signal| asks_to_end(*signal) && signals.is_blocked(*signal)) {
                        overdue.begin(signal, grace);
                    }
                }
                asked_by = overdue.passed() => {
                    output::complain(&format!(
                        "the command was killed: {asked_by}, which was blocked when fencegate started, did not end it within {} ms",
                        grace.as_millis()
                    ));
                    self.send(Signal::KILL);
                }
            }
        };
        let left = self.clear().await;
        let ended = match (self.command.wait(), lost) {
            (Ok(_), Some(why)) => Ended::Lost { why, was_asked_to_end: self.was_asked_to_end },
            (Ok(status), None) => Ended::ByItself(status),
            (Err(error), _) => Ended::Failed(format!("the command cannot be waited for: {error}")),
        };
        (ended, left)
    }

    /// Whether the command has ended. Also waits for other children that have ended.
    fn has_ended(&self) -> bool {
        reap(&[self.pid, self.guard_pid], getpid());
        let peek = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        // A child that cannot be waited for is gone.
        !matches!(waitid(WaitId::Pid(self.pid), peek), Ok(None))
    }

    /// TERM, then KILL, to the command and all its descendants.
    async fn stop(&mut self, signals: &mut Signals, grace: Duration) {
        self.send(Signal::TERM);
        for each in self.others() {
            each.send(Signal::TERM);
        }
        let ended = tokio::time::timeout(grace, async {
            while !self.has_ended() {
                let signal = signals.next().await;
                self.pass_on(signal);
            }
        });
        if ended.await.is_ok() {
            return;
        }
        self.send(Signal::KILL);
        while !self.has_ended() {
            // A signal that asks this program to end has no effect any more.
            let _ = signals.next().await;
        }
    }

    fn pass_on(&mut self, signal: Option<Signal>) {
        let Some(signal) = signal else { return };
        self.was_asked_to_end |= asks_to_end(signal);
        // The terminal has sent these to its whole group already.
        let is_terminals = signal == Signal::INT || signal == Signal::QUIT;
        if !(is_terminals && self.on_terminal) {
            self.send(signal);
        }
    }

    /// Sends to the command and its group; on a terminal to the command only, since it shares its group with others.
    fn send(&self, signal: Signal) {
        // A process that has ended meanwhile needs no signal.
        let _ = if self.on_terminal { kill_process(self.pid, signal) } else { kill_process_group(self.pid, signal) };
    }

    /// The living descendants of the command that do not get a signal for its group.
    fn others(&self) -> Vec<Process> {
        let group = self.pid.as_raw_nonzero().get();
        let mut others = self.left();
        others.retain(|each| if self.on_terminal { each.pid != self.pid } else { each.group != group });
        others
    }

    /// The living descendants of the command.
    fn left(&self) -> Vec<Process> {
        Tree::snapshot().below(getpid(), |each| self.spared.has(each))
    }

    /// The command has ended. Kills the processes that it left, since another holder may get the lease next. Returns
    /// those that could not be killed.
    async fn clear(&mut self) -> Vec<Process> {
        let mut left = vec![];
        for _ in 0..LOOKS {
            if !self.on_terminal {
                let _ = kill_process_group(self.pid, Signal::KILL);
            }
            reap(&[self.pid, self.guard_pid], getpid());
            left = self.left();
            if left.is_empty() {
                break;
            }
            for each in &left {
                each.send(Signal::KILL);
            }
            tokio::time::sleep(LOOK).await;
        }
        if let Some(mut pipe) = self.guard.stdin.take() {
            let _ = pipe.write_all(format!("{DONE}\n").as_bytes()).await;
        }
        let _ = self.guard.wait().await;
        left
    }
}

/// Whether a signal asks a program to end. For many programs HUP means "read your settings again", and the other
/// signals have no common meaning.
fn asks_to_end(signal: Signal) -> bool {
    [Signal::TERM, Signal::INT, Signal::QUIT].contains(&signal)
}

/// When the grace ends of a command that was asked to end by a signal that it may never get, and that signal's name.
struct Overdue(Option<(&'static str, Pin<Box<Sleep>>)>);

impl Overdue {
    /// Begins the grace, unless an earlier signal has begun it.
    fn begin(&mut self, signal: Signal, grace: Duration) {
        let name = match signal {
            Signal::INT => "SIGINT",
            Signal::QUIT => "SIGQUIT",
            _ => "SIGTERM",
        };
        self.0.get_or_insert_with(|| (name, Box::pin(tokio::time::sleep(grace))));
    }

    /// Returns the signal's name once, when the grace is over.
    async fn passed(&mut self) -> &'static str {
        let Some((name, grace)) = &mut self.0 else { return std::future::pending().await };
        grace.as_mut().await;
        let name = *name;
        self.0 = None;
        name
    }
}

async fn start_guard(on_terminal: bool) -> io::Result<(Guard, Pid)> {
    let mut guard = GuardCommand::new(PROGRAM);
    guard.arg0("fencegate").arg("lock-guard").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    if on_terminal {
        guard.arg("--one");
    }
    let mut guard = guard.spawn()?;
    let pid = guard.id().and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| io::Error::other("it has ended at once"))?;
    let mut ready = String::new();
    if let Some(says) = guard.stdout.take() {
        BufReader::new(says).read_line(&mut ready).await?;
    }
    if ready != "ready\n" {
        return Err(io::Error::other("its guard did not start"));
    }
    Ok((guard, pid))
}

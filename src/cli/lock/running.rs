//! A command that runs under a lease: started, watched, stopped, and gone.

use std::{
    ffi::OsString,
    io::{self, IsTerminal},
    process::{ExitStatus, Stdio},
    time::Duration,
};

use rustix::process::{Pid, Signal, WaitOptions, kill_process, kill_process_group, test_kill_process_group, waitpgid};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    process::{Child, Command},
};

use super::{Signals, guard::DONE};
use crate::client::{Lease, Lost};

/// How often it is looked whether the last of a group is gone, and for how long.
const LOOK: Duration = Duration::from_millis(2);
const LOOKS: u32 = 2_500;

/// How a command ended.
pub(super) enum Ended {
    ByItself(ExitStatus),
    /// The lease was lost before. Also says whether somebody had asked this program to end by then.
    Lost {
        why: Lost,
        was_asked_to_end: bool,
    },
    Failed(String),
}

/// Why a command does not run.
pub(super) enum NotStarted {
    Lost(Lost),
    /// The guard does not run.
    Guard(io::Error),
    Command(io::Error),
}

/// A command, and the guard beside it.
pub(super) struct Running {
    command: Child,
    guard: Child,
    reach: Reach,
    /// Somebody has asked this program to end.
    was_asked_to_end: bool,
}

/// What a signal is sent to.
#[derive(Clone, Copy)]
enum Reach {
    /// The command and its children.
    Group(Pid),
    /// The command alone: it shares its group with others of the terminal's.
    One(Pid),
}

impl Running {
    /// Starts a command with the lease's token in its environment.
    pub(super) async fn start(command: &[OsString], lease: &Lease) -> Result<Self, NotStarted> {
        let on_terminal = io::stdin().is_terminal();
        let (mut guard, guard_pid) = start_guard(on_terminal).await.map_err(NotStarted::Guard)?;
        let token = lease.token().map_err(NotStarted::Lost)?;
        let mut run = Command::new(&command[0]);
        run.args(&command[1..])
            .env("FENCE_TOKEN", token.expose())
            .env("FENCE_SEQ", lease.seq().to_string())
            .env("FENCE_OBJECT", lease.object().as_str());
        if !on_terminal {
            run.process_group(guard_pid.as_raw_nonzero().get());
        }
        let command = match run.spawn() {
            Ok(command) => command,
            Err(error) => {
                // It dies of its closed pipe, and so does its group, which is empty.
                drop(guard.stdin.take());
                let _ = guard.wait().await;
                return Err(NotStarted::Command(error));
            }
        };
        let pid = pid_of(&command).map_err(NotStarted::Command)?;
        if let (true, Some(pipe)) = (on_terminal, guard.stdin.as_mut()) {
            // Without a guard, the command merely lives on should this program be killed.
            let _ = pipe.write_all(format!("{}\n", pid.as_raw_nonzero()).as_bytes()).await;
        }
        let reach = if on_terminal { Reach::One(pid) } else { Reach::Group(guard_pid) };
        Ok(Self { command, guard, reach, was_asked_to_end: false })
    }

    /// Waits for the command's end, passing signals on; stops it when the lease is lost. Returns when nothing of it
    /// is left.
    pub(super) async fn watch(&mut self, lease: &Lease, signals: &mut Signals, grace: Duration) -> Ended {
        let ended = loop {
            tokio::select! {
                status = self.command.wait() => break status.map(|status| (status, lease.token().err())),
                why = lease.lost() => {
                    let stopped = self.stop(signals, grace).await;
                    break stopped.map(|status| (status, Some(why)));
                }
                heard = signals.next() => self.pass_on(heard),
            }
        };
        self.clear().await;
        match ended {
            Ok((_, Some(why))) => Ended::Lost { why, was_asked_to_end: self.was_asked_to_end },
            Ok((status, None)) => Ended::ByItself(status),
            Err(error) => Ended::Failed(format!("the command cannot be waited for: {error}")),
        }
    }

    /// TERM, then KILL.
    async fn stop(&mut self, signals: &mut Signals, grace: Duration) -> io::Result<ExitStatus> {
        self.send(Signal::TERM);
        let ended = tokio::time::timeout(grace, async {
            loop {
                tokio::select! {
                    status = self.command.wait() => return status,
                    heard = signals.next() => self.pass_on(heard),
                }
            }
        });
        if let Ok(status) = ended.await {
            return status;
        }
        self.send(Signal::KILL);
        self.command.wait().await
    }

    fn pass_on(&mut self, heard: Signal) {
        // HUP means "read your settings again" to many a program, and the others whatever it likes.
        self.was_asked_to_end |= [Signal::TERM, Signal::INT, Signal::QUIT].contains(&heard);
        // The terminal has sent these to its whole group already.
        let is_terminals = heard == Signal::INT || heard == Signal::QUIT;
        if !(is_terminals && matches!(self.reach, Reach::One(_))) {
            self.send(heard);
        }
    }

    fn send(&self, signal: Signal) {
        send(self.reach, signal);
    }

    /// The command has ended; what it has left running in its group is killed, since the lease is about to be
    /// somebody else's.
    async fn clear(&mut self) {
        match self.reach {
            Reach::One(_) => {
                if let Some(mut pipe) = self.guard.stdin.take() {
                    let _ = pipe.write_all(format!("{DONE}\n").as_bytes()).await;
                }
                let _ = self.guard.wait().await;
            }
            Reach::Group(group) => {
                // The guard is in it, and keeps its number good until it has been waited for.
                let _ = kill_process_group(group, Signal::KILL);
                let _ = self.guard.wait().await;
                for _ in 0..LOOKS {
                    // As the first process of a container, this one inherits what the command has left behind.
                    while let Ok(Some(_)) = waitpgid(group, WaitOptions::NOHANG) {}
                    if test_kill_process_group(group).is_err() {
                        return;
                    }
                    tokio::time::sleep(LOOK).await;
                }
            }
        }
    }
}

fn send(reach: Reach, signal: Signal) {
    // Whatever has ended meanwhile needs no signal.
    let _ = match reach {
        Reach::Group(group) => kill_process_group(group, signal),
        Reach::One(pid) => kill_process(pid, signal),
    };
}

fn pid_of(child: &Child) -> io::Result<Pid> {
    let pid = child.id().and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw);
    pid.ok_or_else(|| io::Error::other("it has ended at once"))
}

async fn start_guard(on_terminal: bool) -> io::Result<(Child, Pid)> {
    // The program that runs, also where its file was replaced by a newer one meanwhile.
    let mut guard = Command::new("/proc/self/exe");
    guard
        .arg0("fencegate")
        .arg("lock-guard")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .process_group(0);
    if on_terminal {
        guard.arg("--one");
    }
    let mut guard = guard.spawn()?;
    let pid = pid_of(&guard)?;
    let mut ready = String::new();
    if let Some(says) = guard.stdout.take() {
        BufReader::new(says).read_line(&mut ready).await?;
    }
    if ready != "ready\n" {
        return Err(io::Error::other("its guard did not start"));
    }
    Ok((guard, pid))
}

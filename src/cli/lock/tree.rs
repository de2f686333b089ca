//! The processes of this machine as /proc shows them, with their parents.

use std::fs;

use rustix::process::{
    Pid, PidfdFlags, Signal, WaitIdOptions, WaitOptions, kill_process, pidfd_open, pidfd_send_signal, waitid, waitpid,
};

/// A process, as it was when it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Process {
    pub(super) pid: Pid,
    parent: i32,
    pub(super) group: i32,
    pub(super) session: i32,
    /// It has ended, and its parent has not waited for it yet.
    is_dead: bool,
    /// Distinguishes it from a later process with the same number.
    started: u64,
}

impl Process {
    /// The process with this number, if there is one.
    pub(super) fn of(pid: Pid) -> Option<Self> {
        Self::read(pid, &fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?)
    }

    /// The name is in parentheses, and may contain any text.
    fn read(pid: Pid, stat: &str) -> Option<Self> {
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_ascii_whitespace().collect();
        let number = |place: usize| fields.get(place)?.parse().ok();
        Some(Self {
            pid,
            parent: number(1)?,
            group: number(2)?,
            session: number(3)?,
            is_dead: matches!(*fields.first()?, "Z" | "X"),
            started: fields.get(19)?.parse().ok()?,
        })
    }

    /// Whether this is the same process as the earlier one, and not a later one with its number.
    pub(super) fn is_same(&self, earlier: &Self) -> bool {
        (self.pid, self.started) == (earlier.pid, earlier.started)
    }

    pub(super) fn lives(&self) -> bool {
        !self.is_dead
    }

    /// Sends it a signal, but never to another process that has its number by now.
    pub(super) fn send(&self, signal: Signal) {
        // A process that has ended meanwhile needs no signal.
        match pidfd_open(self.pid, PidfdFlags::empty()) {
            Ok(process) if Self::of(self.pid).is_some_and(|now| now.is_same(self)) => {
                let _ = pidfd_send_signal(process, signal);
            }
            Ok(_) | Err(rustix::io::Errno::SRCH) => {}
            // This kernel can name a process only by its number.
            Err(_) => _ = kill_process(self.pid, signal),
        }
    }
}

/// All processes, read at one time.
pub(super) struct Tree(Vec<Process>);

impl Tree {
    pub(super) fn snapshot() -> Self {
        let all = fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok().and_then(Pid::from_raw));
        Self(pids.filter_map(Process::of).collect())
    }

    /// The living descendants of `root`, without the processes that `spares` names and their descendants.
    pub(super) fn below(&self, root: Pid, spares: impl Fn(&Process) -> bool) -> Vec<Process> {
        let (mut found, mut parents) = (vec![], vec![root.as_raw_nonzero().get()]);
        while let Some(parent) = parents.pop() {
            for child in self.0.iter().filter(|each| each.parent == parent && !spares(each)) {
                parents.push(child.pid.as_raw_nonzero().get());
                found.push(*child);
            }
        }
        found.retain(|process| !process.is_dead);
        found
    }

    /// The living processes in a group of a session.
    pub(super) fn in_group(&self, group: i32, session: i32) -> Vec<Process> {
        let is_in = |each: &&Process| each.group == group && each.session == session && !each.is_dead;
        self.0.iter().filter(is_in).copied().collect()
    }

    /// Children of `parent` that have ended and that it has not waited for.
    fn dead(&self, parent: Pid) -> Vec<Pid> {
        let parent = parent.as_raw_nonzero().get();
        self.0.iter().filter(|each| each.parent == parent && each.is_dead).map(|each| each.pid).collect()
    }
}

/// Waits for every ended child of this process except those in `but`, which other code waits for. As the first
/// process of a container, and as the reaper of the command's orphans, this process has children that it has not
/// started.
pub(super) fn reap(but: &[Pid], own: Pid) {
    let any = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    while let Ok(Some(_)) = waitid(rustix::process::WaitId::All, any) {
        let mut dead = Tree::snapshot().dead(own);
        dead.retain(|pid| !but.contains(pid));
        if dead.is_empty() {
            return;
        }
        for pid in dead {
            let _ = waitpid(Some(pid), WaitOptions::NOHANG);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pid(number: i32) -> Pid {
        Pid::from_raw(number).unwrap()
    }

    fn process(number: i32, parent: i32, state: &str) -> Process {
        let stat =
            format!("{number} (a) b (x)) {state} {parent} 5 3 0 -1 4194304 0 0 0 0 0 0 0 0 20 0 1 0 77{number} 0");
        Process::read(pid(number), &stat).unwrap()
    }

    #[test]
    fn a_process_is_read_whatever_its_name_is() {
        let read = process(12, 7, "S");
        assert_eq!((read.parent, read.group, read.session, read.is_dead, read.started), (7, 5, 3, false, 7712));
        assert!(process(12, 7, "Z").is_dead);
        assert_eq!(Process::read(pid(1), "1 (x) S"), None);
    }

    #[test]
    fn what_came_of_a_process_is_found_but_for_what_is_spared() {
        let tree = Tree(vec![
            process(2, 1, "S"),
            process(3, 2, "Z"),
            process(4, 3, "S"),
            process(5, 2, "S"),
            process(6, 5, "S"),
        ]);
        let below = |spared: i32| -> Vec<i32> {
            let found = tree.below(pid(2), |each| each.pid.as_raw_nonzero().get() == spared);
            let mut found: Vec<_> = found.iter().map(|each| each.pid.as_raw_nonzero().get()).collect();
            found.sort_unstable();
            found
        };
        assert_eq!((below(0), below(5)), (vec![4, 5, 6], vec![4]));
        assert_eq!(tree.dead(pid(2)), [pid(3)]);
    }
}

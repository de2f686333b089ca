//! The processes of a command under `lock`: none of them outlives the lease, whatever signals are ignored, blocked or
//! unknown.

use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use super::{
    super::support::{
        gate::acquire,
        process::stdout,
        run::{Ends, Lines, end_of},
        until,
    },
    Bench, Lock, is_alive,
};

/// A terminal, made by Python: it types a line, then Ctrl-C, and reports the output and how the program ended.
const TERMINAL: &str = r#"
import os, pty, sys
pid, terminal = pty.fork()
if pid == 0:
    os.execv(sys.argv[1], sys.argv[1:])
shown = b""
def until(word):
    global shown
    while word not in shown:
        try:
            read = os.read(terminal, 1024)
        except OSError:
            break
        if not read:
            break
        shown += read
until(b"name?")
os.write(terminal, b"someone\n")
until(b"ready")
os.write(terminal, b"\x03")
until(b"no such word")
print(shown.decode(), os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"#;

#[test]
fn a_command_on_a_terminal_can_be_typed_to_and_interrupted() {
    let bench = Bench::new();
    let script = "echo name?; read name; echo hello $name; trap 'echo interrupted; exit 9' INT; echo ready; while :; do sleep 0.05; done";
    let command = bench.command(&[], script);
    let mut python = Command::new("python3");
    python.args(["-c", TERMINAL]).arg(command.get_program()).args(command.get_args());
    let said = stdout(&python.ends());
    assert!(said.contains("hello someone"), "{said}");
    assert_eq!(said.matches("interrupted").count(), 1, "{said}");
    assert!(said.trim_end().ends_with(" 9"), "{said}");
    assert_eq!(bench.state(), "released");
}

/// A process that ignores all signals that can be ignored, and prints its process id.
const STUBBORN: &str = "trap '' HUP INT TERM; echo stubborn $$; while :; do sleep 0.05; done";

/// A terminal that prints its output and how the program ended. It stays until its own input ends.
const SHOWN: &str = r#"
import os, pty, sys, threading
pid, terminal = pty.fork()
if pid == 0:
    os.execv(sys.argv[1], sys.argv[1:])
def show():
    try:
        while read := os.read(terminal, 1024):
            os.write(1, read)
    except OSError:
        pass
threading.Thread(target=show, daemon=True).start()
code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
os.write(1, b"\nended %d\n" % code)
sys.stdin.read()
"#;

#[test]
fn on_a_terminal_too_nothing_of_a_command_outlives_its_lease() {
    let bench = Bench::new();
    // A child, a process that has lost its parent, and a process with its own group.
    let script = format!("sh -c \"$0\" & (sh -c \"$0\" &); timeout 1000 sh -c \"$0\" & wait; {STUBBORN}");
    let mut command = bench.command(&["--grace", "200"], &script);
    command.arg(STUBBORN);
    let mut python = Command::new("python3");
    python.args(["-c", SHOWN]).arg(command.get_program()).args(command.get_args());
    let mut python = python.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let lines = Lines::of("lock on a terminal", python.stdout.take().unwrap());
    let stubborn = || {
        let line = lines.find("a process that is stubborn", |line| line.starts_with("stubborn "));
        line.trim().trim_start_matches("stubborn ").to_owned()
    };
    let pids = [stubborn(), stubborn(), stubborn()];
    bench.revoke();
    let ended = lines.find("its end", |line| line.starts_with("ended"));
    let left: Vec<_> = pids.iter().filter(|pid| is_alive(pid)).collect();
    for pid in &left {
        let _ = kill_process(Pid::from_raw(pid.parse().unwrap()).unwrap(), Signal::KILL);
    }
    drop(python.stdin.take());
    end_of("the terminal", &mut python);
    assert_eq!(left, Vec::<&String>::new(), "these outlive the lease");
    assert_eq!(ended.trim_end(), "ended 76");
}

#[test]
fn what_has_left_the_commands_group_is_stopped_with_it() {
    let bench = Bench::new();
    let script = format!("timeout 1000 sh -c \"$0\" 2>/dev/null & wait; {STUBBORN}");
    let mut command = bench.command(&["--grace", "200"], &script);
    command.arg(STUBBORN);
    let mut lock = Lock::start(command);
    let pid = lock.line().strip_prefix("stubborn ").unwrap().to_owned();
    bench.revoke();
    assert_eq!(lock.end().0, Some(76));
    let outlives = is_alive(&pid);
    if outlives {
        let _ = kill_process(Pid::from_raw(pid.parse().unwrap()).unwrap(), Signal::KILL);
    }
    assert!(!outlives, "{pid} is in a group of its own, and outlives the lease");
}

/// A shell that becomes `lock` by exec leaves its own children to it.
#[test]
fn what_was_there_before_the_command_is_left_alone() {
    let bench = Bench::new();
    let command = bench.command(&[], "sleep 0.01 & echo $$");
    let mut shell = Command::new("sh");
    shell.args(["-c", "sleep 1000 >/dev/null & echo $!; exec \"$@\"", "sh"]).arg(command.get_program());
    let mut lock = Lock::start({
        shell.args(command.get_args()).stdin(Stdio::null());
        shell
    });
    let (before, _command) = (lock.line(), lock.line());
    assert!(end_of("lock", &mut lock.child).success());
    let lives = is_alive(&before);
    let _ = kill_process(Pid::from_raw(before.parse().unwrap()).unwrap(), Signal::KILL);
    assert!(lives, "it was killed, and was not the command's");
}

/// `lock` as the first process of a container, which gets every process that has lost its parent.
const FIRST: &str =
    "import ctypes, os, sys\nctypes.CDLL(None).prctl(36, 1, 0, 0, 0)\nos.execv(sys.argv[1], sys.argv[1:])";

#[test]
fn processes_that_lost_their_parent_are_waited_for_while_the_command_runs() {
    let bench = Bench::new();
    // Ten processes without a parent end at once; then the script counts those that were not waited for.
    let script = "for n in 1 2 3 4 5 6 7 8 9 10; do (sh -c 'echo $$ >> ended' &); done; \
        while [ $(wc -l < ended) -lt 10 ]; do sleep 0.01; done; \
        for n in $(seq 100); do left=0; \
        for pid in $(cat ended); do if [ -e /proc/$pid ]; then left=$((left + 1)); fi; done; \
        if [ $left = 0 ]; then break; fi; sleep 0.05; done; echo left $left";
    let command = bench.command(&[], &script.replace("< ended", "< ended 2>/dev/null || echo 0"));
    let mut first = Command::new("python3");
    first.args(["-c", FIRST]).arg(command.get_program()).args(command.get_args());
    let ran = first.current_dir(bench.site.folder.path()).stdin(Stdio::null()).ends();
    assert_eq!(stdout(&ran), "left 0\n", "{ran:?}");
}

#[test]
fn children_are_waited_for_also_where_their_end_is_ignored_from_the_start() {
    let bench = Bench::new();
    let usual = bench.command(&[], "(exit 3); echo $?; exit 7");
    let mut command = Command::new("/usr/bin/env");
    command.args(["--default-signal=HUP,INT,QUIT,TERM", "--ignore-signal=CHLD"]).args(usual.get_args().skip(1));
    let ran = command.current_dir(bench.site.folder.path()).stdin(Stdio::null()).ends();
    assert_eq!((ran.status.code(), stdout(&ran).as_str()), (Some(7), "3\n"), "{ran:?}");
    assert_eq!(bench.state(), "released");
}

#[test]
fn a_signal_that_is_blocked_from_the_start_is_noticed_all_the_same() {
    let bench = Bench::new();
    let blocking = |options: &[&str], script: &str| {
        let usual = bench.command(options, script);
        let mut command = Command::new("/usr/bin/env");
        command.args(["--default-signal=HUP,INT,QUIT,TERM", "--block-signal=TERM,CHLD"]);
        command.args(usual.get_args().skip(1)).current_dir(bench.site.folder.path()).stdin(Stdio::null());
        Lock::start(command)
    };
    // The command inherits the blocked signal; `lock` notices its end, and a lost lease ends it.
    assert_eq!(blocking(&[], "exit 5").end().0, Some(5));
    let mut lock = blocking(&["--grace", "100"], "echo up; while :; do sleep 0.05; done");
    assert_eq!(lock.line(), "up");
    bench.revoke();
    assert_eq!(lock.end().0, Some(76));
    acquire(&mut bench.gate.api(), "users", "first", 60_000);
    let lock = blocking(&[], "touch ran");
    until("a waiter", || {
        String::from_utf8(bench.gate.ops().get("/metrics").body).unwrap().contains("fencegate_lease_waiters 1\n")
    });
    lock.signal(Signal::TERM);
    assert_eq!(lock.end().0, Some(128 + 15));
    assert!(!bench.path("ran").exists());
}

/// The command has inherited that TERM is blocked, so it never gets the TERM that `lock` passes on. (A shell may clear
/// the mask when it waits for a child, so this command is not a shell.)
#[test]
fn a_signal_that_is_blocked_from_the_start_ends_a_command_that_runs() {
    let bench = Bench::new();
    let blocking = |grace: &str, script: &str| {
        let usual = bench.command(&["--grace", grace], script);
        let mut command = Command::new("/usr/bin/env");
        command.args(["--default-signal=HUP,INT,QUIT,TERM", "--block-signal=TERM"]);
        command.args(usual.get_args().skip(1)).current_dir(bench.site.folder.path()).stdin(Stdio::null());
        Lock::start(command)
    };
    let mut lock = blocking("300", "echo $$; exec sleep 1000");
    let pid = lock.line();
    lock.signal(Signal::TERM);
    let (code, said) = lock.end();
    assert_eq!(code, Some(128 + 9), "{said}");
    assert!(said.contains("SIGTERM, which was blocked when fencegate started"), "{said}");
    assert!(!is_alive(&pid));
    assert_eq!(bench.state(), "released");
    // A command that waits for the signal itself has its own time to end, and its own code.
    let waits = "import signal; print('up', flush=True); signal.sigwait([signal.SIGTERM]); raise SystemExit(6)";
    let mut lock = blocking("60000", &format!("exec python3 -c \"{waits}\""));
    assert_eq!(lock.line(), "up");
    lock.signal(Signal::TERM);
    assert_eq!(lock.end(), (Some(6), String::new()));
    assert_eq!(bench.state(), "released");
}

#[test]
fn the_guard_survives_every_signal_that_the_command_sends_to_its_group() {
    let bench = Bench::new();
    let script = "for each in ALRM VTALRM PROF PIPE XCPU TRAP SYS SEGV FPE; do trap '' $each; kill -$each 0; done; \
        echo $$; while :; do sleep 0.05; done";
    let mut lock = bench.start(&[], script);
    let pid = lock.line();
    lock.signal(Signal::KILL);
    lock.child.wait().unwrap();
    until("the guard has killed the command", || !is_alive(&pid));
}

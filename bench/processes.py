"""Processes: started on a core, measured, and always stopped.

Knows nothing of what it starts. Everything that the benchmark starts goes through here.
"""
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

# Debian keeps nginx and haproxy where only root's PATH looks.
PATH = os.environ.get("PATH", "") + ":/usr/local/sbin:/usr/sbin:/sbin"

READY_S = 30
STOP_S = 5


class Failed(Exception):
    """The benchmark cannot go on; the text says why."""


def program(name):
    found = shutil.which(name, path=PATH)
    if found is None:
        raise Failed(f"missing: {name}; run: scripts/setup bench")
    return found


def environment():
    """This process's environment, without what would change a peer's settings."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("FENCEGATE")}
    return kept | {"PATH": PATH}


def pinned(core, argv):
    return [program("taskset"), "-c", str(core), program(str(argv[0])), *map(str, argv[1:])]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def run_to_end(core, argv, limit_s):
    """Runs a command on a core and returns what it printed. It is killed past its time, or when we are stopped."""
    try:
        done = subprocess.run(
            pinned(core, argv), env=environment(), timeout=limit_s, capture_output=True, text=True
        )
    except subprocess.TimeoutExpired:
        raise Failed(f"{Path(argv[0]).name} took longer than {limit_s} s") from None
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip()[-2000:]
        raise Failed(f"{Path(argv[0]).name} ended with {done.returncode}: {said}")
    return done.stdout


class Processes:
    """What is running. Leaving the `with` block stops it all."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.running = {}
        self.made = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        # A second Ctrl-C must not leave half of them behind.
        for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM):
            signal.signal(each, signal.SIG_IGN)
        self.stop_all()

    def start(self, name, core, argv):
        """Starts a server; what it prints goes to NAME.out and NAME.log in the folder."""
        with open(self.folder / f"{name}.out", "ab") as out, open(self.folder / f"{name}.log", "ab") as log:
            self.running[name] = subprocess.Popen(
                pinned(core, argv), env=environment(), stdin=subprocess.DEVNULL, stdout=out, stderr=log,
                start_new_session=True,  # a group of its own, so that its workers can be stopped with it
            )

    def fresh_folder(self, name, within=None):
        """A path where nothing is; in another place, for links and more room, it is the caller's to remove."""
        path = Path(within or self.folder) / f"{name}.{os.getpid()}.{len(self.made)}"
        self.made.append(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def log(self, name):
        path = self.folder / f"{name}.log"
        return path.read_text(errors="replace")[-2000:].strip() if path.exists() else ""

    def must_run(self, name):
        status = self.running[name].poll()
        if status is not None:
            raise Failed(f"{name} ended with {status}: {self.log(name)}")

    def wait_until(self, name, ready):
        """Waits until `ready()` returns something, and returns it."""
        deadline = time.monotonic() + READY_S
        while time.monotonic() < deadline:
            self.must_run(name)
            if found := ready():
                return found
            time.sleep(0.02)
        raise Failed(f"{name} was not ready after {READY_S} s: {self.log(name)}")

    def wait_for_port(self, name, port):
        self.wait_until(name, lambda: answers(port))

    def cpu_ns(self, name):
        """CPU time that a process and its workers have used, by process id."""
        self.must_run(name)
        return {pid: process_cpu_ns(pid) for pid in family(self.running[name].pid)}

    def all_cpu_ns(self):
        """CPU time that everything here has used."""
        known = parents()
        return sum(process_cpu_ns(pid) for each in self.running.values() for pid in family(each.pid, known))

    def rss_kib(self, name):
        """Memory that a process and its workers have resident."""
        return sum(process_rss_kib(pid) for pid in family(self.running[name].pid))

    def stop(self, name):
        """Stops one by SIGTERM, and returns the status that it ended with."""
        process = self.running.pop(name)
        process.terminate()
        try:
            return process.wait(READY_S)
        except subprocess.TimeoutExpired:
            raise Failed(f"{name} did not stop within {READY_S} s: {self.log(name)}") from None
        finally:
            kill_group(process)

    def stop_all(self):
        for process in self.running.values():
            process.terminate()
        deadline = time.monotonic() + STOP_S
        for process in self.running.values():
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                pass
            kill_group(process)
        self.running.clear()


def kill_group(process):
    """Ends what is left of a process and its workers; the group's number is the process's."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def answers(port):
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
        return True
    except OSError:
        return False


def parents():
    """Every process's parent."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                # The name before it is in brackets and may hold anything.
                found[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                pass  # it ended meanwhile
    return found


def family(pid, known=None):
    """A process and all that descend from it, by what is known of every process's parent."""
    children = {}
    for child, parent in (known or parents()).items():
        children.setdefault(parent, []).append(child)
    found, look = [], [pid]
    while look:
        one = look.pop()
        found.append(one)
        look += children.get(one, [])
    return sorted(found)


def machine_cpu_s():
    """Time that all processes have run, and that was taken from this machine by its host."""
    user, nice, system, _, _, _, _, stolen, *_ = map(int, Path("/proc/stat").read_text().split("\n")[0].split()[1:])
    return (user + nice + system + stolen) / os.sysconf("SC_CLK_TCK")


def process_rss_kib(pid):
    found = re.search(r"^VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return int(found[1]) if found else 0


def process_cpu_ns(pid):
    """User and system time of all threads of a process, ended ones too, in nanoseconds.

    This is the clock that clock_getcpuclockid(3) names: /proc/PID/stat counts in hundredths of a
    second, and /proc/PID/task/*/schedstat forgets threads that have ended.
    """
    return time.clock_gettime_ns((~pid << 3) | 2)

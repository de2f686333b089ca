"""Facts about this machine, the programs and the commit, to compare figures with others."""
import datetime
import os
import platform
import re
import subprocess
from pathlib import Path

from processes import Failed, environment, program

ROOT = Path(__file__).resolve().parent.parent


def facts(peers):
    tools = {"h2load": ["h2load", "--version"], "Python": ["python3", "--version"]}
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": git("rev-parse", "HEAD"),
        # What a run writes itself is no change of what was measured.
        "dirty": bool(git("status", "--porcelain", "--", ".", ":!bench/RESULTS.md", ":!bench/AUTHORITY.md",
                          ":!bench/FAILOVER.md", ":!bench/KEYED.md", ":!bench/ACCESS.md", ":!bench/results")),
        "processor": found_in("/proc/cpuinfo", r"^model name\s*: (.*)$"),
        "cores": len(os.sched_getaffinity(0)),
        "memory_mib": int(found_in("/proc/meminfo", r"^MemTotal:\s*(\d+) kB$")) // 1024,
        "kernel": platform.release(),
        "system": found_in("/etc/os-release", r'^PRETTY_NAME="?(.*?)"?$'),
        "programs": {peer.name: version(peer.version) for peer in peers if len(peer.version) > 1}
        | {name: version(command) for name, command in tools.items()},
    }


def version(command):
    """The first line that a program prints about its version, without its home page."""
    done = subprocess.run([program(str(command[0])), *command[1:]], env=environment(), capture_output=True, text=True,
                          timeout=10)
    said = re.sub(r" - https?://\S+", "", (done.stdout + done.stderr).strip().partition("\n")[0])
    return said.replace(f"{command[0]} ", "").strip() if "/" in str(command[0]) else said


def git(*arguments):
    try:
        done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, timeout=10)
    except FileNotFoundError:
        return "unknown"
    if done.returncode != 0:
        return "unknown"
    return done.stdout.strip()


def found_in(path, pattern):
    try:
        found = re.search(pattern, Path(path).read_text(), re.MULTILINE)
    except OSError:
        found = None
    return found[1].strip() if found else "0"


def cores():
    """One for the proxy under test, another for the store and the load."""
    usable = sorted(os.sched_getaffinity(0))
    if len(usable) < 2:
        raise Failed("needs two cores: with one, the load would take the proxy's time")
    return usable[-1], usable[0]

"""Processes that a run starts. All of them end with it: helpers when their standard input does, the gate by
the kernel's word."""
import ctypes
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

from logs import now

HERE = Path(__file__).parent
PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None, use_errno=True)


class Failed(Exception):
    """The run cannot go on; the text says why. It is no word on the gate."""


def die_with_parent():
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def environment(**more):
    """This process's environment, without what would change the gate's settings."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("FENCEGATE")}
    return kept | {key: str(value) for key, value in more.items()}


def first_line(process, wait_s):
    """The first line that a process prints; what there is of it, if it ends before or takes too long."""
    line, deadline = b"", now() + wait_s
    while not line.endswith(b"\n") and now() < deadline:
        if select.select([process.stdout], [], [], 0.1)[0]:
            piece = os.read(process.stdout.fileno(), 4096)
            if not piece:
                break
            line += piece
    return line.decode()


class Helper:
    """One of our own programs, which prints its port."""

    def __init__(self, name, *arguments, errors):
        self.process = subprocess.Popen(
            [sys.executable, "-B", str(HERE / name), *map(str, arguments)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=open(errors, "ab"), env=environment(),
        )
        line = first_line(self.process, 20)
        if not line.strip():
            raise Failed(f"{name} did not start: {Path(errors).read_text()[-2000:]}")
        self.port = int(line)

    def stop(self):
        self.process.stdin.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

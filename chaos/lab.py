"""All parts of a run in one folder: store, log of grants, gate, and the oracle that reads their logs."""
import json
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from client import Client
from gate import Gate
from grants import Reporter
from locks import Locks, Redis
from logs import Log, Tail, now
from oracle import Oracle
from processes import HERE, Failed, Helper
from signers import Signer

LOGS = ["store", "calls", "grants", "driver"]
# So many lines of the history before and after the moment that shows a violation.
AROUND = 14
# Events that move a fence.
MOVES = ("granted", "revoked", "certified", "acknowledged", "issued", "advanced", "confirmed")

# Small, so that everything is fast; the store keeps to its own bound however slow it is.
BOUNDS = {"response_timeout_ms": 700, "delivery_bound_ms": 100, "apply_bound_ms": 250, "workers": 2}


class Broken(Exception):
    """A promise was broken."""


def compile_shim(folder):
    made = Path(folder) / "shim.so"
    command = ["gcc", "-shared", "-fPIC", "-O1", "-o", made, HERE / "shim.c", "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise Failed(f"the shim does not compile: {done.stderr}")
    return made


class Lab:
    """Leaving the `with` block stops all. Its folder stays unless `remove` is called."""

    def __init__(self, binary, holders, bounds=None):
        """`holders`: those who can ask for migrations."""
        self.folder = Path(tempfile.mkdtemp(prefix="fencegate-chaos-"))
        self.bounds = BOUNDS | (bounds or {})
        errors = self.folder / "errors"
        log = {name: self.folder / f"{name}.jsonl" for name in LOGS}
        self.store = Helper("store.py", log["store"], self.bounds["apply_bound_ms"], errors=errors)
        self.grants = Helper("grants.py", log["grants"], errors=errors)
        self.gate = Gate(self.folder, binary, compile_shim(self.folder), self.store.port, self.bounds, holders)
        self.calls = Log(log["calls"])
        self.driver = Log(log["driver"])
        self.reporter = Reporter(self.grants.port)
        self.tails = {name: Tail(path) for name, path in log.items()}
        self.oracle = Oracle()
        self.redis = None
        self.driver.note(now(), "moved", begun=0, moving="ra")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.gate.process is not None and self.gate.process.poll() is None:
            self.gate.process.kill()
            self.gate.process.wait()
        for helper in (self.store, self.grants):
            helper.stop()
        if self.redis is not None:
            self.redis.stop()
        Signer.stop_all(self.folder)

    def client(self, name):
        return Client(name, self.folder, self.calls, self.reporter)

    def locks(self):
        """A connection to the lock service, which is started where it was not needed before."""
        if self.redis is None:
            self.redis = Redis(self.folder)
        return Locks(self.folder)

    def start(self, **extra):
        """Starts a gate that must start."""
        refused = self.gate.start(**extra)
        if refused is not None:
            raise Failed(f"the gate does not start: {refused[-3000:]}")
        self.started()

    def started(self):
        """A gate is ready."""
        self.driver.note(self.gate.ready_at, "started")
        if self.gate.has_lost():
            self.driver.note(self.gate.ready_at, "incarnation")

    def judge(self):
        """Reads what is new in the logs. Raises where a promise was broken."""
        new = {name: self.tails[name].new() for name in LOGS}
        self.oracle.feed(**new)
        if self.oracle.violations:
            raise Broken(self.describe(self.oracle.violations[0]))
        if "panicked" in self.gate.said():
            raise Failed(f"the gate has panicked: {self.gate.said()[-3000:]}")

    def describe(self, violation):
        """The violation, and the history that shows it."""
        objects, lines = {violation.object, violation.also}, []
        for name in LOGS:
            events = Tail(self.folder / f"{name}.jsonl").new()
            calls = {event.get("id") for event in events if event.get("object", "") in objects} - {None}
            lines += [
                (event["t"], name, event) for event in events
                if name == "driver" or event.get("object", "") in objects or event.get("id") in calls
            ]
        lines.sort(key=lambda line: line[0])
        at = next((n for n, line in enumerate(lines) if line[0] >= violation.t), len(lines))
        words = set(re.findall(r"[\w.-]+", violation.what))
        text = [f"VIOLATION {violation.promise}: {violation.what}", "the history that shows it, the latest at *:"]
        for n, (t, name, event) in enumerate(lines):
            # What is close by, and whatever the violation speaks of.
            is_named = words & {event.get("write"), event.get("id")} or \
                event["event"] in MOVES and words & {str(event.get("seq")), str(event.get("fence"))}
            if abs(n - at) <= AROUND or is_named:
                hidden = ("t", "event") if violation.also else ("t", "event", "object")
                rest = " ".join(f"{key}={json.dumps(value)}" for key, value in event.items() if key not in hidden)
                text.append(f"{'*' if t == violation.t else ' '} {t:14.6f}  {name:6} {event['event']:9} {rest}")
        return "\n".join(text)

    def keep_disk(self):
        """Copies the gate's data beside the logs: its disk goes away with us."""
        shutil.copytree(self.gate.disk.data, self.folder / "data")

    def remove(self):
        """All went well: nothing is kept."""
        subprocess.run(["umount", self.gate.disk.folder], capture_output=True)
        shutil.rmtree(self.folder, ignore_errors=True)

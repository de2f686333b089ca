"""A gate, its store and the valid writer, as processes in one folder. Leaving the `with` block stops them all."""
import json
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "chaos"))
from control import Control  # noqa: E402
from lab import compile_shim  # noqa: E402
from logs import Tail, now  # noqa: E402
from processes import Failed, Helper, die_with_parent, environment, first_line  # noqa: E402

READY_S, STOP_S = 30, 30
STALL_MS = 1500
WORKERS, STORE_CONNECTIONS, STORE_PLACES = 2, 32, 64
# Requests that the gate has on their way to the store or waiting for it, at most.
CAPACITY = WORKERS * (STORE_CONNECTIONS + STORE_PLACES)
APPLY_BOUND_MS = 500
# How long slow connections may stand still: short, so that the gate closes some of them in each phase.
PAUSE_MS = 5000

CONFIG = f"""\
[gate]
listen = "127.0.0.1:0"
workers = {WORKERS}
connections_max = {{room}}
peer_connections_max = {{of_peer}}
head_timeout_ms = {PAUSE_MS}
body_timeout_ms = {PAUSE_MS}
idle_timeout_ms = {2 * PAUSE_MS}
[store]
url = "http://127.0.0.1:{{store}}"
connect_timeout_ms = 500
response_timeout_ms = 2000
delivery_bound_ms = 200
apply_bound_ms = {APPLY_BOUND_MS}
idle_timeout_ms = 1000
connections_max = {STORE_CONNECTIONS}
queue_max = {STORE_PLACES}
[api]
listen = "127.0.0.1:0"
[ops]
listen = "127.0.0.1:0"
[table]
path = {{table}}
stall_timeout_ms = {STALL_MS}
[lease]
takeover_after_ms = 100
[log]
format = "json"
[[route]]
name = "plain"
match = "/o/{{{{object}}}}/{{{{rest...}}}}"
object = "{{{{object}}}}"
[[route]]
name = "journaled"
match = "/j/{{{{object}}}}/{{{{rest...}}}}"
object = "j-{{{{object}}}}"
journal = true
"""


class Rig:
    def __init__(self, binary, room, fault=None):
        """`room`: connections that the gate takes. `fault`: a test fault of a build that has them."""
        self.room, self.fault = room, {"FENCEGATE_TEST_FAULT": fault} if fault else {}
        self.folder = Path(tempfile.mkdtemp(prefix="fencegate-soak-"))
        self.binary, self.log = binary, self.folder / "gate.log"
        self.control = Control(self.folder / "control")
        self.process = self.valid = self.store = None

    def __enter__(self):
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self.control.hold_sync = 0
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for helper in (self.valid, self.store):
            if helper is not None:
                helper.stop()

    def _start(self):
        errors = self.folder / "errors"
        self.store = Helper(HERE / "flapping.py", self.folder / "store.jsonl", APPLY_BOUND_MS, errors=errors)
        config = self.folder / "fencegate.toml"
        # An address may have nearly all, so that it is the room that runs out, and not the share of one address.
        config.write_text(CONFIG.format(store=self.store.port, table=json.dumps(str(self.folder / "table")),
                                        room=self.room, of_peer=self.room - 20))
        init = [self.binary, "table", "init", "--config", config]
        made = subprocess.run(init, env=environment(), capture_output=True)
        if made.returncode != 0:
            raise Failed(f"no table: {made.stderr.decode()}")
        preloaded = environment(LD_PRELOAD=compile_shim(self.folder), CHAOS_CONTROL=self.folder / "control", **self.fault)
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                [self.binary, "serve", "--config", config], env=preloaded, stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=log, preexec_fn=die_with_parent,
            )
        line = first_line(self.process, READY_S)
        if not line.startswith("ready "):
            raise Failed(f"the gate does not start: {self.log.read_text()[-2000:]}")
        self.ports = {name: int(address.rpartition(":")[2])
                      for name, address in (part.split("=") for part in line.split()[1:])}
        (self.folder / "ports.json").write_text(json.dumps(self.ports))

    def start_valid(self, lease, per_second):
        (self.folder / "lease.json").write_text(json.dumps(lease))
        self.valid = Helper(HERE / "valid.py", self.folder, per_second, errors=self.folder / "errors")
        self.valid_tail, self.valid_calls = Tail(self.folder / "valid.jsonl"), []

    def valid_since(self, t):
        """The valid writer's calls that were answered at this time or later. So none is missed that began in one phase
        and ended in the next."""
        self.valid_calls += self.valid_tail.new()
        at = len(self.valid_calls)
        while at > 0 and self.valid_calls[at - 1]["t"] + self.valid_calls[at - 1]["ms"] / 1000 >= t:
            at -= 1
        return self.valid_calls[at:]

    def stop_valid(self):
        """Ends the valid writer; returns all its calls."""
        helper, self.valid = self.valid, None
        helper.stop()
        return self.valid_since(0)

    def mode(self, word):
        """Sets the store's mode; returns once it holds."""
        process = self.store.process
        process.stdin.write(word.encode() + b"\n")
        process.stdin.flush()
        if first_line(process, 20).strip() != word:
            raise Failed(f"the store did not become {word}: {(self.folder / 'errors').read_text()[-2000:]}")

    def held(self):
        """What the gate holds now."""
        proc = Path(f"/proc/{self.process.pid}")
        status = dict(line.split(":", 1) for line in (proc / "status").read_text().splitlines())
        return {"t": now(), "rss_kib": int(status["VmRSS"].split()[0]), "files": len(list((proc / "fd").iterdir()))}

    def stop(self):
        """SIGTERM; returns the exit status."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            raise Failed(f"the gate did not stop within {STOP_S} s: {self.log.read_text()[-2000:]}") from None

    def remove(self):
        shutil.rmtree(self.folder, ignore_errors=True)

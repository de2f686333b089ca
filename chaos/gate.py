"""The real gate, as a process: started, signalled, killed, and asked by its ops port."""
import json
import random
import signal
import socket
import subprocess
import time
from pathlib import Path

import signers
from control import Control
from disk import Disk, Synced
from http1 import Conn
from logs import now
from processes import Failed, die_with_parent, environment, first_line

READY_S = 20
LOST = "THE END OF THE FENCE TABLE'S LOG WAS LOST"

CONFIG = """\
[gate]
listen = "127.0.0.1:{gate_port}"
workers = {workers}
hold_bytes = 2048
body_timeout_ms = 3000
[store]
url = "http://127.0.0.1:{store}"
connect_timeout_ms = 500
response_timeout_ms = {response_timeout_ms}
delivery_bound_ms = {delivery_bound_ms}
apply_bound_ms = {apply_bound_ms}
[api]
listen = "127.0.0.1:{api_port}"
[ops]
listen = "127.0.0.1:0"
[table]
path = "{data}"
[lease]
ttl_ms_min = 50
takeover_after_ms = 20
[shutdown]
deadline_ms = 5000
[log]
format = "json"
[[route]]
name = "plain"
match = "/o/{{object}}/{{rest...}}"
object = "{{object}}"
[[route]]
name = "moving"
match = "/s/{{object}}/{{rest...}}"
object = "{moving}-{{object}}"
drain_wait_ms = 60
[[route]]
name = "journaled"
match = "/j/{{object}}/{{rest...}}"
object = "j-{{object}}"
journal = true
[[route]]
name = "locked"
match = "/x/{{object}}/{{rest...}}"
object = "x-{{object}}"
lease_source = "external"
"""


def wait_until(what, is_so, wait_s=20, pause_s=0.002):
    """Waits for something that can only be looked at."""
    deadline = now() + wait_s
    while not (found := is_so()):
        if now() > deadline:
            raise Failed(f"in vain: {what}")
        time.sleep(pause_s)
    return found


def replace(path, text):
    """Writes a file that others read, all at once."""
    aside = path.with_suffix(".new")
    aside.write_text(text)
    aside.rename(path)


# Outside of those that the system chooses from.
PORTS = range(5_000, 15_000)


def free_port():
    """A port that was free a moment ago: agents find each gate at the same one."""
    while True:
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                sock.bind(("127.0.0.1", random.SystemRandom().choice(PORTS)))
            except OSError:
                continue
            return sock.getsockname()[1]


class Gate:
    """One gate after another on the same data."""

    def __init__(self, folder, binary, shim, store_port, bounds, holders):
        self.folder = Path(folder)
        self.binary, self.shim, self.store_port, self.bounds = binary, shim, store_port, bounds
        self.config = self.folder / "fencegate.toml"
        self.log = self.folder / "gate.log"
        self.where = self.folder / "gate.json"
        self.control = Control(self.folder / "control")
        self.disk = Disk(self.folder / "disk")
        self.synced = Synced(self.disk, self.folder / "synced")
        self.process = None
        self.ports = {"gate_port": free_port(), "api_port": free_port()}
        self.log.touch()
        self.log_from = 0
        self.authority = signers.make(self.folder, binary, holders)
        self.configure("ra")
        init = [binary, "table", "init", "--config", self.config]
        made = subprocess.run(init, env=environment(), capture_output=True)
        if made.returncode != 0:
            raise Failed(f"no table: {made.stderr.decode()}")

    def configure(self, moving):
        """`moving`: which objects the paths under /s/ belong to."""
        self.moving = moving
        text = CONFIG.format(store=self.store_port, data=self.disk.data, moving=moving, **self.ports, **self.bounds)
        replace(self.config, text + self.authority)

    def start(self, **extra):
        """Starts a gate. Returns None once it is ready, or what it says where it refuses to start."""
        self.disk.make_room()
        self.synced.begin()
        self.control.hold_sync = self.control.fail_syncs = 0
        self.log_from = self.log.stat().st_size
        env = environment(
            LD_PRELOAD=self.shim, CHAOS_CONTROL=self.folder / "control", CHAOS_SYNCED=self.synced.path, **extra
        )
        with open(self.log, "ab") as errors:
            self.process = subprocess.Popen(
                [self.binary, "serve", "--config", self.config], env=env, stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=errors, preexec_fn=die_with_parent,
            )
        line = first_line(self.process, READY_S)
        if not line.startswith("ready "):
            self.gone()
            return self.said()
        ports = dict(part.split("=") for part in line.split()[1:])
        self.addresses = {name: ("127.0.0.1", int(address.rpartition(":")[2])) for name, address in ports.items()}
        self.ready_at = now()
        self.publish()
        return None

    def publish(self):
        """Writes down the gate's addresses for the writers."""
        replace(self.where, json.dumps(self.addresses | {"moving": self.moving}))

    def said(self):
        """What this start has logged."""
        with open(self.log, "rb") as file:
            file.seek(self.log_from)
            return file.read().decode(errors="replace")

    def has_lost(self):
        """Whether this start has found part of the table's past lost: it then began a new incarnation."""
        return LOST in self.said()

    def signal(self, number):
        self.process.send_signal(number)

    def gone(self, wait_s=20):
        """Waits until it has ended; returns how."""
        try:
            status = self.process.wait(wait_s)
        except subprocess.TimeoutExpired:
            raise Failed(f"the gate did not end: {self.said()[-2000:]}") from None
        self.process.stdout.close()
        return status

    def kill(self):
        """kill -9. Returns when it was sent."""
        t = now()
        self.process.kill()
        self.gone()
        return t

    def stop(self):
        """SIGTERM; returns the exit status."""
        self.signal(signal.SIGTERM)
        return self.gone()

    def metric(self, name):
        """A metric's value, or None."""
        conn = Conn(self.addresses["ops"])
        text = conn.call("GET", "/metrics").body.decode()
        conn.close()
        for line in text.splitlines():
            if line.startswith(name + " "):
                return float(line.rpartition(" ")[2])
        return None

"""Who signs: an issuer, which is the gate itself too, and holders that ask for migrations. The secret keys lie in files
of the run's folder; the program that makes them and signs with them is fencegate's own command line."""
import json
import os
import struct
import subprocess
import threading
import time
from pathlib import Path

from objects import DOMAINS
from processes import Failed, environment

CLUSTER, ISSUER = "chaos", "europe"

SETTINGS = """\
[authority]
cluster_id = "{cluster}"
issuer = "{issuer}"
key_file = "{key}"
"""
PARTY = """\
[[{section}]]
name = "{name}"
public_key = "{public_key}"
proof_of_possession = "{proof_of_possession}"
domains = {domains}
"""


def key_of(folder, name):
    return Path(folder) / "keys" / f"{name}.key"


def make(folder, binary, holders):
    """Makes a key for the issuer and for each holder; returns the gate's settings for them."""
    (Path(folder) / "keys").mkdir()
    (Path(folder) / "keys" / "binary").write_text(str(binary))
    text = SETTINGS.format(cluster=CLUSTER, issuer=ISSUER, key=key_of(folder, ISSUER))
    for section, name in [("issuer", ISSUER)] + [("requester", name) for name in holders]:
        command = [binary, "cert", "keygen", "--out", key_of(folder, name), "--json"]
        made = subprocess.run(command, env=environment(), capture_output=True)
        if made.returncode != 0:
            raise Failed(f"no key for {name}: {made.stderr.decode()}")
        text += PARTY.format(section=section, name=name, domains=json.dumps(DOMAINS), **json.loads(made.stdout))
    return text


def gate_ms(folder):
    """The gate's wall clock: ours, and what the driver has set it ahead by (the first field of control.py)."""
    with open(Path(folder) / "control", "rb") as file:
        offset_ms, = struct.unpack("=q", file.read(8))
    return time.time_ns() // 1_000_000 + offset_ms


class Signer:
    """A process that signs with one key, message by message. It ends with its standard input."""

    all = {}
    lock_of_all = threading.Lock()

    @classmethod
    def of(cls, folder, name):
        """The only one of this process for a key."""
        with cls.lock_of_all:
            return cls.all.setdefault((str(folder), name), cls(folder, name))

    @classmethod
    def stop_all(cls, folder):
        with cls.lock_of_all:
            for key in [key for key in cls.all if key[0] == str(folder)]:
                cls.all.pop(key).stop()

    def __init__(self, folder, name):
        self.folder, self.name = Path(folder), name
        self.lock = threading.Lock()
        self.process = None

    def _start(self):
        binary = (self.folder / "keys" / "binary").read_text()
        with open(self.folder / "errors", "ab") as errors:
            self.process = subprocess.Popen(
                [binary, "cert", "sign", "--key", key_of(self.folder, self.name), "-"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, env=environment(),
            )

    def sign(self, **message):
        """The message with its signature."""
        about = {"type": message.pop("kind"), "cluster_id": CLUSTER, "key_epoch": 1}
        text = json.dumps(about | message).encode() + b"\n"
        with self.lock:
            if self.process is None or self.process.poll() is not None:
                self._start()
            try:
                os.write(self.process.stdin.fileno(), text)
                line = self.process.stdout.readline()
            except OSError as error:
                raise Failed(f"{self.name} cannot sign: {error}") from None
        if not line:
            raise Failed(f"{self.name} does not sign {text.decode()}")
        return json.loads(line)

    def stop(self):
        if self.process is not None:
            self.process.stdin.close()
            self.process.wait(10)
            self.process.stdout.close()

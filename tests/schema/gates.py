"""Real gates for the runs of schemathesis: their settings, their certificates and tokens, their start and stop."""
import ctypes
import os
import re
import shutil
import signal
import ssl
import subprocess
import time
from pathlib import Path

PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None, use_errno=True)
READY = re.compile(r"^ready gate=\S+ api=\S+:(\d+) ops=\S+\n", re.MULTILINE)
READY_S = 30
STOP_S = 30

# One principal may do everything. The other may look at some objects.
FULL, FEW = "everything", "few"

# An acquire waits for a moment at most. The store is never asked: the run sends no write.
CONFIG = """\
[gate]
listen = "127.0.0.1:0"
[store]
url = "http://127.0.0.1:9"
[api]
listen = "127.0.0.1:0"
{api}
[ops]
listen = "127.0.0.1:0"
[table]
path = "{folder}/table"
[lease]
ttl_ms_min = 50
wait_ms_max = 50
[[route]]
name = "plain"
match = "/o/{{object}}/{{rest...}}"
object = "{{object}}"
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

TLS = """\
tls_cert_file = "{folder}/api.crt"
tls_key_file = "{folder}/api.key"
tls_client_ca_file = "{folder}/ca.crt"
"""

ACCESS = """
[access]
loopback = "authenticate"
calls_per_second = 1000000
calls_burst = 1000000
[[identity]]
name = "files"
kind = "tokens"
file = "{folder}/tokens.toml"
[[identity]]
name = "certificates"
kind = "mtls"
[[grant]]
name = "all"
principals = ["{full}"]
operations = ["acquire", "read", "operate", "issue", "advance"]
objects = ["*"]
[[grant]]
name = "few"
principals = ["{few}"]
operations = ["read"]
objects = ["/few/"]
"""


class Failed(Exception):
    """The run cannot go on; the text says why."""


def environment(**more):
    """This process's environment, without what would change the settings of a gate or send calls to a proxy."""
    def is_kept(name):
        return not name.startswith(("FENCEGATE", "SCHEMATHESIS")) and not name.lower().endswith("_proxy")

    return {name: value for name, value in os.environ.items() if is_kept(name)} | {"NO_PROXY": "*"} | more


def run_to_end(command, folder):
    """What a command printed. Fails if it did not end with 0."""
    done = subprocess.run([str(part) for part in command], cwd=folder, env=environment(), capture_output=True,
                          text=True, timeout=60)
    if done.returncode != 0:
        raise Failed(f"{command[0]} ended with {done.returncode}: {done.stderr[-2000:]}")
    return done.stdout


def make_certificates(folder):
    """An authority, and a certificate for this machine's loopback: `ca.crt`, `api.crt`, `api.key`."""
    openssl = shutil.which("openssl")
    if not openssl:
        raise Failed("missing: openssl; run: scripts/setup schema")
    new_key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    run_to_end([openssl, "req", "-x509", *new_key, "-days", "2", "-subj", "/CN=schema test authority",
                "-keyout", "ca.key", "-out", "ca.crt"], folder)
    run_to_end([openssl, "req", *new_key, "-subj", "/CN=localhost", "-keyout", "api.key", "-out", "api.csr"], folder)
    (folder / "api.ext").write_text(
        "subjectAltName = DNS:localhost, IP:127.0.0.1\nbasicConstraints = critical, CA:false\n")
    run_to_end([openssl, "x509", "-req", "-in", "api.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-set_serial", "2",
                "-days", "2", "-extfile", "api.ext", "-out", "api.crt"], folder)


class Gate:
    """One gate. With `access`, its api has TLS and asks every caller for a proof."""

    def __init__(self, binary, folder, *, access):
        self.binary, self.folder, self.access, self.tokens = Path(binary).resolve(), Path(folder), access, {}
        api, rest = "", ""
        if access:
            make_certificates(self.folder)
            for name in (FULL, FEW):
                command = [self.binary, "access", "token", "new", name, "--file", self.folder / "tokens.toml"]
                self.tokens[name] = run_to_end(command, folder).strip()
            api, rest = TLS.format(folder=folder), ACCESS.format(folder=folder, full=FULL, few=FEW)
        self.config = self.folder / "fencegate.toml"
        self.config.write_text(CONFIG.format(folder=folder, api=api) + rest)
        self.out, self.log = self.folder / "gate.out", self.folder / "gate.log"

    def __enter__(self):
        run_to_end([self.binary, "table", "init", "--config", self.config], self.folder)
        with open(self.out, "wb") as out, open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                [self.binary, "serve", "--config", self.config], cwd=self.folder, env=environment(),
                stdin=subprocess.DEVNULL, stdout=out, stderr=log,
                preexec_fn=lambda: LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL))
        deadline = time.monotonic() + READY_S
        while not (found := READY.search(self.out.read_text())):
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.process.kill()
                self.process.wait()
                raise Failed(f"the gate did not start: {self.said()}")
            time.sleep(0.02)
        self.port = int(found[1])
        self.url = f"{'https' if self.access else 'http'}://127.0.0.1:{self.port}"
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def said(self):
        return self.log.read_text(errors="replace")[-2000:]

    def trusts(self):
        """How its callers check its certificate."""
        return ssl.create_default_context(cafile=str(self.folder / "ca.crt")) if self.access else None

    def faults(self):
        """What went wrong in the gate itself. It is stopped for that."""
        found = []
        if self.process.poll() is not None:
            found.append(f"the gate ended with {self.process.returncode}: {self.said()}")
        self.__exit__()
        if not found and self.process.returncode != 0:
            found.append(f"after SIGTERM the gate ended with {self.process.returncode}: {self.said()}")
        text = self.log.read_text(errors="replace")
        found += [f"the gate's log: {line}" for line in text.splitlines() if "panicked" in line]
        return found

"""The proxies that are compared. A further one is a class with `name`, `version` and `start`, in PEERS.

`start` leaves the peer's port in `self.port`. `check` may add what must be true of this peer alone.
"""
import json
import re

import http1
import nginx
from processes import Failed, free_port, run_to_end

# The first segment of the path: what the gate takes for the object without any route.
OBJECT = "bench"


class Peer:
    name = ""
    version = []  # the command that prints it
    token = None  # for the one that hands it out

    def __init__(self, options):
        self.options = options
        self.port = None

    def start(self, processes, store_port, core):
        raise NotImplementedError

    def check(self, store, token):
        """Raises Failed where this peer does not do what it is compared for."""


class Fencegate(Peer):
    """Every write judged: the token's lease is looked up and must be the object's present one."""

    name = "fencegate"
    LEASE_MS = 3_600_000

    CONFIG = """\
[gate]
listen = "127.0.0.1:0"
workers = 1
[store]
url = "http://127.0.0.1:{store_port}"
[api]
listen = "127.0.0.1:0"
[ops]
listen = "127.0.0.1:0"
[table]
path = {table}
"""

    def __init__(self, options):
        super().__init__(options)
        self.binary = options.fencegate
        self.version = [self.binary, "--version"]

    def start(self, processes, store_port, core):
        config = processes.folder / "fencegate.toml"
        table = json.dumps(str(processes.folder / "table"))
        config.write_text(self.CONFIG.format(store_port=store_port, table=table))
        run_to_end(core, [self.binary, "table", "init", "--config", config], 60)
        processes.start(self.name, core, [self.binary, "serve", "--config", config])
        out = processes.folder / f"{self.name}.out"
        ready = r"^ready gate=\S+:(\d+) api=\S+:(\d+) ops=\S+\n"
        found = processes.wait_until(self.name, lambda: re.search(ready, out.read_text(), re.MULTILINE))
        self.port = int(found[1])
        self.token = self.acquire(int(found[2]))

    def acquire(self, api_port):
        wanted = {"object_id": OBJECT, "holder_id": "bench", "ttl_ms": self.LEASE_MS}
        status, lease = http1.post_json(api_port, "/v1/leases", wanted)
        if status != 201:
            raise Failed(f"fencegate granted no lease: {status} {lease}")
        return lease["fence_token"]

    def check(self, store, token):
        """It really gates: without a token nothing reaches the store, and the token stays here."""
        before = store.count()
        status, headers, _ = http1.once(self.port, "PUT", f"/{OBJECT}/echo", body=b"x" * 256)
        code = headers.get("Fence-Error")
        if (status, code) != (428, "WRITE_UNFENCED"):
            raise Failed(f"fencegate answered a write without a token with {status} {code}, not 428 WRITE_UNFENCED")
        if store.count() != before:
            raise Failed("fencegate let a write without a token through to the store")
        status, _, body = http1.once(self.port, "PUT", f"/{OBJECT}/echo", {"Fence-Token": token}, b"x" * 256)
        if status != 200 or not re.fullmatch(rb"PUT 256 seq=\d+ token=\n", body):
            raise Failed(f"fencegate: a write with the token came back as {status} {body!r}")


class Nginx(Peer):
    name = "nginx"
    version = ["nginx", "-v"]

    CONFIG = """\
    upstream store {{
        server 127.0.0.1:{store_port};
        keepalive 256;
        keepalive_requests 1000000000;
        keepalive_timeout 3600s;
    }}
    server {{
        listen 127.0.0.1:{port};
        location / {{
            proxy_pass http://store;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
        }}
    }}
"""

    def start(self, processes, store_port, core):
        self.port = free_port()
        nginx.start(processes, self.name, core, self.port, self.CONFIG.format(store_port=store_port, port=self.port))


class Haproxy(Peer):
    name = "haproxy"
    version = ["haproxy", "-v"]

    CONFIG = """\
global
    nbthread 1
    maxconn 4096
defaults
    mode http
    timeout connect 5s
    timeout client 60s
    timeout server 60s
    http-reuse always
frontend clients
    bind 127.0.0.1:{port}
    default_backend store
backend store
    server store 127.0.0.1:{store_port}
"""

    def start(self, processes, store_port, core):
        self.port = free_port()
        config = processes.folder / "haproxy.cfg"
        config.write_text(self.CONFIG.format(store_port=store_port, port=self.port))
        processes.start(self.name, core, ["haproxy", "-db", "-f", config])
        processes.wait_for_port(self.name, self.port)


# The first is the one that is compared with each of the others.
PEERS = [Fencegate, Nginx, Haproxy]

"""The gate under test: its settings, its start, its lease api, its metrics."""
import json
import re
import time

import http1
from processes import Failed, run_to_end

# The first segment of the path: what the gate takes for the object without any route.
OBJECT = "bench"
LEASE_MS = 3_600_000
BATCH = 128  # lease.batch_max

CONFIG = """\
[gate]
listen = "127.0.0.1:0"
workers = {workers}
idle_timeout_ms = 3600000
{gate}
[store]
url = "http://127.0.0.1:{store_port}"
[api]
listen = "127.0.0.1:0"
{api}
[ops]
listen = "127.0.0.1:0"
[table]
path = {table}
{settings}
"""

READY = re.compile(r"^ready gate=\S+:(\d+) api=\S+:(\d+) ops=\S+:(\d+)\n", re.MULTILINE)


class Gate:
    """One gate process. `gate`, `api` and `settings` are further lines of its file: of [gate], of [api], and from
    [table] on."""

    def __init__(self, processes, binary, name, *, store_port, table=None, workers=1, gate="", api="", settings=""):
        self.processes, self.binary, self.name = processes, binary, name
        self.config = processes.folder / f"{name}.toml"
        self.table = table or processes.folder / f"{name}-table"
        self.config.write_text(CONFIG.format(
            workers=workers, store_port=store_port, table=json.dumps(str(self.table)), gate=gate, api=api,
            settings=settings))
        self.port = self.api_port = self.ops_port = None

    def start(self, core, make_table=True):
        if make_table:
            run_to_end(core, [self.binary, "table", "init", "--config", self.config], 60)
        out = self.processes.folder / f"{self.name}.out"
        out.unlink(missing_ok=True)
        (self.processes.folder / f"{self.name}.log").unlink(missing_ok=True)
        self.processes.start(self.name, core, [self.binary, "serve", "--config", self.config])
        found = self.processes.wait_until(self.name, lambda: READY.search(out.read_text()))
        self.port, self.api_port, self.ops_port = (int(found[each]) for each in (1, 2, 3))
        return self

    def stop(self):
        """In good order, so that the next start has nothing to wait for."""
        status = self.processes.stop(self.name)
        if status != 0:
            raise Failed(f"{self.name} ended with {status}: {self.processes.log(self.name)}")

    def acquire(self, name=OBJECT):
        wanted = {"object_id": name, "holder_id": "bench", "ttl_ms": LEASE_MS}
        status, lease = http1.post_json(self.api_port, "/v1/leases", wanted)
        if status != 201:
            raise Failed(f"{self.name} granted no lease: {status} {lease}")
        return lease["fence_token"]

    def acquire_many(self, names, limit_s=float("inf")):
        """Leases of all of them, or of the first ones that there was time for; their tokens in the same order."""
        tokens, until = [], time.monotonic() + limit_s
        with http1.connect(self.api_port) as connection:
            for begin in range(0, len(names), BATCH):
                if time.monotonic() > until:
                    break
                wanted = {"object_ids": names[begin:begin + BATCH], "holder_id": "bench", "ttl_ms": LEASE_MS}
                status, _, body = http1.exchange(connection, "POST", "/v1/lease-batches",
                                                 {"Content-Type": "application/json"}, json.dumps(wanted).encode())
                if status != 201:
                    raise Failed(f"{self.name} granted no leases: {status} {body[:500]!r}")
                found = {lease["object_id"]: lease["fence_token"] for lease in json.loads(body)["leases"]}
                tokens += [found[name] for name in wanted["object_ids"]]
        return tokens

    def revoke(self, name):
        """Moves the fence: the token of before is stale from now on."""
        status, said = http1.post_json(self.api_port, f"/v1/objects/{name}/revoke", {"reason": "bench"})
        if status != 200:
            raise Failed(f"{self.name} did not revoke: {status} {said}")

    def metric(self, name):
        status, _, body = http1.once(self.ops_port, "GET", "/metrics", {"Connection": "close"})
        found = re.search(rf"^{re.escape(name)} (\S+)$", body.decode(), re.MULTILINE)
        if status != 200 or not found:
            raise Failed(f"{self.name} has no metric {name}: {status}")
        return float(found[1])

    def reads_at_start(self):
        """Rows that it read of its table until it was ready: it says so itself."""
        for line in (self.processes.folder / f"{self.name}.log").read_text().splitlines():
            said = json.loads(line)
            if "reads" in said:
                return said["reads"]
        raise Failed(f"{self.name} does not say how many rows it read")

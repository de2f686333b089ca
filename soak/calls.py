"""Writes and lease calls, each with its outcome as the judge wants it."""
import itertools
import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "chaos"))
from http1 import Conn  # noqa: E402
from logs import now  # noqa: E402

NUMBERS = itertools.count(1)
# The address of those who must get through, whatever the crowds at other addresses do.
HOLDERS_ADDRESS = "127.0.0.2"
# A connection that lay idle for longer is not used again: the gate may be closing it at that moment.
IDLE_S = 4


def outcome(status, headers, body):
    """What the gate's answer to a write says: its outcome, and its kind: a status or a code."""
    code = headers.get("fence-error")
    if code:
        return "unknown" if b'"maybe"' in body or code == "OUTCOME_UNKNOWN" else "refused", code
    return "settled" if headers.get("fence-outcome") == "settled" else "unknown", str(status)


def path(object_id, name="1"):
    return f"/{'j' if object_id.startswith('j-') else 'o'}/{object_id.removeprefix('j-')}/{name}"


def fields(lease, number, **more):
    """A write's header fields."""
    return [("fence-token", lease["fence_token"]), ("x-write", number), *more.items()]


def fresh_id(kind):
    return f"{kind}-{os.getpid()}-{next(NUMBERS)}"


class Caller:
    """A client with a connection to each of the gate's ports. What was written is noted by `note(call)`. `source`: its
    address, by which the gate distinguishes clients."""

    def __init__(self, ports, note, patience_s=20, source=None):
        self.ports, self.note, self.patience_s, self.source = ports, note, patience_s, source
        self.conns, self.used_at = {}, {}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for conn in self.conns.values():
            conn.close()

    def call(self, port, method, path_, headers=(), body=b""):
        """The answer; None if the connection broke."""
        try:
            if port in self.conns and now() > self.used_at[port] + IDLE_S:
                self.conns.pop(port).close()
            conn = self.conns.get(port) or Conn(("127.0.0.1", self.ports[port]), self.patience_s, self.source)
            self.conns[port] = conn
            answer = conn.call(method, path_, headers, body)
            self.used_at[port] = now()
            if answer.headers.get("connection", "").lower() == "close":
                self.conns.pop(port).close()
            return answer
        except OSError:
            broken = self.conns.pop(port, None)
            if broken:
                broken.close()
            return None

    def api(self, method, path_, body=None, headers=()):
        if body is None:
            return self.call("api", method, path_, headers)
        return self.call("api", method, path_, [("content-type", "application/json")], json.dumps(body).encode())

    def acquire(self, object_id, holder, ttl_ms, **more):
        """A lease or None, and the answer."""
        wanted = {"object_id": object_id, "holder_id": holder, "ttl_ms": ttl_ms} | more
        answer = self.api("POST", "/v1/leases", wanted)
        return (answer.json() if answer is not None and answer.status == 201 else None), answer

    def renew(self, lease, holder, ttl_ms, **more):
        wanted = {"fence_token": lease["fence_token"], "holder_id": holder, "ttl_ms": ttl_ms} | more
        return self.api("POST", f"/v1/leases/{lease['lease_id']}/renew", wanted)

    def release(self, lease):
        return self.api("DELETE", f"/v1/leases/{lease['lease_id']}", headers=[("fence-token", lease["fence_token"])])

    def write(self, lease, kind, body=b"x" * 256, **more):
        """Writes once; returns the call as it was noted."""
        number, t = fresh_id(kind), now()
        answer = self.call("gate", "PUT", path(lease["object_id"]), fields(lease, number, **more), body)
        what, said = outcome(answer.status, answer.headers, answer.body) if answer else ("unknown", "broken")
        call = {"id": number, "object": lease["object_id"], "seq": lease["lease_seq"], "outcome": what, "kind": said,
                "t": t, "ms": (now() - t) * 1000}
        self.note(call)
        return call

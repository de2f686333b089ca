#!/usr/bin/env python3
"""A fenced writer with nothing but the standard library: takes a lease, renews it in the background, writes with its
token, and gives it back.

    fenced_write.py OBJECT PATH VALUE...      writes each value to PATH, one after the other

API and GATE say where the gate is; HOLDER, who this is; TTL, how long the lease lasts, in milliseconds.
"""
import json
import os
import random
import sys
import threading
import time
import urllib.error
import urllib.request
import uuid

API = os.environ.get("API", "http://127.0.0.1:8081")
GATE = os.environ.get("GATE", "http://127.0.0.1:8080")
HOLDER = os.environ.get("HOLDER", f"{os.uname().nodename}-{os.getpid()}")
TTL_S = int(os.environ.get("TTL", "15000")) / 1000

# What says for certain that a lease is not, or no longer, ours.
ENDS = {"LEASE_FENCED", "LEASE_EXPIRED", "LEASE_NOT_HOLDER", "LEASE_NOT_FOUND", "LEASE_TOKEN_MISMATCH"}
# This clock runs on while the machine sleeps, and cannot be set.
now = lambda: time.clock_gettime(time.CLOCK_BOOTTIME)  # noqa: E731


class Lost(Exception):
    """The lease is gone: nothing more may be written with its token."""


class Refused(Exception):
    def __init__(self, status, problem):
        super().__init__(f"{status} {problem.get('code')}: {problem.get('detail')}")
        self.status, self.code, self.retryable = status, problem.get("code"), problem.get("retryable", status >= 500)


def call(method, url, value=None, headers=None, timeout=10, body=None):
    """One call; its answer's body. Raises Refused for a definite answer, OSError for none."""
    if value is not None:
        body, headers = json.dumps(value).encode(), {"Content-Type": "application/json", **(headers or {})}
    request = urllib.request.Request(url, method=method, data=body, headers=headers or {})
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            return answer.read()
    except urllib.error.HTTPError as error:
        said = error.read()
        try:
            raise Refused(error.code, json.loads(said)) from None
        except ValueError:
            raise Refused(error.code, {}) from None


class Lease:
    """A lease that renews itself. `with Lease(object) as lease:` takes it and gives it back."""

    def __init__(self, name):
        self.name, self.halt, self.lost = name, threading.Event(), None

    def __enter__(self):
        request_id = str(uuid.uuid4())  # the same one again after a lost answer: no lease is left behind
        wanted = {"object_id": self.name, "holder_id": HOLDER, "ttl_ms": int(TTL_S * 1000), "wait_ms": 30_000,
                  "request_id": request_id}
        while True:
            sent = now()
            try:
                lease = json.loads(call("POST", f"{API}/v1/leases", wanted, timeout=60))
                break
            except Refused as refused:
                if not refused.retryable:
                    raise
            except OSError:
                pass  # no answer: ask again
            time.sleep(random.uniform(0.1, 0.5))
        self.id, self._token, self.seq = lease["lease_id"], lease["fence_token"], lease["lease_seq"]
        # Counted from when it was asked for. One that was long in coming has little left, so it is renewed first.
        self.until = sent + lease["expires_in_ms"] / 1000
        if self.until - now() < TTL_S * 2 / 3:
            try:
                self.renew()
            except BaseException:
                self.__exit__()  # `with` does not, for what was never entered
                raise
        threading.Thread(target=self.keep, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.halt.set()
        try:
            call("DELETE", f"{API}/v1/leases/{self.id}", headers={"Fence-Token": self._token})
        except (Refused, OSError):
            pass  # it is over already, or runs out

    def renew(self):
        sent = now()
        wanted = {"fence_token": self._token, "holder_id": HOLDER, "ttl_ms": int(TTL_S * 1000)}
        renewed = json.loads(call("POST", f"{API}/v1/leases/{self.id}/renew", wanted, timeout=TTL_S / 3))
        self.until = max(self.until, sent + renewed["expires_in_ms"] / 1000)

    def keep(self):
        wait = TTL_S / 3
        while not self.halt.wait(wait):
            try:
                self.renew()
                wait = TTL_S / 3
            except Refused as refused:
                if refused.code in ENDS:
                    self.lost = str(refused)
                    return
                wait = random.uniform(0.5, 1) * TTL_S / 10
            except OSError:
                wait = random.uniform(0.5, 1) * TTL_S / 10

    @property
    def token(self):
        """Looks at the clock each time: this process may have been stopped for longer than the lease lasts."""
        if self.lost is None and now() >= self.until:
            self.lost = "its time is up"
        if self.lost is not None:
            raise Lost(self.lost)
        return self._token


def main(name, path, values):
    with Lease(name) as lease:
        print(f"acquired {name}, lease_seq {lease.seq}", flush=True)
        for value in values:
            call("PUT", f"{GATE}{path}", headers={"Fence-Token": lease.token}, body=value.encode())
            print(f"written {value}", flush=True)


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    try:
        main(sys.argv[1], sys.argv[2], sys.argv[3:])
    except (Lost, Refused, OSError) as error:
        sys.exit(f"fenced_write: {error}")

"""A replacement for tests/kubernetes/candidate without client-go: for machines where that program was not built.

The same flags, the same lines, and client-go's rules by hand: a candidate waits for the Lease's duration from when
it has last seen it change, takes it by compare-and-swap with one more transition, and renews it in the same way; a
leader that could not renew until its deadline gives up. Plain http only, as the fake API server speaks it.
"""
from __future__ import annotations

import argparse
import datetime
import http.client
import json
import pathlib
import signal
import sys
import threading
import time
import urllib.parse

LOST = 3


def seconds(text: str) -> float:
    """A duration as Go prints it: 1500ms, 3s."""
    return float(text[:-2]) / 1000 if text.endswith("ms") else float(text[:-1])


class Candidate:
    """One process that stands for election, and writes while it leads."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.server = urllib.parse.urlsplit(args.server).netloc
        self.gate = urllib.parse.urlsplit(args.gate).netloc
        self.leases = f"/apis/coordination.k8s.io/v1/namespaces/{args.namespace}/leases"
        self.seen: tuple[str, float] | None = None
        self.leader = ""
        self.leads_until = 0.0
        self.stopped = threading.Event()
        self.output = threading.Lock()
        self.number = 0

    def say(self, **event: object) -> None:
        """One line of what happens."""
        with self.output:
            print(json.dumps(event | {"identity": self.args.identity}), flush=True)

    def call(self, method: str, path: str, body: object = None) -> tuple[int, dict]:
        """A call of the API server; 0 where there is no answer."""
        connection = http.client.HTTPConnection(self.server, timeout=self.args.renew_deadline)
        token = pathlib.Path(self.args.token_file).read_text(encoding="utf-8").strip()
        headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
        try:
            connection.request(method, path, json.dumps(body) if body is not None else None, headers)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        except (OSError, http.client.HTTPException, ValueError):
            return 0, {}
        finally:
            connection.close()

    def spec(self, old: dict | None) -> dict:
        """The Lease as it is when this one has it."""
        now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec = {
            "holderIdentity": self.args.identity,
            "leaseDurationSeconds": round(self.args.lease_duration),
            "renewTime": now,
            "acquireTime": now,
            "leaseTransitions": 0,
        }
        if old is not None:
            mine = old.get("holderIdentity") == self.args.identity
            spec["acquireTime"] = old.get("acquireTime", now) if mine else now
            spec["leaseTransitions"] = old.get("leaseTransitions", 0) + (0 if mine else 1)
        return spec

    def try_once(self) -> dict | None:
        """Takes or renews the Lease: as it is then, or None."""
        begun = time.monotonic()
        status, lease = self.call("GET", f"{self.leases}/{self.args.name}")
        if status == 404:
            made = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": self.args.name}}
            status, lease = self.call("POST", self.leases, made | {"spec": self.spec(None)})
            return self.had(lease, begun) if status == 201 else None
        if status != 200:
            return None
        version = lease["metadata"]["resourceVersion"]
        if self.seen is None or self.seen[0] != version:
            self.seen = (version, time.monotonic())
        holder = lease["spec"].get("holderIdentity", "")
        self.sees(holder)
        is_held = time.monotonic() < self.seen[1] + lease["spec"].get("leaseDurationSeconds", 0)
        if holder not in ("", self.args.identity) and is_held:
            return None
        lease["spec"] = self.spec(lease["spec"])
        status, lease = self.call("PUT", f"{self.leases}/{self.args.name}", lease)
        return self.had(lease, begun) if status == 200 else None

    def sees(self, holder: str) -> None:
        """Prints who leads, if that has changed."""
        if holder not in ("", self.leader):
            self.leader = holder
            self.say(event="leader", leader=holder)

    def had(self, lease: dict, begun: float) -> dict:
        """The API server says that it is ours."""
        self.seen = (lease["metadata"]["resourceVersion"], time.monotonic())
        self.leads_until = begun + self.args.renew_deadline
        self.sees(self.args.identity)
        return lease

    def release(self) -> None:
        """Gives the Lease back."""
        status, lease = self.call("GET", f"{self.leases}/{self.args.name}")
        if status == 200 and lease["spec"].get("holderIdentity") == self.args.identity:
            lease["spec"] |= {"holderIdentity": "", "leaseDurationSeconds": 1}
            self.call("PUT", f"{self.leases}/{self.args.name}", lease)

    def write(self, token: str) -> None:
        """Sends the next number through the gate."""
        self.number += 1
        connection = http.client.HTTPConnection(self.gate, timeout=30)
        body = f"{self.args.identity} {self.number}"
        try:
            connection.request("PUT", self.args.path, body, {"Fence-Token": token})
            answer = connection.getresponse()
            answer.read()
        except (OSError, http.client.HTTPException) as error:
            self.say(event="error", token=token, number=self.number, message=str(error))
            return
        finally:
            connection.close()
        code = answer.getheader("Fence-Error") or ""
        line = {"event": "answer", "token": token, "number": self.number, "status": answer.status}
        self.say(**line | ({"fence_error": code} if code else {}))

    def lead(self, lease: dict) -> None:
        """Writes until leadership is gone, and once more: a process that stood still has always one write that it had
        decided on before it could know."""
        token = f"k8s.{lease['metadata']['uid']}.{lease['spec']['leaseTransitions']}"
        self.say(event="leading", token=token)
        renewed = time.monotonic()
        while not self.stopped.is_set():
            self.write(token)
            if time.monotonic() >= self.leads_until:
                self.write(token)
                return
            if time.monotonic() >= renewed + self.args.retry_period:
                renewed = time.monotonic()
                again = self.try_once()
                holder = again or self.call("GET", f"{self.leases}/{self.args.name}")[1]
                if again is None and holder.get("spec", {}).get("holderIdentity", self.args.identity) != self.args.identity:
                    self.write(token)
                    return
                if again is not None:
                    now = f"k8s.{again['metadata']['uid']}.{again['spec']['leaseTransitions']}"
                    if now != token:
                        token = now
                        self.say(event="leading", token=token)
            self.stopped.wait(self.args.every)

    def run(self) -> int:
        """Takes part in the election until it is stopped, or has lost it."""
        signal.signal(signal.SIGTERM, lambda *_: self.stopped.set())
        while not self.stopped.is_set():
            lease = self.try_once()
            if lease is None:
                self.stopped.wait(self.args.retry_period)
                continue
            self.lead(lease)
            if not self.stopped.is_set():
                self.say(event="lost")
                if not self.args.stay:
                    return LOST
        if self.args.release_on_cancel:
            self.release()
        self.say(event="stopped")
        return 0


def main() -> int:
    """The same flags as the one in Go."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("server", "token-file", "namespace", "name", "identity", "gate", "path"):
        parser.add_argument(f"--{name}", required=True)
    for name, default in (("lease-duration", "15s"), ("renew-deadline", "10s"), ("retry-period", "2s"), ("every", "100ms")):
        parser.add_argument(f"--{name}", type=seconds, default=default)
    for name in ("release-on-cancel", "stay"):
        parser.add_argument(f"--{name}", action="store_true")
    return Candidate(parser.parse_args()).run()


if __name__ == "__main__":
    sys.exit(main())

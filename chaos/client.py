"""A client of the gate that writes down every call and what came of it, and reports what was acknowledged.

The log of calls has two events per operation: `call`, before anything is sent, and `done`, with its outcome:
`ok`, `refused` (with the code: nothing was done), `maybe` (unknown).
"""
import datetime
import hashlib
import itertools
import json
import threading
from pathlib import Path

from http1 import Conn
from logs import now
from objects import is_external, is_journaled, path_of

OVER = ("LEASE_EXPIRED", "LEASE_FENCED", "WRITE_STALE_FENCE")


class Down(Exception):
    """There is no gate to call."""


class Lease:
    """A lease as its holder knows it."""

    def __init__(self, body):
        self.object, self.seq, self.id = body["object_id"], body["lease_seq"], body["lease_id"]
        self.token, self.ttl_ms = body["fence_token"], body["ttl_ms"]
        # By the gate's wall clock.
        self.start_ms = wall_ms(body["acquired_at"])


def wall_ms(text):
    """A time as the gate spells it, in milliseconds since 1970."""
    return round(datetime.datetime.fromisoformat(text).timestamp() * 1000)


class Client:
    """One holder. Not for several threads at once; `twin` makes another for the same holder."""

    numbers = itertools.count(1)

    def __init__(self, name, folder, calls, reporter):
        self.name, self.folder, self.calls, self.reporter = name, Path(folder), calls, reporter
        self.conns = {}
        self.process = f"{name}.{next(Client.numbers)}"

    def twin(self):
        return Client(self.name, self.folder, self.calls, self.reporter)

    def addresses(self):
        return json.loads((self.folder / "gate.json").read_text())

    def conn(self, port):
        """A connection to one of the gate's ports, kept while it works."""
        if port not in self.conns:
            try:
                self.conns[port] = Conn(self.addresses()[port])
            except OSError as error:
                raise Down(str(error)) from None
        return self.conns[port]

    def drop(self, port):
        conn = self.conns.pop(port, None)
        if conn:
            conn.close()

    def hang_up(self):
        for port in list(self.conns):
            self.drop(port)

    def begin(self, op, object_id, port="api", **more):
        """Notes a call before anything of it is sent. Where there is no gate, there is no call."""
        self.conn(port)
        number = f"{self.name}-{next(Client.numbers)}"
        call = now()
        about = {"id": number, "op": op, "process": self.process, "holder": self.name, "object": object_id}
        self.calls.note(call, "call", **about, **more)
        return number, call

    def end(self, number, outcome, answer=None, **more):
        if answer is not None:
            more |= {"status": answer.status, "quiet": answer.quiet}
        self.calls.note(answer.ret if answer else now(), "done", id=number, outcome=outcome, **more)

    def ask(self, method, path, body=None, headers=()):
        """A call of the api. None: its outcome is unknown."""
        conn = self.conn("api")
        try:
            if body is None:
                return conn.call(method, path, headers)
            return conn.post(path, body)
        except OSError:
            self.drop("api")
            return None

    def report_refusal(self, object_id, seq, answer, quiet=None):
        """Reports what a refusal says of an object and of a lease. `quiet`: see `granted`."""
        body, code = answer.json(), answer.code
        fence = body.get("fence")
        about = {"quiet": quiet or answer.quiet, "code": code}
        if isinstance(fence, int):
            # A route that has moved may have made another object of it.
            self.reporter.report(answer.ret, "fence", object=body.get("object_id") or object_id, fence=fence, **about)
        if code in OVER and seq is not None:
            self.reporter.report(answer.ret, "over", object=object_id, seq=seq, fence=fence, **about)

    def granted(self, calls, answer, how, quiet=None):
        """What has come of an acquire or a rotation: the leases, or none. `calls`: number and time by object. `quiet`:
        since when the gate may have looked, where that is earlier than the answer's."""
        if answer is None or answer.status >= 400:
            unsure = answer is None or b'"maybe"' in answer.body
            for number, _ in calls.values():
                self.end(number, "maybe" if unsure else "refused", answer, code=answer and answer.code)
            return []
        body, leases = answer.json(), []
        for granted in body.get("leases", [body]):
            lease = Lease(granted)
            number, call = calls[lease.object]
            self.reporter.report(
                answer.ret, "granted", object=lease.object, seq=lease.seq, lease=lease.id, holder=self.name, call=call,
                quiet=quiet or answer.quiet, ttl_ms=lease.ttl_ms, how=how, tainted=granted["tainted"],
            )
            self.end(number, "ok", answer, seq=lease.seq, lease=lease.id)
            leases.append(lease)
        return leases

    def acquire(self, object_id, ttl_ms, **more):
        """A lease, or None. `more`: wait_ms, request_id, takeover."""
        calls = {object_id: self.begin("acquire", object_id, **more)}
        body = {"object_id": object_id, "holder_id": self.name, "ttl_ms": ttl_ms} | more
        leases = self.granted(calls, self.ask("POST", "/v1/leases", body), "acquire")
        return leases[0] if leases else None

    def acquire_batch(self, object_ids, ttl_ms, **more):
        """Several leases, or none. To the history it is one operation per object."""
        calls = {object_id: self.begin("acquire", object_id, **more) for object_id in object_ids}
        body = {"object_ids": object_ids, "holder_id": self.name, "ttl_ms": ttl_ms} | more
        return self.granted(calls, self.ask("POST", "/v1/lease-batches", body), "batch")

    def _renewal(self, lease, ttl_ms, **more):
        body = {"fence_token": lease.token, "holder_id": self.name, "ttl_ms": ttl_ms} | more
        return self.ask("POST", f"/v1/leases/{lease.id}/renew", body)

    def rotate(self, lease, ttl_ms):
        """A lease with the next number in its place, or None."""
        calls = {lease.object: self.begin("acquire", lease.object, rotates=lease.seq)}
        answer = self._renewal(lease, ttl_ms, rotate=True)
        if answer is not None and answer.status >= 400:
            self.report_refusal(lease.object, lease.seq, answer)
        leases = self.granted(calls, answer, "rotate")
        return leases[0] if leases else None

    def renew(self, lease, ttl_ms):
        """Says whether it was renewed."""
        number, _ = self.begin("renew", lease.object, seq=lease.seq)
        answer = self._renewal(lease, ttl_ms)
        is_done, t = answer is not None and answer.status == 200, answer.ret if answer else now()
        if is_done or answer is None or answer.status == 503:
            # Also if the outcome is unknown: the lease may live as long as this.
            about = {"object": lease.object, "seq": lease.seq, "lease": lease.id, "ttl_ms": ttl_ms}
            self.reporter.report(t, "renewed", sure=is_done, quiet=answer.quiet if answer else t, **about)
        else:
            self.report_refusal(lease.object, lease.seq, answer)
        self.end(number, "ok" if is_done else "maybe" if answer is None else "refused", answer)
        return is_done

    def release(self, lease):
        number, _ = self.begin("release", lease.object, seq=lease.seq)
        answer = self.ask("DELETE", f"/v1/leases/{lease.id}", headers=[("fence-token", lease.token)])
        if answer is not None and answer.status == 200:
            about = {"object": lease.object, "quiet": answer.quiet, "code": "released"}
            self.reporter.report(answer.ret, "over", seq=lease.seq, **about)
        elif answer is not None:
            self.report_refusal(lease.object, lease.seq, answer)
        self.end(number, "maybe" if answer is None else "ok" if answer.status == 200 else "refused", answer)

    def revoke(self, object_id, force=False):
        """A revocation by an operator. Returns the fence, or None."""
        number, call = self.begin("acquire", object_id, revokes=True)
        answer = self.ask("POST", f"/v1/objects/{object_id}/revoke", {"reason": "chaos", "force": force})
        if answer is None or answer.status != 200:
            unsure = answer is None or b'"maybe"' in answer.body
            self.end(number, "maybe" if unsure else "refused", answer)
            return None
        body = answer.json()
        # Nothing of an older lease lands any more only once it has drained.
        self.reporter.report(
            answer.ret, "revoked", object=object_id, fence=body["fence"], call=call, quiet=answer.quiet,
            drained=body["state"] == "free" and not force,
        )
        self.end(number, "ok", answer, seq=body["fence"])
        return body["fence"]

    def take(self, locks, object_id, ttl_ms):
        """A lock that is kept elsewhere, or None. Whose number it is, is known before it is used."""
        lock = locks.take(object_id, ttl_ms)
        if lock:
            self.reporter.report(now(), "issued", object=object_id, seq=lock.seq, holder=self.name)
        return lock

    def advance(self, lock):
        """Says whether nothing of an older lock lands any more."""
        return self._move("advance", "advanced", lock.object, lock.seq)

    def confirm(self, object_id, seq):
        """A confirmation by an operator, after part of the table's past was lost: no lower number may write."""
        return self._move("confirm", "confirmed", object_id, seq)

    def _move(self, call, event, object_id, seq):
        number, begun = self.begin(call, object_id, seq=seq)
        answer = self.ask("POST", f"/v1/objects/{object_id}/{call}", {"token": seq})
        is_done = answer is not None and answer.status == 200
        if is_done:
            # The ledger gives this answer. Other callers may have got a higher fence before it arrives.
            about = {"object": object_id, "seq": seq, "call": begun, "quiet": begun}
            self.reporter.report(answer.ret, event, fence=answer.json()["fence"], **about)
        elif answer is not None:
            self.report_refusal(object_id, seq, answer, quiet=begun)
        unsure = answer is None or b'"maybe"' in answer.body
        self.end(number, "ok" if is_done else "maybe" if unsure else "refused", answer, code=answer and answer.code)
        return is_done

    def read(self, object_id):
        number, _ = self.begin("read", object_id, "gate")
        try:
            answer = self.conn("gate").call("GET", path_of(object_id))
        except OSError:
            self.drop("gate")
            return self.end(number, "refused")
        is_read = answer.status == 200 and not answer.code
        value = answer.body.decode("latin-1") if is_read else "-"
        return self.end(number, "ok" if is_read else "refused", answer, value=None if value == "-" else value)

    def fence(self, object_id):
        """What the gate says an object's fence is; reported."""
        call = now()
        answer = self.ask("GET", f"/v1/objects/{object_id}")
        if answer is None or answer.status != 200:
            return None
        fence = answer.json()["fence"]
        self.reporter.report(answer.ret, "fence", object=object_id, fence=fence, quiet=call, code="asked")
        return fence

    def lease_state(self, object_id, seq, lease_id):
        """What the gate says of a lease; reported."""
        call = now()
        answer = self.ask("GET", f"/v1/leases/{lease_id}")
        if answer is None or answer.status not in (200, 404):
            return None
        state = answer.json()["state"] if answer.status == 200 else "missing"
        self.reporter.report(answer.ret, "lease", object=object_id, seq=seq, lease=lease_id, state=state, quiet=call)
        return state

    def write(self, lease, wish="", body=b"x", **how):
        """A write from beginning to end; returns its outcome. `how`: see Upload."""
        return self.upload(lease, wish, body, **how).finish()

    def upload(self, lease, wish="", body=b"x", **how):
        return Upload(self, lease, wish, body, **how)


class Keyed:
    """What a write with an Idempotency-Key says, in each of its attempts."""

    def __init__(self, client, object_id, body, name=None):
        self.client, self.object = client, object_id
        self.name = name or f"k{next(Client.numbers)}"
        if is_journaled(object_id):
            # By its digest it is found in the journal.
            body = f"{client.process}:{next(Client.numbers)} ".encode() + body
        self.body, self.digest = body, hashlib.sha256(body).hexdigest()

    def other(self):
        """Another write with the same key."""
        return Keyed(self.client, self.object, self.body + b"other", self.name)


class Upload:
    """A write on its way. It begins with its head and `first` bytes of its body; `finish` sends the rest.

    `hangs_up`: the client goes away instead of sending the rest. `asks`: it waits for a 100 Continue first. `token`:
    another one than the lease's; empty for none. `key`: a Keyed, whose body it is.
    """

    def __init__(self, client, lease, wish, body, first=None, hangs_up=False, asks=False, token=None, key=None):
        self.client, self.hangs_up = client, hangs_up
        self.object = lease.object
        # What a forged token gets says nothing of the lease.
        self.seq = lease.seq if token is None else None
        # Then the agent has the token, and only it knows which.
        self.by_agent = lease.token is None
        about = {"seq": lease.seq, "hangs_up": hangs_up, "wish": wish, "token": token}
        about |= {"by_agent": True} if self.by_agent else {}
        if key:
            body = key.body
            about |= {"key": key.name, "payload": key.digest}
            about |= {"digest": key.digest} if is_journaled(lease.object) else {}
        elif is_journaled(lease.object):
            # By its digest it is found in the journal.
            body = f"{client.process}:{next(Client.numbers)} ".encode() + body
            about["digest"] = hashlib.sha256(body).hexdigest()
        first = len(body) if first is None else first
        self.number, self.begun = client.begin("write", lease.object, "gate", **about)
        headers = [("x-write", self.number), ("x-chaos", wish)]
        if token != "" and not self.by_agent:
            headers.append(("fence-token", token or lease.token))
        if asks:
            headers.append(("expect", "100-continue"))
        if key:
            headers.append(("idempotency-key", f'"{key.name}"'))
        self.rest = body[first:]
        self.broken = False
        self.conn = client.conns.pop("gate")
        try:
            self.conn.send("PUT", path_of(lease.object), headers, body[:first], length=len(body))
            if asks and self.conn.interim() != 100:
                self.broken = True
        except OSError:
            self.broken = True

    def is_answered(self, wait_s=0.0):
        return self.broken or self.conn.is_answered(wait_s)

    def finish(self):
        """Sends the rest and waits for the answer. Returns `ok`, `refused` or `maybe`."""
        try:
            if self.broken:
                raise ConnectionError("it was broken before")
            if self.hangs_up:
                self.conn.hang_up()
                raise ConnectionError("we have hung up")
            if self.rest:
                try:
                    self.conn.send_more(self.rest)
                except OSError:
                    # There may be an answer all the same.
                    pass
            answer = self.conn.receive()
        except OSError:
            self.client.end(self.number, "maybe")
            return "maybe"
        self._keep()
        return self._outcome(answer)

    def _keep(self):
        self.client.drop("gate")
        self.client.conns["gate"] = self.conn

    def _outcome(self, answer):
        """`store`: the store itself has said no."""
        if answer.code:
            is_known = answer.json()["side_effect"] == "none"
            if is_known:
                # Where a number is above the fence it is the ledger that says so, as in `_move`. An agent may have had
                # the answer for long.
                quiet = self.begun if is_external(self.object) or self.by_agent else None
                self.client.report_refusal(self.object, self.seq, answer, quiet)
            outcome = "refused" if is_known else "maybe"
        elif answer.headers.get("fence-outcome") != "settled":
            outcome = "maybe"
        else:
            outcome = "ok" if answer.status < 300 else "store"
        more = {"replayed": True} if "idempotency-replayed" in answer.headers else {}
        self.client.end(self.number, outcome, answer, code=answer.code, fence_seq=answer.headers.get("fence-seq"), **more)
        return outcome


def in_background(work):
    """Runs something beside; returns a function that waits for its result (None where there is no gate)."""
    result = []

    def run():
        try:
            result.append(work())
        except Down:
            pass

    thread = threading.Thread(target=run, daemon=True)
    thread.start()

    def wait(seconds=30):
        thread.join(seconds)
        return result[0] if result else None

    wait.is_done = lambda: not thread.is_alive()
    return wait

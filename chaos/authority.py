"""What a holder does with signed messages: fence certificates, an issuer's grants, and migrations. Calls and answers
are written down like all others (see client.py)."""
import itertools
import time

from client import Down, wall_ms
from journal import Journal, text_of
from logs import now
from objects import is_journaled
from signers import ISSUER, Signer, gate_ms

PAUSE_S = 0.008
# No migration is asked after for longer.
PATIENCE_S = 4
GOES_ON = ("fencing", "acknowledged", "granted", "active")


class Authority:
    """A holder with its own key, and with the issuer's. Like its client, not for several threads at once."""

    numbers = itertools.count(1)

    def __init__(self, client):
        self.client, self.folder = client, client.folder
        # Since when a migration of an object is asked for, while its outcome is unknown.
        self.asked = {}
        # Where the migration that was asked for last is, or why it is nowhere; and when it began, by the gate's clock.
        self.state = self.begun_ms = None

    def sign(self, name, **message):
        return Signer.of(self.folder, name).sign(**message)

    def stamp(self):
        return f"{gate_ms(self.folder)}:0"

    # Certificates.

    def certificate(self, lease, ahead=0):
        """A certificate that a lease is over. `ahead`: also as many numbers behind it, which have no holder yet."""
        # A lease that began just now, or before the clock was set back, is fenced all the same.
        time_ms = max(gate_ms(self.folder), lease.start_ms + 1)
        return self.sign(
            ISSUER, kind="FENCE_CERTIFICATE", domain=lease.object, lease_seq=lease.seq + ahead, issuer=ISSUER,
            fenced_lease_id=f"{lease.id}-and-{ahead}" if ahead else lease.id, lease_start_ms=lease.start_ms,
            fence_time=f"{time_ms}:0",
        )

    def fence(self, certificate, relayed=False, again=False):
        """Brings a certificate; says whether it was acknowledged: nothing that it fences lands any more."""
        client, object_id, seq = self.client, certificate["domain"], certificate["lease_seq"]
        body = {"type": "RELAY_FENCE", "to": "chaos", "certificate": certificate} if relayed else certificate
        number, call = client.begin("fence", object_id, fences=seq, again=again)
        answer = client.ask("POST", "/v1/fences", body)
        if answer is None or answer.status != 200:
            client.end(number, "maybe" if is_unsure(answer) else "refused", answer, code=answer and answer.code)
            return False
        body = answer.json()
        fence, is_acknowledged = body["object"]["fence"], "acknowledged" in body
        # The gate reads the fence, signs the acknowledgement and answers. Other callers may have got a higher fence
        # meanwhile.
        client.reporter.report(answer.ret, "certified", object=object_id, seq=seq, fence=fence, call=call, quiet=call,
                               acknowledged=is_acknowledged)
        moved = body["applied"] and fence == seq + 1
        client.end(number, "ok", answer, acknowledged=is_acknowledged, moved=moved)
        return is_acknowledged

    # An issuer's grants.

    def hand_over(self, lease, ttl_ms):
        """The issuer fences a lease, and gives the object to this holder under the next number; a lease, or None."""
        certificate = self.certificate(lease)
        return self.grant(certificate, ttl_ms) if self.fence(certificate) else None

    def grant(self, certificate, ttl_ms):
        """The lease behind the one that a certificate has fenced, or None."""
        client, object_id = self.client, certificate["domain"]
        begun = gate_ms(self.folder)
        lease_id = f"{client.process}-signed-{next(Authority.numbers)}"
        message = self.sign(
            ISSUER, kind="LEASE_GRANT", domain=object_id, lease_id=lease_id, lease_seq=certificate["lease_seq"] + 1,
            holder=client.name, start_ms=begun, expiry_ms=begun + ttl_ms, issuer=ISSUER,
            predecessor={"lease_id": certificate["fenced_lease_id"], "fence_proof": certificate["signature"]},
        )
        first = None
        for _ in range(2):
            number, call = client.begin("acquire", object_id, request_id=lease_id)
            first = first or call
            answer = client.ask("POST", "/v1/grants", message)
            leases = client.granted({object_id: (number, first)}, answer, "grant", quiet=call)
            if answer is not None:
                return leases[0] if leases else None
            # The same grant gets the same lease again.
            time.sleep(PAUSE_S)
        return None

    # Migrations.

    def migrate(self, object_id, ttl_ms, lies=False, patience_s=PATIENCE_S):
        """Asks for an object, waits until it is handed over, and confirms that; a lease, or None. Where a gate dies
        meanwhile, the next one is asked to go on. `lies`: it confirms another state than the one left behind."""
        client, deadline, self.state, self.begun_ms = self.client, now() + patience_s, None, None
        number, call = client.begin("acquire", object_id, migrates=True)
        first = self.asked.setdefault(object_id, call)
        request = self.sign(
            client.name, kind="FENCE_REQUEST", domain=object_id, reason="chaos", requester=client.name,
            timestamp=self.stamp(), ttl_ms=ttl_ms,
        )
        outcome, migration = "maybe", None
        while now() < deadline:
            try:
                if migration is None:
                    outcome, migration = self._ask(request)
                elif (shown := self._look(migration)) is None:
                    outcome = "maybe"
                elif shown["next_holder"] != client.name or shown["state"] not in GOES_ON:
                    outcome = "refused"
                elif shown["state"] in ("granted", "active"):
                    outcome, lease = self._confirm(shown, (number, first), lies)
                    if lease:
                        del self.asked[object_id]
                        return lease
            except Down:
                outcome = "maybe"
            if outcome == "refused":
                self.asked.pop(object_id)
                break
            time.sleep(PAUSE_S)
        client.end(number, outcome, code=self.state, migration=migration)
        return None

    def _ask(self, request):
        """What came of asking, and which migration is under way. The same request is the same migration."""
        answer = self.client.ask("POST", "/v1/migrations", request)
        if is_unsure(answer):
            return "maybe", None
        # It may be our own: an earlier request whose outcome is unknown.
        is_there = answer.status == 201 or answer.code == "MIGRATION_IN_PROGRESS"
        if not is_there:
            self.state = answer.code
        return ("maybe", answer.json()["migration_id"]) if is_there else ("refused", None)

    def _look(self, migration):
        """How far a migration is, or None."""
        answer = self.client.ask("GET", f"/v1/migrations/{migration}")
        if answer is None or answer.status not in (200, 404):
            return None
        # A lost tail may have taken it.
        shown = answer.json() if answer.status == 200 else {"next_holder": None, "state": "forgotten"}
        self.state = shown["state"]
        if "steps" in shown:
            self.begun_ms = wall_ms(shown["steps"][0]["at"])
        if "acknowledged" in shown:
            said = shown["acknowledged"]
            self.client.reporter.report(answer.ret, "acknowledged", object=shown["domain"], seq=said["lease_seq"])
        return shown

    def _confirm(self, shown, call, lies):
        """Says LEASE_ACTIVE; returns what came of it, and the lease."""
        object_id, grant, name = shown["domain"], shown["grant"], self.client.name
        state_hash = shown["state_hash"]
        if is_journaled(object_id) and not lies:
            state_hash = self._pull(object_id, shown["writes"], call[1])
            if state_hash is None:
                return "maybe", None
        if lies:
            state_hash = text_of(bytes([1] * 32))
        message = self.sign(
            name, kind="LEASE_ACTIVE", domain=object_id, lease_id=grant["lease_id"], lease_seq=grant["lease_seq"],
            holder=name, state_hash=state_hash, timestamp=self.stamp(),
        )
        looked = now()
        answer = self.client.ask("POST", f"/v1/migrations/{shown['migration_id']}/active", message)
        if answer is not None and answer.status == 200:
            return "ok", self.client.granted({object_id: call}, answer, "migration", quiet=looked)[0]
        if is_unsure(answer):
            return "maybe", None
        self.state = answer.code
        if answer.code == "STATE_HASH_MISMATCH":
            self.client.reporter.report(answer.ret, "mismatch", object=object_id, lies=lies, hash=state_hash,
                                        reported=shown["state_hash"], writes=shown["writes"])
        return "refused", None

    def _pull(self, object_id, writes, call):
        """The hash over an object's journal. Reports the entries that were not pulled before."""
        def page(after):
            answer = self.client.ask("GET", f"/v1/objects/{object_id}/journal?after={after}")
            return answer.json() if answer is not None and answer.status == 200 else None

        pulled = Journal.of(self.folder, object_id).pull(page, writes)
        if pulled is None:
            return None
        hash_, begun, new = pulled
        entries = [[entry["number"], entry.get("lease_seq"), entry["outcome"], entry.get("body_sha256")]
                   for entry in new]
        self.client.reporter.report(now(), "journal", object=object_id, call=call, after=begun, entries=entries)
        return text_of(hash_)


def is_unsure(answer):
    """Whether the outcome of a call is unknown, or the call can be made again."""
    return answer is None or answer.status == 503 or b'"maybe"' in answer.body

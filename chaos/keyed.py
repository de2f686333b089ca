"""What is promised of writes with an Idempotency-Key, as the oracle checks it: of all attempts with one key, one is
applied at most; a kept answer is that of an attempt that was applied; an attempt that is refused for its key never
comes to the store.

A table that has lost part of its past may have lost keys.
"""
CODE = "IDEMPOTENCY_"


class Keys:
    """All attempts, by object, holder and key."""

    def __init__(self, oracle):
        self.oracle = oracle
        self.attempts = {}
        self.replayed = []

    def of(self, op):
        return self.attempts.get((op["object"], op["holder"], op.get("key")), [])

    def sent(self, write):
        op = write.op
        if op.get("key"):
            self.attempts.setdefault((op["object"], op["holder"], op["key"]), []).append(write)

    def applied_for(self, op):
        """The attempt whose kept success is the right answer to an attempt with this payload, or None."""
        done = [write for write in self.of(op) if write.op["payload"] == op["payload"] and write.applied is not None
                and write.applied < op["ret"]]
        return max(done, key=lambda write: write.applied, default=None)

    # What the oracle reports.

    def done(self, write, fence_seq):
        """An attempt was answered."""
        op = write.op
        if op.get("replayed"):
            if op["outcome"] == "ok":
                self.replayed.append((op, fence_seq))
            if write.seen:
                self._broken(op, op["ret"], "was answered with a kept answer, and came to the store")
        if self._is_refused(op) and write.seen:
            self._broken(op, op["ret"], f"was refused for its key ({op['code']}), and came to the store")
        if op.get("code") == f"{CODE}KEY_REUSED" and len({each.op["payload"] for each in self.of(op)}) == 1:
            self._broken(op, op["ret"], "was answered that its key was used for another write, and there is none")

    def begun(self, write):
        """An attempt came to the store."""
        op = write.op
        if op.get("replayed"):
            self._broken(op, write.begun, "was answered with a kept answer, and came to the store")
        if self._is_refused(op):
            self._broken(op, write.begun, f"was refused for its key ({op['code']}), and came to the store")
        first = self._other_applied(write)
        if first:
            write.is_again = True
            self._broken(op, write.begun, f"came to the store, though {first.op['id']} with its key was applied")

    def applied(self, write, t):
        """An attempt was applied."""
        first = self._other_applied(write)
        if first and not write.is_again:
            self._broken(write.op, t, f"was applied, and so was {first.op['id']} with its key")

    def judge(self):
        """Holds the kept answers against what was applied; those that are new are left for the next time."""
        replayed, self.replayed = self.replayed, []
        return lambda: [self._judge(op, fence_seq) for op, fence_seq in replayed]

    def _judge(self, op, fence_seq):
        first = self.applied_for(op)
        if first is None:
            self._broken(op, op["ret"], "was answered with a kept success, and nothing like it was applied")
        elif fence_seq not in (None, str(first.seq)):
            self.oracle.broken("LINKED", op["object"], op["ret"],
                               f"write {op['id']} was answered as one of {fence_seq}, though {first.op['id']} was one "
                               f"of {first.seq}")

    def _other_applied(self, write):
        others = (other for other in self.of(write.op) if other is not write and other.applied is not None)
        return next((other for other in others if not self._is_forgotten(other, write)), None)

    def _is_forgotten(self, one, other):
        """Whether a lost tail may have taken the key between two attempts."""
        earlier, later = sorted((one, other), key=lambda write: write.op["t"])
        return any(earlier.op["t"] < t < later.begun for t in self.oracle.tails_lost)

    @staticmethod
    def _is_refused(op):
        """Where nothing was sent, the oracle says so by itself."""
        return (op.get("code") or "").startswith(CODE) and op["outcome"] != "refused"

    def _broken(self, op, t, what):
        self.oracle.broken("KEYED", op["object"], t, f"write {op['id']} (key {op['key']}) {what}")

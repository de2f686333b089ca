"""What a run has seen, by its logs: faults by kind, each with its effect, and how often a promise was put to
the test. A run that has not seen enough has shown nothing."""
import bisect
from collections import Counter

from http1 import PATIENCE_S
from objects import is_external

# At least so often in a short run; in a longer one, in proportion.
LEAST = {
    "kill": 60, "kill at a point": 10, "SIGSTOP past the ttl": 10, "SIGTERM": 10, "reload": 10,
    "store hangs": 10, "store resets": 10, "store answers slowly": 10, "store answers early": 10,
    "store applies late": 10, "store applies a part": 10, "keep-alive race": 10, "client hangs up": 10,
    "EIO": 10, "disk full": 10, "power cut": 10,
    "clock forward": 10, "clock back": 10, "bit flip in the log": 10, "bit flip in the manifest": 10,
    "bit flip in a table file": 10, "slow read across a kill": 10,
    "overtakes judged": 50, "cancelled mid-body": 50, "syncs held across an admission": 10,
    "new incarnations after a lost first grant": 10,
    "certificates": 50, "certificates again": 50, "overtaken by a certificate": 10, "signed grants": 20,
    "migrations": 100, "overtaken by a migration": 10, "migration across a kill": 10,
    "migrations with another state": 10, "journals held against a migration": 20,
    "keyed writes applied": 100, "kept answers": 50, "attempts of an unknown write": 20, "keys of another write": 10,
    "keyed writes across a kill": 6,
    "agents' writes applied": 100, "agents' handovers": 20, "agents stopped past their lease": 3, "agents killed": 5,
    "agents ended": 5,
}
# The same where locks are kept elsewhere.
LEAST_EXTERNAL = {
    "external writes applied": 100, "external writes refused as stale": 50, "external handovers": 50,
    "external drains met": 20, "external writes refused in a drain": 10, "external advances": 20,
    "external writers stopped past their lock": 10, "external objects confirmed": 20, "kill in an external drain": 8,
}
LEAST |= LEAST_EXTERNAL


class Counts:
    """Counts events that the driver reports, and those that the logs show."""

    def __init__(self, oracle):
        self.oracle = oracle
        self.added = Counter()

    def add(self, what, number=1):
        self.added[what] += number

    def all(self):
        found = self.added + self._by_store() + self._by_advances() + self._by_authority() + self._by_external()
        return found + self._by_keys() + self._by_agents()

    def _by_store(self):
        """What the store or a client did to a write, where its effect was seen."""
        found = Counter()
        for write in self.oracle.writes.values():
            op = write.op
            if op is None or write.seen is None:
                continue
            wish, is_lost = op["wish"].split(), op["outcome"] == "maybe"
            found["store hangs"] += "hang" in wish and is_lost and write.received is not None
            found["store resets"] += "reset" in wish and is_lost and write.received is not None
            found["store answers slowly"] += write.is_slow
            found["store answers early"] += write.is_early and write.received is None
            found["store applies late"] += write.is_late
            found["store applies a part"] += write.partial is not None and write.cut is not None
            found["keep-alive race"] += write.is_race
            found["client hangs up"] += op["hangs_up"] and write.cut is not None
        return found

    def _by_advances(self):
        """Writes that were on their way when the lease moved on, and grants whose sync was held."""
        found = Counter()
        advances = {object_id: Advances(story.advance_calls) for object_id, story in self.oracle.stories.items()}
        for write in self.oracle.writes.values():
            if write.op is None or write.begun is None:
                continue
            mine = advances[write.object]
            if write.applied and write.received:
                past = mine.begun(write.received, write.applied, write.seq)
                found["overtakes judged"] += bool(past)
                found["overtaken by a certificate"] += any(op["op"] == "fence" for op in past)
                found["overtaken by a migration"] += any("migrates" in op for op in past)
            if write.cut and not write.op["hangs_up"] and mine.waits_at(write.cut, write.seq):
                found["cancelled mid-body"] += 1
        for begun, done in self.oracle.holds:
            found["syncs held across an admission"] += self._held(begun, done)
        return found

    def _by_authority(self):
        """Signed messages that have done something."""
        found = Counter()
        for story in self.oracle.stories.values():
            for op in story.advance_calls:
                found["certificates"] += bool(op.get("moved") and not op["again"])
                found["certificates again"] += bool(op.get("again") and op["outcome"] == "ok")
                found["migrations"] += bool(op.get("migrates") and op["outcome"] == "ok")
            found["signed grants"] += sum(event["how"] == "grant" for event in story.granted.values())
            found["migrations with another state"] += story.lies_sent
            found["journals held against a migration"] += story.journals_read
        return found

    def _by_keys(self):
        """What came of attempts with a key."""
        found = Counter()
        for attempts in self.oracle.keys.attempts.values():
            found["keyed writes applied"] += sum(write.applied is not None for write in attempts)
            for op in (write.op for write in attempts):
                found["kept answers"] += bool(op.get("replayed"))
                found["attempts of an unknown write"] += op.get("code") == "IDEMPOTENCY_UNKNOWN"
                found["keys of another write"] += op.get("code") == "IDEMPOTENCY_KEY_REUSED"
        return found

    def _by_agents(self):
        """What became of writes that applications sent to agents, and of the agents."""
        found, applied = Counter(), {}
        for write in self.oracle.writes.values():
            if write.op and write.op.get("by_agent") and write.applied:
                applied.setdefault(write.object, []).append(write)
        for writes in applied.values():
            found["agents' writes applied"] += len(writes)
            found["agents' handovers"] += max(0, len({(write.seq, write.op["holder"]) for write in writes}) - 1)
        for event in self.oracle.agents:
            if event["what"] != "stopped":
                found[f"agents {event['what']}"] += 1
                continue
            # Another one has written meanwhile, when the lease of the one that was stopped was over.
            over = event["begun"] + event["ttl_s"]
            found["agents stopped past their lease"] += any(
                over < write.applied < event["t"] and write.op["holder"] != event["name"]
                for writes in applied.values() for write in writes)
        return found

    def _by_external(self):
        """What happened to objects whose lock is kept elsewhere."""
        found = Counter()
        stories = {object_id: story for object_id, story in self.oracle.stories.items() if is_external(object_id)}
        answered = {}
        for object_id, story in stories.items():
            ok = [op for op in story.token_calls + story.write_calls if op["outcome"] == "ok"]
            answered[object_id] = Advances(ok)
            found["external advances"] += sum(op["op"] == "advance" for op in ok)
            found["external handovers"] += max(0, len({write.seq for write in story.applied_writes}) - 1)
            for what, code in ("as stale", "WRITE_STALE_FENCE"), ("in a drain", "FENCE_DRAINING"):
                found[f"external writes refused {what}"] += sum(op.get("code") == code for op in story.write_calls)
        for write in self.oracle.writes.values():
            if is_external(write.object) and write.applied:
                found["external writes applied"] += 1
                # A higher number came while it was on its way, and was answered well only behind it.
                found["external drains met"] += bool(
                    write.received and answered[write.object].begun(write.received, write.applied, write.seq))
        found["external writers stopped past their lock"] = sum(map(self._is_late, self.oracle.pauses))
        return found

    def _is_late(self, pause):
        """Whether a writer that was stopped has found its number stale with the first write after that."""
        ops = (op for story in self.oracle.stories.values() for op in story.write_calls
               if op["holder"] == pause["holder"] and op.get("ret", 0) > pause["t"])
        first = min(ops, key=lambda op: op["ret"], default=None)
        return first is not None and first.get("code") == "WRITE_STALE_FENCE"

    def _held(self, begun, done):
        """Objects that had a grant asked for before a sync was held and answered behind it, and a write that was
        judged meanwhile, and found its object closed."""
        return sum(
            any(op["t"] < begun and op.get("seq") and op["ret"] > done for op in story.advance_calls)
            and any(begun < op["t"] and op.get("ret", done) < done and op.get("code") == "FENCE_DRAINING"
                    for op in story.write_calls)
            for story in self.oracle.stories.values()
        )

    def missing(self, scale):
        return self._missing({what: number * scale for what, number in LEAST.items()})

    def missing_external(self):
        """Of a run of nothing else, however short."""
        return self._missing(dict.fromkeys(LEAST_EXTERNAL, 1))

    def _missing(self, least):
        found = self.all()
        return [f"{what}: {found[what]} of {number}" for what, number in least.items() if found[what] < number]


class Advances:
    """The advances of one object that were granted, by the time of their call."""

    def __init__(self, ops):
        self.ops = sorted((op for op in ops if op.get("seq")), key=lambda op: op["t"])
        self.times = [op["t"] for op in self.ops]

    def between(self, begin, end):
        return self.ops[bisect.bisect_right(self.times, begin): bisect.bisect_left(self.times, end)]

    def begun(self, begin, end, seq):
        """Those past `seq` that were called for in this time."""
        return [op for op in self.between(begin, end) if op["seq"] > seq]

    def waits_at(self, t, seq):
        """Whether one past `seq` was called for before `t` and answered after it."""
        return any(op["seq"] > seq and op["ret"] > t for op in self.between(t - PATIENCE_S, t))

"""The oracle: reads the logs of a run and says which promise was broken. It uses nothing of fencegate's code.

It knows what writers have sent (calls), what the gate has answered (grants), what the store has done
(store), and when gates were started and routes moved (driver). All times are on one clock. The store's log is
the order of what was applied; events of different logs may be read in any order.

The gate sent an answer before the `ret` at which a client has it, and after the `quiet` at which it was not there yet.
"""
from collections import namedtuple

from keyed import Keys
from objects import is_external
from stories import Story, Write

# `also`: another object that has to do with it.
Violation = namedtuple("Violation", "promise object t what also")
# What the end of a call adds to it.
SAID = ("outcome", "code", "quiet", "value", "lease", "acknowledged", "moved", "replayed")


class Oracle:
    def __init__(self):
        self.stories = {}
        self.writes = {}
        self.ops = {}
        self.open = set()
        self.leases = {}
        self.starts = []
        self.tails_lost = []
        self.incarnations = []
        self.moves = []
        self.holds = []
        self.pauses = []
        self.agents = []
        self.violations = []
        self.acknowledged = []
        self.keys = Keys(self)

    def story(self, object_id):
        return self.stories.setdefault(object_id, Story())

    def broken(self, promise, object_id, t, what, also=None):
        self.violations.append(Violation(promise, object_id, t, f"{object_id}: {what}", also))

    def feed(self, driver=(), calls=(), grants=(), store=()):
        """Takes in what is new in each log. The store's must have been read first: what it has seen was sent before."""
        acknowledged, self.acknowledged = self.acknowledged, []
        judge_replayed = self.keys.judge()
        for name, events in (("driver", driver), ("call", calls), ("grant", grants), ("store", store)):
            for event in events:
                handler = getattr(self, f"{name}_{event['event']}", None)
                if handler:
                    handler(event)
        # These were answered before the store's log was read.
        for write in acknowledged:
            if write.applied is None:
                self.broken("ACKNOWLEDGED", write.op["object"], write.op["ret"],
                            f"write {write.op['id']} was answered with success and not applied")
        judge_replayed()

    # What the driver did.

    def driver_started(self, event):
        self.starts.append(event["t"])

    def driver_tail_lost(self, event):
        """Bytes that were synced are gone: acknowledged leases may be forgotten, fences may not."""
        self.tails_lost.append(event["t"])

    def driver_incarnation(self, event):
        """A gate was ready that has found part of its table's past lost."""
        self.incarnations.append(event["t"])

    def driver_moved(self, event):
        """Paths under /s/ belong to other objects: from `begun` on perhaps, from `t` on for certain."""
        self.moves.append((event["begun"], event["t"], event["moving"]))

    def driver_held(self, event):
        """A sync was held open from `begun` to `t`."""
        self.holds.append((event["begun"], event["t"]))

    # What writers sent.

    def call_call(self, event):
        self.ops[event["id"]] = op = dict(event, outcome=None)
        self.open.add(event["id"])
        if event["op"] == "write":
            self.writes.setdefault(event["id"], Write()).op = op
            self.story(event["object"]).write_calls.append(op)
            self.keys.sent(self.writes[event["id"]])
        elif event["op"] in ("acquire", "fence"):
            self.story(event["object"]).advance_calls.append(op)
        elif event["op"] == "advance":
            self.story(event["object"]).token_calls.append(op)
        elif event["op"] == "confirm":
            self.story(event["object"]).confirm_calls.append(op)

    def call_paused(self, event):
        """A writer was stopped from `begun` to `t`."""
        self.pauses.append(event)

    def call_agent(self, event):
        """An agent was stopped, killed or ended, from `begun` to `t`."""
        self.agents.append(event)

    def call_done(self, event):
        op = self.ops[event["id"]]
        self.open.discard(event["id"])
        op.update({key: event[key] for key in SAID if key in event})
        op["ret"] = event["t"]
        if op["op"] == "acquire":
            op["seq"] = event.get("seq")
        elif op["op"] == "fence":
            # The number that has no holder yet.
            op["seq"] = op["fences"] + 1 if op.get("acknowledged") else None
        if op["op"] == "write":
            self._write_done(op, event)

    def _write_done(self, op, event):
        write = self.writes[event["id"]]
        if op["outcome"] == "refused" and write.seen:
            self._refused(op)
        if op.get("key"):
            self.keys.done(write, event.get("fence_seq"))
        # A kept answer speaks of the attempt that it was given to first.
        if op.get("replayed"):
            return
        if op["outcome"] == "ok":
            self.acknowledged.append(write)
            if "digest" in op:
                self.story(op["object"]).to_journal.append(op)
        if event.get("fence_seq") not in (None, str(op["seq"])) and not op.get("by_agent"):
            self.broken("LINKED", op["object"], op["ret"],
                        f"write {op['id']} of {op['seq']} was answered as one of {event['fence_seq']}")
        if op["outcome"] == "ok" and is_external(op["object"]):
            # The fence was there when it was let go on.
            self._note_fence(op["object"], op["ret"], op["seq"])

    def _refused(self, op):
        self.broken("REFUSED", op["object"], op["ret"],
                    f"write {op['id']} was answered that nothing was sent ({op.get('code')}), and came to the store")

    # What the gate has answered.

    def grant_granted(self, event):
        story, object_id, seq = self.story(event["object"]), event["object"], event["seq"]
        before = story.granted.get(seq)
        who = (event["lease"], event["holder"])
        if before and (before["lease"], before["holder"]) != who:
            self.broken("UNIQUE", object_id, event["t"],
                        f"{seq} was granted to {before['holder']} ({before['lease']}) and to {who[1]} ({who[0]})")
        higher = story.fences.highest_before(event["quiet"])
        if not before and higher > seq:
            self.broken("MONOTONIC", object_id, event["t"],
                        f"{seq} was granted after its fence was answered as {higher}")
        story.granted.setdefault(seq, event)
        story.extend(seq, event["t"], event["ttl_ms"])
        self.leases[event["lease"]] = event
        self._note_fence(object_id, event["t"], seq)
        if not event["tainted"]:
            self._floor(object_id, event["t"], seq, f"{seq} was granted")

    def grant_renewed(self, event):
        story = self.story(event["object"])
        story.extend(event["seq"], event["t"], event["ttl_ms"])
        over = story.over.get(event["seq"])
        if event["sure"] and over is not None and event["quiet"] > over:
            self.broken("NO REVIVAL", event["object"], event["t"],
                        f"{event['seq']} was renewed, though the gate had said that it was over")

    def grant_revoked(self, event):
        self._check_fence(event)
        if event["drained"]:
            self._floor(event["object"], event["t"], event["fence"], f"it was revoked up to {event['fence']}")

    def grant_certified(self, event):
        """A certificate for the lease `seq` was taken."""
        self._check_fence(event)
        if event["fence"] <= event["seq"]:
            self.broken("MONOTONIC", event["object"], event["t"],
                        f"its fence is {event['fence']}, though a certificate has fenced {event['seq']}")
        self.story(event["object"]).end(event["seq"], event["t"])
        if event["acknowledged"]:
            self.grant_acknowledged(event)

    def grant_acknowledged(self, event):
        """The gate's word that nothing of the lease `seq` lands any more."""
        seq = event["seq"]
        self.story(event["object"]).end(seq, event["t"])
        self._floor(event["object"], event["t"], seq + 1, f"the fence of {seq} was acknowledged")

    def grant_mismatch(self, event):
        """A new holder's hash was not the gate's. Where it did not lie, one of them is wrong about the journal."""
        self.story(event["object"]).lies_sent += event["lies"]
        if not event["lies"]:
            self.broken("JOURNAL", event["object"], event["t"],
                        f"the hash over its {event['writes']} entries is {event['hash']}, the gate's {event['reported']}")

    def grant_journal(self, event):
        """A requester has pulled the journal behind an entry, for a migration that was asked for at `call`."""
        story, object_id = self.story(event["object"]), event["object"]
        if not event["after"]:
            story.journal, story.journal_seq = set(), 0
        for number, seq, _, digest in event["entries"]:
            if seq is not None and seq < story.journal_seq:
                self.broken("JOURNAL", object_id, event["t"],
                            f"entry {number} of {seq} is behind one of {story.journal_seq}")
            story.journal_seq = max(story.journal_seq, seq or 0)
            story.journal.add(digest)
        for op in [op for op in story.to_journal if op["ret"] < event["call"]]:
            story.to_journal.remove(op)
            if op["digest"] not in story.journal and not any(op["t"] < t for t in self.tails_lost):
                self.broken("JOURNAL", object_id, event["t"],
                            f"write {op['id']} was answered with success, and the journal does not have it")
        story.journals_read += 1

    def grant_issued(self, event):
        """The lock service has given a writer a number."""
        self.story(event["object"]).issued[event["seq"]] = event

    def grant_advanced(self, event):
        """The gate's word that nothing below `seq` lands any more."""
        object_id, seq = event["object"], event["seq"]
        self._check_fence(event)
        if event["fence"] != seq:
            self.broken("MONOTONIC", object_id, event["t"],
                        f"its fence is {event['fence']}, though it was advanced to {seq}")
        if self._is_locked(object_id, event["call"], event["t"]):
            self.broken("UNKNOWN IS DENIED", object_id, event["t"],
                        f"it was advanced to {seq}, though part of its past was lost and no operator has confirmed")
        self._floor(object_id, event["t"], seq, f"it was advanced to {seq}")

    def grant_confirmed(self, event):
        """An operator has said that nothing below `seq` may write. What was on its way may still land."""
        self.story(event["object"]).confirmed.append(event["t"])
        self._check_fence(event)

    def grant_over(self, event):
        self.story(event["object"]).end(event["seq"], event["t"])
        if event.get("code") == "WRITE_STALE_FENCE" and event["fence"] <= event["seq"]:
            self.broken("STALE", event["object"], event["t"],
                        f"a write of {event['seq']} was called stale, though its fence is {event['fence']}")

    def grant_fence(self, event):
        self._check_fence(event)

    def grant_lease(self, event):
        """A client has read a lease."""
        granted = self.leases.get(event["lease"])
        if granted is None:
            return
        object_id, seq = granted["object"], granted["seq"]
        if event["state"] == "missing" and not any(granted["call"] < t for t in self.tails_lost):
            self.broken("DURABLE", object_id, event["t"], f"the grant of {seq} ({event['lease']}) was forgotten")
        over = self.story(object_id).over.get(seq)
        if event["state"] == "held" and over is not None and event["quiet"] > over:
            self.broken("NO REVIVAL", object_id, event["t"], f"{seq} is held again, though the gate had said that it was over")

    def _check_fence(self, event):
        higher = self.story(event["object"]).fences.highest_before(event["quiet"])
        if higher > event["fence"] and not self._is_in_doubt(event):
            self.broken("MONOTONIC", event["object"], event["t"],
                        f"its fence is {event['fence']}, after it was answered as {higher}")
        self._note_fence(event["object"], event["t"], event["fence"])

    def _is_in_doubt(self, event):
        """Whether the gate could not know a fence: part of the past of numbers that are given elsewhere was lost, and
        it was not confirmed before the gate may have looked."""
        if not is_external(event["object"]):
            return False
        confirmed = self.story(event["object"]).confirmed
        return any(lost < event["t"] and not any(lost < t < event["quiet"] for t in confirmed)
                   for lost in self.incarnations)

    def _is_locked(self, object_id, sent, done):
        """Whether a write that was sent at `sent` had to be denied at `done`: no operator had asked to confirm the object."""
        lost = max((t for t in self.incarnations if t < sent), default=None)
        calls = self.story(object_id).confirm_calls
        return lost is not None and not any(lost < op["t"] < done for op in calls)

    def _note_fence(self, object_id, t, fence):
        """A caller got an object's fence."""
        self.story(object_id).fences.add(t, fence)

    def _floor(self, object_id, t, seq, why):
        """Nothing below `seq` lands any more."""
        story = self.story(object_id)
        story.floors.add(t, seq)
        for applied_at, write in story.applied_after(t):
            self._judge_applied(write, applied_at, f"after {why}" if write.seq < seq else None)
        if object_id.startswith(("ra-", "rb-")):
            self._judge_moved(object_id, t)

    # What the store did.

    def _write(self, event):
        write = self.writes.setdefault(event["write"], Write())
        if write.object is None:
            write.object, write.seq, write.path = event["object"], event["seq"], event["path"]
        return write

    def store_begun(self, event):
        write = self._write(event)
        self._seen(event, write)
        write.begun, op = event["t"], write.op
        if op is None:
            return self.broken("UNFENCED", event["object"], event["t"], f"no client sent write {event['write']}")
        if event["object"] is None:
            return self.broken("UNFENCED", op["object"], event["t"],
                               f"write {event['write']} came without the gate's word for it")
        if op["outcome"] == "refused":
            self._refused(op)
        if op.get("token") is not None:
            self.broken("UNFENCED", op["object"], event["t"],
                        f"write {event['write']} came without its lease's token")
        # An agent's numbers are its own.
        sent = (op["object"], event["seq"] if op.get("by_agent") else op["seq"])
        came = (event["object"], event["seq"])
        if sent != came:
            self.broken("LINKED", event["object"], event["t"], f"write {event['write']} of {sent} came as {came}")
        if op.get("key"):
            self.keys.begun(write)
        return self._judge_begun(write)

    def store_race(self, event):
        if event["write"] is not None:
            write = self.writes.setdefault(event["write"], Write())
            write.is_race = True
            self._seen(event, write)
            if write.op and write.op["outcome"] == "refused":
                self._refused(write.op)

    def store_answered(self, event):
        write = self._write(event)
        write.is_early = event["status"] == 413
        write.is_slow = write.applied is not None and event["t"] > write.applied + 0.015

    def _seen(self, event, write):
        if write.seen is not None:
            self.broken("ONE ATTEMPT", event.get("object") or write.object, event["t"],
                        f"write {event['write']} came twice")
        write.seen = event["t"]

    def store_received(self, event):
        self._write(event).received = event["t"]

    def store_cut(self, event):
        self._write(event).cut = event["t"]

    def store_applied(self, event):
        write = self._write(event)
        if write.applied is not None:
            self.broken("ONE ATTEMPT", event["object"], event["t"], f"write {event['write']} was applied twice")
        write.applied, write.is_late = event["t"], not event["alive"]
        if write.op and write.op.get("key"):
            self.keys.applied(write, event["t"])
        self._applied(event, write)

    def store_partial(self, event):
        write = self._write(event)
        write.partial = event["t"]
        self._applied(event, write)

    def _applied(self, event, write):
        if event["object"] is None:
            return
        story, t = self.story(event["object"]), event["t"]
        if event["seq"] < story.highest_applied:
            self.broken("DRAIN", event["object"], t,
                        f"write {event['write']} of {event['seq']} was applied after one of {story.highest_applied}")
        story.highest_applied = max(story.highest_applied, event["seq"])
        write.name = event["write"]
        story.add_applied(t, write)
        self._judge_applied(write, t)
        self._judge_path(write, t)

    # Judging.

    def _judge_begun(self, write):
        """A write came to the store that was sent after its lease was over."""
        story, op = self.story(write.object), write.op
        over = story.over.get(write.seq)
        until = story.until(write.seq, op["t"], self.starts)
        higher = story.floors.highest_before(op["t"])
        what = f"write {op['id']} of {write.seq} came to the store, though"
        if over is not None and op["t"] > over:
            self.broken("NO REVIVAL", write.object, write.begun,
                        f"{what} the gate had said that this lease was over before the write was sent")
        elif higher > write.seq:
            self.broken("STALE", write.object, write.begun, f"{what} the fence was at {higher} before it was sent")
        elif op.get("by_agent"):
            # Only the agent knows what it was granted.
            return
        elif is_external(write.object):
            self._judge_token(write, what)
        elif until is not None and op["t"] > until:
            self.broken("EXPIRY", write.object, write.begun, f"{what} that lease had run out before it was sent")
        elif until is None:
            self.broken("UNFENCED", write.object, write.begun, f"{what} {write.seq} was never granted")
        elif story.granted[write.seq]["holder"] != op["holder"]:
            self.broken("LINKED", write.object, write.begun,
                        f"{what} {op['holder']} is not who was granted {write.seq}")

    def _judge_token(self, write, what):
        """A write came to the store with a number of the lock service's."""
        issued, op = self.story(write.object).issued.get(write.seq), write.op
        if issued is None:
            self.broken("UNFENCED", write.object, write.begun, f"{what} {write.seq} was never given")
        elif issued["holder"] != op["holder"]:
            self.broken("LINKED", write.object, write.begun,
                        f"{what} {op['holder']} is not who was given {write.seq}")
        elif self._is_locked(write.object, op["t"], write.begun):
            self.broken("UNKNOWN IS DENIED", write.object, write.begun,
                        f"{what} part of its past was lost and no operator had confirmed")
        # It was let go on only when nothing older could land any more.
        if self.story(write.object).floors.highest_before(write.begun) < write.seq:
            self._floor(write.object, write.begun, write.seq, f"a write of {write.seq} was let go on")

    def _judge_applied(self, write, t, why=None):
        story = self.story(write.object)
        higher = story.floors.highest_before(t)
        if higher > write.seq and not write.is_told_of:
            write.is_told_of = True
            why = why or f"after {higher} was {'let go on' if is_external(write.object) else 'granted'}"
            self.broken("DRAIN", write.object, t, f"write {write.name} of {write.seq} was applied {why}")

    def _judge_path(self, write, t):
        """A write that went by an older version of its route was applied after the path had changed hands."""
        if write.path is None or not write.path.startswith("/s/"):
            return
        for begun, done, until, moving in self._eras():
            object_id = f"{moving}-{write.path.split('/')[2]}"
            if done < t < until and object_id != write.object:
                story = self.story(object_id)
                if any(done < event["call"] and event["t"] < t for event in story.granted.values()):
                    self.broken("DRAIN", write.object, t,
                                f"write {write.name} went by the old route, and was applied after {object_id} was "
                                "granted", also=object_id)

    def _judge_moved(self, object_id, t):
        other = ("rb-" if object_id.startswith("ra-") else "ra-") + object_id[3:]
        for applied_at, write in self.story(other).applied_after(t):
            self._judge_path(write, applied_at)

    def _eras(self):
        """When a path belonged to which objects for certain: (move begun, done, next move begun, prefix)."""
        ends = [begun for begun, _, _ in self.moves[1:]] + [float("inf")]
        return [(begun, done, end, moving) for (begun, done, moving), end in zip(self.moves, ends)]

"""What the oracle remembers of an object and of a write."""
import bisect


class Rising:
    """Values at times; asked for the highest before a time."""

    def __init__(self):
        self.times, self.highest = [], []

    def add(self, t, value):
        at = bisect.bisect_right(self.times, t)
        before = self.highest[at - 1] if at else 0
        self.times.insert(at, t)
        self.highest.insert(at, max(before, value))
        for later in range(at + 1, len(self.highest)):
            if self.highest[later] >= value:
                break
            self.highest[later] = value

    def highest_before(self, t):
        at = bisect.bisect_left(self.times, t)
        return self.highest[at - 1] if at else 0


class Write:
    """A write: what was sent (`op`), and what the store saw of it."""

    def __init__(self):
        self.op = self.object = self.seq = self.path = self.name = None
        self.seen = self.begun = self.received = self.cut = self.applied = self.partial = None
        self.is_told_of = self.is_race = self.is_early = self.is_slow = self.is_late = self.is_again = False


class Story:
    """What was said about one object, and done to it."""

    def __init__(self):
        self.granted = {}
        self.fences = Rising()
        self.floors = Rising()
        self.over = {}
        self.ends = {}
        self.ttls = {}
        self.highest_applied = 0
        self.applied_at, self.applied_writes = [], []
        self.advance_calls, self.write_calls = [], []
        # The digests of what its journal has, the highest number in there, and what must come to be in there.
        self.journal, self.journal_seq, self.to_journal = set(), 0, []
        self.journals_read = self.lies_sent = 0
        # Where its lock is kept elsewhere: whose numbers are whose, who has called for an advance, what operators have
        # said, and when they had their answer.
        self.issued = {}
        self.token_calls, self.confirm_calls, self.confirmed = [], [], []

    def extend(self, seq, t, ttl_ms):
        """A lease may live for its ttl from here on."""
        self.ends[seq] = max(self.ends.get(seq, 0), t + ttl_ms / 1000)
        self.ttls[seq] = max(self.ttls.get(seq, 0), ttl_ms / 1000)

    def until(self, seq, t, starts):
        """When a lease is over at the latest, as seen at `t`. A start may give it its whole ttl again: the wall
        clock that it was written down by may have been set."""
        if seq not in self.ends:
            return None
        at = bisect.bisect_right(starts, t)
        return max(self.ends[seq], starts[at - 1] + self.ttls[seq] if at else 0)

    def end(self, seq, t):
        self.over[seq] = min(self.over.get(seq, t), t)

    def add_applied(self, t, write):
        at = bisect.bisect_right(self.applied_at, t)
        self.applied_at.insert(at, t)
        self.applied_writes.insert(at, write)

    def applied_after(self, t):
        at = bisect.bisect_right(self.applied_at, t)
        return list(zip(self.applied_at[at:], self.applied_writes[at:]))

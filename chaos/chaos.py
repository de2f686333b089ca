"""The driver of a chaos run: plays a shuffled deck of faults on a gate under load, checks after each, and says in
the end what was seen."""
import contextlib
import functools
import json
import random
import sys
import time

import faults
from client import Down
from counts import Counts
from gate import wait_until
from history import linearize
from lab import Broken, Lab
from logs import now
from objects import AGENTS, EXTERNAL, MIGRATED, OBJECTS
from processes import Failed, Helper

WRITERS = 14
# Those whose locks are kept elsewhere, each a process.
LOCKERS = 6
# Agents, with an application behind each.
AGENT_PROCESSES = 2
HOLDERS = [f"w{n}" for n in range(WRITERS)] + ["driver"]
LEASES_LOOKED_AT = 30
FRESH_LOOKED_AT = 40
# How long a gate works under load before something is done to it. After an unclean start it waits first.
LOAD_S = (0.05, 0.5)

# A fault, what it is called, and how often it is in a deck: a little more often than it must be seen.
DECK = [
    (faults.kill, "", 16),
    (faults.stop_under_load, "", 6),
    (faults.stop_past_ttl, "SIGSTOP past the ttl", 11),
    (faults.stop_cleanly, "SIGTERM", 10),
    (faults.reload, "reload", 10),
    (faults.move_across_kill, "", 3),
    (faults.fail_sync, "EIO", 10),
    (faults.fill_disk, "disk full", 10),
    (faults.cut_power, "power cut", 10),
    (faults.clock_forward, "clock forward", 10),
    (faults.clock_back, "clock back", 10),
    (faults.read_slowly_across_kill, "slow read across a kill", 10),
    (faults.migrate_across_kill, "migration across a kill", 11),
    (faults.keyed_across_kill, "keyed writes across a kill", 7),
    (faults.hold_syncs, "", 5),
    (faults.hold_sync_under_load, "", 6),
    (faults.tear_tail, "new incarnations after a lost first grant", 10),
    (functools.partial(faults.flip, pattern="*.log"), "bit flip in the log", 10),
    (functools.partial(faults.flip, pattern="MANIFEST-*"), "bit flip in the manifest", 10),
    (functools.partial(faults.flip, pattern="*.sst"), "bit flip in a table file", 10),
    *((functools.partial(faults.kill_at_point, point=point), "kill at a point", 1) for point in faults.POINTS),
    *((functools.partial(faults.kill_in_drain, point=point), "kill in an external drain", number)
      for point, number in ((None, 3), ("persisted", 2), ("published", 2), ("drained", 1))),
]

# What matters where locks are kept elsewhere.
EXTERNAL_DECK = [
    (faults.kill, "", 4),
    (faults.stop_under_load, "", 2),
    (faults.cut_power, "power cut", 2),
    (faults.hold_sync_under_load, "", 2),
    (faults.tear_tail, "new incarnations after a lost first grant", 2),
    *((functools.partial(faults.kill_in_drain, point=point), "kill in an external drain", 2)
      for point in (None, "persisted", "published", "drained")),
]


class Run:
    """One run: its parts, its random numbers, its counts. `external`: of what has to do with outside locks only."""

    def __init__(self, lab, seed, external=False):
        self.lab, self.gate = lab, lab.gate
        self.random = random.Random(f"{seed}/driver")
        self.counts = Counts(lab.oracle)
        self.client = lab.client("driver")
        self.locks = lab.locks()
        # Objects that are locked until an operator confirms their fence.
        self.doubtful = set()
        self.made = []
        self.deck = EXTERNAL_DECK if external else DECK
        self.is_external = external
        self.writers = []
        self.seed = seed
        # Played to their end.
        self.decks = 0

    # What faults use.

    def start(self, **extra):
        self.lab.start(**extra)
        self.confirm()

    def started(self):
        self.lab.started()
        self.confirm()

    def confirm(self):
        """What an operator does when part of the table's past was lost: a number above all that were given is the
        lowest that may write from here on."""
        self.client.hang_up()
        if self.gate.has_lost():
            self.doubtful |= set(EXTERNAL)
        for object_id in sorted(self.doubtful):
            try:
                is_done = self.client.confirm(object_id, self.locks.next(object_id))
            except Down:
                # It has gone already; the next one is asked again.
                is_done = False
            if is_done:
                self.doubtful.discard(object_id)
                self.counts.add("external objects confirmed")

    def kill(self):
        self.gate.kill()
        self.counts.add("kill")

    def fresh(self, kind):
        """The name of an object that never was."""
        self.made.append(f"{kind}{len(self.made)}-{self.seed}")
        return self.made[-1]

    def known(self):
        return OBJECTS + MIGRATED + EXTERNAL + AGENTS + ["ra-1", "ra-2", "rb-1", "rb-2"] + self.made[-FRESH_LOOKED_AT:]

    @contextlib.contextmanager
    def at_rest(self):
        """While no writer does anything, and no write may land any more."""
        rest = self.lab.folder / "rest"
        rest.touch()
        try:
            wait_until("the writers' rest", self.is_quiet, pause_s=0.01)
            time.sleep((self.lab.bounds["delivery_bound_ms"] + self.lab.bounds["apply_bound_ms"] + 30) / 1000)
            yield
        finally:
            rest.unlink()

    def is_quiet(self):
        self.lab.judge()
        return not self.lab.oracle.open

    def check(self, must_answer=True):
        """Asks the gate for what it has acknowledged, and has everything judged. `must_answer`: it must answer for all objects."""
        client = self.client.twin()
        unanswered = [name for name in self.known() if client.fence(name) is None]
        if unanswered and must_answer:
            raise Failed(f"the gate does not answer for the fences of {', '.join(unanswered)}")
        grants = list(self.lab.oracle.leases.values())[-LEASES_LOOKED_AT:]
        for event in grants:
            client.lease_state(event["object"], event["seq"], event["lease"])
        self.lab.judge()

    # The run itself.

    def play(self, duration):
        """Plays decks until the time is up, and at least one."""
        begun = self.shown = now()
        self.start()
        for program, number in ("lockers.py", LOCKERS), ("writers.py", 0 if self.is_external else WRITERS):
            self.writers.append(Helper(program, self.lab.folder, self.lab.grants.port, self.seed, number,
                                       errors=self.lab.folder / "errors"))
        if not self.is_external:
            self.writers.append(Helper("agents.py", self.lab.folder, self.lab.grants.port, self.seed, AGENT_PROCESSES,
                                       self.gate.binary, errors=self.lab.folder / "errors"))
        until = begun + duration
        self.play_deck(float("inf"))
        while now() < until:
            self.play_deck(until)
        for writers in self.writers:
            writers.stop()
        self.check()
        # What was acknowledged last is held against the store's log the next time.
        self.lab.judge()
        errors = (self.lab.folder / "errors").read_text()
        if errors:
            raise Failed(f"a part of the run has failed: {errors[-2000:]}")

    def play_deck(self, until):
        """Plays a deck to its end, or until the time is up."""
        deck = [(fault, name) for fault, name, number in self.deck for _ in range(number)]
        self.random.shuffle(deck)
        size = len(deck)
        tries = 3 * size
        while deck and tries and now() < until:
            fault, name = deck.pop()
            tries -= 1
            begun = now()
            try:
                time.sleep(self.random.uniform(*LOAD_S))
                seen = fault(self)
                self.check()
            except (OSError, Down, Failed) as error:
                raise Failed(f"{name or fault.__name__}: {type(error).__name__}: {error}") from error
            self.lab.driver.note(now(), "fault", name=name, seen=seen, took=round(now() - begun, 3))
            if seen and name:
                self.counts.add(name)
            elif not seen:
                # Once more, somewhere else in the deck.
                deck.insert(self.random.randint(0, len(deck)), (fault, name))
            self.show(size - len(deck), size)
        self.decks += not deck

    def show(self, done, size):
        if sys.stderr.isatty() and now() > self.shown + 3:
            self.shown = now()
            print(f"{done}/{size} faults, {len(self.lab.oracle.writes)} writes, no violation", file=sys.stderr)


def chaos(binary, seed, duration, external=False):
    """Plays a run; returns the exit code. `external`: of what has to do with outside locks only."""
    print(f"seed {seed}", flush=True)
    begun = now()
    with Lab(binary, HOLDERS) as lab:
        run = Run(lab, seed, external)
        wrong, code = played(run, duration)
        if code in (0, 3):
            report(run, now() - begun)
        if code:
            lab.keep_disk()
            print(f"{wrong}\nseed {seed}; the logs are in {lab.folder}")
            return code
    lab.remove()
    return 0


def played(run, duration):
    """What has gone wrong, and the exit code: 1 a promise was broken, 2 the run itself failed, 3 it saw too little."""
    try:
        try:
            run.play(duration)
        except Failed:
            # Whatever else went wrong, a broken promise comes first.
            run.lab.judge()
            raise
        linearize(run.lab, OBJECTS + EXTERNAL)
    except Broken as broken:
        return str(broken), 1
    except Failed as failed:
        return f"the run has failed: {failed}", 2
    missing = run.counts.missing_external() if run.is_external else run.counts.missing(max(1, run.decks))
    return (f"too little was seen: {'; '.join(missing)}", 3) if missing else (None, 0)


def report(run, seconds):
    found, oracle = run.counts.all(), run.lab.oracle
    grants = sum(len(story.granted) for story in oracle.stories.values())
    applied = sum(write.applied is not None for write in oracle.writes.values())
    kinds = ", ".join(f"{what} {number}" for what, number in sorted(found.items()))
    print(f"chaos, {seconds:.0f} s: {kinds}; {len(oracle.writes)} writes ({applied} applied), {grants} grants, "
          f"{found['overtakes judged']} overtakes judged, violations {len(oracle.violations)}")
    print(json.dumps({"seed": run.seed, "seconds": round(seconds), "faults": dict(sorted(found.items())),
                      "writes": len(oracle.writes), "applied": applied, "grants": grants,
                      "overtakes": found["overtakes judged"], "violations": len(oracle.violations)}))

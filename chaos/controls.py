"""Negative controls: a gate with one of its test faults, in the one situation where that matters. The same oracle
must name the promise that is broken; without the fault the same play must pass.

The plays wait for events (a line in the store's log, a held sync, a file of a failpoint), not for time. Where the gate
does right, a call goes on waiting, and that is no event: there the play goes once through the gate's only worker and
through its ledger, and then gives an answer that is on its way a moment to come.
"""
import functools
import signal

from authority import Authority
from client import Keyed, in_background
from gate import wait_until
from lab import Broken, Lab
from logs import Tail, now
from processes import Failed

BOUNDS = {"response_timeout_ms": 8_000, "delivery_bound_ms": 100, "apply_bound_ms": 2_500, "workers": 1}
# With a fault a grant comes that should wait; it is given all the time that a starved machine may take.
MOMENT_S, LONG_S = 0.3, 6
TTL_MS = 60_000
# Who can ask for a migration.
HOLDERS = ["b"]


class Play:
    """What the plays use: two holders, a file that the store waits for, and the store's log."""

    def __init__(self, lab, fault):
        self.lab, self.gate, self.fault = lab, lab.gate, fault
        # Two connections of one holder, another holder, and a client of other objects.
        self.a, self.a2, self.b, self.other = (lab.client(name) for name in ("a", "a", "b", "other"))
        self.authority = Authority(self.b)
        self.file = lab.folder / "go"
        self.store = Tail(lab.folder / "store.jsonl")
        self.seen = []

    def start(self, **extra):
        if self.fault:
            extra["FENCEGATE_TEST_FAULT"] = self.fault
        self.lab.start(**extra)
        for client in (self.a, self.a2, self.b, self.other):
            client.hang_up()

    def saw(self, *events):
        """Whether the store has noted one of these."""
        self.seen += [event["event"] for event in self.store.new()]
        return any(event in self.seen for event in events)

    def wait_for(self, *events):
        wait_until(f"{events} at the store", lambda: self.saw(*events))

    def is_draining(self):
        return self.gate.metric("fencegate_advances_draining") >= 1

    def round_trip(self):
        """Whatever had come to the gate's worker and its ledger before this has been dealt with after it."""
        self.other.read("other")
        self.other.acquire("other", TTL_MS, wait_ms=0)

    def let_come(self, call):
        """Gives a grant that does not wait the time to come."""
        self.round_trip()
        call(LONG_S if self.fault else MOMENT_S)

    def go(self):
        self.file.touch()

    # How a holder comes by its lease, or by a lock that is kept elsewhere.

    def acquire(self):
        return self.a.acquire("x", TTL_MS)

    def take(self):
        lock = self.lock(self.a)
        if not self.a.advance(lock):
            raise Failed("in vain: the fence was to follow")
        return lock

    @functools.cached_property
    def locks(self):
        return self.lab.locks()

    def lock(self, client):
        lock = client.take(self.locks, "x-x", TTL_MS)
        self.locks.release(lock)
        return lock

    # How a lease moves on.

    def rotate(self, lease):
        return in_background(lambda: self.a2.rotate(lease, TTL_MS))

    def fence(self, lease):
        return in_background(lambda: self.authority.fence(self.authority.certificate(lease)))

    def migrate(self, lease):
        return in_background(lambda: self.authority.migrate(lease.object, TTL_MS, patience_s=20))

    def advance(self, _):
        lock = self.lock(self.b)
        return in_background(lambda: self.b.advance(lock))

    def outrun(self, _):
        """The next holder writes with its number at once."""
        lock = self.lock(self.b)
        return in_background(lambda: self.b.write(lock) == "ok")

    def land_late(self, moved_on, *events):
        """The lease moves on; then what is on its way to the store lands."""
        self.let_come(moved_on)
        self.go()
        self.wait_for(*events)
        if not moved_on():
            raise Failed("in vain: the lease was to move on")


def write_on_its_way(play, by=Play.rotate, have=Play.acquire):
    """A write is at the store, which has not applied it yet, when the lease moves on."""
    play.start()
    lease = have(play)
    upload = play.a.upload(lease, f"until:{play.file}")
    play.wait_for("received")
    play.land_late(by(play, lease), "applied")
    upload.finish()


def write_while_sealed(play, by=Play.rotate, have=Play.acquire):
    """A write comes while the sync of the grant that ends its lease is under way."""
    play.start()
    lease, control = have(play), play.gate.control
    before = control.held_syncs
    control.hold_sync = 1
    moved_on = by(play, lease)
    wait_until("a held sync", lambda: control.held_syncs > before)
    upload = play.a.upload(lease, f"until:{play.file}")
    wait_until("the write's fate", lambda: play.saw("received") or upload.is_answered())
    control.hold_sync = 0
    moved_on()
    play.go()
    upload.finish()


def power_cut(play, have=Play.acquire):
    """A grant is answered, and the power goes away."""
    play.start()
    lease = have(play)
    play.gate.kill()
    play.gate.synced.cut()
    play.start()
    play.a.fence(lease.object)


def power_cut_after_a_certificate(play):
    """A lease is fenced, that is acknowledged, and the power goes away: only what was before that was synced."""
    play.start()
    lease = play.a.acquire("x", TTL_MS)
    play.gate.stop()
    play.start()
    if not play.fence(lease)():
        raise Failed("in vain: the certificate was to be acknowledged")
    play.gate.kill()
    play.gate.synced.cut()
    play.start()
    play.a.fence("x")


def body_after_the_advance(play, by=Play.rotate, have=Play.acquire):
    """A write is admitted, and its body comes when the lease has moved on."""
    play.start()
    lease = have(play)
    upload = play.a.upload(lease, "", b"x" * 100, first=0, asks=True)
    if not by(play, lease)():
        raise Failed("in vain: the lease was to move on")
    upload.finish()


def overtaken_batch(play):
    """An operator revokes one of two objects while a batch waits for the other."""
    play.start()
    leases = {lease.object: lease for lease in play.a.acquire_batch(["x", "y"], TTL_MS)}
    upload = play.a.upload(leases["y"], f"until:{play.file}")
    play.wait_for("received")
    taken = in_background(lambda: play.a2.acquire_batch(["x", "y"], TTL_MS, takeover=True, wait_ms=10_000))
    wait_until("the drain", play.is_draining)
    play.other.revoke("x", force=True)
    revoked = now()
    # Its answer was certainly not there when the operator had his.
    wait_until("a look", lambda: taken.is_done() or play.a2.conns["api"].quiet > revoked)
    play.go()
    taken()
    upload.finish()


def slow_load(play):
    """A row is read, and offered to memory when an advance has made it old."""
    play.start()
    lease = play.a.acquire("x", TTL_MS)
    if play.gate.stop() != 0:
        raise Failed("the stop was not clean")
    hold = play.lab.folder / "hold"
    play.start(FENCEGATE_TEST_POINT=f"loaded=hold:{hold}", CHAOS_HOLDS_ONE=hold)
    hold.touch()
    upload = play.a.upload(lease)
    wait_until("a held load", lambda: hold.with_name("hold.reached").exists())
    play.a2.rotate(lease, TTL_MS)
    hold.unlink()
    upload.finish()


def stop_with_unknown(play):
    """The gate is stopped while a write may still land, and started again."""
    play.start()
    lease = play.a.acquire("x", TTL_MS)
    play.a.write(lease, f"reset until:{play.file}")
    play.gate.stop()
    play.start()
    play.land_late(play.rotate(lease), "applied", "expired")


def head_first(play):
    """The store begins to answer, and applies the write before it is done with that."""
    hold = play.lab.folder / "hold"
    hold.touch()
    play.start(FENCEGATE_TEST_POINT=f"sent=hold:{hold}")
    lease = play.a.acquire("x", TTL_MS)
    upload = play.a.upload(lease, f"head until:{play.file}")
    wait_until("the head of the answer", lambda: hold.with_name("hold.reached").exists())
    hold.unlink()
    play.land_late(play.rotate(lease), "applied")
    upload.finish()


def unknown_write(play, by=Play.rotate, have=Play.acquire):
    """The store resets the connection, and applies the write later."""
    play.start()
    lease = have(play)
    play.a.write(lease, f"reset until:{play.file}")
    play.land_late(by(play, lease), "applied", "expired")


def half_a_write(play, by=Play.rotate, have=Play.acquire):
    """Part of a body is at the store when the lease moves on; the store applies what it has."""
    play.start()
    lease = have(play)
    upload = play.a.upload(lease, f"part:0 until:{play.file}", bytes(30_000), first=12_000)
    play.wait_for("body")
    moved_on = by(play, lease)
    play.wait_for("cut")
    play.let_come(moved_on)
    play.go()
    play.wait_for("partial", "expired")
    moved_on()
    upload.finish()


def route_moves(play):
    """A path becomes another object's while a write by the old route is on its way."""
    play.start()
    lease = play.a.acquire("ra-1", TTL_MS)
    upload = play.a.upload(lease, f"until:{play.file}")
    play.wait_for("received")
    begun = now()
    play.gate.configure("rb")
    play.gate.signal(signal.SIGHUP)
    wait_until("the reload", lambda: play.gate.metric('fencegate_reloads_total{result="applied"}') == 1)
    play.lab.driver.note(now(), "moved", begun=begun, moving="rb")
    granted = in_background(lambda: play.b.acquire("rb-1", TTL_MS))
    # Nothing is granted meanwhile, so this event shows the fault.
    wait_until("a grant or a drain", lambda: granted.is_done() or play.is_draining())
    play.go()
    play.wait_for("applied")
    granted()
    upload.finish()


def write_after_release(play):
    """A lease is given back, and its holder writes on."""
    play.start()
    lease = play.a.acquire("x", TTL_MS)
    play.a.release(lease)
    play.a.write(lease)


def write_after_the_advance(play, by=Play.rotate, have=Play.acquire):
    """A holder writes with the token that it had before."""
    play.start()
    lease = have(play)
    by(play, lease)()
    play.a.write(lease)


def key_comes_again(play):
    """A keyed write was answered, and comes again."""
    play.start()
    lease, keyed = play.a.acquire("x", TTL_MS), Keyed(play.a, "x", b"value")
    for _ in range(2):
        if play.a.write(lease, key=keyed) != "ok":
            raise Failed("in vain: the write was to be applied, or its answer kept")


def power_cut_behind_a_keyed_write(play):
    """A keyed write was answered, the power goes away, and it comes again: only what was before it was synced."""
    play.start()
    lease, keyed = play.a.acquire("x", TTL_MS), Keyed(play.a, "x", b"value")
    play.gate.stop()
    play.start()
    if play.a.write(lease, key=keyed) != "ok":
        raise Failed("in vain: the write was to be applied")
    play.gate.kill()
    play.gate.synced.cut()
    play.start()
    # The gate waits for what may still land first.
    wait_until("an answer for the key", lambda: play.a.write(lease, key=keyed) != "refused", pause_s=0.03)


def crash_in_a_drain(play):
    """A higher number of an outside lock waits for a write of a lower one when the gate is killed; the next gate finds
    the advance half done, and that write lands. Only that one has the fault."""
    play.lab.start()
    lock = play.take()
    upload = play.a.upload(lock, f"until:{play.file}")
    play.wait_for("received")
    second = play.lock(play.b)
    moved_on = in_background(lambda: play.b.advance(second))
    wait_until("the drain", play.is_draining)
    play.gate.kill()
    moved_on()
    upload.finish()
    play.start()
    play.land_late(in_background(lambda: play.b.advance(second)), "applied", "expired")


def ended(play, how):
    """The same play, with a lease that moves on in another way."""
    return functools.partial(play, by=how)


def outside(play, how):
    """The same play, with a lock that is kept elsewhere."""
    return functools.partial(play, by=how, have=Play.take)


# By test fault, and by how the lease moves on where there are several ways: the play, and the promise that it breaks.
CONTROLS = {
    "no-drain": (write_on_its_way, "DRAIN"),
    "no-drain:certificate": (ended(write_on_its_way, Play.fence), "DRAIN"),
    "no-drain:migration": (ended(write_on_its_way, Play.migrate), "DRAIN"),
    "no-seal": (write_while_sealed, "DRAIN"),
    "no-sync": (power_cut, "MONOTONIC"),
    "no-sync:certificate": (power_cut_after_a_certificate, "MONOTONIC"),
    "no-commit-check": (body_after_the_advance, "DRAIN"),
    "no-commit-check:certificate": (ended(body_after_the_advance, Play.fence), "DRAIN"),
    "no-draining-state": (write_on_its_way, "DRAIN"),
    "no-step4-check": (overtaken_batch, "MONOTONIC"),
    "stale-load": (slow_load, "DRAIN"),
    "early-clean-flag": (stop_with_unknown, "DRAIN"),
    "head-settles": (head_first, "DRAIN"),
    "no-unknown-wait": (unknown_write, "DRAIN"),
    "no-unknown-wait:migration": (ended(unknown_write, Play.migrate), "DRAIN"),
    "partial-is-none": (half_a_write, "DRAIN"),
    "reload-no-wait": (route_moves, "DRAIN"),
    "revive": (write_after_release, "NO REVIVAL"),
    "forward-stale": (write_after_the_advance, "UNFENCED"),
    "forget-keys": (key_comes_again, "KEYED"),
    "no-sync:key": (power_cut_behind_a_keyed_write, "KEYED"),
    # Where the lock is kept elsewhere.
    "no-drain:external": (outside(write_on_its_way, Play.advance), "DRAIN"),
    "no-drain:external-crash": (crash_in_a_drain, "DRAIN"),
    "no-draining-state:external": (outside(write_on_its_way, Play.outrun), "DRAIN"),
    "no-seal:external": (outside(write_while_sealed, Play.outrun), "DRAIN"),
    "no-commit-check:external": (outside(body_after_the_advance, Play.outrun), "DRAIN"),
    "no-unknown-wait:external": (outside(unknown_write, Play.advance), "DRAIN"),
    "partial-is-none:external": (outside(half_a_write, Play.advance), "DRAIN"),
    "no-sync:external": (functools.partial(power_cut, have=Play.take), "MONOTONIC"),
    "forward-stale:external": (outside(write_after_the_advance, Play.advance), "UNFENCED"),
}


def play(binary, name, with_fault):
    """Plays one; returns what the oracle says (None: nothing) and how long it took."""
    act, _ = CONTROLS[name]
    begun = now()
    with Lab(binary, HOLDERS, BOUNDS) as lab:
        try:
            act(Play(lab, name.partition(":")[0] if with_fault else None))
            # Twice: what was acknowledged last is held against the store's log the next time.
            lab.judge()
            lab.judge()
            said = None
        except Broken as broken:
            said = str(broken)
        except Failed as failed:
            lab.keep_disk()
            raise Failed(f"{failed}; the logs are in {lab.folder}") from failed
    lab.remove()
    return said, now() - begun


def one(binary, name, with_fault):
    """Plays one control; returns the exit code."""
    if name not in CONTROLS:
        print(f"no such control: {name}; there are {', '.join(CONTROLS)}")
        return 2
    try:
        said, seconds = play(binary, name, with_fault)
    except Failed as failed:
        print(f"the control has failed: {failed}")
        return 2
    print(said or f"control {name}, {'with' if with_fault else 'without'} the fault: no violation, {seconds:.1f} s")
    return 1 if said else 0


def all_of(binary):
    """Plays all, with and without their fault; returns the exit code."""
    wrong = []
    print(f"{'fault':27} {'with it':24} {'without it':16} seconds")
    for name, (_, promise) in CONTROLS.items():
        (caught, long), (passed, longer) = tried(binary, name, True), tried(binary, name, False)
        first, second = (caught or "not caught").partition(":")[0], (passed or "no violation").partition(":")[0]
        print(f"{name:27} {first:24} {second:16} {long:.1f} + {longer:.1f}", flush=True)
        if first != f"VIOLATION {promise}" or passed:
            wrong.append(name)
            print(caught if first != f"VIOLATION {promise}" else passed)
    if wrong:
        print(f"controls that went wrong: {', '.join(wrong)}")
        return 1
    print(f"{len(CONTROLS)} plays of {len({name.partition(':')[0] for name in CONTROLS})} faults, each caught by name; "
          "without them, no violation")
    return 0


def tried(binary, name, with_fault):
    """The same as `play`; a play that could not be played to its end is something that went wrong, too."""
    try:
        return play(binary, name, with_fault)
    except Failed as failed:
        return f"FAILED: {failed}", 0.0

"""What a chaos run does to the gate. Each fault is a function that finds a gate running under load, does its
harm, and leaves a gate running. It returns whether its effect was seen: only then it counts.

Where something sleeps, the length of a load, a stop or a pause is the fault's input; events are waited for."""
import datetime
import signal
import time

from authority import Authority
from client import Keyed, in_background
from disk import Flip
from gate import wait_until
from logs import Tail, now
from objects import DRAINED, MIGRATED, OBJECTS
from processes import Failed
from signers import gate_ms

POINTS = ["loaded", "sealed", "persisted", "published", "drained", "admitted", "committed", "sent", "answered",
          "noted", "stopping", "stopped"]
OTHER = {"ra": "rb", "rb": "ra"}
LATCHED = "it is shut until this process is started again"


def kill(run):
    time.sleep(run.random.uniform(0.15, 0.6))
    run.kill()
    run.start()
    return True


def kill_at_point(run, point):
    """The gate kills itself in the midst of what it does."""
    run.kill()
    times = run.random.randint(1, {"loaded": 6, "drained": 6, "noted": 6, "stopping": 1, "stopped": 1}.get(point, 15))
    refused = run.gate.start(FENCEGATE_TEST_POINT=f"{point}=kill:{times}")
    if refused is not None:
        # Agents are at its ports before it says that it is ready.
        status = run.gate.process.returncode
        if status != -signal.SIGKILL:
            raise Failed(f"the gate does not start: {refused[-3000:]}")
        run.counts.add("kill")
        run.start()
        return True
    run.started()
    if point in ("stopping", "stopped"):
        with run.at_rest():
            run.gate.signal(signal.SIGTERM)
            status = run.gate.gone()
    else:
        try:
            status = run.gate.gone(5)
        except Failed:
            run.kill()
            run.start()
            return False
    if status == -signal.SIGKILL:
        run.counts.add("kill")
    run.start()
    return status == -signal.SIGKILL


def stop_past_ttl(run):
    """The gate is stopped for longer than a lease lives."""
    lease = run.client.acquire(run.fresh("p"), 150)
    if lease is None or run.client.write(lease) != "ok":
        return False
    run.gate.signal(signal.SIGSTOP)
    time.sleep(0.2)
    run.gate.signal(signal.SIGCONT)
    return run.client.write(lease) == "refused"


def stop_cleanly(run):
    with run.at_rest():
        status = run.gate.stop()
        run.start()
    return status == 0 and run.gate.metric("fencegate_table_unclean_start") == 0


def stop_under_load(run):
    """SIGTERM while writes are on their way, and some of unknown outcome: a stop that may not be a clean one."""
    run.gate.stop()
    run.start()
    return True


def reload(run):
    """The paths under /s/ become other objects'."""
    applied = 'fencegate_reloads_total{result="applied"}'
    before, begun = run.gate.metric(applied) or 0, now()
    run.gate.configure(OTHER[run.gate.moving])
    run.gate.signal(signal.SIGHUP)
    wait_until("the reload", lambda: (run.gate.metric(applied) or 0) > before)
    run.gate.publish()
    run.lab.driver.note(now(), "moved", begun=begun, moving=run.gate.moving)
    time.sleep(run.random.uniform(0.05, 0.3))
    return True


def move_across_kill(run):
    """The same, with a kill in between."""
    begun = now()
    run.kill()
    run.gate.configure(OTHER[run.gate.moving])
    run.start()
    run.lab.driver.note(now(), "moved", begun=begun, moving=run.gate.moving)
    return True


def fail_sync(run):
    lease, before = run.client.acquire(run.fresh("e"), 30_000), run.gate.control.failed_syncs
    run.gate.control.fail_syncs = 1
    wait_until("a failed sync", lambda: run.gate.control.failed_syncs > before)
    return is_latched(run, lease, LATCHED)


def fill_disk(run):
    lease = run.client.acquire(run.fresh("e"), 30_000)
    run.gate.disk.fill()
    return is_latched(run, lease, "No space left")


def is_latched(run, lease, why):
    """The table has latched: nothing is granted or written, reads pass. Then the gate is started again."""
    wait_until("a latched table", lambda: run.gate.metric("fencegate_table_latched") == 1)
    is_shut = run.client.acquire(run.fresh("e"), 1_000) is None
    is_shut = is_shut and lease is not None and run.client.write(lease) == "refused"
    reads = run.client.conn("gate").call("GET", "/o/o1/v").status == 200
    run.kill()
    said = LATCHED in run.gate.said() and why in run.gate.said()
    run.start()
    return is_shut and reads and said


def cut_power(run):
    """kill -9 while a grant is written and not synced; then all that was not synced is gone."""
    control = run.gate.control
    before = control.held_syncs
    time.sleep(run.random.uniform(0.1, 0.4))
    control.hold_sync = 1
    wait_until("a held sync", lambda: control.held_syncs > before)
    run.kill()
    lost = run.gate.synced.cut()
    run.start()
    return lost > 0


def set_clock(run, ms):
    """The wall clock of the gate is set; the time of a new lease shows it."""
    offset = run.gate.control.wall_offset_ms
    run.gate.control.wall_offset_ms = offset + ms
    lease = run.client.ask("POST", "/v1/leases", {"object_id": run.fresh("c"), "holder_id": "driver", "ttl_ms": 100})
    if lease is None or lease.status != 201:
        return False
    then = datetime.datetime.fromisoformat(lease.json()["acquired_at"].replace("Z", "+00:00"))
    real = datetime.datetime.now(datetime.timezone.utc)
    off = (then - real).total_seconds() - (offset + ms) / 1000
    time.sleep(run.random.uniform(0.05, 0.3))
    return abs(off) < 1


def clock_forward(run):
    return set_clock(run, run.random.randint(1_200, 4_000))


def clock_back(run):
    offset = run.gate.control.wall_offset_ms
    return set_clock(run, -offset if offset > 0 else -run.random.randint(1_200, 4_000))


def read_slowly_across_kill(run):
    """The store is still reading a write when the gate is killed: the kernel has kept the rest for it."""
    lease = run.client.acquire(run.fresh("r"), 5_000)
    if lease is None:
        return False
    log, seen = Tail(run.lab.folder / "store.jsonl"), []

    def saw(*events):
        seen.extend(log.new())
        return any(each["event"] in events and each.get("object") == lease.object for each in seen)

    for _ in range(4):
        # Beside: the gate may not take all of it before it is killed.
        twin = run.client.twin()
        sent = in_background(lambda: twin.upload(lease, f"read:9000:{run.random.randint(15, 25)}", bytes(100_000)))
        wait_until("the first of a body", lambda: saw("body") or sent.is_done() and sent().is_answered())
        if saw("body"):
            break
        # It met a connection that the store has just closed.
        sent().finish()
    else:
        return False
    time.sleep(0.02)
    run.kill()
    if sent():
        sent().finish()
    run.start()
    wait_until("the end of a body", lambda: saw("received", "cut"))
    conn = next(each["conn"] for each in seen if each["event"] == "body" and each["object"] == lease.object)
    mine = {each["event"]: each["t"] for each in seen if each["conn"] == conn}
    return mine["died"] < mine.get("received", mine.get("cut"))


def migrate_across_kill(run):
    """The gate is killed somewhere in a migration, and goes on with it: the old holder's write is on its way, the next
    holder confirms."""
    lease = run.client.acquire(run.random.choice(MIGRATED), 5_000, takeover=True)
    if lease is None:
        return False
    old, client = run.client.twin(), run.client.twin()
    apply_ms = run.random.randint(80, 200)
    upload = old.upload(lease, f"apply:{apply_ms}")
    authority = Authority(client)
    migrated = in_background(lambda: authority.migrate(lease.object, 10_000, patience_s=10))
    # Before it begins, while it waits for that write, or just behind that.
    time.sleep(run.random.uniform(0, apply_ms / 1000 + 0.01))
    is_under_way = not migrated.is_done()
    run.kill()
    killed_ms = gate_ms(run.lab.folder)
    run.start()
    upload.finish()
    taken = migrated()
    goes_on = is_under_way and taken and authority.begun_ms <= killed_ms
    return bool(goes_on and client.write(taken) == "ok" and old.write(lease) == "refused")


def keyed_across_kill(run):
    """The gate is killed while a keyed write is on its way, or just behind that; the same comes again."""
    lease, client = run.client.acquire(run.fresh("k"), 20_000), run.client.twin()
    if lease is None:
        return False
    keyed, apply_ms = Keyed(client, lease.object, b"k" * run.random.choice([100, 30_000])), run.random.randint(20, 120)
    upload = client.upload(lease, f"apply:{apply_ms}", key=keyed)
    time.sleep(run.random.uniform(0, apply_ms / 1000 + 0.05))
    run.kill()
    upload.finish()
    run.start()
    # The gate waits for what may still land first.
    wait_until("an answer for the key", lambda: run.client.write(lease, key=keyed) != "refused", pause_s=0.03)
    return True


def kill_in_drain(run, point):
    """The gate is killed while a higher number of an outside lock waits for a write of a lower one: somewhere in the
    drain, or at a point of the advance. That write may land while the next gate starts."""
    if point is None:
        return Drain(run).kill()
    run.kill()
    drain = Drain(run, point)
    run.start(FENCEGATE_TEST_POINT=f"{point}=hold:{drain.hold}")
    # So that it is this advance that comes there.
    with run.at_rest():
        return drain.kill()


class Drain:
    """A write of a lower number that the store has, and takes its time over, and a higher number that comes."""

    def __init__(self, run, point=None):
        self.run, self.point, self.old, self.new = run, point, run.client.twin(), run.client.twin()
        self.object = run.random.choice(DRAINED)
        # The store waits for the one, the gate at the point while there is the other.
        self.go, self.hold = run.lab.folder / "go", run.lab.folder / "hold"
        self.reached = self.hold.with_name("hold.reached")

    def lock(self, client):
        lock = client.take(self.run.locks, self.object, 10_000)
        self.run.locks.release(lock)
        return lock

    def kill(self):
        first, log = self.lock(self.old), Tail(self.run.lab.folder / "store.jsonl")
        if not self.old.advance(first):
            return False
        log.at = log.path.stat().st_size
        upload = self.old.upload(first, f"until:{self.go}")
        wait_until("a write at the store", lambda: upload.is_answered() or any(
            each["event"] == "received" and each["object"] == self.object for each in log.new()))
        try:
            # It may have met a connection that the store has just closed.
            return not upload.is_answered() and self._kill(first)
        finally:
            for file in self.go, self.hold, self.reached:
                file.unlink(missing_ok=True)
            upload.finish()

    def _kill(self, first):
        run, second = self.run, self.lock(self.new)
        by = run.random.choice([self.new.advance, self.new.write])
        if self.point:
            self.hold.touch()
        moved = in_background(lambda: by(second))
        self._come_there(moved)
        is_under_way = not moved.is_done()
        run.kill()
        time.sleep(run.random.uniform(0, 0.2))
        self.go.touch()
        run.start()
        moved()
        # The fence is durable, and will open for that number. (Else it was another's round that came to the point.)
        if not is_under_way or run.client.fence(self.object) != second.seq:
            return False
        opens = run.random.choice([lambda: self.new.advance(second), lambda: self.new.write(second) == "ok"])
        wait_until("the end of the drain", opens, pause_s=0.03)
        return self.new.write(second) == "ok" and self.old.write(first) == "refused"

    def _come_there(self, moved):
        if self.point == "drained":
            self.go.touch()
        if self.point:
            return wait_until(f"the advance at {self.point}", lambda: self.reached.exists() or moved.is_done())
        wait_until("the drain", lambda: self._is_draining() or moved.is_done())
        return time.sleep(self.run.random.uniform(0, 0.3))

    def _is_draining(self):
        answer = self.run.client.ask("GET", f"/v1/objects/{self.object}")
        return answer is not None and answer.status == 200 and answer.json()["state"] == "draining"


def hold_syncs(run):
    """A rotation's sync is held open while the old lease goes on writing."""
    control, client = run.gate.control, run.client
    with run.at_rest():
        for _ in range(3):
            lease = client.acquire(run.fresh("h"), 5_000)
            if lease is None:
                return False
            before, twin = control.held_syncs, client.twin()
            control.hold_sync = 1
            rotated = in_background(lambda: twin.rotate(lease, 1_000))
            wait_until("a held sync", lambda: control.held_syncs > before)
            begun = now()
            # Were one let through, it would land behind the grant.
            writes = [client.upload(lease, "apply:300", body) for body in (b"x", bytes(5_000))]
            refused = [write for write in writes if write.is_answered(0.1) and write.finish()]
            run.lab.driver.note(now(), "held", begun=begun)
            control.hold_sync = 0
            rotated()
            for write in writes:
                if write not in refused:
                    write.finish()
    return True


def hold_sync_under_load(run):
    """Whatever is being granted waits for its disk, and everyone else goes on."""
    control = run.gate.control
    before = control.held_syncs
    control.hold_sync = 1
    wait_until("a held sync", lambda: control.held_syncs > before)
    begun = now()
    time.sleep(run.random.uniform(0.03, 0.15))
    run.lab.driver.note(now(), "held", begun=begun)
    control.hold_sync = 0
    return True


def tear_tail(run):
    """The end of the log is lost, and with it the first grant of an object: a disk that loses synced bytes."""
    names = [run.fresh("t") for _ in range(2)]
    granted = [run.client.acquire(name, 2_000) for name in names]
    if None in granted:
        return False
    before = run.gate.metric("fencegate_table_incarnation")
    run.kill()
    lost = run.gate.disk.tear(names[0].encode())
    run.lab.driver.note(now(), "tail_lost", bytes=lost)
    run.start()
    is_new = run.gate.metric("fencegate_table_incarnation") > before
    again = run.client.acquire(names[0], 500)
    gone = run.client.lease_state(names[0], granted[0].seq, granted[0].id) == "missing"
    return bool(lost and is_new and again and again.seq > granted[0].seq and gone)


def flip(run, pattern):
    """One bit of a file is flipped while the gate is down. It refuses to start and says why, or refuses for the
    objects in that block, or starts a new incarnation; otherwise the flipped bit has no effect that the gate could notice, and nothing is wrong."""
    time.sleep(run.random.uniform(0.05, 0.2))
    before = run.gate.metric("fencegate_table_incarnation")
    run.kill()
    files = [path for path in run.gate.disk.sorted(pattern) if path.stat().st_size > 0]
    if not files:
        run.start()
        return False
    chosen = run.random.choice(files[-2:])
    flipped = Flip(chosen, run.random.randrange(chosen.stat().st_size), run.random.randrange(8))
    flipped.do()
    begun = now()
    said = run.gate.start()
    if said is not None:
        if "corrupt" not in said.lower():
            raise Failed(f"a gate on a flipped bit of {chosen.name} refuses to start and does not say why: {said}")
        flipped.undo()
        run.start()
        return True
    run.started()
    if run.gate.metric("fencegate_table_incarnation") > before:
        run.lab.driver.note(begun, "tail_lost", flipped=chosen.name)
        return True
    answers = [run.client.ask("GET", f"/v1/objects/{name}") for name in run.known()]
    answers += [run.client.ask("GET", f"/v1/fences?domain={name}") for name in OBJECTS + MIGRATED]
    refused = [answer for answer in answers if answer and answer.status == 503]
    run.check(must_answer=False)
    run.kill()
    if chosen.exists():
        flipped.undo()
    run.start()
    return bool(refused)

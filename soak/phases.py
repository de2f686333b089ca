"""The phases of a soak run. Each returns violations, and adds its figures to the run's table."""
import threading
import time
from collections import Counter

import judge
from calls import HOLDERS_ADDRESS, Caller, now
from holders import Holders
from rig import CAPACITY, PAUSE_MS, STALL_MS
from slow import Slow
from swarm import Swarm

# The disk's stall is answered within `stall_timeout_ms`; beyond it, so long for a machine that does other things too.
SLACK_S = 5
RECOVERY_S = 20
STORE_FAILS = {"200", "503", "STORE_UNREACHABLE", "OUTCOME_UNKNOWN", "FENCE_DRAINING", "GATE_OVERLOADED"}
LATE = {"WRITE_STALE_FENCE", "LEASE_EXPIRED"}


def times(calls):
    found = sorted(call["ms"] for call in calls)
    return {"writes": len(found), "p50_ms": judge.share(found, 0.5), "p99_ms": judge.share(found, 0.99)}


def kinds(calls):
    return Counter(call["kind"] for call in calls)


def valid_went_on(run, phase, since, also=()):
    """The valid writer's figures of a phase; every one of its writes must have been settled by 200, and there must be
    some."""
    calls, seconds = run.rig.valid_since(since), now() - since
    run.figures.append({"phase": phase, **times(calls), **run.rig.held(), "answers": kinds(calls)})
    found = judge.starved(phase, kinds(calls)["200"], seconds)
    return found + judge.only(f"{phase}, valid writer", kinds(calls), {"200", *also})


class Probe(threading.Thread):
    """Asks /livez, /readyz and renew, and writes, on new connections, until the `with` block ends. Counts the answers other
    than 200."""

    def __init__(self, run):
        super().__init__(daemon=True)
        self.run_, self.over, self.bad, self.asked = run, threading.Event(), Counter(), 0

    def run(self):
        while not self.over.wait(0.1):
            with Caller(self.run_.rig.ports, self.run_.note, patience_s=10, source=HOLDERS_ADDRESS) as caller:
                for name, ask in (
                    ("/livez", lambda: caller.call("ops", "GET", "/livez")),
                    ("/readyz", lambda: caller.call("ops", "GET", "/readyz")),
                    ("renew", lambda: caller.renew(self.run_.probe_lease, "probe", 600_000)),
                ):
                    answer = ask()
                    self.asked += 1
                    if answer is None or answer.status != 200:
                        self.bad[f"{name}: {answer.status if answer else 'no answer'}"] += 1
                written = caller.write(self.run_.probe_lease, "probe")["kind"]
                if written != "200":
                    self.bad[f"write: {written}"] += 1

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.join(60)

    def violations(self, phase):
        none = [] if self.asked else [f"PROBE: {phase}: nothing was asked"]
        return none + judge.only(f"{phase}, probes", self.bad, ())


def crowd(run):
    """Quiet and a stale crowd, by turns; each round's p99 beside its own quiet p99. Then the crowd without pauses."""
    plan, found, rig, quiet_p99 = run.plan, [], run.rig, []
    for _ in range(plan.rounds):
        t = now()
        time.sleep(plan.round_s)
        quiet = times(rig.valid_since(t))
        found += valid_went_on(run, "quiet", t)
        with Swarm(rig.ports["gate"], run.stale_leases, "stale", run.note) as swarm:
            t = now()
            swarm.run(plan.round_s, every_s=1.0)
            beside = times(rig.valid_since(t))
            found += valid_went_on(run, "stale crowd", t)
            found += judge.only("stale crowd", +swarm.counts, {"WRITE_STALE_FENCE"})
            run.stale += swarm.counts.total()
        run.ratios.append(beside["p99_ms"] / quiet["p99_ms"])
        quiet_p99.append(quiet["p99_ms"])
    with Swarm(rig.ports["gate"], run.stale_leases, "stale", run.note) as swarm:
        t = now()
        swarm.run(plan.flat_s)
        run.flat_ratios.append(times(rig.valid_since(t))["p99_ms"] / judge.median(quiet_p99))
        found += valid_went_on(run, "stale crowd, no pauses", t)
        found += judge.only("stale crowd", +swarm.counts, {"WRITE_STALE_FENCE"})
        run.figures[-1]["answers"]["stale, all together"] = swarm.counts.total()
    return found


def overload(run):
    """Three times as many writes at once as the gate has room for."""
    rig, many = run.rig, 3 * CAPACITY
    leases = [run.load_leases[n % len(run.load_leases)] for n in range(many)]
    t = now()
    with Swarm(rig.ports["gate"], leases, "overload", run.note) as swarm, Probe(run) as probe:
        rig.mode("slow:150")
        swarm.run(run.plan.overload_s)
        rig.mode("ok")
    found = valid_went_on(run, "overload", t) + probe.violations("overload")
    found += judge.only("overload", +swarm.counts, {"200", "GATE_OVERLOADED"})
    run.figures.append({"phase": f"  {many} at once", "writes": len(swarm.times), **judge_times(swarm.times),
                        "answers": swarm.counts})
    if not (swarm.counts["200"] and swarm.counts["GATE_OVERLOADED"]):
        found.append(f"OVERLOAD: it was none: {dict(swarm.counts)}")
    with Caller(rig.ports, run.note) as caller:
        after = [caller.write(run.load_leases[0], "after") for _ in range(50)]
    return found + judge.only("after the overload", kinds(after), {"200"})


def judge_times(values):
    ordered = sorted(values)
    return {"p50_ms": judge.share(ordered, 0.5), "p99_ms": judge.share(ordered, 0.99)}


def slow(run):
    """Slow connections of all kinds on all ports, and more on the gate's own than it takes."""
    t, plan, before = now(), run.plan, crowded_out(run)
    with Slow(run.rig.ports, plan.slow, run.slow_lease, run.note) as slow_, Probe(run) as probe:
        slow_.run(plan.slow_s, most=6 * plan.slow)
        found = valid_went_on(run, f"{plan.slow} slow", t)
    run.figures.append({"phase": "  connections", "answers": Counter({
        "held at most": slow_.held_most, "held at the end": slow_.held, "opened": slow_.opened.total(),
        "closed by the gate": slow_.closed.total(), "not accepted": slow_.refused})})
    if slow_.held < 0.8 * plan.room:
        found.append(f"SLOW: only {slow_.held} were held at the end, with room for {plan.room}")
    evicted = crowded_out(run) - before
    run.figures[-1]["answers"]["closed for others"] = evicted
    if plan.slow > plan.room and evicted == 0:
        found.append(f"SLOW: no connection was closed for another one, with room for {plan.room} of {plan.slow}")
    return found + probe.violations("slow")


def crowded_out(run):
    """How many connections the gate has closed to make room for others."""
    with Caller(run.rig.ports, None) as caller:
        shown = caller.call("ops", "GET", "/metrics").body.decode()
    lines = [line for line in shown.splitlines() if line.startswith("fencegate_connections_crowded_out_total{")]
    return sum(int(line.rpartition(" ")[2]) for line in lines)


def flap(run):
    """The store fails in all its ways, while leases change hands."""
    calls, lock, t = [], threading.Lock(), now()

    def note(call):
        with lock:
            calls.append(call)
            run.note(call)

    with Holders(run.rig.ports, note) as holders:
        for _ in range(run.plan.flaps):
            for mode in ("ok", "refuse", "ok", "reset", "ok", "hang", "ok", "503"):
                run.rig.mode(mode)
                time.sleep(run.plan.flap_s)
        run.rig.mode("ok")
    found = list(holders.failures)
    run.handovers += holders.handovers
    found += valid_went_on(run, "flapping store", t, also=STORE_FAILS)
    run.figures.append({"phase": f"  {holders.handovers} handovers", **times(calls), "answers": kinds(calls)})
    found += judge.only("flapping store", kinds(calls), STORE_FAILS | LATE)
    for seen in ("200", "503", "STORE_UNREACHABLE", "OUTCOME_UNKNOWN"):
        if not kinds(calls)[seen] + kinds(run.rig.valid_since(t))[seen]:
            found.append(f"FLAP: no write was answered with {seen}")
    return found + recovered(run, "flapping store")


def stall(run):
    """The disk stands still: what needs the table is refused in time, all else goes on."""
    found, control = [], run.rig.control
    for seconds in run.plan.stalls_s:
        t, held = now(), control.held_syncs
        control.hold_sync = 1
        try:
            asked, answers, slowest = ask_the_table(run, t + seconds)
        finally:
            control.hold_sync = 0
        found += valid_went_on(run, f"disk stalls {seconds} s", t)
        run.figures.append({"phase": f"  slowest {slowest:.1f} s", "writes": asked, "answers": answers})
        found += judge.only("stall", answers, {"lease TABLE_UNAVAILABLE", "keyed TABLE_UNAVAILABLE", "read 200"})
        if control.held_syncs == held:
            found.append("STALL: no sync was held")
        if slowest > STALL_MS / 1000 + SLACK_S:
            found.append(f"STALL: an answer took {slowest:.1f} s, with stall_timeout_ms = {STALL_MS}")
        found += recovered(run, "stall")
    return found


def ask_the_table(run, until):
    """Lease calls, keyed writes and reads, one after the other, until then."""
    answers, slowest, asked = Counter(), 0.0, 0
    with Caller(run.rig.ports, run.note) as caller:
        while now() < until:
            t = now()
            _, answer = caller.acquire(f"stalled-{asked}", "soak", 60_000)
            answers[f"lease {answer.code or answer.status if answer else 'broken'}"] += 1
            slowest = max(slowest, now() - t)
            call = caller.write(run.load_leases[1], "keyed", **{"idempotency-key": f'"stall-{t}"'})
            answers[f"keyed {call['kind']}"] += 1
            slowest = max(slowest, call["ms"] / 1000)
            read = caller.call("gate", "GET", "/o/load-1/1")
            answers[f"read {read.status if read else 'broken'}"] += 1
            asked += 3
            time.sleep(0.05)
    return asked, answers, slowest


def recovered(run, phase):
    """A lease is granted, and its writes with a key and without one are settled, soon again."""
    deadline, said = now() + RECOVERY_S, None
    with Caller(run.rig.ports, run.note) as caller:
        while now() < deadline:
            lease, answer = caller.acquire("recovered", "soak", 10_000, request_id=f"r-{now()}", takeover=True)
            said = answer and answer.code
            if lease is not None:
                plain = caller.write(lease, "recovered")
                keyed = caller.write(lease, "recovered", **{"idempotency-key": f'"{plain["id"]}"'})
                said = (plain["kind"], keyed["kind"])
                if said == ("200", "200"):
                    return []
            time.sleep(0.1)
    return [f"RECOVERY: {phase}: no settled write within {RECOVERY_S} s; the last answer: {said}"]


def files_closed(run):
    """What the gate holds once its connections are gone: those that idle, or wait for a slow peer, have their time."""
    deadline = now() + 3 * PAUSE_MS / 1000 + SLACK_S
    held, lowest_at = run.rig.held(), now()
    while now() < deadline and now() < lowest_at + 2.5:
        time.sleep(0.2)
        now_held = run.rig.held()
        if now_held["files"] < held["files"]:
            held, lowest_at = now_held, now()
    return run.rig.held()


# Behind `LOOKED_AT` it is sampled what the gate holds: each time after the same, so that samples can be compared.
PHASES = [crowd, overload, slow, flap, stall]
LAST = [crowd, overload]
LOOKED_AT = overload

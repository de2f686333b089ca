"""Idle connections, each of which has carried a write: memory per connection. A new process for each round."""
import resource
import sys
import time
from pathlib import Path

import http1
import nginx
from gate import OBJECT, Gate
from processes import free_port
from rounds import interleaved, say

HERE = Path(__file__).resolve().parent.parent
SETTLE_S = 0.5
SPARE = 1000
# Of the limit on open files, the gate leaves some for the store's side, the api and the table.
SHARE = 0.6


def connections(plan):
    """As many as planned, or as many as the limit on open files leaves room for."""
    _, limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    return min(plan.idle_connections, int(limit * SHARE) // 500 * 500)


def run(rounds):
    count = rounds.plan.idle_rounds
    if connections(rounds.plan) < rounds.plan.idle_connections:
        say(f"idle: only {connections(rounds.plan)} connections, not {rounds.plan.idle_connections}: "
            "the limit on open files allows no more (ulimit -Hn)")
    for number, start in interleaved([start_gate, start_nginx], count):
        name, port, token = start(rounds)
        kept = rounds.keep("idle", number, name, grown(rounds, name, port, token))
        rounds.processes.stop(name)
        say(f"idle, round {number + 1} of {count}: {name}: {kept['kib_each']:.1f} KiB for each of "
            f"{kept['connections']} connections")


def start_gate(rounds):
    gate = Gate(rounds.processes, rounds.options.fencegate, "idle-fencegate", store_port=rounds.store.port,
                table=rounds.processes.fresh_folder("idle-table"),
                gate=f"connections_max = {connections(rounds.plan) + SPARE}").start(rounds.proxy_core)
    return gate.name, gate.port, gate.acquire(OBJECT)


def start_nginx(rounds):
    port = free_port()
    nginx.start(rounds.processes, "idle-nginx", rounds.proxy_core, port, nginx.proxy(port, rounds.store.port),
                connections=connections(rounds.plan) + SPARE)
    return "idle-nginx", port, "none"


def grown(rounds, name, port, token):
    processes, count = rounds.processes, connections(rounds.plan)
    http1.once(port, "PUT", f"/{OBJECT}/1", {"Fence-Token": token}, b"x" * 256)
    before, stored = processes.rss_kib(name), rounds.store.count()
    out = processes.folder / "idle.out"
    out.unlink(missing_ok=True)
    processes.start("idle", rounds.load_core, [sys.executable, HERE / "idle.py", port, count, token])
    processes.wait_until("idle", lambda: f"open {count}\n" in out.read_text())
    time.sleep(SETTLE_S)
    rounds.must_have_stored(name, count, rounds.store.count() - stored)
    after = processes.rss_kib(name)
    processes.stop("idle")
    return {"connections": count, "rss_before_kib": before, "rss_kib": after, "kib_each": (after - before) / count}

"""Latency in an open loop: at half of what the slower of the gate and nginx can carry, and at a ladder of loads.

A peer is left out above the load that it can carry: there, latency would only show how long the round was.
"""
import load
from gate import OBJECT
from ratios import carries
from rounds import interleaved, say

# Of a peer's own most: above it, the queue, not the peer, is measured.
CARRIES = 0.85
OURS = ("fencegate", "nginx")
HALF = ("direct", "fencegate", "nginx", "haproxy", "bare")
# The plot would be unreadable with all of them.
LADDER = ("direct", "fencegate", "nginx", "haproxy", "nginx+lua+redis")


def run(rounds, peers, direct, token):
    most = {peer.name: carries(rounds.kept, peer.name) for peer in peers}
    base = min(most[name] for name in OURS if name in most)
    targets = load.write_targets(rounds.processes.folder / "one.targets", [(f"/{OBJECT}/1", token)])
    for kind, names, shares, how_long in (("half", HALF, [0.5], rounds.plan.half),
                                          ("ladder", LADDER, rounds.plan.shares, rounds.plan.ladder)):
        chosen = [peer for peer in (direct, *peers) if peer.name in names]
        at_rates(rounds, chosen, most, targets, kind, [base * share for share in shares], how_long)


def at_rates(rounds, peers, most, targets, kind, rates, how_long):
    count, seconds = how_long
    for rate in (max(1, int(rate // 100 * 100)) for rate in rates):
        able = [peer for peer in peers if peer.name not in most or rate <= most[peer.name] * CARRIES]
        for number, peer in interleaved(able, count):
            counted = rounds.measured(peer, lambda core: load.at_rate(core, peer.port, seconds, rate, targets))
            kept = rounds.keep(kind, number, peer.name, counted | {"rate": rate})
            say(f"{kind}, {rate} requests/s, round {number + 1} of {count}: {peer.name}: "
                f"p50 {kept['p50_us']:.0f} us, p99 {kept['p99_us']:.0f} us")

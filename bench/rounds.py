"""Rounds: each peer in turn, the order moved on by one each time, so that a drift of the machine hits all alike.

Each round is checked against the store's own count and kept as one flat dict; ratios.py reads these.
"""
import time

import load
from processes import Failed

# Requests that were under way when wrk stopped reach the store within this.
SETTLE_S = 0.1


class Rounds:
    def __init__(self, processes, store, token, load_core):
        self.processes, self.store, self.token, self.load_core = processes, store, token, load_core
        self.kept = []

    def warm_up(self, peers, seconds):
        for peer in peers:
            say(f"warm-up: {peer.name}")
            self.watched(peer, load.CONNECTIONS, load.saturate, seconds)

    def saturated(self, peers, count, seconds):
        for number, peer in interleaved(peers, count):
            begun = self.processes.cpu_ns(peer.name)
            counted = self.watched(peer, load.CONNECTIONS, load.saturate, seconds)
            used_ns = used(peer.name, begun, self.processes.cpu_ns(peer.name))
            self.keep("saturated", number, peer, counted | {
                "cpu_us": used_ns / 1000 / counted["requests"],
                "req_s": counted["requests"] / counted["seconds"],
                "busy": used_ns / 1e9 / counted["seconds"],
            })
            last = self.kept[-1]
            say(f"round {number + 1} of {count}: {peer.name}: "
                f"{last['cpu_us']:.1f} us CPU per request, {last['req_s']:.0f} requests/s")

    def paced(self, peers, count, seconds, rate):
        for number, peer in interleaved(peers, count):
            # All requests have been answered, so the store's count must be the very same.
            counted = self.watched(peer, 0, load.at_rate, seconds, rate)
            self.keep("paced", number, peer, counted | {"rate": rate})
            say(f"round {number + 1} of {count} at {rate} requests/s: {peer.name}: "
                f"p50 {counted['p50_us']:.0f} us, p99 {counted['p99_us']:.0f} us")

    def watched(self, peer, unanswered_max, put, seconds, *more):
        """Runs a load, and compares what it counted with what the store did."""
        before = self.store.count()
        try:
            counted = put(self.load_core, peer.port, seconds, *more, self.token)
        except Failed as failed:
            raise Failed(f"{peer.name}: {failed}") from None
        time.sleep(SETTLE_S)
        stored = self.store.count() - before
        if not counted["requests"] <= stored <= counted["requests"] + unanswered_max:
            raise Failed(f"{peer.name}: {counted['requests']} requests answered, but the store counted {stored}")
        return counted | {"stored": stored}

    def keep(self, kind, number, peer, values):
        self.kept.append({"kind": kind, "round": number, "peer": peer.name, **values})


def interleaved(peers, count):
    for number in range(count):
        first = number % len(peers)
        for peer in peers[first:] + peers[:first]:
            yield number, peer


def used(name, begun, ended):
    if begun.keys() != ended.keys():
        raise Failed(f"{name}: its processes changed during a round: {sorted(begun)} became {sorted(ended)}")
    return sum(ended.values()) - sum(begun.values())


def say(text):
    print(f"bench: {text}", flush=True)

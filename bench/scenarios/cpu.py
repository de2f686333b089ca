"""CPU per request, flat out over 64 connections: the gate, the same gate with its route off, and every peer."""
from rounds import interleaved, say


def warm_up(rounds, peers, token):
    for peer in peers:
        say(f"warm-up: {peer.name}")
        rounds.saturated(peer, rounds.plan.warm_up_s, token)


def run(rounds, peers, token):
    count, seconds = rounds.plan.saturated
    for number, peer in interleaved(peers, count):
        kept = rounds.keep("saturated", number, peer.name, rounds.saturated(peer, seconds, token))
        say(f"flat out, round {number + 1} of {count}: {peer.name}: "
            f"{kept['cpu_us']:.1f} us CPU per request, {kept['req_s']:.0f} requests/s")

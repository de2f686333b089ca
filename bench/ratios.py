"""Medians and ratios of raw rounds. Pure: no files, no clocks, no processes.

A round is a dict with `kind` ("saturated" or "paced"), `round`, `peer` and its figures. Peers are
compared within one round, since they ran right after each other; the median is over the rounds.
"""
from statistics import median

DIRECT = "direct"


def spread(values):
    """Median, least and greatest; None where there is nothing."""
    values = list(values)
    return {"median": median(values), "min": min(values), "max": max(values)} if values else None


def figures(rounds, kind, peer, name):
    """One figure of one peer, by round."""
    return {each["round"]: each[name] for each in rounds if (each["kind"], each["peer"]) == (kind, peer)}


def added(rounds, peer, name):
    """What a peer's latency is above that of no proxy at all, by round."""
    direct = figures(rounds, "paced", DIRECT, name)
    return {number: value - direct[number]
            for number, value in figures(rounds, "paced", peer, name).items() if number in direct}


def summary(rounds, peer):
    """All figures of one peer, each as a spread over the rounds."""
    found = {name: spread(figures(rounds, "saturated", peer, name).values()) for name in ("cpu_us", "req_s", "busy")}
    found |= {name: spread(figures(rounds, "paced", peer, name).values()) for name in ("p50_us", "p99_us")}
    found |= {f"added_{name}": spread(added(rounds, peer, name).values()) for name in ("p50_us", "p99_us")}
    return found


def quotient(ours, theirs):
    """The spread of ours / theirs, round by round; None where a round's divisor is not above zero."""
    common = sorted(ours.keys() & theirs.keys())
    if any(theirs[number] <= 0 for number in common):
        return None
    return spread(ours[number] / theirs[number] for number in common)


def ratios(rounds, peer, other):
    """peer / other: below 1 is cheaper or faster, for req_s slower."""
    found = {}
    for kind, names in (("saturated", ("cpu_us", "req_s")), ("paced", ("p50_us", "p99_us"))):
        for name in names:
            found[name] = quotient(figures(rounds, kind, peer, name), figures(rounds, kind, other, name))
    for name in ("p50_us", "p99_us"):
        found[f"added_{name}"] = quotient(added(rounds, peer, name), added(rounds, other, name))
    return found


def slowest(rounds):
    """Requests per second of the peer that carried the fewest."""
    peers = {each["peer"] for each in rounds if each["kind"] == "saturated"}
    return min(median(figures(rounds, "saturated", peer, "req_s").values()) for peer in peers)


def half_of_slowest(rounds, most):
    """A rate that every peer can carry, in whole hundreds where there are any, and not above `most`."""
    half = min(slowest(rounds) / 2, most)
    return int(half // 100 * 100) or max(1, int(half))

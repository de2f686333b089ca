"""Medians and ratios of raw rounds. Pure: no files, no clocks, no processes.

A round is a dict with `kind` (the scenario), `round`, `peer` and its figures. Peers are compared within one round,
since they ran right after each other; the median is over the rounds.
"""
from statistics import median

DIRECT = "direct"
ADDED = "added "  # before the name of a latency: what it is above that of no proxy in the same round


def spread(values):
    """Median, least and greatest; None where there is nothing."""
    values = list(values)
    return {"median": median(values), "min": min(values), "max": max(values)} if values else None


def figures(rounds, kind, peer, name):
    """One figure of one peer, by round."""
    if name.startswith(ADDED):
        return added(rounds, kind, peer, name.removeprefix(ADDED))
    return {each["round"]: each[name] for each in rounds if (each["kind"], each["peer"]) == (kind, peer)}


def added(rounds, kind, peer, name):
    """What a peer's latency is above that of no proxy at all, by round."""
    direct = figures(rounds, kind, DIRECT, name)
    return {number: value - direct[number]
            for number, value in figures(rounds, kind, peer, name).items() if number in direct}


def summary(rounds, kind, peer, name):
    """One figure of one peer, as a spread over the rounds."""
    return spread(figures(rounds, kind, peer, name).values())


def quotient(ours, theirs):
    """The spread of ours / theirs, round by round; None where a round's divisor is not above zero."""
    common = sorted(ours.keys() & theirs.keys())
    if any(theirs[number] <= 0 for number in common):
        return None
    return spread(ours[number] / theirs[number] for number in common)


def ratio(rounds, kind, name, ours, theirs):
    """Round by round. Of what is added, the ratio of the two medians: it is a small difference of two latencies, which
    in a single round may be nothing, or less."""
    ours, theirs = figures(rounds, kind, ours, name), figures(rounds, kind, theirs, name)
    if not name.startswith(ADDED):
        return quotient(ours, theirs)
    if not ours or not theirs or median(theirs.values()) <= 0:
        return None
    whole = median(ours.values()) / median(theirs.values())
    single = [ours[number] / theirs[number] for number in sorted(ours.keys() & theirs.keys()) if theirs[number] > 0]
    return {"median": whole, "min": min(single), "max": max(single)}


def peers_of(rounds, kind):
    """Who took part, in the order of their first round."""
    return list(dict.fromkeys(each["peer"] for each in rounds if each["kind"] == kind))


def carries(rounds, peer):
    """Requests per second of a peer flat out."""
    return median(figures(rounds, "saturated", peer, "req_s").values())

"""The judge of a soak run: pure, from what was called, what the store has applied, and what the gate held.

A call is a dict: `id`, `object`, `seq` (of its lease), `outcome`: `settled` (the gate said that it is done), `refused`
(it said that nothing was done) or `unknown`. What the store has done is its log (chaos/store.py). Each violation is a
line that begins with the name of the promise.
"""
# What an allocator keeps goes up and down; a leak per connection or request is more than this.
RSS_SHARE, RSS_KIB = 1.25, 16 << 10
FILES = 40
# A valid writer that waits for each answer gets more than this through, also where the store takes its time.
SETTLED_PER_S = 1
# The most of one kind of violation that are named.
NAMED = 5


def share(sorted_values, part):
    """The value below which this part of them lies."""
    return sorted_values[int((len(sorted_values) - 1) * part)] if sorted_values else float("nan")


def median(values):
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def few(promise, found, text):
    """A line for each of the first few, and one for the rest."""
    lines = [f"{promise}: {text(each)}" for each in found[:NAMED]]
    return lines + [f"{promise}: and {len(found) - NAMED} more"] * (len(found) > NAMED)


def writes(calls, store):
    """Violations by writes. `store` is in the order of the store's log. Refused writes may be left out of `calls`:
    there are many, and one that landed is caught all the same, by another name."""
    known = {call["id"]: call for call in calls}
    done = [event for event in store if event["event"] in ("applied", "partial")]
    count = {}
    for event in done:
        if event["event"] == "applied":
            count[event["write"]] = count.get(event["write"], 0) + 1
    lost = [call for call in known.values() if call["outcome"] == "settled" and call["id"] not in count]
    landed = [event for event in done if known.get(event["write"], {}).get("outcome") == "refused"]
    strange = [event for event in done if event["write"] not in known]
    twice = [write for write, times in count.items() if times > 1]
    return (
        few("LOST", lost, lambda call: f"write {call['id']} was acknowledged, and the store never applied it")
        + few("REFUSED LANDED", landed, lambda event: f"write {event['write']} was refused, and the store applied it")
        + few("UNACCOUNTED", strange, lambda event: (
            f"the store applied {event['write']}, which was refused or never sent"))
        + few("TWICE", twice, lambda write: f"write {write} was applied {count[write]} times")
        + few("STALE LANDED", went_down(done), lambda pair: (
            f"write {pair[0]['write']} of lease_seq {pair[0]['seq']} landed on {pair[0]['object']} behind "
            f"lease_seq {pair[1]}"))
    )


def went_down(done):
    """What was applied to an object behind something of a newer lease."""
    newest, found = {}, []
    for event in done:
        above = newest.setdefault(event["object"], event["seq"])
        if event["seq"] < above:
            found.append((event, above))
        newest[event["object"]] = max(above, event["seq"])
    return found


def flat(first, last):
    """Violations by what the gate holds: a sample of the first cycle and one at the end (`rss_kib`, `files`)."""
    found = []
    if last["files"] > first["files"] + FILES:
        found.append(f"FILES: {first['files']} open files in the first cycle, {last['files']} at the end")
    if last["rss_kib"] > first["rss_kib"] * RSS_SHARE + RSS_KIB:
        found.append(f"MEMORY: {first['rss_kib']} KiB in the first cycle, {last['rss_kib']} KiB at the end")
    return found


def starved(phase, settled, seconds):
    """A violation where the valid writer got fewer writes through than this, on a machine of whatever speed."""
    what = f"STARVED: {phase}: {settled} writes of the valid writer were settled in {seconds:.0f} s"
    return [what] if settled < max(1, seconds * SETTLED_PER_S) else []


def only(phase, counts, allowed):
    """A violation for each kind of answer that the phase does not allow."""
    return [f"ANSWER: {phase}: {number} times {kind}" for kind, number in sorted(counts.items()) if kind not in allowed]


def quick(crowd, ratios, bound):
    """A violation where this crowd makes the valid writer slower than the bound, in the median of the rounds."""
    found = median(ratios)
    what = f"SLOWED: p99 beside the {crowd} is {found:.2f} times the quiet one; {bound} is allowed"
    return [what] if found > bound else []

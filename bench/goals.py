"""What the gate is to reach, and what was reached: pure, from the raw rounds and from figures counted elsewhere."""
from statistics import median
from typing import NamedTuple

from ratios import ratio, summary

MIB_KIB = 1024
# A body of 1 GiB that was collected would show; buffers and an allocator's habits may.
FLAT_MIB = 8


class Ratio(NamedTuple):
    """fencegate's figure against another's, in the same round."""
    what: str
    kind: str
    name: str
    ours: str
    theirs: str
    must: float = None
    goal: float = None
    more: bool = False  # whether more is better


CPU = [
    Ratio("CPU per gated write against nginx plain", "saturated", "cpu_us", "fencegate", "nginx", 1.12, 1.00),
    Ratio("against the bare hyper proxy", "saturated", "cpu_us", "fencegate", "bare", 1.10, 1.05),
    Ratio("against HAProxy plain", "saturated", "cpu_us", "fencegate", "haproxy", 1.02, 0.88),
    Ratio("against Envoy plain", "saturated", "cpu_us", "fencegate", "envoy", 0.32, 0.27),
    Ratio("against nginx + Lua + Redis, Redis's CPU counted", "saturated", "cpu_us", "fencegate", "nginx+lua+redis",
          0.50, 0.42),
]
LATENCY = [
    Ratio("latency added over direct at half of saturation against nginx's, p50", "half", "added p50_us", "fencegate",
          "nginx", None, 1.0),
    Ratio("the same, p99", "half", "added p99_us", "fencegate", "nginx", None, 1.0),
]
OFF = Ratio("the same in CPU", "saturated", "cpu_us", "fencegate", "fencegate-off")
REFUSED = Ratio("refused write (stale token) against a forwarded one, CPU", "refused", "cpu_us", "refused", "forwarded",
                0.50, 0.35)
COLD = Ratio("a write to an object that is out of memory (page cache warm) against a warm one, p50", "cold", "p50_us",
             "cold", "warm", 3.0, 1.5)
HTTP2 = Ratio("HTTP/2 downstream, 100 streams, throughput against nginx's HTTP/2 to the same store", "http2", "req_s",
              "fencegate", "nginx-http2", 0.9, 1.3, True)
WORKERS = Ratio("CPU per request with 2 workers against 1", "workers", "cpu_us", "workers-2", "workers-1", 1.10, 1.03)
STREAM = Ratio("1 GiB streamed, throughput against nginx with buffering off", "stream", "gib_s", "stream-fencegate",
               "stream-nginx", 0.90, 1.0, True)
RATIOS = [*CPU, *LATENCY, OFF, REFUSED, COLD, HTTP2, WORKERS, STREAM]


class Reached(NamedTuple):
    """One line of the table: `value` is what was reached, None where it was not measured."""
    what: str
    must: str
    goal: str
    value: str
    verdict: str


def reached(rounds, elsewhere):
    """Every line, in the order of the table."""
    ledger = (elsewhere.get("ledger") or {}).get("rounds")
    speedup = median(many / single for many, single in ledger) if ledger else None
    idle = median_of(rounds, "idle", "idle-fencegate", "kib_each")
    grown = greatest_of(rounds, "stream", "stream-fencegate", "rss_growth_kib", MIB_KIB)
    return [
        *(of_ratio(each, rounds) for each in (*CPU, *LATENCY)),
        *of_instructions(elsewhere.get("instructions") or {}),
        of_gated(elsewhere.get("gated")),
        of_ratio(OFF, rounds),
        of_ratio(REFUSED, rounds),
        of_figure("lease changes per second in-process, 256 concurrent, against one synced write at a time", speedup,
                  15, 40, "{:.1f} x", more=True),
        *of_objects(rounds),
        of_ratio(COLD, rounds),
        of_figure(f"{idle_count(rounds)} idle keep-alive connections, memory of each", idle, 16, 10, "{:.1f} KiB"),
        of_ratio(HTTP2, rounds),
        of_ratio(WORKERS, rounds),
        of_ratio(STREAM, rounds),
        of_figure("1 GiB streamed, memory grew at most by (flat)", grown, FLAT_MIB, None, "{:.1f} MiB"),
    ]


def of_ratio(goal, rounds):
    found = ratio(rounds, goal.kind, goal.name, goal.ours, goal.theirs)
    return of_figure(goal.what, found and found["median"], goal.must, goal.goal, "{:.2f}", goal.more)


def of_instructions(counted):
    judge = counted.get("judge") or {}
    return [
        of_figure("judge of a warm object, token included: instructions", judge.get("instructions"), 1200, 600,
                  "{:,.0f}"),
        of_figure("the same: allocations", judge.get("allocations"), 0, None, "{:.0f}"),
    ]


def of_gated(counted):
    """Of the medians: the two were not counted at the same time, and need not be."""
    value = median(counted["gated"]) / median(counted["off"]) if counted else None
    return of_figure("gated write against the route `off`, in instructions", value, 1.10, 1.05, "{:.3f}")


def of_objects(rounds):
    known = sorted((each for each in rounds if each["kind"] == "known"), key=lambda each: each["objects"])
    used = [each for each in rounds if each["kind"] == "in_use"]
    few, many = (known[0], known[-1]) if len(known) > 1 else (None, None)
    size = f"{many['objects']:,}" if many else "10,000,000"
    reads = few and many["reads"] - few["reads"]
    in_use = f"{used[0]['in_use']:,}" if used else "100,000"
    return [
        of_figure(f"{size} objects known: table reads until ready, above those with 1,000", reads, 0, None, "{:.0f}"),
        of_figure(f"{size} objects known, {in_use} in use: resident memory",
                  used[0]["rss_kib"] / MIB_KIB if used else None, 384, 256, "{:.0f} MiB"),
    ]


def idle_count(rounds):
    """The limit on open files may have allowed fewer than planned."""
    counts = {each["connections"] for each in rounds if each["kind"] == "idle"}
    if counts and max(counts) < 10_000:
        return f"10,000 (only {max(counts):,} by the limit on open files)"
    return "10,000"


def median_of(rounds, kind, peer, name):
    found = summary(rounds, kind, peer, name)
    return found and found["median"]


def greatest_of(rounds, kind, peer, name, divisor):
    found = summary(rounds, kind, peer, name)
    return found and found["max"] / divisor


def of_figure(what, value, must, goal, form, more=False):
    sign = ">=" if more else "<="

    def bound(limit):
        return "-" if limit is None else f"{sign} {form.format(limit)}"

    if value is None:
        return Reached(what, bound(must), bound(goal), "-", "not measured in this run")
    return Reached(what, bound(must), bound(goal), form.format(value), verdict(value, must, goal, more))


def verdict(value, must, goal, more):
    def meets(limit):
        return value >= limit if more else value <= limit

    if must is not None and not meets(must):
        return "MISSED"
    if goal is None:
        return "reported" if must is None else "met"
    if meets(goal):
        return "goal reached"
    return "must met, goal missed" if must is not None else "goal missed"

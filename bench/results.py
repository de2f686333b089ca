"""RESULTS.md, its raw rounds and its plots: written together, the page from the raw rounds alone.

`page(data)` is pure, so that test_results.py can hold a page against its rounds.
"""
import json

import goals
import plots
from processes import Failed
from ratios import peers_of, ratio, summary

DISTURBED = 0.1
ELSEWHERE = ("instructions", "gated", "ledger")


class Target:
    """A folder to write to: bench/ for a full run, bench/out/ for every other."""

    def __init__(self, folder):
        self.page = folder / "RESULTS.md"
        self.rounds = folder / "results" / "rounds.json"

    def clear(self):
        if self.page.parent.name == "out":
            self.page.unlink(missing_ok=True)
            self.rounds.unlink(missing_ok=True)

    def write(self, data):
        """Returns the page."""
        self.rounds.parent.mkdir(parents=True, exist_ok=True)
        self.rounds.write_text(compact(data))
        for old in self.rounds.parent.glob("*.svg"):
            old.unlink()
        drawn = plots.draw(data["rounds"])
        for name, svg in drawn.items():
            (self.rounds.parent / name).write_text(svg)
        text = page(data)
        self.page.write_text(text)
        return text


def compact(data):
    """JSON with one round to a line."""
    head = {name: value for name, value in data.items() if name != "rounds"}
    lines = ",\n".join("  " + json.dumps(each) for each in data["rounds"])
    return json.dumps(head, indent=1).removesuffix("\n}") + f',\n "rounds": [\n{lines}\n ]\n}}\n'


def elsewhere(folder, measured):
    """Figures that other programs have left since the program that is measured was built: older ones are of another."""
    found = {}
    for name in ELSEWHERE:
        path = folder / f"{name}.json"
        if path.exists() and path.stat().st_mtime > measured.stat().st_mtime:
            try:
                found[name] = json.loads(path.read_text())
            except ValueError as error:
                raise Failed(f"{path} is no JSON: {error}") from None
    return found


def page(data):
    rounds, facts, plan = data["rounds"], data["facts"], data["plan"]
    parts = [
        "# What the gate costs",
        f"Written by `make bench`{' QUICK=1: fewer and shorter rounds, less certain' if plan['quick'] else ''}. "
        "Medians over interleaved rounds; the proxy under test on one core, the store (nginx) and the load on the "
        "other; PUT of 256 bytes over 64 connections; every answer checked (status and body; of HTTP/2, which h2load "
        "sends, the status), and the store's count compared with the load's. Raw rounds: `results/rounds.json`; "
        "`test_results.py` computes every ratio here from them anew.",
        machine(facts), disturbed(rounds),
        "## Reached", reached_table(rounds, data["elsewhere"]),
        "## Ratios", "Round by round, since the two ran right after each other. `added`: above the latency of no "
        "proxy in the same round; of it, the ratio of the medians.", ratio_table(rounds),
        "## Figures", *figure_tables(rounds),
        "## Plots", *(f"![{title}](results/{name})" for name, title in plots.titles(rounds).items()),
        "## How to read it", notes(plan),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def machine(facts):
    programs = "; ".join(f"{name}: {said}" for name, said in facts["programs"].items())
    changed = ", with changes that are not committed" if facts["dirty"] else ""
    return (f"{facts['date']}, commit `{facts['commit'][:12]}`{changed}. "
            f"{facts['processor']}, {facts['cores']} cores, {facts['memory_mib']} MiB; {facts['system']}, "
            f"Linux {facts['kernel']}. {programs}.")


def disturbed(rounds):
    """Says so where other programs had the machine meanwhile."""
    shares = [each["others"] for each in rounds if "others" in each]
    bad = [share for share in shares if share > DISTURBED]
    if not bad:
        return ""
    return (f"**Other programs used more than {DISTURBED:.0%} of a core in {len(bad)} of {len(shares)} rounds, at most "
            f"{max(bad):.0%}: these figures are less certain than they look.**")


def rows(heads, lines):
    def row(cells):
        return "| " + " | ".join(cells) + " |"

    return "\n".join([row(heads), row(["---"] * len(heads)), *map(row, lines)])


def reached_table(rounds, counted_elsewhere):
    return rows(("what", "must", "goal", "reached", "verdict"),
                [(line.what, line.must, line.goal, line.value, mark(line.verdict))
                 for line in goals.reached(rounds, counted_elsewhere)])


def mark(verdict):
    return f"**{verdict}**" if verdict == "MISSED" else verdict


def ratio_table(rounds):
    """Every ratio with what it is of, in words that a test can read."""
    lines = []
    for each in goals.RATIOS:
        found = ratio(rounds, each.kind, each.name, each.ours, each.theirs)
        if found:
            lines.append((each.kind, each.name, each.ours, each.theirs, f"{found['median']:.3f}",
                          f"{found['min']:.3f} .. {found['max']:.3f}"))
    return rows(("scenario", "figure", "of", "against", "median", "least .. greatest"), lines)


# Scenario, heading, and the figures: (heading, name, decimals).
TABLES = [
    ("saturated", "Flat out", [("CPU us/request", "cpu_us", 2), ("requests/s", "req_s", 0), ("core busy", "busy", 2)]),
    ("half", "At half of saturation, open loop", [
        ("rate", "rate", 0), ("p50 us", "p50_us", 0), ("p99 us", "p99_us", 0), ("added p50 us", "added p50_us", 0),
        ("added p99 us", "added p99_us", 0)]),
    ("refused", "Refusals", [("CPU us/write", "cpu_us", 2), ("writes/s", "req_s", 0)]),
    ("workers", "Workers, on both cores", [("CPU us/request", "cpu_us", 2), ("requests/s", "req_s", 0)]),
    ("http2", "HTTP/2, one connection, 100 streams", [
        ("requests/s", "req_s", 0), ("CPU us/request", "cpu_us", 2), ("core busy", "busy", 2)]),
    ("stream", "1 GiB streamed", [
        ("GiB/s", "gib_s", 2), ("CPU ms/GiB", "cpu_ms_gib", 0), ("memory grew by KiB", "rss_growth_kib", 0)]),
    ("idle", "Idle connections", [("KiB each", "kib_each", 2), ("resident KiB", "rss_kib", 0)]),
    ("known", "Objects known", [("table reads until ready", "reads", 0), ("ready ms", "ready_ms", 0),
                                ("resident KiB", "rss_kib", 0)]),
    ("in_use", "Objects in use", [("known", "objects", 0), ("in use", "in_use", 0), ("in memory", "in_memory", 0),
                                  ("s to take the leases", "leases_s", 1),
                                  ("resident KiB", "rss_kib", 0)]),
    ("cold", "Objects out of memory, one connection, one by one", [
        ("p50 us", "p50_us", 1), ("p99 us", "p99_us", 1), ("CPU us/write", "cpu_us", 2)]),
    ("spread", "Writes over many objects", [("CPU us/write", "cpu_us", 2), ("writes/s", "req_s", 0)]),
]


def figure_tables(rounds):
    for kind, title, columns in TABLES:
        names = peers_of(rounds, kind)
        if names:
            lines = [(name, *(cell(summary(rounds, kind, name, figure), decimals) for _, figure, decimals in columns))
                     for name in names]
            yield f"### {title}\n\n" + rows(("", *(heading for heading, *_ in columns)), lines)


def cell(found, decimals):
    """The median, and the range where there is one."""
    if found is None:
        return "-"
    text = f"{found['median']:,.{decimals}f}"
    least, most = (f"{found[name]:,.{decimals}f}" for name in ("min", "max"))
    return text if least == most else f"{text} ({least} .. {most})"


def notes(plan):
    return "\n".join(f"- {line}" for line in [
        "CPU is user and system time of all the proxy's threads and workers. Core busy below 0.95: the store or the "
        "load, not this proxy, bounded requests/s.",
        "nginx + Lua + Redis: one GET per write over kept connections, the header compared with the value; Redis is on "
        "the proxy's core and its CPU is counted.",
        "Half of saturation: half of what the slower of fencegate and nginx carries. Requests are due one by one, "
        "evenly spaced, and latency counts from when a request was due (`pace.c`). Peers that cannot carry the rate "
        "with room to spare are left out.",
        "Refused and forwarded writes come from the same load on the same gate, in turns.",
        "Two workers: there are two cores, so the gate shares both with load and store. The gate with one worker may "
        "use both cores too, so that nothing else differs; only the gate's CPU is counted.",
        f"Objects: a table of {plan['objects']:,} on disk. In use: leased, and written to once. Out of memory: the gate "
        "may keep 2,048 objects, and each round writes to others than the one before, one after the other; the gate's "
        "own count of the rows that it read says how many were not in memory.",
        "Writes over many objects: a number whose leases could not be taken in the time for it is left out.",
        "Idle connections: each has carried one write. nginx sets aside what a connection needs when it starts, so little "
        "of it shows.",
        "1 GiB streamed: the body goes out by sendfile, and the store drops it in the kernel; `stream-direct` is what "
        "the two can do without a proxy.",
        f"1 GiB streamed is flat if memory never grows by more than {goals.FLAT_MIB} MiB.",
    ])

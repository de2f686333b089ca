"""The table for people, as text."""
from ratios import DIRECT, ratios, slowest, summary

# Heading, figure, decimals, and whether its range is shown.
COLUMNS = [
    ("CPU us/request", "cpu_us", 1, True),
    ("requests/s", "req_s", 0, False),
    ("core busy", "busy", 2, False),
    ("p50 us", "p50_us", 0, False),
    ("p99 us", "p99_us", 0, False),
    ("added p50 us", "added_p50_us", 0, True),
    ("added p99 us", "added_p99_us", 0, True),
]
RATIOS = [
    ("CPU/request", "cpu_us", 2, True),
    ("requests/s", "req_s", 2, False),
    ("p50", "p50_us", 2, True),
    ("p99", "p99_us", 2, True),
    ("added p50", "added_p50_us", 2, True),
    ("added p99", "added_p99_us", 2, True),
]


def cell(found, decimals, ranged):
    if found is None:
        return "-"
    text = f"{found['median']:.{decimals}f}"
    return f"{text} ({found['min']:.{decimals}f}..{found['max']:.{decimals}f})" if ranged else text


def table(first, columns, rows):
    """Lines of a table; rows are (name, {figure: spread})."""
    lines = [[first, *(heading for heading, *_ in columns)]]
    for name, found in rows:
        lines.append([name, *(cell(found[figure], decimals, ranged) for _, figure, decimals, ranged in columns)])
    widths = [max(map(len, column)) for column in zip(*lines)]
    return ["  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]) for line in lines]


def report(rounds, names, rate):
    """All that is printed at the end; the first name is compared with each of the others."""
    subject, *others = names
    lines = ["", "Medians over the rounds (least..greatest).", ""]
    lines += table("peer", COLUMNS, [(name, summary(rounds, name)) for name in (*names, DIRECT)])
    if others:
        lines += ["", "Ratios, round by round:", ""]
        lines += table("", RATIOS, [(f"{subject} / {other}", ratios(rounds, subject, other)) for other in others])
    lines += [
        "",
        "CPU: user and system time of all the proxy's threads and workers, flat out over 64 connections.",
        f"Latency: at {rate} requests/s, {rate / slowest(rounds):.0%} of the slowest's most, from when each was due.",
        "Added: above the latency of no proxy in the same round.",
        "Core busy below 0.95: the store, the load or other programs, not this proxy, bounded requests/s.",
    ]
    return "\n".join(lines)

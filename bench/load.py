"""Load on one port: as much as goes or at a fixed rate (pace.c), and by HTTP/2 (h2load).

Returns what was counted. Any answer that is not as it should be raises Failed.
"""
import json
import re
from pathlib import Path

from processes import Failed, run_to_end

HERE = Path(__file__).resolve().parent
PACE = HERE.parent / "target/bench/pace"
CONNECTIONS = 64
# What a load may take beyond its seconds, to start and to end.
SPARE_S = 20
ONCE_S = 120
FORWARDED = (200, "\r\n\r\nok\n")
STALE = (412, "fence-error: WRITE_STALE_FENCE")


def build(core):
    """pace.c, where it is not built yet or was changed since."""
    source = HERE / "pace.c"
    if not PACE.exists() or PACE.stat().st_mtime < source.stat().st_mtime:
        PACE.parent.mkdir(parents=True, exist_ok=True)
        run_to_end(core, ["gcc", "-O2", "-Wall", "-Wextra", "-o", PACE, source], 60)


def write_targets(path, targets):
    """A file of (path, token) or (path, token, idempotency key) for pace.c."""
    path.write_text("".join(" ".join(target) + "\n" for target in targets))
    return path


def at_rate(core, port, seconds, rate, targets):
    """`rate` requests per second, evenly spaced; latencies from when each was due."""
    return pace(core, port, targets, CONNECTIONS, FORWARDED, ["rate", rate, seconds], seconds)


def flat_out(core, port, seconds, targets, answer=FORWARDED, connections=CONNECTIONS):
    """As many as go over so many connections, the targets in order."""
    return pace(core, port, targets, connections, answer, ["flat", seconds], seconds)


def each_once(core, port, targets, connections=CONNECTIONS):
    return pace(core, port, targets, connections, FORWARDED, ["once"], ONCE_S)


def pace(core, port, targets, connections, answer, how, seconds):
    status, needle = answer
    return json.loads(run_to_end(core, [PACE, port, targets, connections, status, needle, *how], seconds + SPARE_S))


def http2(core, port, requests, streams, token, body):
    """So many PUTs over one HTTP/2 connection, so many at once."""
    said = run_to_end(core, ["h2load", "-t1", "-c1", f"-m{streams}", f"-n{requests}", "-d", body,
                             "-H", ":method: PUT", "-H", f"fence-token: {token}",
                             f"http://127.0.0.1:{port}/bench/1"], 60 + SPARE_S)
    return {"requests": requests, "seconds": http2_seconds(said, requests)}


def http2_seconds(said, requests):
    """How long h2load took, if every answer was 2xx."""
    answered = re.search(r"^status codes: (\d+) 2xx, 0 3xx, 0 4xx, 0 5xx", said, re.MULTILINE)
    good = re.search(r"^requests: .* (\d+) succeeded, 0 failed, 0 errored, 0 timeout", said, re.MULTILINE)
    took = re.search(r"^finished in ([\d.]+)(us|ms|s|m),", said, re.MULTILINE)
    if not (answered and good and took) or {int(answered[1]), int(good[1])} != {requests}:
        raise Failed(f"h2load: {said.strip()[-1000:]}")
    if "Application protocol: h2c" not in said:
        raise Failed(f"h2load did not speak HTTP/2: {said}")
    return float(took[1]) * {"us": 1e-6, "ms": 1e-3, "s": 1, "m": 60}[took[2]]

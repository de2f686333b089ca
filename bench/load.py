"""Load on one port for a while: as much as goes (wrk), or at a fixed rate (paced.py).

Returns what was counted. Any answer that is not as it should be raises Failed.
"""
import json
import sys
from pathlib import Path

from processes import Failed, run_to_end

HERE = Path(__file__).parent
CONNECTIONS = 64
ERRORS = {
    "status": "answers with a wrong status",
    "connect": "connections refused",
    "read": "connections broken while reading",
    "write": "connections broken while writing",
    "timeout": "requests timed out",
}
# What a load may take beyond its seconds, to start and to end.
SPARE_S = 20


def saturate(core, port, seconds, token):
    """As many requests as go over 64 connections."""
    argv = ["wrk", "-t1", f"-c{CONNECTIONS}", f"-d{seconds}s", "--timeout", "5s", "-s", HERE / "put.lua"]
    said = run_to_end(core, [*argv, f"http://127.0.0.1:{port}/bench/1", "--", token], seconds + SPARE_S)
    counted = counts(said)
    # wrk takes 3xx for good, but none could come from the store, which counts what it answered.
    wrong = [f"{counted[name]} {what}" for name, what in ERRORS.items() if counted[name]]
    if wrong or counted["requests"] == 0:
        raise Failed(", ".join(wrong) or "no request was answered")
    return {"requests": counted["requests"], "seconds": counted["duration_us"] / 1e6}


def counts(said):
    for line in said.splitlines():
        if line.startswith("counted "):
            return {name: int(value) for name, value in (pair.split("=") for pair in line.split()[1:])}
    raise Failed(f"wrk did not say what it counted: {said}")


def at_rate(core, port, seconds, rate, token):
    """`rate` requests per second, evenly spaced; latencies from when each was due."""
    argv = [sys.executable, HERE / "paced.py", port, rate, seconds, CONNECTIONS, token]
    return json.loads(run_to_end(core, argv, seconds + SPARE_S))

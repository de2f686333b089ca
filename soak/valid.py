"""The valid writer of a soak run: a process of its own, so that no other part of the load is in its times.

Arguments: the run's folder, with `lease.json` and `ports.json`, and how many writes per second. It writes one after
the other at that pace, renews its lease, notes every call in `valid.jsonl`, and goes on until its standard input ends.
"""
import json
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from calls import HOLDERS_ADDRESS, Caller, now  # noqa: E402
from logs import Log  # noqa: E402

RENEW_S = 20


def main():
    folder, period = Path(sys.argv[1]), 1 / float(sys.argv[2])
    lease, ports = (json.loads((folder / name).read_text()) for name in ("lease.json", "ports.json"))
    log, over = Log(folder / "valid.jsonl"), threading.Event()

    def renew():
        while not over.wait(RENEW_S):
            with Caller(ports, None) as caller:
                caller.renew(lease, "valid", lease["ttl_ms"])

    def write():
        note = lambda call: log.note(call.pop("t"), "write", **call)  # noqa: E731
        with Caller(ports, note, source=HOLDERS_ADDRESS) as caller:
            due = now()
            while not over.is_set():
                caller.write(lease, "valid")
                due = max(due + period, now() - period)
                time.sleep(max(0.0, due - now()))

    threads = [threading.Thread(target=each, daemon=True) for each in (renew, write)]
    for thread in threads:
        thread.start()
    print(0, flush=True)
    sys.stdin.buffer.read()
    over.set()
    threads[1].join(25)


if __name__ == "__main__":
    main()

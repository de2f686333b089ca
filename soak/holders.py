"""Holders that hand objects over among themselves and write, while something is wrong with the store or the disk."""
import random
import threading
import time

from calls import Caller

TTL_MS = 2000
OBJECTS = ["h1", "h2", "j-h3"]
HOLDERS_EACH = 3


class Holders:
    """Threads that go on until `over`. Each write is given to `note`; `handovers` counts leases."""

    def __init__(self, ports, note):
        self.ports, self.note, self.over = ports, note, threading.Event()
        self.handovers, self.failures, self.lock = 0, [], threading.Lock()
        self.threads = [threading.Thread(target=self._run, args=(name, f"{name}-{n}"), daemon=True)
                        for name in OBJECTS for n in range(HOLDERS_EACH)]

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        for thread in self.threads:
            thread.join(30)
        if any(thread.is_alive() for thread in self.threads):
            self.failures.append("HUNG: a holder was still waiting for an answer after 30 s")

    def _run(self, object_id, holder):
        draw = random.Random(holder)
        try:
            with Caller(self.ports, self.note) as caller:
                while not self.over.is_set():
                    self._hold(caller, object_id, holder, draw)
        except Exception as error:  # a thread must not end unseen
            self.failures.append(f"HOLDER: {holder}: {error!r}")

    def _hold(self, caller, object_id, holder, draw):
        lease, answer = caller.acquire(object_id, holder, TTL_MS, wait_ms=800)
        if lease is None:
            return time.sleep(0.1 if answer is None or answer.status == 503 else 0.01)
        with self.lock:
            self.handovers += 1
        for _ in range(draw.randint(1, 6)):
            if self.over.is_set():
                break
            caller.write(lease, holder, **{"x-chaos": draw.choice(["", "", "apply:30", "slow:30"])})
        ending = draw.random()
        if ending < 0.6:
            caller.release(lease)
        elif ending < 0.8:
            caller.acquire(object_id, holder, TTL_MS, takeover=True)
        # It does not know that it is late: the lease was released, replaced, or is running out.
        caller.write(lease, f"late-{holder}")

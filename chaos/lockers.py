"""The writers of a chaos run whose locks are kept elsewhere: they contend for locks of a real lock service, write with
their numbers, and are stopped and woken up long after their lock has run out.

Arguments: the run's folder, the port of the log of grants, the seed, the number of writers. Prints a line, then goes on
until its standard input ends; while there is a file `rest` in the folder, the writers begin nothing new and none of
them is stopped. Every writer is a process with random numbers of its own, so that one can be stopped for itself.
"""
import os
import random
import signal
import sys
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from client import Client, Down, in_background  # noqa: E402
from grants import Reporter  # noqa: E402
from locks import Locks  # noqa: E402
from logs import Log, now  # noqa: E402
from objects import LOCKED  # noqa: E402
from processes import die_with_parent  # noqa: E402
from writers import KEPT_OLD, over, pause, wish  # noqa: E402

# How long a lock lives, a writer goes on, and is stopped.
TTL_MS = [300, 300, 400, 600, 1_000, 2_000]
GOES_ON_S, STOPPED_S = (0.05, 0.4), (0.2, 1.6)


class Locker:
    def __init__(self, number, folder, port, seed):
        self.random = random.Random(f"{seed}/locker/{number}")
        self.client = Client(f"l{number}", folder, Log(Path(folder) / "calls.jsonl"), Reporter(port))
        self.twin = self.client.twin()
        self.locks = Locks(folder)
        self.rest = Path(folder) / "rest"
        self.old = []

    def run(self):
        while not over.is_set():
            if self.rest.exists():
                pause(5)
                continue
            try:
                self.act()
            except Down:
                pause(10)

    def act(self):
        chosen = self.random.random()
        if chosen < 0.06 and self.old:
            # It wakes up long after its lock was another's.
            return self.client.write(self.random.choice(self.old), wish(self.random, False))
        if chosen < 0.10:
            return self.client.read(self.random.choice(LOCKED))
        if chosen < 0.11:
            # A revocation by an operator, although a writer has the lock.
            return self.client.revoke(self.random.choice(LOCKED))
        lock = self.client.take(self.locks, self.random.choice(LOCKED), self.random.choice(TTL_MS))
        return self.hold(lock) if lock else pause(self.random.randint(2, 20))

    def hold(self, lock):
        self.old = (self.old + [lock])[-KEPT_OLD:]
        if self.random.random() < 0.4:
            # What it reads then is final.
            self.client.advance(lock)
            self.client.read(lock.object)
        for _ in range(self.random.randint(1, 5)):
            if not self.use(lock) or self.is_over():
                break
        if self.random.random() < 0.6:
            self.locks.release(lock)

    def is_over(self):
        return over.is_set() or self.rest.exists()

    def use(self, lock):
        """Does something with a lock; says whether it goes on with it."""
        chosen = self.random.random()
        streams = self.random.random() < 0.35
        body = bytes(self.random.randint(4_000, 60_000)) if streams else b"x" * self.random.randint(0, 1_500)
        if chosen < 0.40:
            return self.client.write(lock, wish(self.random, streams), body) != "refused"
        if chosen < 0.66:
            return self.leave(lock, body)
        if chosen < 0.78:
            return self.leave_half(lock)
        if chosen < 0.88:
            return self.write_twice(lock)
        if chosen < 0.94:
            return self.client.write(lock, "part:20", bytes(20_000), first=9_000, hangs_up=True) != "refused"
        # It takes its time, and does not know that its lock has run out.
        pause(lock.ttl_ms + self.random.randint(1, 60))
        return not self.is_over() and self.client.write(lock, wish(self.random, streams), body) != "refused"

    def leave(self, lock, body):
        """The lock is free for others while a write of it is on its way."""
        slow = self.random.choice([f"apply:{self.random.randint(40, 200)}", wish(self.random, len(body) > 2_048)])
        wait = in_background(lambda: self.twin.write(lock, slow, body))
        pause(self.random.randint(2, 30))
        self.locks.release(lock)
        wait()
        return False

    def leave_half(self, lock):
        """The same while a body is half sent."""
        part = self.random.choice(["", "parts", f"part:{self.random.randint(5, 200)}"])
        upload = self.twin.upload(lock, part, bytes(30_000), first=12_000)
        pause(self.random.randint(5, 30))
        self.locks.release(lock)
        upload.is_answered(self.random.choice([0.02, 0.2, 0.6]))
        upload.finish()
        return False

    def write_twice(self, lock):
        """Two writes at once: where an older one is still on its way, the second comes into the drain."""
        wait = in_background(lambda: self.twin.write(lock, f"apply:{self.random.randint(5, 60)}"))
        outcome = self.client.write(lock, wish(self.random, False))
        return "refused" not in (outcome, wait())


def begin(number, *arguments):
    """Begins a writer; returns the id of its process."""
    child = os.fork()
    if child:
        return child
    die_with_parent()
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    try:
        Locker(number, *arguments).run()
    except BaseException:
        sys.excepthook(*sys.exc_info())
        sys.stderr.flush()
    os._exit(0)


def stop_and_go(children, folder, seed):
    """Stops one writer after another, and lets it go on."""
    random_, rest, log = random.Random(f"{seed}/stops"), Path(folder) / "rest", Log(Path(folder) / "calls.jsonl")
    while not over.wait(random_.uniform(*GOES_ON_S)):
        if rest.exists():
            continue
        number = random_.randrange(len(children))
        begun, until = now(), now() + random_.uniform(*STOPPED_S)
        os.kill(children[number], signal.SIGSTOP)
        while now() < until and not rest.exists() and not over.wait(0.01):
            pass
        os.kill(children[number], signal.SIGCONT)
        log.note(now(), "paused", holder=f"l{number}", begun=begun)


def main():
    folder, port, seed, number = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    children = [begin(n, folder, port, seed) for n in range(number)]
    stops = threading.Thread(target=stop_and_go, args=(children, folder, seed), daemon=True)
    stops.start()
    print(0, flush=True)
    sys.stdin.buffer.read()
    over.set()
    stops.join(8)
    for child in children:
        os.kill(child, signal.SIGTERM)
    for child in children:
        os.waitpid(child, 0)
    os._exit(0)


if __name__ == "__main__":
    main()

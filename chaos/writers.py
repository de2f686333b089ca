"""The writers of a chaos run: holders that contend for leases, write, pause, come back late and hang up.

Arguments: the run's folder, the port of the log of grants, the seed, the number of writers. Prints a line, then
goes on until its standard input ends; while there is a file `rest` in the folder, nothing new is begun. Every
writer is a thread with random numbers of its own.
"""
import collections
import os
import random
import sys
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from authority import Authority  # noqa: E402
from client import Client, Down, Keyed, in_background  # noqa: E402
from grants import Reporter  # noqa: E402
from logs import Log  # noqa: E402
from objects import MOVING, OBJECTS  # noqa: E402

KEPT_OLD = 12
# A token for the first of o1, with a secret that is not right.
FORGED = "fg1.1.bzE.AAAAAAAAAAAAAAAAAAAAAA"

over = threading.Event()
# What the issuer has signed; anyone may bring it again, at any time.
certificates = collections.deque(maxlen=200)


def pause(ms):
    over.wait(ms / 1000)


def wish(random_, streams):
    """What a write wants of the store: mostly nothing out of the ordinary."""
    some = lambda low, high: random_.randint(low, high)  # noqa: E731
    usual = [("", 34), (f"apply:{some(20, 200)}", 18), (f"slow:{some(20, 150)}", 6), ("race", 7)]
    bad = [
        ("hang", 2), ("reset", 4), ("close", 2), ("early", 4), (f"reset late:{some(5, 230)}", 6),
        (f"hang late:{some(5, 230)}", 2), (f"head apply:{some(20, 150)}", 4),
    ]
    if streams:
        bad += [(f"part:{some(5, 220)}", 12), ("parts", 8), (f"part:{some(5, 220)} parts", 4),
                (f"read:4096:{some(5, 30)}", 8)]
    words, weights = zip(*usual, *bad)
    return random_.choices(words, weights)[0]


class Writer:
    def __init__(self, number, folder, port, seed):
        self.random = random.Random(f"{seed}/writer/{number}")
        self.client = Client(f"w{number}", folder, Log(Path(folder) / "calls.jsonl"), Reporter(port))
        self.twin = self.client.twin()
        self.authority = Authority(self.client)
        self.rest = Path(folder) / "rest"
        self.old = []
        # Keyed writes, each with the lease of its first attempt.
        self.keyed = []
        self.requests = 0

    def run(self):
        while not over.is_set():
            if self.rest.exists():
                pause(5)
                continue
            try:
                self.act()
            except Down:
                pause(10)

    def object(self):
        if self.random.random() < 0.12:
            return f"{self.client.addresses()['moving']}-{self.random.choice(MOVING)}"
        return self.random.choice(OBJECTS)

    def act(self):
        chosen = self.random.random()
        if chosen < 0.06:
            self.client.revoke(self.object())
        elif chosen < 0.16:
            self.client.read(self.random.choice(OBJECTS))
        elif chosen < 0.26 and self.old:
            # It wakes up long after its lease was over.
            self.client.write(self.random.choice(self.old), wish(self.random, False))
        elif chosen < 0.28 and self.keyed:
            # The writer did not learn the outcome, and asks long after its lease was over.
            lease, keyed = self.random.choice(self.keyed)
            self.client.write(lease, wish(self.random, False), key=keyed)
        elif chosen < 0.30 and self.old:
            self.client.write(self.random.choice(self.old), token=self.random.choice(["", FORGED]))
        elif chosen < 0.33:
            two = self.random.sample(OBJECTS, 2)
            for lease in self.client.acquire_batch(two, self.random.randint(80, 500), wait_ms=100):
                self.hold(lease)
        elif chosen < 0.37 and certificates:
            self.bring_again()
        elif chosen < 0.39 and self.old:
            self.fence(self.random.choice(self.old))
        elif chosen < 0.45:
            # Mostly it belongs to another writer.
            lease = self.migrate(self.object())
            if lease:
                self.hold(lease)
        else:
            lease = self.acquire()
            if lease:
                self.hold(lease)
            else:
                pause(self.random.randint(1, 15))

    def acquire(self):
        more = {}
        if self.random.random() < 0.5:
            more["wait_ms"] = self.random.choice([50, 200, 800])
        if self.random.random() < 0.2:
            # Now and then the same request again.
            self.requests += self.random.random() < 0.8
            more["request_id"] = f"r{self.requests}"
        return self.client.acquire(self.object(), self.random.randint(80, 500), **more)

    def hold(self, lease):
        for _ in range(self.random.randint(1, 4)):
            if over.is_set():
                return
            lease = self.use(lease)
            if lease is None:
                return
        self.old = (self.old + [lease])[-KEPT_OLD:]
        if self.random.random() < 0.5:
            self.client.release(lease)

    def use(self, lease):
        """Does something with a lease; returns the one to go on with."""
        chosen = self.random.random()
        streams = self.random.random() < 0.35
        body = bytes(self.random.randint(4_000, 60_000)) if streams else b"x" * self.random.randint(0, 1_500)
        if chosen < 0.29:
            self.client.write(lease, wish(self.random, streams), body)
        elif chosen < 0.40:
            return self.write_keyed(lease, body, streams)
        elif chosen < 0.62:
            return self.overtake(lease, body)
        elif chosen < 0.76:
            return self.cancel(lease)
        elif chosen < 0.82:
            self.client.write(lease, "part:20", bytes(20_000), first=9_000, hangs_up=True)
        elif chosen < 0.90:
            self.client.renew(lease, self.random.randint(80, 500))
        elif chosen < 0.96:
            # It is paused until its lease has run out, and does not know.
            pause(lease.ttl_ms + self.random.randint(1, 60))
            self.client.write(lease, wish(self.random, streams), body)
        else:
            self.client.read(lease.object)
        return lease

    def write_keyed(self, lease, body, streams):
        """A write with a key, and attempts with the same key behind it, or beside it; some with another body, or with
        the next lease of this holder."""
        keyed, some = Keyed(self.client, lease.object, body), self.random.random
        self.keyed = (self.keyed + [(lease, keyed)])[-KEPT_OLD:]
        chosen, wishes, beside = some(), [wish(self.random, streams) for _ in range(2)], None
        if chosen < 0.25:
            beside = in_background(lambda: self.twin.write(lease, wishes[0], key=keyed))
        elif streams and chosen < 0.4:
            self.twin.write(lease, "part:20", key=keyed, first=len(body) // 2, hangs_up=True)
        outcome = self.client.write(lease, wishes[1], key=keyed)
        if beside:
            beside()
        for _ in range(self.random.randint(1, 3)):
            if over.is_set() or self.rest.exists() or outcome == "ok" and some() < 0.4:
                break
            pause(self.random.randint(0, 120))
            if some() < 0.2:
                lease = self.client.rotate(lease, self.random.randint(100, 500))
                if lease is None:
                    return None
            again = keyed if some() < 0.85 else keyed.other()
            outcome = self.client.write(lease, wish(self.random, streams), key=again)
        return lease

    def overtake(self, lease, body):
        """The lease moves on while a write of it is on its way."""
        slow = self.random.choice([f"apply:{self.random.randint(40, 200)}", wish(self.random, len(body) > 2_048)])
        wait = in_background(lambda: self.twin.write(lease, slow, body))
        pause(self.random.randint(2, 30))
        try:
            return self.advance(lease)
        finally:
            wait()

    def cancel(self, lease):
        """The lease moves on while a body is half sent."""
        part = self.random.choice(["", "parts", f"part:{self.random.randint(5, 200)}"])
        upload = self.twin.upload(lease, part, bytes(30_000), first=12_000)
        pause(self.random.randint(5, 30))
        wait = in_background(lambda: self.advance(lease))
        upload.is_answered(self.random.choice([0.02, 0.2, 0.6]))
        upload.finish()
        return wait()

    def advance(self, lease):
        chosen = self.random.random()
        self.old = (self.old + [lease])[-KEPT_OLD:]
        if chosen < 0.4:
            return self.client.rotate(lease, self.random.randint(100, 500))
        if chosen < 0.65:
            return self.client.acquire(lease.object, self.random.randint(100, 500), takeover=True)
        if chosen < 0.75:
            return self.migrate(lease.object)
        if chosen < 0.82:
            return self.authority.hand_over(lease, self.random.randint(100, 500))
        if chosen < 0.9:
            return self.fence(lease)
        self.client.revoke(lease.object)
        return None

    def migrate(self, object_id):
        lies = self.random.random() < 0.08
        return self.authority.migrate(object_id, self.random.randint(150, 600), lies)

    def fence(self, lease):
        """Brings a certificate for a lease, or one that goes further."""
        ahead = self.random.randint(1, 3) if self.random.random() < 0.15 else 0
        certificate = self.authority.certificate(lease, ahead)
        certificates.append(certificate)
        self.authority.fence(certificate, relayed=self.random.random() < 0.2)

    def bring_again(self):
        """Any certificate, of any writer and any age."""
        self.authority.fence(self.random.choice(certificates), self.random.random() < 0.2, again=True)


def main():
    folder, port, seed, number = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    threads = [threading.Thread(target=Writer(n, folder, port, seed).run, daemon=True) for n in range(number)]
    for thread in threads:
        thread.start()
    print(0, flush=True)
    sys.stdin.buffer.read()
    over.set()
    for thread in threads:
        thread.join(8)
    os._exit(0)


if __name__ == "__main__":
    main()

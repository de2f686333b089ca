"""Slow connections of many kinds, held at their number by one thread: what the gate closes is opened anew."""
import errno
import select
import socket
from collections import Counter, deque

from calls import fresh_id, now, path

# The gate's port is filled from two addresses, so that neither has its share of it.
ADDRESSES = ["127.0.0.3", "127.0.0.4"]
# Connections that are opened in one step, so that none waits for the rest.
STEP = 100
DRIP_S = 1.0
# A connection that the gate has closed is opened anew after so long.
AGAIN_S = 1.5
KINDS = ["silent", "head", "held body", "answer", "idle"]
# A streamed body holds a connection to the store; the gate has room for fewer, and refuses the rest at once.
STREAMED = 60
# Beside those on the gate's own port, so many on each of the others.
OTHERS = 150


class Slow:
    """`lease`: of the object that slow bodies are written to. `note` gets each of those writes."""

    def __init__(self, ports, number, lease, note):
        self.ports, self.lease, self.note = ports, lease, note
        # When to open which, in this order.
        self.wanted = deque((0, "gate", KINDS[n % len(KINDS)]) for n in range(number - STREAMED))
        self.wanted += [(0, "gate", "streamed body")] * STREAMED
        for port in ("ops", "api"):
            self.wanted += [(0, port, kind) for kind in ["silent", "head", "answer"] * (OTHERS // 3)]
        self.held_most = self.held = 0
        self.opened, self.closed, self.refused = Counter(), Counter(), 0
        self.poll, self.conns = select.epoll(), {}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for sock, *_ in self.conns.values():
            sock.close()
        self.poll.close()

    def first(self, port, kind):
        """What a connection of this kind sends at once."""
        if kind == "silent":
            return b""
        if kind == "head":
            return b"GET /o/slow/1 HTTP/1.1\r\nhost: 127.0.0.1\r\nx-slow: "
        if kind.endswith("body"):
            number, lease = fresh_id("slow"), self.lease
            self.note({"id": number, "object": lease["object_id"], "seq": lease["lease_seq"], "outcome": "unknown"})
            size = 20_000 if kind == "held body" else 200_000
            return (f"PUT {path('slow')} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {size}\r\nx-write: {number}\r\n"
                    f"fence-token: {lease['fence_token']}\r\n\r\n").encode() + b"x" * (size // 2)
        target = {"gate": "/o/slow/large/1", "ops": "/metrics", "api": "/v1/openapi.json"}[port]
        if kind == "idle":
            target = path("slow")
        return f"GET {target} HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n".encode()

    def open(self, port, kind):
        sock = socket.socket()
        if kind == "answer":
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.settimeout(5)
        if port == "gate":
            sock.bind((ADDRESSES[self.opened.total() % len(ADDRESSES)], 0))
        try:
            sock.connect(("127.0.0.1", self.ports[port]))
            sock.setblocking(False)
            sock.send(self.first(port, kind))
        except OSError as error:
            sock.close()
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise
            self.refused += 1
            return self.wanted.append((now() + AGAIN_S, port, kind))
        self.opened[kind] += 1
        self.conns[sock.fileno()] = (sock, port, kind)
        # One that takes no answer looks only at the end of its connection.
        self.poll.register(sock, select.EPOLLRDHUP | (0 if kind == "answer" else select.EPOLLIN))

    def drop(self, file):
        sock, port, kind = self.conns.pop(file)
        self.poll.unregister(file)
        sock.close()
        self.closed[kind] += 1
        self.wanted.append((now() + AGAIN_S, port, kind))

    def run(self, seconds, most):
        """Holds them for so long, and opens at most so many in all."""
        end, next_drip = now() + seconds, now() + DRIP_S
        while (t := now()) < end:
            for _ in range(min(STEP, max(0, most - self.opened.total() - self.refused))):
                if not self.wanted or self.wanted[0][0] > t:
                    break
                self.open(*self.wanted.popleft()[1:])
            self.held = sum(port == "gate" for _, port, _ in self.conns.values())
            self.held_most = max(self.held_most, self.held)
            for file, events in self.poll.poll(0.02, 512):
                if self._is_over(file, events):
                    self.drop(file)
            if t >= next_drip:
                next_drip = t + DRIP_S
                self._drip()

    def _is_over(self, file, events):
        if events & (select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR):
            return True
        try:
            return not self.conns[file][0].recv(65536)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def _drip(self):
        for file, (sock, _, kind) in list(self.conns.items()):
            if kind == "head" or kind.endswith("body"):
                try:
                    sock.send(b"x")
                except BlockingIOError:
                    pass
                except OSError:
                    self.drop(file)

#!/usr/bin/env python3
"""Sends PUTs at a fixed rate, however slow the answers are, and prints their latencies as JSON.

A request's latency counts from the moment at which it was due, so a peer that stalls cannot hide
the requests that had to wait meanwhile. They are due one by one, evenly spaced; h2load --rps sends
a whole tick's at once, so its latencies hold the queue that it makes itself.

Usage: paced.py PORT RATE SECONDS CONNECTIONS TOKEN
"""
import collections
import ctypes
import gc
import json
import os
import select
import socket
import struct
import sys
import time

PATIENCE_S = 5
CLOCK_MONOTONIC = 1
TFD_TIMER_ABSTIME = 1
PERCENTILES = {"p50_us": 0.5, "p90_us": 0.9, "p99_us": 0.99, "p999_us": 0.999, "max_us": 1}


class Wrong(Exception):
    """An answer that is not the store's."""


class Ticks:
    """A timer that ticks at the fixed rate; the kernel counts ticks that we were late for."""

    def __init__(self, first_ns, period_ns):
        libc = ctypes.CDLL(None, use_errno=True)
        self.fd = libc.timerfd_create(CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        when = struct.pack("4q", *divmod(period_ns, 10**9), *divmod(first_ns, 10**9))
        if self.fd < 0 or libc.timerfd_settime(self.fd, TFD_TIMER_ABSTIME, when, None) != 0:
            raise OSError(ctypes.get_errno(), "timerfd")

    def read(self):
        return struct.unpack("Q", os.read(self.fd, 8))[0]


class Connection:
    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)
        self.due_ns = 0
        self.answer = b""

    def send(self, request, due_ns):
        self.due_ns = due_ns
        if self.socket.send(request) != len(request):
            raise Wrong("a request did not fit into the socket")

    def receive(self):
        """Whether the answer is there, whole and right."""
        piece = self.socket.recv(65536)
        self.answer += piece
        if not piece:
            raise Wrong(f"connection closed after {self.answer!r}")
        if not self.answer.endswith(b"\r\n\r\nok\n"):
            if len(self.answer) > 4096:
                raise Wrong(f"answer {self.answer[:200]!r}")
            return False
        if not self.answer.startswith(b"HTTP/1.1 200 "):
            raise Wrong(f"answer {self.answer[:200]!r}")
        self.answer = b""
        return True


def request(token):
    head = f"PUT /bench/1 HTTP/1.1\r\nHost: 127.0.0.1\r\nFence-Token: {token}\r\nContent-Length: 256\r\n\r\n"
    return head.encode() + b"x" * 256


def pace(port, rate, seconds, connections, token):
    """The latencies of all requests, in nanoseconds."""
    total, period_ns = int(rate * seconds), int(1e9 / rate)
    what, now_ns = request(token), time.monotonic_ns
    idle = collections.deque(Connection(port) for _ in range(connections))
    busy = {each.socket.fileno(): each for each in idle}
    start_ns = now_ns() + 10_000_000
    ticks = Ticks(start_ns, period_ns)
    poll = select.epoll()
    for fd in (ticks.fd, *busy):
        poll.register(fd, select.EPOLLIN)

    latencies, ticked, sent = [], 0, 0
    deadline_ns = start_ns + int((seconds + PATIENCE_S) * 1e9)
    while len(latencies) < total:
        for fd, _ in poll.poll(1):
            if fd == ticks.fd:
                ticked = min(total, ticked + ticks.read())
            elif busy[fd].receive():
                latencies.append(now_ns() - busy[fd].due_ns)
                idle.append(busy[fd])
        while sent < ticked and idle:
            idle.popleft().send(what, start_ns + sent * period_ns)
            sent += 1
        if now_ns() > deadline_ns:
            # An answer with another body never looks whole, so it ends here too.
            begun = next((each.answer[:200] for each in busy.values() if each.answer), b"")
            raise Wrong(f"{total - len(latencies)} of {total} requests not rightly answered in time; one as {begun!r}")
    return latencies


def summary(latencies):
    latencies.sort()
    last = len(latencies) - 1
    return {name: latencies[int(last * share)] / 1000 for name, share in PERCENTILES.items()}


def main():
    port, rate, seconds, connections, token = sys.argv[1:]
    gc.disable()  # its pauses would count as the peer's
    try:
        latencies = pace(int(port), float(rate), float(seconds), int(connections), token)
    except (Wrong, OSError) as error:
        sys.exit(str(error))
    print(json.dumps({"requests": len(latencies), **summary(latencies)}))


if __name__ == "__main__":
    main()

"""Many connections that each write over and over, one write at a time, by one thread: the stale crowd, and overload."""
import select
import socket
from collections import Counter

from calls import fields, fresh_id, now, outcome, path

# After a refusal for want of room, a connection waits so long before its next write.
PAUSE_S = 0.2
BODY = b"x" * 256
# How long the answers to the last writes may take.
LAST_S = 15


class Member:
    def __init__(self, port, lease, kind):
        self.port, self.lease, self.kind, self.number = port, lease, kind, None
        self.due = self.sent_at = 0.0
        self.connect()

    def connect(self):
        self.sock, self.buffer = socket.create_connection(("127.0.0.1", self.port), timeout=10), b""
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self):
        self.number, self.sent_at = fresh_id(self.kind), now()
        target = path(self.lease["object_id"], self.kind)
        lines = [f"PUT {target} HTTP/1.1", "host: 127.0.0.1", f"content-length: {len(BODY)}"]
        lines += [f"{name}: {value}" for name, value in fields(self.lease, self.number)]
        self.sock.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + BODY)

    def answer(self):
        """The whole answer as (status, headers, body), None while it is not there, or OSError."""
        piece = self.sock.recv(65536)
        if not piece:
            raise ConnectionError("closed")
        self.buffer += piece
        head, found, body = self.buffer.partition(b"\r\n\r\n")
        if not found:
            return None
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        if len(body) < int(headers.get("content-length", 0)):
            return None
        self.buffer = b""
        return int(first.split(" ")[1]), headers, body


class Swarm:
    """`leases`: one for each connection. What came of each write is counted by kind, and given to `note` unless it was
    refused."""

    def __init__(self, port, leases, kind, note):
        self.note, self.counts, self.times = note, Counter(), []
        self.members = [Member(port, lease, kind) for lease in leases]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for member in self.members:
            member.sock.close()

    def run(self, seconds, every_s=0.0):
        """Each writes every so often for so long; then all last answers are waited for."""
        begun = now()
        end, poll = begun + seconds, select.epoll()
        by_file = {member.sock.fileno(): member for member in self.members}
        for n, member in enumerate(self.members):
            member.due, member.number = begun + every_s * n / len(self.members), None
            poll.register(member.sock, select.EPOLLIN)
        idle, open_ = sorted(self.members, key=lambda member: member.due), 0
        while True:
            t = now()
            while idle and idle[0].due <= t < end:
                idle[0].send()
                idle.pop(0)
                open_ += 1
            if t >= end and (open_ == 0 or t > end + LAST_S):
                break
            wait = min(idle[0].due if idle and t < end else t + 0.5, end if t < end else end + LAST_S) - t
            for file, _ in poll.poll(max(0.0, wait), 512):
                member = by_file[file]
                if self._take(member, poll, by_file, every_s):
                    open_ -= 1
                    put_in_order(idle, member)
        self.counts["no answer"] += open_
        poll.close()

    def _take(self, member, poll, by_file, every_s):
        """Takes what has come on a connection. Says whether its write is over."""
        try:
            answer = member.answer()
            if answer is None:
                return False
        except OSError:
            answer = None
        was_open, t = member.number is not None, now()
        if was_open:
            self._count(member, answer, t)
            member.number = None
        if answer is None or answer[1].get("connection", "").lower() == "close":
            poll.unregister(member.sock)
            del by_file[member.sock.fileno()]
            member.sock.close()
            member.connect()
            by_file[member.sock.fileno()] = member
            poll.register(member.sock, select.EPOLLIN)
        refused = answer is not None and answer[0] == 503
        member.due = max(member.due + every_s, t + (PAUSE_S if refused else 0.0))
        return was_open

    def _count(self, member, answer, t):
        what, kind = outcome(*answer) if answer else ("unknown", "broken")
        if kind == "GATE_OVERLOADED" and "retry-after" not in answer[1]:
            kind = "GATE_OVERLOADED without Retry-After"
        self.counts[kind] += 1
        self.times.append((t - member.sent_at) * 1000)
        if what != "refused":
            lease = member.lease
            self.note({"id": member.number, "object": lease["object_id"], "seq": lease["lease_seq"], "outcome": what})


def put_in_order(idle, member):
    """Most are due last."""
    at = len(idle)
    while at > 0 and idle[at - 1].due > member.due:
        at -= 1
    idle.insert(at, member)

"""The recording store of a chaos run: a register per path, and a log of all that happens to it.

Arguments: its log, and the longest that it may still apply a request whose connection is gone, in
milliseconds. Prints its port, then serves until its standard input ends. It knows nothing of fencegate
but two headers that it writes down (Fence-Seq, Fence-Object).

The log: `opened`, `died` (connections), `begun` (a request's head is there), `body` (so is the first of its
body), `received` (it is there whole) or `cut` (it broke off), `applied` or `partial` (of a part), `expired`
(not applied: its time was over), `answered`, `race` (the connection was closed just as a request came).

What a write wants of it is in the header x-chaos, words with a space between them:

    read:BYTES:MS     so many bytes are read at once, with so long a pause behind each
    part:MS           what came of a body is applied, so long after it broke off
    parts             the same, as soon as the first of it is there
    apply:MS          applied after so long
    until:FILE        applied once that file is there
    late:MS           applied so long after the connection has died, or was reset
    slow:MS           answered so long after it was applied
    hang              never answered
    reset, close      not answered: the connection ends, badly or in good order
    head              the head of the answer goes out before anything is applied
    early             413 before the body is read
    race              the connection is closed as soon as another request comes on it

The one rule: nothing is applied later than the bound after the connection has died. It is looked at in the
same instant, under the lock that orders all applying, and counts from when the connection was last seen
alive. So a store process that is slow or starved applies less, never later.
"""
import os
import select
import socket
import sys
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from logs import Log, now  # noqa: E402

GONE = select.POLLERR | select.POLLHUP | select.POLLRDHUP
LOOK_S = 0.01


class Store:
    """The registers, and the lock that orders what is applied to them."""

    def __init__(self, log, bound_s):
        self.log = log
        self.bound_s = bound_s
        self.lock = threading.Lock()
        self.values = {}

    def apply(self, request, whole):
        """Applies a request, or a part of it, unless its time is over."""
        with self.lock:
            t = now()
            conn = request.conn
            alive = conn.is_alive(t)
            if not alive and t >= conn.alive_at + self.bound_s:
                self.log.note(t, "expired", **request.about)
                return False
            if whole:
                self.values[request.path] = request.about["write"]
            self.log.note(t, "applied" if whole else "partial", **request.about, alive=alive)
            return True

    def value(self, path):
        with self.lock:
            return self.values.get(path)


class Connection:
    """A connection from the gate, and until when it was alive for certain."""

    def __init__(self, store, sock, number):
        self.store, self.sock, self.number = store, sock, number
        self.buffer = b""
        # Not known yet: its peer may be gone before it is accepted.
        self.alive_at = 0.0
        self.is_dead = False
        self.watch = select.poll()
        self.watch.register(sock, GONE)
        self.come = select.poll()
        self.come.register(sock, select.POLLIN | GONE)

    def is_alive(self, t):
        """Whether the connection is alive; `t` was read before this call."""
        if not self.is_dead:
            if self.watch.poll(0):
                self.die("the peer is gone")
            else:
                self.alive_at = t
        return not self.is_dead

    def die(self, why):
        if not self.is_dead:
            self.is_dead = True
            self.store.log.note(now(), "died", conn=self.number, alive_at=self.alive_at, why=why)

    def end(self, reset):
        """Ends the connection from this side."""
        if self.is_alive(now()):
            self.die("reset" if reset else "closed")
        if reset:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.sock.close()

    def wait(self, seconds, until=lambda: False):
        """Waits, looking after the connection meanwhile."""
        deadline = now() + seconds
        while not until() and now() < deadline:
            self.is_alive(now())
            threading.Event().wait(max(0.0005, min(LOOK_S, deadline - now())))

    def wait_for_the_end(self):
        while self.is_alive(now()):
            self.watch.poll(50)

    def more(self, most=65536, is_begun=True):
        """The next bytes; none if there will not be any. What came before the end is still to be had."""
        if self.buffer:
            piece, self.buffer = self.buffer[:most], self.buffer[most:]
            return piece
        while not self.is_dead:
            t = now()
            events = self.come.poll(LOOK_S * 1000 if is_begun else None)
            if events and events[0][1] & GONE:
                self.die("the peer is gone")
            else:
                self.alive_at = t
            if events:
                break
        try:
            piece = self.sock.recv(most)
        except OSError:
            piece = b""
        if not piece:
            self.die("the peer is gone")
        return piece

    def head(self):
        """A request's head as text, or None."""
        text = b""
        while b"\r\n\r\n" not in text:
            piece = self.more(is_begun=False)
            if not piece:
                return None
            text += piece
        head, _, self.buffer = text.partition(b"\r\n\r\n")
        return head.decode("latin-1")

    def send(self, text):
        try:
            self.sock.sendall(text.encode("latin-1"))
        except OSError:
            self.die("the answer could not be sent")


class Request:
    def __init__(self, conn, head):
        first, *fields = head.split("\r\n")
        self.conn = conn
        self.method, self.path, _ = first.split(" ", 2)
        self.headers = {name.lower(): value.strip() for name, _, value in (field.partition(":") for field in fields)}
        self.wish = {}
        for word in self.headers.get("x-chaos", "").split():
            name, _, value = word.partition(":")
            self.wish[name] = value
        self.about = {
            "conn": conn.number,
            "write": self.headers.get("x-write"),
            "path": self.path,
            "object": self.headers.get("fence-object"),
            "seq": int(self.headers.get("fence-seq", 0)),
        }

    def pieces(self):
        """The body as it comes; ends with None if it broke off."""
        most, pause_ms = 65536, 0
        if "read" in self.wish:
            most, pause_ms = map(int, self.wish["read"].split(":"))
        left = int(self.headers.get("content-length", 0))
        while left:
            piece = self.conn.more(min(most, left))
            left -= len(piece)
            yield piece or None
            if not piece:
                return
            if pause_ms and left:
                self.conn.wait(pause_ms / 1000)


def handle(store, conn):
    """One request; says whether the connection goes on."""
    head = conn.head()
    if head is None:
        return False
    t = now()
    request = Request(conn, head)
    if request.method == "GET":
        value = store.value(request.path) or "-"
        conn.send(f"HTTP/1.1 200 OK\r\ncontent-length: {len(value)}\r\n\r\n{value}")
        return True
    store.log.note(t, "begun", **request.about, wish=" ".join(request.wish), was_alive=conn.is_alive(t))
    wish = request.wish
    if "early" in wish:
        store.apply(request, whole=False)
        answer(store, request, 413)
        conn.wait_for_the_end()
        return False
    return receive(store, request) and settle(store, request)


def receive(store, request):
    """Reads the body; says whether it came whole."""
    conn, size = request.conn, 0
    for piece in request.pieces():
        if piece is None:
            store.log.note(now(), "cut", **request.about, size=size)
            if "part" in request.wish:
                conn.wait(int(request.wish["part"]) / 1000)
                wait_for_file(request)
                store.apply(request, whole=False)
            return False
        if size == 0:
            store.log.note(now(), "body", **request.about)
            if "parts" in request.wish:
                store.apply(request, whole=False)
        size += len(piece)
    # Bytes can be read after the connection has died: the kernel has kept them.
    t = now()
    store.log.note(t, "received", **request.about, size=size, was_alive=conn.is_alive(t))
    return True


def wait_for_file(request):
    if "until" in request.wish:
        request.conn.wait(60, lambda: os.path.exists(request.wish["until"]))


def settle(store, request):
    """Applies and answers; says whether the connection goes on."""
    conn, wish = request.conn, request.wish
    if "head" in wish:
        conn.send("HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n")
    if "apply" in wish:
        conn.wait(int(wish["apply"]) / 1000)
    if "late" in wish:
        conn.end(reset=True) if "reset" in wish else conn.wait_for_the_end()
        conn.wait(int(wish["late"]) / 1000)
    elif "reset" in wish and "until" in wish:
        conn.end(reset=True)
    wait_for_file(request)
    is_applied = store.apply(request, whole=True)
    if "late" in wish:
        return False
    if "hang" in wish:
        conn.wait_for_the_end()
        return False
    if "reset" in wish or "close" in wish:
        conn.end("reset" in wish)
        return False
    if "slow" in wish:
        conn.wait(int(wish["slow"]) / 1000)
    if "head" in wish:
        conn.send("done")
        store.log.note(now(), "answered", **request.about, status=200)
    else:
        answer(store, request, 200 if is_applied else 500)
    if "race" in wish:
        close_on_the_next(store, conn)
        return False
    return True


def answer(store, request, status):
    store.log.note(now(), "answered", **request.about, status=status)
    request.conn.send(f"HTTP/1.1 {status} Word\r\ncontent-length: 4\r\n\r\ndone")


def close_on_the_next(store, conn):
    """Closes an idle connection in the very moment in which another request comes on it."""
    conn.come.poll()
    try:
        head = conn.sock.recv(65536, socket.MSG_PEEK).decode("latin-1")
    except OSError:
        head = ""
    if not head:
        conn.is_alive(now())
        return
    lines = [line.partition(":") for line in head.split("\r\n")]
    write = next((value.strip() for name, _, value in lines if name.lower() == "x-write"), None)
    store.log.note(now(), "race", conn=conn.number, write=write)
    conn.end(reset=True)


def serve(store, sock, number):
    conn = Connection(store, sock, number)
    store.log.note(now(), "opened", conn=number)
    try:
        while handle(store, conn):
            pass
    finally:
        conn.die("the end")
        sock.close()


def main():
    store = Store(Log(sys.argv[1]), int(sys.argv[2]) / 1000)
    server = socket.create_server(("127.0.0.1", 0), backlog=1024)
    # Until its driver is gone.
    threading.Thread(target=lambda: (sys.stdin.buffer.read(), os._exit(0)), daemon=True).start()
    print(server.getsockname()[1], flush=True)
    number = 0
    while True:
        sock, _ = server.accept()
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        number += 1
        threading.Thread(target=serve, args=(store, sock, number), daemon=True).start()


if __name__ == "__main__":
    main()

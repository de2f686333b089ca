"""The store of a soak run: that of chaos/store.py, with a mode that holds for every request until the next one.

Arguments: its log, and the longest that it may still apply a request whose connection is gone, in milliseconds.
Prints its port. Then it reads modes from standard input, a word per line, answers each with a line once it holds, and
ends with its input:

    ok          every write is applied and answered
    slow:MS     the same, after so long
    refuse      nothing listens, and all connections end
    reset       a write's connection is reset before it is applied, behind it, or a while before it
    hang        a write is never answered; it is applied before its connection ends, after it, or never
    503         a write is answered with 503, applied or not

A path with `/large/` in it is read as LARGE_BYTES.
"""
import contextlib
import itertools
import os
import random
import socket
import sys
import threading
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "chaos"))
import store as recording  # noqa: E402
from logs import Log, now  # noqa: E402

LARGE_BYTES = 4 << 20
LARGE = f"HTTP/1.1 200 OK\r\ncontent-length: {LARGE_BYTES}\r\n\r\n" + "x" * LARGE_BYTES
# In a mode that fails, which of these a write gets is drawn: what was done must not be seen from the failure.
WISHES = {
    "ok": [{}],
    "refuse": [{"reset": ""}],
    "reset": [{"drop": "", "reset": ""}, {"reset": ""}, {"reset": "", "late": "100"}],
    "hang": [{"drop": "", "hang": ""}, {"hang": ""}, {"hang": "", "late": "50"}],
    "503": [{"drop": "", "503": ""}, {"503": ""}],
}


class Flapping:
    """The listener, the connections, and the mode."""

    def __init__(self, store, draw):
        self.store, self.draw, self.mode = store, draw, "ok"
        self.lock, self.conns, self.numbers = threading.Lock(), set(), itertools.count(1)
        self.server = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.port = self.server.getsockname()[1]
        self._accept_from(self.server)

    def _accept_from(self, server):
        threading.Thread(target=self._accept, args=(server,), daemon=True).start()

    def _accept(self, server):
        while True:
            try:
                sock, _ = server.accept()
            except OSError:
                return
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock):
        with self.lock:
            conn = recording.Connection(self.store, sock, next(self.numbers))
            if self.mode == "refuse":
                return sock.close()
            self.conns.add(conn)
        try:
            while self._handle(conn):
                pass
        except (OSError, ValueError):
            pass  # it was ended by a mode, in the middle
        finally:
            with self.lock:
                self.conns.discard(conn)
            conn.die("the end")
            sock.close()

    def _handle(self, conn):
        """One request; says whether the connection goes on."""
        head = conn.head()
        if head is None:
            return False
        request, mode = recording.Request(conn, head), self.mode
        if request.method == "GET":
            value = self.store.value(request.path) or "-"
            is_large = "/large/" in request.path
            conn.send(LARGE if is_large else f"HTTP/1.1 200 OK\r\ncontent-length: {len(value)}\r\n\r\n{value}")
            return not conn.is_dead
        if mode.startswith("slow:"):
            request.wish["apply"] = mode.partition(":")[2]
        else:
            request.wish.update(self.draw.choice(WISHES[mode]))
        return recording.receive(self.store, request) and self._settle(request)

    def _settle(self, request):
        wish, conn = request.wish, request.conn
        if "drop" not in wish and "503" not in wish:
            return recording.settle(self.store, request)
        if "drop" not in wish:
            self.store.apply(request, whole=True)
        if "503" in wish:
            recording.answer(self.store, request, 503)
            return True
        conn.end(reset=True) if "reset" in wish else conn.wait_for_the_end()
        return False

    def become(self, mode):
        with self.lock:
            was, self.mode = self.mode, mode
            if mode == "refuse":
                # A thread that waits in accept keeps the port open behind a plain close.
                self.server.shutdown(socket.SHUT_RDWR)
                self.server.close()
                for conn in self.conns:
                    with contextlib.suppress(OSError):  # the gate was first
                        conn.sock.shutdown(socket.SHUT_RDWR)
        if was == "refuse" and mode != "refuse":
            self.server = socket.create_server(("127.0.0.1", self.port), backlog=1024)
            self._accept_from(self.server)
        self.store.log.note(now(), "mode", mode=mode)


def main():
    store = recording.Store(Log(sys.argv[1]), int(sys.argv[2]) / 1000)
    flapping = Flapping(store, random.Random(19))
    print(flapping.port, flush=True)
    for line in sys.stdin:
        flapping.become(line.strip())
        print(line.strip(), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()

"""The log of what the gate has acknowledged: grants above all. Its own process, outside of all others.

Argument: its log. Prints its port, then writes down every line that it gets, and answers; a client that reports
goes on only then. It serves until its standard input ends.
"""
import json
import os
import socket
import sys
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from logs import Log  # noqa: E402


class Reporter:
    """A connection to the log."""

    def __init__(self, port):
        self.sock = socket.create_connection(("127.0.0.1", port))
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.lock = threading.Lock()

    def report(self, t, event, **more):
        line = json.dumps({"t": t, "event": event, **more}).encode() + b"\n"
        with self.lock:
            self.sock.sendall(line)
            if self.sock.recv(1) != b".":
                raise ConnectionError("the log of grants is gone")


def serve(log, sock):
    for line in sock.makefile("rb"):
        event = json.loads(line)
        log.note(event.pop("t"), event.pop("event"), **event)
        sock.sendall(b".")


def main():
    log = Log(sys.argv[1])
    server = socket.create_server(("127.0.0.1", 0), backlog=64)
    threading.Thread(target=lambda: (sys.stdin.buffer.read(), os._exit(0)), daemon=True).start()
    print(server.getsockname()[1], flush=True)
    while True:
        sock, _ = server.accept()
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=serve, args=(log, sock), daemon=True).start()


if __name__ == "__main__":
    main()

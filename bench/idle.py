#!/usr/bin/env python3
"""Opens connections, has one write answered on each, prints `open N` and holds them until it is killed.

Usage: idle.py PORT CONNECTIONS TOKEN
"""
import signal
import socket
import sys

PATIENCE_S = 10


def main():
    port, count, token = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    request = (f"PUT /bench/1 HTTP/1.1\r\nHost: 127.0.0.1\r\nFence-Token: {token}\r\nContent-Length: 256\r\n\r\n"
               + "x" * 256).encode()
    held = []
    for _ in range(count):
        connection = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
        connection.sendall(request)
        answer = b""
        while not answer.endswith(b"\r\n\r\nok\n"):
            piece = connection.recv(4096)
            if not piece:
                sys.exit(f"connection {len(held)} was closed after {answer!r}")
            answer += piece
        if not answer.startswith(b"HTTP/1.1 200 "):
            sys.exit(f"connection {len(held)} was answered with {answer!r}")
        held.append(connection)
    print(f"open {count}", flush=True)
    signal.pause()


if __name__ == "__main__":
    main()

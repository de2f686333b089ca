#!/usr/bin/env python3
"""One PUT with a long body, as fast as it is taken; prints the seconds until its answer was there.

Usage: send.py PORT BYTES TOKEN      the body lies in memory, and goes out by sendfile
"""
import http.client
import os
import socket
import sys
import time

PIECE = 64 << 20
PATIENCE_S = 60


def main():
    port, size, token = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    body = os.memfd_create("body")
    os.truncate(body, PIECE)
    connection = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
    connection.setblocking(True)
    begun = time.monotonic()
    connection.sendall(f"PUT /bench/1 HTTP/1.1\r\nHost: 127.0.0.1\r\nFence-Token: {token}\r\n"
                       f"Content-Length: {size}\r\n\r\n".encode())
    left = size
    while left > 0:
        at = (size - left) % PIECE
        left -= os.sendfile(connection.fileno(), body, at, min(left, PIECE - at))
    answer = http.client.HTTPResponse(connection, method="PUT")
    answer.begin()
    said = answer.read()
    took = time.monotonic() - begun
    if answer.status != 200 or said != f"{size}\n".encode():
        sys.exit(f"answered with {answer.status} {said[:300]!r}, not 200 and the {size} bytes")
    print(took)


if __name__ == "__main__":
    main()

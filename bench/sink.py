#!/usr/bin/env python3
"""A store that throws bodies away and answers with how long they were: `ready PORT`, then until it is killed.

The kernel drops the bytes without copying them (MSG_TRUNC), so that this is not what bounds a stream.
"""
import re
import socket
import threading

PIECE = 1 << 20


def serve(connection):
    room = bytearray(PIECE)
    while head := read_head(connection):
        head, begun = head
        length = int(re.search(rb"\r\ncontent-length: *(\d+)", head, re.IGNORECASE)[1])
        left = length - begun
        while left > 0:
            got = connection.recv_into(room, min(left, PIECE), socket.MSG_TRUNC)
            if not got:
                return
            left -= got
        said = f"{length}\n"
        connection.sendall(f"HTTP/1.1 200 OK\r\nContent-Length: {len(said)}\r\n\r\n{said}".encode())


def read_head(connection):
    """A request's head, and how many bytes of its body came with it; None at the end."""
    got = b""
    while b"\r\n\r\n" not in got:
        piece = connection.recv(4096)
        if not piece:
            return None
        got += piece
    head, _, rest = got.partition(b"\r\n\r\n")
    return head, len(rest)


def main():
    server = socket.create_server(("127.0.0.1", 0))
    print(f"ready {server.getsockname()[1]}", flush=True)
    while True:
        connection, _ = server.accept()
        threading.Thread(target=serve, args=(connection,), daemon=True).start()


if __name__ == "__main__":
    main()

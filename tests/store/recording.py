"""A store that writes down what it applied: one JSON line per request that came whole.

Prints its port, then serves. What a request wants of it is in the header x-store: `hang`, `reset`
(after the body), `garbage`, or a status to answer with. It knows nothing of fencegate.
"""
import json
import socket
import sys
import threading

log = open(sys.argv[1], "a", buffering=1)
lock = threading.Lock()


def read_body(stream, headers):
    if "chunked" in headers.get("transfer-encoding", ""):
        body = b""
        while True:
            size = int(stream.readline().split(b";")[0] or b"0", 16)
            if size == 0:
                while stream.readline() not in (b"\r\n", b"\n", b""):
                    pass
                return body
            piece = stream.read(size)
            if len(piece) < size:
                return None
            body += piece
            stream.readline()
    length = int(headers.get("content-length", 0))
    body = stream.read(length)
    return body if len(body) == length else None


def serve(connection):
    stream = connection.makefile("rb")
    while True:
        line = stream.readline()
        if not line.endswith(b"\n"):
            return
        method, path, _ = line.decode("latin-1").split(" ", 2)
        headers = {}
        while True:
            field = stream.readline().decode("latin-1").strip()
            if not field:
                break
            name, value = field.split(":", 1)
            headers[name.lower()] = value.strip()
        body = read_body(stream, headers)
        if body is None:
            return
        with lock:
            log.write(json.dumps({"method": method, "path": path, "headers": headers, "size": len(body)}) + "\n")
        wanted = headers.get("x-store", "200")
        if wanted == "hang":
            threading.Event().wait()
        if wanted == "reset":
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            connection.close()
            return
        if wanted == "garbage":
            connection.sendall(b"what?\r\n\r\n")
            connection.close()
            return
        answer = f"{method} {path} {len(body)}\n".encode("latin-1")
        head = f"HTTP/1.1 {wanted} Word\r\ncontent-length: {len(answer)}\r\nx-kept: yes\r\nfence-seq: 999\r\n\r\n"
        connection.sendall(head.encode() + (b"" if method == "HEAD" else answer))


server = socket.create_server(("127.0.0.1", 0), backlog=1024)
print(server.getsockname()[1], flush=True)
while True:
    connection, _ = server.accept()
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    threading.Thread(target=serve, args=(connection,), daemon=True).start()

"""A store that writes down what it applied: a request that came whole, and only such a one.

Prints its port, then serves. Its log has a JSON line per event: `begun` (a request's head is there),
`body` (so is the first of its body), then `applied` (it came whole) or `cut` (it did not), and `untaken`
(its connection ended before all of the answer had left). What a request wants of it is in the header
x-store:

    200, 503, ...   that status
    slow:MS         200, after so long
    until:FILE      200, once that file is there
    large:BYTES     200 with so long a body
    hang            no answer
    lost:FILE       no answer: the connection is reset, once that file is there
    close, reset    no answer: the connection ends in good order, or is reset
    reset-now       the same before the body is read
    garbage         what is no answer
    half            the first half of an answer's head, and the end
    half-body       an answer that promises more than it holds, and the end
    stall           the same, but it hangs instead of ending
    trickle:MS      the beginning of a long answer; after so long it is `halfway`; after as long again there
                    is more of it; then it hangs
    interim         many interim answers, cut anywhere, the last behind the body; then 200
    early           200 before the body is read; then nothing more is read
    early-read      200 before the body is read, which is then read, and applied if it comes whole

With a certificate and a key as further arguments it speaks TLS. It knows nothing of fencegate.
"""
import json
import os
import socket
import ssl
import sys
import threading

log = open(sys.argv[1], "a", buffering=1)
lock = threading.Lock()


def note(event, method, path, **more):
    with lock:
        log.write(json.dumps({"event": event, "method": method, "path": path, **more}) + "\n")


def wait_for_ever():
    threading.Event().wait()


def read_head(stream):
    line = stream.readline()
    if not line.endswith(b"\n"):
        return None
    method, path, _ = line.decode("latin-1").split(" ", 2)
    headers = {}
    while True:
        field = stream.readline()
        if not field.endswith(b"\n"):
            return None
        if not field.strip():
            return method, path, headers
        name, value = field.decode("latin-1").split(":", 1)
        headers[name.lower()] = value.strip()


def pieces_of_chunks(stream):
    while True:
        line = stream.readline()
        if not line.endswith(b"\n"):
            yield None
        size = int(line.split(b";")[0], 16)
        if size == 0:
            break
        piece = stream.read(size + 2)
        yield piece[:size] if len(piece) == size + 2 else None
    while True:
        line = stream.readline()
        if not line.endswith(b"\n"):
            yield None
        if not line.strip():
            return


def pieces_of_length(stream, length):
    while length > 0:
        piece = stream.read1(length)
        length -= len(piece)
        yield piece or None


def read_body(stream, headers, begin):
    """How long the body was, or None if it broke off. Calls begin once the first of it is there."""
    if "chunked" in headers.get("transfer-encoding", ""):
        pieces = pieces_of_chunks(stream)
    else:
        pieces = pieces_of_length(stream, int(headers.get("content-length", 0)))
    size = 0
    try:
        for piece in pieces:
            if piece is None:
                return None
            if size == 0:
                begin()
            size += len(piece)
    except ConnectionError:
        return None
    return size


def reset(connection):
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")


def send(connection, method, status, text):
    body = text.encode("latin-1")
    head = f"HTTP/1.1 {status} Word\r\ncontent-length: {len(body)}\r\nx-kept: yes\r\nfence-seq: 999\r\n\r\n"
    connection.sendall(head.encode() + (b"" if method == "HEAD" else body))


def trickle(connection, seconds, halfway):
    connection.sendall(b"HTTP/1.1 200 Word\r\ncontent-length: 1000000\r\n\r\nx")
    threading.Event().wait(seconds)
    halfway()
    threading.Event().wait(seconds)
    connection.sendall(b"x" * 100000)
    wait_for_ever()


def answer(connection, wanted, method, text):
    """Answers as wanted; says whether the connection goes on."""
    if wanted == "hang":
        wait_for_ever()
    if wanted.startswith("lost:"):
        while not os.path.exists(wanted[5:]):
            threading.Event().wait(0.005)
        wanted = "reset"
    if wanted == "reset":
        reset(connection)
    if wanted == "garbage":
        connection.sendall(b"what?\r\n\r\n")
    if wanted == "half":
        connection.sendall(b"HTTP/1.1 200 Word\r\ncontent-le")
    if wanted in ("half-body", "stall"):
        connection.sendall(b"HTTP/1.1 200 Word\r\ncontent-length: 100\r\n\r\nhalf of it")
    if wanted == "stall":
        wait_for_ever()
    if wanted in ("close", "reset", "garbage", "half", "half-body"):
        return False
    if wanted.startswith("slow:"):
        threading.Event().wait(int(wanted[5:]) / 1000)
        wanted = "200"
    if wanted.startswith("until:"):
        while not os.path.exists(wanted[6:]):
            threading.Event().wait(0.005)
        wanted = "200"
    if wanted == "interim":
        connection.sendall(b"HTTP/1.1 102 Processing\r\n\r\n")
        wanted = "200"
    if wanted.startswith("large:"):
        wanted, text = "200", "x" * int(wanted[6:])
    send(connection, method, wanted, text)
    return True


def handle(connection, stream):
    """One request; says whether the connection goes on."""
    head = read_head(stream)
    if head is None:
        return False
    method, path, headers = head
    note("begun", method, path)
    wanted = headers.get("x-store", "200")
    if wanted == "reset-now":
        reset(connection)
        return False
    if wanted == "interim":
        connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n" + b"HTTP/1.1 102 Processing\r\n\r\n" * 40 + b"HTTP/1.1 103 E")
        threading.Event().wait(0.05)
        connection.sendall(b"arly Hints\r\nlink: </a>\r\n\r\n")
    if wanted in ("early", "early-read"):
        send(connection, method, "200", f"{method} {path} early\n")
    if wanted == "early":
        wait_for_ever()
    size = read_body(stream, headers, lambda: note("body", method, path))
    if size is None:
        note("cut", method, path)
        return False
    note("applied", method, path, headers=headers, size=size)
    try:
        if wanted.startswith("trickle:"):
            trickle(connection, int(wanted[8:]) / 1000, lambda: note("halfway", method, path))
        return wanted == "early-read" or answer(connection, wanted, method, f"{method} {path} {size}\n")
    except ConnectionError:
        note("untaken", method, path)
        return False


def serve(connection):
    if tls:
        try:
            connection = tls.wrap_socket(connection, server_side=True)
        except OSError:
            return
    stream = connection.makefile("rb")
    try:
        while handle(connection, stream):
            pass
    except ConnectionError:
        pass
    finally:
        stream.close()
        connection.close()


tls = None
if len(sys.argv) > 2:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(sys.argv[2], sys.argv[3])
server = socket.create_server(("127.0.0.1", 0), backlog=1024)
print(server.getsockname()[1], flush=True)
while True:
    connection, _ = server.accept()
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    threading.Thread(target=serve, args=(connection,), daemon=True).start()

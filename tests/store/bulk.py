"""A store for bodies of any size. It keeps none of them: what is written to it must be the beginning
of one endless text, which it also serves, so that either end can check every byte.

The text is blocks of 65,521 bytes: the block's number in 8 bytes, big end first, then always the same
noise. The length is a prime, so that no frame or buffer on the way has its borders where a block has.

Prints its port, then serves:
- PUT, POST and the like: reads the body and answers in JSON what came: its framing, how many bytes,
  whether they were exact, the headers and the trailers.
- GET /ANYTHING/SIZE: the text's first SIZE bytes. With the query `chunked` it does not say how many.
  With `trailers` the same, and behind it the trailer x-sum, for a client that says `TE: trailers`.
- GET /report: how many connections there were, how often each path was written, and how many bodies
  were not the text.
What came in the header x-echo goes back in it. It knows nothing of fencegate.
"""
import collections
import json
import socket
import struct
import threading

BLOCK = 65521
NOISE = bytes((i * 167 + (i >> 8) * 13 + 11) & 0xFF for i in range(BLOCK))

lock = threading.Lock()
written = collections.Counter()
counts = {"connections": 0, "wrong": 0}


class Text:
    """The text from its beginning on, block by block."""

    def __init__(self):
        self.block = bytearray(NOISE)

    def number(self, number):
        struct.pack_into(">Q", self.block, 0, number)
        return self.block

    def pieces(self, size):
        for number in range(0, -(-size // BLOCK)):
            yield memoryview(self.number(number))[: min(BLOCK, size - number * BLOCK)]


class Check:
    """Reads what should be the text."""

    def __init__(self, stream, text):
        self.stream, self.text = stream, text
        self.buffer = bytearray(BLOCK)
        self.begin()

    def begin(self):
        self.size, self.exact = 0, True

    def read(self, size):
        """Reads so many bytes more. False: the client broke off."""
        view = memoryview(self.buffer)
        while size:
            number, begin = divmod(self.size, BLOCK)
            end = min(BLOCK, begin + size)
            if self.stream.readinto(view[begin:end]) < end - begin:
                return False
            self.size += end - begin
            size -= end - begin
            if end == BLOCK and self.buffer != self.text.number(number):
                self.exact = False
        return True

    def end(self):
        number, begin = divmod(self.size, BLOCK)
        if self.buffer[:begin] != self.text.number(number)[:begin]:
            self.exact = False


def read_fields(stream):
    fields = {}
    while True:
        line = stream.readline().decode("latin-1").strip()
        if not line:
            return fields
        name, value = line.split(":", 1)
        name, value = name.lower(), value.strip()
        fields[name] = f"{fields[name]}, {value}" if name in fields else value


def read_body(stream, headers, check):
    """The framing and the trailers; nothing where the client broke off."""
    check.begin()
    if "chunked" not in headers.get("transfer-encoding", ""):
        if not check.read(int(headers.get("content-length", 0))):
            return None
        check.end()
        return "length", {}
    while True:
        line = stream.readline()
        if not line:
            return None
        size = int(line.split(b";")[0], 16)
        if size == 0:
            check.end()
            return "chunked", read_fields(stream)
        if not check.read(size) or stream.readline() != b"\r\n":
            return None


def answer(connection, status, headers, body=b""):
    lines = [f"HTTP/1.1 {status}", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
    connection.sendall("\r\n".join(lines).encode("latin-1") + body)


def answer_json(connection, headers, what):
    body = json.dumps(what).encode() + b"\n"
    answer(connection, "200 OK", headers | {"content-type": "application/json", "content-length": len(body)}, body)


def serve_text(connection, text, size, query, said, headers):
    if not query:
        answer(connection, "200 OK", headers | {"content-length": size})
        for piece in text.pieces(size):
            connection.sendall(piece)
        return
    if query == "trailers":
        headers = headers | {"trailer": "x-sum"}
    answer(connection, "200 OK", headers | {"transfer-encoding": "chunked"})
    for piece in text.pieces(size):
        connection.sendall(b"%x\r\n%b\r\n" % (len(piece), piece))
    wants_trailers = "trailers" in said.get("te", "")
    trailers = b"x-sum: %d\r\n" % size if query == "trailers" and wants_trailers else b""
    connection.sendall(b"0\r\n" + trailers + b"\r\n")


def note(path, exact):
    with lock:
        written[path] += 1
        counts["wrong"] += not exact


def report():
    with lock:
        return counts | {"written": dict(written)}


def serve(connection):
    stream = connection.makefile("rb", 1 << 14)
    text = Text()
    check = Check(stream, text)
    while True:
        line = stream.readline()
        if not line.endswith(b"\n"):
            return
        method, path, _ = line.decode("latin-1").split(" ", 2)
        said = read_fields(stream)
        body = read_body(stream, said, check)
        if body is None:
            return
        headers = {"x-echo": said["x-echo"]} if "x-echo" in said else {}
        name, _, query = path.partition("?")
        if method != "GET":
            note(path, check.exact)
            framing, trailers = body
            came = {"framing": framing, "bytes": check.size, "exact": check.exact}
            answer_json(connection, headers, came | {"headers": said, "trailers": trailers})
        elif name == "/report":
            answer_json(connection, headers, report())
        else:
            serve_text(connection, text, int(name.rsplit("/", 1)[1]), query, said, headers)


def begin(connection):
    try:
        serve(connection)
    except OSError:
        pass  # The client is gone.
    finally:
        connection.close()


def main():
    threading.stack_size(256 * 1024)
    server = socket.create_server(("127.0.0.1", 0), backlog=1024)
    print(server.getsockname()[1], flush=True)
    while True:
        connection, _ = server.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with lock:
            counts["connections"] += 1
        threading.Thread(target=begin, args=(connection,), daemon=True).start()


if __name__ == "__main__":
    main()

"""An HTTP/1.1 client on a plain socket, which knows when an answer was not there yet."""
import json
import select
import socket

from logs import now

LOOK_MS = 20
PATIENCE_S = 15


class Answer:
    """An answer. `quiet`: when it was certainly not there yet; `ret`: when it was."""

    def __init__(self, status, headers, body, quiet, ret):
        self.status, self.headers, self.body, self.quiet, self.ret = status, headers, body, quiet, ret

    def json(self):
        return json.loads(self.body)

    @property
    def code(self):
        return self.headers.get("fence-error")


class Conn:
    """A connection that is used for call after call. Whatever goes wrong on it is an OSError."""

    def __init__(self, address, patience_s=PATIENCE_S, source=None):
        """`source`: the address that it comes from, if not the usual one."""
        self.sock = socket.create_connection(tuple(address), timeout=2, source_address=source and (source, 0))
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock.settimeout(patience_s)
        self.patience_s = patience_s
        self.buffer = b""
        self.quiet = now()
        self.come = select.poll()
        self.come.register(self.sock, select.POLLIN)

    def send(self, method, path, headers=(), body=b"", length=None):
        """Sends a request, or the beginning of one whose body is to be longer."""
        length = len(body) if length is None else length
        lines = [f"{method} {path} HTTP/1.1", "host: 127.0.0.1", f"content-length: {length}"]
        lines += [f"{name}: {value}" for name, value in headers]
        self.quiet = now()
        self.sock.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + body)

    def send_more(self, body):
        self.sock.sendall(body)

    def is_answered(self, wait_s=0.0):
        """Looks whether some of an answer is there."""
        t = now()
        if self.buffer or self.come.poll(wait_s * 1000):
            return True
        self.quiet = t
        return False

    def _more(self):
        deadline = now() + self.patience_s
        while not self.is_answered(LOOK_MS / 1000):
            if now() > deadline:
                raise TimeoutError("no answer")
        piece = self.sock.recv(65536)
        if not piece:
            raise ConnectionError("the connection was closed")
        self.buffer += piece

    def receive(self):
        """The answer, past interim ones."""
        head, quiet = self._head(), self.quiet
        while head[0] == 100:
            head, quiet = self._head(), self.quiet
        status, headers = head
        length = int(headers.get("content-length", 0))
        while len(self.buffer) < length:
            self._more()
        body, self.buffer = self.buffer[:length], self.buffer[length:]
        return Answer(status, headers, body, quiet, now())

    def interim(self):
        """Waits for the head of an interim answer; returns its status."""
        return self._head()[0]

    def _head(self):
        while b"\r\n\r\n" not in self.buffer:
            self._more()
        head, _, self.buffer = self.buffer.partition(b"\r\n\r\n")
        first, *fields = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (field.partition(":") for field in fields)}
        return int(first.split(" ")[1]), headers

    def call(self, method, path, headers=(), body=b""):
        self.send(method, path, headers, body)
        return self.receive()

    def post(self, path, body):
        return self.call("POST", path, [("content-type", "application/json")], json.dumps(body).encode())

    def hang_up(self):
        """Ends the connection badly."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.sock.close()

    def close(self):
        self.sock.close()

"""One HTTP/1.1 exchange on a plain socket, for the checks and the lease call: no library in between."""
import http.client
import json
import socket

PATIENCE_S = 10


def connect(port):
    return socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)


def exchange(connection, method, path, headers=None, body=b""):
    """Sends one request and returns its answer: status, headers, body."""
    lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    # In one piece: a peer that refuses by the head alone may hang up before a second piece comes.
    connection.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
    answer = http.client.HTTPResponse(connection, method=method)
    answer.begin()
    return answer.status, answer.headers, answer.read()


def once(port, method, path, headers=None, body=b""):
    with connect(port) as connection:
        return exchange(connection, method, path, headers, body)


def post_json(port, path, value):
    status, _, body = once(port, "POST", path, {"Content-Type": "application/json"}, json.dumps(value).encode())
    return status, json.loads(body)

"""Python's own HTTP client, through the gate: reads, and writes of every framing, on one connection.

Usage: python3 -B python_client.py HOST PORT TOKEN, with a gate before tests/store/bulk.py and a token for
the object `users`. Says how many answers it checked; a wrong one ends it with an error.
"""
import http.client
import io
import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "store"))
import bulk  # noqa: E402

HOST, PORT, TOKEN = sys.argv[1], int(sys.argv[2]), sys.argv[3]
SIZES = [0, 1, 1000, 65535, 65536, 65537, 3_000_000]
checked = 0


def check(what, came, wanted):
    global checked
    checked += 1
    if came != wanted:
        sys.exit(f"{what}: {came!r} instead of {wanted!r}")


def text(size):
    return b"".join(bytes(piece) for piece in bulk.Text().pieces(size))


def pieces(body, size):
    for begin in range(0, len(body), size):
        yield body[begin : begin + size]


def call(connection, method, path, body=None, headers={}, chunked=False):
    connection.request(method, path, body=body, headers=headers, encode_chunked=chunked)
    response = connection.getresponse()
    return response, response.read()


def write(connection, what, size, body, chunked=False):
    headers = {"Fence-Token": TOKEN} | ({"Transfer-Encoding": "chunked"} if chunked else {})
    response, answer = call(connection, "PUT", "/users/1", body, headers, chunked)
    check(f"{what}: status and outcome", (response.status, response.getheader("fence-outcome")), (200, "settled"))
    came = json.loads(answer)
    check(f"{what}: what came", (came["bytes"], came["exact"]), (size, True))


def main():
    connection = http.client.HTTPConnection(HOST, PORT, timeout=60)
    connection.connect()
    name = connection.sock.getsockname()
    for size in SIZES:
        body = text(size)
        write(connection, f"{size} bytes", size, body)
        write(connection, f"{size} bytes in chunks", size, pieces(body, 4099), chunked=True)
        write(connection, f"{size} bytes of a file", size, io.BytesIO(body), chunked=True)
        for query in ["", "?chunked"]:
            response, came = call(connection, "GET", f"/users/{size}{query}")
            check(f"reading {size} bytes{query}", (response.status, came == body), (200, True))
    response, _ = call(connection, "DELETE", "/users/1", headers={"Fence-Token": TOKEN})
    check("a write without a body", response.status, 200)
    check("the connection", connection.sock and connection.sock.getsockname(), name)

    connection = http.client.HTTPConnection(HOST, PORT, timeout=60)
    response, answer = call(connection, "PUT", "/users/1", b"x")
    check("no token", (response.status, response.getheader("fence-error")), (428, "WRITE_UNFENCED"))
    check("no token: the code", json.loads(answer)["code"], "WRITE_UNFENCED")
    print(checked, "answers are right")


main()

"""Instructions that a gate takes per small write: the real process, under callgrind, over real sockets.

Callgrind counts the same whatever else the machine does. A gate that answers so many writes more than another has so
many instructions more; what it does at start and stop falls out of the difference. How often a task is woken still
depends on when packets come, so counts of several rounds are compared by their medians.
"""
import contextlib
import http.client
import json
import os
import re
import signal
import socket
import statistics
import subprocess
import tempfile
import threading
from pathlib import Path

from processes import Failed, environment, program

FEW, MANY = 500, 8_500
ROUNDS = 3
BODY = b"x" * 256
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
LIMIT_S = 240

CONFIG = """\
[gate]
listen = '127.0.0.1:0'
workers = 1
[api]
listen = '127.0.0.1:0'
[ops]
listen = '127.0.0.1:0'
[store]
url = 'http://127.0.0.1:{port}'
[table]
path = '{folder}/data'
{more}
"""


def store():
    """A store that says ok to every request of one connection after the other; returns its port."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve(connection):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with contextlib.suppress(ConnectionError):
            while connection.recv(65_536):
                connection.sendall(ANSWER)

    def accept():
        while True:
            connection, _ = server.accept()
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    return server.getsockname()[1]


def start(gate, folder, fault):
    """A gate under callgrind; its addresses by name."""
    env = environment()
    if fault:
        env["FENCEGATE_TEST_FAULT"] = fault
    process = subprocess.Popen(
        [program("valgrind"), "--tool=callgrind", f"--callgrind-out-file={folder}/counted", str(gate), "serve",
         "--config", str(folder / "config.toml")],
        env=env, stdout=subprocess.PIPE, stderr=open(folder / "log", "ab"), text=True)
    alarm = threading.Timer(LIMIT_S, process.kill)
    alarm.start()
    ready = process.stdout.readline()
    alarm.cancel()
    if not ready.startswith("ready "):
        process.kill()
        raise Failed(f"the gate did not start: {(folder / 'log').read_text()[-2000:]}")
    return process, dict(word.split("=") for word in ready.split()[1:])


def acquire(api):
    """A lease of `bench`; returns its token."""
    call = http.client.HTTPConnection(api, timeout=60)
    body = json.dumps({"object_id": "bench", "holder_id": "bench", "ttl_ms": 3_600_000})
    call.request("POST", "/v1/leases", body, {"content-type": "application/json"})
    answer = call.getresponse()
    lease = json.load(answer)
    if answer.status != 201:
        raise Failed(f"no lease: {lease}")
    return lease["fence_token"]


def write(gate, token, times, outcome, apart):
    """So many writes on one connection, one after the other; every answer is checked. `apart`: the body waits for the
    gate's 100 Continue, so it cannot come with the head."""
    host, port = gate.split(":")
    connection = socket.create_connection((host, int(port)), timeout=60)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    expect = "expect: 100-continue\r\n" if apart else ""
    head = (f"PUT /bench/1 HTTP/1.1\r\nhost: bench\r\nfence-token: {token}\r\n{expect}"
            f"content-length: {len(BODY)}\r\n\r\n").encode()
    for _ in range(times):
        if apart:
            connection.sendall(head)
            if connection.recv(65_536) != b"HTTP/1.1 100 Continue\r\n\r\n":
                raise Failed("the gate does not ask for the body")
            connection.sendall(BODY)
        else:
            connection.sendall(head + BODY)
        answer = b""
        while not answer.endswith(b"\r\n\r\nok"):
            piece = connection.recv(65_536)
            if not piece:
                raise Failed(f"the gate broke off: {answer!r}")
            answer += piece
        said = re.search(rb"\r\nfence-outcome: (\w+)\r\n", answer.lower())
        if b" 200 " not in answer.split(b"\r\n")[0] or (said and said[1].decode()) != outcome:
            raise Failed(f"a write was answered {answer!r}, with another outcome than {outcome}")


def count(gate, port, times, fault=None, more="", outcome="settled", apart=False):
    """Instructions of a gate that answers so many writes."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "config.toml").write_text(CONFIG.format(port=port, folder=folder, more=more))
        subprocess.run([str(gate), "table", "init", "--config", str(folder / "config.toml")], check=True,
                       env=environment(), stdout=subprocess.DEVNULL)
        process, at = start(gate, folder, fault)
        try:
            write(at["gate"], acquire(at["api"]), times, outcome, apart)
            process.send_signal(signal.SIGTERM)
            process.wait(LIMIT_S)
        finally:
            process.kill()
            process.wait()
        counted = re.search(r"^(?:summary|totals): (\d+)", (folder / "counted").read_text(), re.MULTILINE)
        if not counted:
            raise Failed("callgrind counted nothing")
        return int(counted[1])


def per_write(gate, port, **how):
    few, many = (count(gate, port, times, **how) for times in (FEW, MANY))
    return (many - few) / (MANY - FEW)


def side_by_side(gate, one, other):
    """Instructions per write of both ways, round by round."""
    if not os.access(gate, os.X_OK):
        raise Failed(f"no program: {gate}; `make bench` builds it")
    port = store()
    return [(per_write(gate, port, **one), per_write(gate, port, **other)) for _ in range(ROUNDS)]


def medians(rounds):
    """Of both ways, and their ratio."""
    one, other = (statistics.median(each) for each in zip(*rounds))
    return one, other, other / one

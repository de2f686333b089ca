#!/usr/bin/env python3
"""Tests of pace.c against a server made here: it counts, it fails on every wrong answer, it hides no stall.

Run: python3 -B bench/test_pace.py
"""
import contextlib
import json
import socket
import subprocess
import tempfile
import threading
import time
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
GOOD = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok\n"
NEEDLE = "\r\n\r\nok\n"
REQUEST_END = b"x" * 256
STALL_S = 0.3


class Server:
    """Answers each request by `answer(path, token)`; None hangs up."""

    def __init__(self, answer):
        self.answer, self.seen, self.keys = answer, [], []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(connection,), daemon=True).start()

    def serve(self, connection):
        # A load that has failed hangs up with answers unread.
        with connection, contextlib.suppress(ConnectionError):
            got = b""
            while piece := connection.recv(65536):
                got += piece
                while REQUEST_END in got:
                    head, _, got = got.partition(REQUEST_END)
                    lines = head.decode().split("\r\n")
                    path, token = lines[0].split()[1], lines[2].removeprefix("Fence-Token: ")
                    self.seen.append((path, token))
                    self.keys += [line.partition(": ")[2] for line in lines if line.startswith("Idempotency-Key: ")]
                    said = self.answer(path, token)
                    if said is None:
                        return
                    connection.sendall(said)


class Pace(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.program = Path(cls.folder.name) / "pace"
        subprocess.run(["gcc", "-O2", "-Wall", "-Wextra", "-Werror", "-o", cls.program, HERE / "pace.c"], check=True)
        cls.targets = Path(cls.folder.name) / "targets"
        cls.write_targets()

    @classmethod
    def write_targets(cls):
        cls.targets.write_text("".join(f"/object/{n} token-{n}\n" for n in range(10)))

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def pace(self, answer, *how, connections=4, status=200, needle=NEEDLE):
        self.server = Server(answer)
        self.addCleanup(self.server.listener.close)
        return subprocess.run(
            [self.program, str(self.server.port), self.targets, str(connections), str(status), needle, *map(str, how)],
            capture_output=True, text=True, timeout=60)

    def test_writes_to_each_target_once(self):
        done = self.pace(lambda *_: GOOD, "once")
        self.assertEqual(json.loads(done.stdout)["requests"], 10)
        self.assertEqual(sorted(self.server.seen), sorted((f"/object/{n}", f"token-{n}") for n in range(10)))

    def test_a_third_word_is_an_idempotency_key(self):
        self.targets.write_text("/object/1 token-1 key-1\n/object/2 token-2\n")
        self.addCleanup(type(self).write_targets)
        self.assertEqual(json.loads(self.pace(lambda *_: GOOD, "once").stdout)["requests"], 2)
        self.assertEqual(sorted(self.server.seen), [("/object/1", "token-1"), ("/object/2", "token-2")])
        self.assertEqual(self.server.keys, ["key-1"])

    def test_flat_out_counts_what_the_server_saw(self):
        said = json.loads(self.pace(lambda *_: GOOD, "flat", 0.2).stdout)
        self.assertGreater(said["requests"], 0)
        self.assertEqual(said["requests"], len(self.server.seen))

    def test_at_a_rate_sends_as_many_as_that_makes(self):
        said = json.loads(self.pace(lambda *_: GOOD, "rate", 500, 0.4).stdout)
        self.assertEqual((said["requests"], len(self.server.seen)), (200, 200))

    def test_a_stall_counts_for_all_that_had_to_wait(self):
        stalled = threading.Event()

        def answer(*_):
            if len(self.server.seen) == 50 and not stalled.is_set():
                stalled.set()
                time.sleep(STALL_S)
            return GOOD

        # One connection: whatever was due during the stall had to wait for its rest.
        said = json.loads(self.pace(answer, "rate", 200, 1, connections=1).stdout)
        self.assertTrue(stalled.is_set())
        self.assertGreaterEqual(said["max_us"], STALL_S * 1e6)
        # About sixty of the two hundred were due meanwhile; a closed loop would show one.
        self.assertGreaterEqual(said["p90_us"], STALL_S * 1e6 / 10)

    def test_fails_on_every_wrong_answer(self):
        for why, answer in {
            "wrong answer: HTTP/1.1 503": b"HTTP/1.1 503 No\r\nContent-Length: 3\r\n\r\nok\n",
            "wrong answer: HTTP/1.1 200": b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nno\n",
            "no length in: HTTP/1.1 200": b"HTTP/1.1 200 OK\r\n\r\nok\n",
            "connection closed after": None,
        }.items():
            done = self.pace(lambda *_, said=answer: said, "flat", 0.2)
            self.assertEqual(done.returncode, 1, why)
            self.assertIn(why, done.stderr)

    def test_takes_a_refusal_where_one_is_wanted(self):
        refusal = b"HTTP/1.1 412 No\r\nfence-error: STALE\r\nContent-Length: 0\r\n\r\n"
        self.assertEqual(self.pace(lambda *_: refusal, "once", status=412, needle="STALE").returncode, 0)
        self.assertEqual(self.pace(lambda *_: GOOD, "once", status=412, needle="STALE").returncode, 1)


if __name__ == "__main__":
    unittest.main()

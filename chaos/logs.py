"""Logs: one JSON line per event, appended whole, with its time on CLOCK_MONOTONIC (`t`).

That clock is one for all processes of a machine, so times of different logs can be compared.
"""
import json
import os
import time

now = time.monotonic


class Log:
    """A log that is written to. Lines of several threads do not mix."""

    def __init__(self, path):
        self.fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def note(self, t, event, **more):
        line = json.dumps({"t": t, "event": event, **more}, separators=(",", ":"))
        os.write(self.fd, line.encode() + b"\n")


class Tail:
    """A log that is read as it grows."""

    def __init__(self, path):
        self.path = path
        self.at = 0

    def new(self):
        """The events that were written since the last call."""
        if not os.path.exists(self.path):
            return []
        with open(self.path, "rb") as file:
            file.seek(self.at)
            text = file.read()
        # A line that is still being written is not there yet.
        whole = text[: text.rfind(b"\n") + 1]
        self.at += len(whole)
        return [json.loads(line) for line in whole.splitlines()]

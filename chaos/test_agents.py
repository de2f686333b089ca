#!/usr/bin/env python3
"""Tests of what the oracle says of writes that an agent has added a token to. Run: python3 chaos/test_agents.py"""
import sys
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).parent))
from counts import Counts  # noqa: E402
from test_oracle import Case, Logs  # noqa: E402


class Agents(Case):
    """The oracle does not know what the agents were granted."""

    def setUp(self):
        self.logs = Logs()
        self.write(2, "w1", 1, "one")

    def sent(self, t, write, holder="one", **more):
        self.logs.sent(t, write, None, holder=holder, by_agent=True, **more)

    def write(self, t, write, seq, holder):
        """A write that goes as it should."""
        self.sent(t, write, holder)
        for step, event in enumerate(("begun", "received", "applied")):
            self.logs.at_store(t + (step + 1) / 10, event, write, seq)
        self.logs.done(t + 0.5, write, fence_seq=str(seq))

    def did(self, t, what, name, begun):
        self.logs.calls.append({"t": t, "event": "agent", "name": name, "begun": begun, "what": what, "ttl_s": 0.5})

    def test_pass_where_their_numbers_rise(self):
        self.write(3, "w2", 2, "two")
        self.broken()

    def test_numbers_that_go_down(self):
        self.write(3, "w2", 3, "two")
        self.write(4, "w3", 2, "one")
        self.broken("DRAIN")

    def test_a_write_that_lands_after_a_revocation(self):
        self.sent(3, "w2")
        self.logs.at_store(3.1, "begun", "w2", 1)
        self.logs.revoked(5, 2)
        self.logs.at_store(5.1, "applied", "w2", 1)
        self.broken("DRAIN")

    def test_a_write_with_an_old_number(self):
        self.logs.revoked(5, 2)
        self.sent(6, "w2")
        self.logs.at_store(6.1, "begun", "w2", 1)
        self.broken("STALE")

    def test_a_write_as_another_object(self):
        self.sent(3, "w2")
        self.logs.at_store(3.1, "begun", "w2", 1, object="y")
        self.broken("LINKED")

    def test_a_write_without_the_gates_word(self):
        self.sent(3, "w2")
        self.logs.at_store(3.1, "begun", "w2", 0, object=None)
        self.broken("UNFENCED")

    def test_a_refusal_that_was_sent(self):
        self.sent(3, "w2")
        self.logs.done(4, "w2", "refused", code="NOT_LEADER")
        self.logs.at_store(5, "begun", "w2", 1)
        self.broken("REFUSED")

    def test_a_success_that_was_not_applied(self):
        self.sent(3, "w2")
        self.logs.done(4, "w2")
        self.broken("ACKNOWLEDGED")

    def test_are_counted(self):
        self.write(4, "w2", 2, "two")
        self.did(5, "stopped", "one", begun=3)
        self.did(5, "stopped", "one", begun=4.2)
        self.did(6, "killed", "two", begun=5)
        found = Counts(self.logs.oracle()).all()
        names = ("agents' writes applied", "agents' handovers", "agents stopped past their lease", "agents killed")
        self.assertEqual([found[name] for name in names], [2, 1, 1, 1])


if __name__ == "__main__":
    unittest.main()

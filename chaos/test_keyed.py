#!/usr/bin/env python3
"""Tests of what the oracle says of keyed writes: logs that are broken by hand are each rejected by name. Run:
python3 chaos/test_keyed.py"""
import sys
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).parent))
import history  # noqa: E402
import linear  # noqa: E402
from counts import Counts  # noqa: E402
from test_oracle import Case  # noqa: E402


class Keyed(Case):
    def sent(self, t, write, seq=1, payload="p", **more):
        self.logs.sent(t, write, seq, key="k", payload=payload, **more)

    def applied(self, t, write, seq=1):
        for step, event in enumerate(("begun", "received", "applied")):
            self.logs.at_store(t + step / 10, event, write, seq)

    def first(self, outcome="ok", **more):
        """The first attempt, which is applied."""
        self.sent(3, "first")
        self.applied(3.1, "first")
        self.logs.done(4, "first", outcome, **more)

    def again(self, outcome="ok", payload="p", t=5, seq=1, **more):
        """The second, which does not come to the store."""
        self.sent(t, "again", seq, payload)
        self.logs.done(t + 1, "again", outcome, **more)

    def test_pass_where_the_kept_answer_comes_back(self):
        self.first()
        self.again(replayed=True, fence_seq="1")
        self.broken()

    def test_pass_where_the_first_answer_was_lost(self):
        self.first("maybe")
        self.again(replayed=True, fence_seq="1")
        self.broken()

    def test_pass_where_the_key_comes_with_the_next_lease(self):
        self.first()
        self.logs.granted(5, 2)
        self.again(t=6, seq=2, replayed=True, fence_seq="1")
        self.broken()

    def test_pass_where_attempts_are_refused_for_their_key(self):
        self.first("maybe")
        self.again("maybe", code="IDEMPOTENCY_UNKNOWN")
        self.sent(7, "other", payload="q")
        self.logs.done(8, "other", "refused", code="IDEMPOTENCY_KEY_REUSED")
        self.broken()

    def test_pass_where_the_first_was_never_sent(self):
        self.sent(3, "first")
        self.logs.done(4, "first", "refused", code="STORE_UNREACHABLE")
        self.sent(5, "again")
        self.applied(5.1, "again")
        self.logs.done(6, "again")
        self.broken()

    def test_pass_where_a_lost_tail_may_have_taken_the_key(self):
        self.first()
        self.logs.tail_lost(4.5)
        self.sent(5, "again")
        self.applied(5.1, "again")
        self.logs.done(6, "again")
        self.broken()

    def test_pass_where_it_is_another_holders_key(self):
        self.first()
        self.logs.granted(5, 2, holder="b")
        self.sent(6, "other", 2, holder="b")
        self.applied(6.1, "other", 2)
        self.logs.done(7, "other")
        self.broken()

    def test_a_write_that_runs_twice(self):
        self.first()
        self.sent(5, "again")
        self.applied(5.1, "again")
        self.logs.done(6, "again")
        self.broken("KEYED")

    def test_a_write_that_runs_twice_at_the_same_time(self):
        self.sent(3, "first")
        self.sent(3, "again")
        for event, t in ("begun", 3.1), ("applied", 3.3):
            for step, write in enumerate(("first", "again")):
                self.logs.at_store(t + step / 10, event, write, 1)
        self.broken("KEYED")

    def test_a_write_that_runs_twice_though_a_tail_was_lost_before(self):
        self.logs.tail_lost(2.9)
        self.test_a_write_that_runs_twice()

    def test_a_kept_answer_of_nothing(self):
        self.sent(3, "first")
        self.logs.done(4, "first", "maybe")
        self.again(replayed=True)
        self.broken("KEYED")

    def test_a_kept_answer_of_another_write(self):
        self.first()
        self.again(payload="q", replayed=True)
        self.broken("KEYED")

    def test_a_kept_answer_that_came_before_the_write(self):
        self.again(t=1.5, replayed=True)
        self.first()
        self.broken("KEYED")

    def test_a_kept_answer_with_another_number(self):
        self.first()
        self.again(replayed=True, fence_seq="2")
        self.broken("LINKED")

    def test_an_attempt_that_got_a_kept_answer_and_was_sent(self):
        self.sent(3, "first")
        self.logs.at_store(3.1, "begun", "first", 1)
        self.logs.done(4, "first", "store", replayed=True)
        self.broken("KEYED")

    def test_an_attempt_that_was_refused_for_its_key_and_sent(self):
        self.sent(3, "first")
        self.logs.at_store(3.1, "begun", "first", 1)
        self.logs.done(4, "first", "maybe", code="IDEMPOTENCY_UNKNOWN")
        self.broken("KEYED")

    def test_a_key_that_is_called_another_writes_and_is_not(self):
        self.first()
        self.again("refused", code="IDEMPOTENCY_KEY_REUSED")
        self.broken("KEYED")

    def test_are_one_write_in_the_history(self):
        self.first("maybe")
        self.again(replayed=True)
        ops = {op["value"]: op for op in history.operations(self.logs.oracle(), ["x"])["x"] if op["op"] == "write"}
        self.assertEqual(set(ops), {"w1", "first"})
        self.assertEqual((ops["first"]["call"], ops["first"]["ret"], ops["first"]["ok"]), (3, 6, True))
        self.assertIsNone(linear.check(history.operations(self.logs.oracle(), ["x"])["x"]))

    def test_are_counted(self):
        self.first("maybe")
        self.again("maybe", code="IDEMPOTENCY_UNKNOWN")
        found = Counts(self.logs.oracle()).all()
        self.assertEqual((found["keyed writes applied"], found["attempts of an unknown write"]), (1, 1))


if __name__ == "__main__":
    unittest.main()

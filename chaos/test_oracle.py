#!/usr/bin/env python3
"""Tests of the oracle: logs that are broken by hand are each rejected by name. Run: python3 chaos/test_oracle.py"""
import sys
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).parent))
import history  # noqa: E402
import journal  # noqa: E402
import linear  # noqa: E402
from counts import Counts  # noqa: E402
from oracle import Oracle  # noqa: E402


class Logs:
    """Logs of one object, `x`, unless said otherwise. Every line has its time."""

    def __init__(self):
        self.calls, self.grants, self.store, self.driver = [], [], [], []
        self.started(0)
        self.moved(0, "ra", begun=0)

    # The driver.

    def started(self, t):
        self.driver.append({"t": t, "event": "started"})

    def moved(self, t, moving, begun):
        self.driver.append({"t": t, "event": "moved", "begun": begun, "moving": moving})

    def tail_lost(self, t):
        self.driver.append({"t": t, "event": "tail_lost"})

    def incarnation(self, t):
        self.driver.append({"t": t, "event": "incarnation"})

    def held(self, begun, t):
        self.driver.append({"t": t, "event": "held", "begun": begun})

    # Leases.

    def granted(self, t, seq, holder="a", lease=None, call=None, quiet=None, ttl_ms=60_000, tainted=False, object="x",
                request_id=None):
        call, lease = t - 1 if call is None else call, lease or f"{object}-{seq}"
        self.calls.append({"t": call, "event": "call", "id": f"g{t}", "op": "acquire", "process": holder,
                           "holder": holder, "object": object, "request_id": request_id})
        self.calls.append({"t": t, "event": "done", "id": f"g{t}", "outcome": "ok", "seq": seq, "lease": lease})
        self.grants.append({"t": t, "event": "granted", "object": object, "seq": seq, "holder": holder,
                            "lease": lease, "call": call, "ttl_ms": ttl_ms,
                            "quiet": call if quiet is None else quiet, "how": "acquire", "tainted": tainted})

    def fence(self, t, fence, object="x"):
        self.grants.append({"t": t, "event": "fence", "object": object, "fence": fence, "quiet": t - 0.5})

    def revoked(self, t, fence, drained=True):
        self.grants.append({"t": t, "event": "revoked", "object": "x", "fence": fence, "call": t - 1, "quiet": t - 1,
                            "drained": drained})

    def certified(self, t, seq, fence=None, acknowledged=True, again=False, moved=True):
        call = t - 1
        self.calls.append({"t": call, "event": "call", "id": f"f{t}", "op": "fence", "process": "c", "holder": "c",
                           "object": "x", "fences": seq, "again": again})
        self.calls.append({"t": t, "event": "done", "id": f"f{t}", "outcome": "ok", "acknowledged": acknowledged,
                           "moved": moved})
        self.grants.append({"t": t, "event": "certified", "object": "x", "seq": seq, "call": call, "quiet": call,
                            "fence": seq + 1 if fence is None else fence, "acknowledged": acknowledged})

    def acknowledged(self, t, seq):
        self.grants.append({"t": t, "event": "acknowledged", "object": "x", "seq": seq})

    def journal(self, t, entries, after=0):
        self.grants.append({"t": t, "event": "journal", "object": "x", "call": t - 1, "after": after,
                            "entries": entries})

    def mismatch(self, t, lies):
        self.grants.append({"t": t, "event": "mismatch", "object": "x", "lies": lies, "writes": 1, "hash": "a",
                            "reported": "b"})

    def over(self, t, seq, **more):
        self.grants.append({"t": t, "event": "over", "object": "x", "seq": seq, "quiet": t} | more)

    def renewed(self, t, seq, quiet):
        self.grants.append({"t": t, "event": "renewed", "object": "x", "seq": seq, "ttl_ms": 1_000, "sure": True,
                            "quiet": quiet})

    def lease(self, t, seq, state):
        self.grants.append({"t": t, "event": "lease", "object": "x", "seq": seq, "lease": f"x-{seq}",
                            "state": state, "quiet": t})

    # Locks that are kept elsewhere, of the object `x-1`.

    def issued(self, t, seq, holder="a"):
        self.grants.append({"t": t, "event": "issued", "object": "x-1", "seq": seq, "holder": holder})

    def _moved(self, op, event, t, seq, call, fence):
        call = t - 0.5 if call is None else call
        self.calls.append({"t": call, "event": "call", "id": f"{op}{t}", "op": op, "process": "a", "holder": "a",
                           "object": "x-1", "seq": seq})
        self.calls.append({"t": t, "event": "done", "id": f"{op}{t}", "outcome": "ok"})
        self.grants.append({"t": t, "event": event, "object": "x-1", "seq": seq, "call": call, "quiet": call,
                            "fence": seq if fence is None else fence})

    def advanced(self, t, seq, call=None, fence=None):
        self._moved("advance", "advanced", t, seq, call, fence)

    def confirmed(self, t, seq, call=None):
        self._moved("confirm", "confirmed", t, seq, call, None)

    def paused(self, t, holder, begun):
        self.calls.append({"t": t, "event": "paused", "holder": holder, "begun": begun})

    # Writes.

    def sent(self, t, write, seq, holder="a", object="x", token=None, wish="", hangs_up=False, **more):
        self.calls.append({"t": t, "event": "call", "id": write, "op": "write", "process": holder, "holder": holder,
                           "object": object, "seq": seq, "token": token, "wish": wish, "hangs_up": hangs_up, **more})

    def done(self, t, write, outcome="ok", code=None, **more):
        self.calls.append({"t": t, "event": "done", "id": write, "outcome": outcome, "code": code} | more)

    def at_store(self, t, event, write, seq, object="x", path="/o/x/v"):
        self.store.append({"t": t, "event": event, "write": write, "object": object, "seq": seq, "path": path,
                           "conn": 1, "alive": True})

    def write(self, t, write, seq, **who):
        """A write that goes as it should."""
        path = {key: value for key, value in who.items() if key in ("object", "path")}
        self.sent(t, write, seq, **{key: value for key, value in who.items() if key != "path"})
        for step, event in enumerate(("begun", "received", "applied")):
            self.at_store(t + (step + 1) / 10, event, write, seq, **path)
        self.done(t + 0.5, write)

    def oracle(self):
        oracle = Oracle()
        oracle.feed(self.driver, self.calls, self.grants, self.store)
        oracle.feed()
        return oracle


class Case(unittest.TestCase):
    def setUp(self):
        self.logs = Logs()
        self.logs.granted(1, 1)
        self.logs.write(2, "w1", 1)

    def broken(self, *promises):
        found = [violation.promise for violation in self.logs.oracle().violations]
        self.assertEqual(found, list(promises))


class GoodLogs(Case):
    def test_pass(self):
        logs = self.logs
        logs.fence(3, 1)
        logs.granted(5, 2, holder="b")
        logs.write(6, "w2", 2, holder="b")
        logs.sent(7, "w3", 1)
        logs.done(7.1, "w3", "refused", "WRITE_STALE_FENCE")
        logs.over(7.1, 1)
        logs.renewed(7.5, 2, quiet=7)
        logs.revoked(8, 3)
        logs.lease(9, 1, "fenced")
        self.broken()

    def test_pass_where_a_write_lands_before_the_grant_that_waited_for_it(self):
        self.logs.granted(2.31, 2, call=2.05)
        self.broken()

    def test_pass_in_whatever_order_the_logs_are_read(self):
        self.logs.granted(5, 2)
        oracle = Oracle()
        oracle.feed(self.logs.driver, self.logs.calls, store=self.logs.store, grants=self.logs.grants[:1])
        oracle.feed(grants=self.logs.grants[1:])
        self.assertEqual(oracle.violations, [])

    def test_pass_where_an_answer_was_slow_on_its_way(self):
        # The gate granted 2 before 3, and its client got the answer after that of 3.
        self.logs.granted(5, 3, holder="b")
        self.logs.granted(6, 2, holder="c", call=3, quiet=4)
        self.broken()

    def test_pass_where_a_lost_tail_has_taken_a_lease(self):
        self.logs.tail_lost(5)
        self.logs.lease(6, 1, "missing")
        self.logs.fence(6, 1 << 32)
        self.broken()

    def test_pass_where_a_certificate_comes_twice_and_late(self):
        logs = self.logs
        logs.certified(4, 1)
        logs.granted(6, 2, holder="b")
        logs.write(7, "w2", 2, holder="b")
        logs.certified(9, 1, fence=2, moved=False)
        logs.acknowledged(9.5, 1)
        logs.write(10, "w3", 2, holder="b")
        self.broken()

    def test_pass_where_a_write_lands_before_a_certificate_is_acknowledged(self):
        self.logs.sent(3, "w2", 1)
        self.logs.at_store(3.1, "begun", "w2", 1)
        self.logs.certified(4, 1, acknowledged=False)
        self.logs.at_store(4.5, "applied", "w2", 1)
        self.logs.certified(6, 1)
        self.broken()

    def test_pass_where_an_operator_has_forced_a_handover(self):
        self.logs.sent(3, "w2", 1)
        self.logs.at_store(3.1, "begun", "w2", 1)
        self.logs.revoked(4, 2, drained=False)
        self.logs.granted(5, 3, tainted=True)
        self.logs.at_store(6, "applied", "w2", 1)
        self.broken()


class Drain(Case):
    def test_numbers_that_go_down_at_the_store(self):
        self.logs.granted(5, 2)
        self.logs.sent(3, "w0", 1)
        self.logs.at_store(3.1, "begun", "w0", 1)
        self.logs.write(5.5, "w2", 2)
        self.logs.at_store(4.9, "applied", "w0", 1)
        self.broken("DRAIN")

    def late(self, event):
        self.logs.sent(3, "w2", 1)
        self.logs.at_store(3.1, "begun", "w2", 1)
        self.logs.granted(5, 2)
        self.logs.at_store(5.1, event, "w2", 1)

    def test_a_write_that_lands_after_the_next_grant(self):
        self.late("applied")
        self.broken("DRAIN")

    def test_part_of_a_write_that_lands_after_the_next_grant(self):
        self.late("partial")
        self.broken("DRAIN")

    def test_the_same_where_the_grant_is_read_later(self):
        self.late("applied")
        oracle = Oracle()
        oracle.feed(self.logs.driver, self.logs.calls, self.logs.grants[:1], self.logs.store)
        oracle.feed(grants=self.logs.grants[1:])
        self.assertEqual([violation.promise for violation in oracle.violations], ["DRAIN"])

    def test_a_write_that_lands_after_a_revocation(self):
        self.logs.sent(3, "w2", 1)
        self.logs.at_store(3.1, "begun", "w2", 1)
        self.logs.revoked(5, 2)
        self.logs.at_store(5.1, "applied", "w2", 1)
        self.broken("DRAIN")

    def test_a_write_that_lands_after_its_fence_was_acknowledged(self):
        for report in self.logs.certified, self.logs.acknowledged:
            self.setUp()
            self.logs.sent(3, "w2", 1)
            self.logs.at_store(3.1, "begun", "w2", 1)
            getattr(self.logs, report.__name__)(5, 1)
            self.logs.at_store(5.1, "applied", "w2", 1)
            self.broken("DRAIN")

    def test_a_write_by_a_route_that_has_moved(self):
        logs = self.logs
        logs.granted(3, 1, object="ra-1")
        logs.sent(4, "w2", 1, object="ra-1")
        logs.at_store(4.1, "begun", "w2", 1, object="ra-1", path="/s/1/v")
        logs.moved(5, "rb", begun=4.5)
        logs.granted(7, 1, holder="b", object="rb-1", call=6)
        logs.at_store(8, "applied", "w2", 1, object="ra-1", path="/s/1/v")
        self.broken("DRAIN")

    def test_a_write_by_a_route_that_moves_only_then(self):
        logs = self.logs
        logs.granted(3, 1, object="ra-1")
        logs.write(4, "w2", 1, object="ra-1", path="/s/1/v")
        logs.moved(5, "rb", begun=4.6)
        logs.granted(7, 1, holder="b", object="rb-1", call=6)
        self.broken()


class Fences(Case):
    def test_a_fence_that_goes_down(self):
        self.logs.fence(3, 5)
        self.logs.fence(4, 4)
        self.broken("MONOTONIC")

    def test_a_fence_below_an_acknowledged_grant(self):
        self.logs.fence(3, 0)
        self.broken("MONOTONIC")

    def test_a_grant_below_a_fence_that_was_told(self):
        self.logs.fence(3, 5)
        self.logs.granted(5, 2, quiet=4)
        self.broken("MONOTONIC")

    def test_a_fence_that_goes_down_behind_a_certificate(self):
        self.logs.certified(3, 1)
        self.logs.fence(4, 1)
        self.broken("MONOTONIC")

    def test_a_certificate_that_has_not_moved_the_fence(self):
        self.logs.certified(3, 1, fence=1)
        self.broken("MONOTONIC")

    def test_a_number_that_is_granted_twice(self):
        self.logs.granted(5, 1, holder="b", lease="other")
        self.broken("UNIQUE")

    def test_a_grant_that_is_forgotten(self):
        self.logs.lease(5, 1, "missing")
        self.broken("DURABLE")

    def test_a_grant_that_is_forgotten_though_a_tail_was_lost_before_it(self):
        self.logs.tail_lost(0)
        self.logs.lease(5, 1, "missing")
        self.broken("DURABLE")


class Leases(Case):
    def test_a_write_of_a_lease_that_was_told_to_be_over(self):
        self.logs.over(3, 1)
        self.logs.write(4, "w2", 1)
        self.broken("NO REVIVAL")

    def test_a_write_of_a_lease_that_a_certificate_has_ended(self):
        self.logs.certified(3, 1, acknowledged=False)
        self.logs.write(4, "w2", 1)
        self.broken("NO REVIVAL")

    def test_a_lease_that_is_renewed_after_its_end(self):
        self.logs.over(3, 1)
        self.logs.renewed(5, 1, quiet=4)
        self.broken("NO REVIVAL")

    def test_a_lease_that_is_held_after_its_end(self):
        self.logs.over(3, 1)
        self.logs.lease(5, 1, "held")
        self.broken("NO REVIVAL")

    def test_a_write_with_an_old_number(self):
        self.logs.granted(5, 2)
        self.logs.sent(6, "w2", 1)
        self.logs.at_store(6.1, "begun", "w2", 1)
        self.broken("STALE")

    def test_a_write_after_the_ttl(self):
        self.logs.granted(5, 2, ttl_ms=1_000)
        self.logs.write(6.5, "w2", 2)
        self.broken("EXPIRY")

    def test_a_write_after_the_ttl_of_a_lease_that_a_start_may_have_made_longer(self):
        self.logs.granted(5, 2, ttl_ms=1_000)
        self.logs.started(5.8)
        self.logs.write(6.5, "w2", 2)
        self.broken()


class Writes(Case):
    def test_a_write_that_comes_twice(self):
        self.logs.at_store(3, "begun", "w1", 1)
        self.broken("ONE ATTEMPT")

    def test_a_write_that_comes_again_behind_a_closed_connection(self):
        self.logs.sent(3, "w2", 1)
        self.logs.at_store(3.1, "race", "w2", 1)
        self.logs.at_store(3.2, "begun", "w2", 1)
        self.broken("ONE ATTEMPT")

    def test_a_write_that_is_applied_twice(self):
        self.logs.at_store(3, "applied", "w1", 1)
        self.broken("ONE ATTEMPT")

    def test_a_write_that_no_client_sent(self):
        self.logs.at_store(3, "begun", "w2", 1)
        self.broken("UNFENCED")

    def test_a_write_without_its_token(self):
        self.logs.sent(3, "w2", 1, token="")
        self.logs.at_store(3.1, "begun", "w2", 1)
        self.broken("UNFENCED")

    def test_a_write_that_the_gate_says_nothing_of(self):
        self.logs.sent(3, "w2", 1)
        self.logs.at_store(3.1, "begun", "w2", 0, object=None)
        self.broken("UNFENCED")

    def test_a_write_of_a_number_that_was_never_granted(self):
        self.logs.sent(3, "w2", 7)
        self.logs.at_store(3.1, "begun", "w2", 7)
        self.broken("UNFENCED")

    def test_a_write_as_another_object(self):
        self.logs.granted(2, 1, object="y")
        self.logs.sent(3, "w2", 1)
        self.logs.at_store(3.1, "begun", "w2", 1, object="y")
        self.broken("LINKED")

    def test_a_write_of_another_holder(self):
        self.logs.write(3, "w2", 1, holder="b")
        self.broken("LINKED")

    def test_a_success_that_was_not_applied(self):
        self.logs.sent(3, "w2", 1)
        self.logs.at_store(3.1, "begun", "w2", 1)
        self.logs.done(4, "w2")
        self.broken("ACKNOWLEDGED")

    def test_a_refusal_of_a_write_that_met_a_closing_connection(self):
        self.logs.sent(3, "w2", 1)
        self.logs.at_store(3.1, "race", "w2", 1)
        self.logs.done(4, "w2", "refused", "STORE_UNREACHABLE")
        self.broken("REFUSED")

    def test_a_refusal_that_was_sent(self):
        self.logs.sent(3, "w2", 1)
        self.logs.at_store(3.1, "begun", "w2", 1)
        self.logs.done(4, "w2", "refused", "FENCE_DRAINING")
        self.broken("REFUSED")


class Outside(Case):
    """Numbers of a lock that is kept elsewhere."""

    def setUp(self):
        self.logs = Logs()
        self.logs.issued(1, 5)
        self.write(2, "w1", 5)
        self.logs.issued(4, 7, holder="b")

    def write(self, t, name, seq, **who):
        self.logs.write(t, name, seq, object="x-1", path="/x/1/v", **who)

    def sent(self, t, name, seq, **more):
        self.logs.sent(t, name, seq, object="x-1", **more)

    def at_store(self, t, event, name, seq):
        self.logs.at_store(t, event, name, seq, object="x-1", path="/x/1/v")

    def on_its_way(self):
        self.sent(3, "w2", 5)
        self.at_store(3.1, "begun", "w2", 5)
        self.at_store(3.2, "received", "w2", 5)

    def test_pass_where_they_rise(self):
        logs = self.logs
        self.on_its_way()
        self.at_store(5.5, "applied", "w2", 5)
        logs.advanced(6, 7, call=5)
        self.write(7, "w3", 7, holder="b")
        self.sent(8, "w4", 5)
        logs.done(8.1, "w4", "refused", "WRITE_STALE_FENCE")
        logs.over(8.1, 5, object="x-1", code="WRITE_STALE_FENCE", fence=7)
        logs.fence(9, 7, object="x-1")
        self.broken()

    def test_a_write_that_lands_after_an_advance(self):
        self.on_its_way()
        self.logs.advanced(5, 7)
        self.at_store(5.1, "applied", "w2", 5)
        self.broken("DRAIN")

    def test_a_write_that_lands_after_a_higher_one_has_come_to_the_store(self):
        self.on_its_way()
        self.sent(5, "w3", 7, holder="b")
        self.at_store(5.1, "begun", "w3", 7)
        self.at_store(5.2, "applied", "w2", 5)
        self.broken("DRAIN")

    def test_a_lower_number_after_a_higher_one_was_let_go_on(self):
        self.write(5, "w2", 7, holder="b")
        self.sent(6, "w3", 5)
        self.at_store(6.1, "begun", "w3", 5)
        self.broken("STALE")

    def test_a_number_after_it_was_called_stale(self):
        self.logs.over(5, 5, object="x-1", code="WRITE_STALE_FENCE", fence=7)
        self.sent(6, "w3", 5)
        self.at_store(6.1, "begun", "w3", 5)
        self.broken("NO REVIVAL")

    def test_a_number_that_is_called_stale_and_is_not(self):
        self.logs.over(5, 5, object="x-1", code="WRITE_STALE_FENCE", fence=5)
        self.broken("STALE")

    def test_a_number_that_was_never_given(self):
        self.sent(6, "w2", 6)
        self.at_store(6.1, "begun", "w2", 6)
        self.broken("UNFENCED")

    def test_a_number_that_another_was_given(self):
        self.write(6, "w2", 7, holder="c")
        self.broken("LINKED")

    def test_an_answer_with_another_number(self):
        self.sent(6, "w2", 7, holder="b")
        self.at_store(6.1, "begun", "w2", 7)
        self.at_store(6.2, "applied", "w2", 7)
        self.logs.done(6.5, "w2", fence_seq="5")
        self.broken("LINKED")

    def test_a_refusal_that_was_sent(self):
        self.on_its_way()
        self.logs.done(4, "w2", "refused", "FENCE_DRAINING")
        self.broken("REFUSED")

    def test_a_fence_that_goes_down_behind_a_write_or_an_advance(self):
        self.logs.fence(4, 4, object="x-1")
        self.broken("MONOTONIC")
        self.setUp()
        self.logs.advanced(5, 7)
        self.logs.fence(6, 5, object="x-1")
        self.broken("MONOTONIC")

    def test_an_advance_that_has_not_moved_the_fence(self):
        self.logs.advanced(5, 7, fence=5)
        self.broken("MONOTONIC")

    def test_pass_where_an_operator_has_confirmed_what_was_lost(self):
        self.logs.incarnation(5)
        # No better answer was possible yet.
        self.logs.fence(6, 3, object="x-1")
        self.logs.confirmed(7, 8)
        self.logs.fence(8, 8, object="x-1")
        self.logs.issued(9, 9)
        self.write(10, "w2", 9)
        self.broken()

    def test_pass_where_a_write_lands_behind_a_confirmation_and_before_the_next_number(self):
        self.on_its_way()
        self.logs.incarnation(5)
        self.logs.confirmed(7, 8)
        self.at_store(7.5, "applied", "w2", 5)
        self.logs.calls.append({"t": 8, "event": "call", "id": "r", "op": "read", "process": "c", "holder": "c",
                                "object": "x-1"})
        self.logs.calls.append({"t": 8.1, "event": "done", "id": "r", "outcome": "ok", "value": "w2"})
        self.broken()
        self.assertIsNone(linear.check(self.history()))

    def test_a_fence_that_goes_down_behind_a_confirmation(self):
        self.logs.incarnation(5)
        self.logs.confirmed(7, 8)
        self.logs.fence(8, 3, object="x-1")
        self.broken("MONOTONIC")

    def test_a_fence_of_the_gates_own_that_goes_down_when_something_was_lost(self):
        self.logs.granted(3, 4)
        self.logs.incarnation(5)
        self.logs.fence(6, 3)
        self.broken("MONOTONIC")

    def test_a_write_before_anyone_has_confirmed(self):
        self.logs.incarnation(5)
        self.write(6, "w2", 7, holder="b")
        self.logs.confirmed(8, 9)
        self.broken("UNKNOWN IS DENIED")

    def test_an_advance_before_anyone_has_confirmed(self):
        self.logs.incarnation(5)
        self.logs.advanced(6, 7, call=5.5)
        self.broken("UNKNOWN IS DENIED")

    def test_pass_where_a_write_comes_before_the_confirmation_is_heard(self):
        self.logs.incarnation(5)
        self.write(6, "w2", 7, holder="b")
        self.logs.confirmed(8, 7, call=5.5)
        self.broken()

    def history(self):
        return history.operations(self.logs.oracle(), ["x-1"])["x-1"]

    def test_are_acquires_in_the_history(self):
        self.logs.advanced(5, 7)
        self.logs.issued(6, 9)
        self.logs.confirmed(8, 10)
        found = [(op["seq"], op["call"], op["ret"]) for op in self.history() if op["op"] == "acquire"]
        self.assertEqual(found, [(50, 1, 2.5), (70, 4, 5), (90, 6, None)])
        self.assertIsNone(linear.check(self.history()))

    def test_are_no_register_where_a_lower_one_is_read_behind_an_advance(self):
        self.sent(3, "w2", 5)
        self.logs.advanced(5, 7)
        for t, value in (6, "w1"), (8, "w2"):
            self.logs.calls.append({"t": t, "event": "call", "id": f"r{t}", "op": "read", "process": "c", "holder": "c",
                                    "object": "x-1"})
            self.logs.calls.append({"t": t + 1, "event": "done", "id": f"r{t}", "outcome": "ok", "value": value})
        self.assertIn("not linearizable", linear.check(self.history()))

    def test_are_counted(self):
        self.on_its_way()
        self.at_store(5.5, "applied", "w2", 5)
        self.sent(5.2, "w3", 7, holder="b")
        for step, event in enumerate(("begun", "received", "applied")):
            self.at_store(6 + step / 10, event, "w3", 7)
        self.logs.done(7, "w3")
        self.sent(7.1, "w4", 7, holder="b")
        self.logs.done(7.2, "w4", "refused", "FENCE_DRAINING")
        self.sent(8, "w5", 5)
        self.logs.done(9, "w5", "refused", "WRITE_STALE_FENCE")
        self.logs.paused(8.5, "a", begun=5)
        self.logs.paused(6.8, "b", begun=6)
        self.logs.advanced(10, 7)
        found = Counts(self.logs.oracle()).all()
        self.assertEqual({what: number for what, number in found.items() if "external" in what}, {
            "external writes applied": 3, "external writes refused as stale": 1, "external handovers": 1,
            "external drains met": 1, "external writes refused in a drain": 1, "external advances": 1,
            "external writers stopped past their lock": 1})
        missing = Counts(self.logs.oracle()).missing_external()
        self.assertEqual(missing, ["external objects confirmed: 0 of 1", "kill in an external drain: 0 of 1"])


class Journals(Case):
    def setUp(self):
        super().setUp()
        self.logs.write(3, "w2", 1, digest="two")

    def test_pass_where_they_have_what_was_acknowledged(self):
        self.logs.journal(4, [[1, 1, "settled", "one"]])
        self.logs.journal(6, [[2, 1, "settled", "two"], [3, None, "gap", None]], after=1)
        self.logs.mismatch(7, lies=True)
        self.broken()

    def test_pass_where_a_lost_tail_has_taken_it(self):
        self.logs.tail_lost(4)
        self.logs.journal(6, [])
        self.broken()

    def test_one_that_lacks_what_was_acknowledged(self):
        self.logs.journal(6, [[1, 1, "settled", "one"]])
        self.broken("JOURNAL")

    def test_one_whose_numbers_go_down(self):
        self.logs.journal(6, [[1, 2, "settled", "two"], [2, 1, "unknown", None]])
        self.broken("JOURNAL")

    def test_one_whose_hash_is_not_what_was_computed(self):
        self.logs.mismatch(6, lies=False)
        self.broken("JOURNAL")

    def test_is_pulled_where_it_was_left_and_from_the_beginning_where_it_is_another(self):
        def of(*targets):
            hash_, found = journal.NOTHING, []
            for number, target in enumerate(targets, 1):
                entry = {"number": number, "outcome": "unknown", "lease_seq": 1, "method": "PUT", "target": target}
                hash_ = journal.chain(hash_, entry)
                found.append(entry | {"hash": journal.text_of(hash_)})
            return found, hash_

        pulled, asked = journal.Journal(), []

        def pull(entries, until):
            asked.clear()
            return pulled.pull(lambda after: asked.append(after) or {"entries": entries[after:]}, until)

        entries, hash_ = of("a", "b", "c")
        self.assertEqual(pull(entries, 2), (of("a", "b")[1], 0, entries[:2]))
        self.assertEqual((pull(entries, 3), asked), ((hash_, 2, entries[2:]), [1, 2]))
        others, other = of("a", "x", "y", "z")
        self.assertEqual(pull(others, 4), (other, 0, others))
        self.assertIsNone(pull(others, 5))


class History(Case):
    def operations(self):
        return history.operations(self.logs.oracle(), ["x"])["x"]

    def test_is_what_was_asked_and_what_came_of_it(self):
        self.logs.sent(3, "w2", 1)
        self.logs.done(4, "w2", "maybe")
        self.logs.sent(5, "w3", 1)
        self.logs.done(6, "w3", "refused")
        found = [(op["op"], op["seq"], op["value"], op["call"], op["ret"], op["ok"]) for op in self.operations()]
        self.assertEqual(found, [("acquire", 10, None, 0, 1, True), ("write", 10, "w1", 2, 2.5, True),
                                 ("write", 10, "w2", 3, None, True), ("write", 10, "w3", 5, 6, False)])

    def test_has_a_repeated_request_once(self):
        self.logs.granted(5, 2, call=4, request_id="r")
        self.logs.granted(8, 2, call=7, request_id="r")
        found = [(op["call"], op["ret"]) for op in self.operations() if op["seq"] == 20]
        self.assertEqual(found, [(4, 5)])

    def fences(self):
        return [(op["seq"], op["call"], op["ret"]) for op in self.operations() if op["seq"] and op["seq"] % 10]

    def test_has_a_certificate_behind_the_lease_that_it_fences(self):
        self.logs.certified(5, 1)
        self.assertEqual(self.fences(), [(15, 4, 5)])
        self.assertIsNone(linear.check(self.operations()))
        # The number behind it has no holder yet.
        self.logs.granted(7, 2)
        self.assertEqual(self.fences(), [(15, 4, 5)])
        self.assertIsNone(linear.check(self.operations()))

    def test_has_a_certificate_once(self):
        self.logs.certified(5, 1)
        self.logs.certified(6, 1)
        self.assertEqual(self.fences(), [(15, 4, 5)])

    def test_has_no_certificate_that_may_have_come_too_late_to_do_anything(self):
        self.logs.granted(5, 2, call=3)
        self.logs.certified(4.5, 1)
        self.assertEqual(self.fences(), [])

    def test_has_no_certificate_that_is_not_acknowledged(self):
        self.logs.certified(5, 1, acknowledged=False)
        self.assertEqual(self.fences(), [])

    def test_is_not_that_of_a_register_where_a_fenced_write_is_read_later(self):
        self.logs.sent(3, "w2", 1)
        self.logs.certified(5, 1)
        for t, value in (6, "w1"), (8, "w2"):
            self.logs.calls.append({"t": t, "event": "call", "id": f"r{t}", "op": "read", "process": "c", "holder": "c",
                                    "object": "x"})
            self.logs.calls.append({"t": t + 1, "event": "done", "id": f"r{t}", "outcome": "ok", "value": value})
        self.assertIn("not linearizable", linear.check(self.operations()))


class Figures(Case):
    def figures(self):
        oracle = self.logs.oracle()
        self.assertEqual(oracle.violations, [])
        return Counts(oracle).all()

    def test_an_overtake_is_a_write_that_lands_while_a_granted_advance_waits(self):
        self.assertEqual(self.figures()["overtakes judged"], 0)
        self.logs.granted(2.4, 2, call=2.25)
        self.assertEqual(self.figures()["overtakes judged"], 1)

    def test_overtakes_are_told_apart_by_what_they_are(self):
        self.logs.certified(2.4, 1)
        self.logs.calls[-2]["t"] = 2.25
        figures = self.figures()
        self.assertEqual([figures[what] for what in ("overtakes judged", "overtaken by a certificate", "certificates",
                                                     "overtaken by a migration")], [1, 1, 1, 0])

    def test_a_write_is_cancelled_where_it_breaks_off_while_an_advance_waits(self):
        self.logs.sent(3, "w2", 1)
        self.logs.at_store(3.1, "begun", "w2", 1)
        self.logs.at_store(3.5, "cut", "w2", 1)
        self.assertEqual(self.figures()["cancelled mid-body"], 0)
        self.logs.granted(4, 2, call=3.2)
        self.assertEqual(self.figures()["cancelled mid-body"], 1)

    def test_a_sync_counts_as_held_where_a_write_has_met_the_closed_object(self):
        self.logs.granted(4, 2, call=3)
        self.logs.held(3.1, 3.9)
        self.assertEqual(self.figures()["syncs held across an admission"], 0)
        self.logs.sent(3.2, "w2", 1)
        self.logs.done(3.3, "w2", "refused", "FENCE_DRAINING")
        self.assertEqual(self.figures()["syncs held across an admission"], 1)

    def test_what_is_missing_is_said(self):
        self.assertIn("kill: 0 of 60", Counts(self.logs.oracle()).missing(1))


if __name__ == "__main__":
    unittest.main()

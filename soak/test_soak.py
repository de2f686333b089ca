#!/usr/bin/env python3
"""Tests of the judge: logs that are broken by hand are each rejected by name. Run: python3 soak/test_soak.py"""
import sys
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).parent))
import judge  # noqa: E402
from calls import outcome  # noqa: E402


def call(number, seq, what="settled", object_id="x"):
    return {"id": number, "object": object_id, "seq": seq, "outcome": what}


def applied(number, seq, object_id="x", event="applied"):
    return {"event": event, "write": number, "seq": seq, "object": object_id}


# One lease after the other; what is unknown may have landed or not.
CALLS = [call("a", 1), call("b", 1, "unknown"), call("c", 2), call("d", 2, "unknown"), call("e", 1, "refused"),
         call("f", 9, object_id="y")]
STORE = [applied("a", 1), {"event": "answered", "write": "a"}, applied("b", 1), applied("f", 9, "y"), applied("c", 2)]


class Writes(unittest.TestCase):
    def rejected(self, promise, calls, store):
        found = judge.writes(calls, store)
        self.assertEqual({line.partition(":")[0] for line in found}, {promise}, found)

    def test_a_sound_history_is_accepted(self):
        self.assertEqual(judge.writes(CALLS, STORE), [])

    def test_a_lost_acknowledged_write_is_caught(self):
        self.rejected("LOST", CALLS, [event for event in STORE if event["write"] != "c"])

    def test_an_acknowledged_write_that_was_applied_in_part_is_lost(self):
        self.rejected("LOST", CALLS, STORE[:-1] + [applied("c", 2, event="partial")])

    def test_a_stale_write_that_landed_is_caught(self):
        self.rejected("STALE LANDED", CALLS + [call("late", 1, "unknown")], STORE + [applied("late", 1)])

    def test_a_part_of_a_stale_write_that_landed_is_caught(self):
        calls = CALLS + [call("late", 1, "unknown")]
        self.rejected("STALE LANDED", calls, STORE + [applied("late", 1, event="partial")])

    def test_a_refused_write_that_landed_is_caught(self):
        self.rejected("REFUSED LANDED", CALLS + [call("g", 2, "refused")], STORE + [applied("g", 2)])

    def test_a_refused_stale_write_that_landed_is_caught_twice(self):
        found = judge.writes(CALLS, STORE + [applied("e", 1)])
        self.assertEqual([line.partition(":")[0] for line in found], ["REFUSED LANDED", "STALE LANDED"])

    def test_a_write_that_was_applied_twice_is_caught(self):
        self.rejected("TWICE", CALLS, STORE + [applied("c", 2)])

    def test_a_write_that_no_client_sent_is_caught(self):
        self.rejected("UNACCOUNTED", CALLS, STORE + [applied("smuggled", 2)])

    def test_of_many_the_first_are_named_and_the_rest_counted(self):
        found = judge.writes([call(str(n), 1) for n in range(judge.NAMED + 3)], [])
        self.assertEqual(len(found), judge.NAMED + 1)
        self.assertTrue(found[-1].endswith("and 3 more"), found)


class Held(unittest.TestCase):
    FIRST = {"rss_kib": 80 << 10, "files": 40}

    def test_what_goes_up_and_down_a_little_is_flat(self):
        self.assertEqual(judge.flat(self.FIRST, {"rss_kib": 90 << 10, "files": 50}), [])

    def test_a_leak_of_files_is_caught(self):
        # One in a hundred of the slow connections.
        found = judge.flat(self.FIRST, self.FIRST | {"files": self.FIRST["files"] + 50})
        self.assertEqual([line.partition(":")[0] for line in found], ["FILES"])

    def test_a_leak_of_memory_is_caught(self):
        # A kilobyte for each of 60,000 writes.
        found = judge.flat(self.FIRST, self.FIRST | {"rss_kib": self.FIRST["rss_kib"] + 60_000})
        self.assertEqual([line.partition(":")[0] for line in found], ["MEMORY"])


class Answers(unittest.TestCase):
    def test_a_valid_writer_that_gets_nothing_through_is_starved(self):
        self.assertEqual(judge.starved("overload", 20, 3.0), [])
        self.assertEqual(judge.starved("overload", 0, 0.2), ["STARVED: overload: 0 writes of the valid writer were settled in 0 s"])
        self.assertEqual(len(judge.starved("overload", 2, 3.0)), 1)

    def test_an_answer_that_a_phase_does_not_allow_is_caught(self):
        found = judge.only("crowd", {"WRITE_STALE_FENCE": 99, "200": 1}, {"WRITE_STALE_FENCE"})
        self.assertEqual(found, ["ANSWER: crowd: 1 times 200"])

    def test_a_crowd_that_slows_the_valid_writer_is_caught_by_the_median(self):
        self.assertEqual(judge.quick("crowd", [1.1, 9.0, 1.3], 2), [])
        self.assertEqual(len(judge.quick("crowd", [1.1, 2.2, 2.4], 2)), 1)

    def test_what_an_answer_says_of_its_write(self):
        settled = {"fence-outcome": "settled"}
        self.assertEqual(outcome(200, settled, b""), ("settled", "200"))
        self.assertEqual(outcome(503, {"fence-outcome": "unknown"}, b""), ("unknown", "503"))
        self.assertEqual(outcome(504, {"fence-error": "OUTCOME_UNKNOWN"}, b""), ("unknown", "OUTCOME_UNKNOWN"))
        self.assertEqual(outcome(412, {"fence-error": "WRITE_STALE_FENCE"}, b"{}"), ("refused", "WRITE_STALE_FENCE"))
        maybe = b'{"side_effect":"maybe"}'
        self.assertEqual(outcome(503, {"fence-error": "TABLE_UNAVAILABLE"}, maybe), ("unknown", "TABLE_UNAVAILABLE"))
        # An answer without a word on the outcome acknowledges nothing.
        self.assertEqual(outcome(200, {}, b""), ("unknown", "200"))


if __name__ == "__main__":
    unittest.main()

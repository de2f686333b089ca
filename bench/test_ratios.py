#!/usr/bin/env python3
"""Tests of ratios.py and goals.py. Run: python3 -B bench/test_ratios.py"""
import contextlib
import importlib.machinery
import importlib.util
import io
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import goals  # noqa: E402
import load  # noqa: E402
import ratios  # noqa: E402
from processes import Failed  # noqa: E402


def saturated(number, peer, cpu_us, req_s=1000.0):
    return {"kind": "saturated", "round": number, "peer": peer, "cpu_us": cpu_us, "req_s": req_s, "busy": 1.0}


def half(number, peer, p50_us, p99_us=1000.0):
    return {"kind": "half", "round": number, "peer": peer, "p50_us": p50_us, "p99_us": p99_us}


class Spread(unittest.TestCase):
    def test_is_median_least_and_greatest(self):
        self.assertEqual(ratios.spread([3.0, 1.0, 10.0]), {"median": 3.0, "min": 1.0, "max": 10.0})

    def test_of_an_even_number_is_the_middle_between_two(self):
        self.assertEqual(ratios.spread([1.0, 2.0, 4.0, 9.0])["median"], 3.0)

    def test_of_nothing_is_nothing(self):
        self.assertIsNone(ratios.spread([]))


class Ratios(unittest.TestCase):
    def test_compare_within_a_round(self):
        # The machine was twice as slow in round 1: medians across rounds would be off, pairs are not.
        rounds = [saturated(0, "a", 10.0), saturated(0, "b", 8.0), saturated(1, "a", 20.0), saturated(1, "b", 16.0)]
        self.assertEqual(ratios.ratio(rounds, "saturated", "cpu_us", "a", "b"),
                         {"median": 1.25, "min": 1.25, "max": 1.25})

    def test_leave_out_a_round_that_only_one_peer_has(self):
        rounds = [saturated(0, "a", 10.0), saturated(0, "b", 5.0), saturated(1, "a", 99.0)]
        self.assertEqual(ratios.ratio(rounds, "saturated", "cpu_us", "a", "b")["max"], 2.0)

    def test_of_added_latency_leave_out_what_there_is_without_a_proxy(self):
        rounds = [half(0, "direct", 100.0), half(0, "a", 160.0), half(0, "b", 130.0)]
        self.assertEqual(ratios.ratio(rounds, "half", "p50_us", "a", "b")["median"], 160 / 130)
        self.assertEqual(ratios.ratio(rounds, "half", "added p50_us", "a", "b")["median"], 2.0)

    def test_of_added_latency_are_of_the_medians(self):
        rounds = [half(0, "direct", 100.0), half(0, "a", 160.0), half(0, "b", 99.0),
                  half(1, "direct", 100.0), half(1, "a", 160.0), half(1, "b", 140.0),
                  half(2, "direct", 100.0), half(2, "a", 160.0), half(2, "b", 130.0)]
        self.assertEqual(ratios.ratio(rounds, "half", "added p50_us", "a", "b"),
                         {"median": 2.0, "min": 1.5, "max": 2.0})

    def test_of_added_latency_are_none_where_nothing_was_added(self):
        rounds = [half(0, "direct", 100.0), half(0, "a", 160.0), half(0, "b", 99.0)]
        self.assertIsNone(ratios.ratio(rounds, "half", "added p50_us", "a", "b"))

    def test_without_any_common_round_are_none(self):
        self.assertIsNone(ratios.ratio([saturated(0, "a", 1.0)], "saturated", "cpu_us", "a", "b"))
        self.assertIsNone(ratios.ratio([half(0, "a", 1.0)], "half", "added p50_us", "a", "b"))

    def test_of_other_scenarios_do_not_mix(self):
        rounds = [saturated(0, "a", 10.0), {"kind": "other", "round": 0, "peer": "b", "cpu_us": 5.0}]
        self.assertIsNone(ratios.ratio(rounds, "saturated", "cpu_us", "a", "b"))


class Verdicts(unittest.TestCase):
    def test_of_less_is_better(self):
        self.assertEqual(goals.verdict(1.13, 1.12, 1.0, False), "MISSED")
        self.assertEqual(goals.verdict(1.12, 1.12, 1.0, False), "must met, goal missed")
        self.assertEqual(goals.verdict(1.0, 1.12, 1.0, False), "goal reached")

    def test_of_more_is_better(self):
        self.assertEqual(goals.verdict(0.89, 0.9, 1.3, True), "MISSED")
        self.assertEqual(goals.verdict(1.3, 0.9, 1.3, True), "goal reached")

    def test_without_a_must_or_a_goal(self):
        self.assertEqual(goals.verdict(1.5, None, 1.0, False), "goal missed")
        self.assertEqual(goals.verdict(1.5, None, None, False), "reported")
        self.assertEqual(goals.verdict(1, 0, None, False), "MISSED")
        self.assertEqual(goals.verdict(0, 0, None, False), "met")

    def test_what_was_not_measured_is_not_met(self):
        self.assertEqual({line.verdict for line in goals.reached([], {})}, {"not measured in this run"})

    def test_a_value_is_judged_as_it_is_and_not_as_it_prints(self):
        line = goals.of_figure("x", 1.1249, 1.12, 1.0, "{:.2f}")
        self.assertEqual((line.value, line.verdict), ("1.12", "MISSED"))

    def test_more_reads_with_more_objects_are_a_miss(self):
        known = [{"kind": "known", "round": 0, "peer": str(n), "objects": n, "reads": reads}
                 for n, reads in ((1_000, 2), (10_000_000, 3))]
        self.assertEqual(goals.of_objects(known)[0].verdict, "MISSED")
        known[1]["reads"] = 2
        self.assertEqual(goals.of_objects(known)[0].verdict, "met")


class H2load(unittest.TestCase):
    SAID = ("Application protocol: h2c\nfinished in 1.50s, 6666 req/s, 1MB/s\n"
            "requests: 10000 total, 10000 started, 10000 done, 10000 succeeded, 0 failed, 0 errored, 0 timeout\n"
            "status codes: 10000 2xx, 0 3xx, 0 4xx, 0 5xx\n")

    def test_says_how_long_it_took(self):
        self.assertEqual(load.http2_seconds(self.SAID, 10_000), 1.5)

    def test_fails_on_a_wrong_answer(self):
        for good, bad in (("10000 2xx, 0 3xx, 0 4xx", "9999 2xx, 0 3xx, 1 4xx"), ("0 failed", "1 failed"),
                          ("h2c", "http/1.1"), ("10000 succeeded", "9000 succeeded")):
            with self.assertRaises(Failed):
                load.http2_seconds(self.SAID.replace(good, bad), 10_000)


class Instructions(unittest.TestCase):
    """bench/instructions: the rule that `make check` goes by."""

    def grown(self, instructions, allocations=2.0):
        path = str(Path(__file__).resolve().parent / "instructions")
        loader = importlib.machinery.SourceFileLoader("instructions", path)
        module = importlib.util.module_from_spec(importlib.util.spec_from_loader("instructions", loader))
        loader.exec_module(module)
        with contextlib.redirect_stdout(io.StringIO()):
            return module.compare({"judge": {"instructions": instructions, "allocations": allocations}},
                                  {"judge": {"instructions": 1000, "allocations": 2.0}})

    def test_three_per_cent_more_is_too_much_and_less_is_not(self):
        self.assertEqual((self.grown(1029), self.grown(1031)), ([], ["judge"]))

    def test_one_more_time_memory_is_too_much(self):
        self.assertEqual((self.grown(1000, 2.4), self.grown(1000, 3.0)), ([], ["judge"]))


if __name__ == "__main__":
    unittest.main()

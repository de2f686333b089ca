#!/usr/bin/env python3
"""Tests of ratios.py. Run: python3 bench/test_ratios.py"""
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import ratios  # noqa: E402


def saturated(number, peer, cpu_us, req_s=1000.0):
    return {"kind": "saturated", "round": number, "peer": peer, "cpu_us": cpu_us, "req_s": req_s, "busy": 1.0}


def paced(number, peer, p50_us, p99_us=1000.0):
    return {"kind": "paced", "round": number, "peer": peer, "p50_us": p50_us, "p99_us": p99_us}


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
        self.assertEqual(ratios.ratios(rounds, "a", "b")["cpu_us"], {"median": 1.25, "min": 1.25, "max": 1.25})

    def test_leave_out_a_round_that_only_one_peer_has(self):
        rounds = [saturated(0, "a", 10.0), saturated(0, "b", 5.0), saturated(1, "a", 99.0)]
        self.assertEqual(ratios.ratios(rounds, "a", "b")["cpu_us"]["max"], 2.0)

    def test_of_latency_are_of_the_whole_and_of_what_is_added(self):
        rounds = [paced(0, "direct", 100.0, 500.0), paced(0, "a", 160.0, 900.0), paced(0, "b", 130.0, 600.0)]
        found = ratios.ratios(rounds, "a", "b")
        self.assertEqual(found["p99_us"]["median"], 1.5)
        self.assertEqual(found["added_p50_us"]["median"], 2.0)
        self.assertEqual(found["added_p99_us"]["median"], 4.0)

    def test_of_added_latency_are_none_where_nothing_was_added(self):
        rounds = [paced(0, "direct", 100.0), paced(0, "a", 160.0), paced(0, "b", 99.0)]
        self.assertIsNone(ratios.ratios(rounds, "a", "b")["added_p50_us"])

    def test_without_any_common_round_are_none(self):
        self.assertIsNone(ratios.ratios([saturated(0, "a", 1.0)], "a", "b")["cpu_us"])


class Summary(unittest.TestCase):
    def test_of_direct_has_latency_and_no_cpu(self):
        found = ratios.summary([paced(0, "direct", 100.0), saturated(0, "a", 10.0)], "direct")
        self.assertIsNone(found["cpu_us"])
        self.assertEqual(found["p50_us"]["median"], 100.0)
        self.assertEqual(found["added_p50_us"]["median"], 0.0)

    def test_added_latency_is_paired_by_round(self):
        rounds = [paced(0, "direct", 100.0), paced(0, "a", 130.0), paced(1, "direct", 200.0), paced(1, "a", 240.0)]
        self.assertEqual(ratios.summary(rounds, "a")["added_p50_us"], {"median": 35.0, "min": 30.0, "max": 40.0})


class Rate(unittest.TestCase):
    def test_is_half_of_the_slowest_peers_median(self):
        rounds = [saturated(0, "a", 1.0, 9000.0), saturated(0, "b", 1.0, 5150.0), saturated(1, "b", 1.0, 5150.0)]
        self.assertEqual(ratios.half_of_slowest(rounds, 10_000), 2500)

    def test_is_bounded(self):
        self.assertEqual(ratios.half_of_slowest([saturated(0, "a", 1.0, 90_000.0)], 10_000), 10_000)

    def test_is_never_zero(self):
        self.assertEqual(ratios.half_of_slowest([saturated(0, "a", 1.0, 120.0)], 10_000), 60)


if __name__ == "__main__":
    unittest.main()

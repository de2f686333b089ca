#!/usr/bin/env python3
"""Holds bench/RESULTS.md against its raw rounds: every ratio is computed anew, by other code than wrote it.

Run: python3 -B bench/test_results.py
"""
import json
import re
import statistics
import sys
import unittest
import xml.etree.ElementTree
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import goals  # noqa: E402
import plots  # noqa: E402
import results  # noqa: E402

PAGE, ROUNDS = HERE / "RESULTS.md", HERE / "results" / "rounds.json"
# `| scenario | figure | of | against | median | least .. greatest |`
LINE = re.compile(r"^\| (\w+) \| ((?:added )?\w+) \| (\S+) \| (\S+) \| (-?[\d.]+) \| (-?[\d.]+) \.\. (-?[\d.]+) \|$",
                  re.MULTILINE)


def stated(page):
    """The ratios that a page states: what of -> (median, least, greatest)."""
    return {found[:4]: tuple(map(float, found[4:])) for found in LINE.findall(page)}


def computed(rounds, kind, figure, ours, theirs):
    """A ratio from the raw rounds, straight from its definition."""
    by_round = {}
    for each in rounds:
        if each["kind"] == kind:
            by_round.setdefault(each["round"], {})[each["peer"]] = each
    pairs = []
    for peers in by_round.values():
        if ours in peers and theirs in peers:
            if figure.startswith("added "):
                name = figure.split()[1]
                pairs.append(tuple(peers[peer][name] - peers["direct"][name] for peer in (ours, theirs)))
            else:
                pairs.append((peers[ours][figure], peers[theirs][figure]))
    single = [one / other for one, other in pairs if other > 0]
    middle = statistics.median(single)
    if figure.startswith("added "):
        middle = statistics.median(one for one, _ in pairs) / statistics.median(other for _, other in pairs)
    return middle, min(single), max(single)


def wrong(page, rounds):
    """The ratios of a page that its rounds do not give."""
    found = []
    for what, values in stated(page).items():
        again = computed(rounds, *what)
        if any(abs(one - other) > 0.00051 for one, other in zip(values, again)):
            found.append((what, values, again))
    return found


class Made(unittest.TestCase):
    """On rounds made up here: the check can fail."""

    def data(self):
        rounds = []
        for number in range(3):
            for peer, cpu_us in (("fencegate", 11.0 + number), ("nginx", 10.0)):
                rounds.append({"kind": "saturated", "round": number, "peer": peer, "cpu_us": cpu_us,
                               "req_s": 1e6 / cpu_us, "busy": 1.0})
            for peer, p50_us in (("direct", 50.0), ("fencegate", 80.0 + number), ("nginx", 90.0)):
                rounds.append({"kind": "half", "round": number, "peer": peer, "rate": 100, "p50_us": p50_us,
                               "p99_us": 2 * p50_us})
        facts = {"date": "today", "commit": "abc", "dirty": False, "processor": "p", "cores": 2, "memory_mib": 1,
                 "kernel": "k", "system": "s", "programs": {}}
        return {"facts": facts, "plan": {"quick": False, "objects": 1}, "elsewhere": {}, "rounds": rounds}

    def test_a_page_agrees_with_its_rounds(self):
        data = self.data()
        page = results.page(data)
        self.assertEqual(stated(page)["saturated", "cpu_us", "fencegate", "nginx"], (1.2, 1.1, 1.3))
        self.assertEqual(stated(page)["half", "added p50_us", "fencegate", "nginx"], (0.775, 0.75, 0.8))
        self.assertEqual(wrong(page, data["rounds"]), [])

    def test_a_page_with_a_changed_ratio_is_found_out(self):
        data = self.data()
        page = results.page(data)
        for good, bad in (("1.200", "1.199"), ("1.100 ..", "1.000 .."), ("0.775", "0.770")):
            self.assertIn(good, page)
            self.assertEqual(len(wrong(page.replace(good, bad, 1), data["rounds"])), 1, good)

    def test_changed_rounds_are_found_out(self):
        data = self.data()
        page = results.page(data)
        data["rounds"][0]["cpu_us"] = 5.0
        self.assertEqual(len(wrong(page, data["rounds"])), 1)

    def test_rounds_come_back_from_their_file(self):
        data = self.data()
        self.assertEqual(json.loads(results.compact(data)), data)

    def test_plots_are_whole(self):
        data = self.data()
        for rate in (100, 200):
            data["rounds"] += [each | {"kind": "ladder", "rate": rate}
                               for each in data["rounds"] if each["kind"] == "half"]
        data["rounds"] += [{"kind": "spread", "round": 0, "peer": str(n), "objects": n, "cpu_us": 9.0}
                           for n in (1, 100)]
        drawn = plots.draw(data["rounds"])
        self.assertEqual(set(drawn), {plots.LATENCY, plots.CPU, plots.OBJECTS})
        for name, svg in drawn.items():
            xml.etree.ElementTree.fromstring(svg)
            self.assertNotIn("nan", svg, name)


class Written(unittest.TestCase):
    """The page that is committed."""

    def setUp(self):
        self.page, self.data = PAGE.read_text(), json.loads(ROUNDS.read_text())

    def test_states_no_ratio_that_its_rounds_do_not_give(self):
        self.assertEqual(wrong(self.page, self.data["rounds"]), [])

    def test_states_every_ratio_that_has_rounds(self):
        kinds = {each["kind"] for each in self.data["rounds"]}
        wanted = {each[1:5] for each in goals.RATIOS if each.kind in kinds}
        self.assertLessEqual(wanted, stated(self.page).keys())

    def test_states_what_was_counted_elsewhere(self):
        """These are ratios of raw figures, too; computed by hand."""
        elsewhere = self.data["elsewhere"]
        gated, off = (statistics.median(elsewhere["gated"][name]) for name in ("gated", "off"))
        pairs = elsewhere["ledger"]["rounds"]
        speedup = statistics.median(many / single for many, single in pairs)
        for what, value in (("gated write against the route `off`", f"{gated / off:.3f}"),
                            ("lease changes per second in-process", f"{speedup:.1f} x"),
                            ("judge of a warm object", f"{elsewhere['instructions']['judge']['instructions']:,}")):
            line = next(line for line in self.page.splitlines() if line.startswith(f"| {what}"))
            self.assertEqual(line.split(" | ")[3], value, line)

    def test_measures_everything_that_is_to_be_reached(self):
        self.assertNotIn("not measured in this run", self.page)

    def test_is_what_its_rounds_make(self):
        self.assertEqual(self.page, results.page(self.data))

    def test_has_its_plots(self):
        for name, svg in plots.draw(self.data["rounds"]).items():
            self.assertEqual((HERE / "results" / name).read_text(), svg, name)


if __name__ == "__main__":
    unittest.main()

"""The alerts, their runbooks and the dashboard: promtool's word on every rule and expression, a case in which each
alert fires and one in which it does not, and every metric, label and value looked for in a scrape of a real gate and
agent that have seen traffic. There is no Grafana here: a real Prometheus is asked what the panels would ask.

Needs promtool and prometheus (Debian's package prometheus), openssl, and target/debug/fencegate."""
import functools
import itertools
import json
import re
import subprocess
import tempfile
import unittest
from pathlib import Path

import yaml
from alerts import promql
from alerts.lab import BINARY, ROOT, Lab, traffic, until
from tools import of_kind, rendered

FILES = ROOT / "charts/fencegate/files"
ALERTS = FILES / "alerts.yaml"
DASHBOARD = FILES / "dashboard.json"
RUNBOOKS = ROOT / "docs/runbooks.md"
CASES = sorted((ROOT / "charts/test/alerts").glob("*.yaml"))

# What Prometheus itself makes, with no label but the target's.
MADE_BY_PROMETHEUS = {"up"}


@functools.cache
def rules() -> dict[str, dict]:
    return {rule["alert"]: rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]}


def minutes(duration: str) -> int:
    return int(duration[:-1]) * {"m": 1, "h": 60}[duration[-1]]


def dashboard() -> dict:
    return json.loads(DASHBOARD.read_text())


def variables(board: dict) -> list[str]:
    return [variable["name"] for variable in board["templating"]["list"]]


def panels(board: dict) -> list[dict]:
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def expressions(board: dict) -> dict[str, str]:
    """Every expression of a dashboard, by where it stands."""
    asked = ((panel["title"], target) for panel in panels(board) for target in panel["targets"])
    return {f"{title} {target['refId']}": target["expr"] for title, target in asked}


def promtool(*arguments) -> tuple[bool, str]:
    done = subprocess.run(["promtool", *map(str, arguments)], capture_output=True, text=True, timeout=60)
    return done.returncode == 0, done.stdout + done.stderr


class Scraped:
    """What scrapes have shown: metrics, their labels, the labels' values."""

    def __init__(self, *texts: str):
        self.labels: dict[str, dict[str, set[str]]] = {}
        for line in "\n".join(texts).splitlines():
            if line and not line.startswith("#"):
                name, inside = re.match(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})? ", line).groups()
                labels = self.labels.setdefault(name, {})
                for label, value in re.findall(r'(\w+)="([^"]*)"', inside or ""):
                    labels.setdefault(label, set()).add(value)

    def faults(self, expression: str, legend: str = "") -> list[str]:
        """What an expression asks for and no scrape has."""
        found, known = [], set(promql.TARGET_LABELS)
        asked = promql.selectors(expression)
        for metric, matchers in asked:
            if metric in MADE_BY_PROMETHEUS:
                continue
            if metric not in self.labels:
                found.append(f"no metric {metric}")
                continue
            known |= set(self.labels[metric])
            for label, values in matchers:
                if label in promql.TARGET_LABELS:
                    continue
                there = self.labels[metric].get(label)
                if there is None:
                    found.append(f"{metric} has no label {label}")
                    continue
                found += [f"{metric} has no {label}={value}" for value in values if value not in there]
        if not asked:
            found.append("no metric at all")
        for label in promql.grouped_by(expression) | set(re.findall(r"\{\{\s*(\w+)\s*\}\}", legend)):
            if label not in known:
                found.append(f"no label {label}")
        return found


class Rules(unittest.TestCase):
    def test_promtool_finds_nothing_wrong(self):
        fine, said = promtool("check", "rules", ALERTS)
        self.assertTrue(fine, said)

    def test_each_says_what_is_wrong_how_bad_it_is_and_what_to_do(self):
        for name, rule in rules().items():
            with self.subTest(alert=name):
                self.assertRegex(name, r"^Fencegate[A-Z]\w+$")
                self.assertIn("for", rule)
                self.assertIn(rule["labels"]["severity"], ("critical", "warning"))
                notes = rule["annotations"]
                self.assertEqual(set(notes), {"summary", "description", "runbook_url"})
                self.assertNotIn("{{", notes["summary"], "people filter by it")
                self.assertEqual(notes["runbook_url"], f"docs/runbooks.md#{name.lower()}")

    def test_its_runbook_can_be_elsewhere(self):
        def links(*more: str) -> dict[str, str]:
            [rule] = of_kind(rendered("helm4", "everything", "1.37", *more), "PrometheusRule")
            return {each["alert"]: each["annotations"]["runbook_url"]
                    for group in rule["spec"]["groups"] for each in group["rules"]}
        base = "https://wiki.example/on-call?page=fencegate&v=1"
        for more, before in (((), "docs/runbooks.md"), (("--set", f"monitoring.rules.runbookBase={base}"), base)):
            self.assertEqual(links(*more), {name: f"{before}#{name.lower()}" for name in rules()})
        for wrong in ("wiki.example", "https://wiki.example/#on-call", "https://wiki.example/ on-call"):
            with self.subTest(wrong=wrong), self.assertRaisesRegex(AssertionError, "runbookBase"):
                links("--set", f"monitoring.rules.runbookBase={wrong}")

    def test_a_fault_that_ends_by_itself_fires_no_alert_for_one_moment(self):
        """A jump of a counter stays in its rate for the whole window, so `for` is at least as long, or 0."""
        looked = 0
        for name, rule in rules().items():
            for window in re.findall(r"\brate\([^\[]*\[(\w+)\]", rule["expr"]):
                with self.subTest(alert=name):
                    looked += 1
                    self.assertTrue(minutes(rule["for"]) in (0, *range(minutes(window), 60)), "it fires for one moment")
        self.assertGreater(looked, 5)

    def test_each_fires_where_it_should_and_only_there(self):
        fine, said = promtool("test", "rules", *CASES)
        self.assertTrue(fine, said)

    def test_each_has_a_case_in_which_it_fires_and_one_in_which_it_does_not(self):
        fires, quiet = set(), set()
        for case in (case for path in CASES for case in yaml.safe_load(path.read_text())["tests"]):
            for asked in case["alert_rule_test"]:
                (fires if asked["exp_alerts"] else quiet).add(asked["alertname"])
        self.assertEqual((fires, quiet), (set(rules()), set(rules())))

    def test_a_rule_that_never_or_always_fires_is_caught(self):
        cases = [case for path in CASES for case in yaml.safe_load(path.read_text())["tests"]]
        for name, rule in rules().items():
            own = [case for case in cases if case["alert_rule_test"][0]["alertname"] == name]
            for broken in (rule["expr"], "vector(0) > 1", "vector(1) > 0"):
                with self.subTest(alert=name, expr=broken), tempfile.TemporaryDirectory() as folder:
                    groups = [{"name": "one", "rules": [rule | {"expr": broken}]}]
                    (Path(folder) / "alerts.yaml").write_text(yaml.safe_dump({"groups": groups}))
                    asked = {"rule_files": ["alerts.yaml"], "tests": own}
                    (Path(folder) / "cases.yaml").write_text(yaml.safe_dump(asked))
                    fine, said = promtool("test", "rules", Path(folder) / "cases.yaml")
                    self.assertEqual(fine, broken == rule["expr"], said)


class Runbooks(unittest.TestCase):
    @staticmethod
    def sections(text: str) -> dict[str, str]:
        parts = re.split(r"^## (Fencegate\w+)$", text, flags=re.M)
        return dict(zip(parts[1::2], parts[2::2]))

    def test_every_alert_has_its_section_and_every_section_its_alert(self):
        self.assertEqual(list(self.sections(RUNBOOKS.read_text())), list(rules()), "in the order of the rules")

    def test_every_section_says_all_that_is_needed(self):
        for name, text in self.sections(RUNBOOKS.read_text()).items():
            with self.subTest(alert=name):
                words = ["**Means.**", "**At stake.**", "**Look.**", "**Do.**", "**Do not.**"]
                self.assertEqual(re.findall(r"^\*\*[A-Z][\w ]*\.\*\*", text, re.M), words)
                self.assertRegex(text, r"```sh\n", "commands")

    def test_it_says_how_long_a_thing_has_to_last(self):
        for name, text in self.sections(RUNBOOKS.read_text()).items():
            rule, means = rules()[name], text.partition("**At stake.**")[0]
            said = re.findall(r"\b[Ff]or (\d+) minutes", means + rule["annotations"]["description"])
            with self.subTest(alert=name):
                self.assertLessEqual({f"{count}m" for count in said}, {rule["for"]})
                if "rate(" in rule["expr"] and minutes(rule["for"]):
                    self.assertRegex(means, rf"\b[Ff]or {minutes(rule['for'])} minutes")

    def test_every_command_is_one_that_fencegate_has(self):
        word = re.compile(r"(?:^|[/ ])fencegate ((?:[a-z]+ )?[a-z]+)(?= --| |$)", re.M)
        commands = set(word.findall(shell_of(RUNBOOKS.read_text())))
        self.assertIn("table verify", commands)
        for command in commands:
            with self.subTest(command=command):
                done = subprocess.run([BINARY, *command.split(), "--help"], capture_output=True, text=True, timeout=60)
                self.assertEqual(done.returncode, 0, done.stderr)

    def test_every_link_leads_somewhere(self):
        text = RUNBOOKS.read_text()
        for link in re.findall(r"\]\(([^)]+)\)", text):
            with self.subTest(link=link):
                path, _, anchor = link.partition("#")
                self.assertTrue((RUNBOOKS.parent / path).exists() and (not anchor or anchor in map(str.lower, rules())))


def shell_of(text: str) -> str:
    """The commands of a page."""
    return "\n".join(re.findall(r"```sh\n(.*?)```", text, re.S))


class Dashboard(unittest.TestCase):
    def test_it_is_one_that_grafana_takes(self):
        board = dashboard()
        self.assertEqual((board["uid"], board["title"]), ("fencegate", "fencegate"))
        self.assertGreaterEqual(board["schemaVersion"], 39)
        self.assertEqual(variables(board), ["datasource", "namespace", "job", "instance", "resource"])
        everything = board["panels"]
        self.assertEqual(len({panel["id"] for panel in everything}), len(everything), "ids are used once")
        for panel in panels(board):
            with self.subTest(panel=panel["title"]):
                self.assertIn(panel["type"], ("timeseries", "stat"))
                self.assertTrue(panel["description"].endswith("."))
                self.assertTrue(panel["fieldConfig"]["defaults"]["unit"])
                self.assertEqual(panel["datasource"]["uid"], "${datasource}")
                for target in panel["targets"]:
                    self.assertEqual(target["datasource"], panel["datasource"])
                    self.assertTrue(target["legendFormat"] or panel["type"] == "stat")

    def test_no_panel_is_over_another_one_or_out_of_the_page(self):
        taken: dict[tuple[int, int], str] = {}
        for panel in dashboard()["panels"]:
            x, y, width, height = (panel["gridPos"][key] for key in "xywh")
            self.assertLessEqual(x + width, 24, panel["title"])
            for spot in itertools.product(range(x, x + width), range(y, y + height)):
                self.assertEqual(taken.setdefault(spot, panel["title"]), panel["title"], f"both at {spot}")

    def test_it_has_the_three_queries_that_people_know(self):
        chosen = re.compile(r"\{[^}]*\}")
        plain = {chosen.sub("", text).replace("$__rate_interval", "5m") for text in expressions(dashboard()).values()}
        self.assertLessEqual({
            "rate(fencing_token_conflicts_total[5m])",
            "rate(fencing_validation_duration_seconds_sum[5m]) / rate(fencing_validation_duration_seconds_count[5m])",
            "sum by (resource) (active_fenced_operations)",
        }, plain)

    def test_promtool_finds_nothing_wrong_with_its_expressions(self):
        self.assertEqual(self.wrong(expressions(dashboard())), "")

    def test_an_expression_that_is_none_is_caught(self):
        self.assertIn("parse", self.wrong({"a panel": "sum(rate(x)"}))

    @staticmethod
    def wrong(by_place: dict[str, str]) -> str:
        """What promtool says against expressions, as if they were recording rules."""
        names = variables(dashboard())
        filled = (promql.filled_in(text, names) for text in by_place.values())
        recorded = [{"record": f"panel:{number}", "expr": text} for number, text in enumerate(filled)]
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            yaml.safe_dump({"groups": [{"name": "dashboard", "rules": recorded}]}, file)
            file.flush()
            fine, said = promtool("check", "rules", file.name)
        return "" if fine else said


class Promql(unittest.TestCase):
    def test_metrics_labels_and_values_are_found(self):
        text = 'sum by (a, b) (rate(one_total{c=~"X|Y", d="$d"}[5m])) / on (e) two offset 1h unless count(three) > 0.5'
        found = promql.selectors(text)
        self.assertEqual([metric for metric, _ in found], ["one_total", "two", "three"])
        self.assertEqual(found[0].matchers, [("c", ["X", "Y"]), ("d", [])])
        self.assertEqual(promql.grouped_by(text), {"a", "b", "e"})

    def test_whatever_is_misspelt_is_caught(self):
        scraped = Scraped('one_total{code="X",le="1"} 3\ntwo 1.5\n')
        self.assertEqual(scraped.faults('sum by (code) (rate(one_total{code="X"}[5m])) / two', "{{code}}"), [])
        for text, legend, fault in [
            ("rate(one_totl[5m])", "", "no metric one_totl"),
            ('one_total{code="Z"}', "", "one_total has no code=Z"),
            ('one_total{code!~"X|Z"}', "", "one_total has no code=Z"),
            ('one_total{cod="X"}', "", "one_total has no label cod"),
            ("sum by (kode) (one_total)", "", "no label kode"),
            ("one_total", "{{kode}}", "no label kode"),
            ("time()", "", "no metric at all"),
        ]:
            self.assertEqual(scraped.faults(text, legend), [fault])


class AgainstARealGate(unittest.TestCase):
    """One gate, one agent and one Prometheus for all of these."""

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.lab = cls.enterClassContext(Lab(Path(folder.name)))
        # Prometheus is there first, so that it sees counters rise.
        cls.prometheus = cls.lab.prometheus(ALERTS)
        until("both were scraped", lambda: len(cls.prometheus.query("up == 1")) == 2)
        traffic(cls.lab)
        cls.texts = cls.lab.scrape(cls.lab.ops), cls.lab.scrape(cls.lab.status)
        cls.scraped = Scraped(*cls.texts)

    def test_the_gate_has_seen_traffic(self):
        lines = (line for text in self.texts for line in text.splitlines() if not line.startswith("#"))
        values = dict(line.rsplit(" ", 1) for line in lines)
        for name in [
            'fencing_token_conflicts_total{resource="users",operation="put"}',
            'fencing_validation_duration_seconds_count{resource="users",operation="delete"}',
            'stale_fencing_token_total{resource="users"}', "fencegate_unknown_outcomes_total",
            'fencegate_refusals_total{code="LEASE_OBJECT_MISMATCH"}', 'fencegate_api_refusals_total{code="LEASE_HELD"}',
            'lease_renewal_rejected_total{reason="fenced"}', 'fencegate_lease_events_total{event="granted"}',
            "fencegate_drain_seconds_count", "fencegate_ledger_commit_seconds_count",
            'fencegate_idempotency_keys_total{result="replayed"}', "fencegate_tls_certificate_not_after_seconds",
            'fencegate_agent_forwarded_total{kind="write"}', 'fencegate_agent_objects{standing="leading"}',
        ]:
            self.assertGreater(float(values[name]), 0, name)

    def test_every_alert_asks_for_what_there_is(self):
        for name, rule in rules().items():
            with self.subTest(alert=name):
                self.assertEqual(self.scraped.faults(rule["expr"]), [])

    def faults(self, board: dict) -> dict[str, list[str]]:
        """What a dashboard's panels ask for and no scrape has, by panel."""
        asked = ((panel["title"], target) for panel in panels(board) for target in panel["targets"])
        found = ((title, self.scraped.faults(target["expr"], target["legendFormat"])) for title, target in asked)
        return {title: faults for title, faults in found if faults}

    def test_every_panel_asks_for_what_there_is(self):
        board = dashboard()
        self.assertEqual(self.faults(board), {})
        for variable in board["templating"]["list"][1:]:
            with self.subTest(variable=variable["name"]):
                names = re.findall(r"(?:fencegate|active)_\w+", variable["query"]["query"])
                self.assertTrue(names and all(name in self.scraped.labels for name in names), names)

    def test_a_dashboard_with_a_misspelt_metric_is_caught(self):
        for right, wrong, fault in [
            ("fencegate_held_bytes", "fencegate_hold_bytes", "no metric fencegate_hold_bytes"),
            ("by (standing)", "by (standings)", "no label standings"),
            ("{{direction}}", "{{way}}", "no label way"),
        ]:
            board = json.loads(DASHBOARD.read_text().replace(right, wrong))
            self.assertEqual(list(self.faults(board).values()), [[fault]])

    def test_every_metric_of_the_runbooks_is_there(self):
        families = {re.sub(r"_(bucket|sum|count)$", "", metric) for metric in self.scraped.labels}
        for name in set(re.findall(r"`(fencegate_\w+)`", RUNBOOKS.read_text())):
            self.assertIn(name, families)

    def test_every_metric_is_on_the_dashboard(self):
        shown = {metric for text in expressions(dashboard()).values() for metric, _ in promql.selectors(text)}
        family = re.compile(r"_(bucket|sum|count)$")
        shown = {family.sub("", metric) for metric in shown}
        self.assertEqual({family.sub("", metric) for metric in self.scraped.labels} - shown, set())

    def test_every_panel_shows_something(self):
        names = variables(dashboard())
        for place, text in expressions(dashboard()).items():
            with self.subTest(panel=place):
                filled = promql.filled_in(text, names)
                until(f"something of {filled}", lambda: self.prometheus.query(filled))

    def test_a_panel_with_a_misspelt_metric_shows_nothing(self):
        self.assertEqual(self.prometheus.query("rate(fencing_token_conflict_total[30s])"), [])

    def test_prometheus_can_work_every_rule_out(self):
        def judged():
            groups = self.prometheus.get("/api/v1/rules").get("groups", [])
            found = {rule["name"]: rule for group in groups for rule in group["rules"]}
            return found if found and all(rule["health"] != "unknown" for rule in found.values()) else None

        found = until("every rule was looked at", judged)
        self.assertEqual({name: rule.get("lastError", "") for name, rule in found.items()}, dict.fromkeys(rules(), ""))
        firing = until("what has happened is seen", lambda: {
            alert["metric"]["alertname"] for alert in self.prometheus.query('ALERTS{alertstate="firing"}')
        })
        self.assertEqual(firing, {"FencegateUnknownOutcomes"}, "one write hung up, and nothing else is wrong")


if __name__ == "__main__":
    unittest.main()

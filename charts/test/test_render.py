"""Every ci-values file and the example, through both helms: lint, render, the schemas of Kubernetes, golden files."""
import copy
import unittest
from typing import Any

import yaml

import tools
import validators
from tools import CHART, HERE, HELMS, KUBERNETES, Document, names, of_kind, rendered, run


def shortened(manifest: Document) -> Document:
    """Without what has tests of its own: the alerts and the dashboard would be in here a second time."""
    manifest = copy.deepcopy(manifest)
    if manifest["kind"] == "PrometheusRule":
        manifest["spec"] = "files/alerts.yaml"
    if manifest["metadata"]["name"].endswith("-dashboard"):
        manifest["data"] = "files/dashboard.json"
    return manifest


class Lines(yaml.SafeDumper):
    """Long texts as they are, not as one line with escapes."""


def text_of(dumper: yaml.SafeDumper, text: str) -> Any:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


Lines.add_representer(str, text_of)


class Render(unittest.TestCase):
    maxDiff = None

    def test_lint_finds_nothing(self):
        for helm, program in HELMS.items():
            for name in names():
                with self.subTest(helm=helm, name=name):
                    answer = run(program, "lint", "--strict", "--namespace", "ledger", *tools.chart_of(name))
                    self.assertEqual(answer.returncode, 0, answer.stdout + answer.stderr)

    def test_lint_finds_a_typo_in_the_values(self):
        for helm, program in HELMS.items():
            answer = run(program, "lint", "--strict", CHART, "--values", tools.CI[0], "--set", "tabel.kind=claim")
            self.assertNotEqual(answer.returncode, 0, helm)
            self.assertIn("tabel", answer.stdout + answer.stderr)

    def test_both_helms_render_the_same(self):
        for name in names():
            for kubernetes in KUBERNETES:
                with self.subTest(name=name, kubernetes=kubernetes):
                    self.assertEqual(rendered("helm3", name, kubernetes), rendered("helm4", name, kubernetes))

    def test_every_manifest_is_valid(self):
        for name in names():
            for kubernetes in KUBERNETES:
                for manifest in rendered("helm4", name, kubernetes):
                    with self.subTest(name=name, kubernetes=kubernetes, kind=manifest["kind"]):
                        self.assertEqual(validators.faults(manifest, kubernetes), [])

    def test_a_typo_in_a_manifest_is_found(self):
        def spoilt(name: str, kind: str, *path: Any) -> Document:
            manifest = copy.deepcopy(of_kind(rendered("helm4", name, "1.37"), kind)[0])
            place: Any = manifest
            for step in path:
                place = place[step]
            place["tyop"] = 1
            return manifest

        container = ("spec", "template", "spec", "initContainers", 0)
        for manifest in [
            spoilt("default", "StatefulSet", *container),
            spoilt("default", "StatefulSet", *container, "securityContext"),
            spoilt("default", "NetworkPolicy", "spec"),
            spoilt("default", "Job", "spec", "podFailurePolicy"),
            spoilt("everything", "ServiceMonitor", "spec", "endpoints", 0),
            spoilt("everything", "PrometheusRule", "spec", "groups", 0),
            spoilt("pod-monitor", "PodMonitor", "spec"),
        ]:
            for kubernetes in KUBERNETES:
                with self.subTest(kind=manifest["kind"], kubernetes=kubernetes):
                    self.assertIn("tyop", " ".join(validators.faults(manifest, kubernetes)))
        self.assertNotEqual(validators.faults({"apiVersion": "apps/v1", "kind": "StatefulSett"}, "1.37"), [])

    def test_renderings_are_the_golden_ones(self):
        for name in names():
            path = HERE / "golden" / f"{name}.yaml"
            manifests = [shortened(manifest) for manifest in rendered("helm4", name, "1.37")]
            text = yaml.dump_all(manifests, Dumper=Lines, sort_keys=False, width=1000)
            if tools.BLESS:
                path.write_text(text)
            with self.subTest(name=name):
                golden = path.read_text() if path.exists() else ""
                self.assertEqual(golden, text, "if that is as it should be: charts/test/run --bless, and read the diff")
        self.assertEqual({path.stem for path in (HERE / "golden").glob("*.yaml")}, set(names()))

"""Helm installs, upgrades and removes the chart on a real API server: what becomes of the table's claim and its Job.

Needs the server that `make test-kubernetes` builds; without it, these are skipped."""
import re
import tempfile
import unittest
from pathlib import Path

import cluster
from tools import HELMS

CLAIM, JOB = "demo-fencegate-table", "demo-fencegate-table-init"
VALUES = "ci/default-values.yaml"


def with_helms_defaults(text: str) -> str:
    """The table's templates as one would write them at first: a hook, with what Helm does to hooks by default."""
    text = re.sub(r" +helm.sh/hook-delete-policy: hook-failed\n", "", text)
    return re.sub(r"\{\{- if not \(lookup .*?\) \}\}true\{\{ end -\}\}", "true", text)


@unittest.skipUnless(cluster.SERVER.exists(), f"{cluster.SERVER.name} is not there: `make test-kubernetes` builds it")
class Install(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = cls.enterClassContext(cluster.cluster())
        cls.folder = Path(cls.enterClassContext(tempfile.TemporaryDirectory(prefix="fencegate-chart-")))
        (cls.folder / "ours").mkdir()
        (cls.folder / "defaults").mkdir()
        cls.chart = cluster.chart_for(cls.folder / "ours")
        cls.defaults = cluster.chart_for(cls.folder / "defaults", with_helms_defaults)

    def each_helm(self):
        for helm in HELMS:
            yield helm, self.cluster.namespace()

    def helm(self, helm, space, command, *more, chart=None, ends="Complete", seen=lambda: None):
        """Runs one of Helm's commands; its Jobs end as said. Its exit code, and how many Jobs there were."""
        arguments = [command, "demo"]
        if command != "uninstall":
            chart = chart or self.chart
            # The server is older than sidecars: it is to take what it knows and leave the rest.
            arguments += [chart, "--values", chart / VALUES, "--disable-openapi-validation", "--timeout", "60s"]
            arguments += ["--server-side=false"] if helm == "helm4" else []
        with self.cluster.jobs_end(space, ends, seen) as jobs:
            answer = self.cluster.helm(helm, space, *arguments, *more)
        self.said = answer.stdout + answer.stderr
        return answer.returncode, len(jobs)

    def claim(self, space):
        found = self.cluster.listed(f"/api/v1/namespaces/{space}/persistentvolumeclaims").get(CLAIM)
        return found and found["metadata"]["uid"]

    def workloads(self, space):
        return list(self.cluster.listed(f"/apis/apps/v1/namespaces/{space}/statefulsets"))

    def test_the_table_is_made_on_its_claim_before_the_pods_and_the_job_is_gone_then(self):
        for helm, space in self.each_helm():
            with self.subTest(helm=helm):
                found = []
                code, jobs = self.helm(helm, space, "install",
                                       seen=lambda: found.append((bool(self.claim(space)), self.workloads(space))))
                self.assertEqual((code, jobs), (0, 1), self.said)
                self.assertEqual(found, [(True, [])])
                self.assertEqual(self.workloads(space), ["demo-fencegate"])
                self.assertNotIn(JOB, self.cluster.listed(f"/apis/batch/v1/namespaces/{space}/jobs"))

    def test_upgrades_and_another_installation_keep_the_claim_and_make_no_table(self):
        for helm, space in self.each_helm():
            with self.subTest(helm=helm):
                self.assertEqual(self.helm(helm, space, "install"), (0, 1), self.said)
                claim = self.claim(space)
                for command, more in [("upgrade", ["--set", "service.port=81"]), ("uninstall", []), ("install", []),
                                      ("upgrade", ["--set", "table.init=never"]), ("uninstall", []), ("install", [])]:
                    self.assertEqual(self.helm(helm, space, command, *more), (0, 0), self.said)
                    self.assertEqual(self.claim(space), claim, command)

    def test_the_control_with_helms_own_defaults_loses_the_claim(self):
        for helm, space in self.each_helm():
            with self.subTest(helm=helm):
                self.assertEqual(self.helm(helm, space, "install", chart=self.defaults), (0, 1), self.said)
                claim = self.claim(space)
                self.helm(helm, space, "uninstall")
                self.assertEqual(self.helm(helm, space, "install", chart=self.defaults), (0, 1), self.said)
                self.assertNotEqual(self.claim(space), claim)

    def test_a_lost_claim_stays_lost_until_an_operator_acts(self):
        for helm, space in self.each_helm():
            with self.subTest(helm=helm):
                self.assertEqual(self.helm(helm, space, "install"), (0, 1), self.said)
                self.cluster.call("DELETE", f"/api/v1/namespaces/{space}/persistentvolumeclaims/{CLAIM}")
                self.assertEqual(self.helm(helm, space, "upgrade", "--set", "service.port=81"), (0, 0), self.said)
                self.assertIsNone(self.claim(space))

    def test_a_job_that_fails_fails_the_installation_and_leaves_the_claim(self):
        for helm, space in self.each_helm():
            with self.subTest(helm=helm):
                code, jobs = self.helm(helm, space, "install", ends="Failed")
                self.assertEqual((code, jobs), (1, 1), self.said)
                claim = self.claim(space)
                self.assertIsNotNone(claim)
                self.assertEqual(self.workloads(space), [])
                # Neither goes with the release, so the docs have the Job deleted before another one is made.
                self.helm(helm, space, "uninstall")
                self.assertEqual(self.claim(space), claim)
                self.assertIn(JOB, self.cluster.listed(f"/apis/batch/v1/namespaces/{space}/jobs"))

    def test_the_job_that_is_made_by_hand_is_not_installed(self):
        for helm, space in self.each_helm():
            with self.subTest(helm=helm):
                self.assertEqual(self.helm(helm, space, "install", "--set", "table.init=job"), (1, 0), self.said)
                self.assertIn("Set table.init: hook for helm install", self.said)
                self.assertIsNone(self.claim(space))

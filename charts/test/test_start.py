"""What the chart has a pod run, run here by the real program: the Job, the start, the probes, the preStop, the end; and
the restore of docs/kubernetes.md."""
import os
import re
import shutil
import signal
import subprocess
import tempfile
import unittest
import urllib.request
from pathlib import Path

import yaml

import test_docs
from tools import FENCEGATE, containers, of_kind, pods, rendered

# Free ports of this machine, in place of the pod's own.
PORTS = {f"FENCEGATE__{part}__LISTEN": "127.0.0.1:0" for part in ("GATE", "API", "OPS")}


class Start(unittest.TestCase):
    def setUp(self):
        if not FENCEGATE.exists():
            raise AssertionError(f"{FENCEGATE} is missing: run `make build` first")
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory(prefix="fencegate-chart-")))
        self.volume, self.backups = self.folder / "volume", self.folder / "backups"
        self.volume.mkdir()
        self.backups.mkdir()

    def here(self, text: str) -> str:
        """With this test's folders in place of the pod's."""
        places = {"/var/lib/fencegate": self.volume, "/etc/fencegate": self.folder, "/backup/": f"{self.backups}/"}
        for inside, outside in places.items():
            if text.startswith(inside):
                return text.replace(inside, str(outside), 1)
        return text

    def command(self, container, **more):
        """A container's program, with its arguments and its environment."""
        own = {name: value for name, value in os.environ.items() if not name.startswith("FENCEGATE")}
        given = {entry["name"]: self.here(entry["value"]) for entry in container.get("env", [])}
        arguments = [self.here(part) for part in container["command"] + container.get("args", [])]
        self.assertEqual(arguments[0], "/fencegate")
        return {"args": [FENCEGATE, *arguments[1:]], "env": {**own, **given, **more}, "text": True,
                "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}

    def job(self):
        [(job, pod)] = pods(of_kind(rendered("helm4", "default", "1.37"), "Job"))
        done = subprocess.run(**self.command(containers(pod)[0]), timeout=60)
        hopeless = job["spec"]["podFailurePolicy"]["rules"][0]["onExitCodes"]["values"]
        return done.returncode, done.returncode in hopeless, done.stdout + done.stderr

    def gate(self, name):
        manifests = rendered("helm4", name, "1.37")
        [config] = [m for m in of_kind(manifests, "ConfigMap") if "fencegate.toml" in m["data"]]
        settings = config["data"]["fencegate.toml"].replace("/var/lib/fencegate", str(self.volume))
        (self.folder / "fencegate.toml").write_text(settings)
        [(_, pod)] = pods(of_kind(manifests, "StatefulSet"))
        return containers(pod)[0]

    def starts_and_stops(self, name):
        """The gate's probes succeed, its preStop does, and then SIGTERM ends it in good order."""
        gate = self.gate(name)
        with subprocess.Popen(**self.command(gate, **PORTS)) as process:
            self.addCleanup(process.kill)
            ready = process.stdout.readline()
            self.assertTrue(ready.startswith("ready "), process.stderr.read() if not ready else ready)
            ops = re.search(r"ops=(\S+)", ready)[1]
            for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
                with urllib.request.urlopen(f"http://{ops}{gate[probe]['httpGet']['path']}", timeout=10) as answer:
                    self.assertEqual(answer.status, 200)
            stop = [FENCEGATE, *gate["lifecycle"]["preStop"]["exec"]["command"][1:]]
            self.assertEqual(stop[-1], "http://127.0.0.1:9464")
            drained = subprocess.run([*stop[:-1], f"http://{ops}"], capture_output=True, text=True, timeout=60)
            self.assertEqual((drained.returncode, drained.stdout), (0, "drained\n"), drained.stderr)
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=60)
            self.assertEqual(process.returncode, 0)

    def test_the_job_makes_the_table_once_and_the_gate_starts_on_it(self):
        self.assertEqual(self.job()[0], 0)
        self.starts_and_stops("default")
        code, hopeless, said = self.job()
        self.assertTrue(hopeless, code)
        self.assertIn("already; nothing was changed", said)
        self.starts_and_stops("default")

    def test_the_backup_of_the_docs_is_put_back_by_its_job_and_the_gate_starts_on_it(self):
        text = test_docs.section("Backup and restore")
        commands = [line for block in test_docs.blocks(text, "sh") for line in test_docs.commands(block)]
        [made] = [line for line in commands if " exec " in line]
        [manifest] = [yaml.safe_load(block) for block in test_docs.blocks(text, "yaml") if "kind: Job" in block]
        [restore] = containers(manifest["spec"]["template"])
        restore["args"] = [word.replace("LEASE_SEQ", "12345") for word in restore["args"]]
        self.assertEqual(self.job()[0], 0)
        with subprocess.Popen(**self.command(self.gate("default"), **PORTS)) as process:
            self.addCleanup(process.kill)
            api = re.search(r"api=(\S+)", process.stdout.readline())[1]
            backup = {"command": made.partition(" -- ")[2].replace("127.0.0.1:8081", api).split()}
            done = subprocess.run(**self.command(backup), timeout=60)
            self.assertEqual(done.returncode, 0, done.stderr)
            process.kill()
            process.communicate(timeout=60)
        # A table that is there is left alone.
        refused = subprocess.run(**self.command(restore), timeout=60)
        self.assertEqual(refused.returncode, 2, refused.stderr)
        self.assertIn("--replace", refused.stderr)
        shutil.rmtree(self.volume)
        self.volume.mkdir()
        done = subprocess.run(**self.command(restore), timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("restored as incarnation", done.stdout)
        self.starts_and_stops("default")

    def test_on_an_empty_volume_the_gate_stops_and_says_why(self):
        self.assertEqual(self.job()[0], 0)
        shutil.rmtree(self.volume)
        self.volume.mkdir()
        refused = subprocess.run(**self.command(self.gate("default"), **PORTS), timeout=60)
        self.assertEqual(refused.returncode, 2)
        self.assertIn("there is no fence table", refused.stderr)
        self.assertEqual(list(self.volume.glob("*/table")), [])

    def test_on_an_empty_dir_the_gate_starts_again_and_again(self):
        self.starts_and_stops("empty-dir")
        self.starts_and_stops("empty-dir")

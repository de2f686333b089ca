"""The chart's README describes the values as values.yaml does. The steps of docs/kubernetes.md can be done: its values
are rendered, its manifests validated, and its commands name objects that the chart makes."""
import re
import tempfile
import tomllib
import unittest
from pathlib import Path
from typing import Any

import yaml

import readme
import tools
import validators
from tools import containers, of_kind, pods

PAGE = tools.ROOT / "docs/kubernetes.md"
RUNBOOKS = tools.ROOT / "docs/runbooks.md"


EXPOSED = "Writers in other pods, with the gate's own leases"


def section(title: str) -> str:
    """What stands under a heading of the page."""
    [text] = re.findall(rf"^## {title}\n(.*?)(?=^## |\Z)", PAGE.read_text(), re.M | re.S)
    return text


def blocks(text: str, kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", text, re.M | re.S)


def commands(block: str) -> list[str]:
    """A block's commands, each in a line."""
    joined = re.sub(r" *\\\n *", " ", block)
    return [re.sub(r" +#.*", "", line) for line in joined.splitlines() if line and not line.startswith("#")]


def values() -> str:
    """The values.yaml that the page installs with."""
    [text] = re.findall(r"^cat > values.yaml <<'END'\n(.*?)^END$", blocks(section("Installing"), "sh")[0], re.M | re.S)
    return text


def release(*more: str, extra: str = "{}") -> list[tools.Document]:
    """What the page's release comes to, by both helms."""
    with tempfile.TemporaryDirectory(prefix="fencegate-chart-") as folder:
        first, second = Path(folder) / "values.yaml", Path(folder) / "more.yaml"
        first.write_text(values())
        second.write_text(extra)
        # Named as on the page.
        asked = ("template", "ledger", tools.CHART, "--namespace", "ledger", "--kube-version", "1.37",
                 "--values", first, "--values", second, *more)
        answers = [tools.run(program, *asked) for program in tools.HELMS.values()]
    for answer in answers:
        if answer.returncode:
            raise AssertionError(answer.stderr)
    found = [tools.documents(answer.stdout) for answer in answers]
    assert found[0] == found[1]
    return found[0]


def settings_of(manifests: list[tools.Document], file: str = "fencegate.toml") -> dict[str, Any]:
    [config] = [m for m in of_kind(manifests, "ConfigMap") if file in m["data"]]
    return tomllib.loads(config["data"][file])


class Page(unittest.TestCase):
    def test_its_example_is_for_writers_in_other_pods(self):
        for route in yaml.safe_load(values())["gate"]["config"]["route"]:
            self.assertIn(route.get("lease_source"), ("kubernetes", "external"))
        manifests = release()
        for kubernetes in tools.KUBERNETES:
            for manifest in manifests:
                self.assertEqual(validators.faults(manifest, kubernetes), [])

    def test_every_lease_source_has_a_way_for_writers_in_other_pods(self):
        rows = re.findall(r"^\| `(\w+)`[^|]*\| (\w+)", section("Installing"), re.M)
        self.assertEqual(rows[1:], [(source, "yes") for source in ("kubernetes", "external", "gate", "authority")])

    def test_its_exposed_gate_and_the_agent_beside_a_writer_fit_together(self):
        ours, theirs, by_hand = blocks(section(EXPOSED), "yaml")
        manifests = release(extra=ours)
        with tempfile.TemporaryDirectory(prefix="fencegate-chart-") as folder:
            path = Path(folder) / "values.yaml"
            path.write_text(theirs)
            # As the chart has it: the example shows a certificate.
            default = ("--set", "fencegate.agent.tls.clientCertificate=false")
            answer = tools.template("helm4", tools.consumer(), "--values", path, *default)
        self.assertEqual(answer.returncode, 0, answer.stderr)
        writers = tools.documents(answer.stdout)
        for kubernetes in tools.KUBERNETES:
            for manifest in manifests + writers:
                self.assertEqual(validators.faults(manifest, kubernetes), [])
        gate, agent = settings_of(manifests), settings_of(writers, "agent.toml")
        services = {service["metadata"]["name"]: service["spec"]["ports"][0]["port"]
                    for service in of_kind(manifests, "Service")}
        for url, name in ((agent["gate"]["url"], "ledger-fencegate"), (agent["gate"]["api"], "ledger-fencegate-api")):
            self.assertEqual(url, f"https://{name}.ledger.svc:{services[name]}")
        self.assertEqual([(each["match"], each["object"]) for each in gate["route"]],
                         [(each["match"], each["object"]) for each in agent["route"]])
        self.assertEqual("tls_client_ca_file" in gate["gate"], "tls_cert_file" in agent["gate"])
        [grant], [source] = gate["grant"], gate["identity"]
        self.assertEqual(grant["principals"][0].rpartition(":")[2],
                         yaml.safe_load(theirs)["fencegate"]["agent"]["serviceAccountName"])
        # What a writer mounts by itself is what the agent would have.
        [token] = [volume["projected"]["sources"] for _, pod in pods(of_kind(writers, "Deployment"))
                   for volume in pod["spec"]["volumes"] if volume["name"] == "fencegate-agent-api-token"]
        [volume] = yaml.safe_load(by_hand)["volumes"]
        self.assertEqual(volume["projected"]["sources"], token)
        self.assertEqual(token[0]["serviceAccountToken"]["audience"], source["audience"])
        self.assertIn(agent["gate"]["token_file"], by_hand)

    def test_a_table_can_be_made_where_a_job_has_failed(self):
        """What is left of it goes first; then the file that has claim and Job; and the Job is waited for, and goes."""
        first, library = blocks(section("First start"), "sh")
        delete, make, wait, tidy = commands(first)
        rendering = re.search(r"helm template ledger charts/fencegate .*?(--set .*) \| kubectl create -f -$", make)[1]
        claim, job = release(*rendering.split())
        self.assertEqual((claim["kind"], job["kind"]), ("PersistentVolumeClaim", "Job"))
        name = job["metadata"]["name"]
        self.assertEqual(delete, f"kubectl -n ledger delete job {name} --ignore-not-found")
        self.assertRegex(wait, rf"^kubectl -n ledger wait --for=condition=complete --timeout=\w+ job/{name}$")
        self.assertEqual(tidy, f"kubectl -n ledger delete job {name}")
        self.assertIn(f"kubectl -n ledger delete job/{name} pvc/{claim['metadata']['name']}`", section("First start"))
        # In a chart of one's own, nothing but the chart and the key's section is another.
        ours = make.replace("charts/fencegate", "YOUR_CHART").replace("table.init", "fencegate.table.init", 1)
        self.assertEqual(commands(library), [ours])

    def test_a_claim_can_be_made_without_a_table(self):
        manifests = release("--set", "table.init=never", "--show-only", "templates/table.yaml")
        self.assertEqual([manifest["kind"] for manifest in manifests], ["PersistentVolumeClaim"])

    def test_its_manifests_are_valid(self):
        found = [document for text in blocks(PAGE.read_text(), "yaml") for document in tools.documents(text)
                 if "apiVersion" in document]
        self.assertEqual([manifest["kind"] for manifest in found], ["PersistentVolumeClaim", "Job"])
        for kubernetes in tools.KUBERNETES:
            for manifest in found:
                with self.subTest(kind=manifest["kind"], kubernetes=kubernetes):
                    self.assertEqual(validators.faults(manifest, kubernetes), [])

    def test_a_backup_is_put_back_where_the_gate_looks_as_the_gates_user(self):
        claim, extra, restore = (text for text in blocks(section("Backup and restore"), "yaml"))
        backups = yaml.safe_load(claim)["metadata"]["name"]
        restores = yaml.safe_load(restore)
        job, pod = restores["spec"], restores["spec"]["template"]["spec"]
        manifests = release(extra=extra)
        [(_, chart)] = pods(of_kind(manifests, "Job"))
        [workload] = of_kind(manifests, "StatefulSet")
        [ours], [theirs] = containers(restores["spec"]["template"]), containers(chart)
        for key in ("securityContext", "restartPolicy", "automountServiceAccountToken", "enableServiceLinks"):
            self.assertEqual(pod[key], chart["spec"][key], key)
        for key in ("image", "command", "env", "resources", "securityContext", "terminationMessagePolicy"):
            self.assertEqual(ours[key], theirs[key], key)
        self.assertEqual(job["backoffLimit"], 0, "what was restored once is not restored again by itself")
        # The same two volumes in the same places as in the gate's pod.
        gate = containers(workload["spec"]["template"])[0]
        mounts = [mount for mount in gate["volumeMounts"] if mount["name"] in ("fencegate-table", "backup")]
        volumes = [volume for volume in workload["spec"]["template"]["spec"]["volumes"]
                   if volume["name"] in ("fencegate-table", "backup")]
        self.assertEqual((ours["volumeMounts"], pod["volumes"]), (mounts, volumes))
        self.assertEqual(volumes[1]["persistentVolumeClaim"], {"claimName": backups})
        # What is put back is what was made, while the gate is away.
        made, steps = map(commands, blocks(section("Backup and restore"), "sh"))
        self.assertEqual(ours["args"], ["table", "restore", "--config", "/dev/null", "--from", made[0].split()[-1],
                                         "--above", "LEASE_SEQ"])
        self.assertTrue(made[0].split()[-1].startswith(mounts[1]["mountPath"] + "/"))
        name, gates = restores["metadata"]["name"], workload["metadata"]["name"]
        self.assertEqual([re.sub(r" --timeout=\w+", "", command) for command in steps], [
            f"kubectl -n ledger scale statefulset/{gates} --replicas=0",
            f"kubectl -n ledger wait --for=delete pod/{gates}-0",
            "kubectl create -f restore.yaml",
            f"kubectl -n ledger wait --for=condition=complete job/{name}",
            f"kubectl -n ledger logs job/{name}",
            f"kubectl -n ledger delete job {name}",
            f"kubectl -n ledger scale statefulset/{gates} --replicas=1",
        ])

    def test_the_grace_period_is_the_one_that_is_told(self):
        [workload] = of_kind(release(), "StatefulSet")
        seconds = workload["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
        self.assertIn(f"{seconds} s in all", section("The order of a start, and of a stop"))
        self.assertIn(f"{seconds} s with the defaults", RUNBOOKS.read_text())


class Runbooks(unittest.TestCase):
    def test_they_name_the_charts_containers_and_files(self):
        top = RUNBOOKS.read_text().partition("\n## ")[0]
        seen = set()
        for _, pod in pods(of_kind(tools.rendered("helm4", "consumer", "1.37"), "StatefulSet", "Deployment")):
            ours = pod["spec"]["initContainers"][0]
            seen.add(ours["name"])
            self.assertIn(f"`{ours['name']}`, `{ours['args'][-1]}`", top)
        self.assertEqual(seen, {"fencegate", "fencegate-agent"})

    def test_an_alert_that_names_no_object_says_how_to_find_it(self):
        text = RUNBOOKS.read_text().partition("## FencegateDrainWaiting")[2].partition("\n## ")[0]
        self.assertIn("fencegate lease list --api $API --state draining", text)


class Readme(unittest.TestCase):
    maxDiff = None

    def test_its_table_is_that_of_the_values(self):
        text = readme.README.read_text()
        if tools.BLESS:
            readme.README.write_text(readme.with_table(text))
            text = readme.README.read_text()
        self.assertEqual(text, readme.with_table(text), "charts/test/run --bless writes it anew")

    def test_every_value_is_described(self):
        described = readme.described()
        for leaf in readme.leaves(yaml.safe_load(readme.VALUES.read_text())):
            steps = leaf.split(".")
            above = {".".join(steps[:count]) for count in range(1, len(steps) + 1)}
            with self.subTest(leaf=leaf):
                self.assertTrue(above & described.keys())

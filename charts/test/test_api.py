"""The lease api for other pods: its Service, its certificate, the right to review tokens; the agent's token."""
import shutil
import tempfile
import tomllib
import unittest
from pathlib import Path

import tools
from test_pods import gate_of, settings_of
from tools import containers, everything, of_kind, pods, rendered

EXPOSED = {"api", "api-outside", "mesh", "consumer-api"}
ACCOUNT_TOKEN = "/var/run/secrets/kubernetes.io/serviceaccount"


def mounted(pod, container):
    """A container's volumes, by where they are mounted."""
    volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
    return {mount["mountPath"]: volumes[mount["name"]] for mount in container["volumeMounts"]}


def the_gate(manifests):
    """The pod with the gate in it, and the gate."""
    [found] = [(pod, gate_of(pod)) for _, pod in pods(manifests) if gate_of(pod)]
    return found


class Exposed(unittest.TestCase):
    def test_the_api_stays_in_the_pod_unless_it_is_exposed(self):
        for name, manifests in everything():
            with self.subTest(name=name):
                settings = settings_of(manifests)
                services = [each["metadata"]["name"] for each in of_kind(manifests, "Service")
                            if each["metadata"]["name"].endswith("-api")]
                if name in EXPOSED:
                    self.assertRegex(settings["api"]["listen"], r"^(0\.0\.0\.0|\[::\]):\d+$")
                    self.assertEqual(len(services), 1)
                else:
                    self.assertRegex(settings["api"]["listen"], r"^(127\.0\.0\.1|\[::1\]):\d+$")
                    self.assertEqual(services, [])
                    self.assertEqual({"access", "audit", "grant", "identity"} & settings.keys(), set())

    def test_an_exposed_api_has_tls_a_source_of_identities_and_a_grant(self):
        for name, manifests in everything():
            if name not in EXPOSED:
                continue
            with self.subTest(name=name):
                settings = settings_of(manifests)
                self.assertTrue(settings["grant"] and settings["identity"])
                if name == "mesh":
                    self.assertIs(settings["api"]["insecure_plaintext"], True)
                    self.assertEqual(settings["access"]["loopback"], "authenticate")
                    self.assertNotIn("tls_cert_file", settings["api"])
                    continue
                self.assertNotIn("insecure_plaintext", settings["api"])
                pod, gate = the_gate(manifests)
                places = mounted(pod, gate)
                for key, file in (("tls_cert_file", "tls.crt"), ("tls_key_file", "tls.key")):
                    folder, _, found = settings["api"][key].rpartition("/")
                    self.assertEqual(found, file)
                    # Not as a subPath: that would never change.
                    self.assertEqual(places[folder]["secret"], {"secretName": "api-tls", "defaultMode": 0o440})

    def test_its_service_leads_to_its_port_and_to_nothing_else(self):
        for name in EXPOSED:
            with self.subTest(name=name):
                manifests = rendered("helm4", name, "1.37")
                [service] = [each for each in of_kind(manifests, "Service")
                             if each["metadata"]["name"].endswith("-api")]
                [port] = service["spec"]["ports"]
                self.assertEqual(port["targetPort"], int(settings_of(manifests)["api"]["listen"].rpartition(":")[2]))
                self.assertIs(service["spec"]["publishNotReadyAddresses"], True)
                others = [p["targetPort"] for each in of_kind(manifests, "Service") if each is not service
                          for p in each["spec"]["ports"]]
                self.assertNotIn(port["targetPort"], others)
        [outside] = [each for each in of_kind(rendered("helm4", "api-outside", "1.37"), "Service")
                     if each["metadata"]["name"].endswith("-api")]
        self.assertEqual((outside["spec"]["type"], outside["spec"]["ports"][0]["port"]), ("LoadBalancer", 443))
        self.assertEqual(outside["metadata"]["annotations"], {"example.org/internal": "true"})

    def test_only_selected_peers_reach_its_port(self):
        for name in EXPOSED:
            with self.subTest(name=name):
                manifests = rendered("helm4", name, "1.37")
                port = int(settings_of(manifests)["api"]["listen"].rpartition(":")[2])
                [policy] = of_kind(manifests, "NetworkPolicy")
                [rule] = [rule for rule in policy["spec"]["ingress"] if rule["ports"][0]["port"] == port]
                self.assertTrue(rule["from"], "an empty list of peers allows all clients")
        [policy] = of_kind(rendered("helm4", "mesh", "1.37"), "NetworkPolicy")
        peers = [peer for rule in policy["spec"]["ingress"] for peer in rule.get("from", [])]
        self.assertEqual(peers, [{"podSelector": {}}])

    def test_a_store_that_is_on_the_internet_does_not_bring_the_api_along(self):
        manifests = rendered("helm4", "api", "1.37", "--set", "service.type=LoadBalancer")
        kinds = {each["metadata"]["name"]: each["spec"].get("type") for each in of_kind(manifests, "Service")}
        self.assertEqual(kinds, {"demo-fencegate": "LoadBalancer", "demo-fencegate-pods": None,
                                 "demo-fencegate-api": "ClusterIP"})


class Identity(unittest.TestCase):
    def sources(self, *more):
        return settings_of(rendered("helm4", "api", "1.37", *more))["identity"]

    def test_callers_show_tokens_of_service_accounts_unless_the_values_say_otherwise(self):
        pods_are = {"name": "kubernetes", "kind": "kubernetes", "audience": "fencegate"}
        self.assertEqual(self.sources(), [pods_are])
        self.assertEqual(self.sources("--set", "api.tls.clientCa.secretName=ca"),
                         [pods_are, {"name": "certificates", "kind": "mtls"}])
        given = settings_of(rendered("helm4", "api-outside", "1.37"))["identity"]
        self.assertEqual([(each["name"], each["kind"]) for each in given],
                         [("backups", "tokens"), ("machines", "mtls"), ("pods", "kubernetes")])

    def test_the_right_to_review_tokens_is_there_with_that_source_only_and_is_no_other_right(self):
        for name, manifests in everything():
            roles = of_kind(manifests, "ClusterRole")
            bindings = of_kind(manifests, "ClusterRoleBinding")
            with self.subTest(name=name):
                if name not in EXPOSED:
                    self.assertEqual((roles, bindings), ([], []))
                    continue
                [role], [binding] = roles, bindings
                self.assertEqual(role["rules"], [{"apiGroups": ["authentication.k8s.io"],
                                                  "resources": ["tokenreviews"], "verbs": ["create"]}])
                self.assertNotIn("aggregationRule", role)
                [account] = binding["subjects"]
                pod, _ = the_gate(manifests)
                self.assertEqual((account["kind"], account["name"], account["namespace"]),
                                 ("ServiceAccount", pod["spec"]["serviceAccountName"], "ledger"))
                self.assertEqual(binding["roleRef"], {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole",
                                                      "name": role["metadata"]["name"]})
                # Two releases of one name in two namespaces have one each.
                self.assertTrue(role["metadata"]["name"].startswith("ledger-"))

    def test_without_that_source_the_gate_has_neither_the_right_nor_a_token(self):
        asked = ("--set-json", 'gate.config.identity=[{"name": "machines", "kind": "mtls"}]',
                 "--set", "api.tls.clientCa.secretName=ca")
        manifests = rendered("helm4", "api", "1.37", *asked)
        self.assertEqual(of_kind(manifests, "ClusterRole", "ClusterRoleBinding"), [])
        self.assertNotIn(ACCOUNT_TOKEN, mounted(*the_gate(manifests)))
        self.assertIn(ACCOUNT_TOKEN, mounted(*the_gate(rendered("helm4", "api", "1.37"))))

    def test_rights_can_be_given_by_others(self):
        manifests = rendered("helm4", "api", "1.37", "--set", "rbac.create=false")
        self.assertEqual(of_kind(manifests, "ClusterRole", "ClusterRoleBinding"), [])
        self.assertIn(ACCOUNT_TOKEN, mounted(*the_gate(manifests)))

    def test_a_gate_that_also_reads_leases_has_both_rights_and_one_token(self):
        asked = ("--set", "gate.tls.clientCa.secretName=ca", "--set-json", "gate.config.route=" + """[
            {"name": "a", "match": "/a/{rest...}", "object": "a"},
            {"name": "b", "match": "/b/{rest...}", "object": "b", "lease_source": "kubernetes",
             "kubernetes": {"name": "b"}}
        ]""")
        for helm in tools.HELMS:
            manifests = rendered(helm, "api", "1.37", *asked)
            self.assertEqual([m["kind"] for m in of_kind(manifests, "Role", "ClusterRole")], ["ClusterRole", "Role"])
            pod, _ = the_gate(manifests)
            self.assertEqual(len([v for v in pod["spec"]["volumes"] if "projected" in v]), 1)


class Audit(unittest.TestCase):
    def audit(self, name, *more):
        return settings_of(rendered("helm4", name, "1.37", *more)).get("audit")

    def test_it_goes_to_the_containers_log_where_the_api_is_exposed(self):
        self.assertEqual(self.audit("api"), {"to": "stderr"})
        self.assertEqual(self.audit("mesh"), {"to": "stderr"})
        self.assertIsNone(self.audit("default"))
        self.assertEqual(self.audit("default", "--set", "gate.config.audit.to=stderr"), {"to": "stderr"})

    def test_off_means_off_also_without_quotes(self):
        self.assertEqual(self.audit("api-outside"), {"to": "off"})
        # What YAML makes of a bare `off`.
        self.assertEqual(self.audit("api", "--set", "gate.config.audit.to=false"), {"to": "off"})

    def test_a_file_is_on_a_volume_that_the_gate_may_write(self):
        asked = ["gate.config.audit.to=file", "gate.config.audit.file=/var/log/fencegate/audit.log",
                 "gate.volumeMounts[0].name=audit", "gate.volumeMounts[0].mountPath=/var/log/fencegate"]
        self.assertEqual(self.audit("api", "--set", ",".join(asked)),
                         {"to": "file", "file": "/var/log/fencegate/audit.log"})
        for wrong in ("gate.config.audit.file=/var/lib/fencegate/audit.log", "gate.volumeMounts[0].readOnly=true",
                      "gate.config.audit.file=/var/log/fencegate/../audit.log"):
            with self.subTest(wrong=wrong), self.assertRaisesRegex(AssertionError, "audit.file is on no volume"):
                self.audit("api", "--set", ",".join([*asked, wrong]))


class Notes(unittest.TestCase):
    """What Helm prints after an installation. `helm template` leaves it out: a copy of the chart has it in a manifest."""

    def notes(self, name, *more):
        with tempfile.TemporaryDirectory(prefix="fencegate-chart-") as folder:
            chart = Path(folder) / "fencegate"
            shutil.copytree(tools.CHART, chart)
            (chart / "templates/NOTES.txt").rename(chart / "notes")
            text = 'kind: Notes\ntext: |\n  {{- tpl (.Files.Get "notes") . | nindent 2 }}\n'
            (chart / "templates/notes.yaml").write_text(text)
            values = chart / "ci" / f"{name}-values.yaml"
            answers = [tools.template(helm, chart, "--values", values, "--show-only", "templates/notes.yaml", *more)
                       for helm in tools.HELMS]
        said = [tools.documents(answer.stdout)[0]["text"] for answer in answers]
        self.assertEqual(said[0], said[1])
        return said[0]

    def test_they_say_where_the_api_is(self):
        self.assertIn("kubectl -n ledger port-forward statefulset/demo-fencegate 8081\n", self.notes("default"))
        self.assertIn("https://demo-fencegate-api.ledger.svc:8081, for callers", self.notes("api"))
        self.assertIn("https://demo-fencegate-api.ledger.svc:443, for callers", self.notes("api-outside"))
        self.assertIn("http://demo-fencegate-api.ledger.svc:8081, for callers", self.notes("mesh"))

    def test_they_warn_of_plain_http_and_of_an_open_port(self):
        self.assertIn("the mesh must encrypt", self.notes("mesh"))
        for quiet in ("default", "api"):
            self.assertNotIn("the mesh must encrypt", self.notes(quiet))
            self.assertNotIn("The api's port is open", self.notes(quiet))
        self.assertIn("The api's port is open", self.notes("api", "--set", "networkPolicy.enabled=false"))


class Agents(unittest.TestCase):
    def agent(self, *more, name="consumer-api"):
        """The agent's settings, and what is mounted where."""
        manifests = rendered("helm4", name, "1.37", *more)
        [config] = [m for m in of_kind(manifests, "ConfigMap") if "agent.toml" in m["data"]]
        [(_, pod)] = pods(of_kind(manifests, "Deployment"))
        [agent] = [container for container in containers(pod) if container["name"] == "fencegate-agent"]
        return tomllib.loads(config["data"]["agent.toml"])["gate"], mounted(pod, agent)

    def test_an_agent_shows_the_api_a_token_that_is_for_the_gate_alone(self):
        gate, places = self.agent()
        folder, _, file = gate["token_file"].rpartition("/")
        self.assertEqual(places[folder]["projected"]["sources"],
                         [{"serviceAccountToken": {"path": file, "audience": "fencegate", "expirationSeconds": 3600}}])
        self.assertEqual(file, "token")
        # It has no token for the API server: no Lease leads its routes.
        self.assertNotIn(ACCOUNT_TOKEN, places)
        self.assertEqual(places[gate["tls_ca_file"].rpartition("/")[0]]["secret"]["secretName"], "writer-tls")
        [source] = settings_of(rendered("helm4", "consumer-api", "1.37"))["identity"]
        self.assertEqual(source["audience"], "fencegate")

    def test_the_writer_itself_does_not_see_that_token(self):
        [(_, pod)] = pods(of_kind(rendered("helm4", "consumer-api", "1.37"), "Deployment"))
        [writer] = [container for container in containers(pod) if container["name"] == "writer"]
        self.assertNotIn("volumeMounts", writer)
        self.assertIs(pod["spec"]["automountServiceAccountToken"], False)

    def test_its_audience_and_how_long_it_lasts_can_be_set(self):
        token = "fencegate.agent.token"
        _, places = self.agent("--set", f"{token}.audience=ledger,{token}.expirationSeconds=600")
        [source] = places["/var/run/secrets/fencegate"]["projected"]["sources"]
        self.assertEqual(source["serviceAccountToken"],
                         {"path": "token", "audience": "ledger", "expirationSeconds": 600})

    def test_there_is_no_such_token_where_the_agent_would_not_send_it(self):
        certificate = "fencegate.agent.token.enabled=false,fencegate.agent.tls.clientCertificate=true"
        for name, more in (("consumer", ()),
                           ("consumer-api", ("--set", "fencegate.agent.config.gate.token_file=/elsewhere/token")),
                           ("consumer-api", ("--set", certificate))):
            with self.subTest(name=name, more=more):
                gate, places = self.agent(*more, name=name)
                self.assertNotIn("/var/run/secrets/fencegate", places)
                self.assertNotEqual(gate.get("token_file"), "/var/run/secrets/fencegate/token")

    def test_the_example_grants_the_agents_account_the_objects_of_its_routes(self):
        manifests = rendered("helm4", "consumer-api", "1.37")
        settings = settings_of(manifests)
        [grant] = settings["grant"]
        [(_, pod)] = pods(of_kind(manifests, "Deployment"))
        self.assertEqual(grant["principals"], [f"system:serviceaccount:ledger:{pod['spec']['serviceAccountName']}"])
        self.assertEqual(grant["objects"], [route["object"] for route in settings["route"]])
        gate, _ = self.agent()
        [service] = [each for each in of_kind(manifests, "Service") if each["metadata"]["name"].endswith("-api")]
        [port] = service["spec"]["ports"]
        self.assertEqual(gate["api"], f"https://{service['metadata']['name']}.ledger.svc:{port['port']}")
        [policy] = of_kind(manifests, "NetworkPolicy")
        [peers] = [rule["from"] for rule in policy["spec"]["ingress"] if rule["ports"][0]["port"] == port["targetPort"]]
        [selector] = [peer["podSelector"]["matchLabels"] for peer in peers]
        self.assertLessEqual(selector.items(), pod["metadata"]["labels"].items())

"""What the pods and the objects round them must have, whatever the values."""
import json
import math
import tomllib
import unittest

import tools
from tools import containers, everything, of_kind, pods, rendered

GATES = "app.kubernetes.io/component"


def settings_of(manifests):
    """The gate's settings file, by section."""
    [config] = [m for m in of_kind(manifests, "ConfigMap") if "fencegate.toml" in m["data"]]
    return tomllib.loads(config["data"]["fencegate.toml"])


def gate_of(pod):
    found = [container for container in containers(pod) if container["name"] == "fencegate"]
    return found[0] if found else None


class Pods(unittest.TestCase):
    def each(self):
        """Each rendering's gate pod: name, all its manifests, the workload, the pod, the gate."""
        for kubernetes in tools.KUBERNETES:
            for name, manifests in everything(kubernetes):
                found = [(w, p, gate_of(p)) for w, p in pods(manifests) if gate_of(p)]
                self.assertEqual(len(found), 1, name)
                yield f"{name} {kubernetes}", manifests, *found[0]

    def test_every_container_is_locked_down(self):
        for name, manifests in everything():
            for workload, pod in pods(manifests):
                for container in containers(pod):
                    with self.subTest(name=name, workload=workload["kind"], container=container["name"]):
                        own = container["securityContext"]
                        self.assertIs(own["allowPrivilegeEscalation"], False)
                        self.assertIs(own["readOnlyRootFilesystem"], True)
                        self.assertIs(own["runAsNonRoot"], True)
                        self.assertEqual(own["capabilities"], {"drop": ["ALL"]})
                        self.assertEqual(own["seccompProfile"], {"type": "RuntimeDefault"})
                        if container["image"].startswith("fencegate"):
                            self.assertGreater(own["runAsUser"], 0)
                            self.assertIn("memory", container["resources"]["limits"])

    def test_the_gate_is_a_native_sidecar_that_the_store_waits_for(self):
        for name, _, _, pod, gate in self.each():
            with self.subTest(name=name):
                self.assertIs(gate, pod["spec"]["initContainers"][0])
                self.assertEqual(gate["restartPolicy"], "Always")
                self.assertEqual(gate["startupProbe"]["httpGet"], {"path": "/readyz", "port": "ops"})
                self.assertEqual(gate["readinessProbe"]["httpGet"], {"path": "/readyz", "port": "ops"})
                self.assertEqual(gate["livenessProbe"]["httpGet"], {"path": "/livez", "port": "ops"})

    def test_the_store_outlives_the_drain_and_the_pod_has_time_for_both(self):
        for name, manifests, _, pod, gate in self.each():
            with self.subTest(name=name):
                settings = settings_of(manifests)
                ops = settings["ops"]["listen"].rpartition(":")[2]
                self.assertEqual(gate["lifecycle"]["preStop"]["exec"]["command"],
                                 ["/fencegate", "drain", "--ops", f"http://127.0.0.1:{ops}"])
                [store] = [container for container in containers(pod) if container["name"] == "store"]
                wait = store["lifecycle"]["preStop"]
                seconds = wait["sleep"]["seconds"] if "sleep" in wait else int(wait["exec"]["command"][-1])
                drain = settings["shutdown"]["deadline_ms"] / 1000
                self.assertEqual(seconds, math.ceil(drain))
                stop = 60 if name.startswith("everything") else 30
                # The drain, the store, the gate's own stop within the same deadline, and its table: src/app/mod.rs.
                self.assertGreaterEqual(pod["spec"]["terminationGracePeriodSeconds"], drain + stop + drain + 2)

    def test_a_writers_pod_has_time_for_its_agent_to_give_leases_back(self):
        [(_, pod)] = pods(of_kind(rendered("helm4", "consumer", "1.37"), "Deployment"))
        # The writer's own 30 seconds, then the agent's deadline, its releases and its last answers: src/agent/mod.rs.
        self.assertGreaterEqual(pod["spec"]["terminationGracePeriodSeconds"], 30 + 25 + 8 + 5)

    def test_where_the_kubelet_cannot_sleep_the_stores_image_does(self):
        def wait(name, kubernetes):
            [(_, pod)] = pods(of_kind(rendered("helm4", name, kubernetes), "StatefulSet", "Deployment"))
            return pod["spec"]["containers"][0]["lifecycle"]["preStop"]
        self.assertEqual(wait("default", "1.29"), {"exec": {"command": ["sleep", "25"]}})
        self.assertEqual(wait("default", "1.30"), {"sleep": {"seconds": 25}})
        self.assertEqual(wait("gitops", "1.37"), {"exec": {"command": ["/bin/busybox", "sleep", "25"]}})

    def test_a_token_is_in_the_gate_or_the_agent_alone_and_only_where_one_is_needed(self):
        needs_one = {"kubernetes", "consumer", "consumer-api", "api", "api-outside", "mesh"}
        seen = set()
        for name, manifests in everything():
            for workload, pod in pods(manifests):
                self.assertIs(pod["spec"]["automountServiceAccountToken"], False)
                self.assertIs(pod["spec"]["enableServiceLinks"], False)
                tokens = {volume["name"] for volume in pod["spec"].get("volumes", []) if "projected" in volume}
                holders = [container["name"] for container in containers(pod)
                           if tokens & {mount["name"] for mount in container.get("volumeMounts", [])}]
                with self.subTest(name=name, workload=workload["kind"]):
                    if name in needs_one and workload["kind"] != "Job":
                        self.assertEqual(len(holders), 1)
                        self.assertTrue(holders[0].startswith("fencegate"))
                        seen.add(holders[0])
                    else:
                        self.assertEqual((tokens, holders), (set(), []))
            self.assertEqual({bool(account.get("automountServiceAccountToken", True))
                              for account in of_kind(manifests, "ServiceAccount")} - {False}, set())
        self.assertEqual(seen, {"fencegate", "fencegate-agent"})

    def test_leases_may_be_read_in_the_named_namespaces_only(self):
        for name, manifests in everything():
            kinds = of_kind(manifests, "Role", "RoleBinding")
            with self.subTest(name=name):
                if name not in ("kubernetes", "consumer"):
                    self.assertEqual(kinds, [])
                for role in of_kind(kinds, "Role"):
                    for rule in role["rules"]:
                        self.assertEqual((rule["apiGroups"], rule["resources"]), (["coordination.k8s.io"], ["leases"]))
                    takes = role["metadata"]["name"].endswith("-take-leases")
                    self.assertEqual([rule["verbs"] for rule in role["rules"]],
                                     [["get", "update"], ["create"]] if takes else [["get", "list", "watch"]])
        where = [role["metadata"]["namespace"] for role in of_kind(rendered("helm4", "kubernetes", "1.37"), "Role")]
        self.assertEqual(where, ["control", "tenants"])

    def test_an_agent_may_change_no_leases_but_those_of_its_routes(self):
        def limits(routes, namespaces=()):
            """By namespace: whose Leases may be read and changed. None: all of them."""
            given = [{"name": f"r{place}", "match": f"/r{place}/{{a}}/{{rest...}}", "object": f"r{place}/{{a}}",
                      "kubernetes": lease} for place, lease in enumerate(routes)]
            config = {"route": given, "kubernetes": {"namespaces": list(namespaces)}}
            asked = ("--set-json", f"fencegate.agent.config={json.dumps(config)}")
            found = {}
            for role in of_kind(rendered("helm4", "consumer", "1.37", *asked), "Role"):
                if role["metadata"]["name"].endswith("-take-leases"):
                    changes, creates = role["rules"]
                    self.assertNotIn("resourceNames", creates, "a right to create has none")
                    found[role["metadata"]["namespace"]] = changes.get("resourceNames")
            return found

        here = {"namespace": "ledger", "name": "writer"}
        self.assertEqual(limits([here]), {"ledger": ["writer"]})
        self.assertEqual(limits([here, here, {"name": "other"}]), {"ledger": ["other", "writer"]})
        self.assertEqual(limits([here, {"namespace": "away", "name": "w-{a}"}]), {"away": None, "ledger": ["writer"]})
        self.assertEqual(limits([here, {"namespace": "ledger", "name": "w-{a}"}]), {"ledger": None})
        self.assertEqual(limits([here, {"namespace": "{a}", "name": "tenant"}], ["one", "ledger"]),
                         {"ledger": ["tenant", "writer"], "one": ["tenant"]})
        self.assertEqual(limits([here, {"namespace": "{a}", "name": "w-{a}"}], ["one"]),
                         {"ledger": ["writer"], "one": None})

    def test_only_the_gates_port_is_let_in_and_the_exposed_apis(self):
        for name, manifests, _, pod, gate in self.each():
            with self.subTest(name=name):
                settings = settings_of(manifests)
                port, api, ops = (int(settings[part]["listen"].rpartition(":")[2]) for part in ("gate", "api", "ops"))
                is_exposed = not settings["api"]["listen"].startswith(("127.0.0.1:", "[::1]:"))
                open_ports = [port, api, ops] if is_exposed else [port, ops]
                self.assertEqual([p["containerPort"] for p in gate["ports"]], open_ports)
                [store] = [container for container in containers(pod) if container["name"] == "store"]
                self.assertNotIn("ports", store)
                for service in of_kind(manifests, "Service"):
                    self.assertLessEqual(service["spec"]["selector"].items(), pod["metadata"]["labels"].items())
                    # By number: before 1.33, endpoints knew no named port of a sidecar.
                    self.assertLessEqual({p["targetPort"] for p in service["spec"]["ports"]}, set(open_ports))
                policies = of_kind(manifests, "NetworkPolicy")
                self.assertEqual(len(policies), 0 if name.startswith("pod-monitor") else 1)
                for policy in policies:
                    self.assertLessEqual(policy["spec"]["podSelector"]["matchLabels"].items(),
                                         pod["metadata"]["labels"].items())
                    self.assertEqual(policy["spec"]["policyTypes"], ["Ingress"])
                    for rule in policy["spec"]["ingress"]:
                        [only] = rule["ports"]
                        self.assertIn(only["port"], open_ports)
                        if only["port"] != port:
                            self.assertTrue(rule["from"], "an empty list of peers allows all clients")

    def test_no_service_leads_to_the_job(self):
        for name, manifests in everything():
            for job in of_kind(manifests, "Job"):
                for service in of_kind(manifests, "Service"):
                    labels = job["spec"]["template"]["metadata"]["labels"]
                    self.assertNotEqual(service["spec"]["selector"].get(GATES), labels[GATES], name)

    def test_a_changed_setting_starts_the_pod_anew_and_a_changed_label_does_not(self):
        def pod(*more):
            [(_, pod)] = pods(of_kind(rendered("helm4", "default", "1.37", *more), "StatefulSet"))
            return pod
        self.assertNotEqual(pod(), pod("--set", "gate.config.lease.ttl_ms_default=5000"))
        self.assertEqual(pod(), pod("--set", "service.port=80"))

    def test_a_deployment_never_surges(self):
        for name, manifests in everything():
            for deployment in of_kind(manifests, "Deployment"):
                self.assertEqual(deployment["spec"]["strategy"], {"type": "Recreate"}, name)

    def test_custom_resources_find_their_ports(self):
        everything_on = rendered("helm4", "everything", "1.37")
        [monitor] = of_kind(everything_on, "ServiceMonitor")
        wanted = monitor["spec"]["selector"]["matchLabels"].items()
        found = [service for service in of_kind(everything_on, "Service")
                 if wanted <= service["metadata"]["labels"].items()]
        self.assertEqual([[p["name"] for p in service["spec"]["ports"]] for service in found], [["ops"]])
        self.assertEqual([end["port"] for end in monitor["spec"]["endpoints"]], ["ops"])

    def test_agents_are_scraped_however_the_gate_is(self):
        for gate, kinds in (("serviceMonitor", ["ServiceMonitor", "PodMonitor"]), ("podMonitor", ["PodMonitor"] * 2)):
            asked = [f"fencegate.monitoring.{each}.enabled={str(each == gate).lower()}"
                     for each in ("serviceMonitor", "podMonitor")]
            manifests = rendered("helm4", "consumer", "1.37", "--set", ",".join(asked))
            monitors = of_kind(manifests, "ServiceMonitor", "PodMonitor")
            self.assertCountEqual([monitor["kind"] for monitor in monitors], kinds)
            [agents] = [each["spec"] for each in monitors if each["metadata"]["name"] == "ledger-fencegate-agent"]
            [(_, pod)] = pods(of_kind(manifests, "Deployment"))
            self.assertLessEqual(agents["selector"]["matchLabels"].items(), pod["metadata"]["labels"].items())
            ports = {port["name"] for container in containers(pod) for port in container.get("ports", [])}
            self.assertLessEqual({end["port"] for end in agents["podMetricsEndpoints"]}, ports)
        off = rendered("helm4", "consumer", "1.37", "--set", "fencegate.monitoring.agentPodMonitor.enabled=false")
        self.assertEqual(of_kind(off, "PodMonitor"), [])


class TheTable(unittest.TestCase):
    """Only an installation makes a table, and nothing deletes one."""

    def table_of(self, name, *more):
        manifests = rendered("helm4", name, "1.37", *more)
        return of_kind(manifests, "PersistentVolumeClaim"), of_kind(manifests, "Job")

    def test_an_installation_makes_the_claim_and_then_the_table_before_anything_else(self):
        [claim], [job] = self.table_of("default")
        self.assertEqual({m["metadata"]["annotations"]["helm.sh/hook"] for m in (claim, job)}, {"pre-install"})
        weights = [int(m["metadata"]["annotations"]["helm.sh/hook-weight"]) for m in (claim, job)]
        self.assertLess(*weights)
        [container] = job["spec"]["template"]["spec"]["containers"]
        self.assertEqual(container["command"] + container["args"],
                         ["/fencegate", "table", "init", "--config", "/dev/null"])
        self.assertEqual(container["env"], [{"name": "FENCEGATE__TABLE__PATH", "value": "/var/lib/fencegate/data"}])

    def test_no_upgrade_makes_one(self):
        for name in ("default", "gitops", "external", "everything"):
            _, jobs = self.table_of(name, "--is-upgrade")
            self.assertEqual(jobs, [], name)

    def test_no_rendering_for_gitops_makes_one(self):
        [claim], jobs = self.table_of("gitops")
        self.assertEqual(jobs, [])
        self.assertNotIn("helm.sh/hook", claim["metadata"]["annotations"])
        self.assertIn("Prune=false", claim["metadata"]["annotations"]["argocd.argoproj.io/sync-options"])

    def test_nothing_ever_deletes_the_claim(self):
        for name, manifests in everything():
            for claim in of_kind(manifests, "PersistentVolumeClaim"):
                notes = claim["metadata"]["annotations"]
                self.assertEqual(notes["helm.sh/resource-policy"], "keep", name)
                if "helm.sh/hook" in notes:
                    # The default is before-hook-creation.
                    self.assertEqual(notes["helm.sh/hook-delete-policy"], "hook-failed", name)
                    self.assertEqual(notes["argocd.argoproj.io/hook"], "Skip", name)

    def test_the_job_by_hand_is_no_hook_and_leaves_a_claim_of_yours_alone(self):
        claims, [job] = self.table_of("table-job")
        self.assertEqual(claims, [])
        # Argo CD would keep it as an object that is always there, and always failed.
        self.assertEqual(job["metadata"]["annotations"], {"argocd.argoproj.io/hook": "Skip"})
        [volume] = job["spec"]["template"]["spec"]["volumes"]
        self.assertEqual(volume["persistentVolumeClaim"], {"claimName": "fences"})

    def test_the_command_of_the_docs_renders_claim_and_job_and_nothing_else(self):
        for name, key in (("default", "table.init"), ("consumer", "fencegate.table.init")):
            for helm in tools.HELMS:
                asked = ("--set", f"{key}=job", "--show-only", "templates/table.yaml")
                manifests = rendered(helm, name, "1.37", *asked)
                self.assertEqual([manifest["kind"] for manifest in manifests], ["PersistentVolumeClaim", "Job"])
                for manifest in manifests:
                    self.assertNotIn("helm.sh/hook", manifest["metadata"]["annotations"])

    def test_the_job_and_the_pod_use_one_claim_in_one_place(self):
        for name, manifests in everything():
            places, users = set(), set()
            for _, pod in pods(manifests):
                spec = pod["spec"]
                for volume in spec.get("volumes", []):
                    if volume["name"] == "fencegate-table":
                        places.add(repr([spec.get(key) for key in ("nodeSelector", "tolerations", "affinity")]))
                        users.add(repr((volume, spec["securityContext"])))
            self.assertEqual((len(places), len(users)), (1, 1), name)

    def test_on_an_empty_dir_serve_makes_it_and_waits_its_bounds(self):
        manifests = rendered("helm4", "empty-dir", "1.37")
        self.assertEqual(self.table_of("empty-dir"), ([], []))
        self.assertIs(settings_of(manifests)["table"]["create"], True)
        self.assertNotIn("create", settings_of(rendered("helm4", "default", "1.37"))["table"])

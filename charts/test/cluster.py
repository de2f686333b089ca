"""A real kube-apiserver on etcd, for Helm to install on. There is no controller and no kubelet: what a Job does, the
tests say. It is 1.20, the newest that Debian has the source of, so what it does not know is taken out of the chart."""
import contextlib
import json
import re
import shutil
import socket
import ssl
import subprocess
import tempfile
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Callable, Iterator

from tools import CHART, HELMS, ROOT, run

SERVER = ROOT / "target/kubernetes/kube-apiserver"
TOKEN = "chart"
START_SECONDS = 60


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def chart_for(folder: Path, change: Callable[[str], str] = lambda text: text) -> Path:
    """The chart without what 1.20 does not know; `change` is for controls that break its table's templates."""
    copy = folder / "fencegate"
    shutil.copytree(CHART, copy)
    about = copy / "Chart.yaml"
    about.write_text(re.sub(r"(?m)^kubeVersion:.*\n", "", about.read_text()))
    table = copy / "templates/_table.tpl"
    old, count = re.subn(r"(?ms)^  podFailurePolicy:.*?(?=^  template:)", "", table.read_text())
    assert count == 1
    table.write_text(change(old))
    return copy


class Cluster:
    def __init__(self, folder: Path):
        self.folder, self.spaces = folder, 0
        self.trust = ssl.create_default_context()
        self.trust.check_hostname, self.trust.verify_mode = False, ssl.CERT_NONE
        self.running: list[subprocess.Popen[bytes]] = []

    def start(self, name: str, *arguments: Any) -> None:
        with (self.folder / f"{name}.log").open("wb") as log:
            self.running.append(subprocess.Popen(list(map(str, arguments)), stdout=log, stderr=log))

    def stop(self) -> None:
        for process in reversed(self.running):
            process.kill()
            process.wait()

    def up(self) -> None:
        client, peer, port = free_port(), free_port(), free_port()
        self.address = f"https://127.0.0.1:{port}"
        key = self.folder / "sa.key"
        made = run("openssl", "genpkey", "-algorithm", "RSA", "-out", key)
        assert made.returncode == 0, made.stderr
        public = run("openssl", "pkey", "-in", key, "-pubout")
        (self.folder / "sa.pub").write_text(public.stdout)
        (self.folder / "tokens").write_text(f'{TOKEN},admin,admin,"system:masters"\n')
        self.start("etcd", shutil.which("etcd"), "--data-dir", self.folder / "etcd",
                   "--listen-client-urls", f"http://127.0.0.1:{client}",
                   "--advertise-client-urls", f"http://127.0.0.1:{client}",
                   "--listen-peer-urls", f"http://127.0.0.1:{peer}")
        self.start("kube-apiserver", SERVER, f"--etcd-servers=http://127.0.0.1:{client}", f"--secure-port={port}",
                   "--bind-address=127.0.0.1", "--advertise-address=192.0.2.1", f"--cert-dir={self.folder}/certs",
                   f"--service-account-key-file={self.folder}/sa.pub", f"--service-account-signing-key-file={key}",
                   "--service-account-issuer=https://chart.test", "--authorization-mode=RBAC",
                   f"--token-auth-file={self.folder}/tokens",
                   "--disable-admission-plugins=ServiceAccount,StorageObjectInUseProtection")
        self.config = self.folder / "kubeconfig"
        self.config.write_text(json.dumps({
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{"name": "test", "cluster": {"server": self.address, "insecure-skip-tls-verify": True}}],
            "users": [{"name": "test", "user": {"token": TOKEN}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}]}))
        self.config.chmod(0o600)
        self.wait_until_ready()

    def wait_until_ready(self) -> None:
        end = time.monotonic() + START_SECONDS
        while True:
            with contextlib.suppress(OSError, urllib.error.HTTPError):
                self.call("GET", "/readyz")
                return
            if time.monotonic() > end or any(process.poll() is not None for process in self.running):
                logs = "\n".join(path.read_text()[-2000:] for path in self.folder.glob("*.log"))
                raise AssertionError(f"the API server did not start:\n{logs}")
            time.sleep(0.1)

    def open(self, method: str, path: str, body: Any = None, kind: str = "application/json"):
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": kind}
        request = urllib.request.Request(self.address + path, data, headers, method=method)
        return urllib.request.urlopen(request, context=self.trust, timeout=START_SECONDS)

    def call(self, *arguments: Any) -> bytes:
        with self.open(*arguments) as answer:
            return answer.read()

    def namespace(self) -> str:
        self.spaces += 1
        name = f"space-{self.spaces}"
        self.call("POST", "/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        return name

    def listed(self, path: str) -> dict[str, Any]:
        return {item["metadata"]["name"]: item for item in json.loads(self.call("GET", path))["items"]}

    def helm(self, helm: str, space: str, *arguments: Any) -> subprocess.CompletedProcess[str]:
        return run(HELMS[helm], "--kubeconfig", self.config, "--namespace", space, *arguments)

    @contextlib.contextmanager
    def jobs_end(self, space: str, how: str, seen: Callable[[], None] = lambda: None) -> Iterator[list[str]]:
        """While this lasts, every Job ends as said (`Complete`, `Failed`) as soon as it is there. Lists their uids."""
        path = f"/apis/batch/v1/namespaces/{space}/jobs"
        ended: list[str] = []

        def end_them(stream) -> None:
            with contextlib.suppress(OSError, ValueError, AttributeError):
                for line in stream:
                    event = json.loads(line)
                    if event["type"] == "ADDED":
                        seen()
                        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
                        condition = {"type": how, "status": "True", "lastProbeTime": now, "lastTransitionTime": now}
                        job = event["object"]["metadata"]
                        ended.append(job["uid"])
                        self.call("PATCH", f"{path}/{job['name']}/status", {"status": {"conditions": [condition]}},
                                  "application/merge-patch+json")

        stream = self.open("GET", f"{path}?watch=1&timeoutSeconds={START_SECONDS}")
        thread = threading.Thread(target=end_them, args=(stream,), daemon=True)
        thread.start()
        try:
            yield ended
        finally:
            # The reader holds the stream's lock, so it is the socket that is ended.
            with contextlib.suppress(OSError, AttributeError):
                stream.fp.raw._sock.shutdown(socket.SHUT_RDWR)
            thread.join(START_SECONDS)


@contextlib.contextmanager
def cluster() -> Iterator[Cluster]:
    with tempfile.TemporaryDirectory(prefix="fencegate-chart-") as folder:
        made = Cluster(Path(folder))
        try:
            made.up()
            yield made
        finally:
            made.stop()

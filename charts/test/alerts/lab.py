"""A real gate before a small store, an agent beside it, and a Prometheus that scrapes both: started on free ports, in a
folder of their own, and ended with the test."""
import ctypes
import http.client
import http.server
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
BINARY = Path(os.environ.get("FENCEGATE_BINARY", ROOT / "target/debug/fencegate"))
PATIENCE_S = 30
PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None, use_errno=True)

GATE = """\
[gate]
listen = "127.0.0.1:0"
workers = 1
tls_cert_file = "{folder}/cert.pem"
tls_key_file = "{folder}/key.pem"
[store]
url = "http://127.0.0.1:{store}"
delivery_bound_ms = 0
apply_bound_ms = 100
[api]
listen = "127.0.0.1:0"
[ops]
listen = "127.0.0.1:0"
[table]
path = "{folder}/data"
[kubernetes]
url = "http://127.0.0.1:{closed}"
[[route]]
name = "elected"
match = "/elected/{{rest...}}"
object = "elected"
lease_source = "kubernetes"
kubernetes = {{ namespace = "leaders", name = "elected" }}
[[route]]
name = "users"
match = "/{{object}}/{{rest...}}"
object = "{{object}}"
"""

AGENT = """\
[agent]
listen = "127.0.0.1:0"
[gate]
url = "https://127.0.0.1:{gate}"
api = "http://127.0.0.1:{api}"
tls_ca_file = "{folder}/cert.pem"
tls_server_name = "gate.test"
[lease]
holder_id = "agent"
[status]
listen = "127.0.0.1:0"
"""

PROMETHEUS = """\
global: {{scrape_interval: 500ms, evaluation_interval: 500ms}}
rule_files: ['{rules}']
scrape_configs:
  - job_name: gate
    static_configs: [{{targets: ['127.0.0.1:{ops}'], labels: {{namespace: prod, pod: store-0}}}}]
  - job_name: agent
    static_configs: [{{targets: ['127.0.0.1:{status}'], labels: {{namespace: prod, pod: app-0}}}}]
"""


class Failed(Exception):
    """The lab itself does not work; the text says why."""


def until(what, is_so):
    """Waits for something that can only be looked at; returns what it was."""
    deadline = time.monotonic() + PATIENCE_S
    while not (found := is_so()):
        if time.monotonic() > deadline:
            raise Failed(f"in vain: {what}")
        time.sleep(0.02)
    return found


class Store(http.server.ThreadingHTTPServer):
    """Takes every write. `x-store: hold` is answered once `go` is set; `x-store: hang-up` never is."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Answers)
        self.go, self.held = threading.Event(), threading.Event()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def handle_error(self, request, client_address):
        """A gate that ends resets its connections."""


class Answers(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self):
        self.rfile.read(int(self.headers.get("content-length", 0)))
        wish = self.headers.get("x-store")
        if wish == "hang-up":
            self.close_connection = True
            return
        if wish == "hold":
            self.server.held.set()
            self.server.go.wait(PATIENCE_S)
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    do_GET = do_PUT = do_POST = do_DELETE = do_PATCH = answer

    def log_message(self, *_):
        pass


class Lab:
    """Everything, from `with` to its end."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.started: list[subprocess.Popen] = []
        self.store = Store()
        # A port that is bound, and where no server listens: the API server is away.
        self.closed = socket.socket()
        self.closed.bind(("127.0.0.1", 0))

    def __enter__(self) -> "Lab":
        try:
            self.begin()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self.store.go.set()
        for process in reversed(self.started):
            process.kill()
            process.wait()
        self.store.shutdown()
        self.store.server_close()
        self.closed.close()

    def begin(self):
        if not BINARY.exists():
            raise Failed(f"{BINARY} is not there; run: make build")
        make_certificate(self.folder)
        config = self.write("gate.toml", GATE, store=self.store.server_port, closed=self.closed.getsockname()[1])
        self.run("table", "init", "--config", config)
        ready = self.start("gate", BINARY, "serve", "--config", config)
        self.gate, self.api, self.ops = (port_of(ready, name) for name in ("gate", "api", "ops"))
        self.gate_process = self.started[-1]
        config = self.write("agent.toml", AGENT, gate=self.gate, api=self.api)
        ready = self.start("agent", BINARY, "agent", "--config", config)
        self.agent, self.status = port_of(ready, "agent"), port_of(ready, "status")

    def write(self, name: str, text: str, **more) -> Path:
        path = self.folder / name
        path.write_text(text.format(folder=self.folder, **more))
        return path

    def run(self, *arguments):
        command = [BINARY, *arguments]
        done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=PATIENCE_S)
        if done.returncode != 0:
            raise Failed(f"fencegate {arguments[0]}: {done.stderr}")

    def start(self, name: str, *command, ready: str = r"^ready .*") -> str:
        """Starts a process; returns its line that says it is ready, on either of its outputs."""
        log = self.folder / f"{name}.log"
        with open(log, "wb") as outputs:
            process = subprocess.Popen(command, env=environment(), stdin=subprocess.DEVNULL, stdout=outputs,
                                       stderr=subprocess.STDOUT, preexec_fn=die_with_parent)
        self.started.append(process)
        until(f"the {name} is ready", lambda: process.poll() is not None or re.search(ready, log.read_text(), re.M))
        if process.poll() is not None:
            raise Failed(f"the {name} does not start: {log.read_text()}")
        return re.search(ready, log.read_text(), re.M)[0]

    def call(self, method: str, path: str, port: int | None = None, headers: dict | None = None, body=b"value"):
        """A request to the gate over TLS, or in plain to another port: status, and the code of a refusal."""
        if port:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
        else:
            trust = ssl.create_default_context(cafile=self.folder / "cert.pem")
            connection = http.client.HTTPSConnection("gate.test", self.gate, timeout=PATIENCE_S, context=trust)
            connection._create_connection = lambda address, *more: socket.create_connection(("127.0.0.1", address[1]))
        connection.request(method, path, body if method != "GET" else None, headers or {})
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        return answer.status, answer.headers.get("fence-error"), text

    def ask(self, path: str, body: dict) -> dict:
        """A call of the lease api."""
        headers = {"content-type": "application/json"}
        status, _, text = self.call("POST", path, self.api, headers, json.dumps(body).encode())
        return json.loads(text) | {"status": status}

    def scrape(self, port: int) -> str:
        return self.call("GET", "/metrics", port)[2].decode()

    def prometheus(self, rules: Path) -> "Prometheus":
        """A Prometheus that scrapes gate and agent, and goes by the rules."""
        config = self.write("prometheus.yaml", PROMETHEUS, rules=rules, ops=self.ops, status=self.status)
        ready = self.start(
            "prometheus", "prometheus", f"--config.file={config}", f"--storage.tsdb.path={self.folder}/tsdb",
            "--web.listen-address=127.0.0.1:0", ready=r'msg="Listening on" address=127\.0\.0\.1:\d+$',
        )
        return Prometheus(int(ready.strip().rpartition(":")[2]))


class Prometheus:
    def __init__(self, port: int):
        self.address = f"http://127.0.0.1:{port}"

    def get(self, path: str, **parameters) -> dict:
        query = urllib.parse.urlencode(parameters)
        try:
            with urllib.request.urlopen(f"{self.address}{path}?{query}", timeout=PATIENCE_S) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as refused:
            if refused.code == http.HTTPStatus.SERVICE_UNAVAILABLE:
                return {}
            raise Failed(refused.read().decode()) from None

    def query(self, expression: str) -> list[dict]:
        return self.get("/api/v1/query", query=expression).get("result", [])


def traffic(lab: Lab):
    """Something of everything that a gate counts: grants, writes, refusals, a drain, an unknown outcome, a reload."""
    def wanted(object_id, holder):
        return {"object_id": object_id, "holder_id": holder, "ttl_ms": 60_000}

    users = lab.ask("/v1/leases", wanted("users", "a"))
    token = {"Fence-Token": users["fence_token"]}
    for method in ("PUT", "POST", "PATCH", "DELETE"):
        expect(lab.call(method, "/users/1", headers=token), 200)
    expect(lab.call("GET", "/users/1"), 200)
    for _ in range(2):
        expect(lab.call("PUT", "/users/2", headers=token | {"Idempotency-Key": '"once"'}), 200)
    expect(lab.call("PUT", "/users/1"), 428, "WRITE_UNFENCED")
    expect(lab.call("PUT", "/orders/1", headers=token), 409, "LEASE_OBJECT_MISMATCH")
    if lab.ask("/v1/leases", wanted("users", "b"))["code"] != "LEASE_HELD":
        raise Failed("two holders of one lease")
    expect(lab.call("PUT", "/users/1", headers=token | {"x-store": "hang-up"}), 504, "OUTCOME_UNKNOWN")
    leader = {"Fence-Token": "k8s.5d1d2f6e-8f3b-4b2f-9a3e-0c5a1f2b3c4d.1"}
    expect(lab.call("PUT", "/elected/1", headers=leader), 503, "LEASE_SOURCE_UNAVAILABLE")
    # A write on its way holds the handover up.
    slow = threading.Thread(target=lab.call, args=("PUT", "/users/3"), kwargs={"headers": token | {"x-store": "hold"}})
    slow.start()
    lab.store.held.wait(PATIENCE_S)
    revoking = threading.Thread(target=lab.ask, args=("/v1/objects/users/revoke", {"reason": "a test"}))
    revoking.start()
    until("the handover waits", lambda: "fencegate_advances_draining 1\n" in lab.scrape(lab.ops))
    lab.store.go.set()
    slow.join()
    revoking.join()
    expect(lab.call("PUT", "/users/1", headers=token), 412, "WRITE_STALE_FENCE")
    renewal = {"fence_token": users["fence_token"], "holder_id": "a", "ttl_ms": 60_000}
    if lab.ask(f"/v1/leases/{users['lease_id']}/renew", renewal)["code"] != "LEASE_FENCED":
        raise Failed("a fenced lease was renewed")
    for method in ("PUT", "GET"):
        expect(lab.call(method, "/agents/1", lab.agent), 200)
    lab.gate_process.send_signal(signal.SIGHUP)
    until("the reload", lambda: 'fencegate_reloads_total{result="applied"} 1\n' in lab.scrape(lab.ops))
    # A worker adds up what it has counted once per tick.
    until("the counts", lambda: 'fencegate_store_response_seconds_count{kind="read"} 2\n' in lab.scrape(lab.ops))


def expect(answer, status: int, code: str | None = None):
    if answer[:2] != (status, code):
        raise Failed(f"{status} {code} was expected, and came: {answer}")


def make_certificate(folder: Path):
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", folder / "key.pem"]
    about = ["-subj", "/CN=gate.test", "-addext", "subjectAltName=DNS:gate.test", "-days", "90"]
    # An agent trusts it as it is; one that may sign others could not be shown.
    about += ["-addext", "basicConstraints=critical,CA:FALSE", "-out", folder / "cert.pem"]
    done = subprocess.run(["openssl", "req", "-x509", *key, *about], capture_output=True, text=True)
    if done.returncode != 0:
        raise Failed(f"openssl: {done.stderr}")


def environment() -> dict:
    """This process's environment, without what would change the settings of what is started."""
    return {key: value for key, value in os.environ.items() if not key.startswith("FENCEGATE")}


def port_of(ready: str, name: str) -> int:
    return int(re.search(rf"{name}=\S+:(\d+)", ready)[1])


def die_with_parent():
    """Nothing that was started stays behind when a test is killed."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)

"""The proxies that are compared. A further one is a class with `name`, `version` and `start`, in PEERS.

`start` leaves the peer's port in `self.port`. `check` may add what must be true of this peer alone. What `names`
lists is what its CPU is counted of. Each is as its makers advise for speed: connections kept to both sides, no access
log, one worker.
"""
import re
from pathlib import Path

import http1
import nginx
from gate import OBJECT, Gate
from processes import Failed, free_port

HERE = Path(__file__).resolve().parent
BODY = b"x" * 256


class Peer:
    name = ""
    version = []  # the command that prints it; only the program where it has none
    token = None  # for the one that hands it out

    def __init__(self, options):
        self.options = options
        self.port = None

    @property
    def names(self):
        return [self.name]

    def start(self, processes, store_port, core):
        raise NotImplementedError

    def prepare(self, token):
        """Whatever needs the token, which is there once all have started."""

    def check(self, store, token):
        """Raises Failed where this peer does not do what it is compared for."""


class Fencegate(Peer):
    """Every write judged: the token's lease is looked up and must be the object's present one."""

    name = "fencegate"

    def __init__(self, options):
        super().__init__(options)
        self.version = [options.fencegate, "--version"]
        self.gate = None

    def start(self, processes, store_port, core):
        self.gate = Gate(processes, self.options.fencegate, self.name, store_port=store_port).start(core)
        self.port = self.gate.port
        self.token = self.gate.acquire()

    def check(self, store, token):
        """It really gates: without a token nothing reaches the store, and the token stays here."""
        before = store.count()
        status, headers, _ = http1.once(self.port, "PUT", f"/{OBJECT}/echo", body=BODY)
        code = headers.get("Fence-Error")
        if (status, code) != (428, "WRITE_UNFENCED"):
            raise Failed(f"fencegate answered a write without a token with {status} {code}, not 428 WRITE_UNFENCED")
        if store.count() != before:
            raise Failed("fencegate let a write without a token through to the store")
        status, _, body = http1.once(self.port, "PUT", f"/{OBJECT}/echo", {"Fence-Token": token}, BODY)
        if status != 200 or not re.fullmatch(rb"PUT 256 seq=\d+ token=\n", body):
            raise Failed(f"fencegate: a write with the token came back as {status} {body!r}")


class FencegateOff(Peer):
    """The same program, but its route does not look at tokens."""

    name = "fencegate-off"
    ROUTE = '[[route]]\nname = "all"\nmatch = "/{object}/{rest...}"\nobject = "{object}"\nmode = "off"\n'

    def __init__(self, options):
        super().__init__(options)
        self.version = [options.fencegate, "--version"]

    def start(self, processes, store_port, core):
        self.port = Gate(processes, self.options.fencegate, self.name, store_port=store_port,
                         settings=self.ROUTE).start(core).port

    def check(self, store, token):
        status, _, body = http1.once(self.port, "PUT", f"/{OBJECT}/echo", body=BODY)
        if status != 200 or not body.startswith(b"PUT 256 seq= "):
            raise Failed(f"fencegate-off: a write without a token came back as {status} {body!r}")


class Nginx(Peer):
    name = "nginx"
    version = ["nginx", "-v"]

    def start(self, processes, store_port, core):
        self.port = free_port()
        nginx.start(processes, self.name, core, self.port, nginx.proxy(self.port, store_port))


class Haproxy(Peer):
    name = "haproxy"
    version = ["haproxy", "-v"]

    CONFIG = """\
global
    nbthread 1
    maxconn 4096
defaults
    mode http
    timeout connect 5s
    timeout client 60s
    timeout server 60s
    http-reuse always
frontend clients
    bind 127.0.0.1:{port}
    default_backend store
backend store
    server store 127.0.0.1:{store_port}
"""

    def start(self, processes, store_port, core):
        self.port = free_port()
        config = processes.folder / "haproxy.cfg"
        config.write_text(self.CONFIG.format(store_port=store_port, port=self.port))
        processes.start(self.name, core, ["haproxy", "-db", "-f", config])
        processes.wait_for_port(self.name, self.port)


class Envoy(Peer):
    name = "envoy"
    PROGRAM = HERE.parent / "target/bench/envoy/envoy/_bin/envoy"  # scripts/setup puts it there
    version = [PROGRAM, "--version"]

    # No timeout of routes, no retries, no statistics beyond Envoy's own.
    CONFIG = """\
static_resources:
  listeners:
  - address: {{socket_address: {{address: 127.0.0.1, port_value: {port}}}}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: clients
          codec_type: HTTP1
          generate_request_id: false
          route_config:
            virtual_hosts:
            - name: all
              domains: ["*"]
              routes:
              - match: {{prefix: "/"}}
                route: {{cluster: store, timeout: 0s}}
          http_filters:
          - name: envoy.filters.http.router
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router
              suppress_envoy_headers: true
  clusters:
  - name: store
    type: STATIC
    load_assignment:
      cluster_name: store
      endpoints:
      - lb_endpoints:
        - endpoint: {{address: {{socket_address: {{address: 127.0.0.1, port_value: {store_port}}}}}}}
"""

    def start(self, processes, store_port, core):
        self.port = free_port()
        config = processes.folder / "envoy.yaml"
        config.write_text(self.CONFIG.format(store_port=store_port, port=self.port))
        processes.start(self.name, core, [self.PROGRAM, "-c", config, "--concurrency", 1, "-l", "error",
                                          "--disable-hot-restart"])
        processes.wait_for_port(self.name, self.port)


class Bare(Peer):
    """The least that a proxy on hyper can do: no check, no metrics (bench/bare.rs)."""

    name = "bare"

    def __init__(self, options):
        super().__init__(options)
        self.version = [options.bare]  # of this tree, so it has none of its own

    def start(self, processes, store_port, core):
        processes.start(self.name, core, [self.options.bare, "--listen", "127.0.0.1:0",
                                          "--store", f"127.0.0.1:{store_port}"])
        out = processes.folder / f"{self.name}.out"
        found = processes.wait_until(self.name, lambda: re.search(r"^ready (\d+)\n", out.read_text(), re.MULTILINE))
        self.port = int(found[1])


class LuaRedis(Peer):
    """What people build by hand: nginx asks Redis for the present token before it passes a write on.

    Redis is on the proxy's core, and its CPU counts: both are what the gate would be in their place.
    """

    name = "nginx+lua+redis"
    version = ["redis-server", "--version"]
    REDIS = "redis"

    ACCESS = """
            access_by_lua_block {{
                local method = ngx.req.get_method()
                if method == "GET" or method == "HEAD" then return end
                local given = ngx.var.http_fence_token
                if not given then return ngx.exit(428) end
                local redis = require("nginx.redis"):new()
                redis:set_timeout(5000)
                local connected = redis:connect("127.0.0.1", {redis_port})
                if not connected then return ngx.exit(503) end
                local present, problem = redis:get("fence:" .. ngx.var.uri:match("^/([^/]+)"))
                if problem then return ngx.exit(503) end
                redis:set_keepalive(3600000, 256)
                if present ~= given then return ngx.exit(412) end
            }}
"""

    @property
    def names(self):
        return [self.name, self.REDIS]

    def start(self, processes, store_port, core):
        self.port, self.redis_port = free_port(), free_port()
        processes.start(self.REDIS, core, ["redis-server", "--port", self.redis_port, "--bind", "127.0.0.1",
                                           "--save", "", "--appendonly", "no", "--dir", processes.folder])
        processes.wait_for_port(self.REDIS, self.redis_port)
        nginx.start(processes, self.name, core, self.port,
                    'lua_package_path "/usr/share/lua/5.1/?.lua;;";\n' +
                    nginx.proxy(self.port, store_port, location=self.ACCESS.format(redis_port=self.redis_port)),
                    modules=["ndk_http_module", "ngx_http_lua_module"])

    def prepare(self, token):
        with http1.connect(self.redis_port) as redis:
            redis.sendall(f"SET fence:{OBJECT} {token}\r\n".encode())
            said = redis.recv(100)
        if said != b"+OK\r\n":
            raise Failed(f"Redis did not take the token: {said!r}")

    def check(self, store, token):
        """It really compares: another token, or none, does not get to the store."""
        before = store.count()
        for headers, wanted in (({"Fence-Token": token + "x"}, 412), ({}, 428)):
            status, _, _ = http1.once(self.port, "PUT", f"/{OBJECT}/1", headers, BODY)
            if status != wanted:
                raise Failed(f"{self.name} answered {status}, not {wanted}, to a write with {headers}")
        if store.count() != before:
            raise Failed(f"{self.name} let a write with a wrong token through to the store")


# The first is the one that is compared with each of the others.
PEERS = [Fencegate, Nginx, Haproxy, Envoy, Bare, LuaRedis, FencegateOff]

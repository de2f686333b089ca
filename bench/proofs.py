"""Proofs of who calls, for bench/access: certificates, signed tokens, and an API server that reviews tokens."""
import base64
import json
import ssl
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from processes import run_to_end

CLIENT = "client.bench"
ACCOUNT = "system:serviceaccount:bench:writer"
ISSUER = "https://issuer.bench"
LIFE_S = 3_600
LIMIT_S = 30
EC = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]


def openssl(core, *arguments):
    return run_to_end(core, ["openssl", *arguments], LIMIT_S)


def make_certificates(folder, core):
    """An authority (`ca.crt`), a gate's certificate for loopback (`api.crt`), and a caller's (`client.crt`)."""
    openssl(core, "req", "-x509", *EC, "-days", "2", "-subj", "/CN=bench authority", "-keyout", folder / "ca.key",
            "-out", folder / "ca.crt")
    for name, alternative in (("api", "IP:127.0.0.1"), ("client", f"DNS:{CLIENT}")):
        openssl(core, "req", *EC, "-subj", f"/CN={name}", "-keyout", folder / f"{name}.key", "-out",
                folder / f"{name}.csr")
        extensions = folder / f"{name}.ext"
        extensions.write_text(f"subjectAltName = {alternative}\nbasicConstraints = critical, CA:false\n")
        openssl(core, "x509", "-req", "-in", folder / f"{name}.csr", "-CA", folder / "ca.crt", "-CAkey",
                folder / "ca.key", "-set_serial", "2" if name == "api" else "3", "-days", "2", "-extfile", extensions,
                "-out", folder / f"{name}.crt")


def contexts(folder):
    """TLS without a client certificate, and with one."""
    anyone, known = (ssl.create_default_context(cafile=str(folder / "ca.crt")) for _ in range(2))
    known.load_cert_chain(folder / "client.crt", folder / "client.key")
    return anyone, known


def plain(data):
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def signed(core, folder, claims):
    """A JWT by RS256, and its key in `jwks.json`."""
    key, message, signature = folder / "jwt.key", folder / "jwt.message", folder / "jwt.signature"
    if not key.exists():
        openssl(core, "genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048", "-out", key)
        modulus = bytes.fromhex(openssl(core, "rsa", "-in", key, "-noout", "-modulus").strip().partition("=")[2])
        public = {"kty": "RSA", "use": "sig", "alg": "RS256", "kid": "bench", "n": plain(modulus), "e": "AQAB"}
        (folder / "jwks.json").write_text(json.dumps({"keys": [public]}))
    parts = [{"alg": "RS256", "kid": "bench", "typ": "JWT"}, claims]
    text = ".".join(plain(json.dumps(part).encode()) for part in parts)
    message.write_text(text)
    openssl(core, "dgst", "-sha256", "-sign", key, "-out", signature, message)
    return f"{text}.{plain(signature.read_bytes())}"


def times():
    now = int(time.time())
    return {"iat": now - 5, "nbf": now - 5, "exp": now + LIFE_S}


def signed_token(core, folder):
    """An OIDC issuer's token for the principal `bench`."""
    return signed(core, folder, {"iss": ISSUER, "aud": "fencegate", "sub": "bench"} | times())


def projected_token(core, folder):
    """A token as a pod has it."""
    pod = {"namespace": "bench", "serviceaccount": {"name": "writer", "uid": "1"}, "pod": {"name": "w-0", "uid": "2"}}
    return signed(core, folder, {"iss": "https://kubernetes.bench", "aud": ["fencegate"], "sub": ACCOUNT,
                                 "kubernetes.io": pod} | times())


class Reviews:
    """An API server that takes every token for the same ServiceAccount's."""

    def __init__(self):
        reviews = self
        self.count = 0

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                reviews.count += 1
                user = {"username": ACCOUNT, "uid": "1", "groups": ["system:serviceaccounts",
                        "system:serviceaccounts:bench", "system:authenticated"],
                        "extra": {"authentication.kubernetes.io/pod-name": ["w-0"],
                                  "authentication.kubernetes.io/pod-uid": ["2"]}}
                review["status"] = {"authenticated": True, "user": user,
                                    "audiences": review["spec"].get("audiences", [])}
                body = json.dumps(review).encode()
                self.send_response(201)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()

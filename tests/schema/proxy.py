"""A proxy before a gate that changes one answer, for the controls."""
import http.client
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

# The call whose answer is changed, and no other.
CALL = ("GET", "/v1/routes")
HOP = {"connection", "transfer-encoding", "content-length", "keep-alive", "date"}


def server_error(status, headers, body):
    return 500, {"Content-Type": "application/problem+json"}, b'{"title": "broken"}'


def undescribed(status, headers, body):
    return 206, headers, body


def other_body(status, headers, body):
    return status, headers, b'{"routes": "none"}'


def other_type(status, headers, body):
    return status, headers | {"content-type": "text/plain"}, body


def let_in(status, headers, body):
    return 200, {"Content-Type": "application/json"}, b'{"routes": []}'


def unasked(status, headers, body):
    return status, {name: value for name, value in headers.items() if name != "www-authenticate"}, body


class Proxy:
    """Passes calls on to a gate until the `with` block ends. `change`: what becomes of the answer, or None."""

    def __init__(self, url, trusts, change):
        parts = urlsplit(url)

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def pass_on(self):
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                if parts.scheme == "https":
                    gate = http.client.HTTPSConnection(parts.hostname, parts.port, timeout=10, context=trusts)
                else:
                    gate = http.client.HTTPConnection(parts.hostname, parts.port, timeout=10)
                sent = {name: value for name, value in self.headers.items() if name.lower() not in HOP | {"host"}}
                gate.request(self.command, self.path, body=body or None, headers=sent)
                answer = gate.getresponse()
                status, headers = answer.status, {name.lower(): value for name, value in answer.getheaders()}
                body = answer.read()
                gate.close()
                if change and (self.command, self.path.partition("?")[0]) == CALL:
                    status, headers, body = change(status, headers, body)
                self.send_response_only(status)
                for name, value in headers.items():
                    if name.lower() not in HOP:
                        self.send_header(name, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = do_HEAD = do_OPTIONS = do_TRACE = do_QUERY = pass_on

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

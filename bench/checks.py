"""What must be true before figures mean anything, and still after them."""
import http1
from gate import OBJECT
from processes import Failed
from store import ANSWER

BODY = b"x" * 256


def check_all(peers, store, token):
    for peer in peers:
        check_answers(peer, token)
        peer.check(store, token)


def check_answers(peer, token):
    """Several requests on one connection come back right: bodies are read, connections are kept."""
    with http1.connect(peer.port) as connection:
        for method, path, body in [
            ("PUT", f"/{OBJECT}/1", BODY),
            ("GET", f"/{OBJECT}/1", b""),
            ("PUT", f"/{OBJECT}/1", BODY),
        ]:
            status, _, said = http1.exchange(connection, method, path, {"Fence-Token": token}, body)
            if (status, said) != (200, ANSWER):
                raise Failed(f"{peer.name}: {method} {path} came back as {status} {said!r}")
    status, _, said = http1.once(peer.port, "PUT", f"/{OBJECT}/echo", {"Fence-Token": token}, BODY)
    if status != 200 or not said.startswith(b"PUT 256 "):
        raise Failed(f"{peer.name}: the store did not see the whole PUT: {status} {said!r}")

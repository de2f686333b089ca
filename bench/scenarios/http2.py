"""HTTP/2 from the client, 100 streams on one connection, to the same store: the gate against nginx."""
import load
import nginx
from processes import free_port
from rounds import interleaved, say

STREAMS = 100
TRIAL = 10_000


class NginxHttp2:
    name = "nginx-http2"

    def __init__(self, rounds):
        self.port = free_port()
        nginx.start(rounds.processes, self.name, rounds.proxy_core, self.port,
                    nginx.proxy(self.port, rounds.store.port, listen=" http2"))


def run(rounds, fencegate, token):
    count, seconds = rounds.plan.http2
    body = rounds.processes.folder / "body-256"
    body.write_bytes(b"x" * 256)
    peers = [fencegate, NginxHttp2(rounds)]

    def put(peer, requests):
        return rounds.measured(peer, lambda core: load.http2(core, peer.port, requests, STREAMS, token, body))

    # As many for both, so that neither has more time to warm up.
    requests = int(min(put(peer, TRIAL)["req_s"] for peer in peers) * seconds)
    for number, peer in interleaved(peers, count):
        counted = rounds.keep("http2", number, peer.name, put(peer, requests) | {"streams": STREAMS})
        say(f"HTTP/2, round {number + 1} of {count}: {peer.name}: {counted['req_s']:.0f} requests/s, "
            f"{counted['cpu_us']:.1f} us CPU per request, core {counted['busy']:.0%} busy")
    rounds.processes.stop(peers[1].name)

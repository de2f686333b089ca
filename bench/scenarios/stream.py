"""One long body, streamed: the gate against nginx without request buffering, and that the gate's memory stays flat."""
import re
import sys
import threading
from pathlib import Path

import nginx
from gate import OBJECT, Gate
from processes import family, free_port, process_rss_kib, run_to_end
from rounds import interleaved, say

HERE = Path(__file__).resolve().parent.parent
SAMPLE_S = 0.02
LIMIT_S = 120


class Plain:
    def __init__(self, name, port, token="none"):
        self.name, self.port, self.token = name, port, token


def run(rounds):
    processes = rounds.processes
    sink = start_sink(rounds)
    gate = Gate(processes, rounds.options.fencegate, "stream-fencegate", store_port=sink).start(rounds.proxy_core)
    gate.token = gate.acquire(OBJECT)
    port = free_port()
    nginx.start(processes, "stream-nginx", rounds.proxy_core, port, nginx.proxy(
        port, sink, server="client_max_body_size 0;", location="proxy_request_buffering off;\nclient_body_buffer_size 128k;"))
    peers = [gate, Plain("stream-nginx", port), Plain("stream-direct", sink)]
    for peer in peers:
        streamed(rounds, peer, 64 << 20)
    count = rounds.plan.stream_rounds
    for number, peer in interleaved(peers, count):
        kept = rounds.keep("stream", number, peer.name, streamed(rounds, peer, rounds.plan.stream_bytes))
        say(f"stream, round {number + 1} of {count}: {peer.name}: {kept['gib_s']:.2f} GiB/s, "
            f"memory grew by {kept['rss_growth_kib']} KiB")
    gate.stop()
    for name in ("stream-nginx", "sink"):
        processes.stop(name)


def start_sink(rounds):
    rounds.processes.start("sink", rounds.load_core, [sys.executable, HERE / "sink.py"])
    out = rounds.processes.folder / "sink.out"
    return int(rounds.processes.wait_until("sink", lambda: re.search(r"^ready (\d+)\n", out.read_text()))[1])


def streamed(rounds, peer, size):
    """The stream's speed, and by how much the peer's memory grew at most while it went on."""
    running = rounds.processes.running.get(peer.name)
    watch = Watch(family(running.pid) if running else [])
    with watch:
        begun = rounds.processes.cpu_ns(peer.name) if running else {}
        seconds = float(run_to_end(rounds.load_core, [sys.executable, HERE / "send.py", peer.port, size, peer.token],
                                   LIMIT_S))
        ended = rounds.processes.cpu_ns(peer.name) if running else {}
    used_ns = sum(ended.values()) - sum(begun.values())
    return {"bytes": size, "seconds": seconds, "gib_s": size / (1 << 30) / seconds,
            "cpu_ms_gib": used_ns / 1e6 / (size / (1 << 30)), "rss_growth_kib": watch.most - watch.first}


class Watch:
    """Looks at the memory of processes all the time."""

    def __init__(self, pids):
        self.pids, self.over = pids, threading.Event()
        self.first = self.most = self.look()

    def look(self):
        return sum(map(process_rss_kib, self.pids))

    def __enter__(self):
        self.thread = threading.Thread(target=self.go_on, daemon=True)
        self.thread.start()

    def go_on(self):
        while not self.over.wait(SAMPLE_S):
            self.most = max(self.most, self.look())

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()

"""Rounds: each peer in turn, the order moved on by one each time, so that a drift of the machine hits all alike.

Each round is checked against the store's own count and kept as one flat dict; ratios.py reads these.
"""
import resource
import time

import load
from gate import OBJECT
from processes import Failed, machine_cpu_s

# A store that has answered counts within this.
SETTLE_S = 0.1


class Rounds:
    """What the scenarios share: the processes, the store, the cores, and the rounds that are kept."""

    def __init__(self, processes, store, proxy_core, load_core, options, plan):
        self.processes, self.store, self.options, self.plan = processes, store, options, plan
        self.proxy_core, self.load_core = proxy_core, load_core
        self.both_cores = f"{proxy_core},{load_core}"
        self.kept = []

    def saturated(self, peer, seconds, token, **where):
        targets = load.write_targets(self.processes.folder / "flat.targets", [(f"/{OBJECT}/1", token)])
        return self.measured(peer, lambda core: load.flat_out(core, peer.port, seconds, targets), **where)

    def measured(self, peer, put, forwarded=True, core=None, store=None):
        """Runs a load; compares what it counted with what the store did; adds the CPU that the peer used."""
        names = getattr(peer, "names", [peer.name])
        store = store or self.store
        busy = Busy(self.processes)
        before, begun = store.count(), [self.processes.cpu_ns(name) for name in names]
        try:
            counted = put(core or self.load_core)
        except Failed as failed:
            raise Failed(f"{peer.name}: {failed}") from None
        ended = [self.processes.cpu_ns(name) for name in names]
        others = busy.others()
        time.sleep(SETTLE_S)
        stored = store.count() - before
        self.must_have_stored(peer.name, counted["requests"] if forwarded else 0, stored)
        used_ns = {name: used(name, *each) for name, *each in zip(names, begun, ended)}
        return counted | costs(counted, used_ns) | {"stored": stored, "others": others}

    @staticmethod
    def must_have_stored(name, forwarded, stored):
        if stored != forwarded:
            raise Failed(f"{name}: {forwarded} writes were answered as forwarded, but the store counted {stored}")

    def keep(self, kind, number, peer, values):
        self.kept.append({"kind": kind, "round": number, "peer": peer, **rounded(values)})
        return self.kept[-1]

    def of(self, kind):
        return [each for each in self.kept if each["kind"] == kind]


class Busy:
    """What the rest of the machine uses meanwhile, in cores: figures taken beside a compiler are worth little."""

    def __init__(self, processes):
        self.processes, self.begun = processes, time.monotonic()
        self.all, self.ours = machine_cpu_s(), self.our_cpu_s()

    def our_cpu_s(self):
        spent = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return self.processes.all_cpu_ns() / 1e9 + sum(each.ru_utime + each.ru_stime for each in spent)

    def others(self):
        ours, whole = self.our_cpu_s() - self.ours, machine_cpu_s() - self.all
        return max(0.0, (whole - ours) / (time.monotonic() - self.begun))


def costs(counted, used_ns):
    total = sum(used_ns.values())
    found = {
        "cpu_us": total / 1000 / counted["requests"],
        "req_s": counted["requests"] / counted["seconds"],
        "busy": total / 1e9 / counted["seconds"],
    }
    if len(used_ns) > 1:
        found |= {f"cpu_us_{name}": each / 1000 / counted["requests"] for name, each in used_ns.items()}
    return found


def rounded(values):
    """Six digits are more than any of it is worth, and keep the file readable."""
    return {name: float(f"{value:.6g}") if isinstance(value, float) else value for name, value in values.items()}


def interleaved(peers, count):
    for number in range(count):
        first = number % len(peers)
        for peer in peers[first:] + peers[:first]:
            yield number, peer


def used(name, begun, ended):
    if begun.keys() != ended.keys():
        raise Failed(f"{name}: its processes changed during a round: {sorted(begun)} became {sorted(ended)}")
    return sum(ended.values()) - sum(begun.values())


def say(text):
    print(f"bench: {text}", flush=True)

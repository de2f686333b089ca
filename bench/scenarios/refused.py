"""A refused write (stale token) against a forwarded one: CPU of the gate, flat out over 64 connections."""
import load
from gate import OBJECT
from processes import Failed
from rounds import interleaved, say

STALE_OBJECT = "stale"


def run(rounds, fencegate, token):
    count, seconds = rounds.plan.refused
    stale = fencegate.gate.acquire(STALE_OBJECT)
    fencegate.gate.revoke(STALE_OBJECT)
    folder = rounds.processes.folder
    ways = [
        ("forwarded", load.write_targets(folder / "good.targets", [(f"/{OBJECT}/1", token)]), load.FORWARDED),
        ("refused", load.write_targets(folder / "stale.targets", [(f"/{STALE_OBJECT}/1", stale)]), load.STALE),
    ]
    refusals = 'fencegate_refusals_total{code="WRITE_STALE_FENCE"}'
    for number, (name, targets, answer) in interleaved(ways, count):
        before = fencegate.gate.metric(refusals)
        counted = rounds.measured(
            fencegate, lambda core: load.flat_out(core, fencegate.port, seconds, targets, answer),
            forwarded=name == "forwarded")
        said = fencegate.gate.metric(refusals) - before
        if said != (counted["requests"] if name == "refused" else 0):
            raise Failed(f"{counted['requests']} writes were {name}, but the gate counts {said:.0f} refusals")
        rounds.keep("refused", number, name, counted)
        say(f"refusals, round {number + 1} of {count}: {name}: {counted['cpu_us']:.1f} us CPU per write")

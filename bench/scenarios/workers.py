"""Two workers against one: CPU of the gate per request.

There are two cores, so with two workers the gate shares both with the load and the store. For the two to differ in
nothing else, the gate with one worker may use both cores as well, and so may the store and the load in both. Only the
gate's own CPU counts, so who waits for whom shows in requests/s, not here.
"""
from gate import Gate
from rounds import interleaved, say
from store import Store


def run(rounds):
    count, seconds = rounds.plan.workers
    store = Store(rounds.processes, rounds.both_cores, "store-both")
    gates = []
    for workers in (1, 2):
        gate = Gate(rounds.processes, rounds.options.fencegate, f"workers-{workers}", store_port=store.port,
                    workers=workers).start(rounds.both_cores)
        gates.append(gate)
        gate.token = gate.acquire()
        rounds.saturated(gate, rounds.plan.warm_up_s, gate.token, store=store, core=rounds.both_cores)
    for number, gate in interleaved(gates, count):
        counted = rounds.saturated(gate, seconds, gate.token, store=store, core=rounds.both_cores)
        rounds.keep("workers", number, gate.name, counted)
        say(f"workers, round {number + 1} of {count}: {gate.name}: {counted['cpu_us']:.1f} us CPU per request, "
            f"{counted['req_s']:.0f} requests/s")
    for gate in gates:
        gate.stop()
    rounds.processes.stop(store.name)

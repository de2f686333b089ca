"""Many objects: what the start reads, what memory they take, what writes to them cost, and what a cold one costs.

A table of so many is filled once and kept in target/bench/; each run works on a copy, whose large files are links.
"""
import hashlib
import random
import shutil
import time
from pathlib import Path

import load
from gate import Gate
from processes import Failed, run_to_end
from rounds import interleaved, say

HERE = Path(__file__).resolve().parent.parent
KEPT = HERE.parent / "target/bench/tables"
FEW = 1_000
FILL_S = 900
# What the leases for the longest spread may take; without them it is left out.
LEASES_S = 90
# As in examples/fill.rs.
OBJECT = '"/tenants/{tenant}/objects/{n}"'
ROUTE = f'[[route]]\nname = "tenants"\nmatch = {OBJECT}\nobject = {OBJECT}\n'
# So few in memory that a write to one of very many hardly ever finds it there: the least that a gate keeps.
CACHE = 2_048
# A cold run must have read nearly as many rows as it wrote to objects, a warm one hardly any: two of its objects may
# push each other out.
READ_LEAST, READ_MOST = 0.95, 0.05
WARM = 64
WARM_UP_S = 0.2


def run(rounds):
    folder = rounds.processes.fresh_folder("objects", within=KEPT)
    try:
        start(rounds, FEW, folder / "few").stop()
        gate = start(rounds, rounds.plan.objects, folder / "many")
        names = spread_names(rounds.plan.objects, max(rounds.plan.in_use, *rounds.plan.spread_over))
        targets = in_use(rounds, gate, names[:rounds.plan.in_use])
        spread(rounds, gate, targets, names)
        gate.stop()
        cold(rounds, folder / "many", targets[:rounds.plan.in_use])
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def object_id(n):
    return f"/tenants/{n % 1_000}/objects/{n}"


def spread_names(objects, count):
    """So many of the table's objects, in no order; always the same."""
    return [object_id(n) for n in random.Random(1).sample(range(objects), count)]


def filled(rounds, objects):
    """The kept table of so many objects."""
    # One that another program filled may be laid out in another way.
    digest = hashlib.sha256(Path(rounds.options.fill).read_bytes()).hexdigest()[:12]
    kept = KEPT / f"{objects}-{digest}"
    if not kept.exists():
        for old in KEPT.glob(f"{objects}-*"):
            shutil.rmtree(old, ignore_errors=True)
        say(f"filling a table with {objects:,} objects; it is kept in {KEPT.relative_to(HERE.parent)}")
        making = KEPT / f"{objects}.making"
        shutil.rmtree(making, ignore_errors=True)
        run_to_end(rounds.both_cores, [rounds.options.fill, making, objects], FILL_S)
        making.rename(kept)
    return kept


def copy(source, to):
    """RocksDB never changes a table file, so these can be links; everything else is copied."""
    def one(source, to):
        if source.endswith(".sst"):
            Path(to).hardlink_to(source)
        else:
            shutil.copy2(source, to)

    shutil.copytree(source, to, copy_function=one)


def start(rounds, objects, folder):
    """A gate on a copy of the table of so many objects, and what it took to be ready."""
    copy(filled(rounds, objects), folder)
    gate = make(rounds, folder)
    # The first start moves what the filling left in the log; the second is what a restart costs.
    gate.start(rounds.proxy_core, make_table=False).stop()
    begun = time.monotonic()
    gate.start(rounds.proxy_core, make_table=False)
    kept = rounds.keep("known", 0, str(objects), {
        "objects": objects, "reads": gate.reads_at_start(), "ready_ms": (time.monotonic() - begun) * 1000,
        "rss_kib": rounds.processes.rss_kib(gate.name)})
    say(f"{objects:,} objects: ready after {kept['reads']} reads, {kept['ready_ms']:.0f} ms; "
        f"{kept['rss_kib'] / 1024:.0f} MiB")
    return gate


def make(rounds, folder, settings=""):
    return Gate(rounds.processes, rounds.options.fencegate, "objects", store_port=rounds.store.port, table=folder,
                settings=settings + ROUTE)


def in_use(rounds, gate, names):
    """Takes a lease of each and writes to each; returns (path, token) of each."""
    begun = time.monotonic()
    targets = list(zip(names, gate.acquire_many(names)))
    leases_s = time.monotonic() - begun
    say(f"took {len(names):,} leases in {leases_s:.1f} s")
    path = load.write_targets(rounds.processes.folder / "used.targets", targets)
    rounds.measured(gate, lambda core: load.each_once(core, gate.port, path))
    in_memory = gate.metric("fencegate_table_records_in_memory")
    kept = rounds.keep("in_use", 0, "fencegate", {
        "objects": rounds.plan.objects, "in_use": len(names), "in_memory": int(in_memory), "leases_s": leases_s,
        "rss_kib": rounds.processes.rss_kib(gate.name)})
    say(f"{kept['in_use']:,} of {kept['objects']:,} objects in use: {kept['rss_kib'] / 1024:.0f} MiB, "
        f"{kept['in_memory']:,} in memory")
    return targets


def spread(rounds, gate, targets, names):
    """CPU per write, with writes over more and more objects."""
    count, seconds = rounds.plan.spread
    more = names[len(targets):]
    targets = targets + list(zip(more, gate.acquire_many(more, LEASES_S)))
    files = []
    for over in rounds.plan.spread_over:
        if over > len(targets):
            say(f"writes over {over:,} objects are left out: only {len(targets):,} leases in {LEASES_S} s")
            continue
        path = rounds.processes.folder / f"{over}.targets"
        files.append((over, load.write_targets(path, targets[:over])))
    for number, (over, path) in interleaved(files, count):
        # A load that starts has the peer's first touch of what is long out of the processor's cache in it.
        rounds.measured(gate, lambda core: load.flat_out(core, gate.port, 0.2, path))
        kept = rounds.keep("spread", number, str(over), {"objects": over} | rounds.measured(
            gate, lambda core: load.flat_out(core, gate.port, seconds, path)))
        say(f"writes over {over:,} objects, round {number + 1} of {count}: {kept['cpu_us']:.1f} us CPU per write")


def read_all(folder):
    """So that the page cache has it."""
    for path in (each for each in folder.rglob("*") if each.is_file()):
        with open(path, "rb", buffering=0) as file:
            while file.read(1 << 20):
                pass


def cold(rounds, folder, targets):
    """Latency of a write to an object that is not in memory, against one that is; one connection, one by one."""
    count, seconds = rounds.plan.cold
    read_all(folder)
    gate = make(rounds, folder, f"cache_objects = {CACHE}\n").start(rounds.proxy_core, make_table=False)
    warm_up, *slices = sliced(rounds, targets, count + 1)
    warm = load.write_targets(rounds.processes.folder / "warm.targets", targets[:WARM])
    for number, name in interleaved(["cold", "warm"], count):
        path, first = (slices[number], warm_up) if name == "cold" else (warm, warm)
        # A warm-up that leaves none of the cold ones in memory.
        rounds.measured(gate, lambda core: load.flat_out(core, gate.port, WARM_UP_S, first, connections=1))
        before = gate.metric("fencegate_table_loads_total")
        counted = rounds.measured(gate, lambda core: load.flat_out(core, gate.port, seconds, path, connections=1))
        read = (gate.metric("fencegate_table_loads_total") - before) / counted["requests"]
        if (name == "cold" and read < READ_LEAST) or (name == "warm" and read > READ_MOST):
            raise Failed(f"of the writes to {name} objects, {read:.1%} had to read a row")
        rounds.keep("cold", number, name, counted | {"read_share": read})
        say(f"one by one, round {number + 1} of {count}: {name}: p50 {counted['p50_us']:.0f} us, "
            f"p99 {counted['p99_us']:.0f} us, {counted['cpu_us']:.1f} us CPU per write")
    gate.stop()


def sliced(rounds, targets, count):
    """As many files of targets, none with an object of another."""
    size = len(targets) // count
    return [load.write_targets(rounds.processes.folder / f"cold-{n}.targets", targets[n * size:(n + 1) * size])
            for n in range(count)]

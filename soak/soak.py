"""The driver of a soak run: all phases in turn, in a long run again and again, and the verdict."""
import json
import re
import sys
from pathlib import Path

import judge
import phases
from calls import Caller, now
from plan import VALID_PER_S
from rig import Failed, Rig

HOUR_MS = 3_600_000
LOAD_OBJECTS = 24
# What the judge wants of the store's log, which has several times as many other lines.
WRITTEN = re.compile('"event":"(applied|partial)"')
COLUMNS = [("phase", 24), ("writes", 7), ("p50_ms", 8), ("p99_ms", 9), ("rss_kib", 9), ("files", 6)]


class Run:
    def __init__(self, rig, plan):
        self.rig, self.plan = rig, plan
        self.calls, self.figures, self.samples = [], [], []
        self.ratios, self.flat_ratios = [], []
        self.stale = self.handovers = self.cycles = 0

    def note(self, call):
        self.calls.append(call)

    def prepare(self):
        """Leases, old ones of the valid writer's object among them, and the valid writer."""
        with Caller(self.rig.ports, self.note) as caller:
            def lease(name, holder="soak"):
                granted, answer = caller.acquire(name, holder, HOUR_MS)
                if granted is None:
                    raise Failed(f"no lease of {name}: {answer and answer.body}")
                return granted

            self.load_leases = [lease(f"load-{n}") for n in range(LOAD_OBJECTS)]
            self.probe_lease, self.slow_lease = lease("probe", "probe"), lease("slow")
            newest, self.stale_leases = lease("valid", "valid"), []
            for _ in range(self.plan.stale):
                self.stale_leases.append(newest)
                answer = caller.renew(newest, "valid", HOUR_MS, rotate=True)
                if answer is None or answer.status >= 300:
                    raise Failed(f"the valid writer's lease was not rotated: {answer and answer.body}")
                newest = answer.json()
            self.rig.start_valid(newest, VALID_PER_S)

    def play(self, wanted):
        """These phases in turn; returns violations."""
        found = []
        for phase in wanted:
            begun = now()
            found += phase(self)
            if phase is phases.LOOKED_AT:
                self.samples.append(phases.files_closed(self))
                self.figures.append({"phase": "then, at rest", **self.samples[-1]})
            print(f"soak: {phase.__name__}: {now() - begun:.0f} s, {len(found)} violations", flush=True)
        return found

    def verdict(self):
        """Stops all, and judges the whole run."""
        self.calls += self.rig.stop_valid()
        status = self.rig.stop()
        found = judge.flat(self.samples[0], self.samples[-1])
        if status != 0:
            found.append(f"STOP: the gate ended with {status}")
        if "panicked" in self.rig.log.read_text(errors="replace"):
            found.append("PANIC: the gate's log has one")
        found += judge.quick("stale crowd", self.ratios, self.plan.ratio_max)
        found += judge.quick("stale crowd without pauses", self.flat_ratios, self.plan.flat_max)
        return found + self.writes()

    def writes(self):
        """Violations by what clients were answered, and what the store has done."""
        with open(self.rig.folder / "store.jsonl") as log:
            return judge.writes(self.calls, [json.loads(line) for line in log if WRITTEN.search(line)])

    def table(self):
        print("  ".join(f"{name:>{width}}" for name, width in COLUMNS) + "  answers")
        for row in self.figures:
            cells = [row.get(name, "") for name, _ in COLUMNS]
            cells = [f"{cell:.2f}" if isinstance(cell, float) else str(cell) for cell in cells]
            counted = sorted(row.get("answers", {}).items())
            answers = ", ".join(f"{number} x {kind}" for kind, number in counted if number)
            print("  ".join(f"{cell:>{width}}" for cell, (_, width) in zip(cells, COLUMNS)) + "  " + answers)
        if not self.samples:
            return
        first, last = self.samples[0], self.samples[-1]
        settled = sum(call["outcome"] == "settled" for call in self.calls)
        print(f"stale writes refused: {self.stale}")
        for crowd, ratios in (("a stale crowd", self.ratios), ("one without pauses", self.flat_ratios)):
            print(f"p99 beside {crowd} / quiet p99, by round: {', '.join(f'{ratio:.2f}' for ratio in ratios)}; "
                  f"median {judge.median(ratios):.2f}")
        print(f"writes acknowledged: {settled}; leases handed over: {self.handovers}")
        print(f"memory {first['rss_kib'] >> 10} MiB -> {last['rss_kib'] >> 10} MiB, "
              f"open files {first['files']} -> {last['files']}, from the first cycle to the end; cycles: {self.cycles}")


def soak(binary, plan, duration_s):
    """Runs until the next cycle would end after `duration_s`; returns an exit status."""
    found, begun, rig = [], now(), Rig(binary, plan.room)
    run = Run(rig, plan)
    try:
        with rig:
            run.prepare()
            while not found:
                cycle_begun = now()
                found += run.play(phases.PHASES)
                run.cycles += 1
                took, spent = now() - cycle_begun, now() - begun
                if run.cycles >= plan.cycles_min and spent + took > duration_s:
                    break
            found += run.play(phases.LAST) if not found else []
            found += run.verdict()
    except Failed as failed:
        found.append(f"FAILED: {failed}")
    run.table()
    if found:
        print(*found, f"soak: FAILED after {now() - begun:.0f} s; logs are in {rig.folder}", sep="\n", file=sys.stderr)
        return 1
    rig.remove()
    print(f"soak: passed, {now() - begun:.0f} s, with {Path(binary)}")
    return 0

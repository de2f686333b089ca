"""Controls of the rig: a gate with one of its test faults, in the phase where that matters, must be rejected by name."""
import re
import sys

import phases
from calls import now
from plan import SHORT
from rig import Failed, Rig
from soak import Run

# The fault, the phase that shows it, and what a violation begins with that must be among those found. Without shares
# either of the two writers that the phase watches may be the one that is refused: the probe asks for a new connection
# each time, the valid writer has one.
CONTROLS = {
    "forward-stale": (phases.crowd, r"ANSWER: stale crowd: "),
    "no-drain": (phases.flap, r"STALE LANDED: "),
    "no-shares": (phases.overload, r"ANSWER: overload, (valid writer|probes): \d+ times (write: )?GATE_OVERLOADED"),
    "no-eviction": (phases.slow, r"SLOW: no connection was closed for another one"),
}


def play(binary, fault, phase):
    """One phase on a gate with this fault; returns the violations."""
    rig = Rig(binary, SHORT.room, fault)
    run = Run(rig, SHORT)
    try:
        with rig:
            run.prepare()
            found = run.play([phase])
            run.calls += rig.stop_valid()
            rig.stop()
            return found + run.writes()
    finally:
        rig.remove()


def all_of(binary):
    """Plays all; returns an exit status."""
    wrong = []
    for fault, (phase, wanted) in CONTROLS.items():
        begun = now()
        try:
            found = play(binary, fault, phase)
        except Failed as failed:
            found = [f"FAILED: {failed}"]
        caught = [line for line in found if re.match(wanted, line)]
        print(f"soak: {fault}: {caught[0] if caught else 'not caught'} ({now() - begun:.0f} s)", flush=True)
        if not caught:
            wrong.append(fault)
            print(*found, sep="\n", file=sys.stderr)
    if wrong:
        print(f"soak: faults that were not caught by name: {', '.join(wrong)}", file=sys.stderr)
        return 1
    print(f"soak: {len(CONTROLS)} faults, each caught by name")
    return 0

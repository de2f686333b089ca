"""Controls of the rig: a gate with one of its test faults, in the phase where that matters, must be rejected by name."""
import sys

import phases
from calls import now
from plan import SHORT
from rig import Failed, Rig
from soak import Run

# The fault, the phase that shows it, and how the violation begins that must be among those found.
CONTROLS = {
    "forward-stale": (phases.crowd, "ANSWER: stale crowd: "),
    "no-drain": (phases.flap, "STALE LANDED: "),
    "no-shares": (phases.overload, "ANSWER: overload, valid writer: "),
    "no-eviction": (phases.slow, "ANSWER: slow, probes: "),
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
        caught = [line for line in found if line.startswith(wanted)]
        print(f"soak: {fault}: {caught[0] if caught else 'not caught'} ({now() - begun:.0f} s)", flush=True)
        if not caught:
            wrong.append(fault)
            print(*found, sep="\n", file=sys.stderr)
    if wrong:
        print(f"soak: faults that were not caught by name: {', '.join(wrong)}", file=sys.stderr)
        return 1
    print(f"soak: {len(CONTROLS)} faults, each caught by name")
    return 0

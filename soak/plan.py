"""How much of everything: the short form's sizes, and the long one's."""
import resource
from dataclasses import dataclass


@dataclass
class Plan:
    stale: int  # writers in the stale crowd, each of a write per second
    rounds: int  # of quiet and crowd, per cycle
    round_s: float
    flat_s: float  # the crowd without any pause
    overload_s: float
    slow: int  # connections to the gate's port, more than it takes
    slow_s: float
    flaps: int  # turns of the store through all its modes
    flap_s: float  # in each mode
    stalls_s: list  # how long the disk stands still, one time after the other
    ratio_max: float  # the valid writer's p99 beside the crowd, as a multiple of its quiet one
    flat_max: float  # the same beside the crowd without pauses, which takes all the time that the machine has
    cycles_min: int = 1

    @property
    def room(self):
        """Connections that the gate takes: less than there are slow ones, so that it has to close some for others."""
        return max(ROOM_MIN, self.slow * 4 // 5)


SHORT = Plan(stale=300, rounds=3, round_s=2, flat_s=2, overload_s=3, slow=1000, slow_s=9, flaps=1, flap_s=1.2,
             stalls_s=[4], ratio_max=10, flat_max=100)
LONG = Plan(stale=1000, rounds=3, round_s=5, flat_s=3, overload_s=6, slow=5000, slow_s=20, flaps=2, flap_s=1.5,
            stalls_s=[3, 12], ratio_max=2, flat_max=50, cycles_min=2)

VALID_PER_S = 100
# For the crowd, and for overload.
ROOM_MIN = 700
# Files that this process needs beside its connections.
SPARE = 500


def with_room(plan):
    """Raises the limit on open files as far as it goes. A plan that does not fit below it becomes smaller."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    # The gate gives most of its files to its own port, and needs some for the store and the table.
    fits = int(hard * 0.6) - SPARE
    if plan.slow > fits:
        print(f"soak: {hard} open files are allowed here: {fits} slow connections instead of {plan.slow}")
        plan.slow = fits
    return plan

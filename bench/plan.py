"""How many rounds, how long, how large: for a full run, and for a quick one that shows the same with less certainty."""
from typing import NamedTuple


class Plan(NamedTuple):
    quick: bool
    warm_up_s: int
    # Rounds and seconds per peer and round.
    saturated: tuple
    half: tuple
    ladder: tuple
    shares: tuple  # of what the slower of the gate and nginx can carry
    refused: tuple
    workers: tuple
    http2: tuple
    stream_rounds: int
    stream_bytes: int
    idle_rounds: int
    idle_connections: int
    objects: int  # in the table
    in_use: int
    spread: tuple
    spread_over: tuple  # numbers of objects
    cold: tuple
    limit_s: int


GIB = 1 << 30

FULL = Plan(
    quick=False, warm_up_s=1, saturated=(35, 0.6), half=(7, 2), ladder=(2, 1), shares=(0.1, 0.25, 0.4, 0.55, 0.7, 0.85),
    refused=(25, 0.6), workers=(15, 1), http2=(5, 2), stream_rounds=5, stream_bytes=GIB, idle_rounds=2,
    idle_connections=10_000, objects=10_000_000, in_use=100_000, spread=(3, 2),
    spread_over=(1, 100, 10_000, 100_000), cold=(5, 2), limit_s=1800,
)

QUICK = Plan(
    quick=True, warm_up_s=1, saturated=(3, 1), half=(3, 1), ladder=(1, 1), shares=(0.25, 0.5, 0.75),
    refused=(3, 1), workers=(3, 1), http2=(3, 1), stream_rounds=2, stream_bytes=GIB, idle_rounds=1,
    idle_connections=10_000, objects=1_000_000, in_use=20_000, spread=(1, 1),
    spread_over=(1, 100, 10_000), cold=(2, 1), limit_s=600,
)

"""The objects of a run, and where their registers are."""

# The last two are on a route that keeps a journal.
OBJECTS = [f"o{n}" for n in range(10)] + ["j-1", "j-2"]
MOVING = ["1", "2"]
# The driver's own.
MIGRATED = [f"m{n}" for n in range(4)]
# Objects whose lock is kept elsewhere: some for all writers, and the driver's own.
LOCKED = ["x-1", "x-2", "x-3"]
DRAINED = ["x-4", "x-5"]
EXTERNAL = LOCKED + DRAINED
# Those that applications write to through agents.
AGENTS = ["a0", "a1", "a2"]
# Of the plays in controls.py.
PLAYED = ["x", "y", "other"]
# Whatever issuers and requesters may speak for; a domain is an object's whole name here.
DOMAINS = OBJECTS + MIGRATED + PLAYED + [f"{moving}-{n}" for moving in ("ra", "rb") for n in MOVING]


def is_journaled(object_id):
    return object_id.startswith("j-")


def is_external(object_id):
    return object_id is not None and object_id.startswith("x-")


def path_of(object_id):
    """Where an object's register is: `ra-7` and `rb-7` are two objects for one path, which a reload moves."""
    if object_id.startswith(("ra-", "rb-")):
        return f"/s/{object_id[3:]}/v"
    if is_journaled(object_id):
        return f"/j/{object_id[2:]}/v"
    if is_external(object_id):
        return f"/x/{object_id[2:]}/v"
    return f"/o/{object_id}/v"

"""The history of a run, by object, in the form that linear.py reads; and its check.

Numbers are ten times what they were: between that of a lease and the next there is room for a certificate. To the
register a certificate is an acquire without a holder, of the lease's number and a half: 7 is granted as 70, fenced by
75, and 8 is 80, whether or not it is the next that was granted.
"""
import json

import linear
from lab import Broken
from processes import Failed


def operations(oracle, objects):
    """What was asked of each object, and what came of it."""
    found = {object_id: [] for object_id in objects}
    fences = {object_id: [] for object_id in objects}
    for op in joined(once(oracle)):
        if op["op"] in ("acquire", "write", "read") and op["object"] in found:
            found[op["object"]].append(operation(op))
        elif op["op"] == "fence" and op.get("acknowledged") and op["object"] in found:
            fences[op["object"]].append(fence(op))
    return {object_id: ops + binding(fences[object_id], ops) + outside(oracle.story(object_id))
            for object_id, ops in found.items()}


def operation(op):
    # A revocation that was overtaken is answered with the other's number, so its own is not known.
    is_known = op["outcome"] in ("ok", "refused", "store") and not op.get("revokes")
    seq = None if op.get("revokes") else op.get("seq")
    return {
        "process": op["process"], "op": op["op"], "seq": seq and 10 * seq,
        "value": {"write": op["id"], "read": op.get("value")}.get(op["op"]),
        "call": op["t"], "ret": op["ret"] if is_known else None,
        "ok": op["outcome"] not in ("refused", "store"),
    }


def fence(op):
    """An acknowledged certificate."""
    return {"process": op["process"], "op": "acquire", "seq": 10 * op["fences"] + 5, "value": None, "call": op["t"],
            "ret": op["ret"], "ok": True}


def outside(story):
    """Numbers of an outside lock service: an acquire each, which may take place from when it was given on, at the
    latest when a call with it was answered well. What an operator confirms is none: older writes may land behind it, up
    to the next number that is answered."""
    done = {}
    for op in story.token_calls + story.write_calls:
        if op["outcome"] == "ok":
            done[op["seq"]] = min(op["ret"], done.get(op["seq"], op["ret"]))
    return [{"process": f"number {seq}", "op": "acquire", "seq": 10 * seq, "value": None, "call": event["t"],
             "ret": done.get(seq), "ok": True} for seq, event in story.issued.items()]


def binding(fences, ops):
    """The certificates that certainly came before all with higher numbers: those moved the fence, or could have. Of
    the others it is unknown whether the fence was past their lease already; then they did nothing. The same certificate
    again does nothing either."""
    first = {each["seq"]: each for each in sorted(fences, key=lambda each: -each["ret"])}
    found, earliest = [], float("inf")
    moves = [op for op in ops if op["seq"] and op["op"] != "read"]
    for op in sorted(moves + list(first.values()), key=lambda op: -op["seq"]):
        if op["seq"] % 10 and op["ret"] < earliest:
            found.append(op)
        # Certificates that are left out count, too: less is checked then, and nothing that is not so.
        earliest = min(earliest, op["call"])
    return found


def joined(ops):
    """A request that was repeated and answered with the same lease is one operation, from its first call to its first
    answer. Repetitions that were not answered with a lease are no operations then."""
    requests, others = {}, []
    for op in ops:
        if op.get("request_id"):
            requests.setdefault((op["holder"], op["object"], op["request_id"]), []).append(op)
        else:
            others.append(op)
    for same in requests.values():
        first = min(op["t"] for op in same)
        leases = {op["lease"]: op for op in sorted(same, key=lambda op: -op.get("ret", 0)) if op["outcome"] == "ok"}
        others += [op | {"t": first} for op in leases.values()] or same
    return others


def once(oracle):
    """The attempts of a keyed write that were answered with a kept success are no writes of their own: that is the
    attempt that was applied, and it was done by then."""
    done, others = {}, []
    for op in oracle.ops.values():
        first = oracle.keys.applied_for(op) if op.get("replayed") and op["outcome"] == "ok" else None
        if first is None:
            others.append(op)
        else:
            done[first.op["id"]] = min(op["ret"], done.get(first.op["id"], op["ret"]))
    return [as_done(op, done[op["id"]]) if op["id"] in done else op for op in others]


def as_done(op, t):
    """A write that was done at `t`, or earlier."""
    return op | {"outcome": "ok", "ret": min(t, op["ret"]) if op["outcome"] == "ok" else t}


def linearize(lab, objects):
    """Writes the history down, and has it checked."""
    history = operations(lab.oracle, objects)
    with open(lab.folder / "history.jsonl", "w") as file:
        for object_id, ops in history.items():
            file.writelines(json.dumps({"object": object_id} | op) + "\n" for op in ops)
    for object_id, ops in history.items():
        wrong = linear.check(ops)
        if wrong and wrong.startswith("UNDECIDED"):
            raise Failed(f"{object_id}: {wrong}")
        if wrong:
            raise Broken(f"VIOLATION LINEARIZABLE: {object_id}: (numbers are ten times theirs; with a 5, certificates) "
                         f"{wrong}")

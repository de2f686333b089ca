#!/usr/bin/env python3
"""Is the history of one object that of a fenced register? Pure but for `main`.

The register: `acquire` with seq n needs n > fence and makes it n; `write` needs seq == fence, a fence that is known,
and sets the value; `read` returns the value. It begins with fence 0, unknown, and nothing there (None).
An operation without an answer (`ret` None) takes effect at any time after its call, or never.

The search is Wing and Gong's with Lowe's memory: a linked list of calls and returns, from which operations are lifted
as they are placed and put back when that led nowhere; what was placed and the state it led to is never tried twice.
What makes it fast is exact: each reduction has its proof in a comment. An order that was found is held against the
register above, with the times as they were given, before it counts.

An acquire that was repeated and answered with the same lease is one operation, from its first call.

Usage: linear.py FILE, a history.jsonl with one operation per line, each with its `object`
"""
import json
import sys
from bisect import bisect_left
from collections import Counter, defaultdict
from itertools import groupby
from math import inf, isfinite

ACQUIRE, WRITE, READ = "acquire", "write", "read"
KEYS = ("process", "op", "seq", "value", "call", "ret", "ok")
STEPS_MAX = 2_000_000
# How many operations the listing shows before and after the one that cannot be placed.
BEFORE, AFTER = 8, 5


class Malformed(ValueError):
    """Something that is not an operation."""


class OutOfSteps(Exception):
    """The search was not done within its budget."""


class BadOrder(Exception):
    """The search found an order that is none: a mistake in here."""


def check(operations, steps_max=STEPS_MAX):
    """None if the operations, all of one object, are linearizable; else what is wrong, for people."""
    operations = list(operations)
    for operation in operations:
        validate(operation)
    # A refused operation had no effect, and a read without answer says nothing: neither restricts an order.
    kept = [each for each in operations if each["ok"] and not (each["op"] == READ and each["ret"] is None)]
    try:
        return None if order_of(kept, steps_max) is not None else explain(operations, kept, steps_max)
    except OutOfSteps:
        return f"UNDECIDED: {len(kept)} operations, and no verdict after {steps_max} steps"


def validate(operation):
    """Every key there and of its kind: a history that cannot be read must not pass."""
    try:
        process, op, seq, value, call, ret, ok = (operation[key] for key in KEYS)
    except (KeyError, TypeError):
        raise Malformed(f"not an operation: {operation!r}") from None
    timed = is_time(call) and (ret is None or is_time(ret) and ret >= call)
    # Only what was refused, and an acquire without answer, can lack its number.
    numbered = type(seq) is int or seq is None and (not ok or op == READ or op == ACQUIRE and ret is None)
    named = isinstance(value, (str, int)) or value is None and (not ok or op != WRITE)
    known = isinstance(process, str) and op in (ACQUIRE, WRITE, READ) and isinstance(ok, bool)
    if not (timed and numbered and named and known):
        raise Malformed(f"not an operation: {operation!r}")


def is_time(value):
    return type(value) in (int, float) and isfinite(value)


class Op:
    """An operation that is searched for a place. `must`: it has one for sure; otherwise `ret` is infinite."""
    __slots__ = ("given", "kind", "seq", "value", "call", "ret", "must", "bit", "enter", "leave")

    def __init__(self, given):
        self.given, self.kind, self.seq, self.value = given, given["op"], given["seq"], given["value"]
        self.call, self.must = given["call"], given["ret"] is not None
        self.ret = given["ret"] if self.must else inf

    def settle(self, ret):
        """From now on it must take place, and not behind `ret`."""
        self.must, self.ret = True, max(self.call, min(self.ret, ret))


def order_of(kept, steps_max):
    """An order of the operations that the register allows, or None."""
    ops = reduce_acquires(reduce_writes([Op(each) for each in kept]))
    tighten(ops)
    found = Search(ops, steps_max).run()
    if found is None:
        return None
    order = [op.given for op in found]
    if not holds(kept, order):
        raise BadOrder(f"{len(kept)} operations: {order!r}")
    return order


def reduce_writes(ops):
    """Leaves out, or makes certain, the writes without answer where that changes nothing."""
    read_until = {}
    for op in ops:
        if op.kind == READ:
            read_until[op.value] = min(op.ret, read_until.get(op.value, inf))
    # A maybe-write that is never read: no read lies between it and the next write, so an order holds without it too.
    ops = [op for op in ops if op.kind != WRITE or op.must or op.value in read_until]
    writers = Counter(op.value for op in ops if op.kind == WRITE)
    for op in ops:
        # The only write of a value that was read took place, and before the first such read was answered.
        if op.kind == WRITE and writers[op.value] == 1 and op.value in read_until:
            op.settle(read_until[op.value])
    return ops


def reduce_acquires(ops):
    """The same for acquires without answer."""
    answered = {op.seq for op in ops if op.kind == ACQUIRE and op.must}
    acquires = Counter(op.seq for op in ops if op.kind == ACQUIRE)
    used, used_until = set(), {}
    for op in ops:
        if op.kind == WRITE:
            used.add(op.seq)
            if op.must:
                used_until[op.seq] = min(op.ret, used_until.get(op.seq, inf))
    # A maybe-acquire whose number is unknown, or that no write has, allows nothing: an order holds without it too, with
    # a lower fence up to the next acquire and no write in between. One whose number was granted otherwise never
    # happened: numbers rise, so each is granted once.
    open_seqs = used - answered
    ops = [op for op in ops if op.kind != ACQUIRE or op.must or op.seq in open_seqs]
    for op in ops:
        # The only acquire of a number that a certain write has took place before that write.
        if op.kind == ACQUIRE and not op.must and acquires[op.seq] == 1 and op.seq in used_until:
            op.settle(used_until[op.seq])
    return ops


def tighten(ops):
    """Moves calls and returns closer where one operation must come before another in every order: then it also comes
    before all that is called behind the other's return, and the other behind all that returned before its call."""
    # Numbers rise: a certain acquire or write comes before all with higher numbers, an acquire before its writes.
    rising = sorted((op for op in ops if op.kind != READ), key=rank)
    groups = [list(group) for _, group in groupby(rising, rank)]
    latest = -inf
    for group in groups:
        for op in group:
            op.call = min(op.ret, max(op.call, latest))
        latest = max([latest, *(op.call for op in group if op.must)])
    earliest = inf
    for group in reversed(groups):
        for op in group:
            if op.must:
                op.ret = max(op.call, min(op.ret, earliest))
        earliest = min([earliest, *(op.ret for op in group if op.must)])
    # A read comes behind the only write of its value.
    writers = defaultdict(list)
    for op in rising:
        if op.kind == WRITE:
            writers[op.value].append(op)
    for op in ops:
        if op.kind == READ and len(writers[op.value]) == 1:
            op.call = min(op.ret, max(op.call, writers[op.value][0].call))


def rank(op):
    return op.seq, op.kind == WRITE


class Node:
    """A call or a return in the list of those not placed yet."""
    __slots__ = ("op", "is_call", "before", "after")

    def __init__(self, op, is_call):
        self.op, self.is_call, self.before, self.after = op, is_call, None, None

    def lift(self):
        self.before.after, self.after.before = self.after, self.before

    def unlift(self):
        self.before.after = self.after.before = self


class Search:
    """What is placed so far, the state after it, and what is left."""

    def __init__(self, ops, steps_max):
        self.steps_left = steps_max
        self.fence, self.value = 0, None
        self.placed, self.done, self.seen = [], 0, set()
        self.must_left = sum(op.must for op in ops)
        self.reads_left = Counter(op.value for op in ops if op.kind == READ)
        self.writers_left = Counter(op.value for op in ops if op.kind == WRITE)
        self.certain_seqs = sorted(op.seq for op in ops if op.kind != READ and op.must)
        self.certain_placed = 0
        self.maybes = sorted((op for op in ops if not op.must), key=rank)
        self.maybe_seqs = [op.seq for op in self.maybes]
        self.head = self.link(ops)

    def link(self, ops):
        """The list, by time. Of equal times calls come first: operations of equal times count as concurrent."""
        ops = sorted(ops, key=lambda op: op.call)
        events = []
        for index, op in enumerate(ops):
            op.bit, op.enter, op.leave = 1 << index, Node(op, True), Node(op, False)
            events.append((op.call, 0, index, op.enter))
            if op.must:
                events.append((op.ret, 1, index, op.leave))
        events.sort(key=lambda event: event[:3])
        nodes = [Node(None, False), *(node for _, _, _, node in events), Node(None, False)]
        for before, after in zip(nodes, nodes[1:]):
            before.after, after.before = after, before
        return nodes[0]

    def run(self):
        """The operations in an order that holds, or None."""
        choices = []
        while self.must_left:
            if self.steps_left == 0:
                raise OutOfSteps
            self.steps_left -= 1
            free, candidates = self.look()
            if free is None and candidates and self.is_new():
                choices.append((len(self.placed), candidates))
            op = free or self.another(choices)
            if op is None:
                return None
            self.place(op)
        return [op for op, _, _ in self.placed]

    def another(self, choices):
        """Back to the last choice that has something left to try."""
        while choices:
            count, candidates = choices[-1]
            while len(self.placed) > count:
                self.take_back()
            if candidates:
                return candidates.pop()
            choices.pop()
        return None

    def look(self):
        """An operation that can be placed at once without losing any order; else those that are worth a try."""
        node, at_hand, acquires, writes = self.head.after, Counter(), [], []
        writable = self.may_write()
        while node.is_call:
            op = node.op
            if op.kind == READ:
                # A read of the present value changes nothing, and nothing left has to come before it.
                if op.value == self.value:
                    return op, None
                at_hand[op.value] += 1
            elif op.kind == ACQUIRE:
                if self.may_acquire(op):
                    # With nothing left to be done under older numbers only reads could come before it. Even a maybe can
                    # be placed: it forbids nothing, as no certain acquire has its number.
                    if not self.has_maybes_below(op.seq):
                        return op, None
                    acquires.append(op)
            elif op.seq == self.fence and writable and (op.must or self.reads_left[op.value]):
                writes.append(op)
            node = node.after
        if not self.reads_left[self.value]:
            for op in writes:
                # Neither the present value nor, after all its reads, this one is read again: written and read here, it
                # leaves a state that is as good, and where it was in an order, no other read missed it.
                if at_hand[op.value] == self.reads_left[op.value]:
                    return op, None
        return None, acquires + [op for op in writes if self.can_stay(op, at_hand, node.op)]

    def may_write(self):
        """A value that will be read again, and is not written again, has to stay. Number 0 has no holder."""
        return self.fence > 0 and (not self.reads_left[self.value] or self.writers_left[self.value] > 0)

    def may_acquire(self, op):
        """Everything certain under older numbers must be placed, as it never could be again. (All that is placed is
        below this number, so counting is enough.)"""
        return op.seq > self.fence and self.certain_placed == bisect_left(self.certain_seqs, op.seq)

    def has_maybes_below(self, seq):
        return bisect_left(self.maybe_seqs, self.fence) < bisect_left(self.maybe_seqs, seq)

    def can_stay(self, write, at_hand, first):
        """A value with a read that is not at hand yet stays until then, if it is not written again. `first` returns
        before that read is called, so it lies between them: it is neither a write nor a read of another value."""
        value = write.value
        if at_hand[value] == self.reads_left[value] or self.writers_left[value] > 1:
            return True
        return first is write or first.kind == ACQUIRE or first.kind == READ and first.value == value

    def is_new(self):
        """Whether this was never tried: what is left and the state, as far as they matter for what can follow."""
        # A maybe below the fence can never take place any more: whether it did makes no difference.
        gone = self.done
        for op in self.maybes[:bisect_left(self.maybe_seqs, self.fence)]:
            gone |= op.bit
        # Nearly all operations up to some call are placed: their number stands for them.
        low = (~gone & (gone + 1)).bit_length() - 1
        # A value that is not read again is as good as any other such.
        value = (self.value,) if self.reads_left[self.value] else ()
        key = (low, gone >> low, self.fence, value)
        if key in self.seen:
            return False
        self.seen.add(key)
        return True

    def place(self, op):
        self.placed.append((op, self.fence, self.value))
        self.count(op, 1)
        op.enter.lift()
        if op.must:
            op.leave.lift()
        if op.kind == ACQUIRE:
            self.fence = op.seq
        elif op.kind == WRITE:
            self.value = op.value

    def take_back(self):
        op, self.fence, self.value = self.placed.pop()
        if op.must:
            op.leave.unlift()
        op.enter.unlift()
        self.count(op, -1)

    def count(self, op, by):
        self.done ^= op.bit
        self.must_left -= by * op.must
        if op.kind == READ:
            self.reads_left[op.value] -= by
        else:
            self.certain_placed += by * op.must
            if op.kind == WRITE:
                self.writers_left[op.value] -= by


def step(state, operation):
    """The register itself: the state after an operation, or None where it is not allowed."""
    fence, value = state
    if operation["op"] == ACQUIRE:
        return (operation["seq"], value) if operation["seq"] > fence else None
    if operation["op"] == WRITE:
        return (fence, operation["value"]) if operation["seq"] == fence > 0 else None
    return state if operation["value"] == value else None


def state_after(order):
    state = (0, None)
    for operation in order:
        state = state and step(state, operation)
    return state


def holds(kept, order):
    """Whether this is an order of all that was answered, which the register allows and no clock contradicts."""
    placed = {id(each) for each in order}
    complete = len(placed) == len(order) and all(id(each) in placed for each in kept if each["ret"] is not None)
    earliest, in_time = inf, True
    for operation in reversed(order):
        in_time = in_time and operation["call"] <= earliest
        earliest = min(earliest, inf if operation["ret"] is None else operation["ret"])
    return complete and in_time and state_after(order) is not None


def explain(operations, kept, steps_max):
    """Which operation cannot be placed, how far the history could be, and what was going on around it."""
    answered = sorted((each for each in kept if each["ret"] is not None), key=lambda each: each["ret"])
    count, order, is_first = longest_beginning(kept, answered, steps_max)
    wrong = answered[count]
    lines = [f"not linearizable: this {wrong['op']} cannot be placed: {reason(wrong, operations, state_after(order))}",
             line(wrong, wrong),
             f"the longest beginning that can: {count} of {len(answered)} answered operations, in an order that ends:"]
    lines += [line(each, wrong) for each in order[-3:]] or ["    (none)"]
    if not is_first:
        lines.append("(steps ran out while looking for it: the first that cannot be placed may be a later one)")
    return "\n".join([*lines, "around it, by time of call:", *around(wrong, operations)])


def longest_beginning(kept, answered, steps_max):
    """The number of answers up to which the history is linearizable, and an order of these. Every beginning of a
    linearizable history is linearizable, what is under way at its end being a maybe: so halving finds it."""
    good, bad, order, is_first = 0, len(answered), [], True
    while bad - good > 1:
        middle = (good + bad) // 2
        try:
            found = order_of(beginning(kept, answered, middle), steps_max)
        except OutOfSteps:
            found, is_first = None, False
        if found is None:
            bad = middle
        else:
            good, order = middle, found
    return good, order, is_first


def beginning(kept, answered, count):
    until, inside = answered[count - 1]["ret"], {id(each) for each in answered[:count]}
    under_way = [{**each, "ret": None} for each in kept
                 if id(each) not in inside and each["call"] <= until and each["op"] != READ]
    return answered[:count] + under_way


def reason(wrong, operations, state):
    """What stands against it, in words."""
    if wrong["op"] == READ:
        writers = [each for each in operations if each["op"] == WRITE and each["value"] == wrong["value"]]
        if wrong["value"] is not None and not writers:
            return "this value was never written"
        if writers and not any(each["ok"] for each in writers):
            return "the write of this value was refused"
    elif wrong["op"] == ACQUIRE:
        others = [each for each in operations if each["op"] == ACQUIRE and each["seq"] == wrong["seq"] and each["ok"]]
        if len(others) > 1:
            return f"seq {wrong['seq']} was granted more than once"
    return f"in an order of what came before it, the fence is {state[0]} then and the value {shown(state[1])}"


def around(wrong, operations):
    """The operations near it, and those that it depends on."""
    by_call = sorted(operations, key=lambda each: each["call"])
    at = next(index for index, each in enumerate(by_call) if each is wrong)
    near = set(range(max(0, at - BEFORE), min(len(by_call), at + AFTER + 1)))
    near |= {index for index, each in enumerate(by_call) if is_related(each, wrong)}
    lines, last = [], -1
    for index in sorted(near):
        lines += ["    ..."] * (index > last + 1) + [line(by_call[index], wrong)]
        last = index
    return lines + ["    ..."] * (last + 1 < len(by_call))


def is_related(each, wrong):
    if wrong["op"] == READ:
        return each["op"] == WRITE and each["value"] == wrong["value"]
    return each["op"] == ACQUIRE and each["seq"] is not None and each["seq"] == wrong["seq"]


def line(each, wrong):
    until = "no answer" if each["ret"] is None else f"{each['ret']:.6f}"
    what = {ACQUIRE: f"acquire seq {'unknown' if each['seq'] is None else each['seq']}",
            WRITE: f"write seq {each['seq']} {shown(each['value'])}",
            READ: f"read -> {shown(each['value'])}"}[each["op"]]
    mark = ">" if each is wrong else " "
    return f"  {mark} {each['call']:12.6f} .. {until:12} {each['process']:8} {what}{'' if each['ok'] else ' (refused)'}"


def shown(value):
    return "nothing" if value is None else str(value)


def load(lines):
    """The operations by object."""
    objects = defaultdict(list)
    for number, text in enumerate(lines, 1):
        try:
            operation = json.loads(text)
            validate(operation)
            objects[operation["object"]].append(operation)
        except (ValueError, KeyError, TypeError) as error:
            raise Malformed(f"line {number}: {error!r}") from None
    return objects


def main(path):
    """0 if every object's history is linearizable. Nothing to check is not a pass."""
    try:
        with open(path, encoding="utf-8") as file:
            objects = load(file)
    except (OSError, Malformed) as error:
        print(f"{path}: {error}")
        return 1
    failed = 0
    for name, operations in objects.items():
        said = check(operations)
        failed += said is not None
        maybes = sum(each["ok"] and each["ret"] is None for each in operations)
        refused = sum(not each["ok"] for each in operations)
        print(f"object {name}: {len(operations)} operations, {maybes} without answer, {refused} refused: "
              f"{said or 'linearizable'}")
    total = sum(map(len, objects.values()))
    verdict = f"{failed} objects FAILED" if failed else "all linearizable" if total else "nothing to check"
    print(f"{len(objects)} objects, {total} operations: {verdict}")
    return 0 if total and not failed else 1


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: linear.py FILE")
    sys.exit(main(sys.argv[1]))

#!/usr/bin/env python3
"""Tests of linear.py. Run: python3 -B chaos/test_linear.py"""
import contextlib
import functools
import io
import json
import random
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import linear  # noqa: E402

JUMP = 2**32


def operation(process, op, seq, value, call, ret, ok=True):
    return {"process": process, "op": op, "seq": seq, "value": value, "call": call, "ret": ret, "ok": ok}


def acquire(process, seq, call, ret):
    return operation(process, "acquire", seq, None, call, ret)


def write(process, seq, value, call, ret):
    return operation(process, "write", seq, value, call, ret)


def read(process, value, call, ret):
    return operation(process, "read", None, value, call, ret)


def refused(made):
    return {**made, "ok": False}


# A holds number 1 and writes; B takes over with number 2.
HANDOVER = [acquire("a", 1, 0, 1), write("a", 1, "a1", 2, 3), acquire("b", 2, 10, 12), write("b", 2, "b1", 20, 21)]


class Histories(unittest.TestCase):
    def assert_good(self, *operations):
        self.assertIsNone(linear.check(operations))
        self.assertTrue(brute_force(list(operations)), "the brute force disagrees")

    def assert_bad(self, wrong, *operations):
        """Rejected, and `wrong` is named as the operation that cannot be placed."""
        said = linear.check(operations)
        self.assertIsNotNone(said, "accepted")
        self.assertTrue(said.startswith(f"not linearizable: this {wrong['op']} cannot be placed"), said)
        self.assertEqual([text for text in said.splitlines() if text.startswith("  >")][0], linear.line(wrong, wrong))
        self.assertFalse(brute_force(list(operations)), "the brute force disagrees")


class Good(Histories):
    def test_nothing_at_all(self):
        self.assert_good()

    def test_one_after_the_other(self):
        self.assert_good(read("r", None, -2, -1), *HANDOVER, read("r", "a1", 4, 5), read("r", "b1", 22, 23))

    def test_concurrent_writes_of_one_holder_in_the_order_that_reads_show(self):
        self.assert_good(acquire("a", 1, 0, 1), write("a", 1, "x", 2, 9), write("a", 1, "y", 2, 9),
                         read("r", "y", 3, 4), read("r", "x", 5, 6))

    def test_a_read_may_see_a_write_that_is_under_way(self):
        self.assert_good(acquire("a", 1, 0, 1), write("a", 1, "x", 2, 9), read("r", None, 3, 4), read("r", "x", 5, 6))

    def test_equal_times_count_as_concurrent(self):
        self.assert_good(acquire("a", 1, 0, 1), write("a", 1, "x", 2, 3), read("r", None, 3, 4))

    def test_a_maybe_write_that_lands_before_the_handover(self):
        self.assert_good(*HANDOVER, write("a", 1, "late", 4, None), read("r", "late", 13, 14))

    def test_a_maybe_write_that_lands_during_the_handover(self):
        self.assert_good(*HANDOVER, write("a", 1, "late", 11, None), read("r", "a1", 11, 11.5),
                         read("r", "late", 13, 14))

    def test_a_maybe_write_that_never_lands(self):
        self.assert_good(*HANDOVER, write("a", 1, "late", 4, None), read("r", "a1", 13, 14), read("r", "b1", 22, 23))

    def test_a_maybe_acquire_in_between(self):
        self.assert_good(*HANDOVER, acquire("c", None, 4, None), read("r", "a1", 13, 14), read("r", "b1", 22, 23))

    def test_a_maybe_acquire_that_never_happens(self):
        self.assert_good(acquire("c", None, 1.5, None), *HANDOVER[:2], read("r", "a1", 13, 14))

    def test_a_maybe_acquire_whose_number_was_learnt_from_its_write(self):
        self.assert_good(*HANDOVER[:2], acquire("c", 2, 4, None), write("c", 2, "c1", 6, 7), read("r", "c1", 8, 9))

    def test_numbers_that_jump_with_an_incarnation(self):
        self.assert_good(*HANDOVER, acquire("a", JUMP + 3, 30, 31), write("a", JUMP + 3, "a2", 32, 33),
                         read("r", "a2", 34, 35))

    def test_a_refused_write_that_is_never_read(self):
        self.assert_good(*HANDOVER, refused(write("a", 1, "late", 14, 15)), read("r", "b1", 22, 23))

    def test_a_read_without_answer_says_nothing(self):
        self.assert_good(*HANDOVER, read("r", None, 22, None))

    def test_the_same_value_written_twice(self):
        self.assert_good(acquire("a", 1, 0, 1), write("a", 1, "x", 2, 3), write("a", 1, "y", 4, 5),
                         write("a", 1, "x", 6, 7), read("r", "x", 8, 9))

    def test_a_value_stays_for_its_read_though_it_is_written_again_later(self):
        self.assert_good(acquire("a", 1, 0, 1), write("a", 1, "x", 2, 3), write("a", 1, "y", 3.5, None),
                         read("r", "y", 4, 20), acquire("b", 2, 4, 4.5), read("q", "x", 5, 6),
                         write("b", 2, "y", 7, 8), write("b", 2, "x", 9, 10))

    def test_of_two_orders_of_the_same_writes_the_second_is_tried_too(self):
        for last, other in ("xy", "yx"):
            self.assert_good(acquire("a", 1, 0, 1), write("a", 1, "x", 2, 3), write("a", 1, "y", 2, 3),
                             write("c", 1, "z", 2.5, None), acquire("b", 2, 2.5, 3.5), read("r", last, 4, 5),
                             write("b", 2, other, 6, 7), read("r", other, 8, 9), write("b", 2, "z", 10, 11),
                             read("r", "z", 12, 13), write("b", 2, last, 14, 15))


class Bad(Histories):
    def test_a_stale_write_that_lands_after_the_newer_acquire(self):
        seen = read("r", "late", 22, 23)
        self.assert_bad(seen, *HANDOVER, write("a", 1, "late", 4, None), seen)

    def test_a_stale_write_that_is_called_after_the_newer_acquire(self):
        seen = read("r", "late", 16, 17)
        self.assert_bad(seen, *HANDOVER, write("a", 1, "late", 13, None), seen)

    def test_a_stale_write_that_is_acknowledged(self):
        late = write("a", 1, "late", 13, 14)
        self.assert_bad(late, *HANDOVER, late)

    def test_a_stale_write_acknowledged_while_the_newer_holder_writes(self):
        # It was called before the handover, but a read in between shows that it had not landed.
        seen = read("r", "late", 14, 15)
        self.assert_bad(seen, *HANDOVER[:3], write("a", 1, "late", 4, 30), read("r", "a1", 12.5, 13), seen)

    def test_a_read_that_goes_back(self):
        back = read("r", "a1", 6, 7)
        self.assert_bad(back, *HANDOVER[:2], write("a", 1, "a2", 3.5, 9), read("r", "a2", 4, 5), back)

    def test_an_acknowledged_write_that_is_lost(self):
        lost = read("r", "a1", 22, 23)
        self.assert_bad(lost, *HANDOVER, lost)

    def test_the_first_write_lost(self):
        lost = read("r", None, 4, 5)
        self.assert_bad(lost, *HANDOVER[:2], lost)

    def test_a_number_granted_twice(self):
        again = acquire("c", 2, 11, 13)
        self.assert_bad(again, *HANDOVER, again)

    def test_a_fence_that_goes_down(self):
        lower = acquire("c", JUMP, 13, 14)
        self.assert_bad(lower, *HANDOVER[:2], acquire("b", JUMP + 1, 10, 12), lower)

    def test_a_write_below_the_fence_of_another_incarnation(self):
        late = write("b", 2, "late", 32, 33)
        self.assert_bad(late, *HANDOVER, acquire("a", JUMP + 3, 30, 31), late)

    def test_a_write_ahead_of_the_fence(self):
        ahead = write("b", 2, "early", 4, 5)
        self.assert_bad(ahead, *HANDOVER[:3], ahead)

    def test_a_write_whose_number_was_never_granted(self):
        ungranted = write("b", 3, "x", 22, 23)
        self.assert_bad(ungranted, *HANDOVER, ungranted)

    def test_a_write_before_any_acquire(self):
        zero = write("a", 0, "x", 0, 1)
        self.assert_bad(zero, zero)

    def test_an_acquire_of_number_zero(self):
        zero = acquire("a", 0, 0, 1)
        self.assert_bad(zero, zero)

    def test_a_maybe_write_seen_then_not_then_seen_again(self):
        again = read("r", "late", 8, 9)
        self.assert_bad(again, *HANDOVER[:2], write("a", 1, "late", 3.5, None), write("a", 1, "a2", 3.5, 9.5),
                        read("r", "late", 4, 5), read("r", "a2", 6, 7), again)

    def test_a_maybe_write_seen_and_then_what_was_before_it(self):
        back = read("r", "a1", 6, 7)
        self.assert_bad(back, *HANDOVER[:2], write("a", 1, "late", 3.5, None), read("r", "late", 4, 5), back)

    def test_a_maybe_write_seen_before_its_call(self):
        early = read("r", "late", 4, 5)
        self.assert_bad(early, *HANDOVER[:2], write("a", 1, "late", 6, None), early)

    def test_a_value_never_written(self):
        never = read("r", "ghost", 4, 5)
        self.assert_bad(never, *HANDOVER, never)
        self.assertIn("this value was never written", linear.check([*HANDOVER, never]))

    def test_a_refused_write_that_is_read(self):
        late, seen = refused(write("a", 1, "late", 13, 14)), read("r", "late", 15, 16)
        self.assert_bad(seen, *HANDOVER, late, seen)
        self.assertIn("the write of this value was refused", linear.check([*HANDOVER, late, seen]))

    def test_a_maybe_acquire_does_not_excuse_a_number_granted_twice(self):
        again = acquire("c", 2, 14, 15)
        self.assert_bad(again, acquire("b", 2, 9, None), *HANDOVER, again)


class Messages(unittest.TestCase):
    def test_name_the_operation_the_beginning_and_what_was_around(self):
        said = linear.check([*HANDOVER, write("a", 1, "late", 4, None), read("r", "late", 22, 23)])
        self.assertEqual(said.splitlines(), [
            "not linearizable: this read cannot be placed: in an order of what came before it, the fence is 2 then "
            "and the value b1",
            "  >    22.000000 .. 23.000000    r        read -> late",
            "the longest beginning that can: 4 of 5 answered operations, in an order that ends:",
            "        2.000000 .. 3.000000     a        write seq 1 a1",
            "       10.000000 .. 12.000000    b        acquire seq 2",
            "       20.000000 .. 21.000000    b        write seq 2 b1",
            "around it, by time of call:",
            "        0.000000 .. 1.000000     a        acquire seq 1",
            "        2.000000 .. 3.000000     a        write seq 1 a1",
            "        4.000000 .. no answer    a        write seq 1 late",
            "       10.000000 .. 12.000000    b        acquire seq 2",
            "       20.000000 .. 21.000000    b        write seq 2 b1",
            "  >    22.000000 .. 23.000000    r        read -> late",
        ])

    def test_a_budget_that_is_too_small_is_no_pass(self):
        self.assertTrue(linear.check(HANDOVER, steps_max=3).startswith("UNDECIDED"))
        self.assertIsNone(linear.check(HANDOVER, steps_max=4))

    def test_what_is_not_an_operation_is_no_pass(self):
        good = write("a", 1, "x", 2, 3)
        for wrong in ({"op": "delete"}, {"seq": None}, {"seq": "1"}, {"value": None}, {"value": []}, {"call": None},
                      {"ret": 1}, {"ret": float("nan")}, {"ok": None}, {"process": 1}, {"op": "acquire", "seq": None}):
            with self.subTest(wrong), self.assertRaises(linear.Malformed):
                linear.check([{**good, **wrong}])
        for key in good:
            with self.subTest(key), self.assertRaises(linear.Malformed):
                linear.check([{name: value for name, value in good.items() if name != key}])

    def test_the_register_is_what_it_says(self):
        for number, after in ((6, (6, "x")), (JUMP, (JUMP, "x")), (5, None), (4, None)):
            self.assertEqual(linear.step((5, "x"), acquire("a", number, 0, 1)), after)
        for number, after in ((5, (5, "y")), (4, None), (6, None)):
            self.assertEqual(linear.step((5, "x"), write("a", number, "y", 0, 1)), after)
        self.assertIsNone(linear.step((0, None), write("a", 0, "y", 0, 1)))
        for value, after in (("x", (5, "x")), ("y", None), (None, None)):
            self.assertEqual(linear.step((5, "x"), read("r", value, 0, 1)), after)

    def test_an_order_that_does_not_hold_is_noticed(self):
        one, two = HANDOVER[:2]
        self.assertTrue(linear.holds([one, two], [one, two]))
        for order in ([two, one], [one], [one, two, two], []):
            self.assertFalse(linear.holds([one, two], order))
        early, later = read("r", None, 0, 1), read("r", None, 2, 3)
        self.assertFalse(linear.holds([early, later], [later, early]))


class CommandLine(unittest.TestCase):
    def run_on(self, *lines):
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()) as said:
            path = Path(folder, "history.jsonl")
            path.write_text("".join(text + "\n" for text in lines), encoding="utf-8")
            return linear.main(str(path)), said.getvalue()

    def test_objects_are_checked_apart(self):
        code, said = self.run_on(*(json.dumps({**each, "object": name}) for each in HANDOVER for name in ("o1", "o2")))
        self.assertEqual(code, 0, said)
        self.assertIn("object o2: 4 operations, 0 without answer, 0 refused: linearizable\n", said)
        self.assertIn("2 objects, 8 operations: all linearizable\n", said)

    def test_one_bad_object_fails_the_file(self):
        bad = [*HANDOVER, read("r", "a1", 22, 23)]
        code, said = self.run_on(*(json.dumps({**each, "object": "bad"}) for each in bad),
                                 *(json.dumps({**each, "object": "good"}) for each in HANDOVER))
        self.assertEqual(code, 1)
        self.assertIn("object bad: 5 operations, 0 without answer, 0 refused: not linearizable: this read", said)
        self.assertIn("object good: 4 operations, 0 without answer, 0 refused: linearizable\n", said)
        self.assertIn("2 objects, 9 operations: 1 objects FAILED\n", said)

    def test_nothing_broken_lines_and_no_file_are_no_pass(self):
        self.assertEqual(self.run_on()[0], 1)
        self.assertEqual(self.run_on(json.dumps(HANDOVER[0]))[0], 1, "without object")
        self.assertEqual(self.run_on('{"process": "a", "op"')[0], 1)
        with contextlib.redirect_stdout(io.StringIO()):
            self.assertEqual(linear.main("/nonexistent/history.jsonl"), 1)


def brute_force(operations):
    """Tries every order and every subset of the maybes, by the letter of the register, unknown fences and all."""
    def allowed(state, each):
        fence, known, value = state
        if each["op"] == "acquire" and each["seq"] is None:
            return fence, False, value
        if each["op"] == "acquire":
            return (each["seq"], True, value) if each["seq"] > fence else None
        if each["op"] == "write":
            return (fence, known, each["value"]) if known and each["seq"] == fence else None
        return state if each["ret"] is None or each["value"] == value else None

    @functools.cache
    def extend(state, left):
        if all(kept[index]["ret"] is None for index in left):
            return True
        for index in left:
            others = left - {index}
            in_time = all(kept[other]["ret"] is None or kept[index]["call"] <= kept[other]["ret"] for other in others)
            after = allowed(state, kept[index]) if in_time else None
            if after is not None and extend(after, others):
                return True
        return False

    kept = [each for each in operations if each["ok"]]
    return extend((0, False, None), frozenset(range(len(kept))))


def simulate(rng, count, clients, lost=0.1, takeovers=0.05, fenced=True):
    """A history of a right register (or of one that looks at no fence) with clients that call at the same time.

    Every operation has a moment at which it takes effect, if it does; a lost answer's may lie far behind its call."""
    due, free_at, held = [], [rng.random() for _ in range(clients)], [None] * clients
    fence, value, history, last = 0, None, [], 0
    while len(history) < count or due:
        client = min(range(clients), key=free_at.__getitem__)
        if len(history) == count or due and min(due)[0] <= free_at[client]:
            moment, index = min(due)
            due.remove((moment, index))
            made, owner = history[index], int(history[index]["process"])
            if made["op"] == "acquire":
                fence += JUMP if rng.random() < 0.05 else 1
                if made["ret"] is not None:
                    made["seq"] = fence
                    held[owner] = fence
            elif made["op"] == "read":
                made["value"] = value
            elif made["seq"] == fence or not fenced:
                value = made["value"]
            elif made["ret"] is not None:
                made["ok"] = False
            continue
        call, length = free_at[client], rng.random() * 2
        kind = rng.random()
        is_lost = rng.random() < lost
        ret = None if is_lost else call + length
        if kind < takeovers or kind < 0.5 and held[client] is None and fence == 0:
            made = acquire(str(client), None, call, ret)
        elif kind < 0.5 and held[client] is not None:
            last += 1
            made = write(str(client), held[client], f"w{last}", call, ret)
        else:
            made = read(str(client), None, call, ret)
        history.append(made)
        if not is_lost:
            due.append((call + rng.random() * length, len(history) - 1))
        elif rng.random() < 0.6:
            due.append((call + rng.expovariate(0.3), len(history) - 1))
        free_at[client] = call + length + rng.random() * 0.3
    return history


def is_broken_for_sure(history):
    """A write was acknowledged that was called after an acquire with a higher number had been answered."""
    acquired = [each for each in history if each["op"] == "acquire" and each["ret"] is not None]
    return any(each["op"] == "write" and each["ok"] and each["ret"] is not None and each["seq"] < newer["seq"]
               and newer["ret"] < each["call"] for each in history for newer in acquired)


def is_between(made, one, other):
    """It is an acknowledged write between two operations, so these cannot read the same."""
    first, second = sorted((one, other), key=lambda each: each["call"])
    acknowledged = made["op"] == "write" and made["ok"] and made["ret"] is not None
    return acknowledged and first["ret"] < made["call"] and made["ret"] < second["call"]


def mutated(rng, history):
    """One thing changed: a read's value, a number, an answer, or a time."""
    history = [dict(each) for each in history]
    each = rng.choice(history)
    change = rng.randrange(5)
    values = [None, "ghost", *(other["value"] for other in history if other["op"] == "write")]
    if change <= 1 and each["op"] == "read":
        each["value"] = rng.choice(values)
    elif change == 2 and each["seq"] is not None:
        each["seq"] = max(0, each["seq"] + rng.choice((-1, 1)))
    elif change == 3 and (each["op"] != "acquire" or each["seq"] is not None):
        each["ok"] = True
        each["ret"] = each["call"] + rng.random() if each["ret"] is None else None
    else:
        by = rng.choice((-3, -1, 1, 3)) * rng.random()
        each["call"] += by
        each["ret"] = each["ret"] and each["ret"] + by
    return history


def tiny(rng, most):
    """Anything at all: few numbers, few values, few moments, so that they meet."""
    history = []
    for index in range(rng.randint(1, most)):
        call = rng.randrange(8)
        ret = None if rng.random() < 0.25 else call + rng.randrange(5)
        kind = rng.choice(("acquire", "write", "write", "read", "read"))
        seq, value = rng.randint(1, 2), rng.choice("xy" if rng.random() < 0.5 else "abcdef")
        if kind == "acquire":
            made = acquire(str(index), None if ret is None and rng.random() < 0.5 else seq, call, ret)
        elif kind == "write":
            made = write(str(index), seq, value, call, ret)
        else:
            made = read(str(index), None if rng.random() < 0.3 else value, call, ret)
        history.append(refused(made) if rng.random() < 0.05 else made)
    return history


def crowded(rng, most):
    """Nearly right, with few values, many maybes and long calls: what is exact only for unique values shows here."""
    fence, value, history, reach = 0, None, [], rng.choice((1, 3, 6))
    for moment in range(rng.randint(4, most)):
        call = moment - rng.randint(0, reach)
        ret = None if rng.random() < 0.35 else moment + rng.randint(0, reach)
        kind, is_right = rng.random(), rng.random() < 0.85
        if fence == 0 or kind < 0.15:
            fence += is_right
            made = acquire(str(moment), None if ret is None and rng.random() < 0.2 else fence or 1, call, ret)
        elif kind < 0.6:
            made = write(str(moment), fence if is_right else rng.randint(1, 2), rng.choice("xyz"), call, ret)
            value = made["value"] if ret is not None or rng.random() < 0.7 else value
        else:
            made = read(str(moment), value if is_right else rng.choice("xyz"), call, moment + rng.randint(0, reach))
        history.append(made)
    rng.shuffle(history)
    return history


class Randomly(unittest.TestCase):
    def assert_same_verdict(self, history):
        said, expected = linear.check(history), brute_force(history)
        self.assertEqual(said is None, expected, f"{said}\n{history}")
        return expected

    def test_a_right_register_passes(self):
        rng = random.Random(1)
        for number in range(150):
            history = simulate(rng, rng.choice((20, 100, 300)), rng.randint(1, 10), lost=rng.choice((0, 0.1, 0.5)))
            self.assertIsNone(linear.check(history), number)

    def test_a_register_without_a_fence_is_rejected(self):
        rng, broken = random.Random(2), 0
        for number in range(150):
            history = simulate(rng, 100, 6, fenced=False)
            if is_broken_for_sure(history):
                broken += 1
                self.assertIsNotNone(linear.check(history), number)
        self.assertGreater(broken, 100)

    def test_a_read_of_something_else_is_rejected_in_a_long_history(self):
        rng, tried = random.Random(3), 0
        for number in range(60):
            history = simulate(rng, 300, 6)
            reads = [each for each in history if each["op"] == "read" and each["ret"] is not None]
            each, other = rng.sample(reads, 2)
            if any(is_between(made, each, other) for made in history):
                tried += 1
                each["value"] = other["value"]
                self.assertIsNotNone(linear.check(history), number)
        self.assertGreater(tried, 30)

    def test_verdicts_equal_those_of_the_brute_force_on_anything(self):
        rng = random.Random(4)
        verdicts = [self.assert_same_verdict(tiny(rng, 6)) for _ in range(6000)]
        self.assertGreater(min(verdicts.count(True), verdicts.count(False)), 1000)

    def test_verdicts_equal_those_of_the_brute_force_on_crowded_histories(self):
        rng = random.Random(6)
        verdicts = [self.assert_same_verdict(crowded(rng, most)) for most in (8, 12) for _ in range(9000)]
        self.assertGreater(min(verdicts.count(True), verdicts.count(False)), 3000)

    def test_verdicts_equal_those_of_the_brute_force_on_nearly_right_histories(self):
        rng, verdicts = random.Random(5), []
        for _ in range(6000):
            history = simulate(rng, rng.randint(3, 6), rng.randint(1, 4), lost=0.25, takeovers=0.25)
            self.assertTrue(self.assert_same_verdict(history))
            verdicts += [self.assert_same_verdict(mutated(rng, history)) for _ in range(2)]
        self.assertGreater(min(verdicts.count(True), verdicts.count(False)), 1000)


if __name__ == "__main__":
    unittest.main()

"""Weak references and dictionaries of them that existed before the call: followed, and not kept alive."""

from __future__ import annotations

import collections
import gc
import weakref

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import turret
from tests.plugins.capture.capture_lab import Observed, assert_same, outcome

X = torch.ones(2)


class Entry:
    def __init__(self, factor):
        self.factor = factor


def looked_up(x, cache, name):
    found = cache.get(name)
    return x * (cache[name].factor if name in cache else -1), None if found is None else found.factor


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["set", "drop", "change", "ask"])), max_size=6))
@settings(max_examples=15, deadline=None)
def test_entries_of_a_weak_dictionary_come_and_go(steps):
    observed = Observed(looked_up, fullgraph=True)
    cache, held = weakref.WeakValueDictionary(), {}
    for number, (name, what) in enumerate(steps):
        if what == "set":
            cache[name] = held[name] = Entry(number)
        elif what == "drop":
            held.pop(name, None)
            gc.collect()
        elif what == "change" and name in held:
            held[name].factor = 10 * number
        assert set(cache) == set(held)
        assert_same(observed(X, cache, name), looked_up(X, cache, name))


def test_a_compiled_call_keeps_nothing_alive_that_a_weak_reference_led_to():
    entry = Entry(3)
    references = [weakref.ref(entry)]

    def program(x):
        found = references[0]()
        return x if found is None else x * found.factor

    observed = Observed(program, fullgraph=True)
    assert_same(observed(X), X * 3)
    del entry
    gc.collect()
    assert references[0]() is None
    references[0] = weakref.ref(other := Entry(5))
    assert_same(observed(X), X * 5)
    assert other.factor == 5


def made_outside():
    turret.graph_break()
    return Entry(2)


def follow(reference):
    found = reference()
    return None if found is None else found.factor


_MADE = ("first = Entry(n)", "first = made_outside()", "first = second = Entry(n)")
_STEPS = (
    "y = y + 1", "turret.graph_break()", "turret.graph_break()", "del first", "first = Entry(5)", "third = first",
    "told.append(follow(kept))", "told.append(kept() is None)", "told.append(len(table))", "table['b'] = first",
    "told.append(follow(weakref.proxy(first).__class__ and kept))", "weakref.finalize(first, told.append, 'end')",
)  # fmt: skip


def _program(made, steps):
    lines = [made, "kept = weakref.ref(first)", *(["table['a'] = first"] if len(steps) % 2 else []), *steps]
    lines += ["y = y * 2", "told.append(kept() is None)"]
    text = "\n ".join(["def program(x, n):", "y, told, table = x * n, [], weakref.WeakValueDictionary()", *lines])
    scope = {"weakref": weakref, "turret": turret, "Entry": Entry, "made_outside": made_outside, "follow": follow}
    exec(f"{text}\n return y, told", scope)
    return scope["program"]


@given(st.sampled_from(_MADE), st.lists(st.sampled_from(_STEPS), max_size=6))
@settings(max_examples=60, deadline=None)
def test_objects_end_where_eagers_end_whatever_breaks_the_graph(made, steps):
    program = _program(made, steps)
    observed = Observed(program)
    for n in (2, 3):
        expected, found = outcome(program, (X, n), {}), outcome(observed, (X, n), {})
        assert_same(found, expected)


def test_a_weak_reference_to_what_a_variable_holds_is_followed():
    def program(x):
        made = Entry(3)
        return x * weakref.ref(made)().factor

    assert_same(Observed(program, fullgraph=True)(X), X * 3)


def test_a_weak_reference_to_a_tensor_of_the_callers_is_followed():
    assert_same(Observed(lambda x: weakref.ref(x)() * 2, fullgraph=True)(X), X * 2)


@pytest.mark.parametrize("kind", [collections.OrderedDict, set, collections.deque])
def test_a_container_in_c_takes_weak_references_where_its_class_does(kind):
    def program(x):
        made = kind([("a", 1)])
        kept = weakref.ref(made)
        return x * len(kept()), kept() is made

    observed = Observed(program, fullgraph=True)
    assert_same(observed(X), program(X))
    assert len(observed.graphs) == 1


@pytest.mark.parametrize("kind", [dict, list])
def test_a_container_that_takes_none_raises_what_python_does(kind):
    def program(x):
        try:
            weakref.ref(kind())
        except TypeError as error:
            return x + 1, str(error)

    assert_same(Observed(program, fullgraph=True)(X), program(X))


@pytest.mark.parametrize("dies", ("before", "between"))
def test_a_reference_whose_object_is_gone_gives_none(dies):
    class Held:
        factor = 3.0

    held = Held()
    reference = weakref.ref(held)

    def program(x, given):
        found = reference() if given is None else given()
        return x.cos() if found is None else x * found.factor

    x = torch.arange(3.0)
    fast = turret.compile(program, fullgraph=True, options={"on_error": "raise", "cache": False})
    if dies == "between":
        for named in (None, reference):
            torch.testing.assert_close(fast(x, named), x * held.factor)
    del held
    gc.collect()
    for gone in (None, reference, weakref.ref(Held())):
        for _ in range(2):
            torch.testing.assert_close(fast(x, gone), x.cos())
    torch.testing.assert_close(fast(x, weakref.ref(Held)), x * 3)


CHANGES = {
    "clear": "held.clear()", "pop": "held.pop()", "replace": "held[0] = None", "inner": "table.clear()",
    "attribute": "owner.entry = None", "delete": "del owner.entry", "key": "keys.clear()", "set": "items.clear()",
    "of a function": "marked.entry = None", "of a holder": "nest.clear()", "queue": "queue.clear()",
    "of a module": "module.entry = 1",
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("made_here", [False, True])
def test_a_reference_to_what_the_call_lets_go_of_is_followed_behind_that(change, made_here):
    names = ("held", "table", "owner", "keys", "items", "marked", "nest", "queue", "module")
    lines = ["kept = reference()", "del kept", "copy = weakref.ref(entry())"] if made_here else []
    gone = "reference() is None, copy() is None" if made_here else "reference() is None"
    lines += [CHANGES[change], f"return x + 1, {gone}"]
    scope = {"weakref": weakref, "torch": torch}
    exec(f"def program(x, reference, entry, {', '.join(names)}):\n " + "\n ".join(lines), scope)
    observed = Observed(scope["program"])

    def call(function):
        entry, owner, module = Entry(2), Entry(1), torch.nn.Identity()
        reference = weakref.ref(entry)

        def marked():
            pass

        held, table, keys, items, nest, queue = [], {}, {}, set(), [], collections.deque()
        if change in ("clear", "pop", "replace"):
            held.append(entry)
        elif change == "inner":
            table["a"] = [entry]
        elif change == "key":
            keys[entry] = 1
        elif change == "set":
            items.add(entry)
        elif change == "of a holder":
            nest.append(Entry(entry))
        elif change == "queue":
            queue.append(entry)
        else:
            place = {"of a function": marked, "of a module": module}.get(change, owner)
            place.entry = entry
        del entry
        return outcome(
            function, (X, reference, reference, held, table, owner, keys, items, marked, nest, queue, module), {}
        )

    for _ in range(2):
        assert_same(call(observed), call(scope["program"]))


def test_changes_that_let_go_of_other_things_leave_a_reference_in_the_graph():
    entry, owner, told = Entry(3), Entry(1), [1]
    reference = weakref.ref(entry)

    def program(x):
        owner.factor = owner.factor + 1
        told.append(2)
        return x * reference().factor

    observed = Observed(program, fullgraph=True)
    assert_same(observed(X), X * 3)
    assert owner.factor == 2 and told == [1, 2]


_KEEPS = (
    "items.append(y)", "items.extend([1, y])", "items.insert(0, 5)", "items += [y]", "items[1] = 7", "items.pop(1)",
    "table['new'] = y", "table.update(other=1)", "table.pop('b')", "table['a'] = table['a']", "among.add(4)",
    "queue.appendleft(y)", "queue.popleft()", "items.append(items.pop(0))", "table.setdefault('c', 3)",
)  # fmt: skip
_DROPS = (
    "items.pop(0)", "items.clear()", "items[0] = 1", "del table['a']", "table['a'] = 5", "table.clear()",
    "among.clear()", "queue.pop()", "del items[:1]",
)  # fmt: skip


def _changes(steps, held):
    body = "\n ".join(["def program(x, items, table, among, queue, reference):", "y = x * 2", *steps])
    scope = {}
    exec(f"{body}\n found = reference()\n return y if found is None else y * found.factor", scope)

    def run(call):
        entry = Entry(3)
        items, table, among, queue = [0, 1], {"b": 1}, {1}, collections.deque([0])
        if "items" in held:
            items[0] = entry
        if "table" in held:
            table["a"] = entry
        else:
            table["a"] = 2
        if "among" in held:
            among.add(entry)
        if "queue" in held:
            queue.append(entry)
        reference = weakref.ref(entry)
        del entry
        return outcome(call, (X, items, table, among, queue, reference), {}), len(items), list(table), len(queue)

    return scope["program"], run


@given(
    st.lists(st.sampled_from(_KEEPS), min_size=1, max_size=4),
    st.lists(st.sampled_from(_DROPS), max_size=2),
    st.sets(st.sampled_from(["items", "table", "among", "queue"]), min_size=1),
)
@settings(max_examples=40, deadline=None)
@pytest.mark.filterwarnings("ignore")
def test_whatever_becomes_of_its_containers_a_referent_lives_as_long_as_eagers(keeps, drops, held):
    program, run = _changes([*keeps, *drops], held)
    observed = Observed(program)
    for _ in range(2):
        assert_same(run(observed), run(program))


@pytest.mark.parametrize("step", _KEEPS)
def test_changes_that_leave_a_referent_where_it_is_leave_its_reference_in_the_graph(step):
    program, run = _changes([step], {"items", "table", "among", "queue"})
    observed = Observed(program, fullgraph=True)
    assert_same(run(observed), run(program))

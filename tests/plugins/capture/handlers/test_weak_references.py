"""Weak references and dictionaries of them that existed before the call: followed, and not kept alive."""

from __future__ import annotations

import gc
import weakref

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.plugins.capture.capture_lab import Observed, assert_same

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

"""What a capture assumed is checked on every call; what changed is captured anew, with the reason on record."""

from __future__ import annotations

import contextlib
import functools
import io
import types
import warnings

import pytest
import torch
from torch import nn

import turret
from tests.plugins.capture.capture_lab import Observed, assert_same, check, outcome
from turret.frames import guard_tree

X = torch.arange(8.0).reshape(2, 4)
SCALE = 2


def test_dtype_device_and_gradients_are_guarded():
    observed = Observed(lambda x: x * 2)
    for value in (X, X.double(), X.clone().requires_grad_(), X.t(), X):
        torch.testing.assert_close(observed(value), value * 2)
    assert len(observed.graphs) == 4
    assert "dtype torch.float64, expected torch.float32" in observed.recompiles[0]


def test_constants_are_guarded():
    def program(x, mode, scale=1.5):
        return x * scale if mode == "scale" else x

    observed = Observed(program)
    assert torch.equal(observed(X, "scale"), X * 1.5)
    assert torch.equal(observed(X, "other"), X)
    assert torch.equal(observed(X, "scale", 2.5), X * 2.5)
    assert torch.equal(observed(X, "scale", float("nan")).isnan(), torch.ones_like(X, dtype=torch.bool))
    assert torch.equal(observed(X, "scale", -0.0).signbit(), (X * -0.0).signbit())
    assert torch.equal(observed(X, "scale", 0.0).signbit(), (X * 0.0).signbit())


def test_a_number_at_the_address_of_the_one_before_is_another_number():
    guard_tree.load()
    observed = Observed(lambda x, scale: x * scale)
    numbers = (2.0, 2.0, 2.0, 3.0, 4.0)
    found = [observed(X, number * 1.5) for number in numbers]  # a product is freed after its call; the next lies there
    assert all(torch.equal(one, X * (number * 1.5)) for one, number in zip(found, numbers, strict=True))


def test_unused_arguments_are_not_guarded():
    observed = Observed(lambda x, unused: x + 1)
    for unused in (1, "a", None, X, [X]):
        observed(X, unused)
    assert len(observed.graphs) == 1 and not observed.recompiles


def test_globals_are_guarded():
    global SCALE

    def program(x):
        return x * SCALE

    observed = Observed(program)
    SCALE = 2
    assert torch.equal(observed(X), X * 2)
    SCALE = 3
    try:
        assert torch.equal(observed(X), X * 3)
    finally:
        SCALE = 2


def test_structure_of_containers_is_guarded():
    def program(x, items, table):
        return x + len(items) + sum(table.values()) + items[0]

    observed = Observed(program)
    for items, table in (([1], {"a": 1}), ([1, 2], {"a": 1}), ([1], {"b": 1}), ([1], {"a": 2}), ((1,), {"a": 1})):
        assert torch.equal(observed(X, items, table), program(X, items, table))


def test_modes_are_guarded():
    weight = torch.ones(4, requires_grad=True)

    def program(x):
        return x * weight

    observed = Observed(program)
    assert observed(X).requires_grad
    with torch.no_grad():
        assert not observed(X).requires_grad
    assert observed(X).requires_grad
    assert len(observed.graphs) == 2


def test_attributes_methods_and_training_are_guarded():
    module = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
    observed = Observed(module.__call__)
    observed(X)
    module.eval()
    torch.testing.assert_close(observed(X), module(X))
    module[0].weight = nn.Parameter(torch.zeros(4, 4))
    torch.testing.assert_close(observed(X), module(X))
    module.append(nn.ReLU())
    torch.testing.assert_close(observed(X), module(X))
    module[0].register_forward_hook(lambda m, a, out: out + 100)
    torch.testing.assert_close(observed(X), module(X))


def test_a_patched_method_is_noticed():
    class Scaler:
        def scale(self, x):
            return x * 2

    observed = Observed(lambda x, s: s.scale(x))
    scaler = Scaler()
    assert torch.equal(observed(X, scaler), X * 2)
    Scaler.scale = lambda self, x: x * 5
    assert torch.equal(observed(X, scaler), X * 5)
    scaler.scale = lambda x: x * 7
    assert torch.equal(observed(X, scaler), X * 7)


def test_a_size_that_changes_becomes_dynamic():
    observed = Observed(lambda x: x.reshape(-1, 2) * x.shape[0])
    for rows in (2, 3, 5, 9):
        value = torch.randn(rows, 4)
        torch.testing.assert_close(observed(value), value.reshape(-1, 2) * rows)
    assert len(observed.graphs) == 2
    assert "size [3, 4], expected [2, 4]" in observed.recompiles[0]


def test_dynamic_true_makes_one_graph_and_false_one_for_each_size():
    for dynamic, graphs in ((True, 1), (False, 3)):
        observed = Observed(lambda x: x.sum() / x.shape[0], dynamic=dynamic)
        for rows in (2, 3, 5):
            value = torch.randn(rows, 4)
            torch.testing.assert_close(observed(value), value.sum() / rows)
        assert len(observed.graphs) == graphs


def test_marked_dimensions_are_dynamic():
    observed = Observed(lambda x: x.sum(0) * x.shape[0])
    for rows in (2, 3, 5):
        value = torch.randn(rows, 4)
        value._dynamo_dynamic_indices = {0}
        torch.testing.assert_close(observed(value), value.sum(0) * rows)
    assert len(observed.graphs) == 1


def test_a_branch_on_a_dynamic_size_is_guarded():
    def program(x):
        return x + 1 if x.shape[0] > 4 else x - 1

    observed = Observed(program, dynamic=True)
    for rows in (2, 3, 5, 9, 4):
        value = torch.randn(rows, 3)
        torch.testing.assert_close(observed(value), program(value))
    assert len(observed.graphs) == 2
    assert observed.recompiles[0].startswith("program") or "sizes" in observed.recompiles[0]


def test_equal_sizes_of_two_inputs_need_not_stay_equal():
    observed = Observed(lambda x, y: (x * 2, y * 3), dynamic=True)
    for a, b in ((4, 4), (4, 6), (3, 3)):
        x, y = torch.randn(a), torch.randn(b)
        found = observed(x, y)
        torch.testing.assert_close(found, (x * 2, y * 3))


def test_an_int_that_changes_becomes_a_symbol():
    observed = Observed(lambda x, n: x * n + n // 2)
    for n in (3, 4, 7, 9, 100):
        torch.testing.assert_close(observed(X, n), X * n + n // 2)
    assert len(observed.graphs) == 2


def test_after_the_limit_the_function_runs_as_python_and_says_so_once():
    observed = Observed(lambda x, s: x * len(s))
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for n in range(12):
            assert torch.equal(observed(X, "a" * n), X * n)
    assert len(observed.graphs) == 8
    assert sum("recompile_limit" in str(w.message) for w in seen) == 1
    assert torch.equal(observed(X, "aa"), X * 2)


def test_guards_print_as_a_person_would_write_them():
    observed = Observed(lambda x, table: x * table["k"])
    observed(X, {"k": 3})
    text = str(observed.units[0].guards)
    assert "EQUALS table['k'] 3" in text and "HAS_KEY table 'k'" in text and "TENSOR x" in text


def test_a_missing_attribute_that_appears_is_noticed():
    class Options:
        pass

    def program(x, options):
        return x * getattr(options, "factor", 1)

    options = Options()
    observed = Observed(program)
    assert torch.equal(observed(X, options), X)
    options.factor = 4
    assert torch.equal(observed(X, options), X * 4)


def test_nested_functions_with_other_cells_share_a_capture():
    def make(scale):
        return lambda x: x * scale

    check(lambda x: make(3)(x) + make(4)(x), X)


def test_random_numbers_are_those_of_plain_execution():
    check(lambda x: torch.nn.functional.dropout(x, 0.5) + torch.rand(2, 4), X, calls=3)


def test_identity_of_lists_is_guarded():
    mine = Observed(lambda x, a, b: (x + 1, a is b))
    one = [1]
    assert mine(X, one, [1])[1] is False
    assert mine(X, one, one)[1] is True


@turret.disable
def fail():
    raise KeyError


def test_a_bound_method_of_a_list_is_no_reason_to_compile_again():
    def program(x, items):
        append = items.append
        with contextlib.suppress(KeyError):
            fail()
        append(1)
        return x + 1

    mine = Observed(program)
    for _ in range(4):
        assert mine(X, items := [])[0, 0] == 1
        assert items == [1]
    assert len(mine.recompiles) == 0


class Remembering:
    def __init__(self, value):
        self.value, self.asked = value, []

    @functools.cached_property
    def cached(self):
        self.asked.append("cached")
        return self.value * 2

    def __getattr__(self, name):
        self.asked.append(name)
        return 3


def test_guards_run_no_code_of_the_program_for_attributes_that_are_missing():
    def program(x, box):
        return x + box.cached.sum() + box.level

    observed = Observed(program)
    first = Remembering(torch.ones(2))
    for _ in range(2):
        first.level = 5
        assert_same(observed(torch.ones(2), first), torch.full((2,), 10.0))
    assert first.asked == ["cached"]
    second = Remembering(torch.ones(2))
    assert_same(observed(torch.ones(2), second), torch.full((2,), 8.0))
    assert second.asked == ["cached", "level"]


class Summand:
    def __add__(self, other):
        return other + 1


def test_a_global_that_is_gone_and_was_only_handed_on_raises_the_name_error():
    scope = {"torch": torch, "summand": Summand(), "print_to": io.StringIO()}
    exec("def program(y):\n    print(1, file=print_to)\n    return summand + y", scope)
    observed = Observed(scope["program"])
    for present in (True, False, True, False):
        held = scope["summand"] if present else scope.pop("summand")
        assert outcome(observed, (torch.ones(2),), {})[0] == outcome(scope["program"], (torch.ones(2),), {})[0]
        scope["summand"] = held
    del scope["print_to"]
    with pytest.raises(NameError, match="print_to"):
        observed(torch.ones(2))


def test_a_device_that_two_objects_hold_is_compared_for_both():
    """Each tensor's device is an object of its own."""

    def program(x, first, second):
        return torch.ones(3, device=first.device) + torch.ones(3, device=second.device) + x

    observed = Observed(program, fullgraph=True)
    for _ in range(3):
        device = torch.ones(3).device
        held = [types.SimpleNamespace(device=device) for _ in range(2)]
        assert_same(observed(torch.ones(3), *held), program(torch.ones(3), *held))
    assert len(observed.graphs) == 1


NAN = float("nan")
ALIKE = [0.0, -0.0, NAN, False, 1, True, complex(0, 1), complex(-0.0, 1), complex(1, -0.0), complex(NAN, -0.0)]
"""Values of which some are equal and yet not the same."""
HOLDERS = {
    "alone": lambda v: v,
    "tuple": lambda v: (v, 2),
    "nested": lambda v: [((v,), 1)],
    "value": lambda v: {1: v},
    "key": lambda v: {v: 1},
    "key in a tuple": lambda v: {(v, 1): 1},
    "set": lambda v: {v},
    "frozenset": lambda v: frozenset([v]),
    "slice": lambda v: slice(v, 1),
}


@pytest.mark.parametrize("holds", HOLDERS.values(), ids=HOLDERS)
def test_constants_that_are_equal_and_not_the_same_are_told_apart(holds):
    def program(x, held):
        return x + 1, repr(held)

    compiled = turret.compile(program, options={"on_error": "raise", "cache": False, "recompile_limit": 50})
    x = torch.ones(2)
    for value in (*ALIKE, *ALIKE):
        assert compiled(x, holds(value))[1] == repr(holds(value))


def test_ranges_of_the_same_numbers_keep_their_ends():
    compiled = turret.compile(lambda x, numbers: (x + 1, numbers.stop), options={"on_error": "raise", "cache": False})
    for stop in (3, 4, 3):
        assert compiled(torch.ones(2), range(0, stop, 2))[1] == stop

"""With fullgraph, numbers and sizes that come from tensors' values are symbols of the one graph."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
from torch.fx.experimental import symbolic_shapes

import turret
from tests.plugins.capture.capture_lab import Observed, assert_same, check
from turret.errors import CaptureError
from turret.hooks.hookspecs import hookimpl


def whole(function, *calls) -> Observed:
    """Capture with fullgraph; every call must give what eager gives, all from one graph."""
    observed = Observed(function, fullgraph=True)
    for args in calls:
        assert_same(observed(*args), function(*args))
    assert len(observed.graphs) == 1
    return observed


def test_item_and_conversions_are_numbers_of_the_graph():
    def f(x):
        return x * x.sum().item(), float(x.max()), int(x[0])

    whole(f, (torch.tensor([1.0, 2.0]),), (torch.tensor([5.0, 3.0]),))


def test_results_whose_size_depends_on_data():
    def f(x):
        count = int((x > 0).sum())
        return torch.nonzero(x) * 2, x[x > 0] + 1, x.masked_select(x > 1), torch.zeros(count)

    whole(f, (torch.tensor([1.0, 0.0, 2.0]),), (torch.tensor([0.0, 0.0, 3.0]),))


def test_an_index_that_depends_on_data():
    whole(lambda x, i: x[i.item()] + 1, (torch.arange(4.0), torch.tensor(1)), (torch.arange(4.0), torch.tensor(-1)))


def test_rounding_of_a_number_that_depends_on_data():
    def f(x):
        return x * min(math.ceil(x.max().item() * 8), 5)

    whole(f, (torch.ones(2),), (torch.ones(2) / 4,))


def test_tolist_gives_numbers_of_the_graph():
    whole(lambda x: [v + 1 for v in x.tolist()], (torch.ones(3),), (torch.zeros(3),))


def test_a_list_of_tensors_without_dimensions_becomes_a_tensor_without_history():
    inputs = torch.ones(3, requires_grad=True), torch.arange(3.0, requires_grad=True)
    whole(lambda x: torch.tensor([x.sum(), x.max()]) * 2, *((x,) for x in inputs))


def test_a_branch_on_such_a_number_may_return_the_argument_itself():
    observed, given = Observed(lambda x: x + 1 if x.sum().item() > 0 else x, fullgraph=True), -torch.ones(2)
    assert observed(given) is given
    torch.testing.assert_close(observed(-given), torch.full((2,), 2.0))
    assert len(observed.graphs) == 1


def test_a_branch_on_such_a_number_that_is_part_of_no_graph_is_reported():
    def looped(x):
        while x.sum().item() > 0:
            x = x - 1
        return x

    with pytest.raises(CaptureError, match="an unbacked symbol"):
        Observed(looped, fullgraph=True)(torch.ones(2))


def test_without_fullgraph_they_break_the_graph():
    def f(x):
        return x[x > 0] * x.sum().item()

    check(f, torch.tensor([1.0, -2.0, 4.0]), breaks=None)


def defined(text: str):
    """The function ``f`` of a text: pytest rewrites the asserts of this file."""
    scope = {}
    exec(text, scope)
    return scope["f"]


def test_an_assert_on_a_tensor_is_checked_by_the_graph():
    f = defined("def f(x):\n  assert x.sum() > 0, 'must be positive'\n  assert (x < 10).all()\n  return x + 1\n")
    observed = whole(f, (torch.ones(2),), (torch.ones(2) * 2,))
    with pytest.raises(AssertionError, match="must be positive"):
        observed(-torch.ones(2))
    with pytest.raises(AssertionError):
        observed(torch.ones(2) * 20)


def test_an_assert_on_a_comparison_of_lists_of_tensors_is_not_left_to_the_graph():
    f = defined("def f(x, y):\n  assert [x] != [y]\n  return x + y\n")
    with pytest.raises(CaptureError):
        Observed(f, fullgraph=True)(torch.ones(1), torch.zeros(1))


def test_a_warning_is_given_after_a_full_graph_on_every_call():
    def f(x):
        warnings.warn("careful", RuntimeWarning, stacklevel=2)
        return x + 1

    observed = Observed(f, fullgraph=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            assert_same(observed(torch.ones(1)), torch.ones(1) + 1)
    assert [(str(w.message), w.category) for w in caught] == [("careful", RuntimeWarning)] * 2


def test_a_program_that_raises_raises_its_own_exception_in_a_full_graph():
    def helper(items, x):
        return next(items) + x

    def f(x):
        helper((x + n for n in range(3)), x)
        raise ValueError("the end")

    with pytest.raises(ValueError, match="the end"):
        Observed(f, fullgraph=True)(torch.ones(2))


def test_elements_at_places_that_depend_on_data_are_read_and_written():
    def f(x, i):
        n = i.item()
        y = x.clone()
        y[:, n] = 7.0
        y[n, 1:] += x[n, 1]
        return x[n, None, 1:], x[..., n], y

    inputs = torch.arange(12.0).reshape(4, 3)
    whole(f, (inputs, torch.tensor(1)), (inputs, torch.tensor(-2)))


def test_a_truth_that_is_only_a_value_is_a_number_of_the_graph():
    def f(x):
        return bool((x > 1).any()), bool((x > 1).any().item()), x + 1

    whole(f, (torch.ones(2),), (torch.ones(2) * 2,))


def test_checks_of_torch_become_nodes_with_their_messages():
    def f(x):
        n = x.sum().item()
        torch._check(n > 0, lambda: f"of {x.dim()} dimensions")
        torch._check_is_size(int(x[0]), max=5)
        return x * n

    observed = whole(f, (torch.ones(2),), (torch.ones(2) * 2,))
    with pytest.raises(RuntimeError, match="of 1 dimensions"):
        observed(-torch.ones(2))
    with pytest.raises(RuntimeError):
        observed(torch.tensor([7.0, 1]))


def test_a_check_of_sizes_is_a_guard_and_a_failing_one_the_programs_own_error():
    def f(x):
        torch._check(x.shape[0] < 5, lambda: "too long")
        return x * 2

    observed = Observed(f, fullgraph=True, dynamic=True)
    for n in (3, 4):
        assert_same(observed(torch.ones(n)), torch.ones(n) * 2)
    with pytest.raises(RuntimeError, match="too long"):
        observed(torch.ones(6))


def test_a_message_that_is_not_known_before_the_graph_runs_breaks_it():
    def f(x):
        n = x.sum().item()
        torch._check(n > 0, lambda: f"got {n}")
        return x * n

    with pytest.raises(CaptureError):
        Observed(f, fullgraph=True)(torch.ones(2))


@pytest.mark.parametrize(
    ("options", "breaks"),
    [
        ({"capture_scalar_outputs": True, "capture_dynamic_output_shape_ops": True}, 0),
        ({"capture_scalar_outputs": True}, 1),
        ({"capture_dynamic_output_shape_ops": True}, 1),
    ],
)
def test_the_options_keep_numbers_and_sizes_in_the_graph_each_for_itself(options, breaks):
    def f(x):
        return x[x > 0] * 2, x * x.sum().item()

    watch = Breaks()
    fast = turret.compile(f, options={"capture": "turret", "on_error": "raise", **options}, plugins=[watch])
    for x in (torch.tensor([1.0, -2.0, 4.0]), torch.tensor([-1.0, -2.0])):
        assert_same(fast(x), f(x))
    assert bool(watch.reasons) == bool(breaks)


class Breaks:
    def __init__(self):
        self.reasons = []

    @hookimpl
    def turret_event(self, event):
        if event.kind == "graph_break":
            self.reasons.append(event.message)


def test_the_break_at_a_number_says_which_option_keeps_it_in_the_graph():
    watch = Breaks()
    f = turret.compile(lambda x: x * x.sum().item(), options={"capture": "turret"}, plugins=[watch])
    f(torch.ones(2))
    assert "capture_scalar_outputs" in watch.reasons[0]
    watch.reasons.clear()
    turret.compile(lambda x: x[x > 0] * 2, options={"capture": "turret"}, plugins=[watch])(torch.ones(2))
    assert "capture_dynamic_output_shape_ops" in watch.reasons[0]


def test_an_assert_on_a_number_is_checked_by_the_graph():
    f = defined("def f(x, s):\n  m = x.max().item()\n  assert m > 0, 'must be positive'\n  return x / m * s\n")
    observed = whole(f, (torch.ones(2), 2), (torch.ones(2) * 2, 2))
    with pytest.raises(AssertionError, match="must be positive"):
        observed(-torch.ones(2), 2)


def test_an_assert_on_a_size_is_a_guard():
    f = defined("def f(x):\n  assert x.shape[0] > 2, 'too few'\n  assert x.shape[0] - 1\n  return x + 1\n")
    observed = Observed(f, fullgraph=True, dynamic=True)
    for size in (3, 4):
        assert_same(observed(torch.ones(size)), torch.full((size,), 2.0))
    assert len(observed.graphs) == 1
    with pytest.raises(AssertionError, match="too few"):
        observed(torch.ones(2))


ONES, ZEROS, NANS = torch.ones(3), torch.zeros(3), torch.full((3,), math.nan)


@pytest.mark.parametrize(
    "program",
    [
        lambda x, y: y / max(x.sum(), 1),
        lambda x, y: y / max(1, x.sum()),
        lambda x, y: y - min(x.sum(), 0.5),
        lambda x, y: min(2.0, x.sum()) * y,
        lambda x, y: y > max(x.sum(), y.detach().sum()),
        lambda x, y: min(max(len(x) / max(x.sum(), 1), 1.05), 21) * y,
        lambda x, y: (r := 6 / max(x.sum(), 1)) / (r + 1) * y - 0.5 * r * y,
        lambda x, y: (max(x.sum(), 1) + y.sum(), max(x.sum(), 1), [min(1, x.sum())]),
        lambda x, y: y / max(x.long().sum(), 1) + max(x.sum(), 0),
    ],
)
def test_the_larger_of_a_tensor_and_a_number(program):
    for y in (torch.arange(3.0), torch.arange(3.0, requires_grad=True)):
        whole(program, (ONES, y), (ZEROS, y), (NANS, y))
        observed = check(program, ONES, y, breaks=0)
        assert_same(observed(ZEROS, y), program(ZEROS, y))


def test_where_it_matters_whether_it_is_a_tensor_python_decides():
    for program in (
        lambda x, y: y.long() + max(x.sum(), 1),
        lambda x, y: 2 / max(x.sum(), 0) + y if x.sum() > 0 else y,
        lambda x, y: y.double() + max(x.sum(), 0.1),
        lambda x, y: isinstance(max(x.sum(), 1), int),
        lambda x, y: y * max((x * y).sum(), 1) if y.requires_grad else y.double() + max(x.sum(), 0.3),
    ):
        for y in (torch.arange(3.0), torch.arange(3.0).requires_grad_()):
            observed = Observed(program)
            for x in (ONES, ZEROS, NANS):
                assert_same(observed(x, y), program(x, y))


def test_a_change_in_place_by_one_of_two():
    def f(x, y):
        held = y
        y /= max(x.sum(), 2)
        return held + 1

    for x in (ONES, ZEROS):
        check(f, x, torch.arange(3.0), graphs=1)


def test_warnings_that_the_program_ignores():
    def f(x):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            warnings.warn("old", DeprecationWarning, stacklevel=2)
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="care")
                warnings.warn("careful", stacklevel=2)
                warnings.warn("old", DeprecationWarning, stacklevel=2)
            warnings.warn("careful", RuntimeWarning, stacklevel=2)
        warnings.warn("old", DeprecationWarning, stacklevel=2)
        return x + 1

    observed = Observed(f, fullgraph=True)
    for call in (observed, f, observed):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert torch.equal(call(torch.ones(2)), torch.full((2,), 2.0))
        assert [(str(w.message), w.category) for w in caught] == [
            ("careful", RuntimeWarning), ("old", DeprecationWarning)
        ]  # fmt: skip


def test_other_changes_of_warnings_are_the_programs_own():
    def f(x, action):
        with warnings.catch_warnings():
            warnings.simplefilter(action)
            return x + 1

    with pytest.raises(CaptureError, match="which warnings"):
        Observed(f, fullgraph=True)(torch.ones(2), "error")
    check(f, torch.ones(2), "ignore", breaks=None)
    check(lambda x: (warnings.simplefilter("ignore"), x + 1)[1], torch.ones(2), breaks=None)


@pytest.mark.parametrize("name", ["statically_known_true", "guard_size_oblivious", "guard_or_false", "guard_or_true"])
def test_questions_about_sizes_are_answered_while_capturing(name):
    question = getattr(symbolic_shapes, name)

    def program(x):
        return x * 2 if question(x.shape[0] > 2) else x - 1

    for dynamic in (False, True):
        observed = Observed(program, fullgraph=True, dynamic=dynamic)
        for size in (5, 1):
            expected = program(torch.ones(size))
            assert (dynamic and name == "statically_known_true") or torch.equal(observed(torch.ones(size)), expected)


def test_what_depends_on_data_has_the_answer_that_is_asked_for():
    def program(x):
        number = x.sum().item()
        false = symbolic_shapes.guard_or_false(number > 5)
        true = symbolic_shapes.guard_or_true(number > 5)
        return x + (1 if false else 2) + (10 if true else 20)

    observed = Observed(program, fullgraph=True)
    assert torch.equal(observed(torch.tensor([9])), torch.tensor([21]))


@pytest.mark.parametrize(
    "number",
    [
        lambda n, x: n + 1e16 - 1e16, lambda n, x: n * 3 / 3, lambda n, x: n * False, lambda n, x: n - n,
        lambda n, x: n * 0.0, lambda n, x: -n * 0, lambda n, x: 1 + n + 1e16, lambda n, x: n * x.shape[0] / 7 - n,
        lambda n, x: n * 1e308 * 10 / 1e308, lambda n, x: n + x[0].item() + 0.1 + n,
    ],
)  # fmt: skip
def test_floats_that_depend_on_data_are_computed_as_python_does(number):
    def program(x):
        n = x[1].item()
        return x * number(n, x), number(n, x)

    compiled = turret.compile(program, fullgraph=True)
    for size, seed in ((3, 0), (3, 1), (5, 2), (4, 3)):
        x = torch.randn(size, generator=torch.Generator().manual_seed(seed))
        found, expected = compiled(x), program(x)
        assert torch.equal(found[0], expected[0]) and repr(found[1]) == repr(expected[1])


def counted(n, x):
    out = torch.empty(0, dtype=torch.int64)
    made = torch.arange(n.item(), out=out)
    return made is out, out + 1, out.shape[0]


def counted_in_floats(n, x):
    return torch.arange(0, n.item(), out=torch.empty(0, dtype=torch.float64)).sum()


def computed(n, x):
    held = [torch.empty(0)]
    torch.add(torch.ones(n.item()), 1, out=held[0])
    held[0].mul_(2)
    return held


def found(n, x):
    places, values = torch.empty(0, dtype=torch.int64), torch.empty(0)
    torch.nonzero(x > n, out=places)
    torch.masked_select(x, x > n, out=values)
    return places * 2, values + 1


def filled_twice(n, x):
    out = torch.empty(0, dtype=torch.int64)
    torch.arange(n.item(), out=out)
    out.add_(1)
    torch.arange(n.item(), out=out)
    return out


@pytest.mark.parametrize("program", (counted, counted_in_floats, computed, found, filled_twice))
def test_an_empty_argument_out_takes_a_result_of_a_size_that_depends_on_data(program):
    options = {"capture_scalar_outputs": True, "capture_dynamic_output_shape_ops": True, "cache": False}
    fast = turret.compile(program, fullgraph=True, options=options)
    for n in (3, 5, 2):
        args = torch.tensor(n), torch.arange(6.0)
        assert_same(fast(*args), program(*args))


def in_memory_of_another(n, x):
    held = torch.zeros(5, dtype=torch.int64)
    return torch.arange(n.item(), out=held[:0]), held


def seen_by_a_view(n, x):
    out = torch.empty(0, dtype=torch.int64)
    view = out[:]
    return torch.arange(n.item(), out=out), view


def of_another_type(n, x):
    return torch.add(torch.ones(n.item()), 1, out=torch.empty(0, dtype=torch.float64))


@pytest.mark.parametrize("program", (in_memory_of_another, seen_by_a_view, of_another_type))
def test_an_argument_out_that_others_see_or_that_converts_is_left_to_python(program):
    args = torch.tensor(3), torch.arange(6.0)
    with pytest.raises(CaptureError):
        turret.compile(program, fullgraph=True, options={"capture_scalar_outputs": True, "cache": False})(*args)
    assert_same(turret.compile(program, options={"cache": False})(*args), program(*args))

"""Graphs with numbers and sizes that depend on data compute what eager computes, from one compilation for all data."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils import _pytree as pytree

import turret
from turret.hooks.hookspecs import hookimpl

ASKED = {"capture_scalar_outputs": True, "capture_dynamic_output_shape_ops": True}
CAPTURES = ("turret", "dynamo")


@pytest.fixture(autouse=True)
def forget_what_was_compiled():
    yield
    turret.reset()


class Watch:
    """Counts graphs that were compiled and breaks."""

    cache_key = "watch"

    def __init__(self) -> None:
        self.events: list[Any] = []

    @hookimpl
    def turret_event(self, event: Any) -> None:
        self.events.append(event)

    def count(self, kind: str) -> int:
        return sum(event.kind == kind for event in self.events)

    def plan(self) -> Any:
        return next(e.product for e in self.events if e.kind == "product" and e.stage == "codegen")


def compiled(function: Callable, capture: str = "turret", watch: Watch | None = None, **settings: Any) -> Callable:
    options = {"capture": capture, "on_error": "raise", "cache": False, **ASKED}
    return turret.compile(function, options=options, plugins=[watch] if watch else [], **settings)


def with_gradients(function: Callable, args: Iterable[torch.Tensor]) -> tuple[Any, Any]:
    """Results, and gradients of weighted sums of them with respect to the floating-point arguments."""
    given = [a.detach().clone().requires_grad_(a.is_floating_point()) for a in args]
    results = function(*given)
    leaves = [r for r in pytree.tree_leaves(results) if isinstance(r, torch.Tensor) and r.requires_grad]
    if not leaves:
        return results, None
    total = sum((r * torch.arange(1.0, r.numel() + 1).reshape(r.shape)).sum() for r in leaves)
    wanted = [g for g in given if g.requires_grad]
    return results, torch.autograd.grad(total, wanted, allow_unused=True)


def equal(found: Any, expected: Any) -> None:
    assert pytree.tree_structure(found) == pytree.tree_structure(expected)
    for one, other in zip(pytree.tree_leaves(found), pytree.tree_leaves(expected), strict=True):
        assert type(one) is type(other)
        torch.testing.assert_close(one, other, equal_nan=True)


def agrees(function: Callable, *calls: tuple, capture: str = "turret") -> Watch:
    """One graph gives what eager gives for every call, values and gradients."""
    watch = Watch()
    fast = compiled(function, capture, watch, fullgraph=True, dynamic=False)
    for args in calls:
        equal(with_gradients(fast, args), with_gradients(function, args))
    forwards = [e for e in watch.events if e.kind == "compile_started" and not e.name.endswith(".backward")]
    assert len(forwards) == 1 and watch.count("fallback") == 0
    return watch


ROWS = torch.tensor([[1.0, -2, 3], [0.5, 4, -1], [-3, 2, 2], [0, 1, -1], [2, 2, 5], [-1, -1, 0]])
VARIANTS = (ROWS, -ROWS.abs(), ROWS.abs() + 1, torch.where(torch.arange(6)[:, None] == 2, ROWS + 9, -1.0))
"""Of the first column some rows are positive, none, all, one."""


def on_rows(function: Callable, capture: str = "turret") -> Watch:
    return agrees(function, *((x,) for x in VARIANTS), capture=capture)


# Numbers.


def scaled(x):
    return x * x.detach().abs().sum().item(), x.sin() / (x.detach().max().item() ** 2 + 3)


def counted(x):
    n = int((x > 0).sum())
    return torch.ones(n, 2) * x.sum(), n, n * 2 - 1, n / 4


def listed(x):
    return [v * x[0] for v in (x[:, 0] > 0).long().tolist()]


def decided(x):
    return (x > 0).any().item(), bool((x > 100).any()), float(x.detach().sum()) * 2


def halves(x):
    n = x.detach().sum().item()
    return x.detach().to(torch.bfloat16) * n, torch.full((2,), n), x.clamp(max=n), (x.long() + n)


# Sizes.


def masked(x):
    y = x[x[:, 0] > 0]
    return y * 2, y.sum(0), y.sum(1), y.softmax(1), y @ x.t()


def selected(x):
    y = x.masked_select(x > 0)
    return y.exp(), y.mean(), y.reshape(-1, 1) + y.reshape(1, -1)


def found(x):
    rows, columns = torch.nonzero(x > 0, as_tuple=True)
    return x[rows, columns] * 2, rows + columns, torch.zeros(6, 3).index_put((rows, columns), x[rows, columns])


def distinct(x):
    values, inverse, counts = torch.unique(x.detach().round(), return_inverse=True, return_counts=True)
    return values * 2, inverse.float().mean(), counts.sum()


def repeated(x):
    return torch.repeat_interleave(x, (x[:, 0] > 0).long() * 2, dim=0).cos()


def joined(x):
    y = x[x[:, 0] > 0]
    return torch.cat([y, x]), torch.cat([x, y * 2]).cumsum(1), torch.stack([y, y]), y.repeat(2, 1), y.flip(0)


def nested(x):
    y = x[x[:, 0] > 0] * 2
    z = y[y[:, 1] > 3]
    return z.t().contiguous(), z.sum(), F.layer_norm(z, (3,))


def viewed(x):
    y = x[x[:, 0] > 0].sin()
    return y, y.reshape(-1), y.t(), y[:, 1]


def written(x):
    y = x.clone()
    y[y > 1] = 0
    y.masked_fill_(y < -1, 3.0)
    return y * 2, y.masked_scatter(x > 0, x * 3)


def sliced(x):
    n = int((x[:, 0] > 0).sum())
    return x[:n].sum(0), x[n:] * 2, x[-n:], x[n - 2 : n].sin(), x[:, :n]


def split(x):
    n = int((x[:, 0] > 0).sum())
    torch._check(n <= 6)
    left, right = torch.split(x, [n, 6 - n])
    return left.sin(), right.cos()


PROGRAMS = (
    scaled, counted, listed, decided, halves, masked, selected, found, distinct, repeated, joined, nested, viewed,
    written, sliced, split,
)  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_one_graph_serves_all_data(program):
    on_rows(program)


@pytest.mark.parametrize("program", [scaled, counted, decided, masked, found, viewed, written, sliced, split])
def test_one_graph_of_torch_dynamo_serves_all_data(program):
    on_rows(program, "dynamo")


def test_positions_count_from_both_ends():
    def at(x, i):
        n = i.item()
        y = x.clone()
        y[n] = x[0] * 2
        y[:, n] += 1
        return x[n] * 2, x[:, n].sin(), x[n, 1:], y

    agrees(at, *((ROWS, torch.tensor(n)) for n in (0, 1, 2, -1, -3)))


def test_a_position_outside_is_refused_when_the_graph_runs():
    fast = compiled(lambda x, i: x[i.item()] * 2, fullgraph=True)
    fast(ROWS, torch.tensor(5))
    for n in (6, -7):
        with pytest.raises(IndexError, match="is out of bounds for dimension 0"):
            fast(ROWS, torch.tensor(n))


def test_an_input_is_written_to_where_data_says():
    def write(x, m):
        x[m] = 7.0
        return x[m].sum()

    fast = compiled(write, fullgraph=True, dynamic=False)
    for m in (ROWS > 0, ROWS > 99, ROWS < 99):
        mine, plain = ROWS.clone(), ROWS.clone()
        equal(fast(mine, m), write(plain, m))
        assert torch.equal(mine, plain)


@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.lists(st.floats(-4, 4, width=32), min_size=3, max_size=3), min_size=5, max_size=5))
def test_whatever_the_data(rows):
    x = torch.tensor(rows)
    equal(with_gradients(_shared(), (x,)), with_gradients(_several, (x,)))


def _several(x):
    y = x[x[:, 0] > 0]
    n = int((x > 1).sum())
    return y.softmax(1), (y * n).sum(0), torch.arange(n) * 2, x[:n], torch.cat([y, x])[:, 1], y.t() @ y


_kept: list[Callable] = []


def _shared() -> Callable:
    """The program compiled once for all examples: later data never compile it again."""
    if not _kept:
        _kept.append(compiled(_several, fullgraph=True, dynamic=False))
    return _kept[0]


# Assertions.


@pytest.mark.parametrize("capture", CAPTURES)
def test_what_a_program_asserts_is_checked_when_the_graph_runs(capture):
    def asserting(x):
        n = int((x > 0).sum())
        torch._check(n >= 2, lambda: "too few")
        torch._check(n != 5)
        return torch.ones(n) * 2

    fast = compiled(asserting, capture, fullgraph=True, dynamic=False)
    good, few, odd = ROWS[:, 0], -ROWS[:, 0].abs(), torch.tensor([1.0, 1, 1, 1, 1, 0])
    assert torch.equal(fast(good), asserting(good))
    with pytest.raises(RuntimeError, match="too few" if capture == "turret" else "too few|Runtime assertion"):
        fast(few)
    with pytest.raises(RuntimeError):
        fast(odd)
    assert torch.equal(fast(good), asserting(good))


def test_sizes_that_must_agree_are_checked_before_kernels_read():
    def together(x, y):
        a, b = x[x > 0], y[y > 0]
        torch._check(a.shape[0] == b.shape[0])
        return a + b, (a * b).sum()

    x, y = torch.tensor([1.0, -1, 2]), torch.tensor([3.0, 4, -1, -2])
    watch = agrees(together, (x, y), (x * 2, y.flip(0)))
    text = str(watch.plan())
    assert text.index("_assert_scalar") < text.index("(k2_add_sum)")
    with pytest.raises(RuntimeError, match="True"):
        compiled(together, fullgraph=True)(x, y + 9)


def test_a_size_that_must_not_be_negative_is_checked():
    def make(i):
        n = i.item()
        torch._check(n >= 0)
        return torch.zeros(n) + 1

    fast = compiled(make, fullgraph=True)
    assert torch.equal(fast(torch.tensor(3)), torch.ones(3)) and fast(torch.tensor(0)).shape == (0,)
    with pytest.raises(RuntimeError):
        fast(torch.tensor(-1))


# What cannot be known.


@pytest.mark.parametrize("capture", CAPTURES)
def test_a_branch_on_data_breaks_the_graph_and_goes_on(capture):
    def branching(x):
        n = int((x > 0).sum())
        y = torch.zeros(n) + 1
        if n > 3:
            y = y * 2
        return y, n

    watch = Watch()
    fast = compiled(branching, capture, watch, dynamic=False)
    for x in VARIANTS:
        equal(fast(x), branching(x))
    assert watch.count("graph_break") >= 1


@pytest.mark.parametrize("capture", CAPTURES)
def test_a_branch_on_data_is_an_error_of_a_full_graph(capture):
    def halved(x):
        while x.sum().item() > 1:  # Turret makes one graph of an ``if``, but not of a loop
            x = x / 2
        return x

    fast = compiled(halved, capture, fullgraph=True)
    with pytest.raises(turret.errors.CaptureError, match="data-dependent"):
        fast(ROWS)


@pytest.mark.parametrize("capture", CAPTURES)
def test_without_the_options_they_break_the_graph(capture):
    def program(x):
        return x[x > 0] * x.sum().item()

    watch = Watch()
    fast = turret.compile(program, options={"capture": capture, "on_error": "raise"}, plugins=[watch], dynamic=False)
    equal(fast(ROWS), program(ROWS))
    assert watch.count("graph_break") >= 1


def test_a_plan_reads_back_from_its_text():
    from turret.plan.executor import load
    from turret.storage import codec

    def program(x):
        return x[x > 0] * x.sum().item(), torch.zeros(int((x > 1).sum()))

    watch = Watch()
    compiled(program, watch=watch, fullgraph=True, dynamic=False)(ROWS)
    plan = watch.plan()
    assert len(plan.bound_symbols) == 3 and len(plan.float_symbols) == 1 and not plan.size_sources
    run = load(codec.loads(codec.dumps(plan)))
    for x in VARIANTS:
        equal(tuple(run([x])), program(x))


def test_a_second_process_finds_the_graph_in_the_cache(tmp_path):
    def program(x):
        y = x[x[:, 0] > 0]
        return y * y.sum().item(), y.t()

    for expected in ("cache_miss", "cache_hit"):
        watch = Watch()
        options = {"capture": "turret", "on_error": "raise", "cache_dir": str(tmp_path), **ASKED}
        fast = turret.compile(program, options=options, plugins=[watch], dynamic=False, fullgraph=True)
        for x in VARIANTS:
            equal(fast(x), program(x))
        assert [e.kind for e in watch.events if e.stage == "graph" and e.kind.startswith("cache")] == [expected]


def test_plans_without_such_numbers_are_what_they_were():
    watch = agrees(lambda x: (x * 2).sum(1), (ROWS,))
    plan = watch.plan()
    assert (
        plan.bound_symbols == ()
        and plan.float_symbols == ()
        and not any(getattr(s, "symbol_bindings", ()) for s in plan.steps)
    )


@pytest.mark.parametrize("capture", CAPTURES)
def test_the_gradient_of_a_write_through_a_mask_is_read_through_it(capture):
    def write(x, m, v):
        y = x.clone()
        y[m] = v
        return y * 2

    watch = Watch()
    options = {"capture": capture, "on_error": "raise", "cache": False}
    fast = turret.compile(write, options=options, plugins=[watch], fullgraph=True, dynamic=False)
    for m in (ROWS > 0, ROWS > 99):
        args = ROWS, m, torch.tensor(3.0)
        equal(with_gradients(fast, args), with_gradients(write, args))
    assert watch.count("compile_started") == 2


@pytest.mark.parametrize("start", [None, 0, 1, 2, -1, -2, -5])
def test_slices_of_what_is_selected_are_pythons(start):
    def program(x):
        y = x[x > 0]
        return y[start:] * 2, y[:start] * 2, y[start:3].sin(), y[-3:start] + 1

    agrees(program, *((x[:, 0],) for x in VARIANTS))


@pytest.mark.parametrize("index", [[0, 1], [-1, 0]])
def test_an_index_into_nothing_is_reported(index):
    fast = compiled(lambda x: x[x > 0][torch.tensor(index)] * 2, fullgraph=True)
    torch.testing.assert_close(fast(torch.tensor([5.0, -1, 6])), torch.tensor([5.0, 6])[index] * 2)
    with pytest.raises(IndexError):
        fast(torch.tensor([-5.0, -1, -6]))

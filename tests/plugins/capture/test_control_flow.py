"""``torch.cond``, ``while_loop``, ``scan`` and ``map``: branches become graphs of their own, with gradients, and are compiled."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import cond
from torch._higher_order_ops.associative_scan import associative_scan
from torch._higher_order_ops.map import map as map_rows
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch._higher_order_ops.wrap import dynamo_bypassing_wrapper, wrap
from torch.utils._pytree import tree_leaves, tree_structure, tree_unflatten

import turret
from tests.plugins.capture.capture_lab import Observed, check
from turret.hooks.events import Event
from turret.hooks.hookspecs import hookimpl
from turret.plan import Plan

X = torch.arange(1.0, 5.0)
OPTIONS = {"capture": "turret", "on_error": "raise", "cache": False}


def full(program, *inputs):
    """One graph for all inputs, equal to eager as captured and compiled."""
    observed = Observed(program, fullgraph=True)
    fast = turret.compile(program, fullgraph=True, options=OPTIONS)
    for x in inputs:
        expected = program(copy.deepcopy(x))
        torch.testing.assert_close(observed(copy.deepcopy(x)), expected)
        torch.testing.assert_close(fast(copy.deepcopy(x)), expected)
    assert len(observed.graphs) == 1


def test_a_condition_on_data():
    full(lambda x: torch.cond(x.sum() > 3, lambda x: x.sin(), lambda x: x.cos(), (x,)) + 1, X, -X)


def test_branches_use_what_is_around_them():
    def program(x):
        y, z = x * 2, x - 1
        return torch.cond(x.sum() > 3, lambda x: x + y, lambda x: x - y * z, (x,))

    full(program, X, -X)


def test_branches_with_structured_results():
    def program(x):
        found = torch.cond(x.sum() > 3, lambda: {"a": x * 3, "b": (x + 1,)}, lambda: {"a": x * 2, "b": (x - 1,)})
        return found["a"] - 1, found["b"][0]

    full(program, X, -X)


def test_nested_conditions():
    def program(x):
        def inner(x):
            return torch.cond(x.max() > 10, lambda v: v * 2, lambda v: v * 3, (x,))

        return torch.cond(x.sum() > 3, inner, lambda v: v - 1, (x,))

    full(program, X, -X, X * 10)


def test_a_known_condition_takes_its_branch():
    observed = check(lambda x: torch.cond(x.shape[0] > 3, lambda x: x + 1, lambda x: x.cos(), (x,)), X, breaks=0)
    assert "cond" not in str(observed.graphs[0])


@pytest.mark.parametrize("steps", [0, 3])
def test_a_loop_on_data(steps):
    def program(x):
        start = torch.tensor(0)
        return while_loop(lambda i, v: i < steps, lambda i, v: (i + 1, v * 2 + x), (start, x))

    full(program, X)


def test_branches_with_side_effects_run_as_python():
    def program(x, log):
        def branch(x):
            log.append(1)
            return x + 1

        return torch.cond(x.sum() > 3, branch, lambda x: x, (x,))

    observed = Observed(program)
    with pytest.raises(Exception):
        observed(X, [])
    assert "side effects" in observed.breaks[0]


class Plans:
    """Keeps the plans that a compile makes, and what is said of them."""

    def __init__(self) -> None:
        self.plans: list[Plan] = []
        self.hints: list[str] = []
        self.fallbacks: list[str] = []

    @hookimpl
    def turret_event(self, event: Event) -> None:
        if event.kind == "product" and event.stage == "codegen":
            self.plans.append(event.product)
        elif event.kind == "perf_hint":
            self.hints.append(event.message)
        elif event.kind == "fallback":
            self.fallbacks.append(event.message)


def plain_cond(pred, first, second, operands=()):
    return (first if bool(pred) else second)(*operands)


def plain_loop(condition, body, carried):
    while bool(condition(*carried)):
        carried = body(*carried)
    return carried


def plain_scan(combine, init, xs, *, dim=0, reverse=False):
    rows = list(zip(*(leaf.unbind(dim) for leaf in tree_leaves(xs)), strict=True))
    state, made = init, []
    for row in reversed(rows) if reverse else rows:
        state, out = combine(state, tree_unflatten(list(row), tree_structure(xs)))
        made.append(tree_leaves(out))
    made = made[::-1] if reverse else made
    columns = [torch.stack(c, dim if dim < c[0].dim() + 1 else 0) for c in zip(*made, strict=True)]
    return state, tree_unflatten(columns, tree_structure(out))


def plain_map(f, xs, *args):
    leaves, structure = tree_leaves(xs), tree_structure(xs)
    found = [f(tree_unflatten(list(row), structure), *args) for row in zip(*leaves, strict=True)]
    columns = [torch.stack(c) for c in zip(*map(tree_leaves, found), strict=True)]
    return tree_unflatten(columns, tree_structure(found[0]))


PLAIN = {"cond": plain_cond, "while_loop": plain_loop, "scan": plain_scan, "map_rows": plain_map}


def trains(program, *inputs, weights=(), **options):
    """One graph whose results and gradients are those of the same program in plain Python; what it was compiled to."""
    plans = Plans()
    fast = turret.compile(program, fullgraph=True, options=OPTIONS | options, plugins=[plans])
    for value in inputs:
        found = []
        for plain in (True, False):
            leaf = value.clone().requires_grad_()
            for w in weights:
                w.grad = None
            with pytest.MonkeyPatch.context() as patch:
                for name, function in PLAIN.items() if plain else ():
                    patch.setitem(globals(), name, function)
                results = (program if plain else fast)(leaf)
            results = results if isinstance(results, tuple) else (results,)
            sum(r.square().sum() for r in results if r.requires_grad).backward()
            zeros = [torch.zeros_like(w) if w.grad is None else w.grad for w in (leaf, *weights)]
            found.append(([r.detach() for r in results], *zeros))
        torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-5)
    return plans


def weight(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(5)).requires_grad_()


def test_gradients_through_a_condition():
    plans = trains(lambda x: cond(x.sum() > 3, lambda x: x.sin(), lambda x: x.cos(), (x,)) * 2, X, -X)
    assert sum(len(plan.branches) for plan in plans.plans) == 4 and not plans.fallbacks
    assert all(len([s for s in b.steps if type(s).__name__ == "Launch"]) == 1 for p in plans.plans for b in p.branches)


def test_gradients_through_a_condition_are_those_of_torch_s():
    def program(x):
        return torch.cond(x.sum() > 3, lambda x: x.sin() * 2, lambda x: x.cos(), (x,)) * 2

    fast = turret.compile(program, fullgraph=True, options=OPTIONS)
    for x in (X, -X):
        mine, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
        found, expected = fast(mine), program(theirs)
        assert found.requires_grad and expected.requires_grad
        found.sum().backward(), expected.sum().backward()
        torch.testing.assert_close((found, mine.grad), (expected, theirs.grad))


def test_gradients_of_what_branches_close_over():
    w, v = weight(4, 4), weight(4)

    def program(x):
        y = x * v
        return cond(x.sum() > 3, lambda x: (x @ w).relu() + y, lambda x: x - y, (x,)).sum() * x

    trains(program, X, -X, weights=(w, v))


def test_gradients_of_several_results_some_of_which_have_none():
    def program(x):
        def first(x):
            return x.sin(), x.argsort(), x * 2

        def second(x):
            return x.cos(), x.argmax().expand(4).clone(), torch.ones(4)

        a, b, _ = cond(x.sum() > 3, first, second, (x,))
        return a * 2, b

    trains(program, X, -X)


def test_gradients_through_conditions_within_conditions():
    def program(x):
        def inner(x):
            return cond(x.max() > 10, lambda v: v * v, lambda v: v.exp(), (x,))

        return cond(x.sum() > 3, lambda x: inner(x) + 1, lambda v: v.sigmoid(), (x,))

    trains(program, X, -X, X * 10)


def test_gradients_where_operands_and_gradients_lie_otherwise_in_memory():
    w = weight(4, 3)

    def program(x):
        x = x.reshape(3, 4).t()
        return cond(x.sum() > 3, lambda x: x * w, lambda x: (x + w).t().contiguous().t(), (x,)).t()

    y = torch.arange(12.0) / 5
    trains(program, y, -y, weights=(w,))


def test_gradients_under_autocast():
    w = weight(4, 4)

    def program(x):
        with torch.autocast("cpu", torch.bfloat16):
            return cond(x.sum() > 3, lambda x: (x @ w).float(), lambda x: x.tanh(), (x,))

    observed = Observed(program, fullgraph=True)
    for x in (X, -X):
        torch.testing.assert_close(observed(x), program(x))


def test_a_branch_that_draws_random_numbers_trains_eagerly_and_says_so():
    def program(x):
        return cond(x.sum() > 3, lambda x: torch.nn.functional.dropout(x, 0.5), lambda x: x, (x,))

    plans = Plans()
    fast = turret.compile(program, options=OPTIONS | {"on_error": "fallback"}, plugins=[plans])
    x = -X.clone()
    with pytest.warns(UserWarning, match="draws random numbers"):
        torch.testing.assert_close(fast(x.requires_grad_()), x)
    assert "draws random numbers" in plans.fallbacks[0]


@pytest.mark.parametrize("steps", [0, 1, 4])
def test_gradients_through_a_loop(steps):
    w = weight(4)

    def program(x):
        start = (torch.tensor(0), x, torch.zeros(4))
        _, y, z = while_loop(
            lambda i, v, t: i < steps, lambda i, v, t: (i + 1, (v * w).tanh(), t + v * v), start
        )  # fmt: skip
        return y, z * 2

    plans = trains(program, X, -X / 3, weights=(w,))
    assert not plans.fallbacks and not any("call by call" in h for h in plans.hints)


def test_a_loop_whose_rounds_depend_on_data():
    w = weight(4, 4)

    def program(x):
        a = x.cos()
        return while_loop(lambda v: v.abs().sum() > 1, lambda v: (v @ w * 0.1 + a * 1e-3,), (x * 2,))[0]

    trains(program, X, -X, X * 5, weights=(w,))


@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("reverse", [False, True])
def test_gradients_through_a_scan(dim, reverse):
    w = weight(3)

    def program(x):
        rows = x.reshape(-1, 1) * torch.ones(4, 3) if dim == 0 else (x.reshape(-1, 1) * torch.ones(4, 3)).t()
        last, all_rows = scan(
            lambda s, r: ((s * r).tanh() + w, s * r), torch.ones(3), rows, dim=dim, reverse=reverse
        )  # fmt: skip
        return last, all_rows

    trains(program, X, -X, weights=(w,))


def test_a_scan_over_structures():
    def program(x):
        state = {"total": torch.zeros(2), "count": torch.tensor(0)}
        rows = (x.reshape(2, 2), x.reshape(2, 2).exp())

        def combine(state, row):
            one, two = row
            total = state["total"] + one * two
            return {"total": total, "count": state["count"] + 1}, {"a": total * 2, "b": (one + 1,)}

        state, made = scan(combine, state, rows)
        return state["total"], state["count"], made["a"], made["b"][0]

    trains(program, X)
    full(program, X)


STRUCTURES = {
    "a list for the pair": (lambda s, r: [s + r, {"row": s * r}], lambda x: x),
    "a list for the state": (lambda s, r: ([s + r], s * r), lambda x: x),
    "another sequence": (lambda s, r: ((s[0] + r,), s[0] * r), lambda x: [x]),
    "another key": (lambda s, r: ({"b": s["a"] + r}, [s["a"] * r]), lambda x: {"a": x}),
}


@pytest.mark.parametrize("name", STRUCTURES)
def test_the_state_of_a_scan_may_come_back_in_another_structure(name):
    combine, start = STRUCTURES[name]

    def program(x):
        return scan(combine, start(torch.ones(2)), x.reshape(2, 2), reverse=True)

    full(program, X)


def test_a_scan_over_nothing_gives_its_start():
    full(lambda x: (scan(lambda s, r: (s + r, r), {"a": [x + 1]}, ()), x * 2), X)


def test_the_operator_scan_gives_a_flat_sequence_whatever_its_function_returns():
    operator = torch.ops.higher_order.scan
    full(
        lambda x: operator(lambda s, r: ({"a": s + r}, [s * r, {"b": s - r}]), [torch.ones(2)], [x.reshape(2, 2)], ()),
        X,
    )


def test_branches_of_sizes_that_change_run_call_by_call_and_say_so():
    plans = Plans()
    fast = turret.compile(
        lambda x: cond(x.sum() > 3, lambda x: x.sin(), lambda x: x.cos(), (x,)),
        dynamic=True, options=OPTIONS, plugins=[plans],
    )  # fmt: skip
    for x in (X, torch.ones(7), -torch.ones(9)):
        torch.testing.assert_close(fast(x), x.sin() if x.sum() > 3 else x.cos())
    assert any("call by call" in hint and "static sizes" in hint for hint in plans.hints)


def test_a_stored_plan_has_its_branches(tmp_path):
    def program(x):
        return cond(x.sum() > 3, lambda x: x.sin() * 2, lambda x: x.cos(), (x,)) + 1

    for _ in range(2):
        turret.reset()
        plans = Plans()
        options = {**OPTIONS, "cache": True, "cache_dir": str(tmp_path)}
        fast = turret.compile(program, options=options, plugins=[plans])
        for x in (X, -X):
            torch.testing.assert_close(fast(x), program(x))
    assert not plans.plans  # found, not made


def test_a_map_over_structures():
    def program(x):
        rows = {"a": x.reshape(2, 2), "b": (x.reshape(2, 2).exp(),)}
        found = map_rows(lambda r, y, n: [r["a"] * y + n, {"c": (r["b"][0] > 3).sum()}], rows, x[:2].cos(), 3)
        return found[0], found[1]["c"]

    trains(program, X, -X)
    full(program, X, -X)


def test_gradients_through_a_map():
    w, v = weight(3), weight(3, 3)

    def program(x):
        y = x.sum()

        def row(r, scale):
            return (r * w).tanh() @ v * y, (r * scale).sum(), r

        return map_rows(row, x.reshape(-1, 1) * torch.ones(4, 3), w.exp())

    plans = trains(program, X, -X, weights=(w, v))
    assert not plans.fallbacks


def test_rounds_of_a_map_are_plans_and_none_runs_again_for_its_gradient():
    w = weight(3)
    plans = trains(lambda x: map_rows(lambda r: (r * w).tanh(), x.reshape(-1, 1) * torch.ones(4, 3)), X, weights=(w,))
    assert [len(plan.branches) for plan in plans.plans if plan.branches] == [1, 1]


def test_gradients_of_what_a_map_closes_over_alone():
    w = weight(4)

    def program(x):
        rows = torch.arange(8.0).reshape(2, 4)
        return map_rows(lambda r: (r * w).sin(), rows) + x

    trains(program, X, weights=(w,))


def test_a_condition_within_a_map_takes_the_branch_of_each_row():
    def program(x):
        rows = x.reshape(-1, 1) * torch.ones(4, 3)
        return map_rows(lambda r: cond(r.sum() > 7, lambda r: r.sin(), lambda r: r * 2, (r,)), rows)

    trains(program, X, -X)


def test_a_map_of_a_length_that_changes_is_one_graph():
    observed = Observed(lambda x, w: map_rows(lambda r, w: r * w + 1, x, w), fullgraph=True, dynamic=True)
    for length in (2, 5, 9):
        x, w = torch.randn(length, 3), torch.randn(3)
        torch.testing.assert_close(observed(x, w), x * w + 1)
    assert len(observed.graphs) == 1


def test_a_map_over_nothing_is_left_to_python():
    observed = Observed(lambda x: map_rows(lambda r: r + 1, x))
    with pytest.raises(RuntimeError, match="cannot be 0"):
        observed(torch.ones(0, 3))
    assert any("length 0" in b for b in observed.breaks)


OPERATORS = {
    "scan": lambda op, x: op(lambda s, r, w: (s * w + r, s * r), [torch.zeros(3)], [x], (x[0],)),
    "map_impl": lambda op, x: op(lambda r, w: (r * w + 1, r.sum()), [x], [x[0]]),
    "associative_scan": lambda op, x: tuple(op(lambda a, b: (a + b,), [x], ())),
}


@pytest.mark.parametrize("name", sorted(OPERATORS))
def test_operators_called_by_their_own_names(name):
    def program(x):
        return OPERATORS[name](getattr(torch.ops.higher_order, name), x)

    full(program, torch.randn(5, 3))


@pytest.mark.parametrize("length", [1, 2, 5, 8])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.thorough
def test_an_associative_scan_has_eager_s_values_and_gradients(length, reverse):
    w = weight(3)

    def program(x):
        given = {"p": x.sigmoid(), "q": (x * w,)}

        def combine(a, b):
            return {"p": a["p"] * b["p"], "q": (a["q"][0] * b["p"] + b["q"][0] * w.cos(),)}

        found = associative_scan(combine, given, 1, reverse=reverse, combine_mode="generic")
        return found["p"], found["q"][0]

    trains(program, torch.randn(2, length, 3), weights=(w,))


def test_an_associative_scan_of_points_takes_no_processor_s_tensors():
    with pytest.raises(ValueError, match="need to be on CUDA"):
        Observed(lambda x: associative_scan(lambda a, b: a + b, x, 0))(X)


UNARY = {
    "sin": torch.sin,
    "tanh": torch.tanh,
    "exp": lambda v: (v * 0.1).exp(),
    "t": lambda v: v.flip(0),
    "sq": lambda v: v * v,
}
STEPS = st.lists(
    st.tuples(st.sampled_from(sorted(UNARY)), st.sampled_from(["", "w", "y", "x"])), min_size=1, max_size=4
)


def chain(steps, around):
    def branch(v):
        for name, other in steps:
            v = UNARY[name](v)
            v = v * around[other] if other else v
        return v

    return branch


@settings(max_examples=6, deadline=None, derandomize=True, phases=[Phase.explicit, Phase.generate])
@given(STEPS, STEPS, st.booleans(), st.integers(0, 3))
def test_any_branches_and_rounds_have_the_gradients_of_plain_python(first, second, looped, rounds):
    w = weight(4)

    def program(x):
        around = {"w": w, "y": x.cos(), "x": x}
        one, two = chain(first, around), chain(second, around)
        y = cond(x.sum() > 0, one, two, (x * 0.5,))
        if looped:
            y = while_loop(lambda i, v: i < rounds, lambda i, v: (i + 1, one(v).tanh()), (torch.tensor(0), y))[1]
        return y, x + w

    trains(program, X / 4, -X / 4, weights=(w,))


def test_the_operator_of_map_gives_results_of_any_structure():
    def program(x):
        def body(row):
            return {"sin": row.sin(), "pair": (row + 1, [row * 2])}

        return torch.ops.higher_order.map_impl(body, [x], ())

    found = Observed(program, fullgraph=True)(X)
    torch.testing.assert_close(found, {"sin": X.sin(), "pair": (X + 1, [X * 2])})


def test_operators_that_only_mark_a_function_for_torchs_compiler_call_it():
    calls = []

    def inner(x, *, by):
        calls.append(by)
        return x * by, {"by": by}

    def doubled(function):
        return lambda *args, **kwargs: [function(*args, **kwargs)] * 2

    def program(x):
        return wrap(inner, x, by=3), dynamo_bypassing_wrapper(doubled, inner, x, by=2)

    found, expected = Observed(program, fullgraph=True)(X), program(X)
    torch.testing.assert_close(found, expected)
    assert calls == [3, 2, 3, 2]


@pytest.mark.parametrize("reachable", ["closure", "global"])
def test_a_branch_that_changes_what_its_caller_made_is_refused_as_by_eager(reachable):
    def program(x):
        global NOTED
        log = []
        NOTED = log

        def side(number, function):
            def followed(x):
                (log if reachable == "closure" else NOTED).append(number)
                return function(x)

            return followed

        return torch.cond(x.sum() > 3, side(1, torch.sin), side(2, torch.cos), (x,)), log

    with pytest.raises(Exception) as eager:
        program(X)
    with pytest.raises(type(eager.value)):
        turret.compile(program)(X)


NOTED: list[int] = []

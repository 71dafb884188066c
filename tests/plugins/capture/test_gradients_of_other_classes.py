"""Gradients whose class is not that of their tensor: those of a plain tensor beside wrappers, of wrappers of wrappers."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing._internal.two_tensor import TwoTensor

import turret
from tests.plugins.capture.test_wrapper_tensors import Pair

OPTIONS = {"capture": "turret", "on_error": "raise", "cache": False}


def made(kind: str, requires_grad: bool, seed: int, shape: tuple[int, ...] = (2, 3)) -> torch.Tensor:
    """A tensor of a kind: ``p`` plain, ``t`` and ``q`` wrappers of two, several letters wrappers of wrappers."""

    def build(kind: str, seed: int) -> Any:
        if kind == "p":
            return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
        parts = build(kind[1:] or "p", 2 * seed), build(kind[1:] or "p", 2 * seed + 1)
        return TwoTensor(*parts) if kind[0] == "t" else Pair(*parts, tag=len(kind))

    return build(kind, seed + 1).detach().requires_grad_(requires_grad)


def flat(value: Any) -> Any:
    """A tensor as its class, what its class says of it, its layout, and those of what it wraps."""
    if value is None or type(value) is torch.Tensor:
        return value
    names, context = value.__tensor_flatten__()
    held = [flat(getattr(value, name)) for name in names]
    return type(value), context, tuple(value.shape), value.stride(), held


def assert_alike(found: Any, expected: Any) -> None:
    if isinstance(expected, torch.Tensor):
        assert type(found) is torch.Tensor and found.stride() == expected.stride()
        torch.testing.assert_close(found, expected)
    elif isinstance(expected, (list, tuple)):
        assert type(found) is type(expected) and len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_alike(one, other)
    else:
        assert found == expected


def program(seed: int, count: int, results: int) -> Any:
    """Some sums and products of functions of the arguments."""
    draw = random.Random(seed)
    functions = (torch.sin, torch.exp, lambda v: v * 2, lambda v: v, lambda v: v.t().t(), lambda v: v.cos() + v)
    plan = [
        [(draw.choice(functions), draw.randrange(count), draw.random() < 0.5) for _ in range(draw.randint(1, 4))]
        for _ in range(results)
    ]

    def run(*values):
        found = []
        for terms in plan:
            function, number, _ = terms[0]
            total = function(values[number])
            for function, number, adds in terms[1:]:
                term = function(values[number])
                total = total + term if adds else total * term
            found.append(total)
        return tuple(found)

    return run


def gradients(call: Any, kinds: list[str], wanted: list[bool], rounds: list[tuple[int, ...]]) -> list[Any]:
    """Gradients after each of some backwards, of the sums of some results each."""
    leaves = [made(kind, grad, seed) for seed, (kind, grad) in enumerate(zip(kinds, wanted, strict=True))]
    seen: list[Any] = []
    for chosen in rounds:
        results = call(*leaves)
        seen += [flat(r.detach()) for r in results]
        roots = [results[n] for n in chosen if n < len(results) and results[n].requires_grad]
        if not roots:
            continue
        for again in (True, False):
            torch.autograd.backward([r.sum() for r in roots], retain_graph=again)
            seen += [flat(leaf.grad) for leaf in leaves]
    return seen


def outcome(call: Any, *args: Any) -> Any:
    try:
        return gradients(call, *args)
    except Exception as error:  # two classes that do not go together
        return type(error)


@settings(deadline=None, max_examples=30)
@given(
    seed=st.integers(0, 10**6),
    kinds=st.lists(st.sampled_from(["p", "t", "tt", "q", "qt", "tq"]), min_size=1, max_size=3),
    mask=st.integers(0, 7),
    results=st.integers(1, 2),
    rounds=st.lists(st.sampled_from([(0,), (1,), (0, 1)]), min_size=1, max_size=3),
)
def test_gradients_are_of_the_classes_that_eager_gives_them(seed, kinds, mask, results, rounds):
    wanted = [not mask >> n & 1 for n in range(len(kinds))]
    run = program(seed, len(kinds), results)
    expected = outcome(run, kinds, wanted, rounds)
    if isinstance(expected, type):
        return
    assert_alike(outcome(turret.compile(run, options=OPTIONS), kinds, wanted, rounds), expected)


@pytest.mark.parametrize("kinds", [("p", "t"), ("t", "tt"), ("p", "tt"), ("q", "qt"), ("p", "t", "tt")])
def test_a_gradient_of_another_class_is_one_of_the_compiled_backward(kinds):
    def run(*values):
        total = values[0].sin()
        for value in values[1:]:
            total = total * value + value.exp()
        return (total,)

    args = list(kinds), [True] * len(kinds), [(0,), (0,)]
    assert_alike(gradients(turret.compile(run, fullgraph=True, options=OPTIONS), *args), gradients(run, *args))


def test_gradients_of_gradients_of_another_class_are_refused():
    x, other = made("p", True, 1), made("t", False, 2)
    out = turret.compile(lambda x, other: x * x * other, options=OPTIONS)(x, other)
    (first,) = torch.autograd.grad(out.sum(), x, create_graph=True)
    assert type(first) is TwoTensor
    with pytest.raises(RuntimeError, match="another class"):
        first.sum().backward()


def test_a_gradient_that_arrives_in_another_class_than_its_result_is_eagers():
    def run(x):
        return x.sin()

    def found(function):
        x = made("p", True, 1)
        (function(x) * made("t", False, 2)).sum().backward()
        return x.grad

    ours, theirs = found(turret.compile(run, options=OPTIONS)), found(run)
    assert type(ours) is type(theirs) is TwoTensor
    torch.testing.assert_close((ours.a, ours.b), (theirs.a, theirs.b))


LIKE_RESULTS = {
    "copied": lambda x: x.clone(),
    "computed": lambda x: x.sin() * x,
    "one of two": lambda x: (x.sin(), x * 2)[0],
    "of wrappers": lambda x: (x * 2).sum(0),
}


def found_or_refused(found, function):
    """What ``found`` gives for a function, or the class of the error for classes that do not go together."""
    try:
        return found(function)
    except (RuntimeError, AttributeError) as error:
        return type(error)


@pytest.mark.parametrize("name", LIKE_RESULTS)
@pytest.mark.parametrize(
    ("kind", "given"), [("t", "p"), ("t", "q"), ("t", "tt"), ("p", "t"), ("tq", "qt"), ("q", "p"), ("t", "tq")]
)
@pytest.mark.parametrize("is_leaf", [True, False])
def test_the_gradient_of_a_wrapper_may_be_of_any_class_that_eager_takes(name, kind, given, is_leaf):
    run = LIKE_RESULTS[name]

    def found(function):
        leaf = made(kind, True, 1)
        x = leaf if is_leaf else leaf * 3
        out = function(x)
        out.backward(made(given, False, 2, tuple(out.shape)))
        return flat(leaf.grad)

    compiled, expected = turret.compile(run, fullgraph=True, options=OPTIONS), found_or_refused(found, run)
    for _ in range(2):
        assert_alike(found_or_refused(found, compiled), expected)


def after_dropout(x):
    return torch.nn.functional.dropout(x, 0.5) * x


def views(x):
    return (x * 2).t(), x.view(-1)


def results(x):
    return x.sin(), x.cos() * x


@pytest.mark.parametrize("program", [after_dropout, views, results, torch.clone])
@pytest.mark.parametrize(("kind", "given"), [("t", "q"), ("p", "t"), ("t", "p"), ("t", "tt")])
@pytest.mark.parametrize("given_all", [True, False])
def test_a_backward_is_compiled_for_gradients_of_other_classes(program, kind, given, given_all):
    """Also where the graph cannot run once more: it drew numbers, its inputs are gone, it gives views."""

    def found(function):
        torch.manual_seed(0)
        leaf = made(kind, True, 1)
        out = function(leaf * 3)
        outs = list(out) if isinstance(out, tuple) else [out]
        tangents = [made(given, False, n, tuple(o.shape)) for n, o in enumerate(outs)]
        count = len(outs) if given_all else 1
        torch.autograd.backward(outs[:count], tangents[:count])
        return flat(leaf.grad)

    expected = found_or_refused(found, program)
    compiled = turret.compile(program, fullgraph=True, options={**OPTIONS, "fallback_random": True})
    for _ in range(2):
        assert_alike(found_or_refused(found, compiled), expected)


@pytest.mark.parametrize("given", ["p", "tt", "q"])
def test_gradients_of_other_classes_of_results_of_changing_sizes_are_eagers(given):
    compiled = turret.compile(lambda x: x.sin() * x, fullgraph=True, dynamic=True, options=OPTIONS)
    for rows in (2, 5, 3):

        def found(function, rows=rows):
            x = made("p", True, 1, (rows, 3))
            function(x).backward(made(given, False, 2, (rows, 3)))
            return flat(x.grad)

        assert_alike(found(compiled), found(lambda x: x.sin() * x))


def test_a_gradient_of_another_class_has_gradients_of_its_own():
    def found(function):
        x, tangent = made("p", True, 1), made("t", True, 2)
        (first,) = torch.autograd.grad(function(x), x, tangent, create_graph=True)
        return [flat(g) for g in torch.autograd.grad(first.sum(), (x, tangent))]

    assert_alike(found(turret.compile(lambda x: x.sin() * x, options=OPTIONS)), found(lambda x: x.sin() * x))

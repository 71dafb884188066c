"""Tensors that wrap others are these in the graph, and wrappers outside of it."""

from __future__ import annotations

import dataclasses
import typing
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._pytree import tree_map_only

import turret
from tests.plugins.capture.capture_lab import Observed
from turret.errors import CaptureError


class Pair(torch.Tensor):
    """Two tensors, with each of which everything is computed."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, first, second, tag=0):
        given = {"dtype": first.dtype, "strides": first.stride(), "device": first.device}
        return torch.Tensor._make_wrapper_subclass(cls, first.shape, requires_grad=first.requires_grad, **given)

    def __init__(self, first, second, tag=0):
        self.first, self.second, self.tag = first, second, tag

    def __tensor_flatten__(self):
        return ["first", "second"], {"tag": self.tag}

    @classmethod
    def __tensor_unflatten__(cls, inner, context, size, stride):
        return cls(inner["first"], inner["second"], context["tag"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args, kwargs=None):
        tag = max(a.tag for a in args if isinstance(a, Pair)) if any(isinstance(a, Pair) for a in args) else 0
        results = [
            func(*tree_map_only(Pair, lambda p, n=name: getattr(p, n), args), **(kwargs or {}))
            for name in ("first", "second")
        ]
        if func._schema.is_mutable:
            return args[0]
        return cls(*results, tag) if isinstance(results[0], torch.Tensor) else results[0]


class Scaled(torch.Tensor):
    """A quantised weight: integers and a scale, that products see as floats."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, whole, scale):
        given = {"dtype": scale.dtype, "strides": whole.stride(), "device": whole.device}
        return torch.Tensor._make_wrapper_subclass(cls, whole.shape, **given)

    def __init__(self, whole, scale):
        self.whole, self.scale = whole, scale

    def __tensor_flatten__(self):
        return ["whole", "scale"], None

    @classmethod
    def __tensor_unflatten__(cls, inner, context, size, stride):
        return cls(inner["whole"], inner["scale"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args, kwargs=None):
        if func in (torch.ops.aten.detach.default, torch.ops.aten.t.default):
            return cls(func(args[0].whole), args[0].scale)
        return func(*tree_map_only(Scaled, lambda v: v.whole.to(v.scale.dtype) * v.scale, args), **(kwargs or {}))


def pair(tag=0, requires_grad=False, nested=False):
    parts = [torch.arange(4.0).reshape(2, 2), torch.arange(4.0).reshape(2, 2) - 2]
    if nested:
        parts = [pair(tag), pair(tag + 1)]
    return Pair(*parts, tag).requires_grad_(requires_grad)


def assert_same(found, expected):
    assert type(found) is type(expected)
    if isinstance(expected, Pair):
        assert (found.tag, found.shape, found.requires_grad) == (expected.tag, expected.shape, expected.requires_grad)
        assert_same([found.first, found.second], [expected.first, expected.second])
    elif isinstance(expected, torch.Tensor):
        torch.testing.assert_close(found, expected)
    elif isinstance(expected, (tuple, list)):
        for mine, theirs in zip(found, expected, strict=True):
            assert_same(mine, theirs)
    else:
        assert found == expected


def same(program, *make):
    observed = Observed(program)
    for _ in range(2):
        mine, theirs = [m() for m in make], [m() for m in make]
        assert_same(observed(*mine), program(*theirs))
        assert_same(mine, theirs)
    assert (len(observed.graphs), observed.breaks, observed.fallbacks) == (1, [], [])
    assert all(type(v) is not Pair for v in observed.graphs[0].example_inputs)
    return observed


STEPS = {
    "sin": torch.sin, "double": lambda v: v * 2, "add": lambda v: v + v, "product": lambda v: v @ v.t(), "row": lambda v: v[0] + v,
    "view": lambda v: v.reshape(4).reshape(2, 2), "plain": lambda v: v * torch.ones(2, 2), "sum": lambda v: v - v.sum(0),
}  # fmt: skip


@settings(max_examples=6, deadline=None)
@given(st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=4), st.booleans(), st.booleans())
def test_what_is_computed_of_wrappers_is_computed_of_what_they_hold(steps, nested, changes):
    def program(value):
        if changes:
            value.add_(1)
        for step in steps:
            value = STEPS[step](value)
        return value, value.shape, type(value) is Pair

    same(program, lambda: pair(1, nested=nested))


@pytest.mark.parametrize("nested", [False, True])
def test_gradients_are_wrappers(nested):
    mine, theirs = pair(requires_grad=True, nested=nested), pair(requires_grad=True, nested=nested)
    compiled = turret.compile(lambda v: (v * v.sin()).sum(), fullgraph=True)
    found, expected = compiled(mine), (theirs * theirs.sin()).sum()
    found.backward()
    expected.backward()
    assert_same(found, expected)
    assert_same(mine.grad, theirs.grad)


class Dropped(torch.autograd.Function):
    """Hands on the gradients that it is told to."""

    @staticmethod
    def forward(ctx, kept, *values):
        ctx.kept = kept
        return tuple(value * 1 for value in values)

    @staticmethod
    def backward(ctx, *gradients):
        return None, *(g if kept else None for kept, g in zip(ctx.kept, gradients, strict=True))


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("on_way", [False, True])
@pytest.mark.parametrize("kept", [(True, True), (True, False), (False, True), (False, False)])
def test_a_wrapper_that_no_gradient_reaches_has_none(kept, on_way, nested):
    def program(one, other):
        values = (one * 2, other * 3) if on_way else (one, other)
        first, second = Dropped.apply(kept, *values)
        return (first * second).sum() + first.sum()

    found = []
    for call in (turret.compile(program, fullgraph=True, options={"on_error": "raise"}), program):
        leaves = [pair(requires_grad=True, nested=nested) for _ in range(2)]
        call(*leaves).backward()
        found.append([leaf.grad for leaf in leaves])
    assert [g is None for g in found[0]] == [not k for k in kept]
    assert_same(*found)


def test_a_wrapper_of_which_the_tensors_in_it_are_used_alone_has_no_gradient():
    def program(v):
        return v.first.sin() * v.second

    for call in (turret.compile(program, fullgraph=True), program):
        parts = [torch.ones(2, requires_grad=True) for _ in range(2)]
        leaf = Pair(*parts)
        call(leaf).sum().backward()
        assert leaf.grad is None and all(part.grad is not None for part in parts)


def test_another_context_or_layout_is_another_graph():
    observed = Observed(lambda v: v * 2, fullgraph=True)
    for value, graphs in ((pair(), 1), (pair(), 1), (pair(tag=3), 2), (pair()[0], 3), (pair(requires_grad=True), 4)):
        assert_same(observed(value), value * 2)
        assert len(observed.graphs) == graphs


def test_quantised_weights_of_modules():
    def weight():
        return torch.nn.Parameter(Scaled(torch.randint(-8, 8, (4, 4), dtype=torch.int8), torch.tensor(0.5)), False)

    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 4))
    model[0].weight, model[2].weight = weight(), weight()
    x = torch.randn(3, 4)
    compiled = turret.compile(model, fullgraph=True)
    torch.testing.assert_close([compiled(x), compiled(x)], [model(x), model(x)])
    model[0].weight = weight()
    torch.testing.assert_close(compiled(x), model(x))


def test_what_a_wrapper_holds_is_read():
    same(lambda v: (v.first + 1, v.second * v), lambda: pair())


def test_a_change_of_a_wrapper_that_requires_gradients_runs_as_python():
    def program(v):
        with torch.no_grad():
            v.mul_(2)
        return v.sin()

    observed = Observed(program)
    mine, theirs = pair(requires_grad=True), pair(requires_grad=True)
    assert_same(observed(mine), program(theirs))
    assert_same(mine, theirs)
    assert "requires gradients" in observed.fallbacks[0]


def test_a_parameter_that_is_a_wrapper_is_one():
    weight = torch.nn.Parameter(pair(tag=2))
    observed = Observed(lambda v: v * 2 if isinstance(v, torch.nn.Parameter) else v * (v * 1).tag, fullgraph=True)
    assert_same(observed(weight), weight * 2)
    assert_same(observed(pair(tag=3)), pair(tag=3) * 3)


@pytest.mark.parametrize("nested", [False, True])
def test_what_a_wrapper_with_gradients_holds_is_read_and_has_no_history(nested):
    def program(value):
        made = value * 2
        return made.first, value.second, made

    mine, theirs = pair(nested=nested, requires_grad=not nested), pair(nested=nested, requires_grad=not nested)
    assert_same(Observed(program, fullgraph=True)(mine), program(theirs))


def test_sizes_of_wrappers_become_symbols():
    observed = Observed(lambda v: v * v.shape[0])
    for size in (2, 3, 4, 5):
        given = Pair(torch.ones(size, 2), torch.arange(2.0 * size).reshape(size, 2))
        assert_same(observed(given), given * size)
    assert len(observed.graphs) == 2


# Made in compiled code.


class Layout(typing.NamedTuple):
    shape: torch.Size
    by: float


@dataclasses.dataclass(frozen=True)
class Frozen:
    shape: torch.Size
    inner: Any = None


def quantised(x):
    scale = x.abs().amax()
    return Scaled((x / scale * 127).round().to(torch.int8), scale / 127)


MADE = {
    "as a result": lambda x: Pair(x, x + 1, 3),
    "computed with": lambda x: Pair(x, x + 1, 3).sin() + 1,
    "with another one": lambda x: Pair(x, x + 1, 3) * Pair(x, x, 5),
    "its parts": lambda x: [Pair(x, x + 1).second * 2, Pair(x, x).first is x, Pair(x * 2, x).sin().first],
    "its attributes": lambda x: [Pair(x, x, 4).tag, (Pair(x, x, 4) + 1).tag, Pair(x, x).shape, type(Pair(x, x))],
    "nested": lambda x: Pair(Pair(x, x + 1, 1), Pair(x + 2, x, 2), 3) * 0.5,
    "parts of nested ones": lambda x: Pair(Pair(x, x + 1, 1), Pair(x + 2, x, 2), 3).first.second + 1,
    "quantised": lambda x: x @ quantised(x).t(),
    "said by a tuple": lambda x: Pair(x, x, Layout(x.shape, 2.0)),
    "said by a dataclass": lambda x: Pair(x, x, Frozen(x.shape, (1, Frozen(x.shape)))),
    "parts are objects": lambda x: (lambda made: [made.first is made.first, made.second is made.first])(Pair(x, x) + 1),
    "changed": lambda x: (lambda made: [made.mul_(2), made])(Pair(x.clone(), x.clone())),
}


@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize("dynamic", [None, True])
def test_wrappers_are_made_in_the_graph(name, dynamic):
    program = MADE[name]
    observed = Observed(program, fullgraph=True, dynamic=dynamic)
    for size in (3, 3, 4):
        x = torch.arange(float(size * size)).reshape(size, size) + 1
        assert plain_parts(observed(x.clone())) == plain_parts(program(x.clone()))
    if dynamic:
        return
    x = torch.arange(4.0).reshape(2, 2) + 1
    compiled = turret.compile(program, fullgraph=True, options={"cache": False})
    assert plain_parts(compiled(x.clone())) == plain_parts(program(x.clone()))


def plain_parts(value):
    """A result as plain objects that compare equal."""
    if isinstance(value, (Pair, Scaled)):
        names, context = value.__tensor_flatten__()
        return type(value).__name__, context, value.requires_grad, [plain_parts(getattr(value, n)) for n in names]
    if isinstance(value, torch.Tensor):
        return value.dtype, value.requires_grad, [round(float(v), 4) for v in value.flatten()]
    return [plain_parts(v) for v in value] if isinstance(value, list) else value


def with_gradients(program, *args):
    """The results of a program and the gradients of its arguments of what the first result sums to."""
    leaves = [arg.clone().requires_grad_(arg.requires_grad) for arg in args]
    results = program(*leaves)
    first = results[0] if isinstance(results, list) else results
    if first.requires_grad:
        first.sum().backward()
    seen = results if isinstance(results, list) else [results]
    return [plain_parts(r.detach() if isinstance(r, torch.Tensor) else r) for r in seen], [
        None if leaf.grad is None else plain_parts(leaf.grad) for leaf in leaves
    ]


LEAVES = {
    "a factor": lambda a, b: Pair(a, a * 1) * b,
    "alone": lambda a, b: Pair(a, a * 1) * 2,
    "wrapper of wrappers": lambda a, b: Pair(Pair(a, a, 1), Pair(a * 2, a, 2), 3).sin() * b,
    "asked what it is": lambda a, b: (lambda w: [w * b, w.is_leaf, w.requires_grad, (w * 1).is_leaf])(Pair(a, a)),
    "its parts": lambda a, b: (lambda w: [w * b, w.first.sum(), w.second * 2])(Pair(a, a + 1)),
    "its gradient": lambda a, b: (lambda w: torch.autograd.grad((w * b).sum(), w)[0])(Pair(a, a + 1)),
    "changed past autograd": lambda a, b: (lambda w: [w + b, w.detach().mul_(2)])(Pair(a.detach() + 1, a * 2)),
}


@pytest.mark.parametrize("name", LEAVES)
@pytest.mark.parametrize("other", [False, True])
def test_a_wrapper_made_of_what_requires_gradients_is_a_leaf_of_its_own_in_the_graph(name, other):
    program = LEAVES[name]
    args = torch.arange(3.0).requires_grad_(), (torch.arange(3.0) + 1).requires_grad_(other)
    compiled = turret.compile(program, fullgraph=True, options={"cache": False})
    for _ in range(2):
        assert with_gradients(compiled, *args) == with_gradients(program, *args)


def test_a_leaf_that_wraps_others_and_goes_out_of_compiled_code_is_one_that_python_makes():
    program = lambda x, y: (lambda w: [w * y, w])(Pair(x, x * 1))  # noqa: E731
    args = torch.ones(2, requires_grad=True), torch.ones(2)
    product, made = turret.compile(program, options={"cache": False})(*args)
    product.sum().backward()
    assert made.is_leaf and made.requires_grad
    assert plain_parts(made.grad) == plain_parts(Pair(torch.ones(2), torch.ones(2)))
    with pytest.raises(CaptureError, match="leaf of autograd that matters outside of the graph"):
        turret.compile(program, fullgraph=True, options={"cache": False})(*args)


def test_a_constructor_of_a_wrapper_that_the_program_disabled_runs_as_python():
    class Apart(Pair):
        @torch.compiler.disable
        def __init__(self, first, second, tag=0):
            super().__init__(first, second, tag)

    program = lambda x: Apart(x, x + 1) * 2  # noqa: E731
    with pytest.raises(CaptureError, match="marked to run outside of compiled code"):
        turret.compile(program, fullgraph=True, options={"cache": False})(torch.ones(2))
    compiled = turret.compile(program, options={"cache": False})
    assert plain_parts(compiled(torch.ones(2))) == plain_parts(program(torch.ones(2)))


def test_a_half_made_wrapper_that_fails_is_left_to_python():
    class Failing(Pair):
        def __tensor_flatten__(self):
            raise RuntimeError("half made")

    observed = Observed(lambda x: type(Failing(x, x)).__name__)
    assert observed(torch.ones(2)) == "Failing"


def test_wrappers_in_inference_mode_are_captured_and_refuse_writes_outside_of_it_as_eager_does():
    def made(x):
        with torch.inference_mode():
            pair = Pair(x, x + 1)
            shape = pair.shape
        return shape

    def written(pair):
        pair.add_(1)
        return pair.first

    with torch.inference_mode():
        pair = Pair(torch.ones(2, 3), torch.ones(2, 3))
    assert turret.compile(made, options={"on_error": "raise"})(torch.ones(2, 3)) == (2, 3)
    for call in (written, turret.compile(written)):
        with pytest.raises(RuntimeError, match="Inplace update to inference tensor"):
            call(pair)

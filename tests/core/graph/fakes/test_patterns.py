"""What is remembered by patterns of sizes is what the ops themselves give, errors and gradients among it."""

from __future__ import annotations

import contextlib
import os
import random
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils import _pytree as pytree

pytest.importorskip("expecttest", reason="torch's table of operations imports it")

from turret.graph.fakes.corrections import CorrectedFakeTensorMode
from turret.torch_compat.operators.opinfo import op_db

aten = torch.ops.aten


def fake_mode(remembers: bool) -> CorrectedFakeTensorMode:
    """A mode that remembers by patterns, or one that asks the op each time."""
    mode = CorrectedFakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
    mode.cache_enabled = remembers
    return mode


@contextlib.contextmanager
def default_dtype() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


SURROUNDINGS: dict[str, Callable[[], contextlib.AbstractContextManager]] = {
    "gradients": contextlib.nullcontext,
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "default dtype": default_dtype,
}


def layout(value: Any, operands: list[torch.Tensor]) -> Any:
    """All that is to be seen of a result, and which operands' memory it lies in."""
    if not isinstance(value, torch.Tensor):
        return type(value), value if isinstance(value, (int, bool)) else None
    if value.layout is not torch.strided:
        return value.layout
    memory = value.untyped_storage()._cdata
    shared = [n for n, o in enumerate(operands) if o.untyped_storage()._cdata == memory]
    same = [n for n, o in enumerate(operands) if o is value]
    numbers = [n if type(n) is int else "symbol" for n in (*value.shape, *value.stride(), value.storage_offset())]
    return (
        numbers,
        value.dtype,
        value.device,
        shared,
        same,
        value.requires_grad,
        value.is_inference(),
        value.is_conj(),
        value.is_neg(),
    )


def outcome(function: Callable[..., Any], operands: list[torch.Tensor]) -> Any:
    """The layouts of a call's results and of the operands' gradients, or the kind of the error."""
    try:
        out = pytree.tree_leaves(function(*operands))
        found = [layout(v, operands) for v in out]
        roots = [v for v in out if isinstance(v, torch.Tensor) and v.requires_grad and v.grad_fn is not None]
        leaves = [o for o in operands if o.requires_grad and o.is_leaf]
        if roots and leaves and torch.is_grad_enabled():
            grads = torch.autograd.grad(roots, leaves, [torch.ones_like(r) for r in roots], allow_unused=True)
            found += [layout(g, operands) for g in grads]
        return found
    except Exception as error:
        return type(error)


def compare(
    function: Callable[..., Any],
    operands: Callable[[], list[torch.Tensor]],
    earlier: list[tuple[Callable[..., Any], Callable[[], list[torch.Tensor]]]],
) -> None:
    """A call behind others of its pattern gives what it gives by itself."""
    found = []
    for remembers in (True, False):
        with fake_mode(remembers), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if remembers:
                for other, theirs in earlier:
                    outcome(other, theirs())
            found.append(outcome(function, operands()))
    assert found[0] == found[1]


# Calls of the ops that patterns answer.

SIZES = (1, 1, 2, 3, 5, 7)


@st.composite
def tensors(draw: st.DrawFn, names: str) -> Callable[[dict[str, int]], torch.Tensor]:
    """A tensor with a dimension for each letter, in some order in memory, some dimensions repeated, at some offset."""
    order = draw(st.permutations(range(len(names))))
    repeated = [draw(st.integers(0, 5)) == 0 for _ in names]
    offset, gaps = draw(st.sampled_from((0, 0, 0, 3))), draw(st.integers(0, 7)) == 0
    dtype = draw(st.sampled_from((torch.float32, torch.float32, torch.bfloat16, torch.int64, torch.bool)))
    ones = [draw(st.integers(0, 4)) == 0 for _ in names]
    differentiable = draw(st.booleans())

    def make(sizes: dict[str, int]) -> torch.Tensor:
        shape = [1 if one else sizes[name] for name, one in zip(names, ones, strict=True)]
        stored = [1 if again else extent for extent, again in zip(shape, repeated, strict=True)]
        in_memory = [stored[d] for d in order]
        back = sorted(range(len(order)), key=order.__getitem__)
        step = 2 if gaps else 1
        memory = torch.empty(offset + step * max(1, torch.Size(in_memory).numel()), dtype=dtype)
        made = memory[offset::step][: torch.Size(in_memory).numel()].view(in_memory).permute(back).expand(shape)
        return made.detach().requires_grad_(differentiable and dtype.is_floating_point)

    return make


FORMS: list[tuple[str, Callable[..., Any]]] = [
    ("ab,bc", torch.mm),
    ("c,ab,bc", torch.addmm),
    ("dab,dbc", torch.bmm),
    ("dac,dab,dbc", torch.baddbmm),
    ("dab,cb,c", torch.nn.functional.linear),
    ("ab", torch.t),
    ("abc", lambda x: x.transpose(0, 2)),
    ("abcd", lambda x: x.permute(2, 0, 3, 1)),
    ("abc", lambda x: x.unsqueeze(1)),
    ("abc", lambda x: x.detach()),
    ("abc", lambda x: x.sum((0, 2), keepdim=True)),
    ("abc", lambda x: x.mean(1)),
    ("abc", lambda x: x.sum()),
    ("abc", lambda x: x.amax((1,), True)),
    ("abc", lambda x: torch.var_mean(x, 2, keepdim=True)),
    ("abc", lambda x: torch.softmax(x, 1)),
    ("abc", lambda x: torch.log_softmax(x, -1)),
    ("abc,c,c", lambda x, w, b: torch.native_layer_norm(x, w.shape, w, b, 1e-5)),
    ("abc,c,c", lambda x, w, b: torch.layer_norm(x, x.shape[2:], w, b)),
    ("abc,bc", lambda x, w: torch.layer_norm(x, w.shape, w)),
    ("abc,b", lambda x, y: x.expand(y.shape[0], -1, x.shape[1], x.shape[2])),
    ("abc,ac", lambda x, y: y.unsqueeze(1).expand(x.shape)),
    ("abc", lambda x: x.view(x.shape[0] * x.shape[1], x.shape[2])),
    ("ab,c", lambda x, y: x.view(y.shape[0], x.shape[0])),
    ("abc", lambda x: x.view(x.shape[0], -1)),
    ("abc,d", lambda x, y: x.view(-1, y.shape[0])),
    ("abc,bc", torch.add),
    ("abc,abc", torch.mul),
    ("abc,ab", lambda x, y: x - y[..., None]),
    ("abc,abc,c", lambda x, y, z: torch.where(x > 0, y, z)),
    ("abc", lambda x: x.exp()),
    ("abc", lambda x: x * 2.5),
    ("abc", lambda x: 2 / x),
    ("abc", torch.nn.functional.gelu),
    ("abcd", torch.clone),
    ("abcd", lambda x: x.clone(memory_format=torch.channels_last)),
    ("ab,cd", lambda weight, at: torch.embedding(weight, at.long())),
    ("abc,bc", lambda x, y: torch.addcmul(x, y, y, value=2)),
    ("abc", lambda x: torch.native_dropout(x, 0.5, True)),
]  # fmt: skip


@st.composite
def patterned(draw: st.DrawFn) -> tuple:
    """A function, its operands, and how sizes of two or three calls are chosen."""
    names, function = draw(st.sampled_from(FORMS))
    makers = [draw(tensors(part)) for part in names.split(",")]
    letters = sorted(set(names) - {","})
    calls = draw(st.lists(st.fixed_dictionaries({n: st.sampled_from(SIZES) for n in letters}), min_size=2, max_size=3))
    return function, makers, calls


@given(patterned(), st.sampled_from(list(SURROUNDINGS)))
@settings(max_examples=150, deadline=None)
def test_a_call_behind_others_gives_what_it_gives_alone(case: tuple, surroundings: str) -> None:
    function, makers, calls = case
    with SURROUNDINGS[surroundings]():
        *earlier, last = [(function, lambda sizes=sizes: [make(sizes) for make in makers]) for sizes in calls]
        compare(*last, earlier)


@pytest.mark.thorough
@given(patterned())
@settings(max_examples=60, deadline=None)
def test_surroundings_are_part_of_what_is_remembered(case: tuple) -> None:
    function, makers, calls = case
    found: dict[bool, list] = {True: [], False: []}
    for remembers, outcomes in found.items():
        mode = fake_mode(remembers)
        for surroundings in SURROUNDINGS.values():
            with surroundings(), mode:
                outcomes.append(outcome(function, [make(calls[0]) for make in makers]))
    assert found[True] == found[False]


@given(patterned())
@settings(max_examples=60, deadline=None)
def test_operands_made_elsewhere_are_in_other_modes_what_they_are(case: tuple) -> None:
    function, makers, calls = case
    found = []
    for remembers in (True, False):
        with fake_mode(remembers):
            with torch.inference_mode():
                made = [make(calls[0]) for make in makers]
            plain = [make(calls[0]) for make in makers]
            outcomes = [outcome(function, made)]
            with torch.inference_mode():
                outcomes += [outcome(function, plain), outcome(function, made)]
            found.append([*outcomes, outcome(function, plain)])
    assert found[0] == found[1]


@pytest.mark.parametrize("op", [aten.view.default, aten._unsafe_view.default], ids=str)
def test_a_shape_of_another_number_of_elements_is_refused_behind_one_that_fits(op: Any) -> None:
    with fake_mode(remembers=True):
        assert op(torch.empty(2, 3), [6]).shape == (6,)
        assert op(torch.empty(5, 7), [35]).shape == (35,)
        with pytest.raises(RuntimeError, match="invalid for input"):
            op(torch.empty(5, 7), [36])
        assert op(torch.empty(4, 6), [-1, 3]).shape == (8, 3)
        assert op(torch.empty(1, 1), [1, 1, 1]).shape == (1, 1, 1)
        refused = [
            ((5, 7), [-1, 4]),
            ((6, 6), [0, -1]),
            ((6, 6), [-1, -6, -6]),
            ((6, 6), [-2, 18]),
            ((1, 1), [-1, -1, 1]),
        ]
        for sizes, shape in refused:
            with pytest.raises(RuntimeError, match=r"invalid|infer|unspecified"):
                op(torch.empty(sizes), shape)


@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_tensors_of_any_device_have_patterns(device: str) -> None:
    """Some devices have no autocast that could be asked for."""
    found = []
    for remembers in (True, False):
        with fake_mode(remembers):
            made = []
            for rows in (5, 7):
                x, weight = torch.empty(rows, 3, device=device), torch.empty(2, 3, device=device)
                made += [layout(v, [x, weight]) for v in (x @ weight.t(), x + weight[0], x.view(3, -1), x.sum(1))]
            found.append(made)
    assert found[0] == found[1]


# Torch's own table.

PARTS = 3
EVERY = 1 if os.environ.get("HYPOTHESIS_PROFILE") == "explore" else 6
"""One in so many operations is tried, all of them where tests explore."""
OPERATIONS = [op for op in op_db if torch.float32 in op.supported_dtypes("cpu")][::EVERY]


def grown(extent: int) -> int:
    """Another size of the same pattern."""
    return extent if extent < 2 else 3 * extent + 1


def larger(value: torch.Tensor) -> torch.Tensor:
    return torch.empty([grown(n) for n in value.shape], dtype=value.dtype)


def grown_shapes(value: Any) -> Any:
    is_shape = isinstance(value, (tuple, list)) and value and all(type(n) is int for n in value)
    return type(value)(map(grown, value)) if is_shape and type(value) in (tuple, list) else value


def on_tensors(op: Callable[..., Any], given: tuple) -> Callable[..., Any]:
    """An operation as a function of the tensors among its arguments."""
    leaves, structure = pytree.tree_flatten(given)

    def function(*tensors: torch.Tensor) -> Any:
        left = iter(tensors)
        args, kwargs = pytree.tree_unflatten([next(left) if is_tensor(v) else v for v in leaves], structure)
        return op(*args, **kwargs)

    return function


def is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def twins(real: list[torch.Tensor], change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[], list[torch.Tensor]]:
    return lambda: [change(t.detach()).requires_grad_(t.requires_grad) for t in real]


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.thorough
def test_torchs_operations_give_what_they_give_alone(part: int) -> None:
    draw = random.Random(part)
    for op in OPERATIONS[part::PARTS]:
        sample = draw.choice(list(op.sample_inputs("cpu", torch.float32, requires_grad=op.supports_autograd)))
        given = ((sample.input, *sample.args), sample.kwargs)
        shaped = pytree.tree_map(grown_shapes, given, is_leaf=lambda v: grown_shapes(v) is not v)
        real = [v for v in pytree.tree_leaves(given) if is_tensor(v)]
        if all(v.layout is torch.strided for v in real):
            call, of_shapes = on_tensors(op.op, given), on_tensors(op.op, shaped)
            compare(call, twins(real, torch.empty_like), [(f, twins(real, larger)) for f in (call, of_shapes)])


def test_strides_that_data_decide_have_no_pattern_and_are_asked_nothing() -> None:
    mode = fake_mode(True)
    assert mode.shape_env is not None
    with mode:
        size = mode.shape_env.create_unbacked_symint()
        column = torch.empty(4, size).select(1, -1)
        assert torch.ge(column, torch.empty(4)).shape == torch.ge(column, torch.empty(4)).shape == (4,)
    assert not mode.shape_env.guards

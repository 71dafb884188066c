"""Tensors made in inference mode, which have no version: captured in whatever mode the call is made."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._pytree import tree_leaves

import turret
from tests.plugins.capture.capture_lab import Observed, assert_same, outcome

_MODES = {
    "none": contextlib.nullcontext, "no_grad": torch.no_grad, "inference": torch.inference_mode,
}  # fmt: skip
_STEPS: dict[str, Callable] = {
    "sin": lambda x, y: torch.sin(x) + y,
    "add_": lambda x, y: x.add_(y),
    "mul_ other": lambda x, y: (y.mul_(2), x + y)[1],
    "view": lambda x, y: x.view(-1)[1:].sum() + y,
    "view write": lambda x, y: (x.view(-1)[1:].add_(1), x * y)[1],
    "foreach": lambda x, y: (torch._foreach_add_([x], 1), x * y)[1],
    "item": lambda x, y: x * torch.tensor(2.0).mul_(3).item() + y,
    "copy": lambda x, y: x.clone().copy_(y) * x,
    "out": lambda x, y: torch.add(x, y, out=torch.empty(2, 3)),
    "relu_": lambda x, y: torch.nn.functional.relu(x - 2, inplace=True) + y,
}


def tensor(inference: bool, start: float) -> torch.Tensor:
    with torch.inference_mode() if inference else contextlib.nullcontext():
        return torch.arange(start, start + 6.0).reshape(2, 3)


def check(program: Callable, mode: str, kinds: tuple[bool, ...]) -> Observed:
    observed = Observed(program)
    for _ in range(2):
        mine, theirs = (tuple(tensor(k, 1.0 + n) for n, k in enumerate(kinds)) for _ in range(2))
        with _MODES[mode]():
            found, expected = outcome(observed, mine, {}), outcome(program, theirs, {})
        assert found[0] == expected[0], (found, expected)
        if expected[0] == "returned":
            assert_same(found[1], expected[1])
            for one, other in zip(tree_leaves(found[1]), tree_leaves(expected[1]), strict=True):
                assert one.is_inference() == other.is_inference()
        assert_same(mine, theirs, "arguments")
    return observed


@settings(max_examples=40, deadline=None)
@given(
    names=st.lists(st.sampled_from(sorted(_STEPS)), min_size=1, max_size=3),
    mode=st.sampled_from(sorted(_MODES)),
    kinds=st.tuples(st.booleans(), st.booleans()),
)
def test_programs_on_tensors_of_either_kind_agree_with_eager(names, mode, kinds):
    def program(x, y):
        for name in names:
            y = _STEPS[name](x, y)
        return y

    check(program, mode, kinds)


@pytest.mark.parametrize("mode", sorted(_MODES))
@pytest.mark.parametrize("name", ["sin", "view"])
def test_a_program_that_writes_to_none_is_one_graph(name, mode):
    observed = check(_STEPS[name], mode, (True, False))
    assert len(observed.graphs) == 1 and not observed.breaks and not observed.recompiles


@pytest.mark.parametrize("name", ["add_", "view write", "foreach", "relu_"])
def test_a_program_that_writes_is_one_graph_in_inference_mode(name):
    observed = check(_STEPS[name], "inference", (True, True))
    assert len(observed.graphs) == 1 and not observed.breaks


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


@pytest.mark.parametrize("late", ["hook", "function"])
def test_what_runs_in_the_backward_is_traced_beside_tensors_made_in_inference_mode(late):
    def program(x):
        with torch.inference_mode():
            kept = x.detach() + 1
        y = Doubled.apply(x) if late == "function" else x * 2
        if late == "hook":
            y.register_hook(lambda gradient: gradient * 3)
        return y, kept

    found = []
    for function in (program, Observed(program)):
        x = torch.ones(3, requires_grad=True)
        y, kept = function(x)
        y.sum().backward()
        found.append((y.detach(), kept, kept.is_inference(), x.grad))
    assert_same(*found)


def test_memory_that_inputs_share_is_noticed_where_one_is_written_to():
    def program(x, y):
        x.add_(1)
        return x + y

    observed = Observed(program)
    with torch.inference_mode():
        for shared in (False, True, False):
            x = torch.ones(3)
            y = x if shared else torch.ones(3)
            assert_same(observed(x, y.view(3)), torch.full((3,), 4.0 if shared else 3.0))
    assert len(observed.graphs) == 2


def test_where_autograd_forbids_it_the_exception_is_eagers():
    weight = torch.nn.Parameter(torch.ones(3))
    observed = Observed(lambda x: x * weight)
    with pytest.raises(RuntimeError, match="saved for backward"):
        observed(tensor(True, 0.0))
    assert_same(observed(tensor(False, 0.0)), tensor(False, 0.0) * weight)


def test_the_whole_path_compiles_in_inference_mode():
    def program(x, y):
        x.add_(y)
        return torch.sin(x).view(-1)[1:], x.t() @ y

    compiled = turret.compile(program, options={"on_error": "raise", "cache": False})
    with torch.inference_mode():
        for _ in range(2):
            (mine, y), (theirs, z) = (tuple(tensor(True, 1.0 + n) for n in range(2)) for _ in range(2))
            assert_same(compiled(mine, y), program(theirs, z))
            assert_same(mine, theirs)


_REFUSED: dict[str, Callable] = {
    "item": lambda x: x.__setitem__(0, 2),
    "slice": lambda x: x[:, 1:].neg_(),
    "select": lambda x: x.select(1, 1).add_(1),
    "flat": lambda x: x.view(-1).__setitem__(0, 2),
    "whole": lambda x: x.mul_(2),
    "row": lambda x: [row.__setitem__(0, 1) for row in x],
    "foreach": lambda x: torch._foreach_add_([x[0]], 1),
    "out": lambda x: torch.add(x[0], 1, out=x[1]),
}


@pytest.mark.parametrize("name", sorted(_REFUSED))
def test_a_write_that_autograd_refuses_raises_after_the_effects_before_it(name):
    def program(x, y):
        y.append(len(y))
        _REFUSED[name](x)

    found, expected = [], []
    with pytest.raises(RuntimeError, match="outside InferenceMode"):
        program(tensor(True, 1.0), expected)
    with pytest.raises(RuntimeError, match="outside InferenceMode"):
        Observed(program)(tensor(True, 1.0), found)
    assert found == expected == [0]


@pytest.mark.parametrize("name", sorted(_REFUSED))
def test_a_program_handles_the_refusal_of_a_write(name):
    def program(x, y):
        try:
            _REFUSED[name](x)
        except RuntimeError as error:
            y.append(type(error))
        return x.sin()

    found: list = []
    assert_same(Observed(program)(tensor(True, 1.0), found), program(tensor(True, 1.0), []))
    assert found == [RuntimeError]


@pytest.mark.parametrize("mode", sorted(_MODES))
@pytest.mark.parametrize("kinds", [(False, False), (True, False), (False, True)])
def test_a_checkpoint_takes_tensors_where_autograd_saves_them(mode, kinds):
    def program(x, y):
        return torch.utils.checkpoint.checkpoint(lambda a, b: torch.tanh(a) + b[0], x, y, use_reentrant=False)

    check(program, mode, kinds)


@pytest.mark.parametrize("dtype", [torch.int32, torch.float64, torch.uint8])
def test_a_write_outside_of_the_mode_to_a_view_as_another_dtype_is_done_once(dtype):
    def program(x):
        x.view(dtype)[0] += 2
        return x.sum()

    compiled = turret.compile(program)
    with torch.inference_mode():
        mine, theirs = torch.arange(8), torch.arange(8)
    for _ in range(2):
        assert torch.equal(compiled(mine), program(theirs))
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("made_there", [True, False])
@pytest.mark.parametrize("sizes", [[(3, 1)], [(3, 1), (5, 1), (7, 1)]], ids=["one size", "sizes"])
@pytest.mark.parametrize(
    "change",
    [lambda x: x.t_(), lambda x: x.unsqueeze_(0), lambda x: x.squeeze_(1), lambda x: x.resize_(2, 4),
     lambda x: x.as_strided_((2,), (1,)), lambda x: x.swapaxes_(0, 1).mul_(2)],
)  # fmt: skip
def test_an_argument_s_layout_is_changed_in_inference_mode(change, sizes, made_there):
    def program(x):
        y = x * 2
        change(x)
        return y, x.shape, x.stride()

    compiled = turret.compile(program, options={"on_error": "raise"})
    for size in sizes:
        with torch.inference_mode(made_there):
            mine, theirs = torch.ones(size), torch.ones(size)
        with torch.inference_mode():
            assert str(compiled(mine)) == str(program(theirs))
        assert (mine.shape, mine.stride()) == (theirs.shape, theirs.stride())
        assert not mine.numel() or torch.equal(mine.flatten()[:2], theirs.flatten()[:2])


@pytest.mark.parametrize("size", [0, 3])
@pytest.mark.parametrize("write", [lambda x: x.add_(1), lambda x: x.unsqueeze_(0), lambda x: x[:1].zero_()])
def test_a_detached_tensor_of_inference_mode_is_written_to_outside_of_it_where_eager_takes_that(write, size):
    def program(x):
        detached = x.detach()
        write(detached)
        return detached + 1

    with torch.inference_mode():
        mine, theirs = torch.ones(size), torch.ones(size)
    found, expected = outcome(turret.compile(program), (mine,), {}), outcome(program, (theirs,), {})
    assert str(found) == str(expected)
    assert torch.equal(mine, theirs)


_RETURNED: dict[str, Callable] = {
    "detach": lambda x: x.detach(),
    "data": lambda x: x.data,
    "view": lambda x: x.view(-1),
    "alias": lambda x: torch.ops.aten.alias(x),
    "detached view": lambda x: x.view(-1)[1:].detach(),
    "view of detached": lambda x: x.detach().view(-1),
    "data of a view": lambda x: x.t().data,
    "other dtype": lambda x: x.detach().view(torch.int32),
    "detached other dtype": lambda x: x.view(torch.int32).detach(),
    "twice": lambda x: (x.detach(), x.detach().t()),
    "with the input": lambda x: (x, x.detach(), x.data),
    "made": lambda x: (x * 2).detach(),
    "made and detached": lambda x: (lambda y: (y, y.detach(), y.data, y.view(-1).detach()))(x * 2),
}
_WRITES: dict[str, Callable] = {
    "add_": lambda t: t.add_(1),
    "item": lambda t: t.view(-1).__setitem__(0, 5),
    "view": lambda t: t[:1].add_(1),
    "detached": lambda t: t.detach().add_(1),
    "unsqueeze_": lambda t: t.unsqueeze_(0),
    "foreach": lambda t: torch._foreach_add_([t], 1),
    "resize_": lambda t: t.resize_(1),
    "requires_grad_": lambda t: t.requires_grad_(),
    "version": lambda t: t._version,
}


def written(function: Callable, x: torch.Tensor, modes: tuple[str, str], write: str, place: int) -> list:
    """What a write to the input or to a result does, and what all of them are like before and after it."""
    with _MODES[modes[0]]():
        results = function(x)
    tensors = [x, *(results if isinstance(results, tuple) else (results,))]
    target = tensors[place % len(tensors)]
    before = [None if t.is_inference() else t._version for t in tensors]
    facts = [(t.is_inference(), t.requires_grad, t.is_leaf) for t in tensors]
    try:
        with _MODES[modes[1]]():
            _WRITES[write](target)
        facts.append("taken")
    except Exception as error:
        facts.append((type(error), str(error)))
    for tensor, version in zip(tensors, before, strict=True):
        moved = None if version is None else tensor._version - version
        facts.append((moved, tensor.tolist(), tensor.shape, tensor.stride(), tensor.storage_offset()))
    return [*facts, [[a.data_ptr() == b.data_ptr() for a in tensors] for b in tensors]]


@pytest.mark.parametrize("mode", sorted(_MODES))
@pytest.mark.parametrize("name", sorted(_RETURNED))
def test_a_write_to_what_was_returned_is_taken_and_counted_as_eagers(name, mode):
    compiled = turret.compile(_RETURNED[name], options={"on_error": "raise", "cache": False})
    for inference, later, write, place in itertools.product((False, True), _MODES, _WRITES, range(3)):
        found, expected = (
            written(function, tensor(inference, 1.0), (mode, later), write, place)
            for function in (compiled, _RETURNED[name])
        )
        assert found == expected, (inference, later, write, place)


def _viewed_in(block):
    def function(x, n):
        with block():
            view = x[:]
        scaled = view * n
        return scaled, view.sum(0), scaled.requires_grad, view.requires_grad

    return function


def _all_outside(x, n):
    summed, scaled = x.sum(0), x * n
    return summed, scaled, summed.requires_grad, scaled.requires_grad, x.exp()


_READ_AT_FIRST = {
    "outside": _all_outside,
    "without gradients": _viewed_in(torch.no_grad),
    "with gradients": _viewed_in(torch.enable_grad),
}


@pytest.mark.parametrize("grad_mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("read", _READ_AT_FIRST)
def test_results_of_an_inference_tensor_with_gradients_require_them_where_eagers_do(grad_mode, read):
    function = _READ_AT_FIRST[read]
    with torch.inference_mode():
        x = torch.ones(4, 3).requires_grad_()
    compiled = turret.compile(function)
    for n in (2, 3, 4):
        found, expected = [], []
        for call, results in ((compiled, found), (function, expected)):
            with grad_mode():
                results += call(x, n)
        assert [getattr(v, "requires_grad", v) for v in found] == [getattr(v, "requires_grad", v) for v in expected]


@pytest.mark.parametrize("leaving", ["break", "return"])
def test_a_view_that_was_written_to_keeps_its_history_where_inference_mode_is_entered_behind_it(leaving):
    def program(y, n, log):
        view = torch.complex(y, y).conj()
        log.append(view)
        view.real.detach().mul_(2)
        with torch.inference_mode():
            for i in range(1):
                try:
                    opaque(1)
                    if 0 < n <= 5 and leaving == "break":
                        break
                    if 0 < n <= 5:
                        return
                finally:
                    log.append((i, "left"))

    compiled, kept = turret.compile(program), []
    for n, log, differentiable in ((3, kept, False), (1, kept, False), (2, [], True), (1, [], True)):
        y = torch.arange(3.0, requires_grad=differentiable)
        compiled(y, n, log)
        assert log[0].is_leaf is not differentiable
        if differentiable:
            assert torch.autograd.grad(log[0].real.sum(), y)[0].tolist() == [1.0, 1.0, 1.0]


@torch.compiler.disable
def opaque(value):
    return value


def test_a_view_that_was_written_to_keeps_its_history_where_it_is_an_argument_in_inference_mode():
    compiled = turret.compile(lambda view: view.real + 1)
    for n in (3, 4, 5, 3):
        y = torch.arange(float(n), requires_grad=True)
        view = torch.complex(y, y).conj()
        view.real.detach().mul_(2)
        with torch.inference_mode():
            assert compiled(view).tolist() == [2 * v + 1 for v in range(n)]
        assert torch.autograd.grad(view.real.sum(), y)[0].tolist() == [1.0] * n

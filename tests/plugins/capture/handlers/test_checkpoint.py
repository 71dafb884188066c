"""``torch.utils.checkpoint`` as the program's modes hear it."""

from __future__ import annotations

import collections
import functools

import pytest
import torch
import torch.utils.checkpoint

import turret
from tests.plugins.capture.capture_lab import Observed, assert_same


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_a_mode_of_the_program_hears_what_the_checkpoint_asks(use_reentrant):
    class Hears(torch.overrides.TorchFunctionMode):
        def __init__(self):
            super().__init__()
            self.calls = 0

        def __torch_function__(self, func, types, args=(), kwargs=None):
            self.calls += 1
            result = func(*args, **(kwargs or {}))
            return result + self.calls if func is torch.sin else result

    def program(x):
        with Hears():
            return torch.sin(torch.utils.checkpoint.checkpoint(lambda v: v * 2, x, use_reentrant=use_reentrant))

    x = torch.randn(3, requires_grad=True)
    torch.testing.assert_close(turret.compile(program)(x), program(x))


def test_a_default_device_breaks_no_checkpoint():
    def program(x):
        with torch.device("cpu"):
            return torch.sin(torch.utils.checkpoint.checkpoint(lambda v: v * 2, x, use_reentrant=False))

    x = torch.randn(3, requires_grad=True)
    torch.testing.assert_close(turret.compile(program, fullgraph=True)(x), program(x))


ENDINGS = {
    "tanh": torch.tanh,
    "exp": lambda x: x.exp().t(),
    "relu": torch.relu,
    "softmax": lambda x: torch.softmax(x, -1)[:, 1:],
    "sum": lambda x: x.sin() + x,
    "pair": lambda x: (x.sigmoid(), x * 2),
    "ordered": lambda x: collections.OrderedDict([(0, x.sigmoid()), ("rest", [x, None, 3])]),
}
WRITES = {
    "none": lambda x: None,
    "added to": lambda x: x.add_(1),
    "a part": lambda x: x[0].mul_(2),
    "through detach": lambda x: x.detach().zero_(),
}


@pytest.mark.parametrize("after", sorted(WRITES))
@pytest.mark.parametrize("ending", sorted(ENDINGS))
@pytest.mark.parametrize("compiled", [Observed, turret.compile])
def test_what_a_checkpoint_gave_is_written_to_as_in_eager(compiled, ending, after):
    def program(x):
        result = torch.utils.checkpoint.checkpoint(ENDINGS[ending], x * 2, use_reentrant=False)
        WRITES[after](result[0] if ending in ("pair", "ordered") else result)
        return result

    def run(function):
        x = torch.linspace(-1, 1, 9).view(3, 3).requires_grad_()
        try:
            found = function(x)
            found = (found[0], found["rest"][0]) if ending == "ordered" else found
            sum(r.square().sum() for r in ([found] if isinstance(found, torch.Tensor) else found)).backward()
        except RuntimeError as error:
            return type(error)
        return found, x.grad

    function = compiled(program)
    for _ in range(2):
        assert_same(run(function), run(program))


def prefer_recompute(ctx, op, *args, **kwargs):
    return torch.utils.checkpoint.CheckpointPolicy.PREFER_RECOMPUTE


@pytest.mark.parametrize("write", sorted(set(WRITES) - {"none"}))
@pytest.mark.parametrize("compiled", [Observed, turret.compile])
@pytest.mark.parametrize("form", ["plain", "reentrant", "selective"])
def test_what_a_checkpointed_function_writes_to_is_written_to_in_the_backward_again(compiled, form, write):
    count = torch.ones(3, 3)
    contexts = functools.partial(torch.utils.checkpoint.create_selective_checkpoint_contexts, prefer_recompute)

    def body(x):
        WRITES[write](count)
        return (x * 3).sin()

    def program(x):
        how = {"context_fn": contexts} if form == "selective" else {}
        return torch.utils.checkpoint.checkpoint(body, x, use_reentrant=form == "reentrant", **how).sum()

    def run(function):
        count.fill_(1)
        x = torch.linspace(-1, 1, 9).view(3, 3).requires_grad_()
        for _ in range(3):
            function(x).backward()
        return count.clone(), x.grad

    assert_same(run(compiled(program)), run(program))


def test_running_statistics_of_a_checkpointed_block_are_those_of_eager():
    def run(compiled):
        torch.manual_seed(0)
        block = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
        function = compiled(lambda x: torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False).square().sum())
        for _ in range(3):
            function(torch.arange(32.0).view(8, 4)).backward()
        return dict(block.state_dict()), [p.grad for p in block.parameters()]

    for found, expected in zip(run(turret.compile), run(lambda f: f), strict=True):
        torch.testing.assert_close(found, expected)

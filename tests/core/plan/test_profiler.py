"""What torch.profiler shows of compiled code: checks of guards, regions, kernels, by name and the user's line."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

import turret
from turret.frames import guard_tree
from turret.plan.executor import PLAN_FILE, left_inputs_as_they_were

OPTIONS = {"cache": False, "on_error": "raise"}


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        made = self.linear(x)
        return torch.sin(made * 2) + 1


@pytest.fixture
def native_guards():
    guard_tree.load()


def events(call):
    with profile(activities=[ProfilerActivity.CPU]) as found:
        call()
    return [event for event in found.events() if not event.name.startswith(("aten::", "autograd::", "torch::"))]


def test_guards_regions_and_kernels_have_names_and_lines(native_guards):
    compiled = turret.compile(Layer(), options=OPTIONS)
    x = torch.randn(2, 4, requires_grad=True)

    def step():
        compiled(x).sum().backward()

    step()
    found = events(step)
    names = [event.name for event in found]
    line = Layer.forward.__code__.co_firstlineno
    assert any(n.startswith("turret guards of Layer.forward (") and n.endswith(f"{__file__}:{line})") for n in names)
    regions = [event for event in found if re.match(r"graph\d+\.(forward|backward)", event.name)]
    assert [re.split("[.:]", event.name)[1] for event in regions] == ["forward", "backward"], names
    kernels = [event for event in found if event.name.startswith("k0_")]
    assert any(event.name.endswith(": return torch.sin(made * 2) + 1") for event in kernels)
    for kernel in kernels:
        assert any(
            region.time_range.start <= kernel.time_range.start and kernel.time_range.end <= region.time_range.end
            for region in regions
        )


def test_profiled_calls_compute_what_others_do_and_use_the_same_memory(native_guards):
    compiled = turret.compile(
        lambda x: ((x * 2).softmax(-1) @ x.t()).relu() + x.shape[0], options=OPTIONS, dynamic=True
    )
    for size in (3, 5, 3, 8):
        x = torch.randn(size, 4)
        expected = compiled(x)
        found = []
        names = [event.name for event in events(lambda: found.append(compiled(x)))]  # noqa: B023
        assert torch.equal(found[0], expected)
        assert any(name.startswith("graph") for name in names), names
        assert torch.equal(compiled(x), expected)


def test_a_kernel_that_fails_under_a_profiler_says_so():
    def program(x, index):
        return x[index] + 1

    compiled = turret.compile(program, options=OPTIONS)
    x = torch.arange(3.0)
    compiled(x, torch.tensor([0, 2]))
    with pytest.raises((IndexError, RuntimeError)) as plain:
        compiled(x, torch.tensor([0, 5]))
    with pytest.raises((IndexError, RuntimeError)) as profiled:
        events(lambda: compiled(x, torch.tensor([0, 5])))
    assert str(profiled.value) == str(plain.value)
    assert torch.equal(compiled(x, torch.tensor([1, 1])), torch.tensor([2.0, 2.0]))


def test_an_error_under_a_profiler_after_a_write_to_an_input_is_no_reason_to_run_again():
    def run(source, **names):
        space = {"writes_inputs": False, **names}
        exec(compile(source, f"{PLAN_FILE} test>", "exec"), space)
        return space["run"]

    inner = run("def run(args):\n    overwrites = True\n    raise ValueError(args)")
    for outer, expected in ((run("def run(args):\n    return profiled(args)", profiled=inner), False), (inner, False)):
        with pytest.raises(ValueError, match="x") as raised:
            outer("x")
        assert left_inputs_as_they_were(raised.value) is expected
    plain = run("def run(args):\n    raise ValueError(args)")
    with pytest.raises(ValueError, match="x") as raised:
        run("def run(args):\n    return profiled(args)", profiled=plain)("x")
    assert left_inputs_as_they_were(raised.value)
    assert not left_inputs_as_they_were(ValueError("x"))

"""Kernels of compiled code run under the settings that eager would run them under, whatever switches these."""

from __future__ import annotations

import contextlib
import functools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import turret
from turret.frames.trace_modes import mode_values, restore_modes

pytestmark = pytest.mark.usefixtures("torchs_settings")
SEEN: list = []


def state():
    """What a kernel can see of the settings that the programs below switch, and of gradients and autocast."""
    return (
        torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.utils.deterministic.fill_uninitialized_memory, torch.get_float32_matmul_precision(),
        torch.backends.cudnn.enabled, torch.backends.cudnn.benchmark, torch.backends.mkldnn.enabled,
        torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_fp16_accumulation,
    )  # fmt: skip


@torch.library.custom_op("settings_sections::look", mutates_args=())
def look(x: torch.Tensor) -> torch.Tensor:
    SEEN.append(state())
    return x + 1


look.register_fake(torch.empty_like)
look.register_autograd(lambda ctx, grad: grad * 3)

SWITCHES = {
    "deterministic": lambda: torch.use_deterministic_algorithms(True),
    "warn": lambda: torch.use_deterministic_algorithms(True, warn_only=True),
    "free": lambda: torch.use_deterministic_algorithms(False),
    "debug": lambda: torch.set_deterministic_debug_mode("warn"),
    "unfilled": lambda: setattr(torch.utils.deterministic, "fill_uninitialized_memory", False),
    "medium": lambda: torch.set_float32_matmul_precision("medium"),
    "highest": lambda: torch.set_float32_matmul_precision("highest"),
    "benchmark": lambda: setattr(torch.backends.cudnn, "benchmark", True),
    "no tf32": lambda: setattr(torch.backends.cudnn, "allow_tf32", False),
    "half sums": lambda: setattr(torch.backends.cuda.matmul, "allow_fp16_accumulation", True),
}
BLOCKS = {
    "cudnn": lambda: torch.backends.cudnn.flags(enabled=False, allow_tf32=False),
    "no mkldnn": lambda: mkldnn_off(),
    "no_grad": lambda: torch.no_grad(),
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "deterministic block": lambda: deterministic(),
}
CALLS = {
    "look": lambda v: look(v), "tanh": torch.tanh, "double": lambda v: v * 2, "add_": lambda v: v.add_(1),
    "view": lambda v: v.t(), "product": lambda v: (v @ torch.ones(4, 4)).float() / 4, "halves": lambda v: _swapped(v),
}  # fmt: skip


@contextlib.contextmanager
def mkldnn_off():
    before = torch.backends.mkldnn.enabled
    torch.backends.mkldnn.enabled = False
    try:
        yield
    finally:
        torch.backends.mkldnn.enabled = before


@contextlib.contextmanager
def deterministic():
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


def _swapped(v):
    return torch.cat(v.chunk(2)[::-1])


def program(steps, v):
    for step in steps:
        if isinstance(step, tuple):
            with BLOCKS[step[0]]():
                v = program(step[1], v)
        elif step in SWITCHES:
            SWITCHES[step]()
        else:
            v = CALLS[step](v)
    return v


def outcome(function, *args):
    """What a call gives, what kernels saw, and the settings that it leaves, which are then those of before."""
    before = mode_values()
    SEEN.clear()
    try:
        given = [a.detach().clone().requires_grad_(a.requires_grad) for a in args]
        found = function(*[a * 1 for a in given])
        if found.requires_grad:
            found.float().sum().backward()
        return found.detach().clone(), [a.grad for a in given], list(SEEN), mode_values()
    finally:
        restore_modes(before)


def assert_follows(function, *args, calls=2, **options):
    fallbacks = []

    class Watch:
        @turret.hookimpl
        def turret_event(self, event):
            if event.kind == "fallback":
                fallbacks.append(event.message)

    compiled = turret.compile(function, fullgraph=True, plugins=[Watch()], options={"cache": False, **options})
    for _ in range(calls):
        expected, found = outcome(function, *args), outcome(compiled, *args)
        torch.testing.assert_close(found[:2], expected[:2])
        assert found[2:] == expected[2:]
    return fallbacks


LEAVES = st.sampled_from([*SWITCHES, *CALLS])
STEPS = st.recursive(
    st.lists(LEAVES, max_size=5),
    lambda inner: st.lists(st.one_of(LEAVES, st.tuples(st.sampled_from([*BLOCKS]), inner)), max_size=5),
    max_leaves=12,
)


@settings(max_examples=25, deadline=None)
@given(STEPS, st.booleans())
def test_kernels_see_the_settings_that_eager_has(steps, trained):
    v = torch.linspace(-1, 1, 16).reshape(4, 4).requires_grad_(trained)
    assert_follows(functools.partial(program, ["double", *steps, "look"]), v)


@pytest.mark.parametrize("switch", SWITCHES)
def test_calls_between_switches_are_compiled(switch):
    steps = ["tanh", "look", switch, "look", "double", "highest", "free", "look"]
    assert assert_follows(functools.partial(program, steps), torch.ones(4, 4, requires_grad=True)) == []


def test_a_backward_across_a_switch_runs_eagerly_and_says_so():
    def function(v):
        loss = torch.tanh(v).sum()
        torch.set_float32_matmul_precision("medium")
        (grad,) = torch.autograd.grad(loss, [v])
        return look(grad)

    fallbacks = assert_follows(function, torch.ones(4, requires_grad=True))
    assert fallbacks and "cannot be compiled apart" in fallbacks[0]


def test_an_error_leaves_what_eager_leaves():
    def function(v, index):
        torch.use_deterministic_algorithms(True)
        v = torch.tanh(v * 2)
        torch.set_float32_matmul_precision("medium")
        return v[index].sum()

    compiled = turret.compile(function, fullgraph=True, options={"cache": False})
    args = torch.ones(3), torch.tensor([1])
    assert_follows(function, *args)
    before = mode_values()
    compiled(*args)
    restore_modes(before)
    left = []
    for called in (function, compiled):
        with pytest.raises(IndexError):
            called(torch.ones(3), torch.tensor([7]))
        left.append(mode_values())
        restore_modes(before)
    assert left[0] == left[1]

"""Blocks of ``torch.inference_mode`` in compiled code: one graph, whose results are of the kind that eager makes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._pytree import tree_leaves

import turret
from tests.plugins.capture.capture_lab import Observed, assert_same, outcome

_STEPS: dict[str, Callable] = {
    "sin": lambda x, y: torch.sin(x) + y,
    "mul": lambda x, y: x * y,
    "view": lambda x, y: (x.view(-1)[1:], y[0:1])[1],
    "add_": lambda x, y: y.add_(1),
    "write to the argument": lambda x, y: (x.mul_(2), y)[1],
    "made": lambda x, y: y + torch.ones(3),
    "detach": lambda x, y: y.detach(),
    "print": lambda x, y: (print(end=""), y)[1],
}
_BLOCKS: dict[str, Callable] = {
    "none": lambda f, x, y: f(x, y),
    "inference": lambda f, x, y: torch.inference_mode()(f)(x, y),
    "not": lambda f, x, y: torch.inference_mode(False)(f)(x, y),
    "no_grad": lambda f, x, y: torch.no_grad()(f)(x, y),
    "inside": lambda f, x, y: torch.inference_mode()(lambda: torch.enable_grad()(f)(x, y))(),
    "outside": lambda f, x, y: torch.inference_mode()(lambda: torch.inference_mode(False)(f)(x, y))(),
}


def check(program: Callable, compiled: Callable, requires_grad: bool, made_there: bool = False) -> None:
    for start in (0.0, 1.0):
        with torch.inference_mode(made_there):
            given = [torch.arange(start, start + 6).reshape(2, 3) for _ in range(2)]
        mine, theirs = (v if made_there else v.requires_grad_(requires_grad) for v in given)
        found, expected = outcome(compiled, (mine,), {}), outcome(program, (theirs,), {})
        assert found[0] == expected[0], (found, expected)
        assert (torch.is_grad_enabled(), torch.is_inference_mode_enabled()) == (True, False)
        if expected[0] == "returned":
            assert_same(found[1], expected[1])
            for one, other in zip(tree_leaves(found[1]), tree_leaves(expected[1]), strict=True):
                assert (one.is_inference(), one.is_leaf) == (other.is_inference(), other.is_leaf)
        assert_same(mine, theirs, "argument")


_PARTS = st.lists(st.tuples(st.sampled_from(sorted(_BLOCKS)), st.sampled_from(sorted(_STEPS))), min_size=1, max_size=4)


@pytest.mark.thorough
@settings(max_examples=60, deadline=None)
@given(parts=_PARTS, requires_grad=st.booleans(), made_there=st.booleans())
def test_results_of_blocks_are_of_the_kind_that_eager_makes(parts, requires_grad, made_there):
    def program(x):
        y, seen = x * 2, []
        for block, step in parts:
            y = _BLOCKS[block](_STEPS[step], x, y)
            seen.append(y)
        return seen

    check(program, Observed(program), requires_grad, made_there)


def test_a_write_in_a_block_to_a_tensor_of_the_mode_is_done_in_the_mode():
    def program(x):
        with torch.inference_mode():
            x[0] = 5
            y = x * 2
        return y

    observed = Observed(program)
    check(program, observed, False, made_there=True)
    assert observed.graphs and "in the mode before" in observed.breaks[0]


@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize("requires_grad", [True, False])
def test_a_block_is_part_of_one_graph(enabled, requires_grad):
    def program(x):
        y = x.sin()
        with torch.inference_mode(enabled):
            z = y * 2
            if torch.is_inference_mode_enabled():
                z = z + 1
        return z, z[0], z + 1, y * 3

    check(program, Observed(program, fullgraph=True), requires_grad)
    check(program, turret.compile(program, fullgraph=True, options={"on_error": "raise"}), requires_grad)


def test_a_break_in_a_block_leaves_entering_it_to_python():
    def program(x):
        with torch.inference_mode():
            y = x * 2
            print(end="")
            z = y + 1
        return y, z, z + 1

    observed = Observed(program)
    check(program, observed, False)
    assert observed.graphs and any("inference_mode" in message for message in observed.breaks)


def test_a_block_that_an_exception_ends_is_ended():
    def program(x):
        try:
            with torch.inference_mode():
                y = x * 2
                raise ValueError
        except ValueError:
            return y, x * 3

    check(program, Observed(program, fullgraph=True), True)


def test_results_of_a_block_are_conjugate_and_negative_as_eagers_are():
    def program(x):
        with torch.inference_mode():
            z = torch.complex(x, x + 1).conj()
            return z, z.imag, z.imag * 2

    x = torch.arange(3.0)
    for mine, theirs in zip(turret.compile(program, fullgraph=True)(x), program(x), strict=True):
        assert torch.equal(mine, theirs)
        assert (mine.is_conj(), mine.is_neg()) == (theirs.is_conj(), theirs.is_neg()) and mine.is_inference()


def test_a_block_in_code_that_runs_as_python_leaves_dispatch_as_it_was():
    def program(x):
        try:
            raise ExceptionGroup("group", [ValueError(1)])
        except* ValueError:
            with torch.inference_mode():
                print(end="")
        return x

    x = torch.ones(3)
    before = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()
    assert turret.compile(program)(x) is x
    assert (torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()) == before

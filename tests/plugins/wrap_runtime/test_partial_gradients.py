"""Backwards of which some gradients do not come: what depends on those alone is not run, as in eager."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import turret

OPTIONS = {"on_error": "raise", "cache": False, "fallback_random": True}
INF = float("inf")


class Quotient(torch.autograd.Function):
    """A function whose gradient is infinite, or no number, at zero."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2, x.exp()

    @staticmethod
    def backward(ctx, g, h):
        (x,) = ctx.saved_tensors
        return g * 2 + h / x


UNARY: dict[str, Callable] = {
    "log": torch.log, "sqrt": torch.sqrt, "reciprocal": torch.reciprocal, "sin": torch.sin, "asin": torch.asin,
    "double": lambda x: x * 2, "cumsum": lambda x: x.cumsum(0), "sort": lambda x: x.sort(0).values,
    "softmax": lambda x: torch.softmax(x, -1), "norm": torch.norm, "layer_norm": lambda x: F.layer_norm(x, (3,)),
    "row": lambda x: x[0], "flat": lambda x: x.view(-1), "write": lambda x: x.clone().mul_(3), "detach": torch.detach,
    "where": lambda x: torch.where(x > 0, x.log(), x), "dropout": lambda x: F.dropout(x, 0.5),
    "noise": lambda x: x * torch.rand_like(x), "double_precision": torch.Tensor.double, "std": lambda x: x.std(0),
    "checkpoint": lambda x: torch.utils.checkpoint.checkpoint(lambda y: y.log().sin(), x, use_reentrant=False),
}  # fmt: skip
SEVERAL: dict[str, Callable] = {
    "var_mean": lambda x: torch.var_mean(x, 0), "unbind": lambda x: x.unbind(0), "split": lambda x: x.split(1),
    "quotient": Quotient.apply,
}  # fmt: skip
if not torch.aminmax(torch.ones(1, requires_grad=True), dim=0).min.grad_fn.name().endswith("NotImplemented"):
    # torch 2.11 has no derivative of it
    SEVERAL["aminmax"] = lambda x: tuple(torch.aminmax(x, dim=0))
BINARY: dict[str, Callable] = {
    "mul": torch.mul, "add": torch.add, "div": torch.div, "maximum": torch.maximum, "atan2": torch.atan2,
    "xlogy": torch.xlogy,
}  # fmt: skip
STEPS = [*UNARY, *SEVERAL, *BINARY]
VALUES = st.one_of(st.sampled_from([0.0, 0.0, 1.0, -1.0, INF]), st.floats(-2, 2, width=16))


def programs(steps: Sequence[tuple[str, int, int]], breaks: frozenset[int], picked: Sequence[int]) -> Callable:
    def program(x, w):
        values = [x, w]
        for number, (name, first, second) in enumerate(steps):
            if number in breaks:
                print(end="")
            source, other = values[-1 - first % len(values)], values[-1 - second % len(values)]
            if name in BINARY:
                values.append(BINARY[name](source, other.reshape(-1)[:1]))
            elif source.dim() == 2:
                values.extend(SEVERAL[name](source) if name in SEVERAL else [UNARY[name](source)])
        return [values[-1 - n % len(values)] for n in picked]

    return program


def gradients(function: Callable, chosen: Sequence[bool], data: Sequence[list[float]]) -> Any:
    x, w = (torch.tensor(numbers).view(3, 3).requires_grad_() for numbers in data)
    torch.manual_seed(0)
    outputs = [o for o, wanted in zip(function(x, w), chosen, strict=True) if wanted and o.requires_grad]
    if not outputs:
        return None, None
    return torch.autograd.grad([(o.double() * 1.5).sum() for o in outputs], (x, w), allow_unused=True)


@pytest.mark.thorough
@settings(max_examples=25, deadline=None)
@given(
    steps=st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 5), st.integers(0, 5)), min_size=2, max_size=6),
    breaks=st.frozensets(st.integers(1, 5), max_size=1),
    picked=st.lists(st.integers(0, 4), min_size=2, max_size=3),
    chosen=st.lists(st.tuples(st.booleans(), st.booleans(), st.booleans()), min_size=2, max_size=2),
    data=st.tuples(*[st.lists(VALUES, min_size=9, max_size=9)] * 2),
    dynamic=st.booleans(),
)
def test_gradients_of_some_outputs_are_eagers(steps, breaks, picked, chosen, data, dynamic):
    program = programs(steps, breaks, picked)
    compiled = turret.compile(program, options=OPTIONS, dynamic=dynamic)
    for wanted in chosen:
        expected, found = (gradients(f, wanted[: len(picked)], data) for f in (program, compiled))
        for one, other in zip(found, expected, strict=True):
            assert (one is None) == (other is None)
            if other is not None:
                torch.testing.assert_close(one, other, equal_nan=True, rtol=1e-3, atol=1e-4)


def logs(x):
    return x.log(), x * 2


def zeros() -> torch.Tensor:
    return torch.zeros(3, requires_grad=True)


def test_an_output_that_leaves_at_a_break_and_is_not_used_gives_no_gradient():
    def program(x):
        unused = x.log()
        y = x * 2
        print(end="")
        return y, unused

    x = zeros()
    turret.compile(program, options=OPTIONS)(x)[0].sum().backward()
    assert torch.equal(x.grad, torch.full((3,), 2.0))


def test_a_function_of_the_users_that_no_gradient_reaches_is_not_run():
    x = torch.zeros(3, requires_grad=True)
    _, z = turret.compile(lambda x: (Quotient.apply(x)[1], x * 2), options=OPTIONS)(x)
    z.sum().backward()
    assert torch.equal(x.grad, torch.full((3,), 2.0))


def test_each_set_of_gradients_has_a_backward_of_its_own():
    compiled = turret.compile(lambda x: (x.log(), x * 2, x.exp()), options=OPTIONS)
    for places, value in (((1,), 2.0), ((1, 2), 3.0), ((0, 1, 2), INF), ((1,), 2.0), ((0,), INF), ((2,), 1.0)):
        x = zeros()
        outputs = compiled(x)
        sum(outputs[n].sum() for n in places).backward()
        assert torch.equal(x.grad, torch.full((3,), value))


def test_backwards_past_the_limit_run_call_by_call_on_record():
    compiled = turret.compile(lambda x: (x.log(), x * 2, x * 3), options={**OPTIONS, "recompile_limit": 1})
    for places, value in (((1,), 2.0), ((2,), 3.0), ((1, 2), 5.0)):
        x = zeros()
        outputs = compiled(x)
        expected = pytest.warns(turret.TurretWarning, match="recompile_limit")
        with contextlib.nullcontext() if places == (1,) else expected:
            sum(outputs[n].sum() for n in places).backward()
        assert torch.equal(x.grad, torch.full((3,), value))


def test_a_graph_is_kept_for_backwards_of_one_output_after_another():
    x = torch.ones(3, requires_grad=True)
    logarithm, double = turret.compile(logs, options=OPTIONS)(x)
    double.sum().backward(retain_graph=True)
    logarithm.sum().backward(retain_graph=True)
    (logarithm + double).sum().backward()
    assert torch.equal(x.grad, torch.full((3,), 6.0))


@pytest.mark.parametrize("order", ["some", "all", "both"])
@pytest.mark.thorough
def test_another_process_takes_such_a_backward_from_the_cache(tmp_path, order):
    program = textwrap.dedent("""
        import sys, torch, turret
        torch.manual_seed(0)
        def logs(x):
            return x.log(), x * 2
        compiled = turret.compile(logs, options={"on_error": "raise", "cache_dir": sys.argv[1]})
        for all_of_them in {"some": (False,), "all": (True,), "both": (True, False)}[sys.argv[2]]:
            x = torch.full((3,), 0.0, requires_grad=True)
            logarithm, double = compiled(x)
            (logarithm.sum() + double.sum() if all_of_them else double.sum()).backward()
            print(x.grad.tolist(), "turret.plugins.joint.trace" in sys.modules)
    """)
    folder, script = tmp_path / "cache", tmp_path / "program.py"
    script.write_text(program)
    values = {"some": ["[2.0, 2.0, 2.0]"], "all": ["[inf, inf, inf]"]}
    expected = {**values, "both": values["all"] + values["some"]}[order]
    further = () if order == "both" else (("both", True), ("both", False))
    for wanted, traced in ((order, True), (order, False), *further):
        found = subprocess.run(
            [sys.executable, script, folder, wanted], capture_output=True, text=True, check=True, env=os.environ
        ).stdout.split("\n")[:-1]
        values_of = expected if wanted == order else values["all"] + values["some"]
        assert [line.rpartition(" ")[0] for line in found] == values_of
        assert found[-1].endswith(str(traced)), (wanted, found)


def test_where_no_such_backward_can_be_made_zeros_stand_in_on_record():
    class Noisy(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            noise = torch.rand_like(x)
            ctx.save_for_backward(noise)
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g * ctx.saved_tensors[0]

    compiled = turret.compile(lambda x: (Noisy.apply(x), x * 3), options={"on_error": "fallback", "cache": False})
    x = torch.ones(3, requires_grad=True)  # without the first output nobody reads the noise, and it is not drawn
    _, y = compiled(x)
    with pytest.warns(turret.TurretWarning, match="zeros stand for gradients"):
        y.sum().backward()
    assert torch.equal(x.grad, torch.full((3,), 3.0))


def test_draws_of_eagers_generator_are_made_for_fewer_gradients_too():
    class Noisy(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(torch.rand_like(x))
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g * ctx.saved_tensors[0]

    compiled = turret.compile(lambda x: (Noisy.apply(x), x * 3), options=OPTIONS)
    x = torch.ones(3, requires_grad=True)
    _, y = compiled(x)
    y.sum().backward()
    assert torch.equal(x.grad, torch.full((3,), 3.0))

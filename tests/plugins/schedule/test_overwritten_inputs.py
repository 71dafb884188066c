"""New values of inputs are made where the input lies, wherever nothing reads the old ones any more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import turret
from turret.plan import Plan


@attrs.define(eq=False)
class Watching:
    """A plugin that keeps the plans of a compilation."""

    plans: list[Plan] = attrs.field(factory=list)

    @turret.hookimpl
    def turret_event(self, event: Any) -> None:
        if event.kind == "product" and isinstance(event.product, Plan):
            self.plans.append(event.product)


def compared(function: Callable[..., Any], *inputs: torch.Tensor) -> list[str]:
    """Run eager and compiled twice over inputs that change; the inputs that the plan overwrites."""
    watching = Watching()
    compiled = turret.compile(function, plugins=[watching], options={"cache": False, "on_error": "raise"})
    theirs, ours = [x.clone() for x in inputs], [x.clone() for x in inputs]
    with torch.no_grad():
        for _ in range(2):
            expected, found = function(*theirs), compiled(*ours)
            torch.testing.assert_close(found, expected)
            torch.testing.assert_close(ours, theirs)
    assert [x._version > 0 for x in ours] == [x._version > 0 for x in theirs]
    plan = watching.plans[-1]
    return [plan.slots[slot].name for slot in plan.overwritten]


X, Y, Z = (torch.randn(6, 6, dtype=torch.float64) for _ in range(3))


def test_an_optimizer_writes_its_states_and_weights_where_they_lie() -> None:
    def step(weight, gradient, momentum):
        momentum.mul_(0.9).add_(gradient)
        weight.sub_(momentum * 0.1)

    assert len(compared(step, X, Y, Z)) == 2


def test_what_reads_the_old_elements_comes_first() -> None:
    def program(x, y):
        old = x * 2
        x.add_(y)
        return old + x

    assert compared(program, X, Y)


def test_an_input_is_not_overwritten_while_its_old_elements_are_wanted() -> None:
    def transposed(x):
        x.copy_(x.t().contiguous())

    def moved(x):
        x.copy_(x.roll(1, 0))
        return x.sum()

    def added_up(x):
        x.copy_(x.cumsum(0))

    assert not compared(transposed, X) and not compared(moved, X) and not compared(added_up, X)


def test_what_the_program_returns_has_memory_of_its_own() -> None:
    def program(x, y):
        new = x + y
        x.copy_(new)
        return new

    compared(program, X, Y)
    compiled = turret.compile(program, options={"cache": False, "on_error": "raise"})
    with torch.no_grad():
        x = X.clone()
        new = compiled(x, Y)
        x.zero_()
        torch.testing.assert_close(new, X + Y)


def test_two_inputs_may_take_each_other_s_elements() -> None:
    def program(x, y):
        old = x.clone()
        x.copy_(y)
        y.copy_(old)

    compared(program, X, Y)


def test_an_error_of_a_check_leaves_inputs_as_eager_does() -> None:
    def program(x, index, y):
        x.add_(1)
        return y[index]

    inputs = X.clone(), torch.tensor([1, 2]), Y
    compared(program, *inputs)
    compiled = turret.compile(program, options={"cache": False})
    with torch.no_grad():
        x = X.clone()
        with pytest.raises(IndexError):
            compiled(x, torch.tensor([1, 99]), Y)
    torch.testing.assert_close(x, X + 1)


def test_a_check_that_comes_first_does_not_matter() -> None:
    def program(x, y):
        scale = y.sum().item()
        torch._check(scale > 0)
        x.mul_(scale)

    function = turret.compile(program, options={"cache": False, "on_error": "raise", "capture_scalar_outputs": True})
    x, y = X.clone(), Y.abs()
    with torch.no_grad():
        function(x, y)
        torch.testing.assert_close(x, X * y.sum())
        with pytest.raises(RuntimeError):
            function(x, -y)
    torch.testing.assert_close(x, X * y.sum())


def test_in_inference_mode_and_beside_gradients() -> None:
    def program(x, y, w):
        with torch.no_grad():
            x.add_(y)
        return x * w

    compiled = turret.compile(program, options={"cache": False, "on_error": "raise"})
    with torch.inference_mode():
        x, y = X.clone(), Y.clone()
        torch.testing.assert_close(compiled(x, y, Z), (X + Y) * Z)
        torch.testing.assert_close(x, X + Y)
    x, w = X.clone(), Z.clone().requires_grad_()
    compiled(x, Y, w).sum().backward()
    torch.testing.assert_close(w.grad, X + Y)


STATEMENTS = (
    "x.add_(y)", "y.mul_(x)", "x.copy_(y)", "x[:, 1] = z[0]", "y.copy_(x.t())", "z.sub_(x.sum(0))", "x.div_(2)",
    "y.copy_(z.roll(1, 0))", "z.copy_((x + y).cumsum(1))", "x.copy_(x @ y)", "kept.append(x + z)",
    "kept.append(y.clone())", "x.fill_(3)", "y.copy_(torch.where(x > 0, y, z))", "z.copy_(y); y.copy_(x)",
    "kept.append(x.view(-1)[:4] * 2)", "x.view(36)[:6].add_(1)", "y.t().mul_(0.5)",
)  # fmt: skip


@pytest.mark.thorough
@settings(max_examples=40, deadline=None)
@given(lines=st.lists(st.sampled_from(STATEMENTS), min_size=1, max_size=6))
def test_programs_of_writes_do_what_eager_does(lines: list[str]) -> None:
    body = "".join(f"    {line}\n" for line in lines)
    scope: dict[str, Any] = {"torch": torch}
    exec(f"def program(x, y, z):\n    kept = []\n{body}    return kept\n", scope)
    compared(scope["program"], X, Y, Z)


WITH_GRADIENTS = (*STATEMENTS, "kept.append(x * w)", "kept.append((w @ y).tanh())", "kept.append((w * w).exp() * z)",
    "x.add_(w.detach())", "x.mul_(w.detach() * 0.5)")  # fmt: skip


@pytest.mark.thorough
@settings(max_examples=40, deadline=None)
@given(lines=st.lists(st.sampled_from(WITH_GRADIENTS), min_size=1, max_size=6))
def test_writes_without_gradients_beside_a_backward_do_what_eager_does(lines: list[str]) -> None:
    """What the backward saves of an input is what it held before it was written to, or the write comes to nothing."""
    body = "".join(f"        {line}\n" if "w" not in line or "detach" in line else "" for line in lines)
    after = "".join(f"    {line}\n" for line in lines if "w" in line and "detach" not in line)
    scope: dict[str, Any] = {"torch": torch}
    head = "def program(x, y, z, w):\n    kept = [w * 2]\n    with torch.no_grad():\n        pass\n"
    exec(f"{head}{body}{after}    return kept\n", scope)
    program = scope["program"]
    compiled = turret.compile(program, options={"cache": False, "on_error": "raise"})
    theirs, ours = [[x.clone() for x in (X, Y, Z)] for _ in range(2)]
    for _ in range(2):
        gradients = []
        for function, inputs in ((program, theirs), (compiled, ours)):
            w = Z.clone().requires_grad_()
            kept = function(*inputs, w)
            gradients.append([torch.autograd.grad(sum(k.sum() for k in kept), w)[0], *kept])
        torch.testing.assert_close(*gradients)
        torch.testing.assert_close(ours, theirs)


def test_running_statistics_are_written_where_they_lie_in_training() -> None:
    watching = Watching()
    norm = torch.nn.BatchNorm1d(6).double()
    other = torch.nn.BatchNorm1d(6).double()
    compiled = turret.compile(norm, plugins=[watching], options={"cache": False, "on_error": "raise"})
    for _ in range(3):
        for module in (compiled, other):
            module(X).square().sum().backward()
    torch.testing.assert_close(dict(norm.named_buffers()), dict(other.named_buffers()))
    torch.testing.assert_close([p.grad for p in norm.parameters()], [p.grad for p in other.parameters()])
    assert len(watching.plans[0].overwritten) == 3


def test_checks_of_several_inputs_come_before_the_first_write() -> None:
    def program(x, y, counts):
        for tensor, count in zip((x, y), counts.unbind(), strict=True):
            number = count.item()
            torch._check(number > 0)
            tensor.mul_(number)

    watching = Watching()
    options = {"cache": False, "on_error": "raise", "capture_scalar_outputs": True}
    function = turret.compile(program, plugins=[watching], options=options)
    x, y = X.clone(), Y.clone()
    with torch.no_grad():
        function(x, y, torch.tensor([2.0, 3.0]))
    torch.testing.assert_close((x, y), (X * 2, Y * 3))
    assert len(watching.plans[-1].overwritten) == 2

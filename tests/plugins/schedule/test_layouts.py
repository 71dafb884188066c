"""What loops alone read and write lies in rows where more of it then lies side by side; the rest, as eager has it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

import turret
from turret.hooks.hookspecs import hookimpl
from turret.hooks.text.notation import row_major
from turret.ir import Kernel, Schedule

WIDTH = 48


class Turned:
    """Plugin: tensors that kernels keep in memory in another order than row-major."""

    def __init__(self) -> None:
        self.names: list[str] = []

    @hookimpl(tryfirst=True)
    def turret_codegen(self, schedule: Schedule) -> None:
        declarations = schedule.program.declarations()
        kernels = [step for step in schedule.steps if isinstance(step, Kernel)]
        for decl in (declarations[store.tensor] for kernel in kernels for store in kernel.stores):
            if decl.stride != row_major(decl.shape):
                self.names.append(decl.name)


class Stem(nn.Module):
    """A convolution, whose result is turned, before layers with norms."""

    def __init__(self, returned: bool) -> None:
        super().__init__()
        self.conv, self.places = nn.Conv1d(8, WIDTH, 3, padding=1), nn.Parameter(torch.randn(40, WIDTH))
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH) for _ in range(3)])
        self.layers = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(2)])
        self.returned = returned

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        h = first = F.gelu(self.conv(x)).permute(0, 2, 1) + self.places
        for layer, norm in zip(self.layers, self.norms, strict=False):
            h = h + layer(norm(h))
        return self.norms[-1](h), *((first, h) if self.returned else ())


def observed(call: Callable) -> tuple[Callable, Turned]:
    turned = Turned()
    return turret.compile(call, options={"on_error": "raise", "cache": False}, plugins=[turned]), turned


@pytest.mark.parametrize("returned", [False, True])
@pytest.mark.parametrize("dynamic", [False, True])
def test_what_comes_out_of_a_convolution_is_turned_once(returned: bool, dynamic: bool) -> None:
    torch.manual_seed(0)
    module = Stem(returned)
    compiled, turned = observed(module)
    for batch in (2, 3, 5)[: 3 if dynamic else 1]:
        x = torch.randn(batch, 8, 40)
        with torch.no_grad():
            found, expected = compiled(x), module(x)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
        assert [v.stride() for v in found] == [v.stride() for v in expected]
    # A program's own results lie as eager's do, and so does what is computed along with them.
    assert bool(turned.names) is returned


def test_gradients_are_those_of_eager() -> None:
    torch.manual_seed(0)
    module = Stem(True)
    compiled, _ = observed(module)
    x = torch.randn(2, 8, 40, requires_grad=True)
    grads = []
    for call in (compiled, module):
        grads.append(torch.autograd.grad(sum(v.square().mean() for v in call(x)), [x, *module.parameters()]))
    torch.testing.assert_close(grads[0], grads[1], rtol=1e-4, atol=1e-5)


def test_what_is_turned_all_along_stays() -> None:
    def function(x: Tensor) -> tuple[Tensor, ...]:
        y = x.transpose(1, 2).exp()
        shares = y / y.sum((1, 2), keepdim=True)
        return shares.sum(0), (shares * 3).amax(0)

    compiled, turned = observed(function)
    x = torch.rand(3, 20, 30)
    torch.testing.assert_close(compiled(x), function(x))
    assert turned.names == ["div"]


STEPS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": lambda x, y: x + y.reshape(x.shape),
    "permute": lambda x, y: x.permute(1, 2, 0),
    "transpose": lambda x, y: x.transpose(0, 2),
    "softmax": lambda x, y: x.softmax(-1),
    "norm": lambda x, y: (x - x.mean(-1, keepdim=True)) * 0.5,
    "over the middle": lambda x, y: x - x.amax(1, keepdim=True),
    "cumulative": lambda x, y: x.cumsum(1) * 0.1,
    "product": lambda x, y: x + x.transpose(1, 2) @ x @ x.transpose(1, 2).mT * 0.01 if x.shape[1] == x.shape[2] else x,
    "rolled": lambda x, y: x.roll(1, 1).sin(),
    "flattened": lambda x, y: x.flatten().cos().view(x.shape),
}


@pytest.mark.thorough
@settings(max_examples=20, deadline=None)
@given(
    st.lists(st.sampled_from(sorted(STEPS)), min_size=2, max_size=8),
    st.permutations(range(3)),
    st.lists(st.integers(0, 7), max_size=2, unique=True),
)
def test_values_and_strides_are_those_of_eager(steps: list[str], order: list[int], returned: list[int]) -> None:
    def function(x: Tensor, y: Tensor) -> list[Tensor]:
        made = [x]
        for name in steps:
            made.append(STEPS[name](made[-1], y))
        return [made[-1] * 2, *(made[1:][n] + 1 for n in returned if n < len(steps))]

    generator = torch.Generator().manual_seed(1)
    x = torch.randn(4, 5, 6, generator=generator).permute(order)
    y = torch.randn(4, 5, 6, generator=generator)
    compiled, _ = observed(function)
    found, expected = compiled(x, y), function(x, y)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert [v.stride() for v in found] == [v.stride() for v in expected]

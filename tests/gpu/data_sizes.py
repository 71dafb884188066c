"""Numbers and sizes that depend on data, on the device: many rows, one, none; values and gradients beside eager's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils import _pytree as pytree

import turret
from tests.gpu.cases import randn
from turret.hooks.hookspecs import hookimpl

_OPTIONS = {
    "on_error": "raise",
    "capture": "turret",
    "capture_scalar_outputs": True,
    "capture_dynamic_output_shape_ops": True,
}


class _Graphs:
    """Counts graphs that are compiled."""

    cache_key = "graphs"

    def __init__(self) -> None:
        self.names: list[str] = []

    @hookimpl
    def turret_event(self, event: Any) -> None:
        if event.kind == "compile_started" and not event.name.endswith(".backward"):
            self.names.append(event.name)


def _numbers(x: Tensor) -> tuple:
    n = x.detach().abs().sum().item()
    return x * (n / 1e6), x.sin() / (n + 1), torch.full((3,), n, device=x.device) + x[0, :3], n


def _rows(x: Tensor) -> tuple:
    y = x[x[:, 0] > 0]
    return y * 2, y.sum(0), y.sum(1), y.softmax(1), F.layer_norm(y, y.shape[1:]), y.t() @ y, y.sum()


def _elements(x: Tensor) -> tuple:
    y = x.masked_select(x > 1)
    return y.exp(), y.sum(), y.mean(), torch.cat([y, x[0]]).sin(), y.reshape(-1, 1) * x[0, :4]


def _sliced(x: Tensor) -> tuple:
    n = int((x[:, 0] > 0).sum())
    return (
        x[:n].sum(0),
        x[n:] * 2,
        x[-n:].exp(),
        torch.arange(n, device=x.device) * 2,
        torch.ones(n, 2, device=x.device),
    )


def _placed(x: Tensor) -> tuple:
    rows, columns = torch.nonzero(x > 2, as_tuple=True)
    y = x.clone()
    y[y > 1] = 0
    return x[rows, columns] * 2, torch.zeros_like(x).index_put((rows, columns), x[rows, columns]), y * 2


def _results(function: Callable, x: Tensor) -> list:
    given = x.clone().requires_grad_()
    results = pytree.tree_leaves(function(given))
    leaves = [r for r in results if isinstance(r, Tensor) and r.requires_grad]
    loss = sum((r * torch.linspace(0.5, 1.5, max(1, r.numel()), device=r.device)[: r.numel()].view(r.shape)).sum()
               for r in leaves)  # fmt: skip
    return [*results, *torch.autograd.grad(loss, [given])]


def _compare(function: Callable) -> None:
    graphs = _Graphs()
    fast = turret.compile(function, options=_OPTIONS, fullgraph=True, dynamic=False, plugins=[graphs])
    x = randn(3000, 40)
    for data in (x, -x.abs(), x.abs() + 2, torch.where(torch.arange(3000, device=x.device)[:, None] == 7, x + 9, -1.0)):
        for found, expected in zip(_results(fast, data), _results(function, data), strict=True):
            if isinstance(expected, Tensor):
                torch.testing.assert_close(found, expected, rtol=2e-4, atol=2e-3, equal_nan=True)
            else:
                assert found == expected or abs(found - expected) <= 1e-4 * abs(expected), (found, expected)
    assert len(graphs.names) == 1, graphs.names


def numbers_of_data() -> None:
    """Floats and ints that kernels read from the table of sizes."""
    _compare(_numbers)


def rows_of_data() -> None:
    """Sizes that are known in the middle of a plan: reductions in parts, library calls, no rows at all."""
    _compare(_rows)


def elements_of_data() -> None:
    """A size that may be 0 or a hundred thousand: reductions that are split over programs, and their memory."""
    _compare(_elements)


def slices_of_data() -> None:
    """Starts and ends that are read from the device."""
    _compare(_sliced)


def places_of_data() -> None:
    """Gathers from and scatters to places that depend on data."""
    _compare(_placed)


def assertions_of_data() -> None:
    """A failed assertion is an error of the call, and the next call works."""

    def asserting(x: Tensor) -> Tensor:
        n = int((x > 0).sum())
        torch._check(n > 2, lambda: "too few")
        return torch.ones(n, device=x.device) * x.sum()

    fast = turret.compile(asserting, options=_OPTIONS, fullgraph=True)
    x = randn(50)
    torch.testing.assert_close(fast(x), asserting(x))
    try:
        fast(-x.abs())
    except RuntimeError as error:
        assert "too few" in str(error)
    else:
        raise AssertionError("a false assertion passed")
    torch.testing.assert_close(fast(x), asserting(x))


DATA_SIZES: tuple[Callable[[], None], ...] = (
    numbers_of_data,
    rows_of_data,
    elements_of_data,
    slices_of_data,
    places_of_data,
    assertions_of_data,
)

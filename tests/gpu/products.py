"""Checks of matrix products in forms that are not chosen by default, or on weights that are no plain matrices."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

import turret
from tests.gpu.cases import DEVICE
from turret.hooks.hookspecs import hookimpl
from turret.ir import ProductCandidate, Schedule

BF16 = torch.bfloat16


class Forced:
    """Plugin: every product in one form where it can be.  ``chosen`` are the forms that came of it."""

    def __init__(self, *forms: str) -> None:
        self.forms, self.chosen = forms, []

    @hookimpl(tryfirst=True)
    def turret_choice_cost(self, candidate: ProductCandidate) -> float:
        return float(candidate.form not in self.forms)

    @hookimpl
    def turret_event(self, event: object) -> None:
        if isinstance(getattr(event, "product", None), Schedule):
            self.chosen += [choice.form for choice in event.product.choices]


def forced(function: Callable, *forms: str, **options: object) -> tuple[Callable, Forced]:
    """A function compiled with its products in some forms."""
    plugin = Forced(*forms)
    return turret.compile(function, plugins=[plugin], options={"on_error": "raise", **options}), plugin


def randn(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=BF16, device=DEVICE)


def ends_of(sizes: list[int]) -> Tensor:
    return torch.tensor(sizes, device=DEVICE).cumsum(0).int()


def wide(x: Tensor, w: Tensor, ends: Tensor) -> Tensor:
    """Rows in groups times their matrices, in float64; zeros behind all groups."""
    found = torch.zeros(x.shape[0], w.shape[2], dtype=torch.float64, device=x.device)
    begin = 0
    for number, end in enumerate(ends.tolist()):
        found[begin:end] = x[begin:end].double() @ w[number].double()
        begin = end
    return found


def _near(got: Tensor, want: Tensor) -> None:
    error = ((got.double() - want).norm() / want.norm()).item()
    assert error < 1e-2, f"relative error {error:.2e}"


def grouped_products() -> None:
    """Products of rows in groups, tuned and not, with groups that are empty, tall, and of a row."""
    for sizes, columns, depth in (
        ([1000, 0, 1, 77, 300], 1024, 512),
        ([3] * 64, 256, 384),
        ([128, 256, 0, 0, 640], 520, 1000),
    ):
        ends = ends_of(sizes)
        x, w = randn(sum(sizes) + 37, depth), randn(len(sizes), columns, depth).mT
        scale = randn(x.shape[0], 1)

        def function(x: Tensor, w: Tensor, ends: Tensor, scale: Tensor) -> Tensor:
            return F.silu(torch._grouped_mm(x, w, offs=ends)) * scale

        for tuned in (False, True):
            made, plugin = forced(function, "tiles", max_autotune=tuned)
            _near(made(x, w, ends, scale), F.silu(wide(x, w, ends)) * scale.double())
            assert plugin.chosen == ["tiles"]


def gathered_rows_of_groups() -> None:
    """Experts as ``transformers`` has them: tokens sorted by expert are read where they lie."""

    def function(x: Tensor, w: Tensor, order: Tensor, ends: Tensor) -> Tensor:
        return torch._grouped_mm(x[order // 2], w, offs=ends)

    x, w, order = randn(512, 256), randn(8, 256, 512), torch.randperm(1024, device=DEVICE)
    ends = ends_of([128] * 8)
    made, _ = forced(function, "tiles")
    _near(made(x, w, order, ends), wide(x[order // 2], w, ends))


def gates_of_one_matrix() -> None:
    """A gate and what it lets through as slices of one product, plain and of rows in groups, tuned and not."""

    def plain(x: Tensor, w: Tensor) -> Tensor:
        gate, up = F.linear(x, w).chunk(2, -1)
        return F.silu(gate) * up

    def of_groups(x: Tensor, w: Tensor, ends: Tensor) -> Tensor:
        gate, up = torch._grouped_mm(x, w, offs=ends).chunk(2, -1)
        return F.silu(gate) * up

    for tuned in (False, True):
        for rows in (1, 8, 300):
            x, w = randn(rows, 512), randn(2048, 512)
            made, _ = forced(plain, "rows", "tiles", max_autotune=tuned)
            _near(made(x, w), plain(x.double(), w.double()))
        x, w, ends = randn(700, 512), randn(5, 1024, 512).mT, ends_of([3, 400, 0, 200, 97])
        made, _ = forced(of_groups, "tiles", max_autotune=tuned)
        gate, up = wide(x, w, ends).chunk(2, -1)
        _near(made(x, w, ends), F.silu(gate) * up)


def gradients_of_grouped_products() -> None:
    """Both matrices' gradients, the activation's in the same kernel."""
    ends = ends_of([100, 0, 156, 256])

    def function(x: Tensor, w: Tensor) -> Tensor:
        return F.silu(torch._grouped_mm(x, w, offs=ends)).float().square().sum()

    tensors = [randn(512, 128).requires_grad_(), (randn(4, 128, 256) * 0.1).requires_grad_()]
    made, _ = forced(function, "tiles")
    mine = torch.autograd.grad(made(*tensors), tensors)
    wider = [t.detach().double().requires_grad_() for t in tensors]
    owners = torch.bucketize(torch.arange(512, device=DEVICE), ends.long(), right=True)
    value = F.silu(torch.einsum("md,mdn->mn", wider[0], wider[1][owners])).square().sum()
    for got, want in zip(mine, torch.autograd.grad(value, wider), strict=True):
        _near(got, want)


def quantised_weights() -> None:
    """Weights of 8 and 4 bits, read as they are stored by products of few rows."""
    q = torch.randint(-128, 128, (1000, 512), dtype=torch.int8, device=DEVICE)
    nibbles = torch.randint(0, 256, (1000, 256), dtype=torch.uint8, device=DEVICE)
    scale = randn(1000, 8).abs() * 0.1

    def before(x: Tensor, q: Tensor, scale: Tensor) -> Tensor:
        return F.linear(x, q.to(x.dtype) * scale[:, :1])

    def behind(x: Tensor, q: Tensor, scale: Tensor) -> Tensor:
        return F.linear(x, q.to(x.dtype)) * scale[:, 0]

    def in_groups(x: Tensor, q: Tensor, scale: Tensor) -> Tensor:
        parts = q.to(x.dtype).view(1000, 8, 64) * scale[:, :, None]
        return F.linear(x, parts.view(1000, 512))

    def of_nibbles(x: Tensor, q: Tensor, scale: Tensor) -> Tensor:
        both = torch.stack([q & 15, q >> 4], -1).view(1000, 512)
        return F.linear(x, (both.to(x.dtype) - 8) * scale[:, :1])

    for rows in (1, 2, 16, 33, 64):
        x = randn(rows, 512)
        for function, weights in ((before, q), (behind, q), (in_groups, q), (of_nibbles, nibbles)):
            made, plugin = forced(function, "rows", "tiles")
            _near(made(x, weights, scale), function(x.double(), weights, scale.double()))
            assert plugin.chosen == ["rows" if rows == 1 else "tiles"]
        packed, _ = forced(lambda x, q, s: torch._weight_int8pack_mm(x, q, s), "rows", "tiles")
        _near(packed(x, q, scale[:, 0].contiguous()), behind(x.double(), q, scale.double()))


def picked_weights() -> None:
    """A matrix for each row, picked by an index: experts of a decoding step."""

    def function(x: Tensor, w: Tensor, ids: Tensor) -> Tensor:
        return F.silu(torch.bmm(w[ids], x.unsqueeze(-1)).squeeze(-1))

    w = randn(8, 1024, 512)
    for rows in (1, 2, 16):
        x, ids = randn(rows, 512), torch.randint(0, 8, (rows,), device=DEVICE)
        made, plugin = forced(function, "rows")
        _near(made(x, w, ids), function(x.double(), w.double(), ids))
        assert plugin.chosen == ["rows"]


PRODUCTS: tuple[Callable[[], None], ...] = (
    grouped_products,
    gathered_rows_of_groups,
    gates_of_one_matrix,
    gradients_of_grouped_products,
    quantised_weights,
    picked_weights,
)

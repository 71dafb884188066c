"""Programs whose products hold every kind of statement, and what tells two products apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import torch
from torch.nn import functional as F

import turret
from turret.hooks.hookspecs import hookimpl

aten = torch.ops.aten


def difference(a: Any, b: Any, where: str = "") -> str:
    """Where two products are not the same; empty where they are.  Tensors are by their elements and layout."""
    if a is b:
        return ""
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        facts = [(t.dtype, t.device, t.shape, t.stride()) for t in (a, b)]
        return "" if facts[0] == facts[1] and torch.equal(a, b) else f"{where}: {a} is not {b}"
    if attrs.has(type(a)) and type(a) is type(b):
        pairs = [(getattr(a, f.name), getattr(b, f.name), f"{where}.{f.name}") for f in attrs.fields(type(a))]
        return next(filter(None, (difference(*pair) for pair in pairs)), "")
    if isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys():
        return next(filter(None, (difference(a[k], b[k], f"{where}[{k!r}]") for k in a)), "")
    if isinstance(a, list | tuple) and type(a) is type(b) and len(a) == len(b):
        found = (difference(x, y, f"{where}[{n}]") for n, (x, y) in enumerate(zip(a, b, strict=True)))
        return next(filter(None, found), "")
    return "" if a == b and isinstance(a, bool) == isinstance(b, bool) else f"{where}: {a!r} is not {b!r}"


class Products:
    """A plugin that keeps the products of some classes."""

    def __init__(self, *classes: type) -> None:
        self.classes = classes
        self.found: list[Any] = []

    @hookimpl
    def turret_event(self, event: Any) -> None:
        if event.kind == "product" and isinstance(event.product, self.classes):
            self.found.append(event.product)


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple, dict[str, Any]]] = {}


def _program(name: str, function: Callable[..., Any], *args: Any, options: dict | None = None, **settings: Any) -> None:
    PROGRAMS[name] = (function, args, {"options": options or {}, **settings})


def products(name: str, *classes: type) -> list[Any]:
    """What the stages make of a program of ``PROGRAMS``, forward and backward."""
    function, args, settings = PROGRAMS[name]
    kept = Products(*classes)
    options = {"cache": False, "on_error": "raise", **settings["options"]}
    torch.manual_seed(0)
    given = [a.clone() if isinstance(a, torch.Tensor) and not a.requires_grad else a for a in args]
    compiled = turret.compile(function, plugins=[kept], **{**settings, "options": options})
    result = compiled(*given)
    if isinstance(result, torch.Tensor) and result.requires_grad:
        result.sum().backward()
    assert kept.found
    return kept.found


def _leaf(*shape: int) -> torch.Tensor:
    return torch.ones(shape).cumsum(-1).requires_grad_()


def _step(weight: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    weight.add_(gradient, alpha=-0.1)
    return weight * 2


def _padded_by_a_float(x: torch.Tensor, scale: float) -> torch.Tensor:
    return x * scale + torch.full_like(x, scale // 2)


_ITEMS = torch.tensor([1, 2, -1, 0])
_program("rows", lambda x: torch.softmax(x, -1) * F.layer_norm(x, (16,)), _leaf(8, 16))
_program("symbols", lambda x: torch.softmax(x, -1).var(0) + x.shape[0] // 2, _leaf(8, 16), dynamic=True)
_program("products", lambda x, w: F.cross_entropy(x @ w, torch.arange(8)), _leaf(8, 16), _leaf(16, 32))
_program("windows", lambda x: F.max_pool2d(F.conv2d(x, torch.ones(4, 3, 3, 3)), 2), _leaf(2, 3, 16, 16))
_program("gather", lambda x, i: x[i] + x.roll(2, 0)[:4], _leaf(8, 3), _ITEMS)
_program("scatter", lambda x, i: x.index_add(0, i, x[:4]).cumsum(0), torch.ones(8, 3), _ITEMS.abs())
_program("nonzero", lambda x: x.nonzero().sum() + x.sort()[0].sum(), torch.ones(8, 3), fullgraph=True,
         options={"capture_dynamic_output_shape_ops": True})  # fmt: skip
_program("item", lambda x: x * x.sum().item(), torch.ones(8), fullgraph=True, options={"capture_scalar_outputs": True})
_program("random", lambda x: F.dropout(x, 0.5) + torch.rand(4, 4) + torch.randn_like(x), _leaf(4, 4))
_program("floats", _padded_by_a_float, torch.ones(8), 2.5, dynamic=True)
_program("branches", lambda p, x: torch.cond(p, torch.sin, torch.cos, (x,)), torch.tensor(True), torch.ones(3))
_program("halves", lambda x: x.half().softmax(-1).bfloat16() + x.argmax(-1, keepdim=True), torch.ones(8, 32))
_program("precise halves", lambda x: (x * 3 + 1).sin(), torch.ones(8).half(), options={"emulate_precision_casts": True})
_program("constants", lambda x: torch.tensor([1.0, float("inf"), -0.0]) * x, torch.ones(5, 3))
_program("views", lambda x: torch.fft.rfft(x.t().unfold(0, 3, 2)).abs(), torch.ones(2, 9))
_program("sections", lambda x, y: torch.sort(x @ y)[0] + 1, torch.ones(4, 4), torch.ones(4, 4),
         options={"cudagraphs": True})  # fmt: skip
_program("overwritten", _step, torch.ones(4), torch.ones(4))

"""Running a case compiled and eagerly, and saying how far apart they are."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import turret
from tests.gpu.cases import Case

FLOOR = {torch.float32: 2e-5, torch.bfloat16: 8e-3}
"""Relative error that is always allowed: of float32 sums in another order, and one rounding of bfloat16."""


def results(run: Callable[..., Any], args: tuple[Any, ...], train: bool) -> list[Tensor]:
    """Outputs, the arguments afterwards (mutations), and for training the gradients of all that has one."""
    given = tuple(a.detach().clone() if isinstance(a, Tensor) else a for a in args)
    differentiable = [a for a in given if isinstance(a, Tensor) and a.is_floating_point()] if train else []
    for argument in differentiable:
        argument.requires_grad_()
    outputs = [x for x in pytree.tree_leaves(run(*given)) if isinstance(x, Tensor)]
    found = [x.detach() for x in outputs] + [a.detach() for a in given if isinstance(a, Tensor)]
    found += [b.clone() for b in run.buffers()] if isinstance(run, nn.Module) else []
    if train:
        parameters = list(run.parameters()) if isinstance(run, nn.Module) else []
        loss = sum((x.float() * _weights(x)).sum() for x in outputs if x.requires_grad)
        gradients = torch.autograd.grad(loss, [*differentiable, *parameters], allow_unused=True)
        found += [g for g in gradients if g is not None]
    return found


def _weights(x: Tensor) -> Tensor:
    """Fixed and uneven, so that gradients do not cancel."""
    return torch.linspace(0.5, 1.5, max(1, x.numel()), device=x.device)[: x.numel()].view(x.shape)


def error(got: list[Tensor], expected: list[Tensor]) -> float:
    """The largest relative error (norm) of any floating tensor; infinite where one is NaN or has another shape."""
    worst = 0.0
    for a, b in zip(got, expected, strict=True):
        if a.shape != b.shape:
            return math.inf
        if a.is_floating_point() and a.numel():
            x, y = a.double(), b.double()
            norm, distance = y.norm().item(), (x - y).norm().item()
            relative = distance / norm if norm else distance
            worst = max(worst, relative) if relative < math.inf else math.inf
    return worst


def check(case: Case, dtype: torch.dtype, train: bool, **options: Any) -> tuple[float, float]:
    """Relative error against eager in float64, and the error allowed: twice that of eager in ``dtype``.

    Raises ``AssertionError`` where dtypes, strides or integers differ from eager's.
    """
    torch.manual_seed(0)
    run, args = case.make(dtype)
    twin = copy.deepcopy(run) if isinstance(run, nn.Module) else run
    wide_run = copy.deepcopy(run).double() if isinstance(run, nn.Module) else run
    for module in (run, twin, wide_run):
        if isinstance(module, nn.Module):
            module.train(train)
    turret.reset()
    with torch.enable_grad() if train else torch.no_grad():
        eager = results(run, args, train)
        compiled = turret.compile(twin, options={"on_error": "raise"}, **options)
        rounds = [results(compiled, args, train)]
        if not isinstance(run, nn.Module):
            rounds.append(results(compiled, args, train))  # a module's buffers have moved on
        wide = results(wide_run, tuple(_wide(a) for a in args), train)
    for got in rounds:
        _same_form(got, eager)
    allowed = max(FLOOR[dtype], 2 * error(eager, wide))
    return max(error(got, wide) for got in rounds), allowed


def _same_form(got: list[Tensor], eager: list[Tensor]) -> None:
    """Count, dtypes, strides and integers as eager's."""
    described = [[(str(x.dtype), tuple(x.shape), _strides(x)) for x in side] for side in (got, eager)]
    if described[0] != described[1]:
        raise AssertionError(f"got {described[0]}, eager's are {described[1]}")
    for a, b in zip(got, eager, strict=True):
        if not a.is_floating_point() and not torch.equal(a, b):
            raise AssertionError(f"{int((a != b).sum())} of {a.numel()} elements of a {a.dtype} result differ")


def _strides(x: Tensor) -> tuple[int, ...]:
    """Strides that can be seen: of dimensions with more than one element."""
    return tuple(s for s, n in zip(x.stride(), x.shape, strict=True) if n > 1) if x.numel() else ()


def _wide(value: Any) -> Any:
    return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value

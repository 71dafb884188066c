"""A function of numbers of data, called plainly and as one graph with several data: results, errors, gradients, and what
it wrote to its arguments."""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

import turret
from tests.fuzz.function_capture import Watch, captured_whole, compiled_whole
from tests.fuzz.function_worlds import Difference
from turret.errors import CaptureError

DATA_CALLS = 7
_FLOATS = (3.5, 0.5, -2.25, 0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, 2.0, 4.0, 1e30)
_INTS = (0, 1, 2, 3, 4, 5, -1, 6, -2)


class Refused(Exception):
    """The program is not one graph, or not one that is compiled; the error says why."""


class Stopped(Exception):
    """A stage refused or failed on the graph, which without ``on_error="raise"`` runs as it is."""


class RaisedAlone(Difference):
    """A graph raised where the program does not."""


def check_data(
    text: str, seed: int, with_compiler: bool, watch: Watch, calls: int = DATA_CALLS, on_error: str = "raise"
) -> None:
    """Raises ``Difference`` where a call as one graph is not what it is plainly, and ``Refused`` where there is none."""
    scope: dict[str, Any] = {"__name__": f"program{seed}"}
    exec(_compiled(text, seed), scope)
    whole = compiled_whole if with_compiler else captured_whole
    function = whole(scope["entry"], watch, scope["DYNAMIC"], on_error)
    for number in range(calls):
        ends = []
        for called in (scope["entry"], function):
            choices = random.Random(f"data {seed} {number}")
            arguments = _arguments(choices, scope, plain=number == 0)
            try:
                ends.append(_ended(called, arguments))
            except Refused as refused:
                raise Refused(f"call {number}: {refused}") from refused
        if ends[1][0] != ends[0][0]:
            kind = RaisedAlone if ends[1][0] == "raised" else Difference
            raise kind(f"call {number}: it {_shown(ends[1])}, plainly it {_shown(ends[0])}")
        difference = _difference(ends[1], ends[0], "")
        if difference is not None:
            raise Difference(f"call {number}: {difference}")


def _shown(ended: tuple) -> str:
    return f"{ended[0]} {ended[1]!r}"


def _compiled(text: str, seed: int) -> Any:
    return compile(text, f"program{seed}.py", "exec")


def _arguments(choices: random.Random, scope: dict[str, Any], plain: bool) -> list[torch.Tensor]:
    """Tensors of numbers whose sums are exact; of a first call (``plain``), such as most programs run on."""
    gradients, dynamic = scope["GRADIENTS"], scope["DYNAMIC"]
    size = choices.choice((5, 5, 4, 7, 2)) if (dynamic or scope["MARKED"]) and not plain else 5
    x = torch.tensor([choices.choice((0.5, 1.0, 1.5, 2.0, 3.0, -1.0, 0.0, 4.5)) for _ in range(size)])
    if not plain and choices.random() < 0.25:
        x[choices.randrange(size)] = choices.choice(_FLOATS[:-1])
    w = torch.tensor([[choices.choice((0.5, 1.0, -2.0, 3.0)) for _ in range(3)] for _ in range(4)])
    ints = [2, 1, 3] if plain else [choices.choice(_INTS) for _ in range(3)]
    if not plain and choices.random() < 0.3:
        ints = [choices.choice((0, 1, 3))] * 3
    floats = [1.5, 0.5, 2.0] if plain else [choices.choice(_FLOATS) for _ in range(3)]
    if -0.0 in floats:  # the larger of two zeros is either
        floats = [-0.0 if number == 0 else number for number in floats]
    made = [x.requires_grad_(gradients), w, torch.tensor(ints), torch.tensor(floats, dtype=torch.float64)]
    if scope["MARKED"]:
        x._dynamo_dynamic_indices = {0}  # what mark_dynamic leaves
    return made


def _ended(called: Callable, arguments: list[torch.Tensor]) -> tuple:
    """How a call ended: ``("returned", result, arguments, gradient)`` or ``("raised", kind of the error)``."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            result = called(*arguments)
        except turret.TurretError as error:
            if isinstance(error, CaptureError):
                raise Refused(str(error)) from error
            raise Stopped(str(error)) from error
        except Exception as error:
            return "raised", next((kind for kind in _KINDS if isinstance(error, kind)), type(error)).__name__
        return "returned", result, [a.detach() for a in arguments], _gradient(result, arguments[0])


_KINDS = (ZeroDivisionError, OverflowError, ValueError, TypeError, IndexError, RuntimeError)


def _gradient(result: Any, x: torch.Tensor) -> Any:
    """The gradient of all results, or which error there is none for."""
    tensors = [v for v in pytree.tree_leaves(result) if isinstance(v, torch.Tensor) and v.requires_grad]
    if not tensors:
        return None
    try:
        sum(v.double().sum() for v in tensors).backward()  # type: ignore[union-attr]
    except turret.TurretError as error:
        raise Stopped(str(error)) from error
    except RuntimeError:
        return "none"
    return x.grad if x.is_leaf else None


def _difference(found: Any, expected: Any, where: str) -> str | None:
    """Where two outcomes differ, or None."""
    if type(found) is not type(expected):
        return f"{where}: {found!r} is not {expected!r}"
    if isinstance(found, dict):
        found, expected = list(found.items()), list(expected.items())
    if isinstance(found, (list, tuple)):
        if len(found) != len(expected):
            return f"{where}: {found!r} is not {expected!r}"
        parts = zip(found, expected, strict=True)
        return next(filter(None, (_difference(*pair, f"{where}.{k}") for k, pair in enumerate(parts))), None)
    same = _are_same(found, expected)
    return None if same else f"{where}: {found!r} is not {expected!r}"


def _are_same(found: Any, expected: Any) -> bool:
    if isinstance(found, torch.Tensor):
        kept = [(v.dtype, v.shape, _steps(v), v.requires_grad) for v in (found, expected)]
        return kept[0] == kept[1] and _close(found.detach(), expected.detach())
    if isinstance(found, float):
        close = (
            found == expected
            or math.isclose(found, expected, rel_tol=1e-6)
            or (found != found and expected != expected)
        )
        return close and (found != found or math.copysign(1, found) == math.copysign(1, expected))
    return bool(found == expected)


def _close(found: torch.Tensor, expected: torch.Tensor) -> bool:
    if not found.is_floating_point():
        return torch.equal(found, expected)
    return torch.allclose(found, expected, rtol=1e-5, atol=1e-6, equal_nan=True)


def _steps(tensor: torch.Tensor) -> list[int]:
    """Strides of dimensions of which there are several elements."""
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return [stride for size, stride in pairs if size > 1] if tensor.numel() > 1 else []

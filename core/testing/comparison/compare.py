"""Compares what a compiled call showed with what eager showed.

Everything but values must be equal.  Integers and booleans must be equal too, and floats must lie within what
rounding can do: a few epsilons, or, where that is not enough, a multiple of the spread that
``turret.testing.comparison.stochastic`` measures for that element of that program.  NaN equals NaN, and an infinity
its own sign only.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import attrs
import torch
from torch import Tensor

from turret.testing.comparison.observe import Observation, TensorFacts

Samples = Callable[[int], Sequence[Observation]]
"""``samples(n)``: at least ``n`` perturbed eager observations of the same call, fewer where some raised."""

_SPREADS = ((6, 6.0), (48, 10.0))
"""Samples to look at and how many times their spread is allowed, in order; the second only confirms a failure."""
_FLIPS = (400, 0.0)
"""The same, to confirm a failure of integers and booleans: two roundings may happen to be equal in few samples."""


@attrs.frozen
class Difference:
    """One thing that is not the same.  ``where`` names the tensor, ``what`` the property."""

    where: str
    what: str
    expected: str
    got: str
    detail: str = ""

    def __str__(self) -> str:
        detail = f" ({self.detail})" if self.detail else ""
        return f"{self.where}: {self.what}: eager {self.expected}, compiled {self.got}{detail}"


def differences(expected: Observation, got: Observation, samples: Samples) -> list[Difference]:
    """All differences between an eager and a compiled observation of the same call."""
    if expected.error is not None or got.error is not None:
        return list(_error_differences(expected.error, got.error))
    if expected.structure != got.structure:
        return [Difference("result", "structure", str(expected.structure), str(got.structure))]
    found: list[Difference] = []
    for where, kind, index in _places(expected):
        a, b = getattr(expected, kind)[index], getattr(got, kind)[index]
        found += _leaf_differences(where, kind, a, b, functools.partial(_sampled, samples, kind, index))
    for index, (a, b) in enumerate(zip(expected.aliases, got.aliases, strict=True)):
        if a != b:
            found.append(Difference(f"output {index}", "aliasing", a or "fresh memory", b or "fresh memory"))
    return found


def _places(observation: Observation) -> Iterator[tuple[str, str, int]]:
    for kind, name in (("outputs", "output"), ("inputs", "input after the call"), ("gradients", "gradient of leaf")):
        for index in range(len(getattr(observation, kind))):
            yield f"{name} {index}", kind, index


def _sampled(samples: Samples, kind: str, index: int, count: int) -> list[Tensor]:
    return _at(samples(count), kind, index)


def _at(samples: Sequence[Observation], kind: str, index: int) -> list[Tensor]:
    facts = [getattr(sample, kind)[index] for sample in samples]
    return [fact.value for fact in facts if isinstance(fact, TensorFacts)]


def _error_differences(expected: BaseException | None, got: BaseException | None) -> Iterator[Difference]:
    """A compiled program must raise the type that eager raises, or a subclass of it."""
    if expected is None or got is None or not isinstance(got, type(expected)):
        yield Difference("call", "error", _describe_error(expected), _describe_error(got))


def _describe_error(error: BaseException | None) -> str:
    if error is None:
        return "returned"
    return f"raised {type(error).__name__}: {summary_of(error)}"


def summary_of(error: BaseException) -> str:
    """The first two lines of an error's message that say something; wrappers use up the first."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:2])


def _leaf_differences(
    where: str, kind: str, expected: Any, got: Any, samples: Callable[[int], list[Tensor]]
) -> Iterator[Difference]:
    if not isinstance(expected, TensorFacts) or not isinstance(got, TensorFacts):
        yield from _plain_differences(where, kind, expected, got)
        return
    for what in ("dtype", "device", "shape", "requires_grad"):
        a, b = getattr(expected, what), getattr(got, what)
        if a != b:
            yield Difference(where, what, str(a), str(b))
    if expected.shape != got.shape or expected.dtype != got.dtype:
        return
    if kind != "gradients" and _visible_stride(expected) != _visible_stride(got):
        yield Difference(where, "stride", str(expected.stride), str(got.stride), f"shape {expected.shape}")
    if kind == "inputs" and expected.offset != got.offset:
        yield Difference(where, "storage offset", str(expected.offset), str(got.offset))
    yield from _value_differences(where, expected.value, got.value, samples)


def _plain_differences(where: str, kind: str, expected: Any, got: Any) -> Iterator[Difference]:
    if kind == "gradients" and expected is None and got is not None:
        # A compiled backward gets zeros for the tangents that eager leaves undefined; the gradient is the same.
        if bool((got.value == 0).all()):
            return
        yield Difference(where, "gradient", "None", "a nonzero tensor")
    elif type(expected) is not type(got):
        yield Difference(where, "type", _describe(expected), _describe(got))
    elif expected != got and not (expected != expected and got != got):
        yield Difference(where, "value", repr(expected), repr(got))


def _describe(value: Any) -> str:
    return f"a tensor {value.shape}" if isinstance(value, TensorFacts) else repr(value)


def _visible_stride(facts: TensorFacts) -> tuple[int, ...]:
    """Strides that can be observed: none of an empty tensor, none of dimensions of size 1."""
    if 0 in facts.shape:
        return ()
    return tuple(step for step, size in zip(facts.stride, facts.shape, strict=True) if size != 1)


def _value_differences(
    where: str, expected: Tensor, got: Tensor, samples: Callable[[int], list[Tensor]]
) -> Iterator[Difference]:
    wrong = ~_within(expected, got, _rounding(expected))
    for count, factor in _SPREADS if _rounds(expected) else (*_SPREADS, _FLIPS):
        if not bool(wrong.any()):
            return
        spread, unstable = _spread(expected, samples(count))
        wrong &= ~_within(expected, got, _rounding(expected) + factor * spread) & ~unstable
    if bool(wrong.any()):
        yield _describe_values(where, expected, got, wrong, _rounding(expected) + _SPREADS[-1][1] * spread)


def _rounds(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _rounding(expected: Tensor) -> Tensor:
    """Absolute error that any operation may make by itself, per element; zero for integers and booleans."""
    if not _rounds(expected):
        return torch.zeros(expected.shape, dtype=torch.float64)
    epsilon = torch.finfo(expected.dtype).eps
    relative, absolute = (2 * epsilon, epsilon / 4) if epsilon > 1e-4 else (8 * epsilon, 16 * epsilon)
    return _wide(expected).abs().nan_to_num(nan=0.0, posinf=0.0, neginf=0.0) * relative + absolute


def _within(expected: Tensor, got: Tensor, tolerance: Tensor) -> Tensor:
    """Elementwise: equal, both NaN, or finite and no further apart than ``tolerance``."""
    if not _rounds(expected):
        return expected == got
    same = (expected == got) | (expected.isnan() & got.isnan())
    return same | ((_wide(expected) - _wide(got)).abs() <= tolerance)


def _wide(tensor: Tensor) -> Tensor:
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)


def _spread(expected: Tensor, samples: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Largest distance of a sample from eager, per element, and where samples disagree in kind.

    Unstable are integers that differ in some sample, and floats that are finite in one run and not in another.
    """
    spread = torch.zeros(expected.shape, dtype=torch.float64)
    unstable = torch.zeros(expected.shape, dtype=torch.bool)
    for sample in samples:
        if sample.shape != expected.shape:
            return spread, ~unstable
        if not _rounds(expected):
            unstable |= sample != expected
            continue
        distance = (_wide(sample) - _wide(expected)).abs()
        same = (sample == expected) | (sample.isnan() & expected.isnan())
        unstable |= ~same & ~distance.isfinite()
        spread = torch.maximum(spread, torch.where(same | unstable, 0.0, distance))
    return spread, unstable


def _describe_values(where: str, expected: Tensor, got: Tensor, wrong: Tensor, allowed: Tensor) -> Difference:
    distance = torch.where(wrong, (_wide(expected) - _wide(got)).abs().nan_to_num(nan=torch.inf), -1.0)
    worst = tuple(int(i) for i in torch.unravel_index(distance.argmax(), distance.shape)) if distance.dim() else ()
    detail = f"{int(wrong.sum())} of {wrong.numel()} elements; worst at {list(worst)}"
    if expected.is_floating_point():
        detail += f", apart by {float(distance[worst]):.3g}, allowed {float(allowed[worst]):.3g}"
    return Difference(where, "values", str(expected[worst].item()), str(got[worst].item()), detail)

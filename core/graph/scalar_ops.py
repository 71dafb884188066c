"""The scalar ops: what the loop IR computes element by element, and the ATen ops that are such a computation.

``OPS`` is the one table of them.  The op set and the lowerings take the ATen names from it, the IR its rules of arity,
dtypes and folding, the scheduler and the partitioner what an op costs, the IR's interpreter what it means.  A code
generator adds how it writes an op (``turret.ir.emit.op_texts``), and nothing else.

``mod`` has the sign of the divisor (Python), ``fmod`` that of the dividend (C); ``floordiv`` rounds down, ``truncdiv``
to zero; ``round`` is half to even; ``min``, ``max`` hand NaN on, and of two zeros take the second; ``shr`` is
arithmetic.  Integer arithmetic wraps.  ``where(c, a, b)`` evaluates both; ``masked(c, a, b)`` promises that nothing in
``a`` is loaded where ``c`` is false, and ``b`` is a constant.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, Literal

import attrs
import torch
from torch import Tensor

from turret.errors import OptionError
from turret.graph.dtypes import FLOATS

Cost = Literal["cheap", "divide", "transcendental"]
"""What an op costs: about an addition, a division, or a function of the math library (``turret.hooks.devices.Costs``).
What costs more than an addition is not computed again and again."""


@attrs.frozen
class ScalarOp:
    """One op on elements.

    ``reference`` computes it on tensors of one dtype that broadcast, and returns a tensor: this is what the op means.
    ``aten`` names the overloads (as ``turret.graph.op_set`` does) that are this op on promoted operands; for those the
    lowering follows from this entry, unless ``plugins/lowerings`` has one of its own.

    The dtype rule: arguments of one dtype out of ``domain``, a bool for ``result="bool"`` and else that dtype again.
    Of a ``conditional`` op the first argument is a bool.  ``on_bool`` is the op that stands for this one on bools.
    """

    name: str
    arity: int
    reference: Callable[..., Tensor]
    aten: tuple[str, ...] = ()
    domain: Literal["any", "float", "integer", "bool"] = "any"
    result: Literal["same", "bool"] = "same"
    cost: Cost = "cheap"
    conditional: bool = False
    on_bool: str = ""
    exact_in_half: bool = False
    """Whether a half format holds the result exactly wherever it holds the arguments: nothing is left to round."""
    jumps: bool = False
    """Whether the result jumps where an operand moves by a rounding."""
    checks_zero: bool = False
    """Whether the op raises ``ZeroDivisionError`` for integers."""
    undoes_itself: bool = False
    """Whether the op of its own result is its argument, to the bit."""
    fold: Callable[..., Any] | None = None
    """The op on Python's integers; a result that the dtype holds is a constant."""
    neutral: Callable[[torch.dtype], float | int | bool] | None = None
    """The value of a dtype that leaves any other unchanged, for ops that reductions combine by."""

    def takes(self, dtype: torch.dtype) -> bool:
        """Whether arguments may be of a dtype (the condition apart)."""
        if self.domain == "any":
            return True
        if self.domain == "bool":
            return dtype == torch.bool
        return (dtype in FLOATS) == (self.domain == "float")

    def dtype(self, arguments: Sequence[torch.dtype]) -> torch.dtype:
        """Of the result, by those of the arguments."""
        return torch.bool if self.result == "bool" else arguments[1 if self.conditional else -1]


OPS: dict[str, ScalarOp] = {}
"""The table, by name.  Read it freely; ``register`` adds to it."""


# ---------------------------------------------------------------- the table


def _op(name: str, arity: int, reference: Callable[..., Tensor] | None = None, aten: str = "", **facts: Any) -> None:
    OPS[name] = ScalarOp(name, arity, reference or getattr(torch, name), tuple(aten.split()), **facts)


def _alike(names: str, arity: int, **facts: Any) -> None:
    """Ops that torch and ATen call by the same name."""
    for name in names.split():
        _op(name, arity, aten=name, **facts)


def _by_minus_one(operation: Callable[..., Tensor], rest: bool) -> Callable[..., Tensor]:
    """Integer division by -1 apart: the least integer would trap on x86, where arithmetic wraps in the IR."""

    def divide(a: Tensor, b: Tensor) -> Tensor:
        if a.is_floating_point() or a.dtype in (torch.bool, torch.uint8):
            return operation(a, b)
        turned = b == -1
        return torch.where(turned, torch.zeros_like(a) if rest else -a, operation(a, torch.where(turned, 1, b)))

    return divide


def _division(rounding: str) -> Callable[..., Tensor]:
    return _by_minus_one(lambda a, b: torch.div(a, b, rounding_mode=rounding), rest=False)


def _extreme(largest: bool, dtype: torch.dtype) -> float | int | bool:
    if dtype.is_floating_point:
        return math.inf if largest else -math.inf
    if dtype == torch.bool:
        return largest
    bounds = torch.iinfo(dtype)
    return bounds.max if largest else bounds.min


def _tensor_scalar(name: str) -> str:
    return f"{name}.Tensor {name}.Scalar"


_LEAST, _LARGEST = functools.partial(_extreme, False), functools.partial(_extreme, True)
_FLOAT: dict[str, Any] = {"domain": "float"}
_FUNCTION: dict[str, Any] = {"domain": "float", "cost": "transcendental"}
_ROOT: dict[str, Any] = {"domain": "float", "cost": "divide"}
_ROUNDING: dict[str, Any] = {"domain": "float", "exact_in_half": True, "jumps": True}
_DIVISION: dict[str, Any] = {"cost": "divide", "jumps": True, "checks_zero": True}
_TRUTH: dict[str, Any] = {"domain": "bool", "result": "bool"}

_alike("neg", 1, exact_in_half=True, undoes_itself=True)
_alike("abs", 1, exact_in_half=True)
_alike("sign", 1, exact_in_half=True, jumps=True)
_op("square", 1)
_alike("bitwise_not", 1, domain="integer", on_bool="logical_not", undoes_itself=True)
_alike("logical_not", 1, undoes_itself=True, **_TRUTH)
_alike("isnan isinf signbit", 1, result="bool", jumps=True)
_alike("exp exp2 expm1 log log2 log10 log1p", 1, **_FUNCTION)
_alike("sqrt rsqrt reciprocal", 1, **_ROOT)
_alike("sigmoid", 1, **_FUNCTION)
_alike("sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh", 1, **_FUNCTION)
_alike("erf erfc lgamma", 1, **_FUNCTION)
_alike("floor ceil trunc round", 1, **_ROUNDING)
_op("add", 2, aten=_tensor_scalar("add"), on_bool="logical_or", fold=operator.add, neutral=lambda dtype: 0)
_op("sub", 2, aten=_tensor_scalar("sub"), fold=operator.sub)
_op("mul", 2, aten=_tensor_scalar("mul"), on_bool="logical_and", fold=operator.mul, neutral=lambda dtype: 1)
_op("min", 2, torch.minimum, "minimum", on_bool="logical_and", exact_in_half=True, neutral=_LARGEST)
_op("max", 2, torch.maximum, "maximum", on_bool="logical_or", exact_in_half=True, neutral=_LEAST)
_op("floordiv", 2, _division("floor"), **_DIVISION)
_op("truncdiv", 2, _division("trunc"), **_DIVISION)
_op(
    "mod",
    2,
    _by_minus_one(torch.remainder, rest=True),
    "remainder.Tensor remainder.Scalar remainder.Scalar_Tensor",
    **_DIVISION,
)
_op("fmod", 2, _by_minus_one(torch.fmod, rest=True), _tensor_scalar("fmod"), exact_in_half=True, **_DIVISION)
_op("pow", 2, aten="pow.Tensor_Tensor pow.Tensor_Scalar pow.Scalar", cost="transcendental")
_op("div", 2, aten="div.Tensor div.Scalar div.Tensor_mode div.Scalar_mode", **_ROOT)
_alike("atan2 hypot", 2, **_FUNCTION)
_op("copysign", 2, aten=_tensor_scalar("copysign"), exact_in_half=True, **_FLOAT)
_alike("nextafter", 2, jumps=True, **_FLOAT)
for _name in ("and", "or", "xor"):
    _overloads = f"{_tensor_scalar(f'bitwise_{_name}')} bitwise_{_name}.Scalar_Tensor"
    _op(f"bitwise_{_name}", 2, aten=_overloads, domain="integer", on_bool=f"logical_{_name}")
for _name, _word in (("shl", "left"), ("shr", "right")):
    _shift = f"bitwise_{_word}_shift"
    _operator = f"__{_word[0]}shift__"
    _overloads = f"{_shift}.Tensor {_shift}.Tensor_Scalar {_shift}.Scalar_Tensor {_tensor_scalar(_operator)}"
    _op(_name, 2, getattr(torch, _shift), _overloads, domain="integer")
_alike("logical_and", 2, neutral=lambda dtype: True, **_TRUTH)
_alike("logical_or", 2, neutral=lambda dtype: False, **_TRUTH)
_alike("logical_xor", 2, **_TRUTH)
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    _op(_name, 2, aten=_tensor_scalar(_name), result="bool", jumps=True, fold=getattr(operator, _name))
_op("where", 3, aten="where.self", conditional=True, exact_in_half=True)
_op("masked", 3, torch.where, conditional=True)

COMBINED_BY = {
    "sum": "add",
    "prod": "mul",
    "min": "min",
    "max": "max",
    "argmin": "min",
    "argmax": "max",
    "any": "logical_or",
    "all": "logical_and",
}
"""The op that combines two elements of a reduction or scan; of ``argmin`` and ``argmax`` their values."""


def neutral_value(kind: str, dtype: torch.dtype) -> float | int | bool:
    """The value that leaves any other unchanged under a kind of reduction."""
    neutral = OPS[COMBINED_BY[kind]].neutral
    assert neutral is not None
    return neutral(dtype)


# ---------------------------------------------------------------- ATen


def aten_names() -> list[str]:
    """Every overload that the table names, as ``turret.graph.op_set`` names them."""
    return [name for op in OPS.values() for name in op.aten]


@functools.cache
def aten_ops() -> dict[str, ScalarOp]:
    """The ops that ATen has, by its names without an overload."""
    return {name.split(".")[0]: op for op in OPS.values() for name in op.aten}


# ---------------------------------------------------------------- ops from outside

ADDED: dict[tuple[str, ...], str] = {}
"""What was registered beside the tables that Turret comes with: a part of every graph's key."""

_observers: list[Callable[[], None]] = [aten_ops.cache_clear]


def when_changed(observer: Callable[[], None]) -> None:
    """Call ``observer`` whenever ops were added or removed; what is derived from the table is forgotten there."""
    _observers.append(observer)


def register(op: ScalarOp) -> None:
    """Add an op to the table: graphs compiled from here on use it.

    ``OptionError`` where its name, or one of its ATen overloads, is taken.
    """
    taken = {name: known.name for known in OPS.values() for name in known.aten}
    clashes = [f"{name} is the op {taken[name]!r}" for name in op.aten if name in taken]
    if op.name in OPS or clashes:
        raise OptionError(f"the scalar op {op.name!r} cannot be added: {', '.join(clashes) or 'there is one already'}")
    OPS[op.name] = op
    ADDED["table", op.name] = f"{attrs.asdict(op, filter=lambda field, value: not callable(value))}"
    _changed()


def unregister(name: str) -> None:
    """Take back what ``register`` added; ``OptionError`` for any other name."""
    if ADDED.pop(("table", name), None) is None:
        raise OptionError(f"the scalar op {name!r} was not added by register; added: {_added_names()}")
    del OPS[name]
    _changed()


def _added_names() -> str:
    return ", ".join(name for kind, name in ADDED if kind == "table") or "none"


def _changed() -> None:
    for observer in _observers:
        observer()

"""What eager refuses: an operation that does not run on fake tensors is tried on real ones of the same shapes.

A program may catch the error (``try: x + bias``, ``except RuntimeError: ...``), and one that does not is told by its
own error. Fakes say things in their own words and refuse things that eager takes, so that theirs proves nothing.
"""

from __future__ import annotations

import re
import types
from collections.abc import Callable
from typing import Any

import attrs
import torch
from torch.fx.experimental.symbolic_shapes import guard_or_false

from turret.plugins.capture.errors import Unsupported
from turret.torch_compat.dispatch import disable_current_modes
from turret.torch_compat.function_overrides import DisableTorchFunction
from turret.torch_compat.operators.ops import OpOverload, linear
from turret.torch_compat.trees import pytree

_KINDS = (RuntimeError, IndexError, TypeError, ValueError)
"""Errors of shapes, dtypes and arguments; fakes' own (of sizes that depend on data) are classes derived from these."""

_OF_AUTOGRAD = re.compile("a (view of a )?leaf Variable that requires grad is being used in an in-place operation")
"""What autograd says, of fakes in the same words, and of none of the tensors that are tried here."""

_LIMIT = 2**26
"""Bytes of all tensors that are made for a trial."""

_LINEAR = frozenset({linear, torch.ops.aten.linear, torch.ops.aten.linear.default})


def eager_error(op: str, target: Any, args: list, kwargs: dict[str, Any], error: Exception) -> Exception | None:
    """What eager raises where an operation of torch's raised ``error`` on fake tensors; None where that is not known.

    It is known where tensors of zeros and tensors of ones are refused in the same words: what depends on the elements
    of tensors is no error of the program's here.
    """
    is_own = op == "call_method" or isinstance(target, types.BuiltinFunctionType)
    if type(error) not in _KINDS or not is_own:
        return None
    if _OF_AUTOGRAD.match(str(error)):
        return error.with_traceback(None)
    state = torch.random.get_rng_state()
    try:
        found = [_error_of(op, target, *_filled(args, kwargs, number)) for number in (0, 1)]
    except _NotMade:
        return None
    finally:
        torch.random.set_rng_state(state)
    first, second = found
    if not type(first) is type(second) is type(error) or str(first) != str(second):
        return None
    for value in pytree.tree_leaves((args, kwargs)):
        numbers = (*value.shape, *value.stride()) if isinstance(value, torch.Tensor) else (value,)
        for number in numbers:
            if isinstance(number, torch.SymInt):
                int(number)  # what is a symbol is guarded to be what it was refused for
    return first


def refused_call(target: Any, args: list, kwargs: dict[str, Any]) -> Exception | None:
    """What eager raises where fakes would take a call; None for nothing."""
    if target not in _LINEAR:
        return _refused_results(target, args, kwargs)
    if not _is_widened(*args, **kwargs):
        return None
    refused = eager_error("call_function", linear, args, kwargs, RuntimeError())
    if refused is None:
        raise Unsupported("a bias that is larger than the product it is added to")
    return refused


def _is_widened(input: Any, weight: Any, bias: Any = None) -> bool:
    """Whether a bias makes a fake result larger than the product, to which eager adds it in place."""
    if not all(isinstance(value, torch.Tensor) for value in (input, weight, bias)):
        return False
    product = (*input.shape[:-1], *weight.shape[:-1])
    pairs = zip(reversed(bias.shape), reversed(product), strict=False)
    wider = bias.dim() > len(product) or any(guard_or_false(b != 1) and guard_or_false(b != n) for b, n in pairs)
    with torch.no_grad():
        return wider and linear(input, weight, bias).shape != torch.Size(product)


def _refused_results(target: Any, args: list, kwargs: dict[str, Any]) -> Exception | None:
    """What eager raises for the dtypes of the tensors that a call is given to write its results to; None for nothing.

    Each operation has a rule of its own, and fakes do not apply it.  Where a dtype is another than the result's, eager
    is asked: its error is one that it does not raise of tensors of the result's dtype.  Raises ``Unsupported`` where
    there are no real tensors to ask with.
    """
    names = _names_of_results(target, kwargs)
    if not names:
        return None
    given = pytree.tree_leaves({name: kwargs[name] for name in names})
    dtypes = _dtypes_of_results(target, args, {name: value for name, value in kwargs.items() if name not in names})
    known = len(dtypes) == len(given) and all(isinstance(tensor, torch.Tensor) for tensor in given)
    if not known or dtypes == [tensor.dtype for tensor in given]:
        return None
    state = torch.random.get_rng_state()
    try:
        first, second = (_refused_for_dtypes(target, _filled(args, kwargs, n), names, dtypes) for n in (0, 1))
    except _NotMade:
        raise Unsupported("a result of another dtype than the tensor that it is written to") from None
    finally:
        torch.random.set_rng_state(state)
    return first if first is not None and second is not None and str(first) == str(second) else None


def _dtypes_of_results(target: Any, args: list, kwargs: dict[str, Any]) -> list[torch.dtype]:
    """What a call gives of its own accord; nothing where it raises, as it does then with results given."""
    try:
        with torch.no_grad():
            made = pytree.tree_leaves(getattr(target, "overloadpacket", target)(*args, **kwargs))
    except Exception:
        return []
    return [value.dtype for value in made if isinstance(value, torch.Tensor)]


def _refused_for_dtypes(
    target: Any, arguments: Any, names: tuple[str, ...], dtypes: list[torch.dtype]
) -> Exception | None:
    """What eager raises of real arguments that it does not raise of results with other dtypes."""
    args, kwargs = arguments
    fitting = _with_dtypes({name: kwargs[name] for name in names}, dtypes)
    refused = _error_of("call_function", target, args, kwargs)
    otherwise = _error_of("call_function", target, args, kwargs | fitting)
    return None if str(refused) == str(otherwise) else refused


def _with_dtypes(tensors: dict[str, Any], dtypes: list[torch.dtype]) -> dict[str, Any]:
    remaining = iter(dtypes)
    return pytree.tree_map(lambda tensor: torch.empty_like(tensor, dtype=next(remaining)), tensors)


def _names_of_results(target: Any, kwargs: dict[str, Any]) -> tuple[str, ...]:
    if isinstance(target, OpOverload):
        return tuple(a.name for a in target._schema.arguments if a.is_out and a.name in kwargs)
    return ("out",) if kwargs.get("out") is not None else ()


def operator_error(operation: Callable, left: Any, right: Any) -> TypeError | None:
    """What Python raises for an operator of two real objects, where it is a ``TypeError``."""
    with disable_current_modes(), torch.no_grad():
        try:
            operation(left, right)
        except TypeError as error:
            return error.with_traceback(None)
        except Exception:
            return None
    return None


class _NotMade(Exception):
    """There is no real tensor for a fake one: it is large, data decide its size, or it is of another layout."""


def _error_of(op: str, target: Any, args: Any, kwargs: Any) -> Exception | None:
    try:
        with disable_current_modes(), DisableTorchFunction(), torch.no_grad():
            getattr(args[0], target)(*args[1:], **kwargs) if op == "call_method" else target(*args, **kwargs)
    except Exception as error:
        return error.with_traceback(None)  # which would keep the tensors
    return None


def _filled(args: list, kwargs: dict[str, Any], number: int) -> Any:
    """The arguments of a call with a real tensor for each fake one, all of its elements one number."""
    room = _Room()
    with disable_current_modes(), torch.no_grad():
        return pytree.tree_map(lambda value: room.filled(value, number), (args, kwargs))


@attrs.define
class _Room:
    left: int = _LIMIT

    def filled(self, value: Any, number: int) -> Any:
        if isinstance(value, torch.SymInt):
            return _now(value)
        if isinstance(value, (torch.SymFloat, torch.SymBool)):
            raise _NotMade
        if not isinstance(value, torch.Tensor):
            return value
        if value.layout is not torch.strided or value.is_quantized or value.is_conj() or value.is_neg():
            raise _NotMade
        shape, strides = (tuple(map(_now, numbers)) for numbers in (value.shape, value.stride()))
        elements = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True) if n)
        self.left -= elements * value.element_size()
        if self.left < 0:
            raise _NotMade
        return torch.empty_strided(shape, strides, dtype=value.dtype, device=value.device).fill_(number)


def _now(number: int | torch.SymInt) -> int:
    """What a size is in this call."""
    if isinstance(number, int):
        return number
    if not number.node.has_hint():
        raise _NotMade
    return int(number.node.hint)


_ASK_HOW_MANY = frozenset(
    {
        "_nnz", "values", "_values", "indices", "_indices", "crow_indices", "col_indices", "ccol_indices",
        "row_indices", "coalesce", "is_coalesced",
    }
)  # fmt: skip
_OF_GIVEN_ELEMENTS = frozenset(
    {
        torch.sparse_coo_tensor, torch.sparse_csr_tensor, torch.sparse_csc_tensor, torch.sparse_bsr_tensor,
        torch.sparse_bsc_tensor, torch.sparse_compressed_tensor,
    }
)  # fmt: skip
_SPARSE = frozenset({torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc})


def refuse_counts(target: Any, nodes: list[Any], fakes: list[Any]) -> None:
    """Refuse what depends on how many elements a sparse tensor has, where data decide: its fake has none.

    One that is made of indices and values has as many as these; one that an operation gives (``coalesce``,
    ``to_sparse_csr``, a sum) has as many as come out.
    """
    name = target if isinstance(target, str) else getattr(target, "__name__", "")
    if name.partition(".")[0] not in _ASK_HOW_MANY or not fakes or not isinstance(fakes[0], torch.Tensor):
        return
    if fakes[0].layout in _SPARSE and nodes[0].target not in _OF_GIVEN_ELEMENTS:
        raise Unsupported(f"{name} of a sparse tensor whose number of elements depends on data")

"""Arrays of numpy: known ones, which the program made of constants, and views of tensors."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import numpy
import torch

from turret.plugins.capture.errors import NotConstant, Unsupported
from turret.plugins.capture.values.base import MethodOfValue, Value
from turret.plugins.capture.values.sequences import folded
from turret.plugins.capture.values.tensors import Tensor
from turret.sources import CallSource, Source

if TYPE_CHECKING:
    from turret.plugins.capture.rebuild import Rebuilder
    from turret.plugins.capture.tracer import Tracer

_FACTS = ("shape", "ndim", "dtype", "size", "itemsize", "nbytes", "strides")
_METHODS = """
all any argmax argmin argsort astype clip conj copy cumprod cumsum diagonal dot flatten item max mean min nonzero prod
ravel repeat reshape round squeeze std sum swapaxes take tolist trace transpose var view
"""
"""Methods of a known array that leave it as it is."""


class KnownArray(Value):
    """An array that the program made of constants; ``array`` is the capture's own copy."""

    def __init__(self, t: Tracer, array: numpy.ndarray) -> None:
        self.t, self.array = t, array

    def folded(self) -> numpy.ndarray:
        """The array, unless a tensor that shares its memory was changed."""
        shared = self.t.shared_arrays.get(_owner(self.array))
        if shared is not None and shared._version:
            raise Unsupported("a numpy array beside a tensor in its memory that was changed")
        return self.array

    def type(self) -> type:
        return numpy.ndarray

    def key(self, t: Tracer) -> Any:
        raise t.raised(TypeError, "unhashable type: 'numpy.ndarray'")

    def tensor(self, t: Tracer, copied: bool) -> Value:
        """A tensor of the same numbers; where it is no copy, changes of either are no longer followed."""
        with torch.utils._mode_utils.no_dispatch():
            held = _from_numpy(self.folded().copy())
        made = t.call_method_graph("clone", [t.wrap_known(held)], {})
        if not copied:
            if _owner(self.array) in t.shared_arrays:
                raise Unsupported("two tensors in the memory of one numpy array")
            t.kept.append(self.array)
            t.shared_arrays[_owner(self.array)] = made.fake  # type: ignore[attr-defined]
        return made

    def get_attr(self, t: Tracer, name: str) -> Value:
        if name in (*_FACTS, "T", "real", "imag", "flat"):
            return t.made(getattr(self.folded(), name))
        if name in _METHODS.split():
            return MethodOfValue(self, name)
        raise Unsupported(f"attribute {name!r} of a numpy array")

    def call_method(self, t: Tracer, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if name not in _METHODS.split():
            raise Unsupported(f"method {name!r} of a numpy array")
        return t.fold(getattr(self.folded(), name), args, kwargs)

    def get_item(self, t: Tracer, key: Value) -> Value:
        return t.fold(operator.getitem, [self, key], {})

    def set_item(self, t: Tracer, key: Value, value: Value) -> None:
        if _owner(self.array) in t.shared_arrays:
            raise Unsupported("a change of a numpy array beside a tensor in its memory")
        try:
            self.array[folded(key)] = folded(value)
        except NotConstant:
            raise Unsupported("an item of a numpy array that is no constant") from None

    def iterate(self, t: Tracer) -> Value:
        return t.items_iterator(self.unpack(t))

    def unpack(self, t: Tracer) -> list[Value]:
        return [t.made(v) for v in self.folded()]

    def length(self, t: Tracer) -> Value:
        return t.fold(len, [self], {})

    def truth(self, t: Tracer) -> bool:
        return bool(t.constant_of(t.fold(bool, [self], {})))

    def contains(self, t: Tracer, item: Value) -> Value:
        return t.fold(operator.contains, [self, item], {})

    def binary(self, t: Tracer, operation: Any, other: Value, inplace: bool) -> Value | None:
        if isinstance(other, Tensor) or inplace:
            raise Unsupported(f"{operation.__name__} of a numpy array and {other.describe()}")
        return t.fold(operation, [self, other], {})

    def reflected(self, t: Tracer, operation: Any, other: Value) -> Value | None:
        return t.fold(operation, [other, self], {})

    def compare(self, t: Tracer, symbol: str, other: Value) -> Value | None:
        return t.fold(t.COMPARISONS[symbol], [self, other], {})

    def rebuild(self, r: Rebuilder) -> str:
        if self.array.base is not None or _owner(self.array) in r.t.shared_arrays:
            raise Unsupported("a view of a numpy array, or one beside a tensor in its memory, after a graph break")
        return r.assign(f"{r.constant(self.array.copy())}.copy()")


class ArrayOfTensor(Value):
    """An array in the memory of a tensor: one that existed before (``source``), or ``Tensor.numpy()``."""

    def __init__(self, tensor: Tensor, source: Source | None = None) -> None:
        self.held, self.source = tensor, source

    def type(self) -> type:
        return numpy.ndarray

    def tensor(self, t: Tracer, copied: bool) -> Value:
        """The tensor that shares the array's memory."""
        return self.held

    def get_attr(self, t: Tracer, name: str) -> Value:
        if name == "shape":
            return t.new_tuple(self.held.get_attr(t, "shape").unpack(t))
        if name == "ndim":
            return self.held.get_attr(t, "ndim")
        if name == "size":
            return self.held.call_method(t, "numel", [], {})
        if name == "dtype":
            return t.wrap_known(numpy_dtype(self.held.fake.dtype))
        if hasattr(numpy.ndarray, name) and callable(getattr(numpy.ndarray, name)):
            return MethodOfValue(self, name)
        raise Unsupported(f"attribute {name!r} of a numpy array")

    def length(self, t: Tracer) -> Value:
        return self.held.length(t)

    def rebuild(self, r: Rebuilder) -> str:
        return r.assign(f"{r.load(self.held)}.numpy()")


def array_of_tensor(t: Tracer, value: Tensor, force: Value | None = None) -> Value:
    """``Tensor.numpy()``: an array in the tensor's memory."""
    fake = value.fake
    if fake.requires_grad or (force is not None and t.truth(force)):
        raise Unsupported("Tensor.numpy of a tensor that requires gradients, or forced")
    if fake.device.type != "cpu" or fake.is_conj() or fake.is_neg():
        raise Unsupported("Tensor.numpy of a tensor that is elsewhere or lazy")
    numpy_dtype(fake.dtype)
    return ArrayOfTensor(value)


def _owner(array: numpy.ndarray) -> int:
    """Names the memory of an array, by the array that owns it."""
    while isinstance(array.base, numpy.ndarray):
        array = array.base
    return id(array)


def numpy_dtype(dtype: torch.dtype) -> Any:
    """Numpy's dtype for torch's."""
    try:
        with torch.utils._mode_utils.no_dispatch():
            return torch.empty(0, dtype=dtype).numpy().dtype
    except TypeError as error:
        raise Unsupported(f"a numpy array of {dtype}: {error}") from None


def _from_numpy(array: numpy.ndarray) -> torch.Tensor:
    try:
        return torch.from_numpy(array)
    except (TypeError, ValueError) as error:
        raise Unsupported(f"a numpy array of {array.dtype} as a tensor: {error}") from None


def array_value(t: Tracer, array: numpy.ndarray, source: Source) -> Value:
    """An array that existed before: an input of the graph, as the tensor in its memory."""
    t.guard("TYPE", source, numpy.ndarray)
    with torch.utils._mode_utils.no_dispatch():
        held = _from_numpy(array)
    value = t.tensor_input(held, CallSource(source, torch.from_numpy))
    assert isinstance(value, Tensor)
    return ArrayOfTensor(value, source)

"""Arrays of numpy: known ones, which the program made of constants, and views of tensors."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy
import torch

from turret.frames.sources import CallSource, LocalSource, Source
from turret.hooks.devices import HOST
from turret.plugins.capture.errors import NotConstant, Unsupported
from turret.plugins.capture.python import lookups
from turret.plugins.capture.registry import registry
from turret.plugins.capture.values.base import MethodOfValue, Rebuilder, Tracer, Value
from turret.plugins.capture.values.sequences import folded
from turret.plugins.capture.values.tensors import Array, Tensor

_FACTS = ("shape", "ndim", "dtype", "size", "itemsize", "nbytes", "strides")
_METHODS = """
all any argmax argmin argsort astype clip conj copy cumprod cumsum diagonal dot flatten item max mean min nonzero prod
ravel repeat reshape round squeeze std sum swapaxes take tolist trace transpose var view
"""
"""Methods of a known array that leave it as it is."""
_MOST_BYTES = 1 << 16
"""Larger arrays are not compared on every call."""


class _Numbers(Array):
    """What arrays whose numbers are known have in common: operations on them are computed while capturing."""

    def type(self) -> type:
        return numpy.ndarray

    def key(self, t: Tracer) -> Any:
        raise t.raised(TypeError, "unhashable type: 'numpy.ndarray'")

    def get_item(self, t: Tracer, key: Value) -> Value:
        return t.fold(operator.getitem, [self, key], {})

    def iterate(self, t: Tracer) -> Value:
        return t.items_iterator(self.unpack(t))

    def unpack(self, t: Tracer) -> list[Value]:
        return t.fold(list, [self], {}).unpack(t)

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


class KnownArray(_Numbers):
    """An array that the program made of constants; ``array`` is the capture's own copy."""

    def __init__(self, t: Tracer, array: numpy.ndarray) -> None:
        self.t, self.array = t, array

    def folded(self) -> numpy.ndarray:
        """The array, unless a tensor that shares its memory was changed."""
        shared = self.t.shared_arrays.get(_owner(self.array))
        if shared is not None and self.t.recorder.versions.of(shared):
            raise Unsupported("a numpy array beside a tensor in its memory that was changed")
        return self.array

    def tensor(self, t: Tracer, copied: bool) -> Value:
        """A tensor of the same numbers; where it is no copy, changes of either are no longer followed."""
        with torch.utils._mode_utils.no_dispatch():
            held = _from_numpy(self.folded().copy())
        made = t.recorder.call_method("clone", [t.wrap_known(held)], {})
        if not copied:
            self.check_own("a tensor in the memory of")
            if _owner(self.array) in t.shared_arrays:
                raise Unsupported("two tensors in the memory of one numpy array")
            t.kept.append(self.array)
            t.shared_arrays[_owner(self.array)] = made.fake  # type: ignore[attr-defined]
        return made

    def check_own(self, what: str) -> None:
        """Refuse what would show that this is a copy of an array that existed before."""
        if not self.array.flags.writeable:
            raise Unsupported(f"{what} an array that existed before, or of a part of it")

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

    def set_item(self, t: Tracer, key: Value, value: Value) -> None:
        self.change(t, lambda: operator.setitem(self.array, folded(key), folded(value)))

    def binary(self, t: Tracer, operation: Any, other: Value, inplace: bool) -> Value | None:
        if not inplace or isinstance(other, Tensor):
            return super().binary(t, operation, other, inplace)
        changed = getattr(operator, "i" + operation.__name__.rstrip("_"))
        self.change(t, lambda: changed(self.array, folded(other)))
        return self

    def change(self, t: Tracer, change: Callable[[], Any]) -> None:
        """Change the numbers, which views of the array see, too; what that raises, the program raises."""
        self.check_own("a change of")
        if _owner(self.array) in t.shared_arrays:
            raise Unsupported("a change of a numpy array beside a tensor in its memory")
        try:
            change()
        except NotConstant:
            raise Unsupported("a change of a numpy array by what is no constant") from None
        except (TypeError, ValueError, IndexError) as error:
            raise t.raised_from(error) from None

    def rebuild(self, r: Rebuilder) -> str:
        self.check_own("a result that is")
        if self.array.base is not None or _owner(self.array) in r.t.shared_arrays:
            raise Unsupported("a view of a numpy array, or one beside a tensor in its memory, after a graph break")
        return r.assign(f"{r.constant(self.array.copy())}.copy()")


class ArrayOfTensor(_Numbers):
    """An array in the memory of a tensor: one that existed before (``source``), or ``Tensor.numpy()``."""

    def __init__(
        self, t: Tracer, tensor: Tensor, source: Source | None = None, array: numpy.ndarray | None = None
    ) -> None:
        self.t, self.held, self.source, self.array = t, tensor, source, array

    def tensor(self, t: Tracer, copied: bool) -> Value:
        """The tensor that shares the array's memory."""
        return self.held

    def folded(self) -> numpy.ndarray:
        """The numbers of an array that the program keeps, assumed to stay; raises ``NotConstant`` for another one."""
        source, array = self.source, self.array
        if source is None or array is None or isinstance(source.root(), LocalSource):
            raise NotConstant(self)
        if self.t.recorder.versions.of(self.held.fake):
            raise NotConstant(self)
        if array.nbytes > _MOST_BYTES or self.t.policy.changing_array(source, array):
            raise NotConstant(self)
        self.t.guards.take("CALL", source, (lookups.array_numbers, lookups.array_numbers(array)))
        self.t.arrays_read.append(self.held.real)  # type: ignore[arg-type]
        copy = array.copy()
        copy.flags.writeable = False
        return copy

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
        if name in ("T", "real", "imag"):
            return t.fold(operator.attrgetter(name), [self], {})
        raise Unsupported(f"attribute {name!r} of a numpy array")

    def call_method(self, t: Tracer, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if name not in _METHODS.split():
            raise Unsupported(f"method {name!r} of a numpy array")
        return t.fold(getattr(numpy.ndarray, name), [self, *args], kwargs)

    def length(self, t: Tracer) -> Value:
        return self.held.length(t)

    def rebuild(self, r: Rebuilder) -> str:
        return r.assign(f"{r.load(self.held)}.numpy()")


def check_arrays(t: Tracer) -> None:
    """Arrays that were read while capturing must not be changed by the graph, through whatever tensor."""
    for held in t.arrays_read:
        for item in t.recorder.inputs:
            changed = isinstance(item.real, torch.Tensor) and t.recorder.versions.of(item.example)
            if changed and _overlap(item.real.untyped_storage(), held.untyped_storage()):
                raise Unsupported("a numpy array that was read, and that a tensor in its memory changes")


def _overlap(one: torch.UntypedStorage, other: torch.UntypedStorage) -> bool:
    first, second = one.data_ptr(), other.data_ptr()
    return first < second + other.nbytes() and second < first + one.nbytes()


@registry.tensor_method("numpy")
def array_of_tensor(t: Tracer, value: Tensor, force: Value | None = None) -> Value:
    """``Tensor.numpy()``: an array in the tensor's memory."""
    fake = value.fake
    if fake.requires_grad or (force is not None and t.truth(force)):
        raise Unsupported("Tensor.numpy of a tensor that requires gradients, or forced")
    if fake.device.type != HOST.type or fake.is_conj() or fake.is_neg():
        raise Unsupported("Tensor.numpy of a tensor that is elsewhere or lazy")
    numpy_dtype(fake.dtype)
    return ArrayOfTensor(t, value)


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
    t.guards.take("TYPE", source, numpy.ndarray)
    with torch.utils._mode_utils.no_dispatch():
        held = _from_numpy(array)
    value = t.recorder.tensor_input(held, CallSource(source, torch.from_numpy))
    assert isinstance(value, Tensor)
    return ArrayOfTensor(t, value, source, array)

"""Arrays of numpy: known ones, which the program made of constants, and views of tensors."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import attrs
import numpy
import torch

from turret.frames.sources import CallSource, ItemSource, LocalSource, Source
from turret.hooks.devices import HOST
from turret.plugins.capture.errors import NOWHERE, NotConstant, Unsupported
from turret.plugins.capture.python import lookups, random_draws
from turret.plugins.capture.registry import registry
from turret.plugins.capture.values.array_code import NumpyCall, in_library
from turret.plugins.capture.values.base import COMPARISONS, Answer, Constant, MethodOfValue, Rebuilder, Tracer, Value
from turret.plugins.capture.values.floats import ChangingBool, ChangingFloat
from turret.plugins.capture.values.sequences import folded
from turret.plugins.capture.values.tensors import Array, Tensor
from turret.torch_compat.dispatch import no_dispatch

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
        if isinstance(key, ArrayOfTensor):
            return key.compute(t, "ndarray.__getitem__", operator.getitem, [self, key])
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

    def binary(self, t: Tracer, operation: Any, other: Value, inplace: bool) -> Answer:
        if isinstance(other, Tensor) or inplace:
            raise Unsupported(f"{operation.__name__} of a numpy array and {other.describe()}")
        if isinstance(other, ArrayOfTensor):
            return other.operated(t, operation, [self, other])
        return t.fold(operation, [self, other], {})

    def reflected(self, t: Tracer, operation: Any, other: Value) -> Answer:
        if isinstance(other, Tensor):
            return _beside_tensor(t, operation, other, self)
        return t.fold(operation, [other, self], {})

    def compare(self, t: Tracer, symbol: str, other: Value) -> Answer:
        if isinstance(other, ArrayOfTensor):
            return other.compute(t, f"ndarray {symbol}", COMPARISONS[symbol], [self, other])
        return t.fold(COMPARISONS[symbol], [self, other], {})


class KnownArray(_Numbers):
    """An array that the program made of constants; ``array`` is the capture's own copy."""

    def __init__(self, t: Tracer, array: numpy.ndarray) -> None:
        self.t, self.array = t, array
        self.computed: ArrayOfTensor | None = None
        """What it is from when on numbers were put into it that the graph computes."""
        self.alone = array.base is None
        for other in t.arrays_made:
            if _owner(other.array) == _owner(array):
                self.alone = other.alone = False
        t.arrays_made.append(self)

    def realize(self) -> Value:
        return self if self.computed is None else self.computed

    def folded(self) -> numpy.ndarray:
        """The array, unless a tensor that shares its memory was changed."""
        shared = self.t.shared_arrays.get(_owner(self.array))
        if shared is not None and self.t.recorder.versions.of(shared):
            raise Unsupported("a numpy array beside a tensor in its memory that was changed")
        return self.array

    def tensor(self, t: Tracer, copied: bool) -> Value:
        """A tensor of the same numbers; where it is no copy, changes of either are no longer followed."""
        with no_dispatch():
            held = _from_numpy(self.folded().copy("K"))
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
        if any(isinstance(v.realize(), ArrayOfTensor) for v in (key, value)):
            self.as_computed(t).set_item(t, key, value)
            return
        self.change(t, lambda: self.array.__setitem__(folded(key), folded(value)))

    def as_computed(self, t: Tracer) -> ArrayOfTensor:
        """The array as one that the graph computes, which it is from now on."""
        self.check_own("a change of")
        if not self.alone or _owner(self.array) in t.shared_arrays:
            raise Unsupported("numbers of the graph put into a numpy array of which there are views")
        held = self.tensor(t, copied=True).realize()
        assert isinstance(held, Tensor)
        self.computed = ArrayOfTensor(t, held)
        return self.computed

    def binary(self, t: Tracer, operation: Any, other: Value, inplace: bool) -> Answer:
        if inplace and isinstance(other, ArrayOfTensor):
            return self.as_computed(t).binary(t, operation, other, inplace)
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
        if self.computed is not None:
            return r.load(self.computed)
        self.check_own("a result that is")
        copy, owner = self.array.copy("K"), _owner(self.array)
        others = any(isinstance(v, KnownArray) and v is not self and _owner(v.array) == owner for v in r.kept)
        if others or owner in r.t.shared_arrays or copy.strides != self.array.strides:
            raise Unsupported("a view of a numpy array, or one beside a tensor in its memory, after a graph break")
        return r.assign(f"{r.constant(copy)}.copy('K')")


@attrs.frozen(eq=False)
class Drawn:
    """Numbers that each call draws anew: what they are now, and where the next call finds them.

    ``version``: of the memory that they are in, while they are these.
    """

    numbers: Any
    source: Source
    version: int = 0


class ArrayOfTensor(_Numbers):
    """An array in the memory of a tensor: one that existed before (``source``), or ``Tensor.numpy()``."""

    def __init__(
        self,
        t: Tracer,
        tensor: Tensor,
        source: Source | None = None,
        array: numpy.ndarray | None = None,
        kind: type = numpy.ndarray,
    ) -> None:
        """``kind``: an array's class, or that of a scalar of numpy, which has no memory of its own to be seen."""
        self.view: tuple[Callable, list[Value], dict[str, Value]] | None = None
        """A call of numpy that gives the array as a view of another, of which the graph has a copy."""
        self.t, self.held, self.source, self.array, self.kind = t, tensor, source, array, kind
        self.drawn: Drawn | None = None
        """Of random numbers, or what comes of such and constants: what it is in this call."""

    def type(self) -> type:
        return self.kind

    def describe(self) -> str:
        return f"an array in the memory of {self.held.describe()}"

    def tensor(self, t: Tracer, copied: bool) -> Value:
        """The tensor that shares the array's memory."""
        return self.held

    def beside(self, t: Tracer, tensor: Value) -> Value:
        """A scalar is a number of Python's to torch, which asks a tensor without dimensions for its type sooner."""
        if self.kind is numpy.ndarray:
            return self
        assert isinstance(tensor, Tensor)
        number, held = _PLAIN.get(numpy_dtype(self.held.fake.dtype).kind), self.held.fake
        if number is None or torch.result_type(tensor.fake, number) == torch.result_type(tensor.fake, held):
            return self.held
        return self.as_number(t) or self

    def as_number(self, t: Tracer) -> Value | None:
        kind = numpy_dtype(self.held.fake.dtype).kind
        return self.read(t, "item") if self.kind is not numpy.ndarray and kind in _PLAIN else None

    def folded(self) -> numpy.ndarray:
        """The numbers of an array that the program keeps, assumed to stay; raises ``NotConstant`` for another one."""
        source, array = self.source, self.array
        if self.drawn is not None or source is None or array is None or isinstance(source.root(), LocalSource):
            raise NotConstant(self)
        if self.t.recorder.versions.of(self.held.fake):
            raise NotConstant(self)
        if array.nbytes > _MOST_BYTES or self.t.policy.changing_array(source, array):
            raise NotConstant(self)
        self.t.guards.take("CALL", source, (lookups.array_numbers, lookups.array_numbers(array)))
        self.t.arrays_read.append(self.held.real)  # type: ignore[arg-type]
        copy = array.copy("K")
        copy.flags.writeable = False
        return copy

    def is_foldable(self) -> bool:
        """Whether the numbers are assumed to stay, so that they are constants."""
        try:
            self.folded()
        except NotConstant:
            return False
        return True

    def get_attr(self, t: Tracer, name: str) -> Value:
        if name == "shape":
            return t.new_tuple(self.held.get_attr(t, "shape").unpack(t))
        if name == "ndim":
            return self.held.get_attr(t, "ndim")
        if name == "size":
            return self.held.call_method(t, "numel", [], {})
        if name == "dtype":
            return t.wrap_known(numpy_dtype(self.held.fake.dtype))
        if name in ("T", "mT", "real", "imag"):
            return self.compute(t, name, operator.attrgetter(name), [self])
        if name in _SIZES:
            return self.sizes(t, name)
        if hasattr(numpy.ndarray, name) and callable(getattr(numpy.ndarray, name)):
            return MethodOfValue(self, name)
        raise Unsupported(f"attribute {name!r} of a numpy array")

    def sizes(self, t: Tracer, name: str) -> Value:
        """Sizes in bytes."""
        fake = self.held.fake
        if not all(isinstance(s, int) for s in (*fake.shape, *fake.stride())):
            raise Unsupported(f"attribute {name!r} of a numpy array whose size changes")
        width = fake.element_size()
        strides = tuple(s * width for s in fake.stride())
        return t.made({"strides": strides, "itemsize": width, "nbytes": fake.numel() * width}[name])

    def call_method(self, t: Tracer, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if name in _READS or (name == "item" and not args):
            return self.read(t, name)
        if name in _CHANGES:
            self.check_writeable(t)
        if not hasattr(numpy.ndarray, name):
            raise t.raised(AttributeError, f"'numpy.{self.kind.__name__}' object has no attribute {name!r}")
        return self.compute(t, name, lambda array, *a, **k: getattr(array, name)(*a, **k), [self, *args], kwargs)

    def random(self) -> Drawn | None:
        """What was drawn, if nobody has changed it; else None."""
        drawn = self.drawn
        return drawn if drawn is not None and self.t.recorder.versions.of(self.held.fake) == drawn.version else None

    def place(self, t: Tracer) -> Value | None:
        """The integer that was drawn, as an index; None where it is none."""
        drawn = self.random()
        if drawn is None or self.kind is numpy.ndarray or drawn.numbers.dtype.kind not in "iu":
            return None
        source = CallSource(drawn.source, operator.index)
        return t.recorder.int_input(operator.index(drawn.numbers), source, is_int=True)

    def read(self, t: Tracer, name: str) -> Value:
        """The numbers of the array as Python's."""
        if (drawn := self.random()) is not None and (found := _as_pythons(t, drawn, name)) is not None:
            return found
        if name == "__bool__" and self.held.fake.dim() > 0:
            raise Unsupported(f"{name} of {self.describe()}")
        found = self.held.read(t, name)
        if found is None:
            raise Unsupported(f"{name} of {self.describe()} reads its numbers")
        return found

    def truth(self, t: Tracer) -> bool:
        if (drawn := self.random()) is not None and drawn.numbers.size == 1:
            return ChangingBool(t, bool(drawn.numbers), CallSource(drawn.source, bool), is_drawn=True).truth(t)
        return self.held.truth(t)

    def unary(self, t: Tracer, operation: Callable) -> Value:
        return self.compute(t, f"ndarray.__{operation.__name__.strip('_')}__", operation, [self])

    def compute(
        self,
        t: Tracer,
        name: str,
        operation: Callable,
        args: list[Value],
        kwargs: dict[str, Value] | None = None,
    ) -> Value:
        """What numpy gives: of numbers that are assumed to stay, while capturing; else by the graph."""
        try:
            return t.made(operation(*map(folded, args), **{k: folded(v) for k, v in (kwargs or {}).items()}))
        except NotConstant:
            return computed(t, name, operation, in_library(operation) or operation, args, kwargs or {})
        except Exception as error:
            raise t.raised_from(error) from None

    def get_item(self, t: Tracer, key: Value) -> Value:
        return self.compute(t, "ndarray.__getitem__", operator.getitem, [self, key])

    def set_item(self, t: Tracer, key: Value, value: Value) -> None:
        self.check_writeable(t)
        computed(t, "ndarray.__setitem__", operator.setitem, operator.setitem, [self, key, value], {})

    def unpack(self, t: Tracer) -> list[Value]:
        return [self.get_item(t, Constant(n)) for n in range(t.int_of(self.length(t)))]

    def contains(self, t: Tracer, item: Value) -> Value:
        raise Unsupported(f"`in` of {self.describe()} reads its numbers")

    def binary(self, t: Tracer, operation: Any, other: Value, inplace: bool) -> Answer:
        if isinstance(other, Tensor):
            if self.kind is not numpy.ndarray:
                return NotImplemented  # and the tensor answers
            raise Unsupported(f"{operation.__name__} of a numpy array and {other.describe()}")
        if inplace and self.kind is numpy.ndarray:
            self.check_writeable(t)
            changed = getattr(operator, "i" + operation.__name__.rstrip("_"))
            return computed(t, f"ndarray.__i{operation.__name__}__", changed, changed, [self, other], {})
        return self.operated(t, operation, [self, other])

    def operated(self, t: Tracer, operation: Any, operands: list[Value]) -> Value:
        return self.compute(t, f"ndarray.__{operation.__name__}__", operation, operands)

    def reflected(self, t: Tracer, operation: Any, other: Value) -> Answer:
        if isinstance(other, Tensor) and self.kind is numpy.ndarray:
            return _beside_tensor(t, operation, other, self)
        return self.operated(t, operation, [other, self])

    def compare(self, t: Tracer, symbol: str, other: Value) -> Answer:
        if isinstance(other, Tensor) and self.kind is not numpy.ndarray:
            return NotImplemented
        return self.compute(t, f"ndarray {symbol}", COMPARISONS[symbol], [self, other])

    def check_writeable(self, t: Tracer) -> None:
        """Refuse to change an array that numpy keeps from that, or a scalar."""
        if self.kind is not numpy.ndarray or (self.array is not None and not self.array.flags.writeable):
            raise Unsupported(f"a change of {self.describe()}, which cannot be written to")
        if self.source is not None:
            t.guards.take("CALL", self.source, (lookups.is_writeable, True))

    def length(self, t: Tracer) -> Value:
        return self.held.length(t)

    def rebuild(self, r: Rebuilder) -> str:
        if self.view is not None:
            function, args, kwargs = self.view
            given = ", ".join([*map(r.load, args), *(f"{k}={r.load(v)}" for k, v in kwargs.items())])
            return r.assign(f"{r.constant(function)}({given})")
        array = f"{r.constant(lookups.array_in_memory_of)}({r.load(self.held)})"
        return r.assign(f"{array}{'' if self.kind is numpy.ndarray else '[()]'}")


_PLAIN = {"i": 0, "u": 0, "f": 0.0}
"""Numbers of Python's that torch takes scalars of numpy for, by kind."""
_SIZES = frozenset({"strides", "itemsize", "nbytes"})
_READS = frozenset({"tolist", "__float__", "__int__", "__bool__", "__index__"})
_CHANGES = frozenset({"sort", "fill", "put", "resize", "partition"})


def computed(
    t: Tracer, name: str, original: Callable, function: Callable, args: list[Value], kwargs: dict[str, Value]
) -> Value:
    """A call of a function of numpy with arrays that the graph computes."""

    def made(tensor: Value, kind: type, copied: bool) -> Value:
        tensor = tensor.realize()
        assert isinstance(tensor, Tensor)
        value = ArrayOfTensor(t, tensor, kind=kind)
        if copied:
            value.view = (original, args, kwargs)
            shown = [a for v in (*args, *kwargs.values()) if isinstance(a := v.realize(), ArrayOfTensor)]
            t.copied_views.append([(v.held.fake, t.recorder.versions.of(v.held.fake)) for v in (value, *shown)])
        return value

    found = NumpyCall(t, name, original, function, args, kwargs, made).run()
    if isinstance(found, ArrayOfTensor) and found.drawn is None:
        found.drawn = _drawn_of(t, original, args, kwargs, found)
    return found


def _drawn_of(
    t: Tracer, function: Callable, args: list[Value], kwargs: dict[str, Value], found: ArrayOfTensor
) -> Drawn | None:
    """What a function that has changed nothing gives of one array of random numbers and constants."""
    values = [v.realize() for v in args]
    drawn = [(n, v.random()) for n, v in enumerate(values) if isinstance(v, ArrayOfTensor)]
    if len(drawn) != 1 or (known := drawn[0][1]) is None or known.numbers.size > _MOST_DRAWN or found in values:
        return None
    place = drawn[0][0]
    try:
        before, after = (tuple(map(folded, part)) for part in (values[:place], values[place + 1 :]))
        applied = random_draws.Applied(function, before, after, {k: folded(v) for k, v in kwargs.items()})
        numbers = applied(known.numbers.copy())
    except Exception:
        return None
    if type(numbers) is not found.kind:
        return None
    return Drawn(numbers, CallSource(known.source, applied), t.recorder.versions.of(found.held.fake))


_MOST_DRAWN = 1 << 12
"""Random numbers that are computed with ahead of the graph."""
_MOST_READ = 64
"""Random numbers that the graph is given one by one."""


def _as_pythons(t: Tracer, drawn: Drawn, name: str) -> Value | None:
    """Random numbers as Python's; None where only the graph has those."""
    numbers = drawn.numbers
    if name == "tolist":
        few = numbers.size <= _MOST_READ
        return _listed(t, numbers.tolist(), CallSource(drawn.source, lookups.as_list)) if few else None
    convert = _CONVERSIONS.get(name)
    if numbers.size != 1 or convert is None or numbers.dtype.kind not in convert[0]:
        return None
    return _number(t, convert[1](numbers), CallSource(drawn.source, convert[1]))


def _listed(t: Tracer, numbers: Any, source: Source) -> Value | None:
    if not isinstance(numbers, list):
        return _number(t, numbers, source)
    items = [_listed(t, v, ItemSource(source, n)) for n, v in enumerate(numbers)]
    return None if None in items else t.new_list(items)  # type: ignore[arg-type]


def _number(t: Tracer, number: Any, source: Source) -> Value | None:
    """A random number of Python's; None for what is no int or float."""
    if type(number) is float:
        return ChangingFloat(t, number, source, is_drawn=True)
    return t.recorder.int_input(number, source, is_int=True) if type(number) is int and abs(number) < 2**62 else None


_CONVERSIONS: dict[str, tuple[str, Callable]] = {
    "item": ("iuf", lookups.as_list), "__int__": ("iu", int), "__index__": ("iu", operator.index),
    "__float__": ("f", float),
}  # fmt: skip
"""How numbers of some kinds become Python's."""


def check_arrays(t: Tracer) -> None:
    """Arrays that were read while capturing must not be changed by the graph, through whatever tensor."""
    for held in t.arrays_read:
        for item in t.recorder.inputs:
            changed = isinstance(item.real, torch.Tensor) and t.recorder.versions.of(item.example)
            if changed and _overlap(item.real.untyped_storage(), held.untyped_storage()):
                raise Unsupported("a numpy array that was read, and that a tensor in its memory changes")


def check_views(t: Tracer) -> None:
    """Copies that stand for views must not be changed, nor what they show."""
    for pairs in t.copied_views:
        if any(t.recorder.versions.of(fake) != version for fake, version in pairs):
            raise Unsupported("a change of a numpy array beside a view that torch has no like of", step=NOWHERE)


def _overlap(one: torch.UntypedStorage, other: torch.UntypedStorage) -> bool:
    first, second = one.data_ptr(), other.data_ptr()
    return first < second + other.nbytes() and second < first + one.nbytes()


@registry.tensor_method("numpy")
def array_of_tensor(t: Tracer, value: Tensor, force: Value | None = None) -> Value:
    """``Tensor.numpy()``: an array in the tensor's memory."""
    if force is not None and t.truth(force):
        steps: dict[str, list[Value]] = {"detach": [], "to": [Constant(HOST)], "resolve_conj": [], "resolve_neg": []}
        for name, args in steps.items():
            value = value.call_method(t, name, args, {}).realize()  # type: ignore[assignment]
    fake = value.fake
    if fake.requires_grad:
        raise Unsupported("Tensor.numpy of a tensor that requires gradients")
    if fake.device.type != HOST.type or fake.is_conj() or fake.is_neg():
        raise Unsupported("Tensor.numpy of a tensor that is elsewhere or lazy")
    numpy_dtype(fake.dtype)
    return ArrayOfTensor(t, value)


def _owner(array: numpy.ndarray) -> int:
    """Names the memory of an array, by the array that owns it."""
    while isinstance(array.base, numpy.ndarray):
        array = array.base
    return id(array)


def _beside_tensor(t: Tracer, operation: Any, tensor: Tensor, array: Value) -> Answer:
    """What a tensor gives with an array to its right: numpy computes it, of the tensor as an array, and
    ``Tensor.__array_wrap__`` makes a tensor of the result."""
    if t.overrides.applies((tensor, array)) or tensor.fake.dtype is torch.bool:
        return NotImplemented
    made = t.binary(operation, tensor.call_method(t, "numpy", [], {}), array).realize()
    if not isinstance(made, ArrayOfTensor):
        raise Unsupported(f"{operation.__name__} of {tensor.describe()} and a numpy array")
    return made.tensor(t, copied=False)


def numpy_dtype(dtype: torch.dtype) -> Any:
    """Numpy's dtype for torch's."""
    try:
        with no_dispatch():
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
    with no_dispatch():
        held = _from_numpy(array)
    value = t.recorder.tensor_input(held, CallSource(source, torch.from_numpy))
    assert isinstance(value, Tensor)
    return ArrayOfTensor(t, value, source, array)


def array_of_call(t: Tracer, found: numpy.ndarray, source: Source, kind: type = numpy.ndarray) -> Value:
    """An array, or a scalar, that each call draws or is handed anew."""
    made = array_value(t, found, source)
    assert isinstance(made, ArrayOfTensor)
    made.kind, made.drawn = kind, Drawn(found.copy(), source)
    if kind is not numpy.ndarray:
        made.source = None  # which leads to an array
    return made


def scalar_of_call(t: Tracer, found: numpy.generic, source: Source) -> Value:
    """A scalar that each call draws or is handed anew."""
    return array_of_call(t, numpy.asarray(found), CallSource(source, numpy.asarray), type(found))

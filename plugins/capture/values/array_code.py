"""Functions of numpy on arrays whose numbers the graph computes: torch's library of them, run on fake tensors.

``torch._numpy`` writes numpy's functions in terms of torch's; every function of torch that it calls is recorded.  What
numpy itself makes of the call is asked of it, on small arrays: whether the result is an array or a scalar, its dtype,
whose memory it lies in; and its numbers must be those that torch's library gives for them.
"""

from __future__ import annotations

import contextlib
import functools
import operator
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import numpy
import torch
from torch.fx.experimental.symbolic_shapes import guard_or_false, statically_known_true
from torch.overrides import TorchFunctionMode

from turret.plugins.capture.errors import Raised, Unsupported
from turret.plugins.capture.python import lookups
from turret.plugins.capture.values.base import Constant, Tracer, Value, is_numpy_scalar
from turret.plugins.capture.values.functions import Known
from turret.plugins.capture.values.sequences import List, Sequence, Slice, Tuple
from turret.plugins.capture.values.symbols import Symbolic
from turret.plugins.capture.values.tensors import Array, Tensor
from turret.torch_compat.dispatch import no_dispatch
from turret.torch_compat.function_overrides import (
    DisableTorchFunction,
    TorchFunctionState,
    function_override_state,
    set_function_override_state,
)
from turret.torch_compat.sizes import ARITHMETIC

_MOST_ELEMENTS = 1 << 18
"""Elements of the arrays that numpy is asked with, where smaller ones say nothing."""
_HOLD_INTEGERS = frozenset({torch.bool, torch.int64, torch.float32, torch.float64, torch.complex64, torch.complex128})
"""Dtypes beside which any int of Python's may stand."""
_SMALL = (2, 3, 5, 7)
"""Sizes that stand for larger ones."""
_OF_DATA = 4
"""A size that stands for one that depends on data."""


class _Recording(TorchFunctionMode):
    """Records the functions of torch that are called with fake tensors, as calls of the program."""

    def __init__(self, t: Tracer) -> None:
        super().__init__()
        self.t = t
        self.numbers: dict[int, Value] = {}
        """The values of symbols that functions gave, by their identity."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with DisableTorchFunction():  # the program's modes lie below this one
            given = [value_of(self.t, v) for v in args]
            named = {k: value_of(self.t, v) for k, v in (kwargs or {}).items()}
            made = self.t.call(self.t.wrap_known(func), given, named).realize()
            if isinstance(made, Symbolic):
                self.numbers[id(made.number)] = made
            return python_of(self.t, made)


def value_of(t: Tracer, object: Any) -> Value:
    """The value of what torch's library hands to a function of torch."""
    if isinstance(object, torch.Tensor):
        known = t.recorder.by_fake.get(id(object))
        if known is None:
            raise Unsupported("a tensor that no recorded call made")
        return known
    if isinstance(object, torch.SymInt):
        return _symbolic(t, object)
    if type(object) in (tuple, torch.Size):
        return t.new_tuple([value_of(t, v) for v in object])
    if type(object) is list:
        return t.new_list([value_of(t, v) for v in object])
    if type(object) is slice:
        return Slice([value_of(t, v) for v in (object.start, object.stop, object.step)])
    return t.wrap_known(object)


def _symbolic(t: Tracer, number: torch.SymInt) -> Value:
    """A size or an int that is an input, or what the program computed of such; another is taken for what it is now."""
    for item in t.recorder.inputs:
        if isinstance(item.example, torch.SymInt) and item.example.node.expr == number.node.expr:
            return Symbolic(item.node, item.example, item.source)
        tensor = t.recorder.by_fake.get(id(item.example))
        for dimension, size in enumerate(tensor.fake.shape if tensor is not None else ()):
            if isinstance(size, torch.SymInt) and size.node.expr == number.node.expr:
                return t.recorder.size_value(tensor, dimension)
    now = number.node.hint
    if now is not None and statically_known_true(number == now):
        return Constant(int(now))
    for node in reversed(t.recorder.graph.nodes):
        made = node.meta.get("example_value")
        if isinstance(made, torch.SymInt) and made.node.expr == number.node.expr:
            return Symbolic(node, made)
    return _computed_size(t, number)


def _computed_size(t: Tracer, number: torch.SymInt) -> Value:
    """What torch's library computed of sizes and ints, computed by the graph as well, unless of what it has not."""
    expression, node = number.node.expr, number.node
    function = ARITHMETIC.get(expression.func)
    if function is None:
        return Constant(int(number))
    parts = [torch.SymInt(type(node)(part, node.shape_env, int, None)) for part in expression.args]
    values = [Constant(int(part.node.expr)) if part.node.expr.is_Integer else _symbolic(t, part) for part in parts]
    return functools.reduce(lambda one, other: t.call(t.wrap_known(function), [one, other], {}), values)


def python_of(t: Tracer, value: Value) -> Any:
    """What a function of torch gives, as torch's library sees it."""
    value = value.realize()
    if isinstance(value, Tensor):
        return value.fake
    if isinstance(value, Symbolic):
        return value.number
    if isinstance(value, Sequence):
        items = [python_of(t, v) for v in value.items]
        return items if value.kind is list else tuple(items) if value.kind in (tuple, torch.Size) else value.kind(items)
    return t.constant_of(value)


@functools.cache
def _library() -> tuple[Any, dict[Any, Any]]:
    """Torch's library, and its functions by those of numpy that they stand for."""
    from turret.torch_compat.programs.numpy_functions import library

    found: dict[Any, Any] = {}
    for theirs, mine in ((numpy, library), (numpy.linalg, library.linalg), (numpy.fft, library.fft)):
        for name in dir(mine):
            original, function = getattr(theirs, name, None), getattr(mine, name)
            if callable(original) and not isinstance(original, type) and callable(function) and name not in _OTHERS:
                found[original] = function
    return library, found


def divide(left: Any, right: Any, *args: Any, **kwargs: Any) -> Any:
    """``numpy.divide``: of integers in double precision, whatever torch's default is."""
    library = _library()[0]
    if all(_is_integer(v) for v in (left, right)) and "dtype" not in kwargs:
        left, right = (v.astype("float64") if hasattr(v, "tensor") else float(v) for v in (left, right))
    return library.divide(left, right, *args, **kwargs)


def _is_integer(value: Any) -> bool:
    if hasattr(value, "tensor"):
        return not (value.tensor.dtype.is_floating_point or value.tensor.dtype.is_complex)
    return isinstance(value, int)


def array(object: Any, dtype: Any = None, **kwargs: Any) -> Any:
    """``numpy.array``, of lists of arrays as well, whose numbers are not read."""
    library = _library()[0]
    if isinstance(object, (list, tuple)):
        made = library.stack([array(v) for v in object])
        return made if dtype is None else made.astype(dtype)
    return library.array(object, dtype, **kwargs)


def unique(ar: Any, *, return_inverse: bool = False, return_counts: bool = False, equal_nan: bool = True) -> Any:
    """``numpy.unique``: of values that are no number it keeps the first, where nothing else is asked for."""
    library = _library()[0]
    tensor = library.asarray(ar).tensor
    found = torch.unique(tensor, return_inverse=return_inverse, return_counts=return_counts)
    if isinstance(found, tuple):
        return tuple(map(library.ndarray, found))
    if equal_nan and tensor.dtype.is_floating_point:
        missing = torch.isnan(found)
        found = found[~missing | (missing.cumsum(0) == 1)]
    return library.ndarray(found)


def sign(x: Any) -> Any:
    """``numpy.sign``: of what is no number it is that."""
    tensor = _library()[0].asarray(x).tensor
    found = torch.sign(tensor)
    return _library()[0].ndarray(torch.where(torch.isnan(tensor), tensor, found))


def square(x: Any) -> Any:
    """``numpy.square``, of integers as well."""
    return _library()[0].multiply(x, x)


def argsort(a: Any, axis: int = -1, kind: str | None = None, *, stable: bool | None = None) -> Any:
    """``numpy.argsort`` that keeps the order of what is equal; numpy's own orders that as it likes."""
    library = _library()[0]
    if not stable and kind not in ("stable", "mergesort"):
        raise ValueError("numpy orders what is equal as it likes")
    return library.ndarray(torch.argsort(library.asarray(a).tensor, dim=axis, stable=True))


def tile(A: Any, reps: Any) -> Any:
    """``numpy.tile``, of a size as well."""
    return _library()[0].tile(A, reps if isinstance(reps, (tuple, list)) else (reps,))


def identity(n: Any, dtype: Any = "float64") -> Any:
    """``numpy.identity``: in double precision, whatever torch's default is."""
    return _library()[0].identity(n, dtype or "float64")


def tri(N: Any, M: Any = None, k: Any = 0, dtype: Any = "float64") -> Any:
    """``numpy.tri``: in double precision, whatever torch's default is."""
    return _library()[0].tri(N, M, k, dtype or "float64")


def linspace(start: Any, stop: Any, num: Any = 50, endpoint: bool = True, dtype: Any = None) -> Any:
    """``numpy.linspace`` by numpy's formula, in which a number that changes may say how many there are."""
    library = _library()[0]
    steps = num - 1 if endpoint else num
    if not all(isinstance(v, (int, float)) for v in (start, stop)) or steps < 1 or start == stop:
        return library.linspace(start, stop, num, endpoint, dtype=dtype)
    made = torch.arange(num, dtype=torch.float64)
    made = made * (torch.full((), float(stop - start), dtype=torch.float64) / steps) + start
    if endpoint:
        made[-1:].fill_(stop)
    return library.ndarray(made) if dtype is None else library.ndarray(made).astype(dtype)


def logspace(start: Any, stop: Any, num: Any = 50, endpoint: bool = True, base: Any = 10.0, dtype: Any = None) -> Any:
    """``numpy.logspace``, of what ``linspace`` gives."""
    library = _library()[0]
    made = library.ndarray(torch.pow(base, linspace(start, stop, num, endpoint).tensor))
    return made if dtype is None else made.astype(dtype)


def pad(array: Any, pad_width: Any, mode: str = "constant", *, constant_values: Any = 0) -> Any:
    """``numpy.pad`` with one number, where sizes that change may say how wide."""
    library = _library()[0]
    if mode != "constant" or not isinstance(constant_values, (int, float)):
        raise NotImplementedError(f"padding in mode {mode}, or with several numbers")
    tensor = library.asarray(array).tensor
    widths = pad_width if isinstance(pad_width, (tuple, list)) else (pad_width, pad_width)
    if not any(isinstance(w, (tuple, list)) for w in widths):
        widths = (widths,)
    if len(widths) == 1:
        widths = (*widths,) * tensor.dim()
    if len(widths) != tensor.dim() or any(len(w) != 2 for w in widths):
        raise NotImplementedError("widths that are broadcast")
    sides = [side for width in reversed(widths) for side in width]
    if any(side < 0 for side in sides):
        raise ValueError("index can't contain negative values")
    return library.ndarray(torch.nn.functional.pad(tensor, sides, value=constant_values))


_INSTEAD: dict[Any, Any] = {
    operator.truediv: divide, numpy.divide: divide, numpy.array: array, numpy.asarray: array, numpy.unique: unique,
    numpy.sign: sign, numpy.square: square, numpy.argsort: argsort, numpy.tile: tile, numpy.identity: identity,
    numpy.tri: tri, numpy.linspace: linspace, numpy.logspace: logspace, numpy.pad: pad,
}  # fmt: skip
"""Functions that are something else in torch's library."""
_OTHERS = frozenset({"empty", "empty_like", "argsort", "unique", "save", "load", "shape", "size", "ndim"})
"""Functions that are something else in torch's library, or whose results are not determined."""


def in_library(function: Any) -> Any | None:
    """The function of torch's library that stands for one of numpy's."""
    return _INSTEAD.get(function) or _library()[1].get(function)


_PART_AT_INTEGERS = frozenset(
    {
        "floordiv", "floor_divide", "mod", "remainder", "fmod", "divmod", "pow", "power", "lshift", "rshift",
        "left_shift", "right_shift", "bitwise_left_shift", "bitwise_right_shift",
    }
)  # fmt: skip


class Unanswered(Exception):
    """Numpy or torch's library raises, as it will when the graph runs: the call is then Python's."""


class _Samples:
    """Arrays that stand for tensors: of their dtypes and orders of dimensions."""

    def __init__(self, small: bool, most: int, unusual: bool = False, matrices: bool = False) -> None:
        """``small``: sizes are smaller ones; ``most``: above all integers; ``unusual``: nan and infinity among floats.

        ``matrices``: square ones are symmetric and positive, as functions of linear algebra want them.
        """
        self.small, self.most, self.unusual, self.matrices = small, most, unusual, matrices
        self.made: list[numpy.ndarray] = []
        self.sizes: dict[int, int] = {}

    def of(self, tensor: Tensor) -> numpy.ndarray:
        """An array for a tensor."""
        fake = tensor.fake
        shape = [*map(_size_now, fake.shape)]
        if self.small:
            shape = [s if s < 2 else self.sizes.setdefault(s, min(s, _SMALL[len(self.sizes) % 4])) for s in shape]
        order = sorted(range(len(shape)), key=lambda n: -_size_now(fake.stride()[n]))
        made = self.numbers(fake.dtype, [shape[n] for n in order]).transpose(numpy.argsort(order))
        if self.matrices and made.dtype.kind in "fc" and len(shape) > 1 and shape[-1] == shape[-2]:
            made = made + numpy.swapaxes(made, -1, -2) + 9 * numpy.eye(shape[-1], dtype=made.dtype)
        self.made.append(made)
        return made

    def numbers(self, of: torch.dtype, shape: list[int]) -> numpy.ndarray:
        dtype = torch.empty(0, dtype=of).numpy().dtype
        count = int(numpy.prod(shape))
        row = numpy.arange(count)
        if dtype.kind == "b":
            return (row % 3 == 0).reshape(shape)
        values = row * 7 % self.most + (self.most > 2)
        if dtype.kind in "ifc" and self.most > 2:
            values = numpy.where(row % 4 == 2, -values, values)
        values = values.astype(dtype)
        if dtype.kind in "fc":
            values = values / dtype.type(8)
            if self.unusual:
                values[row % 5 == 1], values[row % 5 == 3] = numpy.nan, numpy.inf
        return values.reshape(shape)


class NumpyCall:
    """One call of a function of numpy, of values."""

    def __init__(
        self,
        t: Tracer,
        name: str,
        original: Callable,
        function: Callable,
        args: list[Value],
        kwargs: dict[str, Value],
        made: Callable[[Value, type, bool], Value],
    ) -> None:
        """``made``: the value of an array, or of a scalar of a type, with the tensor in its memory.

        It is told whether that is a copy, where numpy gives a view.
        """
        self.t, self.name, self.original, self.function = t, name, original, function
        self.made = made
        self.args, self.kwargs = [a.realize() for a in args], {k: v.realize() for k, v in kwargs.items()}
        self.arrays: list[tuple[Value, Tensor]] = []
        """Arrays among the arguments, in order, with the tensors in their memory."""
        self.tensors: dict[int, Tensor] = {}

    def run(self) -> Value:
        """The result.  Raises ``Unsupported`` where it would not be numpy's, or would not for ints as symbols."""
        try:
            return self.found()
        except Unsupported as error:
            error.numbers |= {v.source for v in self.integers() if v.source is not None}
            raise

    def found(self) -> Value:
        """What torch's library gives, compared with what numpy gives for arrays like these."""
        self.assume_errors()
        library = _library()[0]
        given, named = self.objects(self.args, self.kwargs, lambda tensor: library.ndarray(tensor.fake))
        self.fix_integers()
        self.refuse_integers()
        expected, samples = self.ask()
        recording = _Recording(self.t)
        with self.t.overrides.at(2):
            before = function_override_state()
            set_function_override_state(TorchFunctionState.ENABLED)
            try:
                with recording:
                    found = self.called(given, named)
            except (Unsupported, Raised, RecursionError):
                raise
            except Exception as error:
                first = str(error).partition("\n")[0]
                raise self.refused(f"torch's library has no answer: {type(error).__name__}: {first}") from error
            finally:
                set_function_override_state(before)
        if isinstance(found, (torch.SymBool, torch.SymInt, torch.SymFloat)):
            return self.number(recording.numbers.get(id(found)), type(expected))
        return self.result(found, expected, samples)

    def called(self, given: list, named: dict[str, Any]) -> Any:
        """What torch's library gives; of lists of arrays as of arrays, where it would read their numbers."""
        try:
            return self.function(*given, **named)
        except NotImplementedError:
            if not any(isinstance(v, list) for v in given):
                raise
        return self.function(*(array(v) if isinstance(v, list) and _holds_array(v) else v for v in given), **named)

    def number(self, made: Value | None, kind: type) -> Value:
        """A number of Python's that data give."""
        if made is None or made.type() is not kind:
            raise self.refused("torch's library gives what it computes of a number that depends on data")
        return made

    def assume_errors(self) -> None:
        """Numpy must not be told to raise where it warns."""
        if any(action in ("raise", "call") for action in numpy.geterr().values()):
            raise self.refused("numpy is told to raise on errors of floats")
        module = self.t.wrap_known(numpy).source
        assert module is not None
        self.t.guards.take("CALL", module, (lookups.float_errors, lookups.float_errors(numpy)))

    def integers(self) -> list[Symbolic]:
        """Ints among the arguments that change from call to call."""
        values = [*self.args, *self.kwargs.values()]
        values += [v.realize() for held in values if isinstance(held, (List, Tuple)) for v in held.items]
        return [v for v in values if isinstance(v, Symbolic) and v.type() is int and v.is_known()]

    def fix_integers(self) -> None:
        """Assume ints to be what they are beside numbers that do not hold all of them, where numpy raises or rounds
        first, and where torch's library makes an index of them that it reads."""
        taken = getattr(self.original, "__name__", "") == "take"
        if taken or not all(v.fake.dtype in _HOLD_INTEGERS for v in self.tensors.values()):
            for number in self.integers():
                number.fixed()

    def refuse_integers(self) -> None:
        """Refuse what integers may be that numpy and torch part at: zero, negative exponents, far shifts."""
        floats = any(v.fake.dtype.is_floating_point or v.fake.dtype.is_complex for v in self.tensors.values())
        name = getattr(self.original, "__name__", "").strip("_").removeprefix("i")
        if floats or name not in _PART_AT_INTEGERS or len(self.args) < 2:
            return
        second = self.args[1]
        if isinstance(second, Constant) and isinstance(second.value, int) and 0 < second.value < 8:
            return
        raise self.refused("integers that it divides by, raises to or shifts by may be any")

    def refused(self, reason: str) -> Unsupported:
        return Unsupported(f"numpy.{self.name} as tensor code: {reason}")

    # Arguments.

    def objects(self, args: list[Value], kwargs: dict[str, Value], array: Callable[[Tensor], Any]) -> tuple[list, dict]:
        """The arguments as objects, arrays as ``array`` makes them."""
        self.arrays.clear()
        return self.each(args, array), {k: self.object(v, array) for k, v in kwargs.items()}

    def object(self, value: Value, array: Callable[[Tensor], Any]) -> Any:
        value = value.realize()
        if isinstance(value, Array) or is_numpy_scalar(value):
            tensor = self.tensor(value)
            self.arrays.append((value, tensor))
            return array(tensor)
        if isinstance(value, Constant) and isinstance(value.value, numpy.dtype):
            return value.value.name
        if isinstance(value, Known) and isinstance(value.object, type) and value.object in _DTYPES:
            return numpy.dtype(value.object).name
        if isinstance(value, Symbolic):
            return value.number
        if isinstance(value, (List, Tuple)):
            items = self.each(value.items, array)
            return items if value.kind is list else tuple(items)
        if isinstance(value, Slice):
            return slice(*self.each(value.parts, array))
        if isinstance(value, Tensor):
            raise self.refused(f"{value.describe()} among its arguments")
        return self.t.constant_of(value)

    def each(self, values: Iterable[Value], array: Callable[[Tensor], Any]) -> list:
        return [self.object(v, array) for v in values]

    def tensor(self, value: Value) -> Tensor:
        """The tensor in the memory of an array, or of the number of a scalar."""
        if id(value) not in self.tensors:
            made = (
                value.tensor(self.t, copied=True)
                if isinstance(value, Array)
                else self.t.call(self.t.wrap_known(torch.tensor), [value], {})
            ).realize()
            assert isinstance(made, Tensor)
            self.tensors[id(value)] = made
        return self.tensors[id(value)]

    # What numpy makes of it.

    def ask(self) -> tuple[Any, list[numpy.ndarray]]:
        """What numpy gives for arrays like these, and the arrays; torch's library must give the same."""
        large = sum(map(_elements, self.tensors.values())) > _MOST_ELEMENTS
        failure = ""
        for small, most in ((True, 11), (False, 11), (True, 2), (False, 2)):
            if large and not small:
                continue
            try:
                answer = self.asked(_Samples(small, most, matrices=_home(self.original) == "numpy.linalg"))
                if small and not large and _says_nothing(*answer):
                    continue
                self.ask_of_nan(small)
                return answer
            except Unsupported:
                raise
            except Exception as error:
                failure = f"{type(error).__name__}: {error}"
        raise self.refused(f"numpy refuses arrays like these: {failure}")

    def ask_of_nan(self, small: bool) -> None:
        """Refuse a function of which torch's library takes nan and infinity for something else."""
        sums = self.original in (operator.matmul, numpy.matmul, numpy.dot, numpy.einsum, numpy.inner, numpy.tensordot)
        if sums or _home(self.original) in ("numpy.linalg", "numpy.fft"):
            return
        with contextlib.suppress(Unanswered):
            try:
                self.asked(_Samples(small, 11, unusual=True))
            except Unsupported:
                raise
            except Exception as error:
                raise Unanswered from error

    def asked(self, samples: _Samples) -> tuple[Any, list[numpy.ndarray]]:
        """What numpy gives for samples.  Raises what it raises, and ``Unsupported`` for another answer of torch's."""
        library = _library()[0]
        if samples.small and any(_symbols(a) for a in (*self.args, *self.kwargs.values())):
            raise ValueError("sizes among the arguments")
        with (
            DisableTorchFunction(),
            no_dispatch(),
            torch.no_grad(),
            warnings.catch_warnings(),
            numpy.errstate(all="ignore"),
        ):
            warnings.simplefilter("ignore")
            given, named = map(_plain, self.objects(self.args, self.kwargs, samples.of))
            others = [torch.from_numpy(made.copy()) for made in samples.made]
            mine = {id(s): library.ndarray(o) for s, o in zip(samples.made, others, strict=True)}
            also, also_named = _exchanged(given, mine), _exchanged(named, mine)
            known = zip(self.arrays, samples.made, strict=True)
            theirs = {id(s): s if v.type() is numpy.ndarray else s[()] for (v, _), s in known}
            expected = self.original(*_exchanged(given, theirs), **_exchanged(named, theirs))
            try:
                found = self.function(*also, **also_named)
            except Exception as error:
                if samples.unusual:
                    raise
                raise self.refused(f"torch's library fails: {type(error).__name__}: {error}") from error
            self.compare(expected, found)
            for made, other in zip(samples.made, others, strict=True):
                if not _equal(made, other.numpy()):
                    raise self.refused("torch's library changes its arguments in another way")
        return expected, samples.made

    def compare(self, expected: Any, found: Any) -> None:
        """Refuse a result of torch's library that is not numpy's."""
        if isinstance(expected, (tuple, list)):
            if not isinstance(found, (tuple, list)) or len(found) != len(expected):
                raise self.refused("torch's library gives another number of results")
            for theirs, ours in zip(expected, found, strict=True):
                self.compare(theirs, ours)
            return
        if hasattr(found, "tensor"):
            found = found.tensor.numpy() if not found.tensor.is_conj() else found.tensor.resolve_conj().numpy()
        if isinstance(expected, (numpy.ndarray, numpy.generic)):
            if isinstance(found, numpy.ndarray) and _is_wider(found.dtype, expected.dtype):
                found = found.astype(expected.dtype)
            if not isinstance(found, (numpy.ndarray, numpy.generic)) or found.dtype != expected.dtype:
                raise self.refused(f"torch's library gives {getattr(found, 'dtype', type(found).__name__)}, "
                                   f"numpy {expected.dtype}")  # fmt: skip
            if not _equal(expected, found):
                raise self.refused("torch's library gives other numbers")
        elif type(expected) is not type(found) or expected != found:
            raise self.refused("torch's library gives something else")

    # Results.

    def result(self, found: Any, expected: Any, samples: list[numpy.ndarray]) -> Value:
        """The value of what torch's library gave, as the kind of object that numpy gives."""
        if isinstance(expected, (tuple, list)):
            items = [self.result(f, e, samples) for f, e in zip(found, expected, strict=True)]
            return self.t.new_list(items) if type(expected) is list else self.t.new_tuple(items)
        if not isinstance(expected, (numpy.ndarray, numpy.generic)):
            return Constant(found)
        for number, made in enumerate(samples):
            if made is expected:
                return self.arrays[number][0]
        return self.array(self.of_dtype(self.t.recorder.by_fake[id(found.tensor)], expected.dtype), expected, samples)

    def array(self, tensor: Any, expected: Any, samples: list[numpy.ndarray]) -> Value:
        """A new array or scalar, in memory of its own or that of an argument, as numpy's is."""
        shared = isinstance(expected, numpy.ndarray) and any(_is_view(expected, s) for s in samples)
        memory = tensor.fake.untyped_storage()._cdata
        sharing = any(held.fake.untyped_storage()._cdata == memory for _, held in self.arrays)
        if sharing and not shared:
            tensor = self.t.recorder.call_method("clone", [tensor], {})
        elif isinstance(expected, numpy.ndarray) and not shared:
            tensor = self.laid_out(tensor, expected)
        return self.made(tensor, type(expected), shared and not sharing)

    def laid_out(self, tensor: Any, expected: numpy.ndarray) -> Any:
        """A new tensor with its dimensions in memory in the order of numpy's array, where that leaves no gaps."""
        order = sorted(range(expected.ndim), key=lambda n: -expected.strides[n])
        if not expected.transpose(order).flags.c_contiguous:
            return tensor
        call = self.t.recorder.call_method
        moved = order != sorted(order)
        if moved:
            tensor = call("permute", [tensor, *map(Constant, order)], {})
        tensor = call("contiguous", [tensor], {})
        if not _has_plain_strides(tensor.fake):
            tensor = call("clone", [tensor], {"memory_format": Constant(torch.contiguous_format)})
        return call("permute", [tensor, *map(Constant, numpy.argsort(order).tolist())], {}) if moved else tensor

    def of_dtype(self, tensor: Any, dtype: numpy.dtype) -> Any:
        """A result in numpy's dtype, and without what torch puts off (conjugates, negations)."""
        for lazy, resolve in (("is_conj", "resolve_conj"), ("is_neg", "resolve_neg")):
            if getattr(tensor.fake, lazy)():
                tensor = self.t.recorder.call_method(resolve, [tensor], {})
        with no_dispatch():
            wanted = torch.from_numpy(numpy.empty(0, dtype)).dtype
        if tensor.fake.dtype is wanted:
            return tensor
        return self.t.recorder.call_method("to", [tensor, Constant(wanted)], {})


def _holds_array(object: Any) -> bool:
    """Whether a list is of arrays, at some depth."""
    return any(map(_holds_array, object)) if isinstance(object, (list, tuple)) else hasattr(object, "tensor")


def _has_plain_strides(tensor: torch.Tensor) -> bool:
    """Whether the strides of a contiguous tensor are those of a new one, in dimensions of one element, too."""
    wanted = 1
    for size, stride in zip(reversed(tensor.shape), reversed(tensor.stride()), strict=True):
        if guard_or_false(size == 1) and isinstance(stride, int) and isinstance(wanted, int) and stride != wanted:
            return False
        wanted = wanted * size
    return True


def _says_nothing(answer: Any, samples: list[numpy.ndarray]) -> bool:
    """Whether an answer holds an array without elements, of samples that have some."""
    found = answer if isinstance(answer, (tuple, list)) else [answer]
    return all(s.size for s in samples) and any(isinstance(a, numpy.ndarray) and not a.size for a in found)


def _is_view(found: numpy.ndarray, sample: numpy.ndarray) -> bool:
    """Whether an array lies in the memory of another, one without elements too, whose addresses say nothing."""
    return numpy.may_share_memory(found, sample) or _memory(found) is _memory(sample)


def _memory(array: Any) -> Any:
    """What an array was made of in the end."""
    while getattr(array, "base", None) is not None:
        array = array.base
    return array


def _is_wider(found: numpy.dtype, expected: numpy.dtype) -> bool:
    """Whether torch's library computes floats in more digits than numpy: it converts them first."""
    return found.kind == expected.kind and found.kind in "fc" and found.itemsize > expected.itemsize


def _home(function: Any) -> str:
    return getattr(function, "__module__", None) or ""


_DTYPES = frozenset({bool, int, float, complex, *numpy.sctypeDict.values()})


def _elements(tensor: Tensor) -> int:
    total = 1
    for size in tensor.fake.shape:
        total *= _size_now(size)
    return total


def _size_now(size: Any) -> int:
    """The size that a symbol has now; of one that depends on data, one that it may have."""
    if not isinstance(size, torch.SymInt):
        return int(size)
    hint = size.node.hint
    return _OF_DATA if hint is None else int(hint)


def _symbols(value: Value) -> list[Value]:
    value = value.realize()
    if isinstance(value, Symbolic):
        return [value]
    return [s for v in value.items for s in _symbols(v)] if isinstance(value, (List, Tuple)) else []


def _plain(object: Any) -> Any:
    """Arguments with the sizes that they have now."""
    if isinstance(object, (list, tuple)):
        return type(object)(_plain(v) for v in object)
    if isinstance(object, dict):
        return {k: _plain(v) for k, v in object.items()}
    if isinstance(object, slice):
        return slice(_plain(object.start), _plain(object.stop), _plain(object.step))
    return _size_now(object) if isinstance(object, torch.SymInt) else object


def _exchanged(object: Any, arrays: dict[int, Any]) -> Any:
    """Arguments with other arrays in the places of some."""
    if isinstance(object, numpy.ndarray):
        return arrays[id(object)]
    if isinstance(object, (list, tuple)):
        return type(object)(_exchanged(v, arrays) for v in object)
    if isinstance(object, dict):
        return {k: _exchanged(v, arrays) for k, v in object.items()}
    return object


def _equal(expected: Any, found: Any) -> bool:
    if expected.shape != found.shape:
        return False
    if expected.dtype.kind in "fc":
        limit = 1e-2 if expected.dtype.itemsize == 2 else 1e-4 if expected.dtype.itemsize <= 8 else 1e-9
        return bool(numpy.allclose(found, expected, rtol=limit, atol=limit, equal_nan=True))
    return bool(numpy.array_equal(found, expected))

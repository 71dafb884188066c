"""Numpy: functions of constants are computed while capturing; arrays meet tensors through the memory they share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy
import torch

from turret.frames.sources import AttrSource, BoundSource, Source
from turret.plugins.capture.errors import Unsupported
from turret.plugins.capture.handlers.constructors import tensor_of_numbers, tensor_of_sequence
from turret.plugins.capture.interpreter.wrap import equal, identity, known
from turret.plugins.capture.registry import registry
from turret.plugins.capture.values.array_code import in_library
from turret.plugins.capture.values.arrays import (
    ArrayOfTensor,
    KnownArray,
    array_of_tensor,
    array_value,
    computed,
    scalar_of_call,
)
from turret.plugins.capture.values.base import Constant, Tracer, Value, is_numpy_scalar
from turret.plugins.capture.values.functions import Builtin, Known
from turret.plugins.capture.values.sequences import List, Tuple
from turret.plugins.capture.values.symbols import Symbolic
from turret.plugins.capture.values.tensors import Array, Tensor
from turret.torch_compat.dispatch import no_dispatch

_PURE = """
abs absolute add all allclose amax amin angle any append arange argmax argmin argsort argwhere around array
array_equal array_split asarray ascontiguousarray atleast_1d atleast_2d atleast_3d average bincount broadcast_to ceil
clip column_stack concatenate convolve corrcoef cov cross cumprod cumsum deg2rad degrees diag diff digitize divide dot
dsplit ediff1d einsum empty_like equal exp exp2 expand_dims expm1 eye fix flip fliplr flipud floor floor_divide full
full_like gcd geomspace gradient hamming hanning blackman histogram hsplit hstack hypot identity indices inner interp
isclose isfinite isin isinf isnan isscalar kron lcm linspace log log10 log1p log2 logical_and logical_not logical_or
logspace max maximum mean median meshgrid min minimum mod moveaxis multiply ndim negative nonzero ones ones_like outer
pad percentile power prod ptp quantile rad2deg radians ravel reciprocal remainder repeat reshape roll rot90 round
searchsorted setdiff1d shape sign sin sinc sinh size sort split sqrt square squeeze stack std subtract sum swapaxes
take tan tanh tensordot tile trace transpose tri tril triu trunc unique unravel_index vander var vsplit vstack where
zeros zeros_like cos cosh arccos arcsin arctan arctan2 result_type promote_types matmul rint issubdtype can_cast
"""
"""Functions of numpy that read their arguments and nothing else."""


def _scalar(t: Tracer, object: numpy.generic, source: Source) -> Value:
    """A number of numpy's: one that was seen to change is an input of the graph."""
    of_torchs = object.dtype.kind in "iuf" and object.itemsize <= 8  # no times, and no long doubles
    if not of_torchs or not t.policy.changing_scalar(source, float(object)):
        return equal(t, object, source)
    t.guards.take("TYPE", source, type(object))
    return scalar_of_call(t, object, source)


registry.pure_owners.extend((numpy.generic, numpy.dtype, numpy.finfo, numpy.iinfo))
registry.wrappers.update(dict.fromkeys((type(numpy.sin), type(numpy.mean)), known(Builtin)))
registry.wrappers[numpy.ndarray] = array_value
registry.base_wrappers.extend(((numpy.generic, _scalar), (numpy.dtype, equal)))
registry.makers[numpy.ndarray] = KnownArray


def _number(cls: type) -> Any:
    def handler(t: Tracer, /, *args: Value, **kwargs: Value) -> Value:
        value = args[0].realize() if len(args) == 1 and not kwargs else None
        if isinstance(value, ArrayOfTensor) and not value.is_foldable() and issubclass(cls, numpy.generic):
            return computed(t, cls.__name__, cls, lambda array: array.astype(cls.__name__), [value], {})
        return t.fold(cls, list(args), kwargs)

    return handler


def _limits(cls: type) -> Any:
    return lambda t, kind: t.wrap_known(cls(t.constant_of(kind)))


def _limits_from_before(t: Tracer, object: Any, source: Source) -> Value:
    """A ``finfo`` or ``iinfo``, of which there may be many of one dtype."""
    if not isinstance(source, BoundSource):
        t.guards.take("TYPE", source, type(object))
        t.guards.take("EQUALS", AttrSource(source, "dtype"), object.dtype)
    return Constant(object, source)


_class: Any
for _class in (numpy.finfo, numpy.iinfo):
    registry.classes[_class] = _limits(_class)
    registry.wrappers[_class] = _limits_from_before
for _class in (*numpy.sctypeDict.values(), numpy.dtype):
    registry.classes[_class] = _number(_class)
for _maker in (numpy.mgrid, numpy.ogrid, numpy.r_, numpy.c_):  # of slices they make arrays while capturing
    registry.wrappers[type(_maker)] = identity


_OF_FLOATS = """
absolute negative square sqrt exp exp2 expm1 log log2 log10 log1p sin cos tan sinh cosh tanh arcsin arccos arctan
floor ceil trunc sign
"""
_IN_TORCH: dict[Any, Any] = {getattr(numpy, name): getattr(torch, name) for name in _OF_FLOATS.split()}
"""Functions of numpy that give a tensor for a tensor of floats: what torch's function gives."""


def _of_tensor(t: Tracer, name: str, original: Any, tensor: Tensor) -> Value:
    """A function of numpy of a tensor alone, in whose memory it reads an array."""
    fake = tensor.fake
    array_of_tensor(t, tensor)
    if original in (numpy.array, numpy.asarray, numpy.ascontiguousarray) and fake.is_contiguous():
        held = t.recorder.call_method("clone", [tensor], {}) if original is numpy.array else tensor
        assert isinstance(held, Tensor)
        return array_of_tensor(t, held)
    function = _IN_TORCH.get(original)
    if function is None or fake.dtype not in (torch.float32, torch.float64) or not fake.is_contiguous():
        raise Unsupported(f"numpy.{name} of {tensor.describe()}")
    return t.recorder.call(function, [tensor], {})


def _folded(name: str, original: Any) -> Any:
    def handler(t: Tracer, /, *args: Value, **kwargs: Value) -> Value:
        if name.endswith("_like") and args and isinstance(shown := args[0].realize(), Tensor):
            args = (array_of_tensor(t, shown), *args[1:])
        first = args[0].realize() if len(args) == 1 and not kwargs else None
        if isinstance(first, Tensor):
            return _of_tensor(t, name, original, first)
        if (function := _as_tensor_code(original, args, kwargs)) is not None:
            return computed(t, name, original, function, list(args), kwargs)
        if "out" in kwargs or "where" in kwargs:
            raise Unsupported(f"numpy.{name} with out= or where=")
        return t.fold(original, list(args), kwargs)

    return handler


_MAKERS: dict[Any, tuple[type, ...]] = {
    **dict.fromkeys((numpy.arange, numpy.zeros, numpy.ones, numpy.eye, numpy.identity, numpy.tri), (int,)),
    **dict.fromkeys((numpy.full, numpy.linspace, numpy.logspace), (int, float, bool)),
    **dict.fromkeys((numpy.tile, numpy.repeat, numpy.roll, numpy.broadcast_to, numpy.pad), (int, Array)),
    numpy.indices: (int,),
}
"""Functions that make the arrays that torch's library makes, of sizes and of numbers or known arrays of these types."""
_PLACES_OF_DTYPES = {numpy.zeros: 1, numpy.ones: 1, numpy.full: 2, numpy.identity: 1}
"""Where some are told a dtype without its name."""
_DTYPES = frozenset(["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64"])


def _makes_of_sizes(original: Any, args: tuple[Value, ...], kwargs: dict[str, Value]) -> bool:
    """Whether a call makes an array of numbers that change; other calls are computed while capturing."""
    types = _MAKERS.get(original)
    if types is None:
        return False
    named = dict(kwargs)
    if (place := _PLACES_OF_DTYPES.get(original, len(args))) < len(args):
        args, named["dtype"] = (*args[:place], *args[place + 1 :]), args[place]
    dtype = named.pop("dtype", Constant("bool")).realize()
    parts = [p for v in (*args, *named.values()) for p in _parts(v)]
    if not any(isinstance(p, Symbolic) for p in parts):
        return False
    if not isinstance(dtype, (Constant, Known)) or not _is_among(_dtype_of(dtype), _DTYPES):
        return False
    return all(_is_part(p, types) for p in parts)


def _is_part(part: Value, types: tuple[type, ...]) -> bool:
    if isinstance(part, Array):
        return Array in types
    return part.type() in types and (isinstance(part, Symbolic) or part.is_constant())


def _dtype_of(value: Constant | Known) -> Any:
    return value.value if isinstance(value, Constant) else value.object


def _is_among(dtype: Any, names: frozenset[str]) -> bool:
    try:
        return dtype is not None and numpy.dtype(dtype).name in names
    except TypeError:
        return False


def _parts(value: Value) -> list[Value]:
    """An argument, or what is in one that is a shape."""
    held = value.realize()
    return [p for v in held.items for p in _parts(v)] if isinstance(held, Tuple | List) else [held]


def _as_tensor_code(original: Any, args: tuple[Value, ...], kwargs: dict[str, Value]) -> Any | None:
    """The function of torch's library for a call with arrays that the graph computes; None where it has none."""
    arrays = [a for v in (*args, *kwargs.values()) for a in _arrays(v)]
    if all(a.is_foldable() for a in arrays) and not _makes_of_sizes(original, args, kwargs):
        return None
    return in_library(original)


def _arrays(value: Value) -> Iterator[ArrayOfTensor]:
    value = value.realize()
    if isinstance(value, ArrayOfTensor):
        yield value
    elif isinstance(value, (List, Tuple)):
        for item in value.items:
            yield from _arrays(item)


def _of_arrays(name: str, original: Any) -> Any:
    """A function that is not computed while capturing: its arguments change, or it is of no constants."""

    def handler(t: Tracer, /, *args: Value, **kwargs: Value) -> Value:
        function = _as_tensor_code(original, args, kwargs)
        if function is None:
            raise Unsupported(f"a call of {name}")
        return computed(t, name.removeprefix("numpy."), original, function, list(args), kwargs)

    return handler


for _name in _PURE.split():
    _original = getattr(numpy, _name, None)
    if _original is not None and not isinstance(_original, type):
        registry.functions[_original] = _folded(_name, _original)
for _module in (numpy, numpy.linalg, numpy.fft):
    for _name, _original in vars(_module).items():
        if isinstance(_original, (numpy.ufunc, type(numpy.mean))) and _original not in registry.functions:
            registry.functions[_original] = _of_arrays(f"{_module.__name__}.{_name}", _original)


def _of_shape(original: Any, name: str) -> Any:
    """``numpy.shape`` and its kin, which arrays and tensors have an attribute for."""
    folds = registry.functions[original]

    def handler(t: Tracer, /, *args: Value, **kwargs: Value) -> Value:
        shown = args[0].realize() if args and not kwargs else None
        if isinstance(shown, ArrayOfTensor) and name == "size" and len(args) == 2 and not t.is_none(args[1]):
            return t.get_item(shown.get_attr(t, "shape"), args[1])
        if len(args) == 1 and (isinstance(shown, ArrayOfTensor) or (isinstance(shown, Tensor) and name != "size")):
            return shown.get_attr(t, name)
        return folds(t, *args, **kwargs)

    return handler


for _name in ("shape", "ndim", "size"):
    registry.functions[getattr(numpy, _name)] = _of_shape(getattr(numpy, _name), _name)


@registry.function(torch.from_numpy)
def from_numpy(t: Tracer, array: Value) -> Value:
    """A tensor object of its own each time, which begins where the array does, wherever that is in memory."""
    made, array = _tensor_of(t, array), array.realize()
    if isinstance(array, ArrayOfTensor) and array.source is None:
        made = t.recorder.call_method("detach", [made], {})
        assert isinstance(made, Tensor)
        made.array = array
        t.tensors_of_arrays.append(made)
    return made


def _tensor_of(t: Tracer, array: Value) -> Value:
    array = array.realize()
    if not isinstance(array, (KnownArray, ArrayOfTensor)):
        raise Unsupported(f"a tensor of {array.describe()}")
    return array.tensor(t, copied=False)


def _of_array(original: Any, copies: bool, name: str = "data") -> Any:
    """``torch.tensor`` and ``torch.as_tensor``: of an array, by its memory; of a numpy number, in its dtype."""

    def handler(t: Tracer, /, *args: Value, **kwargs: Value) -> Value:
        if not args and name not in kwargs:
            return t.recorder.call(original, [], kwargs)
        data = (args[0] if args else kwargs[name]).realize()
        rest = {k: v for k, v in kwargs.items() if args or k != name}
        if isinstance(data, (KnownArray, ArrayOfTensor)) and len(args) <= 1:
            return _converted(t, data.tensor(t, True) if copies else from_numpy(t, data), rest, copies)
        if isinstance(data, (List, Tuple)) and len(args) <= 1:
            return tensor_of_sequence(t, original, data, rest)
        if is_numpy_scalar(data):
            with no_dispatch():
                rest.setdefault("dtype", Constant(torch.from_numpy(numpy.array(data.value)).dtype))
        if isinstance(data, Symbolic) and len(args) <= 1:
            return tensor_of_numbers(t, original, data, rest)
        return t.recorder.call(original, [data, *args[1:]], rest)

    return handler


def _converted(t: Tracer, tensor: Value, options: dict[str, Value], copies: bool) -> Value:
    options = {k: v for k, v in options.items() if not t.is_none(v)}
    wanted = options.pop("requires_grad", None)
    if wanted is not None and t.truth(wanted):
        raise Unsupported("a tensor made of a numpy array that requires gradients")
    if set(options) - {"dtype", "device"}:
        raise Unsupported(f"a tensor made of a numpy array with {sorted(options)}")
    if copies:
        tensor = t.recorder.call_method("clone", [tensor], {})
    return t.recorder.call_method("to", [tensor], options) if options else tensor


registry.functions[torch.tensor] = _of_array(torch.tensor, copies=True)
registry.functions[torch.as_tensor] = _of_array(torch.as_tensor, copies=False)
registry.functions[torch.asarray] = _of_array(torch.asarray, copies=False, name="obj")

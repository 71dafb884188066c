"""Legacy constructors of tensors (``torch.Tensor(2, 3)``, ``torch.LongTensor([1])``, ``x.new(...)``) and scripted
functions, which stand for what they were made of."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import attrs
import numpy
import torch

from turret.hooks.devices import HOST
from turret.plugins.capture.errors import Unsupported
from turret.plugins.capture.facts.known_data import Operands
from turret.plugins.capture.interpreter.wrap import known
from turret.plugins.capture.record.overflow import LEAST, MOST, fits_64_bits
from turret.plugins.capture.registry import registry
from turret.plugins.capture.values.arrays import KnownArray, numpy_dtype
from turret.plugins.capture.values.base import Constant, Rebuilder, Tracer, Value, is_numpy_scalar
from turret.plugins.capture.values.functions import Known
from turret.plugins.capture.values.sequences import List, Range, Size, Tuple, t_is_int
from turret.plugins.capture.values.symbols import Symbolic
from turret.plugins.capture.values.tensors import Array, Tensor, device_of_class


@registry.tensor_method("new")
def new(t: Tracer, /, like: Tensor, *args: Value, **kwargs: Value) -> Value:
    """``Tensor.new``: as the constructor of the class that tensors of that dtype and device once had."""
    return legacy_tensor(t, like.fake.dtype, like.fake.device, list(args), kwargs)


def legacy_tensor(t: Tracer, dtype: torch.dtype, device: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Sizes make an uninitialised tensor, nested sequences one of these numbers, a tensor an alias of it."""
    values = [a.realize() for a in args]
    if "device" in kwargs:
        device = torch.device(t.constant_of(kwargs["device"]))
    if set(kwargs) - {"device"}:
        raise Unsupported(f"a legacy constructor of tensors with {', '.join(kwargs)}")
    options: dict[str, Value] = {"dtype": Constant(dtype), "device": Constant(device)}
    found = _legacy_of(t, values[0], options) if len(values) == 1 else None
    if found is not None:
        return found
    if all(isinstance(v, (Constant, Symbolic)) and t_is_int(v) for v in values):
        return t.recorder.call(torch.empty, [Tuple(list(values)) if values else Tuple([Constant(0)])], options)
    raise Unsupported(f"a legacy constructor of tensors of {', '.join(v.describe() for v in values)}")


def _legacy_of(t: Tracer, value: Value, options: dict[str, Value]) -> Value | None:
    """What a legacy constructor makes of one argument; None of a number, which is a size."""
    dtype = t.constant_of(options["dtype"])
    if isinstance(value, Size):
        return t.recorder.call(torch.empty, [value], options)
    if isinstance(value, (List, Tuple, Range)):
        return tensor_of_sequence(t, torch.tensor, List(value.unpack(t)), options)
    if isinstance(value, KnownArray):
        made = value.tensor(t, copied=value.array.dtype != numpy_dtype(dtype))
        return t.recorder.call_method("to", [made], options)
    if isinstance(value, Tensor):
        if value.fake.dtype != dtype:
            raise Unsupported(f"a legacy constructor of {dtype} tensors of a tensor of {value.fake.dtype}")
        return t.recorder.call(torch.ops.aten.alias.default, [value], {})
    return None


def _of_class(kind: Any) -> Any:
    device = device_of_class(kind)
    return lambda t, /, *args, **kwargs: legacy_tensor(t, kind.dtype, device, list(args), kwargs)


def _plain(t: Tracer, /, *args: Value, **kwargs: Value) -> Value:
    """``torch.Tensor(...)``; of a tensor, an alias whatever its type."""
    first = args[0].realize() if len(args) == 1 else None
    dtype = first.fake.dtype if isinstance(first, Tensor) else torch.get_default_dtype()
    return legacy_tensor(t, dtype, torch.get_default_device(), list(args), kwargs)


def _variable(
    t: Tracer, data: Value | None = None, requires_grad: Value | None = None, volatile: Value | None = None
) -> Value:
    """``torch.autograd.Variable(x)``: the tensor without its history."""
    if data is None:
        return t.recorder.call(torch.empty, [Constant(0)], {})
    if not isinstance(data.realize(), Tensor):
        raise Unsupported(f"torch.autograd.Variable of {data.realize().describe()}")
    made = t.recorder.call_method("detach", [data], {})
    if requires_grad is not None and t.truth(requires_grad):
        return t.recorder.call_method("requires_grad_", [made], {})
    return made


def _leaves(value: Value) -> Iterator[Value]:
    value = value.realize()
    if isinstance(value, (List, Tuple)):
        for item in value.items:
            yield from _leaves(item)
    else:
        yield value


def _is_numpys(value: Value) -> bool:
    """Whether a value is a scalar of numpy's, one that changes included."""
    return is_numpy_scalar(value) or (isinstance(value, Array) and issubclass(value.type(), numpy.generic))


def _without_scalars(t: Tracer, data: Value) -> Value:
    """Nested sequences with a tensor of one element in the place of each scalar of numpy's that changes."""
    data = data.realize()
    if isinstance(data, (List, Tuple)):
        return List([_without_scalars(t, v) for v in data.items])
    return data.tensor(t, copied=False) if isinstance(data, Array) and _is_numpys(data) else data


def tensor_of_sequence(t: Tracer, function: Any, data: Value, options: dict[str, Value]) -> Value:
    """``torch.tensor`` and ``torch.as_tensor`` of nested sequences.

    Scalars of numpy become plain numbers in a graph, though it is they that decide the type of the tensor; those that
    change are operands.
    """
    leaves = list(_leaves(data))
    if "dtype" not in options and any(map(_is_numpys, leaves)):
        if not all(isinstance(v, Constant) or _is_numpys(v) for v in leaves):
            raise Unsupported("a tensor of numpy's scalars and others that are no constants")
        kin = [v.value if isinstance(v, Constant) else v.type()(1) for v in leaves]
        options = options | {"dtype": Constant(torch.tensor(kin).dtype)}
    if isinstance(data.realize(), (List, Tuple)):
        data = _without_scalars(t, data)
    return tensor_of_numbers(t, function, data, options)


def tensor_of_numbers(t: Tracer, function: Any, data: Value, options: dict[str, Value]) -> Value:
    """``torch.tensor`` and its kin of numbers: symbolic ones are operands of the graph, and so are tensors of one.

    The constructors themselves are functions of Python that would read the numbers, and keep what they were.
    """
    data = data.realize()
    leaves = list(_leaves(data))
    if isinstance(data, Tensor) or not any(map(_is_operand, leaves)):
        return t.recorder.call(function, [data], options)
    options = {k: v for k, v in options.items() if not t.is_none(v)}
    dtype = t.constant_of(options["dtype"]) if "dtype" in options else _dtype_of(leaves)
    shape = _shape_of(data)
    if shape is None or not _takes_symbols(leaves, dtype) or set(options) - {"dtype", "device", "requires_grad"}:
        return t.recorder.call(function, [_fixed(data)], options)
    whole = _of_symbols(t, leaves, shape, dtype, {k: v for k, v in options.items() if k == "device"})
    if "requires_grad" in options and t.truth(options["requires_grad"]):
        return t.recorder.call_method("requires_grad_", [whole], {})
    assert isinstance(whole, Tensor)
    if whole.fake.device.type == HOST.type and not any(map(_is_single, leaves)):
        numbers = t.recorder.argument(data)[1]
        t.recorder.known.hold(whole.fake, Operands(torch.tensor, (numbers,), {"dtype": dtype}))
    return whole


def _of_symbols(t: Tracer, leaves: list[Value], shape: tuple[int, ...], dtype: Any, device: dict[str, Value]) -> Value:
    """A tensor of a shape, of numbers that are operands of the graph one by one."""
    made = [_element(t, v, dtype, device) for v in leaves]
    whole = t.recorder.call(torch.stack, [List(made)], {}) if shape else made[0]
    if len(shape) > 1:
        whole = t.recorder.call_method("view", [whole, Tuple([Constant(n) for n in shape])], {})
    return whole


@registry.tensor_method("new_tensor")
def new_tensor(t: Tracer, /, like: Tensor, data: Value, **options: Value) -> Value:
    """``Tensor.new_tensor``: of the dtype and the device of ``like``, where no others are asked for."""
    if isinstance(data.realize(), Tensor) or not any(map(_is_operand, _leaves(data))):
        return t.recorder.call_method("new_tensor", [like, data], options)
    given = {k: v for k, v in options.items() if not t.is_none(v)}
    own = {"dtype": Constant(like.fake.dtype), "device": Constant(like.fake.device)}
    return tensor_of_numbers(t, torch.tensor, data, own | given)


_MOST = 64
"""Numbers of a tensor that are operands of the graph one by one, if any of them is symbolic."""


def _element(t: Tracer, number: Value, dtype: torch.dtype, device: dict[str, Value]) -> Value:
    """One number as a tensor.  The constructors convert ints to floats as C does, by way of a double."""
    if isinstance(number, Tensor):
        return _read(t, number, dtype, device)
    if number.type() is int and dtype.is_floating_point and dtype is not torch.float64:
        exact = t.recorder.call(torch.scalar_tensor, [number], device | {"dtype": Constant(torch.float64)})
        return t.recorder.call_method("to", [exact, Constant(dtype)], {})
    return t.recorder.call(torch.scalar_tensor, [number], device | {"dtype": Constant(dtype)})


def _read(t: Tracer, number: Tensor, dtype: torch.dtype, device: dict[str, Value]) -> Value:
    """The one element of a tensor as a tensor without dimensions, of a dtype that holds it, on the asked device."""
    alone = t.recorder.call_method("view", [t.recorder.call_method("detach", [number], {}), Tuple([])], {})
    place = {"device": device.get("device", Constant(torch.get_default_device()))}
    if dtype.is_floating_point and not number.fake.dtype.is_floating_point:
        alone = t.recorder.call_method("to", [alone, Constant(torch.float64)], {})
    return t.recorder.call_method("to", [alone], place | {"dtype": Constant(dtype)})


def _dtype_of(leaves: list[Value]) -> torch.dtype | None:
    """The dtype that ``torch.tensor`` chooses for numbers and tensors of one; None where some are neither."""
    usual = torch.get_default_dtype()
    dtypes = {bool: torch.bool, int: torch.int64, float: usual, complex: usual.to_complex()}
    found = {v.fake.dtype if isinstance(v, Tensor) else dtypes.get(v.type()) for v in leaves}
    return None if None in found else functools.reduce(torch.promote_types, found)  # type: ignore[arg-type]


def _takes_symbols(leaves: list[Value], dtype: torch.dtype | None) -> bool:
    """Whether each number may be an operand of the graph.

    Not where the constructor would refuse some of its values (a dtype of few bits), nor for bools, which are two.
    """
    numbers = [v for v in leaves if not _is_single(v)]
    if dtype is None or not all(_holds(dtype, v.fake.dtype) for v in leaves if isinstance(v, Tensor)):
        return False
    if numbers and (dtype.is_complex or len(leaves) > _MOST):
        return False
    return all(_is_taken(v, dtype) for v in numbers)


def _is_taken(number: Value, dtype: torch.dtype) -> bool:
    if not isinstance(number, (Constant, Symbolic)) or number.type() not in (bool, int, float):
        return False
    if isinstance(number, Symbolic) and number.type() is bool:
        return False
    if number.type() is int and not _fits(number):
        return False
    return dtype.is_floating_point or (dtype is torch.int64 and number.type() is not float)


def _fits(number: Value) -> bool:
    """Whether 64 bits hold an int now, or it is one that depends on data, which they do."""
    if isinstance(number, Symbolic):
        return not number.is_known() or fits_64_bits(number.number)
    return LEAST <= number.constant() <= MOST


def _shape_of(data: Value) -> tuple[int, ...] | None:
    """The shape of nested sequences; None for one that is not regular, or empty."""
    data = data.realize()
    if not isinstance(data, (List, Tuple)):
        return ()
    inner = {_shape_of(v) for v in data.items}
    if len(inner) != 1 or None in inner:
        return None
    return (len(data.items), *inner.pop())  # type: ignore[misc]


def _fixed(data: Value) -> Value:
    """Nested sequences with symbolic numbers assumed to be what they are."""
    data = data.realize()
    if isinstance(data, Symbolic):
        return Constant(data.fixed())
    return List([_fixed(v) for v in data.items]) if isinstance(data, (List, Tuple)) else data


def _holds(dtype: torch.dtype, given: torch.dtype) -> bool:
    """Whether the constructors put any element of a tensor of one dtype into a tensor of another."""
    if dtype == given:
        return True
    if dtype.is_floating_point:
        return not given.is_complex
    return dtype is torch.int64 and not (given.is_floating_point or given.is_complex or given is torch.uint64)


def _is_operand(value: Value) -> bool:
    return isinstance(value, Symbolic) or _is_single(value)


def _is_single(value: Value) -> bool:
    """Whether a value is a tensor of one element, whatever its dimensions, which the constructors take for a number."""
    return isinstance(value, Tensor) and all(isinstance(n, int) and n == 1 for n in value.fake.shape)


class NewParameter(Tensor):
    """A parameter made in compiled code: a leaf of the graph's own, or an input where others see it (``leaves.py``)."""

    def type(self) -> type:
        return torch.nn.Parameter

    def rebuild(self, r: Rebuilder) -> str:
        if not self.fake.requires_grad:
            name = r.assign(f"{r.constant(torch.nn.Parameter)}({r.output(self)}, False)")
        elif not self.fake.is_leaf:
            raise Unsupported("a parameter that was made and changed in compiled code and leaves it")
        else:
            r.parameters.add(self.node)
            name = r.output(self)
        r.remember(self, name)
        for attribute, value in self.stores.items():
            r.line(f"{name}.{attribute} = {r.load(value)}")
        return name


def _parameter(t: Tracer, data: Value, requires_grad: Value | None = None) -> Value:
    """``nn.Parameter(x)``: the tensor without its history, as a leaf."""
    if not isinstance(data.realize(), Tensor):
        raise Unsupported(f"nn.Parameter of {data.realize().describe()}")
    wanted = requires_grad is None or t.truth(requires_grad)
    leaf = t.recorder.call_method("detach", [data], {})
    made = t.recorder.call_method("requires_grad_", [leaf, Constant(wanted)], {})
    assert isinstance(made, Tensor)
    value = t.recorder.by_fake[id(made.fake)] = NewParameter(made.node, made.fake)
    return value


def _buffer(t: Tracer, data: Value | None = None, *, persistent: Value | None = None) -> Value:
    """``nn.Buffer(x)``: the tensor without its history, with two marks on it."""
    data = t.recorder.call(torch.empty, [Constant(0)], {}) if data is None else data.realize()
    if not isinstance(data, Tensor):
        raise Unsupported(f"nn.Buffer of {data.describe()}")
    leaf = t.recorder.call_method("detach", [data], {})
    made = t.recorder.call_method("requires_grad_", [leaf, Constant(data.fake.requires_grad)], {})
    made.set_attr(t, "persistent", Constant(True) if persistent is None else persistent)
    made.set_attr(t, "_is_buffer", Constant(True))
    return made


LEGACY_CLASSES: dict[Any, Any] = {
    torch.Tensor: _plain,
    torch.autograd.Variable: _variable,
    torch.nn.Parameter: _parameter,
    torch.nn.Buffer: _buffer,
    **{
        kind: _of_class(kind)
        for kind in vars(torch).values()
        if isinstance(kind, type(torch.LongTensor)) and kind.layout is torch.strided and not kind.is_xpu
    },
}
"""Handlers of calls of these classes."""


@attrs.define(eq=False)
class Traced:
    """The function of a node that calls a function of TorchScript."""

    function: Any
    __name__: str = "traced"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


class ScriptFunction(Known):
    """A function of TorchScript.  One made by ``torch.jit.script`` means what its Python does; another is opaque."""

    def call(self, t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        original = vars(self.object).get("_torchdynamo_inline")
        if original is None or vars(self.object).get("__name__") != "ScriptFunction":
            return t.recorder.call(Traced(self.object), args, kwargs)
        return t.call(t.wrap_known(original), args, kwargs)


registry.wrappers[torch.jit.ScriptFunction] = known(ScriptFunction)

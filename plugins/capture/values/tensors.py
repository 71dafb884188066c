"""Tensors and symbolic numbers: what becomes nodes of the graph."""

from __future__ import annotations

import functools
import math
import numbers
import operator
import types
import warnings
from collections.abc import Callable
from typing import Any, TypeGuard

import numpy
import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import guard_or_true

from turret.frames.class_members import find_in_mro
from turret.frames.sources import AttrSource, DictSource, Source
from turret.graph.ops.host_math import element
from turret.hooks.devices import HOST
from turret.plugins.capture.errors import NOWHERE, DecidedByData, Raised, Unsupported
from turret.plugins.capture.facts.known_data import number_of
from turret.plugins.capture.python import lookups
from turret.plugins.capture.registry import handled, registry
from turret.plugins.capture.values.base import (
    BINARY_NAMES,
    COMPARISONS,
    Answer,
    Constant,
    MethodOfValue,
    Rebuilder,
    Tracer,
    Value,
)
from turret.plugins.capture.values.batched_indices import is_batched_index, take
from turret.plugins.capture.values.classes import bind_attribute, look_up
from turret.plugins.capture.values.drawn_numbers import comes_out
from turret.plugins.capture.values.functions import Handler, Known
from turret.plugins.capture.values.gradient_functions import GradientFunction
from turret.plugins.capture.values.index_numbers import numbers_read
from turret.plugins.capture.values.iterators import ItemsIterator
from turret.plugins.capture.values.sequences import List, Sequence, Size, Slice, Tuple
from turret.plugins.capture.values.slice_writes import copy_into, has_unknown_bound
from turret.plugins.capture.values.symbols import Symbolic

KNOWN_ATTRIBUTES = frozenset(
    {
        "dtype", "device", "layout", "ndim", "requires_grad", "is_leaf", "is_cuda", "is_cpu", "is_mps", "is_xpu",
        "is_sparse", "is_sparse_csr", "is_quantized", "is_mkldnn", "is_nested", "is_meta", "is_vulkan", "is_xla",
        "is_ipu", "is_hpu", "is_maia", "is_mtia", "itemsize", "name", "names", "retains_grad", "output_nr",
    }
).intersection(dir(torch.Tensor))  # fmt: skip
GRAPH_ATTRIBUTES = frozenset({"T", "mT", "H", "mH", "real", "imag"})
BUILT_IN_ATTRIBUTES = KNOWN_ATTRIBUTES | GRAPH_ATTRIBUTES | {"shape", "data", "grad", "grad_fn", "nbytes"}

READS_DATA = {
    "item": "reads a tensor's value",
    "tolist": "reads a tensor's values",
    "numpy": "leaves torch for numpy",
    "__array__": "leaves torch for numpy",
    "__int__": "reads a tensor's value",
    "__float__": "reads a tensor's value",
    "__index__": "reads a tensor's value",
    "__bool__": "branches on a tensor's value",
    "is_nonzero": "branches on a tensor's value",
}
_NUMBERS: dict[str, Any] = {"item": True, "__int__": int, "__float__": float}
_MOST_READ = 1024
"""Elements of a tensor that ``tolist`` reads one by one."""
_COMPLEX = (torch.complex32, torch.complex64, torch.complex128)
NOT_IN_GRAPHS = frozenset(
    {
        "data_ptr", "storage", "untyped_storage", "share_memory_", "apply_", "map_", "new", "set_", "is_shared",
        "__reduce_ex__",
        "__deepcopy__", "to_sparse", "__dlpack__", "record_stream", "const_data_ptr", "storage_type",
        "_typed_storage", "module_load", "pin_memory", "is_set_to", "rename_", "rename", "align_to", "__reduce__",
        "__setstate__",
    }
)  # fmt: skip
QUANTIZE = frozenset({"quantize_per_tensor", "quantize_per_tensor_dynamic", "quantize_per_channel"})
"""Functions whose fakes are no quantized tensors: they tell another dtype, and that they are not quantized."""
_LOOK_AT_MEMORY = frozenset(
    {"storage", "untyped_storage", "_typed_storage", "is_set_to", "__reduce_ex__", "__deepcopy__", "__reduce__"}
)
INPLACE = {
    operator.add: operator.iadd, operator.sub: operator.isub, operator.mul: operator.imul,
    operator.truediv: operator.itruediv, operator.floordiv: operator.ifloordiv, operator.mod: operator.imod,
    operator.pow: operator.ipow, operator.and_: operator.iand, operator.or_: operator.ior, operator.xor: operator.ixor,
    operator.lshift: operator.ilshift, operator.rshift: operator.irshift,
}  # fmt: skip
"""What writes to a tensor; ``@=`` makes another one."""


class Array(Value):
    """An array of numpy, as tensors meet it."""

    def tensor(self, t: Tracer, copied: bool) -> Value:
        """A tensor of the same numbers, or (not ``copied``) in the same memory."""
        raise NotImplementedError

    def place(self, t: Tracer) -> Value | None:
        """The integer that it is, as an index, where that is a random one; else None."""
        return None

    def as_number(self, t: Tracer) -> Value | None:
        """The number that a scalar is, as torch takes it for Python's; None for an array, and for a bool."""
        return None

    def unary(self, t: Tracer, operation: Callable) -> Value:
        """A unary operator."""
        return t.fold(operation, [self], {})


def _answered(special: str) -> Callable[[Callable], Callable]:
    """A method of ``Tensor`` that stands for a special method, which modes or other arguments may answer for."""

    def decorated(method: Callable) -> Callable:
        @functools.wraps(method)
        def either(self: Tensor, t: Tracer, *args: Value) -> Any:
            if t.overrides.applies((self, *args)):
                return t.overrides.method(self, special, list(args), {})
            return method(self, t, *args)

        return either

    return decorated


@functools.cache
def _is_computed(name: str) -> bool:
    """Whether tensors compute an attribute, so that modes for torch's functions see that it is asked for."""
    return isinstance(find_in_mro(torch.Tensor, name)[1], (types.GetSetDescriptorType, property)) and name[:2] != "__"


_OF_AUTOGRAD = frozenset({"requires_grad", "is_leaf", "grad_fn", "_grad_fn", "_base", "_version"})

_NOT_A_LEAF = "you can only change requires_grad flags of leaf variables."
_TO_DETACH = (
    " If you want to use a computed variable in a subgraph that doesn't require differentiation use "
    "var_no_grad = var.detach()."
)
"""What setting ``requires_grad`` raises, other than ``requires_grad_``, even where nothing would change."""


class Tensor(Value):
    """A tensor of the graph: its node and its fake value; ``real`` where it existed before the call."""

    def __init__(
        self, node: fx.Node, fake: torch.Tensor, source: Source | None = None, real: torch.Tensor | None = None
    ) -> None:
        self.node, self.fake, self.source, self.real = node, fake, source, real
        self.stores: dict[str, Value] = {}
        self.new_data: Tensor | None = None
        self.is_moved = False
        """Whether ``set_`` had it lie elsewhere: in the graph it is an alias of what lies there."""
        self.outer: Value | None = None
        """The tensor of a class of the program's that this one is the memory of, for which it stands in graphs."""
        self.array: Value | None = None
        """The array of numpy that it was made of (``torch.from_numpy``), whose first number is its memory's first."""

    def type(self) -> type:
        return type(self.real) if self.real is not None else torch.Tensor

    def key(self, t: Tracer) -> Any:
        t.identity_keys.note(self)
        return self

    def describe(self) -> str:
        name = str(self.source) if self.source is not None else self.node.name
        return f"tensor {name}"

    def get_attr(self, t: Tracer, name: str) -> Value:
        if name in self.stores:
            return self.stores[name]
        if t.overrides.sees_all() and _is_computed(name):
            return t.overrides.attribute(self, name)
        if name in BUILT_IN_ATTRIBUTES and (patched := self.patched(t, name)) is not None:
            return patched
        if name in _OF_AUTOGRAD and (under := t.recorder.gradient_transform()):
            raise Unsupported(f"Tensor.{name} under torch.func.{under}")  # which the fake tensor has not seen
        if (compute := _COMPUTED.get(name)) is not None:
            return compute(self, t)
        if (handler := registry.tensor_attributes.get(name)) is not None:
            return handler(t, self)
        if name in KNOWN_ATTRIBUTES:
            found = getattr(self.fake, name)
            return t.recorder.call(getattr, [self, Constant(name)], {}) if isinstance(found, torch.SymInt) else (
                t.wrap_known(found)
            )  # fmt: skip
        if name in GRAPH_ATTRIBUTES:
            return t.recorder.call(getattr, [self, Constant(name)], {})
        if name in ("grad_fn", "_grad_fn"):
            found = self.fake.grad_fn
            return Constant(None) if found is None else GradientFunction(self, found, t.call_stack.step)
        return self.own_attribute(t, name)

    def gradient(self, t: Tracer) -> Value:
        if self.real is None or self.source is None:
            return Constant(None)
        return t.wrap(self.real.grad, AttrSource(self.source, "grad"))

    def own_attribute(self, t: Tracer, name: str) -> Value:
        """An attribute that a program hung on the tensor, or a method."""
        if self.real is not None and self.source is not None and name in self.real.__dict__:
            return t.wrap(self.real.__dict__[name], AttrSource(self.source, name))
        patched = self.patched(t, name)
        if patched is not None:
            return patched
        owner, raw = look_up(t, self.type(), name)
        if owner is not None and not t.trusted(owner):
            return bind_attribute(t, self, owner, name, raw)
        if hasattr(torch.Tensor, name):
            if callable(getattr(torch.Tensor, name)):
                return MethodOfValue(self, name)
            if isinstance(raw, (str, int, type(None))):  # what the class says of itself
                return t.wrap_known(raw)
            raise Unsupported(f"attribute {name!r} of a tensor")
        if self.real is not None and self.source is not None:
            t.guards.take("NO_KEY", DictSource(self.source), name)
        raise t.raised(AttributeError, f"'{self.type().__name__}' object has no attribute {name!r}")

    def from_torch(self, t: Tracer, name: str, raw: Any) -> Value:
        """What ``super()`` finds in torch's class."""
        if callable(raw) and not isinstance(raw, type):
            return Handler(
                f"Tensor.{name}", lambda t, /, *args, **kwargs: self.call_torchs(t, name, list(args), kwargs)
            )
        raise Unsupported(f"super().{name} of a tensor")

    def patched(self, t: Tracer, name: str) -> Value | None:
        """What a program put into the class of tensors under a name, bound to this one; None for torch's own."""
        owner, raw = look_up(t, self.type(), name)
        own = isinstance(raw, (types.FunctionType, property)) and not t.trusted(getattr(raw, "fget", raw))
        return bind_attribute(t, self, owner, name, raw) if own else None

    def refuse_patched(self, t: Tracer, name: str) -> None:
        """Leave what a program put in the place of a special method to Python."""
        if self.patched(t, name) is not None:
            raise Unsupported(f"Tensor.{name}, as the program has it")

    def set_attr(self, t: Tracer, name: str, value: Value) -> None:
        if (setter := registry.tensor_setters.get(name)) is not None:
            setter(t, self, value)
            return
        if name == "requires_grad" and self.source is None:
            wanted = t.truth(value)
            if not self.fake.is_leaf:
                raise t.raised(RuntimeError, Constant(_NOT_A_LEAF + ("" if wanted else _TO_DETACH)))
            _check_flag(self, wanted)
            t.recorder.call_method("requires_grad_", [self, Constant(wanted)], {})
            return
        if name == "requires_grad" and self.fake.is_leaf and t.truth(value) == self.fake.requires_grad:
            return
        if name == "requires_grad" or name in KNOWN_ATTRIBUTES:
            raise Unsupported(f"setting {name!r} of a tensor")
        if hasattr(torch.Tensor, name) and name != "grad":
            raise Unsupported(f"setting {name!r} of a tensor")
        if self.real is not None:
            t.effects.note(self)
        self.stores[name] = value

    def call_method(self, t: Tracer, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        patched = self.patched(t, name)
        if patched is not None:
            return t.call(patched, args, kwargs)
        return self.call_torchs(t, name, args, kwargs)

    def call_torchs(self, t: Tracer, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """The same of torch's own method, whatever a class has in its place."""
        if t.overrides.applies((self, *args, *kwargs.values())):
            return t.overrides.method(self, name, args, kwargs)
        if (handler := registry.tensor_methods.get(name)) is not None:
            return handled(handler, getattr(torch.Tensor, name), t, [self, *args], kwargs)
        if name in READS_DATA:
            return self.reads(t, name)
        if name in NOT_IN_GRAPHS:
            raise self.not_in_graphs(t, name)
        known = _OWN_METHODS.get(name)
        found = None if known is None else known(self, t, args, kwargs)
        return t.recorder.call_method(name, [self, *args], kwargs) if found is None else found

    def lie_where(self, t: Tracer, other: Tensor) -> None:
        """Have a tensor that the graph made lie where another one does from here on, as ``set_`` has it."""
        data = t.recorder.call_method("detach", [other], {})
        assert isinstance(data, Tensor)
        self.node, self.fake, self.is_moved = data.node, data.fake, True
        t.recorder.by_fake[id(data.fake)] = self

    def not_in_graphs(self, t: Tracer, name: str) -> Unsupported:
        """That a method is left to Python."""
        part = name in _LOOK_AT_MEMORY and _shows_part_of_result(t, self.fake)
        # What leaves a graph may have memory of its own, so no break helps.
        where = "of a part of what compiled code made" if part else "in compiled code"
        return Unsupported(f"Tensor.{name} {where}", step=NOWHERE if part else None)

    def reads(self, t: Tracer, name: str) -> Value:
        """What a method gives that looks at the numbers."""
        read = self.read(t, name)
        if read is not None:
            return read
        raise Unsupported(
            f"Tensor.{name} {READS_DATA[name]}",
            "keep the value in a tensor, ask for a number of the graph by the option capture_scalar_outputs=True, "
            "or move it out of the compiled function",
        )

    def read(self, t: Tracer, name: str) -> Value | None:
        """The tensor's value as a number: known, or a symbol where those are wanted; else None."""
        known = self.known(t)
        if name == "tolist":
            return self.read_all(t, known)
        if known is not None and name in ("__bool__", "is_nonzero") and known.numel() == 1:
            return Constant(bool(number_of(known)))
        convert = _NUMBERS.get(name)
        if convert is None or self.fake.numel() != 1 or (self.fake.is_complex() and convert is not True):
            return None  # of a complex number torch says otherwise than Python why it is no int
        number = self.number(t, known)
        return number if number is None or convert is True else t.call(t.wrap_known(convert), [number], {})

    def number(self, t: Tracer, known: torch.Tensor | None) -> Value | None:
        """The one number that the tensor holds: known, or a symbol where those are wanted; else None."""
        if (noted := t.recorder.known.first(self.fake)) is not None:
            return noted
        if known is not None:
            return Constant(number_of(known))
        if t.policy.data_dependent and self.fake.dtype not in _COMPLEX:
            return t.recorder.call_method("item", [self], {})
        if self.fake.dtype.is_floating_point and t.call_stack.in_optimizer():
            return self.float_in_graph(t)
        return None

    def read_all(self, t: Tracer, known: torch.Tensor | None) -> Value | None:
        """``Tensor.tolist``: of known numbers, or of symbols where those are wanted; else None."""
        if known is not None:
            return _list_of(t, known.tolist())
        return self.nested_list(t) if t.policy.data_dependent else None

    def nested_list(self, t: Tracer) -> Value:
        """``Tensor.tolist`` where values that depend on data are symbols."""
        sizes = [t.constant_of(t.recorder.size_value(self, n)) for n in range(self.fake.dim())]
        if math.prod(sizes) > _MOST_READ:
            raise Unsupported("Tensor.tolist of a tensor of many elements")
        if self.fake.dim() == 0:
            return self.call_method(t, "item", [], {})
        return List([part.realize().nested_list(t) for part in self.unpack(t)])  # type: ignore[attr-defined]

    def float_in_graph(self, t: Tracer) -> Value:
        """The float that ``item()`` gives, as a symbol."""
        number = t.recorder.shape_env.create_unbacked_symfloat()
        return Symbolic(
            t.recorder.record("call_method", "item", (t.recorder.node_here(self.node),), {}, number), number
        )

    def known(self, t: Tracer) -> torch.Tensor | None:
        """The tensor's value, where it is known while capturing."""
        found = t.recorder.known.of(self.fake)
        if found is not None:
            t.blocks.refuse("the value of a tensor")
        return found

    def as_type(self, t: Tracer, kind: Any) -> Value:
        """``Tensor.type`` of a class such as ``torch.LongTensor``, which graphs cannot hold."""
        if not isinstance(kind, type(torch.LongTensor)) or kind.layout is not torch.strided:
            raise Unsupported(f"Tensor.type of {kind}")
        device = device_of_class(kind).type
        move = [] if self.fake.device.type == device else [Constant(device)]
        return t.recorder.call_method("to", [self, *move, Constant(kind.dtype)], {})

    def size(self, t: Tracer, dim: Value | None = None) -> Value:
        """``Tensor.size``."""
        shape = Size([t.recorder.size_value(self, n) for n in range(self.fake.dim())])
        if dim is None or t.is_none(dim):
            return shape
        wanted = dim.realize()
        number = t.int_of(wanted) if isinstance(wanted, (Symbolic, Tensor)) else t.constant_of(wanted)
        try:
            self.fake.size(number)
        except (TypeError, IndexError) as error:
            raise t.raised_from(error) from None
        return shape.items[number]

    def selected(self, t: Tracer, key: Value) -> Value | None:
        """The part at an index with an int in it that changes, by views, of which none needs to know it; None for other
        indices and for one that is out of range, which torch's indexing says in its own words."""
        try:
            if isinstance(key, Symbolic) and isinstance(key.number, torch.SymInt):
                return t.recorder.call_method("select", [self, Constant(0), key], {})
            return t.call(t.wrap_known(element), [self, key], {}) if _has_unknown_index(key) else None
        except Raised as raised:
            if _has_index_of_data(key) or not issubclass(raised.value.type(), IndexError):
                raise
            return None

    @_answered("__getitem__")
    def get_item(self, t: Tracer, key: Value) -> Value:
        if (patched := self.patched(t, "__getitem__")) is not None:
            return t.call(patched, [key], {})
        key = _places_read(t, key)
        if isinstance(key, Symbolic) and (selected := self.selected(t, key)) is not None:
            return selected
        if is_batched_index(t, key):
            return take(t, self, key)
        if (plain := numbers_read(t, key)) is not key:
            return self.get_item(t, plain)
        if (selected := self.selected(t, key)) is not None:
            return selected
        item = t.recorder.call(operator.getitem, [self, _with_masks_of_bools(t, index_of(t, key))], {})
        if isinstance(key, Constant) and key.value == 0 and isinstance(item, Tensor):
            t.recorder.known.note_first_of(self.fake, item.fake)
        return item

    @_answered("__setitem__")
    def set_item(self, t: Tracer, key: Value, value: Value) -> None:
        if (patched := self.patched(t, "__setitem__")) is not None:
            t.call(patched, [key, value], {})
            return
        if isinstance(found := value.realize(), Constant) and not _assignable(found.value):
            raise Unsupported(f"{found.describe()} as an item of a tensor")
        key = numbers_read(t, _places_read(t, key))
        key = Tuple([key]) if isinstance(key, Symbolic) and not key.is_known() else key
        part = self.selected(t, key) if _has_unknown_index(key) else None
        if part is not None:
            if not _has_index_of_data(key):
                t.recorder.call(operator.setitem, [part.realize(), Constant(Ellipsis), value], {})
            elif isinstance(found, Tensor):
                copy_into(t, part, found)
            else:
                t.recorder.call_method("fill_", [part, value], {})
            return
        if isinstance(found, Tensor) and has_unknown_bound(key):
            copy_into(t, t.recorder.call(operator.getitem, [self, index_of(t, key)], {}), found)
            return
        t.recorder.call(operator.setitem, [self, index_of(t, key), value], {})

    @_answered("__contains__")
    def contains(self, t: Tracer, item: Value) -> Value:
        found = item.beside(t, self).realize()
        if not isinstance(found, (Tensor, Symbolic)) and not issubclass(found.type(), numbers.Number):
            if isinstance(found, Constant):
                t.fails(operator.contains, torch.zeros(1), found.value)
            raise Unsupported(f"`in` of a tensor for {found.describe()}")
        same = t.compare("==", found, self).realize()
        held = t.recorder.call_method("any", [same], {}) if isinstance(same, Tensor) else None
        answer = held.read(t, "item") if isinstance(held, Tensor) else None
        if answer is None:
            raise Unsupported("`in` of a tensor branches on its values")
        return answer

    def iterate(self, t: Tracer) -> Value:
        if t.overrides.sees_all():
            return t.overrides.method(self, "__iter__", [], {})
        return ItemsIterator(self.unpack(t))

    def unpack(self, t: Tracer) -> list[Value]:
        if t.overrides.sees_all():
            return list(t.drain(self.iterate(t)))
        self.refuse_patched(t, "__iter__")
        if self.fake.dim() == 0:
            raise t.raised(TypeError, "iteration over a 0-d tensor")
        t.int_of(t.recorder.size_value(self, 0))
        return t.recorder.call_method("unbind", [self, Constant(0)], {}).unpack(t)

    @_answered("__len__")
    def length(self, t: Tracer) -> Value:
        if (patched := self.patched(t, "__len__")) is not None:
            return t.call(patched, [], {})
        if self.fake.dim() == 0:
            raise t.raised(TypeError, "len() of a 0-d tensor")
        return t.recorder.size_value(self, 0)

    def truth(self, t: Tracer) -> bool:
        if t.overrides.sees_all():
            return t.truth(t.overrides.method(self, "__bool__", [], {}))
        self.refuse_patched(t, "__bool__")
        known = self.known(t)
        if known is not None and known.numel() == 1:
            return bool(number_of(known))
        decided = comes_out(self.node, t.recorder.versions) if self.fake.numel() == 1 else None
        if decided is not None:
            return decided
        if self.fake.numel() == 1:
            raise DecidedByData("a branch on a tensor's value", "use torch.where or torch.cond")
        raise Unsupported("a branch on a tensor's value", "use torch.where or torch.cond")

    def binary(self, t: Tracer, operation: Callable, other: Value, inplace: bool) -> Answer:
        if t.overrides.applies((self, other)):
            return t.overrides.special(self, f"__{'i' if inplace else ''}{BINARY_NAMES[operation]}__", other)
        patched = self.patched(t, f"__{'i' if inplace else ''}{BINARY_NAMES[operation]}__")
        if patched is not None:
            return t.call(patched, [other], {})
        other = other.beside(t, self)
        if not _operand(other):
            return NotImplemented
        return t.recorder.call(INPLACE.get(operation, operation) if inplace else operation, [self, other], {})

    def reflected(self, t: Tracer, operation: Callable, other: Value) -> Answer:
        if t.overrides.applies((self, other)):
            return t.overrides.special(self, f"__r{BINARY_NAMES[operation]}__", other)
        patched = self.patched(t, f"__r{BINARY_NAMES[operation]}__")
        if patched is not None:
            return t.call(patched, [other], {})
        other = other.beside(t, self)
        return t.recorder.call(operation, [other, self], {}) if _operand(other) else NotImplemented

    def compare(self, t: Tracer, symbol: str, other: Value) -> Answer:
        if t.overrides.applies((self, other)):
            return t.overrides.special(self, f"__{COMPARISONS[symbol].__name__}__", other)
        if (patched := self.patched(t, f"__{COMPARISONS[symbol].__name__}__")) is not None:
            return t.call(patched, [other], {})
        other = other.beside(t, self)
        if not _operand(other) or t.is_none(other):
            return self.not_implemented_unless(other, torch.Tensor, numpy.ndarray, *_NUMBER_CLASSES)
        return t.recorder.call(COMPARISONS[symbol], [self, other], {})

    def rebuild(self, r: Rebuilder) -> str:
        if self.array is not None and _shows_part(self.fake):
            made = r.assign(f"{r.constant(lookups.tensor_in_memory_of)}({r.load(self.array)})")
        elif (base := _part_of_array(r.t, self)) is not None:
            made = r.assign(f"{r.constant(lookups.view_in_memory_of)}({r.load(base)}, {r.output(self)})")
        else:
            made = r.output(self)
        if self.fake.is_inference() and not r.t.state.began_in_inference_mode:
            if self.fake.layout is not torch.strided or self.fake.requires_grad:
                raise Unsupported(f"{self.describe()} that was made in inference mode and leaves compiled code")
            made = r.assign(f"{r.constant(lookups.made_in_inference_mode)}({made})")
        name = r.remember(self, made)
        if self.fake.retains_grad:
            r.line(f"{name}.retain_grad()")
        for attribute, value in self.stores.items():
            r.line(f"{name}.{attribute} = {r.load(value)}")
        return name

    def replay(self, r: Rebuilder) -> None:
        held = r.load(self)
        if self.new_data is not None:
            r.effect(f"{held}.data = {r.load(self.new_data)}")
        for name, value in self.stores.items():
            r.effect(f"{held}.{name} = {r.load(value)}")


def _size(value: Tensor, t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
    return value.size(t, *args, **kwargs) if len(args) + len(kwargs) <= 1 else None


def _requires_grad(value: Tensor, t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
    asked = [*args, *(v for n, v in kwargs.items() if n == "requires_grad")] or [Constant(True)]
    if value.source is None:
        if len(asked) == 1:
            _check_flag(value, t.truth(asked[0]))
        return None
    if len(asked) == 1 and t.truth(asked[0]) == value.fake.requires_grad:
        return value
    raise Unsupported("Tensor.requires_grad_ of a tensor that existed before")


def _check_flag(leaf: Tensor, wanted: bool) -> None:
    """Refuse to take the flag from a leaf that something was computed of, whose gradients lead there all the same."""
    made = (user.meta.get("example_value") for user in leaf.node.users)
    others = [v for v in made if isinstance(v, torch.Tensor) and v is not leaf.fake]
    if not wanted and leaf.fake.requires_grad and any(v.requires_grad for v in others):
        raise Unsupported("requires_grad_(False) of a tensor that others were computed of")


def _detach_in_place(value: Tensor, t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
    """Of a view it raises, and so it does of one that leaves compiled code as a tensor with memory of its own."""
    if not args and not kwargs and value.fake._is_view():
        t.fails(value.fake.detach_)
    return None


def _to_dense(value: Tensor, t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
    return value if value.fake.layout is torch.strided and not args and not kwargs else None


def _set_item(value: Tensor, t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    value.set_item(t, *args)
    return Constant(None)


def _type(value: Tensor, t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
    if not args and not kwargs:
        return Constant(type_name(value.fake))
    return value.as_type(t, args[0].constant()) if args and isinstance(args[0].realize(), Known) else None


def _type_as(value: Tensor, t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
    other = args[0].realize()
    if not isinstance(other, Tensor):
        return None
    return t.recorder.call_method("to", [value, Constant(other.fake.dtype)], {})


def _data(value: Tensor, t: Tracer) -> Value:
    """Autograd does not see writes to it, so that a detached tensor is not the same; capture has to."""
    node = t.recorder.node_here(value.node)
    return t.recorder.result("call_function", getattr, (node, "data"), {}, value.fake.detach())


def _volatile(value: Tensor, t: Tracer) -> Value:
    registry.functions[warnings.warn](t, Constant("volatile was removed (Variable.volatile is always False)"))
    return Constant(False)


_COMPUTED: dict[str, Callable[[Tensor, Tracer], Value]] = {
    "shape": lambda value, t: value.size(t),
    "data": _data,
    "__class__": lambda value, t: t.wrap_known(value.type()),
    "grad": lambda value, t: value.gradient(t),
    "_grad": lambda value, t: value.gradient(t),
    "nbytes": lambda value, t: t.binary(
        operator.mul, value.call_method(t, "numel", [], {}), Constant(value.fake.element_size())
    ),
    "volatile": _volatile,
    "_python_dispatch": lambda value, t: Constant(False),
    "_has_symbolic_sizes_strides": lambda value, t: Constant(False),
}
"""Attributes that are neither read off a fake tensor nor nodes of the graph as they are."""
_OWN_METHODS: dict[str, Callable[[Tensor, Tracer, list[Value], dict[str, Value]], Value | None]] = {
    "size": _size,
    "requires_grad_": _requires_grad,
    "detach_": _detach_in_place,
    "to_dense": _to_dense,
    "__len__": lambda value, t, args, kwargs: value.length(t),
    "__iter__": lambda value, t, args, kwargs: value.iterate(t),
    "__setitem__": _set_item,
    "__contains__": lambda value, t, args, kwargs: value.contains(t, *args),
    "get_device": lambda value, t, args, kwargs: t.wrap_known(value.fake.get_device()),
    "type": _type,
    "type_as": _type_as,
}
"""Methods that capture answers itself; None for calls of them that go to the graph."""


def _part_of_array(t: Tracer, view: Tensor) -> Tensor | None:
    """The tensor of a part of an array that another one is a view of: its memory begins where the part does."""
    memory = view.fake.untyped_storage()._cdata if t.tensors_of_arrays else None
    for made in t.tensors_of_arrays:
        assert isinstance(made, Tensor)
        is_there = made.fake.untyped_storage()._cdata == memory and _shows_part(made.fake)
        if is_there and made is not view and _comes_of(view.node, made.node):
            if view.fake.dtype != made.fake.dtype or view.fake.requires_grad:
                raise Unsupported("a view of a tensor of a part of a numpy array, in another dtype or with gradients")
            return made
    return None


def _comes_of(node: fx.Node, origin: fx.Node) -> bool:
    """Whether a node is made of another by way of first arguments, as views are: not what that is a view of, too."""
    while node is not origin and node.args and isinstance(node.args[0], fx.Node):
        node = node.args[0]
    return node is origin


def _shows_part_of_result(t: Tracer, tensor: torch.Tensor) -> bool:
    """Whether a tensor that compiled code made lies in memory that is larger than its elements."""
    memory = tensor.untyped_storage()
    taken = (item.example for item in t.recorder.inputs)
    if any(isinstance(i, torch.Tensor) and i.untyped_storage()._cdata == memory._cdata for i in taken):
        return False
    return _shows_part(tensor)


def _shows_part(tensor: torch.Tensor) -> bool:
    """Whether a tensor lies in memory that is larger than its elements."""
    return guard_or_true(tensor.untyped_storage().nbytes() != tensor.numel() * tensor.element_size())


def _list_of(t: Tracer, numbers: Any) -> Value:
    return t.new_list([_list_of(t, n) for n in numbers]) if isinstance(numbers, list) else Constant(numbers)


def _places_read(t: Tracer, key: Value) -> Value:
    """A key with scalars of numpy as the integers that torch reads them for."""
    key = key.realize()
    if isinstance(key, Array):
        return key.as_number(t) or key if issubclass(key.type(), numpy.integer) else key
    if type(key) is Tuple and any(isinstance(v.realize(), (Array, Slice)) for v in key.items):
        return Tuple([_places_read(t, v) for v in key.items])
    if isinstance(key, Slice) and any(isinstance(v.realize(), Array) for v in key.parts):
        return Slice([_places_read(t, v) for v in key.parts])
    return key


def index_of(t: Tracer, key: Value, in_tuple: bool = False) -> Value:
    """An index, with arrays of numpy in it as tensors, and lists with symbols."""
    key = key.realize()
    if in_tuple and type(key) is Tuple:
        key = List(key.items)  # which torch takes it for
    if isinstance(key, Array):
        return key.tensor(t, copied=True)
    if _has_symbols(key):
        if not in_tuple and _is_tuple_to_torch(key):
            return t.new_tuple([index_of(t, v, in_tuple=True) for v in key.items])
        return t.call(t.wrap_known(torch.tensor), [key], {})
    if type(key) is Tuple and any(isinstance(v.realize(), (Array, List, Tuple)) for v in key.items):
        return t.new_tuple([index_of(t, v, in_tuple=True) for v in key.items])
    return key


def _with_masks_of_bools(t: Tracer, key: Value) -> Value:
    """An index to read by: eager takes masks of bytes as before there were bools (not to write by), fakes do not."""
    key = key.realize()
    if isinstance(key, Tensor) and key.fake.dtype is torch.uint8:
        return t.recorder.call_method("bool", [key], {})
    if type(key) is Tuple and any(isinstance(v.realize(), Tensor) for v in key.items):
        return t.new_tuple([_with_masks_of_bools(t, v) for v in key.items])
    return key


def _is_tuple_to_torch(key: List) -> bool:
    """Whether torch reads a list as a tuple: a short one, of more than numbers.  (Later versions are to end that.)"""
    return len(key.items) < 32 and any(isinstance(v.realize(), (Sequence, Tensor)) for v in key.items)


def _has_symbols(key: Value) -> TypeGuard[List]:
    """Whether an index is a list of numbers, some of them symbolic: torch would read and keep what they are now."""
    parts = [v.realize() for v in key.items] if isinstance(key, List) else []
    return any(isinstance(v, Symbolic) or _has_symbols(v) for v in parts)


def _has_unknown_index(key: Value) -> bool:
    """Whether a tuple of numbers and slices has a number in it that changes, which torch's indexing would fix."""
    parts = [v.realize() for v in key.items] if type(key) is Tuple else []
    unknown = any(isinstance(v, Symbolic) and isinstance(v.number, torch.SymInt) for v in parts)
    return unknown and not any(isinstance(v, (Tensor, Sequence)) or v.type() is bool for v in parts)


def _has_index_of_data(key: Value) -> bool:
    """Whether one of the numbers in such a tuple depends on data."""
    parts = [v.realize() for v in key.items] if isinstance(key, Tuple) else [key]
    return any(isinstance(v, Symbolic) and not v.is_known() for v in parts)


def _assignable(number: Any) -> bool:
    """Whether torch puts a constant into tensors: not a scalar of numpy that is none of Python's numbers."""
    return not isinstance(number, numpy.generic) or isinstance(number, (numpy.integer, float, complex))


_NUMBER_CLASSES = (int, float, complex, numpy.generic)
"""Classes of objects that torch takes for numbers."""


def _operand(value: Value) -> bool:
    """Whether a value may stand beside a tensor in an operator."""
    return isinstance(value, (Tensor, Symbolic)) or (
        isinstance(value, Constant) and isinstance(value.value, (*_NUMBER_CLASSES, type(None)))
    )


def device_of_class(kind: Any) -> torch.device:
    """Where tensors of a legacy class are (``torch.FloatTensor``, ``torch.cuda.FloatTensor``): its module's name."""
    return torch.device(kind.__module__.partition(".")[2] or HOST)


def type_name(value: torch.Tensor) -> str:
    """What ``Tensor.type()`` says."""
    names = {
        torch.float32: "Float", torch.float64: "Double", torch.float16: "Half", torch.bfloat16: "BFloat16",
        torch.int64: "Long", torch.int32: "Int", torch.int16: "Short", torch.int8: "Char", torch.uint8: "Byte",
        torch.bool: "Bool", torch.complex64: "ComplexFloat", torch.complex128: "ComplexDouble",
    }  # fmt: skip
    if value.dtype not in names:
        raise Unsupported(f"Tensor.type() of {value.dtype}")
    module = "torch" if value.device.type == HOST.type else f"torch.{value.device.type}"
    return f"{module}.{names[value.dtype]}Tensor"

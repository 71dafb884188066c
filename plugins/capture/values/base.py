"""What the symbolic interpreter computes with: the base of all values, constants, and values not looked at yet."""

from __future__ import annotations

import builtins
import enum
import inspect
import operator
import types
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any, NoReturn, Protocol, TypeAlias, TypeGuard

import numpy
import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from turret.frames.class_members import ABSENT, class_member, member_owner
from turret.frames.sources import AttrSource, BoundSource, CallSource, DictSource, ItemSource, Source
from turret.graph.fakes.corrections import CorrectedFakeTensorMode
from turret.plugins.capture.errors import NotConstant, Raised, Unsupported
from turret.plugins.capture.facts.call_stack import CallStack, Lines
from turret.plugins.capture.facts.fingerprints import HEAP_TYPE
from turret.plugins.capture.facts.guards import Guards
from turret.plugins.capture.facts.known_data import KnownData
from turret.plugins.capture.facts.policy import Policy
from turret.plugins.capture.facts.provenance import Provenance
from turret.plugins.capture.facts.versions import Versions
from turret.plugins.capture.python import lookups
from turret.plugins.capture.python.lifetimes import LETS_GO, has_observable_finalizer
from turret.plugins.capture.python.signatures import takes

COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
COMPARISON_NAMES = {symbol: f"__{compare.__name__}__" for symbol, compare in COMPARISONS.items()}
"""Comparisons and their special methods."""
MIRRORED = {"==": "==", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
"""The comparison that is asked of the right side."""
BINARY_NAMES: dict[Any, str] = {
    operator.add: "add", operator.sub: "sub", operator.mul: "mul", operator.truediv: "truediv",
    operator.floordiv: "floordiv", operator.mod: "mod", operator.pow: "pow", operator.matmul: "matmul",
    operator.lshift: "lshift", operator.rshift: "rshift", operator.and_: "and", operator.or_: "or", operator.xor: "xor",
}  # fmt: skip
"""Binary operators and the name between the underscores of their special methods."""

Answer: TypeAlias = "Value | types.NotImplementedType"
"""What one side of an operator says: a result, or ``NotImplemented`` where its class leaves it to the other side.

Of what capture does not know either way, ``Unsupported`` is raised: it never counts as ``NotImplemented``, after which
Python compares identities.
"""

NO_INTEGER = "'{}' object cannot be interpreted as an integer"
"""What the interpreter says of an object of a type that has no ``__index__``."""


def spelled(kind: type) -> str:
    """The name of a class in the interpreter's messages: one that is made in C bears its module's name."""
    return f"{kind.__module__}.{kind.__name__}" if made_in_c(kind) and kind.__module__ != "builtins" else kind.__name__


def made_in_c(kind: type) -> bool:
    """Whether a class is the interpreter's own, or one that an extension makes from a description for good."""
    return not kind.__flags__ & HEAP_TYPE or kind.__flags__ & IMMUTABLE != 0


IMMUTABLE = 1 << 8
"""Flag of classes whose attributes no program can set.  Which classes of the standard library are on the heap differs
between versions (deques are from 3.12 on)."""


class Value:
    """One object of the program under capture.

    ``source`` says where the object can be found when the captured code runs; None for what the program made.
    Methods take the tracer ``t`` first.  What a kind of value does not know raises ``Unsupported``.
    """

    source: Source | None = None
    mutated = False
    """Whether an object that existed before the call was changed and needs its side effect replayed."""

    def realize(self) -> Value:
        """The value itself; one that was not looked at is looked at now (and guarded)."""
        return self

    def type(self) -> type:
        """The Python type of the object."""
        raise Unsupported(f"the type of {self}")

    def constant(self) -> Any:
        """The Python object that stands for it wherever the captured code runs; raises ``NotConstant``."""
        raise NotConstant(self)

    def is_constant(self) -> bool:
        try:
            self.constant()
        except NotConstant:
            return False
        return True

    def key(self, t: Tracer) -> Any:
        """A Python object that hashes and compares as this one does, for dict keys and sets."""
        try:
            found = self.constant()
            hash(found)
        except NotConstant:
            raise Unsupported(f"{self.describe()} as a dict key or set member") from None
        except TypeError as error:
            raise t.raised_from(error) from None
        return found

    def describe(self) -> str:
        """A few words for messages."""
        try:
            return f"a {self.type().__name__}"
        except Unsupported:
            return type(self).__name__

    # Attributes, calls, items.

    def get_attr(self, t: Tracer, name: str) -> Value:
        """``self.name``; the default serves builtin types: their methods and special attributes."""
        if name == "__class__":
            return t.wrap_known(self.type())
        kind = self.type()
        if member_owner(kind, name) is None:  # hasattr would find what the metaclass has
            raise t.raised(AttributeError, f"{spelled(kind)!r} object has no attribute {name!r}")
        if getattr(self, "m_" + name, None) is not None:
            return MethodOfValue(self, name)
        found = getattr(kind, name)
        if callable(found) and self.is_constant():
            return t.wrap_known(getattr(self.constant(), name))
        if callable(found):
            return MethodOfValue(self, name)
        raise Unsupported(f"attribute {name!r} of {self.describe()}")

    def set_attr(self, t: Tracer, name: str, value: Value) -> None:
        raise Unsupported(f"setting attribute {name!r} of {self.describe()}")

    def del_attr(self, t: Tracer, name: str) -> None:
        raise Unsupported(f"deleting attribute {name!r} of {self.describe()}")

    def call(self, t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        try:
            method = self.get_attr(t, "__call__")
        except Raised:
            raise t.raised(TypeError, f"{spelled(self.type())!r} object is not callable") from None
        return method.call(t, args, kwargs)

    def call_method(self, t: Tracer, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """``self.name(*args, **kwargs)``; builtin kinds define ``m_<name>``."""
        method = getattr(self, "m_" + name, None)
        if method is not None:
            if not takes(method.__func__, len(args) + 2, kwargs):
                raise Unsupported(f"arguments of {self.describe()}.{name}")
            return method(t, *args, **kwargs)
        if self.is_constant():
            return t.fold(getattr(self.constant(), name), args, kwargs)
        raise Unsupported(f"method {name!r} of {self.describe()}")

    def get_item(self, t: Tracer, key: Value) -> Value:
        raise Unsupported(f"an item of {self.describe()}")

    def set_item(self, t: Tracer, key: Value, value: Value) -> None:
        raise Unsupported(f"setting an item of {self.describe()}")

    def del_item(self, t: Tracer, key: Value) -> None:
        raise Unsupported(f"deleting an item of {self.describe()}")

    def contains(self, t: Tracer, item: Value) -> Value:
        pending: Value | None = None
        for candidate in t.each(self):  # what comes behind it stays in an iterator
            if pending is not None and t.truth(pending):
                return Constant(True)
            pending = None
            if t.is_same_item(candidate, item):
                return Constant(True)
            equal = t.compare("==", candidate, item)
            if equal.realize().is_constant():
                if t.truth(equal):
                    return Constant(True)
            else:
                pending = t.call(t.wrap_known(bool), [equal], {})  # if it is the last, data may decide
        return Constant(False) if pending is None else pending

    def of_program(self, t: Tracer, name: str) -> Value | None:
        """A special method of the program's own that a class has from its metaclass, bound, or None."""
        return None

    def iterate(self, t: Tracer) -> Value:
        """``iter(self)``."""
        raise Unsupported(f"iterating over {self.describe()}")

    def next(self, t: Tracer) -> Value:
        """``next(self)``; raises StopIteration in the program at the end."""
        raise Unsupported(f"next() of {self.describe()}")

    def unpack(self, t: Tracer) -> list[Value]:
        """All elements in order."""
        iterator = self.iterate(t)
        return list(t.drain(iterator))

    def length(self, t: Tracer) -> Value:
        raise Unsupported(f"the length of {self.describe()}")

    def truth(self, t: Tracer) -> bool:
        raise Unsupported(f"the truth of {self.describe()}")

    def binary(self, t: Tracer, operation: Callable, other: Value, inplace: bool) -> Answer:
        """``self <operation> other``."""
        name = BINARY_NAMES[operation]
        self.refuse_own(f"__{name}__", other)
        if inplace:
            self.refuse_own(f"__i{name}__", other)
        return NotImplemented

    def reflected(self, t: Tracer, operation: Callable, other: Value) -> Answer:
        """``other <operation> self`` where the class of ``other`` left it to this one."""
        self.refuse_own(f"__r{BINARY_NAMES[operation]}__", other)
        return NotImplemented

    def compare(self, t: Tracer, symbol: str, other: Value) -> Answer:
        """``self <symbol> other``."""
        self.refuse_own(COMPARISON_NAMES[symbol], other)
        return NotImplemented

    def refuse_own(self, name: str, other: Value) -> None:
        """Raise ``Unsupported`` where the object's class has a special method, which could answer for an operator."""
        kind = self.type()
        if getattr(kind, name, None) is not getattr(object, name, None):
            raise Unsupported(f"{name} of {self.describe()} and {other.describe()}")

    def not_implemented_unless(self, other: Value, *kinds: builtins.type) -> types.NotImplementedType:
        """``NotImplemented``, which the object's class gives for all but these; one of them raises ``Unsupported``."""
        if issubclass(other.type(), kinds):
            raise Unsupported(f"an operator of {self.describe()} and {other.describe()}")
        return NotImplemented

    def mirrored(self, t: Tracer, symbol: str, other: Value, *kinds: builtins.type) -> Answer:
        """A comparison with a number: what the other one says with the sides exchanged, if it is one of these."""
        if not issubclass(other.type(), kinds):
            return NotImplemented
        answer = other.compare(t, MIRRORED[symbol], self)
        if isinstance(answer, types.NotImplementedType):
            raise Unsupported(f"{self.describe()} {symbol} {other.describe()}")
        return answer

    def beside(self, t: Tracer, tensor: Value) -> Value:
        """What stands for the value beside a tensor in an operator."""
        return self

    # Rebuilding.

    def rebuild(self, r: Rebuilder) -> str:
        """Write the lines that make the object and return its variable."""
        raise Unsupported(f"{self.describe()} is needed after a graph break and cannot be made again")

    def contents(self) -> Iterable[Value | None]:
        """What a container or variable holds as it stands, and a change of it may let go of."""
        return ()

    def replay(self, r: Rebuilder) -> None:
        """Write the lines that bring a mutated object that existed before to its state now."""
        raise Unsupported(f"a change of {self.describe()}")


class Tracer(Protocol):
    """What values, handlers and recorders ask of the capture under way, which ``FrameTracer`` is.

    It stands here, below all that it hands out: what is ``Any`` is of a class of a room above.
    """

    policy: Policy
    provenance: Provenance
    guards: Guards
    call_stack: CallStack
    namespaces: Any
    generators: list[Any]
    lazy: list[Any]
    finalized: list[tuple[Value, int, str]]
    objects: dict[int, Value]
    kept: list[Any]
    effects: Any
    blocks: Any
    state: Any
    recorder: Recorder
    shared_arrays: dict[int, torch.Tensor]
    arrays_read: list[torch.Tensor]
    arrays_made: list[Any]
    tensors_of_arrays: list[Value]
    """What ``torch.from_numpy`` made of arrays that the graph computes, or of parts of them."""
    has_unread_keys: bool
    identity_keys: Any
    copied_views: list[list[tuple[torch.Tensor, int]]]
    leaves_checks: bool
    merged: list[Any]
    branched: bool
    told_of_compiling: bool
    flags: list[Value]
    decided: dict[int, bool]
    told_by: dict[Any, list[Value]]
    more_gradients: dict[Any, set[int]]
    undecided: bool
    ignored: list[list[tuple[type[Warning], str]]]
    hooks_refused: int
    remembered: dict[tuple, Value]
    overrides: Any

    # Objects.

    def wrap(self, object: Any, source: Source | None) -> Value: ...
    def wrap_known(self, object: Any) -> Value: ...
    def wrap_cell(self, cell: types.CellType, source: Source | None) -> Any: ...
    def made(self, object: Any) -> Value: ...
    def remember(self, object: Any, value: Value) -> None: ...
    def trusted(self, object: Any) -> bool: ...
    def note_member(self, kind: type, name: str) -> None: ...

    # Making values, and reading them.

    def new_tuple(self, items: list[Value]) -> Value: ...
    def new_list(self, items: list[Value]) -> Value: ...
    def new_dict(self, items: dict[Any, Value]) -> Any: ...
    def items_iterator(self, items: list[Value]) -> Value: ...
    def combine_sets(self, operation: Callable, one: Value, other: Value) -> Answer: ...
    def compare_sets(self, symbol: str, one: Value, other: Value) -> Answer: ...
    def get_attr(self, value: Value, name: str) -> Value: ...
    def fold(self, function: Callable, args: list[Value], kwargs: dict[str, Value]) -> Value: ...
    def folded_arguments(
        self, function: Callable, args: list[Value], kwargs: dict[str, Value]
    ) -> tuple[list[Any], dict[str, Any]]: ...
    def text(self, function: Callable, args: list[Value], kwargs: dict[str, Value]) -> Value: ...
    def constant_of(self, value: Value) -> Any: ...
    def int_of(self, value: Value, otherwise: str = NO_INTEGER) -> int: ...
    def bound_of(self, value: Value) -> int | None: ...
    def is_none(self, value: Value) -> bool: ...
    def concrete_range(self, value: Any) -> range: ...

    # Calls.

    def call(self, function: Value, args: list[Value], kwargs: dict[str, Value]) -> Value: ...
    def call_function(self, function: Any, args: list[Value], kwargs: dict[str, Value]) -> Value: ...
    def follow(self, function: Any, args: list[Value], kwargs: dict[str, Value]) -> Value: ...
    def call_class(self, cls: Any, args: list[Value], kwargs: dict[str, Value]) -> Value: ...
    def instantiate(self, cls: Any, args: list[Value], kwargs: dict[str, Value]) -> Value: ...
    def call_builtin(self, object: Any, args: list[Value], kwargs: dict[str, Value]) -> Value: ...
    def from_keys(self, kind: type, iterable: Value, value: Value | None = None) -> Value: ...

    # Operations.

    def truth(self, value: Value) -> bool: ...
    def goes_on(self, value: Value, truth: bool) -> bool: ...
    def may_leave_checks(self) -> bool: ...
    def assume(self, condition: Value, message: str) -> bool: ...
    def is_same(self, left: Value, right: Value) -> bool: ...
    def is_same_item(self, left: Value, right: Value) -> bool: ...
    def equals_item(self, left: Value, right: Value) -> bool: ...
    def assume_distinct(self, left: Value, right: Value) -> None: ...
    def compare(self, symbol: str, left: Value, right: Value) -> Value: ...
    def binary(self, operation: Callable, left: Value, right: Value, inplace: bool = False) -> Value: ...
    def unary(self, name: str, value: Value) -> Value: ...
    def get_item(self, container: Value, key: Value) -> Value: ...
    def class_attribute(self, value: Value, kind: type, name: str) -> Value | None: ...
    def special_method(self, value: Value, name: str) -> Value: ...
    def iterate(self, value: Value) -> Value: ...
    def iterate_by_index(self, value: Value) -> Value: ...
    def all_items(self, value: Value) -> list[Value]: ...
    def ask_length(self, value: Value) -> None: ...
    def next_or_none(self, iterator: Value) -> Value | None: ...
    def drain(self, iterator: Value) -> Iterator[Value]: ...
    def each(self, value: Value) -> Iterable[Value]: ...
    def listed(self, value: Value, otherwise: str) -> list[Value]: ...
    def unpacked(self, value: Value) -> list[Value]: ...
    def has_items(self, value: Value) -> bool: ...
    def unpack_exactly(self, value: Value, count: int) -> list[Value]: ...
    def pairs(self, value: Value) -> Iterator[tuple[Value, Value]]: ...
    def sorted(self, items: list[Value], key: Value | None, reverse: Value | None) -> list[Value]: ...

    # Exceptions.

    def new_exception(self, kind: type, *args: Any) -> Any: ...
    def blank(self, kind: type, args: list[Value]) -> Any: ...
    def raised(self, kind: type, *args: Any, **fields: Value) -> Raised: ...
    def fails(self, function: Callable, *args: Any, of: Value | None = None) -> NoReturn: ...
    def raised_from(self, error: BaseException, through: types.TracebackType | None = None) -> Raised: ...
    def stopped_inside(self, stop: Any) -> Any: ...
    def exception_of(self, value: Value, what: str = "exceptions") -> Any: ...
    def exception_matches(self, exception: Value, kinds: Value) -> bool: ...


class Recorder(Protocol):
    """What they ask of the graph under way, which ``GraphRecorder`` builds."""

    graph: fx.Graph
    root_graph: fx.Graph
    open_regions: list[Any]
    shape_env: ShapeEnv
    fake_mode: CorrectedFakeTensorMode
    inputs: list[Any]
    bindings: list[Any]
    by_fake: dict[int, Any]
    versions: Versions
    known: KnownData
    integers: dict[Any, None]
    floats: dict[fx.Node, Any]
    data_copies: list[tuple[torch.Tensor, int, torch.Tensor, int]]
    resized_data: list[fx.Node]
    resized_memory: list[Any]
    freed: Any
    retained: Any
    hooked: Any
    hooked_tensors: dict[int, list[Any]]
    made_at: dict[str, tuple[int, Lines]]
    devices: list[torch.device]
    tags: dict[str, Any]
    calls: int
    regions: int
    distributed: bool

    def placeholder(self, name: str, example: Any) -> fx.Node: ...
    def tensor_input(
        self, real: torch.Tensor, source: Source, *, is_part: bool = False, is_static: bool = False
    ) -> Value: ...
    def dynamic_int(self, value: int, source: Source) -> Value | None: ...
    def int_input(self, value: int, source: Source, *, is_int: bool = False) -> Value: ...
    def float_input(self, value: Any) -> tuple[fx.Node, Any]: ...
    def computed(self, function: Any, args: list[Value]) -> Value | None: ...
    def size_value(self, tensor: Any, dimension: int) -> Value: ...
    def unknown_size(self) -> torch.SymInt: ...
    def symbolic_kernels(self, target: Any = None) -> AbstractContextManager[Any]: ...
    def in_side(self) -> bool: ...
    def region(self, transform: str = "") -> AbstractContextManager[Any]: ...
    def transforms(self) -> list[str]: ...
    def gradient_transform(self) -> str: ...
    def within(self, region: Any) -> AbstractContextManager[None]: ...
    def submodule(self, module: fx.GraphModule, name: str) -> fx.Node: ...
    def node_here(self, node: fx.Node) -> fx.Node: ...
    def label(self) -> str: ...
    def call_region(self, target: Any, inputs: Iterable[fx.Node]) -> Value: ...
    def call(self, target: Any, args: list[Value], kwargs: dict[str, Value]) -> Value: ...
    def call_method(self, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value: ...
    def result(self, op: str, target: Any, args: tuple, kwargs: dict[str, Any], result: Any) -> Value: ...
    def unpacked(self, node: fx.Node, result: Any) -> Value: ...
    def tensor(self, node: fx.Node, fake: torch.Tensor) -> Any: ...
    def record(self, op: str, target: Any, args: tuple, kwargs: dict[str, Any], example: Any) -> fx.Node: ...
    def argument(self, value: Value) -> tuple[Any, Any]: ...


class Rebuilder(Protocol):
    """What values ask of the writer of rebuilt code, which ``FrameRebuilder`` is."""

    t: Tracer
    names: dict[int, str]
    kept: list[Value]
    outputs: dict[fx.Node, int]
    parameters: set[fx.Node]

    def constant(self, value: Any) -> str: ...
    def source(self, source: Source) -> str: ...
    def fresh(self) -> str: ...
    def assign(self, expression: str) -> str: ...
    def line(self, text: str) -> None: ...
    def effect(self, text: str) -> None: ...
    def after_effects(self, text: str) -> None: ...
    def remember(self, value: Value, name: str) -> str: ...
    def output(self, value: Any) -> str: ...
    def load(self, value: Value) -> str: ...
    def set_as_it_was(self, value: Any, calls: int) -> str: ...
    def fill_payload(self, payload: Any, name: str) -> None: ...
    def replay_attributes(self, value: Any) -> None: ...


class Constant(Value):
    """An immutable object known at capture: numbers, strings, None, dtypes, devices, enum members, ..."""

    __slots__ = ("source", "value")

    def __init__(self, value: Any, source: Source | None = None) -> None:
        self.value, self.source = value, source

    def type(self) -> type:
        return type(self.value)

    def constant(self) -> Any:
        return self.value

    def is_constant(self) -> bool:
        return True

    def describe(self) -> str:
        return f"the constant {self.value!r}"

    def get_attr(self, t: Tracer, name: str) -> Value:
        if isinstance(self.value, enum.Enum):
            raw = inspect.getattr_static(type(self.value), name, None)
            if isinstance(raw, property) and isinstance(raw.fget, types.FunctionType):
                return t.call(t.wrap_known(raw.fget), [self], {})  # of the program's own: what it reads may change
        try:
            found = getattr(self.value, name)
        except AttributeError as error:
            raise t.raised_from(error) from None
        if hasattr(found, "__next__"):
            raise Unsupported(f"{name} of {self.describe()}, an iterator")
        if isinstance(self.value, enum.Enum) and not t.trusted(type(self.value)):
            return self.attribute_of_member(t, name, found)
        return t.wrap_known(found)

    def attribute_of_member(self, t: Tracer, name: str, found: Any) -> Value:
        """Of a member of an enumeration of the program's, which keeps its value and name in attributes."""
        own = f"_{name}_" if name in ("value", "name") else name
        if own not in vars(self.value):
            t.note_member(type(self.value), name)
            return t.wrap_known(found)
        member = BoundSource(f"{type(self.value).__qualname__}.{self.value.name}", self.value)
        return t.wrap(vars(self.value)[own], ItemSource(DictSource(member), own))

    def call_method(self, t: Tracer, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if name == "__iter__" and type(self.value) in (str, bytes) and not args and not kwargs:
            return self.iterate(t)
        return t.call(self.get_attr(t, name), args, kwargs)

    def get_item(self, t: Tracer, key: Value) -> Value:
        return t.fold(operator.getitem, [self, key], {})

    def contains(self, t: Tracer, item: Value) -> Value:
        return t.fold(operator.contains, [self, item], {})

    def iterate(self, t: Tracer) -> Value:
        try:
            items = list(self.value)
        except TypeError as error:
            raise t.raised_from(error) from None
        return t.items_iterator([t.wrap_known(v) for v in items])

    def unpack(self, t: Tracer) -> list[Value]:
        try:
            return [t.wrap_known(v) for v in self.value]
        except TypeError as error:
            raise t.raised_from(error) from None

    def length(self, t: Tracer) -> Value:
        return t.fold(len, [self], {})

    def truth(self, t: Tracer) -> bool:
        return bool(self.value)

    def binary(self, t: Tracer, operation: Callable, other: Value, inplace: bool) -> Answer:
        if operation is operator.mod and isinstance(self.value, (str, bytes)) and other.type() in (dict, tuple, int):
            return t.text(operation, [self, other], {})
        if not other.is_constant() or other.of_program(t, f"__r{BINARY_NAMES[operation]}__") is not None:
            return NotImplemented
        if inplace:  # the same for immutable objects, but for the words of its TypeError
            operation = getattr(operator, "i" + operation.__name__.rstrip("_"))
        return t.fold(operation, [self, other], {})

    def compare(self, t: Tracer, symbol: str, other: Value) -> Answer:
        if other.is_constant():
            return t.fold(COMPARISONS[symbol], [self, other], {})
        kinds = _COMPARED_WITH.get(getattr(self.type(), COMPARISON_NAMES[symbol]), (object,))
        return self.mirrored(t, symbol, other, *kinds)

    def rebuild(self, r: Rebuilder) -> str:
        return r.constant(self.value)


def is_numpy_scalar(value: Value) -> TypeGuard[Constant]:
    """Whether a value is a scalar of numpy, which is a plain number to operations in a graph."""
    return isinstance(value, Constant) and isinstance(value.value, numpy.generic)


def _methods_compared_with() -> dict[Any, tuple[type, ...]]:
    """By special method of a builtin class, the classes of which it gives more than ``NotImplemented``."""
    kinds: dict[type, tuple[type, ...]] = {
        object: (), int: (int,), float: (int, float), complex: (int, float, complex), str: (str,), bytes: (bytes,),
        types.NoneType: (), torch.device: (torch.device,),
    }  # fmt: skip
    return {getattr(kind, name): others for kind, others in kinds.items() for name in COMPARISON_NAMES.values()}


_COMPARED_WITH = _methods_compared_with()


class Lazy(Value):
    """A value that existed before and was not looked at: it costs no guard until something depends on it."""

    __slots__ = ("made", "object", "source", "tracer")
    source: Source

    def __init__(self, tracer: Tracer, object: Any, source: Source) -> None:
        self.tracer, self.object, self.source = tracer, object, source
        self.made: Value | None = None
        tracer.lazy.append(self)

    def realize(self) -> Value:
        if self.made is None:
            self.made = self.tracer.wrap(self.object, self.source)
        return self.made

    def type(self) -> type:
        return self.realize().type()

    def constant(self) -> Any:
        return self.realize().constant()

    def key(self, t: Tracer) -> Any:
        return self.realize().key(t)

    def describe(self) -> str:
        return f"{self.source}"

    def rebuild(self, r: Rebuilder) -> str:
        return r.load(self.made) if self.made is not None else r.source(self.source)

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"a lazy value must be realized before {name!r} of it is used")


for _name in (
    "get_attr", "set_attr", "del_attr", "call", "call_method", "get_item", "set_item", "del_item", "contains",
    "iterate", "next", "unpack", "length", "truth", "binary", "reflected", "compare", "beside",
):  # fmt: skip

    def _forward(self: Lazy, *args: Any, _name: str = _name, **kwargs: Any) -> Any:
        return getattr(self.realize(), _name)(*args, **kwargs)

    setattr(Lazy, _name, _forward)


def existed(value: Value) -> bool:
    """Whether a value stands for an object that there was before."""
    return value.source is not None or getattr(value, "cell", None) is not None


def refuse_to_drop(changed: Value, held: Iterable[Value | None], dropped: Iterable[Value | None] | None = None) -> None:
    """Refuse the first change of what existed before if it may let go of a value whose end runs the program's code.

    Changes are replayed behind the graph, where that code would run too late.  ``dropped``: what of ``held`` is let go
    of by this one change, which is all that counts for a new object: to look at all of it at each step of a loop takes
    time that is quadratic in the number of steps.
    """
    if dropped is not None and not existed(changed) and getattr(changed, "holder", None) is None:
        held = dropped
    if not changed.mutated and any(isinstance(v, Lazy) and has_observable_finalizer(v.object) for v in held):
        raise Unsupported(LETS_GO)


class Unread(Lazy):
    """A value that only the call itself can look at; it may be handed around until something depends on it."""

    __slots__ = ("reason", "step")

    def __init__(self, reason: str, step: int) -> None:
        """``step``: of the root frame, which made it; what needs the value breaks the graph there."""
        self.reason, self.step = reason, step
        self.object = self.made = None

    def realize(self) -> Value:
        raise Unsupported(self.reason, step=self.step)

    def describe(self) -> str:
        return self.reason

    def is_same(self, other: Value) -> bool:
        """Whether the value is equal to another one for sure."""
        return self is other

    def differs_from(self, other: Value) -> bool:
        """Whether the value is equal to another one for sure never."""
        return False

    def rebuild(self, r: Rebuilder) -> str:
        raise Unsupported(self.reason, step=self.step)


class MethodOfValue(Value):
    """A bound method of a builtin kind of value, or of an object that classes written in C make."""

    def __init__(self, owner: Value, name: str, source: Source | None = None, function: Value | None = None) -> None:
        """``function``: what is bound, where the owner is not to be asked for it by name."""
        self.owner, self.name, self.source, self.function = owner, name, source, function

    def type(self) -> type:
        return type([].append)

    def describe(self) -> str:
        return f"method {self.name!r} of {self.owner.describe()}"

    def get_attr(self, t: Tracer, name: str) -> Value:
        if name == "__self__":
            return self.owner
        if name == "__name__":
            return Constant(self.name)
        return super().get_attr(t, name)

    def call(self, t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if self.function is not None:
            return t.call(self.function, [self.owner, *args], kwargs)
        return self.owner.call_method(t, self.name, args, kwargs)

    def truth(self, t: Tracer) -> bool:
        return True

    def compare(self, t: Tracer, symbol: str, other: Value) -> Answer:
        if symbol not in ("==", "!="):
            return NotImplemented
        if not isinstance(other, MethodOfValue):
            return self.not_implemented_unless(other, self.type())
        same = self.name == other.name and t.is_same(self.owner, other.owner)
        return Constant(same == (symbol == "=="))

    def rebuild(self, r: Rebuilder) -> str:
        return r.assign(f"{r.load(self.owner)}.{self.name}")


class Null(Value):
    """The interpreter's NULL on the value stack."""

    def describe(self) -> str:
        return "NULL"


class Previous(Value):
    """On the value stack below an exception that is being handled: the one that was handled before."""

    def describe(self) -> str:
        return "the exception handled before"


NULL, PREVIOUS = Null(), Previous()


_CONSTANTS = (bool, int, float, str, bytes, type(None))


def told_by_pybind(t: Tracer, value: Any, name: str) -> Value | None:
    """The number or text that a property gives of an object written in C++ with pybind11, which is guarded."""
    if value.object is None or value.source is None:
        return None
    getter = lookups.pybind_getter(type(value.object), name)
    found = ABSENT if getter is None else getter(value.object)
    return t.wrap(found, AttrSource(value.source, name)) if isinstance(found, _CONSTANTS) else None


class Opaque(Value):
    """An object that capture knows nothing of: it may be handed around, and that is all."""

    def __init__(self, object: Any, source: Source | None) -> None:
        self.object, self.source = object, source

    def type(self) -> type:
        return type(self.object)

    def key(self, t: Tracer) -> Any:
        if type(self.object).__hash__ is object.__hash__:
            self.pin(t)
            return self.object
        return super().key(t)

    def get_attr(self, t: Tracer, name: str) -> Value:
        if name == "__class__" and member_owner(self.type(), name) is not object:
            raise Unsupported(f"the __class__ of {self.describe()}, which its class computes")
        if name == "__class__":
            return t.wrap_known(type(self.object))
        if self.has_method(t, name):
            return MethodOfValue(self, name)
        if (told := told_by_pybind(t, self, name)) is not None:
            return told
        raise Unsupported(f"attribute {name!r} of {self.describe()}")

    def pin(self, t: Tracer) -> None:
        """Guard that the object is the same one."""
        if self.source is not None and not isinstance(self.source, BoundSource):
            t.guards.take("ID", self.source, self.object)

    def has_method(self, t: Tracer, name: str) -> bool:
        """Whether a method written in C is what the object has under a name."""
        kind = type(self.object)
        plain = class_member(kind, "__getattribute__") is object.__getattribute__
        if not plain or not isinstance(class_member(kind, name), types.MethodDescriptorType):
            return False
        held = class_member(kind, "__dict__")
        if held is ABSENT:
            return True
        if not isinstance(held, types.GetSetDescriptorType) or self.source is None or name in held.__get__(self.object):
            return False
        t.guards.take("NO_KEY", DictSource(self.source), name)
        return True

    def call_method(self, t: Tracer, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        raise Unsupported(f"method {name!r} of {self.describe()}")

    def call(self, t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if isinstance(self.object, weakref.ref) and type(self.object).__call__ is weakref.ref.__call__:
            self.pin(t)
            if self.object() is None:  # as from now on
                return Constant(None)
            t.call_stack.check_held(self.object())
            t.effects.check_held(self.object())
            t.provenance.refers(self.object, self.object())
            assert self.source is not None
            return t.wrap(self.object(), CallSource(self.source, lookups.result))  # which keeps nothing alive
        raise Unsupported(f"a call of {self.describe()}")

    def refuse_own(self, name: str, other: Value) -> None:
        raise Unsupported(f"{name} of {self.describe()} and {other.describe()}")

    def describe(self) -> str:
        kind = type(self.object)
        return f"an object of {kind.__module__}.{kind.__qualname__}"

    def rebuild(self, r: Rebuilder) -> str:
        return r.constant(self.object)

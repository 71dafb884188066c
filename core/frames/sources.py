"""Sources: where a value was found when a frame was captured, and how to find it again on a later call.

A source is plain data, printed as the expression a person would write.  ``SourceWriter`` turns sources into
lines of Python in which every step is taken once, for guards and for rebuilt code alike.
"""

from __future__ import annotations

import gc
import operator
import threading
import types
import weakref
from typing import Any

import attrs


@attrs.frozen
class Source:
    """Base of all sources."""

    def base_source(self) -> Source | None:
        """The source that this one is a step from, or None for a root."""
        return getattr(self, "base", None)

    def steps(self) -> list[Source]:
        """The sources on the way, the root first and this one last."""
        steps: list[Source] = [self]
        while (base := steps[-1].base_source()) is not None:
            steps.append(base)
        return steps[::-1]

    def root(self) -> Source:
        """The first step: a local, the function, or a bound object."""
        return self.steps()[0]


@attrs.frozen
class LocalSource(Source):
    """Parameter ``index`` of the frame (in the order of its local variables)."""

    index: int
    name: str

    def __str__(self) -> str:
        return self.name


@attrs.frozen
class FunctionSource(Source):
    """The function object whose frame it is."""

    def __str__(self) -> str:
        return "<function>"


class BoundSource(Source):
    """An object that the compile unit itself holds: the same one on every call (a namespace, a function)."""

    __slots__ = ("_held", "_identity", "label")
    __match_args__ = ("label", "value")
    label: str
    _held: Any
    _identity: int

    def __init__(self, label: str, value: Any) -> None:
        for name, content in (("label", label), ("_held", self.hold(value)), ("_identity", id(value))):
            object.__setattr__(self, name, content)

    @staticmethod
    def hold(value: Any) -> Any:
        """What is kept of the object."""
        return value

    @property
    def value(self) -> Any:
        """The object."""
        return self._held

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self._identity == other._identity and self.label == other.label

    def __hash__(self) -> int:
        return hash((self._identity, self.label))

    def __str__(self) -> str:
        return self.label


class WeakSource(BoundSource):
    """An object that the compile unit knows but does not keep alive: a module or parameter found on the way.

    Without it the unit holds for no call.
    """

    __slots__ = ()

    @staticmethod
    def hold(value: Any) -> Any:
        return weakref.ref(value)

    @property
    def value(self) -> Any:
        """The object; None where it is gone."""
        return self._held()

    @property
    def reference(self) -> weakref.ref[Any]:
        """The weak reference to the object."""
        held: weakref.ref[Any] = self._held
        return held


class References(tuple[Any, ...]):
    """Weak references to objects that generated code needs, and numbers of what it gives beside: among its globals."""

    __slots__ = ()


@attrs.frozen
class AttrSource(Source):
    """``base.name``."""

    base: Source
    name: str

    def __str__(self) -> str:
        return f"{self.base}.{self.name}"


@attrs.frozen
class ItemSource(Source):
    """``base[key]``; ``key`` is a constant, compared with its type (``1`` and ``True`` are different keys)."""

    base: Source
    key: Any = attrs.field(eq=lambda k: (type(k), k))

    def __str__(self) -> str:
        return f"{self.base}[{self.key!r}]"


@attrs.frozen
class KeySource(Source):
    """The ``index``-th key of a dict, for keys that no constant can name."""

    base: Source
    index: int

    def __str__(self) -> str:
        return f"list({self.base})[{self.index}]"


@attrs.frozen
class DictSource(Source):
    """``base.__dict__``, read past any ``__getattribute__``."""

    base: Source

    def __str__(self) -> str:
        return f"{self.base}.__dict__"


@attrs.frozen
class TypeSource(Source):
    """``type(base)``."""

    base: Source

    def __str__(self) -> str:
        return f"type({self.base})"


@attrs.frozen
class ValueSource(Source):
    """The value beside the ``index``-th key of a dict."""

    base: Source
    index: int

    def __str__(self) -> str:
        return f"list({self.base}.values())[{self.index}]"


@attrs.frozen
class BaseItemSource(Source):
    """An item of an instance of a subclass of a container, read past what the subclass makes of ``[]``."""

    base: Source
    cast: type[Any]
    key: Any = attrs.field(eq=lambda k: (type(k), k))

    def __str__(self) -> str:
        return f"{self.cast.__name__}.__getitem__({self.base}, {self.key!r})"


@attrs.frozen
class SizeSource(Source):
    """``base.size(dimension)``, ``base.stride(dimension)`` or ``base.storage_offset()``."""

    base: Source
    dimension: int
    quantity: str = "size"

    def __str__(self) -> str:
        dimension = "" if self.quantity == "storage_offset" else str(self.dimension)
        return f"{self.base}.{self.quantity}({dimension})"


@attrs.frozen
class CallSource(Source):
    """``function(base)``, for a function that gives a view of what it is given."""

    base: Source
    function: Any = attrs.field(eq=id)

    def written(self, writer: SourceWriter) -> str:
        """The call as Python."""
        return f"{writer.constant(self.function)}({writer.load(self.base)})"

    def given(self, reader: SourceReader) -> list[Any]:
        """The arguments in one call of the frame."""
        return [reader.read(self.base)]

    def __str__(self) -> str:
        return f"{self.function.__name__}({self.base})"


@attrs.frozen
class CallOfSeveralSource(CallSource):
    """``function(base, *others)``; ``others`` are tensors."""

    others: tuple[Source, ...]

    def written(self, writer: SourceWriter) -> str:
        """The call as Python."""
        return f"{writer.constant(self.function)}({', '.join(map(writer.load, (self.base, *self.others)))})"

    def given(self, reader: SourceReader) -> list[Any]:
        """The arguments in one call of the frame."""
        return [reader.read(source) for source in (self.base, *self.others)]

    def __str__(self) -> str:
        return f"{self.function.__name__}({', '.join(map(str, (self.base, *self.others)))})"


def shown_by(proxy: Any) -> Any:
    """The mapping that a mappingproxy shows; raises ``TypeError`` for what is none."""
    if type(proxy) is not types.MappingProxyType:
        raise TypeError(f"{type(proxy).__name__} is no mappingproxy")
    return gc.get_referents(proxy)[0]


@attrs.frozen
class ShownSource(CallSource):
    """The mapping that a mappingproxy shows."""

    function: Any = attrs.field(default=shown_by, init=False, eq=id)


def _same_arguments(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """What arguments are compared by: ``1``, ``1.0`` and ``True`` differ, and so do the zeros of both signs."""
    return tuple((type(a), a.hex() if type(a) is float else a) for a in arguments)


@attrs.frozen(cache_hash=True)
class ComputedSource(Source):
    """``function(*arguments)``, a pure function of numbers; each argument is a source or a number."""

    function: Any = attrs.field(eq=id)
    arguments: tuple[Any, ...] = attrs.field(eq=_same_arguments)
    depth: int = attrs.field(init=False, eq=False)
    """How many functions lie inside each other."""
    _text: str = attrs.field(init=False, eq=False, repr=False)

    def __attrs_post_init__(self) -> None:
        inner = (a.depth for a in self.arguments if isinstance(a, ComputedSource))
        object.__setattr__(self, "depth", 1 + max(inner, default=0))
        # Made once: where parts are shared, writing all of them out each time would take exponentially long.
        text = self.expression(*(str(a) if isinstance(a, Source) else _operand(repr(a)) for a in self.arguments))
        object.__setattr__(self, "_text", text if len(text) < _WIDEST else f"{text[:_WIDEST]}...")

    def base_source(self) -> Source | None:
        return next((a for a in self.arguments if isinstance(a, Source)), None)

    def expression(self, *arguments: str, name: str = "") -> str:
        """Python that computes it from arguments; ``name``: what the function goes by there."""
        form = OPERATORS.get(self.function)
        if form is not None:
            return form.format(*arguments).join("()")
        return f"{name or self.function.__name__}({', '.join(arguments)})"

    def written(self, writer: SourceWriter) -> str:
        """The computation as Python."""
        known = (writer.load(a) if isinstance(a, Source) else _operand(writer.constant(a)) for a in self.arguments)
        name = "" if self.function in OPERATORS else writer.constant(self.function)
        return self.expression(*known, name=name)

    def given(self, reader: SourceReader) -> list[Any]:
        """The arguments in one call of the frame."""
        return [reader.read(a) if isinstance(a, Source) else a for a in self.arguments]

    def __str__(self) -> str:
        return self._text


def _operand(text: str) -> str:
    """A number beside an operator: the sign of ``(-3) ** n`` belongs to the number."""
    return f"({text})" if text.startswith("-") else text


_WIDEST = 200
"""Characters of what is computed, in a message."""
OPERATORS: dict[Any, str] = {
    operator.add: "{} + {}", operator.sub: "{} - {}", operator.mul: "{} * {}", operator.truediv: "{} / {}",
    operator.floordiv: "{} // {}", operator.mod: "{} % {}", operator.pow: "{} ** {}", operator.neg: "-{}",
    operator.eq: "{} == {}", operator.ne: "{} != {}", operator.lt: "{} < {}", operator.le: "{} <= {}",
    operator.gt: "{} > {}", operator.pos: "+{}", operator.ge: "{} >= {}",
}  # fmt: skip
"""Functions of numbers that Python writes as operators."""


class SourceWriter:
    """Writes the steps to sources as assignments, each step once.

    ``lines`` is the code so far; ``scope`` the objects that it refers to by name (its globals).
    Parameters of the frame are ``a0, a1, ...``, the frame's function ``f``.
    """

    def __init__(self, scope: dict[str, Any], prefix: str = "v") -> None:
        self.lines: list[str] = []
        self.scope = scope
        self.prefix = prefix
        self.names: dict[Any, str] = {}
        self.constants: dict[int, str] = {}
        self.weak: dict[WeakSource, str] = {}
        """What is known weakly, and the variables for it."""
        self.count = 0

    def fresh(self) -> str:
        """A variable name not used before."""
        self.count += 1
        return f"{self.prefix}{self.count}"

    def assign(self, expression: str) -> str:
        """Assign an expression to a fresh variable."""
        name = self.fresh()
        self.lines.append(f"{name} = {expression}")
        return name

    def constant(self, value: Any) -> str:
        """An expression for an object held by the scope (written out where that is exact)."""
        if value is None or value is True or value is False or type(value) in (int, str, bytes):
            return repr(value)
        known = self.constants.get(id(value))
        if known is None:
            known = f"c{len(self.constants)}"
            while known in self.scope:
                known += "_"
            self.constants[id(value)] = known
            self.scope[known] = value
        return known

    def load(self, source: Source) -> str:
        """A variable (or an expression without effects) that holds what ``source`` names."""
        found = self.names.get(source)
        if found is None:
            found = self.names[source] = self._write(source)
        return found

    def weak_lines(self) -> list[str]:
        """The lines that come first: they find what is known weakly."""
        if not self.weak:
            return []
        self.scope.setdefault("dereference", dereference)
        references = self.constant(References(source.reference for source in self.weak))
        return [f"{', '.join(self.weak.values())}, = dereference({references}, ())"]

    def _write(self, source: Source) -> str:
        match source:
            case LocalSource(index):
                return f"a{index}"
            case FunctionSource():
                return "f"
            case WeakSource():
                return self.weak.setdefault(source, f"w{len(self.weak)}")
            case BoundSource(_, value):
                return self.constant(value)
            case AttrSource(base, name):
                return self.assign(self._attribute(self.load(base), name))
            case ItemSource(base, key):
                return self.assign(f"{self.load(base)}[{self.constant(key)}]")
            case KeySource(base, index):
                return self.assign(f"list({self.load(base)})[{index}]")
            case DictSource(base):
                self.scope.setdefault("instance_dict", instance_dict)
                return self.assign(f"instance_dict({self.load(base)})")
            case TypeSource(base):
                return self.assign(f"type({self.load(base)})")
            case ValueSource(base, index):
                return self.assign(f"list({self.load(base)}.values())[{index}]")
            case BaseItemSource(base, cast, key):
                return self.assign(f"{cast.__name__}.__getitem__({self.load(base)}, {self.constant(key)})")
            case SizeSource(base, dimension, quantity):
                argument = "" if quantity == "storage_offset" else str(dimension)
                return self.assign(f"{self.load(base)}.{quantity}({argument})")
            case CallSource() | ComputedSource():
                return self.assign(source.written(self))
        raise TypeError(f"no way to write {source!r}")

    def _attribute(self, held: str, name: str) -> str:
        if name.isidentifier():
            return f"{held}.{name}"
        self.scope.setdefault("getattr_", getattr)
        return f"getattr_({held}, {name!r})"


class SourceReader:
    """Reads sources in one call of a frame's function; each step is taken once, and what it raises is raised."""

    def __init__(self, function: Any, arguments: tuple[Any, ...]) -> None:
        self.function, self.arguments = function, arguments
        self.found: dict[Source, Any] = {}

    def read(self, source: Source) -> Any:
        """What a source names in this call."""
        known = self.found.get(source, self)
        if known is not self:
            return known
        found = self.found[source] = self._read(source)
        return found

    def _read(self, source: Source) -> Any:
        match source:
            case LocalSource(index):
                return self.arguments[index]
            case FunctionSource():
                return self.function
            case BoundSource(_, value):
                return value
            case AttrSource(base, name):
                return getattr(self.read(base), name)
            case ItemSource(base, key):
                return self.read(base)[key]
            case KeySource(base, index):
                return list(self.read(base))[index]
            case DictSource(base):
                return instance_dict(self.read(base))
            case TypeSource(base):
                return type(self.read(base))
            case ValueSource(base, index):
                return list(self.read(base).values())[index]
            case BaseItemSource(base, cast, key):
                return cast.__getitem__(self.read(base), key)
            case SizeSource(base, dimension, quantity):
                return getattr(self.read(base), quantity)(*([] if quantity == "storage_offset" else [dimension]))
            case CallSource() | ComputedSource():
                return source.function(*source.given(self))
        raise TypeError(f"no way to read {source!r}")


def dereference(references: References, given: tuple[Any, ...]) -> tuple[Any, ...]:
    """What weak references lead to, and what is given for numbers; raises ``ReferenceError`` where one is gone."""
    found = tuple(given[item] if isinstance(item, int) else item() for item in references)
    if any(value is None for value in found):
        raise ReferenceError("a module or parameter of compiled code is gone")
    return found


def instance_dict(value: Any) -> dict[Any, Any]:
    """The instance's own ``__dict__``, whatever its class makes of attribute access."""
    base = threading.local if isinstance(value, threading.local) else object  # that has one for each thread
    found: dict[Any, Any] = base.__getattribute__(value, "__dict__")
    return found

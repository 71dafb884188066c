"""Builtin functions and classes: one short handler each, by the object that the program calls."""

from __future__ import annotations

import bisect
import collections
import functools
import heapq
import inspect
import math
import operator
import os
import re
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.utils.checkpoint

from turret.frames import frame_hook
from turret.frames.class_members import member_owner
from turret.frames.sources import WeakSource
from turret.plugins.capture.errors import Raised, Unsupported
from turret.plugins.capture.python import polyfills
from turret.plugins.capture.python.signatures import takes
from turret.plugins.capture.registry import Handler, registry
from turret.plugins.capture.values.base import COMPARISONS, Constant, Opaque, Tracer, Unread, Value, spelled
from turret.plugins.capture.values.choices import extreme_of_two
from turret.plugins.capture.values.classes import Class, look_up
from turret.plugins.capture.values.exceptions import caught
from turret.plugins.capture.values.functions import Function, Known, LocalFunction, Method, Partial
from turret.plugins.capture.values.iterators import Enumerate, Filter, ItemsIterator, Map, ReversedIterator, Zip
from turret.plugins.capture.values.mappings import Dict, MappingProxy
from turret.plugins.capture.values.modules import LocalModule
from turret.plugins.capture.values.objects import Instance, InstanceDict, Super, slot_hash
from turret.plugins.capture.values.sequences import Deque, List, Range, Sequence, Size, Slice, Tuple
from turret.plugins.capture.values.sets import Set, is_stable
from turret.plugins.capture.values.symbols import Symbolic
from turret.plugins.capture.values.tensors import Array, Tensor

# Types and attributes.


def _classes(t: Tracer, kinds: Value) -> Any:
    kinds = kinds.realize()
    if isinstance(kinds, Tuple):
        return tuple(_classes(t, k) for k in kinds.items)
    return t.constant_of(kinds)


@registry.function(isinstance)
def isinstance_(t: Tracer, value: Value, kinds: Value) -> Value:
    classes = _classes(t, kinds)
    value = value.realize()
    if isinstance(value, Opaque) and value.source is None:
        raise Unsupported(f"the type of {value.describe()}")
    for cls in _each_class(classes):
        if not isinstance(cls, type) and member_owner(type(cls), "__instancecheck__") is None:
            raise t.raised(TypeError, "isinstance() arg 2 must be a type, a tuple of types, or a union")
        _assume_ordinary(t, cls)
        if (answers := _own_check(t, cls, "__instancecheck__")) is not None:
            if value.type() is cls or t.truth(t.call(answers, [value], {}).realize()):
                return Constant(True)
        elif _checked(t, value, cls):
            return Constant(True)
    return Constant(False)


def _checked(t: Tracer, value: Value, cls: Any) -> bool:
    try:
        return _is_instance(t, value, cls)
    except TypeError as error:  # of what stands for classes and answers for no instances, as ``list[int]``
        raise t.raised_from(error) from None


def _is_instance(t: Tracer, value: Value, cls: Any) -> bool:
    """``isinstance`` of one class that answers in torch's way, or in Python's."""
    if isinstance(value, Tensor):
        return _is_tensor_of(t, value, cls)
    if isinstance(value, (Constant, Known)):
        return isinstance(value.object if isinstance(value, Known) else value.value, cls)
    if getattr(value, "object", None) is not None and not isinstance(value, Method):
        return isinstance(value.object, cls)  # type: ignore[attr-defined]
    return issubclass(value.type(), cls)


def _is_tensor_of(t: Tracer, value: Tensor, cls: Any) -> bool:
    """The same of a tensor: metaclasses of torch's ask the tensor itself."""
    if cls is torch.nn.Buffer:
        return _marked_buffer(t, value) or issubclass(value.type(), cls)
    if not isinstance(cls, type) or issubclass(value.type(), cls):
        return issubclass(value.type(), cls)
    known = value.fake if value.real is None else value.real
    return type(cls).__instancecheck__ is not type.__instancecheck__ and isinstance(known, cls)


def _each_class(classes: Any) -> Iterator[Any]:
    """One by one, those of tuples and unions in them too."""
    if isinstance(classes, (tuple, types.UnionType)):
        for part in classes if isinstance(classes, tuple) else classes.__args__:
            yield from _each_class(part)
    else:
        yield classes


def _own_check(t: Tracer, cls: Any, name: str) -> Value | None:
    """How a metaclass of the program's own answers for a class, or None."""
    value = t.wrap_known(cls) if isinstance(cls, type) else None
    return value.of_program(t, name) if isinstance(value, Class) else None


def _marked_buffer(t: Tracer, value: Tensor) -> bool:
    """Whether a tensor is an ``nn.Buffer``, which is a mark on a plain tensor."""
    try:
        return t.truth(value.get_attr(t, "_is_buffer"))
    except Raised:
        return False


def _assume_ordinary(t: Tracer, cls: Any) -> None:
    """Whatever a program's own metaclass answers to ``isinstance`` holds in this process."""
    if isinstance(cls, tuple):
        for part in cls:
            _assume_ordinary(t, part)
    elif isinstance(cls, type) and not t.trusted(type(cls)):
        t.provenance.bound_to_process(f"what {type(cls).__qualname__} says of instances")


@registry.function(issubclass)
def issubclass_(t: Tracer, cls: Value, kinds: Value) -> Value:
    classes = _classes(t, kinds)
    _assume_ordinary(t, classes)
    if isinstance(classes, tuple):
        return Constant(any(t.truth(issubclass_(t, cls, t.wrap_known(kind))) for kind in classes))
    if (answers := _own_check(t, classes, "__subclasscheck__")) is not None:
        return Constant(t.truth(t.call(answers, [cls], {}).realize()))
    return t.fold(issubclass, [cls, t.made(_classes(t, kinds))], {})


@registry.function(callable)
def callable_(t: Tracer, value: Value) -> Value:
    value = value.realize()
    if isinstance(value, Opaque):
        return Constant(callable(value.object))
    return Constant(look_up(t, value.type(), "__call__")[0] is not None)


@registry.kind(type)
def type_(t: Tracer, value: Value, *rest: Value) -> Value:
    if rest:
        raise Unsupported("a class made in compiled code")
    value = value.realize()
    if isinstance(value, Instance) and not isinstance(value, Opaque):
        return value.get_attr(t, "__class__")
    return t.wrap_known(value.type())


@registry.kind(super)
def super_(t: Tracer, *args: Value) -> Value:
    if args:
        return _explicit_super(t, [a.realize() for a in args])
    frame = t.call_stack.frames[-1]
    slots = frame.decoded.slots
    if "__class__" not in slots:
        raise Unsupported("super() outside of a method")
    cell = frame.locals[slots.index("__class__")]
    first = frame.locals[0]
    if first is None:
        raise Unsupported("super() after its first argument was deleted")
    if type(first).__name__ == "Cell":
        first = first.content
    return Super(cell.content.constant(), first.realize())


def _explicit_super(t: Tracer, args: list[Value]) -> Value:
    if len(args) > 2:
        raise t.raised(TypeError, f"super() expected at most 2 arguments, got {len(args)}")
    start, owner = args[0], args[-1]
    known = start.is_constant() and start.constant()
    if not isinstance(known, type):
        raise t.raised(TypeError, f"super() argument 1 must be a type, not {start.type().__name__}")
    if len(args) == 1:
        raise Unsupported("super() that is bound to nothing")
    owned = owner.constant() if owner.is_constant() else None
    if known not in owner.type().__mro__ and not (isinstance(owned, type) and known in owned.__mro__):
        raise t.raised(TypeError, "super(type, obj): obj must be an instance or subtype of type")
    return Super(known, owner)


def _attribute_name(t: Tracer, name: Value) -> str:
    text = t.constant_of(name)
    if not isinstance(text, str):
        raise t.raised(TypeError, f"attribute name must be string, not {type(text).__name__!r}")
    return text


@registry.function(getattr)
def getattr_(t: Tracer, value: Value, name: Value, *default: Value) -> Value:
    text = _attribute_name(t, name)
    if not default:
        return t.get_attr(value, text)
    try:
        return value.realize().get_attr(t, text)
    except Raised as raised:
        if issubclass(raised.value.type(), AttributeError):
            return default[0]
        raise


@registry.function(hasattr)
def hasattr_(t: Tracer, value: Value, name: Value) -> Value:
    value, text = value.realize(), _attribute_name(t, name)
    if isinstance(value, Tensor) and hasattr(torch.Tensor, text):
        return Constant(True)
    try:
        value.get_attr(t, text)
    except Raised as raised:
        if issubclass(raised.value.type(), AttributeError):
            return Constant(False)
        raise
    return Constant(True)


@registry.function(setattr)
def setattr_(t: Tracer, value: Value, name: Value, content: Value) -> Value:
    value.realize().set_attr(t, _attribute_name(t, name), content)
    return Constant(None)


@registry.function(delattr)
def delattr_(t: Tracer, value: Value, name: Value) -> Value:
    value.realize().del_attr(t, _attribute_name(t, name))
    return Constant(None)


@registry.function(vars)
def vars_(t: Tracer, value: Value | None = None) -> Value:
    if value is None:
        return t.call(t.wrap_known(locals), [], {})
    value = value.realize()
    if isinstance(value, Instance):
        return InstanceDict(value)
    if isinstance(value, (Partial, Function)):
        return value.get_attr(t, "__dict__")
    raise Unsupported(f"vars of {value.describe()}")


@registry.function(id)
def id_(t: Tracer, value: Value) -> Value:
    value = value.realize()
    if isinstance(value, (Known, Instance)) and getattr(value, "object", None) is not None:
        if isinstance(value, (LocalFunction, LocalModule)):
            value.constant()
        if value.source is not None and not isinstance(value, Known):
            t.guards.take("ID", value.source, value.object)
        t.provenance.bound_to_process("the address of an object")
        return Constant(id(value.object))
    if isinstance(value, Tensor) and value.real is not None and value.source is not None and t.policy.data_dependent:
        t.guards.take("IS", value.source, others=(WeakSource(str(value.source), value.real),))
        t.provenance.bound_to_process("the address of an object")
        return Constant(id(value.real))
    raise Unsupported(f"id of {value.describe()}")


@registry.function(hash)
def hash_(t: Tracer, value: Value) -> Value:
    value = value.realize()
    if isinstance(value, Instance):
        return Constant(slot_hash(t.int_of(value.need_special(t, "__hash__"))))
    t.provenance.bound_to_process("a hash")
    if type(value) is Tuple and not value.is_constant():
        return Constant(hash(tuple(_Hashed(t.int_of(hash_(t, item))) for item in value.items)))
    if isinstance(value, Symbolic) and is_stable(key := value.key(t)):
        return Constant(hash(key))
    return t.fold(hash, [value], {})


class _Hashed:
    """Something of a known hash: that of a tuple is made of its elements' alone."""

    def __init__(self, known: int) -> None:
        self.known = known

    def __hash__(self) -> int:
        return self.known


@registry.function(sys.exc_info)
def exc_info(t: Tracer) -> Value:
    handled = t.call_stack.handled()
    if handled is None:
        unknown = Unread("sys.exc_info() of what the caller handles", t.call_stack.step)
        return Tuple([unknown, unknown, unknown])
    return Tuple([t.wrap_known(handled.type()), handled, caught(handled).traceback(t)])


@registry.function(sys.exception)
def exception(t: Tracer) -> Value:
    return t.call_stack.handled() or Unread("sys.exception() of what the caller handles", t.call_stack.step)


@registry.function(eval)
def evaluate(t: Tracer, source: Value, /, *scope: Value) -> Value:
    """An expression without names, which looks at no scope."""
    text = source.realize()
    if scope or not isinstance(text, Constant) or not isinstance(text.value, str) or not _names_nothing(text.value):
        raise Unsupported("input or output, or code made while running")
    return t.fold(_evaluated, [text], {})


def _names_nothing(text: str) -> bool:
    """Whether a text is an expression of literals alone, without functions of its own."""
    try:
        code = compile(text.lstrip(" \t"), "<string>", "eval")
    except (SyntaxError, ValueError):
        return False
    return not code.co_names and not any(isinstance(part, types.CodeType) for part in code.co_consts)


def _evaluated(text: str) -> Any:
    return eval(text, {})


@registry.function(print, input, open, breakpoint, exec, compile)
def outside(t: Tracer, /, *args: Value, **kwargs: Value) -> Value:
    raise Unsupported("input or output, or code made while running")


# Lengths, items, iteration.


@registry.function(len)
def len_(t: Tracer, value: Value) -> Value:
    return value.realize().length(t)


@registry.function(iter)
def iter_(t: Tracer, value: Value, end: Value | None = None, /) -> Value:
    if end is not None:
        if not callable_(t, value).constant():
            raise t.raised(TypeError, "iter(v, w): v must be callable")
        return t.call(t.wrap_known(polyfills.iterate_until), [value, end], {})
    return t.iterate(value)


@registry.function(frame_hook.load().throw)
def throw(t: Tracer, error: Value) -> Value:
    """How a resume function goes on where the instruction that ran as Python raised."""
    exception = t.exception_of(error)
    exception.settled = exception.is_traced = True
    raise Raised(exception)


@registry.function(next)
def next_(t: Tracer, iterator: Value, *default: Value) -> Value:
    if not default:
        return iterator.realize().next(t)
    item = t.next_or_none(iterator)
    return default[0] if item is None else item


@registry.kind(range)
def range_(t: Tracer, *args: Value) -> Value:
    parts = [a.realize() for a in args]
    if len(parts) == 1:
        parts = [Constant(0), parts[0], Constant(1)]
    elif len(parts) == 2:
        parts.append(Constant(1))
    made = Range([Constant(t.int_of(p)) for p in parts])
    try:
        made.constant()
    except (TypeError, ValueError) as error:
        raise t.raised_from(error) from None
    return made


@registry.kind(slice)
def slice_(t: Tracer, *args: Value) -> Value:
    none = Constant(None)
    if not 1 <= len(args) <= 3:
        t.fails(slice, *[None] * len(args))
    return Slice([none, args[0], none] if len(args) == 1 else [*args, *[none] * (3 - len(args))])


@registry.kind(enumerate)
def enumerate_(t: Tracer, items: Value, start: Value | None = None) -> Value:
    first = Constant(0) if start is None else start.realize()
    if not isinstance(first, Symbolic):
        first = Constant(t.int_of(first))
    return Enumerate(t.iterate(items), first)


@registry.kind(zip)
def zip_(t: Tracer, *items: Value, strict: Value | None = None) -> Value:
    return Zip([t.iterate(i) for i in items], strict is not None and t.truth(strict))


@registry.kind(map)
def map_(t: Tracer, function: Value, *items: Value) -> Value:
    if not items:
        raise t.raised(TypeError, "map() must have at least two arguments.")
    return Map(function.realize(), [t.iterate(i) for i in items])


@registry.kind(filter)
def filter_(t: Tracer, function: Value, items: Value) -> Value:
    return Filter(function.realize(), t.iterate(items))


@registry.kind(reversed)
def reversed_(t: Tracer, value: Value) -> Value:
    value = value.realize()
    if isinstance(value, Instance):
        found = value.call_special(t, "__reversed__")
        if found is not None:
            return found
        count = t.int_of(value.length(t))
        return ItemsIterator([value.get_item(t, Constant(n)) for n in reversed(range(count))])
    if isinstance(value, Tensor):
        return value.call_method(t, "__reversed__", [], {})
    kind = value.type()
    if member_owner(kind, "__reversed__") is None and member_owner(kind, "__getitem__") is None:
        raise t.raised(TypeError, f"{kind.__name__!r} object is not reversible")
    if isinstance(value, Sequence) and not isinstance(value, Deque):
        return ReversedIterator(value)
    return ItemsIterator(value.unpack(t)[::-1])


@registry.function(sorted)
def sorted_(t: Tracer, items: Value, /, *, key: Value | None = None, reverse: Value | None = None) -> Value:
    items = items.realize()
    if isinstance(items, Set) and key is None:
        return List(t.sorted(list(items.items.values()), key, reverse))
    return List(t.sorted(items.unpack(t), key, reverse))


def polyfilled(original: Any, replacement: Any) -> None:
    """Register a function of Python to be followed in place of a builtin."""
    try:
        inspect.signature(original)
    except ValueError:  # it has none
        model = replacement
    else:
        model = original

    def handler(t: Tracer, /, *args: Value, **kwargs: Value) -> Value:
        if not takes(model, len(args), kwargs):
            raise Unsupported(f"the arguments of {original.__name__}()")
        return t.call(t.wrap_known(replacement), list(args), kwargs)

    (registry.classes if isinstance(original, type) else registry.functions)[original] = handler


for _original, _replacement in (
    (any, polyfills.any_), (all, polyfills.all_), (sum, polyfills.sum_), (functools.reduce, polyfills.reduce),
    (operator.attrgetter, polyfills.attrgetter), (operator.itemgetter, polyfills.itemgetter),
    (operator.methodcaller, polyfills.methodcaller), (collections._count_elements, polyfills.count_elements),  # type: ignore[attr-defined]
    (operator.delitem, polyfills.delitem), (operator.call, polyfills.call),
    (operator.countOf, polyfills.count_of), (operator.indexOf, polyfills.index_of),
    (functools.cmp_to_key, polyfills.cmp_to_key), (math.prod, polyfills.prod),
    (bisect.bisect_left, polyfills.bisect_left), (bisect.bisect_right, polyfills.bisect_right),
    (bisect.insort_left, polyfills.insort_left), (bisect.insort_right, polyfills.insort_right),
    (heapq.heapify, polyfills.heapify), (heapq.heappush, polyfills.heappush), (heapq.heappop, polyfills.heappop),
    (heapq.heappushpop, polyfills.heappushpop), (heapq.heapreplace, polyfills.heapreplace),
    (heapq._heapify_max, polyfills.heapify_max), (heapq._heappop_max, polyfills.heappop_max),  # type: ignore[attr-defined]
    (heapq._heapreplace_max, polyfills.heapreplace_max),  # type: ignore[attr-defined]
):  # fmt: skip
    polyfilled(_original, _replacement)


@registry.function(polyfills.total)
def total(t: Tracer, *args: Value) -> Value:
    values = [a.realize() for a in args]
    if all(v.is_constant() for v in values):
        return t.fold(polyfills.total, values, {})
    found = t.recorder.computed(polyfills.total, values)
    return functools.reduce(lambda a, b: t.binary(operator.add, a, b), values) if found is None else found


def _have_one_extreme(values: list[Value]) -> bool:
    """Whether torch's symbol for the larger of two numbers is Python's: that of an int and a float is a float."""
    symbols = [v for v in values if isinstance(v, Symbolic)]
    if not symbols or not all(isinstance(v, (Symbolic, Constant)) for v in values):
        return False
    kinds = {v.type() for v in values}
    return kinds == {int} or (kinds == {float} and not all(v.is_known() for v in symbols))


def _extreme(symbol: str, replacement: Any, symbolic: Any) -> Handler:
    def handler(t: Tracer, /, *args: Value, **kwargs: Value) -> Value:
        values = [a.realize() for a in args]
        if len(values) == 1 and not kwargs:
            items = values[0].unpack(t)
            values = items if len(items) > 1 else [t.new_tuple(items)]
        function = min if symbol == "<" else max
        if not kwargs and (computed := t.recorder.computed(function, values)) is not None:
            return computed
        if len(values) == 2 and not kwargs and _have_one_extreme(values):
            return t.recorder.call(symbolic, values, {})
        chosen = extreme_of_two(t, symbol, *values) if len(values) == 2 and not kwargs else None
        return t.call(t.wrap_known(replacement), values, kwargs) if chosen is None else chosen

    return handler


registry.functions[min] = _extreme("<", polyfills.min_, torch.sym_min)
registry.functions[max] = _extreme(">", polyfills.max_, torch.sym_max)


@registry.function(os.fspath)
def fspath(t: Tracer, path: Value) -> Value:
    path = path.realize()
    if isinstance(path, Instance):
        return path.need_special(t, "__fspath__")
    return t.fold(os.fspath, [path], {})


registry.functions[sys.intern] = lambda t, string: t.fold(sys.intern, [string], {})

# Numbers and strings.


@registry.kind(bool)
def bool_(t: Tracer, value: Value | None = None) -> Value:
    known = None if value is None else value.realize()
    if isinstance(known, Tensor):
        known = known.read(t, "item") or known
    if isinstance(known, Symbolic) and not known.is_known():
        return known if known.type() is bool else t.compare("!=", known, Constant(0))
    return Constant(False if value is None else t.truth(value))


def _number(cls: type, symbolic: Any, method: str) -> Handler:
    def handler(t: Tracer, /, *args: Value, **kwargs: Value) -> Value:
        value = args[0].realize() if args else None
        if isinstance(value, Tensor):
            return value.call_method(t, method, [], {})
        if isinstance(value, Symbolic) and len(args) == 1:
            return value if value.type() is cls else t.recorder.call(symbolic, [value], {})
        if isinstance(value, Instance):
            return value.need_special(t, method)
        return t.fold(cls, list(args), kwargs)

    return handler


registry.classes[int] = _number(int, torch.sym_int, "__int__")
registry.classes[float] = _number(float, torch.sym_float, "__float__")
registry.classes[complex] = lambda t, /, *args, **kwargs: t.fold(complex, list(args), kwargs)
registry.classes[bytes] = lambda t, /, *args, **kwargs: t.fold(bytes, list(args), kwargs)


@registry.kind(str)
def str_(t: Tracer, /, value: Value | None = None, *encoding: Value, **kwargs: Value) -> Value:
    if encoding or kwargs:
        return t.fold(str, [*([] if value is None else [value]), *encoding], kwargs)
    if value is None:
        return Constant("")
    return _text(t, value.realize(), "__str__", str)


@registry.function(repr)
def repr_(t: Tracer, value: Value) -> Value:
    return _text(t, value.realize(), "__repr__", repr)


def _text(t: Tracer, value: Value, method: str, convert: Callable[[Any], str]) -> Value:
    if isinstance(value, Instance):
        found = value.call_special(t, method)
        if found is not None:
            return found
    if isinstance(value, Known) and not isinstance(value.object, (type, types.ModuleType, torch.dtype)):
        t.provenance.bound_to_process("a text that may hold the address of an object")
        return Constant(convert(value.constant()))
    return t.text(convert, [value], {})


for _original in (str.maketrans, bytes.maketrans):
    registry.functions[_original] = lambda t, /, *args, _o=_original, **kwargs: t.fold(_o, list(args), kwargs)

for _original in (re.match, re.search, re.fullmatch, re.findall, re.split, re.subn, re.compile, re.escape):
    registry.functions[_original] = lambda t, /, *args, _o=_original, **kwargs: t.fold(_o, list(args), kwargs)


@registry.function(format)
def format_(t: Tracer, value: Value, spec: Value | None = None) -> Value:
    value = value.realize()
    text = "" if spec is None else t.constant_of(spec)
    if isinstance(value, Instance):
        kind, owner = value.type(), member_owner(value.type(), "__format__")
        if owner in (int, float, str) and not text:
            return _text(t, value, "__str__", str)
        if owner is not object:
            return value.need_special(t, "__format__", Constant(text))
        if text:
            raise t.raised(TypeError, f"unsupported format string passed to {kind.__name__}.__format__")
        value = _text(t, value, "__str__", str)
    return t.text(format, [value, Constant(text)], {})


@registry.function(abs)
def abs_(t: Tracer, value: Value) -> Value:
    value = value.realize()
    if isinstance(value, Tensor):
        patched = value.patched(t, "__abs__")
        return t.recorder.call_method("abs", [value], {}) if patched is None else t.call(patched, [], {})
    if isinstance(value, Symbolic):
        return t.recorder.call(abs, [value], {})
    if isinstance(value, Array):
        return value.unary(t, abs)
    if isinstance(value, Instance):
        return value.need_special(t, "__abs__")
    return t.fold(abs, [value], {})


@registry.function(pow)
def pow_(t: Tracer, base: Value, exponent: Value, *modulus: Value) -> Value:
    if modulus:
        return t.fold(pow, [base, exponent, *modulus], {})
    return t.binary(operator.pow, base, exponent)


@registry.function(divmod)
def divmod_(t: Tracer, left: Value, right: Value) -> Value:
    left, right = left.realize(), right.realize()
    if left.is_constant() and right.is_constant():
        return t.fold(divmod, [left, right], {})
    if any(isinstance(value, (Tensor, Instance)) for value in (left, right)):
        return _divmod_of_class(t, left, right)
    return Tuple([t.binary(operator.floordiv, left, right), t.binary(operator.mod, left, right)])


def _divmod_of_class(t: Tracer, left: Value, right: Value) -> Value:
    """``divmod`` that is up to a class; tensors have none."""
    kinds = (left.type(), right.type())
    sides = [(left, "__divmod__", right), (right, "__rdivmod__", left)]
    if kinds[0] is kinds[1]:
        sides.pop()
    elif issubclass(kinds[1], kinds[0]) and look_up(t, kinds[1], "__rdivmod__") != look_up(t, kinds[0], "__rdivmod__"):
        sides.reverse()
    for asked, name, other in sides:
        answer = asked.answer(t, name, other) if isinstance(asked, Instance) else NotImplemented
        if not isinstance(answer, types.NotImplementedType):
            return answer
        if not isinstance(asked, Instance) and getattr(asked.type(), name, None) not in _OF_PLAIN_NUMBERS:
            raise Unsupported(f"divmod() of {left.describe()} and {right.describe()}")
    operands = "'{}' and '{}'".format(*map(spelled, kinds))
    raise t.raised(TypeError, f"unsupported operand type(s) for divmod(): {operands}")


_DIVMODS = ("__divmod__", "__rdivmod__")
_OF_PLAIN_NUMBERS = {None, *(getattr(kind, name) for kind in (int, float) for name in _DIVMODS)}
"""What classes have for ``divmod`` that leave it to the other side, if that is a tensor; None: nothing."""


@registry.function(round)
def round_(t: Tracer, value: Value, *digits: Value) -> Value:
    value = value.realize()
    if isinstance(value, Tensor) and member_owner(value.type(), "__round__") is None:
        raise t.raised(TypeError, f"type {value.type().__name__} doesn't define __round__ method")
    if isinstance(value, (Tensor, Instance)):
        return value.call_method(t, "__round__", list(digits), {})
    found = t.recorder.computed(round, [value, *digits])
    return t.fold(round, [Constant(t.constant_of(value)), *digits], {}) if found is None else found


def _symbolic_math(original: Any, on_int: bool) -> None:
    def handler(t: Tracer, *args: Value) -> Value:
        values = [a.realize() for a in args]
        found = t.recorder.computed(original, values)
        if found is not None:
            return found
        if any(isinstance(v, Symbolic) for v in values):
            if on_int and values[0].type() is int:
                return values[0]
            if on_int and t.policy.data_dependent:
                return t.recorder.call(original, values, {})
            values = [Constant(v.fixed()) if isinstance(v, Symbolic) else v for v in values]
        return t.fold(original, list(values), {})

    registry.functions[original] = handler


for _name in ("floor", "ceil", "trunc"):
    _symbolic_math(getattr(math, _name), True)
for _name, _function in vars(math).items():
    if isinstance(_function, types.BuiltinFunctionType) and _function not in registry.functions:
        _symbolic_math(_function, False)


# Operators as functions.


def _operators() -> None:
    binary = (
        "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and_", "or_", "xor", "lshift", "rshift",
    )  # fmt: skip

    def binary_operator(operation: Callable, inplace: bool) -> Handler:
        return lambda t, a, b: t.binary(operation, a, b, inplace)

    def comparison(symbol: str) -> Handler:
        return lambda t, a, b: t.compare(symbol, a, b)

    def unary_operator(method: str) -> Handler:
        return lambda t, a: t.unary(method, a.realize())

    for name in binary:
        operation = getattr(operator, name)
        registry.functions[operation] = binary_operator(operation, False)
        registry.functions[getattr(operator, "i" + name.rstrip("_"))] = binary_operator(operation, True)
    for symbol, compared in COMPARISONS.items():
        registry.functions[compared] = comparison(symbol)
    registry.functions[operator.getitem] = lambda t, a, b: t.get_item(a, b.realize())
    registry.functions[operator.contains] = lambda t, a, b: Constant(t.truth(a.realize().contains(t, b)))
    registry.functions[operator.not_] = lambda t, a: Constant(not t.truth(a))
    registry.functions[operator.truth] = lambda t, a: Constant(t.truth(a))
    registry.functions[operator.is_] = lambda t, a, b: Constant(t.is_same(a, b))
    registry.functions[operator.is_not] = lambda t, a, b: Constant(not t.is_same(a, b))
    registry.functions[operator.index] = lambda t, a: (
        Constant(t.int_of(a)) if not isinstance(a.realize(), Symbolic) else a
    )
    for name, unary in (("neg", "negative"), ("pos", "positive"), ("invert", "invert")):
        registry.functions[getattr(operator, name)] = unary_operator(unary)
    registry.functions[operator.abs] = abs_

    def setitem(t: Tracer, container: Value, key: Value, value: Value) -> Value:
        container.realize().set_item(t, key.realize(), value)
        return Constant(None)

    registry.functions[operator.setitem] = setitem

    def concatenation(inplace: bool) -> Handler:
        def handler(t: Tracer, a: Value, b: Value) -> Value:
            becomes_size = issubclass(b.type(), torch.Size) and not issubclass(a.type(), torch.Size)
            if becomes_size or not issubclass(a.type(), (list, tuple, str, bytes, collections.deque)):
                raise Unsupported(f"operator.concat of {a.describe()}")
            return t.binary(operator.add, a, b, inplace)

        return handler

    registry.functions[operator.concat] = concatenation(False)
    registry.functions[operator.iconcat] = concatenation(True)


_operators()


# Containers.


@registry.kind(tuple)
def tuple_(t: Tracer, items: Value | None = None) -> Value:
    if items is not None and type(items.realize()) is Tuple:
        return items.realize()
    return Tuple([] if items is None else items.realize().unpack(t))


@registry.kind(list)
def list_(t: Tracer, items: Value | None = None) -> Value:
    return List([] if items is None else items.realize().unpack(t))


@registry.kind(torch.Size)
def size_(t: Tracer, items: Value | None = None) -> Value:
    return Size.of(t, [] if items is None else items.realize().unpack(t))


@registry.kind(set)
def set_(t: Tracer, items: Value | None = None) -> Value:
    return Set.from_value(t, items, set)


registry.classes[frozenset] = lambda t, items=None: Set.from_value(t, items, frozenset)


def _dict(cls: type) -> Handler:
    def handler(t: Tracer, /, *args: Value, **kwargs: Value) -> Value:
        made = Dict({}, cls)
        made.m_update(t, *args, **kwargs)
        return made

    return handler


registry.classes[dict] = _dict(dict)
registry.classes[collections.OrderedDict] = _dict(collections.OrderedDict)


@registry.kind(collections.defaultdict)
def defaultdict(t: Tracer, factory: Value | None = None, /, *args: Value, **kwargs: Value) -> Value:
    made = Dict({}, collections.defaultdict, None, (factory or Constant(None)).realize())
    if factory is not None and not t.is_none(factory) and not t.truth(callable_(t, factory)):
        raise t.raised(TypeError, "first argument must be callable or None")
    made.m_update(t, *args, **kwargs)
    return made


@registry.kind(collections.deque)
def deque(t: Tracer, items: Value | None = None, maxlen: Value | None = None) -> Value:
    made = Deque([])
    made.m___init__(t, items, maxlen)
    return made


@registry.kind(types.MappingProxyType)
def mapping_proxy(t: Tracer, mapping: Value) -> Value:
    shown = mapping.realize()
    if not isinstance(shown, Dict):
        raise Unsupported(f"a mappingproxy of {shown.describe()}")
    return MappingProxy(shown)


@registry.kind(types.MethodType)
def method(t: Tracer, function: Value, owner: Value, /) -> Value:
    return Method(function.realize(), owner)


@registry.kind(functools.partial)
def partial(t: Tracer, function: Value, /, *args: Value, **kwargs: Value) -> Value:
    return Partial(function.realize(), list(args), kwargs)

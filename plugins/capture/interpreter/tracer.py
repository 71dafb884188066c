"""The tracer: everything one capture knows, and the operations of Python over values."""

from __future__ import annotations

import itertools
import operator
import types
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn

import attrs
import torch

from turret.frames.descriptions import name_of
from turret.frames.sources import AttrSource, BoundSource, Source
from turret.hooks.devices import HOST, uses_host_kernels
from turret.plugins.capture.branches.conditional import may_be_same
from turret.plugins.capture.errors import DecidedByData, FloatNeeded, NotConstant, Raised, Unsupported
from turret.plugins.capture.facts.call_stack import CallStack
from turret.plugins.capture.facts.guards import Guards
from turret.plugins.capture.facts.policy import Policy
from turret.plugins.capture.facts.provenance import Provenance
from turret.plugins.capture.interpreter import wrap as wrapping
from turret.plugins.capture.interpreter.calls import Caller
from turret.plugins.capture.interpreter.frame import Generator
from turret.plugins.capture.interpreter.namespaces import Namespaces
from turret.plugins.capture.interpreter.overrides import Overrides
from turret.plugins.capture.interpreter.refused_operators import refused_by_both
from turret.plugins.capture.python import lookups, polyfills
from turret.plugins.capture.record.effects import Effects
from turret.plugins.capture.record.graph import GraphRecorder
from turret.plugins.capture.record.sizes import data_sizes
from turret.plugins.capture.record.state import TorchState
from turret.plugins.capture.regions.blocks import Blocks
from turret.plugins.capture.registry import registry
from turret.plugins.capture.values import sets
from turret.plugins.capture.values.base import (
    BINARY_NAMES,
    COMPARISONS,
    MIRRORED,
    NO_INTEGER,
    Answer,
    Constant,
    Lazy,
    Tracer,
    Unread,
    Value,
    is_numpy_scalar,
    spelled,
)
from turret.plugins.capture.values.choices import Choice
from turret.plugins.capture.values.classes import Class, bind_attribute, contained, look_up
from turret.plugins.capture.values.drawn_entries import entry_drawn
from turret.plugins.capture.values.exceptions import ExceptionInstance, kept_fields, traceback_of
from turret.plugins.capture.values.floats import Changing, ChangingBool
from turret.plugins.capture.values.functions import Cell, Handler, Known, LocalFunction
from turret.plugins.capture.values.identity_keys import IdentityKeys
from turret.plugins.capture.values.instance_texts import interpolated
from turret.plugins.capture.values.iterators import ItemsIterator
from turret.plugins.capture.values.mappings import Dict
from turret.plugins.capture.values.modules import Module
from turret.plugins.capture.values.number_texts import operated_later, writes_text, written_later
from turret.plugins.capture.values.objects import Instance, InstanceDict
from turret.plugins.capture.values.sequences import List, Range, Sequence, Size, Tuple, folded
from turret.plugins.capture.values.sets import Set
from turret.plugins.capture.values.symbols import Symbolic
from turret.plugins.capture.values.tensors import INPLACE, Array, Tensor
from turret.torch_compat.programs.functions import assert_async

_OF_SEQUENCES = frozenset(getattr(kind, name) for kind in (list, tuple, str, bytes) for name in ("__add__", "__mul__"))
"""What ``+`` and ``*`` are for sequences that are written in C: Python comes to it behind all methods of both sides."""


def _derives(one: Value, other: Value) -> bool:
    """Whether the class of an object derives from that of another one, and is another class."""
    return one.type() is not other.type() and issubclass(one.type(), other.type())


_UNARY: dict[str, Callable[[Any], Any]] = {
    "negative": operator.neg, "positive": operator.pos, "invert": operator.invert,
}  # fmt: skip
_UNARY_NAMES = {"negative": "__neg__", "positive": "__pos__", "invert": "__invert__"}


class FrameTracer(Caller):
    """One capture of one frame.  ``break_at`` is the step of the root at which to stop for a graph break."""

    def __init__(self, policy: Policy, break_at: int | None = None) -> None:
        self.policy = policy
        self.recorder = GraphRecorder(self)
        self.call_stack = CallStack(break_at)
        self.guards = Guards(self.call_stack.location)
        self.provenance = Provenance()
        self.namespaces = Namespaces(self)
        self.objects: dict[int, Value] = {}
        self.kept: list[Any] = []
        self.shared_arrays: dict[int, torch.Tensor] = {}
        """Tensors in the memory of arrays that the program made of constants, by the array's id."""
        self.arrays_read: list[torch.Tensor] = []
        """Tensors in the memory of arrays whose numbers are constants of the graph."""
        self.arrays_made: list[Any] = []
        """Arrays that the program made of constants."""
        self.tensors_of_arrays: list[Value] = []
        self.identity_keys = IdentityKeys(self)
        self.has_unread_keys = False
        """Whether a dict has a key that nobody can read yet."""
        self.copied_views: list[list[tuple[torch.Tensor, int]]] = []
        """Tensors that are copies where arrays are views, with those that they show and all their versions."""
        self.merged: list[Any] = []
        """Results of branches on data that may be tensors from before."""
        self.branched = False
        """Whether a branch on data was followed."""
        self.told_of_compiling = False
        """Whether the program was told that it is compiled: as Python, it would do something else."""
        self.flags: list[Value] = []
        """Of branches on data, what tells behind them which side ran."""
        self.told_by: dict[Any, list[Value]] = {}
        """By node of autograd, flags that tell where it is there, of a tensor that one side of a branch on data has."""
        self.more_gradients: dict[Any, set[int]] = {}
        """Of such a node, leaves (by id) that get zeros where it gets a gradient that eager has no part for."""
        self.decided: dict[int, bool] = {}
        """By the ids of predicates and flags, what they are in the sides of branches that are followed."""
        self.checks: Counter[tuple[types.CodeType, int]] = Counter()
        """How often each check of the program's on data was come to, by code and instruction."""
        self.leaves_checks = False
        """Whether one is left to the graph, so that a call of which it fails runs as Python."""
        self.undecided = False
        """Whether a branch on data has left one of two objects."""
        self.ignored: list[list[tuple[type[Warning], str]]] = []
        """Warnings that the program ignores, by their kinds and starts: for each block under ``catch_warnings``."""
        self.hooks_refused = 0
        """How many blocks under way refuse hooks on saved tensors."""
        self.remembered: dict[tuple, Value] = {}
        """Results of functions that remember theirs, by function and arguments."""
        self.effects = Effects()
        self.blocks = Blocks(self)
        self.guards.watchers.append(self.blocks.note_guard)
        self.state = TorchState(self)
        self.generators: list[Generator] = []
        self.lazy: list[Lazy] = []
        self.finalized: list[tuple[Value, int, str]] = []
        """Objects made here whose class has a ``__del__``, the step of the root frame, and the line."""
        self.overrides = Overrides(self)

    # Objects and guards.

    def wrap(self, object: Any, source: Source | None) -> Value:
        """The value of an object found at ``source``."""
        if source is None:
            return self.wrap_known(object)
        return wrapping.wrap(self, object, source)

    def wrap_known(self, object: Any) -> Value:
        """The value of an object that is the same one on every call."""
        return wrapping.wrap_known(self, object)

    def made(self, object: Any) -> Value:
        """The value of an object that a pure function just made."""
        kind = type(object)
        if kind is tuple:
            return Tuple([self.made(v) for v in object])
        if kind is torch.Size:
            return Size([Constant(v) for v in object])
        if kind is list:
            return List([self.made(v) for v in object])
        if kind is dict:
            return self.new_dict({k: self.made(v) for k, v in object.items()})
        if kind in (set, frozenset):
            return Set.of(self, [self.made(v) for v in object], kind)
        if kind is range:
            return Range([Constant(object.start), Constant(object.stop), Constant(object.step)])
        make = registry.makers.get(kind)
        if make is None and hasattr(kind, "__next__"):
            raise Unsupported(f"a {kind.__qualname__} that a function written in C made")  # each call moves its own on
        return self.wrap_known(object) if make is None else make(self, object)

    def remember(self, object: Any, value: Value) -> None:
        """Keep one value for each object that existed before."""
        self.objects[id(object)] = value
        self.kept.append(object)
        if self.blocks.recording:
            self.blocks.note_made(value)

    trusted = staticmethod(wrapping.trusted)

    def wrap_cell(self, cell: types.CellType, source: Source | None) -> Cell:
        """A closure cell that existed before."""
        source = source or BoundSource("cell", cell)
        known = self.objects.get(id(cell))
        if known is not None:
            if known.source != source and not isinstance(known.source, BoundSource):
                self.guards.take("SAME", source, others=(known.source,))  # type: ignore[arg-type]
            return known  # type: ignore[return-value]
        try:
            content: Value | None = Lazy(self, cell.cell_contents, AttrSource(source, "cell_contents"))
        except ValueError:
            content = None
            self.guards.take("CALL", source, (lookups.is_empty, True))
        made = Cell(content, cell, source)
        self.remember(cell, made)
        return made

    # Making values.

    def new_tuple(self, items: list[Value]) -> Value:
        return Tuple(items)

    def new_list(self, items: list[Value]) -> Value:
        return List(items)

    def new_dict(self, items: dict[Any, Value]) -> Dict:
        """A dict with constant keys."""
        return Dict({k: (self.wrap_known(k), v) for k, v in items.items()})

    def items_iterator(self, items: list[Value]) -> Value:
        return ItemsIterator(items)

    def combine_sets(self, operation: Callable, one: Value, other: Value) -> Answer:
        """A new set, of sets and views of dicts."""
        return sets.operated(self, operation, one, other)

    def compare_sets(self, symbol: str, one: Value, other: Value) -> Answer:
        """A comparison of sets and views of dicts."""
        return sets.compared(self, symbol, one, other)

    # Constants.

    def fold(self, function: Callable, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """The result of a pure function of constants; what it raises, the program raises.

        Sizes are assumed to be what they are.
        """
        written = written_later(self, function, args, kwargs) if writes_text(function) else None
        if written is not None:
            return written
        plain, named = self.folded_arguments(function, args, kwargs)
        try:
            return self.made(function(*plain, **named))
        except (RecursionError, MemoryError):
            raise
        except Unsupported:
            raise
        except Exception as error:
            inner = None if error.__traceback__ is None else error.__traceback__.tb_next
            raise self.raised_from(error, inner) from None

    def folded_arguments(
        self, function: Callable, args: list[Value], kwargs: dict[str, Value]
    ) -> tuple[list[Any], dict[str, Any]]:
        """The arguments of a pure function as Python objects."""
        while True:
            try:
                return [folded(v) for v in args], {k: folded(v) for k, v in kwargs.items()}
            except NotConstant as unknown:
                value = unknown.args[0]
            if not isinstance(value, Symbolic) or isinstance(value, Changing) or value.assumed is not None:
                name = name_of(function)
                kind = FloatNeeded if isinstance(value, Changing) else Unsupported
                raise kind(f"{name} of {value.describe()}")
            value.fixed()

    def text(self, function: Callable, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """The result of a function that makes text, of constants and of sizes, assumed to be what they are.

        That of numbers that depend on data is written where it leaves the captured code.
        """
        written = written_later(self, function, args, kwargs)
        if written is not None:
            return written
        waiting, seen = [*args, *kwargs.values()], set()
        while waiting:
            value = waiting.pop().realize()
            if isinstance(value, Symbolic):
                value.fixed()
            elif isinstance(value, (Sequence, Dict)) and id(value) not in seen:
                seen.add(id(value))
                waiting += value.items if isinstance(value, Sequence) else itertools.chain(*value.items.values())
        return self.fold(function, args, kwargs)

    def constant_of(self, value: Value) -> Any:
        """The Python object for a value that must be known; sizes are assumed to be what they are."""
        value = value.realize()
        if isinstance(value, Symbolic):
            return value.fixed()
        try:
            return folded(value)
        except NotConstant:
            raise Unsupported(f"{value.describe()} where a constant is needed") from None

    def int_of(self, value: Value, otherwise: str = NO_INTEGER) -> int:
        """The int that a value is, or gives as its index.

        Args:
            value: a number, or what has ``__index__``.
            otherwise: the text of the program's ``TypeError`` for anything else, with a place for its type's name.
        """
        value = value.realize()
        if isinstance(value, Instance) and isinstance(value.payload, Constant) and value.payload.type() is int:
            return value.payload.constant()  # an int is asked for no index
        if isinstance(value, Instance) and not isinstance(value, ExceptionInstance):
            return self.int_of(value.need_special(self, "__index__"), otherwise)
        number = value.place(self) if isinstance(value, Array) else None
        if isinstance(value, Tensor) and not value.fake.dtype.is_floating_point:
            number = value.read(self, "item")
        found = self.constant_of(value if number is None else number)
        try:
            return operator.index(found)
        except TypeError as error:
            if hasattr(type(found), "__index__"):
                raise self.raised_from(error) from None
            raise self.raised(TypeError, otherwise.format(spelled(type(found)))) from None

    def bound_of(self, value: Value) -> int | None:
        """A part of a slice: an int, or None."""
        otherwise = "slice indices must be integers or None or have an __index__ method"
        return None if self.is_none(value) else self.int_of(value, otherwise)

    def is_none(self, value: Value) -> bool:
        """Whether a value is None; looks at no more than needed."""
        value = value.realize()
        return isinstance(value, Constant) and value.value is None

    def concrete_range(self, value: Range) -> range:
        return value.concrete(self)

    # Operations.

    def truth(self, value: Value) -> bool:
        """``bool`` of a value; where the program raises for one of both, the graph checks that it has the other."""
        value = value.realize()
        message = None
        if self.policy.data_dependent and _depends_on_data(value):
            frame = self.call_stack.frames[-1]
            message = frame.assertion()
            if message is None and (goes_on := frame.goes_on()) is not None:
                return self.goes_on(value, goes_on)
        if message is None:
            try:
                return value.truth(self)
            except DecidedByData:
                truth = self.checked(value)
                if truth is None:
                    raise
                return truth
        if isinstance(value, Symbolic):
            return self.assume(value, message)
        self.recorder.call(assert_async, [value, Constant(message)], {})  # left to the graph to check
        return True

    def checked(self, value: Value) -> bool | None:
        """The truth that the graph is to check of a tensor, where the program raises otherwise and handles nothing.

        None where it decides something else, or is asked many times: that may be how a loop ends.
        """
        frame = self.call_stack.frames[-1]
        truth = frame.goes_on() if frame.assertion() is None else True
        place = frame.code, frame.current
        self.checks[place] += 1
        if truth is None or not isinstance(value, Tensor) or self.checks[place] > _MOST_CHECKS:
            return None
        if self.policy.data_dependent or not self.may_leave_checks():
            return None
        with data_sizes(self):
            return self.goes_on(value, truth)

    def may_leave_checks(self) -> bool:
        """Whether a check on data may be left to the graph in a program of several: nobody handles what it raises."""
        return not (self.policy.checks_decide or self.call_stack.handles())

    def goes_on(self, value: Value, truth: bool) -> bool:
        """Leave to the graph to check that a value has the truth with which the program raises nothing.

        Where it has not, the graph raises, and the call runs as Python, which raises what the program does.
        """
        recorder = self.recorder
        if recorder.versions.changed(recorder.inputs):
            return value.truth(self)  # what was changed before must be changed when the program raises
        if isinstance(value, Tensor) and not uses_host_kernels(value.fake.device):
            value = value.call_method(self, "item", [], {}).realize()  # no kernel of a GPU is to fail: none runs after
        if isinstance(value, Tensor):
            holds = value if truth else self.call(self.wrap_known(torch.logical_not), [value], {})
            recorder.call(assert_async, [holds, Constant("a check of the program's fails")], {})
            self.leaves_checks = True
            return truth
        if isinstance(value, Symbolic) and isinstance(value.number, torch.SymBool):
            holds = value if truth else recorder.call(torch.sym_not, [value], {})
            self.leaves_checks = True
            return self.assume(holds, "a check of the program's fails") is truth
        return value.truth(self)

    def assume(self, condition: Value, message: str) -> bool:
        """Assert a condition: on unbacked symbols by a node of the graph, on others by a guard."""
        condition = condition.realize()
        if not isinstance(condition, Symbolic) or isinstance(condition, ChangingBool):
            return self.truth(condition)
        number = condition.number
        if isinstance(number, torch.SymBool) and not condition.is_known():
            if self.recorder.in_side():  # what holds there holds nowhere else: torch's symbols are not to know
                size = self.new_tuple([])
                options: dict[str, Value] = {"dtype": Constant(torch.int64), "device": Constant(HOST)}
                holds = self.recorder.call(torch.full, [size, condition], options)
                self.recorder.call(assert_async, [holds, Constant(message)], {})
                return True
            try:
                torch._check(number, lambda: message)
            except RuntimeError as error:
                raise Unsupported(f"an assertion that no data can fulfil: {error}") from error
            self.recorder.record(
                "call_function",
                torch.ops.aten._assert_scalar.default,
                (self.recorder.node_here(condition.node), message),
                {},
                None,
            )
            return True
        return self.truth(condition)

    def is_same(self, left: Value, right: Value) -> bool:
        """``is``."""
        left, right = left.realize(), right.realize()
        if left is right or (_is_empty_tuple(left) and _is_empty_tuple(right)):
            return True
        if any(isinstance(v, Symbolic) and v.is_ragged() for v in (left, right)):
            return False  # such a size is another object each time that it is asked for
        if isinstance(left, Symbolic) or isinstance(right, Symbolic):
            left, right = (Constant(v.fixed()) if isinstance(v, Symbolic) else v for v in self.alike(left, right))
        if isinstance(left, Constant) and isinstance(right, Constant):
            return _is_same_constant(left.value, right.value)
        mine, theirs = getattr(left, "object", None), getattr(right, "object", None)
        if mine is not None and mine is theirs:
            return True
        self.assume_distinct(left, right)
        return False

    def is_same_item(self, left: Value, right: Value) -> bool:
        """``is``, as containers ask it in front of ``==``, which alone tells of ints that change."""
        numbers = (isinstance(v, Symbolic) and v.type() is not float for v in (left.realize(), right.realize()))
        return left is right or (not any(numbers) and self.is_same(left, right))

    def equals_item(self, left: Value, right: Value) -> bool:
        """Whether containers take two of their items for equal."""
        return self.is_same_item(left, right) or self.truth(self.compare("==", left, right))

    def assume_distinct(self, left: Value, right: Value) -> None:
        """Guard that two values are of different objects, where that may be otherwise at a later call."""
        if self.merged and may_be_same(self, left, right):
            raise Unsupported("whether two tensors are one, which data decide")
        for local, other in ((left, right), (right, left)):
            if isinstance(local, LocalFunction) and isinstance(other.source, BoundSource):
                local.constant()
        modules = isinstance(left, Module) and isinstance(right, Module)
        unknown = modules or (type(left) is type(right) and not isinstance(left, (Constant, Symbolic)))
        bound = isinstance(left.source, BoundSource) and isinstance(right.source, BoundSource)
        if unknown and not bound and left.source is not None and right.source is not None:
            self.guards.take("NOT_SAME", left.source, others=(right.source,))

    def alike(self, left: Value, right: Value) -> tuple[Value, Value]:
        """Two values, one of them symbolic; nothing is assumed of their numbers where their types differ anyway."""
        if left.type() is right.type():
            return left, right
        return Constant(None), Constant(NotImplemented)

    def compare(self, symbol: str, left: Value, right: Value) -> Value:
        """A comparison."""
        left, right = left.realize(), right.realize()
        sides = [(left, symbol, right), (right, MIRRORED[symbol], left)]
        if isinstance(right, Instance) and _derives(right, left):
            sides.reverse()
        for one, asked, other in sides:
            answer = one.compare(self, asked, other)
            if not isinstance(answer, types.NotImplementedType):
                return answer
        if symbol in ("==", "!="):
            return Constant(self.is_same(left, right) == (symbol == "=="))
        if left.is_constant() and right.is_constant():
            return self.fold(COMPARISONS[symbol], [left, right], {})
        self._raise_refused(COMPARISONS[symbol], left, right)
        raise Unsupported(f"{left.describe()} {symbol} {right.describe()}")

    def _raise_refused(self, operation: Callable, left: Value, right: Value) -> None:
        """Raise what eager does for an operator that neither side answers for, where that is known."""
        refused = None if self.overrides.sees_all() else refused_by_both(operation, left, right)
        if refused is not None:
            raise self.raised_from(refused)

    def binary(self, operation: Callable, left: Value, right: Value, inplace: bool = False) -> Value:
        """A binary operator."""
        written: Value | None = operated_later(self, operation, left, right)
        if written is None and operation is operator.mod:
            written = interpolated(self, left.realize(), right)
        if written is not None:
            return written
        left, right = left.realize(), right.realize()
        if operation is operator.getitem:
            return left.get_item(self, right)
        if is_numpy_scalar(left) or is_numpy_scalar(right):
            left, right = (Constant(v.fixed()) if isinstance(v, Symbolic) else v for v in (left, right))
        if inplace and (isinstance(left, Instance) or left.type() in (dict, set)):
            answer = self._changed_in_place(operation, left, right)
            if not isinstance(answer, types.NotImplementedType):
                return answer
            inplace = False
        answer = self._operated(operation, left, right, inplace)
        if isinstance(answer, types.NotImplementedType):
            self._raise_refused(INPLACE.get(operation, operation) if inplace else operation, left, right)
            raise Unsupported(f"{operation.__name__} of {left.describe()} and {right.describe()}")
        return answer

    def _operated(self, operation: Callable, left: Value, right: Value, inplace: bool) -> Answer:
        """What the sides of a binary operator say, in the order in which Python asks them."""
        follows = isinstance(left, Instance) or (inplace and operation is operator.add)
        beside = right if follows else contained(self, right, operation)
        alike = isinstance(right, Instance) and isinstance(left, Instance) and right.kind is left.kind
        first = isinstance(right, Instance) and not alike and self.answers_first(operation, right, left)
        answer = right.reflected(self, operation, left) if first else NotImplemented
        if isinstance(answer, types.NotImplementedType):
            answer = left.binary(self, operation, beside, inplace)
        if isinstance(answer, types.NotImplementedType) and not first and not alike:
            answer = right.reflected(self, operation, left)
        return answer

    def _changed_in_place(self, operation: Callable, left: Value, right: Value) -> Answer:
        """What the left side's own operator in place says, which Python asks ahead of any other.

        That of a list, but not of a class that derives from one, comes behind what the right side says.
        """
        name = f"__i{BINARY_NAMES[operation]}__"
        if not isinstance(left, Instance):
            known = hasattr(left.type(), name)
            return left.binary(self, operation, contained(self, right, operation), True) if known else NotImplemented
        return left.answer(self, name, right)

    def answers_first(self, operation: Callable, right: Value, left: Value) -> bool:
        """Whether the right side of a binary operator is asked first: where its class derives from the left one's, and
        has another method with the sides exchanged; or where it has one, and a sequence in C is joined or repeated."""
        if not isinstance(right, Instance):
            return False
        name = BINARY_NAMES[operation]
        method = look_up(self, right.kind, f"__r{name}__")[1]
        if look_up(self, left.type(), f"__{name}__")[1] in _OF_SEQUENCES and isinstance(method, types.FunctionType):
            return True
        return _derives(right, left) and method is not look_up(self, left.type(), f"__r{name}__")[1]

    def unary(self, name: str, value: Value) -> Value:
        """A unary operator."""
        if isinstance(value, Tensor) and self.overrides.sees_all():
            return self.overrides.method(value, _UNARY_NAMES[name], [], {})
        if name == "invert" and isinstance(value, Symbolic) and value.type() is int:
            return self.binary(operator.sub, Constant(-1), value)
        if isinstance(value, (Tensor, Symbolic)):
            return self.recorder.call(_UNARY[name], [value], {})
        if isinstance(value, (Array, Choice)):
            return value.unary(self, _UNARY[name])
        if isinstance(value, Instance):
            return value.need_special(self, _UNARY_NAMES[name])
        return self.fold(_UNARY[name], [value], {})

    def get_attr(self, value: Value, name: str) -> Value:
        """An attribute as the program asks for it: an ``AttributeError`` says of what, and of which name."""
        value = value if isinstance(value, Unread) else value.realize()
        try:
            return value.get_attr(self, name)
        except Raised as raised:
            if isinstance(raised.value, ExceptionInstance):
                raised.value.note_attribute(self, value, name)
            raise

    def get_item(self, container: Value, key: Value) -> Value:
        held = container.realize()
        found = None if isinstance(key, Unread) else entry_drawn(self, held, key.realize())
        return held.get_item(self, key) if found is None else found

    def iterate(self, value: Value) -> Value:
        return value.realize().iterate(self).realize()

    def iterate_by_index(self, value: Value) -> Value:
        return self.call(self.wrap_known(polyfills.iterate_by_index), [value], {})

    def next_or_none(self, iterator: Value) -> Value | None:
        """The next item, or None at the end."""
        try:
            return iterator.realize().next(self)
        except Raised as raised:
            if issubclass(raised.value.type(), StopIteration):
                return None
            raise

    def drain(self, iterator: Value) -> Iterator[Value]:
        """All items that are left."""
        while (item := self.next_or_none(iterator)) is not None:
            self.call_stack.count_loop()
            yield item

    def all_items(self, value: Value) -> list[Value]:
        """All items for a new list: Python asks how many there are, where a class of the program's says so."""
        value = value.realize()
        if not isinstance(value, (Instance, Class)):
            return value.unpack(self)
        iterator = self.iterate(value)
        self.ask_length(value)
        return list(self.drain(iterator))

    def ask_length(self, value: Value) -> None:
        """Call what tells how many items there are, for the sake of what that does or raises."""
        for name in ("__len__", "__length_hint__"):
            if isinstance(look_up(self, value.type(), name)[1], types.FunctionType):
                try:
                    value.call_special(self, name) if isinstance(value, Instance) else value.length(self)
                except Raised as raised:
                    if not issubclass(raised.value.type(), TypeError):
                        raise
                    continue
                return

    def each(self, value: Value) -> Iterable[Value]:
        """All items: at once of a sequence, else as they are asked for."""
        return value.unpack(self) if isinstance(value, Sequence) else self.drain(self.iterate(value))

    def listed(self, value: Value, otherwise: str) -> list[Value]:
        """All items; ``otherwise``: the text of the program's ``TypeError`` where a value has none."""
        if isinstance(value, Sequence):
            return value.unpack(self)
        try:
            iterator = self.iterate(value)
        except Raised as raised:
            if issubclass(raised.value.type(), TypeError):
                raise self.raised(TypeError, otherwise) from None
            raise
        return list(self.drain(iterator))

    def unpacked(self, value: Value) -> list[Value]:
        """The items of what is assigned to several targets."""
        if not self.has_items(value):
            raise self.raised(TypeError, f"cannot unpack non-iterable {spelled(value.type())} object")
        return value.unpack(self)

    def has_items(self, value: Value) -> bool:
        """Whether an object is of a class that says how to iterate over it."""
        if isinstance(value, Sequence):
            return True
        kind = value.type()
        return any(look_up(self, kind, name)[1] is not None for name in ("__iter__", "__getitem__"))

    def unpack_exactly(self, value: Value, count: int) -> list[Value]:
        """``a, b = value``."""
        items = self.unpacked(value)
        if len(items) > count:
            raise self.raised(ValueError, f"too many values to unpack (expected {count})")
        if len(items) < count:
            raise self.raised(ValueError, f"not enough values to unpack (expected {count}, got {len(items)})")
        return items

    def pairs(self, value: Value) -> Iterator[tuple[Value, Value]]:
        """Keys and values of a mapping, or of an iterable of pairs, one by one: it may look at what becomes of them."""
        value = value.realize()
        if isinstance(value, InstanceDict):
            value = value.as_dict(self)
        if isinstance(value, Dict):
            yield from list(value.items.values())
        elif isinstance(value, Instance) and look_up(self, value.kind, "keys")[0] is not None:
            for key in value.call_method(self, "keys", [], {}).realize().unpack(self):
                yield key, value.get_item(self, key.realize())
        else:
            for number, item in enumerate(self.each(value)):
                yield self.pair_of(item.realize(), f"dictionary update sequence element #{number}")

    def pair_of(self, item: Value, name: str) -> tuple[Value, Value]:
        """An iterable of two, as dicts take them; ``name`` says in errors which it is."""
        try:
            parts = item.unpack(self) if isinstance(item, Sequence) else list(self.drain(self.iterate(item)))
        except Raised as raised:
            if issubclass(raised.value.type(), TypeError):
                raise self.raised(TypeError, f"cannot convert {name} to a sequence") from None
            raise
        if len(parts) != 2:
            raise self.raised(ValueError, f"{name} has length {len(parts)}; 2 is required")
        return parts[0], parts[1]

    def sorted(self, items: list[Value], key: Value | None, reverse: Value | None) -> list[Value]:
        """Items in order of their keys."""
        plain = key is None or self.is_none(key)
        given = [(v if plain else self.call(key, [v], {})).realize() for v in items]  # type: ignore[arg-type]
        # Sequences are compared item by item, and of numbers that change the order is guarded, not what they are.
        compared = any(isinstance(v, Sequence | Symbolic) and not v.is_constant() for v in given)
        keys = [_SortedInstance(self, v) if compared else self.sort_key(v) for v in given]
        backwards = reverse is not None and self.truth(reverse)
        try:
            order = sorted(range(len(items)), key=keys.__getitem__, reverse=backwards)
        except TypeError as error:
            raise self.raised_from(error) from None
        return [items[n] for n in order]

    def sort_key(self, value: Value) -> Any:
        """What a key is in the eyes of ``sorted``: a constant, or an object with a ``__lt__`` of the program's own."""
        if isinstance(value, Instance) and isinstance(look_up(self, value.kind, "__lt__")[1], types.FunctionType):
            return _SortedInstance(self, value)
        return self.constant_of(value)

    def class_attribute(self, value: Value, kind: type, name: str) -> Value | None:
        """An attribute that a class gives its instances, or None."""
        owner, raw = look_up(self, kind, name)
        if owner is None or owner in (tuple, object) or name.startswith("__"):
            return None
        return bind_attribute(self, value, owner, name, raw)

    def note_member(self, kind: type, name: str) -> None:
        """What a class has under a name was taken for what it is."""
        look_up(self, kind, name)

    def special_method(self, value: Value, name: str) -> Value:
        """A special method as ``with`` finds it."""
        value = value.realize()
        if isinstance(value, Constant) and isinstance(value.value, torch.device):
            return self.default_device(value.value, name)
        found = value.special(self, name) if isinstance(value, Instance) else None
        if found is None:
            raise Unsupported(f"{value.describe()} as a context manager")
        return found

    def default_device(self, device: torch.device, name: str) -> Value:
        """``with torch.device(...)``: what makes tensors gets the device as an argument."""

        def enter(t: Tracer) -> Value:
            t.recorder.devices.append(device)
            t.overrides.enter_device(device)
            return Constant(device)

        def leave(t: Tracer, *exception: Value) -> Value:
            t.recorder.devices.pop()
            t.overrides.leave_device()
            return Constant(None)

        return Handler(f"torch.device.{name}", enter if name == "__enter__" else leave)

    # Exceptions.

    def new_exception(self, kind: type, *args: Any) -> ExceptionInstance:
        return ExceptionInstance(kind, [a if isinstance(a, Value) else self.made(a) for a in args])

    def raised(self, kind: type, *args: Any, **fields: Value) -> Raised:
        """To be raised: an exception of the program.  ``fields``: what it keeps beside its arguments."""
        made = self.new_exception(kind, *args)
        made.stores.update(fields)
        return Raised(made)

    def stopped_inside(self, stop: ExceptionInstance) -> ExceptionInstance:
        """What a ``StopIteration`` becomes that leaves a generator."""
        made = self.new_exception(RuntimeError, "generator raised StopIteration")
        made.cause, made.context, made.suppressed, made.settled = stop, stop, True, True
        return made

    def fails(self, function: Callable, *args: Any, of: Value | None = None) -> NoReturn:
        """Raise what a call of a function written in C raises, which is known to raise and to change nothing.

        ``of``: what the first argument stands for.
        """
        try:
            function(*args)
        except Exception as error:
            names_it = of is not None and getattr(error, "obj", None) is args[0]
            if names_it:
                error.obj = None  # type: ignore[attr-defined]
            raised = self.raised_from(error)
            if names_it:
                raised.value.stores["obj"] = of
            raise raised from None
        raise AssertionError(f"{function} of {args} does not fail")

    def raised_from(self, error: BaseException, through: types.TracebackType | None = None) -> Raised:
        """The same, of an exception that a pure function raised, whose own frames are ``through``."""
        made = self.new_exception(type(error), *error.args)
        made.trace = traceback_of(through)
        slots = (name for kind in type(error).__mro__ for name in vars(kind).get("__slots__", ()))
        held = vars(error) | {name: getattr(error, name) for name in slots if hasattr(error, name)}
        held |= kept_fields(error)
        made.stores.update((name, self.made(value)) for name, value in held.items())
        return Raised(made)

    def exception_of(self, value: Value, what: str = "exceptions") -> Any:
        """What ``raise value`` raises; ``what``: in the interpreter's words, which of the two that ``raise`` takes."""
        value = value.realize()
        if isinstance(value, Known) and isinstance(value.object, type) and issubclass(value.object, BaseException):
            value = self.call(value, [], {}).realize()
        if isinstance(value, ExceptionInstance):
            return value
        raise self.raised(TypeError, f"{what} must derive from BaseException")

    def exception_matches(self, exception: Value, kinds: Value) -> bool:
        """``except kinds``."""
        among = [v.realize() for v in kinds.items] if isinstance(kinds, Tuple) else [kinds]
        classes = [v.object if isinstance(v, Known) else v for v in among]
        if any(isinstance(v, Value) and issubclass(v.type(), type) for v in classes):
            raise Unsupported(f"except {kinds.describe()}")
        if not all(isinstance(v, type) and issubclass(v, BaseException) for v in classes):
            raise self.raised(TypeError, "catching classes that do not inherit from BaseException is not allowed")
        return any(cls in exception.type().__mro__ for cls in classes)


@attrs.frozen
class _SortedInstance:
    """A key that the program compares."""

    t: Tracer
    value: Value

    def __lt__(self, other: Any) -> bool:
        if not isinstance(other, _SortedInstance):
            raise Unsupported("sorting objects of the program among others")
        return self.t.truth(self.t.compare("<", self.value, other.value))


def _is_same_constant(one: Any, other: Any) -> bool:
    """``is`` of constants; equal ints are taken for one object, as most are."""
    return one is other or (type(one) is type(other) is int and one == other)


def _is_empty_tuple(value: Value) -> bool:
    """Whether it is the empty tuple, of which the interpreter has one."""
    return type(value) is Tuple and not value.items


_MOST_CHECKS = 32
"""Of one check of the program's that are left to the graph: each round of a loop has one."""


def _depends_on_data(value: Value) -> bool:
    """Whether only the graph, as it runs, knows if a value is true."""
    if isinstance(value, Symbolic):
        changes = isinstance(value, Changing)  # a number that Python computes ahead of the graph
        return not changes and isinstance(value.number, torch.SymBool) and not value.is_known()
    return isinstance(value, Tensor)

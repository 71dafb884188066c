"""``__torch_function__``: who answers for a call of torch's, and with what it is asked.

Torch itself says so: the call is made once on tensors without memory that stand for the arguments, under a mode that
takes down what it is handed, before anything is computed.  Whoever answers in the program is then followed.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from turret.frames.class_members import find_in_mro
from turret.frames.sources import BoundSource, CallSource
from turret.frames.trace_modes import has_modes, modes_in_use, torch_function_state
from turret.plugins.capture.errors import NOWHERE, Raised, Unsupported
from turret.plugins.capture.interpreter.torch_functions import in_graph, is_torch_builtin
from turret.plugins.capture.python import lookups
from turret.plugins.capture.values.base import (
    BINARY_NAMES,
    COMPARISON_NAMES,
    Answer,
    Constant,
    Rebuilder,
    Tracer,
    Value,
)
from turret.plugins.capture.values.classes import look_up
from turret.plugins.capture.values.functions import Known
from turret.plugins.capture.values.mappings import Dict
from turret.plugins.capture.values.overriding import OF_TORCH, SubclassTensor, answers, is_overriding
from turret.plugins.capture.values.sequences import List, Sequence, Slice, Tuple
from turret.plugins.capture.values.symbols import Symbolic
from turret.plugins.capture.values.tensors import Tensor
from turret.torch_compat.fakes import unset_fake_temporarily
from turret.torch_compat.function_overrides import (
    DisableTorchFunction,
    TorchFunctionState,
    disabled_torch_function,
    function_override_state,
    has_torch_function,
    has_torch_function_unary,
    has_torch_function_variadic,
    pop_off_function_modes,
    push_onto_function_modes,
    set_function_override_state,
)
from turret.torch_compat.modes import DeviceContext, function_mode_count
from turret.torch_compat.operators.native_functions import TensorBase, torch_c
from turret.torch_compat.operators.ops import HigherOrderOperator

ENABLED, NO_SUBCLASSES, NOTHING = range(3)
"""Who is asked: all; modes alone; nobody."""
_STATES = (
    TorchFunctionState.ENABLED,
    TorchFunctionState.SUBCLASSES_DISABLED,
    TorchFunctionState.ALL_DISABLED,
)
_SPEAK_OF_ANSWERS = frozenset(
    {
        has_torch_function, has_torch_function_unary, has_torch_function_variadic,
        disabled_torch_function,
    }
)  # fmt: skip
"""Functions that nobody is asked about: they ask whether there is somebody, or are an answer."""


class _Asked(Exception):
    """What torch hands to whoever answers."""

    def __init__(self, function: Any, kinds: Any, rest: tuple) -> None:
        super().__init__("torch asks for an answer")
        self.function, self.kinds, self.rest = function, kinds, rest


class _Listener(TorchFunctionMode):
    def __torch_function__(self, function: Any, kinds: Any, *rest: Any) -> Any:
        raise _Asked(function, kinds, rest)


class _StandIns:
    """Objects of Python for values: what torch looks at to find out who answers."""

    def __init__(self, subclasses: bool) -> None:
        self.subclasses = subclasses
        self.values: dict[int, Value] = {}
        self.kept: list[Any] = []
        self.probes: dict[type, type] = {}
        self.first: dict[type, Value] = {}
        """By class of a stand-in, the first value of that class that answers."""

    def of(self, value: Value) -> Any:
        """The object that stands for a value."""
        value = value.realize()
        if isinstance(value, Constant):
            return value.value
        made = self._made(value)
        self.values[id(made)] = value
        self.kept.append(made)
        return made

    def _made(self, value: Value) -> Any:
        if isinstance(value, SubclassTensor):
            return self._tensor(value.held, value)
        if isinstance(value, Tensor):
            return self._tensor(value, None)
        if isinstance(value, Symbolic):
            return value.number
        if isinstance(value, Sequence):
            items = [self.of(v) for v in value.items]
            return items if value.kind is list else tuple(items)
        if isinstance(value, Slice):
            return slice(*map(self.of, value.parts))
        if isinstance(value, Dict):
            return {k.constant(): self.of(v) for k, v in value.items.values()}
        if isinstance(value, Known):
            return value.object
        if is_overriding(value) and self.subclasses:
            probe = self.probe(value.type())
            self.first.setdefault(probe, value)
            return probe()
        raise Unsupported(f"{value.describe()} as an argument of an operation on tensors")

    def _tensor(self, value: Tensor, of: SubclassTensor | None) -> torch.Tensor:
        made = torch.empty((1,) * value.fake.dim(), dtype=value.fake.dtype, device="meta")
        if of is not None and self.subclasses:
            probe = self.probe(of.kind)
            self.first.setdefault(probe, of)
            return made.as_subclass(probe)
        return torch.nn.Parameter(made, False) if issubclass(value.type(), torch.nn.Parameter) else made

    def probe(self, kind: type) -> type:
        """A class that is related to its like as ``kind`` is to its own, and does nothing."""
        if kind is torch.Tensor or not answers(kind):
            return torch.Tensor if issubclass(kind, torch.Tensor) else object
        if kind not in self.probes:
            bases = dict.fromkeys(self.probe(base) for base in kind.__bases__)
            rest = [b for b in bases if b is not object] or [object]
            if torch.Tensor in rest and any(issubclass(b, torch.Tensor) for b in rest if b is not torch.Tensor):
                rest.remove(torch.Tensor)
            members = {"__torch_function__": classmethod(lambda *a: NotImplemented)}
            self.probes[kind] = types.new_class(kind.__name__, tuple(rest), {}, lambda space: space.update(members))
        return self.probes[kind]

    def value(self, t: Tracer, made: Any) -> Value:
        """The value that an object stands for; one of torch's own making is what it is."""
        known = self.values.get(id(made))
        if known is not None:
            return known
        if isinstance(made, torch.Tensor):
            raise Unsupported("a tensor that torch makes before it asks who answers for a call")
        if type(made) is tuple:
            return t.new_tuple([self.value(t, v) for v in made])
        if type(made) is list:
            return t.new_list([self.value(t, v) for v in made])
        if type(made) is dict:
            return t.new_dict({k: self.value(t, v) for k, v in made.items()})
        if isinstance(made, type):
            kinds = {probe: kind for kind, probe in self.probes.items()}
            return t.wrap_known(kinds.get(made, made))
        return t.wrap_known(made)


class Overrides:
    """The modes and classes that answer for torch's functions, as the program has them now."""

    def __init__(self, t: Tracer) -> None:
        self.t = t
        self.inputs: list[Any] = []
        """Tensors of classes that existed before, to be checked in the end."""
        self.level = self.outer_level = _STATES.index(torch_function_state())
        self.modes: list[Value] = []
        self.outer_modes = self.untouched = 0
        """How many modes were in use at the start, and how many of them the program has not left."""
        self.default_device: Value | None = None
        """The default device that the program has set, if it has; the mode that it is stands first in ``modes``."""
        self.covered: list[Value | None] = []
        """For each block with a device the default device that is not in use in it, where modes came after that one."""
        self.assumed = False
        self.skips = False
        """Whether the next call that would ask somebody asks nobody."""

    def start(self) -> None:
        """Take the modes in use for the first ones, unless all are default devices, which graphs keep."""
        if not has_modes():
            return
        stack = modes_in_use()
        base = BoundSource("modes", torch_c)
        for number, mode in enumerate(stack):
            self.modes.append(self.t.wrap(mode, CallSource(base, lookups.function_mode(number))))
        self.outer_modes = self.untouched = len(stack)
        self.t.provenance.bound_to_process("modes for torch's functions are in use")
        self.assume_state()

    def asking_nobody(self, function: Callable) -> Callable:
        """A compiled graph, for which the modes in use have answered already."""
        if not self.outer_modes:
            return function

        def run(*args: Any) -> Any:
            with DisableTorchFunction():
                return function(*args)

        return run

    def assume_state(self) -> None:
        """Guard who is asked at the start of the call."""
        if not self.assumed:
            self.assumed = True
            state = int(_STATES[self.outer_level])
            self.t.guards.take("CALL", BoundSource("torch", torch_c), (lookups.asked_for_answers, state))

    # Whether somebody is asked.

    def sees_all(self) -> bool:
        """Whether a mode is asked, whatever the arguments are."""
        return bool(self.modes) and self.level < NOTHING

    def applies(self, values: Iterable[Value]) -> bool:
        """Whether somebody may answer for a call with these arguments."""
        if self.skips:
            self.skips = False
            return False
        return self.sees_all() or (self.level == ENABLED and any(map(is_overriding, _flat(values))))

    @contextlib.contextmanager
    def at(self, level: int) -> Iterator[None]:
        """Within it modes alone are asked, or nobody."""
        before, self.level = self.level, max(self.level, level)
        try:
            yield
        finally:
            self.level = before

    # Calls.

    def call(self, function: Any, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
        """The answer to a call of a function of torch; None where nobody answers."""
        if (accessor := accessor_of(function)) is not None:
            return self.access(accessor, args)
        if not _asks(function) or not self.applies((*args, *kwargs.values())):
            return None
        return self.ask(function, args, kwargs, function)

    def plain(self, args: list[Value], kwargs: dict[str, Value]) -> tuple[list[Value], dict[str, Value]]:
        """Arguments with plain tensors for those of classes, where nobody answers (any more)."""
        return [plain(v) for v in args], {k: plain(v) for k, v in kwargs.items()}

    def method(self, owner: Value, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """``owner.name(*args, **kwargs)`` of a method that tensors have."""
        given = [owner, *args]
        if self.applies((*given, *kwargs.values())):
            found = self.ask(lambda self, *a, **k: getattr(self, name)(*a, **k), given, kwargs, _of_tensors(name))
            if found is not None:
                return found
        given, kwargs = self.plain(given, kwargs)
        with self.at(NOTHING):
            return _METHODS.get(name, _call_method)(self.t, name, given[0], given[1:], kwargs)

    def special(self, left: Value, name: str, right: Value) -> Answer:
        """``left.name(right)`` of an operator that tensors have.

        A class's own operator, with the sides exchanged, goes before that of tensors, as in Python.
        """
        if isinstance(right, SubclassTensor) and name[2] != "i":
            mirrored = _mirrored(name)
            if mirrored != name and look_up(self.t, right.kind, mirrored)[0] not in OF_TORCH:
                return NotImplemented
        found = self.method(left, name, [right], {}).realize()
        return NotImplemented if isinstance(found, Constant) and found.value is NotImplemented else found

    def attribute(self, owner: Value, name: str) -> Value:
        """``owner.name`` of an attribute that tensors compute."""
        if self.applies([owner]):
            found = self.ask(lambda self: getattr(self, name), [owner], {})
            if found is not None:
                return found
        return self.torchs(owner, name)

    def torchs(self, owner: Value, name: str) -> Value:
        """The same, where nobody answers."""
        with self.at(NOTHING):
            if isinstance(owner, SubclassTensor):
                return owner.torchs_attribute(self.t, name)
            return owner.get_attr(self.t, name)

    def set_attribute(self, owner: Value, name: str, value: Value) -> None:
        """``owner.name = value``."""
        if self.applies([owner, value]):
            found = self.ask(lambda self, value: setattr(self, name, value), [owner, value], {})
            if found is not None:
                return
        if isinstance(owner, SubclassTensor) and owner.object is not None:
            raise Unsupported(f"setting {name!r} of {owner.describe()}")
        with self.at(NOTHING):
            plain(owner).set_attr(self.t, name, plain(value))

    def access(self, accessor: tuple[str, str], args: list[Value]) -> Value:
        """A call of ``Tensor.name.__get__`` or ``__set__``."""
        name, kind = accessor
        if kind == "__get__":
            return self.attribute(args[0].realize(), name)
        self.set_attribute(args[0].realize(), name, args[1])
        return Constant(None)

    def ask(self, invoke: Callable, args: list[Value], kwargs: dict[str, Value], target: Any = None) -> Value | None:
        """The answer of whoever torch asks; None where it asks nobody."""
        stand_ins = _StandIns(self.level == ENABLED)
        asked = self._listen(stand_ins, invoke, args, kwargs)
        if asked is None:
            return None
        if isinstance(target, types.FunctionType) and not _is_itself(asked.function, target):
            return self.t.follow(self.t.wrap_known(target), args, kwargs)  # it asks nobody, what it calls does
        given = [self.t.wrap_known(asked.function), stand_ins.value(self.t, tuple(asked.kinds))]
        given += [stand_ins.value(self.t, v) for v in asked.rest]
        order = [stand_ins.first[k] for k in asked.kinds if k in stand_ins.first]
        if not order and not self.sees_all():
            return None
        self.t.blocks.refuse("an answer for one of torch's functions")
        return self._answer(given, order)

    def hand_over(self, function: Value, relevant: list[Value], args: list[Value], kwargs: dict[str, Value]) -> Value:
        """``handle_torch_function``: Python code asks, and names whom."""
        order: dict[type, Value] = {}
        for value in map(Value.realize, relevant):
            if is_overriding(value):
                order.setdefault(value.type(), value)
        kinds: list[type] = []
        for kind in order:  # a class comes before those that it derives from
            index = next((n for n, k in enumerate(kinds) if issubclass(kind, k)), len(kinds))
            kinds.insert(index, kind)
        known = [self.t.wrap_known(k) for k in kinds]
        given = [function, self.t.new_tuple(known), self.t.new_tuple(args), self.t.new_dict(kwargs)]
        return self._answer(given, [order[k] for k in kinds])

    def _listen(
        self, stand_ins: _StandIns, invoke: Callable, args: list[Value], kwargs: dict[str, Value]
    ) -> _Asked | None:
        before = function_override_state()
        with unset_fake_temporarily(), torch.inference_mode(False), torch.no_grad():
            set_function_override_state(_STATES[NOTHING])
            try:
                given, named = [stand_ins.of(v) for v in args], {k: stand_ins.of(v) for k, v in kwargs.items()}
                set_function_override_state(_STATES[ENABLED])
                with _Listener():
                    invoke(*given, **named)
            except _Asked as asked:
                return asked.with_traceback(None)  # whose frames would keep all that they hold until a collection
            except Unsupported:
                raise
            except Exception as error:
                first = str(error).partition("\n")[0]
                raise Unsupported(f"a call that torch refuses before it asks who answers: {first}") from error
            finally:
                set_function_override_state(before)
        return None

    def _answer(self, given: list[Value], order: list[Value]) -> Value:
        if self.sees_all():
            mode = self.modes.pop()
            try:
                result = self._asked(mode, given)
            finally:
                self.modes.append(mode)
            if result is not None:
                return result
        for value in order if self.level == ENABLED else ():
            result = self._asked(value, given)
            if result is not None:
                return result
        raise Unsupported("a call of torch's that nobody answers")

    def _asked(self, who: Value, given: list[Value]) -> Value | None:
        """What somebody answers, None for NotImplemented."""
        who = who.realize()
        try:
            method = who.get_attr(self.t, "__torch_function__")
        except Raised:
            raise Unsupported(f"__torch_function__ of {who.describe()}") from None
        result = self.t.call(method, given, {}).realize()
        return None if isinstance(result, Constant) and result.value is NotImplemented else result

    # Modes that the program enters and leaves.

    def push(self, mode: Value) -> None:
        """``with mode:`` begins."""
        self.assume_state()
        if not self.modes and not self.outer_modes and function_mode_count():
            raise Unsupported("a mode for torch's functions inside of a default device")
        self.modes.append(mode.realize())

    def pop(self) -> Value:
        """It ends."""
        if not self.modes:
            raise Unsupported("leaving a mode that was entered elsewhere")
        first = self._first()
        if len(self.modes) == first:
            raise Unsupported("leaving the mode that a default device is")
        mode = self.modes.pop()
        self.untouched = min(self.untouched, len(self.modes) - first)
        return mode

    def enter_device(self, device: torch.device) -> None:
        """``with torch.device(...)`` begins: the device stands in the place of a default one outside of modes."""
        covers = bool(self.modes) and self.modes[0].realize().type() is DeviceContext
        self.covered.append(self.modes[0] if covers else None)
        if covers:
            self.modes[0] = self.t.wrap_known(DeviceContext(device))

    def leave_device(self) -> None:
        """It ends."""
        covered = self.covered.pop()
        if covered is not None:
            self.modes[0] = covered

    def set_default_device(self, device: Value) -> None:
        """``torch.set_default_device`` among modes: the one that it is goes outside of all others."""
        if self.modes[0].realize().type() is DeviceContext:
            if self.default_device is None:
                self.outer_modes, self.untouched = self.outer_modes - 1, self.untouched - 1
            del self.modes[0]
        self.default_device = device
        if not self.t.is_none(device):
            self.modes.insert(0, self.t.wrap_known(DeviceContext(device.constant())))

    def _first(self) -> int:
        """How many modes are the default device that the program has set: one or none."""
        return int(self.default_device is not None and not self.t.is_none(self.default_device))

    def finish(self, r: Rebuilder) -> None:
        """Leave the stack of modes as the frame left it; and refuse what only an object of a class shows."""
        if self.level != self.outer_level:
            raise Unsupported("a graph break where torch's functions ask nobody", step=NOWHERE)
        if self.outer_modes and self.t.recorder.bindings:
            raise Unsupported("sizes that change, under a mode for torch's functions", step=NOWHERE)
        for _ in range(self.outer_modes - self.untouched):
            r.effect(f"{r.constant(pop_off_function_modes)}()")
        for mode in self.modes[self._first() + self.untouched :]:
            r.effect(f"{r.constant(push_onto_function_modes)}({r.load(mode)})")
        if self.default_device is not None:
            r.effect(f"{r.constant(torch.set_default_device)}({r.load(self.default_device)})")
        for value in self.inputs:
            value.check()


def _is_itself(found: Any, target: Any) -> bool:
    """Whether torch asked for the function that was called, not for one that this calls."""
    return found is target or getattr(found, "__name__", "").lstrip("_") == target.__name__.lstrip("_")


def _mirrored(name: str) -> str:
    """The special method of the right operand, for one of the left."""
    swapped = {"__lt__": "__gt__", "__le__": "__ge__", "__gt__": "__lt__", "__ge__": "__le__"}
    if name in swapped or name in ("__eq__", "__ne__"):
        return swapped.get(name, name)
    return name if name[2] == "r" and name[3:-2] in _OPERATORS else f"__r{name[2:]}"


def _of_tensors(name: str) -> Any:
    """What tensors have under a name."""
    return find_in_mro(torch.Tensor, name)[1]


def accessor_of(function: Any) -> tuple[str, str] | None:
    """For ``Tensor.name.__get__`` and ``__set__``: the name, and which of them it is."""
    if not isinstance(function, types.MethodWrapperType) or function.__name__ not in ("__get__", "__set__"):
        return None
    owner = function.__self__
    if isinstance(owner, types.GetSetDescriptorType) and owner.__objclass__ in (torch.Tensor, TensorBase):
        return owner.__name__, function.__name__
    if isinstance(owner, property) and owner.fget is not None:
        name = owner.fget.__name__
        return (name, function.__name__) if torch.Tensor.__dict__.get(name) is owner else None
    return None


def _flat(values: Iterable[Value]) -> Iterator[Value]:
    """Values, and those in lists and tuples among them."""
    for value in values:
        value = value.realize()
        if isinstance(value, (List, Tuple)):
            yield from (v.realize() for v in value.items)
        else:
            yield value


def plain(value: Value) -> Value:
    """A value with plain tensors in it for those of classes."""
    value = value.realize()
    if isinstance(value, SubclassTensor):
        return value.held
    if isinstance(value, (List, Tuple)) and any(isinstance(v, SubclassTensor) for v in _flat([value])):
        return type(value)([plain(v) for v in value.items])
    return value


def _asks(function: Any) -> bool:
    """Whether a call of a function may ask who answers.

    Torch is asked by making the call, so this is no question for what changes torch's own state instead.
    """
    if isinstance(function, (types.FunctionType, HigherOrderOperator)):
        return True
    return getattr(function, "__objclass__", None) in (torch.Tensor, TensorBase) or in_graph(function)


def is_of_torch(function: Any) -> bool:
    """Whether calls of a function may ask who answers."""
    return accessor_of(function) is not None or (is_torch_builtin(function) and function not in _SPEAK_OF_ANSWERS)


def _call_method(t: Tracer, name: str, owner: Value, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return owner.call_method(t, name, args, kwargs)


def _item(t: Tracer, name: str, owner: Value, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return owner.get_item(t, *args)


def _truth(t: Tracer, name: str, owner: Value, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return Constant(owner.truth(t))


def _operator(t: Tracer, name: str, owner: Value, args: list[Value], kwargs: dict[str, Value]) -> Value:
    plain = name.strip("_")
    if (operation := _OPERATORS.get(plain)) is not None:
        found = owner.binary(t, operation, args[0].realize(), False)
    elif name in _COMPARISONS:
        found = owner.compare(t, _COMPARISONS[name], args[0].realize())
    elif plain[0] == "i" and (operation := _OPERATORS.get(plain[1:])) is not None:
        found = owner.binary(t, operation, args[0].realize(), True)
    else:
        found = owner.reflected(t, _OPERATORS[plain[1:]], args[0].realize())
    return Constant(NotImplemented) if isinstance(found, types.NotImplementedType) else found


def _set_item(t: Tracer, name: str, owner: Value, args: list[Value], kwargs: dict[str, Value]) -> Value:
    owner.set_item(t, *args)
    return Constant(None)


_OPERATORS = {name: operation for operation, name in BINARY_NAMES.items()}
_COMPARISONS = {name: symbol for symbol, name in COMPARISON_NAMES.items()}
_METHODS: dict[str, Callable] = {
    "__getitem__": _item,
    "__setitem__": _set_item,
    "__bool__": _truth,
    "__len__": lambda t, name, owner, args, kwargs: owner.length(t),
    "__iter__": lambda t, name, owner, args, kwargs: owner.iterate(t),
    "__contains__": lambda t, name, owner, args, kwargs: owner.contains(t, *args),
    **{f"__{side}{name}__": _operator for name in _OPERATORS for side in ("", "r", "i")},
    **dict.fromkeys(_COMPARISONS, _operator),
}
"""Methods that capture has another way to call."""

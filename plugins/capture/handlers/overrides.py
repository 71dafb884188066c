"""Torch's own part in ``__torch_function__``: its answer, who is asked, modes, and making tensors of classes."""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import BaseTorchFunctionMode, TorchFunctionMode, get_default_nowrap_functions

from turret.plugins.capture.errors import Unsupported
from turret.plugins.capture.interpreter.overrides import ENABLED, NO_SUBCLASSES, NOTHING, plain
from turret.plugins.capture.python import polyfills
from turret.plugins.capture.registry import Handler, registry
from turret.plugins.capture.values.base import Constant, Tracer, Value
from turret.plugins.capture.values.made_wrappers import HalfMade, is_made_here, options_of
from turret.plugins.capture.values.overriding import SubclassTensor, answers, is_overriding, is_plain_subclass
from turret.plugins.capture.values.sequences import List, NamedTuple, Tuple
from turret.plugins.capture.values.tensors import Tensor
from turret.torch_compat.function_overrides import (
    DisableTorchFunction,
    DisableTorchFunctionSubclass,
    disabled_torch_function,
    pop_off_function_modes,
    push_onto_function_modes,
    torch_function_all_disabled,
    torch_function_enabled,
)
from turret.torch_compat.modes import function_mode_at, function_mode_count
from turret.torch_compat.programs.functions import make_subclass, make_wrapper_subclass

# Answers.


@registry.function(torch.Tensor.__torch_function__.__func__)  # type: ignore[attr-defined]
def default_answer(
    t: Tracer, cls: Value, func: Value, types: Value, args: Value | None = None, kwargs: Value | None = None
) -> Value:
    """What a class does that says nothing else: tensors of it, for tensors of it."""
    kind = t.constant_of(cls)
    if not all(issubclass(kind, t.constant_of(k)) for k in types.realize().unpack(t)):
        return Constant(NotImplemented)
    nodes = t.recorder.graph.nodes
    last = next(iter(reversed(nodes)), None)
    result = _past_classes(t, func, args, kwargs)
    function = func.realize()
    keeps = function.is_constant() and function.constant() in get_default_nowrap_functions()
    return result if keeps else _converted(t, result, kind, last)


@registry.function(disabled_torch_function)
def disabled_answer(
    t: Tracer, func: Value, types: Value, args: Value | None = None, kwargs: Value | None = None
) -> Value:
    """What a class does that has no say."""
    return _past_classes(t, func, args, kwargs)


def _past_classes(t: Tracer, function: Value, args: Value | None, kwargs: Value | None) -> Value:
    given = [] if args is None else args.realize().unpack(t)
    named = {} if kwargs is None or t.is_none(kwargs) else {k.constant(): v for k, v in _pairs(t, kwargs)}
    with t.overrides.at(NO_SUBCLASSES):
        return t.call(function, given, named)


def _pairs(t: Tracer, named: Value) -> list[tuple[Value, Value]]:
    return [(k.realize(), v) for k, v in t.pairs(named)]


def _converted(t: Tracer, result: Value, kind: type, last: Any) -> Value:
    """Tensors in a result as ones of a class; ``last`` is the last node before the call that gave it."""
    result = result.realize()
    if kind is torch.Tensor:
        return result
    if isinstance(result, Tensor):
        return of_class(t, result, kind, last)
    if isinstance(result, SubclassTensor) and not issubclass(result.kind, kind):
        return of_class(t, result.held, kind, None)
    if isinstance(result, NamedTuple):
        return NamedTuple([_converted(t, v, kind, last) for v in result.items], result.kind)
    if type(result) is List or type(result) is Tuple:
        return result.like([_converted(t, v, kind, last) for v in result.items])
    return result


def of_class(t: Tracer, tensor: Tensor, kind: type, last: Any) -> Value:
    """A tensor of a class in the memory of one that is plain: the same where nobody else has that by now."""
    if not is_plain_subclass(kind) or not answers(kind):
        raise Unsupported(f"a tensor of {kind.__qualname__} made in compiled code")
    new = tensor.source is None and last is not None and last.graph is tensor.node.graph and last < tensor.node
    if not new:
        made = t.recorder.call(torch.ops.aten.alias.default, [tensor], {}).realize()
        assert isinstance(made, Tensor)
        tensor = made
    t.overrides.assume_state()
    return SubclassTensor(kind, tensor)


# Making tensors of classes.


@registry.tensor_method("as_subclass")
def as_subclass(t: Tracer, tensor: Tensor, cls: Value) -> Value:
    kind = t.constant_of(cls)
    if kind is torch.Tensor:
        return t.recorder.call(torch.ops.aten.alias.default, [tensor], {})
    return of_class(t, tensor, kind, None)


@registry.function(make_subclass)
def make_instance(t: Tracer, /, cls: Value, data: Value, require_grad: Value | None = None, **options: Value) -> Value:
    """A tensor of a class in the memory of another one, that autograd knows nothing of."""
    data = plain(data)
    kind, leaf = t.constant_of(cls), require_grad is not None and t.truth(require_grad)
    if options or (leaf and kind is not torch.Tensor) or not isinstance(data, Tensor):
        raise Unsupported(f"Tensor._make_subclass of {kind.__qualname__} that is a leaf of autograd, or with options")
    held = t.recorder.call_method("detach", [data], {}).realize()
    assert isinstance(held, Tensor)
    if kind is torch.Tensor:
        return t.recorder.call_method("requires_grad_", [held], {}) if leaf else held
    return of_class(t, held, kind, data.node)


@registry.function(make_wrapper_subclass)
def make_wrapper(t: Tracer, /, cls: Value, size: Value, **options: Value) -> Value:
    """A wrapper whose tensors its class is about to give it."""
    kind = t.constant_of(cls)
    if not is_made_here(kind):
        raise Unsupported(f"making a {kind.__qualname__} in compiled code")
    return HalfMade(kind, size.realize(), options_of(t, options))


@registry.function(torch.Tensor.__new__)
def new_tensor(t: Tracer, cls: Value, *args: Value) -> Value:
    """``Tensor.__new__(cls, *args)``: of a tensor, one in its memory."""
    kind = t.constant_of(cls)
    value = plain(args[0]) if len(args) == 1 else None
    if not isinstance(value, Tensor):
        value = t.call(t.wrap_known(torch.Tensor), list(args), {}).realize()
    if not isinstance(value, Tensor) or value.fake.dtype is not torch.get_default_dtype():
        raise Unsupported(f"making a {kind.__qualname__} in compiled code")
    return of_class(t, value, kind, None)


# Who is asked.


def _quiet(level: int) -> Handler:
    return lambda t: t.call(t.wrap_known(polyfills.Quiet), [Constant(level)], {})


registry.classes[DisableTorchFunctionSubclass] = _quiet(NO_SUBCLASSES)
registry.classes[DisableTorchFunction] = _quiet(NOTHING)


@registry.function(polyfills.set_level)
def set_level(t: Tracer, level: Value, force: Value) -> Value:
    before = t.overrides.level
    asked = t.constant_of(level)
    t.overrides.assume_state()
    t.overrides.level = asked if t.truth(force) else max(before, asked)
    return Constant(before)


registry.functions[torch_function_enabled] = lambda t: Constant(t.overrides.level == ENABLED)
registry.functions[torch_function_all_disabled] = lambda t: Constant(t.overrides.level == NOTHING)


@registry.function(torch.overrides.has_torch_function)
def has_torch_function(t: Tracer, relevant_args: Value) -> Value:
    return _answered(t, relevant_args.realize().unpack(t))


@registry.function(torch.overrides.has_torch_function_unary)
def has_torch_function_unary(t: Tracer, argument: Value) -> Value:
    return _answered(t, [argument])


@registry.function(torch.overrides.has_torch_function_variadic)
def has_torch_function_variadic(t: Tracer, *arguments: Value) -> Value:
    return _answered(t, list(arguments))


def _answered(t: Tracer, values: list[Value]) -> Value:
    """Whether somebody answers for torch's functions of these."""
    if t.overrides.skips:
        t.overrides.skips = False
        return Constant(False)
    asked = t.overrides.level == ENABLED and any(map(_answers, values))
    return Constant(t.overrides.sees_all() or asked)


def _answers(value: Value) -> bool:
    """Whether an object's class answers for torch's functions; plain tensors do not."""
    value = value.realize()
    if isinstance(value, (Tensor, Constant)):
        return False
    return is_overriding(value) or answers(value.type())


def redispatch(t: Tracer, func: Value, types: Value, args: Value, kwargs: Value) -> Value:
    """A call of a function of which nobody is asked, while those that it calls ask as ever."""
    given = args.realize().unpack(t)
    named = {k.constant(): v for k, v in _pairs(t, kwargs)}
    t.overrides.skips = True
    try:
        return t.call(func, given, named)
    finally:
        t.overrides.skips = False


if hasattr(torch.overrides, "redispatch_function"):  # since torch 2.13
    registry.functions[torch.overrides.redispatch_function] = redispatch


@registry.function(torch.overrides.handle_torch_function)
def handle_torch_function(
    t: Tracer, /, public_api: Value, relevant_args: Value, *args: Value, **kwargs: Value
) -> Value:
    """A function asks for an answer in place of what it does."""
    found = t.overrides.hand_over(public_api.realize(), relevant_args.realize().unpack(t), list(args), kwargs)
    assert isinstance(found, Value)
    return found


# Modes.


@registry.function(TorchFunctionMode.__init__)
def start_of_mode(t: Tracer, self: Value) -> Value:
    return Constant(None)


@registry.function(TorchFunctionMode.__enter__)
def enter(t: Tracer, self: Value) -> Value:
    t.overrides.push(self)
    return self


@registry.function(TorchFunctionMode.__exit__)
def leave(t: Tracer, self: Value, *exception: Value) -> Value:
    t.overrides.pop()
    return Constant(None)


@registry.function(push_onto_function_modes)
def push(t: Tracer, mode: Value) -> Value:
    t.overrides.push(mode)
    return Constant(None)


@registry.function(pop_off_function_modes)
def pop(t: Tracer) -> Value:
    return t.overrides.pop()


@registry.function(function_mode_count)
def count(t: Tracer) -> Value:
    return Constant(len(_modes(t)))


@registry.function(function_mode_at)
def mode_at(t: Tracer, position: Value) -> Value:
    modes, number = _modes(t), t.int_of(position)
    if not 0 <= number < len(modes):
        raise Unsupported("a mode for torch's functions that there is not")
    return modes[number]


def _modes(t: Tracer) -> list[Value]:
    """The modes that the program sees in use."""
    t.overrides.assume_state()
    if not t.overrides.modes and not t.overrides.outer_modes and function_mode_count():
        raise Unsupported("the mode that a default device is")
    return t.overrides.modes


@registry.function(BaseTorchFunctionMode.__torch_function__)
def answer_of_base(
    t: Tracer, self: Value, func: Value, types: Value, args: Value | None = None, kwargs: Value | None = None
) -> Value:
    given = [] if args is None else args.realize().unpack(t)
    named = {} if kwargs is None or t.is_none(kwargs) else {k.constant(): v for k, v in _pairs(t, kwargs)}
    return t.call(func, given, named)

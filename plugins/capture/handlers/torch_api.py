"""Torch's Python functions and classes, the compiler's own questions, and libraries that capture answers for."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib.metadata
import importlib.util
import inspect
import os
import typing
from collections.abc import Callable
from typing import Any

import torch
import torch.fx.graph_module
import torch.fx.node
import torch.fx.traceback
import torch.utils.checkpoint
from torch import nn

import turret.frames.annotations
import turret.frames.stances
from turret.frames.sources import BoundSource, WeakSource
from turret.plugins.capture.errors import AskedFor, DecidedByData, Unsupported
from turret.plugins.capture.handlers.builtins.polyfilled import polyfilled
from turret.plugins.capture.handlers.constructors import LEGACY_CLASSES
from turret.plugins.capture.python import fx_arguments, lookups, polyfills
from turret.plugins.capture.registry import Handler, registry
from turret.plugins.capture.values.base import Constant, Opaque, Tracer, Value
from turret.plugins.capture.values.classes import ORDINARY_METACLASSES, look_up
from turret.plugins.capture.values.functions import Cell, Known, Method, NestedFunction
from turret.plugins.capture.values.mappings import Dict
from turret.plugins.capture.values.modules import CODE_OF_CALL, Module
from turret.plugins.capture.values.objects import Instance
from turret.plugins.capture.values.sequences import Slice
from turret.plugins.capture.values.symbols import Symbolic
from turret.plugins.capture.values.tensors import Tensor
from turret.torch_compat.operators.library import CustomOpDef, code_of_triton_op
from turret.torch_compat.programs.functions import (
    assert_async,
    reshape_from_tensor,
    shape_as_tensor,
    torch_assert,
)
from turret.torch_compat.programs.tracers import (
    FxCall,
    get_tracing_state,
    is_checkpoint_valid,
    is_compiling,
    is_fx_symbolic_tracing,
    is_fx_tracing,
    jit_isinstance,
    set_tracing_state,
    unwrap_optional,
)

# Torch and the compiler itself.


def _always(result: Any) -> Handler:
    return lambda t, /, *args, **kwargs: t.wrap_known(result)


def _compiles(t: Tracer, /) -> Value:
    """True; the frame runs as it was captured, though there be nothing to compute in it."""
    t.told_of_compiling = True
    return Constant(True)


_function: Any
for _function in (torch.compiler.is_dynamo_compiling, is_compiling):
    registry.functions[_function] = _compiles
for _function in (
    torch.jit.is_scripting, torch.jit.is_tracing, torch.compiler.is_exporting, get_tracing_state,
    is_fx_symbolic_tracing, is_fx_tracing,
):  # fmt: skip
    registry.functions[_function] = _always(None if _function is get_tracing_state else False)


polyfilled(torch.fx.node.map_aggregate, fx_arguments.map_aggregate)
polyfilled(torch.fx.node.map_arg, fx_arguments.map_arg)
registry.followed.add("_no_mutation")  # what their lists and dicts raise by


@registry.function(torch.compiler.is_compiling)
def compiles(t: Tracer) -> Value:
    """True; but for the call of a module with hooks that are called even where it raises, which compilers may skip."""
    frame = t.call_stack.frames[-1]
    if frame.code is not CODE_OF_CALL:
        return _compiles(t)
    held = frame.locals[0]  # which a function inside of it refers to
    module = held.get(t) if isinstance(held, Cell) else held
    assert module is not None
    of_all = t.namespaces.variable(frame, "_global_forward_hooks_always_called")
    of_one = module.realize().get_attr(t, "_forward_hooks_always_called")
    return Constant(not t.truth(of_all) and not t.truth(of_one))


registry.named["torch._dynamo.external_utils", "is_compiling"] = _compiles


@registry.module("torch.fx.experimental.proxy_tensor")
def sizes_as_a_tree(t: Tracer, function: Any, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
    """How ``torch.utils._pytree`` takes a ``torch.Size`` apart and puts it together."""
    if function.object.__name__ != "<lambda>":
        return None
    return t.follow(function, args, kwargs)


def _call_optimized_module(t: Tracer, /, module: Value, *args: Value, **kwargs: Value) -> Value:
    """The call of what ``torch.compile`` makes of a module: the module becomes a part of the graph around."""
    held = module.realize()
    if not isinstance(held, Module) or held.hooks_in_use(t):
        raise Unsupported(f"a call of {held.describe()}, a module that torch compiles and that has hooks")
    original = (
        held.get_attr(t, "_modules").realize().get_item(t, Constant("_orig_mod"))
    )  # its __getattr__ asks that one
    return t.call(original, list(args), kwargs)


registry.followed.add("OptimizedModule.__getattr__")
registry.named["torch._dynamo.eval_frame", "OptimizedModule.__call__"] = _call_optimized_module
registry.followed.add("ProxyableClassMeta.__call__")  # of torch.fx: makes an instance as any class does
registry.functions[typing.cast] = lambda t, kind, value: value
registry.functions[torch.jit.annotate] = lambda t, the_type, the_value: the_value
registry.functions[torch.jit.isinstance] = lambda t, obj, target_type: t.call(
    t.wrap_known(jit_isinstance), [obj, target_type], {}
)
registry.functions[typing.get_origin] = lambda t, kind: t.fold(typing.get_origin, [kind], {})


@registry.function(typing.get_type_hints)
def type_hints(t: Tracer, /, obj: Value, *args: Value, **kwargs: Value) -> Value:
    t.provenance.bound_to_process("annotations of a class or function")
    return t.fold(typing.get_type_hints, [obj, *args], kwargs)


registry.functions[typing.get_args] = lambda t, kind: t.fold(typing.get_args, [kind], {})
registry.functions[unwrap_optional] = lambda t, x: t.follow(t.wrap_known(unwrap_optional), [x], {})
registry.functions[torch_assert] = lambda t, condition, message: _check(t, condition, message)


def _check(t: Tracer, condition: Value, message: Value) -> Value:
    condition = condition.realize()
    if isinstance(condition, Tensor):
        changed = t.recorder.versions.changed(t.recorder.inputs)
        may_break = not (t.policy.data_dependent or t.policy.whole)
        if may_break and (changed or not t.may_leave_checks()):
            raise DecidedByData("a check on data that the program handles, or that comes after a change")
        t.leaves_checks = True
        return t.recorder.call(assert_async, [condition], {})
    if not t.truth(condition):
        raise t.raised(AssertionError, message)
    return Constant(None)


@registry.function(set_tracing_state)
def switch_tracing(t: Tracer, state: Value) -> Value:
    """Compiled code is never under ``torch.jit.trace``; switching that off changes nothing."""
    if not t.is_none(state):
        raise Unsupported("switching torch.jit.trace on in compiled code")
    return Constant(None)


@registry.function(torch.is_tensor)
def is_tensor(t: Tracer, value: Value) -> Value:
    return Constant(isinstance(value.realize(), Tensor))


@registry.function(torch.overrides.is_tensor_like)
def is_tensor_like(t: Tracer, inp: Value) -> Value:
    """Tensors, and whatever answers for itself when torch's functions are called with it."""
    value = inp.realize()
    if isinstance(value, Tensor) or hasattr(value.type(), "__torch_function__"):
        return Constant(True)
    if isinstance(value, (Known, Opaque)):
        return Constant(hasattr(value.object, "__torch_function__"))
    return t.call(t.wrap_known(hasattr), [value, Constant("__torch_function__")], {})


@registry.function(FxCall.__call__)
def call_graph_module(t: Tracer, /, wrapped: Value, obj: Value, *args: Value, **kwargs: Value) -> Value:
    """The call of an ``fx.GraphModule``, without the message that it prints beside an exception."""
    return t.call(t.wrap_known(polyfills.call_graph_module), [wrapped, obj, *args], kwargs)


@registry.function(shape_as_tensor)
def sizes_as_tensor(t: Tracer, value: Value) -> Value:
    """A new tensor of the sizes, on the CPU."""
    return t.call(t.wrap_known(torch.tensor), [value.realize().get_attr(t, "shape")], {"dtype": Constant(torch.int64)})


@registry.function(reshape_from_tensor)
def reshape_as_told(t: Tracer, value: Value, shape: Value) -> Value:
    """``Tensor.reshape`` to sizes that a tensor of integers holds."""
    held = shape.realize()
    if not isinstance(held, Tensor) or held.fake.dtype is not torch.int64 or held.fake.dim() != 1:
        return t.recorder.call(reshape_from_tensor, [value, held], {})
    return t.recorder.call_method("reshape", [value, held.reads(t, "tolist")], {})


@registry.function(torch.tensor_split)
def split_as_told(t: Tracer, /, input: Value, *args: Value, **kwargs: Value) -> Value:
    """At places, or into so many parts, as a tensor of integers says, too."""
    name = "tensor_indices_or_sections"
    told = args[0] if args else kwargs.get(name)
    where = None if told is None else told.realize()
    if isinstance(where, Tensor) and where.fake.dtype is torch.int64 and where.fake.dim() < 2:
        args = (where.reads(t, "tolist"), *args[1:])
        kwargs = {k: v for k, v in kwargs.items() if k != name}
    return t.recorder.call(torch.tensor_split, [input, *args], kwargs)


@registry.tensor_method("tensor_split")
def split_of(t: Tracer, /, tensor: Tensor, *args: Value, **kwargs: Value) -> Value:
    return split_as_told(t, tensor, *args, **kwargs)


@registry.tensor_method("copy_")
def copy_into(t: Tracer, /, tensor: Tensor, other: Value, *rest: Value, **named: Value) -> Value:
    """Of a number, which graphs behind this one have no copies of: a fill."""
    other = other.realize()
    fills = isinstance(other, Constant) and type(other.value) in (bool, int, float)
    if fills:
        return t.recorder.call_method("fill_", [tensor, other], {})
    return t.recorder.call_method("copy_", [tensor, other, *rest], named)


@registry.function(torch.where)
def where(t: Tracer, /, condition: Value, *args: Value, **kwargs: Value) -> Value:
    """By a mask of bytes, too, which eager takes as before there were bools, and fake tensors refuse."""
    mask = condition.realize()
    if isinstance(mask, Tensor) and mask.fake.dtype is torch.uint8 and (args or kwargs):
        mask = t.recorder.call_method("bool", [mask], {}).realize()
    return t.recorder.call(torch.where, [mask, *args], kwargs)


@registry.tensor_method("where")
def where_of(t: Tracer, /, tensor: Tensor, condition: Value, other: Value) -> Value:
    return where(t, condition, tensor, other)


_NONE, _IN_USE, _MOMENTUM, _EPS = Constant(None), Constant(False), Constant(0.1), Constant(1e-5)


@registry.function(nn.functional.batch_norm)
def batch_norm(
    t: Tracer,
    input: Value,
    running_mean: Value,
    running_var: Value,
    weight: Value = _NONE,
    bias: Value = _NONE,
    training: Value = _IN_USE,
    momentum: Value = _MOMENTUM,
    eps: Value = _EPS,
) -> Value:
    """By a momentum that changes from step to step, too (a cumulative average), which torch's operation has none of."""
    running, factor = (running_mean, running_var), momentum.realize()
    if isinstance(factor, Symbolic) and factor.type() is float:
        updates = t.truth(training) and all(isinstance(v.realize(), Tensor) for v in running)
        if updates:
            by_parts = t.wrap_known(polyfills.batch_norm_of_momentum)
            return t.call(by_parts, [input, *running, weight, bias, factor, eps], {})
        momentum = Constant(0.0)  # which nothing reads
    return t.recorder.call(nn.functional.batch_norm, [input, *running, weight, bias, training, momentum, eps], {})


@registry.function(torch.fused_moving_avg_obs_fake_quant)
def fake_quantized(t: Tracer, /, *args: Value, **kwargs: Value) -> Value:
    """With a running minimum from before; the first call by rows makes room for it, which its fake does not."""
    running = kwargs.get("running_min", args[3] if len(args) > 3 else None)
    if running is not None and isinstance(held := running.realize(), Tensor) and held.fake.numel() == 0:
        raise Unsupported("an observer that is given its first values, for which it makes room")
    return t.recorder.call(torch.fused_moving_avg_obs_fake_quant, list(args), kwargs)


@registry.function(torch.detach_)
def detach_in_place(t: Tracer, input: Value) -> Value:
    return t.call(input.realize().get_attr(t, "detach_"), [], {})


@registry.function(torch.numel)
def numel(t: Tracer, input: Value) -> Value:
    return input.realize().call_method(t, "numel", [], {})


@registry.function(turret.frames.annotations.graph_break)
def graph_break(t: Tracer, reason: Value | None = None) -> Value:
    raise AskedFor(f"turret.graph_break({'' if reason is None else repr(t.constant_of(reason))})")


@registry.function(CustomOpDef.__call__)
def custom_op(t: Tracer, /, definition: Value, *args: Value, **kwargs: Value) -> Value:
    """A custom op of torch.library: its registered operator is the node.

    One of Triton kernels is followed where autograd has no part in it: for that the operator has a formula or an error.
    """
    code = code_of_triton_op(definition.realize().object)  # type: ignore[attr-defined]
    given = [v.realize() for v in (*args, *kwargs.values())]
    wants = any(isinstance(v, Tensor) and v.fake.requires_grad for v in given) and torch.is_grad_enabled()
    if code is not None and not wants:
        return t.call(t.wrap_known(code), list(args), kwargs)
    return t.recorder.call(definition.realize().object._opoverload, list(args), kwargs)  # type: ignore[attr-defined]


@registry.function(inspect.signature)
def signature(t: Tracer, /, value: Value, **kwargs: Value) -> Value:
    value = value.realize()
    make = t.provenance.make
    if isinstance(value, Known):
        return t.wrap_known(make(inspect.signature, value.constant()))
    if isinstance(value, Method) and isinstance(value.function, Known):
        return t.wrap_known(make(lookups.signature_of_method, value.function.constant()))
    if isinstance(value, Module) and isinstance(value.get_attr(t, "forward"), Method):
        return t.wrap_known(make(inspect.signature, value.constant()))
    if isinstance(value, NestedFunction):
        t.provenance.bound_to_process("the signature of a new function")
        return t.wrap_known(value.signature(t))
    raise Unsupported(f"inspect.signature of {value.describe()}")


@registry.function(dataclasses.is_dataclass)
def is_dataclass(t: Tracer, value: Value) -> Value:
    value = value.realize()
    cls = value.object if isinstance(value, Known) else value.type()
    return Constant(dataclasses.is_dataclass(cls))


@registry.function(nn.Module.__setattr__)
def module_setattr(t: Tracer, module: Value, name: Value, value: Value) -> Value:
    module = module.realize()
    if not isinstance(module, Module):  # made in compiled code: an object like any other
        return t.follow(t.wrap_known(nn.Module.__setattr__), [module, name, value], {})
    module.module_setattr(t, t.constant_of(name), value.realize())
    return Constant(None)


def _sliced(container: Any, original: Any) -> Handler:
    """A slice of a container of modules holds the same modules: one object serves all calls."""
    length = container.__len__

    def handler(t: Tracer, modules: Value, index: Value) -> Value:
        modules, index = modules.realize(), index.realize()
        if not isinstance(modules, Module) or look_up(t, modules.kind, "__len__")[1] is not length:
            return t.follow(t.wrap_known(original), [modules, index], {})
        state = modules.get_attr(t, "_modules").realize()
        if not isinstance(state, Dict):
            raise Unsupported(f"_modules of {modules.describe()}")
        if not isinstance(index, Slice):
            number = t.int_of(index)
            values = state.m_values(t).unpack(t)
            if not -len(values) <= number < len(values):
                raise t.raised(IndexError, f"index {number} is out of range")
            return values[number]
        for value in state.m_values(t).unpack(t):
            value.realize()
        bounds = slice(*(t.bound_of(v) for v in index.parts))
        part = t.provenance.make(lookups.slice_of, modules.constant(), bounds)
        made = t.wrap(part, WeakSource(type(part).__qualname__, part))
        made.made_here = True  # type: ignore[attr-defined]
        return made

    return handler


for _container in (nn.ModuleList, nn.Sequential):
    registry.functions[_container.__getitem__] = _sliced(_container, _container.__getitem__)


def _read_environment(t: Tracer, name: Value) -> str | None:
    """A variable of the environment, assumed to stay what it is."""
    text = t.constant_of(name)
    source = BoundSource("os.environ", os.environ)
    found = os.environ.get(text)
    t.guards.take("CALL", source, (functools.partial(lookups.variable, text), found))
    return found


def _assumed(function: Callable[[], Any]) -> Callable[[Tracer], Value]:
    """The handler of a function without arguments whose answer is assumed to stay what it is."""

    def handler(t: Tracer) -> Value:
        found = function()
        t.guards.take("CALL", BoundSource(function.__qualname__, function), (lookups.result, found))
        return t.wrap_known(found)

    return handler


for _question in (is_checkpoint_valid, torch.onnx.is_in_onnx_export):
    registry.functions[_question] = _assumed(_question)


@registry.function(os.getenv)
def getenv(t: Tracer, name: Value, default: Value | None = None) -> Value:
    found = _read_environment(t, name)
    return Constant(found) if found is not None else default or Constant(None)


@registry.function(type.__call__)
def call_past_the_metaclass(t: Tracer, /, cls: Value, *args: Value, **kwargs: Value) -> Value:
    kind = cls.realize()
    if not isinstance(kind, Known) or not isinstance(kind.object, type):
        raise Unsupported(f"type.__call__ of {kind.describe()}")
    make = t.call_class if type(kind.object) in ORDINARY_METACLASSES else t.instantiate
    return make(kind, list(args), kwargs)


@registry.function(type(os.environ).__getitem__)
def environment_item(t: Tracer, environment: Value, name: Value) -> Value:
    found = _read_environment(t, name)
    if found is None:
        raise t.raised(KeyError, name)
    return Constant(found)


registry.followed.add("_Environ.setdefault")  # which reads alone where there is such a variable


@registry.kind(turret.frames.stances.set_stance)
def set_stance(t: Tracer, /, *args: Value, **kwargs: Value) -> Value:
    raise Unsupported("a change of the stance")


@registry.function(importlib.util.find_spec)
def find_spec(t: Tracer, name: Value, package: Value | None = None) -> Value:
    t.provenance.bound_to_process("whether a package is installed")
    return t.wrap_known(importlib.util.find_spec(t.constant_of(name)))


@registry.function(importlib.metadata.version)
def version(t: Tracer, name: Value) -> Value:
    t.provenance.bound_to_process("the version of a package")
    return t.fold(importlib.metadata.version, [name], {})


@registry.kind(torch.profiler.record_function)
def record_function(t: Tracer, /, *args: Value, **kwargs: Value) -> Value:
    """Annotations for the profiler mean nothing inside a graph."""
    return t.call(t.wrap_known(contextlib.nullcontext), [], {})


@registry.function(torch.fx.traceback.annotate)
def annotate(t: Tracer, annotation_dict: Value) -> Value:
    """Notes for readers of exported graphs."""
    return t.call(t.wrap_known(contextlib.nullcontext), [], {})


registry.functions[torch.distributed.is_available] = _always(torch.distributed.is_available())


if torch.distributed.is_available():

    @registry.function(torch.distributed.is_initialized)
    def is_initialized(t: Tracer) -> Value:
        """Whether there is a process group, assumed to stay so."""
        source = BoundSource("torch.distributed", torch.distributed)
        found = lookups.process_group(torch.distributed)
        t.guards.take("CALL", source, (lookups.process_group, found))
        return Constant(found)


registry.classes.update(LEGACY_CLASSES)
registry.classes[torch.device] = lambda t, /, *args, **kwargs: t.fold(torch.device, list(args), kwargs)
registry.classes[torch.finfo] = lambda t, /, *args, **kwargs: t.fold(torch.finfo, list(args), kwargs)
registry.classes[torch.iinfo] = lambda t, /, *args, **kwargs: t.fold(torch.iinfo, list(args), kwargs)
registry.classes[property] = lambda t, /, *args, **kwargs: t.fold(property, list(args), kwargs)
registry.classes[object] = lambda t: Instance(object)

"""Optimizers of ``torch.optim``: what they tell torch's own compiler, and the steps that they count in tensors.

Eager reads counts of steps (and norms) as floats of Python; in their code such numbers stay in the graph as symbols, so
that it computes what eager does.  Where a branch depends on the count, the variant for ``capturable=True`` is followed,
which has none, on counts in double precision.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import types
from collections.abc import Callable
from typing import Any

import torch

from turret.plugins.capture.errors import Unsupported
from turret.plugins.capture.registry import Handler, registry
from turret.plugins.capture.values.base import Constant, Tracer, Value
from turret.plugins.capture.values.functions import Function
from turret.plugins.capture.values.sequences import Sequence
from turret.plugins.capture.values.tensors import Tensor
from turret.torch_compat.operators.native_functions import group_tensors_by_device_and_dtype
from turret.torch_compat.programs.functions import (
    group_tensors_unless_compiling,
    stack_if_compiling,
    use_grad_for_differentiable,
    value_of,
)
from turret.torch_compat.programs.tracers import disable_dynamo

_IN_GRAD_MODE: types.CodeType = use_grad_for_differentiable(lambda self: None).__code__


@registry.module("torch.optim.optimizer")
def step_in_grad_mode(t: Tracer, function: Function, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
    """The call of a ``step`` whose decorator sets the grad mode; None for any other function.

    The decorator asks torch's own compiler for graph breaks around the step; there is no need for them here.
    """
    if function.object.__code__ is not _IN_GRAD_MODE:
        return None
    (inner,) = function.cells(t)
    assert inner.content is not None
    return t.call(t.wrap_known(_in_grad_mode), [inner.content, *args], kwargs)


@registry.module("torch._compile")
def call_hidden(t: Tracer, function: Function, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
    """The call of what optimizers hide from torch's own compiler; None for any other.

    Always hidden is ``zero_grad``; the function of an optimizer's step is where its step counts lie on a GPU, which
    as tensors are nothing that capture has to read.
    """
    if function.object.__code__ is not _DISABLED:
        return None
    inner = function.cells(t)[_DISABLED.co_freevars.index("fn")]
    hidden = inner.content.realize() if inner.content is not None else None
    return t.call(hidden, args, kwargs) if isinstance(hidden, Function) and _is_of_optimizer(hidden.object) else None


def _is_of_optimizer(function: types.FunctionType) -> bool:
    """Whether a function that torch's compiler is kept from is a method of all optimizers (``add_param_group``), or
    the function of a step (``adam``)."""
    is_step = function.__module__.startswith("torch.optim.") and function.__qualname__ == function.__name__
    return is_step or function.__module__ == torch.optim.Optimizer.__module__


_DISABLED: types.CodeType = disable_dynamo(lambda: None).__code__


def _in_grad_mode(step: Any, *args: Any, **kwargs: Any) -> Any:
    before = torch.is_grad_enabled()
    try:
        torch.set_grad_enabled(args[0].defaults["differentiable"])
        return step(*args, **kwargs)
    finally:
        torch.set_grad_enabled(before)


@registry.function(value_of)
def get_value(t: Tracer, x: Value) -> Value:
    """A tensor of one element as the float that eager reads; a float as it is."""
    x = x.realize()
    return x.call_method(t, "item", [], {}) if isinstance(x, Tensor) else x


@registry.function(stack_if_compiling)
def listed(t: Tracer, x: Value) -> Value:
    """A list of numbers as it is."""
    items = x.realize()
    if isinstance(items, Sequence) and any(isinstance(v.realize(), Tensor) for v in items.items):
        return t.recorder.call(torch.stack, [items], {})
    return items


def _without_branches(original: Callable) -> Handler:
    """Handler of an optimizer's function of tensors: its variant for ``capturable=True``."""
    parameters = inspect.signature(original)

    def handler(t: Tracer, /, *args: Value, **kwargs: Value) -> Value:
        given = parameters.bind(*args, **kwargs).arguments
        if t.truth(given["capturable"]):
            return t.follow(t.wrap_known(original), list(args), kwargs)
        known = t.provenance.make(functools.partial, _capturable, original)
        return t.call(t.wrap_known(known), list(args), kwargs)

    return handler


def _capturable(original: Any, *args: Any, capturable: bool, **kwargs: Any) -> None:
    *tensors, steps = args
    counts = [step.to(torch.float64) for step in steps]
    original(*tensors, counts, capturable=True, **kwargs)
    for step, count in zip(steps, counts, strict=True):
        step.copy_(count)


for _name in ("asgd", "nadam", "radam"):
    _module = importlib.import_module(f"torch.optim.{_name}")  # the package has no attribute of that name
    for _kind in ("_single_tensor_", "_multi_tensor_"):
        _original = getattr(_module, _kind + _name)
        registry.functions[_original] = _without_branches(_original)


@registry.function(group_tensors_by_device_and_dtype)
@registry.function(group_tensors_unless_compiling)
def group_tensors(t: Tracer, tensorlistlist: Value, with_indices: Value | None = None) -> Value:
    """Lists of tensors cut into lists of one device and dtype, those of the tensors in the first list.

    The order of the groups is eager's own, since Adafactor takes from the first one what it adds in all.
    """
    lists = [each.realize().unpack(t) for each in tensorlistlist.realize().unpack(t)]
    fakes: list[torch.Tensor | None] = []
    for value in lists[0]:
        tensor = value.realize()
        if not isinstance(tensor, Tensor):
            raise Unsupported(f"{tensor.describe()} among tensors to be grouped")
        fakes.append(tensor.fake)
    indexed = with_indices is not None and t.truth(with_indices)
    made = {}
    for key, (_, numbers) in group_tensors_by_device_and_dtype([fakes], True).items():
        parts = t.new_list([t.new_list([part[n] for n in numbers] if part else []) for part in lists])
        made[key] = t.new_tuple([parts, t.new_list([Constant(n) for n in numbers] if indexed else [])])
    return t.new_dict(made)

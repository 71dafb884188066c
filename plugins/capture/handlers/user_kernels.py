"""Launches of the program's own Triton kernels, ``kernel[grid](...)``: one node of the graph each."""

from __future__ import annotations

from typing import Any

import torch

from turret.graph.ops.user_kernels import Launch, launch_op, written_arguments
from turret.plugins.capture.errors import Unsupported
from turret.plugins.capture.handlers.checkpoint import plain_argument
from turret.plugins.capture.registry import registry
from turret.plugins.capture.values.base import Constant, Tracer, Value
from turret.plugins.capture.values.functions import Handler, Known
from turret.plugins.capture.values.objects import Instance
from turret.plugins.capture.values.sequences import Sequence
from turret.plugins.capture.values.symbols import Symbolic
from turret.plugins.capture.values.tensors import Tensor
from turret.torch_compat.programs.functions import wrap_triton

_NUMBERS = {int: "SymInt", float: "float", bool: "bool"}


class UserKernel(Known):
    """A kernel, known by identity."""

    def get_item(self, t: Tracer, key: Value) -> Value:
        """A launch with a grid."""
        grid = key.realize()

        def launch(t: Tracer, /, *args: Value, **kwargs: Value) -> Value:
            return self.launch(t, grid, args, kwargs)

        return Handler(f"a launch of {self.describe()}", launch)

    def get_attr(self, t: Tracer, name: str) -> Value:
        raise Unsupported(f"attribute {name!r} of the kernel {self.describe()}")

    def launch(self, t: Tracer, grid: Value, args: tuple[Value, ...], kwargs: dict[str, Value]) -> Value:
        """Record a launch."""
        kernel, names = self.object, self.object.arg_names
        if len(args) > len(names):
            raise t.raised(TypeError, f"{self.describe()} takes {len(names)} arguments")
        bound = {k: v.realize() for k, v in {**dict(zip(names, args, strict=False)), **kwargs}.items()}
        held = _constexprs(kernel)
        tensors = {k: v for k, v in bound.items() if isinstance(v, Tensor)}
        numbers = {k: v for k, v in bound.items() if isinstance(v, Symbolic) and k in names and k not in held}
        constants = {k: _constant(t, v) for k, v in bound.items() if k not in tensors and k not in numbers}
        operands: list[Value] = [*tensors.values(), *numbers.values()]
        computed = self.computed_grid(t, grid)
        if computed is None:
            operands.append(t.new_tuple(_sizes(t, grid, bound)))
        written = written_arguments(kernel) & tensors.keys()
        kinds = tuple((k, _NUMBERS[v.type()]) for k, v in numbers.items())
        op = launch_op(Launch(kernel, tuple(tensors), written, kinds, constants, computed))
        t.provenance.bound_to_process(f"{self.describe()}, a kernel of the program's own")
        t.recorder.call(op, operands, {})
        for name in written:
            torch.autograd.graph.increment_version(tensors[name].fake)
        return Constant(None)

    def computed_grid(self, t: Tracer, grid: Value) -> Any:
        """What computes the grid at each launch, where what tunes the kernel chooses arguments of it; else None."""
        tuned = hasattr(self.object, "configs") or hasattr(self.object, "values")
        return plain_argument(t, grid) if tuned and not isinstance(grid, Sequence) else None


def _sizes(t: Tracer, grid: Value, bound: dict[str, Value]) -> list[Value]:
    """The sizes of a grid; a function gets the arguments of the launch."""
    if not isinstance(grid, Sequence) and not isinstance(grid, (Constant, Symbolic)):
        grid = t.call(grid, [t.new_dict(dict(bound))], {}).realize()
    return grid.unpack(t) if isinstance(grid, Sequence) else [grid]


def _constexprs(kernel: Any) -> frozenset[str]:
    """Names of arguments that are part of what is compiled."""
    while hasattr(kernel, "fn"):
        kernel = kernel.fn
    return frozenset(k for k, v in kernel.__annotations__.items() if "constexpr" in str(getattr(v, "__name__", v)))


def _constant(t: Tracer, value: Value) -> Any:
    value = value.realize()
    if isinstance(value, Instance) and value.object is not None and not value.stores and value.source is not None:
        t.guards.take("ID", value.source, value.object)
        return value.object
    return t.constant_of(value)


def _kernel(t: Tracer, object: Any, source: Any) -> Value:
    t.guards.take("ID", source, object)
    return UserKernel(object, source)


for _name in (
    ("triton.runtime.jit", "JITFunction"),
    ("triton.runtime.interpreter", "InterpretedFunction"),
    ("triton.runtime.autotuner", "Autotuner"),
    ("triton.runtime.autotuner", "Heuristics"),
):
    registry.named_wrappers[_name] = _kernel


@registry.function(wrap_triton)
def wrapped(t: Tracer, kernel: Value, /) -> Value:
    """A kernel in the code of a ``triton_op``, which says that tracers may look into it."""
    return kernel

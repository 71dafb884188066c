"""Programs lowered and interpreted: what the tests of this folder share."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from tests.plugins.joint_graphs import functionalized, make_context
from turret.hooks.products import StageGraph, Target
from turret.ir import Extern, LoopProgram, Ref, defined, verify
from turret.plugins.decompositions.table import decomposition_table
from turret.plugins.joint.ops.eager_kernels import PreferEagerKernels
from turret.plugins.lowerings import turret_lower, turret_lowerings
from turret.plugins.place import turret_place
from turret.testing.loops.interpreter import run_program

CPU = Target("cpu")


class BuiltinLowerings:
    """The plugin that the placement asks which ops are lowered."""

    turret_lowerings = staticmethod(turret_lowerings)


def stage_graph(
    function: Callable, args: Sequence[Any], *, dynamic: bool = False, decompose: bool = True
) -> StageGraph:
    """The functional ATen graph of ``function(*args) -> tuple``, as the pipeline would hand it to lowering."""
    mode = FakeTensorMode(shape_env=ShapeEnv() if dynamic else None, allow_non_fake_inputs=True)

    def fake(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return mode.from_tensor(value.detach(), static_shapes=None if dynamic else True)

    table = dict(decomposition_table()) if decompose else {}
    with torch.no_grad(), PreferEagerKernels():
        module = make_fx(functionalized(function), decomposition_table=table, tracing_mode="real")(*map(fake, args))
    module.graph.eliminate_dead_code()
    (output,) = module.graph.output_node().args
    values = [getattr(node, "meta", {}).get("val") for node in output]
    strides = tuple(tuple(v.stride()) if isinstance(v, torch.Tensor) else None for v in values)
    return StageGraph(module, "inference", CPU, strides)


def lower(graph: StageGraph) -> LoopProgram:
    """The verified loop program of a graph under the built-in placement and lowerings."""
    placement = turret_place(make_context(BuiltinLowerings), graph)
    program = turret_lower(graph, placement, turret_lowerings())
    verify(program)
    return program


def lowered(function: Callable, *args: Any, dynamic: bool = False, decompose: bool = True) -> LoopProgram:
    """The verified loop program of ``function(*args) -> tuple``."""
    return lower(stage_graph(function, args, dynamic=dynamic, decompose=decompose))


def externs(program: LoopProgram) -> list[str]:
    """Names of the ops that a program calls as externs."""
    return [str(s.op).removeprefix("aten.") for s in program.statements if isinstance(s, Extern)]


def check(
    function: Callable,
    *args: Any,
    dynamic: bool = False,
    decompose: bool = True,
    loops_only: bool = False,
    **tolerance: float,
) -> LoopProgram:
    """``function(*args) -> tuple`` gives, lowered and interpreted, what it gives in eager, strides included."""
    program = lowered(function, *map(_clone, args), dynamic=dynamic, decompose=decompose)
    if loops_only:
        assert not externs(program), program
    compare(program, function, args, **tolerance)
    return program


def compare(program: LoopProgram, function: Callable, args: Sequence[Any], **tolerance: float) -> None:
    """The program gives what the function gives in eager on ``args``."""
    want = function(*map(_clone, args))
    got = run_program(program, [_clone(a) for a in args])
    assert len(got) == len(want), program
    for one, other, output in zip(got, want, program.outputs, strict=True):
        if not isinstance(other, torch.Tensor):
            assert one == other, program
            continue
        where = _about(program, output)
        assert one.dtype == other.dtype and one.shape == other.shape, where
        settings = tolerance or tolerance_of(other)
        message = functools.partial("{1}\n{0}".format, where)
        torch.testing.assert_close(one, other, equal_nan=True, **settings, msg=message)
        strides = [(a, b) for n, a, b in zip(other.shape, one.stride(), other.stride(), strict=True) if n > 1]
        assert other.numel() == 0 or all(a == b for a, b in strides), f"{one.stride()}, {other.stride()}\n{where}"


def _about(program: LoopProgram, output: Any) -> str:
    """The program, or the one line of a long program that makes an output."""
    if len(program.statements) < 20:
        return str(program)
    made = (s for s in program.statements if isinstance(output, Ref) and output.name in {d.name for d in defined(s)})
    return "\n".join(map(str, made))


def tolerance_of(want: torch.Tensor) -> dict[str, float]:
    """Room for another order of rounding, by the size of the largest element; exact for integers."""
    if not (want.dtype.is_floating_point or want.dtype.is_complex):
        return {"rtol": 0, "atol": 0}
    dtype = want.dtype.to_real() if want.dtype.is_complex else want.dtype
    eps = torch.finfo(dtype).eps * (4 if dtype.itemsize == 2 else 64)
    finite = want[want.isfinite()].abs()
    return {"rtol": eps, "atol": eps * max(1e-2, finite.max().item()) if finite.numel() else 0.0}


def _clone(value: Any) -> Any:
    """A copy with the same strides, in memory of its own."""
    if not isinstance(value, torch.Tensor):
        return value
    value = value.detach()
    storage = value.untyped_storage().clone()
    return value.new_empty(0).set_(storage, value.storage_offset(), value.shape, value.stride())

"""An op that is added from outside is compiled like one of Turret's own, and taken back leaves nothing behind."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest
import torch

import turret
from tests.plugins.codegen.triton.interpreted_codegen import InterpretedCodegen
from turret.errors import VerificationError
from turret.graph import scalar_ops
from turret.graph.op_set import Family, family_of
from turret.graph.scalar_ops import OPS, ScalarOp
from turret.ir import call, constant
from turret.ir.text import parse
from turret.pipeline.keys.graph_key import graph_key
from turret.plugins.codegen.cpp.emission.operators import TEXTS as CPP
from turret.plugins.codegen.triton.emission.operators import TEXTS as TRITON
from turret.plugins.partition.cost import recompute_cost
from turret.testing.loops.interpreter import run_program

OP = torch.ops.aten.special_erfcx.default
SCALED_ERFC = """\
template <class T> INLINE T scaled_erfc(T x, T product) {  // the product where it is exact, else a continued fraction
  T rest = x;
  for (int k = 12; k > 0; k--) rest = x + k * (T)0.5 / rest;
  return x < 4 ? product : (T)0.5641895835477563 / rest;
}"""


@contextlib.contextmanager
def added() -> Iterator[None]:
    """While active, the op is in the table, and two languages write it."""
    scalar_ops.register(
        ScalarOp("erfcx", 1, torch.special.erfcx, ("special_erfcx",), domain="float", cost="transcendental")
    )
    CPP.register("erfcx", {"scaled_erfc": SCALED_ERFC}, float="scaled_erfc<{T}>({0}, exp{f}({0} * {0}) * erfc{f}({0}))")
    TRITON.register("erfcx", float="libdevice.erfcx({0})")
    try:
        yield
    finally:
        TRITON.unregister("erfcx")
        CPP.unregister("erfcx")
        scalar_ops.unregister("erfcx")


@pytest.fixture
def erfcx() -> Iterator[None]:
    with added():
        yield


def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (torch.special.erfcx(x) * y).sum(-1)


def inputs(dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    x = torch.linspace(-2, 30, 60, dtype=torch.float64).reshape(5, 12)
    return [x.to(dtype).requires_grad_(), x.cos().to(dtype)]


def source_of(*args: torch.Tensor) -> str:
    parts = turret.partition(turret.joint_graph(program, *args))
    return turret.codegen(turret.schedule(turret.lower(parts))).source


def check(run: Callable, dtype: torch.dtype = torch.float32) -> None:
    """``run`` gives what the program gives, and its gradient."""
    given, meant = inputs(dtype), inputs(dtype)
    found, wanted = run(*given), program(*meant)
    found.sum().backward()
    wanted.sum().backward()
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(given[0].grad, meant[0].grad)


@pytest.mark.usefixtures("erfcx")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_the_op_is_compiled_to_cpp_forward_and_backward(dtype: torch.dtype) -> None:
    check(turret.compile(program, options={"on_error": "raise"}), dtype)
    source = source_of(*inputs(dtype))
    assert "= scaled_erfc<" in source or "(scaled_erfc<" in source
    assert source.count("INLINE T scaled_erfc(") == 1


@pytest.mark.usefixtures("erfcx")
def test_the_op_is_compiled_to_triton() -> None:
    generator = InterpretedCodegen()
    check(turret.compile(program, options={"on_error": "raise"}, plugins=[generator]))
    assert any("libdevice.erfcx(" in kernel.source for kernel in generator.kernels.values())


@pytest.mark.usefixtures("erfcx")
def test_program_text_interpreter_folding_and_costs_know_the_op() -> None:
    args = [x.detach() for x in inputs()]
    loops = turret.lower(turret.partition(turret.joint_graph(program, *args)))
    assert "erfcx(" in str(loops) and str(parse(str(loops))) == str(loops)
    torch.testing.assert_close(run_program(loops, args)[0], program(*args))
    graph = turret.joint_graph(program, *args).module.graph
    (node,) = [n for n in graph.nodes if n.target is OP]
    (product,) = [n for n in graph.nodes if n.target is torch.ops.aten.mul.Tensor]
    assert recompute_cost(node) > recompute_cost(product)
    with pytest.raises(VerificationError, match="'erfcx' with 2 arguments"):
        call("erfcx", constant(1, torch.float32), constant(1, torch.float32))


def test_what_was_compiled_with_the_op_and_without_it_are_kept_apart() -> None:
    args = inputs()
    functions = dict(CPP.functions), dict(TRITON.functions)
    seen = []
    for context in (contextlib.nullcontext(), added(), contextlib.nullcontext()):
        with context:
            check(turret.compile(program, options={"on_error": "raise"}))
            key = graph_key(turret.captured_graph(program, *args), "")
            seen.append((family_of(OP), "scaled_erfc" in source_of(*args), key))
    assert [found[:2] for found in seen] == [(None, False), (Family.POINTWISE, True), (None, False)]
    assert seen[0] == seen[2] and seen[0][2] != seen[1][2]
    assert "erfcx" not in OPS and functions == (CPP.functions, TRITON.functions)

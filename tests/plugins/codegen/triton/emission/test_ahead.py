"""What nobody writes is loaded in front of the wait for the kernel ahead, and nothing else is."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import torch

import turret
from tests.plugins.codegen.triton.test_stage import compile_for_gpu
from tests.plugins.codegen.triton.triton_lab import compile_offline
from tests.plugins.loop_lab import schedule
from turret.ir.text import parse
from turret.plugins.codegen.triton import DeviceProperties, emit
from turret.plugins.codegen.triton.emission.ahead import ahead
from turret.plugins.codegen.triton.stream import given_tensors

pytest.importorskip("triton")

ROW = """\
  input x: float32[1, 64]
  input w: float32[40, 64]
  y: float32[1, 40]  [i0<1, i1<40] = sum<r0<64>(mul(x[i0, r0], w[i1, r0]))
  return %y
"""
PICKED = """\
  input x: float32[1, 64]
  input n: int64[40]
  input w: float32[40, 64]
  y: float32[1, 40]  [i0<1, i1<40] = sum<r0<64>(mul(x[i0, r0], w[[check_index(n[i1], 40)], r0]))
  return %y
"""


def source(lines: str, *given: str, capability: tuple[int, int] = (9, 0)) -> str:
    program = parse(f"loop program p:\n{lines}")
    (kernel,) = schedule(program).kernels
    (emitted,) = emit(kernel, program.declarations(), DeviceProperties(capability), None, frozenset(given))
    return emitted.source


def test_a_weight_is_loaded_before_the_wait_and_the_rest_behind_it() -> None:
    front, _, behind = source(ROW, "w").partition("gdc_wait()  #")
    assert front.count("tl.load(") == 1 and behind.count("tl.load(") == 1
    assert behind.index("gdc_launch_dependents()") < behind.index("tl.load(")


@pytest.mark.parametrize("given", [(), ("y",)])
def test_what_may_be_written_waits(given: tuple[str, ...]) -> None:
    assert "tl.load(" not in source(ROW, *given).partition("gdc_wait()  #")[0]


def test_without_programmatic_launches_nothing_waits() -> None:
    assert "gdc" not in source(ROW, "w", capability=(8, 0))


def test_no_access_comes_before_the_check_of_its_index() -> None:
    front, _, behind = source(PICKED, "x", "n", "w").partition("gdc_wait()  #")
    assert "tl.device_assert(" in behind
    assert behind.index("tl.device_assert(") < behind.rindex("tl.load(")
    assert front.count("tl.load(") <= 2  # of the row, and of the numbers


def test_what_is_needed_comes_along_in_order_and_once() -> None:
    lines = [
        "x = tl.arange(0, 4)",
        "t0 = tl.load(p0 + x).to(tl.float32)",
        "i0 = x * 2",
        "t1 = tl.load(p1 + i0)",
        "t2 = tl.load(p1 + (t1 + x)).to(tl.float32)",
        "total = 0.0",
        "for k in range(4):",
        "    total += tl.load(p1 + k)",
        "t3 = tl.load(p1 + total)",
        "tl.store(p2 + x, t0 + t2 + t3)",
    ]
    front, behind = ahead(lines, ["p0", "p1", "p2"], ["p1"])
    assert front == [lines[0], lines[2], lines[3], "t2_ahead = tl.load(p1 + (t1 + x))"]
    assert behind == [lines[1], "t2 = t2_ahead.to(tl.float32)", *lines[5:]]


def test_it_compiles_with_loads_in_front_of_the_wait() -> None:
    program = parse(f"loop program p:\n{ROW}")
    (kernel,) = schedule(program).kernels
    (emitted,) = emit(kernel, program.declarations(), given=frozenset(["w"]))
    ptx = compile_offline(attrs.evolve(emitted, divisible=frozenset(emitted.parameters))).asm["ptx"]
    wait = ptx.index("griddepcontrol.wait")
    assert 0 < ptx.index("ld.global") < wait < ptx.index("griddepcontrol.launch_dependents")
    assert "ld.global" in ptx[wait:]


class Kept:
    """Plugin: the last schedule."""

    made: Any = None

    @turret.hookimpl
    def turret_event(self, event: Any) -> None:
        if event.kind == "product" and event.stage == "schedule":
            self.made = event.product


def scheduled(function: Any, *args: Any, dynamic: bool | None = None) -> Any:
    kept = Kept()
    options = {"on_error": "raise", "cache": False}
    with torch.no_grad():
        turret.compile(function, plugins=[kept], options=options, dynamic=dynamic)(*args)
    return kept.made


def test_inputs_that_a_program_writes_are_not_given() -> None:
    def function(x: torch.Tensor, weight: torch.Tensor, cache: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
        cache.copy_(cache * 2 + x)
        step.add_(1)
        return x @ weight + cache

    made = scheduled(function, torch.randn(4, 4), torch.randn(4, 4), torch.randn(4, 4), torch.zeros(1))
    assert given_tensors(made) == {"x", "weight"}


def test_symbolic_sizes_give_nothing() -> None:
    """A kernel that has nothing to launch would leave the one behind it with another ahead."""
    assert given_tensors(scheduled(torch.exp, torch.randn(6, 4), dynamic=True)) == frozenset()


def test_the_first_kernel_of_a_segment_waits_before_it_loads_anything(tmp_path: Any) -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.softmax(x + w, -1), torch.softmax((x.sum(0) * 2 + w) * x.sum(0), -1)

    args = torch.randn(700, 600), torch.randn(700, 600)
    with torch.no_grad():
        plan = compile_for_gpu(function, *args, cache=tmp_path).plan
    kernels = plan.source.split("@triton.jit\ndef turret_")[1:]
    fronts = [kernel.partition("gdc_wait()  #")[0].count("tl.load(") for kernel in kernels]
    assert fronts[0] == 0 and any(fronts[1:])


def test_a_graph_for_a_gpu_has_such_kernels(tmp_path: Any) -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        rows = x.sum(1, keepdim=True).exp()
        return torch.softmax(rows * 2 + w, -1)

    with torch.no_grad():
        plan = compile_for_gpu(function, torch.randn(3000, 2000), torch.randn(3000, 2000), cache=tmp_path).plan
    assert "gdc_launch_dependents()" in plan.source

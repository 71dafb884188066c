"""Graphs become plans with binaries for a GPU that need not be there, and the same from the cache."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import turret
from tests.plugins.codegen.triton.test_products import Generated
from turret.errors import CodegenError
from turret.hooks import plugin_manager
from turret.hooks.context import CompileContext
from turret.hooks.hookspecs import hookimpl
from turret.hooks.products import Target
from turret.ir import Schedule
from turret.pipeline.stage_calls import create_context
from turret.plan import Call, Launch, Plan
from turret.plan.launch.device import TABLE
from turret.plan.launch.table import LaunchTable
from turret.plugins.codegen import triton
from turret.plugins.codegen.triton import shared_pool, stage
from turret.plugins.codegen.triton.compilation import workers
from turret.plugins.codegen.triton.tile_loops import tiling
from turret.plugins.codegen.triton.tiles import matrix
from turret.storage import codec
from turret.storage.artifact_cache import ArtifactCache
from turret.storage.libraries import find_library

pytest.importorskip("triton")


class Ran(Exception):
    """Raised in place of loading a plan, for want of a device."""


class ForGpu:
    """Plugin: what the CPU's pipeline scheduled, compiled for a GPU; ``results`` keeps plans and errors."""

    def __init__(self, arch: str = "sm_90", cores: int = 0) -> None:
        self.results: list[Plan | CodegenError] = []
        self.events: list[Any] = []
        self.target = Target("cuda", 0, arch, cores)

    @hookimpl
    def turret_codegen(self, context: CompileContext, schedule: Schedule) -> Plan:
        try:
            self.results.append(stage.codegen(context, schedule, self.target))
        except CodegenError as error:
            self.results.append(error)
        raise Ran

    @hookimpl
    def turret_event(self, event: Any) -> None:
        self.events.append(event)

    @property
    def plan(self) -> Plan:
        (result,) = self.results
        if isinstance(result, CodegenError):
            raise result
        return result


def compile_for_gpu(function: Any, *args: Any, cache: Path, arch: str = "sm_90", dynamic: bool | None = None) -> ForGpu:
    """The plugin after one graph of ``function``."""
    turret.reset()
    plugin = ForGpu(arch)
    options = {"cache_dir": str(cache), "on_error": "raise"}
    compiled = turret.compile(function, plugins=[plugin], options=options, dynamic=dynamic)
    with pytest.raises(Exception, match="Ran"):
        compiled(*args)
    return plugin


def table_of(plan: Plan) -> LaunchTable:
    return codec.loads(find_library(plan.library)[TABLE].decode())


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(64) for _ in range(3))
        self.linears = torch.nn.ModuleList(torch.nn.Linear(64, 64) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for norm, linear in zip(self.norms, self.linears, strict=True):
            x = x + torch.nn.functional.gelu(linear(norm(x)))
        return x


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_a_model_compiles_without_a_device_and_equal_layers_share_kernels(tmp_path: Path, arch: str) -> None:
    with torch.no_grad():
        plan = compile_for_gpu(Block().eval(), torch.randn(8, 64), cache=tmp_path, arch=arch).plan
    table = table_of(plan)
    launches = [step for step in plan.steps if isinstance(step, Launch)]
    calls = [step for step in plan.steps if isinstance(step, Call)]
    assert plan.device == "cuda:0" and len(calls) == 3 and set(table.segments) == {s.function for s in launches}
    kernels = sum(len(step.origins) for step in launches)
    assert len(table.kernels) < kernels
    entry = find_library(plan.library)
    assert all(entry[binary.file][:4] == b"\x7fELF" for binary in table.kernels)
    assert all(binary.function in plan.source for binary in table.kernels)


def test_a_second_compile_finds_every_kernel_and_starts_no_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x.sin(), -1)

    first = compile_for_gpu(f, torch.randn(4, 100), cache=tmp_path)
    monkeypatch.setattr(workers, "shared_pool", lambda wanted: pytest.fail("nothing is left to compile"))
    second = compile_for_gpu(f, torch.randn(4, 100), cache=tmp_path)
    assert second.plan.library == first.plan.library
    kinds = [[e.kind for e in p.events if e.stage == "codegen" and e.kind.startswith("cache")] for p in (first, second)]
    assert kinds == [["cache_miss"], ["cache_hit"]]


class Picky:
    """Stands for a tuner: of all candidates, the last."""

    def __init__(self, cache: Any, target: Target) -> None:
        self.seen: list[Any] = []

    def best(self, candidates: list[Any], declarations: Any) -> Any:
        self.seen.append(candidates)
        return candidates[-1]


def test_a_rival_that_is_faster_is_launched_and_one_that_does_not_compile_is_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage, "Tuner", Picky)
    monkeypatch.setattr(stage, "device_for", lambda kind: SimpleNamespace(is_available=lambda: True))
    monkeypatch.setattr(matrix, "_BLOCKS", matrix._BLOCKS[:1])
    shapes = [(rows, 128, 1, 64, 4, 3, False) for rows in (64, 96)]  # blocks have powers of two of rows
    monkeypatch.setattr(tiling, "_DESCRIBED", shapes)

    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.relu(x @ w)

    turret.reset()
    plugin = ForGpu(cores=8)
    options = {"cache_dir": str(tmp_path), "on_error": "raise", "max_autotune": True}
    compiled = turret.compile(f, plugins=[plugin, Generated(("tiles",))], options=options)
    with pytest.raises(Exception, match="Ran"):
        compiled(torch.ones(256, 128).bfloat16(), torch.ones(128, 256).bfloat16())
    table = table_of(plugin.plan)
    (binary,) = table.kernels
    assert "make_tensor_descriptor" in plugin.plan.source and binary.function in plugin.plan.source
    assert plugin.plan.scratch_bytes == -(-8 * 3 * 128 // 256) * 256


def test_progress_is_told_kernel_by_kernel(tmp_path: Path) -> None:
    plugin = compile_for_gpu(lambda x: (x.cumsum(0), x.sum(1) * 2), torch.randn(50, 60), cache=tmp_path)
    told = [e.message for e in plugin.events if e.kind == "progress"]
    assert told and told[-1].split()[0] == told[-1].split()[2]


def test_one_table_serves_all_sizes_of_a_dynamic_dimension(tmp_path: Path) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x.exp() / x.sum(1, keepdim=True)

    plan = compile_for_gpu(f, torch.randn(12, 32), cache=tmp_path, dynamic=True).plan
    assert plan.size_symbols and any(isinstance(v, str) for slot in plan.slots for v in slot.shape)
    assert all(len(words) > 20 for words in table_of(plan).segments.values())


def test_without_a_device_or_an_architecture_the_error_says_what_to_give(tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("a device is here")
    for arch, said in (
        ("", "no device cuda:0 here; give the target an architecture (sm_90)"),
        ("volta", "volta"),
    ):
        (error,) = compile_for_gpu(lambda x: x + 1, torch.randn(4), cache=tmp_path, arch=arch).results
        assert isinstance(error, CodegenError) and said in str(error)


def test_a_damaged_bundle_is_made_anew(tmp_path: Path) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x * 3

    plan = compile_for_gpu(f, torch.randn(9), cache=tmp_path).plan
    (ArtifactCache(tmp_path).path(plan.library.key) / TABLE).write_text("{}")
    again = compile_for_gpu(f, torch.randn(9), cache=tmp_path).plan
    assert again.library == plan.library and table_of(again).kernels


def test_other_devices_are_left_to_others(tmp_path: Path) -> None:
    assert triton.turret_codegen(None, None, Target("cpu")) is None
    assert triton.turret_codegen(None, None, Target("xpu", 0)) is None


def test_nothing_of_this_imports_the_compiler_here() -> None:
    program = "import sys, turret.hooks.plugin_manager as p; p.create(); print('triton' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100)
    assert done.stdout.strip() == "False", done.stderr


def test_the_first_word_of_a_graph_for_a_gpu_starts_the_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    manager = plugin_manager.default_manager()
    context = create_context(plugin_manager.configure(manager, None, {"compile_workers": 3}), manager)
    warmed: list[int] = []
    monkeypatch.setattr(workers, "shared_pool", lambda n: SimpleNamespace(warm=lambda: warmed.append(n)))
    assert triton.turret_decompositions(context, Target("cpu")) is None and warmed == []
    assert triton.turret_decompositions(context, Target("cuda", 0)) is None and warmed == [3]


def test_workers_are_shared_by_all_compiles() -> None:
    assert shared_pool(1) is shared_pool(1)

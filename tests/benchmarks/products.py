"""Matrix products on a GPU: generated kernels beside the library's, size by size, in one CUDA graph each.

    python -m tests.benchmarks.products --json products.json            # every size, in its configurations
    python -m tests.benchmarks.products --sizes decode --sweep          # many more configurations

A size is timed over several matrices in turn, so that none is still in the cache when it is read again.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import json
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import attrs
import pluggy
import torch

import turret.plugins.schedule as scheduler
from turret.hooks import hookspecs, plugin_manager
from turret.hooks.devices import device_for
from turret.hooks.hookspecs import hookimpl
from turret.hooks.products import Target
from turret.ir import (
    Definition,
    LoopProgram,
    ProductCandidate,
    Ref,
    Schedule,
    Statement,
    StridedView,
    Template,
    TensorDecl,
    cast,
    load,
)
from turret.ir.lowering import loop_variables
from turret.plan.launch.device import TABLE, DeviceLibrary
from turret.plan.launch.table import KernelLaunch, LaunchTable, Number, SlotPointer, expression, segment_words
from turret.plugins.codegen.triton import Config, DeviceProperties, KernelCompiler, TritonKernel, emit, shared_pool
from turret.plugins.codegen.triton.tiles import tiling
from turret.storage import codec
from turret.storage.artifact_cache import Entry, process_cache

FAR_APART = 160 << 20
"""Bytes of operands that a size is timed over in turn: more than the second-level cache holds."""


@attrs.frozen
class Case:
    """``[rows, depth]`` times ``[depth, columns]``, the right one stored transposed (as a linear's weight) or not, and
    perhaps in int8 (``stored``; the library has it in ``dtype``)."""

    name: str
    rows: int
    columns: int
    depth: int
    transposed: bool = True
    dtype: torch.dtype = torch.bfloat16
    stored: torch.dtype = torch.bfloat16

    @property
    def bytes(self) -> int:
        vectors = self.rows * (self.depth + self.columns) * self.dtype.itemsize
        return vectors + self.depth * self.columns * self.stored.itemsize

    @property
    def flops(self) -> int:
        return 2 * self.rows * self.columns * self.depth


DECODE = (("qkv", 3072, 2048), ("o", 2048, 2048), ("gate-up", 16384, 2048), ("down", 2048, 8192), ("head", 32000, 2048))
BYTES = (("qkv", 6144, 4096), ("down", 4096, 14336))
SIZES: dict[str, tuple[Case, ...]] = {
    "decode": tuple(Case(f"{name} {m}", m, n, k) for m in (1, 4, 16) for name, n, k in DECODE),
    "plain": tuple(Case(f"{name} {m} kn", m, n, k, False) for m in (1, 4) for name, n, k in DECODE[:4]),
    "few": tuple(Case(f"{name} {m}", m, n, k) for m in (1, 4) for name, n, k in (DECODE[0], DECODE[2], DECODE[3])),
    "square": tuple(Case(f"square {n}", n, n, n) for n in (1024, 2048, 4096, 8192)),
    "int8": tuple(Case(f"{n} {m} int8", m, *size, stored=torch.int8) for m in (1, 8, 32) for n, *size in BYTES),
    "odd": (Case("odd 4096", 4096, 50265, 1024), Case("odd depth", 1000, 1000, 1001), Case("bert", 4096, 3072, 768)),
}


class Forced:
    """Plugin: every product in one form."""

    def __init__(self, form: str) -> None:
        self.form = form

    @hookimpl
    def turret_choice_cost(self, candidate: ProductCandidate) -> float:
        return float(candidate.form != self.form)


def scheduled(case: Case, form: str, target: Target) -> Schedule:
    """A product alone, in one form."""
    device = torch.device(target.device_type)

    def declare(name: str, *shape: int) -> TensorDecl:
        return TensorDecl(name, shape, (shape[1], 1), case.dtype, device)

    statements: list[Statement] = []
    x, y = declare("x", case.rows, case.depth), declare("y", case.rows, case.columns)
    right = declare("w", case.depth, case.columns)
    stored = right
    if case.transposed:
        stored = whole = declare("w", case.columns, case.depth)
        if case.stored != case.dtype:
            stored, whole = attrs.evolve(stored, dtype=case.stored), attrs.evolve(whole, name="whole")
            loops = loop_variables(whole.shape)
            statements.append(Definition(whole, loops, cast(load("w", loops, case.stored), case.dtype)))
        right = TensorDecl("w_view", right.shape, (1, case.depth), case.dtype, device)
        statements.append(StridedView(right, whole.name, 0))
    call = Template(torch.ops.aten.mm.default, (Ref("x"), Ref(right.name)), {}, (y,), kind="matmul", origins=("mm",))
    program = LoopProgram("product", (x, stored), (*statements, call), (Ref("y"),))
    manager = pluggy.PluginManager("turret")
    manager.add_hookspecs(hookspecs)
    for plugin in (scheduler, Forced(form)):
        manager.register(plugin)
    config = plugin_manager.configure(plugin_manager.default_manager(), None, {})
    context = SimpleNamespace(config=config, hooks=manager.hook)
    return manager.hook.turret_schedule(context=context, program=program, target=target)


Group = tuple[tuple[TritonKernel, Config], ...]
"""Kernels of one product, launched in order."""


def groups(case: Case, target: Target, properties: DeviceProperties, sweep: bool) -> list[Group]:
    """The kernels of a product in each configuration."""
    form = "rows" if case.rows == 1 else "tiles"
    schedule = scheduled(case, form, target)
    declarations = schedule.program.declarations()
    found: list[Group] = []
    variants = [properties, attrs.evolve(properties, multiprocessors=0)] if sweep else [properties]
    for one in variants:
        made = [k for kernel in schedule.kernels for k in emit(kernel, declarations, one)]
        if not made:
            return []  # it stays a call
        first, *rest = (attrs.evolve(k, divisible=frozenset(k.parameters[: len(k.buffers)])) for k in made)
        configs = (*first.configs, *extra(case, first, len(made))) if sweep else first.configs
        found += [((first, config), *((k, k.configs[0]) for k in rest)) for config in dict.fromkeys(configs)]
    return found


def extra(case: Case, kernel: TritonKernel, stages: int) -> Iterable[Config]:
    """More configurations than the code generator lists."""
    blocks = dict(kernel.configs[0].constants)
    if "YBLOCK" in blocks and case.rows > 16:
        return
    if "YBLOCK" in blocks:
        for x, r, (w, s) in itertools.product((16, 32, 64, 128), (64, 128, 256), ((2, 4), (4, 3), (4, 5))):
            if x * r * s * 2 <= 160 << 10:
                yield Config((("RBLOCK", r), ("XBLOCK", x), ("YBLOCK", blocks["YBLOCK"])), w, s)
        return
    lengths = {dict(config.constants)["RBLOCK"] for config in kernel.configs}
    if stages > 1 or max(lengths) >= case.depth:
        lengths = {max(lengths)}  # each row, or part of one, lies in one block
    for x, r, w in itertools.product((1, 2, 4, 8, 16), sorted(lengths), (2, 4, 8, 16)):
        if 1024 <= x * r <= 65536:
            yield Config((("RBLOCK", r), ("XBLOCK", x)), w, 1)


class Runner:
    """Launches of one product in one configuration, over several operands."""

    def __init__(self, group: Group, compiled: Sequence[Any], sets: Sequence[dict[str, torch.Tensor]]) -> None:
        names = list(dict.fromkeys(buffer for kernel, _ in group for buffer in kernel.buffers))
        scratch = {
            s.name: torch.zeros(eval(s.count), dtype=getattr(torch, s.dtype), device="cuda")
            for kernel, _ in group
            for s in kernel.scratch
        }
        launches = []
        for number, ((kernel, config), binary) in enumerate(zip(group, compiled, strict=True)):
            pointers = [SlotPointer(names.index(buffer)) for buffer in kernel.buffers]
            hidden = [Number(0)] * binary.hidden_pointers
            counts = (*kernel.grid, "1", "1", "1")[:3]
            grid = tuple(expression(count, {}, dict(config.constants)) for count in counts)
            launches.append(KernelLaunch(number, (*pointers, *hidden), grid))
        table = LaunchTable(tuple(c.binary for c in compiled), {"run": segment_words(len(names), tuple(launches))}, {})
        files = {c.binary.file: c.image for c in compiled} | {TABLE: codec.dumps(table).encode()}
        library = DeviceLibrary(Entry("benchmark", "choice", files), process_cache, 0, len(names) + 1, 1)
        library.prepare()
        self.keep = library, scratch, sets
        self.segment = library.function("run")
        self.sizes = (ctypes.c_int64 * 1)()
        self.tables = [
            (ctypes.c_void_p * (len(names) + 1))(*((scratch | tensors)[name].data_ptr() for name in names))
            for tensors in sets
        ]
        self.stream = device_for("cuda").stream_getter(0)

    def __call__(self) -> None:
        for slots in self.tables:
            status = self.segment.run(self.segment.handle, slots, self.sizes, self.stream())
            assert status == 0, status


def graph_microseconds(run: Callable[[], object], calls: int, repeats: int = 9) -> float:
    """Microseconds of each of the calls that ``run`` makes, replayed as one CUDA graph."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    found = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        found.append(start.elapsed_time(end) * 1e3 / calls)
    return statistics.median(found)


def measured(case: Case, candidates: list[Group], compiled: dict[int, list[Any]]) -> dict[str, Any]:
    """Times of the library and of each configuration, and the error of the fastest."""
    count = max(2, min(40, FAR_APART // case.bytes)) if case.flops < 2e11 else 2
    sets = []
    for _ in range(count):
        x = torch.randn(case.rows, case.depth, dtype=case.dtype, device="cuda")
        shape = (case.columns, case.depth) if case.transposed else (case.depth, case.columns)
        w = torch.randn(shape, dtype=case.dtype, device="cuda") * case.depth**-0.5
        if case.stored != case.dtype:
            w = torch.randint(-128, 128, shape, dtype=case.stored, device="cuda")
        sets.append({"x": x, "w": w, "y": torch.empty(case.rows, case.columns, dtype=case.dtype, device="cuda")})
    pairs = [(s["x"], (s["w"].t() if case.transposed else s["w"]).to(case.dtype)) for s in sets]
    library = graph_microseconds(lambda: [x @ w for x, w in pairs], count)
    rows: list[tuple[float, str, float]] = []
    want = (pairs[0][0].float() @ pairs[0][1].float()) if case.flops < 5e11 else None
    for number, group in enumerate(candidates):
        label = f"{' '.join(f'{k[0]}{v}' for k, v in group[0][1].constants)} w{group[0][1].num_warps} "
        label += f"s{group[0][1].num_stages}{' split' if len(group) > 1 else ''}"
        try:
            runner = Runner(group, compiled[number], sets)
            sets[0]["y"].fill_(float("nan"))
            took = graph_microseconds(runner, count)
        except (RuntimeError, AssertionError) as failure:
            print(f"{case.name}: {label}: {str(failure)[:80]}", flush=True)
            continue
        error = float("nan")
        if want is not None:
            error = ((sets[0]["y"].float() - want).norm() / want.norm()).item()
        rows.append((took, label, error))
    rows.sort()
    return {"case": case.name, "library": library, "rows": rows, "bytes": case.bytes, "flops": case.flops}


def report(found: dict[str, Any], shown: int) -> None:
    """A line for the library and one for each of the fastest configurations."""

    def speed(took: float) -> str:
        return f"{took:9.2f} us {found['bytes'] / took / 1e6:5.2f} TB/s {found['flops'] / took / 1e6:6.1f} TFLOP/s"

    worst = max((error for _, _, error in found["rows"]), default=float("nan"))
    print(f"{found['case']:>14} library {speed(found['library'])}  (largest error {worst:.1e})")
    for took, label, _ in found["rows"][:shown]:
        print(f"{'':>14} {found['library'] / took:7.2f} {speed(took)}  {label}", flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default=",".join(SIZES))
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument("--show", type=int, default=3)
    parser.add_argument("--json", default="")
    options = parser.parse_args(arguments)
    device = device_for("cuda")
    facts = device.properties(0)
    target = Target("cuda", 0, facts.arch, facts.cores)
    digits = facts.arch.removeprefix("sm_")
    properties = DeviceProperties((int(digits[:-1]), int(digits[-1])), facts.cores)
    compiler = KernelCompiler("cuda", int(digits), process_cache, lambda: shared_pool(0))
    if options.sweep:
        vars(tiling)["LONGEST_PLAIN"] = 0
    cases = [case for name in options.sizes.split(",") for case in SIZES[name]]
    candidates = {case.name: groups(case, target, properties, options.sweep) for case in cases}
    variants = [variant for found in candidates.values() for group in found for variant in group]
    binaries = iter(compiler.compile(variants)[0])
    compiled = {
        name: {number: [next(binaries) for _ in group] for number, group in enumerate(found)}
        for name, found in candidates.items()
    }
    print(f"{facts.name}, {len(variants)} kernels", flush=True)
    results = []
    for case in cases:
        results.append(measured(case, candidates[case.name], compiled[case.name]))
        report(results[-1], options.show)
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"device": facts.name, "torch": torch.__version__, "results": results}, file)


if __name__ == "__main__":
    main(sys.argv[1:])

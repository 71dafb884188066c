"""Kernels built by hand: interpreted and compared with torch, and compiled for devices that are not there."""

from __future__ import annotations

import contextlib
import importlib.util
import re
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from tests.plugins.codegen.cpp.kernel_lab import Case, compare, evaluate
from tests.plugins.codegen.triton.interpreter_process import InterpretedFailure, Interpreter
from turret.errors import OutOfBoundsError
from turret.plugins.codegen.triton import Config, DeviceProperties, TritonKernel, emit
from turret.plugins.codegen.triton.tiles import split, tiling

__all__ = [
    "FORMS",
    "InterpretedFailure",
    "check",
    "compile_offline",
    "launch",
    "rows_in",
    "run",
    "waits_before_it_touches_memory",
]

INTERPRETER = Interpreter()
_DIVISIONS = {"cdiv": lambda a, b: -(-a // b), "floor_div": int.__floordiv__, "floor_mod": int.__mod__}
FORMS = ("block", "passes", "split")


@contextlib.contextmanager
def rows_in(form: str) -> Iterator[DeviceProperties]:
    """The rows of small kernels in one block, in passes of a loop, or split over programs, as those of large ones."""
    short = {"PERSISTENT_INNER": 4, "PERSISTENT_OUTER": 4, "LONGEST_PLAIN": 4} if form == "passes" else {}
    few = {"LEAST_WORK": 16, "LEAST_CHUNK": {True: 4, False: 4}}
    with mock.patch.dict(vars(tiling), short), mock.patch.dict(vars(split), few):
        yield DeviceProperties(multiprocessors=1 << 20 if form == "split" else 0)


def launch(
    kernels: Iterable[TritonKernel], tensors: dict[str, torch.Tensor], sizes: dict[str, int], pick: int = 0
) -> None:
    """Interpret kernels in order, each in its configuration number ``pick`` (or its last).

    Raises ``OutOfBoundsError`` where one accesses memory that it was not given.
    """
    tensors = dict(tensors)
    for kernel in kernels:
        for scratch in kernel.scratch:
            count = eval(scratch.count, {"cdiv": lambda a, b: -(-a // b)}, dict(sizes))
            fill = 0 if scratch.zeroed else 77
            tensors[scratch.name] = torch.full((count,), fill, dtype=getattr(torch, scratch.dtype))
        kernel = kernel.chosen_for(sizes)
        config = kernel.configs[min(pick, len(kernel.configs) - 1)]
        arguments = [tensors[b] for b in kernel.buffers] + [sizes[s] for s in kernel.sizes] + [*kernel.streams]
        written = tuple(kernel.buffers.index(name) for name in kernel.stored)
        grid = kernel.grid_for(config, sizes)
        try:
            INTERPRETER.launch(kernel.name, kernel.source, arguments, written, dict(config.constants), grid)
        except InterpretedFailure as failure:
            outside = re.search(r"argument (\d+), element (-?\d+), memory from (-?\d+) to (-?\d+)", str(failure))
            if outside is None:
                raise
            number, element, low, high = map(int, outside.groups())
            raise OutOfBoundsError(
                f"kernel {kernel.name} ({', '.join(kernel.origins)}) accesses element {element} of "
                f"{kernel.buffers[number]}, whose memory holds elements {low} to {high - 1}\n{kernel.source}"
            ) from failure


def run(case: Case, pick: int = 0, **options: Any) -> tuple[TritonKernel, ...]:
    """Emit a case and interpret it on its tensors."""
    kernels = emit(case.kernel, case.declarations, **options)
    launch(kernels, case.tensors, case.sizes, pick)
    return kernels


def check(
    cases: Iterable[Case], picks: Iterable[int] = (0,), options: dict[str, Any] | None = None, **tolerance: float
) -> None:
    """Every case gives what torch gives, in each of the configurations."""
    for case in cases:
        before = {name: case.tensors[name].clone() for name in case.outputs}
        wanted = evaluate(case)
        for pick in picks:
            for name, value in before.items():
                case.tensors[name].copy_(value)
            kernels = run(case, pick, **(options or {}))
            text = "\n".join(map(str, kernels))
            for name, want in wanted.items():
                compare(case.tensors[name], want, f"{case.kernel}\n{text}", **tolerance)


def compile_offline(kernel: TritonKernel, config: Config | None = None, capability: int = 90) -> Any:
    """The kernel compiled for a device of a compute capability; its ``asm["cubin"]`` is the binary."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    config = config or kernel.configs[0]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{kernel.name}.py"
        path.write_text(kernel.source)
        spec = importlib.util.spec_from_file_location(kernel.name, path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        constants = dict(config.constants)
        signature = {**kernel.signature, **dict.fromkeys(constants, "constexpr")}
        attributes = {(kernel.parameters.index(p),): [["tt.divisibility", 16]] for p in kernel.divisible}
        source = ASTSource(getattr(module, kernel.name), signature, constants, attributes)
        options = {**kernel.options, "num_warps": config.num_warps, "num_stages": config.num_stages}
        return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)


def waits_before_it_touches_memory(compiled: Any) -> bool:
    """Whether a compiled kernel waits for the one ahead of it before its first access to global memory."""
    text = compiled.asm["ptx"]
    wait = text.find("griddepcontrol.wait")
    access = re.search(r"\b(ld|st|atom|red)\.(acquire\.|release\.|relaxed\.|gpu\.)*global|cp\.async", text)
    return wait >= 0 and (access is None or wait < access.start())

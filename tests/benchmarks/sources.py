"""The sources that are generated for many programs, as files: a change that is to leave them alone is compared with it.

    python -m tests.benchmarks.sources before --programs 1000        # at one commit
    python -m tests.benchmarks.sources after --programs 1000         # at the other
    diff -r before after

A file a graph: its schedule, its kernels in C++, and in Triton for an H100.  Nothing is compiled or run.  The programs
are drawn by seed; the models are those of the conformance kit and of ``device_models`` in their tiny sizes.
"""

from __future__ import annotations

import argparse
import collections
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import torch

import turret
from tests.benchmarks import device_models
from turret.hooks.products import PartitionedGraph, Target
from turret.ir import Schedule
from turret.plugins.codegen import cpp, triton
from turret.testing import Features, program_of_seed
from turret.testing.corpus.models import MODELS

CHECKOUT = re.compile(r'(?<=location: ")/\S*/(?=tests/|testing/)')
"""Where the checkout lies, as sources of models name it."""
H100 = Target("cuda", 0, "sm_90", 132, 80 << 30)


@attrs.frozen
class Case:
    """``make()`` gives a function and the arguments of a call."""

    name: str
    make: Callable[[], tuple[Callable[..., Any], tuple[Any, ...]]]
    dynamic: bool = False


def cases(programs: int, first: int) -> Iterator[Case]:
    """The models, then drawn programs by their seeds, every third of them with symbolic sizes."""
    for model in MODELS.values():
        yield Case(f"kit_{model.name}", lambda model=model: (model.make(), model.inputs()))
    for name in device_models.MODELS:
        for kind in ("inference", "training"):
            yield Case(f"{kind}_{name}", lambda name=name, kind=kind: _workload(name, kind == "training"))
    for seed in range(first, first + programs):
        yield Case(f"program_{seed:05d}", lambda seed=seed: _drawn(seed), dynamic=seed % 3 == 0)


def _workload(name: str, training: bool) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    workload = device_models.build(name, device_models.TINY, training, "cpu", torch.float32)
    module = workload.module.train(training).requires_grad_(training)
    return module, workload.training_inputs if training else workload.inputs


def _drawn(seed: int) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    program = program_of_seed(seed, Features(max_steps=12))
    return program.function(), program.build_inputs().args


def graphs(case: Case) -> Iterator[tuple[str, PartitionedGraph]]:
    """The halves of one case, by role."""
    torch.manual_seed(0)
    function, arguments = case.make()
    parts = turret.partition(turret.joint_graph(function, *arguments, dynamic=case.dynamic))
    for role in ("inference",) if parts.backward is None else ("forward", "backward"):
        yield role, parts


def sources(parts: PartitionedGraph, role: Any) -> str:
    """What is generated for one graph, in sections."""
    program = turret.lower(parts, role)
    host, device = turret.schedule(program), turret.schedule(program, target=H100)
    sections = [("schedule", str(host)), ("c++", "\n".join(_of_host(host)))]
    sections += [("schedule for the device", str(device)), ("triton", "\n".join(_of_device(device)))]
    text = "\n\n".join(f"# ==== {title}\n{text}" for title, text in sections) + "\n"
    return CHECKOUT.sub("", text)


def _of_host(schedule: Schedule) -> Iterator[str]:
    declarations = schedule.program.declarations()
    for kernel in schedule.kernels:
        yield cpp.emit(kernel, declarations, False).source
        yield cpp.emit(kernel, declarations, True).source


def _of_device(schedule: Schedule) -> Iterator[str]:
    properties = triton.DeviceProperties((9, 0), H100.cores)
    schedule = triton.one_pass(schedule, properties)
    declarations = schedule.program.declarations()
    for kernel in schedule.kernels:
        emitted = triton.emit(kernel, declarations, properties, schedule.program.hints)
        yield from map(str, triton.alternatives({"": [emitted]}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--programs", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    warnings.simplefilter("ignore")
    counts: collections.Counter[str] = collections.Counter()
    for case in cases(options.programs, options.first):
        try:
            for role, parts in graphs(case):
                (options.folder / f"{case.name}_{role}.txt").write_text(sources(parts, role))
                counts["graphs"] += 1
        except Exception as error:  # what is not one graph, or is refused, is part of what is compared
            (options.folder / f"{case.name}.error").write_text(f"{type(error).__name__}: {error}\n".split("\n")[0])
            counts[type(error).__name__] += 1
    print(dict(counts), file=sys.stderr)


if __name__ == "__main__":
    main()

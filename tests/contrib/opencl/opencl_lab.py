"""Kernels built by hand, run as OpenCL and compared with torch: what the tests of this folder share."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Iterable
from typing import Any

import pytest

from tests.contrib.opencl.opencl_machine import NEEDS, require_opencl
from tests.plugins.codegen.cpp.kernel_lab import Case, compare, evaluate

pytest.importorskip("pyopencl", reason=NEEDS)

import turret
from turret.contrib.opencl import Plugin
from turret.contrib.opencl.kernel import emit
from turret.contrib.opencl.language import program
from turret.contrib.opencl.runtime import BINARY, STEPS, OpenClLibrary, driver
from turret.plan import Launch, Plan
from turret.storage.artifact_cache import Entry

require_opencl()


def check(drawn: Iterable[Case], threads: Iterable[int] = (1, 3), **tolerance: float) -> None:
    """Each case in one program gives what torch gives, and reports no error."""
    drawn = list(drawn)
    emitted = [emit(case.kernel, case.declarations, case.sizes) for case in drawn]
    sources = {made.name: made.source for made in emitted}
    steps = {}
    for number, (case, made) in enumerate(zip(drawn, emitted, strict=True)):
        slots, symbols = map(list, (case.tensors, case.sizes))
        places = [*map(slots.index, made.tensors), *map(symbols.index, made.symbols), *made.streams]
        groups = 3 if "get_num_groups" in made.source else 1
        steps[f"case{number}"] = [(groups, [list(sources).index(made.name), *places])]
    files = {BINARY: driver().compile(program(sources)), STEPS: json.dumps(steps).encode()}
    library = OpenClLibrary(None, Entry("", "library", files))
    for number, case in enumerate(drawn):
        before = {name: case.tensors[name].clone() for name in case.outputs}
        wanted = evaluate(case)
        segment = library.segment(Launch(f"case{number}", ()))
        slots = (ctypes.c_void_p * len(case.tensors))(*(t.data_ptr() for t in case.tensors.values()))
        sizes = (ctypes.c_int64 * max(1, len(case.sizes)))(*case.sizes.values())
        for count in threads:
            for name, value in before.items():
                case.tensors[name].copy_(value)
            assert segment.run(ctypes.addressof(slots), ctypes.addressof(sizes), count) == 0, case.kernel
            for name, want in wanted.items():
                compare(case.tensors[name], want, f"{case.kernel}\n{emitted[number].source}", **tolerance)


class Kernels:
    """An observer: the plans that were made, and calls that were placed eager, with the reason."""

    cache_key = "kernels"

    def __init__(self) -> None:
        self.plans: list[Plan] = []
        self.eager: dict[str, str] = {}

    @turret.hookimpl(wrapper=True)
    def turret_place(self, graph: Any) -> Any:
        placement = yield
        self.eager.update({name: node.reason for name, node in placement.nodes.items() if node.where == "eager"})
        return placement

    @turret.hookimpl(wrapper=True)
    def turret_codegen(self, schedule: Any) -> Any:
        plan = yield
        self.plans.append(plan)
        return plan


def compiled(function: Any, kernels: Kernels | None = None, **arguments: Any) -> Any:
    """A function or module compiled with OpenCL kernels, whose failures are errors, and without a cache."""
    plugins = [Plugin(), *([kernels] if kernels else [])]
    return turret.compile(function, plugins=plugins, options={"on_error": "raise", "cache": False}, **arguments)

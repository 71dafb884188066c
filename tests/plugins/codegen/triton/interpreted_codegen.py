"""Whole programs on the CPU with every kernel as Triton, interpreted: a ``turret_codegen`` for tests."""

from __future__ import annotations

import ctypes
import itertools
from typing import Any

import attrs
import torch

from tests.plugins.codegen.triton.triton_lab import launch
from turret.hooks.devices import INDEX_ERROR, Device, PlanLibrary, Segment, device_for
from turret.hooks.hookspecs import hookimpl
from turret.ir import Schedule, TensorDecl, verify
from turret.plan import Launch, Plan
from turret.plan.builder import PlanDraft, draft_plan
from turret.plan.launch.functions import raise_status
from turret.plugins.codegen.triton import DeviceProperties, TritonKernel, alternatives, emit, one_pass
from turret.plugins.codegen.triton.emission.attention import writes
from turret.plugins.codegen.triton.segments import wanted
from turret.storage.artifact_cache import Store, process_cache
from turret.storage.libraries import Library, keep_library

NOT_COMPILED = 77
_libraries: dict[str, InterpretedLibrary] = {}
_numbers = itertools.count()


class InterpretedLibrary(PlanLibrary):
    """Stands for a plan's shared library: segments that interpret their kernels on memory given by address.

    As on a device a segment runs once each of the kernels that sizes ask for is compiled; ``compiled`` has the names of
    those that are, and those after the first ``at_once`` were compiled in calls.
    """

    def __init__(
        self, draft: PlanDraft, schedule: Schedule, segments: dict[str, list[tuple[TritonKernel, ...]]]
    ) -> None:
        self.draft, self.segments = draft, segments
        self.declarations = schedule.program.declarations()
        self.compiled = list(dict.fromkeys(kernel.name for kernel in wanted(segments, schedule.program.hints)))
        self.at_once = len(self.compiled)

    def segment(self, step: Launch) -> Segment:
        function = self.function(step.function)

        def recover(status: int, slots: Any, sizes: Any, stream: int, tensors: Any) -> None:
            while status == NOT_COMPILED:
                values = self._sizes(ctypes.addressof(sizes))
                self.compiled.append(self._missing(step.function, values)[0])
                status = function(ctypes.addressof(slots), ctypes.addressof(sizes), stream)
            if status:
                raise_status(self.draft.plan, step, status, slots, sizes, stream, tensors)

        return Segment(function, recover)

    def _missing(self, name: str, values: dict[str, int]) -> list[str]:
        """Kernels of a segment that sizes ask for and that are not compiled."""
        chosen = [kernel.chosen_for(values) for kernels in self.segments[name] for kernel in kernels]
        return [k.name for k in chosen if k.name not in self.compiled and 0 not in k.grid_for(k.configs[0], values)]

    def _sizes(self, sizes_at: int) -> dict[str, int]:
        sizes = (ctypes.c_int64 * max(1, len(self.draft.size_slot))).from_address(sizes_at)
        return {symbol: int(sizes[position]) for symbol, position in self.draft.size_slot.items()}

    def function(self, name: str) -> Any:
        """``name(slots, sizes, threads) -> status``, as of a native library (addresses of two tables)."""

        def run(slots_at: int, sizes_at: int, threads: int) -> int:
            slots = (ctypes.c_void_p * len(self.draft.plan.slots)).from_address(slots_at)
            values = self._sizes(sizes_at)
            if self._missing(name, values):
                return NOT_COMPILED
            for kernels in self.segments[name]:
                scratch = {s.name for k in kernels for s in k.scratch}
                names = {b for k in kernels for b in k.buffers} - scratch
                tensors = {n: self._memory(self.declarations[n], slots[self.draft.slot_of[n]], values) for n in names}
                try:
                    launch(kernels, tensors, values)
                except Exception as failure:
                    if "index out of range" in str(failure):
                        return INDEX_ERROR
                    raise
            return 0

        return run

    @staticmethod
    def _memory(decl: TensorDecl, address: int | None, sizes: dict[str, int]) -> torch.Tensor:
        shape, stride = (
            [v if isinstance(v, int) else int(v.subs({s: sizes[s.name] for s in v.free_symbols})) for v in values]
            for values in (decl.shape, decl.stride)
        )
        if not address or 0 in shape:
            return torch.empty(0, dtype=decl.dtype)
        count = 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True))
        memory = (ctypes.c_char * (count * decl.dtype.itemsize)).from_address(address)
        return torch.frombuffer(memory, dtype=decl.dtype)


class InterpretingCpu(type(device_for("cpu"))):
    """The CPU, where plans of this module's code generator are run by the interpreter."""

    def load(self, plan: Plan, store: Store | None) -> PlanLibrary:
        made = _libraries.get(plan.library.key)
        return super().load(plan, store) if made is None else made


_interpreting = InterpretingCpu()


class InterpretedCodegen:
    """Plugin: emits Triton for every kernel.  ``kernels`` collects what was emitted, by name.

    ``rival``: which of a kernel's rivals runs in its place, if it has some.
    """

    def __init__(self, rival: int | None = None, **options: Any) -> None:
        self.options = options if rival is None else {"tuned": True, **options}
        self.rival = rival
        self.kernels: dict[str, TritonKernel] = {}
        self.libraries: list[InterpretedLibrary] = []

    @hookimpl
    def turret_device(self, device_type: str) -> Device | None:
        return _interpreting if device_type == "cpu" else None

    def _chosen(self, kernel: TritonKernel) -> TritonKernel:
        return kernel if self.rival is None or not kernel.rivals else kernel.rivals[self.rival]

    @hookimpl
    def turret_codegen(self, schedule: Schedule) -> Any:
        schedule = one_pass(schedule, self.options.get("properties") or DeviceProperties())
        verify(schedule)
        declarations = schedule.program.declarations()
        draft = draft_plan(schedule, "cpu", lambda template: writes(template, declarations))
        if not draft.segments:
            return draft.plan
        options = {"hints": schedule.program.hints, **self.options}
        emitted = {s.name: [emit(k, declarations, **options) for k in s.steps] for s in draft.segments}
        segments = {name: [tuple(map(self._chosen, kernels)) for kernels in groups] for name, groups in emitted.items()}
        self.kernels |= {kernel.name: kernel for kernel in alternatives(segments)}
        key = f"interpreted {next(_numbers)}"
        _libraries[key] = InterpretedLibrary(draft, schedule, segments)
        self.libraries.append(_libraries[key])
        keep_library(process_cache, key, {key: b""})
        source = "\n\n".join(str(k) for kernels in segments.values() for group in kernels for k in group)
        return attrs.evolve(draft.plan, source=source, library=Library(key, key))

"""What the ``turret_codegen`` hook of Triton does: a schedule to a plan with a launch table and its binaries."""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor

import attrs

from turret.errors import CodegenError
from turret.hooks.context import CompileContext
from turret.hooks.devices import device_for
from turret.hooks.events import EventKind
from turret.hooks.products import Target
from turret.ir import Kernel, Schedule, Template
from turret.plan import Plan
from turret.plan.builder import PlanDraft, Segment, draft_plan
from turret.plan.launch.device import TABLE
from turret.plan.launch.driver_library import LAUNCHER
from turret.plan.launch.table import LaunchTable
from turret.plugins.codegen.triton.compilation.autotune import Tuner
from turret.plugins.codegen.triton.compilation.compile import (
    CompiledKernel,
    DeferredKernel,
    KernelCompiler,
    Launchable,
    Variant,
)
from turret.plugins.codegen.triton.compilation.workers import shared_pool
from turret.plugins.codegen.triton.emission.attention import writes
from turret.plugins.codegen.triton.program import emit
from turret.plugins.codegen.triton.segments import Emitted, alternatives, pack, wanted, with_alignment
from turret.plugins.codegen.triton.stream import given_tensors
from turret.plugins.codegen.triton.tiles.kernel import DeviceProperties, TritonKernel
from turret.plugins.codegen.triton.tiles.row_column import one_pass
from turret.storage import codec
from turret.storage.libraries import Library, keep_library, stored_library


def codegen(context: CompileContext, schedule: Schedule, target: Target) -> Plan:
    """Emit, compile (or find in the cache) and plan."""
    device = device_for(target.device_type)
    if target.index is None:
        target = attrs.evolve(target, index=device.current_index())
    properties = device_properties(target)
    schedule = one_pass(schedule, properties)
    declarations = schedule.program.declarations()
    draft = draft_plan(schedule, target.device, lambda template: writes(template, declarations))
    if not draft.segments:
        return draft.plan
    return _CodeGenerator(context, schedule, draft, properties, target).plan()


def device_properties(target: Target) -> DeviceProperties:
    """Facts about the device from ``target.arch`` (``sm_90``), so that no device is needed here."""
    if not target.arch:
        raise CodegenError(f"no device {target} here; give the target an architecture (sm_90) to compile without one")
    digits = target.arch.removeprefix("sm_").rstrip("a")
    if not digits.isdigit():
        raise CodegenError(f"target architecture {target.arch!r} is not known; expected one like sm_90")
    capability = int(digits[:-1]), int(digits[-1])
    return DeviceProperties(capability, target.cores) if target.cores else DeviceProperties(capability)


_DEFERRED = "# (not compiled yet: it is when sizes first ask for it)"

Identity = tuple[str, frozenset[str], tuple[str, ...]]


def _identity(kernel: TritonKernel) -> Identity:
    """What kernels have in common for which one choice is made."""
    return kernel.name, kernel.divisible, tuple(rival.name for rival in kernel.rivals)


LaunchKey = tuple[str, frozenset[str]]
"""What kernels have in common that are compiled and launched as one."""


def _launch_key(kernel: TritonKernel) -> LaunchKey:
    return kernel.name, kernel.divisible


def _launched(kernel: TritonKernel, chosen: Variant) -> TritonKernel:
    """A kernel, or that of its rivals which was chosen for all that are like it; with no other configuration."""
    (each,) = (k for k in (kernel, *kernel.rivals) if k.name == chosen[0].name)
    return attrs.evolve(each, configs=(chosen[1],), rivals=())


class _CodeGenerator:
    """One schedule on its way to a plan."""

    def __init__(
        self,
        context: CompileContext,
        schedule: Schedule,
        draft: PlanDraft,
        properties: DeviceProperties,
        target: Target,
    ) -> None:
        self.context, self.draft, self.properties = context, draft, properties
        self.name = schedule.program.name
        self.declarations, self.hints = schedule.program.declarations(), schedule.program.hints
        config = context.config
        self.given = given_tensors(schedule)
        self.cache = context.store("codegen")
        major, minor = properties.capability
        arch, pool = 10 * major + minor, lambda: shared_pool(config.compile_workers)
        self.compiler = KernelCompiler(target.device_type, arch, self.cache, pool)
        tunes = config.max_autotune and device_for(target.device_type).is_available()
        self.tuner = Tuner(self.cache, target) if tunes else None

    def plan(self) -> Plan:
        with ThreadPoolExecutor(1) as beside:
            built = beside.submit(LAUNCHER.build, self.cache)
            segments = {run.name: self._emitted(run) for run in self.draft.segments}
            compiled, fresh = self._choose(list(wanted(segments, self.hints)))
            built.result()
        chosen = {**compiled, **self._deferred(list(alternatives(segments)), compiled)}
        launched = {_launch_key(v[0]): (v, c) for v, c in chosen.values()}
        deferred = {key for key, (_, c) in launched.items() if isinstance(c, DeferredKernel)}
        self._tell(fresh, len(deferred))
        segments = {
            name: [tuple(_launched(kernel, chosen[_identity(kernel)][0]) for kernel in group) for group in groups]
            for name, groups in segments.items()
        }
        packed = pack(self.draft, segments, lambda kernel: launched[_launch_key(kernel)])
        return attrs.evolve(
            self.draft.plan,
            source=_source(segments, deferred),
            library=self._bundle(packed.table, [c for _, c in launched.values()]),
            scratch_bytes=packed.scratch_bytes,
            arena_spans=packed.arena_spans,
        )

    def _emitted(self, run: Segment) -> list[Emitted]:
        """The kernels of a segment; who has another of them ahead may load what was there before that."""
        given = (frozenset() if step is run.steps[0] else self.given for step in run.steps)
        return [self._emit(step, there) for step, there in zip(run.steps, given, strict=True)]

    def _emit(self, kernel: Kernel | Template, given: frozenset[str]) -> Emitted:
        tuned = self.tuner is not None
        emitted = emit(kernel, self.declarations, self.properties, self.hints, given, tuned)
        return tuple(with_alignment(k, self.draft) for k in emitted)

    def _tell(self, fresh: int, deferred: int) -> None:
        """Tell observers how many kernels were compiled."""
        left = f", {deferred} left until sizes ask for them" if deferred else ""
        kind: EventKind = "cache_miss" if fresh else "cache_hit"
        self.context.emit(kind, stage="codegen", name=self.name, message=f"{fresh} kernels compiled{left}")

    def _choose(self, kernels: list[TritonKernel]) -> tuple[dict[Identity, tuple[Variant, CompiledKernel]], int]:
        """The variant to launch of each distinct kernel, compiled: the first, or the fastest if tuned; and how many had
        to be compiled."""
        distinct = {_identity(k): k for k in kernels}
        wanted = {i: self._candidates(k) for i, k in distinct.items()}
        variants = [v for candidates in wanted.values() for v in candidates]
        optional = {rival.name for kernel in distinct.values() for rival in kernel.rivals}
        compiled, fresh = self.compiler.compile(variants, self._progress, optional)
        binaries = iter(compiled)
        chosen = {}
        for identity, candidates in wanted.items():
            answers = [(variant, next(binaries)) for variant in candidates]
            pairs = [(variant, binary) for variant, binary in answers if binary is not None]
            chosen[identity] = pairs[0] if self.tuner is None else self.tuner.best(pairs, self.declarations)
        return chosen, fresh

    def _deferred(
        self, kernels: list[TritonKernel], compiled: dict[Identity, tuple[Variant, CompiledKernel]]
    ) -> dict[Identity, tuple[Variant, Launchable]]:
        """The variants to launch for other sizes than those at hand, from the cache or to be compiled when sizes ask
        for them."""
        # Without elements there are no kernels, of which then none is missing.
        hidden = max((kernel.hidden_pointers for _, kernel in compiled.values()), default=0)
        missing = {_identity(k): (k, k.configs[0]) for k in kernels if _identity(k) not in compiled}
        return {identity: (variant, self.compiler.deferred(variant, hidden)) for identity, variant in missing.items()}

    def _candidates(self, kernel: TritonKernel) -> list[Variant]:
        """What is compiled of a kernel: more than one where they can be timed."""
        if self.tuner is None or kernel.sizes:
            return [(kernel, kernel.configs[0])]
        return [(each, config) for each in (kernel, *kernel.rivals) for config in each.configs]

    def _progress(self, done: int, wanted: int) -> None:
        self.context.emit("progress", stage="codegen", name=self.name, message=f"{done} of {wanted} kernels compiled")

    def _bundle(self, table: LaunchTable, kernels: list[Launchable]) -> Library:
        """The entry that a plan is loaded from: its launch table and every binary that there is, so that it is whole or
        gone."""
        files = {kernel.binary.file: kernel.image for kernel in kernels if isinstance(kernel, CompiledKernel)}
        text = codec.dumps(table).encode()
        digest = hashlib.sha256(text)
        for name in sorted(files):
            digest.update(name.encode() + files[name])
        key = digest.hexdigest()
        if stored_library(self.cache, key) is None:
            keep_library(self.cache, key, {TABLE: text, **files})
        return Library(key, TABLE)


def _source(segments: dict[str, list[Emitted]], deferred: set[LaunchKey]) -> str:
    """All kernels for people, each once, under the segments that launch them."""
    seen: set[str] = set()
    said: set[LaunchKey] = set()
    parts = []
    for name, groups in segments.items():
        parts.append(f"# {name}: {', '.join(k.name for group in groups for k in group)}")
        for kernel in alternatives({name: groups}):
            note = _DEFERRED if (key := _launch_key(kernel)) in deferred else ""
            if kernel.name not in seen:
                parts.append(f"{note}\n{kernel}" if note else str(kernel))
            elif note and key not in said:
                parts.append(f"{note}\n# {kernel.name} with fewer multiples of 16 in its arguments")
            seen.add(kernel.name)
            said.add(key)
    return "\n\n".join(parts)

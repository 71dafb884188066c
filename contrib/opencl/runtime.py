"""Running OpenCL programs on the host's own memory: the driver, and the device that loads plans for it."""

from __future__ import annotations

import ctypes
import functools
import itertools
import json
import os
import threading
from collections.abc import Mapping
from typing import Any

import attrs
import numpy
import pyopencl as cl

from turret.errors import CodegenError, TurretError
from turret.hooks.devices import INDEX_ERROR, OUT_OF_RANGE, ZERO_DIVISION, Device, PlanLibrary, Properties, Segment
from turret.plan import Launch, Plan
from turret.plan.launch.functions import raise_status
from turret.storage.libraries import find_library

BINARY, STEPS = "program.bin", "steps.json"  # of a segment: groups worth their start, and words, of each step


@attrs.frozen(eq=False)
class Driver:
    """A processor that runs OpenCL on the memory of this process, and its queue, which keeps order."""

    queue: cl.CommandQueue
    name: str
    process: int
    lock: threading.Lock = attrs.field(factory=threading.Lock)

    def compile(self, source: str) -> bytes:
        """The binary of a program."""
        try:
            made = cl.Program(self.queue.context, source)
            program = made.build(["-cl-std=CL1.2", "-w"], cache_dir=False)  # type: ignore[arg-type]
            self.run(cl.Kernel(program, "turret"), 1, 0, 0, 0)  # no steps: PoCL makes the code for groups of one item
            return program.get_info(cl.program_info.BINARIES)[0]
        except cl.Error as error:
            raise CodegenError(f"{self.name} does not compile a program: {error}\n{source}") from error

    def run(self, kernel: cl.Kernel, groups: int, *words: int) -> None:
        """Queue a kernel: the address of a frame, that of steps, and how many."""
        kernel.set_args(*map(numpy.uint64, words))
        cl.enqueue_nd_range_kernel(self.queue, kernel, (groups,), (1,))


@functools.cache
def driver() -> Driver:
    """The first processor whose kernels take addresses of this process: with fine-grained system SVM, or PoCL's."""
    os.environ.setdefault("POCL_SIGFPE_HANDLER", "0")  # signals are the program's: kernels divide by no zero
    for device in itertools.chain.from_iterable(p.get_devices(cl.device_type.CPU) for p in cl.get_platforms()):
        shares = device.svm_capabilities & cl.device_svm_capabilities.FINE_GRAIN_SYSTEM
        if shares or (device.platform.name == "Portable Computing Language" and device.host_unified_memory):
            name = f"{device.platform.version} {device.name} {device.driver_version}"
            return Driver(cl.CommandQueue(cl.Context([device])), name, os.getpid())
    raise TurretError("no OpenCL platform has a processor that shares the host's memory; install turret[opencl]")


class OpenClLibrary(PlanLibrary):
    """The program of one plan."""

    def __init__(self, plan: Plan, entry: Mapping[str, bytes]) -> None:
        self.plan, self.driver, self.steps = plan, driver(), json.loads(entry[STEPS])
        self.program = cl.Program(self.driver.queue.context, [self.driver.queue.device], [entry[BINARY]]).build()

    def segment(self, launch: Launch) -> Segment:
        steps = [(groups, numpy.array(words, numpy.uint64)) for groups, words in self.steps[launch.function]]
        launches = []
        for _, found in itertools.groupby(enumerate(steps), key=lambda step: step[0] if step[1][0] > 1 else -1):
            made = [step for _, step in found]  # steps of one group each are one launch
            table = numpy.array([words.ctypes.data for _, words in made], numpy.uint64)
            launches.append((made[0][0], table, made))
        run = functools.partial(_run, self.driver, cl.Kernel(self.program, "turret"), launches)
        return Segment(run, functools.partial(raise_status, self.plan, launch))


def _run(driver: Driver, kernel: cl.Kernel, launches: list[Any], slots: int, sizes: int, threads: int) -> int:
    """Run launches one after another, up to one that reports an error; its status."""
    if os.getpid() != driver.process:
        raise TurretError("OpenCL does not run in a forked process; start processes by the method 'spawn'")
    report = ctypes.c_int64(0)
    frame = (ctypes.c_uint64 * 3)(slots, sizes, ctypes.addressof(report))
    try:
        with driver.lock:
            for groups, table, _ in launches:
                driver.run(kernel, min(groups, threads), ctypes.addressof(frame), table.ctypes.data, len(table))
    finally:
        driver.queue.finish()  # what was queued works on this call's memory
    return next((code for code in (INDEX_ERROR, OUT_OF_RANGE, ZERO_DIVISION) if report.value & code), 0)


def opencl_device(host: type[Device]) -> Device:
    """A device of the host as its class has it, but for the kernels, which are OpenCL's."""

    class OpenClDevice(host):  # type: ignore[misc, valid-type]
        kernel_languages = frozenset({"opencl"})

        def properties(self, index: int) -> Properties:
            found = super().properties(index)
            return attrs.evolve(found, arch=f"{found.arch} {driver().name}")

        def load(self, plan: Plan, store: Any) -> PlanLibrary:
            try:
                return OpenClLibrary(plan, find_library(plan.needed_library, store).files)
            except cl.Error as error:
                raise CodegenError(f"the OpenCL program of {plan.name} does not load: {error}") from error

    return OpenClDevice()

"""Running OpenCL kernels on the host's own memory: the device, programs as binaries, launches."""

from __future__ import annotations

import ctypes
import functools
import json
import os
import threading

import attrs
import numpy
import pyopencl as cl

from turret.artifact_cache import Entry, Store
from turret.devices import Device, PlanLibrary, Properties, Segment
from turret.errors import CodegenError, TurretError
from turret.libraries import find_library
from turret.native.functions import INDEX_ERROR, OUT_OF_RANGE, ZERO_DIVISION, raise_status
from turret.plan import Launch, Plan

BINARY, LAUNCHES = "program.bin", "launches.json"
"""Files of a library: the program, and for each segment its kernels with their tables of places and groups."""


@attrs.frozen(eq=False)
class Driver:
    """An OpenCL device that shares the host's memory as it is, with one queue in order."""

    device: cl.Device
    context: cl.Context
    queue: cl.CommandQueue
    process: int
    lock: threading.Lock = attrs.field(factory=threading.Lock)

    @property
    def name(self) -> str:
        """What binaries are made for."""
        return f"{self.device.platform.version} {self.device.name} {self.device.driver_version}"

    def compile(self, source: str) -> bytes:
        """The binary of a program."""
        try:
            program = cl.Program(self.context, source).build(["-cl-std=CL1.2", "-w"], cache_dir=False)
            return program.get_info(cl.program_info.BINARIES)[0]
        except cl.Error as error:
            raise CodegenError(f"{self.name} does not compile a program: {error}\n{source}") from error


@functools.cache
def driver() -> Driver:
    """The first processor whose kernels take addresses of this process: fine-grained system SVM, or PoCL's."""
    for platform in cl.get_platforms():
        for device in platform.get_devices(cl.device_type.CPU):
            shares = device.svm_capabilities & cl.device_svm_capabilities.FINE_GRAIN_SYSTEM
            if shares or (platform.name == "Portable Computing Language" and device.host_unified_memory):
                context = cl.Context([device])
                return Driver(device, context, cl.CommandQueue(context), os.getpid())
    raise TurretError("no OpenCL platform has a processor that shares the host's memory; install turret[opencl]")


class OpenClLibrary(PlanLibrary):
    """The program of one plan."""

    def __init__(self, plan: Plan, entry: Entry) -> None:
        self.plan, self.driver = plan, driver()
        self.launches = json.loads(entry[LAUNCHES])
        self.program = cl.Program(self.driver.context, [self.driver.device], [entry[BINARY]]).build()

    def segment(self, launch: Launch) -> Segment:
        made = []
        for name, places, groups in self.launches[launch.function]:
            kernel, table = cl.Kernel(self.program, name), numpy.array(places, numpy.uint64)
            kernel.set_arg(1, numpy.uint64(table.ctypes.data))
            made.append((kernel, groups, table))
        return Segment(functools.partial(_run, self.driver, made), functools.partial(raise_status, self.plan, launch))


def _run(driver: Driver, kernels: list[tuple[cl.Kernel, int, numpy.ndarray]], slots: int, sizes: int, threads: int) -> int:
    """Run kernels one after another; the status of the first kind of error that any reports."""
    if os.getpid() != driver.process:
        raise TurretError("OpenCL does not work in a forked process; start processes with the method 'spawn'")
    report = ctypes.c_int64(0)
    frame = (ctypes.c_uint64 * 3)(slots, sizes, ctypes.addressof(report))
    at = numpy.uint64(ctypes.addressof(frame))
    with driver.lock:
        for kernel, groups, _ in kernels:
            kernel.set_arg(0, at)
            cl.enqueue_nd_range_kernel(driver.queue, kernel, (min(groups, threads),), (1,))
    driver.queue.finish()
    return next((code for code in (INDEX_ERROR, OUT_OF_RANGE, ZERO_DIVISION) if report.value & code), 0)


class OpenClDevice(Device):
    """What is different for a device of the host whose kernels are OpenCL's; mixed into that device's own class."""

    kernel_languages = frozenset({"opencl"})

    def properties(self, index: int) -> Properties:
        found = super().properties(index)
        return attrs.evolve(found, arch=f"{found.arch} {driver().name}")

    def load(self, plan: Plan, store: Store | None) -> PlanLibrary:
        try:
            return OpenClLibrary(plan, find_library(plan.library, store))
        except cl.Error as error:
            raise CodegenError(f"the OpenCL program of {plan.name} does not load: {error}") from error

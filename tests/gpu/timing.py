"""Speed on the device: memory-bound kernels, launches, small models, compile times; beside eager and torch.compile."""

from __future__ import annotations

import ctypes
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import turret
from tests.gpu.cases import Block, _rms_norm, _rotary, convolutions, perceptron, randn
from turret.hooks.devices import device_for
from turret.plan import Launch, Plan
from turret.plan.launch.device import DeviceLibrary
from turret.storage.libraries import find_library

BF16 = torch.bfloat16


def microseconds(run: Callable[[], object], budget: float = 0.4) -> float:
    """Median time of a call, host and device together (calls follow one another without waiting)."""
    for _ in range(3):
        run()
    torch.cuda.synchronize()
    start = time.perf_counter()
    run()
    torch.cuda.synchronize()
    calls = max(3, min(200, int(budget / 5 / max(1e-6, time.perf_counter() - start))))
    samples = []
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(calls):
            run()
        torch.cuda.synchronize()
        samples.append((time.perf_counter() - start) / calls)
    return 1e6 * statistics.median(samples)


def kernel_microseconds(run: Callable[[], object], calls: int = 20) -> float:
    """Mean time that the kernels of a call take, whatever the host does between them.

    A kernel that is launched while the one ahead of it runs waits there for its end, which counts once.

    A step of training waits for the thread that runs the backward, which takes a bare ``autograd.Function`` 60 us and
    more (seen on an H200's host), and twice as much where the host is busy.
    """
    for _ in range(3):
        run()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(calls):
            run()
        torch.cuda.synchronize()
    kernels = [event.time_range for event in profile.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    return covered((kernel.start, kernel.end) for kernel in kernels) / calls


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """The time in which at least one of some spans (begin and end) was."""
    total, until = 0.0, -math.inf
    for begin, end in sorted(spans):
        total += max(0.0, end - max(begin, until))
        until = max(until, end)
    return total


def copy_bandwidth() -> float:
    """Bytes read and written a second by a copy of 2 GiB."""
    source = torch.empty(1 << 30, dtype=BF16, device="cuda").normal_()
    target = torch.empty_like(source)
    return 4 * source.numel() / (1e-6 * microseconds(lambda: target.copy_(source)))


def _chain(x: Tensor) -> Tensor:
    """Fourteen operations, one of them with special functions."""
    for _ in range(4):
        x = torch.relu(x * 1.5 + 0.25) - x.abs()
    return x * torch.sigmoid(x)


def _sigmoids(x: Tensor) -> Tensor:
    """Bound by special functions: two an element for each sigmoid, of which an H200 does 3.6e12 a second."""
    for _ in range(4):
        x = torch.relu(x * 1.5 + 0.25) - torch.sigmoid(x)
    return x


def memory_bound() -> Iterator[tuple[str, Callable[..., Any], tuple[Any, ...], int]]:
    """Name, function, arguments, and the bytes that must move."""
    x = randn(1 << 27, dtype=BF16)
    yield "pointwise chain, 128M", _chain, (x,), 4 * x.numel()
    yield "four sigmoids, 128M", _sigmoids, (x,), 4 * x.numel()
    x = randn(16384, 4096, dtype=BF16)
    w, b = randn(4096, dtype=BF16), randn(4096, dtype=BF16)
    yield "layer norm 16384x4096", lambda x, w, b: F.layer_norm(x, x.shape[-1:], w, b), (x, w, b), 4 * x.numel()
    yield "softmax 16384x4096", lambda x: torch.softmax(x, -1), (x,), 4 * x.numel()
    yield "rms norm 16384x4096", _rms_norm, (x, w), 4 * x.numel()
    yield "column sum 16384x4096", lambda x: x.sum(0), (x,), 2 * x.numel()
    yield "full sum 64M", lambda x: x.float().sum(), (x,), 2 * x.numel()
    y = randn(8192, 8192, dtype=BF16)
    yield "transposed add 8192", lambda x, y: x + y.t(), (y, randn(8192, 8192, dtype=BF16)), 6 * y.numel()
    q = randn(8, 32, 2048, 128, dtype=BF16)
    cos, sin = randn(2048, 128, dtype=BF16), randn(2048, 128, dtype=BF16)
    yield "rotary", _rotary, (q, cos, sin), 4 * q.numel()
    logits, target = randn(8192, 32000, dtype=BF16), torch.randint(0, 32000, (8192,), device="cuda")
    yield "cross entropy 32k", lambda x, t: F.cross_entropy(x.float(), t), (logits, target), 2 * logits.numel()


def training_norm() -> tuple[Callable[..., Any], Callable[..., Any], int]:
    """A step of a layer norm's forward and backward (given the norm, compiled), the norm, and its bytes."""
    x = randn(16384, 4096, dtype=BF16).requires_grad_()
    w, b, g = randn(4096, dtype=BF16).requires_grad_(), randn(4096, dtype=BF16).requires_grad_(), torch.randn_like(x)

    def norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return F.layer_norm(x, (4096,), w, b)

    def step(run: Callable[..., Tensor]) -> Callable[[], object]:
        return lambda: torch.autograd.grad(run(x, w, b), (x, w, b), g)

    return step, norm, 10 * x.numel()


def bandwidth_table(systems: dict[str, Callable], alive: Callable[[], bool]) -> None:
    """Each memory-bound kernel, and a step of training, as a share of the copy bandwidth."""
    peak = kernel_table(systems, alive)
    if not alive():
        return
    step, norm, moved = training_norm()
    for name, time_of in (("layer norm fwd+bwd", microseconds), ("its kernels alone", kernel_microseconds)):
        line = f"{name:<28}"
        for compiler in systems.values():
            line += _share(partial(_compiled_step, compiler, step, norm), moved, peak, time_of)
        print(line, flush=True)


def kernel_table(systems: dict[str, Callable], alive: Callable[[], bool]) -> float:
    """Each memory-bound kernel as a share of the copy bandwidth, which is returned (bytes a second)."""
    peak = copy_bandwidth()
    print(f"copy bandwidth {peak / 1e12:.2f} TB/s; share of it, in percent:")
    print(f"{'kernel':<28}" + "".join(f"{name:>15}" for name in systems))
    for name, run, args, moved in memory_bound():
        if not alive():
            break
        line = f"{name:<28}"
        for compiler in systems.values():
            line += _share(partial(_compiled_call, compiler, run, args), moved, peak)
        print(line, flush=True)
    return peak


def dynamic_table(systems: dict[str, Callable], alive: Callable[[], bool]) -> None:
    """The same of ``systems`` that compile for any size."""
    kernel_table(systems, alive)


def _compiled_call(compiler: Callable, run: Callable[..., Any], args: tuple[Any, ...]) -> Callable[[], object]:
    return _bind(compiler(run), args)


def _compiled_step(compiler: Callable, step: Callable, run: Callable) -> Callable[[], object]:
    return step(compiler(run))


def _bind(run: Callable[..., Any], args: tuple[Any, ...]) -> Callable[[], object]:
    def call() -> object:
        with torch.no_grad():
            return run(*args)

    return call


def _share(
    make: Callable[[], Callable[[], object]],
    moved: int,
    peak: float,
    time_of: Callable[[Callable[[], object]], float] = microseconds,
) -> str:
    torch.compiler.reset()
    try:
        return f"{100 * moved / (1e-6 * time_of(make())) / peak:>14.1f}%"
    except Exception as error:
        return f"{type(error).__name__[:14]:>15}"


def _tiny_kernels(x: Tensor) -> Tensor:
    """Sums along both dimensions in turn: each needs all of the one before, so that nothing becomes one kernel."""
    for _ in range(50):
        x = x + x.sum(0) * 1e-3
        x = x + x.sum(1, keepdim=True) * 1e-3
    return x


def launch_cost(systems: dict[str, Callable]) -> None:
    """Host time of a call that launches many tiny kernels, and of a launch by the native launcher alone."""
    x = randn(64, 64)
    for name, compiler in systems.items():
        torch.compiler.reset()
        call = _bind(compiler(_tiny_kernels), (x,))
        for _ in range(3):
            call()
        print(f"  {name}: {_host_microseconds(call):.1f} us for a call of 100 dependent sums")
    plan = _plan_of(_tiny_kernels, x)
    launches = [step for step in plan.steps if isinstance(step, Launch)]
    kernels = sum(len(step.origins) for step in launches)
    library = DeviceLibrary(find_library(plan.library), None, 0, len(plan.slots) + 1, 1)
    memory = torch.zeros(1 << 20, dtype=torch.uint8, device="cuda")
    slots = (ctypes.c_void_p * (len(plan.slots) + 1))(*[memory.data_ptr()] * (len(plan.slots) + 1))
    sizes = (ctypes.c_int64 * 1)()
    segments = [library.function(step.function) for step in launches]

    stream = device_for("cuda").stream_getter(0)

    def launch() -> None:
        for segment in segments:
            if segment.run(segment.handle, slots, sizes, stream()):
                raise RuntimeError("a segment was not launched")

    launch()
    host = _host_microseconds(launch) / kernels
    print(f"  native launcher alone: {host:.2f} us a kernel ({kernels} kernels in {len(segments)} segments)")


def _host_microseconds(call: Callable[[], object]) -> float:
    """Median time until a call returns, the device being idle when it starts."""
    for _ in range(50):
        call()
    samples = []
    for _ in range(200):
        torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        samples.append(time.perf_counter() - start)
    torch.cuda.synchronize()
    return 1e6 * statistics.median(samples)


def _plan_of(run: Callable, *args: Tensor) -> Plan:
    """The plan that a function of one graph compiles to."""
    plans = []

    class Keep:
        cache_key = "keeps plans"

        @turret.hookimpl
        def turret_event(self, event: Any) -> None:
            if event.kind == "product" and event.stage == "codegen":
                plans.append(event.product)

    torch.compiler.reset()
    with torch.no_grad():
        turret.compile(run, options={"cache": False, "on_error": "raise"}, plugins=[Keep()])(*args)
    (plan,) = plans
    return plan


def models() -> Iterator[tuple[str, nn.Module, Tensor]]:
    torch.manual_seed(0)
    yield "block x6, 8x512x768", nn.Sequential(*(Block(768, 12) for _ in range(6))), randn(8, 512, 768, dtype=BF16)
    yield "block x6, tiny", nn.Sequential(*(Block(64, 4) for _ in range(6))), randn(2, 16, 64, dtype=BF16)
    yield "perceptron", perceptron(), randn(4096, 300, dtype=BF16)
    yield "convolutions", convolutions(), randn(64, 3, 128, 128, dtype=BF16)


def model_table(systems: dict[str, Callable], alive: Callable[[], bool]) -> None:
    """Microseconds of a call and of a training step; speed over eager is what the issue asks for."""
    print(
        f"{'model (us)':<28}" + "".join(f"{name + ' ' + role:>21}" for role in ("infer", "train") for name in systems)
    )
    for name, model, x in models():
        if not alive():
            return
        model.to("cuda", BF16)
        line = f"{name:<28}"
        for train in (False, True):
            for compiler in systems.values():
                torch.compiler.reset()
                line += f"{_model_time(compiler, model, x, train):>21}"
        print(line, flush=True)


def _model_time(compiler: Callable, model: nn.Module, x: Tensor, train: bool) -> str:
    try:
        model.train(train)
        run = compiler(model)
        if not train:
            return f"{microseconds(_bind(run, (x,))):.0f}"

        def step() -> None:
            run(x).float().square().mean().backward()
            for parameter in model.parameters():
                parameter.grad = None

        return f"{microseconds(step):.0f}"
    except Exception as error:
        return type(error).__name__[:18]


def compile_times(module: str) -> None:
    """Seconds to the first result of a training step, cold and warm, each in a process of its own."""
    for system in ("turret", "torch.compile"):
        with tempfile.TemporaryDirectory(prefix="cold-") as cache:
            for temperature in ("cold", "warm"):
                done = subprocess.run(
                    [sys.executable, "-m", module, "--compile-once", system, "--cache", cache],
                    capture_output=True,
                    text=True,
                    timeout=300,
                )
                said = done.stdout.strip().splitlines()[-1:] or done.stderr.strip().splitlines()[-1:]
                print(f"  {system} {temperature}: {said[0] if said else 'nothing said'}", flush=True)


def compile_once(compiler: Callable) -> None:
    """Compile a training step of twelve blocks and say how long its first run took."""
    torch.manual_seed(0)
    model, x = nn.Sequential(*(Block(768, 12) for _ in range(12))).to("cuda", BF16), randn(8, 512, 768, dtype=BF16)
    torch.cuda.synchronize()
    start = time.perf_counter()
    compiler(model)(x).float().square().mean().backward()
    torch.cuda.synchronize()
    print(f"{time.perf_counter() - start:.2f} s")

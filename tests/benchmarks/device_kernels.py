"""Which kernels a step of a model runs on a GPU, and for how long, under several systems.

    python -m tests.benchmarks.device_kernels --systems inductor:reduce-overhead,turret:reduce-overhead \
        --models resnet50 --kinds training --folder kernels

Each model, kind and system is a process of its own.  All compile at once; then one after the other profiles its
steps, so that nothing else uses the device.  A line a kernel: microseconds a step, launches a step, name.  What is
left between the kernels' sum and the time of a step is the device waiting for the host.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import torch

from tests.benchmarks import bench, device_models

_WARM_UP = 6
_STEPS = 5


def profile(name: str, kind: str, system: str, options: argparse.Namespace) -> str:
    """The table of one model, kind and system, times in microseconds a step."""
    training = kind == "training"
    size = device_models.TINY if options.tiny else device_models.Size()
    workload = device_models.build(name, size, training, options.device, getattr(torch, options.dtype))
    made = bench.subject(workload, system, training)
    for _ in range(_WARM_UP):
        made.step()
    _wait(options.device)
    with open(options.lock, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        made.step()
        _wait(options.device)
        start = time.perf_counter()
        for _ in range(_STEPS):
            made.step()
        _wait(options.device)
        plain = (time.perf_counter() - start) / _STEPS
        times, launches = _profiled(made, options.device)
    lines = [f"{name} {kind} {system}: {plain * 1e6:.0f} us a step, kernels {sum(times.values()):.0f} us"]
    for kernel, microseconds in times.most_common(options.most):
        lines.append(f"{microseconds:10.1f} {launches[kernel] / _STEPS:7.1f}  {kernel[:150]}")
    return "\n".join(lines)


def _profiled(made: bench.Subject, device: str) -> tuple[Counter[str], Counter[str]]:
    """Microseconds a step and launches in all steps, by kernel."""
    activity = torch.profiler.ProfilerActivity
    wanted = activity.CUDA if device == "cuda" else activity.CPU
    times: Counter[str] = Counter()
    launches: Counter[str] = Counter()
    with torch.profiler.profile(activities=[wanted]) as profiler:
        for _ in range(_STEPS):
            made.step()
        _wait(device)
    for event in profiler.events():
        if device == "cpu" or event.device_type == torch.autograd.DeviceType.CUDA:
            times[event.name] += (
                event.self_device_time_total / _STEPS if device == "cuda" else event.self_cpu_time_total / _STEPS
            )
            launches[event.name] += 1
    return times, launches


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--systems", default="inductor:reduce-overhead,turret:reduce-overhead")
    parser.add_argument("--models", default="resnet50")
    parser.add_argument("--kinds", default="training")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="small models, to see that all of it runs")
    parser.add_argument("--most", type=int, default=40, help="kernels a table, the longest first")
    parser.add_argument("--folder", type=Path, default=Path("kernels"), help="where tables and Turret's products go")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--lock", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(profile(*options.child.split(), options))
        return 0
    return run(options)


def run(options: argparse.Namespace) -> int:
    """Start all processes, print each table, and keep it with the sources of Turret's kernels; 1 where one failed."""
    options.folder.mkdir(parents=True, exist_ok=True)
    jobs = [
        (m, k, s)
        for m in options.models.split(",")
        for k in options.kinds.split(",")
        for s in options.systems.split(",")
    ]
    failed = False
    with tempfile.TemporaryDirectory(prefix="kernels-") as scratch:
        children = [(job, _start(job, f"{scratch}/{at}", f"{scratch}/lock", options)) for at, job in enumerate(jobs)]
        for (name, kind, system), process in children:
            said = process.communicate()[0]
            failed |= process.returncode != 0
            print(said, flush=True)
            (options.folder / f"{name}-{kind}-{system.replace(':', '-')}.txt").write_text(said)
    return int(failed)


def _start(job: tuple[str, str, str], scratch: str, lock: str, options: argparse.Namespace) -> subprocess.Popen[str]:
    name, kind, system = job
    folders = {f"{v}_CACHE_DIR": f"{scratch}/{v}" for v in ("TURRET", "TORCHINDUCTOR", "TRITON")}
    if system.startswith("turret"):
        folders["TURRET_DEBUG_DIR"] = str((options.folder / f"{name}-{kind}-products").absolute())
    command = [sys.executable, "-m", __spec__.name, *sys.argv[1:], "--child", " ".join(job), "--lock", lock]
    return subprocess.Popen(command, env=os.environ | folders, stdout=subprocess.PIPE, text=True)


if __name__ == "__main__":
    sys.exit(main())

"""Training over many steps as programs do it: other inputs each time, another learning rate, other lengths.

    python -m tests.benchmarks.many_steps --systems eager,inductor,inductor:reduce-overhead,turret --models bert,llama
    python -m tests.benchmarks.many_steps --systems eager,inductor:reduce-overhead,turret --models gpt2 --lengths 40
    python -m tests.benchmarks.many_steps --systems inductor,inductor+whole,turret,turret+whole --optimizer AdamW

Every system trains a copy of the same weights on the same batches.  What is reported is how far its losses and its
last weights are from eager's (relative norms; float32 shows mistakes where bfloat16 shows roundings), the median time
of a step over the second half, and memory.  A system with ``+whole`` behind its name is given the whole step, loss,
backward, clipping and optimizer included, and others the model alone.  With ``--lengths`` each batch is as long as one
of so many lengths, each drawn twice, and the time is that of second visits.
"""

from __future__ import annotations

import argparse
import copy
import gc
import json
import random
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import attrs
import torch

from tests.benchmarks import device_models, measure, systems
from tests.benchmarks.models import Workload


@attrs.define
class Result:
    """One system on one model."""

    model: str
    system: str
    losses: list[float] = attrs.field(factory=list)
    seconds: float = float("nan")
    slowest: float = float("nan")
    loss_error: float = float("nan")
    weight_error: float = float("nan")
    reserved_bytes: int = 0
    recordings: int = 0
    """Most that Turret made of one graph."""
    failure: str = ""


def lengths_of(workload: Workload, count: int, steps: int) -> list[int | None]:
    """How long the batch of each step is: None for whole batches, else ``count`` lengths in two shuffled rounds."""
    if not count:
        return [None] * steps
    whole = workload.training_inputs[0].shape[-1]
    drawn = sorted({max(2, whole * n // count) for n in range(1, count + 1)})
    rounds = [random.Random(turn).sample(drawn, len(drawn)) for turn in range(2)]
    return [length for turn in rounds for length in turn]


def batch(inputs: Sequence[torch.Tensor], step: int, length: int | None) -> list[torch.Tensor]:
    """The inputs of a step: the same elements in other places, in memory of their own."""
    moved = [x.flatten().roll(7 * step + 1).view(x.shape) for x in inputs]
    return moved if length is None else [x[..., :length].clone() for x in moved]


def step_of(
    workload: Workload, system: str, optimizer: torch.optim.Optimizer, clip: float
) -> Callable[..., torch.Tensor]:
    """A training step as a system has it: inputs to loss."""
    name, _, whole = system.partition("+")
    compiler = systems.compiler_of(name)
    module = workload.module if whole else compiler(workload.module)
    parameters = list(workload.module.parameters())

    def step(*inputs: torch.Tensor) -> torch.Tensor:
        loss = workload.loss(module(*inputs))
        loss.backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(parameters, clip)
        optimizer.step()
        return loss.detach()

    return compiler(step) if whole else step


def train(
    workload: Workload, system: str, lengths: list[int | None], options: argparse.Namespace
) -> tuple[list[float], list[float], int]:
    """Losses and seconds of each step, and the most recordings that Turret made of one graph."""
    device = options.device
    extra = {"momentum": 0.9} if options.optimizer == "SGD" else {}
    optimizer = getattr(torch.optim, options.optimizer)(workload.module.parameters(), lr=1e-3, **extra)
    take = step_of(workload, system, optimizer, options.clip)
    losses, seconds = [], []
    for step, length in enumerate(lengths):
        inputs = batch(workload.training_inputs, step, length)
        optimizer.param_groups[0]["lr"] = 1e-3 / (1 + step % 5)
        _wait(device)
        start = time.perf_counter()
        optimizer.zero_grad(set_to_none=step % 3 != 0)
        loss = take(*inputs)
        _wait(device)
        seconds.append(time.perf_counter() - start)
        losses.append(loss.item())
    return losses, seconds, recordings() if system.startswith("turret") else 0


def recordings() -> int:
    """Most recordings that Turret made of one graph."""
    import turret

    return max((told.recordings for told in turret.cudagraphs.report().functions), default=0)


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def run(model: str, options: argparse.Namespace) -> list[Result]:
    """All systems on one model, one after the other, from the same weights; eager's comes first."""
    size = device_models.TINY if options.tiny else device_models.Size()
    made = device_models.build(model, size, True, options.device, getattr(torch, options.dtype))
    lengths = lengths_of(made, options.lengths, options.steps)
    results: list[Result] = []
    eager: tuple[Result, list[torch.Tensor]] | None = None
    for system in dict.fromkeys(["eager", *options.systems.split(",")]):
        workload = attrs.evolve(made, module=copy.deepcopy(made.module))
        results.append(result := Result(model, system))
        if options.device == "cuda":
            gc.collect()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        try:
            result.losses, seconds, result.recordings = train(workload, system, lengths, options)
        except Exception as error:
            result.failure = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
            traceback.print_exc(limit=4)
            continue
        result.seconds, result.slowest = statistics.median(seconds[len(seconds) // 2 :]), max(seconds)
        result.reserved_bytes = torch.cuda.max_memory_reserved() if options.device == "cuda" else 0
        weights = [p.detach() for p in workload.module.parameters()]
        eager = eager or (result, weights)
        result.loss_error = measure.relative_error([torch.tensor(result.losses)], [torch.tensor(eager[0].losses)])
        result.weight_error = measure.relative_error(weights, eager[1])
    return results


def report(results: list[Result]) -> str:
    """A line a model and system."""
    rows: list[list[Any]] = []
    for r in results:
        times = [f"{r.seconds * 1e3:.3f}", f"{r.slowest:.2f}"]
        errors = [f"{r.loss_error:.1e}", f"{r.weight_error:.1e}"]
        memory = f"{r.reserved_bytes / 2**20:.0f}"
        rows.append([r.model, r.system, *times, *errors, memory, r.recordings, r.failure[:60]])
    columns = ["ms a step", "slowest s", "loss error", "weight error", "reserved MiB", "recordings", "failure"]
    header = ["model", "system", *columns]
    return measure.table(header, rows)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--systems", default="eager,inductor,inductor:reduce-overhead,turret,turret:reduce-overhead")
    parser.add_argument("--models", default="bert,gpt2,llama,resnet50,vit_base")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="small models, to see that all of it runs")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--optimizer", default="SGD", help="of torch.optim")
    parser.add_argument("--clip", type=float, default=0.0, help="the norm that gradients are clipped to; 0: any")
    parser.add_argument("--lengths", type=int, default=0, help="so many lengths of batches, each twice; 0: whole ones")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    results = [result for model in options.models.split(",") for result in run(model, options)]
    if options.json:
        options.json.write_text(json.dumps([attrs.asdict(r) for r in results], indent=1))
    print(report(results))
    return 1 if any(r.failure for r in results) else 0


if __name__ == "__main__":
    sys.exit(main())

"""Many steps as programs do them: other inputs each time, another learning rate, other lengths.

    python -m tests.benchmarks.many_steps --models all --kinds training,inference --systems turret:reduce-overhead
    python -m tests.benchmarks.many_steps --models gpt2 --lengths 40 \\
        --systems eager,inductor,inductor:reduce-overhead,turret,turret:reduce-overhead
    python -m tests.benchmarks.many_steps --systems inductor,inductor+whole,turret,turret+whole --optimizer AdamW

Every system has a copy of the same weights and takes the same batches.  What is reported is how far what it gives
(losses in training, outputs in inference) and its last weights and buffers are from eager's (relative norms; float32
shows mistakes where bfloat16 shows roundings), the median time of a step in the second half, memory, and what became of
its graphs: how many were recorded (most of one graph in brackets), replays, and calls that ran without one (``-``: not
known).  A system with ``+whole`` behind its name is given the whole step, loss, backward, clipping and optimizer
included, and others the model alone.

With ``--lengths`` each batch is as long as one of so many lengths, each of which comes once in each of ``--rounds``,
and the time is that of the last round.  ``--vary batch`` has so many numbers of samples instead.  ``--capture-sizes``
are what Turret records, and pads other batches to where samples stand alone (``cudagraph_capture_sizes``); ``--pad-to``
are lengths that the program itself pads to, for all systems alike.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import gc
import json
import random
import statistics
import sys
import time
import traceback
import unittest.mock
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs
import torch

from tests.benchmarks import device_models, measure, systems
from tests.benchmarks.models import Workload

_COMPARED = 1 << 16
"""Elements of an output that are compared, of larger ones so many evenly spaced."""


@attrs.define
class Result:
    """One system on one model."""

    model: str
    kind: str
    system: str
    losses: list[float] = attrs.field(factory=list)
    seconds: float = float("nan")
    slowest: float = float("nan")
    total: float = float("nan")
    """Seconds of all steps together, compilation and recordings included."""
    error: float = float("nan")
    """Of losses, or the largest of a step's outputs."""
    state_error: float = float("nan")
    """Of weights and buffers after the last step."""
    reserved_bytes: int = 0
    recordings: int | None = None
    most_of_one: int | None = None
    """Recordings of one graph, of that which has most."""
    replays: int | None = None
    plain_calls: int | None = None
    """Calls that ran without a recording, those that warm up included."""
    padded_calls: int | None = None
    reasons: dict[str, int] = attrs.field(factory=dict)
    """Why calls of Turret's ran without one, and how many."""
    failure: str = ""


def lengths_of(whole: int, options: argparse.Namespace) -> list[int | None]:
    """How long the batch of each step is: None for whole ones, else lengths up to ``whole`` in shuffled rounds."""
    if not options.lengths:
        return [None] * options.steps
    drawn = sorted({max(2, whole * n // options.lengths) for n in range(1, options.lengths + 1)})
    rounds = [random.Random(turn).sample(drawn, len(drawn)) for turn in range(options.rounds)]
    larger = [*sorted(options.pad_to), whole] if options.pad_to else []
    return [min((n for n in larger if n >= length), default=length) for turn in rounds for length in turn]


def batch(inputs: Sequence[torch.Tensor], step: int, length: int | None, vary: str) -> list[torch.Tensor]:
    """The inputs of a step: the same elements in other places, in memory of their own.

    Single integers, which index something, become smaller ones.
    """
    moved = [_smaller(x, step) if x.numel() == 1 else x.flatten().roll(7 * step + 1).view(x.shape) for x in inputs]
    if length is None:
        return moved
    return [(x[:length] if vary == "batch" else x[..., :length]).clone() for x in moved]


def _smaller(x: torch.Tensor, step: int) -> torch.Tensor:
    return x.clone() if x.is_floating_point() else (x - step) % (x + 1)


def step_of(
    workload: Workload, system: str, optimizer: torch.optim.Optimizer, options: argparse.Namespace
) -> Callable[..., torch.Tensor]:
    """A training step as a system has it: inputs to loss."""
    name, _, whole = system.partition("+")
    compiler = systems.compiler_of(name, turrets_options(options))
    module = workload.module if whole else compiler(workload.module)
    parameters = list(workload.module.parameters())

    def step(*inputs: torch.Tensor) -> torch.Tensor:
        loss = workload.loss(module(*inputs))
        loss.backward()
        if options.clip:
            torch.nn.utils.clip_grad_norm_(parameters, options.clip)
        optimizer.step()
        return loss.detach()

    return compiler(step) if whole else step


def turrets_options(options: argparse.Namespace) -> dict[str, Any]:
    return {"cudagraph_capture_sizes": tuple(options.capture_sizes)} if options.capture_sizes else {}


Taken = tuple[list[list[torch.Tensor]], list[float]]
"""What each step gave, and its seconds."""


def train(workload: Workload, system: str, lengths: list[int | None], options: argparse.Namespace) -> Taken:
    """Training steps; what they give are losses."""
    extra = {"momentum": 0.9} if options.optimizer == "SGD" else {}
    optimizer = getattr(torch.optim, options.optimizer)(workload.module.parameters(), lr=1e-3, **extra)
    take = step_of(workload, system, optimizer, options)
    # Torch's graphs overwrite gradients that are added to, and what a step before gave, unless they are told of steps.
    marks = keeps_none = system.startswith("inductor:")

    def step(number: int, inputs: list[torch.Tensor]) -> torch.Tensor:
        optimizer.zero_grad(set_to_none=keeps_none or number % 3 != 0)
        return take(*inputs)

    def before(number: int) -> None:
        optimizer.param_groups[0]["lr"] = 1e-3 / (1 + number % 5)
        if marks:
            torch.compiler.cudagraph_mark_step_begin()

    return timed(step, workload.training_inputs, lengths, options, before)


def infer(workload: Workload, system: str, lengths: list[int | None], options: argparse.Namespace) -> Taken:
    """Calls without gradients; what they give are outputs."""
    module = systems.compiler_of(system, turrets_options(options))(workload.module)
    with torch.no_grad():
        return timed(lambda number, inputs: module(*inputs), workload.inputs, lengths, options)


def timed(
    step: Callable[[int, list[torch.Tensor]], Any],
    inputs: Sequence[torch.Tensor],
    lengths: list[int | None],
    options: argparse.Namespace,
    before: Callable[[int], None] = lambda number: None,
) -> Taken:
    """Every step, and its seconds."""
    seen, seconds = [], []
    for number, length in enumerate(lengths):
        given = batch(inputs, number, length, options.vary)
        before(number)
        _wait(options.device)
        start = time.perf_counter()
        output = step(number, given)
        _wait(options.device)
        seconds.append(time.perf_counter() - start)
        seen.append([_sampled(tensor) for tensor in measure.tensors_of(output)])
    return seen, seconds


def _sampled(output: torch.Tensor) -> torch.Tensor:
    flat = output.detach().reshape(-1)
    return flat[:: 1 + flat.numel() // _COMPARED].cpu()


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


@contextlib.contextmanager
def counted(system: str, result: Result) -> Iterator[None]:
    """Within it, the graphs that a system records and replays are counted; then ``result`` has them."""
    with _turrets(result) if system.startswith("turret") else _torchs(system, result):
        yield


@contextlib.contextmanager
def _turrets(result: Result) -> Iterator[None]:
    import turret

    turret.cudagraphs.functions.clear()  # those of systems before that no garbage collection has taken
    yield
    told = turret.cudagraphs.report().functions
    result.recordings, result.replays = sum(f.recordings for f in told), sum(f.replays for f in told)
    result.most_of_one = max((f.recordings for f in told), default=0)
    reasons: Counter[str] = Counter()
    for function in told:
        reasons.update(function.plain_calls)
        reasons["it warms up"] += function.warm_ups
        reasons.update({f"not captured: {function.skipped}": 1} if function.skipped else {})
    result.reasons = dict((+reasons).most_common())
    result.plain_calls = sum(sum(f.plain_calls.values()) + f.warm_ups for f in told)
    result.padded_calls = sum(f.padded_calls for f in told)


@contextlib.contextmanager
def _torchs(system: str, result: Result) -> Iterator[None]:
    """By torch's class of graphs, and the method of its trees that warms up."""
    counts: Counter[str] = Counter()
    watched = [(torch.cuda.CUDAGraph, "capture_end"), (torch.cuda.CUDAGraph, "replay")]
    if system.startswith("inductor"):
        from torch._inductor.cudagraph_trees import CUDAGraphTreeManager

        watched.append((CUDAGraphTreeManager, "run_eager"))

    def watching(owner: type, name: str) -> Any:
        method = getattr(owner, name)

        def counting(*args: Any, **kwargs: Any) -> Any:
            counts[name] += 1
            return method(*args, **kwargs)

        return unittest.mock.patch.object(owner, name, counting)

    with contextlib.ExitStack() as stack:
        for owner, name in watched:
            stack.enter_context(watching(owner, name))
        yield
    result.recordings, result.replays = counts["capture_end"], counts["replay"]
    if system.startswith("inductor"):
        result.reasons = {"it warms up": counts["run_eager"]} if counts["run_eager"] else {}


def _forget() -> None:
    """What was compiled and recorded for the system before, so that its memory is there for the next."""
    if "turret" in sys.modules:
        sys.modules["turret"].reset()
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()
    gc.collect()


def run(model: str, kind: str, options: argparse.Namespace) -> list[Result]:
    """All systems on one model, one after the other, from the same weights; eager's comes first."""
    size = device_models.TINY if options.tiny else device_models.Size()
    training = kind == "training"
    try:
        made = device_models.build(model, size, training, options.device, getattr(torch, options.dtype))
    except ImportError as error:
        return [Result(model, kind, "eager", failure=f"its model cannot be built: {error}")]
    inputs = made.training_inputs if training else made.inputs
    lengths = lengths_of(inputs[0].shape[0 if options.vary == "batch" else -1], options)
    settled = len(lengths) // options.rounds if options.lengths else len(lengths) // 2
    results: list[Result] = []
    eager: tuple[list[list[torch.Tensor]], list[torch.Tensor]] | None = None
    for system in dict.fromkeys(["eager", *options.systems.split(",")]):
        workload = attrs.evolve(made, module=copy.deepcopy(made.module))
        results.append(result := Result(model, kind, system))
        _forget()
        if options.device == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        try:
            with counted(system, result):
                seen, seconds = (train if training else infer)(workload, system, lengths, options)
        except Exception as error:
            result.failure = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
            traceback.print_exc(limit=4)
            continue
        result.losses = [loss.item() for (loss,) in seen] if training else []
        result.seconds, result.slowest = statistics.median(seconds[-settled:]), max(seconds)
        result.total = sum(seconds)
        result.reserved_bytes = torch.cuda.max_memory_reserved() if options.device == "cuda" else 0
        state = [t.detach() for t in (*workload.module.parameters(), *workload.module.buffers())]
        eager = eager or (seen, state)
        result.error = _error(seen, eager[0], training)
        result.state_error = measure.relative_error(state, eager[1])
        _judge(result, options)
        print(report([result]), file=sys.stderr, flush=True)  # systems before one that never ends are known
    return results


def _error(seen: list[list[torch.Tensor]], expected: list[list[torch.Tensor]], training: bool) -> float:
    """Of all losses together, or the largest of one step's outputs."""
    if training:
        return measure.relative_error([torch.stack([t for (t,) in seen])], [torch.stack([t for (t,) in expected])])
    return max(measure.relative_error(one, other) for one, other in zip(seen, expected, strict=True))


def _judge(result: Result, options: argparse.Namespace) -> None:
    """Note what is wrong with a system that ran to its end."""
    if options.tolerance and not max(result.error, result.state_error) <= options.tolerance:
        result.failure = f"errors are above {options.tolerance:g}"
    elif options.device == "cuda" and "turret:reduce-overhead" in result.system and not result.replays:
        result.failure = "nothing was replayed"


def report(results: list[Result]) -> str:
    """A line a model, kind and system, then why calls ran without a recording."""
    rows: list[list[Any]] = []
    for r in results:
        times = [f"{r.seconds * 1e3:.3f}", f"{r.slowest:.2f}", f"{r.total:.1f}"]
        errors = [f"{r.error:.1e}", f"{r.state_error:.1e}"]
        most = "" if r.most_of_one is None else f" ({r.most_of_one})"
        counts = ["-" if n is None else str(n) for n in (r.recordings, r.replays, r.plain_calls, r.padded_calls)]
        counts[0] += most
        memory = f"{r.reserved_bytes / 2**20:.0f}"
        rows.append([f"{r.model} {r.kind}", r.system, *times, *errors, memory, *counts, r.failure[:60]])
    graphs = ["recordings", "replays", "plain calls", "padded"]
    columns = ["ms a step", "slowest s", "all s", "error", "state error", "reserved MiB", *graphs, "failure"]
    lines = [measure.table(["model", "system", *columns], rows)]
    for r in results:
        lines += [f"{r.model} {r.kind} {r.system}: {count} calls: {reason}" for reason, count in r.reasons.items()]
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    numbers = lambda text: [int(n) for n in text.split(",") if n]  # noqa: E731
    parser.add_argument("--systems", default="eager,inductor,inductor:reduce-overhead,turret,turret:reduce-overhead")
    parser.add_argument("--models", default="bert,gpt2,llama,resnet50,vit_base", help="names, or all")
    parser.add_argument("--kinds", default="training", help="training, inference, or both")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="small models, to see that all of it runs")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--optimizer", default="SGD", help="of torch.optim")
    parser.add_argument("--clip", type=float, default=0.0, help="the norm that gradients are clipped to; 0: any")
    parser.add_argument("--tolerance", type=float, default=0.0, help="errors that are a failure; 0: none is")
    parser.add_argument("--lengths", type=int, default=0, help="so many lengths of batches; 0: whole ones")
    parser.add_argument("--rounds", type=int, default=10, help="how often each length comes")
    parser.add_argument("--vary", choices=("length", "batch"), default="length", help="what has so many sizes")
    parser.add_argument("--capture-sizes", type=numbers, default=[], help="cudagraph_capture_sizes of Turret")
    parser.add_argument("--pad-to", type=numbers, default=[], help="lengths that the program pads batches to")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    models = list(device_models.MODELS) if options.models == "all" else options.models.split(",")
    jobs = [(model, kind) for model in models for kind in options.kinds.split(",")]
    jobs = [
        (model, kind if model not in device_models.INFERENCE_ALONE else "inference") for model, kind in jobs
    ]  # which nobody trains are called, whatever kinds are asked for
    results: list[Result] = []
    for model, kind in dict.fromkeys(jobs):
        with torch.backends.cudnn.flags(
            enabled=True, allow_tf32=options.dtype != "float32"
        ):  # convolutions as exact as products
            results += run(model, kind, options)
        if options.json:
            options.json.write_text(json.dumps([attrs.asdict(r) for r in results], indent=1))
    print(report(results))
    return 1 if any(r.failure for r in results) else 0


if __name__ == "__main__":
    sys.exit(main())

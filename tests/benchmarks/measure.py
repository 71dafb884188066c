"""Timing and error measures that the benchmarks share."""

from __future__ import annotations

import gc
import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor


def interleaved(
    steps: Mapping[str, Callable[[], object]],
    *,
    seconds: float = 4.0,
    slice_seconds: float = 0.05,
    rounds: int = 9,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Seconds per call of each step, one figure a round, the steps taking turns so that noise hits all alike.

    Rounds go through every order: memory that one step has given back to the system costs the next one.

    ``seconds`` is the budget of all steps together; a slow step gets fewer calls, but at least one a round and
    ``rounds`` rounds unless that alone would exceed three times the budget.  Steps must be warm.  ``clock`` is what
    seconds are of: ``time.process_time`` counts those that the process has a processor, all its threads together.
    """
    once = {name: _seconds(step, 1, clock) for name, step in steps.items()}
    per_round = {name: max(1, int(slice_seconds / max(t, 1e-9))) for name, t in once.items()}
    cost = sum(once[name] * per_round[name] for name in steps)
    count = max(3, min(max(rounds, int(seconds / cost)), max(3, int(3 * seconds / cost))))
    times: dict[str, list[float]] = {name: [] for name in steps}
    gc.collect()
    gc.disable()
    try:
        for order in itertools.islice(itertools.cycle(itertools.permutations(steps)), count):
            for name in order:
                times[name].append(_seconds(steps[name], per_round[name], clock))
    finally:
        gc.enable()
    return times


def _seconds(step: Callable[[], object], calls: int, clock: Callable[[], float]) -> float:
    start = clock()
    for _ in range(calls):
        step()
    return (clock() - start) / calls


def relative_error(got: Iterable[Tensor | None], expected: Iterable[Tensor | None]) -> float:
    """Norm of the difference over the norm of the expected, all tensors taken as one vector, in float64.

    A tensor that one side lacks, or a shape that differs, counts as an infinite error; so does a NaN of one side.
    """
    difference = norm = 0.0
    pairs = list(zip(list(got), list(expected), strict=True))
    for a, b in pairs:
        if a is None and b is None:
            continue
        if a is None or b is None or a.shape != b.shape:
            return math.inf
        x, y = a.detach().double(), b.detach().double()
        difference += float((x - y).square().sum())
        norm += float(y.square().sum())
    error = math.sqrt(difference) / max(math.sqrt(norm), 1e-300) if difference else difference
    return math.inf if math.isnan(error) else error


def worst_error(got: Iterable[Tensor | None], expected: Iterable[Tensor | None]) -> float:
    """The largest ``relative_error`` of a single tensor: one that is small and wrong does not show in all of them.

    Tensors whose elements are a thousandth of the largest tensor's or less, by their root mean squares, are left out:
    they are what rounding left of sums that are 0.
    """
    pairs = [(a, b) for a, b in zip(list(got), list(expected), strict=True) if b is not None and b.numel()]
    sizes = [float(b.detach().double().square().mean().sqrt()) for _, b in pairs]
    least = 1e-3 * max(sizes, default=0.0)
    kept = [pair for pair, size in zip(pairs, sizes, strict=True) if size > least]
    return max((relative_error([a], [b]) for a, b in kept), default=0.0)


def tensors_of(output: object) -> list[Tensor]:
    """The tensors of a nested output, in order."""
    return [leaf for leaf in torch.utils._pytree.tree_leaves(output) if isinstance(leaf, Tensor)]


def geometric_mean(values: Sequence[float]) -> float:
    """NaN for no values."""
    return math.exp(statistics.fmean(math.log(v) for v in values)) if values else math.nan


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A plain-text table: first column to the left, the others to the right."""
    text = [list(header)] + [[f"{cell:.3g}" if isinstance(cell, float) else str(cell) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in text) for i in range(len(header))]
    lines = [
        "  ".join(c.rjust(w) if i else c.ljust(w) for i, (c, w) in enumerate(zip(r, widths, strict=True))) for r in text
    ]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])

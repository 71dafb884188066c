"""Graphs cut into sections whose gradients are ready one after the other, so that sending them overlaps the backward.

``DistributedDataParallel`` sends the gradients of a bucket of parameters to the other processes once all of them are
there.  The backward of one graph gives all of its gradients at its end.  A graph in which parameters of more than one
bucket are used is therefore compiled in sections, each a graph with a backward of its own: autograd runs that of the
last section first, and what the parameters in it get is on its way while those before compute.  Where there is no
place for a cut, the bucket grows to the next.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from torch import fx

from turret.hooks.products import CapturedGraph
from turret.pipeline.sections.sections import Section, Trial, calls_of, section


def cut(captured: CapturedGraph) -> list[Section]:
    """The sections of a graph, in order; none where it stays whole: one bucket has all, or no cut can be made."""
    buckets = captured.gradient_buckets
    if buckets is None:
        return []
    if sum(_bytes(captured.example_inputs[position]) for position in buckets.inputs) <= buckets.first_bytes:
        return []
    calls = calls_of(captured)
    trial = Trial(captured)
    if not trial.try_out():
        return []
    places = _places(captured, calls, trial)
    if not places:
        return []
    bounds = [0, *places, len(calls)]
    return [section(captured, trial, calls[start:end]) for start, end in itertools.pairwise(bounds)]


def _places(captured: CapturedGraph, calls: Sequence[fx.Node], trial: Trial) -> list[int]:
    """Where to cut: numbers of the calls that sections but the first begin with, in order.

    Gradients come in the opposite order of first uses.  From the end, a section is closed once the parameters that are
    first used in it are as large as a bucket.
    """
    buckets = captured.gradient_buckets
    assert buckets is not None
    number = {call: n for n, call in enumerate(calls)}
    first_use: dict[int, int] = {}
    placeholders = [node for node in captured.module.graph.nodes if node.op == "placeholder"]
    for position in buckets.inputs:
        uses = [number[user] for user in placeholders[position].users if user in number]
        if uses:
            first = min(uses)
            first_use[first] = first_use.get(first, 0) + _bytes(captured.example_inputs[position])
    places: list[int] = []
    left, held, wanted = sum(first_use.values()), 0, buckets.first_bytes
    for place in range(len(calls) - 1, 0, -1):
        held += first_use.get(place, 0)
        if held >= wanted and left > held and _may_cut(place, calls, trial):
            places.append(place)
            left, held, wanted = left - held, 0, buckets.bytes
    return places[::-1]


def _bytes(tensor: Any) -> Any:
    return tensor.numel() * tensor.element_size()


def _may_cut(place: int, calls: Sequence[fx.Node], trial: Trial) -> bool:
    return calls[place - 1] not in trial.changed and trial.may_cut(place, calls)

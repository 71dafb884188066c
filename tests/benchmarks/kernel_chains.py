"""Chains of generated kernels: plain calls beside one recording that serves all sizes, as the default mode makes it.

    python -m tests.benchmarks.kernel_chains [--device cuda] [--layers 1,2,4,8]

Such a recording works in memory that each replay takes from the device's allocator, so that it reserves nothing between
calls; from how many kernels on it is faster is what the option ``cudagraph_min_kernels`` says.  Times are microseconds
a call, with the device's work and on the host alone; ``reserved`` is what the allocator holds after each.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import attrs
import torch
from torch import Tensor

import turret
from turret.api import cudagraphs

CALLS_BEFORE = 12
"""Calls of each size ahead of those that are timed, among them those that the default mode leaves unrecorded."""

SIZES = (64, 96, 128, 64, 160)
"""Rows of the batches, multiples of 16: kernels for others are other ones."""


@attrs.frozen
class Figures:
    """Of one way to run one chain; ``nodes`` and ``recordings`` are 0 for plain calls."""

    layers: int
    graphs: bool
    sizes: str
    microseconds: float
    host_microseconds: float
    reserved_bytes: int
    nodes: int
    recordings: int


def chain(layers: int) -> Callable[[Tensor, Tensor], Tensor]:
    """A function of two kernels a layer."""

    def run(x: Tensor, y: Tensor) -> Tensor:
        for layer in range(layers):
            x = torch.softmax(torch.relu(x) * (layer + 2) + y, -1)
            x = x - x.sum(0, keepdim=True)
        return x

    return run


def measured(
    layers: int, device: torch.device, plugins: Sequence[Any] = (), calls: int = 50, rounds: int = 8
) -> Iterator[Figures]:
    """Plain calls and replays: of one size, and of any, with the same sizes in each call and with others."""
    batches = [(torch.randn(n, 256).to(device), torch.randn(256).to(device)) for n in SIZES]
    uses = {False: {"static": batches[:1]}, True: {"equal": batches[:1], "changing": batches}}
    for graphs, dynamic in itertools.product((False, True), (False, True)):
        before = set(cudagraphs.functions)
        options = {"on_error": "raise", "cudagraph_min_kernels": int(graphs)}
        compiled = turret.compile(chain(layers), dynamic=dynamic, plugins=list(plugins), options=options)
        for batch in (batches if dynamic else batches[:1]) * CALLS_BEFORE:
            compiled(*batch)
        told = [f.reported() for f in set(cudagraphs.functions) - before]
        assert bool(told) == graphs and all(f.recordings and f.any_size for f in told), told
        for sizes, used in uses[dynamic].items():
            whole, host = _times(compiled, used, device, calls, rounds)
            reserved = torch.cuda.memory_reserved(device) if device.type == "cuda" else 0
            nodes, recordings = sum(f.nodes for f in told), sum(f.recordings for f in told)
            yield Figures(layers, graphs, sizes, whole, host, reserved, nodes, recordings)


def _times(
    compiled: Callable, batches: Sequence[tuple[Tensor, Tensor]], device: torch.device, calls: int, rounds: int
) -> tuple[float, float]:
    """Least microseconds a call of some rounds, with the device's work and on the host alone."""
    whole = host = float("inf")
    for _ in range(rounds):
        _wait(device)
        start = time.perf_counter()
        for turn in range(calls):
            compiled(*batches[turn % len(batches)])
        host = min(host, (time.perf_counter() - start) / calls * 1e6)
        _wait(device)
        whole = min(whole, (time.perf_counter() - start) / calls * 1e6)
    return whole, host


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--layers", default="1,2,4,8,16", help="of two kernels each, with commas between")
    asked = parser.parse_args()
    device = torch.device(asked.device)
    with torch.no_grad():
        for layers in map(int, asked.layers.split(",")):
            for found in measured(layers, device):
                way = f"{found.recordings} recordings of {found.nodes} nodes" if found.graphs else "plain"
                print(
                    f"{layers} layers, {found.sizes} sizes, {way}: {found.microseconds:.1f} us "
                    f"({found.host_microseconds:.1f} on the host), {found.reserved_bytes / 2**20:.1f} MiB reserved"
                )


if __name__ == "__main__":
    main()

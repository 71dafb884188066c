"""Host time of a replay over other memory: recordings of ten inputs, all moved or none, of one to many nodes.

Usage, on a machine with a GPU: ``python -m tests.benchmarks.graph_replay [--nodes 1 10 100]``.  Beside it stands what a
runtime does that cannot patch: ten copies into fixed buffers, and torch's own replay.  Then whole calls of a compiled
function that multiplies by ten matrices in turn, with guards, replay and a fresh result.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

import turret
from turret.hooks.devices import device_for
from turret.hooks.graph_capture import GraphCapture, Moved, Recording, Replay, address_words, tensor_at

INPUTS = 10
ELEMENTS = 1024
STEP = 2 << 20


def work(nodes: int) -> Callable[[Sequence[Tensor]], None]:
    """So many kernels, which take turns with the inputs."""

    def run(tensors: Sequence[Tensor]) -> None:
        for number in range(nodes):
            tensors[number % INPUTS].add_(1)

    return run


def inputs(device: torch.device) -> list[Tensor]:
    return [torch.zeros(ELEMENTS, device=device) for _ in range(INPUTS)]


def bound(graphs: GraphCapture, nodes: int, tensors: Sequence[Tensor]) -> tuple[Recording, Replay]:
    """A recording of the work, and its replay over other memory."""
    pool, run = graphs.pool(0), work(nodes)
    far = [tensor_at(t.data_ptr() + n * STEP, t.shape, t.stride(), t.dtype, t.device) for n, t in enumerate(tensors, 1)]
    first, again, second = (graphs.record(0, lambda x=x: run(x), pool) for x in (tensors, tensors, far))
    moved = {n: Moved(a.data_ptr(), b.data_ptr(), a.nbytes) for n, (a, b) in enumerate(zip(tensors, far, strict=True))}
    found = address_words(first, second, moved, again)
    return first, first.bind([found.words[n] for n in range(INPUTS)], [t.data_ptr() for t in tensors])


def microseconds(call: Callable[[int], object], synchronize: Callable[[], object], calls: int = 200) -> float:
    """Of one call on the host; the queue is empty when it begins, and holds what ``calls`` put into it."""
    best = float("inf")
    for _ in range(5):
        synchronize()
        start = time.perf_counter()
        for turn in range(calls):
            call(turn)
        best = min(best, (time.perf_counter() - start) / calls * 1e6)
    synchronize()
    return best


def measured(
    graphs: GraphCapture, device: torch.device, nodes: int, stream: int, synchronize: Callable[[], object]
) -> dict[str, float]:
    """Microseconds of a replay, by what happens before it."""
    sets = [inputs(device) for _ in range(3)]
    addresses = [[t.data_ptr() for t in tensors] for tensors in sets]
    recording, replay = bound(graphs, nodes, sets[0])

    def copied(turn: int) -> None:
        for target, source in zip(sets[0], sets[1 + turn % 2], strict=True):
            target.copy_(source)
        replay(addresses[0], stream)

    replay(addresses[0], stream)
    return {
        "all inputs moved": microseconds(lambda turn: replay(addresses[turn % 2], stream), synchronize),
        "none moved": microseconds(lambda turn: replay(addresses[0], stream), synchronize),
        "inputs copied": microseconds(copied, synchronize),
        "without addresses": microseconds(lambda turn: recording.replay(stream), synchronize),
    }


def whole_calls(device: torch.device, nodes: int, synchronize: Callable[[], object]) -> dict[str, float]:
    """Microseconds of a call of a compiled function, by which of its ten inputs lie elsewhere than in the call before.

    Raises ``RuntimeError`` where calls were not replayed.
    """

    def program(*matrices: Tensor) -> Tensor:
        result = matrices[0]
        for number in range(nodes):
            result = result @ matrices[number % INPUTS]
        return result

    compiled = turret.compile(program, mode="reduce-overhead", options={"cache": False, "on_error": "raise"})
    sets = [[torch.eye(64, device=device) for _ in range(INPUTS)] for _ in range(3)]
    with torch.no_grad():
        for matrices in (*sets, *sets):
            compiled(*matrices)
        before = _replays()
        found = {
            "all inputs moved": microseconds(lambda turn: compiled(*sets[turn % 2]), synchronize),
            "none moved": microseconds(lambda turn: compiled(*sets[0]), synchronize),
            "eager": microseconds(lambda turn: program(*sets[turn % 2]), synchronize, 20),
        }
        if _replays() - before != 2000:
            raise RuntimeError(f"calls were not replayed:\n{turret.cudagraphs.report()}")
    return found


def _replays() -> int:
    return sum(function.replays for function in turret.cudagraphs.report().functions)


def main() -> None:
    """Print two lines for each number of nodes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 10, 100, 1000])
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("graph_replay needs a CUDA device")
    device, stream = torch.device("cuda", 0), torch.cuda.current_stream().cuda_stream
    for nodes in options.nodes:
        found = measured(device_for("cuda").graphs, device, nodes, stream, torch.cuda.synchronize)
        _print(f"{nodes:5} nodes", found)
        _print(f"{nodes:5} products, whole calls", whole_calls(device, nodes, torch.cuda.synchronize))


def _print(title: str, found: dict[str, float]) -> None:
    print(f"{title}: " + ", ".join(f"{what} {us:.1f} us" for what, us in found.items()), flush=True)


if __name__ == "__main__":
    main()

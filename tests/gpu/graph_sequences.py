"""Random sequences of calls of recorded functions on a device, against eager: in any order, whatever is kept.

    python -m tests.gpu.graph_sequences --sequences 500

The state machine alone is fuzzed without a device (``tests/fuzz/graph_calls.py``); here kernels, libraries, allocator
and autograd are those of the device.
"""

from __future__ import annotations

import argparse
import gc
import random
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import turret
from tests.gpu.graph_checks import Place
from turret.hooks.devices import device_for

SIZES = (24, 40)
STEPS = 20
MOST_HELD = 6
TOLERANCE = 1e-4
OPTIONS: dict[str, dict[str, Any]] = {
    "fresh": {"cudagraphs": True},
    "pool": {"cudagraphs": True, "cudagraph_outputs": "pool"},
    "legacy": {"cudagraphs": True, "cudagraph_trees": False},
    "unasked": {"cudagraph_after_calls": 2},
}


def _write_to_the_first(x: Tensor, y: Tensor) -> Tensor:
    x.mul_(0.5).add_(y)
    return torch.tanh(x.sum(0, keepdim=True) + x)


def _put(x: Tensor, y: Tensor) -> Tensor:
    return x.index_put((torch.arange(3, device=x.device),), y[:3]).cumsum(0).tanh()


def functions(place: Place) -> dict[str, tuple[Callable[..., Any], int]]:
    """Functions of square matrices, with how many they take; values stay small whatever follows what."""
    weights = [nn.Parameter(place.rand(n, n) / n) for n in SIZES]
    filters = place.rand(1, 1, 3, 3)
    weight_of = lambda x: weights[SIZES.index(x.shape[0])]  # noqa: E731
    return {
        "product": (lambda x, y: (torch.softmax(torch.relu(x @ weight_of(x).detach()) + y, -1), torch.sin(x)), 2),
        "sort": (lambda x: (torch.sort(x, -1)[0], torch.tanh(x.topk(3, -1)[0].sum() + x)), 1),
        "joined": (lambda x, y: torch.tanh(torch.cat([x, y], 1)[:, 3 : 3 + x.shape[1]] + y.t()), 2),
        "written": (_write_to_the_first, 2),
        "views": (lambda x, y: (torch.sin(x).t(), x[1:], y), 2),
        "put": (_put, 2),
        "convolved": (lambda x: torch.tanh(F.conv2d(x[None, None], filters, padding=1)[0, 0]), 1),
        "attention": (lambda x, y: F.scaled_dot_product_attention(x[None], y[None], x[None])[0], 2),
        "trained": (lambda x, y: torch.tanh(x @ weight_of(x) + y), 2),
        "cut": (lambda x: torch.sin(torch.cos(x).cpu().to(x.device)) + x.sigmoid(), 1),
    }


@attrs.define(eq=False)
class Held:
    """A tensor that the user holds, and what it has to be."""

    real: Tensor
    expected: Tensor


class Functions:
    """The functions compiled with each kind of outputs; compiled code serves all sequences."""

    def __init__(self, place: Place) -> None:
        self.place, self.eager = place, functions(place)
        self.compiled: dict[tuple[str, str], Callable[..., Any]] = {}

    def get(self, kind: str, name: str) -> Callable[..., Any]:
        if (kind, name) not in self.compiled:
            options = {"on_error": "raise", "cache": False, **OPTIONS[kind]}
            function = self.eager[name][0]
            self.compiled[kind, name] = turret.compile(function, plugins=list(self.place.plugins), options=options)
        return self.compiled[kind, name]


class Play:
    """One sequence with one kind of outputs."""

    def __init__(self, known: Functions, r: random.Random, kind: str) -> None:
        self.known, self.r, self.kind, self.place = known, r, kind, known.place
        self.names = r.sample(list(known.eager), 3)
        self.held: list[Held] = []
        self.counts: Counter[str] = Counter()

    def run(self) -> None:
        """Some steps; ``AssertionError`` where anything is not eager's."""
        actions: dict[Callable[[], None], float] = {self.call: 12, self.drop: 2, self.write: 2, self.collect: 0.2}
        for _ in range(STEPS):
            self.r.choices(list(actions), list(actions.values()))[0]()
            for held in self.held:
                self.same(held.real, held.expected, "what was held")

    def same(self, found: Tensor, expected: Tensor, what: str) -> None:
        assert found.shape == expected.shape and found.stride() == expected.stride(), what
        error = (found.double() - expected.double()).norm() / max(1.0, expected.double().norm().item())
        assert error.item() <= TOLERANCE, f"{what}: relative error {error.item():.2e}"

    def make(self, n: int) -> Held:
        values = self.place.rand(n * n + 1)
        start = 1 if self.r.random() < 0.15 else 0  # 4 bytes past a multiple of 16
        real, expected = (values.clone()[start : start + n * n].view(n, n) for _ in range(2))
        return Held(real, expected)

    def inputs(self, count: int) -> list[Held]:
        n, chosen = self.r.choice(SIZES), []
        for _ in range(count):
            fitting = [h for h in self.held if h.real.shape == (n, n) and h.real.is_contiguous()]
            draw = self.r.random()
            if fitting and draw < 0.6:
                chosen.append(self.r.choice(fitting))
            else:
                chosen.append(self.r.choice(chosen) if chosen and draw < 0.7 else self.make(n))
        return chosen

    def call(self) -> None:
        """A call, sometimes with its backward; in the pool, what was held goes, as the next call may overwrite it."""
        name = self.r.choice(self.names)
        function, count = self.known.eager[name]
        given = self.inputs(count)
        if self.kind != "fresh" and self.kind != "unasked":
            given = [Held(h.real.clone(), h.expected.clone()) for h in given]
            self.held.clear()
        found = self.known.get(self.kind, name)(*(h.real for h in given))
        expected = function(*(h.expected for h in given))
        self.counts["calls"] += 1
        if name == "trained":
            self.differentiate(found, expected)
        for n, h in enumerate(given):
            self.same(h.real, h.expected, f"input {n} of {name}")
        results = [[r] if isinstance(r, Tensor) else r for r in (found, expected)]
        for n, (one, other) in enumerate(zip(*results, strict=True)):
            self.same(one, other, f"output {n} of {name}")
            if self.r.random() < 0.5 and len(self.held) < MOST_HELD and other.shape[0] in SIZES:
                self.held.append(Held(one.detach(), other.detach()))

    def differentiate(self, found: Tensor, expected: Tensor) -> None:
        """Gradients with respect to the weights, through both."""
        if self.r.random() < 0.7:
            weights = [t for t in _leaves(expected) if t.requires_grad]
            one, other = (torch.autograd.grad(y.square().sum(), weights) for y in (found, expected))
            for a, b in zip(one, other, strict=True):
                self.same(a, b, "a gradient")
            self.counts["gradients"] += 1

    def drop(self) -> None:
        if self.held:
            self.held.remove(self.r.choice(self.held))

    def write(self) -> None:
        """The user's program writes to what it holds, and to all that shares its memory."""
        if self.held:
            held = self.r.choice(self.held)
            held.real.mul_(0.5)
            held.expected.mul_(0.5)

    def collect(self) -> None:
        gc.collect()


def _leaves(output: Tensor) -> list[Tensor]:
    """What an output's gradient flows to."""
    found: list[Tensor] = []
    pending = [output.grad_fn]
    while pending:
        node = pending.pop()
        if node is not None:
            found += [node.variable] if hasattr(node, "variable") else []
            pending += [n for n, _ in node.next_functions]
    return found


def play(place: Place, count: int, seed: int = 0) -> list[str]:
    """Run sequences; lines that say what happened in them.  Raises ``AssertionError``, with the sequence's number."""
    counts: Counter[str] = Counter()
    before = turret.cudagraphs.report()
    known = Functions(place)
    for number in range(seed, seed + count):
        r = random.Random(number)
        torch.manual_seed(number)
        game = Play(known, r, r.choice(list(OPTIONS)))
        try:
            game.run()
        except Exception as error:
            raise AssertionError(f"sequence {number} ({game.kind}: {game.names}): {error}") from error
        counts += game.counts
    after = turret.cudagraphs.report()
    told = {"recordings": after.recordings - before.recordings, "replays": after.replays - before.replays}
    assert told["replays"], "nothing was replayed"
    return [f"{count} sequences: " + ", ".join(f"{n} {what}" for what, n in {**counts, **told}.items())]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sequences", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    place = Place(device_for("cuda").graphs, torch.device("cuda", 0))
    print(*play(place, options.sequences, options.seed), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

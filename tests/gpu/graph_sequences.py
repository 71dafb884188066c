"""Random sequences of calls of recorded functions on a device, against eager: in any order, whatever is kept.

    python -m tests.gpu.graph_sequences --sequences 500
    python -m tests.gpu.graph_sequences --seed 4711 --sequences 1

The state machine alone is fuzzed without a device (``tests/fuzz/graph_calls.py``); here kernels, libraries, allocator
and autograd are those of the device.  A sequence repeats a few actions, each time with a few others among them, so that
recordings are replayed, do not fit, and are made again: calls whose outputs are kept or dropped, backwards with other
calls in between, calls that fail before their graph or in it, writes, threads.  With outputs in the pool some sequences
mark steps, and keep what the calls between two marks gave; what is older is eager's or raises.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import random
import sys
import threading
import time
import traceback
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
ROUNDS, MARKED_ROUNDS = 5, 9
"""How often the actions of a sequence are repeated; the calls of a step behind one that warms up warm up as well."""
MOST_HELD = 8
MOST_PENDING = 3
TOLERANCE = 1e-4
OPTIONS: dict[str, dict[str, Any]] = {
    "fresh": {"cudagraphs": True},
    "pool": {"cudagraphs": True, "cudagraph_outputs": "pool"},
    "legacy": {"cudagraphs": True, "cudagraph_trees": False},
    "unasked": {"cudagraph_after_calls": 2},
}
KINDS = ("fresh", "pool", "pool", "marked pool", "marked pool", "marked pool", "legacy", "unasked")
"""Of sequences; a marked pool has a kind of its own as marks hold for the process: its sequences come last."""


class Lost(Exception):
    """What a call fails with."""


_losing = threading.Event()
"""While it is set, ``turret_sequences::host`` fails where it runs."""


def _host(x: Tensor) -> Tensor:
    if _losing.is_set():
        raise Lost("in the graph")
    return x.sigmoid()


def _host_op() -> Callable[[Tensor], Tensor]:
    """A library call that runs code of the host: in replays it cannot fail."""
    op = torch.library.custom_op("turret_sequences::host", _host, mutates_args=())
    op.register_fake(torch.empty_like)
    return op


def _write_to_the_first(x: Tensor, y: Tensor) -> Tensor:
    x.mul_(0.5).add_(y)
    return torch.tanh(x.sum(0, keepdim=True) + x)


def _refuse(x: Tensor, y: Tensor, wrong: bool = False) -> Tensor:
    x.mul_(0.5)
    if wrong:
        raise Lost("before the graph")
    return torch.tanh(torch.cumsum(x + y, 0))


def _put(x: Tensor, y: Tensor) -> Tensor:
    return x.index_put((torch.arange(3, device=x.device),), y[:3]).cumsum(0).tanh()


@attrs.frozen
class Subject:
    """A function of square matrices; ``writes``: to its first, ``trains``: gradients flow to weights."""

    run: Callable[..., Any]
    inputs: int
    writes: bool = False
    trains: bool = False


def functions(place: Place) -> dict[str, Subject]:
    """Functions whose values stay small whatever follows what."""
    weights = [nn.Parameter(place.rand(n, n) / n) for n in SIZES]
    filters, host = place.rand(1, 1, 3, 3), _host_op()
    weight_of = lambda x: weights[SIZES.index(x.shape[0])]  # noqa: E731
    return {
        "product": Subject(
            lambda x, y: (torch.softmax(torch.relu(x @ weight_of(x).detach()) + y, -1), torch.sin(x)), 2
        ),
        "sort": Subject(lambda x: (torch.sort(x, -1)[0], torch.tanh(x.topk(3, -1)[0].sum() + x)), 1),
        "joined": Subject(lambda x, y: torch.tanh(torch.cat([x, y], 1)[:, 3 : 3 + x.shape[1]] + y.t()), 2),
        "written": Subject(_write_to_the_first, 2, writes=True),
        "views": Subject(lambda x, y: (torch.sin(x).t(), x[1:], y), 2),
        "put": Subject(_put, 2),
        "convolved": Subject(lambda x: torch.tanh(F.conv2d(x[None, None], filters, padding=1)[0, 0]), 1),
        "attention": Subject(lambda x, y: F.scaled_dot_product_attention(x[None], y[None], x[None])[0], 2),
        "trained": Subject(lambda x, y: torch.tanh(x @ weight_of(x) + y), 2, trains=True),
        "squashed": Subject(lambda x: (torch.sigmoid(x.cos() @ weight_of(x)), x * 2), 1, trains=True),
        "cut": Subject(lambda x: torch.sin(torch.cos(x).cpu().to(x.device)) + x.sigmoid(), 1),
        "refused": Subject(_refuse, 2, writes=True),
        "lost": Subject(lambda x: torch.sin(host(torch.cumsum(x, 0))) * 2, 1),
    }


@attrs.define(eq=False)
class Held:
    """A tensor that the user holds, what it has to be, and the function that gave it out."""

    real: Tensor
    expected: Tensor
    giver: str = ""

    @property
    def memory(self) -> int:
        """Of its expected twin, which nothing invalidates."""
        return self.expected.untyped_storage().data_ptr()


@attrs.define(eq=False)
class Pending:
    """A forward that waits for its backward: outputs, and all memory that gradients depend on."""

    name: str
    found: list[Tensor]
    expected: list[Tensor]
    memory: set[int]
    stale: bool = False
    """What its backward needs may be overwritten."""


class Functions:
    """The functions compiled with each kind of outputs; compiled code serves all sequences."""

    def __init__(self, place: Place) -> None:
        self.place, self.eager = place, functions(place)
        self.compiled: dict[tuple[str, str], Callable[..., Any]] = {}

    def get(self, kind: str, name: str) -> Callable[..., Any]:
        if (kind, name) not in self.compiled:
            options = {"on_error": "raise", "cache": False, **OPTIONS[kind]}
            function = self.eager[name].run
            self.compiled[kind, name] = turret.compile(function, plugins=list(self.place.plugins), options=options)
        return self.compiled[kind, name]


class Play:
    """One sequence with one kind of outputs."""

    def __init__(self, known: Functions, seed: int, kind: str) -> None:
        self.known, self.place, self.marked = known, known.place, kind == "marked pool"
        self.kind = "pool" if self.marked else kind
        self.r = self.plan = random.Random(seed)
        self.names = self.plan.sample(list(known.eager), 4)
        self.held: list[Held] = []
        self.older: list[Held] = []
        """What may be overwritten by the next call, or is kept for ever."""
        self.pending: list[Pending] = []
        self.errors: list[Lost] = []
        """What calls raised, which the program keeps, tracebacks and all."""
        self.counts: Counter[str] = Counter()

    def run(self) -> None:
        """Some rounds of the same actions; ``AssertionError`` where anything is not eager's."""
        script = [self.draw() for _ in range(self.plan.randint(2, 6))]
        for _ in range(MARKED_ROUNDS if self.marked else ROUNDS):
            self.begin()
            for action in script:
                if self.plan.random() < 0.1:
                    self.act(self.draw())
                self.act(self.draw() if self.plan.random() < 0.05 else action)
            while self.pending:
                self.differentiate()

    def draw(self) -> tuple[str, int]:
        """An action, and the seed of what it draws, so that it is the same again."""
        actions = {"call": 12, "drop": 3, "write": 1, "differentiate": 3, "fail": 1, "in_threads": 0.8, "collect": 0.1}
        return self.plan.choices(list(actions), list(actions.values()))[0], self.plan.randrange(1 << 30)

    def act(self, action: tuple[str, int]) -> None:
        name, seed = action
        self.r = random.Random(seed)
        getattr(self, name)()
        self.look()

    def begin(self) -> None:
        """A round begins: outputs so far are older ones, and with marks those of the step before."""
        if self.marked:
            if self.plan.random() < 0.5:
                while self.pending:
                    self.differentiate()
            turret.cudagraph_mark_step_begin()
            self.counts["marks"] += 1
        if self.kind == "pool":
            self.retire()
        else:
            self.older += self.held
            self.held = []
        self.older = self.older[-MOST_HELD:]

    def retire(self) -> None:
        """From the next call on, what is held may be overwritten, and what waits for a backward lost."""
        self.older += self.held
        self.held = []
        for pending in self.pending:
            pending.stale = True

    def look(self) -> None:
        """What is held is eager's, and what is older as well, or it raises."""
        for held in self.held:
            self.same(held.real, held.expected, f"what was held of {held.giver}")
        for held in list(self.older):
            if self.kind == "pool" and _is_overwritten(held.real):
                self.older.remove(held)
                self.counts["overwritten"] += 1
            else:
                self.same(held.real, held.expected, f"what is older, of {held.giver}")

    def same(self, found: Tensor, expected: Tensor, what: str) -> None:
        assert found.shape == expected.shape and found.stride() == expected.stride(), what
        error = (found.double() - expected.double()).norm() / max(1.0, expected.double().norm().item())
        assert error.item() <= TOLERANCE, f"{what}: relative error {error.item():.2e}"

    def make(self, n: int, r: random.Random) -> Held:
        values = self.place.rand(n * n + 1)
        start = 1 if r.random() < 0.1 else 0  # 4 bytes past a multiple of 16
        real, expected = (values.clone()[start : start + n * n].view(n, n) for _ in range(2))
        return Held(real, expected)

    def inputs(self, subject: Subject) -> list[Held]:
        n, chosen = self.r.choice(SIZES), []
        frozen = self.frozen()
        for number in range(subject.inputs):
            fitting = [h for h in self.held if h.real.shape == (n, n) and h.real.is_contiguous()]
            if subject.writes and number == 0:
                fitting = [h for h in fitting if h.memory not in frozen]
            draw = self.r.random()
            if fitting and draw < 0.6:
                chosen.append(self.r.choice(fitting))
            else:
                chosen.append(self.r.choice(chosen) if chosen and draw < 0.7 else self.make(n, self.r))
        return chosen

    def frozen(self) -> set[int]:
        """Memory that a backward depends on, to which nobody may write."""
        return {memory for pending in self.pending for memory in pending.memory}

    def before_a_call(self, name: str) -> None:
        """Let go of what the call overwrites without telling; without marks a call is a new generation."""
        if self.kind == "pool" and not self.marked and not self.pending:
            self.retire()
        if self.kind == "legacy":
            gone = {h.memory for h in (*self.held, *self.older) if h.giver == name}
            self.held, self.older = ([h for h in kept if h.memory not in gone] for kept in (self.held, self.older))

    def may_be_called(self, name: str) -> bool:
        """Not where a forward's memory would be overwritten before its backward, which is not noticed, or too early."""
        if not self.known.eager[name].trains:
            return True
        if self.kind == "legacy":
            return all(pending.name != name for pending in self.pending)
        return len(self.pending) < (1 if self.kind == "pool" and not self.marked else MOST_PENDING)

    def call(self) -> None:
        name = self.r.choice(self.names)
        if self.may_be_called(name):
            self.before_a_call(name)
            subject = self.known.eager[name]
            given = self.inputs(subject)
            if self.kind == "legacy" and subject.trains:  # nobody overwrites what its backward reads
                given = [Held(h.real.clone(), h.expected.clone()) for h in given]
            found = self.known.get(self.kind, name)(*(h.real for h in given))
            self.counts["calls"] += 1
            self.take(name, given, found, subject.run(*(h.expected for h in given)))

    def take(self, name: str, given: list[Held], found: Any, expected: Any) -> None:
        """Compare a call's inputs and outputs, and keep some of the latter."""
        subject = self.known.eager[name]
        for n, h in enumerate(given):
            self.same(h.real, h.expected, f"input {n} of {name}")
        found, expected = ([r] if isinstance(r, Tensor) else list(r) for r in (found, expected))
        givers = {h.memory: h.giver for h in given}
        for n, (one, other) in enumerate(zip(found, expected, strict=True)):
            self.same(one, other, f"output {n} of {name}")
            keeps = (self.r.random() < 0.5) ^ (self.plan.random() < 0.1)
            if keeps and len(self.held) < MOST_HELD and other.shape[0] in SIZES:
                giver = givers.get(other.untyped_storage().data_ptr(), name)
                self.held.append(Held(one.detach(), other.detach(), giver))
        if subject.trains:
            memory = {t.untyped_storage().data_ptr() for t in (*(h.expected for h in given), *expected)}
            self.pending.append(Pending(name, found, expected, memory))

    def differentiate(self) -> None:
        """Gradients of one of the forwards that wait, with respect to the weights, through both; some are given up."""
        if not self.pending:
            return
        pending = self.pending.pop(self.r.randrange(len(self.pending)))
        if self.r.random() < 0.1:
            return
        weights = [t for t in _leaves(pending.expected[0]) if t.requires_grad]
        expected = torch.autograd.grad(pending.expected[0].square().sum(), weights)
        try:
            found = torch.autograd.grad(pending.found[0].square().sum(), weights)
        except RuntimeError as error:
            assert pending.stale and "overwritten" in str(error), str(error)
            self.counts["late backwards"] += 1
            return
        self.counts["backwards"] += 1
        for one, other in zip(found, expected, strict=True):
            self.same(one, other, f"a gradient of {pending.name}")
            if self.kind != "legacy" and len(self.held) < MOST_HELD:  # there the next backward overwrites them
                self.held.append(Held(one, other, f"the backward of {pending.name}"))

    def fail(self) -> None:
        """A call fails in Python, or in a library call of its graph, unless that is replayed."""
        name = self.r.choice(["refused", "lost"])
        subject = self.known.eager[name]
        self.before_a_call(name)
        given = self.inputs(subject)
        compiled, reals, twins = self.known.get(self.kind, name), [h.real for h in given], [h.expected for h in given]
        if name == "refused":
            for run, inputs in ((compiled, reals), (subject.run, twins)):
                with contextlib.suppress(Lost):
                    run(*inputs, wrong=True)
                    raise AssertionError("a call that raises did not")
            self.counts["failed before"] += 1
            for n, h in enumerate(given):
                self.same(h.real, h.expected, f"input {n} of a call that failed")
            return
        _losing.set()
        try:
            found = compiled(*reals)
        except Lost as error:
            self.errors.append(error)
            self.counts["failed inside"] += 1
            return
        finally:
            _losing.clear()
        self.counts["calls"] += 1
        self.take(name, given, found, subject.run(*twins))

    def drop(self) -> None:
        if self.held:
            self.held.pop(self.r.randrange(len(self.held)))

    def write(self) -> None:
        """The user's program writes to what it holds, and to all that shares its memory."""
        frozen = self.frozen()
        free = [held for held in self.held if held.memory not in frozen]
        if free:
            held = self.r.choice(free)
            held.real.mul_(0.5)
            held.expected.mul_(0.5)

    def collect(self) -> None:
        gc.collect()

    def in_threads(self) -> None:
        """Two threads call at once, the same function or each its own, some on streams of their own.

        Where a call overwrites what another one gave, threads that share a stream have to take turns.
        """
        names = [name for name in self.names if name not in ("refused", "lost")]
        if (self.kind == "pool" and not self.marked) or len(names) < 2:
            return
        chosen = self.r.sample(names, 2)
        if self.kind != "legacy" and self.r.random() < 0.5:
            chosen = [chosen[0]] * 2
        if self.kind == "legacy" and (self.pending or any(h.giver in chosen for h in (*self.held, *self.older))):
            return
        faults: list[str] = []

        def work(name: str, r: random.Random) -> None:
            try:
                with self.place.stream_of_its_own() if r.random() < 0.3 else contextlib.nullcontext():
                    for _ in range(3):
                        self.call_apart(name, r)
            except Exception:
                faults.append(traceback.format_exc(limit=-3))

        generators = [random.Random(self.r.randrange(1 << 30)) for _ in chosen]
        threads = [threading.Thread(target=work, args=pair) for pair in zip(chosen, generators, strict=True)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not faults, f"in threads that call {' and '.join(chosen)}: {faults[0]}"
        self.counts["in threads"] += 1

    def call_apart(self, name: str, r: random.Random) -> None:
        """A call of a thread, on inputs that nobody else has, with its backward."""
        subject, n = self.known.eager[name], r.choice(SIZES)
        given = [self.make(n, r) for _ in range(subject.inputs)]
        found = self.known.get(self.kind, name)(*(h.real for h in given))
        expected = subject.run(*(h.expected for h in given))
        found, expected = ([o] if isinstance(o, Tensor) else list(o) for o in (found, expected))
        for k, (one, other) in enumerate(zip(found, expected, strict=True)):
            self.same(one, other, f"output {k} of {name} in a thread")
        if subject.trains:
            weights = [t for t in _leaves(expected[0]) if t.requires_grad]
            both = [torch.autograd.grad(made[0].square().sum(), weights) for made in (found, expected)]
            for one, other in zip(*both, strict=True):
                self.same(one, other, f"a gradient of {name} in a thread")


def _is_overwritten(tensor: Tensor) -> bool:
    """Whether a pool has said so: each access raises."""
    try:
        tensor.data_ptr()
    except RuntimeError as error:
        assert "overwritten" in str(error), str(error)
        return True
    return False


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


def kind_of(number: int) -> str:
    """The kind of a sequence."""
    return random.Random(number).choice(KINDS)


@attrs.define
class Told:
    """What happened in sequences: in the games, and to the graphs of each kind of outputs."""

    games: Counter[str] = attrs.field(factory=Counter)
    graphs: dict[str, Counter[str]] = attrs.field(factory=dict)
    seconds: float = 0.0

    def lines(self, count: int) -> list[str]:
        games = ", ".join(f"{n} {what}" for what, n in self.games.items())
        lines = [f"{count} sequences in {self.seconds:.0f} s: {games}"]
        return lines + [f"{k}: " + ", ".join(f"{n} {what}" for what, n in c.items()) for k, c in self.graphs.items()]


def _graphs() -> dict[str, Counter[str]]:
    """By where outputs lie, what became of all graphs."""
    found: dict[str, Counter[str]] = {}
    for told in turret.cudagraphs.report().functions:
        if not told.skipped:
            counts = found.setdefault(told.outputs, Counter())
            counts["replays"] += told.replays
            counts["recordings"] += told.recordings
            counts["re-recordings"] += len(told.rerecordings)
            counts["siblings because of what lives"] += sum(" live that " in reason for reason in told.rerecordings)
            counts["warm-ups"] += told.warm_ups
            counts["plain calls"] += sum(told.plain_calls.values())
    return found


def play(place: Place, count: int, seed: int = 0) -> Told:
    """Run sequences; what happened in them.  Raises ``AssertionError``, with the sequence's number."""
    told, before, start = Told(), _graphs(), time.perf_counter()
    known = Functions(place)
    for number in sorted(range(seed, seed + count), key=lambda n: kind_of(n) == "marked pool"):
        torch.manual_seed(number)
        game = Play(known, number, kind_of(number))
        try:
            game.run()
        except Exception as error:
            raise AssertionError(f"sequence {number} ({kind_of(number)}: {game.names}): {error}") from error
        told.games += Counter({"calls": 0, **game.counts})
    told.graphs = {kind: counts - before.get(kind, Counter()) for kind, counts in _graphs().items()}
    told.seconds = time.perf_counter() - start
    assert any(counts["replays"] for counts in told.graphs.values()), "nothing was replayed"
    return told


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sequences", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    place = Place(device_for("cuda").graphs, torch.device("cuda", 0))
    print(*play(place, options.sequences, options.seed).lines(options.sequences), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""What recordings of a device must do, by its own graph capture: library calls, kernels, pools, randomness, errors.

Each check takes a device's capture and a device, and gives lines that say what it saw; where something is wrong it goes
on to its end and raises all of it.  The recording fake runs the same checks.
"""

from __future__ import annotations

import contextlib
import itertools
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import attrs
import torch
import torch.nn.functional as F
from torch import Tensor

import turret
from turret.hooks.devices import device_for
from turret.hooks.graph_capture import (
    FoundAddresses,
    GraphCapture,
    MemoryPool,
    Moved,
    Recording,
    address_words,
    tensor_at,
)
from turret.plugins.cudagraphs.recording.recorder import other_host_memory

STEP = 2 << 20
"""Bytes; addresses that move by multiples of it keep every alignment that a kernel asks for."""
HALF = torch.bfloat16


@attrs.frozen
class Place:
    """Where checks run: ``scale`` divides sizes, for devices that compute on a host."""

    graphs: GraphCapture
    device: torch.device
    scale: int = 1
    plugins: tuple[Any, ...] = ()
    busy: int = 0
    """Processes that compute beside the checks of threads."""

    def rand(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.randn(*shape).to(dtype).to(self.device)

    def stream(self) -> int:
        return device_for(self.device.type).stream_getter(0)() if not self.plugins else 0

    def stream_of_its_own(self) -> AbstractContextManager[Any]:
        """A context in which a new stream is the current one, where the device has streams that torch knows."""
        if self.device.type != "cuda":
            return contextlib.nullcontext()
        stream = torch.cuda.Stream(self.device)
        stream.wait_stream(torch.cuda.current_stream(self.device))
        return torch.cuda.stream(stream)


@attrs.frozen
class LibraryCall:
    """A call, and what makes the tensors that it is given."""

    name: str
    run: Callable[..., Any]
    make: Callable[[], Sequence[Tensor]]
    tolerance: float = 1e-3


def library_calls(place: Place) -> list[LibraryCall]:
    """Calls of every library behind ATen, and of the kinds of nodes that a capture knows."""
    n, half = 256 // place.scale, lambda *shape: place.rand(*shape, dtype=HALF)
    w, bias, table = half(n, n), half(n), half(50_265 // place.scale**2, n)
    filters = half(64, 64, 3, 3).to(memory_format=torch.channels_last)
    index = lambda *shape: torch.randint(0, 40, shape).to(place.device)  # noqa: E731
    images = lambda: [half(4, 64, 14, 14).to(memory_format=torch.channels_last)]  # noqa: E731
    heads = lambda: [half(2, 4, 128 // place.scale, 64) for _ in range(3)]  # noqa: E731
    one = lambda *shape: lambda: [place.rand(*shape)]  # noqa: E731
    rows = lambda *shape: lambda: [half(*shape)]  # noqa: E731
    return [
        LibraryCall("mm", lambda x: x @ w, rows(4 * n, n), 2e-2),
        LibraryCall("mm of one row", lambda x: x @ w, rows(1, n), 2e-2),
        LibraryCall("mm to an odd vocabulary", lambda x: x @ table.t(), rows(n, n), 2e-2),
        LibraryCall("mm of two inputs", torch.mm, lambda: [half(n, n), half(n, n)], 2e-2),
        LibraryCall("mm in float32", lambda x: x @ x, one(n, n)),
        LibraryCall("addmm", lambda x: torch.addmm(bias, x, w), rows(4 * n, n), 2e-2),
        LibraryCall("bmm", torch.bmm, lambda: [half(8, n, 64), half(8, 64, n)], 2e-2),
        LibraryCall("attention", lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), heads, 2e-2),
        LibraryCall("convolution", lambda x: F.conv2d(x, filters, padding=1), images, 2e-2),
        LibraryCall("layer norm", lambda x: F.layer_norm(x, (n,), bias, bias), rows(n, n), 2e-2),
        LibraryCall("embedding", lambda i: F.embedding(i, table), lambda: [index(8, 32)]),
        LibraryCall("softmax", lambda x: torch.softmax(x, -1), one(n, n)),
        LibraryCall("sort", lambda x: torch.sort(x, -1)[0], one(n, n)),
        LibraryCall("top k", lambda x: x.topk(5, -1)[0], one(n, n)),
        LibraryCall("index put", lambda x, i: x.index_put((i,), x[0]), lambda: [place.rand(64, n), index(50)]),
        LibraryCall("add of a transpose", lambda x, y: x + y.t(), lambda: [place.rand(n, n), place.rand(n, n)]),
        LibraryCall("sum over strided rows", lambda x: x[:, ::2].sum(0), one(n, n)),
        LibraryCall("cat", lambda x, y: torch.cat([x, y], 1), lambda: [place.rand(n, n), place.rand(n, 3)]),
        LibraryCall("copy of bytes", lambda x: x.clone(), one(n, n)),
        LibraryCall("clear", lambda x: torch.zeros_like(x).add_(x[0]), one(n, n)),
        LibraryCall("write to an input", lambda x: x.mul_(2), one(n, n)),
        LibraryCall("cumulative sum", lambda x: x.cumsum(0), one(n, n)),
    ]  # fmt: skip


@attrs.frozen
class Trial:
    """A call as it was recorded: the recording, its inputs, and where its results lie."""

    recording: Recording
    inputs: Sequence[Tensor]
    results: list[tuple[int, torch.Size, tuple[int, ...], torch.dtype]]


def _recorded(place: Place, call: LibraryCall, pool: MemoryPool, inputs: Sequence[Tensor]) -> Trial:
    start, made = pool.checkpoint(), []
    recording = place.graphs.record(0, lambda: made.append(call.run(*inputs)), pool)
    results = [made.pop()]
    results = [(t.data_ptr(), t.shape, t.stride(), t.dtype) for t in results]
    pool.restore(start, [])
    return Trial(recording, inputs, results)


def _moved(one: Trial, other: Trial) -> dict[int, Moved]:
    pairs = enumerate(zip(one.inputs, other.inputs, strict=True))
    return {n: Moved(a.data_ptr(), b.data_ptr(), a.untyped_storage().nbytes()) for n, (a, b) in pairs}


def _aliases(inputs: Sequence[Tensor]) -> list[Tensor]:
    """Other tensors over the same memory."""
    return [tensor_at(x.data_ptr(), x.shape, x.stride(), x.dtype, x.device) for x in inputs]


def _understood(
    place: Place, call: LibraryCall, pool: MemoryPool, inputs: Sequence[Tensor]
) -> tuple[Trial, FoundAddresses, int]:
    """The call as it was recorded, its address words, and how many words are noise."""
    with other_host_memory():
        again = _recorded(place, call, pool, _aliases(inputs))
    second, first = (_recorded(place, call, pool, x) for x in (_apart(call, inputs), inputs))
    found = address_words(first.recording, second.recording, _moved(first, second), again.recording)
    return first, found, _noise(first, again)


def _noise(one: Trial, other: Trial) -> int:
    pairs = zip(one.recording.nodes, other.recording.nodes, strict=True)
    return sum(
        a.arguments[k : k + 8] != b.arguments[k : k + 8] for a, b in pairs for k in range(0, len(a.arguments), 8)
    )


def _wrong_replays(place: Place, call: LibraryCall, trial: Trial, found: FoundAddresses) -> str:
    """What is wrong with replays over other inputs, which lie where the first did as far as their words are unclear."""
    words = [found.words.get(n, ()) for n in range(len(trial.inputs))]
    replay = trial.recording.bind(words, [x.data_ptr() for x in trial.inputs])
    for _ in range(3):
        fresh = call.make()
        expected = call.run(*[x.clone() for x in fresh])
        for n in found.unclear:
            fresh[n] = trial.inputs[n].copy_(fresh[n])
        replay([x.data_ptr() for x in fresh], place.stream())
        ((address, *layout),) = trial.results
        for old, new in zip(trial.inputs, fresh, strict=True):
            address += new.data_ptr() - old.data_ptr() if address == old.data_ptr() else 0
        got = tensor_at(address, *layout, place.device).double().cpu()
        error = ((got - expected.double().cpu()).norm() / expected.double().cpu().norm()).item()
        if not error <= call.tolerance:
            return f"relative error {error:.2e}"
    return ""


def _attempt(place: Place, call: LibraryCall) -> tuple[str, str]:
    """A line about one call, and what is wrong with it."""
    pool = place.graphs.pool(0)
    inputs = call.make()
    call.run(*[x.clone() for x in inputs])
    with pool.allocating():
        call.run(*[x.clone() for x in inputs])
    try:
        first, found, noise = _understood(place, call, pool, inputs)
        wrong = _wrong_replays(place, call, first, found)
    except (RuntimeError, ValueError, turret.TurretError) as error:
        return "", f"{call.name}: {type(error).__name__}: {str(error)[:300]}"
    kinds = [node.kind for node in first.recording.nodes]
    seen = ", ".join(f"{kinds.count(k)} {k}" for k in dict.fromkeys(kinds))
    counts = f"{sum(map(len, found.words.values()))} address words, {noise} words of noise"
    counts += "".join(f", input {n} copied: {reason}" for n, reason in found.unclear.items())
    names = "; ".join(f"{n.name[:60]} [{len(n.arguments)}]" for n in first.recording.nodes)
    return f"{call.name}: {seen}; {counts}; {names}", f"{call.name}: {wrong}" if wrong else ""


def _apart(call: LibraryCall, inputs: Sequence[Tensor]) -> list[Tensor]:
    """Other inputs in memory of their own, each of which lies another distance away."""
    made: list[Tensor] = []
    distances = {0}
    for old, new in zip(inputs, call.make(), strict=True):
        nbytes = new.untyped_storage().nbytes()
        room = torch.empty(nbytes + (len(inputs) + 1) * STEP, dtype=torch.uint8, device=new.device)
        steps = range(0, room.nbytes - nbytes, STEP)
        start = next(s for s in steps if room.data_ptr() + s - old.data_ptr() not in distances)
        moved = room[start : start + nbytes].view(new.dtype).as_strided(new.shape, new.stride()).copy_(new)
        distances.add(moved.data_ptr() - old.data_ptr())
        made.append(moved)
    return made


def library_calls_are_replayed_over_other_memory(place: Place) -> list[str]:
    """Address words are found for every call, and replays over fresh inputs give eager's results."""
    lines, wrong = [], []
    for call in library_calls(place):
        line, problem = _attempt(place, call)
        lines += [line] if line else []
        wrong += [problem] if problem else []
    assert not wrong, "\n".join([*wrong, "", *lines])
    return lines


def _compiled(place: Place, function: Callable[..., Any]) -> Callable[..., Any]:
    return turret.compile(function, plugins=list(place.plugins), options={"on_error": "raise", "cache": False})


def kernels_of_plans_are_replayed_over_other_memory(place: Place) -> list[str]:
    """What Turret compiles is recorded and replayed as library calls are, its kernels and its arena."""
    n = 256 // place.scale
    w = place.rand(n, n)
    program = _compiled(place, lambda x, y: torch.softmax(torch.relu(x @ w) * 2 + y, -1).sum(1) + 1)
    call = LibraryCall("a plan", program, lambda: [place.rand(n, n), place.rand(n)])
    program(*call.make())
    line, wrong = _attempt(place, call)
    assert not wrong, wrong
    return [line]


def batches_are_padded_to_sizes_that_are_recorded(place: Place) -> list[str]:
    """A call of another size than those that are named is the first samples of a larger one."""
    w, table = place.rand(64, 64), place.rand(100, 64)

    def program(ids: Tensor) -> tuple[Tensor, Tensor]:
        hidden = F.layer_norm(F.embedding(ids, table), (64,))
        return F.gelu(hidden @ w).softmax(-1), hidden.sum(-1)

    options = {"on_error": "raise", "cache": False, "cudagraphs": True, "cudagraph_capture_sizes": (8, 32)}
    compiled = turret.compile(program, plugins=place.plugins, options=options)
    for size in (5, 7, 8, 3, 20, 31, 32, 9, 6, 25):
        ids = torch.randint(0, 100, (size, 4)).to(place.device)
        for found, expected in zip(compiled(ids), program(ids), strict=True):
            torch.testing.assert_close(found.cpu(), expected.cpu(), rtol=1e-4, atol=1e-4)
    told = max(turret.cudagraphs.report().functions, key=lambda f: f.padded_calls)
    assert (told.recordings, told.padded_calls) == (2, 7), str(told)
    return [f"{told.padded_calls} calls were padded, {told.recordings} recordings, {told.bytes_copied} bytes copied"]


def few_recordings_serve_calls_of_any_sizes(place: Place) -> list[str]:
    """A graph of kernels is recorded once: each replay writes its grids, sizes and addresses.

    Sizes that are no multiples of 16 have kernels of their own, and a recording for all of them.
    """

    def program(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        for turn in range(4):
            x = torch.softmax(torch.relu(x) * (turn + 2) + y, -1)
            x = x - x.sum(0, keepdim=True)
        return x, x.amax(1), x[1:]

    options = {"on_error": "raise", "cache": False, "cudagraphs": True}
    compiled = turret.compile(program, plugins=place.plugins, dynamic=True, options=options)
    kept = []
    alike = ((64, 128), (64, 128), (112, 96), (32, 256), (16, 64), (512, 64), (48, 1008), (64, 128))
    odd = ((33, 257), (5, 2), (3, 1000), (64, 100), (7, 64), (64, 128), (31, 65), (128, 70), (9, 16), (33, 257))
    for n, m in (*alike, *odd):
        x, y = place.rand(n, m), place.rand(m)
        kept.append((compiled(x, y), program(x, y)))
    for found, expected in kept:
        torch.testing.assert_close([t.cpu() for t in found], [t.cpu() for t in expected], rtol=1e-4, atol=1e-4)
    told = max(turret.cudagraphs.report().functions, key=lambda f: f.any_size * f.replays)
    assert told.any_size == told.recordings <= 4 and not told.sizes, str(told)
    assert told.replays == len(alike) + len(odd) - 1, str(told)
    return [f"{told.replays} replays of several sizes by {told.recordings} recordings of {told.nodes} nodes"]


def copies_are_written_anew_for_any_size(place: Place) -> list[str]:
    """Copies of bytes by the device's copier are nodes that a replay gives other addresses and other lengths."""
    device = place.plugins[0].device if place.plugins else device_for(place.device.type)
    copy, pool = device.byte_copier(0), place.graphs.pool(0)
    assert copy is not None

    def run(tensors: Sequence[Tensor], nbytes: int) -> None:
        for source, target in itertools.pairwise(tensors):
            assert copy(target.data_ptr(), source.data_ptr(), nbytes, place.stream()) == 0

    def inputs(length: int) -> list[Tensor]:
        return [place.rand(length), *(torch.zeros(length + 1, device=place.device) for _ in range(3))]

    first = inputs(100)
    recording = place.graphs.record(0, lambda: run(first, 400), pool, library_calls=False)
    assert [node.kind for node in recording.nodes] == ["copy"] * 3, recording.nodes
    lengths = (100, 7, 1, 100_000 // place.scale, 33)
    for length in lengths:
        tensors = inputs(length)
        assert recording.replay_as(lambda: run(tensors, 4 * length), place.stream()) == ""  # noqa: B023
        for copied in tensors[1:]:
            assert torch.equal(copied[:-1].cpu(), tensors[0].cpu()) and copied[-1].item() == 0, length
    assert first[3].abs().sum().item() == 0
    return [f"{len(recording.nodes)} copies, replayed over {len(lengths)} lengths"]


def results_of_library_calls_are_handed_out(place: Place) -> list[str]:
    """What library calls allocate is eager's in replays whose results are kept: outputs, saved tensors, gradients."""
    n = 64 // min(place.scale, 4)
    filters = place.rand(8, 8, 3, 3)
    offsets = torch.tensor([16, 40, n], dtype=torch.int32).to(place.device)

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q.mul(2), k, v, is_causal=True).relu()

    def convolution(x: Tensor, w: Tensor) -> Tensor:
        return F.conv2d(F.conv2d(x, filters, padding=1).relu(), w, padding=1).tanh()

    def sorted_twice(x: Tensor) -> Tensor:
        values, places = torch.sort(x, -1)
        return torch.topk(values * 2, n // 2, -1)[0].sin() + places[:, : n // 2]

    def grouped(x: Tensor, w: Tensor) -> Tensor:
        return F.silu(torch._grouped_mm(x, w, offs=offsets).relu())

    heads = lambda: [place.rand(2, 4, n, 64, dtype=HALF) for _ in range(3)]  # noqa: E731
    programs: list[tuple[Callable[..., Tensor], Callable[[], list[Tensor]]]] = [
        (attention, heads),
        (convolution, lambda: [place.rand(2, 8, n, n), place.rand(8, 8, 3, 3)]),
        (sorted_twice, lambda: [place.rand(n, n)]),
    ]
    if place.device.type == "cuda":
        programs.append((grouped, lambda: [place.rand(n, 128, dtype=HALF), place.rand(3, 128, 256, dtype=HALF)]))
    lines, written = [], 0
    for program, make in programs:
        options = {"on_error": "raise", "cache": False, "cudagraphs": True}
        compiled, kept = turret.compile(program, plugins=list(place.plugins), options=options), []
        before = set(turret.cudagraphs.functions)
        for _ in range(8):
            inputs = [x.requires_grad_() for x in make()]
            others = [x.detach().clone().requires_grad_() for x in inputs]
            found, expected = compiled(*inputs), program(*others)
            for result in (found, expected):
                result.float().square().mean().backward()
            pairs = zip(inputs, others, strict=True)
            kept += [(found.detach(), expected.detach()), *((a.grad, b.grad) for a, b in pairs)]
        for found, expected in kept:
            error = (found.double() - expected.double()).norm() / expected.double().norm().clamp_min(1e-9)
            assert error.item() <= 3e-2, f"{program.__name__}: relative error {error.item():.2e}"
        for told in (f.reported() for f in set(turret.cudagraphs.functions) - before):
            outputs = [text for text in told.decisions if text.startswith("output") and "library call" in text]
            written += sum("writes to it" in text for text in outputs)
            lines += [f"{program.__name__} {told.role}: {told.replays} replays; {text}" for text in outputs]
    assert written, "\n".join(["nothing is handed out as its library call puts it", *lines])
    return lines


def _in_the_pool(place: Place, function: Callable[..., Any]) -> Callable[..., Any]:
    options = {"on_error": "raise", "cache": False, "cudagraphs": True, "cudagraph_outputs": "pool"}
    return turret.compile(function, plugins=list(place.plugins), options=options)


def an_output_that_the_next_call_overwrites_raises_and_its_clone_does_not(place: Place) -> list[str]:
    """The document's model that is called twice; nothing marks steps, so that each call is a generation."""
    turret.reset()

    def my_model(x: Tensor) -> Tensor:
        return torch.matmul(x, x)

    compiled, raised = _in_the_pool(place, my_model), 0
    for _ in range(5):
        x = place.rand(10, 10)
        y1 = compiled(x)
        kept = y1.clone()
        y2 = compiled(x * 2)
        try:
            y1.cpu()
        except RuntimeError as error:
            assert "overwritten by a subsequent run" in str(error) and "my_model" in str(error), error
            raised += 1
        for found, given in ((kept, x), (y2, x * 2)):
            torch.testing.assert_close(found.cpu(), my_model(given).cpu(), rtol=1e-3, atol=1e-3)
    assert raised == 5, raised
    return [f"{raised} accesses raised"]


def gradients_add_up_over_generations(place: Place) -> list[str]:
    """A forward waits for its backward, whatever is called between; gradients outlive their steps."""
    turret.reset()
    start = place.rand(8, 8)
    weights = [start.clone().requires_grad_() for _ in range(2)]
    compiled = _in_the_pool(place, lambda x, w: torch.tanh(x @ w).cumsum(0))
    between = _in_the_pool(place, lambda x: torch.softmax(x, -1) * 2)
    for step in range(9):
        x, other = place.rand(4, 8), place.rand(4, 8)
        for run, w in zip((compiled, lambda x, w: torch.tanh(x @ w).cumsum(0)), weights, strict=True):
            loss = run(x, w).square().sum()
            torch.testing.assert_close(between(other).cpu(), torch.softmax(other, -1).cpu() * 2, rtol=1e-4, atol=1e-4)
            loss.backward()
        if step % 3 == 2:
            torch.testing.assert_close(*(w.grad.cpu() for w in weights), rtol=1e-3, atol=1e-3)
            for w in weights:
                w.grad = None
    told = [f for f in turret.cudagraphs.report().functions if f.outputs == "pool" and f.role != "inference"]
    assert len(told) >= 2 and all(f.replays >= 5 for f in told), "\n".join(map(str, told))
    return [f"{f.role}: {f.replays} replays, {f.recordings} recordings" for f in told]


def an_output_that_lives_where_it_did_not_leads_to_a_sibling(place: Place) -> list[str]:
    """The document's tree of two functions, of whose outputs one is dropped in one step, and what serves both."""
    turret.reset()

    def foo(x: Tensor) -> tuple[Tensor, Tensor]:
        return x + 1, torch.cumsum(x, 0)

    def bar(y: Tensor) -> Tensor:
        return y * 2

    first, second = _in_the_pool(place, foo), _in_the_pool(place, bar)
    for step in range(6):
        turret.cudagraph_mark_step_begin()
        x = place.rand(4)
        y1, y2 = first(x)
        if step in (1, 4):
            del y2
        z = second(y1)
        torch.testing.assert_close(z.cpu(), bar(foo(x)[0]).cpu())
        if step not in (1, 4):
            torch.testing.assert_close(y2.cpu(), foo(x)[1].cpu())
    (pool,) = (p for p in turret.cudagraphs.report().pools if p.outputs == "pool" and p.graphs)
    lines = pool.tree.splitlines()
    turret.reset()  # of marks
    assert [line.lstrip("│├└─ ") for line in lines[4:]] == [
        "Graph[0] foo() outputs=2",
        "Graph[1] bar() outputs=1 [expects_dead: [(0, 1)]]",
        "Graph[2] bar() outputs=1",
    ], pool.tree
    return lines


def random_numbers_go_on_as_with_calls(place: Place) -> list[str]:
    """Dropout, of eager and of a plan, draws with each replay what a call would have drawn."""
    ones = torch.ones(4096, device=place.device)
    programs = {"eager": lambda: F.dropout(ones, 0.5), "plan": _compiled(place, lambda: F.dropout(ones * 2, 0.5) + 1)}
    for name, program in programs.items():
        program()
        torch.manual_seed(7)
        expected = [program().cpu() for _ in range(4)]
        made: list[Tensor] = []
        torch.manual_seed(7)
        recording = place.graphs.record(0, lambda: made.append(program()))  # noqa: B023 (called at once)
        for turn, values in enumerate(expected):
            recording.replay(place.stream())
            assert torch.equal(made[0].cpu(), values), f"{name}: replay {turn} drew other numbers than a call"
        assert not torch.equal(expected[0], expected[1])
    return ["eager and plan draw what calls draw"]


def replays_in_the_wrong_order_give_the_wrong_number_of_the_document(place: Place) -> list[str]:
    """Recordings that share a pool write over each other's results, unless somebody watches."""
    x1, x2 = (torch.tensor([v]).to(place.device) for v in (1.0, 2.0))
    y: dict[int, Tensor] = {}

    def first() -> None:
        t1 = x1 * 3
        y[1] = t1 + 5

    def second() -> None:
        y[2] = x2**2

    pool = place.graphs.pool(0)
    one, two = (place.graphs.record(0, f, pool) for f in (first, second))
    seen = []
    for order in ((one, two), (two, one)):
        for recording in order:
            recording.replay(place.stream())
        seen.append((y[1].item(), y[2].item()))
    assert seen[0] == (8.0, 4.0), seen
    return [f"in order {seen[0]}, in the other order {seen[1]} (the document: 8.0, 3.0)"]


def a_restored_pool_keeps_what_a_branch_still_needs(place: Place) -> list[str]:
    """The document's diamond: a branch is recorded after a replay, with the allocator's state restored, and without."""
    results, reserved = {}, 0
    for restores in (True, False):
        x, pool, values = torch.tensor([3.0]).to(place.device), place.graphs.pool(0), {}
        a = place.graphs.record(0, lambda: values.update(y=x * x), pool)  # noqa: B023 (called at once)
        after_a, at = pool.checkpoint(), values.pop("y").data_ptr()
        y = tensor_at(at, (1,), (1,), torch.float32, place.device)
        a.replay(place.stream())
        if restores:
            pool.restore(after_a, [])
        c = place.graphs.record(0, lambda: values.update(t=y - 1, z=y * 10), pool)  # noqa: B023
        c.replay(place.stream())
        results[restores], reserved = values["z"].item(), pool.reserved_bytes
    assert results[True] == 90.0, results
    return [f"restored {results[True]}, stale {results[False]}; {reserved} bytes reserved"]


def checkpoints_bring_blocks_back_and_dead_ones_are_reused(place: Place) -> list[str]:
    """Blocks are where they were; the dead ones are handed out anew; nothing grows; owners are noticed."""
    pool = place.graphs.pool(0)
    empty = pool.checkpoint()
    take = lambda n: torch.empty(n, dtype=torch.uint8, device=place.device)  # noqa: E731
    with pool.allocating():
        kept = [take(4 << 20), take(600), take(600)]
    addresses, checkpoint = [t.data_ptr() for t in kept], pool.checkpoint()
    try:
        pool.restore(empty, [])
    except turret.TurretError as error:
        assert "live" in str(error)
    else:
        raise AssertionError("a pool was restored under tensors that own its memory")
    kept.clear()
    for turn in range(20):
        pool.restore(checkpoint, [addresses[1]])
        with pool.allocating():
            fresh = take(600)
        assert fresh.data_ptr() == addresses[1], f"turn {turn}: {fresh.data_ptr():#x}, not {addresses[1]:#x}"
        del fresh
        if turn % 5 == 4:
            pool.restore(empty, [])
    return [f"{pool.reserved_bytes} bytes reserved after 20 restores"]


def errors_leave_the_device_usable(place: Place) -> list[str]:
    """After every way to break a recording, numbers are drawn, products computed, and the same pool records."""
    x, pool, seen, wrong = place.rand(64, 64), place.graphs.pool(0), [], []

    def caught() -> None:
        try:
            x.sum().item()
        except RuntimeError:
            x.mul(2)

    def mine() -> None:
        raise KeyError("mine")

    breaks = {
        "item": lambda: x.sum().item(), "to host": lambda: (x * 2).cpu(), "nonzero": lambda: x.nonzero(),
        "caught inside": caught, "the user's": mine,
    }  # fmt: skip
    for name, run in breaks.items():
        try:
            place.graphs.record(0, run, pool)
        except (RuntimeError, KeyError) as error:
            seen.append(f"{name}: {type(error).__name__}: {str(error).splitlines()[0][:120]}")
        else:
            wrong.append(f"{name}: was recorded")
        try:
            torch.testing.assert_close((x @ x).cpu(), x.cpu() @ x.cpu(), rtol=1e-2, atol=1e-2)
            assert torch.rand(8, device=place.device).std().item() > 0
            made: list[Tensor] = []
            place.graphs.record(0, lambda made=made: made.append(x + 1), pool).replay(place.stream())
            torch.testing.assert_close(made[0].cpu(), x.cpu() + 1)
        except (RuntimeError, AssertionError, turret.TurretError) as error:
            wrong.append(f"after {name}: {type(error).__name__}: {str(error)[:300]}")
    assert not wrong, "\n".join([*wrong, "", *seen])
    return seen


def an_invalidated_storage_says_why(place: Place) -> list[str]:
    """Whoever reads an output that was overwritten gets the message, and not the numbers."""
    pool = place.graphs.pool(0)
    with pool.allocating():
        owner = torch.ones(16, device=place.device)
    given = tensor_at(owner.data_ptr(), (4, 4), (4, 1), torch.float32, owner.device)
    view = given[1:]
    pool.invalidate(given.untyped_storage(), "overwritten by a later run")
    for ask in (given.data_ptr, view.data_ptr, given.cpu, lambda: view + 1):
        try:
            ask()
        except RuntimeError as error:
            assert "overwritten by a later run" in str(error), error
        else:
            raise AssertionError("a storage that was invalidated was read")
    return [f"the owner still has {owner.sum().item():g}"]


def other_threads_work_while_one_records(place: Place) -> list[str]:
    """A capture is of its thread: another one's products and allocations are not in it, and do not break it."""
    x, found, failures = place.rand(64, 64), [], []

    def work() -> None:
        try:
            found.extend((x @ x).cpu() for _ in range(20))
        except RuntimeError as error:
            failures.append(str(error))

    def run() -> Tensor:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert place.graphs.is_recording(0)
        return x + 1

    recording = place.graphs.record(0, run)
    assert not failures and len(recording.nodes) == 1 and not place.graphs.is_recording(0), failures
    for value in found:
        torch.testing.assert_close(value, x.cpu() @ x.cpu(), rtol=1e-2, atol=1e-2)
    return [f"{len(found)} products beside a recording of {len(recording.nodes)} node"]


def threads_replay_one_recording_over_memory_of_their_own(place: Place) -> list[str]:
    """Replays of several threads follow one another, each over its own memory, on a stream of its own or a common one.

    Kernels and a memcpy (and a memset, where torch clears by one) are written anew for each.  What the first replay of
    a recording finds out makes the later ones others, so that there are many recordings; other processes keep the host
    busy.
    """
    n, wrong = 4096 // place.scale, []
    pool = place.graphs.pool(0)
    call = LibraryCall("double", _double, lambda: [place.rand(n) for _ in range(3)])
    call.run(*call.make())

    def work(replay: Any, value: float, stream: AbstractContextManager[Any]) -> None:
        with stream:
            for turn in range(TURNS // place.scale):
                x, y, z = (torch.full((n,), v, device=place.device) for v in (value + turn, -1.0, -2.0))
                replay([x.data_ptr(), y.data_ptr(), z.data_ptr()], place.stream())
                if not bool((z == 2 * (value + turn)).all()):
                    wrong.append((value, turn))

    kinds: set[str] = set()
    with _busy_processes(place.busy):
        for _ in range(max(2, 24 // place.scale)):
            inputs = call.make()
            first, found, _ = _understood(place, call, pool, inputs)
            kinds.update(node.kind for node in first.recording.nodes)
            replay = first.recording.bind([found.words[k] for k in range(3)], [x.data_ptr() for x in inputs])
            streams = [place.stream_of_its_own() if k % 2 else contextlib.nullcontext() for k in range(THREADS)]
            threads = [
                threading.Thread(target=work, args=(replay, 1000.0 * k, stream)) for k, stream in enumerate(streams)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    assert not wrong, wrong[:5]
    return [
        f"{THREADS} threads, {TURNS // place.scale} replays each of every recording; nodes: {', '.join(sorted(kinds))}"
    ]


THREADS, TURNS = 8, 24


def _double(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    """``z = 2 * x`` by way of a cleared ``y``, and a copy."""
    return z.copy_(y.zero_().add_(x, alpha=2))


@contextlib.contextmanager
def _busy_processes(count: int) -> Iterator[None]:
    """Within it, so many processes compute."""
    started = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def the_host_time_of_a_replay_is_shown(place: Place) -> list[str]:
    """Microseconds of a replay with ten inputs, moved in each and in none (see tests/benchmarks/graph_replay.py)."""
    inputs, makes = 10, 2

    def add_to_all(*tensors: Tensor) -> Tensor:
        for tensor in tensors:
            tensor.add_(1)
        return tensors[0]

    call = LibraryCall("sums", add_to_all, lambda: [place.rand(64) for _ in range(inputs)])
    pool = place.graphs.pool(0)
    first, found, _ = _understood(place, call, pool, call.make())
    replay = first.recording.bind([found.words[n] for n in range(inputs)], [x.data_ptr() for x in first.inputs])
    kept = [call.make() for _ in range(makes)]
    sets = [[x.data_ptr() for x in tensors] for tensors in kept]
    lines = []
    for title, turns in (("all moved", sets), ("none moved", sets[:1])):
        replay(turns[0], place.stream())
        start = time.perf_counter()
        for turn in range(200):
            replay(turns[turn % len(turns)], place.stream())
        lines.append(f"{title}: {(time.perf_counter() - start) / 200 * 1e6:.1f} us a replay of {inputs} nodes")
    return lines


GRAPH_CHECKS: tuple[Callable[[Place], list[str]], ...] = (
    library_calls_are_replayed_over_other_memory,
    kernels_of_plans_are_replayed_over_other_memory,
    batches_are_padded_to_sizes_that_are_recorded,
    few_recordings_serve_calls_of_any_sizes,
    copies_are_written_anew_for_any_size,
    results_of_library_calls_are_handed_out,
    an_output_that_the_next_call_overwrites_raises_and_its_clone_does_not,
    gradients_add_up_over_generations,
    an_output_that_lives_where_it_did_not_leads_to_a_sibling,
    random_numbers_go_on_as_with_calls,
    replays_in_the_wrong_order_give_the_wrong_number_of_the_document,
    a_restored_pool_keeps_what_a_branch_still_needs,
    checkpoints_bring_blocks_back_and_dead_ones_are_reused,
    errors_leave_the_device_usable,
    an_invalidated_storage_says_why,
    other_threads_work_while_one_records,
    threads_replay_one_recording_over_memory_of_their_own,
    the_host_time_of_a_replay_is_shown,
)

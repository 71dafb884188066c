"""A device in Python that records: kernels are functions over host memory, and its pools really reuse memory.

An intermediate value and an output of another recording lie at one address, as on a GPU, so that a mistake in the
bookkeeping gives wrong numbers.
"""

from __future__ import annotations

import contextlib
import ctypes
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from types import MappingProxyType
from typing import Any

import attrs
import torch

from turret.hooks.graph_capture import (
    GraphCapture,
    HeldBack,
    MemoryPool,
    Patch,
    RecordedCall,
    RecordedNode,
    Recording,
    WorkKind,
    places_of,
    tensor_at,
)
from turret.plugins.cudagraphs.work import Key, Layout, RecordingDevice, Result, Shapes, Work

HOST = torch.device("cpu")
GRANULE = 64
SECRET = 0x5A5A5A5A5A5A
"""What hides an address, so that no comparison of recordings finds it."""


class _Held:
    """A block that goes back to its pool with the storage that has it."""

    def __init__(self, pool: Pool, address: int) -> None:
        self.pool, self.address = pool, address
        pool.tensors += 1

    def __del__(self) -> None:
        self.pool.tensors -= 1
        self.pool.used.pop(self.address, None)


class Pool(MemoryPool):
    """First fit over one block of host memory."""

    granule = GRANULE

    def __init__(self, machine: Machine, nbytes: int = 1 << 16) -> None:
        self.machine = machine
        self.memory = torch.empty(nbytes, dtype=torch.uint8)
        self.start = -(-self.memory.data_ptr() // GRANULE) * GRANULE
        self.used: dict[int, int] = {}
        self.tensors = 0
        self.peak = self.allocated = 0

    @contextlib.contextmanager
    def allocating(self) -> Iterator[None]:
        before, self.machine.local.pool = self.machine.local.pool, self
        try:
            yield
        finally:
            self.machine.local.pool = before

    def take(self, nbytes: int) -> int:
        size, address = max(GRANULE, -(-nbytes // GRANULE) * GRANULE), self.start
        for begin in sorted(self.used):
            if address + size <= begin:
                break
            address = begin + self.used[begin]
        self.used[address] = size
        self.allocated += size
        self.peak = max(self.peak, address + size - self.start)
        assert self.peak < self.memory.numel() - GRANULE, "the fake's pool is full"
        return address

    def checkpoint(self) -> Any:
        return dict(self.used)

    def bytes_in_use(self, checkpoint: Any) -> int:
        return sum(checkpoint.values())

    def restore(self, checkpoint: Any, dead: Sequence[int]) -> None:
        assert self.tensors == 0, "tensors of the pool live while its state is restored"
        assert set(dead) <= set(checkpoint), "what died was not in use"
        self.used = {address: size for address, size in checkpoint.items() if address not in dead}

    def invalidate(self, storage: torch.UntypedStorage, message: str) -> None:
        storage.overwritten = message  # type: ignore[attr-defined]

    def segments(self) -> list[range]:
        return [range(self.start, self.start + self.memory.numel() - GRANULE)]

    @property
    def reserved_bytes(self) -> int:
        """As an allocator that takes memory when it is first needed."""
        return self.peak


class GrowingPool(Pool):
    """A pool that is given more memory during each of its first recordings, from which all is taken next time."""

    grown, growths = 0, 16

    def restore(self, checkpoint: Any, dead: Sequence[int]) -> None:
        super().restore(checkpoint, dead)
        if self.grown < self.growths:
            self.grown += 1

    def take(self, nbytes: int) -> int:
        """As ``Pool.take``, behind the ends of what it held before it last grew."""
        begin, self.start = self.start, self.start + self.grown * GRANULE
        try:
            return super().take(nbytes)
        finally:
            self.start = begin

    def segments(self) -> list[range]:
        (all_of_it,) = super().segments()
        return [all_of_it[: self.grown * GRANULE], all_of_it[self.grown * GRANULE :]]


@attrs.define
class _Kernel:
    """A node: ``layouts`` stand for its grid and its size arguments, which no patch of an address changes."""

    name: str
    function: Callable[..., None]
    arguments: bytearray
    layouts: tuple[Layout, ...]
    hidden: tuple[bool, ...]
    kind: WorkKind = "kernel"

    def run(self) -> None:
        words = struct.unpack(f"<{len(self.layouts)}Q", self.arguments)
        tensors = [
            tensor_at(word ^ SECRET if hidden else word, layout.shape, layout.stride, layout.dtype, HOST)
            for word, layout, hidden in zip(words, self.layouts, self.hidden, strict=True)
        ]
        self.function(*tensors)


@attrs.define
class _Bytes:
    """A node that copies or clears memory: its target, for a copy its source, and how many bytes."""

    name: str
    kind: WorkKind
    arguments: bytearray

    def run(self) -> None:
        target, *source, nbytes = struct.unpack(f"<{len(self.arguments) // 8}Q", self.arguments)
        if source:
            ctypes.memmove(target, source[0], nbytes)
        else:
            ctypes.memset(target, 0, nbytes)


class FakeRecording(Recording):
    """Kernels with addresses as bytes; hidden ones are scrambled, as an address in a descriptor may be.

    Every other one is a library call of its own, those within one apart.
    """

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.kernels: list[_Kernel | _Bytes] = []
        self.calls: list[RecordedCall] = []
        self.fails = False

    @property
    def nodes(self) -> Sequence[RecordedNode]:
        return tuple(RecordedNode(k.kind, k.name, bytes(k.arguments)) for k in self.kernels)

    def patch(self, patches: Sequence[Patch]) -> None:
        for patch in patches:
            struct.pack_into("<Q", self.kernels[patch.node].arguments, patch.offset, patch.address)

    def replay_as(self, launch: Callable[[], object], stream: int) -> str:
        local = self.pool.machine.local
        local.rewriting = _Rewriting(self)
        try:
            launch()
            refusal = local.rewriting.refused()
        finally:
            local.rewriting = None
        if not refusal:
            self.replay(stream)
        return refusal

    def replay(self, stream: int) -> None:
        if self.fails:
            self.fails = False
            raise OSError("the device is lost")
        for kernel in self.kernels:
            kernel.run()


@attrs.define
class _Rewriting:
    """A recording that is written anew: the first launch over the first node."""

    recording: FakeRecording
    next: int = 0
    wrong: str = ""

    def take_over(self, kernel: _Kernel | _Bytes) -> None:
        kernels = self.recording.kernels
        if self.next == len(kernels) or kernels[self.next].name != kernel.name:
            self.wrong = f"{kernel.name} is launched where something else was recorded"
            return
        kernels[self.next] = kernel
        self.next += 1

    def refused(self) -> str:
        short = self.next < len(self.recording.kernels)
        return self.wrong or ("less is launched than was recorded" if short else "")


class _Local(threading.local):
    pool: Pool | None = None
    held_back: HeldBack = MappingProxyType({})
    call: RecordedCall | None = None
    blocks: tuple[Any, ...] = ()
    rewriting: _Rewriting | None = None
    recording: FakeRecording | None = None


class Machine(GraphCapture):
    """The device: what runs on it, and what is recorded instead."""

    def __init__(self) -> None:
        self.local = _Local()
        self.stream = 0
        self.made = 0
        self.recordings: list[FakeRecording] = []

    def pool(self, index: int) -> Pool:
        return Pool(self)

    def record(
        self,
        index: int,
        run: Callable[[], Any],
        pool: Pool | None = None,
        *,
        library_calls: bool = True,
        held_back: HeldBack = MappingProxyType({}),
    ) -> FakeRecording:
        pool = pool or Pool(self)
        self.local.held_back = held_back
        made = self.local.recording = FakeRecording(pool)
        try:
            with pool.allocating():
                run()
        finally:
            self.local.recording, self.local.call, self.local.blocks = None, None, ()
        self.made += 1
        return made

    def observer(self) -> Machine:
        return self

    def begin(self, tensors: Sequence[torch.Tensor], stays: bool = False) -> None:
        local = self.local
        if local.recording is not None:
            first, number = len(local.recording.kernels), len(local.recording.calls)
            wanted = local.held_back.get(number, ())
            taken = [(self.empty((block.nbytes,), (1,), torch.uint8), block.is_hole) for block in wanted]
            local.blocks = tuple(memory for memory, is_hole in taken if not is_hole)
            del taken
            call = RecordedCall.of(range(first, first), tensors, stays)
            local.call = attrs.evolve(call, allocated=-local.recording.pool.allocated)

    def end(self, results: Sequence[torch.Tensor] = ()) -> None:
        local = self.local
        if local.recording is not None:
            call, local.call, local.blocks = local.call, None, ()
            nodes = range(call.nodes.start, len(local.recording.kernels))
            allocated = call.allocated + local.recording.pool.allocated
            noted = attrs.evolve(call, nodes=nodes, allocated=allocated, results=places_of(results))
            local.recording.calls.append(noted)

    def empty(self, shape: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        pool = self.local.pool
        if pool is None:
            return torch.empty_strided(shape, stride, dtype=dtype).fill_(-7)
        address = pool.take(Layout(tuple(shape), tuple(stride), dtype).nbytes)
        made = tensor_at(address, shape, stride, dtype, HOST)
        made.untyped_storage().block = _Held(pool, address)
        return made

    def launch(
        self, name: str, function: Callable[..., None], *tensors: torch.Tensor, hidden: Sequence[bool] = ()
    ) -> None:
        """Queue a kernel: its function over its tensors."""
        if self.local.recording is None and self.local.rewriting is None:
            function(*tensors)
            return
        secret = tuple(hidden) or (False,) * len(tensors)
        words = [t.data_ptr() ^ (SECRET if h else 0) for t, h in zip(tensors, secret, strict=True)]
        arguments = bytearray(struct.pack(f"<{len(words)}Q", *words))
        layouts = tuple(map(Layout.of, tensors))
        self._add(_Kernel(name, function, arguments, layouts, secret), tensors)

    def write_bytes(self, name: str, target: torch.Tensor, *source: torch.Tensor) -> None:
        """Queue a copy to a tensor, or with no source its clearing, as work on bytes; nothing for none."""
        words = [t.data_ptr() for t in (target, *source)] + [Layout.of(target).nbytes]
        node = _Bytes(name, "copy" if source else "clear", bytearray(struct.pack(f"<{len(words)}Q", *words)))
        if self.local.recording is None and self.local.rewriting is None:
            node.run()
        elif words[-1]:
            self._add(node, (target, *source))

    def _add(self, node: _Kernel | _Bytes, tensors: Sequence[torch.Tensor]) -> None:
        if self.local.rewriting is not None:
            self.local.rewriting.take_over(node)
            return
        assert self.local.recording is not None
        number = len(self.local.recording.kernels)
        if number % 2 and self.local.call is None:
            self.local.recording.calls.append(RecordedCall.of(range(number, number + 1), tensors))
        self.local.recording.kernels.append(node)

    def recording_device(self) -> RecordingDevice:
        return RecordingDevice(HOST, self, self.empty, lambda: self.stream)


def is_overwritten(tensor: torch.Tensor) -> bool:
    """Whether a pool has said that a tensor's memory is somebody else's now (a device would raise at each access)."""
    return hasattr(tensor.untyped_storage(), "overwritten")


@attrs.frozen
class Step:
    """``target = op(sources)``, a new value; for ``add_`` and ``copy_`` the target is a value that is written to."""

    op: str
    target: str
    sources: tuple[str, ...]
    hidden: bool = False


def _scale(out: torch.Tensor, x: torch.Tensor) -> None:
    torch.mul(x, 3, out=out)


def _plus(out: torch.Tensor, x: torch.Tensor) -> None:
    torch.add(x, 5, out=out)


def _sum(out: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> None:
    torch.add(x, y, out=out)


def _product(out: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> None:
    torch.mul(x, y, out=out)


def _add_to(target: torch.Tensor, x: torch.Tensor) -> None:
    target.add_(x)


def _copy(target: torch.Tensor, x: torch.Tensor) -> None:
    target.copy_(x)


def _scaled_to(target: torch.Tensor, x: torch.Tensor, end: torch.Tensor) -> None:
    torch.mul(x, 3, out=target)


def _clear(target: torch.Tensor, x: torch.Tensor) -> None:
    target.zero_()


KERNELS = {
    "scale": _scale,
    "plus": _plus,
    "sum": _sum,
    "product": _product,
    "add_": _add_to,
    "copy": _copy,
    "copy_": _copy,
    "clear": _clear,
}
ARITY = {"scale": 1, "plus": 1, "sum": 2, "product": 2, "add_": 1, "copy": 1, "copy_": 1, "clear": 1}
WRITES = frozenset({"add_", "copy_"})
"""Those that write to a value that is there."""
CALLS = ("fresh", "dead", "large", "slice", "two", "alias", "end", "worked")
"""Library calls that allocate what they give: three times their source.

``dead``: what they worked in before lies where the result does then; ``large``: and is larger than it; ``slice``: the
result is a part of a storage; ``two``: there is another one, ``{target}b``; ``alias``: it is the source itself;
``end``: a kernel is handed where the result ends; ``worked``: they work in something beside the result.
"""
ARITY |= dict.fromkeys(CALLS, 1)
NODES = {"dead": 2, "large": 2, "two": 2, "alias": 0, "worked": 2}
"""Of those that are not one node."""
BYTES = {"copy": 1, "copy_": 1, "clear": 0}
"""Those that are no kernels, with how many tensors they read (of ``clear`` the source tells the size alone)."""


class Program(Work):
    """Steps over vectors of one length, ``i0``, ``i1``, ...; outputs are names, or views ``name[k:]``.

    With ``launches_only`` it says that its launches can be written anew for other sizes.
    The number of the last argument, where there is one more than inputs, is the length; else that of the first input.
    """

    def __init__(
        self,
        machine: Machine,
        inputs: int,
        steps: Sequence[Step],
        outputs: Sequence[str],
        *,
        name: str = "f",
        role: str = "inference",
        static: Sequence[int] = (),
        fails: Callable[[], bool] = lambda: False,
        launches_only: bool = False,
    ) -> None:
        self.machine, self.inputs, self.steps, self.outputs = machine, inputs, tuple(steps), tuple(outputs)
        self.name, self.role, self.static, self.fails = name, role, frozenset(static), fails
        self.written = frozenset(self._written())
        self.made = [s.target for s in steps if s.op not in WRITES]
        self.runs = 0
        host = any(s.op == "fail" for s in steps)
        self.one_size = "it runs code of the host" if host or not launches_only else ""
        if any(s.op in CALLS for s in steps):
            self.one_size = "it has library calls"
        self.returned = self._returned()

    def key(self, args: Sequence[Any]) -> Key:
        return (args[0].shape[0],)

    def shapes(self, key: Key) -> Shapes:
        layout = Layout((key[0],), (1,), torch.int64)
        names = self._names()
        results = []
        for output in self.outputs:
            base, start = _base(output)
            view = None if start is None else Layout((max(0, key[0] - start),), (1,), torch.int64)
            offset = min(start or 0, key[0])
            if base[0] == "i":
                results.append(Result("input", int(base[1:]), view, offset if view else 0))
            else:
                results.append(Result("buffer", names.index(base), view, offset if view else 0))
        return Shapes((layout,) * len(names), tuple(results))

    def _written(self) -> Iterator[int]:
        """Inputs that are written to, by a name of theirs or by one that a call gave."""
        given: dict[str, str] = {}
        for step in self.steps:
            if step.op == "alias":
                given[step.target] = given.get(step.sources[0], step.sources[0])
            target = given.get(step.target, step.target)
            if step.op in WRITES and target[0] == "i":
                yield int(target[1:])

    def _names(self) -> list[str]:
        """The values that buffers are for."""
        return list(dict.fromkeys(b for o in self.outputs if (b := _base(o)[0])[0] != "i"))

    def _returned(self) -> dict[int, int]:
        """Buffers that library calls allocate, by number, with that of the call among all of a recording."""
        found: dict[str, int] = {}
        nodes = calls = 0
        for step in self.steps:
            if step.op in CALLS:
                found |= {name: calls for name in (step.target, f"{step.target}b")}
                nodes, calls = nodes + NODES.get(step.op, 1), calls + 1
            elif step.op != "fail":
                nodes, calls = nodes + 1, calls + nodes % 2
        return {n: found[name] for n, name in enumerate(self._names()) if name in found}

    def padded_key(self, key: Key, sizes: Sequence[int]) -> Key | None:
        larger = [size for size in sizes if size >= key[0] > 0]
        return None if self.written or not larger else (min(larger),)

    def padded(self, args: Sequence[Any], key: Key, larger: Key) -> list:
        return [torch.cat([a, a[:1].expand(larger[0] - key[0])]) for a in args]

    def run(self, args: list) -> list:
        values = self._compute(args, {})
        for step in self.steps:
            if step.op == "alias" and step.target in values:  # as an output it is another tensor
                own = self.machine.empty(values[step.target].shape, (1,), torch.int64)
                self.machine.write_bytes("copy out", own, values[step.target])
                values[step.target] = own
        return [self._output(values, output) for output in self.outputs]

    def run_into(self, args: list, buffers: Sequence[torch.Tensor | None]) -> list[torch.Tensor]:
        given = {name: b for name, b in zip(self._names(), buffers, strict=True) if b is not None}
        values = self._compute(args, given)
        return [values[name] for name in self._names() if name not in given]

    def _intermediates(self, length: int) -> dict[str, int]:
        """Where intermediate values begin in memory that ``launch`` is given."""
        needed = {_base(o)[0] for o in self.outputs}
        names = [name for name in dict.fromkeys(self.made) if name not in needed]
        size = max(GRANULE, -(-8 * length // GRANULE) * GRANULE)
        return {name: n * size for n, name in enumerate(names)} | {"": len(names) * size}

    def intermediate_bytes(self, key: Key) -> int:
        return self._intermediates(key[0])[""]

    def launch(self, args: Sequence[Any], buffers: Sequence[torch.Tensor], memory: int, stream: int) -> None:
        names = self._names()
        length = args[0].shape[0]
        places = {name: memory + at for name, at in self._intermediates(length).items() if name}
        own = {name: tensor_at(at, (length,), (1,), torch.int64, HOST) for name, at in places.items()}
        self._compute(list(args), {**own, **dict(zip(names, buffers, strict=True))})

    def _output(self, values: dict[str, torch.Tensor], output: str) -> torch.Tensor:
        base, start = _base(output)
        return values[base] if start is None else values[base][start:]

    def _compute(self, args: list, buffers: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        self.runs += 1
        values = {f"i{n}": a for n, a in enumerate(args)}
        args.clear()
        needed = {_base(o)[0] for o in self.outputs}
        for number, step in enumerate(self.steps):
            if step.op == "fail":
                if self.fails():
                    raise ValueError("this program fails here")
                continue
            sources = [values[s] for s in step.sources]
            if step.op in CALLS:
                values |= self._call(step, *sources)
                later = {name for s in self.steps[number + 1 :] for name in (*s.sources, s.target)}
                del sources
                for name in [n for n in values if n not in later and n not in needed]:
                    del values[name]
                continue
            if step.op not in WRITES:
                given = buffers.get(step.target)
                length = sources[0].shape
                values[step.target] = self.machine.empty(length, (1,), torch.int64) if given is None else given
            tensors = [values[step.target], *sources]
            if step.op in BYTES:
                self.machine.write_bytes(step.op, *tensors[: 1 + BYTES[step.op]])
            else:
                self.machine.launch(step.op, KERNELS[step.op], *tensors, hidden=(step.hidden,) * len(tensors))
            del tensors, sources
            later = {name for s in self.steps[number + 1 :] for name in (*s.sources, s.target)}
            for name in [n for n in values if n not in later and n not in needed]:
                del values[name]
        for name in [name for step in self.steps if step.op in CALLS for name in (step.target, f"{step.target}b")]:
            if name in buffers:
                self.machine.write_bytes("copy out", buffers[name], values[name])
        return values

    def _call(self, step: Step, x: torch.Tensor) -> dict[str, torch.Tensor]:
        """A library call, which allocates what it gives."""
        machine, length = self.machine, x.shape[0]
        empty = lambda n: machine.empty((n,), (1,), torch.int64)  # noqa: E731
        launch = lambda op, *tensors: machine.launch(  # noqa: E731
            op, KERNELS[op], *tensors, hidden=(step.hidden,) * len(tensors)
        )
        machine.begin([x])
        if step.op in ("dead", "large"):
            before = empty(length * (3 if step.op == "large" else 1))
            launch("clear", before, x)
            del before
        results = {step.target: x}
        if step.op != "alias":
            results = {step.target: empty(length + 2)[2:] if step.op == "slice" else empty(length)}
        if step.op == "two":
            results[f"{step.target}b"] = empty(length)
        if step.op == "worked":
            beside = empty(length)
            launch("plus", beside, x)
            launch("sum", results[step.target], beside, x)
        elif step.op == "end":
            result = results[step.target]
            beyond = tensor_at(result.data_ptr() + 8 * length, (1,), (1,), torch.int64, HOST)
            machine.launch("scaled to", _scaled_to, result, x, beyond)
        elif step.op != "alias":
            for result in results.values():
                launch("scale", result, x)
        machine.end(list(results.values()))
        return results

    def eagerly(self, args: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """What a call gives, without this device."""
        values = {f"i{n}": a for n, a in enumerate(args)}
        for step in self.steps:
            if step.op == "fail":
                continue
            sources = [values[s] for s in step.sources]
            if step.op in CALLS:
                (x,) = sources
                values[step.target] = x if step.op == "alias" else 2 * x + 5 if step.op == "worked" else x * 3
                values |= {f"{step.target}b": x * 3} if step.op == "two" else {}
                continue
            if step.op not in WRITES:
                values[step.target] = torch.empty_like(sources[0])
            KERNELS[step.op](values[step.target], *sources)
        for step in self.steps:
            if step.op == "alias":
                values[step.target] = values[step.target].clone()
        return [self._output(values, output) for output in self.outputs]


def _base(output: str) -> tuple[str, int | None]:
    """An output's value, and from which element on it is a view of it."""
    if "[" not in output:
        return output, None
    name, rest = output.split("[")
    return name, int(rest.split(":")[0])

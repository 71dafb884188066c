"""What is recorded: a function of flat inputs whose layouts a size key decides, and where its device records it."""

from __future__ import annotations

import abc
import struct
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal

import attrs
import torch

from turret.hooks.devices import Allocator, Device, MakesMany
from turret.hooks.graph_capture import GraphCapture, extent
from turret.hooks.products import Role
from turret.plugins.cudagraphs.plans.generator_states import GeneratorStates

Key = tuple[int, ...]
"""The sizes of a call: one recording is right for calls of equal ones."""


def float_bits(value: float) -> int:
    """A float as kernels are handed it, in a word."""
    return int.from_bytes(struct.pack("<d", value), "little")


@attrs.frozen
class Layout:
    """Shape, strides (in elements) and dtype of a tensor."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Layout:
        return cls(tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype)

    @property
    def extent(self) -> int:
        """Elements from the first to the last, gaps included."""
        return extent(self.shape, self.stride)

    @property
    def nbytes(self) -> int:
        return self.extent * self.dtype.itemsize


@attrs.frozen
class Result:
    """How one output of a call is made.

    ``value``: ``source`` itself.  ``input``, ``buffer``: input or output buffer number ``source``; ``constant``: a
    tensor.  With a ``layout`` it is a view of that, ``offset`` elements from its first.
    """

    kind: Literal["value", "input", "constant", "buffer"]
    source: Any
    layout: Layout | None = None
    offset: int = 0


@attrs.frozen
class Shapes:
    """What a size key decides: the buffers that outputs lie in, and how outputs are made of them."""

    buffers: tuple[Layout, ...]
    results: tuple[Result, ...]


class Work(abc.ABC):
    """A function that can be recorded, over flat inputs: tensors, and numbers that are part of its size key.

    ``static``: inputs that lie in the same place call after call; ``written``: inputs that it writes to;
    ``float_inputs``: inputs that are floats, which are no part of the size key.  ``states``: inputs that may lie on the
    host.  ``visible_outputs``: how many outputs, the first ones, the user's program sees (None: all); the others are
    saved for a backward.  ``copied_into``: inputs that ``launch`` copies bytes to, one for each copy: autograd
    counts them as it does in a call.  ``returned``: buffers that a library call allocates, with its number among the
    library calls and copies of ``run_into``.  ``one_size``: why a recording is right for its sizes alone; empty where
    it can be written anew for others, by ``launch``.
    """

    name: str
    role: Role
    static: frozenset[int] = frozenset()
    written: frozenset[int] = frozenset()
    float_inputs: tuple[int, ...] = ()
    states: GeneratorStates = GeneratorStates()
    visible_outputs: int | None = None
    copied_into: tuple[int, ...] = ()
    returned: Mapping[int, int] = MappingProxyType({})
    one_size: str = "it has no dynamic sizes"

    @abc.abstractmethod
    def key(self, args: Sequence[Any]) -> Key:
        """The sizes of a call."""

    @abc.abstractmethod
    def shapes(self, key: Key) -> Shapes:
        """Layouts of a call of these sizes."""

    @abc.abstractmethod
    def run(self, args: list) -> list:
        """Run it; empties ``args``, allocates its outputs and returns them."""

    @abc.abstractmethod
    def run_into(self, args: list, buffers: Sequence[torch.Tensor | None]) -> list[torch.Tensor]:
        """Run it on outputs' memory that the caller gives, laid out as ``shapes`` says.

        Where there is None for one of ``returned``, gives what its library call allocates for it.
        """

    def intermediate_bytes(self, key: Key) -> int:
        """Bytes of the memory that ``launch`` works in for calls of these sizes."""
        raise NotImplementedError

    def launch(self, args: Sequence[Any], buffers: Sequence[torch.Tensor], memory: int, stream: int) -> None:
        """Launch a call's kernels and nothing else, over memory that is given; ``args`` stay as they are.

        ``memory`` is an address.  Raises ``NotRecordable`` where the kernels do not take these tensors as they lie.
        """
        raise NotImplementedError

    def floats(self, args: Sequence[Any]) -> tuple[float, ...]:
        """The floats of a call that kernels are handed the bits of: inputs, and what is computed from them."""
        return ()

    def padded_key(self, key: Key, sizes: Sequence[int]) -> Key | None:
        """The sizes of a call that would be padded to some of ``sizes``, the nearest; None where it cannot be."""
        return None

    def padded(self, args: Sequence[Any], key: Key, larger: Key) -> list:
        """A call's inputs padded to sizes ``larger``, which ``padded_key`` gave; ``key`` are those of ``args``."""
        raise NotImplementedError

    def prepare(self, into: bool, without: frozenset[int] = frozenset()) -> None:  # noqa: B027 (most have nothing to do)
        """Load what the first ``run_into`` (or ``run``) would load, outside of any pool.

        ``without``: buffers that ``run_into`` is not given.
        """


@attrs.frozen(eq=False)
class RecordingDevice:
    """Where work runs: one device, what records on it, its allocators and its current stream."""

    device: torch.device
    capture: GraphCapture
    empty: Allocator
    current_stream: Callable[[], int]
    makes_many: MakesMany | None = None

    @classmethod
    def of(cls, device: Device, where: torch.device) -> RecordingDevice:
        """Where work on one device is recorded, of a kind that records."""
        assert device.graphs is not None  # plans of devices without it have an obstacle that says so
        where = torch.device(where.type, where.index if where.index is not None else device.current_index())
        many = device.makes_many(where)
        return cls(where, device.graphs, device.allocator(where), device.stream_getter(where.index), many)

    @property
    def index(self) -> int:
        return self.device.index or 0

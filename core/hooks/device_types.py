"""What a device is: the interface of plugins that bring a kind of hardware, and what goes in and out of it."""

from __future__ import annotations

import abc
import contextlib
import enum
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import attrs
import torch

from turret.errors import CodegenError
from turret.hooks.segments import Segment

if TYPE_CHECKING:
    from turret.hooks.graph_capture import GraphCapture
    from turret.plan import Launch, Plan
    from turret.storage.artifact_cache import Store

Allocator = Callable[[Sequence[int], Sequence[int], torch.dtype], torch.Tensor]
"""``empty(shape, stride, dtype)``: an uninitialised tensor."""


@attrs.frozen
class Placed:
    """A tensor in block number ``block`` of memory, ``offset`` elements behind where that begins."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    block: int
    offset: int = 0


MakesMany = Callable[
    [Sequence[int], Sequence[Placed], Sequence[int]], Callable[[], tuple[list[torch.Tensor], list[int]]]
]
"""``maker(nbytes, tensors, told) -> make``: ``make()`` gives uninitialised tensors in blocks of so many bytes that it
takes anew, and the addresses of those of them that ``told`` numbers, in its order."""


class KernelFamily(enum.Enum):
    """Whose results a device's eager kernels have where ATen's own two families differ (NaN, roundings, layouts)."""

    HOST = "ATen's kernels for the CPU"
    GPU = "ATen's kernels for GPUs"


@attrs.frozen
class Properties:
    """What code for one device may depend on; all of it is part of cache keys.

    ``arch``: what binaries are made for, in the words of the code generators that serve it; those for another one are
    not loaded.  ``cores``: independent processors (of a GPU: multiprocessors); ``memory``: bytes; 0 where not known.
    """

    name: str = ""
    arch: str = ""
    cores: int = 0
    memory: int = 0


@attrs.frozen
class Costs:
    """What arithmetic costs on a device, for those who weigh it against memory traffic.

    Four classes of operations, in bytes of traffic that take as long as one element's; ``flops_per_byte``:
    floating-point operations of a library kernel that take as long as one byte; ``launch_bytes``: bytes of traffic that
    take as long as the launch of a kernel behind another (0: kernels of a call are functions of one library).
    """

    cheap: float = 0.01
    divide: float = 0.05
    transcendental: float = 0.1
    random: float = 1.0
    flops_per_byte: float = 100.0
    launch_bytes: int = 0


@attrs.frozen
class ProductTime:
    """What one way of computing matrix products takes (on a GPU in a half type): ``launch`` microseconds, and beside
    it what it reads and writes at ``bytes_rate`` bytes a microsecond, or its arithmetic at ``flops_rate`` operations a
    microsecond, whichever is longer."""

    launch: float
    bytes_rate: float
    flops_rate: float

    def microseconds(self, bytes_moved: float, flops: float) -> float:
        """The time of a product."""
        return self.launch + max(bytes_moved / self.bytes_rate, flops / self.flops_rate)


@attrs.frozen
class AttentionCosts:
    """What attention of few queries takes on a device, in microseconds.

    A call of the library takes ``launch``, and each of its programs walks the keys and values of one head at
    ``walk_rate`` bytes a microsecond.  ``split``: both kernels of the attention split over keys.
    """

    launch: float
    walk_rate: float
    split: ProductTime


@attrs.frozen
class ProductCosts:
    """What matrix products take on a device: ``library`` for calls, the others for generated kernels; None for those
    that were not measured.

    ``kernel``: a pointwise kernel by itself.  ``loops``, ``rows`` and ``tiles`` are as in ``turret.ir.ProductForm``
    (``loops`` is for any floating type), ``thin`` is a product of few rows or columns in tiles, ``dequantised`` one of
    up to 64 whose other operand is made of fewer bits.  ``grouped`` and ``grouped_library``: products of rows in
    groups, in tiles and as a call.

    ``attention``: that of few queries; None where it stays a call.
    ``misaligned``: how many times slower a library's arithmetic is where rows of an operand or of the result begin at
    no multiple of 16 bytes.
    ``onednn`` and ``large_library``: products of at least 2 ** 22 multiply-adds in float32 as calls of oneDNN, and as
    those of BLAS beside it; None where they stay what they are.  ``onednn_copy``: the copy that oneDNN makes of rows
    that lie across; None where such products are calls of BLAS.
    """

    library: ProductTime
    kernel: ProductTime
    loops: ProductTime | None = None
    rows: ProductTime | None = None
    thin: ProductTime | None = None
    tiles: ProductTime | None = None
    dequantised: ProductTime | None = None
    grouped: ProductTime | None = None
    grouped_library: ProductTime | None = None
    misaligned: float = 1.0
    attention: AttentionCosts | None = None
    onednn: ProductTime | None = None
    large_library: ProductTime | None = None
    onednn_copy: ProductTime | None = None


ByteCopier = Callable[[int, int, int, int], int]
"""``copy(target, source, nbytes, stream) -> status``, 0 for success: queue a copy between two addresses."""


class PlanLibrary(abc.ABC):
    """The native code of one plan, loaded."""

    @abc.abstractmethod
    def segment(self, launch: Launch) -> Segment:
        """What runs a launch step."""

    def prepare(self) -> None:  # noqa: B027 (most libraries have nothing to do)
        """Load now what the first run would load, which a graph capture must not."""


class Device(abc.ABC):
    """One type of device, whichever of them a call is for: methods take its index (0 where there is one alone).

    ``type`` is torch's name.  ``kernel_languages``: code generators ask whether theirs is among them; a device without
    any runs its graphs as captured, call by call.  ``eager_kernels``: whose results compiled code has to come out with.
    ``asynchronous``: launches are queued, and cost more than little kernels do.  ``keeps_arena``: a plan's memory is
    kept from call to call; else it comes from torch's allocator in each call, in the stream's order, which takes an
    allocator whose storages can be resized.  ``channels_last``: dtypes whose convolutions are faster in that layout.
    ``graphs``: recording and replaying of launches, where the device has that.
    """

    type: str
    kernel_languages: frozenset[str] = frozenset()
    eager_kernels: KernelFamily = KernelFamily.GPU
    asynchronous: bool = True
    keeps_arena: bool = True
    channels_last: frozenset[torch.dtype] = frozenset()
    costs: Costs = Costs()
    graphs: GraphCapture | None = None

    @abc.abstractmethod
    def properties(self, index: int) -> Properties:
        """Facts about one device; ``Properties()`` where there is none."""

    @abc.abstractmethod
    def load(self, plan: Plan, store: Store | None) -> PlanLibrary:
        """Load ``plan.library`` (``turret.storage.libraries.find_library`` has its files) for the plan's device.

        Raises ``CodegenError`` where it cannot be loaded, ``CacheError`` where it is gone.
        """

    def driver(self, index: int) -> str:
        """Version of the driver of one device, which choices by measured times are kept under; empty for none."""
        return ""

    def products(self, arch: str) -> ProductCosts | None:
        """What matrix products take on devices of an architecture; None where all of them stay calls of the library.

        Only what was measured should be said here: who is asked takes the cheapest.
        """
        return None

    def is_available(self) -> bool:
        """Whether code can run here, rather than be compiled for another machine."""
        return True

    def current_index(self) -> int:
        """The device that is meant where no index is given."""
        return 0

    def selected(self, index: int) -> contextlib.AbstractContextManager[Any]:
        """A context in which one device is the current one."""
        return contextlib.nullcontext()

    def stream_getter(self, index: int) -> Callable[[], int]:
        """What gives the last argument of each launch, asked once in every call: the current stream, most often."""
        return lambda: 0

    def byte_copier(self, index: int) -> ByteCopier | None:
        """What copies bytes within the device's memory; a recording takes such copies over (``Recording.replay_as``).

        None: the device has nothing of the kind, and what copies is recorded for its sizes alone.
        """
        return None

    def allocator(self, device: torch.device) -> Allocator:
        """What makes the tensors of a call, in the order of the current stream."""

        def through_dispatcher(shape: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
            return torch.empty_strided(shape, stride, dtype=dtype, device=device)

        return through_dispatcher

    def makes_many(self, device: torch.device) -> MakesMany | None:
        """What makes many tensors in one call, as ``allocator`` makes one; None where nothing does."""
        return None

    def times(self, index: int, run: Callable[[], Any], prepare: Callable[[], Any], repeats: int) -> list[float]:
        """Milliseconds that each of ``repeats`` runs takes; ``prepare`` comes before each, and is not counted."""
        found = []
        for _ in range(repeats):
            prepare()
            start = time.perf_counter()
            run()
            found.append((time.perf_counter() - start) * 1e3)
        return found

    def settings(self) -> str:
        """Modes of the device, beside torch's own, that decide what code for it does: part of cache keys."""
        return ""


class UnknownDevice(Device):
    """A device type that no plugin knows: its graphs run as captured, call by call."""

    def __init__(self, device_type: str) -> None:
        self.type = device_type

    def properties(self, index: int) -> Properties:
        return Properties()

    def load(self, plan: Plan, store: Store | None) -> PlanLibrary:
        raise CodegenError(
            f"no plugin runs kernels on {self.type}; give one that implements turret_device for it (docs/devices.md)"
        )

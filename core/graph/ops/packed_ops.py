"""Products and convolutions with weights that stay as they are, which are packed once for all calls.

A weight is packed when it comes a second time, and again when it was written to (its version tells) or lies elsewhere.
Tensors that keep no version, those made in inference mode, are not packed.  What is written through ``.data``, or an
alias of the memory that is no view, keeps the version, and is not noticed.
"""

from __future__ import annotations

import functools
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import torch

from turret.graph.ops.library_ops import layout_of
from turret.storage.fork_safety import after_fork
from turret.torch_compat.dispatch import no_dispatch
from turret.torch_compat.operators.packing import (
    computes_in,
    has_packing,
    pack_convolution,
    pack_linear,
    packed_convolution,
    packed_linear,
)

_library = torch.library.Library("turret", "FRAGMENT")
_library.define("frozen_linear(Tensor x, Tensor weight, Tensor? bias) -> Tensor")
_library.define(
    "frozen_convolution(Tensor input, Tensor weight, Tensor? bias, SymInt[] stride, SymInt[] padding, "
    "SymInt[] dilation, SymInt groups) -> Tensor"
)


@attrs.define(eq=False)
class _Seen:
    """A weight as it was; ``alias`` keeps its memory, so that no other tensor comes to lie there."""

    weight: weakref.ref[torch.Tensor]
    alias: torch.Tensor
    version: int
    packed: dict[Any, torch.Tensor] = attrs.field(factory=dict)

    def is_still(self, weight: torch.Tensor, version: int) -> bool:
        """Whether a weight is the one that was seen, with the same content."""
        same = self.weight() is weight and self.version == version
        return same and self.alias.data_ptr() == weight.data_ptr() and _layout(self.alias) == _layout(weight)


def _layout(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.shape, tensor.stride(), tensor.dtype


_seen: dict[int, _Seen] = {}
after_fork(_seen.clear)


def _packed(weight: torch.Tensor, use: Any, pack: Callable[[], torch.Tensor]) -> torch.Tensor | None:
    """A weight packed for a use; None where it is new, or was written to."""
    if weight.is_inference() or not has_packing():
        return None
    number, version = id(weight), weight._version
    seen = _seen.get(number)
    if seen is None or not seen.is_still(weight, version):
        gone = weakref.ref(weight, lambda _: _seen.pop(number, None))
        _seen[number] = _Seen(gone, weight.detach(), version)
        return None
    found = seen.packed.get(use)
    if found is None:
        found = seen.packed[use] = pack()
    return found


def _frozen_linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """``x`` [rows, depth] times ``weight`` [columns, depth] transposed, plus ``bias`` [columns]."""
    rows = x.shape[0]
    packed = _packed(weight, ("linear", rows), lambda: pack_linear(weight.detach(), rows))
    return torch.nn.functional.linear(x, weight, bias) if packed is None else packed_linear(x, packed, bias)


def _frozen_linear_fake(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return x.new_empty((x.shape[0], weight.shape[0]))


def _frozen_convolution(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> torch.Tensor:
    """``aten::convolution`` of images, not transposed, in its layout; of several channels, to several."""
    places, shape = (stride, padding, dilation, groups), tuple(input.shape)
    use = ("convolution", shape, *map(tuple, places[:3]), groups)
    packed = _packed(weight, use, lambda: pack_convolution(weight.detach(), shape, places))
    if packed is None:
        return torch.convolution(input, weight, bias, stride, padding, dilation, False, [0] * len(stride), groups)
    return _laid_out(packed_convolution(input, packed, bias, places), layout_of(input, weight))


def _laid_out(result: torch.Tensor, layout: torch.memory_format) -> torch.Tensor:
    """A result in a layout, strides of dimensions of one element included."""
    result = result.contiguous(memory_format=layout)
    if 1 not in result.shape:
        return result
    return result.as_strided(result.shape, torch.empty(result.shape, device="meta", memory_format=layout).stride())


def _frozen_convolution_fake(
    input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *places: Any
) -> torch.Tensor:
    stride, padding, dilation, groups = places
    made = torch.convolution(input, weight, bias, stride, padding, dilation, False, [0] * len(stride), groups)
    return made.new_empty(made.shape).contiguous(memory_format=layout_of(input, weight))


def is_worth_packing(depth: int, columns: int, rows: int) -> bool:
    """Whether a product is large enough (multiplications) for a packed matrix to be worth more than its call takes."""
    return depth * columns * rows >= 1 << 24


LEAST_GAIN = 1.1
"""How many times as long a product takes at least unpacked, if packing is worth it: packed, it is a call of its own."""
_ROUNDS = 10


@functools.cache
def gains_by_packing(rows: int, depth: int, columns: int, dtype: torch.dtype, threads: int) -> bool:
    """Whether products of a size take less time by a packed matrix on this processor: measured, once a process.

    It takes ten products each way.  Libraries differ: with AVX-512 of Intel's MKL computes float32 as fast unpacked.
    """
    with no_dispatch(), torch.no_grad():
        x, weight = torch.ones(rows, depth, dtype=dtype), torch.ones(columns, depth, dtype=dtype)
        packed = pack_linear(weight, rows)
        ways = (lambda: packed_linear(x, packed, None), lambda: torch.nn.functional.linear(x, weight))
        times = [min(_seconds(way) for _ in range(_ROUNDS)) for way in ways]
    return times[0] * LEAST_GAIN < times[1]


def _seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def packs(dtype: torch.dtype) -> bool:
    """Whether weights of a dtype are packed here."""
    return has_packing() and computes_in(dtype)


_library.impl("frozen_linear", _frozen_linear, "CPU")
_library.impl("frozen_linear", _frozen_linear_fake, "Meta")
_library.impl("frozen_convolution", _frozen_convolution, "CPU")
_library.impl("frozen_convolution", _frozen_convolution_fake, "Meta")

"""Tensor descriptors: blocks of matrices that the tensor memory accelerator (TMA) of a GPU moves by itself.

Descriptors are made by the kernel, in Triton's global scratch memory, and not by the host.  The launcher then hands
over plain addresses, which a recorded CUDA graph can patch, where a descriptor by value would be 128 bytes that the
driver encodes anew whenever an address changes.  A program makes its descriptors once and computes several tiles with
them, and what else a descriptor holds (the swizzle, the type) stays between Triton's passes.
"""

from __future__ import annotations

import math

import attrs
import torch

from turret.ir.index import Index, Var
from turret.ir.program import TensorDecl

ALIGNMENT = 16
"""Bytes that the start of what a descriptor shows, and the distances in it, are multiples of."""
DTYPES = frozenset((torch.bfloat16, torch.float16, torch.float32))
DESCRIBES_FROM = (9, 0)
"""The compute capability from which on there is such an accelerator."""
_MOST_ELEMENTS = 1 << 31
"""Coordinates have 32 bits."""


@attrs.frozen
class TensorDescriptor:
    """A matrix, or several at equal distances, in the memory of a tensor.

    ``extents``: of the two dimensions, the last of which lies side by side; ``stride``: elements from one row to the
    next.  ``turned``: the first of the two loops that were asked for is the last dimension.  Where ``step`` is not 0
    there are ``count`` matrices so many elements apart, and the index ``number`` tells which one a tile is of.
    """

    tensor: str
    extents: tuple[int, int]
    stride: int
    turned: bool
    step: int
    count: int
    number: Index


def descriptor_of(decl: TensorDecl, offset: Index, first: Var, second: Var) -> TensorDescriptor | None:
    """What an access shows as a matrix over two loops; None where there is no descriptor of it."""
    if decl.dtype not in DTYPES or not decl.is_static:
        return None
    steps = offset.coefficient(first), offset.coefficient(second)
    rest = offset - first.index * steps[0] - second.index * steps[1]
    if {first, second} & rest.variables or 1 not in steps:
        return None
    turned = steps[1] != 1
    stride = steps[turned]
    extents = (second.extent, first.extent) if turned else (first.extent, second.extent)
    found = _matrices(decl, rest)
    if found is None or not isinstance(stride, int) or not all(isinstance(n, int) for n in extents):
        return None
    step, count = found
    distances = [stride, *([step] if step else [])]
    if stride < 1 or any(d * decl.dtype.itemsize % ALIGNMENT for d in distances):
        return None
    number = rest // step if step else Index.constant(0)
    return TensorDescriptor(decl.name, extents, stride, turned, step, count, number)


def _matrices(decl: TensorDecl, rest: Index) -> tuple[int, int] | None:
    """How far apart matrices are, and how many there are at most; (0, 1) for one; None for other places."""
    numbers = [*(step for _, step in rest.terms), rest.const]
    low, _ = rest.bounds()
    if not all(isinstance(n, int) for n in numbers) or (not rest.values and (not isinstance(low, int) or low < 0)):
        return None
    step = math.gcd(*numbers)
    reach = sum((n - 1) * s for n, s in zip(decl.shape, decl.stride, strict=True))
    if reach >= _MOST_ELEMENTS:
        return None
    return step, reach // step + 1 if step else 1

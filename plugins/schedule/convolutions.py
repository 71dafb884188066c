"""Convolutions as sums of products along their windows (implicit GEMM), which matrix instructions compute in tiles.

The depth of the product is the places of a window times the channels, channels fastest: where they lie side by side in
memory, weights are a matrix as they lie, and a block of the depth is channels of one place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import attrs
import torch

from turret.graph.dtypes import HALF, compute_dtype
from turret.ir import (
    Definition,
    Expr,
    Index,
    ProductForm,
    Ref,
    Size,
    Template,
    TensorDecl,
    Var,
    call,
    cast,
    constant,
    index_value,
    load,
    product,
    reduce,
    unflatten,
)
from turret.plugins.schedule.operands import Declarations, Views, in_memory, loops_over

_CONVOLUTION = torch.ops.aten.convolution.default
LEAST_DEPTH = 16
"""Products of a window below which matrix instructions have nothing to do."""


@attrs.frozen(eq=False)
class Convolution:
    """A call as a convolution of ``left`` [samples, channels, ...] with ``right`` [outputs, channels, ...].

    ``bias`` (or None) is one number for each output.  ``stride``, ``padding`` and ``dilation`` have an entry for each
    dimension of the images.
    """

    template: Template
    left: TensorDecl
    right: TensorDecl
    bias: TensorDecl | None
    result: TensorDecl
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]

    forms: tuple[ProductForm, ...] = ("tiles",)
    """What it can be computed as beside the library's call."""
    groups = 1

    @property
    def operands(self) -> tuple[TensorDecl, ...]:
        """The tensors that decide how the convolution is computed."""
        return tuple(d for d in (self.left, self.right, self.bias) if d is not None)

    @property
    def factors(self) -> tuple[Any, ...]:
        """What convolutions of equal tensors may differ in."""
        return self.stride, self.padding, self.dilation

    @property
    def extents(self) -> tuple[Size, Size, Size, Size]:
        """Batches, rows, columns and depth of the product that it is."""
        samples, outputs, *images = self.result.shape
        return 1, product((samples, *images)), outputs, product(self.right.shape[1:])

    def definition(self, views: Views, declarations: Declarations) -> Definition:
        """The convolution as loops; what a view of another tensor shows is read where it lies."""
        loops = loops_over(self.result.shape)
        sample, output, *images = (v.index for v in loops)
        channels, *window = self.right.shape[1:]
        along = Var("r0", product(self.right.shape[1:]))
        *places, channel = unflatten(along.index, (*window, channels))
        reads = [
            at * stride + place * dilation - padding
            for at, place, stride, padding, dilation in zip(
                images, places, self.stride, self.padding, self.dilation, strict=True
            )
        ]
        inner = compute_dtype(self.result.dtype)

        def read(decl: TensorDecl, *coords: Index) -> Expr:
            return load(*in_memory(decl, coords, views, declarations), decl.dtype)

        left = read(self.left, sample, channel, *reads)
        inside = _all(_inside(reads, self.left.shape[2:]))
        if inside is not None:
            left = call("masked", inside, left, constant(0, self.left.dtype))
        right = read(self.right, output, channel, *places)
        value = reduce("sum", (along,), call("mul", cast(left, inner), cast(right, inner)))
        if self.bias is not None:
            value = call("add", value, cast(read(self.bias, output), inner))
        value = cast(value, self.result.dtype)
        return Definition(self.result, loops, value, self.template.origins, self.template.source)


def _inside(reads: Sequence[Index], extents: Sequence[Size]) -> Iterator[Expr]:
    """Conditions under which a window's place is in the image, those that always hold left out."""
    for at, extent in zip(reads, extents, strict=True):
        low, high = at.bounds()
        if not isinstance(low, int) or low < 0:
            yield call("ge", index_value(at), constant(0, torch.int64))
        if not isinstance(high, int) or not isinstance(extent, int) or high >= extent:
            yield call("lt", index_value(at), constant(extent, torch.int64))


def _all(conditions: Iterator[Expr]) -> Expr | None:
    found: Expr | None = None
    for condition in conditions:
        found = condition if found is None else call("logical_and", found, condition)
    return found


def convolution(template: Template, declarations: Declarations) -> Convolution | None:
    """A call as a convolution that tiles can compute; None where it is another."""
    if template.op != _CONVOLUTION or template.kwargs:
        return None
    input, weight, bias, stride, padding, dilation, transposed, _, groups = template.args
    (result,) = template.outputs
    if transposed or groups != 1 or result is None:
        return None
    numbers = [tuple(n) for n in (stride, padding, dilation)]
    if not all(isinstance(n, int) for each in numbers for n in each):
        return None
    left, right, *rest = (declarations[each.name] for each in (input, weight, bias) if isinstance(each, Ref))
    found = Convolution(template, left, right, rest[0] if rest else None, result, *numbers)
    return found if _fits(found) else None


def _fits(found: Convolution) -> bool:
    """Whether all is of one half type, of static sizes, and has its channels side by side."""
    result, images = found.result, found.result.shape[2:]
    decls = (result, *found.operands)
    if result.dtype not in HALF or any((d.dtype, d.device) != (result.dtype, result.device) for d in decls):
        return False
    if not all(d.is_static and 0 not in d.shape for d in decls) or len(images) not in (1, 2):
        return False
    if any(len(each) != len(images) for each in found.factors):
        return False
    _, rows, columns, depth = (int(n) for n in found.extents)
    side_by_side = all(d.stride[1] == 1 for d in (found.left, found.right, result))
    return side_by_side and min(rows, columns) > 1 and depth >= LEAST_DEPTH

"""Products with weights of 8 bits and a scale for each column, as one call asks for them."""

from __future__ import annotations

import attrs
import torch

from turret.graph.dtypes import HALF, compute_dtype
from turret.graph.op_set import resolve
from turret.ir import Definition, ProductForm, Ref, Size, Template, TensorDecl, Var, call, cast, load, reduce
from turret.plugins.schedule.operands import Declarations, Views, in_memory, loops_over


@attrs.frozen(eq=False)
class PackedProduct:
    """A call as ``left`` [rows, depth] times the transposed of ``right`` (int8) [columns, depth], times ``scales``
    [columns]."""

    template: Template
    left: TensorDecl
    right: TensorDecl
    scales: TensorDecl
    result: TensorDecl

    factors = (0, 1)
    """``beta`` and ``alpha``."""
    groups = 1

    @property
    def operands(self) -> tuple[TensorDecl, ...]:
        """The tensors that decide how the product is computed."""
        return self.left, self.right, self.scales

    @property
    def spared_bytes(self) -> int:
        """By how much less loops read than if the weights had the dtype of the result."""
        columns, depth = self.right.shape
        static = isinstance(columns, int) and isinstance(depth, int)
        return columns * depth * (self.result.dtype.itemsize - 1) if static else 0

    @property
    def forms(self) -> tuple[ProductForm, ...]:
        """What it can be computed as beside the library's call."""
        return ("rows",) if self.left.shape[0] == 1 else ("tiles",)

    @property
    def extents(self) -> tuple[Size, Size, Size, Size]:
        """Batches, rows, columns and depth."""
        rows, depth = self.left.shape
        return 1, rows, self.right.shape[0], depth

    def definition(self, views: Views, declarations: Declarations) -> Definition:
        """The product as loops; what a view of another tensor shows is read where it lies."""
        loops = loops_over(self.result.shape)
        row, column = (v.index for v in loops)
        along = Var("r0", self.left.shape[1])
        dtype, inner = self.result.dtype, compute_dtype(self.result.dtype)
        left = load(*in_memory(self.left, (row, along.index), views, declarations), dtype)
        right = load(*in_memory(self.right, (column, along.index), views, declarations), torch.int8)
        scale = cast(load(*in_memory(self.scales, (column,), views, declarations), dtype), inner)
        right = cast(cast(right, dtype, exact=True), inner)
        value = call("mul", reduce("sum", (along,), call("mul", cast(left, inner), right)), scale)
        return Definition(self.result, loops, cast(value, dtype), self.template.origins, self.template.source)


def packed_product(template: Template, declarations: Declarations) -> PackedProduct | None:
    """A call as such a product in a half type; None where it is another."""
    if template.op != resolve("_weight_int8pack_mm") or not all(isinstance(a, Ref) for a in template.args[:3]):
        return None
    (result,) = template.outputs
    left, right, scales = (declarations[operand.name] for operand in template.args[:3])
    if result is None or result.dtype not in HALF:
        return None
    dtypes = [d.dtype for d in (left, right, scales)] == [result.dtype, torch.int8, result.dtype]
    here = all(d.device == result.device for d in (left, right, scales))
    is_product = all(n not in (0, 1) for n in (*right.shape, left.shape[1])) and left.shape[0] != 0
    return PackedProduct(template, left, right, scales, result) if dtypes and here and is_product else None

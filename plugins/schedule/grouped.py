"""Products of rows in groups with a matrix for each group, as the experts of a layer have them."""

from __future__ import annotations

from typing import Any

import attrs
import torch

from turret.graph.dtypes import HALF, compute_dtype
from turret.graph.op_set import resolve
from turret.ir import (
    Definition,
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
    load,
    reduce,
)
from turret.ir.analysis.groups import MOST_GROUPS, row_groups_of
from turret.plugins.schedule.operands import Declarations, Views, in_memory, loops_over


@attrs.frozen(eq=False)
class GroupedProduct:
    """A call as a product of ``left`` [rows, depth], in groups that end at ``ends`` [groups], with ``right`` [groups,
    depth, columns].

    Rows behind the last group, which the library's call leaves as memory was, are zeros.
    """

    template: Template
    left: TensorDecl
    right: TensorDecl
    ends: TensorDecl
    result: TensorDecl

    factors = (0, 1)
    """``beta`` and ``alpha``."""
    forms: tuple[ProductForm, ...] = ("tiles",)
    """What it can be computed as beside the library's call."""

    @property
    def operands(self) -> tuple[TensorDecl, ...]:
        """The tensors that decide how the product is computed."""
        return self.left, self.right, self.ends

    @property
    def groups(self) -> int:
        return int(self.ends.shape[0])

    @property
    def extents(self) -> tuple[Size, Size, Size, Size]:
        """Batches, rows, columns and depth."""
        rows, depth = self.left.shape
        return 1, rows, self.right.shape[2], depth

    def definition(self, views: Views, declarations: Declarations) -> Definition:
        """The product as loops; what a view of another tensor shows is read where it lies."""
        loops = loops_over(self.result.shape)
        row, column = (v.index for v in loops)
        along = Var("r0", self.left.shape[1])
        groups = row_groups_of(self.ends.name, self.groups, row)
        inner = compute_dtype(self.result.dtype)

        def read(decl: TensorDecl, *coords: Index) -> Any:
            return cast(load(*in_memory(decl, coords, views, declarations), decl.dtype), inner)

        left = read(self.left, row, along.index)
        right = read(self.right, Index.of_value(groups.picked), along.index, column)
        summed = reduce("sum", (along,), call("mul", left, right))
        inside = call("lt", groups.node, constant(self.groups, torch.int64))
        value = cast(call("where", inside, summed, constant(0, inner)), self.result.dtype)
        return Definition(self.result, loops, value, self.template.origins, self.template.source)


def grouped_product(template: Template, declarations: Declarations) -> GroupedProduct | None:
    """A call as such a product; None where it is another."""
    if template.op != resolve("_grouped_mm"):
        return None
    names = [argument.name for argument in template.op._schema.arguments]
    given = {**dict(zip(names, template.args, strict=False)), **template.kwargs}
    operands = [given[name] for name in ("self", "mat2")] + [given.get("offs")]
    (result,) = template.outputs
    if result is None or given.get("bias") is not None or not all(isinstance(o, Ref) for o in operands):
        return None
    left, right, ends = (declarations[operand.name] for operand in operands)
    found = GroupedProduct(template, left, right, ends, result)
    return found if _fits(found) else None


def _fits(found: GroupedProduct) -> bool:
    left, right, ends, result = found.left, found.right, found.ends, found.result
    if (len(left.shape), len(right.shape), len(ends.shape)) != (2, 3, 1) or result.dtype not in HALF:
        return False
    if any((d.dtype, d.device) != (result.dtype, result.device) for d in (left, right)):
        return False
    if ends.dtype != torch.int32 or ends.device != result.device or not ends.is_static:
        return False
    groups = int(ends.shape[0])
    contiguous = groups == 1 or ends.stride == (1,)
    is_product = all(n not in (0, 1) for n in (*left.shape, right.shape[2]))
    return 0 < groups <= MOST_GROUPS and right.shape[0] == groups and contiguous and is_product

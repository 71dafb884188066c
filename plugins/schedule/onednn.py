"""Matrix products as calls of oneDNN, where those were measured to take less time than the calls of BLAS."""

from __future__ import annotations

import itertools

import attrs
import torch

from turret.ir import Extern, Ref, Statement, StridedView, Template, TensorDecl, product
from turret.plugins.schedule.operands import Declarations, Views
from turret.torch_compat.operators.packing import has_packing, linear_op

LEAST_OF_ONEDNN = 1 << 22
"""Multiply-adds of a product from which on oneDNN might be worth what it takes to look up its kernel."""
_LEAST_DEPTH = 64
"""Of products that are less deep oneDNN takes 3 to 5 % more time (4096 x 48 x 192)."""


@attrs.frozen(eq=False)
class Linear:
    """``left`` [rows, depth] times ``right`` [depth, columns], plus ``bias`` [columns] where there is one."""

    template: Template
    left: TensorDecl
    right: TensorDecl
    bias: TensorDecl | None

    @property
    def is_call(self) -> bool:
        """Whether oneDNN computes it from where the operands lie, in a kernel that the first call makes.

        Each size takes a kernel of its own: products whose sizes change from call to call stay as they are.
        """
        operands = [decl for decl in (self.left, self.right, self.bias) if decl is not None]
        (result,) = self.template.outputs
        if result is None or result.dtype != torch.float32 or not all(decl.is_static for decl in operands):
            return False
        if len(self.left.shape) != 2 or len(self.right.shape) != 2:
            return False
        (rows, depth), columns = self.left.shape, self.right.shape[1]
        if product((rows, depth, columns)) < LEAST_OF_ONEDNN or depth < _LEAST_DEPTH or min(rows, columns) == 1:
            return False
        laid = self.left.stride in ((depth, 1), (1, rows)) and self.right.stride in ((1, depth), (columns, 1))
        return laid and self._has_plain_bias(columns) and has_packing()

    @property
    def copied_bytes(self) -> int:
        """Memory traffic of the copy that it makes of rows that lie across, as in the gradient of a weight."""
        rows, depth = self.left.shape
        if self.left.stride == (depth, 1) or not (isinstance(rows, int) and isinstance(depth, int)):
            return 0
        return 2 * rows * depth * self.left.dtype.itemsize

    def _has_plain_bias(self, columns: int) -> bool:
        return self.bias is None or (self.bias.shape, self.bias.stride) == ((columns,), (1,))

    def statements(self, views: Views, declarations: Declarations) -> tuple[Statement, ...]:
        """The call, behind a view of the matrix as it wants it: [columns, depth]."""
        shape, stride = self.right.shape[::-1], self.right.stride[::-1]
        view = views.get(self.right.name)
        base = self.right if view is None else declarations[view.base]
        made: tuple[Statement, ...] = ()
        offset = 0 if view is None else view.offset
        if offset == 0 and (base.shape, base.stride, base.dtype) == (shape, stride, self.right.dtype):
            matrix = base.name
        else:
            names = (f"{self.right.name}_turned{number or ''}" for number in itertools.count())
            matrix = next(name for name in names if name not in declarations)
            turned = TensorDecl(matrix, shape, stride, self.right.dtype, self.right.device)
            made = (StridedView(turned, base.name, offset),)
        bias = None if self.bias is None else Ref(self.bias.name)
        call = Extern(
            linear_op(),
            (Ref(self.left.name), Ref(matrix), bias, "none", [], ""),
            {},
            self.template.outputs,
            reason="a product that oneDNN computes in less time than BLAS",
            origins=self.template.origins,
            source=self.template.source,
            location=self.template.location,
        )
        return (*made, call)

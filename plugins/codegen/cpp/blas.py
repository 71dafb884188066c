"""Matrix products in float32 and float64 as calls of the BLAS that torch brings, from generated code.

A call through torch takes some ten microseconds on the host, tensors of transposed weights included, and ends the
native call that the kernels around it share.  Results are those of ``torch.mm`` to the bit: it makes the same call.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs
import torch

from turret.graph.externs import op_name
from turret.hooks.devices import HOST
from turret.ir import Ref, Schedule, StridedView, Template, TensorDecl
from turret.plan.launch.functions import BLAS
from turret.plugins.codegen.cpp.emission.dtypes import ctype
from turret.plugins.codegen.cpp.emission.prelude import BLAS_PRODUCTS
from turret.plugins.codegen.cpp.kernel import CppKernel, function
from turret.torch_compat.native import blas_function, products_are_exact

_PRODUCT = "aten::mm.default"
_LARGEST = 2**31 - 1
"""What BLAS takes as a size."""


@attrs.frozen
class _Operand:
    """A matrix of a call: the tensor in whose memory it lies, its first element there, whether its rows lie across
    memory (``turned``), and from one of them, or else from one column, to the next."""

    base: str
    offset: int
    turned: bool
    stride: int


@attrs.frozen
class Product:
    """The call of BLAS that computes a template; ``numbers`` are the last arguments of its function."""

    template: Template
    operands: tuple[_Operand, _Operand]
    result: TensorDecl
    numbers: tuple[int, ...]

    @property
    def resolved(self) -> Template:
        """The template as reading the tensors in whose memory its operands lie, without views."""
        return attrs.evolve(self.template, args=tuple(Ref(operand.base) for operand in self.operands))

    def kernel(self) -> CppKernel:
        """The function, the same for all products of a dtype."""
        dtype = self.result.dtype
        made, source = function(_BODY.format(kind=ctype(dtype).element, name=BLAS_PRODUCTS[dtype]))
        buffers = (*(operand.base for operand in self.operands), self.result.name)
        comment = f"{self.result.name} ({', '.join(self.template.origins)})"
        return CppKernel(made, source, buffers, (), False, comment, numbers=tuple(map(str, self.numbers)))


_BODY = """{{
  const {kind}* const left = (const {kind}*)buffers[0] + sizes[3];
  const {kind}* const right = (const {kind}*)buffers[1] + sizes[4];
  const {kind} one = 1, zero = 0;
  // BLAS counts along columns: the transposed of the result is the product of the transposed, in the other order.
  {name}(sizes[9] ? "t" : "n", sizes[8] ? "t" : "n", &sizes[1], &sizes[0], &sizes[2], &one, right, &sizes[6], left,
    &sizes[5], &zero, ({kind}*)buffers[2], &sizes[7]);
  return 0;
}}
"""


def blas_products(schedule: Schedule) -> dict[str, Product]:
    """The products of a schedule that BLAS computes from generated code, by the names of their results."""
    declarations = schedule.program.declarations()
    views = {step.tensor.name: step for step in schedule.steps if isinstance(step, StridedView)}
    found = (_product(template, declarations, views) for template in schedule.templates)
    return {product.result.name: product for product in found if product is not None}


def resolved(schedule: Schedule, products: Mapping[str, Product]) -> Schedule:
    """The schedule with those products reading no views."""
    by_template = {id(product.template): product.resolved for product in products.values()}
    return attrs.evolve(schedule, steps=tuple(by_template.get(id(step), step) for step in schedule.steps))


def _has_function(dtype: torch.dtype) -> bool:
    """Whether torch's products in a dtype are calls that generated code can make, too."""
    pointer = BLAS_PRODUCTS.get(dtype)
    exact = dtype != torch.float32 or products_are_exact()
    return pointer is not None and exact and blas_function(BLAS[pointer]) != 0


def _product(
    template: Template, declarations: Mapping[str, TensorDecl], views: Mapping[str, StridedView]
) -> Product | None:
    result = template.outputs[0]
    if op_name(template.op) != _PRODUCT or template.kwargs or result is None:
        return None
    if result.device.type != HOST.type:  # whoever loads another device's code connects it to no BLAS
        return None
    left, right = (declarations[argument.name] for argument in template.args)
    if not _fits(left, right, result):
        return None
    first, second = (_operand(decl, declarations, views) for decl in (left, right))
    (rows, depth), columns = left.shape, right.shape[1]
    if first is None or second is None:
        return None
    numbers: tuple[int, ...] = (rows, columns, depth, first.offset, second.offset, first.stride, second.stride, columns)
    numbers += (int(first.turned), int(second.turned))
    return Product(template, (first, second), result, numbers) if max(numbers) <= _LARGEST else None


def _fits(left: TensorDecl, right: TensorDecl, result: TensorDecl) -> bool:
    """Whether torch would compute a product by the same call."""
    alike = all((d.dtype, d.device) == (result.dtype, result.device) for d in (left, right))
    if not alike or not all(d.is_static for d in (left, right, result)) or not _has_function(result.dtype):
        return False
    # A single row or column is a product with a vector, for which torch calls another function.
    return min(*result.shape) > 1 and left.shape[1] > 0 and _layout(result) == (False, result.shape[1])


def _operand(
    decl: TensorDecl, declarations: Mapping[str, TensorDecl], views: Mapping[str, StridedView]
) -> _Operand | None:
    """Where a matrix lies; None where BLAS cannot read it there."""
    layout = _layout(decl)
    base, offset = decl, 0
    while (view := views.get(base.name)) is not None:
        if not isinstance(view.offset, int):
            return None
        base, offset = declarations[view.base], offset + view.offset
        if base.dtype != decl.dtype:
            return None
    return None if layout is None else _Operand(base.name, offset, *layout)


def _layout(decl: TensorDecl) -> tuple[bool, int] | None:
    """Whether the rows of a matrix lie across memory, and from one of them, or else one column, to the next."""
    (rows, columns), (down, along) = decl.shape, decl.stride
    if along == 1 and down >= max(1, columns):
        return False, down
    return (True, along) if down == 1 and along >= max(1, rows) else None

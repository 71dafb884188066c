"""Kernels that do the work of one, and the tensors that they hand on to one another."""

from __future__ import annotations

from typing import Any

import attrs
import torch

from turret.ir.index import Size, Var, product
from turret.ir.program import TensorDecl
from turret.ir.schedule import Kernel
from turret.plugins.codegen.triton.tiles.kernel import Scratch
from turret.plugins.codegen.triton.tiles.sizes import size_text


@attrs.frozen(eq=False)
class Part:
    """The part of each row that a program takes, where sizes are symbolic.

    ``number``: the loop over parts.  ``length``: elements of a whole row, of which the last parts have fewer than the
    kernel's row has, or none; None where all have as many.
    """

    number: Var
    length: Size | None = None


@attrs.frozen(eq=False)
class Stages:
    """Kernels that do the work of one, in order, with the tensors that they hand on to one another.

    ``part``: what those of them compute that have its loop.
    """

    kernels: tuple[Kernel, ...]
    tensors: dict[str, TensorDecl] = attrs.field(factory=dict)
    scratch: tuple[Scratch, ...] = ()
    part: Part | None = None


def scratch_tensor(name: str, shape: tuple[Size, ...], dtype: torch.dtype, device: Any) -> TensorDecl:
    """A dense tensor that stages hand on."""
    stride = tuple(product(shape[k + 1 :]) for k in range(len(shape)))
    return TensorDecl(name, shape, stride, dtype, device)


def is_scratch(decl: TensorDecl) -> bool:
    """Whether stages hand a tensor on: no name of a graph has a dot."""
    return "." in decl.name


def scratch_of(decl: TensorDecl, zeroed: bool = False) -> Scratch:
    """The memory of a tensor that stages hand on."""
    count = size_text(product(decl.shape), lambda symbol: symbol)
    return Scratch(decl.name, count, str(decl.dtype).removeprefix("torch."), zeroed)

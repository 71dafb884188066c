"""Where operands of matrix products lie."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from turret.ir import Index, Size, StridedView, TensorDecl, Var

Declarations = Mapping[str, TensorDecl]
Views = Mapping[str, StridedView]


def loops_over(shape: Sequence[Size]) -> tuple[Var, ...]:
    """A loop for each dimension, outermost first."""
    return tuple(Var(f"i{k}", extent) for k, extent in enumerate(shape))


def in_memory(
    decl: TensorDecl, coords: Sequence[Index], views: Views, declarations: Declarations
) -> tuple[str, tuple[Index, ...]]:
    """Where an element lies: in the tensor itself, or in the one that it shows with its dimensions in another order."""
    view = views.get(decl.name)
    if view is None or view.offset != 0:
        return decl.name, tuple(coords)
    base = declarations[view.base]
    shown = [(n, s) for n, s in zip(decl.shape, decl.stride, strict=True)]
    own = [(n, s) for n, s in zip(base.shape, base.stride, strict=True)]
    if len(set(own)) != len(own) or sorted(map(str, own)) != sorted(map(str, shown)) or base.dtype != decl.dtype:
        return decl.name, tuple(coords)
    return base.name, tuple(coords[shown.index(dimension)] for dimension in own)

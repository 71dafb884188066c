"""Where operands of matrix products lie."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from turret.ir import Index, Size, StridedView, TensorDecl, Var, product, unflatten

Declarations = Mapping[str, TensorDecl]
Views = Mapping[str, StridedView]


def loops_over(shape: Sequence[Size]) -> tuple[Var, ...]:
    """A loop for each dimension, outermost first."""
    return tuple(Var(f"i{k}", extent) for k, extent in enumerate(shape))


def in_memory(
    decl: TensorDecl, coords: Sequence[Index], views: Views, declarations: Declarations
) -> tuple[str, tuple[Index, ...]]:
    """Where an element lies: in the tensor itself, or in the one that it shows with its dimensions in another order, or
    whose elements, which lie side by side, it counts in other dimensions."""
    view = views.get(decl.name)
    if view is None or view.offset != 0:
        return decl.name, tuple(coords)
    base = declarations[view.base]
    shown = [(n, s) for n, s in zip(decl.shape, decl.stride, strict=True)]
    own = [(n, s) for n, s in zip(base.shape, base.stride, strict=True)]
    if len(set(own)) != len(own) or sorted(map(str, own)) != sorted(map(str, shown)) or base.dtype != decl.dtype:
        return _counted(decl, coords, base)
    return base.name, tuple(coords[shown.index(dimension)] for dimension in own)


def _counted(decl: TensorDecl, coords: Sequence[Index], base: TensorDecl) -> tuple[str, tuple[Index, ...]]:
    """The same, of a tensor whose elements lie side by side."""
    side_by_side = all(s == product(base.shape[k + 1 :]) for k, s in enumerate(base.stride) if base.shape[k] != 1)
    if base.dtype != decl.dtype or not (base.is_static and decl.is_static and side_by_side):
        return decl.name, tuple(coords)
    place = Index.constant(0)
    for coord, stride in zip(coords, decl.stride, strict=True):
        place = place + coord * stride
    return base.name, unflatten(place, base.shape)

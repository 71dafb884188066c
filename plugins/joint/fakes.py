"""Running ops on fake tensors, and remembering what came out.

A model repeats itself: most calls of a trace are an earlier call with other tensors of the same layouts.  The fake
tensor mode has a cache of its own, but makes each key from scratch; here a tensor's part of the key is
computed once in its life, which is several times as fast.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from turret.graph.fakes.corrections import CorrectedFakeTensorMode, corrected
from turret.graph.fakes.layouts import in_eagers_layout, tensors_in
from turret.graph.fakes.patterns import PatternMemo
from turret.torch_compat.dispatch import DisableTorchDispatch, enable_python_dispatcher
from turret.torch_compat.fakes import FakeTensor

_UNSAFE_TAGS = frozenset((torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output, torch.Tag.inplace_view))
_PLAIN = frozenset(
    (int, float, bool, str, complex, type(None), torch.dtype, torch.layout, torch.memory_format, torch.device)
)


class _Unkeyed(Exception):
    """A call has an argument that no key can be made of (a symbolic size, a constant, a generator)."""


class FakeRunner:
    """Runs ops on fake tensors of one mode; what they give is corrected where the mode does not do that itself.

    ``layout_of(tensor)`` gives a tensor's part of a key, or None where it has symbolic sizes or a known value.
    """

    def __init__(self, fake_mode: Any, layout_of: Callable[[torch.Tensor], tuple | None]) -> None:
        self._mode, self._layout_of = fake_mode, layout_of
        self._known: dict[tuple, Any] = {}
        self._keyed: dict[Any, bool] = {}
        self._corrects = isinstance(fake_mode, CorrectedFakeTensorMode)
        self._patterns = fake_mode.patterns if self._corrects else PatternMemo(fake_mode)

    def __call__(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        """What ``func`` returns: new tensors for every call, as from the op itself."""
        keyed = self._keyed.get(func)
        if keyed is None:
            keyed = self._keyed[func] = _may_be_keyed(func)
        if not keyed:
            return self._fresh(func, args, kwargs)
        try:
            key = (func, self._key(args), self._key(tuple(kwargs.items())) if kwargs else None)
        except _Unkeyed:
            with enable_python_dispatcher():  # fake implementations that call ops on symbolic sizes need it
                return self._fresh(func, args, kwargs)
        recipe = self._known.get(key)
        if recipe is _REFUSED:
            return self._fresh(func, args, kwargs)
        if recipe is not None:
            return self._make(recipe, args)
        # The operands are the first in their layouts; others of their pattern may have been there.
        out = self._patterns.run(func, args, kwargs, lambda: self._fresh(func, args, kwargs))
        self._known[key] = _recipe(out, args)
        return out

    def _fresh(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        if self._corrects:
            return _without_history(func(*args, **kwargs), args)
        out = corrected(func, lambda given, named: func(*given, **named), args, kwargs)
        return _without_history(in_eagers_layout(func, args, kwargs, out), args)

    def alias(self, value: torch.Tensor) -> torch.Tensor:
        """The same memory and layout, with no autograd history: ``detach`` below all dispatch."""
        if type(value) is FakeTensor and _is_plain(value):
            return self.make(TensorRecipe(value, views_first=True), (value,))
        return value.detach()

    def _key(self, value: Any) -> Any:
        kind = type(value)
        if kind in _PLAIN:
            return (kind, value)
        if kind is FakeTensor:
            layout = self._layout_of(value)
            if layout is None:
                raise _Unkeyed
            return layout
        if isinstance(value, (tuple, list)):
            return tuple([self._key(v) for v in value])
        raise _Unkeyed

    def _make(self, recipe: Any, args: tuple) -> Any:
        if type(recipe) is _Sequence:
            return recipe.kind([self.make(r, args) if type(r) is TensorRecipe else r for r in recipe.parts])
        return self.make(recipe, args)

    def make(self, recipe: TensorRecipe, args: tuple) -> torch.Tensor:
        """One tensor by its recipe, below all dispatch."""
        guard = DisableTorchDispatch()
        try:
            if recipe.views_first:
                meta = torch.empty(0, dtype=recipe.dtype, device="meta")
                meta.set_(args[0].untyped_storage(), recipe.offset, recipe.shape, recipe.stride)
            else:
                meta = torch.empty_strided(recipe.shape, recipe.stride, dtype=recipe.dtype, device="meta")
        finally:
            del guard
        return FakeTensor(self._mode, meta, recipe.device)


def _without_history(out: Any, args: tuple) -> Any:
    """Results below autograd require no gradients; some fake implementations hand on that their input does."""
    if isinstance(out, torch.Tensor):
        return out.detach() if out.requires_grad and not any(out is t for t in tensors_in(args)) else out
    if isinstance(out, (tuple, list)):
        return type(out)([_without_history(v, args) for v in out])
    return out


class TensorRecipe:
    """How to make one result: in memory of its own, or (``views_first``) in that of the first argument."""

    __slots__ = ("device", "dtype", "offset", "shape", "stride", "views_first")

    def __init__(self, value: FakeTensor, views_first: bool) -> None:
        self.shape, self.stride, self.offset = tuple(value.shape), value.stride(), value.storage_offset()
        self.dtype, self.device, self.views_first = value.dtype, value.fake_device, views_first


class _Sequence:
    """How to make several results."""

    __slots__ = ("kind", "parts")

    def __init__(self, kind: type, parts: list[Any]) -> None:
        self.kind, self.parts = kind, parts


_REFUSED = object()
"""Instead of a recipe: this call's results cannot be made from their layouts."""


def _may_be_keyed(func: Any) -> bool:
    return (
        func.namespace in ("aten", "prims", "turret")
        and not func._schema.is_mutable
        and _UNSAFE_TAGS.isdisjoint(func.tags)
    )


def _recipe(out: Any, args: tuple) -> Any:
    """How to make what a call with these arguments returned, or ``_REFUSED``."""
    writer = _RecipeWriter(args)
    try:
        if isinstance(out, (tuple, list)):
            return _Sequence(tuple if isinstance(out, tuple) else list, [writer.part(v) for v in out])
        made = writer.part(out)
        return made if type(made) is TensorRecipe else _REFUSED
    except _Unkeyed:
        return _REFUSED


class _RecipeWriter:
    """Writes recipes of the parts of one result: tensors in memory of their own, or in that of the first argument."""

    def __init__(self, args: tuple) -> None:
        self.given = tensors_in(args)
        self.shared = args[0].untyped_storage()._cdata if args and isinstance(args[0], torch.Tensor) else None
        self.others = {t.untyped_storage()._cdata for t in tensors_in(args[1:])}
        self.seen: set[int] = set()

    def part(self, value: Any) -> Any:
        """Raises ``_Unkeyed`` for what has no recipe."""
        if value is None or type(value) in (int, float, bool):
            return value
        if type(value) is not FakeTensor or not _is_plain(value) or any(value is t for t in self.given):
            raise _Unkeyed
        storage = value.untyped_storage()._cdata
        views_first = storage == self.shared
        if storage in self.others or (storage in self.seen and not views_first):
            raise _Unkeyed
        self.seen.add(storage)
        if not views_first and value.storage_offset() != 0:
            raise _Unkeyed
        return TensorRecipe(value, views_first)


def _is_plain(value: FakeTensor) -> bool:
    return value.constant is None and _is_static(value)


def _is_static(value: torch.Tensor) -> bool:
    numbers = (*value.shape, *value.stride(), value.storage_offset())
    return _is_strided(value) and all(type(n) is int for n in numbers)


def _is_strided(value: torch.Tensor) -> bool:
    return value.layout is torch.strided and not value.is_conj() and not value.is_neg()


def layout_key(value: Any) -> tuple | None:
    """A fake tensor's part of a key, or None where it has symbolic sizes, a known value, or is not a plain tensor."""
    if type(value) is not FakeTensor or not _is_plain(value):
        return None
    return (tuple(value.shape), value.stride(), value.storage_offset(), value.dtype, value.fake_device)

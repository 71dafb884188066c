"""Tensors that wrap others (``__tensor_flatten__``), taken apart and put together again, with gradients either way."""

from __future__ import annotations

from typing import Any

import attrs
import torch

from turret.errors import UnsupportedError
from turret.torch_compat.fakes import FakeTensor, NestedTensor, jagged_torch_function


@attrs.frozen
class WrapperForm:
    """What a wrapper is beside the tensors in it: its class, their names, what it says of itself, and its layout."""

    kind: type
    names: tuple[str, ...]
    context: Any = attrs.field(hash=False)
    size: tuple[int, ...] = attrs.field(eq=False)
    stride: tuple[int, ...] = attrs.field(eq=False)
    requires_grad: bool
    inner: tuple[WrapperForm | None, ...]
    """The forms of tensors in it that are wrappers, too."""
    like: int | None
    """The number of a plain tensor in it that has its layout; a wrapper made of other tensors has theirs."""
    own_layout: tuple[tuple[int, ...], ...] | None
    """Size and stride that no tensor in it tells."""

    @classmethod
    def of(cls, value: Any) -> WrapperForm:
        """The form of a wrapper.  ``UnsupportedError`` for one that holds what is no strided tensor."""
        names, context = value.__tensor_flatten__()
        parts = [getattr(value, name) for name in names]
        for part in parts:
            if not is_wrapper(type(part)) and (not isinstance(part, torch.Tensor) or part.layout is not torch.strided):
                raise UnsupportedError(f"a {type(value).__qualname__} that holds a {type(part).__qualname__}")
        inner = tuple(cls.of(part) if is_wrapper(type(part)) else None for part in parts)
        layout = tuple(value.shape), tuple(value.stride())
        like = next((n for n, p in enumerate(parts) if inner[n] is None and _has_layout(p, *layout)), None)
        told = like is not None or isinstance(value, NestedTensor)
        own = None if told else layout
        return cls(type(value), tuple(names), context, *layout, value.requires_grad, inner, like, own)

    def count(self) -> int:
        """Plain tensors in it."""
        return sum(1 if form is None else form.count() for form in self.inner)

    def parts(self, value: Any) -> list[torch.Tensor]:
        """The plain tensors in a wrapper, in order."""
        found: list[torch.Tensor] = []
        for name, form in zip(self.names, self.inner, strict=True):
            part = getattr(value, name)
            found += [part] if form is None else form.parts(part)
        return found

    def build(self, parts: list[Any]) -> Any:
        """A wrapper of this form around plain tensors, which it takes off ``parts``."""
        held = {n: parts.pop(0) if f is None else f.build(parts) for n, f in zip(self.names, self.inner, strict=True)}
        size, stride = self.size, self.stride
        if self.like is not None:
            alike = held[self.names[self.like]]
            size, stride = alike.shape, alike.stride()
        elif issubclass(self.kind, NestedTensor):
            size = self.ragged(held)
        return self.kind.__tensor_unflatten__(held, self.context, size, stride)  # type: ignore[attr-defined]

    def ragged(self, held: dict[str, Any]) -> tuple[Any, ...]:
        """The size of a nested tensor, with a symbol for its ragged one where its offsets are fake: they keep it."""
        source, number = held.get("_lengths", held["_offsets"]), self.context["ragged_idx"]
        if not isinstance(source, FakeTensor):
            return self.size
        if source.nested_int_memo is None:
            known = self.size[number].node.nested_int()  # type: ignore[attr-defined]
            source.nested_int_memo = source.fake_mode.create_symbolic_nested_int(nt_tensor_id=known)
        return (*self.size[:number], source.nested_int_memo, *self.size[number + 1 :])


def _has_layout(part: torch.Tensor, size: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    return tuple(part.shape) == size and tuple(part.stride()) == stride


def is_wrapper(kind: type) -> bool:
    """Whether tensors of a class wrap others and say how."""
    return hasattr(kind, "__tensor_flatten__") and hasattr(kind, "__tensor_unflatten__")


def nested_attention(*args: Any, **kwargs: Any) -> torch.Tensor:
    """``scaled_dot_product_attention`` of nested tensors, who answer for it."""
    return jagged_torch_function(torch.nn.functional.scaled_dot_product_attention, *args, **kwargs)


@attrs.frozen(eq=False)
class Wrap:
    """The function of a node that makes a wrapper of plain tensors; gradients reach these whatever the modes are."""

    form: WrapperForm
    __name__: str = "wrap"

    def __call__(self, *parts: torch.Tensor) -> Any:
        with torch.enable_grad():
            return _Wrap.apply(self.form, *parts)


@attrs.frozen(eq=False)
class Unwrap:
    """The function of a node that gives the plain tensors in a wrapper."""

    form: WrapperForm
    __name__: str = "unwrap"

    def __call__(self, value: Any) -> tuple[torch.Tensor, ...]:
        with torch.enable_grad():
            return _Unwrap.apply(self.form, value)


class _Wrap(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, form: WrapperForm, *parts: torch.Tensor) -> Any:
        ctx.form = form
        return form.build([_without_history(part) for part in parts])

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> tuple[Any, ...]:
        if type(gradient) is not ctx.form.kind:
            raise UnsupportedError(
                f"a gradient of a {ctx.form.kind.__qualname__} that is a {type(gradient).__qualname__}"
            )
        return None, *(part if _is_differentiable(part) else None for part in ctx.form.parts(gradient))


class _Unwrap(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, form: WrapperForm, value: Any) -> tuple[torch.Tensor, ...]:
        ctx.form = form
        ctx.fixed = [None if _is_differentiable(part) else part for part in form.parts(value)]
        parts = [_without_history(part) for part in form.parts(value)]
        ctx.mark_non_differentiable(*(p for p in parts if not _is_differentiable(p)))
        return tuple(parts)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        parts = [given if own is None else own for given, own in zip(gradients, ctx.fixed, strict=True)]
        return None, ctx.form.build(parts)


def _is_differentiable(part: torch.Tensor) -> bool:
    return part.dtype.is_floating_point or part.dtype.is_complex


def _without_history(part: torch.Tensor) -> torch.Tensor:
    """A tensor for another wrapper; one that has no gradients is the same: nested tensors compare their offsets."""
    return part.detach() if _is_differentiable(part) else part

"""Tensors that wrap others (``__tensor_flatten__``), taken apart and put together again, with gradients either way."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import torch

from turret.errors import UnsupportedError
from turret.graph.distributed_tensors import Mesh, Spread, is_in_flight, is_mesh
from turret.hooks.signature import GraphSignature
from turret.torch_compat.fakes import (
    FakeTensor,
    NestedTensor,
    jagged_torch_function,
    lazily_traced_sizes,
    make_wrapper_subclass,
)
from turret.torch_compat.function_overrides import disabled_torch_function
from turret.torch_compat.trees import pytree


@attrs.frozen
class WrapperForm:
    """What a wrapper is beside the tensors in it: its class, their names, what it says of itself, and its layout.

    ``spread``: over which processes it is spread, of one that is (a ``DTensor``).
    """

    kind: type
    names: tuple[str, ...]
    context: Any = attrs.field(hash=False)
    size: tuple[int, ...] = attrs.field(eq=False)
    stride: tuple[int, ...] = attrs.field(eq=False)
    requires_grad: bool
    inner: tuple[WrapperForm | Mesh | None, ...]
    """The forms of tensors in it that are wrappers, too, and meshes in it; None for plain tensors."""
    spread: Spread | None = None
    like: int | None = None
    """The number of a plain tensor in it that has its layout; a wrapper made of other tensors has theirs."""
    own_layout: tuple[tuple[int, ...], ...] | None = None
    """Size and stride that no tensor in it tells."""

    @classmethod
    def of(cls, value: Any) -> WrapperForm:
        """The form of a wrapper.  ``UnsupportedError`` for one that holds what is no strided tensor."""
        names, context = value.__tensor_flatten__()
        inner = tuple(cls._inner(value, getattr(value, name)) for name in names)
        layout, spread = (tuple(value.shape), tuple(value.stride())), Spread.of(value)
        like = None
        if spread is None and not is_in_flight(type(value)):
            parts = enumerate(zip(names, inner, strict=True))
            like = next((n for n, (m, f) in parts if f is None and _has_layout(getattr(value, m), *layout)), None)
        own = None if like is not None or isinstance(value, NestedTensor) else layout
        return cls(type(value), tuple(names), context, *layout, value.requires_grad, inner, spread, like, own)

    @classmethod
    def _inner(cls, value: Any, part: Any) -> WrapperForm | Mesh | None:
        if is_wrapper(type(part)):
            return cls.of(part)
        if is_mesh(part):
            return Mesh(part)
        if not isinstance(part, torch.Tensor) or part.layout is not torch.strided:
            raise UnsupportedError(f"a {type(value).__qualname__} that holds a {type(part).__qualname__}")
        return None

    def fits(self, value: Any) -> bool:
        """Whether a value is a wrapper of this form."""
        if type(value) is not self.kind or not isinstance(value, torch.Tensor):
            return False
        if value.requires_grad is not self.requires_grad:
            return False
        flatten: Any = getattr(value, "__tensor_flatten__")  # noqa: B009 - tensors of such classes have it
        names, context = flatten()
        if tuple(names) != self.names or context != self.context or not self._has_its_layout(value):
            return False
        held = zip(self.names, self.inner, strict=True)
        return all(_fits(form, getattr(value, name)) for name, form in held)

    def _has_its_layout(self, value: Any) -> bool:
        if self.like is not None:
            return _has_layout(getattr(value, self.names[self.like]), tuple(value.shape), tuple(value.stride()))
        if self.own_layout is None:
            return len(value.shape) == len(self.size)
        return _has_layout(value, *self.own_layout)

    def count(self) -> int:
        """Plain tensors in it."""
        return sum(f.count() if isinstance(f, WrapperForm) else f is None for f in self.inner)

    def is_static(self) -> bool:
        """Whether a wrapper of this form can be made of other tensors than those that it was seen with."""
        known = all(type(s) is int for s in (*self.size, *self.stride)) or self.like is not None
        told = all(isinstance(v, _PLAIN) for v in pytree.tree_leaves(self.context))
        return known and told and all(not isinstance(f, WrapperForm) or f.is_static() for f in self.inner)

    def is_bound(self) -> bool:
        """Whether there is more to it than tensors: processes, an operation in flight, sizes that vary by row."""
        if self.spread is not None or is_in_flight(self.kind) or issubclass(self.kind, NestedTensor):
            return True
        return any(isinstance(f, Mesh) or (isinstance(f, WrapperForm) and f.is_bound()) for f in self.inner)

    def parts(self, value: Any) -> list[torch.Tensor]:
        """The plain tensors in a wrapper, in order."""
        found: list[torch.Tensor] = []
        for name, form in zip(self.names, self.inner, strict=True):
            if isinstance(form, WrapperForm):
                found += form.parts(getattr(value, name))
            elif form is None:
                found.append(getattr(value, name))
        return found

    def build(self, parts: list[Any]) -> Any:
        """A wrapper of this form around plain tensors, which it takes off ``parts``."""
        held: dict[str, Any] = {}
        for name, form in zip(self.names, self.inner, strict=True):
            if isinstance(form, Mesh):
                held[name] = form.mesh
            else:
                held[name] = parts.pop(0) if form is None else form.build(parts)
        size, stride = self.size, self.stride
        if self.like is not None:
            alike = held[self.names[self.like]]
            size, stride = alike.shape, alike.stride()
        elif issubclass(self.kind, NestedTensor):
            # A tracer of torch's does not know the ragged size, which nothing but the new tensor's layout is made of.
            with lazily_traced_sizes():
                return self._unflatten(held, self._ragged(held), stride)
        return self._unflatten(held, size, stride)

    def _unflatten(self, held: dict[str, Any], size: Any, stride: Any) -> Any:
        return self.kind.__tensor_unflatten__(held, self.context, size, stride)  # type: ignore[attr-defined]

    def _ragged(self, held: dict[str, Any]) -> tuple[Any, ...]:
        """The size of a nested tensor, with a symbol for its ragged one where its offsets are fake: they keep it."""
        source, number = held.get("_lengths", held["_offsets"]), self.context["ragged_idx"]
        if not isinstance(source, FakeTensor):
            return self.size
        if source.nested_int_memo is None:
            known = self.size[number].node.nested_int()
            source.nested_int_memo = source.fake_mode.create_symbolic_nested_int(nt_tensor_id=known)
        return (*self.size[:number], source.nested_int_memo, *self.size[number + 1 :])

    def is_alike(self, other: WrapperForm | Mesh | None) -> bool:
        """Whether wrappers of another form say the same of as many tensors, whatever their layouts are."""
        if not isinstance(other, WrapperForm) or (self.kind, self.names) != (other.kind, other.names):
            return False
        if self.context != other.context:
            return False
        pairs = zip(self.inner, other.inner, strict=True)
        return all(a.is_alike(b) if isinstance(a, WrapperForm) else a == b for a, b in pairs)

    def gradient_parts(self, gradient: Any) -> list[Any]:
        """The gradients of the plain tensors in a wrapper of this form, of its own.

        One of another form goes as a whole with the first of them.
        """
        if is_in_flight(self.kind):
            return [gradient.wait() if is_in_flight(type(gradient)) else gradient]
        if self.spread is None and not issubclass(self.kind, NestedTensor):
            own = WrapperForm.of(gradient) if is_wrapper(type(gradient)) else None
            if not self.is_alike(own):
                return [WholeGradient(gradient), *[None] * (self.count() - 1)]
        elif type(gradient) is not self.kind:
            raise UnsupportedError(f"a gradient of a {self.kind.__qualname__} that is a {type(gradient).__qualname__}")
        return self.parts(gradient if self.spread is None else self.spread.place_gradient(gradient))

    def build_gradient(self, parts: list[Any]) -> Any:
        """A gradient of a wrapper of this form around the plain tensors that ``gradient_parts`` gives."""
        if self.spread is None and not is_in_flight(self.kind):
            return self.build(parts)
        (local,) = parts
        return local if self.spread is None else self.spread.gradient(local, self.size, self.stride)


@attrs.frozen
class TangentForm:
    """What the gradient of a result is that is a wrapper where the result is none, or one of another form: its form,
    and the layouts of the plain tensors in it as a backward takes them."""

    form: WrapperForm
    layouts: tuple[tuple[tuple[int, ...], tuple[int, ...], torch.dtype, torch.device], ...]

    @classmethod
    def of(cls, gradient: torch.Tensor) -> TangentForm | None:
        """The form of a gradient; None for one whose tensors do not tell all of it."""
        try:
            form = WrapperForm.of(gradient)
        except UnsupportedError:
            return None
        parts = form.parts(gradient)
        if not form.is_static() or form.is_bound() or any(type(part) is not torch.Tensor for part in parts):
            return None
        return cls(form, tuple((tuple(p.shape), _dense_strides(p), p.dtype, p.device) for p in parts))

    def parts(self, gradient: torch.Tensor) -> list[torch.Tensor]:
        """The plain tensors in a gradient of this form, in these layouts."""
        return [
            part if part.stride() == stride and not part.is_neg() and not part.is_conj()
            else torch.empty_strided(shape, stride, dtype=dtype, device=device).copy_(part)
            for part, (shape, stride, dtype, device) in zip(self.form.parts(gradient), self.layouts, strict=True)
        ]  # fmt: skip


def _dense_strides(part: torch.Tensor) -> tuple[int, ...]:
    from turret.graph.fakes.sizes import contiguous_strides, is_dense  # a warm start has no use for it

    return part.stride() if is_dense(part.shape, part.stride()) else contiguous_strides(part.shape)


def _has_layout(part: torch.Tensor, size: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    return tuple(part.shape) == size and tuple(part.stride()) == stride


def _fits(form: WrapperForm | Mesh | None, part: Any) -> bool:
    if isinstance(form, WrapperForm):
        return form.fits(part)
    if isinstance(form, Mesh):
        return form.mesh is part or (is_mesh(part) and form == Mesh(part))
    return isinstance(part, torch.Tensor) and not is_wrapper(type(part)) and part.layout is torch.strided


def parts_of(value: torch.Tensor) -> list[torch.Tensor]:
    """The plain tensors in a wrapper; of another tensor itself."""
    return WrapperForm.of(value).parts(value) if is_wrapper(type(value)) else [value]


def is_wrapper(kind: type) -> bool:
    """Whether tensors of a class wrap others and say how."""
    return hasattr(kind, "__tensor_flatten__") and hasattr(kind, "__tensor_unflatten__")


def nested_attention(*args: Any, **kwargs: Any) -> torch.Tensor:
    """``scaled_dot_product_attention`` of nested tensors, who answer for it."""
    made: torch.Tensor = jagged_torch_function(torch.nn.functional.scaled_dot_product_attention, *args, **kwargs)
    return made


@attrs.frozen(eq=False)
class Wrap:
    """The function of a node that makes a wrapper of plain tensors; gradients reach these whatever the modes are."""

    form: WrapperForm
    __name__: str = "wrap"

    def __call__(self, *parts: torch.Tensor) -> Any:
        with torch.enable_grad():
            return _Wrap.apply(self.form, *parts)  # type: ignore[no-untyped-call]


@attrs.frozen(eq=False)
class Unwrap:
    """The function of a node that gives the plain tensors in a wrapper."""

    form: WrapperForm
    __name__: str = "unwrap"

    def __call__(self, value: Any) -> tuple[torch.Tensor, ...]:
        with torch.enable_grad():
            made: tuple[torch.Tensor, ...] = _Unwrap.apply(self.form, value)  # type: ignore[no-untyped-call]
            return made


class WholeGradient(torch.Tensor):
    """The gradient of a wrapper whose form is not the wrapper's, on the way of one of the tensors in it."""

    __torch_function__ = disabled_torch_function  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, gradient: torch.Tensor) -> WholeGradient:
        layout: Any = {"strides": gradient.stride(), "dtype": gradient.dtype, "device": gradient.device}
        made: WholeGradient = make_wrapper_subclass(cls, gradient.shape, **layout)
        return made

    def __init__(self, gradient: torch.Tensor) -> None:
        self.gradient = gradient

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["gradient"], None

    @classmethod
    def __tensor_unflatten__(cls, inner: dict[str, Any], context: None, size: Any, stride: Any) -> WholeGradient:
        return cls(inner["gradient"])

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func in _PASSED_ON:
            return cls(args[0].gradient)
        raise UnsupportedError("a gradient of another class than its wrapper, and one of a tensor in it")


_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.layout, type)
_PASSED_ON = frozenset((torch.ops.aten.detach.default, torch.ops.aten.alias.default, torch.ops.aten.view.default))


class _Wrap(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, form: WrapperForm, *parts: torch.Tensor) -> Any:
        ctx.form = form
        ctx.set_materialize_grads(False)
        return form.build([_without_history(part) for part in parts])

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> tuple[Any, ...]:
        if gradient is None:
            return (None,) * len(ctx.needs_input_grad)
        parts = ctx.form.gradient_parts(gradient)
        return None, *(p if p is not None and _is_differentiable(p) else None for p in parts)


class _Unwrap(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, form: WrapperForm, value: Any) -> tuple[torch.Tensor, ...]:
        ctx.form = form
        ctx.wrapper = weakref.ref(value)
        ctx.set_materialize_grads(False)
        ctx.fixed = [None if _is_differentiable(part) else part for part in form.parts(value)]
        ctx.layouts = [(part.shape, part.dtype, part.device) for part in form.parts(value)]
        parts = [_without_history(part) for part in form.parts(value)]
        ctx.mark_non_differentiable(*(p for p in parts if not _is_differentiable(p)))
        return tuple(parts)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[Any, ...]:
        given = [gradient if own is None else None for gradient, own in zip(gradients, ctx.fixed, strict=True)]
        if all(gradient is None for gradient in given):
            return None, None
        whole = next((gradient for gradient in given if type(gradient) is WholeGradient), None)
        if whole is not None:
            if sum(gradient is not None for gradient in given) > 1:
                raise UnsupportedError(f"a gradient of another class than {ctx.form.kind.__qualname__}, and one of it")
            return None, whole.gradient
        parts = [own if gradient is None else gradient for gradient, own in zip(given, ctx.fixed, strict=True)]
        # The gradient of a wrapper is a whole one, also where not all of its tensors were used.
        made = (_zeros(*layout) if p is None else p for p, layout in zip(parts, ctx.layouts, strict=True))
        return None, ctx.form.build_gradient(list(made))


def part_behind(node: Any, number: int) -> torch.Tensor | None:
    """The tensor in a wrapper that came first out of a node of autograd which took the wrapper apart, as its result
    ``number``; None for other nodes, and where the wrapper is gone."""
    if type(node) is not _Unwrap._backward_cls:
        return None
    ((behind, _),) = node.next_functions
    value = getattr(behind, "variable", None)
    value = node.wrapper() if value is None else value
    if value is None or not node.form.fits(value):
        return None
    return Unwrap(node.form)(value)[number]


def _zeros(shape: Any, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype, device=device)


def _is_differentiable(part: torch.Tensor) -> bool:
    return part.dtype.is_floating_point or part.dtype.is_complex


def _without_history(part: torch.Tensor) -> torch.Tensor:
    """A tensor for another wrapper; one that has no gradients is the same: nested tensors compare their offsets."""
    return part.detach() if _is_differentiable(part) else part


def assembler(signature: GraphSignature) -> Callable[[Sequence[Any]], list[Any]]:
    """``assemble(results)``: one gradient for each input, then what is behind the parts of wrappers."""
    count, wrapped = len(signature.inputs), signature.wrapped

    def assemble(results: Sequence[Any]) -> list[Any]:
        made, left = list(results[:count]), list(results[count:])
        for gradient in wrapped:
            further = gradient.form.count() - 1
            parts, left = [made[gradient.input], *left[:further]], left[further:]
            made[gradient.input] = gradient.form.build(parts)
        return [*made, *left]

    return assemble

"""Tensors that wrap others, in the graph: made there of the plain tensors in them, which come in and go out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import fx

from turret.frames.class_members import find_in_mro
from turret.frames.guards import TensorProperties
from turret.frames.sources import AttrSource, BoundSource, CallSource, ItemSource, Source, WeakSource
from turret.graph.distributed_tensors import Mesh, is_distributed, is_in_flight
from turret.graph.tensor_versions import version_of
from turret.graph.wrapper_tensors import Unwrap, Wrap, WrapperForm, is_wrapper
from turret.plugins.capture.errors import NOWHERE, Unsupported
from turret.plugins.capture.python import lookups
from turret.plugins.capture.values.base import Constant, MethodOfValue, Rebuilder, Tracer, Value
from turret.plugins.capture.values.sequences import Tuple
from turret.plugins.capture.values.tensors import Tensor
from turret.torch_compat.dispatch import no_dispatch
from turret.torch_compat.fakes import NestedTensor
from turret.torch_compat.function_overrides import disabled_torch_function


class WrapperTensor(Tensor):
    """A tensor of the graph that wraps others."""

    def __init__(
        self, node: fx.Node, fake: torch.Tensor, source: Source | None = None, real: torch.Tensor | None = None
    ) -> None:
        super().__init__(node, fake, source, real)
        self.form = WrapperForm.of(fake)
        self.version = version_of(fake)
        self.known_parts: dict[tuple[str, int], Value] = {}
        self.given: dict[str, Value] = {}
        """Attributes that the program gave one that it made in compiled code."""

    def type(self) -> type:
        return self.form.kind

    def get_attr(self, t: Tracer, name: str) -> Value:
        if (
            name == "is_leaf" and self.real is not None and self.source is not None
        ):  # the one in the graph is made there
            leaf = lookups.is_leaf(self.real)
            t.guards.take("CALL", self.source, (lookups.is_leaf, leaf))
            return Constant(leaf)
        return super().get_attr(t, name)

    def parts(self, t: Tracer) -> list[Value]:
        """The plain tensors in it, as values."""
        known = [t.recorder.by_fake.get(id(part)) for part in self.form.parts(self.fake)]
        if all(known):
            return known  # type: ignore[return-value]
        found = t.recorder.call_region(Unwrap(self.form), [self.node]).realize()
        items = found.items if isinstance(found, Tuple) else [found]
        return [one or other for one, other in zip(known, items, strict=True)]

    def held_once(self, t: Tracer, name: str) -> Value:
        """A tensor in it: one and the same as long as nobody changes it."""
        key = name, version_of(self.fake)
        if key not in self.known_parts or t.recorder.open_regions:
            self.known_parts[key] = self.held(t, name)
        return self.known_parts[key]

    def held(self, t: Tracer, name: str) -> Value:
        """A tensor in it, which has a history of its own, and not that of the wrapper."""
        number = self.form.names.index(name)
        inner = self.form.inner[number]
        if isinstance(inner, Mesh) or self.form.spread is not None or is_in_flight(self.form.kind):
            raise Unsupported(f"attribute {name!r} of a {self.form.kind.__qualname__}")
        if inner is None and self.fake.requires_grad and (own := self.as_it_was(t, name)) is not None:
            return own
        parts = self.parts(t)
        if self.fake.requires_grad:
            parts = [t.recorder.call_method("detach", [part], {}) for part in parts]
        start = sum(map(_count, self.form.inner[:number]))
        if inner is None:
            return parts[start]
        nodes = [part.realize().node for part in parts[start : start + inner.count()]]  # type: ignore[attr-defined]
        return t.recorder.call_region(Wrap(inner), nodes)

    def as_it_was(self, t: Tracer, name: str) -> Value | None:
        """A tensor in a wrapper that existed before, as it was found there; None once that was changed."""
        if self.real is None or self.source is None or version_of(self.fake) != self.version:
            return None
        return t.wrap(getattr(self.real, name), AttrSource(self.source, name))

    def own_attribute(self, t: Tracer, name: str) -> Value:
        if name in self.given and version_of(self.fake) == self.version:
            return self.given[name]
        if name in self.form.names:
            return self.held_once(t, name)
        if self.real is None and name in self.fake.__dict__:
            found = self.fake.__dict__[name]  # what the class made of contexts, which are guarded
            if type(found) not in _PLAIN:
                raise Unsupported(f"attribute {name!r} of a {self.form.kind.__qualname__}")
            return t.wrap_known(found)
        raw = find_in_mro(self.form.kind, name)[1]
        if self.form.kind is NestedTensor and not hasattr(torch.Tensor, name) and raw is not None:
            if isinstance(raw, property):
                return t.recorder.call(getattr, [self, Constant(name)], {})
            return MethodOfValue(self, name)
        return super().own_attribute(t, name)

    def check(self) -> None:
        """Refuse changes that the object itself would show, of which the graph has the parts."""
        real = self.real
        if real is None:
            return
        if tuple(self.fake.shape) != self.form.size or tuple(self.fake.stride()) != self.form.stride:
            raise Unsupported(f"a change of the shape of {self.describe()}", step=NOWHERE)
        if version_of(self.fake) != self.version and self.form.requires_grad:
            raise Unsupported(f"a change of {self.describe()}, which requires gradients", step=NOWHERE)
        if self.new_data is not None:
            raise Unsupported(f"a change of the data of {self.describe()}", step=NOWHERE)

    def rebuild(self, r: Rebuilder) -> str:
        check_spread(self.form)
        parts = "".join(r.load(part) + "," for part in self.parts(r.t))
        name = r.remember(self, r.assign(f"{r.constant(Wrap(self.form))}(*({parts}))"))
        for attribute, value in self.stores.items():
            r.line(f"{name}.{attribute} = {r.load(value)}")
        return name


def _count(form: WrapperForm | Mesh | None) -> int:
    """Plain tensors in a part of a wrapper."""
    return form.count() if isinstance(form, WrapperForm) else int(form is None)


def check_spread(form: WrapperForm) -> None:
    """Refuse placements that hold more than they say (the mask of an embedding), which only their own object has."""
    if form.spread is not None and not form.spread.is_plain:
        raise Unsupported(f"a tensor with the placements {form.spread.placements}, outside of the graph")


_PLAIN = (bool, int, float, str, type(None), torch.dtype, torch.device)


def is_followed(kind: type) -> bool:
    """Whether capture follows wrappers of a class: torch's functions ask nobody above its operators."""
    if kind is NestedTensor:
        return True  # which answers for torch's functions itself, by others of torch's
    answer = find_in_mro(kind, "__torch_function__")[1]
    ordinary = answer in (disabled_torch_function, torch.Tensor.__dict__["__torch_function__"])
    foreign = kind.__module__.startswith(("torch.nested", "torch.distributed", "torch._subclasses"))
    return is_wrapper(kind) and ordinary and (not foreign or is_distributed(kind) or is_in_flight(kind))


def is_nested(value: Value) -> bool:
    """Whether a value is a nested tensor."""
    return isinstance(value, WrapperTensor) and value.form.kind is NestedTensor


def wrapper_value(t: Tracer, object: Any, source: Source) -> Value | None:
    """A wrapper that existed before: the tensors in it are inputs.  None for one that capture does not follow."""
    kind = type(object)
    if not is_followed(kind):
        return None
    try:
        form = WrapperForm.of(object)
    except Exception as error:  # code of the program, of an object that may be half made
        raise Unsupported(f"taking a {kind.__qualname__} apart: {error}") from error
    if not lookups.IsOfForm(form)(object):
        raise Unsupported(f"a {kind.__qualname__} whose context cannot be compared")
    check_spread(form)
    alone = form.spread is None and not is_in_flight(kind)
    if alone:
        t.guards.take("TYPE", source, kind)
        t.guards.take("CALL", source, (lookups.IsOfForm(form), True))
    source, is_static = (source, False) if alone else _guarded(t, object, form, source)
    t.blocks.refuse(f"a {kind.__qualname__}")
    t.provenance.bound_to_process(f"a {kind.__qualname__}, whose code the graph does not tell")
    places = CallSource(source, lookups.PartsOf(form))
    nodes = []
    with no_dispatch():
        parts = lookups.PartsOf(form)(object)
    for number, part in enumerate(parts):
        place = ItemSource(places, number)
        if alone and not part.requires_grad:
            value = t.wrap(part, place)  # two nested tensors may have the same offsets
        else:
            value = t.recorder.tensor_input(part, place, is_part=not alone, is_static=is_static)
        assert isinstance(value, Tensor)
        nodes.append(value.node)
    made = t.recorder.call_region(Wrap(form), nodes)
    assert isinstance(made, WrapperTensor)
    made.source, made.real = source, object
    t.overrides.inputs.append(made)
    return made


def _guarded(t: Tracer, object: Any, form: WrapperForm, source: Source) -> tuple[Source, bool]:
    """Guard what a wrapper and the tensors in it are; where it is found from then on, and whether it is the same one.

    A parameter that is spread over processes keeps the object that says how, and its tensor: that is seen without
    calling code of its class.
    """
    same = isinstance(object, torch.nn.Parameter) and not t.policy.fresh_parameter(source, object)
    if same and not isinstance(source, BoundSource):
        held = WeakSource(str(source), object)
        t.guards.take("IS", source, others=(held,))
        source = held
    for place, part in _parts_in_place(object, form, source):
        t.guards.take("TENSOR", place, TensorProperties.of(part))
    if not (same and form.spread is not None):
        t.guards.take("TENSOR", source, TensorProperties.of(object))
        t.guards.take("CALL", source, (lookups.IsOfForm(form), True))
        return source, False
    t.guards.take("ID", AttrSource(source, "_spec"), object._spec)
    t.guards.take("EQUALS", AttrSource(source, "requires_grad"), object.requires_grad)
    for place, part in _parts_in_place(object, form, source):
        t.guards.take("IS", place, others=(WeakSource(str(place), part),))
    return source, True


def _parts_in_place(object: Any, form: WrapperForm, source: Source) -> Iterator[tuple[Source, torch.Tensor]]:
    """The plain tensors in a wrapper, and where they are."""
    for name, inner in zip(form.names, form.inner, strict=True):
        place = AttrSource(source, name)
        if isinstance(inner, WrapperForm):
            yield from _parts_in_place(getattr(object, name), inner, place)
        elif inner is None:
            yield place, getattr(object, name)

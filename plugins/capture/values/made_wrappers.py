"""Wrappers made in compiled code: objects, while the program's ``__new__`` and ``__init__`` fill them, then tensors."""

from __future__ import annotations

import dataclasses
from typing import Any

import attrs
import torch

from turret.graph.distributed_tensors import is_distributed, is_in_flight
from turret.graph.wrapper_tensors import Wrap, WrapperForm
from turret.plugins.capture.errors import NotConstant, Unsupported
from turret.plugins.capture.values.base import Constant, Rebuilder, Tracer, Value
from turret.plugins.capture.values.objects import DELETED, Instance
from turret.plugins.capture.values.sequences import NamedTuple, Sequence, folded
from turret.plugins.capture.values.symbols import Symbolic
from turret.plugins.capture.values.tensors import Tensor
from turret.plugins.capture.values.wrappers import WrapperTensor, is_followed
from turret.torch_compat.fakes import NestedTensor
from turret.torch_compat.programs.functions import make_wrapper_subclass


def is_made_here(kind: type) -> bool:
    """Whether tensors of a class are made as the class itself says."""
    return is_followed(kind) and not (kind is NestedTensor or is_distributed(kind) or is_in_flight(kind))


class HalfMade(Instance):
    """A wrapper without its tensors yet; ``size`` and ``options`` are what ``_make_wrapper_subclass`` was given."""

    def __init__(self, kind: type, size: Value, options: dict[str, Value]) -> None:
        super().__init__(kind)
        self.size, self.options = size, options

    def generic_attr(self, t: Tracer, name: str) -> Value:
        if name == "shape":
            return self.size
        if name in ("dtype", "device", "layout", "requires_grad") and name in self.options:
            return self.options[name]
        if hasattr(torch.Tensor, name) and name not in self.stores and name not in vars(self.kind):
            raise Unsupported(f"{name!r} of a {self.kind.__qualname__} that is not made yet")
        return super().generic_attr(t, name)

    def complete(self, t: Tracer) -> Value:
        """The tensor of the graph that it is from now on."""
        form = self.form(t)
        nodes, held = [], {}
        for name in form.names:
            value = self.stores.get(name)
            if value is None or value is DELETED or not isinstance(part := value.realize(), Tensor):
                raise Unsupported(f"a {self.kind.__qualname__} whose part {name!r} is no tensor of its own")
            held[name] = part
            if part.fake.requires_grad:
                part = t.recorder.call_method("detach", [part], {}).realize()
            parts = part.parts(t) if isinstance(part, WrapperTensor) else [part]
            nodes += [t.recorder.argument(v)[0] for v in parts]
        t.blocks.refuse(f"a {self.kind.__qualname__}")
        t.provenance.bound_to_process(f"a {self.kind.__qualname__}, whose code the graph does not tell")
        made = t.recorder.call_region(Wrap(attrs.evolve(form, requires_grad=False)), nodes)
        if form.requires_grad:
            made = t.recorder.call_method("requires_grad_", [made], {})
        assert isinstance(made, WrapperTensor)
        made.given = {**{k: v for k, v in self.stores.items() if v is not DELETED}, **held}
        return made

    def form(self, t: Tracer) -> WrapperForm:
        """What the wrapper says of itself, asked of one that holds fake tensors."""
        size = t.recorder.argument(self.size)[1]
        options = {k: t.recorder.argument(v)[1] for k, v in self.options.items()}
        try:
            example = make_wrapper_subclass(self.kind, size, **options)
            for name, value in self.stores.items():
                if value is not DELETED:
                    setattr(example, name, _plain(value))
            return WrapperForm.of(example)
        except (Unsupported, NotConstant):
            raise
        except Exception as error:  # code of the program
            raise Unsupported(f"making a {self.kind.__qualname__} in compiled code: {error}") from error

    def rebuild(self, r: Rebuilder) -> str:
        raise Unsupported(f"a {self.kind.__qualname__} that is half made")


def _plain(value: Value) -> Any:
    """An attribute as the object that it is, of fake tensors."""
    value = value.realize()
    if isinstance(value, Tensor):
        return value.fake
    if isinstance(value, Symbolic):
        return value.fixed()
    if isinstance(value, Sequence):
        items: list[Value] = [Constant(_plain(v)) for v in value.items]
        return (NamedTuple(items, value.kind) if isinstance(value, NamedTuple) else value.like(items)).folded()
    if isinstance(value, Instance) and value.object is None and dataclasses.is_dataclass(value.kind):
        made = object.__new__(value.kind)
        for name, content in value.stores.items():
            object.__setattr__(made, name, _plain(content))
        return made
    try:
        return value.object if isinstance(value, Instance) and value.object is not None else folded(value)
    except NotConstant:
        raise Unsupported(f"{value.describe()} as an attribute of a wrapper made in compiled code") from None


def completed(t: Tracer, made: Value) -> Value:
    """What a call of a class gives: of a wrapper, the tensor."""
    return made.complete(t) if isinstance(made, HalfMade) else made


def options_of(t: Tracer, named: dict[str, Value]) -> dict[str, Value]:
    """Options of ``_make_wrapper_subclass`` that say how the wrapper is laid out."""
    refused = [k for k in named if k not in _OPTIONS and not t.is_none(named[k])]
    if refused:
        raise Unsupported(f"Tensor._make_wrapper_subclass with {', '.join(refused)}")
    return {k: v for k, v in named.items() if k in _OPTIONS}


_OPTIONS = frozenset({"strides", "storage_offset", "dtype", "layout", "device", "requires_grad", "memory_format"})

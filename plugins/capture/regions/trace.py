"""Calls of blocks, and what following one of them recorded."""

from __future__ import annotations

from typing import Any

import attrs
import torch
from torch import fx

from turret.frames.guards import Guard
from turret.frames.sources import BoundSource, Source
from turret.plugins.capture.values.base import Constant, Value
from turret.plugins.capture.values.functions import Known
from turret.plugins.capture.values.modules import Module
from turret.plugins.capture.values.structures import Structure
from turret.plugins.capture.values.tensors import Tensor


@attrs.define(eq=False)
class BlockCall:
    """A call of a block: what it is a call of, and its arguments, modules among them."""

    key: Any
    name: str
    leaves: list[Value]
    structure: Structure
    state: tuple

    def tensors(self) -> list[Tensor]:
        return [v for v in self.leaves if isinstance(v, Tensor)]


@attrs.define(eq=False)
class Trace:
    """What following one call recorded."""

    call: BlockCall
    guards: dict[Guard, None] = attrs.field(factory=dict)
    made: set[int] = attrs.field(factory=set)
    """Values of objects that were looked at for the first time, by id."""
    refused: str = ""
    nodes: list[fx.Node] = attrs.field(factory=list)
    inputs: dict[fx.Node, Source] = attrs.field(factory=dict)
    """Inputs of the graph that the nodes use, arguments apart."""
    results: list[Value] = attrs.field(factory=list)
    result_structure: Structure | None = None
    tags: frozenset[str] = frozenset()
    modules: set[int] = attrs.field(factory=set)
    of_one: bool = False
    """Whether it is repeated for the same module alone."""

    def note_guard(self, guard: Guard) -> None:
        self.guards[guard] = None

    def note_known(self, known: Value, source: Source) -> None:
        """An object was met again.  What was looked at in it before this call is not on record."""
        if self.of_one or id(known) in self.made or isinstance(known, (Module, Known, Tensor, Constant)):
            return
        root = (known.source or source).root()
        if isinstance(root, BoundSource) and id(root.value) in self.modules:
            self.refused = f"{source} was looked at before"


def properties(fake: torch.Tensor) -> tuple:
    """What following a call may find out about a tensor."""
    layout = (*fake.shape, "strides", *fake.stride(), "offset", fake.storage_offset())
    words = tuple(v if isinstance(v, (int, str)) else str(v.node.expr) for v in layout)
    state = (fake.requires_grad, fake.is_leaf, fake.is_conj(), fake.is_neg(), fake._is_view())
    return fake.dtype, fake.device, state, words

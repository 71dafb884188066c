"""What one side of an ``if`` alone has gradients for is computed within it.

Where the other side runs, eager comes to no gradient at all.  The call of a ``cond`` gives zeros for it, and what these
are multiplied by on their way to the leaves may be infinite or no number.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import fx

from turret.plugins.capture.errors import Unsupported
from turret.plugins.capture.record.graph import Subgraph
from turret.plugins.capture.values.base import Tracer
from turret.torch_compat.dispatch import TorchDispatchMode
from turret.torch_compat.operators.ops import HigherOrderOperator

_MOST = 100
"""Calls that are made again in a side."""


class _Impure(Exception):
    """A call that is not to be made again."""


class _Pure(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
        if func._schema.is_mutable or torch.Tag.nondeterministic_seeded in func.tags:
            raise _Impure
        return func(*args, **(kwargs or {}))


class Sinker:
    """Moves calls from the graphs around into a region; ``common``: nodes of autograd that have gradients anyway."""

    def __init__(self, t: Tracer, region: Subgraph, common: Collection[Any]) -> None:
        self.t, self.region, self.common = t, region, common
        self.copies: dict[fx.Node, fx.Node] = {}
        self.outer = {inner: node for r in t.recorder.open_regions for node, inner in r.lifted.items()}
        self.first = next(n for n in region.graph.nodes if n.op != "placeholder")

    def sink(self, node: fx.Node) -> None:
        """Have the region compute what it takes as an input."""
        with self.t.recorder.within(self.region):
            made = self.copied(node)
        self.region.drop(node, made)

    def copied(self, node: fx.Node) -> fx.Node:
        """The node of the region that stands for one of the graphs around: a copy, or an input."""
        node = self.resolved(node)
        found = self.copies.get(node)
        if found is None:
            given = self.is_given(node)
            self.copies[node] = found = self.t.recorder.node_here(node) if given else self.copy(node)
        return found

    def resolved(self, node: fx.Node) -> fx.Node:
        """The node itself, of an input of the regions around the one that it stands for."""
        while node in self.outer and node.graph is not self.region.graph:
            node = self.outer[node]
        return node

    def is_given(self, node: fx.Node) -> bool:
        """Whether a node is an input of the region as it is: no gradients flow on from it that would not anyway."""
        fake = node.meta.get("example_value")
        if not isinstance(fake, torch.Tensor):
            return not isinstance(fake, (tuple, list))
        return fake.grad_fn is None or fake.grad_fn in self.common

    def copy(self, node: fx.Node) -> fx.Node:
        if len(self.copies) > _MOST or not self.is_pure(node):
            raise Unsupported(
                f"a branch on data of which one side alone has gradients for {node.name}",
                "compute it in the side that uses it",
            )
        for used in node.all_input_nodes:
            self.copied(used)
        with self.region.graph.inserting_before(self.first):
            made = self.region.graph.node_copy(node, lambda used: self.copies[self.resolved(used)])
        made.meta = dict(node.meta)
        return made

    def is_pure(self, node: fx.Node) -> bool:
        """Whether a call gives the same once more, and does nothing else; nor have its operands changed since."""
        if node.op not in ("call_function", "call_method") or any("hook" in str(u.target) for u in node.users):
            return False
        values = [n.meta.get("example_value") for n in (node, *node.all_input_nodes)]
        recorder = self.t.recorder
        if len(recorder.retained) or any(isinstance(v, torch.Tensor) and recorder.versions.of(v) for v in values):
            return False
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda n: n.meta["example_value"])
        try:
            with torch.no_grad(), recorder.symbolic_kernels(), _Pure():
                if node.op == "call_method":
                    getattr(args[0], str(node.target))(*args[1:], **kwargs)
                elif isinstance(node.target, HigherOrderOperator):
                    return False
                else:
                    node.target(*args, **kwargs)  # type: ignore[operator]
        except Exception:
            return False
        return True

"""Leaves of autograd that compiled code makes: parameters, and tensors that were told to require gradients.

One that the program gets hold of, or that a result with gradients depends on, becomes an input of the graph: made anew,
and empty, in front of each call, and filled by the graph at the point where it became a leaf.  So gradients reach it as
they do in eager, whoever asks for them, and whenever.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import attrs
import torch
from torch import fx

from turret.frames.sources import BoundSource, CallSource
from turret.graph.fakes.sizes import is_apart
from turret.graph.wrapper_tensors import Unwrap, is_wrapper
from turret.plugins.capture.errors import NOWHERE, Unsupported
from turret.plugins.capture.record.graph import GraphInput
from turret.plugins.capture.values.base import Tracer
from turret.torch_compat.autograd import is_known_leaf
from turret.torch_compat.trees import pytree


@attrs.define(eq=False)
class Leaf:
    """A tensor to be made: its layout, and whether it is a parameter."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    is_parameter: bool


def new_leaf(leaf: Leaf) -> torch.Tensor:
    """An empty tensor of a leaf's layout that requires gradients."""
    made = torch.empty_strided(leaf.shape, leaf.stride, dtype=leaf.dtype, device=leaf.device)
    return torch.nn.Parameter(made) if leaf.is_parameter else made.requires_grad_()


@attrs.define(eq=False)
class _LeafOfArgument:
    """Makes a leaf in the memory of an argument; an object for each leaf, for sources that are equal are read once."""

    is_parameter: bool
    part: tuple[tuple[int, ...], tuple[int, ...], int] | None
    """Sizes, strides and how far behind the argument's beginning it lies; None for all of the argument."""

    def __call__(self, argument: torch.Tensor) -> torch.Tensor:
        made = argument.detach()
        if self.part is not None:
            sizes, strides, behind = self.part
            made = made.as_strided(sizes, strides, argument.storage_offset() + behind)
        return torch.nn.Parameter(made) if self.is_parameter else made.requires_grad_()


def expose(t: Tracer, outputs: list[fx.Node], parameters: Collection[fx.Node]) -> list[fx.Node]:
    """Make inputs of the leaves that matter outside of the graph; the outputs, with these in their places.

    ``parameters``: those of the leaves that are an ``nn.Parameter``.  ``Unsupported`` where a leaf that matters cannot
    be one.
    """
    leaves = [n for n in t.recorder.root_graph.nodes if n.op != "placeholder" and _is_leaf(n)]
    if not leaves:
        return outputs
    known = any(v.requires_grad for item in t.recorder.inputs for v in _tensors(item.node))
    for node in leaves:
        if is_wrapper(type(node.meta["example_value"])):
            _check_wrapper(t, node, outputs, known)
        elif node in outputs:
            if _is_leaf_by_base(node):
                continue  # made of what it views behind the graph; gradients go no further than to it
            given = _Found(t, node, outputs).as_input(node in parameters)
            outputs = [given if n is node else n for n in outputs]
        elif not known and _differentiates(node, outputs):  # else nobody sees the leaf's gradients
            leaf = _Found(t, node, outputs)
            leaf.check_gradient()
            leaf.as_input(node in parameters)
    return outputs


def _differentiates(leaf: fx.Node, outputs: list[fx.Node]) -> bool:
    """Whether an output that requires gradients is computed of a leaf."""
    reached, left = {leaf}, [leaf]
    while left:
        new = set(left.pop().users) - reached
        reached |= new
        left += new
    return any(n in reached and v.requires_grad for n in outputs for v in _tensors(n))


def _check_wrapper(t: Tracer, leaf: fx.Node, outputs: list[fx.Node], known: bool) -> None:
    """Refuse a leaf that wraps others and matters: of one that comes out of the graph, the tensors in it do."""
    given = {p for n in leaf.users if isinstance(n.target, Unwrap) for p in (n, *n.users)}
    if not given.isdisjoint(outputs) or (not known and _differentiates(leaf, outputs)):
        raise _Found(t, leaf, outputs).unsupported("wraps other tensors")


def _is_leaf(node: fx.Node) -> bool:
    value = node.meta.get("example_value")
    if not isinstance(value, torch.Tensor) or not value.requires_grad:
        return False
    return is_known_leaf(value) and node.target != "requires_grad_"  # which gives the same tensor once more


def _is_leaf_by_base(node: fx.Node) -> bool:
    """Whether a leaf is a view made without gradients of what requires them: so does the view, and has no history."""
    base = node.meta["example_value"]._base
    flagged = "requires_grad" in node.kwargs or any(user.target == "requires_grad_" for user in node.users)
    return not flagged and base is not None and base.requires_grad


class _Found:
    """A leaf in the graph: the node that made the tensor, and the one since which it is a leaf."""

    def __init__(self, t: Tracer, node: fx.Node, outputs: list[fx.Node]) -> None:
        self.t, self.node, self.outputs = t, node, outputs
        self.value: torch.Tensor = node.meta["example_value"]
        self.order = {n: number for number, n in enumerate(t.recorder.root_graph.nodes)}
        marks = [n for n in node.users if n.target == "requires_grad_" and n.args[0] is node]
        self.start = marks[0] if marks else node
        if len(marks) > 1 or (not marks and "requires_grad" not in node.kwargs):
            raise self.unsupported("became one more than once")

    def unsupported(self, reason: str) -> Unsupported:
        """A break at the call that made the leaf: Python makes it, and what follows finds it."""
        makes_one = self.start.target == "requires_grad_" or "requires_grad" in self.start.kwargs
        made_at = self.t.recorder.made_at.get(self.start.name) if makes_one else None
        step = NOWHERE if made_at is None else made_at[0]
        return Unsupported(f"a leaf of autograd that matters outside of the graph, and that {reason}", step=step)

    def check_gradient(self) -> None:
        """Refuse a leaf that has a gradient already, to which those of the results would be added."""
        value = self.t.recorder.by_fake.get(id(self.value))
        if value is not None and "grad" in value.stores:
            raise self.unsupported("has a gradient")

    def check(self) -> None:
        """Refuse where others see the tensor's memory: the input has memory of its own."""
        if _has_symbols(self.value):
            raise self.unsupported("has a size that changes")
        if not is_apart(self.value.shape, self.value.stride()):
            raise self.unsupported("has several elements in one place")
        start, storage = self.order[self.start], self.value.untyped_storage()._cdata
        for node, number in self.order.items():
            shares = any(v.untyped_storage()._cdata == storage for v in _tensors(node))
            if not shares or node is self.node or number >= start:
                continue
            if node.op == "placeholder" or node in self.outputs or any(self.order[u] > start for u in node.users):
                raise self.unsupported("shares its memory with another tensor")

    def data(self) -> GraphInput | None:
        """The argument that the leaf is the memory of, where the graph writes to neither; None for other leaves."""
        t, node = self.t, self.node
        if node.target != "detach" or node is self.start:
            return None
        given = [i for i in t.recorder.inputs if type(i.real) in (torch.Tensor, torch.nn.Parameter)]
        found = next((i for i in given if i.node is node.args[0]), None)
        if found is None and not _has_symbols(self.value):
            storage = self.value.untyped_storage()._cdata
            found = next((i for i in given if _is_in(i.example, storage)), None)
        if found is None or (found.node is not node.args[0] and _has_symbols(found.example)):
            return None
        return None if t.recorder.versions.of(found.example) or t.recorder.versions.of(self.value) else found

    def part_of(self, data: GraphInput) -> tuple[tuple[int, ...], tuple[int, ...], int] | None:
        """Which part of an argument the leaf is; None for all of it."""
        if data.node is self.node.args[0]:
            return None
        behind = self.value.storage_offset() - data.example.storage_offset()
        return tuple(self.value.shape), self.value.stride(), behind

    def in_memory_of(self, data: GraphInput, is_parameter: bool) -> fx.Node:
        """The same of a leaf that is made of an argument: it is made in the argument's memory."""
        t = self.t
        source = CallSource(data.source, _LeafOfArgument(is_parameter, self.part_of(data)))
        example = self.value.detach().requires_grad_()
        given = t.recorder.placeholder("leaf", example)
        t.recorder.inputs.append(GraphInput(given, source, example, static=False))
        for user in [u for u in self.node.users if self.order[u] > self.order[self.start]]:
            user.replace_input_with(self.node, given)
        self.start.replace_all_uses_with(given)
        t.recorder.root_graph.erase_node(self.start)
        return given

    def as_input(self, is_parameter: bool) -> fx.Node:
        """Put an input in the place of the leaf, from where it became one; the input."""
        if (data := self.data()) is not None:
            return self.in_memory_of(data, is_parameter)
        self.check()
        t, node, value = self.t, self.node, self.value
        leaf = Leaf(tuple(value.shape), value.stride(), value.dtype, value.device, is_parameter)
        example = torch.empty_strided(leaf.shape, leaf.stride, dtype=leaf.dtype, device=leaf.device)
        given = t.recorder.placeholder("leaf", example.requires_grad_())
        t.recorder.inputs.append(
            GraphInput(given, CallSource(BoundSource("leaf", leaf), new_leaf), example, static=False)
        )
        for user in [u for u in node.users if self.order[u] > self.order[self.start]]:
            user.replace_input_with(node, given)
        _fill(t.recorder.root_graph, self.start, given, node)
        if self.start is node:
            node.kwargs = {**node.kwargs, "requires_grad": False}
        else:
            self.start.replace_all_uses_with(given)
            t.recorder.root_graph.erase_node(self.start)
        return given


def _fill(graph: fx.Graph, after: fx.Node, given: fx.Node, content: fx.Node) -> None:
    """Write to an input, past autograd."""
    with graph.inserting_after(after):
        past = graph.call_method("detach", (given,))
    with graph.inserting_after(past):
        filled = graph.call_method("copy_", (past, content))
    past.meta["example_value"] = filled.meta["example_value"] = given.meta["example_value"].detach()


def _has_symbols(tensor: torch.Tensor) -> bool:
    """Whether the place of a tensor in its memory changes from call to call."""
    return any(isinstance(s, torch.SymInt) for s in (*tensor.shape, *tensor.stride(), tensor.storage_offset()))


def _is_in(tensor: torch.Tensor, storage: int) -> bool:
    return tensor.layout is torch.strided and tensor.untyped_storage()._cdata == storage


def _tensors(node: fx.Node) -> Iterator[torch.Tensor]:
    for value in pytree.tree_leaves(node.meta.get("example_value")):
        if isinstance(value, torch.Tensor) and value.layout is torch.strided:
            yield value

"""What depends on what in a joint graph: which nodes are forward, which are backward, what crosses."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any

import attrs
import torch
from torch import fx

from turret.errors import UnsupportedError, VerificationError
from turret.graph.op_set import Family, family_of
from turret.graph.op_traits import (
    defines_unbacked_symbols,
    is_effectful,
    is_mutating_op,
    is_random_call,
    output_nodes,
    storage_root,
    storage_roots,
)
from turret.hooks.products import JointGraph
from turret.hooks.signature import Mutation
from turret.torch_compat.operators.ops import OpOverload


@attrs.frozen(eq=False)
class JointAnalysis:
    """A joint graph's nodes, sorted into what the cut may and may not touch.

    ``primals`` and ``tangents`` are its inputs, ``forward_outputs`` and ``gradients`` (one or None for each primal) its
    outputs; behind the tangents comes what lies in late memory, and behind the gradients what the backward writes there
    (or None).  ``backward`` are the live nodes that depend on a tangent, in graph order; everything else is *early*: it
    depends on primals alone.  ``needed`` are the early nodes that the backward reads directly (or that are
    gradients themselves); ``candidates`` are those and all their ancestors, in graph order: each is saved,
    recomputed, or passed over.  ``required`` are early nodes that the forward computes in any case: its outputs, its
    ``effects``, and what these need.  ``mutated`` are primals that are written to, so that their old value is gone by
    the backward; ``held`` are values that somebody holds anyway, so that saving them takes no memory.  ``late`` are all
    nodes that depend on a tangent.  ``order`` numbers all nodes.
    """

    primals: tuple[fx.Node, ...]
    tangents: tuple[fx.Node, ...]
    forward_outputs: tuple[Any, ...]
    gradients: tuple[fx.Node | None, ...]
    backward: tuple[fx.Node, ...]
    needed: frozenset[fx.Node]
    candidates: tuple[fx.Node, ...]
    effects: tuple[fx.Node, ...]
    required: frozenset[fx.Node]
    mutated: frozenset[fx.Node]
    held: frozenset[fx.Node]
    late: frozenset[fx.Node]
    order: dict[fx.Node, int]

    def reads_own_storage(self, node: fx.Node) -> bool:
        """Whether a node is an ``as_strided`` of an input that is written to: a copy of the input would not do."""
        return node.target is torch.ops.aten.as_strided.default and storage_root(node) in self.mutated

    def gradient_of(self, primal: fx.Node) -> fx.Node | None:
        """The gradient that the graph returns for an input, if any."""
        return self.gradients[self.primals.index(primal)]


def analyze(joint: JointGraph) -> JointAnalysis:
    """Sort a training joint graph's nodes.  ``VerificationError`` when its outputs break the contract."""
    graph = joint.module.graph
    order = {node: i for i, node in enumerate(graph.nodes)}
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    outputs = output_nodes(graph)
    forward_outputs, gradients = outputs[: joint.num_forward_outputs], outputs[joint.num_forward_outputs :]
    count = len(gradients) - joint.signature.behind_gradients
    primals, tangents = tuple(placeholders[:count]), tuple(placeholders[count:])
    if len(primals) != count:
        raise VerificationError(
            f"joint graph {joint.name!r}: {count} gradients for {len(placeholders)} inputs; "
            "expected one gradient or None for each primal"
        )
    late = reachable_from(graph, tangents)
    _check_forward(joint, forward_outputs, late)
    effects = tuple(node for node in graph.nodes if is_effectful(node))
    backward_roots = [g for g in gradients if isinstance(g, fx.Node)] + [node for node in effects if node in late]
    live = ancestors(backward_roots)
    backward = tuple(node for node in graph.nodes if node in live and node in late and node.op != "placeholder")
    needed = {node for node in (*backward_roots, *_sources(backward)) if node not in late}
    wanted = ancestors(needed)
    candidates = tuple(node for node in graph.nodes if node in wanted)
    _check_savable(joint, candidates)
    early_effects = tuple(node for node in effects if node not in late)
    mutated = _mutated_primals(joint, primals, effects)
    return JointAnalysis(
        primals=primals,
        tangents=tangents,
        forward_outputs=tuple(forward_outputs),
        gradients=tuple(gradients),
        backward=backward,
        needed=frozenset(needed),
        candidates=candidates,
        effects=early_effects,
        required=frozenset(ancestors([*early_effects, *(o for o in forward_outputs if isinstance(o, fx.Node))])),
        mutated=mutated,
        held=frozenset(({*primals} | storage_roots(forward_outputs)) - mutated),
        late=frozenset(late),
        order=order,
    )


def _check_forward(joint: JointGraph, outputs: Sequence[Any], late: set[fx.Node]) -> None:
    for output in outputs:
        if output in late:
            raise VerificationError(f"joint graph {joint.name!r}: forward output {output} depends on a tangent")


def _sources(nodes: Iterable[fx.Node]) -> list[fx.Node]:
    return [source for node in nodes for source in node.all_input_nodes]


def reachable_from(graph: fx.Graph, roots: Iterable[fx.Node]) -> set[fx.Node]:
    """The roots and every call that is computed from them."""
    reached = set(roots)
    for node in graph.nodes:
        if node.op != "output" and any(source in reached for source in node.all_input_nodes):
            reached.add(node)
    return reached


def ancestors(roots: Iterable[fx.Node]) -> set[fx.Node]:
    """The roots and everything that they are computed from."""
    seen: set[fx.Node] = set()
    stack = list(roots)
    while stack:
        node = stack.pop()
        if node not in seen:
            seen.add(node)
            stack.extend(node.all_input_nodes)
    return seen


def _mutated_primals(
    joint: JointGraph, primals: tuple[fx.Node, ...], effects: tuple[fx.Node, ...]
) -> frozenset[fx.Node]:
    """Primals written by the graph itself or by the epilogue after it: their old value is gone by the backward."""
    inputs = joint.signature.inputs
    mutated = {primal for primal, info in zip(primals, inputs, strict=False) if info.mutation is not Mutation.NONE}
    for node in effects:
        if node.op != "call_function" or not isinstance(node.target, OpOverload):
            continue
        for value, argument in zip(node.args, node.target._schema.arguments, strict=False):
            if argument.is_write and isinstance(value, fx.Node):
                mutated.add(storage_root(value))
    return frozenset(mutated & set(primals))


def is_size(node: fx.Node) -> bool:
    """Whether a node's value is a number (an int, SymInt or other scalar) rather than a tensor."""
    return isinstance(node.meta.get("val"), (int, float, bool, torch.SymInt, torch.SymFloat, torch.SymBool))


def is_tensor(node: fx.Node) -> bool:
    """Whether a node's value is one tensor."""
    return isinstance(node.meta.get("val"), torch.Tensor)


def is_part(node: fx.Node) -> bool:
    """Whether a node is one of the results of a call that has several."""
    return node.target is operator.getitem and isinstance(node.args[0], fx.Node)


def is_savable(node: fx.Node) -> bool:
    """Whether a node's value can be handed to the backward: one tensor, or a number.

    A call with several results and a constant of the graph cannot; the results can, and the constant need not be.
    """
    return node.op != "get_attr" and (is_tensor(node) or is_size(node))


def is_library_call(node: fx.Node) -> bool:
    """Whether a call runs as one of the device's library: a product, a convolution, attention, a sort."""
    return node.op == "call_function" and family_of(node.target) is Family.EXTERN


def parts_of(nodes: Iterable[fx.Node]) -> frozenset[fx.Node]:
    """The nodes, with the results of a call that has several in its place."""
    parts: set[fx.Node] = set()
    for node in nodes:
        several = isinstance(node.meta.get("val"), (tuple, list))
        parts.update([user for user in node.users if is_part(user)] if several else [node])
    return frozenset(parts)


def runs_once(node: fx.Node) -> bool:
    """Whether a call must not run in forward and backward: it draws random numbers, writes, or gives new numbers."""
    return node.op == "call_function" and (
        is_random_call(node) or is_mutating_op(node.target) or defines_unbacked_symbols(node)
    )


def _check_savable(joint: JointGraph, candidates: tuple[fx.Node, ...]) -> None:
    for node in candidates:
        value = node.meta.get("val")
        if value is None and node.op == "placeholder" and node.users:
            raise UnsupportedError(
                f"joint graph {joint.name!r}: input {node.name!r} has no fake value in meta['val'], "
                "so the bytes that saving it takes are unknown"
            )

"""What hangs on what in autograd's graph: which outputs gradients come from, and which outputs share saved tensors.

Autograd frees what the nodes that it went through have saved, unless told to keep it: gradients of outputs that share
such a node cannot be taken one after the other, those of others can.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch

from turret.plugins.joint.repeating.replay import CannotReplay


def reach(outputs: Sequence[torch.Tensor], leaves: Sequence[torch.Tensor]) -> list[set[int]]:
    """For each leaf the positions of the outputs whose gradients autograd carries to it, whatever it makes of them."""
    bits = {id(leaf): 1 << position for position, leaf in enumerate(leaves)}

    def bit(node: Any) -> int:
        return bits.get(id(getattr(node, "variable", None)), 0)

    found: dict[Any, int] = {}
    masks = [bits.get(id(o), 0) if o.grad_fn is None else _below(o.grad_fn, bit, found) for o in outputs]
    return [{n for n, mask in enumerate(masks) if mask >> position & 1} for position in range(len(leaves))]


def computed_of(
    outputs: Sequence[torch.Tensor], candidates: Sequence[torch.Tensor], nearest: bool = False
) -> list[tuple[int, ...]]:
    """For each output the positions of those among the ``candidates`` that it was computed of, as autograd has it.

    ``nearest``: those alone that a way leads to past no other.  ``CannotReplay`` where the history of what was copied
    does not tell.
    """
    edges: dict[Any, int] = {}
    for n, candidate in enumerate(candidates):
        edge = candidate.grad_fn, candidate.output_nr
        edges[edge] = edges.get(edge, 0) | 1 << n
    found: dict[Any, int] = {}
    masks = [_below(o.grad_fn, lambda node: 0, found, edges, nearest) for o in outputs]
    _check_copies([c.grad_fn for c in candidates], found)
    return [tuple(n for n in range(len(candidates)) if mask >> n & 1) for mask in masks]


def _check_copies(nodes: Sequence[Any], met: Collection[Any]) -> None:
    """Results of one copied segment have nodes of their own, and none says which was computed of which."""
    segments: dict[int, set[Any]] = {}
    for node in met:
        copied = getattr(node, "copied", None)
        if copied is not None:
            segments.setdefault(id(copied), set()).add(node)
    for node in nodes:
        copied = getattr(node, "copied", None)
        if copied is not None and len(segments[id(copied)]) > 1:
            raise CannotReplay


def sharing(outputs: Sequence[torch.Tensor]) -> list[tuple[int, ...]]:
    """For each output the positions of those, itself among them, that hang on a node with saved tensors that it hangs
    on, too."""
    bits: dict[Any, int] = {}

    def bit(node: Any) -> int:
        return bits.setdefault(node, 1 << len(bits)) if _saves(node) else 0

    found: dict[Any, int] = {}
    masks = [0 if o.grad_fn is None else _below(o.grad_fn, bit, found) for o in outputs]
    return [tuple(m for m, other in enumerate(masks) if mask & other) for mask in masks]


def _below(
    root: Any,
    bit: Callable[[Any], int],
    found: dict[Any, int],
    edge_bits: Mapping[Any, int] = types.MappingProxyType({}),
    nearest: bool = False,
) -> int:
    """The bits of the nodes under one of autograd's graph, and of itself, and of the edges between them; ``found``
    keeps what is known of nodes.  ``nearest``: past an edge with a bit it does not go."""
    stack = [root]
    while stack:
        node = stack[-1]
        if node in found:
            stack.pop()
            continue
        edges = [edge for edge in node.next_functions if edge[0] is not None]
        pending = [n for n, _ in edges if n not in found]
        if pending:
            stack += pending
            continue
        mask = bit(node)
        for edge in edges:
            own = edge_bits.get(edge, 0)
            mask |= own if own and nearest else own | found[edge[0]]
        found[node] = mask
        stack.pop()
    return found[root]


def _saves(node: Any) -> bool:
    """Whether a node of autograd's graph has saved a tensor; ``saves_tensors``: of one that keeps them by itself."""
    if isinstance(node, torch.autograd.function.BackwardCFunction):
        return getattr(node, "saves_tensors", False) or _has_saved_in_python(node)
    return any(_has_saved(node, name) for name in _saved_names(type(node)))


def _has_saved_in_python(node: Any) -> bool:
    try:
        return bool(node._raw_saved_tensors)
    except RuntimeError:  # a backward within the graph has freed them
        return True


def _has_saved(node: Any, name: str) -> bool:
    try:
        value = getattr(node, name)
    except RuntimeError:  # it was written to since, as the backward will find
        return True
    return any(isinstance(v, torch.Tensor) for v in (value if isinstance(value, tuple) else (value,)))


_NAMES: dict[type, tuple[str, ...]] = {}


def _saved_names(kind: type) -> tuple[str, ...]:
    if kind not in _NAMES:
        _NAMES[kind] = tuple(name for name in dir(kind) if name.startswith("_saved_"))
    return _NAMES[kind]

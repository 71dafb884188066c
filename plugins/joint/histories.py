"""What hangs on what in autograd's graph: which outputs gradients come from, and which outputs share saved tensors.

Autograd frees what the nodes that it went through have saved, unless told to keep it: gradients of outputs that share
such a node cannot be taken one after the other, those of others can.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch


def reach(outputs: Sequence[torch.Tensor], leaves: Sequence[torch.Tensor]) -> list[set[int]]:
    """For each leaf the positions of the outputs whose gradients autograd carries to it, whatever it makes of them."""
    bits = {id(leaf): 1 << position for position, leaf in enumerate(leaves)}

    def bit(node: Any) -> int:
        return bits.get(id(getattr(node, "variable", None)), 0)

    found: dict[Any, int] = {}
    masks = [bits.get(id(o), 0) if o.grad_fn is None else _below(o.grad_fn, bit, found) for o in outputs]
    return [{n for n, mask in enumerate(masks) if mask >> position & 1} for position in range(len(leaves))]


def sharing(outputs: Sequence[torch.Tensor]) -> list[tuple[int, ...]]:
    """For each output the positions of those, itself among them, that hang on a node with saved tensors that it hangs
    on, too."""
    bits: dict[Any, int] = {}

    def bit(node: Any) -> int:
        return bits.setdefault(node, 1 << len(bits)) if _saves(node) else 0

    found: dict[Any, int] = {}
    masks = [0 if o.grad_fn is None else _below(o.grad_fn, bit, found) for o in outputs]
    return [tuple(m for m, other in enumerate(masks) if mask & other) for mask in masks]


def _below(root: Any, bit: Callable[[Any], int], found: dict[Any, int]) -> int:
    """The bits of the nodes under one of autograd's graph, and of itself; ``found`` keeps what is known of nodes."""
    stack = [root]
    while stack:
        node = stack[-1]
        if node in found:
            stack.pop()
            continue
        below = [n for n, _ in node.next_functions if n is not None]
        pending = [n for n in below if n not in found]
        if pending:
            stack += pending
            continue
        mask = bit(node)
        for n in below:
            mask |= found[n]
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

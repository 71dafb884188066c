"""Nodes of autograd's graph for results, and where gradients end."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.autograd.function import BackwardCFunction

from turret.storage.extension import Extension


def extension() -> Extension:
    """The native part, as the running interpreter and torch need it."""
    source = Path(__file__).with_name("nodes.cpp")
    return Extension.of_torch(source, "nodes of autograd for results", ("torch_python",), ("torch/csrc/api/include",))


@functools.cache
def native() -> Any:
    """The native part.  Builds it where it is not there; raises as ``Extension.load``.

    ``part(results)``: each of several results of one node that requires a gradient, and is no view, gets a node of its
    own in front: autograd calls hooks of all results of a node for the gradient of one.

    ``derive(group, results, sources, nearest)``: the same for results that were computed of ``sources``, by a node that
    leads to that of the results and to the sources.  Where nobody is told of gradients of a source, gradients go on to
    the former; else those of the sources of which somebody is are what ``cut`` of ``group(cut)`` gives: a tuple, of
    ``cut(node of the results, their gradients, numbers of these sources, their (node, number))``.  They are told by
    hooks of a source (``register_hook``, ``retain_grad``), and in a backward that was asked for its gradient
    (``torch.autograd.grad``).  With ``nearest`` (else None), which are results that sources are or view, gradients end
    at all sources as soon as somebody is told of those of one, or of what one was derived from, and so on.

    ``leading_to(node, number)``: a tensor without elements whose gradient goes to a result of a node.
    """
    module = extension().load()
    module.setup(BackwardCFunction)
    return module


@contextlib.contextmanager
def stopped(tensors: Sequence[torch.Tensor]) -> Iterator[None]:
    """No gradient goes on from the tensors, which are no leaves, in a backward inside; one asked for gets there.

    A node that all gradients end at runs on zeros, as not every formula of autograd looks whether there is a gradient,
    and its results are dropped.
    """
    slots: dict[Any, set[int]] = {}
    for tensor in tensors:
        slots.setdefault(tensor.grad_fn, set()).add(tensor.output_nr)
    handles = [handle for node, ended in slots.items() for handle in _end(node, frozenset(ended))]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _end(node: Any, ended: frozenset[int]) -> list[Any]:
    left: list[bool] = []

    def before(gradients: Sequence[Any]) -> tuple[Any, ...]:
        kept = tuple(None if n in ended else g for n, g in enumerate(gradients))
        left.append(any(g is not None for g in kept))
        return kept if left[-1] else tuple(None if g is None else torch.zeros_like(g) for g in gradients)

    def after(gradients: Sequence[Any], _: Sequence[Any]) -> tuple[Any, ...] | None:
        return None if left.pop() else (None,) * len(gradients)

    return [node.register_prehook(before), node.register_hook(after)]

"""What one call of a function shows to its caller: outputs, changes to inputs, gradients, aliasing, or an error."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs
import torch
from torch import Tensor

from turret.hooks.devices import HOST
from turret.testing.corpus.program import Backward, Inputs
from turret.testing.corpus.seeding import seed_generators
from turret.torch_compat.trees import pytree


@attrs.frozen(eq=False)
class TensorFacts:
    """One tensor as a caller sees it.  ``value`` is a copy on the CPU; ``stride`` and ``offset`` are in elements."""

    value: Tensor
    dtype: torch.dtype
    device: torch.device
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    requires_grad: bool

    @classmethod
    def of(cls, tensor: Tensor) -> TensorFacts:
        value = tensor.detach().to(HOST, copy=True)
        shape, stride = tuple(tensor.shape), tuple(tensor.stride())
        return cls(
            value, tensor.dtype, tensor.device, shape, stride, int(tensor.storage_offset()), tensor.requires_grad
        )


@attrs.frozen(eq=False)
class Observation:
    """Everything that a compiled call must share with the eager one.

    ``outputs`` are the leaves of the result in order (``TensorFacts`` or plain values) and ``structure`` their
    tree; ``inputs`` are the arguments after the call; ``gradients`` one for each leaf, None where there is none.
    ``aliases`` says for each output which earlier tensor (``"input 0"``, ``"output 1"``) it is or shares memory
    with.  ``error`` is what the call raised, and then nothing else counts.
    """

    outputs: tuple[Any, ...] = ()
    structure: Any = None
    inputs: tuple[Any, ...] = ()
    gradients: tuple[TensorFacts | None, ...] = ()
    aliases: tuple[str, ...] = ()
    error: BaseException | None = None
    live: tuple[tuple[Tensor, Tensor] | None, ...] = ()
    """The call's own results with what they hold after its backward (a checkpoint may write once more there), so that
    a later call can be checked not to overwrite them."""


def observe(function: Callable, inputs: Inputs, backward: Backward = "all", seed: int = 0) -> Observation:
    """Call ``function`` on ``inputs`` (which it may change) and differentiate what it returns.

    Errors of the call or of its backward become ``Observation.error``; ``KeyboardInterrupt`` and the like pass.
    """
    seed_generators(seed)
    try:
        result = function(*inputs.args)
        leaves, structure = pytree.tree_flatten(result)
        outputs = tuple(_facts(leaf) for leaf in leaves)
        after = tuple(_facts(arg) for arg in inputs.args)
        aliases = alias_relations(inputs.args, leaves)
        gradients = seeded_backward(result, inputs, backward)
    except Exception as error:
        return Observation(error=_without_frames(error))
    facts = tuple(None if g is None else TensorFacts.of(g) for g in gradients)
    live = tuple((v, v.detach().to(HOST, copy=True)) if isinstance(v, Tensor) else None for v in leaves)
    return Observation(outputs, structure, after, facts, aliases, None, live)


def _without_frames(error: Exception) -> Exception:
    """The error, and those that it came of, without their frames.

    Up to torch 2.11 a checkpoint whose function raised packs what others save for as long as its frame lives.
    """
    link: BaseException | None = error
    while link is not None:
        link = link.with_traceback(None).__context__
    return error


def _facts(value: Any) -> Any:
    return TensorFacts.of(value) if isinstance(value, Tensor) else value


def alias_relations(args: Sequence[Any], outputs: Sequence[Any]) -> tuple[str, ...]:
    """For each output the first input or earlier output that it shares memory with, and how.

    ``"is input 0"`` (the same object), ``"views input 0 at 3"`` (offset from the other's first element, in
    elements of the output), or ``""``.  Tensors without elements share nothing.
    """
    seen = [(f"input {i}", arg) for i, arg in enumerate(args) if isinstance(arg, Tensor)]
    relations = []
    for index, output in enumerate(outputs):
        relations.append(_relation(output, seen) if isinstance(output, Tensor) else "")
        if isinstance(output, Tensor):
            seen.append((f"output {index}", output))
    return tuple(relations)


def _relation(output: Tensor, seen: list[tuple[str, Tensor]]) -> str:
    for name, other in seen:
        if other is output:
            return f"is {name}"
    if not output.numel():
        return ""
    for name, other in seen:
        if other.numel() and _storage_key(other) == _storage_key(output):
            distance = output.storage_offset() * output.element_size() - other.storage_offset() * other.element_size()
            return f"views {name} at {distance // output.element_size()}"
    return ""


def _storage_key(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def seeded_backward(result: Any, inputs: Inputs, backward: Backward) -> list[Tensor | None]:
    """Gradients of ``inputs.leaves``, and of results, for fixed pseudo-random tangents of the differentiable results.

    Roots are the outputs that require a gradient, then the non-leaf arguments that do (whose history a write may
    have changed).  Raises what autograd raises.
    """
    if backward == "none":
        return [None] * len(inputs.leaves)
    outputs = [t for t in pytree.tree_leaves(result) if isinstance(t, Tensor) and t.requires_grad]
    roots = [t for t in outputs if not t.dtype.is_complex][: 1 if backward == "first" else None]
    roots += [t for t in inputs.args if isinstance(t, Tensor) and _has_history(t)]
    leaves = [leaf for leaf in inputs.leaves if leaf.requires_grad]
    if not roots or not leaves:
        return [None] * len(inputs.leaves)
    tangents = [_tangent(root, index, backward) for index, root in enumerate(roots)]
    asked = list(filter(_has_history, outputs)) if backward == "results" else []
    found = iter(torch.autograd.grad(roots, [*leaves, *asked], tangents, allow_unused=True))
    return [*(next(found) if leaf.requires_grad else None for leaf in inputs.leaves), *found]


def _has_history(value: Tensor) -> bool:
    return value.requires_grad and value.grad_fn is not None


def _tangent(root: Tensor, index: int, backward: Backward) -> Tensor:
    generator = torch.Generator().manual_seed(index + 17)
    if backward == "expanded":
        return torch.rand((), generator=generator).add(0.5).to(root.device, root.dtype).expand(root.shape)
    return torch.randn(root.shape, generator=generator).to(root.device, root.dtype)

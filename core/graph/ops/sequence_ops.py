"""Recurrent layers over packed sequences, whose batch sizes are data: one call of eager's function, and its gradient.

``turret::packed_layers`` has the results of ``torch.lstm`` and its kin of a packed sequence, without dropout between
layers: states after each element, and those after the last of each sequence.  The gradient computes them once more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from turret.torch_compat.dispatch import with_autograd

_library = torch.library.Library("turret", "FRAGMENT")
_GIVEN = "str kind, Tensor data, Tensor batch_sizes, Tensor[] hidden, Tensor[] weights"
_HOW = "bool biased, int layers, bool train, bool both"
_library.define(f"packed_layers({_GIVEN}, {_HOW}) -> Tensor[]")
_library.define(f"packed_layers_backward({_GIVEN}, Tensor?[] gradients, bool[] wanted, {_HOW}) -> Tensor[]")

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "lstm": torch.lstm, "gru": torch.gru, "rnn_tanh": torch.rnn_tanh, "rnn_relu": torch.rnn_relu,
}  # fmt: skip
"""The layers, by the names of torch's functions for them."""

_Tensors = Sequence[torch.Tensor]


def _packed_layers(
    kind: str,
    data: torch.Tensor,
    batch_sizes: torch.Tensor,
    hidden: _Tensors,
    weights: _Tensors,
    biased: bool,
    layers: int,
    train: bool,
    both: bool,
) -> list[torch.Tensor]:
    states = tuple(hidden) if kind == "lstm" else hidden[0]
    return list(FUNCTIONS[kind](data, batch_sizes, states, list(weights), biased, layers, 0.0, train, both))


def _packed_layers_fake(
    kind: str, data: torch.Tensor, batch_sizes: torch.Tensor, hidden: _Tensors, weights: _Tensors, *how: Any
) -> list[torch.Tensor]:
    *_, both = how
    width = hidden[0].shape[-1] * (2 if both else 1)
    return [data.new_empty((data.shape[0], width)), *(h.new_empty(h.shape) for h in hidden)]


def _packed_layers_backward(
    kind: str,
    data: torch.Tensor,
    batch_sizes: torch.Tensor,
    hidden: _Tensors,
    weights: _Tensors,
    gradients: Sequence[torch.Tensor | None],
    wanted: Sequence[bool],
    *how: Any,
) -> list[torch.Tensor]:
    """Gradients of those of ``data``, ``hidden`` and ``weights`` that are ``wanted``."""
    with with_autograd(), torch.enable_grad():
        given = (data, *hidden, *weights)
        leaves = [t.detach().requires_grad_(needed) for t, needed in zip(given, wanted, strict=True)]
        states = leaves[1 : 1 + len(hidden)]
        made = _packed_layers(kind, leaves[0], batch_sizes, states, leaves[1 + len(hidden) :], *how)
        known = [(m, g) for m, g in zip(made, gradients, strict=True) if g is not None]
        results, arrived = zip(*known, strict=True)
        to = [leaf for leaf in leaves if leaf.requires_grad]
        found = torch.autograd.grad(results, to, arrived, allow_unused=True)
    return [torch.zeros_like(t) if g is None else g.contiguous() for t, g in zip(to, found, strict=True)]


def _packed_layers_backward_fake(
    kind: str, data: torch.Tensor, batch_sizes: torch.Tensor, hidden: _Tensors, weights: _Tensors, *how: Any
) -> list[torch.Tensor]:
    _, wanted, *_ = how
    given = zip((data, *hidden, *weights), wanted, strict=True)
    return [t.new_empty(t.shape) for t, needed in given if needed]


def _save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.kind, data, batch_sizes, hidden, weights, *ctx.how = inputs
    ctx.states = len(hidden)
    ctx.wanted = [t.requires_grad for t in (data, *hidden, *weights)]
    ctx.save_for_backward(data, batch_sizes, *hidden, *weights)


def _gradients(ctx: Any, gradients: list[torch.Tensor | None]) -> tuple[Any, ...]:
    data, batch_sizes, *others = ctx.saved_tensors
    hidden, weights = others[: ctx.states], others[ctx.states :]
    found = iter(())
    if any(g is not None for g in gradients):
        backward = torch.ops.turret.packed_layers_backward
        found = iter(backward(ctx.kind, data, batch_sizes, hidden, weights, gradients, ctx.wanted, *ctx.how))
    of_data, *others = (next(found, None) if wanted else None for wanted in ctx.wanted)
    return None, of_data, None, others[: ctx.states], others[ctx.states :], None, None, None, None


_library.impl("packed_layers", _packed_layers, "CompositeExplicitAutograd")
torch.library.register_fake("turret::packed_layers", _packed_layers_fake, lib=_library)
_library.impl("packed_layers_backward", _packed_layers_backward, "CompositeExplicitAutograd")
torch.library.register_fake("turret::packed_layers_backward", _packed_layers_backward_fake, lib=_library)
torch.library.register_autograd("turret::packed_layers", _gradients, setup_context=_save, lib=_library)

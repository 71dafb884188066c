"""Recurrent layers one above the other, as eager has them.

Torch's decompositions leave out the dropout between them (2.13), and take an LSTM that is trained apart step by step
where eager has a library compute them all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import torch

from turret.graph.ops.recurrent_ops import has_trained_kernel
from turret.hooks.devices import uses_host_kernels

_LAYERS: dict[str, Callable[..., Any]] = {
    "lstm": torch.lstm, "gru": torch.gru, "rnn_tanh": torch.rnn_tanh, "rnn_relu": torch.rnn_relu,
}  # fmt: skip

Results = tuple[torch.Tensor, ...]


class _LibraryLayer(torch.autograd.Function):
    """One direction of one layer of an LSTM, by oneDNN."""

    @staticmethod
    def forward(ctx: Any, reverse: bool, biased: bool, train: bool, *given: torch.Tensor) -> Any:
        *made, workspace = torch.ops.turret.lstm_layer(*given, reverse, biased, train)
        ctx.save_for_backward(*given, *made, workspace)
        ctx.how, ctx.biased = (reverse, biased, train), biased
        ctx.set_materialize_grads(False)
        return tuple(made)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> Any:
        if all(g is None for g in gradients):
            return (None,) * 10
        *saved, workspace = ctx.saved_tensors
        found = torch.ops.turret.lstm_layer_backward(*saved, *gradients, workspace, *ctx.how)
        d_x, d_w_ih, d_w_hh, d_b, d_h, d_c = (g.to(saved[0].dtype) for g in found)
        return None, None, None, d_x, d_w_ih, d_w_hh, d_b, d_b, d_h, d_c


@attrs.frozen
class _Call:
    """What a recurrent function is given; ``sizes`` of batches: its input is a packed sequence."""

    name: str
    sizes: torch.Tensor | None
    hidden: Results
    weights: list[torch.Tensor]
    biased: bool
    layers: int
    dropout: float
    train: bool
    both: bool

    def through(self, x: torch.Tensor) -> Results:
        """States of the last layer and those after its last step; ``x`` has the steps first."""
        directions, each = 2 if self.both else 1, len(self.weights) // self.layers
        run = _by_library if self._is_trained_by_library(x) else self._by_torch
        last: list[Results] = []
        for layer in range(self.layers):
            hidden = tuple(h.narrow(0, layer * directions, directions) for h in self.hidden)
            x, *ended = run(x, hidden, self.weights[layer * each : (layer + 1) * each], self.biased, self.train)
            last.append(tuple(ended))
            if layer < self.layers - 1 and self._drops_out:
                x = torch.dropout(x, self.dropout, True)
        return x, *(torch.cat(parts) for parts in zip(*last, strict=True))

    def is_torchs(self, x: torch.Tensor) -> bool:
        """Whether torch's own way is eager's."""
        return not self._is_trained_by_library(x) and (self.layers == 1 or not self._drops_out)

    @property
    def _drops_out(self) -> bool:
        return self.train and self.dropout != 0

    def _by_torch(
        self, x: torch.Tensor, hidden: Results, weights: list[torch.Tensor], biased: bool, train: bool
    ) -> Results:
        state = hidden if self.name == "lstm" else hidden[0]
        one = (weights, biased, 1, 0.0, train, self.both)
        function = _LAYERS[self.name]
        made = function(x, state, *one, False) if self.sizes is None else function(x, self.sizes, state, *one)
        return tuple(made)

    def _is_trained_by_library(self, x: torch.Tensor) -> bool:
        if (
            self.name != "lstm"
            or self.sizes is not None
            or not torch.is_grad_enabled()
            or not uses_host_kernels(x.device)
        ):
            return False
        if self.hidden[0].shape != self.hidden[1].shape:
            return False  # states of two widths: a projection, which the library has not
        given = (*self.hidden, *self.weights)
        return any(t.requires_grad for t in (x, *given)) and has_trained_kernel(x, given)


def recurrent_layers(name: str, args: tuple, kwargs: dict[str, Any]) -> Any:
    """The result of the named call, layer by layer; ``NotImplemented`` where torch's own way is eager's."""
    name = name.removeprefix("aten::")
    if name not in _LAYERS or kwargs or len(args) != 9:
        return NotImplemented
    if isinstance(args[3], bool):
        x, states, weights, *how, first = args
        sizes = None
    else:
        x, sizes, states, weights, *how = args
        first = False
    call = _Call(name, sizes, tuple(states) if name == "lstm" else (states,), list(weights), *how)
    if call.is_torchs(x):
        return NotImplemented
    y, *ends = call.through(x.transpose(0, 1) if first else x)
    return y.transpose(0, 1) if first else y, *ends


def _by_library(
    x: torch.Tensor, hidden: Results, weights: list[torch.Tensor], biased: bool, train: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """One layer in its directions, of which the second goes from the last step to the first."""
    x = x.contiguous()
    each = 4 if biased else 2
    found = []
    for number in range(len(weights) // each):
        mine = weights[number * each : (number + 1) * each]
        if not biased:
            zeros = mine[0].new_zeros(mine[0].shape[0])
            mine = [*mine, zeros, zeros]
        before = [h[number].contiguous() for h in hidden]
        found.append(_LibraryLayer.apply(number == 1, biased, train, x, *mine, *before))
    y, h, c = zip(*found, strict=True)
    return torch.cat(y, -1) if len(y) > 1 else y[0], torch.stack(h), torch.stack(c)

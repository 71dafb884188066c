"""A layer of an LSTM as oneDNN computes it for training on a CPU: all its steps in one call, and their gradient."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch

from turret.torch_compat.dispatch import no_dispatch
from turret.torch_compat.operators.packing import computes_in, has_packing

_library = torch.library.Library("turret", "FRAGMENT")
_GIVEN = "Tensor x, Tensor w_ih, Tensor w_hh, Tensor b_ih, Tensor b_hh, Tensor h, Tensor c"
_HOW = "bool reverse, bool biased, bool train"
_library.define(f"lstm_layer({_GIVEN}, {_HOW}) -> (Tensor, Tensor, Tensor, Tensor)")
_library.define(
    f"lstm_layer_backward({_GIVEN}, Tensor y, Tensor last_h, Tensor last_c, Tensor? d_y, Tensor? d_h, Tensor? d_c, "
    f"Tensor workspace, {_HOW}) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"
)
_LSTM = 2
"""ATen's number of the kind of layer."""

Layer = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def has_trained_kernel(x: torch.Tensor, given: Sequence[torch.Tensor]) -> bool:
    """Whether eager computes an LSTM of ``x`` and these states and weights, if they are on the host, by this kernel,
    and ``lstm_layer`` may."""
    together = (x, *given)
    if not has_packing() or torch.is_autocast_enabled(x.device.type) or x.dim() != 3:
        return False
    if any(t.device != x.device or t.dtype != x.dtype or t.layout is not torch.strided for t in together):
        return False
    known = all(isinstance(n, int) for t in together for n in (*t.shape, *t.stride()))
    return known and x.numel() != 0 and x.dtype in (torch.float32, torch.bfloat16) and computes_in(x.dtype)


def _lstm_layer(
    x: torch.Tensor,
    w_ih: torch.Tensor,
    w_hh: torch.Tensor,
    b_ih: torch.Tensor,
    b_hh: torch.Tensor,
    h: torch.Tensor,
    c: torch.Tensor,
    reverse: bool,
    biased: bool,
    train: bool,
) -> Layer:
    """States after each step (steps, batch, hidden), those after the last, and what the gradient reads beside them.

    ``x`` is (steps, batch, features); ``h`` and ``c``, the states before the first step, are (batch, hidden).
    """
    with torch.enable_grad():  # without it ATen leaves out what a gradient needs
        return torch.ops.aten.mkldnn_rnn_layer.default(  # type: ignore[no-any-return]
            x, w_ih, w_hh, b_ih, b_hh, h, c, reverse, [], _LSTM, h.shape[-1], 1, biased, False, False, train
        )


@functools.cache
def _workspace_size(steps: int, batch: int, features: int, hidden: int, dtype: torch.dtype) -> int:
    """Bytes that the gradient reads: the library's own business, so that it is asked, by a call."""
    with no_dispatch():
        zeros = functools.partial(torch.zeros, dtype=dtype)
        bias, state = zeros(4 * hidden), zeros(batch, hidden)
        weights = zeros(4 * hidden, features), zeros(4 * hidden, hidden), bias, bias
        return _lstm_layer(zeros(steps, batch, features), *weights, state, state, False, True, True)[3].numel()


def _lstm_layer_fake(
    x: torch.Tensor,
    w_ih: torch.Tensor,
    w_hh: torch.Tensor,
    b_ih: torch.Tensor,
    b_hh: torch.Tensor,
    h: torch.Tensor,
    c: torch.Tensor,
    reverse: bool,
    biased: bool,
    train: bool,
) -> Layer:
    (steps, batch, features), hidden = x.shape, h.shape[-1]
    size = _workspace_size(steps, batch, features, hidden, x.dtype)
    y, workspace = x.new_empty((steps, batch, hidden)), x.new_empty((size,), dtype=torch.uint8)
    return y, h.new_empty(h.shape), c.new_empty(c.shape), workspace


def _lstm_layer_backward(
    x: torch.Tensor,
    w_ih: torch.Tensor,
    w_hh: torch.Tensor,
    b_ih: torch.Tensor,
    b_hh: torch.Tensor,
    h: torch.Tensor,
    c: torch.Tensor,
    y: torch.Tensor,
    last_h: torch.Tensor,
    last_c: torch.Tensor,
    d_y: torch.Tensor | None,
    d_h: torch.Tensor | None,
    d_c: torch.Tensor | None,
    workspace: torch.Tensor,
    reverse: bool,
    biased: bool,
    train: bool,
) -> tuple[torch.Tensor, ...]:
    """Gradients of ``x``, both weights, either bias, ``h`` and ``c``, of float32 whatever they are."""
    d_x, d_w_ih, d_w_hh, d_b, _, d_first_h, d_first_c = torch.ops.aten.mkldnn_rnn_layer_backward.default(
        x, w_ih, w_hh, b_ih, b_hh, h, c, y, last_h, last_c, d_y, d_h, d_c,
        reverse, _LSTM, h.shape[-1], 1, biased, train, False, [], False, workspace,
    )  # fmt: skip
    return d_x, d_w_ih, d_w_hh, d_b, d_first_h, d_first_c


def _lstm_layer_backward_fake(
    x: torch.Tensor,
    w_ih: torch.Tensor,
    w_hh: torch.Tensor,
    b_ih: torch.Tensor,
    b_hh: torch.Tensor,
    h: torch.Tensor,
    c: torch.Tensor,
    *others: object,
) -> tuple[torch.Tensor, ...]:
    return tuple(t.new_empty(t.shape, dtype=torch.float32) for t in (x, w_ih, w_hh, b_ih, h, c))


_library.impl("lstm_layer", _lstm_layer, "CPU")
torch.library.register_fake("turret::lstm_layer", _lstm_layer_fake, lib=_library)
_library.impl("lstm_layer_backward", _lstm_layer_backward, "CPU")
torch.library.register_fake("turret::lstm_layer_backward", _lstm_layer_backward_fake, lib=_library)

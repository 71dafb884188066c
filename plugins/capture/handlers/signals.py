"""``torch.istft``: computed from its parts, as eager does it, whose check of the window's overlaps reads data."""

from __future__ import annotations

import torch

from turret.plugins.capture.errors import Raised, Unsupported
from turret.plugins.capture.python import polyfills
from turret.plugins.capture.registry import registry
from turret.plugins.capture.values.base import Constant, Tracer, Value
from turret.plugins.capture.values.tensors import Tensor

_NONE = Constant(None)
_FALSE, _TRUE = Constant(False), Constant(True)


@registry.tensor_method("istft")
def inverse_of_method(t: Tracer, /, tensor: Tensor, *args: Value, **kwargs: Value) -> Value:
    return inverse(t, tensor, *args, **kwargs)


@registry.function(torch.istft)
def inverse(
    t: Tracer,
    input: Value,
    n_fft: Value,
    hop_length: Value = _NONE,
    win_length: Value = _NONE,
    window: Value = _NONE,
    center: Value = _TRUE,
    normalized: Value = _FALSE,
    onesided: Value = _NONE,
    length: Value = _NONE,
    return_complex: Value = _FALSE,
) -> Value:
    """The signal of a spectrogram of shape (channels, frequencies, frames), or without channels."""
    given = [input, n_fft, hop_length, win_length, window, center, normalized, onesided, length, return_complex]
    try:
        return t.call(t.wrap_known(polyfills.inverse_stft), given, {})
    except Raised as raised:
        raise Unsupported(f"torch.istft, which raises {raised.value.describe()}") from None

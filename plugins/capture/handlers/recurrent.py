"""Recurrent layers: whole ones of libraries are left to eager, where a graph would take them apart step by step."""

from __future__ import annotations

from typing import Any

import torch

from turret.graph.ops.recurrent_ops import has_trained_kernel
from turret.hooks.devices import HOST
from turret.plugins.capture.errors import Unsupported
from turret.plugins.capture.interpreter.torch_functions import call_torch
from turret.plugins.capture.registry import Handler, registry
from turret.plugins.capture.values.base import Tracer, Value
from turret.plugins.capture.values.sequences import Sequence
from turret.plugins.capture.values.tensors import Tensor


def _tensors(values: Any) -> list[Tensor]:
    found: list[Tensor] = []
    for value in values:
        value = value.realize()
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, Sequence):
            found += _tensors(value.items)
    return found


def _recurrent(layer: Any) -> Handler:
    """A graph break where eager has one kernel for all steps that the graph has no call of: cuDNN's, and oneDNN's with
    its gradient for some inputs.

    Two layers of LSTM over 32 steps on a CPU: 4.8 ms a training step in eager, 10.3 ms as 270 kernels and calls.  With
    ``fullgraph`` the steps become part of the graph.
    """

    def call(t: Tracer, *args: Value) -> Value:
        given = [v.fake for v in _tensors(args)]
        on_gpu = any(f.device.type != HOST.type for f in given)
        trained = torch.is_grad_enabled() and any(f.requires_grad for f in given)
        with_onednn = layer is torch.lstm and torch.backends.mkldnn.is_available() and not on_gpu
        torn = with_onednn and trained and not has_trained_kernel(given[0], given[1:])
        if (on_gpu or torn) and not t.policy.data_dependent:
            raise Unsupported(f"torch.{layer.__name__}, which libraries have kernels for")
        return call_torch(t, layer, list(args), {})

    return call


for _layer in (torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu):
    registry.functions[_layer] = _recurrent(_layer)

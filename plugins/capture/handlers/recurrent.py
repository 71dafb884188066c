"""Recurrent layers: whole ones of libraries are left to eager, where a graph would take them apart step by step.

Over packed sequences, whose batch sizes are data, a layer is one call in the graph.
"""

from __future__ import annotations

from typing import Any

import torch

from turret.graph.ops.recurrent_ops import has_trained_kernel
from turret.graph.ops.sequence_ops import FUNCTIONS
from turret.hooks.devices import HOST
from turret.plugins.capture.errors import Unsupported
from turret.plugins.capture.interpreter.torch_functions import call_torch
from turret.plugins.capture.python import packed_sequences
from turret.plugins.capture.record.sizes import data_sizes
from turret.plugins.capture.registry import Handler, registry
from turret.plugins.capture.values.base import Constant, Tracer, Value
from turret.plugins.capture.values.sequences import List, Sequence, Tuple
from turret.plugins.capture.values.tensors import Tensor
from turret.torch_compat.operators.native_functions import pack_padded, pad_packed


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
        if len(args) == 9 and isinstance(args[3].realize(), Sequence):
            return _packed(t, layer.__name__, *args)
        given = [v.fake for v in _tensors(args)]
        on_gpu = any(f.device.type != HOST.type for f in given)
        trained = torch.is_grad_enabled() and any(f.requires_grad for f in given)
        with_onednn = layer is torch.lstm and torch.backends.mkldnn.is_available() and not on_gpu
        torn = with_onednn and trained and not has_trained_kernel(given[0], given[1:])
        if (on_gpu or torn) and not t.policy.data_dependent:
            raise Unsupported(f"torch.{layer.__name__}, which libraries have kernels for")
        return call_torch(t, layer, list(args), {})

    return call


for _layer in FUNCTIONS.values():
    registry.functions[_layer] = _recurrent(_layer)


def _packed(
    t: Tracer,
    kind: str,
    data: Value,
    batch_sizes: Value,
    hidden: Value,
    weights: Value,
    biased: Value,
    layers: Value,
    dropout: Value,
    train: Value,
    both: Value,
) -> Value:
    """Layers over a packed sequence: in one call, or in one each where elements are dropped out between them."""
    data = data.realize()
    assert isinstance(data, Tensor)
    if torch.is_autocast_enabled(data.fake.device.type):
        raise Unsupported(f"torch.{kind} of a packed sequence under autocast")
    states, weights_left = _tensors([hidden]), _tensors([weights])
    count = t.constant_of(layers)
    together = count if t.constant_of(dropout) == 0 or not t.truth(train) else 1
    directions, each = 2 if t.truth(both) else 1, len(weights_left) // count
    ended: list[list[Value]] = []
    for first in range(0, count, together):
        if first:
            data = t.recorder.call(torch.dropout, [data, dropout, Constant(True)], {})
        part = [_layers_of(t, s, first * directions, together * directions) for s in states]
        mine = weights_left[first * each : (first + together) * each]
        given = [Constant(kind), data, batch_sizes, List(part), List([*mine]), biased, Constant(together), train, both]
        data, *last = t.recorder.call(torch.ops.turret.packed_layers.default, given, {}).unpack(t)
        ended.append(last)
    if len(ended) == 1:
        return Tuple([data, *ended[0]])
    return Tuple([data, *(t.recorder.call(torch.cat, [Tuple([*parts])], {}) for parts in zip(*ended, strict=True))])


def _layers_of(t: Tracer, states: Tensor, first: int, count: int) -> Value:
    if states.fake.shape[0] == count:
        return states
    return t.recorder.call_method("narrow", [states, Constant(0), Constant(first), Constant(count)], {})


@registry.function(torch.nn.RNNBase.check_hidden_size)
def check_hidden_size(t: Tracer, /, *args: Value, **kwargs: Value) -> Value:
    """What layers check of the states that they are given, the batch of a packed sequence among it."""
    return t.call(t.wrap_known(packed_sequences.check_hidden_size), list(args), kwargs)


@registry.function(pad_packed)
def pad_packed_sequence(t: Tracer, /, *args: Value) -> Value:
    """``torch.nn.utils.rnn.pad_packed_sequence``: an index for each element, of the batch sizes."""
    with data_sizes(t):
        return t.call(t.wrap_known(packed_sequences.pad_packed), list(args), {})


@registry.function(pack_padded)
def pack_padded_sequence(t: Tracer, /, input: Value, lengths: Value, batch_first: Value) -> Value:
    """``torch.nn.utils.rnn.pack_padded_sequence``: elements in known places, where the lengths are known."""
    padded, given = input.realize(), lengths.realize()
    known = t.recorder.known.elements(given.fake) if isinstance(given, Tensor) else None
    if not isinstance(padded, Tensor) or not isinstance(given, Tensor) or given.fake.dim() != 1:
        raise Unsupported("sequences to be packed that are no tensors of such lengths")
    if known is None or not all(type(n) is int for n in known):
        lengths = t.recorder.call(torch.ops.aten.clone.default, [lengths], {})  # what is read of it guards on no number
        with data_sizes(t):
            packed = t.call(t.wrap_known(packed_sequences.pack_padded), [input, lengths, batch_first], {})
        sizes = packed.unpack(t)[1].realize()
        assert isinstance(sizes, Tensor)
        t.recorder.known.note_first(sizes.fake, t.recorder.size_value(given, 0))
        return packed
    if not _is_packable(padded.fake, known, t.truth(batch_first)):
        raise Unsupported(f"sequences to be packed by lengths {known}")
    return _packed_by(t, padded, known, t.truth(batch_first))


def _packed_by(t: Tracer, padded: Tensor, lengths: list[int], batch_first: bool) -> Value:
    """A tensor's sequences, packed by lengths that are known."""
    sizes = [sum(length > step for length in lengths) for step in range(lengths[0])]
    places = [(step, column) for step, size in enumerate(sizes) for column in range(size)]
    index = [_tensor_of(t, numbers) for numbers in zip(*places, strict=True)]
    key = Tuple(index[::-1] if batch_first else index)
    return Tuple([padded.get_item(t, key), _tensor_of(t, sizes)])


def _is_packable(padded: torch.Tensor, lengths: list[Any], batch_first: bool) -> bool:
    """Whether lengths are plain numbers that eager takes for the sequences of a tensor."""
    if padded.dim() < 2 or not lengths:
        return False
    batch, steps = padded.shape[:2] if batch_first else (padded.shape[1], padded.shape[0])
    in_order = lengths == sorted(lengths, reverse=True) and lengths[-1] > 0
    return in_order and bool(batch == len(lengths)) and bool(steps >= lengths[0])


def _tensor_of(t: Tracer, numbers: Any) -> Value:
    return t.call(t.wrap_known(torch.tensor), [List([Constant(n) for n in numbers])], {})

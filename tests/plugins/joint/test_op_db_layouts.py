"""Every operation in torch's own table gives results in eager's layout, of arguments that lie in memory another way."""

from __future__ import annotations

import os
import warnings

import pytest
import torch
from torch.utils import _pytree as pytree

pytest.importorskip("expecttest", reason="torch's table of operations imports it")

from tests.plugins.joint_harness import compiled, snapshot
from tests.torch_versions import TORCH
from turret.errors import UnsupportedError, VerificationError
from turret.torch_compat.operators.opinfo import op_db

LEFT_OUT = ("unsafe", *(("fft.", "stft") if TORCH < (2, 12) else ()))
"""Parts that ``unsafe_split`` and its like return lie in one memory in eager, which they promise nothing about.

Before torch 2.12, fake results of Fourier transforms of reals are row-major whatever the argument's layout is, and so
are Turret's: their values are eager's, their strides are not.
"""
EXPLORES = os.environ.get("HYPOTHESIS_PROFILE") == "explore"
OPERATIONS = [
    op for op in op_db if torch.float32 in op.supported_dtypes("cpu") and not any(n in op.name for n in LEFT_OUT)
]


def transposed(value):
    return value.transpose(0, -1).contiguous().transpose(0, -1) if value.dim() > 1 else value


def channels_last(value):
    order = [0, *range(2, value.dim()), 1] if value.dim() > 2 else list(range(value.dim()))[::-1]
    return value.permute(order).contiguous().permute(sorted(range(len(order)), key=order.__getitem__))


def expanded(value):
    wide = [d for d, extent in enumerate(value.shape) if extent > 1]
    return value.narrow(wide[0], 0, 1).expand(value.shape) if wide else value


def gapped(value):
    dense = transposed(value)
    length = 1 + sum(
        2 * stride * max(extent - 1, 0) for stride, extent in zip(dense.stride(), dense.shape, strict=True)
    )
    memory = torch.zeros(length, dtype=value.dtype)
    return memory.as_strided(dense.shape, [2 * s for s in dense.stride()]).copy_(dense)


LAYOUTS = [transposed, channels_last, expanded, gapped]
PARTS = 8
PAIRS = [(part, layout) for part in range(PARTS) for n, layout in enumerate(LAYOUTS) if EXPLORES or (part + n) % 2 == 0]
"""Each operation in two of the layouts, in all of them where tests explore."""


def call(op, layout):
    """A function of tensors alone and its arguments, of one sample, another one for every layout."""
    samples = list(op.sample_inputs("cpu", torch.float32, requires_grad=False))
    sample = samples[LAYOUTS.index(layout) * len(samples) // len(LAYOUTS)]
    leaves, structure = pytree.tree_flatten(((sample.input, *sample.args), sample.kwargs))
    places = [n for n, leaf in enumerate(leaves) if type(leaf) is torch.Tensor and leaf.layout is torch.strided]

    def function(*tensors):
        given = dict(zip(places, tensors, strict=True))
        args, kwargs = pytree.tree_unflatten([given.get(n, leaf) for n, leaf in enumerate(leaves)], structure)
        return op.op(*args, **kwargs)

    return function, [layout(leaves[n].detach()) for n in places]


def seen(value):
    if not isinstance(value, torch.Tensor):
        return type(value)
    shape, stride, *rest = snapshot(value)
    steps = () if 0 in shape else tuple(stride)
    return shape, steps, rest if value.numel() else rest[:-1]


@pytest.mark.slow
@pytest.mark.parametrize(("part", "layout"), PAIRS, ids=[f"{part}-{layout.__name__}" for part, layout in PAIRS])
@pytest.mark.thorough(18)
def test_results_of_every_operation_are_laid_out_as_in_eager(part, layout):
    checked, wrong = 0, []
    for op in OPERATIONS[part::PARTS]:
        function, tensors = call(op, layout)
        if not tensors:
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                expected = pytree.tree_leaves(function(*tensors))
            except Exception:  # not on this device, or not in this layout
                continue
            try:
                actual = compiled(function, capture="call")(*tensors)
            except UnsupportedError:
                continue
            except VerificationError as error:
                wrong.append((op.name, op.variant_test_name, [t.stride() for t in tensors], error))
                continue
        checked += 1
        pairs = [(seen(a), seen(b)) for a, b in zip(expected, actual, strict=True)]
        wrong += [(op.name, op.variant_test_name, [t.stride() for t in tensors], a, b) for a, b in pairs if a != b]
    assert not wrong, "\n".join(map(str, wrong))
    assert checked > 40

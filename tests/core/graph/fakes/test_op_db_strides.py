"""Fakes have eager's strides, those of dimensions of size 1 too, for every op that torch's table of operations calls.

Arguments are transposed, channels-last, expanded, with gaps, or parts of larger tensors; what the backward calls is
checked as well.  Each op is asked once for each set of arguments, as the dispatcher sees them.
"""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

pytest.importorskip("expecttest", reason="torch's table of operations imports it")

from tests.plugins.joint.test_op_db_layouts import LAYOUTS
from tests.torch_versions import needs_torch
from turret.graph.fakes.corrections import CorrectedFakeTensorMode
from turret.torch_compat.operators.opinfo import op_db

PARTS = 24
SAMPLES = 3
"""Of each operation, spread over those that the table has."""


def with_strides_of_ones(value):
    """Dimensions of size 1 step over what no packed tensor steps over."""
    strides = [
        stride if extent != 1 else 7 + 3 * dim
        for dim, (stride, extent) in enumerate(zip(value.stride(), value.shape, strict=True))
    ]
    return value.as_strided(value.shape, strides)


def part_of_larger(value):
    return torch.cat([value, value], -1).narrow(-1, 0, value.shape[-1]) if value.dim() else value


WAYS = [*LAYOUTS, with_strides_of_ones, part_of_larger]


class Asking(TorchDispatchMode):
    """Compares what each op gives with what fakes say it gives."""

    def __init__(self) -> None:
        super().__init__()
        self.checked, self.wrong, self.seen = 0, [], set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        said = None if func._schema.is_mutable else self.say(func, args, kwargs)
        out = func(*args, **kwargs)
        if said is not None:
            self.checked += 1
            for one, other in zip(pytree.tree_leaves(out), said, strict=True):
                if isinstance(one, torch.Tensor) and one.layout is torch.strided and one.numel():
                    wanted, found = ((v.shape, v.stride(), v.storage_offset(), v.dtype) for v in (one, other))
                    if wanted != found:
                        given = [v.stride() for v in pytree.tree_leaves(args) if isinstance(v, torch.Tensor)]
                        self.wrong.append((str(func), given, wanted, found))
        return out

    def say(self, func: Any, args: Any, kwargs: Any) -> list[Any] | None:
        """What fakes say of a call that they have not been asked about; None where they say nothing."""
        leaves, structure = pytree.tree_flatten((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        if not tensors or not all(type(t) is torch.Tensor and t.layout is torch.strided for t in tensors):
            return None
        key = (func, *((t.shape, t.stride(), t.dtype) if isinstance(t, torch.Tensor) else str(t) for t in leaves))
        if key in self.seen:
            return None
        self.seen.add(key)
        mode = CorrectedFakeTensorMode(allow_non_fake_inputs=True)
        fakes = [mode.from_tensor(v.detach()) if isinstance(v, torch.Tensor) else v for v in leaves]
        given, named = pytree.tree_unflatten(fakes, structure)
        try:
            with mode:
                return pytree.tree_leaves(func(*given, **named))
        except Exception:  # results depend on data, or eager refuses the call as well
            return None


def run(op: Any, sample: Any, way: Any) -> None:
    """An operation and its backward, of arguments laid out in a way."""
    leaves, structure = pytree.tree_flatten(((sample.input, *sample.args), sample.kwargs))
    given = [
        way(v.detach()).requires_grad_(v.is_floating_point() or v.is_complex())
        if type(v) is torch.Tensor and v.layout is torch.strided
        else v
        for v in leaves
    ]
    args, kwargs = pytree.tree_unflatten(given, structure)
    results = [v for v in pytree.tree_leaves(op.op(*args, **kwargs)) if isinstance(v, torch.Tensor) and v.requires_grad]
    if results:
        wanted = [v for v in given if isinstance(v, torch.Tensor) and v.requires_grad]
        torch.autograd.grad(results, wanted, [torch.ones_like(v) for v in results], allow_unused=True)


@needs_torch(2, 12, "earlier fakes have strides of their own for Fourier transforms and what is made of them")
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.thorough(12)
def test_fakes_have_eagers_strides_for_every_op(part):
    asking = Asking()
    for op in op_db[part::PARTS]:
        for dtype in (torch.float32, torch.complex64):
            samples = list(op.sample_inputs("cpu", dtype)) if dtype in op.supported_dtypes("cpu") else []
            for place, sample in enumerate(samples[:: max(1, len(samples) // SAMPLES)]):
                for number, way in enumerate(WAYS):
                    if (place + number) % 2 == 0:
                        with asking, warnings.catch_warnings():
                            warnings.simplefilter("ignore")
                            try:
                                run(op, sample, way)
                            except Exception:  # not in this layout
                                continue
    assert not asking.wrong, "\n".join(map(str, asking.wrong[:20]))
    assert asking.checked > 300

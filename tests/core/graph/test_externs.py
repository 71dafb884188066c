"""What a plan calls for an op gives what the op gives, and takes the arguments that the op takes."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

pytest.importorskip("expecttest", reason="torch's table of operations imports it")

from turret.graph.externs import fast_callable, op_name
from turret.torch_compat.operators.opinfo import op_db

PARTS = 8


class Calls(TorchDispatchMode):
    """Compares, for each op the first time that it is called, what the quickest callable and the op itself give."""

    def __init__(self):
        super().__init__()
        self.seen, self.unlike = set(), []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        quick = fast_callable(op_name(func)) if func.namespace == "aten" else func._op
        if quick is not func._op and func not in self.seen:
            self.seen.add(func)
            if not alike(outcome(quick, args, kwargs), outcome(func._op, args, kwargs)):
                self.unlike.append(str(func))
        return func(*args, **kwargs)


def outcome(function, args, kwargs):
    """Results, what the arguments are afterwards, or the error."""
    args, kwargs = pytree.tree_map_only(torch.Tensor, torch.clone, (args, kwargs))
    state = torch.get_rng_state()
    try:
        found = function(*args, **kwargs)
        return pytree.tree_leaves((found, args, kwargs))
    except RuntimeError as error:
        return [str(error)]
    finally:
        torch.set_rng_state(state)


def alike(found, expected):
    return len(found) == len(expected) and all(map(same, found, expected))


def same(found, expected):
    if not isinstance(expected, torch.Tensor):
        return type(found) is type(expected) and (found == expected or found != found)
    layout = (found.dtype, found.shape, found.layout) == (expected.dtype, expected.shape, expected.layout)
    if not layout or expected.layout is not torch.strided or expected.is_quantized:
        return layout
    return found.stride() == expected.stride() and torch.allclose(found, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.thorough(4)
def test_the_quickest_callable_of_an_op_gives_what_the_op_gives(part):
    calls = Calls()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        for entry in op_db[part::PARTS]:
            dtype = torch.float32 if entry.supports_dtype(torch.float32, "cpu") else torch.int64
            if not entry.supports_dtype(dtype, "cpu"):
                continue
            sample = next(iter(entry.sample_inputs("cpu", dtype)), None)
            if sample is not None:
                with calls:
                    try:
                        entry(sample.input, *sample.args, **sample.kwargs)
                    except Exception:  # not on this device
                        continue
    assert not calls.unlike, calls.unlike
    assert len(calls.seen) > 10

"""What ops give for fake tensors is remembered by layout; of elementwise ops for all row-major shapes of a rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from turret.graph.fakes.corrections import CorrectedFakeTensorMode
from turret.plugins.joint.fakes import FakeRunner, layout_key

aten = torch.ops.aten
DTYPES = (torch.float32, torch.float16, torch.int64, torch.bool)
OPS: dict[Any, int] = {
    aten.add.Tensor: 2,
    aten.mul.Tensor: 2,
    aten.div.Tensor: 2,
    aten.where.self: 3,
    aten.gt.Tensor: 2,
    aten.pow.Tensor_Scalar: 1,
    aten.exp.default: 1,
    aten.clone.default: 1,
    aten.maximum.default: 2,
}
"""By the op, of how many tensors it is."""
LAYOUTS = ("row-major", "transposed", "with gaps", "broadcast")


@st.composite
def calls(draw: st.DrawFn) -> list[tuple[Any, list[tuple[tuple[int, ...], str, torch.dtype]]]]:
    """Calls of one op on operands of one rank, that differ in sizes, layouts and dtypes."""
    op = draw(st.sampled_from(list(OPS)))
    rank = draw(st.integers(0, 4))
    found = []
    for _ in range(draw(st.integers(2, 5))):
        shape = tuple(draw(st.lists(st.integers(0, 5), min_size=rank, max_size=rank)))
        dtypes = [draw(st.sampled_from(DTYPES)) for _ in range(OPS[op])]
        if op is aten.where.self:
            dtypes[0] = torch.bool
        found.append((op, [(shape, draw(st.sampled_from(LAYOUTS)), dtype) for dtype in dtypes]))
    return found


def operand(shape: Sequence[int], layout: str, dtype: torch.dtype) -> torch.Tensor:
    if layout == "transposed":
        return torch.empty(tuple(reversed(shape)), dtype=dtype).permute(tuple(reversed(range(len(shape)))))
    if layout == "with gaps" and shape:
        return torch.empty((*shape[:-1], 2 * shape[-1]), dtype=dtype)[..., ::2]
    if layout == "broadcast" and shape:
        return torch.empty((1, *shape[1:]), dtype=dtype)
    return torch.empty(tuple(shape), dtype=dtype)


def outcome(runner: FakeRunner, op: Any, operands: list[torch.Tensor]) -> Any:
    """The layout of a result and whether it has memory of its own, or the kind of the error."""
    args = (*operands, 2.0) if op is aten.pow.Tensor_Scalar else tuple(operands)
    try:
        made = runner(op, args, {})
    except (RuntimeError, TypeError) as error:
        return type(error)
    own = all(made.untyped_storage()._cdata != o.untyped_storage()._cdata for o in operands)
    return tuple(made.shape), made.stride(), made.storage_offset(), made.dtype, made.device, own


@given(calls())
@settings(max_examples=150, deadline=None)
def test_what_is_remembered_is_what_the_op_gives(
    made: list[tuple[Any, list[tuple[tuple[int, ...], str, torch.dtype]]]],
) -> None:
    mode = CorrectedFakeTensorMode()
    remembering = FakeRunner(mode, layout_key)
    for op, layouts in made:
        with mode:
            operands = [operand(*layout) for layout in layouts]
        with mode:
            assert outcome(remembering, op, operands) == outcome(FakeRunner(mode, layout_key), op, operands)


def test_an_elementwise_op_is_asked_once_for_all_row_major_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    mode, asked = CorrectedFakeTensorMode(), []
    runner, fresh = FakeRunner(mode, layout_key), FakeRunner._fresh
    monkeypatch.setattr(
        FakeRunner, "_fresh", lambda self, func, args, kwargs: asked.append(func) or fresh(self, func, args, kwargs)
    )
    with mode:
        for width in (2, 3, 64, 1000):
            x = torch.empty(4, width)
            assert runner(aten.mul.Tensor, (x, x), {}).stride() == (width, 1)
    assert asked == [aten.mul.Tensor]

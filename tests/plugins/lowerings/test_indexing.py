"""Gathers, scatters and tensors put together give eager's elements, and raise where eager does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.plugins.lowerings.lowering_lab import check, externs, lowered
from turret.ir import Definition
from turret.ir.expr import walk
from turret.testing.loops.interpreter import run_program

FLOATS = (torch.float32, torch.bfloat16, torch.float64)


def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    if dtype == torch.bool:
        return torch.rand(*shape) < 0.5
    return torch.randn(*shape).mul(3).to(dtype)


def places(*shape: int, high: int) -> torch.Tensor:
    return torch.randint(0, high, shape)


GATHERS: dict[str, tuple[Callable, tuple[Any, ...]]] = {
    "gather": (lambda x, i: (torch.gather(x, 1, i),), (numbers(4, 5), places(4, 3, high=5))),
    "gather of fewer rows": (lambda x, i: (torch.gather(x, 0, i),), (numbers(4, 5), places(2, 3, high=4))),
    "index_select": (lambda x, i: (x.index_select(1, i),), (numbers(4, 5), places(7, high=5))),
    "embedding": (lambda w, i: (F.embedding(i, w),), (numbers(6, 3), places(2, 4, high=6))),
    "rows": (lambda x, i: (x[i],), (numbers(5, 3), places(2, 4, high=5))),
    "negative rows": (lambda x, i: (x[i - 5],), (numbers(5, 3), places(7, high=5))),
    "neighbours": (lambda x, i, j: (x[:, i, j],), (numbers(2, 4, 5, 3), places(3, 1, high=4), places(2, high=5))),
    "apart": (lambda x, i, j: (x[:, i, :, j],), (numbers(2, 4, 5, 3), places(3, 1, high=4), places(2, high=3))),
    "of a view": (lambda x, i: (x.t()[i], x[::2, 1:][:, i % 4]), (numbers(5, 5), places(3, high=5))),
    "int32 places": (lambda x, i: (x[i.int()],), (numbers(5, 3), places(4, high=5))),
}


@pytest.mark.parametrize("name", GATHERS)
def test_gathers_are_loops(name: str) -> None:
    function, args = GATHERS[name]
    check(function, *args, loops_only=True)


@pytest.mark.parametrize("dtype", (*FLOATS, torch.int64, torch.bool))
def test_scatters_combine_as_in_eager(dtype: torch.dtype) -> None:
    x, source, where = numbers(4, 5, dtype=dtype), numbers(6, 5, dtype=dtype), places(6, 5, high=4)
    check(lambda a, i, s: (a.scatter_add(0, i, s),), x, where, source, loops_only=True)
    for reduce in ("sum", "prod", "amax", "amin"):
        for own in (True, False):
            check(
                lambda a, i, s, r=reduce, o=own: (a.scatter_reduce(0, i, s, r, include_self=o),),
                *(x, where, source),
                loops_only=True,
            )


def test_scatter_sets_elements_once() -> None:
    x, source = numbers(4, 5), numbers(4, 5)
    where = torch.stack([torch.randperm(5) for _ in range(4)])
    check(lambda a, i, s: (a.scatter(1, i, s), a.scatter(1, i, 7.0)), x, where, source, loops_only=True)
    check(lambda a, i, s: (a.scatter(0, i, s),), torch.tensor(1.0), torch.tensor(0), torch.tensor(3.0))


@pytest.mark.parametrize("dtype", FLOATS)
def test_index_put_sets_and_accumulates(dtype: torch.dtype) -> None:
    x, values = numbers(6, 3, dtype=dtype), numbers(8, 3, dtype=dtype)
    check(lambda a, i, v: (a.index_put((i,), v, accumulate=True),), x, places(8, high=6), values, loops_only=True)
    check(lambda a, i, v: (a.index_put((i,), v[:6]),), x, torch.randperm(6), values, loops_only=True)
    check(lambda a, i, v: (a.index_add(0, i, v, alpha=2),), x, places(8, high=6), values, loops_only=True)
    check(lambda a, i: (a.index_put((i,), a.new_full((), 2)),), x, torch.randperm(6)[:3], loops_only=True)


def test_a_mask_sets_one_value() -> None:
    x = numbers(4, 5)
    check(lambda a: (a.index_put((a > 0,), torch.tensor(2.0)),), x, loops_only=True)
    check(lambda a: (a.index_put((a[:, 0] > 0,), torch.tensor(2.0), accumulate=True),), x, loops_only=True)


@pytest.mark.parametrize("dtype", FLOATS)
def test_gradients_of_embeddings_add_up_rows_but_the_padding(dtype: torch.dtype) -> None:
    grad, where = numbers(7, 4, dtype=dtype), places(7, high=5)
    for padding in (-1, 2):
        check(
            lambda g, i, p=padding: (torch.ops.aten.embedding_dense_backward(g, i, 5, p, False),),
            *(grad, where),
            loops_only=True,
        )


OUTSIDE: dict[str, Callable] = {
    "gather": lambda x, i: (torch.gather(x, 0, i),),
    "index": lambda x, i: (x[i[0]],),
    "index_select": lambda x, i: (x.index_select(0, i[0]),),
    "embedding": lambda x, i: (F.embedding(i[0], x),),
    "scatter_add": lambda x, i: (x.scatter_add(0, i, x),),
    "scatter": lambda x, i: (x.scatter(0, i, 1.0),),
    "index_put": lambda x, i: (x.index_put((i[0],), x[0], accumulate=True),),
}


@pytest.mark.parametrize("name", OUTSIDE)
def test_an_index_out_of_range_raises_as_in_eager(name: str) -> None:
    function, x = OUTSIDE[name], numbers(3, 3)
    good = torch.zeros(3, 3, dtype=torch.int64)
    program = lowered(function, x, good)
    for bad in (3, -4):
        wrong = good.clone()
        wrong[0, 1] = bad
        with pytest.raises((IndexError, RuntimeError)) as expected:
            function(x, wrong)
        with pytest.raises(expected.type, match="out of range"):
            run_program(program, [x, wrong])


PAD_MODES = ("reflect", "replicate", "circular")

PUT_TOGETHER: dict[str, Callable] = {
    "cat": lambda x, y: (torch.cat([x, y, x[:1]]), torch.cat([x, y], 1), torch.cat([x, y.double()])),
    "cat with empty": lambda x, y: (torch.cat([x.new_empty(0), x, y]),),
    "stack": lambda x, y: (torch.stack([x, y]), torch.stack([x, y], 2)),
    "pad": lambda x, y: (F.pad(x, (1, 2)), F.pad(x, (0, 0, 2, 1), value=3.0), F.pad(x, (-1, 1, 1, -2))),
    "other pads": lambda x, y: tuple(F.pad(x[None], (1, 2, 2, 1), mode=m) for m in PAD_MODES),
    "slice_scatter": lambda x, y: (x.slice_scatter(y[:2], 0, 1, 3), x.slice_scatter(y[:, :2], 1, 0, 3, 2)),
    "select_scatter": lambda x, y: (x.select_scatter(y[0], 0, -1), x.select_scatter(y[:, 0], 1, 2)),
    "diagonal_scatter": lambda x, y: (x.diagonal_scatter(y[0, :3]), x.diagonal_scatter(y[0, :2], 1)),
    "flip and roll": lambda x, y: (x.flip(0), x.flip(-1, 0), x.roll(1, 0), x.roll((1, 2), (0, 1))),
    "triangles": lambda x, y: (x.tril(), x.triu(1), x.tril(-1)),
    "repeats": lambda x, y: (x.repeat(2, 1), x.expand(2, 3, 3) + 0, x.repeat_interleave(2, 1)),
}


@pytest.mark.parametrize("name", PUT_TOGETHER)
def test_tensors_put_together(name: str) -> None:
    check(PUT_TOGETHER[name], numbers(3, 3), numbers(3, 3))


def test_mirrored_padding_on_the_cpu_is_eagers() -> None:
    modes = ("reflect", "replicate")
    program = check(lambda x: tuple(F.pad(x, (1, 2), mode=m) for m in modes), numbers(2, 3, 4))
    assert len(externs(program)) == 2 and "copies rows" in str(program)


@pytest.mark.parametrize("dynamic", [False, True])
def test_what_is_known_of_a_position_is_not_asked(dynamic: bool) -> None:
    def function(a: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (torch.slice_scatter(a, a * 2, 0, 0, a.shape[0]),)

    program = check(function, torch.randn(4, 6), dynamic=dynamic)
    asked = {n.op for s in program.statements if isinstance(s, Definition) for n in walk(s.expr)}
    assert not asked & {"where", "masked", "lt", "ge"}

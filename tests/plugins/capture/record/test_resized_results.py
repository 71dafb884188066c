"""Arguments ``out=`` that a call resizes: the memory is the program's, and not what the graph's fakes say of it."""

from __future__ import annotations

import pytest
import torch

import turret


def into(size, layout=lambda v: v):
    return lambda n: (layout(torch.arange(n * (n + 1.0)).view(n, n + 1)), torch.empty(size))


PROGRAMS = {
    "a product": lambda x, o: (torch.mul(x, x, out=o), o, tuple(o.shape)),
    "an overload": lambda x, o: (torch.ops.aten.mul.out(x, x, out=o), o),
    "a concatenation": lambda x, o: (torch.cat([x, x], out=o), o),
    "of the graph's own": lambda x, o: (torch.mul(x, x, out=(made := torch.empty(0))), made, o),
    "a part of the argument": lambda x, o: (torch.mul(x, x, out=o[:0]), o),
}
ARGUMENTS = {
    "empty": into(0), "empty, of a transpose": into(0, torch.t), "empty, of a part": into(0, lambda v: v[:, ::2]),
}  # fmt: skip


@pytest.mark.parametrize("make", ARGUMENTS.values(), ids=ARGUMENTS)
@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_a_result_that_is_resized_is_eager_s(program, make):
    compiled = turret.compile(program)
    for size in (3, 4, 5):
        mine, theirs = make(size), make(size)
        found, expected = compiled(*mine), program(*theirs)
        for one, other in zip((*found, *mine), (*expected, *theirs), strict=True):
            if isinstance(other, torch.Tensor):
                assert torch.equal(one, other) and one.stride() == other.stride()
            else:
                assert one == other
        assert [v is mine[1] for v in found] == [v is theirs[1] for v in expected]


def test_a_result_of_the_right_size_is_in_the_graph():
    compiled = turret.compile(lambda x, o: (torch.mul(x, x, out=o), o), fullgraph=True)
    for n in (3, 4, 5):
        x, o = torch.randn(n, n), torch.empty(n, n).t()
        found = compiled(x, o)[0]
        assert found is o and torch.equal(o, x * x)


MATRIX = torch.tensor([[4.0, 1.0, 0.5], [1.0, 5.0, 2.0], [0.5, 2.0, 6.0]])


@pytest.mark.parametrize("name, results", [("qr", 2), ("eigh", 2), ("lu_factor", 2), ("inv", 1), ("cholesky", 1)])
def test_a_factor_that_fills_an_empty_tensor_has_eager_s_strides(name, results):
    def program(x):
        dtypes = (torch.float32, torch.int32 if name == "lu_factor" else torch.float32)
        made = tuple(torch.empty(0, dtype=dtype) for dtype in dtypes[:results])
        getattr(torch.linalg, name)(x, out=made if results > 1 else made[0])
        return made

    for one, other in zip(turret.compile(program)(MATRIX), program(MATRIX), strict=True):
        torch.testing.assert_close(one, other)
        assert one.stride() == other.stride()


@pytest.mark.parametrize("out", [lambda: torch.empty(0), lambda: torch.empty(2, 3).t()], ids=["empty", "as it is"])
def test_what_an_operation_makes_room_for_by_itself_is_in_the_graph(out):
    def program(x):
        made = out()
        torch.linalg.solve(MATRIX, x, out=made)
        return made

    x = torch.arange(6.0).view(3, 2)
    found, expected = turret.compile(program, fullgraph=True, options={"on_error": "raise"})(x), program(x)
    torch.testing.assert_close(found, expected)
    assert found.stride() == expected.stride()

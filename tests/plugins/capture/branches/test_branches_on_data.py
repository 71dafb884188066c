"""An ``if`` that data decide is a ``cond`` of a whole graph: drawn programs give what eager gives, or are refused."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, note, settings

import turret
from turret.errors import CaptureError, StageError

DATA = ([1.0, -2.0, 3.0], [-1.0, -2.0, -3.0], [0.0, 0.0, 0.0], [4.0, 5.0, -1.0], [float("nan"), 1.0, -1.0])


def memory(values: tuple) -> list[int]:
    """For each tensor, the first one that lies in the same memory."""
    places = [v.untyped_storage().data_ptr() for v in values]
    return [places.index(p) for p in places]


def outcome(function: Callable, data: list[float]) -> Any:
    """All that a caller sees of a call."""
    x = torch.tensor(data)
    w = torch.tensor([1.0, 2.0, -1.0], requires_grad=True)
    u = torch.tensor([0.5, -1.0, 2.0], requires_grad=True)
    try:
        found = function(x, w, u)
    except (ZeroDivisionError, ValueError, OverflowError, UnboundLocalError, RuntimeError, IndexError) as error:
        return type(error)
    results = found if isinstance(found, tuple) else (found,)
    tensors = tuple(v for v in results if isinstance(v, torch.Tensor))
    seen = [v.requires_grad if isinstance(v, torch.Tensor) else type(v) for v in results]
    shared = memory((x, w, u, *tensors))
    loss = [v.sum() for v in tensors if v.requires_grad]
    raises = False
    if loss:
        try:
            torch.stack(loss).sum().backward()
        except RuntimeError:  # of a write to what it needs
            raises = True
    return [x, *results], [w.grad, u.grad], seen, shared, raises


def assert_same(found: Any, expected: Any) -> None:
    if isinstance(expected, type):
        assert found in (expected, RuntimeError)  # of the graph's check, where the call has changed its inputs
        return
    assert not isinstance(found, type), found
    assert found[2:4] == expected[2:4]
    assert not found[4] or expected[4]
    gradients = [] if expected[4] else zip(found[1], expected[1], strict=True)
    for mine, theirs in [*zip(found[0], expected[0], strict=True), *gradients]:
        assert (mine is None) == (theirs is None), (mine, theirs)
        torch.testing.assert_close(mine, theirs, equal_nan=True)


def check(function: Callable, data: Any = DATA, backend: str = "aot_eager") -> None:
    """Equal to eager for all data, both sides of all branches among them."""
    compiled = turret.compile(function, fullgraph=True, backend=backend, dynamic=False, options={"on_error": "raise"})
    for numbers in data:
        assert_same(outcome(compiled, numbers), outcome(function, numbers))


def program(text: str) -> Callable:
    scope: dict[str, Any] = {"torch": torch}
    exec(compile(textwrap.dedent(text), "<program>", "exec"), scope)
    return scope["f"]


CONDITIONS = ["x.sum() > 0", "(y > 1).any()", "n > 1", "s > 0.5", "not (x == 0).all()", "x.max() > 2 and y.min() < 0",
              "n", "y[0] > 0 or s < 0", "w.detach()[2] < x[0]", "(x > 0).sum().item() == 2"]  # fmt: skip
PLAIN = ["y = y * 2", "y = x + w", "y = w * u", "y = x", "y = y.sin() + 1", "y = x[1:]", "n = n + 1", "n = 3", "s = 2.5",
         "s = y.detach().sum().item()", "n = int((y > 0).sum())", "z = y + u", "z = (x, y)", "y += 1", "y[0] = 2.0", "x += 1",
         "x[x > 0] = 1.5", "y = y.clone()", "s = s / n", "l = [y, n]", "y = l[0] + l[1]", "z = x.view(3)", "y = z + 1",
         "l.append(y)", "y = y * n", "y = y * s", "y = u.exp()", "w2 = w * 1", "y = w2 + x", "y = torch.where(x > 0, y, x)",
         "y.mul_(w)", "pass", "y = y.detach()", "n = True", "t = (n, s)", "n, s = t"]  # fmt: skip


def indented(lines: list[str]) -> list[str]:
    return ["    " + line for line in lines]


def conditional(parts: tuple[str, list[str], list[str]]) -> list[str]:
    condition, yes, no = parts
    return [f"if {condition}:", *indented(yes), *(["else:", *indented(no)] if no else [])]


def flat(blocks: list[list[str]]) -> list[str]:
    return [line for block in blocks for line in block]


STATEMENT = st.sampled_from(PLAIN).map(lambda line: [line])
RETURN = st.sampled_from(["return y", "return y, n", "return x * 2, y", "return y + w, s", "return (y * u).sum()"]).map(
    lambda line: [line]
)


def blocks(depth: int) -> st.SearchStrategy[list[str]]:
    if depth == 0:
        return st.lists(STATEMENT, min_size=1, max_size=2).map(flat)
    inner = blocks(depth - 1)
    ifs = st.tuples(st.sampled_from(CONDITIONS), inner, st.one_of(inner, st.just([]))).map(conditional)
    early = st.tuples(st.sampled_from(CONDITIONS), st.tuples(inner, RETURN).map(list).map(flat), st.just([])).map(conditional)
    ternary = st.sampled_from(CONDITIONS).flatmap(
        lambda c: st.sampled_from([f"y = y * 2 if {c} else y - w", f"n = 1 if {c} else 2", f"s = s if {c} else 4.0"])
    )
    loop = inner.map(lambda lines: ["for i in range(2):", *indented(lines)])
    with_mode = inner.map(lambda lines: ["with torch.no_grad():", *indented(lines)])
    choice = st.one_of(ifs, ifs, ifs, STATEMENT, STATEMENT, early, ternary.map(lambda t: [t]), loop, with_mode)
    return st.lists(choice, min_size=1, max_size=3).map(flat)


PROGRAMS = st.tuples(blocks(2), RETURN).map(list).map(flat)


@pytest.mark.filterwarnings("ignore")
@settings(max_examples=40, deadline=None)
@given(body=PROGRAMS)
def test_a_program_gives_what_eager_gives_or_is_refused(body):
    start = ["y = x * w", "z = x + 1", "w2 = u * 2", "n = int((x > 0).sum())", "s = x.sum().item()", "l = [x, 1]", "t = (1, 2.0)"]
    text = "\n".join(["def f(x, w, u):", *indented(start), *indented(body)])
    note(text)
    try:
        check(program(text))
    except (CaptureError, StageError):
        return

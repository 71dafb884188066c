"""Sizes and ints that change between calls, pass an end or change sign: each call shows what eager shows."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

import turret
from turret.hooks.events import Event


class Compiles:
    """A plugin that counts the graphs compiled."""

    def __init__(self) -> None:
        self.count = 0

    @turret.hookimpl
    def turret_event(self, event: Event) -> None:
        self.count += event.kind == "compile_ended"


NAMES = {"torch": torch, "F": F, "math": math, "numpy": numpy}
SIGNED = (4, 6, -3, 0, 10, -11, 30)


def function_of(source: str, parameters: str = "x, n") -> Callable:
    """A function of ``parameters`` with these lines; the last is what it returns."""
    *lines, result = source.splitlines()
    text = f"def program({parameters}):\n" + "".join(f"    {line}\n" for line in [*lines, f"return {result}"])
    scope = dict(NAMES)
    exec(compile(text, "<program>", "exec"), scope)
    return scope["program"]


def within(*shape: int) -> torch.Tensor:
    """Numbers with others around them in memory, so that reading past an end shows."""
    count = math.prod(shape)
    memory = torch.full((count + 128,), 777.0)
    memory[64 : 64 + count] = torch.arange(count) - 3.5
    return memory[64 : 64 + count].view(shape)


def outcome(function: Callable, args: Sequence[Any]) -> tuple[Any, Any]:
    """What a call returns, or the type of what it raises; and the tensors it was given, afterwards."""
    given_ = [a.clone() if isinstance(a, torch.Tensor) else a for a in args]
    try:
        result = function(*given_)
    except Exception as error:
        return type(error), None
    return result, [a for a in given_ if isinstance(a, torch.Tensor)]


def check(function: Callable, calls: Sequence[Sequence[Any]], *, cache: bool = False, **options: Any) -> None:
    """The compiled function gives eager's results in all calls, one after the other."""
    compiled = turret.compile(function, options={"cache": cache, "recompile_limit": 64}, **options)
    for args in calls:
        expected, found = outcome(function, args), outcome(compiled, args)
        numbers = [tuple(a.shape) if isinstance(a, torch.Tensor) else a for a in args]
        if isinstance(expected[0], type):
            assert found[0] is expected[0], f"{numbers}: {found[0]}, expected {expected[0]}"
        else:
            torch.testing.assert_close(found, expected, equal_nan=True, msg=lambda m, n=numbers: f"{n}: {m}")
            assert str(found) == str(expected) or not isinstance(expected[0], (int, float, str))


ELEMENTS = {
    "element": "x[n] * 2",
    "element of a column": "x[:, n] * 2",
    "two": "x[n, -n] + 1",
    "select": "x.select(0, n) * 2",
    "select_scatter": "torch.select_scatter(x, x[0] * 2, 0, n)",
    "written": "x[n] = 5.0\nx * 2",
    "column written": "x[:, n] = n\nx * 2",
    "added to": "x[n] += 1\nx * 2",
    "a row changed in place": "x[n].mul_(3)\nx * 2",
    "of a transposed one": "x.t()[n] * 2",
    "list": "x[[n, 0]] * 2",
    "lists": "x[[0, n], [n, 1]] * 2",
    "listed rows written": "x[[n, 0]] = 2.0\nx * 2",
}
SLICES = {
    "from": "x[n:] * 2",
    "to": "x[:n] * 2",
    "from the end": "x[-n:] * 2",
    "half from the end": "x[-(n // 2):] * 2",
    "crossing": "x[n:n + 3] * 2",
    "stepped": "x[n::2, :n] * 2",
    "sliced slice": "x[n:][-n:] * 2",
    "narrow": "x.narrow(0, n, 2) * 2",
    "narrow of symbolic length": "x.narrow(1, 0, n) * 2",
    "slice_scatter": "torch.slice_scatter(x, x[n:] * 2, 0, n)",
    "stepped slice_scatter": "torch.slice_scatter(x, x[:, n::2] * 2, 1, n, None, 2)",
    "slice_scatter of other sizes": "torch.slice_scatter(x, x[2:5] * 2, 0, n, 6)",
    "written": "x[n:] = 7.0\nx * 2",
    "block written": "x[:n, -n:] = n\nx * 2",
    "view changed": "x[n:].add_(1)\nx * 2",
    "turned around": "torch.cat([x[n:], x[:n]]) * 2",
    "sum": "x[n:].sum(0), x[:, n:].mean(1)",
    "split": "torch.split(x, n)[-1] * 2",
    "split in two": "torch.split(x, [n, 10 - n])[1] * 2",
    "tensor_split": "torch.tensor_split(x, (n,))[1] * 2",
    "chunk": "torch.chunk(x, n)[0] * 2",
    "diagonal": "torch.diagonal(x, n) * 2",
    "tril": "torch.tril(x, n)",
    "triu": "torch.triu(x, n) + 1",
    "roll": "torch.roll(x, n, 0) * 2",
    "pad": "F.pad(x, (n, -n)) * 2",
    "pad rows": "F.pad(x, (0, 0, n, 1)) * 2",
    "unfold": "x.unfold(0, 2, n) * 2",
    "arange": "torch.arange(n) * 2",
    "arange between": "torch.arange(n, 5 - n, 2) * 2",
    "arange downwards": "torch.arange(n, -n, -3) * 2",
    "repeat": "x.repeat(n, 1) * 2",
    "expand": "x[:1].expand(n, x.shape[1]) * 2",
    "view": "x.reshape(n, -1) * 2",
    "eye": "torch.eye(n) * 2",
    "linspace": "torch.linspace(0, n, n) * 2",
    "full": "torch.full((2, n), n) * 2",
    "dimension": "x.cumsum(n) * 2",
    "flip": "x.flip(n) * 2",
    "unsqueeze": "x.unsqueeze(n) * 2",
}


@pytest.mark.parametrize("source", ELEMENTS.values(), ids=ELEMENTS)
@pytest.mark.thorough
def test_an_element_is_found_from_either_end_or_refused(source):
    check(function_of(source), [(within(10, 6), n) for n in SIGNED], dynamic=True)


@pytest.mark.parametrize("source", SLICES.values(), ids=SLICES)
@pytest.mark.thorough
def test_a_part_ends_where_eagers_ends(source):
    check(function_of(source), [(within(10, 6), n) for n in SIGNED], dynamic=None)


BY_SIZE = {
    "last of a row": "x[:, -y.shape[0]:] * 2",
    "from the middle": "x[:, x.shape[1] // 2:] * 2",
    "fixed, of a size that changes": "x[:, -3:] * 2",
    "fixed end, of a size that changes": "x[:, :-4] + 1",
    "element": "x[:, -y.shape[0]] * 2",
    "difference": "x[:, x.shape[1] - y.shape[0]:] * 2",
    "written": "x[:, -y.shape[0]:] = 7.0\nx * 2",
    "element written": "x[:, 2 - y.shape[0]] = 7.0\nx * 2",
    "cut or padded": "F.pad(x, (0, y.shape[0] - x.shape[1])) * 2",
}


@pytest.mark.parametrize("source", BY_SIZE.values(), ids=BY_SIZE)
@pytest.mark.thorough
def test_an_index_may_be_a_size(source):
    sizes = [(12, 3), (7, 5), (9, 9), (5, 7), (4, 1), (0, 2), (12, 6)]
    check(function_of(source, "x, y"), [(within(2, wide), torch.zeros(count, 2)) for wide, count in sizes])


@pytest.mark.parametrize("source", ["x[n:]", "x[n]", "x[-n:, :n]", "torch.cat([x[n:], x])", "x[:, n:].cumsum(0)"])
@pytest.mark.thorough
def test_gradients_go_to_the_elements_that_were_taken(source):
    function = function_of(source)

    def gradient(x: torch.Tensor, n: int, function: Callable = function) -> torch.Tensor:
        x = x.detach().requires_grad_()
        result = function(x, n)
        (result * torch.arange(1.0, result.numel() + 1).view(result.shape)).sum().backward()
        return x.grad

    compiled = turret.compile(function, dynamic=True, options={"cache": False, "recompile_limit": 64})
    for n in (4, 6, 2, -3, 0, 9, -10, 5):
        expected, found = (outcome(gradient, (within(10, 6), n, f))[0] for f in (function, compiled))
        torch.testing.assert_close(found, expected, msg=lambda m, n=n: f"{n}: {m}")


@pytest.mark.parametrize(("source", "most"), [("x[n] * 2", 2), ("x[n:] * 2", 8), ("x[:n] = 1.0\nx * 2", 6)])
def test_an_index_is_captured_once_for_each_way_in_which_it_passes_an_end(source, most):
    compiles = Compiles()
    compiled = turret.compile(
        function_of(source), dynamic=True, options={"cache": False, "recompile_limit": 64}, plugins=[compiles]
    )
    for n in [n for n in range(-10, 10) if n not in (0, 1)]:
        compiled(within(10, 6), n)
    assert compiles.count <= most


@pytest.mark.parametrize("source", ["x[n] * 2", "x[n:] * 2", "x[n] = 5.0\nx * 2"])
def test_a_stored_graph_serves_the_guards_that_it_was_made_under(source):
    calls = [(within(10, 6), n) for n in SIGNED]
    for order in (calls, calls[::-1]):
        check(function_of(source), order, dynamic=True, cache=True)


NUMBERS = {
    "half a size": "x + torch.tensor(x.shape[0] // 2)",
    "remainder": "x + torch.tensor(n % 7)",
    "quotient": "x + torch.tensor(n / 2)",
    "maximum": "x + torch.tensor(max(n, 3))",
    "float": "x + torch.tensor(float(n))",
    "float of a size": "x + torch.tensor(float(x.shape[0]))",
    "truncated": "x + torch.tensor(int(n / 2))",
    "as_tensor": "x + torch.as_tensor(n // 2)",
    "asarray": "x + torch.asarray(n // 2)",
    "new_tensor": "x + x.new_tensor([n // 2, n + 1]).sum()",
    "LongTensor": "x + torch.LongTensor([n // 2, 3])[0]",
    "FloatTensor": "x + torch.FloatTensor([n // 2])",
    "Tensor": "x + torch.Tensor([n, 2])[0]",
    "scalar_tensor": "x + torch.scalar_tensor(n // 2)",
    "full": "x + torch.full((1,), n // 2)",
    "nested": "torch.tensor([[n, 2], [n + 1, x.shape[0]]]) * 2",
    "mixed": "torch.tensor([n, 2.5]), torch.tensor((n, True))",
    "of a dtype": "torch.tensor([n // 2], dtype=torch.float64), torch.tensor(n, dtype=torch.int16)",
    "comparison": "x + torch.tensor(n > 3)",
    "with gradients": "x + torch.tensor([float(n)], requires_grad=True).detach()",
    "numpy": "x + torch.from_numpy(numpy.array([n // 2]))",
    "numpy number": "x + torch.tensor(numpy.float32(n))",
    "numpy range": "torch.from_numpy(numpy.arange(n % 4)) * 2",
    "read again": "x + torch.tensor(n // 2).item()",
    "branched on": "x + 1 if torch.tensor(n) > 5 else x",
    "computed with, and read": "x[:(torch.tensor([n, 3]) * 2)[1].item()] + torch.tensor(n)",
    "changed in place": "t = torch.tensor([n, 2])\nt[0] += 1\nx + t[0]",
    "changed in place, and read": "t = torch.tensor([n, 2])\nt[0] += 1\nx + t[0].item()",
}


@pytest.mark.parametrize("source", NUMBERS.values(), ids=NUMBERS)
@pytest.mark.thorough
def test_tensors_are_made_of_the_numbers_of_the_call(source):
    sizes = [(5, 5), (5, 7), (8, 9), (12, -4), (3, 0), (9, 12)]
    check(function_of(source), [(within(size), n) for size, n in sizes])


def test_numbers_that_nobody_reads_are_not_guarded_on():
    compiles = Compiles()
    compiled = turret.compile(
        lambda x, n: x + torch.tensor([n // 2, x.shape[0]]).sum() * torch.tensor(n / 2),
        dynamic=True,
        options={"cache": False},
        plugins=[compiles],
    )
    for n in range(2, 12):
        compiled(torch.zeros(n + 1), n)
    assert compiles.count == 1


LARGE = (4, 6, 2**31, -(2**40), 2**62 - 1, 2**63 - 1, 2**64, -(2**63), -(2**63) - 1, 7)
ARITHMETIC = [
    "x * n", "x.long() * n", "x.long() + n * n", "x + (n + 1)", "x.long() - n * 3", "x.clamp(0, n + 1)",
    "x.long() + n * x.shape[0] // 4", "x.long() + n ** 2 % 10", "x.long() % n", "x.long() // -n", "x > n * 2",
    "x.to(torch.int8) + n", "x.to(torch.uint8) * n", "torch.tensor(n * 2)", "torch.tensor([n + 1, n])",
    "torch.tensor([n, 2.5])", "x[n:]", "x[:n * 3]", "x[n // 2]", "x[[n]]", "torch.full((2,), n * 2)",
    "torch.where(x > 0, n * 2, 1)", "x.masked_fill(x > 0, n * n)", "torch.add(x, x, alpha=n * 2)",
    "x.double() * (n / 3)",
    "x.double() + float(n * n)", "n * n, x + 1", "x.long() + max(n, 3) * 2", "x.long() + min(n, 3) // 2",
]  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("source", ARITHMETIC)
@pytest.mark.thorough
def test_integers_of_any_size_are_eagers(source):
    check(function_of(source), [(within(10), n) for n in LARGE], dynamic=True)


INT_OPERATIONS = (
    "({0} + {1})", "({0} - {1})", "({0} * {1})", "({0} // {1})", "({0} % {1})", "({0} << 70)", "({0} >> 70)",
    "({0} << 3 >> 1)", "({0} >> {1} % 70)", "({0} << {1} % 70)", "({0} << -1)", "({0} ** 3)", "({0} ** 2 % {1})",
    "max({0}, {1})", "abs(-{0})", "({0} if {0} > {1} else -{1})", "int({0} / 3)",
)  # fmt: skip
INT_USES = ("x * {0}", "x.long() + {0}", "x[{0} % 5]", "x + 1 if {0} > 3 else x - 1", "{0}, x + 1", "torch.tensor({0})")


@st.composite
def int_expressions(draw: st.DrawFn, depth: int) -> str:
    if not depth:
        return draw(st.sampled_from(["n", "m", "x.shape[0]", "2**62", "2**63", "-2**70", "7"]))
    operands = [draw(int_expressions(depth - 1)) for _ in range(2)]
    return draw(st.sampled_from(INT_OPERATIONS)).format(*operands)


@pytest.mark.filterwarnings("ignore")
@given(
    uses=st.tuples(st.sampled_from(INT_USES), int_expressions(2)),
    numbers=st.lists(st.tuples(st.sampled_from((*SIGNED, *LARGE)), st.sampled_from(SIGNED)), min_size=2, max_size=3),
)
@example(("x * {0}", "((n << 70) >> 70)"), [(5, 2), (2**62, 2)])
@example(("{0}, x + 1", "(n % n)"), [(5, 2), (0, 2)])
@settings(max_examples=10)
def test_drawn_expressions_of_ints_that_pass_64_bits_are_eagers(uses, numbers):
    function = function_of(uses[0].format(uses[1]), "x, n, m")
    check(function, [(within(10), n, m) for n, m in [(3, 5), *numbers]], dynamic=True, backend="aot_eager")


# ---------------------------------------------------------------- drawn programs

INDICES = st.sampled_from([
    "n", "m", "-n", "-m", "n // 2", "-(n // 2)", "n - 3", "n + 1", "n * 2", "n % 5", "-n % 3", "n // -2", "n - m",
    "max(n, 3)", "min(n, x.shape[0])", "-max(n, 1)", "x.shape[0]", "-x.shape[1]", "x.shape[0] - n", "x.shape[1] // 2",
    "x.shape[0] - y.shape[0]", "-y.shape[0]", "2 - y.shape[0]", "0", "1", "-1", "3", "-2",
])  # fmt: skip
PARTS = (
    "x[{0}]", "x[{0}:]", "x[:{0}]", "x[{0}:{1}]", "x[:, {0}]", "x[:, {0}:{1}]", "x[{0}, {1}:]", "x[{0}::2, :{1}]",
    "x.select(1, {0})", "x.narrow(0, {0}, {1})", "x[{0}:][{1}:]", "x.t()[{0}:{1}]", "x.view(-1)[{0}:{1}]",
    "F.pad(x, ({0}, {1}))", "torch.cat([x[{0}:], x[:{1}]])", "torch.roll(x, {0}, 1)", "x[[{0}, {1}]]",
    "torch.slice_scatter(x, x[{0}:{1}] * 2, 0, {0}, {1})", "torch.select_scatter(x, x[0], 0, {0})",
    "torch.split(x, {0}, 1)[-1]", "torch.arange({0}, {1})", "torch.tensor([{0}, {1}])", "torch.tensor({0} / 2)",
    "x.repeat({0}, 1)", "torch.full((2, {0}), {1})", "x * {0} + {1}", "x[{0}:].sum(0)", "x.long() // {0} % {1}",
)  # fmt: skip
WRITES = (
    "x[{0}] = 5.0", "x[{0}:] = 7.0", "x[:{0}, {1}:] = {1}", "x[{0}:{1}] += 1", "x[{0}].mul_(3)", "x.t()[{0}:].neg_()",
    "x[{0}, {1}] = 9.0", "x.select(1, {0}).zero_()", "x.view(-1)[{0}:{1}].fill_(4.0)", "x[[{0}, 0]] = 2.0",
)  # fmt: skip


@st.composite
def sources(draw: st.DrawFn) -> str:
    """Up to two writes through symbolic indices, and one or two parts taken by such."""

    def some(forms: Sequence[str]) -> str:
        return draw(st.sampled_from(forms)).format(draw(INDICES), draw(INDICES))

    writes = [some(WRITES) for _ in range(draw(st.integers(0, 2)))]
    return "\n".join([*writes, ", ".join(some(PARTS) for _ in range(draw(st.integers(1, 2))))])


INTS = st.one_of(st.integers(2, 7), st.integers(-9, 9), st.sampled_from([0, 1, -1, 30, -30, 2**31, 2**62, -(2**63)]))
SHAPES = st.tuples(st.integers(0, 8), st.integers(0, 8), st.integers(0, 5))


@given(
    source=sources(),
    first=st.tuples(st.integers(2, 7), st.integers(2, 7)),
    numbers=st.lists(st.tuples(INTS, INTS), min_size=3, max_size=5),
    shapes=st.lists(SHAPES, min_size=1, max_size=3),
    dynamic=st.sampled_from([None, True]),
)
@settings(max_examples=8)
def test_drawn_programs_over_signed_numbers_are_eagers(source, first, numbers, shapes, dynamic):
    huge = any(abs(n) > 99 for pair in numbers for n in pair)
    if huge and any(word in source for word in ("pad", "arange", "repeat", "full")):
        numbers = [(n, m) if max(abs(n), abs(m)) < 99 else (3, -3) for n, m in numbers]
    calls = []
    for k, (n, m) in enumerate([first, *numbers]):
        high, wide, other = shapes[k % len(shapes)]
        calls.append((within(high, wide), within(other, 3), n, m))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(function_of(source, "x, y, n, m"), calls, dynamic=dynamic)


@pytest.mark.parametrize("make", [lambda s: s.sum(), lambda s: s.amax(0).sum(), lambda s: (s * 2).softmax(1).sum()])
def test_a_size_that_changes_beside_one_that_is_zero_compiles(make):
    def program(x, out):
        y = x * 2
        out[:] = y
        return y, make(out)

    compiled = turret.compile(program, options={"cache": False, "on_error": "raise"})
    for size in ((5, 9, 0), (5, 8, 0), (5, 7, 0)):
        results, gradients = [], []
        for function in (compiled, program):
            x = torch.ones(1, requires_grad=True)
            y, total = function(x, torch.zeros(size))
            (y.sum() + total).backward()
            results.append((y.detach(), total.detach()))
            gradients.append(x.grad)
        torch.testing.assert_close(*results)
        torch.testing.assert_close(*gradients)


def test_the_absolute_value_of_an_integer_is_a_size() -> None:
    def program(x: torch.Tensor, n: int) -> tuple[torch.Tensor, torch.Tensor]:
        return x[: abs(n)] * 2, x.new_ones(abs(n - 4), 2) + 1

    compiled = turret.compile(program, dynamic=True, options={"on_error": "raise", "cache": False})
    x = torch.arange(9.0)
    for n in (3, -5, 7, -1):
        for found, expected in zip(compiled(x, n), program(x, n), strict=True):
            assert torch.equal(found, expected)

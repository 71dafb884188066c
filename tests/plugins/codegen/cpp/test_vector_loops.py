"""Loops of compiled kernels are all vectors, but for those of a table that says why.

GCC decides that, and says nothing where it decides otherwise: a call moved into a branch, or a choice that it makes a
jump of, and a loop takes fifteen times as long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import attrs
import pytest
import torch
import torch.nn.functional as F

import turret
from tests.plugins.codegen.cpp.kernel_lab import Case, element, pointwise
from tests.plugins.codegen.cpp.operator_values import DTYPES, FLOATS, ops_of
from tests.plugins.codegen.cpp.vector_loops import readable, scalar_loops
from turret.ir import OPS, Expr, Kernel, Store, call, cast, constant, index_value, reduce
from turret.ir.index import Var
from turret.plugins.codegen.cpp import CppKernel, emit

pytestmark = pytest.mark.skipif(not readable(), reason="assembly of GCC on x86-64, and vectors of glibc")

F32, F64, BF16 = torch.float32, torch.float64, torch.bfloat16
COUNT = 4096

_DIVISION = "x86-64 has no division of integers in vectors"
_REMAINDER = "the C library has no vectors of fmod"
SCALAR_OPS = {
    "int": {
        **dict.fromkeys(["floordiv", "truncdiv", "mod", "fmod"], _DIVISION),
        "pow": "a loop over the bits of each exponent",
    },
    "float": {
        **dict.fromkeys(["floordiv", "mod", "fmod"], _REMAINDER),
        "lgamma": "the C library has no vectors of it",
        "nextafter": "the C library has no vectors of it",
    },
}
"""By the kind of dtype: ops that have no vectors, and why."""


def emitted(case: Case) -> CppKernel:
    return emit(case.kernel, case.declarations)


def pointwise_kernel(make: Callable[..., Expr], *dtypes: torch.dtype) -> CppKernel:
    """A kernel that stores what ``make`` makes of the elements of tensors of some dtypes."""
    i = Var("i", COUNT)
    inputs = {f"x{n}": torch.zeros(COUNT, dtype=dtype) for n, dtype in enumerate(dtypes)}
    return emitted(pointwise(make(*(element(name, x, i) for name, x in inputs.items())), (i,), inputs))


def scalar(kernels: Mapping[Any, CppKernel]) -> dict[Any, list[str]]:
    """What has loops that are not vectors, and what these do element by element."""
    found = scalar_loops(kernels.values())
    return {name: found[kernel.function] for name, kernel in kernels.items() if found[kernel.function]}


def expect(kernels: Mapping[Any, CppKernel], known: Iterable[Any] = ()) -> None:
    """All loops are vectors, but those of the ``known``, which are not."""
    found, known = scalar(kernels), kernels.keys() & set(known)
    assert not found.keys() - known, "\n\n".join(
        f"{name}: {found[name]}\n{kernels[name].source}" for name in found.keys() - known
    )
    assert not known - found.keys(), f"{known - found.keys()} are vectors: the table of exceptions is too long"


# ---------------------------------------------------------------- elements


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_loops_of_every_op_are_vectors(dtype: torch.dtype) -> None:
    kernels = {op: pointwise_kernel(lambda *x, op=op: call(op, *x), *[dtype] * OPS[op].arity) for op in ops_of(dtype)}
    kind = "bool" if dtype == torch.bool else "float" if dtype.is_floating_point else "int"
    expect(kernels, SCALAR_OPS.get(kind, {}))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_loops_that_need_an_op_in_one_way_of_a_choice_are_vectors(dtype: torch.dtype) -> None:
    """The softplus of large values is the value itself: compilers move the call where it is needed."""

    def chosen(op: str) -> Callable[..., Expr]:
        return lambda x, *more: call("where", call("gt", x, constant(1.0, dtype)), x, call(op, x, *more))

    ops = [op for op in ops_of(dtype) if OPS[op].cost != "cheap" and call(op, *_zeros(op, dtype)).dtype == dtype]
    expect({op: pointwise_kernel(chosen(op), *[dtype] * OPS[op].arity) for op in ops}, SCALAR_OPS["float"])


def _zeros(op: str, dtype: torch.dtype) -> list[Expr]:
    return [constant(0.0, dtype)] * OPS[op].arity


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_loops_of_powers_are_vectors(dtype: torch.dtype) -> None:
    exponents = (-2.0, -1.5, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0, 2.5, 3.0, 4.0, 5.0, 7.3)
    expect(
        {
            exponent: pointwise_kernel(lambda x, e=exponent: call("pow", x, constant(e, dtype)), dtype)
            for exponent in exponents
        }
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_loops_of_casts_are_vectors(dtype: torch.dtype) -> None:
    expect({to: pointwise_kernel(lambda x, to=to: cast(x, to), dtype) for to in DTYPES if to != dtype})


@pytest.mark.parametrize("dtype", [F32, F64, BF16, torch.int32], ids=str)
def test_loops_of_choices_and_bounds_are_vectors(dtype: torch.dtype) -> None:
    low, high = (constant(bound, dtype) for bound in (-1, 1))
    made = {
        "clamp": pointwise_kernel(lambda x: call("min", call("max", x, low), high), dtype),
        "where": pointwise_kernel(lambda c, x, y: call("where", c, x, y), torch.bool, dtype, dtype),
        "nested": pointwise_kernel(
            lambda c, x, y: call(
                "where", call("logical_and", c, call("lt", x, y)), low, call("where", call("gt", x, high), x, y)
            ),
            torch.bool,
            dtype,
            dtype,
        ),
    }
    expect(made)


@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_loops_of_long_chains_are_vectors(dtype: torch.dtype) -> None:
    def chain(x: Expr, y: Expr) -> Expr:
        for op in ("sin", "erf", "exp", "tanh", "sigmoid", "log1p", "rsqrt"):
            x = call("add", call("mul", call(op, x), y), x)
        return x

    expect({"chain": pointwise_kernel(chain, dtype, dtype)})


# ---------------------------------------------------------------- reductions


KINDS = ("sum", "prod", "min", "max", "argmax")


@pytest.mark.parametrize("dtype", [F32, F64, BF16, torch.int64], ids=str)
def test_loops_of_reductions_are_vectors(dtype: torch.dtype) -> None:
    def kernel(kind: str, across: bool) -> CppKernel:
        i, r = Var("i", 64), Var("r", 2048)
        x = torch.zeros(2048, 64, dtype=dtype).t() if across else torch.zeros(64, 2048, dtype=dtype)
        operands = [element("x", x, i, r)]
        if kind == "argmax":
            operands.append(index_value(r))
        value = reduce(kind, (r,), *operands)
        out = torch.zeros(64, dtype=value.dtype)
        made = Kernel("k", (i,), (r,), (Store("out", (i.index,), value),))
        return emitted(Case(made, {"x": x, "out": out}))

    expect({(kind, across): kernel(kind, across) for kind in KINDS for across in (False, True)})


# ---------------------------------------------------------------- programs


def made_of(program: Callable[..., Any], *arguments: torch.Tensor, check_bounds: bool = False) -> Iterator[CppKernel]:
    """The kernels of a program, forward and backward."""
    parts = turret.partition(turret.joint_graph(program, *arguments))
    for role in ("forward", "backward") if parts.backward is not None else ("forward",):
        schedule = turret.schedule(turret.lower(parts, role))
        declarations = schedule.program.declarations()
        for step in schedule.steps:
            if isinstance(step, Kernel):
                yield emit(step, declarations, check_bounds)


def zeros(*shape: int, dtype: torch.dtype = F32, grad: bool = True) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype, requires_grad=grad and dtype.is_floating_point)


def of_elements(dtype: torch.dtype) -> dict[str, tuple[Any, ...]]:
    """Programs of one element each: activations, losses, a step of an optimizer."""
    x, y = zeros(64, 2048, dtype=dtype), zeros(64, 2048, dtype=dtype)
    names = (
        "gelu silu mish softplus elu selu celu hardswish hardsigmoid leaky_relu relu6 logsigmoid softsign tanhshrink"
    )
    activations = {name: (getattr(F, name), x) for name in f"{names} softshrink hardtanh glu".split()}

    def adam(weight: torch.Tensor, grad: torch.Tensor, mean: torch.Tensor, square: torch.Tensor) -> Any:
        mean, square = mean.lerp(grad, 0.1), square * 0.99 + grad * grad * 0.01
        return weight - 0.1 * mean / (square.sqrt() + 1e-8), mean, square

    return {
        **activations,
        "tanh gelu": (lambda x: F.gelu(x, approximate="tanh"), x),
        "powers": (lambda x: x**2.5 + x**4 + x**-0.5, x),
        "power": (torch.pow, x, y),
        "dropout": (lambda x: F.dropout(x, 0.1, True), x),
        "squares": (lambda x, y: F.mse_loss(x, y, reduction="none"), x, y.detach()),
        "logits": (lambda x, y: F.binary_cross_entropy_with_logits(x, y, reduction="none"), x, y.detach()),
        "adam": (adam, *(zeros(COUNT, dtype=dtype, grad=False) for _ in range(4))),
        "masks": (lambda x, m: x.masked_fill(m, -1e4).clamp(max=3), x, zeros(64, 2048, dtype=torch.bool)),
    }


def of_rows(dtype: torch.dtype) -> dict[str, tuple[Any, ...]]:
    """Programs with reductions, in rows and across them."""
    x, weight = zeros(192, 2048, dtype=dtype), zeros(2048, dtype=dtype)
    images, channels = zeros(8, 64, 32, 32, dtype=dtype), zeros(64, dtype=dtype)
    return {
        "softmax": (lambda x: torch.softmax(x, 1), x),
        "softmax across": (lambda x: torch.softmax(x, 0), x),
        "log softmax": (lambda x: torch.log_softmax(x, 1), x),
        "causal": (lambda x: x.masked_fill(torch.ones(192, 2048).triu(1).bool(), -torch.inf).softmax(1), x),
        "layer norm": (lambda x, w, b: F.layer_norm(x, (2048,), w, b), x, weight, weight),
        "rms norm": (lambda x, w: F.rms_norm(x, (2048,), w), x, weight),
        "batch norm": (lambda x, w, b: F.batch_norm(x, None, None, w, b, True), images, channels, channels),
        "logsumexp": (lambda x: x.logsumexp(1), x),
        "deviation": (lambda x: x.std(1), x),
        "deviation across": (lambda x: x.std(0), x),
        "norm": (lambda x: x.norm(dim=1), x),
        "count": (lambda x: (x > 0).sum(1), x),
        "any": (lambda x: (x > 0).any(1), x),
        "sum": (lambda x: x.sum(1), x),
        "running sum": (lambda x: x.cumsum(1), x.detach()),
    }


def of_places(dtype: torch.dtype) -> dict[str, tuple[Any, ...]]:
    """Programs that read elements where others lie."""
    x, square = zeros(64, 2048, dtype=dtype), zeros(512, 512, dtype=dtype)
    turned, images = zeros(8, 64, 64, dtype=dtype), zeros(4, 64, 32, 32, dtype=dtype)
    places = zeros(64, dtype=torch.int64)
    return {
        "pad": (lambda x: F.pad(x, (64, 64)), x),
        "concatenation": (lambda x, y: torch.cat([x, y], 1) + 1, x, x),
        "transposed sum": (lambda x, y: x.t() + y, square, square),
        "transposed copy": (lambda x: x.t().contiguous(), square),
        "embedding": (lambda i, w: F.embedding(i, w) * 2, places, zeros(100, 2048, dtype=dtype, grad=False)),
        "rotary": (lambda x, c: x * c + torch.cat([-x[..., 32:], x[..., :32]], -1) * c, turned, turned),
        "triangle": (lambda x: x.tril(), square),
        "positions": (lambda x: x + torch.arange(2048), x),
        "pooled sum": (lambda x: F.avg_pool2d(x, 2), images),
        "pooled maximum": (lambda x: F.max_pool2d(x, 2), images),
        "nearest": (lambda x: F.interpolate(x, scale_factor=2), images.detach()),
    }


_APART = "elements that are stored or compared lie apart"
SCALAR_PROGRAMS = {
    "running sum": "each element needs the one before",
    "pooled sum": _APART,
    "pooled maximum": _APART,
    "nearest": "the place of each element is computed, in integers made of floats",
}
"""Programs of which a loop has no vectors, and why."""

PROGRAMS = {"elements": of_elements, "rows": of_rows, "places": of_places}


@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
@pytest.mark.parametrize("kind", PROGRAMS)
def test_loops_of_programs_are_vectors(kind: str, dtype: torch.dtype) -> None:
    kernels: dict[str, CppKernel] = {}
    programs = PROGRAMS[kind](dtype)
    for name, (program, *arguments) in programs.items():
        kernels |= {f"{name}, {number}": kernel for number, kernel in enumerate(made_of(program, *arguments))}
    found = scalar(kernels)
    known = {name for name in SCALAR_PROGRAMS if name in programs}
    texts = [f"{n}: {w}\n{kernels[n].source}" for n, w in found.items() if n.split(",")[0] not in known]
    assert not texts, "\n\n".join(texts)
    assert known == {name.split(",")[0] for name in found}, "the table of exceptions is too long"


def test_loops_whose_accesses_are_checked_are_not_vectors() -> None:
    """Known: a check is a branch in front of each access."""
    x = zeros(64, 2048, grad=False)
    kernels = dict(enumerate(made_of(lambda x: torch.relu(x) + 1, x, check_bounds=True)))
    assert scalar(kernels).keys() == kernels.keys() != set()


# ---------------------------------------------------------------- the tester


def with_line(kernel: CppKernel, line: str) -> CppKernel:
    """A kernel with another line ahead of its store."""
    head, tail = kernel.source.split("p1[", 1)
    return attrs.evolve(kernel, source=f"{head}{line}\n      p1[{tail}")


@pytest.mark.parametrize(
    "line",
    [
        '__asm__ volatile("");',
        "if (t0 > 3.0f) { p1[i0] = expf(t0); continue; }",
        "const float t9 = fmodf(t0, 2.0f); p1[i0 + 4096] = t9;",
    ],
    ids=["barrier", "call in a branch", "call"],
)
def test_a_loop_that_lost_its_vectors_is_reported(line: str) -> None:
    plain = pointwise_kernel(lambda x: call("mul", x, x), F32)
    assert scalar({"": plain}) == {}
    assert scalar({"": with_line(plain, line)})


def test_a_loop_of_calls_that_lost_their_vectors_is_reported() -> None:
    kernel = pointwise_kernel(lambda x: call("exp", x), F64)
    assert scalar({"": kernel}) == {}
    assert "call" in " ".join(scalar_loops([kernel], "-fno-openmp -fno-tree-vectorize")[kernel.function])


def test_a_kernel_without_vectors_is_reported() -> None:
    kernel = pointwise_kernel(lambda x: call("mul", x, x), F32)
    empty = attrs.evolve(kernel, source=kernel.source[: kernel.source.index("{")] + "{\n  return 0;\n}\n")
    assert scalar({"": empty}) == {"": ["no vectors"]}

"""The norm in front of products of one row is computed along with each of them, where the row is short."""

from __future__ import annotations

import attrs
import pytest
import torch
import torch.nn.functional as F

import turret
from tests.plugins.codegen.triton.interpreted_codegen import InterpretedCodegen
from tests.plugins.loop_lab import schedule
from turret.hooks.hookspecs import hookimpl
from turret.hooks.products import Target
from turret.ir import Definition, Kernel, LoopProgram, Ref, TensorDecl, Var, call, cast, constant, load, reduce, verify

BF16, F32 = torch.bfloat16, torch.float32
HOPPER = Target("cuda", 0, "sm_90", 132)


def norm_and_products(depth: int, rows: int = 1, outputs: tuple[str, ...] = ("y", "z"), device: str = "cuda"):
    """``y`` and ``z``: products of a row (or rows) of ``x``, over the root of the sum of its squares, with weights."""

    def declare(name: str, shape: tuple[int, ...], dtype: torch.dtype = BF16) -> TensorDecl:
        stride = tuple(torch.empty(shape, device="meta").stride())
        return TensorDecl(name, shape, stride, dtype, torch.device(device))

    i, j, k = Var("i0", rows), Var("i1", 1), Var("r0", depth)
    x, scale, inverse = (
        declare("x", (rows, depth)),
        declare("scale", (rows, 1), F32),
        declare("inverse", (rows, 1), F32),
    )
    weights = {name: declare(f"w{name}", (40, depth)) for name in ("y", "z")}
    value = cast(load("x", (i, k), BF16), F32)
    statements = [
        Definition(scale, (i, j), reduce("sum", (k,), call("mul", value, value))),
        Definition(inverse, (i, j), call("rsqrt", call("add", load("scale", (i, j), F32), constant(1.0, F32)))),
    ]
    for name, weight in weights.items():
        n = Var("i1", 40)
        normed = call("mul", cast(load("x", (i, k), BF16), F32), load("inverse", (i, 0), F32))
        body = call("mul", normed, cast(load(weight.name, (n, k), BF16), F32))
        statements.append(Definition(declare(name, (rows, 40)), (i, n), cast(reduce("sum", (k,), body), BF16)))
    return LoopProgram("test", (x, *weights.values()), tuple(statements), tuple(map(Ref, outputs)))


def sums_apart(program: LoopProgram, target: Target | None = HOPPER) -> bool:
    """Whether the sum of squares has a kernel without a product."""
    made = schedule(program, target=target)
    verify(made)
    stored = [{store.tensor for store in step.stores} for step in made.steps if isinstance(step, Kernel)]
    return any(not names & {"y", "z"} for names in stored)


def test_a_norm_of_one_row_is_part_of_its_products() -> None:
    assert not sums_apart(norm_and_products(64))


@pytest.mark.parametrize(
    "program",
    [
        norm_and_products(64, rows=3),  # each program would sum the squares of other rows than its own
        norm_and_products(1 << 14),
        norm_and_products(64, outputs=("y", "z", "inverse")),
        norm_and_products(64, device="cpu"),
    ],
    ids=["rows", "long", "an output", "host"],
)
def test_what_would_cost_more_stays_apart(program: LoopProgram) -> None:
    assert sums_apart(program, None if program.inputs[0].device.type == "cpu" else HOPPER)


def test_a_reader_that_is_no_product_keeps_it_apart() -> None:
    program = norm_and_products(64)
    i, j = Var("i0", 1), Var("i1", 64)
    x = program.inputs[0]
    normed = call("mul", cast(load("x", (i, j), BF16), F32), load("inverse", (i, 0), F32))
    out = Definition(attrs.evolve(x, name="out"), (i, j), cast(normed, BF16))
    program = attrs.evolve(program, statements=(*program.statements, out), outputs=(Ref("y"), Ref("z"), Ref("out")))
    assert sums_apart(program)


class Rows:
    """Plugin: products of one row are loops, and launches cost on the host, too."""

    @hookimpl(tryfirst=True)
    def turret_choice_cost(self, candidate) -> float:
        return 1.0 if candidate.form == "rows" else 2.0


@pytest.mark.parametrize("large", [False, True])
def test_values_are_eagers(large: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    weight, gain = torch.randn(24, 40), torch.randn(40)

    def step(x: torch.Tensor) -> torch.Tensor:
        return (F.rms_norm(x, (40,), gain, 1e-6) @ weight.T).relu()

    generator = InterpretedCodegen()
    monkeypatch.setattr(type(generator.turret_device("cpu")), "asynchronous", True)
    made = turret.compile(step, plugins=[Rows(), generator], options={"cache": False, "on_error": "raise"})
    x = torch.randn(1, 40) * (1e12 if large else 1)
    with torch.no_grad():
        torch.testing.assert_close(made(x), step(x), rtol=1e-5, atol=1e-5)
    assert len(generator.kernels) == 1

"""Attention of few queries is split over the keys where that was measured to be faster, and nothing else is."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import torch

from tests.plugins.loop_lab import schedule
from turret.graph.externs import op_name
from turret.hooks.hookspecs import hookimpl
from turret.hooks.products import Target
from turret.ir import AttentionCandidate, Definition, LoopProgram, Ref, Schedule, Template, TensorDecl, verify
from turret.ir.text import parse

BF16, F32 = torch.bfloat16, torch.float32
HOPPER = Target("cuda", 0, "sm_90", 132)
DEVICE = torch.device("cuda")
EFFICIENT = torch.ops.aten._scaled_dot_product_efficient_attention.default


def declare(name: str, *shape: int, dtype: torch.dtype = BF16) -> TensorDecl:
    return TensorDecl(name, shape, tuple(torch.empty(shape, device="meta").stride()), dtype, DEVICE)


def attention(
    heads: int = 32, queries: int = 1, keys: int = 1024, dtype: torch.dtype = BF16, *, masked: bool = True, **given: Any
) -> LoopProgram:
    """A call of the memory-efficient kernel; ``sums`` among the keywords: the program returns the sums of scores."""
    sums = given.pop("sums", False)
    inputs = [declare("q", 1, heads, queries, 64, dtype=dtype)]
    inputs += [declare(name, 1, heads, keys, 64, dtype=dtype) for name in "kv"]
    if masked:
        inputs.append(declare("mask", queries, keys, dtype=dtype))
    y, lse = declare("y", 1, heads, queries, 64, dtype=dtype), declare("lse", 1, heads, queries, dtype=F32)
    args = (Ref("q"), Ref("k"), Ref("v"), Ref("mask") if masked else None, sums)
    outputs = (y, lse if sums else None, None, None)
    template = Template(
        EFFICIENT, args, given, outputs, returns_sequence=True, kind="attention", origins=("attention",)
    )
    return LoopProgram("test", tuple(inputs), (template,), (Ref("y"), *([Ref("lse")] if sums else [])))


def ops(made: Schedule) -> list[str]:
    return [op_name(step.op).partition(".")[0].rpartition("::")[2] for step in made.templates]


@pytest.mark.parametrize("program", [attention(), attention(masked=False), attention(8, 4), attention(keys=1000)])
def test_a_step_of_decoding_is_split(program: LoopProgram) -> None:
    made = schedule(program, target=HOPPER)
    verify(made)
    assert ops(made) == ["attention_parts"]
    assert [choice.form for choice in made.choices] == ["split"]
    assert len(made.kernels) == 1
    again = parse(str(made))
    assert str(again) == str(made)


@pytest.mark.parametrize(
    ("program", "target"),
    [
        (attention(queries=9), HOPPER),
        (attention(keys=32), HOPPER),
        (attention(is_causal=True), HOPPER),
        (attention(dropout_p=0.1), HOPPER),
        (attention(sums=True), HOPPER),
        (attention(dtype=F32), HOPPER),
        (attention(), Target("cuda", 0, "sm_80", 108)),
        (attention(), None),
    ],
    ids=["queries", "keys", "causal", "dropout", "sums", "float32", "another device", "no target"],
)
def test_all_else_stays_a_call(program: LoopProgram, target: Target | None) -> None:
    made = schedule(program, target=target)
    assert ops(made) == ["_scaled_dot_product_efficient_attention"]
    assert not any(choice.form == "split" for choice in made.choices)


def test_enough_heads_are_a_call() -> None:
    """With a program for each multiprocessor the library reads at the memory's speed by itself."""
    assert ops(schedule(attention(heads=4096, keys=128), target=HOPPER)) == ["_scaled_dot_product_efficient_attention"]


def test_a_plugin_is_told_the_sizes_and_either_schedule() -> None:
    class Asked:
        def __init__(self) -> None:
            self.candidates: list[AttentionCandidate] = []

        @hookimpl
        def turret_choice_cost(self, candidate: Any) -> float:
            self.candidates.append(candidate)
            return 1.0 if candidate.form == "library" else 2.0

    asked, program = Asked(), attention(8, 2)
    (template,) = program.statements
    assert isinstance(template, Template)
    y = attrs.evolve(program.inputs[0], name="z")
    second = attrs.evolve(template, outputs=(y, None, None, None))
    program = attrs.evolve(program, statements=(template, second), outputs=(Ref("y"), Ref("z")))
    made = schedule(program, asked, target=HOPPER)
    assert len(asked.candidates) == 2 and len(made.choices) == 2 and len(made.templates) == 2
    split, library = asked.candidates
    assert (split.heads, split.queries, split.keys, split.width) == (8, 2, 1024, 64) and split.parts > 1
    for candidate, kernels in ((split, 1), (library, 0)):
        verify(candidate.schedule)
        assert len(candidate.schedule.kernels) == kernels and len(candidate.schedule.templates) == 1
    assert all(isinstance(s, Template | Definition) for s in split.schedule.program.statements)

"""Compiled code keeps what must hold exactly; a small fixed budget, and proof that the check finds what breaks it.

The long run is ``tests/fuzz/relations.py``.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.overrides import TorchFunctionMode

from tests.fuzz import relations
from tests.fuzz.relation_checks import Checker, Compile, same_bits, shrunk
from tests.fuzz.relation_claims import CLAIMS
from tests.fuzz.relation_programs import Drawn, Input, Line, Program, draw


@pytest.mark.thorough
@settings(max_examples=8)
@given(st.integers(0, 2**32))
def test_relations_of_drawn_programs_hold_in_compiled_code(seed: int) -> None:
    program = draw(seed, small=True)
    broken, _ = relations.examine(program, relations.compile_of("native"))
    assert not broken, f"{program.describe()}\n{broken[0]}"


@pytest.mark.parametrize("seed", range(2))
def test_relations_of_drawn_programs_hold_in_interpreted_kernels(seed: int) -> None:
    program = draw(seed, small=True)
    broken, _ = relations.examine(program, relations.compile_of("triton"))
    assert not broken, f"{program.describe()}\n{broken[0]}"


def test_a_program_and_its_arguments_come_of_their_seed() -> None:
    for seed in range(40):
        one, other = draw(seed), draw(seed)
        assert one == other
        assert all(same_bits(a, b) for a, b in zip(one.make(1), other.make(1), strict=True))


class Slip(TorchFunctionMode):
    """Every ``every``-th call of a function gives ``change`` of its result."""

    def __init__(self, name: str, change: Callable[[Tensor], Tensor], every: int) -> None:
        super().__init__()
        self.name, self.change, self.every, self.calls = name, change, every, 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if getattr(func, "__name__", "") != self.name:
            return result
        self.calls += 1
        return result if self.calls % self.every else self.change(result)


def slipping(name: str, change: Callable[[Tensor], Tensor], every: int = 1) -> Compile:
    """A compiler whose code is eager but for slips."""

    def compile_with(function: Callable, dynamic: bool, whole: bool) -> Callable:
        slip = Slip(name, change, every)

        def call(*arguments: Tensor) -> dict[str, Tensor]:
            with slip:
                return function(*arguments)

        return call

    return compile_with


def up(value: Tensor) -> Tensor:
    """Each number in the place of its result is the next one."""
    return torch.nextafter(value, value + 1)


def last_up(value: Tensor) -> Tensor:
    """The last row is computed by other code than the others."""
    return torch.cat([value[:-1], up(value[-1:])])


def by_threads(value: Tensor) -> Tensor:
    return value * (1 + torch.get_num_threads() * 1e-6)


PLANTED = {
    "a sine beyond 1": (slipping("sin", lambda v: v * 1.0001), "torch.sin({a} * 1000): {0}.abs() <= 1"),
    "what is computed twice": (slipping("mul", up, every=2), "{a} * {b} - {b} * {a}: {0} == 0"),
    "a maximum of other numbers": (slipping("amax", up), "{a}; {a}.amax(D, keepdim=True): ({0} == {1}).any(D)"),
    "a function that is not odd": (slipping("asinh", up), "parity: torch.asinh(x)"),
    "a last row by other code": (slipping("cos", last_up), "rows in another order"),
    "a sum by threads": (slipping("softmax", by_threads), "threads"),
    "rounding between steps": (slipping("square", up, every=2), "same call again"),
    "a product that is contracted": (slipping("add", up), "exact"),
}


def small_program(claim: str) -> Program:
    """A program of float32 with one claim (the only one that ends so), some outputs and a sum."""
    drawn = draw(7)
    shape, floats = (5, 37), ("torch.cos({0})", "torch.softmax({0}, D)", "torch.square({0})")
    inputs = tuple(
        attrs.evolve(i, shape=shape[: 1 if i.name == "at" else 2], dtype=i.dtype, layout="contiguous", values="normal")
        for i in (*(Input(name, shape, torch.float32, "", "") for name in "xy"), *drawn.inputs[-3:])
    )
    return attrs.evolve(
        drawn, shape=shape, dtype=torch.float32, rows=1, across=0, inputs=inputs, gradient=None, dynamic=False,
        floats=tuple(Line(f"e{k}", template, ("x",)) for k, template in enumerate(floats)), outputs=("e0", "e1", "e2"),
        exact=(Line("f0", "torch.add({0}, {1})", ("x", "y")),),
        claims=tuple(Drawn(c, ("x", "y"), True) for c in CLAIMS if c.name.endswith(claim)),
    )  # fmt: skip


@pytest.mark.parametrize("planted", PLANTED)
def test_what_is_planted_is_found(planted: str) -> None:
    compile_with, relation = PLANTED[planted]
    program = small_program(relation)
    assert not Checker(program, lambda function, dynamic, whole: function).check()
    assert any(relation in b.relation for b in Checker(program, compile_with).check())


def test_a_failing_program_is_shrunk_to_what_fails() -> None:
    compile_with, relation = PLANTED["a sine beyond 1"]
    program = small_program(relation)
    more = tuple(Drawn(claim, ("e0", "e1"), True) for claim in CLAIMS[:3])
    program = attrs.evolve(program, claims=(*more, *program.claims))
    broken = Checker(program, compile_with).check()
    small = shrunk(program, broken[0].relation, compile_with, attempts=60)
    assert len(small.claims) == 1 and not small.floats and not small.exact and not small.outputs


def test_a_seed_is_replayed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.setattr("sys.argv", ["relations.py", "--replay", "3"])

    def refused(function: Callable, dynamic: bool, whole: bool) -> Callable:
        raise ValueError("planted")

    monkeypatch.setattr(relations, "compile_of", lambda kernels: refused)
    assert relations.main() == 1
    printed = capsys.readouterr().out
    assert "def program(" in printed and "ValueError: planted" in printed

"""The table of scalar ops: what it says of an op is true of the op's reference, and registering leaves no trace."""

from __future__ import annotations

import itertools

import pytest
import torch

from tests.plugins.codegen.cpp.operator_values import torch_has
from turret.errors import OptionError
from turret.graph import scalar_ops
from turret.graph.dtypes import COMPILED, HALF, INTEGERS
from turret.graph.op_set import Family, family_of, resolve
from turret.graph.scalar_ops import OPS, ScalarOp, aten_ops, neutral_value

NUMBERS = [0.0, -0.0, 0.5, 1.0, -1.5, 2.5, 3.0, -7.25, 100.25, torch.inf, -torch.inf, torch.nan]
WITH_FACT = {
    fact: [name for name, op in OPS.items() if getattr(op, fact)]
    for fact in ("undoes_itself", "exact_in_half", "fold", "neutral", "checks_zero", "on_bool")
}


def values(dtype: torch.dtype) -> torch.Tensor:
    if dtype == torch.bool:
        return torch.tensor([False, True])
    if dtype.is_floating_point:
        return torch.tensor(NUMBERS, dtype=dtype)
    return torch.tensor([0, 1, 2, 3, 7, 100], dtype=dtype)


def pairs(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    left, right = zip(*itertools.product(values(dtype), repeat=2), strict=True)
    return torch.stack(left), torch.stack(right)


def dtypes_of(op: ScalarOp) -> list[torch.dtype]:
    """Those that the table allows and torch has the op for."""
    return [dtype for dtype in sorted(COMPILED, key=str) if torch_has(op.name, dtype)]


@pytest.mark.parametrize("name", OPS)
def test_torch_has_every_op_for_some_dtype_by_the_dtype_rule(name: str) -> None:
    assert dtypes_of(OPS[name])


@pytest.mark.parametrize("name", WITH_FACT["undoes_itself"])
def test_what_undoes_itself_gives_its_argument_back(name: str) -> None:
    for dtype in dtypes_of(OPS[name]):
        x, op = values(dtype), OPS[name].reference
        torch.testing.assert_close(op(op(x)), x, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", WITH_FACT["exact_in_half"])
def test_what_is_exact_in_half_types_needs_no_rounding(name: str) -> None:
    op = OPS[name]
    for dtype in HALF:
        x, y = pairs(dtype)
        arguments = [x > y, x, y] if op.conditional else [x, y][: op.arity]
        wide = op.reference(*(a.float() if a.is_floating_point() else a for a in arguments))
        torch.testing.assert_close(wide.to(dtype).float(), wide, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", WITH_FACT["fold"])
def test_folding_gives_what_the_reference_gives(name: str) -> None:
    op = OPS[name]
    for x, y in itertools.product([-3, 0, 1, 8], repeat=op.arity):
        assert op.fold(x, y) == op.reference(torch.tensor(x), torch.tensor(y)).item()


@pytest.mark.parametrize("kind", scalar_ops.COMBINED_BY)
def test_a_neutral_value_changes_nothing(kind: str) -> None:
    op = OPS[scalar_ops.COMBINED_BY[kind]]
    for dtype in dtypes_of(op):
        x = values(dtype)
        neutral = torch.tensor(neutral_value(kind, dtype), dtype=dtype)
        torch.testing.assert_close(op.reference(neutral, x), x, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", WITH_FACT["checks_zero"])
def test_what_checks_for_zero_is_refused_by_torch(name: str) -> None:
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        OPS[name].reference(torch.tensor([1]), torch.tensor([0]))


@pytest.mark.parametrize("name", WITH_FACT["on_bool"])
def test_the_op_on_bools_is_the_reference_there(name: str) -> None:
    arguments = pairs(torch.bool)[: OPS[name].arity]
    assert torch.equal(OPS[OPS[name].on_bool].reference(*arguments), OPS[name].reference(*arguments))


def test_integer_division_wraps_where_the_processor_would_trap() -> None:
    for dtype in INTEGERS - {torch.uint8}:
        least = torch.tensor([torch.iinfo(dtype).min], dtype=dtype)
        assert torch.equal(OPS["truncdiv"].reference(least, torch.full_like(least, -1)), least)


def test_every_aten_name_is_a_pointwise_op_of_torch_and_belongs_to_one_entry() -> None:
    names = scalar_ops.aten_names()
    assert len(names) == len(set(names)) > 80
    assert {family_of(resolve(name)) for name in names} == {Family.POINTWISE}


def test_facts_are_known_by_the_names_of_aten() -> None:
    facts = {name: (op.name, op.cost, op.checks_zero) for name, op in aten_ops().items()}
    assert facts["add"] == ("add", "cheap", False)
    assert facts["remainder"] == ("mod", "divide", True)
    assert facts["pow"] == ("pow", "transcendental", False)


def test_an_op_is_registered_once_and_only_what_was_registered_is_taken_back() -> None:
    before = dict(OPS)
    op = ScalarOp("twice", 1, lambda x: x + x)
    scalar_ops.register(op)
    try:
        assert OPS["twice"] is op
        with pytest.raises(OptionError, match="'twice' cannot be added: there is one already"):
            scalar_ops.register(op)
        with pytest.raises(OptionError, match=r"exp is the op 'exp'"):
            scalar_ops.register(ScalarOp("my_exp", 1, torch.exp, ("exp",)))
    finally:
        scalar_ops.unregister("twice")
    assert before == OPS and not scalar_ops.ADDED
    for name in ("twice", "exp"):
        with pytest.raises(OptionError, match=f"{name!r} was not added by register; added: none"):
            scalar_ops.unregister(name)

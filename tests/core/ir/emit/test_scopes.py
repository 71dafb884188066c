"""Blocks under construction: a value belongs as far out as what it needs is open, and is named once."""

from __future__ import annotations

import pytest

from turret.ir import Var
from turret.ir.emit.scopes import Scope

L, J = Var("i", 4), Var("j", 5)


def nested() -> tuple[Scope, Scope, Scope]:
    base = Scope()
    outer = Scope(base)
    outer.variables[L] = "i"
    inner = Scope(outer)
    inner.variables[J] = "j"
    return base, outer, inner


def test_a_value_belongs_to_the_outermost_scope_that_has_what_it_needs() -> None:
    base, outer, inner = nested()
    assert inner.home((), 0) is base
    assert inner.home((L,), 0) is outer
    assert inner.home((L, J), 0) is inner


def test_what_needs_a_phase_of_the_row_stays_where_the_phase_is_over() -> None:
    base, outer, _ = nested()
    outer.level = 1
    inner = Scope(outer)
    assert inner.level == 1
    assert inner.home((), 1) is outer
    assert inner.home((), 0) is base


def test_names_are_found_from_inside_and_only_as_far_out_as_asked() -> None:
    base, outer, inner = nested()
    base.names["sum"] = "t0"
    assert inner.named("sum", base) == "t0"
    assert inner.named("sum", outer) is None


def test_a_loop_that_is_not_open_has_no_name() -> None:
    _, outer, inner = nested()
    assert inner.variable(L) == "i"
    with pytest.raises(AssertionError, match="not open"):
        outer.variable(J)


def test_scopes_know_how_deep_they_are() -> None:
    assert [scope.depth for scope in nested()] == [0, 1, 2]

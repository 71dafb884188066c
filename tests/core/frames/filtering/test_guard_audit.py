"""Audits find the calls that a guard filter would have answered wrongly, say so once, and keep the guard."""

from __future__ import annotations

import warnings

import attrs
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import turret
from turret.errors import OptionError, TurretWarning
from turret.frames.filtering.guard_audit import GuardAudit
from turret.frames.guard_tree import check_of
from turret.frames.guards import Guard, GuardSet
from turret.frames.sources import LocalSource

X = torch.linspace(-1, 1, 4)


@attrs.define
class World:
    factor: float = 2.0
    power: int = 2
    names: tuple = ("a",)


WORLD = World()


def computed(x):
    return x.sin() * WORLD.factor + len(WORLD.names) ** WORLD.power


def without_world(guards):
    return ["WORLD" not in guard.name for guard in guards]


def compiled_with(share):
    options = {"cache": False, "on_error": "raise", "guard_filter_fn": without_world, "guard_audit": share}
    return turret.compile(computed, options=options)


@pytest.fixture(autouse=True)
def world():
    turret.reset()
    WORLD.factor, WORLD.power, WORLD.names = 2.0, 2, ("a",)
    yield WORLD


def test_what_a_filter_dropped_is_found_said_with_both_values_and_kept(world):
    compiled = compiled_with(1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            torch.testing.assert_close(compiled(X), computed(X))
    world.factor = 5.0
    with pytest.warns(TurretWarning, match=r"WORLD\S*\.factor 2\.0: found 5\.0 .*test_guard_audit\.py:\d+") as said:
        torch.testing.assert_close(compiled(X), computed(X))
    assert [w.filename for w in said] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for world.factor in (2.0, 5.0, 7.0, 2.0):  # of code that is compiled later the guard is kept from the start
            torch.testing.assert_close(compiled(X), computed(X))


def test_a_kept_guard_holds_without_further_audits(world, monkeypatch):
    compiled = compiled_with(0.5)
    due = iter([True, True, *[False] * 99])
    monkeypatch.setattr(GuardAudit, "is_due", lambda self: next(due))
    compiled(X), compiled(X)
    world.factor = 5.0
    with pytest.warns(TurretWarning):
        torch.testing.assert_close(compiled(X), computed(X))
    world.factor = 2.0
    torch.testing.assert_close(compiled(X), computed(X))
    world.power, world.names = 3, ("a", "b")  # other guards are dropped still
    assert not torch.equal(compiled(X), computed(X))


def test_without_audits_a_dropped_guard_is_never_checked(world):
    compiled = compiled_with(0.0)
    before = compiled(X)
    world.factor = 5.0
    assert all(torch.equal(compiled(X), before) for _ in range(50))


def test_about_the_share_that_was_asked_for_is_audited():
    audit = GuardAudit(0.2, pytest.fail)
    assert 250 < sum(audit.is_due() for _ in range(2000)) < 550


def test_the_program_s_random_numbers_are_not_drawn():
    import random

    audit = GuardAudit(0.5, pytest.fail)
    random.seed(3)
    state = random.getstate()
    for _ in range(10):
        audit.is_due()
    assert random.getstate() == state


@pytest.mark.parametrize("share", [-0.1, 1.5, "often"])
def test_a_share_that_is_none_is_an_error(share):
    with pytest.raises(OptionError, match="guard_audit"):
        turret.compile(computed, options={"guard_audit": share})


@given(
    st.lists(st.booleans(), min_size=4, max_size=4),
    st.lists(st.tuples(*[st.integers(0, 1)] * 4), min_size=1, max_size=12),
)
@settings(max_examples=60)
def test_an_audited_check_answers_as_if_nothing_had_been_dropped(kept, calls):
    """Audited on every call, dropped guards hold as kept ones do; each is reported once."""
    guards = [Guard("EQUALS", LocalSource(n, f"a{n}"), 0) for n in range(4)]
    parts = [tuple(g for g, k in zip(guards, kept, strict=True) if k is wanted) for wanted in (True, False)]
    reports = []
    audit = GuardAudit(1.0, reports.append)
    chosen = GuardSet(parts[0], 4)
    check = audit.watch(chosen, check_of(chosen), GuardSet(parts[1], 4))
    for call in calls:
        assert check(None, *call) == (not any(call))
    subjects = [r.split("EQUALS ")[1].split()[0] for r in reports]
    assert len(subjects) == len(set(subjects))
    assert {*check.kept.guards, *check.dropped.guards} == set(guards)
    assert all(check.kept.guards[n] in guards for n in check.failed())

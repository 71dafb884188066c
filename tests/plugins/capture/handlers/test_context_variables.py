"""Context variables in compiled code hold what they hold in plain execution, in one graph where nothing else breaks."""

from __future__ import annotations

import contextlib
import contextvars

import pytest
import torch

from tests.plugins.capture.capture_lab import Observed

SCALE = contextvars.ContextVar("SCALE", default=2.0)
BARE = contextvars.ContextVar("BARE")
HELD = []


@contextlib.contextmanager
def scaled(by):
    token = SCALE.set(by)
    try:
        yield by
    finally:
        SCALE.reset(token)


def default(x):
    return x * SCALE.get(), SCALE.get(5.0), SCALE.name


def balanced(x):
    token = BARE.set(x * 2)
    try:
        inner = BARE.set(3)
        y = x * BARE.get()
        BARE.reset(inner)
        return y + BARE.get(), token.var is BARE, token.old_value is contextvars.Token.MISSING
    finally:
        BARE.reset(token)


def managed(x):
    with scaled(3.0) as by:
        y = x * SCALE.get() + by
        with scaled(4.0):
            y = y * SCALE.get()
        y = y - SCALE.get()
    return y, SCALE.get()


def missing(x):
    try:
        return x * BARE.get()
    except LookupError as error:
        return x + 1, BARE.get(None), error.args[0] is BARE


def leaves_it_set(x):
    token = SCALE.set(SCALE.get() + 1)
    HELD.append(token)
    SCALE.set(7.0)
    return x * SCALE.get(), token


def leaves_a_tensor(x):
    before = BARE.get(None)
    BARE.set(x + 1)
    return x if before is None else x + before


def raises(x):
    SCALE.set(9.0)
    with scaled(1.0):
        raise ValueError(float(SCALE.get()))


def resets_a_token_from_before(x):
    SCALE.reset(HELD.pop())
    return x * SCALE.get()


WHOLE = [default, balanced, managed, missing, leaves_it_set, leaves_a_tensor]


def outcome(function):
    """What a call gives, and what the variables hold behind it, twice, in a context of its own."""

    def run():
        HELD.clear()
        found = []
        for _ in range(3):
            try:
                result = function(torch.ones(2))
            except ValueError as error:
                result = error.args
            parts = result if isinstance(result, tuple) else (result,)
            seen = [p.tolist() if isinstance(p, torch.Tensor) else str(p).partition(" at ")[0] for p in parts]
            held = BARE.get(None)
            tokens = [str(t.old_value) for t in HELD]
            found.append((seen, SCALE.get(), held.tolist() if isinstance(held, torch.Tensor) else held, tokens))
        return found

    return contextvars.copy_context().run(run)


@pytest.mark.parametrize("program", [*WHOLE, raises], ids=lambda p: p.__name__)
def test_variables_hold_what_they_hold_in_plain_execution(program):
    observed = Observed(program)
    assert outcome(observed) == outcome(program)
    if program is not raises:
        assert observed.breaks == []


def test_a_graph_break_sees_what_is_set_so_far():
    def program(x):
        y = x + 1
        with scaled(3.0):
            y = y * 2
            print(SCALE.get(), end="")
            y = y * SCALE.get()
            HELD.append(_seen_by_python())
        print(SCALE.get(), end="")
        return y

    @torch.compiler.disable
    def _seen_by_python():
        return SCALE.get()

    observed = Observed(program)
    for _ in range(2):
        HELD.clear()
        assert torch.equal(observed(torch.ones(2)), torch.full((2,), 12.0))
        assert HELD == [3.0] and SCALE.get() == 2.0


def test_tokens_from_before_reset_once():
    def run():
        observed = Observed(resets_a_token_from_before)
        for by in (5.0, 6.0, 7.0):
            SCALE.set(by)
            HELD.append(SCALE.set(1.0))
            assert torch.equal(observed(torch.ones(2)), torch.full((2,), by))
            assert SCALE.get() == by
        used = SCALE.set(3.0)
        SCALE.reset(used)
        HELD.append(used)
        with pytest.raises(RuntimeError, match="already been used once"):
            observed(torch.ones(2))
        HELD.append(BARE.set(3.0))
        with pytest.raises(ValueError, match="different ContextVar"):
            observed(torch.ones(2))

    contextvars.copy_context().run(run)


def test_another_context_is_another_capture_where_the_program_branches():
    def program(x):
        return x + 1 if BARE.get(None) else x - 1

    observed = Observed(program)

    def run(value):
        BARE.set(value)
        return observed(torch.ones(2)).tolist()

    assert observed(torch.ones(2)).tolist() == [0, 0]
    for value in (True, False, True):
        assert contextvars.copy_context().run(run, value) == ([2, 2] if value else [0, 0])
    assert len(observed.graphs) == 3 and not observed.breaks

"""Stances, torch's and Turret's: what compiled functions do where no compiled code holds for a call."""

from __future__ import annotations

import pytest
import torch

import turret
from turret.errors import OptionError, RecompileError
from turret.frames import stances

X = torch.ones(3)


@pytest.fixture(params=[turret.set_stance, torch.compiler.set_stance], ids=["turret", "torch"])
def set_stance(request):
    yield request.param
    request.param("default")


def counted():
    """A compiled function, and what tells how many graphs there are for it."""

    def function(x):
        return x.sin() * 2

    compiled = turret.compile(function, options={"cache": False, "on_error": "raise"})
    return compiled, lambda: compiled.turret_settings.graphs


def test_eager_by_force_as_a_block_a_call_and_a_decorator(set_stance):
    compiled, graphs = counted()
    with set_stance("force_eager"):
        compiled(X)
    assert graphs() == 0

    @set_stance("force_eager")
    def forced():
        return compiled(X)

    forced()
    assert graphs() == 0
    set_stance("force_eager")
    compiled(X)
    assert graphs() == 0
    set_stance("default")
    compiled(X)
    assert graphs() == 1
    assert forced.__name__ == "forced"


def test_a_block_restores_the_stance_before_it(set_stance):
    with set_stance("eager_on_recompile"):
        with pytest.raises(ZeroDivisionError), set_stance("force_eager"):
            _ = 1 / 0
        assert stances.stance() == "eager_on_recompile"
    assert stances.stance() == "default"


def test_what_is_compiled_runs_and_all_else_as_python(set_stance):
    compiled, graphs = counted()
    with set_stance("eager_on_recompile"):
        torch.testing.assert_close(compiled(X), X.sin() * 2)
        assert graphs() == 0
    compiled(X)
    with set_stance("eager_on_recompile"):
        compiled(X)
        torch.testing.assert_close(compiled(torch.ones(5)), torch.ones(5).sin() * 2)
    assert graphs() == 1


def test_a_compilation_is_an_error_that_says_what_did_not_hold(set_stance):
    compiled, _ = counted()
    with set_stance("fail_on_recompile"), pytest.raises(RecompileError, match="function needs a compilation"):
        compiled(X)
    compiled(X)
    with set_stance("fail_on_recompile"):
        compiled(X)
        with pytest.raises(RuntimeError, match=r"size \[5\], expected \[3\]"):
            compiled(torch.ones(5))
        turret.compile(lambda n: n + 1)(3)  # nothing to compile
    compiled(torch.ones(5))


@pytest.mark.parametrize("name", ["eager_then_compile", "aot_eager_then_compile"])
def test_the_first_call_tells_what_is_dynamic(set_stance, name):
    def function(x, held, number):
        return x * held["y"].sum() + number

    compiled = turret.compile(function, options={"cache": False, "on_error": "raise"})
    settings = compiled.turret_settings
    with set_stance(name):
        for size in range(3, 8):
            given = torch.ones(size), {"y": torch.ones(size + 1, requires_grad=True)}, size + 10
            found, expected = compiled(*given), function(*given)
            torch.testing.assert_close(found, expected)
            found.sum().backward()
            assert settings.root.captures == (0 if size == 3 else 1)
    assert settings.graphs == 1


def test_a_stance_set_in_compiled_code_is_set_there():
    inner, _ = counted()

    def function(x):
        with turret.set_stance("force_eager"):
            y = inner(x + 1)
        return y, inner(x)

    found, expected = turret.compile(function)(X), function(X)
    torch.testing.assert_close(found, expected)
    assert stances.stance() == "default"


def test_an_unknown_stance_is_an_error_that_names_the_nearest():
    with pytest.raises(OptionError, match="did you mean 'force_eager'"):
        turret.set_stance("force_eagre")
    assert stances.stance() == "default"

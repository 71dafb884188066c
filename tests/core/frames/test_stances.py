"""Stances, torch's and Turret's: what compiled functions do where no compiled code holds for a call."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

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
        assert stances.stance().name == "eager_on_recompile"
    assert stances.stance() is stances.DEFAULT


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
    assert stances.stance() is stances.DEFAULT


def test_an_unknown_stance_is_an_error_that_names_the_nearest():
    with pytest.raises(OptionError, match="did you mean 'force_eager'"):
        turret.set_stance("force_eagre")
    assert stances.stance() is stances.DEFAULT


class Switched(torch.nn.Module):
    """Computes otherwise for each kind of call: by an argument, an attribute, a global, the dtype, the modes."""

    def __init__(self):
        super().__init__()
        self.flag, self.scale, self.held = True, 2.0, {"a": 1}
        self.linear = torch.nn.Linear(3, 3)

    def forward(self, x, n):
        y = self.linear(x) if self.flag else x.sin()
        if n is not None:
            y = y * n
        if self.training:
            y = y + self.held.get("b", 5)
        return (y * self.scale * SCALE["factor"]).to(x.dtype)


SCALE = {"factor": 3.0}
KINDS = {
    "flag": (True, False),
    "n": (None, 2, 7, "a tensor"),
    "training": (True, False),
    "scale": (2.0, 0.5),
    "held": ({"a": 1}, {"b": 2}),
    "factor": (3.0, 4.0),
    "grad": (True, False),
    "rows": (1, 2, 5),
    "dtype": (torch.float32, torch.float64),
}
kinds = st.fixed_dictionaries({name: st.sampled_from(values) for name, values in KINDS.items()})


def call_of(kind, module, compiled):
    """The results of the compiled module and of the module for one kind of call."""
    module.flag, module.scale, module.held = kind["flag"], kind["scale"], dict(kind["held"])
    module.train(kind["training"])
    SCALE["factor"] = kind["factor"]
    x = torch.linspace(-1, 1, 3 * kind["rows"]).reshape(kind["rows"], 3)
    module.to(kind["dtype"])
    n = torch.tensor(1.5) if kind["n"] == "a tensor" else kind["n"]
    with torch.set_grad_enabled(kind["grad"]):
        return compiled(x.to(kind["dtype"]), n), module(x.to(kind["dtype"]), n)


@given(st.lists(kinds, min_size=1, max_size=3), st.data())
@settings(max_examples=5)
def test_calls_known_from_the_warm_up_are_told_apart_by_few_guards(warm_up, data):
    turret.reset()
    module = Switched()
    options = {"cache": False, "on_error": "raise", "recompile_limit": 30}
    compiled = turret.compile(module, options=options)
    for kind in [*warm_up, *warm_up]:
        call_of(kind, module, compiled)
    with turret.set_stance(skip_guard_eval_unsafe=True):
        for kind in data.draw(st.lists(st.sampled_from(warm_up), min_size=3, max_size=8)):
            found, expected = call_of(kind, module, compiled)
            assert found.requires_grad == expected.requires_grad
            torch.testing.assert_close(found, expected)


def test_what_never_told_compiled_codes_apart_is_not_looked_at(set_stance):
    module = Switched().eval()
    compiled = turret.compile(module, options={"cache": False, "on_error": "raise"})
    x = torch.randn(2, 3)
    for flag in (True, False, True):
        module.flag = flag
        torch.testing.assert_close(compiled(x, None), module(x, None))
    module.flag = False
    before = module(x, None)
    set_stance(skip_guard_eval_unsafe=True)
    module.scale = 100.0
    torch.testing.assert_close(compiled(x, None), before)
    with pytest.raises(RecompileError, match="skip_guard_eval_unsafe"):
        compiled(torch.randn(4, 4, 3).double(), None)
    set_stance("default")
    torch.testing.assert_close(compiled(x, None), module(x, None))


def test_frames_behind_a_break_are_chosen_by_few_guards_too(set_stance):
    def function(x, n):
        y = x * n
        turret.graph_break()
        return y.sin() + n

    compiled = turret.compile(function, options={"cache": False, "on_error": "raise"}, dynamic=False)
    for n in (2, 3, 2, 3):
        compiled(X, n)
    with set_stance(skip_guard_eval_unsafe=True):
        for n in (3, 2, 2, 3):
            torch.testing.assert_close(compiled(X, n), function(X, n))
        with pytest.raises(RecompileError, match="call it first, in a warm-up"):
            compiled(X, 4)

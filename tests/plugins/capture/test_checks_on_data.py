"""``if not ok: raise`` on data is left to the graph to check; a call for which it fails raises what the program does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch import distributions as D

import turret
from tests.plugins.capture.capture_lab import Observed, assert_same
from tests.plugins.devices.acme_world import World, on_acme
from turret.errors import CaptureError
from turret.plugins.capture.rebuilding import failures


def positive_root(x: torch.Tensor) -> torch.Tensor:
    if (x < 0).any():
        raise ValueError(f"expected numbers that have a root, given {x.tolist()}")
    return x.sqrt()


def finite_mean(x: torch.Tensor) -> torch.Tensor:
    if not torch.isfinite(x).all():
        message = "not finite"
        raise ArithmeticError(message) from KeyError(x.shape[0])
    return x.mean()


def caught(x: torch.Tensor) -> torch.Tensor:
    try:
        return positive_root(x)
    except ValueError as error:
        return x * len(str(error))


def after_a_change(x: torch.Tensor) -> torch.Tensor:
    x += 1
    return positive_root(x)


DISTRIBUTIONS: dict[str, Callable[[torch.Tensor], Any]] = {
    "Normal": lambda x: D.Normal(x, 1.0).log_prob(x),
    "of a changing scale": lambda x: D.Normal(0.0, x).log_prob(x + 1),
    "Independent": lambda x: D.Independent(D.Normal(x, torch.tensor(1)), 1).log_prob(x),
    "Categorical": lambda x: (D.Categorical(logits=x).entropy(), D.Categorical(probs=x).probs),
    "Beta": lambda x: D.Beta(x, 2.0).log_prob(x),
    "Uniform": lambda x: D.Uniform(x, 2.0).mean,
    "divergence": lambda x: D.kl_divergence(D.Normal(x, 1.0), D.Normal(0.0, 2.0)),
}


def outcome(function: Callable, x: torch.Tensor) -> Any:
    try:
        return function(x.clone())
    except (ValueError, ArithmeticError, KeyError) as error:
        return type(error), str(error), type(error.__cause__)


def assert_as_eager(function: Callable, calls: list[torch.Tensor]) -> None:
    compiled = turret.compile(function, fullgraph=True, backend="aot_eager")
    for x in calls:
        found, expected = outcome(compiled, x), outcome(function, x)
        assert type(found) is type(expected)
        if isinstance(expected, torch.Tensor) or not isinstance(expected[0], type):
            torch.testing.assert_close(found, expected, equal_nan=True)
        else:
            assert found == expected


NUMBERS = st.lists(st.sampled_from([0.0, 0.5, 1.0, 3.0, -1.0, float("nan"), float("inf")]), min_size=3, max_size=3).map(
    torch.tensor
)


@pytest.mark.filterwarnings("ignore::turret.errors.TurretWarning")
@settings(max_examples=8, deadline=None)
@given(
    function=st.sampled_from([positive_root, finite_mean, caught, *DISTRIBUTIONS.values()]),
    calls=st.lists(NUMBERS, min_size=1, max_size=3),
)
def test_calls_return_and_raise_what_eager_does(function, calls):
    assert_as_eager(function, [torch.tensor([0.25, 0.5, 0.75]), *calls])


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_a_distribution_with_its_checks_is_one_graph(name):
    assert_as_eager(DISTRIBUTIONS[name], [torch.tensor([0.25, 0.5, 0.75])])


def test_a_check_after_a_change_decides_and_is_no_part_of_a_graph():
    with pytest.raises(CaptureError, match="a branch on a tensor's value"):
        turret.compile(after_a_change, fullgraph=True)(torch.zeros(3))
    compiled, x = turret.compile(after_a_change), torch.full((3,), -4.0)
    with pytest.raises(ValueError, match="have a root"):
        compiled(x)
    assert x.tolist() == [-3.0] * 3


def test_a_check_in_a_try_block_decides_and_is_no_part_of_a_graph():
    def program(x: torch.Tensor) -> torch.Tensor:
        try:
            if x.sum() > 3:
                raise ValueError
            return x + 1
        except ValueError:
            return x - 1

    with pytest.raises(CaptureError, match="a branch on a tensor's value"):
        turret.compile(program, fullgraph=True)(torch.ones(2))
    compiled = turret.compile(program)
    for x in (torch.ones(2), torch.full((2,), 9.0)):
        torch.testing.assert_close(compiled(x), program(x))


def test_a_branch_that_raises_either_way_decides():
    def program(x: torch.Tensor) -> None:
        if x.sum() > 3:
            raise ValueError("large")
        raise KeyError("small")

    for x, kind in ((torch.ones(2), KeyError), (torch.full((2,), 9.0), ValueError)):
        with pytest.raises(kind):
            turret.compile(program)(x)


def test_a_check_that_raises_where_a_number_of_data_has_a_property_is_part_of_a_whole_graph():
    def program(x: torch.Tensor) -> torch.Tensor:
        count = x.sum().item()
        if count < 0:
            raise ValueError("negative")
        if not count < 100:
            raise ValueError("large")
        return x * count

    compiled = turret.compile(program, fullgraph=True, options={"on_error": "raise"})
    for x in (torch.ones(2), torch.arange(3.0)):
        torch.testing.assert_close(compiled(x), program(x))
    for x, said in ((torch.full((2,), -1.0), "negative"), (torch.full((2,), 99.0), "large")):
        with pytest.raises(ValueError, match=said):
            compiled(x)


def asserting() -> Callable:
    """A function with an ``assert`` of Python's own: pytest writes those of this file anew."""
    made: dict[str, Any] = {}
    exec("def asserting(x):\n    assert (x > -10).all(), 'too small'\n    return x * 2\n", made)
    return made["asserting"]


def under_modes(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return positive_root(x) + D.Normal(x, x + 1, validate_args=True).mean


def in_a_loop(x: torch.Tensor) -> torch.Tensor:
    for _ in range(3):
        x = x * 2
        if not torch.isfinite(x).all():
            raise ArithmeticError("no number")
    return x


@pytest.mark.filterwarnings("ignore::turret.errors.TurretWarning")
@pytest.mark.parametrize("program", [asserting(), under_modes, in_a_loop, finite_mean, *DISTRIBUTIONS.values()])
def test_checks_break_no_graph_of_programs_that_may_break(program):
    observed = Observed(program)
    for numbers in ([0.25, 0.5, 0.75], [0.5, 0.25, 1.0], [-20.0, 0.5, float("nan")], [0.5, 0.25, 1.0]):
        x = torch.tensor(numbers)
        expected, found = outcome_of(program, x), outcome_of(observed, x)  # what libraries remember is there now
        if isinstance(expected, tuple) and isinstance(expected[0], str):
            assert found == expected
        else:
            torch.testing.assert_close(found, expected, equal_nan=True)
    assert len(observed.graphs) == 1 and not observed.breaks


def outcome_of(function: Callable, x: torch.Tensor) -> Any:
    try:
        return function(x.clone())
    except (ValueError, ArithmeticError, AssertionError) as error:
        return type(error).__name__, str(error).partition("\n")[0]


def test_an_exception_that_is_handled_decides_where_a_graph_may_break():
    observed = Observed(caught)
    for numbers in ([1.0, 2.0], [-1.0, 2.0], [1.0, 2.0]):
        torch.testing.assert_close(observed(torch.tensor(numbers)), caught(torch.tensor(numbers)))
    assert observed.breaks


def test_an_exception_that_ends_a_loop_is_no_check():
    class UntilLarge:
        def __init__(self, x: torch.Tensor) -> None:
            self.x = x

        def __iter__(self) -> UntilLarge:
            return self

        def __next__(self) -> torch.Tensor:
            self.x = self.x * 2
            if self.x.sum() > 20:
                raise StopIteration
            return self.x

    def program(x: torch.Tensor) -> list[torch.Tensor]:
        return [y + 1 for y in UntilLarge(x)]

    observed = Observed(program)
    for start in (1.0, 0.5, 30.0):
        torch.testing.assert_close(observed(torch.full((2,), start)), program(torch.full((2,), start)))


def test_a_loop_that_ends_by_an_exception_is_not_followed_for_ever():
    def program(x: torch.Tensor) -> torch.Tensor:
        while True:
            x = x + 1
            if x.sum() > 1000:
                raise ValueError("at its end")

    compiled = Observed(program)
    for _ in range(2):
        with pytest.raises(ValueError, match="at its end"):
            compiled(torch.zeros(2))
    assert len(compiled.graphs) < 6


CALLS = []


@torch.library.custom_op("turret_checks::noted", mutates_args=())
def noted(x: torch.Tensor) -> torch.Tensor:
    CALLS.append(x.sum().item())
    return x.clone()


@noted.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def after_random_numbers(x: torch.Tensor) -> torch.Tensor:
    y = torch.nn.functional.dropout(x, 0.5) + torch.rand(3)
    return y + positive_root(x)


def after_a_custom_op(x: torch.Tensor) -> torch.Tensor:
    return noted(x) + positive_root(x)


def before_a_custom_op(x: torch.Tensor) -> torch.Tensor:
    return noted(positive_root(x))


def asserted_by_torch(x: torch.Tensor) -> torch.Tensor:
    y = noted(x)
    torch._assert((x > -3).all(), "under")
    return y * 2


def after_a_checkpoint(x: torch.Tensor) -> torch.Tensor:
    y = torch.utils.checkpoint.checkpoint(torch.nn.functional.dropout, x, 0.5, use_reentrant=False)
    return y + positive_root(x)


@torch.compiler.nested_compile_region
def region(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.dropout(x, 0.5) * 2


def after_regions(x: torch.Tensor) -> torch.Tensor:
    return region(x) + region(x + 1) + positive_root(x)


def after_a_branch(x: torch.Tensor) -> torch.Tensor:
    y = torch.cond(x.sum() > 100, lambda x: x.clone(), lambda x: torch.rand_like(x) + x, (x,))
    return y + positive_root(x)


def after_attention(x: torch.Tensor) -> torch.Tensor:
    q = x.view(1, 1, 3, 1)
    y = torch.nn.functional.scaled_dot_product_attention(q, q, q, dropout_p=0.5)
    return y.view(3) + positive_root(x)


def after_numbers_in_place(x: torch.Tensor) -> torch.Tensor:
    return torch.empty(3).normal_().add(torch.randperm(3)) + positive_root(x)


@pytest.mark.parametrize(
    "program",
    [after_random_numbers, after_a_custom_op, before_a_custom_op, asserted_by_torch, after_a_checkpoint, after_regions]
    + [after_a_branch, after_attention, after_numbers_in_place],
    ids=lambda p: p.__name__,
)
def test_what_a_caller_sees_of_a_check_that_fails_is_done_once(program):
    def caller(x: torch.Tensor) -> tuple:
        try:
            return "returned", program(x), torch.rand(2)
        except (ValueError, AssertionError) as error:
            return "raised", str(error), torch.rand(2)

    observed = Observed(caller)
    for number in (1.0, 2.0, -4.0, 3.0, -5.0):
        seen = []
        for function in (observed, caller):
            CALLS.clear()
            torch.manual_seed(3)
            seen.append((function(torch.full((3,), number)), list(CALLS), torch.rand(())))
        assert_same(*seen)


@pytest.mark.parametrize(("program", "draws"), [(positive_root, False), (after_random_numbers, True)])
def test_random_states_are_kept_for_graphs_that_draw_alone(program, draws, monkeypatch):
    taken = []
    monkeypatch.setattr(failures, "random_states", lambda devices: taken.append(devices))
    observed = Observed(program)
    for _ in range(2):
        observed(torch.ones(3))
    assert len(observed.graphs) == 1 and taken == [()] * (2 if draws else 0)


@pytest.mark.parametrize("draws", [False, True])
@on_acme
def test_checks_on_a_device_that_tells_no_random_states_decide_where_the_graph_draws(world: World, draws: bool):
    def program(x):
        y = torch.nn.functional.dropout(x, 0.5) if draws else x * 2
        if (x < -3).any():
            raise ValueError("under")
        return y

    assert not hasattr(torch.acme, "get_rng_state")
    compiled = world.compile(program)
    for number in (1.0, 2.0, -4.0, 3.0):
        x = torch.full((3,), number).to("acme")
        if number < -3:
            with pytest.raises(ValueError, match="under"):
                compiled(x)
        else:
            found = compiled(x).cpu()
            assert ((found == 0) | (found == 2 * number)).all()
    assert world.driver.launched

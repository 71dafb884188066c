"""The default generator's state, read and set in compiled code: eager's draws, and its state afterwards."""

from __future__ import annotations

import pytest
import torch
import torch.utils.checkpoint
from hypothesis import given, settings
from hypothesis import strategies as st

import turret
from tests.plugins.capture.capture_lab import Observed, assert_same, outcome

X = torch.linspace(-1, 1, 8)


def drawn_again(x):
    state = torch.get_rng_state()
    first = torch.randn(4)
    torch.set_rng_state(state)
    return first, torch.randn(4), torch.rand(2), x + 1


def forked_around_dropout(x):
    with torch.random.fork_rng(devices=[]):
        y = torch.nn.functional.dropout(x * 2)
    return y, torch.nn.functional.dropout(x), torch.rand(3)


def forked_and_seeded(x):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        weights = torch.empty(8).uniform_(-1, 1)
    return x * weights, torch.randn(())


def forked_everywhere(x):
    with torch.random.fork_rng(enabled=x.dim() > 0):
        y = torch.bernoulli(torch.full_like(x, 0.5))
    return y + torch.rand_like(x)


def forked_in_fork(x):
    with torch.random.fork_rng([]):
        a = torch.randperm(6)
        with torch.random.fork_rng([]):
            b = torch.randint(0, 9, (3,))
        c = torch.randint(0, 9, (3,))
    return a, b, c, torch.multinomial(x.abs() + 0.1, 3)


def seeded(x):
    before = torch.rand(2)
    torch.manual_seed(11)
    return before, x + torch.rand(8), torch.normal(0.0, 1.0, (3,))


def state_as_result(x):
    torch.rand(3)
    state = torch.get_rng_state()
    return state, x + torch.rand(8), torch.get_rng_state()


def nobody_reads(x):
    torch.rand(5)
    state = torch.get_rng_state()
    torch.randn(3)
    torch.set_rng_state(state)
    torch.rand(2)
    return x * 2


def state_changed_and_set(x):
    state = torch.get_rng_state()
    other = state.clone()
    torch.manual_seed(4)
    other.copy_(torch.get_rng_state())
    torch.set_rng_state(state)
    first = torch.rand(3)
    torch.set_rng_state(other)
    other.zero_()
    return first, torch.rand(3), other, x


def forked_in_loop(x):
    rows = []
    for number in range(3):
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(number)
            rows.append(torch.nn.functional.dropout(x, 0.3))
    return torch.stack(rows), torch.rand(1)


def fork_left_by_exception(x):
    try:
        with torch.random.fork_rng(devices=[]):
            y = torch.rand(2)
            raise ValueError
    except ValueError:
        return x, y, torch.rand(2)


PROGRAMS = [
    drawn_again, forked_around_dropout, forked_and_seeded, forked_everywhere, forked_in_fork, seeded, state_as_result,
    nobody_reads, state_changed_and_set, forked_in_loop, fork_left_by_exception,
]  # fmt: skip


def compiled(program, fallback_random, fullgraph=True):
    options = {"fallback_random": fallback_random, "on_error": "raise"}
    return turret.compile(program, fullgraph=fullgraph, options=options)


def assert_streams_equal(mine, program, *args):
    """Results are eager's and the generator's state after them, call after call."""
    for seed in range(3):
        torch.manual_seed(seed)
        expected = outcome(program, args, {})
        state = torch.get_rng_state()
        torch.manual_seed(seed)
        assert_same(outcome(mine, args, {}), expected)
        assert torch.equal(torch.get_rng_state(), state), "the state after the call"


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
@pytest.mark.parametrize("fallback_random", [False, True])
def test_draws_around_the_state_are_eagers_in_one_graph(program, fallback_random):
    assert_streams_equal(compiled(program, fallback_random), program, X)


DRAWS = {
    "rand": lambda x: torch.rand(3),
    "randn": lambda x: torch.randn(20),
    "randint": lambda x: torch.randint(0, 100, (3,)),
    "like": lambda x: torch.randn_like(x),
    "dropout": lambda x: torch.nn.functional.dropout(x, 0.4),
    "uniform": lambda x: torch.empty(3).uniform_(2, 3),
    "exponential": lambda x: torch.empty(3).exponential_(),
    "normal": lambda x: torch.zeros(3).normal_(1, 2),
    "bernoulli": lambda x: torch.bernoulli(torch.full((5,), 0.3)),
    "permutation": lambda x: torch.randperm(5),
    "own": lambda x: x * 2,
}
STEPS = st.one_of(
    st.tuples(st.sampled_from(["draw", "waste", "fork"]), st.sampled_from(sorted(DRAWS))),
    st.tuples(st.sampled_from(["get", "set"]), st.integers(0, 1)),
    st.tuples(st.just("seed"), st.integers(-3, 2**40)),
)


@given(st.lists(STEPS, min_size=2, max_size=9), st.booleans(), st.booleans())
@settings(max_examples=25, deadline=None)
def test_any_order_of_draws_and_states_gives_what_eager_gives(steps, fallback_random, gradients):
    steps = [("get", 0), *steps, ("set", 0)]

    def program(x):
        states, found = {}, []
        for kind, what in steps:
            if kind == "draw":
                found.append(DRAWS[what](x))
            elif kind == "waste":
                DRAWS[what](x)
            elif kind == "fork":
                with torch.random.fork_rng(devices=[]):
                    found.append(DRAWS[what](x))
            elif kind == "get":
                states[what] = torch.get_rng_state()
            elif kind == "set" and what in states:
                torch.set_rng_state(states[what])
            elif kind == "seed":
                torch.manual_seed(what)
        return found, states, x.sin()

    x = X.clone().requires_grad_(gradients)
    assert_streams_equal(compiled(program, fallback_random), program, x)


@pytest.mark.parametrize("fallback_random", [False, True])
def test_gradients_flow_through_draws_of_a_fork_and_the_backward_draws_nothing(fallback_random):
    def program(x, w):
        with torch.random.fork_rng(devices=[]):
            y = torch.nn.functional.dropout(x @ w)
        return (y * torch.rand(4)).sum()

    def step(function):
        torch.manual_seed(2)
        x, w = X.reshape(2, 4).clone().requires_grad_(), torch.ones(4, 4, requires_grad=True)
        function(x, w).backward()
        return x.grad, w.grad, torch.get_rng_state()

    assert_same(step(compiled(program, fallback_random)), step(program))


def test_a_state_lives_on_behind_a_break():
    def program(x):
        state = torch.get_rng_state()
        first = torch.rand(3)
        turret.graph_break()
        torch.set_rng_state(state)
        return first, torch.rand(3), x + 1

    assert_streams_equal(compiled(program, True, fullgraph=False), program, X)
    torch.manual_seed(0)
    first, second, _ = compiled(program, True, fullgraph=False)(X)
    assert torch.equal(first, second)


def test_a_state_from_outside_is_set():
    torch.manual_seed(9)
    state = torch.get_rng_state()

    def program(x, state):
        torch.set_rng_state(state)
        return x + torch.rand(8)

    assert_streams_equal(compiled(program, False), program, X, state)


def of_nobody_else(x):
    generator = torch.Generator()
    seed = generator.seed()
    first = torch.rand(3, generator=generator)
    generator.manual_seed(seed)
    return x + 1, first, torch.rand(3, generator=generator), seed, seed == generator.initial_seed()


def of_all_devices(x):
    seed = torch.seed()
    first = torch.rand(3)
    torch.random.manual_seed(seed)
    return x + 1, first, torch.rand(3), seed, seed == torch.initial_seed()


@pytest.mark.parametrize("program", [of_nobody_else, of_all_devices])
def test_a_seed_that_nobody_knows_is_another_one_at_each_call_of_one_graph(program):
    mine = Observed(program, fullgraph=True)
    seeds = set()
    for _ in range(3):
        _, first, again, seed, is_it = mine(X)
        seeds.add(seed)
        assert torch.equal(first, again) and is_it
    assert len(seeds) == 3 and type(seed) is int
    if program is of_all_devices:
        assert torch.initial_seed() == seed
        state = torch.get_rng_state()
        torch.manual_seed(seed)
        torch.rand(3)
        assert torch.equal(torch.get_rng_state(), state)


def test_a_seed_that_changes_is_one_graph():
    def program(x, seed):
        torch.manual_seed(seed)
        return x + torch.rand(8)

    observed = Observed(program)
    for seed in (3, 4, 5, 60, -1):
        expected = program(X, seed)
        assert_same(observed(X, seed), expected)
    assert len(observed.graphs) <= 3 and not observed.breaks


@pytest.mark.parametrize(
    "state", [torch.zeros(3, dtype=torch.uint8), torch.zeros(5056), None], ids=["short", "float", "none"]
)
def test_what_is_no_state_is_refused_as_eager_refuses_it(state):
    def program(x):
        torch.set_rng_state(state)
        return x + torch.rand(8)

    observed = Observed(program)
    expected, found = outcome(program, (X,), {}), outcome(observed, (X,), {})
    assert found[0] == expected[0] == "raised"
    assert type(found[1]) is type(expected[1]) and str(found[1]) == str(expected[1])


def test_the_generator_itself_is_what_seeding_gives():
    def program(x):
        return torch.manual_seed(3), x + torch.rand(8)

    assert compiled(program, False)(X)[0] is torch.default_generator


def test_states_in_regions_that_run_again_break_the_graph():
    def noisy(x):
        with torch.random.fork_rng(devices=[]):
            return torch.nn.functional.dropout(x).sin()

    def program(x):
        return torch.utils.checkpoint.checkpoint(noisy, x, use_reentrant=False) + torch.rand(8)

    observed = Observed(program)
    x = X.clone().requires_grad_()
    torch.manual_seed(1)
    expected = program(x)
    torch.manual_seed(1)
    assert_same(observed(x), expected)
    assert any("checkpointed" in b for b in observed.breaks)

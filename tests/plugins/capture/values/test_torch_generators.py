"""Generators of torch's in compiled code: eager's draws, states and seeds, in one graph."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import turret
from tests.plugins.capture.capture_lab import Observed, assert_same
from turret.errors import CaptureError

X = torch.linspace(-1, 1, 4)
DRAWS = {
    "rand": lambda g: torch.rand(3, generator=g),
    "normal_": lambda g: torch.empty(17).normal_(1.0, 2.0, generator=g),
    "uniform_": lambda g: X.clone().uniform_(generator=g),
    "randperm": lambda g: torch.randperm(5, generator=g),
    "randint": lambda g: torch.randint(0, 9, (2,), generator=g),
    "multinomial": lambda g: torch.multinomial(X.exp(), 2, generator=g),
    "bernoulli": lambda g: torch.bernoulli(torch.full((4,), 0.5), generator=g),
    "init": lambda g: torch.nn.init.kaiming_uniform_(torch.empty(3, 2), generator=g),
}
WHO = ("first", "second", "default", "made")


@st.composite
def steps(draw):
    what = draw(
        st.sampled_from(["draw", "draw", "seed", "read seed", "save", "restore", "make", "clone", "plain", "torch"])
    )
    return what, draw(st.sampled_from(WHO)), draw(st.sampled_from(list(DRAWS))), draw(st.integers(0, 3))


def planned(plan):
    def program(first, second, number):
        held = {"first": first, "second": second, "default": torch.default_generator, "made": torch.Generator()}
        saved = torch.Generator().manual_seed(9).get_state()
        found = []
        for what, who, kind, seed in plan:
            generator = held[who]
            if what == "draw":
                found.append(DRAWS[kind](generator))
            elif what == "seed":
                assert generator.manual_seed(seed + number) is generator
            elif what == "read seed" and who != "made":
                found.append(generator.initial_seed())
            elif what == "save":
                saved = generator.get_state()
            elif what == "restore" and who == "made":
                generator.set_state(saved)
            elif what == "make":
                held["made"] = torch.Generator("cpu").manual_seed(seed)
            elif what == "clone":
                held["made"] = generator.clone_state()
            elif what == "plain":
                found.append(torch.nn.functional.dropout(X))
            elif what == "torch":
                torch.manual_seed(seed)
                found.append(torch.initial_seed())
        return found, held["made"].get_state()

    return program


def run(call, rounds):
    torch.manual_seed(3)
    first, second = torch.Generator().manual_seed(1), torch.Generator().manual_seed(2)
    found = []
    for number in range(rounds):
        found.append(call(first, second, number))
        found.append([first.get_state(), second.get_state(), torch.get_rng_state()])
        found.append([first.initial_seed(), second.initial_seed(), torch.initial_seed()])
    return found


@given(st.lists(steps(), min_size=1, max_size=6))
@settings(max_examples=40, deadline=None)
def test_any_use_of_generators_is_eagers(plan):
    program = planned(plan)
    assert_same(run(Observed(program, fullgraph=True), 2), run(program, 2))


@given(st.lists(steps(), min_size=1, max_size=5))
@settings(max_examples=5, deadline=None)
def test_any_compiled_use_of_generators_is_eagers(plan):
    program = planned(plan)
    options = {"cache": False, "on_error": "raise", "fallback_random": True}  # for draws where no state is named
    compiled = turret.compile(program, fullgraph=True, options=options)
    assert_same(run(compiled, 2), run(program, 2))


def test_one_graph_serves_all_generators_and_seeds():
    def program(x, generator, seed):
        noise = torch.randn(4, generator=generator)
        generator.manual_seed(seed)
        return x * noise + torch.rand(4, generator=generator), generator.initial_seed()

    observed = Observed(program, fullgraph=True, dynamic=True)
    for seed in (3, 4, 5):
        mine, theirs = torch.Generator().manual_seed(seed), torch.Generator().manual_seed(seed)
        assert_same(observed(X, mine, seed + 7), program(X, theirs, seed + 7))
        assert torch.equal(mine.get_state(), theirs.get_state())
    assert len(observed.graphs) == 1


def test_the_same_generator_twice_is_not_two():
    def program(one, other):
        return torch.rand(2, generator=one), torch.rand(2, generator=other)

    observed = Observed(program, fullgraph=True)
    for same in (False, True, False, True):
        found = []
        for call in (program, observed):
            one = torch.Generator().manual_seed(1)
            other = one if same else torch.Generator().manual_seed(1)
            found.append((call(one, other), one.get_state(), other.get_state()))
        assert_same(found[1], found[0])


def test_the_default_generator_given_as_another_is_the_default_one():
    def program(generator):
        return torch.rand(2), torch.rand(2, generator=generator), torch.rand(2)

    observed = Observed(program, fullgraph=True)
    for is_default in (False, True, False):
        found = []
        for call in (program, observed):
            torch.manual_seed(5)
            found.append(call(torch.default_generator if is_default else torch.Generator().manual_seed(1)))
        assert_same(found[1], found[0])


def test_generators_cross_graph_breaks_and_leave():
    def program(outside):
        made = torch.Generator().manual_seed(4)
        first = torch.rand(2, generator=made), torch.rand(2, generator=outside)
        print(end="")
        return first, torch.rand(2, generator=made), torch.rand(2, generator=outside), made

    found = []
    for call in (program, Observed(program)):
        outside = torch.Generator().manual_seed(1)
        *drawn, made = call(outside)
        found.append((drawn, torch.rand(2, generator=made), torch.rand(2, generator=outside)))
    assert_same(found[1], found[0])


def test_a_state_that_is_read_is_a_tensor_of_its_own():
    def program(generator):
        state = generator.get_state()
        state.zero_()
        return torch.rand(2, generator=generator)

    found = [call(torch.Generator().manual_seed(1)) for call in (program, Observed(program, fullgraph=True))]
    assert_same(found[1], found[0])


@pytest.mark.parametrize("seed", [-1, 2.5, None])
def test_seeds_that_are_none_or_wrap_around_are_eagers(seed):
    def program(x):
        generator = torch.Generator()
        try:
            generator.manual_seed(seed)
        except (TypeError, RuntimeError) as error:
            return type(error)
        return generator.initial_seed(), torch.rand(2, generator=generator) + x[:2]

    assert_same(Observed(program)(X), program(X))


def test_checkpoints_and_transforms_leave_generators_to_python():
    def program(x, generator):
        return torch.utils.checkpoint.checkpoint(
            lambda v: v * torch.rand(4, generator=generator), x, use_reentrant=False
        )

    x = X.clone().requires_grad_()
    with pytest.raises(CaptureError, match="checkpointed"):
        Observed(program, fullgraph=True)(x, torch.Generator().manual_seed(1))
    found = [call(x, torch.Generator().manual_seed(1)) for call in (program, Observed(program))]
    assert_same(found[1], found[0])


def in_a_block(generator):
    with torch.inference_mode():
        made = torch.Generator().manual_seed(1)
        first = torch.rand(2, generator=generator) + torch.rand(2, generator=made)
    return first * 1, torch.rand(2, generator=generator), torch.rand(2, generator=made)


def kept_in_a_block(generator):
    with torch.inference_mode():
        state = generator.get_state()
    torch.rand(2, generator=generator)
    generator.set_state(state)
    return torch.rand(2, generator=generator)


@pytest.mark.parametrize("program", [in_a_block, kept_in_a_block, torch.inference_mode()(in_a_block)])
def test_generators_draw_in_inference_mode_and_out_of_it(program):
    observed, mine, theirs = Observed(program), torch.Generator().manual_seed(3), torch.Generator().manual_seed(3)
    for _ in range(2):
        assert_same(observed(mine), program(theirs))
        assert torch.equal(mine.get_state(), theirs.get_state())
    assert not observed.fallbacks


def test_layers_that_are_alike_draw_from_their_generators_in_turn():
    class Noisy(torch.nn.Module):
        def __init__(self, generator):
            super().__init__()
            self.generator, self.one, self.two = generator, torch.nn.Linear(4, 4), torch.nn.ReLU()

        def forward(self, x):
            return self.two(self.one(x)) + torch.randn(4, generator=self.generator)

    def network():
        torch.manual_seed(1)
        shared = torch.Generator().manual_seed(1)
        return torch.nn.Sequential(*[Noisy(shared if n % 2 else torch.Generator().manual_seed(n)) for n in range(4)])

    mine, theirs = network(), network()
    observed = Observed(mine, fullgraph=True)
    for _ in range(3):
        assert_same(observed(X), theirs(X))

"""Random numbers of Python's: drawn anew at each call, in number and order as eager draws them."""

import functools
import operator
import random

import numpy
import pytest
import torch
from torch.utils.checkpoint import checkpoint

import turret
from tests.plugins.capture.capture_lab import Observed, assert_captured, assert_same
from turret.errors import CaptureError

OWN, OTHER = random.Random(3), random.Random(4)
STATE = random.Random(8).getstate()
KEPT = {}


def begin():
    random.seed(77)
    OWN.seed(3)
    OTHER.seed(4)
    KEPT.clear()


def follow(call, calls, sizes=(3,)):
    """What calls give or raise, and how they leave all generators."""
    begin()
    found = []
    for number in range(calls):
        try:
            result = call(torch.arange(float(sizes[number % len(sizes)])) + number)
        except CaptureError:
            raise
        except Exception as error:
            result = type(error), str(error)
        found.append((result, random.getstate(), OWN.getstate(), OTHER.getstate(), dict(KEPT)))
    return found


def agrees(program, calls=5, fullgraph=True, sizes=(3,)):
    observed = Observed(program, fullgraph=fullgraph)
    expected, found = follow(program, calls, sizes), follow(observed, calls, sizes)
    for number, (mine, theirs) in enumerate(zip(found, expected, strict=True)):
        assert_same(mine, theirs, f"call {number}")
    return observed


PAIRS = [(0, 1), (0, 2), (1, 2), (2, 0), (2, 1), (1, 0)]


def numbers(draw):
    return lambda x: x * draw()


ONE_GRAPH = {
    "random": numbers(random.random),
    "randint": numbers(lambda: random.randint(1, 10)),
    "randrange": numbers(lambda: random.randrange(0, 10, 2)),
    "uniform": numbers(lambda: random.uniform(1, b=10)),
    "triangular": numbers(random.triangular),
    "gauss": numbers(lambda: random.gauss(0.0, 2.0) + random.gauss()),
    "betavariate": numbers(lambda: random.betavariate(1, 2)),
    "getrandbits": numbers(lambda: random.getrandbits(5)),
    "choice of numbers": numbers(lambda: random.choice([1.0, 2.0, 3.0, 5.0, 7.0, 11.0])),
    "choice of a range": numbers(lambda: random.choice(range(100))),
    "choices": numbers(lambda: random.choices([1.0, 2.0, 4.0], weights=[1, 2, 3], k=2)[1]),
    "sample": numbers(lambda: sum(random.sample(range(100), 3))),
    "partial": numbers(functools.partial(random.uniform, 1, 2)),
    "map": numbers(lambda: sum(map(lambda _: random.random(), range(3)))),
    "a number of a number": numbers(lambda: random.uniform(0, random.random()) + random.gauss(random.random(), 2.0)),
    "generator": numbers(lambda: OWN.random() + OTHER.uniform(1, 2) + OWN.randint(0, 9)),
    "made": numbers(lambda: random.Random(5).random()),
    "a comparison": numbers(lambda: random.random() > 0.5),
    "many": numbers(lambda: functools.reduce(operator.add, [random.random() for _ in range(1500)])),
    "an entry of a table": lambda x: x * [1.0, 2.0, 3.0, 4.0, 5.0][random.randrange(5)],
    "a row of a table": lambda x: x[list(PAIRS[random.randrange(6)])] + PAIRS[random.randrange(6)][0],
    "a choice of rows": lambda x: x[list(random.choice(PAIRS))],
    "rows in another order": lambda x: (random.sample(PAIRS, 3), x[random.choices(PAIRS, k=2)[1][0]]),
    "an unbound method": numbers(lambda: random.Random.random(OWN) + random.Random.uniform(OTHER, 0, 1)),
}


@pytest.mark.parametrize("name", ONE_GRAPH)
def test_a_number_is_an_input_that_no_guard_looks_at(name):
    observed = agrees(ONE_GRAPH[name])
    assert_captured(observed)
    assert len(observed.units) == 1 and not observed.recompiles


def shuffled(x):
    order = [1.0, 2.0, 3.0]
    random.shuffle(order)
    return x * order[0] - order[1], order


def seeded(x):
    random.seed(4)
    return x * random.random()


def order_of_a_seed(x):
    order = [x, x + 1, x * 2]
    random.Random(0).shuffle(order)
    return order[0] - order[1] / order[2]


def set_back(x):
    state = random.getstate()
    first = random.random()
    random.setstate(state)
    return x * first - random.random()


def under_a_gradient_hook(x):
    state, y = random.getstate(), x.clone().requires_grad_()
    drawn = random.random()
    z = y * drawn
    z.register_hook(lambda gradient: gradient * 3)
    random.setstate(state)
    return torch.autograd.grad(z.sum(), y)[0]


def set_to_another(x):
    OWN.setstate(STATE)
    OTHER.setstate(OWN.getstate())
    return x * OWN.random() + OTHER.gauss()


def states_kept(x):
    KEPT["before"] = OWN.getstate()
    drawn = OWN.random()
    KEPT["after"], KEPT["drawn"] = OWN.getstate(), drawn
    return x * drawn, OTHER.getstate()


def made_and_kept(x):
    made = random.Random(5)
    first = made.random()
    KEPT["state"] = made.getstate()
    return x * first, made.random(), made.uniform(1, 2)


def part_of(x):
    start = random.randint(0, x.shape[0] - 2)
    return x[start : start + 2]


def a_size(x):
    return torch.ones(random.randint(2, 9)) + x.sum()


def a_permutation(x):
    order = list(range(3))
    random.shuffle(order)
    return x[order]


def refused(x):
    try:
        random.randint(5, 1)
    except ValueError:
        return x * random.random()


def seeded_by_chance(x):
    made = random.Random(random.randint(0, 100))
    random.seed(random.randrange(9))
    return x * made.random() + random.random(), made.getstate()


def handed_back(x):
    return x + 1, random.random(), [random.randint(0, 5)], {"a": random.choice((1, 2, 3, 4, 5, 6))}


@pytest.mark.parametrize(
    "program",
    [
        shuffled, seeded, order_of_a_seed, set_back, under_a_gradient_hook, set_to_another, states_kept, made_and_kept, part_of, a_size,
        a_permutation, refused, seeded_by_chance, handed_back,
    ],
)  # fmt: skip
def test_generators_are_left_as_eager_leaves_them(program):
    observed = agrees(program)
    assert_captured(observed)
    assert len(observed.units) <= 1 + bool(KEPT)  # which has other keys from then on


def test_a_generator_that_leaves_the_frame_goes_on_from_where_it_is():
    def made(x):
        generator = random.Random(5)
        return x * generator.random(), generator

    x = torch.ones(3)
    (expected, eager), (found, mine) = made(x), Observed(made, fullgraph=True)(x)
    assert_same(found, expected)
    assert type(mine) is random.Random and mine.getstate() == eager.getstate()


def branches(x):
    if random.random() < 0.5:
        return x + 1
    return x - random.random()


def waits(x):
    count = 0
    while random.random() > 0.5:
        count += 1
    return x + count


def functions(x):
    return random.choice([torch.sin, torch.cos, torch.exp])(x)


def beyond_a_table(x):
    try:
        return x * [1.0, 2.0, 3.0][random.randrange(5)]
    except IndexError as error:
        return str(error)


def reordered(x):
    functions = [torch.sin, torch.cos]
    random.shuffle(functions)
    return functions[0](functions[1](x))


@pytest.mark.parametrize("program", [branches, functions, beyond_a_table, reordered])
def test_a_branch_has_a_guard_and_a_guard_that_fails_draws_nothing(program):
    observed = agrees(program, calls=12)
    assert_captured(observed)
    assert 2 <= len(observed.units) <= 3


def test_a_loop_that_chance_ends():
    agrees(waits, calls=8)


def broken(x):
    y = x * random.random()
    turret.graph_break()
    return y * random.random() + OWN.random()


def breaks_in_a_call(x):
    def inner(y):
        z = y * random.uniform(0, 2)
        turret.graph_break()
        return z - random.random()

    return inner(x) + random.random()


def as_a_text(x):
    return x + 1, f"{random.random()}", str(random.randint(1, 9))


def chosen_among_many(x):
    chosen = random.choice([torch.sin, torch.cos, torch.exp, torch.tan, torch.abs, torch.neg])
    return chosen(x) + random.random()


def raises_late(x):
    y = x * random.random()
    if x.shape[0] == 3:
        raise ValueError("late")
    return y


def raises_in_the_graph(x):
    y = x * random.random()
    return y.reshape(2, 2) + random.random()


def raises_in_a_kernel(x):
    y = x * random.random()
    return y[torch.tensor([2]) + x[0].int()] + random.random()


@pytest.mark.parametrize(
    "program",
    [
        broken, breaks_in_a_call, as_a_text, chosen_among_many, raises_late, raises_in_the_graph, raises_in_a_kernel,
    ],
)  # fmt: skip
def test_breaks_and_exceptions_behind_a_draw_draw_nothing_twice(program):
    agrees(program, fullgraph=False, sizes=(3, 4))


def test_a_function_that_a_checkpoint_runs_again_draws_again():
    def program(x):
        x = x.clone().requires_grad_()
        y = checkpoint(lambda v: (v * random.random()).sin(), x, use_reentrant=False)
        y.sum().backward()
        return y.detach(), x.grad

    agrees(program, fullgraph=False)


def test_generators_that_are_one_at_another_call():
    def program(x, one, other):
        return x * one.random() + other.random()

    observed, x = Observed(program, fullgraph=True), torch.ones(3)
    for same in (False, True):
        mine, theirs = random.Random(1), random.Random(1)
        expected = program(x, theirs, theirs if same else random.Random(2))
        assert_same(observed(x, mine, mine if same else random.Random(2)), expected)
        assert mine.getstate() == theirs.getstate()


def test_layers_that_are_alike_draw_one_by_one():
    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(3, 3)

        def forward(self, x):
            return self.linear(x) * random.random()

    torch.manual_seed(0)
    layers = torch.nn.Sequential(*[Layer() for _ in range(6)])
    agrees(lambda x: layers(x))


def test_a_replaced_function_is_called_in_place_of_it(monkeypatch):
    observed = agrees(branches, calls=4)
    monkeypatch.setattr(random, "random", lambda: 0.25)
    assert_same(observed(torch.ones(3)), torch.ones(3) + 1)
    monkeypatch.setattr(random.Random, "uniform", lambda self, a, b: 7.0)
    assert_same(Observed(lambda x: x * OWN.uniform(1, 2))(torch.ones(3)), torch.ones(3) * 7)


def _random_program(source):
    """A program of draws, arithmetic, branches and breaks."""
    lines = ["def program(x):", "    y, n = x * 1, 1.0"]
    for _ in range(source.randint(2, 7)):
        generator = source.choice(["random", "OWN", "OTHER"])
        lines.append(
            "    "
            + source.choice(
                [
                    "n = n + {g}.random()",
                    "n = {g}.uniform(n, 3.0)",
                    "n = n * {g}.randint(1, 4)",
                    "y = y + {g}.choice([1.0, 2.0, 3.0])",
                    "y = y * {g}.gauss(0.0, 1.0)",
                    "y = y + n if {g}.random() < 0.7 else y - 1",
                    "s = {g}.getstate(); n = n + {g}.random(); {g}.setstate(s)",
                    "KEPT['n'] = {g}.random()",
                    "{g}.seed(5)",
                    "y = y + sum({g}.sample(range(9), 2))",
                    "l = [1.0, 2.0, 3.0]; {g}.shuffle(l); y = y + l[1]",
                    "turret.graph_break()",
                ]
            ).format(g=generator)
        )
    lines.append("    return y * n, n")
    scope = {"random": random, "OWN": OWN, "OTHER": OTHER, "KEPT": KEPT, "torch": torch, "turret": turret}
    exec("\n".join(lines), scope)
    return scope["program"]


@pytest.mark.parametrize("seed", range(40))
def test_any_row_of_draws_is_eagers(seed):
    agrees(_random_program(random.Random(seed)), calls=4, fullgraph=False, sizes=(3, 4))


def test_draws_go_through_the_whole_compiler():
    compiled = turret.compile(handed_back, fullgraph=True)
    for mine, theirs in zip(follow(compiled, 3), follow(handed_back, 3), strict=True):
        assert_same(mine, theirs)


LEGACY, OF_NUMPY = numpy.random.RandomState(4), numpy.random.default_rng(3)


def mixed(x):
    weight = numpy.random.beta(0.5, 0.5)
    return weight * x + (1 - weight) * x.flip(0), weight


def arrays(x):
    noise = numpy.random.rand(3)
    noise[0] = 0.5
    order = numpy.random.permutation(3)
    return x[torch.from_numpy(order)] + torch.from_numpy(noise), noise, numpy.random.uniform(0, 1, (2, 2)).mean()


def numbers_of_numpy(x):
    return x * np_rand() + numpy.random.randint(1, 7) - numpy.random.uniform(1, high=2) + numpy.random.normal()


def generators_of_numpy(x):
    return x * LEGACY.rand() + OF_NUMPY.random() + torch.from_numpy(OF_NUMPY.normal(size=(3,))), LEGACY.randn()


def branches_on_numpy(x):
    return x * numpy.random.rand() if numpy.random.rand() < 0.5 else x - LEGACY.randint(0, 5)


def breaks_beside_numpy(x):
    y = x * numpy.random.rand()
    turret.graph_break()
    return y + numpy.random.uniform(0, 1, 3).sum()


np_rand = numpy.random.rand


@pytest.mark.parametrize(
    "program",
    [mixed, arrays, numbers_of_numpy, generators_of_numpy, branches_on_numpy, breaks_beside_numpy],
)
def test_numpys_generators_draw_as_eager_has_them_draw(program):
    observed, seen = Observed(program, fullgraph=program is not breaks_beside_numpy), []
    for call in (program, observed):
        numpy.random.seed(7)
        LEGACY.seed(4)
        OF_NUMPY.bit_generator.state = numpy.random.default_rng(3).bit_generator.state
        results = [call(torch.arange(3.0) + n) for n in range(6)]
        states = [str(s.get_state()) for s in (numpy.random, LEGACY)]
        seen.append((results, states, str(OF_NUMPY.bit_generator.state)))
    assert_same(*seen[::-1])
    assert_captured(observed)
    assert len(observed.recompiles) <= 1 or observed.breaks  # numbers of an array are looked at until they change


def two_of_one_seed(x, seed):
    random.seed(seed)
    first, other = random.random(), random.Random(seed)
    return x * first, other.randint(0, 5), other.random(), random.gauss(0, 1)


def set_twice(x, seed):
    random.seed(seed)
    state = random.getstate()
    first = random.random()
    random.setstate(state)
    return x * first, random.randint(0, 9), random.random()


@pytest.mark.parametrize("program", [two_of_one_seed, set_twice])
def test_rows_of_draws_from_one_seed_that_changes_are_rows_of_their_own(program):
    observed = Observed(program)
    for seed in (3, 4, 5, 6):
        assert_same(observed(torch.ones(1), seed), program(torch.ones(1), seed))
    assert len(observed.graphs) == 2

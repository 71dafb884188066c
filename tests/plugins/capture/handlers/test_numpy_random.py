"""Random numbers of numpy's: drawn anew at each call from the program's generators, in number and order as eager."""

import numpy
import pytest
import torch

import turret
from tests.plugins.capture.capture_lab import Observed, assert_captured, assert_same
from turret.errors import CaptureError

LEGACY, MODERN = numpy.random.RandomState(4), numpy.random.default_rng(3)
STATE = numpy.random.RandomState(9).get_state()
ROWS = [(0, 1), (0, 2), (1, 2), (2, 0), (2, 1), (1, 0)]
NUMBERS = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]


def begin():
    numpy.random.seed(7)
    LEGACY.seed(4)
    MODERN.bit_generator.state = numpy.random.default_rng(3).bit_generator.state


def states():
    return [str(numpy.random.get_state()), str(LEGACY.get_state()), str(MODERN.bit_generator.state)]


def kinds(value):
    """Types and dtypes, of what a result holds, too."""
    if isinstance(value, (list, tuple)):
        return [type(value), *map(kinds, value)]
    return type(value), getattr(value, "dtype", None)


def agrees(program, calls=6):
    observed, seen = Observed(program, fullgraph=True), []
    for call in (program, observed):
        begin()
        results = []
        for number in range(calls):
            results.append((call(torch.arange(3.0) + number), states()))
        seen.append(results)
    assert_same(*seen[::-1])
    assert kinds(seen[1]) == kinds(seen[0])
    assert_captured(observed)
    return observed


def rows_by_chance(x):
    total = x.sum()
    for place in numpy.random.choice(len(ROWS), 3, replace=False):
        total = total + x[ROWS[place],].sum() * NUMBERS[place]
    return total


def entries_by_chance(x):
    parts = [x + 1, x * 2, x - 3]
    return x[numpy.random.choice([0, 1, 2])], x[: numpy.random.choice([1, 2, 3])], parts[numpy.random.randint(1)]


def scalars(x):
    chosen = numpy.random.choice(NUMBERS)
    return x * chosen, chosen * x.long(), x.long() * chosen, x.sum() * chosen, x.half() + chosen, chosen


def chosen_arrays(x):
    return numpy.random.choice(NUMBERS, (2, 3)), numpy.random.choice([1, 2]), x.int() * numpy.random.choice([1, 2])


def sorted_places(x):
    places = numpy.random.choice(len(x), 2, replace=False)
    places.sort()
    return x[places], places


def parts_of_a_permutation(x):
    order = numpy.random.permutation(3)
    first, rest = order[:2], order[2:]
    return x[first], x[rest], x[int(rest[0])], x * sum(order.tolist())


def populations(x):
    some = x[numpy.random.choice(range(3), 2)], x[numpy.random.choice(numpy.arange(3), 2, p=[0.5, 0.25, 0.25])]
    return *some, x * numpy.random.sample() + numpy.random.ranf()


def seeded(x):
    numpy.random.seed(4)
    return x * numpy.random.rand() + torch.from_numpy(numpy.random.randn(3)), numpy.random.choice(5), (
        numpy.random.choice([0.5, 1.5]), numpy.random.permutation(4)
    )  # fmt: skip


def set_back(x):
    before = numpy.random.get_state()
    first = numpy.random.rand()
    numpy.random.set_state(before)
    return x * first - numpy.random.rand(), numpy.random.randn(2)


def seeded_for_a_while(x):
    before = numpy.random.get_state()
    numpy.random.seed(1)
    drawn = numpy.random.rand(3)
    numpy.random.set_state(before)
    return x * torch.from_numpy(drawn), numpy.random.randn()


def set_from_outside(x):
    numpy.random.set_state(STATE)
    return x * numpy.random.rand()


def shuffled(x):
    numbers, objects, known, computed = [1.0, 2.0, 3.0], [x, x + 1, x + 2], numpy.arange(5.0), x.numpy().copy()
    numpy.random.shuffle(numbers)
    numpy.random.shuffle(known)
    numpy.random.shuffle(computed)
    numpy.random.RandomState(1).shuffle(objects)
    return numbers, objects, known, computed, x * known[2]


def made(x):
    modern, legacy = numpy.random.default_rng(5), numpy.random.RandomState(3)
    return x * modern.random() + legacy.rand(), modern.integers(5), legacy.choice(7, 3), modern.permuted([1, 2, 3])


def generators(x):
    y = x * MODERN.choice(NUMBERS) + LEGACY.choice(4) + torch.from_numpy(MODERN.dirichlet([1.0, 2.0, 3.0]))
    return (
        y,
        MODERN.standard_t(3),
        LEGACY.vonmises(0, 1),
        MODERN.permutation([3, 4, 5]),
        LEGACY.multinomial(5, [0.2, 0.8]),
    )


def refused_by_numpy(x):
    told = []
    for choose in (lambda: numpy.random.choice([]), lambda: numpy.random.choice(3, 5, replace=False)):
        try:
            choose()
        except ValueError as error:
            told.append(str(error))
    return x + numpy.random.rand(), told


@pytest.mark.parametrize(
    "program",
    [
        rows_by_chance, entries_by_chance, scalars, chosen_arrays, sorted_places, parts_of_a_permutation, populations,
        seeded, set_back, seeded_for_a_while, set_from_outside, shuffled, made, generators, refused_by_numpy,
    ],
)  # fmt: skip
def test_one_graph_serves_all_draws(program):
    observed = agrees(program)
    assert len(observed.units) == 1 and not observed.recompiles


def of_texts(x):
    kind = numpy.random.choice(["add", "mul"])
    return x + 1 if kind == "add" else x * 2, kind


def of_bools(x):
    kept = numpy.random.choice([True, False], len(x), p=[0.3, 0.7])
    return x[torch.tensor(kept)].sum() if kept.sum() > 1 else x + kept.mean()


def of_one_bool(x):
    return x + 1 if numpy.random.choice([True, False]) else x * 2


def of_numbers(x):
    return x * 2 if numpy.random.choice([1, 2, 3]) == 2 else x - 1


def of_functions(x):
    functions = [torch.sin, torch.cos]
    for place in numpy.random.permutation(2):
        x = functions[place](x)
    return x


@pytest.mark.parametrize("program", [of_texts, of_bools, of_one_bool, of_numbers, of_functions])
def test_a_branch_of_the_program_has_a_guard_on_what_was_drawn(program):
    assert len(agrees(program, calls=10).units) == 2


def test_a_generator_that_is_made_and_kept_goes_on_as_eagers_does():
    def program(x):
        generator = numpy.random.default_rng(5)
        return generator, x * generator.random()

    found, expected = Observed(program, fullgraph=True)(torch.ones(3)), program(torch.ones(3))
    assert torch.equal(found[1], expected[1]) and found[0].random(4).tolist() == expected[0].random(4).tolist()


def warns(x):
    return x * float(numpy.random.multivariate_normal([0, 0], [[1, 2], [2, 1]])[0])


def of_the_system(x):
    numpy.random.seed()
    return x * numpy.random.rand()


@pytest.mark.parametrize("program", [warns, of_the_system])
def test_what_warns_or_is_seeded_by_the_system_is_left_to_python(program):
    with pytest.raises(CaptureError, match=r"which warns|seeded by the system"):
        turret.compile(program, fullgraph=True, backend="eager")(torch.ones(3))


def with_scalars_of_data(x):
    mean = x.numpy().astype("float64").mean()
    total = x.numpy().astype("int64").sum()
    return x.sum() * mean, x.long() * mean, mean * x, torch.add(x.long(), mean), (
        x.int() * total, x.sum().int() * total, total * x.int(), mean < x, x[total - total]
    )  # fmt: skip


def test_a_scalar_that_the_graph_computes_is_a_number_of_pythons_beside_tensors():
    observed = Observed(with_scalars_of_data, fullgraph=True)
    for number in range(3):
        found, expected = (call(torch.arange(3.0) + number) for call in (observed, with_scalars_of_data))
        assert_same(found, expected)
        assert kinds(found) == kinds(expected)

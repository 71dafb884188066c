"""Numbers that a dtype does not hold, and more that eager refuses though shape functions do not: refused here too."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import turret

X = torch.tensor([[1, 0], [3, 2]])
CALLS = {
    "masked_fill": lambda x, n: x.masked_fill(x > 0, n),
    "clamp": lambda x, n: x.clamp(max=n),
    "where": lambda x, n: torch.where(x > 0, x, n),
    "add": lambda x, n: x + n,
    "add with alpha": lambda x, n: torch.add(x, x, alpha=n),
    "addcmul": lambda x, n: torch.addcmul(x, x, x, value=n),
    "threshold": lambda x, n: F.threshold(x, n, 0),
    "hardtanh": lambda x, n: F.hardtanh(x, min(n, 0), max(n, 0)),
    "pad": lambda x, n: F.pad(x, (1, 1), value=n),
    "full": lambda x, n: torch.full((2, 3), n, dtype=x.dtype),
    "fill_": lambda x, n: x.clone().fill_(n),
    "scatter": lambda x, n: x.scatter(0, torch.zeros(1, 2, dtype=torch.int64), n),
    "power": lambda x, n: x**n,
    "mul_": lambda x, n: x.clone().mul_(n),
    "clamp_": lambda x, n: x.clone().clamp_(min=n),
    "item": lambda x, n: torch.scalar_tensor(n, dtype=x.dtype),
    "xlogy": lambda x, n: torch.xlogy(x, n),
    "xlogy of a number": lambda x, n: torch.xlogy(n, x),
    "logit": lambda x, n: torch.logit(x, n),
    "hardshrink": lambda x, n: F.hardshrink(x, n),
    "leaky_relu": lambda x, n: F.leaky_relu(x, n),
    "lists with alpha": lambda x, n: torch._foreach_add([x], [x], alpha=n)[0],
    "lists with numbers": lambda x, n: torch._foreach_clamp_max([x], [n])[0],
    "full of the default dtype": lambda x, n: torch.full((2,), n) + x,
}
DTYPES = (torch.int8, torch.uint8, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.bool)
NUMBERS = (2, -1, 1.5, 200, 300, -300, 70000, -1e9, 2**40, 1e20, 1e39, float("inf"))


def outcome(function, *args):
    """What a call gives, with its numbers as texts, or the exception and its message."""
    try:
        found = function(*args)
    except Exception as error:
        return type(error), str(error)
    exact = found.dtype not in (torch.float16, torch.bfloat16)
    return found.dtype, [format(n, ".4g") for n in found.flatten().tolist()] if exact else found.isfinite().tolist()


@pytest.mark.filterwarnings("ignore:Turret runs a graph eagerly")
@given(st.sampled_from(sorted(CALLS)), st.sampled_from(DTYPES), st.sampled_from(NUMBERS))
@settings(max_examples=40, deadline=None)
def test_a_number_is_refused_where_eager_refuses_it(name, dtype, number) -> None:
    def program(x):
        return CALLS[name](x, number)

    x = X.to(dtype)
    compiled = turret.compile(program, options={"cache": False, "cpp_flags": "-O0"})
    assert outcome(compiled, x) == outcome(program, x)


_FLOATS = (
    1e308,
    -1e308,
    131008.0,
    3.5e38,
    3.4e38,
    300.7,
    -300.2,
    -0.0,
    1e19,
    float("inf"),
    -float("inf"),
    float("nan"),
)
_INTS = (0, 1, -1, 127, -129, 255, 300, 2**31, 2**63 - 1, 2**63, -(2**63), 65520)


@pytest.mark.thorough(1)
@pytest.mark.filterwarnings("ignore:Turret runs a graph eagerly")
@pytest.mark.parametrize("kind", ["float", "int", "data"])
@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_a_number_that_changes_is_refused_where_eager_refuses_it(kind, data) -> None:
    call = CALLS[data.draw(st.sampled_from(sorted(CALLS)))]
    x = X.to(data.draw(st.sampled_from(DTYPES)))
    numbers = data.draw(st.lists(st.sampled_from(_INTS if kind == "int" else _FLOATS), min_size=2, max_size=4))

    def program(x, n):
        return call(x, n.item() if kind == "data" else n)

    compiled = turret.compile(program, options={"cache": False, "cpp_flags": "-O0"})
    for number in ([3, 5] if kind == "int" else [1.5, 2.5]) + numbers:
        given_number = torch.tensor(number, dtype=torch.float64) if kind == "data" else number
        assert outcome(compiled, x, given_number) == outcome(program, x, given_number), (number, x.dtype)


@pytest.mark.filterwarnings("ignore:Turret runs a graph eagerly")
def test_a_number_of_data_that_a_dtype_does_not_hold_raises_when_the_graph_runs() -> None:
    def program(x, n):
        return x.masked_fill(x > 0, n.item()) + 1

    options = {"cache": False, "capture_scalar_outputs": True, "on_error": "raise"}
    compiled = turret.compile(program, options=options, fullgraph=True)
    x = X.to(torch.int8)
    for number in (3, -128, 128, 127, -129):
        assert outcome(compiled, x, torch.tensor(number)) == outcome(program, x, torch.tensor(number))


def test_torchs_own_code_meets_no_infinity_as_a_symbol() -> None:
    def program(x, n):
        return F.lp_pool1d(x, n, 2)

    compiled = turret.compile(program, options={"cache": False})
    x = torch.tensor([[1.0, 2.0, 4.0, 3.0]])
    for number in (1.5, 2.5, float("inf"), 3.5):
        torch.testing.assert_close(compiled(x, number), program(x, number))


@pytest.mark.filterwarnings("ignore:Turret runs a graph eagerly")
def test_a_symbolic_number_is_guarded_where_a_dtype_may_not_hold_it() -> None:
    def program(x, n):
        return x.clamp(max=n) + 1

    compiled = turret.compile(program, dynamic=True, options={"cache": False})
    x = X.to(torch.int8)
    for number in (3, 5, 127, 300, 4, -500):
        assert outcome(compiled, x, number) == outcome(program, x, number)


REFUSED = {
    "mul_ of integers by a float": lambda x, y: x.mul_(y),
    "logit_ of integers": lambda x, y: x.logit_(),
    "add_ of integers to bools": lambda x, y: (x > 0).add_(1),
    "fmod_ by more": lambda x, y: y[0].fmod_(y),
    "atan2_ by more": lambda x, y: y[0].atan2_(y),
    "clamp_ by more": lambda x, y: y[0].clamp_(y),
    "lerp_ of integers": lambda x, y: x.lerp_(x, 0.5),
    "a range that ends before it begins": lambda x, y: y.uniform_(2.0, 1.0),
    "a range that is not of the dtype": lambda x, y: y.uniform_(-3e38, 3e38),
    "a loss with a negative beta": lambda x, y: F.smooth_l1_loss(y, y + 1, beta=-1.0),
    "a negative power of integers": lambda x, y: x**-1,
}


@pytest.mark.filterwarnings("ignore:Turret runs a graph eagerly", "ignore:An output with one or more elements")
@pytest.mark.parametrize("name", REFUSED)
def test_what_eager_refuses_raises_what_eager_raises(name) -> None:
    def program(x, y):
        return REFUSED[name](x + 0, y + 0)

    args = X, torch.rand(2, 2)
    with pytest.raises((RuntimeError, NotImplementedError)) as expected:
        program(*args)
    with pytest.raises(type(expected.value)) as found:
        turret.compile(program, options={"cache": False})(*args)
    assert str(found.value) == str(expected.value)

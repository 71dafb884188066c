"""An operation that eager refuses raises eager's own error in captured code, where the program may catch it."""

from __future__ import annotations

import operator

import pytest
import torch
from torch import Tensor

import turret
from turret.plugins.capture.facts.refusals import eager_error

WRONG = {
    "shapes": lambda x: x + torch.ones(3, 7),
    "product": lambda x: x @ torch.ones(3, 7),
    "index": lambda x: x[9],
    "dtype": lambda x: x.to(torch.int64).mean(),
    "mask": lambda x: x[torch.ones(3, dtype=torch.bool)],
    "view": lambda x: x.view(3, 3),
    "dimension": lambda x: x.sum(5),
    "bias of a vector's product": lambda x: torch.nn.functional.linear(x[0], x, x[:2]),
    "bias of more dimensions": lambda x: torch.nn.functional.linear(x.view(1, 4, 4), x, x.expand(3, 4, 4) * 1),
    "parts": lambda x: torch.cat([x, torch.ones(4, 3, 2)]),
    "text added": lambda x: x + "a",
    "added to a text": lambda x: "a" + x,
    "added to a list": lambda x: [1] + x,
    "a dict taken away": lambda x: x - {},
    "product with a text": lambda x: x @ "a",
    "shifted by a class": lambda x: x << int,
    "compared with a text": lambda x: x < "a",
    "text written": lambda x: operator.iadd(x * 2, "a"),
    "a parameter": lambda x: torch.nn.Parameter(x) ** "a",
}


@pytest.mark.parametrize("fullgraph", [False, True])
@pytest.mark.parametrize("case", WRONG)
def test_the_program_catches_what_eager_raises_and_reads_its_words(case: str, fullgraph: bool) -> None:
    wrong = WRONG[case]

    def function(x: Tensor) -> tuple[Tensor, str, str]:
        try:
            return wrong(x), "", ""
        except Exception as error:
            return x * 2, type(error).__name__, str(error)

    x = torch.randn(4, 4)
    got, *words = turret.compile(function, fullgraph=fullgraph, options={"cache": False})(x)
    expected, *said = function(x)
    assert torch.equal(got, expected) and words == said


@pytest.mark.parametrize("case", WRONG)
def test_an_error_that_nobody_catches_is_the_users_own_in_a_full_graph_too(case: str) -> None:
    wrong = WRONG[case]
    with pytest.raises(Exception) as expected:
        wrong(torch.ones(4, 4))
    with pytest.raises(type(expected.value)) as found:
        turret.compile(wrong, fullgraph=True)(torch.ones(4, 4))
    assert str(found.value) == str(expected.value)


def test_another_shape_is_captured_again_after_one_that_was_refused() -> None:
    def function(x: Tensor, bias: Tensor) -> Tensor:
        try:
            return x + bias
        except RuntimeError:
            return x - bias.sum()

    compiled = turret.compile(function, fullgraph=True, options={"cache": False})
    x = torch.randn(4, 4)
    for bias in (torch.ones(3), torch.ones(4), torch.ones(5), torch.ones(1)):
        assert torch.equal(compiled(x, bias), function(x, bias))


def test_a_trial_draws_nothing_from_the_default_generator() -> None:
    state = torch.random.get_rng_state()
    means, deviations = torch.zeros(4), torch.ones(3)
    assert eager_error("call_function", torch.normal, [means, deviations], {}, RuntimeError("in a fake's words"))
    assert not eager_error("call_function", torch.normal, [means, torch.ones(4)], {}, RuntimeError("of fakes alone"))
    assert torch.equal(torch.random.get_rng_state(), state)


def test_what_depends_on_elements_is_not_taken_for_an_error_of_the_program() -> None:
    def function(x: Tensor) -> Tensor:
        try:
            return torch.linalg.cholesky(x)
        except RuntimeError:
            return x * 2

    x = torch.eye(3) * 4
    assert torch.equal(turret.compile(function, options={"cache": False})(x), torch.eye(3) * 2)


OTHER_DTYPES = {
    "elementwise": lambda x, out: torch.neg(x, out=out),
    "reduction": lambda x, out: torch.sum(x, 0, out=out),
    "extreme": lambda x, out: torch.amax(x, 0, out=out),
    "values and indices": lambda x, out: torch.sort(x, out=(out, torch.empty(0, dtype=torch.int64))),
    "scan": lambda x, out: torch.cumsum(x, 1, out=out),
    "of a library": lambda x, out: torch.linalg.solve(x + torch.eye(4) * 9, x, out=out),
    "indices": lambda x, out: torch.take(x, torch.tensor([0, 3]), out=out),
    "triangle": lambda x, out: torch.tril(x, out=out),
    "truth": lambda x, out: torch.isin(x, x[0], out=out),
    "softmax": lambda x, out: torch.softmax(x, 0, out=out),
    "an operator": lambda x, out: torch.ops.aten.aminmax.out(x, dim=0, min=out, max=torch.empty(0)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.int64, torch.complex64], ids=str)
@pytest.mark.parametrize("case", OTHER_DTYPES)
def test_results_of_another_dtype_are_written_or_refused_as_eager_does(case: str, dtype: torch.dtype) -> None:
    def function(x: Tensor) -> tuple[Tensor, str]:
        out = torch.zeros(0, dtype=dtype)
        try:
            OTHER_DTYPES[case](x, out)
        except Exception as error:
            return out, f"{type(error).__name__}: {error}"
        return out, "written"

    x = torch.randn(4, 4)
    got, words = turret.compile(function, fullgraph=True, options={"cache": False})(x)
    expected, said = function(x)
    assert words == said
    if words == "written":
        torch.testing.assert_close(got, expected)


def test_a_number_that_changes_is_the_one_that_was_refused():
    def program(x: Tensor, number: int) -> Tensor:
        try:
            return x.sum(number) + x.narrow(0, 0, number)
        except (IndexError, RuntimeError) as error:
            return x + len(str(error))

    compiled = turret.compile(program, fullgraph=True, options={"cache": False})
    x = torch.randn(4, 4)
    for number in (1, 0, 2, 3, 9, 1):
        torch.testing.assert_close(compiled(x, number), program(x, number))


def test_a_write_to_a_leaf_raises_autograds_error_in_a_full_graph():
    def program(x: Tensor) -> Tensor:
        return x.add_(1)

    def of_a_view(x: Tensor) -> Tensor:
        x[1:].mul_(2)
        return x

    for wrong in (program, of_a_view):
        x = torch.ones(4, requires_grad=True)
        with pytest.raises(RuntimeError) as expected:
            wrong(x)
        with pytest.raises(type(expected.value)) as found:
            turret.compile(wrong, fullgraph=True)(x)
        assert str(found.value) == str(expected.value)

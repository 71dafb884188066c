"""An op whose fake implementation is wrong costs speed, never results; and nothing happens twice."""

from __future__ import annotations

import warnings

import pytest
import torch

import turret
from turret.errors import FakeImplementationError

pytestmark = pytest.mark.usefixtures("fresh")


@torch.library.custom_op("turret_test_recourse::wrong_shape", mutates_args=())
def wrong_shape(x: torch.Tensor) -> torch.Tensor:
    return torch.cat([x, x]) if x.shape[0] == 3 else x.clone()


@wrong_shape.register_fake
def _(x):
    return torch.empty_like(x)


wrong_shape.register_autograd(lambda ctx, grad: grad.reshape(-1, 3, 4).sum(0))


@torch.library.custom_op("turret_test_recourse::wrong_dtype", mutates_args=())
def wrong_dtype(x: torch.Tensor) -> torch.Tensor:
    return x.double()


@wrong_dtype.register_fake
def _(x):
    return torch.empty_like(x)


@torch.library.custom_op("turret_test_recourse::honest", mutates_args=())
def honest(x: torch.Tensor) -> torch.Tensor:
    return x.transpose(0, 1).contiguous().transpose(0, 1) * 2


@honest.register_fake
def _(x):
    return torch.empty_like(x)


FALLBACK, RAISE = {"on_error": "fallback"}, {"on_error": "raise"}


@pytest.mark.parametrize("op", [wrong_shape, wrong_dtype], ids=["shape", "dtype"])
def test_the_call_that_finds_out_and_those_after_it_are_eager_s(op):
    def program(x):
        return torch.sin(op(torch.cos(x))) + 1

    compiled, x = turret.compile(program, options=FALLBACK), torch.randn(3, 4)
    with pytest.warns(UserWarning, match=r"(?s)stage 'runtime' \(plugin the program's own op\).*fake implementation"):
        torch.testing.assert_close(compiled(x), program(x))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.testing.assert_close(compiled(x), program(x))


@pytest.mark.parametrize("options", [FALLBACK, RAISE], ids=["fallback", "raise"])
def test_inputs_are_mutated_once_or_not_at_all(options):
    def program(x, counter):
        counter.add_(1)
        x.mul_(2)
        return wrong_shape(x) + counter

    compiled = turret.compile(program, options=options)
    for _ in range(2):
        x, counter = torch.randn(3, 4), torch.zeros(())
        expected_x, expected_counter = x.clone(), counter.clone()
        if options is RAISE:
            with pytest.raises(FakeImplementationError, match="correct the fake implementation"):
                compiled(x, counter)
        else:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                result = compiled(x, counter)
            torch.testing.assert_close(result, program(expected_x, expected_counter))
        torch.testing.assert_close(x, expected_x)
        torch.testing.assert_close(counter, expected_counter)


def test_gradients_are_eager_s():
    def program(x):
        return torch.sin(wrong_shape(x * 2)).square().sum()

    x = torch.randn(3, 4, requires_grad=True)
    program(x).backward()
    expected, x.grad = x.grad, None
    with pytest.warns(UserWarning, match="fake implementation"):
        turret.compile(program, options=FALLBACK)(x).backward()
    torch.testing.assert_close(x.grad, expected)


def test_random_numbers_are_those_of_one_run():
    def program(x):
        noise = torch.ops.aten.normal_functional(x, 0.0, 1.0)
        return wrong_shape(x).sum(0) + noise

    options = {**FALLBACK, "fallback_random": True}
    x = torch.randn(3, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(7)
        results = [turret.compile(program, options=options)(x) for _ in range(2)]
    torch.manual_seed(7)
    for result in results:
        torch.testing.assert_close(result, program(x))


def test_only_strides_that_differ_are_no_error():
    x = torch.randn(3, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = turret.compile(lambda x: honest(x + 1) * 3, options=RAISE)(x)
    torch.testing.assert_close(result, (x + 1) * 6)


@pytest.mark.parametrize("training", [False, True])
def test_calls_of_a_plan_do_not_cast_under_the_caller_s_autocast(training):
    """A region without autocast inside one with it: its products stay in float32."""

    def program(x, w):
        with torch.autocast("cpu", enabled=False):
            return torch.mm(x, w), torch.mm(x, w) * 2, torch.bmm(x[None], w[None])

    x, w = torch.randn(16, 16), torch.randn(16, 16, requires_grad=training)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found, expected = turret.compile(program)(x, w), program(x, w)
        for a, b in zip(found, expected, strict=True):
            assert a.dtype == b.dtype == torch.float32
            torch.testing.assert_close(a, b)
        if training:
            sum(t.sum() for t in found).backward()
            gradient, w.grad = w.grad, None
            sum(t.sum() for t in expected).backward()
            torch.testing.assert_close(gradient, w.grad, rtol=0.02, atol=0.1)

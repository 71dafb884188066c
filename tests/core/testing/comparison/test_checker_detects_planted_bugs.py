"""The checker must see every kind of wrong compiler, and must not see one where only rounding differs."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from turret.testing import Features, Inputs, Mismatch, assert_same, conformance
from turret.testing.comparison.observe import observe
from turret.testing.corpus.cases import CASES, Case


def on_outputs(change: Callable[[Tensor], Any]) -> Callable[[Callable], Callable]:
    """A compiler that changes every tensor of the result."""
    return lambda function: lambda *args: pytree.tree_map_only(Tensor, change, function(*args))


def make_matrix(call: int = 0) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(call)
    return (torch.randn(4, 6, generator=generator).requires_grad_(),)


def make_buffer(call: int = 0) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(call)
    return (torch.randn(4, 6, generator=generator),)


def differs(function: Callable, compiled: Callable, make_inputs: Callable = make_matrix) -> set[str]:
    """The kinds of difference that the checker finds."""
    with pytest.raises(Mismatch) as caught:
        assert_same(function, compiled, make_inputs)
    return {difference.what for difference in caught.value.differences}


def transposed_sine(x: Tensor) -> Tensor:
    return torch.sin(x).t()


def test_wrong_dtype_is_a_mismatch():
    assert differs(transposed_sine, on_outputs(Tensor.double)(transposed_sine)) == {"dtype"}


def test_wrong_stride_is_a_mismatch():
    assert differs(transposed_sine, on_outputs(Tensor.contiguous)(transposed_sine)) == {"stride"}


def test_wrong_shape_is_a_mismatch():
    assert differs(transposed_sine, on_outputs(lambda t: t[None])(transposed_sine)) == {"shape"}


def test_lost_requires_grad_is_a_mismatch():
    assert "requires_grad" in differs(transposed_sine, on_outputs(Tensor.detach)(transposed_sine))


def test_lost_mutation_is_a_mismatch():
    def scale(x: Tensor) -> Tensor:
        x.mul_(2)
        return x + 1

    assert differs(scale, lambda x: scale(x.clone()), make_buffer) == {"values"}


def test_lost_metadata_mutation_is_a_mismatch():
    def turn(x: Tensor) -> Tensor:
        x.t_()
        return x + 1

    assert differs(turn, lambda x: turn(x.detach()), make_buffer) == {"shape"}


def test_lost_alias_of_an_input_is_a_mismatch():
    def first_row(x: Tensor) -> Tensor:
        return x[1]

    assert differs(first_row, on_outputs(Tensor.clone)(first_row), make_buffer) == {"aliasing"}


def test_alias_at_another_offset_is_a_mismatch():
    def ones(x: Tensor) -> Tensor:
        x.fill_(1)
        return x[1]

    def compiled(x: Tensor) -> Tensor:
        x.fill_(1)
        return x[2]

    assert differs(ones, compiled, make_buffer) == {"aliasing"}


def test_lost_alias_between_outputs_is_a_mismatch():
    def pair(x: Tensor) -> tuple[Tensor, Tensor]:
        y = torch.sin(x)
        return y, y.view(-1)

    assert differs(pair, lambda x: (torch.sin(x), torch.sin(x).view(-1))) == {"aliasing"}


def test_a_view_of_the_input_instead_of_a_copy_is_a_mismatch():
    assert differs(lambda x: x.clone(), lambda x: x.view(x.shape), make_buffer) == {"aliasing"}


class ScaledGradient(torch.autograd.Function):
    """Identity whose gradient is wrong by one in a thousand."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 1.001


def test_wrong_gradient_is_a_mismatch():
    assert differs(transposed_sine, on_outputs(ScaledGradient.apply)(transposed_sine)) == {"values"}


def test_gradient_missing_for_one_input_is_a_mismatch():
    def make() -> tuple[Tensor, Tensor]:
        return torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)

    assert differs(torch.mul, lambda x, y: x * y.detach(), make) == {"type"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_off_by_a_thousandth_is_a_mismatch(dtype: torch.dtype):
    def make() -> tuple[Tensor]:
        return (torch.linspace(0.1, 2, 50, dtype=dtype),)

    assert differs(torch.exp, on_outputs(lambda t: t * 1.001)(torch.exp), make) == {"values"}


def test_one_wrong_element_of_many_is_a_mismatch():
    def compiled(x: Tensor) -> Tensor:
        y = torch.tanh(x).clone()
        y.view(-1)[777] += 1e-4
        return y

    assert differs(torch.tanh, compiled, lambda: (torch.randn(64, 64),)) == {"values"}


def test_integer_off_by_one_is_a_mismatch():
    assert differs(torch.add, lambda x, y: x + y + (x == 3), lambda: (torch.arange(9), torch.arange(9))) == {"values"}


def test_nan_and_infinities_must_be_where_eager_has_them():
    def make() -> tuple[Tensor]:
        return (torch.tensor([1.0, torch.nan, torch.inf, -torch.inf]),)

    assert_same(torch.neg, lambda x: -1 * x, make)
    assert differs(torch.neg, lambda x: torch.nan_to_num(-x, posinf=torch.inf, neginf=-torch.inf), make) == {"values"}
    assert differs(torch.neg, lambda x: torch.where(x.isinf(), torch.inf, -x), make) == {"values"}


def test_what_gelu_makes_of_infinity_by_itself_is_no_mismatch_and_another_number_is():
    def single(x: Tensor) -> Tensor:
        return torch.nn.functional.gelu(x.double()).to(x.dtype)

    def make_infinity(call: int = 0) -> tuple[Tensor, ...]:
        return (torch.tensor([torch.inf] * 20),)

    assert_same(torch.nn.functional.gelu, single, make_infinity)
    assert differs(single, on_outputs(lambda y: y.clamp(max=2.0))(single), make_infinity) == {"values"}


def test_a_wrong_value_is_a_mismatch_whatever_random_numbers_were_drawn_before():
    for seed in range(3):
        torch.manual_seed(seed)
        assert differs(torch.sin, lambda x: 1.5 * torch.sin(x), lambda: (torch.randn(4, 6),)) == {"values"}


def test_values_kept_from_the_first_call_are_a_mismatch():
    kept: list[Tensor] = []

    def compiled(x: Tensor) -> Tensor:
        kept.append(torch.sin(x))
        return kept[0].clone()

    assert "values" in differs(torch.sin, compiled, make_buffer)


def test_an_output_buffer_reused_by_the_next_call_is_a_mismatch():
    buffer = torch.empty(4, 6)

    def compiled(x: Tensor) -> Tensor:
        return torch.sin(x, out=buffer).detach()

    assert differs(torch.sin, compiled, make_buffer) == {"values after a later call"}


def test_swapped_outputs_are_a_mismatch():
    assert differs(lambda x: (x.sin(), x.cos()), lambda x: (x.cos(), x.sin())) == {"values"}


def test_a_list_instead_of_a_tuple_is_a_mismatch():
    assert differs(lambda x: (x.sin(),), lambda x: [x.sin()]) == {"structure"}


def test_a_swallowed_error_and_another_type_of_error_are_mismatches():
    def fail(x: Tensor) -> Tensor:
        return x.view(5, 5)

    def fail_otherwise(x: Tensor) -> Tensor:
        raise KeyError("no such thing")

    assert differs(fail, torch.sin) == {"error"}
    assert differs(fail, fail_otherwise) == {"error"}
    assert differs(torch.sin, fail) == {"error"}
    assert_same(fail, fail, make_matrix)


def test_leaves_given_apart_from_the_arguments_are_differentiated():
    def make() -> Inputs:
        leaf = torch.ones(3, requires_grad=True)
        return Inputs((leaf.clone(),), (leaf,))

    def write(x: Tensor) -> None:
        x.mul_(3)

    def write_detached(x: Tensor) -> None:
        x.detach().mul_(3)

    assert_same(write, write, make)
    assert "values" in differs(write, write_detached, make)


# -- what must not count as a mismatch --------------------------------------------------------------------------


def large(dtype: torch.dtype = torch.float32) -> Callable[[int], tuple[Tensor]]:
    def make(call: int) -> tuple[Tensor]:
        generator = torch.Generator().manual_seed(call)
        return (torch.randn(50, 400, generator=generator).to(dtype).requires_grad_(),)

    return make


@pytest.mark.parametrize(
    ("function", "other"),
    [
        (lambda x: x.sum(), lambda x: x.flip(0).t().cumsum(1)[:, -1].sum()),
        (lambda x: x.var(1), lambda x: ((x * x).mean(1) - x.mean(1) ** 2) * (400 / 399)),
        (lambda x: x.softmax(1), lambda x: (x - x.logsumexp(1, keepdim=True)).exp()),
        (lambda x: torch.log1p(torch.exp(x)), lambda x: torch.nn.functional.softplus(x)),
        (lambda x: (x * 3 + x).sum(0), lambda x: (x.double() * 3 + x.double()).sum(0).float()),
        (lambda x: x @ x.t(), lambda x: sum(x[:, i : i + 50] @ x[:, i : i + 50].t() for i in range(0, 400, 50))),
        (lambda x: ((x + 1000) - 1000).mean(1), lambda x: (x + (1000 - 1000)).mean(1)),
    ],
    ids=["sum", "variance", "softmax", "softplus", "float64", "matmul", "cancellation"],
)
def test_rounding_differently_is_no_mismatch(function: Callable, other: Callable):
    assert_same(function, other, large())


def test_half_precision_intermediates_in_float32_are_no_mismatch():
    def chain(x: Tensor) -> Tensor:
        return torch.sin(x * 1.1 + 0.3) * x - x / 3

    assert_same(chain, lambda x: chain(x.float()).to(torch.bfloat16), large(torch.bfloat16))


def test_a_half_intermediate_that_overflows_in_eager_alone_is_no_mismatch_and_an_infinity_of_its_own_is():
    def kept(x):
        return (x.float().sinh() * 0.25).half()

    def make():
        return (torch.tensor([11.5, -11.5, 1.0]).half(),)

    assert_same(lambda x: x.sinh() * 0.25, kept, make)
    with pytest.raises(Mismatch):
        assert_same(lambda x: x * 0.25, lambda x: kept(x) * torch.inf, make)


def test_a_branch_that_rounding_decides_is_no_mismatch():
    def quantise(x: Tensor) -> Tensor:
        return torch.floor(x.sum(1) * 1e6)

    assert_same(quantise, lambda x: torch.floor(x.double().sum(1).float() * 1e6), large())


def test_zeros_where_eager_has_no_gradient_are_no_mismatch():
    def make() -> tuple[Tensor, Tensor]:
        return torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)

    assert_same(lambda x, y: x * 2, lambda x, y: x * 2 + y * 0, make)


# -- the same through drawn programs ----------------------------------------------------------------------------


def clone_inputs(function: Callable) -> Callable:
    return lambda *args: function(*(arg.clone() for arg in args))


@pytest.mark.parametrize(
    "compiler",
    [
        on_outputs(lambda t: t * 1.001 if t.dtype == torch.float32 else t),
        on_outputs(lambda t: t.to(torch.float32) if t.dtype == torch.bfloat16 else t),
        on_outputs(lambda t: t.contiguous()),
        on_outputs(lambda t: t.detach()),
        on_outputs(lambda t: ScaledGradient.apply(t) if t.requires_grad else t),
        clone_inputs,
    ],
    ids=["off", "dtype", "stride", "requires_grad", "gradient", "clones"],
)
def test_conformance_finds_a_wrong_compiler_in_few_programs(compiler: Callable):
    report = conformance(compiler, counts={"programs": 100}, max_failures=1)
    assert {failure.level for failure in report.failures} == {"cases", "programs"}
    assert all(failure.source.strip() in str(report) for failure in report.failures)


def test_conformance_passes_eager_itself():
    report = conformance(lambda function: function, counts={"programs": 60}, seed=1000)
    assert report.passed, str(report)
    assert report.counts()["programs"]["right"] == 60
    assert report.counts()["cases"]["right"] == len(CASES)


@pytest.mark.parametrize("case", CASES.values(), ids=lambda case: case.name)
def test_cases_written_by_hand_run_in_eager(case: Case):
    observation = observe(case.function, case.make_inputs(0))
    assert (observation.error is not None) == case.name.endswith("raises"), observation.error


def test_cases_that_need_what_a_compiler_lacks_are_left_out():
    report = conformance(clone_inputs, levels=["cases"], features=Features(mutation=False), max_failures=100)
    tried = {outcome.item for outcome in report.outcomes}
    assert tried == {case.name for case in CASES.values() if "mutation" not in case.needs}


def test_conformance_passes_a_compiler_that_only_rounds_differently():
    """Stochastic rounding of every operation is the freedom that the checker is to allow."""
    from turret.testing.comparison.stochastic import Perturbed

    numbers = iter(range(10**6, 10**7))

    def compiler(function: Callable) -> Callable:
        def perturbed(*args: Any) -> Any:
            with Perturbed(next(numbers)):
                return function(*args)

        return perturbed

    report = conformance(compiler, counts={"programs": 60}, seed=2000, features=Features(gradients=False))
    assert report.passed, str(report)


def test_the_mean_of_a_row_with_an_infinity_is_infinite_or_nan_by_the_order_of_the_row():
    def plain(x: Tensor) -> Tensor:
        return x.mean(0)

    def running(x: Tensor) -> Tensor:
        return torch.var_mean(x, 0)[1]

    def make_row(call: int = 0) -> tuple[Tensor, ...]:
        return (torch.tensor([1.0, torch.inf, 2.0]),)

    assert running(*make_row()).isnan() and plain(*make_row()).isinf()
    assert_same(running, plain, make_row)
    assert differs(plain, running, make_row) == {"values"}


def test_either_path_of_an_elementwise_kernel_will_do_and_a_number_of_neither_will_not():
    def gradient(x: Tensor) -> Tensor:
        return torch.ops.aten.hardtanh_backward.default(torch.ones_like(x), x, -1.0, 1.0)

    def elsewhere(x: Tensor) -> Tensor:
        return torch.where(x.isnan(), 1.0, gradient(x.contiguous()))

    def make_nan(call: int = 0) -> tuple[Tensor, ...]:
        return (torch.tensor([torch.nan, 0.5, 2.0] * 40),)

    assert_same(gradient, elsewhere, make_nan)
    assert differs(gradient, lambda x: torch.where(x.isnan(), torch.nan, gradient(x)), make_nan) == {"values"}
    assert differs(gradient, lambda x: gradient(x).where(x != 0.5, 0.0), make_nan) == {"values"}


def test_the_bits_of_a_nan_are_anybodys_and_those_of_a_number_are_not():
    def bits(x: Tensor) -> Tensor:
        return x.clone().view(torch.int32)

    def elsewhere(x: Tensor) -> Tensor:
        return torch.where(x.isnan(), -1, bits(x))

    assert_same(bits, elsewhere, lambda call=0: (torch.tensor([torch.nan, 0.5, 2.0]),))
    assert differs(bits, lambda x: bits(x).where(x != 0.5, -1), lambda call=0: (torch.tensor([0.5, 2.0]),)) == {
        "values"
    }


def test_whether_the_variance_of_equal_elements_is_exactly_zero_is_left_to_rounding():
    def spread(x: Tensor) -> Tensor:
        return torch.logical_and(x, torch.nn.functional.mish(x).var(correction=0))

    def none(x: Tensor) -> Tensor:
        return torch.zeros(9, dtype=torch.bool)

    def make(call: int) -> tuple[Tensor, ...]:
        return (torch.full((9,), -1.4258, dtype=torch.float64),)

    assert spread(*make(0)).all()
    assert_same(spread, none, make, calls=1)


def test_whether_the_running_mean_of_numbers_that_cancel_is_exactly_zero_is_left_to_rounding():
    def running(x: Tensor) -> Tensor:
        return torch.var_mean(x - 1, 1)[1].all()

    def plain(x: Tensor) -> Tensor:
        return (x - 1).mean(1).all()

    def inverted(x: Tensor) -> Tensor:
        return (x - 2).mean(1).all()

    x = torch.randint(-8, 9, (1, 31), generator=torch.Generator().manual_seed(3)).to(torch.float32)
    x = torch.cat((x, -x), 1) + 1
    assert bool(running(x)) is True and bool(plain(x)) is False
    assert_same(running, plain, lambda: x)
    with pytest.raises(Mismatch):
        assert_same(lambda x: torch.var_mean(x - 2, 1)[1].all(), lambda x: ~inverted(x), lambda: x)


def test_what_a_sum_of_too_large_numbers_comes_to_is_left_to_its_order():
    largest = torch.finfo(torch.float32).max
    x = torch.tensor([[largest, largest, -largest, -largest, 1.0], [1.0, 2.0, 3.0, 4.0, 5.0]])

    def forwards(x: Tensor) -> Tensor:
        return x.sum(1, dtype=torch.float32)

    def in_turn(x: Tensor) -> Tensor:
        return x[:, [0, 2, 1, 3, 4]].cumsum(1)[:, -1].contiguous()

    assert not torch.equal(forwards(x).nan_to_num(0.5), in_turn(x).nan_to_num(0.5))
    assert_same(forwards, in_turn, lambda: x, calls=1)
    with pytest.raises(Mismatch):
        assert_same(forwards, lambda x: in_turn(x) + torch.tensor([0.0, 1e-3]), lambda: x, calls=1)


def test_a_tangent_beside_a_pole_is_on_either_side_of_it():
    beside = torch.tensor([math.pi / 2, 1.0]).to(torch.bfloat16)

    def other_side(x: Tensor) -> Tensor:
        return (x.float() * (1 + 2**-10)).tan().to(x.dtype)

    assert beside.tan()[0] > 0 > other_side(beside)[0]
    assert_same(torch.tan, other_side, lambda: beside, calls=1)
    with pytest.raises(Mismatch):
        assert_same(torch.tan, lambda x: other_side(x) * torch.tensor([1.0, 1.2]), lambda: beside, calls=1)


def test_what_cancels_in_a_loss_of_a_half_type_may_be_kept_in_float32():
    logits = torch.tensor([-4.28125, 0.5]).to(torch.bfloat16)
    target = torch.tensor([0.0, 1.0]).to(torch.bfloat16)
    loss = functools.partial(torch.nn.functional.binary_cross_entropy_with_logits, reduction="none")

    def exact(x: Tensor, y: Tensor) -> Tensor:
        return loss(x.float(), y.float()).to(x.dtype)

    assert_same(loss, exact, lambda: (logits, target), calls=1)
    with pytest.raises(Mismatch):
        assert_same(loss, lambda x, y: exact(x, y) * 1.5, lambda: (logits, target), calls=1)


def test_a_logarithm_of_a_sigmoid_that_is_below_the_normal_numbers_may_be_zero():
    def flushed(x: Tensor) -> Tensor:
        value = torch.nn.functional.logsigmoid(x)
        return torch.where(value.abs() < torch.finfo(x.dtype).tiny, 0.0, value).bool()

    x = torch.tensor([90.0, 95.0, 1.0])
    assert_same(lambda x: torch.nn.functional.logsigmoid(x).bool(), flushed, lambda: x, calls=1)
    with pytest.raises(Mismatch):
        assert_same(lambda x: torch.nn.functional.logsigmoid(x).bool(), lambda x: x > 2, lambda: x, calls=1)


def test_a_variance_of_doubles_may_be_as_exact_as_its_two_passes_are():
    x = torch.randint(-8, 9, (1089,), generator=torch.Generator().manual_seed(0)).div(4).to(torch.float64)

    def exact(x: Tensor) -> Tensor:
        return (x - x.mean()).square().mean()

    assert abs(x.var(correction=0) / exact(x) - 1) > 40 * torch.finfo(x.dtype).eps
    assert_same(lambda x: x.var(correction=0), exact, lambda: x, calls=1)
    with pytest.raises(Mismatch):
        assert_same(lambda x: x.var(correction=0), lambda x: exact(x) * (1 + 1e-12), lambda: x, calls=1)


def test_a_product_of_a_half_type_below_its_numbers_may_be_zero_and_one_above_them_may_not():
    small = torch.full((100, 16), 0.75, dtype=torch.bfloat16)
    small[:12] = 2.0**-11

    def exact(x: Tensor) -> Tensor:
        return x.float().prod(0).to(x.dtype) != 0

    assert small.prod(0).all() and not exact(small).any()
    assert_same(lambda x: x.prod(0) != 0, exact, lambda: small, calls=1)
    with pytest.raises(Mismatch):
        assert_same(lambda x: x.prod(0) != 0, lambda x: ~exact(x), lambda: small + 0.5, calls=1)


def test_a_sum_in_a_dtype_that_is_asked_for_may_be_as_exact_as_one_in_a_wider_dtype():
    x = torch.randn(992, generator=torch.Generator().manual_seed(0)).to(torch.float64).view(31, 32, 1)

    def eager(x: Tensor) -> Tensor:
        return x.sum(0, dtype=torch.float32) / (x * x + 1)

    def exact(x: Tensor) -> Tensor:
        return x.float().double().sum(0).float() / (x * x + 1)

    assert_same(eager, exact, lambda: x, calls=1)
    with pytest.raises(Mismatch):
        assert_same(eager, lambda x: exact(x) * (1 + 1e-4), lambda: x, calls=1)


_ROUNDED_INSIDE: dict[str, Callable[[Tensor], Tensor]] = {
    "cumsum": lambda x: x.cumsum(0),
    "cumprod": lambda x: x.cumprod(0),
    "logcumsumexp": lambda x: x.logcumsumexp(0),
    "logsumexp": lambda x: x.logsumexp(0),
    "index_add": lambda x: x[:4].index_add(0, torch.arange(len(x)) % 4, x),
    "norm": lambda x: torch.linalg.vector_norm(x, 3, 0),
    "prod": lambda x: x.prod(0),
    "matmul": lambda x: x.mT @ x,
    "lerp": lambda x: torch.lerp(x, x.flip(0), 0.1),
    "huber": lambda x: torch.nn.functional.huber_loss(x, x.flip(0), reduction="none"),
    "var": lambda x: x.var(0),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("name", _ROUNDED_INSIDE)
def test_a_result_may_be_as_exact_as_float64_makes_it_where_eager_rounds_each_step(name: str, dtype: torch.dtype):
    operation = _ROUNDED_INSIDE[name]

    def make(seed: int) -> Tensor:
        rows = 4 + 40 * seed
        if seed % 2:
            return torch.full((rows, 3), 0.1 + seed / 7, dtype=dtype)
        return torch.randn(rows, 3, generator=torch.Generator().manual_seed(seed)).to(dtype)

    assert torch.isfinite(operation(make(1))).all()
    assert_same(operation, lambda x: operation(x.double()).to(x.dtype), make, calls=10)

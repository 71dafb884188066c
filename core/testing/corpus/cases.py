"""Programs written by hand, one for each meaning that compilers get wrong most: the first part of a conformance run.

Each case is an ordinary function with the inputs of one call; what it must do is what it does in eager.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import torch
from torch import Tensor
from torch.nn import functional as F

from turret.hooks.devices import HOST
from turret.testing.corpus.inputs import inputs_on
from turret.testing.corpus.program import Inputs


@attrs.frozen(eq=False)
class Case:
    """``function`` on ``make_inputs(call, device)``; ``needs`` is what a compiler must support: gradients, mutation."""

    name: str
    function: Callable[..., Any]
    build: Callable[[int], Inputs]
    needs: frozenset[str]

    def make_inputs(self, call: int, device: str = HOST.type) -> Inputs:
        """The arguments of one call, on a device."""
        return inputs_on(device, self.build(call))


CASES: dict[str, Case] = {}


def _numbers(shape: tuple[int, ...], seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def _plain(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Callable[[int], Inputs]:
    return lambda call: Inputs(tuple(_numbers(s, 10 * call + i, dtype) for i, s in enumerate(shapes)), ())


def _leaves(*shapes: tuple[int, ...]) -> Callable[[int], Inputs]:
    def make(call: int) -> Inputs:
        leaves = tuple(_numbers(s, 10 * call + i).requires_grad_() for i, s in enumerate(shapes))
        return Inputs(leaves, leaves)

    return make


def _computed(*shapes: tuple[int, ...]) -> Callable[[int], Inputs]:
    """Inputs that require gradients and may be written to: clones of leaves."""

    def make(call: int) -> Inputs:
        leaves = tuple(_numbers(s, 10 * call + i).requires_grad_() for i, s in enumerate(shapes))
        return Inputs(tuple(leaf.clone() for leaf in leaves), leaves)

    return make


def _views_of_one(*views: Callable[[Tensor], Tensor]) -> Callable[[int], Inputs]:
    def make(call: int) -> Inputs:
        base = _numbers((4, 4), call)
        return Inputs(tuple(view(base) for view in views), ())

    return make


def _case(make_inputs: Callable[[int], Inputs], *needs: str) -> Callable[[Callable], Callable]:
    def register(function: Callable) -> Callable:
        name = function.__name__
        CASES[name] = Case(name, function, make_inputs, frozenset(needs))
        return function

    return register


# -- outputs that are, or alias, inputs and each other ------------------------------------------------------------


@_case(_plain((3, 4)))
def input_returned_as_it_is(x: Tensor) -> tuple[Tensor, Tensor]:
    return x, x + 1


@_case(_plain((3, 4)))
def view_of_an_input_returned(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.t(), x[1:, ::2]


@_case(_leaves((3, 4)), "gradients")
def view_of_a_differentiable_input_returned(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.view(-1)[2:], x.sum(0)


@_case(_leaves((3, 4)), "gradients")
def two_views_of_one_intermediate_returned(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    y = torch.sin(x)
    return y.view(-1), y.t(), y


@_case(_leaves((1, 17, 17)), "gradients")
def overlapping_windows_of_an_intermediate_returned(x: Tensor) -> Tensor:
    return F.pad(x, (1, 1), mode="circular").unfold(-1, 4, 3)


@_case(_plain((3, 4)))
def the_same_tensor_returned_twice(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    return y, y


@_case(_plain((3, 4)))
def two_equal_views_are_two_objects(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.t(), x.t()


@_case(_plain((3, 4)))
def conversion_to_its_own_dtype_returns_the_input(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.to(torch.float32), x.contiguous()


@_case(_leaves((3, 4)), "gradients")
def detached_view_returned(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.detach(), x.detach()[0] * 2


@_case(_leaves((3, 4)), "gradients")
def expanded_output(x: Tensor) -> Tensor:
    return (x.sum(0, keepdim=True) * 2).expand(5, 4)


@_case(_plain((2, 3), (0, 4), (), (1, 1)))
def empty_and_scalar_tensors(x: Tensor, empty: Tensor, scalar: Tensor, one: Tensor) -> tuple[Tensor, ...]:
    return empty.sum(0), empty * 2, scalar * x, one + x, empty.t(), torch.cat((empty, x.new_zeros(1, 4)))


@_case(_plain((3, 4)))
def nested_results_and_numbers(x: Tensor) -> dict[str, Any]:
    return {"a": [x + 1, (x.shape[0], None)], "b": {"c": x.sum()}, "n": 3, "s": "text"}


# -- writes to inputs ------------------------------------------------------------------------------------------------


@_case(_plain((3, 4), (4,)), "mutation")
def input_written(x: Tensor, y: Tensor) -> Tensor:
    before = x * 2
    x.add_(y)
    return before + x


@_case(_plain((3, 4)), "mutation")
def input_written_and_returned(x: Tensor) -> Tensor:
    return x.mul_(2)


@_case(_plain((4, 4)), "mutation")
def input_written_through_views(x: Tensor) -> Tensor:
    x[0].fill_(1)
    x.t()[1].add_(2)
    x.view(-1)[::5].zero_()
    return x.sum(0)


@_case(_plain((4, 4)), "mutation")
def view_made_before_a_write_sees_it(x: Tensor) -> tuple[Tensor, Tensor]:
    row = x[1]
    x.mul_(3)
    return row + 1, row


@_case(_plain((3, 4)), "mutation")
def metadata_of_an_input_changed(x: Tensor) -> Tensor:
    x.t_()
    x.unsqueeze_(0)
    return x * 2


@_case(_plain((3, 4)), "mutation")
def data_and_metadata_of_an_input_changed(x: Tensor) -> Tensor:
    x.transpose_(0, 1).add_(1)
    return x.sum(0)


@_case(_plain((), dtype=torch.float64), "mutation")
def zero_dimensional_input_written(x: Tensor) -> tuple[()]:
    x.neg_()
    return ()


@_case(_computed((3, 4)), "mutation", "gradients")
def differentiable_input_written(x: Tensor) -> Tensor:
    x.mul_(2)
    return torch.sin(x).sum()


@_case(_computed((3, 4)), "mutation", "gradients")
def differentiable_input_written_and_nothing_returned(x: Tensor) -> None:
    x[1:].mul_(3)


@_case(_computed((3, 4)), "mutation", "gradients")
def input_written_without_gradients(x: Tensor) -> Tensor:
    with torch.no_grad():
        x.mul_(2)
    return x * 3


@_case(_plain((3, 4), (3, 4)), "mutation")
def two_inputs_swapped(x: Tensor, y: Tensor) -> None:
    saved = x.clone()
    x.copy_(y)
    y.copy_(saved)


def _data_and_leaf(call: int) -> Inputs:
    leaf = _numbers((3, 4), 10 * call + 1).requires_grad_()
    return Inputs((_numbers((3, 4), 10 * call), leaf), (leaf,))


@_case(_data_and_leaf, "mutation", "gradients")
def input_that_the_backward_needs_is_written_after_its_use(x: Tensor, weight: Tensor) -> Tensor:
    scaled = torch.sin(x * 2) * weight
    x.add_(1)
    return scaled


@_case(_plain((5,), (5,), (3, 5)), "mutation")
def running_statistics_updated(mean: Tensor, var: Tensor, x: Tensor) -> Tensor:
    return F.batch_norm(x, mean, var.abs_(), training=True)


@_case(_leaves((3, 4)), "gradients", "mutation")
def intermediate_written_in_place(x: Tensor) -> Tensor:
    y = x * 2
    y[0] = 1
    y[:, 1].mul_(3)
    z = y.view(2, 6)
    z.add_(1)
    return y


# -- inputs that alias each other -------------------------------------------------------------------------------------


@_case(_views_of_one(lambda b: b, lambda b: b), "mutation")
def same_memory_twice(x: Tensor, y: Tensor) -> Tensor:
    x.add_(1)
    return y * 2


@_case(_views_of_one(lambda b: b, lambda b: b.t()), "mutation")
def memory_and_its_transpose(x: Tensor, y: Tensor) -> Tensor:
    x[0].fill_(5)
    y[1].mul_(2)
    return x + y


@_case(_views_of_one(lambda b: b[:3], lambda b: b[1:]), "mutation")
def overlapping_slices(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    x.add_(y.sum())
    y.mul_(2)
    return x.sum(), y


@_case(_views_of_one(lambda b: b[:2], lambda b: b[2:]), "mutation")
def slices_beside_each_other(x: Tensor, y: Tensor) -> Tensor:
    x.add_(1)
    y.sub_(1)
    return x + y


@_case(_views_of_one(lambda b: b, lambda b: b[1]))
def aliasing_inputs_only_read(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return x + y, y.view(2, 2)


# -- gradients -------------------------------------------------------------------------------------------------------


@_case(_leaves((3, 4), (4,), (2, 2)), "gradients")
def input_without_use_has_no_gradient(x: Tensor, y: Tensor, unused: Tensor) -> Tensor:
    return x * y


@_case(_leaves((3, 4), (3, 4)), "gradients")
def gradients_stop_at_detach_and_no_grad(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    with torch.no_grad():
        frozen = x * y
    return frozen, x * y.detach(), frozen * y


@_case(_leaves((6,)), "gradients")
def ties_share_or_take_the_gradient(x: Tensor) -> tuple[Tensor, ...]:
    tied = torch.sign(x) + x * 0
    return tied.amax(), tied.max(0).values, torch.maximum(tied, tied.flip(0)), tied.max()


@_case(_leaves((4, 5)), "gradients")
def repeated_indices_accumulate(x: Tensor) -> tuple[Tensor, Tensor]:
    index = torch.tensor([0, 2, 2, 0], device=x.device)
    return x[index], F.embedding(index.view(2, 2), x)


@_case(_leaves((5, 8), (8,)), "gradients")
def integer_and_boolean_outputs_beside_floats(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    return x.argmax(1), x > y, x.sort(dim=1, stable=True)[1], (x * y).sum(1)


# -- numbers ---------------------------------------------------------------------------------------------------------


@_case(lambda call: Inputs((torch.tensor([-7, -1, 0, 5, 2**31 - 1]), torch.tensor([2, 3, 4, -3, 7])), ()))
def integer_division_and_remainder(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    return x // y, x % y, torch.fmod(x, y), torch.div(x, y, rounding_mode="trunc"), x / y, x << 1, x >> 1


@_case(lambda call: Inputs((torch.tensor([torch.nan, -0.0, torch.inf, -torch.inf, 1.0]),), ()))
def nan_infinity_and_negative_zero(x: Tensor) -> tuple[Tensor, ...]:
    reduced = (x.max(), x.amin(), x.argmax(), x.sum(), x.prod())
    return (torch.maximum(x, -x), x.clamp(-1, 1), F.relu(x), torch.sign(x), x.copysign(-x), x == x, 1 / x, *reduced)


@_case(lambda call: Inputs((torch.arange(-3, 5, dtype=torch.int32), torch.linspace(-2, 2, 8).to(torch.bfloat16)), ()))
def dtypes_promote(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    return (
        x + y,
        x * 2.5,
        y * 2,
        x / 2,
        x.sum(),
        y.sum(),
        (x > 0) + x,
        x + torch.tensor(1.5, dtype=torch.float64, device=x.device),
        y.mean(),
    )


@_case(
    lambda call: Inputs(
        (torch.tensor([200, 255, 3], dtype=torch.uint8), torch.tensor([100, 1, 4], dtype=torch.uint8)), ()
    )
)
def small_integers_wrap_around(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    return x + y, x * y, y - x, -x, x.sum(), x.to(torch.int8)


# -- errors ----------------------------------------------------------------------------------------------------------


@_case(lambda call: Inputs((_numbers((4, 3), call), torch.tensor([0, 9])), ()))
def index_out_of_range_raises(x: Tensor, index: Tensor) -> Tensor:
    return F.embedding(index, x) * 2
